//! `wharf-bench scaling`: how many requests the engine decides by the number of its shards.
//!
//! Shards and drivers are threads of this process, each on a core of its own where there are enough. A driver has a
//! port, as an I/O thread of the service has. It keeps a window of places and releases in flight, in turns, at 85 %
//! utilisation.

mod driver;

use std::fmt;
use std::sync::{Arc, Barrier};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{ShardRunner, Unobserved};
use wharf_core::limits::PARTITIONS_DEFAULT;
use wharf_core::link::{Clock, StopSignal, ThreadWaker};
use wharf_core::node::NodeSpec;
use wharf_core::request::Policy;
use wharf_core::router::{Port, PortReply, PortRequest};
use wharf_core::shard::{Command, NodeChange, Outcome};
use wharf_core::state::StoreState;

use crate::engine::scenario::{Kind, Scenario};
use crate::engine::shapes::Shapes;
use crate::target::ReplayClock;
use driver::{Counts, Driver};

/// What to measure.
#[derive(Clone, Debug)]
pub struct ScalingOptions {
    /// The numbers of shards. Each is a row.
    pub shards: Vec<u16>,
    /// The number of drivers. `None`: as many as shards, but no more than cores are left, and at least one.
    pub drivers: Option<u16>,
    /// The number of nodes of all shards together.
    pub nodes: u32,
    /// The policy of all places.
    pub policy: Policy,
    /// The requests in flight per driver.
    pub in_flight: usize,
    /// The time for which each row is measured.
    pub seconds: Duration,
    /// The seed of nodes, requests and routing.
    pub seed: u64,
    /// The shapes of requests.
    pub shapes: Shapes,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct ScalingRow {
    /// The number of shards.
    pub shards: u16,
    /// The number of drivers.
    pub drivers: u16,
    /// Whether each shard and driver has a core of its own.
    pub pinned: bool,
    /// The number of nodes.
    pub nodes: u32,
    /// The policy of all places.
    pub policy: &'static str,
    /// The requests in flight per driver.
    pub in_flight: usize,
    /// Places and releases that were answered, per second.
    pub requests_per_second: f64,
    /// The rate as a multiple of that of the first row.
    pub speed_up: f64,
    /// The speed-up per shard, compared with the first row. 1: each shard decides as much as there.
    pub efficiency: f64,
    /// Places that a shard refused and another one was asked for, in percent of all places.
    pub spilled_percent: f64,
    /// Places that no node could hold, in percent of all places.
    pub refused_percent: f64,
}

impl ScalingRow {
    /// The heading of the table.
    pub const HEAD: &'static str =
        "shards  drivers  pinned    requests/s  speed-up  efficiency  spilled %  refused %";
}

impl fmt::Display for ScalingRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shards, drivers, pinned, requests_per_second, speed_up, efficiency, .. } = self;
        let Self { spilled_percent, refused_percent, .. } = self;
        let pinned = if *pinned { "yes" } else { "no" };
        write!(
            f,
            "{shards:>6}  {drivers:>7}  {pinned:>6}  {requests_per_second:>12.0}  {speed_up:>8.2}  \
             {efficiency:>10.2}  {spilled_percent:>9.2}  {refused_percent:>9.2}"
        )
    }
}

/// Measures all rows. `each` is called with every finished row.
///
/// # Errors
/// When an engine cannot be opened, an answer is wrong, or the books at the end are not what was promised.
pub fn run(options: &ScalingOptions, mut each: impl FnMut(&ScalingRow)) -> anyhow::Result<Vec<ScalingRow>> {
    let scenario =
        Arc::new(Kind::Steady.scenario(options.nodes, options.policy, &options.shapes, options.seed));
    let mut rows: Vec<ScalingRow> = Vec::new();
    for &shards in &options.shards {
        let mut row = measure(options, &scenario, shards).with_context(|| format!("{shards} shards"))?;
        let (first_rate, first_shards) = rows
            .first()
            .map_or((row.requests_per_second, shards), |first| (first.requests_per_second, first.shards));
        row.speed_up = row.requests_per_second / first_rate;
        row.efficiency = row.speed_up * f64::from(first_shards) / f64::from(shards);
        each(&row);
        rows.push(row);
    }
    Ok(rows)
}

/// The threads of shards. They end with this.
struct ShardThreads {
    stop: StopSignal,
    threads: Vec<JoinHandle<()>>,
}

impl ShardThreads {
    fn start(
        runners: Vec<ShardRunner>,
        stop: StopSignal,
        clock: &ReplayClock,
        pinned: bool,
    ) -> anyhow::Result<Self> {
        let mut started = Self { stop, threads: Vec::new() };
        for runner in runners {
            let clock = clock.clone();
            let number = runner.id().0;
            let thread = std::thread::Builder::new().name(format!("wharf-shard-{number}"));
            started.threads.push(thread.spawn(move || {
                pin(pinned.then_some(usize::from(number)));
                runner.run(&clock, &mut Unobserved);
            })?);
        }
        Ok(started)
    }

    fn is_any_finished(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }
}

impl Drop for ShardThreads {
    fn drop(&mut self) {
        self.stop.stop();
        for thread in self.threads.drain(..) {
            // A shard that panicked has printed its message, and the drivers have failed.
            let _ = thread.join();
        }
    }
}

/// Pins the calling thread to the core of this number, if any.
fn pin(core: Option<usize>) {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(core) = core.and_then(|core| cores.get(core)) {
        core_affinity::set_for_current(*core);
    }
}

fn measure(options: &ScalingOptions, scenario: &Arc<Scenario>, shards: u16) -> anyhow::Result<ScalingRow> {
    let cores = u16::try_from(std::thread::available_parallelism()?.get()).unwrap_or(u16::MAX);
    let left = cores.saturating_sub(shards).max(1);
    let drivers = options.drivers.unwrap_or_else(|| shards.min(left));
    let pinned = shards.saturating_add(drivers) <= cores;
    let config = EngineConfig { shards, seed: options.seed, ..EngineConfig::default() };
    let wakers: Vec<Arc<ThreadWaker>> = (0..=drivers).map(|_| Arc::default()).collect();
    let owners = wakers.iter().map(|waker| Waker::from(Arc::clone(waker))).collect();
    let mut engine = Engine::open(StoreState::create(PARTITIONS_DEFAULT), &config, owners)?;
    let clock = ReplayClock::real();
    let runners = std::mem::take(&mut engine.runners);
    let threads = ShardThreads::start(runners, engine.stop.clone(), &clock, pinned)?;
    wakers[0].set_current();
    let mut registrar_port = engine.ports.remove(0);
    register(&mut engine, &mut registrar_port, &clock, &threads, &scenario.nodes)?;

    // Everyone passes it when all are full, and the main thread starts the clock.
    let barrier = Arc::new(Barrier::new(usize::from(drivers) + 1));
    let mut running = Vec::new();
    for (number, port) in engine.ports.drain(..).enumerate() {
        let waker = Arc::clone(&wakers[number + 1]);
        let barrier = Arc::clone(&barrier);
        let scenario = Arc::clone(scenario);
        let clock = clock.clone();
        let in_flight = options.in_flight;
        let seconds = options.seconds;
        let seed = options.seed;
        let core = pinned.then(|| usize::from(shards) + number);
        running.push(std::thread::Builder::new().name(format!("driver-{number}")).spawn(move || {
            pin(core);
            waker.set_current();
            let mut driver = Driver::new(port, clock, &scenario, in_flight, seed + number as u64);
            let filled = driver.fill(usize::from(drivers));
            barrier.wait();
            filled?;
            driver.run(seconds)
        })?);
    }
    barrier.wait();
    let mut counts = Counts::default();
    for thread in running {
        counts.add(&thread.join().map_err(|_| anyhow::anyhow!("a driver panicked: its message is above"))??);
    }
    let outcomes =
        ask(&mut registrar_port, &clock, &threads, vec![PortRequest::Every(Command::Audit { number: 0 })])?;
    let mut booked = 0;
    for reply in outcomes {
        let PortReply::Every(outcomes) = reply else { bail!("an audit was answered by {reply:?}") };
        for outcome in outcomes {
            let Outcome::Status(status) = outcome else { bail!("an audit was answered by {outcome:?}") };
            ensure!(status.audit.is_some(), "a shard was not audited");
            booked += status.allocations;
        }
    }
    ensure!(booked == counts.live, "the books have {booked} allocations, and {} were promised", counts.live);
    let percent = |part: u64| part as f64 * 100.0 / counts.places.max(1) as f64;
    Ok(ScalingRow {
        shards,
        drivers,
        pinned,
        nodes: options.nodes,
        policy: options.policy.name(),
        in_flight: options.in_flight,
        requests_per_second: counts.rate,
        speed_up: 1.0,
        efficiency: 1.0,
        spilled_percent: percent(counts.spilled),
        refused_percent: percent(counts.refused),
    })
}

/// Submits `requests` at a port of this thread, and waits for all replies.
fn ask(
    port: &mut Port,
    clock: &ReplayClock,
    shards: &ShardThreads,
    requests: Vec<PortRequest>,
) -> anyhow::Result<Vec<PortReply>> {
    let mut replies = Vec::new();
    for request in requests {
        replies.extend(port.submit(0, request, clock.now())?);
    }
    port.flush();
    let began = Instant::now();
    while port.pending() > 0 {
        ensure!(!shards.is_any_finished(), "a shard ended after {:?}: its message is above", began.elapsed());
        port.poll(clock.now(), |_, reply| replies.push(reply));
        port.flush();
        std::thread::yield_now();
    }
    Ok(replies)
}

fn register(
    engine: &mut Engine,
    port: &mut Port,
    clock: &ReplayClock,
    shards: &ShardThreads,
    nodes: &[NodeSpec],
) -> anyhow::Result<()> {
    for batch in nodes.chunks(256) {
        let mut requests = Vec::with_capacity(batch.len());
        for spec in batch {
            let registration = engine.registrar.register(spec.clone())?;
            let partition = registration.partition;
            requests.push(PortRequest::Partition(partition, Command::AddNode(Box::new(registration))));
        }
        // Published first, so that everyone who sees a placement finds its node in the catalog.
        let catalog = engine.registrar.catalog();
        engine.catalog.store(Arc::new(catalog));
        for reply in ask(port, clock, shards, requests)? {
            let PortReply::One(Outcome::Node(Ok(NodeChange::Added(_)))) = reply else {
                bail!("a node was answered by {reply:?}");
            };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_shards_and_drivers_keep_the_books() {
        let options = ScalingOptions {
            shards: vec![1, 3],
            drivers: Some(2),
            nodes: 300,
            policy: Policy::LeastFit,
            in_flight: 16,
            seconds: Duration::from_millis(20),
            seed: 1,
            shapes: Shapes::synthetic(1),
        };
        let rows = run(&options, |_| {}).expect("the books are checked by the run");
        assert_eq!(rows.iter().map(|row| (row.shards, row.drivers)).collect::<Vec<_>>(), [(1, 2), (3, 2)]);
        assert!(rows.iter().all(|row| row.requests_per_second > 0.0), "{rows:?}");
    }
}
