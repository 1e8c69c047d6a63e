//! A cluster trace: nodes and pods in the order in which their files list them.
//!
//! Values are checked and in the engine's own units before anything is handed out: a trace that
//! was read can be replayed, and a broken one is refused as a whole.

mod error;
pub use error::{Fault, Place, TraceError};
pub mod beside;
pub mod openb;

use std::sync::Arc;

use wharf_core::node::{GPU_MODEL_LABEL, Labels, NodeSpec, Operator, Selector, Taints, Term};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand};

/// A node of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceNode {
    /// Its name: unique in the trace.
    pub name: Arc<str>,
    /// Cores.
    pub cpu: Amount,
    /// MiB.
    pub memory: Amount,
    /// GPU devices.
    pub gpus: u8,
    /// The model of its GPUs, where the trace names one.
    pub model: Option<Arc<str>>,
}

impl TraceNode {
    /// What is said of the node when it is registered.
    #[must_use]
    pub fn spec(&self) -> NodeSpec {
        let model = self.model.iter().map(|model| (GPU_MODEL_LABEL.into(), Arc::clone(model)));
        NodeSpec {
            name: Arc::clone(&self.name),
            identity: None,
            cpu: self.cpu,
            memory: self.memory,
            gpus: self.gpus,
            custom: None,
            labels: Labels::new(model.collect()).expect("one label is not given twice"),
            taints: Taints::default(),
        }
    }
}

/// When a pod came and went, in seconds of the trace. Either may be unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// When it was created.
    pub created: Option<u64>,
    /// When it was deleted.
    pub deleted: Option<u64>,
}

/// A pod of a trace: one placement to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracePod {
    /// Its name: unique in the trace.
    pub name: Arc<str>,
    /// The line of the file that it stands on, so that a later complaint can name it.
    pub line: u64,
    /// What it takes.
    pub demand: Demand,
    /// The GPU models it accepts, where it is constrained; shared by pods with equal constraints.
    pub selector: Option<Arc<Selector>>,
    /// When it came and went.
    pub lifetime: Lifetime,
}

impl TracePod {
    /// The request that asks for it.
    #[must_use]
    pub fn request(&self, policy: Policy) -> PlacementRequest {
        let mut request = PlacementRequest::new(self.demand.clone(), policy);
        request.selector.clone_from(&self.selector);
        request
    }
}

/// A selector for nodes whose GPUs are of one of `models`.
#[must_use]
pub fn model_selector<'a>(models: impl IntoIterator<Item = &'a str>) -> Selector {
    let values = models.into_iter().map(str::to_owned).collect();
    Selector::new(vec![Term { key: GPU_MODEL_LABEL.to_owned(), operator: Operator::In, values }])
}

/// Nodes and pods, in file order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The cluster.
    pub nodes: Vec<TraceNode>,
    /// The workload.
    pub pods: Vec<TracePod>,
    /// What the pods were read from, to be named in complaints.
    pub pods_source: String,
}
