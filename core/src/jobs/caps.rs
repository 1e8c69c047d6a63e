//! The caps of queues: the most that they may use, with all queues below them.

use std::collections::BTreeMap;

use super::{JobId, Jobs, QueueId, TaskId, TaskState, Usage};
use crate::fairness::{Amounts, Dim};
use crate::limits::WAITING_FOR_CAP_LOOKED_AT_MAX;
use crate::planted::{PlantedBug, is_planted};

/// What a cap bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capped {
    /// A resource, in 1/10,000 of its unit.
    Resource(Dim),
    /// The number of allocations and claims.
    Allocations,
}

/// A cap that forbids one more task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverCap {
    /// The queue.
    pub queue: QueueId,
    /// What its cap bounds.
    pub of: Capped,
    /// The cap.
    pub cap: i64,
    /// What is in use.
    pub used: i64,
    /// What is asked for: by a task, or by the bundles of a group up to the first that the cap forbids.
    pub asked: i64,
}

/// What sums have of tasks that wait for caps and that come after those of a job, with its own. Such tasks hold nothing.
#[derive(Debug, Default)]
pub(crate) struct Withheld {
    jobs: BTreeMap<JobId, Usage>,
    /// Of all jobs of a queue and of the queues below it.
    queues: BTreeMap<QueueId, Usage>,
}

impl Withheld {
    /// Returns what the sums of a job have of it.
    pub(crate) fn of_job(&self, job: JobId) -> Option<&Usage> {
        self.jobs.get(&job)
    }

    /// Returns what the sums of a queue have of it.
    pub(crate) fn of_queue(&self, queue: QueueId) -> Option<&Usage> {
        self.queues.get(&queue)
    }
}

impl Jobs {
    /// Returns what sums have of the tasks of a job that wait for caps, and of those that come after them. Cycles try them in
    /// this order, each as if the later ones had nothing. Of other jobs, a bounded number of tasks is looked at.
    pub(crate) fn withheld_for(&self, job: JobId) -> Withheld {
        let mut withheld = Withheld::default();
        let mut others = 0;
        for task in self.waiting_for_cap_from(TaskId { job, index: 0 }) {
            others += usize::from(task.job != job);
            if others > WAITING_FOR_CAP_LOOKED_AT_MAX {
                break;
            }
            let amounts = &self.task(task).class.amounts;
            withheld.jobs.entry(task.job).or_default().enter(TaskState::Pipelined, amounts);
            for queue in self.chain(self.job(task.job).spec().queue) {
                withheld.queues.entry(queue).or_default().enter(TaskState::Pipelined, amounts);
            }
        }
        withheld
    }

    /// Returns the innermost cap of a queue, or of one that contains it, that forbids one more task. With `now`, what is
    /// being released counts, because it is still in use. Without, only what tasks keep or claim counts.
    #[must_use]
    pub fn over_cap(&self, queue: QueueId, amounts: &Amounts, now: bool) -> Option<OverCap> {
        self.over_cap_with(queue, (&Amounts::zero(), 0), amounts, now)
    }

    /// Returns what [`over_cap`](Self::over_cap) does when `more` is asked for with it: amounts, and a number of allocations.
    pub(crate) fn over_cap_with(
        &self,
        queue: QueueId,
        more: (&Amounts, u64),
        amounts: &Amounts,
        now: bool,
    ) -> Option<OverCap> {
        let counts_releasing = now && !is_planted(PlantedBug::CapForgetsReleasing);
        self.chain(queue).find_map(|queue| {
            let of = self.queue(queue);
            let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            if let Some(cap) = of.spec.allocations_max.map(i64::from) {
                let usage = &of.usage;
                let used = if counts_releasing { usage.allocations() } else { usage.planned_allocations() };
                if count(used + more.1) >= cap {
                    let [used, asked] = [used, more.1 + 1].map(count);
                    return Some(OverCap { queue, of: Capped::Allocations, cap, used, asked });
                }
            }
            let caps = &of.spec.capability;
            caps.iter().next()?;
            let mut used = of.usage.planned();
            used.add(more.0);
            if counts_releasing {
                used.add(&of.usage.releasing);
            }
            let dim = caps.exceeded(&used, amounts)?;
            let cap = caps.get(dim).expect("what is exceeded is there");
            let [used, before] = [&used, more.0].map(|of| of.get(dim));
            Some(OverCap {
                queue,
                of: Capped::Resource(dim),
                cap,
                used: used - before,
                asked: amounts.get(dim) + before,
            })
        })
    }

    /// Returns how much of a cap is kept for tasks that wait until it allows them.
    pub(super) fn kept_of_cap(&self, over: &OverCap) -> i64 {
        let of_task = |task: TaskId| match over.of {
            Capped::Allocations => 1,
            Capped::Resource(dim) => self.task(task).class.amounts.get(dim),
        };
        let is_in = |task: &TaskId| {
            let queue = self.job(task.job).spec().queue;
            self.chain(queue).any(|outer| outer == over.queue)
        };
        let waiting = self.first_waiting_for_cap(WAITING_FOR_CAP_LOOKED_AT_MAX);
        waiting.filter(is_in).map(of_task).fold(0, i64::saturating_add)
    }

    /// Returns whether a queue, or one that contains it, may have this many allocations more than now.
    pub(crate) fn may_have_allocations(&self, queue: QueueId, more: u64) -> bool {
        self.chain(queue).all(|queue| {
            let of = self.queue(queue);
            of.spec.allocations_max.is_none_or(|most| of.usage.allocations() + more <= u64::from(most))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairness::Caps;
    use crate::ids::NodeId;
    use crate::jobs::{JobSpec, QueueSpec, TaskGroup, TaskState};
    use crate::request::{PlacementRequest, Policy};
    use crate::resource::{Amount, Demand};
    use crate::time::Time;

    #[test]
    fn caps_on_allocations_count_what_is_held_claimed_and_released_also_below() {
        let mut jobs = Jobs::new();
        let most = |name: &str, allocations_max| QueueSpec { allocations_max, ..QueueSpec::new(name) };
        let outer = jobs.add_queue(most("outer", Some(3))).unwrap();
        let below = |name: &str, most_of| QueueSpec { parent: outer, ..most(name, most_of) };
        let inner = jobs.add_queue(below("inner", Some(2))).unwrap();
        let other = jobs.add_queue(below("other", None)).unwrap();
        let demand = Demand { cpu: Amount::from_milli(1), ..Demand::default() };
        let request = PlacementRequest::new(demand, Policy::BestFit);
        let mut add = |queue, name: &str, state| {
            let spec = JobSpec { queue, ..JobSpec::new(name, vec![TaskGroup::new(request.clone(), 1)]) };
            let task = TaskId { job: jobs.submit(spec).unwrap(), index: 0 };
            jobs.set(task, state, Some(NodeId(1)), Time(1));
            jobs.check().unwrap();
            let amounts = Amounts::zero();
            [inner, other].map(|queue| {
                let over = [true, false].map(|now| jobs.over_cap(queue, &amounts, now));
                over.map(|over| over.map(|over| (over.queue, over.cap, over.used)))
            })
        };
        assert_eq!(add(inner, "a", TaskState::Bound), [[None; 2]; 2]);
        let full = Some((inner, 2, 2));
        assert_eq!(add(inner, "b", TaskState::Releasing), [[full, None], [None; 2]]);
        let above = Some((outer, 3, 3));
        assert_eq!(add(other, "c", TaskState::Pipelined), [[full, None], [above, None]]);
        let full = jobs.over_cap(other, &Amounts::zero(), true).unwrap();
        assert_eq!(jobs.kept_of_cap(&full), 1, "the claim is not made before the cap allows it");
        let more = jobs.over_cap_with(other, (&Amounts::zero(), 2), &Amounts::zero(), false).unwrap();
        assert_eq!((more.used, more.asked), (2, 3), "what is asked for with it is not in use");
        let inner_full = jobs.over_cap(inner, &Amounts::zero(), true).unwrap();
        assert_eq!(jobs.kept_of_cap(&inner_full), 0, "nothing in that queue waits for it");
        assert!(!jobs.may_have_allocations(other, 1) && jobs.may_have_allocations(other, 0));
    }

    #[test]
    fn a_cap_tells_what_is_in_use() {
        let mut jobs = Jobs::new();
        let capability: Caps = [(Dim::CPU, 25)].into_iter().collect();
        let queue = jobs.add_queue(QueueSpec { capability, ..QueueSpec::new("q") }).unwrap();
        let cpu = |amount: i64| -> Amounts { [(Dim::CPU, amount)].into_iter().collect() };
        assert_eq!(jobs.over_cap(queue, &cpu(25), true), None);
        let over = OverCap { queue, of: Capped::Resource(Dim::CPU), cap: 25, used: 0, asked: 26 };
        assert_eq!(jobs.over_cap(queue, &cpu(26), true), Some(over));
    }
}
