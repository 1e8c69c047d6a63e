//! `wharf-bench contention`: several planners over shared shards, like Omega's figures of several schedulers
//! over one cell (Schwarzkopf, Konwinski, Abd-El-Malek, Wilkes: "Omega: flexible, scalable schedulers for
//! large compute clusters", EuroSys 2013, sections 4.3 and 5.2).
//!
//! The simulator is a discrete-event run in one thread and in virtual time, so the result does not depend on
//! how the machine schedules threads. A planner *decides* for `decision_ms` per job and `task_ms` per task,
//! on a private replica that it synchronised when it began. Then it commits, and conflicts with what others
//! committed meanwhile. Planning, checks and commits are the production code of shards, views, replicas and
//! statements; only the planner's time is modelled. The table of real threads ([`real`]) uses the engine's
//! own planners.
//!
//! | module | contents |
//! |---|---|
//! | [`cell`] | shards, their nodes, running work, and the commit of a statement |
//! | [`run`] | arrivals, planners and their decisions in virtual time |
//! | [`real`] | the same measurement with the engine's planners on threads |

pub mod cell;
pub mod real;
pub mod run;

use serde::Serialize;
use wharf_core::statement::{CommitMode, ConflictDetection};

/// The settings of the cell, independent of the planners.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The number of nodes, all equal.
    pub nodes: u32,
    /// The number of shards that the nodes are spread over.
    pub shards: u16,
    /// The share of the cell's cpu in use throughout the run, in percent. When work is placed, as much
    /// running work ends.
    pub full_percent: u8,
    /// The duration of the run, in seconds of virtual time.
    pub seconds: u32,
    /// The seed of all random draws.
    pub seed: u64,
}

/// The parameters of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The number of planners.
    pub planners: u16,
    /// The rule for conflicts.
    pub conflict_detection: ConflictDetection,
    /// The handling of the rest of a statement with a conflict.
    pub mode: CommitMode,
    /// Decision time per attempt of a job, in ms.
    pub decision_ms: u32,
    /// Decision time per planned task, in ms.
    pub task_ms: u32,
    /// Jobs that arrive per second, over all planners.
    pub load: u32,
}

/// The result of one row. A job is committed by one or more statements, one after the other, called attempts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The number of planners.
    pub planners: u16,
    /// `fine`: an operation conflicts if it is no longer possible. `coarse`: it conflicts if its node has
    /// changed.
    pub conflict_detection: &'static str,
    /// `all-or-nothing`: the whole job is planned again; `incremental`: only the rest is.
    pub mode: &'static str,
    /// Decision time per job, in ms.
    pub decision_ms: u32,
    /// Decision time per task, in ms.
    pub task_ms: u32,
    /// Jobs that arrive per second, over all planners.
    pub load: u32,
    /// Attempts with a conflict, per committed job (Omega's conflict fraction: 3 means four attempts).
    pub conflict_fraction: f64,
    /// The share of operations sent to shards that were not granted.
    pub wasted_fraction: f64,
    /// Attempts per committed job.
    pub attempts_per_statement: f64,
    /// The share of time that planners spend deciding, averaged over all planners.
    pub busyness: f64,
    /// Fully committed jobs per second of virtual time.
    pub statements_per_second: f64,
    /// Jobs that were waiting for a planner or being decided at the end.
    pub waiting: u64,
    /// Jobs that were given up after [`run::ATTEMPTS_MAX`] attempts.
    pub given_up: u64,
}

/// Returns the name of a conflict detection in rows.
#[must_use]
pub fn detection_name(conflict_detection: ConflictDetection) -> &'static str {
    match conflict_detection {
        ConflictDetection::Fine => "fine",
        ConflictDetection::Coarse => "coarse",
    }
}

/// Returns the name of a commit mode in rows.
#[must_use]
pub fn mode_name(mode: CommitMode) -> &'static str {
    match mode {
        CommitMode::AllOrNothing => "all-or-nothing",
        CommitMode::Incremental => "incremental",
    }
}
