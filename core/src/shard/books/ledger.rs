//! The allocations of a shard: one record each, found by id and linked per node.
//!
//! The sequence of an id names the place of its record: the low 32 bits are the place, the high 32 bits say how many
//! ids named that place before. So a record is found without a table, and no id is granted twice: the count of a
//! place only grows, a place whose count is at its end is not used again, and the ids of another start have another
//! incarnation. A record is in another place than its id says if an earlier start granted the id, or if the id was
//! granted before the record was made, for a claim. Such records are found by a map.

mod check;

use std::sync::Arc;

use super::plain::Removed;
use super::table::{HotNode, NO_ALLOCATION, NodeTable, Room};
use crate::ids::AllocationId;
use crate::index::Slot;
use crate::map::FixedMap;
use crate::memory;
use crate::resource::{Amount, CustomAmounts, Demand, GpuAssignment, GpuRequest, UnitAssignments};
use crate::view::{AllocationImage, Dirty, MoreImage};

/// Records per page. Pages are never moved or copied, so memory use never doubles while the ledger grows.
pub(crate) const PAGE: usize = 1024;

/// A live allocation.
#[derive(Clone, Debug)]
pub(crate) struct Allocation {
    pub(crate) id: AllocationId,
    pub(crate) demand: Demand,
    pub(crate) gpus: GpuAssignment,
    /// The units of its unit-instance kinds. Few allocations have any.
    pub(crate) units: Option<Arc<UnitAssignments>>,
    pub(crate) node: Slot,
    /// True if it has a lease ([`Leases`](super::Leases)).
    pub(crate) is_leased: bool,
}

/// Fields that few allocations have.
#[derive(Clone, Debug, Default)]
struct Extra {
    custom: Option<CustomAmounts>,
    units: Option<Arc<UnitAssignments>>,
    is_leased: bool,
}

/// The node of a record without an allocation.
const VACANT: Slot = Slot::MAX;

/// A place for an allocation. It is one cache line, because a release reads a record that was written long ago,
/// and its neighbors in the node's list.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Record {
    id: AllocationId,
    pub(super) cpu: Amount,
    pub(super) memory: Amount,
    extra: Option<Box<Extra>>,
    pub(super) gpu: GpuRequest,
    pub(super) gpus: GpuAssignment,
    node: Slot,
    /// The next allocation of the node. If the place is vacant, the next vacant place.
    next: u32,
    previous: u32,
    /// The number of ids that name this place.
    granted: u32,
}

const _: () = assert!(size_of::<Record>() == 64, "a record is one cache line");

impl Record {
    #[inline]
    fn new(allocation: Allocation, next: u32, granted: u32) -> Self {
        let Allocation { id, demand, gpus, units, node, is_leased } = allocation;
        let Demand { cpu, memory, gpu, custom } = demand;
        let plain = custom.is_none() && units.is_none() && !is_leased;
        let extra = if plain { None } else { Some(Box::new(Extra { custom, units, is_leased })) };
        Self { id, cpu, memory, extra, gpu, gpus, node, next, previous: NO_ALLOCATION, granted }
    }

    #[inline]
    fn allocation(&self) -> Allocation {
        let Extra { custom, units, is_leased } = match self.extra.as_deref() {
            Some(extra) => extra.clone(),
            None => Extra::default(),
        };
        let demand = Demand { cpu: self.cpu, memory: self.memory, gpu: self.gpu, custom };
        Allocation { id: self.id, demand, gpus: self.gpus, units, node: self.node, is_leased }
    }
}

/// Returns the place that an id names.
#[inline]
fn place_of(id: AllocationId) -> u32 {
    id.sequence as u32
}

/// Records that are allocated together. The length is known, so a place in a page is found without a bounds check.
type Page = Box<[Record; PAGE]>;

/// Returns the record at a place. It borrows the pages alone, so that the caller may change the rest of the ledger.
#[inline(always)]
fn record_in(pages: &mut [Page], at: u32) -> &mut Record {
    &mut pages[at as usize / PAGE][at as usize % PAGE]
}

/// All live allocations of a shard.
pub(crate) struct Ledger {
    pages: Vec<Page>,
    /// The number of places that were ever used. Those after them in the last page are vacant, and not listed.
    places: u32,
    /// The vacant place that is taken next: the one that became vacant last.
    vacant: u32,
    live: usize,
    /// The places of the records that are not where their ids say, by id.
    by_id: FixedMap<AllocationId, u32>,
    /// Records that changed since the last view, if views are made.
    dirty: Option<Box<Dirty>>,
}

impl Default for Ledger {
    fn default() -> Self {
        let by_id = FixedMap::default();
        Self { pages: Vec::new(), places: 0, vacant: NO_ALLOCATION, live: 0, by_id, dirty: None }
    }
}

impl Ledger {
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Makes room for this many allocations of earlier starts.
    pub(crate) fn reserve(&mut self, allocations: usize) {
        assert!(self.by_id.is_empty(), "a start makes room before it restores allocations");
        self.by_id.reserve(allocations);
    }

    /// Returns the record at a place, if it is an allocation.
    #[inline]
    fn record(&self, at: u32) -> Option<&Record> {
        let record = &self.pages.get(at as usize / PAGE)?[at as usize % PAGE];
        (record.node != VACANT).then_some(record)
    }

    #[inline]
    fn record_mut(&mut self, at: u32) -> &mut Record {
        record_in(&mut self.pages, at)
    }

    /// Returns the place of the live allocation `id`.
    #[inline]
    fn find(&self, id: AllocationId) -> Option<u32> {
        let at = place_of(id);
        if self.record(at).is_some_and(|record| record.id == id) {
            return Some(at);
        }
        if self.by_id.is_empty() { None } else { self.by_id.get(&id).copied() }
    }

    /// Notes that a record changed in what views show.
    #[inline]
    fn touch(&mut self, at: u32) {
        if let Some(dirty) = &mut self.dirty {
            dirty.note(at, 1);
        }
    }

    /// Returns whether changes are noted, or ids of earlier starts are found by a map.
    pub(crate) fn has_rare(&self) -> bool {
        self.dirty.is_some() | !self.by_id.is_empty()
    }

    /// Returns the changed records, by place, each noted as 1. While this is `None`, no change is noted.
    pub(super) fn dirty_mut(&mut self) -> &mut Option<Box<Dirty>> {
        &mut self.dirty
    }

    /// Returns the number of places, including free ones.
    pub(crate) fn places(&self) -> u32 {
        self.places
    }

    /// Returns a place as views show it.
    pub(crate) fn image(&self, at: u32) -> AllocationImage {
        let Some(record) = self.record(at) else { return AllocationImage::default() };
        AllocationImage {
            id: record.id,
            cpu: record.cpu,
            memory: record.memory,
            gpu: record.gpu,
            gpus: record.gpus,
            node: Some(record.node),
            next: record.next,
            has_more: record.extra.is_some(),
        }
    }

    /// Returns the rarely used fields of a place as views show them.
    pub(crate) fn more_image(&self, at: u32) -> Option<MoreImage> {
        let extra = self.record(at)?.extra.as_deref()?;
        Some(MoreImage { custom: extra.custom.clone(), units: extra.units.clone() })
    }

    /// Reads the record that an id names, only so that it is in the cache.
    #[inline]
    pub(crate) fn peek(&self, id: AllocationId) -> u32 {
        self.peek_at(place_of(id))
    }

    /// Reads the record at a place, only so that it is in the cache.
    #[inline]
    pub(crate) fn peek_at(&self, at: u32) -> u32 {
        self.pages.get(at as usize / PAGE).map_or(0, |page| page[at as usize % PAGE].node)
    }

    /// Returns the node of the record that an id names, and its neighbors in the node's list. `None` if the place is
    /// vacant.
    #[inline]
    pub(crate) fn neighbours(&self, id: AllocationId) -> Option<(Slot, u32, u32)> {
        self.record(place_of(id)).map(|record| (record.node, record.previous, record.next))
    }

    /// Returns the live allocation of `id`.
    pub(crate) fn get(&self, id: AllocationId) -> Option<Allocation> {
        self.record(self.find(id)?).map(Record::allocation)
    }

    /// Returns the node of the live allocation of `id`.
    pub(crate) fn slot_of(&self, id: AllocationId) -> Option<Slot> {
        self.record(self.find(id)?).map(|record| record.node)
    }

    /// Returns the sequence of a new id. It names the place that [`insert`](Self::insert) takes next.
    #[inline(always)]
    pub(super) fn next_sequence(&mut self) -> u64 {
        loop {
            let at = self.vacant_place();
            let record = self.record_mut(at);
            assert!(record.node == VACANT, "place {at} is not vacant");
            if let Some(granted) = record.granted.checked_add(1) {
                return u64::from(std::mem::replace(&mut record.granted, granted)) << 32 | u64::from(at);
            }
            // All ids of the place are granted: it is not used again.
            self.vacant = record.next;
        }
    }

    /// Makes the record at a place the first of its node, before `next`.
    #[inline(always)]
    fn link<const RARE: bool>(&mut self, at: u32, next: u32) {
        self.live += 1;
        if RARE {
            self.touch(at);
        }
        if next != NO_ALLOCATION {
            let before = std::mem::replace(&mut self.record_mut(next).previous, at);
            assert!(before == NO_ALLOCATION, "place {next} is not the first of its node");
        }
    }

    /// Records an allocation that its node's books already contain.
    ///
    /// # Panics
    /// If its id was already granted.
    pub(super) fn insert(&mut self, allocation: Allocation, nodes: &mut NodeTable) {
        let at = self.vacant_place();
        let id = allocation.id;
        if at != place_of(id) {
            let is_live = self.find(id).is_some();
            assert!(!is_live, "allocation {id} is granted twice");
            let before = self.by_id.insert(id, at);
            assert!(before.is_none(), "allocation {id} is recorded twice");
        } else if !self.by_id.is_empty() {
            assert!(!self.by_id.contains_key(&id), "allocation {id} is granted twice");
        }
        let hot = nodes.hot_mut(allocation.node);
        let next = std::mem::replace(&mut hot.first_allocation, at);
        hot.allocations += 1;
        let record = self.record_mut(at);
        let vacant = record.next;
        *record = Record::new(allocation, next, record.granted);
        self.vacant = vacant;
        self.link::<true>(at, next);
    }

    /// Records an allocation without extras on a node under a new id, like [`next_sequence`](Self::next_sequence) and
    /// [`insert`](Self::insert). `unnumbered` is the id but for its sequence. Without `RARE`, see
    /// [`has_rare`](Self::has_rare).
    ///
    /// # Panics
    /// If the id was already granted.
    #[inline(always)]
    pub(super) fn insert_plain<const RARE: bool>(
        &mut self,
        unnumbered: AllocationId,
        (node, hot): (Slot, &mut HotNode),
        demand: &Demand,
        gpus: GpuAssignment,
    ) -> AllocationId {
        loop {
            let at = self.vacant_place();
            let record = record_in(&mut self.pages, at);
            assert!(record.node == VACANT, "place {at} is not vacant");
            let Some(granted) = record.granted.checked_add(1) else {
                // All ids of the place are granted: it is not used again.
                self.vacant = record.next;
                continue;
            };
            let sequence = u64::from(std::mem::replace(&mut record.granted, granted)) << 32 | u64::from(at);
            let id = AllocationId { sequence, ..unnumbered };
            if RARE && !self.by_id.is_empty() {
                assert!(!self.by_id.contains_key(&id), "allocation {id} is granted twice");
            }
            let next = std::mem::replace(&mut hot.first_allocation, at);
            hot.allocations += 1;
            (record.id, record.cpu, record.memory) = (id, demand.cpu, demand.memory);
            (record.gpu, record.gpus, record.node) = (demand.gpu, gpus, node);
            record.previous = NO_ALLOCATION;
            self.vacant = std::mem::replace(&mut record.next, next);
            self.link::<RARE>(at, next);
            return id;
        }
    }

    /// Removes the live allocation of `id`, and returns what it held, with the books of its node. `None`, and nothing is
    /// removed, if it has extras or is not in the place that the id names, or if `open` does not return the books of its
    /// node.
    #[inline(always)]
    pub(super) fn remove_plain<'a, const RARE: bool>(
        &mut self,
        id: AllocationId,
        open: impl FnOnce(Slot) -> Option<(&'a mut Room, &'a mut HotNode)>,
    ) -> Option<Removed<'a>> {
        let at = place_of(id);
        let record = &mut self.pages.get_mut(at as usize / PAGE)?[at as usize % PAGE];
        if (record.id != id) | (record.node == VACANT) | record.extra.is_some() {
            return None;
        }
        let &mut Record { cpu, memory, gpu, gpus, node, next, previous, .. } = record;
        let (room, hot) = open(node)?;
        assert!(hot.allocations > 0, "node {node} has no allocation, and {id} is one of its");
        record.node = VACANT;
        record.next = std::mem::replace(&mut self.vacant, at);
        self.live -= 1;
        if RARE {
            self.touch(at);
        }
        self.unlink::<RARE>(at, (previous, next), hot);
        Some(Removed { node, room, hot, cpu, memory, gpu, gpus })
    }

    /// Takes a record out of the list of its node.
    #[inline(always)]
    fn unlink<const RARE: bool>(&mut self, at: u32, (previous, next): (u32, u32), hot: &mut HotNode) {
        if previous == NO_ALLOCATION {
            assert!(hot.first_allocation == at, "the list of node {} is broken", hot.id);
            hot.first_allocation = next;
        } else {
            let before = std::mem::replace(&mut self.record_mut(previous).next, next);
            assert!(before == at, "the list of a node is broken before place {at}");
            if RARE {
                self.touch(previous);
            }
        }
        hot.allocations = hot.allocations.checked_sub(1).expect("a node counts what it lists");
        if next != NO_ALLOCATION {
            let after = std::mem::replace(&mut self.record_mut(next).previous, previous);
            assert!(after == at, "the list of a node is broken after place {at}");
        }
    }

    /// Returns the vacant place that is taken next.
    #[inline]
    fn vacant_place(&mut self) -> u32 {
        if self.vacant == NO_ALLOCATION {
            self.add_place();
        }
        self.vacant
    }

    /// Adds a place for one more record. There must be no vacant one.
    #[cold]
    fn add_place(&mut self) {
        let at = self.places();
        assert!(self.vacant == NO_ALLOCATION, "a place is vacant");
        assert!(at != NO_ALLOCATION, "fewer allocations than u32 can count");
        if at as usize == self.pages.len() * PAGE {
            let AllocationImage { id, gpus, .. } = AllocationImage::default();
            let demand = Demand::default();
            let nothing = Allocation { id, demand, gpus, units: None, node: VACANT, is_leased: false };
            let records = vec![Record::new(nothing, NO_ALLOCATION, 0); PAGE].into_boxed_slice();
            self.pages.push(records.try_into().expect("a page has this many records"));
        }
        self.places += 1;
        self.vacant = at;
    }

    /// Removes an allocation. The caller must settle the node's books.
    pub(super) fn remove(&mut self, id: AllocationId, nodes: &mut NodeTable) -> Option<Allocation> {
        let at = self.find(id)?;
        if at != place_of(id) {
            let before = self.by_id.remove(&id);
            assert!(before == Some(at), "allocation {id} is found by its id");
            if self.by_id.is_empty() {
                self.by_id = FixedMap::default();
            }
        }
        let vacant = std::mem::replace(&mut self.vacant, at);
        self.live = self.live.checked_sub(1).expect("every live allocation is counted");
        self.touch(at);
        let record = self.record_mut(at);
        let Record { next, previous, .. } = *record;
        let allocation = record.allocation();
        (record.node, record.next, record.extra) = (VACANT, vacant, None);
        self.unlink::<true>(at, (previous, next), nodes.hot_mut(allocation.node));
        assert!(self.by_id.len() <= self.live, "a record is found that is not live");
        Some(allocation)
    }

    /// Marks a live allocation as one with a lease.
    pub(super) fn mark_leased(&mut self, id: AllocationId) {
        let at = self.find(id).expect("what gets a lease is live");
        let record = self.record_mut(at);
        let extra = record.extra.get_or_insert_default();
        assert!(!extra.is_leased, "allocation {id} gets a second lease");
        extra.is_leased = true;
        self.touch(at);
    }

    /// Returns whether an allocation is live and has a lease.
    pub(super) fn is_leased(&self, id: AllocationId) -> bool {
        self.get(id).is_some_and(|allocation| allocation.is_leased)
    }

    /// Returns the number of allocations with a lease. O(allocations).
    pub(super) fn leased(&self) -> usize {
        let marked = |record: &&Record| record.extra.as_deref().is_some_and(|extra| extra.is_leased);
        self.pages.iter().flat_map(|page| page.iter()).filter(marked).count()
    }

    /// Returns the allocations of one node, newest first.
    pub(crate) fn of_node<'a>(
        &'a self,
        node: Slot,
        nodes: &NodeTable,
    ) -> impl Iterator<Item = Allocation> + use<'a> {
        let mut at = nodes.hot(node).first_allocation;
        std::iter::from_fn(move || {
            if at == NO_ALLOCATION {
                return None;
            }
            let record = self.record(at).expect("lists link live records");
            at = record.next;
            Some(record.allocation())
        })
    }

    /// Reports the bytes of each structure.
    pub(crate) fn memory(&self, mut add: impl FnMut(&'static str, u64)) {
        let records = (self.pages.len() * size_of::<[Record; PAGE]>()) as u64;
        add("allocation records", records + memory::of_vec(&self.pages));
        add("allocations of earlier starts by id", memory::of_map(&self.by_id));
        if let Some(dirty) = &self.dirty {
            add("changed allocations", dirty.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::ids::{Incarnation, NodeId, Ordinal, PartitionId, TenantId};
    use crate::node::{Labels, NodeRegistration, NodeSpec, Taints};

    fn nodes() -> NodeTable {
        let mut nodes = NodeTable::new(Arc::new([]));
        nodes.insert(NodeRegistration {
            id: NodeId(1),
            ordinal: Ordinal(1),
            partition: PartitionId(3),
            agent: None,
            spec: NodeSpec {
                name: "n".into(),
                identity: None,
                cpu: Amount::whole(8),
                memory: Amount::whole(8),
                gpus: 0,
                custom: None,
                labels: Labels::default(),
                taints: Taints::default(),
            },
        });
        nodes
    }

    fn id(incarnation: u32, sequence: u64) -> AllocationId {
        AllocationId {
            incarnation: Incarnation(incarnation),
            partition: PartitionId(3),
            sequence,
            tenant: TenantId::OPERATOR,
        }
    }

    fn of(id: AllocationId) -> Allocation {
        let demand = Demand { cpu: Amount::ZERO, memory: Amount::ZERO, gpu: GpuRequest::None, custom: None };
        Allocation { id, demand, gpus: GpuAssignment::NONE, units: None, node: 0, is_leased: false }
    }

    #[test]
    fn no_sequence_is_granted_twice_however_places_are_used() {
        let mut nodes = nodes();
        let mut ledger = Ledger::default();
        let mut rng = crate::rng::Rng::new(1);
        let mut granted = BTreeSet::new();
        let mut live: Vec<AllocationId> = Vec::new();
        // Ids of claims: granted now, recorded later or never.
        let mut promised: Vec<AllocationId> = Vec::new();
        for old in 0..40 {
            let old = id(1, ((old % 7) << 32) | old);
            ledger.insert(of(old), &mut nodes);
            live.push(old);
        }
        for _ in 0..4000 {
            match rng.below(5) {
                0 | 1 => {
                    let new = id(2, ledger.next_sequence());
                    assert!(granted.insert(new), "{new} is granted twice");
                    ledger.insert(of(new), &mut nodes);
                    live.push(new);
                }
                2 => {
                    let new = id(2, ledger.next_sequence());
                    assert!(granted.insert(new), "{new} is granted twice");
                    promised.push(new);
                }
                3 if !promised.is_empty() => {
                    let at = rng.below(promised.len() as u64) as usize;
                    let new = promised.swap_remove(at);
                    ledger.insert(of(new), &mut nodes);
                    live.push(new);
                }
                _ if !live.is_empty() => {
                    let old = live.swap_remove(rng.below(live.len() as u64) as usize);
                    assert_eq!(ledger.remove(old, &mut nodes).map(|there| there.id), Some(old));
                    assert!(ledger.remove(old, &mut nodes).is_none(), "{old} is released twice");
                }
                _ => {}
            }
            ledger.check().unwrap();
            assert_eq!(ledger.len(), live.len());
        }
        assert!(live.iter().all(|&id| ledger.get(id).is_some_and(|there| there.id == id)));
        assert!(promised.iter().all(|&id| ledger.get(id).is_none()));
    }

    #[test]
    fn a_place_whose_ids_are_all_granted_is_not_used_again() {
        let mut nodes = nodes();
        let mut ledger = Ledger::default();
        ledger.next_sequence();
        ledger.record_mut(0).granted = u32::MAX - 1;
        let last = id(2, ledger.next_sequence());
        assert_eq!(last.sequence, u64::from(u32::MAX - 1) << 32);
        ledger.insert(of(last), &mut nodes);
        ledger.remove(last, &mut nodes).unwrap();
        ledger.check().unwrap();
        assert_eq!(ledger.next_sequence(), 1, "the first id of another place");
        assert_eq!((ledger.places(), ledger.record_mut(0).granted), (2, u32::MAX));
        ledger.check().unwrap();
    }

    #[test]
    #[should_panic(expected = "granted twice")]
    fn an_id_of_an_earlier_start_is_live_once() {
        let mut nodes = nodes();
        let mut ledger = Ledger::default();
        ledger.insert(of(id(1, 0)), &mut nodes);
        ledger.insert(of(id(1, 0)), &mut nodes);
    }
}
