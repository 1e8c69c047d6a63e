//! The number in the middle.

/// Sorts numbers, and returns the one in the middle, or what lies between two. 0 if there is none.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count.is_multiple_of(2) => f64::midpoint(values[count / 2 - 1], values[count / 2]),
        count => values[count / 2],
    }
}
