//! The allocations of a shard: one record each, found by id, linked per node.

use super::table::{NO_ALLOCATION, NodeTable};
use crate::ids::AllocationId;
use crate::index::Slot;
use crate::map::FixedMap;
use crate::resource::{Demand, GpuAssignment};

/// A live allocation.
#[derive(Clone, Debug)]
pub(super) struct Allocation {
    pub(super) id: AllocationId,
    pub(super) demand: Demand,
    pub(super) gpus: GpuAssignment,
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
    records: Vec<Option<Allocation>>,
    free: Vec<u32>,
    by_id: FixedMap<AllocationId, u32>,
}

impl Ledger {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Records an allocation that its node's books already hold.
    pub(super) fn insert(
        &mut self,
        id: AllocationId,
        node: Slot,
        demand: Demand,
        gpus: GpuAssignment,
        nodes: &mut NodeTable,
    ) {
        let hot = nodes.hot_mut(node);
        let next = hot.first_allocation;
        let record = Some(Allocation { id, demand, gpus, node, next, previous: NO_ALLOCATION });
        let at = if let Some(at) = self.free.pop() {
            self.records[at as usize] = record;
            at
        } else {
            self.records.push(record);
            let at = u32::try_from(self.records.len() - 1).expect("fewer allocations than u32 can count");
            assert!(at != NO_ALLOCATION, "fewer allocations than u32 can count");
            at
        };
        hot.first_allocation = at;
        hot.allocations += 1;
        if next != NO_ALLOCATION {
            self.record_mut(next).previous = at;
        }
        let before = self.by_id.insert(id, at);
        assert!(before.is_none(), "allocation {id} is granted twice");
    }

    /// Ends an allocation; its node's books are the caller's to settle.
    pub(super) fn remove(&mut self, id: AllocationId, nodes: &mut NodeTable) -> Option<Allocation> {
        let at = self.by_id.remove(&id)?;
        let record = self.records[at as usize].take().expect("the map names live records");
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

    fn record_mut(&mut self, at: u32) -> &mut Allocation {
        self.records[at as usize].as_mut().expect("lists link live records")
    }

    /// The allocations of one node, newest first.
    pub(super) fn of_node<'a>(
        &'a self,
        node: Slot,
        nodes: &NodeTable,
    ) -> impl Iterator<Item = &'a Allocation> {
        let mut at = nodes.hot(node).first_allocation;
        std::iter::from_fn(move || {
            let record = self.records.get(at as usize)?.as_ref().expect("lists link live records");
            at = record.next;
            Some(record)
        })
    }

    /// Checks that map and records name each other.
    pub(super) fn check(&self) -> Result<(), String> {
        let live = self.records.iter().flatten().count();
        if live != self.by_id.len() || live + self.free.len() != self.records.len() {
            return Err(format!("{live} records, {} in the map, {} free", self.by_id.len(), self.free.len()));
        }
        for (at, record) in (0u32..).zip(&self.records) {
            if let Some(record) = record
                && self.by_id.get(&record.id) != Some(&at)
            {
                return Err(format!("allocation {} is not found by its id", record.id));
            }
        }
        Ok(())
    }
}
