//! The node table of a shard, split by frequency of access. What a search compares is in a contiguous array of
//! 32 bytes per node. What a placement writes in addition is in one cache line. A placement and a release read no
//! more than these two, unless the node has custom kinds or a shortfall. Names, labels and exact capacities are
//! separate.

use std::sync::Arc;

use crate::books::{CustomBook, Kinds, RareShortfalls, book_or_new, take_over};
use crate::ids::{NodeId, Ordinal, PartitionId, ResourceId};
use crate::index::Slot;
use crate::limits::{ALLOCATIONS_PER_NODE_DEFAULT, ALLOCATIONS_PER_NODE_MAX, GPU_INSTANCES_MAX};
use crate::map::FixedMap;
use crate::memory;
use crate::node::{AgentFacts, NodeRegistration, NodeSpec, NodeState};
use crate::resource::{Amount, Demand, GPU_UNIT, GpuAssignment, GpuBooks, UnitAssignments};
use crate::view::{Changes, Dirty};

/// The result of taking, in addition to amounts: GPU instances, and units of unit-instance kinds.
pub(crate) type Taken = (GpuAssignment, Option<Arc<UnitAssignments>>);

pub(crate) use super::room::Room;
pub(crate) use crate::view::NO_ALLOCATION;

/// A change to fields that placements read and write.
pub(crate) const HOT: Changes = 1;
/// A change to fields that placements rarely touch.
pub(crate) const COLD: Changes = 2;
/// A change to the registration: names, capacity, labels, taints.
pub(crate) const IDENTITY: Changes = 4;
/// A change to the books of custom resources. They are in the cold part, and follow from the allocations.
pub(crate) const CUSTOM: Changes = 8;
/// The node was added. Only the journal tells this apart.
pub(crate) const ADDED: Changes = 16;
/// A change to the state. Only the journal tells this apart.
pub(crate) const STATE: Changes = 32;
/// All kinds of changes that views tell apart.
pub(crate) const ALL: Changes = HOT | COLD | IDENTITY;

/// The other fields that a placement reads and writes.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct HotNode {
    pub(crate) id: NodeId,
    pub(crate) gpus: GpuBooks,
    /// The number of changes of this node.
    pub(crate) version: u64,
    /// The head of the list of its allocations in the ledger.
    pub(crate) first_allocation: u32,
    pub(crate) allocations: u32,
    pub(crate) partition: PartitionId,
    /// True if the cold part has books of custom resources.
    pub(crate) has_custom: bool,
    /// True if anything is in use beyond capacity, so that releases reduce that first.
    pub(crate) has_shortfall: bool,
    /// The kinds of entries that withhold amounts of the node.
    pub(crate) withheld: Kinds,
}

const _: () = assert!(size_of::<HotNode>() == 64, "the hot record is one cache line");

/// The fields that placements rarely touch.
#[derive(Clone, Debug)]
pub(crate) struct ColdNode {
    pub(crate) registration: NodeRegistration,
    pub(crate) short: RareShortfalls,
    /// Sorted by id.
    pub(crate) custom: Vec<CustomBook>,
}

/// All nodes of a shard.
pub(crate) struct NodeTable {
    /// The maximum number of allocations per node.
    places_max: i16,
    rooms: Vec<Room>,
    hot: Vec<HotNode>,
    cold: Vec<Option<ColdNode>>,
    free: Vec<Slot>,
    by_id: FixedMap<NodeId, Slot>,
    /// The custom kinds in the index.
    indexed: Arc<[ResourceId]>,
    /// Changes since the last view, if views are made.
    dirty: Option<Box<Dirty>>,
    /// Changes since the last unit, if there is a journal.
    unwritten: Option<Box<Dirty>>,
}

/// Takes the cpu, memory and GPUs of one more allocation from a node.
#[inline(always)]
pub(super) fn take_from(room: &mut Room, hot: &mut HotNode, demand: &Demand, gpus: GpuAssignment) {
    room.take(demand);
    room.take_gpus(&mut hot.gpus, gpus);
    hot.version += 1;
}

/// Gives cpu, memory and GPUs of an allocation back to a node without a shortfall. It may hold `places_max` allocations.
#[inline(always)]
pub(super) fn give_to(
    room: &mut Room,
    hot: &mut HotNode,
    [cpu, memory]: [Amount; 2],
    gpus: GpuAssignment,
    places_max: i16,
) {
    room.give(cpu, memory, places_max);
    assert!(room.is_within_capacity(), "node {} has more free than it has", hot.id);
    room.give_gpus(&mut hot.gpus, gpus);
    hot.version += 1;
}

impl NodeTable {
    /// Creates an empty table. `indexed` lists the custom kinds in the index.
    pub(crate) fn new(indexed: Arc<[ResourceId]>) -> Self {
        Self {
            places_max: ALLOCATIONS_PER_NODE_DEFAULT as i16,
            rooms: Vec::new(),
            hot: Vec::new(),
            cold: Vec::new(),
            free: Vec::new(),
            by_id: FixedMap::default(),
            indexed,
            dirty: None,
            unwritten: None,
        }
    }

    /// Sets the maximum number of allocations per node.
    ///
    /// # Panics
    /// If there are nodes already, or the number is out of range.
    pub(super) fn set_places_max(&mut self, most: u16) {
        assert!(self.hot.is_empty(), "nodes were added under another limit of allocations");
        assert!((1..=ALLOCATIONS_PER_NODE_MAX).contains(&most), "{most} allocations per node");
        self.places_max = most as i16;
    }

    /// Returns the maximum number of allocations per node.
    pub(crate) fn places_max(&self) -> i16 {
        self.places_max
    }

    /// Counts one more allocation on the node.
    #[inline]
    pub(super) fn take_place(&mut self, slot: Slot) {
        self.touch(slot, HOT);
        let places = &mut self.rooms[slot as usize].places;
        *places = places.checked_sub(1).expect("a node holds few more allocations than it may");
    }

    /// Counts `count` fewer allocations on the node.
    #[inline]
    pub(super) fn give_places(&mut self, slot: Slot, count: u32) {
        self.touch(slot, HOT);
        let places = &mut self.rooms[slot as usize].places;
        let count = i16::try_from(count).expect("a node holds few more allocations than it may");
        *places += count;
        assert!(*places <= self.places_max, "slot {slot} has room for more allocations than it may hold");
    }

    /// Returns whether the node is ready and may hold one more allocation.
    #[inline]
    pub(crate) fn takes_work(&self, slot: Slot) -> bool {
        self.room(slot).takes_work()
    }

    /// Makes room for this many nodes.
    pub(crate) fn reserve(&mut self, nodes: usize) {
        assert!(self.by_id.is_empty(), "a start makes room before it restores nodes");
        self.rooms.reserve(nodes);
        self.hot.reserve(nodes);
        self.cold.reserve(nodes);
        self.by_id.reserve(nodes);
    }

    /// Adds a node, all of it free.
    pub(super) fn insert(&mut self, registration: NodeRegistration) -> Slot {
        let hot = HotNode {
            id: registration.id,
            gpus: GpuBooks::default(),
            version: 0,
            first_allocation: NO_ALLOCATION,
            allocations: 0,
            partition: registration.partition,
            has_custom: false,
            has_shortfall: false,
            withheld: 0,
        };
        let id = registration.id;
        let cold = ColdNode { registration, short: RareShortfalls::default(), custom: Vec::new() };
        let slot = if let Some(slot) = self.free.pop() {
            self.hot[slot as usize] = hot;
            let before = self.cold[slot as usize].replace(cold);
            assert!(before.is_none(), "slot {slot} is not vacant");
            slot
        } else {
            memory::push_tight(&mut self.rooms, Room::VACANT);
            memory::push_tight(&mut self.hot, hot);
            memory::push_tight(&mut self.cold, Some(cold));
            Slot::try_from(self.hot.len() - 1).expect("NODES_MAX fits a slot")
        };
        let before = self.by_id.insert(id, slot);
        assert!(before.is_none(), "node {id} is registered twice");
        let taken = self.by_id.len() + self.free.len();
        assert!(taken == self.hot.len(), "a slot is neither taken nor free");
        self.open_books(slot);
        self.touch(slot, ALL | ADDED);
        slot
    }

    /// Notes that the node in `slot` changed or is about to change, so that the next view shows it.
    #[inline]
    pub(super) fn touch(&mut self, slot: Slot, what: Changes) {
        if let Some(dirty) = &mut self.dirty {
            dirty.note(slot, what);
        }
        if let Some(unwritten) = &mut self.unwritten {
            unwritten.note(slot, what);
        }
    }

    /// Returns whether changes are noted.
    pub(crate) fn has_rare(&self) -> bool {
        self.dirty.is_some() | self.unwritten.is_some()
    }

    /// Returns the changes since the last unit of the journal. While this is `None`, no change is noted for it.
    pub(super) fn unwritten_mut(&mut self) -> &mut Option<Box<Dirty>> {
        &mut self.unwritten
    }

    /// Returns the changes since they were last cleared. While this is `None`, no change is noted.
    pub(super) fn dirty_mut(&mut self) -> &mut Option<Box<Dirty>> {
        &mut self.dirty
    }

    /// Removes a node.
    pub(super) fn remove(&mut self, slot: Slot) -> ColdNode {
        let cold = self.cold[slot as usize].take().expect("a node to remove");
        let hot = &self.hot[slot as usize];
        assert!(hot.allocations == 0, "node {} is removed with allocations", hot.id);
        assert!(hot.first_allocation == NO_ALLOCATION, "node {} is removed and lists allocations", hot.id);
        assert!(hot.withheld == 0, "node {} is removed with withheld amounts", hot.id);
        let known = self.by_id.remove(&cold.registration.id);
        assert!(known == Some(slot), "a removed node has another slot than {slot}");
        self.touch(slot, ALL);
        self.rooms[slot as usize] = Room::VACANT;
        self.free.push(slot);
        let taken = self.by_id.len() + self.free.len();
        assert!(taken == self.hot.len(), "a slot is neither taken nor free");
        cold
    }

    pub(crate) fn slot(&self, id: NodeId) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    /// Reads what a release reads of a node, only so that it is in the cache.
    #[inline]
    pub(crate) fn peek(&self, slot: Slot) -> u32 {
        self.hot(slot).first_allocation ^ self.room(slot).capacity[0]
    }

    pub(crate) fn room(&self, slot: Slot) -> &Room {
        &self.rooms[slot as usize]
    }

    /// Returns the rooms by slot, including vacant slots.
    pub(crate) fn rooms(&self) -> &[Room] {
        &self.rooms
    }

    pub(crate) fn state(&self, slot: Slot) -> NodeState {
        self.rooms[slot as usize].state.expect("a registered node")
    }

    pub(super) fn set_state(&mut self, slot: Slot, state: NodeState) {
        self.touch(slot, HOT | COLD | STATE);
        let place = &mut self.rooms[slot as usize].state;
        assert!(place.is_some(), "slot {slot} is vacant");
        *place = Some(state);
    }

    pub(crate) fn ordinal(&self, slot: Slot) -> Ordinal {
        self.cold(slot).registration.ordinal
    }

    pub(crate) fn hot(&self, slot: Slot) -> &HotNode {
        &self.hot[slot as usize]
    }

    pub(super) fn hot_mut(&mut self, slot: Slot) -> &mut HotNode {
        self.touch(slot, HOT);
        &mut self.hot[slot as usize]
    }

    /// Returns what a placement reads and writes of a node. Without `RARE`, see [`has_rare`](Self::has_rare).
    #[inline(always)]
    pub(super) fn room_and_hot_mut<const RARE: bool>(&mut self, slot: Slot) -> (&mut Room, &mut HotNode) {
        if RARE {
            self.touch(slot, HOT);
        }
        (&mut self.rooms[slot as usize], &mut self.hot[slot as usize])
    }

    pub(super) fn hot_and_cold_mut(&mut self, slot: Slot) -> (&mut HotNode, &mut ColdNode) {
        self.touch(slot, HOT | COLD);
        let cold = self.cold[slot as usize].as_mut().expect("a registered node");
        (&mut self.hot[slot as usize], cold)
    }

    /// Returns all parts of a node's books.
    pub(super) fn parts_mut(&mut self, slot: Slot) -> (&mut Room, &mut HotNode, &mut ColdNode) {
        self.touch(slot, HOT | COLD);
        let cold = self.cold[slot as usize].as_mut().expect("a registered node");
        (&mut self.rooms[slot as usize], &mut self.hot[slot as usize], cold)
    }

    /// Makes the books of a node wrong, for tests of audits.
    #[cfg(test)]
    pub(crate) fn lose_cpu(&mut self, slot: Slot, amount: Amount) {
        let room = &mut self.rooms[slot as usize];
        room.cpu = room.cpu.minus(amount);
    }

    /// Replaces what the node's agent reported about the machine.
    pub(super) fn set_agent(&mut self, slot: Slot, facts: AgentFacts) {
        if self.cold(slot).registration.agent.as_deref() != Some(&facts) {
            self.touch(slot, ALL);
            let (hot, cold) = self.hot_and_cold_mut(slot);
            cold.registration.agent = Some(Arc::new(facts));
            hot.version += 1;
        }
    }

    pub(crate) fn cold(&self, slot: Slot) -> &ColdNode {
        self.cold[slot as usize].as_ref().expect("a registered node")
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Reports the bytes of each structure.
    pub(crate) fn memory(&self, mut add: impl FnMut(&'static str, u64)) {
        add("rooms", memory::of_vec(&self.rooms));
        add("hot records", memory::of_vec(&self.hot));
        let rare = self.cold.iter().flatten().map(|cold| memory::of_vec(&cold.custom) + cold.short.bytes());
        add("cold records", memory::of_vec(&self.cold) + rare.sum::<u64>());
        let texts = self.cold.iter().flatten().map(|cold| {
            let spec = &cold.registration.spec;
            // A shared slice has two counters before it. A label is two pointers with lengths.
            16 + spec.name.len() + 16 + 32 * spec.labels.len()
        });
        add("names and lists of labels", texts.sum::<usize>() as u64);
        add("nodes by id", memory::of_map(&self.by_id) + memory::of_vec(&self.free));
        if let Some(dirty) = &self.dirty {
            add("changed nodes", dirty.bytes());
        }
    }

    /// Returns whether there is a registered node in `slot`.
    pub(crate) fn is_node(&self, slot: Slot) -> bool {
        self.cold.get(slot as usize).is_some_and(Option::is_some)
    }

    /// Returns the registered nodes, in order of slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &HotNode, &ColdNode)> {
        (0..)
            .zip(self.hot.iter().zip(&self.cold))
            .filter_map(|(slot, (hot, cold))| Some((slot, hot, cold.as_ref()?)))
    }

    /// Returns the custom kinds in the index.
    pub(crate) fn indexed(&self) -> &[ResourceId] {
        &self.indexed
    }

    /// Takes `demand` from a node that fits it. Returns the GPU instances and units taken.
    pub(super) fn take(&mut self, slot: Slot, demand: &Demand) -> Taken {
        let gpus = self.hot[slot as usize].gpus.choose(demand.gpu).expect("the node was checked to fit");
        self.take_chosen(slot, demand, gpus)
    }

    /// Like [`take`](Self::take), with GPU instances that a policy chose.
    #[inline]
    pub(super) fn take_chosen(&mut self, slot: Slot, demand: &Demand, gpus: GpuAssignment) -> Taken {
        assert!(gpus.units() == demand.gpu.units(), "other GPUs are taken than are asked");
        let (room, hot) = self.room_and_hot_mut::<true>(slot);
        take_from(room, hot, demand, gpus);
        let mut units = UnitAssignments::new();
        for &(id, amount) in demand.custom() {
            units.extend(self.custom_book(slot, id).take(amount).map(|taken| (id, taken)));
        }
        (gpus, (!units.is_empty()).then(|| Arc::new(units)))
    }

    fn custom_book(&mut self, slot: Slot, id: ResourceId) -> &mut CustomBook {
        self.touch(slot, HOT | CUSTOM);
        let cold = self.cold[slot as usize].as_mut().expect("a registered node");
        let at = cold.custom.binary_search_by_key(&id, |book| book.id);
        &mut cold.custom[at.unwrap_or_else(|_| panic!("no book of resource {} on slot {slot}", id.0))]
    }

    /// Gives back what an allocation held. The shortfall is reduced first.
    pub(super) fn give(
        &mut self,
        slot: Slot,
        demand: &Demand,
        gpus: GpuAssignment,
        units: Option<&Arc<UnitAssignments>>,
    ) {
        for &(id, amount) in demand.custom() {
            self.custom_book(slot, id).give(amount, units);
        }
        if self.hot[slot as usize].has_shortfall {
            self.give_places(slot, 1);
            return self.give_short(slot, demand, gpus);
        }
        let places_max = self.places_max();
        let (room, hot) = self.room_and_hot_mut::<true>(slot);
        give_to(room, hot, [demand.cpu, demand.memory], gpus, places_max);
    }

    /// Gives back to a node with a shortfall, which is reduced first.
    #[cold]
    fn give_short(&mut self, slot: Slot, demand: &Demand, gpus: GpuAssignment) {
        let (room, hot, cold) = self.parts_mut(slot);
        let short = &mut *cold.short;
        for (free, short, given) in [
            (&mut room.cpu, &mut short.cpu, demand.cpu),
            (&mut room.memory, &mut short.memory, demand.memory),
        ] {
            let paid = given.min(*short);
            *short = short.minus(paid);
            *free = free.plus(given.minus(paid));
        }
        assert!(room.is_within_capacity(), "node {} has more free than it has", hot.id);
        for instance in gpus.instances() {
            let short = &mut short.gpus[usize::from(instance)];
            let paid = u32::from(gpus.part).min(*short);
            *short -= paid;
            hot.gpus.set_free(instance, hot.gpus.free(instance) + (gpus.part - paid as u16));
        }
        room.follow(&hot.gpus);
        hot.version += 1;
        hot.has_shortfall = has_shortfall(cold);
    }

    /// Replaces capacity and labels. What is in use stays in use, and use beyond the new capacity becomes a
    /// shortfall.
    pub(super) fn respecify(&mut self, slot: Slot, spec: NodeSpec) {
        self.touch(slot, ALL);
        let room = &mut self.rooms[slot as usize];
        let hot = &mut self.hot[slot as usize];
        let cold = self.cold[slot as usize].as_mut().expect("a registered node");
        let before = std::mem::replace(&mut cold.registration.spec, spec);
        let spec = &cold.registration.spec;
        room.set_capacity(spec);
        (room.cpu, cold.short.cpu) = rebalance(before.cpu, room.cpu, cold.short.cpu, spec.cpu);
        (room.memory, cold.short.memory) =
            rebalance(before.memory, room.memory, cold.short.memory, spec.memory);
        for instance in 0..GPU_INSTANCES_MAX as u8 {
            let unit = |count: u8| if instance < count { u32::from(GPU_UNIT) } else { 0 };
            let short = &mut cold.short.gpus[usize::from(instance)];
            let used = unit(before.gpus) + *short - u32::from(hot.gpus.free(instance));
            hot.gpus.set_free(instance, unit(spec.gpus).saturating_sub(used) as u16);
            *short = used.saturating_sub(unit(spec.gpus));
        }
        room.follow(&hot.gpus);
        assert!(room.is_within_capacity(), "node {} has more free than its new capacity", hot.id);
        let spec = &cold.registration.spec;
        crate::books::respecify(&mut cold.custom, spec.custom.as_deref().unwrap_or(&[]));
        hot.has_custom = !cold.custom.is_empty();
        hot.has_shortfall = has_shortfall(cold);
        hot.version += 1;
    }

    /// Initializes the books of an empty node.
    fn open_books(&mut self, slot: Slot) {
        let room = &mut self.rooms[slot as usize];
        let hot = &mut self.hot[slot as usize];
        let cold = self.cold[slot as usize].as_mut().expect("a registered node");
        let spec = &cold.registration.spec;
        assert!(room.state.is_none(), "slot {slot} has the room of another node");
        hot.gpus = GpuBooks::with_devices(spec.gpus);
        let has_agent = cold.registration.agent.is_some();
        let state = if has_agent { NodeState::Joining } else { NodeState::Ready };
        let places = self.places_max;
        *room = Room { cpu: spec.cpu, memory: spec.memory, places, state: Some(state), ..Room::VACANT };
        room.set_capacity(spec);
        room.follow(&hot.gpus);
        let custom = spec.custom.as_deref().unwrap_or(&[]);
        cold.custom = custom.iter().map(|&(id, total)| CustomBook::new(id, total)).collect();
        hot.has_custom = !cold.custom.is_empty();
    }

    /// Puts a node with these books into a vacant slot of a replica. The shard determines the slots.
    pub(super) fn put(&mut self, slot: Slot, (room, hot, cold): (Room, HotNode, ColdNode)) {
        let at = slot as usize;
        if at >= self.hot.len() {
            self.rooms.resize(at + 1, Room::VACANT);
            self.hot.resize(at + 1, hot.clone());
            self.cold.resize(at + 1, None);
        }
        assert!(self.cold[at].is_none(), "slot {slot} is not vacant");
        let before = self.by_id.insert(hot.id, slot);
        assert!(before.is_none(), "node {} has two slots", hot.id);
        (self.rooms[at], self.hot[at], self.cold[at]) = (room, hot, Some(cold));
    }

    /// Removes a node from a replica.
    pub(super) fn drop_out(&mut self, slot: Slot) -> ColdNode {
        let cold = self.cold[slot as usize].take().expect("a node to remove");
        assert!(self.hot[slot as usize].withheld == 0, "slot {slot} is vacated with withheld amounts");
        let known = self.by_id.remove(&cold.registration.id);
        assert!(known == Some(slot), "a node that is dropped has another slot than {slot}");
        self.rooms[slot as usize] = Room::VACANT;
        cold
    }

    /// Returns whether a node has this slot.
    pub(crate) fn is_there(&self, slot: Slot) -> bool {
        self.cold.get(slot as usize).is_some_and(Option::is_some)
    }

    /// Returns the number of slots, including vacant ones.
    pub(crate) fn slots(&self) -> u32 {
        u32::try_from(self.rooms.len()).expect("NODES_MAX fits a slot")
    }

    /// Takes what an existing allocation holds, even beyond capacity.
    pub(super) fn take_held(
        &mut self,
        slot: Slot,
        demand: &Demand,
        gpus: GpuAssignment,
        units: Option<&Arc<UnitAssignments>>,
    ) {
        self.touch(slot, HOT | COLD);
        self.take_place(slot);
        let room = &mut self.rooms[slot as usize];
        let hot = &mut self.hot[slot as usize];
        let cold = self.cold[slot as usize].as_mut().expect("a registered node");
        let covers = |hot: &HotNode, instance| gpus.part.min(hot.gpus.free(instance));
        let is_covered = demand.cpu <= room.cpu
            && demand.memory <= room.memory
            && gpus.instances().all(|instance| covers(hot, instance) == gpus.part);
        if is_covered {
            room.cpu = room.cpu.minus(demand.cpu);
            room.memory = room.memory.minus(demand.memory);
        } else {
            take_over(&mut room.cpu, &mut cold.short.cpu, demand.cpu);
            take_over(&mut room.memory, &mut cold.short.memory, demand.memory);
        }
        for instance in gpus.instances() {
            let covered = covers(hot, instance);
            hot.gpus.set_free(instance, hot.gpus.free(instance) - covered);
            if covered < gpus.part {
                cold.short.gpus[usize::from(instance)] += u32::from(gpus.part - covered);
            }
        }
        room.follow(&hot.gpus);
        for &(id, amount) in demand.custom() {
            book_or_new(&mut cold.custom, id).take_held(amount, units);
        }
        hot.has_custom = !cold.custom.is_empty();
        hot.has_shortfall = has_shortfall(cold);
    }
}

/// Returns availability and shortfall under a new total, with the same amount in use.
fn rebalance(total: Amount, available: Amount, shortfall: Amount, new_total: Amount) -> (Amount, Amount) {
    let used = total.plus(shortfall).minus(available);
    (new_total.saturating_minus(used), used.saturating_minus(new_total))
}

/// Returns whether anything of a node is in use beyond its capacity.
pub(crate) fn has_shortfall(cold: &mut ColdNode) -> bool {
    cold.short.settle() || cold.custom.iter().any(|book| !book.shortfall.is_zero())
}
