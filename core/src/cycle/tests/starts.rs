//! Gangs that have got a part of what they need, and lose what they were promised of the rest.

use super::*;
use crate::cycle::config::Decision;

/// Has a gang of two hold one node and claim the other, where it preempts a task. Returns the gang.
fn starting(bed: &mut Bed, queue: QueueId) -> JobId {
    let low = bed.job("low", queue, 0, 1, 1, 1);
    bed.run(low, 0);
    let gang = bed.job("gang", queue, 2, 2, 1, 8);
    let changes = bed.cycle();
    assert_eq!((changes.evicted.len(), changes.pipelined.len(), changes.bound.len()), (1, 1, 0));
    assert_eq!(states(bed, gang), [0, 1, 1]);
    gang
}

fn bed() -> (Bed, QueueId) {
    let actions = [Action::Enqueue, Action::Allocate, Action::Preempt];
    let mut bed = Bed::new(&actions, &[&[PluginKind::Priority, PluginKind::Gang]], &[1, 1]);
    let queue = bed.queue("q", 1);
    (bed, queue)
}

/// Returns how many tasks of a job wait, have a node, and have a claim.
fn states(bed: &Bed, job: JobId) -> [u32; 3] {
    [TaskState::Pending, TaskState::Allocated, TaskState::Pipelined].map(|state| bed.count(job, state))
}

/// Returns the task of a job that has a claim.
fn claimed(bed: &Bed, job: JobId) -> TaskId {
    let tasks = (0..).zip(bed.jobs().job(job).tasks());
    let mut claims = tasks.filter(|(_, task)| task.has_claim());
    let (index, _) = claims.next().expect("a task of it has a claim");
    TaskId { job, index }
}

fn lose_claim(bed: &mut Bed, job: JobId) {
    let lost = claimed(bed, job);
    bed.cluster.lose_task(lost);
}

#[test]
fn a_start_waits_for_its_claims() {
    let (mut bed, queue) = bed();
    let gang = starting(&mut bed, queue);
    assert_eq!(bed.cycle(), Changes::default());
    assert_eq!(states(&bed, gang), [0, 1, 1]);
    let changes = bed.advance(GRACE);
    assert_eq!((changes.bound.len(), bed.count(gang, TaskState::Bound)), (2, 2));
}

#[test]
fn a_start_that_lost_its_claim_claims_again_if_it_can() {
    let (mut bed, queue) = bed();
    let gang = starting(&mut bed, queue);
    lose_claim(&mut bed, gang);
    assert_eq!(states(&bed, gang), [1, 1, 0]);
    assert_eq!(bed.cycle().pipelined.len(), 1, "what is being released is there to claim");
    assert_eq!(states(&bed, gang), [0, 1, 1]);
}

#[test]
fn a_start_that_lost_its_claim_for_good_gives_up_what_it_has() {
    let (mut bed, queue) = bed();
    let gang = starting(&mut bed, queue);
    lose_claim(&mut bed, gang);
    let top = bed.job("top", queue, 1, 1, 1, 9);
    let changes = bed.cycle();
    assert_eq!((changes.evicted.len(), changes.pipelined.len()), (0, 1), "`top` claims what is released");
    assert_eq!((states(&bed, top), states(&bed, gang)), ([0, 0, 1], [2, 0, 0]));
    // The node is there for others, and the gang waits as a whole.
    let small = bed.job("small", queue, 1, 1, 1, 0);
    assert_eq!(bed.cycle().bound, [(TaskId { job: small, index: 0 }, bed.nodes[1])]);
    assert_eq!(bed.cycle(), Changes::default());
    bed.check();
}

#[test]
fn a_start_gives_up_what_it_has_if_its_job_can_never_be_whole() {
    let (mut bed, queue) = bed();
    let gang = starting(&mut bed, queue);
    let failed = claimed(&bed, gang);
    bed.cluster.fail_task(failed, None);
    bed.cycle();
    assert_eq!((states(&bed, gang), bed.count(gang, TaskState::Failed)), ([1, 0, 0], 1));
    assert_eq!(bed.cycle(), Changes::default());
}

/// Tasks that the cap of their queue keeps from starting wait for what is being released. If the cap is lowered, that will never
/// be enough.
#[test]
fn what_waits_for_a_cap_that_will_not_allow_it_is_pending() {
    let (mut bed, queue) = bed();
    let cap = |bed: &mut Bed, cores: i64| {
        let now = bed.cluster.now();
        let jobs = bed.cluster.scheduler_mut().jobs_mut();
        let capability = [(Dim::CPU, cores * Amount::SCALE)].into_iter().collect();
        let spec = QueueSpec { capability, ..jobs.queue(queue).spec().clone() };
        jobs.update_queue(queue, spec, now).unwrap();
    };
    cap(&mut bed, 2);
    let low = bed.job("low", queue, 0, 1, 1, 1);
    bed.run(low, 0);
    let gang = bed.job("gang", queue, 2, 2, 1, 8);
    bed.cycle();
    assert_eq!(states(&bed, gang), [0, 1, 1], "one waits for the cap");
    cap(&mut bed, 1);
    bed.cycle();
    assert_eq!(states(&bed, gang), [2, 0, 0]);
    // The cap has room for the one that was evicted, once it has ended.
    bed.advance(GRACE);
    assert_eq!(bed.cycle().bound, [(TaskId { job: low, index: 0 }, bed.nodes[0])]);
    assert_eq!(bed.cycle(), Changes::default());
}

/// Without a rule that lets claims count, a job keeps what it has got, as before.
#[test]
fn a_job_that_may_start_in_part_keeps_its_part() {
    let plugin = PluginConfig::new;
    let gang = plugin(PluginKind::Gang).without(Decision::JobPipelined);
    let config = CycleConfig {
        tiers: vec![vec![plugin(PluginKind::Priority), gang]],
        ..Bed::config(&[Action::Enqueue, Action::Allocate], &[])
    };
    let mut bed = Bed::with(config, &[1, 1]);
    let queue = bed.queue("q", 1);
    let gang = bed.job("gang", queue, 4, 4, 1, 1);
    bed.cycle();
    assert_eq!(states(&bed, gang), [2, 2, 0]);
    assert_eq!(bed.cycle(), Changes::default());
    assert_eq!(states(&bed, gang), [2, 2, 0]);
}

/// Nothing vetoes that a gang loses what it needs. Two of four run, and there is room for a third one.
#[test]
fn a_task_takes_the_place_of_another_of_its_job_only_if_the_job_has_enough_then() {
    let plugin = PluginConfig::new;
    let gang = plugin(PluginKind::Gang).without(Decision::Preemptable);
    let config = CycleConfig {
        tiers: vec![vec![plugin(PluginKind::Priority), gang]],
        ..Bed::config(&[Action::Enqueue, Action::Allocate, Action::Preempt], &[])
    };
    for (cores, takes) in [(3, false), (4, true)] {
        let mut bed = Bed::with(config.clone(), &[cores]);
        let queue = bed.queue("q", 1);
        let request = || {
            let demand = Demand { cpu: Amount::whole(1), ..Demand::default() };
            PlacementRequest::new(demand, Policy::BestFit)
        };
        let groups = [(1, 3), (2, 1)];
        let groups =
            groups.map(|(priority, count)| TaskGroup { priority, ..TaskGroup::new(request(), count) });
        let spec = JobSpec { queue, min_member: 4, ..JobSpec::new("gang", groups.into()) };
        let job = bed.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap();
        for index in 0..2 {
            bed.cluster.run_on(TaskId { job, index }, bed.nodes[0], TaskState::Running).unwrap();
        }
        assert_eq!(bed.cycle() != Changes::default(), takes, "{cores} cores");
        assert_eq!(bed.cycle(), Changes::default());
        assert_eq!((bed.count(job, TaskState::Running), states(&bed, job)[1]), (2, 0));
        assert_eq!(bed.count(job, TaskState::Pending) == 0, takes);
    }
}
