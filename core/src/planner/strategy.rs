//! Where the bundles of a group go: Ray's strategies, and rules over the values of a label.
//!
//! All of it takes by the shards' own search on the planner's copies. `Pack` takes the longest
//! stretch of bundles, largest first, that one node holds, then goes on with the rest; `Spread`
//! hides the nodes that are used and shows them again when no other is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::draft::{Draft, Replicas, Savepoint};
use super::spec::{Spreading, Strategy, TopologyRule};
use super::together::{Item, largest_first};
use crate::ids::NodeId;
use crate::index::Slot;
use crate::node::{Operator, Selector, Term};
use crate::request::PlacementRequest;

/// A bundle that stands already: its place in the group, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) shard: usize,
    pub(super) slot: Slot,
}

/// What is to be placed.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) strategy: Strategy,
    pub(super) topology: Option<TopologyRule>,
    /// The bundles to place.
    pub(super) items: Vec<Item>,
    /// The other bundles of the group.
    pub(super) standing: Vec<Standing>,
    /// At least so many of `items` are placed, or none.
    pub(super) least: usize,
}

/// The first bundle that found no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoPlace {
    pub(super) bundle: u32,
    /// How many others had found one.
    pub(super) placed: usize,
}

impl Replicas {
    /// Takes what is wanted.
    pub(super) fn plan(&mut self, mut wanted: Wanted, draft: &mut Draft) -> Result<(), NoPlace> {
        largest_first(&mut wanted.items);
        match wanted.topology.clone() {
            None => self.place(&wanted, &wanted.items, draft),
            Some(TopologyRule { key, spreading: Spreading::Pack { strict } }) => {
                self.pack_by_label(&wanted, &key, strict, draft)
            }
            Some(TopologyRule { key, spreading: Spreading::Spread { max_skew } }) => {
                self.spread_by_label(&wanted, &key, max_skew, draft)
            }
        }
    }

    fn place(&mut self, wanted: &Wanted, items: &[Item], draft: &mut Draft) -> Result<(), NoPlace> {
        let savepoint = draft.savepoint();
        let failed = match wanted.strategy {
            Strategy::Pack => self.pack(wanted, items, draft),
            Strategy::StrictPack => self.pack_strictly(wanted, items, draft),
            Strategy::Spread => self.spread(wanted, items, false, draft),
            Strategy::StrictSpread => self.spread(wanted, items, true, draft),
        };
        self.unhide_all();
        self.keep_enough(wanted, failed, draft, savepoint)
    }

    /// Keeps what was placed since the savepoint if it is as much as is wanted at least.
    fn keep_enough(
        &mut self,
        wanted: &Wanted,
        failed: Option<u32>,
        draft: &mut Draft,
        savepoint: Savepoint,
    ) -> Result<(), NoPlace> {
        let placed = draft.taken_since(savepoint);
        match failed {
            Some(bundle) if placed < wanted.least => {
                self.roll_back(draft, savepoint);
                Err(NoPlace { bundle, placed })
            }
            _ => Ok(()),
        }
    }

    /// Packs as many of `items` as find a place; the first that does not.
    fn pack(&mut self, wanted: &Wanted, items: &[Item], draft: &mut Draft) -> Option<u32> {
        let before = draft.taken.len();
        let mut rest: Vec<Item> = items.to_vec();
        for standing in &wanted.standing {
            let place = (standing.shard, standing.slot);
            rest.retain(|item| !self.take_on(draft, place, item.bundle, &item.request));
        }
        let mut failed = None;
        let mut rest = &rest[..];
        while !rest.is_empty() {
            let count = self.take_longest(draft, rest);
            if count == 0 {
                failed = failed.or(Some(rest[0].bundle));
                let most = draft.taken.len() - before + rest.len() - 1;
                if most < wanted.least {
                    return failed;
                }
            }
            rest = &rest[count.max(1)..];
        }
        failed
    }

    /// Takes the longest stretch of `items` from the first on that one node holds; how long it is.
    fn take_longest(&mut self, draft: &mut Draft, items: &[Item]) -> usize {
        if self.take_together(draft, items) {
            return items.len();
        }
        let savepoint = draft.savepoint();
        let (mut held, mut beyond) = (0, items.len());
        while held + 1 < beyond {
            let middle = held.midpoint(beyond);
            if self.take_together(draft, &items[..middle]) {
                self.roll_back(draft, savepoint);
                held = middle;
            } else {
                beyond = middle;
            }
        }
        if held > 0 && !self.take_together(draft, &items[..held]) {
            // Another draw of the shard to begin with, where devices do not fit: one fits surely less often.
            return usize::from(self.take_together(draft, &items[..1]));
        }
        held
    }

    /// Packs all of `items`, or the longest stretch of at least as many as wanted, on one node.
    fn pack_strictly(&mut self, wanted: &Wanted, items: &[Item], draft: &mut Draft) -> Option<u32> {
        if let Some(standing) = wanted.standing.first() {
            let place = (standing.shard, standing.slot);
            let mut failed = None;
            for item in items {
                if !self.take_on(draft, place, item.bundle, &item.request) {
                    failed = failed.or(Some(item.bundle));
                }
            }
            return failed;
        }
        let held = self.take_longest(draft, items);
        items.get(held).map(|item| item.bundle)
    }

    /// Places each of `items` on a node of its own, or where that cannot be and is not strict, on
    /// those with fewest; the first that finds no place.
    fn spread(&mut self, wanted: &Wanted, items: &[Item], strict: bool, draft: &mut Draft) -> Option<u32> {
        for standing in &wanted.standing {
            self.hide(standing.shard, standing.slot);
        }
        let mut failed = None;
        for item in items {
            let mut placed = self.take(draft, item.bundle, &item.request);
            if !placed && !strict {
                // Every node that could hold it has one: another round over all of them.
                self.unhide_all();
                placed = self.take(draft, item.bundle, &item.request);
            }
            if placed {
                let taken = *draft.taken.last().expect("just taken");
                self.hide(taken.shard, taken.slot);
            } else {
                failed = failed.or(Some(item.bundle));
            }
        }
        failed
    }

    fn pack_by_label(
        &mut self,
        wanted: &Wanted,
        key: &Arc<str>,
        strict: bool,
        draft: &mut Draft,
    ) -> Result<(), NoPlace> {
        let standing = wanted.standing.first();
        let standing = standing.and_then(|s| self.copies[s.shard].shard().label_of(s.slot, key));
        let values: Vec<Arc<str>> = match standing {
            Some(value) => vec![Arc::from(value)],
            None => self.values_of(key).into_keys().collect(),
        };
        let mut failed = NoPlace { bundle: wanted.items[0].bundle, placed: 0 };
        for value in values {
            let items: Vec<Item> = wanted.items.iter().map(|item| self.within(item, key, &value)).collect();
            match self.place(wanted, &items, draft) {
                Ok(()) => return Ok(()),
                Err(here) if here.placed >= failed.placed => failed = here,
                Err(_) => {}
            }
        }
        if strict { Err(failed) } else { self.place(wanted, &wanted.items, draft) }
    }

    /// Bundle after bundle goes to the value that has the fewest, as long as the skew allows.
    fn spread_by_label(
        &mut self,
        wanted: &Wanted,
        key: &Arc<str>,
        max_skew: u32,
        draft: &mut Draft,
    ) -> Result<(), NoPlace> {
        let savepoint = draft.savepoint();
        let mut counts: BTreeMap<Arc<str>, u32> = self.values_of(key);
        let count_of = |counts: &mut BTreeMap<Arc<str>, u32>, value: Option<&str>| {
            if let Some(count) = value.and_then(|value| counts.get_mut(value)) {
                *count += 1;
            }
        };
        let spreads = matches!(wanted.strategy, Strategy::Spread | Strategy::StrictSpread);
        for standing in &wanted.standing {
            count_of(&mut counts, self.copies[standing.shard].shard().label_of(standing.slot, key));
            if spreads {
                self.hide(standing.shard, standing.slot);
            }
        }
        let mut failed = None;
        for item in &wanted.items {
            let least = counts.values().copied().min().unwrap_or(0);
            let mut order: Vec<(u32, Arc<str>)> = counts.iter().map(|(v, &c)| (c, Arc::clone(v))).collect();
            order.retain(|&(count, _)| count + 1 - least <= max_skew);
            order.sort();
            let placed = order.iter().find(|(_, value)| {
                let item = self.within(item, key, value);
                self.take(draft, item.bundle, &item.request)
            });
            match placed {
                Some((_, value)) => {
                    count_of(&mut counts, Some(value));
                    let taken = *draft.taken.last().expect("just taken");
                    if spreads {
                        self.hide(taken.shard, taken.slot);
                    }
                }
                None => failed = failed.or(Some(item.bundle)),
            }
        }
        self.unhide_all();
        self.keep_enough(wanted, failed, draft, savepoint)
    }

    /// The values of a label on nodes that take new work, each with a zero.
    fn values_of(&self, key: &str) -> BTreeMap<Arc<str>, u32> {
        let mut values = BTreeMap::new();
        for copy in &self.copies {
            for (_, value) in copy.shard().label_values(key) {
                if !values.contains_key(value) {
                    values.insert(Arc::from(value), 0);
                }
            }
        }
        values
    }

    /// The same bundle, on nodes with that value of the label only.
    fn within(&self, item: &Item, key: &str, value: &Arc<str>) -> Item {
        let term = Term { key: key.to_owned(), operator: Operator::In, values: vec![value.to_string()] };
        let mut request: PlacementRequest = (*item.request).clone();
        if request.fallbacks().is_empty() {
            let terms = request.selector.as_ref().map_or(&[][..], |selector| selector.terms());
            request.selector = Some(Arc::new(Selector::new([terms, &[term]].concat())));
        } else {
            // Each of its selectors would need the term: name the nodes instead.
            let named = request.candidates.as_deref();
            let mut ids: Vec<NodeId> = Vec::new();
            for copy in &self.copies {
                let there = copy.shard().label_values(key).filter(|(_, label)| *label == &**value);
                ids.extend(there.filter_map(|(slot, _)| copy.shard().node_at(slot)));
            }
            ids.retain(|id| named.is_none_or(|named| named.binary_search(id).is_ok()));
            ids.sort_unstable();
            request.candidates = Some(ids.into());
        }
        Item { bundle: item.bundle, request: Arc::new(request) }
    }
}
