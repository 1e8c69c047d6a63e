//! Short lists: the best nodes for frequent requests, and the rating at which each list ends.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::hash::{BuildHasher as _, BuildHasherDefault};
use std::sync::Arc;

use super::Weighing;
use super::standing::{Standing, Standings};
use crate::ids::Ordinal;
use crate::index::Slot;
use crate::limits::SHORT_LIST_NODES;
use crate::node::Selector;
use crate::request::{PlacementRequest, Preferences, Rank, RankRules};
use crate::resource::{Amount, CustomAmounts, Demand, GpuRequest};

/// A request as the search sees it.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) weighing: Weighing,
    pub(super) request: &'a PlacementRequest,
    /// True if nodes are ordered by rank first.
    pub(super) ranked: bool,
}

impl<'a> Ask<'a> {
    pub(super) fn demand(&self) -> &'a Demand {
        &self.request.demand
    }

    fn preferences(&self) -> Option<&'a Preferences> {
        self.request.preferences.as_deref().filter(|_| self.ranked)
    }
}

/// The set of nodes that a list covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breadth {
    /// Every node with enough cpu and GPUs. Many requests share the best of these nodes. Memory and labels
    /// are checked when the list is asked.
    Common,
    /// Only nodes that the request may use.
    Own,
}

/// A node's rating; lower is better. With equal rank and cost, the node that was registered first is better.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rating {
    pub(super) rank: Rank,
    pub(super) cost: i64,
    pub(super) ordinal: Ordinal,
}

impl Rating {
    /// Better than the rating of any node.
    const BEST: Self = Self { rank: Rank::EQUAL, cost: i64::MIN, ordinal: Ordinal(0) };
}

/// A node on a short list, as of one of its changes. It is compared by its rating.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rated {
    // The fields of a `Rating`, without its padding: lists are sorted often.
    rank: Rank,
    pub(super) slot: Slot,
    cost: i64,
    ordinal: Ordinal,
    change: u64,
}

const _: () = assert!(size_of::<Rated>() == 32, "two ratings are one cache line");

impl Rated {
    pub(super) fn new(rank: Rank, cost: i64, standing: &Standing) -> Self {
        let &Standing { slot, ordinal, change, .. } = standing;
        Self { rank, slot, cost, ordinal, change }
    }

    fn rating(&self) -> Rating {
        Rating { rank: self.rank, cost: self.cost, ordinal: self.ordinal }
    }

    /// Returns cost and ordinal as one number that compares like the pair.
    #[inline]
    fn cost_and_ordinal(&self) -> u128 {
        u128::from(self.cost.cast_unsigned() ^ 1 << 63) << 64 | u128::from(self.ordinal.0)
    }

    fn standing<'a>(&self, standings: &'a Standings) -> Option<&'a Standing> {
        standings.of(self.slot).filter(|standing| standing.change == self.change)
    }
}

impl Ord for Rated {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        if self.rank == other.rank {
            self.cost_and_ordinal().cmp(&other.cost_and_ordinal())
        } else {
            self.rank.cmp(&other.rank)
        }
    }
}

impl PartialOrd for Rated {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Rated {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Rated {}

/// The properties, other than cpu and GPUs, that decide which nodes are on a request's own list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Constraints {
    memory: Amount,
    custom: Option<CustomAmounts>,
    selector: Option<Arc<Selector>>,
    ranked: bool,
    rules: Option<Arc<RankRules>>,
    avoid_gpu: bool,
}

impl Constraints {
    fn of(ask: &Ask<'_>) -> Self {
        let demand = ask.demand();
        let preferences = ask.preferences();
        Self {
            memory: demand.memory,
            custom: demand.custom.clone(),
            selector: ask.request.selector.clone(),
            ranked: ask.ranked,
            rules: preferences.and_then(|preferences| preferences.rules.clone()),
            avoid_gpu: preferences.is_some_and(|preferences| preferences.avoid_gpu),
        }
    }

    fn hash(&self) -> u64 {
        let selector = self.selector.as_ref().map(|selector| selector.hash());
        let rules = self.rules.as_ref().map(|rules| rules.hash());
        hash_of(&(self.memory, &self.custom, selector, self.ranked, rules, self.avoid_gpu))
    }
}

fn hash_of(value: &impl std::hash::Hash) -> u64 {
    BuildHasherDefault::<rustc_hash::FxHasher>::default().hash_one(value)
}

/// The key of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    weighing: Weighing,
    cpu: Amount,
    gpu: GpuRequest,
    /// `None` for a common list.
    constraints: Option<Constraints>,
}

impl Subject {
    pub(super) fn of(ask: &Ask<'_>, breadth: Breadth) -> Self {
        let cpu = ask.demand().cpu;
        let gpu = ask.demand().gpu;
        let constraints = (breadth == Breadth::Own).then(|| Constraints::of(ask));
        Self { weighing: ask.weighing, cpu, gpu, constraints }
    }

    pub(super) fn hash(&self) -> u64 {
        hash_of(&(self.weighing, self.cpu, self.gpu, self.constraints.as_ref().map(Constraints::hash)))
    }
}

/// The best of the nodes that the list covers.
pub(super) struct ShortList {
    pub(super) subject: Subject,
    /// The last change that the list includes.
    pub(super) seen: u64,
    /// The rating at which the list ends. `None` if every covered node is on the list.
    pub(super) bound: Option<Rating>,
    best: BinaryHeap<Reverse<Rated>>,
}

impl ShortList {
    /// Returns the bytes that the list's nodes take.
    pub(super) fn memory(&self) -> u64 {
        (self.best.capacity() * size_of::<Rated>()) as u64
    }
}

/// The answer of a list to a request.
pub(super) enum Listed {
    /// This node is the best that may be chosen.
    Best(Slot),
    /// No node on the list may be chosen, and nothing is known about other nodes.
    Below,
    /// The list contains none of the nodes that it covers.
    Empty,
}

impl ShortList {
    /// Creates a list that must be filled before it is read.
    pub(super) fn new(subject: Subject, seen: u64) -> Self {
        Self { subject, seen, bound: Some(Rating::BEST), best: BinaryHeap::new() }
    }

    pub(super) fn push(&mut self, rated: Rated) {
        self.best.push(Reverse(rated));
    }

    pub(super) fn extend(&mut self, rated: impl Iterator<Item = Rated>) {
        self.best.extend(rated.map(Reverse));
    }

    /// Returns the best node that has not changed since it was rated and that `accept` accepts. `looked_at`
    /// counts the nodes that were passed to `accept`.
    pub(super) fn first(
        &mut self,
        standings: &Standings,
        looked_at: &mut u64,
        accept: impl Fn(&Standing) -> bool,
    ) -> Listed {
        loop {
            let Some(Reverse(first)) = self.best.peek() else { return Listed::Empty };
            let Some(standing) = first.standing(standings) else {
                self.best.pop();
                continue;
            };
            *looked_at += 1;
            if accept(standing) {
                return Listed::Best(first.slot);
            }
            break;
        }
        let mut best: Option<&Rated> = None;
        for Reverse(rated) in &self.best {
            if best.is_none_or(|best| rated < best)
                && let Some(standing) = rated.standing(standings)
            {
                *looked_at += 1;
                if accept(standing) {
                    best = Some(rated);
                }
            }
        }
        best.map_or(Listed::Below, |best| Listed::Best(best.slot))
    }

    /// Removes stale entries once the list is long, and the worst of the rest if it is still long.
    pub(super) fn purge(&mut self, standings: &Standings, scratch: &mut Vec<Rated>) {
        if self.best.len() <= 4 * SHORT_LIST_NODES {
            return;
        }
        scratch.clear();
        scratch.extend(self.best.drain().map(|Reverse(rated)| rated));
        scratch.retain(|rated| rated.standing(standings).is_some());
        if scratch.len() > 2 * SHORT_LIST_NODES {
            self.bound = cut(scratch);
        }
        self.extend(scratch.drain(..));
    }
}

/// Keeps the best nodes, as many as fit on a new short list. Returns the best rating that was left out.
pub(super) fn cut(rated: &mut Vec<Rated>) -> Option<Rating> {
    let (_, first_out, _) = rated.select_nth_unstable(SHORT_LIST_NODES);
    let bound = first_out.rating();
    rated.truncate(SHORT_LIST_NODES);
    Some(bound)
}
