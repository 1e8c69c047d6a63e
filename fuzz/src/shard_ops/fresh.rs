//! The shard that a run begins with.

use std::sync::Arc;

use wharf_core::fragmentation::{RequestShape, TypicalShapes};
use wharf_core::ids::{PartitionId, ShardId};
use wharf_core::index::Geometry;
use wharf_core::resource::{Amount, GpuRequest};
use wharf_core::shard::{HybridSettings, Pages, Shard, ShardConfig};

use super::leases::LEASES_ENDED;
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
    shard.set_pages(Pages { leases_ended: LEASES_ENDED, ..Pages::default() });
    if let Some(typical) = typical {
        shard.set_typical_shapes(Arc::clone(typical));
    }
    shard
}

/// Returns typical requests by number. For most numbers there are none, and the shard learns them.
pub(super) fn typical(number: u8) -> Option<Arc<TypicalShapes>> {
    let shape = |cpu, gpu, models: &[&str]| {
        let models = (!models.is_empty()).then(|| models.iter().map(|&model| model.into()).collect());
        RequestShape { cpu: Amount::whole(cpu), gpu, models }
    };
    let counted = match number % 8 {
        0 => vec![
            (shape(1, GpuRequest::Fraction(3000), &[]), 50),
            (shape(2, GpuRequest::Whole(1), &[]), 30),
            (shape(3, GpuRequest::Whole(2), &["T4"]), 9),
            (shape(2, GpuRequest::None, &[]), 10),
        ],
        1 => vec![
            (shape(4, GpuRequest::Fraction(5000), &["P100", "T4"]), 3),
            (shape(0, GpuRequest::Whole(4), &[]), 3),
            (shape(1, GpuRequest::Fraction(7000), &["P100"]), 3),
        ],
        2 => vec![(shape(1, GpuRequest::None, &[]), 1)],
        _ => return None,
    };
    Some(Arc::new(TypicalShapes::covering(counted)))
}
