//! The values of the labels that rules use, each with its nodes.
//!
//! They are collected when a rule first names a label, and updated as nodes come, go and change. So a plan
//! looks only at the nodes of a value, not at all nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::hash::stable_hash;
use crate::index::Slot;
use crate::limits::RULE_LABELS_KEPT_MAX;
use crate::lru::Lru;
use crate::node::Labels;

/// The nodes of a replica by the value of one label.
#[derive(Default)]
pub(crate) struct Domain {
    key: Arc<str>,
    /// No value has an empty set of nodes.
    values: BTreeMap<Arc<str>, BTreeSet<Slot>>,
    of_slot: Vec<Option<Arc<str>>>,
}

/// The labels that a replica keeps, found by the hash of their key.
#[derive(Default)]
pub(crate) struct Domains {
    kept: Lru<Domain, RULE_LABELS_KEPT_MAX>,
    /// The number of nodes that were looked at to collect values.
    looked_at: u64,
}

impl Domain {
    /// Returns the values in order, with their nodes.
    pub(crate) fn values(&self) -> &BTreeMap<Arc<str>, BTreeSet<Slot>> {
        &self.values
    }

    /// Returns the nodes with that value.
    pub(crate) fn slots(&self, value: &str) -> impl Iterator<Item = Slot> {
        self.values.get(value).into_iter().flatten().copied()
    }

    /// Returns the value of a node.
    pub(crate) fn value(&self, slot: Slot) -> Option<&Arc<str>> {
        self.of_slot.get(slot as usize)?.as_ref()
    }

    fn set(&mut self, slot: Slot, value: Option<&str>) {
        let at = slot as usize;
        if self.value(slot).map(|value| &**value) == value {
            return;
        }
        if self.of_slot.len() <= at {
            self.of_slot.resize(at + 1, None);
        }
        if let Some(before) = self.of_slot[at].take() {
            let slots = self.values.get_mut(&before).expect("a value has its nodes");
            assert!(slots.remove(&slot), "a node is among those of its value");
            if slots.is_empty() {
                self.values.remove(&before);
            }
        }
        let Some(value) = value else { return };
        let shared = match self.values.get_key_value(value) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::from(value),
        };
        self.values.entry(Arc::clone(&shared)).or_default().insert(slot);
        self.of_slot[at] = Some(shared);
    }
}

impl Domains {
    /// Returns the nodes by the value of `key`. If `key` is not kept yet, they are collected from `nodes`,
    /// which yields the nodes that have a value.
    pub(crate) fn keep<'a, N>(&mut self, key: &str, nodes: impl FnOnce() -> N) -> &Domain
    where
        N: Iterator<Item = (Slot, &'a str)>,
    {
        let hash = stable_hash(key.as_bytes());
        let known = self.kept.find(hash, |domain| &*domain.key == key);
        let at = known.unwrap_or_else(|| {
            let mut made = Domain { key: Arc::from(key), ..Domain::default() };
            nodes().for_each(|(slot, value)| {
                self.looked_at += 1;
                made.set(slot, Some(value));
            });
            self.kept.insert(hash, made).0
        });
        self.kept.at(at)
    }

    /// Updates the labels of a node. `None` means that the node is gone.
    pub(crate) fn follow(&mut self, slot: Slot, labels: Option<&Labels>) {
        for domain in self.kept.iter_mut() {
            let value = labels.and_then(|labels| labels.get(&domain.key));
            domain.set(slot, value);
        }
    }

    /// Returns the number of nodes looked at so far because a label was not kept.
    pub(crate) fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Forgets all labels.
    pub(crate) fn forget(&mut self) {
        self.kept.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn values_have_the_nodes_that_have_them_whatever_came_and_went() {
        let mut domains = Domains::default();
        let mut nodes: BTreeMap<Slot, Labels> = BTreeMap::new();
        let mut rng = Rng::new(7);
        for step in 0..2_000u64 {
            let slot = rng.below(40) as Slot;
            if rng.below(3) == 0 {
                nodes.remove(&slot);
                domains.follow(slot, None);
            } else {
                let keys = (0..RULE_LABELS_KEPT_MAX as u64 + 2).filter(|_| step % 2 == 0);
                let pairs =
                    keys.map(|key| (format!("k{key}").into(), format!("v{}", (key + step) % 5).into()));
                let labels = Labels::new(pairs.collect()).expect("each key once");
                domains.follow(slot, Some(&labels));
                nodes.insert(slot, labels);
            }
            let key = format!("k{}", rng.below(RULE_LABELS_KEPT_MAX as u64 + 2));
            let with = || nodes.iter().filter_map(|(&slot, labels)| Some((slot, labels.get(&key)?)));
            let domain = domains.keep(&key, with);
            let mut expected: BTreeMap<&str, Vec<Slot>> = BTreeMap::new();
            with().for_each(|(slot, value)| expected.entry(value).or_default().push(slot));
            assert_eq!(domain.values().len(), expected.len(), "{key}");
            for (value, slots) in expected {
                assert_eq!(domain.slots(value).collect::<Vec<_>>(), slots, "{key}={value}");
                assert!(slots.iter().all(|&slot| domain.value(slot).is_some_and(|of| **of == *value)));
            }
        }
    }
}
