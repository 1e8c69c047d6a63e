//! How many tasks of a class each node and each domain could hold, at most.
//!
//! A class is counted over all nodes once. The counts outlive the cycle: later, only those nodes are counted again that have
//! changed. Cpu, memory and the sum of GPUs are compared, so a count may be too large, and is never too small. When nodes,
//! labels or domains change, everything is counted again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::log::Log;
use super::maxima::Maxima;
use super::search::Sight;
use super::tree::{DomainId, Tree};
use crate::cycle::parked::{Changed, address};
use crate::cycle::spots::{KINDS, SpotsOf};
use crate::cycle::trial::{Cycle, Place};
use crate::jobs::TaskClass;
use crate::limits::{TOPOLOGY_CLASSES_COUNTED_MAX, TOPOLOGY_COUNTS_BYTES_MAX, TOPOLOGY_COUNTS_MAX};
use crate::node::NodeState;
use crate::planted::{PlantedBug, is_planted};
use crate::touched::Touched;

/// The most tasks that are counted on one node.
const MOST: i64 = 1 << 20;

/// The count of a node that labels, taints or its state rule out.
const NOT_ALLOWED: u32 = u32::MAX;

/// So many counts are kept in any case: those for one job, with and without evictions.
const KEPT_LEAST: usize = 2 * TOPOLOGY_CLASSES_COUNTED_MAX;

/// What counts as room, without the nodes with tasks that may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Now,
    Later,
    Evicting(SpotsOf),
}

/// A class, by its address, and what counts as room for it.
pub(super) type Key = (usize, Kind);

#[derive(Debug)]
struct Room {
    /// Keeps the class, so that no other one has its address.
    #[cfg_attr(not(debug_assertions), expect(dead_code, reason = "only checks read it"))]
    class: Arc<TaskClass>,
    /// By position.
    nodes: Vec<u32>,
    /// The sums of the domains of each tier.
    tiers: Vec<Maxima>,
    /// How much of the logs is counted: what has changed on nodes, and what may go there.
    followed: [u64; 2],
    /// When it was asked for last.
    used: u64,
}

impl Room {
    fn new(tree: &Tree, class: &Arc<TaskClass>, nodes: Vec<u32>) -> Self {
        let mut sums: Vec<Vec<u64>> =
            (0..tree.tiers().len()).map(|tier| vec![0; tree.of_tier(tier).len()]).collect();
        for (position, &count) in (0..).zip(&nodes).filter(|&(_, &count)| is_room(count)) {
            for id in tree.of_node(position) {
                sums[tree.tier(id)][tree.rank(id)] += u64::from(count);
            }
        }
        let tiers = sums.iter().map(|sums| Maxima::new(sums)).collect();
        Self { class: Arc::clone(class), nodes, tiers, followed: [0; 2], used: 0 }
    }

    /// Replaces the count of a node. One that is not allowed stays so.
    fn set(&mut self, tree: &Tree, position: u32, after: u32) {
        let count = &mut self.nodes[position as usize];
        if *count == NOT_ALLOWED || *count == after {
            return;
        }
        let before = std::mem::replace(count, after);
        for id in tree.of_node(position) {
            self.tiers[tree.tier(id)].change(tree.rank(id), u64::from(before), u64::from(after));
        }
    }

    fn sum(&self, tree: &Tree, id: DomainId) -> u64 {
        self.tiers[tree.tier(id)].get(tree.rank(id))
    }

    /// Returns the next position where there may be room, after one where there is none.
    fn skip(&self, tree: &Tree, position: u32) -> u32 {
        let without = tree.of_node(position).take_while(|&id| self.sum(tree, id) == 0).last();
        without.map_or(position + 1, |id| tree.range(id).end)
    }

    /// Returns the memory that it takes, in bytes.
    fn bytes(&self) -> usize {
        self.nodes.len() * size_of::<u32>() + self.tiers.iter().map(Maxima::bytes).sum::<usize>()
    }
}

fn is_room(count: u32) -> bool {
    count > 0 && count != NOT_ALLOWED
}

/// Notes something about a node.
pub(super) fn note(log: &mut Log, tree: &Tree, place: Place) {
    if let Some(position) = tree.position(place) {
        // To count all nodes again is cheaper than to follow so many changes.
        log.note(position, 2 * tree.len() + 1024);
    }
}

/// The counts of the classes that were asked for, over cycles.
#[derive(Debug)]
pub(in crate::cycle) struct Rooms {
    of: BTreeMap<Key, Room>,
    /// The nodes that have changed, in order.
    pub(super) log: Log,
    /// The nodes that were looked at for tasks that may go, in order.
    pub(super) going: Log,
    /// What changed since the last cycle, if anything is counted.
    pub(in crate::cycle) changed: Touched<Changed>,
    /// How often a count was asked for.
    asked: u64,
    /// How often a node was counted.
    counted: u64,
    /// The most counts, and their most bytes.
    bounds: (usize, usize),
}

impl Default for Rooms {
    fn default() -> Self {
        Self {
            of: BTreeMap::new(),
            log: Log::default(),
            going: Log::default(),
            changed: Touched::default(),
            asked: 0,
            counted: 0,
            bounds: (TOPOLOGY_COUNTS_MAX, TOPOLOGY_COUNTS_BYTES_MAX),
        }
    }
}

impl Rooms {
    /// Forgets all counts.
    pub(in crate::cycle) fn clear(&mut self) {
        self.of.clear();
        self.log.clear();
        self.going.clear();
        self.changed.note_all();
    }

    /// Forgets what is counted with evictions.
    pub(super) fn forget_evictions(&mut self) {
        self.of.retain(|(_, kind), _| !matches!(kind, Kind::Evicting(_)));
    }

    /// Returns whether a class is counted.
    pub(super) fn has(&self, key: Key) -> bool {
        self.of.contains_key(&key)
    }

    /// Returns how many tasks of a class that was counted a domain could hold.
    pub(super) fn domain(&self, tree: &Tree, key: Key, id: DomainId) -> u64 {
        self.of[&key].sum(tree, id)
    }

    /// Returns how many tasks of a class that was counted the domains of a tier could hold.
    pub(super) fn tier(&self, key: Key, tier: usize) -> &Maxima {
        &self.of[&key].tiers[tier]
    }

    /// Returns the next node with room for a class that was counted. Domains without room are passed over.
    pub(super) fn next(&self, tree: &Tree, key: Key, positions: Range<u32>) -> Option<u32> {
        let room = &self.of[&key];
        let mut at = positions.start;
        while at < positions.end {
            if is_room(room.nodes[at as usize]) {
                return Some(at);
            }
            at = room.skip(tree, at);
        }
        None
    }

    /// Returns the nodes that a count is to count again. `None`: all of them.
    fn changed_for(&self, (_, kind): Key, room: &Room) -> Option<Vec<u32>> {
        let [log, going] = room.followed;
        let mut changed = self.log.since(log)?;
        if let Kind::Evicting(_) = kind {
            changed.extend(self.going.since(going)?);
            changed.sort_unstable();
            changed.dedup();
        }
        Some(changed)
    }

    /// Makes room for another count. What was asked for least recently is forgotten if it is too much.
    fn make_room(&mut self, bytes: usize) {
        let (count_max, bytes_max) = self.bounds;
        // All counts over a tree take as much memory.
        let most = count_max.min(bytes_max / bytes.max(1)).max(KEPT_LEAST);
        while self.of.len() >= most {
            let oldest = self.of.iter().min_by_key(|(_, room)| room.used).map(|(&key, _)| key);
            self.of.remove(&oldest.expect("there are several"));
        }
    }

    /// Returns the number of counts, and how often a node was counted so far.
    #[cfg(test)]
    pub(in crate::cycle) fn counts(&self) -> (usize, u64) {
        (self.of.len(), self.counted)
    }

    /// Returns how many nodes each count of a class is to count again.
    #[cfg(test)]
    pub(in crate::cycle) fn left(&self, class: &Arc<TaskClass>) -> Vec<usize> {
        let of_class = self.of.iter().filter(|(key, _)| key.0 == address(class));
        of_class.map(|(&key, room)| self.changed_for(key, room).map_or(usize::MAX, |of| of.len())).collect()
    }

    /// Replaces the most counts, and their most bytes.
    #[cfg(test)]
    pub(in crate::cycle) fn set_bounds(&mut self, count: usize, bytes: usize) {
        self.bounds = (count, bytes);
    }
}

/// Returns how many tasks have room in some amounts, by cpu, memory and GPUs.
pub(in crate::cycle) fn tasks_in(class: &TaskClass, amounts: [i64; 3]) -> u64 {
    let kinds = KINDS.into_iter().zip(amounts).filter_map(|(dim, amount)| {
        let asked = class.amounts.get(dim);
        (asked > 0).then(|| amount.max(0) / asked)
    });
    u64::try_from(kinds.min().unwrap_or(MOST).min(MOST)).unwrap_or_default()
}

impl Cycle<'_> {
    /// Takes over the counts of earlier cycles, and notes what has changed since.
    pub(in crate::cycle) fn open_rooms(&mut self, rooms: Rooms) {
        self.topology.rooms = rooms;
        if self.topology.rooms.of.is_empty() {
            return;
        }
        self.hand_out_changes();
        let Some(changed) = self.topology.rooms.changed.take() else { return self.topology.rooms.clear() };
        if is_planted(PlantedBug::RoomKept) {
            return;
        }
        let places: BTreeSet<Place> =
            changed.into_iter().filter_map(|at| self.place_of(at)).map(|(place, _)| place).collect();
        places.into_iter().for_each(|place| self.topology.note_change(place));
    }

    /// Hands the counts over to the next cycle, without classes for which nobody waits.
    pub(in crate::cycle) fn close_rooms(&mut self) -> Rooms {
        let mut rooms = std::mem::take(&mut self.topology.rooms);
        if !rooms.of.is_empty() {
            let waiting = self.classes_that_wait();
            rooms.of.retain(|(class, _), _| waiting.contains(class));
        }
        if rooms.of.is_empty() {
            rooms.clear();
        } else {
            // What the cycle itself has changed is in the log.
            let _ = rooms.changed.take();
        }
        rooms
    }

    /// Returns the classes of jobs that wait and have rules about domains.
    fn classes_that_wait(&self) -> BTreeSet<usize> {
        let mut classes = BTreeSet::new();
        let waiting = self.jobs.queues().flat_map(|(_, queue)| queue.waiting());
        for job in waiting.filter(|&job| self.has_topology(job)).map(|job| self.jobs.job(job)) {
            // All tasks of a group have one class.
            let mut first = 0;
            for group in job.spec().tasks.iter().filter(|group| group.count > 0) {
                classes.insert(address(&job.tasks()[first].class));
                first += group.count as usize;
            }
        }
        classes
    }

    /// Brings the counts of a class up to date. Returns their key.
    pub(super) fn count_room(&mut self, class: &Arc<TaskClass>, sight: Sight<'_>) -> Key {
        let key = (address(class), sight.kind());
        let tree = self.topology.tree;
        let rooms = &mut self.topology.rooms;
        let known = rooms.of.remove(&key);
        let is_known = known.is_some();
        let changed = known.as_ref().and_then(|room| rooms.changed_for(key, room));
        let mut room = match (known, changed) {
            (Some(mut room), Some(changed)) => {
                self.topology.rooms.counted += changed.len() as u64;
                for position in changed {
                    let count = self.room_on(class, position, sight);
                    room.set(tree, position, count);
                }
                room
            }
            _ => {
                self.topology.rooms.counted += tree.len() as u64;
                let nodes = self.room_on_all(class, sight);
                Room::new(tree, class, nodes)
            }
        };
        #[cfg(debug_assertions)]
        self.check_room(&room, sight);
        let rooms = &mut self.topology.rooms;
        rooms.asked += 1;
        room.used = rooms.asked;
        room.followed = [rooms.log.follow(), rooms.going.follow()];
        if !is_known {
            rooms.make_room(room.bytes());
        }
        rooms.of.insert(key, room);
        key
    }

    /// Checks that counts that followed changes are as if all nodes had been counted.
    #[cfg(debug_assertions)]
    fn check_room(&mut self, room: &Room, sight: Sight<'_>) {
        let nodes = self.room_on_all(&room.class, sight);
        assert!(room.nodes == nodes, "a count of a node did not follow a change");
        let fresh = Room::new(self.topology.tree, &room.class, nodes);
        assert!(room.tiers == fresh.tiers, "a sum of a domain did not follow a change");
    }

    /// Counts a class on all nodes.
    fn room_on_all(&mut self, class: &Arc<TaskClass>, sight: Sight<'_>) -> Vec<u32> {
        let tree = self.topology.tree;
        let mut allowed = vec![false; tree.len()];
        for (shard, replica) in self.replicas.iter_mut().enumerate() {
            let state = |position: u32| replica.state(tree.node(position).1.slot);
            let is_ready = |position: &u32| state(*position) == Some(NodeState::Ready);
            let ready: Vec<u32> = tree.of_shard(shard).iter().copied().filter(is_ready).collect();
            let is_allowed = replica.shard_mut().allowed(&class.request);
            for position in ready {
                allowed[position as usize] = is_allowed(tree.node(position).1.slot);
            }
        }
        let without = if let Sight::Evicting(_) = sight { Sight::Later } else { sight };
        let count =
            |at: u32| if allowed[at as usize] { self.room_on(class, at, without) } else { NOT_ALLOWED };
        let mut nodes: Vec<u32> = tree.positions().map(count).collect();
        if let Sight::Evicting(spots) = sight {
            for spot in spots.listed().iter().filter(|spot| spots.counts(spot)) {
                let Some(position) = tree.position(spot.place) else { continue };
                let count = &mut nodes[position as usize];
                // What is not allowed has the largest count.
                *count = (*count).max(count_of(spot.tasks(class)));
            }
        }
        nodes
    }

    /// Counts a class on one node.
    fn room_on(&self, class: &TaskClass, position: u32, sight: Sight<'_>) -> u32 {
        let (node, place) = self.topology.tree.node(position);
        let free = self.free_on(place);
        // A node with claims is shown as it will be, and nothing is placed there now.
        let is_future = self.future.contains_key(&place);
        if let Sight::Now = sight {
            return if is_future { 0 } else { count_of(tasks_in(class, free)) };
        }
        let may_grow = !is_future && self.jobs.has_releasing(node);
        let later = tasks_in(class, if may_grow { self.free_in_future(node, place) } else { free });
        match sight {
            Sight::Evicting(spots) => count_of(later.max(spots.tasks_on(node, class))),
            _ => count_of(later),
        }
    }
}

fn count_of(tasks: u64) -> u32 {
    u32::try_from(tasks).expect("at most MOST")
}
