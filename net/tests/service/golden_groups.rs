//! The wire format byte for byte, as in `golden_frames.rs`: groups, placements into their bundles, and
//! statements.

use wharf_net::codec::encode_body;
use wharf_net::protocol::*;

use crate::harness::golden::{check_reply, check_request, hex};

/// The tests that check golden bytes.
pub(crate) const TESTS: &[fn()] = &[
    requests_for_groups_are_written_as_they_always_were,
    replies_about_groups_are_written_as_they_always_were,
    statements_are_written_as_they_always_were,
];

const GROUP: WireGroup = WireGroup { incarnation: 1, number: 300, tenant: 4 };

fn placed() -> PlacedBody {
    PlacedBody {
        node: 7,
        node_name: "n".to_owned(),
        allocation: WireAllocation { incarnation: 1, partition: 2, sequence: 3, tenant: 4 },
        gpus: vec![0, 2],
        gpu_part: 10_000,
        units: Vec::new(),
    }
}

#[test]
fn requests_for_groups_are_written_as_they_always_were() {
    let mut request = Vec::new();
    encode_body(&PlaceRequest::default(), &mut request);
    let template = BundleTemplate { count: 8, ..BundleTemplate::default() };
    let create = CreateGroupRequest {
        bundles: vec![template.clone()],
        strategy: STRATEGY_STRICT_SPREAD,
        topology: Some(TopologyBody { key: "zone".to_owned(), rule: TOPOLOGY_SPREAD, max_skew: 2 }),
        min_members: 6,
        mode: MODE_WAIT_UNTIL,
        deadline: 9,
        priority: -1,
        conflict_detection: CONFLICT_DETECTION_COARSE,
    };
    // One template and its count: equal bundles take no more bytes.
    check_request::<kinds::CreateGroup>(
        &create,
        &format!("01{}0803{}", hex(&request), "01047a6f6e6503020601090101"),
    );
    check_request::<kinds::GrowGroup>(
        &GrowGroupRequest { group: GROUP, bundles: vec![template], mode: MODE_WAIT_UNTIL, deadline: 300 },
        &format!("01fb2c010401{}0801fb2c01", hex(&request)),
    );
    check_request::<kinds::ShrinkGroup>(
        &ShrinkGroupRequest { group: GROUP, bundles: vec![0, 5] },
        "01fb2c0104020005",
    );
    check_request::<kinds::RemoveGroup>(&RemoveGroupRequest { group: GROUP }, "01fb2c0104");
    check_request::<kinds::GroupStatus>(&GroupStatusRequest { group: GROUP }, "01fb2c0104");
    check_request::<kinds::ListGroups>(
        &ListGroupsRequest { after: Some(GROUP), limit: 10 },
        "0101fb2c01040a",
    );
    check_request::<kinds::ListGroups>(&ListGroupsRequest::default(), "0000");
    let into = PlaceIntoRequest {
        group: Some(GROUP),
        bundle: Some(4),
        demand: DemandBody {
            cpu: 10_000,
            memory: 20_000,
            gpu: 5000,
            custom: vec![NamedAmount { name: "npu".to_owned(), amount: 20_000 }],
        },
        ..PlaceIntoRequest::default()
    };
    check_request::<kinds::PlaceInto>(&into, "000101fb2c01040104fb204efb409cfb102701036e7075fb409c");
    let allocation = Some(placed().allocation);
    check_request::<kinds::PlaceInto>(
        &PlaceIntoRequest { allocation, ..PlaceIntoRequest::default() },
        "0101020304000000000000",
    );
    check_reply::<kinds::PlaceInto>(
        &PlaceReply { placed: Some(placed()), ..PlaceReply::default() },
        "000107016e01020304020002fb102700000000",
    );
}

#[test]
fn replies_about_groups_are_written_as_they_always_were() {
    let bundle = BundleBody {
        index: 4,
        cpu: 10_000,
        memory: 20_000,
        gpu: 20_000,
        placed: Some(placed()),
        releasing_until: 300,
    };
    let group = GroupBody {
        id: GROUP,
        state: GROUP_PLACED,
        strategy: STRATEGY_SPREAD,
        topology: None,
        min_members: 1,
        priority: 2,
        deadline: 9,
        attempts: 3,
        bundles: vec![bundle, BundleBody::default()],
    };
    let reply = GroupReply { group: Some(group), ..GroupReply::default() };
    let written =
        "000101fb2c01040301000104090302".to_owned() + "04fb204efb409cfb409c0107016e01020304020002fb1027";
    let written = written + "00fb2c01" + "000000000000" + "0000";
    check_reply::<kinds::CreateGroup>(&reply, &written);
    check_reply::<kinds::GroupStatus>(&reply, &written);
    let refusal = GroupRefusalBody {
        cause: Reason::NoNodeForBundle.into(),
        attempts: 1,
        bundle: Some(3),
        bundles: 2,
        nodes: 5,
        resource: "cpu".to_owned(),
        refusal: Some(RefusalBody { nodes: 4, examined: 4, checks: Vec::new() }),
        conflicts: vec![ConflictBody::default()],
        message: "m".to_owned(),
    };
    let reply =
        GroupReply { reason: Reason::NoFitNow.into(), refusal: Some(refusal), ..GroupReply::default() };
    check_reply::<kinds::GrowGroup>(
        &reply,
        "010001a501010302050363707501040400010000000000000000000000000000000000016d00",
    );
    let fault = Some(Fault::of_field(Reason::UnknownGroup, "group", "m"));
    check_reply::<kinds::ShrinkGroup>(
        &GroupReply { reason: Reason::UnknownGroup.into(), fault: fault.clone(), ..GroupReply::default() },
        "a1000001a10567726f7570016d00",
    );
    check_reply::<kinds::RemoveGroup>(
        &RemoveGroupReply { bundles_ended: 8, ..RemoveGroupReply::default() },
        "000800",
    );
    let removed =
        RemoveGroupReply { reason: Reason::UnknownGroup.into(), fault, ..RemoveGroupReply::default() };
    check_reply::<kinds::RemoveGroup>(&removed, "a10001a10567726f7570016d00");
    let summary = GroupSummary {
        id: GROUP,
        state: GROUP_WAITING,
        strategy: STRATEGY_PACK,
        bundles: 8,
        placed: 7,
        min_members: 6,
        priority: -2,
    };
    check_reply::<kinds::ListGroups>(
        &ListGroupsReply { groups: vec![summary], more: true },
        "0101fb2c010401000807060301",
    );
}

#[test]
fn statements_are_written_as_they_always_were() {
    let allocate = OperationBody {
        operation: OPERATION_ALLOCATE,
        node: 7,
        expected_version: Some(3),
        demand: DemandBody {
            cpu: 10_000,
            memory: 20_000,
            gpu: 10_000,
            custom: vec![NamedAmount { name: "npu".to_owned(), amount: 20_000 }],
        },
        gpus: vec![2],
        owner: 9,
        ..OperationBody::default()
    };
    let allocation = Some(placed().allocation);
    let evict =
        OperationBody { operation: OPERATION_EVICT, allocation, grace: 5, ..OperationBody::default() };
    let operations = vec![allocate, evict];
    let request = StatementRequest {
        operations,
        conflict_detection: CONFLICT_DETECTION_COARSE,
        mode: COMMIT_INCREMENTAL,
    };
    check_request::<kinds::SubmitStatement>(
        &request,
        "0201070103fb204efb409cfb204e01036e7075fb409c010209000000030000000000000000010102030405000101",
    );
    let conflict = ConflictBody {
        operation: 1,
        reason: Reason::Insufficient.into(),
        node: 7,
        node_name: "n".to_owned(),
        version: Some(4),
        expected_version: Some(3),
        resource: "cpu".to_owned(),
        asked: 20_000,
        available: 10_000,
        instance: Some(2),
        owner: 9,
        allocation,
        statement: Some(WireStatement { incarnation: 1, planner: 2, number: 3 }),
        other: Some(0),
        group: Some(GROUP),
        bundle: 4,
        message: "m".to_owned(),
    };
    let operations = vec![
        OperationReply { placed: Some(placed()), allocation, ..OperationReply::default() },
        OperationReply { allocation, node: 7, until: 8, ..OperationReply::default() },
        OperationReply { reason: conflict.reason, conflict: Some(conflict), ..OperationReply::default() },
    ];
    let statement = Some(WireStatement { incarnation: 1, planner: 2, number: 300 });
    let reply = StatementReply { reason: Reason::Conflicted.into(), statement, operations, fault: None };
    let operations =
        "000107016e01020304020002fb102700010102030400000000000101020304070800990000000001".to_owned() + "01";
    let facts = "9907016e0104010303637075fb409cfb204e01020901010203040101020301000101fb2c010404016d";
    check_reply::<kinds::SubmitStatement>(&reply, &format!("aa010102fb2c0103{operations}{facts}00"));
}

#[test]
fn numbers_of_groups_and_statements_never_change_their_meaning() {
    let strategies = [STRATEGY_PACK, STRATEGY_SPREAD, STRATEGY_STRICT_PACK, STRATEGY_STRICT_SPREAD];
    assert_eq!(strategies, [0, 1, 2, 3]);
    assert_eq!([TOPOLOGY_PACK, TOPOLOGY_STRICT_PACK, TOPOLOGY_SPREAD], [1, 2, 3]);
    let states = [GROUP_WAITING, GROUP_COMMITTING, GROUP_PLACED, GROUP_DEGRADED, GROUP_NOT_SHOWN];
    assert_eq!(states, [1, 2, 3, 4, 5]);
    assert_eq!([OPERATION_ALLOCATE, OPERATION_PIPELINE, OPERATION_EVICT], [1, 2, 3]);
    assert_eq!([CONFLICT_DETECTION_FINE, CONFLICT_DETECTION_COARSE], [0, 1]);
    assert_eq!([COMMIT_ALL_OR_NOTHING, COMMIT_INCREMENTAL], [0, 1]);
    assert_eq!((GROUPS_PER_MESSAGE_MAX, OPERATIONS_PER_MESSAGE_MAX), (1024, 1024));
}
