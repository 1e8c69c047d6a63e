//! Names and partitions of all nodes by node id, as a persistent tree. Versions share equal parts.
//!
//! A clone takes one reference. A change copies the leaf of its id and the branches above it, unless no
//! published version shares them. The cost of publishing after a change does not depend on the number of
//! nodes.

use std::sync::Arc;

use crate::ids::{NodeId, PartitionId};

/// The number of ids of one leaf.
const LEAF: usize = 64;
/// The number of children of a branch.
const FAN: usize = 16;

type Entry = (Arc<str>, PartitionId);

#[derive(Clone, Debug)]
enum Tree {
    // Boxed, so that a branch does not take the size of a leaf.
    Leaf(Box<[Option<Entry>; LEAF]>),
    Branch([Option<Arc<Self>>; FAN]),
}

impl Tree {
    fn empty(height: u32) -> Self {
        if height == 0 {
            Self::Leaf(Box::new([const { None }; LEAF]))
        } else {
            Self::Branch([const { None }; FAN])
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Leaf(entries) => entries.iter().all(Option::is_none),
            Self::Branch(children) => children.iter().all(Option::is_none),
        }
    }

    /// Returns the number of references that copying this vertex takes.
    fn width(&self) -> u64 {
        if matches!(self, Self::Leaf(_)) { LEAF as u64 } else { FAN as u64 }
    }
}

/// Returns the number of ids below one child of a branch of this height.
fn span(height: u32) -> u64 {
    (LEAF as u64).saturating_mul((FAN as u64).saturating_pow(height - 1))
}

/// Returns the number of lowest bits of an id that say its place below one child of a branch of this height.
fn bits_below(height: u32) -> u32 {
    const { assert!(LEAF.is_power_of_two() && FAN.is_power_of_two()) };
    LEAF.ilog2() + FAN.ilog2() * (height - 1)
}

/// The names and partitions of nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Directory {
    root: Option<Arc<Tree>>,
    /// The number of branch levels above a leaf.
    height: u32,
    /// The number of references copied so far because an earlier version shared the part.
    copied: u64,
}

impl Directory {
    /// Returns the number of references that changes have copied so far.
    pub(super) fn copied(&self) -> u64 {
        self.copied
    }

    /// Returns the name and partition of a node.
    #[inline]
    pub(super) fn get(&self, id: NodeId) -> Option<&Entry> {
        let mut tree = self.root.as_deref()?;
        let mut height = self.height;
        // By shifts: each grant looks up a name, and a division per level took longer than all the rest.
        if height > 0 && id.0.checked_shr(bits_below(height)).is_some_and(|child| child >= FAN as u64) {
            return None;
        }
        loop {
            match tree {
                Tree::Leaf(entries) if height == 0 && self.height == 0 => {
                    return entries.get(usize::try_from(id.0).ok()?)?.as_ref();
                }
                Tree::Leaf(entries) => return entries[(id.0 % LEAF as u64) as usize].as_ref(),
                Tree::Branch(children) => {
                    let child = id.0.checked_shr(bits_below(height)).unwrap_or(0) % FAN as u64;
                    tree = children[child as usize].as_deref()?;
                    height -= 1;
                }
            }
        }
    }

    /// Adds a node, or removes it if `entry` is `None`.
    pub(super) fn set(&mut self, id: NodeId, entry: Option<Entry>) {
        let root = self.root.get_or_insert_with(|| Arc::new(Tree::empty(0)));
        while id.0 / (LEAF as u64) >= (FAN as u64).saturating_pow(self.height) {
            self.height += 1;
            let mut above = Tree::empty(self.height);
            if let Tree::Branch(children) = &mut above {
                children[0] = Some(Arc::clone(root)).filter(|below| !below.is_empty());
            }
            *root = Arc::new(above);
        }
        set(root, (self.height, id.0), entry, &mut self.copied);
    }
}

/// Sets the entry of an id below `tree`, and drops parts below it that become empty.
fn set(tree: &mut Arc<Tree>, (height, id): (u32, u64), entry: Option<Entry>, copied: &mut u64) {
    if Arc::strong_count(tree) > 1 {
        *copied += tree.width();
    }
    match Arc::make_mut(tree) {
        Tree::Leaf(entries) => entries[(id % LEAF as u64) as usize] = entry,
        Tree::Branch(children) => {
            let child = &mut children[(id / span(height) % FAN as u64) as usize];
            let is_gone = entry.is_none();
            let below = child.get_or_insert_with(|| Arc::new(Tree::empty(height - 1)));
            set(below, (height - 1, id), entry, copied);
            if is_gone && below.is_empty() {
                *child = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::rng::Rng;

    fn entry(number: u64) -> Entry {
        (format!("node-{number}").into(), PartitionId((number % 256) as u16))
    }

    /// Compares the directory with a map, over sparse ids, and checks that old versions stay unchanged.
    #[test]
    fn it_is_a_map_and_its_versions_stay() {
        let mut rng = Rng::new(1);
        let mut directory = Directory::default();
        let mut truth = BTreeMap::new();
        let mut versions = Vec::new();
        for round in 0..20_000 {
            let id = rng.below(500) << (8 * rng.below(7));
            let value = rng.below(3).checked_sub(1).map(|_| entry(round));
            directory.set(NodeId(id), value.clone());
            match value {
                Some(value) => truth.insert(id, value),
                None => truth.remove(&id),
            };
            if round % 1000 == 0 {
                versions.push((directory.clone(), truth.clone()));
            }
        }
        for (directory, truth) in versions {
            for base in (0..7).map(|shift| 8 * shift) {
                for id in (0..501).map(|id: u64| id << base) {
                    assert_eq!(directory.get(NodeId(id)), truth.get(&id), "{id}");
                }
            }
            assert_eq!(directory.get(NodeId(u64::MAX)), None);
        }
        let ids: Vec<u64> = truth.keys().copied().collect();
        ids.into_iter().for_each(|id| directory.set(NodeId(id), None));
        assert!(directory.root.is_some_and(|root| root.is_empty()), "what is empty is dropped");
    }
}
