//! The books of a shard: what each node has, who holds it, and what is withheld.
//!
//! Only the methods of [`Books`] change the books. Each returns the nodes that are [`Dirty`] afterwards, and
//! [`Shard::follow`](super::Shard::follow) brings everything up to date that is derived from them.
//!
//! What the [entries](withheld) of a node withhold depends on what is free. So the books of a node change while
//! what is withheld is put back, and it is withheld again afterwards ([`change`](Books::change)).

mod adoption;
mod available;
mod bundles;
mod claims;
mod free_books;
mod held;
mod image;
mod leases;
mod ledger;
mod node_books;
mod plain;
mod releasing;
mod reservations;
mod room;
mod sums;
mod table;
mod totals;
mod withheld;

use std::collections::BTreeMap;
use std::sync::Arc;

use adoption::ExternalIds;
use bundles::Bundles;
pub use claims::ClaimEvent;
use claims::Claims;
pub(crate) use free_books::{FreeBooks, short_of};
pub(crate) use held::{HeldAllocation, InUse};
use leases::Leases;
pub(crate) use ledger::{Allocation, Ledger, PAGE};
pub use node_books::{Book, InstanceBook, NodeBooks};
use releasing::Releasing;
use reservations::Reservations;
pub use reservations::Reserve;
pub(crate) use room::Room;
pub(crate) use sums::{Sums, add_withheld, shortfall_of};
pub(crate) use table::{ADDED, ALL, COLD, CUSTOM, ColdNode, HOT, HotNode, IDENTITY, NodeTable, STATE, Taken};
pub(crate) use totals::SETTLE_AFTER;
pub(crate) use totals::Totals;
use withheld::Entries;

use super::choose::Choice;
use super::rejection::{UnknownAllocation, UnknownNode};
use crate::books::{Kinds, PROMISED, RESERVED, UNHEALTHY, WITHHELD};
use crate::ids::{AllocationId, BundleId, Incarnation, NodeId, Ordinal, PartitionId, ResourceId, TenantId};
use crate::index::Slot;
use crate::jobs::JobId;
use crate::journal::{BeginCause, Effect, NodeRemoved};
use crate::node::{NodeRegistration, NodeSpec, NodeState, Unhealthy};
use crate::planted::{PlantedBug, is_planted};
use crate::request::{Placement, PlacementRequest};
use crate::resource::Demand;
use crate::state::AllocationRecord;
use crate::view::{Dirty as Changed, EndCause};

/// A node whose books changed. Everything that is derived from them must follow.
#[must_use = "searches and waiting requests must follow the books"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dirty {
    pub(crate) slot: Slot,
    /// The node may have more available than before. Refusals may be stale, and waiting requests may fit.
    pub(crate) grew: bool,
}

impl Dirty {
    /// The books of a node changed, and nobody has more available than before.
    pub(crate) fn changed(slot: Slot) -> Self {
        Self { slot, grew: false }
    }

    /// A node may have more available than before.
    fn grew(slot: Slot) -> Self {
        Self { slot, grew: true }
    }
}

/// The books of a shard.
pub(crate) struct Books {
    pub(crate) nodes: NodeTable,
    /// Every registered node in order of registration, for lists.
    pub(crate) by_ordinal: BTreeMap<Ordinal, Slot>,
    pub(crate) ledger: Ledger,
    pub(crate) adopted: ExternalIds,
    pub(crate) sums: Sums,
    pub(crate) entries: Entries,
    pub(crate) reservations: Reservations,
    pub(crate) claims: Claims,
    pub(crate) bundles: Bundles,
    pub(crate) releasing: Releasing,
    pub(crate) leases: Leases,
    /// The partitions of the shard, in order.
    pub(crate) partitions: Vec<PartitionId>,
    incarnation: Incarnation,
    /// The effects since the last unit, if there is a journal.
    effects: Option<Vec<Effect>>,
}

impl Books {
    /// Creates the books of a shard without nodes. `indexed` lists the custom kinds in the index.
    pub(crate) fn new(
        incarnation: Incarnation,
        mut partitions: Vec<PartitionId>,
        indexed: Arc<[ResourceId]>,
    ) -> Self {
        partitions.sort_unstable();
        partitions.dedup();
        Self {
            nodes: NodeTable::new(indexed),
            by_ordinal: BTreeMap::new(),
            ledger: Ledger::default(),
            adopted: ExternalIds::default(),
            sums: Sums::default(),
            entries: Entries::default(),
            reservations: Reservations::default(),
            claims: Claims::default(),
            bundles: Bundles::default(),
            releasing: Releasing::default(),
            leases: Leases::default(),
            partitions,
            incarnation,
            effects: None,
        }
    }

    /// Returns the slot of a registered node.
    pub(crate) fn slot(&self, node: NodeId) -> Result<Slot, UnknownNode> {
        self.nodes.slot(node).ok_or(UnknownNode(node))
    }

    /// Returns whether an allocation is live.
    pub(crate) fn is_live(&self, id: AllocationId) -> bool {
        self.ledger.get(id).is_some()
    }

    /// Returns whether there are only allocations: no claims with ids, no bundles, and nothing that is
    /// releasing.
    #[inline]
    pub(crate) fn has_only_allocations(&self) -> bool {
        self.claims.by_id.len() | self.bundles.len() | self.releasing.len() == 0
    }

    /// Changes the books of a node while what entries of these kinds withhold is put back. With
    /// [`RESERVED`], the change sees the node as the owner of its reservation does.
    #[inline]
    fn change<R>(&mut self, slot: Slot, kinds: Kinds, change: impl FnOnce(&mut Self) -> R) -> R {
        self.restore(slot, kinds);
        let changed = change(self);
        self.withhold(slot, kinds);
        changed
    }

    /// Changes what everyone sees of a node. What is withheld follows.
    #[inline(always)]
    fn change_visible<R>(&mut self, slot: Slot, change: impl FnOnce(&mut NodeTable) -> R) -> R {
        let changed = change(&mut self.nodes);
        self.withhold_again(slot);
        changed
    }

    /// Serves the claims of a node that may have more free.
    #[inline]
    fn grew(&mut self, slot: Slot) -> Dirty {
        self.grant_claims(slot);
        Dirty::grew(slot)
    }

    /// Allocates what `request` asks on a node that was chosen for it, whatever it concerns.
    pub(crate) fn place_any(&mut self, request: &PlacementRequest, choice: &Choice) -> (Placement, Dirty) {
        let slot = choice.slot;
        let PlacementRequest { demand, tenant, .. } = request;
        let is_owner = self.own(slot, request.owner) == RESERVED;
        assert!(is_owner || !choice.is_own, "a reservation is used by another than its owner");
        let taken = self.take(demand, choice);
        let placement = self.record(slot, demand, *tenant, taken, choice.alternative);
        let dirty = if choice.is_own { self.grew(slot) } else { Dirty::changed(slot) };
        (placement, dirty)
    }

    /// Takes `demand` from a node that was chosen for it, without recording an allocation.
    pub(crate) fn take(&mut self, demand: &Demand, choice: &Choice) -> Taken {
        let &Choice { slot, gpus, is_own, .. } = choice;
        assert!(self.nodes.takes_work(slot), "a node was chosen that takes no new work");
        if is_own {
            return self.take_reserved(slot, demand, gpus);
        }
        self.change_visible(slot, |nodes| match gpus {
            Some(gpus) => nodes.take_chosen(slot, demand, gpus),
            None => nodes.take(slot, demand),
        })
    }

    /// Records the allocation of what was taken.
    fn record(
        &mut self,
        slot: Slot,
        demand: &Demand,
        tenant: TenantId,
        (gpus, units): Taken,
        alternative: u8,
    ) -> Placement {
        let id = self.next_id(slot, tenant);
        let node = self.nodes.hot(slot).id;
        assert!(gpus.units() == demand.gpu.units(), "{id} gets other GPUs than it asks");
        assert!(units.is_none() || demand.custom.is_some(), "{id} gets units without asking for any");
        self.sums.allocate(slot, demand);
        self.sums.placed += 1;
        let allocation = Allocation {
            id,
            demand: demand.clone(),
            gpus,
            units: units.clone(),
            node: slot,
            is_leased: false,
        };
        self.note_allocated(&allocation, BeginCause::Placed);
        self.ledger.insert(allocation, &mut self.nodes);
        Placement { node, allocation: id, gpus, alternative, units }
    }

    /// Returns the id for a new allocation on a node.
    #[inline]
    fn next_id(&mut self, slot: Slot, tenant: TenantId) -> AllocationId {
        let partition = self.nodes.hot(slot).partition;
        assert!(self.owns(partition), "an id is granted in partition {} of another shard", partition.0);
        let sequence = self.ledger.next_sequence();
        AllocationId { incarnation: self.incarnation, partition, sequence, tenant }
    }

    /// Ends an allocation, a claim, or an allocation inside a bundle. Returns the number of allocations inside if it is a
    /// bundle.
    #[inline]
    pub(crate) fn release(&mut self, id: AllocationId) -> Result<(Option<u32>, Dirty), UnknownAllocation> {
        if !self.has_only_allocations() {
            return self.release_any(id);
        }
        let allocation = self.ledger.remove(id, &mut self.nodes).ok_or(UnknownAllocation(id))?;
        if !is_planted(PlantedBug::EffectForgotten) {
            self.note(|| Effect::Ended(id, EndCause::Released));
        }
        self.sums.release(allocation.node, &allocation.demand);
        self.give_back(&allocation);
        Ok((None, Dirty::grew(allocation.node)))
    }

    #[cold]
    fn release_any(&mut self, id: AllocationId) -> Result<(Option<u32>, Dirty), UnknownAllocation> {
        if let Some(dirty) = self.end_inside(id).or_else(|| self.end_claim(id)) {
            return Ok((None, dirty));
        }
        let bundle = self.bundles.id_of(id);
        let (inside, dirty) = self.end_allocation(id, EndCause::Released)?;
        assert!(bundle.is_some() || inside == 0, "allocations end inside {id}, which is no bundle");
        // What a task or a direct placement has is a bundle for those who follow views only.
        let is_told = |bundle: BundleId| inside > 0 || JobId::of_group(bundle.group).is_none();
        Ok((bundle.is_some_and(is_told).then_some(inside), dirty))
    }

    /// Gives back what an allocation held that is no longer in the ledger.
    #[inline]
    fn give_back(&mut self, allocation: &Allocation) {
        assert!(self.ledger.slot_of(allocation.id).is_none(), "{} gives back and stays", allocation.id);
        self.adopted.forget(allocation.id);
        if allocation.is_leased {
            self.leases.leave(allocation.id);
        }
        let slot = allocation.node;
        self.sums.released += 1;
        let hot = self.nodes.hot(slot);
        if hot.withheld == 0 && !hot.has_shortfall {
            return self.nodes.give(slot, &allocation.demand, allocation.gpus, allocation.units.as_ref());
        }
        self.give_back_withheld(allocation);
    }

    /// Gives back to a node of which something is withheld, or that has a shortfall.
    #[cold]
    fn give_back_withheld(&mut self, allocation: &Allocation) {
        let slot = allocation.node;
        self.restore(slot, WITHHELD);
        self.nodes.give(slot, &allocation.demand, allocation.gpus, allocation.units.as_ref());
        let forgotten = match () {
            () if is_planted(PlantedBug::ReservationForgottenByReleases) => PROMISED,
            () if is_planted(PlantedBug::ReleaseRevivesUnhealthy) => UNHEALTHY,
            () => 0,
        };
        self.withhold(slot, WITHHELD & !forgotten);
        self.sums.shortfall_changed(&self.nodes, slot);
    }

    /// Counts a change of a node that others may plan on.
    pub(crate) fn bump_version(&mut self, slot: Slot) {
        assert!(self.nodes.is_node(slot), "slot {slot} changes, and no node is there");
        self.nodes.hot_mut(slot).version += 1;
    }

    /// Sets the version of a node: one that it had before, or one after those of an earlier life.
    pub(crate) fn set_version(&mut self, slot: Slot, version: u64) {
        assert!(self.nodes.is_node(slot), "slot {slot} gets a version, and no node is there");
        self.nodes.hot_mut(slot).version = version;
    }

    /// Adds a node, all of it free. The caller must let the searches know the node.
    ///
    /// # Panics
    /// If the shard does not own the partition, or the node is already registered.
    pub(crate) fn add_node(&mut self, registration: NodeRegistration) -> Slot {
        let partition = registration.partition;
        let owns = self.owns(partition);
        assert!(owns, "the shard does not own partition {} of node {}", partition.0, registration.id);
        let ordinal = registration.ordinal;
        let slot = self.nodes.insert(registration);
        let before = self.by_ordinal.insert(ordinal, slot);
        assert!(before.is_none(), "two nodes were registered as number {}", ordinal.0);
        self.sums.node_added(slot, &self.nodes.cold(slot).registration.spec, self.nodes.state(slot));
        let nodes = self.nodes.len();
        assert!(self.by_ordinal.len() == nodes, "the list of nodes has others than the table");
        assert!(self.sums.kept.nodes() == nodes as u64, "the sums count others than the {nodes} nodes");
        slot
    }

    /// Removes a node without allocations, claims and reservations. Returns its registration.
    pub(crate) fn remove_node(&mut self, slot: Slot) -> NodeRegistration {
        self.restore(slot, WITHHELD);
        self.set_unhealthy(slot, Vec::new());
        let state = self.nodes.state(slot);
        let version = self.nodes.hot(slot).version;
        let registration = self.nodes.remove(slot).registration;
        self.note(|| Effect::NodeRemoved(Box::new(NodeRemoved::new(&registration, version))));
        let listed = self.by_ordinal.remove(&registration.ordinal);
        assert!(listed == Some(slot), "node {} is not listed by its number", registration.id);
        self.sums.node_removed(slot, &registration.spec, state);
        let nodes = self.nodes.len();
        assert!(self.by_ordinal.len() == nodes, "the list of nodes has others than the table");
        assert!(self.sums.kept.nodes() == nodes as u64, "the sums count others than the {nodes} nodes");
        registration
    }

    /// Replaces the capacity, the labels and the taints of a node. Use beyond the new capacity becomes a shortfall.
    /// The caller must let the searches know.
    pub(crate) fn respecify(&mut self, slot: Slot, spec: NodeSpec) -> Dirty {
        self.sums.node_leaves(&self.nodes, slot);
        let version = self.nodes.hot(slot).version;
        self.change(slot, WITHHELD, |books| {
            books.nodes.respecify(slot, spec);
            books.set_unhealthy(slot, books.unhealthy(slot).to_vec());
        });
        assert!(self.nodes.hot(slot).version > version, "the version of slot {slot} misses a change");
        self.sums.node_returns(&self.nodes, slot);
        self.replan_claims(slot);
        self.grew(slot)
    }

    /// Replaces the unhealthy GPU instances of a node.
    pub(crate) fn set_health(&mut self, slot: Slot, unhealthy: Unhealthy) -> Dirty {
        let before = self.unhealthy(slot).to_vec();
        self.change(slot, WITHHELD, |books| books.set_unhealthy(slot, unhealthy));
        let after = self.unhealthy(slot);
        let is_healed = |(instance, _): &(u8, _)| !after.iter().any(|(still, _)| still == instance);
        let healed = before.iter().any(is_healed);
        if before != after {
            self.bump_version(slot);
        }
        if self.replan_claims(slot) || healed { self.grew(slot) } else { Dirty::changed(slot) }
    }

    /// Changes the state of a node.
    pub(crate) fn set_state(&mut self, slot: Slot, state: NodeState) -> Dirty {
        let before = self.nodes.state(slot);
        assert!(before != state, "slot {slot} is {state} already");
        self.nodes.set_state(slot, state);
        self.sums.state_changed(slot, before, state);
        if state == NodeState::Ready { Dirty::grew(slot) } else { Dirty::changed(slot) }
    }

    /// Shows a node of a replica in another state than its shard has it.
    pub(crate) fn show_state(&mut self, slot: Slot, state: NodeState) -> Dirty {
        assert!(self.ledger.len() == 0, "a state is shown that the shard of the node does not count");
        self.nodes.set_state(slot, state);
        Dirty::changed(slot)
    }

    /// Replaces what the node's agent reported about the machine.
    pub(crate) fn set_agent(&mut self, slot: Slot, facts: crate::node::AgentFacts) {
        self.nodes.set_agent(slot, facts);
    }

    /// Notes all changes from now on, and everything that exists as changed, for views.
    pub(crate) fn note_changes(&mut self) {
        assert!(self.nodes.dirty_mut().is_none(), "changes that nobody has seen would be forgotten");
        let mut dirty = Changed::default();
        (0..self.nodes.slots()).for_each(|slot| dirty.note(slot, ALL));
        *self.nodes.dirty_mut() = Some(Box::new(dirty));
        let mut dirty = Changed::default();
        (0..self.ledger.places()).for_each(|at| dirty.note(at, 1));
        *self.ledger.dirty_mut() = Some(Box::new(dirty));
    }

    /// Notes an effect, if there is a journal.
    #[inline(always)]
    fn note(&mut self, effect: impl FnOnce() -> Effect) {
        if let Some(effects) = &mut self.effects {
            effects.push(effect());
        }
    }

    /// Notes a new allocation, if there is a journal.
    #[inline(always)]
    fn note_allocated(&mut self, allocation: &Allocation, cause: BeginCause) {
        if self.effects.is_none() {
            return;
        }
        let &Allocation { id, ref demand, gpus, ref units, node, .. } = allocation;
        let node = self.nodes.hot(node).id;
        let external_id = self.adopted.external_id(id);
        let demand = demand.clone();
        let units = units.clone();
        let record = AllocationRecord { id, node, demand, gpus, units, external_id };
        self.note(|| Effect::Allocated(record, cause));
    }

    /// Corrects how an allocation came about that was just made, if there is a journal.
    pub(crate) fn note_cause(&mut self, id: AllocationId, why: BeginCause) {
        let Some(effects) = &mut self.effects else { return };
        // It is the last effect, or nearly so.
        let made = effects.iter_mut().rev().find_map(|effect| match effect {
            Effect::Allocated(record, cause) if record.id == id => Some(cause),
            _ => None,
        });
        *made.expect("the allocation was made in this batch") = why;
    }

    /// Notes all effects from now on, for a journal.
    pub(crate) fn note_effects(&mut self) {
        self.effects.get_or_insert_default();
    }

    /// Notes all changes of nodes from now on, and those of the effects so far.
    pub(crate) fn note_nodes(&mut self) {
        assert!(self.effects.is_some(), "changes of nodes are noted without effects");
        let before = self.nodes.unwritten_mut().replace(Box::default());
        assert!(before.is_none(), "changes that are in no unit would be forgotten");
        let effects = self.effects.as_deref().unwrap_or_default();
        let changed: Vec<NodeId> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Allocated(record, _) => Some(record.node),
                _ => None,
            })
            .collect();
        for node in changed {
            let slot = self.nodes.slot(node).expect("a node with a new allocation is there");
            self.nodes.touch(slot, HOT | COLD);
        }
    }

    /// Takes the effects since the last call, and the nodes that changed. `None` without a journal.
    pub(crate) fn take_effects(&mut self) -> Option<(Vec<Effect>, Box<Changed>)> {
        let effects = std::mem::take(self.effects.as_mut()?);
        let changed = self.nodes.unwritten_mut().take();
        Some((effects, changed.expect("with a journal, changes of nodes are noted")))
    }

    /// Gives the empty list of changed nodes back.
    pub(crate) fn put_unwritten(&mut self, unwritten: Box<Changed>) {
        assert!(unwritten.len() == 0, "every changed node is in the unit");
        let before = self.nodes.unwritten_mut().replace(unwritten);
        assert!(before.is_none(), "nodes changed while a unit was made of the changes");
    }

    /// Returns the changes of nodes since they were last cleared. While this is `None`, no change is noted.
    pub(crate) fn changed_nodes(&mut self) -> &mut Option<Box<Changed>> {
        self.nodes.dirty_mut()
    }

    /// Like [`changed_nodes`](Self::changed_nodes), for the records of allocations. Each is noted as 1.
    pub(crate) fn changed_allocations(&mut self) -> &mut Option<Box<Changed>> {
        self.ledger.dirty_mut()
    }

    /// Counts a request that was refused.
    pub(crate) fn count_refused(&mut self) {
        self.sums.refused += 1;
    }

    /// Returns whether the shard owns `partition`.
    pub(crate) fn owns(&self, partition: PartitionId) -> bool {
        self.partitions.binary_search(&partition).is_ok()
    }

    /// Sets the maximum number of allocations per node, including claims and allocations inside bundles.
    pub(crate) fn set_allocations_per_node_max(&mut self, most: u16) {
        self.nodes.set_places_max(most);
    }
}
