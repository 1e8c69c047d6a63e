//! Evicts tasks for others of the same queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::allocate::Misfits;
use super::best_effort::Filler;
use super::config::Action;
use super::signature::FailedJobs;
use super::spots::Spots;
use super::topology::{DomainId, Sight};
use super::trial::Cycle;
use super::victims::{From, Offers};
use crate::jobs::{JobId, QueueId, TaskClass, TaskId, TaskState};

/// What is known about room for tasks of a job, by class.
#[derive(Default)]
pub(super) struct Room {
    offers: BTreeMap<*const TaskClass, Offers>,
    misfits: Misfits,
    /// The domain of which that is true. `None`: of all nodes.
    scope: Option<DomainId>,
}

impl Cycle<'_> {
    /// Lets jobs that starve preempt others of their queue, then tasks those of their own job.
    ///
    /// Nobody is evicted unless the job then has what it needs: all its evictions and claims are one statement.
    pub(super) fn preempt_all(&mut self) {
        let queues: Vec<QueueId> = self.jobs.queues().map(|(id, _)| id).collect();
        let starving: Vec<(QueueId, Vec<JobId>)> =
            queues.into_iter().map(|queue| (queue, self.preempting_jobs(queue))).collect();
        if starving.iter().all(|(_, jobs)| jobs.is_empty()) {
            return;
        }
        let table = self.take_spots();
        let mut failed = FailedJobs::default();
        for (queue, mut jobs) in starving {
            let Some(spots) = table.of_queue(queue) else { continue };
            jobs.sort_by(|&a, &b| self.compare_jobs(a, b));
            for &job in &jobs {
                let attempt = |cycle: &mut Self| cycle.preempt_for(job, spots);
                self.try_unless_equal_failed(job, &mut failed, Action::Preempt, attempt);
            }
            for &job in &jobs {
                self.preempt_within(job, spots);
            }
        }
        self.give_spots_back(table);
    }

    /// Returns the admitted, valid jobs of a queue that starve.
    fn preempting_jobs(&self, queue: QueueId) -> Vec<JobId> {
        let starves = |job: &JobId| {
            let of = self.jobs.job(*job);
            of.phase().is_admitted()
                && of.asks_for_something()
                && of.spec().preempts
                && self.tiers().is_valid(self.facts(), *job)
                && self.tiers().is_starving(self.facts(), *job)
        };
        self.jobs.queue(queue).waiting().filter(starves).collect()
    }

    fn preempt_for(&mut self, job: JobId, spots: Spots<'_>) {
        let savepoint = self.savepoint();
        let priority = self.jobs.job(job).spec().priority;
        let spots = if self.tiers().takes_lower_priorities() { spots.below(priority) } else { spots };
        let has_enough = self.evict_in_domains(job, spots, |cycle| {
            let mut room = Room::default();
            let mut filler = Filler::evicting(job, spots, From::OtherJobs);
            // Perhaps it lacks only tasks that ask for nothing.
            cycle.fill_up(&mut filler);
            for task in cycle.pending_tasks(job, false) {
                if !cycle.tiers().is_starving(cycle.facts(), job) {
                    break;
                }
                let before = cycle.savepoint();
                let is_of_use = !cycle.passes(&mut filler, task);
                if is_of_use && cycle.place_or_make_room(task, From::OtherJobs, spots, &mut room) {
                    cycle.fill_up(&mut filler);
                }
                if cycle.undo_beyond_a_statement(before) {
                    break;
                }
            }
            cycle.is_pipelined(job)
        });
        self.keep_or_note(has_enough, savepoint, job, Action::Preempt);
    }

    /// Gives a task a node or a claim, on capacity that nobody has or by evicting others. A class of tasks for which
    /// there was no room is not tried again: evictions for others of the job only free what these take. Returns whether
    /// the task has one.
    pub(super) fn place_or_make_room(
        &mut self,
        task: TaskId,
        from: From,
        spots: Spots<'_>,
        room: &mut Room,
    ) -> bool {
        if self.jobs.task(task).state != TaskState::Pending {
            // It was placed together with others of its task group.
            return true;
        }
        self.in_group_domain(task, Sight::Evicting(spots), |cycle, task| {
            cycle.place_or_evict(task, from, spots, room)
        })
    }

    fn place_or_evict(&mut self, task: TaskId, from: From, spots: Spots<'_>, room: &mut Room) -> bool {
        let class = Arc::clone(&self.jobs.task(task).class);
        let queue = self.queue_of(task.job);
        if from == From::OtherQueues && !self.tiers().is_preemptive(self.facts(), queue, &class) {
            return false;
        }
        if room.scope != self.topology.scope() {
            *room = Room { scope: self.topology.scope(), ..Room::default() };
        }
        if room.misfits.has(&class) {
            return false;
        }
        if self.place(task, &mut Misfits::default()) {
            return true;
        }
        let offers = room.offers.entry(Arc::as_ptr(&class)).or_default();
        let has_room = self.make_room(task, from, spots, offers);
        if !has_room {
            room.misfits.note(class);
        }
        has_room
    }

    /// Lets tasks of a job take the place of tasks of a lower priority of the same job.
    fn preempt_within(&mut self, job: JobId, spots: Spots<'_>) {
        let of = self.jobs.job(job);
        if of.count(TaskState::Running) + of.count(TaskState::Bound) == 0 {
            return;
        }
        self.at_home(job, |cycle| {
            for task in cycle.pending_tasks(job, false) {
                let savepoint = cycle.savepoint();
                let has_room = cycle.in_group_domain(task, Sight::Evicting(spots), |cycle, task| {
                    cycle.make_room(task, From::SameJob, spots, &mut Offers::default())
                });
                if !has_room {
                    return;
                }
                // A gang that has lost more than one of its tasks gets all of them, or none.
                cycle.keep_if(cycle.has_enough(job), savepoint);
            }
        });
    }
}
