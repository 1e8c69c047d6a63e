//! Statements: operations that an external scheduler planned and that are committed together.

use wharf_core::limits::{GPU_INSTANCES_MAX, STATEMENT_OPERATIONS_MAX};

use super::bounded::{NAME, PROSE};
use super::{DemandBody, Fault, PlacedBody, ReasonCode, WireAllocation, WireGroup};

/// Maximum number of operations in one message. A reply about all of them fits a frame.
pub const OPERATIONS_PER_MESSAGE_MAX: usize = 1024;
/// Maximum grace period of an eviction, in ns: 365 days.
pub const GRACE_NS_MAX: u64 = 365 * 24 * 3600 * 1_000_000_000;

const _: () = assert!(OPERATIONS_PER_MESSAGE_MAX <= STATEMENT_OPERATIONS_MAX);

/// Allocates available capacity of a node.
pub const OPERATION_ALLOCATE: u8 = 1;
/// Claims releasing capacity of a node.
pub const OPERATION_PIPELINE: u8 = 2;
/// Ends an allocation.
pub const OPERATION_EVICT: u8 = 3;

/// If one operation conflicts, nothing of the statement is done.
pub const COMMIT_ALL_OR_NOTHING: u8 = 0;
/// Operations that do not conflict are done.
pub const COMMIT_INCREMENTAL: u8 = 1;

bodies! {
    /// [`StatementId`](wharf_core::ids::StatementId) on the wire.
    #[derive(Copy, PartialOrd, Ord)]
    pub struct WireStatement {
        /// The start of the service.
        pub incarnation: u32,
        /// The planner that made the statement.
        pub planner: u16,
        /// The statement's number at the planner.
        pub number: u64,
    }

    /// One operation. Fields that do not apply to its kind must have their defaults.
    pub struct OperationBody {
        /// `OPERATION_*`.
        pub operation: u8,
        /// Allocate, pipeline: the node's id. An unregistered node is a fault of an all-or-nothing statement;
        /// the fault names the operation. In an incremental statement, only the operation conflicts.
        pub node: u64,
        /// The version of the node that the operation was planned on. For an eviction, that is the node where
        /// the allocation is.
        ///
        /// With `CONFLICT_DETECTION_COARSE`, each operation must name a version (else `no_version`).
        /// Operations of one statement on the same node must name the same one. The operation conflicts if
        /// the node has another version now (`version_changed`). With `CONFLICT_DETECTION_FINE`, versions are
        /// not compared. An operation conflicts only if it is no longer possible.
        pub expected_version: Option<u64>,
        /// Allocate, pipeline: the amounts to take.
        pub demand: DemandBody,
        /// Allocate: the GPU instances. If none are named, the service chooses them.
        pub gpus: Vec<u8> [GPU_INSTANCES_MAX],
        /// Allocate: the owner whose reservation of the node may be used. 0 for none.
        pub owner: u64,
        /// Evict: the allocation.
        pub allocation: Option<WireAllocation>,
        /// Evict: the grace period in ns. 0 ends the allocation at once.
        pub grace: u64,
        /// Allocate, pipeline: who the allocation belongs to; 0: the operator.
        pub tenant: u16,
    }

    /// Submits a statement.
    pub struct StatementRequest {
        /// The operations in order, on any nodes.
        pub operations: Vec<OperationBody> [OPERATIONS_PER_MESSAGE_MAX],
        /// `CONFLICT_DETECTION_*`: whether the expected versions are compared.
        pub conflict_detection: u8,
        /// `COMMIT_*`.
        pub mode: u8,
    }

    /// Why an operation conflicts, with the facts for a new plan. Facts that do not apply to the reason are
    /// absent or empty.
    pub struct ConflictBody {
        /// The operation's place in the statement.
        pub operation: u16,
        /// `unknown_node`, `not_ready`, `version_changed`, `no_version`, `insufficient`, `instance_taken`,
        /// `reserved_for_other`, `unknown_allocation`, `held_by_statement`, `already_releasing`, `in_bundle`,
        /// `bundle_placed`, `contradicts`, `repeated`, `limit_exceeded` or `too_many_allocations`.
        pub reason: ReasonCode,
        /// The node concerned. 0 for none.
        pub node: u64,
        /// The node's name, or empty.
        pub node_name: String [NAME],
        /// The version that the node has now.
        pub version: Option<u64>,
        /// The version that the operation was planned on.
        pub expected_version: Option<u64>,
        /// The resource that is short, or empty.
        pub resource: String [NAME],
        /// The requested amount of that resource, in 1/10,000.
        pub asked: i64,
        /// The available amount of that resource, in 1/10,000.
        pub available: i64,
        /// The GPU instance that is taken.
        pub instance: Option<u8>,
        /// The owner for whom the node is reserved. 0 for none.
        pub owner: u64,
        /// The allocation concerned.
        pub allocation: Option<WireAllocation>,
        /// The statement that holds the allocation.
        pub statement: Option<WireStatement>,
        /// The other operation of the same statement.
        pub other: Option<u16>,
        /// The group of the bundle that is already placed.
        pub group: Option<WireGroup>,
        /// The bundle's index in the group.
        pub bundle: u32,
        /// The same facts, for people.
        pub message: String [PROSE],
    }

    /// The result of one operation.
    pub struct OperationReply {
        /// `done`, the conflict's reason, `expired`, or `aborted`. The last means that the operation itself
        /// did not conflict, but was not done because of others.
        pub reason: ReasonCode,
        /// The placement that an `OPERATION_ALLOCATE` was granted.
        pub placed: Option<PlacedBody>,
        /// The allocation concerned: the granted one, the future allocation of a claim, or the evicted one.
        pub allocation: Option<WireAllocation>,
        /// For a claim: the node's id. Otherwise 0.
        pub node: u64,
        /// For an eviction with a grace period: when the allocation ends by itself, in ns of service time. 0
        /// if it has ended.
        pub until: u64,
        /// Why the operation conflicts.
        pub conflict: Option<ConflictBody>,
    }

    /// The result of a statement. `done` means that all of it was done. `conflicted` or `expired` mean that
    /// nothing was done, or only a part if it was incremental. Any other reason is a fault, and nothing was
    /// done.
    pub struct StatementReply {
        /// The reason described above.
        pub reason: ReasonCode,
        /// The statement's id. `None` if it was refused before it got one.
        pub statement: Option<WireStatement>,
        /// The result of each operation, in order. Empty with a fault.
        pub operations: Vec<OperationReply> [OPERATIONS_PER_MESSAGE_MAX],
        /// The fault, if any.
        pub fault: Option<Fault>,
    }
}
