//! The wire format byte for byte, as in `golden_frames.rs`: adoptions, single resources, books and waits.
//! They also cover the reply fields for named units and for counts of waiting requests.

use wharf_net::protocol::*;

use crate::harness::golden::{check, check_reply, check_request};

/// The tests that check golden bytes.
pub(crate) const TESTS: &[fn()] = &[
    adoption_is_written_as_it_always_was,
    single_resources_are_written_as_they_always_were,
    books_are_written_as_they_always_were,
    the_end_of_a_wait_is_written_as_it_always_was,
    what_waits_is_written_as_it_always_was,
    units_and_unhealthy_instances_are_written_as_they_always_were,
];

fn amount(name: &str, amount: i64) -> NamedAmount {
    NamedAmount { name: name.to_owned(), amount }
}

fn npus() -> NamedUnits {
    NamedUnits { name: "npu".to_owned(), instances: vec![0, 2], part: 10_000 }
}

#[test]
fn adoption_is_written_as_it_always_was() {
    let request = AdoptRequest {
        node: "n".to_owned(),
        demand: DemandBody { cpu: 10_000, memory: 20_000, gpu: 5000, custom: vec![amount("npu", 20_000)] },
        gpus: vec![3],
        units: vec![npus()],
        external_id: "pod".to_owned(),
        tenant: 4,
    };
    check_request::<kinds::Adopt>(
        &request,
        "016efb204efb409cfb102701036e7075fb409c010301036e7075020002fb102703706f6404",
    );
    let placed = PlacedBody {
        node: 7,
        node_name: "n".to_owned(),
        gpus: vec![3],
        gpu_part: 5000,
        ..PlacedBody::default()
    };
    let placed = PlacedBody { units: vec![npus()], ..placed };
    check_reply::<kinds::Adopt>(
        &PlaceReply { placed: Some(placed), ..PlaceReply::default() },
        "000107016e000000000103fb881301036e7075020002fb1027000000",
    );
}

#[test]
fn single_resources_are_written_as_they_always_were() {
    check_request::<kinds::SetResources>(
        &SetResourcesRequest { node: "n".to_owned(), resources: vec![amount("cpu", 640_000)] },
        "016e0103637075fc00881300",
    );
    let replies = vec![NodeReply { node: 300, ..NodeReply::default() }];
    check_reply::<kinds::SetResources>(&NodesReply { replies }, "0100fb2c010000");
}

#[test]
fn books_are_written_as_they_always_were() {
    check_request::<kinds::NodeBooks>(&NodeBooksRequest { node: "n".to_owned() }, "016e");
    let book = BookBody {
        name: "gpu".to_owned(),
        total: 1,
        available: 2,
        allocated: 3,
        held: 4,
        releasing: 5,
        pipelined: 6,
        reserved: 7,
        unhealthy: 8,
        shortfall: 9,
        load: 10,
    };
    let instance = InstanceBody {
        name: "gpu".to_owned(),
        instance: 1,
        available: 2,
        allocated: 3,
        shortfall: 4,
        ..InstanceBody::default()
    };
    check_reply::<kinds::NodeBooks>(
        &NodeBooksReply {
            node: 7,
            allocations: 2,
            resources: vec![book],
            instances: vec![instance],
            reservation: None,
        },
        "07020103677075020406080a0c0e101214010367707501020304000000",
    );
}

#[test]
fn the_end_of_a_wait_is_written_as_it_always_was() {
    check_request::<kinds::CancelWait>(&CancelRequest { sequence: 300 }, "fb2c01");
    check_reply::<kinds::CancelWait>(&CancelReply { waited: true }, "01");
}

#[test]
fn what_waits_is_written_as_it_always_was() {
    check(&Waiting { feasible: 3, infeasible: 300 }, "03fb2c01");
}

#[test]
fn units_and_unhealthy_instances_are_written_as_they_always_were() {
    check(
        &PlacedBody { units: vec![npus()], ..PlacedBody::default() },
        "000000000000000001036e7075020002fb1027",
    );
    let sick = InstanceBody { unhealthy: 300, reason: "Xid 79".to_owned(), ..InstanceBody::default() };
    check(&sick, "0000000000fb2c0106586964203739");
}
