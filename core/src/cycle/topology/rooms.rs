//! How many tasks of a class each node and each domain could hold, at most.
//!
//! A class is counted over all nodes once in a cycle. Then only the nodes are counted again where something was placed,
//! evicted or taken back. Cpu, memory and the sum of GPUs are compared, so a count may be too large, and is never too
//! small.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tree::{DomainId, Tree};
use crate::cycle::spots::{KINDS, Spot};
use crate::cycle::trial::{Cycle, Place};
use crate::fairness::Amounts;
use crate::jobs::{TaskClass, TaskState};
use crate::node::NodeState;

/// The most tasks that are counted on one node.
const MOST: i64 = 1 << 20;

/// What is counted of a node or a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// On capacity that is free.
    pub(super) now: u64,
    /// Also on what is being released.
    pub(super) later: u64,
}

struct Room {
    /// Keeps the class, so that no other one has its address.
    class: Arc<TaskClass>,
    /// The nodes that its labels and taints allow, by position.
    allowed: Vec<bool>,
    nodes: Vec<Counts>,
    domains: Vec<Counts>,
    /// How much of the log is counted.
    seen: usize,
}

/// The counts of the classes that were asked for.
#[derive(Default)]
pub(super) struct Rooms {
    of: BTreeMap<*const TaskClass, Room>,
    /// The positions of nodes that have changed, in order.
    log: Vec<u32>,
}

impl Rooms {
    /// Notes that something has changed on a node.
    pub(super) fn touch(&mut self, tree: &Tree, place: Place) {
        if self.of.is_empty() {
            return;
        }
        if self.log.len() > 4 * tree.len() + 1024 {
            // To count all nodes again is cheaper than to follow so many changes.
            *self = Self::default();
            return;
        }
        self.log.extend(tree.position(place));
    }

    /// Returns the counts of domains, of a class that was counted.
    pub(super) fn domain(&self, class: &TaskClass, id: DomainId) -> Counts {
        self.of[&std::ptr::from_ref(class)].domains[id.index()]
    }

    /// Returns the next node with room now, of a class that was counted.
    pub(super) fn next(&self, class: &TaskClass, positions: std::ops::Range<u32>) -> Option<u32> {
        let room = &self.of[&std::ptr::from_ref(class)];
        positions.into_iter().find(|&position| room.nodes[position as usize].now > 0)
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
    /// Brings the counts of a class up to date.
    pub(super) fn count_room(&mut self, class: &Arc<TaskClass>) {
        let tree = self.topology.tree;
        let known = self.topology.rooms.of.remove(&Arc::as_ptr(class));
        let mut room = known.unwrap_or_else(|| self.all_room(class));
        let log = &self.topology.rooms.log;
        let mut changed: Vec<u32> = log[room.seen..].to_vec();
        room.seen = log.len();
        changed.sort_unstable();
        changed.dedup();
        for position in changed {
            let before = room.nodes[position as usize];
            let is_allowed = room.allowed[position as usize];
            let after = if is_allowed { self.room_on(&room.class, position) } else { before };
            room.nodes[position as usize] = after;
            for id in tree.of_node(position) {
                let sum = &mut room.domains[id.index()];
                sum.now = sum.now - before.now + after.now;
                sum.later = sum.later - before.later + after.later;
            }
        }
        self.topology.rooms.of.insert(Arc::as_ptr(class), room);
    }

    /// Counts a class on all nodes.
    fn all_room(&mut self, class: &Arc<TaskClass>) -> Room {
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
        let mut nodes = vec![Counts::default(); tree.len()];
        let mut domains = vec![Counts::default(); tree.domain_count()];
        for position in tree.positions().filter(|&position| allowed[position as usize]) {
            let counts = self.room_on(class, position);
            nodes[position as usize] = counts;
            for id in tree.of_node(position) {
                domains[id.index()].now += counts.now;
                domains[id.index()].later += counts.later;
            }
        }
        let seen = self.topology.rooms.log.len();
        Room { class: Arc::clone(class), allowed, nodes, domains, seen }
    }

    /// Counts a class on one node.
    fn room_on(&self, class: &TaskClass, position: u32) -> Counts {
        let (node, place) = self.topology.tree.node(position);
        let free = self.free_on(place);
        if self.future.contains_key(&place) {
            // It is shown as it will be, and nothing is placed there now.
            return Counts { now: 0, later: tasks_in(class, free) };
        }
        let now = tasks_in(class, free);
        if !self.jobs.has_releasing(node) {
            return Counts { now, later: now };
        }
        let tasks = self.jobs.on_node(node).iter().map(|&task| self.jobs.task(task));
        let mut released = Amounts::zero();
        let releasing = tasks.filter(|task| task.state == TaskState::Releasing);
        releasing.for_each(|task| released.add(&task.class.amounts));
        let mut most = free;
        for (dim, most) in KINDS.into_iter().zip(&mut most) {
            *most = (*most).max(0) + released.get(dim);
        }
        Counts { now, later: tasks_in(class, most) }
    }

    /// Returns how many tasks of a class each domain could hold if all went that may go, by the number of the domain.
    /// The class was counted.
    pub(super) fn room_with_evictions(&self, class: &TaskClass, spots: &[Spot]) -> Vec<u64> {
        let tree = self.topology.tree;
        let room = &self.topology.rooms.of[&std::ptr::from_ref(class)];
        let mut sums: Vec<u64> = room.domains.iter().map(|counts| counts.later).collect();
        for spot in spots {
            let Some(position) = tree.position(spot.place) else { continue };
            if !room.allowed[position as usize] {
                continue;
            }
            let more = spot.tasks(class).saturating_sub(room.nodes[position as usize].later);
            if more > 0 {
                tree.of_node(position).for_each(|id| sums[id.index()] += more);
            }
        }
        sums
    }
}
