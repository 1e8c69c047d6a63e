//! The nodes in the order of their last change, with the values that the measure reads.
//!
//! The end of the list contains the most recent changes. The whole list contains all nodes.

use super::measure::{GpuState, Measure};
use crate::ids::Ordinal;
use crate::index::Slot;
use crate::limits::GPU_STATES_KEPT;
use crate::map::FixedMap;
use crate::memory;
use crate::resource::{Amount, Demand, GpuBooks, GpuRequest};

/// The capacity that a node has available now.
pub(crate) struct NodeRoom<'a> {
    pub(crate) cpu: Amount,
    pub(crate) memory: Amount,
    pub(crate) gpus: &'a GpuBooks,
}

/// The nodes of a shard, as this module sees them.
pub(crate) trait Nodes {
    /// Returns the available capacity of the node in this slot, if there is one that takes new work.
    fn room(&self, slot: Slot) -> Option<NodeRoom<'_>>;
    /// Returns the node's ordinal and the model of its GPUs.
    fn identity(&self, slot: Slot) -> (Ordinal, Option<&str>);
    /// Returns one more than the last slot.
    fn slots(&self) -> usize;
}

/// What a request needs of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    pub(super) cpu: Amount,
    pub(super) memory: Amount,
    gpu_part: u16,
    whole_gpus: u8,
}

impl Needs {
    pub(super) fn of(demand: &Demand) -> Self {
        let (gpu_part, whole_gpus) = match demand.gpu {
            GpuRequest::None => (0, 0),
            GpuRequest::Fraction(part) => (part, 0),
            GpuRequest::Whole(count) => (0, count),
        };
        Self { cpu: demand.cpu, memory: demand.memory, gpu_part, whole_gpus }
    }
}

/// A node as of its last change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// The number of the change.
    pub(super) change: u64,
    pub(super) ordinal: Ordinal,
    pub(super) cpu: Amount,
    pub(super) memory: Amount,
    /// U, the usable GPU capacity.
    pub(super) usable: i64,
    /// The sum of the free parts of its devices.
    pub(super) idle: i64,
    /// The part of `idle` that the node's cpu is too small to serve.
    pub(super) stranded: i64,
    /// `NOWHERE` if the node changed again or is gone.
    pub(super) slot: Slot,
    /// The number of its GPU state.
    pub(super) state: u32,
    largest_gpu_part: u16,
    whole_gpus: u8,
}

const NOWHERE: u32 = u32::MAX;

impl Standing {
    /// Returns whether cpu, memory and GPUs suffice.
    #[inline]
    pub(super) fn covers(&self, needs: &Needs) -> bool {
        (needs.memory <= self.memory) & self.covers_but_memory(needs)
    }

    /// Returns whether cpu and GPUs suffice.
    #[inline]
    pub(super) fn covers_but_memory(&self, needs: &Needs) -> bool {
        (needs.cpu <= self.cpu)
            & (needs.gpu_part <= self.largest_gpu_part)
            & (needs.whole_gpus <= self.whole_gpus)
    }
}

/// The record of a slot.
#[derive(Clone, Copy)]
struct Known {
    /// The index of its latest entry in the list, or `NOWHERE`.
    at: u32,
    model: u8,
    /// True if ordinal and model are those of the current node.
    identified: bool,
    touched: bool,
    ordinal: Ordinal,
}

const UNKNOWN: Known =
    Known { at: NOWHERE, model: 0, identified: false, touched: false, ordinal: Ordinal(0) };

/// The entries of all nodes.
#[derive(Default)]
pub(super) struct Standings {
    /// In order of change.
    list: Vec<Standing>,
    live: usize,
    last_change: u64,
    known: Vec<Known>,
    /// Slots that changed since the last refresh, each once.
    touched: Vec<Slot>,
    states: Vec<GpuState>,
    numbers: FixedMap<GpuState, u32>,
}

impl Standings {
    /// Returns the bytes taken. They grow with the nodes, and with the distinct GPU states, of which there
    /// are fewer.
    pub(super) fn memory(&self) -> u64 {
        memory::of_vec(&self.list)
            + memory::of_vec(&self.known)
            + memory::of_vec(&self.touched)
            + memory::of_vec(&self.states)
            + memory::of_map(&self.numbers)
    }

    /// Records that the availability of a node changed.
    pub(super) fn touch(&mut self, slot: Slot) {
        if self.known.len() <= slot as usize {
            self.known.resize(slot as usize + 1, UNKNOWN);
        }
        let known = &mut self.known[slot as usize];
        if !known.touched {
            known.touched = true;
            self.touched.push(slot);
        }
    }

    /// The same as [`touch`](Self::touch), if the node or its labels may have changed too.
    pub(super) fn touch_identity(&mut self, slot: Slot) {
        self.touch(slot);
        self.known[slot as usize].identified = false;
    }

    /// Clears everything, because the measure has changed.
    pub(super) fn restart(&mut self, nodes: &impl Nodes) {
        self.list.clear();
        self.live = 0;
        self.states.clear();
        self.numbers.clear();
        self.known.fill(UNKNOWN);
        self.touched.clear();
        for slot in 0..nodes.slots() {
            self.touch(slot as Slot);
        }
    }

    /// Updates the list. Returns whether the GPU states were renumbered.
    pub(super) fn refresh(&mut self, measure: &Measure, nodes: &impl Nodes) -> bool {
        let mut renumbered = false;
        for at in 0..self.touched.len() {
            let slot = self.touched[at];
            self.known[slot as usize].touched = false;
            self.withdraw(slot);
            let Some(room) = nodes.room(slot) else { continue };
            let known = &mut self.known[slot as usize];
            if !known.identified {
                let (ordinal, model) = nodes.identity(slot);
                let model = if measure.names_models() { measure.model_class(model) } else { 0 };
                *known = Known { ordinal, model, identified: true, ..*known };
            }
            let ordinal = known.ordinal;
            let gpus = GpuState::new(room.gpus, known.model);
            if self.states.len() >= GPU_STATES_KEPT.max(2 * self.live) && !self.numbers.contains_key(&gpus) {
                self.renumber();
                renumbered = true;
            }
            if self.list.len() > 64 + 2 * self.live {
                self.compact();
            }
            self.last_change += 1;
            self.live += 1;
            self.known[slot as usize].at = self.list.len() as u32;
            let state = self.number(gpus);
            let idle = room.gpus.total_free();
            self.list.push(Standing {
                change: self.last_change,
                ordinal,
                cpu: room.cpu,
                memory: room.memory,
                usable: measure.usable(&gpus, measure.cpu_class(room.cpu.units())),
                idle,
                stranded: measure.stranded(room.cpu.units(), idle),
                slot,
                state,
                largest_gpu_part: gpus.largest(),
                whole_gpus: gpus.whole(),
            });
        }
        self.touched.clear();
        renumbered
    }

    fn withdraw(&mut self, slot: Slot) {
        let at = std::mem::replace(&mut self.known[slot as usize].at, NOWHERE);
        if at != NOWHERE {
            self.list[at as usize].slot = NOWHERE;
            self.live -= 1;
        }
    }

    fn compact(&mut self) {
        self.list.retain(|standing| standing.slot != NOWHERE);
        for (at, standing) in (0..).zip(&self.list) {
            self.known[standing.slot as usize].at = at;
        }
    }

    fn number(&mut self, gpus: GpuState) -> u32 {
        let next = self.states.len() as u32;
        *self.numbers.entry(gpus).or_insert_with(|| {
            self.states.push(gpus);
            next
        })
    }

    /// Renumbers the states of the current nodes, and drops all others.
    fn renumber(&mut self) {
        let before = std::mem::take(&mut self.states);
        self.numbers.clear();
        self.compact();
        for at in 0..self.list.len() {
            self.list[at].state = self.number(before[self.list[at].state as usize]);
        }
    }

    /// Returns the number of the last change.
    pub(super) fn last_change(&self) -> u64 {
        self.last_change
    }

    pub(super) fn state(&self, number: u32) -> &GpuState {
        &self.states[number as usize]
    }

    /// Returns the nodes that changed after `change`, the latest first.
    pub(super) fn since(&self, change: u64) -> impl Iterator<Item = &Standing> {
        let later = self.list.iter().rev().take_while(move |standing| standing.change > change);
        later.filter(|standing| standing.slot != NOWHERE)
    }

    /// Returns the entry of a node that takes new work.
    pub(super) fn of(&self, slot: Slot) -> Option<&Standing> {
        let at = self.known.get(slot as usize)?.at;
        self.list.get(at as usize)
    }
}
