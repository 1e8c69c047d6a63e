//! The nodes in the order of their last change, with what the measure reads of each: a list that
//! is read from its end says what changed since, and read whole says everything.

use super::measure::{GpuState, Measure};
use crate::ids::Ordinal;
use crate::index::Slot;
use crate::limits::GPU_STATES_KEPT;
use crate::map::FixedMap;
use crate::memory;
use crate::resource::{Amount, Demand, GpuBooks, GpuRequest};

/// What a node has available now.
pub(crate) struct NodeRoom<'a> {
    pub(crate) cpu: Amount,
    pub(crate) memory: Amount,
    pub(crate) gpus: &'a GpuBooks,
}

/// The nodes of a shard, as this module asks for them.
pub(crate) trait Nodes {
    /// What a node has available, if there is one in this slot that takes new work.
    fn room(&self, slot: Slot) -> Option<NodeRoom<'_>>;
    /// Its place in the order of registration, and the model of its GPUs.
    fn identity(&self, slot: Slot) -> (Ordinal, Option<&str>);
    /// One more than the last slot.
    fn slots(&self) -> usize;
}

/// A node as of its last change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// The number of the change.
    pub(super) change: u64,
    pub(super) ordinal: Ordinal,
    pub(super) cpu: Amount,
    pub(super) memory: Amount,
    /// U.
    pub(super) usable: i64,
    /// Sum of the free parts of its devices.
    pub(super) idle: i64,
    /// Of that, what its cpu does not suffice for.
    pub(super) stranded: i64,
    /// `NOWHERE`: the node changed again, or is gone.
    pub(super) slot: Slot,
    /// Number of its GPU state.
    pub(super) state: u32,
    largest_gpu_part: u16,
    whole_gpus: u8,
}

const NOWHERE: u32 = u32::MAX;

impl Standing {
    /// Whether cpu, memory and GPUs suffice.
    #[inline]
    pub(super) fn covers(&self, demand: &Demand) -> bool {
        demand.memory <= self.memory && self.covers_but_memory(demand)
    }

    /// Whether cpu and GPUs suffice.
    #[inline]
    pub(super) fn covers_but_memory(&self, demand: &Demand) -> bool {
        let gpus = match demand.gpu {
            GpuRequest::None => true,
            GpuRequest::Fraction(part) => self.largest_gpu_part >= part,
            GpuRequest::Whole(count) => self.whole_gpus >= count,
        };
        demand.cpu <= self.cpu && gpus
    }
}

/// What is known of a slot.
#[derive(Clone, Copy)]
struct Known {
    /// Where its latest standing is in the list, or `NOWHERE`.
    at: u32,
    model: u8,
    /// Whether ordinal and model are those of the node that is there.
    identified: bool,
    touched: bool,
    ordinal: Ordinal,
}

const UNKNOWN: Known =
    Known { at: NOWHERE, model: 0, identified: false, touched: false, ordinal: Ordinal(0) };

/// All of it.
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
    /// What it takes: by node, and by distinct state of GPUs, of which there are fewer.
    pub(super) fn memory(&self) -> u64 {
        memory::of_vec(&self.list)
            + memory::of_vec(&self.known)
            + memory::of_vec(&self.touched)
            + memory::of_vec(&self.states)
            + memory::of_map(&self.numbers)
    }

    /// The availability of a node changed.
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

    /// As [`touch`](Self::touch), where the node or its labels may be others.
    pub(super) fn touch_identity(&mut self, slot: Slot) {
        self.touch(slot);
        self.known[slot as usize].identified = false;
    }

    /// Forgets everything: the measure is another.
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

    /// Brings the list up to date; whether the GPU states were numbered anew.
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
                usable: measure.usable(&gpus, measure.cpu_class(room.cpu)),
                idle,
                stranded: measure.stranded(room.cpu, idle),
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

    /// Numbers the states of the nodes there are, and forgets all others.
    fn renumber(&mut self) {
        let before = std::mem::take(&mut self.states);
        self.numbers.clear();
        self.compact();
        for at in 0..self.list.len() {
            self.list[at].state = self.number(before[self.list[at].state as usize]);
        }
    }

    /// The number of the last change.
    pub(super) fn last_change(&self) -> u64 {
        self.last_change
    }

    pub(super) fn state(&self, number: u32) -> &GpuState {
        &self.states[number as usize]
    }

    /// The nodes that changed after `change`, the latest first.
    pub(super) fn since(&self, change: u64) -> impl Iterator<Item = &Standing> {
        let later = self.list.iter().rev().take_while(move |standing| standing.change > change);
        later.filter(|standing| standing.slot != NOWHERE)
    }

    /// The standing of a node that takes new work.
    pub(super) fn of(&self, slot: Slot) -> Option<&Standing> {
        let at = self.known.get(slot as usize)?.at;
        self.list.get(at as usize)
    }
}
