//! Statements: operations on any number of shards that take effect everywhere or nowhere.
//!
//! A planner plans on views and expresses the plan as [`Operation`]s (Volcano's terms: Allocate, Pipeline,
//! Evict). A statement on one shard commits there in one step (`Apply`). A statement on several shards takes
//! three steps. Each shard checks and holds its part (`Prepare`). The statement is decided once, in its
//! [`DecisionCell`]. Then each shard carries out the decision (`Finish`).
//!
//! The shards detect conflicts with the same code that places requests (Omega's optimistic concurrency,
//! Schwarzkopf et al., EuroSys 2013).

mod conflict;
pub use conflict::{Conflict, ConflictReason};
mod operation;
pub use operation::{Allocate, Evict, Operation, Pipeline};

use std::sync::Arc;

use crate::ids::{AllocationId, NodeId, StatementId};
use crate::link::{Decision, DecisionCell};
use crate::request::Placement;
use crate::time::Time;

/// Defines what counts as a conflict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConflictDetection {
    /// An operation that is no longer possible (Omega's *resource-fit*). Expected versions are not compared.
    #[default]
    Fine,
    /// A node that changed since the plan was made (Omega's *sequence-numbers*). An operation conflicts if its
    /// node does not have the expected version, even if the operation is still possible.
    Coarse,
}

/// The effect of a conflict on the rest of the statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitMode {
    /// Nothing is committed. For gangs.
    #[default]
    AllOrNothing,
    /// The other operations are committed.
    Incremental,
}

/// One shard's part of a statement.
#[derive(Clone, Debug)]
pub struct Part {
    /// The statement.
    pub statement: StatementId,
    /// Its operations on this shard, in order, each with its index in the whole statement.
    pub operations: Vec<(u16, Operation)>,
    /// Defines what counts as a conflict.
    pub conflict_detection: ConflictDetection,
    /// The effect of a conflict on the rest of the part.
    pub mode: CommitMode,
}

/// A part to check and hold until the statement is decided.
#[derive(Clone, Debug)]
pub struct Prepare {
    /// The part.
    pub part: Part,
    /// The time after which the shard asks for an abort. The shard takes no other action: the decision counts.
    pub deadline: Time,
    /// The cell in which the statement is decided.
    pub cell: Arc<DecisionCell>,
}

/// A shard's reply to [`Prepare`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The statement.
    pub statement: StatementId,
    /// The operations that are held, by index in the statement. If an all-or-nothing part conflicts, nothing is
    /// held and the shard forgets the statement.
    pub held: Vec<u16>,
    /// The conflicts. An all-or-nothing part reports every operation that conflicts with the current state, so
    /// one reply is enough to plan again.
    pub conflicts: Vec<Conflict>,
}

/// The effect of a statement on one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The statement.
    pub statement: StatementId,
    /// The decision. A part on one shard is committed if any of its operations took effect.
    pub decision: Decision,
    /// The results, ordered by index in the statement.
    pub granted: Vec<(u16, Granted)>,
    /// The conflicts of a part on one shard. Empty after a [`Prepare`], which already reported them.
    pub conflicts: Vec<Conflict>,
    /// The sequence of the first view of the shard that shows the effect. It depends on whether readers of views keep
    /// up with the shard.
    pub visible_from: u64,
}

/// The result of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granted {
    /// An allocation.
    Allocated(Placement),
    /// A claim on capacity that is being released. It has the id that its allocation will have.
    Pipelined {
        /// The id.
        allocation: AllocationId,
        /// The node.
        node: NodeId,
    },
    /// The allocation is releasing. It ends at `until` at the latest.
    Releasing {
        /// The allocation.
        allocation: AllocationId,
        /// The time at which it ends by itself.
        until: Time,
    },
    /// The allocation has ended. It had no grace period or was released earlier.
    Ended(AllocationId),
}
