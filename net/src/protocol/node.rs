//! Messages about nodes.

use serde::de::DeserializeSeed;
use serde::{Deserialize, Deserializer, Serialize};
use wharf_core::limits::{CUSTOM_RESOURCES_MAX, GPU_INSTANCES_MAX, LABELS_MAX, NODES_PER_MESSAGE_MAX};

use super::bounded::{Bounded, NAME, PROSE};
use super::{Fault, GpuBody, NamedAmount, Pair, ReasonCode};

/// The node takes new work.
pub const NODE_READY: u8 = 1;
/// The node takes no new work.
pub const NODE_DRAINING: u8 = 2;

/// The node was registered by an agent that has not sent a heartbeat yet. It takes no new work.
pub const NODE_JOINING: u8 = 3;
/// The node's agent is silent. The node takes no new work until the agent is back.
pub const NODE_LOST: u8 = 4;
/// Same as [`NODE_LOST`], but the node is draining and takes no new work afterwards either.
pub const NODE_LOST_DRAINING: u8 = 5;

bodies! {
    /// A taint, which keeps work away from a node.
    pub struct Taint {
        /// The taint's key.
        pub key: String [NAME],
        /// The taint's value.
        pub value: String [NAME],
        /// `EFFECT_*`, except `EFFECT_ANY`.
        pub effect: u8,
    }

    /// Capacity and labels of a node.
    pub struct NodeBody {
        /// The name by which clients know the node.
        pub name: String [NAME],
        /// The identity of the machine behind the name, or empty.
        pub identity: String [NAME],
        /// Cores, in 1/10,000.
        pub cpu: i64,
        /// MiB, in 1/10,000.
        pub memory: i64,
        /// GPU devices.
        pub gpus: u32,
        /// Custom resources.
        pub custom: Vec<NamedAmount> [CUSTOM_RESOURCES_MAX],
        /// Labels; `gpu-model` is the GPU model.
        pub labels: Vec<Pair> [LABELS_MAX],
        /// Taints, each key at most once per effect.
        pub taints: Vec<Taint> [LABELS_MAX],
    }

    /// Nodes to add or update, each on its own.
    pub struct NodesRequest {
        /// The nodes.
        pub nodes: Vec<NodeBody> [NODES_PER_MESSAGE_MAX],
    }

    /// Nodes to drain, or to take back from draining.
    pub struct DrainRequest {
        /// The nodes' names.
        pub names: Vec<Name> [NODES_PER_MESSAGE_MAX],
        /// Undo the draining.
        pub undo: bool,
    }

    /// Nodes to remove.
    pub struct RemoveRequest {
        /// The nodes' names.
        pub names: Vec<Name> [NODES_PER_MESSAGE_MAX],
        /// Ends the nodes' allocations too. Otherwise a node in use stays.
        pub force: bool,
    }

    /// The result for one node of a request.
    pub struct NodeReply {
        /// `done` or the fault's reason.
        pub reason: ReasonCode,
        /// The node's id, if it has one.
        pub node: u64,
        /// The number of allocations that ended with the node.
        pub allocations_ended: u32,
        /// The fault, if any.
        pub fault: Option<Fault>,
    }

    /// The results for the nodes of a request, in order.
    pub struct NodesReply {
        /// One result per node.
        pub replies: Vec<NodeReply> [NODES_PER_MESSAGE_MAX],
    }

    /// Asks for nodes in order of registration.
    #[derive(Copy)]
    pub struct ListRequest {
        /// The last ordinal already seen. 0 to begin.
        pub after: u64,
        /// Maximum number of nodes to return, up to [`NODES_PER_MESSAGE_MAX`].
        pub limit: u16,
    }

    /// A GPU instance that offers nothing to new work.
    pub struct UnhealthyBody {
        /// The instance's number.
        pub instance: u8,
        /// Why the instance is unhealthy.
        pub reason: String [PROSE],
    }

    /// The findings that a node's agent reported last.
    pub struct AgentBody {
        /// The boot of the machine.
        pub boot: String [NAME],
        /// The GPU devices, by instance.
        pub gpus: Vec<GpuBody> [GPU_INSTANCES_MAX],
    }

    /// The reservation of a node, in a list of nodes.
    #[derive(Copy)]
    pub struct ReservedNode {
        /// The owner.
        pub owner: u64,
        /// When the reservation ends by itself, in ns of service time. 0 means never.
        pub until: u64,
    }

    /// The state of a node.
    pub struct NodeStatus {
        /// The node's id.
        pub id: u64,
        /// The node's place in the order of registration.
        pub ordinal: u64,
        /// The partition that owns it.
        pub partition: u16,
        /// `NODE_*`.
        pub state: u8,
        /// Counts the node's changes.
        pub version: u64,
        /// Capacity and labels.
        pub body: NodeBody,
        /// Free cores, in 1/10,000.
        pub cpu_available: i64,
        /// Free MiB, in 1/10,000.
        pub memory_available: i64,
        /// The free part of each GPU, in 1/10,000.
        pub gpus_available: Vec<u16> [GPU_INSTANCES_MAX],
        /// The number of live allocations.
        pub allocations: u32,
        /// Unhealthy GPU instances, ascending. Their free part is not in `gpus_available`.
        pub unhealthy: Vec<UnhealthyBody> [GPU_INSTANCES_MAX],
        /// `None` if no agent reports the node.
        pub agent: Option<AgentBody>,
        /// The node's reservation, if any.
        pub reserved: Option<ReservedNode>,
    }

    /// A page of nodes. It may be shorter than its limit if the nodes are long.
    pub struct ListReply {
        /// The nodes in order of registration.
        pub nodes: Vec<NodeStatus> [NODES_PER_MESSAGE_MAX],
        /// There may be more nodes. Ask again after the last ordinal of this page.
        pub more: bool,
    }
}

/// A name in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Name(pub String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Bounded::<String>::new("names", NAME).deserialize(deserializer).map(Self)
    }
}
