//! Clients that vanish: from one moment on nothing comes from them, and nothing that is sent to them arrives. The server is
//! not told.

use std::sync::Arc;
use std::time::Duration;

use wharf_net::client::Client;
use wharf_net::codec::{Extension, decode_body, encode_body};
use wharf_net::limits::{Bounds, SESSION_KEPT_FOR_DEFAULT};
use wharf_net::protocol::{
    ALPN, Acknowledged, BundleTemplate, CreateGroupRequest, EXTENSION_ACKNOWLEDGED, Hello, HelloReply, Kind,
    ListGroupsRequest, MODE_WAIT_UNTIL, PlaceReply, PlaceRequest, Reason, Resume, StatusReply, StatusRequest,
    VERSION_MAX, VERSION_MIN,
};
use wharf_net::server::{Patience, Settings};

use crate::harness::{
    self, PATIENCE, Peer, Proxy, TestServer, add, ask, crypto, extended, granted, header, node, place,
    request, within,
};

/// The time after which the server takes a silent connection for lost.
const IDLE: Duration = Duration::from_secs(5);
/// How often a client that has not vanished sends something.
const ALIVE: Duration = Duration::from_millis(500);

/// The connections of one address: as many as a test has at a time.
const PER_ADDRESS: u32 = 3;

fn start_with(settings: Settings) -> TestServer {
    let patience = Patience { idle: IDLE, ..Patience::default() };
    TestServer::start_patient(1, Settings { connections_per_address_max: PER_ADDRESS, ..settings }, patience)
}

fn start() -> TestServer {
    start_with(Settings::default())
}

/// Connects a client that stays. It connects again if the machine is too busy for its signs of life.
async fn staying(server: &TestServer) -> Client {
    within(Client::connect(server.client_config(PATIENCE))).await.expect("the server is there")
}

fn hello_of(resume: Option<Resume>, is_exact: bool) -> Vec<u8> {
    let mut none = Vec::new();
    encode_body(&Acknowledged::default(), &mut none);
    let exactly = [Extension { tag: EXTENSION_ACKNOWLEDGED, bytes: &none }];
    let hello =
        Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, client: "vanishing".to_owned(), resume };
    extended(header(Kind::Hello, 0), if is_exact { &exactly } else { &[] }, &hello)
}

/// Returns a reply to a hello. It may have an extension.
#[track_caller]
fn greeting(reply: &harness::Frame) -> HelloReply {
    assert_eq!(reply.fault(), None);
    decode_body(&reply.payload).expect("a reply to a hello").0
}

/// A client that can vanish, and what it needs to resume its session.
struct Vanishing {
    peer: Peer,
    proxy: Proxy,
    is_exact: bool,
    resume: Resume,
}

impl Vanishing {
    /// Connects a client that only the server may give up.
    async fn connect(server: &TestServer, is_exact: bool) -> Self {
        let proxy = Proxy::to(server.address).await;
        let mut transport = quinn::TransportConfig::default();
        transport.keep_alive_interval(Some(ALIVE));
        transport.max_idle_timeout(None);
        let mut config = quinn::ClientConfig::new(Arc::new(crypto(server, ALPN)));
        config.transport_config(Arc::new(transport));
        let mut endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).expect("a free port");
        endpoint.set_default_client_config(config);
        let mut peer = Peer::connect_from(endpoint, proxy.address).await;
        peer.send(&hello_of(None, is_exact)).await;
        let opened = greeting(&peer.frame().await);
        let resume = Resume { session: opened.session, token: opened.token };
        Self { peer, proxy, is_exact, resume }
    }

    /// Connects again and resumes the session. Returns the reply to its hello.
    async fn come_back(self, server: &TestServer) -> (Peer, harness::Frame) {
        let mut again = Peer::connect(server).await;
        again.send(&hello_of(Some(self.resume), self.is_exact)).await;
        let reply = again.frame().await;
        (again, reply)
    }
}

/// Asks until the status is as wanted.
async fn until(client: &Client, is_wanted: impl Fn(&StatusReply) -> bool) -> StatusReply {
    within(async {
        loop {
            let status = client.status(&StatusRequest::default()).await.expect("answered");
            if is_wanted(&status) {
                return status;
            }
        }
    })
    .await
}

async fn groups(client: &Client) -> usize {
    within(client.list_groups(&ListGroupsRequest::default())).await.expect("answered").groups.len()
}

async fn until_groups(client: &Client, count: usize) {
    within(async { while groups(client).await != count {} }).await;
}

/// Returns how many placements wait.
fn waiting(status: &StatusReply) -> u64 {
    status.waiting.feasible + status.waiting.infeasible
}

/// Asks for more than there is until a second node comes.
fn wait_for_much() -> PlaceRequest {
    PlaceRequest { mode: MODE_WAIT_UNTIL, ..ask(100, 0, 0) }
}

/// Asks for a group on all cores of the first node, of which one is in use.
fn group_of_a_node() -> CreateGroupRequest {
    let bundles = vec![BundleTemplate { request: ask(4, 0, 0), count: 1 }];
    CreateGroupRequest { bundles, mode: MODE_WAIT_UNTIL, ..CreateGroupRequest::default() }
}

#[tokio::test]
async fn the_connection_of_a_client_that_vanished_ends_and_its_session_waits_for_it() {
    let server = start();
    let client = staying(&server).await;
    add(&client, vec![node("a", 4, 64, 0)]).await;
    let mut plain = Vanishing::connect(&server, false).await;
    let mut exact = Vanishing::connect(&server, true).await;
    let placed = plain.peer.call(Kind::Place, 1, &ask(1, 1, 0)).await;
    granted(placed.body());
    plain.peer.send(&request(Kind::Place, 2, &wait_for_much())).await;
    plain.peer.send(&request(Kind::CreateGroup, 3, &group_of_a_node())).await;
    exact.peer.send(&request(Kind::Place, 1, &wait_for_much())).await;
    until(&client, |status| waiting(status) == 2 && status.connections == 3).await;
    until_groups(&client, 1).await;
    plain.proxy.cut();
    exact.proxy.cut();
    let status = until(&client, |status| status.connections == 1).await;
    // What it had stays. What waited ends with the connection, unless the client acknowledges waits individually.
    assert_eq!(status.shards.iter().map(|shard| shard.allocations).sum::<u64>(), 1);
    until(&client, |status| waiting(status) == 1).await;
    until_groups(&client, 0).await;
    // What still waits takes nobody's room.
    let newcomers = [staying(&server).await, staying(&server).await];
    for newcomer in newcomers {
        within(newcomer.close()).await;
    }
    until(&client, |status| status.connections == 1).await;
    add(&client, vec![node("b", 100, 64, 0)]).await;
    until(&client, |status| waiting(status) == 0).await;
    // Both come back: one finds its outcome as it was, the other one that came about meanwhile.
    let (mut again, hello) = plain.come_back(&server).await;
    assert!(greeting(&hello).resumed);
    assert_eq!(again.call(Kind::Place, 1, &ask(1, 1, 0)).await.bytes, placed.bytes);
    again.leave().await;
    let (mut again, hello) = exact.come_back(&server).await;
    assert!(greeting(&hello).resumed);
    granted(again.call(Kind::Place, 1, &wait_for_much()).await.body::<PlaceReply>());
    again.leave().await;
    within(client.close()).await;
    server.stop().await;
}

#[tokio::test]
async fn the_session_of_a_client_that_stays_away_ends_with_its_waits() {
    let server = start();
    let client = staying(&server).await;
    add(&client, vec![node("a", 4, 64, 0)]).await;
    place(&client, &ask(1, 1, 0)).await;
    let mut exact = Vanishing::connect(&server, true).await;
    exact.peer.send(&request(Kind::Place, 1, &wait_for_much())).await;
    exact.peer.send(&request(Kind::CreateGroup, 2, &group_of_a_node())).await;
    until(&client, |status| waiting(status) == 1).await;
    until_groups(&client, 1).await;
    exact.proxy.cut();
    until(&client, |status| status.connections == 1).await;
    assert_eq!(groups(&client).await, 1);
    server.pass(u64::try_from(SESSION_KEPT_FOR_DEFAULT.as_nanos()).expect("an hour"));
    // A reply of the engine wakes the thread, which sleeps until the deadline otherwise.
    place(&client, &ask(1, 1, 0)).await;
    until(&client, |status| waiting(status) == 0).await;
    until_groups(&client, 0).await;
    let (again, hello) = exact.come_back(&server).await;
    hello.assert_fault(Reason::UnknownSession);
    again.leave().await;
    within(client.close()).await;
    server.stop().await;
}

#[tokio::test]
async fn a_connection_that_is_not_read_further_ends_when_it_is_lost() {
    let server = start_with(Settings { in_flight_max: 2, ..Settings::default() });
    let client = staying(&server).await;
    add(&client, vec![node("a", 4, 64, 0)]).await;
    let mut plain = Vanishing::connect(&server, false).await;
    // No planner answers, so nothing is read once two requests are under way.
    server.planner_gate.close();
    for sequence in 1..8 {
        plain.peer.send(&request(Kind::CreateGroup, sequence, &group_of_a_node())).await;
    }
    place(&client, &ask(1, 1, 0)).await;
    until(&client, |status| status.connections == 2).await;
    plain.proxy.cut();
    until(&client, |status| status.connections == 1).await;
    server.planner_gate.open();
    within(client.close()).await;
    server.stop().await;
}

/// The lost connections whose requests may wait, where a test has a low bound.
const LOST: usize = 2;

#[tokio::test]
async fn of_too_many_lost_connections_whose_requests_wait_the_oldest_ends() {
    let bounds = Bounds { lost_connections: LOST, ..Bounds::default() };
    let server = start_with(Settings { bounds, ..Settings::default() });
    let client = staying(&server).await;
    add(&client, vec![node("a", 4, 64, 0)]).await;
    let mut left = Vec::new();
    for nth in 0..=LOST {
        let mut peer = Peer::connect(&server).await;
        peer.send(&hello_of(None, true)).await;
        let opened = greeting(&peer.frame().await);
        peer.send(&request(Kind::Place, 1, &wait_for_much())).await;
        until(&client, |status| waiting(status) == 1 + nth as u64 && status.connections == 2).await;
        // The connection is closed, and the session is not ended.
        peer.leave().await;
        until(&client, |status| status.connections == 1).await;
        left.push(Resume { session: opened.session, token: opened.token });
    }
    until(&client, |status| waiting(status) == LOST as u64).await;
    for (nth, &resume) in left.iter().enumerate() {
        let mut again = Peer::connect(&server).await;
        again.send(&hello_of(Some(resume), true)).await;
        let reply = again.frame().await;
        if nth == 0 {
            drop(reply.assert_fault(Reason::UnknownSession));
        } else {
            assert!(greeting(&reply).resumed);
        }
        again.leave().await;
        until(&client, |status| status.connections == 1).await;
    }
    // The others wait on.
    until(&client, |status| waiting(status) == LOST as u64).await;
    within(client.close()).await;
    server.stop().await;
}
