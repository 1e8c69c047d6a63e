//! Policies: what a job does when one of its tasks fails, is evicted, or when a group of them has succeeded (Volcano's
//! `LifecyclePolicy`).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{JobError, JobSpec};
use crate::limits::{JOB_MAX_RETRY_MAX, JOB_POLICIES_MAX};
use crate::time::Time;

/// What a policy reacts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskEvent {
    /// A task has failed: as was reported, or because its run time was over (Volcano's `PodFailed`).
    Failed,
    /// A task that was bound has lost its allocation, without a report of an end (Volcano's `PodEvicted`).
    Evicted,
    /// All tasks of a task group have succeeded (Volcano's `TaskCompleted`).
    Completed,
    /// Any of these.
    Any,
}

impl TaskEvent {
    /// All events.
    pub const ALL: [Self; 4] = [Self::Failed, Self::Evicted, Self::Completed, Self::Any];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed => "task_failed",
            Self::Evicted => "task_evicted",
            Self::Completed => "task_completed",
            Self::Any => "any",
        }
    }
}

/// A text that is not the name of an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no event `{text}`: give task_failed, task_evicted, task_completed or any")]
pub struct ParseTaskEventError {
    /// The given text.
    pub text: String,
}

impl FromStr for TaskEvent {
    type Err = ParseTaskEventError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|event| event.name() == text);
        let any = (text == "*").then_some(Self::Any);
        named.or(any).ok_or_else(|| ParseTaskEventError { text: text.to_owned() })
    }
}

/// What a policy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyAction {
    /// The task that failed is pending again.
    RestartTask,
    /// All tasks of the job end, and are pending again once the last one has ended.
    RestartJob,
    /// All other tasks end, and the job is completed.
    CompleteJob,
    /// All other tasks end, and the job is aborted.
    AbortJob,
}

impl PolicyAction {
    /// All actions.
    pub const ALL: [Self; 4] = [Self::RestartTask, Self::RestartJob, Self::CompleteJob, Self::AbortJob];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RestartTask => "restart_task",
            Self::RestartJob => "restart_job",
            Self::CompleteJob => "complete_job",
            Self::AbortJob => "abort_job",
        }
    }
}

/// A text that is not the name of an action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no action `{text}`: give restart_task, restart_job, complete_job or abort_job")]
pub struct ParsePolicyActionError {
    /// The given text.
    pub text: String,
}

impl FromStr for PolicyAction {
    type Err = ParsePolicyActionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|action| action.name() == text);
        named.ok_or_else(|| ParsePolicyActionError { text: text.to_owned() })
    }
}

/// What a job does when something becomes of its tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPolicy {
    /// To what it reacts. At least one.
    pub events: Vec<TaskEvent>,
    /// What it does.
    pub action: PolicyAction,
    /// Of failures, it reacts to those with this exit code only. Not 0. `None`: to all.
    pub exit_code: Option<i32>,
    /// How long the event must have lasted before it does that, in ns. At least 1. `None`: it does that at once.
    ///
    /// A failure and a success last as long as the task is in that state, and an eviction until the task is bound again.
    pub timeout_ns: Option<u64>,
}

/// What a policy does later, unless what it reacts to is over by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Delayed {
    /// When it does that.
    pub due: Time,
    /// What it does.
    pub action: PolicyAction,
}

/// What is wrong with a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyFault {
    /// It reacts to nothing.
    NoEvent,
    /// It waits for a failure with exit code 0.
    ExitCodeZero,
    /// It names an exit code, and does not react to failures.
    ExitCodeWithoutFailure,
    /// It restarts a task that has succeeded.
    RestartsCompleted,
    /// It waits for no time.
    NoTimeout,
}

impl fmt::Display for PolicyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoEvent => {
                "it names no event: give at least one of task_failed, task_evicted, task_completed and any"
            }
            Self::ExitCodeZero => "exit code 0 is no failure: give another one, or leave `exit_code` out",
            Self::ExitCodeWithoutFailure => {
                "it names an exit code and no failure: add the event task_failed, or leave `exit_code` out"
            }
            Self::RestartsCompleted => {
                "restart_task cannot restart what has succeeded: name other events, or give restart_job"
            }
            Self::NoTimeout => "it has a timeout of 0: give at least 1 ns, or leave `timeout` out",
        })
    }
}

/// A fault in a list of policies: the index of the policy and what is wrong. `None`: there are too many.
pub(super) type ListFault = Option<(u32, PolicyFault)>;

impl JobPolicy {
    fn check(&self) -> Result<(), PolicyFault> {
        let has = |event| self.events.contains(&event);
        if self.events.is_empty() {
            return Err(PolicyFault::NoEvent);
        }
        if self.exit_code == Some(0) {
            return Err(PolicyFault::ExitCodeZero);
        }
        if self.exit_code.is_some() && !has(TaskEvent::Failed) && !has(TaskEvent::Any) {
            return Err(PolicyFault::ExitCodeWithoutFailure);
        }
        if self.timeout_ns == Some(0) {
            return Err(PolicyFault::NoTimeout);
        }
        if self.action == PolicyAction::RestartTask && has(TaskEvent::Completed) {
            return Err(PolicyFault::RestartsCompleted);
        }
        Ok(())
    }

    /// Checks a list of policies.
    pub(super) fn check_all(policies: &[Self]) -> Result<(), ListFault> {
        if policies.len() > JOB_POLICIES_MAX {
            return Err(None);
        }
        for (index, policy) in (0..).zip(policies) {
            policy.check().map_err(|fault| Some((index, fault)))?;
        }
        Ok(())
    }

    /// Returns whether it reacts to an event. Of a failure, `exit_code` is what was reported.
    pub(super) fn reacts_to(&self, event: TaskEvent, exit_code: Option<i32>) -> bool {
        let is_named = self.events.iter().any(|&named| named == event || named == TaskEvent::Any);
        let fits = event != TaskEvent::Failed || self.exit_code.is_none() || self.exit_code == exit_code;
        is_named && fits
    }
}

/// Checks the policies of a job with so many tasks, and how many of these must succeed.
pub(super) fn check(spec: &JobSpec, tasks: u32) -> Result<(), JobError> {
    let job = || Arc::clone(&spec.name);
    if spec.max_retry > JOB_MAX_RETRY_MAX {
        return Err(JobError::MaxRetry { job: job(), max_retry: spec.max_retry });
    }
    if let Some(min_success) = spec.min_success.filter(|&least| least == 0 || least > tasks) {
        return Err(JobError::MinSuccess { job: job(), min_success, tasks });
    }
    let of_groups = (0..).zip(&spec.tasks).map(|(group, tasks)| (Some(group), &tasks.policies));
    for (group, policies) in std::iter::once((None, &spec.policies)).chain(of_groups) {
        JobPolicy::check_all(policies).map_err(|fault| match fault {
            Some((policy, fault)) => JobError::Policy { job: job(), group, policy, fault },
            None => JobError::TooManyPolicies { job: job(), group, policies: policies.len() },
        })?;
    }
    Ok(())
}
