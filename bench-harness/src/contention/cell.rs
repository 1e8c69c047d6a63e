//! The shared state (shards with nodes and running work), and the commit of a statement.

use std::sync::Arc;

use wharf_core::broken::Broken;
use wharf_core::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, ShardId, StatementId};
use wharf_core::index::Geometry;
use wharf_core::link::{Decision, DecisionCell};
use wharf_core::node::{Labels, NodeRegistration, NodeSpec, Taints};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand};
use wharf_core::rng::Rng;
use wharf_core::shard::{Command, HybridSettings, Outcome, Released, Shard, ShardConfig};
use wharf_core::statement::{Applied, CommitMode, ConflictDetection, Granted, Operation, Part, Prepare};
use wharf_core::time::Time;
use wharf_core::view::{View, ViewReader};

use super::Settings;

/// The capacity of each node.
const NODE_CORES: u32 = 32;
const NODE_MIB: u32 = 128 * 1024;
/// Longer than any run: every statement is decided at the instant when it is prepared.
const HOLD_NS: u64 = 1 << 62;

/// An operation with the index of its shard.
pub type Placed = (usize, Operation);

/// The terms of committing a statement.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The rule for conflicts.
    pub conflict_detection: ConflictDetection,
    /// The handling of the rest of a statement with a conflict.
    pub mode: CommitMode,
}

/// The result of a statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// The granted operations, by index, ascending.
    pub granted: Vec<u16>,
    /// The number of operations that conflicted.
    pub conflicts: usize,
}

/// Draws the demand of a task: one core on average, and four times as many GiB.
pub fn task(rng: &mut Rng) -> PlacementRequest {
    let milli = 500 * (1 + rng.below(3)) as u32;
    let demand =
        Demand { cpu: Amount::from_milli(milli), memory: Amount::whole(4 * milli), ..Demand::default() };
    // Random, as in Omega's simulation, so that planners do not all choose the same node.
    PlacementRequest::new(demand, Policy::Random)
}

fn config(shard: u16, seed: u64) -> ShardConfig {
    ShardConfig {
        shard: ShardId(shard),
        incarnation: Incarnation(1),
        partitions: vec![PartitionId(shard)],
        geometry: Geometry::default(),
        seed,
        hybrid: HybridSettings::default(),
    }
}

/// Creates an empty private copy of the shard with this number.
#[must_use]
pub fn replica(shard: u16, seed: u64) -> Shard {
    Shard::replica(config(shard, seed))
}

/// A running allocation.
#[derive(Clone, Copy, Debug)]
struct Live {
    shard: usize,
    id: AllocationId,
    cpu: i64,
}

/// The cell.
pub struct Cell {
    shards: Vec<Shard>,
    /// The reader of each shard's views.
    views: Vec<ViewReader>,
    live: Vec<Live>,
    /// The cpu in use and the wanted cpu in use, in 1/10,000 cores.
    taken: i64,
    target: i64,
    rng: Rng,
    outcomes: Vec<Outcome>,
}

impl Cell {
    /// Creates the nodes and fills them to the target.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let mut rng = Rng::new(settings.seed);
        let shards = (0..settings.shards).map(|shard| Shard::new(config(shard, rng.next_u64())));
        let shards = shards.collect();
        let cores = i64::from(settings.nodes) * Amount::whole(NODE_CORES).units();
        let target = cores / 100 * i64::from(settings.full_percent);
        let mut cell =
            Self { shards, views: Vec::new(), live: Vec::new(), taken: 0, target, rng, outcomes: Vec::new() };
        for number in 1..=u64::from(settings.nodes) {
            let shard = (number % u64::from(settings.shards)) as u16;
            let node = registration(number, shard);
            cell.step(usize::from(shard), Command::AddNode(Box::new(node)), Time(0));
        }
        cell.views.extend(cell.shards.iter_mut().map(Shard::enable_views));
        while cell.taken < cell.target {
            let shard = cell.rng.below(u64::from(settings.shards)) as usize;
            let request = task(&mut cell.rng);
            let cpu = request.demand.cpu.units();
            if let Outcome::Place(Ok(placed)) = cell.step(shard, Command::Place(request), Time(0)) {
                cell.enter(shard, placed.allocation, cpu);
            }
        }
        cell.publish();
        cell
    }

    /// Returns the number of shards.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Returns the newest view of a shard.
    #[must_use]
    pub fn view(&self, shard: usize) -> Arc<View> {
        self.views[shard].read_until(self.views[shard].due())
    }

    fn step(&mut self, shard: usize, command: Command, now: Time) -> Outcome {
        self.shards[shard].step([command], now, &mut self.outcomes);
        self.outcomes.pop().expect("one command, one outcome")
    }

    /// Publishes views and reads them, so that there is always room for the next ones.
    fn publish(&mut self) {
        for (shard, reader) in self.shards.iter_mut().zip(&self.views) {
            shard.publish_view();
            drop(reader.latest());
        }
    }

    fn enter(&mut self, shard: usize, id: AllocationId, cpu: i64) {
        self.live.push(Live { shard, id, cpu });
        self.taken += cpu;
    }

    /// Commits `operations`. On one shard this takes one step. On several, the parts are prepared everywhere
    /// and decided once. Then they are committed everywhere, or (all-or-nothing) nowhere. Afterwards as much
    /// running work ends as was placed.
    pub fn commit(
        &mut self,
        statement: StatementId,
        operations: &[Placed],
        terms: Terms,
        now: Time,
    ) -> Committed {
        let Terms { conflict_detection, mode } = terms;
        let mut parts: Vec<(usize, Part)> = Vec::new();
        for shard in 0..self.shards.len() {
            let of_shard = (0u16..).zip(operations).filter(|(_, (at, _))| *at == shard);
            let operations: Vec<_> =
                of_shard.map(|(place, (_, operation))| (place, operation.clone())).collect();
            if !operations.is_empty() {
                parts.push((shard, Part { statement, operations, conflict_detection, mode }));
            }
        }
        let mut committed = Committed::default();
        if parts.len() == 1 {
            let (shard, part) = parts.swap_remove(0);
            let outcome = self.step(shard, Command::Apply(Box::new(part)), now);
            self.take_applied(shard, &outcome, operations, &mut committed);
        } else {
            self.commit_across(parts, operations, now, &mut committed);
        }
        committed.granted.sort_unstable();
        while self.taken > self.target {
            let at = self.rng.below(self.live.len() as u64) as usize;
            let Live { shard, id, cpu } = self.live.swap_remove(at);
            let outcome = self.step(shard, Command::Release(id), now);
            assert!(
                matches!(outcome, Outcome::Release(Ok(Released { inside: None, .. }))),
                "what is live ends: {outcome:?}"
            );
            self.taken -= cpu;
        }
        self.publish();
        committed
    }

    fn commit_across(
        &mut self,
        parts: Vec<(usize, Part)>,
        operations: &[Placed],
        now: Time,
        committed: &mut Committed,
    ) {
        let cell = Arc::new(DecisionCell::default());
        let deadline = now.plus_nanos(HOLD_NS);
        let mut holding = Vec::new();
        let mut whole = true;
        for (shard, part) in parts {
            let statement = part.statement;
            let mode = part.mode;
            let prepare = Prepare { part, deadline, cell: Arc::clone(&cell) };
            let outcome = self.step(shard, Command::Prepare(Box::new(prepare)), now);
            let Outcome::Prepared(prepared) = outcome else { unreachable!("not prepared: {outcome:?}") };
            committed.conflicts += prepared.conflicts.len();
            whole &= prepared.conflicts.is_empty() || mode == CommitMode::Incremental;
            if !prepared.held.is_empty() {
                holding.push((shard, statement));
            }
        }
        let decision = cell.decide(if whole { Decision::Committed } else { Decision::Aborted });
        for (shard, statement) in holding {
            let outcome = self.step(shard, Command::Finish { statement, decision }, now);
            self.take_applied(shard, &outcome, operations, committed);
        }
    }

    fn take_applied(
        &mut self,
        shard: usize,
        outcome: &Outcome,
        operations: &[Placed],
        committed: &mut Committed,
    ) {
        let Outcome::Applied(Ok(applied)) = outcome else { unreachable!("not applied: {outcome:?}") };
        let Applied { granted, conflicts, .. } = &**applied;
        committed.conflicts += conflicts.len();
        for (place, granted) in granted {
            let (Granted::Allocated(placed), Operation::Allocate(asked)) =
                (granted, &operations[usize::from(*place)].1)
            else {
                unreachable!("only allocations are asked: {granted:?}")
            };
            self.enter(shard, placed.allocation, asked.demand.cpu.units());
            committed.granted.push(*place);
        }
    }

    /// Checks the books of every shard.
    ///
    /// # Errors
    /// When an invariant is violated. The text says which.
    pub fn check(&self) -> Result<(), Broken> {
        self.shards.iter().try_for_each(Shard::check_invariants)
    }
}

fn registration(number: u64, shard: u16) -> NodeRegistration {
    let spec = NodeSpec {
        name: format!("node-{number}").into(),
        identity: None,
        cpu: Amount::whole(NODE_CORES),
        memory: Amount::whole(NODE_MIB),
        gpus: 0,
        custom: None,
        labels: Labels::default(),
        taints: Taints::default(),
    };
    let id = NodeId(number);
    let ordinal = Ordinal(number);
    NodeRegistration { id, ordinal, partition: PartitionId(shard), spec, agent: None }
}

#[cfg(test)]
mod tests {
    use wharf_core::ids::TenantId;
    use wharf_core::statement::Allocate;

    use super::*;

    fn allocate(shard: usize, node: u64, cores: u32, expected: Option<u64>) -> Placed {
        let demand = Demand { cpu: Amount::whole(cores), ..Demand::default() };
        let node = NodeId(node);
        (
            shard,
            Operation::Allocate(Allocate {
                node,
                expected,
                demand,
                gpus: None,
                owner: None,
                bundle: None,
                tenant: TenantId::OPERATOR,
                lease: None,
            }),
        )
    }

    fn id(number: u64) -> StatementId {
        StatementId { incarnation: Incarnation(1), planner: 0, number }
    }

    #[test]
    fn a_statement_over_two_shards_is_done_as_its_mode_says() {
        let settings = Settings { nodes: 2, shards: 2, full_percent: 99, seconds: 1, seed: 1 };
        for (mode, granted) in [(CommitMode::AllOrNothing, vec![]), (CommitMode::Incremental, vec![1])] {
            let mut cell = Cell::new(&Settings { full_percent: 0, ..settings });
            cell.target = i64::MAX;
            let terms = Terms { conflict_detection: ConflictDetection::Fine, mode };
            let first = cell.commit(id(1), &[allocate(1, 1, 30, None)], terms, Time(1));
            assert_eq!(first, Committed { granted: vec![0], conflicts: 0 });
            let both = [allocate(1, 1, 3, None), allocate(0, 2, 3, None)];
            let second = cell.commit(id(2), &both, terms, Time(2));
            assert_eq!(second, Committed { granted, conflicts: 1 });
            assert_eq!(cell.check(), Ok(()));
        }
    }

    #[test]
    fn coarse_conflicts_where_fine_does_not() {
        let settings = Settings { nodes: 1, shards: 1, full_percent: 0, seconds: 1, seed: 1 };
        let mode = CommitMode::AllOrNothing;
        let mut cell = Cell::new(&settings);
        cell.target = i64::MAX;
        let mut version = 0;
        cell.view(0).nodes(|_, image, _| version = image.version);
        let planned = [allocate(0, 1, 1, Some(version))];
        let coarse = Terms { conflict_detection: ConflictDetection::Coarse, mode };
        assert_eq!(cell.commit(id(1), &planned, coarse, Time(1)).conflicts, 0);
        assert_eq!(cell.commit(id(2), &planned, coarse, Time(2)).conflicts, 1);
        let fine = Terms { conflict_detection: ConflictDetection::Fine, mode };
        assert_eq!(cell.commit(id(3), &planned, fine, Time(3)).conflicts, 0);
    }
}
