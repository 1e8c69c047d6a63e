//! Refusals of groups are true. An infeasible group has no assignment on empty nodes. A group without a fit did
//! not plainly fit when its planner said so.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::group::{GroupSpec, GroupView, Spreading, Strategy};
use wharf_core::ids::{AllocationId, NodeId};
use wharf_core::node::NodeState;
use wharf_core::request::PlacementRequest;
use wharf_core::resource::{Demand, GPU_UNIT, GpuRequest, ResourceKind};
use wharf_core::state::NodeRecord;

use super::groups::placed;
use super::rules::{Round, bundles};
use super::{Verdict, ensure};
use crate::sim::facts::{Facts, available, gpus_available, node_admits};

/// The highest number of bundles for which every assignment is tried.
const BUNDLES_MAX: usize = 6;

/// The capacity that a node has left for the bundles that are tried on it.
#[derive(Clone, Debug)]
struct Room<'a> {
    node: &'a NodeRecord,
    cpu: i64,
    memory: i64,
    /// The free part of each healthy GPU instance.
    gpus: Vec<u32>,
    /// The number of bundles that are tried on the node.
    bundles: u32,
}

impl<'a> Room<'a> {
    /// Returns the capacity of the node when it is empty.
    fn empty(node: &'a NodeRecord) -> Self {
        let spec = &node.registration.spec;
        let ill = |gpu: u8| node.unhealthy.iter().any(|&(instance, _)| instance == gpu);
        let gpus = (0..spec.gpus).filter(|&gpu| !ill(gpu)).map(|_| u32::from(GPU_UNIT)).collect();
        Self { node, cpu: spec.cpu.units(), memory: spec.memory.units(), gpus, bundles: 0 }
    }

    /// Returns the capacity that is available now.
    fn now(facts: &'a Facts, node: &'a NodeRecord) -> Option<Self> {
        let books = facts.books_of(node.registration.id)?;
        let gpus = gpus_available(books).map(|(_, free)| free).collect();
        let cpu = available(books, ResourceKind::Cpu);
        let memory = available(books, ResourceKind::Memory);
        Some(Self { node, cpu, memory, gpus, bundles: 0 })
    }

    /// Takes `demand` if it fits. A GPU part takes the instance with the least free capacity that suffices.
    fn take(&mut self, demand: &Demand) -> bool {
        let cpu = demand.cpu.units();
        let memory = demand.memory.units();
        if cpu > self.cpu
            || memory > self.memory
            || !demand.custom().is_empty()
            || !self.take_gpus(demand.gpu)
        {
            return false;
        }
        (self.cpu, self.memory, self.bundles) = (self.cpu - cpu, self.memory - memory, self.bundles + 1);
        true
    }

    fn take_gpus(&mut self, asked: GpuRequest) -> bool {
        let whole = u32::from(GPU_UNIT);
        match asked {
            GpuRequest::None => true,
            GpuRequest::Fraction(part) => {
                let enough = self.gpus.iter_mut().filter(|free| **free >= u32::from(part));
                enough.min_by_key(|free| **free).map(|free| *free -= u32::from(part)).is_some()
            }
            GpuRequest::Whole(count) => {
                let free = self.gpus.iter_mut().filter(|free| **free == whole);
                let free: Vec<&mut u32> = free.take(usize::from(count)).collect();
                free.len() == usize::from(count) && free.into_iter().map(|free| *free = 0).count() > 0
            }
        }
    }

    fn label(&self, key: &str) -> Option<&'a str> {
        self.node.registration.spec.labels.get(key)
    }
}

/// Checks that an infeasible group has no assignment on empty nodes.
///
/// # Errors
/// Returns an assignment.
pub fn infeasible_is_infeasible(spec: &GroupSpec, round: &Round) -> Verdict {
    let nodes = round.facts.iter().flat_map(Facts::nodes);
    let mut rooms: Vec<Room<'_>> = nodes.map(Room::empty).collect();
    rooms.retain(|room| room.node.state == NodeState::Ready);
    if spec.bundles.len() > BUNDLES_MAX {
        return Ok(());
    }
    let mut chosen = Vec::new();
    let skips = spec.bundles.len() - spec.min_members as usize;
    let found = assign(spec, &mut rooms, skips, &mut chosen);
    ensure(!found, || format!("{spec:?} is called infeasible, and could be placed on {chosen:?}"))
}

/// Tries to assign the bundles from index `chosen.len()` on. Up to `skips` of them may be left out.
fn assign(spec: &GroupSpec, rooms: &mut [Room<'_>], skips: usize, chosen: &mut Vec<Option<NodeId>>) -> bool {
    let Some(request) = spec.bundles.get(chosen.len()) else { return holds_rules(spec, rooms) };
    for at in 0..rooms.len() {
        let strict = match spec.strategy {
            Strategy::StrictSpread => rooms[at].bundles == 0,
            Strategy::StrictPack => (0..rooms.len()).all(|other| other == at || rooms[other].bundles == 0),
            Strategy::Pack | Strategy::Spread => true,
        };
        if !strict || !node_admits(rooms[at].node, request) {
            continue;
        }
        let before = rooms[at].clone();
        if rooms[at].take(&request.demand) {
            chosen.push(Some(before.node.registration.id));
            if assign(spec, rooms, skips, chosen) {
                return true;
            }
            chosen.pop();
        }
        rooms[at] = before;
    }
    if skips > 0 {
        chosen.push(None);
        if assign(spec, rooms, skips - 1, chosen) {
            return true;
        }
        chosen.pop();
    }
    false
}

/// Returns whether an assignment keeps the rule over a label.
fn holds_rules(spec: &GroupSpec, rooms: &[Room<'_>]) -> bool {
    let Some(rule) = &spec.topology else { return true };
    let used = rooms.iter().filter(|room| room.bundles > 0);
    match rule.spreading {
        Spreading::Pack { strict: false } => true,
        Spreading::Pack { strict: true } => {
            let values: BTreeSet<_> = used.map(|room| room.label(&rule.key)).collect();
            values.len() == 1 && !values.contains(&None)
        }
        Spreading::Spread { max_skew } => {
            let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
            for room in rooms {
                match room.label(&rule.key) {
                    Some(value) => *counts.entry(value).or_default() += room.bundles,
                    None if room.bundles > 0 => return false,
                    None => {}
                }
            }
            let least = counts.values().min();
            let most = counts.values().max();
            most.zip(least).is_none_or(|(most, least)| most - least <= max_skew)
        }
    }
}

/// Returns whether all bundles of a group are placed, both as last shown and as the planner saw the shards in this round. A
/// crash may cut a removal short: bundles have ended then, the group is there, and its caller was told nothing.
#[must_use]
pub fn is_whole(view: &GroupView, round: &Round) -> bool {
    let live: BTreeSet<AllocationId> = bundles(&round.facts).map(|(id, _)| id).collect();
    placed(view).filter(|(_, _, id, _)| live.contains(id)).count() == view.bundles.len()
}

/// Checks that a group that was refused for now did not plainly fit. A single bundle, or equal bundles, are
/// placed wherever there is room, unless they are spread over a label. `least` bundles must fit.
///
/// # Errors
/// Returns why it plainly fitted.
pub fn no_fit_is_no_fit(
    spec: &GroupSpec,
    bundles: &[std::sync::Arc<PlacementRequest>],
    least: usize,
    round: &Round,
) -> Verdict {
    let Some(first) = bundles.first() else { return Ok(()) };
    let spreads =
        spec.topology.as_ref().is_some_and(|rule| matches!(rule.spreading, Spreading::Spread { .. }));
    let equal = bundles.iter().all(|bundle| bundle == first);
    // Reservations of the owner are not considered, so a group may fit although this finds nothing.
    if !round.is_quiet || spreads || !equal || first.preferences.is_some() {
        return Ok(());
    }
    let mut room: BTreeMap<Option<&str>, Vec<usize>> = BTreeMap::new();
    for facts in &round.facts {
        for node in facts.nodes() {
            let Some(mut left) = Room::now(facts, node).filter(|left| node_admits(left.node, first)) else {
                continue;
            };
            let value = spec.topology.as_ref().map(|rule| left.label(&rule.key));
            let strict =
                spec.topology.as_ref().is_some_and(|rule| rule.spreading == Spreading::Pack { strict: true });
            let place = match value {
                Some(None) if strict => continue,
                Some(value) if strict => value,
                _ => None,
            };
            let held = (0..bundles.len()).take_while(|_| left.take(&first.demand)).count();
            room.entry(place).or_default().push(held);
        }
    }
    let fits = |held: &Vec<usize>| match spec.strategy {
        Strategy::Pack | Strategy::Spread => held.iter().sum::<usize>() >= least,
        Strategy::StrictSpread => held.iter().filter(|&&held| held > 0).count() >= least,
        Strategy::StrictPack => held.iter().any(|&held| held >= least),
    };
    let found = room.iter().find(|(_, held)| fits(held));
    ensure(found.is_none(), || format!("{spec:?} is refused, and fits: so many each node holds: {found:?}"))
}
