//! Views: immutable snapshots of a shard that share what did not change.
//!
//! A shard works on its own contiguous, fast arrays. At the end of each batch it hands over images of what
//! changed. [Readers](ViewReader) keep them in persistent arrays. The cost of an update follows what changed. A
//! [`View`] is one version of these arrays. So a view does not slow down the shard's search, and its cost does not
//! grow with the number of nodes. A reader that keeps a view keeps only what has been replaced since.
//!
//! A reader that wants to search as the shard does keeps a *replica*: a shard without commands,
//! [brought up to date](crate::shard::Shard::sync) by the difference of two views.
//!
//! Views of several shards are not from one instant. A plan over them names the versions that it is based on.

mod bundle_ended;
mod changed;
mod changes;
mod dirty;
mod image;
mod lease_expired;
mod mirror;
mod reader;
mod trie;

pub(crate) use bundle_ended::UntoldEnds;
pub use bundle_ended::{BundleEnded, EndCause};
pub(crate) use changed::Changed;
pub use changes::{Change, ChangeCursor, ChangeKinds, Step};
pub(crate) use dirty::{Changes, Dirty};
pub use image::{AllocationImage, AllocationView, ColdImage, HoldImage, HotImage, PendingImage};
pub(crate) use image::{MoreImage, NO_ALLOCATION};
pub(crate) use lease_expired::UntoldExpired;
pub(crate) use mirror::Mirror;
pub use reader::{Fresh, Retained, ViewReader};
pub use trie::Copied;

use std::sync::Arc;

use crate::ids::{Incarnation, NodeId, ShardId};
use crate::index::Slot;
use crate::link::ShardFacts;
use crate::time::Time;

/// The version of a shard's view. Later views are greater, also across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewVersion {
    /// The start of the service.
    pub incarnation: Incarnation,
    /// The number of the shard's publication since then, from 1.
    pub sequence: u64,
}

/// The contents of a view except nodes and allocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewHead {
    /// The shard.
    pub shard: ShardId,
    /// The version.
    pub version: ViewVersion,
    /// The shard's clock at its last batch.
    pub now: Time,
    /// The number of registered nodes.
    pub node_count: u32,
    /// The number of live allocations.
    pub allocation_count: u64,
    /// The facts that the shard publishes for routers.
    pub facts: ShardFacts,
    /// The number of bundles that ended since the start of the service ([`View::ended_from`]).
    pub bundles_ended: u64,
    /// The number of leases that ran out since the start of the service.
    pub leases_expired: u64,
    /// The granularity per dimension, if any adapts to the nodes.
    pub(crate) thetas: Option<Arc<[i64]>>,
    /// The total that all publications of the shard have copied, including this one.
    pub copied: Copied,
}

/// An immutable snapshot of a shard.
pub struct View {
    head: ViewHead,
    mirror: Mirror,
}

impl View {
    pub(crate) fn new(head: ViewHead, mirror: Mirror) -> Self {
        Self { head, mirror }
    }

    /// Returns everything except nodes and allocations.
    #[must_use]
    pub fn head(&self) -> &ViewHead {
        &self.head
    }

    /// Returns the version.
    #[must_use]
    pub fn version(&self) -> ViewVersion {
        self.head.version
    }

    pub(crate) fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// Returns the hot image of the node in `slot`, if there is a node.
    #[must_use]
    pub fn hot(&self, slot: Slot) -> Option<&HotImage> {
        self.mirror.nodes.get(slot).filter(|image| image.state.is_some())
    }

    /// Returns the cold image of the node in `slot`, if there is a node.
    #[must_use]
    pub fn cold(&self, slot: Slot) -> Option<&Arc<ColdImage>> {
        self.mirror.cold.get(slot)?.as_ref()
    }

    /// Calls `visit` with every node, in order of slot.
    pub fn nodes(&self, mut visit: impl FnMut(Slot, &HotImage, &Arc<ColdImage>)) {
        self.mirror.nodes.each(|slot, image| {
            if image.state.is_some() {
                visit(slot, image, self.cold(slot).expect("a node has a cold image"));
            }
        });
    }

    /// Returns the allocations of the node in `slot`, newest first.
    pub fn allocations(&self, slot: Slot) -> impl Iterator<Item = AllocationView> {
        let mut at = self.hot(slot).map_or(NO_ALLOCATION, |image| image.first_allocation);
        std::iter::from_fn(move || {
            let (image, more) = self.mirror.allocation(at)?;
            at = image.next;
            Some(image.view(more))
        })
    }

    /// Calls `visit` with the slot of every node that differs from `older`, ascending. This includes nodes
    /// that came or left. The cost follows what changed.
    ///
    /// # Panics
    /// Panics if `older` is of another shard.
    pub fn diff(&self, older: &Self, mut visit: impl FnMut(Slot)) {
        assert!(self.head.shard == older.head.shard, "views of two shards have nothing in common");
        let mut changed = Vec::new();
        self.mirror.cold.unshared(&older.mirror.cold, |slot, new, old| {
            let same = match (new, old) {
                (Some(new), Some(old)) => Arc::ptr_eq(new, old),
                (None, None) => true,
                _ => false,
            };
            if !same {
                changed.push(slot);
            }
        });
        let cold = changed.len();
        self.mirror.nodes.unshared(&older.mirror.nodes, |slot, new, old| {
            if new != old {
                changed.push(slot);
            }
        });
        if cold > 0 {
            changed.sort_unstable();
            changed.dedup();
        }
        changed.into_iter().for_each(&mut visit);
    }

    /// Returns the slot of a node by a walk over all nodes. Use a replica for frequent lookups.
    #[must_use]
    pub fn slot_of(&self, node: NodeId) -> Option<Slot> {
        let mut found = None;
        self.nodes(|slot, image, _| found = if image.id == node { Some(slot) } else { found });
        found
    }

    /// Returns the size of the whole view in chunks and bytes, shared or not. The contents of cold images are
    /// excluded.
    #[must_use]
    pub fn extent(&self) -> Copied {
        let mut extent = Copied::default();
        self.chunks(|_, bytes| extent = extent.plus(Copied { chunks: 1, bytes: bytes as u64 }));
        extent
    }

    /// Calls `visit` with the address and the size of every chunk, in bytes. A shared chunk has the same
    /// address in each view, as long as any of them is kept.
    pub fn chunks(&self, mut visit: impl FnMut(usize, usize)) {
        self.mirror.chunks(&mut visit);
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("head", &self.head).finish_non_exhaustive()
    }
}
