//! Builds geometries from bytes, for the index and for the oracle: dimensions, granularity, orders and weights.

use arbitrary::Arbitrary;
use wharf_core::index::{Dimension, Geometry, Weights};

use crate::oracle::Space;

const DIMENSIONS: [Dimension; 7] = [
    Dimension::Cpu,
    Dimension::Memory,
    Dimension::WholeGpus,
    Dimension::LargestGpuPart,
    Dimension::Custom(0),
    Dimension::Weighted,
    Dimension::Custom(1),
];

/// A geometry that is drawn from the input.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) struct Drawn {
    /// Allows more than the four dimensions that every node has.
    wide: bool,
    count: u8,
    first: u8,
    reversed: bool,
    pub(crate) granularity: [u8; 7],
    room: u8,
    orders: [u8; 3],
    weights: [u8; 6],
}

/// Returns `dimensions` in another order, which `number` selects.
pub(crate) fn shuffled(mut dimensions: Vec<Dimension>, mut number: u8) -> Vec<Dimension> {
    for place in (1..dimensions.len()).rev() {
        dimensions.swap(place, usize::from(number) % (place + 1));
        number = number.wrapping_mul(37).wrapping_add(11);
    }
    dimensions
}

impl Drawn {
    fn theta(self, dimension: Dimension) -> i64 {
        let drawn = |place: usize| self.granularity[place];
        match dimension {
            Dimension::Cpu => i64::from(drawn(0) % 4) + 1,
            Dimension::Memory => i64::from(drawn(1) % 4) + 1,
            Dimension::WholeGpus => i64::from(drawn(2) % 2) + 1,
            Dimension::LargestGpuPart => [500, 2500, 3000, 7000][usize::from(drawn(3) % 4)],
            Dimension::Custom(number) => i64::from(drawn(4 + usize::from(number)) % 4) + 1,
            Dimension::Weighted => [1, 7, 100, 30_000][usize::from(drawn(6) % 4)],
        }
    }

    /// Returns the geometry of the index and the equivalent space of the oracle.
    pub(crate) fn both(self) -> (Geometry, Space) {
        let mut dimensions = DIMENSIONS[..if self.wide { 7 } else { 4 }].to_vec();
        let all = dimensions.len();
        dimensions.rotate_left(usize::from(self.first) % all);
        if self.reversed {
            dimensions.reverse();
        }
        dimensions.truncate(usize::from(self.count) % all + 1);
        let orders: Vec<Vec<Dimension>> =
            self.orders.into_iter().map(|number| shuffled(dimensions.clone(), number)).collect();
        let orders = &orders[..usize::from(self.room >> 4) % 4];
        let named = DIMENSIONS.into_iter().filter(|&dimension| dimension != Dimension::Weighted);
        // `Custom(3)` guarantees that at least one weight is positive.
        let weights: Vec<(Dimension, i64)> = named
            .zip(self.weights)
            .map(|(dimension, weight)| {
                (dimension, [10_000, 1, 0, 1 << 40, 3_000_000][usize::from(weight % 5)])
            })
            .chain([(Dimension::Custom(3), 1)])
            .collect();
        let dimensions = dimensions.into_iter().map(|dimension| (dimension, self.theta(dimension))).collect();
        let geometry = Geometry::new(dimensions)
            .expect("different dimensions, positive steps")
            .with_weights(Weights::new(&weights).expect("none is negative"))
            .with_orders(orders)
            .expect("each order names each dimension once")
            // Small runs, so that few nodes make a deep tree.
            .with_room(4 + usize::from(self.room % 8));
        let space = Space::new(&geometry).with_orders(orders).with_weights(&weights);
        (geometry, space)
    }
}
