//! The least fragmented placement of each request shape, found without looking at every node.
//!
//! Per shape that was asked lately a *short list* is kept: the best nodes, and a bound such that
//! every node that did not change since and is not on the list is no better than the bound. When
//! the shape is asked again, only the nodes that changed in between are rated. The list is made
//! anew from all nodes only when it runs empty below its bound: about once in as many placements
//! as it is long.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{BuildHasher as _, BuildHasherDefault};
use std::sync::Arc;

use super::Weighing;
use super::measure::Measure;
use super::standing::{Nodes, Standing, Standings};
use super::typical::TypicalShapes;
use crate::ids::Ordinal;
use crate::index::{Slot, Visits};
use crate::limits::{MEASURES_KEPT, SHORT_LIST_NODES, SHORT_LISTS_MAX};
use crate::map::FixedMap;
use crate::node::Selector;
use crate::request::PlacementRequest;
use crate::resource::{Demand, GpuAssignment, GpuRequest};

/// Lower is better; of equal cost the node registered first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rating {
    cost: i64,
    ordinal: Ordinal,
}

/// A node on a short list, as of one of its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rated {
    rating: Rating,
    slot: Slot,
    change: u64,
}

struct ShortList {
    weighing: Weighing,
    demand: Demand,
    selector: Option<Arc<Selector>>,
    /// The last change that it knows of.
    seen: u64,
    used: u64,
    /// Where it ends; none: every node that fits is on it.
    bound: Option<Rating>,
    best: BinaryHeap<Reverse<Rated>>,
}

/// U after a placement by GPU state, cpu class left and request: a direct-mapped table.
struct Memo(Box<[(u64, i64)]>);

impl Memo {
    fn new() -> Self {
        Self(vec![(0, 0); MEASURES_KEPT].into())
    }

    fn clear(&mut self) {
        self.0.fill((0, 0));
    }

    #[inline]
    fn get(&mut self, key: u64, compute: impl FnOnce() -> i64) -> i64 {
        const SHIFT: u32 = u64::BITS - MEASURES_KEPT.trailing_zeros();
        let place = &mut self.0[(key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> SHIFT) as usize];
        if place.0 != key {
            *place = (key, compute());
        }
        place.1
    }
}

/// All short lists, and what they are made from.
pub(super) struct Search {
    measure: Measure,
    standings: Standings,
    memo: Memo,
    lists: Vec<ShortList>,
    by_hash: FixedMap<u64, usize>,
    uses: u64,
    scratch: Vec<Rated>,
}

fn shape_hash(weighing: Weighing, demand: &Demand, selector: Option<&Selector>) -> u64 {
    let hasher = BuildHasherDefault::<rustc_hash::FxHasher>::default();
    hasher.hash_one((weighing, demand, selector.map(Selector::hash)))
}

impl Search {
    pub(super) fn new() -> Self {
        Self {
            measure: Measure::new(&TypicalShapes::default()),
            standings: Standings::default(),
            memo: Memo::new(),
            lists: Vec::new(),
            by_hash: FixedMap::default(),
            uses: 0,
            scratch: Vec::new(),
        }
    }

    /// Takes another measure: every list and every result is of the old one.
    pub(super) fn remeasure(&mut self, measure: Measure, nodes: &impl Nodes) {
        self.measure = measure;
        self.standings.restart(nodes);
        self.memo.clear();
        self.lists.clear();
        self.by_hash.clear();
    }

    pub(super) fn standings_mut(&mut self) -> &mut Standings {
        &mut self.standings
    }

    pub(super) fn refresh(&mut self, nodes: &impl Nodes) {
        if self.standings.refresh(&self.measure, nodes) {
            self.memo.clear();
        }
    }

    /// The best of few named slots.
    pub(super) fn best_of(
        &mut self,
        ask: &Ask<'_>,
        slots: &[Slot],
        accept: impl Fn(Slot) -> bool,
        visits: &mut Visits,
    ) -> Option<Slot> {
        let (measure, standings) = (&self.measure, &self.standings);
        let mut rater = Rater { measure, standings, memo: &mut self.memo, ask };
        let rated = slots.iter().filter_map(|&slot| {
            visits.nodes += 1;
            let standing = self.standings.of(slot)?;
            (standing.covers(ask.demand()) && accept(slot)).then(|| rater.rate(standing))
        });
        rated.min().map(|rated| rated.slot)
    }

    /// The best of all nodes that `accept` accepts, which must depend on nothing but the request
    /// and what a change of a node is told of.
    pub(super) fn best(
        &mut self,
        ask: &Ask<'_>,
        accept: impl Fn(Slot) -> bool,
        visits: &mut Visits,
    ) -> Option<Slot> {
        let at = self.keep(ask);
        let (list, standings) = (&mut self.lists[at], &self.standings);
        let mut rater = Rater { measure: &self.measure, standings, memo: &mut self.memo, ask };
        let mut bound = rater.limit(list.bound);
        for standing in standings.since(list.seen) {
            visits.nodes += 1;
            if let Some(rated) = rater.within(&bound, standing, &accept) {
                list.best.push(Reverse(rated));
            }
        }
        list.seen = standings.last_change();
        loop {
            if let Some(slot) = list.first(standings) {
                if list.best.len() > 4 * SHORT_LIST_NODES {
                    list.purge(standings, &mut self.scratch);
                }
                return Some(slot);
            }
            list.bound?;
            // Everything that fits, from the best on; `scratch` is cut back whenever it is long.
            list.bound = None;
            bound = rater.limit(None);
            self.scratch.clear();
            for standing in standings.since(0) {
                visits.nodes += 1;
                self.scratch.extend(rater.within(&bound, standing, &accept));
                if self.scratch.len() >= 4 * SHORT_LIST_NODES {
                    list.bound = cut(&mut self.scratch);
                    bound = rater.limit(list.bound);
                }
            }
            if self.scratch.len() > SHORT_LIST_NODES {
                list.bound = cut(&mut self.scratch);
            }
            list.best.extend(self.scratch.drain(..).map(Reverse));
            if list.best.is_empty() {
                return None;
            }
        }
    }

    /// The short list of what is asked; an empty one if there is none.
    fn keep(&mut self, ask: &Ask<'_>) -> usize {
        self.uses += 1;
        let hash = shape_hash(ask.weighing, ask.demand(), ask.request.selector.as_deref());
        if let Some(&at) = self.by_hash.get(&hash)
            && self.lists[at].is_of(ask)
        {
            self.lists[at].used = self.uses;
            return at;
        }
        let list = ShortList {
            weighing: ask.weighing,
            demand: ask.demand().clone(),
            selector: ask.request.selector.clone(),
            seen: self.standings.last_change(),
            used: self.uses,
            // Below every node: the list is filled before it is read.
            bound: Some(Rating { cost: i64::MIN, ordinal: Ordinal(0) }),
            best: BinaryHeap::new(),
        };
        let longest_unused = || (0..self.lists.len()).min_by_key(|&at| self.lists[at].used);
        let same_hash = self.by_hash.get(&hash).copied();
        let full = self.lists.len() >= SHORT_LISTS_MAX;
        let place = same_hash.or_else(|| if full { longest_unused() } else { None });
        let at = place.unwrap_or(self.lists.len());
        if let Some(old) = self.lists.get_mut(at) {
            let old = std::mem::replace(old, list);
            self.by_hash.remove(&old.hash());
        } else {
            self.lists.push(list);
        }
        self.by_hash.insert(hash, at);
        at
    }

    /// The instances that a request takes on the node that was found for it.
    pub(super) fn instances(&self, ask: &Ask<'_>, slot: Slot, nodes: &impl Nodes) -> Option<GpuAssignment> {
        let standing = self.standings.of(slot)?;
        let room = nodes.room(slot)?;
        let left = self.measure.cpu_class(standing.cpu.minus(ask.demand().cpu));
        let gpus = self.standings.state(standing.state);
        self.measure.instances(room.gpus, gpus, standing.usable, left, ask.demand().gpu, ask.weighing)
    }
}

/// What is asked.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) weighing: Weighing,
    pub(super) request: &'a PlacementRequest,
}

impl<'a> Ask<'a> {
    fn demand(&self) -> &'a Demand {
        &self.request.demand
    }
}

/// Where a list ends, and the least fall of F that a rating below it can have.
struct Limit {
    bound: Option<Rating>,
    least_fall: i64,
}

struct Rater<'a> {
    measure: &'a Measure,
    standings: &'a Standings,
    memo: &'a mut Memo,
    ask: &'a Ask<'a>,
}

impl Rater<'_> {
    fn limit(&self, bound: Option<Rating>) -> Limit {
        let least_fall = match (bound, self.ask.weighing) {
            (Some(bound), Weighing::Steps) => self.measure.least_fall(bound.cost),
            _ => i64::MIN,
        };
        Limit { bound, least_fall }
    }

    /// How much F falls, times the sum of counts, if the request goes to a node that it fits.
    #[inline]
    fn fall(&mut self, standing: &Standing) -> i64 {
        let demand = self.ask.demand();
        let left = self.measure.cpu_class(standing.cpu.minus(demand.cpu));
        let code = match demand.gpu {
            GpuRequest::None => 0,
            GpuRequest::Fraction(part) => u64::from(part),
            GpuRequest::Whole(count) => u64::from(u16::MAX) + u64::from(count),
        };
        // The class is below 2^8, the code below 2^17: no two keys are equal, and none is zero.
        let key = (u64::from(standing.state) + 1) << 32 | code << 8 | u64::from(left);
        let (measure, standings) = (self.measure, self.standings);
        let after =
            self.memo.get(key, || measure.usable_after(standings.state(standing.state), left, demand.gpu));
        measure.fall(demand.gpu, standing.usable, after)
    }

    fn cost(&self, standing: &Standing, fall: i64) -> i64 {
        match self.ask.weighing {
            Weighing::Steps => -i64::from(self.measure.score(fall)),
            Weighing::Stranding => {
                let demand = self.ask.demand();
                let left = standing.idle - demand.gpu.amount().units();
                let stranded = self.measure.stranded(standing.cpu.minus(demand.cpu), left);
                self.measure.cost(fall, stranded - standing.stranded, left)
            }
        }
    }

    /// The rating of a node that the request fits.
    fn rate(&mut self, standing: &Standing) -> Rated {
        let fall = self.fall(standing);
        let rating = Rating { cost: self.cost(standing, fall), ordinal: standing.ordinal };
        Rated { rating, slot: standing.slot, change: standing.change }
    }

    /// The rating of a node that the request fits, if it is below the limit.
    #[inline]
    fn within(&mut self, limit: &Limit, standing: &Standing, accept: impl Fn(Slot) -> bool) -> Option<Rated> {
        if !standing.covers(self.ask.demand()) {
            return None;
        }
        let fall = self.fall(standing);
        if fall < limit.least_fall {
            return None;
        }
        let rating = Rating { cost: self.cost(standing, fall), ordinal: standing.ordinal };
        let below = limit.bound.is_none_or(|bound| rating < bound) && accept(standing.slot);
        below.then_some(Rated { rating, slot: standing.slot, change: standing.change })
    }
}

impl ShortList {
    fn is_of(&self, ask: &Ask<'_>) -> bool {
        self.weighing == ask.weighing && self.demand == *ask.demand() && self.selector == ask.request.selector
    }

    fn hash(&self) -> u64 {
        shape_hash(self.weighing, &self.demand, self.selector.as_deref())
    }

    /// The best node that did not change since it was rated.
    fn first(&mut self, standings: &Standings) -> Option<Slot> {
        while let Some(Reverse(rated)) = self.best.peek() {
            if is_current(rated, standings) {
                return Some(rated.slot);
            }
            self.best.pop();
        }
        None
    }

    /// Takes out what is stale, and the worst of the rest if that is still many.
    fn purge(&mut self, standings: &Standings, scratch: &mut Vec<Rated>) {
        scratch.clear();
        scratch.extend(self.best.drain().map(|Reverse(rated)| rated));
        scratch.retain(|rated| is_current(rated, standings));
        if scratch.len() > 2 * SHORT_LIST_NODES {
            self.bound = cut(scratch);
        }
        self.best.extend(scratch.drain(..).map(Reverse));
    }
}

fn is_current(rated: &Rated, standings: &Standings) -> bool {
    standings.of(rated.slot).is_some_and(|standing| standing.change == rated.change)
}

/// Keeps the best of more than a short list's nodes; the best rating that was left out.
fn cut(rated: &mut Vec<Rated>) -> Option<Rating> {
    let (_, first_out, _) = rated.select_nth_unstable(SHORT_LIST_NODES);
    let bound = first_out.rating;
    rated.truncate(SHORT_LIST_NODES);
    Some(bound)
}
