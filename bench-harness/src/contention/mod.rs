//! `wharf-bench contention`: several planners over shared shards, as Omega's figures of several schedulers
//! over one cell (Schwarzkopf, Konwinski, Abd-El-Malek, Wilkes: "Omega: flexible, scalable schedulers for
//! large compute clusters", EuroSys 2013, sections 4.3 and 5.2).
//!
//! The simulator's table is a discrete-event run in one thread and in virtual time, so that it does not
//! measure how a machine slices time: a planner *decides* for `decision_ms` per job and `task_ms` per task,
//! on a private replica that it brought up to date when it began; then it commits, and meets what
//! others did meanwhile. What plans, checks and applies is the production code of shards, views, replicas and
//! statements; what is modelled is the planner's time alone. The table of real threads
//! ([`real`]) is the engine's own planners, as they are.
//!
//! | module | what stands there |
//! |---|---|
//! | [`cell`] | shards, their nodes, what runs there, and the commit of a statement |
//! | [`run`] | arrivals, planners and their decisions in virtual time |
//! | [`real`] | the same question to the engine's planners on threads |

pub mod cell;
pub mod real;
pub mod run;

use serde::Serialize;
use wharf_core::statement::{CommitMode, ConflictDetection};

/// What the cell is, whoever plans on it.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Nodes in all, equal ones.
    pub nodes: u32,
    /// Shards over which they are spread.
    pub shards: u16,
    /// How much of the cell's cpu is taken from the beginning to the end, in percent: for what comes,
    /// as much ends.
    pub full_percent: u8,
    /// How long it runs, in seconds of virtual time.
    pub seconds: u32,
    /// Of everything drawn.
    pub seed: u64,
}

/// One row's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Planners.
    pub planners: u16,
    /// What counts as a conflict.
    pub conflict_detection: ConflictDetection,
    /// What becomes of a statement of which a part conflicts.
    pub mode: CommitMode,
    /// Decision time per job (and attempt), in ms.
    pub decision_ms: u32,
    /// Decision time per task that is planned, in ms.
    pub task_ms: u32,
    /// Jobs that arrive a second, over all planners.
    pub load: u32,
}

/// One row's answer. A job is committed by one or more statements, one after the other: its attempts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Planners.
    pub planners: u16,
    /// `fine`: an operation that is not possible any more conflicts; `coarse`: a node that changed does.
    pub conflict_detection: &'static str,
    /// `all-or-nothing`: the whole is planned anew; `incremental`: the rest is.
    pub mode: &'static str,
    /// Decision time per job, in ms.
    pub decision_ms: u32,
    /// Decision time per task, in ms.
    pub task_ms: u32,
    /// Jobs that arrive a second, over all planners.
    pub load: u32,
    /// Attempts in which something conflicted, per job that was committed (Omega's conflict fraction: 3 means
    /// four attempts).
    pub conflict_fraction: f64,
    /// Of the operations that were sent to shards, the part that was not granted.
    pub wasted_fraction: f64,
    /// Attempts per job that was committed.
    pub attempts_per_statement: f64,
    /// The part of the time that planners decide, the mean of all.
    pub busyness: f64,
    /// Jobs that were committed as a whole, per second of virtual time.
    pub statements_per_second: f64,
    /// Jobs that waited for a planner or were being decided at the end.
    pub waiting: u64,
    /// Jobs that were given up after [`run::ATTEMPTS_MAX`] attempts.
    pub given_up: u64,
}

/// What rows call a conflict_detection.
#[must_use]
pub fn granularity_name(conflict_detection: ConflictDetection) -> &'static str {
    match conflict_detection {
        ConflictDetection::Fine => "fine",
        ConflictDetection::Coarse => "coarse",
    }
}

/// What rows call a commit mode.
#[must_use]
pub fn mode_name(mode: CommitMode) -> &'static str {
    match mode {
        CommitMode::AllOrNothing => "all-or-nothing",
        CommitMode::Incremental => "incremental",
    }
}
