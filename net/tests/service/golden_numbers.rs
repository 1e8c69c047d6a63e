//! The stable numbers of the wire format: kinds, constants that select a meaning, and reasons.

use wharf_core::node::NodeState;
use wharf_net::codec::{FLAG_ERROR, FLAG_EXTENSIONS, FLAG_REPLY, HEADER_BYTES};
use wharf_net::protocol::*;

#[test]
fn numbers_never_change_their_meaning() {
    let kinds: Vec<_> = Kind::ALL.iter().map(|kind| (kind.number(), kind.name())).collect();
    let expected = [
        (1, "hello"),
        (2, "place"),
        (3, "place_batch"),
        (4, "release"),
        (5, "release_batch"),
        (6, "add_nodes"),
        (7, "update_nodes"),
        (8, "drain_nodes"),
        (9, "remove_nodes"),
        (10, "list_nodes"),
        (11, "status"),
        (12, "report"),
        (13, "heartbeat"),
        (16, "adopt"),
        (17, "set_resources"),
        (18, "node_books"),
        (19, "cancel_wait"),
        (20, "reserve"),
        (21, "end_reservation"),
        (22, "create_group"),
        (23, "grow_group"),
        (24, "shrink_group"),
        (25, "remove_group"),
        (26, "group_status"),
        (27, "list_groups"),
        (28, "place_into"),
        (29, "submit_statement"),
        (30, "follow"),
        (40, "export"),
        (41, "events"),
        (42, "renew"),
        (50, "set_queue"),
        (51, "remove_queue"),
        (52, "list_queues"),
        (53, "submit_job"),
        (54, "cancel_job"),
        (55, "job_status"),
        (56, "list_jobs"),
        (57, "report_tasks"),
        (58, "explain_job"),
        (59, "plan_nodes"),
        (60, "explain_wait"),
        (61, "set_priority_class"),
        (62, "remove_priority_class"),
        (63, "list_priority_classes"),
    ];
    assert_eq!(kinds, expected);
    assert!(Kind::ALL.iter().all(|&kind| Kind::from_number(kind.number()) == Some(kind)));
    assert_eq!((Kind::from_number(0), Kind::from_number(14)), (None, None));
    assert_eq!([FLAG_EXTENSIONS, FLAG_REPLY, FLAG_ERROR], [1, 2, 4]);
    let policies =
        [POLICY_DEFAULT, POLICY_LEAST_FIT, POLICY_BEST_FIT, POLICY_FIRST_FIT, POLICY_NEXT_FIT, POLICY_RANDOM];
    assert_eq!(policies, [0, 1, 2, 3, 4, 5]);
    assert_eq!([POLICY_HYBRID, POLICY_SPREAD], [7, 8]);
    assert_eq!([OPERATOR_IN, OPERATOR_NOT_IN, OPERATOR_EXISTS, OPERATOR_NOT_EXISTS], [1, 2, 3, 4]);
    assert_eq!([OPERATOR_GREATER, OPERATOR_LESS, OPERATOR_EQUAL, OPERATOR_NOT_EQUAL], [5, 6, 7, 8]);
    assert_eq!([EFFECT_ANY, EFFECT_NO_SCHEDULE, EFFECT_PREFER_NO_SCHEDULE, EFFECT_NO_EXECUTE], [0, 1, 2, 3]);
    assert_eq!([AVOID_GPU_DEFAULT, AVOID_GPU_YES, AVOID_GPU_NO], [0, 1, 2]);
    assert_eq!((BODY_VERSION, EXTENSION_ACKNOWLEDGED, EXTENSION_DEADLINE), (1, 16, 17));
    assert_eq!([NODE_READY, NODE_DRAINING, NODE_JOINING, NODE_LOST, NODE_LOST_DRAINING], [1, 2, 3, 4, 5]);
    let states = [NodeState::Ready, NodeState::Draining, NodeState::Joining];
    let lost = [false, true].map(|draining| NodeState::Lost { draining });
    assert_eq!((states.map(NodeState::number), lost.map(NodeState::number)), ([1, 2, 3], [4, 5]));
    assert_eq!([MODE_NOW, MODE_WAIT_UNTIL], [0, 1]);
    assert_eq!([EXPLAIN_BOUNDED, EXPLAIN_FULL], [0, 1]);
    assert_eq!((ALPN, VERSION_MIN, VERSION_MAX, PORT_DEFAULT), (&b"wharf/1"[..], 1, 2, 7411));
    assert_eq!((FRAME_BYTES_MAX, EXTENSIONS_MAX, HEADER_BYTES), (1 << 20, 16, 24));
}

#[test]
fn events_never_change_their_meaning() {
    let books = [EVENT_OTHER, EVENT_STARTED, EVENT_BEGUN, EVENT_BUNDLE, EVENT_INSIDE, EVENT_ENDED];
    assert_eq!(books, [0, 1, 2, 3, 4, 5]);
    let nodes = [EVENT_NODE, EVENT_NODE_COUNT, EVENT_NODE_REMOVED];
    assert_eq!(nodes, [6, 7, 8]);
    assert_eq!([EVENT_GROUP, EVENT_GROUP_REMOVED, EVENT_KINDS, EVENT_SESSION_ENDED], [9, 10, 11, 12]);
    assert_eq!([EVENT_LEASE, EVENT_SESSION_RENEWED, ENDED_EXPIRED], [13, 14, 5]);
    assert_eq!([SESSION_CLOSED, SESSION_EXPIRED, SESSION_EVICTED], [1, 2, 3]);
    let begun = [BEGUN_PLACED, BEGUN_WAITED, BEGUN_COMMITTED, BEGUN_CLAIMED, BEGUN_ADOPTED];
    assert_eq!(begun, [1, 2, 3, 4, 5]);
    assert_eq!([ENDED_RELEASED, ENDED_EVICTED, ENDED_NODE_REMOVED, ENDED_NODE_LOST], [1, 2, 3, 4]);
    assert_eq!(ENDED_TAKEN_BACK, 6);
    assert_eq!([CHANGED_NEW, CHANGED_SPEC, CHANGED_STATE], [1, 2, 4]);
}

#[test]
fn reasons_never_change_their_meaning() {
    let reasons: Vec<_> = Reason::ALL.iter().map(|reason| (reason.number(), reason.name())).collect();
    let expected = [
        (0, "done"),
        (1, "no_fit_now"),
        (2, "infeasible"),
        (3, "cancelled"),
        (4, "over_cap"),
        (100, "invalid_field"),
        (101, "not_supported_yet"),
        (102, "node_exists"),
        (103, "unknown_node"),
        (104, "unknown_allocation"),
        (105, "node_in_use"),
        (106, "limit_exceeded"),
        (107, "malformed_body"),
        (108, "unknown_kind"),
        (109, "unknown_version"),
        (110, "unknown_extension"),
        (111, "stale_sequence"),
        (112, "sequence_out_of_window"),
        (113, "sequence_reused"),
        (118, "illegal_change"),
        (119, "node_reserved"),
        (120, "not_reserved"),
        (121, "exceeds_capacity"),
        (150, "not_a_candidate"),
        (151, "selector_mismatch"),
        (152, "not_ready"),
        (153, "insufficient"),
        (154, "untolerated_taint"),
        (155, "node_affinity"),
        (158, "fragmented"),
        (159, "reserved_for_other"),
        (160, "not_served"),
        (161, "unknown_group"),
        (162, "unknown_bundle"),
        (163, "group_busy"),
        (164, "below_minimum"),
        (165, "no_node_for_bundle"),
        (166, "no_single_node"),
        (167, "too_few_nodes"),
        (168, "cluster_too_small"),
        (169, "topology_too_small"),
        (170, "conflicted"),
        (171, "version_changed"),
        (172, "no_version"),
        (173, "instance_taken"),
        (174, "held_by_statement"),
        (175, "already_releasing"),
        (176, "bundle_placed"),
        (177, "contradicts"),
        (178, "repeated"),
        (179, "expired"),
        (180, "aborted"),
        (181, "in_bundle"),
        (182, "unknown_shard"),
        (183, "new_follower"),
        (184, "other_incarnation"),
        (185, "too_far_behind"),
        (186, "future_version"),
        (187, "own_bundles"),
        (188, "confined_too_small"),
        (189, "too_few_places"),
        (190, "too_many_allocations"),
        (191, "forbidden"),
        (192, "unknown_wait"),
        (193, "unknown_priority_class"),
        (195, "no_lease"),
        (196, "lease_of_session"),
        (197, "lease_expired"),
        (198, "unknown_queue"),
        (199, "unknown_job"),
        (200, "malformed_frame"),
        (201, "frame_too_long"),
        (202, "hello_expected"),
        (203, "second_hello"),
        (204, "no_common_version"),
        (205, "unknown_session"),
        (206, "session_resumed"),
        (300, "shutting_down"),
        (301, "unavailable"),
        (302, "overloaded"),
        (303, "deadline_exceeded"),
    ];
    assert_eq!(reasons, expected);
    assert!(Reason::ALL.iter().all(|&reason| Reason::from_number(reason.number()) == Some(reason)));
    assert_eq!(ReasonCode(999).known(), None);
    assert_eq!(ReasonCode(999).to_string(), "reason 999");
}
