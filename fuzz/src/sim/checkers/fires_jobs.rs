//! Tests that the checkers of jobs fire.

use std::collections::BTreeMap;

use wharf_core::fairness::Dim;
use wharf_core::ids::{AllocationId, BundleId, Incarnation, NodeId, StatementId, TenantId};
use wharf_core::jobs::{
    JobId, JobPhase, JobPolicy, JobSpec, Jobs, JobsRecord, PolicyAction, PriorityClass, QueueId, QueueSpec,
    TaskEvent, TaskGroup, TaskId, TaskState,
};
use wharf_core::shard::{Command, Outcome};
use wharf_core::statement::{Allocate, CommitMode, ConflictDetection, Granted, Operation, Part};
use wharf_core::time::Time;
use wharf_net::protocol::{TASK_FAILED, TASK_SUCCEEDED};

use super::fires::{Bed, NODE, asks};
use super::jobs::{
    Dated, Told, a_start_keeps_the_jobs, classes_are_as_told, jobs_are_as_told, plans_change_nothing,
    queues_are_as_told, tasks_are_in_the_books, tasks_run_once,
};
use crate::sim::facts::Facts;

/// A job of two tasks with a core each, in the queue without a cap.
pub(super) fn jobs() -> (Jobs, JobId) {
    let mut jobs = Jobs::new();
    let queue = jobs.add_queue(QueueSpec::new("free")).expect("a queue that is right");
    let task = TaskGroup::new(asks(1, 0), 2);
    let spec = JobSpec {
        queue,
        min_member: 1,
        created: Time(1),
        phase: JobPhase::Inqueue,
        ..JobSpec::new("job", vec![task])
    };
    let id = jobs.submit(spec).expect("a job that is right");
    (jobs, id)
}

/// Places a task of a job with a core. Returns the books afterwards, and the allocation.
fn placed(bed: &mut Bed, number: u64, job: JobId, index: u32) -> (Facts, AllocationId) {
    placed_on(bed, NODE, number, job, index)
}

/// Places a task of a job with a core on a node. Returns the books afterwards, and the allocation.
pub(super) fn placed_on(
    bed: &mut Bed,
    node: NodeId,
    number: u64,
    job: JobId,
    index: u32,
) -> (Facts, AllocationId) {
    let bundle = BundleId { group: job.group(TenantId::OPERATOR), index };
    let allocate = Allocate {
        node,
        expected: None,
        demand: asks(1, 0).demand,
        gpus: None,
        owner: None,
        bundle: Some(bundle),
        tenant: TenantId::OPERATOR,
        lease: None,
    };
    let statement = StatementId { incarnation: Incarnation(1), planner: 0, number };
    let part = Part {
        statement,
        operations: vec![(0, Operation::Allocate(allocate))],
        conflict_detection: ConflictDetection::Fine,
        mode: CommitMode::AllOrNothing,
    };
    let was = bed.step(Command::Apply(Box::new(part)));
    let Outcome::Applied(Ok(applied)) = &was.outcome else { panic!("applied") };
    let [(0, Granted::Allocated(placement))] = &applied.granted[..] else { panic!("granted") };
    (was.after, placement.allocation)
}

#[test]
pub(super) fn a_task_with_two_allocations() {
    let mut bed = Bed::new(4);
    let (first, _) = placed(&mut bed, 1, JobId(1), 0);
    assert_eq!(tasks_run_once(&[first]), Ok(()));
    let (other, _) = placed(&mut bed, 2, JobId(1), 1);
    assert_eq!(tasks_run_once(std::slice::from_ref(&other)), Ok(()));
    // A shard refuses a bundle that it has. Two shards do not know of each other.
    let (again, _) = placed(&mut Bed::new(1), 1, JobId(1), 0);
    assert!(tasks_run_once(&[other, again]).is_err());
}

#[test]
pub(super) fn a_task_that_only_one_side_knows() {
    let (mut jobs, job) = jobs();
    let (facts, allocation) = placed(&mut Bed::new(4), 1, job, 0);
    let nothing = [Facts::default()];
    let facts = [facts];
    assert_eq!(tasks_are_in_the_books(&jobs, &nothing), Ok(()));
    assert!(tasks_are_in_the_books(&jobs, &facts).is_err(), "only the books know it");
    let task = TaskId { job, index: 0 };
    jobs.set(task, TaskState::Bound, Some(NODE), Time(2));
    jobs.set_allocation(task, allocation);
    assert_eq!(tasks_are_in_the_books(&jobs, &facts), Ok(()));
    assert!(tasks_are_in_the_books(&jobs, &nothing).is_err(), "only the task has it");
}

#[test]
pub(super) fn a_job_that_is_not_as_its_client_was_told() {
    let (mut jobs, job) = jobs();
    let check = |jobs: &Jobs, told: &Told, at_rest| jobs_are_as_told(jobs, job.0, told, at_rest).is_ok();
    let nothing = Told::default();
    assert!(check(&jobs, &nothing, true));
    assert!(jobs_are_as_told(&jobs, 99, &nothing, false).is_err(), "it is gone");
    let succeeded = Told { ended: BTreeMap::from([(0, TASK_SUCCEEDED)]), ..Told::default() };
    let failed = Told { ended: BTreeMap::from([(0, TASK_FAILED)]), ..Told::default() };
    let over = Told { is_over: true, ..Told::default() };
    assert!(!check(&jobs, &succeeded, false) && !check(&jobs, &over, false));
    jobs.set(TaskId { job, index: 0 }, TaskState::Succeeded, None, Time(2));
    assert!(check(&jobs, &succeeded, false) && !check(&jobs, &failed, false));
    jobs.set_phase(job, JobPhase::Cancelled);
    assert!(check(&jobs, &over, false) && !check(&jobs, &over, true), "a task has not ended");
    jobs.set(TaskId { job, index: 1 }, TaskState::Failed, None, Time(2));
    assert!(check(&jobs, &over, true));
    // What ended before a restart may run again. No restart is forgotten, and there are no more than are allowed.
    assert!(!check(&jobs, &Told { restarts: 1, ..over }, true));
    let restart = JobPolicy {
        events: vec![TaskEvent::Failed],
        action: PolicyAction::RestartTask,
        exit_code: None,
        timeout_ns: None,
    };
    let spec = JobSpec { name: "again".into(), policies: vec![restart], ..jobs.job(job).spec().clone() };
    let again = jobs.submit(spec).expect("a job that is right");
    let check = |jobs: &Jobs, told: &Told| jobs_are_as_told(jobs, again.0, told, false).is_ok();
    jobs.set(TaskId { job: again, index: 0 }, TaskState::Running, Some(NODE), Time(3));
    jobs.task_failed(TaskId { job: again, index: 0 }, None, Time(4));
    assert!(check(&jobs, &failed), "it was told before the restart");
    assert!(!check(&jobs, &Told { restarts: 1, ..failed }), "it was told after the restart");
    assert!(check(&jobs, &Told { max_retry: Some(1), ..Told::default() }));
    assert!(!check(&jobs, &Told { max_retry: Some(0), ..Told::default() }));
}

#[test]
pub(super) fn a_queue_that_is_gone() {
    let (jobs, _) = jobs();
    assert_eq!(queues_are_as_told(&jobs, ["free"].into_iter()), Ok(()));
    assert!(queues_are_as_told(&jobs, ["free", "team"].into_iter()).is_err());
}

#[test]
pub(super) fn a_class_that_is_another_one() {
    let (mut jobs, _) = jobs();
    jobs.set_priority_class(PriorityClass::new("high", 4)).unwrap();
    let check = |told: &[(&'static str, Option<i32>)]| {
        classes_are_as_told(&jobs, &told.iter().copied().collect()).is_ok()
    };
    assert!(check(&[("high", Some(4)), ("gone", None)]));
    assert!(!check(&[("high", Some(5))]) && !check(&[("high", None)]) && !check(&[("gone", Some(4))]));
}

#[test]
pub(super) fn jobs_that_are_others_after_a_start() {
    let (mut jobs, job) = jobs();
    let before = jobs.record();
    assert_eq!(a_start_keeps_the_jobs(&before, &before), Ok(()));
    jobs.set(TaskId { job, index: 0 }, TaskState::Succeeded, None, Time(2));
    assert!(a_start_keeps_the_jobs(&before, &jobs.record()).is_err());
    assert!(a_start_keeps_the_jobs(&before, &JobsRecord::default()).is_err());
}

#[test]
pub(super) fn a_plan_that_changes_something() {
    let (mut jobs, job) = jobs();
    let (facts, _) = placed(&mut Bed::new(4), 1, job, 0);
    let facts = [facts];
    let before = jobs.record();
    assert_eq!(plans_change_nothing((&before, &facts), (&before, &facts)), Ok(()));
    assert!(plans_change_nothing((&before, &facts), (&before, &[])).is_err());
    jobs.set(TaskId { job, index: 0 }, TaskState::Succeeded, None, Time(2));
    assert!(plans_change_nothing((&before, &facts), (&jobs.record(), &facts)).is_err());
}

#[test]
pub(super) fn a_task_that_waits_and_would_fit() {
    let (mut jobs, job) = jobs();
    let (roomy, _) = placed(&mut Bed::new(4), 1, JobId(9), 0);
    let full = [Bed::new(1).step(Command::Place(asks(8, 0))).after];
    let roomy = [roomy];
    let no_task_waits_that_would_fit =
        |jobs: &_, facts: &[Facts]| super::jobs::no_task_waits_that_would_fit(jobs, facts, None, |_| false);
    assert!(no_task_waits_that_would_fit(&jobs, &roomy).is_err());
    let dated = Dated { now: Time(5), date: Time(9) };
    let held_back = super::jobs::no_task_waits_that_would_fit(&jobs, &roomy, Some(dated), |_| false);
    assert_eq!(held_back, Ok(()), "it would end after the date");
    assert_eq!(no_task_waits_that_would_fit(&jobs, &full), Ok(()));
    jobs.set_phase(job, JobPhase::Pending);
    assert_eq!(no_task_waits_that_would_fit(&jobs, &roomy), Ok(()), "its queue has not admitted it");
    jobs.set_phase(job, JobPhase::Inqueue);
    let queue = jobs.job(job).spec().queue;
    assert_ne!(queue, QueueId::ROOT);
    let capability = [(Dim::CPU, 5_000)].into_iter().collect();
    jobs.update_queue(queue, QueueSpec { capability, ..QueueSpec::new("free") }, Time(2)).expect("a cap");
    assert_eq!(no_task_waits_that_would_fit(&jobs, &roomy), Ok(()), "its cap does not allow it");
}
