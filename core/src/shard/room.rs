//! What a node has room for, as searches compare it.

use crate::node::NodeState;
use crate::resource::{Amount, Demand, GpuBooks, GpuRequest};

/// What a node has room for: all that a search compares and a refusal counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) cpu: Amount,
    pub(super) memory: Amount,
    /// What the GPU books add up to, so that comparing does not walk sixteen instances.
    pub(super) whole_gpus: u16,
    pub(super) largest_gpu_part: u16,
    /// How many more allocations the node may hold: 0 or less where it holds as many as it may.
    pub(super) places: i16,
    /// None: no node has this slot.
    pub(super) state: Option<NodeState>,
}

const _: () = assert!(size_of::<Room>() == 24, "a scan reads these one after the other");

impl Room {
    pub(super) const VACANT: Self = Self {
        cpu: Amount::ZERO,
        memory: Amount::ZERO,
        whole_gpus: 0,
        largest_gpu_part: 0,
        places: 0,
        state: None,
    };

    pub(super) fn follow(&mut self, gpus: &GpuBooks) {
        self.whole_gpus = gpus.whole_free();
        self.largest_gpu_part = gpus.largest_free();
    }

    /// In each dimension the less of both.
    pub(super) fn least(&self, other: &Self) -> Self {
        Self {
            cpu: self.cpu.min(other.cpu),
            memory: self.memory.min(other.memory),
            whole_gpus: self.whole_gpus.min(other.whole_gpus),
            largest_gpu_part: self.largest_gpu_part.min(other.largest_gpu_part),
            places: self.places.min(other.places),
            state: self.state,
        }
    }

    /// In each dimension the more of both.
    pub(super) fn most(&self, other: &Self) -> Self {
        Self {
            cpu: self.cpu.max(other.cpu),
            memory: self.memory.max(other.memory),
            whole_gpus: self.whole_gpus.max(other.whole_gpus),
            largest_gpu_part: self.largest_gpu_part.max(other.largest_gpu_part),
            places: self.places.max(other.places),
            state: self.state,
        }
    }

    /// Whether the node is ready and may hold one more allocation.
    #[inline]
    pub(super) fn takes_work(&self) -> bool {
        self.state == Some(NodeState::Ready) && self.places > 0
    }

    /// Whether cpu, memory and GPUs suffice, and one more allocation may come.
    #[inline]
    pub(super) fn covers(&self, demand: &Demand) -> bool {
        let gpus = match demand.gpu {
            GpuRequest::None => true,
            GpuRequest::Fraction(part) => self.largest_gpu_part >= part,
            GpuRequest::Whole(count) => self.whole_gpus >= u16::from(count),
        };
        demand.cpu <= self.cpu && demand.memory <= self.memory && gpus && self.places > 0
    }
}
