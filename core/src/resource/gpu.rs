//! GPUs as instances: each device has an index and its own free part.
//!
//! As in Ray and CUDA, a request takes whole devices, or a part of *one* device. Two halves on two devices
//! are not one device.

use crate::limits::GPU_INSTANCES_MAX;
use crate::resource::{Amount, AmountError};

/// One whole device, in 1/10,000.
pub const GPU_UNIT: u16 = 10_000;

/// The GPUs that a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuRequest {
    /// No GPU.
    #[default]
    None,
    /// A part of one device, in 1/10,000: `1..10_000`.
    Fraction(u16),
    /// Whole devices: `1..=16`.
    Whole(u8),
}

impl GpuRequest {
    /// Returns the request for `amount` devices.
    ///
    /// # Errors
    /// When the amount is above one and not whole, or more than a node can have. The message states the
    /// problem and the remedy.
    #[inline]
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

    /// Returns the number of devices, in 1/10,000 of a device.
    #[inline]
    #[must_use]
    pub fn units(self) -> i64 {
        match self {
            Self::None => 0,
            Self::Fraction(part) => i64::from(part),
            Self::Whole(count) => i64::from(count) * i64::from(GPU_UNIT),
        }
    }

    /// Returns the number of devices as an amount.
    #[must_use]
    pub fn amount(self) -> Amount {
        Amount::try_from_units(self.units())
            .unwrap_or_else(|e: AmountError| unreachable!("a GPU request is in range: {e}"))
    }
}

/// The devices that an allocation holds: the instances in `mask`, `part` of each (1/10,000).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuAssignment {
    /// Bit `i` is instance `i`.
    pub mask: u16,
    /// The amount held of each instance: 10,000 for whole devices, less for a part of one, 0 for none.
    pub part: u16,
}

impl GpuAssignment {
    /// No device.
    pub const NONE: Self = Self { mask: 0, part: 0 };

    /// Returns the instance indexes, ascending.
    pub fn instances(self) -> impl Iterator<Item = u8> {
        let mut left = self.mask;
        std::iter::from_fn(move || {
            let instance = (left != 0).then(|| left.trailing_zeros() as u8);
            left &= left.wrapping_sub(1);
            instance
        })
    }

    /// Returns the sum over the instances, in 1/10,000 of a device.
    #[must_use]
    pub fn units(self) -> i64 {
        i64::from(self.mask.count_ones()) * i64::from(self.part)
    }
}

/// The free part of each GPU instance of one node, in 1/10,000.
///
/// Instances that the node does not have, or no longer has, are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuBooks {
    free: [u16; GPU_INSTANCES_MAX],
}

impl GpuBooks {
    /// Creates books with `count` wholly free devices.
    ///
    /// # Panics
    /// When `count` is above the number of instances that a node can have.
    #[must_use]
    pub fn with_devices(count: u8) -> Self {
        let mut free = [0; GPU_INSTANCES_MAX];
        free[..usize::from(count)].fill(GPU_UNIT);
        Self { free }
    }

    /// Returns the free part of one instance.
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

    /// Returns the number of wholly free devices. This is an indexed dimension.
    // Apart: next to the next one, neither would compile to wide instructions.
    #[inline(never)]
    #[must_use]
    pub fn whole_free(&self) -> u16 {
        // This does not use the mask: it compares eight instances at a time.
        self.free.iter().map(|&free| u16::from(free == GPU_UNIT)).sum()
    }

    /// Returns the largest free part of one device. This is an indexed dimension.
    #[inline(never)]
    #[must_use]
    pub fn largest_free(&self) -> u16 {
        // Signed numbers, because every processor compares eight of them at a time.
        self.free.iter().map(|&free| free as i16).fold(0, i16::max) as u16
    }

    /// Returns the wholly free devices. Bit `i` is instance `i`.
    fn whole_mask(&self) -> u16 {
        let bits = (0..).zip(&self.free).map(|(instance, &free)| u16::from(free == GPU_UNIT) << instance);
        bits.fold(0, |mask, bit| mask | bit)
    }

    /// Returns the sum of the free parts of all devices.
    #[must_use]
    pub fn total_free(&self) -> i64 {
        self.free.iter().map(|&f| i64::from(f)).sum()
    }

    /// Returns the instances that `request` would take.
    ///
    /// A part goes to the device with the smallest sufficient free part (Ray's best fit). Whole devices are
    /// the wholly free ones of lowest index. Ties go to the lowest index.
    #[must_use]
    pub fn choose(&self, request: GpuRequest) -> Option<GpuAssignment> {
        match request {
            GpuRequest::None => Some(GpuAssignment::NONE),
            GpuRequest::Fraction(part) => {
                // Without a branch per instance, because the outcome is hard to predict.
                let suffices = |&free: &u16| if free >= part { free as i16 } else { i16::MAX };
                let least = self.free.iter().map(suffices).fold(i16::MAX, i16::min);
                let instance = self.free.iter().position(|&free| free as i16 == least)?;
                Some(GpuAssignment { mask: 1 << instance, part })
            }
            GpuRequest::Whole(count) => {
                let whole = self.whole_mask();
                if whole.count_ones() < u32::from(count) {
                    return None;
                }
                // `others` is `whole` without its `count` lowest bits.
                let others = (0..count).fold(whole, |left, _| left & left.wrapping_sub(1));
                Some(GpuAssignment { mask: whole ^ others, part: GPU_UNIT })
            }
        }
    }

    /// Takes what `assignment` names. Returns how many of its instances were wholly free before, and the largest part
    /// that was free of one of them.
    ///
    /// # Panics
    /// When an instance has less free than `assignment` takes. The caller and the books disagree then.
    #[inline]
    pub fn take(&mut self, assignment: GpuAssignment) -> (u16, u16) {
        let mut whole = 0;
        let mut largest = 0;
        for instance in assignment.instances() {
            let free = &mut self.free[usize::from(instance)];
            whole += u16::from(*free == GPU_UNIT);
            largest = largest.max(*free);
            assert!(
                *free >= assignment.part,
                "instance {instance} has {free}/10000 free, {} taken",
                assignment.part
            );
            *free -= assignment.part;
        }
        (whole, largest)
    }

    /// Gives back what `assignment` names. Returns how many of its instances are wholly free now, and the largest part
    /// that is free of one of them.
    ///
    /// # Panics
    /// When an instance would have more than a whole device free. The caller and the books disagree then.
    #[inline]
    pub fn give(&mut self, assignment: GpuAssignment) -> (u16, u16) {
        let mut whole = 0;
        let mut largest = 0;
        for instance in assignment.instances() {
            let part = self.free(instance) + assignment.part;
            self.set_free(instance, part);
            whole += u16::from(part == GPU_UNIT);
            largest = largest.max(part);
        }
        (whole, largest)
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
        assert_eq!(books.take(taken), (2, 10_000));
        assert_eq!(books.choose(GpuRequest::Whole(2)), None);
        assert_eq!(books.whole_free(), 1);
        assert_eq!(books.give(taken), (2, 10_000));
        let part = books.choose(GpuRequest::Fraction(9_000)).unwrap();
        assert_eq!((books.take(part), books.give(part)), ((0, 9_999), (0, 9_999)));
    }
}
