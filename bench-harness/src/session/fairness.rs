//! The rows `fairness…`, one for each rule that shares a cluster: how far queues are from what they deserve while demand
//! comes and goes, and what evictions were for.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use wharf_core::cycle::{Action, Changes, CycleConfig, Evictions, Plan, PluginConfig, PluginKind};
use wharf_core::fairness::{Amounts, Dim};
use wharf_core::jobs::{QueueId, QueueSpec, TaskId};
use wharf_core::rng::Rng;

use super::{Bed, SessionError, SessionRow};

/// One second, in ns.
const SECOND: u64 = 1_000_000_000;

/// How long a task that was evicted may go on.
const GRACE_NS: u64 = 10 * SECOND;

/// The number of queues. Their weights are 1 to 4.
const QUEUES: u32 = 8;

/// The cycles after a change of demand that do not count: within two, what is planned has followed.
const CYCLES_TO_FOLLOW: u32 = 2;

/// How long a job has less than its fair share before it starves, in seconds. So many cycles more do not count.
const PATIENCE_SECONDS: u32 = 5;

/// One in so many tasks ends in a second.
const LIFE_SECONDS: u64 = 240;

/// The cores of the cluster per node.
const CORES: u32 = 20;

/// A rule by which queues share a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// By weight.
    Proportion,
    /// By what each is given: here its part by weight of all queues, also of those that ask for nothing.
    Capacity,
    /// By weighted dominant shares along the tree.
    Drf,
    /// Jobs by their fair shares, with evictions after a patience.
    FairShare,
}

impl Rule {
    pub(super) const ALL: [Self; 4] = [Self::Proportion, Self::Capacity, Self::Drf, Self::FairShare];

    /// Returns the name of its row.
    pub(super) fn row(self) -> &'static str {
        match self {
            Self::Proportion => "fairness",
            Self::Capacity => "fairness-capacity",
            Self::Drf => "fairness-drf",
            Self::FairShare => "fairness-starve",
        }
    }

    fn config(self) -> CycleConfig {
        use PluginKind as Kind;
        let tier = |kinds: &[PluginKind]| kinds.iter().copied().map(PluginConfig::new).collect();
        let mut drf = PluginConfig::new(Kind::Drf);
        drf.hierarchical = true;
        let mut config = CycleConfig { grace_ns: GRACE_NS, ..CycleConfig::default() };
        match self {
            Self::Proportion => {}
            Self::Capacity => {
                config.tiers[0] = tier(&[Kind::Priority, Kind::Gang, Kind::Conformance, Kind::Capacity])
            }
            Self::Drf => {
                config.tiers = vec![tier(&[Kind::Priority, Kind::Gang, Kind::Conformance]), vec![drf]]
            }
            Self::FairShare => {
                config.tiers = vec![tier(&[Kind::Priority, Kind::Gang, Kind::Conformance, Kind::FairShare])];
                config.actions = vec![Action::Enqueue, Action::Allocate, Action::Starve];
            }
        }
        config
    }

    fn queue(self, number: u32, nodes: u32) -> QueueSpec {
        let weight = |number: u32| 1 + number % 4;
        let all: u32 = (0..QUEUES).map(weight).sum();
        let of_total =
            |per_node: u32| i64::from(nodes * per_node) * 10_000 * i64::from(weight(number)) / i64::from(all);
        // A task asks for 1,000 MiB with each core, of 4,096.
        let part = [(Dim::CPU, of_total(CORES)), (Dim::MEMORY, of_total(4096 * CORES))];
        let is_impatient = self == Self::FairShare;
        QueueSpec {
            weight: weight(number),
            deserved: (self == Self::Capacity).then(|| part.into_iter().collect::<Amounts>()),
            starves_below: is_impatient.then_some(10_000),
            fair_share_patience_ns: is_impatient.then_some(u64::from(PATIENCE_SECONDS) * SECOND),
            ..QueueSpec::new(&format!("queue-{number}"))
        }
    }

    fn cycles_to_follow(self) -> u32 {
        CYCLES_TO_FOLLOW + if self == Self::FairShare { PATIENCE_SECONDS } else { 0 }
    }
}

/// What was seen over time.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Fairness {
    /// The virtual time, in seconds.
    pub virtual_seconds: u32,
    /// How often a queue began or stopped to ask for more than it deserves.
    pub demand_changes: u32,
    /// The largest difference between what a queue holds and claims, and what it deserves, as part of the cluster. Two
    /// cycles after each change of demand do not count, and with the action `starve` none until patience is over. Only with
    /// `proportion`, what a queue has beyond that counts, too.
    pub deviation_max: f64,
    /// The mean over all cycles of the largest difference of any queue, with the cycles that do not count above.
    pub deviation_mean: f64,
    /// The tasks that were evicted so that others were placed, which happened.
    pub evictions_useful: u32,
    /// The tasks that were evicted for others that were not placed.
    pub evictions_wasted: u32,
}

/// A queue that asks for more than it can have, or for nothing.
struct Demand {
    asks: bool,
    /// The second in which that changes.
    until: u32,
}

struct Churn {
    rule: Rule,
    bed: Bed,
    rng: Rng,
    demands: Vec<Demand>,
    running: BTreeSet<TaskId>,
    evictions: Evictions,
    seen: Fairness,
}

/// Runs cycles for `seconds` of virtual time, one in each.
pub(super) fn fairness(rule: Rule, scale: u32, seconds: u32) -> Result<SessionRow, SessionError> {
    let nodes = 100_u32.div_ceil(scale);
    let mut bed = Bed::new(rule.config(), nodes, CORES, 0)?;
    for number in 0..QUEUES {
        let spec = rule.queue(number, nodes);
        bed.queues.push(bed.cluster.scheduler_mut().jobs_mut().add_queue(spec)?);
    }
    let demands = (0..QUEUES).map(|number| Demand { asks: number % 2 == 0, until: 60 + 20 * number });
    let mut churn = Churn {
        rule,
        bed,
        rng: Rng::new(1),
        demands: demands.collect(),
        running: BTreeSet::new(),
        evictions: Evictions::default(),
        seen: Fairness { virtual_seconds: seconds, ..Fairness::default() },
    };
    let mut since_change = 0;
    let mut deviations = 0.0;
    let mut took = Duration::ZERO;
    for second in 0..seconds {
        if churn.change_demand(second) {
            since_change = 0;
        }
        churn.submit(nodes)?;
        churn.end_some();
        let begun = Instant::now();
        let report = churn.bed.cluster.plan();
        let deserved = churn.deviation();
        let changes = churn.bed.cluster.commit(&report);
        took += begun.elapsed();
        churn.note_plans(&report.plans);
        churn.follow(&changes);
        deviations += deserved;
        if since_change >= rule.cycles_to_follow() {
            churn.seen.deviation_max = churn.seen.deviation_max.max(deserved);
        }
        since_change += 1;
        let changes = churn.bed.cluster.advance(SECOND);
        churn.follow(&changes);
    }
    churn.seen.deviation_mean = deviations / f64::from(seconds);
    Ok(churn.row(took))
}

impl Churn {
    /// Lets queues begin or stop to ask. Returns whether any did.
    fn change_demand(&mut self, second: u32) -> bool {
        let mut any = false;
        for demand in self.demands.iter_mut().filter(|demand| demand.until <= second) {
            demand.asks = !demand.asks;
            demand.until = second + 60 + self.rng.below(240) as u32;
            self.seen.demand_changes += 1;
            any = true;
        }
        any
    }

    /// Submits jobs of up to eight tasks to the queues that ask, until a fifth of the cluster would not suffice for what
    /// waits in each.
    fn submit(&mut self, nodes: u32) -> Result<(), SessionError> {
        let asks = (0..).zip(&self.demands).filter(|(_, demand)| demand.asks);
        for (number, _) in asks {
            let id = self.bed.queues[number];
            while self.bed.cluster.scheduler().jobs().queue(id).pending_tasks() < u64::from(4 * nodes) {
                let tasks = 1 + self.rng.below(8) as u32;
                self.bed.job(number, tasks, 1, 1000, 0)?;
            }
        }
        Ok(())
    }

    /// Ends some of the tasks that run.
    fn end_some(&mut self) {
        let ending = self.running.iter().copied().filter(|_| self.rng.below(LIFE_SECONDS) == 0);
        for task in ending.collect::<Vec<_>>() {
            if self.bed.cluster.scheduler().jobs().task(task).state.is_bound() {
                let changes = self.bed.cluster.finish_task(task);
                self.running.remove(&task);
                self.follow(&changes);
            }
        }
    }

    /// Returns the largest difference of a queue from what it deserves, as part of the cluster.
    fn deviation(&self) -> f64 {
        let scheduler = self.bed.cluster.scheduler();
        let jobs = scheduler.jobs();
        let total = f64::from(CORES) * self.bed.nodes.len() as f64 * 10_000.0;
        let shares = (self.rule == Rule::FairShare).then(|| scheduler.fair_shares(Dim::CPU, true));
        let of_queue = |&id: &QueueId| {
            let usage = jobs.queue(id).usage();
            let planned = usage.planned().get(Dim::CPU);
            let deserved = match &shares {
                Some(shares) => shares[id.0 as usize],
                None => scheduler.deserved(id).map_or(0, |deserved| deserved.get(Dim::CPU)),
            };
            // A queue may have more than others leave. What it deserves and does not ask for, it does not lack.
            let difference = match self.rule {
                Rule::Proportion => (planned - deserved).abs(),
                _ => (deserved.min(usage.demand().get(Dim::CPU)) - planned).max(0),
            };
            difference as f64 / total
        };
        self.bed.queues.iter().map(of_queue).fold(0.0, f64::max)
    }

    /// Notes who waits for the evictions of plans.
    fn note_plans(&mut self, plans: &[Plan]) {
        self.evictions.note(self.bed.cluster.scheduler().jobs(), plans);
        self.count_evictions();
    }

    /// Follows tasks that were bound. What waits for nobody any longer was of use, if its tasks were placed.
    fn follow(&mut self, changes: &Changes) {
        self.running.extend(changes.bound.iter().map(|&(task, _)| task));
        self.evictions.follow(self.bed.cluster.scheduler().jobs());
        self.count_evictions();
    }

    fn count_evictions(&mut self) {
        self.seen.evictions_useful = self.evictions.useful() as u32;
        self.seen.evictions_wasted = self.evictions.wasted().len() as u32;
    }

    /// Makes the row. Its time is the mean of a cycle.
    fn row(self, took: Duration) -> SessionRow {
        let jobs = self.bed.cluster.scheduler().jobs();
        let pending = jobs.queue(QueueId::ROOT).pending_tasks();
        let seconds = took.as_secs_f64() / f64::from(self.seen.virtual_seconds);
        SessionRow {
            name: self.rule.row(),
            nodes: self.bed.nodes.len(),
            running: self.running.len(),
            pending: usize::try_from(pending).unwrap_or(usize::MAX),
            queues: self.bed.queues.len(),
            placed: 0,
            evicted: (self.seen.evictions_useful + self.seen.evictions_wasted) as usize,
            seconds,
            deciding_seconds: seconds,
            milliseconds: seconds * 1e3,
            deciding_milliseconds: seconds * 1e3,
            per_second: None,
            memory_bytes: crate::process::Process::This.resident_bytes().unwrap_or(0),
            fairness: Some(self.seen),
        }
    }
}
