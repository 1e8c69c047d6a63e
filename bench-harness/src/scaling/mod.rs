//! `wharf-bench scaling`: how many requests the engine decides by the number of its shards.
//!
//! Shards and drivers are threads of this process, each on a core of its own where there are enough. A driver has a
//! port, as an I/O thread of the service has. It keeps a window of places and releases in flight, in turns, at 85 %
//! utilisation.

mod driver;

use std::fmt;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use wharf_core::link::ThreadWaker;
use wharf_core::request::Policy;

use crate::engine::scenario::{Kind, Scenario};
use crate::engine::shapes::Shapes;
use crate::target::{EngineTarget, EngineTargetConfig, ReplayClock, Target, pin};
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

fn measure(options: &ScalingOptions, scenario: &Arc<Scenario>, shards: u16) -> anyhow::Result<ScalingRow> {
    let cores = u16::try_from(std::thread::available_parallelism()?.get()).unwrap_or(u16::MAX);
    let left = cores.saturating_sub(shards).max(1);
    let drivers = options.drivers.unwrap_or_else(|| shards.min(left));
    let pinned = shards.saturating_add(drivers) <= cores;
    let clock = ReplayClock::real();
    let config = EngineTargetConfig {
        shards,
        seed: options.seed,
        clock: clock.clone(),
        typical_shapes: None,
        pin: pinned,
    };
    let wakers: Vec<Arc<ThreadWaker>> = (0..drivers).map(|_| Arc::default()).collect();
    let mut engine = EngineTarget::open_for(&config, &Arc::default(), &wakers)?;
    engine.register(&scenario.nodes)?;

    // All begin when each has filled its part of the cluster.
    let barrier = Arc::new(Barrier::new(usize::from(drivers)));
    let mut running = Vec::new();
    for (number, (port, waker)) in engine.take_drivers().into_iter().zip(wakers).enumerate() {
        let barrier = Arc::clone(&barrier);
        let scenario = Arc::clone(scenario);
        let clock = clock.clone();
        let in_flight = options.in_flight;
        let seconds = options.seconds;
        let seed = options.seed + number as u64;
        let core = pinned.then(|| usize::from(shards) + number);
        running.push(std::thread::Builder::new().name(format!("driver-{number}")).spawn(move || {
            pin(core);
            waker.set_current();
            let mut driver = Driver::new(port, clock, &scenario, in_flight, seed);
            let filled = driver.fill(usize::from(drivers));
            barrier.wait();
            filled?;
            driver.run(seconds)
        })?);
    }
    let mut counts = Counts::default();
    for thread in running {
        counts.add(&thread.join().map_err(|_| anyhow::anyhow!("a driver panicked: its message is above"))??);
    }
    let booked = engine.audit()?.allocations;
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
