//! Certificates, roles and tenants: what each peer may do, and what it cannot reach by any id.

use std::time::Duration;

use crate::harness::bed::Bed;
use crate::harness::{
    ClientAuthority, TestServer, add, ask, audit, extended, header, identity, node, request, tenant, within,
};
use wharf_core::ids::TenantId;
use wharf_net::access::{AccessSettings, Identity, Role};
use wharf_net::client::{Client, ClientConfig, ClientError};
use wharf_net::codec::decode_body;
use wharf_net::protocol::*;

/// Two tenants with a client each, and clients of the operator.
pub(crate) fn settings() -> AccessSettings {
    AccessSettings {
        tenants: vec![tenant(1), tenant(2)],
        identities: vec![
            identity("admin", &[Role::Admin], None),
            identity("observer", &[Role::Observer], None),
            identity("planner", &[Role::Planner], None),
            Identity { nodes: Some(vec!["gpu-*".to_owned()]), ..identity("agent", &[Role::NodeAgent], None) },
            identity("one", &[Role::Submit], Some(1)),
            identity("two", &[Role::Submit], Some(2)),
            identity("spiffe://test/one", &[Role::Submit], Some(1)),
        ],
        by_certificate: true,
        ..AccessSettings::default()
    }
}

/// A server, and what makes clients of it.
struct Secured {
    server: TestServer,
    authority: ClientAuthority,
}

impl Secured {
    fn start() -> Self {
        let authority = ClientAuthority::new();
        Self { server: TestServer::start_secured(&settings(), &authority), authority }
    }

    fn config(&self, name: &str) -> ClientConfig {
        let certificate = Some(self.authority.client(name, &[]));
        ClientConfig { certificate, ..self.server.client_config(Duration::ZERO) }
    }

    async fn client(&self, name: &str) -> Client {
        within(Client::connect(self.config(name))).await.expect("it is known")
    }
}

/// Returns the fault of a refused call.
fn fault<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> Fault {
    match answer {
        Err(ClientError::Fault(fault)) => fault,
        other => panic!("a fault: {other:?}"),
    }
}

pub(crate) fn is_forbidden<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> Fault {
    let fault = fault(answer);
    assert_eq!(fault.reason, Reason::Forbidden.into(), "{fault:?}");
    fault
}

/// What a tenant's client waits for is not there for another one.
#[tokio::test]
async fn a_wait_is_explained_to_its_tenant_and_to_the_operator() {
    let secured = Secured::start();
    let [one, two, observer] =
        [secured.client("one").await, secured.client("two").await, secured.client("observer").await];
    let place = PlaceRequest { mode: MODE_WAIT_UNTIL, ..ask(1, 0, 0) };
    let (sequence, reply) = within(one.call_waiting::<kinds::Place>(&place)).await.expect("sent");
    let session = Some(one.hello().session);
    let explain = ExplainWaitRequest { session, sequence, ..ExplainWaitRequest::default() };
    // On the same connection, it comes after the wait.
    let told = within(one.explain_wait(&explain)).await.expect("answered");
    assert!(told.reason.is_done() && told.waits_for == WAITS_FOR_NODE, "{told:?}");
    let told = within(observer.explain_wait(&explain)).await.expect("answered");
    assert!(told.reason.is_done() && told.needed == 1, "{told:?}");
    let hidden = within(two.explain_wait(&explain)).await.expect("answered");
    assert_eq!((hidden.reason, hidden.nodes), (Reason::UnknownWait.into(), None));
    let group = Some(WireGroup { incarnation: 1, number: 0, tenant: 1 });
    let of_group = ExplainWaitRequest { group, ..ExplainWaitRequest::default() };
    is_forbidden(within(two.explain_wait(&of_group)).await);
    is_forbidden(within(secured.client("agent").await.explain_wait(&explain)).await);
    assert!(within(one.cancel_wait(sequence)).await.expect("answered").waited);
    assert_eq!(within(reply).await.expect("answered").reason, Reason::Cancelled.into());
    secured.server.stop().await;
}

/// The job of a tenant is not there for another one, and belongs to who submitted it.
#[tokio::test]
async fn jobs_are_seen_by_their_tenant_and_queues_are_made_by_an_admin() {
    let secured = Secured::start();
    let [admin, one, two, observer] = [
        secured.client("admin").await,
        secured.client("one").await,
        secured.client("two").await,
        secured.client("observer").await,
    ];
    let queue = QueueBody { name: "of-one".to_owned(), tenant: Some(1), ..QueueBody::default() };
    let set = SetQueueRequest { queue };
    is_forbidden(within(one.set_queue(&set)).await);
    assert!(within(admin.set_queue(&set)).await.expect("answered").reason.is_done());
    let role = RoleBody { name: "task".to_owned(), min_member: 0 };
    let group = TaskGroupBody { request: ask(1, 0, 0), ..TaskGroupBody::default() };
    let job = JobBody {
        name: "train".to_owned(),
        queue: "of-one".to_owned(),
        roles: vec![role],
        tasks: vec![group],
        ..JobBody::default()
    };
    let submit = SubmitJobRequest { job };
    is_forbidden(within(observer.submit_job(&submit)).await);
    let foreign = within(two.submit_job(&submit)).await.expect("answered");
    assert_eq!(foreign.reason, Reason::Forbidden.into(), "{foreign:?}");
    let own = within(one.submit_job(&submit)).await.expect("answered");
    assert!(own.reason.is_done(), "{own:?}");
    // So is a placement charged to a queue of one's own only.
    let place = PlaceRequest { queue: "of-one".to_owned(), ..ask(1, 0, 0) };
    let foreign = within(two.place(&place)).await.expect("answered");
    assert_eq!(foreign.reason, Reason::Forbidden.into(), "{foreign:?}");
    assert_eq!(foreign.fault.map(|fault| fault.field), Some("queue".to_owned()));
    let own_place = within(one.place(&place)).await.expect("answered");
    assert_eq!(own_place.reason, Reason::Infeasible.into(), "there are no nodes: {own_place:?}");
    let status = JobStatusRequest { job: own.job, from: 0, limit: 0 };
    let seen = within(one.job_status(&status)).await.expect("answered");
    assert_eq!(seen.job.map(|job| job.tenant), Some(1));
    let hidden = within(two.job_status(&status)).await.expect("answered");
    assert_eq!(hidden.reason, Reason::UnknownJob.into(), "{hidden:?}");
    let explain = ExplainJobRequest { job: own.job, task: None };
    let told = within(one.explain_job(&explain)).await.expect("answered");
    assert_eq!(told.job.map(|job| job.tenant), Some(1));
    let told = within(observer.explain_job(&explain)).await.expect("answered");
    assert!(told.reason.is_done() && told.pending != 0, "{told:?}");
    let hidden = within(two.explain_job(&explain)).await.expect("answered");
    assert_eq!((hidden.reason, hidden.job), (Reason::UnknownJob.into(), None));
    is_forbidden(within(secured.client("agent").await.explain_job(&explain)).await);
    let cancelled =
        within(two.cancel_job(&CancelJobRequest { job: own.job, grace: 0 })).await.expect("answered");
    assert_eq!(cancelled.reason, Reason::UnknownJob.into(), "{cancelled:?}");
    let listed = within(two.list_jobs(&ListJobsRequest::default())).await.expect("answered");
    assert_eq!(listed.jobs, []);
    let all = within(observer.list_jobs(&ListJobsRequest::default())).await.expect("answered");
    assert_eq!(all.jobs.len(), 1);
    let of = NodeTypeBody { node: node("small", 4, 4096, 0), max: 3, ..NodeTypeBody::default() };
    let plan = PlanNodesRequest { types: vec![of], ..PlanNodesRequest::default() };
    for (client, jobs) in [(&one, 1), (&two, 0), (&observer, 1)] {
        let made = within(client.plan_nodes(&plan)).await.expect("answered");
        assert_eq!((made.types[0].needed, made.starts.len()), (1, jobs), "{made:?}");
    }
    let queues = within(two.list_queues(&ListQueuesRequest::default())).await.expect("answered");
    assert_eq!(queues.queues, []);
    secured.server.stop().await;
}

#[tokio::test]
async fn who_shows_no_certificate_of_the_authority_gets_no_session() {
    let secured = Secured::start();
    let none = ClientConfig { certificate: None, ..secured.config("admin") };
    let refused = within(Client::connect(none)).await.err().expect("no certificate").to_string();
    assert!(refused.contains("wants a certificate") && refused.contains("--cert"), "{refused}");
    let foreign = Some(ClientAuthority::new().client("admin", &[]));
    let foreign = ClientConfig { certificate: foreign, ..secured.config("admin") };
    let refused = within(Client::connect(foreign)).await.err().expect("another authority").to_string();
    assert!(refused.contains("does not accept the certificate"), "{refused}");
    let unknown = within(Client::connect(secured.config("stranger"))).await;
    let refused = is_forbidden(unknown.map(drop));
    assert!(refused.message.contains("`stranger`") && refused.message.contains("has none"), "{refused:?}");
    secured.client("admin").await;
    secured.server.stop().await;
}

/// New connections see new authorities and lists at once. Connections that are open stay.
#[tokio::test]
async fn authorities_and_revoked_certificates_are_replaced_while_the_server_runs() {
    let secured = Secured::start();
    let config = |serial| {
        let certificate = Some(secured.authority.numbered_client("observer", &[], serial));
        ClientConfig { certificate, ..secured.server.client_config(Duration::ZERO) }
    };
    let open = within(Client::connect(config(7))).await.expect("it is known");
    let trust = secured.server.clients.as_ref().expect("clients show certificates");
    let own = secured.authority.certificate();
    trust
        .set(std::slice::from_ref(&own), vec![secured.authority.revoke(7)])
        .expect("a list of the authority");
    // Neither a client that is new nor one that could resume the handshake of its open connection.
    for revoked in [within(Client::connect(config(7))).await, within(open.connect_another()).await] {
        let refused = revoked.err().expect("it is revoked").to_string();
        assert!(refused.contains("is revoked"), "{refused}");
    }
    let known = within(Client::connect(config(8))).await.expect("another certificate of the authority");
    let other = ClientAuthority::new();
    trust.set(&[other.certificate()], Vec::new()).expect("an authority");
    for foreign in [within(Client::connect(config(8))).await, within(known.connect_another()).await] {
        let refused = foreign.err().expect("another authority").to_string();
        assert!(refused.contains("does not accept the certificate"), "{refused}");
    }
    assert!(trust.set(&[], Vec::new()).is_err(), "there must be an authority");
    trust.set(&[own], Vec::new()).expect("an authority");
    within(Client::connect(config(7))).await.expect("it is known again");
    within(open.list_nodes(&ListRequest::default())).await.expect("the connection stayed open");
    secured.server.stop().await;
}

#[tokio::test]
async fn a_uri_in_the_certificate_is_a_name_and_comes_first() {
    let secured = Secured::start();
    let certificate = Some(secured.authority.client("stranger", &["spiffe://test/one"]));
    let config = ClientConfig { certificate, ..secured.config("admin") };
    let client = within(Client::connect(config)).await.expect("it is known by its URI");
    is_forbidden(within(client.list_nodes(&ListRequest::default())).await);
    secured.server.stop().await;
}

#[tokio::test]
async fn each_role_sends_its_own_messages_and_no_others() {
    let secured = Secured::start();
    let admin = secured.client("admin").await;
    add(&admin, vec![node("gpu-1", 8, 8192, 0)]).await;
    let before = audit(&admin).await.books_hash;
    for (name, may) in
        [("observer", [true, false, false]), ("planner", [true, true, false]), ("one", [false; 3])]
    {
        let client = secured.client(name).await;
        let listed = within(client.list_nodes(&ListRequest::default())).await;
        let statement = within(client.submit_statement(&StatementRequest::default())).await;
        let drained = within(client.drain_nodes(&DrainRequest::default())).await;
        let refused = |fault: Option<&ClientError>| matches!(fault, Some(ClientError::Fault(fault)) if fault.reason == Reason::Forbidden.into());
        let refused = [
            refused(listed.as_ref().err()),
            refused(statement.as_ref().err()),
            refused(drained.as_ref().err()),
        ];
        assert_eq!(refused.map(|refused| !refused), may, "{name}");
    }
    let refused =
        is_forbidden(within(secured.client("one").await.drain_nodes(&DrainRequest::default())).await);
    assert!(refused.message.contains("drain_nodes") && refused.message.contains("admin"), "{refused:?}");
    let observer = secured.client("observer").await;
    let refused = is_forbidden(within(observer.place(&ask(1, 1, 0))).await);
    assert!(refused.message.contains("submit"), "{refused:?}");
    assert_eq!(audit(&admin).await.books_hash, before, "nothing changed");
    secured.server.stop().await;
}

#[tokio::test]
async fn an_agent_reports_nodes_of_its_names_only() {
    let secured = Secured::start();
    let agent = secured.client("agent").await;
    let report = |name: &str| ReportRequest {
        node: NodeBody { identity: "m".to_owned(), ..node(name, 1, 1024, 0) },
        boot: "b".to_owned(),
        version: 1,
        gpus: Vec::new(),
    };
    let refused = is_forbidden(within(agent.report(&report("login"))).await);
    assert!(refused.field == "node.name" && refused.message.contains("gpu-*"), "{refused:?}");
    let reported = within(agent.report(&report("gpu-7"))).await.expect("it may");
    assert_eq!(reported.reason, Reason::Done.into(), "{reported:?}");
    secured.server.stop().await;
}

#[tokio::test]
async fn no_id_reaches_what_belongs_to_another_tenant() {
    let secured = Secured::start();
    let admin = secured.client("admin").await;
    add(&admin, vec![node("a", 8, 8192, 0), node("b", 8, 8192, 0)]).await;
    let one = secured.client("one").await;
    let two = secured.client("two").await;
    let placed = within(one.place(&PlaceRequest { session_lease: false, ..ask(1, 1, 0) })).await.unwrap();
    let id = placed.placed.expect("it fits").allocation;
    assert_eq!(id.tenant, 1);
    let template = BundleTemplate { request: ask(1, 1, 0), count: 2 };
    let create = CreateGroupRequest { bundles: vec![template.clone()], ..CreateGroupRequest::default() };
    let group = within(one.create_group(&create)).await.unwrap().group.expect("it fits");
    assert_eq!((group.id.tenant, group.bundles.len()), (1, 2));
    let bundle = group.bundles[0].placed.as_ref().expect("it is placed").allocation;
    assert_eq!(bundle.tenant, 1, "bundles belong to the tenant of their group");
    let before = audit(&admin).await.books_hash;

    // By their ids.
    is_forbidden(within(two.release(id)).await);
    let batch = ReleaseBatch { requests: vec![ReleaseRequest { allocation: id }] };
    assert_eq!(is_forbidden(within(two.release_batch(&batch)).await).field, "requests[0].allocation");
    let renew = RenewRequest { allocations: vec![id], lease: 1_000_000_000, ..RenewRequest::default() };
    is_forbidden(within(two.renew(&renew)).await);
    let session = Some(one.hello().session);
    let renew = RenewRequest { allocations: Vec::new(), session, lease: 1_000_000_000 };
    assert_eq!(is_forbidden(within(two.renew(&renew)).await).field, "session");
    is_forbidden(within(two.group_status(group.id)).await);
    is_forbidden(within(two.remove_group(group.id)).await);
    let grow = GrowGroupRequest { group: group.id, bundles: vec![template], ..GrowGroupRequest::default() };
    is_forbidden(within(two.grow_group(&grow)).await);
    let shrink = ShrinkGroupRequest { group: group.id, bundles: vec![0] };
    is_forbidden(within(two.shrink_group(&shrink)).await);
    let into = |allocation, group| PlaceIntoRequest {
        allocation,
        group,
        demand: ask(1, 1, 0).demand,
        ..PlaceIntoRequest::default()
    };
    is_forbidden(within(two.place_into(&into(Some(bundle), None))).await);
    is_forbidden(within(two.place_into(&into(None, Some(group.id)))).await);

    // By ids that say that they are the tenant's own.
    let own = |id: WireAllocation| WireAllocation { tenant: 2, ..id };
    let released = within(two.release(own(id))).await.expect("an answer");
    assert_eq!(released.reason, Reason::UnknownAllocation.into());
    let reply = within(two.place_into(&into(Some(own(bundle)), None))).await.expect("an answer");
    assert!(reply.placed.is_none(), "{reply:?}");
    let status = within(two.group_status(WireGroup { tenant: 2, ..group.id })).await.expect("an answer");
    assert_eq!(status.fault.expect("there is no such group").reason, Reason::UnknownGroup.into());

    // By lists and owners.
    let groups = |client: &Client| {
        let client = client.clone();
        async move {
            within(client.list_groups(&ListGroupsRequest::default())).await.expect("listed").groups.len()
        }
    };
    assert_eq!((groups(&one).await, groups(&two).await, groups(&admin).await), (1, 0, 1));
    let owned = PlaceRequest { owner: 1, ..ask(1, 1, 0) };
    assert_eq!(is_forbidden(within(two.place(&owned)).await).field, "owner");

    assert_eq!(audit(&admin).await.books_hash, before, "nothing changed");
    // The tenant itself and the operator may.
    assert!(within(one.place_into(&into(Some(bundle), None))).await.unwrap().placed.is_some());
    assert_eq!(within(one.release(id)).await.unwrap().reason, Reason::Done.into());
    let removed = within(admin.remove_group(group.id)).await.unwrap();
    assert_eq!(removed.reason, Reason::Done.into(), "{removed:?}");
    secured.server.stop().await;
}

/// The tenant of a session outlives restarts, because its token does.
#[test]
fn a_session_is_resumed_by_its_own_tenant_only() {
    let mut bed = Bed::new();
    bed.shared.set_access(&settings());
    let (key, reply) = bed.greet_as(&["one"], true, None);
    let hello: HelloReply = decode_body(&reply.payload).expect("a hello").0;
    bed.lose(key);
    let records = bed.shared.session_records();
    let now = bed.now;
    let mut bed = Bed::restored(records, now);
    bed.shared.set_access(&settings());
    let resume = Some(Resume { session: hello.session, token: hello.token });
    for name in ["two", "admin"] {
        let (_, refused) = bed.greet_as(&[name], true, resume);
        let fault: Fault = decode_body(&refused.payload).expect("a fault").0;
        assert_eq!(fault.reason, Reason::UnknownSession.into(), "{name}: {fault:?}");
    }
    let mut forged = resume;
    if let Some(resume) = &mut forged {
        resume.token[14..].copy_from_slice(&2u16.to_le_bytes());
    }
    let (_, refused) = bed.greet_as(&["two"], true, forged);
    let fault: Fault = decode_body(&refused.payload).expect("a fault").0;
    assert_eq!(fault.reason, Reason::UnknownSession.into());
    let (_, resumed) = bed.greet_as(&["one"], true, resume);
    assert!(decode_body::<HelloReply>(&resumed.payload).expect("a hello").0.resumed);
}

/// Sends a request for the status of a group, and returns the fault of its reply.
fn asks(bed: &mut Bed, key: usize, sequence: u64) -> Option<Fault> {
    let group = WireGroup { incarnation: 1, number: 1, tenant: 1 };
    bed.service.receive(key, &request(Kind::GroupStatus, sequence, &GroupStatusRequest { group }), bed.now);
    bed.run_planner();
    let reply = bed.replies(key).remove(0);
    let is_error = reply.header.flags & wharf_net::codec::FLAG_ERROR != 0;
    is_error.then(|| decode_body(&reply.payload).expect("a fault").0)
}

#[test]
fn new_rights_hold_from_the_next_request_on() {
    let mut bed = Bed::new();
    bed.shared.set_access(&settings());
    let (key, _) = bed.greet_as(&["one"], true, None);
    assert_eq!(asks(&mut bed, key, 1), None);
    let without = AccessSettings {
        identities: settings().identities.into_iter().filter(|identity| identity.name != "one").collect(),
        ..settings()
    };
    bed.shared.set_access(&without);
    assert_eq!(asks(&mut bed, key, 2).expect("no rights").reason, Reason::Forbidden.into());
    let mut moved = settings();
    moved.identities.iter_mut().filter(|identity| identity.name == "one").for_each(|identity| {
        identity.tenant = Some(TenantId(2));
    });
    bed.shared.set_access(&moved);
    let fault = asks(&mut bed, key, 3).expect("another tenant");
    assert!(fault.message.contains("open a new one"), "{fault:?}");
    bed.shared.set_access(&settings());
    assert_eq!(asks(&mut bed, key, 4), None);
}

#[test]
fn a_tenant_beyond_its_rate_is_told_when_to_ask_again() {
    let mut bed = Bed::new();
    let mut limited = settings();
    limited.tenants[0].requests_per_second = Some(2);
    bed.shared.set_access(&limited);
    let (key, _) = bed.greet_as(&["one"], true, None);
    let (other, _) = bed.greet_as(&["one"], true, None);
    assert_eq!(asks(&mut bed, key, 1), None);
    assert_eq!(asks(&mut bed, other, 1), None, "all connections of the tenant count");
    let fault = asks(&mut bed, key, 2).expect("it is used up");
    assert_eq!((fault.reason, fault.retry_after_ms), (Reason::Overloaded.into(), 500));
    bed.now = wharf_core::time::Time(bed.now.0 + 500_000_000);
    assert_eq!(asks(&mut bed, key, 3), None);
    assert!(asks(&mut bed, other, 2).is_some());
}

#[test]
fn a_tenant_has_so_many_requests_in_flight_over_all_connections() {
    let mut bed = Bed::new();
    let mut limited = settings();
    limited.tenants[0].in_flight_max = Some(2);
    bed.shared.set_access(&limited);
    let (key, _) = bed.greet_as(&["one"], true, None);
    let (other, _) = bed.greet_as(&["one"], true, None);
    let status = |sequence| {
        let group = WireGroup { incarnation: 1, number: 1, tenant: 1 };
        request(Kind::GroupStatus, sequence, &GroupStatusRequest { group })
    };
    bed.service.receive(key, &status(1), bed.now);
    bed.service.receive(other, &status(1), bed.now);
    bed.service.receive(other, &status(2), bed.now);
    let refused = bed.replies(other).remove(0);
    let fault: Fault = decode_body(&refused.payload).expect("a fault").0;
    assert!(fault.reason == Reason::Overloaded.into() && fault.retry_after_ms > 0, "{fault:?}");
    bed.run_planner();
    assert_eq!((bed.replies(key).len(), bed.replies(other).len()), (1, 1));
    // Answered requests count no more, and neither do those of a connection that is gone.
    bed.lose(key);
    bed.service.receive(other, &[status(3), status(4)].concat(), bed.now);
    assert!(bed.replies(other).is_empty());
    bed.run_planner();
    assert_eq!(bed.replies(other).len(), 2);
}

/// Data before the handshake could be replayed by anyone who records it.
#[tokio::test]
async fn the_server_accepts_no_early_data() {
    let server = TestServer::start(1);
    let endpoint = crate::harness::endpoint(&server, ALPN);
    let connect = || endpoint.connect(server.address, crate::harness::SERVER_NAME).expect("an address");
    let first = within(connect()).await.expect("a handshake");
    // The ticket for a later connection comes after the handshake.
    let (mut send, mut recv) = within(first.open_bi()).await.expect("a stream");
    let hello = Hello { version_min: 1, version_max: 1, client: "early".to_owned(), resume: None };
    within(send.write_all(&extended(header(Kind::Hello, 0), &[], &hello))).await.expect("sent");
    within(recv.read_chunk(1, true)).await.expect("an answer");
    first.close(0u32.into(), b"");
    assert!(connect().into_0rtt().is_err(), "a ticket allows early data");
    server.stop().await;
}
