//! The wire format byte for byte, as in `golden_frames.rs`: plans of nodes.

use wharf_net::codec::{decode_body, encode_body};
use wharf_net::protocol::*;

use crate::harness::golden::{check_reply, check_request, hex};

/// The tests that check golden bytes.
pub(crate) const TESTS: &[fn()] =
    &[requests_for_plans_are_written_as_they_always_were, plans_are_written_as_they_always_were];

fn bundles(count: u32) -> BundlesBody {
    BundlesBody { request: PlaceRequest::default(), count }
}

#[test]
fn requests_for_plans_are_written_as_they_always_were() {
    check_request::<kinds::PlanNodes>(
        &PlanNodesRequest::default(),
        "00096e6f64652d7479706500fb10270a000000000001",
    );
    let mut request = Vec::new();
    encode_body(&PlaceRequest::default(), &mut request);
    let request = hex(&request);
    let node = NodeBody { name: "t".to_owned(), cpu: 3, memory: 4, gpus: 1, ..NodeBody::default() };
    let of = NodeTypeBody { node, min: 1, max: 2, launching: 3, launch_time: 4, idle_timeout: Some(5) };
    let group = PendingGroupBody {
        name: "g".to_owned(),
        bundles: vec![bundles(3)],
        spread: SPREAD_APART,
        domain: "z".to_owned(),
        priority: -1,
    };
    let asked = PlanNodesRequest {
        types: vec![of],
        type_label: "k".to_owned(),
        nodes_max: Some(9),
        upscaling_speed: 1,
        launches_max: 2,
        idle_timeout: Some(6),
        floors: vec![bundles(2)],
        groups: vec![group],
        horizon: 8,
        idle: vec![IdleNodeBody { node: 7, idle: 300 }],
        waiting: false,
    };
    let types = "0101740006080100000001020304 0105".replace(' ', "");
    let groups = format!("010167 01{request}03 01 017a 01").replace(' ', "");
    check_request::<kinds::PlanNodes>(
        &asked,
        &format!("{types}016b010901020106 01{request}02 {groups}08 0107fb2c01 00").replace(' ', ""),
    );
}

#[test]
fn plans_are_written_as_they_always_were() {
    let left = UnplacedBody {
        asker: ASKER_JOB,
        number: 300,
        name: "j".to_owned(),
        count: 2,
        reason: UNFIT_CAP,
        queue: "q".to_owned(),
        resource: "cpu".to_owned(),
        refusal: None,
    };
    let removal =
        RemovalBody { node: 7, node_name: "n".to_owned(), of_type: 0, idle: 9, cause: REMOVAL_IDLE };
    let start = StartBody { after: 9, job: 300, name: "j".to_owned(), tasks: 2 };
    let reply = PlanNodesReply {
        types: vec![TypePlanBody { present: 1, launching: 2, needed: 3, launch: 4, cancel: 5 }],
        fit_present: 6,
        fit_needed: 7,
        unplaced: vec![left],
        removals: vec![removal],
        starts: vec![start],
        waiting: vec![WaitingJobBody { job: 300, name: "j".to_owned() }],
        is_partial: true,
        left_out: 8,
        measured_ends: 9,
        ..PlanNodesReply::default()
    };
    let unplaced = "0103fb2c01016a0201017103637075 00";
    let rest = "0107016e000901 0109fb2c01016a02 01fb2c01016a 01 08 09 00";
    check_reply::<kinds::PlanNodes>(
        &reply,
        &format!("00 010102030405 06 07 {unplaced} {rest}").replace(' ', ""),
    );
    let fault = Fault::of_field(Reason::InvalidField, "types", "m");
    let reason = hex(&[Reason::InvalidField.number() as u8]);
    let written = format!("{reason}00000000000000000000 01{reason}05747970657301 6d00").replace(' ', "");
    check_reply::<kinds::PlanNodes>(&PlanNodesReply::from(fault), &written);
}

#[test]
fn numbers_of_plans_never_change_their_meaning() {
    assert_eq!([SPREAD_ANY, SPREAD_APART, SPREAD_TOGETHER], [0, 1, 2]);
    assert_eq!([ASKER_FLOOR, ASKER_GROUP, ASKER_JOB, ASKER_WAITING_GROUP, ASKER_PLACEMENTS], [1, 2, 3, 4, 5]);
    assert_eq!([UNFIT_CAP, UNFIT_NEVER, UNFIT_ONLY_PRESENT, UNFIT_TYPE_LIMIT], [1, 2, 3, 4]);
    assert_eq!([UNFIT_ALL_LIMIT, UNFIT_GANG, UNFIT_UNDECIDED, UNFIT_TOPOLOGY], [5, 6, 7, 8]);
    assert_eq!([REMOVAL_IDLE, REMOVAL_TYPE_LIMIT, REMOVAL_ALL_LIMIT], [1, 2, 3]);
    assert_eq!((IDLE_NODES_MAX, UNPLACED_MAX, PLAN_REFUSALS_MAX), (1000, 256, 8));
    assert_eq!(PLAN_ROWS_PER_MESSAGE_MAX, 1000);
}

/// A list that is longer than a message may have is refused by its field before anything is made of it.
#[test]
fn lists_of_plans_have_bounds() {
    fn field_of(body: &PlanNodesRequest) -> String {
        let mut bytes = Vec::new();
        encode_body(body, &mut bytes);
        decode_body::<PlanNodesRequest>(&bytes).expect_err("it is too long").field
    }
    let of = PlanNodesRequest::default;
    assert_eq!(field_of(&PlanNodesRequest { types: vec![NodeTypeBody::default(); 65], ..of() }), "types");
    assert_eq!(field_of(&PlanNodesRequest { floors: vec![bundles(1); 257], ..of() }), "floors");
    let groups = vec![PendingGroupBody::default(); 257];
    assert_eq!(field_of(&PlanNodesRequest { groups, ..of() }), "groups");
    let idle = vec![IdleNodeBody::default(); IDLE_NODES_MAX + 1];
    assert_eq!(field_of(&PlanNodesRequest { idle, ..of() }), "idle");
    let group = PendingGroupBody { bundles: vec![bundles(1); 257], ..PendingGroupBody::default() };
    assert_eq!(field_of(&PlanNodesRequest { groups: vec![group], ..of() }), "bundles");
}
