//! Running sums of a shard's books, so that status and summaries never scan the nodes.

use super::table::NodeTable;
use super::totals::{KeptTotals, Totals};
use crate::books::{Entry, ExactAmounts, UNHEALTHY};
use crate::index::Slot;
use crate::node::{NodeSpec, NodeState};
use crate::resource::{Amount, Demand, GPU_UNIT, ResourceKind};
use crate::shard::command::ResourceSum;

/// Sums over all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) placed: u64,
    pub(crate) refused: u64,
    pub(crate) released: u64,
    pub(crate) kept: KeptTotals,
    /// Nodes with a shortfall, and their shortfalls. Kept separately because shortfalls are rare.
    shortfalls: std::collections::BTreeMap<Slot, ExactAmounts>,
}

fn units(amount: Amount) -> i128 {
    i128::from(amount.units())
}

#[inline]
fn add(totals: &mut Totals, demand: &Demand, sign: i128, place: impl Fn(&mut ResourceSum) -> &mut i128) {
    let mut add = |kind, amount: i128| {
        let sum = place(totals.sum_mut(kind));
        *sum += sign * amount;
        assert!(*sum >= 0, "more of {kind:?} is given back than was in use");
    };
    add(ResourceKind::Cpu, units(demand.cpu));
    add(ResourceKind::Memory, units(demand.memory));
    add(ResourceKind::Gpu, i128::from(demand.gpu.units()));
    for &(id, amount) in demand.custom() {
        add(ResourceKind::Custom(id), units(amount));
    }
}

fn add_capacity(totals: &mut Totals, spec: &NodeSpec, sign: i128) {
    let mut add = |kind, amount: i128| {
        let sum = totals.sum_mut(kind);
        sum.total += sign * amount;
        assert!(sum.total >= 0, "nodes take more of {kind:?} with them than there was");
    };
    add(ResourceKind::Cpu, units(spec.cpu));
    add(ResourceKind::Memory, units(spec.memory));
    add(ResourceKind::Gpu, i128::from(spec.gpus) * i128::from(GPU_UNIT));
    for &(id, amount) in spec.custom.as_deref().unwrap_or(&[]) {
        add(ResourceKind::Custom(id), units(amount));
    }
}

/// Adds the amounts that an entry withholds, or subtracts them if `sign` is -1.
pub(crate) fn add_withheld(totals: &mut Totals, entry: &Entry, sign: i128) {
    for (kind, amount) in entry.withheld.resources() {
        let ResourceSum { unhealthy, reserved, .. } = totals.sum_mut(kind);
        *if entry.kind() == UNHEALTHY { unhealthy } else { reserved } += sign * i128::from(amount);
    }
}

impl Sums {
    /// Adds cpu, memory and GPUs to what is allocated, in 1/10,000.
    #[inline(always)]
    pub(super) fn allocate_plain<const RARE: bool>(&mut self, slot: Slot, amounts: [i64; 3]) {
        self.kept.add_allocated::<RARE>(slot, amounts);
    }

    #[inline]
    pub(super) fn allocate(&mut self, slot: Slot, demand: &Demand) {
        self.kept.change(slot, |totals| add(totals, demand, 1, |sum| &mut sum.allocated));
    }

    #[inline]
    pub(super) fn release(&mut self, slot: Slot, demand: &Demand) {
        self.kept.change(slot, |totals| add(totals, demand, -1, |sum| &mut sum.allocated));
    }

    /// Adds amounts held by a statement, or subtracts them if `sign` is -1.
    pub(super) fn hold(&mut self, slot: Slot, demand: &Demand, sign: i128) {
        self.kept.change(slot, |totals| add(totals, demand, sign, |sum| &mut sum.held));
    }

    /// Adds amounts that are being released, or subtracts them if `sign` is -1.
    pub(super) fn releasing(&mut self, slot: Slot, demand: &Demand, sign: i128) {
        self.kept.change(slot, |totals| add(totals, demand, sign, |sum| &mut sum.releasing));
    }

    /// Adds the amounts that an entry withholds, or subtracts them if `sign` is -1.
    pub(super) fn withhold(&mut self, slot: Slot, entry: &Entry, sign: i128) {
        self.kept.change(slot, |totals| add_withheld(totals, entry, sign));
    }

    /// Returns the capacity of all nodes for `kind`, in 1/10,000.
    pub(crate) fn total(&self, kind: ResourceKind) -> i128 {
        self.kept.total(kind)
    }

    pub(super) fn node_added(&mut self, slot: Slot, spec: &NodeSpec, state: NodeState) {
        self.kept.change(slot, |totals| {
            add_capacity(totals, spec, 1);
            *totals.nodes_in_mut(state) += 1;
        });
    }

    pub(super) fn node_removed(&mut self, slot: Slot, spec: &NodeSpec, state: NodeState) {
        self.kept.change(slot, |totals| {
            add_capacity(totals, spec, -1);
            let nodes = totals.nodes_in_mut(state);
            *nodes = nodes.checked_sub(1).expect("a node that leaves was counted in its state");
        });
    }

    pub(super) fn state_changed(&mut self, slot: Slot, before: NodeState, after: NodeState) {
        self.kept.change(slot, |totals| {
            let nodes = totals.nodes_in_mut(before);
            *nodes = nodes.checked_sub(1).expect("a node that changes was counted in its state");
            *totals.nodes_in_mut(after) += 1;
        });
    }

    /// Subtracts a node's capacity before it changes. Its shortfall is updated by
    /// `node_returns`.
    pub(super) fn node_leaves(&mut self, nodes: &NodeTable, slot: Slot) {
        let spec = &nodes.cold(slot).registration.spec;
        self.kept.change(slot, |totals| add_capacity(totals, spec, -1));
    }

    /// Adds the capacity of a replica's node (`sign` 1) or subtracts it (-1).
    pub(super) fn replica_capacity(&mut self, slot: Slot, spec: &NodeSpec, sign: i128) {
        self.kept.change(slot, |totals| add_capacity(totals, spec, sign));
    }

    /// Adds a node's new capacity and shortfall.
    pub(super) fn node_returns(&mut self, nodes: &NodeTable, slot: Slot) {
        let spec = &nodes.cold(slot).registration.spec;
        self.kept.change(slot, |totals| add_capacity(totals, spec, 1));
        self.shortfall_changed(nodes, slot);
    }

    /// Updates the sums with the shortfall of one node.
    pub(super) fn shortfall_changed(&mut self, nodes: &NodeTable, slot: Slot) {
        let short = nodes.hot(slot).has_shortfall;
        if !short && (self.shortfalls.is_empty() || !self.shortfalls.contains_key(&slot)) {
            return;
        }
        for (kind, amount) in self.shortfalls.remove(&slot).unwrap_or_default().resources() {
            self.kept.change(slot, |totals| {
                let sum = totals.sum_mut(kind);
                sum.shortfall -= i128::from(amount);
                assert!(sum.shortfall >= 0, "a larger shortfall of {kind:?} ends than there was");
            });
        }
        if short {
            let shortfall = shortfall_of(nodes, slot);
            for (kind, amount) in shortfall.resources() {
                self.kept.change(slot, |totals| totals.sum_mut(kind).shortfall += i128::from(amount));
            }
            self.shortfalls.insert(slot, shortfall);
        }
    }

    /// Returns capacity and use of cpu, memory and GPUs.
    pub(crate) fn load(&self) -> [(i128, i128); 3] {
        let kinds = [ResourceKind::Cpu, ResourceKind::Memory, ResourceKind::Gpu];
        kinds.map(|kind| self.kept.all().sum(kind)).map(|sum| (sum.total, sum.in_use()))
    }
}

/// Returns what one node has in use beyond its capacity.
pub(crate) fn shortfall_of(nodes: &NodeTable, slot: Slot) -> ExactAmounts {
    let cold = nodes.cold(slot);
    let custom = cold.custom.iter().map(|book| (book.id, book.shortfall));
    let units = cold.custom.iter().filter_map(|book| Some((book.id, book.units.as_ref()?)));
    let units = units.flat_map(|(id, units)| units.iter().map(move |(unit, _, short)| ((id, unit), short)));
    ExactAmounts {
        cpu: cold.short.cpu,
        memory: cold.short.memory,
        gpus: cold.short.gpus,
        custom: custom.collect(),
        units: units.collect(),
    }
}
