//! Shares as exact fractions, and the dominant share (Ghodsi et al., Dominant Resource Fairness, NSDI 2011).

use std::cmp::Ordering;

use super::{Amounts, Dim};

/// A share: `part` of `whole`. It may exceed one.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    part: i64,
    whole: i64,
}

impl Share {
    /// No share.
    pub const ZERO: Self = Self { part: 0, whole: 1 };
    /// The whole.
    pub const ONE: Self = Self { part: 1, whole: 1 };

    /// Returns `part` of `whole`. Of nothing, something is one whole and nothing is none, as in Volcano.
    #[must_use]
    pub fn of(part: i64, whole: i64) -> Self {
        assert!(part >= 0 && whole >= 0, "a share of negative amounts");
        match (part, whole) {
            (0, 0) => Self::ZERO,
            (_, 0) => Self::ONE,
            _ => Self { part, whole },
        }
    }

    /// Returns how much of `other` this share is, in parts of 2^-`bits`, rounded down. All of it is the most.
    ///
    /// # Panics
    /// If `other` is no share at all, or with more than 62 bits.
    pub(super) fn part_of(&self, other: &Self, bits: u32) -> u64 {
        assert!(other.part > 0 && bits <= 62, "a part of nothing");
        let product = |a: i64, b: i64| a.unsigned_abs() as u128 * b.unsigned_abs() as u128;
        let part = product(self.part, other.whole);
        let whole = product(self.whole, other.part);
        if part >= whole {
            return 1 << bits;
        }
        // The product must not overflow. What is shifted out is less than what the result is rounded by.
        let shift = (128 - part.leading_zeros()).saturating_sub(128 - bits);
        let result = ((part >> shift) << bits) / (whole >> shift).max(1);
        u64::try_from(result).map_or(1 << bits, |result| result.min(1 << bits))
    }

    /// Compares the shares after each is divided by its weight.
    ///
    /// # Panics
    /// If a weight is 0.
    #[must_use]
    pub fn cmp_weighted(&self, weight: u32, other: &Self, others: u32) -> Ordering {
        assert!(weight > 0 && others > 0, "a share is divided by a weight of 0");
        // Both parts are below 2^63 and weights below 2^32: the products of three need more than 128 bits only
        // beyond 2^64 of a whole, so they are compared as quotients and remainders.
        let mine = Fraction::new(self.part, i128::from(self.whole) * i128::from(weight));
        let theirs = Fraction::new(other.part, i128::from(other.whole) * i128::from(others));
        mine.cmp(&theirs)
    }
}

impl PartialEq for Share {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Share {}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> Ordering {
        let mine = i128::from(self.part) * i128::from(other.whole);
        mine.cmp(&(i128::from(other.part) * i128::from(self.whole)))
    }
}

/// A non-negative fraction whose parts may be so large that cross-multiplication overflows.
struct Fraction {
    part: i128,
    whole: i128,
}

impl Fraction {
    fn new(part: i64, whole: i128) -> Self {
        Self { part: i128::from(part), whole }
    }

    /// Compares by the continued fraction of both: exact, and without a product.
    fn cmp(&self, other: &Self) -> Ordering {
        let mut mine = (self.part, self.whole);
        let mut theirs = (other.part, other.whole);
        loop {
            let quotients = (mine.0 / mine.1).cmp(&(theirs.0 / theirs.1));
            if quotients.is_ne() {
                return quotients;
            }
            let left = (mine.0 % mine.1, theirs.0 % theirs.1);
            match left {
                (0, 0) => return Ordering::Equal,
                (0, _) => return Ordering::Less,
                (_, 0) => return Ordering::Greater,
                _ => {}
            }
            // The inverse of a smaller rest is larger.
            (mine, theirs) = ((theirs.1, left.1), (mine.1, left.0));
        }
    }
}

/// Returns the largest share of `used` in `total` over all kinds. A kind of which there is none in total does not
/// count.
#[must_use]
pub fn dominant_share(used: &Amounts, total: &Amounts) -> Share {
    let shares = used.iter().filter_map(|(dim, amount)| {
        let whole = total.get(dim);
        (whole > 0).then(|| Share::of(amount, whole))
    });
    shares.max().unwrap_or(Share::ZERO)
}

/// Returns the kind of which `used` has the largest share in `total`, if it has anything.
#[must_use]
pub fn dominant_kind(used: &Amounts, total: &Amounts) -> Option<Dim> {
    let kinds = used.iter().filter(|&(dim, _)| total.get(dim) > 0);
    kinds
        .max_by(|a, b| Share::of(a.1, total.get(a.0)).cmp(&Share::of(b.1, total.get(b.0))))
        .map(|(dim, _)| dim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_of_nothing_are_none_or_one() {
        assert_eq!(Share::of(0, 0), Share::ZERO);
        assert_eq!(Share::of(5, 0), Share::ONE);
        assert_eq!(Share::of(2, 4), Share::of(1, 2));
        assert!(Share::of(3, 2) > Share::ONE);
    }

    #[test]
    fn the_dominant_share_is_the_largest_one() {
        let used: Amounts = [(Dim::CPU, 2), (Dim::MEMORY, 8), (Dim(9), 5)].into_iter().collect();
        let total: Amounts = [(Dim::CPU, 10), (Dim::MEMORY, 20)].into_iter().collect();
        assert_eq!(dominant_share(&used, &total), Share::of(2, 5));
        assert_eq!(dominant_kind(&used, &total), Some(Dim::MEMORY));
        assert_eq!(dominant_share(&Amounts::zero(), &total), Share::ZERO);
    }

    proptest! {
        #[test]
        fn a_part_of_a_share_is_that_of_the_quotient(
            a in 0..1_000_i64, b in 1..1_000_i64, c in 1..1_000_i64, d in 1..1_000_i64, scale in 1..(1_i64 << 50),
        ) {
            let expected = (((a * d) << 30) / (b * c)).min(1 << 30);
            let big = |part: i64, whole: i64| Share::of(part * scale, whole * scale);
            let found = big(a, b).part_of(&big(c, d), 30) as i64;
            prop_assert!((found - expected).abs() <= 1, "{found} {expected}");
        }

        /// The comparison must not depend on the size of the numbers: it is compared with plain products where these
        /// do not overflow.
        #[test]
        fn weighted_shares_are_compared_exactly(
            a in 0..1_000_i64, b in 1..1_000_i64, c in 0..1_000_i64, d in 1..1_000_i64, v in 1..50_u32, w in 1..50_u32,
            scale in 1..(1_i64 << 52),
        ) {
            let expected = (a * d * i64::from(w)).cmp(&(c * b * i64::from(v)));
            prop_assert_eq!(Share::of(a, b).cmp_weighted(v, &Share::of(c, d), w), expected);
            let big = |part: i64, whole: i64| Share::of(part * scale, whole * scale);
            prop_assert_eq!(big(a, b).cmp_weighted(v, &big(c, d), w), expected);
        }
    }
}
