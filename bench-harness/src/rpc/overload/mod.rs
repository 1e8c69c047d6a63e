//! `wharf-bench overload`: more requests than the engine can do.
//!
//! The service is a process of its own and is driven over QUIC. Every request is of a shape of its own, and the policy
//! weighs all nodes for each, so that the engine is the limit and not the load generator. All requests but those of the
//! closed loop have a deadline. What is counted are requests that were answered with a result within it, from when they
//! were due.
//!
//! | load | what is sent |
//! |---|---|
//! | `closed` | a closed loop, which shows the maximum |
//! | `open` | an open loop at a multiple of the maximum |
//! | `half` | a modest client and another one, together at half of the maximum |
//! | `greedy` | the same modest client, and another one that offers ten times the maximum |
//!
//! The time per request differs from second to second, by other work on the machine and by what the cluster holds. So each
//! load is measured in slices, with a slice of `closed` before and after each. The goodput of a slice is compared with these
//! two, and the median of all rounds counts. At the end the books are audited.

mod row;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use wharf_core::link::lock;
use wharf_core::request::Policy;

use super::drive::{ServiceLoad, close, connect};
use super::filled::{Filled, FilledOptions};
use super::offer::{Offer, Outcomes, Window, offer};
use super::plan::Callers;
use super::recorder::Times;
use super::work::{Answered, Mix};
use crate::engine::scenario::Kind;
use crate::engine::shapes::Shapes;
pub use row::{OverloadHeading, OverloadRow};

/// What a greedy client offers, as a multiple of the maximum.
const GREEDY: f64 = 10.0;
/// What the modest client offers, as a part of the maximum.
const MODEST: f64 = 0.1;
/// What the modest client and another one offer together, as a part of the maximum.
const HALF: f64 = 0.5;
/// The requests in flight of the closed loop, over all connections.
const CLOSED_IN_FLIGHT: usize = 256;
/// How the names of the shards' threads begin.
const SHARD_THREADS: &str = "wharf-shard-";
/// Connections that are no part of a load.
const OTHER_CONNECTIONS: u32 = 16;

/// The measurements.
#[derive(Clone, Debug)]
pub struct OverloadOptions {
    /// The number of shards.
    pub shards: u16,
    /// The number of nodes.
    pub nodes: u32,
    /// The policy of all places.
    pub policy: Policy,
    /// The connections of a client that offers much. The modest one has one.
    pub connections: usize,
    /// The time within which a request must be done.
    pub deadline: Duration,
    /// The time for which each load is measured.
    pub seconds: Duration,
    /// The time before each measurement.
    pub warm_up: Duration,
    /// The number of slices of each load.
    pub rounds: u32,
    /// The seed of nodes, requests and arrivals.
    pub seed: u64,
    /// The directory under which data directories are made.
    pub directory: PathBuf,
}

/// Measures all loads.
///
/// # Errors
/// When a process cannot start, an answer is wrong, or the books are not what was promised.
pub fn run_overload(options: &OverloadOptions) -> anyhow::Result<Vec<OverloadRow>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, measure(options))
}

/// A load that is compared with the maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Load {
    /// A client that offers this multiple of the maximum.
    Open(f64),
    /// A modest client and another one.
    Half,
    /// A modest client and a greedy one.
    Greedy,
}

/// The loads, in the order of their rows.
const LOADS: [Load; 5] = [Load::Open(1.0), Load::Open(2.0), Load::Open(GREEDY), Load::Half, Load::Greedy];

/// What was measured.
#[derive(Debug)]
struct Measured {
    /// All slices of `closed`.
    maximum: Outcomes,
    /// The rate of each.
    maxima: Vec<f64>,
    /// By load.
    loads: Vec<Slices>,
}

/// What was measured of a load.
#[derive(Debug)]
struct Slices {
    /// The outcomes of the modest client, if there is one.
    modest: Outcomes,
    /// The outcomes of the other one.
    other: Outcomes,
    /// The goodput of each slice, as a part of the maximum around it.
    ratios: Vec<f64>,
}

impl Slices {
    fn new() -> Self {
        Self { modest: Outcomes::new(), other: Outcomes::new(), ratios: Vec::new() }
    }

    /// Adds a slice. `around` is what `closed` did before and after it.
    fn add(&mut self, modest: Option<&Outcomes>, other: &Outcomes, around: &Outcomes) {
        let modest_goodput = modest.map_or(0.0, Outcomes::good_per_second);
        self.ratios.push((modest_goodput + other.good_per_second()) / around.good_per_second().max(1.0));
        if let Some(modest) = modest {
            self.modest.add(modest);
        }
        self.other.add(other);
    }
}

async fn measure(options: &OverloadOptions) -> anyhow::Result<Vec<OverloadRow>> {
    let filled = Filled::start(&FilledOptions {
        kind: Kind::AllDifferent,
        shapes: &Shapes::synthetic(options.seed),
        policy: options.policy,
        nodes: options.nodes,
        shards: options.shards,
        io_threads: None,
        handshakes_per_second: None,
        mode: crate::durability::Mode::MEMORY,
        connections: 2 * options.connections as u32 + OTHER_CONNECTIONS,
        seed: options.seed,
        directory: &options.directory,
        command: "overload",
    })
    .await?;
    let run = Run { options, filled: &filled };
    let loads = LOADS.iter().map(|_| Slices::new()).collect();
    let mut measured = Measured { maximum: Outcomes::new(), maxima: Vec::new(), loads };
    let mut before = run.closed().await?;
    measured.note_closed(&before);
    for round in 0..options.rounds {
        for (at, load) in LOADS.into_iter().enumerate() {
            let maximum = measured.maximum.good_per_second();
            let (modest, other) = run.offered(load, maximum, u64::from(round))?;
            let after = run.closed().await?;
            measured.note_closed(&after);
            let mut around = before;
            around.add(&after);
            measured.loads[at].add(modest.as_ref(), &other, &around);
            before = after;
        }
    }
    let client = filled.connect().await?;
    filled.audit(&client).await.context("after the last load")?;
    client.close().await;
    filled.stop()?;
    Ok(row::rows(options, &measured))
}

impl Measured {
    fn note_closed(&mut self, slice: &Outcomes) {
        self.maximum.add(slice);
        self.maxima.push(slice.good_per_second());
    }
}

/// A service with a full cluster, and what is asked of it.
struct Run<'a> {
    options: &'a OverloadOptions,
    filled: &'a Filled,
}

impl Run<'_> {
    /// Measures a slice of the maximum: a closed loop without deadlines.
    async fn closed(&self) -> anyhow::Result<Outcomes> {
        let connections = self.options.connections;
        let clients = connect(&self.filled.config, connections, 1).await?;
        let load = ServiceLoad {
            in_flight: (CLOSED_IN_FLIGHT / connections).max(1),
            mix: Mix::Pairs(1),
            callers: Callers::Lockstep,
            schedule: None,
            times: Times { warm_up: self.options.warm_up, measured: self.slice() },
        };
        let shards = self.time_shards(Instant::now() + self.options.warm_up);
        let answered = self.answered();
        let segment = self.filled.driver.drive(&clients, &load, self.filled.process()).await?;
        close(clients).await?;
        let outcomes = Outcomes { shard_seconds: joined(shards)?, ..Outcomes::of_segment(&segment) };
        Ok(Outcomes { answered: self.answered().since(answered), ..outcomes })
    }

    fn answered(&self) -> Answered {
        lock(&self.filled.driver.work).answered
    }

    /// Measures a slice of a load: the modest client, if there is one, and the other one.
    fn offered(&self, load: Load, maximum: f64, round: u64) -> anyhow::Result<(Option<Outcomes>, Outcomes)> {
        let offer = |multiple: f64| Offer {
            per_second: maximum * multiple,
            deadline: self.options.deadline,
            is_told: true,
            seed: self.options.seed.wrapping_add(round),
        };
        let answered = self.answered();
        let (modest, other) = match load {
            Load::Open(multiple) => (None, self.open(offer(multiple))?),
            Load::Half => self.together(offer(MODEST), offer(HALF - MODEST))?,
            Load::Greedy => self.together(offer(MODEST), offer(GREEDY))?,
        };
        Ok((modest, Outcomes { answered: self.answered().since(answered), ..other }))
    }

    /// Takes the processor time of the shards' threads from `begin` on, for one slice: per thread, in seconds.
    fn time_shards(&self, begin: Instant) -> JoinHandle<anyhow::Result<f64>> {
        let process = self.filled.process();
        let slice = self.slice();
        std::thread::spawn(move || {
            std::thread::sleep(begin.saturating_duration_since(Instant::now()));
            let (before, _) = process.cpu_seconds_of(SHARD_THREADS)?;
            std::thread::sleep((begin + slice).saturating_duration_since(Instant::now()));
            let (after, threads) = process.cpu_seconds_of(SHARD_THREADS)?;
            anyhow::ensure!(threads > 0, "no thread of the service is named {SHARD_THREADS}");
            Ok((after - before) / threads as f64)
        })
    }

    /// Returns the time of a slice.
    fn slice(&self) -> Duration {
        self.options.seconds / self.options.rounds
    }

    /// Returns the window of a load that begins now, and when it is measured from.
    fn window(&self) -> (Arc<Window>, Instant) {
        let window = Arc::<Window>::default();
        let begin = Instant::now() + self.options.warm_up;
        window.set(begin, self.slice());
        (window, begin)
    }

    fn open(&self, load: Offer) -> anyhow::Result<Outcomes> {
        let Filled { config, driver, .. } = self.filled;
        let (window, begin) = self.window();
        let shards = self.time_shards(begin);
        let outcomes = offer(config, driver, load, self.options.connections, &window).join()?;
        Ok(Outcomes { shard_seconds: joined(shards)?, ..outcomes })
    }

    /// Measures a modest client together with another one. Each has a thread, so that neither waits for the other here.
    fn together(&self, modest: Offer, other: Offer) -> anyhow::Result<(Option<Outcomes>, Outcomes)> {
        let Filled { config, driver, .. } = self.filled;
        let (window, begin) = self.window();
        let shards = self.time_shards(begin);
        let modest = offer(config, driver, modest, 1, &window);
        let other = offer(config, driver, other, self.options.connections, &window);
        let modest = modest.join()?;
        Ok((Some(modest), Outcomes { shard_seconds: joined(shards)?, ..other.join()? }))
    }
}

/// Waits for a thread that times the shards.
fn joined(thread: JoinHandle<anyhow::Result<f64>>) -> anyhow::Result<f64> {
    thread.join().map_err(|_| anyhow::anyhow!("a thread that times the shards panicked"))?
}
