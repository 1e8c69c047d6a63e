//! The simulator: a deterministic world in one thread with virtual time, made of the production code.
//!
//! A run is a function of its choices alone: of a seed, or of the bytes of a fuzzer. First a phase with
//! faults, in which every step is checked; then a phase without, at the end of which everything that
//! can be answered is answered and all is quiet. The same seed on the same commit gives the same
//! [trace](trace::Trace), byte for byte; a failure says the command that replays it.
//!
//! | module | what stands there |
//! |---|---|
//! | [`choices`] | where the choices come from |
//! | [`trace`] | what happened |
//! | [`facts`] | what checkers look at |
//! | [`checkers`] | the invariants, each with a checker of its own |
//! | `world` | the engine and everything around it, one step at a time |
//! | `server`, `registrar` | connections, without their sockets; the registrar of production |
//! | `client`, `script` | clients: what they ask, and what they were promised |
//! | `coordinator` | statements over several shards, and coordinators that die |
//! | `gangs` | placement groups, and statements of others, asked of the planners |
//! | `follower` | somebody who follows changes |
//! | `network` | messages under way |
//! | `quiet` | the phase without faults |
//!
//! Sources: TigerBeetle's VOPR and openraft's simulator for the form; the invariants are those of
//! ARCHITECTURE.md.

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

/// Steps with faults of one run, unless told otherwise.
pub const STEPS_DEFAULT: u64 = 800;

/// How a run is made.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Steps of the phase with faults.
    pub steps: u64,
    /// Whether the text of the trace is kept.
    pub keeps_text: bool,
    /// Whether groups are asked of planners.
    pub groups: bool,
    /// Whether planners have small budgets in some runs, so that rounds leave work over and searches are given up.
    pub small_budgets: bool,
    /// Whether the durable state of each stop is kept.
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

/// What a run was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Of the trace: the same for the same run.
    pub hash: StateHash,
    /// Steps in all.
    pub steps: u64,
    /// Placements that were granted.
    pub grants: u64,
    /// The trace, where it was to be kept.
    pub text: Option<String>,
    /// The durable state of each stop, where it was to be kept.
    pub stops: Vec<StoreState>,
    /// What was found, and at which step; nothing is well.
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

/// The command that replays a seed.
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
