//! Removed nodes that had an identity: the same machine under the same name gets its old id
//! again (a node that comes back keeps its id), any other machine a new one.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{NodeId, Ordinal};
use crate::limits::REMOVED_NODES_KEPT_MAX;

/// A node that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedNode {
    /// The name that it had.
    pub name: Arc<str>,
    /// The machine behind it.
    pub identity: Arc<str>,
    /// The id that it gets again.
    pub id: NodeId,
    /// Its place in the order of registration, which it gets again too.
    pub ordinal: Ordinal,
}

type Key = (Arc<str>, Arc<str>);

/// The nodes removed last, up to a bound; older ones are forgotten, and then are new machines.
#[derive(Default)]
pub(super) struct RemovedNodes {
    by_machine: BTreeMap<Key, (u64, NodeId, Ordinal)>,
    by_age: BTreeMap<u64, Key>,
    next: u64,
}

impl RemovedNodes {
    pub(super) fn keep(&mut self, node: RemovedNode) {
        let key = (node.name, node.identity);
        if let Some((age, ..)) = self.by_machine.insert(key.clone(), (self.next, node.id, node.ordinal)) {
            self.by_age.remove(&age);
        }
        self.by_age.insert(self.next, key);
        self.next += 1;
        if self.by_age.len() > REMOVED_NODES_KEPT_MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.by_machine.remove(&oldest);
        }
    }

    /// The id and ordinal of the machine that had this name, if it was removed; it is back now.
    pub(super) fn take(&mut self, name: &Arc<str>, identity: &Arc<str>) -> Option<(NodeId, Ordinal)> {
        let (age, id, ordinal) = self.by_machine.remove(&(Arc::clone(name), Arc::clone(identity)))?;
        self.by_age.remove(&age);
        Some((id, ordinal))
    }

    /// Oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = RemovedNode> {
        self.by_age.values().map(|key| {
            let (_, id, ordinal) = self.by_machine[key];
            RemovedNode { name: Arc::clone(&key.0), identity: Arc::clone(&key.1), id, ordinal }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u64) -> RemovedNode {
        let (name, identity) = (format!("n{number}").into(), "m".into());
        RemovedNode { name, identity, id: NodeId(number), ordinal: Ordinal(number) }
    }

    #[test]
    fn the_oldest_is_forgotten_first_and_whoever_is_back_is_not_kept() {
        let mut removed = RemovedNodes::default();
        for number in 0..REMOVED_NODES_KEPT_MAX as u64 + 2 {
            removed.keep(node(number));
        }
        assert_eq!(removed.iter().count(), REMOVED_NODES_KEPT_MAX);
        assert_eq!(removed.take(&"n1".into(), &"m".into()), None);
        assert_eq!(removed.take(&"n2".into(), &"other".into()), None);
        assert_eq!(removed.take(&"n2".into(), &"m".into()), Some((NodeId(2), Ordinal(2))));
        assert_eq!(removed.take(&"n2".into(), &"m".into()), None);
        assert_eq!(removed.iter().next(), Some(node(3)));
    }
}
