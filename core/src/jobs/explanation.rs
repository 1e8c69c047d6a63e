//! Why a job or a task waits, and what would help.

use std::sync::Arc;

use super::{Capped, JobId, JobSummary, TaskState};
use crate::fairness::{Amounts, Dim};
use crate::ids::NodeId;
use crate::request::{KindAmounts, NodeCounts};
use crate::time::Time;

/// Why a job or a task waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PendingReason {
    /// It does not wait: it has what it needs, or it has ended.
    #[default]
    None,
    /// No cycle has tried it yet.
    NotTried,
    /// Its queue has not admitted the job.
    NotAdmitted,
    /// So many tasks have failed or are being released that the job cannot have as many as it needs.
    TooFewTasks,
    /// Its queue has all that it deserves, so none of its jobs is tried.
    Overused,
    /// The rules give its queue no more of something that it asks for.
    Share,
    /// The capability of its queue, or of one that contains it, forbids it.
    Cap,
    /// No node has room for it.
    NoNode,
    /// Some tasks of the job could be placed, but fewer than it needs.
    Gang,
    /// It would fit, and would delay a job with a dated reservation.
    Reservation,
    /// It has a claim on capacity that is being released.
    Claim,
    /// What the last cycle planned for it was not possible any longer. The next one tries again.
    Conflict,
    /// No domain of the topology has room for as many tasks as must be in one.
    Topology,
}

impl PendingReason {
    /// All reasons.
    pub const ALL: [Self; 13] = [
        Self::None,
        Self::NotTried,
        Self::NotAdmitted,
        Self::TooFewTasks,
        Self::Overused,
        Self::Share,
        Self::Cap,
        Self::NoNode,
        Self::Gang,
        Self::Reservation,
        Self::Claim,
        Self::Conflict,
        Self::Topology,
    ];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::NotTried => "not_tried",
            Self::NotAdmitted => "not_admitted",
            Self::TooFewTasks => "too_few_tasks",
            Self::Overused => "overused",
            Self::Share => "share",
            Self::Cap => "cap",
            Self::NoNode => "no_node",
            Self::Gang => "gang",
            Self::Reservation => "reservation",
            Self::Claim => "claim",
            Self::Conflict => "conflict",
            Self::Topology => "topology",
        }
    }

    /// Returns the reason of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

/// The rule that bounds what a queue may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRule {
    /// Its capability.
    Capability,
    /// What the cluster has less what other queues are guaranteed.
    Guarantees,
    /// What it deserves.
    Deserved,
    /// The part of the cluster for which jobs are admitted.
    Overcommit,
    /// The most allocations that it may have.
    Allocations,
}

impl QueueRule {
    /// All rules.
    pub const ALL: [Self; 5] =
        [Self::Capability, Self::Guarantees, Self::Deserved, Self::Overcommit, Self::Allocations];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Capability => "capability",
            Self::Guarantees => "guarantees",
            Self::Deserved => "deserved",
            Self::Overcommit => "overcommit",
            Self::Allocations => "allocations",
        }
    }
}

/// A job, a placement group, or a queue, that uses much of something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name of the job or the queue, or the id of the group.
    pub name: Arc<str>,
    /// The job. `None`: it is a group or a queue.
    pub job: Option<JobId>,
    /// Whether it is a group.
    pub is_group: bool,
    /// What it uses: held, claimed, or being released. In 1/10,000 of a unit, or a number of allocations.
    pub amount: i64,
}

/// A bound of a queue that is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueBound {
    /// The name of the queue. `None`: the one who asks may not see it.
    pub queue: Option<Arc<str>>,
    /// The rule.
    pub rule: QueueRule,
    /// What it bounds. Resources are counted in 1/10,000 of a unit.
    pub of: Capped,
    /// The bound.
    pub bound: i64,
    /// What counts against it now.
    pub used: i64,
    /// What is asked for in addition.
    pub asked: i64,
    /// Those in the queue that use most of it, the largest first. The job itself is not among them.
    pub holders: Vec<Holder>,
}

/// The place of a job among those that wait in its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePlace {
    /// The number of waiting jobs of its queue that are served before it.
    pub before: u32,
    /// The number of waiting jobs of its queue, with itself.
    pub waiting: u32,
}

/// The claims of a job on capacity that is being released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// The number of its tasks with claims.
    pub claimed: u32,
    /// The number of its tasks that have a node and wait until the cap of their queue allows them.
    pub capped: u32,
}

/// The dated reservations that hold a job back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBy {
    /// The job with the earliest date. `None`: the one who asks may not see it.
    pub job: Option<JobId>,
    /// Its date.
    pub date: Time,
    /// The number of jobs with dated reservations.
    pub jobs: u32,
}

/// What domains of the topology lack for a job, or for a task group of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainLack {
    /// The tier of which no domain has room.
    pub tier: Arc<str>,
    /// Whether the settings have no such tier any longer. Then, there is no domain of it.
    pub is_missing: bool,
    /// The path of the domain that has room for most tasks. `None`: there is no domain of the tier.
    pub best: Option<Arc<str>>,
    /// The number of tasks for which it has room, at most.
    pub holds: u32,
    /// The number of tasks that need a place there, with those that have one.
    pub needed: u32,
}

/// Who uses most of what most nodes lack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scarce {
    /// The kind of resource.
    pub dim: Dim,
    /// The queues that use most of it, the largest first.
    pub holders: Vec<Holder>,
}

/// What would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// So much more is free on a node. With a queue, tasks of it give that back.
    FreeOnNode {
        /// The node. `None`: the one who asks may not see it.
        node: Option<NodeId>,
        /// How much.
        amounts: Amounts,
        /// The name of the queue.
        of: Option<Arc<str>>,
    },
    /// There are so many more nodes like this one, empty.
    MoreNodes {
        /// How many.
        count: u64,
        /// The node. `None`: the one who asks may not see it.
        like: Option<NodeId>,
    },
    /// There are so many nodes that suit the labels and taints, each with at least these amounts.
    LargerNodes {
        /// How many.
        count: u64,
        /// The amounts.
        amounts: Amounts,
    },
    /// There are so many more nodes like this one, empty, all in the domain that [`DomainLack`] names. If there is no domain of
    /// the tier, all in a new one.
    MoreNodesInDomain {
        /// How many.
        count: u64,
        /// The node. `None`: the one who asks may not see it.
        like: Option<NodeId>,
    },
    /// There are so many nodes that suit the labels and taints, each with at least these amounts, all in the domain that
    /// [`DomainLack`] names. If there is no domain of the tier, all in a new one.
    LargerNodesInDomain {
        /// How many.
        count: u64,
        /// The amounts.
        amounts: Amounts,
    },
    /// Others leave room for so many more tasks on nodes of the domain that [`DomainLack`] names.
    FreeInDomain {
        /// How many tasks.
        tasks: u64,
        /// What each of them asks for.
        amounts: Amounts,
    },
    /// The capability of a queue is so much higher.
    RaiseCap {
        /// The name of the queue. `None`: the one who asks may not see it.
        queue: Option<Arc<str>>,
        /// The kind of resource.
        dim: Dim,
        /// How much, in 1/10,000 of a unit.
        by: i64,
    },
    /// A queue may have so many more allocations.
    RaiseAllocations {
        /// The name of the queue. `None`: the one who asks may not see it.
        queue: Option<Arc<str>>,
        /// How many.
        by: u64,
    },
    /// Other jobs of a queue give back so many allocations.
    EndAllocations {
        /// The name of the queue. `None`: the one who asks may not see it.
        queue: Option<Arc<str>>,
        /// How many.
        count: u64,
    },
    /// Tasks of a queue give back so much.
    Release {
        /// The name of the queue. `None`: the one who asks may not see it.
        queue: Option<Arc<str>>,
        /// How much.
        amounts: Amounts,
    },
    /// The cluster has so much more.
    Capacity {
        /// How much.
        amounts: Amounts,
    },
    /// The tasks state a run time of at most this, in ns.
    RunTime(u64),
}

/// A change that would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whether it is another way to do what the one before it does. All others are needed together.
    pub instead: bool,
    /// The change.
    pub remedy: Remedy,
}

/// Changes as they are found.
#[derive(Default)]
pub(crate) struct Changes(Vec<Change>);

impl Changes {
    /// Adds a change that is needed in any case, with other ways to do the same.
    pub(crate) fn add(&mut self, ways: impl IntoIterator<Item = Remedy>) {
        let ways = ways.into_iter().enumerate();
        self.0.extend(ways.map(|(at, remedy)| Change { instead: at > 0, remedy }));
    }

    /// Returns all of them, in the order in which they were found.
    pub(crate) fn into_vec(self) -> Vec<Change> {
        self.0
    }
}

/// Returns amounts by kind as amounts by dimension.
pub(crate) fn amounts_of(kinds: &KindAmounts) -> Amounts {
    kinds.iter().map(|&(kind, amount)| (Dim::of(kind), amount)).collect()
}

/// Why a job or a task waits, and what would help.
#[derive(Clone, Debug)]
pub struct JobExplanation {
    /// The job.
    pub job: JobSummary,
    /// The index of the task that it is about: the one that was asked for, or the first one that the job lacks.
    pub task: Option<u32>,
    /// The state of that task.
    pub state: Option<TaskState>,
    /// Why it waits, as of the last cycle.
    pub reason: PendingReason,
    /// Why the first task that did not fit has no place, if the reason is that the gang is not complete.
    pub cause: PendingReason,
    /// When the last cycle tried the job. `None`: it did not.
    pub tried: Option<Time>,
    /// The number of tasks that the job has, or that the last cycle could have placed.
    pub fit: u32,
    /// The number of tasks that the job needs before any is bound.
    pub needed: u32,
    /// The actions that found nobody to evict for it: `preempt`, `reclaim` or `starve`.
    pub no_victims: Vec<&'static str>,
    /// Its place in its queue.
    pub place: QueuePlace,
    /// Its claims.
    pub claims: Claims,
    /// When all that it needs will fit, if it has a dated reservation.
    pub date: Option<Time>,
    /// The dated reservations that hold it back.
    pub held_by: Option<HeldBy>,
    /// What domains lack, if the job must be in one and none has room.
    pub domain: Option<DomainLack>,
    /// The counts over nodes. `None`: it does not wait for one.
    pub nodes: Option<NodeCounts>,
    /// Who uses most of what the nodes lack.
    pub scarce: Option<Scarce>,
    /// The bounds of queues that are in the way.
    pub bounds: Vec<QueueBound>,
    /// What would help. Empty: nothing but time, or nothing that is known.
    pub changes: Vec<Change>,
}
