//! Explanations of placements and groups that wait: any client may ask, and is told what would help.

use wharf_net::client::{Client, ClientError};
use wharf_net::protocol::{
    BundleTemplate, CHANGE_FREE_ON_NODE, CHANGE_LARGER_NODES, CHANGE_MORE_NODES, CreateGroupRequest,
    ExplainWaitReply, ExplainWaitRequest, ListGroupsRequest, MODE_WAIT_UNTIL, PlaceRequest, Reason,
    WAITS_FOR_BUNDLES, WAITS_FOR_NODE, WAITS_FOR_NOTHING, WireGroup, WireSession, kinds,
};

use super::waiting::until_waiting;
use crate::harness::{TestServer, add, ask, audit, granted, node, place, within};

fn waits(request: PlaceRequest) -> PlaceRequest {
    PlaceRequest { mode: MODE_WAIT_UNTIL, ..request }
}

fn of_placement(session: WireSession, sequence: u64) -> ExplainWaitRequest {
    ExplainWaitRequest { session: Some(session), sequence, ..ExplainWaitRequest::default() }
}

pub(super) fn of_group(group: WireGroup) -> ExplainWaitRequest {
    ExplainWaitRequest { group: Some(group), ..ExplainWaitRequest::default() }
}

async fn explain(client: &Client, request: &ExplainWaitRequest) -> ExplainWaitReply {
    within(client.explain_wait(request)).await.expect("answered")
}

/// Explains something once so much waits. A placement waits at the shards one after the other.
async fn explain_among(client: &Client, request: &ExplainWaitRequest, waiting: u64) -> ExplainWaitReply {
    within(async {
        loop {
            let told = client.explain_wait(request).await.expect("answered");
            if told.waiting == waiting {
                return told;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// Returns the changes, each with its amount or its number of nodes.
fn changes(told: &ExplainWaitReply) -> Vec<(u8, i64)> {
    let amount = |change: &wharf_net::protocol::ChangeBody| change.amounts.first().map(|of| of.amount);
    told.changes.iter().map(|of| (of.change, amount(of).unwrap_or(of.count as i64))).collect()
}

#[tokio::test]
async fn a_placement_that_waits_is_explained_to_any_client() {
    let server = TestServer::start_planning(2, 2);
    let client = server.client().await;
    add(&client, vec![node("n", 4, 4096, 0), node("m", 4, 4096, 0)]).await;
    let held = place(&client, &ask(3, 0, 0)).await.allocation;
    place(&client, &ask(3, 0, 0)).await;
    let (sequence, reply) =
        within(client.call_waiting::<kinds::Place>(&waits(ask(2, 0, 0)))).await.expect("sent");
    until_waiting(&client, 1, 0).await;
    let first = PlaceRequest { priority: 5, ..waits(ask(2, 0, 0)) };
    let (_, second) = within(client.call_waiting::<kinds::Place>(&first)).await.expect("sent");
    until_waiting(&client, 2, 0).await;
    let other = server.client().await;
    let request = of_placement(client.hello().session, sequence);
    let told = explain_among(&other, &request, 2).await;
    assert!(told.reason.is_done() && told.group.is_none() && told.bundle.is_none(), "{told:?}");
    assert_eq!((told.waits_for, told.fit, told.needed, told.until), (WAITS_FOR_NODE, 0, 1, None));
    assert_eq!((told.before, told.waiting, told.priority), (1, 2, 0));
    let nodes = told.nodes.as_ref().expect("it waits for a node");
    assert_eq!((nodes.nodes, nodes.examined, nodes.checks.len()), (2, 2, 1));
    let check = &nodes.checks[0];
    assert_eq!((check.resource.as_str(), check.nodes, check.least_short), ("cpu", 2, 10_000));
    assert_eq!(changes(&told), [(CHANGE_FREE_ON_NODE, 10_000), (CHANGE_MORE_NODES, 1)]);
    assert!(told.changes[1].instead && !told.changes[0].node_name.is_empty());
    let unknown = explain(&other, &of_placement(other.hello().session, sequence)).await;
    assert_eq!(unknown.reason, Reason::UnknownWait.into(), "{unknown:?}");
    // What is said to help does help.
    assert!(within(client.release(held)).await.expect("answered").reason.is_done());
    granted(within(reply).await.expect("answered"));
    granted(within(second).await.expect("answered"));
    let ended = explain(&other, &request).await;
    assert_eq!(ended.reason, Reason::UnknownWait.into(), "{ended:?}");
    audit(&client).await;
    server.stop().await;
}

#[tokio::test]
async fn a_group_that_waits_is_explained() {
    let server = TestServer::start_planning(2, 2);
    let client = server.client().await;
    add(&client, vec![node("n", 4, 4096, 0), node("m", 4, 4096, 0)]).await;
    let held = place(&client, &ask(1, 0, 0)).await.allocation;
    let create = CreateGroupRequest {
        bundles: vec![BundleTemplate { request: ask(4, 0, 0), count: 2 }],
        mode: MODE_WAIT_UNTIL,
        ..CreateGroupRequest::default()
    };
    let (sequence, reply) = within(client.call_waiting::<kinds::CreateGroup>(&create)).await.expect("sent");
    let group = within(async {
        loop {
            let page = client.list_groups(&ListGroupsRequest::default()).await.expect("answered");
            if let Some(group) = page.groups.first() {
                return group.id;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let large = PlaceRequest { priority: 3, ..waits(ask(5, 0, 0)) };
    let (of_large, placed) = within(client.call_waiting::<kinds::Place>(&large)).await.expect("sent");
    until_waiting(&client, 0, 1).await;
    let told = explain_among(&client, &of_group(group), 2).await;
    assert_eq!(told.group.as_ref().map(|of| of.id), Some(group), "{told:?}");
    assert_eq!((told.waits_for, told.fit, told.needed), (WAITS_FOR_BUNDLES, 1, 2), "{told:?}");
    assert_eq!((told.before, told.waiting, told.bundle), (1, 2, Some(0)));
    assert_eq!((told.room.fits, told.room.places), (1, 1));
    assert_eq!(changes(&told), [(CHANGE_FREE_ON_NODE, 10_000), (CHANGE_MORE_NODES, 1)]);
    // A placement and a group are in one order.
    let told = explain(&client, &of_placement(client.hello().session, of_large)).await;
    assert_eq!((told.waits_for, told.before, told.waiting), (WAITS_FOR_NODE, 0, 2));
    assert_eq!(changes(&told), [(CHANGE_LARGER_NODES, 50_000)]);
    let fault = async |request: ExplainWaitRequest| {
        let fault = explain(&client, &request).await.fault.expect("it is not as it should be");
        (fault.reason.known().expect("known"), fault.field)
    };
    let bundle = ExplainWaitRequest { bundle: Some(9), ..of_group(group) };
    assert_eq!(fault(bundle).await, (Reason::UnknownBundle, "bundle".to_owned()));
    let unknown = of_group(WireGroup { number: 99, ..group });
    assert_eq!(fault(unknown).await, (Reason::UnknownGroup, "group".to_owned()));
    let of_wait = of_placement(client.hello().session, sequence);
    assert_eq!(fault(of_wait).await, (Reason::InvalidField, "sequence".to_owned()));
    let both = ExplainWaitRequest { group: Some(group), ..of_wait };
    assert_eq!(fault(both).await, (Reason::InvalidField, "session".to_owned()));
    assert_eq!(fault(ExplainWaitRequest::default()).await, (Reason::InvalidField, "session".to_owned()));
    // What is said to help does help.
    assert!(within(client.release(held)).await.expect("answered").reason.is_done());
    assert!(within(reply).await.expect("answered").reason.is_done());
    let told = explain(&client, &of_group(group)).await;
    assert_eq!((told.waits_for, told.fit, told.nodes), (WAITS_FOR_NOTHING, 2, None));
    add(&client, vec![node("large", 5, 4096, 0)]).await;
    granted(within(placed).await.expect("answered"));
    audit(&client).await;
    server.stop().await;
}

#[tokio::test]
async fn without_planners_nobody_explains() {
    let server = TestServer::start(1);
    let client = server.client().await;
    let asked = within(client.explain_wait(&of_placement(client.hello().session, 1))).await;
    let Err(ClientError::Fault(fault)) = asked else { panic!("a fault: {asked:?}") };
    assert_eq!(fault.reason, Reason::NotServed.into());
    server.stop().await;
}
