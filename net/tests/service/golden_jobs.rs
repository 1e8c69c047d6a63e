//! The wire format byte for byte, as in `golden_frames.rs`: queues, jobs and tasks.

use wharf_net::codec::encode_body;
use wharf_net::protocol::*;

use crate::harness::golden::{check_reply, check_request, hex};

/// The tests that check golden bytes.
pub(crate) const TESTS: &[fn()] = &[
    requests_about_queues_are_written_as_they_always_were,
    replies_about_queues_are_written_as_they_always_were,
    priority_classes_are_written_as_they_always_were,
    requests_about_jobs_are_written_as_they_always_were,
    replies_about_jobs_are_written_as_they_always_were,
    explanations_are_written_as_they_always_were,
    explanations_of_waits_are_written_as_they_always_were,
];

const ALLOCATION: WireAllocation = WireAllocation { incarnation: 1, partition: 2, sequence: 3, tenant: 4 };

fn amounts(name: &str, amount: i64) -> AmountsBody {
    AmountsBody { amounts: named(name, amount) }
}

fn named(name: &str, amount: i64) -> Vec<NamedAmount> {
    vec![NamedAmount { name: name.to_owned(), amount }]
}

fn fault() -> Fault {
    Fault::of_field(Reason::UnknownJob, "job", "m")
}

/// Returns a queue whose fields all differ from their defaults.
fn queue() -> QueueBody {
    QueueBody {
        name: "q".to_owned(),
        parent: "p".to_owned(),
        tenant: Some(4),
        weight: 2,
        guarantee: amounts("cpu", 3),
        deserved: Some(amounts("gpu", 5)),
        capability: amounts("npu", 300),
        priority: -1,
        reclaimable: false,
        open: false,
        ordering: ORDERING_FAIR,
        starves_below: Some(5000),
        fair_share_patience: Some(6),
        guarantee_patience: Some(7),
        min_run_time: Some(8),
        usage_half_life: Some(9),
        allocations_max: Some(10),
    }
}

const QUEUE: &str =
    "017101700104020103637075060101036770750a01036e7075fb58020100000201fb88130106010701080109010a";

fn summary() -> JobSummaryBody {
    JobSummaryBody {
        id: 300,
        name: "j".to_owned(),
        queue: "q".to_owned(),
        tenant: 4,
        phase: JOB_RUNNING,
        priority: -2,
        min_member: 5,
        counts: vec![TaskCountBody { state: TASK_RUNNING, count: 7 }],
        created: 9,
        restarts: 2,
        user: "u".to_owned(),
        priority_class: "c".to_owned(),
    }
}

const SUMMARY: &str = "fb2c01016a017104030305010607090201750163";

#[test]
fn requests_about_queues_are_written_as_they_always_were() {
    check_request::<kinds::SetQueue>(&SetQueueRequest { queue: queue() }, QUEUE);
    check_request::<kinds::SetQueue>(&SetQueueRequest::default(), "0000000100000000010100000000000000");
    check_request::<kinds::RemoveQueue>(&RemoveQueueRequest { name: "q".to_owned() }, "0171");
    check_request::<kinds::ListQueues>(
        &ListQueuesRequest { after: "q".to_owned(), limit: 300 },
        "0171fb2c01",
    );
    check_request::<kinds::ListQueues>(&ListQueuesRequest::default(), "0000");
}

#[test]
fn replies_about_queues_are_written_as_they_always_were() {
    check_reply::<kinds::SetQueue>(&QueueReply::default(), "0000");
    let reply = QueueReply::from(fault());
    check_reply::<kinds::RemoveQueue>(&reply, "c701c7036a6f62016d00");
    let usage = QueueUsageBody {
        held: named("cpu", 1),
        pipelined: named("cpu", 2),
        releasing: named("cpu", 3),
        pending: named("cpu", 4),
    };
    let status = QueueStatusBody {
        queue: queue(),
        usage,
        has_deserved: true,
        deserved: named("cpu", 5),
        jobs: 6,
        waiting: 7,
        past: named("cpu", 8),
        users: vec![UserBody { name: "u".to_owned(), planned: named("cpu", 9), past: named("cpu", 10) }],
        more_users: 11,
        direct: 12,
        allocations: 13,
    };
    let users = "0103637075100101750103637075120103637075140b";
    let used: String = ["02", "04", "06", "08"].iter().map(|amount| format!("0103637075{amount}")).collect();
    check_reply::<kinds::ListQueues>(
        &ListQueuesReply { queues: vec![status], more: true },
        &format!("01{QUEUE}{used}0101036370750a0607{users}0c0d01"),
    );
}

#[test]
fn priority_classes_are_written_as_they_always_were() {
    let class = || PriorityClassBody {
        name: "c".to_owned(),
        value: -2,
        preempts: false,
        is_default: true,
        description: "d".to_owned(),
    };
    let written = "01630300010164";
    check_request::<kinds::SetPriorityClass>(&SetPriorityClassRequest { class: class() }, written);
    check_request::<kinds::SetPriorityClass>(&SetPriorityClassRequest::default(), "0000010000");
    check_reply::<kinds::SetPriorityClass>(&PriorityClassReply::default(), "0000");
    let name = || "c".to_owned();
    check_request::<kinds::RemovePriorityClass>(&RemovePriorityClassRequest { name: name() }, "0163");
    let reply = PriorityClassReply::from(Fault::of_field(Reason::UnknownPriorityClass, "name", "m"));
    check_reply::<kinds::RemovePriorityClass>(&reply, "c101c1046e616d65016d00");
    check_request::<kinds::ListPriorityClasses>(
        &ListPriorityClassesRequest { after: name(), limit: 300 },
        "0163fb2c01",
    );
    check_request::<kinds::ListPriorityClasses>(&ListPriorityClassesRequest::default(), "0000");
    check_reply::<kinds::ListPriorityClasses>(
        &ListPriorityClassesReply { classes: vec![class()], more: true },
        &format!("01{written}01"),
    );
    assert_eq!(PRIORITY_CLASSES_PER_MESSAGE_MAX, 1000);
}

fn policy(action: u8, exit_code: Option<i32>) -> JobPolicyBody {
    JobPolicyBody {
        events: vec![TASK_EVENT_FAILED, TASK_EVENT_EVICTED],
        action,
        exit_code,
        timeout: exit_code.map(|_| 11),
    }
}

#[test]
fn requests_about_jobs_are_written_as_they_always_were() {
    let mut request = Vec::new();
    encode_body(&PlaceRequest::default(), &mut request);
    let group = TaskGroupBody {
        request: PlaceRequest::default(),
        count: 3,
        role: 1,
        priority: Some(-1),
        preemptable: false,
        master: true,
        run_time: Some(60_000_000_000),
        policies: vec![policy(ACTION_RESTART_TASK, None)],
        topology: Some(JobTopologyBody { mode: JOB_TOPOLOGY_SOFT, tier: "t".to_owned() }),
        priority_class: "c".to_owned(),
    };
    let job = JobBody {
        name: "j".to_owned(),
        queue: "q".to_owned(),
        min_member: 2,
        min_resources: Some(amounts("cpu", 3)),
        roles: vec![RoleBody { name: "r".to_owned(), min_member: 4 }],
        tasks: vec![group],
        priority: Some(5),
        preempts: false,
        policies: vec![policy(ACTION_ABORT_JOB, Some(-3))],
        max_retry: 7,
        user: "u".to_owned(),
        topology: Some(JobTopologyBody { mode: JOB_TOPOLOGY_HARD, tier: "r".to_owned() }),
        min_success: Some(8),
        wait: Some(9),
        priority_class: "h".to_owned(),
    };
    let tasks = format!("01{}03010101000101fd005847f80d00000001020102010000010201740163", hex(&request));
    let job_hex =
        format!("016a0171020101036370750601017204{tasks}010a0001020102040105010b07017501010172010801090168");
    check_request::<kinds::SubmitJob>(&SubmitJobRequest { job }, &job_hex);
    check_request::<kinds::SubmitJob>(&SubmitJobRequest::default(), "000000000000000100030000000000");
    check_request::<kinds::CancelJob>(&CancelJobRequest { job: 300, grace: 9 }, "fb2c0109");
    check_request::<kinds::JobStatus>(&JobStatusRequest { job: 300, from: 4, limit: 5 }, "fb2c010405");
    check_request::<kinds::ListJobs>(
        &ListJobsRequest { queue: "q".to_owned(), after: 300, limit: 5 },
        "0171fb2c0105",
    );
    let report =
        TaskReportBody { job: 300, index: 4, allocation: ALLOCATION, state: TASK_SUCCEEDED, exit_code: None };
    check_request::<kinds::ReportTasks>(
        &ReportTasksRequest { tasks: vec![report] },
        "01fb2c0104010203040800",
    );
    let report = TaskReportBody { state: TASK_FAILED, exit_code: Some(137), ..report };
    check_request::<kinds::ReportTasks>(
        &ReportTasksRequest { tasks: vec![report] },
        "01fb2c0104010203040901fb1201",
    );
}

#[test]
fn replies_about_jobs_are_written_as_they_always_were() {
    check_reply::<kinds::SubmitJob>(&JobReply { job: 300, ..JobReply::default() }, "00fb2c0100");
    check_reply::<kinds::CancelJob>(&JobReply::from(fault()), "c70001c7036a6f62016d00");
    let tasks = vec![
        TaskBody {
            index: 1,
            role: "r".to_owned(),
            state: TASK_RUNNING,
            node: 7,
            node_name: "n".to_owned(),
            allocation: Some(ALLOCATION),
            since: 9,
            domain: "z/r".to_owned(),
        },
        TaskBody::default(),
    ];
    let reply = JobStatusReply { job: Some(summary()), tasks, more: true, ..JobStatusReply::default() };
    let written = "0101720607016e010102030409037a2f720000000000000000";
    check_reply::<kinds::JobStatus>(&reply, &format!("0001{SUMMARY}02{written}0100"));
    check_reply::<kinds::JobStatus>(&JobStatusReply::from(fault()), "c700000001c7036a6f62016d00");
    check_reply::<kinds::ListJobs>(
        &ListJobsReply { jobs: vec![summary()], more: true },
        &format!("01{SUMMARY}01"),
    );
    check_reply::<kinds::ReportTasks>(
        &ReportTasksReply { outdated: vec![0, 300], ..ReportTasksReply::default() },
        "000200fb2c0100",
    );
    check_reply::<kinds::ReportTasks>(&ReportTasksReply::from(fault()), "c70001c7036a6f62016d00");
}

#[test]
fn numbers_of_jobs_never_change_their_meaning() {
    assert_eq!([ORDERING_DRF, ORDERING_FIFO, ORDERING_FAIR], [0, 1, 2]);
    let phases = [JOB_PENDING, JOB_INQUEUE, JOB_RUNNING, JOB_COMPLETED, JOB_CANCELLED];
    assert_eq!(phases, [1, 2, 3, 4, 5]);
    assert_eq!([JOB_RESTARTING, JOB_ABORTED, JOB_FAILED], [6, 7, 8]);
    let events = [TASK_EVENT_FAILED, TASK_EVENT_EVICTED, TASK_EVENT_COMPLETED, TASK_EVENT_ANY];
    assert_eq!(events, [1, 2, 3, 4]);
    let actions = [ACTION_RESTART_TASK, ACTION_RESTART_JOB, ACTION_COMPLETE_JOB, ACTION_ABORT_JOB];
    assert_eq!(actions, [1, 2, 3, 4]);
    assert_eq!((JOB_POLICIES_PER_LIST_MAX, TASK_EVENTS_MAX), (32, 4));
    let states = [TASK_PENDING, TASK_ALLOCATED, TASK_PIPELINED, TASK_BINDING, TASK_BOUND];
    assert_eq!(states, [1, 2, 3, 4, 5]);
    let states = [TASK_RUNNING, TASK_RELEASING, TASK_SUCCEEDED, TASK_FAILED, TASK_UNKNOWN];
    assert_eq!(states, [6, 7, 8, 9, 10]);
    assert_eq!((QUEUES_PER_MESSAGE_MAX, JOBS_PER_MESSAGE_MAX, TASKS_PER_MESSAGE_MAX), (1000, 1000, 1000));
    assert_eq!((TASK_REPORTS_PER_MESSAGE_MAX, JOB_TASK_GROUPS_MAX, JOB_ROLES_MAX), (1024, 1024, 256));
}

#[test]
fn explanations_are_written_as_they_always_were() {
    check_request::<kinds::ExplainJob>(&ExplainJobRequest { job: 300, task: Some(4) }, "fb2c010104");
    check_request::<kinds::ExplainJob>(&ExplainJobRequest { job: 300, task: None }, "fb2c0100");
    check_reply::<kinds::ExplainJob>(
        &ExplainJobReply::from(fault()),
        &format!("c7{}01c7036a6f62016d00", "00".repeat(27)),
    );
    let holder = HolderBody { name: "h".to_owned(), job: 300, amount: 1 };
    let bound = QueueBoundBody {
        queue: "q".to_owned(),
        rule: RULE_CAPABILITY,
        resource: "cpu".to_owned(),
        bound: 2,
        used: 3,
        asked: 4,
        holders: vec![holder.clone()],
    };
    let change = ChangeBody {
        change: CHANGE_RAISE_CAP,
        instead: true,
        queue: "q".to_owned(),
        node: 7,
        node_name: "n".to_owned(),
        count: 2,
        amounts: named("cpu", 5),
        run_time: 9,
    };
    let check_of = FailedCheck {
        reason: Reason::Insufficient.into(),
        resource: "cpu".to_owned(),
        nodes: 3,
        least_short: 4,
    };
    let room = NodeRoomBody { fits: 1, places: 2, fragmented: 3, free: named("cpu", 6) };
    let reply = ExplainJobReply {
        job: Some(summary()),
        task: Some(1),
        state: TASK_PENDING,
        pending: PENDING_GANG,
        cause: PENDING_CAP,
        tried: Some(2),
        fit: 3,
        needed: 4,
        no_victims: NO_VICTIMS_PREEMPT | NO_VICTIMS_STARVE,
        before: 6,
        waiting: 7,
        claimed: 8,
        capped: 9,
        date: Some(10),
        held_until: Some(11),
        held_by: 300,
        reserved: 12,
        nodes: Some(RefusalBody { nodes: 3, examined: 3, checks: vec![check_of] }),
        room,
        scarce: "cpu".to_owned(),
        scarce_holders: vec![holder],
        bounds: vec![bound],
        changes: vec![change],
        domain: Some(DomainLackBody {
            tier: "t".to_owned(),
            best: "z/r".to_owned(),
            holds: 5,
            needed: 8,
            missing: true,
        }),
        ..ExplainJobReply::default()
    };
    let holder = "0168fb2c0102";
    let counts = format!("0001{SUMMARY}0101010806010203040506070809010a010bfb2c010c");
    let nodes = "010303019903637075030801020301036370750c";
    let scarce = format!("0363707501{holder}");
    let bounds = format!("010171010363707504060801{holder}");
    let changes = "010401017107016e0201036370750a09";
    check_reply::<kinds::ExplainJob>(
        &reply,
        &format!("{counts}{nodes}{scarce}{bounds}{changes}010174037a2f7205080100"),
    );
}

#[test]
fn explanations_of_waits_are_written_as_they_always_were() {
    let session = WireSession { incarnation: 1, number: 300 };
    let group = WireGroup { incarnation: 1, number: 300, tenant: 2 };
    let of_placement =
        ExplainWaitRequest { session: Some(session), sequence: 5, ..ExplainWaitRequest::default() };
    check_request::<kinds::ExplainWait>(&of_placement, "0101fb2c01050000");
    let of_group =
        ExplainWaitRequest { group: Some(group), bundle: Some(3), ..ExplainWaitRequest::default() };
    check_request::<kinds::ExplainWait>(&of_group, "00000101fb2c01020103");
    check_reply::<kinds::ExplainWait>(
        &ExplainWaitReply::from(fault()),
        &format!("c7{}01c7036a6f62016d00", "00".repeat(18)),
    );
    let change = ChangeBody {
        change: CHANGE_MORE_NODES,
        instead: true,
        node: 7,
        node_name: "n".to_owned(),
        count: 2,
        ..ChangeBody::default()
    };
    let check_of = FailedCheck {
        reason: Reason::Insufficient.into(),
        resource: "cpu".to_owned(),
        nodes: 3,
        least_short: 4,
    };
    let reply = ExplainWaitReply {
        group: Some(GroupSummary {
            id: group,
            state: GROUP_WAITING,
            strategy: STRATEGY_SPREAD,
            bundles: 4,
            placed: 1,
            min_members: 3,
            priority: -1,
        }),
        job: 7,
        bundle: Some(2),
        waits_for: WAITS_FOR_BUNDLES,
        priority: -1,
        since: 300,
        until: Some(5),
        fit: 2,
        needed: 3,
        found: "f".to_owned(),
        before: 8,
        waiting: 9,
        nodes: Some(RefusalBody { nodes: 3, examined: 3, checks: vec![check_of] }),
        room: NodeRoomBody { fits: 1, places: 2, fragmented: 3, free: named("cpu", 6) },
        changes: vec![change],
        ..ExplainWaitReply::default()
    };
    let summary = "0101fb2c0102SS04010301";
    let summary = summary.replace("SS", &format!("{GROUP_WAITING:02x}{STRATEGY_SPREAD:02x}"));
    let wait = "0701020201fb2c0101050203016608 09".replace(' ', "");
    let nodes = "010303019903637075030801020301036370750c";
    check_reply::<kinds::ExplainWait>(&reply, &format!("00{summary}{wait}{nodes}0102010007016e02000000"));
}

#[test]
fn numbers_of_explanations_never_change_their_meaning() {
    let reasons = [
        PENDING_NONE,
        PENDING_NOT_TRIED,
        PENDING_NOT_ADMITTED,
        PENDING_TOO_FEW_TASKS,
        PENDING_OVERUSED,
        PENDING_SHARE,
    ];
    assert_eq!(reasons, [0, 1, 2, 3, 4, 5]);
    let reasons =
        [PENDING_CAP, PENDING_NO_NODE, PENDING_GANG, PENDING_RESERVATION, PENDING_CLAIM, PENDING_CONFLICT];
    assert_eq!(reasons, [6, 7, 8, 9, 10, 11]);
    assert_eq!((PENDING_TOPOLOGY, JOB_TOPOLOGY_HARD, JOB_TOPOLOGY_SOFT), (12, 1, 2));
    assert_eq!([NO_VICTIMS_PREEMPT, NO_VICTIMS_RECLAIM, NO_VICTIMS_STARVE], [1, 2, 4]);
    let rules = [RULE_CAPABILITY, RULE_GUARANTEES, RULE_DESERVED, RULE_OVERCOMMIT, RULE_ALLOCATIONS];
    assert_eq!(rules, [1, 2, 3, 4, 5]);
    assert_eq!([CHANGE_FREE_ON_NODE, CHANGE_MORE_NODES, CHANGE_LARGER_NODES, CHANGE_RAISE_CAP], [1, 2, 3, 4]);
    assert_eq!([CHANGE_RELEASE, CHANGE_CAPACITY, CHANGE_RUN_TIME], [5, 6, 7]);
    let in_domains = [CHANGE_MORE_NODES_IN_DOMAIN, CHANGE_LARGER_NODES_IN_DOMAIN, CHANGE_FREE_IN_DOMAIN];
    assert_eq!(in_domains, [8, 9, 10]);
    assert_eq!((HOLDERS_MAX, QUEUE_BOUNDS_MAX, CHANGES_MAX), (8, 64, 256));
    assert_eq!([WAITS_FOR_NOTHING, WAITS_FOR_NODE, WAITS_FOR_BUNDLES], [0, 1, 2]);
    assert_eq!([WAITS_FOR_TOGETHER, WAITS_FOR_TURN, WAITS_FOR_TICKET], [3, 4, 5]);
    assert_eq!((WAITS_FOR_QUEUE, HOLDER_GROUP), (6, u64::MAX));
}
