//! Every reason for which a request is refused, as a client sees it: the reason's number, the field, and that
//! nothing changed. After each refusal, the hash of the books is unchanged and the connection continues.

use crate::harness::{
    TestServer, add, ask, audit, books, named, node, only, pair, place, units, with_custom, within,
};
use wharf_net::client::{Client, ClientError};
use wharf_net::protocol::{
    DemandBody, DrainRequest, EXPLAIN_FULL, FailedCheck, FallbackSelector, Fault, Name, NamedAmount,
    NodeBody, NodesRequest, PlaceBatch, PlaceReply, PlaceRequest, PreferredSelector, PreferredTerm, Reason,
    RemoveRequest, SelectorTerm, Taint, Toleration, WireAllocation,
};

type Change<T> = fn(&mut T);

fn insufficient(resource: &str, nodes: u64, least_short: i64) -> FailedCheck {
    failed(Reason::Insufficient, resource, nodes, least_short)
}

fn failed(reason: Reason, resource: &str, nodes: u64, least_short: i64) -> FailedCheck {
    FailedCheck { reason: reason.into(), resource: resource.to_owned(), nodes, least_short }
}

fn term(key: &str, operator: u8, values: &[&str]) -> SelectorTerm {
    let values = values.iter().map(|&value| Name(value.to_owned())).collect();
    SelectorTerm { key: key.to_owned(), operator, values }
}

async fn ask_for(client: &Client, request: &PlaceRequest) -> PlaceReply {
    within(client.place(request)).await.expect("a refusal is a reply")
}

/// Checks that a placement gets a fault with this reason and field.
async fn assert_place_fault(client: &Client, request: &PlaceRequest, reason: Reason, field: &str) {
    let reply = ask_for(client, request).await;
    assert!(reply.placed.is_none() && reply.refusal.is_none(), "{reply:?}");
    assert_eq!(reply.reason.known(), Some(reason), "{reply:?}");
    let fault = reply.fault.expect("a fault says what is wrong");
    assert_eq!((fault.reason, fault.field.as_str()), (reply.reason, field), "{fault}");
    assert!(!fault.message.is_empty());
}

/// Checks that the connection continues and nothing changed since `before`.
async fn assert_unmoved(client: &Client, before: u128, after: &str) {
    assert_eq!(books(client).await, before, "the books moved: {after}");
}

/// Returns the fault of a request that was refused as a whole.
#[track_caller]
fn refused<T: std::fmt::Debug>(reply: Result<T, ClientError>, reason: Reason) -> Fault {
    match reply {
        Err(ClientError::Fault(fault)) if fault.reason.known() == Some(reason) => fault,
        other => panic!("{reason} expected: {other:?}"),
    }
}

/// Six nodes, each of which fails the request in its own way.
async fn counts_over(shards: u16) {
    let server = TestServer::start(shards);
    let client = server.client().await;
    let sized = |name: &str, cpu, memory, gpus, zone: &str| NodeBody {
        labels: vec![pair("zone", zone)],
        ..node(name, cpu, memory, gpus)
    };
    let mut filled = sized("filled", 16, 1000, 4, "a");
    filled.custom = vec![named("fpga", 4)];
    let ids = add(
        &client,
        vec![
            filled,
            sized("small", 4, 100, 2, "a"),
            sized("mixed", 8, 50, 1, "a"),
            sized("draining", 64, 64, 8, "a"),
            sized("elsewhere", 64, 64, 8, "b"),
            sized("unnamed", 64, 64, 8, "a"),
        ],
    )
    .await;
    let drain = DrainRequest { names: vec![Name("draining".to_owned())], undo: false };
    within(client.drain_nodes(&drain)).await.expect("answered");
    let fill =
        PlaceRequest { candidates: vec![ids[0]], ..with_custom(vec![named("fpga", 3)], ask(12, 950, 3)) };
    place(&client, &fill).await;
    let before = books(&client).await;
    let request = PlaceRequest {
        selectors: vec![term("zone", 1, &["a"])],
        candidates: ids[..5].to_vec(),
        explain: EXPLAIN_FULL,
        ..with_custom(vec![named("fpga", 2)], ask(10, 80, 2))
    };
    let reply = ask_for(&client, &request).await;
    assert_eq!(reply.reason.known(), Some(Reason::NoFitNow), "{reply:?}");
    assert!(reply.placed.is_none() && reply.fault.is_none());
    let refusal = reply.refusal.expect("a refusal has counts");
    assert_eq!((refusal.nodes, refusal.examined), (6, 6));
    let expected = [
        failed(Reason::NotACandidate, "", 1, 0),
        failed(Reason::SelectorMismatch, "", 1, 0),
        failed(Reason::NotReady, "", 1, 0),
        insufficient("cpu", 3, units(2)),
        insufficient("memory", 2, units(30)),
        insufficient("gpu", 2, units(1)),
        insufficient("fpga", 3, units(1)),
    ];
    assert_eq!(refusal.checks, expected);
    assert_unmoved(&client, before, "no_fit_now").await;
    server.stop().await;
}

#[tokio::test]
async fn no_fit_now_counts_over_one_shard() {
    counts_over(1).await;
}

#[tokio::test]
async fn no_fit_now_counts_over_eight_shards() {
    counts_over(8).await;
}

#[tokio::test]
async fn a_part_of_a_gpu_is_not_put_together_from_two() {
    let server = TestServer::start(1);
    let client = server.client().await;
    add(&client, vec![node("a", 1, 1, 2)]).await;
    let part =
        |gpu| PlaceRequest { demand: DemandBody { gpu, ..DemandBody::default() }, ..PlaceRequest::default() };
    let first = place(&client, &part(7000)).await;
    let second = place(&client, &part(7500)).await;
    assert_ne!(first.gpus, second.gpus);
    let refusal = ask_for(&client, &part(5000)).await;
    assert_eq!(refusal.reason.known(), Some(Reason::NoFitNow));
    assert_eq!(refusal.refusal.unwrap().checks, [insufficient("gpu_part", 1, 2000)]);
    server.stop().await;
}

#[tokio::test]
async fn what_no_node_could_ever_hold_is_infeasible() {
    let server = TestServer::start(2);
    let client = server.client().await;
    let infeasible = async |request: &PlaceRequest| {
        let reply = ask_for(&client, request).await;
        assert_eq!(reply.reason.known(), Some(Reason::Infeasible), "{reply:?}");
        reply.refusal.expect("a refusal has counts")
    };
    let nowhere = infeasible(&ask(1, 1, 0)).await;
    assert_eq!((nowhere.nodes, nowhere.checks), (0, vec![]));

    add(&client, vec![node("a", 4, 100, 1), node("b", 8, 50, 2)]).await;
    let before = books(&client).await;
    assert_eq!(infeasible(&ask(9, 1, 0)).await.checks, [insufficient("cpu", 2, units(1))]);
    // Each resource exists on its own, but not together on one node.
    assert_eq!(
        infeasible(&ask(8, 100, 0)).await.checks,
        [insufficient("cpu", 1, units(4)), insufficient("memory", 1, units(50))]
    );
    assert_eq!(infeasible(&ask(0, 0, 16)).await.checks, [insufficient("gpu", 2, units(14))]);
    let unknown = with_custom(vec![named("unobtainium", 3)], ask(1, 1, 0));
    let refusal = infeasible(&unknown).await;
    assert_eq!((refusal.nodes, refusal.examined), (2, 2));
    assert_eq!(refusal.checks, [insufficient("unobtainium", 2, units(3))]);
    let nowhere = PlaceRequest { selectors: vec![term("zone", 1, &["z"])], ..ask(1, 1, 0) };
    assert_eq!(infeasible(&nowhere).await.checks, [failed(Reason::SelectorMismatch, "", 2, 0)]);
    let nobody = PlaceRequest { candidates: vec![777], ..ask(1, 1, 0) };
    assert_eq!(infeasible(&nobody).await.checks, [failed(Reason::NotACandidate, "", 2, 0)]);
    assert_unmoved(&client, before, "infeasible").await;
    server.stop().await;
}

#[tokio::test]
async fn every_reserved_field_is_refused_by_name() {
    let reserved: [(&str, Change<PlaceRequest>); 5] = [
        ("priority", |r| r.priority = -1),
        ("deadline", |r| r.deadline = 1),
        ("group", |r| r.group = Some(0)),
        ("expected_version", |r| r.expected_version = 1),
        ("count", |r| r.count = 2),
    ];
    let server = TestServer::start(1);
    let client = server.client().await;
    add(&client, vec![node("a", 4, 4, 0)]).await;
    let before = books(&client).await;
    for (field, change) in reserved {
        let mut request = ask(1, 1, 0);
        change(&mut request);
        assert_place_fault(&client, &request, Reason::NotSupportedYet, field).await;
        assert_unmoved(&client, before, field).await;
    }
    let zero = PlaceRequest { count: 0, ..ask(1, 1, 0) };
    assert_place_fault(&client, &zero, Reason::NotSupportedYet, "count").await;
    let elsewhere = PlaceRequest { attribute_order: 2, ..ask(1, 1, 0) };
    assert_place_fault(&client, &elsewhere, Reason::InvalidField, "attribute_order").await;
    assert_unmoved(&client, before, "attribute_order").await;
    server.stop().await;
}

/// 2^53 units and one more.
const ABSURD: i64 = (1 << 53) + 1;

fn preferred(weight: i32) -> PreferredTerm {
    PreferredTerm { weight, term: term("zone", 3, &[]) }
}

fn toleration(key: &str, operator: u8, value: &str, effect: u8) -> Toleration {
    Toleration { key: key.to_owned(), operator, value: value.to_owned(), effect }
}

fn bad_preferences() -> Vec<(&'static str, Change<PlaceRequest>)> {
    vec![
        ("fallbacks[1].terms[0].key", |p| {
            p.fallbacks =
                vec![FallbackSelector::default(), FallbackSelector { terms: vec![term("", 3, &[])] }];
        }),
        ("preferred_selectors[0].weight", |p| {
            p.preferred_selectors = vec![PreferredSelector { weight: -1, terms: vec![term("k", 3, &[])] }];
        }),
        ("preferred_selectors[0].terms", |p| {
            p.preferred_selectors = vec![PreferredSelector { weight: 1, terms: Vec::new() }];
        }),
        ("avoid_gpu", |p| p.avoid_gpu = 3),
    ]
}

#[tokio::test]
async fn every_wrong_preference_is_named() {
    let server = TestServer::start(1);
    let client = server.client().await;
    let ids = add(&client, vec![node("a", 4, 4, 0)]).await;
    let before = books(&client).await;
    let fault = async |request: PlaceRequest| {
        let reply = within(client.place(&request)).await.expect("a refusal is a reply");
        let fault = reply.fault.expect("a fault says what is wrong");
        (fault.reason.known().expect("a reason of this version"), fault.field)
    };
    for (field, change) in bad_preferences() {
        let mut request = ask(1, 1, 0);
        change(&mut request);
        assert_eq!(fault(request).await, (Reason::InvalidField, field.to_owned()));
    }
    let mut request = ask(1, 1, 0);
    request.node = 777;
    assert_eq!(fault(request.clone()).await, (Reason::UnknownNode, "node".to_owned()));
    request.node = ids[0];
    request.candidates = ids;
    assert_eq!(fault(request).await, (Reason::InvalidField, "node".to_owned()));
    assert_unmoved(&client, before, "preferences").await;
    server.stop().await;
}

fn bad_placements() -> Vec<(&'static str, Change<PlaceRequest>)> {
    fn raw(name: &str, amount: i64) -> Vec<NamedAmount> {
        vec![NamedAmount { name: name.to_owned(), amount }]
    }
    vec![
        ("cpu", |r| r.demand.cpu = -1),
        ("cpu", |r| r.demand.cpu = ABSURD),
        ("cpu", |r| r.demand.cpu = i64::MIN),
        ("memory", |r| r.demand.memory = -1),
        ("memory", |r| r.demand.memory = i64::MAX),
        ("gpu", |r| r.demand.gpu = -1),
        ("gpu", |r| r.demand.gpu = 15_000),
        ("gpu", |r| r.demand.gpu = units(17)),
        ("gpu", |r| r.demand.gpu = ABSURD),
        ("custom[0].amount", |r| r.demand.custom = raw("fpga", -1)),
        ("custom[0].amount", |r| r.demand.custom = raw("unknown", ABSURD)),
        ("custom[0].name", |r| r.demand.custom = raw("", 1)),
        ("custom[0].name", |r| r.demand.custom = raw("a\nb", 1)),
        ("custom[0].name", |r| r.demand.custom = raw("cpu", 1)),
        ("custom[0].name", |r| r.demand.custom = raw("memory", 1)),
        ("custom[0].name", |r| r.demand.custom = raw("gpu", 1)),
        ("custom[0].name", |r| r.demand.custom = raw("gpu_part", 1)),
        ("custom", |r| r.demand.custom = vec![named("fpga", 1), named("fpga", 0)]),
        ("policy", |r| r.policy = 200),
        ("policy", |r| r.policy = u8::MAX),
        ("explain", |r| r.explain = 2),
        ("selectors[0].key", |r| r.selectors = vec![term("", 3, &[])]),
        ("selectors[0].operator", |r| r.selectors = vec![term("zone", 0, &["a"])]),
        ("selectors[0].operator", |r| r.selectors = vec![term("zone", 9, &["a"])]),
        ("selectors[0].values", |r| r.selectors = vec![term("zone", 5, &[])]),
        ("selectors[0].values", |r| r.selectors = vec![term("zone", 7, &["a", "b"])]),
        ("selectors[1].values[0]", |r| {
            r.selectors = vec![term("zone", 5, &["-9223372036854775808"]), term("zone", 6, &["many"])];
        }),
        ("selectors[0].values[0]", |r| r.selectors = vec![term("zone", 5, &["9223372036854775808"])]),
        ("preferred[1].weight", |r| r.preferred = vec![preferred(1), preferred(0)]),
        ("preferred[0].weight", |r| r.preferred = vec![preferred(101)]),
        ("preferred[0].key", |r| r.preferred = vec![PreferredTerm { weight: 1, term: term("", 3, &[]) }]),
        ("preferred", |r| r.preferred = vec![preferred(1); 9]),
        ("tolerations[0].operator", |r| r.tolerations = vec![toleration("k", 1, "v", 0)]),
        ("tolerations[0].effect", |r| r.tolerations = vec![toleration("k", 3, "", 4)]),
        ("tolerations[0].value", |r| r.tolerations = vec![toleration("k", 3, "v", 0)]),
        ("tolerations[1].key", |r| {
            r.tolerations = vec![toleration("", 3, "", 0), toleration("", 7, "v", 0)];
        }),
        ("selectors[1].values", |r| r.selectors = vec![term("zone", 3, &[]), term("zone", 1, &[])]),
        ("selectors[0].values", |r| r.selectors = vec![term("zone", 2, &[])]),
        ("selectors[0].values", |r| r.selectors = vec![term("zone", 3, &["a"])]),
        ("selectors[0].values", |r| r.selectors = vec![term("zone", 4, &["a"])]),
    ]
}

#[tokio::test]
async fn every_wrong_field_of_a_placement_is_named() {
    let server = TestServer::start(1);
    let client = server.client().await;
    let equipped = NodeBody { custom: vec![named("fpga", 4)], ..node("a", 4, 4, 4) };
    add(&client, vec![equipped]).await;
    let before = books(&client).await;
    for (field, change) in bad_placements() {
        let mut request = ask(1, 1, 0);
        change(&mut request);
        assert_place_fault(&client, &request, Reason::InvalidField, field).await;
        assert_unmoved(&client, before, field).await;
    }
    // In a batch, each request has its own fault, and the valid one is done.
    let mut requests = vec![ask(0, 0, 0)];
    requests.extend(bad_placements().into_iter().map(|(_, change)| {
        let mut request = ask(1, 1, 0);
        change(&mut request);
        request
    }));
    let batch = within(client.place_batch(&PlaceBatch { requests })).await.unwrap();
    let faults: Vec<_> =
        batch.replies[1..].iter().map(|reply| reply.fault.as_ref().unwrap().field.as_str()).collect();
    assert_eq!(faults, bad_placements().iter().map(|&(field, _)| field).collect::<Vec<_>>());
    assert!(batch.replies[0].reason.is_done());
    server.stop().await;
}

fn taint(key: &str, effect: u8) -> Taint {
    Taint { key: key.to_owned(), value: String::new(), effect }
}

fn bad_nodes() -> Vec<(&'static str, Change<NodeBody>)> {
    vec![
        ("name", |n| n.name = String::new()),
        ("name", |n| n.name = "a\u{7f}".to_owned()),
        ("cpu", |n| n.cpu = -1),
        ("cpu", |n| n.cpu = ABSURD),
        ("memory", |n| n.memory = i64::MIN),
        ("memory", |n| n.memory = ABSURD),
        ("gpus", |n| n.gpus = 17),
        ("gpus", |n| n.gpus = u32::MAX),
        ("custom[1].amount", |n| n.custom = vec![named("new", 1), named("newer", -1)]),
        ("custom[0].name", |n| n.custom = vec![named("", 1)]),
        ("custom[0].name", |n| n.custom = vec![named("gpu", 1)]),
        ("custom", |n| n.custom = vec![named("new", 1), named("new", 2)]),
        ("taints[0].key", |n| n.taints = vec![taint("", 1)]),
        ("taints[1].effect", |n| n.taints = vec![taint("k", 3), taint("k", 0)]),
        ("taints[0].effect", |n| n.taints = vec![taint("k", 4)]),
        ("taints", |n| n.taints = vec![taint("k", 2), taint("k", 2)]),
        ("labels[0].key", |n| n.labels = vec![pair("", "x")]),
        ("labels", |n| n.labels = vec![pair("k", "1"), pair("k", "2")]),
        // Everything that is wrong is found before the registry learns a name.
        ("labels", |n| {
            n.custom = vec![named("new", 1)];
            n.labels = vec![pair("k", "1"), pair("k", "1")];
        }),
    ]
}

#[tokio::test]
async fn every_wrong_field_of_a_node_is_named() {
    let server = TestServer::start(1);
    let client = server.client().await;
    add(&client, vec![node("known", 4, 4, 4)]).await;
    let before = books(&client).await;
    for (field, change) in bad_nodes() {
        for name in ["unknown", "known"] {
            let mut body = node(name, 1, 1, 0);
            change(&mut body);
            let request = NodesRequest { nodes: vec![body] };
            let reply = if name == "known" && field != "name" {
                within(client.update_nodes(&request)).await.unwrap()
            } else {
                within(client.add_nodes(&request)).await.unwrap()
            };
            assert_eq!(only(&reply), (Reason::InvalidField, field), "{reply:?}");
            assert_unmoved(&client, before, field).await;
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn nodes_that_are_there_or_not_are_told_apart() {
    let server = TestServer::start(2);
    let client = server.client().await;
    let racked = |rack: &str| NodeBody { labels: vec![pair("rack", rack)], ..node("a", 4, 4, 0) };
    add(&client, vec![racked("r1")]).await;
    let before = books(&client).await;
    let one = |node: NodeBody| NodesRequest { nodes: vec![node] };

    let twice = NodeBody { custom: vec![named("new", 1)], ..racked("r1") };
    let reply = within(client.add_nodes(&one(twice))).await.unwrap();
    assert_eq!(only(&reply), (Reason::NodeExists, "name"));
    assert_unmoved(&client, before, "added twice").await;
    let reply = within(client.update_nodes(&one(node("b", 1, 1, 0)))).await.unwrap();
    assert_eq!(only(&reply), (Reason::UnknownNode, "name"));
    let names = vec![Name("b".to_owned())];
    let reply =
        within(client.drain_nodes(&DrainRequest { names: names.clone(), undo: false })).await.unwrap();
    assert_eq!(only(&reply), (Reason::UnknownNode, "name"));
    let reply = within(client.remove_nodes(&RemoveRequest { names, force: true })).await.unwrap();
    assert_eq!(only(&reply), (Reason::UnknownNode, "name"));
    assert_unmoved(&client, before, "an unknown node").await;
    let moved = NodeBody { custom: vec![named("new", 1)], ..racked("r2") };
    let reply = within(client.update_nodes(&one(moved))).await.unwrap();
    assert_eq!(only(&reply), (Reason::InvalidField, "labels"));
    assert_unmoved(&client, before, "another rack").await;

    // In one message, a faulty node does not affect the others.
    let nodes = vec![node("c", 1, 1, 0), node("c", 1, 1, 0), node("d", -1, 1, 0), node("e", 1, 1, 0)];
    let reply = within(client.add_nodes(&NodesRequest { nodes })).await.unwrap();
    let reasons: Vec<_> = reply.replies.iter().map(|reply| reply.reason.known().unwrap()).collect();
    assert_eq!(reasons, [Reason::Done, Reason::NodeExists, Reason::InvalidField, Reason::Done]);
    server.stop().await;
}

#[tokio::test]
async fn a_node_in_use_goes_by_force_only() {
    let server = TestServer::start(1);
    let client = server.client().await;
    add(&client, vec![node("a", 8, 8, 0)]).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(place(&client, &ask(1, 1, 0)).await.allocation);
    }
    let before = books(&client).await;
    let remove = |force| RemoveRequest { names: vec![Name("a".to_owned())], force };
    let reply = within(client.remove_nodes(&remove(false))).await.unwrap();
    assert_eq!(only(&reply), (Reason::NodeInUse, "name"));
    assert_eq!(reply.replies[0].allocations_ended, 0);
    assert_unmoved(&client, before, "in use").await;
    let reply = within(client.remove_nodes(&remove(true))).await.unwrap();
    assert_eq!(only(&reply), (Reason::Done, ""));
    assert_eq!(reply.replies[0].allocations_ended, 3);
    let after = books(&client).await;
    for allocation in held {
        let reply = within(client.release(allocation)).await.unwrap();
        assert_eq!(reply.reason.known(), Some(Reason::UnknownAllocation), "it ended with its node");
    }
    assert_unmoved(&client, after, "ended").await;
    assert_eq!(audit(&client).await.shards[0].allocations, 0);
    server.stop().await;
}

#[tokio::test]
async fn an_allocation_is_released_once_and_none_is_made_up() {
    let server = TestServer::start(2);
    let client = server.client().await;
    add(&client, vec![node("a", 8, 8, 0)]).await;
    let held = place(&client, &ask(1, 1, 0)).await.allocation;
    let kept = place(&client, &ask(1, 1, 0)).await.allocation;
    assert!(within(client.release(held)).await.unwrap().reason.is_done());
    let before = books(&client).await;
    let unknown = [
        held,
        WireAllocation { sequence: 999, ..kept },
        WireAllocation { incarnation: kept.incarnation + 1, ..kept },
        WireAllocation { partition: u16::MAX, ..kept },
        WireAllocation::default(),
    ];
    for allocation in unknown {
        let reply = within(client.release(allocation)).await.unwrap();
        assert_eq!(reply.reason.known(), Some(Reason::UnknownAllocation), "{allocation:?}");
        let fault = reply.fault.expect("a fault says what is wrong");
        assert_eq!(fault.field, "allocation");
        assert_unmoved(&client, before, "an unknown allocation").await;
    }
    assert!(within(client.release(kept)).await.unwrap().reason.is_done());
    server.stop().await;
}

/// A body beyond the protocol's own limits is refused as a whole while it is read.
#[tokio::test]
async fn texts_and_lists_beyond_their_limits_are_no_bodies() {
    let server = TestServer::start(1);
    let client = server.client().await;
    add(&client, vec![node("a", 4, 4, 0)]).await;
    let before = books(&client).await;
    let long = || "x".repeat(254);
    let placements: [(&str, &str, PlaceRequest); 5] = [
        ("queue", "254 bytes", PlaceRequest { queue: long(), ..ask(1, 1, 0) }),
        ("name", "254 bytes", with_custom(vec![named(&long(), 1)], ask(1, 1, 0))),
        ("custom", "33 elements", with_custom(vec![named("x", 1); 33], ask(1, 1, 0))),
        ("selectors", "33 elements", PlaceRequest { selectors: vec![term("x", 3, &[]); 33], ..ask(1, 1, 0) }),
        ("candidates", "65537 elements", PlaceRequest { candidates: vec![1; 65_537], ..ask(1, 1, 0) }),
    ];
    for (field, expected, request) in placements {
        let fault = refused(within(client.place(&request)).await, Reason::MalformedBody);
        assert!(fault.message.contains(expected) && fault.message.contains("send at most"), "{fault}");
        assert!(!fault.message.contains("OtherString"), "{fault}");
        assert_eq!(fault.field, field, "{fault}");
        assert_unmoved(&client, before, expected).await;
    }
    let nodes: [(&str, &str, NodeBody); 5] = [
        ("name", "254 bytes", node(&long(), 1, 1, 0)),
        ("identity", "254 bytes", NodeBody { identity: long(), ..node("b", 1, 1, 0) }),
        ("value", "254 bytes", NodeBody { labels: vec![pair("k", &long())], ..node("b", 1, 1, 0) }),
        ("custom", "33 elements", NodeBody { custom: vec![named("x", 1); 33], ..node("b", 1, 1, 0) }),
        ("labels", "65 elements", NodeBody { labels: vec![pair("k", "v"); 65], ..node("b", 1, 1, 0) }),
    ];
    for (field, expected, node) in nodes {
        let fault = refused(
            within(client.add_nodes(&NodesRequest { nodes: vec![node] })).await,
            Reason::MalformedBody,
        );
        assert!(fault.message.contains(expected) && fault.message.contains("send at most"), "{fault}");
        assert!(!fault.message.contains("OtherString"), "{fault}");
        assert_eq!(fault.field, field, "{fault}");
        assert_unmoved(&client, before, expected).await;
    }
    server.stop().await;
}

/// Replies that could exceed a frame although their requests fit one. They are cut or refused, and the server
/// continues.
#[tokio::test]
async fn replies_that_would_outgrow_a_frame_are_cut() {
    let server = TestServer::start(2);
    let client = server.client().await;
    let kinds: Vec<String> = (0..32).map(|i| format!("resource-{i:0>20}")).collect();
    let equipped =
        NodeBody { custom: kinds.iter().map(|kind| named(kind, 1)).collect(), ..node("a", 1, 1, 0) };
    add(&client, vec![equipped]).await;
    let before = books(&client).await;
    let greedy = with_custom(kinds.iter().map(|kind| named(kind, 5)).collect(), ask(0, 0, 0));
    let alone = ask_for(&client, &greedy).await.refusal.expect("refused");
    assert_eq!((alone.examined, alone.checks.len()), (1, 32));
    let batch = PlaceBatch { requests: vec![greedy; 850] };
    let reply = within(client.place_batch(&batch)).await.unwrap();
    assert_eq!(reply.replies.len(), 850);
    for reply in reply.replies {
        assert_eq!(reply.reason.known(), Some(Reason::Infeasible));
        let refusal = reply.refusal.expect("refused");
        assert_eq!((refusal.nodes, refusal.examined, refusal.checks.len()), (1, 0, 0));
    }
    // A fault does not repeat a name, whose printable form would be longer.
    let nodes = vec![node(&"\u{1}".repeat(253), 1, 1, 0); 1024];
    let reply = within(client.add_nodes(&NodesRequest { nodes })).await.unwrap();
    assert!(reply.replies.iter().all(|reply| reply.reason.known() == Some(Reason::InvalidField)));
    let requests = vec![with_custom(vec![named(&"\u{1}".repeat(253), 1)], ask(1, 1, 0)); 1024];
    let reply = within(client.place_batch(&PlaceBatch { requests })).await.unwrap();
    assert!(reply.replies.iter().all(|reply| reply.reason.known() == Some(Reason::InvalidField)));
    assert_unmoved(&client, before, "long replies").await;
    server.stop().await;
}

fn kinds(from: usize, count: usize, width: usize) -> Vec<NamedAmount> {
    (from..from + count).map(|i| named(&format!("{i:0>width$}"), 1)).collect()
}

/// A store learns a limited number of resource kinds. A node that names more than there is room for adds none
/// of them.
#[tokio::test]
async fn a_full_registry_refuses_and_learns_nothing() {
    let server = TestServer::start(1);
    let client = server.client().await;
    let nodes = (0..128).map(|i| NodeBody {
        custom: kinds(i * 32, if i == 127 { 31 } else { 32 }, 4),
        ..node(&format!("n{i}"), 1, 1, 0)
    });
    add(&client, nodes.collect()).await;
    let before = books(&client).await;
    let two = NodeBody { custom: kinds(4095, 2, 4), ..node("two", 1, 1, 0) };
    let reply = within(client.add_nodes(&NodesRequest { nodes: vec![two] })).await.unwrap();
    assert_eq!(only(&reply), (Reason::LimitExceeded, "custom"));
    assert_unmoved(&client, before, "a full registry").await;
    add(&client, vec![NodeBody { custom: kinds(4095, 1, 4), ..node("one", 1, 1, 0) }]).await;
    assert_eq!(audit(&client).await.resources.len(), 3 + 4096);
    server.stop().await;
}

/// The status of thousands of resources with the longest names exceeds a frame. It is refused, and everything
/// else continues.
#[tokio::test]
async fn a_status_that_fits_no_frame_is_refused() {
    let server = TestServer::start(1);
    let client = server.client().await;
    for i in 0..128 {
        let custom = kinds(i * 32, 32, 253);
        add(&client, vec![NodeBody { custom, ..node(&format!("n{i}"), 1, 1, 0) }]).await;
    }
    let status = within(client.status(&wharf_net::protocol::StatusRequest { audit: false })).await;
    let fault = refused(status, Reason::LimitExceeded);
    assert!(fault.message.contains("does not fit"), "{fault}");
    place(&client, &ask(1, 1, 0)).await;
    server.stop().await;
}
