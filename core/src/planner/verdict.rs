//! Why a group finds no place, and whether it ever could.
//!
//! *Infeasible* is said only where it is proved, by what every placement would need: a bundle that
//! no node could hold, a sum that no node or not even all nodes have, more bundles than nodes that
//! could hold the smallest. Where none of these is so the group may still be one that cannot be
//! placed; it is then called unplaceable now.

use super::Planner;
use super::group::Group;
use super::job::{GroupRefusal, GroupRefusalReason};
use super::spec::{Spreading, Strategy, TopologyRule};
use super::strategy::{NoPlace, Wanted};
use super::together::{Item, combined};
use crate::ids::GroupId;
use crate::request::PlacementRequest;
use crate::resource::{Demand, GpuRequest};
use crate::shard::{Refusal, ResourceKind};
use std::sync::Arc;

impl Planner {
    pub(super) fn refusal(&mut self, id: GroupId, no_place: &NoPlace) -> GroupRefusal {
        let group = &self.groups[&id];
        let attempts = group.attempts;
        let items = items_of(group);
        let all = group.spec.min_members as usize >= items.len();
        let strategy = group.spec.strategy;
        let infeasible = if all { self.proof(strategy, &items) } else { None };
        if let Some(reason) = infeasible {
            return GroupRefusal { infeasible: true, reason, attempts };
        }
        let failing = items.iter().find(|item| item.bundle == no_place.bundle);
        let failing = Arc::clone(&failing.expect("a bundle of the group found no place").request);
        let refusal = self.refusal_of(&failing);
        if !refusal.feasible && all {
            let reason = bundle_reason(no_place, refusal);
            return GroupRefusal { infeasible: true, reason, attempts };
        }
        let reason = self.shortage(&self.wanted(id), no_place, &failing, refusal);
        GroupRefusal { infeasible: false, reason, attempts }
    }

    /// What keeps a group from a place now.
    fn shortage(
        &mut self,
        wanted: &Wanted,
        no_place: &NoPlace,
        failing: &PlacementRequest,
        refusal: Refusal,
    ) -> GroupRefusalReason {
        let (bundle, placed, bundles) = (no_place.bundle, number(no_place.placed), number(wanted.least));
        match (&wanted.topology, &no_place.at) {
            (Some(TopologyRule { key, spreading }), at)
                if *spreading != (Spreading::Pack { strict: false }) =>
            {
                let key = Arc::clone(key);
                let Some((value, count)) = at.clone() else { return GroupRefusalReason::NoValue { key } };
                return match *spreading {
                    Spreading::Pack { .. } => {
                        GroupRefusalReason::Topology { key, value, placed, bundle, bundles }
                    }
                    Spreading::Spread { max_skew } => {
                        GroupRefusalReason::Skew { key, value, count, max_skew, bundle, placed, bundles }
                    }
                };
            }
            _ if wanted.strategy == Strategy::StrictPack => {
                let bundles = number(wanted.items.len() + wanted.standing.len());
                return GroupRefusalReason::OneNode { bundles };
            }
            _ => {}
        }
        let others = no_place.placed + wanted.standing.len();
        match number(self.replicas.count_with_room(failing, others)) {
            0 => bundle_reason(no_place, refusal),
            nodes => {
                let strategy = wanted.strategy.name();
                GroupRefusalReason::OwnBundles { bundle, placed, bundles, nodes, strategy }
            }
        }
    }

    /// What proves that the bundles can never be placed, if anything does.
    fn proof(&mut self, strategy: Strategy, items: &[Item]) -> Option<GroupRefusalReason> {
        let bundles = u32::try_from(items.len()).expect("GROUP_BUNDLES_MAX fits u32");
        if let Some(kind) = self.short_in_all(items) {
            return Some(GroupRefusalReason::Cluster(kind));
        }
        match strategy {
            Strategy::StrictPack if items.len() > 1 => {
                let fits = combined(items).is_some_and(|request| self.refusal_of(&request).feasible);
                (!fits).then_some(GroupRefusalReason::OneNode { bundles })
            }
            Strategy::StrictSpread => {
                let smallest = smallest(items);
                let mut nodes = 0;
                for copy in &self.replicas.copies {
                    nodes += copy.shard().count_could_fit(&smallest, items.len() - nodes.min(items.len()));
                }
                let nodes = u32::try_from(nodes).expect("counted no further than the bundles");
                (nodes < bundles).then_some(GroupRefusalReason::TooFewNodes { bundles, nodes })
            }
            _ => None,
        }
    }

    /// Why no shard has a node for `request`.
    fn refusal_of(&mut self, request: &PlacementRequest) -> Refusal {
        let mut merged = Refusal::default();
        for copy in &mut self.replicas.copies {
            merged.merge(&copy.refusal(request));
        }
        merged
    }

    /// A resource of which all nodes together have less than is asked.
    fn short_in_all(&self, items: &[Item]) -> Option<ResourceKind> {
        let mut asked = [0i128; 3];
        for item in items {
            let demand = &item.request.demand;
            asked[0] += i128::from(demand.cpu.units());
            asked[1] += i128::from(demand.memory.units());
            asked[2] += i128::from(demand.gpu.units());
        }
        let mut has = [0i128; 3];
        for copy in &self.replicas.copies {
            for (has, total) in has.iter_mut().zip(copy.shard().totals()) {
                *has += total;
            }
        }
        let kinds = [ResourceKind::Cpu, ResourceKind::Memory, ResourceKind::Gpu];
        kinds
            .into_iter()
            .zip(asked.into_iter().zip(has))
            .find_map(|(kind, (asked, has))| (asked > has).then_some(kind))
    }
}

fn items_of(group: &Group) -> Vec<Item> {
    let item =
        |bundle: &super::group::Bundle| Item { bundle: bundle.index, request: Arc::clone(&bundle.request) };
    group.bundles.iter().map(item).collect()
}

fn number(count: usize) -> u32 {
    u32::try_from(count).expect("GROUP_BUNDLES_MAX fits u32")
}

fn bundle_reason(no_place: &NoPlace, refusal: Refusal) -> GroupRefusalReason {
    let (bundle, placed) = (no_place.bundle, number(no_place.placed));
    GroupRefusalReason::Bundle { bundle, placed, refusal: Box::new(refusal) }
}

/// In each resource the least that any bundle asks.
fn smallest(items: &[Item]) -> Demand {
    let demands = || items.iter().map(|item| &item.request.demand);
    let cpu = demands().map(|demand| demand.cpu).min().expect("a group has bundles");
    let memory = demands().map(|demand| demand.memory).min().expect("a group has bundles");
    let gpu = demands().map(|demand| demand.gpu).min_by_key(|gpu| gpu.units()).unwrap_or(GpuRequest::None);
    Demand { cpu, memory, gpu, custom: None }
}
