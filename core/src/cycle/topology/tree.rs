//! The tree of domains: all nodes in an order in which each domain is a range.

use std::ops::Range;
use std::sync::Arc;

use crate::cycle::trial::Place;
use crate::ids::NodeId;
use crate::jobs::{NodeDomains, TopologyTier};
use crate::map::FixedMap;
use crate::node::NodeSpec;
use crate::replica::Replica;

/// A domain of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::cycle) struct DomainId(u32);

impl DomainId {
    /// The whole cluster, which is in no tier.
    pub(in crate::cycle) const ROOT: Self = Self(0);

    /// Returns its place in a list of all domains.
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// The nodes with the same values in a tier and in all wider ones.
#[derive(Debug)]
struct Domain {
    /// The index of its tier, or the number of tiers for the root.
    tier: usize,
    /// Its place among the domains of its tier.
    rank: usize,
    /// The first of its nodes, and the first one after them.
    nodes: Range<u32>,
    /// The smallest domain of a wider tier that contains it. The root contains itself.
    parent: DomainId,
    path: Arc<str>,
}

#[derive(Debug)]
struct TreeNode {
    node: NodeId,
    place: Place,
    /// The smallest domain that contains it.
    domain: DomainId,
}

/// All nodes of a cluster, in domains.
#[derive(Debug, Default)]
pub(in crate::cycle) struct Tree {
    tiers: Vec<TopologyTier>,
    /// In order of their values, those of the widest tier first, and then of their ids.
    nodes: Vec<TreeNode>,
    domains: Vec<Domain>,
    /// The domains of each tier, in the order of their nodes.
    of_tiers: Vec<Vec<DomainId>>,
    positions: FixedMap<Place, u32>,
    /// The positions of the nodes of each shard.
    of_shards: Vec<Vec<u32>>,
}

/// Returns the path of values, the widest first. A tier without a value is `-`.
fn path(values: &[Option<&str>]) -> Arc<str> {
    values.iter().map(|value| value.unwrap_or("-")).collect::<Vec<_>>().join("/").into()
}

/// Returns the path of the smallest domain that contains a node. `None`: it is in none.
pub(in crate::cycle) fn path_of(domains: &NodeDomains, node: &NodeSpec) -> Option<Arc<str>> {
    let values = domains.values(&node.name, &node.labels);
    let last = values.iter().rposition(Option::is_some)?;
    Some(path(&values[..=last]))
}

impl Tree {
    /// Makes the tree of all nodes, in any state. Without tiers, it is empty.
    pub(in crate::cycle) fn new(of: &NodeDomains, replicas: &[Replica]) -> Self {
        let tiers = of.tiers();
        if tiers.is_empty() {
            return Self::default();
        }
        let mut sorted: Vec<(Vec<Option<&str>>, NodeId, Place)> = Vec::new();
        for (shard, replica) in replicas.iter().enumerate() {
            let nodes = replica.shard().specs();
            sorted.extend(nodes.map(|(slot, node, spec)| {
                (of.values(&spec.name, &spec.labels), node, Place { shard, slot })
            }));
        }
        sorted.sort_unstable();
        let root =
            Domain { tier: tiers.len(), rank: 0, nodes: 0..0, parent: DomainId::ROOT, path: Arc::from("") };
        let mut tree = Self {
            tiers: tiers.to_vec(),
            nodes: Vec::with_capacity(sorted.len()),
            domains: vec![root],
            of_tiers: vec![Vec::new(); tiers.len()],
            positions: FixedMap::default(),
            of_shards: vec![Vec::new(); replicas.len()],
        };
        // The domains that contain the node before, by the place of their tier in a key.
        let mut open: Vec<Option<DomainId>> = vec![None; tiers.len()];
        let mut before: Option<&[Option<&str>]> = None;
        for (position, (values, node, place)) in (0u32..).zip(&sorted) {
            let same = before.map_or(0, |of| of.iter().zip(values).take_while(|(a, b)| a == b).count());
            let mut smallest = open[..same].iter().rev().flatten().next().copied();
            for level in same..tiers.len() {
                open[level] = values[level].map(|_| {
                    let parent = smallest.unwrap_or(DomainId::ROOT);
                    let tier = tiers.len() - 1 - level;
                    let id = tree.add(tier, position, parent, path(&values[..=level]));
                    smallest = Some(id);
                    id
                });
            }
            let domain = smallest.unwrap_or(DomainId::ROOT);
            tree.nodes.push(TreeNode { node: *node, place: *place, domain });
            tree.positions.insert(*place, position);
            tree.of_shards[place.shard].push(position);
            let mut around = Some(domain);
            while let Some(id) = around {
                tree.domains[id.index()].nodes.end = position + 1;
                around = (id != DomainId::ROOT).then(|| tree.parent(id));
            }
            before = Some(values);
        }
        tree
    }

    fn add(&mut self, tier: usize, first: u32, parent: DomainId, path: Arc<str>) -> DomainId {
        let id = DomainId(u32::try_from(self.domains.len()).expect("fewer domains than nodes times tiers"));
        let rank = self.of_tiers[tier].len();
        self.domains.push(Domain { tier, rank, nodes: first..first, parent, path });
        self.of_tiers[tier].push(id);
        id
    }

    /// Returns the tiers, from the narrowest to the widest.
    pub(in crate::cycle) fn tiers(&self) -> &[TopologyTier] {
        &self.tiers
    }

    /// Returns the number of nodes.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the positions of the nodes of a shard.
    pub(super) fn of_shard(&self, shard: usize) -> &[u32] {
        self.of_shards.get(shard).map_or(&[], Vec::as_slice)
    }

    /// Returns the positions of all nodes.
    pub(super) fn positions(&self) -> impl Iterator<Item = u32> + use<> {
        (0u32..).take(self.nodes.len())
    }

    /// Returns the index of the tier of a domain, or the number of tiers for the root.
    pub(in crate::cycle) fn tier(&self, id: DomainId) -> usize {
        self.domains.get(id.index()).map_or(self.tiers.len(), |domain| domain.tier)
    }

    /// Returns the smallest domain of a wider tier around a domain. That of the root is the root.
    pub(in crate::cycle) fn parent(&self, id: DomainId) -> DomainId {
        self.domains[id.index()].parent
    }

    /// Returns the path of a domain: its values, the widest tier first.
    pub(in crate::cycle) fn path(&self, id: DomainId) -> &Arc<str> {
        &self.domains[id.index()].path
    }

    /// Returns the positions of the nodes of a domain.
    pub(super) fn range(&self, id: DomainId) -> Range<u32> {
        self.domains.get(id.index()).map_or(0..0, |domain| domain.nodes.clone())
    }

    /// Returns the domains of a tier, in order.
    pub(super) fn of_tier(&self, tier: usize) -> &[DomainId] {
        &self.of_tiers[tier]
    }

    /// Returns the place of a domain among those of its tier.
    pub(super) fn rank(&self, id: DomainId) -> usize {
        self.domains[id.index()].rank
    }

    /// Returns the places, among the domains of a tier, of those inside another domain.
    pub(super) fn ranks(&self, tier: usize, within: DomainId) -> Range<usize> {
        let all = &self.of_tiers[tier];
        // A domain around it begins where it begins, and is of a wider tier.
        if self.tier(within) < tier {
            return 0..0;
        }
        if within == DomainId::ROOT {
            return 0..all.len();
        }
        let range = self.range(within);
        let from = all.partition_point(|&id| self.range(id).start < range.start);
        let until = all.partition_point(|&id| self.range(id).start < range.end);
        from..until
    }

    /// Returns the position of a node.
    pub(in crate::cycle) fn position(&self, place: Place) -> Option<u32> {
        self.positions.get(&place).copied()
    }

    /// Returns the node at a position.
    pub(in crate::cycle) fn node(&self, position: u32) -> (NodeId, Place) {
        let of = &self.nodes[position as usize];
        (of.node, of.place)
    }

    /// Returns whether a node is in a domain.
    pub(in crate::cycle) fn contains(&self, id: DomainId, place: Place) -> bool {
        self.position(place).is_some_and(|position| self.range(id).contains(&position))
    }

    /// Returns the smallest domain that contains a node, and another domain if one is given.
    pub(in crate::cycle) fn around(&self, position: u32, with: Option<DomainId>) -> DomainId {
        let mut id = self.nodes[position as usize].domain;
        while let Some(with) = with {
            let outer = self.range(id);
            let inner = self.range(with);
            let contains = outer.start <= inner.start && inner.end <= outer.end;
            if id == DomainId::ROOT || (contains && self.tier(id) >= self.tier(with)) {
                break;
            }
            id = self.parent(id);
        }
        id
    }

    /// Returns a domain and those around it, up to a tier.
    pub(in crate::cycle) fn up_to(&self, id: DomainId, widest: usize) -> impl Iterator<Item = DomainId> + '_ {
        let up = std::iter::successors(Some(id), |&id| (id != DomainId::ROOT).then(|| self.parent(id)));
        up.take_while(move |&id| self.tier(id) <= widest)
    }

    /// Returns the widest domain of a tier, or of narrower ones, that contains a node. Such domains share no nodes.
    pub(in crate::cycle) fn widest_around(&self, position: u32, widest: usize) -> Option<DomainId> {
        self.up_to(self.nodes[position as usize].domain, widest).last()
    }

    /// Returns the domain after another one, in an order in which those inside of a domain follow it.
    pub(in crate::cycle) fn next(&self, id: DomainId) -> Option<DomainId> {
        (id.index() + 1 < self.domains.len()).then_some(DomainId(id.0 + 1))
    }

    /// Returns whether a domain is another one, or inside of it.
    pub(in crate::cycle) fn is_within(&self, id: DomainId, outer: DomainId) -> bool {
        id >= outer && (outer == DomainId::ROOT || self.range(id).start < self.range(outer).end)
    }

    /// Returns whether a domain inside of another one is of a tier or a narrower one, and none around it there is, too.
    pub(in crate::cycle) fn is_widest_in(&self, id: DomainId, widest: usize, outer: DomainId) -> bool {
        self.tier(id) <= widest && (id == outer || self.tier(self.parent(id)) > widest)
    }

    /// Returns the domains that contain a node, from the smallest to the widest, without the root.
    pub(super) fn of_node(&self, position: u32) -> impl Iterator<Item = DomainId> + '_ {
        let up = self.up_to(self.nodes[position as usize].domain, self.tiers.len());
        up.take_while(|&id| id != DomainId::ROOT)
    }
}

#[cfg(test)]
mod tests;
