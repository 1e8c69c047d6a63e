//! Synthetic clusters and workloads of any size, in the columns of the openb trace.
//!
//! The proportions follow the openb trace (Weng et al., "Beware of Fragmentation", USENIX ATC 2023). A fifth
//! of the nodes have no GPUs, and most of the others have 2 or 8. About 85 % of the pods use one GPU, half of
//! those only a part of it; one in a hundred uses several GPUs, and the rest none. The shapes are round
//! numbers of our own. Everything is a function of the seed: the same numbers give the same bytes on every
//! machine.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use wharf_core::rng::Rng;

use crate::trace::{Trace, TraceError, openb};

/// The parameters of the generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntheticCluster {
    /// The number of nodes.
    pub nodes: u32,
    /// The number of pods.
    pub pods: u32,
    /// The seed of all random draws.
    pub seed: u64,
    /// The percentage of GPU pods that accept only certain models.
    pub gpu_spec_percent: u8,
}

/// A generated trace, as the contents of its two files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntheticFiles {
    /// `nodes.csv`.
    pub nodes: String,
    /// `pods.csv`.
    pub pods: String,
}

struct NodeShape {
    weight: u64,
    cpu_milli: u32,
    memory_mib: u32,
    gpus: u8,
    model: &'static str,
}

const fn node(weight: u64, cores: u32, gib: u32, gpus: u8, model: &'static str) -> NodeShape {
    NodeShape { weight, cpu_milli: cores * 1000, memory_mib: gib * 1024, gpus, model }
}

const NODE_SHAPES: [NodeShape; 9] = [
    node(12, 32, 256, 0, ""),
    node(8, 96, 512, 0, ""),
    node(36, 96, 384, 8, "G2"),
    node(25, 104, 512, 2, "T4"),
    node(8, 16, 120, 2, "P100"),
    node(4, 32, 128, 4, "V100M16"),
    node(2, 48, 368, 4, "V100M32"),
    node(2, 96, 768, 8, "V100M32"),
    node(3, 128, 768, 8, "G3"),
];

/// The models that constrained pods accept: single models, and the families that openb's pods name.
const MODEL_LISTS: [(u64, &str); 6] =
    [(40, "T4"), (20, "G2"), (12, "P100"), (8, "G3"), (10, "V100M16|V100M32"), (10, "P100|T4")];

/// Parts of one GPU, in thousandths.
const PARTS_MILLI: [(u64, u32); 7] =
    [(35, 810), (24, 470), (11, 320), (10, 650), (8, 230), (7, 550), (5, 110)];

/// Draws one entry of a weighted table.
fn draw<'a, T>(rng: &mut Rng, table: &'a [T], weight: impl Fn(&T) -> u64) -> &'a T {
    let mut at = rng.below(table.iter().map(&weight).sum());
    for entry in table {
        let weight = weight(entry);
        if at < weight {
            return entry;
        }
        at -= weight;
    }
    unreachable!("a draw below the sum of the weights falls on an entry")
}

fn between(rng: &mut Rng, low: u32, high: u32) -> u32 {
    low + u32::try_from(rng.below(u64::from(high - low) + 1)).expect("a range of u32")
}

/// The demand of a pod.
struct PodShape {
    cpu_milli: u32,
    memory_mib: u32,
    gpus: u8,
    gpu_milli: u32,
}

impl SyntheticCluster {
    /// Generates the cluster and its workload.
    #[must_use]
    pub fn generate(&self) -> SyntheticFiles {
        let mut rng = Rng::new(self.seed);
        let nodes = self.draw_nodes(&mut rng);
        SyntheticFiles { nodes, pods: self.draw_pods(&mut rng) }
    }

    fn draw_nodes(&self, rng: &mut Rng) -> String {
        let mut text = String::from("sn,cpu_milli,memory_mib,gpu,model\n");
        for i in 0..self.nodes {
            let shape = draw(rng, &NODE_SHAPES, |shape| shape.weight);
            let NodeShape { cpu_milli, memory_mib, gpus, model, .. } = shape;
            row(&mut text, format_args!("synth-node-{i:04},{cpu_milli},{memory_mib},{gpus},{model}"));
        }
        text
    }

    fn draw_pods(&self, rng: &mut Rng) -> String {
        let mut text = String::from(
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n",
        );
        // The arrival rate keeps about as many pods alive as the cluster holds. With a mean lifetime of 1,900
        // s, five pods per node need one arrival per node every 380 s.
        let gap_mean_ms = 380_000 / u64::from(self.nodes.max(1));
        let mut now_ms = 0;
        for i in 0..self.pods {
            now_ms += rng.below(2 * gap_mean_ms + 1);
            let PodShape { cpu_milli, memory_mib, gpus, gpu_milli } = draw_pod(rng);
            let constrained = rng.below(100) < u64::from(self.gpu_spec_percent) && gpus > 0;
            let models = if constrained { draw(rng, &MODEL_LISTS, |&(weight, _)| weight).1 } else { "" };
            let qos = if rng.below(4) == 0 { "BE" } else { "LS" };
            let created = now_ms / 1000;
            let deleted = created + draw_lifetime_s(rng);
            row(
                &mut text,
                format_args!(
                    "synth-pod-{i:05},{cpu_milli},{memory_mib},{gpus},{gpu_milli},{models},{qos},Succeeded,{created},{deleted},{created}"
                ),
            );
        }
        text
    }
}

fn row(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a string takes all that is written to it");
}

fn draw_pod(rng: &mut Rng) -> PodShape {
    let kind = rng.below(1000);
    let (gpus, gpu_milli) = match kind {
        0..133 => (0, 0),
        133..553 => (1, draw(rng, &PARTS_MILLI, |&(weight, _)| weight).1),
        553..990 => (1, 1000),
        990..994 => (2, 1000),
        994..996 => (4, 1000),
        _ => (8, 1000),
    };
    let cores = match gpus {
        0 => between(rng, 4, 32),
        1 if gpu_milli < 1000 => between(rng, 3, 12),
        1 => between(rng, 4, 16),
        gpus => u32::from(gpus) * between(rng, 6, 10),
    };
    // Half cores, and 2 to 5 GiB per core.
    let cpu_milli = cores * 1000 + 500 * between(rng, 0, 1);
    PodShape { cpu_milli, memory_mib: cores * 1024 * between(rng, 2, 5), gpus, gpu_milli }
}

/// Draws a lifetime: minutes for most pods, hours for a few. Draws are uniform within each class.
fn draw_lifetime_s(rng: &mut Rng) -> u64 {
    let (low, high) = match rng.below(100) {
        0..25 => (20, 160),
        25..75 => (160, 2000),
        75..95 => (2000, 5000),
        _ => (5000, 12_000),
    };
    u64::from(between(rng, low, high))
}

impl SyntheticFiles {
    /// Writes `nodes.csv` and `pods.csv` into a directory, which is created if missing.
    ///
    /// # Errors
    /// When the directory or a file cannot be written.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        fs::write(directory.join("nodes.csv"), &self.nodes)?;
        fs::write(directory.join("pods.csv"), &self.pods)
    }

    /// Parses the cluster and workload as a trace, without files.
    ///
    /// # Errors
    /// Never, as long as the reader accepts what the generator writes.
    pub fn parse(&self) -> Result<Trace, TraceError> {
        let pods_source = "synthetic pods".to_owned();
        Ok(Trace {
            nodes: openb::read_nodes(self.nodes.as_bytes(), "synthetic nodes")?,
            pods: openb::read_pods(self.pods.as_bytes(), &pods_source)?,
            pods_source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{SAMPLE, SAMPLE_NODES, SAMPLE_PODS, sample};

    #[test]
    fn the_sample_is_what_its_seed_gives() {
        let files = SAMPLE.generate();
        assert!(files.nodes == SAMPLE_NODES, "sample/nodes.csv is not what the generator writes");
        assert!(files.pods == SAMPLE_PODS, "sample/pods.csv is not what the generator writes");
        let trace = sample().unwrap();
        assert_eq!((trace.nodes.len(), trace.pods.len()), (160, 1000));
    }

    #[test]
    fn another_seed_gives_another_cluster_and_no_constraint_where_none_is_asked() {
        let other = SyntheticCluster { seed: 7, gpu_spec_percent: 0, ..SAMPLE };
        let files = other.generate();
        assert_ne!(files.nodes, SAMPLE_NODES);
        let pods = crate::trace::openb::read_pods(files.pods.as_bytes(), "pods").unwrap();
        assert!(pods.iter().all(|pod| pod.selector.is_none()));
        let all = SyntheticCluster { gpu_spec_percent: 100, ..other }.generate();
        let pods = crate::trace::openb::read_pods(all.pods.as_bytes(), "pods").unwrap();
        let gpu_pods = pods.iter().filter(|pod| !pod.demand.gpu.amount().is_zero());
        assert!(gpu_pods.clone().count() > 800 && gpu_pods.into_iter().all(|pod| pod.selector.is_some()));
    }
}
