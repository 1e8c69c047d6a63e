//! Queues, jobs and tasks: the work that waits for resources, with what each of them uses.
//!
//! [`Jobs`] holds all of it. A task changes its state through one door, `Jobs::set`, which updates the sums of its
//! job and of its queue and all ancestors of it. So what a [cycle](crate::cycle) reads is always up to date, and
//! costs what changed.
//!
//! Terms follow Volcano (PodGroup and Queue) and Kubernetes (Job, PriorityClass).

mod after;
mod audit;
mod binding;
mod by_node;
mod caps;
mod changes;
mod charge;
mod copy;
mod delays;
mod direct;
mod domains;
mod ending;
mod ends;
mod error;
mod explanation;
mod job;
pub mod nodes;
mod past;
mod placeholder;
mod policy;
mod priority_class;
mod queue;
mod queues;
mod record;
mod request;
mod run_times;
mod spec;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod topology;
mod usage;

pub use binding::{Binding, BindingError, DefaultFault, TenantQueue};
pub(crate) use caps::Withheld;
pub use caps::{Capped, OverCap};
pub(crate) use copy::JobsCopy;
pub use direct::{DirectPlacement, DirectWait, NotCharged};
pub(crate) use domains::NodeDomains;
pub use domains::{DomainFault, TopologyDomain, check_domains};
pub use ending::JobEnd;
pub use error::{JobError, QueueContents, QueueError};
pub use explanation::{
    Change, Claims, DomainLack, HeldBy, Holder, JobExplanation, PendingReason, QueueBound, QueuePlace,
    QueueRule, Remedy, Scarce,
};
pub(crate) use explanation::{Changes, amounts_of};
pub use job::{Job, Task};
pub use past::UserView;
pub use policy::{
    Delayed, JobPolicy, ParsePolicyActionError, ParseTaskEventError, PolicyAction, PolicyFault, TaskEvent,
};
pub use priority_class::{AskedPriorities, AskedPriority, ClassError, PriorityClass};
pub use queue::Queue;
pub use record::{
    JobRecord, JobsChange, JobsRecord, JobsTable, PastAmount, PastRecord, QueueRecord, TaskRecord,
};
pub use request::{
    JobSummary, JobView, JobsDone, JobsRejection, JobsReply, JobsRequest, NodesView, QueueView, TaskReport,
    TaskView,
};
pub(crate) use run_times::RunTimes;
pub use spec::{JobSpec, QueueOrdering, QueueSpec, Role, TaskClass, TaskGroup};
pub use state::{JobPhase, TaskState};
pub use store::Jobs;
pub use topology::{RuleFault, TiersFault, TopologyMode, TopologyRule, TopologyTier, check_tiers};
pub use usage::Usage;

use std::fmt;
use std::str::FromStr;

use crate::ids::{GroupId, Incarnation, TenantId};

/// A queue. 0 is the root of the hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

impl QueueId {
    /// The root, which contains all queues.
    pub const ROOT: Self = Self(0);

    /// The name of the root. No queue that is made has it.
    pub const ROOT_NAME: &'static str = "root";
}

/// A job. Jobs are numbered in the order in which they were submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "j{}", self.0)
    }
}

impl JobId {
    /// The incarnation of the groups of jobs. No start of a store has it.
    const INCARNATION: Incarnation = Incarnation(0);

    /// Returns the group whose bundles are the allocations of the job's tasks, by index.
    ///
    /// So shards, views and the recovery know what belongs to a task without a rule of their own.
    #[must_use]
    pub const fn group(self, tenant: TenantId) -> GroupId {
        GroupId { tenant, incarnation: Self::INCARNATION, number: self.0 }
    }

    /// Returns the job whose group this is. `None`: it is a placement group.
    #[must_use]
    pub fn of_group(group: GroupId) -> Option<Self> {
        (group.incarnation == Self::INCARNATION).then_some(Self(group.number))
    }
}

/// A text that is not the id of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not the id of a job: expected jNUMBER, as `wharf job submit` printed it (j42)")]
pub struct ParseJobIdError {
    /// The given text.
    pub text: String,
}

impl FromStr for JobId {
    type Err = ParseJobIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.strip_prefix('j').and_then(|number| number.parse().ok());
        number.map(Self).ok_or_else(|| ParseJobIdError { text: text.to_owned() })
    }
}

/// A task: the job, and the task's index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// The job.
    pub job: JobId,
    /// The index, from 0.
    pub index: u32,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.job, self.index)
    }
}
