//! The views of a shard: its image in persistent arrays, updated after each batch.

use crate::books::{RESERVED, UNHEALTHY};
use crate::broken::{Broken, broken};
use std::sync::Arc;

use crate::index::Slot;
use crate::node::NodeRegistration;
use crate::shard::Shard;
use crate::shard::books::{COLD, HOT, IDENTITY};
use crate::view::{
    AllocationImage, ColdImage, Copied, Dirty, HotImage, Mirror, Published, Retained, View, ViewHead,
    ViewReader, ViewVersion,
};

/// The state from which views are made.
pub(crate) struct Views {
    mirror: Mirror,
    published: Published,
    /// Scratch lists of changed places, reused so that a batch does not allocate them.
    places: Vec<u32>,
    others: Vec<u32>,
}

/// What a shard publishes to others in addition to its outcomes.
#[derive(Default)]
pub(crate) struct Publish {
    /// Set if views are made.
    views: Option<Box<Views>>,
    /// The number of times that a node may have got more available.
    pub(crate) growth: u64,
}

impl Publish {
    /// Returns whether views are made.
    pub(crate) fn has_views(&self) -> bool {
        self.views.is_some()
    }
}

impl Shard {
    /// Enables views and publishes the first one. A second call only returns another reader.
    ///
    /// Costs a list entry per change, and at the end of each batch the cost of
    /// [`publish_view`](Self::publish_view).
    pub fn enable_views(&mut self) -> ViewReader {
        if let Some(views) = &self.publish.views {
            return views.published.reader();
        }
        self.books.note_changes();
        let mut copied = Copied::default();
        let mut mirror = Mirror::default();
        self.update_mirror(&mut mirror, (&mut Vec::new(), &mut Vec::new()), &mut copied);
        self.books.bundles.ends.tell(1, &mut mirror, &mut copied);
        let first = Arc::new(View::new(self.view_head(1, copied), mirror.clone()));
        let published = Published::new(first);
        let reader = published.reader();
        let places = Vec::new();
        let others = Vec::new();
        self.publish.views = Some(Box::new(Views { mirror, published, places, others }));
        reader
    }

    /// Publishes a view of the current state, if views are enabled and anything that they show has changed.
    /// Must be called after each batch, before its outcomes are handed out. A caller that has seen an outcome
    /// then finds a view at least as new.
    ///
    /// Copies the chunks of what changed and those on the path to them: O(changes * log nodes), regardless of
    /// the views that readers keep.
    pub fn publish_view(&mut self) -> Option<Arc<View>> {
        let mut views = self.publish.views.take()?;
        let changed = self.has_unpublished();
        let published = changed.then(|| {
            let before = views.published.current().head();
            let sequence = before.version.sequence + 1;
            let mut copied = before.copied;
            self.update_mirror(&mut views.mirror, (&mut views.places, &mut views.others), &mut copied);
            if self.books.bundles.ends.is_untold() {
                self.books.bundles.ends.tell(sequence, &mut views.mirror, &mut copied);
            }
            let view = Arc::new(View::new(self.view_head(sequence, copied), views.mirror.clone()));
            views.published.publish(Arc::clone(&view));
            view
        });
        self.publish.views = Some(views);
        published
    }

    /// Returns whether anything that views show changed since the last view.
    fn has_unpublished(&mut self) -> bool {
        let changed = |dirty: &Option<Box<Dirty>>| dirty.as_ref().is_some_and(|dirty| !dirty.is_empty());
        changed(self.books.changed_nodes()) || changed(self.books.changed_allocations())
    }

    /// Returns the sequence of the view that the end of this batch publishes. 0 if views are disabled.
    #[must_use]
    pub fn visible_from(&self) -> u64 {
        self.publish.views.as_ref().map_or(0, |views| views.published.current().version().sequence + 1)
    }

    /// Returns the view that was published last.
    #[must_use]
    pub fn current_view(&self) -> Option<&Arc<View>> {
        self.publish.views.as_ref().map(|views| views.published.current())
    }

    /// Returns what is retained of past views.
    #[must_use]
    pub fn retained_views(&self) -> Retained {
        self.publish.views.as_ref().map_or_else(Retained::default, |views| views.published.retained())
    }

    fn view_head(&mut self, sequence: u64, copied: Copied) -> ViewHead {
        let thetas = self.choose.granularity_state().map(|state| state.thetas.into());
        ViewHead {
            shard: self.id,
            version: ViewVersion { incarnation: self.incarnation, sequence },
            now: self.now,
            node_count: u32::try_from(self.books.nodes.len()).expect("NODES_MAX fits u32"),
            allocation_count: self.books.ledger.len() as u64,
            facts: self.facts(),
            bundles_ended: self.bundles_ended(),
            thetas,
            copied,
        }
    }

    /// Updates the image with all changes, and clears the list of changes.
    fn update_mirror(
        &mut self,
        mirror: &mut Mirror,
        (places, others): (&mut Vec<u32>, &mut Vec<u32>),
        copied: &mut Copied,
    ) {
        let mut dirty = self.books.changed_nodes().take().expect("views are made");
        dirty.list(COLD, places);
        let mut images = Copied::default();
        let image = |slot, before: &Option<Arc<ColdImage>>| {
            let kept = before.as_ref().filter(|_| dirty.at(slot) & IDENTITY == 0);
            let image = self.cold_image(slot, kept.map(|before| &before.registration))?;
            images.count(size_of::<ColdImage>());
            Some(Arc::new(image))
        };
        mirror.cold.set(places, image, copied);
        *copied = copied.plus(images);
        dirty.list(HOT, places);
        mirror.nodes.set(places, |slot, _| self.hot_image(slot), copied);
        dirty.clear();
        *self.books.changed_nodes() = Some(dirty);

        let mut dirty = self.books.changed_allocations().take().expect("views are made");
        dirty.list(1, places);
        others.clear();
        let mut set = |at, before: &AllocationImage| {
            let image = self.books.ledger.image(at);
            if before.has_more || image.has_more {
                others.push(at);
            }
            image
        };
        mirror.allocations.set(places, &mut set, copied);
        mirror.more.set(others, |at, _| self.books.ledger.more_image(at).map(Arc::new), copied);
        dirty.clear();
        *self.books.changed_allocations() = Some(dirty);
    }

    pub(crate) fn hot_image(&self, slot: Slot) -> HotImage {
        if !self.books.nodes.is_there(slot) {
            return HotImage::default();
        }
        let room = self.books.nodes.room(slot);
        let hot = self.books.nodes.hot(slot);
        HotImage {
            id: hot.id,
            ordinal: self.books.nodes.ordinal(slot),
            version: hot.version,
            cpu: room.cpu,
            memory: room.memory,
            gpus: hot.gpus,
            allocations: hot.allocations,
            first_allocation: hot.first_allocation,
            whole_gpus: room.whole_gpus,
            largest_gpu_part: room.largest_gpu_part,
            places: room.places,
            partition: hot.partition,
            state: room.state,
        }
    }

    /// Returns the cold part of a node. `registration` is its image, if it has not changed.
    pub(crate) fn cold_image(
        &self,
        slot: Slot,
        registration: Option<&Arc<NodeRegistration>>,
    ) -> Option<ColdImage> {
        if !self.books.nodes.is_there(slot) {
            return None;
        }
        let hot = self.books.nodes.hot(slot);
        let cold = self.books.nodes.cold(slot);
        let fresh = || Arc::new(cold.registration.clone());
        Some(ColdImage {
            registration: registration.map_or_else(fresh, Arc::clone),
            shortfalls: hot.has_shortfall.then(|| Box::new(cold.short.clone())),
            custom: cold.custom.clone().into_boxed_slice(),
            entries: self.books.entries_of(slot, UNHEALTHY | RESERVED).cloned().collect(),
            holds: self.statements.images_at(slot),
            pending: self.books.pending_image(slot),
        })
    }

    /// Checks the published view against a newly made image of the whole state.
    ///
    /// # Errors
    /// The first difference.
    pub fn check_view(&self) -> Result<(), Broken> {
        let Some(views) = &self.publish.views else { return Ok(()) };
        let view = views.published.current();
        let mut nodes = 0;
        for slot in 0..self.books.nodes.slots() {
            let hot = self.hot_image(slot);
            let cold = self.cold_image(slot, None);
            nodes += u32::from(hot.state.is_some());
            let shown = view.mirror().nodes.get(slot).copied().unwrap_or_default();
            if shown != hot {
                return Err(broken!("slot {slot} is {hot:?}, the view shows {shown:?}"));
            }
            let shown = view.cold(slot).map(AsRef::as_ref);
            if shown != cold.as_ref() {
                return Err(broken!("slot {slot} is {cold:?}, the view shows {shown:?}"));
            }
            if hot.state.is_some() {
                let listed = self
                    .books
                    .ledger
                    .of_node(slot, &self.books.nodes)
                    .map(|a| (a.id, a.demand, a.gpus, a.units));
                let shown = view.allocations(slot).map(|a| (a.id, a.demand, a.gpus, a.units));
                if !listed.eq(shown) {
                    return Err(broken!("the view shows other allocations of node {}", hot.id));
                }
            }
        }
        let mut beyond = Vec::new();
        view.nodes(|slot, _, _| beyond.extend((slot >= self.books.nodes.slots()).then_some(slot)));
        let head = view.head();
        if !beyond.is_empty()
            || head.node_count != nodes
            || head.allocation_count != self.books.ledger.len() as u64
        {
            return Err(broken!("{nodes} nodes, the view shows {beyond:?} in addition and says {head:?}"));
        }
        Ok(())
    }
}
