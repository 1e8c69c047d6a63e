//! Rules over the values of a label: all bundles on one value, or spread over them within a skew.
//!
//! Counted are the values of nodes that take new work and where at least one bundle of the group may
//! stand (Kubernetes' `nodeAffinityPolicy: Honor`, its default): a value that every selector excludes
//! keeps nothing back.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::draft::{Draft, Replicas};
use super::spec::Strategy;
use super::strategy::{NoPlace, Wanted};
use super::together::Item;
use super::used::Used;
use crate::ids::NodeId;
use crate::node::{Operator, Selector, Term};
use crate::request::PlacementRequest;

/// One value of the label while bundles are spread over them.
struct Level {
    name: Arc<str>,
    /// Bundles of the group on its nodes.
    count: u32,
    /// Where those are, if nodes are to be used once as far as can be.
    used: Used,
    /// By class: how far what it asks can still be had here.
    room: Vec<Room>,
}

/// What there is for a class of bundles on one value. It only becomes less while a plan is made.
#[derive(Clone)]
enum Room {
    /// Not looked at.
    Unknown,
    /// By this request, which is that of the class on nodes with the value only.
    Unused(Arc<PlacementRequest>),
    /// Only on nodes that are used already.
    Used(Arc<PlacementRequest>),
    /// None.
    Full,
}

/// Bundles that are being spread.
struct Levels<'a> {
    key: &'a str,
    strategy: Strategy,
    levels: Vec<Level>,
    /// The different requests.
    classes: Vec<Arc<PlacementRequest>>,
}

impl Levels<'_> {
    fn least(&self) -> u32 {
        self.levels.iter().map(|level| level.count).min().unwrap_or(0)
    }

    /// The values that one more bundle may go to, those with fewest first.
    fn open(&self, max_skew: u32) -> Vec<usize> {
        let least = self.least();
        let open = |at: &usize| self.levels[*at].count + 1 - least <= max_skew;
        let mut order: Vec<usize> = (0..self.levels.len()).filter(open).collect();
        order.sort_by_key(|&at| self.levels[at].count);
        order
    }

    fn find(&self, name: Option<&str>) -> Option<usize> {
        let name = name?;
        self.levels.binary_search_by(|level| (*level.name).cmp(name)).ok()
    }
}

impl Replicas {
    pub(super) fn pack_by_label(
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
            None => self.values_of(wanted, key).into_keys().collect(),
        };
        let mut failed = NoPlace::of(wanted.items[0].bundle);
        for value in values {
            let items = self.all_within(&wanted.items, key, &value);
            let Err(here) = self.place(wanted, &items, draft) else { return Ok(()) };
            if here.placed > failed.placed || failed.at.is_none() {
                let placed = u32::try_from(here.placed).expect("GROUP_BUNDLES_MAX fits u32");
                failed = NoPlace { at: Some((value, placed)), ..here };
            }
        }
        if strict { Err(failed) } else { self.place(wanted, &wanted.items, draft) }
    }

    /// Bundle after bundle goes to the value that has the fewest, as long as the skew allows. One that
    /// finds no place is tried again when the fewest are more, since then the skew allows more.
    pub(super) fn spread_by_label(
        &mut self,
        wanted: &Wanted,
        key: &Arc<str>,
        max_skew: u32,
        draft: &mut Draft,
    ) -> Result<(), NoPlace> {
        let savepoint = draft.savepoint();
        let (mut levels, of_class) = self.levels(wanted, key);
        let mut pending: Vec<usize> = (0..wanted.items.len()).collect();
        let mut waits = vec![false; levels.classes.len()];
        while let Some(next) = pending.iter().position(|&item| !waits[of_class[item]]) {
            let item = pending[next];
            let least = levels.least();
            if self.take_on_level(draft, &mut levels, max_skew, (of_class[item], wanted.items[item].bundle)) {
                pending.remove(next);
                if levels.least() > least {
                    waits.fill(false);
                }
            } else {
                waits[of_class[item]] = true;
            }
        }
        self.unhide_all();
        let failed = pending.first().map(|&item| wanted.items[item].bundle);
        self.keep_enough(wanted, failed, draft, savepoint).map_err(|no_place| {
            let least = levels.levels.iter().min_by_key(|level| level.count);
            NoPlace { at: least.map(|level| (Arc::clone(&level.name), level.count)), ..no_place }
        })
    }

    /// The values with what stands there, hidden where nodes are to be used once; and the class of each item.
    fn levels<'a>(&mut self, wanted: &Wanted, key: &'a str) -> (Levels<'a>, Vec<usize>) {
        let mut classes: Vec<Arc<PlacementRequest>> = Vec::new();
        let mut class_of = |item: &Item| {
            let same = |known: &Arc<_>| Arc::ptr_eq(known, &item.request) || *known == item.request;
            // Largest first, so the last is the likeliest.
            classes.iter().rposition(same).unwrap_or_else(|| {
                classes.push(Arc::clone(&item.request));
                classes.len() - 1
            })
        };
        let of_class: Vec<usize> = wanted.items.iter().map(&mut class_of).collect();
        let room = vec![Room::Unknown; classes.len()];
        let values = self.values_of(wanted, key).into_keys();
        let level = |name| Level { name, count: 0, used: Used::default(), room: room.clone() };
        let levels = values.map(level).collect();
        let mut levels = Levels { key, strategy: wanted.strategy, levels, classes };
        for standing in &wanted.standing {
            let value = self.copies[standing.shard].shard().label_of(standing.slot, key);
            let at = levels.find(value);
            self.count_on_level(&mut levels, at, (standing.shard, standing.slot));
        }
        (levels, of_class)
    }

    fn count_on_level(&mut self, levels: &mut Levels<'_>, at: Option<usize>, place: (usize, u32)) {
        let spreads = matches!(levels.strategy, Strategy::Spread | Strategy::StrictSpread);
        if spreads {
            self.hide(place.0, place.1);
        }
        if let Some(at) = at {
            levels.levels[at].count += 1;
            if spreads {
                levels.levels[at].used.add(place);
            }
        }
    }

    /// Takes a bundle of that class on a value that may have one more: on an unused node of any, then, where
    /// the strategy allows it, on a used one.
    fn take_on_level(
        &mut self,
        draft: &mut Draft,
        levels: &mut Levels<'_>,
        max_skew: u32,
        (class, bundle): (usize, u32),
    ) -> bool {
        let open = levels.open(max_skew);
        for &at in &open {
            if let Room::Unknown = levels.levels[at].room[class] {
                let within = self.within(&levels.classes[class], levels.key, &levels.levels[at].name);
                levels.levels[at].room[class] = Room::Unused(within);
            }
            let Room::Unused(request) = &levels.levels[at].room[class] else { continue };
            let request = Arc::clone(request);
            if self.take(draft, bundle, &request) {
                let taken = *draft.taken.last().expect("just taken");
                self.count_on_level(levels, Some(at), (taken.shard, taken.slot));
                return true;
            }
            let soft = levels.strategy == Strategy::Spread;
            levels.levels[at].room[class] = if soft { Room::Used(request) } else { Room::Full };
        }
        for &at in &open {
            let Room::Used(request) = &levels.levels[at].room[class] else { continue };
            let request = Arc::clone(request);
            if self.take_used(draft, &levels.levels[at].used, bundle, &request) {
                let taken = *draft.taken.last().expect("just taken");
                self.count_on_level(levels, Some(at), (taken.shard, taken.slot));
                return true;
            }
            levels.levels[at].room[class] = Room::Full;
        }
        false
    }

    /// The values of the label on nodes that take new work and where a bundle of the group may stand, each
    /// with a zero: a pass over the nodes for each selector that differs.
    pub(super) fn values_of(&mut self, wanted: &Wanted, key: &str) -> BTreeMap<Arc<str>, u32> {
        let mut asked: Vec<&PlacementRequest> = Vec::new();
        for request in wanted.items.iter().map(|item| &item.request).chain(&wanted.settled) {
            if !asked.iter().rev().any(|known| same_nodes(known, request)) {
                asked.push(request);
            }
        }
        let mut values = BTreeMap::new();
        for request in asked {
            for copy in &mut self.copies {
                copy.shard_mut().values_open_to(key, request, &mut values);
            }
        }
        values
    }

    /// The same bundles, on nodes with that value of the label only.
    fn all_within(&self, items: &[Item], key: &str, value: &Arc<str>) -> Vec<Item> {
        let mut last: Option<(&Arc<PlacementRequest>, Arc<PlacementRequest>)> = None;
        let mut placed = Vec::with_capacity(items.len());
        for item in items {
            let request = match &last {
                Some((asked, request)) if Arc::ptr_eq(asked, &item.request) => Arc::clone(request),
                _ => self.within(&item.request, key, value),
            };
            last = Some((&item.request, Arc::clone(&request)));
            placed.push(Item { bundle: item.bundle, request });
        }
        placed
    }

    /// The same request, on nodes with that value of the label only.
    fn within(&self, asked: &PlacementRequest, key: &str, value: &Arc<str>) -> Arc<PlacementRequest> {
        let term = Term { key: key.to_owned(), operator: Operator::In, values: vec![value.to_string()] };
        let mut request: PlacementRequest = asked.clone();
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
        Arc::new(request)
    }
}

/// Whether both may stand on the same nodes, as far as labels, taints and names go; "no" where that takes
/// more than a look.
fn same_nodes(a: &PlacementRequest, b: &PlacementRequest) -> bool {
    std::ptr::eq(a, b)
        || a.selector == b.selector
            && a.candidates == b.candidates
            && a.preferences == b.preferences
            && (a.demand.gpu.units() == 0) == (b.demand.gpu.units() == 0)
}
