//! What becomes of a task that has ended, and of its job: one rule for a running service, for scenarios and for a
//! recovery.

use super::{
    Delayed, JobPhase, JobPolicy, JobSpec, PolicyAction, TaskEvent, TaskGroup, TaskRecord, TaskState,
};
use crate::planted::{PlantedBug, is_planted};
use crate::time::Time;

/// What the rule looks at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    /// The job as it was submitted.
    pub(super) spec: &'a JobSpec,
    /// Its phase.
    pub(super) phase: JobPhase,
    /// How often it was restarted, or a task of it.
    pub(super) restarts: u32,
    /// The group of the task.
    pub(super) group: &'a TaskGroup,
    /// The task as it was.
    pub(super) task: TaskRecord,
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskEnd {
    /// It has succeeded, as was reported.
    Succeeded {
        /// Whether all other tasks of its group have.
        is_last: bool,
        /// How many tasks of its job have, with this one.
        succeeded: u32,
    },
    /// It has failed, as was reported, with this exit code.
    Failed(Option<i32>),
    /// Its allocation or claim has ended, and nobody has reported an end.
    Lost,
}

/// What becomes of a task and its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct After {
    /// The state of the task, which has no node.
    pub(super) state: TaskState,
    /// The phase of its job. If the task was the last one that had not ended, [`phase_of_ended`] says more.
    pub(super) phase: JobPhase,
    /// The restarts of its job.
    pub(super) restarts: u32,
    /// What a policy does later, if the task stays as it is.
    pub(super) delayed: Option<Delayed>,
}

impl Facts<'_> {
    /// Returns what becomes of the task and its job, at a time.
    ///
    /// Without policies, a task that is lost is pending again, unless its run time was over. Policies of the task group
    /// come before those of the job, and of each list the first that reacts decides. A job of which enough tasks have
    /// succeeded is completed, unless a policy has decided otherwise.
    pub(super) fn after(&self, end: TaskEnd, now: Time) -> After {
        if self.phase == JobPhase::Restarting {
            return self.becomes(TaskState::Pending);
        }
        let (event, state) = match end {
            TaskEnd::Succeeded { is_last, .. } => {
                (is_last.then_some(TaskEvent::Completed), TaskState::Succeeded)
            }
            TaskEnd::Failed(_) => (Some(TaskEvent::Failed), TaskState::Failed),
            TaskEnd::Lost if self.has_overrun() && !is_planted(PlantedBug::OverrunRunsAgain) => {
                (Some(TaskEvent::Failed), TaskState::Failed)
            }
            // A task that was never bound has done nothing that could be lost.
            TaskEnd::Lost => (self.task.bound.map(|_| TaskEvent::Evicted), TaskState::Pending),
        };
        // A direct placement is not placed again. One that has only claimed a place waits on.
        if self.phase.is_end() || self.spec.is_direct && self.task.state != TaskState::Pipelined {
            return self.becomes(ended(state));
        }
        let exit_code = if let TaskEnd::Failed(exit_code) = end { exit_code } else { None };
        // A task that is pending again in any case, or has succeeded, is not restarted alone.
        let policy = event.and_then(|event| self.policy(event, exit_code));
        let policy =
            policy.filter(|policy| policy.action != PolicyAction::RestartTask || state == TaskState::Failed);
        let has_enough =
            |end| matches!(end, TaskEnd::Succeeded { succeeded, .. } if self.is_enough(succeeded));
        match policy {
            Some(&JobPolicy { action, timeout_ns: None, .. }) => self.does(action, state),
            _ if has_enough(end) => self.ends(state, JobPhase::Completed),
            Some(&JobPolicy { action, timeout_ns: Some(timeout_ns), .. }) => {
                let delayed = Some(Delayed { due: now.plus_nanos(timeout_ns), action });
                After { delayed, ..self.becomes(state) }
            }
            // What an earlier eviction leads to does not end because a claim, or a node that was never bound, was lost.
            None if event.is_none() && state == TaskState::Pending => {
                After { delayed: self.task.delayed, ..self.becomes(state) }
            }
            None => self.becomes(state),
        }
    }

    /// Returns what becomes of the task and its job when what a policy does later is due. The task keeps its state unless
    /// it is the one that restarts: the others of a job that ends follow its phase, and so does this one.
    pub(super) fn after_delay(&self) -> After {
        let state = self.task.state;
        match self.task.delayed {
            Some(delayed) if !self.phase.is_end() && self.phase != JobPhase::Restarting => {
                let after = self.does(delayed.action, state);
                let is_restarted = delayed.action == PolicyAction::RestartTask && after.phase == self.phase;
                After { state: if is_restarted { after.state } else { state }, ..after }
            }
            _ => self.becomes(state),
        }
    }

    /// Returns what an action does, for a task in this state.
    fn does(&self, action: PolicyAction, state: TaskState) -> After {
        match action {
            PolicyAction::RestartTask => self.restarted(state, self.phase),
            PolicyAction::RestartJob => self.restarted(state, JobPhase::Restarting),
            PolicyAction::CompleteJob => self.ends(state, JobPhase::Completed),
            PolicyAction::AbortJob => self.ends(state, JobPhase::Aborted),
        }
    }

    fn is_enough(&self, succeeded: u32) -> bool {
        self.spec.min_success.is_some_and(|least| succeeded >= least)
    }

    fn becomes(&self, state: TaskState) -> After {
        After { state, phase: self.phase, restarts: self.restarts, delayed: None }
    }

    fn ends(&self, state: TaskState, phase: JobPhase) -> After {
        After { phase, ..self.becomes(ended(state)) }
    }

    /// Restarts the task, unless the job has been restarted as often as it may be.
    fn restarted(&self, state: TaskState, phase: JobPhase) -> After {
        if self.restarts >= self.spec.max_retry && !is_planted(PlantedBug::RetriesUnbounded) {
            return self.ends(state, JobPhase::Failed);
        }
        After { phase, restarts: self.restarts + 1, ..self.becomes(TaskState::Pending) }
    }

    fn policy(&self, event: TaskEvent, exit_code: Option<i32>) -> Option<&JobPolicy> {
        let mut policies = self.group.policies.iter().chain(&self.spec.policies);
        policies.find(|policy: &&JobPolicy| policy.reacts_to(event, exit_code))
    }

    /// Returns whether the task is in its grace period because its run time is over. It would overrun again.
    fn has_overrun(&self) -> bool {
        let Self { task, group, .. } = self;
        let end = task.bound.zip(group.run_time_ns).map(|(bound, run)| bound.plus_nanos(run));
        task.state == TaskState::Releasing && end.is_some_and(|end| end <= task.since)
    }
}

/// Returns the state of a task of a job that is over.
fn ended(state: TaskState) -> TaskState {
    if state.is_end() { state } else { TaskState::Failed }
}

/// Returns the phase of a job whose tasks have all ended, by how many of them have succeeded: of all, and of each role.
/// As many are needed as for a start (Volcano's `minAvailable`), unless the job says how many must succeed.
pub(super) fn phase_of_ended(spec: &JobSpec, succeeded: u32, of_role: impl Fn(usize) -> u32) -> JobPhase {
    if let Some(least) = spec.min_success {
        return if succeeded >= least { JobPhase::Completed } else { JobPhase::Failed };
    }
    let have_enough = || spec.roles.iter().enumerate().all(|(at, role)| of_role(at) >= role.min_member);
    let is_enough = succeeded >= spec.min_member && (!spec.roles_count() || have_enough());
    if is_enough { JobPhase::Completed } else { JobPhase::Failed }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::jobs::Role;
    use crate::request::{PlacementRequest, Policy};
    use crate::resource::Demand;
    use crate::time::Time;

    fn policy(events: &[TaskEvent], action: PolicyAction, exit_code: Option<i32>) -> JobPolicy {
        JobPolicy { events: events.to_vec(), action, exit_code, timeout_ns: None }
    }

    /// Returns a job of one group of tasks, with the policies of the group and of the job.
    fn job(of_group: Vec<JobPolicy>, of_job: Vec<JobPolicy>) -> JobSpec {
        let group = TaskGroup {
            policies: of_group,
            ..TaskGroup::new(PlacementRequest::new(Demand::default(), Policy::BestFit), 4)
        };
        JobSpec { policies: of_job, ..JobSpec::new("j", vec![group]) }
    }

    /// Returns the facts of a task that was bound at 100 and is in `state` since 160.
    fn facts(spec: &JobSpec, state: TaskState) -> Facts<'_> {
        let task = TaskRecord { bound: Some(Time(100)), ..TaskRecord::without_node(state, Time(160)) };
        Facts { spec, phase: JobPhase::Running, restarts: 0, group: &spec.tasks[0], task }
    }

    fn after(state: TaskState, phase: JobPhase, restarts: u32) -> After {
        After { state, phase, restarts, delayed: None }
    }

    const RUNS: JobPhase = JobPhase::Running;
    const NOW: Time = Time(200);

    #[test]
    fn a_lost_task_waits_again_unless_its_time_or_its_job_is_over() {
        let spec = job(Vec::new(), Vec::new());
        for state in [TaskState::Running, TaskState::Releasing, TaskState::Pipelined] {
            assert_eq!(facts(&spec, state).after(TaskEnd::Lost, NOW), after(TaskState::Pending, RUNS, 0));
            for phase in JobPhase::ALL.into_iter().filter(|phase| phase.is_end()) {
                let over = Facts { phase, ..facts(&spec, state) };
                assert_eq!(over.after(TaskEnd::Lost, NOW), after(TaskState::Failed, phase, 0));
                let last = TaskEnd::Succeeded { is_last: true, succeeded: 4 };
                assert_eq!(over.after(last, NOW), after(TaskState::Succeeded, phase, 0));
            }
        }
        // It was evicted at 160.
        for (run_time_ns, state) in
            [(59, TaskState::Failed), (60, TaskState::Failed), (61, TaskState::Pending)]
        {
            let mut spec = job(Vec::new(), Vec::new());
            spec.tasks[0].run_time_ns = Some(run_time_ns);
            let lost = facts(&spec, TaskState::Releasing).after(TaskEnd::Lost, NOW);
            assert_eq!(lost, after(state, RUNS, 0), "{run_time_ns}");
            // Its node is gone before anything evicted it.
            let lost = facts(&spec, TaskState::Running).after(TaskEnd::Lost, NOW);
            assert_eq!(lost, after(TaskState::Pending, RUNS, 0));
        }
    }

    #[test]
    fn the_group_comes_before_the_job_and_the_first_policy_that_reacts_decides() {
        use PolicyAction::{AbortJob, CompleteJob, RestartJob, RestartTask};
        use TaskEvent::{Any, Completed, Evicted, Failed};
        let of_group = vec![
            policy(&[Failed], AbortJob, Some(3)),
            policy(&[Failed], RestartTask, Some(4)),
            policy(&[Completed], CompleteJob, None),
        ];
        let spec =
            job(of_group, vec![policy(&[Evicted, Failed], RestartJob, None), policy(&[Any], AbortJob, None)]);
        let runs = facts(&spec, TaskState::Running);
        let failed = |code| runs.after(TaskEnd::Failed(code), NOW);
        assert_eq!(failed(Some(3)), after(TaskState::Failed, JobPhase::Aborted, 0));
        assert_eq!(failed(Some(4)), after(TaskState::Pending, RUNS, 1));
        assert_eq!(failed(Some(5)), after(TaskState::Pending, JobPhase::Restarting, 1));
        assert_eq!(failed(None), after(TaskState::Pending, JobPhase::Restarting, 1));
        assert_eq!(runs.after(TaskEnd::Lost, NOW), after(TaskState::Pending, JobPhase::Restarting, 1));
        let last = runs.after(TaskEnd::Succeeded { is_last: true, succeeded: 4 }, NOW);
        assert_eq!(last, after(TaskState::Succeeded, JobPhase::Completed, 0));
        let one = runs.after(TaskEnd::Succeeded { is_last: false, succeeded: 1 }, NOW);
        assert_eq!(one, after(TaskState::Succeeded, RUNS, 0));
        // A claim that ends is no eviction.
        let mut claims = facts(&spec, TaskState::Pipelined);
        claims.task.bound = None;
        assert_eq!(claims.after(TaskEnd::Lost, NOW), after(TaskState::Pending, RUNS, 0));
    }

    #[test]
    fn a_job_fails_when_it_was_restarted_as_often_as_it_may_be() {
        for action in [PolicyAction::RestartTask, PolicyAction::RestartJob] {
            let mut spec = job(Vec::new(), vec![policy(&[TaskEvent::Any], action, None)]);
            spec.max_retry = 2;
            let runs = |restarts| Facts { restarts, ..facts(&spec, TaskState::Running) };
            let phase = if action == PolicyAction::RestartJob { JobPhase::Restarting } else { RUNS };
            let failed = TaskEnd::Failed(None);
            assert_eq!(runs(1).after(failed, NOW), after(TaskState::Pending, phase, 2));
            assert_eq!(runs(2).after(failed, NOW), after(TaskState::Failed, JobPhase::Failed, 2));
            // A task that is evicted waits again anyway.
            let lost = runs(2).after(TaskEnd::Lost, NOW);
            if action == PolicyAction::RestartTask {
                assert_eq!(lost, after(TaskState::Pending, RUNS, 2));
            } else {
                assert_eq!(lost, after(TaskState::Failed, JobPhase::Failed, 2));
            }
        }
    }

    #[test]
    fn a_direct_placement_that_is_lost_is_over() {
        let request = PlacementRequest::new(Demand::default(), Policy::BestFit);
        let spec = JobSpec::direct(request, crate::jobs::QueueId::ROOT, 0, Time(1));
        for state in [TaskState::Allocated, TaskState::Bound, TaskState::Releasing] {
            assert_eq!(facts(&spec, state).after(TaskEnd::Lost, NOW), after(TaskState::Failed, RUNS, 0));
        }
        // Only its claim is gone. It waits for another place.
        let claimed = facts(&spec, TaskState::Pipelined).after(TaskEnd::Lost, NOW);
        assert_eq!(claimed, after(TaskState::Pending, RUNS, 0));
    }

    #[test]
    fn a_job_that_restarts_reacts_to_nothing() {
        let spec = job(Vec::new(), vec![policy(&[TaskEvent::Any], PolicyAction::AbortJob, None)]);
        let restarts =
            Facts { phase: JobPhase::Restarting, restarts: 1, ..facts(&spec, TaskState::Releasing) };
        for end in
            [TaskEnd::Lost, TaskEnd::Failed(Some(1)), TaskEnd::Succeeded { is_last: true, succeeded: 4 }]
        {
            assert_eq!(restarts.after(end, NOW), after(TaskState::Pending, JobPhase::Restarting, 1));
        }
    }

    #[test]
    fn a_job_is_completed_if_enough_of_its_tasks_have_succeeded() {
        let mut spec = job(Vec::new(), Vec::new());
        assert_eq!(phase_of_ended(&spec, 0, |_| 0), JobPhase::Completed);
        spec.min_member = 3;
        assert_eq!(phase_of_ended(&spec, 2, |_| 2), JobPhase::Failed);
        assert_eq!(phase_of_ended(&spec, 3, |_| 3), JobPhase::Completed);
        spec.roles =
            vec![Role { name: Arc::from("a"), min_member: 1 }, Role { name: Arc::from("b"), min_member: 2 }];
        assert_eq!(phase_of_ended(&spec, 3, |role| [0, 3][role]), JobPhase::Failed);
        assert_eq!(phase_of_ended(&spec, 3, |role| [1, 2][role]), JobPhase::Completed);
        // The roles need more than the job does, so they do not count.
        spec.min_member = 2;
        assert_eq!(phase_of_ended(&spec, 3, |role| [0, 3][role]), JobPhase::Completed);
    }

    #[test]
    fn a_policy_with_a_timeout_does_later_what_it_would_do_at_once() {
        use PolicyAction::{AbortJob, CompleteJob, RestartJob, RestartTask};
        for action in [RestartTask, RestartJob, CompleteJob, AbortJob] {
            let at_once = policy(&[TaskEvent::Failed], action, None);
            let later = JobPolicy { timeout_ns: Some(50), ..at_once.clone() };
            for restarts in [0, 3] {
                let spec = job(Vec::new(), vec![later.clone()]);
                let runs = Facts { restarts, ..facts(&spec, TaskState::Running) };
                let failed = runs.after(TaskEnd::Failed(None), NOW);
                let delayed = Some(Delayed { due: Time(250), action });
                assert_eq!(failed, After { delayed, ..after(TaskState::Failed, RUNS, restarts) });
                let waits = Facts {
                    restarts,
                    task: TaskRecord { delayed, ..TaskRecord::without_node(TaskState::Failed, NOW) },
                    ..facts(&spec, TaskState::Failed)
                };
                let then = waits.after_delay();
                let spec = job(Vec::new(), vec![at_once.clone()]);
                let runs = Facts { restarts, ..facts(&spec, TaskState::Running) };
                let now = runs.after(TaskEnd::Failed(None), NOW);
                assert_eq!((then.phase, then.restarts, then.delayed), (now.phase, now.restarts, None));
                // Of a job that restarts, each task follows the phase.
                let state = if action == RestartJob { TaskState::Failed } else { now.state };
                assert_eq!(then.state, state);
                let over = Facts { phase: JobPhase::Cancelled, ..waits };
                assert_eq!(over.after_delay(), after(TaskState::Failed, JobPhase::Cancelled, restarts));
            }
        }
        // A task that is pending again anyway is not restarted later.
        let later = JobPolicy { timeout_ns: Some(50), ..policy(&[TaskEvent::Any], RestartTask, None) };
        let spec = job(Vec::new(), vec![later]);
        let lost = facts(&spec, TaskState::Running).after(TaskEnd::Lost, NOW);
        assert_eq!(lost, after(TaskState::Pending, RUNS, 0));
    }

    #[test]
    fn a_job_is_completed_once_enough_of_its_tasks_have_succeeded() {
        let one = |succeeded| TaskEnd::Succeeded { is_last: succeeded == 4, succeeded };
        let spec = JobSpec { min_success: Some(2), min_member: 4, ..job(Vec::new(), Vec::new()) };
        let runs = facts(&spec, TaskState::Running);
        assert_eq!(runs.after(one(1), NOW), after(TaskState::Succeeded, RUNS, 0));
        assert_eq!(runs.after(one(2), NOW), after(TaskState::Succeeded, JobPhase::Completed, 0));
        assert_eq!(phase_of_ended(&spec, 1, |_| 1), JobPhase::Failed);
        assert_eq!(phase_of_ended(&spec, 2, |_| 2), JobPhase::Completed, "fewer than it needs at once");
        // What a policy decides at once counts more, and what it would decide later does not.
        let again = policy(&[TaskEvent::Completed], PolicyAction::RestartJob, None);
        let spec = JobSpec { policies: vec![again.clone()], ..spec };
        let after_all = |spec: &JobSpec| facts(spec, TaskState::Running).after(one(4), NOW);
        assert_eq!(after_all(&spec), after(TaskState::Pending, JobPhase::Restarting, 1));
        let later = JobPolicy { timeout_ns: Some(1), ..again };
        let spec = JobSpec { policies: vec![later], ..spec };
        assert_eq!(after_all(&spec), after(TaskState::Succeeded, JobPhase::Completed, 0));
    }
}
