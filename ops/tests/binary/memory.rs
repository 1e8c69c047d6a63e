//! The memory of the service stays bounded if a peer requests more than it reads.

use std::sync::Arc;
use std::time::Instant;

use quinn::{ClientConfig as QuicConfig, Connection, Endpoint, RecvStream, SendStream};
use tokio::net::UdpSocket;
use wharf_net::client::{Client, ClientConfig};
use wharf_net::codec::{HEADER_BYTES, Header, encode_frame};
use wharf_net::limits::CONNECTIONS_PER_ADDRESS_DEFAULT;
use wharf_net::protocol::{
    DemandBody, FRAME_BYTES_MAX, Hello, Kind, ListRequest, NodeBody, NodesRequest, Pair, PlaceBatch,
    PlaceRequest, Reason, StatusRequest,
};

use crate::harness::{Service, Site, endpoint, frame, quic, runtime, within};

/// The bound on the memory that a flood of one connection adds, in bytes. Without the bound on unread
/// replies, the requests of one silent peer add a GiB.
const FLOOD_BYTES_MAX: u64 = 64 << 20;

/// The number of requests of the flood: the default bound on unanswered requests of a connection.
const QUESTIONS: u64 = 1024;

/// The default of `allocations_per_node_max`.
const ALLOCATIONS_PER_NODE_DEFAULT: u64 = 1024;

/// A peer that sends frames and reads nothing.
struct SilentReader {
    send: SendStream,
    // Dropping any of these closes the connection.
    _recv: RecvStream,
    _connection: Connection,
    _endpoint: Endpoint,
}

impl SilentReader {
    async fn connect(config: &ClientConfig) -> Self {
        Self::connect_over(&endpoint(config), config).await
    }

    /// Connects and says hello.
    async fn connect_over(endpoint: &Endpoint, config: &ClientConfig) -> Self {
        let connecting = endpoint.connect(config.server, &config.server_name).expect("an address");
        let connection = within(connecting).await.expect("the service accepts");
        let (send, recv) = within(connection.open_bi()).await.expect("one stream is allowed");
        let mut peer = Self { send, _recv: recv, _connection: connection, _endpoint: endpoint.clone() };
        let hello = Hello { version_min: 1, version_max: 1, client: "flood".to_owned(), resume: None };
        peer.send(&frame(Kind::Hello, 0, &hello)).await;
        peer
    }

    async fn send(&mut self, bytes: &[u8]) {
        within(self.send.write_all(bytes)).await.expect("the service reads");
    }
}

/// Returns nodes with long labels, so that a page of few nodes fills a frame.
fn labelled_nodes(count: usize) -> NodesRequest {
    let label = |i: usize| Pair { key: format!("{i:0>200}"), value: "v".repeat(200) };
    let labels: Vec<Pair> = (0..16).map(label).collect();
    let node = |i| NodeBody {
        name: format!("n{i}"),
        cpu: 10_000,
        memory: 10_000,
        labels: labels.clone(),
        ..NodeBody::default()
    };
    NodesRequest { nodes: (0..count).map(node).collect() }
}

async fn add(client: &Client, request: &NodesRequest) {
    let reply = within(client.add_nodes(request)).await.expect("answered");
    assert!(reply.replies.iter().all(|reply| reply.reason.is_done()), "{:?}", reply.replies[0]);
}

async fn resident_growth(service: &Service, client: &Client, before: u64) -> u64 {
    // The registrar answers in order, so earlier requests of the flood are answered before this one.
    within(client.status(&StatusRequest::default())).await.expect("answered");
    service.peak_bytes().saturating_sub(before)
}

/// Lets `peers` peers ask for pages of nodes that they do not read, and checks that the memory of a service
/// with `shards` shards grows by at most `bytes_max` bytes.
fn flood(shards: &str, peers: usize, bytes_max: u64) {
    let site = Site::new();
    let service = site.serve(&["--shards", shards, "--io-threads", "1"]);
    let config = service.client_config(&site.development_certificate());
    runtime().block_on(async {
        let client = service.client_trusting(&site.development_certificate()).await;
        // A page of 150 nodes has about 1 MiB.
        add(&client, &labelled_nodes(150)).await;
        within(client.list_nodes(&ListRequest { after: 0, limit: 1024 })).await.expect("answered");
        let before = service.peak_bytes();
        let questions =
            (1..=QUESTIONS).flat_map(|at| frame(Kind::ListNodes, at, &ListRequest { after: 0, limit: 1024 }));
        let questions: Vec<u8> = questions.collect();
        let mut silent = Vec::new();
        for _ in 0..peers {
            let mut peer = SilentReader::connect(&config).await;
            peer.send(&questions).await;
            silent.push(peer);
        }
        let mut growth = 0;
        for _ in 0..100 {
            growth = resident_growth(&service, &client, before).await;
            assert!(growth < bytes_max, "{growth} bytes more for {peers} connections");
        }
        println!("{peers} silent peers and {shards} shards: {growth} bytes more");
        // Other clients are served meanwhile.
        let placed = within(client.place(&PlaceRequest {
            demand: DemandBody { cpu: 1, ..DemandBody::default() },
            ..PlaceRequest::default()
        }))
        .await;
        assert!(placed.expect("answered").placed.is_some());
        drop(silent);
    });
    service.stop();
}

#[test]
fn a_peer_that_reads_nothing_costs_bounded_memory() {
    flood("2", 1, FLOOD_BYTES_MAX);
}

#[test]
fn a_peer_that_reads_nothing_costs_as_little_with_many_shards() {
    flood("64", 1, FLOOD_BYTES_MAX);
}

#[test]
fn peers_that_read_nothing_cost_bounded_memory_together() {
    flood("2", 8, 4 * FLOOD_BYTES_MAX);
}

#[test]
fn a_node_holds_a_bounded_number_of_empty_allocations() {
    const ASKED: u64 = 1_000_000;
    const BATCH: usize = 1000;
    let site = Site::new();
    let service = site.serve(&["--shards", "1", "--io-threads", "1"]);
    let placed = runtime().block_on(async {
        let client = service.client_trusting(&site.development_certificate()).await;
        let node = NodeBody { name: "n".to_owned(), cpu: 10_000, memory: 10_000, ..NodeBody::default() };
        add(&client, &NodesRequest { nodes: vec![node] }).await;
        let batch = PlaceBatch { requests: vec![PlaceRequest::default(); BATCH] };
        let mut placed = 0u64;
        let mut asked = 0;
        while asked < ASKED {
            let replies = within(client.place_batch(&batch)).await.expect("answered").replies;
            asked += BATCH as u64;
            let granted = replies.iter().filter(|reply| reply.placed.is_some()).count() as u64;
            placed += granted;
            assert!(placed <= ALLOCATIONS_PER_NODE_DEFAULT, "{placed} allocations on one node");
            if granted == 0 {
                let refusal = replies[0].refusal.as_ref().expect("it says why");
                assert_eq!(replies[0].reason, Reason::NoFitNow.into());
                assert_eq!(refusal.checks[0].reason, Reason::TooManyAllocations.into());
                break;
            }
        }
        placed
    });
    assert_eq!(placed, ALLOCATIONS_PER_NODE_DEFAULT);
    let status = service.json(&["status", "--audit"]);
    assert!(status["books_hash"].is_string(), "{status}");
    service.stop();
}

/// Returns the head of a frame that says to have the most bytes that a frame may have, and `sent` of them.
fn begun_frame(sent: usize) -> Vec<u8> {
    let header = Header { kind: Kind::Place.number(), version: 1, sequence: 1, ..Header::default() };
    let mut out = Vec::new();
    encode_frame(header, &[], &mut out, |out| {
        out.resize(out.len() + FRAME_BYTES_MAX as usize - HEADER_BYTES, 0)
    });
    out.truncate(HEADER_BYTES + sent);
    out
}

/// Lets `peers` peers send `sent` bytes of a frame that never ends, and checks that the memory of the service grows by at
/// most `bytes_max` for each of them, and that it serves others.
fn unfinished(peers: usize, sent: usize, bytes_max: u64) {
    let site = Site::new();
    let service = site.serve(&["--shards", "1", "--io-threads", "1"]);
    let config = service.client_config(&site.development_certificate());
    runtime().block_on(async {
        let client = service.client_trusting(&site.development_certificate()).await;
        add(&client, &labelled_nodes(1)).await;
        let before = service.peak_bytes();
        let endpoint = endpoint(&config);
        let begun = begun_frame(sent);
        let mut silent = Vec::new();
        for _ in 0..peers {
            let mut peer = SilentReader::connect_over(&endpoint, &config).await;
            peer.send(&begun).await;
            silent.push(peer);
        }
        let growth = resident_growth(&service, &client, before).await;
        println!("{peers} peers with {sent} bytes of a frame: {growth} bytes more");
        assert!(growth < bytes_max * peers as u64, "{growth} bytes more for {peers} peers");
        let placed = within(client.place(&PlaceRequest::default())).await.expect("answered");
        assert!(placed.placed.is_some(), "{placed:?}");
    });
    service.stop();
}

/// The length of a frame is believed only as far as its bytes come.
#[test]
fn a_frame_that_says_to_be_long_costs_nothing() {
    unfinished(200, 0, 96 << 10);
}

#[test]
fn a_frame_that_never_ends_costs_what_was_sent_of_it() {
    let sent = FRAME_BYTES_MAX as usize - HEADER_BYTES - 1;
    unfinished(20, sent, 4 * u64::from(FRAME_BYTES_MAX));
}

/// Returns the first datagram of a handshake.
fn first_datagram(config: &ClientConfig, says: &QuicConfig) -> Vec<u8> {
    let mut endpoint = quinn_proto::Endpoint::new(Arc::default(), None, true, None);
    let now = Instant::now();
    let connecting = endpoint.connect(now, says.clone(), config.server, &config.server_name);
    let mut connection = connecting.expect("an address").1;
    let mut datagram = Vec::new();
    let sent = connection.poll_transmit(now, 1, &mut datagram).expect("a client begins");
    datagram.truncate(sent.size);
    datagram
}

/// Most of these begin no handshake: beyond half of what an address may have, the service wants a proof of the address and
/// keeps nothing.
#[test]
fn handshakes_that_are_begun_and_never_completed_cost_bounded_memory() {
    const BEGUN: usize = 2000;
    const KEPT_MAX: u64 = CONNECTIONS_PER_ADDRESS_DEFAULT as u64 / 2;
    const BYTES_PER_HANDSHAKE_MAX: u64 = 128 << 10;
    let site = Site::new();
    let service = site.serve(&["--shards", "1", "--io-threads", "1"]);
    let config = service.client_config(&site.development_certificate());
    runtime().block_on(async {
        let client = service.client_trusting(&site.development_certificate()).await;
        add(&client, &labelled_nodes(1)).await;
        let before = service.peak_bytes();
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let says = quic(&config);
        for begun in 0..BEGUN {
            socket.send_to(&first_datagram(&config, &says), config.server).await.expect("it is sent");
            if begun % 16 == 0 {
                // The service has taken what was sent before it answers this. None is lost in a full buffer.
                within(client.status(&StatusRequest::default())).await.expect("answered");
            }
        }
        let growth = resident_growth(&service, &client, before).await;
        println!("{BEGUN} handshakes begun: {growth} bytes more");
        assert!(growth < KEPT_MAX * BYTES_PER_HANDSHAKE_MAX, "{growth} bytes more");
        // A client at the same address proves it, and is served.
        let other = service.client_trusting(&site.development_certificate()).await;
        let placed = within(other.place(&PlaceRequest::default())).await.expect("answered");
        assert!(placed.placed.is_some(), "{placed:?}");
    });
    service.stop();
}

#[test]
fn thousands_of_peers_that_come_and_go_leave_no_memory_behind() {
    const WAVES: usize = 40;
    const PEERS: usize = 50;
    let site = Site::new();
    let service = site.serve(&["--shards", "1", "--io-threads", "1"]);
    let config = service.client_config(&site.development_certificate());
    runtime().block_on(async {
        let client = service.client_trusting(&site.development_certificate()).await;
        add(&client, &labelled_nodes(1)).await;
        let endpoint = endpoint(&config);
        let mut after_first = 0;
        for wave in 0..WAVES {
            let connecting = || endpoint.connect(config.server, &config.server_name).expect("an address");
            let mut handshakes = tokio::task::JoinSet::new();
            (0..PEERS).map(|_| connecting()).for_each(|connecting| {
                handshakes.spawn(async move { drop(within(connecting).await.expect("the service accepts")) });
            });
            while let Some(done) = within(handshakes.join_next()).await {
                done.expect("no task panics");
            }
            let placed = within(client.place(&PlaceRequest::default())).await.expect("answered");
            assert!(placed.placed.is_some(), "{placed:?}");
            if wave == WAVES / 4 {
                after_first = service.peak_bytes();
            }
        }
        // A quarter of them has shown what as many as are open at once need.
        // The kernel sums up its counters loosely, so that a peak may be read as a little less than before.
        let growth = service.peak_bytes().saturating_sub(after_first);
        println!("{} peers came and went: {growth} bytes more", WAVES * PEERS);
        assert!(growth < 16 << 20, "{growth} bytes more");
    });
    service.stop();
}
