//! A driver: a port and what was placed over it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use wharf_core::ids::AllocationId;
use wharf_core::link::Clock;
use wharf_core::resource::{Amount, Demand};
use wharf_core::rng::Rng;
use wharf_core::router::{NotPlaced, Port, PortReply, PortRequest};
use wharf_core::shard::Outcome;

use crate::engine::scenario::Scenario;
use crate::target::ReplayClock;

/// The share of the scarcest resource that is in use, in percent.
const UTILISATION_PERCENT: i128 = 85;
/// Refusals in a row that end the filling.
const REFUSALS_MAX: usize = 10_000;
/// The time without any reply after which a driver gives up: a shard has ended.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Polls before the driver sleeps. A shard answers within microseconds, and sleeping costs more than that.
const SPIN_LOOKS: u32 = 2_000;
/// The time after which a sleeping driver looks whether all is well.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// What drivers counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Replies per second.
    pub(super) rate: f64,
    pub(super) places: u64,
    pub(super) refused: u64,
    pub(super) spilled: u64,
    /// The allocations at the end.
    pub(super) live: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.rate += other.rate;
        self.places += other.places;
        self.refused += other.refused;
        self.spilled += other.spilled;
        self.live += other.live;
    }
}

/// The tag of a release. The tag of a place is the number of its request.
const RELEASE: u64 = u64::MAX;

pub(super) struct Driver<'a> {
    port: Port,
    clock: ReplayClock,
    scenario: &'a Scenario,
    in_flight: usize,
    rng: Rng,
    /// What was placed and not released, oldest first.
    live: VecDeque<(u32, AllocationId)>,
    /// The sum of the demands of all live allocations: cores, memory, GPUs.
    used: [i128; 3],
    refused: u64,
    refused_in_a_row: usize,
    places: u64,
    replies: u64,
}

/// Returns cores, memory and GPUs.
fn amounts(demand: &Demand) -> [i128; 3] {
    [demand.cpu.units(), demand.memory.units(), demand.gpu.units()].map(i128::from)
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        port: Port,
        clock: ReplayClock,
        scenario: &'a Scenario,
        in_flight: usize,
        seed: u64,
    ) -> Self {
        Self {
            port,
            clock,
            scenario,
            in_flight,
            rng: Rng::new(seed),
            live: VecDeque::new(),
            used: [0; 3],
            refused: 0,
            refused_in_a_row: 0,
            places: 0,
            replies: 0,
        }
    }

    /// Places until this driver's part of the cluster is full. There are `drivers` parts.
    pub(super) fn fill(&mut self, drivers: usize) -> anyhow::Result<()> {
        let mut target = [0; 3];
        for node in &self.scenario.nodes {
            let gpus = Amount::whole(u32::from(node.gpus));
            for (sum, amount) in target.iter_mut().zip([node.cpu, node.memory, gpus]) {
                *sum += i128::from(amount.units());
            }
        }
        let target = target.map(|sum| sum * UTILISATION_PERCENT / 100 / drivers as i128);
        while self.used.iter().zip(target).all(|(used, target)| *used < target) {
            ensure!(self.refused_in_a_row < REFUSALS_MAX, "the cluster takes no more: give more nodes");
            while self.port.pending() < self.in_flight {
                self.place()?;
            }
            self.wait()?;
        }
        self.drain()
    }

    /// Places and releases in turns for this long. Then waits for what is in flight.
    pub(super) fn run(&mut self, seconds: Duration) -> anyhow::Result<Counts> {
        let spilled_before = self.port.spillbacks();
        let before = (self.places, self.refused, self.replies);
        let began = Instant::now();
        let mut places_next = true;
        while began.elapsed() < seconds {
            while self.port.pending() < self.in_flight {
                if places_next {
                    self.place()?
                } else {
                    self.release()?
                }
                places_next = !places_next;
            }
            self.wait()?;
        }
        let rate = (self.replies - before.2) as f64 / began.elapsed().as_secs_f64();
        self.drain()?;
        Ok(Counts {
            rate,
            places: self.places - before.0,
            refused: self.refused - before.1,
            spilled: self.port.spillbacks() - spilled_before,
            live: self.live.len() as u64,
        })
    }

    fn place(&mut self) -> anyhow::Result<()> {
        let number = self.rng.below(self.scenario.requests.len() as u64);
        let request = self.scenario.requests[number as usize].clone();
        self.places += 1;
        self.submit(number, PortRequest::Place(request))
    }

    fn release(&mut self) -> anyhow::Result<()> {
        // A place was refused, or its answer is under way.
        let Some((number, allocation)) = self.live.pop_front() else { return self.place() };
        let freed = amounts(&self.scenario.requests[number as usize].demand);
        self.used.iter_mut().zip(freed).for_each(|(used, amount)| *used -= amount);
        self.submit(RELEASE, PortRequest::Release(allocation))
    }

    fn submit(&mut self, tag: u64, request: PortRequest) -> anyhow::Result<()> {
        match self.port.submit(tag, request, self.clock.now())? {
            Some(reply) => self.take(tag, reply),
            None => Ok(()),
        }
    }

    fn take(&mut self, tag: u64, reply: PortReply) -> anyhow::Result<()> {
        self.replies += 1;
        match reply {
            PortReply::Place(Ok(placement)) => {
                let taken = amounts(&self.scenario.requests[tag as usize].demand);
                self.used.iter_mut().zip(taken).for_each(|(used, amount)| *used += amount);
                self.live.push_back((tag as u32, placement.allocation));
                self.refused_in_a_row = 0;
            }
            PortReply::Place(Err(NotPlaced { .. })) => {
                self.refused += 1;
                self.refused_in_a_row += 1;
            }
            PortReply::One(Outcome::Release(Ok(_))) if tag == RELEASE => {}
            other => bail!("a request was answered by {other:?}"),
        }
        Ok(())
    }

    /// Waits until there is a reply, and takes all that are there.
    fn wait(&mut self) -> anyhow::Result<()> {
        self.port.flush();
        let before = self.replies;
        let mut looks = 0;
        let began = Instant::now();
        while self.replies == before && self.port.pending() > 0 {
            if self.port.is_idle() {
                looks += 1;
                if looks < SPIN_LOOKS {
                    std::hint::spin_loop();
                    continue;
                }
                let bell = std::sync::Arc::clone(self.port.bell());
                if bell.sleep_if(|| self.port.is_idle()) {
                    std::thread::park_timeout(WATCH_INTERVAL);
                }
                ensure!(began.elapsed() < SILENCE_MAX, "no shard has answered for {SILENCE_MAX:?}");
                continue;
            }
            let mut taken = Vec::new();
            self.port.poll(self.clock.now(), |tag, reply| taken.push((tag, reply)));
            for (tag, reply) in taken {
                self.take(tag, reply)?;
            }
            // A refusal may go on to another shard.
            self.port.flush();
        }
        Ok(())
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        while self.port.pending() > 0 {
            self.wait()?;
        }
        Ok(())
    }
}
