//! The end of a server: accepted requests are answered, later ones get an error, and nothing hangs.

use std::sync::Arc;
use std::time::Duration;

use crate::harness::{Peer, TestServer, add, ask, granted, node, request, within};
use wharf_net::client::{Client, ClientError, Completions};
use wharf_net::codec::decode_body;
use wharf_net::protocol::{Kind, NodesReply, NodesRequest, PlaceReply, StatusReply, StatusRequest, kinds};

/// The server is told to stop in the middle of requests. Those that it has read are answered in full. All
/// others end with the connection, and the client reports that their outcome is unknown.
#[tokio::test]
async fn what_was_accepted_is_answered() {
    let server = TestServer::start(4);
    let client = server.client().await;
    add(&client, (0..100).map(|i| node(&format!("n{i}"), 1000, 1000, 0)).collect()).await;
    let queue = Arc::new(Completions::default());
    let sender = {
        let client = client.clone();
        let queue = Arc::clone(&queue);
        tokio::spawn(async move {
            for tag in 0.. {
                if within(client.submit::<kinds::Place>(&ask(1, 1, 0), &queue, tag)).await.is_err() {
                    return tag;
                }
            }
            unreachable!("the server stops before the tags end")
        })
    };
    let mut completions = Vec::new();
    let mut sender = sender;
    let mut server = Some(server);
    let mut stopping = None;
    let mut answered = 0u64;
    let mut lost = 0u64;
    let mut submitted = None;
    while submitted != Some(answered + lost) {
        let next = async {
            tokio::select! {
                () = queue.take(&mut completions) => None,
                tag = &mut sender, if submitted.is_none() => Some(tag.expect("no panic")),
            }
        };
        submitted = within(next).await.or(submitted);
        for completion in completions.drain(..) {
            match completion.reply {
                Ok(body) => {
                    granted(decode_body::<PlaceReply>(&body).unwrap().0);
                    answered += 1;
                }
                Err(ClientError::ConnectionLost(_)) => lost += 1,
                Err(other) => panic!("{other}"),
            }
        }
        if answered >= 2000
            && let Some(server) = server.take()
        {
            stopping = Some(tokio::spawn(server.stop()));
        }
    }
    within(stopping.expect("it was stopped")).await.expect("it stopped well");
}

/// Everything that a peer sent and the server had read before the stop is answered.
#[tokio::test]
async fn every_kind_under_way_is_answered_before_the_stream_ends() {
    let server = TestServer::start(2);
    let client = server.client().await;
    add(&client, vec![node("a", 1000, 1000, 0)]).await;
    within(client.close()).await;
    let (mut peer, _) = Peer::open(&server).await;
    // The bytes take one packet or a few. After the first reply, the server has begun with them.
    let mut bytes = request(Kind::Status, 1, &StatusRequest::default());
    bytes.extend(request(Kind::Place, 2, &ask(1, 1, 0)));
    bytes.extend(request(Kind::AddNodes, 3, &NodesRequest { nodes: vec![node("b", 1, 1, 0)] }));
    bytes.extend(request(Kind::Status, 4, &StatusRequest { audit: true }));
    peer.send(&bytes).await;
    let mut replies = vec![peer.frame().await];
    server.begin_shutdown();
    while let Some(reply) = peer.next().await {
        replies.push(reply);
    }
    replies.sort_by_key(|reply| reply.header.sequence);
    assert_eq!(replies.iter().map(|reply| reply.header.sequence).collect::<Vec<_>>(), [1, 2, 3, 4]);
    granted(replies[1].body());
    assert!(replies[2].body::<NodesReply>().replies[0].reason.is_done());
    assert!(replies[3].body::<StatusReply>().books_hash.is_some());
    server.stop().await;
}

#[tokio::test]
async fn who_asks_later_is_told() {
    let server = TestServer::start(1);
    let idle = server.client().await;
    let config = server.client_config(Duration::ZERO);
    server.stop().await;
    let error = within(idle.place(&ask(1, 1, 0))).await.expect_err("the server is gone");
    assert!(matches!(error, ClientError::ConnectionLost(_)), "{error:?}");
    assert!(error.to_string().contains("the connection is gone"), "{error}");
    within(idle.close()).await;
    let error = within(Client::connect(config)).await.err().expect("nobody is there");
    assert!(matches!(error, ClientError::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains("is the server running"), "{error}");
}

#[tokio::test]
async fn a_server_without_peers_stops() {
    TestServer::start(8).stop().await;
}

/// A client that is dropped or closed with no request in progress holds nothing.
#[tokio::test]
async fn clients_end_by_being_dropped() {
    let server = TestServer::start(1);
    let client = server.client().await;
    let other = client.clone();
    drop(client);
    add(&other, vec![node("a", 1, 1, 0)]).await;
    drop(other);
    let client = server.client().await;
    within(client.place(&ask(1, 1, 0))).await.expect("the server goes on");
    within(client.close()).await;
    server.stop().await;
}
