//! The states of tasks and jobs.

/// The state of a task (Volcano's `TaskStatus`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskState {
    /// It waits for a node.
    Pending,
    /// It has a node, but its job has not yet as many tasks as it needs.
    Allocated,
    /// It has a claim on capacity that is being released.
    Pipelined,
    /// Its job has what it needs. The control plane is told where it runs.
    Binding,
    /// The control plane has bound it to its node.
    Bound,
    /// It runs.
    Running,
    /// It was evicted and is in its grace period.
    Releasing,
    /// It ended well.
    Succeeded,
    /// It ended with an error.
    Failed,
    /// Its node does not answer.
    Unknown,
}

impl TaskState {
    /// All states.
    pub const ALL: [Self; 10] = [
        Self::Pending,
        Self::Allocated,
        Self::Pipelined,
        Self::Binding,
        Self::Bound,
        Self::Running,
        Self::Releasing,
        Self::Succeeded,
        Self::Failed,
        Self::Unknown,
    ];

    /// Returns the state as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns whether a task in this state has capacity of its node that it keeps.
    #[must_use]
    pub const fn holds(self) -> bool {
        matches!(self, Self::Allocated | Self::Binding | Self::Bound | Self::Running)
    }

    /// Returns whether a task in this state has ended.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// Returns whether a task in this state has a node and keeps it.
    #[must_use]
    pub const fn keeps_node(self) -> bool {
        self.holds() || matches!(self, Self::Pipelined)
    }

    /// Returns whether a task in this state has a node.
    #[must_use]
    pub const fn has_node(self) -> bool {
        self.keeps_node() || matches!(self, Self::Releasing)
    }

    /// Returns whether the job of a task in this state has what it needs, so that its run time is being counted.
    #[must_use]
    pub const fn is_bound(self) -> bool {
        matches!(self, Self::Binding | Self::Bound | Self::Running)
    }

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Allocated => "allocated",
            Self::Pipelined => "pipelined",
            Self::Binding => "binding",
            Self::Bound => "bound",
            Self::Running => "running",
            Self::Releasing => "releasing",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// The phase of a job (Volcano's `PodGroupPhase`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobPhase {
    /// Its queue has not admitted it. None of its tasks is placed.
    Pending,
    /// Its queue has admitted it. Its tasks may be placed.
    Inqueue,
    /// As many of its tasks as it needs have nodes.
    Running,
    /// All of its tasks have ended, and as many have succeeded as it needs. Or a policy has completed it: its other tasks
    /// have ended, or end after their grace period.
    Completed,
    /// It was cancelled. Its tasks have ended, or end after their grace period.
    Cancelled,
    /// A policy restarts it. None of its tasks is placed until all of them have ended.
    Restarting,
    /// A policy has aborted it. Its tasks have ended, or end after their grace period.
    Aborted,
    /// All of its tasks have ended, and too few have succeeded. Or it was restarted as often as it may be: its other tasks
    /// have ended, or end after their grace period.
    Failed,
}

impl JobPhase {
    /// All phases.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Inqueue,
        Self::Running,
        Self::Completed,
        Self::Cancelled,
        Self::Restarting,
        Self::Aborted,
        Self::Failed,
    ];

    /// Returns whether its tasks have ended, or are about to.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Completed | Self::Cancelled | Self::Aborted | Self::Failed)
    }

    /// Returns whether its pending tasks may be placed. A job that is over has none.
    #[must_use]
    pub const fn is_admitted(self) -> bool {
        !matches!(self, Self::Pending | Self::Restarting)
    }

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Inqueue => "inqueue",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Restarting => "restarting",
            Self::Aborted => "aborted",
            Self::Failed => "failed",
        }
    }
}
