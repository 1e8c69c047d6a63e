//! What jobs do when their tasks fail, are evicted or succeed, in a whole engine and over crashes.

use wharf_core::cycle::CycleConfig;
use wharf_core::engine::Engine;
use wharf_core::ids::AllocationId;
use wharf_core::jobs::{
    JobError, JobId, JobPhase, JobPolicy, JobSpec, JobsDone, JobsRejection, JobsReply, JobsRequest,
    PolicyAction, PolicyFault, TaskEvent, TaskId, TaskReport, TaskState,
};
use wharf_core::journal::Unit;
use wharf_core::limits::{JOB_MAX_RETRY_MAX, JOB_POLICIES_MAX};
use wharf_core::router::PortRequest;

use crate::by_hand::{ask, cores};
use crate::group_bed::{live_allocations, with_nodes};
use crate::jobs_bed::{
    Journaled, after_a_crash, ask_jobs, bag, cancel, check_jobs, export_all, gang, job_status, jobs_config,
    jobs_engine, jobs_of, named, open_with, states, submit_job, try_submit, wait, wait_ns,
};

const SECOND: u64 = 1_000_000_000;

fn on(events: &[TaskEvent], action: PolicyAction) -> JobPolicy {
    JobPolicy { events: events.to_vec(), action, exit_code: None, timeout_ns: None }
}

fn failing(action: PolicyAction) -> Vec<JobPolicy> {
    vec![on(&[TaskEvent::Failed], action)]
}

fn graceful() -> CycleConfig {
    CycleConfig { grace_ns: SECOND, ..CycleConfig::default() }
}

fn allocation(engine: &mut Engine, job: JobId, index: u32) -> AllocationId {
    job_status(engine, job).tasks[index as usize].allocation.expect("it is placed")
}

fn report_one(engine: &mut Engine, job: JobId, index: u32, state: TaskState, exit_code: Option<i32>) {
    let allocation = allocation(engine, job, index);
    let tasks = vec![TaskReport { task: TaskId { job, index }, allocation, state, exit_code }];
    let done = ask_jobs(engine, JobsRequest::Report { tenant: None, tasks });
    assert!(matches!(&done, Ok(JobsReply::Done(JobsDone::Reported(late))) if late.is_empty()), "{done:?}");
}

fn fail(engine: &mut Engine, job: JobId, index: u32) {
    report_one(engine, job, index, TaskState::Failed, None);
}

/// Returns the phase of a job and its restarts.
fn summary(engine: &mut Engine, job: JobId) -> (JobPhase, u32) {
    let job = job_status(engine, job).job;
    (job.phase, job.restarts)
}

#[test]
fn a_failed_task_is_placed_again_in_another_allocation() {
    let mut engine = jobs_engine(2, graceful());
    with_nodes(&mut engine, 1, 4, 0);
    let policies = failing(PolicyAction::RestartTask);
    let job = submit_job(&mut engine, JobSpec { policies, ..bag("one", 4) }, "all");
    let first = allocation(&mut engine, job, 2);
    fail(&mut engine, job, 2);
    assert_eq!(summary(&mut engine, job), (JobPhase::Running, 1));
    check_jobs(&mut engine);
    wait(&mut engine);
    assert_eq!(states(&mut engine, job), [TaskState::Bound; 4]);
    assert_ne!(allocation(&mut engine, job, 2), first);
    assert_eq!(live_allocations(&mut engine), 4);
    check_jobs(&mut engine);
}

#[test]
fn a_job_restarts_when_the_last_of_its_tasks_has_ended() {
    let mut engine = jobs_engine(2, graceful());
    with_nodes(&mut engine, 1, 4, 0);
    let policies = failing(PolicyAction::RestartJob);
    let job = submit_job(&mut engine, JobSpec { policies, ..gang("whole", 3, cores(1)) }, "all");
    let first = allocation(&mut engine, job, 0);
    report_one(&mut engine, job, 0, TaskState::Succeeded, None);
    fail(&mut engine, job, 1);
    let [pending, releasing] = [TaskState::Pending, TaskState::Releasing];
    assert_eq!(states(&mut engine, job), [pending, pending, releasing]);
    assert_eq!(summary(&mut engine, job), (JobPhase::Restarting, 1));
    check_jobs(&mut engine);
    wait(&mut engine);
    assert_eq!(states(&mut engine, job), [pending, pending, releasing], "it is placed as a whole");
    wait_ns(&mut engine, 2 * SECOND);
    wait(&mut engine);
    assert_eq!(states(&mut engine, job), [TaskState::Bound; 3]);
    assert_eq!(summary(&mut engine, job), (JobPhase::Running, 1));
    assert_ne!(allocation(&mut engine, job, 0), first);
    check_jobs(&mut engine);
}

#[test]
fn a_job_fails_after_its_last_restart() {
    for (action, grace_ns) in
        [(PolicyAction::RestartJob, 0), (PolicyAction::RestartTask, 0), (PolicyAction::RestartJob, SECOND)]
    {
        let mut engine = jobs_engine(1, CycleConfig { grace_ns, ..CycleConfig::default() });
        with_nodes(&mut engine, 1, 4, 0);
        let spec = JobSpec { policies: failing(action), max_retry: 2, ..gang("flaky", 2, cores(1)) };
        let job = submit_job(&mut engine, spec, "all");
        for restarts in 0..3 {
            assert_eq!(states(&mut engine, job), [TaskState::Bound; 2]);
            assert_eq!(summary(&mut engine, job), (JobPhase::Running, restarts));
            fail(&mut engine, job, restarts % 2);
            wait_ns(&mut engine, 2 * SECOND);
            wait(&mut engine);
            check_jobs(&mut engine);
        }
        assert_eq!(summary(&mut engine, job), (JobPhase::Failed, 2));
        assert_eq!(states(&mut engine, job), [TaskState::Failed; 2]);
        assert_eq!(live_allocations(&mut engine), 0);
        // Its queue may be removed: it has ended once.
        ask_jobs(&mut engine, JobsRequest::RemoveQueue(named("all"))).expect("all of its jobs have ended");
    }
}

#[test]
fn a_job_is_completed_or_aborted_with_all_of_its_tasks() {
    let cases = [
        (TaskEvent::Failed, PolicyAction::AbortJob, JobPhase::Aborted),
        (TaskEvent::Failed, PolicyAction::CompleteJob, JobPhase::Completed),
        (TaskEvent::Evicted, PolicyAction::AbortJob, JobPhase::Aborted),
        (TaskEvent::Any, PolicyAction::CompleteJob, JobPhase::Completed),
    ];
    for (event, action, phase) in cases {
        let mut engine = jobs_engine(2, graceful());
        with_nodes(&mut engine, 1, 4, 0);
        // Two of them wait.
        let spec = JobSpec { policies: vec![on(&[event], action)], ..bag("all", 6) };
        let job = submit_job(&mut engine, spec, "all");
        if event == TaskEvent::Failed {
            fail(&mut engine, job, 0);
        } else {
            let first = allocation(&mut engine, job, 0);
            ask(&mut engine, PortRequest::Release(first));
            wait(&mut engine);
        }
        let [failed, releasing] = [TaskState::Failed, TaskState::Releasing];
        assert_eq!(states(&mut engine, job), [failed, releasing, releasing, releasing, failed, failed]);
        assert_eq!(summary(&mut engine, job), (phase, 0));
        // A task may end well within its grace period.
        report_one(&mut engine, job, 1, TaskState::Succeeded, None);
        wait_ns(&mut engine, 2 * SECOND);
        wait(&mut engine);
        assert_eq!(states(&mut engine, job)[..3], [failed, TaskState::Succeeded, failed]);
        assert_eq!(summary(&mut engine, job), (phase, 0));
        assert_eq!(live_allocations(&mut engine), 0);
        check_jobs(&mut engine);
    }
}

#[test]
fn a_group_that_has_succeeded_completes_its_job() {
    let mut engine = jobs_engine(1, graceful());
    with_nodes(&mut engine, 1, 4, 0);
    let policies = vec![on(&[TaskEvent::Completed], PolicyAction::CompleteJob)];
    let mut spec = JobSpec { policies, ..bag("two", 2) };
    spec.tasks.push(spec.tasks[0].clone());
    let job = submit_job(&mut engine, spec, "all");
    report_one(&mut engine, job, 3, TaskState::Succeeded, None);
    report_one(&mut engine, job, 0, TaskState::Succeeded, None);
    assert_eq!(summary(&mut engine, job), (JobPhase::Running, 0), "one of each group");
    report_one(&mut engine, job, 2, TaskState::Succeeded, None);
    assert_eq!(summary(&mut engine, job), (JobPhase::Completed, 0));
    assert_eq!(states(&mut engine, job)[1], TaskState::Releasing);
    check_jobs(&mut engine);
}

#[test]
fn a_job_that_restarts_may_be_cancelled() {
    let mut engine = jobs_engine(1, graceful());
    with_nodes(&mut engine, 1, 4, 0);
    let policies = failing(PolicyAction::RestartJob);
    let job = submit_job(&mut engine, JobSpec { policies, ..bag("gone", 3) }, "all");
    fail(&mut engine, job, 0);
    cancel(&mut engine, job, 0);
    assert_eq!(states(&mut engine, job), [TaskState::Failed; 3]);
    assert_eq!(summary(&mut engine, job), (JobPhase::Cancelled, 1));
    wait_ns(&mut engine, 2 * SECOND);
    assert_eq!(live_allocations(&mut engine), 0);
    check_jobs(&mut engine);
}

#[test]
fn an_exit_code_chooses_the_policy() {
    let mut engine = jobs_engine(1, graceful());
    with_nodes(&mut engine, 1, 4, 0);
    let mut policies = failing(PolicyAction::AbortJob);
    policies[0].exit_code = Some(3);
    policies.extend(failing(PolicyAction::RestartTask));
    let job = submit_job(&mut engine, JobSpec { policies, ..bag("codes", 2) }, "all");
    report_one(&mut engine, job, 0, TaskState::Failed, Some(4));
    assert_eq!(summary(&mut engine, job), (JobPhase::Running, 1));
    report_one(&mut engine, job, 1, TaskState::Failed, Some(3));
    assert_eq!(summary(&mut engine, job), (JobPhase::Aborted, 1));
    let allocation = AllocationId { sequence: 99, ..allocation_of_nothing() };
    let task = TaskId { job, index: 0 };
    let tasks = vec![TaskReport { task, allocation, state: TaskState::Running, exit_code: Some(1) }];
    let refused = ask_jobs(&mut engine, JobsRequest::Report { tenant: None, tasks }).map(drop);
    assert_eq!(refused, Err(JobsRejection::ExitCode { index: 0, state: TaskState::Running }));
}

fn allocation_of_nothing() -> AllocationId {
    AllocationId {
        incarnation: wharf_core::ids::Incarnation(1),
        partition: wharf_core::ids::PartitionId(0),
        sequence: 0,
        tenant: wharf_core::ids::TenantId::OPERATOR,
    }
}

#[test]
fn policies_that_cannot_be_are_refused() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    let mut refused = |spec: JobSpec| match try_submit(&mut engine, spec, "all") {
        Err(JobsRejection::Job(error)) => error,
        other => panic!("{other:?}"),
    };
    let job = || named("j");
    let of = |policies: Vec<JobPolicy>| JobSpec { policies, ..bag("j", 1) };
    let code = |events: &[TaskEvent], exit_code| JobPolicy {
        exit_code: Some(exit_code),
        ..on(events, PolicyAction::AbortJob)
    };
    let cases = [
        (on(&[], PolicyAction::AbortJob), PolicyFault::NoEvent),
        (code(&[TaskEvent::Failed], 0), PolicyFault::ExitCodeZero),
        (code(&[TaskEvent::Evicted, TaskEvent::Completed], 1), PolicyFault::ExitCodeWithoutFailure),
        (on(&[TaskEvent::Completed], PolicyAction::RestartTask), PolicyFault::RestartsCompleted),
    ];
    for (policy, fault) in cases {
        let first = on(&[TaskEvent::Any], PolicyAction::AbortJob);
        let error = refused(of(vec![first.clone(), policy.clone()]));
        assert_eq!(error, JobError::Policy { job: job(), group: None, policy: 1, fault });
        let mut spec = bag("j", 1);
        spec.tasks.push(spec.tasks[0].clone());
        spec.tasks[1].policies = vec![policy];
        let error = refused(spec);
        assert_eq!(error, JobError::Policy { job: job(), group: Some(1), policy: 0, fault });
        assert!(error.to_string().starts_with("policy 0 of task group 1 of job `j`: "), "{error}");
    }
    let policies = JOB_POLICIES_MAX + 1;
    let error = refused(of(vec![on(&[TaskEvent::Any], PolicyAction::AbortJob); policies]));
    assert_eq!(error, JobError::TooManyPolicies { job: job(), group: None, policies });
    let max_retry = JOB_MAX_RETRY_MAX + 1;
    let error = refused(JobSpec { max_retry, ..bag("j", 1) });
    assert_eq!(error, JobError::MaxRetry { job: job(), max_retry });
}

/// Opens what the first units lead to, after a crash at their end.
fn open_after_a_crash(units: &[Unit], cycle: &CycleConfig) -> Engine {
    open_with(after_a_crash(units), &jobs_config(2, cycle.clone()))
}

/// A crash after any unit: the restart has happened once or not at all. If not, the report changes the job when it is sent
/// again.
#[test]
fn no_crash_loses_or_repeats_a_restart() {
    for action in [PolicyAction::RestartTask, PolicyAction::RestartJob] {
        for grace_ns in [0, SECOND] {
            let cycle = CycleConfig { grace_ns, ..CycleConfig::default() };
            let mut work = Journaled::new(2, cycle.clone());
            with_nodes(&mut work.engine, 2, 4, 0);
            let policies = failing(action);
            let spec = JobSpec { policies, ..gang("whole", 4, cores(2)) };
            let job = submit_job(&mut work.engine, spec, "all");
            let first = allocation(&mut work.engine, job, 1);
            let start = work.collect();
            fail(&mut work.engine, job, 1);
            work.collect();
            for _ in 0..3 {
                wait_ns(&mut work.engine, 2 * SECOND);
            }
            assert_eq!(states(&mut work.engine, job), [TaskState::Bound; 4]);
            let end = work.collect();
            let expected = export_all(&mut work.engine);
            let mut outcomes = [0, 0];
            for crash in start..=end {
                let mut engine = open_after_a_crash(&work.units[..crash], &cycle);
                let (_, restarts) = summary(&mut engine, job);
                outcomes[restarts as usize] += 1;
                if restarts == 0 {
                    assert_eq!(allocation(&mut engine, job, 1), first, "it has not ended");
                    fail(&mut engine, job, 1);
                }
                for _ in 0..3 {
                    wait_ns(&mut engine, 2 * SECOND);
                    check_jobs(&mut engine);
                }
                assert_eq!(states(&mut engine, job), [TaskState::Bound; 4], "unit {crash} of {end}");
                assert_eq!(summary(&mut engine, job), (JobPhase::Running, 1));
                assert_ne!(allocation(&mut engine, job, 1), first);
            }
            assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
            let whole = open_after_a_crash(&work.units, &cycle);
            assert_eq!(jobs_of(&whole).record(), expected.jobs);
        }
    }
}

/// As above, for a job that a lost task ends.
#[test]
fn no_crash_revives_a_job_that_was_aborted() {
    let cycle = graceful();
    let mut work = Journaled::new(2, cycle.clone());
    with_nodes(&mut work.engine, 1, 4, 0);
    let policies = vec![on(&[TaskEvent::Evicted], PolicyAction::AbortJob)];
    let job = submit_job(&mut work.engine, JobSpec { policies, ..bag("gone", 4) }, "all");
    let lost = allocation(&mut work.engine, job, 0);
    let start = work.collect();
    ask(&mut work.engine, PortRequest::Release(lost));
    let released = work.collect();
    for _ in 0..2 {
        wait_ns(&mut work.engine, 2 * SECOND);
    }
    assert_eq!(summary(&mut work.engine, job), (JobPhase::Aborted, 0));
    let end = work.collect();
    assert!(start < released && released < end, "{start} {released} {end}");
    for crash in released..=end {
        let mut engine = open_after_a_crash(&work.units[..crash], &cycle);
        for _ in 0..3 {
            wait_ns(&mut engine, 2 * SECOND);
            check_jobs(&mut engine);
        }
        assert_eq!(summary(&mut engine, job), (JobPhase::Aborted, 0), "unit {crash} of {end}");
        assert_eq!(states(&mut engine, job), [TaskState::Failed; 4]);
        assert_eq!(live_allocations(&mut engine), 0);
    }
}

/// A crash at any time between a failure and what a policy does later: the restart happens once, and when it was due.
#[test]
fn no_crash_changes_when_a_policy_with_a_timeout_acts() {
    let cycle = graceful();
    let mut work = Journaled::new(2, cycle.clone());
    with_nodes(&mut work.engine, 2, 4, 0);
    let later =
        JobPolicy { timeout_ns: Some(10 * SECOND), ..on(&[TaskEvent::Failed], PolicyAction::RestartTask) };
    let job = submit_job(&mut work.engine, JobSpec { policies: vec![later], ..bag("later", 2) }, "all");
    let before = work.collect();
    fail(&mut work.engine, job, 0);
    report_one(&mut work.engine, job, 1, TaskState::Succeeded, None);
    assert_eq!(summary(&mut work.engine, job), (JobPhase::Running, 0), "a task of it will be restarted");
    let failed = work.collect();
    wait_ns(&mut work.engine, 9 * SECOND);
    assert_eq!(states(&mut work.engine, job), [TaskState::Failed, TaskState::Succeeded]);
    for _ in 0..2 {
        wait_ns(&mut work.engine, 2 * SECOND);
    }
    assert_eq!(states(&mut work.engine, job), [TaskState::Bound, TaskState::Succeeded]);
    assert_eq!(summary(&mut work.engine, job), (JobPhase::Running, 1));
    let end = work.collect();
    assert!(before < failed && failed < end, "{before} {failed} {end}");
    for crash in failed..=end {
        let mut engine = open_after_a_crash(&work.units[..crash], &cycle);
        for _ in 0..3 {
            wait_ns(&mut engine, 6 * SECOND);
            check_jobs(&mut engine);
        }
        assert_eq!(summary(&mut engine, job), (JobPhase::Running, 1), "unit {crash} of {end}");
        assert_eq!(states(&mut engine, job), [TaskState::Bound, TaskState::Succeeded]);
    }
}

#[test]
fn an_eviction_that_does_not_last_changes_nothing() {
    for has_room in [true, false] {
        let mut engine = jobs_engine(1, graceful());
        with_nodes(&mut engine, 1, 4, 0);
        let later =
            JobPolicy { timeout_ns: Some(5 * SECOND), ..on(&[TaskEvent::Evicted], PolicyAction::AbortJob) };
        let job = submit_job(&mut engine, JobSpec { policies: vec![later], ..bag("j", 4) }, "all");
        let lost = allocation(&mut engine, job, 0);
        if !has_room {
            // A job that comes first takes what is free then.
            let first = JobSpec { priority: 9, ..bag("first", 1) };
            submit_job(&mut engine, first, "all");
        }
        ask(&mut engine, PortRequest::Release(lost));
        for _ in 0..4 {
            wait_ns(&mut engine, 2 * SECOND);
        }
        let phase = if has_room { JobPhase::Running } else { JobPhase::Aborted };
        assert_eq!(summary(&mut engine, job), (phase, 0));
    }
}

#[test]
fn a_job_is_completed_once_enough_tasks_have_succeeded() {
    let mut engine = jobs_engine(1, graceful());
    with_nodes(&mut engine, 1, 4, 0);
    for wrong in [0, 5] {
        let refused = try_submit(&mut engine, JobSpec { min_success: Some(wrong), ..bag("j", 4) }, "all");
        let fault = matches!(refused, Err(JobsRejection::Job(JobError::MinSuccess { tasks: 4, .. })));
        assert!(fault, "{wrong}");
    }
    let job = submit_job(&mut engine, JobSpec { min_success: Some(2), ..bag("j", 4) }, "all");
    report_one(&mut engine, job, 0, TaskState::Succeeded, None);
    report_one(&mut engine, job, 1, TaskState::Failed, None);
    assert_eq!(summary(&mut engine, job), (JobPhase::Running, 0));
    report_one(&mut engine, job, 2, TaskState::Succeeded, None);
    assert_eq!(summary(&mut engine, job), (JobPhase::Completed, 0));
    wait_ns(&mut engine, 2 * SECOND);
    use TaskState::{Failed, Succeeded};
    assert_eq!(states(&mut engine, job), [Succeeded, Failed, Succeeded, Failed]);
    assert_eq!(live_allocations(&mut engine), 0);
}
