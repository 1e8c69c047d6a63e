//! Invariant 6 for followers: after each step a follower has exactly the content of the step's view, and
//! versions only grow. During a step it is told nothing about nodes that it does not know.

use std::collections::BTreeMap;

use wharf_core::ids::{AllocationId, NodeId, StatementId};
use wharf_core::node::NodeState;
use wharf_core::resource::{Demand, GpuAssignment};
use wharf_core::view::{Change, ColdImage, HoldImage, HotImage, PendingImage, View, ViewVersion};

use super::{Verdict, ensure};

/// A node as a follower sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    state: Option<NodeState>,
    version: u64,
    cpu: i64,
    memory: i64,
    gpus: Vec<u16>,
    /// The releasing allocations and the claims on the node.
    pending: Option<Box<PendingImage>>,
}

/// A statement's hold on a node: the statement, its operation and the node.
type HoldKey = (StatementId, u16, NodeId);

/// The state that a follower has of one shard.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mirror {
    nodes: BTreeMap<NodeId, Followed>,
    allocations: BTreeMap<AllocationId, (NodeId, Demand, GpuAssignment)>,
    holds: BTreeMap<HoldKey, HoldImage>,
}

fn followed(hot: &HotImage, cold: &ColdImage) -> Followed {
    Followed {
        state: hot.state,
        version: hot.version,
        cpu: hot.cpu.units(),
        memory: hot.memory.units(),
        gpus: (0..cold.registration.spec.gpus).map(|gpu| hot.gpus.free(gpu)).collect(),
        pending: cold.pending.clone(),
    }
}

impl Mirror {
    /// Returns the content of a view.
    #[must_use]
    pub fn of(view: &View) -> Self {
        let mut mirror = Self::default();
        view.nodes(|slot, hot, cold| {
            mirror.nodes.insert(hot.id, followed(hot, cold));
            for there in view.allocations(slot) {
                mirror.allocations.insert(there.id, (hot.id, there.demand, there.gpus));
            }
            for hold in &cold.holds {
                mirror.holds.insert((hold.statement, hold.operation, hot.id), hold.clone());
            }
        });
        mirror
    }

    /// Applies one change.
    ///
    /// # Errors
    /// Returns a change of something that the follower does not have.
    pub fn apply(&mut self, change: Change<'_>) -> Verdict {
        let known = |nodes: &BTreeMap<NodeId, Followed>, node: NodeId| {
            ensure(nodes.contains_key(&node), || format!("something is told of {node}, which is not known"))
        };
        match change {
            Change::HoldEnded(node, hold) => {
                let there = self.holds.remove(&(hold.statement, hold.operation, node.id));
                ensure(there.is_some(), || format!("{hold:?} ended on {} and was not there", node.id))
            }
            Change::AllocationEnded(node, id, _) => {
                let there = self.allocations.remove(&id);
                ensure(there.is_some_and(|there| there.0 == node.id), || format!("{id} ended twice"))
            }
            Change::NodeGone(node) => {
                let there = self.nodes.remove(&node.id);
                ensure(there.is_some(), || format!("{} is gone and was not there", node.id))?;
                let left = self.allocations.iter().find(|(_, there)| there.0 == node.id);
                ensure(left.is_none(), || format!("{} is gone, and {left:?} is left", node.id))
            }
            Change::Node { hot, cold, before } => {
                let there = self.nodes.insert(hot.id, followed(hot, cold));
                ensure(there.is_some() == before.is_some(), || format!("{} is told as new or old", hot.id))
            }
            Change::Allocation(node, there) => {
                self.allocations.insert(there.id, (node.id, there.demand, there.gpus));
                known(&self.nodes, node.id)
            }
            Change::Hold(node, hold) => {
                self.holds.insert((hold.statement, hold.operation, node.id), hold.clone());
                known(&self.nodes, node.id)
            }
        }
    }
}

/// Checks that a follower has the content of the view after a complete step, with a later version than before.
///
/// # Errors
/// Returns the difference.
pub fn followers_keep_up(
    had: Option<ViewVersion>,
    mirror: &Mirror,
    to: ViewVersion,
    shown: &Mirror,
) -> Verdict {
    ensure(had.is_none_or(|had| had < to), || format!("a step leads from {had:?} to {to:?}"))?;
    ensure(mirror == shown, || format!("after the step to {to:?} a follower has {mirror:?}, not {shown:?}"))
}

/// Checks, at rest, that a follower that looks at every notification has the newest version of every shard.
///
/// # Errors
/// Returns the shard that sent no notification.
pub fn followers_are_told(latest: &[ViewVersion], had: &[Option<ViewVersion>]) -> Verdict {
    let differs = (0..).zip(latest.iter().zip(had)).find(|(_, (latest, had))| **had != Some(**latest));
    ensure(differs.is_none() && latest.len() == had.len(), || format!("shard, shown and had: {differs:?}"))
}
