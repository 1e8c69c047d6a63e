//! What policies do later: a policy with a timeout acts only if what it reacts to has lasted for that time.
//!
//! What it will do and when is part of the task, and is recorded with it. So a crash changes neither.

use super::{Delayed, JobId, Jobs, TaskId, TaskState};
use crate::time::Time;

impl Jobs {
    /// Returns what a policy does later for a task that goes into a state: an eviction is over once the task is bound again
    /// or has ended, and a failure or success once the task is restarted.
    pub(super) fn lasting_delay(&self, id: TaskId, state: TaskState) -> Option<Delayed> {
        let task = self.task(id);
        let lasts = !task.state.is_end() && !state.is_end() && !state.is_bound();
        task.delayed.filter(|_| lasts)
    }

    /// Follows what a policy does later for a task.
    pub(super) fn follow_delay(&mut self, id: TaskId, before: Option<Delayed>, now: Option<Delayed>) {
        if before == now {
            return;
        }
        if let Some(before) = before {
            let known = self.delays.remove(&(before.due, id));
            assert!(known, "something is delayed for task {id} and not listed");
        }
        if let Some(now) = now {
            let fresh = self.delays.insert((now.due, id));
            assert!(fresh, "what is delayed for task {id} is listed twice");
        }
    }

    /// Forgets what a policy does later for a task. The state of the task does not change.
    fn forget_delay(&mut self, id: TaskId) {
        let Some(before) = self.task(id).delayed else { return };
        self.changes += 1;
        self.note_task(id);
        let job = self.job_mut(id.job);
        job.tasks[id.index as usize].delayed = None;
        job.delayed -= 1;
        self.follow_delay(id, Some(before), None);
    }

    /// Forgets what policies do later for a job that is over, or restarts.
    pub(super) fn forget_delays(&mut self, id: JobId) {
        let job = self.job(id);
        if job.delayed == 0 {
            return;
        }
        let delayed = (0..).zip(&job.tasks).filter(|(_, task)| task.delayed.is_some());
        let delayed: Vec<u32> = delayed.map(|(index, _)| index).collect();
        delayed.into_iter().for_each(|index| self.forget_delay(TaskId { job: id, index }));
    }

    /// Returns when the next policy with a timeout acts.
    #[must_use]
    pub fn next_delay(&self) -> Option<Time> {
        self.delays.first().map(|&(due, _)| due)
    }

    /// Has all policies act whose timeouts are over.
    pub fn take_due(&mut self, now: Time) {
        while let Some(&(_, id)) = self.delays.first().filter(|(due, _)| *due <= now) {
            let facts = self.facts(id);
            let before = facts.task.state;
            let after = facts.after_delay();
            self.follow_phase(id.job, &after);
            if after.state == before {
                self.forget_delay(id);
            } else {
                // It had ended, so it has no node.
                self.set(id, after.state, None, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{AllocationId, Incarnation, NodeId, PartitionId, TenantId};
    use crate::jobs::{
        JobPhase, JobPolicy, JobSpec, JobsTable, PolicyAction, QueueSpec, TaskEvent, TaskGroup,
    };
    use crate::request::{PlacementRequest, Policy};
    use crate::resource::Demand;

    /// Returns a job of two tasks that run from 0 on, with a policy that waits for 100.
    fn running(event: TaskEvent, action: PolicyAction) -> (Jobs, JobId) {
        let mut jobs = Jobs::new();
        jobs.note_changes();
        let queue = jobs.add_queue(QueueSpec::new("q")).unwrap();
        let group = TaskGroup::new(PlacementRequest::new(Demand::default(), Policy::BestFit), 2);
        let policy = JobPolicy { events: vec![event], action, exit_code: None, timeout_ns: Some(100) };
        let spec = JobSpec { queue, policies: vec![policy], max_retry: 1, ..JobSpec::new("j", vec![group]) };
        let id = jobs.submit(spec).unwrap();
        jobs.set_phase(id, JobPhase::Running);
        (0..2).for_each(|index| run(&mut jobs, TaskId { job: id, index }, 0));
        (jobs, id)
    }

    fn run(jobs: &mut Jobs, task: TaskId, now: u64) {
        jobs.set(task, TaskState::Bound, Some(NodeId(1)), Time(now));
        let allocation = AllocationId {
            incarnation: Incarnation(1),
            partition: PartitionId(0),
            sequence: u64::from(task.index) + 1,
            tenant: TenantId::OPERATOR,
        };
        jobs.set_allocation(task, allocation);
    }

    /// Returns the state of the first task and the phase, after what is due at a time.
    fn at(jobs: &mut Jobs, id: JobId, now: u64) -> (TaskState, JobPhase) {
        jobs.take_due(Time(now));
        for job in jobs.take_ending() {
            jobs.end_job(job, 0, false, Time(now));
        }
        jobs.check().unwrap();
        (jobs.job(id).tasks()[0].state, jobs.job(id).phase())
    }

    #[test]
    fn a_task_that_failed_is_restarted_after_the_timeout_and_its_job_waits_for_that() {
        let (mut jobs, id) = running(TaskEvent::Failed, PolicyAction::RestartTask);
        jobs.task_succeeded(TaskId { job: id, index: 1 }, Time(5));
        jobs.task_failed(TaskId { job: id, index: 0 }, None, Time(10));
        assert!(!jobs.job(id).has_ended(), "all tasks have ended, and one will be restarted");
        assert_eq!(jobs.next_delay(), Some(Time(110)));
        assert_eq!(at(&mut jobs, id, 109), (TaskState::Failed, JobPhase::Running));
        assert_eq!(at(&mut jobs, id, 110), (TaskState::Pending, JobPhase::Running));
        assert_eq!((jobs.next_delay(), jobs.job(id).restarts()), (None, 1));
        // It was restarted as often as it may be: it fails, after the timeout too.
        run(&mut jobs, TaskId { job: id, index: 0 }, 120);
        jobs.task_failed(TaskId { job: id, index: 0 }, None, Time(130));
        assert_eq!(at(&mut jobs, id, 229), (TaskState::Failed, JobPhase::Running));
        assert_eq!(at(&mut jobs, id, 230), (TaskState::Failed, JobPhase::Failed));
        assert!(jobs.job(id).has_ended());
    }

    #[test]
    fn an_eviction_lasts_until_the_task_is_bound_again() {
        for (bound_again, phase) in [(true, JobPhase::Running), (false, JobPhase::Aborted)] {
            let (mut jobs, id) = running(TaskEvent::Evicted, PolicyAction::AbortJob);
            let task = TaskId { job: id, index: 0 };
            jobs.task_lost(task, Time(10));
            // A node that was lost before the task was bound there changes nothing.
            jobs.set(task, TaskState::Allocated, Some(NodeId(2)), Time(20));
            assert_eq!(jobs.next_delay(), Some(Time(110)));
            jobs.task_lost(task, Time(30));
            assert_eq!(jobs.next_delay(), Some(Time(110)));
            if bound_again {
                run(&mut jobs, task, 40);
                assert_eq!(jobs.next_delay(), None);
            }
            assert_eq!(at(&mut jobs, id, 110).1, phase);
            assert_eq!(jobs.job(id).has_ended(), !bound_again);
        }
    }

    #[test]
    fn a_job_that_is_over_or_restarts_forgets_what_it_would_do() {
        let (mut jobs, id) = running(TaskEvent::Any, PolicyAction::RestartJob);
        jobs.task_failed(TaskId { job: id, index: 0 }, None, Time(10));
        jobs.task_lost(TaskId { job: id, index: 1 }, Time(11));
        assert_eq!(at(&mut jobs, id, 110), (TaskState::Pending, JobPhase::Pending), "it has restarted once");
        assert_eq!((jobs.next_delay(), jobs.job(id).restarts()), (None, 1));
        let (mut jobs, id) = running(TaskEvent::Any, PolicyAction::RestartJob);
        jobs.task_failed(TaskId { job: id, index: 0 }, None, Time(10));
        jobs.set_phase(id, JobPhase::Cancelled);
        jobs.end_job(id, 0, true, Time(12));
        assert_eq!(jobs.next_delay(), None);
        assert!(jobs.job(id).has_ended());
        jobs.check().unwrap();
    }

    #[test]
    fn a_job_whose_tasks_are_all_pending_restarts_at_once() {
        let (mut jobs, id) = running(TaskEvent::Evicted, PolicyAction::RestartJob);
        (0..2).for_each(|index| jobs.task_lost(TaskId { job: id, index }, Time(10)));
        assert_eq!(at(&mut jobs, id, 109), (TaskState::Pending, JobPhase::Running));
        assert_eq!(at(&mut jobs, id, 110), (TaskState::Pending, JobPhase::Pending));
        assert_eq!((jobs.next_delay(), jobs.job(id).restarts()), (None, 1));
    }

    #[test]
    fn a_trial_that_is_undone_keeps_the_time() {
        let (mut jobs, id) = running(TaskEvent::Evicted, PolicyAction::AbortJob);
        let task = TaskId { job: id, index: 0 };
        jobs.task_lost(task, Time(10));
        let before = jobs.task(task).clone();
        jobs.set(task, TaskState::Bound, Some(NodeId(2)), Time(20));
        jobs.restore(task, &before);
        assert_eq!(jobs.next_delay(), Some(Time(110)));
        jobs.check().unwrap();
    }

    #[test]
    fn what_is_delayed_survives_a_start() {
        let (mut jobs, id) = running(TaskEvent::Failed, PolicyAction::AbortJob);
        let mut table = JobsTable::default();
        jobs.task_failed(TaskId { job: id, index: 0 }, Some(3), Time(10));
        jobs.take_changes().iter().for_each(|change| table.apply(change));
        assert_eq!(table.clone().into_record(), jobs.record());
        let mut again = Jobs::new();
        again.adopt(table.into_record(), Time(50)).unwrap();
        assert_eq!(again.next_delay(), Some(Time(110)));
        assert_eq!(at(&mut again, id, 110), (TaskState::Failed, JobPhase::Aborted));
    }
}
