//! Fixed-point amounts: Ray's unit, 1/10 000 of a resource's unit, in an `i64`.
//!
//! Exact sums, no floats: the same input gives the same bytes on every machine.

use std::fmt;
use std::str::FromStr;

use crate::limits::AMOUNT_MAX;

/// An amount of one resource in 1/10 000 of its unit (cpu: cores, memory: MiB, GPU: devices).
///
/// Amounts that crossed the edge of the engine lie in `0..=2^53`; sums of many are kept in
/// `i128` where they could overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(i64);

/// A number that is no amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// Below zero.
    #[error("{0} is negative: give zero or more")]
    Negative(String),
    /// Above 2^53 units of 1/10 000.
    #[error("{0} is out of range: the largest amount is 900719925474.0992")]
    TooLarge(String),
    /// Not a decimal number with at most four decimals.
    #[error("`{0}` is not an amount: give a decimal number with at most four decimals, such as 2 or 0.25")]
    NotANumber(String),
}

/// The longest text that a message repeats as it is.
const SHOWN_MAX: usize = 32;

/// A number as a message shows it: digits beyond reading as `1.5e300`, other long texts cut short.
/// A setting read from a file as a float may well come with hundreds of digits.
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
    /// Fractions of a unit: an amount is a count of these.
    pub const SCALE: i64 = 10_000;
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// An amount from its count of 1/10 000 units, checked as everything from outside must be.
    ///
    /// # Errors
    /// When `units` is negative or above 2^53.
    pub fn try_from_units(units: i64) -> Result<Self, AmountError> {
        if units < 0 {
            Err(AmountError::Negative(Self(units).to_string()))
        } else if units > AMOUNT_MAX {
            Err(AmountError::TooLarge(Self(units).to_string()))
        } else {
            Ok(Self(units))
        }
    }

    /// A whole number of units, for constants and tests.
    ///
    /// # Panics
    /// When the amount is out of range.
    #[must_use]
    pub const fn whole(units: u32) -> Self {
        Self(units as i64 * Self::SCALE)
    }

    /// An amount from thousandths of a unit (Kubernetes' milli-cpu).
    #[must_use]
    pub const fn from_milli(milli: u32) -> Self {
        Self(milli as i64 * (Self::SCALE / 1000))
    }

    /// The sum of parts of units, each in 1/10 000: of at most 64 units of one node.
    pub(crate) fn from_parts(parts: impl Iterator<Item = u32>) -> Self {
        Self(parts.map(i64::from).sum())
    }

    /// The count of 1/10 000 units.
    #[must_use]
    pub const fn units(self) -> i64 {
        self.0
    }

    /// Whether it is nothing.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum.
    ///
    /// # Panics
    /// When the sum overflows, which amounts within range cannot.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.checked_add(other.0).expect("amounts are at most 2^53, their sums fit i64"))
    }

    /// The difference.
    ///
    /// # Panics
    /// When `other` is larger: the books would go below zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        assert!(other.0 <= self.0, "an amount below zero: {self} - {other}");
        Self(self.0 - other.0)
    }

    /// The sum, if it is in range.
    #[must_use]
    pub fn checked_plus(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).filter(|&sum| sum <= AMOUNT_MAX).map(Self)
    }

    /// The difference, or nothing where `other` is larger.
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

    /// Reads a decimal number with at most four decimals, exactly.
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
