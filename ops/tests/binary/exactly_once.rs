//! Requests that are done once although the service is killed while they are under way.
//!
//! The client library sends them again by itself. Each has one outcome, which the books after the last start show.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::Semaphore;
use wharf_core::ids::{AllocationId, Incarnation};
use wharf_net::client::{Client, ClientConfig, ClientError};
use wharf_net::protocol::{
    BundleTemplate, COMMIT_ALL_OR_NOTHING, CreateGroupRequest, DemandBody, GrowGroupRequest, MODE_WAIT_UNTIL,
    NodeBody, NodesRequest, OPERATION_ALLOCATE, OPERATION_EVICT, OperationBody, PlaceBatch, PlaceRequest,
    Reason, ReleaseBatch, ReleaseRequest, RenewRequest, StatementRequest, WireGroup,
};

use crate::harness::{ANSWERS_ROOM, PATIENCE, Proxy, Site, runtime, sum, within};

/// Requests under way at once.
const WINDOW: usize = 64;
/// Answers between two kills.
const ANSWERS: usize = 300;
const KILLS: usize = 12;

/// The GPUs for which placements and groups wait.
const GPUS: &str = "3";

/// A lease that does not end during the test, in ns.
const LEASE: u64 = 3_600_000_000_000;

/// What one request has left in the books.
#[derive(Default)]
struct Left {
    allocations: Vec<AllocationId>,
    /// A group and the number of its bundles.
    group: Option<(WireGroup, u64)>,
    node: Option<String>,
}

fn one() -> PlaceRequest {
    PlaceRequest { demand: DemandBody { cpu: 1, ..DemandBody::default() }, ..PlaceRequest::default() }
}

/// Returns a request for a GPU, of which there are few.
fn one_gpu() -> PlaceRequest {
    let demand = DemandBody { gpu: 10_000, ..DemandBody::default() };
    PlaceRequest { demand, ..PlaceRequest::default() }
}

/// Evicts an allocation and places another one on its node, both or none. Returns the one that is there then.
async fn replace(client: &Client) -> AllocationId {
    let placed = client.place(&one()).await.expect("answered").placed.expect("there is room");
    let evict = OperationBody {
        operation: OPERATION_EVICT,
        allocation: Some(placed.allocation),
        ..OperationBody::default()
    };
    let allocate = OperationBody {
        operation: OPERATION_ALLOCATE,
        node: placed.node,
        demand: one().demand,
        ..OperationBody::default()
    };
    let statement = StatementRequest {
        operations: vec![evict, allocate],
        mode: COMMIT_ALL_OR_NOTHING,
        ..StatementRequest::default()
    };
    let reply = client.submit_statement(&statement).await.expect("answered");
    if reply.reason.is_done() {
        return reply.operations[1].placed.as_ref().expect("it is done").allocation.into();
    }
    // Nothing of it was done: it came too late for its deadline, or the node has as many allocations as it may.
    let refused = [Reason::Expired, Reason::Conflicted];
    assert!(reply.reason.known().is_some_and(|reason| refused.contains(&reason)), "{reply:?}");
    placed.allocation.into()
}

/// Asks for one thing, of a kind that depends on `number`. Every answer but success is a failure of the test.
async fn ask(client: &Client, number: usize) -> Left {
    let mut left = Left::default();
    match number % 14 {
        0 => {
            let reply = client.place_batch(&PlaceBatch { requests: vec![one(); 5] }).await.expect("answered");
            let placed = reply.replies.into_iter().map(|reply| reply.placed.expect("there is room"));
            let mut placed: Vec<_> = placed.map(|placed| placed.allocation).collect();
            let requests = placed.drain(..2).map(|allocation| ReleaseRequest { allocation }).collect();
            let ended = client.release_batch(&ReleaseBatch { requests }).await.expect("answered");
            assert!(ended.replies.iter().all(|reply| reply.fault.is_none()), "{ended:?}");
            left.allocations.extend(placed.into_iter().map(AllocationId::from));
        }
        1 => {
            let bundle = BundleTemplate { request: one(), count: 2 };
            let group = CreateGroupRequest { bundles: vec![bundle], ..CreateGroupRequest::default() };
            let reply = client.create_group(&group).await.expect("answered");
            let id = reply.group.unwrap_or_else(|| panic!("{number}: {:?}", reply.fault)).id;
            if number % 28 == 1 {
                let bundles = vec![BundleTemplate { request: one(), count: 1 }];
                let growth = GrowGroupRequest { group: id, bundles, ..GrowGroupRequest::default() };
                let reply = client.grow_group(&growth).await.expect("answered");
                let grown = reply.group.unwrap_or_else(|| panic!("{number}: {:?}", reply.fault));
                assert_eq!((grown.id, grown.bundles.len()), (id, 3), "it grows once");
                left.group = Some((id, 3));
            } else {
                let reply = client.remove_group(id).await.expect("answered");
                assert!(reply.fault.is_none() && reply.bundles_ended == 2, "{reply:?}");
            }
        }
        2 => {
            let name = format!("node-{number}");
            let node = NodeBody { name: name.clone(), cpu: 1, memory: 1, ..NodeBody::default() };
            let reply = client.add_nodes(&NodesRequest { nodes: vec![node] }).await.expect("answered");
            assert!(reply.replies[0].fault.is_none(), "a node is added once: {reply:?}");
            left.node = Some(name);
        }
        3 => {
            let wait = PlaceRequest { mode: MODE_WAIT_UNTIL, ..one_gpu() };
            let placed =
                client.place(&wait).await.expect("answered").placed.expect("it waits until it is placed");
            let reply = client.release(placed.allocation).await.expect("answered");
            assert!(reply.fault.is_none(), "an allocation is released once: {reply:?}");
        }
        4 => {
            let bundles = vec![BundleTemplate { request: one_gpu(), count: 2 }];
            let group =
                CreateGroupRequest { bundles, mode: MODE_WAIT_UNTIL, ..CreateGroupRequest::default() };
            let reply = client.create_group(&group).await.expect("answered");
            let id = reply.group.unwrap_or_else(|| panic!("{number}: {:?}", reply.fault)).id;
            let reply = client.remove_group(id).await.expect("answered");
            assert!(reply.fault.is_none() && reply.bundles_ended == 2, "{reply:?}");
        }
        5 => left.allocations.push(replace(client).await),
        6 => {
            let leased = PlaceRequest { lease: LEASE, ..one() };
            let placed = client.place(&leased).await.expect("answered").placed.expect("there is room");
            let allocations = vec![placed.allocation];
            let renew = RenewRequest { lease: 2 * LEASE, allocations, session: None };
            let reply = client.renew(&renew).await.expect("answered");
            assert!(reply.replies[0].reason.is_done(), "its lease is there: {reply:?}");
            left.allocations.push(placed.allocation.into());
        }
        kind => {
            let placed = client.place(&one()).await.expect("answered").placed.expect("there is room");
            if kind < 11 {
                let reply = client.release(placed.allocation).await.expect("answered");
                assert!(reply.fault.is_none(), "an allocation is released once: {reply:?}");
            } else {
                left.allocations.push(placed.allocation.into());
            }
        }
    }
    left
}

/// Requests that were sent before a kill and answered after it, by the kill.
#[derive(Default)]
struct Survivors {
    kills: AtomicUsize,
    counts: [AtomicUsize; KILLS],
}

impl Survivors {
    /// Runs a request, and notes which kills it outlived.
    async fn watch<T>(&self, request: impl Future<Output = T>) -> T {
        // SeqCst: the kill is noted while no service is there, so a request that was begun before was answered after it.
        let begun = self.kills.load(Ordering::SeqCst);
        let answer = request.await;
        for kill in begun..self.kills.load(Ordering::SeqCst) {
            self.counts[kill].fetch_add(1, Ordering::SeqCst);
        }
        answer
    }
}

/// Asks until told to stop. Tells of each answer.
async fn load(config: ClientConfig, answered: SyncSender<()>, survivors: Arc<Survivors>) -> Vec<Left> {
    let client = within(Client::connect(config)).await.expect("the service is there");
    let room = Arc::new(Semaphore::new(WINDOW));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0.. {
        let permit = Arc::clone(&room).acquire_owned().await.expect("never closed");
        // The receiver goes when there were enough kills.
        if answered.send(()).is_err() {
            break;
        }
        let client = client.clone();
        let survivors = Arc::clone(&survivors);
        tasks.spawn(async move {
            let left = survivors.watch(ask(&client, number)).await;
            drop(permit);
            left
        });
    }
    let mut all = Vec::new();
    while let Some(left) = within(tasks.join_next()).await {
        all.push(left.expect("no request failed"));
    }
    within(client.close()).await;
    all
}

/// Catches an effect without its outcome in the journal: the client would be answered by a second effect.
#[test]
fn requests_under_way_when_the_service_is_killed_are_done_once() {
    let site = Site::new();
    let mut service = site.serve(&["--shards", "2"]);
    for name in ["large-a", "large-b", "large-c", "large-d"] {
        service.run(&["node", "add", name, "--cpu", "100000", "--memory", "1TiB"]).with(0);
    }
    service.run(&["node", "add", "large-gpus", "--cpu", "1", "--memory", "1MiB", "--gpus", GPUS]).with(0);
    let address = service.address.to_string();
    let config =
        ClientConfig { retry_for: Duration::MAX, ..service.client_config(&site.development_certificate()) };
    // It never blocks the client, whose connection goes on during an outage.
    let (sender, answered) = sync_channel(ANSWERS_ROOM);
    let survivors = Arc::new(Survivors::default());
    let of_load = Arc::clone(&survivors);
    let client = std::thread::spawn(move || runtime().block_on(load(config, sender, of_load)));
    for kill in 0..KILLS {
        (0..ANSWERS).for_each(|_| answered.recv_timeout(PATIENCE).expect("the load goes on"));
        service.kill();
        // What was answered before is old.
        answered.try_iter().for_each(drop);
        survivors.kills.fetch_add(1, Ordering::SeqCst);
        let shards = ["3", "1", "2"][kill % 3];
        service = site.serve(&["--shards", shards, "--listen", &address]);
    }
    (0..ANSWERS).for_each(|_| answered.recv_timeout(PATIENCE).expect("the load goes on"));
    drop(answered);
    let left = client.join().expect("the load ends");
    let survivors: Vec<usize> = survivors.counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
    println!("requests that outlived each kill: {survivors:?}");
    assert!(survivors.iter().all(|&count| count > 0), "no request was under way at a kill: {survivors:?}");

    let status = service.json(&["status", "--audit"]);
    let allocations: Vec<AllocationId> = left.iter().flat_map(|left| &left.allocations).copied().collect();
    let distinct: BTreeSet<AllocationId> = allocations.iter().copied().collect();
    assert_eq!(distinct.len(), allocations.len(), "two requests have one allocation");
    let groups = left.iter().filter_map(|left| left.group).collect::<Vec<_>>();
    let bundles: u64 = groups.iter().map(|(_, bundles)| bundles).sum();
    assert_eq!(sum(&status, "allocations"), allocations.len() as u64 + bundles);
    assert_eq!(status["waiting"], 0, "{status}");
    let listed = service.json(&["group", "list"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(groups.len()), "{listed}");
    let nodes: BTreeSet<String> = left.into_iter().filter_map(|left| left.node).collect();
    let listed = service.json(&["node", "list"]);
    let listed = listed.as_array().expect("a list").iter().map(|node| node["name"].as_str().expect("a name"));
    let listed: BTreeSet<String> =
        listed.filter(|&name| !name.starts_with("large")).map(str::to_owned).collect();
    assert_eq!(listed, nodes);
    for id in distinct.iter().take(3) {
        service.run(&["release", &id.to_string()]).with(0);
    }
    service.stop();
}

/// The service is killed when a placement is durable and its reply was lost on the way. Would catch a start that does it
/// again, and one that does not know the answer.
#[test]
fn a_reply_that_is_lost_before_a_kill_is_given_after_it() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1"]);
    service.run(&["node", "add", "a", "--cpu", "100", "--memory", "1TiB"]).with(0);
    let address = service.address.to_string();
    let proxy = Proxy::to(service.address);
    let config = service.client_config(&site.development_certificate());
    let config = ClientConfig { server: proxy.address, retry_for: Duration::MAX, ..config };
    let (connected, is_connected) = sync_channel(ANSWERS_ROOM);
    let (cut, is_cut) = sync_channel(ANSWERS_ROOM);
    let client = std::thread::spawn(move || {
        runtime().block_on(async {
            let client = within(Client::connect(config)).await.expect("the service is there");
            connected.send(()).expect("the test waits");
            is_cut.recv_timeout(PATIENCE).expect("the test goes on");
            let answer = within(client.place(&one())).await.expect("answered");
            within(client.close()).await;
            answer
        })
    });
    is_connected.recv_timeout(PATIENCE).expect("it connects");
    proxy.lose_replies(true);
    cut.send(()).expect("the client waits");
    // This status is answered when all that it shows is durable.
    service.until(&["status"], |status| sum(status, "allocations") == 1);
    service.kill();
    let service = site.serve(&["--shards", "1", "--listen", &address]);
    proxy.lose_replies(false);
    let placed = client.join().expect("the client ends").placed.expect("there is room");
    let id = AllocationId::from(placed.allocation);
    assert_eq!(id.incarnation, Incarnation(1), "the first start has placed it");
    let status = service.json(&["status", "--audit"]);
    assert_eq!((sum(&status, "allocations"), &status["incarnation"]), (1, &2.into()));
    service.run(&["release", &id.to_string()]).with(0);
    service.stop();
}

/// A client that was away for a clean stop and a crash goes on with its session. One whose session has ended is told so.
#[test]
fn a_session_survives_stops_and_crashes_but_not_its_time() {
    let site = Site::new();
    let mut service = site.serve(&["--shards", "1"]);
    service.run(&["node", "add", "a", "--cpu", "100", "--memory", "1TiB"]).with(0);
    let address = service.address.to_string();
    let serve = |more: &[&str]| site.serve(&[&["--listen", &address], more].concat());
    let config =
        ClientConfig { retry_for: Duration::MAX, ..service.client_config(&site.development_certificate()) };
    let runtime = runtime();
    let client = runtime.block_on(async { within(Client::connect(config)).await.expect("it serves") });
    let place = || runtime.block_on(async { within(client.place(&one())).await });
    assert!(place().expect("answered").placed.is_some());
    service.stop();
    service = serve(&["--shards", "2"]);
    assert!(place().expect("the session goes on after a stop").placed.is_some());
    service.kill();
    service = serve(&["--shards", "1"]);
    assert!(place().expect("the session goes on after a crash").placed.is_some());
    let status = service.json(&["status"]);
    assert_eq!(sum(&status, "allocations"), 3);
    service.kill();
    // The client connects only when the runtime runs, so the session is without a connection for its whole time.
    let short = site.write("short.toml", "session_kept_for = \"0.1\"\n");
    service = serve(&["--shards", "1", "--config", &short]);
    service.wait_for_log("sessions ended because their clients stayed away", 1);
    assert!(matches!(place(), Err(ClientError::SessionGone(_))));
    service.stop();
}
