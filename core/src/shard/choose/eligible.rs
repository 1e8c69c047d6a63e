//! The nodes that a request may use at all: the one rule of labels, taints and named candidates.

use super::Choose;
use super::rankings::{Ranking, RankingId, Rankings, rank_of};
use super::selectors::{CandidateSet, SelectorSets, SetId};
use crate::index::Slot;
use crate::request::{Check, PlacementRequest, Rank};
use crate::shard::books::{Books, NodeTable};

/// The nodes that the labels and taints allow for a kind of request, as cached by the shard.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Eligibility {
    /// All nodes, or the candidate set of the selector. All of equal rank.
    Plain(Option<SetId>),
    /// Nodes by rank.
    Ranked(RankingId),
}

/// The source of the ranks of nodes.
#[derive(Clone, Copy)]
enum Ranks<'a> {
    /// All nodes, or those of a set, are equal.
    Plain(Option<&'a CandidateSet>),
    /// A cached ranking.
    Cached(&'a Ranking),
    /// Computed for each node.
    Computed,
}

/// Decides which nodes a request may use, regardless of what they have available.
#[derive(Clone, Copy)]
pub(crate) struct Eligible<'a> {
    nodes: &'a NodeTable,
    request: &'a PlacementRequest,
    ranks: Ranks<'a>,
}

impl<'a> Eligible<'a> {
    /// Creates the rule from a cached set or ranking.
    #[inline]
    pub(super) fn of(
        selectors: &'a SelectorSets,
        rankings: &'a Rankings,
        books: &'a Books,
        request: &'a PlacementRequest,
        scope: Eligibility,
    ) -> Self {
        let ranks = match scope {
            Eligibility::Plain(set) => Ranks::Plain(set.map(|set| selectors.at(set))),
            Eligibility::Ranked(id) => Ranks::Cached(rankings.at(id)),
        };
        Self { nodes: &books.nodes, request, ranks }
    }

    /// Creates the rule without a cached set or ranking. Each look costs a comparison of labels.
    pub(crate) fn computed(nodes: &'a NodeTable, request: &'a PlacementRequest) -> Self {
        Self { nodes, request, ranks: Ranks::Computed }
    }

    /// Returns the rank that labels and taints give the node.
    #[inline]
    pub(crate) fn rank(&self, slot: Slot) -> Rank {
        match self.ranks {
            Ranks::Plain(None) => Rank::EQUAL,
            Ranks::Plain(Some(set)) if set.contains(slot) => Rank::EQUAL,
            Ranks::Plain(Some(_)) => Rank::NOT_SELECTED,
            Ranks::Cached(ranking) => ranking.rank(slot),
            Ranks::Computed => rank_of(self.request, &self.nodes.cold(slot).registration.spec),
        }
    }

    /// Returns whether the request names no candidates, or names this node.
    #[inline]
    pub(crate) fn is_candidate(&self, slot: Slot) -> bool {
        let is_named = |id| move |ids: &std::sync::Arc<[crate::ids::NodeId]>| ids.binary_search(&id).is_ok();
        self.request.candidates.as_ref().is_none_or(is_named(self.nodes.hot(slot).id))
    }

    /// Returns whether the request may be placed on the node.
    #[inline]
    pub(crate) fn allows(&self, slot: Slot) -> bool {
        self.rank(slot).is_eligible() && self.is_candidate(slot)
    }

    /// Returns the check by which labels or taints exclude the node.
    #[inline]
    pub(crate) fn excluded(&self, slot: Slot) -> Option<Check> {
        match self.rank(slot) {
            Rank::NOT_SELECTED => Some(Check::Selector),
            Rank::TAINTED => Some(Check::Taint),
            _ => None,
        }
    }
}

impl Choose {
    /// Returns the eligibility for requests like this one. Creates it if it is not cached.
    #[inline(always)]
    pub(crate) fn eligibility(&mut self, books: &Books, request: &PlacementRequest) -> Eligibility {
        if request.selector.is_none() && !self.rankings.concern(request) {
            return Eligibility::Plain(None);
        }
        self.eligibility_any(books, request)
    }

    #[inline(never)]
    fn eligibility_any(&mut self, books: &Books, request: &PlacementRequest) -> Eligibility {
        if self.rankings.concern(request) {
            return Eligibility::Ranked(self.rankings.keep(request, &books.nodes, &mut self.selectors));
        }
        let selector = request.selector.as_ref().expect("without a selector, all nodes are equal");
        Eligibility::Plain(Some(self.keep_selector(books, selector)))
    }

    /// Returns the rule for the nodes that `request` may use. `scope` is its cached eligibility.
    #[inline]
    pub(crate) fn eligible<'a>(
        &'a self,
        books: &'a Books,
        request: &'a PlacementRequest,
        scope: Eligibility,
    ) -> Eligible<'a> {
        Eligible::of(&self.selectors, &self.rankings, books, request, scope)
    }
}
