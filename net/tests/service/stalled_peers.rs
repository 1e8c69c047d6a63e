//! Peers whose connections are alive, and that do not go on: they do not complete a frame, or do not take their replies.

use std::sync::Arc;
use std::time::Duration;

use wharf_net::codec::HEADER_BYTES;
use wharf_net::protocol::{ALPN, Kind, MODE_WAIT_UNTIL, PlaceBatch, PlaceRequest, Resume};
use wharf_net::server::{Patience, Settings};

use crate::harness::{Peer, TestServer, ask, crypto, request, within};

/// The server has no patience at all with a stream, and much with a silent connection.
const PATIENCE: Patience = Patience {
    handshake: Duration::from_secs(3600),
    idle: Duration::from_secs(3600),
    stream: Duration::from_nanos(1),
};

fn start() -> TestServer {
    TestServer::start_patient(0, Settings::default(), PATIENCE)
}

/// Waits until the server has closed the connection by its own will, and not for silence.
async fn until_closed(peer: &Peer) {
    match within(peer.connection.closed()).await {
        quinn::ConnectionError::ApplicationClosed(close) => assert_eq!(close.error_code.into_inner(), 0),
        other => panic!("the server closes the connection: {other}"),
    }
}

/// It is as if the peer had vanished: its session waits for it.
async fn assert_resumed(server: &TestServer, session: Resume) {
    let (mut again, hello) = Peer::resume(server, Some(session)).await;
    assert!(hello.resumed);
    assert_eq!(again.call(Kind::Place, 1000, &ask(1, 0, 0)).await.header.sequence, 1000);
    again.leave().await;
}

#[tokio::test]
async fn a_connection_whose_peer_does_not_complete_a_frame_is_lost() {
    let server = start();
    for cut in [1, HEADER_BYTES, HEADER_BYTES + 1] {
        let (mut peer, hello) = Peer::open(&server).await;
        peer.call(Kind::Place, 1, &ask(1, 0, 0)).await;
        peer.send(&request(Kind::Place, 2, &ask(1, 0, 0))[..cut]).await;
        until_closed(&peer).await;
        assert_resumed(&server, Resume { session: hello.session, token: hello.token }).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn a_connection_whose_peer_takes_no_replies_is_lost() {
    let server = start();
    // What the peer does not read may be as much as this.
    let mut transport = quinn::TransportConfig::default();
    transport.stream_receive_window(1024u32.into());
    let mut config = quinn::ClientConfig::new(Arc::new(crypto(&server, ALPN)));
    config.transport_config(Arc::new(transport));
    let mut endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).expect("a free port");
    endpoint.set_default_client_config(config);
    let mut peer = Peer::connect_from(endpoint, server.address).await;
    let hello = peer.greet(None).await;
    // The request is in one packet. Its reply has a message for each part.
    let waits = PlaceRequest { mode: MODE_WAIT_UNTIL, ..ask(1, 0, 0) };
    let batch = request(Kind::PlaceBatch, 1, &PlaceBatch { requests: vec![waits; 25] });
    assert!(batch.len() < 1000, "{} bytes", batch.len());
    peer.send(&batch).await;
    until_closed(&peer).await;
    assert_resumed(&server, Resume { session: hello.session, token: hello.token }).await;
    server.stop().await;
}
