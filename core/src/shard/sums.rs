//! Running sums of a shard's books, so that status and summaries never scan the nodes.

use super::command::{ResourceKind, ResourceSum};
use super::custom::CustomBook;
use super::table::NodeTable;
use crate::ids::ResourceId;
use crate::index::Slot;
use crate::node::{NodeSpec, NodeState};
use crate::resource::{Amount, Demand, GPU_UNIT};

/// Sums over all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) nodes_ready: u32,
    pub(super) nodes_draining: u32,
    pub(super) nodes_joining: u32,
    pub(super) nodes_lost: u32,
    pub(super) placed: u64,
    pub(super) refused: u64,
    pub(super) released: u64,
    cpu: ResourceSum,
    memory: ResourceSum,
    gpu: ResourceSum,
    /// By place in the registry.
    custom: Vec<(ResourceId, ResourceSum)>,
    /// Nodes with a shortfall, and what they contribute: kept apart, because it is rare.
    shortfalls: std::collections::BTreeMap<Slot, Vec<(ResourceKind, i128)>>,
    /// Nodes with unhealthy GPU instances, and what is hidden there.
    hidden: std::collections::BTreeMap<Slot, i128>,
}

fn units(amount: Amount) -> i128 {
    i128::from(amount.units())
}

impl Sums {
    fn sum_mut(&mut self, kind: ResourceKind) -> &mut ResourceSum {
        match kind {
            ResourceKind::Cpu => &mut self.cpu,
            ResourceKind::Memory => &mut self.memory,
            ResourceKind::Gpu => &mut self.gpu,
            ResourceKind::Custom(id) => {
                let at = id.index();
                if self.custom.len() <= at {
                    self.custom.resize(at + 1, (id, ResourceSum::default()));
                }
                self.custom[at].0 = id;
                &mut self.custom[at].1
            }
        }
    }

    #[inline]
    pub(super) fn allocate(&mut self, demand: &Demand) {
        self.add(demand, 1, |sum| &mut sum.allocated);
    }

    #[inline]
    pub(super) fn release(&mut self, demand: &Demand) {
        self.add(demand, -1, |sum| &mut sum.allocated);
    }

    /// A statement holds so much, or (`sign` -1) does not any more.
    pub(super) fn hold(&mut self, demand: &Demand, sign: i128) {
        self.add(demand, sign, |sum| &mut sum.held);
    }

    /// So much is on its way out, or (`sign` -1) has gone.
    pub(super) fn releasing(&mut self, demand: &Demand, sign: i128) {
        self.add(demand, sign, |sum| &mut sum.releasing);
    }

    #[inline]
    fn add(&mut self, demand: &Demand, sign: i128, place: impl Fn(&mut ResourceSum) -> &mut i128) {
        *place(&mut self.cpu) += sign * units(demand.cpu);
        *place(&mut self.memory) += sign * units(demand.memory);
        *place(&mut self.gpu) += sign * i128::from(demand.gpu.units());
        for &(id, amount) in demand.custom() {
            *place(self.sum_mut(ResourceKind::Custom(id))) += sign * units(amount);
        }
    }

    fn capacity(&mut self, spec: &NodeSpec, sign: i128) {
        self.cpu.total += sign * units(spec.cpu);
        self.memory.total += sign * units(spec.memory);
        self.gpu.total += sign * i128::from(spec.gpus) * i128::from(GPU_UNIT);
        for &(id, amount) in spec.custom.as_deref().unwrap_or(&[]) {
            self.sum_mut(ResourceKind::Custom(id)).total += sign * units(amount);
        }
    }

    fn nodes_in(&mut self, state: NodeState) -> &mut u32 {
        match state {
            NodeState::Ready => &mut self.nodes_ready,
            NodeState::Draining => &mut self.nodes_draining,
            NodeState::Joining => &mut self.nodes_joining,
            NodeState::Lost { .. } => &mut self.nodes_lost,
        }
    }

    /// What all nodes have of `kind`, in 1/10 000.
    pub(super) fn total(&self, kind: ResourceKind) -> i128 {
        match kind {
            ResourceKind::Cpu => self.cpu.total,
            ResourceKind::Memory => self.memory.total,
            ResourceKind::Gpu => self.gpu.total,
            ResourceKind::Custom(id) => self.custom.get(id.index()).map_or(0, |(_, sum)| sum.total),
        }
    }

    pub(super) fn node_added(&mut self, spec: &NodeSpec, state: NodeState) {
        self.capacity(spec, 1);
        *self.nodes_in(state) += 1;
    }

    pub(super) fn node_removed(&mut self, spec: &NodeSpec, state: NodeState) {
        self.capacity(spec, -1);
        *self.nodes_in(state) -= 1;
    }

    pub(super) fn state_changed(&mut self, before: NodeState, after: NodeState) {
        *self.nodes_in(before) -= 1;
        *self.nodes_in(after) += 1;
    }

    /// Takes a node's capacity out, before it changes; its shortfall follows when it returns.
    pub(super) fn node_leaves(&mut self, nodes: &NodeTable, slot: Slot) {
        self.capacity(&nodes.cold(slot).registration.spec, -1);
    }

    /// A replica's node has its capacity in (`sign` 1) or out (-1).
    pub(super) fn replica_capacity(&mut self, spec: &NodeSpec, sign: i128) {
        self.capacity(spec, sign);
    }

    /// Puts a node's new capacity and shortfall in.
    pub(super) fn node_returns(&mut self, nodes: &NodeTable, slot: Slot) {
        self.capacity(&nodes.cold(slot).registration.spec, 1);
        self.exceptions_changed(nodes, slot);
    }

    /// Brings the sums up to date with the shortfall of one node, and with what is hidden there.
    pub(super) fn exceptions_changed(&mut self, nodes: &NodeTable, slot: Slot) {
        let unhealthy = nodes.hot(slot).has_unhealthy;
        if unhealthy || !self.hidden.is_empty() {
            self.gpu.unhealthy -= self.hidden.remove(&slot).unwrap_or(0);
            if unhealthy {
                let hidden = nodes.cold(slot).hidden_total();
                self.gpu.unhealthy += hidden;
                self.hidden.insert(slot, hidden);
            }
        }
        let short = nodes.hot(slot).has_shortfall;
        if !short && (self.shortfalls.is_empty() || !self.shortfalls.contains_key(&slot)) {
            return;
        }
        for (kind, amount) in self.shortfalls.remove(&slot).unwrap_or_default() {
            self.sum_mut(kind).shortfall -= amount;
        }
        if short {
            let shortfall = shortfall_of(nodes, slot);
            for &(kind, amount) in &shortfall {
                self.sum_mut(kind).shortfall += amount;
            }
            self.shortfalls.insert(slot, shortfall);
        }
    }

    /// The books per resource: cpu, memory, GPU, then every custom kind that occurs.
    pub(super) fn resources(&self) -> Vec<(ResourceKind, ResourceSum)> {
        let known = [
            (ResourceKind::Cpu, self.cpu),
            (ResourceKind::Memory, self.memory),
            (ResourceKind::Gpu, self.gpu),
        ];
        let custom = self.custom.iter().filter(|(_, sum)| *sum != ResourceSum::default());
        known.into_iter().chain(custom.map(|&(id, sum)| (ResourceKind::Custom(id), sum))).collect()
    }

    /// Capacity and use of cpu, memory and GPUs.
    pub(super) fn load(&self) -> [(i128, i128); 3] {
        [&self.cpu, &self.memory, &self.gpu].map(|sum| (sum.total, sum.in_use()))
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
