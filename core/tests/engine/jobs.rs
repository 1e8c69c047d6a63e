//! The keeper of jobs in a whole engine: requests, cycles, what shards tell, and restarts.

use wharf_core::cycle::CycleConfig;
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{ShardRunner, Unobserved};
use wharf_core::fairness::{Caps, Dim};
use wharf_core::group::PlanJob;
use wharf_core::ids::{NodeId, TenantId};
use wharf_core::jobs::{
    JobError, JobId, JobPhase, JobSpec, JobsDone, JobsRejection, JobsReply, JobsRequest, QueueContents,
    QueueError, QueueSpec, TaskGroup, TaskReport, TaskState,
};
use wharf_core::node::{LifeEvent, NodeRegistration};
use wharf_core::planner::{JobsConfig, PlannerMetrics};
use wharf_core::request::PlacementRequest;
use wharf_core::router::PortRequest;
use wharf_core::state::StoreState;

use crate::by_hand::{ManualClock, ask, cores, node_spec, remove_node, settle};
use crate::group_bed::{add_agent_node, life, live_allocations, with_nodes};
use crate::jobs_bed::{
    INTERVAL_NS, ask_jobs, bag, cancel, check_jobs, counts, export_all, gang, job_status, jobs_config,
    jobs_engine, jobs_of, named, open_with, report, set_queue, states, submit_job, try_submit, wait, wait_ns,
};

/// The counters of the keeper of jobs.
fn metrics_of(engine: &Engine) -> PlannerMetrics {
    let mut planners = engine.planners.iter().map(|runner| runner.planner());
    *planners.find(|planner| planner.keeps_jobs()).expect("somebody keeps jobs").metrics()
}

#[test]
fn a_job_is_placed_runs_and_gives_back_what_it_had() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 2, 16, 0);
    let job = submit_job(&mut engine, gang("train", 4, cores(8)), "all");
    let view = job_status(&mut engine, job);
    assert_eq!(view.job.phase, JobPhase::Running);
    assert!(view.tasks.iter().all(|task| task.state == TaskState::Bound && task.allocation.is_some()));
    assert_eq!(live_allocations(&mut engine), 4);
    check_jobs(&mut engine);
    assert_eq!(report(&mut engine, job, TaskState::Running), 0);
    assert_eq!(states(&mut engine, job), [TaskState::Running; 4]);
    assert_eq!(report(&mut engine, job, TaskState::Succeeded), 0);
    assert_eq!(job_status(&mut engine, job).job.phase, JobPhase::Completed);
    assert_eq!(live_allocations(&mut engine), 0);
    check_jobs(&mut engine);
}

/// A report about an allocation that the task has no longer must not end the task in the one that it has now.
#[test]
fn a_report_about_an_earlier_allocation_is_out_of_date() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    with_nodes(&mut engine, 1, 16, 0);
    let job = submit_job(&mut engine, bag("one", 1), "all");
    let first = job_status(&mut engine, job).tasks[0].allocation.expect("it is placed");
    ask(&mut engine, PortRequest::Release(first));
    wait(&mut engine);
    let second = job_status(&mut engine, job).tasks[0].allocation.expect("it is placed again");
    assert_ne!(first, second);
    let task = wharf_core::jobs::TaskId { job, index: 0 };
    let tasks = vec![TaskReport { task, allocation: first, state: TaskState::Succeeded, exit_code: None }];
    let done = ask_jobs(&mut engine, JobsRequest::Report { tenant: None, tasks });
    assert!(matches!(&done, Ok(JobsReply::Done(JobsDone::Reported(late))) if late[..] == [0]), "{done:?}");
    assert_eq!(states(&mut engine, job), [TaskState::Bound]);
    check_jobs(&mut engine);
}

#[test]
fn a_gang_waits_for_nodes_and_is_placed_whole() {
    let mut engine = jobs_engine(3, CycleConfig::default());
    with_nodes(&mut engine, 1, 16, 0);
    let job = submit_job(&mut engine, gang("gang", 3, cores(16)), "all");
    wait(&mut engine);
    assert_eq!(states(&mut engine, job), [TaskState::Pending; 3]);
    assert_eq!(live_allocations(&mut engine), 0);
    for name in ["late-0", "late-1"] {
        crate::by_hand::add_node(&mut engine, node_spec(name, 16, 0));
    }
    wait(&mut engine);
    assert_eq!(states(&mut engine, job), [TaskState::Bound; 3]);
    check_jobs(&mut engine);
}

#[test]
fn a_cap_holds_over_all_shards() {
    let mut engine = jobs_engine(4, CycleConfig::default());
    with_nodes(&mut engine, 8, 16, 0);
    let mut capability = Caps::none();
    capability.set(Dim::CPU, 10 * 10_000);
    set_queue(&mut engine, QueueSpec { capability, ..QueueSpec::new("small") });
    let job = submit_job(&mut engine, bag("many", 30), "small");
    for _ in 0..5 {
        wait(&mut engine);
        check_jobs(&mut engine);
        let placed = [TaskState::Bound, TaskState::Running].map(|state| counts(&mut engine, job, state));
        assert_eq!(placed.iter().sum::<u32>(), 10);
        report(&mut engine, job, TaskState::Running);
    }
    report(&mut engine, job, TaskState::Succeeded);
    wait(&mut engine);
    assert_eq!(counts(&mut engine, job, TaskState::Bound), 10);
    check_jobs(&mut engine);
}

#[test]
fn a_cancelled_job_gives_back_what_it_had_after_its_grace_period() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 2, 16, 0);
    let at_once = submit_job(&mut engine, bag("at-once", 4), "all");
    let later = submit_job(&mut engine, bag("later", 40), "all");
    wait(&mut engine);
    assert_eq!(
        (counts(&mut engine, later, TaskState::Bound), counts(&mut engine, later, TaskState::Pending)),
        (28, 12)
    );
    cancel(&mut engine, at_once, 0);
    assert_eq!(states(&mut engine, at_once), [TaskState::Failed; 4]);
    cancel(&mut engine, later, 1_000_000_000);
    assert_eq!(job_status(&mut engine, later).job.phase, JobPhase::Cancelled);
    let before = counts(&mut engine, later, TaskState::Releasing);
    assert!(before >= 28, "{before}");
    check_jobs(&mut engine);
    wait_ns(&mut engine, 2_000_000_000);
    wait(&mut engine);
    assert_eq!(counts(&mut engine, later, TaskState::Failed), 40);
    assert_eq!(live_allocations(&mut engine), 0);
    // Once more does no harm when all has ended.
    cancel(&mut engine, later, 0);
    assert_eq!(job_status(&mut engine, later).job.phase, JobPhase::Cancelled);
    check_jobs(&mut engine);
}

#[test]
fn ended_jobs_make_room_for_new_ones() {
    let config = jobs_config(1, CycleConfig::default());
    let jobs = config.jobs.map(|jobs| JobsConfig { tasks_max: 10, ..jobs });
    let mut engine = open_with(StoreState::create(8), &EngineConfig { jobs, ..config });
    set_queue(&mut engine, QueueSpec::new("all"));
    let first = submit_job(&mut engine, bag("first", 4), "all");
    let second = submit_job(&mut engine, bag("second", 4), "all");
    let refused = try_submit(&mut engine, bag("third", 4), "all");
    assert_eq!(refused, Err(JobsRejection::TooManyTasks(12)));
    cancel(&mut engine, first, 0);
    assert_eq!(states(&mut engine, first), [TaskState::Failed; 4], "it is kept as long as there is room");
    let third = submit_job(&mut engine, bag("third", 4), "all");
    let left: Vec<JobId> = jobs_of(&engine).jobs().map(|(id, _)| id).collect();
    assert_eq!(left, [second, third]);
    check_jobs(&mut engine);
}

#[test]
fn a_grace_period_of_a_cancelled_job_may_be_cut_short() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    with_nodes(&mut engine, 1, 16, 0);
    let job = submit_job(&mut engine, bag("long", 4), "all");
    cancel(&mut engine, job, u64::from(u32::MAX));
    cancel(&mut engine, job, 1_000);
    assert_eq!(states(&mut engine, job), [TaskState::Releasing; 4]);
    check_jobs(&mut engine);
    cancel(&mut engine, job, 0);
    assert_eq!(states(&mut engine, job), [TaskState::Failed; 4]);
    assert_eq!(live_allocations(&mut engine), 0);
    check_jobs(&mut engine);
}

/// Queues are found by their numbers, and a queue that was removed leaves its own. Finds rules that look at the queue after.
#[test]
fn a_reclaim_looks_at_the_queues_that_are_there() {
    for reclaimable in [true, false] {
        let mut engine = jobs_engine(1, CycleConfig::default());
        with_nodes(&mut engine, 1, 4, 0);
        set_queue(&mut engine, QueueSpec::new("gone"));
        set_queue(&mut engine, QueueSpec::new("poor"));
        set_queue(&mut engine, QueueSpec { reclaimable, ..QueueSpec::new("rich") });
        ask_jobs(&mut engine, JobsRequest::RemoveQueue(named("gone"))).expect("it is empty");
        let rich = submit_job(&mut engine, bag("rich", 4), "rich");
        assert_eq!(counts(&mut engine, rich, TaskState::Bound), 4);
        let poor = submit_job(&mut engine, bag("poor", 2), "poor");
        for _ in 0..3 {
            wait(&mut engine);
            check_jobs(&mut engine);
        }
        let placed = if reclaimable { 2 } else { 0 };
        assert_eq!(counts(&mut engine, poor, TaskState::Bound), placed);
    }
}

#[test]
fn a_parent_of_a_queue_is_not_changed_silently() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    set_queue(&mut engine, QueueSpec::new("other"));
    let set = |parent: Option<&str>| JobsRequest::SetQueue {
        spec: Box::new(QueueSpec { weight: 2, ..QueueSpec::new("child") }),
        parent: parent.map(named),
    };
    ask_jobs(&mut engine, set(Some("all"))).expect("a new queue");
    ask_jobs(&mut engine, set(None)).expect("it keeps its parent");
    ask_jobs(&mut engine, set(Some("all"))).expect("it is the same");
    let fixed = QueueError::ParentFixed { queue: named("child"), parent: named("all") };
    assert_eq!(ask_jobs(&mut engine, set(Some("other"))).map(drop), Err(JobsRejection::Queue(fixed)));
    let own = JobsRequest::SetQueue { spec: Box::new(QueueSpec::new("new")), parent: Some(named("new")) };
    let circle = Err(JobsRejection::Queue(QueueError::Cycle(named("new"))));
    assert_eq!(ask_jobs(&mut engine, own).map(drop), circle);
}

#[test]
fn tasks_of_nodes_that_are_lost_or_removed_are_placed_elsewhere() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    let lost = add_agent_node(&mut engine, node_spec("lost", 16, 0));
    let first = submit_job(&mut engine, gang("first", 1, cores(16)), "all");
    assert_eq!(job_status(&mut engine, first).tasks[0].node, Some(lost));
    let removed = crate::by_hand::add_node(&mut engine, node_spec("removed", 16, 0));
    let second = submit_job(&mut engine, gang("second", 1, cores(16)), "all");
    wait(&mut engine);
    assert_eq!(job_status(&mut engine, second).tasks[0].node, Some(removed.id));
    life(&mut engine, lost, LifeEvent::Lose);
    remove_node(&mut engine, &removed);
    wait(&mut engine);
    assert_eq!([states(&mut engine, first), states(&mut engine, second)].concat(), [TaskState::Pending; 2]);
    check_jobs(&mut engine);
    with_nodes(&mut engine, 2, 16, 0);
    wait(&mut engine);
    assert_eq!([states(&mut engine, first), states(&mut engine, second)].concat(), [TaskState::Bound; 2]);
    check_jobs(&mut engine);
}

#[test]
fn a_job_of_higher_priority_gets_what_it_evicts_when_the_grace_period_is_over() {
    let mut engine = jobs_engine(1, CycleConfig { grace_ns: 1_000_000_000, ..CycleConfig::default() });
    with_nodes(&mut engine, 1, 16, 0);
    let low = submit_job(&mut engine, bag("low", 16), "all");
    assert_eq!(counts(&mut engine, low, TaskState::Bound), 16);
    let high = JobSpec { priority: 10, ..gang("high", 1, cores(4)) };
    let high = submit_job(&mut engine, high, "all");
    wait(&mut engine);
    assert_eq!(states(&mut engine, high), [TaskState::Pipelined]);
    assert_eq!(counts(&mut engine, low, TaskState::Releasing), 4);
    check_jobs(&mut engine);
    wait_ns(&mut engine, 2_000_000_000);
    wait(&mut engine);
    assert_eq!(states(&mut engine, high), [TaskState::Bound]);
    assert_eq!(counts(&mut engine, low, TaskState::Pending), 4);
    check_jobs(&mut engine);
    let metrics = metrics_of(&engine);
    assert_eq!((metrics.tasks_placed, metrics.tasks_evicted, metrics.tasks_pending), (17, 4, 4));
    assert!(metrics.cycles >= 2, "{metrics:?}");
}

/// Has a gang of two hold one node, and claim another one from a job of lower priority. Returns the gang, that job, and the
/// claimed node.
fn starting(engine: &mut Engine) -> (JobId, JobId, NodeRegistration) {
    let claimed = crate::by_hand::add_node(engine, node_spec("claimed", 4, 0));
    let low = JobSpec { min_member: 0, ..gang("low", 1, cores(4)) };
    let low = submit_job(engine, low, "all");
    assert_eq!(states(engine, low), [TaskState::Bound]);
    with_nodes(engine, 1, 4, 0);
    let high = JobSpec { priority: 10, ..gang("high", 2, cores(4)) };
    let high = submit_job(engine, high, "all");
    wait(engine);
    assert_eq!([TaskState::Allocated, TaskState::Pipelined].map(|state| counts(engine, high, state)), [1, 1]);
    (high, low, claimed)
}

#[test]
fn a_gang_that_loses_its_claim_gives_up_its_other_node() {
    let mut engine = jobs_engine(2, CycleConfig { grace_ns: 1_000_000_000, ..CycleConfig::default() });
    let (high, low, claimed) = starting(&mut engine);
    remove_node(&mut engine, &claimed);
    for _ in 0..3 {
        wait(&mut engine);
        check_jobs(&mut engine);
    }
    assert_eq!(states(&mut engine, high), [TaskState::Pending; 2]);
    assert_eq!(states(&mut engine, low), [TaskState::Bound], "it has the node that was given up");
    assert_eq!(live_allocations(&mut engine), 1);
}

/// No task is pending any more, and nobody asks for anything.
#[test]
fn what_a_gang_holds_that_can_never_start_is_given_back_by_itself() {
    let mut engine = jobs_engine(2, CycleConfig { grace_ns: 1_000_000_000, ..CycleConfig::default() });
    let (high, low, _) = starting(&mut engine);
    report(&mut engine, high, TaskState::Failed);
    cancel(&mut engine, low, 0);
    for _ in 0..3 {
        wait(&mut engine);
        check_jobs(&mut engine);
    }
    assert_eq!([TaskState::Failed, TaskState::Pending].map(|state| counts(&mut engine, high, state)), [1, 1]);
    assert_eq!(live_allocations(&mut engine), 0);
}

/// Both jobs are of one queue, whose cap the first one fills. So the tasks of the second one wait for the cap, without a
/// claim, until the evicted ones have ended. Finds a grant that is taken for that of another task of the plan.
#[test]
fn a_gang_waits_for_the_cap_of_its_queue_until_its_victims_have_ended() {
    for grace_ns in [0, 1_000_000_000] {
        let mut engine = jobs_engine(2, CycleConfig { grace_ns, ..CycleConfig::default() });
        with_nodes(&mut engine, 4, 16, 0);
        let mut capability = Caps::none();
        capability.set(Dim::CPU, 8 * 10_000);
        set_queue(&mut engine, QueueSpec { capability, ..QueueSpec::new("small") });
        let low = JobSpec { min_member: 1, ..gang("low", 4, cores(2)) };
        let low = submit_job(&mut engine, low, "small");
        assert_eq!(counts(&mut engine, low, TaskState::Bound), 4);
        let high = JobSpec { priority: 10, ..gang("high", 2, cores(2)) };
        let high = submit_job(&mut engine, high, "small");
        for _ in 0..3 {
            wait(&mut engine);
            check_jobs(&mut engine);
        }
        wait_ns(&mut engine, 2 * grace_ns);
        wait(&mut engine);
        check_jobs(&mut engine);
        assert_eq!(states(&mut engine, high), [TaskState::Bound; 2], "with a grace period of {grace_ns} ns");
        assert_eq!(counts(&mut engine, low, TaskState::Bound), 2);
        assert_eq!(counts(&mut engine, low, TaskState::Pending), 2);
    }
}

#[test]
fn a_task_whose_run_time_is_over_fails_with_or_without_grace() {
    for grace_ns in [0, 1_000_000_000] {
        let mut engine = jobs_engine(1, CycleConfig { grace_ns, ..CycleConfig::default() });
        with_nodes(&mut engine, 1, 16, 0);
        let mut spec = bag("short", 3);
        spec.tasks[0].run_time_ns = Some(500_000_000);
        let job = submit_job(&mut engine, spec, "all");
        assert_eq!(states(&mut engine, job), [TaskState::Bound; 3]);
        wait_ns(&mut engine, 600_000_000);
        check_jobs(&mut engine);
        wait_ns(&mut engine, 2_000_000_000);
        assert_eq!(states(&mut engine, job), [TaskState::Failed; 3], "with a grace period of {grace_ns} ns");
        assert_eq!(job_status(&mut engine, job).job.phase, JobPhase::Failed);
        assert_eq!(live_allocations(&mut engine), 0);
        let metrics = metrics_of(&engine);
        assert_eq!((metrics.tasks_placed, metrics.tasks_evicted), (3, 0), "it makes room for nobody");
        check_jobs(&mut engine);
        // Its queue may be removed: an ended job is forgotten with it.
        ask_jobs(&mut engine, JobsRequest::RemoveQueue(named("all"))).expect("all of its jobs have ended");
        assert_eq!(jobs_of(&engine).jobs().len(), 0);
    }
}

#[test]
fn jobs_survive_a_start_with_another_number_of_shards() {
    let mut engine = jobs_engine(3, CycleConfig::default());
    with_nodes(&mut engine, 2, 16, 0);
    set_queue(&mut engine, QueueSpec::new("parent"));
    let child =
        JobsRequest::SetQueue { spec: Box::new(QueueSpec::new("child")), parent: Some(named("parent")) };
    ask_jobs(&mut engine, child).expect("its parent is there");
    let runs = submit_job(&mut engine, bag("runs", 20), "child");
    let waits = submit_job(&mut engine, gang("waits", 4, cores(8)), "all");
    report(&mut engine, runs, TaskState::Running);
    let before = job_status(&mut engine, runs);
    let state = export_all(&mut engine);
    let mut engine = open_with(state, &jobs_config(2, CycleConfig::default()));
    wait(&mut engine);
    let after = job_status(&mut engine, runs);
    let places = |view: &wharf_core::jobs::JobView| -> Vec<_> {
        view.tasks.iter().map(|task| (task.index, task.state, task.node, task.allocation)).collect()
    };
    assert_eq!(places(&after), places(&before));
    check_jobs(&mut engine);
    assert_eq!(states(&mut engine, waits), [TaskState::Pending; 4]);
    report(&mut engine, runs, TaskState::Succeeded);
    wait(&mut engine);
    assert_eq!(states(&mut engine, waits), [TaskState::Bound; 4]);
    let next = submit_job(&mut engine, bag("next", 1), "child");
    assert_eq!(next, JobId(waits.0 + 1), "ids are not given out twice");
    check_jobs(&mut engine);
}

#[test]
fn a_tenant_sees_and_changes_its_own_jobs_only() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    let [one, two] = [TenantId(1), TenantId(2)];
    set_queue(&mut engine, QueueSpec { tenant: Some(one), ..QueueSpec::new("of-one") });
    let of = |tenant: TenantId, name: &str| JobSpec { tenant, ..bag(name, 1) };
    let refused = try_submit(&mut engine, of(two, "foreign"), "of-one");
    assert_eq!(refused, Err(JobsRejection::ForeignQueue(named("of-one"))));
    let own = submit_job(&mut engine, of(one, "own"), "of-one");
    let other = submit_job(&mut engine, of(two, "other"), "all");
    let unknown = |job| Err(JobsRejection::UnknownJob(job));
    let status = JobsRequest::Status { job: own, tenant: Some(two), from: 0, limit: 9 };
    assert_eq!(ask_jobs(&mut engine, status).map(drop), unknown(own));
    let stop = JobsRequest::Cancel { job: own, tenant: Some(two), grace_ns: 0 };
    assert_eq!(ask_jobs(&mut engine, stop).map(drop), unknown(own));
    let list = |tenant| JobsRequest::List { tenant, queue: None, after: None, limit: 9 };
    let ids = |reply: Result<JobsReply, JobsRejection>| match reply {
        Ok(JobsReply::Jobs(jobs)) => jobs.iter().map(|job| job.id).collect::<Vec<_>>(),
        other => panic!("a list: {other:?}"),
    };
    assert_eq!(ids(ask_jobs(&mut engine, list(Some(two)))), [other]);
    assert_eq!(ids(ask_jobs(&mut engine, list(None))), [own, other]);
    let after = JobsRequest::List { tenant: None, queue: Some(named("all")), after: Some(own), limit: 9 };
    assert_eq!(ids(ask_jobs(&mut engine, after)), [other]);
    let queues = |tenant| JobsRequest::ListQueues { tenant, after: None, limit: 9 };
    let names = |reply: Result<JobsReply, JobsRejection>| match reply {
        Ok(JobsReply::Queues(queues)) => {
            queues.iter().map(|queue| queue.spec.name.to_string()).collect::<Vec<_>>()
        }
        other => panic!("a list: {other:?}"),
    };
    assert_eq!(names(ask_jobs(&mut engine, queues(Some(two)))), ["all"]);
    assert_eq!(names(ask_jobs(&mut engine, queues(None))), ["all", "of-one"]);
}

#[test]
fn what_is_wrong_is_refused_and_changes_nothing() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    set_queue(&mut engine, QueueSpec { open: false, ..QueueSpec::new("closed") });
    let before = jobs_of(&engine).record();
    let missing = try_submit(&mut engine, bag("a", 1), "missing");
    let expected = JobError::UnknownQueue { job: named("a"), queue: named("missing") };
    assert_eq!(missing, Err(JobsRejection::Job(expected)));
    let closed = try_submit(&mut engine, bag("a", 1), "closed");
    let expected = JobError::ClosedQueue { job: named("a"), queue: named("closed") };
    assert_eq!(closed, Err(JobsRejection::Job(expected)));
    let root = JobsRequest::SetQueue { spec: Box::new(QueueSpec::new("root")), parent: None };
    assert_eq!(ask_jobs(&mut engine, root).map(drop), Err(JobsRejection::Queue(QueueError::Root)));
    let orphan =
        JobsRequest::SetQueue { spec: Box::new(QueueSpec::new("orphan")), parent: Some(named("no")) };
    let unknown = |name| Err(JobsRejection::Queue(QueueError::Unknown(named(name))));
    assert_eq!(ask_jobs(&mut engine, orphan).map(drop), unknown("no"));
    assert_eq!(ask_jobs(&mut engine, JobsRequest::RemoveQueue(named("no"))).map(drop), unknown("no"));
    assert_eq!(jobs_of(&engine).record(), before);
    let job = submit_job(&mut engine, bag("a", 1), "all");
    let in_use = ask_jobs(&mut engine, JobsRequest::RemoveQueue(named("all")));
    assert_eq!(
        in_use.map(drop),
        Err(JobsRejection::Queue(QueueError::InUse {
            queue: named("all"),
            has: QueueContents { jobs: 1, direct: 0, groups: 0 }
        }))
    );
    cancel(&mut engine, job, 0);
    let removed = ask_jobs(&mut engine, JobsRequest::RemoveQueue(named("all")));
    assert!(matches!(removed, Ok(JobsReply::Done(JobsDone::QueueRemoved))), "{removed:?}");
    assert_eq!(jobs_of(&engine).jobs().len(), 0, "ended jobs go with their queue");
}

/// The place of a removed queue is taken again. A queue must come after its parent all the same.
#[test]
fn queues_come_and_go_and_parents_come_first() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    let with_parent = |name: &str, parent: Option<&str>| JobsRequest::SetQueue {
        spec: Box::new(QueueSpec::new(name)),
        parent: parent.map(named),
    };
    for name in ["a", "b", "c"] {
        ask_jobs(&mut engine, with_parent(name, None)).expect("a new queue");
    }
    ask_jobs(&mut engine, JobsRequest::RemoveQueue(named("a"))).expect("it is empty");
    ask_jobs(&mut engine, with_parent("below-c", Some("c"))).expect("a new queue");
    ask_jobs(&mut engine, with_parent("new", None)).expect("a new queue");
    let names: Vec<String> =
        jobs_of(&engine).named_queues().map(|(_, queue)| queue.spec().name.to_string()).collect();
    assert_eq!(names, ["all", "new", "b", "c", "below-c"]);
    let record = jobs_of(&engine).record();
    let engine = open_with(export_all(&mut engine), &jobs_config(1, CycleConfig::default()));
    let again = jobs_of(&engine).record();
    assert_eq!(again, record);
}

/// Shards decide on each statement of a cycle by itself. The one with what a gang needs is refused here, because a node was
/// taken at that moment. Then a further task must not run, although the other shard could hold it.
#[test]
fn no_further_task_runs_if_what_a_gang_needs_is_refused() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    let nodes = with_nodes(&mut engine, 16, 16, 0);
    let has = |runner: &ShardRunner, node: NodeId| {
        let partitions = runner.shard().export().partitions;
        partitions.iter().any(|partition| partition.nodes.iter().any(|record| record.registration.id == node))
    };
    let on = |shard: usize| {
        nodes.iter().copied().filter(|&node| has(&engine.runners[shard], node)).collect::<Vec<_>>()
    };
    let taken: Vec<NodeId> = on(0).into_iter().take(2).collect();
    assert_eq!(taken.len(), 2, "the first shard has several nodes");
    let free = *on(1).first().expect("a node of the second shard");
    let only = |nodes: &[NodeId], cpu| PlacementRequest { candidates: Some(nodes.into()), ..cores(cpu) };
    let tasks = vec![TaskGroup::new(only(&taken, 16), 2), TaskGroup::new(only(&[free], 8), 2)];
    // It needs both nodes of the first shard.
    let spec = JobSpec { min_member: 3, ..JobSpec::new("gang", tasks) };

    // The placements are at the first shard before the statement, and the keeper does not know of them.
    engine.now = engine.now.plus_nanos(INTERVAL_NS);
    let submit =
        JobsRequest::Submit { spec: Box::new(spec), queue: "all".into(), bound: None, priorities: None };
    let placements = taken.iter().map(|&node| PortRequest::Place(only(&[node], 1)));
    for request in placements.chain([PortRequest::Plan(PlanJob::Jobs(Box::new(submit)))]) {
        engine.ports[0].submit(7, request, engine.now).expect("it has room");
    }
    engine.ports[0].flush();
    let clock = ManualClock::new(engine.now);
    while engine.planners[0].run_round(&clock) > 0 {}
    assert!(engine.planners[0].planner().metrics().statements > 0, "the gang is planned");
    // The second shard does all that it is asked for before the first one does anything.
    while engine.runners[1].run_batch(&clock, &mut Unobserved) > 0 {}
    engine.planners[0].run_round(&clock);
    settle(&mut engine);
    let job = jobs_of(&engine).jobs().map(|(id, _)| id).next().expect("it was submitted");
    assert!(engine.planners[0].planner().metrics().conflicted > 0, "the statement is refused");
    for _ in 0..3 {
        assert_eq!(states(&mut engine, job), [TaskState::Pending; 4]);
        assert_eq!(live_allocations(&mut engine), 2, "those of the placements");
        check_jobs(&mut engine);
        wait(&mut engine);
    }
}
