//! More requests than the engine can do: who waits, who is refused, and what is never done.

use std::time::Duration;

use wharf_net::access::{AccessSettings, Role};
use wharf_net::client::ClientError;
use wharf_net::limits::LINES_PARTS_MAX;
use wharf_net::protocol::{Fault, Kind, PlaceBatch, PlaceBatchReply, PlaceReply, Reason, StatusReply};
use wharf_net::session::connections::{ConnectionKey, InputEnd};

use crate::harness::bed::Bed;
use crate::harness::{
    Frame, Peer, TestServer, add, ask, audit, books, granted, identity, node, request, request_within,
    tenant, within,
};
use wharf_core::limits::{PLACEMENTS_PER_MESSAGE_MAX, SHARD_WINDOW_MIN};

const MILLISECOND_NS: u64 = 1_000_000;
/// Each command takes so long that a port has as few at the shard as it may have.
const PACE_NS: u64 = MILLISECOND_NS;
const WINDOW: u64 = SHARD_WINDOW_MIN as u64;

/// Returns a bed whose commands are slow, and a connection. The first request has shown the pace.
fn slow_bed() -> (Bed, ConnectionKey) {
    let mut bed = Bed::with_full_node(Vec::new(), crate::harness::bed::NOW);
    bed.set_pace(PACE_NS);
    let key = bed.connect(false, None).0;
    bed.service.receive(key, &request(Kind::Place, 1, &ask(1, 0, 0)), bed.now);
    step(&mut bed);
    assert_eq!(sequences(&mut bed, key), [1]);
    (bed, key)
}

/// Lets the shard do one command, in its time.
fn step(bed: &mut Bed) {
    bed.now = bed.now.plus_nanos(PACE_NS);
    bed.run_shard();
    bed.write();
}

fn sequences(bed: &mut Bed, key: ConnectionKey) -> Vec<u64> {
    bed.replies(key).iter().map(|reply| reply.header.sequence).collect()
}

fn send(bed: &mut Bed, key: ConnectionKey, sequences: std::ops::RangeInclusive<u64>) {
    for sequence in sequences {
        bed.service.receive(key, &request(Kind::Place, sequence, &ask(1, 0, 0)), bed.now);
    }
}

fn send_within(bed: &mut Bed, key: ConnectionKey, sequence: u64, within: u64) {
    bed.service.receive(key, &request_within(Kind::Place, sequence, within, &ask(1, 0, 0)), bed.now);
}

/// Returns the only reply, which must be a fault with this reason.
fn refused(bed: &mut Bed, key: ConnectionKey, reason: Reason) -> Fault {
    let replies = bed.replies(key);
    let [reply] = &replies[..] else { panic!("{} replies", replies.len()) };
    reply.assert_fault(reason)
}

#[test]
fn a_connection_with_little_to_do_does_not_wait_for_one_with_much() {
    let (mut bed, greedy) = slow_bed();
    let modest = bed.connect(false, None).0;
    send(&mut bed, greedy, 2..=200);
    send(&mut bed, modest, 1..=1);
    // Those that are at the shard already, one more of the greedy one at most, and its own.
    for _ in 0..WINDOW + 2 {
        step(&mut bed);
    }
    assert_eq!(sequences(&mut bed, modest), [1]);
    assert!(sequences(&mut bed, greedy).len() as u64 <= WINDOW + 1);
    // All of it is done in the end.
    for _ in 0..200 {
        step(&mut bed);
    }
    assert_eq!(sequences(&mut bed, greedy).last(), Some(&200));
    bed.service.check_room().expect("nothing is in progress");
}

/// Connects as many clients, each of which asks for a whole batch. Together, more waits than should.
fn crowd(bed: &mut Bed) -> Vec<ConnectionKey> {
    let clients: Vec<_> =
        (0..LINES_PARTS_MAX / PLACEMENTS_PER_MESSAGE_MAX + 2).map(|_| bed.connect(false, None).0).collect();
    let batch = PlaceBatch { requests: vec![ask(1, 0, 0); PLACEMENTS_PER_MESSAGE_MAX] };
    let bytes = request(Kind::PlaceBatch, 1, &batch);
    clients.iter().for_each(|&key| bed.service.receive(key, &bytes, bed.now));
    clients
}

/// Whatever others ask for, a connection is read again once it has had its turns.
#[test]
fn a_connection_that_came_when_too_much_waited_is_read_again_after_its_turn() {
    let (mut bed, modest) = slow_bed();
    let others = crowd(&mut bed);
    send(&mut bed, modest, 2..=2);
    for _ in 0..WINDOW + others.len() as u64 + 1 {
        step(&mut bed);
    }
    assert_eq!(sequences(&mut bed, modest), [2]);
    assert!(bed.service.wants_input(modest));
    // Each of the others has more than its share of what may wait: it may ask for one thing more, and is not read further.
    send(&mut bed, others[0], 2..=2);
    assert!(!bed.service.wants_input(others[0]));
    send(&mut bed, modest, 3..=3);
    for _ in 0..WINDOW + others.len() as u64 + 1 {
        step(&mut bed);
    }
    assert_eq!(sequences(&mut bed, modest), [3]);
}

/// Nobody is refused for what others ask for, as long as its own turns come in time.
#[test]
fn a_request_with_a_deadline_is_not_refused_because_others_ask_for_much() {
    let (mut bed, modest) = slow_bed();
    let others = crowd(&mut bed);
    // One round is enough for it, and it has time for a few.
    let within = 4 * (WINDOW + others.len() as u64) * PACE_NS;
    for sequence in 2..=3 {
        send_within(&mut bed, modest, sequence, within);
        assert_eq!(bed.replies(modest).len(), 0, "it is expected in time");
    }
    // Who has more than its share is refused, however much time it gives.
    send_within(&mut bed, others[0], 2, u64::MAX / 4);
    refused(&mut bed, others[0], Reason::Overloaded);
    for _ in 0..within / PACE_NS {
        step(&mut bed);
    }
    let replies = bed.replies(modest);
    assert_eq!(replies.iter().map(|reply| reply.header.sequence).collect::<Vec<_>>(), [2, 3]);
    assert!(replies.iter().all(|reply| reply.fault().is_none()));
}

/// The line of a connection is bounded: beyond it, the connection is not read.
#[test]
fn a_connection_with_too_much_to_do_is_not_read() {
    let (mut bed, key) = slow_bed();
    let mut sent = 1;
    while bed.service.wants_input(key) {
        sent += 1;
        send(&mut bed, key, sent..=sent);
        assert!(sent < 1000, "it is read without end");
    }
    assert!(bed.service.in_flight(key) as u64 <= sent);
    // With each turn, as much is read again.
    let mut answered = 1;
    while answered < sent {
        step(&mut bed);
        answered += sequences(&mut bed, key).len() as u64;
        if answered == sent / 2 {
            assert!(bed.service.wants_input(key));
        }
    }
    bed.service.check_room().expect("nothing is in progress");
}

#[test]
fn what_would_be_late_is_refused_at_once_and_told_when_to_ask_again() {
    let (mut bed, key) = slow_bed();
    send(&mut bed, key, 2..=21);
    // Twenty are before it, each of a millisecond.
    send_within(&mut bed, key, 22, 30 * MILLISECOND_NS);
    let fault = refused(&mut bed, key, Reason::Overloaded);
    assert!((15..=25).contains(&fault.retry_after_ms), "{fault:?}");
    send_within(&mut bed, key, 23, 60 * MILLISECOND_NS);
    assert_eq!(bed.replies(key).len(), 0, "it is expected in time");
    // What it has done so far is told to the journal, and a refusal is not.
    assert_eq!(bed.write(), Vec::<Vec<u64>>::new());
    for _ in 0..fault.retry_after_ms {
        step(&mut bed);
    }
    send_within(&mut bed, key, 24, 30 * MILLISECOND_NS);
    for _ in 0..4 {
        step(&mut bed);
    }
    let answered = bed.replies(key);
    assert!(answered.iter().all(|reply| reply.fault().is_none()));
    let last: Vec<u64> = answered.iter().map(|reply| reply.header.sequence).filter(|&at| at > 21).collect();
    assert_eq!(last, [23, 24]);
}

#[test]
fn what_is_too_late_when_its_turn_comes_is_not_done() {
    let (mut bed, key) = slow_bed();
    send(&mut bed, key, 2..=5);
    send_within(&mut bed, key, 6, 20 * MILLISECOND_NS);
    bed.service.receive(
        key,
        &request_within(
            Kind::PlaceBatch,
            7,
            20 * MILLISECOND_NS,
            &PlaceBatch { requests: vec![ask(0, 0, 0)] },
        ),
        bed.now,
    );
    assert_eq!(bed.replies(key).len(), 0);
    // The shard was held up.
    bed.now = bed.now.plus_nanos(20 * MILLISECOND_NS);
    for _ in 0..6 {
        step(&mut bed);
    }
    let replies = bed.replies(key);
    let late: Vec<&Frame> = replies.iter().filter(|reply| reply.fault().is_some()).collect();
    assert_eq!(late.iter().map(|reply| reply.header.sequence).collect::<Vec<_>>(), [6, 7]);
    late.iter().for_each(|reply| drop(reply.assert_fault(Reason::DeadlineExceeded)));
    assert_eq!(replies.len(), 6);
    bed.service.check_room().expect("nothing is in progress");
    // It is late when it comes.
    send_within(&mut bed, key, 8, 0);
    refused(&mut bed, key, Reason::DeadlineExceeded);
}

/// A refusal promises nothing: the same request may be sent again, and is then done once.
#[test]
fn a_refused_request_that_is_sent_again_is_done_once() {
    let (mut bed, key) = slow_bed();
    send(&mut bed, key, 2..=21);
    let batch = PlaceBatch { requests: vec![ask(0, 0, 0); 3] };
    let bytes = request_within(Kind::PlaceBatch, 22, 30 * MILLISECOND_NS, &batch);
    bed.service.receive(key, &bytes, bed.now);
    refused(&mut bed, key, Reason::Overloaded);
    for _ in 0..20 {
        step(&mut bed);
    }
    bed.replies(key);
    let mut granted_first = Vec::new();
    for _ in 0..2 {
        bed.service.receive(key, &bytes, bed.now);
        for _ in 0..3 {
            step(&mut bed);
        }
        let replies = bed.replies(key);
        let reply: PlaceBatchReply = replies[0].body();
        let sequences: Vec<u64> =
            reply.replies.into_iter().map(|reply| granted(reply).allocation.sequence).collect();
        assert_eq!(sequences.len(), 3);
        if granted_first.is_empty() {
            granted_first = sequences;
        } else {
            assert_eq!(sequences, granted_first, "the second time, the same");
        }
    }
}

#[test]
fn the_lines_of_a_connection_that_is_lost_go_on() {
    let (mut bed, key) = slow_bed();
    let other = bed.connect(false, None).0;
    send(&mut bed, key, 2..=9);
    send(&mut bed, other, 1..=1);
    bed.service.end_input(key, InputEnd::Lost, bed.now);
    for _ in 0..10 {
        step(&mut bed);
    }
    assert_eq!(sequences(&mut bed, other), [1]);
    sequences(&mut bed, key);
    assert!(bed.service.is_settled(key));
    bed.service.close(key, false, bed.now);
    bed.service.check_room().expect("nothing is in progress");
}

/// A tenant with many connections gets no more turns than one with one.
#[test]
fn tenants_have_turns_in_turn() {
    let (mut bed, _) = slow_bed();
    bed.shared.set_access(&AccessSettings {
        tenants: vec![tenant(1), tenant(2)],
        identities: [1, 2]
            .map(|number| identity(&format!("user-{number}"), &[Role::Submit], Some(number)))
            .into(),
        by_certificate: true,
        ..AccessSettings::default()
    });
    let greedy: Vec<_> = (0..8).map(|_| bed.greet_as(&["user-1"], false, None).0).collect();
    let modest = bed.greet_as(&["user-2"], false, None).0;
    greedy.iter().for_each(|&key| send(&mut bed, key, 1..=20));
    send(&mut bed, modest, 1..=10);
    for _ in 0..WINDOW + 21 {
        step(&mut bed);
    }
    assert_eq!(sequences(&mut bed, modest).len(), 10, "every second turn");
    let answered: Vec<usize> = greedy.iter().map(|&key| sequences(&mut bed, key).len()).collect();
    assert!(
        answered.iter().all(|&answered| answered as u64 <= WINDOW + 2),
        "round over its connections: {answered:?}"
    );
    assert!(answered.iter().sum::<usize>() as u64 <= WINDOW + 11);
}

/// Over a socket: what cannot be done in time is refused, and the books do not move.
#[tokio::test]
async fn a_client_says_how_long_it_waits() {
    let server = TestServer::start(2);
    let client = server.client().await;
    add(&client, vec![node("a", 1000, 1000, 0)]).await;
    let before = books(&client).await;
    let hasty = client.within(Duration::from_nanos(1));
    for _ in 0..50 {
        let Err(ClientError::Fault(fault)) = within(hasty.place(&ask(1, 1, 0))).await else {
            panic!("it cannot be done in a nanosecond")
        };
        assert_eq!(fault.reason.known(), Some(Reason::Overloaded), "{fault}");
        assert!(fault.retry_after_ms > 0);
    }
    assert_eq!(books(&client).await, before);
    let patient = client.within(Duration::from_secs(3600));
    let placed = within(patient.place(&ask(1, 1, 0))).await.expect("answered").placed.expect("it fits");
    assert!(within(patient.release(placed.allocation)).await.expect("answered").reason.is_done());
    drop((hasty, patient));
    within(client.close()).await;
    server.stop().await;
}

/// Peers that ask for much more than can be done in time: each request is done or refused, and the books have exactly
/// what was granted.
#[tokio::test]
async fn under_a_flood_every_request_is_done_or_refused() {
    const PEERS: usize = 3;
    const EACH: u64 = 1000;
    let server = TestServer::start(2);
    let client = server.client().await;
    add(&client, vec![node("a", 10_000, 10_000, 0)]).await;
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        let (mut peer, _) = Peer::open(&server).await;
        let mut bytes = Vec::new();
        for sequence in 1..=EACH {
            // From hopeless to plenty.
            bytes.extend(request_within(Kind::Place, sequence, 1 << (sequence % 40), &ask(1, 1, 0)));
        }
        peer.send(&bytes).await;
        peers.push(peer);
    }
    let mut done = 0;
    for peer in &mut peers {
        for _ in 0..EACH {
            let reply = peer.frame().await;
            match reply.fault() {
                None => {
                    granted(reply.body::<PlaceReply>());
                    done += 1;
                }
                Some(fault) => {
                    let reason = fault.reason.known();
                    let expected = [Some(Reason::Overloaded), Some(Reason::DeadlineExceeded)];
                    assert!(expected.contains(&reason), "{fault}");
                }
            }
        }
    }
    let allocations = |status: &StatusReply| status.shards.iter().map(|shard| shard.allocations).sum::<u64>();
    assert_eq!(allocations(&audit(&client).await), done);
    assert!(done > 0 && done < PEERS as u64 * EACH);
    for peer in peers {
        peer.leave().await;
    }
    within(client.close()).await;
    server.stop().await;
}
