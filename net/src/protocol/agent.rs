//! Messages of node agents: reports and heartbeats.

use wharf_core::limits::GPU_INSTANCES_MAX;

use super::bounded::{NAME, PROSE};
use super::{Fault, NodeBody, ReasonCode};

bodies! {
    /// A GPU device. In a report, its place in the list is the order of discovery. In a list of nodes, it is
    /// the instance number.
    pub struct GpuBody {
        /// The device's own identity. It keeps an instance number tied to the same device.
        pub uuid: String [NAME],
        /// The device's model, or empty.
        pub model: String [NAME],
        /// The device's memory, in MiB.
        pub memory_mib: u64,
        /// The NUMA node of the device, if known.
        pub numa: Option<u16>,
        /// The devices of this list with a direct link (NVLink) to this one: bit `i` means place `i`.
        pub links: u16,
        /// Why the device offers nothing to new work. Empty for a healthy device.
        pub fault: String [PROSE],
    }

    /// Registers a node or updates it with the findings of its agent.
    pub struct ReportRequest {
        /// Capacity and labels. `identity` is the machine's identity and is required.
        pub node: NodeBody,
        /// The boot of the machine (its kernel's boot id).
        pub boot: String [NAME],
        /// The agent's number for this report. Heartbeats repeat it.
        pub version: u64,
        /// The GPU devices. Their number must equal `node.gpus`.
        pub gpus: Vec<GpuBody> [GPU_INSTANCES_MAX],
    }

    /// The result of a report.
    pub struct ReportReply {
        /// `done` or the fault's reason.
        pub reason: ReasonCode,
        /// The node's id, for heartbeats. A new node is joining until its first heartbeat.
        pub node: u64,
        /// The heartbeat interval, in ms.
        pub interval_ms: u32,
        /// The silence after which the node is lost, in ms.
        pub lost_after_ms: u32,
        /// The removed node of another machine that had the same name. 0 for none.
        pub replaced: u64,
        /// The number of allocations that ended with that node.
        pub allocations_ended: u32,
        /// The fault, if any.
        pub fault: Option<Fault>,
    }

    /// Tells that the agent is alive and nothing changed since its report.
    #[derive(Copy)]
    pub struct HeartbeatRequest {
        /// The node's id, from the report's reply.
        pub node: u64,
        /// The version of the agent's last report.
        pub version: u64,
    }

    /// The result of a heartbeat.
    pub struct HeartbeatReply {
        /// `done`, or `unknown_node` if no agent reported for the node.
        pub reason: ReasonCode,
        /// The service does not know the last report. The agent must report again.
        pub report_again: bool,
        /// The heartbeat interval, in ms.
        pub interval_ms: u32,
    }
}
