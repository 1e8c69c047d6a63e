//! What becomes of a task whose allocation or claim has ended: one rule for a running service, for scenarios and for a
//! recovery.

use super::{JobPhase, TaskRecord, TaskState};

/// What the rule looks at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// The phase of its job.
    pub(super) phase: JobPhase,
    /// How long the task may run, in ns.
    pub(super) run_time_ns: Option<u64>,
    /// The task as it was.
    pub(super) task: TaskRecord,
}

impl Facts {
    /// Returns the state of a task whose allocation has ended, and of which nobody has reported an end.
    ///
    /// It is pending again, unless its job was cancelled or its run time was over.
    pub(super) fn after_loss(&self) -> TaskState {
        let is_over = self.phase == JobPhase::Cancelled || self.has_overrun();
        if is_over { TaskState::Failed } else { TaskState::Pending }
    }

    /// Returns whether the task is in its grace period because its run time is over. It would overrun again.
    fn has_overrun(&self) -> bool {
        let Self { task, run_time_ns, .. } = self;
        let end = task.bound.zip(*run_time_ns).map(|(bound, run)| bound.plus_nanos(run));
        task.state == TaskState::Releasing && end.is_some_and(|end| end <= task.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;

    /// Returns the facts of a task that was bound at 100 and is in `state` since 160.
    fn facts(state: TaskState, run_time_ns: Option<u64>) -> Facts {
        let task = TaskRecord { bound: Some(Time(100)), ..TaskRecord::without_node(state, Time(160)) };
        Facts { phase: JobPhase::Running, run_time_ns, task }
    }

    #[test]
    fn a_lost_task_waits_again_unless_its_time_or_its_job_is_over() {
        for state in [TaskState::Running, TaskState::Releasing, TaskState::Pipelined] {
            assert_eq!(facts(state, None).after_loss(), TaskState::Pending);
            let cancelled = Facts { phase: JobPhase::Cancelled, ..facts(state, None) };
            assert_eq!(cancelled.after_loss(), TaskState::Failed);
        }
        // It was evicted at 160.
        for (run_time_ns, after) in
            [(59, TaskState::Failed), (60, TaskState::Failed), (61, TaskState::Pending)]
        {
            assert_eq!(facts(TaskState::Releasing, Some(run_time_ns)).after_loss(), after, "{run_time_ns}");
        }
        // Its node is gone before anything evicted it.
        assert_eq!(facts(TaskState::Running, Some(60)).after_loss(), TaskState::Pending);
    }
}
