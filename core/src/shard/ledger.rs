//! The allocations of a shard: one record each, found by id, linked per node.

use std::sync::Arc;

use hashbrown::HashTable;

use super::table::{NO_ALLOCATION, NodeTable};
use crate::ids::AllocationId;
use crate::index::Slot;
use crate::memory;
use crate::resource::{Demand, GpuAssignment, UnitAssignments};

/// Records of one page: pages are never moved or copied, so there is never room for twice the
/// allocations that live.
const PAGE: usize = 1024;

/// A live allocation.
#[derive(Clone, Debug)]
pub(super) struct Allocation {
    pub(super) id: AllocationId,
    pub(super) demand: Demand,
    pub(super) gpus: GpuAssignment,
    /// The units of its unit-instance kinds: few have any.
    pub(super) units: Option<Arc<UnitAssignments>>,
    pub(super) node: Slot,
    next: u32,
    previous: u32,
}

const _: () = assert!(
    size_of::<Option<Allocation>>() <= 96,
    "the records are the larger part of an allocation's 128 bytes"
);

/// All live allocations of a shard.
#[derive(Default)]
pub(super) struct Ledger {
    pages: Vec<Vec<Option<Allocation>>>,
    free: Vec<u32>,
    /// Records by the hash of their id: the id itself stands in the record.
    by_id: HashTable<u32>,
}

/// Sequences count up, so that they differ in the low bits: a multiplication takes those to the
/// high bits, where the table looks for a tag, and the fold back to the low ones.
fn hash(id: AllocationId) -> u64 {
    const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
    let key = id.sequence ^ u64::from(id.partition.0) << 48 ^ u64::from(id.incarnation.0) << 20;
    let product = key.wrapping_mul(SPREAD);
    product ^ product >> 32
}

impl Ledger {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    #[inline]
    fn record(&self, at: u32) -> Option<&Allocation> {
        self.pages.get(at as usize / PAGE)?.get(at as usize % PAGE)?.as_ref()
    }

    #[inline]
    fn place_mut(&mut self, at: u32) -> &mut Option<Allocation> {
        &mut self.pages[at as usize / PAGE][at as usize % PAGE]
    }

    #[inline]
    fn record_mut(&mut self, at: u32) -> &mut Allocation {
        self.place_mut(at).as_mut().expect("lists link live records")
    }

    fn is(&self, at: u32, id: AllocationId) -> bool {
        self.record(at).is_some_and(|record| record.id == id)
    }

    /// The live allocation of `id`.
    pub(super) fn get(&self, id: AllocationId) -> Option<&Allocation> {
        self.record(*self.by_id.find(hash(id), |&at| self.is(at, id))?)
    }

    /// Records an allocation that its node's books already hold.
    pub(super) fn insert(
        &mut self,
        id: AllocationId,
        node: Slot,
        demand: Demand,
        gpus: GpuAssignment,
        units: Option<Arc<UnitAssignments>>,
        nodes: &mut NodeTable,
    ) {
        let key = hash(id);
        assert!(self.by_id.find(key, |&at| self.is(at, id)).is_none(), "allocation {id} is granted twice");
        let at = self.free.pop().unwrap_or_else(|| self.one_more());
        let hot = nodes.hot_mut(node);
        let next = hot.first_allocation;
        hot.first_allocation = at;
        hot.allocations += 1;
        *self.place_mut(at) =
            Some(Allocation { id, demand, gpus, units, node, next, previous: NO_ALLOCATION });
        if next != NO_ALLOCATION {
            self.record_mut(next).previous = at;
        }
        let pages = &self.pages;
        self.by_id.insert_unique(key, at, |&at| {
            let record = pages[at as usize / PAGE][at as usize % PAGE].as_ref();
            hash(record.expect("the table names live records").id)
        });
    }

    /// Room for one more record.
    fn one_more(&mut self) -> u32 {
        if self.pages.last().is_none_or(|page| page.len() == PAGE) {
            self.pages.push(Vec::with_capacity(PAGE));
        }
        let page = self.pages.len() - 1;
        let at = page * PAGE + self.pages[page].len();
        self.pages[page].push(None);
        let at = u32::try_from(at).expect("fewer allocations than u32 can count");
        assert!(at != NO_ALLOCATION, "fewer allocations than u32 can count");
        at
    }

    /// Ends an allocation; its node's books are the caller's to settle.
    pub(super) fn remove(&mut self, id: AllocationId, nodes: &mut NodeTable) -> Option<Allocation> {
        let pages = &self.pages;
        let is = |&at: &u32| {
            pages[at as usize / PAGE][at as usize % PAGE].as_ref().is_some_and(|record| record.id == id)
        };
        let (at, _) = self.by_id.find_entry(hash(id), is).ok()?.remove();
        let record = self.place_mut(at).take().expect("the table names live records");
        self.free.push(at);
        let hot = nodes.hot_mut(record.node);
        if record.previous == NO_ALLOCATION {
            assert!(hot.first_allocation == at, "the list of node {} is broken", hot.id);
            hot.first_allocation = record.next;
        } else {
            self.record_mut(record.previous).next = record.next;
        }
        hot.allocations -= 1;
        if record.next != NO_ALLOCATION {
            self.record_mut(record.next).previous = record.previous;
        }
        Some(record)
    }

    /// The allocations of one node, newest first.
    pub(super) fn of_node<'a>(
        &'a self,
        node: Slot,
        nodes: &NodeTable,
    ) -> impl Iterator<Item = &'a Allocation> {
        let mut at = nodes.hot(node).first_allocation;
        std::iter::from_fn(move || {
            if at == NO_ALLOCATION {
                return None;
            }
            let record = self.record(at).expect("lists link live records");
            at = record.next;
            Some(record)
        })
    }

    /// What each structure takes.
    pub(super) fn memory(&self, mut add: impl FnMut(&'static str, u64)) {
        let records: usize = self.pages.iter().map(Vec::capacity).sum();
        let records = (records * size_of::<Option<Allocation>>()) as u64;
        add("allocation records", records + memory::of_vec(&self.pages) + memory::of_vec(&self.free));
        add("allocations by id", self.by_id.allocation_size() as u64);
    }

    /// Checks that table and records name each other.
    pub(super) fn check(&self) -> Result<(), String> {
        let places: usize = self.pages.iter().map(Vec::len).sum();
        let live = self.pages.iter().flatten().flatten().count();
        if live != self.by_id.len() || live + self.free.len() != places {
            return Err(format!("{live} records, {} by id, {} free", self.by_id.len(), self.free.len()));
        }
        for (at, record) in (0u32..).zip(self.pages.iter().flatten()) {
            if let Some(record) = record
                && self.by_id.find(hash(record.id), |&found| found == at).is_none()
            {
                return Err(format!("allocation {} is not found by its id", record.id));
            }
        }
        Ok(())
    }
}
