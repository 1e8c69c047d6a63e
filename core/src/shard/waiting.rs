//! Waiting requests: a copy of each is parked at every shard, and woken by what could help it.
//!
//! Parking tries first, so that nothing that comes free between a refusal and the parking is
//! missed. When a node has more available than before (a release, a node that joins, grows or
//! takes work again), the shard wakes copies that this node could hold, in order of priority,
//! then age, and as many as its availability could hold together. It does not place them: copies
//! stand at several shards, and the port, which knows them all, asks one shard at a time to
//! [retry](super::Command::Retry). A copy that was woken is *under way* for that node until its
//! port answers by a retry or takes it away; then the node's room is offered to the next.
//!
//! So this holds after every step, and is checked by [`Shard::check_invariants`]: if an armed copy
//! fits a node, then another is under way for that node. Nothing that fits waits for ever.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use slab::Slab;

use super::command::{Outcome, Park, Rejection, WaitToken};
use super::rankings::rank_of;
use super::set_aside::Revealed;
use super::shapes::{Asked, ShapeTree, asked};
use super::table::NodeTable;
use super::{NodeState, Shard};
use crate::ids::{NodeId, OwnerId};
use crate::index::{Candidates, DistBuckets, ResourceVector, Slot, Visits};
use crate::limits::WOKEN_PER_EVENT_MAX;
use crate::map::FixedMap;
use crate::memory;
use crate::planted::{PlantedBug, is_planted};
use crate::request::{Explain, OrderChoice, PlacementRequest, Policy};
use crate::resource::{Amount, Demand, GpuBooks};
use crate::shard::custom::CustomBook;
use crate::time::Time;

/// The order in which copies are woken: priority, then age, then the port's own order.
type Turn = (Reverse<i32>, Time, WaitToken);

/// Requests that ask the same of a node, whatever their policy.
struct Shape {
    request: PlacementRequest,
    asked: Asked,
    hash: u64,
    /// Copies that wait to be woken.
    armed: BTreeSet<Turn>,
    /// Copies, those under way included.
    copies: usize,
}

struct Copy {
    request: PlacementRequest,
    shape: usize,
    turn: Turn,
    /// Whether this is the copy by which the request is counted.
    home: bool,
    /// The node for whose room it was woken, while its port has not answered.
    under_way: Option<NodeId>,
}

/// What a status says of one shape at one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingShape {
    /// Names the shape; the same at every shard.
    pub hash: u64,
    /// Requests that are counted at this shard.
    pub homes: u64,
    /// Whether some node of this shard could hold one if nothing else ran there.
    pub feasible: bool,
}

/// The waiting requests of a shard.
#[derive(Default)]
pub(super) struct Waiting {
    copies: FixedMap<WaitToken, Copy>,
    shapes: Slab<Shape>,
    by_hash: FixedMap<u64, Vec<usize>>,
    tree: ShapeTree,
    /// Woken since they were last taken, in order.
    woken: Vec<WaitToken>,
    /// Shapes and levels looked at by all wake-ups so far.
    visits: u64,
}

/// What a request asks of a node: two that differ only otherwise are one shape.
fn shape_of(request: &PlacementRequest) -> PlacementRequest {
    let (policy, order, explain) = (Policy::default(), OrderChoice::default(), Explain::default());
    PlacementRequest { policy, order, explain, ..request.clone() }
}

fn shape_hash(request: &PlacementRequest) -> u64 {
    let mut hasher = crate::hash::StateHasher::new("shape");
    let demand = &request.demand;
    hasher.amount(demand.cpu.units());
    hasher.amount(demand.memory.units());
    hasher.amount(demand.gpu.amount().units());
    for &(id, amount) in demand.custom() {
        hasher.number(u64::from(id.0));
        hasher.amount(amount.units());
    }
    hasher.number(request.selector.as_ref().map_or(0, |selector| selector.hash()));
    hasher.number(request.owner.map_or(0, OwnerId::number));
    for id in request.candidates.iter().flat_map(|ids| ids.iter()) {
        hasher.number(id.0);
    }
    if let Some(preferences) = &request.preferences {
        hasher.number(preferences.rules.as_ref().map_or(0, |rules| rules.hash()));
        hasher.number(u64::from(preferences.avoid_gpu) | u64::from(preferences.affinity) << 1);
        for id in preferences.nodes.iter() {
            hasher.number(id.0);
        }
    }
    hasher.finish().0 as u64
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    fn park(&mut self, park: Park, home: bool) {
        let shape = shape_of(&park.request);
        let hash = shape_hash(&shape);
        let same = self.by_hash.entry(hash).or_default();
        let known = same.iter().copied().find(|&at| self.shapes[at].request == shape);
        let at = known.unwrap_or_else(|| {
            let asked = asked(&ResourceVector::asked(&shape.demand));
            let (armed, copies) = (BTreeSet::new(), 0);
            let at = self.shapes.insert(Shape { request: shape, asked, hash, armed, copies });
            same.push(at);
            self.tree.insert(&asked, at);
            at
        });
        let turn = (Reverse(park.priority), park.since, park.token);
        self.shapes[at].armed.insert(turn);
        self.shapes[at].copies += 1;
        let copy = Copy { request: park.request, shape: at, turn, home, under_way: None };
        let before = self.copies.insert(park.token, copy);
        assert!(before.is_none(), "{:?} is parked twice", park.token);
    }

    fn remove(&mut self, token: WaitToken) -> Option<Copy> {
        let copy = self.copies.remove(&token)?;
        let shape = &mut self.shapes[copy.shape];
        shape.armed.remove(&copy.turn);
        shape.copies -= 1;
        if shape.copies == 0 {
            let shape = self.shapes.remove(copy.shape);
            self.tree.remove(&shape.asked, copy.shape);
            let same = self.by_hash.get_mut(&shape.hash).expect("every shape is found by its hash");
            same.retain(|&at| at != copy.shape);
            if same.is_empty() {
                self.by_hash.remove(&shape.hash);
            }
        }
        Some(copy)
    }

    /// The bytes of the copies and of their shapes; not what a request points to (custom amounts,
    /// selectors, candidates), which its port and its shape share.
    pub(super) fn memory(&self, mut add: impl FnMut(&'static str, u64)) {
        add("waiting requests", memory::of_map(&self.copies) + memory::of_vec(&self.woken));
        let shapes = (self.shapes.capacity() * size_of::<Option<Shape>>()) as u64;
        let of_shape = |shape: &Shape| memory::of_btree(shape.armed.len(), size_of::<Turn>());
        let armed: u64 = self.shapes.iter().map(|(_, shape)| of_shape(shape)).sum();
        let same: u64 = self.by_hash.values().map(memory::of_vec).sum();
        let tables = memory::of_map(&self.by_hash) + same + self.tree.memory();
        add("shapes of waiting requests", shapes + armed + tables);
    }

    /// The copy is woken for the room of `node`.
    fn wake(&mut self, turn: Turn, node: NodeId) {
        let copy = self.copies.get_mut(&turn.2).expect("an armed copy is parked");
        copy.under_way = Some(node);
        self.shapes[copy.shape].armed.remove(&turn);
        if !is_planted(PlantedBug::WakeUpForgotten) {
            self.woken.push(turn.2);
        }
    }
}

/// What is left of a node's availability while copies are woken for it.
struct Left {
    cpu: Amount,
    memory: Amount,
    gpus: GpuBooks,
    custom: Vec<CustomBook>,
}

impl From<Revealed> for Left {
    fn from(Revealed { room, gpus, custom }: Revealed) -> Self {
        Self { cpu: room.cpu, memory: room.memory, gpus, custom }
    }
}

impl Left {
    /// Takes what `request` asks, if it is there.
    fn take(&mut self, request: &PlacementRequest) -> bool {
        let demand = &request.demand;
        let Some(gpus) = self.gpus.choose(demand.gpu) else { return false };
        let book = |books: &[CustomBook], id| books.binary_search_by_key(&id, |book: &CustomBook| book.id);
        let fits = demand.cpu <= self.cpu
            && demand.memory <= self.memory
            && demand.custom().iter().all(|&(id, amount)| {
                book(&self.custom, id).is_ok_and(|at| amount <= self.custom[at].room_for(amount))
            });
        if fits {
            self.cpu = self.cpu.minus(demand.cpu);
            self.memory = self.memory.minus(demand.memory);
            self.gpus.take(gpus);
            for &(id, amount) in demand.custom() {
                let at = book(&self.custom, id).expect("it was found above");
                self.custom[at].take(amount);
            }
        }
        fits
    }
}

/// Whether candidates, selectors and taints let the node be chosen at all, whatever is available.
fn names(nodes: &NodeTable, slot: Slot, request: &PlacementRequest) -> bool {
    request.candidates.as_ref().is_none_or(|ids| ids.binary_search(&nodes.hot(slot).id).is_ok())
        && rank_of(request, &nodes.cold(slot).registration.spec).is_eligible()
}

/// A node that could hold the request if nothing else ran there.
fn home_of(nodes: &NodeTable, capacities: &mut DistBuckets, request: &PlacementRequest) -> Option<Slot> {
    let vector = capacities.geometry().asked(&request.demand);
    let mut home = None;
    capacities.any(&vector, Candidates::All, &mut Visits::default(), |slot| {
        let found = nodes.could_fit(slot, &request.demand) && names(nodes, slot, request);
        if found {
            home = Some(slot);
        }
        found
    });
    home
}

impl Shard {
    /// Places, or parks where nothing fits.
    pub(super) fn handle_park(&mut self, park: Park) -> Outcome {
        let outcome = self.handle_place(&park.request);
        let Outcome::Refused(refusal) = outcome else { return outcome };
        let home = park.home.is_at(&refusal);
        self.waiting.park(park, home);
        Outcome::Parked(refusal)
    }

    /// Tries a parked copy once more: placed it is gone from here, refused it is armed again.
    pub(super) fn handle_retry(&mut self, token: WaitToken) -> Result<Outcome, Rejection> {
        let copy = self.waiting.copies.get_mut(&token).ok_or(Rejection::NotParked)?;
        let (node, turn, shape) = (copy.under_way.take(), copy.turn, copy.shape);
        let request = copy.request.clone();
        self.waiting.shapes[shape].armed.insert(turn);
        self.fragmentation.set_retrying(true);
        let outcome = self.handle_place(&request);
        self.fragmentation.set_retrying(false);
        if matches!(outcome, Outcome::Placed(_)) {
            // A placement that used its reservation up may have woken this very copy.
            let again = self.waiting.remove(token).and_then(|copy| copy.under_way);
            self.offer_again(node, None);
            if again != node {
                self.offer_again(again, None);
            }
        } else {
            self.offer_again(node, Some(turn));
        }
        Ok(outcome)
    }

    /// Takes a parked copy away.
    pub(super) fn handle_unpark(&mut self, token: WaitToken) -> Result<Outcome, Rejection> {
        let copy = self.waiting.remove(token).ok_or(Rejection::NotParked)?;
        self.offer_again(copy.under_way, None);
        Ok(Outcome::Unparked)
    }

    /// Offers the room that a copy was woken for to those after `after`, or to all: a copy that
    /// was refused had its turn, and so had those before it.
    fn offer_again(&mut self, node: Option<NodeId>, after: Option<Turn>) {
        if let Some(slot) = node.and_then(|node| self.nodes.slot(node)) {
            self.wake_for(slot, after);
        }
    }

    /// Wakes copies that the node in `slot` could hold with what it has available.
    pub(super) fn wake_for(&mut self, slot: Slot, after: Option<Turn>) {
        if self.waiting.is_empty() || self.nodes.state(slot) != NodeState::Ready {
            return;
        }
        // On a reserved node each sees its own: the owner's copies what is set aside too.
        let revealed =
            self.reservations.at(slot).map(|own| (own.owner, self.nodes.revealed(slot, &own.aside)));
        let vector = revealed
            .as_ref()
            .map_or_else(|| self.nodes.available(slot), |(_, all)| all.vector(self.nodes.indexed()));
        let available = asked(&vector);
        let mut visits = 0;
        let shapes = self.waiting.tree.within(&available, &mut visits);
        visits += shapes.len() as u64;
        self.waiting.visits += visits;
        let next = |shape: &Shape, after: Option<Turn>| {
            match after {
                Some(after) => {
                    shape.armed.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded)).next()
                }
                None => shape.armed.first(),
            }
            .copied()
        };
        let mut turns: BinaryHeap<Reverse<(Turn, usize)>> = BinaryHeap::new();
        for at in shapes {
            let shape = &self.waiting.shapes[at];
            if self.admits(slot, &shape.request)
                && let Some(turn) = next(shape, after)
            {
                turns.push(Reverse((turn, at)));
            }
        }
        if turns.is_empty() {
            return;
        }
        let (room, hot) = (self.nodes.room(slot), self.nodes.hot(slot));
        let custom = if hot.has_custom { self.nodes.cold(slot).custom.clone() } else { Vec::new() };
        let mut left = Left { cpu: room.cpu, memory: room.memory, gpus: hot.gpus, custom };
        let mut of_owner = revealed.map(|(owner, all)| (Some(owner), Left::from(all)));
        let node = hot.id;
        // Each takes a place of the node; one that needs none after all hands it to the next.
        let most = WOKEN_PER_EVENT_MAX.min(usize::try_from(room.places).unwrap_or(0));
        let mut woken = 0;
        while let Some(Reverse((turn, at))) = turns.pop() {
            // What is left only shrinks: a shape that does not fit has had its turn.
            let request = &self.waiting.shapes[at].request;
            let room = match &mut of_owner {
                Some((owner, room)) if request.owner == *owner => room,
                _ => &mut left,
            };
            if !room.take(request) {
                continue;
            }
            self.waiting.wake(turn, node);
            woken += 1;
            if woken == most {
                return;
            }
            if let Some(turn) = next(&self.waiting.shapes[at], Some(turn)) {
                turns.push(Reverse((turn, at)));
            }
        }
    }

    /// Whether the node could take `request` now: exactly what a placement that names this node
    /// alone would find, or a copy could be woken in vain again and again.
    fn admits(&self, slot: Slot, request: &PlacementRequest) -> bool {
        self.reservations.fits(&self.nodes, slot, request) && names(&self.nodes, slot, request)
    }

    /// The copies woken since the last call, in order.
    pub fn drain_woken(&mut self) -> std::vec::Drain<'_, WaitToken> {
        self.waiting.woken.drain(..)
    }

    /// Shapes and levels of the waiting requests that were looked at by all wake-ups so far.
    #[must_use]
    pub fn wake_visits(&self) -> u64 {
        self.waiting.visits
    }

    /// Per shape, what waits here.
    pub(super) fn waiting_shapes(&mut self) -> Vec<WaitingShape> {
        let mut homes: BTreeMap<usize, u64> = BTreeMap::new();
        for copy in self.waiting.copies.values().filter(|copy| copy.home) {
            *homes.entry(copy.shape).or_default() += 1;
        }
        let Self { waiting, nodes, capacities, .. } = self;
        let shape = |(at, shape): (usize, &Shape)| WaitingShape {
            hash: shape.hash,
            homes: homes.get(&at).copied().unwrap_or(0),
            feasible: home_of(nodes, capacities, &shape.request).is_some(),
        };
        waiting.shapes.iter().map(shape).collect()
    }

    /// What the requests ask that are counted here and whose home is the node in `slot`.
    pub(super) fn waiting_at(&mut self, slot: Slot) -> Vec<Demand> {
        let Self { waiting, nodes, capacities, .. } = self;
        let mut home_here: FixedMap<usize, bool> = FixedMap::default();
        let mut demands = Vec::new();
        for copy in waiting.copies.values().filter(|copy| copy.home) {
            let here = home_here
                .entry(copy.shape)
                .or_insert_with(|| home_of(nodes, capacities, &copy.request) == Some(slot));
            if *here {
                demands.push(copy.request.demand.clone());
            }
        }
        demands
    }

    /// Checks that nothing waits in vain, and that the shapes are those of the copies.
    pub(super) fn check_waiting(&self) -> Result<(), String> {
        let waiting = &self.waiting;
        let copies: usize = waiting.shapes.iter().map(|(_, shape)| shape.copies).sum();
        let armed: usize = waiting.shapes.iter().map(|(_, shape)| shape.armed.len()).sum();
        let under_way: Vec<NodeId> = waiting.copies.values().filter_map(|copy| copy.under_way).collect();
        if copies != waiting.copies.len() || armed + under_way.len() != copies {
            return Err(format!(
                "{copies} waiting copies in shapes, {armed} armed, {} in all",
                waiting.copies.len()
            ));
        }
        for (slot, hot, _) in self.nodes.iter() {
            if self.nodes.state(slot) != NodeState::Ready || under_way.contains(&hot.id) {
                continue;
            }
            let missed =
                waiting.shapes.iter().find(|(_, s)| !s.armed.is_empty() && self.admits(slot, &s.request));
            if let Some((_, shape)) = missed {
                return Err(format!("{:?} waits although it fits node {}", shape.armed.first(), hot.id));
            }
        }
        Ok(())
    }
}
