//! Node agents on the wire: what an agent found, and that it still lives.

use serde::{Deserialize, Serialize};
use wharf_core::limits::GPU_INSTANCES_MAX;

use super::bounded::{self, field};
use super::{Fault, NodeBody, ReasonCode};

/// A GPU device. In a report its place in the list is the order in which it was found; in a list
/// of nodes it is its instance number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuBody {
    /// The device's own identity: by it an instance goes on meaning the same device.
    #[serde(deserialize_with = "bounded::name::<_, field::Uuid>")]
    pub uuid: String,
    /// Its model, or empty.
    #[serde(deserialize_with = "bounded::name::<_, field::Model>")]
    pub model: String,
    /// Its memory, in MiB.
    pub memory_mib: u64,
    /// The NUMA node it is attached to, where that is known.
    pub numa: Option<u16>,
    /// The devices of this list that it is linked to directly (NVLink): bit `i` stands for place `i`.
    pub links: u16,
    /// Why it offers nothing to new work; empty for a healthy device.
    #[serde(deserialize_with = "bounded::prose::<_, field::Fault>")]
    pub fault: String,
}

/// What an agent found on its machine. Registers the node, or brings it up to date.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportRequest {
    /// Capacity and labels. `identity` is the machine's, and must be given.
    pub node: NodeBody,
    /// Which start of the machine (its kernel's boot id).
    #[serde(deserialize_with = "bounded::name::<_, field::Boot>")]
    pub boot: String,
    /// The agent's number for this report; beats repeat it.
    pub version: u64,
    /// The GPU devices: as many as `node.gpus` says.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Gpus, GPU_INSTANCES_MAX>")]
    pub gpus: Vec<GpuBody>,
}

/// What became of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportReply {
    /// `done` or the fault's.
    pub reason: ReasonCode,
    /// The node's id, to beat with. A new node is joining until its first beat.
    pub node: u64,
    /// How often the agent is to beat, in ms.
    pub interval_ms: u32,
    /// After how much silence the node is lost, in ms.
    pub lost_after_ms: u32,
    /// The node of another machine that had the name, and is gone now; 0 for none.
    pub replaced: u64,
    /// Allocations that ended with it.
    pub allocations_ended: u32,
    /// What is wrong.
    pub fault: Option<Fault>,
}

/// The agent lives, and nothing changed since its report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatRequest {
    /// The node's id, from the report's reply.
    pub node: u64,
    /// The version of the agent's last report.
    pub version: u64,
}

/// What the service makes of a beat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatReply {
    /// `done`, or `unknown_node` where no agent reported for the node.
    pub reason: ReasonCode,
    /// The service does not know what was reported last: report again.
    pub report_again: bool,
    /// How often the agent is to beat, in ms.
    pub interval_ms: u32,
}
