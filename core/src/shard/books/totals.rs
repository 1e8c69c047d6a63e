//! Totals over the nodes of a shard, updated with every change. While an audit reads the nodes page by page,
//! there is a second set of totals, over the nodes read so far.
//!
//! The audit adds what it finds on each node. Later changes on a node that was read are added to both totals.
//! After the last node, both totals must be equal, regardless of changes in between
//! ([`audit_run`](crate::shard::audit::run)).
//!
//! Placements and releases without extras add to words of 64 bits. The sums of 128 bits follow once per batch.

use crate::broken::{Broken, broken};
use crate::ids::ResourceId;
use crate::index::Slot;
use crate::limits::AMOUNT_MAX;
use crate::node::NodeState;
use crate::resource::ResourceKind;
use crate::shard::command::ResourceSum;

/// Sums over some nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Nodes by state: ready, draining, joining, lost.
    states: [u32; 4],
    cpu: ResourceSum,
    memory: ResourceSum,
    gpu: ResourceSum,
    /// Indexed by the id's position in the registry.
    custom: Vec<(ResourceId, ResourceSum)>,
}

impl Totals {
    /// Returns a mutable reference to the sum of one kind.
    #[inline]
    pub(crate) fn sum_mut(&mut self, kind: ResourceKind) -> &mut ResourceSum {
        match kind {
            ResourceKind::Cpu => &mut self.cpu,
            ResourceKind::Memory => &mut self.memory,
            ResourceKind::Gpu => &mut self.gpu,
            ResourceKind::Custom(id) => {
                let at = id.index();
                if self.custom.len() <= at {
                    self.custom.resize(at + 1, (id, ResourceSum::default()));
                }
                let (known, sum) = &mut self.custom[at];
                let is_same = *known == id || *sum == ResourceSum::default();
                assert!(is_same, "two kinds of resources have number {at}");
                *known = id;
                sum
            }
        }
    }

    /// Adds cpu, memory and GPUs to what is allocated.
    #[inline(always)]
    fn add_allocated(&mut self, amounts: [i64; 3]) {
        for (sum, amount) in [&mut self.cpu, &mut self.memory, &mut self.gpu].into_iter().zip(amounts) {
            sum.allocated += i128::from(amount);
        }
    }

    /// Returns the sum of one kind.
    pub(crate) fn sum(&self, kind: ResourceKind) -> ResourceSum {
        match kind {
            ResourceKind::Cpu => self.cpu,
            ResourceKind::Memory => self.memory,
            ResourceKind::Gpu => self.gpu,
            ResourceKind::Custom(id) => self.custom.get(id.index()).map(|&(_, sum)| sum).unwrap_or_default(),
        }
    }

    /// Returns the number of nodes in a state. Lost nodes count together, drained or not.
    pub(crate) fn nodes_in(&self, state: NodeState) -> u32 {
        self.states[place_of(state)]
    }

    /// Returns the number of nodes in any state.
    pub(crate) fn nodes(&self) -> u64 {
        self.states.iter().map(|&nodes| u64::from(nodes)).sum()
    }

    /// Returns a mutable reference to the number of nodes in a state.
    pub(crate) fn nodes_in_mut(&mut self, state: NodeState) -> &mut u32 {
        &mut self.states[place_of(state)]
    }

    /// Returns the books per resource: cpu, memory, GPU, then every custom kind that occurs.
    pub(crate) fn resources(&self) -> Vec<(ResourceKind, ResourceSum)> {
        let known = [
            (ResourceKind::Cpu, self.cpu),
            (ResourceKind::Memory, self.memory),
            (ResourceKind::Gpu, self.gpu),
        ];
        let custom = self.custom.iter().filter(|(_, sum)| *sum != ResourceSum::default());
        known.into_iter().chain(custom.map(|&(id, sum)| (ResourceKind::Custom(id), sum))).collect()
    }

    /// Checks these maintained totals against those computed from the nodes.
    ///
    /// # Errors
    /// The first sum that differs.
    pub(crate) fn check(&self, nodes: &Self) -> Result<(), Broken> {
        if self.states != nodes.states {
            return Err(broken!(
                "the sums say {:?} nodes ready, draining, joining, lost; the nodes {:?}",
                self.states,
                nodes.states
            ));
        }
        let kinds = self.resources().into_iter().chain(nodes.resources()).map(|(kind, _)| kind);
        match kinds.into_iter().find(|&kind| self.sum(kind) != nodes.sum(kind)) {
            None => Ok(()),
            Some(kind) => {
                Err(broken!("the sums of {kind:?} say {:?}, the nodes {:?}", self.sum(kind), nodes.sum(kind)))
            }
        }
    }
}

fn place_of(state: NodeState) -> usize {
    match state {
        NodeState::Ready => 0,
        NodeState::Draining => 1,
        NodeState::Joining => 2,
        NodeState::Lost { .. } => 3,
    }
}

/// The most changes of what is allocated between two calls of [`KeptTotals::settle`].
pub(crate) const SETTLE_AFTER: usize = 32;
/// The most that one such change adds or subtracts, in 1/10,000.
const AMOUNT_MOST: u64 = AMOUNT_MAX as u64;
const _: () = assert!(AMOUNT_MOST as u128 * SETTLE_AFTER as u128 <= i64::MAX as u128);

/// Totals that are updated with every change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptTotals {
    all: Totals,
    /// What was added to the allocated cpu, memory and GPUs since [`settle`](Self::settle), and is not in `all` yet. A
    /// batch of commands adds to words of 64 bits, and once to the sums of 128 bits.
    recent: [i64; 3],
    /// The audit has read the nodes below this slot. 0 if no audit is in progress.
    read: Slot,
    /// The totals of the nodes that the audit has read.
    of_read: Totals,
}

impl KeptTotals {
    /// Changes the totals for the node in `slot`.
    #[inline]
    pub(crate) fn change(&mut self, slot: Slot, change: impl Fn(&mut Totals)) {
        self.settle();
        change(&mut self.all);
        if slot < self.read {
            change(&mut self.of_read);
        }
    }

    /// Adds cpu, memory and GPUs of the node in `slot` to what is allocated. The caller settles the sums at the latest
    /// after [`SETTLE_AFTER`] calls. Without `RARE`, no audit reads nodes.
    #[inline(always)]
    pub(crate) fn add_allocated<const RARE: bool>(&mut self, slot: Slot, amounts: [i64; 3]) {
        for (sum, amount) in self.recent.iter_mut().zip(amounts) {
            debug_assert!(amount.unsigned_abs() <= AMOUNT_MOST, "more is allocated than an amount can be");
            // It cannot wrap: see `SETTLE_AFTER`.
            *sum = sum.wrapping_add(amount);
        }
        if RARE && slot < self.read {
            self.add_to_read(amounts);
        }
    }

    #[inline(never)]
    fn add_to_read(&mut self, amounts: [i64; 3]) {
        assert!(self.is_read(), "there are totals of nodes that no audit has read");
        self.of_read.add_allocated(amounts);
    }

    /// Adds what was allocated since the last call to the sums.
    #[inline(always)]
    pub(crate) fn settle(&mut self) {
        self.all.add_allocated(std::mem::take(&mut self.recent));
    }

    /// Returns the totals of all nodes.
    pub(crate) fn all(&self) -> &Totals {
        assert!(self.recent == [0; 3], "sums are read before a batch is added to them");
        &self.all
    }

    /// Returns the number of nodes in any state.
    pub(crate) fn nodes(&self) -> u64 {
        self.all.nodes()
    }

    /// Returns the number of nodes in a state, like [`Totals::nodes_in`].
    pub(crate) fn nodes_in(&self, state: NodeState) -> u32 {
        self.all.nodes_in(state)
    }

    /// Returns the capacity of all nodes for one kind.
    pub(crate) fn total(&self, kind: ResourceKind) -> i128 {
        self.all.sum(kind).total
    }

    /// Returns whether an audit has read nodes.
    pub(crate) fn is_read(&self) -> bool {
        self.read > 0
    }

    /// Takes the totals of the nodes that an audit has read, so that more nodes can be added.
    pub(crate) fn take_read(&mut self) -> Totals {
        assert!(self.recent == [0; 3], "an audit reads nodes in the middle of a batch");
        std::mem::take(&mut self.of_read)
    }

    /// Stores the totals again. The audit has read the nodes below `slot`.
    pub(crate) fn put_read(&mut self, slot: Slot, totals: Totals) {
        assert!(slot >= self.read, "an audit goes back from slot {} to {slot}", self.read);
        let changed = std::mem::replace(&mut self.of_read, totals);
        assert!(changed == Totals::default(), "nodes changed while a page of an audit was read");
        self.read = slot;
    }

    /// Ends the audit. Returns the totals of all nodes, with all changes since they were read.
    pub(crate) fn end_reading(&mut self) -> Totals {
        self.read = 0;
        self.take_read()
    }
}
