//! A bounded cache. A new value replaces the one with the same hash. If there is none and the cache is full, it
//! replaces the least recently used one.

use crate::map::FixedMap;
use crate::memory::{of_map, of_vec};

struct Entry<T> {
    hash: u64,
    /// The number of the last use.
    used: u64,
    value: T,
}

/// At most `MOST` values, found by hash. The index of a value stays the same until the value is replaced.
pub struct Lru<T, const MOST: usize> {
    entries: Vec<Entry<T>>,
    by_hash: FixedMap<u64, usize>,
    uses: u64,
}

impl<T, const MOST: usize> Default for Lru<T, MOST> {
    fn default() -> Self {
        Self { entries: Vec::new(), by_hash: FixedMap::default(), uses: 0 }
    }
}

impl<T, const MOST: usize> Lru<T, MOST> {
    /// Uses the value with this hash, if `is` confirms that it is the right one. Returns its index.
    #[inline]
    pub fn find(&mut self, hash: u64, is: impl FnOnce(&T) -> bool) -> Option<usize> {
        let at = self.by_hash.get(&hash).copied().filter(|&at| is(self.at(at)))?;
        self.uses += 1;
        self.entries[at].used = self.uses;
        Some(at)
    }

    /// Inserts a value, which counts as a use. Returns its index and the value that it replaced.
    pub fn insert(&mut self, hash: u64, value: T) -> (usize, Option<T>) {
        self.uses += 1;
        let entry = Entry { hash, used: self.uses, value };
        let oldest = || (0..self.entries.len()).min_by_key(|&at| self.used(at));
        let full = self.entries.len() >= MOST;
        let same_hash = self.by_hash.get(&hash).copied();
        let Some(at) = same_hash.or_else(|| if full { oldest() } else { None }) else {
            self.by_hash.insert(hash, self.entries.len());
            self.entries.push(entry);
            return (self.entries.len() - 1, None);
        };
        let old = std::mem::replace(&mut self.entries[at], entry);
        self.by_hash.remove(&old.hash);
        self.by_hash.insert(hash, at);
        (at, Some(old.value))
    }

    /// Returns the value with this index.
    #[inline]
    pub fn at(&self, at: usize) -> &T {
        &self.entries[at].value
    }

    /// Returns the value with this index, to be changed. This is no use.
    #[inline]
    pub fn at_mut(&mut self, at: usize) -> &mut T {
        &mut self.entries[at].value
    }

    /// Returns the number of uses of all values so far.
    pub fn uses(&self) -> u64 {
        self.uses
    }

    /// Returns [`uses`](Self::uses) as it was after the last use of the value with this index.
    pub fn used(&self, at: usize) -> u64 {
        self.entries[at].used
    }

    /// Returns the values in order of index.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|entry| &entry.value)
    }

    /// Returns the values in order of index, to be changed. This is no use.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().map(|entry| &mut entry.value)
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.by_hash.clear();
    }

    /// Returns its bytes, without what the values point to.
    pub fn bytes(&self) -> u64 {
        of_vec(&self.entries) + of_map(&self.by_hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const MOST: usize = 5;

    /// The values with their indexes, least recently used first.
    #[derive(Default)]
    struct Naive(Vec<(usize, u64)>);

    impl Naive {
        /// Moves the first entry that `is` accepts to the end, with `value` if there is a new one.
        fn move_up(&mut self, is: impl Fn(u64) -> bool, value: Option<u64>) -> Option<(usize, u64)> {
            let place = self.0.iter().position(|&(_, value)| is(value))?;
            let (at, old) = self.0.remove(place);
            self.0.push((at, value.unwrap_or(old)));
            Some((at, old))
        }

        fn insert(&mut self, value: u64) -> (usize, Option<u64>) {
            let mut replaced = self.move_up(|old| hash(old) == hash(value), Some(value));
            if replaced.is_none() && self.0.len() == MOST {
                replaced = self.move_up(|_| true, Some(value));
            }
            let Some((at, old)) = replaced else {
                self.0.push((self.0.len(), value));
                return (self.0.len() - 1, None);
            };
            (at, Some(old))
        }
    }

    /// Two values each have the same hash.
    fn hash(value: u64) -> u64 {
        value / 2
    }

    #[test]
    fn the_cache_behaves_like_a_list_in_order_of_use() {
        let mut rng = Rng::new(3);
        let mut lru: Lru<u64, MOST> = Lru::default();
        let mut naive = Naive::default();
        for uses in 1..20_000 {
            if rng.below(1_000) == 0 {
                lru.clear();
                naive.0.clear();
            }
            let value = rng.below(18);
            let known = naive.move_up(|known| known == value, None).map(|(at, _)| at);
            assert_eq!(lru.find(hash(value), |&known| known == value), known);
            if known.is_none() {
                assert_eq!(lru.insert(hash(value), value), naive.insert(value));
            }
            let mut by_index = naive.0.clone();
            by_index.sort_unstable();
            assert!(lru.iter().eq(by_index.iter().map(|(_, value)| value)));
            assert!(lru.iter_mut().eq(by_index.iter_mut().map(|(_, value)| value)));
            assert!(by_index.iter_mut().all(|(at, value)| lru.at(*at) == value && lru.at_mut(*at) == value));
            assert!(naive.0.is_sorted_by_key(|&(at, _)| lru.used(at)));
            let &(last, _) = naive.0.last().expect("one was just used");
            assert_eq!((lru.uses(), lru.used(last)), (uses, uses));
        }
    }

    #[test]
    fn a_value_with_the_hash_of_another_replaces_it_even_if_there_is_room() {
        let mut lru: Lru<&str, 3> = Lru::default();
        assert_eq!(lru.bytes(), 0);
        assert_eq!(lru.insert(1, "a"), (0, None));
        assert_eq!(lru.insert(2, "b"), (1, None));
        assert_eq!(lru.find(1, |&value| value == "c"), None, "a collision is no equality");
        assert_eq!(lru.insert(1, "c"), (0, Some("a")));
        assert_eq!(lru.insert(3, "d"), (2, None));
        // Full: "b" was used longest ago.
        assert_eq!(lru.insert(4, "e"), (1, Some("b")));
        assert_eq!(lru.find(2, |_| true), None);
        assert_eq!(lru.iter().copied().collect::<Vec<_>>(), ["c", "e", "d"]);
    }
}
