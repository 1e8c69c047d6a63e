//! A small coordinator of statements that uses the same commands as planners. It plans on facts that may be
//! old, prepares on every shard involved, decides once, and tells the shards the decision.
//!
//! It is slow, and it crashes: before the decision, or after it and before any shard has heard of it. The
//! deadlines of the holds then settle what it left behind.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use wharf_core::ids::{AllocationId, Incarnation, PartitionId, StatementId, TenantId};
use wharf_core::link::{Decision, DecisionCell};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::router::{Port, PortReply, PortRequest, Tag};
use wharf_core::shard::{Command, Outcome, Released, UnknownAllocation, UnknownStatement};
use wharf_core::statement::{
    Allocate, Applied, CommitMode, ConflictDetection, Evict, Granted, Operation, Part, Pipeline, Prepare,
    Prepared,
};
use wharf_core::time::Time;

use super::checkers::promises::Promise;
use super::checkers::rest::what_is_committed_is_done;
use super::checkers::{Verdict, named};
use super::choices::Choices;
use super::facts::Facts;

/// The coordinator's planner number. No real planner has it.
pub(super) const COORDINATOR: u16 = 999;

/// The highest number of statements in progress.
const UNDER_WAY_MAX: usize = 4;

/// The state of one shard's part.
enum State {
    /// The command was sent and is not answered.
    Asked,
    /// The part is held, or conflicts.
    Prepared(Prepared),
    /// The shard was told the decision.
    Told,
}

struct Piece {
    partition: PartitionId,
    state: State,
}

/// A statement in progress.
struct Statement {
    cell: Arc<DecisionCell>,
    mode: CommitMode,
    pieces: Vec<Piece>,
    decision: Option<Decision>,
}

/// The result of one step of the coordinator.
#[derive(Default)]
pub(super) struct Moved {
    /// The number of answers taken.
    pub(super) taken: usize,
    /// The statements that were decided, with their decisions.
    pub(super) decided: Vec<(StatementId, Decision)>,
}

/// Commits statements through its own port.
pub(super) struct Coordinator {
    port: Port,
    /// Answers that wait until what they tell of is durable: until this position of the journal is.
    held: VecDeque<(Tag, PortReply, u64)>,
    incarnation: Incarnation,
    last: u64,
    last_tag: Tag,
    under_way: BTreeMap<u64, Statement>,
    /// The statement and part that each answer belongs to.
    tags: BTreeMap<Tag, (u64, usize)>,
    /// Facts from some time ago.
    seen: Vec<Facts>,
    /// The allocations that were granted.
    pub(super) promised: BTreeMap<AllocationId, Promise>,
    /// The claims, under the ids that their allocations will have.
    claims: BTreeSet<AllocationId>,
    /// Allocations that the coordinator was told have ended.
    pub(super) ended: BTreeSet<AllocationId>,
    /// Statements whose result the coordinator does not know.
    pub(super) forgotten: BTreeSet<StatementId>,
}

impl Coordinator {
    pub(super) fn new(port: Port, incarnation: Incarnation) -> Self {
        Self {
            port,
            held: VecDeque::new(),
            incarnation,
            last: 0,
            last_tag: 0,
            under_way: BTreeMap::new(),
            tags: BTreeMap::new(),
            seen: Vec::new(),
            promised: BTreeMap::new(),
            claims: BTreeSet::new(),
            ended: BTreeSet::new(),
            forgotten: BTreeSet::new(),
        }
    }

    /// Continues the same coordinator after a start. It still owns what it was granted.
    pub(super) fn go_on(&mut self, port: Port, incarnation: Incarnation) {
        let lost: Vec<StatementId> = self.under_way.keys().map(|&number| self.id(number)).collect();
        let promised = std::mem::take(&mut self.promised);
        let ended = std::mem::take(&mut self.ended);
        let mut forgotten = std::mem::take(&mut self.forgotten);
        forgotten.extend(lost);
        let claims = std::mem::take(&mut self.claims);
        *self = Self { promised, claims, ended, forgotten, ..Self::new(port, incarnation) };
    }

    /// Returns whether it was granted this id, as an allocation or as a claim.
    pub(super) fn owns(&self, id: AllocationId) -> bool {
        self.promised.contains_key(&id) || self.claims.contains(&id)
    }

    /// Returns whether it knows of nothing in progress.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.port.pending() == 0 && self.held.is_empty()
    }

    fn id(&self, number: u64) -> StatementId {
        StatementId { incarnation: self.incarnation, planner: COORDINATOR, number }
    }

    fn send(&mut self, number: u64, piece: usize, partition: PartitionId, command: Command, now: Time) {
        self.last_tag += 1;
        self.tags.insert(self.last_tag, (number, piece));
        let at_once = self.port.submit(self.last_tag, PortRequest::Partition(partition, command), now);
        assert!(matches!(at_once, Ok(None)), "few commands are under way");
        self.port.flush();
    }

    /// Looks at the shards, to plan on these facts later. This includes bundles of groups.
    pub(super) fn look(&mut self, facts: &[Facts]) {
        self.seen = facts.to_vec();
    }

    /// Begins a statement from the facts seen last, if there are any.
    pub(super) fn begin(&mut self, choices: &mut Choices<'_>, now: Time) -> Option<StatementId> {
        if self.under_way.len() >= UNDER_WAY_MAX {
            return None;
        }
        let coarse = choices.one_in(3);
        let count = choices.below(4) as u16 + 1;
        let mut parts: BTreeMap<usize, Vec<(u16, Operation)>> = BTreeMap::new();
        let mut partitions = BTreeMap::new();
        for place in 0..count {
            let (shard, partition, operation) = plan(&self.seen, choices, coarse)?;
            partitions.insert(shard, partition);
            parts.entry(shard).or_default().push((place, operation));
        }
        self.last += 1;
        let number = self.last;
        let id = self.id(self.last);
        let conflict_detection = if coarse { ConflictDetection::Coarse } else { ConflictDetection::Fine };
        let mode = if choices.one_in(2) { CommitMode::Incremental } else { CommitMode::AllOrNothing };
        let cell = Arc::new(DecisionCell::default());
        let alone = parts.len() == 1 && choices.one_in(2);
        let mut pieces = Vec::new();
        for (at, (shard, operations)) in parts.into_iter().enumerate() {
            let partition = partitions[&shard];
            let part = Part { statement: id, operations, conflict_detection, mode };
            let command = if alone {
                Command::Apply(Box::new(part))
            } else {
                let deadline = Time(now.0 + 1 + choices.below(3_000));
                Command::Prepare(Box::new(Prepare { part, deadline, cell: Arc::clone(&cell) }))
            };
            pieces.push(Piece { partition, state: State::Asked });
            self.send(number, at, partition, command, now);
        }
        let decision = alone.then_some(Decision::Committed);
        self.under_way.insert(number, Statement { cell, mode, pieces, decision });
        Some(id)
    }

    /// Takes the shards' answers.
    pub(super) fn poll(&mut self, now: Time, moved: &mut Moved) -> Verdict {
        let (position, durable) =
            self.port.journal().map_or((0, 0), |journal| (journal.position(), journal.durable()));
        let held = &mut self.held;
        self.port.poll(now, |tag, reply| held.push_back((tag, reply, position)));
        while self.held.front().is_some_and(|held| held.2 <= durable) {
            let (tag, reply, _) = self.held.pop_front().expect("just seen");
            moved.taken += 1;
            let Some((number, piece)) = self.tags.remove(&tag) else { continue };
            let PortReply::One(outcome) = reply else { return Err("a shard answers alone".to_owned()) };
            match outcome {
                Outcome::Prepared(prepared) => {
                    if let Some(statement) = self.under_way.get_mut(&number) {
                        statement.pieces[piece].state = State::Prepared(*prepared);
                    }
                }
                Outcome::Applied(Ok(applied)) => self.handle_applied(number, piece, &applied),
                // An allocation that was evicted in the meantime is unknown.
                Outcome::Release(Ok(Released { allocation: id, .. }) | Err(UnknownAllocation(id))) => {
                    self.ended.insert(id);
                }
                Outcome::Applied(Err(UnknownStatement(id))) => {
                    let decision = self.under_way.get(&number).and_then(|statement| statement.decision);
                    named("what_is_committed_is_done", what_is_committed_is_done(id, decision))?;
                    self.done(number, piece);
                }
                other => return Err(format!("{} was answered with {other:?}", self.id(number))),
            }
        }
        Ok(())
    }

    fn handle_applied(&mut self, number: u64, piece: usize, applied: &Applied) {
        for (_, granted) in applied.granted.iter().filter(|_| self.under_way.contains_key(&number)) {
            match granted {
                Granted::Allocated(placement) => {
                    let promise = Promise { node: placement.node, gpus: placement.gpus.mask };
                    self.promised.insert(placement.allocation, promise);
                }
                Granted::Pipelined { allocation, .. } => {
                    self.claims.insert(*allocation);
                }
                Granted::Releasing { .. } | Granted::Ended(_) => {}
            }
        }
        self.done(number, piece);
    }

    /// Records that one shard has carried out the decision.
    fn done(&mut self, number: u64, piece: usize) {
        let Some(statement) = self.under_way.get_mut(&number) else { return };
        statement.pieces[piece].state = State::Told;
        let told = |piece: &Piece| matches!(piece.state, State::Told);
        let answered = !self.tags.values().any(|&(known, _)| known == number);
        if answered && statement.pieces.iter().all(told) {
            self.under_way.remove(&number);
        }
    }

    /// Moves one statement: decides it if all parts are prepared, tells a shard the decision, or forgets it if
    /// `dies`.
    pub(super) fn go_ahead(&mut self, choices: &mut Choices<'_>, dies: bool, now: Time, moved: &mut Moved) {
        let numbers: Vec<u64> = self.under_way.keys().copied().collect();
        if numbers.is_empty() {
            return;
        }
        let number = *choices.pick(&numbers);
        if dies {
            // The coordinator forgets the statement.
            self.under_way.remove(&number);
            self.forgotten.insert(self.id(number));
            self.tags.retain(|_, &mut (known, _)| known != number);
            return;
        }
        let id = self.id(number);
        let Some(statement) = self.under_way.get_mut(&number) else { return };
        if let Some(decision) = statement.decision {
            return self.tell(number, decision, now);
        }
        let prepared: Vec<&Prepared> = statement
            .pieces
            .iter()
            .filter_map(|piece| match &piece.state {
                State::Prepared(prepared) => Some(prepared),
                _ => None,
            })
            .collect();
        if prepared.len() < statement.pieces.len() {
            return;
        }
        let whole = prepared.iter().all(|prepared| prepared.conflicts.is_empty());
        let any = prepared.iter().any(|prepared| !prepared.held.is_empty());
        let fits = if statement.mode == CommitMode::AllOrNothing { whole } else { any };
        let wanted = if fits && !choices.one_in(6) { Decision::Committed } else { Decision::Aborted };
        let decision = statement.cell.decide(wanted);
        statement.decision = Some(decision);
        moved.decided.push((id, decision));
    }

    /// Tells one more shard the decision.
    fn tell(&mut self, number: u64, decision: Decision, now: Time) {
        let statement = self.id(number);
        let Some(under_way) = self.under_way.get_mut(&number) else { return };
        let untold = under_way.pieces.iter_mut().enumerate();
        let Some((at, piece, held)) = untold
            .filter_map(|(at, piece)| match &piece.state {
                State::Prepared(prepared) => {
                    let held = !prepared.held.is_empty() || prepared.conflicts.is_empty();
                    Some((at, piece, held))
                }
                _ => None,
            })
            .next()
        else {
            return;
        };
        let partition = piece.partition;
        piece.state = State::Told;
        if held {
            self.send(number, at, partition, Command::Finish { statement, decision }, now);
        } else {
            self.done(number, at);
        }
    }

    /// Releases everything that it was granted.
    pub(super) fn release_all(&mut self, now: Time) {
        let claims = std::mem::take(&mut self.claims);
        for id in std::mem::take(&mut self.promised).into_keys().chain(claims) {
            self.last_tag += 1;
            self.tags.insert(self.last_tag, (0, 0));
            let at_once = self.port.submit(self.last_tag, PortRequest::Release(id), now);
            assert!(matches!(at_once, Ok(None)), "its partition is there");
        }
        self.port.flush();
    }
}

/// Plans one operation on the facts seen. Returns its shard, a partition of that shard, and the operation.
fn plan(seen: &[Facts], choices: &mut Choices<'_>, coarse: bool) -> Option<(usize, PartitionId, Operation)> {
    let nodes: Vec<_> = seen
        .iter()
        .enumerate()
        .flat_map(|(shard, facts)| facts.nodes().map(move |node| (shard, node)))
        .collect();
    let allocations: Vec<_> = seen
        .iter()
        .enumerate()
        .flat_map(|(shard, facts)| facts.allocations().map(move |allocation| (shard, allocation)))
        .collect();
    if nodes.is_empty() {
        return None;
    }
    if !allocations.is_empty() && choices.one_in(3) {
        let &(shard, allocation) = choices.pick(&allocations);
        let version = seen[shard].node(allocation.node).map(|node| node.version);
        let grace_ns = if choices.one_in(2) { 0 } else { choices.below(8_000) };
        let evict = Evict { allocation: allocation.id, expected: version.filter(|_| coarse), grace_ns };
        return Some((shard, allocation.id.partition, Operation::Evict(evict)));
    }
    let &(shard, node) = choices.pick(&nodes);
    let gpu = match choices.below(4) {
        0 => GpuRequest::Fraction(3000),
        1 => GpuRequest::Whole(1),
        _ => GpuRequest::None,
    };
    let demand = Demand {
        cpu: Amount::whole(choices.below(3) as u32),
        memory: Amount::whole(choices.below(3) as u32),
        gpu,
        custom: None,
    };
    let registration = &node.registration;
    if choices.one_in(5) {
        let expected = coarse.then_some(node.version);
        let node = registration.id;
        let bundle = None;
        let pipeline = Pipeline { node, expected, demand, bundle, tenant: TenantId::OPERATOR };
        return Some((shard, registration.partition, Operation::Pipeline(pipeline)));
    }
    let allocate = Allocate {
        node: registration.id,
        expected: coarse.then_some(node.version),
        demand,
        gpus: None,
        owner: wharf_core::ids::OwnerId::new(choices.below(6)).filter(|owner| owner.number() < 3),
        bundle: None,
        tenant: TenantId::OPERATOR,
        lease: None,
    };
    Some((shard, registration.partition, Operation::Allocate(allocate)))
}
