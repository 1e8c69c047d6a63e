//! Coordinates packed into one integer, sixteen bits per dimension. The bucket tree compares these keys.
//!
//! Each field has fifteen bits and a guard bit above them, which is zero in a key. Comparing two keys as
//! integers compares the coordinates lexicographically. "At least in every dimension" and "the larger in
//! every dimension" take a few instructions without a branch, because a guard bit stops a field from
//! borrowing from the next one.

use std::fmt::Debug;

use super::Coordinate;
use crate::limits::DIMENSIONS_MAX;

/// A packed coordinate.
pub(super) trait Key: Copy + Ord + Default + Debug {
    /// The number of dimensions that the key has room for.
    const FIELDS: usize;

    /// The key of the coordinate that is zero in every dimension.
    const ZERO: Self;

    /// A value greater than all keys. It is not the key of any coordinate.
    const ABOVE_ALL: Self;

    fn pack(coordinate: &Coordinate) -> Self;

    fn coordinate(self) -> Coordinate;

    /// Returns whether every field is at least that of `lower`.
    fn reaches(self, lower: Self) -> bool;

    /// Returns the larger of both in each field.
    fn highest(self, other: Self) -> Self;

    /// Subtracts one from the fields in `below`, whose lowest bit is the first field. These fields are not
    /// zero.
    fn floor(self, below: u8) -> Self;

    /// Returns the first and the second field.
    fn leading(self) -> (u16, u16);

    /// Returns the third and the fourth field.
    fn later(self) -> (u16, u16);

    /// Returns whether any field is equal to that of `other`.
    fn touches(self, other: Self) -> bool;
}

/// For each subset of four fields, a word with a one in each field of the subset.
const ONES: [u64; 16] = {
    let mut ones = [0; 16];
    let mut bits = 0;
    while bits < 16 {
        let mut field = 0;
        while field < 4 {
            if bits >> field & 1 == 1 {
                ones[bits] |= 1 << (16 * (3 - field));
            }
            field += 1;
        }
        bits += 1;
    }
    ones
};

macro_rules! key {
    ($word:ty, $fields:literal, $guards:literal) => {
        impl Key for $word {
            const FIELDS: usize = $fields;
            const ZERO: Self = 0;
            const ABOVE_ALL: Self = <$word>::MAX;

            #[inline]
            fn pack(coordinate: &Coordinate) -> Self {
                let mut key: $word = 0;
                for field in &coordinate.0[..$fields] {
                    debug_assert!(*field <= Coordinate::HIGHEST, "a coordinate leaves the guard bit free");
                    key = key << 16 | <$word>::from(*field);
                }
                key
            }

            #[inline]
            fn coordinate(self) -> Coordinate {
                let mut coordinate = Coordinate::default();
                for (d, field) in coordinate.0[..$fields].iter_mut().enumerate() {
                    *field = (self >> (16 * ($fields - 1 - d))) as u16;
                }
                coordinate
            }

            #[inline]
            fn reaches(self, lower: Self) -> bool {
                (self | $guards).wrapping_sub(lower) & $guards == $guards
            }

            #[inline]
            fn highest(self, other: Self) -> Self {
                let at_least = (self | $guards).wrapping_sub(other) & $guards;
                let mine = at_least.wrapping_sub(at_least >> 15);
                self & mine | other & !mine
            }

            #[inline]
            fn floor(self, below: u8) -> Self {
                let mut less = <$word>::from(ONES[usize::from(below & 15)]);
                if $fields > 4 {
                    less = less << (<$word>::BITS - 64) | <$word>::from(ONES[usize::from(below >> 4)]);
                }
                self.wrapping_sub(less)
            }

            #[inline]
            fn leading(self) -> (u16, u16) {
                ((self >> (<$word>::BITS - 16)) as u16, (self >> (<$word>::BITS - 32)) as u16)
            }

            #[inline]
            fn later(self) -> (u16, u16) {
                ((self >> (<$word>::BITS - 48)) as u16, (self >> (<$word>::BITS - 64)) as u16)
            }

            #[inline]
            fn touches(self, other: Self) -> bool {
                // The subtraction clears the guard bit of each field that is equal in both keys.
                ((self ^ other) | $guards).wrapping_sub($guards >> 15) & $guards != $guards
            }
        }
    };
}

key!(u64, 4, 0x8000_8000_8000_8000);
key!(u128, 8, 0x8000_8000_8000_8000_8000_8000_8000_8000);

const _: () = assert!(<u128 as Key>::FIELDS == DIMENSIONS_MAX, "the wide key has room for every dimension");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn coordinates() -> impl Strategy<Value = Coordinate> {
        let field = prop_oneof![0..=Coordinate::HIGHEST, Just(0), Just(Coordinate::HIGHEST), 0..4u16];
        proptest::array::uniform8(field).prop_map(Coordinate)
    }

    fn narrow(mut coordinate: Coordinate) -> Coordinate {
        coordinate.0[4..].fill(0);
        coordinate
    }

    fn agree<K: Key>(a: Coordinate, b: Coordinate) -> Result<(), TestCaseError> {
        let x = K::pack(&a);
        let y = K::pack(&b);
        prop_assert_eq!(x.coordinate(), a);
        prop_assert_eq!(x.cmp(&y), a.cmp(&b));
        prop_assert_eq!(x.reaches(y), a.reaches(&b));
        prop_assert_eq!(x.highest(y).coordinate(), a.highest(&b));
        prop_assert_eq!(x.touches(y), (0..K::FIELDS).any(|d| a.0[d] == b.0[d]));
        prop_assert!(x < K::ABOVE_ALL);
        let mut less = a;
        let mut below = 0;
        for d in (0..K::FIELDS).filter(|&d| a.0[d] > 0 && b.0[d].is_multiple_of(2)) {
            less.0[d] -= 1;
            below |= 1 << d;
        }
        prop_assert_eq!(x.floor(below).coordinate(), less);
        prop_assert_eq!((x.leading(), x.later()), ((a.0[0], a.0[1]), (a.0[2], a.0[3])));
        Ok(())
    }

    proptest! {
        #[test]
        fn keys_compare_as_coordinates_do(a in coordinates(), b in coordinates()) {
            agree::<u128>(a, b)?;
            agree::<u64>(narrow(a), narrow(b))?;
            agree::<u64>(narrow(a), narrow(a))?;
        }
    }
}
