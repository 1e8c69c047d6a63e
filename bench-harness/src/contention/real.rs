//! The same measurement with the engine itself: its planners and shards on threads, in real time.
//!
//! A decision takes as long as it takes, in the order of microseconds. So conflicts show how planning
//! overlaps on this machine, and rates show how its cores are shared. For that reason the rows are separate
//! from the simulated figure.

use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::Unobserved;
use wharf_core::group::{GroupSpec, NoGroup, PlanJob, PlanReply, Strategy};
use wharf_core::link::{Clock, ThreadWaker};
use wharf_core::node::{Labels, NodeSpec, Taints};
use wharf_core::planner::{Planner, PlannerMetrics};
use wharf_core::resource::Amount;
use wharf_core::rng::Rng;
use wharf_core::router::{Port, PortReply, PortRequest};
use wharf_core::shard::{Command, Outcome};
use wharf_core::state::StoreState;
use wharf_core::statement::ConflictDetection;

use super::cell::task;
use super::{Settings, detection_name};
use crate::target::ReplayClock;

/// Groups that each planner has in flight.
const UNDER_WAY: usize = 4;
/// Bundles of each group.
const BUNDLES: usize = 8;
/// The cores of each node.
const NODE_CORES: u32 = 32;
/// The maximum time that the driver sleeps before it polls again.
const WATCH: Duration = Duration::from_millis(100);

/// A row of planners on threads. Commits are all-or-nothing, because groups are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RealRow {
    /// The number of planners, each on its own thread.
    pub planners: u16,
    /// `fine` or `coarse`, as in the simulator's rows.
    pub conflict_detection: &'static str,
    /// The number of shards, each on its own thread.
    pub shards: u16,
    /// Statements with a conflict, per created group.
    pub conflict_fraction: f64,
    /// The share of operations sent to shards that were not granted. Includes operations that end groups.
    pub wasted_fraction: f64,
    /// Attempted plans per created group.
    pub attempts_per_statement: f64,
    /// Groups of 8 bundles that were created and removed, per second of real time.
    pub statements_per_second: f64,
    /// Groups that were refused.
    pub refused: u64,
}

/// An engine with running shards and planners.
struct Running {
    engine: Engine,
    clock: ReplayClock,
    shards: Vec<JoinHandle<()>>,
    planners: Vec<JoinHandle<Planner>>,
}

#[derive(Default)]
struct Made {
    groups: u64,
    attempts: u64,
    refused: u64,
}

/// Measures this number of planners for about `limit`.
///
/// # Errors
/// When the engine cannot be started.
pub fn run(
    settings: &Settings,
    planners: u16,
    conflict_detection: ConflictDetection,
    limit: Duration,
) -> anyhow::Result<RealRow> {
    let mut running = Running::open(settings, planners)?;
    running.fill(settings)?;
    let mut rng = Rng::new(settings.seed);
    let started = Instant::now();
    let made = running.make_groups(UNDER_WAY * usize::from(planners), conflict_detection, &mut rng, limit);
    let seconds = started.elapsed().as_secs_f64();
    let metrics = running.stop();
    let per_group = |count: u64| count as f64 / made.groups.max(1) as f64;
    Ok(RealRow {
        planners,
        conflict_detection: detection_name(conflict_detection),
        shards: settings.shards,
        conflict_fraction: per_group(metrics.conflicted),
        wasted_fraction: (metrics.operations - metrics.granted) as f64 / metrics.operations.max(1) as f64,
        attempts_per_statement: per_group(made.attempts),
        statements_per_second: made.groups as f64 / seconds,
        refused: made.refused,
    })
}

impl Running {
    fn open(settings: &Settings, planners: u16) -> anyhow::Result<Self> {
        let waker = Arc::new(ThreadWaker::default());
        waker.set_current();
        let config = EngineConfig {
            shards: settings.shards,
            seed: settings.seed,
            planners,
            ..EngineConfig::default()
        };
        let mut engine = Engine::open(StoreState::default(), &config, vec![Waker::from(waker)])?;
        let clock = ReplayClock::real();
        let mut shards = Vec::new();
        let mut of_planners = Vec::new();
        for runner in std::mem::take(&mut engine.runners) {
            let clock = clock.clone();
            let thread = std::thread::Builder::new().name("wharf-shard".to_owned());
            shards.push(thread.spawn(move || drop(runner.run(&clock, &mut Unobserved)))?);
        }
        for runner in std::mem::take(&mut engine.planners) {
            let clock = clock.clone();
            let thread = std::thread::Builder::new().name("wharf-planner".to_owned());
            of_planners.push(thread.spawn(move || runner.run(&clock, |_| {}))?);
        }
        Ok(Self { engine, clock, shards, planners: of_planners })
    }

    fn port(&mut self) -> &mut Port {
        &mut self.engine.ports[0]
    }

    /// Sends pending requests and waits for at least one answer.
    fn wait(&mut self, replies: &mut Vec<PortReply>) {
        loop {
            let now = self.clock.now();
            let port = self.port();
            // Flush again, because an answer may lead to a further request, such as for the next page of an
            // audit.
            port.flush();
            port.poll(now, |_, reply| replies.push(reply));
            port.flush();
            if !replies.is_empty() {
                return;
            }
            let bell = Arc::clone(port.bell());
            if bell.sleep_if(|| port.is_idle()) {
                std::thread::park_timeout(WATCH);
            }
        }
    }

    fn submit(&mut self, request: PortRequest) {
        let now = self.clock.now();
        let at_once = self.port().submit(0, request, now);
        assert!(matches!(at_once, Ok(None)), "few requests are under way");
    }

    /// Registers the nodes and fills them.
    fn fill(&mut self, settings: &Settings) -> anyhow::Result<()> {
        let mut replies = Vec::new();
        for number in 0..settings.nodes {
            let spec = NodeSpec {
                name: format!("node-{number}").into(),
                identity: None,
                cpu: Amount::whole(NODE_CORES),
                memory: Amount::whole(128 * 1024),
                gpus: 0,
                custom: None,
                labels: Labels::default(),
                taints: Taints::default(),
            };
            let node = self.engine.registrar.register(spec)?;
            let partition = node.partition;
            self.engine.catalog.store(Arc::new(self.engine.registrar.catalog()));
            self.submit(PortRequest::Partition(partition, Command::AddNode(Box::new(node))));
            self.wait(&mut replies);
            replies.clear();
        }
        let all = i64::from(settings.nodes) * Amount::whole(NODE_CORES).units();
        let mut rng = Rng::new(settings.seed);
        let mut taken = 0;
        while taken < all / 100 * i64::from(settings.full_percent) {
            let request = task(&mut rng);
            let cpu = request.demand.cpu.units();
            self.submit(PortRequest::Place(request));
            self.wait(&mut replies);
            for reply in replies.drain(..) {
                taken += if matches!(reply, PortReply::Place(Ok(_))) { cpu } else { 0 };
            }
        }
        Ok(())
    }

    /// Creates groups and removes each again, `under_way` at a time.
    fn make_groups(
        &mut self,
        under_way: usize,
        conflict_detection: ConflictDetection,
        rng: &mut Rng,
        limit: Duration,
    ) -> Made {
        let mut made = Made::default();
        let mut replies = Vec::new();
        let started = Instant::now();
        let mut create = |running: &mut Self| {
            let bundles = (0..BUNDLES).map(|_| Arc::new(task(rng))).collect();
            let spec = GroupSpec { conflict_detection, ..GroupSpec::new(bundles, Strategy::Spread) };
            running.submit(PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec))));
        };
        (0..under_way).for_each(|_| create(self));
        let mut left = under_way;
        while left > 0 {
            self.wait(&mut replies);
            for reply in replies.drain(..) {
                let PortReply::Plan(reply) = reply else { unreachable!("planners answer: {reply:?}") };
                let goes_on = started.elapsed() < limit;
                match *reply {
                    PlanReply::Group(Ok(group)) => {
                        (made.groups, made.attempts) =
                            (made.groups + 1, made.attempts + u64::from(group.attempts));
                        self.submit(PortRequest::Plan(PlanJob::RemoveGroup(group.id)));
                        continue;
                    }
                    PlanReply::Group(Err(NoGroup::Refused(_))) => made.refused += 1,
                    PlanReply::Removed(Ok(_)) | PlanReply::Group(Err(NoGroup::Removed)) => {}
                    other => unreachable!("no answer to a group: {other:?}"),
                }
                if goes_on {
                    create(self);
                } else {
                    left -= 1;
                }
            }
        }
        made
    }

    /// Stops planners, then shards. Returns the sum of the planners' metrics.
    fn stop(mut self) -> PlannerMetrics {
        self.submit(PortRequest::Every(Command::Audit { number: 0 }));
        let mut replies = Vec::new();
        self.wait(&mut replies);
        let audited = matches!(&replies[..], [PortReply::Every(all)] if all.iter().all(|one| matches!(one, Outcome::Status(_))));
        assert!(audited, "an audit is answered: {replies:?}");
        self.engine.planner_stop.stop();
        let mut sum = PlannerMetrics::default();
        for thread in self.planners {
            let planner = thread.join().expect("a planner does not panic");
            let metrics = planner.metrics();
            sum.conflicted += metrics.conflicted;
            sum.operations += metrics.operations;
            sum.granted += metrics.granted;
        }
        self.engine.stop.stop();
        self.shards.into_iter().for_each(|thread| thread.join().expect("a shard does not panic"));
        sum
    }
}
