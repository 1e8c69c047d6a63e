//! The room of a node, in the form that searches compare.

use crate::index::ResourceVector;
use crate::node::{NodeSpec, NodeState};
use crate::resource::{Amount, Demand, GPU_UNIT, GpuAssignment, GpuBooks, GpuRequest};

/// The room of a node: everything that a search compares and a refusal counts. Half a cache line, so that none lies
/// in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(32))]
pub(crate) struct Room {
    pub(crate) cpu: Amount,
    pub(crate) memory: Amount,
    /// Derived from the GPU books, so that a comparison does not walk sixteen instances.
    pub(crate) whole_gpus: u16,
    pub(crate) largest_gpu_part: u16,
    /// The number of further allocations that the node may hold. Zero or negative at or above the limit.
    pub(crate) places: i16,
    /// The state of the node. `None` if the slot is vacant.
    pub(crate) state: Option<NodeState>,
    /// The cpu and memory of the node in whole units, rounded up, so that what is given back is checked without
    /// the registration. At its maximum there is no limit.
    pub(crate) capacity: [u32; 2],
}

const _: () = assert!(size_of::<Room>() == 32, "a scan reads these one after the other");

impl Room {
    pub(crate) const VACANT: Self = Self {
        cpu: Amount::ZERO,
        memory: Amount::ZERO,
        whole_gpus: 0,
        largest_gpu_part: 0,
        places: 0,
        state: None,
        capacity: [0; 2],
    };

    /// Takes the cpu and memory of one more allocation.
    #[inline(always)]
    pub(super) fn take(&mut self, demand: &Demand) {
        self.places = self.places.checked_sub(1).expect("a node holds few more allocations than it may");
        self.cpu = self.cpu.minus(demand.cpu);
        self.memory = self.memory.minus(demand.memory);
    }

    /// Gives back the cpu and memory of an allocation. The node may hold at most `places_max`.
    #[inline(always)]
    pub(super) fn give(&mut self, cpu: Amount, memory: Amount, places_max: i16) {
        self.places += 1;
        assert!(self.places <= places_max, "a node has room for more allocations than it may hold");
        self.cpu = self.cpu.plus(cpu);
        self.memory = self.memory.plus(memory);
    }

    /// Follows a change of the node's capacity.
    pub(super) fn set_capacity(&mut self, spec: &NodeSpec) {
        assert!(spec.cpu.min(spec.memory) >= Amount::ZERO, "`{}` has less than nothing", spec.name);
        let up = |amount: Amount| (amount.units() + Amount::SCALE - 1) / Amount::SCALE;
        self.capacity = [spec.cpu, spec.memory].map(|amount| u32::try_from(up(amount)).unwrap_or(u32::MAX));
    }

    /// Returns whether no more is free than the node has.
    #[inline]
    pub(super) fn is_within_capacity(&self) -> bool {
        let [cpu, memory] = self.capacity;
        (cpu == u32::MAX || self.cpu <= Amount::whole(cpu))
            && (memory == u32::MAX || self.memory <= Amount::whole(memory))
    }

    pub(super) fn follow(&mut self, gpus: &GpuBooks) {
        self.whole_gpus = gpus.whole_free();
        self.largest_gpu_part = gpus.largest_free();
        self.assert_gpus_agree();
    }

    #[inline(always)]
    fn assert_gpus_agree(&self) {
        let has_whole = self.largest_gpu_part == GPU_UNIT;
        assert!((self.whole_gpus > 0) == has_whole, "a whole GPU is the largest part that is free");
    }

    /// Takes GPUs from the books of the node. The instances are compared only if what was taken may have been the
    /// largest part.
    #[inline(always)]
    pub(super) fn take_gpus(&mut self, books: &mut GpuBooks, gpus: GpuAssignment) {
        if gpus.mask == 0 {
            return;
        }
        let (whole, largest) = books.take(gpus);
        self.whole_gpus = self.whole_gpus.checked_sub(whole).expect("the whole GPUs of a node are counted");
        if self.whole_gpus == 0 && largest == self.largest_gpu_part {
            self.largest_gpu_part = books.largest_free();
        }
        self.assert_gpus_agree();
    }

    /// Gives GPUs back to the books of the node. No instance is compared that was not given back.
    #[inline(always)]
    pub(super) fn give_gpus(&mut self, books: &mut GpuBooks, gpus: GpuAssignment) {
        if gpus.mask == 0 {
            return;
        }
        let (whole, largest) = books.give(gpus);
        self.whole_gpus += whole;
        self.largest_gpu_part = self.largest_gpu_part.max(largest);
        self.assert_gpus_agree();
    }

    /// Returns the minimum in each dimension.
    pub(crate) fn least(&self, other: &Self) -> Self {
        Self {
            cpu: self.cpu.min(other.cpu),
            memory: self.memory.min(other.memory),
            whole_gpus: self.whole_gpus.min(other.whole_gpus),
            largest_gpu_part: self.largest_gpu_part.min(other.largest_gpu_part),
            places: self.places.min(other.places),
            ..*self
        }
    }

    /// Returns the maximum in each dimension.
    pub(crate) fn most(&self, other: &Self) -> Self {
        Self {
            cpu: self.cpu.max(other.cpu),
            memory: self.memory.max(other.memory),
            whole_gpus: self.whole_gpus.max(other.whole_gpus),
            largest_gpu_part: self.largest_gpu_part.max(other.largest_gpu_part),
            places: self.places.max(other.places),
            ..*self
        }
    }

    /// Returns what is available, as the index uses it, without custom kinds.
    #[inline(always)]
    pub(crate) fn available(&self) -> ResourceVector {
        let &Self { cpu, memory, whole_gpus, largest_gpu_part, .. } = self;
        ResourceVector { cpu, memory, whole_gpus, largest_gpu_part, ..Default::default() }
    }

    /// Returns whether the node is ready and may hold one more allocation.
    #[inline]
    pub(crate) fn takes_work(&self) -> bool {
        self.state == Some(NodeState::Ready) && self.places > 0
    }

    /// Returns whether cpu, memory and GPUs suffice, and one more allocation is allowed.
    #[inline]
    pub(crate) fn covers(&self, demand: &Demand) -> bool {
        let gpus = match demand.gpu {
            GpuRequest::None => true,
            GpuRequest::Fraction(part) => self.largest_gpu_part >= part,
            GpuRequest::Whole(count) => self.whole_gpus >= u16::from(count),
        };
        demand.cpu <= self.cpu && demand.memory <= self.memory && gpus && self.places > 0
    }
}
