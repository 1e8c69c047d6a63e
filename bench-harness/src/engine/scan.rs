//! The linear scan over the state that the engine has reached, with the same requests.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use wharf_core::resource::{Demand, GpuAssignment};
use wharf_core::rng::Rng;

use super::driver::{EngineDriver, Live};
use super::scenario::Scenario;
use crate::target::LinearScan;

/// The number of requests from which the typical ones are learned before a fragmentation-aware policy is
/// timed.
const LEARNT_FROM: usize = 4096;

/// An allocation, as held by the scan.
#[derive(Clone, Copy, Debug)]
struct Held {
    node: u32,
    request: u32,
    gpus: GpuAssignment,
}

/// A scanned cluster under a scenario.
pub struct ScanDriver<'a> {
    scenario: &'a Scenario,
    scan: LinearScan,
    rng: Rng,
    live: VecDeque<Held>,
}

impl<'a> ScanDriver<'a> {
    /// Creates the scenario's nodes with their permanent allocations and the live allocations of `engine`.
    #[must_use]
    pub fn new(scenario: &'a Scenario, engine: &EngineDriver<'_>, seed: u64) -> Self {
        let live = engine.live();
        let mut scan = LinearScan::new(&scenario.nodes, seed);
        for (node, demand) in &scenario.held {
            scan.hold(*node as usize, demand);
        }
        let live: VecDeque<Held> = live
            .iter()
            .map(|live| Held { node: live.node, request: live.request, gpus: live.gpus })
            .collect();
        for held in &live {
            scan.take(held.node as usize, demand_of(scenario, held.request), held.gpus);
        }
        if scenario.requests[scenario.measured.start].policy.is_fragmentation_aware() {
            let measured = &scenario.requests[scenario.measured.clone()];
            scan.recompute_after(measured.iter().cycle().take(LEARNT_FROM));
        }
        scan.go_on_from(engine.last_placed() as usize);
        Self { scenario, scan, rng: Rng::new(seed ^ 0x5CA7), live }
    }

    /// Runs about `ops` ops, or fewer if `limit` passes first. Returns the number of ops and their time.
    pub fn run(&mut self, ops: usize, limit: Duration) -> (usize, Duration) {
        let mut done = 0;
        let mut elapsed = Duration::ZERO;
        while done < ops && (done == 0 || elapsed < limit) {
            let oldest = self.live.pop_front().expect("something is live");
            let measured = &self.scenario.measured;
            let request = (measured.start as u64 + self.rng.below(measured.len() as u64)) as u32;
            let asked = &self.scenario.requests[request as usize];
            let started = Instant::now();
            self.scan.release(oldest.node as usize, demand_of(self.scenario, oldest.request), oldest.gpus);
            let placed = self.scan.place(asked);
            elapsed += started.elapsed();
            done += 1;
            match placed {
                Some((node, gpus)) => {
                    let node = u32::try_from(node).expect("nodes are counted by u32");
                    self.live.push_back(Held { node, request, gpus });
                }
                // The released allocation is restored, so that the utilisation stays the same.
                None => self.take_back(oldest),
            }
        }
        (done, elapsed)
    }

    fn take_back(&mut self, held: Held) {
        self.scan.take(held.node as usize, demand_of(self.scenario, held.request), held.gpus);
        self.live.push_back(held);
    }

    /// Releases what the engine released. For comparing decisions, like [`place`](Self::place).
    pub fn release(&mut self, released: &Live) {
        let demand = demand_of(self.scenario, released.request);
        self.scan.release(released.node as usize, demand, released.gpus);
    }

    /// Places a request. Returns the node and its GPU instances.
    pub fn place(&mut self, request: u32) -> Option<(u32, GpuAssignment)> {
        let (node, gpus) = self.scan.place(&self.scenario.requests[request as usize])?;
        Some((u32::try_from(node).expect("nodes are counted by u32"), gpus))
    }
}

fn demand_of(scenario: &Scenario, request: u32) -> &Demand {
    &scenario.requests[request as usize].demand
}
