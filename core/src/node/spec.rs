//! The description of a node when it is registered or updated.

use std::sync::Arc;

use super::{AgentFacts, Labels, Taints};
use crate::ids::{NodeId, Ordinal, PartitionId, ResourceId};
use crate::resource::{Amount, CustomAmounts};

/// Capacity, labels and taints of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// The name by which clients know the node. It is unique among registered nodes.
    pub name: Arc<str>,
    /// The machine behind the name (a machine id or boot id), if the client has one.
    pub identity: Option<Arc<str>>,
    /// Cores.
    pub cpu: Amount,
    /// MiB.
    pub memory: Amount,
    /// The number of GPU devices: `0..=16`.
    pub gpus: u8,
    /// Custom kinds.
    pub custom: Option<CustomAmounts>,
    /// Labels.
    pub labels: Labels,
    /// Taints.
    pub taints: Taints,
}

impl NodeSpec {
    /// Returns the node's amount of a custom kind.
    #[must_use]
    pub fn custom_total(&self, id: ResourceId) -> Amount {
        let totals = self.custom.as_deref().unwrap_or(&[]);
        totals.binary_search_by_key(&id, |&(id, _)| id).map_or(Amount::ZERO, |at| totals[at].1)
    }
}

/// A node as the registrar passes it to its shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRegistration {
    /// Its id.
    pub id: NodeId,
    /// Its position in the order of registration.
    pub ordinal: Ordinal,
    /// The partition that owns it.
    pub partition: PartitionId,
    /// Capacity and labels.
    pub spec: NodeSpec,
    /// The agent's last report. `None` if the node has no agent. It is never lost then.
    pub agent: Option<Arc<AgentFacts>>,
}
