//! The default queue: what names no queue, and whose tenant is bound to none, is charged to it and waits there.

use std::time::Duration;

use super::explain_waits::of_group;
use super::jobs_direct::{held_of, of_placement};
use super::long_waits::Exact;
use super::tenant_queues::{create, direct, group, in_queue, job, place, queue, refused, set_queue, team};
use crate::harness::{
    self, ClientAuthority, TestServer, add, ask, audit, granted, header, identity, node, tenant, units,
    within,
};
use wharf_net::access::{AccessSettings, Role, TenantLimits};
use wharf_net::client::{Client, ClientConfig};
use wharf_net::protocol::*;

/// Everyone may do everything. What names no queue goes to this one.
fn settings(default_queue: Option<&str>) -> AccessSettings {
    AccessSettings { default_queue: default_queue.map(str::to_owned), ..AccessSettings::default() }
}

/// A server with two nodes of 8 cores, whose default queue is `team`. There are no queues yet.
async fn start() -> (TestServer, Client) {
    let server = TestServer::start_planning(2, 1);
    server.shared.sessions.set_access(&settings(Some("team")));
    let client = server.client().await;
    add(&client, vec![node("a", 8, 4096, 0), node("b", 8, 4096, 0)]).await;
    (server, client)
}

async fn listed(client: &Client, name: &str) -> QueueStatusBody {
    let list = within(client.list_queues(&ListQueuesRequest::default())).await.expect("answered");
    list.queues.into_iter().find(|status| status.queue.name == name).expect("it is there")
}

/// Returns once the queue is asked for so many cores by what waits in it, and has so many in use.
async fn until_asked(client: &Client, name: &str, [asked, held]: [i64; 2]) {
    let sum = |of: &[NamedAmount]| of.iter().map(|named| named.amount).sum::<i64>();
    within(async {
        loop {
            let QueueStatusBody { usage, .. } = listed(client, name).await;
            if [sum(&usage.pending), sum(&usage.held)] == [units(asked), units(held)] {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Returns why each kind of request is refused that names no queue.
async fn refusals(client: &Client) -> Vec<(Reason, String)> {
    let not_plain = PlaceRequest { explain: EXPLAIN_FULL, ..ask(1, 0, 0) };
    let waits = PlaceRequest { mode: MODE_WAIT_UNTIL, ..ask(1, 0, 0) };
    let mut told = Vec::new();
    for request in [ask(1, 0, 0), not_plain, waits] {
        let reply = place(client, &request).await;
        told.push(refused(reply.reason, reply.fault));
    }
    let batch = PlaceBatch { requests: vec![ask(1, 0, 0)] };
    let reply = within(client.place_batch(&batch)).await.expect("answered").replies.remove(0);
    told.push(refused(reply.reason, reply.fault));
    let reply = create(client, &group("", 1, 1)).await;
    told.push(refused(reply.reason, reply.fault));
    let reply = within(client.submit_job(&job("unnamed", ""))).await.expect("answered");
    told.push(refused(reply.reason, reply.fault));
    told
}

#[tokio::test]
async fn what_names_no_queue_is_charged_to_the_default_queue() {
    let (server, client) = start().await;
    for queue in [team(), queue("other", "")] {
        set_queue(&client, queue).await;
    }
    let not_plain = PlaceRequest { explain: EXPLAIN_FULL, ..ask(2, 0, 0) };
    let leased = PlaceRequest { lease: 1_000_000_000, ..ask(1, 0, 0) };
    for request in [&ask(2, 0, 0), &not_plain, &leased] {
        granted(place(&client, request).await);
    }
    let batch = PlaceBatch { requests: vec![ask(1, 0, 0), in_queue("other", 1)] };
    let replies = within(client.place_batch(&batch)).await.expect("answered").replies;
    assert!(replies.iter().all(|reply| reply.reason.is_done()), "{replies:?}");
    assert_eq!((direct(&client, "team").await, direct(&client, "other").await), (4, 1));
    let made = create(&client, &group("", 2, 1)).await.group.expect("it fits");
    assert_eq!(direct(&client, "team").await, 5);
    let grow =
        GrowGroupRequest { group: made.id, bundles: group("", 1, 1).bundles, ..GrowGroupRequest::default() };
    assert!(within(client.grow_group(&grow)).await.expect("answered").group.is_some());
    // The cap of 10 cores holds for all together.
    let full = place(&client, &ask(2, 0, 0)).await;
    let (reason, message) = refused(full.reason, full.fault);
    assert_eq!(reason, Reason::OverCap);
    assert!(message.contains("the cap of queue `team` forbids it: of cpu 10, 9 are in use"), "{message}");
    let large = create(&client, &group("", 1, 2)).await;
    assert_eq!(refused(large.reason, large.fault).0, Reason::OverCap);
    let own = within(client.submit_job(&job("own", ""))).await.expect("answered");
    let status = JobStatusRequest { job: own.job, from: 0, limit: 0 };
    let seen = within(client.job_status(&status)).await.expect("answered").job.expect("it is there");
    assert_eq!(seen.queue, "team");
    assert_eq!(listed(&client, "team").await.jobs, 1);
    // A lease ends there as anywhere.
    server.pass(2_000_000_000);
    within(async {
        while direct(&client, "team").await != 5 {
            audit(&client).await;
        }
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn a_default_queue_that_takes_nothing_is_named_with_its_setting_and_a_remedy() {
    let (server, client) = start().await;
    let told = async |expected: Reason, remedy: &str| {
        for (reason, message) in refusals(&client).await {
            assert_eq!(reason, expected, "{message}");
            let parts = ["`team`", "`jobs.default_queue`", remedy];
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    };
    told(Reason::UnknownQueue, "let an administrator make it").await;
    set_queue(&client, QueueBody { open: false, ..team() }).await;
    told(Reason::InvalidField, "let an administrator open it").await;
    set_queue(&client, team()).await;
    set_queue(&client, queue("inner", "team")).await;
    told(Reason::InvalidField, "name one of these").await;
    // Who names another queue is not concerned.
    granted(place(&client, &in_queue("inner", 1)).await);
    assert_eq!(direct(&client, "inner").await, 1);
    server.stop().await;
    let without_jobs = TestServer::start(1);
    without_jobs.shared.sessions.set_access(&settings(Some("team")));
    let reply = place(&without_jobs.client().await, &ask(1, 0, 0)).await;
    let (reason, message) = refused(reply.reason, reply.fault);
    assert_eq!(reason, Reason::NotServed);
    assert!(message.contains("`jobs.default_queue`") && message.contains("`jobs.enabled`"), "{message}");
    without_jobs.stop().await;
}

#[tokio::test]
async fn what_names_no_queue_waits_as_a_job_of_the_default_queue() {
    let (server, client) = start().await;
    set_queue(&client, team()).await;
    let held = granted(place(&client, &ask(8, 0, 0)).await);
    let request = PlaceRequest { mode: MODE_WAIT_UNTIL, priority: 3, ..ask(5, 0, 0) };
    let (sequence, placed) = within(client.call_waiting::<kinds::Place>(&request)).await.expect("sent");
    let request = CreateGroupRequest { mode: MODE_WAIT_UNTIL, ..group("", 2, 2) };
    let (_, made) = within(client.call_waiting::<kinds::CreateGroup>(&request)).await.expect("sent");
    until_asked(&client, "team", [9, 8]).await;
    let status = within(client.status(&StatusRequest::default())).await.expect("answered");
    assert_eq!((status.waiting.feasible, status.waiting.infeasible), (0, 0), "nothing waits at the shards");
    let of_wait = of_placement(client.hello().session, sequence);
    let told = within(client.explain_wait(&of_wait)).await.expect("answered");
    assert_eq!((told.waits_for, told.priority), (WAITS_FOR_QUEUE, 3), "{told:?}");
    let of_job = ExplainJobRequest { job: told.job, task: None };
    let told = within(async {
        loop {
            let told = client.explain_job(&of_job).await.expect("answered");
            // A cycle has to look at it first.
            if !told.bounds.is_empty() {
                return told;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!((told.bounds[0].queue.as_str(), told.bounds[0].bound), ("team", units(10)), "{told:?}");
    let groups = within(client.list_groups(&ListGroupsRequest::default())).await.expect("answered").groups;
    let told = within(client.explain_wait(&of_group(groups[0].id))).await.expect("answered");
    assert_eq!(told.waits_for, WAITS_FOR_QUEUE, "{told:?}");
    assert!(within(client.release(held.allocation)).await.expect("answered").reason.is_done());
    granted(within(placed).await.expect("answered"));
    let made = within(made).await.expect("answered").group.expect("it has room");
    assert_eq!((made.state, direct(&client, "team").await), (GROUP_PLACED, 3));
    assert_eq!(held_of(&listed(&client, "team").await), units(9));
    audit(&client).await;
    server.stop().await;
}

#[tokio::test]
async fn a_tenant_that_is_bound_keeps_its_own_queue() {
    let authority = ClientAuthority::new();
    let settings = AccessSettings {
        tenants: vec![TenantLimits { queue: Some("team".to_owned()), ..tenant(1) }, tenant(2)],
        identities: vec![
            identity("admin", &[Role::Admin], None),
            identity("one", &[Role::Submit], Some(1)),
            identity("two", &[Role::Submit], Some(2)),
        ],
        by_certificate: true,
        default_queue: Some("all".to_owned()),
    };
    let server = TestServer::start_secured(&settings, &authority);
    let client = async |name: &str| {
        let certificate = Some(authority.client(name, &[]));
        let config = ClientConfig { certificate, ..server.client_config(Duration::ZERO) };
        within(Client::connect(config)).await.expect("it is known")
    };
    let [admin, one, two] = [client("admin").await, client("one").await, client("two").await];
    add(&admin, vec![node("a", 8, 4096, 0)]).await;
    for queue in [team(), queue("all", ""), queue("other", "")] {
        set_queue(&admin, queue).await;
    }
    granted(place(&one, &ask(1, 0, 0)).await);
    let outside = place(&one, &in_queue("all", 1)).await;
    assert_eq!(refused(outside.reason, outside.fault).0, Reason::Forbidden);
    for client in [&two, &admin] {
        granted(place(client, &ask(1, 0, 0)).await);
    }
    // Who is not bound may name any queue.
    granted(place(&two, &in_queue("other", 1)).await);
    let charged = [direct(&admin, "team").await, direct(&admin, "all").await, direct(&admin, "other").await];
    assert_eq!(charged, [1, 2, 1]);
    // The queue of another tenant is nobody else's default.
    set_queue(&admin, QueueBody { tenant: Some(1), ..queue("all", "") }).await;
    let foreign = place(&two, &ask(1, 0, 0)).await;
    let (reason, message) = refused(foreign.reason, foreign.fault);
    assert!(reason == Reason::Forbidden && message.contains("`jobs.default_queue`"), "{message}");
    granted(place(&admin, &ask(1, 0, 0)).await);
    audit(&admin).await;
    server.stop().await;
}

/// What waits keeps its queue when the settings change, also while its client is away. What comes later goes to the new one.
#[tokio::test]
async fn another_default_queue_counts_from_the_next_request_on() {
    let (server, client) = start().await;
    for queue in [team(), queue("later", "")] {
        set_queue(&client, queue).await;
    }
    let held = granted(place(&client, &ask(8, 0, 0)).await);
    let mut exact = Exact::open(&server, None, 2).await;
    let waits = PlaceRequest { mode: MODE_WAIT_UNTIL, ..ask(4, 0, 0) };
    let waits = harness::frame(header(Kind::Place, 1), &waits);
    exact.peer.send(&waits).await;
    until_asked(&client, "team", [4, 8]).await;
    server.shared.sessions.set_access(&settings(Some("later")));
    granted(place(&client, &ask(1, 0, 0)).await);
    let mut exact = exact.lose(&server).await;
    exact.peer.send(&waits).await;
    until_asked(&client, "team", [4, 8]).await;
    assert!(within(client.release(held.allocation)).await.expect("answered").reason.is_done());
    granted(exact.peer.frame().await.body());
    until_asked(&client, "team", [0, 4]).await;
    assert_eq!((direct(&client, "team").await, direct(&client, "later").await), (1, 1));
    // Without the setting, nothing is charged that names no queue, and such a group stays without a queue.
    server.shared.sessions.set_access(&settings(None));
    granted(place(&client, &ask(1, 0, 0)).await);
    let made = create(&client, &group("", 1, 1)).await.group.expect("it fits");
    let unnamed = within(client.submit_job(&job("unnamed", ""))).await.expect("answered");
    let (_, message) = refused(unnamed.reason, unnamed.fault);
    assert!(message.contains("`jobs.default_queue`"), "{message}");
    server.shared.sessions.set_access(&settings(Some("later")));
    let grow =
        GrowGroupRequest { group: made.id, bundles: group("", 1, 1).bundles, ..GrowGroupRequest::default() };
    assert!(within(client.grow_group(&grow)).await.expect("answered").group.is_some());
    assert_eq!((direct(&client, "team").await, direct(&client, "later").await), (1, 1));
    audit(&client).await;
    server.stop().await;
}
