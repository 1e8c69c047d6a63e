//! The weighted coordinate function: one dimension is the sum of the others by weight. The resource with the
//! largest weight dominates the order.

use super::coordinate::{Dimension, GeometryError, VALUES};
use crate::resource::Amount;

/// The weight of a unit of each dimension in the weighted sum, in 1/10,000.
///
/// A sum with non-negative weights is monotone: a node that has at least what is asked in every dimension
/// also has at least its sum. A negative weight would break this, and is rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights([u64; VALUES]);

impl Weights {
    /// Creates weights per dimension, in 1/10,000 per core, MiB, GPU and unit of a custom kind.
    ///
    /// A dimension that is not named has weight zero. The sum itself has no weight.
    ///
    /// # Errors
    /// When one is negative, or none is above zero.
    pub fn new(weights: &[(Dimension, i64)]) -> Result<Self, GeometryError> {
        let mut all = Self::default();
        for &(dimension, weight) in weights {
            let weight = u64::try_from(weight).map_err(|_| GeometryError::Weight(dimension))?;
            if dimension != Dimension::Weighted {
                all.0[usize::from(dimension.place())] = weight;
            }
        }
        if all == Self::default() { Err(GeometryError::NoWeight) } else { Ok(all) }
    }

    /// Returns the sum over `values`, in 1/10,000, capped at [`AMOUNT_MAX`](crate::limits::AMOUNT_MAX).
    pub(super) fn sum(&self, values: &[u64; VALUES]) -> u64 {
        let scale = Amount::SCALE as u128;
        let whole_gpus = usize::from(Dimension::WholeGpus.place());
        let mut sum: u128 = 0;
        for (place, (&weight, &value)) in self.0.iter().zip(values).enumerate() {
            // A weight is below 2^63 and a value at most 2^53, so nine of them are below 2^120.
            let units = u128::from(value) * if place == whole_gpus { scale } else { 1 };
            sum += u128::from(weight) * units;
        }
        (sum / scale).min(crate::limits::AMOUNT_MAX as u128) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{Geometry, ResourceVector};
    use proptest::prelude::*;

    fn vector(values: [i64; 8]) -> ResourceVector {
        let amount = |value: i64| Amount::try_from_units(value).unwrap();
        ResourceVector {
            cpu: amount(values[0]),
            memory: amount(values[1]),
            whole_gpus: (values[2] % 17) as u16,
            largest_gpu_part: (values[3] % 10_001) as u16,
            custom: [amount(values[4]), amount(values[5]), amount(values[6]), amount(values[7])],
        }
    }

    fn dimensions(thetas: [i64; 8], weighted: bool) -> Vec<(Dimension, i64)> {
        use Dimension::{Cpu, Custom, LargestGpuPart, Memory, Weighted, WholeGpus};
        let last = if weighted { Weighted } else { Custom(3) };
        let all = [last, Cpu, Memory, WholeGpus, LargestGpuPart, Custom(0), Custom(1), Custom(2)];
        all.into_iter().zip(thetas).collect()
    }

    #[test]
    fn what_is_not_monotone_is_refused() {
        let weights = |cpu, memory| Weights::new(&[(Dimension::Cpu, cpu), (Dimension::Memory, memory)]);
        assert_eq!(weights(1, -1), Err(GeometryError::Weight(Dimension::Memory)));
        assert!(weights(1, -1).unwrap_err().to_string().contains("hide a node"));
        assert_eq!(weights(0, 0), Err(GeometryError::NoWeight));
        assert!(weights(0, 1).is_ok());
    }

    #[test]
    fn a_great_weight_dominates() {
        let weights = Weights::new(&[(Dimension::Cpu, 10_000), (Dimension::WholeGpus, 1_000_000)]).unwrap();
        let sum = |cpu: i64, gpus: i64| weights.sum(&vector([cpu * 10_000, 0, gpus, 0, 0, 0, 0, 0]).values());
        assert_eq!((sum(3, 0), sum(3, 2)), (30_000, 2_030_000));
        assert!(sum(99, 1) < sum(0, 2));
    }

    /// Returns what remains after `reserved` is subtracted, at least zero in each dimension.
    fn without(vector: &ResourceVector, reserved: &ResourceVector) -> ResourceVector {
        let mut left = *vector;
        left.cpu = left.cpu.saturating_minus(reserved.cpu);
        left.memory = left.memory.saturating_minus(reserved.memory);
        left.whole_gpus = left.whole_gpus.saturating_sub(reserved.whole_gpus);
        left.largest_gpu_part = left.largest_gpu_part.saturating_sub(reserved.largest_gpu_part);
        for (left, &reserved) in left.custom.iter_mut().zip(&reserved.custom) {
            *left = left.saturating_minus(reserved);
        }
        left
    }

    proptest! {
        /// Every accepted function is monotone, with any θ, weights and reservations.
        #[test]
        fn accepted_functions_hide_no_node(
            asked in proptest::array::uniform8(0i64..1 << 52),
            more in proptest::array::uniform8(0i64..1 << 52),
            reserved in proptest::array::uniform8(0i64..1 << 52),
            thetas in proptest::array::uniform8(prop_oneof![1i64..100, 1i64..1 << 45]),
            weights in proptest::array::uniform8(prop_oneof![0i64..100, 0..i64::MAX]),
            weighted in any::<bool>(),
            near in any::<bool>(),
        ) {
            let dimensions = dimensions(thetas, weighted);
            let named: Vec<_> = dimensions.iter().map(|&(d, _)| d).zip(weights).collect();
            let geometry = Geometry::new(dimensions).unwrap();
            let geometry = match Weights::new(&named) {
                Ok(weights) => geometry.with_weights(weights),
                Err(_) => geometry,
            };
            let more = if near { more.map(|value| value % 3) } else { more };
            let mut available = asked;
            for (value, more) in available.iter_mut().zip(more) {
                *value += more;
            }
            // A remainder could be less than what was asked.
            (available[2], available[3]) = (asked[2], asked[3]);
            let asked = vector(asked);
            let available = vector(available);
            let reserved = vector(reserved);
            let at = |vector: &ResourceVector| geometry.coordinate(vector);
            prop_assert!(at(&available).reaches(&at(&asked)));
            prop_assert!(at(&without(&available, &reserved)).reaches(&at(&without(&asked, &reserved))));
            prop_assert!(at(&available).reaches(&at(&without(&available, &reserved))));
        }

        /// An upper bound in one granularity converts to an upper bound in any other.
        #[test]
        fn a_bound_holds_in_other_granularities(
            values in proptest::array::uniform8(prop_oneof![0i64..1000, 0i64..1 << 53]),
            thetas in proptest::array::uniform8(prop_oneof![1i64..100, 1i64..1 << 45]),
            others in proptest::array::uniform8(prop_oneof![1i64..100, 1i64..1 << 45]),
        ) {
            let geometry = Geometry::new(dimensions(thetas, false)).unwrap();
            let other = geometry.with_thetas(&others);
            let vector = vector(values);
            let bound = geometry.bound_in(&other, geometry.coordinate(&vector));
            prop_assert!(bound.reaches(&other.coordinate(&vector)));
        }
    }
}
