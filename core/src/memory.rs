//! Memory accounting for the engine's structures: bytes by capacity, computed rather than measured.

use crate::map::FixedMap;

/// The bytes of a cache line.
pub const LINE: usize = 64;

/// The quantity that a structure's size depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Per {
    /// Registered nodes.
    Node,
    /// Live allocations, at their highest number so far.
    Allocation,
    /// Waiting requests that have a copy in this shard.
    Waiting,
    /// None of these, for example kept selectors, partitions or resource kinds.
    Shard,
}

/// The size of one structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StructureBytes {
    /// The name of the structure.
    pub name: &'static str,
    /// Its size, including unused capacity.
    pub bytes: u64,
    /// The quantity that the size depends on.
    pub per: Per,
}

/// Returns the bytes of a vector's elements, without what they point to.
#[must_use]
pub fn of_vec<T>(vec: &Vec<T>) -> u64 {
    (vec.capacity() * size_of::<T>()) as u64
}

/// Adds an element. The capacity grows by an eighth at a time, not to its double, so that few places are unused.
pub fn push_tight<T>(vec: &mut Vec<T>, value: T) {
    grow_tight(vec, vec.len() + 1);
    vec.push(value);
}

/// Appends `value` until there are `len` elements. The capacity grows as by [`push_tight`].
pub fn resize_tight<T: Clone>(vec: &mut Vec<T>, len: usize, value: T) {
    grow_tight(vec, len);
    vec.resize(len, value);
}

fn grow_tight<T>(vec: &mut Vec<T>, len: usize) {
    if len > vec.capacity() {
        let capacity = len.max(vec.capacity() + vec.capacity() / 8).max(64);
        vec.reserve_exact(capacity - vec.len());
    }
}

/// Returns the bytes of a map's entries, without what they point to.
///
/// The table has a power of two of slots, at most 7/8 of them in use, and one control byte per slot.
#[must_use]
pub fn of_map<K, V>(map: &FixedMap<K, V>) -> u64 {
    if map.capacity() == 0 {
        return 0;
    }
    let places = (map.capacity() * 8 / 7).next_power_of_two();
    (places * (size_of::<(K, V)>() + 1)) as u64
}

/// Returns the bytes of a `BTreeMap` or `BTreeSet` with `len` entries of `entry` bytes, without what they
/// point to.
///
/// This assumes B-tree nodes with room for eleven entries, six of them in use (as after ordered insertion),
/// and eight bytes per child.
#[must_use]
pub fn of_btree(len: usize, entry: usize) -> u64 {
    let nodes = len.div_ceil(6);
    (nodes * (11 * entry + 16 + 8)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tight_vectors_have_few_unused_places() {
        let mut pushed = Vec::new();
        let mut resized = Vec::new();
        let mut grown = 0;
        for number in 0..100_000_usize {
            let before = pushed.capacity();
            push_tight(&mut pushed, number);
            resize_tight(&mut resized, number + 1, number);
            grown += usize::from(pushed.capacity() > before);
            assert!(pushed.capacity() <= (number + 1).max(64) * 9 / 8 + 8, "{number}: {}", pushed.capacity());
            assert!(resized.capacity() <= (number + 1).max(64) * 9 / 8 + 8);
        }
        assert_eq!(pushed, resized);
        assert!(grown < 100, "it is copied {grown} times");
        resize_tight(&mut resized, 200_000, 7);
        assert_eq!((resized.capacity(), resized.len()), (200_000, 200_000));
    }

    #[test]
    fn bytes_follow_capacity() {
        assert_eq!(of_vec(&Vec::<u64>::with_capacity(10)), 80);
        assert_eq!(of_map(&FixedMap::<u64, u32>::default()), 0);
        let mut map = FixedMap::<u64, u32>::default();
        map.extend((0..1000).map(|key| (key, 0)));
        // 2,048 slots of 16 bytes plus one: the next power of two above 1,000 / (7/8).
        assert_eq!(of_map(&map), 2048 * 17);
        assert_eq!((of_btree(0, 8), of_btree(13, 8)), (0, 3 * 112));
    }
}
