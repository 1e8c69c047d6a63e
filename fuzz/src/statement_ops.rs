//! Runs commands about statements, claims and bundles on a shard and on a naive model, and compares the
//! answers.

use std::sync::Arc;

use wharf_core::ids::{
    AllocationId, BundleId, GroupId, Incarnation, NodeId, Ordinal, PartitionId, ShardId, StatementId,
    TenantId,
};
use wharf_core::index::Geometry;
use wharf_core::limits::{ALLOCATIONS_PER_NODE_DEFAULT, RESULT_KEPT_NS};
use wharf_core::link::{Decision, DecisionCell};
use wharf_core::node::{Labels, LifeEvent, NodeRegistration, NodeSpec, Taints};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest, ResourceKind};
use wharf_core::shard::{
    BundleRejection, ClaimEvent, Command, HybridSettings, NodeChange, NodeRejection, Outcome, Released,
    Shard, ShardConfig,
};
use wharf_core::statement::{
    Allocate, CommitMode, ConflictDetection, Evict, Granted, Operation, Part, Pipeline, Prepare,
};
use wharf_core::time::Time;

use crate::journaled::Journaled;
use crate::oracle::LinearStatements;

const NODES: u64 = 4;

/// The events of a run, so that a test can check that they occurred.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatementCounts {
    /// Parts that were held, fully or partly.
    pub held: u64,
    /// Parts with at least one conflict.
    pub conflicted: u64,
    /// Statements that were committed.
    pub committed: u64,
    /// Statements that were aborted.
    pub aborted: u64,
    /// Statements whose deadline passed.
    pub due: u64,
    /// Claims that became allocations later.
    pub granted: u64,
    /// Claims that ended.
    pub ended: u64,
    /// Placements into bundles.
    pub inside: u64,
}

/// Returns the tenant to which an allocation of a statement belongs: that of its group, or one of three by node.
fn tenant_of(node: NodeId, bundle: Option<BundleId>) -> TenantId {
    bundle.map_or(TenantId((node.0 % 3) as u16), |bundle| bundle.group.tenant)
}

impl StatementCounts {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.held += other.held;
        self.conflicted += other.conflicted;
        self.committed += other.committed;
        self.aborted += other.aborted;
        self.due += other.due;
        self.granted += other.granted;
        self.ended += other.ended;
        self.inside += other.inside;
    }
}

/// Choices from bytes. Every choice is zero once the bytes are used up.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        u64::from(self.0.next().copied().unwrap_or(0)) % bound
    }
}

struct Run<'a> {
    choices: Choices<'a>,
    shard: Shard,
    model: LinearStatements,
    now: u64,
    statements: u64,
    /// The ids that were ever granted or promised.
    ids: Vec<AllocationId>,
    /// Statements that are due and that this run has not decided.
    due: Vec<(StatementId, Arc<DecisionCell>)>,
    counts: StatementCounts,
}

/// Runs commands drawn from `bytes` and compares each with the model.
///
/// # Errors
/// Returns the first difference and the command that showed it.
pub fn run_statement_ops(bytes: &[u8]) -> Result<StatementCounts, String> {
    // One run in four has a low limit.
    let most = if bytes.len().is_multiple_of(4) { 4 } else { ALLOCATIONS_PER_NODE_DEFAULT };
    let mut shard = Shard::new(ShardConfig {
        shard: ShardId(0),
        incarnation: Incarnation(1),
        partitions: vec![PartitionId(0)],
        geometry: Geometry::default(),
        seed: 5,
        hybrid: HybridSettings::default(),
    });
    shard.set_allocations_per_node_max(most);
    let mut journal = Journaled::begin(&mut shard);
    let mut run = Run {
        choices: Choices(bytes.iter()),
        shard,
        model: LinearStatements::new(most),
        now: 0,
        statements: 0,
        ids: Vec::new(),
        due: Vec::new(),
        counts: StatementCounts::default(),
    };
    for number in 1..=NODES {
        run.add(number);
    }
    while run.choices.0.len() > 0 {
        run.one()?;
        match run.statements % 3 {
            0 => journal.read_page(&mut run.shard, Time(run.now)),
            _ => journal.follow(&mut run.shard),
        }
    }
    let now = Time(run.now);
    journal.check(&mut run.shard, 1, now)?;
    Ok(run.counts)
}

impl Run<'_> {
    fn add(&mut self, number: u64) {
        let cpu = 4 + 4 * (number as u32 % 2);
        let gpus = 2 * (number as u8 % 3);
        let spec = NodeSpec {
            name: format!("n{number}").into(),
            identity: None,
            cpu: Amount::whole(cpu),
            memory: Amount::whole(64),
            gpus,
            custom: None,
            labels: Labels::default(),
            taints: Taints::default(),
        };
        let id = NodeId(number);
        let ordinal = Ordinal(number);
        let partition = PartitionId(0);
        let node = NodeRegistration { id, ordinal, partition, spec, agent: None };
        self.shard.step([Command::AddNode(Box::new(node))], Time(self.now), &mut Vec::new());
        self.model.add_node(id, cpu, gpus);
    }

    fn node(&mut self) -> NodeId {
        NodeId(1 + self.choices.below(NODES))
    }

    fn id(&mut self) -> AllocationId {
        if self.choices.below(3) > 0 {
            let pick = self.choices.below(256) as usize;
            if let Some((id, _)) = self.model.live(pick) {
                return id;
            }
        }
        let none = AllocationId {
            incarnation: Incarnation(9),
            partition: PartitionId(0),
            sequence: 1,
            tenant: TenantId::OPERATOR,
        };
        let back = self.choices.below(12) as usize;
        self.ids.iter().rev().nth(back).copied().unwrap_or(none)
    }

    fn demand(&mut self) -> Demand {
        let gpu = match self.choices.below(6) {
            0 => GpuRequest::Whole(1),
            1 => GpuRequest::Whole(2),
            2 => GpuRequest::Fraction(4_000),
            3 => GpuRequest::Fraction(5_000),
            _ => GpuRequest::None,
        };
        Demand { cpu: Amount::whole(self.choices.below(4) as u32), gpu, ..Demand::default() }
    }

    fn bundle(&mut self) -> Option<BundleId> {
        let index = self.choices.below(12) as u32;
        let group = GroupId { incarnation: Incarnation(1), number: 1, tenant: TenantId(2) };
        (index < 6).then_some(BundleId { group, index })
    }

    fn operation(&mut self) -> Operation {
        match self.choices.below(4) {
            0 | 1 => {
                let node = self.node();
                let demand = self.demand();
                let bundle = self.bundle();
                let named = self.choices.below(4) == 0;
                let gpus = match demand.gpu {
                    GpuRequest::Whole(1) | GpuRequest::Fraction(_) if named => {
                        Some(1 << self.choices.below(4))
                    }
                    _ => None,
                };
                Operation::Allocate(Allocate {
                    node,
                    expected: None,
                    demand,
                    gpus,
                    owner: None,
                    bundle,
                    tenant: tenant_of(node, bundle),
                    lease: None,
                })
            }
            2 => {
                let node = self.node();
                let demand = self.demand();
                let bundle = self.bundle();
                Operation::Pipeline(Pipeline {
                    node,
                    expected: None,
                    demand,
                    bundle,
                    tenant: tenant_of(node, bundle),
                })
            }
            _ => {
                let allocation = self.id();
                let grace_ns = [0, 5, 20, 60][self.choices.below(4) as usize];
                Operation::Evict(Evict { allocation, expected: None, grace_ns })
            }
        }
    }

    /// Returns operations that evict an allocation and claim the capacity that this frees.
    fn preemption(&mut self, allocation: AllocationId, node: NodeId, count: u16) -> Vec<(u16, Operation)> {
        let grace_ns = [0, 5, 20, 60][self.choices.below(4) as usize];
        let evict = Operation::Evict(Evict { allocation, expected: None, grace_ns });
        let claims = (1..=count).map(|at| {
            let demand = self.demand();
            let bundle = self.bundle();
            (
                at,
                Operation::Pipeline(Pipeline {
                    node,
                    expected: None,
                    demand,
                    bundle,
                    tenant: tenant_of(node, bundle),
                }),
            )
        });
        std::iter::once((0, evict)).chain(claims).collect()
    }

    fn statement(&mut self) -> StatementId {
        let undecided = self.shard.undecided();
        if !undecided.is_empty() && self.choices.below(4) > 0 {
            return undecided[self.choices.below(undecided.len() as u64) as usize].0;
        }
        let back = self.choices.below(6);
        let number = self.statements.saturating_sub(back).max(1);
        StatementId { incarnation: Incarnation(1), planner: 0, number }
    }

    fn part(&mut self) -> Part {
        if self.choices.below(16) > 0 {
            self.statements += 1;
        }
        let statement = StatementId { incarnation: Incarnation(1), planner: 0, number: self.statements };
        let count = 1 + self.choices.below(4) as u16;
        let pick = self.choices.below(256) as usize;
        let operations = match self.model.live(pick).filter(|_| pick.is_multiple_of(2)) {
            Some((allocation, node)) => self.preemption(allocation, node, count),
            None => (0..count).map(|at| (at, self.operation())).collect(),
        };
        let whole = self.choices.below(2) == 0;
        let mode = if whole { CommitMode::AllOrNothing } else { CommitMode::Incremental };
        Part { statement, operations, conflict_detection: ConflictDetection::Fine, mode }
    }

    fn command(&mut self) -> Command {
        match self.choices.below(20) {
            0..4 => {
                let candidates = Some(vec![self.node()].into());
                let request = PlacementRequest::new(self.demand(), Policy::BestFit);
                Command::Place(PlacementRequest { candidates, ..request })
            }
            4..7 => Command::Release(self.id()),
            7..10 => Command::Apply(Box::new(self.part())),
            10..12 => {
                let part = self.part();
                let deadline = Time(self.now + self.choices.below(128));
                Command::Prepare(Box::new(Prepare { part, deadline, cell: Arc::default() }))
            }
            12..15 => {
                let statement = self.statement();
                let undecided = self.shard.undecided();
                let cell = undecided.iter().find(|(known, _)| *known == statement).map(|(_, cell)| cell);
                let wanted = [Decision::Committed, Decision::Aborted][self.choices.below(2) as usize];
                let decision = cell.map_or(wanted, |cell| cell.decide(wanted));
                Command::Finish { statement, decision }
            }
            15..17 => {
                let bundles = (0..=self.choices.below(3)).map(|_| self.id()).collect();
                Command::PlaceInto { bundles, demand: Box::new(self.demand()) }
            }
            17 => {
                let cpu = Amount::whole(1 + self.choices.below(9) as u32);
                Command::SetResources(self.node(), Box::new([(ResourceKind::Cpu, cpu)]))
            }
            18 => {
                let node = self.node();
                let ill = self.choices.below(16);
                let ill = (0..4u8).filter(|i| ill >> i & 1 == 1 && self.now.is_multiple_of(2));
                Command::SetHealth(node, ill.map(|instance| (instance, "ill".into())).collect())
            }
            _ => match self.choices.below(4) {
                0 => Command::RemoveNode { node: self.node(), force: true },
                1 => Command::Life(self.node(), LifeEvent::Drain),
                _ => Command::Life(self.node(), LifeEvent::Undrain),
            },
        }
    }

    /// Advances the time, decides what is due and runs one command.
    fn one(&mut self) -> Result<(), String> {
        self.now += match self.choices.below(40) {
            0 if self.choices.below(4) == 0 => RESULT_KEPT_NS,
            1..8 => 10,
            _ => 1,
        };
        self.shard.step([], Time(self.now), &mut Vec::new());
        let expected = self.model.pass(Time(self.now));
        let due: Vec<_> = self.shard.drain_due().collect();
        // Statements whose deadline had passed when they were prepared are reported at once.
        if !expected.iter().all(|statement| due.iter().any(|(known, _)| known == statement)) {
            return Err(format!("{expected:?} are due, the shard lists {due:?}"));
        }
        self.counts.due += due.len() as u64;
        self.due.extend(due);
        self.check("time".to_owned())?;
        let command = match self.due.pop() {
            Some((statement, cell)) if self.choices.below(2) == 0 => {
                Command::Finish { statement, decision: cell.decide(Decision::Aborted) }
            }
            _ => self.command(),
        };
        let mut outcomes = Vec::new();
        self.shard.step([command.clone()], Time(self.now), &mut outcomes);
        let outcome = outcomes.pop().expect("one outcome");
        self.compare(&command, &outcome).map_err(|error| format!("{command:?}: {error}"))?;
        self.check(format!("{command:?}"))
    }

    fn compare(&mut self, command: &Command, outcome: &Outcome) -> Result<(), String> {
        let differs = |model: String| Err(format!("the model says {model}, the shard {outcome:?}"));
        self.model.tell(outcome);
        match (command, outcome) {
            (Command::Place(request), _) => return self.compare_place(request, outcome),
            (Command::Release(id), _) => match (self.model.release(*id), outcome) {
                (Some(Some(inside)), Outcome::Release(Ok(Released { inside: Some(ended), .. })))
                    if inside == *ended => {}
                (Some(None), Outcome::Release(Ok(Released { inside: None, .. }))) => {}
                (None, Outcome::Release(Err(_))) => {}
                (model, _) => return differs(format!("{model:?}")),
            },
            (Command::Prepare(prepare), Outcome::Prepared(prepared)) => {
                self.counts.held += u64::from(!prepared.held.is_empty());
                self.counts.conflicted += u64::from(!prepared.conflicts.is_empty());
                self.model.prepare(&prepare.part, prepare.deadline, prepared)?;
            }
            (Command::Apply(part), Outcome::Applied(Ok(applied))) => {
                self.model.apply(part, applied)?;
                self.granted(&applied.granted);
            }
            (&Command::Finish { statement, decision }, _) => {
                match (self.model.finish(statement, decision), outcome) {
                    (Some(granted), Outcome::Applied(Ok(applied))) if granted == applied.granted => {
                        let committed = applied.decision == Decision::Committed;
                        self.counts.committed += u64::from(committed);
                        self.counts.aborted += u64::from(!committed);
                        self.granted(&granted);
                    }
                    (None, Outcome::Applied(Err(_))) => {}
                    (model, _) => return differs(format!("{model:?}")),
                }
            }
            (Command::PlaceInto { bundles, demand }, _) => {
                match (self.model.place_into_any(bundles, demand), outcome) {
                    (Ok(model), Outcome::PlaceInto(Ok(placed))) if model == **placed => {
                        self.counts.inside += 1;
                        self.ids.push(placed.allocation);
                    }
                    (Err(true), Outcome::PlaceInto(Err(BundleRejection::Short { .. }))) => {}
                    (Err(false), Outcome::PlaceInto(Err(BundleRejection::TooManyAllocations(full))))
                        if self.model.is_full(full.0) => {}
                    (Err(false), Outcome::PlaceInto(Err(rejection)))
                        if !matches!(
                            rejection,
                            BundleRejection::Short { .. } | BundleRejection::TooManyAllocations(_)
                        ) => {}
                    (model, _) => return differs(format!("{model:?}")),
                }
            }
            (Command::SetResources(node, totals), Outcome::Node(Ok(NodeChange::Updated(_)))) => {
                self.model.resize(*node, (totals[0].1.units() / Amount::SCALE) as u32);
            }
            (Command::SetHealth(node, ill), Outcome::Node(Ok(NodeChange::Health(_)))) => {
                self.model.set_ill(*node, ill.iter().fold(0, |mask, &(instance, _)| mask | 1 << instance));
            }
            (Command::Life(node, _), &Outcome::Node(Ok(NodeChange::State(_, state)))) => {
                self.model.set_state(*node, state);
            }
            (Command::RemoveNode { node, .. }, _) => match (self.model.remove(*node), outcome) {
                (Some(model), Outcome::Node(Ok(NodeChange::Removed { allocations_ended, .. })))
                    if model == *allocations_ended =>
                {
                    self.add(node.0);
                }
                (None, Outcome::Node(Err(NodeRejection::Held(..)))) => {}
                (model, _) => return differs(format!("{model:?}")),
            },
            (Command::Life(..), Outcome::Node(Err(_))) => {}
            _ => return differs("something else".to_owned()),
        }
        Ok(())
    }

    fn compare_place(&mut self, request: &PlacementRequest, outcome: &Outcome) -> Result<(), String> {
        let node = request.candidates.as_ref().expect("one is named")[0];
        match (self.model.place(node, &request.demand), outcome) {
            (Some(model), Outcome::Place(Ok(placed))) if model == *placed => self.ids.push(placed.allocation),
            (None, Outcome::Place(Err(_))) => {}
            (model, _) => return Err(format!("the model says {model:?}, the shard {outcome:?}")),
        }
        Ok(())
    }

    fn granted(&mut self, granted: &[(u16, Granted)]) {
        self.ids.extend(granted.iter().filter_map(|(_, came_to)| match came_to {
            Granted::Allocated(placement) => Some(placement.allocation),
            Granted::Pipelined { allocation, .. } => Some(*allocation),
            _ => None,
        }));
    }

    /// Checks the invariants, the events of claims and the books of every node.
    fn check(&mut self, after: String) -> Result<(), String> {
        self.shard.check_invariants().map_err(|broken| format!("after {after}: {broken}"))?;
        let name = |event: &ClaimEvent| format!("{event:?}");
        let mut events: Vec<_> = self.shard.drain_claim_events().map(|event| name(&event)).collect();
        let mut model: Vec<_> = self.model.drain_events().iter().map(name).collect();
        self.counts.granted += events.iter().filter(|event| event.starts_with("Granted")).count() as u64;
        self.counts.ended += events.iter().filter(|event| event.starts_with("Ended")).count() as u64;
        events.sort_unstable();
        model.sort_unstable();
        if events != model {
            return Err(format!("after {after}: claims came to {events:?}, the model says {model:?}"));
        }
        for number in 1..=NODES {
            let node = NodeId(number);
            let mut outcomes = Vec::new();
            self.shard.step([Command::NodeBooks(node)], Time(self.now), &mut outcomes);
            let books = match outcomes.pop() {
                Some(Outcome::Books(Ok(books))) => Some([0, 2].map(|at| {
                    let book = books.resources[at].1;
                    [
                        book.total,
                        book.available,
                        book.allocated,
                        book.held,
                        book.releasing,
                        book.pipelined,
                        book.unhealthy,
                        book.shortfall,
                    ]
                })),
                _ => None,
            };
            if books != self.model.books(node) {
                let model = self.model.books(node);
                return Err(format!("after {after}: node {node} has {books:?}, the model says {model:?}"));
            }
        }
        Ok(())
    }
}
