//! Finds the least fragmented placement of a request shape without examining every node.
//!
//! For each recently requested shape, a *short list* is kept. It consists of the best nodes and a bound.
//! Every unchanged node that is not on the list is no better than the bound. When the shape is requested
//! again, only nodes that changed since are rated. The list is rebuilt from all nodes only when it runs empty
//! below its bound. This happens about once in as many placements as the list is long.
//!
//! The cost of a node depends only on cpu and GPUs. Shapes that differ in memory or selector therefore share
//! a *common* list, and the best node on it with enough memory and matching labels is the answer. If there is
//! none, or if nodes are ordered by rank first, the request has its own list.

use super::Weighing;
use super::lists::{Ask, Breadth, Listed, Rated, Rating, ShortList, Subject, cut};
use super::measure::Measure;
use super::standing::{Nodes, Standing, Standings};
use super::typical::TypicalShapes;
use crate::index::{Slot, Visits};
use crate::limits::{MEASURES_KEPT, SHORT_LIST_NODES, SHORT_LISTS_MAX};
use crate::lru::Lru;
use crate::memory;
use crate::request::Rank;
use crate::resource::{GpuAssignment, GpuRequest};

/// U after a placement, by GPU state, remaining cpu class and request. A direct-mapped cache.
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

/// All short lists, and the data they are built from.
pub(super) struct Search {
    measure: Measure,
    standings: Standings,
    memo: Memo,
    lists: Lru<ShortList, SHORT_LISTS_MAX>,
    scratch: Vec<Rated>,
}

impl Search {
    /// Returns the bytes taken per node.
    pub(super) fn standings_memory(&self) -> u64 {
        self.standings.memory()
    }

    /// Returns the bytes taken by the measure, its cached results and the short lists.
    pub(super) fn tables_memory(&self) -> u64 {
        let lists = self.lists.iter().map(ShortList::memory).sum::<u64>() + self.lists.bytes();
        let remembered = size_of_val(&*self.memo.0) as u64;
        self.measure.memory() + remembered + lists + memory::of_vec(&self.scratch)
    }

    pub(super) fn new() -> Self {
        Self {
            measure: Measure::new(&TypicalShapes::default()),
            standings: Standings::default(),
            memo: Memo::new(),
            lists: Lru::default(),
            scratch: Vec::new(),
        }
    }

    /// Replaces the measure. All lists and results of the old one are dropped.
    pub(super) fn remeasure(&mut self, measure: Measure, nodes: &impl Nodes) {
        self.measure = measure;
        self.standings.restart(nodes);
        self.memo.clear();
        self.lists.clear();
    }

    pub(super) fn standings_mut(&mut self) -> &mut Standings {
        &mut self.standings
    }

    pub(super) fn refresh(&mut self, nodes: &impl Nodes) {
        if self.standings.refresh(&self.measure, nodes) {
            self.memo.clear();
        }
    }

    /// Returns the best of a few named slots.
    pub(super) fn best_of(
        &mut self,
        ask: &Ask<'_>,
        slots: &[Slot],
        accept: impl Fn(Slot) -> Option<Rank>,
        visits: &mut Visits,
    ) -> Option<Slot> {
        let measure = &self.measure;
        let standings = &self.standings;
        let mut rater = Rater { measure, standings, memo: &mut self.memo, ask };
        let rated = slots.iter().filter_map(|&slot| {
            visits.nodes += 1;
            let standing = self.standings.of(slot)?;
            let rank = standing.covers(ask.demand()).then(|| accept(slot)).flatten()?;
            Some(rater.rate(standing, rank))
        });
        rated.min().map(|rated| rated.slot)
    }

    /// Updates a list and returns its answer.
    ///
    /// `Below` means that the list ends before all nodes are covered. A request's own list never returns it.
    /// For an own list, `accept` may depend only on the request's demand, selector and preferences, and on
    /// node properties whose changes are reported. For a common list it may depend on anything.
    pub(super) fn listed(
        &mut self,
        ask: &Ask<'_>,
        breadth: Breadth,
        accept: &impl Fn(Slot) -> Option<Rank>,
        visits: &mut Visits,
    ) -> Listed {
        let at = self.keep(ask, breadth);
        let list = self.lists.at_mut(at);
        let standings = &self.standings;
        let demand = ask.demand();
        let mut rater = Rater { measure: &self.measure, standings, memo: &mut self.memo, ask };
        let joins = |standing: &Standing| match breadth {
            Breadth::Common => standing.covers_but_memory(demand).then_some(Rank::EQUAL),
            Breadth::Own => standing.covers(demand).then(|| accept(standing.slot)).flatten(),
        };
        // Every current node on an own list was accepted when it was rated.
        let chosen = |standing: &Standing| match breadth {
            Breadth::Common => demand.memory <= standing.memory && accept(standing.slot).is_some(),
            Breadth::Own => true,
        };
        let mut limit = rater.limit(list.bound);
        for standing in standings.since(list.seen) {
            visits.nodes += 1;
            if let Some(rated) = rater.within(&limit, standing, joins) {
                list.push(rated);
            }
        }
        list.seen = standings.last_change();
        list.purge(standings, &mut self.scratch);
        loop {
            match list.first(standings, &mut visits.nodes, chosen) {
                Listed::Empty if list.bound.is_some() => {}
                Listed::Below if list.bound.is_none() => return Listed::Empty,
                said => return said,
            }
            // Rate all covered nodes again. `scratch` is truncated whenever it gets long.
            list.bound = None;
            limit = rater.limit(None);
            self.scratch.clear();
            for standing in standings.since(0) {
                visits.nodes += 1;
                self.scratch.extend(rater.within(&limit, standing, joins));
                if self.scratch.len() >= 4 * SHORT_LIST_NODES {
                    list.bound = cut(&mut self.scratch);
                    limit = rater.limit(list.bound);
                }
            }
            if self.scratch.len() > SHORT_LIST_NODES {
                list.bound = cut(&mut self.scratch);
            }
            list.extend(self.scratch.drain(..));
        }
    }

    /// Returns the index of the short list for a request, and creates an empty list if there is none.
    fn keep(&mut self, ask: &Ask<'_>, breadth: Breadth) -> usize {
        let subject = Subject::of(ask, breadth);
        let hash = subject.hash();
        self.lists.find(hash, |list| list.subject == subject).unwrap_or_else(|| {
            let list = ShortList::new(subject, self.standings.last_change());
            self.lists.insert(hash, list).0
        })
    }

    /// Returns the instances that a request takes on the node that was found for it.
    pub(super) fn instances(&self, ask: &Ask<'_>, slot: Slot, nodes: &impl Nodes) -> Option<GpuAssignment> {
        let standing = self.standings.of(slot)?;
        let room = nodes.room(slot)?;
        let left = self.measure.cpu_class(standing.cpu.minus(ask.demand().cpu));
        let gpus = self.standings.state(standing.state);
        self.measure.instances(room.gpus, gpus, standing.usable, left, ask.demand().gpu, ask.weighing)
    }
}

/// The bound of a list, and the smallest fall of F that a rating better than the bound can have.
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

    /// Returns the fall of F, times the sum of counts, if the request is placed on a node that it fits.
    #[inline]
    fn fall(&mut self, standing: &Standing) -> i64 {
        let demand = self.ask.demand();
        let left = self.measure.cpu_class(standing.cpu.minus(demand.cpu));
        let code = match demand.gpu {
            GpuRequest::None => 0,
            GpuRequest::Fraction(part) => u64::from(part),
            GpuRequest::Whole(count) => u64::from(u16::MAX) + u64::from(count),
        };
        // The class is below 2^8 and the code below 2^17, so keys are unique and never zero.
        let key = (u64::from(standing.state) + 1) << 32 | code << 8 | u64::from(left);
        let measure = self.measure;
        let standings = self.standings;
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

    fn rating(&self, standing: &Standing, fall: i64, rank: Rank) -> Rated {
        let rating = Rating { rank, cost: self.cost(standing, fall), ordinal: standing.ordinal };
        Rated { rating, slot: standing.slot, change: standing.change }
    }

    /// Returns the rating of a node that the request fits.
    fn rate(&mut self, standing: &Standing, rank: Rank) -> Rated {
        let fall = self.fall(standing);
        self.rating(standing, fall, rank)
    }

    /// Returns the rating of a node that joins a list, if it is better than the limit.
    #[inline]
    fn within(
        &mut self,
        limit: &Limit,
        standing: &Standing,
        joins: impl Fn(&Standing) -> Option<Rank>,
    ) -> Option<Rated> {
        let rank = joins(standing)?;
        let Some(bound) = limit.bound else { return Some(self.rate(standing, rank)) };
        if rank > bound.rank {
            return None;
        }
        let fall = self.fall(standing);
        if fall < limit.least_fall && rank == bound.rank {
            return None;
        }
        let rated = self.rating(standing, fall, rank);
        (rated.rating < bound).then_some(rated)
    }
}
