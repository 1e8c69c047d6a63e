//! Who starves and when, whom they take from, and that a cycle before its time looks at nothing.

use super::*;

const PATIENCE: u64 = 60_000_000_000;

/// A cluster whose jobs starve by fair share after [`PATIENCE`].
fn bed(nodes: &[u32]) -> Bed {
    let tiers = vec![vec![PluginConfig::new(PluginKind::Gang), fair_share(0)]];
    Bed::with(CycleConfig { actions: vec![Action::Allocate, Action::Starve], tiers, ..config() }, nodes)
}

fn config() -> CycleConfig {
    CycleConfig { grace_ns: GRACE, ..CycleConfig::default() }
}

fn queue(bed: &mut Bed, spec: QueueSpec) -> QueueId {
    bed.cluster.scheduler_mut().jobs_mut().add_queue(spec).unwrap()
}

/// A queue whose jobs starve below their whole fair share.
fn impatient(name: &str) -> QueueSpec {
    QueueSpec { starves_below: Some(10_000), fair_share_patience_ns: Some(PATIENCE), ..QueueSpec::new(name) }
}

/// A job of a queue whose tasks run on the first node.
fn running(bed: &mut Bed, name: &str, queue: QueueId, tasks: u32) -> JobId {
    let job = bed.job(name, queue, 0, tasks, 1, 0);
    (0..tasks).for_each(|_| bed.run(job, 0));
    job
}

fn waiting(bed: &mut Bed, name: &str, queue: QueueId, tasks: u32) -> JobId {
    let job = bed.job(name, queue, 0, tasks, 1, 0);
    bed.cluster.scheduler_mut().jobs_mut().set_phase(job, JobPhase::Inqueue);
    job
}

fn cpu(cores: i64) -> Amounts {
    [(Dim::CPU, cores * 10_000)].into_iter().collect()
}

#[test]
fn nothing_is_looked_at_until_a_patience_is_over() {
    let mut bed = bed(&[4]);
    let q = queue(&mut bed, impatient("q"));
    let greedy = running(&mut bed, "greedy", q, 4);
    let starving = waiting(&mut bed, "starving", q, 4);
    for _ in 0..3 {
        let (report, changes) = bed.cluster.cycle();
        assert_eq!((report.victim_nodes, changes), (0, Changes::default()));
        assert_eq!(report.due, Some(Time(PATIENCE)), "also if the cycle was left out");
    }
    bed.advance(PATIENCE - 1);
    assert_eq!(bed.cycle(), Changes::default());
    bed.advance(1);
    assert_eq!(bed.cycle().evicted.len(), 2);
    let found = Starving { job: starving, fair_share: cpu(2), guarantee: Amounts::zero() };
    assert_eq!(bed.cluster.scheduler().starving(), [found]);
    assert_eq!(bed.advance(GRACE).bound.len(), 2);
    for _ in 0..5 {
        assert_eq!(bed.cycle(), Changes::default(), "both have their shares");
        bed.advance(PATIENCE);
    }
    assert_eq!([greedy, starving].map(|job| bed.jobs().job(job).ready_tasks()), [2, 2]);
}

#[test]
fn what_was_planned_and_not_committed_is_planned_again_at_once() {
    let mut bed = bed(&[4]);
    let q = queue(&mut bed, impatient("q"));
    running(&mut bed, "greedy", q, 4);
    waiting(&mut bed, "starving", q, 4);
    bed.cycle();
    bed.advance(PATIENCE);
    let report = bed.cluster.plan();
    assert_eq!(report.plans.len(), 2, "each task is a statement of its own");
    report.plans.iter().rev().for_each(|plan| bed.cluster.scheduler_mut().aborted(plan));
    bed.check();
    assert_eq!(bed.cycle().evicted.len(), 2);
    assert_eq!(bed.cycle(), Changes::default());
}

#[test]
fn a_job_has_its_part_of_its_queues_share() {
    let mut bed = bed(&[10]);
    let drf = queue(&mut bed, QueueSpec::new("drf"));
    let fifo = queue(&mut bed, QueueSpec { ordering: QueueOrdering::Fifo, ..QueueSpec::new("fifo") });
    let names = ["a", "b", "c"];
    let of_drf = names.map(|name| waiting(&mut bed, name, drf, 2));
    let of_fifo = ["d", "e"].map(|name| waiting(&mut bed, name, fifo, 2));
    bed.cycle();
    // No cycle has admitted it yet.
    let not_admitted = bed.job("f", drf, 0, 1, 1, 0);
    let share = |job| bed.cluster.scheduler().job_fair_share(job).get(Dim::CPU);
    assert_eq!(of_drf.map(share), [16_666; 3], "rounded down");
    assert_eq!(of_fifo.map(share), [50_000, 0]);
    assert_eq!(share(not_admitted), 0);
}

#[test]
fn a_task_that_has_just_started_is_no_victim_and_nothing_is_looked_at_until_it_may_be() {
    let tiers = vec![[PluginKind::Priority, PluginKind::Gang].map(PluginConfig::new).to_vec()];
    let actions = vec![Action::Allocate, Action::Preempt];
    let mut bed = Bed::with(CycleConfig { actions, tiers, min_run_time_ns: PATIENCE, ..config() }, &[2]);
    let q = bed.queue("q", 1);
    let low = bed.job("low", q, 1, 2, 1, 1);
    bed.run(low, 0);
    bed.advance(PATIENCE / 2);
    bed.run(low, 0);
    let high = bed.job("high", q, 1, 2, 1, 9);
    bed.cluster.scheduler_mut().jobs_mut().set_phase(high, JobPhase::Inqueue);
    assert_eq!(bed.cycle(), Changes::default());
    let (report, _) = bed.cluster.cycle();
    assert_eq!((report.victim_nodes, report.due), (0, Some(Time(PATIENCE))));
    bed.advance(PATIENCE / 2);
    assert_eq!(bed.cycle().evicted, [TaskId { job: low, index: 0 }]);
}

#[test]
fn settings_that_evictions_by_shares_need_are_asked_for() {
    let fault = |config: CycleConfig| LocalCluster::new(config, 1).err().unwrap().to_string();
    let fair = |plugin: PluginConfig| CycleConfig {
        actions: vec![Action::Allocate, Action::Starve],
        tiers: vec![vec![plugin]],
        ..config()
    };
    let with = PluginConfig::new(PluginKind::FairShare);
    assert!(LocalCluster::new(fair(with.clone()), 1).is_ok());
    let needs =
        "action `starve` evicts by fair shares: name plugin `fair-share`, with its decision `evictable`";
    assert_eq!(fault(fair(with.clone().without(Decision::Evictable))), needs);
    assert_eq!(fault(fair(PluginConfig::new(PluginKind::Gang))), needs);
    let both = CycleConfig { actions: vec![Action::Starve, Action::Reclaim], ..fair(with) };
    let two = "actions `starve` and `reclaim` evict by different rules: name one of them";
    assert_eq!(fault(both), two);
}

/// Its look is a long time away. What it has lost was made for it, so it is looked at again by the next cycle.
#[test]
fn a_gang_that_lost_a_claim_is_looked_at_again_at_once() {
    let mut bed = bed(&[3, 1]);
    let q = queue(&mut bed, impatient("q"));
    running(&mut bed, "greedy", q, 3);
    let gang = bed.job("gang", q, 2, 2, 1, 0);
    bed.cluster.scheduler_mut().jobs_mut().set_phase(gang, JobPhase::Inqueue);
    bed.cycle();
    bed.advance(PATIENCE);
    assert_eq!(bed.cycle().evicted.len(), 1);
    let states = |bed: &Bed| [TaskState::Allocated, TaskState::Pipelined].map(|state| bed.count(gang, state));
    assert_eq!(states(&bed), [1, 1]);
    let claims = bed.jobs().job(gang).tasks().iter().position(|task| task.has_claim()).unwrap();
    bed.cluster.lose_task(TaskId { job: gang, index: claims as u32 });
    assert_eq!(bed.cycle().pipelined.len(), 1);
    assert_eq!(states(&bed), [1, 1]);
}
