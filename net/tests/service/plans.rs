//! Plans of nodes over the wire.

use crate::harness::{TestServer, add, ask, audit, named, node, pair, within};
use wharf_net::client::{Client, ClientError};
use wharf_net::protocol::*;

fn job(name: &str, count: u32, min_member: u32) -> SubmitJobRequest {
    let group = TaskGroupBody {
        request: ask(1, 0, 0),
        count,
        run_time: Some(60_000_000_000),
        ..TaskGroupBody::default()
    };
    let role = RoleBody { name: "task".to_owned(), min_member: 0 };
    let job = JobBody {
        name: name.to_owned(),
        queue: "batch".to_owned(),
        min_member,
        roles: vec![role],
        tasks: vec![group],
        ..JobBody::default()
    };
    SubmitJobRequest { job }
}

async fn submit(client: &Client, job: &SubmitJobRequest) -> u64 {
    let submitted = within(client.submit_job(job)).await.expect("answered");
    assert!(submitted.reason.is_done(), "{submitted:?}");
    submitted.job
}

fn of_type(name: &str, cpu: i64, max: u32) -> NodeTypeBody {
    NodeTypeBody { node: node(name, cpu, 4096, 0), max, ..NodeTypeBody::default() }
}

async fn plan(client: &Client, request: &PlanNodesRequest) -> PlanNodesReply {
    within(client.plan_nodes(request)).await.expect("answered")
}

#[tokio::test]
async fn a_plan_names_the_nodes_that_jobs_need_and_when_they_start() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    let mut present = node("n", 4, 4096, 0);
    present.labels = vec![pair("node-type", "small")];
    add(&client, vec![present]).await;
    let queue = QueueBody { name: "batch".to_owned(), ..QueueBody::default() };
    assert!(within(client.set_queue(&SetQueueRequest { queue })).await.expect("answered").reason.is_done());
    let runs = submit(&client, &job("runs", 4, 4)).await;
    within(async {
        loop {
            let status = JobStatusRequest { job: runs, from: 0, limit: 0 };
            let status = client.job_status(&status).await.expect("answered");
            if status.tasks.iter().all(|task| task.state == TASK_BOUND) {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let gang = submit(&client, &job("gang", 6, 6)).await;
    let before = audit(&client).await.books_hash;
    let mut request = PlanNodesRequest { types: vec![of_type("small", 4, 3)], ..PlanNodesRequest::default() };
    let made = plan(&client, &request).await;
    assert!(made.reason.is_done(), "{made:?}");
    let types: Vec<_> = made.types.iter().map(|of| (of.present, of.needed, of.launch)).collect();
    assert_eq!(types, [(1, 2, 1)]);
    assert_eq!((made.fit_present, made.fit_needed, made.is_partial), (0, 6, false));
    let starts: Vec<_> = made.starts.iter().map(|start| (start.after, start.job, start.tasks)).collect();
    assert_eq!(starts, [(0, gang, 6)]);
    assert_eq!((made.starts[0].name.as_str(), &*made.waiting), ("gang", &[][..]));
    // With one node less, it starts when the first job has ended.
    request.types[0].max = 2;
    request.types[0].launching = 1;
    request.horizon = 3_600_000_000_000;
    let made = plan(&client, &request).await;
    let [left] = &made.unplaced[..] else { panic!("{made:?}") };
    assert_eq!((left.asker, left.number, left.count), (ASKER_JOB, gang, 6));
    assert_eq!((left.name.as_str(), left.reason), ("gang", UNFIT_TYPE_LIMIT));
    let [start] = &made.starts[..] else { panic!("{made:?}") };
    assert!(start.job == gang && start.after > 0 && start.after <= 60_000_000_000, "{made:?}");
    assert_eq!(audit(&client).await.books_hash, before, "a plan changes nothing");
    server.stop().await;
}

#[tokio::test]
async fn floors_groups_and_new_kinds_are_planned_and_faults_name_their_field() {
    let server = TestServer::start_planning(1, 1);
    let client = server.client().await;
    let mut special = of_type("special", 8, 4);
    special.node.custom = vec![named("fpga", 2)];
    let mut request = PlanNodesRequest { types: vec![special], ..PlanNodesRequest::default() };
    let mut floor = ask(1, 0, 0);
    floor.demand.custom = vec![named("fpga", 1)];
    request.floors = vec![BundlesBody { request: floor, count: 3 }];
    request.groups = vec![PendingGroupBody {
        name: "pg".to_owned(),
        bundles: vec![BundlesBody { request: ask(3, 0, 0), count: 3 }],
        spread: SPREAD_TOGETHER,
        ..PendingGroupBody::default()
    }];
    let made = plan(&client, &request).await;
    assert_eq!((made.types[0].needed, made.unplaced.len()), (2, 1), "{made:?}");
    let left = &made.unplaced[0];
    assert_eq!((left.asker, left.name.as_str(), left.reason), (ASKER_GROUP, "pg", UNFIT_GANG));
    request.groups[0].bundles[0].request = ask(9, 0, 0);
    let made = plan(&client, &request).await;
    let checks = made.unplaced[0].refusal.as_ref().map(|refusal| refusal.checks.clone());
    let checks = checks.expect("the first ones have one");
    assert!(checks.len() == 1 && checks[0].resource == "cpu" && checks[0].nodes == 1, "{checks:?}");
    type Change<'a> = &'a dyn Fn(&mut PlanNodesRequest);
    let faults: [(Change<'_>, &str, &str); 6] = [
        (&|request| request.types.clear(), "types", "at least one"),
        (&|request| request.types[0].min = 9, "types", "raise `max`"),
        (&|request| request.types[0].node.name.clear(), "types[0].node.name", ""),
        (&|request| request.groups[0].spread = 9, "groups[0].spread", "2 (together)"),
        (&|request| request.floors[0].request.lease = 5, "floors[0].lease", "no leases"),
        (&|request| request.horizon = u64::MAX, "horizon", "365 days"),
    ];
    for (change, field, message) in faults {
        let mut wrong = request.clone();
        change(&mut wrong);
        // What cannot be read as a request has no reply of its kind.
        let fault = match client.plan_nodes(&wrong).await {
            Ok(reply) => reply.fault.expect("it is wrong"),
            Err(ClientError::Fault(fault)) => fault,
            Err(other) => panic!("{other}"),
        };
        assert_eq!(fault.field, field, "{fault}");
        assert!(fault.message.contains(message), "{fault}");
    }
    server.stop().await;
}

/// A node that is empty in two plans, and did not change between them, is idle since the first one.
#[tokio::test]
async fn the_service_notices_since_when_nodes_are_idle() {
    let server = TestServer::start_planning(1, 1);
    let client = server.client().await;
    let mut present = node("n", 4, 4096, 0);
    present.labels = vec![pair("node-type", "small")];
    add(&client, vec![present]).await;
    let mut request = PlanNodesRequest { types: vec![of_type("small", 4, 3)], ..PlanNodesRequest::default() };
    request.idle_timeout = Some(60_000_000_000);
    assert_eq!(plan(&client, &request).await.removals, []);
    server.pass(60_000_000_000);
    let made = plan(&client, &request).await;
    let [removal] = &made.removals[..] else { panic!("{made:?}") };
    assert_eq!((removal.node_name.as_str(), removal.of_type, removal.cause), ("n", 0, REMOVAL_IDLE));
    assert!(removal.idle >= 60_000_000_000);
    within(client.place(&ask(1, 0, 0))).await.expect("answered");
    assert_eq!(plan(&client, &request).await.removals, []);
    server.stop().await;
}

/// The group is planned with the job, in the order of their priorities, and is placed on the node that comes for it.
#[tokio::test]
async fn a_group_that_waits_at_the_service_is_in_the_plan() {
    let server = TestServer::start_planning(2, 3);
    let client = server.client().await;
    let mut present = node("n", 8, 4096, 0);
    present.labels = vec![pair("zone", "a")];
    add(&client, vec![present]).await;
    let filler = within(client.place(&ask(8, 0, 0))).await.expect("answered");
    assert!(filler.reason.is_done(), "{filler:?}");
    let bundles = vec![BundleTemplate { request: ask(2, 0, 0), count: 4 }];
    let group = CreateGroupRequest {
        bundles,
        strategy: STRATEGY_STRICT_PACK,
        mode: MODE_WAIT_UNTIL,
        priority: 3,
        ..CreateGroupRequest::default()
    };
    let planning = async {
        let listed = async || client.list_groups(&ListGroupsRequest::default()).await.expect("answered");
        let waiting = within(async {
            loop {
                if let [group] = &listed().await.groups[..] {
                    assert_eq!(group.state, GROUP_WAITING);
                    return group.id;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
        let types = vec![of_type("small", 4, 9), of_type("large", 8, 9)];
        let mut request = PlanNodesRequest { types, ..PlanNodesRequest::default() };
        let made = plan(&client, &request).await;
        let needed: Vec<u32> = made.types.iter().map(|of| of.needed).collect();
        assert_eq!((needed, made.fit_needed, made.left_out), (vec![0, 1], 4, 0), "{made:?}");
        // Without a node that holds all of it, it is named.
        request.types.pop();
        let made = plan(&client, &request).await;
        let [left] = &made.unplaced[..] else { panic!("{made:?}") };
        assert_eq!((left.asker, left.number, left.count), (ASKER_WAITING_GROUP, waiting.number, 4));
        assert_eq!(left.name, wharf_core::ids::GroupId::from(waiting).to_string());
        assert_eq!((left.reason, made.types[0].needed), (UNFIT_GANG, 0));
        request.waiting = false;
        assert_eq!(plan(&client, &request).await.unplaced, []);
        let mut large = node("large-1", 8, 4096, 0);
        large.labels = vec![pair("node-type", "large")];
        add(&client, vec![large]).await;
    };
    let (made, ()) = tokio::join!(within(client.create_group(&group)), planning);
    let made = made.expect("answered");
    assert!(made.group.is_some_and(|group| group.state == GROUP_PLACED));
    let types = vec![of_type("small", 4, 9), of_type("large", 8, 9)];
    let made = plan(&client, &PlanNodesRequest { types, ..PlanNodesRequest::default() }).await;
    assert!(made.types.iter().all(|of| of.needed == 0) && made.unplaced.is_empty(), "{made:?}");
    server.stop().await;
}

/// The cluster has the tiers `rack` and `block`.
#[tokio::test]
async fn a_job_with_a_hard_rule_gets_nodes_of_one_domain() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    let queue = QueueBody { name: "batch".to_owned(), ..QueueBody::default() };
    assert!(within(client.set_queue(&SetQueueRequest { queue })).await.expect("answered").reason.is_done());
    let mut asked = job("gang", 8, 8);
    asked.job.topology = Some(JobTopologyBody { mode: JOB_TOPOLOGY_HARD, tier: "rack".to_owned() });
    let gang = submit(&client, &asked).await;
    let in_rack = |name: &str, rack: &str, max| {
        let mut of = of_type(name, 4, max);
        of.node.labels = vec![pair("rack", rack), pair("block", "b")];
        of
    };
    // No rack but the last one may have both nodes, and a node without a rack is of no use.
    let types =
        vec![of_type("plain", 4, 9), in_rack("a", "r1", 1), in_rack("b", "r2", 1), in_rack("c", "r3", 2)];
    let mut request = PlanNodesRequest { types, ..PlanNodesRequest::default() };
    let made = plan(&client, &request).await;
    let needed: Vec<u32> = made.types.iter().map(|of| of.needed).collect();
    assert_eq!((needed, made.fit_needed), (vec![0, 0, 0, 2], 8), "{made:?}");
    let starts: Vec<_> = made.starts.iter().map(|start| (start.job, start.tasks)).collect();
    assert_eq!(starts, [(gang, 8)]);
    request.types.pop();
    let made = plan(&client, &request).await;
    let [left] = &made.unplaced[..] else { panic!("{made:?}") };
    assert_eq!((left.asker, left.number, left.count), (ASKER_JOB, gang, 8));
    assert!([UNFIT_TOPOLOGY, UNFIT_TYPE_LIMIT].contains(&left.reason), "{left:?}");
    assert!(made.types.iter().all(|of| of.needed == 0) && made.starts.is_empty(), "{made:?}");
    server.stop().await;
}
