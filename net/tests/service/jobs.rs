//! Queues and jobs over the wire.

use crate::harness::{self, Peer, TestServer, add, ask, audit, header, node, within};
use wharf_net::client::Client;
use wharf_net::protocol::{
    CancelJobRequest, JOB_CANCELLED, JOB_COMPLETED, JobBody, JobReply, JobStatusReply, JobStatusRequest,
    Kind, ListJobsRequest, QueueBody, Reason, ReportTasksRequest, RoleBody, SetQueueRequest,
    SubmitJobRequest, TASK_BOUND, TASK_FAILED, TASK_SUCCEEDED, TaskGroupBody, TaskReportBody,
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
        Kind::SubmitJob,
        Kind::CancelJob,
        Kind::JobStatus,
        Kind::ListJobs,
        Kind::ReportTasks,
        Kind::PlanNodes,
    ];
    for (kind, sequence) in kinds.into_iter().zip(1..) {
        let frame = harness::frame(header(kind, sequence), &());
        peer.send(&frame).await;
        let fault = peer.frame().await.assert_fault(Reason::NotServed);
        assert!(fault.message.contains("setting `jobs`") && fault.message.contains("`planners`"), "{fault}");
    }
    server.stop().await;
}
