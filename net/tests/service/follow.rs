//! Following changes over QUIC. Followers see the true state, despite lost connections, restarts and
//! followers that are too slow. No request waits forever.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::harness::bed::{Bed, NOW};
use crate::harness::{Peer, TestServer, add, ask, audit, named, node, pair, place, request, units, within};
use wharf_core::ids::ShardId;
use wharf_core::rng::Rng;
use wharf_net::client::{Client, Followed, Follower, Mirror, MirroredShard};
use wharf_net::protocol::*;

fn all(from: &[ShardVersion], wait_ms: u32) -> FollowRequest {
    FollowRequest { from: from.to_vec(), kinds: FOLLOW_ALL, wait_ms, ..FollowRequest::default() }
}

/// Receives and applies all available changes.
async fn catch_up(follower: &mut Follower, mirror: &mut Mirror) -> Vec<Followed> {
    let mut told = Vec::new();
    while let Some(followed) = within(follower.poll(Duration::ZERO)).await.expect("answered") {
        mirror.apply(&followed);
        if followed.page.next.is_none() {
            // The service's own counts for this version.
            let shard = &mirror.shards[&followed.page.to.shard];
            assert_eq!(shard.nodes.len(), followed.page.node_count as usize);
            assert_eq!(shard.allocations.len() as u64, followed.page.allocation_count);
        }
        told.push(followed);
    }
    assert!(follower.is_whole());
    told
}

/// Returns a mirror's content without its versions.
fn content(mirror: &Mirror) -> BTreeMap<u16, MirroredShard> {
    let bare = |shard: &MirroredShard| MirroredShard { version: None, ..shard.clone() };
    mirror.shards.iter().map(|(&number, shard)| (number, bare(shard))).collect()
}

/// Returns the state as a new follower sees it.
async fn fresh(client: &Client) -> Mirror {
    let mut mirror = Mirror::default();
    catch_up(&mut client.follow(&[]), &mut mirror).await;
    mirror
}

/// Checks that the mirror's nodes equal the node list.
async fn assert_listed(client: &Client, mirror: &Mirror) {
    let page = within(client.list_nodes(&ListRequest { after: 0, limit: 1000 })).await.expect("listed");
    let told = mirror.nodes();
    assert_eq!(page.nodes.len(), told.len());
    for status in page.nodes {
        let told = told[&status.id];
        let details = told.details.as_ref().expect("told at first");
        assert_eq!(
            (told.state, told.version, told.cpu, told.memory, &told.gpus, told.allocations),
            (
                status.state,
                status.version,
                status.cpu_available,
                status.memory_available,
                &status.gpus_available,
                status.allocations
            )
        );
        assert_eq!((told.body.as_ref(), &told.node_name), (Some(&status.body), &status.body.name));
        assert_eq!(details.unhealthy, status.unhealthy);
        assert_eq!(details.owner, status.reserved.map_or(0, |reserved| reserved.owner));
    }
    // The allocation counts of nodes match the reported allocations.
    let mut count: BTreeMap<u64, u32> = BTreeMap::new();
    let allocations = mirror.shards.values().flat_map(|shard| shard.allocations.values());
    allocations.for_each(|allocation| *count.entry(allocation.node).or_default() += 1);
    assert!(told.iter().all(|(id, node)| node.allocations == count.get(id).copied().unwrap_or(0)));
}

/// Random traffic of all kinds.
struct Traffic {
    client: Client,
    rng: Rng,
    names: u64,
    live: Vec<WireAllocation>,
    groups: Vec<WireGroup>,
}

impl Traffic {
    async fn new(server: &TestServer, seed: u64) -> Self {
        let client = server.client().await;
        Self { client, rng: Rng::new(seed), names: 0, live: Vec::new(), groups: Vec::new() }
    }

    fn name(&mut self) -> String {
        format!("n{}", self.rng.below(self.names.max(1)))
    }

    async fn add(&mut self) {
        let name = format!("n{}", self.names);
        self.names += 1;
        let body = NodeBody {
            labels: vec![pair("zone", &format!("z{}", self.rng.below(3)))],
            custom: vec![named("npu", 4), named("disk", 2)],
            ..node(&name, 8, 4096, self.rng.below(5) as u32)
        };
        add(&self.client, vec![body]).await;
    }

    async fn step(&mut self) {
        let client = self.client.clone();
        match self.rng.below(20) {
            0 => self.add().await,
            1 => {
                let names = vec![Name(self.name())];
                let request = RemoveRequest { names, force: self.rng.below(2) == 0 };
                within(client.remove_nodes(&request)).await.expect("answered");
            }
            2 => {
                let request = DrainRequest { names: vec![Name(self.name())], undo: self.rng.below(2) == 0 };
                within(client.drain_nodes(&request)).await.expect("answered");
            }
            3 => {
                let name = self.name();
                let nodes = vec![node(&name, 6 + self.rng.below(5) as i64, 4096, 2)];
                within(client.update_nodes(&NodesRequest { nodes })).await.expect("answered");
            }
            4 => {
                let count = 1 + self.rng.below(3) as u32;
                let mut bundle = BundleTemplate { count, ..BundleTemplate::default() };
                bundle.request.demand.cpu = units(1);
                let request = CreateGroupRequest { bundles: vec![bundle], ..CreateGroupRequest::default() };
                let made = within(client.create_group(&request)).await.expect("answered");
                self.groups.extend(made.group.map(|group| group.id));
            }
            5 if !self.groups.is_empty() => {
                let at = self.rng.below(self.groups.len() as u64) as usize;
                within(client.remove_group(self.groups.swap_remove(at))).await.expect("answered");
            }
            6 if !self.live.is_empty() => self.evict_and_claim().await,
            7..=10 if !self.live.is_empty() => {
                let at = self.rng.below(self.live.len() as u64) as usize;
                within(client.release(self.live.swap_remove(at))).await.expect("answered");
            }
            _ => {
                let mut request = ask(self.rng.below(3) as i64, 64, self.rng.below(2) as i64);
                if self.rng.below(4) == 0 {
                    request.demand.custom = vec![named("npu", 1), named("disk", 1)];
                }
                let placed = within(client.place(&request)).await.expect("answered").placed;
                self.live.extend(placed.map(|placed| placed.allocation));
            }
        }
    }

    /// Evicts an allocation with or without a grace period, and claims part of a node.
    async fn evict_and_claim(&mut self) {
        let at = self.rng.below(self.live.len() as u64) as usize;
        let grace = [0, 1, 3_600_000_000_000][self.rng.below(3) as usize];
        let allocation = Some(self.live[at]);
        let evict =
            OperationBody { operation: OPERATION_EVICT, allocation, grace, ..OperationBody::default() };
        let mut operations = vec![evict];
        let name = NodeBooksRequest { node: self.name() };
        if let Ok(books) = within(self.client.node_books(&name)).await {
            let node = books.node;
            let cpu = 5000;
            let claim = OperationBody {
                operation: OPERATION_PIPELINE,
                node,
                demand: DemandBody { cpu, ..DemandBody::default() },
                ..OperationBody::default()
            };
            operations.push(claim);
        }
        let mode = COMMIT_INCREMENTAL;
        let request = StatementRequest { operations, mode, ..StatementRequest::default() };
        let done = within(self.client.submit_statement(&request)).await.expect("answered");
        if let [_, claimed] = &done.operations[..]
            && claimed.reason.is_done()
        {
            self.live.extend(claimed.allocation);
        }
    }
}

#[tokio::test]
async fn what_is_being_released_and_who_claims_it_is_told_of_nodes() {
    let server = TestServer::start_planning(1, 1);
    let client = server.client().await;
    let nodes = add(&client, vec![node("a", 4, 4096, 0), node("b", 4, 4096, 0)]).await;
    let placed = within(client.place(&ask(4, 64, 0))).await.expect("answered").placed.expect("it fits");
    let mut follower = client.follow(&[]);
    let mut mirror = Mirror::default();
    catch_up(&mut follower, &mut mirror).await;
    assert!(mirror.nodes().values().all(|node| node.pending.is_empty()));
    let hour = 3_600_000_000_000;
    let allocation = Some(placed.allocation);
    let operations = vec![
        OperationBody { operation: OPERATION_EVICT, allocation, grace: hour, ..OperationBody::default() },
        OperationBody {
            operation: OPERATION_PIPELINE,
            node: placed.node,
            demand: DemandBody { cpu: units(3), ..DemandBody::default() },
            ..OperationBody::default()
        },
    ];
    let request = StatementRequest { operations, ..StatementRequest::default() };
    let done = within(client.submit_statement(&request)).await.expect("answered");
    let claimed = done.operations[1].allocation.expect("claimed");
    catch_up(&mut follower, &mut mirror).await;
    let other = nodes.iter().copied().find(|&node| node != placed.node).expect("two nodes");
    let told = mirror.nodes();
    assert!(told[&other].pending.is_empty());
    let Pending { releasing, claims, untold: 0 } = &told[&placed.node].pending else {
        panic!("all of it fits")
    };
    let [leaves] = &releasing[..] else { panic!("{releasing:?}") };
    assert_eq!((leaves.allocation, leaves.until), (placed.allocation, done.operations[0].until));
    let [claim] = &claims[..] else { panic!("{claims:?}") };
    assert_eq!((claim.allocation, claim.holds.demand.cpu), (claimed, units(3)));
    // A releasing allocation keeps its place until it ends, and the claim is not an allocation yet.
    let standing = |mirror: &Mirror| -> Vec<WireAllocation> {
        mirror.shards.values().flat_map(|shard| shard.allocations.keys().copied()).collect()
    };
    assert_eq!(standing(&mirror), [placed.allocation]);
    within(client.release(placed.allocation)).await.expect("released");
    catch_up(&mut follower, &mut mirror).await;
    assert!(mirror.nodes().values().all(|node| node.pending.is_empty()));
    assert_eq!(standing(&mirror), [claimed]);
    server.stop().await;
}

#[tokio::test]
async fn what_followers_are_told_is_what_there_is() {
    let server = TestServer::start_planning(3, 2);
    let mut traffic = Traffic::new(&server, 4).await;
    for _ in 0..6 {
        traffic.add().await;
    }
    let one = server.client().await;
    let other = server.client().await;
    // The slow follower takes small pages from time to time, the late one takes everything at the end.
    let mut slow = one.follow(&[]).with_limit(3);
    let mut late = other.follow(&[]);
    let mut slows = Mirror::default();
    let mut lates = Mirror::default();
    for round in 0..12 {
        for _ in 0..25 {
            traffic.step().await;
            if traffic.rng.below(3) == 0
                && let Some(followed) = within(slow.poll(Duration::ZERO)).await.expect("answered")
            {
                slows.apply(&followed);
            }
        }
        catch_up(&mut slow, &mut slows).await;
        let told = catch_up(&mut late, &mut lates).await;
        assert!(round == 0 || told.iter().all(|followed| !followed.page.is_resync()));
        assert_eq!(content(&slows), content(&lates));
        assert_eq!(content(&slows), content(&fresh(&traffic.client).await));
        assert_listed(&traffic.client, &slows).await;
    }
    let counters = &server.shared.sessions.counters;
    assert_eq!(counters.followers.load(Ordering::Relaxed), 3);
    assert!(counters.follow_pages.load(Ordering::Relaxed) > 100);
    server.stop().await;
}

#[tokio::test]
async fn who_waits_is_woken_by_what_is_followed_and_only_by_that() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    let nodes = add(&client, vec![node("a", 4, 64, 1), node("b", 4, 64, 1)]).await;
    let mut follower = client.follow(&[]);
    catch_up(&mut follower, &mut Mirror::default()).await;

    let (mut peer, _) = Peer::open(&server).await;
    let wait = FollowRequest { kinds: FOLLOW_ALLOCATIONS, ..all(&follower.versions(), FOLLOW_WAIT_MS_MAX) };
    peer.send(&request(Kind::Follow, 1, &wait)).await;
    // A later request is answered first, so the follow request waits.
    peer.call(Kind::Status, 2, &StatusRequest { audit: false }).await;
    // A new node is not an allocation, so it is not reported.
    add(&client, vec![node("c", 4, 64, 1)]).await;
    peer.call(Kind::Status, 3, &StatusRequest { audit: false }).await;
    let placed = place(&client, &ask(3, 0, 1)).await;
    let reply = peer.frame().await;
    assert_eq!(reply.header.sequence, 1);
    let page = reply.body::<FollowReply>().page.expect("something came");
    assert!(page.begins && !page.is_resync() && page.nodes.is_empty() && page.next.is_none(), "{page:?}");
    assert_eq!(page.allocations.len(), 1);
    let begun = &page.allocations[0];
    assert_eq!(
        (begun.allocation, begun.node, &begun.node_name),
        (placed.allocation, placed.node, &placed.node_name)
    );
    assert_eq!(
        (begun.holds.demand.cpu, begun.holds.demand.gpu, &begun.holds.gpus),
        (units(3), units(1), &placed.gpus)
    );
    assert!(nodes.contains(&begun.node) || begun.node_name == "c");
    assert!(within(client.release(placed.allocation)).await.expect("answered").reason.is_done());

    // Follow only nodes: the placement and its end change free capacity, or cancel out.
    let nodes_only = FollowRequest { kinds: FOLLOW_NODES, ..all(&[], 0) };
    let page = peer.call(Kind::Follow, 4, &nodes_only).await.body::<FollowReply>().page.expect("a snapshot");
    assert!(page.is_resync() && page.allocations.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn one_request_waits_at_a_time_and_none_beyond_the_end_of_the_service() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    let mut follower = client.follow(&[]);
    catch_up(&mut follower, &mut Mirror::default()).await;
    let versions = follower.versions();
    assert_eq!(versions.len(), 2);
    let (mut peer, _) = Peer::open(&server).await;
    peer.send(&request(Kind::Follow, 1, &all(&versions, FOLLOW_WAIT_MS_MAX))).await;
    peer.send(&request(Kind::Follow, 2, &all(&versions, FOLLOW_WAIT_MS_MAX))).await;
    let nothing = FollowReply { shards: 2, page: None };
    let first = peer.frame().await;
    assert_eq!((first.header.sequence, first.body::<FollowReply>()), (1, nothing.clone()));
    // A request that does not wait is told at once that nothing changed.
    let now = peer.call(Kind::Follow, 3, &all(&versions, 0)).await;
    assert_eq!(now.body::<FollowReply>(), nothing);
    let second = peer.frame().await;
    assert_eq!((second.header.sequence, second.body::<FollowReply>()), (2, nothing.clone()));
    // A wait also ends at its own time limit.
    let over = peer.call(Kind::Follow, 4, &all(&versions, 1)).await;
    assert_eq!(over.body::<FollowReply>(), nothing);
    peer.send(&request(Kind::Follow, 5, &all(&versions, FOLLOW_WAIT_MS_MAX))).await;
    peer.call(Kind::Status, 6, &StatusRequest { audit: false }).await;
    server.begin_shutdown();
    let last = peer.frame().await;
    assert_eq!((last.header.sequence, last.body::<FollowReply>()), (5, nothing));
    server.stop().await;
}

#[tokio::test]
async fn what_cannot_be_is_refused_and_what_is_not_kept_begins_again() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    add(&client, (0..5).map(|i| node(&format!("n{i}"), 4, 64, 1)).collect()).await;
    let (mut peer, _) = Peer::open(&server).await;
    let version = |shard, incarnation, sequence| ShardVersion { shard, incarnation, sequence };
    let at = FollowCursor { to: version(0, 1, 1), ..FollowCursor::default() };
    let wrong = [
        (all(&[version(2, 1, 1)], 0), Reason::UnknownShard, "from[0]"),
        (all(&[version(u16::MAX, 1, 1)], 0), Reason::UnknownShard, "from[0]"),
        (all(&[version(0, 1, 1), version(0, 1, 2)], 0), Reason::InvalidField, "from[1]"),
        (all(&[], FOLLOW_WAIT_MS_MAX + 1), Reason::InvalidField, "wait_ms"),
        (all(&[], u32::MAX), Reason::InvalidField, "wait_ms"),
        (FollowRequest { kinds: 0, ..all(&[], 0) }, Reason::InvalidField, "kinds"),
        (FollowRequest { kinds: 8, ..all(&[], 0) }, Reason::InvalidField, "kinds"),
        (FollowRequest { limit: 4097, ..all(&[], 0) }, Reason::InvalidField, "limit"),
        (
            FollowRequest { at: Some(FollowCursor { to: version(2, 1, 1), ..at }), ..all(&[], 0) },
            Reason::UnknownShard,
            "at",
        ),
        (
            FollowRequest { at: Some(FollowCursor { stage: 6, ..at }), ..all(&[], 0) },
            Reason::InvalidField,
            "at.stage",
        ),
        (
            all(&(0..257).map(|shard| version(shard, 1, 1)).collect::<Vec<_>>(), 0),
            Reason::MalformedBody,
            "from",
        ),
    ];
    let mut sequence = 0;
    for (asked, reason, field) in &wrong {
        sequence += 1;
        let fault = peer.call(Kind::Follow, sequence, asked).await.assert_fault(*reason);
        assert_eq!(&fault.field, field);
    }
    let anew = [
        (version(0, 1, u64::MAX), Reason::FutureVersion),
        (version(0, 0, 1), Reason::OtherIncarnation),
        (version(0, u32::MAX, 1), Reason::OtherIncarnation),
        (version(0, 1, 0), Reason::TooFarBehind),
    ];
    for (from, reason) in anew {
        sequence += 1;
        // A shard that existed only in an earlier start is not a fault.
        let from = all(&[from, version(9, 7, 7)], 0);
        let mut page =
            peer.call(Kind::Follow, sequence, &from).await.body::<FollowReply>().page.expect("begins");
        while page.to.shard != 0 {
            sequence += 1;
            page = peer.call(Kind::Follow, sequence, &from).await.body::<FollowReply>().page.expect("begins");
        }
        assert!(page.is_resync() && page.resync == reason.into(), "{page:?}");
    }
    audit(&client).await;
    server.stop().await;
}

#[tokio::test]
async fn a_step_that_nobody_gave_stops_nothing() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    add(&client, (0..5).map(|i| node(&format!("n{i}"), 4, 64, 1)).collect()).await;
    let (mut peer, _) = Peer::open(&server).await;
    let mut sequence = 0;
    // Invented steps: the cursor points anywhere into a step.
    let mut rng = Rng::new(9);
    for _ in 0..200 {
        sequence += 1;
        let first = peer.call(Kind::Follow, sequence, &FollowRequest { limit: 1, ..all(&[], 0) }).await;
        let to = first.body::<FollowReply>().page.expect("begins").to;
        let any = |rng: &mut Rng| [0, 1, 7, 63, u64::from(u32::MAX)][rng.below(5) as usize] as u32;
        let stage = rng.below(6) as u8;
        let at = FollowCursor { to, stage, place: any(&mut rng), within: any(&mut rng) };
        let from = if rng.below(2) == 0 { vec![] } else { vec![to] };
        sequence += 1;
        let request = FollowRequest { at: Some(at), limit: 1 + rng.below(3) as u16, ..all(&from, 0) };
        peer.call(Kind::Follow, sequence, &request).await.body::<FollowReply>().page.expect("a page");
    }
    audit(&client).await;
    server.stop().await;
}

#[tokio::test]
async fn a_service_without_views_says_so() {
    let server = TestServer::start(1);
    let (mut peer, _) = Peer::open(&server).await;
    let fault = peer.call(Kind::Follow, 1, &all(&[], 0)).await.assert_fault(Reason::NotServed);
    assert!(fault.message.contains("`follow`"), "{fault}");
    server.stop().await;
}

/// Waits until the server has noticed the end of all but `left` following connections.
async fn followers_are(server: &TestServer, left: u64) {
    let gone = async {
        while server.shared.sessions.counters.followers.load(Ordering::Relaxed) > left {
            tokio::task::yield_now().await;
        }
    };
    within(gone).await;
}

#[tokio::test]
async fn a_follower_goes_on_after_a_lost_connection() {
    let server = TestServer::start_planning(2, 1);
    let mut traffic = Traffic::new(&server, 5).await;
    for _ in 0..8 {
        traffic.add().await;
    }
    let mut follower = server.client().await.follow(&[]).with_limit(2);
    let mut mirror = Mirror::default();
    let resyncs =
        |server: &TestServer| server.shared.sessions.counters.follow_resyncs.load(Ordering::Relaxed);
    // Use a new connection for each page, also in the middle of a step.
    for _ in 0..40 {
        traffic.step().await;
        follower.go_on_with(server.client().await);
        followers_are(&server, 0).await;
        if let Some(followed) = within(follower.poll(Duration::ZERO)).await.expect("answered") {
            mirror.apply(&followed);
        }
    }
    catch_up(&mut follower, &mut mirror).await;
    assert_eq!(resyncs(&server), 2);
    assert_eq!(content(&mirror), content(&fresh(&traffic.client).await));
    // Another follower continues from the versions of complete steps.
    let versions = follower.versions();
    drop(follower);
    followers_are(&server, 1).await;
    let placed = place(&traffic.client, &ask(0, 1, 0)).await;
    let client = server.client().await;
    let told = catch_up(&mut client.follow(&versions), &mut mirror).await;
    assert!(told.iter().all(|followed| !followed.page.is_resync()), "{told:?}");
    assert!(
        told.iter().any(|f| f.page.allocations.iter().any(|begun| begun.allocation == placed.allocation))
    );
    server.stop().await;
}

#[tokio::test]
async fn a_follower_that_is_too_slow_begins_again_and_harms_nobody() {
    let server = TestServer::start_planning(1, 1);
    server.shared.sessions.set_follow_versions_max(50);
    let client = server.client().await;
    add(&client, (0..20).map(|i| node(&format!("n{i}"), 4, 64, 1)).collect()).await;
    let mut idle = client.follow(&[]);
    let mut halted = server.client().await.follow(&[]).with_limit(1);
    let mut idles = Mirror::default();
    let mut haltes = Mirror::default();
    catch_up(&mut idle, &mut idles).await;
    // Stop in the middle of a step.
    haltes.apply(&within(halted.next()).await.expect("a page"));
    assert!(!halted.is_whole() && halted.versions().is_empty());
    let other = server.client().await;
    for _ in 0..100 {
        let placed = place(&client, &ask(1, 0, 0)).await;
        within(client.release(placed.allocation)).await.expect("answered");
        // Others read, so the shard goes on publishing.
        fresh(&other).await;
    }
    for (follower, mirror) in [(&mut idle, &mut idles), (&mut halted, &mut haltes)] {
        let told = catch_up(follower, mirror).await;
        let first = &told[0].page;
        assert!(first.is_resync() && first.resync == Reason::TooFarBehind.into(), "{first:?}");
        assert!(told[1..].iter().all(|followed| !followed.page.is_resync()));
        assert_eq!(content(mirror), content(&fresh(&client).await));
    }
    server.stop().await;
}

#[tokio::test]
async fn a_restarted_service_is_followed_again_with_as_many_shards_as_it_has() {
    let first = TestServer::start_planning(3, 1);
    let client = first.client().await;
    add(&client, (0..9).map(|i| node(&format!("n{i}"), 4, 64, 1)).collect()).await;
    let mut follower = client.follow(&[]);
    let mut mirror = Mirror::default();
    catch_up(&mut follower, &mut mirror).await;
    assert_eq!((mirror.shards.len(), mirror.nodes().len()), (3, 9));
    first.stop().await;
    let again = TestServer::start_again(2, 4);
    let client = again.client().await;
    add(&client, vec![node("other", 4, 64, 1)]).await;
    follower.go_on_with(client.clone());
    let told = catch_up(&mut follower, &mut mirror).await;
    assert!(
        told.iter().all(|f| f.page.resync == Reason::OtherIncarnation.into() && f.shards == 2),
        "{told:?}"
    );
    assert_eq!((mirror.shards.len(), mirror.nodes().len()), (2, 1));
    assert!(follower.versions().iter().all(|version| version.incarnation == 5));
    assert_eq!(content(&mirror), content(&fresh(&client).await));
    again.stop().await;
}

/// Without a wait, a request still waits for the views of what had changed when it came.
#[test]
fn who_does_not_wait_for_changes_waits_for_views_of_earlier_ones() {
    let mut bed = Bed::with_full_node(Vec::new(), NOW);
    let (key, _) = bed.connect(false, None);
    let mut sequence = 0;
    let mut call = |bed: &mut Bed, kind: Kind, body: &dyn Fn(u64) -> Vec<u8>| {
        sequence += 1;
        bed.service.receive(key, &body(sequence), bed.now);
        bed.run_shard();
        bed.write();
        let reply = bed.replies(key).pop();
        assert!(reply.as_ref().is_none_or(|reply| reply.header.kind == kind.number()));
        reply
    };
    // Nobody reads the views, so the shard runs out of buffers and publishes the last changes later.
    let mut allocation = WireAllocation { incarnation: 1, partition: 0, sequence: 1, tenant: 0 };
    for _ in 0..100 {
        let release = ReleaseRequest { allocation };
        call(&mut bed, Kind::Release, &|sequence| request(Kind::Release, sequence, &release))
            .expect("released");
        let placed = call(&mut bed, Kind::Place, &|sequence| request(Kind::Place, sequence, &ask(1, 0, 0)));
        let placed: PlaceReply = placed.expect("answered").body();
        allocation = placed.placed.expect("it fits").allocation;
    }
    sequence += 1;
    bed.service.receive(key, &request(Kind::Follow, sequence, &all(&[], 0)), bed.now);
    assert!(bed.replies(key).is_empty(), "the last changes are not published yet");
    bed.run_shard();
    let reply: FollowReply = bed.replies(key).remove(0).body();
    let page = reply.page.expect("the changes");
    assert_eq!(page.to.sequence, bed.service.port.views().due(ShardId(0)));
}
