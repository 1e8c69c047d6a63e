//! Queues and jobs over the wire.

use crate::harness::{self, Peer, TestServer, header};
use wharf_net::protocol::{Kind, Reason};

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
    ];
    for (kind, sequence) in kinds.into_iter().zip(1..) {
        let frame = harness::frame(header(kind, sequence), &());
        peer.send(&frame).await;
        let fault = peer.frame().await.assert_fault(Reason::NotServed);
        assert!(fault.message.contains("setting `jobs`") && fault.message.contains("`planners`"), "{fault}");
    }
    server.stop().await;
}
