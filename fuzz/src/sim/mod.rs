//! The simulator: a deterministic world in one thread with virtual time, built from the production code.
//!
//! A run depends only on its choices, which come from a seed or from the bytes of a fuzzer. In the first phase
//! faults occur, and every step is checked. The second phase has no faults. At its end, every request that can
//! be answered is answered and nothing is pending. The same seed on the same commit gives the same
//! [trace](trace::Trace), byte for byte. A failure prints the command that replays it.
//!
//! | module | content |
//! |---|---|
//! | [`choices`] | the source of choices |
//! | [`trace`] | the record of a run |
//! | [`facts`] | the data that checkers examine |
//! | [`checkers`] | the invariants, each with its own checker |
//! | `world` | the engine and everything around it, one step at a time |
//! | `server` | the I/O threads of production without sockets, and the oracle of their sessions |
//! | `registrar` | the registrar of production |
//! | `journal` | the writer and the checkpointer of production, over a disk that fails |
//! | `client`, `script` | clients: their requests, and the promises they received |
//! | `coordinator` | statements over several shards, and coordinators that crash |
//! | `gangs` | placement groups, and submitted statements, sent to planners |
//! | `follower` | a client that follows changes |
//! | [`power`] | power loss at any moment of a recorded start |
//! | `network` | messages in flight |
//! | `quiet` | the phase without faults |
//!
//! Sources: TigerBeetle's VOPR and openraft's simulator for the form; ARCHITECTURE.md for the invariants.

pub mod checkers;
pub mod choices;
mod client;
mod coordinator;
pub mod facts;
mod follower;
mod gangs;
mod journal;
mod network;
pub mod power;
mod quiet;
mod registrar;
mod script;
mod server;
pub mod trace;
mod world;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use choices::Choices;
pub use journal::{Books, Life, Span, Stage};
use wharf_core::cycle::Backfill;
use wharf_core::hash::StateHash;
use wharf_core::state::StoreState;
use world::World;

/// The default number of steps with faults in one run.
pub const STEPS_DEFAULT: u64 = 800;

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The number of steps in the phase with faults.
    pub steps: u64,
    /// Keeps the text of the trace.
    pub keeps_text: bool,
    /// Includes groups, which are requested from planners.
    pub groups: bool,
    /// Includes queues and jobs in a quarter of the runs: in half of those with a journal, and in some others.
    pub jobs: bool,
    /// Gives planners small budgets in some runs, so that rounds leave work over and searches are given up.
    pub small_budgets: bool,
    /// Keeps the durable state of each stop.
    pub keeps_stops: bool,
    /// Which runs have a journal.
    pub journal: Journaling,
    /// Keeps everything that each start with a journal did to its disk.
    pub keeps_lives: bool,
}

/// Which runs have a journal, and crash. Without one, a run has only clean stops, and takes half of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journaling {
    /// None.
    Never,
    /// Those of every fourth seed.
    Sometimes,
    /// All.
    Always,
}

impl Settings {
    /// Returns whether the run of a seed has a journal, and whether it has jobs.
    fn contents(&self, seed: u64) -> Contents {
        // In one of two blocks of 96 seeds, some runs with jobs have other rules.
        let has_others = (seed / 96).is_multiple_of(2);
        let sharing = match seed % 48 {
            32.. if has_others => Sharing::Given,
            32.. => Sharing::Deserved,
            16..32 if has_others => Sharing::Starved,
            _ if seed % 16 < 8 => Sharing::Jobs,
            _ => Sharing::Queues,
        };
        let backfill = match seed / 8 % 5 {
            3 => Backfill::Easy,
            4 => Backfill::Conservative,
            _ => Backfill::None,
        };
        let has_jobs = self.jobs && matches!(seed % 8, 3 | 4);
        let best_effort = seed % 32 >= 16;
        let objects = seed / 192 % 2 == 1;
        let rules = JobRules { sharing, backfill, best_effort, objects };
        Contents { journal: self.journal.has(seed), jobs: has_jobs.then_some(rules) }
    }
}

/// What a run has in addition to nodes and clients.
#[derive(Clone, Copy, Debug)]
struct Contents {
    journal: bool,
    jobs: Option<JobRules>,
}

/// What queues and jobs are like, in a run that has them.
#[derive(Clone, Copy, Debug)]
struct JobRules {
    sharing: Sharing,
    /// Which jobs get dated reservations. With any, tasks state run times.
    backfill: Backfill,
    /// Some tasks of jobs ask for nothing.
    best_effort: bool,
    /// Objects say in which domains of the topology nodes are, and no labels by themselves.
    objects: bool,
}

/// Between whom shares are fair, in a run with jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// Between jobs (Dominant Resource Fairness).
    Jobs,
    /// Also between queues, along their tree.
    Queues,
    /// Between queues, by what they deserve, which others take from those that have more (Volcano's plugin `proportion`).
    Deserved,
    /// The same, by what each queue is given (Volcano's plugin `capacity`).
    Given,
    /// Between queues and jobs, by YARN's fair shares, for which jobs take from others after their patience.
    Starved,
}

impl Journaling {
    fn has(self, seed: u64) -> bool {
        self == Self::Always || self == Self::Sometimes && seed.is_multiple_of(4)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            steps: STEPS_DEFAULT,
            keeps_text: false,
            groups: true,
            jobs: true,
            small_budgets: true,
            keeps_stops: false,
            journal: Journaling::Sometimes,
            keeps_lives: false,
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The hash of the trace. Equal runs have equal hashes.
    pub hash: StateHash,
    /// The total number of steps.
    pub steps: u64,
    /// The number of placements that were granted.
    pub grants: u64,
    /// The text of the trace, if it was kept.
    pub text: Option<String>,
    /// The durable state of each stop, if it was kept.
    pub stops: Vec<StoreState>,
    /// The number of crashes.
    pub crashes: u64,
    /// The number of checkpoints that were completed.
    pub checkpoints: u64,
    /// What each start did to its disk, if it was kept.
    pub lives: Vec<Life>,
    /// The finding and the step at which it occurred, or `None`.
    pub found: Option<(u64, String)>,
}

/// Runs the world of `seed`.
#[must_use]
pub fn run_seed(seed: u64, settings: Settings) -> Report {
    run(Choices::seeded(seed), settings, settings.contents(seed))
}

/// Runs the world whose choices are `bytes`. The first one says whether it has a journal, and jobs.
#[must_use]
pub fn run_given(bytes: &[u8], settings: Settings) -> Report {
    let (first, rest) = bytes.split_first().unwrap_or((&1, &[]));
    run(Choices::Given(rest), settings, settings.contents(u64::from(*first)))
}

/// Returns the command that replays a seed.
#[must_use]
pub fn replay_command(seed: u64) -> String {
    format!("WHARF_SIM_SEED={seed} cargo test -p wharf-fuzz --test simulation replay -- --nocapture")
}

fn run(choices: Choices<'_>, settings: Settings, contents: Contents) -> Report {
    let report = Cell::new(None);
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let mut at = World::new(choices, settings, contents);
        let verdict = catch_unwind(AssertUnwindSafe(|| drive(&mut at, settings.steps)));
        let verdict = verdict.unwrap_or_else(|panic| Err(format!("a panic: {}", message(&*panic))));
        report.set(Some(at.report()));
        verdict
    }));
    let verdict = ran.unwrap_or_else(|panic| Err(format!("a panic at the start: {}", message(&*panic))));
    let report = report.take().unwrap_or_default();
    let found = verdict.err().map(|found| (report.steps, found));
    Report { found, ..report }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

fn drive(world: &mut World<'_>, steps: u64) -> checkers::Verdict {
    world.populate()?;
    for _ in 0..steps {
        if world.choices.is_spent() {
            break;
        }
        world.step()?;
    }
    quiet::settle(world)
}
