//! Tests of coordinates.

use super::*;
use proptest::prelude::*;

#[test]
fn geometries_that_cannot_be_are_refused() {
    use Dimension::{Cpu, Memory};
    assert_eq!(Geometry::new(vec![]), Err(GeometryError::Count(0)));
    assert_eq!(Geometry::new(vec![(Cpu, 1); 9]), Err(GeometryError::Count(9)));
    assert_eq!(
        Geometry::new(vec![(Cpu, 1), (Memory, 0)]),
        Err(GeometryError::Granularity { dimension: Memory, theta: 0 })
    );
    assert_eq!(Geometry::new(vec![(Cpu, 1), (Cpu, 2)]), Err(GeometryError::Twice(Cpu)));
}

proptest! {
    #[test]
    fn packed_coordinates_reach_as_they_do_unpacked(
        highest: [u16; DIMENSIONS_MAX], lower: [u16; DIMENSIONS_MAX], near in 0..DIMENSIONS_MAX, by in 0u16..3,
    ) {
        let mut close = highest;
        close[near] = close[near].wrapping_add(by).wrapping_sub(1);
        let highest = Coordinate(highest);
        for lower in [Coordinate(lower), Coordinate(close), highest] {
            let reaches = Coordinate::words_reach(highest.to_words(), lower.to_words());
            prop_assert_eq!(reaches, highest.reaches(&lower));
        }
    }

    #[test]
    fn no_fitting_node_is_hidden(
        theta in 1i64..100_000, asked in 0i64..1 << 53, more in 0i64..1 << 40,
    ) {
        let geometry = Geometry::new(vec![(Dimension::Cpu, theta)]).unwrap();
        let at = |units: i64| geometry.coordinate(&ResourceVector {
            cpu: Amount::try_from_units(units.min(1 << 53)).unwrap(), ..ResourceVector::default()
        });
        prop_assert!(at(asked + more).reaches(&at(asked)));
    }

    #[test]
    fn parts_of_small_steps_tell_values_apart(
        theta in prop_oneof![1i64..20_000, 16_380i64..16_390], first in 0i64..20_000, steps in 0i64..1_000,
    ) {
        let geometry = Geometry::new(vec![(Dimension::Cpu, theta)]).unwrap();
        let part = |units: i64| geometry.coordinates(&ResourceVector {
            cpu: Amount::try_from_units(steps * theta + units).unwrap(), ..ResourceVector::default()
        }).within[0];
        let [first, next] = [first % theta + 1, (first + 1) % theta + 1];
        let [low, high] = [first.min(next), first.max(next)];
        prop_assert!(part(low) <= part(high));
        if geometry.scales[0].is_exact() && low < high {
            prop_assert!(part(low) < part(high), "{} and {} of {}", low, high, theta);
        }
    }

    #[test]
    fn a_reciprocal_divides_as_division_does(
        value in 0u64..1 << 54, divisor in 1u64..=1 << 53, near in 0u64..1000,
    ) {
        // Includes multiples of small divisors, where an error of one step shows.
        for (value, divisor) in [(value, divisor), (value, near + 1), (divisor * near, divisor)] {
            let value = value % (1 << 60);
            let quotient = ceil_div(value, divisor, u64::MAX / divisor);
            let rest = if value > 0 { (value - 1) % divisor + 1 } else { 0 };
            prop_assert_eq!(quotient, (value.div_ceil(divisor), rest));
        }
    }

    #[test]
    fn gpus_are_divided_as_by_division(
        theta in prop_oneof![1i64..200, 1i64..1 << 20], whole in 0u16..=16, part in 0u16..=10_000,
    ) {
        use Dimension::{Cpu, LargestGpuPart, Memory, WholeGpus};
        let dimensions = vec![(Cpu, 1), (Memory, 1), (WholeGpus, theta), (LargestGpuPart, theta)];
        let geometry = Geometry::new(dimensions).unwrap();
        let vector = ResourceVector { whole_gpus: whole, largest_gpu_part: part, ..Default::default() };
        let at = geometry.coordinates(&vector);
        for (d, value) in [(2, whole), (3, part)] {
            prop_assert_eq!(u64::from(at.coordinate.0[d]), u64::from(value).div_ceil(theta as u64));
            let is_odd = u64::from(value) % theta as u64 != 0;
            prop_assert_eq!(at.odd[d - 2], if is_odd { value } else { 0 });
        }
        prop_assert_eq!(at, geometry.any_coordinates(&vector));
    }

    #[test]
    fn words_keep_a_coordinate(c in any::<[u16; 8]>()) {
        prop_assert_eq!(Coordinate::from_words(Coordinate(c).to_words()), Coordinate(c));
    }
}
