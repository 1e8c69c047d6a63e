//! Jobs that wait for the same: what evictions cannot do for one of them, they cannot do for the next.
//!
//! A thousand equal gangs on a full cluster would otherwise look for victims a thousand times.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::config::Action;
use super::plugin::Counted;
use super::trial::Cycle;
use crate::jobs::{JobId, QueueId, TaskClass, TaskState, TopologyRule};

/// Equal tasks of a job: their class, their role, their priority, their number, and their rule about domains.
type Group = (*const TaskClass, u32, i32, u32, Option<TopologyRule>);

/// All that decides what evictions do for a job that has nothing yet. Two such jobs with equal signatures get equal
/// answers from every rule, because rules look at no other property of a job that evicts.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Signature {
    queue: QueueId,
    priority: i32,
    min_member: u32,
    /// How many tasks of each role it needs.
    roles: Vec<u32>,
    groups: Vec<Group>,
    /// Whether it counts as pipelined although it has nothing, for instance because it has waited for too long.
    is_pipelined: bool,
    /// Its rule about domains.
    topology: Option<TopologyRule>,
}

/// Jobs that got nothing although free capacity was searched for all that they need together: those with rules about
/// domains, and those that need tasks that ask for nothing. Each is an example for equal ones.
pub(super) type FailedTogether = BTreeMap<Signature, JobId>;

/// The jobs for which evictions did nothing, since the last plan.
#[derive(Debug, Default)]
pub(super) struct FailedJobs {
    signatures: BTreeSet<Signature>,
    /// The number of plans so far. A plan changes what evictions can do.
    plans: usize,
}

impl Cycle<'_> {
    /// Lets an action make room for a job, unless an equal one failed and no plan was made since. `attempt` either makes
    /// a plan or changes nothing.
    pub(super) fn try_unless_equal_failed(
        &mut self,
        job: JobId,
        failed: &mut FailedJobs,
        action: Action,
        attempt: impl FnOnce(&mut Self),
    ) {
        let plans = self.report.plans.len();
        if failed.plans != plans {
            failed.signatures.clear();
            failed.plans = plans;
        }
        let signature = self.signature(job);
        if signature.as_ref().is_some_and(|signature| failed.signatures.contains(signature)) {
            self.tries.note_no_victims(job, action);
            return;
        }
        attempt(self);
        if self.report.plans.len() == plans {
            failed.signatures.extend(signature);
        }
    }

    /// Returns the signature of a job of which all tasks are pending. `None`: it has more than that, or dates bind it,
    /// which depend on its place in the queue.
    pub(super) fn signature(&self, id: JobId) -> Option<Signature> {
        let job = self.jobs.job(id);
        let is_new = job.count(TaskState::Pending) as usize == job.tasks().len();
        if !is_new || self.dated.has_any() {
            return None;
        }
        let spec = job.spec();
        let mut first = 0;
        let groups = spec.tasks.iter().filter(|group| group.count > 0).map(|group| {
            let class = Arc::as_ptr(&job.tasks()[first].class);
            first += group.count as usize;
            (class, group.role, group.priority, group.count, group.topology.clone())
        });
        Some(Signature {
            queue: spec.queue,
            priority: spec.priority,
            min_member: spec.min_member,
            groups: groups.collect(),
            roles: spec.roles.iter().map(|role| role.min_member).collect(),
            is_pipelined: self.tiers().is_pipelined(self.facts(), id, Counted::Placed),
            topology: spec.topology.clone(),
        })
    }
}
