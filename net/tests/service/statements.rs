//! Statements of an external scheduler over the wire: done as a whole or in part, or refused with the facts.
//! Operations that are not done leave no trace in the books.

use crate::harness::{Peer, TestServer, add, ask, audit, node, place, request, standing, units, within};
use wharf_net::client::Client;
use wharf_net::protocol::{
    COMMIT_INCREMENTAL, CONFLICT_DETECTION_COARSE, ConflictBody, DemandBody, Kind, ListRequest,
    NodeBooksRequest, OPERATION_ALLOCATE, OPERATION_EVICT, OPERATION_PIPELINE, OperationBody, Reason,
    ReleaseReply, StatementReply, StatementRequest, WireAllocation,
};

fn take(node: u64, cpu: i64) -> OperationBody {
    OperationBody {
        operation: OPERATION_ALLOCATE,
        node,
        demand: DemandBody { cpu: units(cpu), ..DemandBody::default() },
        ..OperationBody::default()
    }
}

fn evict(allocation: WireAllocation) -> OperationBody {
    let allocation = Some(allocation);
    OperationBody { operation: OPERATION_EVICT, allocation, ..OperationBody::default() }
}

fn all(operations: Vec<OperationBody>) -> StatementRequest {
    StatementRequest { operations, ..StatementRequest::default() }
}

fn coarse(operations: Vec<OperationBody>) -> StatementRequest {
    StatementRequest { conflict_detection: CONFLICT_DETECTION_COARSE, ..all(operations) }
}

fn partly(operations: Vec<OperationBody>) -> StatementRequest {
    StatementRequest { mode: COMMIT_INCREMENTAL, ..all(operations) }
}

async fn submit(client: &Client, request: &StatementRequest) -> StatementReply {
    within(client.submit_statement(request)).await.expect("answered")
}

fn reasons(reply: &StatementReply) -> Vec<Reason> {
    assert_eq!(reply.fault, None);
    reply.operations.iter().map(|operation| operation.reason.known().expect("known")).collect()
}

/// Returns the allocation that an operation was granted.
#[track_caller]
fn allocation(reply: &StatementReply, at: usize) -> WireAllocation {
    let operation = &reply.operations[at];
    assert!(operation.reason.is_done(), "{reply:?}");
    operation.allocation.expect("what is done is about an allocation")
}

#[track_caller]
fn conflict(reply: &StatementReply, at: usize) -> &ConflictBody {
    let conflict = reply.operations[at].conflict.as_ref().unwrap_or_else(|| panic!("none: {reply:?}"));
    assert!(usize::from(conflict.operation) == at && !conflict.message.is_empty());
    conflict
}

/// Returns the version of each node, in order of id.
async fn versions(client: &Client) -> Vec<u64> {
    let page = within(client.list_nodes(&ListRequest { after: 0, limit: 100 })).await.expect("answered");
    page.nodes.iter().map(|node| node.version).collect()
}

async fn release(client: &Client, id: WireAllocation) -> ReleaseReply {
    within(client.release(id)).await.expect("answered")
}

/// Starts a service of three shards and six nodes, each with four cores and two GPUs.
async fn bed() -> (TestServer, Client, Vec<u64>) {
    let server = TestServer::start_planning(3, 2);
    let client = server.client().await;
    let nodes = add(&client, (0..6).map(|i| node(&format!("n{i}"), 4, 4096, 2)).collect()).await;
    (server, client, nodes)
}

#[tokio::test]
async fn a_statement_over_several_shards_is_done_as_a_whole() {
    let (server, client, nodes) = bed().await;
    let empty = standing(&client).await;
    let operations = nodes.iter().map(|&node| take(node, 3));
    let device = OperationBody {
        demand: DemandBody { gpu: units(1), ..take(nodes[0], 1).demand },
        gpus: vec![1],
        ..take(nodes[0], 1)
    };
    let request = all(operations.chain([device]).collect());
    let reply = submit(&client, &request).await;
    assert_eq!(reply.reason, Reason::Done.into(), "{reply:?}");
    assert!(reply.statement.is_some());
    let placed: Vec<_> = reply.operations.iter().map(|op| op.placed.clone().expect("allocated")).collect();
    assert_eq!(placed.iter().map(|placed| placed.node).take(6).collect::<Vec<_>>(), nodes);
    assert_eq!(
        (placed[6].node, &placed[6].gpus[..], placed[0].node_name.as_str()),
        (nodes[0], &[1][..], "n0")
    );
    audit(&client).await;

    // Granted allocations are released or evicted like any other.
    assert!(release(&client, allocation(&reply, 6)).await.reason.is_done());
    let ends: Vec<_> = (0..6).map(|at| evict(allocation(&reply, at))).collect();
    let ended = submit(&client, &all(ends)).await;
    assert_eq!(reasons(&ended), [Reason::Done; 6]);
    assert!(ended.operations.iter().all(|operation| operation.until == 0 && operation.placed.is_none()));
    assert_eq!(standing(&client).await, empty);
    server.stop().await;
}

#[tokio::test]
async fn what_conflicts_is_refused_with_the_facts_and_nothing_is_held() {
    let (server, client, nodes) = bed().await;
    let held = place(&client, &ask(3, 0, 0)).await;
    let full = held.node;
    let free = nodes.iter().copied().find(|&node| node != held.node).expect("another");
    let before = standing(&client).await;
    let others: Vec<OperationBody> = nodes.iter().filter(|&&n| n != full).map(|&n| take(n, 1)).collect();
    let count = others.len();
    let reply = submit(&client, &all(others.into_iter().chain([take(full, 2)]).collect())).await;
    assert_eq!(reply.reason, Reason::Conflicted.into());
    let short = conflict(&reply, count);
    assert_eq!(
        (short.reason, short.node, short.resource.as_str()),
        (Reason::Insufficient.into(), full, "cpu")
    );
    assert_eq!((short.asked, short.available, &short.node_name), (units(2), units(1), &held.node_name));
    assert!(short.version.is_some());
    assert_eq!(reasons(&reply)[..count], vec![Reason::Aborted; count]);
    assert_eq!(standing(&client).await, before);

    let gone = WireAllocation { sequence: 999, ..held.allocation };
    let reply = submit(&client, &all(vec![take(free, 1), evict(gone)])).await;
    assert_eq!(reasons(&reply)[1], Reason::UnknownAllocation);
    assert_eq!(conflict(&reply, 1).allocation, Some(gone));
    // Evicting the same allocation twice is a contradiction.
    let reply = submit(&client, &all(vec![evict(held.allocation), evict(held.allocation)])).await;
    assert_eq!(reply.reason, Reason::Conflicted.into());
    assert_eq!((reasons(&reply)[1], conflict(&reply, 1).other), (Reason::Contradicts, Some(0)));
    // The instance is taken or does not exist.
    let device = |gpus| OperationBody {
        demand: DemandBody { gpu: units(1), ..take(free, 0).demand },
        gpus,
        ..take(free, 0)
    };
    let reply = submit(&client, &all(vec![device(vec![7])])).await;
    assert_eq!((reasons(&reply)[0], conflict(&reply, 0).instance), (Reason::InstanceTaken, Some(7)));
    assert_eq!(standing(&client).await, before);
    server.stop().await;
}

#[tokio::test]
async fn coarse_granularity_refuses_a_node_that_changed() {
    let (server, client, nodes) = bed().await;
    let expecting = |node, version| OperationBody { expected_version: Some(version), ..take(node, 1) };
    let first = versions(&client).await;
    let plan =
        || coarse(nodes.iter().zip(&first).map(|(&node, &version)| expecting(node, version)).collect());
    assert_eq!(submit(&client, &plan()).await.reason, Reason::Done.into());
    let before = standing(&client).await;
    let stale = submit(&client, &plan()).await;
    assert_eq!(reasons(&stale), [Reason::VersionChanged; 6]);
    let now = versions(&client).await;
    for (at, (&expected, &found)) in first.iter().zip(&now).enumerate() {
        let conflict = conflict(&stale, at);
        assert_eq!((conflict.expected_version, conflict.version), (Some(expected), Some(found)));
    }
    // The facts in the answer suffice for a new plan.
    let again = stale.operations.iter().zip(&nodes).map(|(operation, &node)| {
        expecting(node, operation.conflict.as_ref().expect("seen").version.expect("seen"))
    });
    let again: Vec<_> = again.collect();
    assert_eq!(standing(&client).await, before);
    assert_eq!(submit(&client, &coarse(again)).await.reason, Reason::Done.into());
    // Fine conflict detection checks only whether it fits. Coarse conflict detection requires a version.
    assert_eq!(
        submit(&client, &StatementRequest { conflict_detection: 0, ..plan() }).await.reason,
        Reason::Done.into()
    );
    let reply = submit(&client, &coarse(vec![take(nodes[0], 1)])).await;
    assert_eq!(reasons(&reply), [Reason::NoVersion]);
    audit(&client).await;
    server.stop().await;
}

#[tokio::test]
async fn an_incremental_statement_does_what_does_not_conflict() {
    let (server, client, nodes) = bed().await;
    let empty = standing(&client).await;
    let operations = nodes.iter().enumerate().map(|(i, &node)| take(node, if i % 2 == 0 { 4 } else { 5 }));
    let reply = submit(&client, &partly(operations.collect())).await;
    assert_eq!(reply.reason, Reason::Conflicted.into());
    let pair = [Reason::Done, Reason::Insufficient];
    assert_eq!(reasons(&reply), [pair, pair, pair].concat());
    for at in [0, 2, 4] {
        assert!(release(&client, allocation(&reply, at)).await.reason.is_done());
    }
    assert_eq!(standing(&client).await, empty);
    server.stop().await;
}

#[tokio::test]
async fn an_unknown_id_of_an_incremental_statement_is_that_operations_conflict() {
    let (server, client, nodes) = bed().await;
    let empty = standing(&client).await;
    let nowhere = WireAllocation { partition: 9999, incarnation: 1, sequence: 1, tenant: 0 };
    // The operations go to one shard, several, or none. Places in the reply are those that were sent.
    let mut operations = vec![take(999_999, 1), take(nodes[0], 5), evict(nowhere), take(nodes[0], 4)];
    for count in [4, 8] {
        let reply = submit(&client, &partly(operations.clone())).await;
        assert_eq!((reply.reason, &reply.fault), (Reason::Conflicted.into(), &None), "{reply:?}");
        let mut expected =
            vec![Reason::UnknownNode, Reason::Insufficient, Reason::UnknownAllocation, Reason::Done];
        expected.extend([Reason::UnknownNode, Reason::Done, Reason::Done, Reason::Done]);
        assert_eq!(reasons(&reply), expected[..count]);
        assert_eq!(conflict(&reply, 0).node, 999_999);
        assert_eq!((conflict(&reply, 2).allocation, conflict(&reply, 1).node), (Some(nowhere), nodes[0]));
        audit(&client).await;
        for at in (0..count).filter(|&at| reply.operations[at].reason.is_done()) {
            assert!(release(&client, allocation(&reply, at)).await.reason.is_done());
        }
        assert_eq!(standing(&client).await, empty);
        operations.extend([take(0, 1), take(nodes[1], 1), take(nodes[2], 1), take(nodes[3], 1)]);
    }
    let reply = submit(&client, &partly(vec![take(999_999, 1), evict(nowhere)])).await;
    assert_eq!(reasons(&reply), [Reason::UnknownNode, Reason::UnknownAllocation]);
    assert!(reply.statement.is_some() && reply.reason == Reason::Conflicted.into(), "{reply:?}");
    // An operation that contradicts another names it by its place in the statement.
    let first = place(&client, &ask(1, 0, 0)).await.allocation;
    let twice = standing(&client).await;
    let reply = submit(&client, &partly(vec![take(999_999, 1), evict(first), evict(first)])).await;
    assert_eq!(reasons(&reply), [Reason::UnknownNode, Reason::Done, Reason::Contradicts]);
    assert_eq!(conflict(&reply, 2).other, Some(1));
    assert_ne!(standing(&client).await, twice);
    assert_eq!(standing(&client).await, empty);
    server.stop().await;
}

#[tokio::test]
async fn what_cannot_be_is_a_fault_of_its_operation() {
    let (server, client, nodes) = bed().await;
    let before = standing(&client).await;
    let unknown = WireAllocation { partition: 9999, incarnation: 1, sequence: 1, tenant: 0 };
    for (operation, reason, field) in [
        (take(999_999, 1), Reason::UnknownNode, "operations[1].node"),
        (take(nodes[0], -1), Reason::InvalidField, "operations[1].cpu"),
        (evict(unknown), Reason::UnknownAllocation, "operations[1].allocation"),
        (OperationBody::default(), Reason::InvalidField, "operations[1].operation"),
    ] {
        let reply = submit(&client, &all(vec![take(nodes[0], 1), operation])).await;
        let fault = reply.fault.expect("it cannot be");
        assert_eq!((fault.reason, fault.field.as_str()), (reason.into(), field), "{fault}");
        assert_eq!((reply.reason, reply.statement, reply.operations.len()), (fault.reason, None, 0));
    }
    let fault = submit(&client, &all(vec![])).await.fault.expect("there is nothing to do");
    assert_eq!(fault.field, "operations");
    assert_eq!(standing(&client).await, before);
    server.stop().await;
}

#[tokio::test]
async fn a_statement_that_is_sent_twice_is_done_once_and_answered_the_same() {
    let (server, client, nodes) = bed().await;
    let (mut peer, _) = Peer::open(&server).await;
    let body = all(nodes.iter().map(|&node| take(node, 3)).collect());
    let first = peer.call(Kind::SubmitStatement, 1, &body).await;
    assert_eq!(first.body::<StatementReply>().reason, Reason::Done.into());
    let after = standing(&client).await;
    peer.send(&request(Kind::SubmitStatement, 1, &body)).await;
    assert_eq!(peer.frame().await.bytes, first.bytes);
    // Sent again, it does not fit.
    let again: StatementReply = peer.call(Kind::SubmitStatement, 2, &body).await.body();
    assert_eq!(reasons(&again), [Reason::Insufficient; 6]);
    assert_eq!(standing(&client).await, after);
    server.stop().await;
}

#[tokio::test]
async fn two_schedulers_that_want_the_same_nodes_never_both_win() {
    let (server, client, nodes) = bed().await;
    let mut tasks = tokio::task::JoinSet::new();
    for scheduler in 0..4 {
        let client = client.clone();
        let nodes = nodes.clone();
        tasks.spawn(async move {
            let mut won = 0;
            for round in 0..25 {
                let mut nodes = nodes.clone();
                nodes.rotate_left((scheduler + round) % 6);
                let reply = submit(&client, &all(nodes.iter().map(|&node| take(node, 3)).collect())).await;
                if reply.reason.is_done() {
                    won += 1;
                    let ends = (0..6).map(|at| evict(allocation(&reply, at)));
                    let ended = submit(&client, &all(ends.collect())).await;
                    assert_eq!(reasons(&ended), [Reason::Done; 6]);
                } else {
                    assert!(
                        reply.operations.iter().all(|operation| !operation.reason.is_done()),
                        "{reply:?}"
                    );
                }
            }
            won
        });
    }
    let mut won = 0;
    while let Some(ended) = tasks.join_next().await {
        won += ended.expect("a scheduler does not panic");
    }
    assert!(won > 0);
    let status = audit(&client).await;
    assert_eq!(status.shards.iter().map(|shard| shard.allocations).sum::<u64>(), 0);
    server.stop().await;
}

/// Returns a node's cpu in whole cores: available, allocated, releasing, pipelined.
async fn cores_of(client: &Client, name: &str) -> [i64; 4] {
    let request = NodeBooksRequest { node: name.into() };
    let books = within(client.node_books(&request)).await.expect("the node is there");
    let cpu = books.resources.iter().find(|book| book.name == "cpu").expect("every node has cpu");
    [cpu.available, cpu.allocated, cpu.releasing, cpu.pipelined].map(|amount| amount / units(1))
}

#[tokio::test]
async fn what_is_pipelined_follows_an_eviction_with_grace() {
    let (server, client, nodes) = bed().await;
    let full = submit(&client, &all(vec![take(nodes[0], 4), take(nodes[1], 4)])).await;
    let victims = [allocation(&full, 0), allocation(&full, 1)];
    let hour = 3_600_000_000_000;
    let gently = |victim, grace| OperationBody { grace, ..evict(victim) };
    let claim = |node, cpu| OperationBody {
        operation: OPERATION_PIPELINE,
        node,
        demand: DemandBody { cpu: units(cpu), ..take(node, cpu).demand },
        ..take(node, cpu)
    };
    // Claims cannot exceed the releasing capacity.
    let refused = submit(&client, &all(vec![gently(victims[0], hour), claim(nodes[0], 5)])).await;
    assert_eq!(reasons(&refused), [Reason::Aborted, Reason::Insufficient], "{refused:?}");
    assert_eq!(cores_of(&client, "n0").await, [0, 4, 0, 0]);
    // One allocation is released by its caller, the other ends with its grace period.
    let plan = vec![gently(victims[0], hour), claim(nodes[0], 3), gently(victims[1], 1), claim(nodes[1], 4)];
    let done = submit(&client, &all(plan)).await;
    assert_eq!(reasons(&done), [Reason::Done; 4]);
    assert!(done.operations[0].until > 0 && done.operations[1].node == nodes[0]);
    let claims = [allocation(&done, 1), allocation(&done, 3)];
    assert_eq!(cores_of(&client, "n0").await, [0, 0, 4, 3]);
    audit(&client).await;
    assert!(release(&client, victims[0]).await.reason.is_done());
    assert_eq!(cores_of(&client, "n0").await, [1, 3, 0, 0]);
    within(async { while cores_of(&client, "n1").await != [0, 4, 0, 0] {} }).await;
    audit(&client).await;
    for claim in claims {
        assert!(release(&client, claim).await.reason.is_done());
    }
    assert_eq!(release(&client, victims[1]).await.reason, Reason::UnknownAllocation.into());
    assert_eq!(cores_of(&client, "n1").await, [4, 0, 0, 0]);
    server.stop().await;
}
