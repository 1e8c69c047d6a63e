//! Where a group could stand were nothing of others running: what its ticket reserves.
//!
//! It is searched as any plan is, by the same code, on copies that are made for it. They hold some of the
//! nodes, and of what runs there the group's own bundles only; what is unhealthy stays so, what is reserved
//! for others is taken, and a node that takes no new work takes none. Chosen are the nodes with most free,
//! so many per request of the group that differs (and per value of its rule's label), because they come free
//! soonest; where that does not do, more of them, and in the end all. If its ticket was in vain, because what
//! runs there does not end, the group's next ticket takes nodes at random.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::colocate::Item;
use super::draft::{Draft, PlannedBundle, Replicas};
use super::replica::{News, Replica};
use super::strategy::{Standing, Wanted};
use crate::group::{Spreading, Strategy, TopologyRule};
use crate::ids::{NodeId, OwnerId, StatementId};
use crate::index::Slot;
use crate::node::{LifeEvent, NodeSpec, NodeState};
use crate::request::PlacementRequest;
use crate::resource::{Demand, GpuAssignment, GpuRequest};
use crate::rng::Rng;
use crate::shard::{Command, Reserve, Shard};
use crate::statement::{Allocate, CommitMode, ConflictDetection, Operation, Part};
use crate::time::Time;

/// How many times more nodes are chosen after each failure.
const MORE: usize = 4;

/// A bundle of the group that stands.
pub(super) struct Own {
    pub(super) node: NodeId,
    pub(super) demand: Demand,
    pub(super) gpus: GpuAssignment,
}

/// A ready node on the copy of a shard.
type Place = (usize, Slot);

impl Replicas {
    /// Where `wanted` goes if nothing runs but `own`: no more of it than is wanted at least, so that no more
    /// is reserved than must be. `turn`: how many such plans of the group found no place. A search that looks at more
    /// than `units` is given up.
    pub(super) fn plan_ignoring_others(
        &mut self,
        wanted: &Wanted,
        own: &[Own],
        turn: u32,
        units: u64,
    ) -> Option<Vec<PlannedBundle>> {
        let end = self.meter.spent() + units;
        let requests = distinct(&wanted.items);
        let mut rng = Rng::new(u64::from(turn));
        let mut places = self.most_free_first();
        self.meter.charge(places.len() as u64);
        if turn > 0 {
            for at in (1..places.len()).rev() {
                places.swap(at, rng.below(at as u64 + 1) as usize);
            }
        }
        let mut most = first_choice(wanted, own);
        loop {
            let (mut chosen, left_out) = self.choose(&places, wanted, &requests, most);
            self.meter.charge(places.len() as u64);
            chosen.extend(own.iter().filter_map(|bundle| self.locate(bundle.node)));
            chosen.sort_unstable();
            chosen.dedup();
            let mut emptied = self.emptied(&chosen, own, rng.below(u64::MAX));
            let standing = own.iter().filter_map(|bundle| emptied.locate(bundle.node));
            let standing = standing.map(|(shard, slot)| Standing { shard, slot }).collect();
            let mut draft = Draft::default();
            let left = end.saturating_sub(self.meter.spent()).max(1);
            let planned = emptied.plan(Wanted { standing, ..wanted.clone() }, left, &mut draft);
            // Each chosen node was made for it.
            self.meter.charge(chosen.len() as u64 + emptied.meter.spent());
            if planned.is_ok() {
                // What was taken first keeps the rules without what comes after it.
                draft.taken.truncate(wanted.least.max(1));
                // Copy for copy they are of the same shard, with slots of their own. Nothing is claimed here.
                let here = |taken: PlannedBundle| {
                    let slot = self.copies[taken.shard].shard().slot_of(taken.node);
                    PlannedBundle { slot: slot.expect("a node of the copy"), key: 0, ..taken }
                };
                return Some(draft.taken.into_iter().map(here).collect());
            }
            if !left_out || self.meter.spent() >= end {
                return None;
            }
            most = most.saturating_mul(MORE);
        }
    }

    /// All ready nodes.
    fn most_free_first(&self) -> Vec<Place> {
        let mut places: Vec<(Reverse<u64>, usize, Slot)> = Vec::new();
        for (shard, copy) in self.copies.iter().enumerate() {
            places.extend(copy.shard().free_shares().map(|(slot, share)| (Reverse(share), shard, slot)));
        }
        places.sort_unstable();
        places.into_iter().map(|(_, shard, slot)| (shard, slot)).collect()
    }

    /// Per value of the rule's label and request, the first `most` nodes that could hold it; of each value at
    /// least one where some bundle may stand, because values without room count, too. And whether any that
    /// could was left out.
    fn choose(
        &mut self,
        places: &[Place],
        wanted: &Wanted,
        requests: &[Arc<PlacementRequest>],
        most: usize,
    ) -> (Vec<Place>, bool) {
        let mut counts: BTreeMap<Option<String>, Vec<usize>> = BTreeMap::new();
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let mut chosen = Vec::new();
        let mut left_out = false;
        for &(shard, slot) in places {
            let copy = &mut self.copies[shard];
            let value = wanted.topology.as_ref().and_then(|rule| copy.shard().label_of(slot, &rule.key));
            let value = value.map(str::to_owned);
            let first = value.as_ref().is_some_and(|value| !seen.contains(value))
                && requests.iter().chain(&wanted.settled).any(|asked| copy.shard_mut().may_hold(slot, asked));
            if first {
                seen.extend(value.clone());
            }
            let counts = counts.entry(value).or_insert_with(|| vec![0; requests.len()]);
            let mut needed = first;
            // What has enough already is not looked at, unless the node is taken for another.
            for (request, count) in requests.iter().zip(counts) {
                if left_out && *count >= most || !copy.could_hold(slot, request) {
                    continue;
                }
                if *count < most {
                    (*count, needed) = (*count + 1, true);
                } else {
                    left_out = true;
                }
            }
            chosen.extend(needed.then_some((shard, slot)));
        }
        (chosen, left_out)
    }

    /// Copies of the chosen nodes.
    fn emptied(&self, chosen: &[Place], own: &[Own], seed: u64) -> Self {
        let copies = self.copies.iter().enumerate().map(|(at, copy)| {
            let slots = chosen.iter().filter(|&&(shard, _)| shard == at).map(|&(_, slot)| slot);
            copy.emptied(&slots.collect::<Vec<_>>(), own)
        });
        Self::new(copies.collect(), seed)
    }
}

impl Replica {
    /// Whether `request` could stand on a node if nothing ran there.
    fn could_hold(&mut self, slot: Slot, request: &PlacementRequest) -> bool {
        let others = self.reserved_for(slot).is_some_and(|owner| request.owner != Some(owner));
        !others && self.shard().could_hold(slot, &request.demand) && self.shard_mut().may_hold(slot, request)
    }

    /// For whom a node is reserved, but for tickets: one is served at a time.
    pub(super) fn reserved_for(&self, slot: Slot) -> Option<OwnerId> {
        let (owner, ..) = self.base()?.cold(slot)?.reservation()?;
        Some(owner).filter(|owner| !owner.is_ticket())
    }

    /// What a node has in all.
    pub(super) fn spec(&self, slot: Slot) -> Option<&NodeSpec> {
        Some(&self.base()?.cold(slot)?.registration.spec)
    }

    /// A copy of these nodes on which only `own` runs: of a shard that has no others.
    fn emptied(&self, slots: &[Slot], own: &[Own]) -> Self {
        let config = self.shard().alike();
        let mut shard = Shard::new(config.clone());
        shard.set_reserved_nodes_percent(100);
        shard.set_allocations_per_node_max(self.shard().allocations_per_node_max());
        shard.step(self.setting_up(slots, own), Time::default(), &mut Vec::new());
        let mut emptied = Self::new(Shard::replica(config), shard.enable_views());
        emptied.sync(&mut News::default());
        emptied
    }

    /// Makes the nodes, puts the group's own bundles there, and takes out what nobody can have.
    fn setting_up(&self, slots: &[Slot], own: &[Own]) -> Vec<Command> {
        let Some(view) = self.base() else { return Vec::new() };
        let mut nodes = Vec::new();
        let mut limits = Vec::new();
        for &slot in slots {
            let (Some(hot), Some(cold)) = (view.hot(slot), view.cold(slot)) else { continue };
            let mut registration = (*cold.registration).clone();
            registration.agent = None;
            if !cold.unhealthy().is_empty() {
                limits.push(Command::SetHealth(hot.id, cold.unhealthy().to_vec()));
            }
            if let Some(owner) = self.reserved_for(slot) {
                let demand = all_of(&registration.spec);
                limits.push(Command::Reserve(Box::new(Reserve { node: hot.id, owner, demand, until: None })));
            }
            if hot.state != Some(NodeState::Ready) {
                limits.push(Command::Life(hot.id, LifeEvent::Drain));
            }
            nodes.push(Command::AddNode(Box::new(registration)));
        }
        let operations: Vec<(u16, Operation)> = (0u16..).zip(own.iter().map(allocated)).collect();
        let statement = StatementId { incarnation: view.version().incarnation, planner: 0, number: 0 };
        // What is on the nodes of other shards conflicts here.
        let conflict_detection = ConflictDetection::Fine;
        let mode = CommitMode::Incremental;
        let part = Part { statement, operations, conflict_detection, mode };
        nodes.push(Command::Apply(Box::new(part)));
        nodes.append(&mut limits);
        nodes
    }
}

fn allocated(bundle: &Own) -> Operation {
    let gpus = Some(bundle.gpus.mask).filter(|&mask| mask != 0);
    let node = bundle.node;
    let demand = bundle.demand.clone();
    Operation::Allocate(Allocate { node, expected: None, demand, gpus, owner: None, bundle: None })
}

/// All that a node has.
fn all_of(spec: &NodeSpec) -> Demand {
    let gpu = if spec.gpus == 0 { GpuRequest::None } else { GpuRequest::Whole(spec.gpus) };
    Demand { cpu: spec.cpu, memory: spec.memory, gpu, custom: spec.custom.clone() }
}

/// The requests that differ.
fn distinct(items: &[Item]) -> Vec<Arc<PlacementRequest>> {
    let mut requests: Vec<Arc<PlacementRequest>> = Vec::new();
    for Item { request, .. } in items {
        if !requests.contains(request) {
            requests.push(Arc::clone(request));
        }
    }
    requests
}

/// How many nodes are chosen first: one of each kind where bundles may share it, else one for each of them.
fn first_choice(wanted: &Wanted, own: &[Own]) -> usize {
    let prefers = |rule: &TopologyRule| matches!(rule.spreading, Spreading::Pack { strict: false });
    match wanted.strategy {
        Strategy::Pack | Strategy::StrictPack if !wanted.topology.as_ref().is_some_and(prefers) => 1,
        _ => wanted.items.len() + own.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_bed::{Bed, cores, items_of, node_of, wanted_of};
    use super::*;

    #[test]
    fn a_plan_that_ignores_others_names_nodes_where_the_copies_have_them_and_no_claims() {
        let mut bed = Bed::new(2);
        for shard in [0, 1] {
            // Too small: a node that is passed over has a slot before those that are chosen.
            bed.add(shard, node_of(1, &[]), false);
            for _ in 0..2 {
                bed.add(shard, node_of(8, &[]), false);
                bed.step(shard, Command::Place(cores(8)));
            }
        }
        bed.sync();
        let wanted = wanted_of(Strategy::StrictSpread, items_of([cores(4), cores(4), cores(4), cores(4)]));
        let planned = bed.replicas.plan_ignoring_others(&wanted, &[], 0, 1 << 20).expect("were they free");
        assert_eq!(planned.len(), 4);
        for taken in planned {
            assert_eq!(bed.replicas.locate(taken.node), Some((taken.shard, taken.slot)));
            // Keys of claims begin with 1: what is lost or granted later is no claim of others.
            assert_eq!(taken.key, 0);
        }
    }
}
