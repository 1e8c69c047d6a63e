//! Drives the floor like the engine: with the same nodes and shapes, reduced to cpu and memory, filled to the
//! same utilisation, and with the oldest placement released before each place.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

use wharf_core::request::Policy;
use wharf_core::resource::Amount;
use wharf_core::rng::Rng;

use super::driver::SLACK;
use super::floor::{Floor, Order, Steps};
use super::scenario::Scenario;

/// The allocated share of the scarcer resource, in percent.
const UTILISATION: u64 = 85;
/// Consecutive refusals after which filling stops.
const FILL_REFUSALS_MAX: u32 = 1000;
/// MiB of one step of memory.
const MEMORY_STEP: u32 = 4096;

/// A floor with its live placements, oldest first.
pub struct FloorDriver {
    floor: Floor,
    order: Order,
    capacities: Vec<Steps>,
    requests: Vec<Steps>,
    live: VecDeque<(u32, Steps)>,
    capacity: [u64; 2],
    allocated: [u64; 2],
    rng: Rng,
    drawn: Vec<Steps>,
}

fn steps(cpu: Amount, memory: Amount, round: impl Fn(i64, i64) -> i64) -> Steps {
    let to = |amount: Amount, unit: Amount, most: u16| {
        let steps = round(amount.units(), unit.units()).min(i64::from(most));
        u16::try_from(steps).expect("amounts are not negative")
    };
    Steps {
        cpu: to(cpu, Amount::whole(1), Steps::MAX.cpu),
        memory: to(memory, Amount::whole(MEMORY_STEP), Steps::MAX.memory),
    }
}

fn add(sums: &mut [u64; 2], steps: Steps) {
    sums[0] += u64::from(steps.cpu);
    sums[1] += u64::from(steps.memory);
}

fn subtract(sums: &mut [u64; 2], steps: Steps) {
    sums[0] -= u64::from(steps.cpu);
    sums[1] -= u64::from(steps.memory);
}

impl FloorDriver {
    /// Creates the floor for the nodes and filling requests of `scenario`. It tries the largest cells first
    /// for LeastFit, and the smallest that fit for all other policies.
    #[must_use]
    pub fn new(scenario: &Scenario, policy: Policy, seed: u64) -> Self {
        let capacities: Vec<Steps> =
            scenario.nodes.iter().map(|node| steps(node.cpu, node.memory, |a, unit| a / unit)).collect();
        let asked = scenario.requests[scenario.filling.clone()].iter().map(|request| &request.demand);
        let requests =
            asked.map(|demand| steps(demand.cpu, demand.memory, |a, unit| (a + unit - 1) / unit)).collect();
        let mut capacity = [0; 2];
        capacities.iter().for_each(|&steps| add(&mut capacity, steps));
        let mut driver = Self {
            floor: Floor::new(&capacities),
            order: if policy == Policy::LeastFit { Order::Greatest } else { Order::Smallest },
            capacities,
            requests,
            live: VecDeque::new(),
            capacity,
            allocated: [0; 2],
            rng: Rng::new(seed ^ 0xF100),
            drawn: Vec::new(),
        };
        driver.top_up();
        let live = driver.live.make_contiguous();
        for last in (1..live.len()).rev() {
            live.swap(last, driver.rng.below(last as u64 + 1) as usize);
        }
        driver
    }

    /// Returns the allocated share of the scarcer resource, in 1/10,000.
    #[must_use]
    pub fn utilisation(&self) -> u64 {
        (0..2).map(|d| self.allocated[d] * 10_000 / self.capacity[d].max(1)).max().unwrap_or(0)
    }

    fn draw(&mut self) -> Steps {
        self.requests[self.rng.below(self.requests.len() as u64) as usize]
    }

    fn top_up(&mut self) {
        let mut refused = 0;
        while self.utilisation() < UTILISATION * 100 && refused < FILL_REFUSALS_MAX {
            let asked = self.draw();
            match self.floor.place(self.order, asked) {
                Some(node) => {
                    self.live.push_back((node, asked));
                    add(&mut self.allocated, asked);
                    refused = 0;
                }
                None => refused += 1,
            }
        }
    }

    /// Runs `ops` ops, or as many as placements are live. Returns the number of ops and their time. One op
    /// releases the oldest placement and places the next request.
    pub fn run(&mut self, ops: usize) -> (usize, Duration) {
        self.drawn.clear();
        for _ in 0..ops {
            let asked = self.draw();
            self.drawn.push(asked);
        }
        let ops = ops.min(self.live.len());
        self.live.iter().take(ops).for_each(|&(_, held)| subtract(&mut self.allocated, held));
        let kept = self.live.len() - ops;
        let started = Instant::now();
        for &asked in &self.drawn[..ops] {
            if let Some((node, held)) = self.live.pop_front() {
                self.floor.release(node, held);
            }
            if let Some(node) = self.floor.place(self.order, black_box(asked)) {
                self.live.push_back((node, asked));
            }
        }
        let elapsed = started.elapsed();
        self.live.range(kept..).for_each(|&(_, steps)| add(&mut self.allocated, steps));
        while self.utilisation() >= UTILISATION * 100 + SLACK
            && let Some((node, held)) = self.live.pop_front()
        {
            self.floor.release(node, held);
            subtract(&mut self.allocated, held);
        }
        self.top_up();
        (ops, elapsed)
    }

    /// Runs `ops` ops. Returns the nanoseconds of each.
    pub fn run_singly(&mut self, ops: usize) -> Vec<u32> {
        let mut nanos = Vec::with_capacity(ops);
        for _ in 0..ops.min(self.live.len()) {
            let asked = self.draw();
            let started = Instant::now();
            if let Some((node, held)) = self.live.pop_front() {
                self.floor.release(node, held);
            }
            if let Some(node) = self.floor.place(self.order, black_box(asked)) {
                self.live.push_back((node, asked));
            }
            nanos.push(u32::try_from(started.elapsed().as_nanos()).unwrap_or(u32::MAX));
        }
        nanos
    }

    /// Checks the floor against its live placements.
    ///
    /// # Errors
    /// When a check fails. The text says which.
    pub fn check(&self) -> Result<(), String> {
        self.floor.check(&self.capacities, self.live.iter().copied())
    }
}
