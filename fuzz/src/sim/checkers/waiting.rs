//! Invariants 8 and 12 over all shards. No request is refused while one node offers what it asks during its
//! whole lifetime. At rest, no waiting request fits a node.

use std::collections::BTreeSet;

use wharf_core::ids::NodeId;
use wharf_core::request::PlacementRequest;

use super::{Verdict, ensure};
use crate::sim::facts::Facts;

/// The nodes that have offered what a request asks ever since it was made.
#[derive(Clone, Debug, Default)]
pub struct Offers {
    nodes: BTreeSet<NodeId>,
}

impl Offers {
    /// Creates the set for a request that is made now.
    pub fn new<'a>(request: &PlacementRequest, shards: impl Iterator<Item = &'a Facts>) -> Self {
        Self { nodes: shards.flat_map(|facts| offering(request, facts)).collect() }
    }

    /// Updates the set after one shard changed from `before` to `now`.
    pub fn shard_changed(&mut self, request: &PlacementRequest, before: &Facts, now: &Facts) {
        let mut there = before.nodes().map(|node| node.registration.id).filter(|id| self.nodes.contains(id));
        let gone: Vec<NodeId> = there.by_ref().filter(|&node| !now.offers(node, request)).collect();
        for node in gone {
            self.nodes.remove(&node);
        }
    }

    /// Checks that the request may be refused.
    ///
    /// # Errors
    /// Returns the node that offered it the whole time.
    pub fn check_refused(&self, request: &PlacementRequest) -> Verdict {
        match self.nodes.first() {
            None => Ok(()),
            Some(node) => Err(format!("{request:?} was refused, and {node} offered it all the time")),
        }
    }
}

fn offering(request: &PlacementRequest, facts: &Facts) -> Vec<NodeId> {
    let nodes = facts.nodes().map(|node| node.registration.id);
    nodes.filter(|&node| facts.offers(node, request)).collect()
}

/// Checks, at rest, that waiting requests fit nowhere.
///
/// # Errors
/// Returns a request and the node that offers it.
pub fn nothing_waits_that_would_fit<'a>(
    waiting: impl Iterator<Item = &'a PlacementRequest>,
    shards: &[Facts],
) -> Verdict {
    for request in waiting {
        let node = shards.iter().find_map(|facts| offering(request, facts).first().copied());
        ensure(node.is_none(), || format!("{request:?} waits, and {node:?} offers it"))?;
    }
    Ok(())
}
