//! Nodes on the wire.

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

/// Registered by an agent that has not beaten yet: takes no new work.
pub const NODE_JOINING: u8 = 3;
/// Its agent is silent: takes no new work until it is back.
pub const NODE_LOST: u8 = 4;
/// As [`NODE_LOST`], and it takes none when it is back either.
pub const NODE_LOST_DRAINING: u8 = 5;

/// Keeps work away from a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taint {
    /// Its key.
    #[serde(deserialize_with = "bounded::name::<_, field::Key>")]
    pub key: String,
    /// Its value.
    #[serde(deserialize_with = "bounded::name::<_, field::Value>")]
    pub value: String,
    /// `EFFECT_*`, but not any.
    pub effect: u8,
}

/// Capacity and labels of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBody {
    /// The key under which clients know it.
    #[serde(deserialize_with = "bounded::name::<_, field::Name>")]
    pub name: String,
    /// The machine behind the name, or empty.
    #[serde(deserialize_with = "bounded::name::<_, field::Identity>")]
    pub identity: String,
    /// Cores, in 1/10 000.
    pub cpu: i64,
    /// MiB, in 1/10 000.
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

/// Nodes to add or to update, each on its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodesRequest {
    /// The nodes.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Nodes, NODES_PER_MESSAGE_MAX>")]
    pub nodes: Vec<NodeBody>,
}

/// Nodes that take no new work, or take it again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRequest {
    /// By name.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Names, NODES_PER_MESSAGE_MAX>")]
    pub names: Vec<Name>,
    /// Take work again.
    pub undo: bool,
}

/// Nodes that go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveRequest {
    /// By name.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Names, NODES_PER_MESSAGE_MAX>")]
    pub names: Vec<Name>,
    /// End their allocations too; otherwise a node in use stays.
    pub force: bool,
}

/// What became of one node of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReply {
    /// `done` or the fault's.
    pub reason: ReasonCode,
    /// The node's id, where it has one.
    pub node: u64,
    /// Allocations that ended with it.
    pub allocations_ended: u32,
    /// What is wrong.
    pub fault: Option<Fault>,
}

/// What became of the nodes of a request, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodesReply {
    /// One per node.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Replies, NODES_PER_MESSAGE_MAX>")]
    pub replies: Vec<NodeReply>,
}

/// Asks for nodes in order of registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListRequest {
    /// The last ordinal already seen; 0 to begin.
    pub after: u64,
    /// At most so many; at most [`NODES_PER_MESSAGE_MAX`].
    pub limit: u16,
}

/// A GPU instance that offers nothing to new work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnhealthyBody {
    /// Its number.
    pub instance: u8,
    /// Why.
    #[serde(deserialize_with = "bounded::prose::<_, field::Reason>")]
    pub reason: String,
}

/// What a node's agent said last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentBody {
    /// Which start of the machine.
    #[serde(deserialize_with = "bounded::name::<_, field::Boot>")]
    pub boot: String,
    /// The GPU devices, by instance.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Gpus, GPU_INSTANCES_MAX>")]
    pub gpus: Vec<GpuBody>,
}

/// For whom a node is reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedNode {
    /// For whom.
    pub owner: u64,
    /// When that ends by itself, in ns of service time; 0: it does not.
    pub until: u64,
}

/// The state of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its id.
    pub id: u64,
    /// Its place in the order of registration.
    pub ordinal: u64,
    /// The partition that owns it.
    pub partition: u16,
    /// `NODE_*`.
    pub state: u8,
    /// Counts its changes.
    pub version: u64,
    /// Capacity and labels.
    pub body: NodeBody,
    /// Free cores, in 1/10 000.
    pub cpu_available: i64,
    /// Free MiB, in 1/10 000.
    pub memory_available: i64,
    /// The free part of each GPU, in 1/10 000.
    #[serde(deserialize_with = "bounded::list::<_, _, field::GpusAvailable, GPU_INSTANCES_MAX>")]
    pub gpus_available: Vec<u16>,
    /// Live allocations.
    pub allocations: u32,
    /// Unhealthy GPU instances, ascending. Their free part is not in `gpus_available`.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Unhealthy, GPU_INSTANCES_MAX>")]
    pub unhealthy: Vec<UnhealthyBody>,
    /// None where no agent keeps the node.
    pub agent: Option<AgentBody>,
    /// For whom it is reserved.
    pub reserved: Option<ReservedNode>,
}

/// A page of nodes. It may be shorter than its limit, where the nodes are long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListReply {
    /// In order of registration.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Nodes, NODES_PER_MESSAGE_MAX>")]
    pub nodes: Vec<NodeStatus>,
    /// There may be more: ask again, after the last ordinal of this page.
    pub more: bool,
}
