//! Shards before they are opened, and how each is opened.

use std::sync::Arc;

use super::EngineConfig;
use crate::fragmentation::TypicalShapes;
use crate::ids::{Incarnation, ShardId};
use crate::index::{Geometry, PolicyState};
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
    empty: EmptyShard,
    reserved_nodes_percent: u8,
    has_journal: bool,
    has_views: bool,
    partitions: Vec<PartitionState>,
    learned: Option<(PolicyState, Option<GranularityState>)>,
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
    /// Returns the shard's number.
    #[must_use]
    pub fn id(&self) -> ShardId {
        self.empty.config.shard
    }

    /// Builds the shard with all that it takes over. O(state of the shard).
    #[must_use]
    pub fn open(self) -> OpenedShard {
        let id = self.id();
        let mut shard = self.empty.build(Shard::new);
        shard.set_reserved_nodes_percent(self.reserved_nodes_percent);
        if self.has_journal {
            shard.adopt_journaled(self.partitions);
        } else {
            shard.adopt(self.partitions);
        }
        if let Some((policies, granularity)) = self.learned {
            shard.resume_policies(policies);
            if let Some(granularity) = &granularity {
                shard.resume_granularity(granularity);
            }
        }
        let views = self.has_views.then(|| shard.enable_views());
        OpenedShard { id, shard, views }
    }
}

/// The settings of a shard, or of a replica of it.
pub(super) struct EmptyShard {
    config: ShardConfig,
    typical_shapes: Option<Arc<TypicalShapes>>,
    allocations_per_node_max: u16,
}

impl EmptyShard {
    pub(super) fn new(
        shard: ShardId,
        table: &RoutingTable,
        (config, geometry): (&EngineConfig, &Geometry),
        incarnation: Incarnation,
        seeds: &mut Rng,
    ) -> Self {
        let of_shard = ShardConfig {
            shard,
            incarnation,
            partitions: table.partitions_of(shard).collect(),
            geometry: geometry.clone(),
            seed: seeds.next_u64(),
            hybrid: config.hybrid,
        };
        Self {
            config: of_shard,
            typical_shapes: config.typical_shapes.clone(),
            allocations_per_node_max: config.allocations_per_node_max,
        }
    }

    /// Builds it without nodes.
    pub(super) fn build(self, make: fn(ShardConfig) -> Shard) -> Shard {
        let mut shard = make(self.config);
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
    (config, geometry): (&EngineConfig, &Geometry),
    incarnation: Incarnation,
    seeds: &mut Rng,
) -> Vec<UnopenedShard> {
    let unopened = |id| UnopenedShard {
        empty: EmptyShard::new(ShardId(id), table, (config, geometry), incarnation, seeds),
        reserved_nodes_percent: config.reserved_nodes_percent,
        has_journal: config.journal,
        has_views: config.views || config.planner_threads() > 0,
        partitions: Vec::new(),
        learned: None,
    };
    let mut unopened: Vec<UnopenedShard> = (0..config.shards).map(unopened).collect();
    for partition in partitions {
        let shard = table.shard(partition.id).expect("the table covers the store's partitions");
        unopened[shard.index()].partitions.push(partition);
    }
    // With another number of shards, what each had learned belongs to no shard.
    if policies.len() == unopened.len() {
        let granularities = granularities.into_iter().chain(std::iter::repeat_with(|| None));
        for (shard, learned) in unopened.iter_mut().zip(policies.into_iter().zip(granularities)) {
            shard.learned = Some(learned);
        }
    }
    unopened
}
