//! Cycles on a shard of their own: what they place, whom they evict, and that this ends.

use super::*;
use crate::fairness::Caps;
use crate::ids::NodeId;
use crate::jobs::{JobId, JobSpec, QueueOrdering, QueueSpec, Role, TaskGroup, TaskId};
use crate::node::{Labels, NodeSpec, Taints};
use crate::request::{PlacementRequest, Policy};
use crate::resource::{Amount, Demand};
use proptest::prelude::*;

mod best_effort;
mod converge;
mod equal_jobs;
mod explain;
mod hierarchy;
mod large_jobs;
mod parked;
mod spots;
mod starts;
mod starve;
mod topology;
mod trim;
mod two_kinds;
mod usage;
mod whole_gangs;

const GRACE: u64 = 30_000_000_000;

/// A cluster with queues and jobs that tests add to.
struct Bed {
    cluster: LocalCluster,
    nodes: Vec<NodeId>,
    /// The number of roles of the next job. Its tasks are of the first one.
    roles: usize,
}

impl Bed {
    fn new(actions: &[Action], tiers: &[&[PluginKind]], nodes: &[u32]) -> Self {
        Self::with(Self::config(actions, tiers), nodes)
    }

    fn config(actions: &[Action], tiers: &[&[PluginKind]]) -> CycleConfig {
        let tier = |kinds: &&[PluginKind]| kinds.iter().copied().map(PluginConfig::new).collect();
        let tiers = tiers.iter().map(tier).collect();
        CycleConfig { actions: actions.to_vec(), tiers, grace_ns: GRACE, ..CycleConfig::default() }
    }

    fn with(config: CycleConfig, nodes: &[u32]) -> Self {
        let mut cluster = LocalCluster::new(config, 1).unwrap();
        let nodes = nodes.iter().map(|&cpu| cluster.add_node(node(cpu)).unwrap()).collect();
        Self { cluster, nodes, roles: 1 }
    }

    fn queue(&mut self, name: &str, weight: u32) -> QueueId {
        self.cluster
            .scheduler_mut()
            .jobs_mut()
            .add_queue(QueueSpec { weight, ..QueueSpec::new(name) })
            .unwrap()
    }

    /// Submits a job of equal tasks.
    fn job(
        &mut self,
        name: &str,
        queue: QueueId,
        min_member: u32,
        tasks: u32,
        cpu: u32,
        priority: i32,
    ) -> JobId {
        let request =
            PlacementRequest::new(Demand { cpu: Amount::whole(cpu), ..Demand::default() }, Policy::BestFit);
        let group = TaskGroup { priority, ..TaskGroup::new(request, tasks) };
        let spec = JobSpec {
            queue,
            user: Some(name.into()),
            min_member,
            roles: vec![Role { name: "task".into(), min_member: 0 }; self.roles],
            priority,
            created: self.cluster.now(),
            ..JobSpec::new(name, vec![group])
        };
        self.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap()
    }

    /// Has the first pending task of a job run on the node of this index.
    fn run(&mut self, job: JobId, node: usize) {
        let index = self.jobs().job(job).pending().next().unwrap();
        self.cluster.run_on(TaskId { job, index }, self.nodes[node], TaskState::Running).unwrap();
    }

    fn cycle(&mut self) -> Changes {
        let (_, changes) = self.cluster.cycle();
        self.check();
        assert_eq!(changes.aborted, 0, "nobody else changes anything");
        changes
    }

    fn advance(&mut self, nanos: u64) -> Changes {
        let changes = self.cluster.advance(nanos);
        self.check();
        changes
    }

    fn check(&self) {
        self.jobs().check().unwrap();
        self.cluster.shard().check_invariants().unwrap();
    }

    fn jobs(&self) -> &Jobs {
        self.cluster.scheduler().jobs()
    }

    fn count(&self, job: JobId, state: TaskState) -> u32 {
        self.jobs().job(job).count(state)
    }
}

fn node(cpu: u32) -> NodeSpec {
    NodeSpec {
        name: "n".into(),
        identity: None,
        cpu: Amount::whole(cpu),
        memory: Amount::ZERO,
        gpus: 0,
        custom: None,
        labels: Labels::new(Vec::new()).unwrap(),
        taints: Taints::default(),
    }
}

/// A plugin that lets running gangs go as a whole, or not.
fn plugin(kind: PluginKind, whole_gangs: bool) -> PluginConfig {
    let mut plugin = PluginConfig::new(kind);
    plugin.whole_gangs = whole_gangs;
    plugin
}

/// Fair shares by which jobs starve on any cluster.
fn fair_share(recheck_ns: u64) -> PluginConfig {
    let mut plugin = PluginConfig::new(PluginKind::FairShare);
    plugin.utilization_above = 0;
    plugin.recheck_ns = recheck_ns;
    plugin
}

const PLACE: &[Action] = &[Action::Enqueue, Action::Allocate, Action::Backfill];

#[test]
fn a_gang_is_placed_whole_or_not_at_all() {
    let mut bed = Bed::new(PLACE, &[&[PluginKind::Gang]], &[4]);
    let queue = bed.queue("q", 1);
    let large = bed.job("large", queue, 5, 5, 1, 0);
    let small = bed.job("small", queue, 3, 4, 1, 0);
    let changes = bed.cycle();
    assert_eq!(changes.bound.len(), 4);
    assert_eq!(bed.count(large, TaskState::Pending), 5, "four of five are of no use");
    assert_eq!(bed.count(small, TaskState::Bound), 4);
    assert_eq!(bed.cycle(), Changes::default());
    let first = changes.bound[0].0;
    bed.cluster.finish_task(first);
    assert_eq!(bed.cycle(), Changes::default());
}

#[test]
fn jobs_take_turns_by_their_dominant_share() {
    let mut bed = Bed::new(PLACE, &[&[PluginKind::Gang], &[PluginKind::Drf]], &[6]);
    let queue = bed.queue("q", 1);
    let first = bed.job("first", queue, 1, 6, 1, 0);
    let second = bed.job("second", queue, 1, 6, 1, 0);
    bed.cycle();
    assert_eq!([first, second].map(|job| bed.count(job, TaskState::Bound)), [3, 3]);
}

#[test]
fn queues_get_what_they_deserve_by_weight_and_keep_within_their_caps() {
    let mut bed = Bed::new(PLACE, &[&[PluginKind::Gang, PluginKind::Proportion]], &[9]);
    let light = bed.queue("light", 1);
    let heavy = bed.queue("heavy", 2);
    let jobs = [light, heavy].map(|queue| bed.job(&format!("of {}", queue.0), queue, 1, 20, 1, 0));
    bed.cycle();
    assert_eq!(jobs.map(|job| bed.count(job, TaskState::Bound)), [3, 6]);
    let mut bed = Bed::new(PLACE, &[&[PluginKind::Gang]], &[9]);
    let capability: Caps = [(Dim::CPU, 20_000)].into_iter().collect();
    let capped = QueueSpec { capability, ..QueueSpec::new("capped") };
    let capped = bed.cluster.scheduler_mut().jobs_mut().add_queue(capped).unwrap();
    let job = bed.job("job", capped, 1, 5, 1, 0);
    bed.cycle();
    assert_eq!(bed.count(job, TaskState::Bound), 2);
}

#[test]
fn a_higher_priority_preempts_as_few_as_it_must_and_gets_what_they_leave() {
    let tiers: &[&[PluginKind]] = &[&[PluginKind::Priority, PluginKind::Gang]];
    let mut bed = Bed::new(&[Action::Enqueue, Action::Allocate, Action::Preempt], tiers, &[4, 4]);
    let queue = bed.queue("q", 1);
    let low = bed.job("low", queue, 1, 8, 1, 1);
    for task in 0..8 {
        bed.run(low, task / 4);
    }
    let high = bed.job("high", queue, 1, 1, 2, 9);
    let changes = bed.cycle();
    assert_eq!((changes.evicted.len(), changes.pipelined.len(), changes.bound.len()), (2, 1, 0));
    // What is freed belongs to its preemptor, although another job would fit before.
    let thief = bed.job("thief", queue, 2, 2, 1, 20);
    assert_eq!(bed.advance(GRACE / 2), Changes::default());
    let stolen = bed.cycle();
    assert_eq!(stolen.evicted.len(), 2, "it preempts others, and takes nothing of the first preemptor's");
    let after = bed.advance(GRACE / 2);
    assert_eq!(after.bound, [(TaskId { job: high, index: 0 }, changes.pipelined[0].1)]);
    assert_eq!(bed.count(low, TaskState::Pending), 2);
    bed.advance(GRACE / 2);
    assert_eq!(bed.count(thief, TaskState::Bound), 2);
    assert_eq!(bed.count(low, TaskState::Running), 4);
}

#[test]
fn nobody_is_evicted_for_a_gang_that_does_not_fit() {
    let tiers: &[&[PluginKind]] = &[&[PluginKind::Priority, PluginKind::Gang]];
    let mut bed = Bed::new(&[Action::Enqueue, Action::Allocate, Action::Preempt], tiers, &[4]);
    let queue = bed.queue("q", 1);
    let low = bed.job("low", queue, 2, 4, 1, 1);
    (0..4).for_each(|_| bed.run(low, 0));
    let high = bed.job("high", queue, 3, 3, 1, 9);
    assert_eq!(bed.cycle(), Changes::default(), "the job of lower priority keeps its two");
    assert_eq!(bed.count(high, TaskState::Pending), 3);
    assert_eq!(bed.count(low, TaskState::Running), 4);
}

#[test]
fn a_queue_reclaims_what_it_deserves_and_no_more() {
    let tiers: &[&[PluginKind]] = &[&[PluginKind::Gang, PluginKind::Proportion]];
    let mut bed = Bed::new(&[Action::Enqueue, Action::Allocate, Action::Reclaim], tiers, &[4, 4]);
    let rich = bed.queue("rich", 1);
    let poor = bed.queue("poor", 1);
    let running = bed.job("running", rich, 1, 8, 1, 0);
    for task in 0..8 {
        bed.run(running, task / 4);
    }
    let waiting = bed.job("waiting", poor, 1, 8, 1, 0);
    let changes = bed.cycle();
    assert_eq!((changes.evicted.len(), changes.pipelined.len()), (4, 4));
    assert_eq!(bed.cycle(), Changes::default());
    assert_eq!(bed.advance(GRACE).bound.len(), 4);
    for _ in 0..3 {
        assert_eq!(bed.cycle(), Changes::default(), "both have what they deserve");
    }
    assert_eq!([running, waiting].map(|job| bed.jobs().job(job).ready_tasks()), [4, 4]);
}

#[test]
fn a_pending_job_waits_until_its_queue_has_room_for_it() {
    let tiers: &[&[PluginKind]] = &[&[PluginKind::Gang], &[PluginKind::Proportion]];
    let mut bed = Bed::new(PLACE, tiers, &[4]);
    let queue = bed.queue("q", 1);
    let names = ["first", "second"];
    let jobs = names.map(|name| {
        let request =
            PlacementRequest::new(Demand { cpu: Amount::whole(3), ..Demand::default() }, Policy::BestFit);
        let spec = JobSpec {
            queue,
            min_member: 1,
            min_resources: Some(Amounts::of(&request.demand)),
            ..JobSpec::new(name, vec![TaskGroup::new(request, 1)])
        };
        bed.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap()
    });
    let changes = bed.cycle();
    assert_eq!(jobs.map(|job| bed.jobs().job(job).phase()), [JobPhase::Running, JobPhase::Pending]);
    bed.cluster.finish_task(changes.bound[0].0);
    bed.cycle();
    assert_eq!(bed.jobs().job(jobs[1]).phase(), JobPhase::Running);
}

/// A cycle that changes nothing is not repeated while nothing changes. One that admits a job has changed something.
#[test]
fn a_cycle_on_the_same_state_looks_at_nothing() {
    let actions = &[Action::Preempt, Action::Allocate, Action::Enqueue];
    let mut bed = Bed::new(actions, &[&[PluginKind::Priority, PluginKind::Gang]], &[4]);
    let queue = bed.queue("q", 1);
    let first = bed.job("first", queue, 1, 1, 4, 0);
    assert_eq!(bed.cycle(), Changes::default(), "it was admitted last");
    assert_eq!(bed.cycle().bound, [(TaskId { job: first, index: 0 }, bed.nodes[0])]);
    let second = bed.job("second", queue, 1, 1, 4, 1);
    for looked_at in [0, 1, 0, 0] {
        let (report, changes) = bed.cluster.cycle();
        // The first cycle admits it. The second one looks at the node once: the job there has a lower priority, and needs its task.
        assert_eq!((report.victim_nodes, changes), (looked_at, Changes::default()));
    }
    bed.cluster.finish_task(TaskId { job: first, index: 0 });
    assert_eq!(bed.cycle().bound, [(TaskId { job: second, index: 0 }, bed.nodes[0])]);
}

#[test]
fn tasks_that_ask_for_nothing_are_placed_on_a_full_cluster() {
    let mut bed = Bed::new(PLACE, &[&[PluginKind::Gang]], &[1]);
    let queue = bed.queue("q", 1);
    let full = bed.job("full", queue, 1, 1, 1, 0);
    bed.run(full, 0);
    let nothing = bed.job("nothing", queue, 2, 2, 0, 0);
    assert_eq!(bed.cycle().bound.len(), 2);
    assert_eq!(bed.count(nothing, TaskState::Bound), 2);
}

#[test]
fn broken_settings_are_refused() {
    let fault = |config: CycleConfig| LocalCluster::new(config, 1).err().unwrap().to_string();
    let none = CycleConfig { actions: Vec::new(), ..CycleConfig::default() };
    assert_eq!(
        fault(none),
        "no action is named: name some of enqueue, allocate, backfill, preempt, reclaim, starve"
    );
    let twice = CycleConfig { actions: vec![Action::Allocate, Action::Allocate], ..CycleConfig::default() };
    assert_eq!(fault(twice), "action `allocate` is named twice: name each once");
    let both = [PluginKind::Proportion, PluginKind::Capacity].map(PluginConfig::new).to_vec();
    let both = CycleConfig { tiers: vec![both], ..CycleConfig::default() };
    assert!(fault(both).contains("both say what queues deserve"));
    let mut both = [PluginKind::Proportion, PluginKind::Drf].map(PluginConfig::new).to_vec();
    let flat = CycleConfig { tiers: vec![both.clone()], ..CycleConfig::default() };
    assert_eq!(flat.check(), Ok(()));
    both[1].hierarchical = true;
    let both = CycleConfig { tiers: vec![both], ..CycleConfig::default() };
    assert!(fault(both).contains("plugins `proportion` and `drf` both say what queues deserve"));
    let unused = CycleConfig { usage_half_life_ns: 1, ..CycleConfig::default() };
    assert!(fault(unused).contains("name plugin `usage`"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Under a fixed demand, evictions end: neither queues nor jobs evict each other in turns, for any weights,
    /// priorities and sizes. The books are right after every step, and no cap is exceeded at any time.
    #[test]
    fn evictions_end_under_a_fixed_demand(
        nodes in prop::collection::vec(2..9_u32, 1..4),
        weights in prop::collection::vec((1..4_u32, prop::option::of(2..12_i64)), 1..4),
        jobs in prop::collection::vec((0..4_usize, 1..4_u32, 1..6_u32, 1..4_u32, 0..3_i32), 1..9),
        rules in 0..7_usize,
        whole_gangs in any::<bool>(),
    ) {
        use PluginKind::{Drf, Gang, Priority, Proportion, Usage};
        let tiers: [&[&[PluginKind]]; 7] = [
            // With past use, orders change as time passes.
            &[&[Priority, Usage, Gang, Proportion], &[Drf]],
            &[&[Usage, Drf, Gang, Proportion]],
            &[&[Priority, Gang, Proportion]],
            &[&[Priority, Gang, Proportion], &[Drf]],
            &[&[Gang], &[Drf, Proportion]],
            &[&[Drf, Gang, Proportion]],
            &[&[Gang, Proportion]],
        ];
        let plugin = |kind: &PluginKind| plugin(*kind, whole_gangs);
        let tiers = tiers[rules].iter().map(|tier| tier.iter().map(plugin).collect()).collect();
        let usage_half_life_ns = if rules < 2 { GRACE } else { 0 };
        let config = CycleConfig { tiers, usage_half_life_ns, grace_ns: GRACE, ..CycleConfig::default() };
        let mut bed = Bed::with(config, &nodes);
        let mut queues = Vec::new();
        for (number, &(weight, cap)) in weights.iter().enumerate() {
            let capability = cap.map(|cap| (Dim::CPU, cap * 10_000)).into_iter().collect();
            let spec = QueueSpec { weight, capability, ..QueueSpec::new(&format!("q{number}")) };
            queues.push(bed.cluster.scheduler_mut().jobs_mut().add_queue(spec).unwrap());
        }
        let evictions = settle(&mut bed, &queues, &jobs);
        prop_assert!(evictions.is_ok(), "evictions go on: {} so far", evictions.unwrap_err());
    }

    /// The same for jobs that starve: time passes beyond patience, grace and recheck in each step. Guarantees may exceed
    /// the cluster, and jobs of `fifo` queues may have no share.
    #[test]
    fn evictions_for_starving_jobs_end_under_a_fixed_demand(
        nodes in prop::collection::vec(4..13_u32, 1..4),
        shapes in prop::collection::vec(
            (1..4_u32, prop::option::weighted(0.2, 2..12_i64), 0..13_i64, any::<bool>(), 0..3_u32, 0..9_u32),
            2..5,
        ),
        jobs in prop::collection::vec((0..4_usize, 1..4_u32, 1..6_u32, 1..3_u32, 0..3_i32), 4..14),
        is_gang in any::<bool>(),
        min_run_time in 0..2_u64,
    ) {
        use PluginKind::{Gang, Priority};
        let fair = fair_share(GRACE / 3);
        let first = [Priority, Gang].map(PluginConfig::new).to_vec();
        let config = CycleConfig {
            actions: vec![Action::Enqueue, Action::Allocate, Action::Starve],
            tiers: if is_gang { vec![first, vec![fair]] } else { vec![vec![fair]] },
            grace_ns: GRACE / 3,
            min_run_time_ns: min_run_time * GRACE / 2,
            ..CycleConfig::default()
        };
        let mut bed = Bed::with(config, &nodes);
        let mut queues = Vec::new();
        for (number, &(weight, cap, guarantee, is_fifo, patience, below)) in shapes.iter().enumerate() {
            let guarantee = guarantee.min(cap.unwrap_or(guarantee)) * 10_000;
            let patience = patience > 0;
            let spec = QueueSpec {
                weight,
                capability: cap.map(|cap| (Dim::CPU, cap * 10_000)).into_iter().collect(),
                guarantee: [(Dim::CPU, guarantee)].into_iter().collect(),
                reclaimable: number != 3,
                ordering: if is_fifo { QueueOrdering::Fifo } else { QueueOrdering::Drf },
                starves_below: Some((below * 1_250).min(10_000)),
                fair_share_patience_ns: patience.then_some(GRACE / 2),
                guarantee_patience_ns: Some(GRACE / 3),
                ..QueueSpec::new(&format!("q{number}"))
            };
            queues.push(bed.cluster.scheduler_mut().jobs_mut().add_queue(spec).unwrap());
        }
        let evictions = settle(&mut bed, &queues, &jobs);
        prop_assert!(evictions.is_ok(), "evictions go on: {} so far", evictions.unwrap_err());
    }
}

/// Submits jobs, each a queue, what it needs, how many tasks more it has and one more, their cores and its priority. Runs
/// cycles until nothing changes. Returns how many tasks were evicted, as an error if they still are.
fn settle(bed: &mut Bed, queues: &[QueueId], jobs: &[(usize, u32, u32, u32, i32)]) -> Result<usize, usize> {
    settle_by(bed, jobs.len(), |bed, number| {
        let (queue, min_member, more, cpu, priority) = jobs[number];
        let queue = queues[queue % queues.len()];
        bed.job(&format!("j{number}"), queue, min_member, min_member + more - 1, cpu, priority);
    })
}

/// Submits so many jobs by number, and runs cycles until nothing changes. Returns how many tasks were evicted, as an error
/// if they still are.
fn settle_by(bed: &mut Bed, jobs: usize, submit: impl Fn(&mut Bed, usize)) -> Result<usize, usize> {
    let mut evictions = 0;
    for number in 0..jobs {
        submit(bed, number);
        for _ in 0..2 {
            evictions += bed.cycle().evicted.len();
            within_caps(bed);
            bed.advance(GRACE / 3);
            within_caps(bed);
        }
    }
    // Every task may be evicted for each of the others once, at most, until everything is settled.
    let mut quiet = 0;
    for _ in 0..200 {
        let evicted = bed.cycle().evicted.len();
        evictions += evicted;
        within_caps(bed);
        let after = bed.advance(GRACE);
        within_caps(bed);
        quiet = if evicted == 0 && after == Changes::default() { quiet + 1 } else { 0 };
        if quiet == 3 {
            return Ok(evictions);
        }
    }
    Err(evictions)
}

/// Checks that no queue uses more than its cap, with what is still being released.
fn within_caps(bed: &Bed) {
    for (_, queue) in bed.jobs().queues() {
        let used = queue.usage().held.plus(&queue.usage().releasing);
        for (dim, cap) in queue.spec().capability.iter() {
            assert!(used.get(dim) <= cap, "queue {} uses {} of {dim}", queue.spec().name, used.get(dim));
        }
    }
}
