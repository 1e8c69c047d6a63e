//! What events must lead to: the books of a durable state, converted without the code under test.

use std::collections::BTreeMap;
use std::fmt;

use wharf_core::resource::{Demand, GpuAssignment, GpuRequest, ResourceRegistry};
use wharf_core::state::{GroupBundleRecord, StoreState};
use wharf_net::client::{BookedAllocation, BookedNode, EventBooks};
use wharf_net::convert::{agent_body, node_body, strategy_number, unhealthy_bodies};
use wharf_net::protocol::{
    ClaimBody, DemandBody, EventGroup, EventGroupBundle, EventNode, EventReservation, Holding, NamedAmount,
    Pending, ReleasingBody,
};

fn demand_of(demand: &Demand, names: &[String]) -> DemandBody {
    let gpu = match demand.gpu {
        GpuRequest::None => 0,
        GpuRequest::Fraction(part) => i64::from(part),
        GpuRequest::Whole(count) => i64::from(count) * 10_000,
    };
    let custom = demand
        .custom()
        .iter()
        .map(|(id, amount)| NamedAmount { name: names[usize::from(id.0)].clone(), amount: amount.units() });
    DemandBody { cpu: demand.cpu.units(), memory: demand.memory.units(), gpu, custom: custom.collect() }
}

fn holding_of(demand: &Demand, gpus: GpuAssignment, names: &[String]) -> Holding {
    let instances = (0..16).filter(|instance| gpus.mask & (1 << instance) != 0);
    Holding {
        demand: demand_of(demand, names),
        gpus: instances.collect(),
        gpu_part: gpus.part,
        units: Vec::new(),
    }
}

/// Returns the books of a durable state.
pub(super) fn expected(state: &StoreState) -> EventBooks {
    let mut books = EventBooks::default();
    let names = &state.registrar.resources;
    let kinds = ResourceRegistry::with_names(names.iter().map(String::as_str), &[]).expect("few kinds");
    for partition in &state.partitions {
        for node in &partition.nodes {
            let id = node.registration.id;
            let reservation = partition.reservations.iter().find(|own| own.node == id);
            let on_node =
                |allocation| partition.allocations.iter().any(|own| own.id == allocation && own.node == id);
            let releasing = partition.releasing.iter().filter(|own| on_node(own.allocation));
            let claims = partition.claims.iter().filter(|own| own.node == id);
            let now = EventNode {
                ordinal: node.registration.ordinal.0,
                partition: partition.id.0,
                state: node.state.number(),
                body: node_body(&node.registration.spec, &kinds),
                agent: node.registration.agent.as_deref().map(agent_body),
                unhealthy: unhealthy_bodies(&node.unhealthy),
                reservation: reservation.map(|own| EventReservation {
                    owner: own.owner.number(),
                    until: own.until.map_or(0, |until| until.0),
                    left: DemandBody {
                        cpu: own.left.cpu.units(),
                        memory: own.left.memory.units(),
                        gpu: own.left.gpu.units(),
                        custom: Vec::new(),
                    },
                }),
                pending: Pending {
                    releasing: releasing
                        .map(|own| ReleasingBody { allocation: own.allocation.into(), until: own.until.0 })
                        .collect(),
                    claims: claims
                        .map(|own| ClaimBody {
                            allocation: own.id.into(),
                            holds: holding_of(&own.demand, own.gpus, names),
                        })
                        .collect(),
                    untold: 0,
                },
            };
            books.nodes.insert(id.0, BookedNode { version: node.version, now });
        }
        for own in &partition.allocations {
            let bundle = partition.bundles.iter().find(|bundle| bundle.allocation == own.id);
            let allocation = BookedAllocation {
                node: own.node.0,
                holds: holding_of(&own.demand, own.gpus, names),
                external_id: own.external_id.as_deref().unwrap_or_default().to_owned(),
                bundle: bundle.map(|own| (own.bundle.group.into(), own.bundle.index)),
            };
            books.allocations.insert(own.id.into(), allocation);
        }
        for own in &partition.inside {
            books.inside.insert(own.id.into(), (own.bundle.into(), holding_of(&own.demand, own.gpus, names)));
        }
    }
    for group in &state.groups {
        let bundle = |own: &GroupBundleRecord| EventGroupBundle {
            index: own.index,
            demand: demand_of(&own.request.demand, names),
            node: own.place.map_or(0, |place| place.node.0),
            allocation: own.place.map(|place| place.allocation.into()),
            lost: own.lost.map(Into::into),
        };
        let now = EventGroup {
            strategy: strategy_number(group.spec.strategy),
            min_members: group.spec.min_members,
            priority: group.spec.priority,
            bundles: group.bundles.iter().map(bundle).collect(),
            is_cut: false,
        };
        books.groups.insert(group.id.into(), now);
    }
    books
}

/// Compares part by part, so that a difference can be read.
#[track_caller]
pub(super) fn assert_books(found: &EventBooks, expected: &EventBooks, when: &str) {
    assert_same(&found.allocations, &expected.allocations, when);
    assert_same(&found.nodes, &expected.nodes, when);
    assert_same(&found.inside, &expected.inside, when);
    assert_same(&found.groups, &expected.groups, when);
}

/// Names the first entry that differs.
#[track_caller]
fn assert_same<K: Ord + Copy + fmt::Debug, V: PartialEq + fmt::Debug>(
    found: &BTreeMap<K, V>,
    expected: &BTreeMap<K, V>,
    when: &str,
) {
    for key in found.keys().chain(expected.keys()) {
        assert_eq!(found.get(key), expected.get(key), "{key:?} {when}");
    }
}
