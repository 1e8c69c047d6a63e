//! A replica: the searching half of a shard, for planners (Omega's private copy).
//!
//! A replica has the shard's nodes, in the shard's slots, with everything that searching and taking read:
//! rooms, books, index, marks, ranks, reservations. It has no ledger and carries out no commands. Views of the
//! shard keep it up to date. It answers as the shard would, with the shard's own code. The next
//! [`sync`](Shard::sync) undoes what a planner takes in it.

use std::sync::Arc;

use super::table::{COLD, ColdNode, HotNode, IDENTITY, Room, Taken};
use super::{Shard, ShardConfig};
use crate::ids::NodeId;
use crate::index::{PolicyState, Slot};
use crate::limits::GPU_INSTANCES_MAX;
use crate::request::PlacementRequest;
use crate::resource::{Amount, GpuAssignment, UnitAssignments};
use crate::view::{ColdImage, Dirty, HotImage, View};

/// The additional state of a replica.
#[derive(Default)]
pub(super) struct Replica {
    /// The view that it was last updated from.
    base: Option<Arc<View>>,
    /// The cold image of each node, by slot.
    cold: Vec<Option<Arc<ColdImage>>>,
    slots: Vec<Slot>,
}

/// The result of planning a request in a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The slot of the node.
    pub slot: Slot,
    /// The node.
    pub node: NodeId,
    /// The node's version in the replica's view.
    pub version: u64,
    /// The GPU instances, and the part of each.
    pub gpus: GpuAssignment,
    /// The units of unit-instance kinds.
    pub units: Option<Arc<UnitAssignments>>,
    /// The selector that matches: 0 for the request's own, 1 for the first fallback, and so on.
    pub alternative: u8,
}

impl Shard {
    /// Creates a replica of a shard with the same `config`, without nodes.
    #[must_use]
    pub fn replica(config: ShardConfig) -> Self {
        let mut replica = Self::new(config);
        // It follows the shard's granularity and never changes it.
        replica.granularity = None;
        *replica.nodes.dirty_mut() = Some(Box::default());
        replica.replica = Some(Box::default());
        replica
    }

    /// Returns the view that this replica was last updated from.
    #[must_use]
    pub fn base(&self) -> Option<&Arc<View>> {
        self.replica.as_ref()?.base.as_ref()
    }

    /// Makes this replica equal to the shard as `view` shows it. Updates the nodes that changed since the
    /// previous view, and those that were planned on. Returns the number of nodes looked at.
    ///
    /// # Panics
    /// If this is not a replica, or the view is of another shard.
    pub fn sync(&mut self, view: &Arc<View>) -> usize {
        assert!(view.head().shard == self.id, "a replica of {:?} is given another shard's view", self.id);
        let mut replica = self.replica.take().expect("a replica");
        let mut slots = std::mem::take(&mut replica.slots);
        let dirty = self.nodes.dirty_mut().as_deref_mut().expect("replicas note what changes");
        dirty.list(!0, &mut slots);
        match &replica.base {
            Some(base) if Arc::ptr_eq(base, view) => {}
            Some(base) => view.diff(base, |slot| slots.push(slot)),
            None => view.nodes(|slot, _, _| slots.push(slot)),
        }
        slots.sort_unstable();
        slots.dedup();
        self.replica = Some(replica);
        self.follow_thetas(view);
        for &slot in &slots {
            let image = view.hot(slot).copied().unwrap_or_default();
            self.apply_image(slot, &image, view.cold(slot));
        }
        self.nodes.dirty_mut().as_deref_mut().map(Dirty::clear);
        let count = slots.len();
        let replica = self.replica.as_mut().expect("just put there");
        (replica.base, replica.slots) = (Some(Arc::clone(view)), slots);
        (self.growth, self.now) = (view.head().facts.growth, view.head().now);
        count
    }

    /// Switches to `view`. The caller must renew the nodes that changed.
    pub(super) fn rebase(&mut self, view: &Arc<View>) {
        self.follow_thetas(view);
        let replica = self.replica.as_mut().expect("a replica");
        replica.base = Some(Arc::clone(view));
        (self.growth, self.now) = (view.head().facts.growth, view.head().now);
    }

    /// Notes that a node equals its image in the view: nothing is planned on it.
    pub(super) fn forget_planned(&mut self, slot: Slot) {
        if let Some(dirty) = self.nodes.dirty_mut().as_deref_mut() {
            dirty.forget(slot);
        }
    }

    /// Undoes what was planned since the last [`sync`](Self::sync).
    ///
    /// # Panics
    /// If this is not a replica, or it was never updated from a view.
    pub fn resync(&mut self) {
        let base = Arc::clone(self.base().expect("a replica that was brought up to date"));
        self.sync(&base);
    }

    fn follow_thetas(&mut self, view: &View) {
        let Some(thetas) = &view.head().thetas else { return };
        let differ =
            self.index.geometry().dimensions().iter().zip(&thetas[..]).any(|(&(_, now), &then)| now != then);
        if differ {
            self.regrain(thetas);
        }
    }

    /// Makes the node in `slot` equal to its image, regardless of what the replica has there.
    ///
    /// # Panics
    /// If this is not a replica, or a registered node has no cold image.
    pub fn apply_image(&mut self, slot: Slot, image: &HotImage, cold: Option<&Arc<ColdImage>>) {
        if self.nodes.is_there(slot) && (image.state.is_none() || self.nodes.hot(slot).id != image.id) {
            self.drop_node(slot);
        }
        if image.state.is_none() {
            return;
        }
        let cold = cold.expect("a registered node has a cold image");
        // A node that left and rejoined may have another slot.
        if let Some(other) = self.nodes.slot(image.id)
            && other != slot
        {
            self.drop_node(other);
        }
        let changed = self.nodes.dirty_mut().as_deref().map_or(0, |dirty| dirty.at(slot));
        let replica = self.replica.as_mut().expect("a replica");
        if replica.cold.len() <= slot as usize {
            replica.cold.resize(slot as usize + 1, None);
        }
        let before = replica.cold[slot as usize].replace(Arc::clone(cold));
        if !self.nodes.is_there(slot) {
            self.put_node(slot, image, cold);
            return;
        }
        let before = before.expect("a node of a replica is made of an image");
        let same = Arc::ptr_eq(&before, cold) && changed & (COLD | IDENTITY) == 0;
        if !same {
            let respecified =
                !Arc::ptr_eq(&before.registration, &cold.registration) || changed & IDENTITY != 0;
            self.follow_cold(slot, cold, respecified);
        }
        self.follow_hot(slot, image, cold);
    }

    /// Adds a node that the replica does not have.
    fn put_node(&mut self, slot: Slot, image: &HotImage, cold: &ColdImage) {
        self.nodes.put(slot, books_of(image, cold));
        self.fragmentation.touch_identity(slot);
        let spec = &self.nodes.cold(slot).registration.spec;
        self.selectors.node_labelled(slot, &spec.labels);
        self.rankings.node_joined(slot, spec);
        self.sums.replica_capacity(slot, spec, 1);
        let marks = self.marks_of(slot);
        self.follow_index(slot);
        self.capacities.insert(slot, image.ordinal, &self.nodes.capacity(slot), marks);
        if let Some(reservation) = &cold.reservation {
            self.enter_reservation_image(slot, (**reservation).clone());
        }
        self.follow_hybrid(slot);
    }

    /// Removes a node that the view does not show in this slot.
    fn drop_node(&mut self, slot: Slot) {
        self.forget_reservation_image(slot);
        if self.index.contains(slot) {
            self.index.remove(slot);
        }
        self.capacities.remove(slot);
        self.selectors.node_removed(slot);
        self.rankings.node_removed(slot);
        let spec = &self.nodes.cold(slot).registration.spec;
        self.sums.replica_capacity(slot, spec, -1);
        self.leave_hybrid(slot);
        self.nodes.drop_out(slot);
        self.fragmentation.touch_identity(slot);
        self.replica.as_mut().expect("a replica").cold[slot as usize] = None;
    }

    /// Updates the cold part of a node. `respecified` says whether names, capacity, labels or taints changed.
    fn follow_cold(&mut self, slot: Slot, image: &ColdImage, respecified: bool) {
        self.forget_reservation_image(slot);
        let before = respecified.then(|| self.nodes.cold(slot).registration.clone());
        let (_, hot, cold) = self.nodes.parts_mut(slot);
        fill_cold(cold, image);
        flag(hot, cold);
        let Some(before) = before else { return };
        cold.registration = (*image.registration).clone();
        self.fragmentation.touch_identity(slot);
        let spec = &self.nodes.cold(slot).registration.spec;
        self.sums.replica_capacity(slot, &before.spec, -1);
        self.sums.replica_capacity(slot, spec, 1);
        self.selectors.node_labelled(slot, &spec.labels);
        self.rankings.node_changed(slot, spec);
        let marks = self.marks_of(slot);
        self.capacities.update(slot, &self.nodes.capacity(slot));
        self.capacities.mark(slot, marks);
        if self.index.contains(slot) {
            self.index.mark(slot, marks);
        }
    }

    /// Updates the hot part of a node whose cold part equals the image.
    fn follow_hot(&mut self, slot: Slot, image: &HotImage, cold: &ColdImage) {
        let (room, hot, _) = self.nodes.parts_mut(slot);
        fill_hot(room, hot, image);
        self.follow_index(slot);
        if let Some(reservation) = &cold.reservation {
            self.forget_reservation_image(slot);
            self.enter_reservation_image(slot, (**reservation).clone());
        }
        self.fragmentation.touch(slot);
        self.follow_hybrid(slot);
    }

    /// Places `request` in this replica as its shard would: the same node and instances, by the same code.
    /// Nothing is recorded. The replica's books keep it until the next [`sync`](Self::sync). Returns `None` if
    /// no node fits.
    ///
    /// # Panics
    /// If this is not a replica.
    pub fn plan(&mut self, request: &PlacementRequest) -> Option<Planned> {
        assert!(self.replica.is_some(), "only a replica is planned on");
        let (slot, (gpus, units), alternative) = self.take_unrecorded(request)?;
        let node = self.nodes.hot(slot).id;
        let shown = self.base().and_then(|view| view.hot(slot));
        let version = shown.map_or(0, |image| image.version);
        Some(Planned { slot, node, version, gpus, units, alternative })
    }

    /// Takes what `request` asks according to its policy, without recording an allocation.
    pub(super) fn take_unrecorded(&mut self, request: &PlacementRequest) -> Option<(Slot, Taken, u8)> {
        let scope = self.scope(request);
        let found = if let Some(owner) = request.owner
            && let Some((slot, gpus, alternative)) = self.find_reserved(owner, request, scope)
        {
            (slot, self.take_reserved(slot, request, gpus), alternative)
        } else {
            let found = self.take_found(request, scope)?;
            self.restore(found.0);
            self.withhold(found.0);
            found
        };
        self.follow_books(found.0);
        Some(found)
    }

    /// Checks that this replica, with nothing planned, equals its view, and that the structures for searches
    /// agree. O(state).
    ///
    /// # Errors
    /// The first difference.
    pub fn check_replica(&self) -> Result<(), String> {
        let view = self.base().ok_or("it was never brought up to date")?;
        let mut beyond = Vec::new();
        view.nodes(|slot, _, _| beyond.extend((!self.nodes.is_there(slot)).then_some(slot)));
        if !beyond.is_empty() {
            return Err(format!("slots {beyond:?} are vacant, the view shows nodes there"));
        }
        for slot in 0..self.nodes.slots() {
            let hot = self.hot_image(slot);
            let mut cold = self.cold_image(slot, None);
            // The books already exclude held amounts. A replica knows no statements.
            if let (Some(cold), Some(shown)) = (&mut cold, view.cold(slot)) {
                cold.holds.clone_from(&shown.holds);
            }
            let shown = view.mirror().nodes.get(slot).copied().unwrap_or_default();
            if shown != hot || view.cold(slot).map(AsRef::as_ref) != cold.as_ref() {
                return Err(format!("slot {slot} is {hot:?}, {cold:?}, the view shows {shown:?}"));
            }
            if hot.state.is_some() {
                self.check_index(slot, self.nodes.hot(slot))?;
            }
        }
        self.check_reservations()?;
        self.index.check()?;
        self.capacities.check()?;
        self.selectors.check(&self.nodes)?;
        self.rankings.check(&self.nodes)
    }

    /// Returns the cursor and the random state of the policies.
    #[must_use]
    pub fn policy_state(&self) -> &PolicyState {
        &self.policy_state
    }

    /// Sets the cursor and the random state of the policies.
    pub fn set_policy_state(&mut self, state: PolicyState) {
        self.policy_state = state;
    }
}

fn books_of(image: &HotImage, image_of_cold: &ColdImage) -> (Room, HotNode, ColdNode) {
    let mut cold = ColdNode {
        registration: (*image_of_cold.registration).clone(),
        cpu_shortfall: Amount::ZERO,
        memory_shortfall: Amount::ZERO,
        gpu_shortfall: [0; GPU_INSTANCES_MAX],
        unhealthy: None,
        custom: Vec::new(),
    };
    fill_cold(&mut cold, image_of_cold);
    let mut hot = HotNode {
        id: image.id,
        gpus: image.gpus,
        version: image.version,
        first_allocation: image.first_allocation,
        allocations: image.allocations,
        partition: image.partition,
        has_custom: false,
        has_shortfall: false,
        has_unhealthy: false,
    };
    flag(&mut hot, &cold);
    let mut room = Room::VACANT;
    fill_hot(&mut room, &mut hot, image);
    (room, hot, cold)
}

fn fill_cold(cold: &mut ColdNode, image: &ColdImage) {
    let shortfalls = image.shortfalls.as_deref();
    cold.cpu_shortfall = shortfalls.map_or(Amount::ZERO, |short| short.cpu);
    cold.memory_shortfall = shortfalls.map_or(Amount::ZERO, |short| short.memory);
    cold.gpu_shortfall = shortfalls.map_or([0; GPU_INSTANCES_MAX], |short| short.gpus);
    cold.unhealthy.clone_from(&image.unhealthy);
    cold.custom.clear();
    cold.custom.extend_from_slice(&image.custom);
}

fn flag(hot: &mut HotNode, cold: &ColdNode) {
    hot.has_custom = !cold.custom.is_empty();
    hot.has_shortfall = super::table::has_shortfall(cold);
    hot.has_unhealthy = cold.unhealthy.is_some();
}

fn fill_hot(room: &mut Room, hot: &mut HotNode, image: &HotImage) {
    *room = Room {
        cpu: image.cpu,
        memory: image.memory,
        whole_gpus: image.whole_gpus,
        largest_gpu_part: image.largest_gpu_part,
        places: image.places,
        state: image.state,
    };
    (hot.gpus, hot.version) = (image.gpus, image.version);
    (hot.allocations, hot.first_allocation) = (image.allocations, image.first_allocation);
}
