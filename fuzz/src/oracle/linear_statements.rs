//! A slow and simple model of statements, claims and bundles. Every node is a list of what is taken, and the
//! free capacity is summed up again for each question. Undoing restores a copy.
//!
//! It covers cores and GPU instances only. It is compared with the shard's answer to every command and with its
//! books.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::{AllocationId, BundleId, Incarnation, NodeId, PartitionId, StatementId, TenantId};
use wharf_core::limits::{GPU_INSTANCES_MAX, RESULT_KEPT_NS};
use wharf_core::link::Decision;
use wharf_core::node::NodeState;
use wharf_core::request::Placement;
use wharf_core::resource::{Demand, GpuAssignment};
use wharf_core::shard::{ClaimEvent, Outcome};
use wharf_core::statement::{
    Allocate, Applied, CommitMode, Conflict, ConflictReason, Evict, Granted, Operation, Part, Pipeline,
    Prepared,
};
use wharf_core::time::Time;

use super::ids::GrantedIds;
use super::linear_statement_node::{Allocation, Claim, Free, Hold, Node, Take, UNIT};

/// An operation that was possible: its place in the statement, the operation and its node.
type Done = (u16, Operation, NodeId);

#[derive(Clone, Debug)]
struct HeldPart {
    deadline: Time,
    asked: bool,
    /// Each operation with the node that it involved when it was held.
    held: Vec<(u16, Operation, NodeId)>,
}

/// The model.
#[derive(Clone, Debug, Default)]
pub struct LinearStatements {
    /// Allocations that the current part evicts without grace. Their bundles may be placed again by the same
    /// part.
    ending: BTreeSet<AllocationId>,
    nodes: BTreeMap<NodeId, Node>,
    held: BTreeMap<StatementId, HeldPart>,
    kept: BTreeMap<StatementId, (Time, Applied)>,
    now: Time,
    ids: GrantedIds,
    events: Vec<ClaimEvent>,
    /// The highest permitted number of allocations per node.
    allocations_max: usize,
}

impl LinearStatements {
    /// Creates a model without nodes. Each node may have at most `allocations_per_node_max` allocations.
    #[must_use]
    pub fn new(allocations_per_node_max: u16) -> Self {
        Self { allocations_max: usize::from(allocations_per_node_max), ..Self::default() }
    }

    /// Returns whether a node has as many allocations as permitted.
    #[must_use]
    pub fn is_full(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.count() >= self.allocations_max)
    }

    /// Adds a node.
    pub fn add_node(&mut self, id: NodeId, cpu: u32, gpus: u8) {
        let allocations = BTreeMap::new();
        let holds = Vec::new();
        let claims = Vec::new();
        let cpu = i64::from(cpu) * UNIT;
        let node = Node { cpu, gpus, state: NodeState::Ready, ill: 0, allocations, holds, claims };
        self.nodes.insert(id, node);
    }

    /// Notes the ids in the shard's outcome, before the model follows the command.
    pub fn tell(&mut self, outcome: &Outcome) {
        self.ids.tell(outcome);
    }

    fn next_id(&mut self, tenant: TenantId) -> AllocationId {
        self.ids.next(Incarnation(1), PartitionId(0), tenant)
    }

    /// Returns one of the live allocations and its node.
    #[must_use]
    pub fn live(&self, pick: usize) -> Option<(AllocationId, NodeId)> {
        let live =
            self.nodes.iter().flat_map(|(&node, there)| there.allocations.keys().map(move |&id| (id, node)));
        let count = live.clone().count();
        live.clone().nth(pick % count.max(1))
    }

    fn home(&self, id: AllocationId) -> Option<NodeId> {
        self.nodes.iter().find(|(_, node)| node.allocations.contains_key(&id)).map(|(&id, _)| id)
    }

    fn placed(&self, bundle: BundleId) -> bool {
        self.nodes.values().any(|node| {
            let live = node.allocations.iter().filter(|(id, _)| !self.ending.contains(id));
            let live = live.map(|(_, allocation)| allocation.bundle);
            let held = node.holds.iter().chain(node.claims.iter().map(|claim| &claim.hold));
            live.chain(held.map(|hold| hold.bundle)).any(|known| known == Some(bundle))
        })
    }

    /// Places a demand directly on one node.
    pub fn place(&mut self, node: NodeId, demand: &Demand) -> Option<Placement> {
        let there = self.nodes.get(&node).filter(|node| node.state == NodeState::Ready)?;
        if self.is_full(node) {
            return None;
        }
        let gpus = there.visible().choose(demand).ok()?;
        let id = self.next_id(TenantId::OPERATOR);
        Some(self.enter(node, id, Take { demand: demand.clone(), gpus }, None))
    }

    fn enter(&mut self, node: NodeId, id: AllocationId, take: Take, bundle: Option<BundleId>) -> Placement {
        let gpus = take.gpus;
        let inside = BTreeMap::new();
        let allocation = Allocation { take, until: None, evicted_by: None, bundle, inside };
        self.nodes.get_mut(&node).expect("a node").allocations.insert(id, allocation);
        Placement { node, allocation: id, gpus, alternative: 0, units: None }
    }

    /// Places a demand into a bundle.
    ///
    /// # Errors
    /// Returns true if the demand does not fit. Returns false if there is no such bundle or its node is full.
    pub fn place_into(&mut self, bundle: AllocationId, demand: &Demand) -> Result<Placement, bool> {
        let node = self.home(bundle).ok_or(false)?;
        let there = &self.nodes[&node].allocations[&bundle];
        if there.bundle.is_none() || there.until.is_some() {
            return Err(false);
        }
        if self.is_full(node) {
            return Err(false);
        }
        let own = Free { cpu: 0, gpus: [0; GPU_INSTANCES_MAX] };
        let mut own = own.less(std::iter::once(&there.take));
        (own.cpu, own.gpus) = (-own.cpu, own.gpus.map(|part| -part));
        let gpus = own.less(there.inside.values()).choose(demand).map_err(|_| true)?;
        let id = self.next_id(bundle.tenant);
        let take = Take { demand: demand.clone(), gpus };
        let there = self.nodes.get_mut(&node).and_then(|node| node.allocations.get_mut(&bundle));
        there.expect("just found").inside.insert(id, take);
        Ok(Placement { node, allocation: id, gpus, alternative: 0, units: None })
    }

    /// Places a demand into the first of some bundles that has room.
    ///
    /// # Errors
    /// Returns true if the demand does not fit into one of them. Returns false if none exists that has a place.
    pub fn place_into_any(&mut self, bundles: &[AllocationId], demand: &Demand) -> Result<Placement, bool> {
        let mut is_short = false;
        for &bundle in bundles {
            match self.place_into(bundle, demand) {
                Ok(placement) => return Ok(placement),
                Err(short) => is_short |= short,
            }
        }
        Err(is_short)
    }

    /// Releases an allocation. Returns `None` if the id is unknown. For a bundle, the inner value is the number
    /// of allocations that ended inside.
    pub fn release(&mut self, id: AllocationId) -> Option<Option<u32>> {
        for node in self.nodes.values_mut() {
            if node.allocations.values_mut().any(|allocation| allocation.inside.remove(&id).is_some()) {
                return Some(None);
            }
            if let Some(at) = node.claims.iter().position(|claim| claim.id == Some(id)) {
                node.claims.remove(at);
                self.grant();
                return Some(None);
            }
        }
        let node = self.home(id)?;
        let ended = self.end(node, id);
        Some(ended)
    }

    fn end(&mut self, node: NodeId, id: AllocationId) -> Option<u32> {
        let ended = self.nodes.get_mut(&node).and_then(|node| node.allocations.remove(&id)).expect("live");
        self.grant();
        ended.bundle.map(|_| ended.inside.len() as u32)
    }

    /// Grants, in order, every claim whose capacity is free.
    fn grant(&mut self) {
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            let node = self.nodes.get_mut(&id).expect("listed");
            let mut left = node.free();
            let mut granted = Vec::new();
            node.claims.retain(|claim| {
                let own = left.covers(&claim.hold.take);
                left = left.clone().less(std::iter::once(&claim.hold.take)).at_least_nothing();
                let Some(promised) = claim.id.filter(|_| own) else { return true };
                granted.push((promised, claim.hold.clone()));
                false
            });
            for (promised, hold) in granted {
                let placement = self.enter(id, promised, hold.take, hold.bundle);
                self.events.push(ClaimEvent::Granted(placement));
            }
        }
    }

    /// Moves claims that the node can no longer hold to other instances, or ends them.
    fn replan(&mut self, id: NodeId) {
        let node = self.nodes.get_mut(&id).expect("a node");
        let mut left = node.future(&BTreeSet::new()).at_least_nothing();
        let events = &mut self.events;
        // Undecided claims stay, and the others move around them.
        for claim in node.claims.iter().filter(|claim| claim.id.is_none()) {
            left = left.clone().less(std::iter::once(&claim.hold.take)).at_least_nothing();
        }
        node.claims.retain_mut(|claim| {
            let Some(promised) = claim.id else { return true };
            if !left.covers(&claim.hold.take) {
                match left.choose(&claim.hold.take.demand) {
                    Ok(gpus) => claim.hold.take.gpus = gpus,
                    Err(_) => {
                        events.push(ClaimEvent::Ended(promised));
                        return false;
                    }
                }
            }
            left = left.clone().less(std::iter::once(&claim.hold.take)).at_least_nothing();
            true
        });
        self.grant();
    }

    /// Sets the number of cores of a node.
    pub fn resize(&mut self, id: NodeId, cpu: u32) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.cpu = i64::from(cpu) * UNIT;
            self.replan(id);
        }
    }

    /// Sets which GPU instances of a node are unhealthy.
    pub fn set_ill(&mut self, id: NodeId, ill: u16) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.ill = ill & ((1 << node.gpus) - 1);
            self.replan(id);
        }
    }

    /// Sets the state of a node.
    pub fn set_state(&mut self, id: NodeId, state: NodeState) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.state = state;
        }
    }

    /// Removes a node by force and returns how many allocations end. Returns `None` if the node is unknown or
    /// an undecided statement involves it.
    pub fn remove(&mut self, id: NodeId) -> Option<u32> {
        if self.held.values().flat_map(|part| &part.held).any(|&(_, _, node)| node == id) {
            return None;
        }
        let node = self.nodes.remove(&id)?;
        self.events.extend(node.claims.iter().filter_map(|claim| claim.id).map(ClaimEvent::Ended));
        let inside: usize = node.allocations.values().map(|allocation| allocation.inside.len()).sum();
        Some((node.allocations.len() + inside) as u32)
    }

    fn hold_allocation(
        &mut self,
        statement: StatementId,
        at: u16,
        allocate: &Allocate,
    ) -> Result<NodeId, ConflictReason> {
        let Allocate { node, demand, gpus: named, bundle, .. } = allocate;
        self.expect_free(*node, *bundle, statement)?;
        if self.is_full(*node) {
            return Err(ConflictReason::TooManyAllocations);
        }
        let visible = self.nodes[node].visible();
        let chosen = visible.choose(demand)?;
        let gpus = named.map_or(chosen, |mask| GpuAssignment { mask, part: chosen.part });
        let take = Take { demand: demand.clone(), gpus };
        if let Some(instance) = (0..GPU_INSTANCES_MAX).find(|&i| take.part(i) > visible.gpus[i]) {
            return Err(ConflictReason::InstanceTaken(instance as u8));
        }
        let hold = Hold { statement, at, take, bundle: *bundle };
        self.nodes.get_mut(node).expect("just found").holds.push(hold);
        Ok(*node)
    }

    /// Checks that the node takes work and that the bundle is not placed anywhere.
    fn expect_free(
        &self,
        node: NodeId,
        bundle: Option<BundleId>,
        statement: StatementId,
    ) -> Result<(), ConflictReason> {
        let there = self.nodes.get(&node).ok_or(ConflictReason::UnknownNode)?;
        if there.state != NodeState::Ready {
            return Err(ConflictReason::NotReady(there.state));
        }
        let Some(bundle) = bundle.filter(|&bundle| self.placed(bundle)) else { return Ok(()) };
        let holds = self.nodes.values().flat_map(|node| {
            node.holds
                .iter()
                .chain(node.claims.iter().filter(|claim| claim.id.is_none()).map(|claim| &claim.hold))
        });
        let mut own = holds.filter(|hold| hold.statement == statement && hold.bundle == Some(bundle));
        Err(own
            .next()
            .map_or(ConflictReason::BundlePlaced(bundle), |hold| ConflictReason::Contradicts(hold.at)))
    }

    fn hold_claim(
        &mut self,
        statement: StatementId,
        at: u16,
        pipeline: &Pipeline,
        evicted: &BTreeSet<AllocationId>,
    ) -> Result<NodeId, ConflictReason> {
        let Pipeline { node, demand, bundle, .. } = pipeline;
        self.expect_free(*node, *bundle, statement)?;
        let node_there = &self.nodes[node];
        if node_there.count() >= self.allocations_max + node_there.ending(evicted) {
            return Err(ConflictReason::TooManyAllocations);
        }
        let gpus = node_there.future(evicted).less(node_there.claimed()).at_least_nothing().choose(demand)?;
        let hold = Hold { statement, at, take: Take { demand: demand.clone(), gpus }, bundle: *bundle };
        self.nodes.get_mut(node).expect("just found").claims.push(Claim { id: None, hold });
        Ok(*node)
    }

    fn hold_eviction(
        &mut self,
        statement: StatementId,
        evict: &Evict,
        evicted: &BTreeMap<AllocationId, u16>,
    ) -> Result<NodeId, ConflictReason> {
        let id = evict.allocation;
        if let Some(&first) = evicted.get(&id) {
            return Err(ConflictReason::Contradicts(first));
        }
        for (&node, there) in &mut self.nodes {
            let bundle = there.allocations.iter().find(|(_, allocation)| allocation.inside.contains_key(&id));
            if let Some((&bundle, _)) = bundle {
                return Err(ConflictReason::InBundle(bundle));
            }
            let Some(allocation) = there.allocations.get_mut(&id) else { continue };
            if let Some(other) = allocation.evicted_by {
                return Err(ConflictReason::HeldBy(other));
            }
            if allocation.until.is_some() {
                return Err(ConflictReason::AlreadyReleasing);
            }
            allocation.evicted_by = Some(statement);
            return Ok(node);
        }
        Err(ConflictReason::UnknownAllocation(id))
    }

    /// Tries a part. Returns what is held and what conflicts, ignoring expected versions.
    fn try_part(&mut self, part: &Part) -> (Vec<Done>, Vec<(u16, ConflictReason)>) {
        let before = self.clone();
        let mut held = Vec::new();
        let mut conflicts = Vec::new();
        let mut evicted: BTreeMap<AllocationId, u16> = BTreeMap::new();
        self.ending.clear();
        for &(at, ref operation) in &part.operations {
            let done = match operation {
                Operation::Allocate(allocate) => self.hold_allocation(part.statement, at, allocate),
                Operation::Pipeline(pipeline) => {
                    self.hold_claim(part.statement, at, pipeline, &evicted.keys().copied().collect())
                }
                Operation::Evict(evict) => {
                    let done = self.hold_eviction(part.statement, evict, &evicted);
                    if done.is_ok() {
                        evicted.insert(evict.allocation, at);
                        self.ending.extend((evict.grace_ns == 0).then_some(evict.allocation));
                    }
                    done
                }
            };
            match done {
                Ok(node) => held.push((at, operation.clone(), node)),
                Err(reason) => conflicts.push((at, reason)),
            }
        }
        if part.mode == CommitMode::AllOrNothing && !conflicts.is_empty() {
            *self = before;
            held.clear();
        }
        (held, conflicts)
    }

    fn is_known(&self, statement: StatementId) -> bool {
        self.held.contains_key(&statement) || self.kept.contains_key(&statement)
    }

    /// Prepares a part and checks that the shard holds and rejects the same operations.
    ///
    /// # Errors
    /// Returns the difference.
    pub fn prepare(&mut self, part: &Part, deadline: Time, prepared: &Prepared) -> Result<(), String> {
        if self.is_known(part.statement) {
            return all_repeated(&prepared.conflicts, part);
        }
        let (held, conflicts) = self.try_part(part);
        let places: Vec<u16> = held.iter().map(|&(at, ..)| at).collect();
        let known = !held.is_empty() || conflicts.is_empty();
        if known {
            let asked = deadline <= self.now;
            self.held.insert(part.statement, HeldPart { deadline, asked, held });
        }
        same("held", &places, &prepared.held)?;
        same("conflicts", &conflicts, &reasons(&prepared.conflicts))
    }

    /// Same as [`prepare`](Self::prepare), for a part that is committed at once.
    ///
    /// # Errors
    /// Returns the difference.
    pub fn apply(&mut self, part: &Part, applied: &Applied) -> Result<(), String> {
        if self.is_known(part.statement) {
            return all_repeated(&applied.conflicts, part);
        }
        let (held, conflicts) = self.try_part(part);
        let done = !held.is_empty() || conflicts.is_empty();
        let granted = self.commit(part.statement, held);
        same("decision", &(applied.decision == Decision::Committed), &done)?;
        same("granted", &granted, &applied.granted)?;
        same("conflicts", &conflicts, &reasons(&applied.conflicts))
    }

    /// Finishes a statement and returns the expected grants, or `None` if the statement is unknown.
    pub fn finish(&mut self, statement: StatementId, decision: Decision) -> Option<Vec<(u16, Granted)>> {
        let Some(part) = self.held.remove(&statement) else {
            return self.kept.remove(&statement).map(|(_, applied)| applied.granted);
        };
        if decision == Decision::Aborted {
            for node in self.nodes.values_mut() {
                node.holds.retain(|hold| hold.statement != statement);
                node.claims.retain(|claim| claim.id.is_some() || claim.hold.statement != statement);
                for allocation in node.allocations.values_mut() {
                    allocation.evicted_by = allocation.evicted_by.filter(|&by| by != statement);
                }
            }
            self.grant();
            return Some(Vec::new());
        }
        let granted = self.commit(statement, part.held);
        if part.asked {
            let applied = Applied {
                statement,
                decision,
                granted: granted.clone(),
                conflicts: Vec::new(),
                visible_from: 0,
            };
            self.kept.insert(statement, (Time(self.now.0 + RESULT_KEPT_NS), applied));
        }
        Some(granted)
    }

    fn commit(&mut self, statement: StatementId, held: Vec<(u16, Operation, NodeId)>) -> Vec<(u16, Granted)> {
        let mut granted = Vec::new();
        let mut claimed = BTreeSet::new();
        for (at, operation, node) in held {
            let there = self.nodes.get_mut(&node).expect("a node with holds stays");
            let is_own = |hold: &Hold| hold.statement == statement && hold.at == at;
            let came_to = match operation {
                Operation::Allocate(Allocate { tenant, .. }) => {
                    let place = there.holds.iter().position(is_own).expect("it is held");
                    let hold = there.holds.remove(place);
                    let id = self.next_id(tenant);
                    Granted::Allocated(self.enter(node, id, hold.take, hold.bundle))
                }
                Operation::Pipeline(Pipeline { tenant, .. }) => {
                    claimed.insert(node);
                    let id = self.next_id(tenant);
                    let there = self.nodes.get_mut(&node).expect("just found");
                    let claim =
                        there.claims.iter_mut().find(|claim| claim.id.is_none() && is_own(&claim.hold));
                    claim.expect("it is held").id = Some(id);
                    Granted::Pipelined { allocation: id, node }
                }
                Operation::Evict(Evict { allocation: id, grace_ns, .. }) => {
                    let until = Time(self.now.0 + grace_ns);
                    match there.allocations.get_mut(&id) {
                        None => Granted::Ended(id),
                        Some(_) if grace_ns == 0 => {
                            self.end(node, id);
                            Granted::Ended(id)
                        }
                        Some(allocation) => {
                            (allocation.evicted_by, allocation.until) = (None, Some(until));
                            Granted::Releasing { allocation: id, until }
                        }
                    }
                }
            };
            granted.push((at, came_to));
        }
        for node in claimed {
            self.replan(node);
        }
        for (_, came_to) in &mut granted {
            let Granted::Pipelined { allocation, .. } = came_to else { continue };
            let own =
                |event: &ClaimEvent| matches!(event, ClaimEvent::Granted(p) if p.allocation == *allocation);
            if let Some(place) = self.events.iter().position(own)
                && let ClaimEvent::Granted(placement) = self.events.remove(place)
            {
                *came_to = Granted::Allocated(placement);
            }
        }
        granted
    }

    /// Advances the time: ends grace periods and forgets kept results. Returns the statements that became due.
    pub fn pass(&mut self, now: Time) -> Vec<StatementId> {
        self.now = now;
        while let Some((_, node, id)) = self
            .nodes
            .iter()
            .flat_map(|(&node, there)| there.allocations.iter().map(move |(&id, a)| (a.until, node, id)))
            .filter_map(|(until, node, id)| Some((until?, node, id)))
            .filter(|&(until, ..)| until <= now)
            .min_by_key(|&(until, _, id)| (until, id))
        {
            self.end(node, id);
        }
        self.kept.retain(|_, (until, _)| *until > now);
        let mut due: Vec<(Time, StatementId)> = Vec::new();
        for (&statement, part) in &mut self.held {
            if !part.asked && part.deadline <= now {
                part.asked = true;
                due.push((part.deadline, statement));
            }
        }
        due.sort_unstable();
        due.into_iter().map(|(_, statement)| statement).collect()
    }

    /// Returns the outcomes of claims since the last call.
    pub fn drain_events(&mut self) -> Vec<ClaimEvent> {
        std::mem::take(&mut self.events)
    }

    /// Returns the books of a node, for cores and GPUs: total, available, allocated, held, releasing,
    /// pipelined, unhealthy, shortfall.
    pub fn books(&self, id: NodeId) -> Option<[[i64; 8]; 2]> {
        let node = self.nodes.get(&id)?;
        let sum = |takes: &mut dyn Iterator<Item = &Take>| {
            takes.fold([0, 0], |[cpu, gpu], take| [cpu + take.cpu(), gpu + take.gpus.units()])
        };
        let of = |leaving: bool| {
            let allocations = node.allocations.values().filter(move |a| a.until.is_some() == leaving);
            allocations.map(|allocation| &allocation.take)
        };
        let allocated = sum(&mut of(false));
        let releasing = sum(&mut of(true));
        let held = sum(&mut node.holds.iter().map(|hold| &hold.take));
        let pipelined = sum(&mut node.claimed());
        let visible = node.visible();
        let unused = node.unused();
        let ill: i64 =
            (0..GPU_INSTANCES_MAX).filter(|i| node.ill >> i & 1 == 1).map(|i| unused.gpus[i].max(0)).sum();
        let row = |at: usize, total, available, unhealthy, short: i64| {
            [total, available, allocated[at], held[at], releasing[at], pipelined[at], unhealthy, short]
        };
        let gpus = row(1, i64::from(node.gpus) * UNIT, visible.gpus.iter().sum(), ill, 0);
        Some([row(0, node.cpu, visible.cpu, 0, (-unused.cpu).max(0)), gpus])
    }
}

fn reasons(conflicts: &[Conflict]) -> Vec<(u16, ConflictReason)> {
    conflicts.iter().map(|conflict| (conflict.operation, conflict.reason)).collect()
}

fn all_repeated(conflicts: &[Conflict], part: &Part) -> Result<(), String> {
    let expected: Vec<_> = part.operations.iter().map(|&(at, _)| (at, ConflictReason::Repeated)).collect();
    same("conflicts", &expected, &reasons(conflicts))
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, model: &T, shard: &T) -> Result<(), String> {
    if model == shard {
        Ok(())
    } else {
        Err(format!("{what}: the model says {model:?}, the shard {shard:?}"))
    }
}
