//! Leases over the wire: they run out, are renewed one by one or for a session, and are told of to followers. Time is
//! the service's clock, which these tests move.

use std::time::Duration;

use crate::harness::{TestServer, add, ask, audit, granted, node, place, within};
use wharf_core::limits::LEASE_NS_MAX;
use wharf_net::client::Client;
use wharf_net::protocol::{
    BundleTemplate, CreateGroupRequest, FOLLOW_ALL, FollowRequest, MODE_WAIT_UNTIL, PlaceBatch, PlaceRequest,
    PlacedBody, Reason, RenewReply, RenewRequest, ShardVersion, WireAllocation,
};

const SECOND: u64 = 1_000_000_000;

fn leased(seconds: u64, request: PlaceRequest) -> PlaceRequest {
    PlaceRequest { lease: seconds * SECOND, ..request }
}

fn of_session(seconds: u64, request: PlaceRequest) -> PlaceRequest {
    PlaceRequest { session_lease: true, ..leased(seconds, request) }
}

async fn renew(client: &Client, seconds: u64, allocations: Vec<WireAllocation>) -> RenewReply {
    let request = RenewRequest { lease: seconds * SECOND, allocations, session: None };
    within(client.renew(&request)).await.expect("answered")
}

async fn renew_session(client: &Client, seconds: u64) -> u64 {
    let session = Some(client.hello().session);
    let request = RenewRequest { lease: seconds * SECOND, allocations: Vec::new(), session };
    let reply = within(client.renew(&request)).await.expect("answered");
    assert_eq!(reply.replies, []);
    reply.session.expect("a session was named").allocations
}

async fn live(client: &Client) -> u64 {
    audit(client).await.shards.iter().map(|shard| shard.allocations).sum()
}

/// Asks until so many allocations are live. Each question is a step of every shard.
async fn until_live(client: &Client, count: u64) {
    let counted = async { while live(client).await != count {} };
    within(counted).await;
}

/// Lets time pass. Afterwards every lease that is over has ended its allocation, because a shard ends some with each
/// batch, and here are few.
async fn pass(server: &TestServer, client: &Client, seconds: u64) {
    server.pass(seconds * SECOND);
    for _ in 0..3 {
        live(client).await;
    }
}

async fn reason_of_release(client: &Client, placed: &PlacedBody) -> Option<Reason> {
    within(client.release(placed.allocation)).await.expect("answered").reason.known()
}

/// Would fail if a lease never ran out, ran out early in spite of a renewal, or kept its room.
#[tokio::test]
async fn a_lease_that_is_not_renewed_makes_room_for_who_waits() {
    let server = TestServer::start(2);
    let client = server.client().await;
    add(&client, vec![node("a", 1, 1024, 0)]).await;
    let first = place(&client, &leased(1000, ask(1, 0, 0))).await;
    let waiting = PlaceRequest { mode: MODE_WAIT_UNTIL, ..leased(50, ask(1, 0, 0)) };
    let (_, second) = client.call_waiting::<wharf_net::protocol::kinds::Place>(&waiting).await.expect("sent");
    pass(&server, &client, 999).await;
    let renewed = renew(&client, 1000, vec![first.allocation]).await;
    assert!(renewed.replies[0].reason.is_done() && renewed.session.is_none(), "{renewed:?}");
    assert!(renewed.replies[0].until >= 1999 * SECOND, "{renewed:?}");
    // A shorter renewal shortens nothing.
    let same = renew(&client, 1, vec![first.allocation]).await;
    assert_eq!(same.replies[0].until, renewed.replies[0].until);
    pass(&server, &client, 999).await;
    assert_eq!(live(&client).await, 1, "it was renewed");
    pass(&server, &client, 2).await;
    let second = granted(within(second).await.expect("answered"));
    assert_ne!(second.allocation, first.allocation);
    assert_eq!(reason_of_release(&client, &first).await, Some(Reason::UnknownAllocation));
    let late = renew(&client, 1000, vec![first.allocation]).await;
    assert_eq!(late.replies[0].reason, Reason::UnknownAllocation.into());
    // The lease of a request that waited counts from the grant.
    pass(&server, &client, 49).await;
    assert_eq!(live(&client).await, 1);
    pass(&server, &client, 2).await;
    until_live(&client, 0).await;
    server.stop().await;
}

/// Would fail if a renewal for a session left out a shard, or reached leases of others.
#[tokio::test]
async fn one_renewal_is_for_all_leases_of_a_session() {
    let server = TestServer::start(3);
    let client = server.client().await;
    let other = server.client().await;
    add(&client, (0..12).map(|n| node(&format!("n{n}"), 4, 1024, 0)).collect()).await;
    let batch = PlaceBatch { requests: vec![of_session(100, ask(1, 0, 0)); 20] };
    let replies = within(client.place_batch(&batch)).await.expect("answered").replies;
    let placed: Vec<PlacedBody> = replies.into_iter().map(granted).collect();
    place(&client, &leased(100, ask(1, 0, 0))).await;
    place(&other, &of_session(100, ask(1, 0, 0))).await;
    place(&other, &ask(1, 0, 0)).await;
    assert_eq!(renew_session(&client, 300).await, 20);
    pass(&server, &client, 101).await;
    until_live(&client, 21).await;
    assert_eq!(renew_session(&other, 300).await, 0, "its lease ran out");
    // One of them is released, and the others stay.
    assert_eq!(reason_of_release(&client, &placed[7]).await, Some(Reason::Done));
    assert_eq!(renew_session(&client, 300).await, 19);
    pass(&server, &client, 299).await;
    assert_eq!(live(&client).await, 20);
    pass(&server, &client, 2).await;
    until_live(&client, 1).await;
    server.stop().await;
}

/// Would fail if the keeper stopped after some renewals, or renewed another session.
#[tokio::test]
async fn a_keeper_keeps_the_leases_of_its_client() {
    let server = TestServer::start(1);
    let client = server.client().await;
    let other = server.client().await;
    add(&client, vec![node("a", 4, 1024, 0)]).await;
    place(&client, &of_session(100, ask(1, 0, 0))).await;
    place(&other, &of_session(100, ask(1, 0, 0))).await;
    let mut keeper = client.keep_leases_every(Duration::from_secs(100), Duration::from_millis(1));
    for round in 0..10 {
        assert_eq!(within(keeper.renewed()).await.expect("renewed").allocations, 1, "round {round}");
        // The next renewal that is answered may have been made before the time passed.
        within(keeper.renewed()).await.expect("renewed");
        pass(&server, &other, 60).await;
    }
    assert_eq!(live(&other).await, 1);
    drop(keeper);
    pass(&server, &other, 101).await;
    until_live(&other, 0).await;
    server.stop().await;
}

/// Would fail if a follower could not tell an expired lease from a release.
#[tokio::test]
async fn followers_are_told_which_leases_ran_out() {
    let server = TestServer::start_planning(1, 1);
    let client = server.client().await;
    add(&client, vec![node("a", 4, 1024, 0)]).await;
    let expires = place(&client, &leased(10, ask(1, 0, 0))).await;
    let released = place(&client, &leased(10, ask(1, 0, 0))).await;
    let follow = |from: Vec<ShardVersion>| {
        let request = FollowRequest { from, kinds: FOLLOW_ALL, ..FollowRequest::default() };
        let client = client.clone();
        async move { within(client.follow_page(&request)).await.expect("answered").page }
    };
    let first = follow(Vec::new()).await.expect("there is something");
    assert_eq!(first.allocations.len(), 2);
    assert_eq!(reason_of_release(&client, &released).await, Some(Reason::Done));
    pass(&server, &client, 11).await;
    until_live(&client, 0).await;
    let mut from = first.to;
    let mut ended = Vec::new();
    while ended.len() < 2 {
        let page = follow(vec![from]).await.expect("both ended");
        from = page.to;
        ended.extend(page.allocations_ended.iter().map(|ended| (ended.allocation, ended.reason.known())));
    }
    ended.sort_unstable_by_key(|&(allocation, _)| allocation);
    let expected =
        [(expires.allocation, Some(Reason::LeaseExpired)), (released.allocation, Some(Reason::Done))];
    assert_eq!(ended, expected);
    drop(client);
    server.stop().await;
}

/// Would fail if a wrong field were ignored, or a renewal touched what has no lease of its own.
#[tokio::test]
async fn what_cannot_be_leased_or_renewed_is_refused_by_name() {
    let server = TestServer::start_planning(1, 1);
    let client = server.client().await;
    add(&client, vec![node("a", 8, 1024, 0)]).await;
    let wrong = [
        (PlaceRequest { lease: LEASE_NS_MAX + 1, ..ask(1, 0, 0) }, "lease"),
        (PlaceRequest { session_lease: true, ..ask(1, 0, 0) }, "session_lease"),
    ];
    for (request, field) in wrong {
        let fault = within(client.place(&request)).await.expect("answered").fault.expect("it is refused");
        assert_eq!((fault.reason.known(), &*fault.field), (Some(Reason::InvalidField), field));
    }
    let bundle = BundleTemplate { request: leased(1, ask(1, 0, 0)), count: 1 };
    let group = CreateGroupRequest { bundles: vec![bundle], ..CreateGroupRequest::default() };
    let fault = within(client.create_group(&group)).await.expect("answered").fault.expect("it is refused");
    assert_eq!((fault.reason.known(), &*fault.field), (Some(Reason::NotSupportedYet), "bundles[0].lease"));
    assert_eq!(live(&client).await, 0);
    for lease in [0, LEASE_NS_MAX + 1] {
        let request = RenewRequest { lease, ..RenewRequest::default() };
        let refused = within(client.renew(&request)).await.expect_err("it is refused").to_string();
        assert!(refused.contains("lease"), "{refused}");
    }
    let own = place(&client, &leased(10, ask(1, 0, 0))).await.allocation;
    let plain = place(&client, &ask(1, 0, 0)).await.allocation;
    let shared = place(&client, &of_session(10, ask(1, 0, 0))).await.allocation;
    let nowhere = WireAllocation { partition: u16::MAX, ..own };
    let never = WireAllocation { sequence: u64::MAX, ..own };
    let reply = renew(&client, 10, vec![plain, own, shared, nowhere, never]).await;
    let reasons: Vec<_> = reply.replies.iter().map(|part| part.reason.known().expect("known")).collect();
    let unknown = Reason::UnknownAllocation;
    assert_eq!(reasons, [Reason::NoLease, Reason::Done, Reason::LeaseOfSession, unknown, unknown]);
    assert_eq!(renew(&client, 10, Vec::new()).await, RenewReply::default());
    server.stop().await;
}
