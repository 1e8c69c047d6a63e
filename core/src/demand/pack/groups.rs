//! Where the bundles of placement groups may go: one value of a label, or nodes that others of the group do not use.

use std::sync::Arc;

use super::{Meter, Outcome, Packer, Placed, Templates};
use crate::demand::items::{Item, Unit};
use crate::ids::NodeId;
use crate::index::Slot;
use crate::jobs::nodes::Unfit;
use crate::limits::PLAN_DOMAINS_MAX;

impl Packer<'_> {
    /// Places a unit on nodes with one value of a label: the one that the group has already, or any.
    pub(super) fn place_in_domain(
        &mut self,
        unit: &Unit,
        key: &str,
        wanted: &[u32],
        templates: &mut Templates,
        meter: &mut Meter,
    ) -> Outcome {
        let own = unit.domain_of.map(|node| self.value_on(node, key));
        let values = match own {
            None => self.values_of(key),
            Some(Some(value)) if unit.gang.is_none() => {
                return self.place_in(&unit.within(key, &value), wanted, Some(templates), meter);
            }
            Some(value) => value.into_iter().collect(),
        };
        let mut first = None;
        // What needs no node comes first.
        for adds in [false, true] {
            for value in &values {
                let templates = adds.then_some(&mut *templates);
                let outcome = self.place_in(&unit.within(key, value), wanted, templates, meter);
                if outcome.first_left().is_none() || meter.is_over() {
                    return outcome;
                }
                if adds {
                    first.get_or_insert(outcome);
                }
            }
        }
        // No node has the label.
        first.unwrap_or_else(|| Outcome { left: wanted.to_vec(), reason: Unfit::Gang, kept: None })
    }

    /// Returns the values of a label, on present nodes first.
    fn values_of(&mut self, key: &str) -> Vec<Arc<str>> {
        let mut values: Vec<Arc<str>> = self.copy.domain(key).values().keys().cloned().collect();
        for of_type in 0..self.request.types.len() {
            if let Some(value) = self.request.spec(of_type).labels.get(key)
                && !values.iter().any(|known| **known == *value)
            {
                values.push(value.into());
            }
        }
        values.truncate(PLAN_DOMAINS_MAX);
        values
    }

    /// Returns the value of a label on a node.
    fn value_on(&self, node: NodeId, key: &str) -> Option<Arc<str>> {
        let shard = self.copy.shard();
        shard.slot_of(node).and_then(|slot| shard.label_of(slot, key)).map(Into::into)
    }

    /// Hides the nodes that other bundles of an item's group have already, if they go to different nodes.
    pub(super) fn hide_taken(&mut self, item: &Item, meter: &mut Meter) {
        meter.charge(item.taken.len() as u64);
        for &node in item.taken.iter() {
            if let Some(slot) = self.copy.shard().slot_of(node) {
                self.copy.hide(slot);
            }
        }
    }

    /// Returns the nodes with bundles of a group that go to different nodes.
    pub(super) fn slots_of_group(&self, group: u32) -> Vec<Slot> {
        let has = |all: &[Placed]| all.iter().any(|placed| placed.item.apart == Some(group));
        self.placed.iter().filter(|(_, all)| has(all)).map(|(&slot, _)| slot).collect()
    }
}
