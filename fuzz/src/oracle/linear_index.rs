//! The index as a plain list of slots.

use std::collections::BTreeSet;

use wharf_core::index::{ResourceVector, Slot};
use wharf_core::request::Policy;

use super::{Choice, Fitting, Space, choose};

#[derive(Clone, Debug)]
struct Existing {
    ordinal: u64,
    slot: Slot,
    available: ResourceVector,
}

/// A model of [`DistBuckets`](wharf_core::index::DistBuckets) that gives the correct answers.
#[derive(Clone, Debug)]
pub struct LinearIndex {
    space: Space,
    /// The nodes in order of registration.
    nodes: Vec<Existing>,
    /// The ordinal of NextFit's last choice.
    cursor: u64,
}

/// Returns whether `available` covers `asked` in every value, indexed or not.
pub(crate) fn covers(available: &ResourceVector, asked: &ResourceVector) -> bool {
    available.cpu.units() >= asked.cpu.units()
        && available.memory.units() >= asked.memory.units()
        && available.whole_gpus >= asked.whole_gpus
        && available.largest_gpu_part >= asked.largest_gpu_part
        && available.custom.iter().zip(&asked.custom).all(|(has, asks)| has.units() >= asks.units())
}

impl LinearIndex {
    /// Creates an empty list over `space`.
    #[must_use]
    pub fn new(space: Space) -> Self {
        Self { space, nodes: Vec::new(), cursor: 0 }
    }

    /// Replaces the space by one with another granularity.
    pub fn regrain(&mut self, space: Space) {
        self.space = space;
    }

    /// Returns the availability of a node.
    #[must_use]
    pub fn available(&self, slot: Slot) -> ResourceVector {
        let node = self.nodes.iter().find(|node| node.slot == slot);
        node.expect("the node is in the list").available
    }

    /// Inserts a node at its place in the order of registration.
    pub fn insert(&mut self, slot: Slot, ordinal: u64, available: ResourceVector) {
        let mut place = 0;
        while place < self.nodes.len() && self.nodes[place].ordinal < ordinal {
            place += 1;
        }
        self.nodes.insert(place, Existing { ordinal, slot, available });
    }

    /// Removes a node.
    pub fn remove(&mut self, slot: Slot) {
        self.nodes.retain(|node| node.slot != slot);
    }

    /// Sets the availability of a node.
    pub fn update(&mut self, slot: Slot, available: ResourceVector) {
        for node in &mut self.nodes {
            if node.slot == slot {
                node.available = available;
            }
        }
    }

    /// Returns the number of nodes in the list.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether the list has no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns what `policy` answers among the nodes that cover `asked` and satisfy `member`. Nodes are
    /// compared in attribute order `order`.
    pub fn select(
        &mut self,
        order: usize,
        policy: Policy,
        asked: &ResourceVector,
        member: impl Fn(Slot) -> bool,
    ) -> Choice<Slot> {
        let fitting: Vec<Fitting<Slot>> = self
            .nodes
            .iter()
            .filter(|node| covers(&node.available, asked) && member(node.slot))
            .map(|node| Fitting {
                ordinal: node.ordinal,
                coordinate: self.space.compared(order, &node.available),
                node: node.slot,
            })
            .collect();
        choose(policy, &fitting, &mut self.cursor)
    }

    /// Returns whether the node is in the list and covers `asked`: the exact check of a search.
    #[must_use]
    pub fn holds(&self, slot: Slot, asked: &ResourceVector) -> bool {
        self.nodes.iter().any(|node| node.slot == slot && covers(&node.available, asked))
    }

    /// Returns the ordinal of NextFit's last choice, or zero before the first.
    #[must_use]
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Returns the coordinate of every node.
    #[must_use]
    pub fn coordinates(&self) -> Vec<(Slot, Vec<i64>)> {
        self.nodes.iter().map(|node| (node.slot, self.space.coordinate(&node.available))).collect()
    }

    /// Returns the coordinate of a request.
    #[must_use]
    pub fn asked(&self, asked: &ResourceVector) -> Vec<i64> {
        self.space.coordinate(asked)
    }

    /// Returns the largest coordinate per dimension over all nodes.
    #[must_use]
    pub fn highest(&self) -> Vec<i64> {
        let mut highest = vec![0; self.space.dimensions().len()];
        for (_, coordinate) in self.coordinates() {
            for (high, step) in highest.iter_mut().zip(coordinate) {
                *high = step.max(*high);
            }
        }
        highest
    }

    /// Returns the number of non-empty buckets: the root and every prefix of a coordinate.
    #[must_use]
    pub fn bucket_count(&self) -> usize {
        let mut prefixes = BTreeSet::from([Vec::new()]);
        let leaves: BTreeSet<Vec<i64>> = self.coordinates().into_iter().map(|(_, leaf)| leaf).collect();
        for coordinate in leaves {
            for length in 1..=coordinate.len() {
                prefixes.insert(coordinate[..length].to_vec());
            }
        }
        prefixes.len()
    }
}
