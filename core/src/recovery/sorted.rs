//! Records in order of their keys, with changes on top.
//!
//! A checkpoint has all records of a store, in order, and the journal after it changes few of them. So the records stay
//! where they were read, and a change is a search by halves. A map of all records would cost more than the rest of a
//! start.

use std::hash::Hash;

use crate::ids::{AllocationId, NodeId};
use crate::map::FixedMap;
use crate::state::{AllocationRecord, BundleRecord, InsideRecord, LeaseRecord, NodeRecord};

/// A record that has a key.
pub(super) trait Keyed {
    /// The type of the key.
    type Id: Copy + Ord + Hash;

    /// Returns the key.
    fn key(&self) -> Self::Id;
}

macro_rules! keyed {
    ($($record:ident by $id:ident: $($field:ident).+;)*) => {$(
        impl Keyed for $record {
            type Id = $id;

            fn key(&self) -> $id {
                self.$($field).+
            }
        }
    )*};
}
keyed! {
    NodeRecord by NodeId: registration.id;
    AllocationRecord by AllocationId: id;
    BundleRecord by AllocationId: allocation;
    InsideRecord by AllocationId: id;
    LeaseRecord by AllocationId: allocation;
}

/// Records by key, in its order.
pub(super) struct Sorted<V: Keyed> {
    /// Ascending by key.
    base: Vec<V>,
    /// The keys of `base`, which a search reads without the records.
    keys: Vec<V::Id>,
    /// Whether each record of `base` is gone.
    gone: Vec<bool>,
    /// Records whose keys are not in `base`.
    added: FixedMap<V::Id, V>,
}

impl<V: Keyed> Default for Sorted<V> {
    fn default() -> Self {
        Self { base: Vec::new(), keys: Vec::new(), gone: Vec::new(), added: FixedMap::default() }
    }
}

impl<V: Keyed> Sorted<V> {
    /// Adds records in any order. Of those with one key, the last one counts.
    pub(super) fn extend(&mut self, mut records: Vec<V>) {
        if !self.base.is_empty() || !self.added.is_empty() {
            return records.into_iter().for_each(|record| self.insert(record));
        }
        if !records.is_sorted_by(|one, next| one.key() < next.key()) {
            records.sort_by_key(V::key);
            records.dedup_by(|later, kept| {
                let is_same = later.key() == kept.key();
                if is_same {
                    std::mem::swap(later, kept);
                }
                is_same
            });
        }
        self.keys = records.iter().map(V::key).collect();
        self.gone = vec![false; records.len()];
        self.base = records;
    }

    /// Returns where `base` has a key, also if the record is gone.
    fn place(&self, key: V::Id) -> Option<usize> {
        // New records have higher keys than all that were there.
        if self.keys.last().is_none_or(|&last| last < key) {
            return None;
        }
        self.keys.binary_search(&key).ok()
    }

    /// Adds a record, or replaces the one with its key.
    pub(super) fn insert(&mut self, record: V) {
        let key = record.key();
        match self.place(key) {
            Some(at) => {
                self.gone[at] = false;
                self.base[at] = record;
            }
            None => drop(self.added.insert(key, record)),
        }
    }

    /// Removes a record. Returns whether it was there.
    pub(super) fn remove(&mut self, key: V::Id) -> bool {
        match self.place(key) {
            Some(at) => !std::mem::replace(&mut self.gone[at], true),
            None => self.added.remove(&key).is_some(),
        }
    }

    /// Returns the record with this key.
    pub(super) fn get(&self, key: V::Id) -> Option<&V> {
        match self.place(key) {
            Some(at) => (!self.gone[at]).then(|| &self.base[at]),
            None => self.added.get(&key),
        }
    }

    /// Returns whether there is a record with this key.
    pub(super) fn contains(&self, key: V::Id) -> bool {
        match self.place(key) {
            Some(at) => !self.gone[at],
            None => self.added.contains_key(&key),
        }
    }

    /// Returns the record with this key, for a change of anything but the key.
    pub(super) fn get_mut(&mut self, key: V::Id) -> Option<&mut V> {
        match self.place(key) {
            Some(at) => (!self.gone[at]).then(|| &mut self.base[at]),
            None => self.added.get_mut(&key),
        }
    }

    /// Returns all records, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &V> {
        let of_base = self.base.iter().zip(&self.gone).filter(|&(_, &is_gone)| !is_gone);
        of_base.map(|(record, _)| record).chain(self.added.values())
    }

    /// Returns all records, ascending by key.
    pub(super) fn into_vec(self) -> Vec<V> {
        let Self { mut base, gone, added, .. } = self;
        let mut is_gone = gone.into_iter();
        base.retain(|_| !is_gone.next().expect("one for each record"));
        let mut added: Vec<V> = added.into_values().collect();
        added.sort_unstable_by_key(V::key);
        let is_after = base.last().zip(added.first()).is_none_or(|(last, first)| last.key() < first.key());
        base.append(&mut added);
        if !is_after {
            // Two ascending runs, which this merges.
            base.sort_by_key(V::key);
        }
        base
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::rng::Rng;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Pair(u64, u64);

    impl Keyed for Pair {
        type Id = u64;

        fn key(&self) -> u64 {
            self.0
        }
    }

    /// Compares with a map, over records that come at once or one by one, are replaced, removed and added again.
    #[test]
    fn it_is_a_map_whose_records_come_in_order() {
        let mut rng = Rng::new(5);
        for round in 0..300 {
            let mut sorted = Sorted::default();
            let mut truth = BTreeMap::new();
            for _ in 0..rng.below(3) {
                let records: Vec<Pair> =
                    (0..rng.below(20)).map(|at| Pair(rng.below(30), at * 1000 + round)).collect();
                truth.extend(records.iter().map(|&Pair(key, value)| (key, value)));
                sorted.extend(records);
            }
            for step in 0..rng.below(60) {
                // Also keys above all that came at once.
                let key = rng.below(40);
                match rng.below(4) {
                    0 => assert_eq!(sorted.remove(key), truth.remove(&key).is_some(), "{key}"),
                    1 => {
                        let found = sorted.get_mut(key).map(|pair| pair.1 += 1);
                        assert_eq!(found, truth.get_mut(&key).map(|value| *value += 1), "{key}");
                    }
                    _ => {
                        sorted.insert(Pair(key, step));
                        truth.insert(key, step);
                    }
                }
                assert_eq!(sorted.get(key).map(|pair| pair.1), truth.get(&key).copied(), "{key}");
                assert_eq!(sorted.contains(key), truth.contains_key(&key), "{key}");
            }
            let mut all: Vec<Pair> = sorted.iter().copied().collect();
            all.sort_unstable_by_key(Keyed::key);
            let truth: Vec<Pair> = truth.into_iter().map(|(key, value)| Pair(key, value)).collect();
            assert_eq!(all, truth);
            assert_eq!(sorted.into_vec(), truth);
        }
    }
}
