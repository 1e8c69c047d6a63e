//! The wire format byte for byte, as in `golden_frames.rs`: following changes.

use wharf_net::protocol::*;

use crate::harness::golden::{check, check_reply, check_request};

/// The tests that check golden bytes.
pub(crate) const TESTS: &[fn()] = &[
    requests_are_written_as_they_always_were,
    replies_are_written_as_they_always_were,
    what_is_pending_is_written_as_it_always_was,
];

const TO: ShardVersion = ShardVersion { shard: 2, incarnation: 3, sequence: 300 };
const CURSOR: FollowCursor = FollowCursor { to: TO, stage: 4, place: 5, within: 6 };
const ALLOCATION: WireAllocation = WireAllocation { incarnation: 1, partition: 2, sequence: 3, tenant: 4 };
const STATEMENT: WireStatement = WireStatement { incarnation: 1, planner: 2, number: 3 };

fn name() -> String {
    "n".to_owned()
}

fn holding() -> Holding {
    Holding {
        demand: DemandBody {
            cpu: 10_000,
            memory: 20_000,
            gpu: 5000,
            custom: vec![NamedAmount { name: "npu".to_owned(), amount: 20_000 }],
        },
        gpus: vec![2],
        gpu_part: 5000,
        units: vec![NamedUnits { name: "npu".to_owned(), instances: vec![0, 1], part: 10_000 }],
    }
}

#[test]
fn requests_are_written_as_they_always_were() {
    check_request::<kinds::Follow>(&FollowRequest::default(), "0000000000");
    let request = FollowRequest {
        from: vec![TO, ShardVersion::default()],
        at: Some(CURSOR),
        kinds: FOLLOW_ALL,
        limit: 1024,
        wait_ms: 60_000,
    };
    check_request::<kinds::Follow>(&request, "020203fb2c01000000010203fb2c0104050607fb0004fb60ea");
}

#[test]
fn replies_are_written_as_they_always_were() {
    check_reply::<kinds::Follow>(&FollowReply { shards: 3, page: None }, "0300");
    let node = NodeChange {
        node: 7,
        node_name: name(),
        state: NODE_READY,
        version: 9,
        cpu: 10_000,
        memory: 20_000,
        gpus: vec![10_000, 0],
        allocations: 1,
        details: Some(NodeRest {
            custom: vec![NamedAmount { name: "npu".to_owned(), amount: 20_000 }],
            unhealthy: vec![UnhealthyBody { instance: 1, reason: "r".to_owned() }],
            owner: 4,
            until: 5,
        }),
        body: Some(NodeBody { name: name(), cpu: 10_000, ..NodeBody::default() }),
        pending: Pending::default(),
    };
    let page = FollowPage {
        to: TO,
        begins: true,
        resync: Reason::TooFarBehind.into(),
        next: Some(CURSOR),
        now: 8,
        node_count: 9,
        allocation_count: 10,
        holds_ended: vec![HoldEnded { statement: STATEMENT, operation: 1, node: 7, node_name: name() }],
        allocations_ended: vec![AllocationEnded {
            allocation: ALLOCATION,
            node: 7,
            node_name: name(),
            reason: Reason::LeaseExpired.into(),
        }],
        nodes_gone: vec![NodeGone { node: 7, node_name: name() }],
        nodes: vec![node, NodeChange::default()],
        allocations: vec![AllocationBegun {
            allocation: ALLOCATION,
            node: 7,
            node_name: name(),
            holds: holding(),
        }],
        holds: vec![HoldBegun {
            statement: STATEMENT,
            operation: 1,
            node: 7,
            node_name: name(),
            holds: Some(holding()),
            evicts: Some(ALLOCATION),
        }],
    };
    let head = "03010203fb2c0101b9010203fb2c01040506080 90a".replace(' ', "");
    let ended = "0101020301 07016e 0101020304 07016ec5 0107016e".replace(' ', "");
    let node =
        "02 07016e0109fb204efb409c02fb1027000101 01036e7075fb409c01010172040501 016e00fb204e0000000000 \
                000000 00000000000000000000 000000"
            .replace(' ', "");
    let holding = "fb204efb409cfb102701036e7075fb409c0102fb881301036e7075020001fb1027";
    let begun = format!("010102030407016e{holding}01010203 0107016e01{holding}0101020304").replace(' ', "");
    check_reply::<kinds::Follow>(
        &FollowReply { shards: 3, page: Some(page) },
        &format!("{head}{ended}{node}{begun}"),
    );
}

#[test]
fn what_is_pending_is_written_as_it_always_was() {
    let pending = Pending {
        releasing: vec![ReleasingBody { allocation: ALLOCATION, until: 300 }],
        claims: vec![ClaimBody { allocation: ALLOCATION, holds: holding() }],
        untold: 7,
    };
    let holding = "fb204efb409cfb102701036e7075fb409c0102fb881301036e7075020001fb1027";
    check(&pending, &format!("0101020304fb2c010101020304{holding}07"));
    assert_eq!(PENDING_MAX, 1024);
}

#[test]
fn numbers_of_following_never_change_their_meaning() {
    assert_eq!([FOLLOW_NODES, FOLLOW_ALLOCATIONS, FOLLOW_HOLDS, FOLLOW_ALL], [1, 2, 4, 7]);
    assert_eq!(
        (CHANGES_PER_MESSAGE_MAX, CHANGES_PER_MESSAGE_DEFAULT, FOLLOW_WAIT_MS_MAX),
        (4096, 1024, 3_600_000)
    );
}
