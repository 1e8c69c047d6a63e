//! Running sums of a shard's books, so that status and summaries never scan the nodes.

use super::command::ResourceSum;
use super::table::NodeTable;
use super::totals::{KeptTotals, Totals};
use crate::books::CustomBook;
use crate::index::Slot;
use crate::node::{NodeSpec, NodeState};
use crate::resource::{Amount, Demand, GPU_UNIT, ResourceKind};

/// Sums over all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) placed: u64,
    pub(super) refused: u64,
    pub(super) released: u64,
    /// What is reserved is not among them: the [node table](NodeTable::reserved) sums it.
    pub(super) kept: KeptTotals,
    /// Nodes with a shortfall, and what they contribute: kept apart, because it is rare.
    shortfalls: std::collections::BTreeMap<Slot, Vec<(ResourceKind, i128)>>,
    /// Nodes with unhealthy GPU instances, and what is hidden there.
    hidden: std::collections::BTreeMap<Slot, i128>,
}

fn units(amount: Amount) -> i128 {
    i128::from(amount.units())
}

#[inline]
fn add(totals: &mut Totals, demand: &Demand, sign: i128, place: impl Fn(&mut ResourceSum) -> &mut i128) {
    *place(totals.sum_mut(ResourceKind::Cpu)) += sign * units(demand.cpu);
    *place(totals.sum_mut(ResourceKind::Memory)) += sign * units(demand.memory);
    *place(totals.sum_mut(ResourceKind::Gpu)) += sign * i128::from(demand.gpu.units());
    for &(id, amount) in demand.custom() {
        *place(totals.sum_mut(ResourceKind::Custom(id))) += sign * units(amount);
    }
}

fn add_capacity(totals: &mut Totals, spec: &NodeSpec, sign: i128) {
    totals.sum_mut(ResourceKind::Cpu).total += sign * units(spec.cpu);
    totals.sum_mut(ResourceKind::Memory).total += sign * units(spec.memory);
    totals.sum_mut(ResourceKind::Gpu).total += sign * i128::from(spec.gpus) * i128::from(GPU_UNIT);
    for &(id, amount) in spec.custom.as_deref().unwrap_or(&[]) {
        totals.sum_mut(ResourceKind::Custom(id)).total += sign * units(amount);
    }
}

impl Sums {
    #[inline]
    pub(super) fn allocate(&mut self, slot: Slot, demand: &Demand) {
        self.kept.change(slot, |totals| add(totals, demand, 1, |sum| &mut sum.allocated));
    }

    #[inline]
    pub(super) fn release(&mut self, slot: Slot, demand: &Demand) {
        self.kept.change(slot, |totals| add(totals, demand, -1, |sum| &mut sum.allocated));
    }

    /// A statement holds so much, or (`sign` -1) does not any more.
    pub(super) fn hold(&mut self, slot: Slot, demand: &Demand, sign: i128) {
        self.kept.change(slot, |totals| add(totals, demand, sign, |sum| &mut sum.held));
    }

    /// So much is on its way out, or (`sign` -1) has gone.
    pub(super) fn releasing(&mut self, slot: Slot, demand: &Demand, sign: i128) {
        self.kept.change(slot, |totals| add(totals, demand, sign, |sum| &mut sum.releasing));
    }

    /// What all nodes have of `kind`, in 1/10 000.
    pub(super) fn total(&self, kind: ResourceKind) -> i128 {
        self.kept.all.sum(kind).total
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
            *totals.nodes_in_mut(state) -= 1;
        });
    }

    pub(super) fn state_changed(&mut self, slot: Slot, before: NodeState, after: NodeState) {
        self.kept.change(slot, |totals| {
            *totals.nodes_in_mut(before) -= 1;
            *totals.nodes_in_mut(after) += 1;
        });
    }

    /// Takes a node's capacity out, before it changes; its shortfall follows when it returns.
    pub(super) fn node_leaves(&mut self, nodes: &NodeTable, slot: Slot) {
        let spec = &nodes.cold(slot).registration.spec;
        self.kept.change(slot, |totals| add_capacity(totals, spec, -1));
    }

    /// A replica's node has its capacity in (`sign` 1) or out (-1).
    pub(super) fn replica_capacity(&mut self, slot: Slot, spec: &NodeSpec, sign: i128) {
        self.kept.change(slot, |totals| add_capacity(totals, spec, sign));
    }

    /// Puts a node's new capacity and shortfall in.
    pub(super) fn node_returns(&mut self, nodes: &NodeTable, slot: Slot) {
        let spec = &nodes.cold(slot).registration.spec;
        self.kept.change(slot, |totals| add_capacity(totals, spec, 1));
        self.exceptions_changed(nodes, slot);
    }

    /// Brings the sums up to date with the shortfall of one node, and with what is hidden there.
    pub(super) fn exceptions_changed(&mut self, nodes: &NodeTable, slot: Slot) {
        let unhealthy = nodes.hot(slot).has_unhealthy;
        if unhealthy || !self.hidden.is_empty() {
            let before = self.hidden.remove(&slot).unwrap_or(0);
            let hidden = if unhealthy { nodes.cold(slot).hidden_total() } else { 0 };
            if unhealthy {
                self.hidden.insert(slot, hidden);
            }
            let gpu = |totals: &mut Totals| totals.sum_mut(ResourceKind::Gpu).unhealthy += hidden - before;
            self.kept.change(slot, gpu);
        }
        let short = nodes.hot(slot).has_shortfall;
        if !short && (self.shortfalls.is_empty() || !self.shortfalls.contains_key(&slot)) {
            return;
        }
        for (kind, amount) in self.shortfalls.remove(&slot).unwrap_or_default() {
            self.kept.change(slot, |totals| totals.sum_mut(kind).shortfall -= amount);
        }
        if short {
            let shortfall = shortfall_of(nodes, slot);
            for &(kind, amount) in &shortfall {
                self.kept.change(slot, |totals| totals.sum_mut(kind).shortfall += amount);
            }
            self.shortfalls.insert(slot, shortfall);
        }
    }

    /// Capacity and use of cpu, memory and GPUs.
    pub(super) fn load(&self) -> [(i128, i128); 3] {
        let kinds = [ResourceKind::Cpu, ResourceKind::Memory, ResourceKind::Gpu];
        kinds.map(|kind| self.kept.all.sum(kind)).map(|sum| (sum.total, sum.in_use()))
    }
}

/// What one node has in use beyond its capacity.
pub(super) fn shortfall_of(nodes: &NodeTable, slot: Slot) -> Vec<(ResourceKind, i128)> {
    let cold = nodes.cold(slot);
    let gpu: i128 = cold.gpu_shortfall.iter().map(|&part| i128::from(part)).sum();
    let known = [
        (ResourceKind::Cpu, units(cold.cpu_shortfall)),
        (ResourceKind::Memory, units(cold.memory_shortfall)),
        (ResourceKind::Gpu, gpu),
    ];
    let custom =
        cold.custom.iter().map(|book: &CustomBook| (ResourceKind::Custom(book.id), units(book.shortfall)));
    known.into_iter().chain(custom).filter(|&(_, amount)| amount > 0).collect()
}
