//! Amounts of memory and times as texts, in commands and files.

use std::time::Duration;

use wharf_core::resource::{Amount, AmountError};

/// A text that is no amount or no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The number is none.
    #[error(transparent)]
    Number(#[from] AmountError),
    /// The number of an amount of memory is none.
    #[error("{0}, with MiB, GiB, TiB or no unit for MiB")]
    Memory(AmountError),
    /// The amount is too large.
    #[error("{0} is out of range")]
    OutOfRange(String),
    /// The text is no time.
    #[error("`{0}` is no time: give one such as 500ms, 30s, 5m or 1h")]
    NoTime(String),
}

/// Parses an amount of memory in MiB, or with a unit: MiB, GiB or TiB, or Mi, Gi or Ti as in Kubernetes.
///
/// # Errors
/// The text is no number, or the amount is out of range.
pub fn memory(text: &str) -> Result<Amount, UnitError> {
    const UNITS: [(&str, i64); 3] = [("Mi", 1), ("Gi", 1024), ("Ti", 1024 * 1024)];
    let bare = text.strip_suffix('B').unwrap_or(text);
    let with_unit = UNITS.iter().find_map(|&(unit, mib)| Some((bare.strip_suffix(unit)?.trim(), mib)));
    let (number, mib) = with_unit.unwrap_or((text, 1));
    let amount: Amount = number.parse().map_err(UnitError::Memory)?;
    let units = amount.units().checked_mul(mib).ok_or_else(|| UnitError::OutOfRange(text.to_owned()))?;
    Ok(Amount::try_from_units(units)?)
}

/// Parses a time such as 500ms, 30s, 5m or 1h.
///
/// # Errors
/// The text is no such time.
pub fn duration(text: &str) -> Result<Duration, UnitError> {
    let wrong = || UnitError::NoTime(text.to_owned());
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..at].parse().map_err(|_| wrong())?;
    let millis = match &text[at..] {
        "ms" => Some(number),
        "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => None,
    };
    millis.map(Duration::from_millis).ok_or_else(wrong)
}

/// Returns a duration in ns.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_with_and_without_units() {
        for (text, mib) in
            [("512", 512), ("512MiB", 512), ("1.5GiB", 1536), ("2 TiB", 2 * 1024 * 1024), ("4Gi", 4096)]
        {
            assert_eq!(memory(text).unwrap(), Amount::whole(mib), "{text}");
        }
        for text in ["", "GiB", "-1", "1GB", "1B", "99999999999TiB"] {
            assert!(memory(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_have_a_unit() {
        for (text, millis) in [("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)));
        }
        for broken in ["", "30", "s", "-1s", "1d", "99999999999999999999s", "18446744073709551615h"] {
            assert!(duration(broken).is_err(), "{broken}");
        }
    }
}
