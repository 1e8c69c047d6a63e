//! Messages about nodes.

use serde::{Deserialize, Serialize};
use wharf_core::limits::{CUSTOM_RESOURCES_MAX, GPU_INSTANCES_MAX, LABELS_MAX, NODES_PER_MESSAGE_MAX};

use super::bounded::{self, field};
use super::{Fault, GpuBody, NamedAmount, Pair, ReasonCode};

/// A name in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name(#[serde(deserialize_with = "bounded::name::<_, field::Names>")] pub String);

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

/// A taint, which keeps work away from a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taint {
    /// The taint's key.
    #[serde(deserialize_with = "bounded::name::<_, field::Key>")]
    pub key: String,
    /// The taint's value.
    #[serde(deserialize_with = "bounded::name::<_, field::Value>")]
    pub value: String,
    /// `EFFECT_*`, except `EFFECT_ANY`.
    pub effect: u8,
}

/// Capacity and labels of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBody {
    /// The name by which clients know the node.
    #[serde(deserialize_with = "bounded::name::<_, field::Name>")]
    pub name: String,
    /// The identity of the machine behind the name, or empty.
    #[serde(deserialize_with = "bounded::name::<_, field::Identity>")]
    pub identity: String,
    /// Cores, in 1/10,000.
    pub cpu: i64,
    /// MiB, in 1/10,000.
    pub memory: i64,
    /// GPU devices.
    pub gpus: u32,
    /// Custom resources.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Custom, CUSTOM_RESOURCES_MAX>")]
    pub custom: Vec<NamedAmount>,
    /// Labels; `gpu-model` is the GPU model.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Labels, LABELS_MAX>")]
    pub labels: Vec<Pair>,
    /// Taints, each key at most once per effect.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Taints, LABELS_MAX>")]
    pub taints: Vec<Taint>,
}

/// Nodes to add or update, each on its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodesRequest {
    /// The nodes.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Nodes, NODES_PER_MESSAGE_MAX>")]
    pub nodes: Vec<NodeBody>,
}

/// Nodes to drain, or to take back from draining.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRequest {
    /// The nodes' names.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Names, NODES_PER_MESSAGE_MAX>")]
    pub names: Vec<Name>,
    /// Undo the draining.
    pub undo: bool,
}

/// Nodes to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveRequest {
    /// The nodes' names.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Names, NODES_PER_MESSAGE_MAX>")]
    pub names: Vec<Name>,
    /// Ends the nodes' allocations too. Otherwise a node in use stays.
    pub force: bool,
}

/// The result for one node of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodesReply {
    /// One result per node.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Replies, NODES_PER_MESSAGE_MAX>")]
    pub replies: Vec<NodeReply>,
}

/// Asks for nodes in order of registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListRequest {
    /// The last ordinal already seen. 0 to begin.
    pub after: u64,
    /// Maximum number of nodes to return, up to [`NODES_PER_MESSAGE_MAX`].
    pub limit: u16,
}

/// A GPU instance that offers nothing to new work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnhealthyBody {
    /// The instance's number.
    pub instance: u8,
    /// Why the instance is unhealthy.
    #[serde(deserialize_with = "bounded::prose::<_, field::Reason>")]
    pub reason: String,
}

/// The findings that a node's agent reported last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentBody {
    /// The boot of the machine.
    #[serde(deserialize_with = "bounded::name::<_, field::Boot>")]
    pub boot: String,
    /// The GPU devices, by instance.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Gpus, GPU_INSTANCES_MAX>")]
    pub gpus: Vec<GpuBody>,
}

/// The reservation of a node, in a list of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedNode {
    /// The owner.
    pub owner: u64,
    /// When the reservation ends by itself, in ns of service time. 0 means never.
    pub until: u64,
}

/// The state of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    #[serde(deserialize_with = "bounded::list::<_, _, field::GpusAvailable, GPU_INSTANCES_MAX>")]
    pub gpus_available: Vec<u16>,
    /// The number of live allocations.
    pub allocations: u32,
    /// Unhealthy GPU instances, ascending. Their free part is not in `gpus_available`.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Unhealthy, GPU_INSTANCES_MAX>")]
    pub unhealthy: Vec<UnhealthyBody>,
    /// `None` if no agent reports the node.
    pub agent: Option<AgentBody>,
    /// The node's reservation, if any.
    pub reserved: Option<ReservedNode>,
}

/// A page of nodes. It may be shorter than its limit if the nodes are long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListReply {
    /// The nodes in order of registration.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Nodes, NODES_PER_MESSAGE_MAX>")]
    pub nodes: Vec<NodeStatus>,
    /// There may be more nodes. Ask again after the last ordinal of this page.
    pub more: bool,
}
