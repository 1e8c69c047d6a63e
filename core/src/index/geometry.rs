//! Options of a geometry in addition to dimensions, steps and orders: custom kinds, weights, and automatic
//! granularity.

use std::sync::Arc;

use super::coordinate::{
    Coordinate, Coordinates, Dimension, Geometry, GeometryError, ResourceVector, VALUES, scales,
};
use super::weights::Weights;
use crate::ids::ResourceId;
use crate::limits::CUSTOM_DIMENSIONS_MAX;
use crate::resource::{Amount, CustomAmounts, Demand};

impl Geometry {
    /// Sets the kinds of the custom dimensions, in order of index. Without them, these coordinates are zero.
    ///
    /// # Errors
    /// When there are too many.
    pub fn with_custom(mut self, kinds: &[ResourceId]) -> Result<Self, GeometryError> {
        if kinds.len() > CUSTOM_DIMENSIONS_MAX {
            return Err(GeometryError::Custom(kinds.len()));
        }
        self.custom = kinds.into();
        Ok(self)
    }

    /// Sets the weights of the sum [`Dimension::Weighted`].
    #[must_use]
    pub fn with_weights(mut self, weights: Weights) -> Self {
        self.weights = weights;
        self
    }

    /// Lets the θ of these dimensions follow the nodes. The given θ is used until there are nodes.
    ///
    /// Only a shard adjusts θ. An index alone uses the given θ.
    #[must_use]
    pub fn with_automatic(mut self, dimensions: &[Dimension]) -> Self {
        let places = (0..).zip(&self.dimensions).filter(|(_, (d, _))| dimensions.contains(d));
        self.automatic = places.fold(0, |bits, (place, _)| bits | 1u8 << place);
        self
    }

    /// Returns whether the θ of the dimension at index `place` follows the nodes.
    #[must_use]
    pub fn is_automatic(&self, place: usize) -> bool {
        self.automatic >> place & 1 == 1
    }

    /// Returns whether the θ of any dimension follows the nodes.
    #[inline]
    #[must_use]
    pub fn has_automatic(&self) -> bool {
        self.automatic != 0
    }

    /// Returns the same geometry with other granularities, in order of the dimensions.
    ///
    /// # Panics
    /// When one is not positive, or their number is not that of the dimensions.
    #[must_use]
    pub(crate) fn with_thetas(&self, thetas: &[i64]) -> Self {
        assert!(thetas.len() == self.dimensions.len() && thetas.iter().all(|&theta| theta > 0));
        let mut other = self.clone();
        for (dimension, &theta) in other.dimensions.iter_mut().zip(thetas) {
            dimension.1 = theta;
        }
        other.scales = scales(&other.dimensions);
        other
    }

    /// Converts `highest`, an upper bound in this geometry, to an upper bound in `other`, which differs only
    /// in granularity. A vector within the bound here is also within the returned bound there.
    #[must_use]
    pub fn bound_in(&self, other: &Self, highest: Coordinate) -> Coordinate {
        let mut bound = highest;
        let scales = self.scales.iter().zip(&other.scales).take(self.dimensions.len());
        for (c, (from, to)) in bound.0.iter_mut().zip(scales) {
            // The highest coordinate includes all larger values.
            if from.theta != to.theta && *c < Coordinate::HIGHEST {
                // At most 2^15 times 2^53.
                let most = u128::from(*c) * u128::from(from.theta);
                let steps = most.div_ceil(u128::from(to.theta));
                *c = steps.min(u128::from(Coordinate::HIGHEST)) as u16;
            }
        }
        bound
    }

    /// Returns the indexed custom kinds, by index.
    #[must_use]
    pub fn custom(&self) -> &Arc<[ResourceId]> {
        &self.custom
    }

    /// Returns the minimum that a request needs in every indexed dimension.
    #[inline]
    #[must_use]
    pub fn asked(&self, demand: &Demand) -> ResourceVector {
        let asked = ResourceVector::asked(demand);
        match &demand.custom {
            Some(amounts) if !self.custom.is_empty() => self.asked_custom(amounts, asked),
            _ => asked,
        }
    }

    #[cold]
    fn asked_custom(&self, amounts: &CustomAmounts, mut asked: ResourceVector) -> ResourceVector {
        for (place, &id) in asked.custom.iter_mut().zip(self.custom.iter()) {
            let named = amounts.binary_search_by_key(&id, |&(id, _)| id);
            *place = named.map_or(Amount::ZERO, |at| amounts[at].1);
        }
        asked
    }

    /// Returns the value of each dimension that its θ divides.
    #[must_use]
    pub fn values(&self, vector: &ResourceVector) -> Vec<u64> {
        let values = self.weighted(vector);
        self.scales[..self.dimensions.len()].iter().map(|scale| values[usize::from(scale.value)]).collect()
    }

    fn weighted(&self, vector: &ResourceVector) -> [u64; VALUES] {
        let mut values = vector.values();
        values[VALUES - 1] = self.weights.sum(&values);
        values
    }

    /// The same as `coordinates`, for any dimensions.
    #[cold]
    #[inline(never)]
    pub(super) fn any_coordinates(&self, vector: &ResourceVector) -> Coordinates {
        let values = self.weighted(vector);
        let mut coordinates = Coordinates::default();
        for (d, scale) in self.scales[..self.dimensions.len()].iter().enumerate() {
            let value = values[usize::from(scale.value)];
            if self.is_wide || d < 2 {
                coordinates.set(d, scale, value);
            } else {
                coordinates.set_steps(d, scale, value as u16);
            }
        }
        coordinates
    }
}
