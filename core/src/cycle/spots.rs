//! Where victims may be found: the nodes with tasks that may go, by queue.
//!
//! One look at the tasks of a node finds them for all queues, so a task does not look at nodes that have nothing for it. The
//! [`SpotTable`] outlives a cycle. A later one looks again only at nodes that changed, so its cost does not follow the size of
//! the cluster. What is evicted while an action runs makes the sums too large, and no node is missed.

use std::collections::{BTreeMap, BTreeSet};

use super::parked::Changed;
use super::trial::{Cycle, Place};
use crate::fairness::{Amounts, Dim};
use crate::ids::NodeId;
use crate::jobs::{QueueId, TaskClass, TaskId, TaskState};
use crate::map::FixedMap;
use crate::time::Time;
use crate::touched::Touched;

/// From one node in this many on, all are looked at: that costs less than to change the lists one by one.
const REBUILT_FROM: usize = 16;

/// A node, and at most what could be free there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) node: NodeId,
    pub(super) place: Place,
    /// What is free, being released, or held by tasks that may go: cpu, memory and GPUs.
    most: [i64; 3],
    /// The lowest priority of a job of its queue that has such a task. Among those of all queues, it is not asked for.
    lowest: i32,
}

impl Spot {
    /// Returns whether a task of a job of a lower priority may go.
    fn has_below(&self, priority: i32) -> bool {
        self.lowest < priority
    }

    /// Returns whether a task could fit if all went that may go. Only cpu, memory and the sum of GPUs are compared.
    pub(super) fn may_hold(&self, class: &TaskClass) -> bool {
        KINDS.into_iter().zip(self.most).all(|(dim, most)| class.amounts.get(dim) <= most)
    }

    /// Returns how many tasks of a class could fit if all went that may go.
    pub(super) fn tasks(&self, class: &TaskClass) -> u64 {
        super::topology::tasks_in(class, self.most)
    }
}

/// Which tasks may go for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SpotsOf {
    /// Those of this queue. `None`: those of all queues from which others may reclaim.
    queue: Option<QueueId>,
    /// Only those of jobs of a lower priority than this.
    below: Option<i32>,
}

/// The nodes with tasks that may go for a job, in order of id.
#[derive(Clone, Copy)]
pub(super) struct Spots<'s> {
    list: &'s [Spot],
    of: SpotsOf,
}

impl<'s> Spots<'s> {
    /// Returns those where a task of a job of a lower priority may go.
    pub(super) fn below(self, priority: i32) -> Self {
        Self { of: SpotsOf { below: Some(priority), ..self.of }, ..self }
    }

    /// Returns which tasks may go.
    pub(super) fn of(self) -> SpotsOf {
        self.of
    }

    /// Returns the nodes that are listed. Not [all of them count](Self::counts).
    pub(super) fn listed(self) -> &'s [Spot] {
        self.list
    }

    /// Returns where a node is in the list.
    pub(super) fn find(self, node: NodeId) -> Option<usize> {
        self.list.binary_search_by_key(&node, |spot| spot.node).ok()
    }

    /// Returns whether a node that is listed has such tasks.
    pub(super) fn counts(self, spot: &Spot) -> bool {
        self.of.below.is_none_or(|below| spot.has_below(below))
    }

    /// Returns how many tasks of a class could fit on a node if all went that may go. 0: none may go there.
    pub(super) fn tasks_on(self, node: NodeId, class: &TaskClass) -> u64 {
        let spot = self.find(node).map(|at| &self.list[at]);
        spot.filter(|spot| self.counts(spot)).map_or(0, |spot| spot.tasks(class))
    }
}

/// The kinds that are compared before a node is looked at.
pub(super) const KINDS: [Dim; 3] = [Dim::CPU, Dim::MEMORY, Dim::GPU];

fn add(most: &mut [i64; 3], amounts: &Amounts) {
    for (dim, most) in KINDS.into_iter().zip(most) {
        *most += amounts.get(dim);
    }
}

/// What may be free on a node, and the lowest priority of a job that gives it.
type Going = ([i64; 3], i32);

/// What was found on a node.
struct Found {
    place: Place,
    of_queues: Vec<(QueueId, Going)>,
    of_others: Option<[i64; 3]>,
    /// When the next task there may go.
    due: Option<Time>,
}

/// Where a node is listed.
#[derive(Debug)]
struct Listed {
    place: Place,
    queues: Vec<QueueId>,
    is_of_others: bool,
    due: Option<Time>,
}

/// The nodes with tasks that may go, in order of id.
#[derive(Debug, Default)]
pub(super) struct SpotTable {
    /// The nodes where tasks may go for others of the same queue, by queue.
    of_queues: BTreeMap<QueueId, Vec<Spot>>,
    /// The nodes with tasks of queues from which others may reclaim.
    of_others: Vec<Spot>,
    nodes: FixedMap<NodeId, Listed>,
    node_at: FixedMap<Place, NodeId>,
    /// When tasks of nodes may go that have not run for long enough.
    due: BTreeSet<(Time, NodeId)>,
    /// What queues were submitted with when the nodes were looked at.
    queues: u64,
    /// From which queues others may reclaim, by id.
    reclaimable: Vec<bool>,
    /// What changed since the last look.
    pub(super) changed: Touched<Changed>,
    /// How often a node was looked at.
    looked_at: u64,
}

impl SpotTable {
    /// Returns how often a node was looked at so far.
    #[cfg(test)]
    pub(super) fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Returns the nodes where tasks may go for others of the same queue. `None`: there are no such nodes.
    pub(super) fn of_queue(&self, queue: QueueId) -> Option<Spots<'_>> {
        let list = self.of_queues.get(&queue)?;
        Some(Spots { list, of: SpotsOf { queue: Some(queue), below: None } })
    }

    /// Returns the nodes with tasks of queues from which others may reclaim.
    pub(super) fn of_others(&self) -> Spots<'_> {
        Spots { list: &self.of_others, of: SpotsOf { queue: None, below: None } }
    }

    fn remove(&mut self, node: NodeId) {
        let Some(listed) = self.nodes.remove(&node) else { return };
        if self.node_at.get(&listed.place) == Some(&node) {
            self.node_at.remove(&listed.place);
        }
        for queue in listed.queues {
            let spots = self.of_queues.get_mut(&queue).expect("a listed queue has spots");
            unset(spots, node);
            if spots.is_empty() {
                self.of_queues.remove(&queue);
            }
        }
        if listed.is_of_others {
            unset(&mut self.of_others, node);
        }
        if let Some(due) = listed.due {
            self.due.remove(&(due, node));
        }
    }

    /// Enters a node that is not listed.
    fn enter(&mut self, node: NodeId, found: Found) {
        let Found { place, of_queues, of_others, due } = found;
        let queues = of_queues.iter().map(|&(queue, _)| queue).collect();
        for (queue, (most, lowest)) in of_queues {
            insert(self.of_queues.entry(queue).or_default(), Spot { node, place, most, lowest });
        }
        let is_of_others = of_others.is_some();
        if let Some(most) = of_others {
            insert(&mut self.of_others, Spot { node, place, most, lowest: i32::MIN });
        }
        self.due.extend(due.map(|due| (due, node)));
        self.node_at.insert(place, node);
        self.nodes.insert(node, Listed { place, queues, is_of_others, due });
    }

    /// Replaces what was found on a node. Where it stays in a list, it keeps its place there.
    fn set(&mut self, node: NodeId, found: Option<Found>) {
        let Some(found) = found else { return self.remove(node) };
        let stays = self.nodes.get(&node).is_some_and(|listed| {
            let queues = || found.of_queues.iter().map(|(queue, _)| queue);
            listed.queues.iter().eq(queues()) && listed.is_of_others == found.of_others.is_some()
        });
        if !stays {
            self.remove(node);
            return self.enter(node, found);
        }
        let Found { place, of_queues, of_others, due } = found;
        for (queue, (most, lowest)) in of_queues {
            let spots = self.of_queues.get_mut(&queue).expect("a listed queue has spots");
            *spot_of(spots, node) = Spot { node, place, most, lowest };
        }
        if let Some(most) = of_others {
            *spot_of(&mut self.of_others, node) = Spot { node, place, most, lowest: i32::MIN };
        }
        let listed = self.nodes.get_mut(&node).expect("it stays");
        let before = (std::mem::replace(&mut listed.place, place), std::mem::replace(&mut listed.due, due));
        if before.0 != place && self.node_at.get(&before.0) == Some(&node) {
            self.node_at.remove(&before.0);
        }
        self.node_at.insert(place, node);
        if before.1 != due {
            if let Some(before) = before.1 {
                self.due.remove(&(before, node));
            }
            self.due.extend(due.map(|due| (due, node)));
        }
    }
}

fn insert(spots: &mut Vec<Spot>, spot: Spot) {
    // Nodes are mostly entered in order.
    let at = match spots.last() {
        Some(last) if last.node >= spot.node => spots.partition_point(|other| other.node < spot.node),
        _ => spots.len(),
    };
    spots.insert(at, spot);
}

fn spot_of(spots: &mut [Spot], node: NodeId) -> &mut Spot {
    let at = spots.binary_search_by_key(&node, |spot| spot.node).expect("a listed node has a spot");
    &mut spots[at]
}

fn unset(spots: &mut Vec<Spot>, node: NodeId) {
    let at = spots.binary_search_by_key(&node, |spot| spot.node).expect("a listed node has a spot");
    spots.remove(at);
}

impl Cycle<'_> {
    /// Returns whether a task may be evicted by its own settings, and has run for as long as its queue lets it.
    pub(super) fn may_go(&self, id: TaskId) -> bool {
        let Some(from) = self.goes_from(id) else { return false };
        self.note_due(from);
        from <= self.now
    }

    /// Returns from when on a task may be evicted. `None`: not as it is.
    fn goes_from(&self, id: TaskId) -> Option<Time> {
        let task = self.jobs.task(id);
        let is_spare = matches!(task.state, TaskState::Running | TaskState::Bound)
            && task.preemptable
            && task.allocation.is_some();
        let started = task.started.filter(|_| is_spare)?;
        Some(started.plus_nanos(self.min_run_time_ns(self.queue_of(id.job))))
    }

    /// Brings the table of nodes with tasks that may go up to date, and lends it. [Give it back](Self::give_spots_back).
    pub(super) fn take_spots(&mut self) -> SpotTable {
        self.hand_out_changes();
        let mut table = std::mem::take(&mut self.spots);
        let changed = table.changed.take();
        match self.nodes_to_look_at(&table, changed) {
            Some(nodes) => {
                for node in nodes {
                    table.looked_at += 1;
                    table.set(node, self.look_at(node, &table.reclaimable));
                    if let Some(place) = self.locate(node) {
                        self.topology.note_going(place);
                    }
                }
            }
            None => {
                let changed = std::mem::take(&mut table.changed);
                table = SpotTable { changed, ..self.look_at_all(table.looked_at) };
                self.topology.forget_evictions();
            }
        }
        #[cfg(debug_assertions)]
        self.check_spots(&table);
        if let Some(&(due, _)) = table.due.first() {
            self.note_due(due);
        }
        table
    }

    /// Ends the loan of the table.
    pub(super) fn give_spots_back(&mut self, table: SpotTable) {
        self.spots = table;
    }

    /// Returns the nodes that may have changed, in order of id. `None`: all are to be looked at.
    fn nodes_to_look_at(&self, table: &SpotTable, changed: Option<Vec<Changed>>) -> Option<BTreeSet<NodeId>> {
        if table.queues != self.jobs.queue_changes() {
            return None;
        }
        let mut nodes = BTreeSet::new();
        for changed in changed? {
            match changed {
                Changed::Tasks(node) => {
                    nodes.insert(node);
                }
                Changed::Node(place) => {
                    nodes.extend(table.node_at.get(&place));
                    nodes.extend(self.replicas[place.shard].shard().node_at(place.slot));
                }
            }
        }
        // What a node with claims of this cycle will have free is not followed: it depends on trials since then.
        let with_claims =
            self.future.keys().filter_map(|place| self.replicas[place.shard].shard().node_at(place.slot));
        nodes.extend(with_claims);
        let due = table.due.iter().take_while(|&&(due, _)| due <= self.now);
        nodes.extend(due.map(|&(_, node)| node));
        (nodes.len() < table.nodes.len().div_ceil(REBUILT_FROM)).then_some(nodes)
    }

    fn look_at_all(&mut self, looked_at: u64) -> SpotTable {
        let reclaimable: Vec<bool> = self.jobs.queues().map(|(id, _)| self.is_reclaimable(id)).collect();
        let mut table = SpotTable { queues: self.jobs.queue_changes(), looked_at, ..SpotTable::default() };
        for node in self.jobs.nodes() {
            table.looked_at += 1;
            if let Some(found) = self.look_at(node, &reclaimable) {
                table.enter(node, found);
            }
        }
        table.reclaimable = reclaimable;
        table
    }

    /// Returns at most what is free on a node once all that is being released there has ended.
    pub(super) fn free_in_future(&self, node: NodeId, place: Place) -> [i64; 3] {
        let mut free = self.free_on(place).map(|free| free.max(0));
        for &task in self.jobs.on_node(node) {
            let task = self.jobs.task(task);
            if task.state == TaskState::Releasing {
                add(&mut free, &task.class.amounts);
            }
        }
        free
    }

    /// Looks at the tasks of a node. Returns `None` if it has none, or is not there.
    fn look_at(&self, node: NodeId, reclaimable: &[bool]) -> Option<Found> {
        let tasks = self.jobs.on_node(node);
        let place = self.locate(node).filter(|_| !tasks.is_empty())?;
        let present = self.free_in_future(node, place);
        let mut may_go: Vec<(QueueId, Going)> = Vec::new();
        let mut due = None;
        for &id in tasks {
            let task = self.jobs.task(id);
            let Some(from) = self.goes_from(id) else { continue };
            if from > self.now {
                due = due.into_iter().chain([from]).min();
                continue;
            }
            let queue = self.queue_of(id.job);
            let at = may_go.iter().position(|&(of, _)| of == queue).unwrap_or_else(|| {
                may_go.push((queue, ([0; 3], i32::MAX)));
                may_go.len() - 1
            });
            let (amounts, lowest) = &mut may_go[at].1;
            add(amounts, &task.class.amounts);
            *lowest = (*lowest).min(self.jobs.job(id.job).spec().priority);
        }
        let sum = |most: [i64; 3], more: [i64; 3]| [0, 1, 2].map(|at| most[at] + more[at]);
        let mut of_others = None;
        for &(queue, (amounts, _)) in &may_go {
            if reclaimable[queue.0 as usize] {
                of_others = Some(sum(of_others.unwrap_or(present), amounts));
            }
        }
        let of_queue = |(queue, (amounts, lowest))| (queue, (sum(present, amounts), lowest));
        let of_queues = may_go.into_iter().map(of_queue).collect();
        Some(Found { place, of_queues, of_others, due })
    }

    /// Checks that a table that followed changes is as if all nodes had been looked at.
    #[cfg(debug_assertions)]
    fn check_spots(&mut self, table: &SpotTable) {
        let all = self.look_at_all(0);
        assert!(table.of_queues == all.of_queues, "a spot of a queue did not follow a change");
        assert!(table.of_others == all.of_others, "a spot did not follow a change");
        assert!(table.due == all.due, "a time at which a task may go did not follow a change");
    }
}
