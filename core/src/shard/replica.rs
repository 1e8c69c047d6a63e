//! A replica: the searching half of a shard, for planners (Omega's private copy).
//!
//! A replica has the shard's nodes, in the shard's slots, with everything that searching and taking read:
//! rooms, books, index, marks, ranks, reservations. It has no ledger and carries out no commands. Views of the
//! shard keep it up to date. It answers as the shard would, with the shard's own code. The next
//! [`sync`](Shard::sync) undoes what a planner takes in it.

use crate::broken::{Broken, broken};
use std::sync::Arc;

use crate::ids::NodeId;
use crate::index::{PolicyState, Slot};
use crate::request::PlacementRequest;
use crate::resource::{GpuAssignment, UnitAssignments};
use crate::shard::Shard;
use crate::shard::ShardConfig;
use crate::shard::books::{COLD, CUSTOM, Dirty, IDENTITY, Taken};
use crate::shard::choose::Choice;
use crate::view::{ColdImage, Dirty as Changed, HotImage, View};

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
        replica.choose.fix_granularity();
        *replica.books.changed_nodes() = Some(Box::default());
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
        let dirty = self.books.changed_nodes().as_deref_mut().expect("replicas note what changes");
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
        self.books.changed_nodes().as_deref_mut().map(Changed::clear);
        let count = slots.len();
        let replica = self.replica.as_mut().expect("just put there");
        (replica.base, replica.slots) = (Some(Arc::clone(view)), slots);
        (self.publish.growth, self.now) = (view.head().facts.growth, view.head().now);
        let nodes = view.head().node_count as usize;
        assert!(self.books.nodes.len() == nodes, "a replica has others than the {nodes} nodes of its view");
        count
    }

    /// Switches to `view`. The caller must renew the nodes that changed.
    pub(super) fn rebase(&mut self, view: &Arc<View>) {
        assert!(view.head().shard == self.id, "a replica of {:?} is given another shard's view", self.id);
        self.follow_thetas(view);
        let replica = self.replica.as_mut().expect("a replica");
        replica.base = Some(Arc::clone(view));
        (self.publish.growth, self.now) = (view.head().facts.growth, view.head().now);
    }

    /// Notes that a node equals its image in the view: nothing is planned on it.
    pub(super) fn forget_planned(&mut self, slot: Slot) {
        if let Some(dirty) = self.books.changed_nodes().as_deref_mut() {
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
        if let Some(thetas) = &view.head().thetas {
            self.choose.follow_thetas(&self.books, thetas);
        }
    }

    /// Makes the node in `slot` equal to its image, regardless of what the replica has there.
    ///
    /// # Panics
    /// If this is not a replica, or a registered node has no cold image.
    pub fn apply_image(&mut self, slot: Slot, image: &HotImage, cold: Option<&Arc<ColdImage>>) {
        if self.books.nodes.is_there(slot)
            && (image.state.is_none() || self.books.nodes.hot(slot).id != image.id)
        {
            self.drop_node(slot);
        }
        if image.state.is_none() {
            return;
        }
        let cold = cold.expect("a registered node has a cold image");
        // A node that left and rejoined may have another slot.
        if let Some(other) = self.books.nodes.slot(image.id)
            && other != slot
        {
            self.drop_node(other);
        }
        let changed = self.books.changed_nodes().as_deref().map_or(0, |dirty| dirty.at(slot));
        let replica = self.replica.as_mut().expect("a replica");
        if replica.cold.len() <= slot as usize {
            replica.cold.resize(slot as usize + 1, None);
        }
        let before = replica.cold[slot as usize].replace(Arc::clone(cold));
        if !self.books.nodes.is_there(slot) {
            self.books.put_image(slot, image, cold);
            self.choose.node_joined(&self.books, slot);
            return;
        }
        let before = before.expect("a node of a replica is made of an image");
        let same = Arc::ptr_eq(&before, cold) && changed & (COLD | CUSTOM | IDENTITY) == 0;
        if !same {
            let respecified =
                !Arc::ptr_eq(&before.registration, &cold.registration) || changed & IDENTITY != 0;
            if let Some(former) = self.books.set_cold_image(slot, cold, respecified) {
                self.choose.node_respecified(&self.books, slot, &former);
            }
        }
        let dirty = self.books.set_hot_image(slot, image, cold);
        self.follow(dirty);
    }

    /// Removes a node that the view does not show in this slot.
    fn drop_node(&mut self, slot: Slot) {
        let former = self.books.drop_image(slot);
        self.choose.node_left(&self.books, slot, &former);
        let image = self.replica.as_mut().expect("a replica").cold[slot as usize].take();
        assert!(image.is_some(), "node {} was made of no image", former.name);
    }

    /// Places `request` in this replica as its shard would: the same node and instances, by the same code.
    /// Nothing is recorded. The replica's books keep it until the next [`sync`](Self::sync). Returns `None` if
    /// no node fits.
    ///
    /// # Panics
    /// If this is not a replica.
    pub fn plan(&mut self, request: &PlacementRequest) -> Option<Planned> {
        assert!(self.replica.is_some(), "only a replica is planned on");
        let (Choice { slot, alternative, .. }, (gpus, units)) = self.take_unrecorded(request)?;
        let node = self.books.nodes.hot(slot).id;
        let shown = self.base().and_then(|view| view.hot(slot));
        let version = shown.filter(|image| image.id == node).map(|image| image.version);
        let version = version.expect("a plan is on a node that the view shows");
        Some(Planned { slot, node, version, gpus, units, alternative })
    }

    /// Takes what `request` asks according to its policy, without recording an allocation.
    pub(crate) fn take_unrecorded(&mut self, request: &PlacementRequest) -> Option<(Choice, Taken)> {
        assert!(self.replica.is_some(), "only a replica takes what it does not record");
        let scope = self.choose.eligibility(&self.books, request);
        let choice = self.choose.choose(&self.books, request, scope)?;
        let taken = self.books.take(&request.demand, &choice);
        self.follow(Dirty::changed(choice.slot));
        Some((choice, taken))
    }

    /// Checks that this replica, with nothing planned, equals its view, and that the structures for searches
    /// agree. O(state).
    ///
    /// # Errors
    /// The first difference.
    pub fn check_replica(&self) -> Result<(), Broken> {
        let view = self.base().ok_or_else(|| Broken::new("it was never brought up to date"))?;
        let mut beyond = Vec::new();
        view.nodes(|slot, _, _| beyond.extend((!self.books.nodes.is_there(slot)).then_some(slot)));
        if !beyond.is_empty() {
            return Err(broken!("slots {beyond:?} are vacant, the view shows nodes there"));
        }
        for slot in 0..self.books.nodes.slots() {
            let hot = self.hot_image(slot);
            let mut cold = self.cold_image(slot, None);
            // The books already exclude held amounts. A replica knows no statements.
            if let (Some(cold), Some(shown)) = (&mut cold, view.cold(slot)) {
                cold.holds.clone_from(&shown.holds);
            }
            let shown = view.mirror().nodes.get(slot).copied().unwrap_or_default();
            if shown != hot || view.cold(slot).map(AsRef::as_ref) != cold.as_ref() {
                return Err(broken!("slot {slot} is {hot:?}, {cold:?}, the view shows {shown:?}"));
            }
            if hot.state.is_some() {
                self.choose.check_node(&self.books, slot)?;
                self.books.check_entries(slot)?;
            }
        }
        self.books.check_withheld()?;
        self.choose.check(&self.books)
    }

    /// Returns the cursor and the random state of the policies.
    #[must_use]
    pub fn policy_state(&self) -> &PolicyState {
        self.choose.policy_state()
    }

    /// Sets the cursor and the random state of the policies.
    pub fn set_policy_state(&mut self, state: PolicyState) {
        self.choose.set_policy_state(state);
    }
}
