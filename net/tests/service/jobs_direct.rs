//! Direct placements that name queues, over the wire.

use crate::harness::{self, Peer, TestServer, add, ask, audit, granted, header, node, units, within};
use wharf_net::client::Client;
use wharf_net::protocol::{
    AmountsBody, Kind, ListQueuesRequest, MODE_WAIT_UNTIL, NamedAmount, PlaceBatch, PlaceReply, PlaceRequest,
    QueueBody, QueueStatusBody, Reason, Resume, SetQueueRequest,
};

/// Asks for cores in the queue `batch`.
fn in_queue(cpu: i64) -> PlaceRequest {
    PlaceRequest { queue: "batch".to_owned(), ..ask(cpu, 0, 0) }
}

/// A server with two nodes of 8 cores, and a queue `batch` with a cap of 10 cores and 3 allocations.
async fn start() -> (TestServer, Client) {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    add(&client, vec![node("a", 8, 4096, 0), node("b", 8, 4096, 0)]).await;
    let cap = AmountsBody { amounts: vec![NamedAmount { name: "cpu".to_owned(), amount: units(10) }] };
    let queue = QueueBody {
        name: "batch".to_owned(),
        capability: cap,
        allocations_max: Some(3),
        ..QueueBody::default()
    };
    let set = within(client.set_queue(&SetQueueRequest { queue })).await.expect("answered");
    assert!(set.reason.is_done(), "{set:?}");
    (server, client)
}

async fn listed(client: &Client) -> QueueStatusBody {
    let list = within(client.list_queues(&ListQueuesRequest::default())).await.expect("answered");
    list.queues.into_iter().next().expect("one queue")
}

fn held(status: &QueueStatusBody) -> i64 {
    status.usage.held.iter().map(|named| named.amount).sum()
}

#[tokio::test]
async fn a_placement_in_a_queue_is_charged_bounded_and_given_back() {
    let (server, client) = start().await;
    let first = granted(within(client.place(&in_queue(6))).await.expect("answered"));
    let status = listed(&client).await;
    assert_eq!((held(&status), status.direct, status.allocations, status.jobs), (units(6), 1, 1, 0));
    let refused = within(client.place(&in_queue(5))).await.expect("answered");
    assert_eq!(refused.reason, Reason::OverCap.into(), "{refused:?}");
    let fault = refused.fault.expect("the reason");
    assert_eq!(fault.field, "queue");
    assert!(
        fault.message.contains("`batch`") && fault.message.contains("of cpu 10, 6 are in use"),
        "{fault}"
    );
    // A placement without the queue is not charged to it.
    granted(within(client.place(&ask(5, 0, 0))).await.expect("answered"));
    for cpu in [1, 1] {
        granted(within(client.place(&in_queue(cpu))).await.expect("answered"));
    }
    let many = within(client.place(&in_queue(1))).await.expect("answered");
    assert_eq!(many.reason, Reason::OverCap.into());
    assert!(many.fault.is_some_and(|fault| fault.message.contains("of allocations 3, 3 are in use")));
    let released = within(client.release(first.allocation)).await.expect("answered");
    assert!(released.reason.is_done() && released.inside_ended.is_none(), "{released:?}");
    within(async {
        while held(&listed(&client).await) != units(2) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    granted(within(client.place(&in_queue(6))).await.expect("answered"));
    audit(&client).await;
    server.stop().await;
}

/// A request that is sent again, also after its connection was lost, is done once and answered alike.
#[tokio::test]
async fn a_placement_in_a_queue_that_is_sent_again_is_made_once() {
    let (server, client) = start().await;
    let (mut peer, opened) = Peer::open(&server).await;
    let place = harness::frame(header(Kind::Place, 1), &in_queue(2));
    let refuse = harness::frame(header(Kind::Place, 2), &in_queue(20));
    let mut replies: Vec<Vec<PlaceReply>> = vec![Vec::new(), Vec::new()];
    for _ in 0..2 {
        for (frame, replies) in [&place, &refuse].into_iter().zip(&mut replies) {
            peer.send(frame).await;
            replies.push(peer.frame().await.body());
        }
    }
    // The connection may be gone before this one is answered.
    peer.send(&harness::frame(header(Kind::Place, 3), &in_queue(2))).await;
    peer.leave().await;
    let resume = Resume { session: opened.session, token: opened.token };
    let (mut peer, _) = Peer::resume(&server, Some(resume)).await;
    for (frame, replies) in [&place, &refuse].into_iter().zip(&mut replies) {
        peer.send(frame).await;
        replies.push(peer.frame().await.body());
    }
    peer.send(&harness::frame(header(Kind::Place, 3), &in_queue(2))).await;
    let third = granted(peer.frame().await.body());
    let [placed, refused] = &replies[..] else { panic!("two requests") };
    assert!(placed.windows(2).all(|pair| pair[0] == pair[1]), "{placed:?}");
    assert!(refused.windows(2).all(|pair| pair[0] == pair[1]), "{refused:?}");
    assert_eq!(refused[0].reason, Reason::OverCap.into());
    assert_ne!(granted(placed[0].clone()).allocation, third.allocation);
    let status = listed(&client).await;
    assert_eq!((held(&status), status.direct), (units(4), 2));
    server.stop().await;
}

#[tokio::test]
async fn what_a_placement_in_a_queue_cannot_have_is_refused() {
    let (server, client) = start().await;
    let told = async |request: PlaceRequest| {
        let reply = within(client.place(&request)).await.expect("answered");
        let fault = reply.fault.expect("a fault");
        (fault.reason.known().expect("it is known"), fault.field)
    };
    let unknown = PlaceRequest { queue: "nobody".to_owned(), ..ask(1, 0, 0) };
    assert_eq!(told(unknown).await, (Reason::UnknownQueue, "queue".to_owned()));
    let waits = PlaceRequest { mode: MODE_WAIT_UNTIL, ..in_queue(1) };
    assert_eq!(told(waits).await, (Reason::NotSupportedYet, "mode".to_owned()));
    let leased = PlaceRequest { lease: 5, ..in_queue(1) };
    assert_eq!(told(leased).await, (Reason::NotSupportedYet, "lease".to_owned()));
    let too_large = within(client.place(&in_queue(9))).await.expect("answered");
    assert_eq!(too_large.reason, Reason::Infeasible.into(), "no node has 9 cores: {too_large:?}");
    assert_eq!(too_large.refusal.map(|refusal| refusal.nodes), Some(2));
    let batch = PlaceBatch { requests: vec![in_queue(1), ask(1, 0, 0)] };
    let replies = within(client.place_batch(&batch)).await.expect("answered").replies;
    let fault = replies[0].fault.as_ref().expect("a batch names no queue");
    assert_eq!((fault.reason, fault.field.as_str()), (Reason::NotSupportedYet.into(), "queue"));
    assert!(replies[1].reason.is_done(), "{replies:?}");
    assert_eq!(held(&listed(&client).await), 0);
    server.stop().await;
    let without_jobs = TestServer::start(1);
    let client = without_jobs.client().await;
    let reply = within(client.place(&in_queue(1))).await.expect("answered");
    assert_eq!(reply.reason, Reason::NotServed.into(), "{reply:?}");
    without_jobs.stop().await;
}
