//! The views of a shard: its image in persistent arrays, updated after each batch.

use std::sync::Arc;

use super::Shard;
use super::table::{ALL, COLD, HOT, IDENTITY};
use crate::index::Slot;
use crate::node::NodeRegistration;
use crate::view::{
    AllocationImage, ColdImage, Copied, Dirty, HotImage, Mirror, Published, Retained, Shortfalls, View,
    ViewHead, ViewReader, ViewVersion,
};

/// The state from which views are made.
pub(super) struct Views {
    mirror: Mirror,
    published: Published,
    /// Scratch lists of changed places, reused so that a batch does not allocate them.
    places: Vec<u32>,
    others: Vec<u32>,
}

impl Shard {
    /// Enables views and publishes the first one. A second call only returns another reader.
    ///
    /// Costs a list entry per change, and at the end of each batch the cost of
    /// [`publish_view`](Self::publish_view).
    pub fn enable_views(&mut self) -> ViewReader {
        if let Some(views) = &self.views {
            return views.published.reader();
        }
        let mut dirty = Dirty::default();
        (0..self.nodes.slots()).for_each(|slot| dirty.note(slot, ALL));
        *self.nodes.dirty_mut() = Some(Box::new(dirty));
        let mut dirty = Dirty::default();
        (0..self.ledger.places()).for_each(|at| dirty.note(at, 1));
        *self.ledger.dirty_mut() = Some(Box::new(dirty));
        let mut copied = Copied::default();
        let mut mirror = Mirror::default();
        self.follow(&mut mirror, (&mut Vec::new(), &mut Vec::new()), &mut copied);
        let first = Arc::new(View::new(self.view_head(1, copied), mirror.clone()));
        let published = Published::new(first);
        let reader = published.reader();
        let places = Vec::new();
        let others = Vec::new();
        self.views = Some(Box::new(Views { mirror, published, places, others }));
        reader
    }

    /// Publishes a view of the current state, if views are enabled and anything that they show has changed.
    /// Must be called after each batch, before its outcomes are handed out. A caller that has seen an outcome
    /// then finds a view at least as new.
    ///
    /// Copies the chunks of what changed and those on the path to them: O(changes * log nodes), regardless of
    /// the views that readers keep.
    pub fn publish_view(&mut self) -> Option<Arc<View>> {
        let mut views = self.views.take()?;
        let changed = self.has_unpublished();
        let published = changed.then(|| {
            let before = views.published.current().head();
            let sequence = before.version.sequence + 1;
            let mut copied = before.copied;
            self.follow(&mut views.mirror, (&mut views.places, &mut views.others), &mut copied);
            let view = Arc::new(View::new(self.view_head(sequence, copied), views.mirror.clone()));
            views.published.publish(Arc::clone(&view));
            view
        });
        self.views = Some(views);
        published
    }

    /// Returns whether anything that views show changed since the last view.
    fn has_unpublished(&mut self) -> bool {
        let changed = |dirty: &Option<Box<Dirty>>| dirty.as_ref().is_some_and(|dirty| !dirty.is_empty());
        changed(self.nodes.dirty_mut()) || changed(self.ledger.dirty_mut())
    }

    /// Returns the sequence of the view that the end of this batch publishes. 0 if views are disabled.
    #[must_use]
    pub fn visible_from(&self) -> u64 {
        self.views.as_ref().map_or(0, |views| views.published.current().version().sequence + 1)
    }

    /// Returns the view that was published last.
    #[must_use]
    pub fn current_view(&self) -> Option<&Arc<View>> {
        self.views.as_ref().map(|views| views.published.current())
    }

    /// Returns what is retained of past views.
    #[must_use]
    pub fn retained_views(&self) -> Retained {
        self.views.as_ref().map_or_else(Retained::default, |views| views.published.retained())
    }

    fn view_head(&mut self, sequence: u64, copied: Copied) -> ViewHead {
        let thetas = self.granularity_state().map(|state| state.thetas.into());
        ViewHead {
            shard: self.id,
            version: ViewVersion { incarnation: self.incarnation, sequence },
            now: self.now,
            node_count: u32::try_from(self.nodes.len()).expect("NODES_MAX fits u32"),
            allocation_count: self.ledger.len() as u64,
            facts: self.facts(),
            endings: self.endings(),
            thetas,
            copied,
        }
    }

    /// Updates the image with all changes, and clears the list of changes.
    fn follow(
        &mut self,
        mirror: &mut Mirror,
        (places, others): (&mut Vec<u32>, &mut Vec<u32>),
        copied: &mut Copied,
    ) {
        let mut dirty = self.nodes.dirty_mut().take().expect("views are made");
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
        *self.nodes.dirty_mut() = Some(dirty);

        let mut dirty = self.ledger.dirty_mut().take().expect("views are made");
        dirty.list(1, places);
        others.clear();
        let mut set = |at, before: &AllocationImage| {
            let image = self.ledger.image(at);
            if before.has_more || image.has_more {
                others.push(at);
            }
            image
        };
        mirror.allocations.set(places, &mut set, copied);
        mirror.more.set(others, |at, _| self.ledger.more_image(at).map(Arc::new), copied);
        dirty.clear();
        *self.ledger.dirty_mut() = Some(dirty);
    }

    pub(super) fn hot_image(&self, slot: Slot) -> HotImage {
        if !self.nodes.is_there(slot) {
            return HotImage::default();
        }
        let room = self.nodes.room(slot);
        let hot = self.nodes.hot(slot);
        HotImage {
            id: hot.id,
            ordinal: self.nodes.ordinal(slot),
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
    pub(super) fn cold_image(
        &self,
        slot: Slot,
        registration: Option<&Arc<NodeRegistration>>,
    ) -> Option<ColdImage> {
        if !self.nodes.is_there(slot) {
            return None;
        }
        let hot = self.nodes.hot(slot);
        let cold = self.nodes.cold(slot);
        let fresh = || Arc::new(cold.registration.clone());
        let shortfalls = hot.has_shortfall.then(|| {
            let cpu = cold.cpu_shortfall;
            let memory = cold.memory_shortfall;
            Box::new(Shortfalls { cpu, memory, gpus: cold.gpu_shortfall })
        });
        Some(ColdImage {
            registration: registration.map_or_else(fresh, Arc::clone),
            shortfalls,
            unhealthy: cold.unhealthy.clone(),
            custom: cold.custom.clone().into_boxed_slice(),
            reservation: self.reservations.at(slot).cloned().map(Box::new),
            holds: self.statements.images_at(slot),
            pending: self.pending_image(slot),
        })
    }

    /// Checks the published view against a newly made image of the whole state.
    ///
    /// # Errors
    /// The first difference.
    pub fn check_view(&self) -> Result<(), String> {
        let Some(views) = &self.views else { return Ok(()) };
        let view = views.published.current();
        let mut nodes = 0;
        for slot in 0..self.nodes.slots() {
            let hot = self.hot_image(slot);
            let cold = self.cold_image(slot, None);
            nodes += u32::from(hot.state.is_some());
            let shown = view.mirror().nodes.get(slot).copied().unwrap_or_default();
            if shown != hot {
                return Err(format!("slot {slot} is {hot:?}, the view shows {shown:?}"));
            }
            let shown = view.cold(slot).map(AsRef::as_ref);
            if shown != cold.as_ref() {
                return Err(format!("slot {slot} is {cold:?}, the view shows {shown:?}"));
            }
            if hot.state.is_some() {
                let listed =
                    self.ledger.of_node(slot, &self.nodes).map(|a| (a.id, a.demand, a.gpus, a.units));
                let shown = view.allocations(slot).map(|a| (a.id, a.demand, a.gpus, a.units));
                if !listed.eq(shown) {
                    return Err(format!("the view shows other allocations of node {}", hot.id));
                }
            }
        }
        let mut beyond = Vec::new();
        view.nodes(|slot, _, _| beyond.extend((slot >= self.nodes.slots()).then_some(slot)));
        let head = view.head();
        if !beyond.is_empty() || head.node_count != nodes || head.allocation_count != self.ledger.len() as u64
        {
            return Err(format!("{nodes} nodes, the view shows {beyond:?} in addition and says {head:?}"));
        }
        Ok(())
    }
}
