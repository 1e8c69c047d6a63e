//! GPUs as instances: each device has an index and its own free part.
//!
//! Ray's rule (and CUDA's reality): a request takes whole devices, or a part of *one* device.
//! Two halves on two devices are not one device.

use crate::limits::GPU_INSTANCES_MAX;
use crate::resource::{Amount, AmountError};

/// One whole device, in 1/10 000.
pub const GPU_UNIT: u16 = 10_000;

/// What a request asks of GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuRequest {
    /// Nothing.
    #[default]
    None,
    /// A part of one device, in 1/10 000: `1..10_000`.
    Fraction(u16),
    /// Whole devices: `1..=16`.
    Whole(u8),
}

impl GpuRequest {
    /// The request for `amount` devices.
    ///
    /// # Errors
    /// What is wrong and the remedy, when the amount is above one and not whole, or more than a
    /// node can have.
    pub fn from_amount(amount: Amount) -> Result<Self, String> {
        let units = amount.units();
        let unit = i64::from(GPU_UNIT);
        if units == 0 {
            return Ok(Self::None);
        }
        if units < unit {
            return Ok(Self::Fraction(units as u16));
        }
        if units % unit != 0 {
            return Err(format!(
                "{amount} GPUs is neither a part of one GPU nor whole GPUs: ask for less than 1, or for a whole number"
            ));
        }
        let whole = units / unit;
        if whole > GPU_INSTANCES_MAX as i64 {
            return Err(format!("{amount} GPUs is more than the {GPU_INSTANCES_MAX} that one node can have"));
        }
        Ok(Self::Whole(whole as u8))
    }

    /// The devices asked for, in 1/10 000 of a device.
    #[must_use]
    pub fn amount(self) -> Amount {
        let units = match self {
            Self::None => 0,
            Self::Fraction(part) => i64::from(part),
            Self::Whole(count) => i64::from(count) * i64::from(GPU_UNIT),
        };
        Amount::try_from_units(units)
            .unwrap_or_else(|e: AmountError| unreachable!("a GPU request is in range: {e}"))
    }
}

/// The devices that an allocation holds: the instances in `mask`, `part` of each (1/10 000).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuAssignment {
    /// Bit `i` stands for instance `i`.
    pub mask: u16,
    /// How much of each named instance: 10 000 for whole devices, less for a part of one, 0 for none.
    pub part: u16,
}

impl GpuAssignment {
    /// No device.
    pub const NONE: Self = Self { mask: 0, part: 0 };

    /// The instance indexes, ascending.
    pub fn instances(self) -> impl Iterator<Item = u8> {
        (0..GPU_INSTANCES_MAX as u8).filter(move |i| self.mask & (1 << i) != 0)
    }

    /// The sum over its instances, in 1/10 000 of a device.
    #[must_use]
    pub fn units(self) -> i64 {
        i64::from(self.mask.count_ones()) * i64::from(self.part)
    }
}

/// The free part of each GPU instance of one node, in 1/10 000.
///
/// Instances that the node does not have (or no longer has) stand at zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuBooks {
    free: [u16; GPU_INSTANCES_MAX],
}

impl GpuBooks {
    /// `count` wholly free devices.
    ///
    /// # Panics
    /// When `count` is above the number of instances that a node can have.
    #[must_use]
    pub fn with_devices(count: u8) -> Self {
        let mut free = [0; GPU_INSTANCES_MAX];
        free[..usize::from(count)].fill(GPU_UNIT);
        Self { free }
    }

    /// The free part of one instance.
    #[must_use]
    pub fn free(&self, instance: u8) -> u16 {
        self.free[usize::from(instance)]
    }

    /// Sets the free part of one instance.
    ///
    /// # Panics
    /// When it is more than a whole device.
    pub fn set_free(&mut self, instance: u8, part: u16) {
        assert!(part <= GPU_UNIT, "instance {instance} would have {part}/10000 free");
        self.free[usize::from(instance)] = part;
    }

    /// How many devices are wholly free: an indexed dimension.
    #[must_use]
    pub fn whole_free(&self) -> u16 {
        self.free.iter().map(|&f| u16::from(f == GPU_UNIT)).sum()
    }

    /// The largest free part of one device: an indexed dimension.
    #[must_use]
    pub fn largest_free(&self) -> u16 {
        self.free.iter().copied().fold(0, u16::max)
    }

    /// The free parts of all devices together.
    #[must_use]
    pub fn total_free(&self) -> i64 {
        self.free.iter().map(|&f| i64::from(f)).sum()
    }

    /// The instances that `request` would take: the device with the smallest free part that
    /// suffices (Ray's best fit), or the wholly free devices of lowest index. Ties go to the
    /// lowest index.
    #[must_use]
    pub fn choose(&self, request: GpuRequest) -> Option<GpuAssignment> {
        match request {
            GpuRequest::None => Some(GpuAssignment::NONE),
            GpuRequest::Fraction(part) => {
                let (instance, _) = self
                    .free
                    .iter()
                    .enumerate()
                    .filter(|&(_, &free)| free >= part)
                    .min_by_key(|&(instance, &free)| (free, instance))?;
                Some(GpuAssignment { mask: 1 << instance, part })
            }
            GpuRequest::Whole(count) => {
                let mut mask = 0u16;
                for (instance, &free) in self.free.iter().enumerate() {
                    if mask.count_ones() < u32::from(count) && free == GPU_UNIT {
                        mask |= 1 << instance;
                    }
                }
                (mask.count_ones() == u32::from(count)).then_some(GpuAssignment { mask, part: GPU_UNIT })
            }
        }
    }

    /// Takes what `assignment` names.
    ///
    /// # Panics
    /// When an instance has less free: proposer and books disagree.
    pub fn take(&mut self, assignment: GpuAssignment) {
        for instance in assignment.instances() {
            let free = &mut self.free[usize::from(instance)];
            assert!(
                *free >= assignment.part,
                "instance {instance} has {free}/10000 free, {} taken",
                assignment.part
            );
            *free -= assignment.part;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn books(free: &[u16]) -> GpuBooks {
        let mut books = GpuBooks::default();
        for (i, &part) in free.iter().enumerate() {
            books.set_free(u8::try_from(i).unwrap(), part);
        }
        books
    }

    #[test]
    fn amounts_become_requests() {
        let request = |text: &str| GpuRequest::from_amount(text.parse().unwrap());
        assert_eq!(request("0"), Ok(GpuRequest::None));
        assert_eq!(request("0.3"), Ok(GpuRequest::Fraction(3000)));
        assert_eq!(request("1"), Ok(GpuRequest::Whole(1)));
        assert_eq!(request("16"), Ok(GpuRequest::Whole(16)));
        assert!(request("1.5").unwrap_err().contains("whole number"));
        assert!(request("17").unwrap_err().contains("16"));
        assert_eq!(request("0.3").unwrap().amount(), "0.3".parse().unwrap());
    }

    #[test]
    fn a_fraction_takes_the_best_fitting_device() {
        let books = books(&[10_000, 4_000, 3_000, 3_000]);
        assert_eq!(books.choose(GpuRequest::Fraction(3000)), Some(GpuAssignment { mask: 0b100, part: 3000 }));
        assert_eq!(books.choose(GpuRequest::Fraction(3500)), Some(GpuAssignment { mask: 0b10, part: 3500 }));
        assert_eq!(books.choose(GpuRequest::Fraction(4001)), Some(GpuAssignment { mask: 0b1, part: 4001 }));
    }

    #[test]
    fn two_halves_are_not_one_device() {
        let books = books(&[5_000, 5_000]);
        assert_eq!(books.choose(GpuRequest::Whole(1)), None);
        assert_eq!(books.choose(GpuRequest::Fraction(5001)), None);
        assert_eq!((books.whole_free(), books.largest_free(), books.total_free()), (0, 5_000, 10_000));
    }

    #[test]
    fn whole_requests_take_the_lowest_free_devices() {
        let mut books = books(&[9_999, 10_000, 10_000, 10_000]);
        let taken = books.choose(GpuRequest::Whole(2)).unwrap();
        assert_eq!(taken.instances().collect::<Vec<_>>(), [1, 2]);
        books.take(taken);
        assert_eq!(books.choose(GpuRequest::Whole(2)), None);
        assert_eq!(books.whole_free(), 1);
    }
}
