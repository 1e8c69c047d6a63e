//! Coordinates, computed independently of the index: the number of steps of θ that cover a value.

use wharf_core::index::{Dimension, Geometry, ResourceVector};

/// The highest coordinate. Larger values count as equal, because the index stores coordinates in 16 bits.
const HIGHEST: i64 = 32_767;

/// The highest weighted sum. Larger sums count as equal.
const SUM_MAX: i128 = 1 << 53;

/// The mapping from vectors to coordinates, and the orders in which coordinates are compared.
#[derive(Clone, Debug, Default)]
pub struct Space {
    dimensions: Vec<(Dimension, i64)>,
    /// The orders in addition to the dimensions' own.
    orders: Vec<Vec<Dimension>>,
    /// The weight of each dimension in the weighted sum, in 1/10,000.
    weights: Vec<(Dimension, i64)>,
}

/// Returns a value in the unit in which θ divides it.
fn value(dimension: Dimension, vector: &ResourceVector) -> i64 {
    match dimension {
        Dimension::Cpu => vector.cpu.units(),
        Dimension::Memory => vector.memory.units(),
        Dimension::WholeGpus => i64::from(vector.whole_gpus),
        Dimension::LargestGpuPart => i64::from(vector.largest_gpu_part),
        Dimension::Custom(number) => vector.custom[usize::from(number)].units(),
        Dimension::Weighted => unreachable!("a sum has no weight in itself"),
    }
}

impl Space {
    /// Creates a space with the dimensions of `geometry` in their own order.
    #[must_use]
    pub fn new(geometry: &Geometry) -> Self {
        Self { dimensions: geometry.dimensions().to_vec(), ..Self::default() }
    }

    /// Adds further orders.
    #[must_use]
    pub fn with_orders(mut self, orders: &[Vec<Dimension>]) -> Self {
        self.orders = orders.to_vec();
        self
    }

    /// Sets the weights.
    #[must_use]
    pub fn with_weights(mut self, weights: &[(Dimension, i64)]) -> Self {
        self.weights = weights.to_vec();
        self
    }

    /// Returns the dimensions, each with its θ.
    #[must_use]
    pub fn dimensions(&self) -> &[(Dimension, i64)] {
        &self.dimensions
    }

    /// Changes the θ of each dimension for which `theta` returns a value.
    pub fn regrain(&mut self, theta: impl Fn(usize) -> Option<i64>) {
        for (place, dimension) in self.dimensions.iter_mut().enumerate() {
            dimension.1 = theta(place).unwrap_or(dimension.1);
        }
    }

    /// Returns the value of one dimension.
    #[must_use]
    pub fn value(&self, dimension: Dimension, vector: &ResourceVector) -> i64 {
        if dimension != Dimension::Weighted {
            return value(dimension, vector);
        }
        let mut sum: i128 = 0;
        for &(part, weight) in &self.weights {
            let whole = if part == Dimension::WholeGpus { 10_000 } else { 1 };
            sum += i128::from(weight) * i128::from(value(part, vector)) * whole;
        }
        (sum / 10_000).min(SUM_MAX) as i64
    }

    fn step(&self, dimension: Dimension, theta: i64, vector: &ResourceVector) -> i64 {
        let value = self.value(dimension, vector);
        // The smallest count whose steps cover the value: zero for zero, plus one each time the value exceeds a
        // multiple of θ.
        if value == 0 { 0 } else { ((value - 1) / theta + 1).min(HIGHEST) }
    }

    /// Returns one step count per dimension, in the dimensions' own order.
    #[must_use]
    pub fn coordinate(&self, vector: &ResourceVector) -> Vec<i64> {
        self.dimensions.iter().map(|&(dimension, theta)| self.step(dimension, theta, vector)).collect()
    }

    /// Returns the coordinate in attribute order `order`. Order 0 is the dimensions' own.
    #[must_use]
    pub fn compared(&self, order: usize, vector: &ResourceVector) -> Vec<i64> {
        if order == 0 {
            return self.coordinate(vector);
        }
        let mut compared = Vec::new();
        for dimension in &self.orders[order - 1] {
            let &(dimension, theta) =
                self.dimensions.iter().find(|(known, _)| known == dimension).expect("each is named once");
            compared.push(self.step(dimension, theta, vector));
        }
        compared
    }

    /// Returns the dimension that an order compares first.
    #[must_use]
    pub fn leading(&self, order: usize) -> Dimension {
        if order == 0 { self.dimensions[0].0 } else { self.orders[order - 1][0] }
    }

    /// Returns the number of orders.
    #[must_use]
    pub fn order_count(&self) -> usize {
        1 + self.orders.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wharf_core::resource::Amount;

    #[test]
    fn a_step_covers_what_it_reaches_and_no_more() {
        let at = |units: i64, theta: i64| {
            let cpu = Amount::try_from_units(units).unwrap();
            let space = Space { dimensions: vec![(Dimension::Cpu, theta)], ..Space::default() };
            space.coordinate(&ResourceVector { cpu, ..ResourceVector::default() })[0]
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
