//! The client's requests over real QUIC: nodes, placements, releases, status, and thousands of requests in
//! progress on one connection. `refusals.rs` tests what is refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::harness::{
    TestServer, add, ask, audit, books, granted, named, node, only, pair, place, units, with_custom, within,
};
use wharf_core::limits::PLACEMENTS_PER_MESSAGE_MAX;
use wharf_net::client::{Client, ClientError, Completions};
use wharf_net::codec::decode_body;
use wharf_net::protocol::{
    AVOID_GPU_YES, DemandBody, DrainRequest, EFFECT_NO_SCHEDULE, FallbackSelector, ListReply, ListRequest,
    NODE_DRAINING, NODE_READY, Name, NodeBody, NodeStatus, NodesRequest, OPERATOR_EQUAL, POLICY_BEST_FIT,
    POLICY_SPREAD, PlaceBatch, PlaceBatchReply, PlaceReply, PlaceRequest, PreferredTerm, Reason,
    ReleaseBatch, ReleaseReply, ReleaseRequest, RemoveRequest, SelectorTerm, StatusReply, StatusRequest,
    Taint, Toleration, VERSION_MAX, WireAllocation, kinds,
};
use wharf_net::server::Settings;

fn drain(name: &str, undo: bool) -> DrainRequest {
    DrainRequest { names: vec![Name(name.to_owned())], undo }
}

fn remove(name: &str, force: bool) -> RemoveRequest {
    RemoveRequest { names: vec![Name(name.to_owned())], force }
}

/// Returns all nodes, read page by page, and the number of pages.
async fn list_all(client: &Client, limit: u16) -> (Vec<NodeStatus>, usize) {
    let mut nodes = Vec::<NodeStatus>::new();
    let mut pages = 0;
    loop {
        let after = nodes.last().map_or(0, |node| node.ordinal);
        let page: ListReply =
            within(client.list_nodes(&ListRequest { after, limit })).await.expect("answered");
        assert!(page.nodes.len() <= usize::from(limit));
        pages += 1;
        nodes.extend(page.nodes);
        if !page.more {
            return (nodes, pages);
        }
    }
}

#[tokio::test]
async fn the_hello_says_who_answers_and_within_which_limits() {
    let server = TestServer::start(1);
    let client = server.client().await;
    let hello = client.hello();
    assert_eq!(hello.version, VERSION_MAX);
    assert_eq!(hello.server.store, [9; 16]);
    assert_eq!(hello.server.incarnation, 1);
    assert!(hello.server.software.starts_with("wharfinger "), "{}", hello.server.software);
    assert!(!hello.resumed);
    assert_eq!(hello.limits.frame_bytes_max, 1 << 20);
    assert_eq!(hello.limits.placements_per_message_max, 1024);
    assert_eq!(hello.limits.nodes_per_message_max, 1024);
    let other = server.client().await;
    assert_ne!(other.hello().session, hello.session);
    assert_ne!(other.hello().token, hello.token);
    within(client.close()).await;
    within(other.close()).await;
    server.stop().await;
}

#[tokio::test]
async fn nodes_are_added_listed_updated_drained_and_removed() {
    let server = TestServer::start(2);
    let client = server.client().await;
    let mut body = node("a", 8, 1024, 2);
    body.identity = "machine-1".to_owned();
    body.custom = vec![named("fpga", 3)];
    body.labels = vec![pair("gpu-model", "T4"), pair("rack", "r1")];
    let ids = add(&client, vec![body.clone(), node("b", 1, 1, 0)]).await;
    assert_ne!(ids[0], ids[1]);

    let (listed, _) = list_all(&client, 10).await;
    assert_eq!(listed.len(), 2);
    let a = &listed[0];
    assert_eq!((a.id, a.state, &a.body), (ids[0], NODE_READY, &body));
    assert_eq!((a.cpu_available, a.memory_available), (units(8), units(1024)));
    assert_eq!(a.gpus_available, [10_000, 10_000]);

    body.cpu = units(16);
    let updated = within(client.update_nodes(&NodesRequest { nodes: vec![body.clone()] })).await.unwrap();
    assert_eq!(only(&updated), (Reason::Done, ""));
    assert_eq!(updated.replies[0].node, ids[0]);
    let drained = within(client.drain_nodes(&drain("a", false))).await.unwrap();
    assert_eq!(only(&drained), (Reason::Done, ""));
    let (listed, _) = list_all(&client, 10).await;
    assert_eq!((listed[0].state, listed[0].cpu_available), (NODE_DRAINING, units(16)));
    assert!(listed[0].version > a.version);

    let refused = within(client.place(&ask(8, 1, 0))).await.unwrap();
    assert_eq!(refused.reason.known(), Some(Reason::NoFitNow));
    within(client.drain_nodes(&drain("a", true))).await.unwrap();
    assert_eq!(place(&client, &ask(8, 1, 0)).await.node, ids[0]);

    let removed = within(client.remove_nodes(&remove("b", false))).await.unwrap();
    assert_eq!(only(&removed), (Reason::Done, ""));
    let (listed, _) = list_all(&client, 10).await;
    assert_eq!(listed.len(), 1);
    let again = add(&client, vec![node("b", 1, 1, 0)]).await;
    assert!(again[0] > ids[1], "an id is never used again");
    server.stop().await;
}

#[tokio::test]
async fn nodes_are_listed_page_by_page_in_order_of_registration() {
    let server = TestServer::start(8);
    let client = server.client().await;
    let names: Vec<String> = (0..1000).map(|i| format!("n{i}")).collect();
    let ids = add(&client, names.iter().map(|name| node(name, 4, 4, 0)).collect()).await;
    for limit in [1000, 64, 333] {
        let (listed, pages) = list_all(&client, limit).await;
        assert!(pages >= 1000usize.div_ceil(usize::from(limit)));
        assert_eq!(listed.iter().map(|node| node.id).collect::<Vec<_>>(), ids);
        assert_eq!(
            listed.iter().map(|node| &node.body.name).collect::<Vec<_>>(),
            names.iter().collect::<Vec<_>>()
        );
        assert!(listed.windows(2).all(|pair| pair[0].ordinal < pair[1].ordinal));
    }
    server.stop().await;
}

/// A page of long nodes would be many times longer than a frame. It ends where the frame is full.
#[tokio::test]
async fn a_page_ends_where_its_frame_is_full() {
    let server = TestServer::start(2);
    let client = server.client().await;
    for i in 0..60 {
        let mut long = node(&format!("n{i}"), 1, 1, 0);
        long.labels = (0..64).map(|l| pair(&format!("{l:0>253}"), &"v".repeat(253))).collect();
        add(&client, vec![long]).await;
    }
    let (listed, pages) = list_all(&client, 1024).await;
    assert_eq!(listed.len(), 60);
    assert!(pages > 1);
    assert!(listed.iter().all(|node| node.body.labels.len() == 64));
    server.stop().await;
}

#[tokio::test]
async fn a_placement_names_node_allocation_and_gpus_and_is_released() {
    let server = TestServer::start(1);
    let client = server.client().await;
    let ids = add(&client, vec![node("a", 8, 1024, 4)]).await;
    let empty = books(&client).await;
    let whole = place(&client, &ask(2, 100, 3)).await;
    assert_eq!((whole.node, whole.node_name.as_str()), (ids[0], "a"));
    assert_eq!((whole.gpus.len(), whole.gpu_part), (3, 10_000));
    let part = place(
        &client,
        &PlaceRequest {
            demand: DemandBody { gpu: 2500, ..DemandBody::default() },
            ..PlaceRequest::default()
        },
    )
    .await;
    assert_eq!(part.gpu_part, 2500);
    assert_eq!(part.gpus.len(), 1);
    assert!(!whole.gpus.contains(&part.gpus[0]), "a part of a GPU that is not taken whole");

    let status = audit(&client).await;
    let books_of: BTreeMap<&str, (i128, i128)> =
        status.resources.iter().map(|r| (r.name.as_str(), (r.total, r.allocated))).collect();
    assert_eq!(books_of["cpu"], (80_000, 20_000));
    assert_eq!(books_of["memory"], (10_240_000, 1_000_000));
    assert_eq!(books_of["gpu"], (40_000, 32_500));
    assert_eq!(status.shards.iter().map(|shard| shard.allocations).sum::<u64>(), 2);
    assert_eq!(status.connections, 1);
    assert_eq!(status.resident_bytes, 4096);
    assert_eq!(status.server, client.hello().server);
    assert!(status.shards[0].state_hash.is_some());
    let plain = within(client.status(&StatusRequest { audit: false })).await.unwrap();
    assert!(plain.books_hash.is_none() && plain.shards[0].state_hash.is_none());

    for placed in [whole, part] {
        let released = within(client.release(placed.allocation)).await.unwrap();
        assert_eq!(released, ReleaseReply::default());
    }
    let status = audit(&client).await;
    assert_eq!(status.shards[0].allocations, 0);
    assert!(status.resources.iter().all(|resource| resource.allocated == 0));
    assert_ne!(status.books_hash, Some(empty), "what was granted since is in the books: ids never return");
    server.stop().await;
}

#[tokio::test]
async fn the_whole_request_counts_custom_selectors_and_candidates() {
    let server = TestServer::start(2);
    let client = server.client().await;
    let mut special = node("special", 4, 4, 0);
    special.custom = vec![named("fpga", 1)];
    special.labels = vec![pair("zone", "east")];
    let ids = add(&client, vec![node("plain", 64, 64, 0), special, node("other", 64, 64, 0)]).await;
    let custom = with_custom(vec![named("fpga", 1)], ask(1, 1, 0));
    assert_eq!(place(&client, &custom).await.node_name, "special");
    let term = |operator, values: &[&str]| wharf_net::protocol::SelectorTerm {
        key: "zone".to_owned(),
        operator,
        values: values.iter().map(|&value| Name(value.to_owned())).collect(),
    };
    for selector in [term(1, &["west", "east"]), term(3, &[])] {
        let request = PlaceRequest { selectors: vec![selector], ..ask(1, 1, 0) };
        assert_eq!(place(&client, &request).await.node_name, "special");
    }
    for selector in [term(2, &["east"]), term(4, &[])] {
        let request = PlaceRequest { selectors: vec![selector], ..ask(1, 1, 0) };
        assert_ne!(place(&client, &request).await.node_name, "special");
    }
    for id in &ids {
        let request = PlaceRequest { candidates: vec![*id, 999], policy: POLICY_BEST_FIT, ..ask(1, 1, 0) };
        assert_eq!(place(&client, &request).await.node, *id);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_batch_is_decided_in_order_each_on_its_own() {
    let server = TestServer::start(1);
    let client = server.client().await;
    add(&client, vec![node("a", 3, 100, 0)]).await;
    let requests = vec![ask(1, 1, 0), ask(-1, 1, 0), ask(1, 1, 0), ask(9, 1, 0), ask(2, 1, 0), ask(1, 1, 0)];
    let reply = within(client.place_batch(&PlaceBatch { requests })).await.unwrap();
    let reasons: Vec<_> = reply.replies.iter().map(|reply| reply.reason.known().unwrap()).collect();
    let expected = [
        Reason::Done,
        Reason::InvalidField,
        Reason::Done,
        Reason::Infeasible,
        Reason::NoFitNow,
        Reason::Done,
    ];
    assert_eq!(reasons, expected);
    let mut requests: Vec<ReleaseRequest> = reply
        .replies
        .iter()
        .filter_map(|reply| reply.placed.as_ref())
        .map(|placed| ReleaseRequest { allocation: placed.allocation })
        .collect();
    requests.push(requests[0]);
    let reply = within(client.release_batch(&ReleaseBatch { requests })).await.unwrap();
    let reasons: Vec<_> = reply.replies.iter().map(|reply| reply.reason.known().unwrap()).collect();
    assert_eq!(reasons, [Reason::Done, Reason::Done, Reason::Done, Reason::UnknownAllocation]);

    // An empty batch does nothing. A batch without valid requests is answered without the engine.
    let nothing = within(client.place_batch(&PlaceBatch::default())).await.unwrap();
    assert!(nothing.replies.is_empty());
    assert!(within(client.release_batch(&ReleaseBatch::default())).await.unwrap().replies.is_empty());
    let requests = vec![ask(-1, 0, 0), ask(0, -1, 0)];
    let reply = within(client.place_batch(&PlaceBatch { requests })).await.unwrap();
    assert!(reply.replies.iter().all(|reply| reply.reason.known() == Some(Reason::InvalidField)));
    server.stop().await;
}

#[tokio::test]
async fn the_largest_batches_fit() {
    let server = TestServer::start(2);
    let client = server.client().await;
    add(&client, vec![node(&"n".repeat(253), 2048, 2048, 0)]).await;
    let requests = vec![ask(1, 1, 0); 1024];
    let reply = within(client.place_batch(&PlaceBatch { requests })).await.unwrap();
    let allocations: Vec<_> = reply.replies.into_iter().map(|reply| granted(reply).allocation).collect();
    let requests = allocations.into_iter().map(|allocation| ReleaseRequest { allocation }).collect();
    let reply = within(client.release_batch(&ReleaseBatch { requests })).await.unwrap();
    assert_eq!(reply.replies, vec![ReleaseReply::default(); 1024]);

    // A request that fits no frame fails at the caller, and the connection continues.
    let long = PlaceRequest { queue: "q".repeat(253), ..ask(1, 1, 0) };
    let long = PlaceRequest { candidates: (0..1024).collect(), ..long };
    let refused = within(client.place_batch(&PlaceBatch { requests: vec![long; 1024] })).await;
    assert!(matches!(refused, Err(ClientError::TooLong(_))), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("send less per message"));
    place(&client, &ask(1, 1, 0)).await;
    server.stop().await;
}

/// Runs one task that places and releases many at a time and releases everything at the end.
async fn churn(client: Client, task: i64, rounds: usize) -> usize {
    let mut granted_count = 0;
    let mut held: Vec<WireAllocation> = Vec::new();
    for round in 0..rounds {
        let mut calls = tokio::task::JoinSet::new();
        for i in 0..50 {
            let client = client.clone();
            // The memory amount marks each request, so that a swapped reply would be noticed.
            let request = ask(1 + (i + task) % 3, 1 + task * 1000 + i, i64::from(i % 5 == 0));
            calls.spawn(async move { client.place(&request).await.expect("answered") });
        }
        while let Some(reply) = within(calls.join_next()).await {
            let reply = reply.expect("no panic");
            match reply.reason.known() {
                Some(Reason::Done) => held.push(granted(reply).allocation),
                Some(Reason::NoFitNow) => {}
                other => panic!("{other:?}: {reply:?}"),
            }
        }
        granted_count += held.len();
        let kept = if round + 1 == rounds { 0 } else { held.len() / 3 };
        let requests = held.drain(kept..).map(|allocation| ReleaseRequest { allocation }).collect();
        let released = within(client.release_batch(&ReleaseBatch { requests })).await.expect("answered");
        assert!(released.replies.iter().all(|reply| reply.reason.is_done()));
        granted_count -= held.len();
    }
    assert!(held.is_empty());
    granted_count
}

async fn churn_over(shards: u16) {
    let server = TestServer::start(shards);
    let client = server.client().await;
    add(&client, (0..40).map(|i| node(&format!("n{i}"), 16, 20_000, 2)).collect()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..4 {
        // Half of the tasks share a connection, the others have their own.
        let client = if task % 2 == 0 { client.clone() } else { server.client().await };
        tasks.spawn(churn(client, task, 8));
    }
    let mut granted_count = 0;
    while let Some(count) = within(tasks.join_next()).await {
        granted_count += count.expect("no panic");
    }
    assert!(granted_count > 0);
    let status: StatusReply = audit(&client).await;
    assert_eq!(status.shards.len(), usize::from(shards));
    assert!(status.books_hash.is_some());
    assert!(status.resources.iter().all(|resource| resource.allocated == 0 && resource.shortfall == 0));
    assert_eq!(status.shards.iter().map(|shard| shard.allocations).sum::<u64>(), 0);
    assert_eq!(status.shards.iter().map(|shard| shard.placed).sum::<u64>(), granted_count as u64);
    assert_eq!(status.shards.iter().map(|shard| shard.released).sum::<u64>(), granted_count as u64);
    server.stop().await;
}

#[tokio::test]
async fn after_a_churn_one_shard_is_empty_and_audited() {
    churn_over(1).await;
}

#[tokio::test]
async fn after_a_churn_two_shards_are_empty_and_audited() {
    churn_over(2).await;
}

#[tokio::test]
async fn after_a_churn_eight_shards_are_empty_and_audited() {
    churn_over(8).await;
}

/// Far more requests than a connection may have in progress. The client waits for room, and each reply finds
/// its request. A candidate node per request tells them apart.
#[tokio::test]
async fn thousands_of_requests_are_matched_with_their_replies() {
    const NODES: u64 = 500;
    const REQUESTS: u64 = 10_000;
    let server = TestServer::start(4);
    let client = server.client().await;
    let nodes = (0..NODES).map(|i| node(&format!("n{i}"), 1000, 1000, 0)).collect();
    let ids = add(&client, nodes).await;
    let queue = Arc::new(Completions::default());
    let sender = {
        let client = client.clone();
        let queue = Arc::clone(&queue);
        let ids = ids.clone();
        tokio::spawn(async move {
            for tag in 0..REQUESTS {
                let id = ids[(tag * 7 % NODES) as usize];
                let request = PlaceRequest { candidates: vec![id], ..ask(1, 1, 0) };
                within(client.submit::<kinds::Place>(&request, &queue, tag))
                    .await
                    .expect("the server is there");
            }
        })
    };
    let mut seen = vec![false; REQUESTS as usize];
    let mut completions = Vec::new();
    for _ in 0..REQUESTS {
        if completions.is_empty() {
            within(queue.take(&mut completions)).await;
        }
        let completion = completions.pop().expect("taken above");
        let (reply, _) = decode_body::<PlaceReply>(&completion.reply.expect("answered")).unwrap();
        assert_eq!(granted(reply).node, ids[(completion.tag * 7 % NODES) as usize]);
        assert!(!std::mem::replace(&mut seen[completion.tag as usize], true), "answered twice");
    }
    within(sender).await.unwrap();
    assert_eq!(audit(&client).await.shards.iter().map(|shard| shard.allocations).sum::<u64>(), REQUESTS);
    server.stop().await;
}

/// A call that is dropped while it waits frees its place in flight.
#[tokio::test]
async fn calls_that_are_given_up_leave_room_for_others() {
    let settings = Settings { in_flight_max: 1, ..Settings::default() };
    let server = TestServer::start_with(1, settings);
    let client = server.client().await;
    add(&client, vec![node("a", 10, 10, 0)]).await;
    for _ in 0..5 {
        let request = ask(1, 1, 0);
        let waiting: Vec<_> =
            (0..3).map(|_| tokio::time::timeout(Duration::ZERO, client.place(&request))).collect();
        for call in waiting {
            let _ = call.await;
        }
    }
    within(client.place(&ask(1, 1, 0))).await.expect("there is room");
    within(client.close()).await;
    server.stop().await;
}

/// Batches whose replies exceed what a session keeps, all sent before any is acknowledged. The server refuses
/// those beyond the limit, and the client sends them again.
#[tokio::test]
async fn replies_beyond_what_a_session_keeps_are_asked_for_again() {
    const BATCHES: u64 = 300;
    let server = TestServer::start(2);
    let client = server.client().await;
    add(&client, vec![node("a", 1, 1, 0)]).await;
    // Refusals hold no capacity and have long replies.
    let batch = PlaceBatch { requests: vec![ask(2, 2, 0); PLACEMENTS_PER_MESSAGE_MAX] };
    let queue = Arc::new(Completions::default());
    for tag in 0..BATCHES {
        within(client.submit::<kinds::PlaceBatch>(&batch, &queue, tag)).await.expect("it is sent");
    }
    let mut answered = 0;
    let mut completions = Vec::new();
    while answered < BATCHES {
        within(queue.take(&mut completions)).await;
        for completion in completions.drain(..) {
            let (reply, _) = decode_body::<PlaceBatchReply>(&completion.reply.expect("it is done")).unwrap();
            assert_eq!(reply.replies.len(), PLACEMENTS_PER_MESSAGE_MAX);
            answered += 1;
        }
    }
    within(client.close()).await;
    server.stop().await;
}

/// Preferences, with the fields of clients of version 2 and with those of version 1.
#[tokio::test]
async fn preferences_decide_between_nodes_that_fit() {
    let server = TestServer::start(2);
    let client = server.client().await;
    let zoned = |name: &str, gpus: u32, zone: &str, taints: Vec<Taint>| NodeBody {
        labels: vec![pair("zone", zone)],
        taints,
        ..node(name, 8, 8, gpus)
    };
    let taint = |effect: u8| vec![Taint { key: "team".to_owned(), value: "ml".to_owned(), effect }];
    let ids = add(
        &client,
        vec![
            zoned("gpu", 4, "a", Vec::new()),
            zoned("kept", 0, "a", taint(EFFECT_NO_SCHEDULE)),
            zoned("b", 0, "b", Vec::new()),
        ],
    )
    .await;
    let zone = |zone: &str| SelectorTerm {
        key: "zone".to_owned(),
        operator: OPERATOR_EQUAL,
        values: vec![Name(zone.to_owned())],
    };
    let answer = async |request: PlaceRequest| {
        let reply = within(client.place(&request)).await.expect("answered");
        (reply.placed.map(|placed| placed.node), reply.alternative, reply.refusal)
    };
    // No request tolerates the taint, and no zone is called c.
    let mut request = PlaceRequest { selectors: vec![zone("c")], ..ask(1, 1, 0) };
    request.fallbacks =
        vec![FallbackSelector { terms: vec![zone("d")] }, FallbackSelector { terms: vec![zone("b")] }];
    assert_eq!(answer(request).await, (Some(ids[2]), 2, None));
    let tolerates = Toleration {
        key: "team".to_owned(),
        operator: OPERATOR_EQUAL,
        value: "ml".to_owned(),
        effect: EFFECT_NO_SCHEDULE,
    };
    let mut request = ask(1, 1, 0);
    request.selectors = vec![zone("a")];
    request.tolerations = vec![tolerates];
    request.avoid_gpu = AVOID_GPU_YES;
    assert_eq!(answer(request).await.0, Some(ids[1]));
    let mut request = ask(1, 1, 0);
    request.preferred_nodes = vec![ids[1], ids[0]];
    assert_eq!(answer(request).await.0, Some(ids[0]), "the first of them is tainted");
    let mut request = ask(100, 1, 0);
    request.node = ids[2];
    let checks = answer(request).await.2.expect("too many cores").checks;
    let checks: Vec<_> = checks.iter().map(|c| (c.reason.known(), c.resource.as_str(), c.nodes)).collect();
    assert_eq!(checks, [(Some(Reason::NodeAffinity), "b", 2), (Some(Reason::Insufficient), "cpu", 1)]);
    // A preferred term, and a refusal that counts the taint.
    let preferred = PlaceRequest {
        preferred: vec![PreferredTerm { weight: 7, term: zone("a") }],
        policy: POLICY_SPREAD,
        ..ask(1, 1, 0)
    };
    assert_eq!(place(&client, &preferred).await.node, ids[0]);
    let kept = PlaceRequest { candidates: vec![ids[1]], ..ask(1, 1, 0) };
    let refusal = within(client.place(&kept)).await.unwrap().refusal.expect("it is tainted");
    let counted =
        |reason: Reason| refusal.checks.iter().find(|c| c.reason.known() == Some(reason)).map(|c| c.nodes);
    assert_eq!((counted(Reason::UntoleratedTaint), counted(Reason::NotACandidate)), (Some(1), Some(2)));
    let batch = PlaceBatch { requests: vec![ask(1, 1, 1), ask(9, 1, 0)] };
    let replies = within(client.place_batch(&batch)).await.expect("answered").replies;
    assert_eq!(replies[0].placed.as_ref().map(|placed| placed.node), Some(ids[0]));
    assert_eq!(replies[1].reason.known(), Some(Reason::Infeasible));
    server.stop().await;
}
