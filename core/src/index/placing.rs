//! The place of a node in a plane of narrow entries, computed in one call for the dimensions of every node.
//!
//! It is what [`Geometry::coordinates`] and the [`Layout`] say. Here the steps of a dimension are found by one
//! multiplication each, and nothing is stored in between.

use super::ResourceVector;
use super::coordinate::{Geometry, SMALL_SHIFT, Scale};
use super::entry::Narrow;
use super::layout::Layout;
use crate::resource::Amount;

/// The largest θ of cpu and memory that is divided here. The sum of it and any amount is below 2^63.
const THETA_MAX: u64 = 1 << 60;
/// The cell of what has no place.
pub(super) const NOWHERE: u32 = u32::MAX;

/// Divides amounts by the θ of a dimension.
#[derive(Clone, Copy, Debug, Default)]
struct Divider {
    theta: u64,
    below: u64,
    /// `ceil(2^(64 + shift) / θ)`, with `2^shift < θ <= 2^(shift + 1)`. So it has 64 bits, and the first of them is set.
    magic: u64,
    shift: u32,
    /// See [`Scale::part`].
    part: u64,
}

impl Divider {
    /// Creates the divider of a θ of at least 2.
    fn new(scale: &Scale) -> Self {
        let &Scale { theta, part, .. } = scale;
        let shift = (theta - 1).ilog2();
        let magic = (1u128 << (64 + shift)).div_ceil(u128::from(theta)) as u64;
        Self { theta, below: theta - 1, magic, shift, part }
    }

    /// Returns `ceil(value / θ)`, and how much of the last step the value takes.
    #[inline(always)]
    fn steps(&self, value: u64) -> (u64, u64) {
        // `magic * θ` is above `2^(64 + shift)` by less than θ. So the quotient is exact for numbers below 2^63.
        let product = u128::from(value.wrapping_add(self.below)).wrapping_mul(u128::from(self.magic));
        let steps = ((product >> 64) as u64).wrapping_shr(self.shift);
        // Only the rest of zero would be larger than the value.
        let rest = value.wrapping_add(self.theta).wrapping_sub(steps.wrapping_mul(self.theta)).min(value);
        (steps, rest.wrapping_mul(self.part) >> 32)
    }
}

/// Computes places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placing {
    cpu: Divider,
    memory: Divider,
    /// The θ of whole GPUs and of the largest part, and the factors that divide by it.
    gpus: [(u64, u64); 2],
    column_bits: u32,
    fourth_bits: u32,
    /// The most steps that the layout covers. Negative if places are not computed here.
    limits: [i64; 4],
}

/// The entry of a node with rank 0, and its cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) entry: Narrow,
    /// `NOWHERE` if the layout does not cover it, or if places are not computed here.
    pub(super) cell: u32,
    /// Zero if the numbers of GPUs are whole numbers of steps.
    pub(super) odd: u32,
}

impl Placing {
    /// Computes no places.
    pub(super) const NONE: Self = Self {
        cpu: Divider { theta: 0, below: 0, magic: 0, shift: 0, part: 0 },
        memory: Divider { theta: 0, below: 0, magic: 0, shift: 0, part: 0 },
        gpus: [(0, 0); 2],
        column_bits: 0,
        fourth_bits: 0,
        limits: [-1; 4],
    };

    /// Prepares for the dimensions of a geometry, if they are those of every node in their usual order.
    pub(super) fn new(geometry: &Geometry) -> Self {
        let [cpu, memory, whole, part, ..] = &geometry.scales;
        let is_divided = [cpu, memory].iter().all(|scale| (2..=THETA_MAX).contains(&scale.theta));
        if !geometry.is_plain || !is_divided {
            return Self::NONE;
        }
        Self {
            cpu: Divider::new(cpu),
            memory: Divider::new(memory),
            gpus: [whole, part].map(|scale| (scale.small_theta, scale.small)),
            ..Self::NONE
        }
    }

    /// Computes places of this layout from now on, or none.
    pub(super) fn set_layout(&mut self, layout: Option<&Layout>) {
        let Some(layout) = layout.filter(|_| self.cpu.theta > 0) else {
            self.limits = Self::NONE.limits;
            return;
        };
        self.column_bits = layout.column_bits();
        [_, self.fourth_bits] = layout.score_bits();
        self.limits = layout.limits().map(i64::from);
    }

    /// Returns the place of a node that has this available.
    #[inline(always)]
    pub(super) fn place(&self, available: &ResourceVector) -> Placed {
        let &ResourceVector { cpu, memory, whole_gpus, largest_gpu_part, .. } = available;
        self.compute(cpu, memory, whole_gpus, largest_gpu_part)
    }

    // A call, with everything in registers: inlined, it would use up those of its callers.
    #[inline(never)]
    fn compute(&self, cpu: Amount, memory: Amount, whole: u16, part: u16) -> Placed {
        let (row, first) = self.cpu.steps(cpu.units() as u64);
        let (column, second) = self.memory.steps(memory.units() as u64);
        let [(third, odd_third), (fourth, odd_fourth)] =
            [(whole, self.gpus[0]), (part, self.gpus[1])].map(|(value, (theta, factor))| {
                let value = u64::from(value);
                let steps = value.wrapping_add(theta).wrapping_sub(1).wrapping_mul(factor) >> SMALL_SHIFT;
                (steps, steps.wrapping_mul(theta) ^ value)
            });
        let steps = [row, column, third, fourth];
        let beyond =
            self.limits.iter().zip(steps).fold(0, |any, (limit, at)| any | limit.wrapping_sub(at as i64));
        let score = third.wrapping_shl(self.fourth_bits) | fourth;
        let cell = row.wrapping_shl(self.column_bits) | column;
        Placed {
            entry: Narrow::of_parts(score, first, second),
            cell: if beyond < 0 { NOWHERE } else { cell as u32 },
            odd: (odd_third | odd_fourth) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::coordinate::{Dimension, ceil_div, scales};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn steps_are_those_of_a_division(
            theta in prop_oneof![2u64..200, 2u64..1 << 20, 2u64..=THETA_MAX], value in 0u64..=1 << 53, near in 0u64..1000,
        ) {
            let [scale, ..] = scales(&[(Dimension::Cpu, theta as i64)]);
            let divider = Divider::new(&scale);
            // Includes whole numbers of steps and what is next to them.
            for value in [value, value / theta * theta, near, theta.saturating_mul(near).min(1 << 53) + 1] {
                let (steps, rest) = ceil_div(value, theta, scale.reciprocal);
                prop_assert_eq!(divider.steps(value), (steps, rest.wrapping_mul(scale.part) >> 32));
            }
        }
    }
}
