//! Drives one shard through its own interface, with batches of commands as its thread does.
//!
//! One op releases the oldest live allocation and places the next request. A batch is prepared before the
//! clock starts, and every outcome is checked after the clock stopped.

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
use wharf_core::shard::{Command, Outcome, Released, Shard, ShardConfig};
use wharf_core::time::Time;

use super::scenario::{Fill, Scenario};
use super::served::Served;
use super::touch::Trace;

/// Ops per batch: 64 commands, which is what a shard takes from one ring before it turns to the next.
pub const BATCH_OPS: usize = 32;
/// The margin by which the utilisation may exceed the target, in 1/10,000.
pub(super) const SLACK: u64 = 50;
/// Consecutive refusals after which filling stops.
const FILL_REFUSALS_MAX: u32 = 2_000;

/// A live allocation.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// The id to release it by.
    pub allocation: AllocationId,
    /// The node's index in the scenario.
    pub node: u32,
    /// The request's index in the scenario.
    pub request: u32,
    /// The GPU instances.
    pub gpus: GpuAssignment,
}

/// Sums of cpu, memory and GPUs, in 1/10,000.
type Amounts = [i128; 3];

fn amounts(demand: &Demand) -> Amounts {
    [demand.cpu, demand.memory, demand.gpu.amount()].map(|amount| i128::from(amount.units()))
}

/// The cost of single ops.
#[derive(Clone, Debug, Default)]
pub struct Singles {
    /// Nanoseconds of each op.
    pub nanos: Vec<u32>,
    /// The most vertices and nodes that one op visited.
    pub visited_max: u64,
    /// The sum over all ops.
    pub visited: u64,
    /// Nanoseconds of each op whose request was refused.
    pub refused_nanos: Vec<u32>,
}

/// Steps a shard with a prepared batch. The callgrind guard counts what happens in here, by name.
#[inline(never)]
fn measured_step(shard: &mut Shard, commands: &mut Vec<Command>, outcomes: &mut Vec<Outcome>) {
    shard.step_batch(commands, Time(0), outcomes);
}

/// A shard under a scenario.
pub struct EngineDriver<'a> {
    scenario: &'a Scenario,
    shard: Shard,
    config: ShardConfig,
    /// The work of a service outside the step, if that is measured too.
    served: Option<Box<Served>>,
    rng: Rng,
    live: VecDeque<Live>,
    capacity: Amounts,
    allocated: Amounts,
    commands: Vec<Command>,
    outcomes: Vec<Outcome>,
    /// The requests of the current batch's places, in order.
    drawn: Vec<u32>,
    /// The node that the measured policy chose last. NextFit continues from there.
    last: u32,
    /// Measured ops, and those whose request was refused.
    ops: u64,
    refused: u64,
    /// The utilisation before each batch was topped up: sum and count.
    utilisation: (u128, u64),
}

impl<'a> EngineDriver<'a> {
    /// Creates a shard with the scenario's permanent allocations and fills it.
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

    /// Places the permanent allocations, each on its node.
    fn hold(&mut self) {
        for (node, demand) in &self.scenario.held {
            let policy = self.scenario.requests[0].policy;
            let mut request = PlacementRequest::new(demand.clone(), policy);
            request.candidates = Some([NodeId(u64::from(*node) + 1)].into());
            self.shard.step([Command::Place(request)], Time(0), &mut self.outcomes);
            let outcome = self.outcomes.pop();
            assert!(matches!(outcome, Some(Outcome::Place(Ok(_)))), "node {node} cannot hold {demand:?}");
            let taken = amounts(demand);
            (0..3).for_each(|d| self.allocated[d] += taken[d]);
            self.last = *node;
        }
    }

    /// Returns the live allocations, oldest first, without the permanent ones.
    #[must_use]
    pub fn live(&self) -> &VecDeque<Live> {
        &self.live
    }

    /// Returns the node that the measured policy chose last.
    #[must_use]
    pub fn last_placed(&self) -> u32 {
        self.last
    }

    /// From now on, also does the work of a service outside the step of a shard.
    pub fn serve(&mut self) {
        self.served = Some(Box::new(Served::new(&mut self.shard, self.config.clone(), self.scenario)));
    }

    /// Returns the number of statements so far.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.served.as_ref().map_or(0, |served| served.statements())
    }

    /// Returns the shard.
    #[must_use]
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Returns the facts of the shard for the router.
    pub fn facts(&mut self) -> ShardFacts {
        self.shard.facts()
    }

    /// Returns the number of measured ops, and the number of refused requests among them.
    #[must_use]
    pub fn ops(&self) -> (u64, u64) {
        (self.ops, self.refused)
    }

    /// Returns the allocated share of the scarcest resource, in 1/10,000.
    #[must_use]
    pub fn utilisation(&self) -> u64 {
        let share = |d: usize| self.allocated[d] * 10_000 / self.capacity[d].max(1);
        u64::try_from((0..3).map(share).max().unwrap_or(0)).expect("a share is not negative")
    }

    /// Returns the mean utilisation between measured batches, before each top-up.
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

    /// Places one request outside any measurement. Returns whether it was placed.
    fn place(&mut self, request: u32) -> bool {
        let asked = self.scenario.requests[request as usize].clone();
        self.shard.step([Command::Place(asked)], Time(0), &mut self.outcomes);
        let outcome = self.outcomes.pop().expect("one outcome per command");
        self.placed(request, &outcome)
    }

    /// Records the outcome of a place. Returns whether it was placed.
    fn placed(&mut self, request: u32, outcome: &Outcome) -> bool {
        let placement = match outcome {
            Outcome::Place(Ok(placement)) => placement,
            Outcome::Place(Err(_)) => return false,
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

    /// Releases allocations above the target utilisation. Requests are random, so their sum drifts.
    fn ease(&mut self) {
        let Fill::Utilisation(per_mille) = self.scenario.fill else { return };
        while self.utilisation() >= u64::from(per_mille) * 10 + SLACK
            && let Some(oldest) = self.live.pop_front()
        {
            let held = amounts(&self.scenario.requests[oldest.request as usize].demand);
            (0..3).for_each(|d| self.allocated[d] -= held[d]);
            self.release(oldest.allocation);
        }
    }

    /// Fills up to the scenario's target, as far as possible.
    pub fn top_up(&mut self) {
        let mut refused = 0;
        while !self.is_full() && refused < FILL_REFUSALS_MAX {
            let request = self.draw(&self.scenario.filling);
            refused = if self.place(request) { 0 } else { refused + 1 };
            // Fillers, if any, take the place of refused requests.
            if refused > 0 && !self.scenario.fillers.is_empty() && self.live_enough() {
                break;
            }
        }
        for filler in self.scenario.fillers.clone() {
            let filler = u32::try_from(filler).expect("requests are fewer than u32 can count");
            while !self.is_full() && self.place(filler) {}
        }
    }

    /// Returns whether measuring has begun. Refusals then mean that the cluster is full.
    fn live_enough(&self) -> bool {
        self.ops > 0
    }

    /// Shuffles the live allocations. Otherwise they would be released in the order of the policy, which
    /// would leave the cluster unbalanced.
    fn mix(&mut self) {
        let live = self.live.make_contiguous();
        for last in (1..live.len()).rev() {
            live.swap(last, self.rng.below(last as u64 + 1) as usize);
        }
    }

    /// Prepares `ops` ops. Each releases the oldest live allocation and places the next request.
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

    /// Executes the prepared commands. Returns the time it took.
    fn carry_out(&mut self) -> Duration {
        let requests = 2 * self.drawn.len();
        let started = Instant::now();
        if let Some(served) = &mut self.served {
            served.begin(requests, &self.commands);
        }
        measured_step(&mut self.shard, &mut self.commands, &mut self.outcomes);
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
                self.placed(request, &Outcome::Place(Ok(placement)));
            }
        }
        for (pair, &request) in of_requests.chunks_exact(2).zip(&drawn) {
            assert!(
                matches!(pair[0], Outcome::Release(Ok(Released { inside: None, .. }))),
                "a release was answered by {:?}",
                pair[0]
            );
            self.ops += 1;
            self.refused += u64::from(!self.placed(request, &pair[1]));
        }
        (self.outcomes, self.drawn) = (outcomes, drawn);
        self.outcomes.clear();
        self.drawn.clear();
        elapsed
    }

    /// Returns the length of a batch, short enough that a small cluster stays at its target utilisation.
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

    /// Runs about `ops` ops in batches. Returns the number of ops and the time spent in the shard.
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

    /// Runs `ops` ops one by one, and records the time and visits of each.
    pub fn run_singly(&mut self, ops: usize, singles: &mut Singles) {
        for _ in 0..ops {
            self.prepare(1);
            let before = self.shard.visits();
            let refused = self.refused;
            let elapsed = self.carry_out();
            let after = self.shard.visits();
            let visited = after.vertices + after.nodes - before.vertices - before.nodes;
            singles.visited += visited;
            singles.visited_max = singles.visited_max.max(visited);
            let nanos = u32::try_from(elapsed.as_nanos()).unwrap_or(u32::MAX);
            singles.nanos.push(nanos);
            if self.refused > refused {
                singles.refused_nanos.push(nanos);
            }
            self.settle();
        }
    }

    /// Runs `ops` ops one by one, and records the cache lines that they touch. `None` if the shard cannot tell the lines.
    pub fn trace(&mut self, ops: usize) -> Option<Trace> {
        let mut trace = Trace::default();
        for _ in 0..ops {
            let Live { allocation, node, .. } = *self.live.front().expect("something is live");
            let released = NodeId(u64::from(node) + 1);
            self.prepare(1);
            let request = self.drawn.pop().expect("one op was prepared");
            self.commands.clear();
            let record = self.shard.record_lines(allocation)?;
            let before = self.shard.node_lines(released)?;
            self.release(allocation);
            trace.released(record, &before, &self.shard.node_lines(released)?);
            self.ops += 1;
            let choice = self.shard.choice_lines(&self.scenario.requests[request as usize])?;
            trace.chosen(&choice);
            let before = choice.node.map(|chosen| self.shard.node_lines(chosen));
            let is_placed = self.place(request);
            assert_eq!(
                is_placed,
                choice.node.is_some(),
                "the same request in the same state is decided alike"
            );
            if let Some(chosen) = choice.node {
                let live = self.live.back().expect("it was placed");
                assert_eq!(NodeId(u64::from(live.node) + 1), chosen, "a request goes to another node");
                let record = self.shard.record_lines(live.allocation)?;
                trace.placed(record, &before.flatten()?, &self.shard.node_lines(chosen)?);
            } else {
                self.refused += 1;
            }
            trace.end_op();
            self.settle();
        }
        Some(trace)
    }

    /// Releases an allocation outside any measurement.
    fn release(&mut self, allocation: AllocationId) {
        self.shard.step([Command::Release(allocation)], Time(0), &mut self.outcomes);
        let outcome = self.outcomes.pop();
        assert!(
            matches!(outcome, Some(Outcome::Release(Ok(Released { inside: None, .. })))),
            "a release was answered by {outcome:?}"
        );
    }

    /// Runs one op, for comparing decisions. Returns the released allocation, the request, and its placement
    /// (`None` if refused).
    pub fn decide(&mut self) -> (Live, u32, Option<Live>) {
        let oldest = *self.live.front().expect("something is live");
        self.prepare(1);
        let request = self.drawn[0];
        let before = self.refused;
        self.carry_out();
        (oldest, request, (self.refused == before).then(|| *self.live.back().expect("it was placed")))
    }
}
