//! Ranks of nodes by what requests would rather have: kept and brought up to date, as the
//! candidate sets of selectors are.
//!
//! A kept ranking has the [`Rank`] of every node and, per rank that occurs, its *tier*: how many
//! nodes, the list of them while they are few, a [mark](crate::index::Marks) once a search needs
//! one. A search goes through the tiers from the smallest rank on and so never looks at a node
//! that a better one excludes.

use std::sync::Arc;

use super::selectors::{FEW_KEPT_MAX, MARK_IDLE_USES, MARKS_OF_RANKINGS};
use super::table::NodeTable;
use crate::ids::NodeId;
use crate::index::{Candidates, Mark, Marks, Slot};
use crate::limits::{CANDIDATE_WALK_MAX, RANKINGS_KEPT_MAX};
use crate::memory;
use crate::node::{NodeSpec, Selector};
use crate::planted::{PlantedBug, is_planted};
use crate::request::{PlacementRequest, Policy, Rank, RankRules};
use crate::resource::GpuRequest;

/// What a node's rank is a function of, beside the node.
#[derive(Clone, Debug)]
pub(super) struct RankKey {
    selector: Option<Arc<Selector>>,
    rules: Option<Arc<RankRules>>,
    avoid_gpu: bool,
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

    /// Equal hashes first: texts are compared only where they are very likely equal.
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

/// The rank of one node for one request, without any kept ranking.
pub(super) fn rank_of(request: &PlacementRequest, spec: &NodeSpec) -> Rank {
    let preferences = request.preferences.as_deref();
    let rules = preferences.and_then(|preferences| preferences.rules.as_deref());
    Rank::of(request.selector.as_deref(), rules, avoids_gpu(request), spec)
}

/// The nodes of one rank.
pub(super) struct Tier {
    pub(super) rank: Rank,
    len: usize,
    /// The nodes: always while they are few enough to be walked, never above `FEW_KEPT_MAX`.
    few: Option<Vec<Slot>>,
    mark: Option<Mark>,
}

impl Tier {
    /// How many nodes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How a search finds its nodes fastest. "Few" is a function of their number alone, as it is
    /// of a candidate set, and for the same reason.
    pub(super) fn candidates(&self) -> Candidates<'_> {
        match (&self.few, self.mark) {
            (Some(few), _) if few.len() <= CANDIDATE_WALK_MAX => Candidates::Walk(few),
            (_, Some(mark)) => Candidates::Marked(mark),
            (_, None) => Candidates::All,
        }
    }
}

/// The ranks of all nodes for one kind of request.
pub(super) struct Ranking {
    key: RankKey,
    hash: u64,
    /// By slot; a slot without a node is not selected.
    ranks: Vec<Rank>,
    /// In order of rank; none is empty.
    tiers: Vec<Tier>,
    used: u64,
}

impl Ranking {
    fn new(key: RankKey, hash: u64) -> Self {
        Self { key, hash, ranks: Vec::new(), tiers: Vec::new(), used: 0 }
    }

    #[inline]
    pub(super) fn rank(&self, slot: Slot) -> Rank {
        self.ranks.get(slot as usize).copied().unwrap_or(Rank::NOT_SELECTED)
    }

    fn check_node(&self, slot: Slot, node: NodeId, spec: &NodeSpec) -> Result<(), String> {
        let (rank, kept) = (self.key.rank(spec), self.rank(slot));
        if rank == kept { Ok(()) } else { Err(format!("node {node} ranks {rank:?}, kept is {kept:?}")) }
    }

    pub(super) fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    fn tier(&self, rank: Rank) -> Result<usize, usize> {
        self.tiers.binary_search_by_key(&rank, |tier| tier.rank)
    }

    /// Gives `slot` its rank; the mark of a tier that ended with that.
    fn set(&mut self, slot: Slot, rank: Rank) -> Option<Mark> {
        let before = self.rank(slot);
        if before == rank {
            return None;
        }
        if self.ranks.len() <= slot as usize {
            self.ranks.resize(slot as usize + 1, Rank::NOT_SELECTED);
        }
        self.ranks[slot as usize] = rank;
        if rank.is_eligible() {
            self.enter(slot, rank);
        }
        if before.is_eligible() { self.leave(slot, before) } else { None }
    }

    fn enter(&mut self, slot: Slot, rank: Rank) {
        let at = self.tier(rank).unwrap_or_else(|at| {
            self.tiers.insert(at, Tier { rank, len: 0, few: Some(Vec::new()), mark: None });
            at
        });
        let tier = &mut self.tiers[at];
        tier.len += 1;
        match &mut tier.few {
            Some(few) if few.len() < FEW_KEPT_MAX => few.push(slot),
            few => *few = None,
        }
    }

    fn leave(&mut self, slot: Slot, rank: Rank) -> Option<Mark> {
        let at = self.tier(rank).expect("a rank that a node had has its tier");
        let tier = &mut self.tiers[at];
        tier.len -= 1;
        if tier.len == 0 {
            return self.tiers.remove(at).mark;
        }
        match &mut tier.few {
            Some(few) => few.retain(|&member| member != slot),
            None if tier.len <= CANDIDATE_WALK_MAX => {
                let slots = (0..).zip(&self.ranks).filter(|&(_, &of)| of == rank).map(|(slot, _)| slot);
                tier.few = Some(slots.collect());
            }
            None => {}
        }
        None
    }
}

/// Which of the kept rankings.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankingId(usize);

/// The rankings that a shard keeps; the one not used for longest gives way.
#[derive(Default)]
pub(super) struct Rankings {
    kept: Vec<Ranking>,
    /// Nodes with taints.
    tainted: u32,
    /// The ranking and rank that have each mark, from `MARKS_OF_RANKINGS.start` on.
    marked: [Option<(RankingId, Rank)>; (MARKS_OF_RANKINGS.end - MARKS_OF_RANKINGS.start) as usize],
    uses: u64,
}

impl Rankings {
    /// What the kept rankings take.
    pub(super) fn memory(&self) -> u64 {
        let of_tier = |tier: &Tier| tier.few.as_ref().map_or(0, memory::of_vec);
        let of_ranking = |kept: &Ranking| {
            memory::of_vec(&kept.ranks)
                + memory::of_vec(&kept.tiers)
                + kept.tiers.iter().map(of_tier).sum::<u64>()
        };
        memory::of_vec(&self.kept) + self.kept.iter().map(of_ranking).sum::<u64>()
    }

    /// Whether `request` has to be placed by rank. Where no node is tainted and nothing is
    /// preferred there is but one rank, and only the hybrid policy, which has an order of its
    /// own, goes this way.
    #[inline]
    pub(super) fn concern(&self, request: &PlacementRequest) -> bool {
        request.preferences.is_some() || self.tainted > 0 || request.policy == Policy::Hybrid
    }

    /// The ranking for `request`, made now if it is not kept.
    pub(super) fn keep(&mut self, request: &PlacementRequest, nodes: &NodeTable) -> RankingId {
        self.uses += 1;
        let key = RankKey::of(request);
        let hash = key.hash();
        let known = self.kept.iter().position(|kept| kept.hash == hash && kept.key.is(&key));
        let at = known.unwrap_or_else(|| self.make(key, hash, nodes));
        self.kept[at].used = self.uses;
        RankingId(at)
    }

    fn make(&mut self, key: RankKey, hash: u64, nodes: &NodeTable) -> usize {
        let mut ranking = Ranking::new(key, hash);
        for (slot, _, cold) in nodes.iter() {
            let rank = ranking.key.rank(&cold.registration.spec);
            ranking.set(slot, rank);
        }
        if self.kept.len() < RANKINGS_KEPT_MAX {
            self.kept.push(ranking);
            return self.kept.len() - 1;
        }
        let oldest = (0..self.kept.len()).min_by_key(|&at| self.kept[at].used).expect("some are kept");
        for owner in &mut self.marked {
            *owner = owner.filter(|(of, _)| of.0 != oldest);
        }
        self.kept[oldest] = ranking;
        oldest
    }

    pub(super) fn at(&self, id: RankingId) -> &Ranking {
        &self.kept[id.0]
    }

    /// The mark that tier number `tier` gets now because a search is about to need it, and which
    /// the indexes have to learn: one that nobody has, else one not used for long.
    pub(super) fn give_mark(&mut self, id: RankingId, tier: usize, nodes: usize) -> Option<Mark> {
        let wanting = &self.kept[id.0].tiers[tier];
        if wanting.mark.is_some() || wanting.len <= CANDIDATE_WALK_MAX || wanting.len == nodes {
            return None;
        }
        let rank = wanting.rank;
        let last_used = |owner: &Option<(RankingId, Rank)>| owner.map_or(0, |(of, _)| self.kept[of.0].used);
        let (number, &owner) =
            (MARKS_OF_RANKINGS.start..).zip(&self.marked).min_by_key(|(_, owner)| last_used(owner))?;
        if owner.is_some() && last_used(&owner) + MARK_IDLE_USES > self.uses {
            return None;
        }
        if let Some((of, rank)) = owner
            && let Ok(at) = self.kept[of.0].tier(rank)
        {
            self.kept[of.0].tiers[at].mark = None;
        }
        let mark = Mark::new(number);
        self.marked[usize::from(number - MARKS_OF_RANKINGS.start)] = Some((id, rank));
        self.kept[id.0].tiers[tier].mark = Some(mark);
        Some(mark)
    }

    /// The marks that a node must have.
    pub(super) fn marks_of(&self, slot: Slot, marks: Marks) -> Marks {
        self.marks_given()
            .filter(|(_, ranking, rank)| ranking.rank(slot) == *rank)
            .fold(marks, |marks, (mark, ..)| marks.with(mark, true))
    }

    /// The marks that some tier has, with its ranking and rank.
    pub(super) fn marks_given(&self) -> impl Iterator<Item = (Mark, &Ranking, Rank)> {
        (MARKS_OF_RANKINGS.start..).zip(&self.marked).filter_map(|(number, owner)| {
            let (of, rank) = (*owner)?;
            Some((Mark::new(number), &self.kept[of.0], rank))
        })
    }

    /// A node joined.
    pub(super) fn node_joined(&mut self, slot: Slot, spec: &NodeSpec) {
        self.tainted += u32::from(!spec.taints.is_empty());
        self.node_ranked(slot, |key| key.rank(spec));
    }

    /// A node has other labels, taints or GPUs.
    pub(super) fn node_changed(&mut self, slot: Slot, before_tainted: bool, spec: &NodeSpec) {
        self.tainted -= u32::from(before_tainted);
        if is_planted(PlantedBug::RankStaleAfterUpdate) {
            self.tainted += u32::from(!spec.taints.is_empty());
            return;
        }
        self.node_joined(slot, spec);
    }

    /// A node left.
    pub(super) fn node_removed(&mut self, slot: Slot, spec: &NodeSpec) {
        self.tainted -= u32::from(!spec.taints.is_empty());
        self.node_ranked(slot, |_| Rank::NOT_SELECTED);
    }

    fn node_ranked(&mut self, slot: Slot, rank: impl Fn(&RankKey) -> Rank) {
        for ranking in &mut self.kept {
            let rank = rank(&ranking.key);
            if let Some(freed) = ranking.set(slot, rank) {
                self.marked[usize::from(freed.number() - MARKS_OF_RANKINGS.start)] = None;
            }
        }
    }

    /// Checks every kept ranking against one node.
    pub(super) fn check_node(&self, slot: Slot, node: NodeId, spec: &NodeSpec) -> Result<(), String> {
        self.kept.iter().try_for_each(|ranking| ranking.check_node(slot, node, spec))
    }

    /// Checks every kept ranking against the nodes.
    pub(super) fn check(&self, nodes: &NodeTable) -> Result<(), String> {
        let tainted = nodes.iter().filter(|(.., cold)| !cold.registration.spec.taints.is_empty()).count();
        if tainted != self.tainted as usize {
            return Err(format!("{tainted} nodes are tainted, {} are counted", self.tainted));
        }
        for ranking in &self.kept {
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
                    return Err(format!("no tier counts {} of {:?}", tier.len(), tier[0].0));
                };
                let mut few = kept.few.clone();
                let listed = few.as_mut().is_none_or(|few| {
                    few.sort_unstable();
                    few.iter().eq(tier.iter().map(|(_, slot)| slot))
                });
                if !listed || (few.is_none() && tier.len() <= CANDIDATE_WALK_MAX) {
                    return Err(format!("the nodes of rank {:?} are not those that are listed", kept.rank));
                }
            }
            if tiers.next().is_some() {
                return Err("a tier has no node".to_owned());
            }
        }
        Ok(())
    }
}
