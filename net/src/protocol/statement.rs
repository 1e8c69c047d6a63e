//! Statements: operations that a scheduler of its own has planned, committed here or nowhere.

use serde::{Deserialize, Serialize};
use wharf_core::ids::{Incarnation, StatementId};
use wharf_core::limits::{GPU_INSTANCES_MAX, STATEMENT_OPERATIONS_MAX};

use super::bounded::{self, field};
use super::{DemandBody, Fault, PlacedBody, ReasonCode, WireAllocation, WireGroup};

/// Operations of one message: what is said of all of them fits one reply.
pub const OPERATIONS_PER_MESSAGE_MAX: usize = 1024;
/// Longest grace of an eviction, in ns: 365 days.
pub const GRACE_NS_MAX: u64 = 365 * 24 * 3600 * 1_000_000_000;

const _: () = assert!(OPERATIONS_PER_MESSAGE_MAX <= STATEMENT_OPERATIONS_MAX);

/// Take what is available on a node.
pub const OPERATION_ALLOCATE: u8 = 1;
/// Claim what is being released on a node.
pub const OPERATION_PIPELINE: u8 = 2;
/// End an allocation.
pub const OPERATION_EVICT: u8 = 3;

/// Nothing of the statement is done where one operation conflicts.
pub const COMMIT_ALL_OR_NOTHING: u8 = 0;
/// What does not conflict is done.
pub const COMMIT_INCREMENTAL: u8 = 1;

/// [`StatementId`] on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WireStatement {
    /// The start of the service.
    pub incarnation: u32,
    /// The planner that made it.
    pub planner: u16,
    /// Its number there.
    pub number: u64,
}

impl From<StatementId> for WireStatement {
    fn from(id: StatementId) -> Self {
        Self { incarnation: id.incarnation.0, planner: id.planner, number: id.number }
    }
}

impl From<WireStatement> for StatementId {
    fn from(wire: WireStatement) -> Self {
        Self { incarnation: Incarnation(wire.incarnation), planner: wire.planner, number: wire.number }
    }
}

/// One operation. Fields that are not said to be of its kind have their default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationBody {
    /// `OPERATION_*`.
    pub operation: u8,
    /// Allocate, pipeline: the node's id. One that is not registered ends a statement that is done as a
    /// whole with a fault that names the operation; of an incremental one only the operation conflicts.
    pub node: u64,
    /// The version of the node that it was planned on; of an eviction, of the node where the allocation is.
    /// With `CONFLICT_DETECTION_COARSE` each operation names one (else `no_version`), those of one statement on one node
    /// the same, and conflicts where the node has another by now (`version_changed`). With `CONFLICT_DETECTION_FINE` it is
    /// not compared: an operation conflicts only where it is not possible any more.
    pub expected_version: Option<u64>,
    /// Allocate, pipeline: what it takes.
    pub demand: DemandBody,
    /// Allocate: the GPU instances; chosen by the service if none are named.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Gpus, GPU_INSTANCES_MAX>")]
    pub gpus: Vec<u8>,
    /// Allocate: whose reservation of the node it may use; 0: nobody's.
    pub owner: u64,
    /// Evict: which.
    pub allocation: Option<WireAllocation>,
    /// Evict: how long it has to end by itself, in ns; 0: it ends at once.
    pub grace: u64,
}

/// Submits a statement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatementRequest {
    /// In order; on any nodes.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Operations, OPERATIONS_PER_MESSAGE_MAX>")]
    pub operations: Vec<OperationBody>,
    /// `CONFLICT_DETECTION_*`: whether versions that operations expect are compared.
    pub conflict_detection: u8,
    /// `COMMIT_*`.
    pub mode: u8,
}

/// Why an operation conflicts: the facts, to plan anew on. Facts that its reason does not have are
/// absent or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictBody {
    /// Its place in the statement.
    pub operation: u16,
    /// `unknown_node`, `not_ready`, `version_changed`, `no_version`, `insufficient`, `instance_taken`,
    /// `reserved_for_other`, `unknown_allocation`, `held_by_statement`, `already_releasing`,
    /// `in_bundle`, `bundle_placed`, `contradicts` or `repeated`.
    pub reason: ReasonCode,
    /// The node concerned; 0 for none.
    pub node: u64,
    /// The node's name, or empty.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node_name: String,
    /// The version that the node has now.
    pub version: Option<u64>,
    /// The version that it was planned on.
    pub expected_version: Option<u64>,
    /// The resource that is short, or empty.
    #[serde(deserialize_with = "bounded::name::<_, field::Resource>")]
    pub resource: String,
    /// How much of it is asked, in 1/10 000.
    pub asked: i64,
    /// How much of it can be had, in 1/10 000.
    pub available: i64,
    /// The GPU instance that is taken.
    pub instance: Option<u8>,
    /// For whom the node is reserved; 0 for nobody.
    pub owner: u64,
    /// The allocation concerned.
    pub allocation: Option<WireAllocation>,
    /// The statement that holds it.
    pub statement: Option<WireStatement>,
    /// The other operation of the same statement.
    pub other: Option<u16>,
    /// The group of the bundle that is placed already.
    pub group: Option<WireGroup>,
    /// The bundle's place in it.
    pub bundle: u32,
    /// The same, for people.
    #[serde(deserialize_with = "bounded::prose::<_, field::Message>")]
    pub message: String,
}

/// What became of one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationReply {
    /// `done`, the conflict's reason, `expired`, or `aborted`: nothing is wrong with it, and it was
    /// not done because of others.
    pub reason: ReasonCode,
    /// What an `OPERATION_ALLOCATE` was granted.
    pub placed: Option<PlacedBody>,
    /// What it is about: the id that a claim's allocation will have, or the evicted allocation.
    pub allocation: Option<WireAllocation>,
    /// Of a claim: the node's id; otherwise 0.
    pub node: u64,
    /// Of an eviction with grace: when the allocation ends by itself, in ns of service time; 0 where
    /// it has ended.
    pub until: u64,
    /// Why it conflicts.
    pub conflict: Option<ConflictBody>,
}

/// What became of a statement: with `done` all of it, with `conflicted` or `expired` nothing of it, or a
/// part where it was incremental; else a fault, and nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatementReply {
    /// Which.
    pub reason: ReasonCode,
    /// Its id; none where it was refused before it had one.
    pub statement: Option<WireStatement>,
    /// Per operation, in order; none with a fault.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Operations, OPERATIONS_PER_MESSAGE_MAX>")]
    pub operations: Vec<OperationReply>,
    /// What is wrong.
    pub fault: Option<Fault>,
}
