//! Direct placements that name queues, over the wire.

use crate::harness::{self, Peer, TestServer, add, ask, audit, granted, header, node, units, within};
use wharf_core::limits::PLACEMENTS_PER_MESSAGE_MAX;
use wharf_net::client::Client;
use wharf_net::protocol::{
    AmountsBody, CancelReply, CancelRequest, ExplainJobRequest, ExplainWaitRequest, Kind, ListQueuesRequest,
    MODE_WAIT_UNTIL, NamedAmount, PlaceBatch, PlaceBatchReply, PlaceReply, PlaceRequest, QueueBody,
    QueueStatusBody, Reason, RenewRequest, Resume, SetQueueRequest, WAITS_FOR_QUEUE, WireSession, kinds,
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

pub(super) fn held_of(status: &QueueStatusBody) -> i64 {
    status.usage.held.iter().map(|named| named.amount).sum()
}

#[tokio::test]
async fn a_placement_in_a_queue_is_charged_bounded_and_given_back() {
    let (server, client) = start().await;
    let first = granted(within(client.place(&in_queue(6))).await.expect("answered"));
    let status = listed(&client).await;
    assert_eq!((held_of(&status), status.direct, status.allocations, status.jobs), (units(6), 1, 1, 0));
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
        while held_of(&listed(&client).await) != units(2) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    granted(within(client.place(&in_queue(6))).await.expect("answered"));
    audit(&client).await;
    server.stop().await;
}

/// Its lease is renewed as any other. When it is over, the queue is not charged any more.
#[tokio::test]
async fn a_placement_in_a_queue_may_have_a_lease() {
    const SECOND: u64 = 1_000_000_000;
    let (server, client) = start().await;
    let leased = PlaceRequest { lease: 10 * SECOND, session_lease: true, ..in_queue(6) };
    granted(within(client.place(&leased)).await.expect("answered"));
    server.pass(9 * SECOND);
    let session = Some(client.hello().session);
    let renew = RenewRequest { lease: 10 * SECOND, allocations: Vec::new(), session };
    let renewed = within(client.renew(&renew)).await.expect("answered");
    assert_eq!(renewed.session.map(|of| of.allocations), Some(1));
    server.pass(9 * SECOND);
    audit(&client).await;
    assert_eq!(held_of(&listed(&client).await), units(6));
    server.pass(2 * SECOND);
    within(async {
        while held_of(&listed(&client).await) != 0 {
            audit(&client).await;
        }
    })
    .await;
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
    assert_eq!((held_of(&status), status.direct), (units(4), 2));
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
    let nowhere = PlaceRequest { mode: MODE_WAIT_UNTIL, queue: "nobody".to_owned(), ..ask(1, 0, 0) };
    assert_eq!(told(nowhere).await, (Reason::UnknownQueue, "queue".to_owned()));
    let leased = PlaceRequest { session_lease: true, ..in_queue(1) };
    assert_eq!(told(leased).await, (Reason::InvalidField, "session_lease".to_owned()));
    let too_large = within(client.place(&in_queue(9))).await.expect("answered");
    assert_eq!(too_large.reason, Reason::Infeasible.into(), "no node has 9 cores: {too_large:?}");
    assert_eq!(too_large.refusal.map(|refusal| refusal.nodes), Some(2));
    let batch = PlaceBatch { requests: vec![in_queue(1), ask(1, 0, 0)] };
    let replies = within(client.place_batch(&batch)).await.expect("answered").replies;
    assert!(replies[0].reason.is_done(), "{replies:?}");
    let fault = replies[1].fault.as_ref().expect("the other one names a queue");
    assert_eq!((fault.reason, fault.field.as_str()), (Reason::InvalidField.into(), "queue"));
    assert_eq!(held_of(&listed(&client).await), units(1));
    server.stop().await;
    let without_jobs = TestServer::start(1);
    let client = without_jobs.client().await;
    let reply = within(client.place(&in_queue(1))).await.expect("answered");
    assert_eq!(reply.reason, Reason::NotServed.into(), "{reply:?}");
    without_jobs.stop().await;
}

fn waits(cpu: i64) -> PlaceRequest {
    PlaceRequest { mode: MODE_WAIT_UNTIL, ..in_queue(cpu) }
}

/// Returns once so many jobs and placements wait in the queue.
async fn until_waiting(client: &Client, waiting: u32) {
    within(async {
        while listed(client).await.waiting != waiting {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

pub(super) fn of_placement(session: WireSession, sequence: u64) -> ExplainWaitRequest {
    ExplainWaitRequest { session: Some(session), sequence, ..ExplainWaitRequest::default() }
}

#[tokio::test]
async fn a_placement_waits_in_its_queue_and_is_explained() {
    let (server, client) = start().await;
    let held = granted(within(client.place(&in_queue(8))).await.expect("answered"));
    let request = PlaceRequest { priority: 3, ..waits(5) };
    let (sequence, reply) = within(client.call_waiting::<kinds::Place>(&request)).await.expect("sent");
    until_waiting(&client, 1).await;
    let other = server.client().await;
    let of_wait = of_placement(client.hello().session, sequence);
    let told = within(other.explain_wait(&of_wait)).await.expect("answered");
    assert!(told.reason.is_done() && told.job != 0, "{told:?}");
    assert_eq!((told.waits_for, told.priority, told.until), (WAITS_FOR_QUEUE, 3, None));
    let of_job = ExplainJobRequest { job: told.job, task: None };
    let told = within(async {
        loop {
            let told = other.explain_job(&of_job).await.expect("answered");
            // A cycle has to look at it first.
            if !told.bounds.is_empty() {
                return told;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(
        (told.waiting, told.bounds[0].bound, told.bounds[0].used),
        (1, units(10), units(8)),
        "{told:?}"
    );
    assert!(within(client.release(held.allocation)).await.expect("answered").reason.is_done());
    granted(within(reply).await.expect("answered"));
    let status = listed(&client).await;
    assert_eq!((held_of(&status), status.direct, status.waiting), (units(5), 1, 0));
    let ended = within(other.explain_wait(&of_wait)).await.expect("answered");
    assert_eq!(ended.reason, Reason::UnknownWait.into(), "{ended:?}");
    audit(&client).await;
    server.stop().await;
}

#[tokio::test]
async fn a_wait_in_a_queue_ends_by_a_cancel_and_at_its_deadline() {
    let (server, client) = start().await;
    let (sequence, reply) = within(client.call_waiting::<kinds::Place>(&waits(9))).await.expect("sent");
    until_waiting(&client, 1).await;
    assert!(within(client.cancel_wait(sequence)).await.expect("answered").waited);
    assert_eq!(within(reply).await.expect("answered").reason, Reason::Cancelled.into());
    until_waiting(&client, 0).await;
    let late = PlaceRequest { deadline: 1, ..waits(9) };
    let told = within(client.place(&late)).await.expect("answered");
    assert_eq!(told.reason, Reason::Infeasible.into(), "no node has 9 cores: {told:?}");
    assert_eq!(told.refusal.map(|refusal| refusal.nodes), Some(2));
    let over = PlaceRequest { deadline: 1, ..waits(11) };
    assert_eq!(within(client.place(&over)).await.expect("answered").reason, Reason::OverCap.into());
    let status = listed(&client).await;
    assert_eq!((held_of(&status), status.direct, status.waiting), (0, 0, 0));
    server.stop().await;
}

/// A wait goes on while its client is away, and its outcome is there when the client returns. It is done once.
#[tokio::test]
async fn a_wait_in_a_queue_lasts_over_a_lost_connection() {
    let (server, client) = start().await;
    let held = granted(within(client.place(&in_queue(8))).await.expect("answered"));
    let (mut peer, opened) = Peer::open(&server).await;
    let request = harness::frame(header(Kind::Place, 1), &waits(4));
    peer.send(&request).await;
    until_waiting(&client, 1).await;
    peer.leave().await;
    let resume = Resume { session: opened.session, token: opened.token };
    let (mut peer, _) = Peer::resume(&server, Some(resume)).await;
    peer.send(&request).await;
    until_waiting(&client, 1).await;
    let release = within(client.release(held.allocation)).await.expect("answered");
    assert!(release.reason.is_done());
    let placed = granted(peer.frame().await.body());
    peer.send(&request).await;
    assert_eq!(granted(peer.frame().await.body()).allocation, placed.allocation);
    // What has a place is not cancelled.
    peer.send(&harness::frame(header(Kind::CancelWait, 2), &CancelRequest { sequence: 1 })).await;
    assert!(!peer.frame().await.body::<CancelReply>().waited);
    let status = listed(&client).await;
    assert_eq!((held_of(&status), status.direct, status.waiting), (units(4), 1, 0));
    audit(&client).await;
    server.stop().await;
}

/// The requests of a batch are decided one by one, those of higher priority first. A batch that is sent again is done once.
#[tokio::test]
async fn a_batch_in_a_queue_is_charged_part_by_part_and_done_once() {
    let (server, client) = start().await;
    let (mut peer, opened) = Peer::open(&server).await;
    let part = |cpu, priority| PlaceRequest { priority, ..in_queue(cpu) };
    let late = PlaceRequest { mode: MODE_WAIT_UNTIL, ..in_queue(1) };
    let batch = PlaceBatch { requests: vec![part(5, 0), part(9, 3), part(6, 2), late, part(4, 1)] };
    let frame = harness::frame(header(Kind::PlaceBatch, 1), &batch);
    peer.send(&frame).await;
    let told: PlaceBatchReply = peer.frame().await.body();
    let reasons: Vec<Option<Reason>> = told.replies.iter().map(|reply| reply.reason.known()).collect();
    let [done, invalid] = [Reason::Done, Reason::InvalidField].map(Some);
    // No node has 9 cores, and the cap is 10.
    assert_eq!(reasons, [Some(Reason::OverCap), Some(Reason::Infeasible), done, invalid, done]);
    let status = listed(&client).await;
    assert_eq!((held_of(&status), status.direct), (units(10), 2));
    peer.leave().await;
    let resume = Resume { session: opened.session, token: opened.token };
    let (mut peer, _) = Peer::resume(&server, Some(resume)).await;
    peer.send(&frame).await;
    assert_eq!(peer.frame().await.body::<PlaceBatchReply>(), told);
    assert_eq!(held_of(&listed(&client).await), units(10));
    // As many as a message may have.
    let many = PlaceBatch { requests: vec![in_queue(1); PLACEMENTS_PER_MESSAGE_MAX] };
    let told = within(client.place_batch(&many)).await.expect("answered").replies;
    assert!(told.iter().all(|reply| reply.reason == Reason::OverCap.into()), "{told:?}");
    audit(&client).await;
    server.stop().await;
}
