//! The shard that a run begins with.

use std::sync::Arc;

use wharf_core::fragmentation::TypicalShapes;
use wharf_core::ids::{PartitionId, ShardId};
use wharf_core::index::Geometry;
use wharf_core::shard::{HybridSettings, Shard, ShardConfig};

use super::limits::Limits;
use super::{INCARNATION, PARTITIONS};

/// Returns a shard without nodes, under the limits of the run.
pub(super) fn fresh_shard(
    geometry: Geometry,
    typical: Option<&Arc<TypicalShapes>>,
    (percent, most): Limits,
) -> Shard {
    let mut shard = Shard::new(ShardConfig {
        shard: ShardId(0),
        incarnation: INCARNATION,
        partitions: (0..PARTITIONS).map(PartitionId).collect(),
        geometry,
        seed: 7,
        hybrid: HybridSettings::default(),
    });
    shard.set_reserved_nodes_percent(percent);
    // In most runs the limit is so low that the shard keeps postponing nodes.
    if percent.is_multiple_of(2) {
        shard.set_wake_looks(2);
    }
    shard.set_allocations_per_node_max(most);
    if let Some(typical) = typical {
        shard.set_typical_shapes(Arc::clone(typical));
    }
    shard
}
