//! A plan that is being made over the replicas of all shards, with savepoints.

use std::sync::Arc;

use super::strategy::{NoPlace, Wanted};
use super::topology::OpenValues;
use super::work::Meter;
use crate::ids::NodeId;
use crate::index::Slot;
use crate::replica::{ClaimKey, Replica};
use crate::request::PlacementRequest;
use crate::resource::GpuAssignment;
use crate::rng::Rng;
use crate::shard::Tentative;

/// One bundle that a plan places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlannedBundle {
    /// The bundle's index in its group.
    pub(super) bundle: u32,
    /// The shard whose replica has the node.
    pub(super) shard: usize,
    pub(super) slot: Slot,
    pub(super) node: NodeId,
    pub(super) gpus: GpuAssignment,
    pub(super) key: ClaimKey,
}

/// The bundles that a plan has taken so far, in order. A savepoint is the number of bundles taken before it.
pub(super) type Draft = Vec<PlannedBundle>;

/// A node of a shard's replica.
pub(super) type Place = (usize, Slot);

/// The replicas of all shards.
pub(super) struct Replicas {
    pub(super) copies: Vec<Replica>,
    rng: Rng,
    /// The replicas that are searched now. `None`: all.
    searched: Option<Arc<[bool]>>,
    /// How many nodes of each replica are hidden from all plans. Empty: none.
    hidden_before: Vec<usize>,
    pub(super) open_values: OpenValues,
    /// Counts the work of searches and proofs.
    pub(super) meter: Meter,
}

impl Replicas {
    pub(super) fn new(copies: Vec<Replica>, seed: u64) -> Self {
        let open_values = OpenValues::default();
        let meter = Meter::default();
        let rng = Rng::new(seed);
        Self { copies, rng, searched: None, hidden_before: Vec::new(), open_values, meter }
    }

    /// Returns the order in which shards are searched. The shard that the draft used last comes first,
    /// because a plan over one shard commits in one step. Otherwise, the first is random, so that planners do
    /// not crowd.
    pub(super) fn order(&mut self, draft: &Draft) -> impl Iterator<Item = usize> + use<> {
        let count = self.copies.len();
        let first = match draft.last() {
            Some(taken) => taken.shard,
            None if count == 1 => 0,
            None => self.rng.below(count as u64) as usize,
        };
        let searched = self.searched.clone();
        let is_searched = move |shard: &usize| searched.as_ref().is_none_or(|searched| searched[*shard]);
        (0..count).map(move |step| (first + step) % count).filter(is_searched)
    }

    /// Restricts later searches to these replicas. `None`: all.
    pub(super) fn search_only(&mut self, searched: Option<Arc<[bool]>>) {
        self.searched = searched;
    }

    /// Searches one replica and charges the work.
    pub(super) fn search<T>(&mut self, shard: usize, search: impl FnOnce(&mut Replica) -> T) -> T {
        let copy = &mut self.copies[shard];
        let before = copy.looked_at();
        let found = search(copy);
        self.meter.charge(1 + copy.looked_at() - before);
        found
    }

    /// Takes the node that the policy of `request` chooses, on any shard.
    pub(super) fn take(&mut self, draft: &mut Draft, bundle: u32, request: &PlacementRequest) -> bool {
        self.order(draft).any(|shard| {
            let taken = self.search(shard, |copy| copy.take(request));
            enter(draft, bundle, shard, taken)
        })
    }

    /// Takes a bundle on the given node, if it may be placed there and fits.
    pub(super) fn take_on(
        &mut self,
        draft: &mut Draft,
        (shard, slot): Place,
        bundle: u32,
        request: &PlacementRequest,
    ) -> bool {
        self.meter.charge(1);
        let copy = &mut self.copies[shard];
        let may_hold = copy.shard_mut().may_hold(slot, request);
        enter(draft, bundle, shard, may_hold.then(|| copy.take_on(slot, &request.demand)).flatten())
    }

    /// Gives up everything that was taken after `savepoint`.
    pub(super) fn roll_back(&mut self, draft: &mut Draft, savepoint: usize) {
        let mut undone = draft.split_off(savepoint);
        self.meter.charge(undone.len() as u64);
        undone.sort_unstable_by_key(|taken| (taken.shard, taken.slot));
        for of_node in undone.chunk_by(|a, b| (a.shard, a.slot) == (b.shard, b.slot)) {
            let keys: Vec<ClaimKey> = of_node.iter().map(|taken| taken.key).collect();
            self.copies[of_node[0].shard].give_up(of_node[0].slot, &keys);
        }
    }

    /// Hides a node from the searches of this plan.
    pub(super) fn hide(&mut self, (shard, slot): Place) {
        self.copies[shard].hide(slot);
    }

    /// Returns whether a node is hidden from all plans.
    pub(super) fn is_left_out(&self, (shard, slot): Place) -> bool {
        self.hidden_before.get(shard).is_some_and(|&count| self.copies[shard].is_among_hidden(slot, count))
    }

    /// Shows all nodes again that plans have hidden.
    pub(super) fn unhide_all(&mut self) {
        for (shard, copy) in self.copies.iter_mut().enumerate() {
            copy.unhide_from(self.hidden_before.get(shard).copied().unwrap_or(0));
        }
    }

    /// Takes the wanted bundles on replicas of somebody else, which were put in the place of these. Nodes that are hidden there
    /// are left out. The search is given up after `units`.
    pub(super) fn plan_apart(
        &mut self,
        wanted: Wanted,
        units: u64,
        draft: &mut Draft,
    ) -> Result<(), NoPlace> {
        let open_values = std::mem::take(&mut self.open_values);
        self.hidden_before = self.copies.iter().map(Replica::hidden_count).collect();
        let planned = self.plan(wanted, units, draft);
        self.hidden_before = Vec::new();
        self.open_values = open_values;
        planned
    }

    /// Returns a number that changes with the nodes' capacity, names, labels, taints and state.
    pub(super) fn shape(&self) -> u64 {
        self.copies.iter().map(Replica::shape).sum()
    }

    /// Returns the shard and slot of a node.
    pub(super) fn locate(&self, node: NodeId) -> Option<Place> {
        self.copies.iter().enumerate().find_map(|(shard, copy)| Some((shard, copy.shard().slot_of(node)?)))
    }
}

/// Adds what was taken, if anything, to the draft. Returns whether anything was taken.
fn enter(draft: &mut Draft, bundle: u32, shard: usize, taken: Option<(Tentative, ClaimKey)>) -> bool {
    let planned =
        |(Tentative { slot, node, gpus }, key)| PlannedBundle { bundle, shard, slot, node, gpus, key };
    draft.extend(taken.map(planned));
    taken.is_some()
}

#[cfg(test)]
mod tests {
    use super::super::test_bed::{Bed, cores, node_of};
    use super::*;
    use crate::shard::Command;

    #[test]
    fn shards_are_searched_from_the_last_one_used_and_else_from_any() {
        let mut bed = Bed::new(4);
        let nodes = [0, 1, 2, 3].map(|shard| bed.add(shard, node_of(4, &[]), false));
        bed.sync();
        let replicas = &mut bed.replicas;
        let empty = Draft::default();
        let mut begun = [0; 4];
        for _ in 0..100 {
            let order: Vec<usize> = replicas.order(&empty).collect();
            begun[order[0]] += 1;
            assert!((0..4).all(|step| order[step] == (order[0] + step) % 4), "{order:?}");
        }
        assert!(begun.iter().all(|&count| count > 5), "{begun:?}");
        let mut draft = Draft::default();
        for at in [0, 2] {
            let place = replicas.locate(nodes[at]).expect("it is there");
            assert!(replicas.take_on(&mut draft, place, 0, &cores(1)));
        }
        assert_eq!(replicas.order(&draft).collect::<Vec<_>>(), [2, 3, 0, 1]);
        replicas.search_only(Some([true, false, true, false].into()));
        assert_eq!(replicas.order(&draft).collect::<Vec<_>>(), [2, 0]);
        replicas.search_only(None);
        assert_eq!(replicas.order(&draft).count(), 4);
    }

    #[test]
    fn what_is_rolled_back_is_free_again_and_costs_a_unit_each() {
        let mut bed = Bed::new(2);
        let nodes = [0, 1].map(|shard| bed.add(shard, node_of(4, &[]), false));
        bed.sync();
        let replicas = &mut bed.replicas;
        let places = nodes.map(|node| replicas.locate(node).expect("it is there"));
        let mut draft = Draft::default();
        assert!(replicas.take_on(&mut draft, places[0], 0, &cores(1)));
        let savepoint = draft.len();
        let before = replicas.meter.spent();
        for at in [0, 1, 0, 1] {
            assert!(replicas.take_on(&mut draft, places[at], 0, &cores(1)));
        }
        assert!(!replicas.take_on(&mut draft, places[0], 0, &cores(2)), "one core is left");
        assert_eq!(replicas.meter.spent() - before, 5, "each try costs a unit");
        assert_eq!(draft.len(), 5);
        replicas.roll_back(&mut draft, savepoint);
        assert_eq!(replicas.meter.spent() - before, 5 + 4);
        assert_eq!(draft.len(), savepoint);
        assert!(!replicas.take_on(&mut draft, places[0], 0, &cores(4)), "the first one stays taken");
        assert!(replicas.take_on(&mut draft, places[0], 0, &cores(3)));
        assert!(replicas.take_on(&mut draft, places[1], 0, &cores(4)));
    }

    #[test]
    fn the_shape_changes_with_nodes_and_not_with_what_runs_there() {
        let mut bed = Bed::new(2);
        let mut last = bed.replicas.shape();
        let mut changes = |bed: &mut Bed| {
            bed.sync();
            let before = std::mem::replace(&mut last, bed.replicas.shape());
            before != last
        };
        assert!(changes(&mut bed), "of the first views nothing was known");
        let node = bed.add(1, node_of(4, &[]), true);
        assert!(changes(&mut bed));
        bed.step(1, Command::Life(node, crate::node::LifeEvent::Beat));
        assert!(changes(&mut bed));
        bed.step(1, Command::Place(cores(1)));
        assert!(!changes(&mut bed));
        bed.step(1, Command::Life(node, crate::node::LifeEvent::Drain));
        assert!(changes(&mut bed));
        bed.step(1, Command::RemoveNode { node, force: true });
        assert!(changes(&mut bed));
    }
}
