//! The wire format byte for byte: whole frames of the first kinds, as request and as reply, and a fault. The files next to
//! it have the bodies of the other kinds, and `golden_extensions.rs` has frames with extensions. A change that breaks one of
//! these tests breaks every existing client. `golden_kinds.rs` checks that no kind is left out.

use serde::Serialize;
use serde::de::DeserializeOwned;
use wharf_net::codec::{FLAG_ERROR, FLAG_REPLY};
use wharf_net::protocol::*;

use crate::harness::golden::{self, check_frame};

/// The tests that check golden bytes.
pub(crate) const TESTS: &[fn()] = &[
    hello_is_written_as_it_always_was,
    place_is_written_as_it_always_was,
    place_batch_is_written_as_it_always_was,
    release_is_written_as_it_always_was,
    node_messages_are_written_as_they_always_were,
    status_is_written_as_it_always_was,
    agents_are_written_as_they_always_were,
    exact_acknowledgements_are_written_as_they_always_were,
    a_fault_is_written_as_it_always_was,
];

/// Checks the bytes of a frame without extensions: header, then body.
#[track_caller]
fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
    kind: Kind,
    flags: u8,
    body: &T,
    expected: &str,
) {
    check_frame(kind, flags, &[], body, expected);
}

fn name(text: &str) -> Name {
    Name(text.to_owned())
}

fn pair(key: &str, value: &str) -> Pair {
    Pair { key: key.to_owned(), value: value.to_owned() }
}

fn amount(name: &str, amount: i64) -> NamedAmount {
    NamedAmount { name: name.to_owned(), amount }
}

fn term(key: &str, operator: u8, value: &str) -> SelectorTerm {
    SelectorTerm { key: key.to_owned(), operator, values: vec![name(value)] }
}

fn fault() -> Fault {
    Fault::of_field(Reason::InvalidField, "cpu", "no")
}

fn allocation() -> WireAllocation {
    WireAllocation { incarnation: 3, partition: 255, sequence: 70_000, tenant: 4 }
}

/// Returns a request whose fields all differ from their defaults and from their neighbors.
fn place_request() -> PlaceRequest {
    PlaceRequest {
        demand: DemandBody { cpu: 10_000, memory: 20_000, gpu: -3, custom: vec![amount("fpga", 4)] },
        policy: POLICY_BEST_FIT,
        attribute_order: 6,
        queue: "q".to_owned(),
        priority: -7,
        selectors: vec![term("k", OPERATOR_IN, "v")],
        preferred: vec![PreferredTerm { weight: 8, term: term("p", OPERATOR_EXISTS, "w") }],
        candidates: vec![9, 1 << 40],
        tolerations: vec![Toleration {
            key: "a".to_owned(),
            operator: OPERATOR_NOT_IN,
            value: "b".to_owned(),
            effect: 10,
        }],
        mode: MODE_WAIT_UNTIL,
        deadline: 11,
        lease: 12,
        group: Some(13),
        expected_version: 14,
        count: 15,
        explain: EXPLAIN_FULL,
        fallbacks: vec![
            FallbackSelector { terms: vec![term("f", OPERATOR_LESS, "7")] },
            FallbackSelector::default(),
        ],
        preferred_selectors: vec![PreferredSelector {
            weight: 20,
            terms: vec![term("s", OPERATOR_EQUAL, "u")],
        }],
        preferred_nodes: vec![21, 300],
        node: 22,
        avoid_gpu: AVOID_GPU_NO,
        owner: 23,
        session_lease: true,
    }
}

fn placed() -> PlaceReply {
    let placed = PlacedBody {
        node: 5,
        node_name: "n".to_owned(),
        allocation: allocation(),
        gpus: vec![0, 3],
        gpu_part: 2500,
        units: Vec::new(),
    };
    PlaceReply { reason: Reason::Done.into(), placed: Some(placed), alternative: 2, ..PlaceReply::default() }
}

fn refused() -> PlaceReply {
    let check = FailedCheck {
        reason: Reason::Insufficient.into(),
        resource: "gpu".to_owned(),
        nodes: 6,
        least_short: 7,
    };
    let refusal = RefusalBody { nodes: 9, examined: 8, checks: vec![check] };
    PlaceReply { reason: Reason::NoFitNow.into(), refusal: Some(refusal), ..PlaceReply::default() }
}

fn faulty() -> PlaceReply {
    PlaceReply { reason: fault().reason, fault: Some(fault()), ..PlaceReply::default() }
}

fn node() -> NodeBody {
    NodeBody {
        name: "n".to_owned(),
        identity: "i".to_owned(),
        cpu: 1,
        memory: 2,
        gpus: 3,
        custom: vec![amount("fpga", 4)],
        labels: vec![pair("k", "v")],
        taints: vec![Taint { key: "a".to_owned(), value: "b".to_owned(), effect: 5 }],
    }
}

fn server() -> ServerIdentity {
    ServerIdentity { store: [1; 16], incarnation: 2, software: "s".to_owned() }
}

#[test]
fn hello_is_written_as_it_always_was() {
    let session = WireSession { incarnation: 3, number: 4 };
    let body = Hello {
        version_min: 1,
        version_max: 2,
        client: "c".to_owned(),
        resume: Some(Resume { session, token: [5; 16] }),
    };
    check(
        Kind::Hello,
        0,
        &body,
        "2b0000000100000104030201000000000b0a000000000000 \
         0102016301030405050505050505050505050505050505",
    );
    let body = HelloReply {
        version: 1,
        server: server(),
        limits: Limits {
            frame_bytes_max: 1 << 20,
            in_flight_max: 1024,
            unacknowledged_max: 8192,
            placements_per_message_max: 250,
            nodes_per_message_max: 251,
        },
        session,
        token: [6; 16],
        resumed: true,
    };
    check(
        Kind::Hello,
        FLAG_REPLY,
        &body,
        "4a0000000100020104030201000000000b0a000000000000 \
         0101010101010101010101010101010101020173fc00001000fb0004fb0020fafbfb0003040606060606060606060606\
         060606060601",
    );
}

#[test]
fn place_is_written_as_it_always_was() {
    check(
        Kind::Place,
        0,
        &PlaceRequest::default(),
        "2e0000000200000104030201000000000b0a000000000000 0000000000000000000000000000000000010000000000000000",
    );
    check(
        Kind::Place,
        0,
        &place_request(),
        "6b0000000200000104030201000000000b0a000000000000 fb204efb409c0501046670676108020601710d01016b0101017601100170030101770209fd00000000000100000101610201620a010b0c010d0e0f010201016606010137000128010173070101750215fb2c0116021701",
    );
    check(
        Kind::Place,
        FLAG_REPLY,
        &placed(),
        "2d0000000200020104030201000000000b0a000000000000 000105016e03fbff00fc7011010004020003fbc40900000002",
    );
    check(
        Kind::Place,
        FLAG_REPLY,
        &refused(),
        "230000000200020104030201000000000b0a000000000000 \
         0100010908019903677075060e0000",
    );
    check(
        Kind::Place,
        FLAG_REPLY,
        &faulty(),
        "220000000200020104030201000000000b0a000000000000 640000016403637075026e6f0000",
    );
}

#[test]
fn place_batch_is_written_as_it_always_was() {
    let requests = vec![
        PlaceRequest { demand: DemandBody { cpu: 1, ..DemandBody::default() }, ..PlaceRequest::default() },
        PlaceRequest::default(),
    ];
    check(
        Kind::PlaceBatch,
        0,
        &PlaceBatch { requests },
        "490000000300000104030201000000000b0a000000000000 0202000000000000000000000000000000000100000000000000000000000000000000000000000000000000010000000000000000",
    );
    let replies = vec![placed(), faulty()];
    check(
        Kind::PlaceBatch,
        FLAG_REPLY,
        &PlaceBatchReply { replies },
        "3c0000000300020104030201000000000b0a000000000000 02000105016e03fbff00fc7011010004020003fbc40900000002640000016403637075026e6f0000",
    );
}

#[test]
fn release_is_written_as_it_always_was() {
    let request = ReleaseRequest { allocation: allocation() };
    check(
        Kind::Release,
        0,
        &request,
        "1e0000000400000104030201000000000b0a000000000000 03fbff00fc7011010004",
    );
    check(
        Kind::Release,
        FLAG_REPLY,
        &ReleaseReply::default(),
        "170000000400020104030201000000000b0a000000000000 000000",
    );
    let reason = Reason::UnknownAllocation.into();
    let fault = Some(fault());
    let reply = ReleaseReply { reason, fault, inside_ended: None };
    check(
        Kind::Release,
        FLAG_REPLY,
        &reply,
        "200000000400020104030201000000000b0a000000000000 68016403637075026e6f0000",
    );
    let batch = ReleaseBatch { requests: vec![request, request] };
    check(
        Kind::ReleaseBatch,
        0,
        &batch,
        "290000000500000104030201000000000b0a000000000000 0203fbff00fc701101000403fbff00fc7011010004",
    );
    let batch = ReleaseBatchReply { replies: vec![ReleaseReply::default(), reply] };
    check(
        Kind::ReleaseBatch,
        FLAG_REPLY,
        &batch,
        "240000000500020104030201000000000b0a000000000000 0200000068016403637075026e6f0000",
    );
}

#[test]
fn node_messages_are_written_as_they_always_were() {
    let nodes = NodesRequest { nodes: vec![node()] };
    check(
        Kind::AddNodes,
        0,
        &nodes,
        "2e0000000600000104030201000000000b0a000000000000 \
         01016e01690204030104667067610801016b0176010161016205",
    );
    check(
        Kind::UpdateNodes,
        0,
        &nodes,
        "2e0000000700000104030201000000000b0a000000000000 \
         01016e01690204030104667067610801016b0176010161016205",
    );
    let drain = DrainRequest { names: vec![name("a"), name("b")], undo: true };
    check(Kind::DrainNodes, 0, &drain, "1a0000000800000104030201000000000b0a000000000000 020161016201");
    let remove = RemoveRequest { names: vec![name("a")], force: true };
    check(Kind::RemoveNodes, 0, &remove, "180000000900000104030201000000000b0a000000000000 01016101");
    let reply =
        NodeReply { reason: Reason::NodeInUse.into(), node: 300, allocations_ended: 2, fault: Some(fault()) };
    let reply = NodesReply { replies: vec![NodeReply::default(), reply] };
    check(
        Kind::AddNodes,
        FLAG_REPLY,
        &reply,
        "280000000600020104030201000000000b0a000000000000 020000000069fb2c0102016403637075026e6f00",
    );
    check(
        Kind::UpdateNodes,
        FLAG_REPLY,
        &reply,
        "280000000700020104030201000000000b0a000000000000 020000000069fb2c0102016403637075026e6f00",
    );
    check(
        Kind::DrainNodes,
        FLAG_REPLY,
        &reply,
        "280000000800020104030201000000000b0a000000000000 020000000069fb2c0102016403637075026e6f00",
    );
    check(
        Kind::RemoveNodes,
        FLAG_REPLY,
        &reply,
        "280000000900020104030201000000000b0a000000000000 020000000069fb2c0102016403637075026e6f00",
    );
    check(
        Kind::ListNodes,
        0,
        &ListRequest { after: 1, limit: 1024 },
        "180000000a00000104030201000000000b0a000000000000 01fb0004",
    );
    let status = NodeStatus {
        id: 6,
        ordinal: 7,
        partition: 8,
        state: NODE_DRAINING,
        version: 9,
        body: node(),
        cpu_available: 10,
        memory_available: 11,
        gpus_available: vec![10_000, 0],
        allocations: 12,
        ..NodeStatus::default()
    };
    check(
        Kind::ListNodes,
        FLAG_REPLY,
        &ListReply { nodes: vec![status], more: true },
        "3f0000000a00020104030201000000000b0a000000000000 \
         010607080209016e01690204030104667067610801016b0176010161016205141602fb1027000c00000001",
    );
}

#[test]
fn status_is_written_as_it_always_was() {
    check(
        Kind::Status,
        0,
        &StatusRequest { audit: true },
        "150000000b00000104030201000000000b0a000000000000 01",
    );
    let shard = ShardStatusBody {
        shard: 1,
        nodes_ready: 2,
        nodes_draining: 3,
        nodes_joining: 21,
        nodes_lost: 22,
        nodes_reserved: 23,
        allocations: 4,
        placed: 5,
        refused: 6,
        released: 7,
        state_hash: Some(1 << 120),
    };
    let resource = ResourceStatus {
        name: "cpu".to_owned(),
        total: 1 << 70,
        allocated: 8,
        shortfall: 9,
        unhealthy: 24,
        reserved: -1,
    };
    let body = StatusReply {
        waiting: Waiting { feasible: 25, infeasible: 26 },
        server: server(),
        now: 10,
        uptime: 11,
        resident_bytes: 12,
        connections: 13,
        shards: vec![shard],
        resources: vec![resource],
        books_hash: None,
    };
    check(
        Kind::Status,
        FLAG_REPLY,
        &body,
        "650000000b00020104030201000000000b0a000000000000 \
         010101010101010101010101010101010201730a0b0c0d010102031516170405060701fe0000000000000000000000\
         00000000010103637075fe0000000000000000800000000000000010123001191a00",
    );
}

#[test]
fn agents_are_written_as_they_always_were() {
    let gpu = GpuBody {
        uuid: "u".to_owned(),
        model: "T4".to_owned(),
        memory_mib: 3,
        numa: Some(1),
        links: 2,
        fault: "f".to_owned(),
    };
    let report = ReportRequest { node: node(), boot: "b".to_owned(), version: 4, gpus: vec![gpu.clone()] };
    check(
        Kind::Report,
        0,
        &report,
        "3c0000000c00000104030201000000000b0a000000000000 \
         016e01690204030104667067610801016b0176010161016205016204010175025434030101020166",
    );
    let reply = ReportReply {
        node: 1,
        interval_ms: 2,
        lost_after_ms: 3,
        replaced: 4,
        allocations_ended: 5,
        ..ReportReply::default()
    };
    check(
        Kind::Report,
        FLAG_REPLY,
        &reply,
        "1b0000000c00020104030201000000000b0a000000000000 00010203040500",
    );
    let beat = HeartbeatRequest { node: 1, version: 2 };
    check(Kind::Heartbeat, 0, &beat, "160000000d00000104030201000000000b0a000000000000 0102");
    let reply = HeartbeatReply { report_again: true, interval_ms: 9, ..HeartbeatReply::default() };
    check(Kind::Heartbeat, FLAG_REPLY, &reply, "170000000d00020104030201000000000b0a000000000000 000109");
    let unhealthy = UnhealthyBody { instance: 1, reason: "r".to_owned() };
    let agent = AgentBody { boot: "b".to_owned(), gpus: vec![gpu] };
    let details = NodeStatus {
        unhealthy: vec![unhealthy],
        agent: Some(agent),
        reserved: Some(ReservedNode { owner: 5, until: 6 }),
        ..NodeStatus::default()
    };
    check(
        Kind::ListNodes,
        FLAG_REPLY,
        &ListReply { nodes: vec![details], more: false },
        "3d0000000a00020104030201000000000b0a000000000000 \
         0100000000000000000000000000000000000101017201016201017502543403010102016601050600",
    );
}

#[test]
fn exact_acknowledgements_are_written_as_they_always_were() {
    assert_eq!(EXTENSION_ACKNOWLEDGED, 16);
    for (sequences, expected) in [(vec![], "00"), (vec![5, 251, 1 << 40], "0305fbfb00fd0000000000010000")] {
        golden::check(&Acknowledged { sequences }, expected);
    }
}

#[test]
fn a_fault_is_written_as_it_always_was() {
    check(
        Kind::Place,
        FLAG_REPLY | FLAG_ERROR,
        &fault(),
        "1d0000000200060104030201000000000b0a000000000000 6403637075026e6f00",
    );
}
