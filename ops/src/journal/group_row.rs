//! The row of a placement group in a checkpoint.

use std::sync::Arc;

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use wharf_core::group::{BundlePlace, GroupSpec};
use wharf_core::ids::TenantId;
use wharf_core::registrar::Catalog;
use wharf_core::request::PlacementRequest;
use wharf_core::resource::ResourceRegistry;
use wharf_core::state::{GroupBundleRecord, GroupRecord};
use wharf_core::statement::ConflictDetection;
use wharf_net::convert::{
    PlacementDefaults, placement_request, strategy, strategy_number, topology, wire_request, wire_topology,
};
use wharf_net::protocol::{PlaceRequest, TopologyBody, WireAllocation, WireGroup};

use super::mirror::{Stored, rows};
use super::row::GpusRow;

rows! {
    struct PlaceRow of BundlePlace { node: u64, allocation: WireAllocation, gpus: GpusRow }
}

#[derive(Serialize, Deserialize)]
struct BundleRow {
    index: u32,
    /// The index of the request among those of the group.
    request: u32,
    place: Option<PlaceRow>,
    lost: Option<WireAllocation>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct GroupRow {
    id: WireGroup,
    /// The distinct requests. True if a request has affinity to its candidate. Each names the queue of the group, if it has
    /// one.
    requests: Vec<(PlaceRequest, bool)>,
    /// The requests that the group was created with, by index into `requests`.
    asked: Vec<u32>,
    strategy: u8,
    topology: Option<TopologyBody>,
    min_members: u32,
    priority: i32,
    is_coarse: bool,
    bundles: Vec<BundleRow>,
    next_index: u32,
}

/// Reads a request of a tenant's group. A node to which it has affinity may be gone, so it is stored as a candidate.
fn request(
    row: (PlaceRequest, bool),
    tenant: TenantId,
    catalog: &Catalog,
) -> anyhow::Result<PlacementRequest> {
    let (wire, affinity) = row;
    let defaults = PlacementDefaults { orders: u8::MAX, tenant, ..PlacementDefaults::default() };
    let request = placement_request(wire, catalog, defaults);
    let mut request = request.map_err(|reply| anyhow!(reply.fault.unwrap_or_default()))?;
    if affinity {
        Arc::make_mut(request.preferences.get_or_insert_default()).affinity = true;
    }
    Ok(request)
}

/// Returns the index of a request in `known`, adding it if absent.
fn place_of<'a>(known: &mut Vec<&'a Arc<PlacementRequest>>, request: &'a Arc<PlacementRequest>) -> u32 {
    let there = known.iter().rposition(|there| Arc::ptr_eq(there, request) || **there == *request);
    let at = there.unwrap_or_else(|| {
        known.push(request);
        known.len() - 1
    });
    u32::try_from(at).expect("fewer requests than bundles")
}

impl Stored<GroupRecord> for GroupRow {
    fn of(group: &GroupRecord, kinds: &ResourceRegistry) -> Self {
        let mut known = Vec::new();
        let asked = group.spec.bundles.iter().map(|request| place_of(&mut known, request)).collect();
        let bundles = group.bundles.iter().map(|bundle| BundleRow {
            index: bundle.index,
            request: place_of(&mut known, &bundle.request),
            place: Stored::of(&bundle.place, kinds),
            lost: bundle.lost.map(Into::into),
        });
        let bundles = bundles.collect();
        let queue = group.spec.queue.as_deref().unwrap_or_default();
        let request = |request: &Arc<PlacementRequest>| {
            let (wire, affinity) = wire_request(request, kinds);
            (PlaceRequest { queue: queue.to_owned(), ..wire }, affinity)
        };
        Self {
            id: group.id.into(),
            requests: known.into_iter().map(request).collect(),
            asked,
            strategy: strategy_number(group.spec.strategy),
            topology: group.spec.topology.as_ref().map(wire_topology),
            min_members: group.spec.min_members,
            priority: group.spec.priority,
            is_coarse: group.spec.conflict_detection == ConflictDetection::Coarse,
            bundles,
            next_index: group.next_index,
        }
    }

    fn read(mut self, catalog: &mut Catalog) -> anyhow::Result<GroupRecord> {
        let tenant = TenantId(self.id.tenant);
        let queues = self.requests.iter_mut().map(|(request, _)| std::mem::take(&mut request.queue));
        let queue = queues.last().filter(|queue| !queue.is_empty()).map(Into::into);
        let requests = self.requests.into_iter().map(|row| Ok(Arc::new(request(row, tenant, catalog)?)));
        let requests = requests.collect::<anyhow::Result<Vec<_>>>()?;
        let of_place = |at: u32| requests.get(at as usize).cloned().context("a request is missing");
        let asked = self.asked.into_iter().map(of_place).collect::<anyhow::Result<_>>()?;
        let spec = GroupSpec {
            topology: self.topology.map(topology).transpose()?,
            min_members: self.min_members,
            priority: self.priority,
            conflict_detection: if self.is_coarse {
                ConflictDetection::Coarse
            } else {
                ConflictDetection::Fine
            },
            queue,
            ..GroupSpec::new(asked, strategy(self.strategy)?)
        };
        let bundle = |row: BundleRow| {
            Ok(GroupBundleRecord {
                index: row.index,
                request: of_place(row.request)?,
                place: row.place.read(catalog)?,
                lost: row.lost.map(Into::into),
            })
        };
        let bundles = self.bundles.into_iter().map(bundle).collect::<anyhow::Result<_>>()?;
        Ok(GroupRecord { id: self.id.into(), spec: Arc::new(spec), bundles, next_index: self.next_index })
    }
}

#[cfg(test)]
mod tests {
    use wharf_core::group::Strategy;
    use wharf_core::ids::{GroupId, Incarnation};
    use wharf_core::request::Policy;
    use wharf_core::resource::{Amount, Demand};

    use super::*;

    #[test]
    fn the_queue_of_a_group_is_kept() {
        let cores = |cpu| {
            let demand = Demand { cpu: Amount::whole(cpu), ..Demand::default() };
            Arc::new(PlacementRequest::new(demand, Policy::BestFit))
        };
        for queue in [None, Some("research".into())] {
            let spec = GroupSpec { queue, ..GroupSpec::new(vec![cores(1), cores(2)], Strategy::Spread) };
            let id =
                GroupId { tenant: TenantId(3), incarnation: Incarnation(2), number: GroupId::IN_QUEUE | 7 };
            let bundle = GroupBundleRecord { index: 4, request: cores(3), place: None, lost: None };
            // Requests of a tenant's group are its own.
            let group = GroupRecord { id, spec: Arc::new(spec), bundles: vec![bundle], next_index: 5 };
            let mut catalog = Catalog::default();
            let row = GroupRow::of(&group, &catalog.resources);
            let read = row.read(&mut catalog).expect("it was written");
            assert_eq!((&read.spec.queue, read.id, read.next_index), (&group.spec.queue, id, 5));
            assert_eq!(read.bundles[0].request.demand, group.bundles[0].request.demand);
        }
    }
}
