//! What becomes of a task that has ended, and of its job: one rule for a running service, for scenarios and for a
//! recovery.

use super::{JobPhase, JobPolicy, JobSpec, PolicyAction, TaskEvent, TaskGroup, TaskRecord, TaskState};

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
}

impl Facts<'_> {
    /// Returns what becomes of the task and its job.
    ///
    /// Without policies, a task that is lost is pending again, unless its run time was over. Policies of the task group
    /// come before those of the job, and of each list the first that reacts decides.
    pub(super) fn after(&self, end: TaskEnd) -> After {
        if self.phase == JobPhase::Restarting {
            return self.becomes(TaskState::Pending);
        }
        let (event, state) = match end {
            TaskEnd::Succeeded { is_last } => (is_last.then_some(TaskEvent::Completed), TaskState::Succeeded),
            TaskEnd::Failed(_) => (Some(TaskEvent::Failed), TaskState::Failed),
            TaskEnd::Lost if self.has_overrun() => (Some(TaskEvent::Failed), TaskState::Failed),
            // A task that was never bound has done nothing that could be lost.
            TaskEnd::Lost => (self.task.bound.map(|_| TaskEvent::Evicted), TaskState::Pending),
        };
        // A direct placement is not placed again.
        if self.phase.is_end() || self.spec.is_direct {
            return self.becomes(ended(state));
        }
        let exit_code = if let TaskEnd::Failed(exit_code) = end { exit_code } else { None };
        match event.and_then(|event| self.action(event, exit_code)) {
            None => self.becomes(state),
            // It is pending again in any case, or has succeeded.
            Some(PolicyAction::RestartTask) if state != TaskState::Failed => self.becomes(state),
            Some(PolicyAction::RestartTask) => self.restarted(state, self.phase),
            Some(PolicyAction::RestartJob) => self.restarted(state, JobPhase::Restarting),
            Some(PolicyAction::CompleteJob) => self.ends(state, JobPhase::Completed),
            Some(PolicyAction::AbortJob) => self.ends(state, JobPhase::Aborted),
        }
    }

    fn becomes(&self, state: TaskState) -> After {
        After { state, phase: self.phase, restarts: self.restarts }
    }

    fn ends(&self, state: TaskState, phase: JobPhase) -> After {
        After { state: ended(state), phase, restarts: self.restarts }
    }

    /// Restarts the task, unless the job has been restarted as often as it may be.
    fn restarted(&self, state: TaskState, phase: JobPhase) -> After {
        if self.restarts >= self.spec.max_retry {
            return self.ends(state, JobPhase::Failed);
        }
        After { state: TaskState::Pending, phase, restarts: self.restarts + 1 }
    }

    fn action(&self, event: TaskEvent, exit_code: Option<i32>) -> Option<PolicyAction> {
        let mut policies = self.group.policies.iter().chain(&self.spec.policies);
        policies.find(|policy: &&JobPolicy| policy.reacts_to(event, exit_code)).map(|policy| policy.action)
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
/// As many are needed as for a start (Volcano's `minAvailable`).
pub(super) fn phase_of_ended(spec: &JobSpec, succeeded: u32, of_role: impl Fn(usize) -> u32) -> JobPhase {
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
        JobPolicy { events: events.to_vec(), action, exit_code }
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
        After { state, phase, restarts }
    }

    const RUNS: JobPhase = JobPhase::Running;

    #[test]
    fn a_lost_task_waits_again_unless_its_time_or_its_job_is_over() {
        let spec = job(Vec::new(), Vec::new());
        for state in [TaskState::Running, TaskState::Releasing, TaskState::Pipelined] {
            assert_eq!(facts(&spec, state).after(TaskEnd::Lost), after(TaskState::Pending, RUNS, 0));
            for phase in JobPhase::ALL.into_iter().filter(|phase| phase.is_end()) {
                let over = Facts { phase, ..facts(&spec, state) };
                assert_eq!(over.after(TaskEnd::Lost), after(TaskState::Failed, phase, 0));
                let last = TaskEnd::Succeeded { is_last: true };
                assert_eq!(over.after(last), after(TaskState::Succeeded, phase, 0));
            }
        }
        // It was evicted at 160.
        for (run_time_ns, state) in
            [(59, TaskState::Failed), (60, TaskState::Failed), (61, TaskState::Pending)]
        {
            let mut spec = job(Vec::new(), Vec::new());
            spec.tasks[0].run_time_ns = Some(run_time_ns);
            let lost = facts(&spec, TaskState::Releasing).after(TaskEnd::Lost);
            assert_eq!(lost, after(state, RUNS, 0), "{run_time_ns}");
            // Its node is gone before anything evicted it.
            let lost = facts(&spec, TaskState::Running).after(TaskEnd::Lost);
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
        let failed = |code| runs.after(TaskEnd::Failed(code));
        assert_eq!(failed(Some(3)), after(TaskState::Failed, JobPhase::Aborted, 0));
        assert_eq!(failed(Some(4)), after(TaskState::Pending, RUNS, 1));
        assert_eq!(failed(Some(5)), after(TaskState::Pending, JobPhase::Restarting, 1));
        assert_eq!(failed(None), after(TaskState::Pending, JobPhase::Restarting, 1));
        assert_eq!(runs.after(TaskEnd::Lost), after(TaskState::Pending, JobPhase::Restarting, 1));
        let last = runs.after(TaskEnd::Succeeded { is_last: true });
        assert_eq!(last, after(TaskState::Succeeded, JobPhase::Completed, 0));
        let one = runs.after(TaskEnd::Succeeded { is_last: false });
        assert_eq!(one, after(TaskState::Succeeded, RUNS, 0));
        // A claim that ends is no eviction.
        let mut claims = facts(&spec, TaskState::Pipelined);
        claims.task.bound = None;
        assert_eq!(claims.after(TaskEnd::Lost), after(TaskState::Pending, RUNS, 0));
    }

    #[test]
    fn a_job_fails_when_it_was_restarted_as_often_as_it_may_be() {
        for action in [PolicyAction::RestartTask, PolicyAction::RestartJob] {
            let mut spec = job(Vec::new(), vec![policy(&[TaskEvent::Any], action, None)]);
            spec.max_retry = 2;
            let runs = |restarts| Facts { restarts, ..facts(&spec, TaskState::Running) };
            let phase = if action == PolicyAction::RestartJob { JobPhase::Restarting } else { RUNS };
            let failed = TaskEnd::Failed(None);
            assert_eq!(runs(1).after(failed), after(TaskState::Pending, phase, 2));
            assert_eq!(runs(2).after(failed), after(TaskState::Failed, JobPhase::Failed, 2));
            // A task that is evicted waits again anyway.
            let lost = runs(2).after(TaskEnd::Lost);
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
        let spec = JobSpec::direct(request, crate::jobs::QueueId::ROOT, Time(1));
        for state in [TaskState::Allocated, TaskState::Bound, TaskState::Releasing] {
            assert_eq!(facts(&spec, state).after(TaskEnd::Lost), after(TaskState::Failed, RUNS, 0));
        }
    }

    #[test]
    fn a_job_that_restarts_reacts_to_nothing() {
        let spec = job(Vec::new(), vec![policy(&[TaskEvent::Any], PolicyAction::AbortJob, None)]);
        let restarts =
            Facts { phase: JobPhase::Restarting, restarts: 1, ..facts(&spec, TaskState::Releasing) };
        for end in [TaskEnd::Lost, TaskEnd::Failed(Some(1)), TaskEnd::Succeeded { is_last: true }] {
            assert_eq!(restarts.after(end), after(TaskState::Pending, JobPhase::Restarting, 1));
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
}
