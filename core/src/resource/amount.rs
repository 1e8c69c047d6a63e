//! Fixed-point amounts in Ray's unit: 1/10,000 of a resource's unit, in an `i64`.
//!
//! Sums are exact and there are no floats. The same input gives the same bytes on every machine.

use std::fmt;
use std::str::FromStr;

use crate::limits::AMOUNT_MAX;

/// An amount of one resource in 1/10,000 of its unit (cpu: cores, memory: MiB, GPU: devices).
///
/// Amounts from outside the engine are in `0..=2^53`. Sums of many amounts use `i128` where they could
/// overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(i64);

/// The reason why a number is not an amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// The number is negative.
    #[error("{0} is negative: give zero or more")]
    Negative(String),
    /// The number is above 2^53 units of 1/10,000.
    #[error("{0} is out of range: the largest amount is 900719925474.0992")]
    TooLarge(String),
    /// The text is not a decimal number with at most four decimals.
    #[error("`{0}` is not an amount: give a decimal number with at most four decimals, such as 2 or 0.25")]
    NotANumber(String),
}

/// The maximum length of a text that a message repeats unchanged.
const SHOWN_MAX: usize = 32;

/// Formats a number for a message. Very long numbers become `1.5e300`, and other long texts are truncated.
///
/// A float setting from a file may have hundreds of digits.
#[must_use]
pub fn shown_number(text: &str) -> String {
    if text.chars().count() <= SHOWN_MAX {
        return text.to_owned();
    }
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let whole = whole.trim_start_matches('0');
    if whole.len() > 2 && whole.bytes().chain(part.bytes()).all(|b| b.is_ascii_digit()) {
        let leading = [&whole[..1], ".", &whole[1..2]].concat();
        return format!("{sign}{leading}e{}", whole.len() - 1);
    }
    let beginning: String = text.chars().take(SHOWN_MAX).collect();
    format!("{beginning}…")
}

impl Amount {
    /// The number of fractions per unit. An amount is a count of these fractions.
    pub const SCALE: i64 = 10_000;
    /// The amount zero.
    pub const ZERO: Self = Self(0);

    /// Creates an amount from a count of 1/10,000 units, and checks its range. All input from outside must be
    /// checked this way.
    ///
    /// # Errors
    /// When `units` is negative or above 2^53.
    #[inline]
    pub fn try_from_units(units: i64) -> Result<Self, AmountError> {
        if units < 0 {
            Err(AmountError::Negative(Self(units).to_string()))
        } else if units > AMOUNT_MAX {
            Err(AmountError::TooLarge(Self(units).to_string()))
        } else {
            Ok(Self(units))
        }
    }

    /// Creates an amount from a whole number of units. Every `u32` is in range.
    #[must_use]
    pub const fn whole(units: u32) -> Self {
        Self(units as i64 * Self::SCALE)
    }

    /// Creates an amount from thousandths of a unit (Kubernetes' milli-cpu).
    #[must_use]
    pub const fn from_milli(milli: u32) -> Self {
        Self(milli as i64 * (Self::SCALE / 1000))
    }

    /// Returns the sum of parts of units, each in 1/10,000, for at most 64 units of one node.
    pub(crate) fn from_parts(parts: impl Iterator<Item = u32>) -> Self {
        Self(parts.map(i64::from).sum())
    }

    /// Returns the count of 1/10,000 units.
    #[must_use]
    pub const fn units(self) -> i64 {
        self.0
    }

    /// Returns whether the amount is zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Returns the sum.
    ///
    /// # Panics
    /// When the sum overflows. This cannot happen for amounts in range.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.checked_add(other.0).expect("amounts are at most 2^53, their sums fit i64"))
    }

    /// Returns the difference.
    ///
    /// # Panics
    /// When `other` is larger, because the books would go below zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        assert!(other.0 <= self.0, "an amount below zero: {self} - {other}");
        Self(self.0 - other.0)
    }

    /// Returns the sum, or `None` if it is out of range.
    #[must_use]
    pub fn checked_plus(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).filter(|&sum| sum <= AMOUNT_MAX).map(Self)
    }

    /// Returns the difference, or zero if `other` is larger.
    #[must_use]
    pub fn saturating_minus(self, other: Self) -> Self {
        Self((self.0 - other.0).max(0))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0 / Self::SCALE;
        let part = (self.0 % Self::SCALE).abs();
        if self.0 < 0 && whole == 0 {
            f.write_str("-")?;
        }
        if part == 0 {
            write!(f, "{whole}")
        } else {
            write!(f, "{whole}.{}", format!("{part:04}").trim_end_matches('0'))
        }
    }
}

impl FromStr for Amount {
    type Err = AmountError;

    /// Parses a decimal number with at most four decimals, exactly.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let not_a_number = || AmountError::NotANumber(shown_number(text));
        let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        let unsigned = match text.strip_prefix('-') {
            Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => {
                return Err(AmountError::Negative(shown_number(text)));
            }
            _ => text,
        };
        let (whole, part) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let empty_part = unsigned.contains('.') && part.is_empty();
        if whole.is_empty() || empty_part || part.len() > 4 || !digits(whole) || !digits(part) {
            return Err(not_a_number());
        }
        let too_large = || AmountError::TooLarge(shown_number(text));
        let whole: i64 = whole.parse().map_err(|_| too_large())?;
        let part: i64 = format!("{part:0<4}").parse().map_err(|_| not_a_number())?;
        let units = whole.checked_mul(Self::SCALE).and_then(|w| w.checked_add(part)).ok_or_else(too_large)?;
        Self::try_from_units(units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_amount_agree() {
        for (text, units) in
            [("0", 0), ("1", 10_000), ("0.25", 2500), ("12.0001", 120_001), ("900719925474.0992", AMOUNT_MAX)]
        {
            let amount: Amount = text.parse().unwrap();
            assert_eq!(amount.units(), units);
            assert_eq!(amount.to_string(), text);
        }
    }

    #[test]
    fn numbers_beyond_reading_are_shown_short() {
        let huge = format!("15{}", "0".repeat(299));
        assert_eq!(huge.parse::<Amount>(), Err(AmountError::TooLarge("1.5e300".to_owned())));
        assert_eq!(format!("-{huge}").parse::<Amount>(), Err(AmountError::Negative("-1.5e300".to_owned())));
        let tiny = format!("0.{}1", "0".repeat(299));
        let shown = tiny.parse::<Amount>().unwrap_err().to_string();
        assert!(shown.starts_with("`0.000") && shown.contains("…`") && shown.len() < 200, "{shown}");
        assert!("ä".repeat(99).parse::<Amount>().unwrap_err().to_string().contains("ä…"));
    }

    #[test]
    fn text_that_is_no_amount_is_refused() {
        for text in ["", ".", "1.", ".5", "1.23456", "1e3", "x", "+1", "--1", "1.2.3", "٣"] {
            assert_eq!(text.parse::<Amount>(), Err(AmountError::NotANumber(text.to_owned())), "{text}");
        }
        assert!(matches!("-1".parse::<Amount>(), Err(AmountError::Negative(_))));
        assert!(matches!("900719925474.0993".parse::<Amount>(), Err(AmountError::TooLarge(_))));
        assert!(matches!("99999999999999999999".parse::<Amount>(), Err(AmountError::TooLarge(_))));
        assert!(matches!(Amount::try_from_units(-1), Err(AmountError::Negative(_))));
        assert!(matches!(Amount::try_from_units(i64::MAX), Err(AmountError::TooLarge(_))));
    }

    #[test]
    #[should_panic(expected = "an amount below zero")]
    fn books_below_zero_stop_the_process() {
        let _ = Amount::whole(1).minus(Amount::whole(2));
    }
}
