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
//! | `client`, `script` | clients: their requests, and the promises they received |
//! | `coordinator` | statements over several shards, and coordinators that crash |
//! | `gangs` | placement groups, and submitted statements, sent to planners |
//! | `follower` | a client that follows changes |
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
mod network;
mod quiet;
mod registrar;
mod script;
mod server;
pub mod trace;
mod world;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use choices::Choices;
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
    /// Gives planners small budgets in some runs, so that rounds leave work over and searches are given up.
    pub small_budgets: bool,
    /// Keeps the durable state of each stop.
    pub keeps_stops: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            steps: STEPS_DEFAULT,
            keeps_text: false,
            groups: true,
            small_budgets: true,
            keeps_stops: false,
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// The finding and the step at which it occurred, or `None`.
    pub found: Option<(u64, String)>,
}

/// Runs the world of `seed`.
#[must_use]
pub fn run_seed(seed: u64, settings: Settings) -> Report {
    run(Choices::seeded(seed), settings)
}

/// Runs the world whose choices are `bytes`.
#[must_use]
pub fn run_given(bytes: &[u8], settings: Settings) -> Report {
    run(Choices::Given(bytes), settings)
}

/// Returns the command that replays a seed.
#[must_use]
pub fn replay_command(seed: u64) -> String {
    format!("WHARF_SIM_SEED={seed} cargo test -p wharf-fuzz --test simulation replay -- --nocapture")
}

fn run(choices: Choices<'_>, settings: Settings) -> Report {
    let world = Cell::new(None);
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let mut at = World::new(choices, settings);
        let verdict = catch_unwind(AssertUnwindSafe(|| drive(&mut at, settings.steps)));
        let verdict = verdict.unwrap_or_else(|panic| Err(format!("a panic: {}", message(&*panic))));
        world.set(Some((
            at.trace.hash(),
            at.trace.step(),
            at.granted(),
            at.trace.take_text(),
            at.stops.take(),
        )));
        verdict
    }));
    let verdict = ran.unwrap_or_else(|panic| Err(format!("a panic at the start: {}", message(&*panic))));
    let (hash, steps, grants, text, stops) = world.take().unwrap_or_default();
    let stops = stops.unwrap_or_default();
    Report { hash, steps, grants, text, stops, found: verdict.err().map(|found| (steps, found)) }
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
