//! Drives one shard through its own interface, as its thread does: batches of commands.
//!
//! One op releases the oldest live allocation and places the next request. What a batch needs is
//! prepared before the clock starts, and every outcome is checked after it stopped.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use wharf_core::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, ShardId};
use wharf_core::index::Geometry;
use wharf_core::limits::PARTITIONS_DEFAULT;
use wharf_core::link::ShardFacts;
use wharf_core::node::NodeRegistration;
use wharf_core::request::PlacementRequest;
use wharf_core::resource::{Demand, GpuAssignment};
use wharf_core::rng::Rng;
use wharf_core::shard::{Command, Outcome, Shard, ShardConfig};
use wharf_core::time::Time;

use super::scenario::{Fill, Scenario};
use super::served::Served;

/// Ops of one batch: 64 commands, what a shard takes from one ring before it turns to the next.
pub const BATCH_OPS: usize = 32;
/// How far the utilisation may wander above what is wanted, in 1/10 000.
pub(super) const SLACK: u64 = 50;
/// Requests refused one after the other before filling is given up.
const FILL_REFUSALS_MAX: u32 = 2_000;

/// A live allocation.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// To be released by this id.
    pub allocation: AllocationId,
    /// The node's index in the scenario.
    pub node: u32,
    /// The request's index in the scenario.
    pub request: u32,
    /// Its GPU instances.
    pub gpus: GpuAssignment,
}

/// Sums of cpu, memory and GPUs in 1/10 000.
type Amounts = [i128; 3];

fn amounts(demand: &Demand) -> Amounts {
    [demand.cpu, demand.memory, demand.gpu.amount()].map(|amount| i128::from(amount.units()))
}

/// What single ops cost.
#[derive(Clone, Debug, Default)]
pub struct Singles {
    /// Nanoseconds of each op.
    pub nanos: Vec<u32>,
    /// Vertices and nodes visited by the op that visited most.
    pub visited_max: u64,
    /// By all of them.
    pub visited: u64,
}

/// A shard under a scenario.
pub struct EngineDriver<'a> {
    scenario: &'a Scenario,
    shard: Shard,
    config: ShardConfig,
    /// What a service does beside the step, where that is measured too.
    served: Option<Box<Served>>,
    rng: Rng,
    live: VecDeque<Live>,
    capacity: Amounts,
    allocated: Amounts,
    commands: Vec<Command>,
    outcomes: Vec<Outcome>,
    /// The requests of the batch under way: those of its places, in order.
    drawn: Vec<u32>,
    /// The node that the measured policy chose last: NextFit goes on from there.
    last: u32,
    /// Measured ops, and those whose request was refused.
    ops: u64,
    refused: u64,
    /// The utilisation before each batch was topped up: sum and count.
    utilisation: (u128, u64),
}

impl<'a> EngineDriver<'a> {
    /// A shard that holds what the scenario wants held, and is filled.
    #[must_use]
    pub fn new(scenario: &'a Scenario, seed: u64) -> Self {
        let config = ShardConfig {
            shard: ShardId(0),
            incarnation: Incarnation(1),
            partitions: (0..PARTITIONS_DEFAULT).map(PartitionId).collect(),
            geometry: Geometry::default(),
            seed,
            hybrid: wharf_core::shard::HybridSettings::default(),
        };
        let mut shard = Shard::new(config.clone());
        let mut outcomes = Vec::new();
        let mut capacity = Amounts::default();
        for (number, spec) in (1u64..).zip(&scenario.nodes) {
            let partition = PartitionId((number % u64::from(PARTITIONS_DEFAULT)) as u16);
            let id = NodeId(number);
            let ordinal = Ordinal(number);
            let registration = NodeRegistration { id, ordinal, partition, agent: None, spec: spec.clone() };
            shard.step([Command::AddNode(Box::new(registration))], Time(0), &mut outcomes);
            outcomes.clear();
            let gpus = i128::from(spec.gpus) * i128::from(wharf_core::resource::GPU_UNIT);
            let of_node = [spec.cpu.units().into(), spec.memory.units().into(), gpus];
            (0..3).for_each(|d| capacity[d] += of_node[d]);
        }
        let mut driver = Self {
            scenario,
            shard,
            config,
            served: None,
            rng: Rng::new(seed ^ 0x5EED),
            live: VecDeque::new(),
            capacity,
            allocated: Amounts::default(),
            commands: Vec::new(),
            outcomes,
            drawn: Vec::new(),
            last: 0,
            ops: 0,
            refused: 0,
            utilisation: (0, 0),
        };
        driver.hold();
        driver.top_up();
        driver.mix();
        driver
    }

    /// Places what is held for good, each on its node.
    fn hold(&mut self) {
        for (node, demand) in &self.scenario.held {
            let policy = self.scenario.requests[0].policy;
            let mut request = PlacementRequest::new(demand.clone(), policy);
            request.candidates = Some([NodeId(u64::from(*node) + 1)].into());
            self.shard.step([Command::Place(request)], Time(0), &mut self.outcomes);
            let outcome = self.outcomes.pop();
            assert!(matches!(outcome, Some(Outcome::Placed(_))), "node {node} cannot hold {demand:?}");
            let taken = amounts(demand);
            (0..3).for_each(|d| self.allocated[d] += taken[d]);
            self.last = *node;
        }
    }

    /// Live allocations beside those held for good, oldest first.
    #[must_use]
    pub fn live(&self) -> &VecDeque<Live> {
        &self.live
    }

    /// The node that the measured policy chose last.
    #[must_use]
    pub fn last_placed(&self) -> u32 {
        self.last
    }

    /// Does from now on what a service does beside the step of a shard.
    pub fn serve(&mut self) {
        self.served = Some(Box::new(Served::new(&mut self.shard, self.config.clone(), self.scenario)));
    }

    /// Statements among the traffic so far.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.served.as_ref().map_or(0, |served| served.statements())
    }

    /// The shard.
    #[must_use]
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// What the router may know of the shard.
    pub fn facts(&mut self) -> ShardFacts {
        self.shard.facts()
    }

    /// Measured ops, and how many of their requests were refused.
    #[must_use]
    pub fn ops(&self) -> (u64, u64) {
        (self.ops, self.refused)
    }

    /// How much of the resource that is scarcest is allocated now, in 1/10 000.
    #[must_use]
    pub fn utilisation(&self) -> u64 {
        let share = |d: usize| self.allocated[d] * 10_000 / self.capacity[d].max(1);
        u64::try_from((0..3).map(share).max().unwrap_or(0)).expect("a share is not negative")
    }

    /// The mean of that between the measured batches, before each was made up for.
    #[must_use]
    pub fn utilisation_mean(&self) -> u64 {
        match self.utilisation {
            (_, 0) => self.utilisation(),
            (sum, count) => (sum / u128::from(count)) as u64,
        }
    }

    fn is_full(&self) -> bool {
        match self.scenario.fill {
            Fill::Utilisation(per_mille) => self.utilisation() >= u64::from(per_mille) * 10,
            Fill::Count(count) => self.live.len() >= count,
        }
    }

    fn draw(&mut self, from: &std::ops::Range<usize>) -> u32 {
        let at = from.start as u64 + self.rng.below(from.len() as u64);
        u32::try_from(at).expect("requests are fewer than u32 can count")
    }

    /// Places one request outside of any measurement; whether it found a place.
    fn place(&mut self, request: u32) -> bool {
        let asked = self.scenario.requests[request as usize].clone();
        self.shard.step([Command::Place(asked)], Time(0), &mut self.outcomes);
        let outcome = self.outcomes.pop().expect("one outcome per command");
        self.placed(request, &outcome)
    }

    /// Takes note of the outcome of a place; whether it found one.
    fn placed(&mut self, request: u32, outcome: &Outcome) -> bool {
        let placement = match outcome {
            Outcome::Placed(placement) => placement,
            Outcome::Refused(_) => return false,
            other => panic!("a place was answered by {other:?}"),
        };
        let asked = &self.scenario.requests[request as usize];
        let taken = amounts(&asked.demand);
        (0..3).for_each(|d| self.allocated[d] += taken[d]);
        let node = u32::try_from(placement.node.0 - 1).expect("ids count from one");
        if asked.policy == self.scenario.requests[self.scenario.measured.start].policy {
            self.last = node;
        }
        let allocation = placement.allocation;
        let gpus = placement.gpus;
        self.live.push_back(Live { allocation, node, request, gpus });
        true
    }

    /// Releases what is more than the scenario wants: requests are drawn, so their sum wanders.
    fn ease(&mut self) {
        let Fill::Utilisation(per_mille) = self.scenario.fill else { return };
        while self.utilisation() >= u64::from(per_mille) * 10 + SLACK
            && let Some(oldest) = self.live.pop_front()
        {
            let held = amounts(&self.scenario.requests[oldest.request as usize].demand);
            (0..3).for_each(|d| self.allocated[d] -= held[d]);
            self.shard.step([Command::Release(oldest.allocation)], Time(0), &mut self.outcomes);
            let outcome = self.outcomes.pop();
            assert!(matches!(outcome, Some(Outcome::Released(_))), "a release was answered by {outcome:?}");
        }
    }

    /// Fills up to where the scenario wants it, as far as that can be reached.
    pub fn top_up(&mut self) {
        let mut refused = 0;
        while !self.is_full() && refused < FILL_REFUSALS_MAX {
            let request = self.draw(&self.scenario.filling);
            refused = if self.place(request) { 0 } else { refused + 1 };
            // Where there are fillers, they make up for what is refused.
            if refused > 0 && !self.scenario.fillers.is_empty() && self.live_enough() {
                break;
            }
        }
        for filler in self.scenario.fillers.clone() {
            let filler = u32::try_from(filler).expect("requests are fewer than u32 can count");
            while !self.is_full() && self.place(filler) {}
        }
    }

    /// Whether filling has come so far that what is refused shows a full cluster.
    fn live_enough(&self) -> bool {
        self.ops > 0
    }

    /// Brings the live allocations into random order: after filling they would be released in the
    /// order of the policy, and leave the cluster lopsided.
    fn mix(&mut self) {
        let live = self.live.make_contiguous();
        for last in (1..live.len()).rev() {
            live.swap(last, self.rng.below(last as u64 + 1) as usize);
        }
    }

    /// Prepares `ops` ops: each releases the oldest live allocation and places the next request.
    fn prepare(&mut self, ops: usize) {
        for _ in 0..ops {
            let oldest = self.live.pop_front().expect("batches are shorter than the list of the live");
            let held = amounts(&self.scenario.requests[oldest.request as usize].demand);
            (0..3).for_each(|d| self.allocated[d] -= held[d]);
            let request = self.draw(&self.scenario.measured);
            self.drawn.push(request);
            self.commands.push(Command::Release(oldest.allocation));
            self.commands.push(Command::Place(self.scenario.requests[request as usize].clone()));
        }
        if let Some(mut served) = self.served.take() {
            let mut commands = std::mem::take(&mut self.commands);
            served.prepare(ops, self.scenario, || self.draw(&self.scenario.measured), &mut commands);
            (self.commands, self.served) = (commands, Some(served));
        }
    }

    /// Carries out what was prepared; how long it took.
    fn carry_out(&mut self) -> Duration {
        let requests = 2 * self.drawn.len();
        let started = Instant::now();
        if let Some(served) = &mut self.served {
            served.begin(requests, &self.commands);
        }
        self.shard.step_batch(&mut self.commands, Time(0), &mut self.outcomes);
        if let Some(served) = &mut self.served {
            self.shard.publish_view();
            served.hand_out(&self.outcomes);
        }
        let elapsed = started.elapsed();
        let outcomes = std::mem::take(&mut self.outcomes);
        let drawn = std::mem::take(&mut self.drawn);
        let (of_requests, of_statements) = outcomes.split_at(requests);
        if let Some(served) = &mut self.served {
            for (request, placement) in served.conclude(of_statements) {
                self.placed(request, &Outcome::Placed(placement));
            }
        }
        for (pair, &request) in of_requests.chunks_exact(2).zip(&drawn) {
            assert!(matches!(pair[0], Outcome::Released(_)), "a release was answered by {:?}", pair[0]);
            self.ops += 1;
            self.refused += u64::from(!self.placed(request, &pair[1]));
        }
        (self.outcomes, self.drawn) = (outcomes, drawn);
        self.outcomes.clear();
        self.drawn.clear();
        elapsed
    }

    /// The length of a batch: short enough that a small cluster stays as full as it should be.
    fn batch(&self) -> usize {
        BATCH_OPS.min(self.live.len() / 50).max(1)
    }

    fn settle(&mut self) {
        self.utilisation.0 += u128::from(self.utilisation());
        self.utilisation.1 += 1;
        self.ease();
        self.top_up();
        assert!(!self.live.is_empty(), "the cluster is too small for this row: give more --nodes");
    }

    /// About `ops` ops in batches; how many it were, and the time spent in the shard.
    pub fn run(&mut self, ops: usize) -> (usize, Duration) {
        let mut done = 0;
        let mut elapsed = Duration::ZERO;
        while done < ops {
            let batch = self.batch();
            self.prepare(batch);
            elapsed += self.carry_out();
            done += batch;
            self.settle();
        }
        (done, elapsed)
    }

    /// `ops` ops one by one, each with its time and its visits.
    pub fn run_singly(&mut self, ops: usize, singles: &mut Singles) {
        for _ in 0..ops {
            self.prepare(1);
            let before = self.shard.visits();
            let elapsed = self.carry_out();
            let after = self.shard.visits();
            let visited = after.vertices + after.nodes - before.vertices - before.nodes;
            singles.visited += visited;
            singles.visited_max = singles.visited_max.max(visited);
            singles.nanos.push(u32::try_from(elapsed.as_nanos()).unwrap_or(u32::MAX));
            self.settle();
        }
    }

    /// The next op: what it released, and the request with what it was given (nothing: refused).
    /// For comparing decisions.
    pub fn decide(&mut self) -> (Live, u32, Option<Live>) {
        let oldest = *self.live.front().expect("something is live");
        self.prepare(1);
        let request = self.drawn[0];
        let before = self.refused;
        self.carry_out();
        (oldest, request, (self.refused == before).then(|| *self.live.back().expect("it was placed")))
    }
}
