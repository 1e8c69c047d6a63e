//! Tests that the checkers of run times, of dates and of evictions fire.

use std::collections::BTreeMap;

use wharf_core::fairness::{Amounts, Dim};
use wharf_core::ids::{AllocationId, Incarnation, PartitionId, TenantId};
use wharf_core::jobs::{JobId, JobPhase, JobSpec, Jobs, QueueId, QueueSpec, TaskGroup, TaskId, TaskState};
use wharf_core::time::Time;

use super::dates::{DATE_AHEAD_NS, DATE_SLACK_NS, Dates, Seen};
use super::evictions::{
    Planned, evictions_end, evictions_leave_fair_shares, only_for_the_starving,
    only_what_is_spare_is_reclaimed, reclaim_leaves_guarantees,
};
use super::fires::{NODE, asks};
use super::queues::FAIR_SHARE_PATIENCE_NS;
use super::run_times::{Overruns, overruns_are_ended};

/// Adds a job of tasks with a core each, which may run for 100 ns.
fn job(jobs: &mut Jobs, queue: QueueId, name: &str, tasks: u32, priority: i32) -> JobId {
    let group = TaskGroup { run_time_ns: Some(100), ..TaskGroup::new(asks(1, 0), tasks) };
    let spec = JobSpec {
        queue,
        min_member: 1,
        priority,
        created: Time(1),
        phase: JobPhase::Inqueue,
        ..JobSpec::new(name, vec![group])
    };
    jobs.submit(spec).expect("a job that is right")
}

fn set(jobs: &mut Jobs, job: JobId, index: u32, state: TaskState, now: u64) {
    let task = TaskId { job, index };
    jobs.set(task, state, state.has_node().then_some(NODE), Time(now));
    if state.is_bound() {
        let partition = PartitionId(0);
        let sequence = 100 * job.0 + u64::from(index);
        let tenant = TenantId::OPERATOR;
        jobs.set_allocation(task, AllocationId { incarnation: Incarnation(1), partition, sequence, tenant });
    }
}

fn queue(jobs: &mut Jobs, spec: QueueSpec) -> QueueId {
    jobs.add_queue(spec).expect("a queue that is right")
}

fn cores(count: i64) -> Amounts {
    [(Dim::CPU, count * 10_000)].into_iter().collect()
}

#[test]
pub(super) fn a_task_that_goes_on_after_its_run_time() {
    let mut jobs = Jobs::new();
    let queue = queue(&mut jobs, QueueSpec::new("q"));
    let job = job(&mut jobs, queue, "j", 1, 0);
    set(&mut jobs, job, 0, TaskState::Bound, 10);
    assert_eq!(overruns_are_ended(&jobs, Time(110)), Ok(()));
    assert!(overruns_are_ended(&jobs, Time(111)).is_err());
    set(&mut jobs, job, 0, TaskState::Releasing, 120);
    assert_eq!(overruns_are_ended(&jobs, Time(500)), Ok(()));
}

#[test]
pub(super) fn a_task_that_overran_and_is_pending_again() {
    let check = |evicted: u64, then: TaskState| {
        let mut jobs = Jobs::new();
        let queue = queue(&mut jobs, QueueSpec::new("q"));
        let job = job(&mut jobs, queue, "j", 1, 0);
        set(&mut jobs, job, 0, TaskState::Bound, 10);
        set(&mut jobs, job, 0, TaskState::Releasing, evicted);
        let mut overruns = Overruns::default();
        assert_eq!(overruns.what_overruns_fails(&jobs), Ok(()));
        assert_eq!(overruns.what_overruns_fails(&jobs), Ok(()), "it is still in its grace period");
        set(&mut jobs, job, 0, then, 200);
        overruns.what_overruns_fails(&jobs).is_ok()
    };
    assert!(check(110, TaskState::Failed) && !check(110, TaskState::Pending));
    assert!(check(109, TaskState::Pending), "it was evicted before its time was over");
}

/// Two queues: jobs of the first one run with two tasks and then one, and a job of the other one takes one.
struct Taking {
    jobs: Jobs,
    giver: JobId,
    taker: JobId,
}

/// The time of the cycle that takes.
const NOW: u64 = 10_000;

impl Taking {
    fn new(giver: QueueSpec, waits_since: u64) -> Self {
        let mut jobs = Jobs::new();
        let from = queue(&mut jobs, giver);
        let patience = Some(FAIR_SHARE_PATIENCE_NS);
        let to = queue(&mut jobs, QueueSpec { fair_share_patience_ns: patience, ..QueueSpec::new("to") });
        let group = TaskGroup::new(asks(1, 0), 2);
        let long =
            JobSpec { queue: from, phase: JobPhase::Inqueue, ..JobSpec::new("giver", vec![group.clone()]) };
        let giver = jobs.submit(long).expect("a job that is right");
        (0..2).for_each(|index| set(&mut jobs, giver, index, TaskState::Bound, 10));
        let created = Time(waits_since);
        let spec =
            JobSpec { queue: to, created, phase: JobPhase::Inqueue, ..JobSpec::new("taker", vec![group]) };
        let taker = jobs.submit(spec).expect("a job that is right");
        set(&mut jobs, giver, 1, TaskState::Releasing, NOW);
        set(&mut jobs, taker, 0, TaskState::Pipelined, NOW);
        Self { jobs, giver, taker }
    }

    /// Lets a checker judge it. The queue deserves some cores, and both jobs have fair shares of so many.
    fn check<R>(&self, deserved: i64, shares: [i64; 2], check: impl FnOnce(&Planned<'_>) -> R) -> R {
        check(&Planned {
            jobs: &self.jobs,
            now: Time(NOW),
            total: cores(4),
            deserved: &|_| cores(deserved),
            fair_share: &|job| cores(if job == self.giver { shares[0] } else { shares[1] }),
        })
    }
}

#[test]
pub(super) fn a_queue_that_gives_what_it_deserves() {
    let spare = |taking: &Taking, deserved| {
        taking.check(deserved, [0, 0], |planned| only_what_is_spare_is_reclaimed(planned).is_ok())
    };
    let taking = Taking::new(QueueSpec::new("from"), 1);
    assert!(spare(&taking, 0), "it deserves nothing in particular");
    assert!(spare(&taking, 1) && !spare(&taking, 2));
    let guaranteed = |count| QueueSpec { guarantee: cores(count), ..QueueSpec::new("from") };
    assert!(spare(&Taking::new(guaranteed(1), 1), 1) && !spare(&Taking::new(guaranteed(2), 1), 1));
}

#[test]
pub(super) fn a_queue_that_gives_what_it_is_guaranteed() {
    let keeps = |guaranteed| {
        let queue = QueueSpec { guarantee: cores(guaranteed), ..QueueSpec::new("from") };
        let taking = Taking::new(queue, 1);
        taking.check(0, [0, 0], |planned| reclaim_leaves_guarantees(planned).is_ok())
    };
    assert!(keeps(0) && keeps(1) && !keeps(2));
}

#[test]
pub(super) fn a_job_that_does_not_keep_its_share() {
    let keeps = |taking: &Taking, share| {
        taking.check(0, [share, 0], |planned| evictions_leave_fair_shares(planned).is_ok())
    };
    let taking = Taking::new(QueueSpec::new("from"), 1);
    assert!(keeps(&taking, 1) && !keeps(&taking, 2));
    let guaranteed = QueueSpec { guarantee: cores(2), ..QueueSpec::new("from") };
    assert!(!keeps(&Taking::new(guaranteed, 1), 0), "its queue does not keep its guarantee");
}

#[test]
pub(super) fn a_task_that_gives_way_to_a_job_that_does_not_starve() {
    let check = |taking: &Taking, share, started: u64| {
        taking.check(0, [1, share], |planned| only_for_the_starving(planned, Time(started)).is_ok())
    };
    let taking = Taking::new(QueueSpec::new("from"), 1);
    assert!(check(&taking, 1, 1) && !check(&taking, 0, 1), "it had nothing, and no share");
    assert!(!check(&taking, 1, NOW - FAIR_SHARE_PATIENCE_NS + 1), "the service has just started");
    let impatient = Taking::new(QueueSpec::new("from"), NOW - FAIR_SHARE_PATIENCE_NS + 1);
    assert!(!check(&impatient, 1, 1), "it was just submitted");
    let mut nobody = Taking::new(QueueSpec::new("from"), 1);
    set(&mut nobody.jobs, nobody.taker, 0, TaskState::Pending, NOW);
    assert!(!check(&nobody, 1, 1), "nobody takes it");
    nobody.jobs.set_phase(nobody.giver, JobPhase::Cancelled);
    assert!(check(&nobody, 1, 1), "its job was cancelled");
}

#[test]
pub(super) fn evictions_that_go_on() {
    assert_eq!(evictions_end(3, 3), Ok(()));
    assert!(evictions_end(3, 4).is_err());
}

#[test]
pub(super) fn a_job_that_starts_after_its_date() {
    let mut jobs = Jobs::new();
    let queue = queue(&mut jobs, QueueSpec::new("q"));
    let first = job(&mut jobs, queue, "first", 1, 2);
    let second = job(&mut jobs, queue, "second", 1, 1);
    let check = |dates: &mut Dates, jobs: &Jobs, told: &[(JobId, u64)], now: u64| {
        let told: BTreeMap<JobId, Time> = told.iter().map(|&(job, date)| (job, Time(date))).collect();
        dates.dates_are_kept(&Seen { jobs, dates: told, facts: &[], now: Time(now) }).is_ok()
    };
    let far = DATE_SLACK_NS + 1;
    let date = 2 * DATE_AHEAD_NS;
    // The date moves.
    let mut dates = Dates::default();
    assert!(check(&mut dates, &jobs, &[(first, date), (second, date)], 10));
    assert!(
        check(&mut dates, &jobs, &[(first, date - 9), (second, date + far)], 20),
        "the second one is later"
    );
    assert!(!check(&mut dates, &jobs, &[(first, date - 9 + far)], 30));
    // It waits after its date, also if it has none any longer.
    let mut dates = Dates::default();
    assert!(check(&mut dates, &jobs, &[(first, date)], 10));
    assert!(check(&mut dates, &jobs, &[], date + DATE_SLACK_NS));
    assert!(!check(&mut dates, &jobs, &[], date + far));
    // A date that is near does not count.
    let mut dates = Dates::default();
    assert!(
        check(&mut dates, &jobs, &[(first, DATE_AHEAD_NS)], 10) && check(&mut dates, &jobs, &[], date + far)
    );
    // Something was evicted: the dates before that do not count.
    let mut dates = Dates::default();
    set(&mut jobs, second, 0, TaskState::Bound, 5);
    assert!(check(&mut dates, &jobs, &[], 9) && check(&mut dates, &jobs, &[(first, date)], 10));
    set(&mut jobs, second, 0, TaskState::Releasing, 15);
    assert!(check(&mut dates, &jobs, &[(first, date + far)], 20));
    assert!(check(&mut dates, &jobs, &[(first, date + far)], date + far));
    set(&mut jobs, first, 0, TaskState::Bound, date + far);
    assert!(check(&mut dates, &jobs, &[], date + 3 * far), "it has started");
}
