//! Coordinates, computed anew: how many steps of θ it takes to cover a value.

use wharf_core::index::{Dimension, ResourceVector};

/// Coordinates beyond this are equal; the index stores them in 16 bits.
const HIGHEST: i64 = 32_767;

/// One step count per dimension, in attribute order.
#[must_use]
pub fn coordinate(dimensions: &[(Dimension, i64)], vector: &ResourceVector) -> Vec<i64> {
    dimensions
        .iter()
        .map(|&(dimension, theta)| {
            let value = match dimension {
                Dimension::Cpu => vector.cpu.units(),
                Dimension::Memory => vector.memory.units(),
                Dimension::WholeGpus => i64::from(vector.whole_gpus),
                Dimension::LargestGpuPart => i64::from(vector.largest_gpu_part),
            };
            // The smallest count whose steps cover the value: none for zero, and one more each
            // time the value exceeds a multiple of θ.
            if value == 0 { 0 } else { ((value - 1) / theta + 1).min(HIGHEST) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wharf_core::resource::Amount;

    #[test]
    fn a_step_covers_what_it_reaches_and_no_more() {
        let at = |units: i64, theta: i64| {
            let cpu = Amount::try_from_units(units).unwrap();
            coordinate(&[(Dimension::Cpu, theta)], &ResourceVector { cpu, ..ResourceVector::default() })[0]
        };
        for (units, theta, expected) in [
            (0, 3, 0),
            (1, 3, 1),
            (3, 3, 1),
            (4, 3, 2),
            (6, 3, 2),
            (7, 1, 7),
            (32_767, 1, HIGHEST),
            (1 << 53, 1, HIGHEST),
        ] {
            assert_eq!(at(units, theta), expected, "{units} by {theta}");
        }
    }
}
