//! Sums over shards for the status reply.

use std::collections::BTreeMap;

use wharf_core::shard::ShardStatus;

use crate::protocol::{ShardStatusBody, Waiting};

/// Sums the waiting requests of all shards. A shape is feasible if some node of any shard could hold it.
pub(super) fn waiting(statuses: &[ShardStatus]) -> Waiting {
    let mut shapes: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
    for shape in statuses.iter().flat_map(|status| &status.waiting) {
        let (homes, feasible) = shapes.entry(shape.hash).or_default();
        *homes += shape.homes;
        *feasible |= shape.feasible;
    }
    let mut waiting = Waiting::default();
    for (homes, feasible) in shapes.into_values() {
        *(if feasible { &mut waiting.feasible } else { &mut waiting.infeasible }) += homes;
    }
    waiting
}

pub(super) fn shard_status(status: &ShardStatus) -> ShardStatusBody {
    ShardStatusBody {
        shard: status.shard.0,
        nodes_ready: status.nodes_ready,
        nodes_draining: status.nodes_draining,
        nodes_joining: status.nodes_joining,
        nodes_lost: status.nodes_lost,
        nodes_reserved: status.nodes_reserved,
        allocations: status.allocations,
        placed: status.placed,
        refused: status.refused,
        released: status.released,
        state_hash: status
            .audit
            .as_ref()
            .and_then(|audit| audit.hashes.as_ref())
            .map(|hashes| hashes.shard.0),
    }
}
