//! What a shard hands over for views: images of the places that changed, after each batch.

use crate::books::{RESERVED, UNHEALTHY};
use crate::broken::{Broken, broken};
use std::sync::Arc;

use crate::index::Slot;
use crate::limits::{VIEW_LOG, VIEW_PLACES};
use crate::link::{Doorbell, ViewLog, view_log};
use crate::node::NodeRegistration;
use crate::shard::Shard;
use crate::shard::books::{COLD, CUSTOM, HOT, IDENTITY};
use crate::view::{Changed, ColdImage, Copied, Dirty, HotImage, View, ViewHead, ViewReader, ViewVersion};

/// The state from which publications are made.
pub(crate) struct Views {
    log: ViewLog<Changed>,
    reader: ViewReader,
    /// The images of a publication that is not complete.
    begun: Option<Box<Changed>>,
    /// The number of changed places that the last call left.
    left: usize,
    /// The number of places that a call reads, if less is new.
    places: usize,
    /// The growth that the last publication shows.
    growth: u64,
    /// The registration of each node as handed over, by slot.
    registrations: Vec<Option<Arc<NodeRegistration>>>,
    /// The size of all buffers when they were handed over last.
    bytes: u64,
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
    /// Returns the reader of the views and the bytes of what is handed over, if views are made.
    pub(crate) fn views(&self) -> Option<(&ViewReader, u64)> {
        let of_registrations = |views: &Views| crate::memory::of_vec(&views.registrations);
        self.views.as_deref().map(|views| (&views.reader, views.bytes + of_registrations(views)))
    }
}

impl Shard {
    /// Enables views and publishes the first one. A second call only returns another reader.
    ///
    /// Costs a list entry per change, and at the end of each batch the cost of
    /// [`publish_view`](Self::publish_view).
    pub fn enable_views(&mut self) -> ViewReader {
        if let Some(views) = &self.publish.views {
            return views.reader.clone();
        }
        assert!(self.replica.is_none(), "a replica makes no views");
        self.books.note_changes();
        let (log, source, progress) = view_log(VIEW_LOG);
        let reader = ViewReader::new(source, progress);
        let registrations = Vec::new();
        // No publication shows this growth, so the first one is made even if there is nothing.
        let growth = u64::MAX;
        let views =
            Views { log, reader, begun: None, left: 0, places: usize::MAX, growth, registrations, bytes: 0 };
        let reader = views.reader.clone();
        self.publish.views = Some(Box::new(views));
        self.publish_view();
        self.set_view_bounds(VIEW_LOG, VIEW_PLACES);
        // Built here, where nobody waits for it.
        drop(reader.latest());
        reader
    }

    /// Sets the number of publications ahead of readers, at most [`VIEW_LOG`], and the number of changed places that a
    /// batch reads. A test calls it when views were just enabled.
    pub fn set_view_bounds(&mut self, publications: usize, places: usize) {
        if let Some(views) = &mut self.publish.views {
            assert!((1..=VIEW_LOG).contains(&publications) && places > 0, "{publications}, {places}");
            views.log.withdraw(VIEW_LOG - publications);
            views.places = places;
        }
    }

    /// Sets the bell of the shard's thread. Readers ring it when the shard may go on publishing.
    pub(crate) fn set_view_bell(&self, bell: &Arc<Doorbell>) {
        if let Some(views) = &self.publish.views {
            views.log.set_bell(Arc::clone(bell));
        }
    }

    /// Hands over images of what changed to the readers of views, if views are enabled and anything that they show
    /// has changed. Must be called after each batch, before its outcomes are handed out. Returns the sequence of the
    /// view that this completes. A caller that has seen an outcome then finds a view at least as new, or one that is
    /// [due](ViewReader::due).
    ///
    /// The cost is proportional to what changed since the last call, or bounded by [`VIEW_PLACES`]. Nothing is handed
    /// over while readers have not taken the last [`VIEW_LOG`] publications.
    pub fn publish_view(&mut self) -> Option<u64> {
        let mut views = self.publish.views.take()?;
        let published = if self.has_unpublished(&views) { self.publish_to(&mut views) } else { None };
        self.publish.views = Some(views);
        let is_last = published.is_none_or(|sequence| sequence + 1 == self.visible_from());
        assert!(is_last, "a view has another sequence than it was handed over with");
        published
    }

    fn publish_to(&mut self, views: &mut Views) -> Option<u64> {
        views.log.set_bundles_ended(self.bundles_ended());
        let begun = views.begun.take().or_else(|| {
            let buffer = views.log.take()?;
            views.bytes -= buffer.bytes;
            Some(buffer)
        });
        let changed = self.changed_places();
        let Some(mut images) = begun else {
            views.left = changed;
            return None;
        };
        // Twice what is new, so that the rest gets smaller.
        let places = views.places.max(2 * changed.saturating_sub(views.left));
        self.add_images(views, &mut images, places);
        views.left = self.changed_places();
        assert!(views.left <= changed, "something changed while images were made");
        if views.left > 0 {
            views.begun = Some(images);
            views.log.fall_behind();
            return None;
        }
        let sequence = views.log.sequence() + 1;
        self.books.bundles.ends.tell(sequence, &mut images.ended);
        assert!(!self.books.bundles.ends.is_untold(), "a bundle ended, and the view does not tell it");
        self.books.leases.expired.tell(&mut images.expired);
        let head = self.view_head(sequence);
        let is_first = views.growth == u64::MAX;
        assert!(is_first || views.growth <= head.facts.growth, "the growth of a shard went back");
        views.growth = head.facts.growth;
        images.head = Some(head);
        // The first one has everything, and is emptied at once.
        images.bytes = if sequence == 1 { 0 } else { images.bytes() };
        views.bytes += images.bytes;
        views.log.publish(images);
        Some(sequence)
    }

    /// Returns the number of changed nodes and allocations that are not handed over.
    fn changed_places(&mut self) -> usize {
        let count = |dirty: &Option<Box<Dirty>>| dirty.as_ref().map_or(0, |dirty| dirty.len());
        count(self.books.changed_nodes()) + count(self.books.changed_allocations())
    }

    /// Returns whether anything that views show changed since the last publication.
    fn has_unpublished(&mut self, views: &Views) -> bool {
        self.changed_places() > 0
            || views.growth != self.publish.growth
            || self.books.bundles.ends.is_untold()
    }

    /// Returns whether [`publish_view`](Self::publish_view) would hand over anything.
    #[must_use]
    pub fn has_view_to_publish(&mut self) -> bool {
        let Some(mut views) = self.publish.views.take() else { return false };
        let can = (views.begun.is_some() || views.log.has_room()) && self.has_unpublished(&views);
        self.publish.views = Some(views);
        can
    }

    /// Returns the sequence of the first view that shows the current batch. 0 if views are disabled.
    #[must_use]
    pub fn visible_from(&self) -> u64 {
        self.publish.views.as_ref().map_or(0, |views| views.log.sequence() + 1)
    }

    /// Publishes all that has changed and returns the view of it, if views are enabled. For a caller that steps the
    /// shard by hand: it takes the readers' lock.
    pub fn current_view(&mut self) -> Option<Arc<View>> {
        loop {
            self.publish_view();
            let (reader, _) = self.publish.views()?;
            let view = reader.read_until(u64::MAX);
            if !self.has_view_to_publish() {
                return Some(view);
            }
        }
    }

    fn view_head(&mut self, sequence: u64) -> ViewHead {
        let thetas = self.choose.granularity_state().map(|state| state.thetas.into());
        ViewHead {
            shard: self.id,
            version: ViewVersion { incarnation: self.incarnation, sequence },
            now: self.now,
            node_count: u32::try_from(self.books.nodes.len()).expect("NODES_MAX fits u32"),
            allocation_count: self.books.ledger.len() as u64,
            facts: self.facts(),
            bundles_ended: self.bundles_ended(),
            leases_expired: self.books.leases.expired.count(),
            thetas,
            copied: Copied::default(),
        }
    }

    /// Adds the images of changed places, at most this number, and takes them off the lists.
    fn add_images(&mut self, views: &mut Views, images: &mut Changed, places: usize) {
        let mut dirty = self.books.changed_nodes().take().expect("views are made");
        let nodes = places.min(dirty.len());
        for _ in 0..nodes {
            let (slot, changes) = dirty.pop().expect("just counted");
            if changes & (COLD | CUSTOM) != 0 {
                let image = self.handed_over(slot, changes, &mut views.registrations);
                images.cold.push((slot, image));
            }
            if changes & HOT != 0 {
                images.nodes.push((slot, self.hot_image(slot)));
            }
        }
        *self.books.changed_nodes() = Some(dirty);
        let mut dirty = self.books.changed_allocations().take().expect("views are made");
        for _ in 0..(places - nodes).min(dirty.len()) {
            let (at, _) = dirty.pop().expect("just counted");
            let image = self.books.ledger.image(at);
            if image.has_more {
                images.more.extend(self.books.ledger.more_image(at).map(|more| (at, more)));
            }
            images.allocations.push((at, image));
        }
        *self.books.changed_allocations() = Some(dirty);
    }

    /// Returns the cold image of a node to hand over. Its registration is shared with the last one unless it changed.
    fn handed_over(
        &self,
        slot: Slot,
        changes: u8,
        registrations: &mut Vec<Option<Arc<NodeRegistration>>>,
    ) -> Option<ColdImage> {
        if registrations.len() <= slot as usize {
            registrations.resize(slot as usize + 1, None);
        }
        let kept = &mut registrations[slot as usize];
        let image = self.cold_image(slot, kept.as_ref().filter(|_| changes & IDENTITY == 0));
        *kept = image.as_ref().map(|image| Arc::clone(&image.registration));
        let is_own = kept.as_ref().is_none_or(|kept| kept.id == self.books.nodes.hot(slot).id);
        assert!(is_own, "slot {slot} is shown with the registration of another node");
        image
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
            shortfalls: hot.has_shortfall.then(|| Box::new((*cold.short).clone())),
            custom: cold.custom.clone().into_boxed_slice(),
            entries: self.books.entries_of(slot, UNHEALTHY | RESERVED).cloned().collect(),
            holds: self.statements.images_at(slot),
            pending: self.books.pending_image(slot),
        })
    }

    /// Checks the newest view against a newly made image of the whole state.
    ///
    /// # Errors
    /// The first difference, or that something is not published.
    pub fn check_view(&mut self) -> Result<(), Broken> {
        let Some((reader, _)) = self.publish.views() else { return Ok(()) };
        let view = reader.read_until(u64::MAX);
        if view.version().sequence + 1 != self.visible_from() || self.changed_places() > 0 {
            return Err(broken!("{:?} is read, {} is to come", view.version(), self.visible_from()));
        }
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
