//! Packs demand on present nodes, and on nodes of types that are added for it.
//!
//! Present nodes are searched by the index that serves, on a replica of the cluster. How much a node of a type holds is
//! tried on a replica with one empty node of each type. So no rule of placement is written twice.

mod groups;
mod scoped;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::items::{Item, Unit};
use super::marks;
use super::score::{Score, score};
use crate::cycle::LocalCluster;
use crate::ids::NodeId;
use crate::index::Slot;
use crate::jobs::NodeDomains;
use crate::jobs::nodes::NodesRequest;
use crate::jobs::nodes::Unfit;
use crate::limits::{PLAN_LOOKS_MAX, PLANNED_NODES_MAX};
use crate::node::NodeSpec;
use crate::replica::{ClaimKey, Replica};
use crate::request::{PlacementRequest, Refusal};

pub(super) use scoped::Homes;

/// How much was looked at.
#[derive(Default)]
pub(super) struct Meter {
    pub(super) looks: u64,
    /// How often domains were left out that could have been better than those that were tried.
    cuts: u64,
}

impl Meter {
    fn charge(&mut self, looks: u64) {
        self.looks += looks;
    }

    /// Returns whether no more is to be looked at.
    pub(super) fn is_over(&self) -> bool {
        self.looks >= PLAN_LOOKS_MAX
    }

    /// Returns whether something was not looked at.
    pub(super) fn has_left_out(&self) -> bool {
        self.is_over() || self.cuts > 0
    }
}

/// One empty node of each type.
pub(super) struct Templates {
    copy: Replica,
    slots: Vec<Slot>,
}

impl Templates {
    /// Makes nodes as those of a cluster are.
    pub(super) fn new(request: &NodesRequest, like: &LocalCluster) -> Self {
        let mut cluster = like.empty();
        // A request for a present node must not find one of these by its id.
        cluster.skip_ids_of(like);
        let domains = like.scheduler().domains();
        let add = |of_type| cluster.add_node(node_of(domains, request, of_type));
        let nodes: Vec<NodeId> = (0..request.types.len())
            .map(add)
            .map(|added| added.expect("the shard takes a node that was checked"))
            .collect();
        cluster.publish();
        let mut copy = cluster.replica();
        copy.sync();
        let slot = |&node: &NodeId| copy.shard().slot_of(node).expect("it was just added");
        let slots = nodes.iter().map(slot).collect();
        Self { copy, slots }
    }

    /// Returns whether an empty node of a type could hold each of these.
    pub(super) fn could_hold(&mut self, of_type: usize, requests: &[Arc<PlacementRequest>]) -> bool {
        let slot = self.slots[of_type];
        requests.iter().all(|request| self.copy.could_hold(slot, request))
    }

    /// Returns whether an empty node of a type holds one of an item.
    fn holds(&mut self, of_type: usize, item: &Item) -> bool {
        let mut keys = Vec::new();
        let slot = self.slots[of_type];
        let holds = self.could_hold(of_type, &item.requests)
            && take_many(&mut self.copy, slot, item, 1, &mut keys) == 1;
        self.copy.give_up(slot, &keys);
        holds
    }

    /// Returns why no type holds a request.
    pub(super) fn refusal(&mut self, request: &PlacementRequest) -> Refusal {
        self.copy.refusal(request)
    }
}

/// A node that the plan adds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Added {
    pub(super) slot: Slot,
    pub(super) node: NodeId,
    pub(super) of_type: usize,
    /// Whether it is there in any case: it is being launched, or a minimum or a floor needs it.
    pub(super) is_fixed: bool,
}

/// One request, or several that go together, where the plan has them.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    /// The requests.
    item: Arc<Item>,
    keys: Vec<ClaimKey>,
}

/// What has been placed of a unit.
pub(super) struct Outcome {
    /// How many of each item have no node.
    pub(super) left: Vec<u32>,
    /// Why the first of these has none, if the unit is a gang.
    pub(super) reason: Unfit,
    /// What was placed. `None`: nothing.
    pub(super) kept: Option<Log>,
}

impl Outcome {
    /// Returns the first item that has not all its nodes.
    pub(super) fn first_left(&self) -> Option<usize> {
        self.left.iter().position(|&left| left > 0)
    }
}

/// What would be packed on one node of a type.
struct Trial {
    of_type: usize,
    score: Score,
    /// Items by index, each with how many of it.
    packed: Vec<(usize, u32)>,
}

/// What a plan has placed, and the nodes that it has added.
pub(super) struct Packer<'a> {
    request: &'a NodesRequest,
    cluster: &'a mut LocalCluster,
    pub(super) copy: Replica,
    /// The number of nodes of each type, with those that are launched.
    pub(super) counts: Vec<u32>,
    pub(super) added: Vec<Added>,
    placed: BTreeMap<Slot, Vec<Placed>>,
}

impl<'a> Packer<'a> {
    /// Begins with the nodes of a cluster, of which each type has `counts`.
    pub(super) fn new(request: &'a NodesRequest, cluster: &'a mut LocalCluster, counts: Vec<u32>) -> Self {
        cluster.publish();
        let mut copy = cluster.replica();
        copy.sync();
        Self { request, cluster, copy, counts, added: Vec::new(), placed: BTreeMap::new() }
    }

    /// Adds nodes of a type.
    pub(super) fn add_nodes(
        &mut self,
        of_type: usize,
        count: u32,
        is_fixed: bool,
        meter: &mut Meter,
    ) -> Vec<Added> {
        meter.charge(u64::from(count));
        let spec = node_of(self.cluster.scheduler().domains(), self.request, of_type);
        let nodes: Vec<NodeId> = (0..count)
            .map(|_| self.cluster.add_node(spec.clone()).expect("the shard takes a node that was checked"))
            .collect();
        self.counts[of_type] += count;
        self.cluster.publish();
        self.copy.sync();
        let slot = |node| self.copy.shard().slot_of(node).expect("it was just added");
        let added = nodes.into_iter().map(|node| Added { slot: slot(node), node, of_type, is_fixed });
        let added: Vec<Added> = added.collect();
        self.added.extend(&added);
        added
    }

    /// Lets present nodes take no more.
    pub(super) fn drain(&mut self, nodes: &[NodeId]) {
        nodes.iter().for_each(|&node| self.cluster.set_draining(node, true));
        self.cluster.publish();
        self.copy.sync();
    }

    /// Returns whether something is placed on a node.
    pub(super) fn is_used(&self, slot: Slot) -> bool {
        self.placed.contains_key(&slot)
    }

    /// Returns the nodes with what is placed there, in order: each request by itself.
    #[cfg(test)]
    pub(super) fn contents(&self) -> impl Iterator<Item = (Slot, Vec<Arc<PlacementRequest>>)> + '_ {
        let requests = |placed: &Placed| placed.item.requests.clone();
        self.placed.iter().map(move |(&slot, all)| (slot, all.iter().flat_map(requests).collect()))
    }

    /// Returns for each request the node where it is placed, and the first who asks for its item.
    #[cfg(test)]
    pub(super) fn owners(&self) -> impl Iterator<Item = (Slot, crate::jobs::nodes::Asker)> + '_ {
        let askers = |placed: &Placed| {
            let asker = placed.item.askers[0].0;
            placed.item.requests.iter().map(move |_| asker).collect::<Vec<_>>()
        };
        self.placed.iter().flat_map(move |(&slot, all)| all.iter().flat_map(askers).map(move |of| (slot, of)))
    }

    /// Returns how many nodes a type may have in addition.
    fn room(&self, of_type: usize) -> u32 {
        let of_all: u64 = self.counts.iter().copied().map(u64::from).sum();
        let all = self.request.nodes_max.map_or(u32::MAX, |max| {
            u32::try_from(u64::from(max).saturating_sub(of_all)).expect("not more than `max`")
        });
        let planned = u32::try_from(self.added.len()).unwrap_or(u32::MAX);
        let of_type = self.request.types[of_type].max.saturating_sub(self.counts[of_type]);
        of_type.min(all).min(PLANNED_NODES_MAX.saturating_sub(planned))
    }

    /// Returns why one of an item has no node, with all that was placed until now.
    pub(super) fn why(&mut self, item: &Item, templates: &mut Templates, meter: &mut Meter) -> Unfit {
        if meter.is_over() || self.added.len() >= PLANNED_NODES_MAX as usize {
            return Unfit::Undecided;
        }
        let types = 0..self.request.types.len();
        meter.charge((types.len() * item.requests.len()) as u64);
        let suits: Vec<usize> = types.clone().filter(|&of_type| templates.holds(of_type, item)).collect();
        if suits.is_empty() {
            for request in &item.requests {
                let alone = std::slice::from_ref(request);
                if types.clone().any(|of_type| templates.could_hold(of_type, alone)) {
                    continue;
                }
                if self.copy.refusal(request).feasible {
                    return Unfit::OnlyPresent;
                }
                return Unfit::Never(Box::new(templates.refusal(request)));
            }
            // Each of them fits on a node, and all together do not.
            return Unfit::Gang;
        }
        if suits.iter().any(|&of_type| self.room(of_type) > 0) {
            return Unfit::Gang;
        }
        let of_all: u64 = self.counts.iter().copied().map(u64::from).sum();
        let is_all = self.request.nodes_max.is_some_and(|max| of_all >= u64::from(max));
        if is_all { Unfit::AllLimit } else { Unfit::TypeLimit }
    }

    /// Returns how many requests are placed.
    pub(super) fn requests(&self) -> u64 {
        self.placed.values().flatten().map(|placed| placed.keys.len() as u64).sum()
    }

    /// Returns how many of them are on added nodes, from one of these on.
    pub(super) fn requests_from(&self, first: usize) -> u64 {
        let of_node = |added: &Added| self.placed.get(&added.slot).into_iter().flatten();
        self.added[first..].iter().flat_map(of_node).map(|placed| placed.keys.len() as u64).sum()
    }

    /// Places a unit: a gang as a whole or not at all, of others as much as fits. `wanted` is how many of each item.
    pub(super) fn place(
        &mut self,
        unit: &Unit,
        wanted: &[u32],
        templates: &mut Templates,
        meter: &mut Meter,
    ) -> Outcome {
        match &unit.domain {
            Some(key) => self.place_in_domain(unit, key, wanted, templates, meter),
            None => self.place_in(unit, wanted, Some(templates), meter),
        }
    }

    /// Places a unit on present nodes, and with templates on added ones.
    fn place_in(
        &mut self,
        unit: &Unit,
        wanted: &[u32],
        templates: Option<&mut Templates>,
        meter: &mut Meter,
    ) -> Outcome {
        let items: Vec<Arc<Item>> = unit.items.iter().cloned().map(Arc::new).collect();
        let mut log = Log { before: self.added.len(), entries: Vec::new() };
        let mut left = wanted.to_vec();
        let hidden = self.copy.hidden_count();
        for (item, left) in items.iter().zip(&mut left) {
            self.hide_taken(item, meter);
            while *left > 0 && !meter.is_over() {
                let Some(slot) = self.place_one(item, meter) else { break };
                log.entries.push(slot);
                *left -= 1;
                if item.apart.is_some() {
                    self.copy.hide(slot);
                }
            }
        }
        self.copy.unhide_from(hidden);
        let mut outcome = Outcome { left, reason: Unfit::Gang, kept: None };
        if let Some(templates) = templates {
            self.launch_for(&items, &mut outcome.left, &mut log, templates, meter);
            if let Some(at) = outcome.first_left().filter(|_| unit.gang.is_some()) {
                outcome.reason = self.why(&items[at], templates, meter);
            }
        }
        if unit.gang.is_some() && outcome.first_left().is_some() {
            self.undo(log, meter);
        } else {
            outcome.kept = Some(log);
        }
        outcome
    }

    /// Places one of an item on a node that is there.
    fn place_one(&mut self, item: &Arc<Item>, meter: &mut Meter) -> Option<Slot> {
        meter.charge(1);
        let (slot, keys) = match &item.requests[..] {
            [request] => {
                let (taken, key) = self.copy.take(request)?;
                (taken.slot, vec![key])
            }
            requests => self.place_together(requests, meter)?,
        };
        self.placed.entry(slot).or_default().push(Placed { item: Arc::clone(item), keys });
        Some(slot)
    }

    /// Places several requests on one node. The first one is placed where others would fit, too.
    fn place_together(
        &mut self,
        requests: &[Arc<PlacementRequest>],
        meter: &mut Meter,
    ) -> Option<(Slot, Vec<ClaimKey>)> {
        let hidden = self.copy.hidden_count();
        let mut found = None;
        while let Some((taken, key)) = self.copy.take(&requests[0]) {
            let mut keys = vec![key];
            meter.charge(requests.len() as u64 + self.copy.hidden_count() as u64 / 32);
            let others = requests[1..].iter().map_while(|request| {
                let copy = &mut self.copy;
                let suits = copy.shard_mut().may_hold(taken.slot, request);
                suits.then(|| copy.take_on(taken.slot, &request.demand)).flatten()
            });
            keys.extend(others.map(|(_, key)| key));
            if keys.len() == requests.len() {
                found = Some((taken.slot, keys));
                break;
            }
            self.copy.give_up(taken.slot, &keys);
            if meter.is_over() {
                break;
            }
            self.copy.hide(taken.slot);
        }
        self.copy.unhide_from(hidden);
        found
    }

    /// Adds nodes for what is left, each time of the type that suits best.
    fn launch_for(
        &mut self,
        items: &[Arc<Item>],
        left: &mut [u32],
        log: &mut Log,
        templates: &mut Templates,
        meter: &mut Meter,
    ) {
        let types = self.request.types.len();
        // For each item the types that could hold one of it.
        let suits: Vec<u64> = items
            .iter()
            .zip(left.iter())
            .map(|(item, &left)| {
                let could = |&of_type: &usize| left > 0 && templates.could_hold(of_type, &item.requests);
                (0..types).filter(could).map(|of_type| 1 << of_type).sum()
            })
            .collect();
        meter.charge((items.len() * types) as u64);
        let mut alone: BTreeMap<usize, u32> = BTreeMap::new();
        while left.iter().any(|&left| left > 0) && !meter.is_over() {
            let mut best: Option<Trial> = None;
            for of_type in (0..types).filter(|&of_type| self.room(of_type) > 0) {
                let trial = trial_on(templates, of_type, items, left, &suits, self.request, meter);
                let Some(trial) = trial else { continue };
                if best.as_ref().is_none_or(|best| trial.score > best.score) {
                    best = Some(trial);
                }
            }
            let Some(best) = best else { break };
            let equal = best.packed.iter().map(|&(at, packed)| {
                // As long as there is more than any node holds, all types are tried with the same.
                let most = *alone.entry(at).or_insert_with(|| {
                    let on = |of_type| on_its_own(templates, of_type, &items[at], suits[at], meter);
                    (0..types).map(on).max().unwrap_or(0)
                });
                left[at].saturating_sub(most) / packed
            });
            let count = (1 + equal.min().unwrap_or(0)).min(self.room(best.of_type));
            for Added { slot, .. } in self.add_nodes(best.of_type, count, false, meter) {
                for &(at, packed) in &best.packed {
                    for _ in 0..packed {
                        self.fill(slot, &items[at], log, meter);
                    }
                    left[at] -= packed;
                }
            }
        }
    }

    /// Places one of an item on a node that was just added for it.
    fn fill(&mut self, slot: Slot, item: &Arc<Item>, log: &mut Log, meter: &mut Meter) {
        meter.charge(item.requests.len() as u64);
        let take = |request: &Arc<PlacementRequest>| {
            let taken = self.copy.take_on(slot, &request.demand);
            taken.expect("a node holds what a node of its type held").1
        };
        let keys = item.requests.iter().map(take).collect();
        self.placed.entry(slot).or_default().push(Placed { item: Arc::clone(item), keys });
        log.entries.push(slot);
    }

    /// Takes back what was placed, and the nodes that were added for it.
    fn undo(&mut self, log: Log, meter: &mut Meter) {
        meter.charge(log.entries.len() as u64);
        let mut by_slot: BTreeMap<Slot, usize> = BTreeMap::new();
        for slot in log.entries {
            *by_slot.entry(slot).or_default() += 1;
        }
        for (slot, count) in by_slot {
            let placed = self.placed.get_mut(&slot).expect("what was placed is there");
            let keys: Vec<ClaimKey> =
                placed.drain(placed.len() - count..).flat_map(|placed| placed.keys).collect();
            if placed.is_empty() {
                self.placed.remove(&slot);
            }
            self.copy.give_up(slot, &keys);
        }
        let added = self.added.split_off(log.before);
        self.remove(&added, meter);
    }

    fn remove(&mut self, added: &[Added], meter: &mut Meter) {
        meter.charge(added.len() as u64);
        if added.is_empty() {
            return;
        }
        for of in added {
            self.counts[of.of_type] -= 1;
            self.cluster.remove_node(of.node);
        }
        self.cluster.publish();
        self.copy.sync();
    }

    /// Removes the added nodes whose demand fits on the others, the last ones first. What fits nowhere else then does not
    /// later either, because the others only get fuller.
    pub(super) fn trim(&mut self, meter: &mut Meter) {
        for at in (0..self.added.len()).rev() {
            let Added { slot, is_fixed, .. } = self.added[at];
            if is_fixed || meter.is_over() {
                continue;
            }
            self.copy.hide(slot);
            let own = self.placed.remove(&slot).unwrap_or_default();
            let moved = self.move_all(&own, meter);
            self.copy.show(slot);
            if moved {
                let keys: Vec<ClaimKey> = own.iter().flat_map(|placed| placed.keys.iter().copied()).collect();
                self.copy.give_up(slot, &keys);
                let removed = self.added.remove(at);
                self.remove(&[removed], meter);
            } else {
                self.placed.insert(slot, own);
            }
        }
    }

    /// Places all of a node on others, or nothing. Returns whether it did.
    fn move_all(&mut self, own: &[Placed], meter: &mut Meter) -> bool {
        let mut log = Log { before: self.added.len(), entries: Vec::new() };
        for placed in own {
            let hidden = self.copy.hidden_count();
            if let Some(group) = placed.item.apart {
                for slot in self.slots_of_group(group) {
                    self.copy.hide(slot);
                }
                self.hide_taken(&placed.item, meter);
            }
            let found = self.place_one(&placed.item, meter);
            self.copy.unhide_from(hidden);
            let Some(slot) = found else {
                self.undo(log, meter);
                return false;
            };
            log.entries.push(slot);
        }
        true
    }
}

/// Returns a node of a type, with its marks.
fn node_of(domains: &NodeDomains, request: &NodesRequest, of_type: usize) -> NodeSpec {
    let spec = request.spec(of_type);
    marks::marked(domains, &spec).unwrap_or(spec)
}

/// What can be taken back.
pub(super) struct Log {
    /// The number of added nodes before.
    before: usize,
    /// The node of each that was placed, in order.
    entries: Vec<Slot>,
}

/// Packs as much as fits of what is left on an empty node of a type. `None`: nothing fits.
fn trial_on(
    templates: &mut Templates,
    of_type: usize,
    items: &[Arc<Item>],
    left: &[u32],
    suits: &[u64],
    request: &NodesRequest,
    meter: &mut Meter,
) -> Option<Trial> {
    let slot = templates.slots[of_type];
    let mut keys = Vec::new();
    let mut packed: Vec<(usize, u32)> = Vec::new();
    let mut apart: Vec<u32> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        meter.charge(1);
        let is_there = item.apart.is_some_and(|group| apart.contains(&group));
        if left[at] == 0 || suits[at] & (1 << of_type) == 0 || is_there {
            continue;
        }
        let most = if item.apart.is_some() { 1 } else { left[at] };
        let count = take_many(&mut templates.copy, slot, item, most, &mut keys);
        meter.charge(u64::from(count));
        if count > 0 {
            packed.push((at, count));
            apart.extend(item.apart);
        }
    }
    templates.copy.give_up(slot, &keys);
    if packed.is_empty() {
        return None;
    }
    let requests =
        packed.iter().flat_map(|&(at, count)| items[at].requests.iter().map(move |of| (&**of, count)));
    let score = score(&request.spec(of_type), requests);
    Some(Trial { of_type, score, packed })
}

/// Returns how many of an item an empty node of a type holds.
fn on_its_own(templates: &mut Templates, of_type: usize, item: &Item, suits: u64, meter: &mut Meter) -> u32 {
    if suits & (1 << of_type) == 0 {
        return 0;
    }
    if item.apart.is_some() {
        return 1;
    }
    let mut keys = Vec::new();
    let slot = templates.slots[of_type];
    let count = take_many(&mut templates.copy, slot, item, u32::MAX, &mut keys);
    templates.copy.give_up(slot, &keys);
    meter.charge(u64::from(count));
    count
}

/// Takes an item up to `most` times on a node. Returns how many times it fit.
fn take_many(copy: &mut Replica, slot: Slot, item: &Item, most: u32, keys: &mut Vec<ClaimKey>) -> u32 {
    for count in 0..most {
        let before = keys.len();
        for request in &item.requests {
            let Some((_, key)) = copy.take_on(slot, &request.demand) else {
                let partial = keys.split_off(before);
                copy.give_up(slot, &partial);
                return count;
            };
            keys.push(key);
        }
    }
    most
}
