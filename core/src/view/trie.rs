//! A persistent array: a tree of chunks whose versions share equal parts.
//!
//! A clone of the array takes one reference. A change copies the chunks on its path unless they are unshared,
//! and leaves other versions as they are. Changing `k` of `n` elements copies at most `k` leaves and
//! `k * log4(n)` branches. Leaves hold plain data, so copying one copies memory. Branches are narrow, because
//! copying one takes a reference to each of its children, and these are spread over memory.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::planted::{PlantedBug, is_planted};

/// The number of children of a branch.
const FAN: usize = 4;

/// Adjacent elements that are copied together.
type Leaf<T, const WIDTH: usize> = [T; WIDTH];

/// An inner chunk. A missing child holds elements that were never set.
#[derive(Clone)]
enum Branch<T, const WIDTH: usize> {
    Branches([Option<Arc<Self>>; FAN]),
    Leaves([Option<Arc<Leaf<T, WIDTH>>>; FAN]),
}

/// The cost of changes, in chunks that were copied or created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// The number of leaves and branches.
    pub chunks: u64,
    /// Their size in bytes, including the two counters of each.
    pub bytes: u64,
}

impl Copied {
    /// Counts one more chunk of that size.
    pub(crate) fn count(&mut self, chunk_bytes: usize) {
        self.chunks += 1;
        self.bytes += (chunk_bytes + 2 * size_of::<usize>()) as u64;
    }

    /// Returns the sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { chunks: self.chunks + other.chunks, bytes: self.bytes + other.bytes }
    }

    /// Returns what was added after `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self { chunks: self.chunks - before.chunks, bytes: self.bytes - before.bytes }
    }
}

/// A persistent array of elements that are `T::default()` until they are set.
pub(crate) struct Trie<T, const WIDTH: usize> {
    root: Option<Arc<Branch<T, WIDTH>>>,
    /// The number of levels of branches. 0: there is no root.
    height: u32,
}

impl<T, const WIDTH: usize> Clone for Trie<T, WIDTH> {
    fn clone(&self) -> Self {
        Self { root: self.root.clone(), height: self.height }
    }
}

impl<T, const WIDTH: usize> Default for Trie<T, WIDTH> {
    fn default() -> Self {
        Self { root: None, height: 0 }
    }
}

/// Returns the number of elements below a child of a branch at `level`. The leaves' parents are level 1.
fn span<const WIDTH: usize>(level: u32) -> usize {
    WIDTH * FAN.pow(level - 1)
}

/// Returns the chunk for writing. Copies it if it is shared.
fn own<'a, C: Clone>(chunk: &'a mut Arc<C>, copied: &mut Copied) -> &'a mut C {
    if Arc::strong_count(chunk) > 1 {
        copied.count(size_of::<C>());
    }
    Arc::make_mut(chunk)
}

impl<T: Clone + Default, const WIDTH: usize> Branch<T, WIDTH> {
    fn empty(level: u32) -> Self {
        if level == 1 { Self::Leaves([const { None }; FAN]) } else { Self::Branches([const { None }; FAN]) }
    }

    /// Sets the elements at `places`, which are ascending and below this branch. `base` is the branch's first
    /// place.
    fn set(
        &mut self,
        (level, base): (u32, usize),
        mut places: &[u32],
        value: &mut impl FnMut(u32, &T) -> T,
        copied: &mut Copied,
    ) {
        let span = span::<WIDTH>(level);
        while let Some(&first) = places.first() {
            let number = (first as usize - base) / span;
            let start = base + number * span;
            let (here, rest) = places.split_at(places.partition_point(|&at| (at as usize) < start + span));
            places = rest;
            match self {
                Self::Branches(children) => {
                    let child = children[number].get_or_insert_with(|| {
                        copied.count(size_of::<Self>());
                        Arc::new(Self::empty(level - 1))
                    });
                    own(child, copied).set((level - 1, start), here, value, copied);
                }
                Self::Leaves(children) => {
                    if is_planted(PlantedBug::ViewSharesChangedChunk)
                        && children[number].as_ref().is_some_and(|leaf| Arc::strong_count(leaf) > 1)
                    {
                        continue;
                    }
                    let child = children[number].get_or_insert_with(|| {
                        copied.count(size_of::<Leaf<T, WIDTH>>());
                        Arc::new(std::array::from_fn(|_| T::default()))
                    });
                    let leaf = own(child, copied);
                    for &at in here {
                        let element = &mut leaf[at as usize - start];
                        *element = value(at, element);
                    }
                }
            }
        }
    }
}

impl<T: Clone + Default, const WIDTH: usize> Trie<T, WIDTH> {
    /// Returns the number of elements that it has room for.
    fn room(&self) -> usize {
        if self.height == 0 { 0 } else { span::<WIDTH>(self.height) * FAN }
    }

    /// Sets the elements at `places`, which are ascending. `value` computes each from its place and its old
    /// value.
    pub(crate) fn set(&mut self, places: &[u32], mut value: impl FnMut(u32, &T) -> T, copied: &mut Copied) {
        let Some(&last) = places.last() else { return };
        while self.room() <= last as usize {
            self.height += 1;
            let mut root = Branch::empty(self.height);
            if let (Branch::Branches(children), Some(before)) = (&mut root, self.root.take()) {
                children[0] = Some(before);
            }
            copied.count(size_of::<Branch<T, WIDTH>>());
            self.root = Some(Arc::new(root));
        }
        let root = self.root.as_mut().expect("there is room");
        own(root, copied).set((self.height, 0), places, &mut value, copied);
    }

    /// Returns the element at `at`. `None` if no element of its leaf was ever set.
    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        let at = at as usize;
        if at >= self.room() {
            return None;
        }
        let mut level = self.height;
        let mut branch = self.root.as_deref();
        while let Some(inner) = branch {
            let number = at / span::<WIDTH>(level) % FAN;
            match inner {
                Branch::Branches(children) => branch = children[number].as_deref(),
                Branch::Leaves(children) => return children[number].as_ref().map(|leaf| &leaf[at % WIDTH]),
            }
            level -= 1;
        }
        None
    }
}

/// Returns the child with that number, if the branch and the child exist.
fn branch_of<T, const WIDTH: usize>(
    branch: Option<&Arc<Branch<T, WIDTH>>>,
    number: usize,
) -> Option<&Arc<Branch<T, WIDTH>>> {
    match branch.map(AsRef::as_ref) {
        Some(Branch::Branches(children)) => children[number].as_ref(),
        _ => None,
    }
}

fn leaf_of<T, const WIDTH: usize>(
    branch: Option<&Arc<Branch<T, WIDTH>>>,
    number: usize,
) -> Option<&Arc<Leaf<T, WIDTH>>> {
    match branch.map(AsRef::as_ref) {
        Some(Branch::Leaves(children)) => children[number].as_ref(),
        _ => None,
    }
}

fn is_same<C>(one: Option<&Arc<C>>, other: Option<&Arc<C>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

/// Compares two versions and visits the elements that may differ.
struct Difference<'a, T, F> {
    unset: T,
    visit: &'a mut F,
}

impl<T: Default, F: FnMut(u32, &T, &T) -> ControlFlow<()>> Difference<'_, T, F> {
    /// Descends where the two chunks differ, to places from `from` on.
    fn walk<const WIDTH: usize>(
        &mut self,
        (level, base, from): (u32, usize, usize),
        new: Option<&Arc<Branch<T, WIDTH>>>,
        old: Option<&Arc<Branch<T, WIDTH>>>,
    ) -> ControlFlow<()> {
        if is_same(new, old) {
            return ControlFlow::Continue(());
        }
        for number in 0..FAN {
            let start = base + number * span::<WIDTH>(level);
            if start + span::<WIDTH>(level) <= from {
                continue;
            }
            if level > 1 {
                self.walk((level - 1, start, from), branch_of(new, number), branch_of(old, number))?;
                continue;
            }
            let new = leaf_of(new, number);
            let old = leaf_of(old, number);
            if is_same(new, old) {
                continue;
            }
            for place in from.saturating_sub(start)..WIDTH {
                let new = new.map_or(&self.unset, |leaf| &leaf[place]);
                let old = old.map_or(&self.unset, |leaf| &leaf[place]);
                (self.visit)(u32::try_from(start + place).expect("places fit u32"), new, old)?;
            }
        }
        ControlFlow::Continue(())
    }
}

impl<T: Clone + Default, const WIDTH: usize> Trie<T, WIDTH> {
    /// Calls `visit` with the place, the new and the old value of every element of a leaf that `older` does
    /// not share. These are at least the elements that differ, in order of place. The cost follows what is
    /// not shared.
    pub(crate) fn unshared(&self, older: &Self, mut visit: impl FnMut(u32, &T, &T)) {
        let _ = self.unshared_from(older, 0, |place, new, old| {
            visit(place, new, old);
            ControlFlow::Continue(())
        });
    }

    /// Like [`unshared`](Self::unshared), but starts at `from` and stops when `visit` breaks.
    pub(crate) fn unshared_from(
        &self,
        older: &Self,
        from: u32,
        mut visit: impl FnMut(u32, &T, &T) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        // A lower tree corresponds to the left edge of a higher one.
        let height = self.height.max(older.height);
        let raised = |trie: &Self| {
            let mut root = trie.root.clone();
            for level in trie.height..height {
                let mut above = Branch::empty(level + 1);
                if let (Branch::Branches(children), Some(root)) = (&mut above, root.take()) {
                    children[0] = Some(root);
                }
                root = Some(Arc::new(above));
            }
            root
        };
        if height == 0 {
            return ControlFlow::Continue(());
        }
        let mut difference = Difference { unset: T::default(), visit: &mut visit };
        let from = from as usize;
        if self.height == older.height {
            return difference.walk((height, 0, from), self.root.as_ref(), older.root.as_ref());
        }
        let new = raised(self);
        let old = raised(older);
        difference.walk((height, 0, from), new.as_ref(), old.as_ref())
    }

    /// Calls `visit` with every element of the existing leaves, in order of place.
    pub(crate) fn each(&self, mut visit: impl FnMut(u32, &T)) {
        self.unshared(&Self::default(), |place, new, _| visit(place, new));
    }

    /// Calls `visit` with the address and the size of every chunk, in bytes. A shared chunk has one address.
    pub(crate) fn chunks(&self, visit: &mut impl FnMut(usize, usize)) {
        fn below<T, const WIDTH: usize>(
            branch: &Arc<Branch<T, WIDTH>>,
            visit: &mut impl FnMut(usize, usize),
        ) {
            let counters = 2 * size_of::<usize>();
            visit(Arc::as_ptr(branch) as usize, size_of::<Branch<T, WIDTH>>() + counters);
            match branch.as_ref() {
                Branch::Branches(children) => children.iter().flatten().for_each(|child| below(child, visit)),
                Branch::Leaves(children) => children.iter().flatten().for_each(|leaf| {
                    visit(leaf.as_ptr() as usize, size_of::<Leaf<T, WIDTH>>() + counters);
                }),
            }
        }
        self.root.iter().for_each(|root| below(root, visit));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use super::*;
    use crate::rng::Rng;

    std::thread_local! {
        static LIVE: Cell<i64> = const { Cell::new(0) };
    }

    /// An element that counts its live instances on this thread.
    struct Counted(u64);

    impl Counted {
        fn new(value: u64) -> Self {
            LIVE.set(LIVE.get() + 1);
            Self(value)
        }
    }

    impl Default for Counted {
        fn default() -> Self {
            Self::new(0)
        }
    }

    impl Clone for Counted {
        fn clone(&self) -> Self {
            Self::new(self.0)
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            LIVE.set(LIVE.get() - 1);
        }
    }

    type Numbers = Trie<u64, 8>;

    /// Versions generated from a seed, each with its expected contents.
    fn versions(seed: u64) -> Vec<(Numbers, BTreeMap<u32, u64>)> {
        let mut rng = Rng::new(seed);
        let mut versions = vec![(Numbers::default(), BTreeMap::new())];
        for number in 1..60 {
            let (mut trie, mut map) = versions.last().cloned().unwrap();
            let reach = 1 << (4 + rng.below(9));
            let mut places: Vec<u32> = (0..rng.below(20)).map(|_| rng.below(reach) as u32).collect();
            places.sort_unstable();
            places.dedup();
            trie.set(&places, |at, _| number * 10_000 + u64::from(at), &mut Copied::default());
            map.extend(places.iter().map(|&at| (at, number * 10_000 + u64::from(at))));
            versions.push((trie, map));
        }
        versions
    }

    #[test]
    fn every_version_holds_what_it_held() {
        for seed in 0..8 {
            for (trie, map) in versions(seed) {
                let held = |at| trie.get(at).copied().unwrap_or_default();
                assert!((0..5_000).all(|at| held(at) == map.get(&at).copied().unwrap_or_default()));
                let mut listed = BTreeMap::new();
                trie.each(|at, &value| listed.extend((value > 0).then_some((at, value))));
                assert_eq!(listed, map);
            }
        }
    }

    #[test]
    fn any_two_versions_differ_where_they_do() {
        let versions = versions(9);
        for (new, new_map) in &versions {
            for (old, old_map) in &versions {
                let mut differing = Vec::new();
                new.unshared(old, |at, new, old| differing.extend((new != old).then_some(at)));
                let places = new_map.keys().chain(old_map.keys());
                let mut expected: Vec<u32> =
                    places.copied().filter(|at| new_map.get(at) != old_map.get(at)).collect();
                expected.sort_unstable();
                expected.dedup();
                assert_eq!(differing, expected);
            }
        }
    }

    /// A change copies at most `k` leaves, and one branch per level for each of `k` changes, at any size.
    #[test]
    fn a_change_copies_its_leaf_and_the_way_to_it() {
        let mut rng = Rng::new(3);
        for nodes in [100u32, 1_000, 100_000, 1_000_000] {
            let mut trie = Numbers::default();
            let all: Vec<u32> = (0..nodes).collect();
            trie.set(&all, |at, _| u64::from(at), &mut Copied::default());
            let levels = u64::from(trie.height);
            assert!(4u64.pow(trie.height - 1) * 8 < u64::from(nodes), "{levels} levels for {nodes}");
            for changes in [1usize, 7, 64] {
                let _published = trie.clone();
                let mut places: Vec<u32> = (0..changes).map(|_| rng.below(u64::from(nodes)) as u32).collect();
                places.sort_unstable();
                places.dedup();
                let mut copied = Copied::default();
                trie.set(&places, |_, before| before + 1, &mut copied);
                assert!(copied.chunks <= places.len() as u64 * (levels + 1), "{copied:?} at {nodes}");
                assert!(copied.bytes <= 80 * copied.chunks && copied.chunks > levels, "{copied:?}");
                // The chunks are unshared now, so nothing is copied.
                let mut again = Copied::default();
                trie.set(&places, |_, before| before + 1, &mut again);
                assert_eq!(again, Copied::default());
            }
        }
    }

    /// Keeping one version keeps only that one: regardless of the number of later versions, two of everything
    /// live.
    #[test]
    fn a_version_that_is_kept_keeps_itself_and_nothing_else() {
        let live = || LIVE.get();
        {
            let mut trie: Trie<Counted, 8> = Trie::default();
            let all: Vec<u32> = (0..1_000).collect();
            trie.set(&all, |at, _| Counted::new(u64::from(at)), &mut Copied::default());
            let size = live();
            assert_eq!(size, 1_000);
            let kept = trie.clone();
            let mut rng = Rng::new(4);
            for number in 0..20_000 {
                let before = trie.clone();
                trie.set(&[rng.below(1_000) as u32], |_, _| Counted::new(number), &mut Copied::default());
                drop(before);
                assert!(live() <= 2 * size, "{} elements live", live());
            }
            assert!((0..1_000).all(|at| kept.get(at).unwrap().0 == u64::from(at)));
            drop(kept);
            assert_eq!(live(), size);
        }
        assert_eq!(live(), 0);
    }
}
