//! Times at which something is due, in order. The first time is kept apart, because it is read far more often
//! than it changes.

use std::collections::BTreeSet;

use crate::memory::of_btree;
use crate::time::Time;

/// Keys with times, in order of time. Keys with the same time are in order of key.
#[derive(Clone, Debug)]
pub struct Timers<K> {
    in_order: BTreeSet<(Time, K)>,
    /// The first of the times, or [`Time::NEVER`].
    next: Time,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self { in_order: BTreeSet::new(), next: Time::NEVER }
    }
}

impl<K: Ord + Copy> Timers<K> {
    /// Returns the first time, or [`Time::NEVER`] if there is none. O(1).
    #[inline]
    pub fn next(&self) -> Time {
        self.next
    }

    /// Returns the first time and its key.
    pub fn first(&self) -> Option<(Time, K)> {
        self.in_order.first().copied()
    }

    /// Returns the first key, if its time is `now` or earlier.
    pub fn due(&self, now: Time) -> Option<K> {
        if self.next > now { None } else { self.first().map(|(_, key)| key) }
    }

    /// Removes the first key and returns it, if its time is `now` or earlier.
    pub fn pop_due(&mut self, now: Time) -> Option<K> {
        let key = self.due(now)?;
        self.remove(self.next, key);
        Some(key)
    }

    /// Sets a time for a key. The key may have other times too.
    pub fn insert(&mut self, at: Time, key: K) {
        self.in_order.insert((at, key));
        self.next = self.next.min(at);
    }

    /// Removes a time of a key. Returns false if the key does not have this time.
    pub fn remove(&mut self, at: Time, key: K) -> bool {
        let had = self.in_order.remove(&(at, key));
        if at == self.next {
            self.next = self.first().map_or(Time::NEVER, |(at, _)| at);
        }
        had
    }

    /// Returns whether a key has this time.
    pub fn contains(&self, at: Time, key: K) -> bool {
        self.in_order.contains(&(at, key))
    }

    /// Returns the number of times.
    pub fn len(&self) -> usize {
        self.in_order.len()
    }

    /// Returns whether there are no times.
    pub fn is_empty(&self) -> bool {
        self.in_order.is_empty()
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> u64 {
        of_btree(self.len(), size_of::<(Time, K)>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// The times and keys as a list, which is sorted whenever the order matters.
    #[derive(Default)]
    struct Naive(Vec<(Time, u64)>);

    impl Naive {
        fn first(&self) -> Option<(Time, u64)> {
            self.0.iter().copied().min()
        }

        fn remove(&mut self, at: Time, key: u64) -> bool {
            let before = self.0.len();
            self.0.retain(|&entry| entry != (at, key));
            self.0.len() < before
        }

        fn pop_due(&mut self, now: Time) -> Option<u64> {
            let (at, key) = self.first().filter(|&(at, _)| at <= now)?;
            assert!(self.remove(at, key));
            Some(key)
        }
    }

    fn assert_same(timers: &Timers<u64>, naive: &Naive) {
        assert_eq!(timers.first(), naive.first());
        assert_eq!(timers.next(), naive.first().map_or(Time::NEVER, |(at, _)| at));
        assert_eq!((timers.len(), timers.is_empty()), (naive.0.len(), naive.0.is_empty()));
    }

    #[test]
    fn timers_behave_like_a_sorted_list() {
        let mut rng = Rng::new(11);
        let mut timers = Timers::default();
        let mut naive = Naive::default();
        for _ in 0..20_000 {
            // Few times and keys, so that there are many ties. The end of time is one of the times.
            let at = Some(rng.below(12)).filter(|&at| at > 0).map_or(Time::NEVER, Time);
            let key = rng.below(6);
            match rng.below(5) {
                0 | 1 => {
                    timers.insert(at, key);
                    naive.remove(at, key);
                    naive.0.push((at, key));
                }
                2 => assert_eq!(timers.remove(at, key), naive.remove(at, key)),
                3 => {
                    let due = timers.due(at);
                    let popped = timers.pop_due(at);
                    assert_eq!((due, popped), (popped, naive.pop_due(at)));
                }
                _ => assert_eq!(timers.contains(at, key), naive.0.contains(&(at, key))),
            }
            assert_same(&timers, &naive);
        }
    }

    #[test]
    fn keys_of_equal_times_come_in_order_of_key() {
        let mut timers = Timers::default();
        for (at, key) in [(9, 1), (5, 3), (5, 2), (4, 7), (5, 2)] {
            timers.insert(Time(at), key);
        }
        assert_eq!((timers.len(), timers.next()), (4, Time(4)));
        assert_eq!(timers.pop_due(Time(3)), None);
        let due: Vec<u64> = std::iter::from_fn(|| timers.pop_due(Time(5))).collect();
        assert_eq!(due, [7, 2, 3]);
        assert_eq!((timers.first(), timers.next()), (Some((Time(9), 1)), Time(9)));
        assert!(timers.remove(Time(9), 1) && !timers.remove(Time(9), 1));
        assert_eq!((timers.first(), timers.next(), timers.bytes()), (None, Time::NEVER, 0));
    }
}
