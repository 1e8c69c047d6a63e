//! Upper bounds on the number of bundles that nodes could hold if nothing ran there. If a bound is below the
//! number that must be placed, the group is infeasible. The bounds do not depend on what runs now.
//!
//! One pass over the nodes makes *patches*: nodes with the same value of the label that could hold the same
//! requests. All bounds are computed over patches:
//!
//! - sums, also over the nodes that some bundles are confined to
//! - the number of bundles of each request, and of any mix, that each node holds
//! - distinct nodes by Hall's theorem (a maximal flow from requests to patches)
//!
//! Another node never lowers a bound. So the pass ends as soon as no bound of the nodes so far excludes the
//! group, mostly after a few hundred nodes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::capacity::{Capacity, Measure, Occupant};
use super::draft::Replicas;
use super::flow::assign;
use super::strategy::Wanted;
use super::work::LOOKS_PER_UNIT;
use crate::group::Strategy;
use crate::index::Slot;
use crate::limits::PROOF_FLOW_MAX;
use crate::request::PlacementRequest;
use crate::resource::{Demand, ResourceKind};

/// The number of distinct requests that have a class of their own. Further ones may share a last class
/// without demands.
const CLASSES_MAX: usize = 63;
/// The slots of each shard that are looked at first. The number doubles until nothing can be proved.
const LOOKED_AT_FIRST: Slot = 256;
/// The least number of slots of each shard to look at in one step.
const STEP_MIN: u64 = 4;

/// Bundles with the same request.
pub(super) struct Class {
    pub(super) request: Arc<PlacementRequest>,
    pub(super) count: u32,
    /// The index of the first of them.
    pub(super) bundle: u32,
}

/// Nodes that could hold the same requests and have the same value of the label.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeGroup {
    /// The classes of which each node could hold at least one bundle, as a bit mask.
    classes: u64,
    nodes: u32,
    /// The total capacity of the nodes, by measure.
    room: Vec<i128>,
    /// The number of bundles of each class that the nodes hold if no other class is there.
    counts: Vec<u32>,
    /// The number of bundles of any mix that the nodes hold, as a sum of bounds per node.
    mixed: u32,
    /// The most bundles of any mix that one of the nodes holds.
    one: u32,
}

/// The reason why no more bundles can be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// All nodes together have too little of this resource.
    Cluster(ResourceKind),
    /// This number of bundles is confined to this number of nodes, which together have too little of the
    /// resource.
    Confined { bundles: u32, nodes: u32, kind: ResourceKind },
    /// No node holds more.
    OneNode,
    /// This number of bundles need a node each, and only this number of nodes could hold any of them.
    Nodes { bundles: u32, nodes: u32 },
    /// The capacity of the nodes cannot be divided into more bundles.
    Cut,
}

/// An upper bound on the number of bundles, and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) most: u32,
    pub(super) why: Limit,
}

/// The bundles to place, and the nodes looked at so far.
pub(super) struct Field {
    strategy: Strategy,
    least: u32,
    bundles: u32,
    pub(super) classes: Vec<Class>,
    measures: Vec<Measure>,
    /// Indexed by class and measure.
    weights: Vec<Vec<i128>>,
    /// For each measure, the classes in ascending order of weight.
    order: Vec<Vec<usize>>,
    /// Keyed by the value of the label and the classes. The value is `None` for nodes without the label, or
    /// if no label matters.
    patches: BTreeMap<(Option<Arc<str>>, u64), NodeGroup>,
    /// The slots of each shard below this one are included.
    looked_at: Slot,
    /// The bounds are computed when this number of slots is included.
    judged_at: Slot,
    /// The flow steps of the current judgement.
    looks: Cell<u64>,
}

/// The placed bundles of the group, by node.
pub(super) type OccupantsBy<'a> = BTreeMap<(usize, Slot), Vec<Occupant<'a>>>;

impl Replicas {
    /// Adds the next nodes to a field, as if only the group's own placed bundles ran there. Stops when the
    /// field is due for judgement or the allowed work is spent. Returns whether there are more nodes. `key`
    /// is the label that matters.
    pub(super) fn extend(
        &mut self,
        field: &mut Field,
        wanted: &Wanted,
        key: Option<&str>,
        occupants: &OccupantsBy<'_>,
    ) -> bool {
        let pinned = wanted.standing.first().filter(|_| wanted.strategy == Strategy::StrictPack);
        let requests: Vec<Arc<PlacementRequest>> =
            field.classes.iter().map(|class| Arc::clone(&class.request)).collect();
        let requests: Vec<&PlacementRequest> = requests.iter().map(|request| &**request).collect();
        let per_node = 1 + (field.classes.len() * field.measures.len() / 16) as u64;
        let copies = self.copies.len().max(1) as u64;
        let step = (self.meter.left() / (per_node * copies)).clamp(STEP_MIN, u64::from(LOOKED_AT_FIRST));
        let end = field.looked_at.saturating_add(step as Slot).min(field.judged_at);
        let slots = field.looked_at..end;
        field.looked_at = slots.end;
        let mut more = false;
        let mut looked = 0;
        for (shard, copy) in self.copies.iter_mut().enumerate() {
            more |= copy.shard_mut().capable(&requests, slots.clone(), |slot, spec, held| {
                let standing = occupants.get(&(shard, slot)).map_or(&[][..], Vec::as_slice);
                let excluded = pinned.is_some_and(|&at| at != (shard, slot))
                    || wanted.strategy == Strategy::StrictSpread && !standing.is_empty();
                let value = key.and_then(|key| spec.labels.get(key));
                field.add_node(value, if excluded { 0 } else { held }, &Capacity::new(spec, standing));
                looked += per_node;
            });
        }
        self.meter.charge(looked + copies);
        more
    }
}

impl Field {
    /// Creates a field without nodes.
    pub(super) fn new(wanted: &Wanted) -> Self {
        let mut classes: Vec<Class> = Vec::new();
        for item in &wanted.items {
            let same =
                |class: &Class| Arc::ptr_eq(&class.request, &item.request) || class.request == item.request;
            match classes.iter().rposition(same) {
                Some(at) => classes[at].count += 1,
                None if classes.len() <= CLASSES_MAX => {
                    let request = Arc::clone(&item.request);
                    classes.push(Class { request, count: 1, bundle: item.bundle });
                }
                None => {
                    // An empty demand proves nothing, so the bounds stay valid for any request.
                    let nothing = PlacementRequest::new(Demand::default(), item.request.policy);
                    let last = classes.last_mut().expect("there are many");
                    (last.request, last.count) = (Arc::new(nothing), last.count + 1);
                }
            }
        }
        let measures = Measure::all(classes.iter().map(|class| &class.request.demand));
        let weigh = |class: &Class| -> Vec<i128> {
            measures.iter().map(|measure| measure.weight(&class.request.demand)).collect()
        };
        let weights: Vec<Vec<i128>> = classes.iter().map(weigh).collect();
        let by_weight = |measure: usize| {
            let mut order: Vec<usize> = (0..classes.len()).collect();
            order.sort_by_key(|&class| weights[class][measure]);
            order
        };
        let order = (0..measures.len()).map(by_weight).collect();
        let number = |count: usize| u32::try_from(count).expect("GROUP_BUNDLES_MAX fits u32");
        let least = number(wanted.least);
        let bundles = number(wanted.items.len());
        let strategy = wanted.strategy;
        let patches = BTreeMap::new();
        Self {
            strategy,
            least,
            bundles,
            classes,
            measures,
            weights,
            order,
            patches,
            looked_at: 0,
            judged_at: LOOKED_AT_FIRST,
            looks: Cell::new(0),
        }
    }

    /// Returns whether enough nodes were added since the last judgement. If so, sets the size for the next
    /// one.
    pub(super) fn is_due(&mut self) -> bool {
        if self.looked_at < self.judged_at {
            return false;
        }
        self.judged_at = self.looked_at.saturating_mul(2);
        true
    }

    /// Starts to count the flow steps of a judgement. Returns the work units of the judgement without its
    /// flows.
    pub(super) fn begin_judging(&self) -> u64 {
        self.looks.set(0);
        (self.patches.len() * (1 + self.classes.len() / 16)) as u64
    }

    /// Returns the work units of the flows since then.
    pub(super) fn flow_units(&self) -> u64 {
        self.looks.get() / LOOKS_PER_UNIT
    }

    fn flows_are_spent(&self) -> bool {
        self.looks.get() > PROOF_FLOW_MAX as u64
    }

    fn add_node(&mut self, value: Option<&str>, held: u64, node: &Capacity<'_>) {
        let apart = self.strategy == Strategy::StrictSpread;
        let room: Vec<i128> = self.measures.iter().map(|measure| measure.room(node)).collect();
        let mut counts = vec![0u32; self.classes.len()];
        let mut held_now = 0;
        for (at, class) in self.classes.iter().enumerate().filter(|(at, _)| held >> at & 1 == 1) {
            let enough = if apart { 1 } else { class.count };
            counts[at] = node.count(&class.request.demand, enough);
            held_now |= u64::from(counts[at] > 0) << at;
        }
        let by_sum = self.by_sums(held_now, &room).0;
        let mixed = by_sum.min(counts.iter().sum()).min(if apart { 1 } else { u32::MAX });
        let patch = self.patches.entry((value.map(Arc::from), held_now)).or_insert_with(|| NodeGroup {
            classes: held_now,
            room: vec![0; room.len()],
            counts: vec![0; counts.len()],
            ..NodeGroup::default()
        });
        patch.nodes += 1;
        patch.mixed = patch.mixed.saturating_add(mixed);
        patch.one = patch.one.max(mixed);
        patch.room.iter_mut().zip(room).for_each(|(sum, of_node)| *sum += of_node);
        patch.counts.iter_mut().zip(counts).for_each(|(sum, of_node)| *sum = sum.saturating_add(of_node));
    }

    /// Returns the number of bundles of `classes` whose sum is within `room`, smallest first, and the measure
    /// that allows the fewest.
    fn by_sums(&self, classes: u64, room: &[i128]) -> (u32, Option<usize>) {
        let mut least = (u32::MAX, None);
        for (measure, order) in self.order.iter().enumerate() {
            let mut left = room[measure];
            let mut count = 0u32;
            for &class in order.iter().filter(|&&class| classes >> class & 1 == 1) {
                let weight = self.weights[class][measure];
                let of_class = self.classes[class].count;
                let fit = if weight == 0 { of_class } else { clamp(left / weight).min(of_class) };
                left -= i128::from(fit) * weight;
                count += fit;
            }
            if count < least.0 {
                least = (count, Some(measure));
            }
        }
        let all = (0..self.classes.len()).filter(|class| classes >> class & 1 == 1);
        least.0 = least.0.min(all.map(|class| self.classes[class].count).sum());
        least
    }

    /// Returns all patches.
    pub(super) fn everywhere(&self) -> Vec<&NodeGroup> {
        self.patches.values().collect()
    }

    /// Returns the patches of each value of the label.
    pub(super) fn by_value(&self) -> BTreeMap<Arc<str>, Vec<&NodeGroup>> {
        let mut by_value: BTreeMap<Arc<str>, Vec<&NodeGroup>> = BTreeMap::new();
        for ((value, _), patch) in &self.patches {
            if let Some(value) = value {
                by_value.entry(Arc::clone(value)).or_default().push(patch);
            }
        }
        by_value
    }

    /// Returns the number of bundles that some node could hold, and the first class that no node could hold.
    pub(super) fn possible(&self) -> (u32, Option<&Class>) {
        let held = self.patches.keys().fold(0, |held, (_, classes)| held | classes);
        let mut none = self.classes.iter().enumerate().filter(|(at, _)| held >> at & 1 == 0);
        let beyond: u32 = none.clone().map(|(_, class)| class.count).sum();
        (self.bundles - beyond, none.next().map(|(_, class)| class))
    }

    /// Returns an upper bound on the bundles that can be placed on these patches with the strategy. The
    /// reason is the first one that suffices.
    pub(super) fn bound(&self, patches: &[&NodeGroup]) -> Bound {
        let mut best = Bound { most: self.bundles, why: Limit::Cut };
        let mut note = |most: u32, why: Limit| {
            if most < best.most {
                best = if best.most < self.least { Bound { most, ..best } } else { Bound { most, why } };
            }
        };
        let all = u64::MAX >> (63 - (self.classes.len() - 1));
        let (most, measure) = self.by_sums(all, &self.room_of(patches.iter().copied()));
        if let Some(measure) = measure {
            note(most, Limit::Cluster(self.measures[measure].kind));
        }
        for class in 0..self.classes.len() {
            if let Some((most, why)) = self.confined(patches, class) {
                note(most, why);
            }
        }
        match self.strategy {
            Strategy::StrictPack => {
                note(patches.iter().map(|patch| patch.one).max().unwrap_or(0), Limit::OneNode)
            }
            Strategy::StrictSpread => {
                self.distinct(patches).into_iter().for_each(|(most, why)| note(most, why))
            }
            Strategy::Pack | Strategy::Spread => {}
        }
        note((0..self.classes.len()).map(|class| self.most_of(patches, class)).sum(), Limit::Cut);
        note(patches.iter().fold(0u32, |sum, patch| sum.saturating_add(patch.mixed)), Limit::Cut);
        best
    }

    fn room_of<'a>(&self, patches: impl Iterator<Item = &'a NodeGroup>) -> Vec<i128> {
        let mut room = vec![0; self.measures.len()];
        for patch in patches {
            room.iter_mut().zip(&patch.room).for_each(|(sum, of_patch)| *sum += of_patch);
        }
        room
    }

    /// Returns the number of bundles of one class that the patches hold, at most the size of the class.
    pub(super) fn most_of(&self, patches: &[&NodeGroup], class: usize) -> u32 {
        let sum = patches.iter().fold(0u32, |sum, patch| sum.saturating_add(patch.counts[class]));
        sum.min(self.classes[class].count)
    }

    /// Compares the bundles that are confined to the nodes of `class` with the capacity of these nodes.
    fn confined(&self, patches: &[&NodeGroup], class: usize) -> Option<(u32, Limit)> {
        let mut inside = 0u64;
        let mut elsewhere = 0u64;
        for patch in patches {
            if patch.classes >> class & 1 == 1 {
                inside |= patch.classes;
            } else {
                elsewhere |= patch.classes;
            }
        }
        let confined = inside & !elsewhere;
        let of_class = || patches.iter().copied().filter(|patch| patch.classes >> class & 1 == 1);
        let (fit, measure) = self.by_sums(confined, &self.room_of(of_class()));
        let others = (0..self.classes.len()).filter(|other| confined >> other & 1 == 0);
        let others: u32 = others.map(|other| self.most_of(patches, other)).sum();
        let bundles = (0..self.classes.len()).filter(|of| confined >> of & 1 == 1);
        let bundles = bundles.map(|of| self.classes[of].count).sum();
        let nodes = of_class().map(|patch| patch.nodes).sum();
        let kind = self.measures[measure?].kind;
        (confined != 0).then_some((fit + others, Limit::Confined { bundles, nodes, kind }))
    }

    /// Bounds the number of bundles if each needs a node of its own.
    fn distinct(&self, patches: &[&NodeGroup]) -> Option<(u32, Limit)> {
        if too_much(self.classes.len(), patches.len()) {
            return None;
        }
        let supply: Vec<u32> = self.classes.iter().map(|class| class.count).collect();
        // Edges are unlimited, so only nodes can be full at the end. The reason counts these nodes.
        let edge =
            |class: usize, patch: &NodeGroup| if patch.classes >> class & 1 == 1 { u32::MAX } else { 0 };
        let edges: Vec<Vec<u32>> =
            (0..supply.len()).map(|class| patches.iter().map(|patch| edge(class, patch)).collect()).collect();
        let nodes: Vec<u32> = patches.iter().map(|patch| patch.nodes).collect();
        let assigned = assign(&supply, &edges, &vec![0; nodes.len()], &nodes, &self.looks)?;
        let sum = |of: &[u32], which: &[bool]| {
            of.iter().zip(which).filter(|(_, in_it)| **in_it).map(|(n, _)| n).sum()
        };
        let why = if self.least == self.bundles {
            Limit::Nodes { bundles: sum(&supply, &assigned.kinds), nodes: sum(&nodes, &assigned.sinks) }
        } else {
            Limit::Nodes { bundles: self.least, nodes: assigned.count }
        };
        Some((assigned.count, why))
    }

    /// Returns an upper bound on the bundles that can be spread over `values` within a skew. A value that
    /// does not count does not limit the others.
    pub(super) fn spread_bound(&self, values: &[Value<'_>], max_skew: u32) -> u32 {
        let merged = too_much(self.classes.len(), values.len());
        let supply: Vec<u32> = match merged {
            true => vec![self.bundles],
            false => self.classes.iter().map(|class| class.count).collect(),
        };
        let edges: Vec<Vec<u32>> = (0..supply.len())
            .map(|class| {
                values
                    .iter()
                    .map(|value| if merged { value.most } else { self.most_of(&value.patches, class) })
                    .collect()
            })
            .collect();
        let counted = || values.iter().filter(|value| value.counts);
        let Some(mut level) = counted().map(|value| value.standing).min() else {
            return values.iter().fold(0u32, |sum, value| sum.saturating_add(value.most)).min(self.bundles);
        };
        let mut best = 0;
        loop {
            // All values have at least `level` bundles at the end, so none exceeds `level` by more than the
            // skew.
            let least =
                |value: &Value<'_>| if value.counts { level.saturating_sub(value.standing) } else { 0 };
            let least: Vec<u32> = values.iter().map(least).collect();
            let most = |value: &Value<'_>| {
                value.most.min(level.saturating_add(max_skew).saturating_sub(value.standing))
            };
            let most: Vec<u32> = values.iter().map(most).collect();
            if least.iter().zip(values).any(|(least, value)| *least > value.most) {
                return best;
            }
            let most: Vec<u32> = most.iter().zip(&least).map(|(most, least)| *most.max(least)).collect();
            let count = match &supply[..] {
                // A single kind is limited only by the supply and the room.
                &[all] => {
                    self.looks.set(self.looks.get() + values.len() as u64);
                    let sum = |of: &[u32]| of.iter().fold(0u32, |sum, &one| sum.saturating_add(one));
                    (sum(&least) <= all).then(|| all.min(sum(&most)))
                }
                _ => assign(&supply, &edges, &least, &most, &self.looks).map(|assigned| assigned.count),
            };
            let Some(count) = count else { return best };
            best = best.max(count);
            if best >= self.least {
                return best;
            }
            // A group is not excluded if the bound costs too much to compute.
            if self.flows_are_spent() {
                return self.bundles;
            }
            level += 1;
        }
    }
}

/// A value of the label over which bundles are spread.
pub(super) struct Value<'a> {
    pub(super) name: Arc<str>,
    pub(super) patches: Vec<&'a NodeGroup>,
    /// Set if the value limits the others.
    pub(super) counts: bool,
    /// The number of bundles of the group placed there.
    pub(super) standing: u32,
    /// The upper bound on the number of further bundles there.
    pub(super) most: u32,
}

fn clamp(count: i128) -> u32 {
    u32::try_from(count.max(0)).unwrap_or(u32::MAX)
}

/// Returns whether a flow would cost more than a proof is worth.
fn too_much(kinds: usize, sinks: usize) -> bool {
    let edges = kinds * sinks;
    edges.saturating_mul(edges) > PROOF_FLOW_MAX
}

#[cfg(test)]
mod tests;
