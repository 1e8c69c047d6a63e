//! What is refused, and that all sums follow the tasks.

use std::sync::Arc;

use super::*;
use crate::fairness::{Amounts, Caps, Dim};
use crate::ids::NodeId;
use crate::request::{PlacementRequest, Policy};
use crate::resource::{Amount, Demand};
use crate::time::Time;
use proptest::prelude::*;

fn cores(cpu: u32) -> PlacementRequest {
    PlacementRequest::new(Demand { cpu: Amount::whole(cpu), ..Demand::default() }, Policy::BestFit)
}

fn group(cpu: u32, count: u32) -> TaskGroup {
    TaskGroup::new(cores(cpu), count)
}

fn job(name: &str, queue: QueueId, tasks: Vec<TaskGroup>) -> JobSpec {
    JobSpec { queue, min_member: 1, phase: JobPhase::Inqueue, ..JobSpec::new(name, tasks) }
}

fn cpu(amount: i64) -> Amounts {
    [(Dim::CPU, amount)].into_iter().collect()
}

#[test]
fn broken_queues_are_refused_and_change_nothing() {
    let mut jobs = Jobs::new();
    let mut spec = QueueSpec::new("a");
    spec.weight = 0;
    assert_eq!(jobs.add_queue(spec), Err(QueueError::Weight("a".into())));
    let mut spec = QueueSpec::new("a");
    spec.guarantee = cpu(5);
    spec.capability = [(Dim::CPU, 4)].into_iter().collect::<Caps>();
    assert!(matches!(jobs.add_queue(spec.clone()), Err(QueueError::GuaranteeAboveCapability { .. })));
    spec.capability = Caps::none();
    let above = QueueSpec { starves_below: Some(10_001), ..spec.clone() };
    assert!(matches!(jobs.add_queue(above), Err(QueueError::StarvesAboveShare { part: 10_001, .. })));
    let a = jobs.add_queue(spec.clone()).unwrap();
    assert_eq!(jobs.add_queue(spec.clone()), Err(QueueError::Exists("a".into())));
    let child =
        |name: &str, guarantee| QueueSpec { parent: a, guarantee: cpu(guarantee), ..QueueSpec::new(name) };
    jobs.add_queue(child("b", 3)).unwrap();
    let refused = jobs.add_queue(child("c", 3));
    assert!(
        matches!(refused, Err(QueueError::ChildrenGuarantee { children: 6, guarantee: 5, .. })),
        "{refused:?}"
    );
    spec.guarantee = cpu(2);
    assert!(matches!(
        jobs.update_queue(a, spec, Time(0)),
        Err(QueueError::ChildrenGuarantee { children: 3, .. })
    ));
    assert_eq!(jobs.queues().count(), 3);
    let mut parent = QueueId(2);
    let refused = (0..100).find_map(|level| {
        let added = jobs.add_queue(QueueSpec { parent, ..QueueSpec::new(&format!("level {level}")) });
        parent = *added.as_ref().unwrap_or(&parent);
        added.err()
    });
    assert_eq!(refused, Some(QueueError::TooDeep("level 30".into())));
    assert_eq!(jobs.chain(QueueId(2)).collect::<Vec<_>>(), [QueueId(2), a, QueueId::ROOT]);
}

#[test]
fn broken_jobs_are_refused_and_change_nothing() {
    let mut jobs = Jobs::new();
    let of_root = jobs.submit(job("j", QueueId::ROOT, vec![group(1, 1)]));
    assert!(
        matches!(of_root, Err(JobError::InnerQueue { .. })),
        "the root has no jobs, even without other queues"
    );
    let a = jobs.add_queue(QueueSpec::new("a")).unwrap();
    let closed = jobs.add_queue(QueueSpec { open: false, ..QueueSpec::new("closed") }).unwrap();
    let refused = |jobs: &mut Jobs, spec| jobs.submit(spec).unwrap_err();
    assert!(matches!(
        refused(&mut jobs, job("j", QueueId::ROOT, vec![group(1, 1)])),
        JobError::InnerQueue { .. }
    ));
    assert!(matches!(refused(&mut jobs, job("j", closed, vec![group(1, 1)])), JobError::ClosedQueue { .. }));
    assert!(matches!(
        refused(&mut jobs, job("j", QueueId(9), vec![group(1, 1)])),
        JobError::UnknownQueue { .. }
    ));
    assert_eq!(refused(&mut jobs, job("j", a, vec![])), JobError::Empty("j".into()));
    let spec = JobSpec { min_member: 3, ..job("j", a, vec![group(1, 2)]) };
    assert!(matches!(refused(&mut jobs, spec), JobError::MinMember { min_member: 3, tasks: 2, .. }));
    let roles = vec![Role { name: "r".into(), min_member: 3 }];
    let spec = JobSpec { roles, ..job("j", a, vec![group(1, 2)]) };
    assert!(matches!(refused(&mut jobs, spec), JobError::RoleMinMember { min_member: 3, tasks: 2, .. }));
    let spec = job("j", a, vec![group(1, u32::MAX), group(1, 1)]);
    assert!(matches!(refused(&mut jobs, spec), JobError::TooManyTasks { .. }));
    let spec = JobSpec { min_member: 5_000, ..job("j", a, vec![group(1, 6_000)]) };
    assert!(matches!(refused(&mut jobs, spec), JobError::MinMemberTooLarge { min_member: 5_000, .. }));
    let most = Amount::try_from_units(crate::limits::AMOUNT_MAX).unwrap();
    let huge = PlacementRequest::new(Demand { memory: most, ..Demand::default() }, Policy::BestFit);
    let spec = job("j", a, vec![TaskGroup { request: huge, ..group(0, 60_000) }]);
    assert_eq!(refused(&mut jobs, spec), JobError::TooMuch { job: "j".into(), dim: Dim::MEMORY });
    assert_eq!(jobs.job_named("j"), None);
    jobs.submit(job("j", a, vec![group(1, 2)])).unwrap();
    assert_eq!(refused(&mut jobs, job("j", a, vec![group(1, 2)])), JobError::Exists("j".into()));
    let below = QueueSpec { parent: a, ..QueueSpec::new("below") };
    assert_eq!(
        jobs.add_queue(below),
        Err(QueueError::HasJobs { queue: "a".into(), has: QueueContents { jobs: 1, direct: 0, groups: 0 } })
    );
    jobs.check().unwrap();
}

#[test]
fn equal_requests_share_a_class() {
    let mut jobs = Jobs::new();
    let a = jobs.add_queue(QueueSpec::new("a")).unwrap();
    let first = jobs.submit(job("1", a, vec![group(1, 1), group(2, 1)])).unwrap();
    let second = jobs.submit(job("2", a, vec![group(2, 1)])).unwrap();
    let class = |jobs: &Jobs, job, index| Arc::as_ptr(&jobs.task(TaskId { job, index }).class);
    assert_eq!(class(&jobs, first, 1), class(&jobs, second, 0));
    assert_ne!(class(&jobs, first, 0), class(&jobs, first, 1));
}

/// A task keeps the time at which it got its capacity until it has none, also through an eviction that is taken back.
#[test]
fn a_task_has_started_when_it_got_its_capacity() {
    let mut jobs = Jobs::new();
    let a = jobs.add_queue(QueueSpec::new("a")).unwrap();
    let job = jobs.submit(job("j", a, vec![group(1, 1)])).unwrap();
    let task = TaskId { job, index: 0 };
    let node = Some(NodeId(1));
    let started = |jobs: &Jobs| jobs.task(task).started;
    jobs.set(task, TaskState::Pipelined, node, Time(1));
    assert_eq!(started(&jobs), None, "a claim is no capacity");
    for (at, state) in [(2, TaskState::Allocated), (3, TaskState::Bound), (4, TaskState::Running)] {
        jobs.set(task, state, node, Time(at));
        assert_eq!(started(&jobs), Some(Time(2)));
    }
    let before = jobs.task(task).clone();
    jobs.set(task, TaskState::Releasing, node, Time(5));
    assert_eq!(started(&jobs), Some(Time(2)));
    jobs.restore(task, &before);
    assert_eq!((started(&jobs), jobs.task(task).since), (Some(Time(2)), Time(4)));
    jobs.set(task, TaskState::Pending, None, Time(6));
    assert_eq!(started(&jobs), None);
    jobs.set(task, TaskState::Running, node, Time(7));
    assert_eq!(started(&jobs), Some(Time(7)));
}

#[test]
fn a_queue_has_the_settings_of_the_nearest_queue_that_has_them() {
    let mut jobs = Jobs::new();
    let spec = QueueSpec { min_run_time_ns: Some(5), starves_below: Some(7), ..QueueSpec::new("a") };
    let a = jobs.add_queue(spec).unwrap();
    let spec = QueueSpec { parent: a, min_run_time_ns: Some(0), ..QueueSpec::new("b") };
    let b = jobs.add_queue(spec).unwrap();
    let inherited =
        |id| (jobs.inherited(id, |of| of.min_run_time_ns), jobs.inherited(id, |of| of.starves_below));
    assert_eq!(inherited(QueueId::ROOT), (None, None));
    assert_eq!(inherited(a), (Some(5), Some(7)));
    assert_eq!(inherited(b), (Some(0), Some(7)));
}

proptest! {
    /// All sums follow any changes of state, in a hierarchy of queues.
    #[test]
    fn sums_follow_the_states_of_tasks(changes in prop::collection::vec((0..3_u64, 0..4_u32, 0..10_usize, 0..3_u64), 0..60)) {
        let mut jobs = Jobs::new();
        let a = jobs.add_queue(QueueSpec::new("a")).unwrap();
        let b = jobs.add_queue(QueueSpec { parent: a, ..QueueSpec::new("b") }).unwrap();
        let c = jobs.add_queue(QueueSpec { parent: a, ..QueueSpec::new("c") }).unwrap();
        for (name, queue) in [("1", b), ("2", c), ("3", c)] {
            jobs.submit(job(name, queue, vec![group(1, 2), group(3, 1), group(0, 1)])).unwrap();
        }
        for (number, index, state, node) in changes {
            let state = TaskState::ALL[state];
            let task = TaskId { job: JobId(number + 1), index };
            jobs.set(task, state, state.has_node().then_some(NodeId(node)), Time(1));
            prop_assert_eq!(jobs.check(), Ok(()));
        }
        let all = jobs.queue(QueueId::ROOT).usage();
        let total = all.request().plus(&all.releasing);
        prop_assert!(total.is_within(&cpu(15 * 10_000)));
    }
}

/// A recovery has records, and a service has [`Jobs`]. What becomes of lost tasks must not depend on that.
#[test]
fn a_recovery_loses_tasks_as_a_service_does() {
    let mut rng = crate::rng::Rng::new(5);
    let mut phases = std::collections::BTreeSet::new();
    for _ in 0..2_000 {
        let mut of = |count: u64| rng.below(count);
        let policy = |event: u64, action: u64| JobPolicy {
            events: vec![[TaskEvent::Failed, TaskEvent::Evicted, TaskEvent::Any][event as usize]],
            action: PolicyAction::ALL[action as usize],
            exit_code: None,
            timeout_ns: (event + action == 3).then_some(30),
        };
        let mut groups = vec![group(1, 1 + of(3) as u32), group(1, 1 + of(2) as u32)];
        groups[0].run_time_ns = (of(2) == 0).then_some(10);
        groups[1].role = 1;
        groups[1].policies = (0..of(2)).map(|_| policy(of(3), of(4))).collect();
        let tasks: u32 = groups.iter().map(|group| group.count).sum();
        let mut jobs = Jobs::new();
        let queue = jobs.add_queue(QueueSpec::new("q")).unwrap();
        let role = |name: &str, min_member| Role { name: name.into(), min_member };
        let spec = JobSpec {
            min_member: of(3) as u32,
            roles: vec![role("a", 0), role("b", of(2) as u32)],
            policies: (0..of(3)).map(|_| policy(of(3), of(4))).collect(),
            max_retry: of(3) as u32,
            min_success: (of(4) == 0).then_some(1),
            ..job("j", queue, groups)
        };
        let id = jobs.submit(spec).unwrap();
        let mut lost = Vec::new();
        for index in 0..tasks {
            let task = TaskId { job: id, index };
            let states = [
                TaskState::Pending,
                TaskState::Succeeded,
                TaskState::Failed,
                TaskState::Running,
                TaskState::Allocated,
                TaskState::Releasing,
            ];
            let state = states[of(6) as usize];
            let node = state.has_node().then_some(NodeId(1));
            if state == TaskState::Releasing {
                jobs.set(task, TaskState::Running, node, Time(1));
            }
            if state == TaskState::Allocated && of(2) == 0 {
                // It was evicted before, so a policy may wait.
                jobs.set(task, TaskState::Running, node, Time(1));
                jobs.task_lost(task, Time(2));
                if jobs.job(id).phase() != JobPhase::Pending {
                    continue;
                }
            }
            if state != TaskState::Pending {
                jobs.set(task, state, node, Time(5 + of(10)));
            }
            if node.is_some() && of(4) > 0 {
                lost.push(index);
            }
        }
        let mut record = jobs.record().jobs.remove(0);
        let before = record.clone();
        let changes = record.lose(&lost, Time(20));
        lost.iter().for_each(|&index| jobs.task_lost(TaskId { job: id, index }, Time(20)));
        assert_eq!(record, jobs.record().jobs[0]);
        jobs.check().unwrap();
        // The changes lead from the one to the other.
        let mut table =
            JobsTable::new(JobsRecord { next_job: 2, jobs: vec![before], ..JobsRecord::default() });
        changes.iter().for_each(|change| table.apply(change));
        assert_eq!(table.into_record().jobs, [record.clone()]);
        phases.insert(record.phase);
    }
    // All that an end of a task leads to.
    assert_eq!(phases.len(), 5, "{phases:?}");
}
