//! Creates the planners when an engine starts.

use std::sync::Arc;

use super::EngineConfig;
use crate::broken::Broken;
use crate::cycle::{CycleConfigError, LocalSettings};
use crate::demand::{NodesPlanner, NodesPlannerConfig};
use crate::executor::ShardRunner;
use crate::group::keeper_of;
use crate::ids::{Incarnation, ShardId};
use crate::index::Geometry;
use crate::jobs::JobsRecord;
use crate::limits::TICKET_NS_DEFAULT;
use crate::link::{PlannerBell, StopSignal, ThreadWaker, Tickets};
use crate::planner::{Planner, PlannerConfig, PlannerRunner};
use crate::rng::Rng;
use crate::router::Port;
use crate::shard::{Shard, ShardConfig};
use crate::state::GroupRecord;
use crate::time::Time;
use crate::view::ViewReader;

/// The bell of a planner, and the waker behind it.
pub(super) type PlannerThread = (Arc<PlannerBell>, Arc<ThreadWaker>);

/// Creates the bells of `count` planners.
pub(super) fn planner_threads(count: u16) -> Vec<PlannerThread> {
    let thread = |_| {
        let (bell, waker) = ShardRunner::doorbell();
        (Arc::new(PlannerBell::new(bell)), waker)
    };
    (0..count).map(thread).collect()
}

/// Creates the planners, then the keeper of jobs, and the signal that stops them. Each gets one of `ports` and serves all
/// `callers`. The planners serve the keeper, too: it asks them for the groups that wait. `replicas` makes empty replicas of
/// all shards, each with its views.
///
/// # Errors
/// The first fault in the settings of cycles.
pub(super) fn open_planners(
    (config, incarnation): (&EngineConfig, Incarnation),
    threads: Vec<PlannerThread>,
    mut ports: Vec<Port>,
    callers: &mut [Port],
    replicas: impl Fn(&mut Rng) -> Vec<(Shard, ViewReader)>,
    seeds: &mut Rng,
) -> Result<(Vec<PlannerRunner>, StopSignal), CycleConfigError> {
    let stop = StopSignal::default();
    let tickets = Arc::new(Tickets::default());
    tickets.set_bells(threads.iter().map(|(interest, _)| Arc::clone(&interest.bell)).collect());
    let mut of_keeper = ports.split_off(usize::from(config.planners));
    let mut of_planners = ports.into_iter();
    let mut runners = Vec::new();
    for (number, (interest, waker)) in (0..).zip(threads) {
        let port = if number < config.planners { of_planners.next() } else { of_keeper.pop() };
        let port = port.expect("a port for each planner, and one for the keeper");
        let copies = replicas(seeds);
        let of_planner = PlannerConfig {
            number,
            planners: config.planners,
            incarnation,
            seed: seeds.next_u64(),
            hold_ns: config.hold_ns,
            ticket_ns: TICKET_NS_DEFAULT,
        };
        let mut planner = match &config.jobs {
            Some(jobs) if number == config.planners => {
                Planner::keeper(of_planner, port, [copies, replicas(seeds)], jobs)?
            }
            _ => Planner::new(of_planner, port, copies),
        };
        planner.set_tickets(Arc::clone(&tickets));
        let served = callers.iter_mut().chain(&mut of_keeper);
        runners.push(PlannerRunner::new(planner, served, interest, waker, stop.clone()));
    }
    Ok((runners, stop))
}

/// Gives the jobs to their keeper. Returns them if there is none.
///
/// # Errors
/// The first record that contradicts the others.
pub(super) fn keep_jobs(
    jobs: JobsRecord,
    keeper: Option<&mut PlannerRunner>,
    now: Time,
) -> Result<JobsRecord, Broken> {
    let Some(keeper) = keeper else { return Ok(jobs) };
    keeper.adopt_jobs(jobs, now)?;
    Ok(JobsRecord::default())
}

/// Creates the planner of nodes for the keeper of jobs, if there is one.
pub(super) fn open_nodes_planner(
    (config, incarnation): (&EngineConfig, Incarnation),
    geometry: &Geometry,
    views: &[ViewReader],
    keeper: Option<&mut PlannerRunner>,
) -> Option<NodesPlanner> {
    let keeper = keeper?;
    let cycle = config.jobs.as_ref()?.cycle.clone();
    let shard = ShardConfig {
        shard: ShardId(0),
        incarnation,
        partitions: Vec::new(),
        geometry: geometry.clone(),
        seed: config.seed,
        hybrid: config.hybrid,
    };
    let views = views.to_vec();
    let bell = ShardRunner::doorbell();
    let settings = LocalSettings { shard, allocations_per_node_max: config.allocations_per_node_max };
    let of = NodesPlannerConfig { cycle, settings, views, keeper: Arc::clone(keeper.bell()), bell };
    let (planner, link) = NodesPlanner::new(of);
    keeper.set_nodes_link(link);
    Some(planner)
}

/// Gives each group to the planner that keeps it, or to the keeper of jobs. Returns the groups that have none.
pub(super) fn keep_groups(
    groups: Vec<GroupRecord>,
    planners: &mut [PlannerRunner],
    keeper: Option<&mut PlannerRunner>,
) -> Vec<GroupRecord> {
    let count = u16::try_from(planners.len()).expect("PLANNERS_MAX fits u16");
    let mut of_jobs = keeper;
    let mut unkept = Vec::new();
    for group in groups {
        let keeper = if group.id.is_in_queue() {
            of_jobs.as_deref_mut()
        } else {
            planners.get_mut(usize::from(keeper_of(group.id, count)))
        };
        match keeper {
            Some(keeper) => keeper.adopt(group),
            None => unkept.push(group),
        }
    }
    unkept
}
