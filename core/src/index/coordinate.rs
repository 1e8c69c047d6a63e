//! Coordinates: the position of a resource vector in the bucket tree.
//!
//! A coordinate may be any *monotone* function of a vector: `available >= asked` must imply
//! `coordinate(available) >= coordinate(asked)`. Otherwise the index would hide a node that fits.
//!
//! All functions here are monotone by construction. Each coordinate is `ceil(value / θ)` of one value with a
//! positive θ. Each value is a resource or a [weighted](super::Weights) sum of resources. Reservations are
//! already subtracted: shards withhold reserved capacity in their books, so it is not in these vectors.

use std::sync::Arc;

use super::cell::CHUNK;
use super::weights::Weights;
use crate::ids::ResourceId;
use crate::limits::{ATTRIBUTE_ORDERS_MAX, CUSTOM_DIMENSIONS_MAX, DIMENSIONS_MAX};
use crate::resource::{Amount, Demand, GpuBooks, GpuRequest};

/// An indexed dimension of the resource space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Cores, in 1/10,000.
    Cpu,
    /// MiB, in 1/10,000.
    Memory,
    /// The number of wholly free GPU instances.
    WholeGpus,
    /// The largest free part of one GPU instance, in 1/10,000.
    LargestGpuPart,
    /// An indexed custom kind by its index among them, `0..CUSTOM_DIMENSIONS_MAX`.
    ///
    /// The value is its amount in 1/10,000. For a unit-instance kind, it is the number of wholly free units,
    /// or the largest free part if there are none. Any request that fits, for a part or for whole units, asks
    /// for at most this value.
    Custom(u8),
    /// The weighted sum of the others, in 1/10,000.
    Weighted,
}

/// The index of an unused value, if only the four values that every node has are used.
const NO_VALUE: u8 = 4;
/// The number of values that a dimension may refer to.
pub(super) const VALUES: usize = 4 + CUSTOM_DIMENSIONS_MAX + 1;

impl Dimension {
    /// Returns its index in a vector of values.
    pub(super) fn place(self) -> u8 {
        match self {
            Self::Cpu => 0,
            Self::Memory => 1,
            Self::WholeGpus => 2,
            Self::LargestGpuPart => 3,
            Self::Custom(number) => 4 + number,
            Self::Weighted => (VALUES - 1) as u8,
        }
    }
}

/// A position in the bucket tree: one number per dimension, in attribute order, zero beyond the last.
///
/// Coordinates compare lexicographically, which is the order of LeastFit and BestFit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Coordinate(pub [u16; DIMENSIONS_MAX]);

impl Coordinate {
    /// The largest coordinate of a dimension. It has fifteen bits, because the tree packs each coordinate
    /// with a guard bit.
    pub const HIGHEST: u16 = (1 << 15) - 1;

    /// Returns whether every dimension is at least that of `lower`. Such a coordinate is in the fittable
    /// area.
    #[inline]
    #[must_use]
    pub fn reaches(&self, lower: &Self) -> bool {
        // The sum of shortfalls is computed without a branch, so it compiles to a few wide instructions.
        let mut lacking = 0;
        for d in 0..DIMENSIONS_MAX {
            lacking |= lower.0[d].saturating_sub(self.0[d]);
        }
        lacking == 0
    }

    /// Returns the larger of both in each dimension.
    #[inline]
    #[must_use]
    pub fn highest(mut self, other: &Self) -> Self {
        for d in 0..DIMENSIONS_MAX {
            self.0[d] = self.0[d].max(other.0[d]);
        }
        self
    }

    /// Packs the coordinate into two numbers, for a summary that is published in atomics.
    #[inline]
    #[must_use]
    pub fn to_words(self) -> [u64; 2] {
        let mut words = [0u64; 2];
        for (d, &c) in self.0.iter().enumerate() {
            words[d / 4] |= u64::from(c) << (16 * (d % 4));
        }
        words
    }

    /// Returns whether a packed coordinate [reaches](Self::reaches) another one.
    #[inline]
    #[must_use]
    pub fn words_reach(words: [u64; 2], lower: [u64; 2]) -> bool {
        // The highest bit of each of the four numbers in a word.
        const HIGH: u64 = 0x8000_8000_8000_8000;
        let reach = |word: u64, lower: u64| {
            // Compares the lower 15 bits of all four numbers: nothing is borrowed across them.
            let rest = (word | HIGH) - (lower & !HIGH);
            (word & !lower | !(word ^ lower) & rest) & HIGH
        };
        reach(words[0], lower[0]) & reach(words[1], lower[1]) == HIGH
    }

    /// The inverse of [`to_words`](Self::to_words).
    #[must_use]
    pub fn from_words(words: [u64; 2]) -> Self {
        let mut coordinate = Self::default();
        for (d, c) in coordinate.0.iter_mut().enumerate() {
            *c = (words[d / 4] >> (16 * (d % 4))) as u16;
        }
        coordinate
    }
}

const _: () = assert!(DIMENSIONS_MAX == 8, "a coordinate is published as two u64");

/// The indexed values, either available on a node or requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceVector {
    /// Cores.
    pub cpu: Amount,
    /// MiB.
    pub memory: Amount,
    /// The number of whole GPU instances.
    pub whole_gpus: u16,
    /// A part of one GPU instance, in 1/10,000.
    pub largest_gpu_part: u16,
    /// Custom kinds, by their index among the indexed ones. See [`Geometry::with_custom`].
    pub custom: [Amount; CUSTOM_DIMENSIONS_MAX],
}

impl ResourceVector {
    /// Returns the vector of what a node has available.
    #[must_use]
    pub fn available(cpu: Amount, memory: Amount, gpus: &GpuBooks) -> Self {
        let whole_gpus = gpus.whole_free();
        let largest_gpu_part = gpus.largest_free();
        Self { cpu, memory, whole_gpus, largest_gpu_part, ..Self::default() }
    }

    /// Returns the values by index, without the weighted sum.
    pub(super) fn values(&self) -> [u64; VALUES] {
        let mut values = [0; VALUES];
        values[0] = self.cpu.units() as u64;
        values[1] = self.memory.units() as u64;
        values[2] = u64::from(self.whole_gpus);
        values[3] = u64::from(self.largest_gpu_part);
        for (value, amount) in values[4..].iter_mut().zip(&self.custom) {
            *value = amount.units() as u64;
        }
        values
    }

    /// Returns the minimum that a request needs, except custom kinds. ([`Geometry::asked`] knows which of
    /// those are indexed.)
    ///
    /// A part of a GPU asks for no whole GPU, and a whole GPU also asks for the largest part. Neither hides a
    /// node that fits.
    #[must_use]
    pub fn asked(demand: &Demand) -> Self {
        let (whole_gpus, largest_gpu_part) = match demand.gpu {
            GpuRequest::None => (0, 0),
            GpuRequest::Fraction(part) => (0, part),
            GpuRequest::Whole(count) => (u16::from(count), crate::resource::GPU_UNIT),
        };
        let cpu = demand.cpu;
        let memory = demand.memory;
        Self { cpu, memory, whole_gpus, largest_gpu_part, ..Self::default() }
    }
}

/// The indexed dimensions in attribute order, each with its granularity θ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub(super) dimensions: Vec<(Dimension, i64)>,
    /// The same dimensions in the form that coordinates are computed with.
    pub(super) scales: [Scale; DIMENSIONS_MAX],
    pub(super) orders: Vec<AttributeOrder>,
    pub(super) room: usize,
    /// True if some order needs more than four dimensions, or parts of the steps of a later one.
    pub(super) is_wide: bool,
    /// True if the dimensions are cpu, memory, whole GPUs and the largest part of a GPU, and `is_wide` is false.
    pub(super) is_plain: bool,
    /// The indexed custom kinds, by index.
    pub(super) custom: Arc<[ResourceId]>,
    /// The weights of the weighted dimension.
    pub(super) weights: Weights,
    /// Bit `d` is set if the θ of dimension `d` follows the nodes.
    pub(super) automatic: u8,
}

/// The mapping from the values of one dimension to coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    /// The index of its value.
    pub(super) value: u8,
    pub(super) theta: u64,
    /// `floor((2^64 - 1) / θ)`.
    pub(super) reciprocal: u64,
    /// Multiplied with a part of a step, and divided by 2^32, it gives the part in `1 / 2^WITHIN_BITS`.
    pub(super) part: u64,
    /// θ, at most 2^16.
    pub(super) small_theta: u64,
    /// `floor(2^SMALL_SHIFT / small_theta) + 1`. It divides values of 17 bits.
    pub(super) small: u64,
}

/// The number of bits that say how much of its last step a value takes.
pub(super) const WITHIN_BITS: u32 = 14;
pub(super) const SMALL_SHIFT: u32 = 40;
/// The part that is a whole step.
const WHOLE: u64 = (1 << WITHIN_BITS) - 1;

/// The order in which dimensions are compared, as indexes into the list of dimensions. An index beyond the
/// last dimension maps to itself.
pub(super) type AttributeOrder = [u8; DIMENSIONS_MAX];

const IN_ORDER: AttributeOrder = [0, 1, 2, 3, 4, 5, 6, 7];

/// The reason why dimensions cannot be indexed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// There are none, or more than the index supports.
    #[error("{0} indexed dimensions: give 1 to {DIMENSIONS_MAX}")]
    Count(usize),
    /// A dimension is given twice.
    #[error("dimension {0:?} is given twice: give each once")]
    Twice(Dimension),
    /// An attribute order does not name each dimension once.
    #[error("attribute order {0:?} does not name each indexed dimension once: give {1:?} in any order")]
    Order(Vec<Dimension>, Vec<Dimension>),
    /// There are more attribute orders than supported.
    #[error("{0} attribute orders: give at most {ATTRIBUTE_ORDERS_MAX}")]
    Orders(usize),
    /// A custom dimension is above the limit.
    #[error("custom dimension {0}: at most {CUSTOM_DIMENSIONS_MAX} custom kinds are indexed")]
    Custom(usize),
    /// A weight is negative, so a node with more resources could have a smaller coordinate.
    #[error(
        "the weight of dimension {0:?} is negative, so that the index could hide a node for what it has more: give at least 0"
    )]
    Weight(Dimension),
    /// No dimension has a weight.
    #[error("no dimension has a weight above 0, so that all nodes are equal: give some a weight")]
    NoWeight,
    /// A granularity is not positive.
    #[error(
        "granularity {theta} of dimension {dimension:?} is not positive: give at least 1 unit of 1/10000"
    )]
    Granularity {
        /// The dimension.
        dimension: Dimension,
        /// Its θ.
        theta: i64,
    },
}

impl Geometry {
    /// Creates a geometry over `dimensions`, each with its θ in the dimension's own unit.
    ///
    /// # Errors
    /// When there are none or too many, one is given twice, or a θ is not positive.
    pub fn new(dimensions: Vec<(Dimension, i64)>) -> Result<Self, GeometryError> {
        if dimensions.is_empty() || dimensions.len() > DIMENSIONS_MAX {
            return Err(GeometryError::Count(dimensions.len()));
        }
        for (i, &(dimension, theta)) in dimensions.iter().enumerate() {
            if theta <= 0 {
                return Err(GeometryError::Granularity { dimension, theta });
            }
            if dimensions[..i].iter().any(|&(other, _)| other == dimension) {
                return Err(GeometryError::Twice(dimension));
            }
            if let Dimension::Custom(number) = dimension
                && usize::from(number) >= CUSTOM_DIMENSIONS_MAX
            {
                return Err(GeometryError::Custom(usize::from(number)));
            }
        }
        let scales = scales(&dimensions);
        let orders = vec![IN_ORDER];
        let mut geometry = Self {
            dimensions,
            scales,
            orders,
            room: CHUNK,
            is_wide: false,
            is_plain: false,
            custom: Arc::default(),
            weights: Weights::default(),
            automatic: 0,
        };
        geometry.find_width();
        Ok(geometry)
    }

    /// Adds attribute orders, which requests choose by number, from 1 on. Order 0 is that of the dimensions.
    ///
    /// # Errors
    /// When there are too many, or one does not name each dimension once.
    pub fn with_orders(mut self, orders: &[Vec<Dimension>]) -> Result<Self, GeometryError> {
        if orders.len() >= ATTRIBUTE_ORDERS_MAX {
            return Err(GeometryError::Orders(orders.len() + 1));
        }
        let known: Vec<Dimension> = self.dimensions.iter().map(|&(dimension, _)| dimension).collect();
        for order in orders {
            let mut places = IN_ORDER;
            let each_once = order.len() == known.len()
                && known.iter().all(|dimension| order.iter().filter(|&d| d == dimension).count() == 1);
            if !each_once {
                return Err(GeometryError::Order(order.clone(), known));
            }
            for (place, dimension) in places.iter_mut().zip(order) {
                let at = known.iter().position(|d| d == dimension).expect("each is named once");
                *place = at as u8;
            }
            self.orders.push(places);
        }
        self.find_width();
        Ok(self)
    }

    fn find_width(&mut self) {
        let usual =
            [Dimension::Cpu, Dimension::Memory, Dimension::WholeGpus, Dimension::LargestGpuPart].into_iter();
        self.is_wide = (0..self.orders.len()).any(|order| !self.is_narrow(order));
        self.is_plain = !self.is_wide && self.dimensions.iter().map(|&(dimension, _)| dimension).eq(usual);
    }

    /// Splits runs at `room` entries, `4..=32`, instead of at the maximum. For tests, in which few nodes then
    /// make many runs. No answer depends on it.
    #[must_use]
    pub fn with_room(mut self, room: usize) -> Self {
        self.room = room;
        self
    }

    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// Returns the attribute orders. There is at least one.
    pub(super) fn orders(&self) -> &[AttributeOrder] {
        &self.orders
    }

    /// Returns the number of attribute orders that a request may choose from.
    #[must_use]
    pub fn order_count(&self) -> usize {
        self.orders.len()
    }

    /// Returns the dimension that attribute order `order` compares first.
    ///
    /// # Panics
    /// When there is no such order.
    #[must_use]
    pub fn leading(&self, order: usize) -> Dimension {
        self.dimensions[usize::from(self.orders[order][0])].0
    }

    /// Returns whether the third and the fourth dimension of attribute order `order`, if there are any, count
    /// GPUs. Their steps are as fine as requests, so parts of their steps need not be compared.
    pub(super) fn is_narrow(&self, order: usize) -> bool {
        let later = self.orders[order][2..].iter().filter_map(|&at| self.dimensions.get(usize::from(at)));
        let leading = self.orders[order][..2].iter().filter_map(|&at| self.dimensions.get(usize::from(at)));
        leading.into_iter().all(|(dimension, _)| dimension.place() < 4)
            && self.dimensions.len() <= 4
            && later.into_iter().all(|(d, _)| matches!(d, Dimension::WholeGpus | Dimension::LargestGpuPart))
    }

    /// Returns `coordinate` with its dimensions in attribute order `order`.
    pub(super) fn ordered(&self, order: usize, coordinate: &Coordinate) -> Coordinate {
        Coordinate(self.orders[order].map(|place| coordinate.0[usize::from(place)]))
    }

    /// Returns the number of indexed dimensions.
    #[must_use]
    pub fn dimension_count(&self) -> usize {
        self.dimensions.len()
    }

    /// Returns the dimensions in attribute order, each with its θ.
    #[must_use]
    pub fn dimensions(&self) -> &[(Dimension, i64)] {
        &self.dimensions
    }

    /// Returns `ceil(value / θ)` per dimension.
    ///
    /// Coordinates are capped at 32,767. They stay monotone: a larger value never has a smaller coordinate.
    #[inline]
    #[must_use]
    pub fn coordinate(&self, vector: &ResourceVector) -> Coordinate {
        self.coordinates(vector).coordinate
    }

    /// Returns the coordinate, and how much of their last steps the values take.
    #[inline(always)]
    pub(super) fn coordinates(&self, vector: &ResourceVector) -> Coordinates {
        match self.plain_coordinates(vector) {
            Some(coordinates) => coordinates,
            None => self.any_coordinates(vector),
        }
    }

    /// The same as `coordinates`, if the dimensions are those of every node in their usual order.
    #[inline(always)]
    pub(super) fn plain_coordinates(&self, vector: &ResourceVector) -> Option<Coordinates> {
        if !self.is_plain {
            return None;
        }
        debug_assert!(vector.cpu.units() >= 0 && vector.memory.units() >= 0, "amounts are not negative");
        let [cpu, memory, whole, part, ..] = &self.scales;
        let mut coordinates = Coordinates::default();
        coordinates.set(0, cpu, vector.cpu.units() as u64);
        coordinates.set(1, memory, vector.memory.units() as u64);
        coordinates.set_steps(2, whole, vector.whole_gpus);
        coordinates.set_steps(3, part, vector.largest_gpu_part);
        Some(coordinates)
    }
}

impl Scale {
    /// Returns whether different values of a step have different parts of it: no part is narrower than a unit.
    pub(super) fn is_exact(&self) -> bool {
        self.theta <= WHOLE
    }
}

/// A coordinate, and how much of its last step each value takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Coordinates {
    pub(super) coordinate: Coordinate,
    /// In `1 / 2^WITHIN_BITS`, rounded down. A value that is a whole number of steps takes all of its last one.
    pub(super) within: [u16; DIMENSIONS_MAX],
    /// The values of the third and the fourth dimension, if these count GPUs. Zero for a whole number of steps.
    pub(super) odd: [u16; 2],
}

impl Coordinates {
    #[inline(always)]
    pub(super) fn set(&mut self, d: usize, scale: &Scale, value: u64) {
        let (steps, rest) = ceil_div(value, scale.theta, scale.reciprocal);
        // At most `WHOLE`, because the rest is at most one step.
        let part = rest.wrapping_mul(scale.part) >> 32;
        // The highest coordinate includes all larger values.
        let is_above = steps > u64::from(Coordinate::HIGHEST);
        let (steps, part) = if is_above { (u64::from(Coordinate::HIGHEST), WHOLE) } else { (steps, part) };
        self.coordinate.0[d] = steps as u16;
        self.within[d] = part as u16;
    }

    /// Sets the coordinate of a dimension that counts GPUs. Parts of its steps are not compared.
    #[inline(always)]
    pub(super) fn set_steps(&mut self, d: usize, scale: &Scale, value: u16) {
        // Both are below 2^17, so the product is exact after the shift.
        let value = u64::from(value);
        let steps =
            value.wrapping_add(scale.small_theta).wrapping_sub(1).wrapping_mul(scale.small) >> SMALL_SHIFT;
        self.odd[d - 2] = if steps.wrapping_mul(scale.small_theta) == value { 0 } else { value as u16 };
        debug_assert!(
            steps <= u64::from(Coordinate::HIGHEST),
            "a node has few GPUs, and a part is at most one"
        );
        self.coordinate.0[d] = steps as u16;
    }

    /// Returns the coordinates in another attribute order.
    pub(super) fn ordered(&self, order: &AttributeOrder) -> Self {
        Self {
            coordinate: Coordinate(order.map(|place| self.coordinate.0[usize::from(place)])),
            within: order.map(|place| self.within[usize::from(place)]),
            odd: self.odd,
        }
    }
}

pub(super) fn scales(dimensions: &[(Dimension, i64)]) -> [Scale; DIMENSIONS_MAX] {
    let scale = |value, theta: u64| {
        let small_theta = theta.min(1 << 16);
        let small = (1 << SMALL_SHIFT) / small_theta + 1;
        let part = (WHOLE << 32) / theta;
        Scale { value, theta, reciprocal: u64::MAX / theta, part, small_theta, small }
    };
    let mut scales = [Scale { part: 0, ..scale(NO_VALUE, 1) }; DIMENSIONS_MAX];
    for (place, &(dimension, theta)) in scales.iter_mut().zip(dimensions) {
        *place = scale(dimension.place(), theta as u64);
    }
    scales
}

/// Returns `ceil(value / divisor)`, and how much of the last step the value takes: 1 to `divisor`, or 0 if it is
/// zero.
///
/// `reciprocal` is `floor((2^64 - 1) / divisor)`. A division would take longer than the rest of a coordinate.
#[inline]
pub(super) fn ceil_div(value: u64, divisor: u64, reciprocal: u64) -> (u64, u64) {
    debug_assert!(value < 1 << 63 && reciprocal == u64::MAX / divisor);
    if value == 0 {
        return (0, 0);
    }
    let below = value.wrapping_sub(1);
    // `reciprocal > 2^64 / divisor - 2`, so the product is short by less than `2 * value / 2^64`. The
    // quotient is exact or one too small.
    let quotient = ((u128::from(below) * u128::from(reciprocal)) >> 64) as u64;
    // Neither can wrap, because the quotient is at most `below / divisor`.
    let rest = below.wrapping_sub(quotient.wrapping_mul(divisor));
    let is_over = rest >= divisor;
    let rest = if is_over { rest.wrapping_sub(divisor) } else { rest };
    (quotient.wrapping_add(1).wrapping_add(u64::from(is_over)), rest.wrapping_add(1))
}

impl Default for Geometry {
    /// cpu by the core, memory by 4 GiB, whole GPUs one by one, GPU parts by hundredths. These are the steps
    /// in which requests ask, so nodes that have less are separated from those that fit.
    fn default() -> Self {
        let four_gib = Amount::whole(4096).units();
        Self::new(vec![
            (Dimension::Cpu, Amount::SCALE),
            (Dimension::Memory, four_gib),
            (Dimension::WholeGpus, 1),
            (Dimension::LargestGpuPart, 100),
        ])
        .expect("four different dimensions, positive steps")
    }
}

#[cfg(test)]
mod tests;
