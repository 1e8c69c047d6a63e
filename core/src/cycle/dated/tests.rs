//! Dates, limits of run times, and that work placed before a reserved job never delays it.

mod domains;

use std::collections::BTreeMap;

use crate::cycle::{Action, Backfill, Changes, CycleConfig, LocalCluster, PluginConfig, PluginKind};
use crate::fairness::Dim;
use crate::ids::NodeId;
use crate::jobs::{
    JobId, JobPhase, JobSpec, Jobs, QueueId, QueueSpec, TaskGroup, TaskId, TaskState, TopologyRule,
    TopologyTier,
};
use crate::node::{Labels, NodeSpec, Taints};
use crate::request::{PlacementRequest, Policy};
use crate::resource::{Amount, Demand, GpuRequest};
use crate::time::Time;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

/// A cluster with queues and jobs that tests add to.
struct Bed {
    cluster: LocalCluster,
    nodes: Vec<NodeId>,
    jobs: u32,
}

/// Equal tasks of a job: their amounts, and the time that they state, in s.
#[derive(Clone, Copy, Debug)]
struct Tasks {
    count: u32,
    cpu: u32,
    /// In 1/10,000 of a device.
    gpu: u32,
    run_time: Option<u64>,
}

impl Tasks {
    fn of(count: u32, cpu: u32, run_time: Option<u64>) -> Self {
        Self { count, cpu, gpu: 0, run_time }
    }

    fn group(self) -> TaskGroup {
        let gpu = match self.gpu {
            0 => GpuRequest::None,
            part if part % 10_000 == 0 => GpuRequest::Whole(u8::try_from(part / 10_000).unwrap()),
            part => GpuRequest::Fraction(u16::try_from(part).unwrap()),
        };
        let demand = Demand { cpu: Amount::whole(self.cpu), gpu, ..Demand::default() };
        TaskGroup {
            run_time_ns: self.run_time.map(|time| time * SECOND),
            ..TaskGroup::new(PlacementRequest::new(demand, Policy::BestFit), self.count)
        }
    }
}

impl Bed {
    fn new(backfill: Backfill, tiers: &[&[PluginKind]], nodes: &[(u32, u8)]) -> Self {
        Self::with(backfill, tiers, nodes.iter().map(|&(cpu, gpus)| node(cpu, gpus)))
    }

    /// Creates a cluster of these nodes. Jobs may name racks and blocks.
    fn with(backfill: Backfill, tiers: &[&[PluginKind]], nodes: impl Iterator<Item = NodeSpec>) -> Self {
        Self::with_gap(0, backfill, tiers, nodes)
    }

    /// As [`with`](Self::with), with a gap of some seconds after each job that has a date.
    fn with_gap(
        gap: u64,
        backfill: Backfill,
        tiers: &[&[PluginKind]],
        nodes: impl Iterator<Item = NodeSpec>,
    ) -> Self {
        let tier = |kinds: &&[PluginKind]| kinds.iter().copied().map(PluginConfig::new).collect();
        let config = CycleConfig {
            actions: vec![Action::Allocate, Action::Backfill],
            tiers: tiers.iter().map(tier).collect(),
            grace_ns: 30 * SECOND,
            backfill,
            date_gap_ns: gap * SECOND,
            topology: ["rack", "block"].map(|name| TopologyTier::labelled(name, name)).to_vec(),
            ..CycleConfig::default()
        };
        let mut cluster = LocalCluster::new(config, 1).unwrap();
        let nodes = nodes.map(|node| cluster.add_node(node).unwrap()).collect();
        Self { cluster, nodes, jobs: 0 }
    }

    fn queue(&mut self, name: &str, cap: Option<i64>) -> QueueId {
        let capability = cap.map(|cap| (Dim::CPU, cap * 10_000)).into_iter().collect();
        let spec = QueueSpec { capability, ..QueueSpec::new(name) };
        self.cluster.scheduler_mut().jobs_mut().add_queue(spec).unwrap()
    }

    /// Submits a job that needs all of its tasks.
    fn job(&mut self, queue: QueueId, tasks: &[Tasks]) -> JobId {
        self.job_within(queue, tasks, None)
    }

    /// Submits a job that needs all of its tasks, perhaps in one domain.
    fn job_within(&mut self, queue: QueueId, tasks: &[Tasks], topology: Option<TopologyRule>) -> JobId {
        self.job_with_groups(queue, tasks, topology, None)
    }

    /// Submits a job that needs all of its tasks, perhaps in one domain, and perhaps with each task group in one.
    fn job_with_groups(
        &mut self,
        queue: QueueId,
        tasks: &[Tasks],
        topology: Option<TopologyRule>,
        of_groups: Option<TopologyRule>,
    ) -> JobId {
        let groups = tasks.iter().map(|of| TaskGroup { topology: of_groups.clone(), ..of.group() }).collect();
        self.jobs += 1;
        let spec = JobSpec {
            queue,
            min_member: tasks.iter().map(|of| of.count).sum(),
            created: self.cluster.now(),
            phase: JobPhase::Inqueue,
            topology,
            ..JobSpec::new(&format!("job {}", self.jobs), groups)
        };
        self.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap()
    }

    /// Has all tasks of a new job run on a node.
    fn running(&mut self, queue: QueueId, node: usize, tasks: Tasks) -> JobId {
        let job = self.job(queue, &[tasks]);
        for index in 0..tasks.count {
            self.cluster.run_on(TaskId { job, index }, self.nodes[node], TaskState::Running).unwrap();
        }
        job
    }

    fn cycle(&mut self) -> Changes {
        let (_, changes) = self.cluster.cycle();
        self.jobs().check().unwrap();
        self.cluster.shard().check_invariants().unwrap();
        assert_eq!(changes.aborted, 0, "nobody else changes anything");
        changes
    }

    fn advance(&mut self, seconds: u64) {
        self.cluster.advance(seconds * SECOND);
        self.jobs().check().unwrap();
    }

    fn jobs(&self) -> &Jobs {
        self.cluster.scheduler().jobs()
    }

    fn state(&self, job: JobId) -> TaskState {
        self.jobs().job(job).tasks()[0].state
    }

    /// Has a task run since a later time, in s: it was bound later than its cycle had counted.
    fn begin_later(&mut self, job: JobId, started: u64) {
        let task = TaskId { job, index: 0 };
        let of = self.jobs().task(task).clone();
        let now = self.cluster.now();
        let jobs = self.cluster.scheduler_mut().jobs_mut();
        jobs.set(task, TaskState::Allocated, of.node, now);
        jobs.set(task, of.state, of.node, Time(started * SECOND));
        jobs.set_allocation(task, of.allocation.expect("it runs"));
    }

    /// Returns the dates of all reservations, in s.
    fn dates(&self) -> BTreeMap<JobId, u64> {
        let reservations = self.cluster.scheduler().reservations();
        reservations.map(|of| (of.job, of.date.0 / SECOND)).collect()
    }
}

fn node(cpu: u32, gpus: u8) -> NodeSpec {
    NodeSpec {
        name: "n".into(),
        identity: None,
        cpu: Amount::whole(cpu),
        memory: Amount::ZERO,
        gpus,
        custom: None,
        labels: Labels::new(Vec::new()).unwrap(),
        taints: Taints::default(),
    }
}

const GANG: &[&[PluginKind]] = &[&[PluginKind::Gang]];

#[test]
fn only_what_ends_before_the_date_passes_the_first_job() {
    let mut bed = Bed::new(Backfill::Easy, GANG, &[(4, 0)]);
    let queue = bed.queue("q", None);
    let running = bed.running(queue, 0, Tasks::of(1, 3, Some(100)));
    let first = bed.job(queue, &[Tasks::of(1, 4, Some(50))]);
    let long = bed.job(queue, &[Tasks::of(1, 1, Some(101))]);
    let endless = bed.job(queue, &[Tasks::of(1, 1, None)]);
    let short = bed.job(queue, &[Tasks::of(1, 1, Some(100))]);
    assert_eq!(bed.cycle().bound, [(TaskId { job: short, index: 0 }, bed.nodes[0])]);
    assert_eq!(bed.dates(), BTreeMap::from([(first, 100)]));
    assert_eq!([long, endless].map(|job| bed.state(job)), [TaskState::Pending; 2]);
    // Nothing changes until the run times are over, and no cycle looks at it.
    bed.advance(99);
    assert_eq!(bed.cycle(), Changes::default());
    for job in [running, short] {
        bed.cluster.finish_task(TaskId { job, index: 0 });
    }
    assert_eq!(bed.cycle().bound, [(TaskId { job: first, index: 0 }, bed.nodes[0])]);
}

/// What ends before a date may be bound later than its cycle has counted. The gap before what is reserved after it is used up
/// then. Without it, the job would get a date after that.
#[test]
fn a_date_that_moves_a_little_stays_before_what_is_reserved_after_it() {
    for (gap, moved) in [(5, &[102, 105][..]), (0, &[200][..])] {
        let nodes = std::iter::once(node(4, 0));
        let mut bed = Bed::with_gap(gap, Backfill::Easy, GANG, nodes);
        let queue = bed.queue("q", None);
        let other = bed.queue("r", None);
        let running = bed.running(queue, 0, Tasks::of(1, 4, Some(100)));
        let first = bed.job(queue, &[Tasks::of(1, 4, Some(50))]);
        let after = bed.job(other, &[Tasks::of(1, 4, Some(50))]);
        bed.cycle();
        assert_eq!(bed.dates(), BTreeMap::from([(first, 100), (after, 150 + gap)]));
        for (started, &date) in [2, 5].into_iter().zip(moved) {
            bed.begin_later(running, started);
            bed.cycle();
            let next = if gap > 0 { 150 + gap } else { 100 + started };
            assert_eq!(bed.dates(), BTreeMap::from([(first, date), (after, next)]), "gap {gap}");
        }
        if gap > 0 {
            bed.advance(105);
            bed.cluster.finish_task(TaskId { job: running, index: 0 });
            assert_eq!(bed.cycle().bound, [(TaskId { job: first, index: 0 }, bed.nodes[0])]);
        }
    }
}

/// A cycle that would change nothing is not run, but a run time that is over is not missed.
#[test]
fn what_overruns_is_ended_with_grace_and_fails() {
    for backfill in Backfill::ALL {
        let mut bed = Bed::new(backfill, GANG, &[(1, 0)]);
        let queue = bed.queue("q", None);
        let job = bed.running(queue, 0, Tasks::of(1, 1, Some(60)));
        let task = TaskId { job, index: 0 };
        let next = bed.job(queue, &[Tasks::of(1, 1, None)]);
        assert_eq!(bed.cycle(), Changes::default());
        bed.advance(59);
        assert_eq!(bed.cycle(), Changes::default());
        bed.advance(1);
        let changes = bed.cycle();
        assert_eq!(changes.evicted, [task]);
        assert_eq!(changes.pipelined, [(TaskId { job: next, index: 0 }, bed.nodes[0])]);
        bed.advance(29);
        assert_eq!(bed.state(job), TaskState::Releasing);
        bed.advance(1);
        assert_eq!([job, next].map(|job| bed.state(job)), [TaskState::Failed, TaskState::Bound]);
        assert_eq!(bed.jobs().job(job).phase(), JobPhase::Failed);
    }
}

/// A task that is evicted before its run time is over runs again, with all of its time.
#[test]
fn the_time_of_a_task_begins_when_it_is_bound() {
    let mut bed = Bed::new(Backfill::Easy, GANG, &[(1, 0)]);
    let queue = bed.queue("q", None);
    let job = bed.running(queue, 0, Tasks::of(1, 1, Some(60)));
    let task = TaskId { job, index: 0 };
    bed.advance(40);
    bed.cluster.evict(task, 30 * SECOND);
    bed.advance(30);
    assert_eq!(bed.state(job), TaskState::Pending, "it was evicted before its time was over");
    bed.cycle();
    assert_eq!(bed.jobs().task(task).expected_end(), Some(Time(130 * SECOND)));
    bed.advance(59);
    assert_eq!(bed.cycle(), Changes::default());
    bed.advance(1);
    assert_eq!(bed.cycle().evicted, [task]);
}

/// A placement that waited is forgotten when it ends, and so is the oldest of many jobs that have ended.
#[test]
fn the_date_of_a_job_that_is_forgotten_binds_nobody() {
    let mut bed = Bed::new(Backfill::Easy, GANG, &[(2, 0)]);
    let [queue, other] = ["q", "r"].map(|name| bed.queue(name, None));
    bed.running(queue, 0, Tasks::of(1, 1, Some(100)));
    let first = bed.job(queue, &[Tasks::of(1, 2, Some(50))]);
    bed.cycle();
    assert_eq!(bed.dates(), BTreeMap::from([(first, 100)]));
    let now = bed.cluster.now();
    let jobs = bed.cluster.scheduler_mut().jobs_mut();
    jobs.set(TaskId { job: first, index: 0 }, TaskState::Failed, None, now);
    jobs.remove_job(first);
    let endless = bed.job(other, &[Tasks::of(1, 1, None)]);
    assert_eq!(bed.cycle().bound, [(TaskId { job: endless, index: 0 }, bed.nodes[0])]);
    assert_eq!(bed.dates(), BTreeMap::new());
}

/// It waited behind the first job. So it leaves that its date when the cap allows it, too, although its turn is before all jobs.
#[test]
fn what_waited_for_its_cap_leaves_the_first_job_its_date() {
    let mut bed = Bed::new(Backfill::Easy, GANG, &[(1, 1), (1, 2), (4, 0)]);
    let queue = bed.queue("q", Some(5));
    let other = bed.queue("other", None);
    let gpus = |cpu, gpus: u32, run_time| Tasks { gpu: gpus * 10_000, ..Tasks::of(1, cpu, run_time) };
    bed.running(queue, 0, gpus(1, 1, Some(10)));
    bed.running(queue, 2, Tasks::of(1, 4, None));
    bed.running(other, 1, gpus(0, 1, Some(100)));
    bed.advance(10);
    let first = bed.job(queue, &[gpus(0, 2, Some(50))]);
    let next = bed.job(queue, &[gpus(1, 1, None)]);
    let changes = bed.cycle();
    assert_eq!(changes.evicted.len(), 1, "its run time is over");
    assert_eq!(bed.state(next), TaskState::Pipelined, "it waits for the cap");
    assert_eq!(bed.dates(), BTreeMap::from([(first, 100)]));
    bed.advance(30);
    // Somebody else takes the node where it waits. A GPU of the other one is free until the date.
    bed.running(other, 0, gpus(0, 1, None));
    bed.cycle();
    assert_eq!(bed.dates(), BTreeMap::from([(first, 100)]));
    assert_eq!([first, next].map(|job| bed.state(job)), [TaskState::Pending; 2]);
}

/// It has one of its two nodes. With a date for the other one, it keeps it.
#[test]
fn a_start_is_given_up_unless_its_job_has_a_date() {
    for run_time in [Some(50), None] {
        let mut bed = Bed::new(Backfill::Easy, GANG, &[(1, 0), (1, 0)]);
        let queue = bed.queue("q", None);
        bed.running(queue, 1, Tasks::of(1, 1, run_time));
        let gang = bed.job(queue, &[Tasks::of(2, 1, None)]);
        bed.cluster.run_on(TaskId { job: gang, index: 0 }, bed.nodes[0], TaskState::Allocated).unwrap();
        bed.cycle();
        let dates = run_time.map(|date| (gang, date)).into_iter().collect();
        assert_eq!(bed.dates(), dates);
        let kept = u32::from(run_time.is_some());
        assert_eq!(bed.jobs().job(gang).count(TaskState::Allocated), kept, "{run_time:?}");
        assert_eq!(bed.jobs().job(gang).count(TaskState::Pending), 2 - kept);
    }
}

#[test]
fn a_later_job_gets_a_date_that_leaves_the_first_one_its_own() {
    let mut bed = Bed::new(Backfill::Conservative, GANG, &[(2, 0), (2, 0)]);
    let queue = bed.queue("q", None);
    bed.running(queue, 0, Tasks::of(2, 1, Some(50)));
    bed.running(queue, 1, Tasks::of(2, 1, Some(100)));
    let first = bed.job(queue, &[Tasks::of(2, 2, Some(30))]);
    let early = bed.job(queue, &[Tasks::of(1, 2, Some(50))]);
    let late = bed.job(queue, &[Tasks::of(1, 2, Some(51))]);
    bed.cycle();
    assert_eq!(bed.dates(), BTreeMap::from([(first, 100), (early, 50), (late, 130)]));
}

/// A job that comes and goes over time.
#[derive(Clone, Debug)]
struct Arrival {
    at: u64,
    queue: usize,
    groups: Vec<Tasks>,
    /// The tier of which one domain must hold it.
    tier: Option<&'static str>,
    /// The tier of which one domain must hold each of its task groups.
    of_groups: Option<&'static str>,
    /// How much of the stated time it runs, in percent.
    part: u64,
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let run_time = prop_oneof![5 => (1..40_u64).prop_map(Some), 1 => Just(None)];
    let gpu = prop_oneof![4 => Just(0_u32), 1 => Just(5_000), 1 => Just(10_000), 1 => Just(20_000)];
    let group = (1..4_u32, 1..5_u32, gpu, run_time).prop_map(|(count, cpu, gpu, run_time)| Tasks {
        count,
        cpu,
        gpu,
        run_time,
    });
    let arrival = (0..60_u64, 0..3_usize, prop::collection::vec(group, 1..3), 1..101_u64).prop_map(
        |(at, queue, groups, part)| Arrival { at, queue, groups, tier: None, of_groups: None, part },
    );
    prop::collection::vec(arrival, 1..16)
}

/// Returns whether all jobs that come before a job in its queue have dates, or nodes. The others may delay it.
fn leads(bed: &Bed, job: JobId, dates: &BTreeMap<JobId, u64>) -> bool {
    let queue = bed.jobs().job(job).spec().queue;
    let mut before = bed.jobs().queue(queue).waiting().take_while(|&other| other != job);
    before.all(|other| dates.contains_key(&other))
}

/// Runs arrivals until all that can start has ended. Returns an error if a date ever moves to a later time, by more than the
/// gap between dates in s, or if a job starts that much after a date that it was given.
fn run(
    bed: &mut Bed,
    queues: &[QueueId],
    mut arrivals: Vec<Arrival>,
    gap: u64,
    check: impl Fn(&Bed) -> Result<(), TestCaseError>,
) -> Result<usize, TestCaseError> {
    arrivals.sort_by_key(|arrival| arrival.at);
    let mut parts: BTreeMap<JobId, u64> = BTreeMap::new();
    let mut ends: BTreeMap<TaskId, u64> = BTreeMap::new();
    let mut dates: BTreeMap<JobId, u64> = BTreeMap::new();
    let mut now = 0;
    loop {
        let due: Vec<TaskId> = ends.iter().filter(|&(_, &end)| end <= now).map(|(&task, _)| task).collect();
        for task in due {
            ends.remove(&task);
            bed.cluster.finish_task(task);
        }
        while arrivals.first().is_some_and(|arrival| arrival.at <= now) {
            let arrival = arrivals.remove(0);
            let rule = arrival.tier.map(domains::hard);
            let of_groups = arrival.of_groups.map(domains::hard);
            let queue = queues[arrival.queue % queues.len()];
            let job = bed.job_with_groups(queue, &arrival.groups, rule, of_groups);
            parts.insert(job, arrival.part);
        }
        for (task, _) in bed.cycle().bound {
            let stated = bed.jobs().task(task).run_time_ns.map_or(50, |nanos| nanos / SECOND);
            ends.insert(task, now + (stated * parts[&task.job] / 100).max(1));
            if let Some(date) = dates.get(&task.job) {
                prop_assert!(now <= date + gap, "{} started at {}, its date was {}", task, now, date);
            }
        }
        check(bed)?;
        let all = bed.dates();
        for (&job, &date) in all.iter().filter(|&(&job, _)| leads(bed, job, &all)) {
            let first = dates.entry(job).or_insert(date);
            prop_assert!(date <= *first + gap, "the date of {} moved from {} to {}", job, first, date);
            *first = date.min(*first);
        }
        let next = ends.values().copied().chain(arrivals.first().map(|arrival| arrival.at)).min();
        let Some(next) = next else { break };
        bed.advance(next - now);
        now = next;
    }
    for (job, date) in &dates {
        prop_assert!(bed.jobs().job(*job).count(TaskState::Pending) == 0, "{} never started: {}", job, date);
    }
    Ok(dates.len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// If tasks run no longer than they state, a job starts no later than any date that it was given. The date never moves
    /// to a later time, whatever comes behind it.
    #[test]
    fn what_is_placed_before_a_reserved_job_never_delays_it(
        nodes in prop::collection::vec((2..9_u32, 0..3_u8), 1..5),
        caps in prop::collection::vec(prop::option::of(3..12_i64), 1..4),
        backfill in prop_oneof![Just(Backfill::Easy), Just(Backfill::Conservative)],
        gap in prop_oneof![Just(0), 1..8_u64],
        arrivals in arrivals(),
    ) {
        let nodes = nodes.iter().map(|&(cpu, gpus)| node(cpu, gpus));
        let mut bed = Bed::with_gap(gap, backfill, GANG, nodes);
        let queues: Vec<QueueId> =
            caps.iter().enumerate().map(|(at, &cap)| bed.queue(&format!("q{at}"), cap)).collect();
        run(&mut bed, &queues, arrivals, gap, |_| Ok(()))?;
    }
}
