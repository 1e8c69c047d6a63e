//! Chooses the shard to ask next.

use super::super::placing::Placing;
use super::Port;
use crate::ids::ShardId;
use crate::request::PlacementRequest;
use crate::resource::GpuRequest;

/// How many shards a port looks at when the chosen one has as many commands as it should.
const OTHER_SHARDS_TRIED: u64 = 8;

impl Port {
    /// Returns the next shard to ask, among those that were not asked yet. In order of preference:
    ///
    /// 1. the first shard where nodes are reserved for the request's owner
    /// 2. the shard of the first named candidate
    /// 3. the shard of the first registered preferred node
    /// 4. the less loaded of two random shards whose summary does not exclude the request. If this port has as many
    ///    commands there as it should, the other of the two or one of the next few shards, if it has fewer
    /// 5. any other shard that was not asked
    ///
    /// A shard that its summary excludes is asked last, to get exact counts.
    pub(in crate::router) fn choose(&mut self, placing: &Placing) -> Option<ShardId> {
        let table = self.table.load();
        if table.shard_count() == 1 {
            return (!placing.asked.contains(ShardId(0))).then_some(ShardId(0));
        }
        if let Some(owner) = placing.request.owner {
            let mut shards = (0..table.shard_count()).map(ShardId);
            let holds = |&shard: &ShardId| table.summary(shard).has_reserved_for(owner);
            let home = shards.find(|shard| !placing.asked.contains(*shard) && holds(shard));
            if home.is_some() {
                return home;
            }
        }
        if let Some(candidates) = &placing.request.candidates {
            let catalog = self.catalog.load();
            let home = candidates.iter().find_map(|&id| {
                let shard = table.shard(catalog.node_partition(id)?)?;
                (!placing.asked.contains(shard)).then_some(shard)
            });
            if home.is_some() {
                return home;
            }
        }
        if let Some(preferences) = &placing.request.preferences
            && !preferences.nodes.is_empty()
        {
            let catalog = self.catalog.load();
            let home = preferences.nodes.iter().find_map(|&id| table.shard(catalog.node_partition(id)?));
            if let Some(home) = home.filter(|&shard| !placing.asked.contains(shard)) {
                return Some(home);
            }
        }
        let lower = placing.lower.to_words();
        let resource = dominant(&placing.request);
        // The load of a shard that may hold the request.
        let open = |shard: ShardId| {
            if placing.asked.contains(shard) { None } else { table.summary(shard).load_for(lower, resource) }
        };
        let count = u64::from(table.shard_count());
        let mut draw = || {
            let shard = ShardId(self.rng.below(count) as u16);
            (open(shard), shard)
        };
        let first = draw();
        let second = draw();
        let chosen = match (first, second) {
            ((Some(load), _), (Some(second), shard)) if second < load => Some(shard),
            ((Some(_), shard), _) | ((None, _), (Some(_), shard)) => Some(shard),
            ((None, _), (None, _)) => None,
        };
        if let Some(chosen) = chosen {
            let is_full =
                |shard: ShardId| self.windows.is_full(shard.index(), self.unanswered[shard.index()] as usize);
            if !is_full(chosen) {
                return Some(chosen);
            }
            // Slow commands would queue there while another shard is idle: the windows of slow shards are small.
            let others = count.min(OTHER_SHARDS_TRIED) as u16;
            let nexts = (1..=others).map(|i| ShardId(((u64::from(chosen.0) + u64::from(i)) % count) as u16));
            let mut others = [first.1, second.1].into_iter().chain(nexts);
            return others.find(|&shard| !is_full(shard) && open(shard).is_some()).or(Some(chosen));
        }
        // Few shards are left. Check all from a random one on, so that the first is not preferred.
        let start = self.rng.below(count) as u16;
        let from_start = || {
            (0..table.shard_count())
                .map(|i| ShardId(((u32::from(start) + u32::from(i)) % count as u32) as u16))
        };
        from_start()
            .find(|&shard| open(shard).is_some())
            .or_else(|| from_start().find(|&shard| !placing.asked.contains(shard)))
    }
}

/// Returns the resource whose load decides between two shards: GPUs if requested, else cpu or memory.
fn dominant(request: &PlacementRequest) -> usize {
    const CPU: usize = 0;
    const MEMORY: usize = 1;
    const GPU: usize = 2;
    let demand = &request.demand;
    if demand.gpu != GpuRequest::None {
        GPU
    } else if demand.cpu.is_zero() && !demand.memory.is_zero() {
        MEMORY
    } else {
        CPU
    }
}
