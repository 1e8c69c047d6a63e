//! Views: immutable snapshots of a shard, which share what did not change.
//!
//! A shard works on arrays of its own, contiguous and fast. Beside them it keeps an image of them in
//! persistent arrays, brought up to date at the end of each batch at a cost that follows what
//! changed; a [`View`] is one version of that image. So a view costs neither the shard's search nor
//! the number of nodes, and a reader that keeps one keeps only what has been replaced since.
//!
//! A reader that wants to search as the shard does has a *replica*: a shard without commands,
//! [brought up to date](crate::shard::Shard::sync) by the difference of two views.
//!
//! Views of several shards are not one instant: whoever plans on them says on which versions.

mod changes;
mod dirty;
mod image;
mod mirror;
mod reader;
mod trie;

pub use changes::{Change, ChangeCursor, ChangeKinds, Step};
pub(crate) use dirty::{Changes, Dirty};
pub use image::{AllocationImage, AllocationView, ClaimImage, ColdImage, HoldImage, HotImage, PendingImage};
pub(crate) use image::{MoreImage, NO_ALLOCATION, Shortfalls};
pub(crate) use mirror::Mirror;
pub(crate) use reader::Published;
pub use reader::{Fresh, Retained, ViewReader};
pub use trie::Copied;

use std::sync::Arc;

use crate::ids::{Incarnation, NodeId, ShardId};
use crate::index::Slot;
use crate::link::ShardFacts;
use crate::time::Time;

/// Which view of a shard: later ones are greater, over restarts too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewVersion {
    /// The start of the service.
    pub incarnation: Incarnation,
    /// Counts the publications of the shard since then, from 1.
    pub sequence: u64,
}

/// What stands in a view beside nodes and allocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewHead {
    /// Whose.
    pub shard: ShardId,
    /// Which.
    pub version: ViewVersion,
    /// The shard's clock at its last batch.
    pub now: Time,
    /// Registered nodes.
    pub node_count: u32,
    /// Live allocations.
    pub allocation_count: u64,
    /// What the router knows of the shard.
    pub facts: ShardFacts,
    /// Counts nodes that were lost or removed, and bundles that ended, since the start of the service.
    pub endings: u64,
    /// Steps of coordinates, where any follows the nodes.
    pub(crate) thetas: Option<Arc<[i64]>>,
    /// What all publications of the shard have copied, this one included.
    pub copied: Copied,
}

/// A state that a shard was in: immutable.
pub struct View {
    head: ViewHead,
    mirror: Mirror,
}

impl View {
    pub(crate) fn new(head: ViewHead, mirror: Mirror) -> Self {
        Self { head, mirror }
    }

    /// Everything but nodes and allocations.
    #[must_use]
    pub fn head(&self) -> &ViewHead {
        &self.head
    }

    /// Which.
    #[must_use]
    pub fn version(&self) -> ViewVersion {
        self.head.version
    }

    pub(crate) fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// What placements change of the node in `slot`, if a node has that slot.
    #[must_use]
    pub fn hot(&self, slot: Slot) -> Option<&HotImage> {
        self.mirror.nodes.get(slot).filter(|image| image.state.is_some())
    }

    /// What placements seldom change of it.
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

    /// The allocations of the node in `slot`, newest first.
    pub fn allocations(&self, slot: Slot) -> impl Iterator<Item = AllocationView> {
        let mut at = self.hot(slot).map_or(NO_ALLOCATION, |image| image.first_allocation);
        std::iter::from_fn(move || {
            let (image, more) = self.mirror.allocation(at)?;
            at = image.next;
            Some(image.view(more))
        })
    }

    /// Calls `visit` with the slot of every node that is not as it was in `older`, ascending: also
    /// of those that came or left. Costs what changed.
    ///
    /// # Panics
    /// When `older` is of another shard.
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

    /// The slot of a node: a walk over all nodes. Who asks often has a replica.
    #[must_use]
    pub fn slot_of(&self, node: NodeId) -> Option<Slot> {
        let mut found = None;
        self.nodes(|slot, image, _| found = if image.id == node { Some(slot) } else { found });
        found
    }

    /// What the whole view takes, in chunks and bytes, shared or not; without what cold images hold.
    #[must_use]
    pub fn extent(&self) -> Copied {
        let mut extent = Copied::default();
        self.chunks(|_, bytes| extent = extent.plus(Copied { chunks: 1, bytes: bytes as u64 }));
        extent
    }

    /// Calls `visit` with an address and the bytes of every chunk: one that is shared has the same
    /// address in each view, for as long as any of them is kept.
    pub fn chunks(&self, mut visit: impl FnMut(usize, usize)) {
        self.mirror.chunks(&mut visit);
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("head", &self.head).finish_non_exhaustive()
    }
}
