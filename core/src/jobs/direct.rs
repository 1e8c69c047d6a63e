//! Direct placements that name a queue: they are charged to it like tasks of jobs.
//!
//! Each is a [job of one task](super::JobSpec::direct), which nobody lists. Its keeper places it at once. One that may wait
//! is pending in its queue until a cycle places it.

use std::sync::Arc;

use super::{Binding, BindingError, Capped, JobError, Jobs, OverCap, QueueId};
use crate::fairness::Amounts;
use crate::ids::{SessionId, TenantId};
use crate::planted::{PlantedBug, is_planted};
use crate::request::{PlacementRequest, Refusal};
use crate::time::Time;

/// A placement that names a queue.
#[derive(Clone, Debug)]
pub struct DirectPlacement {
    /// What is asked for.
    pub request: PlacementRequest,
    /// The name of the queue.
    pub queue: Arc<str>,
    /// The queue of its tenant, or the default queue, if the settings name one.
    pub bound: Option<Arc<Binding>>,
    /// How it waits. `None`: it is placed at once or refused.
    pub wait: Option<DirectWait>,
}

/// How a placement waits in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectWait {
    /// The session of its client, and its sequence there. Explanations name it by them.
    pub id: (SessionId, u64),
    /// Its priority among the jobs of its queue.
    pub priority: i32,
    /// The time at which it is tried last. Then it is answered.
    pub until: Time,
}

/// The reason why a placement that names a queue was not made. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotCharged {
    /// There is no queue of this name.
    UnknownQueue(Arc<str>),
    /// The queue has queues below it.
    InnerQueue(Arc<str>),
    /// The queue is closed.
    ClosedQueue(Arc<str>),
    /// Its binding forbids it.
    Binding(BindingError),
    /// The queue is for another tenant.
    ForeignQueue(Arc<str>),
    /// A cap of a queue forbids it.
    Cap {
        /// The name of the queue: that of the request, or one that contains it.
        queue: Arc<str>,
        /// The cap.
        over: OverCap,
        /// How much of what counts as used is kept for tasks that wait until the cap allows them, and hold nothing yet. Of
        /// many such tasks, only the first are looked at.
        waiting: i64,
    },
    /// There are as many jobs and direct placements as there may be.
    TooManyJobs(usize),
    /// There are as many tasks and direct placements as there may be.
    TooManyTasks(u64),
    /// The queue has as many users as it may have.
    TooManyUsers(Arc<str>),
    /// All tasks together would ask for more than can be counted.
    TooMuch(Arc<str>),
    /// No node has room, by these counts over all nodes.
    NoNode(Box<Refusal>),
    /// It conflicted with other work at each attempt.
    Conflicts,
    /// It waited, and was cancelled before it was placed.
    Cancelled,
    /// It waited before, and had no turn again before its deadline: too many placements and groups wait at its port.
    NoTurn,
}

impl NotCharged {
    /// Returns the reason why a queue takes no job.
    pub(crate) fn of_job(error: &JobError, queue: &Arc<str>) -> Self {
        let queue = Arc::clone(queue);
        match error {
            JobError::UnknownQueue { .. } => Self::UnknownQueue(queue),
            JobError::InnerQueue { .. } => Self::InnerQueue(queue),
            JobError::ClosedQueue { .. } => Self::ClosedQueue(queue),
            JobError::TooManyUsers { .. } => Self::TooManyUsers(queue),
            JobError::TooMuch { .. } => Self::TooMuch(queue),
            // It has one task, one role and no policies.
            other => panic!("a direct placement is refused as a job: {other}"),
        }
    }

    /// Says why in short, for an explanation of a group that waits.
    pub(crate) fn said(&self) -> String {
        match self {
            Self::Cap { queue, over, .. } => {
                let what = if over.of == Capped::Allocations { "allocations" } else { "resources" };
                format!("the cap of queue `{queue}` on {what} forbids it")
            }
            Self::UnknownQueue(queue) => format!("there is no queue `{queue}`"),
            Self::InnerQueue(queue) => format!("queue `{queue}` has queues below it"),
            _ => "its queue cannot be charged for more".to_owned(),
        }
    }

    /// Returns whether the cap on a number of allocations forbids it.
    #[must_use]
    pub fn is_cap_on_allocations(&self) -> bool {
        matches!(self, Self::Cap { over, .. } if over.of == Capped::Allocations)
    }
}

impl Jobs {
    /// Returns the queue of a name if the tenant may charge placements to it.
    ///
    /// # Errors
    /// The reason why not.
    pub fn chargeable(&self, name: &Arc<str>, tenant: TenantId) -> Result<QueueId, NotCharged> {
        let unknown = || NotCharged::UnknownQueue(Arc::clone(name));
        let id = self.queue_named(name).filter(|&id| id != QueueId::ROOT).ok_or_else(unknown)?;
        let queue = self.queue(id);
        let foreign = |owner: TenantId| owner != tenant && tenant != TenantId::OPERATOR;
        if queue.spec.tenant.is_some_and(foreign) {
            return Err(NotCharged::ForeignQueue(Arc::clone(name)));
        }
        if !queue.is_leaf() {
            return Err(NotCharged::InnerQueue(Arc::clone(name)));
        }
        if !queue.spec.open {
            return Err(NotCharged::ClosedQueue(Arc::clone(name)));
        }
        Ok(id)
    }

    /// Checks that the caps of a queue, and of those that contain it, allow a placement of these amounts now.
    ///
    /// # Errors
    /// The cap that forbids it.
    pub fn check_caps_of(&self, id: QueueId, amounts: &Amounts) -> Result<(), NotCharged> {
        self.check_caps_with(id, (&Amounts::zero(), 0), amounts)
    }

    /// Checks what [`check_caps_of`](Self::check_caps_of) does when `more` is asked for with it: amounts, and a number of
    /// allocations.
    ///
    /// # Errors
    /// The cap that forbids it.
    pub(crate) fn check_caps_with(
        &self,
        id: QueueId,
        more: (&Amounts, u64),
        amounts: &Amounts,
    ) -> Result<(), NotCharged> {
        match self.over_cap_with(id, more, amounts, true) {
            None => Ok(()),
            Some(over) if over.queue != id && is_planted(PlantedBug::OuterCapForgotten) => Ok(()),
            Some(over) => {
                let queue = Arc::clone(&self.queue(over.queue).spec.name);
                Err(NotCharged::Cap { queue, over, waiting: self.kept_of_cap(&over) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairness::Dim;
    use crate::jobs::QueueSpec;

    #[test]
    fn a_queue_is_charged_if_it_is_open_and_ones_own_and_its_caps_allow_it() {
        let mut jobs = Jobs::new();
        let outer = jobs.add_queue(QueueSpec::new("outer")).unwrap();
        let capability = [(Dim::CPU, 30)].into_iter().collect();
        let mine =
            QueueSpec { parent: outer, tenant: Some(TenantId(3)), capability, ..QueueSpec::new("mine") };
        let mine = jobs.add_queue(mine).unwrap();
        jobs.add_queue(QueueSpec { open: false, ..QueueSpec::new("closed") }).unwrap();
        let ask = |name: &str, tenant: u16, cpu| {
            let amounts = [(Dim::CPU, cpu)].into_iter().collect();
            let id = jobs.chargeable(&name.into(), TenantId(tenant))?;
            jobs.check_caps_of(id, &amounts).map(|()| id)
        };
        assert_eq!(ask("mine", 3, 30), Ok(mine));
        assert_eq!(ask("mine", TenantId::OPERATOR.0, 30), Ok(mine));
        assert_eq!(ask("mine", 4, 30), Err(NotCharged::ForeignQueue("mine".into())));
        assert_eq!(ask("outer", 3, 1), Err(NotCharged::InnerQueue("outer".into())));
        assert_eq!(ask("closed", 3, 1), Err(NotCharged::ClosedQueue("closed".into())));
        for unknown in ["nobody", "root"] {
            assert_eq!(ask(unknown, 3, 1), Err(NotCharged::UnknownQueue(unknown.into())));
        }
        let over = OverCap { queue: mine, of: Capped::Resource(Dim::CPU), cap: 30, used: 0, asked: 31 };
        assert_eq!(ask("mine", 3, 31), Err(NotCharged::Cap { queue: "mine".into(), over, waiting: 0 }));
    }
}
