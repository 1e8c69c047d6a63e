//! Where the choices of a run come from: a seed, or bytes that a fuzzer gives.

use wharf_core::rng::Rng;

/// Answers every question that a run leaves open.
pub enum Choices<'a> {
    /// By a seed: any number of them.
    Seeded(Rng),
    /// By the bytes that are left: a byte for a small question, two for a larger one. Once they are
    /// used up every answer is 0, and the run goes to its end.
    Given(&'a [u8]),
}

impl Choices<'_> {
    /// The choices of `seed`.
    #[must_use]
    pub fn seeded(seed: u64) -> Choices<'static> {
        Choices::Seeded(Rng::new(seed))
    }

    /// Whether no choice is left.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        matches!(self, Self::Given([]))
    }

    /// A number in `0..bound`.
    ///
    /// # Panics
    /// When `bound` is 0.
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

    /// A place in a list of `length`.
    pub fn place(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True one time in `of`; never once the choices are spent.
    pub fn one_in(&mut self, of: u64) -> bool {
        self.below(of) + 1 == of
    }

    /// One of `list`.
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
