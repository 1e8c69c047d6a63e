//! What the clients were told, and whether the books after a start agree with it.
//!
//! Every amount of memory that is asked for is random, and used once. So the sum on a node tells which of the requests
//! without a reply were done: exactly one subset of them explains it. The clients do not resume their sessions here, so a
//! request without a reply was done or not; `exactly_once.rs` has clients that do.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::{AllocationId, GroupId, Incarnation, TenantId};
use wharf_net::protocol::{NODE_DRAINING, WireGroup};

use super::jobs::{ALL, GROUPED, PLACED};
use super::reader::{Seen, SeenGroup, SeenNode};

/// A group, as a key.
pub type GroupKey = (u32, u64);

pub fn group_key(group: WireGroup) -> GroupKey {
    (group.incarnation, group.number)
}

/// Returns whether a queue is charged for a group.
fn is_in_queue((incarnation, number): GroupKey) -> bool {
    GroupId { incarnation: Incarnation(incarnation), number, tenant: TenantId::OPERATOR }.is_in_queue()
}

/// A request that has no reply yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Place {
        memory: i64,
        is_in_queue: bool,
    },
    Release {
        allocation: AllocationId,
    },
    Create {
        memory: Vec<i64>,
    },
    Grow {
        group: GroupKey,
        memory: Vec<i64>,
    },
    Remove {
        group: GroupKey,
    },
    /// A statement that places on several nodes, or on none: a node and an amount of memory for each.
    Statement {
        parts: Vec<(u64, i64)>,
    },
    AddNode {
        name: String,
    },
    Drain {
        name: String,
        is_draining: bool,
    },
    RemoveNode {
        name: String,
    },
}

/// A live allocation that is no bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Single {
    pub node: u64,
    pub memory: i64,
    pub is_leased: bool,
    /// A queue is charged for it.
    pub is_in_queue: bool,
}

/// An allocation that exists although no client was told of it.
#[derive(Clone, Copy, Debug)]
struct Orphan {
    node: u64,
    memory: i64,
    is_in_queue: bool,
}

/// A bundle of a group: its allocation, its node and its memory.
pub type Bundle = (AllocationId, u64, i64);

/// The number of a request under way.
pub type Token = u64;

/// What the clients know.
#[derive(Default)]
pub struct Oracle {
    /// The nodes by name, with whether they drain.
    pub nodes: BTreeMap<String, bool>,
    pub singles: BTreeMap<AllocationId, Single>,
    pub groups: BTreeMap<GroupKey, Vec<Bundle>>,
    orphans: Vec<Orphan>,
    /// Every id that a client was ever told.
    ids: BTreeSet<AllocationId>,
    under_way: BTreeMap<Token, Asked>,
    next: Token,
    /// Whether each statement without a reply was done, as far as the nodes that were compared tell.
    statements: BTreeMap<Token, bool>,
    /// Requests that had no reply and were done, and that were not done.
    pub decided: (u64, u64),
}

impl Oracle {
    /// Notes that a request leaves.
    pub fn ask(&mut self, asked: Asked) -> Token {
        self.next += 1;
        self.under_way.insert(self.next, asked);
        self.next
    }

    /// Notes that a request was answered.
    pub fn answer(&mut self, token: Token) -> Asked {
        self.under_way.remove(&token).expect("each request is answered once")
    }

    /// Returns whether a request for this object is under way.
    pub fn is_busy(&self, is_it: impl Fn(&Asked) -> bool) -> bool {
        self.under_way.values().any(is_it)
    }

    /// Notes a new id.
    pub fn meet(&mut self, id: AllocationId) {
        assert!(self.ids.insert(id), "allocation {id} was given twice");
    }

    /// Returns the groups of which only a part is there. A removal that was not answered may have ended some bundles. The
    /// service then wants to place them again, until the removal is asked for again.
    pub fn half_removed(&self, seen: &Seen) -> Vec<GroupKey> {
        let halves: Vec<GroupKey> =
            seen.groups.iter().filter(|group| !group.is_whole).map(|group| group.key).collect();
        for &key in &halves {
            let asked = self.is_busy(|asked| *asked == Asked::Remove { group: key });
            assert!(asked, "group {key:?} is half done, and nobody removes it: {seen:?}");
        }
        halves
    }

    /// Notes that a removal that was not answered is done.
    pub fn finish_removal(&mut self, key: GroupKey) {
        assert!(
            self.done(|asked| *asked == Asked::Remove { group: key }),
            "group {key:?} is not being removed"
        );
        self.groups.remove(&key);
    }

    /// Compares the books after a start with what the clients know, and decides what was undecided.
    pub fn compare(&mut self, seen: &Seen) {
        self.compare_nodes(seen);
        self.compare_groups(seen);
        let there: BTreeSet<u64> = seen.nodes.iter().map(|node| node.id).collect();
        // A node that has something cannot be removed, so a statement on one that is gone was not done.
        let is_lost = |parts: &[(u64, i64)]| parts.iter().any(|(node, _)| !there.contains(node));
        let lost = self.under_way.iter().filter_map(|(&token, asked)| match asked {
            Asked::Statement { parts } if is_lost(parts) => Some((token, false)),
            _ => None,
        });
        self.statements = lost.collect();
        for node in &seen.nodes {
            self.compare_books(node, seen);
        }
        for (token, _) in std::mem::take(&mut self.statements).into_iter().filter(|(_, is_done)| *is_done) {
            self.under_way.remove(&token);
            self.decided.0 += 1;
        }
        let lost = self.singles.iter().find(|(_, single)| !there.contains(&single.node));
        assert!(lost.is_none(), "{lost:?} was on a node that is gone");
        self.compare_charges(seen);
        // What is still under way was not done.
        self.decided.1 += self.under_way.len() as u64;
        self.under_way.clear();
    }

    /// Decides a request that is under way: it was done.
    fn done(&mut self, is_it: impl Fn(&Asked) -> bool) -> bool {
        let found = self.under_way.iter().find(|(_, asked)| is_it(asked)).map(|(&token, _)| token);
        let Some(token) = found else { return false };
        self.under_way.remove(&token);
        self.decided.0 += 1;
        true
    }

    fn compare_nodes(&mut self, seen: &Seen) {
        let names: BTreeSet<&str> = seen.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names.len(), seen.nodes.len(), "a node is listed twice");
        let gone: Vec<String> =
            self.nodes.keys().filter(|name| !names.contains(name.as_str())).cloned().collect();
        for name in gone {
            let removed = self.done(|asked| matches!(asked, Asked::RemoveNode { name: of } if *of == name));
            assert!(removed, "node {name} is lost");
            self.nodes.remove(&name);
        }
        for node in &seen.nodes {
            let is_draining = node.state == NODE_DRAINING;
            let Some(&was_draining) = self.nodes.get(&node.name) else {
                let added = self.done(|asked| matches!(asked, Asked::AddNode { name } if *name == node.name));
                assert!(added, "node {} was not asked for, or was removed", node.name);
                self.nodes.insert(node.name.clone(), is_draining);
                continue;
            };
            if was_draining != is_draining {
                let changed = Asked::Drain { name: node.name.clone(), is_draining };
                assert!(self.done(|asked| *asked == changed), "{node:?} is not as it was left");
                self.nodes.insert(node.name.clone(), is_draining);
            }
        }
    }

    fn compare_groups(&mut self, seen: &Seen) {
        let there: BTreeSet<GroupKey> = seen.groups.iter().map(|group| group.key).collect();
        assert_eq!(there.len(), seen.groups.len(), "a group is listed twice");
        let gone: Vec<GroupKey> = self.groups.keys().filter(|key| !there.contains(key)).copied().collect();
        for key in gone {
            let removed = self.done(|asked| matches!(asked, Asked::Remove { group } if *group == key));
            assert!(removed, "group {key:?} is lost: {:?}", self.groups[&key]);
            self.groups.remove(&key);
        }
        for group in &seen.groups {
            assert!(group.is_whole, "{group:?} is half done");
            self.compare_group(group);
        }
    }

    fn compare_group(&mut self, group: &SeenGroup) {
        let memory: Vec<i64> = group.bundles.iter().map(|bundle| bundle.2).collect();
        if let Some(known) = self.groups.get(&group.key) {
            let told: Vec<i64> = known.iter().map(|bundle| bundle.2).collect();
            // A removal that was not answered may have ended some bundles, which are placed again.
            let is_leaving =
                self.is_busy(|asked| matches!(asked, Asked::Remove { group: of } if *of == group.key));
            assert!(is_leaving || group.bundles.starts_with(known), "{group:?} was {known:?}");
            if memory != told {
                let is_it = |asked: &Asked| match asked {
                    Asked::Grow { group: of, memory: more } => {
                        *of == group.key && [&told[..], more].concat() == memory
                    }
                    _ => false,
                };
                assert!(self.done(is_it), "{group:?} had bundles with {told:?}, and nobody grew it so");
            }
        } else {
            let made = self.done(|asked| matches!(asked, Asked::Create { memory: of } if *of == memory));
            assert!(made, "{group:?} was not asked for, or was removed");
        }
        let before = self.groups.insert(group.key, group.bundles.clone()).unwrap_or_default();
        let known: BTreeSet<AllocationId> = before.iter().map(|bundle| bundle.0).collect();
        for bundle in &group.bundles {
            if !known.contains(&bundle.0) {
                self.meet(bundle.0);
            }
        }
    }

    /// Compares the books of a node. Bundles and nodes are compared already.
    fn compare_books(&mut self, node: &SeenNode, seen: &Seen) {
        let bundles =
            seen.groups.iter().flat_map(|group| &group.bundles).filter(|bundle| bundle.1 == node.id);
        let mut memory = node.memory;
        let mut count = i64::from(node.allocations) - seen.jobs.on_node(node.id);
        for bundle in bundles {
            memory -= bundle.2;
            count -= 1;
        }
        let releases: BTreeSet<AllocationId> = self
            .under_way
            .values()
            .filter_map(
                |asked| if let Asked::Release { allocation } = asked { Some(*allocation) } else { None },
            )
            .collect();
        for orphan in self.orphans.iter().filter(|orphan| orphan.node == node.id) {
            memory -= orphan.memory;
            count -= 1;
        }
        let of_node = || self.singles.iter().filter(|(_, single)| single.node == node.id);
        for (_, single) in of_node().filter(|(id, _)| !releases.contains(id)) {
            memory -= single.memory;
            count -= 1;
        }
        // What is left must be a subset of what is undecided.
        let mut open: Vec<(Undecided, i64)> = of_node()
            .filter(|(id, _)| releases.contains(id))
            .map(|(&id, single)| (Undecided::Kept(id), single.memory))
            .collect();
        open.extend(self.under_way.iter().filter_map(|(&token, asked)| match asked {
            Asked::Place { memory, .. } => Some((Undecided::Placed(token), *memory)),
            _ => None,
        }));
        for (&token, asked) in &self.under_way {
            let Asked::Statement { parts } = asked else { continue };
            for &(_, of_part) in parts.iter().filter(|(on, _)| *on == node.id) {
                match self.statements.get(&token) {
                    Some(true) => {
                        memory -= of_part;
                        count -= 1;
                        self.orphans.push(Orphan { node: node.id, memory: of_part, is_in_queue: false });
                    }
                    Some(false) => {}
                    None => open.push((Undecided::Part(token), of_part)),
                }
            }
        }
        let subset = subset(&open, memory, count);
        let subset = subset.unwrap_or_else(|| {
            panic!("{node:?}: {count} allocations with {memory} are left, and {open:?} is undecided")
        });
        self.decide_books(node.id, &open, &subset);
    }

    /// Compares what queues are charged for with what there is: tasks, direct placements and groups.
    fn compare_charges(&self, seen: &Seen) {
        let placed = self.singles.values().filter(|single| single.is_in_queue).map(|single| single.memory);
        let placed: Vec<i64> = placed
            .chain(self.orphans.iter().filter(|orphan| orphan.is_in_queue).map(|orphan| orphan.memory))
            .collect();
        let in_queue = seen.groups.iter().filter(|group| is_in_queue(group.key));
        let grouped: Vec<i64> = in_queue.flat_map(|group| &group.bundles).map(|bundle| bundle.2).collect();
        let mut all = (0, 0);
        for queue in seen.jobs.queues.iter().filter(|queue| queue.name != ALL) {
            let of_queue = seen.jobs.jobs.iter().filter(|job| job.queue == queue.name);
            let tasks = of_queue.flat_map(|job| &job.tasks).filter(|task| task.node.is_some()).count();
            let direct: &[i64] = match queue.name.as_str() {
                PLACED => &placed,
                GROUPED => &grouped,
                _ => &[],
            };
            let charged = (tasks + direct.len(), direct.iter().sum::<i64>());
            let told = (queue.cores, queue.memory, queue.allocations, queue.direct as usize);
            let expected = (charged.0 as i64, charged.1, charged.0 as u64, direct.len());
            assert_eq!(told, expected, "{queue:?} is charged for something else: {:?}", seen.jobs);
            all = (all.0 + charged.0, all.1 + charged.1);
        }
        let parent = seen.jobs.queues.iter().find(|queue| queue.name == ALL);
        let told = parent.map_or((0, 0), |queue| (queue.allocations as usize, queue.memory));
        assert_eq!(told, all, "the sums of {parent:?}");
    }

    fn decide_books(&mut self, node: u64, open: &[(Undecided, i64)], subset: &[bool]) {
        for (&(undecided, memory), &is_there) in open.iter().zip(subset) {
            match undecided {
                Undecided::Placed(token) if is_there => {
                    let asked = self.under_way.remove(&token);
                    let is_in_queue = matches!(asked, Some(Asked::Place { is_in_queue: true, .. }));
                    self.decided.0 += 1;
                    self.orphans.push(Orphan { node, memory, is_in_queue });
                }
                Undecided::Part(token) => {
                    self.statements.insert(token, is_there);
                    self.orphans.extend(is_there.then_some(Orphan { node, memory, is_in_queue: false }));
                }
                Undecided::Kept(id) if !is_there => {
                    self.done(|asked| *asked == Asked::Release { allocation: id });
                    self.singles.remove(&id);
                }
                Undecided::Placed(_) | Undecided::Kept(_) => {}
            }
        }
    }

    /// Returns a node that has nothing but allocations, many of which no client knows, and how many it has.
    pub fn node_of_orphans(&self, seen: &Seen, most: usize) -> Option<(String, u32)> {
        let is_free = |id: u64| self.groups.values().flatten().all(|bundle| bundle.1 != id);
        let orphans = |id: u64| self.orphans.iter().filter(|orphan| orphan.node == id).count();
        let found = seen.nodes.iter().find(|node| is_free(node.id) && orphans(node.id) > most);
        found.map(|node| (node.name.clone(), node.allocations))
    }

    /// Notes that a node is removed with all that it had.
    pub fn drop_node(&mut self, name: &str, id: u64) {
        self.nodes.remove(name);
        self.orphans.retain(|orphan| orphan.node != id);
        self.singles.retain(|_, single| single.node != id);
    }
}

/// A request of which only the books can tell whether it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undecided {
    /// This request may have placed.
    Placed(Token),
    /// This statement may have been done, so its part on the node would be there.
    Part(Token),
    /// A release of this allocation may not have been done.
    Kept(AllocationId),
}

/// Returns the subset of `open` with this sum and this many members.
fn subset(open: &[(Undecided, i64)], sum: i64, count: i64) -> Option<Vec<bool>> {
    assert!(open.len() < 24, "a search over all subsets of {}", open.len());
    let is_in = |set: u32, at: usize| set & (1 << at) != 0;
    let found = (0..1u32 << open.len()).find(|&set| {
        let members = open.iter().enumerate().filter(|(at, _)| is_in(set, *at));
        i64::from(set.count_ones()) == count && members.map(|(_, one)| one.1).sum::<i64>() == sum
    })?;
    Some((0..open.len()).map(|at| is_in(found, at)).collect())
}

#[test]
fn the_oracle_finds_what_is_lost_and_what_is_doubled() {
    let id = |sequence| AllocationId {
        incarnation: wharf_core::ids::Incarnation(1),
        partition: wharf_core::ids::PartitionId(0),
        sequence,
        tenant: TenantId::OPERATOR,
    };
    let seen = |allocations, memory| Seen {
        nodes: vec![SeenNode { id: 1, name: "a".to_owned(), state: 1, allocations, memory }],
        ..Seen::default()
    };
    let single = |memory| Single { node: 1, memory, is_leased: false, is_in_queue: false };
    let told = || {
        let mut oracle = Oracle::default();
        oracle.nodes.insert("a".to_owned(), false);
        oracle.singles.insert(id(1), single(10));
        oracle.singles.insert(id(2), single(200));
        oracle.ask(Asked::Release { allocation: id(2) });
        oracle.ask(Asked::Place { memory: 3000, is_in_queue: false });
        oracle
    };
    for (allocations, memory, decided) in
        [(1, 10, (1, 1)), (2, 210, (0, 2)), (3, 3210, (1, 1)), (2, 3010, (2, 0))]
    {
        let mut oracle = told();
        oracle.compare(&seen(allocations, memory));
        assert_eq!(oracle.decided, decided, "{allocations} allocations with {memory}");
        oracle.compare(&seen(allocations, memory));
    }
    // An allocation is lost, one is there twice, or one has another size.
    for (allocations, memory) in [(0, 0), (1, 200), (2, 20), (3, 6010), (2, 211)] {
        let compared = std::panic::catch_unwind(|| told().compare(&seen(allocations, memory)));
        assert!(compared.is_err(), "{allocations} allocations with {memory} are accepted");
    }
}

#[test]
fn the_oracle_finds_half_statements_and_half_growth() {
    let node =
        |id, allocations, memory| SeenNode { id, name: format!("node-{id}"), state: 1, allocations, memory };
    let told = || {
        let mut oracle = Oracle::default();
        oracle.nodes.extend([("node-1".to_owned(), false), ("node-2".to_owned(), false)]);
        oracle.ask(Asked::Statement { parts: vec![(1, 10), (2, 200)] });
        oracle
    };
    let seen = |first, second| Seen {
        nodes: vec![node(1, u32::from(first > 0), first), node(2, u32::from(second > 0), second)],
        ..Seen::default()
    };
    for (first, second, decided) in [(0, 0, (0, 1)), (10, 200, (1, 0))] {
        let mut oracle = told();
        oracle.compare(&seen(first, second));
        assert_eq!(oracle.decided, decided);
        oracle.compare(&seen(first, second));
    }
    for (first, second) in [(10, 0), (0, 200)] {
        assert!(
            std::panic::catch_unwind(|| told().compare(&seen(first, second))).is_err(),
            "a half statement"
        );
    }
    // A node of the statement is gone, so nothing of it may be there.
    let mut gone = told();
    gone.nodes.remove("node-2");
    let alone = |memory| Seen { nodes: vec![node(1, u32::from(memory > 0), memory)], ..Seen::default() };
    gone.compare(&alone(0));
    assert_eq!(gone.decided, (0, 1));

    let id = |sequence| AllocationId {
        incarnation: wharf_core::ids::Incarnation(1),
        partition: wharf_core::ids::PartitionId(0),
        sequence,
        tenant: TenantId::OPERATOR,
    };
    let key = (1, 1);
    let grown = |count: u64| {
        let bundles: Vec<Bundle> = (0..count).map(|at| (id(at), 1, 10 + at as i64)).collect();
        let memory = bundles.iter().map(|bundle| bundle.2).sum();
        Seen {
            nodes: vec![node(1, count as u32, memory)],
            groups: vec![SeenGroup { key, is_whole: true, bundles }],
            ..Seen::default()
        }
    };
    let told = || {
        let mut oracle = Oracle::default();
        oracle.nodes.insert("node-1".to_owned(), false);
        oracle.groups.insert(key, vec![(id(0), 1, 10)]);
        oracle.meet(id(0));
        oracle.ask(Asked::Grow { group: key, memory: vec![11, 12] });
        oracle
    };
    for (count, decided) in [(1, (0, 1)), (3, (1, 0))] {
        let mut oracle = told();
        oracle.compare(&grown(count));
        assert_eq!(oracle.decided, decided, "{count} bundles");
        oracle.compare(&grown(count));
    }
    assert!(std::panic::catch_unwind(|| told().compare(&grown(2))).is_err(), "half of the growth");
}
