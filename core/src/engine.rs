//! An engine with any number of shards and planners over a durable state.
//!
//! A store has a fixed number of partitions. The number of shards that serve them is chosen at each start.

mod contents;
mod journal;
mod planners;
mod shards;

use std::sync::Arc;
use std::task::Waker;

use arc_swap::ArcSwap;

use crate::broken::Broken;
use crate::cycle::CycleConfigError;
use crate::demand::NodesPlanner;
use crate::executor::{ShardLink, ShardRunner};
use crate::fragmentation::TypicalShapes;
use crate::ids::{Incarnation, ResourceId, ShardId};
use crate::index::{Geometry, GeometryError};
use crate::jobs::JobsRecord;
use crate::journal::JournalFeed;
use crate::limits::{
    ALLOCATIONS_PER_NODE_DEFAULT, ALLOCATIONS_PER_NODE_MAX, HOLD_NS_DEFAULT, PLANNERS_MAX, PORTS_MAX,
    RESERVED_NODES_PERCENT_DEFAULT, RING_SLOTS, SHARDS_MAX,
};
use crate::link::{Doorbell, ShardNews, StopSignal, ViewInterest, WokenBox, channel};
use crate::planner::{JobsConfig, PlannerRunner};
use crate::registrar::{Catalog, Registrar, TOPOLOGY_LABEL_DEFAULT};
use crate::resource::{NatureFixed, RegistryFull};
use crate::rng::Rng;
use crate::router::{Port, PortLink, RoutingTable};
use crate::shard::{HybridSettings, Shard};
use crate::state::{GroupRecord, StoreState};
use crate::time::Time;
use crate::view::ViewReader;
use contents::{charges_of, check_allocations, kinds_in_use};
use planners::{keep_groups, keep_jobs, open_nodes_planner, open_planners, planner_threads};
use shards::{EmptyShard, unopened_shards};
pub use shards::{OpenedShard, UnopenedShard};

/// The settings to start an engine over a store.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The number of shards that serve the partitions.
    pub shards: u16,
    /// The seed of everything random: routing and the Random policy.
    pub seed: u64,
    /// The mapping from values to coordinates.
    pub geometry: Geometry,
    /// The names of the indexed custom kinds. They are the custom dimensions of the geometry, in order.
    pub indexed_resources: Vec<String>,
    /// The label that keeps nodes together in one partition.
    pub topology_label: String,
    /// The typical request shapes of the fragmentation-aware policies. If `None`, each shard learns them.
    pub typical_shapes: Option<Arc<TypicalShapes>>,
    /// The settings of the hybrid policy.
    pub hybrid: HybridSettings,
    /// The names of unit-instance resource kinds. A name that ends in `*` matches every kind with that
    /// prefix.
    pub unit_instances: Vec<String>,
    /// The share of a shard's nodes that may be reserved at once, in percent. A non-zero share allows at
    /// least one node; 0 allows none.
    pub reserved_nodes_percent: u8,
    /// The most allocations that a node may hold, including placements in bundles and claims.
    pub allocations_per_node_max: u16,
    /// The number of planners of groups and statements. 0 starts none.
    pub planners: u16,
    /// The settings of the keeper of jobs. `None` starts none.
    pub jobs: Option<JobsConfig>,
    /// How long a shard holds its part of a statement before it asks to abort, in ns.
    pub hold_ns: u64,
    /// Whether effects are noted for a [journal](Engine::journal).
    pub journal: bool,
    /// Whether shards publish views for watchers. If there are planners or jobs are kept, shards publish views in any
    /// case.
    pub views: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            shards: 1,
            seed: 0,
            geometry: Geometry::default(),
            indexed_resources: Vec::new(),
            topology_label: TOPOLOGY_LABEL_DEFAULT.to_owned(),
            typical_shapes: None,
            hybrid: HybridSettings::default(),
            unit_instances: Vec::new(),
            reserved_nodes_percent: RESERVED_NODES_PERCENT_DEFAULT,
            allocations_per_node_max: ALLOCATIONS_PER_NODE_DEFAULT,
            planners: 0,
            jobs: None,
            hold_ns: HOLD_NS_DEFAULT,
            views: false,
            journal: false,
        }
    }
}

impl EngineConfig {
    /// Returns the number of planner threads, with the one that keeps jobs.
    #[must_use]
    pub fn planner_threads(&self) -> u16 {
        self.planners + u16::from(self.jobs.is_some())
    }
}

/// An error that prevents an engine from starting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The number of shards is 0 or exceeds the number of partitions or the limit.
    #[error("{shards} shards over {partitions} partitions: give 1 to {}", partitions.min(&SHARDS_MAX))]
    Shards {
        /// The requested number of shards.
        shards: u16,
        /// The number of partitions in the store.
        partitions: u16,
    },
    /// The number of ports is 0 or more than a shard can listen to.
    #[error("{0} ports: give 1 to {PORTS_MAX}")]
    Ports(usize),
    /// The number of planners exceeds the limit.
    #[error("{0} planners: give 0 to {PLANNERS_MAX}")]
    Planners(u16),
    /// The settings of cycles are wrong.
    #[error(transparent)]
    Cycle(#[from] CycleConfigError),
    /// The jobs of the store contradict each other.
    #[error("the jobs of this store contradict each other: {0}")]
    Jobs(Broken),
    /// A resource kind would change its nature while nodes have it.
    #[error(transparent)]
    Nature(#[from] NatureFixed),
    /// An indexed kind is new, and the store can learn no more kinds.
    #[error("setting `indexed_resources`: {0}")]
    Kinds(#[from] RegistryFull),
    /// There are too many indexed kinds.
    #[error("setting `indexed_resources`: {0}")]
    Geometry(#[from] GeometryError),
    /// A node has more allocations than any setting allows. An earlier version without this limit wrote the
    /// store.
    #[error(
        "node {node} has {allocations} allocations in this store, and one may have {ALLOCATIONS_PER_NODE_MAX}: \
         release some with the version that wrote it"
    )]
    Allocations {
        /// The node's name.
        node: Arc<str>,
        /// The number of allocations, including placements in bundles and claims.
        allocations: usize,
    },
}

/// The parts of a started engine. The caller runs each runner on a thread and gives each port to its owner.
pub struct Engine {
    /// The number of this start.
    pub incarnation: Incarnation,
    /// The time at which the clock continues.
    pub now: Time,
    /// The shard runners, one per shard.
    pub runners: Vec<ShardRunner>,
    /// The ports, one per given waker.
    pub ports: Vec<Port>,
    /// The planner runners, and then the one that keeps jobs, if any. Stop them before the shards, because they need
    /// the shards until they end.
    pub planners: Vec<PlannerRunner>,
    /// Stops the planners.
    pub planner_stop: StopSignal,
    /// The planner of nodes, if jobs are kept. Stop it after the planners. If it is dropped, no nodes are planned.
    pub nodes_planner: Option<NodesPlanner>,
    /// The groups of the store if there are no planners to keep them. The caller must store them again.
    pub groups: Vec<GroupRecord>,
    /// The jobs of the store if nobody keeps them. The caller must store them again.
    pub jobs: JobsRecord,
    /// The owner of the global records.
    pub registrar: Registrar,
    /// The published catalog.
    pub catalog: Arc<ArcSwap<Catalog>>,
    /// The published routing table.
    pub table: Arc<ArcSwap<RoutingTable>>,
    /// Stops the shard runners.
    pub stop: StopSignal,
    /// The journal's end of the effects, if they are noted. Its first units say that the service started.
    pub journal: Option<JournalFeed>,
    /// The views of each shard, in order. Empty if views are disabled and there are no planners.
    pub views: Vec<ViewReader>,
}

impl Engine {
    /// Starts an engine over `state`, with one port per waker in `owners`.
    ///
    /// # Errors
    /// Returns an error if one of these is true:
    ///
    /// - The number of shards, ports or planners is out of range.
    /// - The resource kinds in the settings conflict with those of the store.
    /// - A node has more than [`ALLOCATIONS_PER_NODE_MAX`] allocations.
    pub fn open(state: StoreState, config: &EngineConfig, owners: Vec<Waker>) -> Result<Self, EngineError> {
        let one_by_one =
            |shards: Vec<UnopenedShard>| Ok(shards.into_iter().map(UnopenedShard::open).collect());
        Self::open_with(state, config, owners, one_by_one)
    }

    /// Starts an engine as [`Self::open`] does, with shards that `open` opens, for instance each on a thread of its own.
    ///
    /// # Errors
    /// Those of [`Self::open`], and that of `open`.
    ///
    /// # Panics
    /// When `open` does not return all shards, in their order.
    pub fn open_with<E: From<EngineError>>(
        state: StoreState,
        config: &EngineConfig,
        owners: Vec<Waker>,
        open: impl FnOnce(Vec<UnopenedShard>) -> Result<Vec<OpenedShard>, E>,
    ) -> Result<Self, E> {
        let partitions = u16::try_from(state.partitions.len()).expect("PARTITIONS_MAX fits u16");
        if config.shards == 0 || config.shards > partitions.min(SHARDS_MAX) {
            return Err(EngineError::Shards { shards: config.shards, partitions }.into());
        }
        if owners.is_empty() || owners.len() + usize::from(config.planner_threads()) > PORTS_MAX {
            return Err(EngineError::Ports(owners.len()).into());
        }
        if config.planners > PLANNERS_MAX {
            return Err(EngineError::Planners(config.planners).into());
        }
        state.partitions.iter().try_for_each(check_allocations)?;
        let charges = if config.jobs.is_some() { charges_of(&state) } else { Vec::new() };
        let now = state.now;
        let incarnation = Incarnation(state.incarnation.0 + 1);
        let (mut registrar, geometry) = open_registrar(&state, config)?;
        let table = RoutingTable::even(partitions, config.shards);
        let catalog = Arc::new(ArcSwap::from_pointee(registrar.catalog()));
        let stop = StopSignal::default();
        let mut seeds = Rng::new(config.seed);
        let resumed = (state.policies, state.granularities);
        let of_shards = (config, &geometry);
        let unopened = unopened_shards(state.partitions, resumed, &table, of_shards, incarnation, &mut seeds);
        let opened = open(unopened)?;
        let ids = opened.iter().map(|opened| opened.id);
        assert!(ids.eq((0..config.shards).map(ShardId)), "each shard is opened, in order");
        let (shards, views): (Vec<_>, Vec<_>) =
            opened.into_iter().map(|opened| (opened.shard, opened.views)).unzip();
        let views: Vec<ViewReader> = views.into_iter().flatten().collect();
        let threads = planner_threads(config.planner_threads());
        // Planners talk to shards through their own ports. These are numbered after the ports of the callers.
        let callers = owners.len();
        let bells = owners.into_iter().map(|waker| Arc::new(Doorbell::new(waker)));
        let bells: Vec<_> =
            bells.chain(threads.iter().map(|(interest, _)| Arc::clone(&interest.bell))).collect();
        let (mut runners, links) = link_shards(shards, &bells, &table, &stop);
        let interests: Vec<_> = threads.iter().map(|(interest, _)| Arc::clone(interest)).collect();
        runners.iter_mut().for_each(|runner| runner.set_planners(interests.clone()));
        let table = Arc::new(ArcSwap::from_pointee(table));
        let port = |((bell, links), number)| {
            let seed = seeds.next_u64();
            Port::new(links, &table, &catalog, geometry.clone(), seed, bell, number)
        };
        let mut ports: Vec<Port> = bells.into_iter().zip(links).zip(0..).map(port).collect();
        let of_planners = ports.split_off(callers);
        ports.iter_mut().for_each(|port| port.set_views(views.clone()));
        let journal =
            config.journal.then(|| journal::open(&registrar, incarnation, now, (&mut runners, &mut ports)));
        let replicas = |seeds: &mut Rng| {
            let of_shard = |(id, view): (u16, &ViewReader)| {
                let config = (config, &geometry);
                let copy = EmptyShard::new(ShardId(id), &table.load(), config, incarnation, seeds);
                (copy.build(Shard::replica), view.clone())
            };
            (0..).zip(&views).map(of_shard).collect()
        };
        let of_engine = (config, incarnation);
        let (mut planners, planner_stop) =
            open_planners(of_engine, threads, of_planners, &mut ports, replicas, &mut seeds)
                .map_err(EngineError::from)?;
        let (of_groups, of_jobs) = planners.split_at_mut(usize::from(config.planners));
        let groups = keep_groups(state.groups, of_groups, of_jobs.first_mut());
        let mut jobs = state.jobs;
        jobs.jobs.extend(charges);
        let jobs = keep_jobs(jobs, of_jobs.first_mut(), now).map_err(EngineError::Jobs)?;
        let nodes_planner = open_nodes_planner(of_engine, &geometry, &views, of_jobs.first_mut());
        if let Some((_, queue)) = &journal {
            planners.iter_mut().for_each(|planner| planner.set_journal(Arc::clone(queue)));
        }
        Ok(Self {
            incarnation,
            now,
            runners,
            ports,
            planners,
            planner_stop,
            nodes_planner,
            groups,
            jobs,
            registrar,
            catalog,
            table,
            stop,
            journal: journal.map(|(feed, _)| feed),
            views,
        })
    }

    /// Checks every invariant of every shard, before they run. O(state).
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), Broken> {
        self.runners.iter().try_for_each(|runner| runner.shard().check_invariants())
    }
}

/// Restores the global records and builds the geometry with the indexed custom kinds.
fn open_registrar(state: &StoreState, config: &EngineConfig) -> Result<(Registrar, Geometry), EngineError> {
    let mut registrar = Registrar::restore(
        u16::try_from(state.partitions.len()).expect("PARTITIONS_MAX fits u16"),
        &config.topology_label,
        &state.registrar,
        state.partitions.iter().flat_map(|p| p.nodes.iter().map(|n| &n.registration)),
    );
    let in_use = kinds_in_use(&state.partitions);
    registrar.resources_mut().declare(&config.unit_instances, |id| in_use.contains(&id))?;
    let indexed: Result<Vec<ResourceId>, _> =
        config.indexed_resources.iter().map(|name| registrar.resources_mut().learn(name)).collect();
    let geometry = config.geometry.clone().with_custom(&indexed?)?;
    // Time did not pass while the service was down, and agents could not report. Each gets a fresh period.
    for node in state.partitions.iter().flat_map(|p| &p.nodes).filter(|n| n.registration.agent.is_some()) {
        registrar.heartbeats().expect(node.registration.id, state.now);
    }
    Ok((registrar, geometry))
}

/// Creates a runner per shard, and for each bell the links to all shards.
fn link_shards(
    shards: Vec<Shard>,
    bells: &[Arc<Doorbell>],
    table: &RoutingTable,
    stop: &StopSignal,
) -> (Vec<ShardRunner>, Vec<Vec<PortLink>>) {
    let mut port_links: Vec<Vec<PortLink>> = bells.iter().map(|_| Vec::new()).collect();
    let news: Vec<Arc<ShardNews>> = bells.iter().map(|_| Arc::default()).collect();
    let woken_at: Vec<Arc<ShardNews>> = bells.iter().map(|_| Arc::default()).collect();
    let mut runners = Vec::new();
    for (id, shard) in (0..).map(ShardId).zip(shards) {
        let (shard_bell, waker) = ShardRunner::doorbell();
        let interest = Arc::<ViewInterest>::default();
        let lent = Arc::default();
        let mut links = Vec::new();
        let ports = bells.iter().zip(news.iter().zip(&woken_at));
        for ((bell, (news, woken_at)), of_port) in ports.zip(&mut port_links) {
            let (submissions, from_port) = channel(RING_SLOTS);
            let (to_port, answers) = channel(RING_SLOTS);
            let woken = Arc::new(WokenBox::new(id, Arc::clone(woken_at)));
            let bell = Arc::clone(bell);
            let for_port = Arc::clone(&woken);
            let shard_bell = Arc::clone(&shard_bell);
            let interest = Arc::clone(&interest);
            let news = Arc::clone(news);
            let of_shard = Arc::clone(&news);
            links.push(ShardLink { submissions: from_port, answers: to_port, bell, woken, news: of_shard });
            let bell = shard_bell;
            let woken = for_port;
            let lent = Arc::clone(&lent);
            of_port.push(PortLink { submissions, answers, bell, lent, woken, interest, news });
        }
        let summary = Arc::clone(table.summary(id));
        let mut runner = ShardRunner::new(id, shard, links, summary, shard_bell, waker, stop.clone());
        runner.set_interest(interest);
        runner.set_lent(lent);
        runners.push(runner);
    }
    (runners, port_links)
}
