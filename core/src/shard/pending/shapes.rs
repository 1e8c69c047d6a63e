//! The distinct shapes of waiting requests, found by what a node has available and by its properties. This is
//! the dual of the bucket tree. The tree finds nodes that are large enough for a request. This finds requests
//! that are small enough for a node, in the order in which they are woken.
//!
//! A shape is *filed* under something that a node needs to hold it: a candidate that it names, a label, or a
//! custom kind. A node looks only at the files of what it has, and at the file of the shapes that need none of
//! these. The shapes of a file are the leaves of a binary tree over the interleaved bits of their demands, so
//! that similar shapes are close together. Each vertex has the minimum demand below it per dimension, and the
//! first turn. A subtree is skipped if even its minimum is too large. The others are visited in the order of
//! their first turns.

use crate::broken::{Broken, broken};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use slab::Slab;

use super::Turn;
use crate::ids::{NodeId, ResourceId};
use crate::index::ResourceVector;
use crate::limits::{FILED_CANDIDATES_MAX, FILED_VALUES_MAX};
use crate::map::FixedMap;
use crate::memory;
use crate::node::{Labels, Operator, Selector, Term};
use crate::request::PlacementRequest;
use crate::resource::Amount;

/// The number of dimensions: cpu, memory, whole GPUs, part of a GPU.
const DIMENSIONS: usize = 4;
/// The number of bits of a [`Key`].
const KEY_BITS: u32 = u128::BITS;
/// The number of bits per dimension in a key.
const GRAIN_BITS: u32 = 16;
/// The number of leading bits of an amount that a key contains. Amounts that agree in them count as equal
/// there.
const GRAIN_DIGITS: u32 = 10;

const _: () = assert!(
    DIMENSIONS as u32 * GRAIN_BITS + usize::BITS <= KEY_BITS,
    "a key has the digits of all dimensions, then the number of the shape"
);

/// The demand in each dimension.
pub(crate) type Asked = [i64; DIMENSIONS];

/// The position of a shape in the tree of a file. Unique per shape.
type Key = u128;

/// The number of a vertex.
type Vertex = usize;

/// Converts a vector to the form that is compared here.
pub(crate) fn asked(vector: &ResourceVector) -> Asked {
    let whole = i64::from(vector.whole_gpus);
    let part = i64::from(vector.largest_gpu_part);
    [vector.cpu.units(), vector.memory.units(), whole, part]
}

/// Returns whether the demand does not exceed what is available.
#[inline]
pub(crate) fn fits(asked: &Asked, available: &Asked) -> bool {
    asked.iter().zip(available).all(|(asked, available)| asked <= available)
}

/// Returns a number that grows with the amount and is so small that four of them fit a word.
fn grain(amount: i64) -> u64 {
    let amount = amount.unsigned_abs();
    let exponent = (u64::BITS - amount.leading_zeros()).saturating_sub(GRAIN_DIGITS);
    (u64::from(exponent) << (GRAIN_DIGITS - 1)) + (amount >> exponent)
}

fn key_of(asked: &Asked, shape: usize) -> Key {
    let grains = asked.map(grain);
    let mut key: Key = 0;
    for digit in (0..GRAIN_BITS).rev() {
        for grain in grains {
            key = key << 1 | Key::from(grain >> digit & 1);
        }
    }
    key << usize::BITS | shape as Key
}

/// Returns bit number `at` of a key, counted from the highest.
#[inline]
fn digit(key: Key, at: u32) -> usize {
    (key >> (KEY_BITS - 1 - at) & 1) as usize
}

/// The properties of the shapes below a vertex that a search uses to skip it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    /// The minimum demand per dimension among the shapes with a first turn.
    pub(crate) least: Asked,
    /// The first turn. `None` if no copy waits to be woken.
    pub(crate) first: Option<Turn>,
    /// True if a shape belongs to an owner, who sees more of a node that is reserved for it.
    pub(crate) owned: bool,
}

impl Summary {
    const NOTHING: Self = Self { least: [i64::MAX; DIMENSIONS], first: None, owned: false };

    /// Returns the summary of one shape.
    pub(crate) fn of(asked: &Asked, first: Option<Turn>, owned: bool) -> Self {
        if first.is_none() { Self::NOTHING } else { Self { least: *asked, first, owned } }
    }

    fn or(&self, other: &Self) -> Self {
        let mut least = self.least;
        least.iter_mut().zip(&other.least).for_each(|(least, other)| *least = (*least).min(*other));
        let first = match (self.first, other.first) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        Self { least, first, owned: self.owned || other.owned }
    }
}

/// The content of a vertex.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Below {
    /// One shape.
    Shape(usize),
    /// Two vertices.
    Two([Vertex; 2]),
}

struct Entry {
    summary: Summary,
    /// The key of the shape, or for two vertices the key of one of the shapes below.
    key: Key,
    /// The first bit in which the shapes below differ.
    differs: u32,
    below: Below,
}

/// The trees of all files.
#[derive(Default)]
struct Trees {
    entries: Slab<Entry>,
    /// The path from a root to a leaf, while it is in use.
    way: Vec<Vertex>,
}

/// The root of the tree of one file. `None` if it is empty.
type Root = Option<Vertex>;

impl Trees {
    /// Fills the path with the vertices from the root down to the leaf of `key`, without the leaf. Stops where
    /// the key would branch off at bit `differs`. Returns the vertex below the path.
    fn descend(&mut self, root: Vertex, key: Key, differs: u32) -> Vertex {
        self.way.clear();
        let mut at = root;
        let mut above = None;
        while let Entry { below: Below::Two(two), differs: own, .. } = self.entries[at]
            && own < differs
        {
            assert!(above < Some(own), "the bits of a way do not ascend");
            above = Some(own);
            self.way.push(at);
            at = two[digit(key, own)];
        }
        at
    }

    /// Replaces `before` with `now`, below the last vertex of the path.
    fn exchange(&mut self, root: &mut Root, before: Vertex, now: Vertex) {
        let Some(&above) = self.way.last() else {
            *root = Some(now);
            return;
        };
        let Below::Two(two) = &mut self.entries[above].below else {
            unreachable!("a way leads through vertices that branch")
        };
        let side = usize::from(two[1] == before);
        assert!(two[side] == before, "a vertex is not below its way");
        two[side] = now;
    }

    /// Updates the summaries on the path.
    fn settle(&mut self) {
        while let Some(at) = self.way.pop() {
            let Below::Two([one, two]) = self.entries[at].below else {
                unreachable!("a way leads through vertices that branch")
            };
            let summary = self.entries[one].summary.or(&self.entries[two].summary);
            if self.entries[at].summary == summary {
                return;
            }
            self.entries[at].summary = summary;
        }
    }

    fn insert(&mut self, root: &mut Root, key: Key, shape: usize, summary: Summary) {
        let leaf = Entry { summary, key, differs: KEY_BITS, below: Below::Shape(shape) };
        let leaf = self.entries.insert(leaf);
        let Some(top) = *root else {
            *root = Some(leaf);
            return;
        };
        let closest = self.descend(top, key, KEY_BITS);
        assert!(matches!(self.entries[closest].below, Below::Shape(_)), "a way ends above the shapes");
        let differs = (key ^ self.entries[closest].key).leading_zeros();
        assert!(differs < KEY_BITS, "shape {shape} is filed twice");
        let sibling = self.descend(top, key, differs);
        let mut two = [sibling; 2];
        two[digit(key, differs)] = leaf;
        let summary = Summary::NOTHING;
        let branch = self.entries.insert(Entry { summary, key, differs, below: Below::Two(two) });
        self.exchange(root, sibling, branch);
        self.way.push(branch);
        self.settle();
    }

    fn leaf(&mut self, root: Root, key: Key) -> Vertex {
        let leaf = self.descend(root.expect("a shape is in its files"), key, KEY_BITS);
        assert!(self.entries[leaf].key == key, "a shape is in its files");
        assert!(matches!(self.entries[leaf].below, Below::Shape(_)), "a way ends above the shapes");
        leaf
    }

    fn remove(&mut self, root: &mut Root, key: Key) {
        let leaf = self.leaf(*root, key);
        self.entries.remove(leaf);
        let Some(branch) = self.way.pop() else {
            *root = None;
            return;
        };
        let Below::Two([one, two]) = self.entries.remove(branch).below else {
            unreachable!("a way leads through vertices that branch")
        };
        assert!(one == leaf || two == leaf, "a shape is not below its way");
        self.exchange(root, branch, if one == leaf { two } else { one });
        self.settle();
    }

    fn refresh(&mut self, root: Root, key: Key, summary: Summary) {
        let leaf = self.leaf(root, key);
        if self.entries[leaf].summary != summary {
            self.entries[leaf].summary = summary;
            self.settle();
        }
    }
}

/// The property under which a shape is filed.
#[derive(Clone, Debug)]
pub(crate) enum Filed {
    /// No property: every node looks at the shape.
    Anywhere,
    /// Each of the nodes that the shape names.
    Nodes(Arc<[NodeId]>),
    /// A custom kind that it asks.
    Kind(ResourceId),
    /// A label that a term of its selector needs: each of the values, or the key alone.
    Label(Arc<Selector>, usize),
}

impl Filed {
    /// Returns the best property for `request`. `nodes_with` returns an upper bound on the nodes for which a
    /// term holds, or `None` if the term holds without the label.
    pub(crate) fn of(request: &PlacementRequest, nodes_with: impl Fn(&Term) -> Option<usize>) -> Self {
        if let Some(ids) = request.candidates.as_ref().filter(|ids| ids.len() <= FILED_CANDIDATES_MAX) {
            return Self::Nodes(Arc::clone(ids));
        }
        let rules = request.preferences.as_ref().and_then(|preferences| preferences.rules.as_ref());
        let only = rules.is_none_or(|rules| rules.fallbacks().is_empty());
        if let Some(selector) = request.selector.as_ref().filter(|_| only) {
            let terms = (0..).zip(selector.terms());
            let rarest = terms.filter_map(|(at, term)| Some((nodes_with(term)?, at))).min();
            if let Some((_, at)) = rarest {
                return Self::Label(Arc::clone(selector), at);
            }
        }
        let needed = request.demand.custom().iter().find(|&&(_, amount)| amount > Amount::ZERO);
        needed.map_or(Self::Anywhere, |&(kind, _)| Self::Kind(kind))
    }

    /// Returns the number of files that contain the shape.
    pub(crate) fn files(&self) -> usize {
        match self {
            Self::Anywhere | Self::Kind(_) => 1,
            Self::Nodes(ids) => (0..ids.len()).filter(|&at| at == 0 || ids[at - 1] != ids[at]).count(),
            Self::Label(selector, at) => Self::values(&selector.terms()[*at]).map_or(1, <[String]>::len),
        }
    }

    /// Returns the values under which it is filed, or `None` if it is filed under the key alone.
    fn values(term: &Term) -> Option<&[String]> {
        let each = term.operator == Operator::In && term.values.len() <= FILED_VALUES_MAX;
        each.then_some(&term.values)
    }
}

/// The files of one label.
#[derive(Default)]
struct LabelFiles {
    /// Shapes filed under the key alone.
    any: Root,
    values: BTreeMap<String, Root>,
}

/// The properties of a node under which shapes are filed.
pub(crate) struct Having<'a> {
    pub(crate) node: NodeId,
    pub(crate) labels: &'a Labels,
    pub(crate) kinds: &'a mut dyn Iterator<Item = ResourceId>,
}

/// The vertices that a search has yet to visit, with the first turn on top.
pub(crate) type Open = BinaryHeap<Reverse<(Turn, Vertex)>>;

/// All shapes, by what they need and by their demand.
#[derive(Default)]
pub(crate) struct ShapeFiles {
    trees: Trees,
    anywhere: Root,
    by_node: FixedMap<NodeId, Root>,
    by_kind: FixedMap<ResourceId, Root>,
    by_label: BTreeMap<String, LabelFiles>,
}

impl ShapeFiles {
    /// Adds a shape to its files. Its number can be reused after it is removed.
    pub(crate) fn insert(&mut self, filed: &Filed, asked: &Asked, shape: usize, summary: Summary) {
        let key = key_of(asked, shape);
        self.each_file(filed, |trees, root| trees.insert(root, key, shape, summary));
    }

    /// Removes a shape from its files.
    pub(crate) fn remove(&mut self, filed: &Filed, asked: &Asked, shape: usize) {
        let key = key_of(asked, shape);
        self.each_file(filed, |trees, root| trees.remove(root, key));
    }

    /// Updates the summary of a shape after its first turn changed.
    pub(crate) fn refresh(&mut self, filed: &Filed, asked: &Asked, shape: usize, summary: Summary) {
        let key = key_of(asked, shape);
        self.each_file(filed, |trees, root| trees.refresh(*root, key, summary));
    }

    fn each_file(&mut self, filed: &Filed, mut change: impl FnMut(&mut Trees, &mut Root)) {
        let trees = &mut self.trees;
        match filed {
            Filed::Anywhere => change(trees, &mut self.anywhere),
            Filed::Nodes(ids) => {
                for (at, &id) in ids.iter().enumerate() {
                    assert!(at == 0 || ids[at - 1] <= id, "the candidates of a request are not sorted");
                    // The ids are sorted but may contain duplicates.
                    if at == 0 || ids[at - 1] != id {
                        let root = self.by_node.entry(id).or_default();
                        change(trees, root);
                        if root.is_none() {
                            self.by_node.remove(&id);
                        }
                    }
                }
            }
            Filed::Kind(kind) => {
                let root = self.by_kind.entry(*kind).or_default();
                change(trees, root);
                if root.is_none() {
                    self.by_kind.remove(kind);
                }
            }
            Filed::Label(selector, at) => {
                let term = &selector.terms()[*at];
                if !self.by_label.contains_key(&term.key) {
                    self.by_label.insert(term.key.clone(), LabelFiles::default());
                }
                let files = self.by_label.get_mut(&term.key).expect("put in above");
                match Filed::values(term) {
                    None => change(trees, &mut files.any),
                    Some(values) => {
                        for value in values {
                            let root = files.values.entry(value.clone()).or_default();
                            change(trees, root);
                            if root.is_none() {
                                files.values.remove(value);
                            }
                        }
                    }
                }
                if files.any.is_none() && files.values.is_empty() {
                    self.by_label.remove(&term.key);
                }
            }
        }
    }

    /// Returns the summary and the content of a vertex.
    #[inline]
    pub(crate) fn vertex(&self, at: Vertex) -> (&Summary, Below) {
        let entry = &self.trees.entries[at];
        (&entry.summary, entry.below)
    }

    /// Adds `at` to the vertices that a search visits.
    #[inline]
    pub(crate) fn open(&self, at: Vertex, open: &mut Open) {
        if let Some(first) = self.trees.entries[at].summary.first {
            open.push(Reverse((first, at)));
        }
    }

    /// Begins a search with the files for a node's properties. Returns the number of files that were looked up.
    pub(crate) fn open_for(&self, having: Having<'_>, open: &mut Open) -> u64 {
        let mut looks = 1;
        let mut add = |root: Option<&Root>| {
            looks += 1;
            if let Some(&Some(root)) = root {
                self.open(root, open);
            }
        };
        add(Some(&self.anywhere));
        if !self.by_node.is_empty() {
            add(self.by_node.get(&having.node));
        }
        if !self.by_kind.is_empty() {
            having.kinds.for_each(|kind| add(self.by_kind.get(&kind)));
        }
        let mut add_label = |files: &LabelFiles, value: &str| {
            add(Some(&files.any));
            add(files.values.get(value));
        };
        if self.by_label.len() <= having.labels.len() {
            for (key, files) in &self.by_label {
                if let Some(value) = having.labels.get(key) {
                    add_label(files, value);
                }
            }
        } else {
            for (key, value) in having.labels.iter() {
                if let Some(files) = self.by_label.get(key) {
                    add_label(files, value);
                }
            }
        }
        looks
    }

    /// Returns the bytes of the trees and files.
    pub(crate) fn memory(&self) -> u64 {
        let of_files = |(key, files): (&String, &LabelFiles)| {
            let texts: usize = files.values.keys().map(String::capacity).sum();
            let values = memory::of_btree(files.values.len(), size_of::<(String, Root)>());
            (key.capacity() + texts) as u64 + values
        };
        let labels = memory::of_btree(self.by_label.len(), size_of::<(String, LabelFiles)>())
            + self.by_label.iter().map(of_files).sum::<u64>();
        let trees = self.trees.entries.capacity() * size_of::<Entry>();
        trees as u64 + memory::of_map(&self.by_node) + memory::of_map(&self.by_kind) + labels
    }

    /// Checks that each summary matches what is below, and that the number of shapes found equals the number
    /// filed.
    pub(crate) fn check(&self, filed: usize) -> Result<(), Broken> {
        let labels = self.by_label.values().flat_map(|files| files.values.values().chain([&files.any]));
        let roots = self.by_node.values().chain(self.by_kind.values()).chain([&self.anywhere]).chain(labels);
        let mut left: Vec<Vertex> = roots.filter_map(|&root| root).collect();
        let mut found = 0;
        while let Some(at) = left.pop() {
            match self.trees.entries[at].below {
                Below::Shape(_) => found += 1,
                Below::Two(two) => {
                    let [one, other] = two.map(|at| self.trees.entries[at].summary);
                    if self.trees.entries[at].summary != one.or(&other) {
                        return Err(broken!("a stale summary of waiting shapes at vertex {at}"));
                    }
                    left.extend(two);
                }
            }
        }
        if found == filed {
            Ok(())
        } else {
            Err(broken!("{found} waiting shapes are found, {filed} are filed"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::shard::WaitToken;
    use crate::time::Time;

    fn turn(number: u64) -> Turn {
        (Reverse(0), Time(number), WaitToken { port: 0, number })
    }

    /// Returns the shapes that fit `available`, in the order of their turns, and the number of vertices looked
    /// at.
    fn within(files: &ShapeFiles, available: &Asked) -> (Vec<usize>, usize) {
        let mut open = Open::new();
        let mut found = Vec::new();
        let mut looks = 0;
        let labels = Labels::default();
        files.open_for(Having { node: NodeId(1), labels: &labels, kinds: &mut [].into_iter() }, &mut open);
        while let Some(Reverse((_, at))) = open.pop() {
            looks += 1;
            let (summary, below) = files.vertex(at);
            match below {
                _ if !fits(&summary.least, available) => {}
                Below::Shape(shape) => found.push(shape),
                Below::Two(two) => two.into_iter().for_each(|at| files.open(at, &mut open)),
            }
        }
        (found, looks)
    }

    #[test]
    fn exactly_the_shapes_within_are_found_in_turn() {
        let mut rng = Rng::new(5);
        let mut draw = |bound: u64| [0; DIMENSIONS].map(|_: u8| rng.below(bound) as i64);
        let mut files = ShapeFiles::default();
        let mut all: Vec<Option<Asked>> = Vec::new();
        for _ in 0..600 {
            let asked = draw(6);
            let shape = all.len();
            let first = Some(turn(shape as u64 * 7919 % 1000));
            files.insert(&Filed::Anywhere, &asked, shape, Summary::of(&asked, first, false));
            all.push(Some(asked));
            if all.len().is_multiple_of(3) {
                let gone = all.len() / 2;
                if let Some(asked) = all[gone].take() {
                    files.remove(&Filed::Anywhere, &asked, gone);
                }
            }
            files.check(all.iter().flatten().count()).unwrap();
            let available = draw(7);
            let mut right: Vec<usize> =
                (0..all.len()).filter(|&at| all[at].is_some_and(|asked| fits(&asked, &available))).collect();
            right.sort_unstable_by_key(|shape| shape * 7919 % 1000);
            assert_eq!(within(&files, &available).0, right);
        }
    }

    #[test]
    fn a_shape_without_a_turn_is_not_looked_for() {
        let mut files = ShapeFiles::default();
        for shape in 0..4 {
            let asked = [shape as i64 + 1, 0, 0, 0];
            files.insert(&Filed::Anywhere, &asked, shape, Summary::of(&asked, Some(turn(9)), false));
        }
        files.refresh(&Filed::Anywhere, &[1, 0, 0, 0], 0, Summary::NOTHING);
        assert_eq!(within(&files, &[1, 9, 9, 9]), (Vec::new(), 1), "the root says that none is so small");
        let mut found = within(&files, &[3, 9, 9, 9]).0;
        found.sort_unstable();
        assert_eq!(found, [1, 2]);
    }

    #[test]
    fn grains_grow_with_the_amount() {
        let powers = (13..54).flat_map(|bit| [(1i64 << bit) - 1, 1 << bit]);
        let grains: Vec<u64> = (0..5000).chain(powers).map(grain).collect();
        assert!(grains.is_sorted() && grains.iter().all(|&grain| grain < 1 << GRAIN_BITS), "{grains:?}");
    }

    /// Equal numbers of shapes in the same file: half need too much cpu, the others too much memory.
    #[test]
    fn few_vertices_are_looked_at_where_each_asks_too_much_of_something() {
        for count in [1_000, 16_384] {
            let mut files = ShapeFiles::default();
            for shape in 0..count {
                let number = shape as i64;
                let asked =
                    if shape % 2 == 0 { [10_001 + number, 1, 0, 0] } else { [number, 90_000 + number, 0, 0] };
                files.insert(&Filed::Anywhere, &asked, shape, Summary::of(&asked, Some(turn(1)), false));
            }
            let (found, looks) = within(&files, &[10_000, 50_000, 0, 0]);
            assert!(found.is_empty() && looks <= 64, "{looks} looks among {count}");
        }
    }
}
