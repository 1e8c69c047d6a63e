//! Large requests over the wire. Requests that name tens of thousands of nodes are placed on those nodes.
//! Their number and their memory are bounded while they are in progress or wait. A batch is decided in order
//! of priority.

use crate::harness::{TestServer, add, ask, granted, node, within};
use wharf_core::limits::{CANDIDATES_IN_FLIGHT_MAX, CANDIDATES_MAX, CANDIDATES_WAITING_MAX};
use wharf_net::client::{Client, ClientError};
use wharf_net::protocol::{
    ListRequest, MODE_WAIT_UNTIL, PlaceBatch, PlaceRequest, Reason, StatusRequest, kinds,
};

/// Returns a request that names `count` ids from `first` on, of which few are registered.
fn naming(cpu: i64, first: u64, count: usize) -> PlaceRequest {
    PlaceRequest { candidates: (first..).take(count).collect(), ..ask(cpu, 0, 0) }
}

async fn ids(client: &Client) -> Vec<u64> {
    let page = within(client.list_nodes(&ListRequest { after: 0, limit: 1000 })).await.expect("answered");
    page.nodes.iter().map(|node| node.id).collect()
}

/// Polls until this number of infeasible requests waits. A request that was just sent takes some time to
/// arrive.
async fn until_waiting(client: &Client, count: u64) {
    within(async {
        while client.status(&StatusRequest::default()).await.expect("answered").waiting.infeasible != count {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn fifty_thousand_candidates_are_placed_among() {
    let server = TestServer::start(4);
    let client = server.client().await;
    add(&client, (0..200).map(|i| node(&format!("n{i}"), 4, 4096, 0)).collect()).await;
    let known = ids(&client).await;
    let last = *known.iter().max().expect("there are nodes");
    // Name the nodes from the hundredth on. Those before are free and are not named.
    let first = known[100];
    let mut used = Vec::new();
    for _ in 0..100 {
        let placed = granted(within(client.place(&naming(4, first, 50_000))).await.expect("answered"));
        used.push(placed.node);
    }
    used.sort_unstable();
    assert_eq!(used, (first..=last).collect::<Vec<_>>(), "each of the named that there are, once");
    let refused = within(client.place(&naming(4, first, 50_000))).await.expect("answered");
    assert_eq!(refused.reason, Reason::NoFitNow.into());
    let fault = refused.fault.expect("it says which are not registered");
    assert!(fault.message.contains("of 50000 named") && fault.message.contains("49897 more"), "{fault}");

    let longest = naming(4, 1, CANDIDATES_MAX);
    granted(within(client.place(&longest)).await.expect("answered"));
    let beyond = within(client.place(&naming(4, 1, CANDIDATES_MAX + 1))).await;
    let Err(ClientError::Fault(fault)) = beyond else { panic!("too many: {beyond:?}") };
    assert!(fault.field.contains("candidates") && fault.message.contains("65536"), "{fault}");
    server.stop().await;
}

#[tokio::test]
async fn what_candidates_take_is_bounded_under_way_and_while_they_wait() {
    let server = TestServer::start(2);
    let client = server.client().await;
    add(&client, vec![node("a", 4, 4096, 0)]).await;
    // Send three times as many as are taken at once. The rest waits in the stream, and all are answered.
    let count = 3 * CANDIDATES_IN_FLIGHT_MAX / CANDIDATES_MAX;
    let request = naming(8, 1, CANDIDATES_MAX);
    let mut replies = tokio::task::JoinSet::new();
    let client = std::sync::Arc::new(client);
    for _ in 0..count {
        let client = std::sync::Arc::clone(&client);
        let request = request.clone();
        replies.spawn(async move { within(client.place(&request)).await.expect("answered").reason });
    }
    while let Some(reason) = replies.join_next().await {
        assert_eq!(reason.expect("no panic"), Reason::Infeasible.into());
    }

    let waits = PlaceRequest { mode: MODE_WAIT_UNTIL, ..request };
    let room = CANDIDATES_WAITING_MAX / CANDIDATES_MAX;
    let mut waiting = Vec::new();
    for _ in 0..room {
        waiting.push(within(client.call_waiting::<kinds::Place>(&waits)).await.expect("sent"));
    }
    let (_, beyond) = within(client.call_waiting::<kinds::Place>(&waits)).await.expect("sent");
    let beyond = within(beyond).await.expect("answered");
    let fault = beyond.fault.expect("it says why");
    assert_eq!(fault.reason, Reason::LimitExceeded.into());
    assert!(fault.message.contains("name fewer"), "{fault}");
    // Requests without candidates are not affected, and one that ends makes room.
    until_waiting(&client, room as u64).await;
    let (first, reply) = waiting.swap_remove(0);
    assert!(within(client.cancel_wait(first)).await.expect("answered").waited);
    assert_eq!(within(reply).await.expect("answered").reason, Reason::Cancelled.into());
    let (_, reply) = within(client.call_waiting::<kinds::Place>(&waits)).await.expect("sent");
    until_waiting(&client, room as u64).await;
    drop((waiting, reply));
    server.stop().await;
}

#[tokio::test]
async fn a_batch_is_decided_by_priority_and_equal_ones_in_its_order() {
    let server = TestServer::start(1);
    let client = server.client().await;
    add(&client, vec![node("a", 8, 4096, 0)]).await;
    let of = |priority| PlaceRequest { priority, ..ask(4, 0, 0) };
    let done = async |priorities: &[i32]| {
        let batch = PlaceBatch { requests: priorities.iter().map(|&priority| of(priority)).collect() };
        let replies = within(client.place_batch(&batch)).await.expect("answered").replies;
        let mut done = Vec::new();
        for (part, reply) in replies.into_iter().enumerate() {
            if let Some(placed) = reply.placed {
                done.push(part);
                within(client.release(placed.allocation)).await.expect("answered");
            }
        }
        done
    };
    // The node has room for two requests of each batch.
    assert_eq!(done(&[0, 0, 0, 0]).await, [0, 1]);
    assert_eq!(done(&[0, 1, 0, 5]).await, [1, 3]);
    assert_eq!(done(&[-1, i32::MIN, -1, -1]).await, [0, 2]);
    assert_eq!(done(&[i32::MIN, i32::MAX, 7, 7]).await, [1, 2]);
    // A priority has no meaning for a single request that does not wait.
    let alone = within(client.place(&of(1))).await.expect("answered");
    assert_eq!(alone.fault.expect("it is refused").field, "priority");
    server.stop().await;
}
