//! Priority classes over the wire.

use std::time::Duration;

use wharf_net::client::{Client, ClientConfig};
use wharf_net::protocol::{
    Fault, JobBody, JobReply, JobStatusRequest, JobSummaryBody, Kind, ListJobsRequest,
    ListPriorityClassesRequest, PriorityClassBody, PriorityClassReply, QueueBody, Reason,
    RemovePriorityClassRequest, RoleBody, SetPriorityClassRequest, SetQueueRequest, SubmitJobRequest,
    TaskGroupBody,
};

use crate::harness::{self, Peer, TestServer, ask, header, within};

/// A server with the queue `batch`.
async fn start() -> (TestServer, Client) {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    let queue = QueueBody { name: "batch".to_owned(), ..QueueBody::default() };
    assert!(within(client.set_queue(&SetQueueRequest { queue })).await.expect("answered").reason.is_done());
    (server, client)
}

fn class(name: &str, value: i32) -> PriorityClassBody {
    PriorityClassBody { name: name.to_owned(), value, ..PriorityClassBody::default() }
}

async fn set(client: &Client, class: PriorityClassBody) -> PriorityClassReply {
    within(client.set_priority_class(&SetPriorityClassRequest { class })).await.expect("answered")
}

async fn remove(client: &Client, name: &str) -> PriorityClassReply {
    let request = RemovePriorityClassRequest { name: name.to_owned() };
    within(client.remove_priority_class(&request)).await.expect("answered")
}

async fn list(client: &Client, after: &str, limit: u32) -> (Vec<PriorityClassBody>, bool) {
    let request = ListPriorityClassesRequest { after: after.to_owned(), limit };
    let page = within(client.list_priority_classes(&request)).await.expect("answered");
    (page.classes, page.more)
}

/// A job of one task, with this class and priority.
fn job(name: &str, class: &str, priority: Option<i32>) -> JobBody {
    JobBody {
        name: name.to_owned(),
        queue: "batch".to_owned(),
        roles: vec![RoleBody { name: "task".to_owned(), min_member: 0 }],
        tasks: vec![TaskGroupBody { request: ask(1, 0, 0), ..TaskGroupBody::default() }],
        priority,
        priority_class: class.to_owned(),
        ..JobBody::default()
    }
}

async fn submit(client: &Client, job: JobBody) -> JobReply {
    within(client.submit_job(&SubmitJobRequest { job })).await.expect("answered")
}

async fn summary(client: &Client, job: u64) -> JobSummaryBody {
    let status = within(client.job_status(&JobStatusRequest { job, from: 0, limit: 0 })).await;
    status.expect("answered").job.expect("it is there")
}

/// Submits a job, and returns its priority and its class.
async fn priority_of(client: &Client, job: JobBody) -> (i32, String) {
    let submitted = submit(client, job).await;
    assert!(submitted.reason.is_done(), "{submitted:?}");
    let job = summary(client, submitted.job).await;
    (job.priority, job.priority_class)
}

#[track_caller]
fn refused(fault: Option<Fault>, reason: Reason, field: &str, parts: &[&str]) {
    let fault = fault.expect("it is refused");
    assert_eq!((fault.reason, &*fault.field), (reason.into(), field), "{fault}");
    parts.iter().for_each(|part| assert!(fault.message.contains(part), "{fault}"));
}

#[tokio::test]
async fn a_class_is_set_listed_used_and_removed() {
    let (server, client) = start().await;
    assert_eq!(list(&client, "", 0).await, (vec![], false));
    let usual = PriorityClassBody {
        preempts: false,
        is_default: true,
        description: "for most".to_owned(),
        ..class("usual", -5)
    };
    for class in [usual.clone(), class("high", 100), class("low", 1)] {
        let reply = set(&client, class).await;
        assert!(reply.reason.is_done(), "{reply:?}");
    }
    assert_eq!(list(&client, "", 2).await, (vec![class("high", 100), class("low", 1)], true));
    assert_eq!(list(&client, "low", 2).await, (vec![usual], false));
    let high = || "high".to_owned();
    assert_eq!(priority_of(&client, job("a", "high", None)).await, (100, high()));
    assert_eq!(priority_of(&client, job("b", "high", Some(100))).await, (100, high()));
    assert_eq!(priority_of(&client, job("c", "", Some(7))).await, (7, String::new()));
    assert_eq!(priority_of(&client, job("d", "", None)).await, (-5, "usual".to_owned()));
    assert!(set(&client, class("high", 50)).await.reason.is_done());
    assert_eq!(priority_of(&client, job("e", "high", None)).await, (50, high()));
    assert!(remove(&client, "high").await.reason.is_done());
    assert!(remove(&client, "usual").await.reason.is_done());
    assert_eq!(priority_of(&client, job("f", "", None)).await, (0, String::new()));
    // Jobs keep what they were submitted with.
    let jobs = within(client.list_jobs(&ListJobsRequest::default())).await.expect("answered").jobs;
    let kept: Vec<_> = jobs.iter().map(|job| (&*job.name, job.priority, &*job.priority_class)).collect();
    let expected = [
        ("a", 100, "high"),
        ("b", 100, "high"),
        ("c", 7, ""),
        ("d", -5, "usual"),
        ("e", 50, "high"),
        ("f", 0, ""),
    ];
    assert_eq!(kept, expected);
    assert_eq!(list(&client, "", 0).await, (vec![class("low", 1)], false));
    server.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_class_is_told_with_its_field() {
    let (server, client) = start().await;
    let default = |name: &str| PriorityClassBody { is_default: true, ..class(name, 1) };
    assert!(set(&client, default("usual")).await.reason.is_done());
    let fault = set(&client, default("other")).await.fault;
    refused(fault, Reason::InvalidField, "class.is_default", &["`other`", "`usual` is it"]);
    let fault = set(&client, class("", 1)).await.fault;
    refused(fault, Reason::InvalidField, "class.name", &["give one"]);
    let told = PriorityClassBody { description: "a\nb".to_owned(), ..class("told", 1) };
    refused(set(&client, told).await.fault, Reason::InvalidField, "class.description", &["leave them out"]);
    let fault = remove(&client, "no").await.fault;
    refused(fault, Reason::UnknownPriorityClass, "name", &["`no`"]);
    assert_eq!(list(&client, "", 0).await.0, [default("usual")]);
    let fault = submit(&client, job("j", "no", None)).await.fault;
    refused(fault, Reason::UnknownPriorityClass, "job.priority_class", &["`no`", "make it first"]);
    let fault = submit(&client, job("j", "usual", Some(2))).await.fault;
    refused(fault, Reason::InvalidField, "job.priority", &["priority 2", "is 1", "leave one"]);
    let mut of_tasks = job("j", "", None);
    of_tasks.tasks[0].priority_class = "no".to_owned();
    let fault = submit(&client, of_tasks.clone()).await.fault;
    refused(fault, Reason::UnknownPriorityClass, "job.tasks[0].priority_class", &["task group 0", "`no`"]);
    of_tasks.tasks[0].priority_class = "usual".to_owned();
    of_tasks.tasks[0].priority = Some(3);
    let fault = submit(&client, of_tasks).await.fault;
    refused(fault, Reason::InvalidField, "job.tasks[0].priority", &["priority 3", "leave one"]);
    let jobs = within(client.list_jobs(&ListJobsRequest::default())).await.expect("answered").jobs;
    assert_eq!(jobs, [], "none was submitted");
    server.stop().await;
}

/// A request that is sent again is not done again, although another class is the default by then.
#[tokio::test]
async fn a_class_is_set_once() {
    let (server, client) = start().await;
    let (mut peer, _) = Peer::open(&server).await;
    let first = PriorityClassBody { is_default: true, ..class("first", 1) };
    let frame = harness::frame(header(Kind::SetPriorityClass, 1), &SetPriorityClassRequest { class: first });
    let ask = async |peer: &mut Peer| -> PriorityClassReply {
        peer.send(&frame).await;
        peer.frame().await.body()
    };
    assert!(ask(&mut peer).await.reason.is_done());
    assert!(remove(&client, "first").await.reason.is_done());
    let second = PriorityClassBody { is_default: true, ..class("second", 2) };
    assert!(set(&client, second.clone()).await.reason.is_done());
    assert!(ask(&mut peer).await.reason.is_done(), "it is the first answer");
    assert_eq!(list(&client, "", 0).await.0, [second]);
    server.stop().await;
}

#[tokio::test]
async fn admins_set_classes_and_others_list_them() {
    let authority = harness::ClientAuthority::new();
    let server = TestServer::start_secured(&crate::access::settings(), &authority);
    let client = async |name: &str| {
        let certificate = Some(authority.client(name, &[]));
        let config = ClientConfig { certificate, ..server.client_config(Duration::ZERO) };
        within(Client::connect(config)).await.expect("it is known")
    };
    let admin = client("admin").await;
    assert!(set(&admin, class("high", 9)).await.reason.is_done());
    for name in ["one", "observer"] {
        let other = client(name).await;
        let request = SetPriorityClassRequest { class: class("high", 10) };
        crate::access::is_forbidden(within(other.set_priority_class(&request)).await);
        let request = RemovePriorityClassRequest { name: "high".to_owned() };
        crate::access::is_forbidden(within(other.remove_priority_class(&request)).await);
        assert_eq!(list(&other, "", 0).await.0, [class("high", 9)]);
    }
    let request = ListPriorityClassesRequest::default();
    crate::access::is_forbidden(within(client("agent").await.list_priority_classes(&request)).await);
    server.stop().await;
}
