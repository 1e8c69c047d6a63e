//! The shard's invariants as ordinary code, and its canonical hash.
//!
//! Each check computes its truth anew from the ledger and the capacities; nothing it compares
//! is derived from what it checks.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use super::command::{Audit, ResourceKind, ResourceSum};
use super::custom::{CustomBook, units_of};
use super::ledger::Allocation;
use super::set_aside::SetAside;
use super::sums::shortfall_of;
use super::table::{ColdNode, HotNode, Room};
use super::{Shard, Slot};
use crate::hash::{StateHash, StateHasher};
use crate::ids::{AllocationId, BundleId, ResourceId};
use crate::index::Marks;
use crate::limits::GPU_INSTANCES_MAX;
use crate::node::{AgentFacts, NodeState};
use crate::resource::{Amount, Demand, GPU_UNIT, GpuAssignment, UnitAssignments, UnitBooks};
use crate::store::PartitionState;

/// What of a node is in use, summed anew.
pub(super) struct InUse {
    pub(super) allocated: Held,
    pub(super) releasing: Held,
    pub(super) held: Held,
    pub(super) all: Held,
}

/// A sum of what is held.
#[derive(Default)]
pub(super) struct Held {
    pub(super) cpu: Amount,
    pub(super) memory: Amount,
    pub(super) gpus: [u32; GPU_INSTANCES_MAX],
    pub(super) custom: BTreeMap<ResourceId, Amount>,
    /// Per unit of a unit-instance kind.
    pub(super) units: BTreeMap<(ResourceId, u8), u32>,
    count: u32,
}

impl Held {
    pub(super) fn add(
        &mut self,
        demand: &Demand,
        gpus: GpuAssignment,
        units: Option<&Arc<UnitAssignments>>,
        who: &dyn Display,
    ) {
        self.count += 1;
        self.cpu = self.cpu.plus(demand.cpu);
        self.memory = self.memory.plus(demand.memory);
        for instance in gpus.instances() {
            self.gpus[usize::from(instance)] += u32::from(gpus.part);
        }
        for &(id, amount) in demand.custom() {
            let sum = self.custom.entry(id).or_default();
            *sum = sum.plus(amount);
            if id.is_unit_instance() {
                let units = units_of(units, id);
                assert!(units.units() == amount.units(), "{who} holds other units");
                for unit in units.instances() {
                    *self.units.entry((id, unit)).or_default() += u32::from(units.part);
                }
            }
        }
    }

    /// Of one resource, in 1/10 000.
    pub(super) fn of(&self, kind: ResourceKind) -> i64 {
        match kind {
            ResourceKind::Cpu => self.cpu.units(),
            ResourceKind::Memory => self.memory.units(),
            ResourceKind::Gpu => self.gpus.iter().map(|&part| i64::from(part)).sum(),
            ResourceKind::Custom(id) => self.custom.get(&id).map_or(0, |amount| amount.units()),
        }
    }
}

impl Shard {
    /// Checks every invariant over the whole state: O(state).
    ///
    /// Numbers are those of ARCHITECTURE.md: (1) nothing is held beyond what there was, (2) the
    /// books balance per node, resource and GPU instance, (3) the index agrees with the table.
    ///
    /// # Errors
    /// The first one that is broken.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut sums: BTreeMap<ResourceKind, ResourceSum> = BTreeMap::new();
        let mut allocations = 0u64;
        let mut states: BTreeMap<u8, u32> = BTreeMap::new();
        for (slot, hot, cold) in self.nodes.iter() {
            let in_use = self.in_use(slot);
            let count = in_use.allocated.count + in_use.releasing.count;
            if count != hot.allocations {
                return Err(format!(
                    "node {} counts {} allocations and lists {count}",
                    hot.id, hot.allocations
                ));
            }
            allocations += u64::from(count);
            check_node(self.nodes.room(slot), hot, cold, &in_use.all, &self.aside(slot))?;
            let books = self.books_at(slot);
            if let Some((kind, book)) = books.resources.iter().find(|(_, book)| !book.balances()) {
                return Err(format!("node {}, {kind}: {book:?} does not balance", hot.id));
            }
            self.check_places(slot, hot)?;
            self.check_index(slot, hot)?;
            *states.entry(self.nodes.state(slot).number()).or_default() += 1;
            add_to_sums(&mut sums, cold, &in_use);
            sums.entry(ResourceKind::Gpu).or_default().unhealthy += cold.hidden_total();
            for (kind, amount) in shortfall_of(&self.nodes, slot) {
                sums.entry(kind).or_default().shortfall += amount;
            }
        }
        self.ledger.check()?;
        self.adopted.check(|id| self.is_live(id))?;
        if allocations != self.ledger.len() as u64 {
            return Err(format!(
                "nodes list {allocations} allocations, the ledger holds {}",
                self.ledger.len()
            ));
        }
        let in_state = |state: NodeState| states.get(&state.number()).copied().unwrap_or(0);
        let lost =
            in_state(NodeState::Lost { draining: false }) + in_state(NodeState::Lost { draining: true });
        let [ready, draining, joining] =
            [NodeState::Ready, NodeState::Draining, NodeState::Joining].map(in_state);
        let summed = &self.sums;
        let summed = [summed.nodes_ready, summed.nodes_draining, summed.nodes_joining, summed.nodes_lost];
        if [ready, draining, joining, lost] != summed {
            return Err(format!(
                "{ready} nodes are ready, {draining} draining, {joining} joining, {lost} lost; the sums say {summed:?}"
            ));
        }
        for (kind, counted) in self.sums.resources() {
            let truth = sums.remove(&kind).unwrap_or_default();
            if truth != counted {
                return Err(format!("the sums of {kind:?} say {counted:?}, the nodes {truth:?}"));
            }
        }
        if let Some((kind, truth)) = sums.into_iter().find(|(_, truth)| *truth != ResourceSum::default()) {
            return Err(format!("the sums do not know {kind:?}: {truth:?}"));
        }
        self.check_waiting()?;
        self.check_reservations()?;
        self.check_statements()?;
        self.index.check()?;
        self.capacities.check()?;
        self.selectors.check(&self.nodes)?;
        self.rankings.check(&self.nodes)
    }

    pub(super) fn in_use(&self, slot: Slot) -> InUse {
        let [mut allocated, mut releasing, mut held, mut all] = std::array::from_fn(|_| Held::default());
        for Allocation { id, demand, gpus, units, .. } in self.ledger.of_node(slot, &self.nodes) {
            let sum = if self.is_releasing(id) { &mut releasing } else { &mut allocated };
            for sum in [sum, &mut all] {
                sum.add(&demand, gpus, units.as_ref(), &id);
            }
        }
        for (statement, hold) in self.statements.allocating_at(slot) {
            for sum in [&mut held, &mut all] {
                sum.add(&hold.demand, hold.gpus, hold.units.as_ref(), &statement);
            }
        }
        InUse { allocated, releasing, held, all }
    }

    /// What of a node counts against the allocations that it may hold.
    fn check_places(&self, slot: Slot, hot: &HotNode) -> Result<(), String> {
        let live =
            self.ledger.of_node(slot, &self.nodes).map(|allocation| 1 + self.count_inside(allocation.id));
        let held = self.statements.allocating_at(slot).count();
        let count = live.sum::<usize>() + held + self.reservations.claims.at(slot).len();
        let places = self.nodes.room(slot).places;
        if i64::from(places) + count as i64 == i64::from(self.nodes.places_max()) {
            return Ok(());
        }
        Err(format!("node {} has {count} allocations, and places for {places} more", hot.id))
    }

    pub(super) fn check_index(&self, slot: Slot, hot: &HotNode) -> Result<(), String> {
        let available = self.nodes.available(slot);
        let expected = self.nodes.takes_work(slot).then(|| self.index.geometry().coordinate(&available));
        if self.index.coordinate(slot) != expected {
            return Err(format!(
                "node {} stands at {:?} in the index, expected {expected:?}",
                hot.id,
                self.index.coordinate(slot)
            ));
        }
        let capacity = self.capacities.geometry().coordinate(&self.nodes.capacity(slot));
        if self.capacities.coordinate(slot) != Some(capacity) {
            return Err(format!("node {} stands elsewhere than its capacity", hot.id));
        }
        for (mark, set) in self.selectors.marks_given() {
            for index in [&self.index, &self.capacities] {
                let marks = index.marks(slot);
                if marks.is_some_and(|marks| marks.hold(Marks::only(mark)) != set.contains(slot)) {
                    return Err(format!("node {}: mark {} is wrong", hot.id, mark.number()));
                }
            }
        }
        for (mark, ranking, rank) in self.rankings.marks_given() {
            for index in [&self.index, &self.capacities] {
                let marks = index.marks(slot);
                if marks.is_some_and(|marks| marks.hold(Marks::only(mark)) != (ranking.rank(slot) == rank)) {
                    return Err(format!("node {}: mark {} of a rank is wrong", hot.id, mark.number()));
                }
            }
        }
        self.check_hybrid(slot)
    }

    /// The canonical hashes.
    pub(super) fn audit(&self) -> Audit {
        let state = self.export();
        let partitions: Vec<_> = state.partitions.iter().map(|p| (p.id, partition_hash(p))).collect();
        let mut hasher = StateHasher::new("shard");
        hasher.number(state.policy.next_fit.0);
        hasher.number(state.policy.rng.state());
        if let Some(granularity) = &state.granularity {
            granularity.thetas.iter().for_each(|&theta| hasher.amount(theta));
            hasher.number(granularity.changes);
        }
        for &(_, hash) in &partitions {
            hasher.state(hash);
        }
        Audit { shard: hasher.finish(), partitions }
    }

    /// The canonical hash of the whole shard.
    #[must_use]
    pub fn state_hash(&self) -> StateHash {
        self.audit().shard
    }
}

fn check_node(
    room: &Room,
    hot: &HotNode,
    cold: &ColdNode,
    held: &Held,
    aside: &SetAside,
) -> Result<(), String> {
    let spec = &cold.registration.spec;
    check_book(hot, "cpu", spec.cpu, room.cpu.plus(aside.cpu), cold.cpu_shortfall, held.cpu)?;
    let memory = room.memory.plus(aside.memory);
    check_book(hot, "memory", spec.memory, memory, cold.memory_shortfall, held.memory)?;
    if (room.whole_gpus, room.largest_gpu_part) != (hot.gpus.whole_free(), hot.gpus.largest_free()) {
        return Err(format!("node {}: the GPU books and what is kept of them differ", hot.id));
    }
    for instance in 0..GPU_INSTANCES_MAX as u8 {
        let at = usize::from(instance);
        let amount = |units: u32| Amount::try_from_units(i64::from(units)).unwrap_or_default();
        let total = if instance < spec.gpus { u32::from(GPU_UNIT) } else { 0 };
        let unoffered = u32::from(cold.hidden(instance)) + u32::from(aside.gpus[at]);
        let available = u32::from(hot.gpus.free(instance)) + unoffered;
        let short = cold.gpu_shortfall[at];
        let name = format!("gpu instance {instance}");
        check_book(hot, &name, amount(total), amount(available), amount(short), amount(held.gpus[at]))?;
    }
    super::health::check(hot, cold)?;
    let mut unseen = held.custom.clone();
    for book in &cold.custom {
        let used = unseen.remove(&book.id).unwrap_or_default();
        if let Some(units) = &book.units {
            check_units(hot, book, units, used, held, aside)?;
            continue;
        }
        check_book(
            hot,
            &format!("resource {}", book.id.0),
            book.total,
            book.available.plus(aside.of(book.id)),
            book.shortfall,
            used,
        )?;
    }
    if let Some(id) = unseen.keys().next() {
        return Err(format!("node {} has no book of resource {}, which its allocations hold", hot.id, id.0));
    }
    Ok(())
}

/// The books of every unit, and that the sums are theirs.
fn check_units(
    hot: &HotNode,
    book: &CustomBook,
    units: &UnitBooks,
    used: Amount,
    held: &Held,
    aside: &SetAside,
) -> Result<(), String> {
    let part = |part: u32| Amount::from_parts(std::iter::once(part));
    let mut seen = Amount::ZERO;
    for (id, free, short) in units.iter() {
        let total = if id < units.count() { u32::from(GPU_UNIT) } else { 0 };
        let allocated = part(held.units.get(&(book.id, id)).copied().unwrap_or(0));
        let name = format!("resource {} unit {id}", book.id.index());
        let available = u32::from(free) + u32::from(aside.of_unit(book.id, id));
        check_book(hot, &name, part(total), part(available), part(short), allocated)?;
        seen = seen.plus(allocated);
    }
    let sums = (Amount::whole(u32::from(units.count())), units.free(), units.short(), seen);
    if sums != (book.total, book.available, book.shortfall, used) {
        return Err(format!("node {}: the sums of {book:?} are not those of its units", hot.id));
    }
    Ok(())
}

/// `available + allocated = total + shortfall`, and a shortfall only where nothing is available.
fn check_book(
    hot: &HotNode,
    resource: &str,
    total: Amount,
    available: Amount,
    shortfall: Amount,
    allocated: Amount,
) -> Result<(), String> {
    if available.plus(allocated) != total.plus(shortfall) {
        return Err(format!(
            "node {}, {resource}: {available} available + {allocated} allocated is not {total} total + {shortfall} shortfall",
            hot.id
        ));
    }
    if !shortfall.is_zero() && !available.is_zero() {
        return Err(format!(
            "node {}, {resource}: {available} available beside a shortfall of {shortfall}",
            hot.id
        ));
    }
    Ok(())
}

fn add_to_sums(sums: &mut BTreeMap<ResourceKind, ResourceSum>, cold: &ColdNode, in_use: &InUse) {
    let spec = &cold.registration.spec;
    let units = |amount: Amount| i128::from(amount.units());
    let totals = [
        (ResourceKind::Cpu, units(spec.cpu)),
        (ResourceKind::Memory, units(spec.memory)),
        (ResourceKind::Gpu, i128::from(spec.gpus) * i128::from(GPU_UNIT)),
    ];
    let custom = spec.custom.as_deref().unwrap_or(&[]);
    let custom = custom.iter().map(|&(id, total)| (ResourceKind::Custom(id), units(total)));
    for (kind, total) in totals.into_iter().chain(custom) {
        sums.entry(kind).or_default().total += total;
    }
    let used = in_use.all.custom.keys().map(|&id| ResourceKind::Custom(id));
    for kind in totals.map(|(kind, _)| kind).into_iter().chain(used) {
        let sum = sums.entry(kind).or_default();
        sum.allocated += i128::from(in_use.allocated.of(kind));
        sum.held += i128::from(in_use.held.of(kind));
        sum.releasing += i128::from(in_use.releasing.of(kind));
    }
}

/// The canonical hash of one partition's durable state.
#[must_use]
pub fn partition_hash(partition: &PartitionState) -> StateHash {
    let mut hasher = StateHasher::new("partition");
    hasher.number(u64::from(partition.id.0));
    hasher.number(partition.sequence);
    hasher.number(partition.nodes.len() as u64);
    for node in &partition.nodes {
        let spec = &node.registration.spec;
        hasher.number(node.registration.id.0);
        hasher.number(node.registration.ordinal.0);
        hasher.text(&spec.name);
        hasher.text(spec.identity.as_deref().unwrap_or(""));
        hasher.amount(spec.cpu.units());
        hasher.amount(spec.memory.units());
        hasher.number(u64::from(spec.gpus));
        hash_custom(&mut hasher, spec.custom.as_deref().unwrap_or(&[]));
        hasher.number(spec.labels.len() as u64);
        for (key, value) in spec.labels.iter() {
            hasher.text(key);
            hasher.text(value);
        }
        hasher.number(spec.taints.as_slice().len() as u64);
        for taint in spec.taints.as_slice() {
            hasher.text(&taint.key);
            hasher.text(&taint.value);
            hasher.number(taint.effect as u64 + 1);
        }
        hasher.number(u64::from(node.state.number()));
        hash_agent(&mut hasher, node.registration.agent.as_deref());
        hasher.number(node.unhealthy.len() as u64);
        for (instance, reason) in &node.unhealthy {
            hasher.number(u64::from(*instance));
            hasher.text(reason);
        }
        hasher.number(node.version);
    }
    hasher.number(partition.allocations.len() as u64);
    for allocation in &partition.allocations {
        hasher.number(u64::from(allocation.id.incarnation.0));
        hasher.number(allocation.id.sequence);
        hasher.number(allocation.node.0);
        hasher.amount(allocation.demand.cpu.units());
        hasher.amount(allocation.demand.memory.units());
        hasher.amount(allocation.demand.gpu.amount().units());
        hash_custom(&mut hasher, allocation.demand.custom());
        hasher.number(u64::from(allocation.gpus.mask));
        hasher.number(u64::from(allocation.gpus.part));
        let units = allocation.units.as_ref().map_or(&[][..], |units| units.as_slice());
        hasher.number(units.len() as u64);
        for &(id, assignment) in units {
            hasher.number(u64::from(id.0));
            hasher.number(assignment.mask);
            hasher.number(u64::from(assignment.part));
        }
        hasher.text(allocation.external_id.as_deref().unwrap_or(""));
    }
    hasher.number(partition.reservations.len() as u64);
    for reservation in &partition.reservations {
        hasher.number(reservation.node.0);
        hasher.number(reservation.owner.number());
        hasher.number(reservation.until.map_or(0, |until| until.0));
        hasher.amount(reservation.left.cpu.units());
        hasher.amount(reservation.left.memory.units());
        hasher.amount(reservation.left.gpu.units());
        hash_custom(&mut hasher, &reservation.left.custom);
    }
    hash_statements(&mut hasher, partition);
    hasher.finish()
}

/// What statements left: nothing of it leaves no trace, so that the hash of a state without is what it
/// was before there were any.
fn hash_statements(hasher: &mut StateHasher, partition: &PartitionState) {
    let PartitionState { claims, releasing, bundles, inside, .. } = partition;
    if claims.is_empty() && releasing.is_empty() && bundles.is_empty() {
        return;
    }
    hasher.number(claims.len() as u64);
    for claim in claims {
        hash_held(hasher, claim.id, &claim.demand, claim.gpus, claim.units.as_ref());
        hasher.number(claim.node.0);
        hash_bundle(hasher, claim.bundle);
    }
    hasher.number(releasing.len() as u64);
    for record in releasing {
        hash_id(hasher, record.allocation);
        hasher.number(record.until.0);
    }
    hasher.number(bundles.len() as u64);
    for record in bundles {
        hash_id(hasher, record.allocation);
        hash_bundle(hasher, Some(record.bundle));
    }
    hasher.number(inside.len() as u64);
    for record in inside {
        hash_held(hasher, record.id, &record.demand, record.gpus, record.units.as_ref());
        hash_id(hasher, record.bundle);
    }
}

fn hash_id(hasher: &mut StateHasher, id: AllocationId) {
    hasher.number(u64::from(id.incarnation.0));
    hasher.number(id.sequence);
}

fn hash_bundle(hasher: &mut StateHasher, bundle: Option<BundleId>) {
    let Some(BundleId { group, index }) = bundle else { return hasher.number(0) };
    hasher.number(1);
    hasher.number(u64::from(group.incarnation.0));
    hasher.number(group.number);
    hasher.number(u64::from(index));
}

fn hash_held(
    hasher: &mut StateHasher,
    id: AllocationId,
    demand: &Demand,
    gpus: GpuAssignment,
    units: Option<&Arc<UnitAssignments>>,
) {
    hash_id(hasher, id);
    hasher.amount(demand.cpu.units());
    hasher.amount(demand.memory.units());
    hasher.amount(demand.gpu.amount().units());
    hash_custom(hasher, demand.custom());
    hasher.number(u64::from(gpus.mask));
    hasher.number(u64::from(gpus.part));
    let units = units.map_or(&[][..], |units| units.as_slice());
    hasher.number(units.len() as u64);
    for &(id, assignment) in units {
        hasher.number(u64::from(id.0));
        hasher.number(assignment.mask);
        hasher.number(u64::from(assignment.part));
    }
}

fn hash_agent(hasher: &mut StateHasher, agent: Option<&AgentFacts>) {
    let Some(agent) = agent else { return hasher.number(0) };
    hasher.number(1);
    hasher.text(&agent.boot);
    hasher.number(agent.gpus.len() as u64);
    for gpu in &agent.gpus {
        hasher.text(&gpu.uuid);
        hasher.text(&gpu.model);
        hasher.number(gpu.memory_mib);
        hasher.number(gpu.numa.map_or(0, |numa| u64::from(numa) + 1));
        hasher.number(u64::from(gpu.links));
    }
}

fn hash_custom(hasher: &mut StateHasher, custom: &[(ResourceId, Amount)]) {
    hasher.number(custom.len() as u64);
    for &(id, amount) in custom {
        hasher.number(u64::from(id.0));
        hasher.amount(amount.units());
    }
}
