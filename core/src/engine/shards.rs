//! Shards before they are opened, and how each is opened.

use std::sync::Arc;

use super::EngineConfig;
use crate::fragmentation::TypicalShapes;
use crate::ids::{Incarnation, ShardId};
use crate::index::{Geometry, PolicyState};
use crate::limits::SHARDS_MAX;
use crate::rng::Rng;
use crate::router::RoutingTable;
use crate::shard::{Shard, ShardConfig};
use crate::state::{GranularityState, PartitionState};
use crate::view::ViewReader;

/// A shard that is not built yet: its settings, and the part of the durable state that it takes over.
///
/// [`open`](Self::open) builds the shard, so the thread that calls it is the first to touch the shard's memory. On a
/// machine with several memory nodes, call it on a core near the one that will run the shard.
pub struct UnopenedShard {
    make: fn(ShardConfig) -> Shard,
    config: ShardConfig,
    typical_shapes: Option<Arc<TypicalShapes>>,
    allocations_per_node_max: u16,
    reserved_nodes_percent: u8,
    has_journal: bool,
    has_views: bool,
    partitions: Vec<PartitionState>,
    policies: Option<PolicyState>,
    granularity: Option<GranularityState>,
}

/// A shard as [`UnopenedShard::open`] built it.
pub struct OpenedShard {
    pub(super) id: ShardId,
    pub(super) shard: Shard,
    pub(super) views: Option<ViewReader>,
}

impl OpenedShard {
    /// Returns the shard.
    #[must_use]
    pub fn shard(&self) -> &Shard {
        &self.shard
    }
}

impl UnopenedShard {
    /// A shard, or a replica of it, that takes nothing over.
    pub(super) fn new(
        make: fn(ShardConfig) -> Shard,
        shard: ShardId,
        table: &RoutingTable,
        (config, geometry): (&EngineConfig, &Geometry),
        incarnation: Incarnation,
        seeds: &mut Rng,
    ) -> Self {
        let config_of_shard = ShardConfig {
            shard,
            incarnation,
            partitions: table.partitions_of(shard).collect(),
            geometry: geometry.clone(),
            seed: seeds.next_u64(),
            hybrid: config.hybrid,
        };
        Self {
            make,
            config: config_of_shard,
            typical_shapes: config.typical_shapes.clone(),
            allocations_per_node_max: config.allocations_per_node_max,
            reserved_nodes_percent: config.reserved_nodes_percent,
            has_journal: config.journal,
            has_views: config.views || config.planner_threads() > 0,
            partitions: Vec::new(),
            policies: None,
            granularity: None,
        }
    }

    /// Returns the shard's number.
    #[must_use]
    pub fn id(&self) -> ShardId {
        self.config.shard
    }

    /// Builds the shard with all that it takes over. O(state of the shard).
    #[must_use]
    pub fn open(mut self) -> OpenedShard {
        let id = self.id();
        let partitions = std::mem::take(&mut self.partitions);
        let policies = self.policies.take();
        let granularity = self.granularity.take();
        let percent = self.reserved_nodes_percent;
        let has_journal = self.has_journal;
        let has_views = self.has_views;
        let mut shard = self.build();
        shard.set_reserved_nodes_percent(percent);
        if has_journal {
            shard.adopt_journaled(partitions);
        } else {
            shard.adopt(partitions);
        }
        if let Some(policies) = policies {
            shard.resume_policies(policies);
        }
        if let Some(granularity) = &granularity {
            shard.resume_granularity(granularity);
        }
        let views = has_views.then(|| shard.enable_views());
        OpenedShard { id, shard, views }
    }

    /// Builds the shard without nodes.
    pub(super) fn build(self) -> Shard {
        let mut shard = (self.make)(self.config);
        if let Some(typical) = self.typical_shapes {
            shard.set_typical_shapes(typical);
        }
        shard.set_allocations_per_node_max(self.allocations_per_node_max);
        shard
    }
}

/// Divides the partitions of a store among shards.
pub(super) fn unopened_shards(
    partitions: Vec<PartitionState>,
    (policies, granularities): (Vec<PolicyState>, Vec<Option<GranularityState>>),
    table: &RoutingTable,
    of_engine: (&EngineConfig, &Geometry),
    incarnation: Incarnation,
    seeds: &mut Rng,
) -> Vec<UnopenedShard> {
    let shards = of_engine.0.shards;
    debug_assert!(shards <= SHARDS_MAX, "checked before");
    let mut unopened: Vec<UnopenedShard> = (0..shards)
        .map(|id| UnopenedShard::new(Shard::new, ShardId(id), table, of_engine, incarnation, seeds))
        .collect();
    for partition in partitions {
        let shard = table.shard(partition.id).expect("the table covers the store's partitions");
        unopened[shard.index()].partitions.push(partition);
    }
    // With another number of shards, what each had learned belongs to no shard.
    if policies.len() == unopened.len() {
        let mut granularities = granularities.into_iter();
        for (shard, policies) in unopened.iter_mut().zip(policies) {
            shard.policies = Some(policies);
            shard.granularity = granularities.next().flatten();
        }
    }
    unopened
}
