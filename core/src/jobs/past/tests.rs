//! What was held is what tasks held, whatever was tried, after a restart too; and users have bounds.

use std::sync::Arc;

use proptest::prelude::*;

use super::super::*;
use super::*;
use crate::ids::NodeId;
use crate::request::{PlacementRequest, Policy};
use crate::resource::{Amount, Demand};

const HOUR: u64 = 3_600_000_000_000;

/// A job of tasks with a core each.
fn job(name: &str, queue: QueueId, user: Option<&str>, tasks: u32, created: Time) -> JobSpec {
    let demand = Demand { cpu: Amount::whole(1), ..Demand::default() };
    let group = TaskGroup::new(PlacementRequest::new(demand, Policy::BestFit), tasks);
    JobSpec {
        queue,
        user: user.map(Arc::from),
        created,
        phase: JobPhase::Inqueue,
        ..JobSpec::new(name, vec![group])
    }
}

/// Jobs whose past use counts with a half-life.
fn counted(half_life_ns: u64) -> Jobs {
    let mut jobs = Jobs::new();
    jobs.count_past(half_life_ns, true);
    jobs
}

fn set(jobs: &mut Jobs, id: TaskId, state: TaskState, now: Time) {
    jobs.set(id, state, state.has_node().then_some(NodeId(1)), now);
}

fn cpu(amounts: &Amounts) -> i64 {
    amounts.get(Dim::CPU)
}

/// Returns what a user has held.
fn held(jobs: &Jobs, queue: QueueId, user: &str, now: Time) -> i64 {
    jobs.user(queue, user, now).map_or(0, |user| cpu(&user.past))
}

#[test]
fn a_queue_begins_to_count_when_it_gets_a_half_life_and_keeps_its_average_with_another() {
    let mut jobs = counted(0);
    let a = jobs.add_queue(QueueSpec::new("a")).unwrap();
    let b = jobs.add_queue(QueueSpec { parent: a, ..QueueSpec::new("b") }).unwrap();
    let id = jobs.submit(job("j", b, Some("ann"), 2, Time(0))).unwrap();
    set(&mut jobs, TaskId { job: id, index: 0 }, TaskState::Running, Time(0));
    assert_eq!(cpu(&jobs.past_use(b, Time(9 * HOUR))), 0);
    let with = |half_life| QueueSpec { usage_half_life_ns: half_life, ..QueueSpec::new("a") };
    jobs.note_changes();
    jobs.update_queue(a, with(Some(HOUR)), Time(9 * HOUR)).unwrap();
    let noted = |jobs: &mut Jobs| {
        let is_past = |change: &JobsChange| matches!(change, JobsChange::Past(_));
        jobs.take_changes().iter().filter(|change| is_past(change)).count()
    };
    assert_eq!(noted(&mut jobs), 3, "both queues and the user");
    assert_eq!(jobs.usage_half_life_ns(b), HOUR);
    let all = |jobs: &Jobs, now| {
        [cpu(&jobs.past_use(a, now)), cpu(&jobs.past_use(b, now)), held(jobs, b, "ann", now)]
    };
    assert_eq!(all(&jobs, Time(10 * HOUR)), [5_000; 3]);
    jobs.update_queue(a, with(Some(10 * HOUR)), Time(10 * HOUR)).unwrap();
    assert_eq!(all(&jobs, Time(10 * HOUR)), [5_000; 3]);
    assert_eq!(all(&jobs, Time(20 * HOUR)), [7_500; 3]);
    // A setting that says the same changes nothing.
    noted(&mut jobs);
    jobs.update_queue(a, QueueSpec { weight: 3, ..with(Some(10 * HOUR)) }, Time(21 * HOUR)).unwrap();
    assert_eq!(noted(&mut jobs), 0);
    jobs.update_queue(a, with(Some(0)), Time(21 * HOUR)).unwrap();
    assert_eq!((all(&jobs, Time(21 * HOUR)), noted(&mut jobs)), ([0; 3], 3));
    jobs.check().unwrap();
}

#[test]
fn a_new_queue_of_an_old_name_has_no_past() {
    let mut jobs = counted(HOUR);
    let mut table = JobsTable::default();
    jobs.note_changes();
    let a = jobs.add_queue(QueueSpec::new("a")).unwrap();
    let id = jobs.submit(job("j", a, None, 1, Time(0))).unwrap();
    let task = TaskId { job: id, index: 0 };
    set(&mut jobs, task, TaskState::Running, Time(0));
    jobs.take_changes().iter().for_each(|change| table.apply(change));
    assert_eq!(table.clone().into_record().past.len(), 2, "the queue, and its jobs without a user");
    set(&mut jobs, task, TaskState::Failed, Time(HOUR));
    jobs.remove_job(id);
    jobs.remove_queue(a).unwrap();
    jobs.add_queue(QueueSpec::new("a")).unwrap();
    assert_eq!(cpu(&jobs.past_use(a, Time(HOUR))), 0);
    jobs.take_changes().iter().for_each(|change| table.apply(change));
    assert_eq!(table.into_record(), jobs.record());
    assert!(jobs.record().past.is_empty());
}

#[test]
fn users_that_used_nothing_lately_make_room_and_those_with_jobs_do_not() {
    let mut jobs = counted(HOUR);
    let a = jobs.add_queue(QueueSpec::new("a")).unwrap();
    // Each runs for some time and ends. The later ones have used more.
    let run = |jobs: &mut Jobs, number: u64, now: Time| {
        let spec = job(&format!("j{number}"), a, Some(&format!("u{number}")), 1, now);
        let task = TaskId { job: jobs.submit(spec).unwrap(), index: 0 };
        set(jobs, task, TaskState::Running, now);
        set(jobs, task, TaskState::Succeeded, now.plus_nanos(HOUR));
    };
    (0..30).for_each(|number| run(&mut jobs, number, Time(0)));
    assert_eq!(jobs.user_count(a), 30);
    let later = 100 * HOUR;
    (100..200).for_each(|number| run(&mut jobs, number, Time(later)));
    assert_eq!(jobs.user_count(a), 100, "those of long ago have used nothing");
    let most = 200..200 + QUEUE_USERS_MAX as u64;
    most.for_each(|number| run(&mut jobs, number, Time(later + number * HOUR / 1_000)));
    assert_eq!(jobs.user_count(a), QUEUE_USERS_MAX);
    let now = Time(later + 3 * HOUR);
    let last = format!("u{}", 199 + QUEUE_USERS_MAX);
    assert_eq!(
        (held(&jobs, a, "u100", now), held(&jobs, a, &last, now) > 2_000),
        (0, true),
        "the least make room"
    );
    assert_eq!((jobs.users(a, now).len(), &*jobs.users(a, now)[0].name), (QUEUE_USERS_SHOWN_MAX, &*last));
    for number in 0..QUEUE_USERS_MAX {
        jobs.submit(job(&format!("p{number}"), a, Some(&format!("p{number}")), 1, now)).unwrap();
    }
    let refused = jobs.submit(job("more", a, Some("more"), 1, now));
    assert!(matches!(refused, Err(JobError::TooManyUsers { .. })), "{refused:?}");
    jobs.submit(job("own", a, Some("p7"), 1, now)).unwrap();
    jobs.check().unwrap();
}

/// The users and queues of the property below, with the half-lives of the latter.
const USERS: [Option<&str>; 3] = [None, Some("ann"), Some("bob")];
const HALF_LIVES: [u64; 2] = [HOUR, 7 * HOUR];

/// What tasks held, in floating point: an average that is brought up to each step.
#[derive(Default)]
struct Average {
    held: f64,
    average: f64,
}

impl Average {
    fn go_on(&mut self, nanos: u64, half_life: u64) {
        let kept = (-(nanos as f64) / half_life as f64).exp2();
        self.average = self.average * kept + self.held * (1.0 - kept);
    }
}

/// Returns the jobs that an engine has that starts with these.
fn again(record: JobsRecord, now: Time) -> Jobs {
    let mut jobs = counted(HALF_LIVES[1]);
    jobs.adopt(record, now).unwrap();
    jobs.check().unwrap();
    jobs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Queues and users have held what their tasks did, as a plain computation finds. What a cycle tries and takes back
    /// makes no difference, and neither does a restart from the journal at any step.
    #[test]
    fn past_use_is_that_of_what_tasks_held(
        steps in prop::collection::vec((0..3_u64, 0..4_u32, 0..10_usize, 0..30_u64, any::<bool>(), any::<bool>()), 1..50),
    ) {
        let mut jobs = counted(HALF_LIVES[1]);
        let mut table = JobsTable::default();
        jobs.note_changes();
        let b = QueueSpec { usage_half_life_ns: Some(HALF_LIVES[0]), ..QueueSpec::new("b") };
        let b = jobs.add_queue(b).unwrap();
        // In the order in which records have them, so that queues keep their numbers in a restart.
        let d = jobs.add_queue(QueueSpec::new("d")).unwrap();
        let c = jobs.add_queue(QueueSpec { parent: b, ..QueueSpec::new("c") }).unwrap();
        let queues = [(b, 0), (c, 0), (d, 1)];
        let of_jobs = [c, c, d];
        for ((number, queue), user) in (1..).zip(of_jobs).zip(USERS) {
            jobs.submit(job(&format!("j{number}"), queue, user, 4, Time(0))).unwrap();
        }
        let mut of_queues: [Average; 3] = Default::default();
        let mut of_users: [Average; 3] = Default::default();
        let mut now = Time(0);
        for (number, index, state, wait, is_tried, restarts) in steps {
            let nanos = wait * HOUR / 7;
            now = now.plus_nanos(nanos);
            for (average, (_, half_life)) in of_queues.iter_mut().zip(queues) {
                average.go_on(nanos, HALF_LIVES[half_life]);
            }
            for (average, queue) in of_users.iter_mut().zip(of_jobs) {
                average.go_on(nanos, HALF_LIVES[usize::from(queue == d)]);
            }
            let task = TaskId { job: JobId(number + 1), index };
            let before = jobs.task(task).clone();
            let state = TaskState::ALL[state];
            set(&mut jobs, task, state, now);
            if is_tried {
                jobs.restore(task, &before);
            } else {
                let more = f64::from(i32::from(is_in_use(state)) - i32::from(is_in_use(before.state))) * 10_000.0;
                let queue = of_jobs[number as usize];
                for (average, (of, _)) in of_queues.iter_mut().zip(queues) {
                    average.held += if jobs.chain(queue).any(|above| above == of) { more } else { 0.0 };
                }
                of_users[number as usize].held += more;
            }
            jobs.check().unwrap();
            for (average, (queue, _)) in of_queues.iter().zip(queues) {
                let there = cpu(&jobs.past_use(queue, now)) as f64;
                prop_assert!((there - average.average).abs() <= 1.0, "{there}, {} expected", average.average);
            }
            for ((average, queue), user) in of_users.iter().zip(of_jobs).zip(USERS) {
                let there = held(&jobs, queue, user.unwrap_or_default(), now) as f64;
                prop_assert!((there - average.average).abs() <= 1.0, "{there}, {} expected", average.average);
            }
            jobs.take_changes().iter().for_each(|change| table.apply(change));
            let recorded = table.clone().into_record();
            prop_assert_eq!(&recorded, &jobs.record());
            if restarts {
                let later = now.plus_nanos(HOUR);
                let restarted = again(recorded.clone(), now);
                prop_assert_eq!(&restarted.record(), &recorded);
                for (queue, _) in queues {
                    let there = |jobs: &Jobs| jobs.past_use(queue, later);
                    prop_assert_eq!(there(&restarted), there(&jobs));
                }
                jobs = restarted;
                jobs.note_changes();
            }
        }
    }

    /// A task whose allocation did not survive a crash has held it until the start after it.
    #[test]
    fn what_a_crash_took_counts_until_the_next_start(wait in 1..100_u64) {
        let mut jobs = counted(HALF_LIVES[1]);
        let a = jobs.add_queue(QueueSpec::new("a")).unwrap();
        let id = jobs.submit(job("j", a, Some("ann"), 2, Time(0))).unwrap();
        (0..2).for_each(|index| set(&mut jobs, TaskId { job: id, index }, TaskState::Running, Time(0)));
        let mut record = jobs.record();
        let now = Time(wait * HOUR);
        let lost = TaskRecord::without_node(TaskState::Pending, now);
        record.jobs[0].tasks.insert(1, lost);
        set(&mut jobs, TaskId { job: id, index: 1 }, TaskState::Pending, now);
        let restarted = again(record, now);
        let later = Time(now.0 + HOUR);
        prop_assert_eq!(restarted.past_use(a, later), jobs.past_use(a, later));
        prop_assert_eq!(held(&restarted, a, "ann", later), held(&jobs, a, "ann", later));
        prop_assert_eq!(restarted.record().past, jobs.record().past);
    }
}
