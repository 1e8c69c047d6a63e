//! Orders by past use do not depend on when cycles run.

use super::*;

const HOUR: u64 = 3_600_000_000_000;

/// Returns a full cluster of which two queues and two users in each hold unequal parts. Each of them also waits.
fn full(held: &[u32; 4]) -> (Bed, Vec<JobId>) {
    let tiers: &[&[PluginKind]] = &[&[PluginKind::Priority, PluginKind::Usage, PluginKind::Gang]];
    let config = CycleConfig { usage_half_life_ns: HOUR, ..Bed::config(PLACE, tiers) };
    let mut bed = Bed::with(config, &[held.iter().sum()]);
    let queues = ["a", "b"].map(|name| bed.queue(name, 1));
    let mut running = Vec::new();
    for (number, &cores) in held.iter().enumerate() {
        let queue = queues[number % 2];
        let job = bed.job(&format!("u{number}"), queue, 1, cores, 1, 0);
        (0..cores).for_each(|_| bed.run(job, 0));
        running.push(job);
    }
    (bed, running)
}

/// Lets jobs wait for the same users, ends what runs, and returns what is placed instead, in order.
fn succeed(bed: &mut Bed, running: &[JobId]) -> Vec<(JobId, u32)> {
    for &job in running {
        let tasks = bed.jobs().job(job).tasks().len() as u32;
        (0..tasks).for_each(|index| drop(bed.cluster.finish_task(TaskId { job, index })));
    }
    let bound = bed.cycle().bound;
    bound.into_iter().map(|(task, _)| (task.job, task.index)).collect()
}

/// Submits a job of the user of another one.
fn wait_for(bed: &mut Bed, of: JobId, tasks: u32) {
    let spec = bed.jobs().job(of).spec().clone();
    let mut group = spec.tasks[0].clone();
    group.count = tasks;
    let name = format!("again {}", spec.name).into();
    let spec = JobSpec { name, tasks: vec![group], created: bed.cluster.now(), ..spec };
    bed.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap();
}

/// While nothing changes, a cycle runs only when the order by past use has become another one. It finds that another job
/// comes first, and gives it the reservation.
#[test]
fn cycles_with_backfill_run_again_when_an_order_changes() {
    let config = CycleConfig {
        usage_half_life_ns: HOUR,
        backfill: Backfill::Easy,
        ..Bed::config(PLACE, &[&[PluginKind::Gang, PluginKind::Usage]])
    };
    let mut bed = Bed::with(config, &[4]);
    let queue = bed.queue("q", 1);
    let submit = |bed: &mut Bed, name: &str, user: &str, cpu: u32| {
        let first = bed.job(name, queue, 1, 1, cpu, 0);
        let spec = bed.jobs().job(first).spec().clone();
        bed.cluster.scheduler_mut().jobs_mut().set(
            TaskId { job: first, index: 0 },
            TaskState::Failed,
            None,
            Time(0),
        );
        let mut tasks = spec.tasks.clone();
        tasks[0].run_time_ns = Some(10 * HOUR);
        let created = bed.cluster.now();
        let spec = JobSpec { user: Some(user.into()), tasks, created, phase: JobPhase::Inqueue, ..spec };
        bed.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap()
    };
    let past = submit(&mut bed, "past", "ann", 4);
    bed.run(past, 0);
    bed.advance(2 * HOUR);
    bed.cluster.finish_task(TaskId { job: past, index: 0 });
    for user in ["bob", "cat"] {
        let job = submit(&mut bed, user, user, 2);
        bed.run(job, 0);
    }
    // Ann has held 3 cores on average, and bob holds 2. After 0.32 h, it is 2.4 for both.
    let [anns, bobs] = ["ann", "bob"].map(|user| submit(&mut bed, &format!("{user} waits"), user, 4));
    let reserved = |bed: &Bed| bed.cluster.scheduler().reservations().map(|of| of.job).collect::<Vec<_>>();
    let wait = |bed: &mut Bed, seconds: u64| {
        let before = bed.cluster.scheduler().cycles();
        for _ in 0..10 * seconds {
            assert_eq!(bed.cycle(), Changes::default(), "the cluster is full");
            bed.advance(HOUR / 36_000);
        }
        bed.cluster.scheduler().cycles() - before
    };
    assert_eq!(wait(&mut bed, 1), 2, "the second one finds that nothing has changed");
    assert_eq!(reserved(&bed), [bobs]);
    assert_eq!(wait(&mut bed, 1_150), 0);
    assert_eq!(wait(&mut bed, 10), 2, "one has another order, and the next one changes nothing");
    assert_eq!(reserved(&bed), [anns]);
    assert_eq!(wait(&mut bed, 1_000), 0);
}

/// A cycle runs again when a job has waited for too long, and not before.
#[test]
fn cycles_with_sla_run_again_when_a_job_has_waited_for_too_long() {
    let mut config = Bed::config(PLACE, &[&[PluginKind::Gang, PluginKind::Sla]]);
    config.tiers[0][1].wait_ns = Some(GRACE);
    let mut bed = Bed::with(config, &[1]);
    let queue = bed.queue("q", 1);
    let runs = bed.job("runs", queue, 1, 1, 1, 0);
    bed.run(runs, 0);
    bed.job("waits", queue, 1, 1, 1, 0);
    let cycles = |bed: &mut Bed, wait: u64| {
        bed.advance(wait);
        (0..5).for_each(|_| assert_eq!(bed.cycle(), Changes::default()));
        bed.cluster.scheduler().cycles()
    };
    assert_eq!([0, GRACE, 1, GRACE].map(|wait| cycles(&mut bed, wait)), [2, 2, 3, 3]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Cycles that find nothing to do in between, at any times, change nothing about who is next.
    #[test]
    fn who_is_next_does_not_depend_on_how_often_cycles_run(
        held in prop::array::uniform4(1..6_u32),
        pauses in prop::collection::vec(0..2 * HOUR, 1..10),
    ) {
        let [seldom, often] = [false, true].map(|is_often| {
            let (mut bed, running) = full(&held);
            running.iter().for_each(|&job| wait_for(&mut bed, job, held.iter().sum()));
            if is_often {
                for &pause in &pauses {
                    assert_eq!(bed.cycle(), Changes::default(), "the cluster is full");
                    bed.advance(pause);
                }
            } else {
                bed.advance(pauses.iter().sum());
            }
            let placed = succeed(&mut bed, &running);
            let now = bed.cluster.now();
            let past = bed.jobs().queues().map(|(id, _)| bed.jobs().past_use(id, now)).collect::<Vec<_>>();
            (placed, past)
        });
        prop_assert_eq!(seldom.0.len() as u32, held.iter().sum::<u32>(), "all that came free is used");
        prop_assert_eq!(seldom, often);
    }
}
