//! One run in virtual time: jobs arrive, planners decide and commit.

use std::collections::{BTreeSet, VecDeque};

use wharf_core::ids::{Incarnation, StatementId, TenantId};
use wharf_core::request::PlacementRequest;
use wharf_core::rng::Rng;
use wharf_core::shard::Shard;
use wharf_core::statement::{Allocate, CommitMode, Operation};
use wharf_core::time::Time;

use super::cell::{Cell, Placed, Terms, replica, task};
use super::{Point, Row, Settings, detection_name, mode_name};

/// After this number of attempts a job is given up, as in Omega's simulation.
pub const ATTEMPTS_MAX: u32 = 1000;

const MS: u64 = 1_000_000;
/// Arrivals are drawn per tick with integers, so that they are the same on every machine.
const TICK_NS: u64 = 100_000;
const TICKS_PER_SECOND: u64 = 1_000_000_000 / TICK_NS;

/// A job with its tasks that are not placed yet.
struct Job {
    tasks: Vec<PlacementRequest>,
    attempts: u32,
}

/// The job that a planner is deciding on.
struct Attempt {
    job: Job,
    began: Time,
    /// The operations to send.
    operations: Vec<Placed>,
    /// The index of the task of each operation.
    of_task: Vec<usize>,
}

struct Planner {
    replicas: Vec<Shard>,
    rng: Rng,
    queue: VecDeque<Job>,
    now: Option<Attempt>,
    statements: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival,
    /// This planner has decided.
    Decided(u16),
}

#[derive(Default)]
struct Sums {
    jobs: u64,
    given_up: u64,
    attempts: u64,
    conflicted: u64,
    operations: u64,
    granted: u64,
    busy_ns: u64,
}

/// Planners over a cell.
struct Run {
    point: Point,
    cell: Cell,
    planners: Vec<Planner>,
    rng: Rng,
    /// Ordered by time. At the same time, arrivals come first, then decisions by planner.
    due: BTreeSet<(Time, Event)>,
    arrived: u64,
    sums: Sums,
}

/// Simulates `point` in a cell with `settings`. The same arguments give the same row.
#[must_use]
pub fn run(settings: &Settings, point: Point) -> Row {
    let mut run = Run::new(settings, point);
    let end = Time(u64::from(settings.seconds) * 1_000_000_000);
    while let Some(&(now, event)) = run.due.first()
        && now <= end
    {
        run.due.pop_first();
        match event {
            Event::Arrival => run.arrive(now),
            Event::Decided(planner) => run.decided(usize::from(planner), now),
        }
    }
    run.cell.check().expect("the books of a cell balance");
    run.row(end)
}

impl Run {
    fn new(settings: &Settings, point: Point) -> Self {
        let cell = Cell::new(settings);
        let mut rng = Rng::new(settings.seed ^ 0x00C0_FFEE);
        let planner = |_| {
            let replicas = (0..settings.shards).map(|shard| replica(shard, rng.next_u64())).collect();
            let rng = Rng::new(rng.next_u64());
            let queue = VecDeque::new();
            Planner { replicas, rng, queue, now: None, statements: 0 }
        };
        let planners = (0..point.planners).map(planner).collect();
        let due = BTreeSet::new();
        let sums = Sums::default();
        // A separate generator, so that arrivals do not depend on the planners.
        let rng = Rng::new(settings.seed.wrapping_add(1));
        let mut run = Self { point, cell, planners, rng, due, arrived: 0, sums };
        run.expect_arrival(Time(0));
        run
    }

    fn expect_arrival(&mut self, now: Time) {
        let mut ticks = 1;
        while self.rng.below(TICKS_PER_SECOND) >= u64::from(self.point.load) {
            ticks += 1;
        }
        self.due.insert((now.plus_nanos(ticks * TICK_NS), Event::Arrival));
    }

    /// A job arrives at the next planner, round robin.
    fn arrive(&mut self, now: Time) {
        let job = job(&mut self.rng);
        let at = (self.arrived % self.planners.len() as u64) as usize;
        self.arrived += 1;
        self.planners[at].queue.push_back(job);
        self.begin(at, now);
        self.expect_arrival(now);
    }

    /// Starts the next job of the queue if the planner is idle.
    fn begin(&mut self, at: usize, now: Time) {
        let planner = &mut self.planners[at];
        if planner.now.is_some() {
            return;
        }
        let Some(job) = planner.queue.pop_front() else { return };
        self.attempt(at, job, now);
    }

    /// Synchronises the planner's copies, plans the rest of the job, and schedules the end of the decision.
    fn attempt(&mut self, at: usize, mut job: Job, now: Time) {
        job.attempts += 1;
        let Point { decision_ms, task_ms, .. } = self.point;
        let takes = (u64::from(decision_ms) + u64::from(task_ms) * job.tasks.len() as u64) * MS;
        let (operations, of_task) = self.planners[at].plan(&self.cell, &job);
        self.planners[at].now = Some(Attempt { job, began: now, operations, of_task });
        let number = u16::try_from(at).expect("PLANNERS_MAX fits u16");
        self.due.insert((now.plus_nanos(takes.max(1)), Event::Decided(number)));
    }

    /// Commits the decided operations. The planner continues with the rest of the job, or with the next job.
    fn decided(&mut self, at: usize, now: Time) {
        let planner = &mut self.planners[at];
        let Attempt { mut job, began, operations, of_task } = planner.now.take().expect("it decided");
        self.sums.busy_ns += now.nanos_since(began);
        self.sums.attempts += 1;
        let Point { conflict_detection, mode, .. } = self.point;
        let whole = operations.len() == job.tasks.len();
        if !operations.is_empty() && (whole || mode == CommitMode::Incremental) {
            planner.statements += 1;
            let number = u16::try_from(at).expect("PLANNERS_MAX fits u16");
            let incarnation = Incarnation(1);
            let statement = planner.statements;
            let id = StatementId { incarnation, planner: number, number: statement };
            let committed = self.cell.commit(id, &operations, Terms { conflict_detection, mode }, now);
            self.sums.conflicted += u64::from(committed.conflicts > 0);
            self.sums.operations += operations.len() as u64;
            self.sums.granted += committed.granted.len() as u64;
            let done: BTreeSet<usize> =
                committed.granted.iter().map(|&place| of_task[usize::from(place)]).collect();
            let mut number = 0;
            job.tasks.retain(|_| {
                number += 1;
                !done.contains(&(number - 1))
            });
        }
        if job.tasks.is_empty() {
            self.sums.jobs += 1;
        } else if job.attempts >= ATTEMPTS_MAX {
            self.sums.given_up += 1;
        } else {
            return self.attempt(at, job, now);
        }
        self.begin(at, now);
    }

    fn row(&self, end: Time) -> Row {
        let Point { planners, conflict_detection, mode, decision_ms, task_ms, load } = self.point;
        let deciding = self.planners.iter().filter_map(|planner| planner.now.as_ref());
        let begun: u64 = deciding.clone().map(|attempt| end.nanos_since(attempt.began)).sum();
        let waiting: usize = self.planners.iter().map(|planner| planner.queue.len()).sum();
        let sums = &self.sums;
        let busy = sums.busy_ns + begun;
        Row {
            planners,
            conflict_detection: detection_name(conflict_detection),
            mode: mode_name(mode),
            decision_ms,
            task_ms,
            load,
            conflict_fraction: share(sums.conflicted, sums.jobs.max(1)),
            wasted_fraction: share(sums.operations - sums.granted, sums.operations.max(1)),
            attempts_per_statement: share(sums.attempts, sums.jobs.max(1)),
            busyness: share(busy, end.0 * u64::from(planners)),
            statements_per_second: share(sums.jobs * 1_000_000_000, end.0),
            waiting: (waiting + deciding.count()) as u64,
            given_up: sums.given_up,
        }
    }
}

/// Returns the quotient to four decimals, the same on every machine.
fn share(part: u64, of: u64) -> f64 {
    let tens = (u128::from(part) * 10_000 + u128::from(of) / 2) / u128::from(of);
    tens as f64 / 10_000.0
}

/// Draws a job: usually a few tasks, sometimes many; ten on average, as in Omega's batch workload of some
/// cells.
fn job(rng: &mut Rng) -> Job {
    let count = match rng.below(10) {
        0..8 => 1 + rng.below(8),
        8 => 10 + rng.below(20),
        _ => 20 + rng.below(50),
    };
    Job { tasks: (0..count).map(|_| task(rng)).collect(), attempts: 0 }
}

impl Planner {
    /// Plans the tasks of a job on private copies. Returns the operations and the task of each.
    fn plan(&mut self, cell: &Cell, job: &Job) -> (Vec<Placed>, Vec<usize>) {
        for (shard, replica) in self.replicas.iter_mut().enumerate() {
            replica.sync(&cell.view(shard));
        }
        let count = cell.shard_count();
        let mut last = self.rng.below(count as u64) as usize;
        let mut operations = Vec::new();
        let mut of_task = Vec::new();
        for (number, request) in job.tasks.iter().enumerate() {
            // As in the engine's planners, the shard used last is tried first.
            let mut order = (0..count).map(|step| (last + step) % count);
            let replicas = &mut self.replicas;
            let found = order.find_map(|shard| Some((shard, replicas[shard].plan(request)?)));
            let Some((shard, planned)) = found else { continue };
            last = shard;
            operations.push((
                shard,
                Operation::Allocate(Allocate {
                    node: planned.node,
                    expected: Some(planned.version),
                    demand: request.demand.clone(),
                    gpus: None,
                    owner: None,
                    bundle: None,
                    tenant: TenantId::OPERATOR,
                    lease: None,
                }),
            ));
            of_task.push(number);
        }
        (operations, of_task)
    }
}
