//! Views and replicas of a shard that receives arbitrary commands.

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use wharf_core::hash::{StateHash, StateHasher};
use wharf_core::index::Geometry;
use wharf_core::rng::Rng;
use wharf_core::shard::{HybridSettings, Outcome, Planned, Shard, ShardConfig};
use wharf_core::view::View;

use super::follow::Follower;
use super::{
    INCARNATION, Layout, OPERATIONS_MAX, Operation, PARTITIONS, Pair, PartitionId, ShardId, limits, typical,
};

/// The number of replicas. Each is brought up to date at different moments.
const REPLICAS: usize = 3;

/// The events of a run, so that a test can check that they occurred.
#[derive(Clone, Copy, Debug, Default)]
pub struct ViewCounts {
    /// Views published.
    pub views: u64,
    /// Placements that a replica predicted.
    pub placed: u64,
    /// Refusals that a replica predicted.
    pub refused: u64,
    /// Nodes examined to bring replicas up to date.
    pub synced: u64,
    /// Changes that a follower was told.
    pub told: u64,
}

impl ViewCounts {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.views += other.views;
        self.placed += other.placed;
        self.refused += other.refused;
        self.synced += other.synced;
        self.told += other.told;
    }
}

/// Returns a hash of the whole content of a view.
fn content(view: &View) -> StateHash {
    let mut hasher = StateHasher::new("view");
    hasher.text(&format!("{:?}", view.head()));
    view.nodes(|slot, hot, cold| {
        hasher.text(&format!("{slot} {hot:?} {cold:?}"));
        view.allocations(slot).for_each(|allocation| hasher.text(&format!("{allocation:?}")));
    });
    hasher.finish()
}

fn fresh_replica(geometry: Geometry, number: u8) -> Shard {
    let mut replica = Shard::replica(ShardConfig {
        shard: ShardId(0),
        incarnation: INCARNATION,
        partitions: (0..PARTITIONS).map(PartitionId).collect(),
        geometry,
        seed: 0,
        hybrid: HybridSettings::default(),
    });
    replica.set_typical_shapes(typical(number).expect("typical shapes are given"));
    replica
}

struct Run {
    pair: Pair,
    replicas: Vec<Shard>,
    follower: Follower,
    /// Views that are kept, each with the hash of its original content.
    kept: Vec<(Arc<View>, StateHash)>,
    counts: ViewCounts,
    rng: Rng,
}

impl Run {
    /// Returns the current view. Publishes it first if anything changed.
    fn view(&mut self) -> Result<Arc<View>, String> {
        let before = self.pair.shard.visible_from();
        let view = self.pair.shard.current_view().expect("views are enabled");
        if self.pair.shard.visible_from() > before {
            self.counts.views += 1;
            if self.rng.below(4) == 0 {
                self.kept.push((Arc::clone(&view), content(&view)));
            }
        }
        self.pair.shard.check_view()?;
        Ok(view)
    }

    /// Brings one replica up to date and lets it plan the request that the shard receives next.
    fn foretell(&mut self, request: &super::PlacementRequest) -> Result<(usize, Option<Planned>), String> {
        let view = self.view()?;
        let number = self.rng.below(REPLICAS as u64) as usize;
        let replica = &mut self.replicas[number];
        self.counts.synced += replica.sync(&view) as u64;
        replica.check_replica().map_err(|difference| format!("replica {number}: {difference}"))?;
        replica.set_policy_state(self.pair.shard.policy_state().clone());
        Ok((number, replica.plan(request)))
    }

    fn apply(&mut self, operation: Operation) -> Result<(), String> {
        // The end of a batch. Often nobody has read, so nothing more is handed over, or a part.
        if self.rng.below(2) == 0 {
            self.pair.shard.publish_view();
        }
        if self.rng.below(3) == 0 {
            let view = self.view()?;
            self.counts.told += self.follower.portion(&view, &mut self.rng)?;
        }
        let Operation::Place(request) = operation else { return self.pair.apply(operation) };
        let (number, planned) = self.foretell(&request.request(self.pair.last_node))?;
        self.pair.apply(operation)?;
        let outcome = self.pair.last_outcome().expect("just answered");
        let same = match (outcome, &planned) {
            (Outcome::Place(Ok(placed)), Some(planned)) => {
                self.counts.placed += 1;
                placed.node == planned.node
                    && placed.gpus == planned.gpus
                    && placed.units == planned.units
                    && placed.alternative == planned.alternative
            }
            (Outcome::Place(Err(_)), None) => {
                self.counts.refused += 1;
                true
            }
            _ => false,
        };
        if !same {
            return Err(format!("replica {number} planned {planned:?}, the shard answered {outcome:?}"));
        }
        if self.replicas[number].policy_state() != self.pair.shard.policy_state() {
            return Err(format!("replica {number} left its policies in another state than the shard"));
        }
        Ok(())
    }
}

/// Runs the commands encoded in `data` and publishes views in between. Before each placement, a replica catches
/// up from any older view and plans it, and the shard must place the same way.
///
/// # Errors
/// Returns the first difference and the operation that showed it.
pub fn run_view_ops(data: &[u8]) -> Result<ViewCounts, String> {
    let mut bytes = Unstructured::new(data);
    let (Ok(layout), Ok(number)) = (Layout::arbitrary(&mut bytes), u8::arbitrary(&mut bytes)) else {
        return Ok(ViewCounts::default());
    };
    let number = number % 3;
    let mut pair = Pair::new(layout, typical(number).as_ref(), (100, limits(number).1));
    let reader = pair.shard.enable_views();
    pair.shard.set_view_bounds(1 + data.len() % 3, 1 + data.len() % 5);
    let replicas = (0..REPLICAS).map(|_| fresh_replica(layout.both().0, number)).collect();
    let rng = Rng::new(u64::from(number) ^ data.len() as u64);
    let follower = Follower::default();
    let kept = Vec::new();
    let counts = ViewCounts::default();
    let mut run = Run { pair, replicas, follower, kept, counts, rng };
    for number in 0..OPERATIONS_MAX {
        let Ok(operation) = Operation::arbitrary(&mut bytes) else { break };
        if bytes.is_empty() {
            break;
        }
        run.apply(operation).map_err(|difference| {
            format!("operation {number}, {operation:?} over {layout:?}: {difference}")
        })?;
    }
    let last = run.view()?;
    if reader.latest().version() != last.version() {
        return Err("a reader does not get what was published last".to_owned());
    }
    for (view, before) in &run.kept {
        if content(view) != *before {
            return Err(format!("the view {:?} has changed", view.version()));
        }
    }
    Ok(run.counts)
}
