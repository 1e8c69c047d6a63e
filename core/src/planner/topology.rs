//! Rules over the values of a label: all bundles on one value, or spread over the values within a skew.
//!
//! Only the values of nodes count that take new work and suit at least one bundle of the group. This matches
//! the default of Kubernetes (`nodeAffinityPolicy: Honor`): a value that every selector excludes does not
//! limit the others.
//!
//! There may be as many values as nodes, for example for a rule over host names. So a value is searched only
//! if a look at its nodes finds room. The facts about all values are computed once for many plans.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::colocate::Item;
use super::draft::{Draft, Place, Replicas};
use super::strategy::{NoPlace, Wanted};
use super::used::Used;
use crate::group::Strategy;
use crate::ids::NodeId;
use crate::index::Slot;
use crate::limits::RULE_NODES_NAMED_MAX;
use crate::node::{Operator, Selector, Term};
use crate::replica::Replica;
use crate::request::PlacementRequest;
use crate::resource::Demand;

/// The number of remembered results for open values.
const OPEN_VALUES_KEPT_MAX: usize = 16;
/// The most distinct demands for which the nodes of a value are checked individually.
const DEMANDS_LOOKED_AT_MAX: usize = 4;

/// The values that were open to groups. They depend on the nodes, not on what runs there.
#[derive(Default)]
pub(super) struct OpenValues {
    /// Most recently used last.
    kept: Vec<Open>,
}

struct Open {
    key: Arc<str>,
    asked: Vec<Arc<PlacementRequest>>,
    shape: u64,
    values: Arc<Values>,
}

/// The values of a label in order, each with all its nodes.
#[derive(Default)]
pub(super) struct Values {
    pub(super) names: Vec<Arc<str>>,
    /// The end of each value's range in `nodes`.
    ends: Vec<usize>,
    nodes: Vec<(u32, Slot)>,
}

impl Values {
    /// Returns the nodes of a value as pairs of replica and slot, grouped by replica.
    fn nodes(&self, at: usize) -> &[(u32, Slot)] {
        let from = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.nodes[from..self.ends[at]]
    }

    fn add(&mut self, name: Arc<str>, copies: &mut [Replica], key: &str) {
        for (copy, replica) in (0u32..).zip(copies) {
            self.nodes.extend(replica.domain(key).slots(&name).map(|slot| (copy, slot)));
        }
        self.ends.push(self.nodes.len());
        self.names.push(name);
    }
}

/// The state of spreading bundles over the values of a label. Values are named by their index.
struct Levels {
    key: Arc<str>,
    strategy: Strategy,
    values: Arc<Values>,
    /// The number of bundles of the group on each value.
    counts: Vec<u32>,
    /// The number of values without bundles.
    empty: usize,
    /// The values with bundles, fewest first.
    begun: BTreeSet<(u32, usize)>,
    /// The used nodes of these values, if the strategy spreads over nodes.
    used: BTreeMap<usize, Used>,
    classes: Vec<Class>,
}

/// Bundles with the same request, and where it may still fit. Capacity only decreases while a plan is made.
struct Class {
    request: Arc<PlacementRequest>,
    /// The request restricted to the nodes of one value.
    within: BTreeMap<usize, Arc<PlacementRequest>>,
    /// No empty value before this one has room.
    first_empty: usize,
    /// Values with bundles where no unused node has room, and those where no node at all has room.
    spent: BTreeSet<usize>,
    full: BTreeSet<usize>,
}

impl Levels {
    /// Returns the number of bundles on the value with the fewest.
    fn least(&self) -> u32 {
        match self.begun.first() {
            Some(&(count, _)) if self.empty == 0 => count,
            _ => 0,
        }
    }

    /// Returns the value with the fewest bundles.
    fn lowest(&self) -> Option<usize> {
        match self.empty {
            0 => self.begun.first().map(|&(_, at)| at),
            _ => self.counts.iter().position(|&count| count == 0),
        }
    }

    /// Returns the values with bundles that may get one more, fewest first.
    fn open(&self, max_skew: u32) -> impl Iterator<Item = usize> {
        let most = self.least().saturating_add(max_skew);
        self.begun.iter().take_while(move |&&(count, _)| count < most).map(|&(_, at)| at)
    }

    fn find(&self, name: Option<&str>) -> Option<usize> {
        let name = name?;
        self.values.names.binary_search_by(|level| (**level).cmp(name)).ok()
    }

    fn count(&mut self, at: usize) {
        let count = &mut self.counts[at];
        match *count {
            0 => self.empty -= 1,
            before => assert!(self.begun.remove(&(before, at)), "a value with bundles is among the begun"),
        }
        *count += 1;
        self.begun.insert((*count, at));
    }
}

/// The least that a value must have free, by sums: cpu, memory and devices, in units.
struct Floor {
    needed: [i128; 3],
    demands: Vec<Demand>,
}

impl Floor {
    /// Returns `None` if a bundle has an owner. Capacity that is reserved for the owner may serve then.
    fn of(wanted: &Wanted) -> Option<Self> {
        if wanted.items.iter().any(|item| item.request.owner.is_some()) {
            return None;
        }
        let part = |of: fn(&Demand) -> i64| -> i128 {
            let mut parts: Vec<i64> = wanted.items.iter().map(|item| of(&item.request.demand)).collect();
            parts.sort_unstable();
            parts.iter().take(wanted.least).map(|&units| i128::from(units)).sum()
        };
        let needed = [
            part(|demand| demand.cpu.units()),
            part(|demand| demand.memory.units()),
            part(|d| d.gpu.units()),
        ];
        let mut demands: Vec<Demand> = Vec::new();
        for item in &wanted.items {
            if !demands.contains(&item.request.demand) {
                demands.push(item.request.demand.clone());
            }
            if demands.len() > DEMANDS_LOOKED_AT_MAX {
                demands = vec![Demand::default()];
                break;
            }
        }
        Some(Self { needed, demands })
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
        let standing = standing.and_then(|&(shard, slot)| self.copies[shard].shard().label_of(slot, key));
        let (values, floor) = match standing.map(Arc::from) {
            Some(value) => {
                let mut values = Values::default();
                values.add(value, &mut self.copies, key);
                (Arc::new(values), None)
            }
            None => match self.values_of(wanted, key) {
                Some(values) => (values, Floor::of(wanted)),
                None => return Err(NoPlace::of(wanted.items[0].bundle)),
            },
        };
        let mut failed = NoPlace::of(wanted.items[0].bundle);
        let mut fullest: Option<(i128, usize)> = None;
        for at in 0..values.names.len() {
            if self.meter.is_spent() {
                return Err(failed);
            }
            let share = floor.as_ref().map_or(ENOUGH, |floor| self.share_of(values.nodes(at), floor));
            if share < ENOUGH {
                if fullest.is_none_or(|(most, _)| share > most) {
                    fullest = Some((share, at));
                }
                continue;
            }
            if self.pack_on_value(wanted, (key, &values, at), draft, &mut failed) {
                return Ok(());
            }
        }
        // The caller reports the value with the most free capacity and how far it gets.
        if let Some((_, at)) = fullest
            && self.pack_on_value(wanted, (key, &values, at), draft, &mut failed)
        {
            return Ok(());
        }
        if strict { Err(failed) } else { self.place(wanted, &wanted.items, draft) }
    }

    /// Returns whether all bundles found a place on that value. `failed` tracks the value that got furthest.
    fn pack_on_value(
        &mut self,
        wanted: &Wanted,
        (key, values, at): (&str, &Values, usize),
        draft: &mut Draft,
        failed: &mut NoPlace,
    ) -> bool {
        let items = self.all_within(&wanted.items, (key, values, at));
        self.search_copies_of(values.nodes(at));
        let placed = self.place(wanted, &items, draft);
        self.search_only(None);
        let Err(here) = placed else { return true };
        if here.placed > failed.placed || failed.at.is_none() {
            let placed = u32::try_from(here.placed).expect("GROUP_BUNDLES_MAX fits u32");
            *failed = NoPlace { at: Some((Arc::clone(&values.names[at]), placed)), ..here };
        }
        false
    }

    /// Returns the free share of the minimum, in thousandths. Below 1,000, it is too little.
    fn share_of(&self, nodes: &[(u32, Slot)], floor: &Floor) -> i128 {
        self.meter.charge(nodes.len() as u64);
        let mut free = [0; 3];
        for &(copy, slot) in nodes {
            let shard = self.copies[copy as usize].shard();
            if shard.is_ready(slot) && floor.demands.iter().any(|demand| shard.has_room(slot, demand)) {
                free.iter_mut().zip(shard.free_on(slot)).for_each(|(sum, free)| *sum += i128::from(free));
            }
        }
        let needed = floor.needed.iter().zip(free).filter(|&(&needed, _)| needed > 0);
        needed.map(|(&needed, free)| free * ENOUGH / needed).min().unwrap_or(ENOUGH)
    }

    /// Restricts later searches to the replicas that have some of `nodes`.
    fn search_copies_of(&mut self, nodes: &[(u32, Slot)]) {
        let mut searched = vec![false; self.copies.len()];
        nodes.iter().for_each(|&(copy, _)| searched[copy as usize] = true);
        self.search_only(Some(searched.into()));
    }

    /// Places bundle after bundle on the value with the fewest, within the skew. A bundle without a place is
    /// tried again when the smallest count has grown, because the skew then allows more.
    pub(super) fn spread_by_label(
        &mut self,
        wanted: &Wanted,
        key: &Arc<str>,
        max_skew: u32,
        draft: &mut Draft,
    ) -> Result<(), NoPlace> {
        let savepoint = draft.len();
        let Some((mut levels, of_class)) = self.levels(wanted, key) else {
            return Err(NoPlace::of(wanted.items[0].bundle));
        };
        let mut pending: Vec<usize> = (0..wanted.items.len()).collect();
        let mut waits = vec![false; levels.classes.len()];
        while let Some(next) = pending.iter().position(|&item| !waits[of_class[item]])
            && !self.meter.is_spent()
        {
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
            let at = levels.lowest().map(|at| (Arc::clone(&levels.values.names[at]), levels.counts[at]));
            NoPlace { at, ..no_place }
        })
    }

    /// Returns the values with the group's placed bundles, and the class of each item. Used nodes are hidden
    /// if the strategy spreads over nodes. `None` if the search was given up before the values were known.
    fn levels(&mut self, wanted: &Wanted, key: &Arc<str>) -> Option<(Levels, Vec<usize>)> {
        let mut classes: Vec<Class> = Vec::new();
        let mut class_of = |Item { request, .. }: &Item| {
            let same = |known: &Class| Arc::ptr_eq(&known.request, request) || known.request == *request;
            // Items are sorted by size, so the last class is the likeliest.
            classes.iter().rposition(same).unwrap_or_else(|| {
                let within = BTreeMap::new();
                let request = Arc::clone(request);
                let spent = BTreeSet::new();
                let full = BTreeSet::new();
                classes.push(Class { request, within, first_empty: 0, spent, full });
                classes.len() - 1
            })
        };
        let of_class: Vec<usize> = wanted.items.iter().map(&mut class_of).collect();
        let values = self.values_of(wanted, key)?;
        self.meter.charge(values.names.len() as u64);
        let counts = vec![0; values.names.len()];
        let empty = values.names.len();
        let (begun, used, key, strategy) =
            (BTreeSet::new(), BTreeMap::new(), Arc::clone(key), wanted.strategy);
        let mut levels = Levels { key, strategy, values, counts, empty, begun, used, classes };
        for &(shard, slot) in &wanted.standing {
            let value = self.copies[shard].shard().label_of(slot, &levels.key);
            let at = levels.find(value);
            self.count_on_level(&mut levels, at, (shard, slot));
        }
        Some((levels, of_class))
    }

    fn count_on_level(&mut self, levels: &mut Levels, at: Option<usize>, place: Place) {
        let spreads = matches!(levels.strategy, Strategy::Spread | Strategy::StrictSpread);
        if spreads {
            self.hide(place);
        }
        if let Some(at) = at {
            levels.count(at);
            if spreads && !self.is_left_out(place) {
                levels.used.entry(at).or_default().add(place);
            }
        }
    }

    /// Places a bundle of a class on a value that may have one more. Tries unused nodes of all values first,
    /// then used nodes if the strategy allows it.
    fn take_on_level(
        &mut self,
        draft: &mut Draft,
        levels: &mut Levels,
        max_skew: u32,
        (class, bundle): (usize, u32),
    ) -> bool {
        // One more bundle on an empty value is within every skew.
        while levels.empty > 0 && levels.classes[class].first_empty < levels.counts.len() {
            if self.meter.is_spent() {
                return false;
            }
            self.meter.charge(1);
            let at = levels.classes[class].first_empty;
            if levels.counts[at] == 0 && self.take_unused(draft, levels, at, (class, bundle)) {
                return true;
            }
            levels.classes[class].first_empty += 1;
        }
        let open: Vec<usize> = levels.open(max_skew).collect();
        self.meter.charge(open.len() as u64);
        for &at in &open {
            if self.meter.is_spent() {
                return false;
            }
            if levels.classes[class].spent.contains(&at) {
                continue;
            }
            if self.take_unused(draft, levels, at, (class, bundle)) {
                return true;
            }
            levels.classes[class].spent.insert(at);
        }
        if levels.strategy != Strategy::Spread {
            return false;
        }
        for at in open {
            if self.meter.is_spent() {
                return false;
            }
            if levels.classes[class].full.contains(&at) || !levels.used.contains_key(&at) {
                continue;
            }
            let request = self.request_within(levels, at, class);
            self.search_copies_of(levels.values.nodes(at));
            let placed = self.take_used(draft, &levels.used[&at], bundle, &request);
            self.search_only(None);
            if placed {
                let taken = *draft.last().expect("just taken");
                self.count_on_level(levels, Some(at), (taken.shard, taken.slot));
                return true;
            }
            levels.classes[class].full.insert(at);
        }
        false
    }

    /// Takes a bundle on a node of that value that is not hidden.
    fn take_unused(
        &mut self,
        draft: &mut Draft,
        levels: &mut Levels,
        at: usize,
        (class, bundle): (usize, u32),
    ) -> bool {
        let request = &levels.classes[class].request;
        let nodes = levels.values.nodes(at);
        self.meter.charge(nodes.len() as u64);
        let has_room = |&(copy, slot): &(u32, Slot)| {
            let shard = self.copies[copy as usize].shard();
            shard.is_ready(slot) && shard.has_room(slot, &request.demand)
        };
        if request.owner.is_none() && !nodes.iter().any(has_room) {
            return false;
        }
        self.search_copies_of(nodes);
        let request = self.request_within(levels, at, class);
        let placed = self.take(draft, bundle, &request);
        self.search_only(None);
        if placed {
            let taken = *draft.last().expect("just taken");
            self.count_on_level(levels, Some(at), (taken.shard, taken.slot));
        }
        placed
    }

    fn request_within(&mut self, levels: &mut Levels, at: usize, class: usize) -> Arc<PlacementRequest> {
        let value = (&*levels.key, &*levels.values, at);
        let class = &mut levels.classes[class];
        let within = class.within.entry(at).or_insert_with(|| self.within(&class.request, value));
        Arc::clone(within)
    }

    /// Returns, in order, the values of the label on nodes that take new work and suit a bundle of the group.
    /// `None` if the search was given up before all were known.
    pub(super) fn values_of(&mut self, wanted: &Wanted, key: &Arc<str>) -> Option<Arc<Values>> {
        let mut asked: Vec<&Arc<PlacementRequest>> = Vec::new();
        for request in wanted.items.iter().map(|item| &item.request).chain(&wanted.settled) {
            if !asked.iter().rev().any(|known| same_nodes(known, request)) {
                asked.push(request);
            }
        }
        let shape = self.shape();
        let is_same = |open: &Open| {
            open.key == *key
                && open.asked.len() == asked.len()
                && open.asked.iter().zip(&asked).all(|(a, b)| same_nodes(a, b))
        };
        if let Some(at) = self.open_values.kept.iter().position(is_same) {
            let open = self.open_values.kept.remove(at);
            if open.shape == shape {
                let values = Arc::clone(&open.values);
                self.open_values.kept.push(open);
                return Some(values);
            }
        }
        let mut names = Vec::new();
        for request in &asked {
            for shard in 0..self.copies.len() {
                if self.meter.is_spent() {
                    return None;
                }
                let looked_at = self.search(shard, |copy| copy.values_open_to(key, request, &mut names));
                self.meter.charge(looked_at as u64);
            }
        }
        // The names consist of sorted runs, which the stable sort merges.
        names.sort();
        names.dedup();
        let mut values = Values::default();
        names.into_iter().for_each(|name| values.add(name, &mut self.copies, key));
        let values = Arc::new(values);
        if self.open_values.kept.len() == OPEN_VALUES_KEPT_MAX {
            self.open_values.kept.remove(0);
        }
        let asked = asked.into_iter().cloned().collect();
        self.open_values.kept.push(Open { key: Arc::clone(key), asked, shape, values: Arc::clone(&values) });
        Some(values)
    }

    /// Restricts all items to the nodes with that value of the label.
    fn all_within(&self, items: &[Item], value: (&str, &Values, usize)) -> Vec<Item> {
        let mut last: Option<(&Arc<PlacementRequest>, Arc<PlacementRequest>)> = None;
        let mut placed = Vec::with_capacity(items.len());
        for item in items {
            let request = match &last {
                Some((asked, request)) if Arc::ptr_eq(asked, &item.request) => Arc::clone(request),
                _ => self.within(&item.request, value),
            };
            last = Some((&item.request, Arc::clone(&request)));
            placed.push(Item { bundle: item.bundle, request });
        }
        placed
    }

    /// Restricts a request to the nodes with that value of the label. Names the nodes, or selects them by the
    /// label if there are many.
    fn within(
        &self,
        asked: &PlacementRequest,
        (key, values, at): (&str, &Values, usize),
    ) -> Arc<PlacementRequest> {
        let mut request: PlacementRequest = asked.clone();
        let nodes = values.nodes(at);
        self.meter.charge(nodes.len().min(RULE_NODES_NAMED_MAX) as u64);
        if nodes.len() > RULE_NODES_NAMED_MAX && request.fallbacks().is_empty() {
            let value = values.names[at].to_string();
            let term = Term { key: key.to_owned(), operator: Operator::In, values: vec![value] };
            let terms = request.selector.as_ref().map_or(&[][..], |selector| selector.terms());
            request.selector = Some(Arc::new(Selector::new([terms, &[term]].concat())));
            return Arc::new(request);
        }
        let named = request.candidates.as_deref();
        let id = |&(copy, slot): &(u32, Slot)| self.copies[copy as usize].shard().node_at(slot);
        let mut ids: Vec<NodeId> = nodes.iter().filter_map(id).collect();
        ids.retain(|id| named.is_none_or(|named| named.binary_search(id).is_ok()));
        ids.sort_unstable();
        request.candidates = Some(ids.into());
        Arc::new(request)
    }
}

/// The full minimum, in the thousandths of [`Replicas::share_of`].
const ENOUGH: i128 = 1_000;

/// Returns whether two requests suit the same nodes, by labels, taints and names. May return `false` for
/// requests that would need a closer look.
fn same_nodes(a: &PlacementRequest, b: &PlacementRequest) -> bool {
    std::ptr::eq(a, b)
        || a.selector == b.selector
            && a.candidates == b.candidates
            && a.preferences == b.preferences
            && (a.demand.gpu.units() == 0) == (b.demand.gpu.units() == 0)
}

#[cfg(test)]
mod tests;
