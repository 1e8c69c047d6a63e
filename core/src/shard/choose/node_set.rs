//! Sets of nodes by slot: one bit per slot, or a list if there are few.

use std::ops::Range;

use crate::index::Slot;
use crate::memory;

/// A list is as large as bits if one node in 32 is a member: four bytes against one bit per slot.
const SPARSE: usize = 32;

/// Nodes looked at, singly and in words of 64.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LookedAt {
    pub(crate) nodes: u64,
    pub(crate) words: u64,
}

/// One bit per slot, and the number of bits set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    /// Returns the number of members.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of words that an operation on the whole set looks at.
    pub(crate) fn words(&self) -> u64 {
        self.words.len() as u64
    }

    #[inline]
    pub(crate) fn contains(&self, slot: Slot) -> bool {
        self.words.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// Adds or removes `slot`. Returns whether that changed anything.
    pub(crate) fn set(&mut self, slot: Slot, member: bool) -> bool {
        if self.contains(slot) == member {
            return false;
        }
        let word = slot as usize / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] ^= 1 << (slot % 64);
        if member {
            self.len += 1;
            assert!(self.len <= 64 * self.words.len(), "a set has more members than places");
        } else {
            self.len = self.len.checked_sub(1).expect("each member is counted");
        }
        true
    }

    /// Returns the slots in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Slot> {
        self.iter_in(0..Slot::MAX)
    }

    /// Returns the words with a slot in this range, each with its first slot and without the slots outside.
    fn words_in(&self, range: Range<Slot>) -> impl Iterator<Item = (Slot, u64)> {
        let end = self.words.len().min((range.end as usize).div_ceil(64));
        let begin = end.min(range.start as usize / 64);
        (begin..end).zip(&self.words[begin..end]).map(move |(at, &word)| {
            let first = at as Slot * 64;
            let from = u64::MAX << range.start.saturating_sub(first).min(63);
            let to = u64::MAX >> (first + 64).saturating_sub(range.end).min(63);
            (first, word & from & to)
        })
    }

    /// Returns the slots in a range, in order.
    #[inline]
    pub(crate) fn iter_in(&self, range: Range<Slot>) -> impl Iterator<Item = Slot> {
        self.words_in(range).flat_map(|(first, mut left)| {
            std::iter::from_fn(move || {
                let slot = (left != 0).then(|| first.wrapping_add(left.trailing_zeros()));
                left &= left.wrapping_sub(1);
                slot
            })
        })
    }

    /// Returns the number of members in a range.
    pub(crate) fn count_in(&self, range: Range<Slot>) -> u64 {
        self.words_in(range).map(|(_, word)| u64::from(word.count_ones())).sum()
    }

    fn recount(&mut self) {
        self.len = self.words.iter().map(|word| word.count_ones() as usize).sum();
    }

    /// Keeps only the members that are also in `other`.
    pub(crate) fn intersect(&mut self, other: &Self) {
        let before = self.len;
        self.words.truncate(other.words.len());
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= other);
        self.recount();
        assert!(self.len <= before.min(other.len), "more is in two sets than in one of them");
    }

    /// Removes the members of `other`.
    pub(crate) fn subtract(&mut self, other: &Self) {
        let before = self.len;
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= !other);
        self.recount();
        assert!(self.len <= before && before <= self.len + other.len, "others were removed than were named");
    }

    /// Adds the members of `other`.
    pub(crate) fn unite(&mut self, other: &Self) {
        let before = self.len;
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
        self.recount();
        let [least, most] = [before.max(other.len), before + other.len];
        assert!((least..=most).contains(&self.len), "two sets have {} members, not {most}", self.len);
    }

    pub(crate) fn memory(&self) -> u64 {
        memory::of_vec(&self.words)
    }
}

/// A set of nodes in the smallest representation.
#[derive(Clone, Debug)]
pub(crate) enum NodeSet {
    One(Slot),
    /// Sorted.
    Few(Vec<Slot>),
    Many(Box<Bits>),
}

impl Default for NodeSet {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl NodeSet {
    /// Returns the number of members.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Few(slots) => slots.len(),
            Self::Many(bits) => bits.len(),
        }
    }

    /// Adds `slot`. `slots` is the number of slots in total.
    pub(crate) fn insert(&mut self, slot: Slot, slots: usize) {
        assert!((slot as usize) < slots, "slot {slot} of {slots}");
        match self {
            Self::Few(list) if list.is_empty() => *self = Self::One(slot),
            Self::One(one) if *one == slot => {}
            Self::One(one) => *self = Self::Few(vec![slot.min(*one), slot.max(*one)]),
            Self::Few(list) => {
                if let Err(at) = list.binary_search(&slot) {
                    list.insert(at, slot);
                }
                if list.len() > SPARSE && list.len() > slots / SPARSE {
                    let mut bits = Bits::default();
                    list.iter().for_each(|&slot| {
                        bits.set(slot, true);
                    });
                    *self = Self::Many(Box::new(bits));
                }
            }
            Self::Many(bits) => {
                bits.set(slot, true);
            }
        }
    }

    /// Removes `slot`. `slots` is the number of slots in total.
    pub(crate) fn remove(&mut self, slot: Slot, slots: usize) {
        assert!((slot as usize) < slots, "slot {slot} of {slots}");
        match self {
            Self::One(one) if *one == slot => *self = Self::default(),
            Self::One(_) => {}
            Self::Few(list) => {
                if let Ok(at) = list.binary_search(&slot) {
                    list.remove(at);
                }
                if let [one] = list[..] {
                    *self = Self::One(one);
                }
            }
            Self::Many(bits) => {
                bits.set(slot, false);
                // Half of the bound, so that a node that leaves and rejoins does not convert the set twice.
                if bits.len() <= slots / SPARSE / 2 || bits.len() <= SPARSE / 2 {
                    *self = Self::Few(bits.iter().collect());
                }
            }
        }
    }

    /// Returns the members as a list, or the bits.
    fn list(&self) -> Result<&[Slot], &Bits> {
        match self {
            Self::One(slot) => Ok(std::slice::from_ref(slot)),
            Self::Few(list) => Ok(list),
            Self::Many(bits) => Err(bits),
        }
    }

    /// Adds its members to `bits`, or removes them.
    pub(crate) fn apply(&self, bits: &mut Bits, member: bool, looked_at: &mut LookedAt) {
        let before = bits.len();
        match self.list() {
            Ok(list) => {
                looked_at.nodes += list.len() as u64;
                list.iter().for_each(|&slot| {
                    bits.set(slot, member);
                });
            }
            Err(own) => {
                looked_at.words += own.words();
                if member { bits.unite(own) } else { bits.subtract(own) }
            }
        }
        let changed = bits.len().abs_diff(before);
        assert!(changed <= self.len(), "{changed} members are changed by {}", self.len());
        assert!(!member || bits.len() >= self.len(), "a member was not added");
    }

    /// Returns the bytes on the heap.
    pub(crate) fn memory(&self) -> u64 {
        match self {
            Self::One(_) => 0,
            Self::Few(list) => memory::of_vec(list),
            Self::Many(bits) => size_of::<Bits>() as u64 + bits.memory(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn a_set_is_the_same_however_it_is_kept() {
        let mut rng = Rng::new(3);
        let slots = 4096;
        let mut set = NodeSet::default();
        let mut right = BTreeSet::new();
        let mut kinds = [0; 3];
        for step in 0..6000u32 {
            let slot = rng.below(slots as u64) as Slot;
            // The set grows for some time, then shrinks until it is empty.
            if step < 1500 && rng.below(4) > 0 {
                set.insert(slot, slots);
                right.insert(slot);
            } else {
                let slot = right.range(slot..).next().copied().unwrap_or(slot);
                set.remove(slot, slots);
                right.remove(&slot);
            }
            let mut bits = Bits::default();
            set.apply(&mut bits, true, &mut LookedAt::default());
            assert_eq!((bits.iter().collect::<BTreeSet<_>>(), set.len()), (right.clone(), right.len()));
            kinds[match set {
                NodeSet::One(_) => 0,
                NodeSet::Few(_) => 1,
                NodeSet::Many(_) => 2,
            }] += 1;
        }
        assert!(kinds.iter().all(|&times| times > 0), "{kinds:?}");
    }

    #[test]
    fn a_range_has_the_members_between_its_ends() {
        let mut rng = Rng::new(5);
        let mut bits = Bits::default();
        for _ in 0..150 {
            bits.set(rng.below(300) as Slot, true);
        }
        for start in 0..330 {
            for end in (start..330).chain([Slot::MAX]) {
                let right: Vec<Slot> = bits.iter().filter(|slot| (start..end).contains(slot)).collect();
                assert_eq!(bits.count_in(start..end), right.len() as u64, "{start} to {end}");
                assert!(bits.iter_in(start..end).eq(right), "{start} to {end}");
            }
        }
        let all = (0..300).filter(|&slot| bits.contains(slot));
        assert!(bits.iter().eq(all));
    }

    #[test]
    fn bits_are_united_intersected_and_subtracted() {
        let of = |slots: &[Slot]| {
            let mut bits = Bits::default();
            slots.iter().for_each(|&slot| {
                bits.set(slot, true);
            });
            bits
        };
        let short = of(&[1, 2, 63]);
        let long = of(&[2, 63, 64, 700]);
        for (one, other) in [(&short, &long), (&long, &short)] {
            let mut bits = one.clone();
            bits.unite(other);
            assert_eq!((bits.iter().collect::<Vec<_>>(), bits.len()), (vec![1, 2, 63, 64, 700], 5));
            bits.intersect(other);
            assert_eq!(bits.iter().collect::<Vec<_>>(), other.iter().collect::<Vec<_>>());
            bits.subtract(one);
            let left: Vec<Slot> = other.iter().filter(|&slot| !one.contains(slot)).collect();
            assert_eq!((bits.iter().collect::<Vec<_>>(), bits.len()), (left.clone(), left.len()));
        }
    }
}
