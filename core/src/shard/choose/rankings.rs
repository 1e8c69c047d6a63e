//! Ranks of nodes for requests with preferences. They are cached and kept up to date, like the candidate sets
//! of selectors.
//!
//! A cached ranking has a *tier* for each rank that occurs: the number of nodes, one bit per node, and a list
//! of the nodes while they are few. A tier gets a [mark](crate::index::Marks) when a search needs one. If there
//! are very many ranks, the ranking stores the [`Rank`] of every node instead of bits. A search goes through
//! the tiers from the smallest rank, so it never looks at a node that a better tier makes irrelevant.
//!
//! A ranking that is not cached is computed from the [nodes by their labels](crate::shard::choose::label_index) and
//! [taints](crate::shard::choose::rank_parts), in words of 64 nodes.

use crate::broken::{Broken, broken};
use std::sync::Arc;

use super::node_set::{Bits, LookedAt};
use super::rank_parts::{Parts, Traits};
use super::selectors::{FEW_KEPT_MAX, MARK_IDLE_USES, MARKS_OF_RANKINGS, SelectorSets};
use crate::ids::NodeId;
use crate::index::{Candidates, Mark, Marks, Slot};
use crate::limits::{CANDIDATE_WALK_MAX, RANKINGS_KEPT_MAX, TIERS_OF_BITS_MAX};
use crate::lru::Lru;
use crate::memory;
use crate::node::{NodeSpec, Selector};
use crate::planted::{PlantedBug, is_planted};
use crate::request::{PlacementRequest, Policy, Rank, RankRules};
use crate::resource::GpuRequest;
use crate::shard::books::NodeTable;

/// The inputs of a node's rank other than the node itself.
#[derive(Clone, Debug)]
pub(crate) struct RankKey {
    pub(crate) selector: Option<Arc<Selector>>,
    pub(crate) rules: Option<Arc<RankRules>>,
    pub(crate) avoid_gpu: bool,
}

impl RankKey {
    fn of(request: &PlacementRequest) -> Self {
        let preferences = request.preferences.as_deref();
        Self {
            selector: request.selector.clone(),
            rules: preferences.and_then(|preferences| preferences.rules.clone()),
            avoid_gpu: avoids_gpu(request),
        }
    }

    fn hash(&self) -> u64 {
        let selector = self.selector.as_ref().map_or(1, |selector| selector.hash());
        let rules = self.rules.as_ref().map_or(1, |rules| rules.hash());
        selector.rotate_left(1) ^ rules.rotate_left(32) ^ u64::from(self.avoid_gpu)
    }

    /// Compares keys of equal hashes. Texts are compared only if they are very likely equal.
    fn is(&self, other: &Self) -> bool {
        self.avoid_gpu == other.avoid_gpu && self.selector == other.selector && self.rules == other.rules
    }

    fn rank(&self, spec: &NodeSpec) -> Rank {
        Rank::of(self.selector.as_deref(), self.rules.as_deref(), self.avoid_gpu, spec)
    }
}

fn avoids_gpu(request: &PlacementRequest) -> bool {
    let wished = request.preferences.as_ref().is_some_and(|preferences| preferences.avoid_gpu);
    wished && request.demand.gpu == GpuRequest::None
}

/// Returns the rank of one node for one request, without any cached ranking.
pub(crate) fn rank_of(request: &PlacementRequest, spec: &NodeSpec) -> Rank {
    let preferences = request.preferences.as_deref();
    let rules = preferences.and_then(|preferences| preferences.rules.as_deref());
    Rank::of(request.selector.as_deref(), rules, avoids_gpu(request), spec)
}

/// The nodes of one rank.
pub(crate) struct Tier {
    pub(crate) rank: Rank,
    len: usize,
    /// The nodes, unless the ranking stores a rank for each node.
    bits: Bits,
    /// The nodes. Always present while they are few enough to be walked, never above `FEW_KEPT_MAX`.
    few: Option<Vec<Slot>>,
    mark: Option<Mark>,
}

impl Tier {
    /// Returns the number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns how a search finds its nodes fastest. As for a candidate set, and for the same reason, the use
    /// of a list depends only on the number of nodes.
    pub(crate) fn candidates(&self) -> Candidates<'_> {
        match (&self.few, self.mark) {
            (Some(few), _) if few.len() <= CANDIDATE_WALK_MAX => Candidates::Walk(few),
            (_, Some(mark)) => Candidates::Marked(mark),
            (_, None) => Candidates::All,
        }
    }
}

/// The ranks of all nodes for one kind of request.
pub(crate) struct Ranking {
    key: RankKey,
    /// Ranks by slot, if there are more ranks than tiers with bits. A slot without a node is not selected.
    ranks: Option<Vec<Rank>>,
    /// Nodes that a taint excludes, if each tier has bits.
    tainted: Bits,
    /// Ordered by rank. No tier is empty.
    tiers: Vec<Tier>,
}

impl Ranking {
    /// Creates a ranking without nodes.
    fn new(key: RankKey) -> Self {
        Self { key, ranks: None, tainted: Bits::default(), tiers: Vec::new() }
    }

    /// Creates a ranking from parts.
    fn of(key: RankKey, parts: Parts) -> Self {
        let tier = |(rank, bits): (Rank, Bits)| {
            let few = (bits.len() <= FEW_KEPT_MAX).then(|| bits.iter().collect());
            Tier { rank, len: bits.len(), few, bits, mark: None }
        };
        let tiers: Vec<Tier> = parts.by_rank.into_iter().map(tier).collect();
        let many = tiers.len() > TIERS_OF_BITS_MAX;
        let mut ranking = Self { tainted: parts.tainted, tiers, ..Self::new(key) };
        if many {
            ranking.rank_each();
        }
        ranking
    }

    #[inline]
    pub(crate) fn rank(&self, slot: Slot) -> Rank {
        if let Some(ranks) = &self.ranks {
            return ranks.get(slot as usize).copied().unwrap_or(Rank::NOT_SELECTED);
        }
        match self.tiers.iter().find(|tier| tier.bits.contains(slot)) {
            Some(tier) => tier.rank,
            None if self.tainted.contains(slot) => Rank::TAINTED,
            None => Rank::NOT_SELECTED,
        }
    }

    /// Returns whether the node belongs to tier number `tier`.
    #[inline]
    pub(crate) fn is_of(&self, tier: usize, slot: Slot) -> bool {
        match &self.ranks {
            Some(ranks) => ranks.get(slot as usize) == Some(&self.tiers[tier].rank),
            None => self.tiers[tier].bits.contains(slot),
        }
    }

    fn check_node(&self, slot: Slot, node: NodeId, spec: &NodeSpec) -> Result<(), Broken> {
        let rank = self.key.rank(spec);
        let kept = self.rank(slot);
        if rank == kept { Ok(()) } else { Err(broken!("node {node} ranks {rank:?}, kept is {kept:?}")) }
    }

    pub(crate) fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    fn tier(&self, rank: Rank) -> Result<usize, usize> {
        self.tiers.binary_search_by_key(&rank, |tier| tier.rank)
    }

    /// Switches from bits per tier to a rank per node.
    fn rank_each(&mut self) {
        assert!(self.ranks.is_none(), "each node has a rank of its own already");
        let mut ranks: Vec<Rank> = Vec::new();
        let tiers = self.tiers.iter_mut().map(|tier| (tier.rank, std::mem::take(&mut tier.bits)));
        for (rank, bits) in tiers.chain([(Rank::TAINTED, std::mem::take(&mut self.tainted))]) {
            for slot in bits.iter() {
                if ranks.len() <= slot as usize {
                    ranks.resize(slot as usize + 1, Rank::NOT_SELECTED);
                }
                ranks[slot as usize] = rank;
            }
        }
        self.ranks = Some(ranks);
    }

    /// Sets the rank of `slot`. Returns the mark of a tier that became empty.
    fn set(&mut self, slot: Slot, rank: Rank) -> Option<Mark> {
        let before = self.rank(slot);
        if before == rank {
            return None;
        }
        match &mut self.ranks {
            Some(ranks) => {
                if ranks.len() <= slot as usize {
                    ranks.resize(slot as usize + 1, Rank::NOT_SELECTED);
                }
                ranks[slot as usize] = rank;
            }
            None => {
                self.tainted.set(slot, rank == Rank::TAINTED);
            }
        }
        if rank.is_eligible() {
            self.enter(slot, rank);
        }
        let ended = if before.is_eligible() { self.leave(slot, before) } else { None };
        if self.ranks.is_none() && self.tiers.len() > TIERS_OF_BITS_MAX {
            self.rank_each();
        }
        ended
    }

    fn enter(&mut self, slot: Slot, rank: Rank) {
        let at = self.tier(rank).unwrap_or_else(|at| {
            let few = Some(Vec::new());
            self.tiers.insert(at, Tier { rank, len: 0, few, bits: Bits::default(), mark: None });
            at
        });
        let tier = &mut self.tiers[at];
        tier.len += 1;
        if self.ranks.is_none() {
            tier.bits.set(slot, true);
            assert!(tier.bits.len() == tier.len, "slot {slot} is twice of rank {rank:?}");
        }
        match &mut tier.few {
            Some(few) if few.len() < FEW_KEPT_MAX => few.push(slot),
            few => *few = None,
        }
        let is_listed = tier.few.as_ref().is_none_or(|few| few.len() == tier.len);
        assert!(is_listed, "the list of rank {rank:?} lacks nodes");
    }

    fn leave(&mut self, slot: Slot, rank: Rank) -> Option<Mark> {
        let at = self.tier(rank).expect("a rank that a node had has its tier");
        let tier = &mut self.tiers[at];
        tier.len -= 1;
        if tier.len == 0 {
            return self.tiers.remove(at).mark;
        }
        tier.bits.set(slot, false);
        let is_of_bits = self.ranks.is_none();
        assert!(!is_of_bits || tier.bits.len() == tier.len, "slot {slot} was not of rank {rank:?}");
        match (&mut tier.few, &self.ranks) {
            (Some(few), _) => few.retain(|&member| member != slot),
            (None, _) if tier.len > CANDIDATE_WALK_MAX => {}
            (None, None) => tier.few = Some(tier.bits.iter().collect()),
            (None, Some(ranks)) => {
                let slots = (0..).zip(ranks).filter(|&(_, &of)| of == rank).map(|(slot, _)| slot);
                tier.few = Some(slots.collect());
            }
        }
        let is_listed = tier.few.as_ref().is_none_or(|few| few.len() == tier.len);
        assert!(is_listed, "the list of rank {rank:?} has others than its nodes");
        None
    }

    fn memory(&self) -> u64 {
        let of_tier = |tier: &Tier| tier.few.as_ref().map_or(0, memory::of_vec) + tier.bits.memory();
        self.ranks.as_ref().map_or(0, memory::of_vec)
            + self.tainted.memory()
            + memory::of_vec(&self.tiers)
            + self.tiers.iter().map(of_tier).sum::<u64>()
    }
}

/// Identifies a cached ranking.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankingId(usize);

/// The rankings that a shard caches, found by the hash of their key.
#[derive(Default)]
pub(crate) struct Rankings {
    kept: Lru<Ranking, RANKINGS_KEPT_MAX>,
    traits: Traits,
    /// The ranking and rank that have each mark, starting with `MARKS_OF_RANKINGS.start`.
    marked: [Option<(RankingId, Rank)>; (MARKS_OF_RANKINGS.end - MARKS_OF_RANKINGS.start) as usize],
    /// The time when each of these marks was last given. Zero if never.
    given: [u64; (MARKS_OF_RANKINGS.end - MARKS_OF_RANKINGS.start) as usize],
    pub(crate) looked_at: LookedAt,
}

impl Rankings {
    /// Returns the bytes of the cached rankings.
    pub(crate) fn memory(&self) -> u64 {
        self.kept.bytes() + self.kept.iter().map(Ranking::memory).sum::<u64>()
    }

    /// Returns the bytes of the node traits from which rankings are made.
    pub(crate) fn traits_memory(&self) -> u64 {
        self.traits.memory()
    }

    /// Returns whether `request` must be placed by rank. If no node has taints and nothing is preferred, there
    /// is only one rank. Then only the hybrid policy, which has its own order, needs this.
    #[inline]
    pub(crate) fn concern(&self, request: &PlacementRequest) -> bool {
        request.preferences.is_some() || self.traits.tainted() > 0 || request.policy == Policy::Hybrid
    }

    /// Returns the ranking for `request`. Creates it if it is not cached.
    pub(crate) fn keep(
        &mut self,
        request: &PlacementRequest,
        nodes: &NodeTable,
        selectors: &mut SelectorSets,
    ) -> RankingId {
        let key = RankKey::of(request);
        let known = self.kept.find(key.hash(), |kept| kept.key.is(&key));
        RankingId(known.unwrap_or_else(|| self.make(key, nodes, selectors)))
    }

    fn make(&mut self, key: RankKey, nodes: &NodeTable, selectors: &mut SelectorSets) -> usize {
        let hash = key.hash();
        assert!(self.traits.tainted() <= nodes.len(), "more nodes are tainted than there are");
        let labels = selectors.labels_of(nodes);
        let ranking = match Parts::of(&key, labels, &self.traits, &mut self.looked_at) {
            Some(parts) => Ranking::of(key, parts),
            None => self.ranked_singly(key, nodes),
        };
        let (at, _) = self.kept.insert(hash, ranking);
        assert!(at < RANKINGS_KEPT_MAX, "more rankings are kept than may be");
        // A mark of this index was the mark of the ranking that was replaced.
        for owner in &mut self.marked {
            *owner = owner.filter(|(of, _)| of.0 != at);
        }
        at
    }

    /// Creates a ranking with very many ranks. O(nodes).
    fn ranked_singly(&mut self, key: RankKey, nodes: &NodeTable) -> Ranking {
        let mut ranking = Ranking::new(key);
        for (slot, _, cold) in nodes.iter() {
            self.looked_at.nodes += 1;
            let rank = ranking.key.rank(&cold.registration.spec);
            ranking.set(slot, rank);
        }
        ranking
    }

    pub(crate) fn at(&self, id: RankingId) -> &Ranking {
        self.kept.at(id.0)
    }

    /// Gives a mark to tier number `tier`, which is about to be searched. Takes a free mark, else one that has
    /// been idle for long. The caller must update the indexes.
    pub(crate) fn give_mark(&mut self, id: RankingId, tier: usize, nodes: usize) -> Option<Mark> {
        let wanting = &self.at(id).tiers[tier];
        if wanting.mark.is_some() || wanting.len <= CANDIDATE_WALK_MAX || wanting.len == nodes {
            return None;
        }
        let rank = wanting.rank;
        let last_used = |owner: &Option<(RankingId, Rank)>| owner.map_or(0, |(of, _)| self.kept.used(of.0));
        // A mark is also in use from the time it was given, even if its ranking was replaced. Otherwise,
        // rankings that replace each other in turn would each free a mark.
        let idle_since =
            self.marked.iter().zip(&self.given).map(|(owner, &given)| last_used(owner).max(given));
        let (since, number) = idle_since.zip(MARKS_OF_RANKINGS.start..).min()?;
        let place = usize::from(number - MARKS_OF_RANKINGS.start);
        let owner = self.marked[place];
        assert!(since <= self.kept.uses(), "mark {number} was used after now");
        if since > 0 && since + MARK_IDLE_USES.max(nodes as u64) > self.kept.uses() {
            return None;
        }
        self.given[place] = self.kept.uses();
        self.looked_at.nodes += nodes as u64;
        if let Some((of, rank)) = owner
            && let Ok(at) = self.at(of).tier(rank)
        {
            let had = self.kept.at_mut(of.0).tiers[at].mark.take();
            assert!(had == Some(Mark::new(number)), "mark {number} is that of another rank");
        }
        let mark = Mark::new(number);
        self.marked[place] = Some((id, rank));
        self.kept.at_mut(id.0).tiers[tier].mark = Some(mark);
        Some(mark)
    }

    /// Returns the marks that a node must have.
    pub(crate) fn marks_of(&self, slot: Slot, marks: Marks) -> Marks {
        self.marks_given()
            .filter(|(_, ranking, rank)| ranking.rank(slot) == *rank)
            .fold(marks, |marks, (mark, ..)| marks.with(mark, true))
    }

    /// Returns the marks in use, each with its ranking and rank.
    pub(crate) fn marks_given(&self) -> impl Iterator<Item = (Mark, &Ranking, Rank)> {
        (MARKS_OF_RANKINGS.start..).zip(&self.marked).filter_map(|(number, owner)| {
            let (of, rank) = (*owner)?;
            Some((Mark::new(number), self.at(of), rank))
        })
    }

    /// Notes that a node joined.
    pub(crate) fn node_joined(&mut self, slot: Slot, spec: &NodeSpec) {
        self.traits.set(slot, Some(spec));
        self.node_ranked(slot, |key| key.rank(spec));
    }

    /// Notes that a node changed its labels, taints or GPUs.
    pub(crate) fn node_changed(&mut self, slot: Slot, spec: &NodeSpec) {
        if is_planted(PlantedBug::RankStaleAfterUpdate) {
            self.traits.set(slot, Some(spec));
            return;
        }
        self.node_joined(slot, spec);
    }

    /// Notes that a node left.
    pub(crate) fn node_removed(&mut self, slot: Slot) {
        self.traits.set(slot, None);
        self.node_ranked(slot, |_| Rank::NOT_SELECTED);
    }

    fn node_ranked(&mut self, slot: Slot, rank: impl Fn(&RankKey) -> Rank) {
        for ranking in self.kept.iter_mut() {
            let rank = rank(&ranking.key);
            if let Some(freed) = ranking.set(slot, rank) {
                let owner = self.marked[usize::from(freed.number() - MARKS_OF_RANKINGS.start)].take();
                assert!(owner.is_some(), "mark {} ends, and nobody had it", freed.number());
            }
        }
    }

    /// Checks every cached ranking against one node.
    pub(crate) fn check_node(&self, slot: Slot, node: NodeId, spec: &NodeSpec) -> Result<(), Broken> {
        self.kept.iter().try_for_each(|ranking| ranking.check_node(slot, node, spec))
    }

    /// Checks every cached ranking against the nodes.
    pub(crate) fn check(&self, nodes: &NodeTable) -> Result<(), Broken> {
        let tainted = nodes.iter().filter(|(.., cold)| !cold.registration.spec.taints.is_empty()).count();
        if tainted != self.traits.tainted() {
            return Err(broken!("{tainted} nodes are tainted, {} are counted", self.traits.tainted()));
        }
        self.traits.check(nodes)?;
        for ranking in self.kept.iter() {
            let mut members: Vec<(Rank, Slot)> = Vec::new();
            for (slot, hot, cold) in nodes.iter() {
                ranking.check_node(slot, hot.id, &cold.registration.spec)?;
                let rank = ranking.rank(slot);
                if rank.is_eligible() {
                    members.push((rank, slot));
                }
            }
            members.sort_unstable();
            let mut tiers = ranking.tiers.iter();
            for tier in members.chunk_by(|a, b| a.0 == b.0) {
                let kept = tiers.next().filter(|kept| kept.rank == tier[0].0 && kept.len == tier.len());
                let Some(kept) = kept else {
                    return Err(broken!("no tier counts {} of {:?}", tier.len(), tier[0].0));
                };
                let mut few = kept.few.clone();
                let listed = few.as_mut().is_none_or(|few| {
                    few.sort_unstable();
                    few.iter().eq(tier.iter().map(|(_, slot)| slot))
                });
                let is_kept = |bits: &Bits| tier.iter().all(|&(_, slot)| bits.contains(slot));
                let counted = ranking.ranks.is_some() || kept.bits.len() == tier.len() && is_kept(&kept.bits);
                if !listed || !counted || (few.is_none() && tier.len() <= CANDIDATE_WALK_MAX) {
                    return Err(broken!("the nodes of rank {:?} are not those that are listed", kept.rank));
                }
            }
            if tiers.next().is_some() {
                return Err(Broken::new("a tier has no node"));
            }
        }
        Ok(())
    }
}
