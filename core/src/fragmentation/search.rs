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

use super::lists::{Ask, Breadth, Listed, Rated, ShortList, Subject, cut};
use super::measure::Measure;
use super::rater::{Memo, Rater};
use super::standing::{Nodes, Standing, Standings};
use super::typical::TypicalShapes;
use crate::index::{Slot, Visits};
use crate::limits::{SHORT_LIST_NODES, SHORT_LISTS_MAX};
use crate::lru::Lru;
use crate::memory;
use crate::request::Rank;
use crate::resource::GpuAssignment;

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
        self.measure.memory() + self.memo.memory() + lists + memory::of_vec(&self.scratch)
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
        self.standings.remeasure(&measure, nodes);
        self.measure = measure;
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
        let standings = &self.standings;
        let mut rater = Rater::new(&self.measure, standings, &mut self.memo, ask);
        let needs = rater.needs;
        let rated = slots.iter().filter_map(|&slot| {
            visits.nodes += 1;
            let standing = self.standings.of(slot)?;
            let rank = standing.covers(&needs).then(|| accept(slot)).flatten()?;
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
        let mut rater = Rater::new(&self.measure, standings, &mut self.memo, ask);
        let needs = rater.needs;
        let joins = |standing: &Standing| match breadth {
            Breadth::Common => standing.covers_but_memory(&needs).then_some(Rank::EQUAL),
            Breadth::Own => standing.covers(&needs).then(|| accept(standing.slot)).flatten(),
        };
        // Every current node on an own list was accepted when it was rated.
        let chosen = |standing: &Standing| match breadth {
            Breadth::Common => needs.memory <= standing.memory && accept(standing.slot).is_some(),
            Breadth::Own => true,
        };
        let mut limit = rater.limit(list.bound);
        for standing in standings.since(list.seen) {
            visits.nodes += u64::from(standing.is_current());
            if let Some(rank) = joins(standing)
                && let Some(rated) = rater.within(&limit, standing, rank)
            {
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
            visits.nodes += standings.len();
            for standing in standings.all() {
                let Some(rank) = joins(standing) else { continue };
                let Some(rated) = rater.within(&limit, standing, rank) else { continue };
                self.scratch.push(rated);
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
        let left = self.measure.cpu_class(standing.cpu - ask.demand().cpu.units());
        let gpus = self.standings.state(standing.state);
        self.measure.instances(room.gpus, gpus, standing.usable, left, ask.demand().gpu, ask.weighing)
    }
}
