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
