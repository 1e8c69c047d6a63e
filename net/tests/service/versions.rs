//! Peers of another minor version: each side is served with what the older one knows.

use std::sync::Arc;
use std::time::Duration;

use wharf_net::client::{Client, ClientConfig, ClientError};
use wharf_net::codec::{
    Extension, FLAG_EXTENSIONS, FLAG_REPLY, FrameError, Header, decode_body, decode_frame, encode_body,
    encode_frame, split_extensions,
};
use wharf_net::protocol::{
    ALPN, Deadline, EXTENSION_DEADLINE, FRAME_BYTES_MAX, Hello, HelloReply, Kind, Limits, PlaceReply,
    PlaceRequest, PlacedBody, Reason, VERSION_MAX, VERSION_MIN,
};

use crate::harness::bed::Bed;
use crate::harness::{
    self, Peer, TestServer, add, ask, certificate, extended, frame, granted, header, node, request,
    request_within, within,
};

/// Says hello with these versions. Returns the reply of the service.
async fn greet(server: &TestServer, version_min: u8, version_max: u8) -> (Peer, harness::Frame) {
    let mut peer = Peer::connect(server).await;
    let body = Hello { version_min, version_max, client: "other".to_owned(), resume: None };
    peer.send(&frame(header(Kind::Hello, 0), &body)).await;
    let reply = peer.frame().await;
    (peer, reply)
}

#[tokio::test]
async fn both_sides_speak_the_newest_version_that_both_know() {
    let server = TestServer::start(1);
    let agreed = [
        ((1, 1), Some(1)),
        ((1, 2), Some(2)),
        ((2, 2), Some(2)),
        ((1, u8::MAX), Some(VERSION_MAX)),
        ((0, 1), Some(1)),
        ((0, 0), None),
        ((VERSION_MAX + 1, u8::MAX), None),
        ((2, 1), None),
    ];
    for ((version_min, version_max), expected) in agreed {
        let (peer, reply) = greet(&server, version_min, version_max).await;
        match expected {
            Some(version) => assert_eq!(reply.body::<HelloReply>().version, version, "{version_max}"),
            None => drop(reply.assert_fault(Reason::NoCommonVersion)),
        }
        peer.leave().await;
    }
    server.stop().await;
}

/// A client of version 1 is served as before there was version 2: what that version added is unknown to its session.
#[tokio::test]
async fn a_client_of_the_older_version_is_served_with_what_it_knows() {
    let server = TestServer::start(1);
    let client = server.client().await;
    add(&client, vec![node("a", 1000, 1000, 0)]).await;
    let (mut peer, reply) = greet(&server, VERSION_MIN, VERSION_MIN).await;
    assert_eq!(reply.body::<HelloReply>().version, VERSION_MIN);
    let placed = granted(peer.call(Kind::Place, 1, &ask(1, 1, 0)).await.body::<PlaceReply>());
    // The tag is one that it may use for anything, and that a receiver skips.
    peer.send(&request_within(Kind::Place, 2, 0, &ask(1, 1, 0))).await;
    let again = granted(peer.frame().await.body::<PlaceReply>());
    assert_ne!(placed.allocation, again.allocation);
    peer.leave().await;
    within(client.close()).await;
    server.stop().await;
}

/// Who resumes a session may speak another version than before. The version is that of the connection.
#[test]
fn the_version_is_that_of_the_connection() {
    let mut bed = Bed::with_full_node(Vec::new(), harness::bed::NOW);
    let mut resume = None;
    for (version, sequence) in [(1, 1), (2, 2), (1, 3)] {
        bed.version = version;
        let (key, hello) = bed.connect(false, resume.take());
        assert_eq!(hello.version, version);
        let late = request_within(Kind::Place, sequence, 0, &ask(0, 0, 0));
        bed.service.receive(key, &late, bed.now);
        bed.run_shard();
        bed.write();
        let replies = bed.replies(key);
        match version {
            1 => drop(granted(replies[0].body::<PlaceReply>())),
            _ => drop(replies[0].assert_fault(Reason::DeadlineExceeded)),
        }
        bed.lose(key);
        resume = Some(wharf_net::protocol::Resume { session: hello.session, token: hello.token });
    }
}

/// Extensions of versions to come.
#[tokio::test]
async fn unknown_extensions_are_skipped_unless_they_are_critical() {
    let server = TestServer::start(1);
    let client = server.client().await;
    add(&client, vec![node("a", 1000, 1000, 0)]).await;
    let before = harness::books(&client).await;
    let (mut peer, _) = greet(&server, VERSION_MIN, VERSION_MAX).await;
    let mut far = Vec::new();
    encode_body(&Deadline { within: u64::MAX }, &mut far);
    let known = Extension { tag: EXTENSION_DEADLINE, bytes: &far };
    let ignorable = Extension { tag: 0x7fff, bytes: b"whatever it means" };
    let critical = Extension { tag: 0x8011, bytes: b"" };
    peer.send(&extended(header(Kind::Place, 1), &[critical, known], &ask(1, 1, 0))).await;
    let fault = peer.frame().await.assert_fault(Reason::UnknownExtension);
    assert!(fault.field.contains("0x8011"), "{fault}");
    peer.send(&extended(header(Kind::Place, 2), &[known, critical], &ask(1, 1, 0))).await;
    peer.frame().await.assert_fault(Reason::UnknownExtension);
    assert_eq!(harness::books(&client).await, before);
    // What is known is read at any place, and one that cannot be read is as none.
    peer.send(&extended(header(Kind::Place, 3), &[ignorable, known], &ask(1, 1, 0))).await;
    granted(peer.frame().await.body::<PlaceReply>());
    let unreadable = Extension { tag: EXTENSION_DEADLINE, bytes: &[255] };
    peer.send(&extended(header(Kind::Place, 4), &[unreadable], &ask(1, 1, 0))).await;
    granted(peer.frame().await.body::<PlaceReply>());
    // A hello with an extension that must be known is refused too.
    let mut other = Peer::connect(&server).await;
    let hello = Hello { version_min: 1, version_max: 1, client: "new".to_owned(), resume: None };
    other.send(&extended(header(Kind::Hello, 0), &[critical], &hello)).await;
    other.frame().await.assert_fault(Reason::UnknownExtension);
    peer.leave().await;
    within(client.close()).await;
    server.stop().await;
}

/// Returns an endpoint that accepts connections of this protocol, and how to reach it.
fn fake_server() -> (quinn::Endpoint, ClientConfig) {
    let (chain, key) = certificate();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![chain.clone()], key)
        .expect("the key is usable");
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(tls).expect("TLS 1.3");
    let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    let endpoint = quinn::Endpoint::server(config, ([127, 0, 0, 1], 0).into()).expect("a free port");
    let config = ClientConfig {
        server: endpoint.local_addr().expect("it is bound"),
        server_name: harness::SERVER_NAME.to_owned(),
        roots: vec![chain],
        certificate: None,
        name: "test".to_owned(),
        retry_for: Duration::ZERO,
    };
    (endpoint, config)
}

/// Serves one connection as a service whose newest version is `version` did. Replies to the `unmarked` kind are not marked as
/// replies. Returns the tags of the extensions of each placement.
async fn serve_as(endpoint: quinn::Endpoint, version: u8, unmarked: Option<Kind>) -> Vec<Vec<u16>> {
    let connection =
        endpoint.accept().await.expect("somebody connects").await.expect("the handshake succeeds");
    let (mut send, mut recv) = connection.accept_bi().await.expect("a stream");
    let mut buffer = Vec::new();
    let mut seen = Vec::new();
    while let Ok(Some(chunk)) = recv.read_chunk(usize::MAX, true).await {
        buffer.extend_from_slice(&chunk.bytes);
        while let Some(frame) = decode_frame(&buffer, FRAME_BYTES_MAX).expect("the client sends frames") {
            let Header { kind, sequence, .. } = frame.header;
            let mut reply = Vec::new();
            let is_marked = unmarked.is_none_or(|unmarked| unmarked.number() != kind);
            let flags = if is_marked { FLAG_REPLY } else { 0 };
            let header = Header { kind, flags, version: 1, sequence, ..Header::default() };
            if kind == Kind::Hello.number() {
                let (hello, _) = decode_body::<Hello>(frame.payload).expect("a hello");
                assert_eq!((hello.version_min, hello.version_max), (VERSION_MIN, VERSION_MAX));
                let limits = Limits { in_flight_max: 8, unacknowledged_max: 8, ..Limits::default() };
                let body = HelloReply { version, limits, ..HelloReply::default() };
                encode_frame(header, &[], &mut reply, |out| encode_body(&body, out));
            } else {
                assert_eq!(kind, Kind::Place.number());
                let (_, taken) = decode_body::<PlaceRequest>(frame.payload).expect("a placement");
                let extensions = split_extensions(&frame.header, &frame.payload[taken..]).expect("whole");
                assert_eq!(extensions.is_empty(), frame.header.flags & FLAG_EXTENSIONS == 0);
                seen.push(extensions.iter().map(|extension| extension.tag).collect());
                let body = PlaceReply { placed: Some(PlacedBody::default()), ..PlaceReply::default() };
                encode_frame(header, &[], &mut reply, |out| encode_body(&body, out));
            }
            let frame = frame.bytes;
            buffer.drain(..frame);
            if send.write_all(&reply).await.is_err() {
                assert!(unmarked.is_some(), "the client reads");
                return seen;
            }
        }
    }
    let _ = send.finish();
    seen
}

/// The client sends a service of the older version nothing that it does not know.
#[tokio::test]
async fn a_service_of_the_older_version_is_asked_what_it_knows() {
    for (version, expected) in [(1, vec![]), (2, vec![EXTENSION_DEADLINE])] {
        let (endpoint, config) = fake_server();
        let serving = tokio::spawn(serve_as(endpoint, version, None));
        let client = within(Client::connect(config)).await.expect("the hello is accepted");
        let hasty = client.within(Duration::from_secs(1));
        within(hasty.place(&ask(1, 1, 0))).await.expect("answered").placed.expect("placed");
        within(client.place(&ask(1, 1, 0))).await.expect("answered").placed.expect("placed");
        drop(hasty);
        within(client.close()).await;
        assert_eq!(within(serving).await.expect("it served"), [expected, vec![]], "version {version}");
    }
}

/// A service that claims a version which the client did not offer cannot be understood.
#[tokio::test]
async fn a_version_that_was_not_offered_ends_the_connection() {
    for version in [0, VERSION_MAX + 1] {
        let (endpoint, config) = fake_server();
        let serving = tokio::spawn(serve_as(endpoint, version, None));
        let error = within(Client::connect(config)).await.err().expect("no common version");
        assert!(matches!(error, ClientError::Connect { .. }), "{error:?}");
        assert!(error.to_string().contains(&format!("protocol version {version}")), "{error}");
        within(serving).await.expect("it served");
    }
}

/// A client takes nothing for a reply that is not marked as one.
#[tokio::test]
async fn what_is_not_marked_as_a_reply_ends_the_connection() {
    let (endpoint, config) = fake_server();
    let serving = tokio::spawn(serve_as(endpoint, VERSION_MAX, Some(Kind::Hello)));
    let error = within(Client::connect(config)).await.err().expect("no reply to the hello");
    assert!(matches!(error, ClientError::Frame(FrameError::NoReply { flags: 0 })), "{error:?}");
    within(serving).await.expect("it served");
    let (endpoint, config) = fake_server();
    let serving = tokio::spawn(serve_as(endpoint, VERSION_MAX, Some(Kind::Place)));
    let client = within(Client::connect(config)).await.expect("the hello is accepted");
    let error = within(client.place(&ask(1, 1, 0))).await.expect_err("no reply to the placement");
    assert!(matches!(error, ClientError::Frame(FrameError::NoReply { flags: 0 })), "{error:?}");
    within(client.close()).await;
    within(serving).await.expect("it served");
}

/// A frame whose body has another version is refused, and the connection goes on.
#[tokio::test]
async fn bodies_of_other_versions_are_refused() {
    let server = TestServer::start(1);
    let (mut peer, _) = greet(&server, VERSION_MIN, VERSION_MAX).await;
    for (sequence, version) in [(1, 0), (2, 2), (3, 255)] {
        peer.send(&frame(Header { version, ..header(Kind::Place, sequence) }, &ask(1, 1, 0))).await;
        peer.frame().await.assert_fault(Reason::UnknownVersion);
    }
    peer.send(&request(Kind::Place, 4, &ask(1, 1, 0))).await;
    assert!(peer.frame().await.fault().is_none());
    peer.leave().await;
    server.stop().await;
}
