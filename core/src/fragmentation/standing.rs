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
    /// In units.
    pub(super) cpu: i64,
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
        Self { cpu: demand.cpu.units(), memory: demand.memory, gpu_part, whole_gpus }
    }
}

/// A node as of its last change: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Standing {
    /// In units; `GONE` if the node changed again or is gone.
    pub(super) cpu: i64,
    /// U, the usable GPU capacity.
    pub(super) usable: i64,
    /// The sum of the free parts of its devices.
    pub(super) idle: u32,
    /// The part of `idle` that the node's cpu is too small to serve.
    pub(super) stranded: u32,
    /// The number of its GPU state.
    pub(super) state: u32,
    /// `NOWHERE` if the node changed again or is gone.
    pub(super) slot: Slot,
    pub(super) ordinal: Ordinal,
    /// The number of the change.
    pub(super) change: u64,
    pub(super) memory: Amount,
    largest_gpu_part: u16,
    whole_gpus: u8,
}

const _: () = assert!(size_of::<Standing>() == 64, "a standing is one cache line");

const NOWHERE: u32 = u32::MAX;
/// No request fits this cpu.
const GONE: i64 = -1;

impl Standing {
    /// Computes what depends on the measure. `gpus` is its GPU state.
    fn measure(&mut self, measure: &Measure, gpus: &GpuState) {
        self.usable = measure.usable(gpus, measure.cpu_class(self.cpu));
        // It is at most what is idle.
        self.stranded = measure.stranded(self.cpu, i64::from(self.idle)) as u32;
    }

    #[inline]
    pub(super) fn is_current(&self) -> bool {
        self.cpu != GONE
    }

    /// Returns whether it is that of a current node, and cpu, memory and GPUs suffice.
    #[inline]
    pub(super) fn covers(&self, needs: &Needs) -> bool {
        (needs.memory <= self.memory) & self.covers_but_memory(needs)
    }

    /// Returns whether it is that of a current node, and cpu and GPUs suffice.
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
    /// Whether states depend on models. `None` before the first measure.
    names_models: Option<bool>,
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

    /// Follows a change of the measure.
    pub(super) fn remeasure(&mut self, measure: &Measure, nodes: &impl Nodes) {
        let before = self.names_models.replace(measure.names_models());
        if before != Some(false) || measure.names_models() {
            return self.restart(nodes);
        }
        // All states are the same as before. To find them again would take most of the time.
        for standing in self.list.iter_mut().filter(|standing| standing.is_current()) {
            standing.measure(measure, &self.states[standing.state as usize]);
        }
    }

    /// Clears everything.
    fn restart(&mut self, nodes: &impl Nodes) {
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
            let mut standing = Standing {
                cpu: room.cpu.units(),
                usable: 0,
                idle: u32::try_from(room.gpus.total_free()).expect("a node has few devices"),
                stranded: 0,
                state,
                slot,
                ordinal,
                change: self.last_change,
                memory: room.memory,
                largest_gpu_part: gpus.largest(),
                whole_gpus: gpus.whole(),
            };
            standing.measure(measure, &gpus);
            self.list.push(standing);
        }
        self.touched.clear();
        renumbered
    }

    fn withdraw(&mut self, slot: Slot) {
        let at = std::mem::replace(&mut self.known[slot as usize].at, NOWHERE);
        if at != NOWHERE {
            let standing = &mut self.list[at as usize];
            (standing.slot, standing.cpu) = (NOWHERE, GONE);
            self.live -= 1;
        }
    }

    fn compact(&mut self) {
        self.list.retain(Standing::is_current);
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

    /// Returns the nodes that changed after `change`, the latest first. Some are not current.
    pub(super) fn since(&self, change: u64) -> impl Iterator<Item = &Standing> {
        self.list.iter().rev().take_while(move |standing| standing.change > change)
    }

    /// Returns the number of current nodes.
    pub(super) fn len(&self) -> u64 {
        self.live as u64
    }

    /// Returns all nodes. Some are not current.
    pub(super) fn all(&self) -> &[Standing] {
        &self.list
    }

    /// Returns the entry of a node that takes new work.
    pub(super) fn of(&self, slot: Slot) -> Option<&Standing> {
        let at = self.known.get(slot as usize)?.at;
        self.list.get(at as usize)
    }
}
