//! The wire format byte for byte, as in `golden_frames.rs`: events, and exports of the store.

use wharf_net::protocol::*;

use crate::harness::golden::{check_reply, check_request};

/// The tests that check golden bytes.
pub(crate) const TESTS: &[fn()] =
    &[events_are_written_as_they_always_were, exports_are_written_as_they_always_were];

const ALLOCATION: WireAllocation = WireAllocation { incarnation: 1, partition: 2, sequence: 3, tenant: 4 };
const OTHER: WireAllocation = WireAllocation { incarnation: 5, partition: 6, sequence: 7, tenant: 8 };
const GROUP: WireGroup = WireGroup { incarnation: 1, number: 300, tenant: 4 };

fn demand() -> DemandBody {
    let custom = vec![NamedAmount { name: "npu".to_owned(), amount: 20_000 }];
    DemandBody { cpu: 10_000, memory: 20_000, gpu: 5000, custom }
}

const DEMAND: &str = "fb204efb409cfb102701036e7075fb409c";

/// Returns an event whose fields all differ from their defaults and from their neighbors, but for a node and a group.
fn begun() -> EventBody {
    let holds = Holding {
        demand: demand(),
        gpus: vec![2],
        gpu_part: 5000,
        units: vec![NamedUnits { name: "npu".to_owned(), instances: vec![0, 1], part: 10_000 }],
    };
    let job = EventJob { name: "j".to_owned(), tenant: 4, priority: -2, min_member: 5, tasks: 6 };
    EventBody {
        position: 300,
        time: 9,
        is_whole: true,
        what: EVENT_BEGUN,
        cause: BEGUN_ADOPTED,
        allocation: Some(ALLOCATION),
        into: Some(OTHER),
        group: Some(GROUP),
        bundle: 10,
        node: 11,
        version: 12,
        incarnation: 13,
        kinds: 14,
        holds: Some(Box::new(holds)),
        external_id: "pod".to_owned(),
        node_now: None,
        group_now: None,
        session: Some(WireSession { incarnation: 3, number: 4 }),
        partition: 15,
        until: 16,
        sequence: 17,
        job: 18,
        task: 19,
        state: 20,
        restarts: 21,
        queue: "q".to_owned(),
        job_now: Some(Box::new(job)),
        priority_class: "c".to_owned(),
    }
}

fn node_changed() -> EventBody {
    let node = EventNode {
        ordinal: 7,
        partition: 8,
        state: NODE_DRAINING,
        body: NodeBody { name: "n".to_owned(), cpu: 10_000, ..NodeBody::default() },
        agent: Some(AgentBody { boot: "b".to_owned(), gpus: Vec::new() }),
        unhealthy: vec![UnhealthyBody { instance: 1, reason: "r".to_owned() }],
        reservation: Some(EventReservation { owner: 5, until: 6, left: demand() }),
        pending: Pending { untold: 7, ..Pending::default() },
    };
    EventBody {
        position: 1,
        what: EVENT_NODE,
        cause: CHANGED_NEW,
        node: 7,
        version: 9,
        node_now: Some(Box::new(node)),
        ..EventBody::default()
    }
}

fn group_changed() -> EventBody {
    let bundle = EventGroupBundle {
        index: 4,
        demand: DemandBody { cpu: 10_000, ..DemandBody::default() },
        node: 7,
        allocation: Some(ALLOCATION),
        lost: Some(OTHER),
    };
    let group = EventGroup {
        strategy: STRATEGY_STRICT_SPREAD,
        min_members: 1,
        priority: -1,
        bundles: vec![bundle, EventGroupBundle::default()],
        is_cut: true,
    };
    EventBody {
        position: 2,
        what: EVENT_GROUP,
        group: Some(GROUP),
        group_now: Some(Box::new(group)),
        ..EventBody::default()
    }
}

#[test]
fn events_are_written_as_they_always_were() {
    check_request::<kinds::Events>(&EventsRequest::default(), "000000");
    let request = EventsRequest { from: 300, limit: 1024, wait_ms: 60_000 };
    check_request::<kinds::Events>(&request, "fb2c01fb0004fb60ea");
    let reply = EventsReply { reason: Reason::TooFarBehind.into(), first: 3, ..EventsReply::default() };
    check_reply::<kinds::Events>(&reply, "b903000000");
    let reply = EventsReply {
        reason: Reason::Done.into(),
        first: 3,
        end: 300,
        next: 5,
        events: vec![begun(), node_changed(), group_changed(), EventBody::default()],
    };
    let holding = format!("{DEMAND} 0102fb8813 01036e7075020001fb1027");
    let begun = format!(
        "fb2c01 09010205 0101020304 0105060708 0101fb2c0104 0a0b0c0d0e 01{holding} 03706f64 0000 010304 \
         0f101112131415 0171 01016a04030506 0163"
    );
    let node = format!("070802 016e00fb204e0000000000 01016200 01010172 010506{DEMAND} 000007");
    let node = format!("0100000601 000000 00070900 000000 01{node} 0000000000 00000000000000");
    let group = "030101 02 04fb204e000000 07 0101020304 0105060708 0000000000000000 01";
    let group = format!("0200000900 00000101fb2c0104 0000000000 000000 01{group} 0000000000000000000000");
    let events = format!("04 {begun} {node} {group} {}", "00".repeat(28));
    check_reply::<kinds::Events>(&reply, &format!("0003fb2c0105{events}").replace(' ', ""));
}

#[test]
fn exports_are_written_as_they_always_were() {
    check_request::<kinds::Export>(&ExportRequest { export: 1 << 40, page: 300 }, "fd0000000000010000fb2c01");
    check_reply::<kinds::Export>(&ExportReply::default(), "0000");
    // Bytes are written as they are, also those with which a longer integer begins.
    check_reply::<kinds::Export>(
        &ExportReply { more: true, bytes: vec![0, 1, 250, 251, 255] },
        "01050001fafbff",
    );
}

#[test]
fn numbers_of_events_never_change_their_meaning() {
    let queues = [EVENT_WAIT_ENDED, EVENT_QUEUE, EVENT_QUEUE_REMOVED];
    assert_eq!(queues, [15, 16, 17]);
    assert_eq!([EVENT_JOB, EVENT_JOB_PHASE, EVENT_JOB_REMOVED, EVENT_TASK], [18, 19, 20, 21]);
    assert_eq!([EVENT_PRIORITY_CLASS, EVENT_PRIORITY_CLASS_REMOVED], [22, 23]);
    assert_eq!([WAIT_PLACED, WAIT_EXPIRED, WAIT_CANCELLED, WAIT_REFUSED], [1, 2, 3, 4]);
    assert_eq!((EVENTS_PER_MESSAGE_MAX, EVENTS_PER_MESSAGE_DEFAULT), (4096, 1024));
    assert_eq!(EXPORT_PAGE_BYTES_MAX, 512 * 1024);
}
