//! Tests that the checkers of gangs fire.

use wharf_core::ids::{AllocationId, Incarnation, PartitionId, TenantId};
use wharf_core::jobs::{JobId, JobPhase, JobSpec, Jobs, QueueSpec, Role, TaskGroup, TaskId, TaskState};
use wharf_core::time::Time;

use super::fires::{NODE, asks};
use super::gangs::{Starts, no_start_is_held};

/// A gang of three tasks: two of the first role, and one of the second that asks for nothing.
fn gang(min_member: u32, minima: [u32; 2]) -> (Jobs, JobId) {
    let mut jobs = Jobs::new();
    let queue = jobs.add_queue(QueueSpec::new("free")).expect("a queue that is right");
    let tasks = vec![TaskGroup::new(asks(1, 0), 2), TaskGroup { role: 1, ..TaskGroup::new(asks(0, 0), 1) }];
    let roles = ["first", "second"].into_iter().zip(minima);
    let spec = JobSpec {
        queue,
        min_member,
        roles: roles.map(|(name, min_member)| Role { name: name.into(), min_member }).collect(),
        created: Time(1),
        phase: JobPhase::Inqueue,
        ..JobSpec::new("gang", tasks)
    };
    let id = jobs.submit(spec).expect("a job that is right");
    (jobs, id)
}

fn set(jobs: &mut Jobs, job: JobId, index: u32, state: TaskState, now: u64) {
    let task = TaskId { job, index };
    jobs.set(task, state, state.has_node().then_some(NODE), Time(now));
    if state.has_node() {
        let partition = PartitionId(0);
        let sequence = u64::from(index) + 1;
        let tenant = TenantId::OPERATOR;
        jobs.set_allocation(task, AllocationId { incarnation: Incarnation(1), partition, sequence, tenant });
    }
}

#[test]
pub(super) fn a_gang_that_starts_in_part() {
    // Too few in all, too few of a role, enough, and minima of roles that do not count.
    let cases =
        [(3, [0, 0], false), (2, [1, 1], false), (2, [2, 0], true), (2, [2, 1], true), (0, [0, 0], true)];
    for (min_member, minima, is_right) in cases {
        let (mut jobs, job) = gang(min_member, minima);
        let mut starts = Starts::of(&jobs, Time(1));
        set(&mut jobs, job, 0, TaskState::Allocated, 2);
        assert_eq!(starts.gangs_start_whole(&jobs, Time(2)), Ok(()), "nothing is started");
        set(&mut jobs, job, 0, TaskState::Bound, 3);
        set(&mut jobs, job, 1, TaskState::Bound, 3);
        let found = starts.gangs_start_whole(&jobs, Time(4));
        assert_eq!(found.is_ok(), is_right, "{min_member} {minima:?}: {found:?}");
    }
}

#[test]
pub(super) fn a_start_that_is_held() {
    let (mut jobs, job) = gang(2, [0, 0]);
    assert_eq!(no_start_is_held(&jobs, |_| false), Ok(()));
    set(&mut jobs, job, 0, TaskState::Allocated, 2);
    assert!(no_start_is_held(&jobs, |_| false).is_err());
    assert_eq!(no_start_is_held(&jobs, |id| id == job), Ok(()), "it has a date");
    set(&mut jobs, job, 1, TaskState::Pipelined, 2);
    assert_eq!(no_start_is_held(&jobs, |_| false), Ok(()), "a claim is on its way");
    (0..2).for_each(|index| set(&mut jobs, job, index, TaskState::Bound, 3));
    assert_eq!(no_start_is_held(&jobs, |_| false), Ok(()));
}

#[test]
fn what_evictions_and_ends_leave_is_legal() {
    let (mut jobs, job) = gang(3, [2, 1]);
    let mut starts = Starts::of(&jobs, Time(1));
    (0..3).for_each(|index| set(&mut jobs, job, index, TaskState::Bound, 3));
    // One was lost before anybody looked.
    set(&mut jobs, job, 1, TaskState::Pending, 4);
    assert_eq!(starts.gangs_start_whole(&jobs, Time(5)), Ok(()));
    set(&mut jobs, job, 0, TaskState::Failed, 6);
    assert_eq!(starts.gangs_start_whole(&jobs, Time(7)), Ok(()), "nothing is started");
    // One more task is no whole gang, because the one that failed has failed.
    set(&mut jobs, job, 1, TaskState::Bound, 8);
    assert!(starts.gangs_start_whole(&jobs, Time(9)).is_err());
}

#[test]
fn what_has_succeeded_counts() {
    let (mut jobs, job) = gang(3, [2, 1]);
    (0..3).for_each(|index| set(&mut jobs, job, index, TaskState::Bound, 3));
    set(&mut jobs, job, 2, TaskState::Succeeded, 4);
    set(&mut jobs, job, 1, TaskState::Pending, 4);
    let mut starts = Starts::of(&jobs, Time(4));
    set(&mut jobs, job, 1, TaskState::Running, 5);
    assert_eq!(starts.gangs_start_whole(&jobs, Time(6)), Ok(()));
}
