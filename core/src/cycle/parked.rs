//! Classes of tasks that no node has room for: they are parked until a change could help them.
//!
//! What did not fit does not fit later either, unless a node has more than it had. So a cycle compares each parked class with
//! the nodes that changed since, and does not search for those that would not fit on any of them. With debug assertions,
//! it searches all the same, and nothing may be found.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::spots::KINDS;
use super::trial::{Cycle, Place};
use crate::ids::NodeId;
use crate::jobs::TaskClass;
use crate::map::FixedMap;
use crate::planted::{PlantedBug, is_planted};
use crate::touched::Touched;

/// Where something changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    /// The tasks of a node.
    Tasks(NodeId),
    /// A node, or what is free there.
    Node(Place),
}

/// The classes that are not searched for.
#[derive(Debug, Default)]
pub(super) struct Parked {
    /// By address. The class is kept, so no other one gets its address.
    classes: FixedMap<usize, Arc<TaskClass>>,
    /// What changed since parked classes were last compared with it.
    pub(super) changed: Touched<Changed>,
    /// How often nodes were searched for room.
    pub(super) searches: u64,
}

/// Returns what identifies a class while somebody keeps it.
pub(super) fn address(class: &Arc<TaskClass>) -> usize {
    Arc::as_ptr(class).addr()
}

impl Parked {
    pub(super) fn has(&self, class: &Arc<TaskClass>) -> bool {
        !self.classes.is_empty() && self.classes.contains_key(&address(class))
    }

    /// Parks classes that no node has room for.
    pub(super) fn park(&mut self, classes: Vec<Arc<TaskClass>>) {
        // What a node has for the owner of a reservation is not part of what it has free.
        let classes = classes.into_iter().filter(|class| class.request.owner.is_none());
        self.classes.extend(classes.map(|class| (address(&class), class)));
    }

    /// Returns the number of parked classes, and how often nodes were searched for room so far.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, u64) {
        (self.classes.len(), self.searches)
    }
}

impl Cycle<'_> {
    /// Tells all that follow changes what changed since the last call.
    pub(super) fn hand_out_changes(&mut self) {
        let tasks = self.jobs.take_touched_nodes();
        let nodes: Vec<_> = self.replicas.iter_mut().map(|replica| replica.take_touched()).collect();
        let followers = [&mut self.spots.changed, &mut self.parked.changed, &mut self.topology.rooms.changed];
        let (Some(tasks), true) = (tasks, nodes.iter().all(Option::is_some)) else {
            return followers.into_iter().for_each(Touched::note_all);
        };
        for changed in followers {
            tasks.iter().for_each(|&node| changed.note(Changed::Tasks(node)));
            for (shard, slots) in nodes.iter().enumerate() {
                let slots = slots.iter().flatten();
                slots.for_each(|&slot| changed.note(Changed::Node(Place { shard, slot })));
            }
        }
    }

    /// Lends the parked classes, less those that a change may have helped. [`Parked::park`] adds to them.
    pub(super) fn take_parked(&mut self) -> Parked {
        self.hand_out_changes();
        let mut parked = std::mem::take(&mut self.parked);
        let Some(changed) = parked.changed.take() else {
            parked.classes.clear();
            return parked;
        };
        if changed.is_empty() || parked.classes.is_empty() || is_planted(PlantedBug::ParkedForGood) {
            return parked;
        }
        let places: BTreeSet<(Place, NodeId)> =
            changed.into_iter().filter_map(|at| self.place_of(at)).collect();
        let none = [i64::MIN; 3];
        let most = places.into_iter().fold(none, |most, (place, node)| {
            let here = self.free_in_future(node, place);
            [0, 1, 2].map(|kind| most[kind].max(here[kind]))
        });
        parked.classes.retain(|_, class| {
            // The books of jobs and this table keep a class that no task has any longer.
            let is_asked_for = Arc::strong_count(class) > 2;
            is_asked_for && KINDS.into_iter().zip(most).any(|(kind, most)| class.amounts.get(kind) > most)
        });
        parked
    }

    /// Returns the node where something changed, if it is still there.
    pub(super) fn place_of(&self, changed: Changed) -> Option<(Place, NodeId)> {
        match changed {
            Changed::Tasks(node) => Some((self.locate(node)?, node)),
            Changed::Node(place) => Some((place, self.replicas[place.shard].shard().node_at(place.slot)?)),
        }
    }
}
