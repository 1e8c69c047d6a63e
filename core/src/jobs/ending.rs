//! How tasks and jobs end.
//!
//! The phase of a job says what was decided about it, and is recorded together with the state of the task that was the
//! reason. Its other tasks follow ([`Jobs::end_job`]), now or after a crash. So what a policy does is neither lost nor
//! done twice.

use std::collections::BTreeSet;

use super::after::{After, Facts, TaskEnd};
use super::{Job, JobId, JobPhase, Jobs, TaskId, TaskState};
use crate::ids::AllocationId;
use crate::time::Time;

/// What the tasks of a job that ends had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobEnd {
    /// Allocations and claims of tasks that have ended, or are pending again. To be released at once.
    pub released: Vec<(TaskId, AllocationId)>,
    /// Allocations of tasks that are releasing from now on. To be evicted with the grace period.
    pub evicted: Vec<(TaskId, AllocationId)>,
}

impl Jobs {
    /// Takes over that the allocation or claim of a task has ended, and nobody has reported an end. The task is pending
    /// again or has failed, and policies may end its job.
    ///
    /// # Panics
    /// If there is no such task.
    pub fn task_lost(&mut self, id: TaskId, now: Time) {
        self.follow_end(id, TaskEnd::Lost, now);
    }

    /// Takes over that a task has succeeded, as was reported. Policies may end its job.
    ///
    /// # Panics
    /// If there is no such task.
    pub fn task_succeeded(&mut self, id: TaskId, now: Time) {
        let job = self.job(id.job);
        let task = &job.tasks[id.index as usize];
        let others =
            job.succeeded_of_group[task.group as usize] - u32::from(task.state == TaskState::Succeeded);
        let is_last = others + 1 == job.spec.tasks[task.group as usize].count;
        let of_job = job.count(TaskState::Succeeded) - u32::from(task.state == TaskState::Succeeded);
        self.follow_end(id, TaskEnd::Succeeded { is_last, succeeded: of_job + 1 }, now);
    }

    /// Takes over that a task has failed with this exit code, as was reported. Policies may make it pending again, or end
    /// its job.
    ///
    /// # Panics
    /// If there is no such task.
    pub fn task_failed(&mut self, id: TaskId, exit_code: Option<i32>, now: Time) {
        self.follow_end(id, TaskEnd::Failed(exit_code), now);
    }

    /// Returns what the rule for ends looks at.
    pub(super) fn facts(&self, id: TaskId) -> Facts<'_> {
        let job = self.job(id.job);
        let task = &job.tasks[id.index as usize];
        Facts {
            spec: &job.spec,
            phase: job.phase,
            restarts: job.restarts,
            group: &job.spec.tasks[task.group as usize],
            task: task.record(),
        }
    }

    fn follow_end(&mut self, id: TaskId, end: TaskEnd, now: Time) {
        let after = self.facts(id).after(end, now);
        self.follow_phase(id.job, &after);
        self.set_as(id, (after.state, None, after.delayed), (now, now));
    }

    /// Takes over what became of a job because of one of its tasks.
    pub(super) fn follow_phase(&mut self, id: JobId, after: &After) {
        let &After { phase, restarts, .. } = after;
        let before = (self.job(id).phase, self.job(id).restarts);
        if (phase, restarts) != before {
            self.job_mut(id).restarts = restarts;
            self.set_phase(id, phase);
        }
        if phase != before.0 {
            self.ending.insert(id);
        }
    }

    /// Returns the jobs whose other tasks must end, because a policy has said so since the last call, and those whose start
    /// is given up. A job that has ended or restarted meanwhile may be among them.
    pub fn take_ending(&mut self) -> BTreeSet<JobId> {
        let mut ending = std::mem::take(&mut self.ending);
        ending.retain(|&id| self.has_job(id));
        ending
    }

    /// Returns whether [`take_ending`](Self::take_ending) may return a job.
    #[must_use]
    pub fn has_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Ends the tasks of a job whose phase says that it is over, or restarts. Those that hold something have `grace_ns` ns
    /// to end. Those that are releasing keep their grace period, unless it is cut `short`.
    ///
    /// If the job restarts, its tasks are pending once they have ended, and the job is what it was when it was submitted
    /// once all of them are. If only its start is given up, the tasks that wait for others are pending at once.
    ///
    /// # Panics
    /// If there is no such job.
    pub fn end_job(&mut self, id: JobId, grace_ns: u64, short: bool, now: Time) -> JobEnd {
        let mut end = JobEnd::default();
        let phase = self.job(id).phase;
        let restarts = phase == JobPhase::Restarting;
        let is_given_up = self.given_up.remove(&id);
        if !restarts && !phase.is_end() {
            // If not, it has restarted already.
            if is_given_up {
                self.end_start(id, &mut end, now);
            }
            return end;
        }
        self.forget_delays(id);
        let tasks = self.job(id).tasks.iter().map(|task| (task.state, task.node, task.allocation));
        let tasks: Vec<_> = tasks.collect();
        for (index, (state, node, allocation)) in (0..).zip(tasks) {
            let task = TaskId { job: id, index };
            match allocation {
                // It ends when its grace period is over, at the latest.
                Some(_) if state == TaskState::Releasing && !short => continue,
                Some(allocation) if state.holds() && grace_ns > 0 => {
                    self.set(task, TaskState::Releasing, node, now);
                    end.evicted.push((task, allocation));
                    continue;
                }
                Some(allocation) => end.released.push((task, allocation)),
                None => {}
            }
            if restarts && state != TaskState::Pending {
                self.set(task, TaskState::Pending, None, now);
            } else if !restarts && !state.is_end() {
                self.set(task, TaskState::Failed, None, now);
            }
        }
        // If all tasks were pending already, no change of a task has ended the restart.
        let phase = self.job(id).phase_by_tasks();
        if phase != self.job(id).phase {
            self.set_phase(id, phase);
        }
        end
    }

    /// Returns the jobs with tasks that have a node and wait for others of their job.
    pub(crate) fn starting(&self) -> impl Iterator<Item = JobId> + '_ {
        self.starting.iter().copied()
    }

    /// Lists a job that is to [give up](Self::end_job) the nodes of tasks that wait for others of their job.
    pub(crate) fn give_up_start(&mut self, id: JobId) {
        self.given_up.insert(id);
        self.ending.insert(id);
    }

    /// Makes the tasks of a job pending that have a node and wait for others. They were bound nowhere, so nobody was told to
    /// start them.
    fn end_start(&mut self, id: JobId, end: &mut JobEnd, now: Time) {
        let tasks = (0..).zip(&self.job(id).tasks).filter(|(_, task)| task.state == TaskState::Allocated);
        let tasks = tasks.filter_map(|(index, task)| Some((TaskId { job: id, index }, task.allocation?)));
        let tasks: Vec<_> = tasks.collect();
        for &(task, _) in &tasks {
            self.set(task, TaskState::Pending, None, now);
        }
        end.released.extend(tasks);
    }

    /// Lists the jobs whose phase was decided before all of their tasks had followed, after a start.
    pub(crate) fn resume_endings(&mut self) {
        let is_under_way =
            |job: &Job| job.phase == JobPhase::Restarting || job.phase.is_end() && !job.has_ended();
        let under_way = self.jobs().filter(|(_, job)| is_under_way(job)).map(|(id, _)| id);
        self.ending = under_way.collect();
    }
}
