//! Handshakes that peers begin and do not go on with.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn::crypto::rustls::QuicClientConfig;
use quinn_proto::{Connection, DatagramEvent, Endpoint, EndpointConfig, Event};
use tokio::net::UdpSocket;
use wharf_net::client::Client;
use wharf_net::limits::{Bounds, INCOMING_BYTES_MAX};
use wharf_net::protocol::{ALPN, StatusRequest};
use wharf_net::server::{Patience, Settings};

use crate::harness::{
    Peer, SERVER_NAME, TestServer, add, ask, books, crypto, crypto_offering, endpoint_at, node, place, within,
};

/// The connections of one address. Half of them may be in handshakes whose peers have not proved the address.
const PER_ADDRESS: u32 = 16;
/// The peers that begin a handshake at one address.
const PEERS: usize = 100;
/// The time for a handshake. Far more than it takes to begin all of them.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Longer than any test runs, so that only the bound on handshakes ends them.
const IDLE: Duration = Duration::from_secs(3600);

const ONE_ADDRESS: [u8; 4] = [127, 0, 0, 1];
const OTHER_ADDRESS: [u8; 4] = [127, 0, 0, 2];

fn start() -> TestServer {
    let settings = Settings { connections_per_address_max: PER_ADDRESS, ..Settings::default() };
    TestServer::start_patient(
        0,
        settings,
        Patience { handshake: HANDSHAKE, idle: IDLE, ..Patience::default() },
    )
}

/// The answer of the server to the first datagram of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It goes on with the handshake, and keeps state for it.
    Handshake,
    /// It wants a proof of the address first, and keeps nothing.
    Retry,
}

/// Begins a connection. Returns it with its first datagrams, in which all but the address is as a good client sends it.
fn begin(server: &TestServer, crypto: QuicClientConfig) -> (Endpoint, Connection, Vec<Vec<u8>>) {
    let config = Arc::new(EndpointConfig::default());
    let mut endpoint = Endpoint::new(config, None, true, None);
    let client = quinn::ClientConfig::new(Arc::new(crypto));
    let now = Instant::now();
    let connecting = endpoint.connect(now, client, server.address, SERVER_NAME);
    let (_, mut connection) = connecting.expect("the address is one");
    let next = || {
        let mut datagram = Vec::new();
        let sent = connection.poll_transmit(now, 1, &mut datagram)?;
        datagram.truncate(sent.size);
        Some(datagram)
    };
    let datagrams = std::iter::from_fn(next).collect();
    (endpoint, connection, datagrams)
}

fn first_datagram(server: &TestServer) -> Vec<u8> {
    begin(server, crypto(server, ALPN)).2.remove(0)
}

/// A peer that sends the first datagram of a handshake and nothing else.
struct Unfinished {
    /// It stays open, so that the server is not told that nobody is there.
    _socket: UdpSocket,
    answer: Answer,
}

impl Unfinished {
    async fn begin(server: &TestServer, address: [u8; 4]) -> Self {
        let socket = UdpSocket::bind((std::net::Ipv4Addr::from(address), 0)).await.expect("a free port");
        socket.send_to(&first_datagram(server), server.address).await.expect("it is sent");
        let mut answer = [0; 2048];
        within(socket.recv(&mut answer)).await.expect("the server answers");
        // The form bit and two bits of the type (RFC 9000, section 17.2). The bit between them may have any value (RFC 9287).
        let answer = match answer[0] >> 4 & 0b1011 {
            0b1000 => Answer::Handshake,
            0b1011 => Answer::Retry,
            other => panic!("a packet of another kind: {other:#b}"),
        };
        Self { _socket: socket, answer }
    }
}

fn handshakes(server: &TestServer) -> u64 {
    server.shared.sessions.counters.handshakes.load(Ordering::Relaxed)
}

fn handshakes_waiting(server: &TestServer) -> u64 {
    server.shared.sessions.counters.handshakes_waiting.load(Ordering::Relaxed)
}

/// Starts a server that begins one handshake per second.
fn start_slow(handshake: Duration) -> TestServer {
    let settings = Settings { handshakes_per_second: 1, ..Settings::default() };
    TestServer::start_patient(0, settings, Patience { handshake, idle: IDLE, ..Patience::default() })
}

/// Sends the first datagrams of a crowd at one address, which are not waited for. Returns its sockets.
async fn crowd(server: &TestServer, size: usize) -> Vec<UdpSocket> {
    let mut sockets = Vec::new();
    for _ in 0..size {
        let socket = UdpSocket::bind((std::net::Ipv4Addr::from(ONE_ADDRESS), 0)).await.expect("a free port");
        socket.send_to(&first_datagram(server), server.address).await.expect("it is sent");
        sockets.push(socket);
    }
    sockets
}

async fn until_none(server: &TestServer, client: &Client) {
    within(async {
        while handshakes(server) > 0 {
            client.status(&StatusRequest::default()).await.expect("answered");
        }
    })
    .await;
}

#[tokio::test]
async fn unfinished_handshakes_are_bounded_and_end_and_others_are_served() {
    let server = start();
    let client = server.client().await;
    add(&client, vec![node("a", 1000, 1000, 0)]).await;
    let before = books(&client).await;
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        peers.push(Unfinished::begin(&server, ONE_ADDRESS).await);
    }
    // The client is one of the connections of the address.
    let room = PER_ADDRESS as usize / 2 - 1;
    let answers: Vec<Answer> = peers.iter().map(|peer| peer.answer).collect();
    let expected: Vec<Answer> =
        (0..PEERS).map(|nth| if nth < room { Answer::Handshake } else { Answer::Retry }).collect();
    assert_eq!(answers, expected);
    assert_eq!(handshakes(&server), room as u64);
    assert_eq!(books(&client).await, before, "the books moved");
    // A good client at the same address proves it, and is served. At another address, it need not.
    let good = server.client().await;
    place(&good, &ask(1, 1, 0)).await;
    let elsewhere = endpoint_at(&server, ALPN, OTHER_ADDRESS);
    Peer::connect_from(elsewhere, server.address).await.leave().await;
    within(good.close()).await;
    // All state of the handshakes is gone in time, so another one may begin.
    until_none(&server, &client).await;
    assert_eq!(Unfinished::begin(&server, ONE_ADDRESS).await.answer, Answer::Handshake);
    within(client.close()).await;
    // Nor does an unfinished handshake keep the server from stopping.
    server.stop().await;
}

#[tokio::test]
async fn a_crowd_at_one_address_does_not_keep_others_from_connecting() {
    let server = start_slow(IDLE);
    let _sockets = crowd(&server, PEERS).await;
    within(async {
        while handshakes_waiting(&server) + 2 < PEERS as u64 {
            tokio::task::yield_now().await
        }
    })
    .await;
    let elsewhere = endpoint_at(&server, ALPN, OTHER_ADDRESS);
    let peer = Peer::connect_from(elsewhere, server.address).await;
    // It was its turn after one of the crowd. Far more of the crowd still wait.
    assert!(handshakes_waiting(&server) > PEERS as u64 / 2, "{}", handshakes_waiting(&server));
    peer.leave().await;
    // Nor do those that wait keep the server from stopping.
    server.stop().await;
}

#[tokio::test]
async fn attempts_that_wait_for_too_long_are_dropped() {
    let server = start_slow(Duration::from_secs(1));
    let _sockets = crowd(&server, 2 * PEERS).await;
    within(async {
        while handshakes(&server) == 0 {
            tokio::task::yield_now().await
        }
    })
    .await;
    // The turns of all would take longer than the test waits for anything.
    within(async {
        while handshakes(&server) > 0 {
            tokio::task::yield_now().await
        }
    })
    .await;
    server.stop().await;
}

/// The handshakes that may have begun where a test has a low bound.
const BEGUN: usize = 4;

/// Would fail if handshakes that are not completed kept their room: each may take longer than the test waits for anything.
/// Would also fail if more of them could begin, because then none of the crowd would wait.
#[tokio::test]
async fn begun_handshakes_are_bounded_and_give_up_their_room() {
    let bounds = Bounds { handshakes_begun: BEGUN, ..Bounds::default() };
    let settings = Settings { bounds, ..Settings::default() };
    let server = TestServer::start_patient(
        0,
        settings,
        Patience { handshake: IDLE, idle: IDLE, ..Patience::default() },
    );
    let _sockets = crowd(&server, 2 * PEERS).await;
    within(async {
        while handshakes_waiting(&server) <= PEERS as u64 / 2 {
            tokio::task::yield_now().await
        }
    })
    .await;
    for _ in 0..2 {
        let other_network = endpoint_at(&server, ALPN, OTHER_ADDRESS);
        Peer::connect_from(other_network, server.address).await.leave().await;
    }
    assert!(handshakes_waiting(&server) > 0, "all of the crowd have begun");
    server.stop().await;
}

/// A client whose first message takes two datagrams. It is driven by hand: it has no timers, so it sends nothing again.
struct Driven {
    socket: UdpSocket,
    endpoint: Endpoint,
    connection: Connection,
    datagrams: Vec<Vec<u8>>,
}

impl Driven {
    async fn new(server: &TestServer) -> Self {
        let long_names = (0..8u8).map(|nth| vec![b'a' + nth; 200]);
        let offered = [ALPN.to_vec()].into_iter().chain(long_names).collect();
        let (endpoint, connection, datagrams) = begin(server, crypto_offering(server, offered));
        assert_eq!(datagrams.len(), 2);
        let socket = UdpSocket::bind((std::net::Ipv4Addr::from(ONE_ADDRESS), 0)).await.expect("a free port");
        socket.connect(server.address).await.expect("it is an address");
        Self { socket, endpoint, connection, datagrams }
    }

    async fn send(&self, nth: usize) {
        self.socket.send(&self.datagrams[nth]).await.expect("it is sent");
    }

    /// Sends the first datagram, and then again until so many bytes were repeated at least.
    async fn send_first_again(&self, bytes: u64) {
        let length = self.datagrams[0].len() as u64;
        for _ in 0..1 + bytes.div_ceil(length) {
            self.send(0).await;
        }
    }

    /// Takes the next datagram of the server. Returns whether it shows that the server has the whole message.
    async fn is_understood(&mut self) -> bool {
        let mut answer = [0; 2048];
        let length = within(self.socket.recv(&mut answer)).await.expect("the server answers");
        let server = self.socket.peer_addr().expect("it is connected");
        let data = BytesMut::from(&answer[..length]);
        let event = self.endpoint.handle(Instant::now(), server, None, None, data, &mut Vec::new());
        let Some(DatagramEvent::ConnectionEvent(_, event)) = event else { panic!("another answer") };
        self.connection.handle_event(event);
        std::iter::from_fn(|| self.connection.poll()).any(|event| matches!(event, Event::HandshakeDataReady))
    }

    /// Asserts that the server has only the first datagram, and takes the second one now.
    async fn assert_cut(&mut self) {
        assert!(!self.is_understood().await, "both datagrams were kept");
        self.send(1).await;
        while !self.is_understood().await {}
    }
}

/// Starts a server with a client, and lets a crowd wait for its handshakes. Those who come later wait for longer than a test
/// takes, until [`let_begin`] is called.
async fn held_up(bounds: Bounds) -> (TestServer, Client, Vec<UdpSocket>) {
    let settings = Settings { handshakes_per_second: 1, bounds, ..Settings::default() };
    let server = TestServer::start_patient(
        0,
        settings,
        Patience { handshake: IDLE, idle: IDLE, ..Patience::default() },
    );
    let client = server.client().await;
    let sockets = crowd(&server, PEERS / 2).await;
    until_taken(&client).await;
    (server, client, sockets)
}

/// Waits until the server has taken what was sent before, so that nothing is lost in a full buffer.
async fn until_taken(client: &Client) {
    within(client.status(&StatusRequest::default())).await.expect("answered");
}

/// Lets all handshakes begin, after the server has taken what was sent before.
async fn let_begin(server: &TestServer, client: &Client) {
    until_taken(client).await;
    server.shared.sessions.set_settings(Settings::default());
}

#[tokio::test]
async fn what_a_peer_sends_while_it_waits_is_kept_up_to_a_bound() {
    let (server, client, _sockets) = held_up(Bounds::default()).await;
    let mut modest = Driven::new(&server).await;
    let mut greedy = Driven::new(&server).await;
    greedy.send_first_again(INCOMING_BYTES_MAX).await;
    greedy.send(1).await;
    modest.send(0).await;
    modest.send(1).await;
    let_begin(&server, &client).await;
    assert!(modest.is_understood().await);
    greedy.assert_cut().await;
    within(client.close()).await;
    server.stop().await;
}

#[tokio::test]
async fn what_peers_send_while_they_wait_is_kept_up_to_a_bound_together() {
    // More than one peer may have, and less than two.
    let together = INCOMING_BYTES_MAX + INCOMING_BYTES_MAX / 4;
    let (server, client, _sockets) =
        held_up(Bounds { incoming_total_bytes: together, ..Bounds::default() }).await;
    let mut early = Driven::new(&server).await;
    let mut late = Driven::new(&server).await;
    early.send(0).await;
    early.send(1).await;
    let greedy = [Driven::new(&server).await, Driven::new(&server).await];
    for peer in &greedy {
        peer.send_first_again(INCOMING_BYTES_MAX).await;
    }
    late.send(0).await;
    late.send(1).await;
    let_begin(&server, &client).await;
    assert!(early.is_understood().await);
    late.assert_cut().await;
    within(client.close()).await;
    server.stop().await;
}
