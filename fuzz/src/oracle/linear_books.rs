//! The part of the oracle for adoptions, single resources and the books of a node.

use std::sync::Arc;

use wharf_core::ids::{AllocationId, NodeId};
use wharf_core::node::NodeSpec;
use wharf_core::request::Placement;
use wharf_core::resource::{Amount, Demand, GpuAssignment, GpuRequest, ResourceKind};
use wharf_core::shard::{
    Adoption, AdoptionRejection, NodeBooks, NodeChange, Outcome, TooManyAllocations, UnknownNode,
};

use super::linear_node::{DEVICE, LinearNode};
use super::linear_shard::{Held, LinearShard, compare_node_outcome, differs};

/// Returns `spec` with other capacities of some resources.
fn with_totals(mut spec: NodeSpec, totals: &[(ResourceKind, Amount)]) -> NodeSpec {
    let mut custom: Vec<_> = spec.custom.iter().flat_map(|custom| custom.iter().copied()).collect();
    for &(kind, total) in totals {
        match kind {
            ResourceKind::Cpu => spec.cpu = total,
            ResourceKind::Memory => spec.memory = total,
            ResourceKind::Gpu => spec.gpus = (total.units() / DEVICE) as u8,
            ResourceKind::Custom(id) => match custom.iter().position(|&(known, _)| known == id) {
                Some(at) => custom[at].1 = total,
                None => custom.push((id, total)),
            },
        }
    }
    spec.custom = Demand::canonical_custom(custom).expect("each kind once");
    spec
}

impl LinearShard {
    /// Returns whether an adoption names instances that the node cannot hold for it.
    fn wrong_instances(&self, at: usize, adoption: &Adoption) -> bool {
        let spec = &self.nodes[at].registration.spec;
        let asked = match adoption.demand.gpu {
            GpuRequest::None => 0,
            GpuRequest::Fraction(_) => 1,
            GpuRequest::Whole(count) => u32::from(count),
        };
        let wrong_gpus = adoption.gpus.is_some_and(|mask| {
            mask.count_ones() != asked || (usize::from(spec.gpus)..16).any(|i| mask >> i & 1 == 1)
        });
        let wrong_units = adoption.units.iter().any(|&(id, mask)| {
            let total = spec.custom.iter().flat_map(|c| c.iter()).find(|(kind, _)| *kind == id);
            let count = total.map_or(0, |(_, total)| total.units() / DEVICE);
            let amount = adoption.demand.custom().iter().find(|(kind, _)| *kind == id);
            let asked = amount.map_or(0, |(_, amount)| (amount.units() + DEVICE - 1) / DEVICE);
            i64::from(mask.count_ones()) != asked || (0..64).any(|i| i >= count && mask >> i & 1 == 1)
        });
        // Naming a kind that is not requested is wrong even with an empty mask.
        let not_asked =
            adoption.units.iter().any(|(id, _)| !adoption.demand.custom().iter().any(|(kind, _)| kind == id));
        wrong_gpus || wrong_units || not_asked
    }

    fn adopted_as(&self, adoption: &Adoption) -> Option<AllocationId> {
        let name = adoption.external_id.as_ref()?;
        let mut same = self
            .allocations
            .iter()
            .filter(|(_, held)| held.node == adoption.node && held.external_id.as_ref() == Some(name));
        same.next().map(|(&id, _)| id)
    }

    pub(super) fn compare_set_resources(
        &mut self,
        id: NodeId,
        totals: &[(ResourceKind, Amount)],
        outcome: &Outcome,
    ) -> Result<(), String> {
        let spec = self.nodes.iter().find(|node| node.registration.id == id);
        let spec = spec.map(|node| node.registration.spec.clone());
        let known = spec.is_some_and(|spec| self.update(id, &with_totals(spec, totals)));
        let done = matches!(outcome, Outcome::Node(Ok(NodeChange::Updated(n))) if *n == id);
        compare_node_outcome(id, known, outcome, done)
    }

    pub(super) fn compare_adopt(&mut self, adoption: &Adoption, outcome: &Outcome) -> Result<(), String> {
        let Some(at) = self.nodes.iter().position(|node| node.registration.id == adoption.node) else {
            return match outcome {
                Outcome::Adopt(Err(AdoptionRejection::UnknownNode(UnknownNode(id))))
                    if *id == adoption.node =>
                {
                    Ok(())
                }
                other => differs(other, "an unknown node"),
            };
        };
        if let Some(id) = self.adopted_as(adoption) {
            let held = &self.allocations[&id];
            let same = held.demand == adoption.demand;
            if same && self.nodes[at].reservation.is_some() {
                self.settled_growth = None;
            }
            return match outcome {
                Outcome::Adopt(Err(AdoptionRejection::ExternalIdTaken(_, allocation)))
                    if !same && *allocation == id =>
                {
                    Ok(())
                }
                Outcome::Adopt(Ok(placement))
                    if same
                        && (placement.allocation, placement.gpus, &placement.units)
                            == (id, held.gpus, &held.units) =>
                {
                    Ok(())
                }
                other => differs(other, held),
            };
        }
        if self.nodes[at].allocations >= self.nodes[at].allocations_max {
            return match outcome {
                Outcome::Adopt(Err(AdoptionRejection::TooManyAllocations(TooManyAllocations(id))))
                    if *id == adoption.node =>
                {
                    Ok(())
                }
                other => differs(other, "a full node"),
            };
        }
        if self.wrong_instances(at, adoption) {
            return match outcome {
                Outcome::Adopt(Err(
                    AdoptionRejection::InstanceCount { .. } | AdoptionRejection::NoSuchInstance { .. },
                )) => Ok(()),
                other => differs(other, "wrong instances"),
            };
        }
        let Outcome::Adopt(Ok(placement)) = outcome else {
            return differs(outcome, "an adoption");
        };
        self.compare_chosen(at, adoption, placement)?;
        let Placement { node, allocation, gpus, units, alternative: _ } = (**placement).clone();
        let there = &mut self.nodes[at];
        there.change_use(&adoption.demand, gpus, units.as_ref(), 1);
        let right = self.ids.next(self.incarnation, there.registration.partition, adoption.tenant);
        if self.nodes[at].reservation.is_some() {
            self.settled_growth = None;
        }
        let demand = adoption.demand.clone();
        let external_id = adoption.external_id.clone();
        self.allocations.insert(right, Held { node, demand, gpus, units, external_id });
        if (allocation, node) == (right, adoption.node) { Ok(()) } else { differs(allocation, right) }
    }

    /// Checks that named instances are the ones held, and that unnamed ones are a permitted choice.
    fn compare_chosen(&self, at: usize, adoption: &Adoption, placement: &Placement) -> Result<(), String> {
        let mut chosen = adoption.demand.clone();
        let mut chosen_gpus = placement.gpus;
        if let Some(mask) = adoption.gpus {
            let gpus = placement.gpus;
            if gpus.mask != mask || gpus.units() != chosen.gpu.amount().units() {
                return differs(gpus, mask);
            }
            (chosen.gpu, chosen_gpus) = (GpuRequest::None, GpuAssignment::NONE);
        }
        let named = |id| adoption.units.iter().find(|&&(kind, _)| kind == id).map(|&(_, mask)| mask);
        let given = placement.units.as_ref().map_or(&[][..], |units| units.as_slice());
        if given.iter().any(|&(id, unit)| named(id).is_some_and(|mask| mask != unit.mask)) {
            return differs(given, &adoption.units);
        }
        let left = chosen.custom().iter().copied().filter(|&(id, _)| named(id).is_none()).collect();
        chosen.custom = Demand::canonical_custom(left).expect("each kind once");
        let left: Vec<_> = given.iter().copied().filter(|&(id, _)| named(id).is_none()).collect();
        let left = (!left.is_empty()).then(|| Arc::new(left));
        let there = &self.nodes[at];
        if there.may_adopt(&chosen, chosen_gpus, left.as_ref()) {
            Ok(())
        } else {
            Err(format!("adopted {placement:?} on {there:?}"))
        }
    }

    pub(super) fn compare_books(&self, id: NodeId, outcome: &Outcome) -> Result<(), String> {
        let node = self.nodes.iter().find(|node| node.registration.id == id);
        let (node, books) = match (node, outcome) {
            (None, Outcome::Books(Err(UnknownNode(unknown)))) if *unknown == id => return Ok(()),
            (Some(node), Outcome::Books(Ok(books))) => (node, books),
            (node, other) => return differs(other, node),
        };
        let NodeBooks { resources, instances, .. } = &**books;
        let known = [ResourceKind::Cpu, ResourceKind::Memory, ResourceKind::Gpu];
        let mut used: Vec<(ResourceKind, i64)> = known.into_iter().zip(node.used()).collect();
        used.extend(node.custom_used().map(|(id, used)| (ResourceKind::Custom(id), used)));
        used.retain(|(_, used)| *used > 0);
        let listed: Vec<(ResourceKind, i64)> = resources
            .iter()
            .map(|(kind, book)| (*kind, book.allocated))
            .filter(|(_, allocated)| *allocated > 0)
            .collect();
        let of_instances: i64 = instances
            .iter()
            .flat_map(|(_, list)| list)
            .map(|i| {
                i64::from(i.available) + i64::from(i.allocated) + i64::from(i.unhealthy)
                    - i64::from(i.shortfall)
            })
            .sum();
        // Only unhealthy instances hide capacity, and each of them gives a reason.
        let gpus = instances.iter().find(|(kind, _)| *kind == ResourceKind::Gpu);
        let gpus = gpus.map_or(&[][..], |(_, gpus)| gpus);
        let reasons_right = gpus.iter().all(|gpu| gpu.reason == node.unhealthy_reason(gpu.instance))
            && instances.iter().flat_map(|(_, list)| list).all(|i| i.unhealthy == 0 || i.reason.is_some());
        let with_instances: i64 = resources
            .iter()
            .filter(|(kind, _)| instances.iter().any(|(listed, _)| listed == kind))
            .map(|(_, book)| book.total)
            .sum();
        let balanced = resources.iter().all(|(_, book)| book.balances());
        let hidden: i64 = resources.iter().map(|(_, book)| book.unhealthy).sum();
        let hidden_right = hidden == node.gpu_hidden();
        // Reserved capacity is the difference between what others see and what is available.
        let seen = node.as_seen_by(None);
        let mut kept_right = books.reservation.is_some() == node.reservation.is_some();
        let mut kept_of_instances = 0;
        for (kind, book) in resources {
            let kept = match kind {
                ResourceKind::Cpu => node.cpu_free() - seen.cpu_free(),
                ResourceKind::Memory => node.memory_free() - seen.memory_free(),
                ResourceKind::Gpu => seen.used()[2] - node.used()[2],
                ResourceKind::Custom(id) => {
                    let used = |node: &LinearNode| node.custom_used.get(id).copied().unwrap_or(0);
                    used(&seen) - used(node)
                }
            };
            kept_right &= book.reserved == kept;
            let has_instances = instances.iter().any(|(listed, _)| listed == kind);
            kept_of_instances += if has_instances { kept } else { 0 };
        }
        let of_instances = of_instances + kept_of_instances;
        if used == listed
            && of_instances == with_instances
            && hidden_right
            && balanced
            && reasons_right
            && kept_right
        {
            Ok(())
        } else {
            differs(books, node)
        }
    }
}
