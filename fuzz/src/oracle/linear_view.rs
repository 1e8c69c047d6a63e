//! The part of the oracle for what a shard shows: pages of nodes, sums and the durable state.

use std::collections::BTreeMap;

use wharf_core::ids::Ordinal;
use wharf_core::node::NodeState;
use wharf_core::resource::ResourceKind;
use wharf_core::shard::{NodeView, Outcome, ResourceSum, ShardStatus};
use wharf_core::state::ShardState;

use super::linear_node::{DEVICE, LinearNode};
use super::linear_shard::{LinearShard, differs};

impl LinearShard {
    pub(super) fn compare_list(&self, after: Ordinal, limit: u16, outcome: &Outcome) -> Result<(), String> {
        let Outcome::Nodes(page) = outcome else {
            return differs(outcome, "a page of nodes");
        };
        let listed = self.nodes.iter().filter(|node| node.registration.ordinal > after);
        let listed: Vec<&LinearNode> = listed.take(usize::from(limit)).collect();
        let same = listed.len() == page.len() && listed.iter().zip(page).all(|(n, v)| same_node(n, v));
        if same { Ok(()) } else { differs(page, listed) }
    }

    pub(super) fn compare_status(&self, status: &ShardStatus) -> Result<(), String> {
        let in_state =
            |names: &[NodeState]| self.nodes.iter().filter(|node| names.contains(&node.state())).count();
        let lost = [NodeState::Lost { draining: false }, NodeState::Lost { draining: true }];
        let counts = (
            status.nodes_ready as usize,
            status.nodes_draining as usize,
            status.nodes_joining as usize,
            status.nodes_lost as usize,
            status.nodes_reserved as usize,
            status.allocations as usize,
            status.placed,
            status.refused,
            status.released,
        );
        let expected = (
            in_state(&[NodeState::Ready]),
            in_state(&[NodeState::Draining]),
            in_state(&[NodeState::Joining]),
            in_state(&lost),
            self.owners().len(),
            self.allocations.len(),
            self.placed,
            self.refused,
            self.released,
        );
        if counts != expected {
            return differs(counts, expected);
        }
        let waiting: u64 = status.waiting.iter().map(|shape| shape.homes).sum();
        if waiting != self.parked.len() as u64 {
            return differs(&status.waiting, &self.parked);
        }
        let sums = self.sums();
        for &(kind, sum) in &status.resources {
            let expected = sums.get(&kind).copied().unwrap_or_default();
            if sum != expected {
                return differs((kind, sum), expected);
            }
        }
        let listed = |kind: &ResourceKind| status.resources.iter().any(|(listed, _)| listed == kind);
        match sums.iter().find(|(kind, sum)| **sum != ResourceSum::default() && !listed(kind)) {
            Some(missing) => Err(format!("the status does not list {missing:?}")),
            None => Ok(()),
        }
    }

    /// Returns the books per resource over all nodes.
    #[must_use]
    pub fn sums(&self) -> BTreeMap<ResourceKind, ResourceSum> {
        let mut sums: BTreeMap<ResourceKind, ResourceSum> = BTreeMap::new();
        let mut add = |kind, total: i64, allocated: i64, shortfall: i64| {
            let sum = sums.entry(kind).or_default();
            sum.total += i128::from(total);
            sum.allocated += i128::from(allocated);
            sum.shortfall += i128::from(shortfall);
        };
        let mut hidden = 0;
        let mut reserved: BTreeMap<ResourceKind, i128> = BTreeMap::new();
        for node in &self.nodes {
            let spec = &node.registration.spec;
            let used = node.used();
            let beyond = node.beyond();
            add(ResourceKind::Cpu, spec.cpu.units(), used[0], beyond[0]);
            add(ResourceKind::Memory, spec.memory.units(), used[1], beyond[1]);
            add(ResourceKind::Gpu, i64::from(spec.gpus) * DEVICE, used[2], beyond[2]);
            hidden += i128::from(node.gpu_hidden());
            // Reserved capacity is what the owner of a reservation sees and others do not.
            let seen = node.as_seen_by(None);
            let gpus = |node: &LinearNode| (0..16).map(|i| node.gpu_free(i)).sum::<i64>();
            // Compared by use: a unit may be free while others are used beyond the total.
            let used = |node: &LinearNode, id| node.custom_used.get(&id).copied().unwrap_or(0);
            let custom = spec.custom.as_deref().unwrap_or(&[]).iter();
            let custom = custom.map(|&(id, _)| (ResourceKind::Custom(id), used(&seen, id) - used(node, id)));
            let known = [
                (ResourceKind::Cpu, node.cpu_free() - seen.cpu_free()),
                (ResourceKind::Memory, node.memory_free() - seen.memory_free()),
                (ResourceKind::Gpu, gpus(node) - gpus(&seen)),
            ];
            for (kind, amount) in known.into_iter().chain(custom) {
                *reserved.entry(kind).or_default() += i128::from(amount);
            }
            for &(id, total) in spec.custom.as_deref().unwrap_or(&[]) {
                add(ResourceKind::Custom(id), total.units(), 0, 0);
            }
            for (id, used) in node.custom_used() {
                let beyond = node.custom_beyond(id);
                add(ResourceKind::Custom(id), 0, used, beyond);
            }
        }
        sums.entry(ResourceKind::Gpu).or_default().unhealthy = hidden;
        for (kind, amount) in reserved {
            sums.entry(kind).or_default().reserved = amount;
        }
        sums
    }

    pub(super) fn compare_export(&self, state: &ShardState) -> Result<(), String> {
        if state.policy.next_fit.0 != self.cursor {
            return differs(state.policy.next_fit, self.cursor);
        }
        self.compare_granularity(state)?;
        let nodes: usize = state.partitions.iter().map(|partition| partition.nodes.len()).sum();
        if nodes != self.nodes.len() {
            return differs(nodes, self.nodes.len());
        }
        let mut allocations = self.allocations.clone();
        for partition in &state.partitions {
            for record in &partition.nodes {
                let node = self.nodes.iter().find(|node| node.registration == record.registration);
                let unhealthy = record.unhealthy.iter().cloned().collect();
                if node.map(|node| (node.state(), node.version, &node.unhealthy))
                    != Some((record.state, record.version, &unhealthy))
                {
                    return differs(record, node);
                }
            }
            for record in &partition.reservations {
                let node = self.nodes.iter().find(|node| node.registration.id == record.node);
                let there = node.and_then(|node| node.reservation.as_ref());
                if there.is_none_or(|there| !there.is(record)) {
                    return differs(record, there);
                }
            }
            for record in &partition.allocations {
                let held = allocations.remove(&record.id);
                let same = held.as_ref().is_some_and(|held| {
                    (held.node, &held.demand, held.gpus) == (record.node, &record.demand, record.gpus)
                        && (&held.units, &held.external_id) == (&record.units, &record.external_id)
                });
                if !same || record.id.partition != partition.id {
                    return differs(record, held);
                }
            }
        }
        let reserved = self.nodes.iter().filter(|node| node.reservation.is_some()).count();
        let exported: usize = state.partitions.iter().map(|partition| partition.reservations.len()).sum();
        if exported != reserved {
            return differs(exported, reserved);
        }
        if allocations.is_empty() { Ok(()) } else { differs("no more allocations", allocations) }
    }
}

fn same_node(node: &LinearNode, view: &NodeView) -> bool {
    let gpus = |node: &LinearNode| {
        (0..16u8).all(|i| i64::from(view.gpus_available.free(i)) == node.gpu_free(usize::from(i)))
    };
    let reserved_for = node.reservation.as_ref().map(|reservation| reservation.owner);
    let node = &node.as_seen_by(None);
    let gpus = gpus(node);
    view.registration == node.registration
        && view.state == node.state()
        && view.unhealthy.iter().cloned().eq(node.unhealthy.clone())
        && (view.version, view.allocations) == (node.version, node.allocations)
        && view.reserved.map(|(owner, _)| owner) == reserved_for
        && view.cpu_available.units() == node.cpu_free()
        && view.memory_available.units() == node.memory_free()
        && gpus
}
