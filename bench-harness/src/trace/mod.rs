//! A cluster trace: nodes and pods in file order.
//!
//! Values are checked and converted to the engine's units while reading. A trace that was read can be
//! replayed, and a broken one is refused as a whole.

mod error;
pub use error::{Fault, Place, TraceError};
pub mod openb;
pub mod shared;

use std::sync::Arc;

use wharf_core::node::{GPU_MODEL_LABEL, Labels, NodeSpec, Operator, Selector, Taints, Term};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand};

/// A node of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceNode {
    /// The name, unique in the trace.
    pub name: Arc<str>,
    /// Cores.
    pub cpu: Amount,
    /// MiB.
    pub memory: Amount,
    /// GPU devices.
    pub gpus: u8,
    /// The model of the GPUs, if the trace names one.
    pub model: Option<Arc<str>>,
}

impl TraceNode {
    /// Returns the spec to register the node with.
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

/// When a pod was created and deleted, in seconds of the trace. Either may be unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// The creation time.
    pub created: Option<u64>,
    /// The deletion time.
    pub deleted: Option<u64>,
}

/// A pod of a trace, which is one placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracePod {
    /// The name, unique in the trace.
    pub name: Arc<str>,
    /// The line in the file, for later error messages.
    pub line: u64,
    /// The demand.
    pub demand: Demand,
    /// The accepted GPU models, if constrained. Pods with equal constraints share it.
    pub selector: Option<Arc<Selector>>,
    /// The creation and deletion times.
    pub lifetime: Lifetime,
}

impl TracePod {
    /// Returns the placement request of the pod.
    #[must_use]
    pub fn request(&self, policy: Policy) -> PlacementRequest {
        let mut request = PlacementRequest::new(self.demand.clone(), policy);
        request.selector.clone_from(&self.selector);
        request
    }
}

/// Returns a selector for nodes whose GPUs are of one of `models`.
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
    /// The source of the pods, for error messages.
    pub pods_source: String,
}
