//! The shapes of nodes and requests: node sizes of the openb cluster, and its pods if the trace is present,
//! or else a similar synthetic list.

use std::path::{Path, PathBuf};

use wharf_core::node::{GPU_MODEL_LABEL, Labels, NodeSpec};
use wharf_core::resource::{Amount, Demand};
use wharf_core::rng::Rng;

use crate::trace::openb;
use crate::trace::shared::next_to_the_repository;
use crate::workload::SyntheticCluster;

/// The number of zones that nodes are spread over, by a label.
pub(super) const ZONES: u64 = 8;
/// The key of the zone label.
pub(super) const ZONE_LABEL: &str = "zone";
/// The key of a label that splits the nodes in half.
pub(super) const HALF_LABEL: &str = "half";
/// The number of pods of the synthetic list.
const SYNTHETIC_PODS: u32 = 8192;

/// The pod list of the trace.
const POD_LIST: &str = "openb_pod_list_default.csv";

/// The demands that requests are drawn from, with equal probability.
#[derive(Clone, Debug)]
pub struct Shapes {
    /// The demands of the pods.
    pub demands: Vec<Demand>,
    /// The source, for the report: `openb` or `synthetic`.
    pub source: &'static str,
}

impl Shapes {
    /// Loads the demands of the pods in `file`. Without a file, uses the openb trace next to the repository,
    /// or else a synthetic list.
    ///
    /// # Errors
    /// When a file exists and cannot be read as a pod list.
    pub fn load(file: Option<&Path>, seed: u64) -> anyhow::Result<Self> {
        let Some(path) = file.map(Path::to_owned).or_else(pod_list) else {
            return Ok(Self::synthetic(seed));
        };
        let name = path.display().to_string();
        let input = std::fs::File::open(&path)
            .map_err(|error| anyhow::anyhow!("{name}: {error}: give a pod list in openb's columns"))?;
        let pods = openb::read_pods(input, &name)?;
        anyhow::ensure!(!pods.is_empty(), "{name}: no pods: give a pod list with at least one");
        Ok(Self { demands: pods.into_iter().map(|pod| pod.demand).collect(), source: "openb" })
    }

    /// Generates a list that resembles the trace.
    #[must_use]
    pub fn synthetic(seed: u64) -> Self {
        let cluster = SyntheticCluster { nodes: 1, pods: SYNTHETIC_PODS, seed, gpu_spec_percent: 0 };
        let trace = cluster.generate().parse().expect("the generator writes what the reader reads");
        Self { demands: trace.pods.into_iter().map(|pod| pod.demand).collect(), source: "synthetic" }
    }
}

fn pod_list() -> Option<PathBuf> {
    next_to_the_repository([POD_LIST]).map(|[pods]| pods)
}

/// A node size: the number of such nodes in openb, cores, GiB, and GPU model.
type Size = (u64, u32, u32, &'static str);

/// The nodes of openb with eight GPUs.
const GPU_SIZES: [Size; 4] =
    [(549, 96, 384, "G2"), (39, 128, 768, "G3"), (21, 96, 768, "V100M32"), (8, 64, 256, "V100M16")];

/// The nodes of openb without GPUs.
const CPU_SIZES: [Size; 9] = [
    (129, 32, 256, ""),
    (60, 96, 512, ""),
    (30, 96, 384, ""),
    (23, 32, 128, ""),
    (22, 64, 512, ""),
    (20, 104, 512, ""),
    (10, 32, 64, ""),
    (8, 64, 256, ""),
    (4, 64, 128, ""),
];

/// The GPUs of a node with GPUs.
pub(super) const GPUS: u8 = 8;

fn draw<'a>(rng: &mut Rng, sizes: &'a [Size]) -> &'a Size {
    let mut at = rng.below(sizes.iter().map(|size| size.0).sum());
    for size in sizes {
        if at < size.0 {
            return size;
        }
        at -= size.0;
    }
    unreachable!("a draw below the sum of the weights falls on a size")
}

/// Draws the model of a GPU node, with the frequencies of openb.
pub(super) fn draw_model(rng: &mut Rng) -> &'static str {
    draw(rng, &GPU_SIZES).3
}

pub(super) fn zone(number: u64) -> String {
    format!("zone-{number}")
}

/// Draws uniformly from `low..=high`.
pub(super) fn between(rng: &mut Rng, low: u32, high: u32) -> u32 {
    low + u32::try_from(rng.below(u64::from(high - low) + 1)).expect("a range of u32")
}

/// Makes nodes. Nodes share equal texts, as in the service.
pub(crate) struct NodeMaker {
    texts: std::collections::HashMap<String, std::sync::Arc<str>>,
    made: u64,
}

impl NodeMaker {
    pub(crate) fn new() -> Self {
        Self { texts: std::collections::HashMap::new(), made: 0 }
    }

    fn text(&mut self, text: &str) -> std::sync::Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return std::sync::Arc::clone(known);
        }
        let shared: std::sync::Arc<str> = text.into();
        self.texts.insert(text.to_owned(), std::sync::Arc::clone(&shared));
        shared
    }

    /// Makes the next node with a size of openb. Every second node has eight GPUs.
    pub(crate) fn openb(&mut self, rng: &mut Rng) -> NodeSpec {
        let with_gpus = self.made.is_multiple_of(2);
        let &(_, cores, gib, model) = draw(rng, if with_gpus { &GPU_SIZES } else { &CPU_SIZES });
        let cpu = Amount::whole(cores);
        let memory = Amount::whole(gib * 1024);
        self.sized(cpu, memory, if with_gpus { GPUS } else { 0 }, model, rng)
    }

    /// Makes the next node with this size.
    pub(super) fn sized(
        &mut self,
        cpu: Amount,
        memory: Amount,
        gpus: u8,
        model: &str,
        rng: &mut Rng,
    ) -> NodeSpec {
        let half = if rng.below(2) == 0 { "a" } else { "b" };
        let mut labels = vec![
            (self.text(ZONE_LABEL), self.text(&zone(rng.below(ZONES)))),
            (self.text(HALF_LABEL), self.text(half)),
        ];
        if !model.is_empty() {
            labels.push((self.text(GPU_MODEL_LABEL), self.text(model)));
        }
        self.made += 1;
        NodeSpec {
            name: format!("node-{}", self.made).into(),
            identity: None,
            cpu,
            memory,
            gpus,
            custom: None,
            labels: Labels::new(labels).expect("three different keys"),
            taints: wharf_core::node::Taints::default(),
        }
    }
}
