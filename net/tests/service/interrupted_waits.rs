//! Groups that wait while their connection is lost. A decision made about them meanwhile stays.

use crate::harness::{self, Peer, TestServer, add, ask, node, place, request, within};
use wharf_net::client::Client;
use wharf_net::protocol::{
    BundleTemplate, CancelRequest, CreateGroupRequest, GROUP_WAITING, GroupReply, Kind, ListGroupsReply,
    ListGroupsRequest, MODE_WAIT_UNTIL, Reason, RemoveGroupReply, RemoveGroupRequest, Resume, STRATEGY_PACK,
    StatusReply, StatusRequest, WireGroup,
};

fn wide() -> CreateGroupRequest {
    let template = BundleTemplate { request: ask(4, 0, 0), count: 1 };
    CreateGroupRequest {
        bundles: vec![template],
        strategy: STRATEGY_PACK,
        mode: MODE_WAIT_UNTIL,
        ..CreateGroupRequest::default()
    }
}

/// Polls until a group waits, and returns it.
async fn waiting_group(client: &Client) -> WireGroup {
    within(async {
        loop {
            let page = client.list_groups(&ListGroupsRequest::default()).await.expect("answered");
            if let Some(group) = page.groups.iter().find(|group| group.state == GROUP_WAITING) {
                return group.id;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// Returns a server with a full node and a peer whose request 1 is a waiting group.
async fn with_waiting_group() -> (TestServer, Client, Peer, Resume, WireGroup) {
    let server = TestServer::start_planning(1, 1);
    let client = server.client().await;
    add(&client, vec![node("a", 4, 64, 0)]).await;
    place(&client, &ask(4, 0, 0)).await;
    let (mut peer, opened) = Peer::open(&server).await;
    peer.send(&request(Kind::CreateGroup, 1, &wide())).await;
    let group = waiting_group(&client).await;
    (server, client, peer, Resume { session: opened.session, token: opened.token }, group)
}

/// Resumes the session while the planner is held. Releases the planner once the server has closed the old
/// connection. Then repeats the group request: it is answered, and no group is created.
async fn assert_stays_ended(server: &TestServer, old: Peer, other: &mut Peer, resume: Resume) {
    let mut peer = Peer::connect(server).await;
    peer.send(&harness::hello(Some(resume))).await;
    within(old.connection.closed()).await;
    // The I/O thread answers this after it has seen the end of the connection that it closed before.
    other.call(Kind::Status, 50, &StatusRequest::default()).await.body::<StatusReply>();
    server.planner_gate.open();
    peer.frame().await;
    peer.send(&request(Kind::CreateGroup, 1, &wide())).await;
    peer.send(&request(Kind::ListGroups, 60, &ListGroupsRequest::default())).await;
    let first = peer.frame().await;
    assert_eq!(first.header.sequence, 1, "the group waits again");
    assert_eq!(first.body::<GroupReply>().reason, Reason::Cancelled.into());
    assert!(peer.frame().await.body::<ListGroupsReply>().groups.is_empty());
    peer.leave().await;
}

#[tokio::test]
async fn a_group_that_was_removed_while_its_connection_was_lost_stays_removed() {
    let (server, client, peer, resume, group) = with_waiting_group().await;
    let (mut other, _) = Peer::open(&server).await;
    server.planner_gate.close();
    other.send(&request(Kind::RemoveGroup, 1, &RemoveGroupRequest { group })).await;
    // Requests are taken in order, so the removal is sent to the planner before the connection is lost.
    other.call(Kind::Status, 2, &StatusRequest::default()).await.body::<StatusReply>();
    assert_stays_ended(&server, peer, &mut other, resume).await;
    let removed = other.frame().await.body::<RemoveGroupReply>();
    assert_eq!(removed.reason, Reason::Done.into());
    within(client.close()).await;
    server.stop().await;
}

#[tokio::test]
async fn a_group_whose_wait_was_cancelled_stays_cancelled_when_the_connection_is_lost() {
    let (server, client, mut peer, resume, _) = with_waiting_group().await;
    let (mut other, _) = Peer::open(&server).await;
    server.planner_gate.close();
    peer.send(&request(Kind::CancelWait, 2, &CancelRequest { sequence: 1 })).await;
    // Requests are taken in order, so the wait is cancelled before this one is answered.
    peer.call(Kind::Status, 3, &StatusRequest::default()).await.body::<StatusReply>();
    assert_stays_ended(&server, peer, &mut other, resume).await;
    within(client.close()).await;
    server.stop().await;
}
