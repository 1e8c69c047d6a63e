//! Queues and jobs over the wire.

use crate::harness::{self, Peer, TestServer, add, ask, audit, header, node, pair, within};
use wharf_net::client::Client;
use wharf_net::protocol::{
    ACTION_ABORT_JOB, ACTION_RESTART_TASK, CHANGE_LARGER_NODES, CancelJobRequest, ExplainJobRequest,
    JOB_ABORTED, JOB_CANCELLED, JOB_COMPLETED, JOB_RUNNING, JOB_TOPOLOGY_HARD, JOB_TOPOLOGY_SOFT, JobBody,
    JobPolicyBody, JobReply, JobStatusReply, JobStatusRequest, JobTopologyBody, Kind, ListJobsRequest,
    NodeBody, PENDING_NO_NODE, PENDING_NONE, PENDING_NOT_TRIED, PENDING_TOPOLOGY, QueueBody, Reason,
    ReportTasksRequest, RoleBody, SetQueueRequest, SubmitJobRequest, TASK_BOUND, TASK_EVENT_FAILED,
    TASK_FAILED, TASK_PENDING, TASK_SUCCEEDED, TaskGroupBody, TaskReportBody,
};

/// A job of equal tasks with a core each.
fn job(name: &str, count: u32) -> SubmitJobRequest {
    let group = TaskGroupBody { request: ask(1, 0, 0), count, ..TaskGroupBody::default() };
    let role = RoleBody { name: "task".to_owned(), min_member: 0 };
    let queue = "batch".to_owned();
    let job =
        JobBody { name: name.to_owned(), queue, roles: vec![role], tasks: vec![group], ..JobBody::default() };
    SubmitJobRequest { job }
}

async fn with_queue(client: &Client) {
    let queue = QueueBody { name: "batch".to_owned(), ..QueueBody::default() };
    let set = within(client.set_queue(&SetQueueRequest { queue })).await.expect("answered");
    assert!(set.reason.is_done(), "{set:?}");
}

/// Asks for the status of a job until it is as wanted.
async fn until(client: &Client, job: u64, is: impl Fn(&JobStatusReply) -> bool) -> JobStatusReply {
    within(async {
        loop {
            let status =
                client.job_status(&JobStatusRequest { job, from: 0, limit: 0 }).await.expect("answered");
            if is(&status) {
                return status;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

fn all_are(status: &JobStatusReply, state: u8) -> bool {
    status.tasks.iter().all(|task| task.state == state)
}

#[tokio::test]
async fn a_job_is_placed_and_ends_as_its_control_plane_reports() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    add(&client, vec![node("n", 4, 4096, 0)]).await;
    with_queue(&client).await;
    let submitted = within(client.submit_job(&job("train", 3))).await.expect("answered");
    assert!(submitted.reason.is_done(), "{submitted:?}");
    let placed = until(&client, submitted.job, |status| all_are(status, TASK_BOUND)).await;
    assert!(placed.tasks.iter().all(|task| task.node_name == "n" && task.allocation.is_some()), "{placed:?}");
    let tasks = placed.tasks.iter().map(|task| TaskReportBody {
        job: submitted.job,
        index: task.index,
        allocation: task.allocation.expect("it is placed"),
        state: TASK_SUCCEEDED,
        exit_code: None,
    });
    let reports = ReportTasksRequest { tasks: tasks.collect() };
    let reported = within(client.report_tasks(&reports)).await.expect("answered");
    assert!(reported.reason.is_done(), "{reported:?}");
    let ended = until(&client, submitted.job, |status| all_are(status, TASK_SUCCEEDED)).await;
    assert_eq!(ended.job.map(|job| job.phase), Some(JOB_COMPLETED));
    let again = within(client.submit_job(&job("train", 1))).await.expect("answered");
    assert!(again.reason.is_done() && again.job != submitted.job, "the name is free again: {again:?}");
    let taken = within(client.submit_job(&job("train", 1))).await.expect("answered");
    assert_eq!(taken.reason, Reason::InvalidField.into(), "{taken:?}");
    audit(&client).await;
    server.stop().await;
}

/// The exit code of a report chooses the policy, and the service does what it says.
#[tokio::test]
async fn a_job_does_what_its_policies_say() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    add(&client, vec![node("n", 4, 4096, 0)]).await;
    with_queue(&client).await;
    let on = |action, exit_code| JobPolicyBody {
        events: vec![TASK_EVENT_FAILED],
        action,
        exit_code,
        timeout: None,
    };
    let mut request = job("flaky", 2);
    request.job.policies = vec![on(ACTION_RESTART_TASK, Some(7)), on(ACTION_ABORT_JOB, None)];
    let job = within(client.submit_job(&request)).await.expect("answered").job;
    let placed = until(&client, job, |status| all_are(status, TASK_BOUND)).await;
    let first = placed.tasks[0].allocation;
    let fail = async |allocation, exit_code| {
        let allocation = Option::expect(allocation, "it is placed");
        let report = TaskReportBody { job, index: 0, allocation, state: TASK_FAILED, exit_code };
        let reported = within(client.report_tasks(&ReportTasksRequest { tasks: vec![report] })).await;
        let reported = reported.expect("answered");
        assert!(reported.reason.is_done() && reported.outdated.is_empty(), "{reported:?}");
    };
    fail(first, Some(7)).await;
    let again = until(&client, job, |status| all_are(status, TASK_BOUND)).await;
    assert_ne!(again.tasks[0].allocation, first);
    assert_eq!(again.job.map(|job| (job.phase, job.restarts)), Some((JOB_RUNNING, 1)));
    fail(again.tasks[0].allocation, None).await;
    let ended = until(&client, job, |status| status.tasks[0].state == TASK_FAILED).await;
    assert_eq!(ended.job.map(|job| (job.phase, job.restarts)), Some((JOB_ABORTED, 1)));
    // What cannot be is refused by its field.
    request.job.name = "wrong".to_owned();
    request.job.policies[1].exit_code = Some(0);
    let refused = within(client.submit_job(&request)).await.expect("answered");
    let fault = refused.fault.expect("it is refused");
    assert!(fault.field == "job.policies[1]" && fault.message.contains("leave `exit_code` out"), "{fault}");
    request.job.policies.clear();
    request.job.max_retry = u32::MAX;
    let refused = within(client.submit_job(&request)).await.expect("answered");
    assert_eq!(refused.fault.expect("it is refused").field, "job.max_retry");
    audit(&client).await;
    server.stop().await;
}

/// A job that must be in one rack is placed in the order of the tree, over shards, and its status names the domains. One that
/// fits in no rack waits and is told the best.
#[tokio::test]
async fn a_job_is_placed_in_one_domain_and_its_status_names_it() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    let in_rack = |name: &str, rack: &str| {
        let labels = vec![pair("rack", rack), pair("block", "b")];
        NodeBody { labels, ..node(name, 2, 4096, 0) }
    };
    add(&client, vec![in_rack("n1", "r1"), in_rack("n2", "r2"), in_rack("n3", "r2"), in_rack("n4", "r3")])
        .await;
    with_queue(&client).await;
    let demanding = |name: &str, tasks: u32, mode, tier: &str| {
        let mut request = job(name, tasks);
        request.job.min_member = tasks;
        request.job.topology = Some(JobTopologyBody { mode, tier: tier.to_owned() });
        request
    };
    let submitted = within(client.submit_job(&demanding("train", 4, JOB_TOPOLOGY_HARD, "rack"))).await;
    let submitted = submitted.expect("answered");
    assert!(submitted.reason.is_done(), "{submitted:?}");
    let placed = until(&client, submitted.job, |status| all_are(status, TASK_BOUND)).await;
    let places: Vec<(&str, &str)> =
        placed.tasks.iter().map(|task| (&*task.node_name, &*task.domain)).collect();
    assert_eq!(places, [("n2", "b/r2"), ("n2", "b/r2"), ("n3", "b/r2"), ("n3", "b/r2")]);
    let waits = within(client.submit_job(&demanding("waits", 3, JOB_TOPOLOGY_HARD, "rack"))).await;
    let waits = waits.expect("answered").job;
    let asked = ExplainJobRequest { job: waits, task: None };
    let lack = within(async {
        loop {
            let explained = client.explain_job(&asked).await.expect("answered");
            if explained.pending == PENDING_TOPOLOGY {
                return explained.domain.expect("it is told what domains lack");
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!((&*lack.tier, &*lack.best, lack.holds, lack.needed), ("rack", "b/r1", 2, 3));
    let anywhere = within(client.submit_job(&demanding("anywhere", 4, JOB_TOPOLOGY_SOFT, ""))).await;
    let anywhere = anywhere.expect("answered").job;
    let placed = until(&client, anywhere, |status| all_are(status, TASK_BOUND)).await;
    let domains: Vec<&str> = placed.tasks.iter().map(|task| &*task.domain).collect();
    assert_eq!(domains, ["b/r1", "b/r1", "b/r3", "b/r3"]);
    // What cannot be is refused by its field, with the tiers that there are.
    let mut wrong = demanding("wrong", 1, JOB_TOPOLOGY_HARD, "row");
    let refused = within(client.submit_job(&wrong)).await.expect("answered").fault.expect("it is refused");
    assert!(
        refused.field == "job.topology" && refused.message.contains("name one of rack, block"),
        "{refused}"
    );
    wrong.job.tasks[0].topology = wrong.job.topology.take();
    let refused = within(client.submit_job(&wrong)).await.expect("answered").fault.expect("it is refused");
    assert_eq!(refused.field, "job.tasks[0].topology");
    audit(&client).await;
    server.stop().await;
}

/// A cancelled job frees its capacity for a job that waits.
#[tokio::test]
async fn a_job_that_waits_gets_what_a_cancelled_one_had() {
    let server = TestServer::start_planning(1, 1);
    let client = server.client().await;
    add(&client, vec![node("n", 4, 4096, 0)]).await;
    with_queue(&client).await;
    let first = within(client.submit_job(&job("first", 4))).await.expect("answered").job;
    until(&client, first, |status| all_are(status, TASK_BOUND)).await;
    let second = within(client.submit_job(&job("second", 4))).await.expect("answered").job;
    let cancelled =
        within(client.cancel_job(&CancelJobRequest { job: first, grace: 0 })).await.expect("answered");
    assert!(cancelled.reason.is_done(), "{cancelled:?}");
    let ended = until(&client, first, |status| all_are(status, TASK_FAILED)).await;
    assert_eq!(ended.job.map(|job| job.phase), Some(JOB_CANCELLED));
    until(&client, second, |status| all_are(status, TASK_BOUND)).await;
    audit(&client).await;
    server.stop().await;
}

/// A job that waits is explained in words that a client can act on, and a task as its job.
#[tokio::test]
async fn a_job_that_waits_is_explained() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    add(&client, vec![node("n", 4, 4096, 0), node("m", 4, 4096, 0)]).await;
    with_queue(&client).await;
    let runs = within(client.submit_job(&job("runs", 3))).await.expect("answered").job;
    until(&client, runs, |status| all_are(status, TASK_BOUND)).await;
    let mut large = job("large", 1);
    large.job.tasks[0].request = ask(5, 0, 0);
    let large = within(client.submit_job(&large)).await.expect("answered").job;
    let told = within(async {
        loop {
            let request = ExplainJobRequest { job: large, task: None };
            let told = client.explain_job(&request).await.expect("answered");
            if told.pending != PENDING_NOT_TRIED {
                return told;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(told.reason.is_done() && told.pending == PENDING_NO_NODE, "{told:?}");
    assert_eq!((told.task, told.state, told.before, told.waiting), (Some(0), TASK_PENDING, 0, 1));
    let nodes = told.nodes.expect("it waits for a node");
    assert_eq!((nodes.nodes, nodes.examined, nodes.checks.len()), (2, 2, 1));
    assert_eq!((nodes.checks[0].resource.as_str(), nodes.checks[0].nodes), ("cpu", 2));
    assert_eq!((told.scarce.as_str(), told.scarce_holders[0].amount), ("cpu", 30_000));
    let change = told.changes.last().expect("a larger node would help");
    assert_eq!((change.change, change.count, change.amounts[0].amount), (CHANGE_LARGER_NODES, 1, 50_000));
    let of_task = within(client.explain_job(&ExplainJobRequest { job: large, task: Some(0) })).await;
    assert_eq!(of_task.expect("answered").pending, PENDING_NO_NODE);
    let of_running = within(client.explain_job(&ExplainJobRequest { job: runs, task: Some(1) })).await;
    let of_running = of_running.expect("answered");
    assert_eq!((of_running.pending, of_running.state, of_running.nodes), (PENDING_NONE, TASK_BOUND, None));
    let none = within(client.explain_job(&ExplainJobRequest { job: large, task: Some(1) })).await;
    let fault = none.expect("answered").fault.expect("it has one task");
    assert_eq!((fault.reason, &*fault.field), (Reason::InvalidField.into(), "task"));
    let none = within(client.explain_job(&ExplainJobRequest { job: 99, task: None })).await;
    assert_eq!(none.expect("answered").reason, Reason::UnknownJob.into());
    add(&client, vec![node("larger", 5, 4096, 0)]).await;
    until(&client, large, |status| all_are(status, TASK_BOUND)).await;
    audit(&client).await;
    server.stop().await;
}

/// A request that is sent again is done once, and answered alike.
#[tokio::test]
async fn a_submission_that_is_sent_again_makes_one_job() {
    let server = TestServer::start_planning(1, 1);
    let client = server.client().await;
    with_queue(&client).await;
    let (mut peer, _) = Peer::open(&server).await;
    let frame = harness::frame(header(Kind::SubmitJob, 1), &job("once", 2));
    let mut replies: Vec<JobReply> = Vec::new();
    for _ in 0..2 {
        peer.send(&frame).await;
        replies.push(peer.frame().await.body());
    }
    assert!(replies[0].reason.is_done() && replies[0] == replies[1], "{replies:?}");
    let jobs = within(client.list_jobs(&ListJobsRequest::default())).await.expect("answered");
    assert_eq!(jobs.jobs.len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_service_that_keeps_no_jobs_says_so() {
    let server = TestServer::start(2);
    let (mut peer, _) = Peer::open(&server).await;
    let kinds = [
        Kind::SetQueue,
        Kind::RemoveQueue,
        Kind::ListQueues,
        Kind::SetPriorityClass,
        Kind::RemovePriorityClass,
        Kind::ListPriorityClasses,
        Kind::SubmitJob,
        Kind::CancelJob,
        Kind::JobStatus,
        Kind::ListJobs,
        Kind::ReportTasks,
        Kind::ExplainJob,
        Kind::PlanNodes,
    ];
    for (kind, sequence) in kinds.into_iter().zip(1..) {
        let frame = harness::frame(header(kind, sequence), &());
        peer.send(&frame).await;
        let fault = peer.frame().await.assert_fault(Reason::NotServed);
        assert!(fault.message.contains("`jobs.enabled`") && fault.message.contains("`planners`"), "{fault}");
    }
    server.stop().await;
}
