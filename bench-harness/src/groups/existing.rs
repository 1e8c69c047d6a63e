//! The existing groups according to their answers, and the check of the books against them.

use wharf_core::group::Strategy;
use wharf_core::map::FixedMap;
use wharf_core::resource::Amount;
use wharf_core::rng::Rng;
use wharf_net::protocol::{BundleBody, GroupBody, NodeStatus, WireGroup};

use super::GroupsError;

/// Cores of a node.
pub(super) const NODE_CORES: u32 = 64;
/// MiB of a node.
pub(super) const NODE_MEMORY: u32 = 256 * 1024;

/// Returns half a core, so that a node holds two groups of 64 bundles.
pub(super) fn bundle_cpu() -> Amount {
    Amount::from_milli(500)
}

/// Returns 1 GiB.
pub(super) fn bundle_memory() -> Amount {
    Amount::whole(1024)
}

/// The groups that exist.
#[derive(Default)]
pub(super) struct Existing {
    groups: Vec<(WireGroup, Vec<BundleBody>)>,
}

impl Existing {
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Adds a group after checking that it was placed as asked.
    pub(super) fn enter(
        &mut self,
        group: GroupBody,
        bundles: u32,
        strategy: Strategy,
    ) -> Result<(), GroupsError> {
        let GroupBody { id, bundles: placed, .. } = group;
        let wrong = |what: &str| Err(GroupsError::Wrong(format!("group {id:?} {what}: {placed:?}")));
        let nodes = || placed.iter().filter_map(|bundle| bundle.placed.as_ref()).map(|placed| placed.node);
        if nodes().count() != bundles as usize || placed.len() != bundles as usize {
            return wrong("was not placed wholly");
        }
        let fine = match strategy {
            Strategy::StrictPack => nodes().all(|node| Some(node) == nodes().next()),
            Strategy::StrictSpread => {
                let mut all: Vec<u64> = nodes().collect();
                all.sort_unstable();
                all.windows(2).all(|pair| pair[0] != pair[1])
            }
            Strategy::Pack | Strategy::Spread => true,
        };
        if !fine {
            return wrong("is not placed by its strategy");
        }
        self.groups.push((id, placed));
        Ok(())
    }

    /// Removes and returns a random group.
    ///
    /// # Panics
    /// When there is no group.
    pub(super) fn any(&mut self, rng: &mut Rng) -> WireGroup {
        let at = rng.below(self.groups.len() as u64) as usize;
        self.groups.swap_remove(at).0
    }

    /// Checks that nodes hold exactly the bundles of these groups, and that the service knows exactly these
    /// groups.
    pub(super) fn check(&self, nodes: &[NodeStatus], listed: &[WireGroup]) -> Result<(), GroupsError> {
        let mut counts: FixedMap<u64, u32> = FixedMap::default();
        let placed = self.groups.iter().flat_map(|(_, bundles)| bundles);
        for placed in placed.filter_map(|bundle| bundle.placed.as_ref()) {
            *counts.entry(placed.node).or_default() += 1;
        }
        for node in nodes {
            let count = counts.remove(&node.id).unwrap_or_default();
            let left =
                |whole: u32, each: Amount| Amount::whole(whole).units() - i64::from(count) * each.units();
            let free = (left(NODE_CORES, bundle_cpu()), left(NODE_MEMORY, bundle_memory()));
            if node.allocations != count || (node.cpu_available, node.memory_available) != free {
                let message = format!("{count} bundles are placed on node n{}, which says {node:?}", node.id);
                return Err(GroupsError::Wrong(message));
            }
        }
        if let Some((node, count)) = counts.into_iter().next() {
            return Err(GroupsError::Wrong(format!(
                "{count} bundles are placed on node n{node}, which is not listed"
            )));
        }
        let key = |group: &WireGroup| (group.incarnation, group.number);
        let mut known: Vec<_> = self.groups.iter().map(|(id, _)| key(id)).collect();
        let mut listed: Vec<_> = listed.iter().map(key).collect();
        known.sort_unstable();
        listed.sort_unstable();
        if known != listed {
            let message = format!("{} groups exist, and the service lists {}", known.len(), listed.len());
            return Err(GroupsError::Wrong(message));
        }
        Ok(())
    }
}
