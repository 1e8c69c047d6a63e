//! Removed nodes that had an identity.
//!
//! If the same machine returns under the same name, it gets its old id. Any other machine gets a new id.
//!
//! The last version is kept with the id, and the versions of the returned node continue after it. A version
//! therefore identifies one state of one node forever, even if the node returns to another partition or after
//! a restart.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::limits::REMOVED_NODES_KEPT_MAX;
use crate::state::RemovedNode;

type Key = (Arc<str>, Arc<str>);

/// The most recently removed nodes, up to a limit. Older ones are forgotten and count as new machines.
#[derive(Clone, Default)]
pub(crate) struct RemovedNodes {
    by_age: BTreeMap<u64, RemovedNode>,
    /// Their ages.
    by_machine: BTreeMap<Key, u64>,
    next: u64,
}

impl RemovedNodes {
    pub(crate) fn keep(&mut self, node: RemovedNode) {
        self.take(&node.name, &node.identity);
        self.by_machine.insert((Arc::clone(&node.name), Arc::clone(&node.identity)), self.next);
        self.by_age.insert(self.next, node);
        self.next += 1;
        if self.by_age.len() > REMOVED_NODES_KEPT_MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.by_machine.remove(&(oldest.name, oldest.identity));
        }
    }

    /// Takes the record of the machine that had this name, because it has returned.
    pub(crate) fn take(&mut self, name: &Arc<str>, identity: &Arc<str>) -> Option<RemovedNode> {
        let age = self.by_machine.remove(&(Arc::clone(name), Arc::clone(identity)))?;
        self.by_age.remove(&age)
    }

    /// Returns the removed nodes, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = RemovedNode> {
        self.by_age.values().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{NodeId, Ordinal};

    fn node(number: u64) -> RemovedNode {
        let name = format!("n{number}").into();
        let identity = "m".into();
        RemovedNode { name, identity, id: NodeId(number), ordinal: Ordinal(number), version: 7 * number }
    }

    #[test]
    fn the_oldest_is_forgotten_first_and_a_node_that_is_back_is_not_kept() {
        let mut removed = RemovedNodes::default();
        for number in 0..REMOVED_NODES_KEPT_MAX as u64 + 2 {
            removed.keep(node(number));
        }
        assert_eq!(removed.iter().count(), REMOVED_NODES_KEPT_MAX);
        assert_eq!(removed.take(&"n1".into(), &"m".into()), None);
        assert_eq!(removed.take(&"n2".into(), &"other".into()), None);
        assert_eq!(removed.take(&"n2".into(), &"m".into()), Some(node(2)));
        assert_eq!(removed.take(&"n2".into(), &"m".into()), None);
        assert_eq!(removed.iter().next(), Some(node(3)));
    }
}
