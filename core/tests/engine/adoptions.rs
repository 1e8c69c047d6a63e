//! Allocations made outside hold the devices and units that are named with them, or are not recorded at all.

use crate::by_hand::{lone_node, lone_shard, node_spec};
use crate::statement_bed::Bed;
use wharf_core::ids::{NodeId, ResourceId, TenantId};
use wharf_core::node::NodeSpec;
use wharf_core::request::{Placement, PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest, ResourceKind, UnitAssignment};
use wharf_core::shard::{Adoption, AdoptionRejection, Command, Outcome};

fn npu() -> ResourceId {
    ResourceId::new(0, true)
}

/// A node of four devices and three units.
fn bed() -> Bed {
    let custom = Some(vec![(npu(), Amount::whole(3))].into());
    let mut bed = Bed { shard: lone_shard(), now: 0 };
    bed.step(lone_node(1, NodeSpec { custom, ..node_spec("n", 8, 4) }, false));
    bed
}

/// So many whole devices and units.
fn whole(gpus: u8, npus: u32) -> Demand {
    let custom = Demand::canonical_custom(vec![(npu(), Amount::whole(npus))]).expect("one kind");
    Demand { gpu: GpuRequest::Whole(gpus), custom, ..Demand::default() }
}

fn adopt(
    bed: &mut Bed,
    demand: Demand,
    gpus: Option<u16>,
    units: &[(ResourceId, u64)],
) -> Result<Placement, AdoptionRejection> {
    let units = units.to_vec();
    let adoption =
        Adoption { node: NodeId(1), demand, gpus, units, external_id: None, tenant: TenantId::OPERATOR };
    match bed.step(Command::Adopt(Box::new(adoption))) {
        Outcome::Adopt(adopted) => adopted.map(|placement| *placement),
        other => panic!("adopted or rejected: {other:?}"),
    }
}

fn place(bed: &mut Bed, demand: Demand) -> Placement {
    match bed.step(Command::Place(PlacementRequest::new(demand, Policy::BestFit))) {
        Outcome::Place(Ok(placement)) => placement,
        other => panic!("there is room: {other:?}"),
    }
}

fn units_of(placement: &Placement) -> Vec<(ResourceId, UnitAssignment)> {
    placement.units.as_deref().cloned().unwrap_or_default()
}

#[test]
fn what_is_adopted_holds_the_devices_and_units_that_are_named() {
    let mut bed = bed();
    let adopted = adopt(&mut bed, whole(2, 2), Some(0b1001), &[(npu(), 0b101)]).expect("all are there");
    assert_eq!(adopted.gpus.mask, 0b1001);
    assert_eq!(units_of(&adopted), [(npu(), UnitAssignment { mask: 0b101, part: 10_000 })]);
    // The others are free still.
    let placed = place(&mut bed, whole(2, 1));
    assert_eq!(placed.gpus.mask, 0b0110);
    assert_eq!(units_of(&placed), [(npu(), UnitAssignment { mask: 0b010, part: 10_000 })]);
    // The same ones again: above capacity, as it is outside.
    let again = adopt(&mut bed, whole(2, 2), Some(0b1001), &[(npu(), 0b101)]).expect("it is recorded");
    assert_eq!((again.gpus, units_of(&again)), (adopted.gpus, units_of(&adopted)));
}

#[test]
fn names_of_devices_and_units_that_cannot_be_are_rejected_and_change_nothing() {
    let mut bed = bed();
    let node = NodeId(1);
    let gpu = ResourceKind::Gpu;
    let custom = ResourceKind::Custom(npu());
    let other = ResourceId::new(1, true);
    let count = |kind, given, asked| AdoptionRejection::InstanceCount { kind, given, asked };
    let none = |kind, instance, count| AdoptionRejection::NoSuchInstance { node, kind, instance, count };
    for (gpus, units, expected) in [
        (Some(0b0001), None, count(gpu, 1, 2)),
        (Some(0b0111), None, count(gpu, 3, 2)),
        (Some(0), None, count(gpu, 0, 2)),
        (Some(0b1_0001), None, none(gpu, 4, 4)),
        (Some(1 << 15 | 1), None, none(gpu, 15, 4)),
        (None, Some((npu(), 0b010)), count(custom, 1, 2)),
        (None, Some((npu(), 0b111)), count(custom, 3, 2)),
        (None, Some((npu(), 0b1001)), none(custom, 3, 3)),
        (None, Some((npu(), 1 << 63 | 1)), none(custom, 63, 3)),
        (None, Some((other, 0b1)), count(ResourceKind::Custom(other), 1, 0)),
    ] {
        let units: Vec<_> = units.into_iter().collect();
        let rejection = adopt(&mut bed, whole(2, 2), gpus, &units).expect_err("it cannot be");
        assert_eq!(rejection, expected, "{gpus:?} and {units:?}");
    }
    // Nothing is named where nothing is taken.
    let nothing = adopt(&mut bed, Demand::default(), Some(0), &[]).expect("it takes nothing");
    assert_eq!((nothing.gpus.mask, nothing.units.is_none()), (0, true));
    let all = place(&mut bed, whole(4, 3));
    assert_eq!(all.gpus.mask, 0b1111, "all are free still");
}
