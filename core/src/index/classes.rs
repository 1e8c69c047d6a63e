//! Classes: the third and the fourth dimension, in four steps each.

use super::coordinate::Steps;
use super::key::Key;

/// The number of classes.
pub(super) const CLASSES: usize = Steps::COUNT * Steps::COUNT;

/// Computes the class of a key from its later dimensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Classifier {
    steps: [Steps; 2],
}

impl Classifier {
    pub(super) fn new(steps: [Steps; 2]) -> Self {
        Self { steps }
    }

    #[inline]
    pub(super) fn class<K: Key>(&self, key: K) -> usize {
        let (third, fourth) = key.later();
        self.steps[0].step(third) * Steps::COUNT + self.steps[1].step(fourth)
    }
}

/// For each class, one bit per class that asks for no more in either dimension.
const SERVED: [u16; CLASSES] = {
    let mut served = [0; CLASSES];
    let mut of = 0;
    while of < CLASSES {
        let mut class = 0;
        while class < CLASSES {
            if class / Steps::COUNT <= of / Steps::COUNT && class % Steps::COUNT <= of % Steps::COUNT {
                served[of] |= 1 << class;
            }
            class += 1;
        }
        of += 1;
    }
    served
};

/// Returns whether a node of class `class` may serve a request of class `asked`.
#[inline]
pub(super) fn serves(class: usize, asked: usize) -> bool {
    SERVED[class] >> asked & 1 == 1
}

/// For each class, the members of a group of 64 that may have a node of this or a higher class. A search
/// reads one word.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct ClassMask([u64; CLASSES]);

const _: () = assert!(size_of::<ClassMask>() == 128, "two cache lines");

impl ClassMask {
    pub(super) const NONE: Self = Self([0; CLASSES]);

    /// Returns the members that may serve a request of `class`.
    #[inline]
    pub(super) fn serving(&self, class: usize) -> u64 {
        self.0[class]
    }

    /// Returns the members that have any node.
    #[inline]
    pub(super) fn live(&self) -> u64 {
        self.0[0]
    }

    /// Records that a member has a node of this class.
    #[inline]
    pub(super) fn add(&mut self, member: usize, class: usize) {
        let mut served = SERVED[class];
        while served != 0 {
            self.0[served.trailing_zeros() as usize] |= 1 << member;
            served &= served - 1;
        }
    }

    /// Records that a member has no node.
    #[inline]
    pub(super) fn remove(&mut self, member: usize) {
        let others = !(1 << member);
        for word in &mut self.0 {
            *word &= others;
        }
    }

    /// Records that a member with nodes serves only the classes that `highest` serves.
    #[inline]
    pub(super) fn lower(&mut self, member: usize, highest: usize) {
        let mut gone = !SERVED[highest];
        while gone != 0 {
            self.0[gone.trailing_zeros() as usize] &= !(1 << member);
            gone &= gone - 1;
        }
    }

    /// Records that a member serves neither `class` nor any class that asks for more.
    #[inline]
    pub(super) fn serves_not(&mut self, member: usize, class: usize) {
        for (word, served) in self.0.iter_mut().zip(&SERVED) {
            if served >> class & 1 == 1 {
                *word &= !(1 << member);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_serves_its_class_and_those_below() {
        let mut members = ClassMask::NONE;
        members.add(5, 2 * Steps::COUNT + 1);
        let serving = |members: &ClassMask| {
            (0..CLASSES).filter(|&class| members.serving(class) == 1 << 5).collect::<Vec<_>>()
        };
        assert_eq!(serving(&members), [0, 1, 4, 5, 8, 9]);
        members.lower(5, Steps::COUNT + 1);
        assert_eq!(serving(&members), [0, 1, 4, 5]);
        members.serves_not(5, 1);
        assert_eq!(serving(&members), [0, 4]);
        members.remove(5);
        assert_eq!(members.live(), 0);
    }
}
