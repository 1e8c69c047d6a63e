//! Tenants that are bound to queues: nothing that they get is charged to no queue.

use std::time::Duration;

use crate::harness::bed::Bed;
use crate::harness::{
    ClientAuthority, TestServer, add, ask, audit, granted, identity, named, node, request, tenant, within,
};
use wharf_core::ids::{AllocationId, Incarnation, NodeId, PartitionId, TenantId};
use wharf_core::request::Placement;
use wharf_core::resource::GpuAssignment;
use wharf_core::state::{Deed, KeptOutcome};
use wharf_net::access::{AccessSettings, Role, TenantLimits};
use wharf_net::client::{Client, ClientConfig, ClientError};
use wharf_net::protocol::*;

/// Tenant 1 is bound to a queue, and tenant 2 is not.
fn settings(queue: Option<&str>) -> AccessSettings {
    AccessSettings {
        tenants: vec![TenantLimits { queue: queue.map(str::to_owned), ..tenant(1) }, tenant(2)],
        identities: vec![
            identity("admin", &[Role::Admin], None),
            identity("one", &[Role::Submit], Some(1)),
            identity("two", &[Role::Submit], Some(2)),
        ],
        by_certificate: true,
        ..AccessSettings::default()
    }
}

/// A server with two nodes of 8 cores, and the queues `team` (10 cores) with `inner` below it, and `other`.
async fn start() -> (TestServer, [Client; 3]) {
    let authority = ClientAuthority::new();
    let server = TestServer::start_secured(&settings(Some("team")), &authority);
    let client = async |name: &str| {
        let certificate = Some(authority.client(name, &[]));
        let config = ClientConfig { certificate, ..server.client_config(Duration::ZERO) };
        within(Client::connect(config)).await.expect("it is known")
    };
    let clients = [client("admin").await, client("one").await, client("two").await];
    add(&clients[0], vec![node("a", 8, 4096, 0), node("b", 8, 4096, 0)]).await;
    (server, clients)
}

pub(super) async fn set_queue(admin: &Client, queue: QueueBody) {
    let set = within(admin.set_queue(&SetQueueRequest { queue })).await.expect("answered");
    assert!(set.reason.is_done(), "{set:?}");
}

pub(super) fn queue(name: &str, parent: &str) -> QueueBody {
    QueueBody { name: name.to_owned(), parent: parent.to_owned(), ..QueueBody::default() }
}

pub(super) fn team() -> QueueBody {
    let capability = AmountsBody { amounts: vec![named("cpu", 10)] };
    QueueBody { capability, ..queue("team", "") }
}

pub(super) fn in_queue(queue: &str, cpu: i64) -> PlaceRequest {
    PlaceRequest { queue: queue.to_owned(), ..ask(cpu, 0, 0) }
}

pub(super) fn job(name: &str, queue: &str) -> SubmitJobRequest {
    let group = TaskGroupBody { request: ask(1, 0, 0), ..TaskGroupBody::default() };
    let job = JobBody {
        name: name.to_owned(),
        queue: queue.to_owned(),
        roles: vec![RoleBody { name: "task".to_owned(), min_member: 0 }],
        tasks: vec![group],
        ..JobBody::default()
    };
    SubmitJobRequest { job }
}

pub(super) async fn place(client: &Client, request: &PlaceRequest) -> PlaceReply {
    within(client.place(request)).await.expect("answered")
}

/// Returns the reason of a refusal, and its fault, which is about the queue.
#[track_caller]
pub(super) fn refused(reason: ReasonCode, fault: Option<Fault>) -> (Reason, String) {
    let fault = fault.expect("a fault");
    assert!(fault.field.ends_with("queue"), "{fault:?}");
    (reason.known().expect("it is known"), fault.message)
}

/// Returns the number of direct placements of a queue.
pub(super) async fn direct(admin: &Client, name: &str) -> u32 {
    let list = within(admin.list_queues(&ListQueuesRequest::default())).await.expect("answered");
    list.queues.iter().find(|status| status.queue.name == name).expect("it is there").direct
}

#[tokio::test]
async fn what_a_bound_tenant_gets_is_charged_to_its_queue() {
    let (server, [admin, one, two]) = start().await;
    // Before the queue is made, the tenant gets nothing, and is told why.
    for request in [ask(1, 0, 0), in_queue("other", 1)] {
        let reply = place(&one, &request).await;
        let (reason, message) = refused(reply.reason, reply.fault);
        assert_eq!(reason, Reason::UnknownQueue, "{message}");
        assert!(message.contains("`tenant-1`") && message.contains("`team`"), "{message}");
    }
    set_queue(&admin, team()).await;
    set_queue(&admin, queue("other", "")).await;
    // A plain placement, one with more to say, and one that names the queue.
    let first = granted(place(&one, &ask(5, 0, 0)).await);
    let not_plain = PlaceRequest { explain: EXPLAIN_FULL, ..ask(2, 0, 0) };
    let not_plain = granted(place(&one, &not_plain).await);
    // So is a batch, also with a part that names the queue.
    let batch = PlaceBatch { requests: vec![ask(1, 0, 0), in_queue("team", 1), in_queue("other", 1)] };
    let replies = within(one.place_batch(&batch)).await.expect("answered").replies;
    let (reason, _) = refused(replies[2].reason, replies[2].fault.clone());
    assert_eq!(reason, Reason::Forbidden, "{replies:?}");
    assert_eq!(direct(&admin, "team").await, 4);
    for reply in replies.into_iter().take(2) {
        let allocation = granted(reply).allocation;
        assert!(within(one.release(allocation)).await.expect("answered").reason.is_done());
    }
    within(async {
        while direct(&admin, "team").await != 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // One that may wait is charged, too.
    let may_wait = PlaceRequest { mode: MODE_WAIT_UNTIL, ..ask(3, 0, 0) };
    granted(place(&one, &may_wait).await);
    assert_eq!((direct(&admin, "team").await, first.allocation.tenant), (3, 1));
    let full = place(&one, &ask(1, 0, 0)).await;
    let (reason, message) = refused(full.reason, full.fault);
    assert_eq!(reason, Reason::OverCap, "{message}");
    // Others are as before: neither the other tenant nor the operator is charged.
    for client in [&two, &admin] {
        granted(place(client, &ask(1, 0, 0)).await);
    }
    assert_eq!((direct(&admin, "team").await, direct(&admin, "other").await), (3, 0));
    for id in [first.allocation, not_plain.allocation] {
        assert!(within(one.release(id)).await.expect("answered").reason.is_done());
    }
    within(async {
        while direct(&admin, "team").await != 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let own = within(one.submit_job(&job("own", ""))).await.expect("answered");
    assert!(own.reason.is_done(), "{own:?}");
    let status = JobStatusRequest { job: own.job, from: 0, limit: 0 };
    let seen = within(one.job_status(&status)).await.expect("answered").job.expect("it is there");
    assert_eq!((seen.queue.as_str(), seen.tenant), ("team", 1));
    let unbound = within(two.submit_job(&job("free", ""))).await.expect("answered");
    let (reason, message) = refused(unbound.reason, unbound.fault);
    assert_eq!(reason, Reason::InvalidField);
    assert!(message.contains("names no queue"), "{message}");
    audit(&admin).await;
    server.stop().await;
}

#[tokio::test]
async fn a_bound_tenant_uses_its_queue_or_one_below_it_only() {
    let (server, [admin, one, two]) = start().await;
    for queue in [team(), queue("inner", "team"), queue("other", "")] {
        set_queue(&admin, queue).await;
    }
    granted(place(&one, &in_queue("inner", 1)).await);
    assert!(within(one.submit_job(&job("inside", "inner"))).await.expect("answered").reason.is_done());
    for outside in ["other", "nobody"] {
        let placed = place(&one, &in_queue(outside, 1)).await;
        let submitted = within(one.submit_job(&job("outside", outside))).await.expect("answered");
        for told in [refused(placed.reason, placed.fault), refused(submitted.reason, submitted.fault)] {
            assert_eq!(told.0, Reason::Forbidden, "{told:?}");
            let parts = ["`tenant-1`", "`team`", outside, "name `team` or a queue below it"];
            assert!(parts.iter().all(|part| told.1.contains(part)), "{told:?}");
        }
    }
    // Its queue has queues below it now, so it names one of these.
    let inner = place(&one, &ask(1, 0, 0)).await;
    let (reason, message) = refused(inner.reason, inner.fault);
    assert!(reason == Reason::InvalidField && message.contains("name one of these"), "{message}");
    granted(place(&two, &in_queue("other", 1)).await);
    assert_eq!((direct(&admin, "inner").await, direct(&admin, "other").await), (1, 1));
    server.stop().await;
}

#[tokio::test]
async fn what_no_queue_is_charged_with_is_refused_to_a_bound_tenant() {
    let (server, [admin, one, two]) = start().await;
    set_queue(&admin, team()).await;
    let batch = PlaceBatch { requests: vec![ask(1, 0, 0), ask(1, 0, 0)] };
    let template = BundleTemplate { request: ask(1, 0, 0), count: 2 };
    let bundles = vec![template];
    let create =
        |mode| CreateGroupRequest { bundles: bundles.clone(), mode, ..CreateGroupRequest::default() };
    let leased = PlaceRequest { lease: 1_000_000_000, ..ask(1, 0, 0) };
    granted(place(&one, &leased).await);
    assert_eq!(direct(&admin, "team").await, 1, "a lease is charged as anything else");
    server.pass(2_000_000_000);
    within(async {
        while direct(&admin, "team").await > 0 {
            audit(&admin).await;
        }
    })
    .await;
    // A tenant without a queue may do all of this.
    assert!(within(two.place_batch(&batch)).await.expect("answered").replies[0].reason.is_done());
    let group = within(two.create_group(&create(MODE_NOW))).await.expect("answered").group.expect("it fits");
    // Bound later: it keeps what it has, ends it, and gets no more than its queue.
    let mut bound = settings(Some("team"));
    bound.tenants[1].queue = Some("team".to_owned());
    server.shared.sessions.set_access(&bound);
    let grow = GrowGroupRequest { group: group.id, bundles: bundles.clone(), ..GrowGroupRequest::default() };
    match within(two.grow_group(&grow)).await {
        Err(ClientError::Fault(fault)) => {
            let (reason, message) = refused(fault.reason, Some(fault));
            assert_eq!(reason, Reason::NotSupportedYet);
            assert!(message.contains("`team`") && message.contains("create another group"), "{message}");
        }
        other => panic!("a fault: {other:?}"),
    }
    granted(place(&two, &ask(1, 0, 0)).await);
    assert_eq!(direct(&admin, "team").await, 1);
    assert!(within(two.remove_group(group.id)).await.expect("answered").reason.is_done());
    // And without a binding again.
    server.shared.sessions.set_access(&settings(None));
    granted(place(&one, &ask(1, 0, 0)).await);
    assert_eq!(direct(&admin, "team").await, 1);
    server.stop().await;
}

pub(super) fn group(queue: &str, cpu: i64, count: u32) -> CreateGroupRequest {
    let bundles = vec![BundleTemplate { request: in_queue(queue, cpu), count }];
    CreateGroupRequest { bundles, ..CreateGroupRequest::default() }
}

pub(super) async fn create(client: &Client, request: &CreateGroupRequest) -> GroupReply {
    within(client.create_group(request)).await.expect("answered")
}

#[tokio::test]
async fn a_bound_tenant_has_groups_that_are_charged_to_its_queue() {
    let (server, [admin, one, two]) = start().await;
    let missing = create(&one, &group("", 1, 1)).await;
    assert_eq!(refused(missing.reason, missing.fault).0, Reason::UnknownQueue);
    for queue in [team(), queue("other", "")] {
        set_queue(&admin, queue).await;
    }
    // It names no queue, or its own. The cap of 10 cores holds for all that it has.
    let made = create(&one, &group("", 2, 3)).await.group.expect("it fits");
    assert_eq!((made.state, made.id.tenant, direct(&admin, "team").await), (GROUP_PLACED, 1, 3));
    granted(place(&one, &ask(2, 0, 0)).await);
    let full = create(&one, &group("team", 1, 3)).await;
    let (reason, message) = refused(full.reason, full.fault);
    assert_eq!(reason, Reason::OverCap);
    assert!(message.contains("the cap of queue `team` forbids it: of cpu 10, 8 are in use"), "{message}");
    let outside = create(&one, &group("other", 1, 1)).await;
    assert_eq!(refused(outside.reason, outside.fault).0, Reason::Forbidden);
    let [mut mixed, of_two] = [group("", 1, 1), group("other", 1, 1)];
    mixed.bundles.extend(of_two.bundles.clone());
    let mixed = create(&two, &mixed).await;
    assert_eq!(mixed.fault.expect("two queues").field, "bundles[1].queue");
    // Growth, shrinking and removal are charged, too.
    let grow = |cpu, queue: &str| {
        let bundles = group(queue, cpu, 1).bundles;
        GrowGroupRequest { group: made.id, bundles, ..GrowGroupRequest::default() }
    };
    let named = within(one.grow_group(&grow(1, "team"))).await;
    assert!(
        matches!(&named, Err(ClientError::Fault(fault)) if fault.field == "bundles[0].queue"),
        "{named:?}"
    );
    let large = within(one.grow_group(&grow(3, ""))).await.expect("answered");
    assert_eq!(refused(large.reason, large.fault).0, Reason::OverCap);
    assert!(within(one.grow_group(&grow(2, ""))).await.expect("answered").group.is_some());
    assert_eq!(direct(&admin, "team").await, 5);
    // One that may wait gets what is given back.
    let wait = CreateGroupRequest { mode: MODE_WAIT_UNTIL, ..group("", 2, 2) };
    let (_, waits) = within(one.call_waiting::<kinds::CreateGroup>(&wait)).await.expect("sent");
    assert_eq!(direct(&admin, "team").await, 5, "the cap is full");
    let shrink = ShrinkGroupRequest { group: made.id, bundles: vec![3] };
    assert!(within(one.shrink_group(&shrink)).await.expect("answered").group.is_some());
    assert!(within(one.remove_group(made.id)).await.expect("answered").reason.is_done());
    let waited = within(waits).await.expect("answered").group.expect("it has room");
    let list = within(one.list_groups(&ListGroupsRequest { after: None, limit: 0 })).await.expect("answered");
    assert_eq!(list.groups.iter().map(|group| group.id).collect::<Vec<_>>(), [waited.id]);
    within(async {
        while direct(&admin, "team").await != 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // A tenant without a binding may name a queue, or none.
    assert!(create(&two, &group("other", 1, 2)).await.group.is_some());
    assert!(create(&two, &group("", 1, 1)).await.group.is_some());
    assert_eq!(direct(&admin, "other").await, 2);
    audit(&admin).await;
    server.stop().await;
}

/// A crash came after the first placement of a batch, and the tenant is bound to a queue when its client asks again. What was
/// placed stays, and nothing more is placed without a charge.
#[test]
fn a_batch_that_a_crash_interrupted_places_no_more_for_a_tenant_that_is_bound_since() {
    let batch = PlaceBatch { requests: vec![ask(1, 0, 0), ask(1, 0, 0)] };
    let batch = request(Kind::PlaceBatch, 1, &batch);
    let mut bed = Bed::new();
    bed.shared.set_access(&settings(None));
    let (key, reply) = bed.greet_as(&["one"], false, None);
    let hello: HelloReply = reply.body();
    bed.service.receive(key, &batch, bed.now);
    bed.run_shard();
    bed.lose(key);
    let mut records = bed.shared.session_records();
    let allocation = AllocationId {
        incarnation: Incarnation(1),
        partition: PartitionId(0),
        sequence: 1,
        tenant: TenantId(1),
    };
    let placement = Placement {
        node: NodeId(1),
        allocation,
        gpus: GpuAssignment::default(),
        alternative: 0,
        units: None,
    };
    let placed = Deed::Placed(placement.into(), Some("gone".into()));
    records[0].outcomes.get_mut(&1).expect("it was answered").outcome = KeptOutcome::Parts(vec![(0, placed)]);
    // The settings have the binding from the start on, or it comes with a reload after the client has connected.
    for before in [Some("team"), None] {
        let mut bed = Bed::restored(records.clone(), bed.now);
        bed.shared.set_access(&settings(before));
        let resume = Some(Resume { session: hello.session, token: hello.token });
        let (key, _) = bed.greet_as(&["one"], false, resume);
        bed.shared.set_access(&settings(Some("team")));
        bed.service.receive(key, &batch, bed.now);
        bed.write();
        let replies = bed.replies(key);
        let reply: PlaceBatchReply = replies.first().expect("no shard is asked").body();
        let [first, second] = &reply.replies[..] else { panic!("two parts: {reply:?}") };
        assert_eq!(first.placed.as_ref().map(|placed| placed.allocation), Some(allocation.into()));
        assert!(second.placed.is_none(), "{second:?}");
        let (reason, message) = refused(second.reason, second.fault.clone());
        // The bed keeps no queues. A service that does charges the second part.
        assert_eq!(reason, Reason::NotServed);
        assert!(message.contains("bound to queue `team`"), "{message}");
    }
}
