//! The source of a run's choices: a seed, or bytes from a fuzzer.

use wharf_core::rng::Rng;

/// Makes every choice that a run leaves open.
pub enum Choices<'a> {
    /// Choices from a seed, without an end.
    Seeded(Rng),
    /// Choices from the remaining bytes: one byte for a small choice, two for a larger one. Once they are used
    /// up, every choice is 0 and the run ends.
    Given(&'a [u8]),
}

impl Choices<'_> {
    /// Creates the choices of `seed`.
    #[must_use]
    pub fn seeded(seed: u64) -> Choices<'static> {
        Choices::Seeded(Rng::new(seed))
    }

    /// Returns whether no choice is left.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        matches!(self, Self::Given([]))
    }

    /// Returns a number in `0..bound`.
    ///
    /// # Panics
    /// Panics when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a choice among nothing");
        match self {
            Self::Seeded(rng) => rng.below(bound),
            Self::Given(bytes) => {
                let wanted = if bound <= 256 { 1 } else { 2 };
                let (taken, rest) = bytes.split_at(wanted.min(bytes.len()));
                *bytes = rest;
                taken.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)) % bound
            }
        }
    }

    /// Returns an index into a list of `length` items.
    pub fn place(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns true in one of `of` cases, and never once the choices are spent.
    pub fn one_in(&mut self, of: u64) -> bool {
        self.below(of) + 1 == of
    }

    /// Returns one item of `list`.
    pub fn pick<'l, T>(&mut self, list: &'l [T]) -> &'l T {
        &list[self.place(list.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_bytes_are_used_up_and_then_every_answer_is_no() {
        let mut choices = Choices::Given(&[7, 1, 0]);
        assert_eq!((choices.below(5), choices.below(1000)), (2, 256));
        assert!(choices.is_spent());
        assert_eq!((choices.below(9), choices.one_in(2)), (0, false));
    }

    #[test]
    fn a_seed_gives_the_same_choices() {
        let of = |seed| {
            let mut choices = Choices::seeded(seed);
            (0..20).map(|_| choices.below(100)).collect::<Vec<_>>()
        };
        assert_eq!(of(3), of(3));
        assert_ne!(of(3), of(4));
    }
}
