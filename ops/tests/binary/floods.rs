//! Three clients each have many requests in flight that ask every shard. All are answered, and so are the
//! placements of another client.

use std::cell::Cell;
use std::sync::Arc;

use serde_json::json;
use wharf_core::limits::NODES_PER_MESSAGE_MAX;
use wharf_net::client::{Client, Completions};
use wharf_net::codec::decode_body;
use wharf_net::protocol::{
    DemandBody, ListReply, ListRequest, NodeBody, NodesRequest, PlaceRequest, StatusReply, StatusRequest,
    kinds,
};

use crate::harness::{Site, runtime, within};

/// The number of requests in flight per client.
const QUESTIONS: u64 = 128;
/// The number of nodes. With these, an audit takes a shard longer than the registrar needs to send the next
/// request.
const NODES: usize = 2048;

/// Alternates between status requests (every other one an audit) and node lists, and checks every reply.
async fn flood(client: &Client, shards: usize) {
    let replies = Arc::new(Completions::default());
    for tag in 0..QUESTIONS {
        let asked = match tag % 2 {
            // Audits share their pages; a plain status asks every shard each time.
            0 => client.submit::<kinds::Status>(&StatusRequest { audit: tag % 4 == 0 }, &replies, tag).await,
            _ => client.submit::<kinds::ListNodes>(&ListRequest { after: 0, limit: 8 }, &replies, tag).await,
        };
        asked.expect("the service is there");
    }
    let mut answered = Vec::new();
    let mut taken = Vec::new();
    while answered.len() < QUESTIONS as usize {
        within(replies.take(&mut taken)).await;
        for completion in taken.drain(..) {
            let body = completion.reply.expect("the service answers");
            if completion.tag % 2 == 0 {
                let status: StatusReply = decode_body(&body).expect("a status").0;
                // An audit returns no hash if the books change meanwhile, which they do here.
                assert_eq!(status.shards.len(), shards);
            } else {
                let page: ListReply = decode_body(&body).expect("a page").0;
                assert_eq!(page.nodes.len(), 8);
            }
            answered.push(completion.tag);
        }
    }
    answered.sort_unstable();
    assert!(answered.into_iter().eq(0..QUESTIONS), "each is answered once");
}

#[test]
fn pipelined_questions_to_every_shard_are_answered() {
    const SHARDS: usize = 16;
    let site = Site::new();
    let service = site.serve(&["--shards", &SHARDS.to_string(), "--metrics-listen", "127.0.0.1:0"]);
    runtime().block_on(async {
        let clients = [service.client().await, service.client().await, service.client().await];
        let placing = service.client().await;
        let node = |i| NodeBody { name: format!("n{i}"), cpu: 10_000, memory: 10_000, ..NodeBody::default() };
        let nodes: Vec<_> = (0..NODES).map(node).collect();
        for nodes in nodes.chunks(NODES_PER_MESSAGE_MAX) {
            let request = NodesRequest { nodes: nodes.to_vec() };
            let added = within(placing.add_nodes(&request)).await.expect("the service answers");
            assert!(added.replies.iter().all(|reply| reply.reason.is_done()));
        }
        let flooding = Cell::new(true);
        let floods = async {
            let [a, b, c] = &clients;
            tokio::join!(flood(a, SHARDS), flood(b, SHARDS), flood(c, SHARDS));
            flooding.set(false);
        };
        let meanwhile = async {
            while flooding.get() {
                let request = PlaceRequest {
                    demand: DemandBody { cpu: 10_000, ..DemandBody::default() },
                    ..PlaceRequest::default()
                };
                let reply = within(placing.place(&request)).await.expect("the service answers");
                let placed = reply.placed.expect("it fits");
                let released = within(placing.release(placed.allocation)).await.expect("the service answers");
                assert!(released.reason.is_done(), "{released:?}");
            }
        };
        tokio::join!(floods, meanwhile);
    });
    // A scrape also asks every shard.
    assert!(service.http("/metrics").0.starts_with("HTTP/1.1 200"));
    let status = service.json(&["status", "--audit"]);
    assert_ne!(status["books_hash"], json!(null));
    let shards = status["shards"].as_array().expect("a list");
    assert!(
        shards.len() == SHARDS && shards.iter().all(|shard| shard["allocations"] == json!(0)),
        "{status}"
    );
    service.stop();
}
