//! Reserved amounts, and the instances that are withheld for them.
//!
//! Instances with the most free capacity are withheld, even if they are not wholly free. Capacity freed by
//! their allocations then accumulates there. So a reservation of whole instances completes even if all other
//! work is small.

use std::cmp::Reverse;

use crate::ids::ResourceId;
use crate::resource::{Amount, Demand, GPU_UNIT};

/// The amounts reserved on one node.
///
/// Unlike a demand, it may contain both whole instances and a part of another one. This is the remainder
/// after the owner has taken a part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservedAmounts {
    /// Cores.
    pub cpu: Amount,
    /// MiB.
    pub memory: Amount,
    /// GPU devices: a number of whole ones, and a part of another one.
    pub gpu: Amount,
    /// Custom kinds, in order of id. No amount is zero.
    pub custom: Vec<(ResourceId, Amount)>,
}

impl From<&Demand> for ReservedAmounts {
    fn from(demand: &Demand) -> Self {
        let custom = demand.custom().to_vec();
        Self { cpu: demand.cpu, memory: demand.memory, gpu: demand.gpu.amount(), custom }
    }
}

impl ReservedAmounts {
    /// Returns whether nothing is reserved.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cpu.is_zero() && self.memory.is_zero() && self.gpu.is_zero() && self.custom.is_empty()
    }

    /// Reduces the reservation by `demand`, which the owner placed here. No amount goes below zero.
    pub fn reduce(&mut self, demand: &Demand) {
        self.cpu = self.cpu.saturating_minus(demand.cpu);
        self.memory = self.memory.saturating_minus(demand.memory);
        self.gpu = self.gpu.saturating_minus(demand.gpu.amount());
        for (id, amount) in &mut self.custom {
            let taken = demand.custom().iter().find(|(kind, _)| kind == id);
            *amount = amount.saturating_minus(taken.map_or(Amount::ZERO, |&(_, taken)| taken));
        }
        self.custom.retain(|(_, amount)| !amount.is_zero());
    }

    /// Returns these amounts less `other`, which must not be larger.
    pub(crate) fn without(&self, other: &Self) -> Self {
        let of_other = |id| other.custom.iter().find(|&&(kind, _)| kind == id);
        let custom = self
            .custom
            .iter()
            .map(|&(id, amount)| (id, amount.minus(of_other(id).map_or(Amount::ZERO, |&(_, other)| other))));
        Self {
            cpu: self.cpu.minus(other.cpu),
            memory: self.memory.minus(other.memory),
            gpu: self.gpu.minus(other.gpu),
            custom: custom.filter(|(_, amount)| !amount.is_zero()).collect(),
        }
    }

    /// Adds `other`.
    pub(crate) fn add(&mut self, other: &Self) {
        self.cpu = self.cpu.plus(other.cpu);
        self.memory = self.memory.plus(other.memory);
        self.gpu = self.gpu.plus(other.gpu);
        for &(id, amount) in &other.custom {
            match self.custom.binary_search_by_key(&id, |&(kind, _)| kind) {
                Ok(at) => self.custom[at].1 = self.custom[at].1.plus(amount),
                Err(at) => self.custom.insert(at, (id, amount)),
            }
        }
    }
}

/// Returns the part that `amount` withholds from each instance's free part.
///
/// The whole instances' worth takes everything free on the instances with the most free capacity. The
/// remaining part comes from the instance with the smallest sufficient free part. If none suffices, it takes
/// everything free on the one with the most. Ties go to the lowest instance.
pub(crate) fn parts_withheld(free: &[u16], amount: Amount) -> Vec<u16> {
    let unit = i64::from(GPU_UNIT);
    let whole = (amount.units() / unit) as usize;
    let part = (amount.units() % unit) as u16;
    let mut parts = vec![0; free.len()];
    let mut order: Vec<usize> = (0..free.len()).collect();
    order.sort_by_key(|&instance| (Reverse(free[instance]), instance));
    let (first, rest) = order.split_at(whole.min(order.len()));
    for &instance in first {
        parts[instance] = free[instance];
    }
    if part > 0 {
        let suffices = rest.iter().copied().filter(|&instance| free[instance] >= part);
        match suffices.min_by_key(|&instance| (free[instance], instance)) {
            Some(instance) => parts[instance] = part,
            None => rest.first().into_iter().for_each(|&instance| parts[instance] = free[instance]),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::GpuRequest;

    fn withheld(free: &[u16], amount: &str) -> Vec<u16> {
        parts_withheld(free, amount.parse().unwrap())
    }

    #[test]
    fn whole_instances_are_gathered_where_most_is_free() {
        assert_eq!(withheld(&[10_000, 3_000, 10_000], "1"), [10_000, 0, 0]);
        assert_eq!(withheld(&[2_000, 7_000, 6_999], "1"), [0, 7_000, 0], "nothing is left there to be taken");
        assert_eq!(withheld(&[2_000, 7_000, 6_999], "2"), [0, 7_000, 6_999]);
        assert_eq!(withheld(&[5_000, 5_000], "3"), [5_000, 5_000]);
        assert_eq!(withheld(&[], "1"), [0u16; 0]);
    }

    #[test]
    fn a_part_is_kept_where_it_fits_best() {
        assert_eq!(withheld(&[10_000, 6_000, 5_000], "0.5"), [0, 0, 5_000]);
        assert_eq!(withheld(&[4_000, 4_500], "0.5"), [0, 4_500], "it grows there");
        assert_eq!(withheld(&[10_000, 6_000, 5_000], "1.5"), [10_000, 0, 5_000]);
    }

    #[test]
    fn what_was_placed_is_no_longer_reserved() {
        let a = ResourceId(1);
        let b = ResourceId(2);
        let custom = |amounts: &[(ResourceId, u32)]| {
            amounts.iter().map(|&(id, amount)| (id, Amount::whole(amount))).collect::<Vec<_>>()
        };
        let mut left = ReservedAmounts {
            cpu: Amount::whole(4),
            memory: Amount::whole(8),
            gpu: Amount::whole(2),
            custom: custom(&[(a, 1), (b, 3)]),
        };
        left.reduce(&Demand {
            cpu: Amount::whole(6),
            memory: Amount::whole(2),
            gpu: GpuRequest::Fraction(3000),
            custom: Demand::canonical_custom(custom(&[(a, 1), (b, 1)])).unwrap(),
        });
        assert_eq!((left.cpu, left.memory), (Amount::ZERO, Amount::whole(6)));
        assert_eq!((left.gpu.to_string(), left.custom.clone()), ("1.7".to_owned(), custom(&[(b, 2)])));
        assert!(!left.is_empty() && ReservedAmounts::default().is_empty());
    }
}
