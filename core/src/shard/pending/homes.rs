//! The homes of waiting requests. The home of a shape is a node that could hold one such request if the node
//! were empty.
//!
//! Homes are looked up on demand and kept. After nodes or shapes change, an existing home costs one look if it
//! is still valid. For a shape without a home, only nodes that changed since then are looked at. The cost of an
//! answer is bounded. Shapes beyond the bound keep their last known home, and
//! [`Command::GoOn`](crate::shard::Command::GoOn) looks at them later.

use std::collections::{BTreeSet, VecDeque};

use super::Waiting;
use crate::ids::NodeId;
use crate::index::Slot;
use crate::index::{Candidates, DistBuckets, Visits};
use crate::limits::{HOME_CHANGES_KEPT, HOME_SEARCH_LOOKS_MAX};
use crate::map::FixedMap;
use crate::memory;
use crate::request::PlacementRequest;
use crate::shard::books::NodeTable;
use crate::shard::choose::Eligible;

/// The known home of one shape.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Home {
    node: Option<(Slot, NodeId)>,
    /// The number of node changes taken into account. `None` if the home was never looked up.
    seen: Option<u64>,
}

impl Home {
    pub(crate) fn is_known(&self) -> bool {
        self.node.is_some()
    }
}

/// A walk over every node for one shape.
#[derive(Clone, Copy, Debug)]
struct Walk {
    /// The number of the shape.
    number: u64,
    began: u64,
    /// The number of candidates, or slots, that were looked at.
    at: usize,
}

/// The inputs of the homes: the numbers of node changes, removed nodes and created shapes.
type Cause = [u64; 3];

/// A pass over every shape.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    began: Cause,
    /// The next shape.
    at: usize,
    walk: Option<Walk>,
}

/// The state of the search for homes.
#[derive(Default)]
pub(crate) struct Homes {
    /// The number of nodes that joined or changed capacity, labels or taints. `changed` has the most recent
    /// ones.
    changes: u64,
    changed: VecDeque<Slot>,
    /// The shapes whose home is a node.
    of_slot: FixedMap<Slot, BTreeSet<usize>>,
    pass: Option<Pass>,
    /// The number of removed nodes.
    removed: u64,
    /// The inputs with which the homes of all shapes are up to date.
    settled: Option<Cause>,
}

impl Homes {
    /// Returns whether an answer left shapes to look at.
    pub(crate) fn is_behind(&self) -> bool {
        self.pass.is_some()
    }

    /// Notes that a node joined or changed capacity, labels or taints.
    pub(crate) fn note_change(&mut self, slot: Slot) {
        self.changes += 1;
        if self.changed.len() == HOME_CHANGES_KEPT {
            self.changed.pop_front();
        }
        self.changed.push_back(slot);
        assert!(self.changed.len() <= HOME_CHANGES_KEPT, "more changes are kept than may be");
        assert!(self.changed.len() as u64 <= self.changes, "changes are kept that were not counted");
    }

    /// Notes that a node was removed.
    pub(crate) fn note_removed(&mut self) {
        self.removed += 1;
    }

    /// Returns the nodes that changed since `seen` changes, or `None` if some of these changes are no longer
    /// kept.
    fn changed_since(&self, seen: u64) -> Option<impl Iterator<Item = Slot>> {
        let count = usize::try_from(self.changes - seen).ok().filter(|&count| count <= self.changed.len())?;
        Some(self.changed.range(self.changed.len() - count..).copied())
    }

    fn set(&mut self, shape: usize, home: &mut Home, node: Option<(Slot, NodeId)>) {
        self.forget(shape, home);
        if let Some((slot, _)) = node {
            let is_new = self.of_slot.entry(slot).or_default().insert(shape);
            assert!(is_new, "a shape has one home");
        }
        *home = Home { node, seen: Some(self.changes) };
    }

    /// Removes the home of a shape.
    pub(crate) fn forget(&mut self, shape: usize, home: &mut Home) {
        if let Some((slot, _)) = home.node.take() {
            let shapes = self.of_slot.get_mut(&slot).expect("a home lists its shapes");
            assert!(shapes.remove(&shape), "a shape is listed at its home");
            if shapes.is_empty() {
                self.of_slot.remove(&slot);
            }
        }
    }

    /// Returns the shapes whose home is the node in `slot`.
    pub(crate) fn at(&self, slot: Slot) -> impl Iterator<Item = usize> {
        self.of_slot.get(&slot).into_iter().flatten().copied()
    }

    /// Returns the bytes used. The list of changes is not counted: it takes at most a KiB.
    pub(crate) fn memory(&self) -> u64 {
        let entry = size_of::<usize>();
        let shapes = self.of_slot.values().map(|shapes| memory::of_btree(shapes.len(), entry)).sum::<u64>();
        memory::of_map(&self.of_slot) + shapes
    }
}

/// Looks at nodes for homes, and counts the looks.
struct Search<'a> {
    nodes: &'a NodeTable,
    capacities: &'a mut DistBuckets,
    looks: u64,
    looks_max: u64,
}

/// The result of a search among all nodes.
enum Sought {
    Home(Slot),
    None,
    /// Undecided, because too many nodes were looked at.
    Unknown,
}

impl Search<'_> {
    fn is_home(&mut self, slot: Slot, request: &PlacementRequest) -> bool {
        self.looks += 1;
        self.nodes.could_fit(slot, &request.demand) && Eligible::computed(self.nodes, request).allows(slot)
    }

    /// Looks at the largest nodes first, and gives up early.
    fn first(&mut self, request: &PlacementRequest) -> Sought {
        let vector = self.capacities.geometry().asked(&request.demand);
        let nodes = self.nodes;
        let mut left = HOME_SEARCH_LOOKS_MAX;
        let mut home = None;
        let ended = self.capacities.any(&vector, Candidates::All, &mut Visits::default(), |slot| {
            // Accepting an arbitrary node ends the search.
            if left == 0 {
                return true;
            }
            left -= 1;
            let found =
                nodes.could_fit(slot, &request.demand) && Eligible::computed(nodes, request).allows(slot);
            home = found.then_some(slot);
            found
        });
        self.looks += HOME_SEARCH_LOOKS_MAX - left;
        assert!(ended || home.is_none(), "a search goes on after it found a home");
        match home {
            Some(slot) => Sought::Home(slot),
            None if ended => Sought::Unknown,
            None => Sought::None,
        }
    }

    /// Continues the walk over every node that the request may use. Returns `None` if the walk is not finished.
    fn walk(&mut self, walk: &mut Walk, request: &PlacementRequest) -> Option<Option<Slot>> {
        let named = request.candidates.as_deref();
        let count = named.map_or_else(|| self.nodes.slots() as usize, <[NodeId]>::len);
        while walk.at < count {
            if self.looks >= self.looks_max {
                return None;
            }
            let slot = match named {
                Some(ids) => self.nodes.slot(ids[walk.at]),
                None => Some(walk.at as Slot).filter(|&slot| self.nodes.is_there(slot)),
            };
            walk.at += 1;
            match slot {
                Some(slot) if self.is_home(slot, request) => return Some(Some(slot)),
                Some(_) => {}
                None => self.looks += 1,
            }
        }
        assert!(walk.at == count, "a walk is at {} of {count} nodes", walk.at);
        Some(None)
    }
}

impl Waiting {
    /// Updates the home of a shape. Returns whether it is up to date.
    fn settle_home(&mut self, at: usize, walk: &mut Option<Walk>, search: &mut Search<'_>) -> bool {
        let Some(shape) = self.shapes.get_mut(at) else {
            search.looks += 1;
            return true;
        };
        let request = &shape.request;
        let before = shape.home.node;
        let is_still = before
            .is_some_and(|(slot, id)| search.nodes.slot(id) == Some(slot) && search.is_home(slot, request));
        search.looks += 1;
        if is_still {
            return true;
        }
        let is_under_way = walk.as_ref().is_some_and(|walk| walk.number == shape.number);
        let mut began = self.homes.changes;
        let mut found = None;
        let changed =
            shape.home.seen.filter(|_| before.is_none()).and_then(|seen| self.homes.changed_since(seen));
        if let Some(mut changed) = changed.filter(|_| !is_under_way) {
            // Only a changed node can have become the home.
            found = changed.find(|&slot| search.nodes.is_there(slot) && search.is_home(slot, request));
        } else {
            let sought = if is_under_way || request.candidates.is_some() {
                Sought::Unknown
            } else {
                search.first(request)
            };
            match sought {
                Sought::Home(slot) => found = Some(slot),
                Sought::None => {}
                Sought::Unknown => {
                    let number = shape.number;
                    let under_way = walk.take().filter(|walk| walk.number == number);
                    let mut on = under_way.unwrap_or(Walk { number, began, at: 0 });
                    let Some(sought) = search.walk(&mut on, request) else {
                        *walk = Some(on);
                        return false;
                    };
                    (found, began) = (sought, on.began);
                }
            }
        }
        let node = found.map(|slot| (slot, search.nodes.hot(slot).id));
        let mut home = shape.home;
        assert!(began <= self.homes.changes, "a home is as of changes that are still to come");
        self.homes.set(at, &mut home, node);
        home.seen = Some(began);
        self.shapes[at].home = home;
        true
    }
}

impl Waiting {
    /// Updates the homes of all shapes, with at most `looks_max` looks. If nodes changed during a pass and
    /// `renew` is set, another pass follows.
    pub(crate) fn look_for_homes(
        &mut self,
        nodes: &NodeTable,
        capacities: &mut DistBuckets,
        looks_max: u64,
        renew: bool,
    ) {
        let mut search = Search { nodes, capacities, looks: 0, looks_max };
        let now = [self.homes.changes, self.homes.removed, self.made()];
        while self.homes.settled != Some(now) {
            let fresh = Pass { began: now, ..Pass::default() };
            let mut pass = self.homes.pass.take().unwrap_or(fresh);
            let is_past = pass.began.iter().zip(now).all(|(&began, now)| began <= now);
            assert!(is_past, "a pass is as of changes that are still to come");
            while pass.at < self.places() {
                if search.looks >= looks_max || !self.settle_home(pass.at, &mut pass.walk, &mut search) {
                    self.homes.pass = Some(pass);
                    break;
                }
                pass.at += 1;
            }
            if self.homes.is_behind() {
                break;
            }
            self.homes.settled = Some(pass.began);
            if !renew {
                break;
            }
        }
        self.homes_looked_at += search.looks;
    }
}
