//! Sets of nodes by their slots: one bit per slot, or a list where there are few.

use crate::index::Slot;
use crate::memory;

/// A list takes as much as bits where one node in so many is in it: four bytes against one bit each.
const SPARSE: usize = 32;

/// Nodes looked at, one by one and in words of 64.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LookedAt {
    pub(super) nodes: u64,
    pub(super) words: u64,
}

/// A bit per slot, and how many are set.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    /// How many nodes are in it.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Words that an operation on all of it looks at.
    pub(super) fn words(&self) -> u64 {
        self.words.len() as u64
    }

    #[inline]
    pub(super) fn contains(&self, slot: Slot) -> bool {
        self.words.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// Puts `slot` in or takes it out; whether that changed anything.
    pub(super) fn set(&mut self, slot: Slot, member: bool) -> bool {
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
        } else {
            self.len -= 1;
        }
        true
    }

    /// The slots, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Slot> {
        (0..).zip(&self.words).flat_map(|(at, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let slot = (left != 0).then(|| at * 64 + left.trailing_zeros() as Slot);
                left &= left.wrapping_sub(1);
                slot
            })
        })
    }

    fn recount(&mut self) {
        self.len = self.words.iter().map(|word| word.count_ones() as usize).sum();
    }

    /// Keeps what is in `other` too.
    pub(super) fn intersect(&mut self, other: &Self) {
        self.words.truncate(other.words.len());
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= other);
        self.recount();
    }

    /// Takes out what is in `other`.
    pub(super) fn subtract(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= !other);
        self.recount();
    }

    /// Puts in what is in `other`.
    pub(super) fn unite(&mut self, other: &Self) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
        self.recount();
    }

    pub(super) fn memory(&self) -> u64 {
        memory::of_vec(&self.words)
    }
}

/// The same, as small as it can be kept.
#[derive(Clone, Debug)]
pub(super) enum NodeSet {
    One(Slot),
    /// In order.
    Few(Vec<Slot>),
    Many(Box<Bits>),
}

impl Default for NodeSet {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl NodeSet {
    /// How many nodes are in it.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Few(slots) => slots.len(),
            Self::Many(bits) => bits.len(),
        }
    }

    /// Puts `slot` in, of `slots` that there are.
    pub(super) fn insert(&mut self, slot: Slot, slots: usize) {
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

    /// Takes `slot` out, of `slots` that there are.
    pub(super) fn remove(&mut self, slot: Slot, slots: usize) {
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
                // Half of the bound, so that one node coming and going does not convert twice.
                if bits.len() <= slots / SPARSE / 2 || bits.len() <= SPARSE / 2 {
                    *self = Self::Few(bits.iter().collect());
                }
            }
        }
    }

    /// The nodes of a list; none where there are bits.
    fn list(&self) -> Result<&[Slot], &Bits> {
        match self {
            Self::One(slot) => Ok(std::slice::from_ref(slot)),
            Self::Few(list) => Ok(list),
            Self::Many(bits) => Err(bits),
        }
    }

    /// Puts its nodes into `bits`, or takes them out.
    pub(super) fn apply(&self, bits: &mut Bits, member: bool, looked_at: &mut LookedAt) {
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
    }

    /// What it points to takes.
    pub(super) fn memory(&self) -> u64 {
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
            // It grows for a time, then shrinks until nothing is left.
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
