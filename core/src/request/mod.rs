//! What a placement request asks, after the edge has checked it.

mod policy;
pub use policy::{ParsePolicyError, Policy};

use std::sync::Arc;

use crate::ids::NodeId;
use crate::node::Selector;
use crate::resource::Demand;

/// How much a refusal should explain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Explain {
    /// Count over at most [`EXPLAIN_NODES_MAX`](crate::limits::EXPLAIN_NODES_MAX) nodes per
    /// shard, so that refusing stays cheap; the reply says over how many.
    #[default]
    Bounded,
    /// Count over all nodes.
    Full,
}

/// One placement to decide.
///
/// Cloning is cheap: what is large is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRequest {
    /// What it takes.
    pub demand: Demand,
    /// Which of the fitting nodes.
    pub policy: Policy,
    /// Terms that the node's labels must satisfy.
    pub selector: Option<Arc<Selector>>,
    /// Only these nodes, if given; sorted, each once.
    pub candidates: Option<Arc<[NodeId]>>,
    /// How much a refusal should explain.
    pub explain: Explain,
}

impl PlacementRequest {
    /// A request without constraints.
    #[must_use]
    pub fn new(demand: Demand, policy: Policy) -> Self {
        Self { demand, policy, selector: None, candidates: None, explain: Explain::default() }
    }
}
