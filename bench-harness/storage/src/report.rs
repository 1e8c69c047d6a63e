//! The table that is printed.

use std::fmt::{self, Write};

use crate::storages::STORAGES;

/// Medians over the rounds are printed as a range if it is wider than this part of their median.
const RANGE_PART: u64 = 20;

/// Returns the number in the middle, the larger one of two.
pub(crate) fn median(numbers: &[u64]) -> u64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

/// Returns the table in Markdown: a row per storage, and a column per length in bytes. `medians` has those of the
/// rounds in ns, by storage and length.
pub(crate) fn table<const LENGTHS: usize>(
    value_bytes: &[usize; LENGTHS],
    medians: &[[Vec<u64>; LENGTHS]],
) -> String {
    let mut table = "| storage |".to_owned();
    let mut add = |text: fmt::Arguments<'_>| table.write_fmt(text).expect("a text takes all");
    value_bytes.iter().for_each(|&bytes| add(format_args!(" {} bytes |", separated(bytes as u64))));
    add(format_args!("\n|---{}|\n", "|---".repeat(LENGTHS)));
    for (storage, row) in STORAGES.iter().zip(medians) {
        add(format_args!("| {} |", (storage.name)()));
        row.iter().for_each(|rounds| add(format_args!(" {} |", cell(rounds))));
        add(format_args!("\n"));
    }
    table
}

/// Returns the medians of the rounds, given in ns, as one number or a range in µs.
fn cell(rounds: &[u64]) -> String {
    let mut micros: Vec<u64> = rounds.iter().map(|nanos| (nanos + 500) / 1000).collect();
    micros.sort_unstable();
    let middle = median(&micros);
    let ends = [micros[0], micros[micros.len() - 1]];
    if (ends[1] - ends[0]) * RANGE_PART <= middle {
        return separated(middle);
    }
    ends.map(separated).join("–")
}

/// Returns a number with a comma before every three digits.
fn separated(number: u64) -> String {
    if number < 1000 {
        return number.to_string();
    }
    format!("{},{:03}", separated(number / 1000), number % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds a range that is printed although it is narrow, and one that is left out.
    #[test]
    fn a_wide_range_is_printed_and_a_narrow_one_is_not() {
        assert_eq!(cell(&[105_000, 100_400, 101_499]), "101");
        assert_eq!(cell(&[107_000, 100_000, 101_000]), "100–107");
        assert_eq!(cell(&[1_234_567]), "1,235");
        assert_eq!(separated(1_002_003), "1,002,003");
    }
}
