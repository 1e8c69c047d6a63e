//! An engine of any number of shards and planners over a durable state.
//!
//! A store has a fixed number of partitions. How many shards serve them is decided at each start.

mod contents;
mod planners;

use std::sync::Arc;
use std::task::Waker;

use arc_swap::ArcSwap;

use crate::executor::{ShardLink, ShardRunner};
use crate::fragmentation::TypicalShapes;
use crate::ids::{Incarnation, ResourceId, ShardId};
use crate::index::{Geometry, GeometryError, PolicyState};
use crate::limits::{
    ALLOCATIONS_PER_NODE_DEFAULT, ALLOCATIONS_PER_NODE_MAX, HOLD_NS_DEFAULT, PLANNERS_MAX, PORTS_MAX,
    RESERVED_NODES_PERCENT_DEFAULT, RING_SLOTS, SHARDS_MAX,
};
use crate::link::{Doorbell, StopSignal, ViewInterest, ViewNews, WokenBox, channel};
use crate::planner::PlannerRunner;
use crate::registrar::{Catalog, Registrar, TOPOLOGY_LABEL_DEFAULT};
use crate::resource::{NatureFixed, RegistryFull};
use crate::rng::Rng;
use crate::router::{Port, PortLink, RoutingTable};
use crate::shard::{HybridSettings, Shard, ShardConfig};
use crate::state::{GranularityState, GroupRecord, PartitionState, StoreState};
use crate::time::Time;
use crate::view::ViewReader;
use contents::{check_allocations, kinds_in_use};
use planners::{Ground, PlannerThreads, keep_groups};

/// How an engine is started over a store.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// How many shards serve the partitions.
    pub shards: u16,
    /// Seed of everything random: routing and the Random policy.
    pub seed: u64,
    /// How values become coordinates.
    pub geometry: Geometry,
    /// Names of the custom kinds that are indexed: the custom dimensions of the geometry, in order.
    pub indexed_resources: Vec<String>,
    /// The label that keeps nodes together in a partition.
    pub topology_label: String,
    /// Typical request shapes of the fragmentation-aware policies; learnt by each shard if none.
    pub typical_shapes: Option<Arc<TypicalShapes>>,
    /// What the hybrid policy is told.
    pub hybrid: HybridSettings,
    /// Names of unit-instance resource kinds; one that ends in `*` stands for all that begin so.
    pub unit_instances: Vec<String>,
    /// Share of a shard's nodes that may be reserved at once, in percent, at least one; 0: none.
    pub reserved_nodes_percent: u8,
    /// Allocations that a node may hold, what is placed into bundles there and what is claimed included.
    pub allocations_per_node_max: u16,
    /// Planners of groups and statements; 0: none.
    pub planners: u16,
    /// How long a shard holds its part of a statement before it asks to abort, in ns.
    pub hold_ns: u64,
    /// Whether shards publish views for watchers; for planners they do anyway.
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
            hold_ns: HOLD_NS_DEFAULT,
            views: false,
        }
    }
}

/// An engine that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// More shards than partitions, or none.
    #[error("{shards} shards over {partitions} partitions: give 1 to {}", partitions.min(&SHARDS_MAX))]
    Shards {
        /// Asked for.
        shards: u16,
        /// What the store has.
        partitions: u16,
    },
    /// More ports than a shard can listen to, or none.
    #[error("{0} ports: give 1 to {PORTS_MAX}")]
    Ports(usize),
    /// More planners than there may be.
    #[error("{0} planners: give 0 to {PLANNERS_MAX}")]
    Planners(u16),
    /// A resource kind would change its nature while nodes have it.
    #[error(transparent)]
    Nature(#[from] NatureFixed),
    /// An indexed kind is new, and the store can learn no more.
    #[error("setting `indexed_resources`: {0}")]
    Kinds(#[from] RegistryFull),
    /// The indexed kinds are too many.
    #[error("setting `indexed_resources`: {0}")]
    Geometry(#[from] GeometryError),
    /// A node holds more than any setting allows. An earlier version, which had no limit, wrote the store.
    #[error(
        "node {node} has {allocations} allocations in this store, and one may have {ALLOCATIONS_PER_NODE_MAX}: \
         release some with the version that wrote it"
    )]
    Allocations {
        /// The node's name.
        node: Arc<str>,
        /// What is placed into bundles and what is claimed included.
        allocations: usize,
    },
}

/// The parts of a started engine. The caller runs each runner on a thread and gives each port
/// to its owner.
pub struct Engine {
    /// This start's number.
    pub incarnation: Incarnation,
    /// Where the clock goes on.
    pub now: Time,
    /// One per shard.
    pub runners: Vec<ShardRunner>,
    /// One per waker given.
    pub ports: Vec<Port>,
    /// As many as configured. They are stopped first: they need the shards until then.
    pub planners: Vec<PlannerRunner>,
    /// Stops the planners.
    pub planner_stop: StopSignal,
    /// Groups of the store that no planner keeps, because there are none: to be stored again.
    pub groups: Vec<GroupRecord>,
    /// The owner of the global records.
    pub registrar: Registrar,
    /// The published catalog.
    pub catalog: Arc<ArcSwap<Catalog>>,
    /// The published routing table.
    pub table: Arc<ArcSwap<RoutingTable>>,
    /// Stops the runners.
    pub stop: StopSignal,
    /// The views of each shard, in order; empty unless they are asked for.
    pub views: Vec<ViewReader>,
}

impl Engine {
    /// Starts over `state`, with one port per waker of `owners`.
    ///
    /// # Errors
    /// When the numbers of shards, ports or planners are out of range, the resource kinds of the settings do not
    /// go with those of the store, or a node has more allocations than [`ALLOCATIONS_PER_NODE_MAX`].
    pub fn open(state: StoreState, config: &EngineConfig, owners: Vec<Waker>) -> Result<Self, EngineError> {
        let partitions = u16::try_from(state.partitions.len()).expect("PARTITIONS_MAX fits u16");
        if config.shards == 0 || config.shards > partitions.min(SHARDS_MAX) {
            return Err(EngineError::Shards { shards: config.shards, partitions });
        }
        if owners.is_empty() || owners.len() + usize::from(config.planners) > PORTS_MAX {
            return Err(EngineError::Ports(owners.len()));
        }
        if config.planners > PLANNERS_MAX {
            return Err(EngineError::Planners(config.planners));
        }
        state.partitions.iter().try_for_each(check_allocations)?;
        let incarnation = Incarnation(state.incarnation.0 + 1);
        let (mut registrar, geometry) = open_registrar(&state, config)?;
        let table = RoutingTable::even(partitions, config.shards);
        let catalog = Arc::new(ArcSwap::from_pointee(registrar.catalog()));
        let stop = StopSignal::default();
        let mut seeds = Rng::new(config.seed);
        let resumed = (&state.policies[..], &state.granularities[..]);
        let mut shards =
            open_shards(state.partitions, resumed, &table, (config, &geometry), incarnation, &mut seeds);
        let mut views = Vec::new();
        if config.views || config.planners > 0 {
            views.extend(shards.iter_mut().map(Shard::enable_views));
        }
        let threads = PlannerThreads::new(config.planners);
        // Planners talk to shards through ports of their own, behind those of the callers.
        let callers = owners.len();
        let bells = owners.into_iter().map(|waker| Arc::new(Doorbell::new(waker)));
        let bells: Vec<_> = bells.chain(threads.bells()).collect();
        let (mut runners, links) = link_shards(shards, &bells, &table, &stop);
        runners.iter_mut().for_each(|runner| runner.set_planners(threads.interests()));
        let table = Arc::new(ArcSwap::from_pointee(table));
        let port = |((bell, links), number)| {
            let seed = seeds.next_u64();
            Port::new(links, &table, &catalog, geometry.clone(), seed, bell, number)
        };
        let mut ports: Vec<Port> = bells.into_iter().zip(links).zip(0..).map(port).collect();
        let of_planners = ports.split_off(callers);
        ports.iter_mut().for_each(|port| port.set_views(views.clone()));
        let ground = Ground { config, geometry: &geometry, table: &table.load(), incarnation, views: &views };
        let (mut planners, planner_stop) = threads.open(&ground, of_planners, &mut ports, &mut seeds);
        let groups = keep_groups(state.groups, &mut planners);
        let now = state.now;
        Ok(Self {
            incarnation,
            now,
            runners,
            ports,
            planners,
            planner_stop,
            groups,
            registrar,
            catalog,
            table,
            stop,
            views,
        })
    }
}

/// The global records, and the geometry with the custom kinds that are indexed.
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
    // Who keeps a node gets a fresh period: the clock stood still, and so did the agents' word.
    for node in state.partitions.iter().flat_map(|p| &p.nodes).filter(|n| n.registration.agent.is_some()) {
        registrar.heartbeats().expect(node.registration.id, state.now);
    }
    Ok((registrar, geometry))
}

/// A runner per shard, and per bell the links to all shards.
fn link_shards(
    shards: Vec<Shard>,
    bells: &[Arc<Doorbell>],
    table: &RoutingTable,
    stop: &StopSignal,
) -> (Vec<ShardRunner>, Vec<Vec<PortLink>>) {
    let mut port_links: Vec<Vec<PortLink>> = bells.iter().map(|_| Vec::new()).collect();
    let news: Vec<Arc<ViewNews>> = bells.iter().map(|_| Arc::default()).collect();
    let mut runners = Vec::new();
    for (id, shard) in (0..).map(ShardId).zip(shards) {
        let (shard_bell, waker) = ShardRunner::doorbell();
        let interest = Arc::<ViewInterest>::default();
        let mut links = Vec::new();
        for ((bell, news), of_port) in bells.iter().zip(&news).zip(&mut port_links) {
            let (submissions, from_port) = channel(RING_SLOTS);
            let (to_port, answers) = channel(RING_SLOTS);
            let woken = Arc::new(WokenBox::default());
            let bell = Arc::clone(bell);
            let for_port = Arc::clone(&woken);
            let shard_bell = Arc::clone(&shard_bell);
            let interest = Arc::clone(&interest);
            let news = Arc::clone(news);
            let of_shard = Arc::clone(&news);
            links.push(ShardLink { submissions: from_port, answers: to_port, bell, woken, news: of_shard });
            let bell = shard_bell;
            let woken = for_port;
            of_port.push(PortLink { submissions, answers, bell, woken, interest, news });
        }
        let summary = Arc::clone(table.summary(id));
        let mut runner = ShardRunner::new(id, shard, links, summary, shard_bell, waker, stop.clone());
        runner.set_interest(interest);
        runners.push(runner);
    }
    (runners, port_links)
}

fn open_shards(
    partitions: Vec<PartitionState>,
    (policies, granularities): (&[PolicyState], &[Option<GranularityState>]),
    table: &RoutingTable,
    (config, geometry): (&EngineConfig, &Geometry),
    incarnation: Incarnation,
    seeds: &mut Rng,
) -> Vec<Shard> {
    let mut owned: Vec<Vec<PartitionState>> = (0..config.shards).map(|_| Vec::new()).collect();
    for partition in partitions {
        let shard = table.shard(partition.id).expect("the table covers the store's partitions");
        owned[shard.index()].push(partition);
    }
    let resumed = policies.len() == owned.len();
    let mut shards = Vec::new();
    for (id, owned) in (0..).map(ShardId).zip(owned) {
        let mut shard = Shard::new(shard_config(id, table, (config, geometry), incarnation, seeds));
        if let Some(typical) = &config.typical_shapes {
            shard.set_typical_shapes(Arc::clone(typical));
        }
        shard.set_reserved_nodes_percent(config.reserved_nodes_percent);
        shard.set_allocations_per_node_max(config.allocations_per_node_max);
        shard.adopt(owned);
        if resumed {
            shard.resume_policies(policies[id.index()].clone());
            if let Some(Some(granularity)) = granularities.get(id.index()) {
                shard.resume_granularity(granularity);
            }
        }
        shards.push(shard);
    }
    shards
}

fn shard_config(
    shard: ShardId,
    table: &RoutingTable,
    (config, geometry): (&EngineConfig, &Geometry),
    incarnation: Incarnation,
    seeds: &mut Rng,
) -> ShardConfig {
    let partitions = table.partitions_of(shard).collect();
    let geometry = geometry.clone();
    ShardConfig { shard, incarnation, partitions, geometry, seed: seeds.next_u64(), hybrid: config.hybrid }
}
