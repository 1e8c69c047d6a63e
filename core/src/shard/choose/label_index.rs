//! Nodes by label. It yields the candidates of any selector without a look at each node.
//!
//! For each key it keeps the nodes that have the label, and for each value the nodes that have it with this
//! value. A selector is then a few unions, intersections and differences of bit sets, in words of 64 nodes. The
//! index is built for the first selector, and then follows the nodes.

use crate::broken::{Broken, broken};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::node_set::{Bits, LookedAt, NodeSet};
use crate::index::Slot;
use crate::memory;
use crate::node::{Labels, Operator, Selector, Term};
use crate::shard::books::NodeTable;

/// The maximum number of members that are checked one by one. Larger sets are intersected as a whole.
const CHECKED_SINGLY_MAX: usize = 64;

/// The nodes that have one label.
#[derive(Default)]
struct KeyNodes {
    any: NodeSet,
    values: BTreeMap<Arc<str>, NodeSet>,
}

/// Nodes by their labels.
#[derive(Default)]
pub(crate) struct LabelIndex {
    is_built: bool,
    nodes: Bits,
    keys: BTreeMap<Arc<str>, KeyNodes>,
    /// The labels under which each node is listed, by slot.
    known: Vec<Option<Labels>>,
}

impl LabelIndex {
    /// Builds the index, unless it already is. O(nodes), once.
    pub(crate) fn build(&mut self, nodes: &NodeTable, looked_at: &mut LookedAt) {
        if !self.is_built {
            self.is_built = true;
            for (slot, _, cold) in nodes.iter() {
                looked_at.nodes += 1;
                self.set(slot, Some(&cold.registration.spec.labels));
            }
            assert!(self.nodes.len() == nodes.len(), "labels are known of other nodes than there are");
        }
    }

    /// Notes that a node joined, changed its labels, or left.
    pub(crate) fn set(&mut self, slot: Slot, labels: Option<&Labels>) {
        if !self.is_built {
            return;
        }
        if self.known.len() <= slot as usize {
            memory::resize_tight(&mut self.known, slot as usize + 1, None);
        }
        let before = self.known[slot as usize].take();
        let is_changed = self.nodes.set(slot, labels.is_some());
        assert!(is_changed == (before.is_some() != labels.is_some()), "slot {slot} is a node without labels");
        if before.as_ref() != labels {
            for (key, value) in before.iter().flat_map(Labels::pairs) {
                self.leave(slot, key, value);
            }
            for (key, value) in labels.into_iter().flat_map(Labels::pairs) {
                self.enter(slot, key, value);
            }
        }
        self.known[slot as usize] = labels.cloned();
        assert!(self.nodes.len() <= self.known.len(), "more nodes have labels than there are slots");
    }

    fn enter(&mut self, slot: Slot, key: &Arc<str>, value: &Arc<str>) {
        let slots = self.known.len();
        assert!((slot as usize) < slots, "a node has a place before it has labels");
        let nodes = self.keys.entry(Arc::clone(key)).or_default();
        let before = nodes.any.len();
        nodes.any.insert(slot, slots);
        assert!(nodes.any.len() == before + 1, "slot {slot} has the label {key} already");
        nodes.values.entry(Arc::clone(value)).or_default().insert(slot, slots);
    }

    fn leave(&mut self, slot: Slot, key: &Arc<str>, value: &Arc<str>) {
        let slots = self.known.len();
        let nodes = self.keys.get_mut(key).expect("a node is found by its labels");
        let before = nodes.any.len();
        nodes.any.remove(slot, slots);
        assert!(nodes.any.len() + 1 == before, "slot {slot} is not found by its label {key}");
        let with_value = nodes.values.get_mut(value).expect("a node is found by its labels");
        with_value.remove(slot, slots);
        if with_value.len() == 0 {
            nodes.values.remove(value);
        }
        if nodes.any.len() == 0 {
            self.keys.remove(key);
        }
    }

    fn any(&self, term: &Term) -> Option<&NodeSet> {
        self.keys.get(term.key.as_str()).map(|nodes| &nodes.any)
    }

    fn with_values<'a>(&'a self, term: &'a Term) -> impl Iterator<Item = &'a NodeSet> {
        let nodes = self.keys.get(term.key.as_str());
        term.values.iter().filter_map(move |value| nodes?.values.get(value.as_str()))
    }

    /// Returns an upper bound on the number of nodes for which the term holds. `None` if it can hold without
    /// the label.
    pub(crate) fn count(&self, term: &Term) -> Option<usize> {
        match term.operator {
            Operator::In => Some(self.with_values(term).map(NodeSet::len).sum()),
            Operator::Exists | Operator::Greater | Operator::Less => {
                Some(self.any(term).map_or(0, NodeSet::len))
            }
            Operator::NotIn | Operator::NotExists => None,
        }
    }

    /// Returns the nodes for which a term holds. The term must need a label.
    fn holding(&self, term: &Term, looked_at: &mut LookedAt) -> Bits {
        let mut bits = Bits::default();
        match term.operator {
            Operator::In => self.with_values(term).for_each(|set| set.apply(&mut bits, true, looked_at)),
            Operator::Exists => {
                self.any(term).into_iter().for_each(|set| set.apply(&mut bits, true, looked_at));
            }
            Operator::Greater | Operator::Less => {
                let values = self.keys.get(term.key.as_str()).map(|nodes| &nodes.values);
                for (value, set) in values.into_iter().flatten() {
                    looked_at.nodes += 1;
                    if term.holds_for(Some(value)) {
                        set.apply(&mut bits, true, looked_at);
                    }
                }
            }
            Operator::NotIn | Operator::NotExists => unreachable!("such a term needs no label"),
        }
        assert!(bits.len() <= self.nodes.len(), "what is no node has a label");
        bits
    }

    /// Returns all nodes.
    pub(crate) fn all(&self) -> &Bits {
        &self.nodes
    }

    /// Returns the nodes for which the selector holds.
    pub(crate) fn members(&self, selector: &Selector, looked_at: &mut LookedAt) -> Bits {
        assert!(self.is_built, "the labels of nodes are looked up before they are known");
        let mut terms: Vec<(Option<usize>, &Term)> =
            selector.terms().iter().map(|term| (self.count(term), term)).collect();
        // Terms with the fewest nodes first, then those that exclude.
        terms.sort_by_key(|&(count, _)| count.unwrap_or(usize::MAX));
        let mut terms = terms.into_iter().peekable();
        let mut members = match terms.next_if(|(count, _)| count.is_some()) {
            Some((_, term)) => self.holding(term, looked_at),
            None => self.nodes.clone(),
        };
        looked_at.words += members.words();
        for (count, term) in terms {
            if members.len() <= CHECKED_SINGLY_MAX {
                looked_at.nodes += members.len() as u64;
                let out: Vec<Slot> = members.iter().filter(|&slot| !self.holds(term, slot)).collect();
                out.into_iter().for_each(|slot| {
                    members.set(slot, false);
                });
            } else if count.is_some() {
                looked_at.words += members.words();
                members.intersect(&self.holding(term, looked_at));
            } else if term.operator == Operator::NotIn {
                self.with_values(term).for_each(|set| set.apply(&mut members, false, looked_at));
            } else {
                self.any(term).into_iter().for_each(|set| set.apply(&mut members, false, looked_at));
            }
        }
        assert!(members.len() <= self.nodes.len(), "what is no node is selected");
        members
    }

    fn holds(&self, term: &Term, slot: Slot) -> bool {
        let labels = self.known[slot as usize].as_ref().expect("a member is a node");
        term.holds_for(labels.get(&term.key))
    }

    /// Returns the bytes used, without the texts, which belong to the nodes.
    pub(crate) fn memory(&self) -> u64 {
        let of_key = |nodes: &KeyNodes| {
            let values = memory::of_btree(nodes.values.len(), size_of::<(Arc<str>, NodeSet)>());
            nodes.any.memory() + values + nodes.values.values().map(NodeSet::memory).sum::<u64>()
        };
        let keys = memory::of_btree(self.keys.len(), size_of::<(Arc<str>, KeyNodes)>());
        let sets = self.keys.values().map(of_key).sum::<u64>();
        keys + sets + self.nodes.memory() + memory::of_vec(&self.known)
    }

    /// Checks that every node is listed under exactly its labels.
    pub(crate) fn check(&self, nodes: &NodeTable) -> Result<(), Broken> {
        if !self.is_built {
            return Ok(());
        }
        let mut labels = 0;
        for (slot, hot, cold) in nodes.iter() {
            let own = &cold.registration.spec.labels;
            labels += own.len();
            if self.known.get(slot as usize).and_then(Option::as_ref) != Some(own)
                || !self.nodes.contains(slot)
            {
                return Err(broken!("node {} is not found by its labels", hot.id));
            }
        }
        let values = self.keys.values().flat_map(|nodes| nodes.values.values());
        let found: usize = values.map(NodeSet::len).sum();
        let keys: usize = self.keys.values().map(|nodes| nodes.any.len()).sum();
        if (self.nodes.len(), found, keys) == (nodes.len(), labels, labels) {
            return Ok(());
        }
        Err(broken!("{found} labels with values and {keys} without are found, nodes have {labels}"))
    }
}
