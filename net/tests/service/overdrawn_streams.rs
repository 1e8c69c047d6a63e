//! Peers that open more streams than the server grants, as no honest QUIC does. Their connections end, and nothing that
//! came on those streams is done.

use std::sync::atomic::Ordering;

use quinn::ConnectionError;
use wharf_net::protocol::{Kind, StatusReply, StatusRequest};

use crate::harness::{
    OVERDRAWN, Peer, TestServer, add, ask, books, endpoint_with, hello, node, overdrawing, request, within,
};

/// The code with which QUIC closes a connection that opened too many streams (RFC 9000, section 20.1).
const STREAM_LIMIT_ERROR: u64 = 0x4;
/// The peers that open all that they can.
const CROWD: usize = 20;

async fn connect(server: &TestServer) -> Peer {
    let endpoint = endpoint_with(overdrawing(server), [127, 0, 0, 1]);
    Peer::connect_from(endpoint, server.address).await
}

/// Checks that the server closes the connection for the number of its streams.
async fn assert_closed(peer: &Peer) {
    let closed = within(peer.connection.closed()).await;
    let ConnectionError::ConnectionClosed(close) = &closed else { panic!("{closed}") };
    assert_eq!(u64::from(close.error_code), STREAM_LIMIT_ERROR, "{close}");
}

#[tokio::test]
async fn a_stream_beyond_the_credit_ends_its_connection_and_is_not_served() {
    let server = TestServer::start(1);
    let client = server.client().await;
    add(&client, vec![node("a", 1000, 1000, 0)]).await;
    let before = books(&client).await;
    for is_bidirectional in [true, false] {
        let mut peer = connect(&server).await;
        peer.greet(None).await;
        peer.call(Kind::Status, 1, &StatusRequest::default()).await.body::<StatusReply>();
        let place = [hello(None), request(Kind::Place, 2, &ask(1, 1, 0))].concat();
        let mut excess = if is_bidirectional {
            within(peer.connection.open_bi()).await.expect("it takes the stream as granted").0
        } else {
            within(peer.connection.open_uni()).await.expect("it takes the stream as granted")
        };
        within(excess.write_all(&place)).await.expect("it is not closed yet");
        assert_closed(&peer).await;
    }
    assert_eq!(books(&client).await, before, "the books moved");
    within(client.close()).await;
    server.stop().await;
}

#[tokio::test]
async fn peers_that_open_all_the_streams_they_can_leave_nothing_behind() {
    let server = TestServer::start(1);
    let client = server.client().await;
    add(&client, vec![node("a", 1000, 1000, 0)]).await;
    let before = books(&client).await;
    for _ in 0..CROWD {
        let peer = connect(&server).await;
        for _ in 0..OVERDRAWN {
            // Once the connection is closed, the rest cannot be opened.
            let Ok(mut one_way) = within(peer.connection.open_uni()).await else { break };
            let Ok((mut both_ways, _)) = within(peer.connection.open_bi()).await else { break };
            let _ = within(one_way.write_all(&hello(None))).await;
            let _ = within(both_ways.write_all(&hello(None))).await;
        }
        assert_closed(&peer).await;
        within(client.status(&StatusRequest::default())).await.expect("others are served");
    }
    let connections = || server.shared.sessions.counters.connections.load(Ordering::Relaxed);
    within(async {
        while connections() > 1 {
            client.status(&StatusRequest::default()).await.expect("answered");
        }
    })
    .await;
    assert_eq!(books(&client).await, before, "the books moved");
    within(client.close()).await;
    server.stop().await;
}
