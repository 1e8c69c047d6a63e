//! What the engine's structures take: bytes by capacity, computed and not measured.

use crate::map::FixedMap;

/// What a structure grows with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Per {
    /// Registered nodes.
    Node,
    /// Live allocations, at their highest number so far.
    Allocation,
    /// Waiting requests of which a copy is parked here.
    Waiting,
    /// None of these: kept selectors, partitions, resource kinds.
    Shard,
}

/// One structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StructureBytes {
    /// What it is.
    pub name: &'static str,
    /// What it takes, room that stands ready included.
    pub bytes: u64,
    /// What it grows with.
    pub per: Per,
}

/// The elements of a vector, not what they point to.
#[must_use]
pub fn of_vec<T>(vec: &Vec<T>) -> u64 {
    (vec.capacity() * size_of::<T>()) as u64
}

/// The entries of a map, not what they point to: a power of two of places of which seven in eight
/// are used at most, with a byte of control each.
#[must_use]
pub fn of_map<K, V>(map: &FixedMap<K, V>) -> u64 {
    if map.capacity() == 0 {
        return 0;
    }
    let places = (map.capacity() * 8 / 7).next_power_of_two();
    (places * (size_of::<(K, V)>() + 1)) as u64
}

/// A `BTreeMap` or `BTreeSet` of `len` entries of so many bytes, not what they point to: nodes of
/// eleven entries of which six are used, as after insertions in order, and eight bytes per child.
#[must_use]
pub fn of_btree(len: usize, entry: usize) -> u64 {
    let nodes = len.div_ceil(6);
    (nodes * (11 * entry + 16 + 8)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_capacity() {
        assert_eq!(of_vec(&Vec::<u64>::with_capacity(10)), 80);
        assert_eq!(of_map(&FixedMap::<u64, u32>::default()), 0);
        let mut map = FixedMap::<u64, u32>::default();
        map.extend((0..1000).map(|key| (key, 0)));
        // 2,048 places of 16 bytes and one: the next power of two above 1,000 / (7/8).
        assert_eq!(of_map(&map), 2048 * 17);
        assert_eq!((of_btree(0, 8), of_btree(13, 8)), (0, 3 * 112));
    }
}
