//! Groups over the wire: created, shown, grown, shrunk and removed; refused with the reason, or waiting until
//! they fit; placed again when a node is lost. The books keep no trace of ended groups.

use crate::harness::{
    self, Peer, TestServer, add, ask, audit, granted, header, named, node, pair, place, request, standing,
    units, with_custom, within,
};
use wharf_net::client::Client;
use wharf_net::protocol::{
    BundleTemplate, CreateGroupRequest, DemandBody, GROUP_DEGRADED, GROUP_PLACED, GROUP_WAITING, GroupBody,
    GroupReply, GrowGroupRequest, Kind, ListGroupsRequest, MODE_NOW, MODE_WAIT_UNTIL, Name, NodeBody,
    PlaceIntoRequest, PlaceRequest, Reason, RemoveRequest, Resume, STRATEGY_PACK, STRATEGY_SPREAD,
    STRATEGY_STRICT_PACK, STRATEGY_STRICT_SPREAD, ShrinkGroupRequest, StatusRequest, TOPOLOGY_SPREAD,
    TOPOLOGY_STRICT_PACK, TopologyBody, WireGroup, kinds,
};
use wharf_net::server::Settings;

/// A group of `count` bundles of `cpu` cores.
fn group(count: u32, cpu: i64, strategy: u8) -> CreateGroupRequest {
    let template = BundleTemplate { request: ask(cpu, 0, 0), count };
    CreateGroupRequest { bundles: vec![template], strategy, ..CreateGroupRequest::default() }
}

fn waiting(request: CreateGroupRequest) -> CreateGroupRequest {
    CreateGroupRequest { mode: MODE_WAIT_UNTIL, ..request }
}

async fn create(client: &Client, request: &CreateGroupRequest) -> GroupReply {
    within(client.create_group(request)).await.expect("answered")
}

#[track_caller]
fn placed_group(reply: GroupReply) -> GroupBody {
    assert!(reply.reason.is_done() && reply.refusal.is_none() && reply.fault.is_none(), "{reply:?}");
    reply.group.expect("what is done tells its state")
}

/// Returns why a group was not placed.
#[track_caller]
fn refused(reply: &GroupReply) -> (Reason, Reason) {
    assert!(reply.group.is_none(), "{reply:?}");
    let refusal = reply.refusal.as_ref().unwrap_or_else(|| panic!("no refusal: {reply:?}"));
    assert!(!refusal.message.is_empty());
    (reply.reason.known().expect("known"), refusal.cause.known().expect("known"))
}

#[track_caller]
fn fault(reply: &GroupReply) -> (Reason, String) {
    let fault = reply.fault.clone().unwrap_or_else(|| panic!("no fault: {reply:?}"));
    assert!(fault.reason == reply.reason && !fault.message.is_empty());
    (fault.reason.known().expect("known"), fault.field)
}

fn names(group: &GroupBody) -> Vec<&str> {
    group.bundles.iter().map(|bundle| bundle.placed.as_ref().map_or("", |p| p.node_name.as_str())).collect()
}

async fn status(client: &Client, id: WireGroup) -> GroupReply {
    within(client.group_status(id)).await.expect("answered")
}

/// Polls until a group is in this state.
async fn until(client: &Client, id: WireGroup, is: impl Fn(&GroupBody) -> bool) -> GroupBody {
    within(async {
        loop {
            let group = placed_group(client.group_status(id).await.expect("answered"));
            if is(&group) {
                return group;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// Polls until this number of groups waits.
async fn until_waiting(client: &Client, count: usize) {
    within(async {
        loop {
            let page = client.list_groups(&ListGroupsRequest::default()).await.expect("answered");
            if page.groups.iter().filter(|group| group.state == GROUP_WAITING).count() == count {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn allocations(client: &Client) -> u64 {
    let status = within(client.status(&StatusRequest::default())).await.expect("answered");
    status.shards.iter().map(|shard| shard.allocations).sum()
}

fn four() -> Vec<NodeBody> {
    (0..4).map(|i| node(&format!("n{i}"), 4, 4096, 1)).collect()
}

#[tokio::test]
async fn a_group_is_made_shown_listed_grown_shrunk_and_removed() {
    let server = TestServer::start_planning(3, 2);
    let client = server.client().await;
    add(&client, four()).await;
    let empty = standing(&client).await;
    let made = placed_group(create(&client, &group(3, 2, STRATEGY_STRICT_SPREAD)).await);
    assert_eq!((made.state, made.strategy, made.min_members), (GROUP_PLACED, STRATEGY_STRICT_SPREAD, 3));
    let mut nodes = names(&made);
    nodes.sort_unstable();
    nodes.dedup();
    assert_eq!(nodes.len(), 3, "{made:?}");
    assert!(made.bundles.iter().enumerate().all(|(at, b)| (b.index, b.cpu) == (at as u32, units(2))));
    assert_eq!(allocations(&client).await, 3);
    assert_eq!(placed_group(status(&client, made.id).await).bundles, made.bundles);

    // One more node is free, then none.
    let one = |count| GrowGroupRequest {
        group: made.id,
        bundles: group(count, 1, STRATEGY_PACK).bundles,
        ..GrowGroupRequest::default()
    };
    let grown = placed_group(within(client.grow_group(&one(1))).await.expect("answered"));
    assert_eq!((grown.bundles.len(), grown.bundles[3].index, grown.bundles[3].cpu), (4, 3, units(1)));
    let more = within(client.grow_group(&one(1))).await.expect("answered");
    assert_eq!(more.group, None, "{more:?}");
    assert_eq!(placed_group(status(&client, made.id).await).bundles.len(), 4);

    let shrink = |bundles| ShrinkGroupRequest { group: made.id, bundles };
    let shrunk = placed_group(within(client.shrink_group(&shrink(vec![1]))).await.expect("answered"));
    assert_eq!(shrunk.bundles.iter().map(|bundle| bundle.index).collect::<Vec<_>>(), [0, 2, 3]);
    for (bundles, reason) in [(vec![1], Reason::UnknownBundle), (vec![0], Reason::BelowMinimum)] {
        let reply = within(client.shrink_group(&shrink(bundles))).await.expect("answered");
        assert_eq!(fault(&reply), (reason, "bundles".to_owned()));
    }
    let other = placed_group(create(&client, &group(1, 1, STRATEGY_PACK)).await);
    let page = within(client.list_groups(&ListGroupsRequest::default())).await.expect("answered");
    let mut ids = [made.id, other.id];
    ids.sort_by_key(|id| id.number);
    assert_eq!(page.groups.iter().map(|group| group.id).collect::<Vec<_>>(), ids);
    assert!(!page.more);
    let second = ListGroupsRequest { after: Some(ids[0]), limit: 1 };
    let page = within(client.list_groups(&second)).await.expect("answered");
    assert_eq!((page.groups[0].id, page.groups.len(), page.more), (ids[1], 1, true));

    let removed = within(client.remove_group(made.id)).await.expect("answered");
    assert_eq!((removed.reason, removed.bundles_ended), (Reason::Done.into(), 3));
    let again = within(client.remove_group(made.id)).await.expect("answered");
    assert_eq!(again.reason, Reason::UnknownGroup.into());
    assert_eq!(fault(&status(&client, made.id).await), (Reason::UnknownGroup, "group".to_owned()));
    assert!(within(client.remove_group(other.id)).await.expect("answered").reason.is_done());
    assert_eq!(standing(&client).await, empty);
    server.stop().await;
}

#[tokio::test]
async fn every_strategy_and_topology_is_served() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    let zoned = |i: usize| NodeBody {
        labels: vec![pair("zone", ["a", "b"][i % 2])],
        ..node(&format!("{}{i}", ["a", "b"][i % 2]), 4, 4096, 0)
    };
    add(&client, (0..4).map(zoned).collect()).await;
    let distinct = |group: &GroupBody| {
        let mut nodes: Vec<String> = names(group).into_iter().map(str::to_owned).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    };
    for (request, count) in [
        (group(4, 1, STRATEGY_STRICT_PACK), 1),
        (group(4, 1, STRATEGY_PACK), 1),
        (group(4, 1, STRATEGY_SPREAD), 4),
        (group(4, 1, STRATEGY_STRICT_SPREAD), 4),
    ] {
        let made = placed_group(create(&client, &request).await);
        assert_eq!(distinct(&made).len(), count, "{made:?}");
        assert!(within(client.remove_group(made.id)).await.expect("answered").reason.is_done());
    }
    let by = |rule, max_skew, request| CreateGroupRequest {
        topology: Some(TopologyBody { key: "zone".to_owned(), rule, max_skew }),
        ..request
    };
    let packed =
        placed_group(create(&client, &by(TOPOLOGY_STRICT_PACK, 0, group(2, 3, STRATEGY_PACK))).await);
    assert_eq!(packed.topology.as_ref().map(|rule| rule.rule), Some(TOPOLOGY_STRICT_PACK));
    let zones: Vec<char> = names(&packed).iter().filter_map(|name| name.chars().next()).collect();
    assert_eq!(zones[0], zones[1]);
    let reply = create(&client, &by(TOPOLOGY_STRICT_PACK, 0, group(3, 3, STRATEGY_PACK))).await;
    assert_eq!(reply.group, None, "{reply:?}");
    assert!(within(client.remove_group(packed.id)).await.expect("answered").reason.is_done());
    let spread = placed_group(create(&client, &by(TOPOLOGY_SPREAD, 1, group(4, 1, STRATEGY_PACK))).await);
    assert_eq!(names(&spread).iter().filter(|name| name.starts_with('a')).count(), 2, "{spread:?}");
    audit(&client).await;
    server.stop().await;
}

#[tokio::test]
async fn what_does_not_fit_is_refused_with_the_reason_and_holds_nothing() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    add(&client, four()).await;
    place(&client, &ask(3, 0, 0)).await;
    let before = standing(&client).await;
    for (request, reason, cause) in [
        (group(2, 5, STRATEGY_PACK), Reason::Infeasible, Reason::NoNodeForBundle),
        (group(5, 1, STRATEGY_STRICT_PACK), Reason::Infeasible, Reason::NoSingleNode),
        (group(5, 1, STRATEGY_STRICT_SPREAD), Reason::Infeasible, Reason::TooFewNodes),
        (group(5, 4, STRATEGY_PACK), Reason::Infeasible, Reason::ClusterTooSmall),
        (group(4, 4, STRATEGY_PACK), Reason::NoFitNow, Reason::OwnBundles),
    ] {
        let reply = create(&client, &request).await;
        assert_eq!(refused(&reply), (reason, cause), "{reply:?}");
        if cause == Reason::NoNodeForBundle {
            let checks = reply.refusal.expect("seen").refusal.expect("it has counts").checks;
            assert_eq!(checks[0].resource, "cpu");
        }
        // An infeasible group does not wait either.
        if reason == Reason::Infeasible {
            assert_eq!(refused(&create(&client, &waiting(request)).await).0, reason);
        }
    }
    let broken = CreateGroupRequest { strategy: 9, ..group(1, 1, 0) };
    assert_eq!(fault(&create(&client, &broken).await), (Reason::InvalidField, "strategy".to_owned()));
    assert_eq!(standing(&client).await, before);
    assert_eq!(within(client.list_groups(&ListGroupsRequest::default())).await.expect("answered").groups, []);
    server.stop().await;
}

#[tokio::test]
async fn at_least_the_minimum_is_placed_and_the_rest_follows() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    add(&client, four()).await;
    let held = place(&client, &ask(4, 0, 0)).await.allocation;
    let gang = CreateGroupRequest { min_members: 2, ..group(4, 4, STRATEGY_SPREAD) };
    let made = placed_group(create(&client, &gang).await);
    assert_eq!((made.state, made.bundles.iter().filter(|b| b.placed.is_some()).count()), (GROUP_PLACED, 3));
    within(client.release(held)).await.expect("answered");
    until(&client, made.id, |group| group.bundles.iter().all(|bundle| bundle.placed.is_some())).await;
    audit(&client).await;
    server.stop().await;
}

#[tokio::test]
async fn a_group_that_waits_is_woken_and_is_in_nobodys_way() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    add(&client, four()).await;
    let held = place(&client, &ask(4, 0, 0)).await.allocation;
    let (_, reply) = within(client.call_waiting::<kinds::CreateGroup>(&waiting(group(4, 4, STRATEGY_PACK))))
        .await
        .expect("sent");
    until_waiting(&client, 1).await;
    // Many windows of other requests pass the waiting group.
    for _ in 0..20 {
        let batch = vec![ask(5, 0, 0); 1024];
        let batch = wharf_net::protocol::PlaceBatch { requests: batch };
        within(client.place_batch(&batch)).await.expect("answered");
    }
    within(client.release(held)).await.expect("answered");
    let made = placed_group(within(reply).await.expect("answered"));
    assert_eq!(made.state, GROUP_PLACED);
    audit(&client).await;
    server.stop().await;
}

#[tokio::test]
async fn a_wait_ends_by_its_deadline_by_cancellation_and_by_removal() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    add(&client, four()).await;
    place(&client, &ask(1, 0, 0)).await;
    let before = standing(&client).await;
    let wide = || waiting(group(4, 4, STRATEGY_PACK));
    let now = within(client.status(&StatusRequest::default())).await.expect("answered").now;
    let late = create(&client, &CreateGroupRequest { deadline: now + 1_000_000, ..wide() }).await;
    assert_eq!(refused(&late), (Reason::NoFitNow, Reason::OwnBundles));

    let (sequence, reply) = within(client.call_waiting::<kinds::CreateGroup>(&wide())).await.expect("sent");
    until_waiting(&client, 1).await;
    assert!(within(client.cancel_wait(sequence)).await.expect("answered").waited);
    assert_eq!(refused(&within(reply).await.expect("answered")), (Reason::Cancelled, Reason::Cancelled));
    assert!(!within(client.cancel_wait(sequence)).await.expect("answered").waited);

    let (_, reply) = within(client.call_waiting::<kinds::CreateGroup>(&wide())).await.expect("sent");
    until_waiting(&client, 1).await;
    let page = within(client.list_groups(&ListGroupsRequest::default())).await.expect("answered");
    let removed = within(client.remove_group(page.groups[0].id)).await.expect("answered");
    assert_eq!((removed.reason, removed.bundles_ended), (Reason::Done.into(), 0));
    assert_eq!(refused(&within(reply).await.expect("answered")), (Reason::Cancelled, Reason::Cancelled));
    until_waiting(&client, 0).await;
    assert_eq!(standing(&client).await, before);
    server.stop().await;
}

#[tokio::test]
async fn a_lost_connection_takes_its_waiting_group_back_and_a_resumed_one_asks_again() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    add(&client, four()).await;
    let held = place(&client, &ask(4, 0, 0)).await.allocation;
    let (mut peer, opened) = Peer::open(&server).await;
    let wide = waiting(group(4, 4, STRATEGY_PACK));
    peer.send(&request(Kind::CreateGroup, 1, &wide)).await;
    until_waiting(&client, 1).await;
    peer.leave().await;
    until_waiting(&client, 0).await;
    let resume = Resume { session: opened.session, token: opened.token };
    let (mut peer, _) = Peer::resume(&server, Some(resume)).await;
    peer.send(&request(Kind::CreateGroup, 1, &wide)).await;
    until_waiting(&client, 1).await;
    within(client.release(held)).await.expect("answered");
    let made = placed_group(peer.frame().await.body::<GroupReply>());
    // A repeated request gets the same answer and creates no second group.
    assert_eq!(placed_group(peer.call(Kind::CreateGroup, 1, &wide).await.body::<GroupReply>()), made);
    assert_eq!(allocations(&client).await, 4);
    server.stop().await;
}

#[tokio::test]
async fn what_a_group_grows_by_waits_as_a_group_does() {
    let server = TestServer::start_planning(2, 2);
    let client = server.client().await;
    add(&client, (0..2).map(|i| node(&format!("n{i}"), 4, 64, 0)).collect()).await;
    let made = placed_group(create(&client, &group(1, 4, STRATEGY_PACK)).await);
    let held = place(&client, &ask(4, 0, 0)).await;
    let bundles = group(1, 4, STRATEGY_PACK).bundles;
    let request =
        |mode, deadline| GrowGroupRequest { group: made.id, bundles: bundles.clone(), mode, deadline };
    let begin = |request: GrowGroupRequest| {
        let client = &client;
        async move { within(client.call_waiting::<kinds::GrowGroup>(&request)).await.expect("sent") }
    };
    // Without a wait it is refused.
    let reply = within(client.grow_group(&request(MODE_NOW, 0))).await.expect("answered");
    assert_eq!(refused(&reply).0, Reason::NoFitNow);
    for (mode, deadline, field) in [(MODE_NOW, 7, "deadline"), (9, 0, "mode")] {
        let reply = within(client.grow_group(&request(mode, deadline))).await.expect("answered");
        assert_eq!(fault(&reply), (Reason::InvalidField, field.to_owned()));
    }
    let (_, reply) = begin(request(MODE_WAIT_UNTIL, 1)).await;
    assert_eq!(refused(&within(reply).await.expect("answered")).0, Reason::NoFitNow, "its time was up");
    let (sequence, reply) = begin(request(MODE_WAIT_UNTIL, 0)).await;
    until(&client, made.id, |group| group.bundles.len() == 2).await;
    assert!(within(client.cancel_wait(sequence)).await.expect("answered").waited);
    assert_eq!(within(reply).await.expect("answered").reason, Reason::Cancelled.into());
    until(&client, made.id, |group| group.bundles.len() == 1).await;
    // A lost connection also ends the wait.
    let (mut peer, _) = Peer::open(&server).await;
    peer.send(&harness::frame(header(Kind::GrowGroup, 1), &request(MODE_WAIT_UNTIL, 0))).await;
    until(&client, made.id, |group| group.bundles.len() == 2).await;
    peer.leave().await;
    until(&client, made.id, |group| group.bundles.len() == 1).await;
    let (_, reply) = begin(request(MODE_WAIT_UNTIL, 0)).await;
    until(&client, made.id, |group| group.bundles.len() == 2).await;
    assert!(within(client.release(held.allocation)).await.expect("answered").reason.is_done());
    let grown = placed_group(within(reply).await.expect("answered"));
    assert!(grown.state == GROUP_PLACED && grown.bundles.iter().all(|bundle| bundle.placed.is_some()));
    audit(&client).await;
    server.stop().await;
}

#[tokio::test]
async fn one_connection_does_not_take_the_room_of_all_groups_that_wait() {
    let settings = Settings { waiting_groups_max: 2, ..Settings::default() };
    let server = TestServer::start_planning_with(1, 1, settings);
    let client = server.client().await;
    let other = server.client().await;
    add(&client, vec![node("a", 12, 64, 0)]).await;
    let held = place(&client, &ask(12, 0, 0)).await;
    let request = waiting(group(1, 4, STRATEGY_PACK));
    let begin = || async { within(client.call_waiting::<kinds::CreateGroup>(&request)).await.expect("sent") };
    let (first, first_reply) = begin().await;
    let (_, second_reply) = begin().await;
    let refused = create(&client, &request).await;
    assert_eq!(fault(&refused), (Reason::LimitExceeded, "mode".to_owned()));
    let message = refused.fault.expect("just seen").message;
    assert!(message.contains("2 groups") && message.contains("`waiting_groups_max`"), "{message}");
    // Another connection has its own room. This one has room again when one of its groups ends.
    let (_, others) = within(other.call_waiting::<kinds::CreateGroup>(&request)).await.expect("sent");
    until_waiting(&client, 3).await;
    assert!(within(client.cancel_wait(first)).await.expect("answered").waited);
    assert_eq!(within(first_reply).await.expect("answered").reason, Reason::Cancelled.into());
    let (_, third_reply) = begin().await;
    until_waiting(&client, 3).await;
    assert!(within(client.release(held.allocation)).await.expect("answered").reason.is_done());
    // There is room for all three. Clients take turns, so groups are not answered in order of request.
    placed_group(within(second_reply).await.expect("answered"));
    placed_group(within(others).await.expect("answered"));
    placed_group(within(third_reply).await.expect("answered"));
    server.stop().await;
}

/// The client acknowledges by its mark, so its group cannot go on with the next start.
#[tokio::test]
async fn a_server_that_stops_says_so_to_a_group_that_waits() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    add(&client, four()).await;
    place(&client, &ask(1, 0, 0)).await;
    let (mut peer, _) = Peer::open(&server).await;
    let request = waiting(group(4, 4, STRATEGY_PACK));
    peer.send(&harness::frame(header(Kind::CreateGroup, 1), &request)).await;
    until_waiting(&client, 1).await;
    let stopped = tokio::spawn(server.stop());
    let reply: GroupReply = peer.frame().await.body();
    assert_eq!(fault(&reply).0, Reason::ShuttingDown);
    within(stopped).await.expect("it stopped well");
}

#[tokio::test]
async fn bundles_of_a_node_that_goes_are_placed_again_and_only_those() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    add(&client, four()).await;
    let made = placed_group(create(&client, &group(3, 4, STRATEGY_STRICT_SPREAD)).await);
    let gone = made.bundles[1].placed.clone().expect("it is placed").node_name;
    let remove = RemoveRequest { names: vec![Name(gone.clone())], force: true };
    let reply = within(client.remove_nodes(&remove)).await.expect("answered");
    assert!(reply.replies[0].reason.is_done(), "{reply:?}");
    let again = until(&client, made.id, |group| {
        group.state == GROUP_PLACED && group.bundles[1].placed.as_ref().is_some_and(|p| p.node_name != gone)
    })
    .await;
    assert_eq!((&again.bundles[0], &again.bundles[2]), (&made.bundles[0], &made.bundles[2]));
    // No node is left for the bundles of the next removed node until a new node joins.
    let gone = again.bundles[0].placed.clone().expect("it is placed").node_name;
    let remove = RemoveRequest { names: vec![Name(gone)], force: true };
    assert!(within(client.remove_nodes(&remove)).await.expect("answered").replies[0].reason.is_done());
    until(&client, made.id, |group| group.state == GROUP_DEGRADED && group.bundles[0].placed.is_none()).await;
    add(&client, vec![node("new", 4, 4096, 0)]).await;
    let whole = until(&client, made.id, |group| group.state == GROUP_PLACED).await;
    assert_eq!(names(&whole)[0], "new");
    audit(&client).await;
    server.stop().await;
}

#[tokio::test]
async fn a_waiting_group_teaches_a_kind_that_nobody_has_yet() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    add(&client, four()).await;
    let asks = with_custom(vec![named("qpu", 1)], ask(1, 0, 0));
    let bundles = vec![BundleTemplate { request: asks, count: 2 }];
    let request = CreateGroupRequest { bundles, ..CreateGroupRequest::default() };
    let reply = create(&client, &request).await;
    assert_eq!(refused(&reply), (Reason::Infeasible, Reason::NoNodeForBundle));
    assert_eq!(reply.fault.expect("it names the field").field, "bundles[0].custom[0].name");
    audit(&client).await;
    server.stop().await;
}

#[tokio::test]
async fn placements_go_into_bundles_and_end_with_them() {
    let server = TestServer::start_planning(3, 2);
    let client = server.client().await;
    add(&client, four()).await;
    let empty = standing(&client).await;
    let asks =
        PlaceRequest { demand: DemandBody { gpu: units(1), ..ask(2, 1024, 0).demand }, ..ask(2, 1024, 0) };
    let bundles = vec![BundleTemplate { request: asks, count: 2 }];
    let request = CreateGroupRequest { bundles, strategy: STRATEGY_SPREAD, ..CreateGroupRequest::default() };
    let made = placed_group(create(&client, &request).await);
    let placed: Vec<_> = made.bundles.iter().map(|bundle| bundle.placed.clone().expect("placed")).collect();
    let with_group = standing(&client).await;
    let into = async |request: PlaceIntoRequest| within(client.place_into(&request)).await.expect("answered");
    let one = |cpu| PlaceIntoRequest {
        demand: DemandBody { cpu: units(cpu), ..DemandBody::default() },
        ..PlaceIntoRequest::default()
    };
    let by_id = PlaceIntoRequest {
        allocation: Some(placed[1].allocation),
        demand: DemandBody { gpu: 5000, ..one(1).demand },
        ..one(1)
    };
    let first = granted(into(by_id).await);
    // The placement uses the bundle's own device on its node, and nothing more of the node.
    assert_eq!((first.node, &first.gpus, first.gpu_part), (placed[1].node, &placed[1].gpus, 5000));
    assert_eq!(standing(&client).await, with_group);
    let of_group = |bundle, cpu| PlaceIntoRequest { group: Some(made.id), bundle, ..one(cpu) };
    assert_eq!(granted(into(of_group(Some(0), 2)).await).node, placed[0].node);
    // The first bundle is full, so the second is used. Then none has room.
    let last = granted(into(of_group(None, 1)).await);
    assert_eq!(last.node, placed[1].node);
    for (request, reason, field) in [
        (of_group(None, 1), Reason::NoFitNow, "bundle"),
        (of_group(Some(0), 1), Reason::NoFitNow, "bundle"),
        (of_group(Some(7), 1), Reason::UnknownBundle, "bundle"),
        (PlaceIntoRequest { group: Some(WireGroup::default()), ..one(1) }, Reason::UnknownGroup, "group"),
        (one(1), Reason::InvalidField, "allocation"),
        (
            PlaceIntoRequest { allocation: Some(first.allocation), ..one(1) },
            Reason::UnknownAllocation,
            "allocation",
        ),
    ] {
        let reply = into(request).await;
        let fault = reply.fault.clone().unwrap_or_else(|| panic!("no fault: {reply:?}"));
        assert_eq!((fault.reason.known(), fault.field.as_str()), (Some(reason), field), "{fault}");
    }
    assert!(within(client.release(last.allocation)).await.expect("answered").reason.is_done());
    granted(into(of_group(Some(1), 1)).await);
    let removed = within(client.remove_group(made.id)).await.expect("answered");
    assert_eq!((removed.reason, removed.bundles_ended), (Reason::Done.into(), 2));
    assert_eq!(standing(&client).await, empty);
    let gone = within(client.release(first.allocation)).await.expect("answered");
    assert_eq!(gone.reason, Reason::UnknownAllocation.into());
    server.stop().await;
}

#[tokio::test]
async fn a_service_without_planners_says_so() {
    let server = TestServer::start(2);
    let (mut peer, _) = Peer::open(&server).await;
    let kinds = [
        Kind::CreateGroup,
        Kind::GrowGroup,
        Kind::ShrinkGroup,
        Kind::RemoveGroup,
        Kind::GroupStatus,
        Kind::ListGroups,
        Kind::PlaceInto,
        Kind::SubmitStatement,
    ];
    for (kind, sequence) in kinds.into_iter().zip(1..) {
        let frame = harness::frame(header(kind, sequence), &());
        peer.send(&frame).await;
        let fault = peer.frame().await.assert_fault(Reason::NotServed);
        assert!(fault.message.contains("`planners`"), "{fault}");
    }
    server.stop().await;
}

#[tokio::test]
async fn groups_and_single_placements_share_the_nodes() {
    let server = TestServer::start_planning(2, 2);
    let client = server.client().await;
    add(&client, (0..16).map(|i| node(&format!("n{i}"), 8, 8192, 0)).collect()).await;
    let empty = standing(&client).await;
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..4 {
        let client = client.clone();
        tasks.spawn(async move {
            for round in 0..40 {
                if worker % 2 == 0 {
                    let strategy = [STRATEGY_PACK, STRATEGY_SPREAD, STRATEGY_STRICT_SPREAD][round % 3];
                    let reply = create(&client, &group(4, 2, strategy)).await;
                    if let Some(group) = reply.group {
                        let removed = within(client.remove_group(group.id)).await.expect("answered");
                        assert_eq!((removed.reason, removed.bundles_ended), (Reason::Done.into(), 4));
                    }
                } else {
                    let reply = within(client.place(&ask(3, 0, 0))).await.expect("answered");
                    if reply.reason.is_done() {
                        let allocation = granted(reply).allocation;
                        assert!(within(client.release(allocation)).await.expect("answered").reason.is_done());
                    }
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("a worker does not panic");
    }
    assert_eq!(standing(&client).await, empty);
    server.stop().await;
}
