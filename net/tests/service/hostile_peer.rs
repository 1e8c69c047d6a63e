//! Peers that break the protocol, by accident or on purpose. Each gets a fault that describes the problem. If
//! the stream can still be read, the connection continues. The server always continues, and the books do not
//! change.

use std::time::Duration;

use crate::harness::{
    self, Frame, Peer, TestServer, add, ask, audit, books, certificate, connect, extended, frame, granted,
    header, hello, node, request, within,
};
use wharf_net::client::{Client, ClientConfig, ClientError};
use wharf_net::codec::{Extension, FLAG_ERROR, FLAG_EXTENSIONS, FLAG_REPLY, HEADER_BYTES, Header};
use wharf_net::protocol::{
    ALPN, DemandBody, FRAME_BYTES_MAX, Hello, Kind, ListRequest, PlaceReply, PlaceRequest, Reason,
    ReleaseReply, StatusReply, StatusRequest, UNACKNOWLEDGED_MAX, VERSION_MAX,
};
use wharf_net::server::Settings;

/// Returns a server with one node, a well-behaved client, and the hash of the books.
async fn served() -> (TestServer, Client, u128) {
    let server = TestServer::start(1);
    let client = server.client().await;
    add(&client, vec![node("a", 1000, 1000, 0)]).await;
    let before = books(&client).await;
    (server, client, before)
}

/// Checks that other clients are still served, nothing changed, and the server stops cleanly.
async fn assert_unharmed(server: TestServer, client: Client, before: u128) {
    assert_eq!(books(&client).await, before, "the books moved");
    within(client.close()).await;
    server.stop().await;
}

/// Checks that bytes after which the stream cannot be read cause one fault and then the end.
async fn assert_closed_for(bytes: &[u8], reason: Reason, says: &str) {
    let (server, client, before) = served().await;
    let (mut peer, _) = Peer::open(&server).await;
    peer.send(bytes).await;
    let fault = peer.frame().await;
    assert_eq!((fault.header.sequence, fault.header.kind), (0, 0), "a fault of the connection as a whole");
    let fault = fault.assert_fault(reason);
    assert!(fault.message.contains(says), "{fault}");
    assert_eq!(peer.closed().await, u64::from(reason.number()));
    assert_unharmed(server, client, before).await;
}

#[tokio::test]
async fn a_frame_that_is_too_short_ends_the_connection() {
    assert_closed_for(&[19, 0, 0, 0], Reason::MalformedFrame, "19 bytes is shorter than its header").await;
    assert_closed_for(&[0; 4], Reason::MalformedFrame, "0 bytes").await;
}

#[tokio::test]
async fn a_frame_that_is_too_long_ends_the_connection_before_it_is_sent() {
    let length = (FRAME_BYTES_MAX + 1).to_le_bytes();
    assert_closed_for(&length, Reason::FrameTooLong, "send less per message").await;
    assert_closed_for(&[0xFF; 4], Reason::FrameTooLong, "4294967295 bytes").await;
}

#[tokio::test]
async fn unknown_flags_end_the_connection() {
    let mut bytes = request(Kind::Status, 1, &StatusRequest::default());
    bytes[6] = 0x48;
    assert_closed_for(&bytes, Reason::MalformedFrame, "0x48").await;
}

/// A peer asks, and the service answers: what is marked as an answer is no request, and is not executed.
#[tokio::test]
async fn frames_that_are_marked_as_replies_or_faults_end_the_connection() {
    for flags in [FLAG_REPLY, FLAG_ERROR, FLAG_REPLY | FLAG_ERROR] {
        let mut bytes = request(Kind::Place, 1, &ask(1, 1, 0));
        bytes[6] |= flags;
        assert_closed_for(&bytes, Reason::MalformedFrame, "mark a reply").await;
    }
    let (server, client, before) = served().await;
    let mut peer = Peer::connect(&server).await;
    let hello = Hello { version_min: 1, version_max: VERSION_MAX, client: "reply".to_owned(), resume: None };
    peer.send(&frame(Header { flags: FLAG_REPLY, ..header(Kind::Hello, 0) }, &hello)).await;
    let fault = peer.frame().await.assert_fault(Reason::MalformedFrame);
    assert!(fault.message.contains("mark a reply"), "{fault}");
    assert_eq!(peer.closed().await, u64::from(Reason::MalformedFrame.number()));
    assert_unharmed(server, client, before).await;
}

#[tokio::test]
async fn a_stream_that_ends_inside_a_frame_is_a_fault() {
    for cut in [3, HEADER_BYTES, HEADER_BYTES + 1] {
        let (server, client, before) = served().await;
        let (mut peer, _) = Peer::open(&server).await;
        peer.send(&request(Kind::Place, 1, &ask(1, 1, 0))[..cut]).await;
        peer.send.finish().expect("the stream is open");
        let fault = peer.frame().await.assert_fault(Reason::MalformedFrame);
        assert!(fault.message.contains(&format!("after {cut} bytes")), "{fault}");
        assert_eq!(peer.closed().await, u64::from(Reason::MalformedFrame.number()));
        assert_unharmed(server, client, before).await;
    }
}

/// Well-formed frames whose content is invalid are refused one by one.
#[tokio::test]
async fn bodies_that_cannot_be_read_are_refused_and_the_connection_goes_on() {
    let (server, client, before) = served().await;
    let (mut peer, _) = Peer::open(&server).await;
    let place = ask(1, 1, 0);
    let raw = |head: Header, body: &[u8]| {
        let mut out = Vec::new();
        wharf_net::codec::encode_frame(head, &[], &mut out, |out| out.extend_from_slice(body));
        out
    };
    let extra = |bytes: &[u8], flags| {
        let mut body = Vec::new();
        wharf_net::codec::encode_body(&place, &mut body);
        body.extend_from_slice(bytes);
        move |sequence| raw(Header { flags, ..header(Kind::Place, sequence) }, &body)
    };
    // A list of 2^60 elements is refused before anything is allocated for it.
    let bomb = [&[253][..], &(1u64 << 60).to_le_bytes()].concat();
    type Bad<'a> = (Box<dyn Fn(u64) -> Vec<u8> + 'a>, Reason, &'static str);
    let bad: Vec<Bad<'_>> = vec![
        (Box::new(|s| raw(header(Kind::Place, s), &[0xFF; 40])), Reason::MalformedBody, "cannot be read"),
        (Box::new(|s| raw(header(Kind::Place, s), &[])), Reason::MalformedBody, "cannot be read"),
        (Box::new(|s| raw(header(Kind::Release, s), &[1])), Reason::MalformedBody, "cannot be read"),
        (Box::new(|s| raw(header(Kind::PlaceBatch, s), &bomb)), Reason::MalformedBody, "1152921504606846976"),
        (Box::new(|s| raw(header(Kind::AddNodes, s), &bomb)), Reason::MalformedBody, "send at most 1024"),
        (Box::new(|s| raw(header(Kind::DrainNodes, s), &bomb)), Reason::MalformedBody, "send at most"),
        (Box::new(extra(b"xyz", 0)), Reason::MalformedBody, "3 bytes follow the body"),
        (Box::new(extra(b"xyz", FLAG_EXTENSIONS)), Reason::MalformedBody, "cut off"),
        (Box::new(extra(&[1, 0, 9, 0, 0, 0, 1], FLAG_EXTENSIONS)), Reason::MalformedBody, "says 9 bytes"),
        (Box::new(extra(&[0; 6 * 17], FLAG_EXTENSIONS)), Reason::MalformedBody, "more than 16 extensions"),
        (
            Box::new(|s| frame(Header { kind: 999, ..header(Kind::Place, s) }, &place)),
            Reason::UnknownKind,
            "999",
        ),
        (Box::new(|s| frame(Header { kind: 0, ..header(Kind::Place, s) }, &place)), Reason::UnknownKind, "0"),
        (
            Box::new(|s| frame(Header { version: 2, ..header(Kind::Place, s) }, &place)),
            Reason::UnknownVersion,
            "send version 1",
        ),
        (
            Box::new(|s| {
                let critical = [Extension { tag: 7, bytes: b"" }, Extension { tag: 0x8001, bytes: b"x" }];
                extended(header(Kind::Place, s), &critical, &place)
            }),
            Reason::UnknownExtension,
            "0x8001",
        ),
    ];
    for (sequence, (bytes, reason, says)) in (1..).zip(bad) {
        peer.send(&bytes(sequence)).await;
        let reply = peer.frame().await;
        assert_eq!(reply.header.sequence, sequence);
        let fault = reply.assert_fault(reason);
        assert!(fault.message.contains(says), "{fault}");
        // A repetition gets the same answer.
        peer.send(&bytes(sequence)).await;
        assert_eq!(peer.frame().await, reply);
    }
    let status: StatusReply = peer.call(Kind::Status, 100, &StatusRequest { audit: true }).await.body();
    assert_eq!(status.books_hash, Some(before));
    assert_unharmed(server, client, before).await;
}

#[tokio::test]
async fn an_unknown_extension_that_may_be_ignored_is_ignored() {
    let (server, client, _) = served().await;
    let (mut peer, _) = Peer::open(&server).await;
    let ignorable = [Extension { tag: 0x7FFF, bytes: b"later" }, Extension { tag: 0, bytes: b"" }];
    peer.send(&extended(header(Kind::Place, 1), &ignorable, &ask(1, 1, 0))).await;
    granted(peer.frame().await.body());
    let before = books(&client).await;
    assert_unharmed(server, client, before).await;
}

/// Checks that a refused hello causes one fault and then the end.
async fn assert_hello_refused(bytes: &[u8], reason: Reason) {
    let (server, client, before) = served().await;
    let mut peer = Peer::connect(&server).await;
    peer.send(bytes).await;
    let fault = peer.frame().await;
    assert_eq!((fault.header.sequence, fault.header.kind), (0, Kind::Hello.number()));
    fault.assert_fault(reason);
    assert_eq!(peer.closed().await, u64::from(reason.number()));
    assert_unharmed(server, client, before).await;
}

#[tokio::test]
async fn who_does_not_begin_with_hello_is_refused() {
    assert_hello_refused(&request(Kind::Place, 1, &ask(1, 1, 0)), Reason::HelloExpected).await;
    assert_hello_refused(b"GET / HTTP/1.1\r\n\r\n", Reason::FrameTooLong).await;
    assert_hello_refused(&[1, 0, 0, 0], Reason::MalformedFrame).await;
}

#[tokio::test]
async fn a_hello_must_be_understood() {
    let of = |version_min, version_max| {
        let body = Hello { version_min, version_max, client: "raw".to_owned(), resume: None };
        frame(header(Kind::Hello, 0), &body)
    };
    for versions in [(VERSION_MAX + 1, 9), (0, 0), (5, 1)] {
        assert_hello_refused(&of(versions.0, versions.1), Reason::NoCommonVersion).await;
    }
    let mut unknown = hello(None);
    unknown[7] = 2;
    assert_hello_refused(&unknown, Reason::UnknownVersion).await;
    let long = Hello { version_min: 1, version_max: 1, client: "x".repeat(254), resume: None };
    assert_hello_refused(&frame(header(Kind::Hello, 0), &long), Reason::MalformedBody).await;
    let critical = [Extension { tag: 0x8000, bytes: b"" }];
    let body = Hello { version_min: 1, version_max: 1, ..Hello::default() };
    let critical = extended(header(Kind::Hello, 0), &critical, &body);
    assert_hello_refused(&critical, Reason::UnknownExtension).await;
    // A client with more versions than the server is served in the newest common version.
    let (server, client, before) = served().await;
    let mut peer = Peer::connect(&server).await;
    peer.send(&of(0, 9)).await;
    assert_eq!(peer.frame().await.body::<wharf_net::protocol::HelloReply>().version, VERSION_MAX);
    peer.leave().await;
    assert_unharmed(server, client, before).await;
}

#[tokio::test]
async fn a_second_hello_is_refused_and_the_connection_goes_on() {
    let (server, client, _) = served().await;
    let (mut peer, _) = Peer::open(&server).await;
    peer.send(&hello(None)).await;
    peer.frame().await.assert_fault(Reason::SecondHello);
    granted(peer.call(Kind::Place, 1, &ask(1, 1, 0)).await.body());
    let before = books(&client).await;
    assert_unharmed(server, client, before).await;
}

#[tokio::test]
async fn another_protocol_fails_in_the_handshake() {
    let (server, client, before) = served().await;
    let failed = connect(&server, b"wharf/2").await.expect_err("there is no common protocol");
    // 120 is TLS's alert `no_application_protocol`. QUIC carries alerts from 0x100 on.
    let quinn::ConnectionError::ConnectionClosed(close) = &failed else { panic!("{failed}") };
    assert_eq!(u64::from(close.error_code), 0x100 + 120);
    assert_unharmed(server, client, before).await;
}

/// The real client explains in words that the server uses another protocol.
#[tokio::test]
async fn the_client_names_a_server_of_another_protocol() {
    let (chain, key) = certificate();
    let mut tls = rustls::ServerConfig::builder_with_provider(std::sync::Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_protocol_versions(&[&rustls::version::TLS13])
    .unwrap()
    .with_no_client_auth()
    .with_single_cert(vec![chain.clone()], key)
    .unwrap();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(std::sync::Arc::new(crypto));
    let endpoint = quinn::Endpoint::server(config, ([127, 0, 0, 1], 0).into()).unwrap();
    let config = ClientConfig {
        server: endpoint.local_addr().unwrap(),
        server_name: harness::SERVER_NAME.to_owned(),
        roots: vec![chain],
        certificate: None,
        name: "test".to_owned(),
        retry_for: harness::PATIENCE,
    };
    let accepting = tokio::spawn(async move {
        let incoming = endpoint.accept().await.expect("somebody connects");
        assert!(incoming.await.is_err());
    });
    let error = within(Client::connect(config)).await.err().expect("no common protocol");
    assert!(matches!(error, ClientError::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains("does not speak the protocol `wharf/1`"), "{error}");
    within(accepting).await.unwrap();
}

#[tokio::test]
async fn the_client_names_a_certificate_that_it_does_not_trust() {
    let (server, client, before) = served().await;
    let config = ClientConfig { roots: vec![certificate().0], ..server.client_config(Duration::ZERO) };
    let error = within(Client::connect(config)).await.err().expect("another certificate");
    assert!(error.to_string().contains("certificate"), "{error}");
    assert_unharmed(server, client, before).await;
}

/// The handshake allows one stream. A second one is not opened, and the first continues.
#[tokio::test]
async fn a_second_stream_is_not_granted() {
    let (server, client, before) = served().await;
    let (mut peer, _) = Peer::open(&server).await;
    let connection = peer.connection.clone();
    let second = tokio::spawn(async move { connection.open_bi().await.is_ok() });
    let uni = peer.connection.clone();
    let uni = tokio::spawn(async move { uni.open_uni().await.is_ok() });
    for sequence in 1..50 {
        peer.call(Kind::Status, sequence, &StatusRequest::default()).await.body::<StatusReply>();
    }
    assert!(!second.is_finished() && !uni.is_finished());
    peer.leave().await;
    assert!(!within(second).await.unwrap() && !within(uni).await.unwrap());
    assert_unharmed(server, client, before).await;
}

#[tokio::test]
async fn sequences_outside_the_window_are_refused() {
    let (server, client, before) = served().await;
    let (mut peer, _) = Peer::open(&server).await;
    let place = ask(1, 1, 0);
    peer.call(Kind::Place, 0, &place).await.assert_fault(Reason::StaleSequence);
    let beyond = u64::from(UNACKNOWLEDGED_MAX) + 1;
    for sequence in [beyond, u64::MAX] {
        peer.call(Kind::Place, sequence, &place).await.assert_fault(Reason::SequenceOutOfWindow);
    }
    peer.call(Kind::Status, beyond - 1, &StatusRequest::default()).await.body::<StatusReply>();
    // Acknowledging moves the window. An acknowledged request is not executed again.
    let acknowledging = Header { lowest_unacknowledged: beyond, ..header(Kind::Status, beyond) };
    peer.send(&frame(acknowledging, &StatusRequest::default())).await;
    peer.frame().await.body::<StatusReply>();
    peer.call(Kind::Place, 5, &place).await.assert_fault(Reason::StaleSequence);
    peer.call(Kind::Place, beyond - 1, &place).await.assert_fault(Reason::StaleSequence);
    assert_unharmed(server, client, before).await;
}

#[tokio::test]
async fn a_repeated_request_is_answered_the_same_and_done_once() {
    let (server, client, _) = served().await;
    let (mut peer, _) = Peer::open(&server).await;
    let first: Frame = peer.call(Kind::Place, 1, &ask(1, 1, 0)).await;
    let placed = granted(first.body::<PlaceReply>());
    let after = books(&client).await;
    for _ in 0..3 {
        assert_eq!(peer.call(Kind::Place, 1, &ask(1, 1, 0)).await.bytes, first.bytes);
        // Another request with the sequence is not done, and does not get the answer either.
        let other = peer.call(Kind::Release, 1, &placed.allocation).await;
        other.assert_fault(Reason::SequenceReused);
    }
    assert_eq!(books(&client).await, after);
    let released = peer.call(Kind::Release, 2, &placed.allocation).await;
    assert!(released.body::<ReleaseReply>().reason.is_done());
    assert_eq!(peer.call(Kind::Release, 2, &placed.allocation).await.bytes, released.bytes);
    // Repetitions of a request in progress are answered once.
    for _ in 0..3 {
        peer.send(&request(Kind::Status, 3, &StatusRequest { audit: true })).await;
    }
    peer.frame().await.body::<StatusReply>();
    loop {
        // Repetitions after the answer are answered again, all before the next request.
        peer.send(&request(Kind::Status, 4, &StatusRequest::default())).await;
        if peer.frame().await.header.sequence == 4 {
            break;
        }
    }
    let before = books(&client).await;
    assert_unharmed(server, client, before).await;
}

/// A peer that sends requests and never reads. The server stops reading when the maximum number of requests
/// is unanswered. It executes and keeps no more for the peer than that, plus what flow control lets pass.
#[tokio::test]
async fn a_peer_that_never_reads_is_not_read() {
    const IN_FLIGHT_MAX: u32 = 16;
    let settings = Settings { in_flight_max: IN_FLIGHT_MAX, ..Settings::default() };
    let server = TestServer::start_with(2, settings);
    let client = server.client().await;
    let nodes = (0..1024).map(|i| {
        let mut long = node(&format!("n{i}"), 1000, 1000, 0);
        long.identity = "x".repeat(253);
        long
    });
    add(&client, nodes.collect()).await;
    let (mut peer, opened) = Peer::open(&server).await;
    assert_eq!(opened.limits.in_flight_max, IN_FLIGHT_MAX);
    // Replies of a third of a MiB each soon fill the peer's receive window. The server cannot write any more,
    // reaches the in-flight limit, and leaves the placements in the stream.
    const LISTS: u64 = 60;
    for sequence in 1..=LISTS {
        peer.send(&request(Kind::ListNodes, sequence, &ListRequest { after: 0, limit: 1024 })).await;
    }
    const PLACES: u64 = 200;
    for sequence in LISTS + 1..=LISTS + PLACES {
        peer.send(&request(Kind::Place, sequence, &ask(1, 1, 0))).await;
    }
    // Others are served. After many of their round trips, none of the placements was executed.
    for _ in 0..100 {
        harness::place(&client, &ask(1, 1, 0)).await;
    }
    let placed = |status: &StatusReply| status.shards.iter().map(|shard| shard.placed).sum::<u64>();
    assert_eq!(placed(&audit(&client).await), 100);
    // Once it reads, it gets all replies.
    let mut sequences = std::collections::BTreeSet::new();
    for _ in 0..LISTS + PLACES {
        let reply = peer.frame().await;
        assert!(sequences.insert(reply.header.sequence), "answered twice");
        if reply.header.kind == Kind::Place.number() {
            granted(reply.body());
        }
    }
    assert_eq!(placed(&audit(&client).await), 100 + PLACES);
    within(client.close()).await;
    server.stop().await;
}

/// A peer that never reads cannot keep the server from stopping.
#[tokio::test]
async fn a_peer_that_never_reads_cannot_hold_the_shutdown() {
    let server = TestServer::start(1);
    let client = server.client().await;
    let nodes = (0..1024).map(|i| {
        let mut long = node(&format!("n{i}"), 1, 1, 0);
        long.identity = "x".repeat(253);
        long
    });
    add(&client, nodes.collect()).await;
    within(client.close()).await;
    let (mut peer, _) = Peer::open(&server).await;
    for sequence in 1..=40 {
        peer.send(&request(Kind::ListNodes, sequence, &ListRequest { after: 0, limit: 1024 })).await;
    }
    // After the first reply, the server is working on the requests.
    peer.frame().await;
    server.stop().await;
    drop(peer);
}

/// Requests in progress when the peer leaves are executed or not, never in part. The books hold, and its
/// allocations can be counted.
#[tokio::test]
async fn a_peer_that_leaves_with_requests_under_way_breaks_nothing() {
    let (server, client, _) = served().await;
    for round in 0..20u64 {
        let (mut peer, _) = Peer::open(&server).await;
        let mut bytes = Vec::new();
        for sequence in 1..=500 {
            bytes.extend(request(
                Kind::Place,
                sequence,
                &PlaceRequest {
                    demand: DemandBody { cpu: 100, ..DemandBody::default() },
                    ..PlaceRequest::default()
                },
            ));
            bytes.extend(request(Kind::Status, 500 + sequence, &StatusRequest::default()));
        }
        peer.send(&bytes).await;
        if round % 2 == 0 {
            peer.frame().await;
        }
        if round % 4 < 2 {
            peer.leave().await;
        } else {
            // Leave without closing: the socket is gone.
            drop(peer);
        }
    }
    let status = audit(&client).await;
    assert!(status.books_hash.is_some(), "every invariant holds");
    harness::place(&client, &ask(1, 1, 0)).await;
    within(client.close()).await;
    server.stop().await;
}

#[tokio::test]
async fn peers_that_say_nothing_or_leave_early_are_forgotten() {
    let (server, client, before) = served().await;
    for _ in 0..5 {
        let (endpoint, connection) = connect(&server, ALPN).await.expect("the handshake succeeds");
        connection.close(0u32.into(), b"");
        within(endpoint.wait_idle()).await;
        let mut peer = Peer::connect(&server).await;
        peer.send(&hello(None)[..10]).await;
        peer.leave().await;
        let (mut peer, _) = Peer::open(&server).await;
        peer.send.finish().expect("the stream is open");
        assert_eq!(peer.closed().await, 0);
    }
    // Silent peers do not keep the server from stopping.
    let _silent = connect(&server, ALPN).await.expect("the handshake succeeds");
    let _half = Peer::connect(&server).await;
    assert_unharmed(server, client, before).await;
}

/// Its replies would have to be kept for ever, and it would be served without any bound on them.
#[tokio::test]
async fn who_takes_no_more_replies_is_sent_away() {
    let (server, client, before) = served().await;
    let (mut peer, _) = Peer::open(&server).await;
    peer.send(&request(Kind::Status, 1, &StatusRequest::default())).await;
    peer.frame().await;
    peer.stop_replies();
    // The reply to this finds that nobody takes it.
    peer.send(&request(Kind::Status, 2, &StatusRequest::default())).await;
    assert_eq!(peer.closed().await, 0);
    assert_unharmed(server, client, before).await;
}

/// Connections without a complete hello are closed in time. Otherwise a peer could hold them at no cost.
#[tokio::test]
async fn who_says_no_hello_in_time_is_sent_away() {
    let (server, client, before) = served().await;
    let (_endpoint, silent) = connect(&server, ALPN).await.expect("the handshake succeeds");
    let mut half = Peer::connect(&server).await;
    half.send(&hello(None)[..10]).await;
    half.frame().await.assert_fault(Reason::HelloExpected);
    assert_eq!(half.closed().await, u64::from(Reason::HelloExpected.number()));
    let closed = within(silent.closed()).await;
    let quinn::ConnectionError::ApplicationClosed(close) = closed else { panic!("{closed}") };
    assert_eq!(close.error_code.into_inner(), u64::from(Reason::HelloExpected.number()));
    assert_unharmed(server, client, before).await;
}
