//! Waiting placements over the wire. Capacity wakes them. Deadline, cancellation, disconnection and the end
//! of the server end them. They never block other requests.

use crate::harness::{
    Peer, TestServer, add, ask, audit, granted, named, node, pair, place, request, with_custom, within,
};
use wharf_core::limits::CONNECTION_WAITING_MAX;
use wharf_net::client::Client;
use wharf_net::protocol::{
    CancelReply, CancelRequest, FallbackSelector, Kind, MODE_WAIT_UNTIL, Name, NodeBody, OPERATOR_IN,
    PlaceBatch, PlaceReply, PlaceRequest, Reason, Resume, SelectorTerm, StatusRequest, Waiting, kinds,
};

fn waits(request: PlaceRequest) -> PlaceRequest {
    PlaceRequest { mode: MODE_WAIT_UNTIL, ..request }
}

/// Polls until this number of requests waits.
pub(crate) async fn until_waiting(client: &Client, feasible: u64, infeasible: u64) {
    let expected = Waiting { feasible, infeasible };
    within(async {
        while client.status(&StatusRequest::default()).await.expect("answered").waiting != expected {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_release_wakes_exactly_one() {
    let server = TestServer::start(4);
    let client = server.client().await;
    add(&client, (0..8).map(|i| node(&format!("n{i}"), 4, 4096, 0)).collect()).await;
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(place(&client, &ask(4, 0, 0)).await.allocation);
    }
    let low = waits(ask(4, 0, 0));
    let high = PlaceRequest { priority: 7, ..low.clone() };
    let (_, first) = within(client.call_waiting::<kinds::Place>(&low)).await.expect("sent");
    until_waiting(&client, 1, 0).await;
    let (_, second) = within(client.call_waiting::<kinds::Place>(&high)).await.expect("sent");
    until_waiting(&client, 2, 0).await;
    within(client.release(held[3])).await.expect("answered");
    granted(within(second).await.expect("answered"));
    until_waiting(&client, 1, 0).await;
    within(client.release(held[4])).await.expect("answered");
    granted(within(first).await.expect("answered"));
    until_waiting(&client, 0, 0).await;
    assert!(audit(&client).await.books_hash.is_some());
    server.stop().await;
}

#[tokio::test]
async fn what_no_node_could_hold_is_taken_by_a_new_node() {
    let server = TestServer::start(3);
    let client = server.client().await;
    add(&client, vec![node("small", 4, 4096, 0)]).await;
    let (_, reply) = within(client.call_waiting::<kinds::Place>(&waits(ask(16, 0, 0)))).await.expect("sent");
    until_waiting(&client, 0, 1).await;
    add(&client, vec![node("large", 16, 4096, 0)]).await;
    assert_eq!(granted(within(reply).await.expect("answered")).node_name, "large");
    server.stop().await;
}

#[tokio::test]
async fn at_its_deadline_it_is_refused_with_the_reasons() {
    let server = TestServer::start(3);
    let client = server.client().await;
    add(&client, vec![node("n", 4, 4096, 0)]).await;
    place(&client, &ask(3, 0, 0)).await;
    let now = within(client.status(&StatusRequest::default())).await.expect("answered").now;
    let late = PlaceRequest { deadline: now + 1_000_000, ..waits(ask(4, 0, 0)) };
    let reply = within(client.place(&late)).await.expect("answered");
    assert_eq!(reply.reason, Reason::NoFitNow.into(), "{reply:?}");
    let refusal = reply.refusal.expect("it says why");
    assert_eq!(
        (refusal.nodes, refusal.checks[0].resource.as_str(), refusal.checks[0].least_short),
        (1, "cpu", 30_000)
    );
    // A deadline in the past allows one attempt.
    granted(
        within(client.place(&PlaceRequest { deadline: 1, ..waits(ask(1, 0, 0)) })).await.expect("answered"),
    );
    let reply =
        within(client.place(&PlaceRequest { deadline: 1, ..waits(ask(5, 0, 0)) })).await.expect("answered");
    assert_eq!(reply.reason, Reason::Infeasible.into());
    until_waiting(&client, 0, 0).await;
    server.stop().await;
}

#[tokio::test]
async fn it_is_cancelled_by_its_sequence() {
    let server = TestServer::start(3);
    let client = server.client().await;
    add(&client, vec![node("n", 4, 4096, 0)]).await;
    place(&client, &ask(4, 0, 0)).await;
    let (sequence, reply) =
        within(client.call_waiting::<kinds::Place>(&waits(ask(1, 0, 0)))).await.expect("sent");
    until_waiting(&client, 1, 0).await;
    assert!(within(client.cancel_wait(sequence)).await.expect("answered").waited);
    assert_eq!(within(reply).await.expect("answered").reason, Reason::Cancelled.into());
    assert_eq!(within(client.cancel_wait(sequence)).await.expect("answered"), CancelReply { waited: false });
    until_waiting(&client, 0, 0).await;
    server.stop().await;
}

#[tokio::test]
async fn a_lost_connection_ends_its_waits_and_a_resumed_one_begins_them_again() {
    let server = TestServer::start(3);
    let client = server.client().await;
    add(&client, vec![node("n", 4, 4096, 0)]).await;
    let held = place(&client, &ask(4, 0, 0)).await.allocation;
    let (mut peer, opened) = Peer::open(&server).await;
    peer.send(&request(Kind::Place, 1, &waits(ask(2, 0, 0)))).await;
    until_waiting(&client, 1, 0).await;
    peer.leave().await;
    until_waiting(&client, 0, 0).await;
    let resume = Resume { session: opened.session, token: opened.token };
    let (mut peer, _) = Peer::resume(&server, Some(resume)).await;
    peer.send(&request(Kind::Place, 1, &waits(ask(2, 0, 0)))).await;
    until_waiting(&client, 1, 0).await;
    within(client.release(held)).await.expect("answered");
    granted(peer.frame().await.body::<PlaceReply>());
    server.stop().await;
}

#[tokio::test]
async fn a_kind_that_nobody_has_yet_is_waited_for_and_taken_by_a_new_node() {
    let server = TestServer::start(3);
    let client = server.client().await;
    add(&client, vec![node("n", 4, 4096, 0)]).await;
    let request = |kind: &str| with_custom(vec![named(kind, 2)], ask(1, 0, 0));
    // A request that does not wait is refused as usual, and adds no kind to the registry.
    let refused = within(client.place(&request("qpu"))).await.expect("answered");
    assert_eq!(refused.reason, Reason::Infeasible.into());
    let fault = refused.fault.expect("what is wrong, too");
    assert!(fault.field == "custom[0].name" && fault.message.contains("`qpu`"), "{fault}");
    let (_, reply) = within(client.call_waiting::<kinds::Place>(&waits(request("qpu")))).await.expect("sent");
    let (sequence, other) =
        within(client.call_waiting::<kinds::Place>(&waits(request("tpu")))).await.expect("sent");
    until_waiting(&client, 0, 2).await;
    let refused = within(client.place(&request("qpu"))).await.expect("answered");
    let check = refused.refusal.expect("a refusal").checks.remove(0);
    assert_eq!((refused.reason, check.resource.as_str()), (Reason::Infeasible.into(), "qpu"));
    let broken = PlaceRequest { policy: 200, ..request("xpu") };
    let (_, broken) = within(client.call_waiting::<kinds::Place>(&waits(broken))).await.expect("sent");
    assert_eq!(within(broken).await.expect("answered").fault.expect("a fault").field, "policy");
    let body = NodeBody { custom: vec![named("qpu", 2)], ..node("new", 4, 4096, 0) };
    let ids = add(&client, vec![body]).await;
    assert_eq!(granted(within(reply).await.expect("answered")).node, ids[0]);
    until_waiting(&client, 0, 1).await;
    within(client.cancel_wait(sequence)).await.expect("answered");
    let cancelled = within(other).await.expect("answered");
    assert_eq!(cancelled.refusal.expect("a refusal").checks[0].resource, "tpu");
    server.stop().await;
}

/// The client acknowledges by its mark, so its wait cannot go on with the next start.
#[tokio::test]
async fn a_server_that_stops_says_so_to_who_waits() {
    let server = TestServer::start(2);
    let client = server.client().await;
    add(&client, vec![node("n", 1, 4096, 0)]).await;
    let (mut peer, _) = Peer::open(&server).await;
    peer.send(&request(Kind::Place, 1, &waits(ask(2, 0, 0)))).await;
    until_waiting(&client, 0, 1).await;
    let stopped = tokio::spawn(server.stop());
    let reply: PlaceReply = peer.frame().await.body();
    assert_eq!(reply.reason, Reason::ShuttingDown.into(), "{reply:?}");
    assert!(!reply.fault.expect("it says why").message.is_empty());
    within(stopped).await.expect("it stopped well");
}

/// The client library acknowledges waits individually. Its wait goes on with the next start, so it has no reply.
#[tokio::test]
async fn a_server_that_stops_answers_no_wait_that_goes_on() {
    let server = TestServer::start(2);
    let client = server.client().await;
    add(&client, vec![node("n", 1, 4096, 0)]).await;
    let (_, reply) = within(client.call_waiting::<kinds::Place>(&waits(ask(2, 0, 0)))).await.expect("sent");
    until_waiting(&client, 0, 1).await;
    let stopped = tokio::spawn(server.stop());
    within(stopped).await.expect("it stopped well");
    assert!(within(reply).await.is_err(), "the connection ended");
}

/// More requests may wait than a connection may have unanswered otherwise, up to their own bound.
#[tokio::test]
async fn waiting_requests_are_in_nobodys_way_and_bounded() {
    let server = TestServer::start(2);
    let client = server.client().await;
    add(&client, vec![node("n", 8, 4096, 0)]).await;
    let mut replies = Vec::new();
    for _ in 0..CONNECTION_WAITING_MAX {
        replies
            .push(within(client.call_waiting::<kinds::Place>(&waits(ask(16, 0, 0)))).await.expect("sent").1);
    }
    until_waiting(&client, 0, CONNECTION_WAITING_MAX as u64).await;
    let full = within(client.place(&waits(ask(16, 0, 0)))).await.expect("answered");
    let fault = full.fault.expect("no more may wait");
    assert_eq!((fault.reason, fault.field.as_str()), (Reason::LimitExceeded.into(), "mode"));
    for _ in 0..100 {
        let held = place(&client, &ask(1, 0, 0)).await.allocation;
        within(client.release(held)).await.expect("answered");
    }
    add(&client, vec![node("large", 16, 4096, 0)]).await;
    granted(within(replies.remove(0)).await.expect("the oldest is placed"));
    until_waiting(&client, CONNECTION_WAITING_MAX as u64 - 1, 0).await;
    server.stop().await;
}

#[tokio::test]
async fn requests_of_a_batch_do_not_wait() {
    let server = TestServer::start(1);
    let client = server.client().await;
    let batch = PlaceBatch { requests: vec![waits(ask(1, 0, 0)), ask(1, 0, 0)] };
    let replies = within(client.place_batch(&batch)).await.expect("answered").replies;
    assert_eq!(replies[0].fault.as_ref().expect("refused").field, "mode");
    assert_eq!(replies[1].reason, Reason::Infeasible.into());
    let (mut peer, _) = Peer::open(&server).await;
    let cancel = peer.call(Kind::CancelWait, 1, &CancelRequest { sequence: 77 }).await;
    assert_eq!(cancel.body::<CancelReply>(), CancelReply { waited: false });
    server.stop().await;
}

/// Requests with preferences wait with all their fallbacks, and their replies have the units.
#[tokio::test]
async fn requests_with_preferences_wait_too() {
    let zone = |zone: &str| {
        let values = vec![Name(zone.to_owned())];
        vec![SelectorTerm { key: "zone".to_owned(), operator: OPERATOR_IN, values }]
    };
    let server = TestServer::start(3);
    let client = server.client().await;
    let body =
        NodeBody { custom: vec![named("npu", 2)], labels: vec![pair("zone", "b")], ..node("b", 4, 4096, 0) };
    add(&client, vec![body]).await;
    let held = place(&client, &ask(4, 0, 0)).await;
    let asked = PlaceRequest { selectors: zone("a"), ..with_custom(vec![named("npu", 1)], ask(1, 0, 0)) };
    let mut wanted = waits(asked.clone());
    wanted.fallbacks = ["c", "b"].map(|name| FallbackSelector { terms: zone(name) }).to_vec();
    let (_, reply) = within(client.call_waiting::<kinds::Place>(&wanted)).await.expect("sent");
    until_waiting(&client, 1, 0).await;
    let status = within(client.status(&StatusRequest::default())).await.expect("answered");
    assert_eq!(status.waiting, Waiting { feasible: 1, infeasible: 0 });
    within(client.release(held.allocation)).await.expect("answered");
    let reply = within(reply).await.expect("answered");
    assert_eq!(reply.alternative, 2);
    assert_eq!(granted(reply).units[0].instances, [0]);
    // Fallbacks also work at once and in batches. Requests in batches do not wait.
    let at_once = PlaceRequest { fallbacks: wanted.fallbacks.clone(), ..asked };
    let batch = PlaceBatch { requests: vec![ask(1, 0, 0), at_once, wanted] };
    let replies = within(client.place_batch(&batch)).await.expect("answered").replies;
    assert_eq!(granted(replies[1].clone()).units[0].instances, [1]);
    let fault = replies[2].fault.as_ref().expect("a fault");
    assert_eq!((fault.reason, fault.field.as_str()), (Reason::InvalidField.into(), "mode"));
    server.stop().await;
}
