//! Conversion of queues and jobs: they come back as they were, what is refused, and with which field.

use std::sync::Arc;

use wharf_core::ids::{NodeId, TenantId};
use wharf_core::jobs::{JobPhase, TaskState};
use wharf_core::limits::{QUEUE_USERS_SHOWN_MAX, RESOURCE_KINDS_WAITED_MAX, USER_BYTES_MAX};
use wharf_core::registrar::Catalog;
use wharf_core::request::{OrderChoice, Policy};
use wharf_core::resource::ResourceRegistry;
use wharf_net::codec::{decode_body, encode_body};
use wharf_net::convert::{
    PlacementDefaults, job_body, job_kinds_to_learn, job_phase, job_phase_number, job_spec, queue_body,
    queue_kinds_to_learn, queue_spec, task_reports, task_state, task_state_number,
};
use wharf_net::protocol::*;

const TENANT: TenantId = TenantId(7);

fn catalog() -> Catalog {
    let mut catalog = Catalog::default();
    catalog.resources = Arc::new(ResourceRegistry::with_names(["fpga", "npu"], &[]).expect("there is room"));
    catalog
}

fn defaults() -> PlacementDefaults {
    PlacementDefaults { policy: Policy::BestFit, tenant: TENANT, orders: 2, ..PlacementDefaults::default() }
}

fn amounts(of: &[(&str, i64)]) -> AmountsBody {
    let named = |&(name, amount): &(&str, i64)| NamedAmount { name: name.to_owned(), amount };
    AmountsBody { amounts: of.iter().map(named).collect() }
}

/// Returns a queue whose fields all differ from their defaults.
fn queue() -> QueueBody {
    QueueBody {
        name: "q".to_owned(),
        parent: "p".to_owned(),
        tenant: Some(4),
        weight: 2,
        guarantee: amounts(&[("cpu", 3), ("npu", 4)]),
        deserved: Some(amounts(&[("gpu", 5)])),
        capability: amounts(&[("memory", 0), ("fpga", 300)]),
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

fn plain_job() -> JobBody {
    JobBody {
        name: "j".to_owned(),
        queue: "q".to_owned(),
        roles: vec![RoleBody { name: "task".to_owned(), min_member: 0 }],
        tasks: vec![TaskGroupBody::default()],
        ..JobBody::default()
    }
}

fn policy(action: u8, exit_code: Option<i32>) -> JobPolicyBody {
    JobPolicyBody {
        events: vec![TASK_EVENT_FAILED, TASK_EVENT_EVICTED],
        action,
        exit_code,
        timeout: exit_code.map(|_| 60_000_000_000),
    }
}

fn topology(mode: u8, tier: &str) -> Option<JobTopologyBody> {
    Some(JobTopologyBody { mode, tier: tier.to_owned() })
}

/// Returns a job whose fields all differ from their defaults.
fn job() -> JobBody {
    let demand =
        DemandBody { cpu: 10_000, memory: 20_000, gpu: 5000, custom: amounts(&[("npu", 4)]).amounts };
    let term = SelectorTerm {
        key: "zone".to_owned(),
        operator: OPERATOR_IN,
        values: vec![Name("a".to_owned()), Name("b".to_owned())],
    };
    let request = PlaceRequest {
        demand,
        policy: POLICY_SPREAD,
        attribute_order: 2,
        selectors: vec![term.clone()],
        preferred_selectors: vec![PreferredSelector { weight: 20, terms: vec![term] }],
        candidates: vec![9, 12],
        tolerations: vec![Toleration {
            key: "a".to_owned(),
            operator: OPERATOR_EQUAL,
            value: "b".to_owned(),
            effect: EFFECT_NO_SCHEDULE,
        }],
        explain: EXPLAIN_FULL,
        preferred_nodes: vec![21],
        avoid_gpu: AVOID_GPU_NO,
        owner: 23,
        ..PlaceRequest::default()
    };
    let group = |request, role| TaskGroupBody {
        request,
        count: 3,
        role,
        priority: Some(4),
        preemptable: false,
        master: true,
        run_time: Some(60_000_000_000),
        policies: vec![policy(ACTION_RESTART_TASK, Some(7))],
        topology: Some(JobTopologyBody { mode: JOB_TOPOLOGY_SOFT, tier: String::new() }),
        // It becomes a number when the job is submitted.
        priority_class: String::new(),
    };
    JobBody {
        name: "j".to_owned(),
        queue: "q".to_owned(),
        min_member: 2,
        min_resources: Some(amounts(&[("cpu", 3), ("fpga", 9)])),
        roles: vec![
            RoleBody { name: "ps".to_owned(), min_member: 1 },
            RoleBody { name: "run".to_owned(), min_member: 0 },
        ],
        tasks: vec![
            group(request, 1),
            TaskGroupBody {
                request: PlaceRequest {
                    policy: POLICY_BEST_FIT,
                    avoid_gpu: AVOID_GPU_NO,
                    ..PlaceRequest::default()
                },
                priority: Some(0),
                ..TaskGroupBody::default()
            },
        ],
        priority: Some(5),
        preempts: false,
        policies: vec![policy(ACTION_RESTART_JOB, None), policy(ACTION_ABORT_JOB, Some(-3))],
        max_retry: 8,
        user: "ann".to_owned(),
        topology: Some(JobTopologyBody { mode: JOB_TOPOLOGY_HARD, tier: "rack".to_owned() }),
        min_success: Some(3),
        wait: Some(12),
        priority_class: "high".to_owned(),
    }
}

#[test]
fn a_queue_comes_back_as_it_was() {
    for body in [queue(), QueueBody { name: "plain".to_owned(), ..QueueBody::default() }] {
        let (spec, parent) = queue_spec(body.clone(), &catalog().resources).expect("it is sound");
        assert_eq!(queue_body(&spec, parent.as_deref(), &catalog().resources), body);
    }
}

#[test]
fn a_job_comes_back_as_it_was() {
    let spec = job_spec(job(), &catalog(), defaults()).expect("it is sound");
    assert_eq!(spec.tenant, TENANT);
    assert!(spec.tasks.iter().all(|group| group.request.tenant == TENANT));
    assert_eq!(spec.tasks[0].request.order, OrderChoice::Configured(1));
    let (body, affinities) = job_body(&spec, "q", &catalog().resources);
    assert_eq!((&body, &affinities[..]), (&job(), &[false, false][..]));
    let again = job_spec(body, &catalog(), defaults()).expect("it was sound");
    assert_eq!(again, spec);
    // A task for one node keeps its affinity next to the body.
    let mut affine = plain_job();
    affine.tasks[0].request.candidates = vec![9];
    let mut spec = job_spec(affine, &catalog(), defaults()).expect("it is sound");
    Arc::make_mut(spec.tasks[0].request.preferences.get_or_insert_default()).affinity = true;
    let (body, affinities) = job_body(&spec, "q", &catalog().resources);
    assert_eq!((affinities, body.tasks[0].request.candidates.clone()), (vec![true], vec![NodeId(9).0]));
}

#[test]
fn numbers_of_states_and_phases_come_back() {
    for state in TaskState::ALL {
        assert_eq!(task_state("state", task_state_number(state)), Ok(state));
    }
    for phase in JobPhase::ALL {
        assert_eq!(job_phase("phase", job_phase_number(phase)), Ok(phase));
    }
    let fault = task_state("tasks[3].state", 0).expect_err("0 is none");
    assert_eq!((fault.reason, &*fault.field), (Reason::InvalidField.into(), "tasks[3].state"));
    assert!(job_phase("phase", 9).is_err());
}

#[test]
fn a_queue_that_cannot_be_is_refused_by_its_field() {
    let with = |change: fn(&mut QueueBody)| {
        let mut queue = queue();
        change(&mut queue);
        queue
    };
    let cases = [
        (with(|queue| queue.name = String::new()), "name", "give one"),
        (with(|queue| queue.parent = "a\nb".to_owned()), "parent", "control characters"),
        (with(|queue| queue.ordering = 3), "ordering", "give 0 (drf), 1 (fifo) or 2 (fair)"),
        (with(|queue| queue.guarantee = amounts(&[("cpu", -1)])), "guarantee[0].amount", ""),
        (with(|queue| queue.guarantee = amounts(&[("cpu", 1), ("cpu", 2)])), "guarantee", "twice"),
        (with(|queue| queue.capability = amounts(&[("gpu_part", 1)])), "capability[0].name", "gpu_part"),
        (with(|queue| queue.deserved = Some(amounts(&[("qpu", 1)]))), "deserved[0].name", "check the name"),
    ];
    for (queue, field, part) in cases {
        let fault = queue_spec(queue, &catalog().resources).expect_err(field);
        assert!(fault.field == field && fault.message.contains(part), "{fault}");
    }
}

#[test]
fn a_job_that_cannot_be_is_refused_by_its_field() {
    let with = |change: fn(&mut JobBody)| {
        let mut job = job();
        change(&mut job);
        job
    };
    let of_task = |change: fn(&mut PlaceRequest)| {
        let mut job = job();
        change(&mut job.tasks[1].request);
        job
    };
    let cases = [
        (with(|job| job.name = String::new()), "name", "give one"),
        (with(|job| job.queue = String::new()), "queue", "give one"),
        (with(|job| job.priority_class = "a\nb".to_owned()), "priority_class", "control characters"),
        (with(|job| job.roles.clear()), "roles", "at least one"),
        (with(|job| job.roles[1].name = "ps".to_owned()), "roles[1].name", "once"),
        (with(|job| job.policies[1].action = 9), "policies[1].action", "give 1 (restart_task)"),
        (with(|job| job.policies[0].events[1] = 0), "policies[0].events[1]", "give 1 (task_failed)"),
        (with(|job| job.tasks[0].policies[0].action = 0), "tasks[0].policies[0].action", "or 4 (abort_job)"),
        (with(|job| job.tasks[1].role = 2), "tasks[1].role", "give 0 to 1"),
        (with(|job| job.tasks[1].count = 0), "tasks[1].count", "give 1 or more"),
        (with(|job| job.min_resources = Some(amounts(&[("cpu", -1)]))), "min_resources[0].amount", ""),
        (with(|job| job.tasks[0].request.candidates = (1..=1025).collect()), "tasks", "at most 1024"),
        (of_task(|request| request.mode = MODE_WAIT_UNTIL), "tasks[1].mode", "leave it"),
        (of_task(|request| request.priority = 1), "tasks[1].priority", "leave it"),
        (of_task(|request| request.deadline = 1), "tasks[1].deadline", "leave it"),
        (of_task(|request| request.count = 2), "tasks[1].count", "leave this at 1"),
        (of_task(|request| request.lease = 1), "tasks[1].lease", "no leases"),
        (of_task(|request| request.session_lease = true), "tasks[1].lease", "no leases"),
        (JobBody { user: "a\nb".to_owned(), ..job() }, "user", "control characters"),
        (with(|job| job.topology = topology(3, "rack")), "topology.mode", "give 1 (hard) or 2 (soft)"),
        (with(|job| job.topology = topology(1, "a\nb")), "topology.tier", "control characters"),
        (with(|job| job.tasks[1].topology = topology(0, "")), "tasks[1].topology.mode", "give 1 (hard)"),
        (of_task(|request| request.policy = 200), "tasks[1].policy", "200"),
        (of_task(|request| request.demand.cpu = -1), "tasks[1].cpu", ""),
    ];
    for (job, field, part) in cases {
        let fault = job_spec(job, &catalog(), defaults()).expect_err(field);
        assert!(fault.field == field && fault.message.contains(part), "{fault}");
    }
}

#[test]
fn only_kinds_of_a_sound_request_are_learnt() {
    let catalog = catalog();
    let queue_learns = |queue: &QueueBody| queue_kinds_to_learn(queue, &catalog.resources);
    assert_eq!(queue_learns(&queue()), Ok(vec![]));
    let mut wide = queue();
    wide.capability = amounts(&[("qpu", 0), ("cpu", 1)]);
    wide.guarantee = amounts(&[("tpu", 2)]);
    wide.deserved = Some(amounts(&[("qpu", 3)]));
    assert_eq!(queue_learns(&wide).expect("it is sound"), ["qpu", "tpu"]);
    wide.ordering = 9;
    assert_eq!(queue_learns(&wide).expect_err("it is not sound").field, "ordering");
    let job_learns = |job: &JobBody| job_kinds_to_learn(job, &catalog, defaults());
    assert_eq!(job_learns(&job()), Ok(vec![]));
    let mut wide = job();
    wide.min_resources = Some(amounts(&[("qpu", 1)]));
    wide.tasks[1].request.demand.custom = amounts(&[("tpu", 20_000), ("npu", 1)]).amounts;
    assert_eq!(job_learns(&wide).expect("it is sound"), ["qpu", "tpu"]);
    wide.roles.clear();
    assert_eq!(job_learns(&wide).expect_err("it is not sound").field, "roles");
    let twice = QueueBody { guarantee: amounts(&[("qpu", 1), ("qpu", 1)]), ..queue() };
    assert!(queue_learns(&twice).expect_err("it is given twice").message.contains("twice"));
    let names: Vec<String> = (0..RESOURCE_KINDS_WAITED_MAX).map(|i| format!("r{i}")).collect();
    let full = ResourceRegistry::with_names(names.iter().map(String::as_str), &[]).expect("there is room");
    let fault = queue_kinds_to_learn(&queue(), &full).expect_err("there is no room for more");
    assert_eq!((fault.reason, &*fault.field), (Reason::LimitExceeded.into(), "guarantee[1].name"));
}

#[test]
fn reports_are_read_with_their_place() {
    let allocation = WireAllocation { incarnation: 1, partition: 2, sequence: 3, tenant: 7 };
    let report = TaskReportBody { job: 4, index: 5, allocation, state: TASK_FAILED, exit_code: Some(137) };
    let read = task_reports(&[report]).expect("it is sound");
    assert_eq!((read[0].task.job.0, read[0].task.index, read[0].state), (4, 5, TaskState::Failed));
    assert_eq!(read[0].exit_code, Some(137));
    assert_eq!(task_reports(&[]).expect_err("there is none").field, "tasks");
    let broken = TaskReportBody { state: 11, ..report };
    assert_eq!(task_reports(&[report, broken]).expect_err("11 is no state").field, "tasks[1].state");
}

/// A list that is longer than a message may have is refused by its field before anything is made of it.
#[test]
fn lists_of_jobs_have_bounds() {
    fn field_of<T: serde::Serialize + serde::de::DeserializeOwned + std::fmt::Debug>(body: &T) -> String {
        let mut bytes = Vec::new();
        encode_body(body, &mut bytes);
        decode_body::<T>(&bytes).expect_err("it is too long").field
    }
    let many = |count| AmountsBody { amounts: vec![NamedAmount::default(); count] };
    assert_eq!(field_of(&many(JOB_AMOUNTS_MAX + 1)), "amounts");
    let roles = vec![RoleBody::default(); JOB_ROLES_MAX + 1];
    assert_eq!(field_of(&JobBody { roles, ..plain_job() }), "roles");
    let tasks = vec![TaskGroupBody::default(); JOB_TASK_GROUPS_MAX + 1];
    assert_eq!(field_of(&JobBody { tasks, ..plain_job() }), "tasks");
    let policies = vec![JobPolicyBody::default(); JOB_POLICIES_PER_LIST_MAX + 1];
    assert_eq!(field_of(&JobBody { policies: policies.clone(), ..plain_job() }), "policies");
    assert_eq!(field_of(&TaskGroupBody { policies, ..TaskGroupBody::default() }), "policies");
    let events = vec![TASK_EVENT_ANY; TASK_EVENTS_MAX + 1];
    assert_eq!(field_of(&JobPolicyBody { events, ..JobPolicyBody::default() }), "events");
    let tasks = vec![TaskReportBody::default(); TASK_REPORTS_PER_MESSAGE_MAX + 1];
    assert_eq!(field_of(&ReportTasksRequest { tasks }), "tasks");
    let jobs = vec![JobSummaryBody::default(); JOBS_PER_MESSAGE_MAX + 1];
    assert_eq!(field_of(&ListJobsReply { jobs, more: false }), "jobs");
    let queues = vec![QueueStatusBody::default(); QUEUES_PER_MESSAGE_MAX + 1];
    assert_eq!(field_of(&ListQueuesReply { queues, more: false }), "queues");
    let users = vec![UserBody::default(); QUEUE_USERS_SHOWN_MAX + 1];
    assert_eq!(field_of(&QueueStatusBody { users, ..QueueStatusBody::default() }), "users");
    assert_eq!(field_of(&JobBody { user: "u".repeat(USER_BYTES_MAX + 1), ..plain_job() }), "user");
    assert_eq!(field_of(&RemoveQueueRequest { name: "n".repeat(254) }), "name");
}
