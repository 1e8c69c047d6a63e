//! What nodes have room for: what an explanation says in addition to the counts of a refusal.

use super::Refusal;
use crate::ids::NodeId;
use crate::resource::ResourceKind;

/// Amounts by kind, in 1/10,000 of a unit.
pub type KindAmounts = Vec<(ResourceKind, i64)>;

/// A node on which a request would fit if more were free there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// The node.
    pub node: NodeId,
    /// How many of these requests it could hold now, at least.
    pub places: u64,
    /// What it lacks for one more of them, by kind.
    pub lacks: KindAmounts,
    /// Whether it could hold the request if it were empty. If not, it is too small.
    pub is_large_enough: bool,
    /// The sum of what it lacks, each in 1/10,000 of what is asked for.
    shortage: u64,
}

impl Nearest {
    /// Creates it from what the node lacks, each kind with what is asked for. It has room for `places` of the requests.
    pub(crate) fn new(
        node: NodeId,
        places: u64,
        lacks: &[(ResourceKind, i64, i64)],
        is_large_enough: bool,
    ) -> Self {
        let part = |&(_, lacks, asked): &(ResourceKind, i64, i64)| {
            let part = i128::from(lacks) * 10_000 / i128::from(asked.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let shortage = lacks.iter().map(part).fold(0, u64::saturating_add);
        let lacks = lacks.iter().map(|&(kind, lacks, _)| (kind, lacks)).collect();
        Self { node, places, lacks, is_large_enough, shortage }
    }

    /// Returns the order: nodes that are large enough first, then those that lack few kinds, then those that lack little.
    fn turn(&self) -> (bool, usize, u64, NodeId) {
        (!self.is_large_enough, self.lacks.len(), self.shortage, self.node)
    }
}

/// A node like which others would help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The node.
    pub node: NodeId,
    /// How many of the requests it could hold if it were empty, at least 1.
    pub holds: u64,
}

/// What one node has room for.
#[derive(Clone, Debug)]
pub(crate) struct NodeLook {
    /// The node.
    pub(crate) node: NodeId,
    /// How many of the requests it could hold now, at least.
    pub(crate) places: u64,
    /// How many it could hold if it were empty, at least.
    pub(crate) empty: u64,
    /// What it lacks for one more of them.
    pub(crate) nearest: Option<Nearest>,
}

impl NodeLook {
    /// Returns it as a node like which others would help.
    pub(crate) fn sample(&self) -> Sample {
        Sample { node: self.node, holds: self.empty }
    }
}

/// What the nodes that labels and taints allow for a request have room for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRoom {
    /// The number of nodes that could hold the request now.
    pub fits: u64,
    /// How many of such requests all nodes together could hold now, at least.
    pub places: u64,
    /// The number of nodes that have enough GPU in total, but not in one device or not in whole devices.
    pub fragmented: u64,
    /// What is free on all of them together, of the kinds that the request asks for.
    pub free: KindAmounts,
    /// The node that lacks least for one more of these requests.
    pub nearest: Option<Nearest>,
    /// The node that could hold most of these requests if it were empty.
    pub sample: Option<Sample>,
}

impl NodeRoom {
    /// Adds a node, without what is free there.
    pub(crate) fn add(&mut self, look: &NodeLook) {
        self.fits += u64::from(look.places > 0);
        self.places += look.places;
        if let Some(nearest) = &look.nearest {
            self.offer(nearest);
        }
        self.offer_sample(look.sample());
    }

    /// Adds what is free of a kind.
    pub(crate) fn add_free(&mut self, kind: ResourceKind, amount: i64) {
        match self.free.iter_mut().find(|(of, _)| *of == kind) {
            Some((_, sum)) => *sum = sum.saturating_add(amount),
            None => self.free.push((kind, amount)),
        }
    }

    /// Takes over a node if it lacks less than the one that is known.
    pub(crate) fn offer(&mut self, nearest: &Nearest) {
        if self.nearest.as_ref().is_none_or(|known| nearest.turn() < known.turn()) {
            self.nearest = Some(nearest.clone());
        }
    }

    /// Takes over a node if it holds more than the one that is known.
    pub(crate) fn offer_sample(&mut self, sample: Sample) {
        let turn = |of: &Sample| (std::cmp::Reverse(of.holds), of.node);
        if sample.holds > 0 && self.sample.is_none_or(|known| turn(&sample) < turn(&known)) {
            self.sample = Some(sample);
        }
    }
}

/// The counts over nodes for one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// The nodes that fail each check. A node that lacks several kinds counts under each.
    pub refusal: Refusal,
    /// What the others have room for.
    pub room: NodeRoom,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_lacks_one_kind_is_nearer_than_one_that_lacks_two() {
        let mut room = NodeRoom::default();
        let [cpu, memory] = [ResourceKind::Cpu, ResourceKind::Memory];
        room.offer(&Nearest::new(NodeId(1), 0, &[(cpu, 1, 10), (memory, 1, 10)], true));
        room.offer(&Nearest::new(NodeId(2), 0, &[(cpu, 9, 10)], true));
        assert_eq!(room.nearest.as_ref().map(|of| of.node), Some(NodeId(2)));
        room.offer(&Nearest::new(NodeId(3), 0, &[(memory, 8, 10)], true));
        assert_eq!(room.nearest.as_ref().map(|of| of.node), Some(NodeId(3)), "it lacks a smaller part");
        room.offer(&Nearest::new(NodeId(4), 0, &[(cpu, 1, 10)], false));
        assert_eq!(room.nearest.as_ref().map(|of| of.node), Some(NodeId(3)), "the other is too small");
    }

    #[test]
    fn the_node_that_holds_most_is_the_sample_and_of_equal_ones_the_first() {
        let mut room = NodeRoom::default();
        for (node, holds) in [(1, 0), (2, 3), (3, 5), (4, 5)] {
            room.offer_sample(Sample { node: NodeId(node), holds });
        }
        assert_eq!(room.sample, Some(Sample { node: NodeId(3), holds: 5 }));
    }
}
