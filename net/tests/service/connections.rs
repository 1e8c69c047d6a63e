//! The bound on connections per address.

use std::time::Duration;

use crate::harness::{Peer, SERVER_NAME, TestServer, endpoint_at, within};
use wharf_net::client::{Client, ClientError};
use wharf_net::protocol::{ALPN, StatusRequest};
use wharf_net::server::Settings;

const PER_ADDRESS: u32 = 5;

#[tokio::test]
async fn an_address_has_a_bounded_number_of_connections_and_others_are_served() {
    let settings = Settings { connections_per_address_max: PER_ADDRESS, ..Settings::default() };
    let server = TestServer::start_with(1, settings);
    let mut open = Vec::new();
    // Beyond half of the room, addresses are validated with a retry packet, which clients answer by
    // themselves.
    for _ in 0..PER_ADDRESS {
        open.push(server.client().await);
    }
    let refused =
        within(Client::connect(server.client_config(Duration::ZERO))).await.err().expect("one too many");
    let ClientError::Connect { message, .. } = &refused else { panic!("{refused:?}") };
    assert!(message.contains("`connections_per_address_max`") && message.contains("close some"), "{message}");
    // Another address has room, and open connections are served.
    let elsewhere = endpoint_at(&server, ALPN, [127, 0, 0, 2]);
    let connecting = elsewhere.connect(server.address, SERVER_NAME).expect("the address is one");
    let other = within(connecting).await.expect("another address has room of its own");
    for client in &open {
        within(client.status(&StatusRequest::default())).await.expect("answered");
    }
    // A closed connection makes room for another.
    within(open.pop().expect("several").close()).await;
    let again = within(async {
        loop {
            match Client::connect(server.client_config(Duration::ZERO)).await {
                Ok(client) => return client,
                Err(ClientError::Connect { .. }) => tokio::task::yield_now().await,
                Err(other) => panic!("{other}"),
            }
        }
    })
    .await;
    within(again.close()).await;
    other.close(0u32.into(), b"");
    server.stop().await;
}

#[tokio::test]
async fn many_connections_from_one_address_are_possible_by_default() {
    let server = TestServer::start(1);
    let mut peers = Vec::new();
    for _ in 0..300 {
        peers.push(Peer::open(&server).await.0);
    }
    for peer in peers {
        peer.leave().await;
    }
    server.stop().await;
}
