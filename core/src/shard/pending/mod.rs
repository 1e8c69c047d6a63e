//! The queue of pending work: waiting requests, and bundles of waiting groups. Each shard has a copy of each, and
//! wakes it by events that could help it.
//!
//! Parking first tries to place, so capacity that became free since the refusal is not missed. A release, or a
//! node that joins, grows or takes work again, increases a node's available capacity. The shard then wakes
//! copies that this node could hold, in order of priority, then age. It wakes as many as the available capacity
//! could hold together. It does not place them: copies exist at several shards. The port, which knows them all,
//! asks one shard at a time to [retry](crate::shard::Command::Retry). A woken copy is *under way* for that node until
//! its port answers with a retry or removes it. The node's room is then offered to the next copy.
//!
//! A copy of a bundle is watched, not tried: its planner alone can tell whether the whole group fits. Bundles and
//! requests are woken in one order. While bundles are under way for a node, requests after them are not woken for
//! it ([`bundles`]).
//!
//! A search for the copies that a node could hold looks at a bounded number of shapes. If that is too few, the
//! node is [put off](put_off), and later commands look at the rest.
//!
//! This invariant holds after every step and is checked by [`Shard::check_invariants`]. If an armed copy of a request
//! fits a node, then another copy is under way for that node, or the node is put off. No copy that fits waits forever.

mod bundles;
mod homes;
mod offer;
mod page;
mod put_off;
mod retry;
mod shapes;

use crate::broken::{Broken, broken};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use slab::Slab;

use crate::ids::{NodeId, OwnerId, TenantId};
use crate::index::{ResourceVector, Slot};
use crate::limits::{PUT_OFF_KEPT, WAKE_LOOKS_MAX, WOKEN_PER_EVENT_MAX};
use crate::map::FixedMap;
use crate::memory;
use crate::node::NodeState;
use crate::planted::{PlantedBug, is_planted};
use crate::request::{Explain, OrderChoice, PlacementRequest, Policy};
use crate::shard::books::Books;
use crate::shard::choose::{Eligible, LabelIndex};
use crate::shard::command::{Park, WaitToken, Watch};
use crate::time::Time;
use bundles::{BundlesUnderWay, Wake};
use homes::{Home, Homes};
use offer::Offer;
pub use page::{CountTurns, TurnsCounted, TurnsFrom, WaitingPlacementsPage};
use put_off::PutOff;
use shapes::{Asked, Below, Filed, Having, Open, ShapeFiles, Summary, asked};

/// The order in which copies are woken: priority, then age, then the port's own order.
pub(crate) type Turn = (Reverse<i32>, Time, WaitToken);

/// No turn is before this one.
const FIRST: Turn = (Reverse(i32::MAX), Time(0), WaitToken { port: 0, number: 0 });

/// Requests that ask the same of a node, regardless of their policy.
pub(crate) struct Shape {
    pub(crate) request: PlacementRequest,
    /// Unique among all shapes, past and present.
    pub(crate) number: u64,
    asked: Asked,
    filed: Filed,
    hash: u64,
    /// Copies that wait to be woken.
    armed: BTreeSet<Turn>,
    /// The number of copies, including those under way.
    copies: usize,
    /// The number of copies by which a request is counted.
    homes: u64,
    /// These by priority.
    homes_by_priority: BTreeMap<i32, u64>,
    pub(crate) home: Home,
}

impl Shape {
    fn summary(&self) -> Summary {
        Summary::of(&self.asked, self.armed.first().copied(), self.request.owner.is_some())
    }

    /// Returns the first turn that is not before `from`.
    fn next(&self, from: Turn) -> Option<Turn> {
        self.armed.range(from..).next().copied()
    }
}

struct Copy {
    request: PlacementRequest,
    shape: usize,
    turn: Turn,
    /// True if this copy is the one by which the request is counted.
    home: bool,
    /// The node for whose room the request was woken, until its port answers.
    under_way: Option<NodeId>,
    /// If a bundle is watched by it, the nodes for whose room it was woken, until its planner answers.
    bundle: Option<Vec<NodeId>>,
}

/// The status of one shape at one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingShape {
    /// Identifies the shape. The same at every shard.
    pub hash: u64,
    /// The number of requests that are counted at this shard.
    pub homes: u64,
    /// True if some node of this shard could hold one if the node were empty. If very many shapes wait, this
    /// may predate the latest changes of nodes.
    pub feasible: bool,
}

/// The waiting requests of a shard.
pub(crate) struct Waiting {
    copies: FixedMap<WaitToken, Copy>,
    pub(crate) shapes: Slab<Shape>,
    by_hash: FixedMap<u64, Vec<usize>>,
    files: ShapeFiles,
    /// The number of shapes, each counted once per file that contains it.
    filed: usize,
    /// One more than the highest index of a shape.
    places: usize,
    /// The number of shapes ever created.
    made: u64,
    /// Copies woken since the last drain, in order.
    woken: Vec<WaitToken>,
    pub(crate) put_off: PutOff,
    /// The nodes for which bundles are under way.
    bundles: FixedMap<NodeId, BundlesUnderWay>,
    /// Answers to bundles, each with the nodes for which it is not handled yet.
    answered: VecDeque<(WaitToken, std::vec::IntoIter<NodeId>)>,
    pub(crate) homes: Homes,
    /// Scratch memory of a search, reused.
    open: Open,
    wake_looks: u64,
    /// Same as in [`ShardWork`](crate::shard::ShardWork).
    pub(crate) looked_at: u64,
    pub(crate) homes_looked_at: u64,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            copies: FixedMap::default(),
            shapes: Slab::new(),
            by_hash: FixedMap::default(),
            files: ShapeFiles::default(),
            filed: 0,
            places: 0,
            made: 0,
            woken: Vec::new(),
            put_off: PutOff::default(),
            bundles: FixedMap::default(),
            answered: VecDeque::new(),
            homes: Homes::default(),
            open: Open::new(),
            wake_looks: WAKE_LOOKS_MAX,
            looked_at: 0,
            homes_looked_at: 0,
        }
    }
}

/// Returns what a request asks of a node. Requests that differ only in other fields have the same shape.
fn shape_of(request: &PlacementRequest) -> PlacementRequest {
    let policy = Policy::default();
    let order = OrderChoice::default();
    let explain = Explain::default();
    PlacementRequest { policy, order, explain, lease: None, tenant: TenantId::OPERATOR, ..request.clone() }
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
    pub(crate) fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Adds a copy. `home` says whether its request is counted by it.
    pub(crate) fn park(&mut self, park: Park, home: bool, labels: &LabelIndex) {
        let turn = (Reverse(park.priority), park.since, park.token);
        self.add(park.request, turn, home, None, labels);
    }

    /// Adds a copy of a bundle.
    pub(crate) fn watch(&mut self, watch: Watch, labels: &LabelIndex) {
        let turn = (Reverse(watch.priority), watch.since, watch.token);
        self.add(watch.request, turn, false, Some(Vec::new()), labels);
    }

    fn add(
        &mut self,
        request: PlacementRequest,
        turn: Turn,
        home: bool,
        bundle: Option<Vec<NodeId>>,
        labels: &LabelIndex,
    ) {
        assert!(bundle.is_none() || !home, "{:?} is a bundle and counted as a request", turn.2);
        let shape = shape_of(&request);
        let hash = shape_hash(&shape);
        let same = self.by_hash.get(&hash).map_or(&[][..], Vec::as_slice);
        let known = same.iter().copied().find(|&at| self.shapes[at].request == shape);
        let at = known.unwrap_or_else(|| self.make(shape, hash, labels));
        self.shapes[at].copies += 1;
        if home {
            self.shapes[at].count_home(turn);
        }
        self.arm(at, turn);
        let copy = Copy { request, shape: at, turn, home, under_way: None, bundle };
        let before = self.copies.insert(turn.2, copy);
        assert!(before.is_none(), "{:?} is parked twice", turn.2);
    }

    /// Creates a shape without copies.
    fn make(&mut self, request: PlacementRequest, hash: u64, labels: &LabelIndex) -> usize {
        self.made += 1;
        let shape = Shape {
            number: self.made,
            asked: asked(&ResourceVector::asked(&request.demand)),
            filed: Filed::of(&request, |term| labels.count(term)),
            request,
            hash,
            armed: BTreeSet::new(),
            copies: 0,
            homes: 0,
            homes_by_priority: BTreeMap::new(),
            home: Home::default(),
        };
        assert!(shape.filed.files() > 0, "each shape is found by a file");
        self.filed += shape.filed.files();
        let at = self.shapes.insert(shape);
        self.by_hash.entry(hash).or_default().push(at);
        self.places = self.places.max(at + 1);
        assert!(self.shapes.len() <= self.places, "a shape is beyond the last place");
        let shape = &self.shapes[at];
        self.files.insert(&shape.filed, &shape.asked, at, shape.summary());
        at
    }

    /// Notes that a copy waits to be woken.
    fn arm(&mut self, at: usize, turn: Turn) {
        let shape = &mut self.shapes[at];
        shape.armed.insert(turn);
        assert!(shape.armed.len() <= shape.copies, "more copies are armed than there are");
        self.follow_armed(at, turn);
    }

    /// Notes that a copy no longer waits to be woken.
    fn disarm(&mut self, at: usize, turn: Turn) {
        if self.shapes[at].armed.remove(&turn) {
            self.follow_armed(at, turn);
        }
    }

    /// Updates the files of a shape if `turn` may have changed its first turn.
    fn follow_armed(&mut self, at: usize, turn: Turn) {
        let shape = &self.shapes[at];
        if shape.armed.first().is_none_or(|&first| first >= turn) {
            self.files.refresh(&shape.filed, &shape.asked, at, shape.summary());
        }
    }

    fn remove(&mut self, token: WaitToken) -> Option<Copy> {
        let copy = self.copies.remove(&token)?;
        self.disarm(copy.shape, copy.turn);
        let shape = &mut self.shapes[copy.shape];
        shape.copies -= 1;
        if copy.home {
            shape.forget_home(copy.turn);
        }
        assert!(shape.armed.len() <= shape.copies, "a copy that was removed is still armed");
        assert!(shape.homes <= shape.copies as u64, "a request is counted without a copy");
        if shape.copies == 0 {
            self.unmake(copy.shape);
        }
        Some(copy)
    }

    fn unmake(&mut self, at: usize) {
        let mut shape = self.shapes.remove(at);
        assert!(
            shape.armed.is_empty() && shape.homes == 0 && shape.homes_by_priority.is_empty(),
            "a shape without copies has no turns and no homes"
        );
        self.files.remove(&shape.filed, &shape.asked, at);
        self.filed -= shape.filed.files();
        self.homes.forget(at, &mut shape.home);
        let same = self.by_hash.get_mut(&shape.hash).expect("every shape is found by its hash");
        let others = same.len() - 1;
        same.retain(|&known| known != at);
        assert!(same.len() == others, "a shape is found {} times by its hash", 1 + others - same.len());
        if same.is_empty() {
            self.by_hash.remove(&shape.hash);
        }
        if self.shapes.is_empty() {
            assert!(self.filed == 0 && self.by_hash.is_empty(), "a shape is found that is gone");
            self.places = 0;
        }
    }

    /// Returns the number of shapes ever created.
    pub(crate) fn made(&self) -> u64 {
        self.made
    }

    /// Returns an upper bound of the shape indexes. Some below it may be unused.
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    /// Returns the first turn of a shape that is not before `from`, and its request, if `offer` may hold it.
    pub(crate) fn armed_within(
        &self,
        at: usize,
        from: Turn,
        offer: &Offer,
    ) -> Option<(Turn, &PlacementRequest)> {
        let shape = self.shapes.get(at)?;
        let turn = shape.next(from)?;
        offer.may_hold(&shape.summary()).then_some((turn, &shape.request))
    }

    /// Reports the bytes of the copies and their shapes. Excludes what a request points to (custom amounts,
    /// selectors, candidates), which its port and its shape share.
    pub(crate) fn memory(&self, mut add: impl FnMut(&'static str, u64)) {
        let queues = self.put_off.memory()
            + memory::of_map(&self.bundles)
            + self.bundles_bytes()
            + (self.open.capacity() * size_of::<(Turn, usize)>()) as u64;
        add("waiting requests", memory::of_map(&self.copies) + memory::of_vec(&self.woken) + queues);
        let shapes = (self.shapes.capacity() * size_of::<Option<Shape>>()) as u64;
        let of_shape = |shape: &Shape| {
            let homes = memory::of_btree(shape.homes_by_priority.len(), size_of::<(i32, u64)>());
            homes + memory::of_btree(shape.armed.len(), size_of::<Turn>())
        };
        let armed: u64 = self.shapes.iter().map(|(_, shape)| of_shape(shape)).sum();
        let same: u64 = self.by_hash.values().map(memory::of_vec).sum();
        let tables = memory::of_map(&self.by_hash) + same + self.files.memory() + self.homes.memory();
        add("shapes of waiting requests", shapes + armed + tables);
    }

    /// Wakes a copy for the room of `node`.
    fn wake(&mut self, turn: Turn, node: NodeId) {
        let copy = self.copies.get_mut(&turn.2).expect("an armed copy is parked");
        assert!(copy.under_way.is_none(), "a copy is woken for one node at a time");
        copy.under_way = Some(node);
        let at = copy.shape;
        self.disarm(at, turn);
        if !is_planted(PlantedBug::WakeUpForgotten) {
            self.woken.push(turn.2);
        }
    }
}

impl Waiting {
    /// Wakes copies that the node in `slot` could hold, because it has more available.
    pub(crate) fn wake_for(&mut self, books: &Books, slot: Slot) {
        self.node_grew(books.nodes.hot(slot).id);
        self.offer(books, slot, FIRST);
    }

    /// Wakes copies that the node in `slot` could hold with what it has available, in order from the turn `from`
    /// on.
    fn offer(&mut self, books: &Books, slot: Slot, from: Turn) {
        if self.is_empty() || !books.nodes.takes_work(slot) {
            return;
        }
        let node = books.nodes.hot(slot).id;
        let mut open = std::mem::take(&mut self.open);
        open.clear();
        let cold = books.nodes.cold(slot);
        let labels = &cold.registration.spec.labels;
        let having = Having { node, labels, kinds: &mut cold.custom.iter().map(|book| book.id) };
        let files = self.files.open_for(having, &mut open);
        let looks_max = self.wake_looks;
        let mut left = looks_max;
        let (woken, is_through) = self.wake_in_turn(books, slot, from, &mut open, &mut left);
        assert!(woken <= WOKEN_PER_EVENT_MAX && left <= looks_max, "an event does bounded work");
        self.looked_at += files + looks_max - left;
        self.open = open;
        if woken == 0 && !is_through {
            self.put_off.put_off(node, from);
        } else if from == FIRST {
            // The remaining shapes have their turn when the copies under way are answered.
            self.put_off.settle(node);
        }
    }

    /// Wakes the copies that fit the node in `slot`, among those below the open vertices. Returns how many, and
    /// whether the search was completed. It is not completed if it needs more than `looks` vertices.
    fn wake_in_turn(
        &mut self,
        books: &Books,
        slot: Slot,
        from: Turn,
        open: &mut Open,
        looks: &mut u64,
    ) -> (usize, bool) {
        if open.is_empty() {
            return (0, true);
        }
        let mut offer = Offer::of(books, slot);
        // Each copy takes a place of the node. A copy that does not need it passes it to the next.
        let places = books.nodes.room(slot).places;
        let most = WOKEN_PER_EVENT_MAX.min(usize::try_from(places).unwrap_or(0));
        assert!(most > 0, "a node without a place offers room");
        let mut woken = 0;
        while let Some(Reverse((turn, vertex))) = open.pop() {
            if *looks == 0 {
                return (woken, false);
            }
            *looks -= 1;
            let (summary, below) = self.files.vertex(vertex);
            if !offer.may_hold(summary) {
                continue;
            }
            let at = match below {
                Below::Two(two) => {
                    two.into_iter().for_each(|vertex| self.files.open(vertex, open));
                    continue;
                }
                Below::Shape(at) => at,
            };
            let shape = &self.shapes[at];
            let Some(next) = shape.next(from) else { continue };
            if next > turn {
                // The first copies of this shape had their turn. Other shapes may come before its next copy.
                open.push(Reverse((next, vertex)));
                continue;
            }
            match self.wake_if_it_fits(books, slot, &mut offer, (turn, at)) {
                Wake::Woken => woken += 1,
                Wake::UnderWay => {}
                Wake::DoesNotFit => continue,
                Wake::Blocked => return (woken, true),
            }
            if woken == most {
                return (woken, true);
            }
            if let Some(next) = self.shapes[at].next(following(turn)) {
                open.push(Reverse((next, vertex)));
            }
        }
        (woken, true)
    }

    /// Wakes the copies of `fitting` that still fit together. Returns how many, and counts copies that are under way or
    /// that others under way block.
    pub(crate) fn wake_of(
        &mut self,
        books: &Books,
        slot: Slot,
        mut offer: Offer,
        fitting: &BTreeSet<(Turn, usize)>,
    ) -> usize {
        assert!(fitting.len() <= PUT_OFF_KEPT, "more shapes are kept than may be");
        let most = usize::try_from(books.nodes.room(slot).places).unwrap_or(0);
        let mut woken = 0;
        for &(turn, at) in fitting {
            if woken == most {
                break;
            }
            let is_armed = |shape: &&Shape| shape.armed.contains(&turn);
            if self.shapes.get(at).filter(is_armed).is_none() {
                continue;
            }
            match self.wake_if_it_fits(books, slot, &mut offer, (turn, at)) {
                Wake::Woken | Wake::UnderWay => woken += 1,
                Wake::DoesNotFit => {}
                Wake::Blocked => return woken + 1,
            }
            // Only one copy of each shape was looked for.
            self.block_next(books.nodes.hot(slot).id, turn, at);
        }
        if fitting.len() == PUT_OFF_KEPT
            && let Some(&(last, _)) = fitting.last()
        {
            // Shapes after these were not kept.
            self.block_from(books.nodes.hot(slot).id, following(last));
        }
        woken
    }

    /// Replaces the bound [`WAKE_LOOKS_MAX`], so that tests reach it with few requests.
    pub(crate) fn set_wake_looks(&mut self, looks_max: u64) {
        assert!(looks_max > 0, "without a look, nothing would ever be woken");
        self.wake_looks = looks_max;
    }

    /// Returns the nodes for whose room a copy is under way.
    pub(crate) fn woken_for(&self, token: WaitToken) -> &[NodeId] {
        let Some(copy) = self.copies.get(&token) else { return &[] };
        copy.bundle.as_deref().unwrap_or(copy.under_way.as_slice())
    }

    /// Returns the copies woken since the last call, in order.
    pub(crate) fn drain_woken(&mut self) -> std::vec::Drain<'_, WaitToken> {
        self.woken.drain(..)
    }

    /// Checks that no copy waits although it fits, and that the shapes match the copies.
    pub(crate) fn check(&self, books: &Books) -> Result<(), Broken> {
        let waiting = self;
        let copies: usize = waiting.shapes.iter().map(|(_, shape)| shape.copies).sum();
        let armed: usize = waiting.shapes.iter().map(|(_, shape)| shape.armed.len()).sum();
        let mut under_way: Vec<NodeId> = waiting.copies.values().filter_map(|copy| copy.under_way).collect();
        if copies != waiting.copies.len() || armed + under_way.len() != copies {
            return Err(broken!(
                "{copies} waiting copies in shapes, {armed} armed, {} in all",
                waiting.copies.len()
            ));
        }
        let of_priorities = |shape: &Shape| shape.homes_by_priority.values().sum::<u64>();
        if waiting.shapes.iter().any(|(_, shape)| of_priorities(shape) != shape.homes) {
            return Err(broken!("waiting requests are counted that have no priority"));
        }
        under_way.extend(waiting.bundles.keys());
        waiting.files.check(waiting.filed)?;
        waiting.put_off.check()?;
        waiting.check_bundles()?;
        for (slot, hot, _) in books.nodes.iter() {
            let is_ready = books.nodes.state(slot) == NodeState::Ready;
            if !is_ready || under_way.contains(&hot.id) || waiting.put_off.is_open(hot.id) {
                continue;
            }
            let of_request = |turn: &Turn| waiting.copies[&turn.2].bundle.is_none();
            let missed = waiting
                .shapes
                .iter()
                .find(|(_, shape)| shape.armed.iter().any(of_request) && admits(books, slot, &shape.request));
            if let Some((_, shape)) = missed {
                return Err(broken!("{:?} waits although it fits node {}", shape.armed.first(), hot.id));
            }
        }
        Ok(())
    }
}

/// Returns the turn after `turn`.
fn following((priority, since, token): Turn) -> Turn {
    (priority, since, WaitToken { number: token.number + 1, ..token })
}

/// Returns whether the node could take `request` now. This must match exactly a placement that names only this
/// node. Otherwise a copy could be woken repeatedly without success.
fn admits(books: &Books, slot: Slot, request: &PlacementRequest) -> bool {
    let own = books.own(slot, request.owner);
    books.fits(slot, own, &request.demand) && Eligible::computed(&books.nodes, request).allows(slot)
}
