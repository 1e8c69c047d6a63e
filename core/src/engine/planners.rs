//! Creates the planners when an engine starts.

use std::sync::Arc;

use super::{EngineConfig, shard_config};
use crate::executor::ShardRunner;
use crate::group::keeper_of;
use crate::ids::{Incarnation, ShardId};
use crate::index::Geometry;
use crate::limits::TICKET_NS_DEFAULT;
use crate::link::{Doorbell, PlannerBell, StopSignal, ThreadWaker, Tickets};
use crate::planner::{Planner, PlannerConfig, PlannerRunner};
use crate::rng::Rng;
use crate::router::{Port, RoutingTable};
use crate::shard::Shard;
use crate::state::GroupRecord;
use crate::view::ViewReader;

/// The inputs for opening planners.
pub(super) struct Ground<'a> {
    pub(super) config: &'a EngineConfig,
    pub(super) geometry: &'a Geometry,
    pub(super) table: &'a RoutingTable,
    pub(super) incarnation: Incarnation,
    pub(super) views: &'a [ViewReader],
}

/// The bells of the planners, and the wakers behind them.
pub(super) struct PlannerThreads(Vec<(Arc<Doorbell>, Arc<PlannerBell>, Arc<ThreadWaker>)>);

impl PlannerThreads {
    pub(super) fn new(count: u16) -> Self {
        let one = |_| {
            let (bell, waker) = ShardRunner::doorbell();
            let interest = Arc::new(PlannerBell::new(Arc::clone(&bell)));
            (bell, interest, waker)
        };
        Self((0..count).map(one).collect())
    }

    pub(super) fn bells(&self) -> impl Iterator<Item = Arc<Doorbell>> {
        self.0.iter().map(|(bell, ..)| Arc::clone(bell))
    }

    pub(super) fn interests(&self) -> Vec<Arc<PlannerBell>> {
        self.0.iter().map(|(_, interest, _)| Arc::clone(interest)).collect()
    }

    /// Creates the planners and the signal that stops them. Each planner gets one of `ports` and serves all
    /// `callers`.
    pub(super) fn open(
        self,
        ground: &Ground<'_>,
        ports: Vec<Port>,
        callers: &mut [Port],
        seeds: &mut Rng,
    ) -> (Vec<PlannerRunner>, StopSignal) {
        let stop = StopSignal::default();
        let tickets = Arc::new(Tickets::default());
        tickets.set_bells(self.bells().collect());
        let mut runners = Vec::new();
        for ((number, port), (_, interest, waker)) in (0..).zip(ports).zip(self.0) {
            let copies = ground.replicas(seeds).into_iter().zip(ground.views.iter().cloned()).collect();
            let config = PlannerConfig {
                number,
                planners: ground.config.planners,
                incarnation: ground.incarnation,
                seed: seeds.next_u64(),
                hold_ns: ground.config.hold_ns,
                ticket_ns: TICKET_NS_DEFAULT,
            };
            let mut planner = Planner::new(config, port, copies);
            planner.set_tickets(Arc::clone(&tickets));
            runners.push(PlannerRunner::new(planner, callers, interest, waker, stop.clone()));
        }
        (runners, stop)
    }
}

impl Ground<'_> {
    /// Creates empty replicas of all shards for one planner.
    fn replicas(&self, seeds: &mut Rng) -> Vec<Shard> {
        let mut replica = |id| {
            let of_shard = (self.config, self.geometry);
            let mut replica = Shard::replica(shard_config(id, self.table, of_shard, self.incarnation, seeds));
            replica.set_allocations_per_node_max(self.config.allocations_per_node_max);
            if let Some(typical) = &self.config.typical_shapes {
                replica.set_typical_shapes(Arc::clone(typical));
            }
            replica
        };
        (0..self.table.shard_count()).map(|shard| replica(ShardId(shard))).collect()
    }
}

/// Gives each group to the planner that keeps it. Returns the groups that have none.
pub(super) fn keep_groups(groups: Vec<GroupRecord>, planners: &mut [PlannerRunner]) -> Vec<GroupRecord> {
    let count = u16::try_from(planners.len()).expect("PLANNERS_MAX fits u16");
    let mut unkept = Vec::new();
    for group in groups {
        match planners.get_mut(usize::from(keeper_of(group.id, count))) {
            Some(keeper) => keeper.adopt(group),
            None => unkept.push(group),
        }
    }
    unkept
}
