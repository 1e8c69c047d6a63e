//! The persistent arrays of a view.

use std::sync::Arc;

use super::image::{AllocationImage, ColdImage, HotImage, MoreImage, NO_ALLOCATION};
use super::trie::Trie;
use super::{BundleEnded, Copied, lease_expired};
use crate::ids::AllocationId;

/// Nodes per leaf.
const NODES: usize = 8;
/// Allocations per leaf.
const ALLOCATIONS: usize = 8;
/// References per leaf.
const REFERENCES: usize = 16;

/// The image of a shard's arrays.
#[derive(Clone, Default)]
pub(crate) struct Mirror {
    /// Indexed by slot.
    pub(crate) nodes: Trie<HotImage, NODES>,
    /// Indexed by slot.
    pub(crate) cold: Trie<Option<Arc<ColdImage>>, REFERENCES>,
    /// Indexed by place in the ledger.
    pub(crate) allocations: Trie<AllocationImage, ALLOCATIONS>,
    /// Indexed by place in the ledger.
    pub(crate) more: Trie<Option<Arc<MoreImage>>, REFERENCES>,
    /// The bundles that ended last, as a ring.
    pub(crate) ended: Trie<Option<BundleEnded>, ALLOCATIONS>,
    /// The allocations whose lease ran out last, as a ring.
    pub(crate) expired: Trie<Option<AllocationId>, ALLOCATIONS>,
}

impl Mirror {
    /// Returns the live allocation at a place in the ledger.
    pub(crate) fn allocation(&self, at: u32) -> Option<(&AllocationImage, Option<&MoreImage>)> {
        if at == NO_ALLOCATION {
            return None;
        }
        let image = self.allocations.get(at).expect("lists link live records");
        let more = if image.has_more { self.more.get(at).and_then(|more| more.as_deref()) } else { None };
        Some((image, more))
    }

    /// Adds the events that brought the number of ended bundles to `count`.
    pub(super) fn tell(&mut self, count: u64, ended: &[BundleEnded], copied: &mut Copied) {
        let first = count - ended.len() as u64;
        let mut places: Vec<(u32, usize)> = (first..count).map(BundleEnded::place).zip(0..).collect();
        places.sort_unstable();
        let events: Vec<u32> = places.iter().map(|&(place, _)| place).collect();
        let mut next = places.iter().map(|&(_, at)| ended[at]);
        self.ended.set(&events, |_, _| next.next(), copied);
    }

    /// Adds the allocations that brought the number of expired leases to `count`.
    pub(super) fn expire(&mut self, count: u64, expired: &[AllocationId], copied: &mut Copied) {
        let first = count - expired.len() as u64;
        let mut told: Vec<(u32, AllocationId)> =
            (first..count).map(lease_expired::place).zip(expired.iter().copied()).collect();
        told.sort_unstable();
        let places: Vec<u32> = told.iter().map(|&(place, _)| place).collect();
        let mut next = told.iter().map(|&(_, id)| id);
        self.expired.set(&places, |_, _| next.next(), copied);
    }

    /// Calls `visit` with the address and the size of every chunk, in bytes.
    pub(crate) fn chunks(&self, visit: &mut impl FnMut(usize, usize)) {
        self.nodes.chunks(visit);
        self.cold.chunks(visit);
        self.allocations.chunks(visit);
        self.more.chunks(visit);
        self.ended.chunks(visit);
        self.expired.chunks(visit);
    }
}
