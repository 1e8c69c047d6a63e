//! Statements: work over any number of shards that happens everywhere or nowhere.
//!
//! A planner makes a plan on views and writes it down as [`Operation`]s
//! (Volcano's words: Allocate, Pipeline, Evict). Over one shard it commits there in one step
//! (`Apply`). Over several, each shard first checks and
//! holds its part (`Prepare`), then the statement is
//! decided once, in its [`DecisionCell`], then each shard does what was decided
//! (`Finish`). Conflicts are found by the shards, which
//! check with the code that places (Omega's optimistic concurrency, Schwarzkopf et al., EuroSys 2013).

mod conflict;
pub use conflict::{Conflict, ConflictReason};
mod operation;
pub use operation::{Allocate, Evict, Operation, Pipeline};

use std::sync::Arc;

use crate::ids::{AllocationId, NodeId, StatementId};
use crate::link::{Decision, DecisionCell};
use crate::request::Placement;
use crate::time::Time;

/// What counts as a conflict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConflictDetection {
    /// An operation that is not possible any more (Omega's *resource-fit*). Expected versions are
    /// not compared.
    #[default]
    Fine,
    /// A node that changed since it was looked at (Omega's *sequence-numbers*): an operation
    /// conflicts where the version of its node is not the expected one, possible or not.
    Coarse,
}

/// What becomes of a statement of which a part conflicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitMode {
    /// Nothing of it is done: for gangs.
    #[default]
    AllOrNothing,
    /// The rest of it is done.
    Incremental,
}

/// One shard's part of a statement.
#[derive(Clone, Debug)]
pub struct Part {
    /// The statement.
    pub statement: StatementId,
    /// Its operations here, each with its place in the whole statement. Done in this order.
    pub operations: Vec<(u16, Operation)>,
    /// What counts as a conflict.
    pub conflict_detection: ConflictDetection,
    /// What becomes of the part where one of its operations conflicts.
    pub mode: CommitMode,
}

/// A part to be checked and held until the statement is decided.
#[derive(Clone, Debug)]
pub struct Prepare {
    /// The part.
    pub part: Part,
    /// From then on its shard asks to abort. That is all it does: what is decided counts.
    pub deadline: Time,
    /// Where the statement is decided.
    pub cell: Arc<DecisionCell>,
}

/// What a shard says to [`Prepare`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The statement.
    pub statement: StatementId,
    /// The operations that are held, by their place in the statement: none where the part is to be
    /// done as a whole and conflicts; the shard then knows nothing of the statement any more.
    pub held: Vec<u16>,
    /// What conflicts. An all-or-nothing part names all that conflict with what stands, so that one
    /// answer is enough to plan anew.
    pub conflicts: Vec<Conflict>,
}

/// What a shard did of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The statement.
    pub statement: StatementId,
    /// What was decided. Of a part over one shard: committed where anything of it was done.
    pub decision: Decision,
    /// What was granted, by place in the statement, in order of place.
    pub granted: Vec<(u16, Granted)>,
    /// What conflicted: of a part over one shard; nothing after a [`Prepare`], which said so before.
    pub conflicts: Vec<Conflict>,
    /// From this sequence on the shard's views show it.
    pub visible_from: u64,
}

/// What one operation came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granted {
    /// An allocation.
    Allocated(Placement),
    /// A claim on what is being released, under the id that its allocation will have.
    Pipelined {
        /// The id.
        allocation: AllocationId,
        /// The node.
        node: NodeId,
    },
    /// The allocation is being released, and ends at that time at the latest.
    Releasing {
        /// Which.
        allocation: AllocationId,
        /// When it ends by itself.
        until: Time,
    },
    /// The allocation has ended: it was given no grace, or was released before.
    Ended(AllocationId),
}
