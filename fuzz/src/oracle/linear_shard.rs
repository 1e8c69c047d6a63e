//! A shard as a plain list of nodes: follows the same commands and says what each must answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_core::ids::{AllocationId, Incarnation, NodeId, PartitionId};
use wharf_core::index::{Dimension, Geometry};
use wharf_core::node::{NodeSpec, NodeState};
use wharf_core::request::PlacementRequest;
use wharf_core::resource::{Amount, Demand, GpuAssignment, UnitAssignments};
use wharf_core::shard::{
    Check, Command, NodeView, Outcome, Placement, Refusal, Rejection, ResourceKind, ResourceSum, ShardStatus,
    Shortage, WaitToken,
};
use wharf_core::store::ShardState;

use super::linear_books::with_totals;
use super::linear_node::{DEVICE, Lack, LinearNode};
use super::{Choice, Fitting, choose, coordinate};

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) node: NodeId,
    pub(super) demand: Demand,
    pub(super) gpus: GpuAssignment,
    pub(super) units: Option<Arc<UnitAssignments>>,
    pub(super) external_id: Option<Arc<str>>,
}

/// What a [`Shard`](wharf_core::shard::Shard) must answer.
#[derive(Clone, Debug)]
pub struct LinearShard {
    dimensions: Vec<(Dimension, i64)>,
    pub(super) incarnation: Incarnation,
    /// In order of registration.
    pub(super) nodes: Vec<LinearNode>,
    pub(super) allocations: BTreeMap<AllocationId, Held>,
    pub(super) sequences: BTreeMap<PartitionId, u64>,
    /// The ordinal of NextFit's last choice.
    cursor: u64,
    /// What waits.
    parked: BTreeMap<WaitToken, PlacementRequest>,
    placed: u64,
    refused: u64,
    released: u64,
    /// The growth counter of the last refusal, while nothing happened since that could help.
    settled_growth: Option<u64>,
    last_growth: u64,
}

pub(super) fn differs<T: std::fmt::Debug, U: std::fmt::Debug>(got: T, expected: U) -> Result<(), String> {
    Err(format!("answered {got:?}, expected {expected:?}"))
}

impl LinearShard {
    /// A shard without nodes.
    #[must_use]
    pub fn new(geometry: &Geometry, incarnation: Incarnation) -> Self {
        Self {
            dimensions: geometry.dimensions().to_vec(),
            incarnation,
            nodes: Vec::new(),
            allocations: BTreeMap::new(),
            sequences: BTreeMap::new(),
            cursor: 0,
            parked: BTreeMap::new(),
            placed: 0,
            refused: 0,
            released: 0,
            settled_growth: None,
            last_growth: 0,
        }
    }

    /// The live allocations, in order of id.
    #[must_use]
    pub fn live(&self) -> Vec<AllocationId> {
        self.allocations.keys().copied().collect()
    }

    /// What waits although a node could take it now.
    #[must_use]
    pub fn waits_in_vain(&self) -> Option<WaitToken> {
        let mut parked = self.parked.iter();
        parked.find(|(_, request)| !self.fitting_places(request).is_empty()).map(|(&token, _)| token)
    }

    /// What waits.
    #[must_use]
    pub fn waiting(&self) -> Vec<WaitToken> {
        self.parked.keys().copied().collect()
    }

    /// The nodes that can take `request` now.
    #[must_use]
    pub fn fitting(&self, request: &PlacementRequest) -> Vec<NodeId> {
        self.fitting_places(request).into_iter().map(|at| self.nodes[at].registration.id).collect()
    }

    fn fitting_places(&self, request: &PlacementRequest) -> Vec<usize> {
        (0..self.nodes.len())
            .filter(|&at| {
                let node = &self.nodes[at];
                named(request, node) && !node.draining && node.lacks(&request.demand).is_empty()
            })
            .collect()
    }

    /// Carries out a placement. `answer` decides where the policy leaves a choice, if it names
    /// one of the nodes that the policy allows; the first of them otherwise.
    pub fn place(&mut self, request: &PlacementRequest, answer: Option<NodeId>) -> Option<Placement> {
        let fitting: Vec<Fitting<usize>> = self
            .fitting_places(request)
            .into_iter()
            .map(|at| Fitting {
                ordinal: self.nodes[at].registration.ordinal.0,
                coordinate: coordinate(&self.dimensions, &self.nodes[at].available()),
                node: at,
            })
            .collect();
        let at = match choose(request.policy, &fitting, &mut self.cursor) {
            Choice::Nothing => {
                self.refused += 1;
                return None;
            }
            Choice::Only(at) => at,
            Choice::AnyOf(places) => {
                let named = places.iter().find(|&&at| Some(self.nodes[at].registration.id) == answer);
                *named.unwrap_or(&places[0])
            }
        };
        let node = &mut self.nodes[at];
        let gpus = node.instances_for(request.demand.gpu);
        let units = node.all_units_for(&request.demand);
        node.change_use(&request.demand, gpus, units.as_ref(), 1);
        let (id, partition) = (node.registration.id, node.registration.partition);
        let sequence = self.sequences.entry(partition).or_insert(0);
        *sequence += 1;
        let allocation = AllocationId { incarnation: self.incarnation, partition, sequence: *sequence };
        let (demand, external_id) = (request.demand.clone(), None);
        self.allocations
            .insert(allocation, Held { node: id, demand, gpus, units: units.clone(), external_id });
        self.placed += 1;
        Some(Placement { node: id, allocation, gpus, units })
    }

    /// Carries out `command` and compares with what the shard answered.
    ///
    /// # Errors
    /// The difference.
    pub fn compare(&mut self, command: &Command, outcome: &Outcome) -> Result<(), String> {
        match command {
            Command::Place(request) => self.compare_place(request, outcome),
            Command::Release(id) => match (self.release(*id), outcome) {
                (true, Outcome::Released(answered)) if answered == id => Ok(()),
                (false, Outcome::Rejected(Rejection::UnknownAllocation(answered))) if answered == id => {
                    Ok(())
                }
                (live, other) => differs(other, format!("{id}, live: {live}")),
            },
            Command::AddNode(registration) => {
                self.nodes.push(LinearNode::new((**registration).clone()));
                self.nodes.sort_by_key(|node| node.registration.ordinal);
                self.settled_growth = None;
                match outcome {
                    Outcome::NodeAdded(id) if *id == registration.id => Ok(()),
                    other => differs(other, registration.id),
                }
            }
            Command::UpdateNode(id, spec) => {
                let known = self.update(*id, spec);
                compare_node_outcome(
                    *id,
                    known,
                    outcome,
                    matches!(outcome, Outcome::NodeUpdated(n) if n == id),
                )
            }
            Command::SetState(id, state) => {
                let known = self.set_state(*id, *state);
                let done = matches!(outcome, Outcome::StateSet(n, s) if n == id && s == state);
                compare_node_outcome(*id, known, outcome, done)
            }
            Command::RemoveNode { node, force } => self.compare_remove(*node, *force, outcome),
            Command::ListNodes { after, limit } => {
                let Outcome::Nodes(page) = outcome else {
                    return differs(outcome, "a page of nodes");
                };
                let listed: Vec<&LinearNode> = self
                    .nodes
                    .iter()
                    .filter(|node| node.registration.ordinal > *after)
                    .take(usize::from(*limit))
                    .collect();
                let same =
                    listed.len() == page.len() && listed.iter().zip(page).all(|(n, v)| same_node(n, v));
                if same { Ok(()) } else { differs(page, listed) }
            }
            Command::Status { .. } => match outcome {
                Outcome::Status(status) => self.compare_status(status),
                other => differs(other, "a status"),
            },
            Command::Adopt(adoption) => self.compare_adopt(adoption, outcome),
            Command::SetResources(id, totals) => {
                let spec = self.nodes.iter().find(|node| node.registration.id == *id);
                let known = spec.map(|node| node.registration.spec.clone());
                let known = known.is_some_and(|spec| self.update(*id, &with_totals(spec, totals)));
                let done = matches!(outcome, Outcome::NodeUpdated(n) if n == id);
                compare_node_outcome(*id, known, outcome, done)
            }
            Command::Park(park) => {
                let outcome = match outcome {
                    Outcome::Parked(refusal) => {
                        self.parked.insert(park.token, park.request.clone());
                        &Outcome::Refused(refusal.clone())
                    }
                    Outcome::Refused(_) => return differs(outcome, "parked"),
                    other => other,
                };
                self.compare_place(&park.request, outcome)
            }
            Command::Retry(token) => match self.parked.get(token).cloned() {
                Some(request) => {
                    if matches!(outcome, Outcome::Placed(_)) {
                        self.parked.remove(token);
                    }
                    self.compare_place(&request, outcome)
                }
                None => compare_not_parked(outcome),
            },
            Command::Unpark(token) => match (self.parked.remove(token), outcome) {
                (Some(_), Outcome::Unparked) => Ok(()),
                (Some(request), other) => differs(other, request),
                (None, other) => compare_not_parked(other),
            },
            Command::NodeBooks(id) => self.compare_books(*id, outcome),
            Command::Export => match outcome {
                Outcome::Exported(state) => self.compare_export(state),
                other => differs(other, "the durable state"),
            },
        }
    }

    fn compare_place(&mut self, request: &PlacementRequest, outcome: &Outcome) -> Result<(), String> {
        // What a refusal must say is computed before anything moves.
        let expected_refusal = self.refusal(request);
        let answer = if let Outcome::Placed(placement) = outcome { Some(placement.node) } else { None };
        match (self.place(request, answer), outcome) {
            (Some(expected), Outcome::Placed(placement)) if expected == *placement => Ok(()),
            (None, Outcome::Refused(refusal)) => {
                let expected = Refusal { growth: refusal.growth, ..expected_refusal };
                if **refusal != expected {
                    return differs(refusal, expected);
                }
                self.compare_growth(refusal.growth)
            }
            (expected, other) => differs(other, expected),
        }
    }

    /// The growth counter stands still exactly while nothing happened that could help.
    fn compare_growth(&mut self, growth: u64) -> Result<(), String> {
        let right = match self.settled_growth {
            Some(settled) => growth == settled,
            None => growth > self.last_growth || self.nodes.is_empty(),
        };
        if !right {
            return Err(format!("growth is {growth} after {}, {:?}", self.last_growth, self.settled_growth));
        }
        self.settled_growth = Some(growth);
        self.last_growth = growth;
        Ok(())
    }

    fn refusal(&self, request: &PlacementRequest) -> Refusal {
        let count = self.nodes.len() as u64;
        let mut refusal = Refusal { nodes: count, examined: count, ..Refusal::default() };
        for node in &self.nodes {
            refusal.feasible |= named(request, node) && node.could_hold(&request.demand);
            if request.candidates.as_ref().is_some_and(|ids| !ids.contains(&node.registration.id)) {
                count_lack(&mut refusal.checks, Check::Candidates, 0);
            } else if request.selector.as_ref().is_some_and(|selector| !node.satisfies(selector)) {
                count_lack(&mut refusal.checks, Check::Selector, 0);
            } else if node.draining {
                count_lack(&mut refusal.checks, Check::NotReady, 0);
            } else {
                for lack in node.lacks(&request.demand) {
                    let (check, short) = match lack {
                        Lack::Cpu(short) => (Check::Cpu, short),
                        Lack::Memory(short) => (Check::Memory, short),
                        Lack::WholeGpus(short) => (Check::WholeGpus, short),
                        Lack::GpuPart(short) => (Check::GpuPart, short),
                        Lack::Custom(id, short) => (Check::Custom(id), short),
                        Lack::Pieces(id, short) => (Check::Fragmented(id), short),
                    };
                    count_lack(&mut refusal.checks, check, short);
                }
            }
        }
        refusal
    }

    fn node_mut(&mut self, id: NodeId) -> Option<&mut LinearNode> {
        self.nodes.iter_mut().find(|node| node.registration.id == id)
    }

    fn release(&mut self, id: AllocationId) -> bool {
        let Some(held) = self.allocations.remove(&id) else {
            return false;
        };
        let node = self.node_mut(held.node).expect("allocations end with their node");
        node.change_use(&held.demand, held.gpus, held.units.as_ref(), -1);
        self.released += 1;
        self.settled_growth = None;
        true
    }

    fn update(&mut self, id: NodeId, spec: &NodeSpec) -> bool {
        let Some(node) = self.node_mut(id) else {
            return false;
        };
        node.registration.spec = spec.clone();
        node.version += 1;
        self.settled_growth = None;
        true
    }

    fn set_state(&mut self, id: NodeId, state: NodeState) -> bool {
        let Some(node) = self.node_mut(id) else {
            return false;
        };
        let draining = state == NodeState::Draining;
        if node.draining != draining {
            node.draining = draining;
            node.version += 1;
            if !draining {
                self.settled_growth = None;
            }
        }
        true
    }

    fn compare_remove(&mut self, id: NodeId, force: bool, outcome: &Outcome) -> Result<(), String> {
        let Some(allocations) = self.node_mut(id).map(|node| node.allocations) else {
            return compare_node_outcome(id, false, outcome, false);
        };
        if allocations > 0 && !force {
            let expected = Rejection::NodeInUse { node: id, allocations };
            return match outcome {
                Outcome::Rejected(rejection) if *rejection == expected => Ok(()),
                other => differs(other, expected),
            };
        }
        let held: Vec<AllocationId> =
            self.allocations.iter().filter(|(_, held)| held.node == id).map(|(&id, _)| id).collect();
        for allocation in held {
            self.release(allocation);
        }
        self.nodes.retain(|node| node.registration.id != id);
        match outcome {
            Outcome::NodeRemoved { node, allocations_ended }
                if (*node, *allocations_ended) == (id, allocations) =>
            {
                Ok(())
            }
            other => differs(other, format!("{id} removed with {allocations} allocations")),
        }
    }

    fn compare_status(&self, status: &ShardStatus) -> Result<(), String> {
        let draining = self.nodes.iter().filter(|node| node.draining).count();
        let counts = (
            status.nodes_ready as usize,
            status.nodes_draining as usize,
            status.allocations as usize,
            status.placed,
            status.refused,
            status.released,
        );
        let expected = (
            self.nodes.len() - draining,
            draining,
            self.allocations.len(),
            self.placed,
            self.refused,
            self.released,
        );
        if counts != expected {
            return differs(counts, expected);
        }
        let waiting: u64 = status.waiting.iter().map(|shape| shape.homes).sum();
        if waiting != self.parked.len() as u64 {
            return differs(&status.waiting, &self.parked);
        }
        let sums = self.sums();
        for &(kind, sum) in &status.resources {
            let expected = sums.get(&kind).copied().unwrap_or_default();
            if sum != expected {
                return differs((kind, sum), expected);
            }
        }
        let listed = |kind: &ResourceKind| status.resources.iter().any(|(listed, _)| listed == kind);
        match sums.iter().find(|(kind, sum)| **sum != ResourceSum::default() && !listed(kind)) {
            Some(missing) => Err(format!("the status does not list {missing:?}")),
            None => Ok(()),
        }
    }

    /// The books per resource over all nodes.
    #[must_use]
    pub fn sums(&self) -> BTreeMap<ResourceKind, ResourceSum> {
        let mut sums: BTreeMap<ResourceKind, ResourceSum> = BTreeMap::new();
        let mut add = |kind, total: i64, allocated: i64, shortfall: i64| {
            let sum = sums.entry(kind).or_default();
            sum.total += i128::from(total);
            sum.allocated += i128::from(allocated);
            sum.shortfall += i128::from(shortfall);
        };
        for node in &self.nodes {
            let spec = &node.registration.spec;
            let (used, beyond) = (node.used(), node.beyond());
            add(ResourceKind::Cpu, spec.cpu.units(), used[0], beyond[0]);
            add(ResourceKind::Memory, spec.memory.units(), used[1], beyond[1]);
            add(ResourceKind::Gpu, i64::from(spec.gpus) * DEVICE, used[2], beyond[2]);
            for &(id, total) in spec.custom.as_deref().unwrap_or(&[]) {
                add(ResourceKind::Custom(id), total.units(), 0, 0);
            }
            for (id, used) in node.custom_used() {
                let beyond = node.custom_beyond(id);
                add(ResourceKind::Custom(id), 0, used, beyond);
            }
        }
        sums
    }

    fn compare_export(&self, state: &ShardState) -> Result<(), String> {
        if state.policy.next_fit.0 != self.cursor {
            return differs(state.policy.next_fit, self.cursor);
        }
        let nodes: usize = state.partitions.iter().map(|partition| partition.nodes.len()).sum();
        if nodes != self.nodes.len() {
            return differs(nodes, self.nodes.len());
        }
        let mut allocations = self.allocations.clone();
        for partition in &state.partitions {
            if partition.sequence != self.sequences.get(&partition.id).copied().unwrap_or(0) {
                return differs(partition.sequence, &self.sequences);
            }
            for record in &partition.nodes {
                let node = self.nodes.iter().find(|node| node.registration == record.registration);
                let state = if record.state == NodeState::Draining { Some(true) } else { Some(false) };
                if node.map(|node| node.draining) != state
                    || node.map(|node| node.version) != Some(record.version)
                {
                    return differs(record, node);
                }
            }
            for record in &partition.allocations {
                let held = allocations.remove(&record.id);
                let same = held.as_ref().is_some_and(|held| {
                    (held.node, &held.demand, held.gpus) == (record.node, &record.demand, record.gpus)
                        && (&held.units, &held.external_id) == (&record.units, &record.external_id)
                });
                if !same || record.id.partition != partition.id {
                    return differs(record, held);
                }
            }
        }
        if allocations.is_empty() { Ok(()) } else { differs("no more allocations", allocations) }
    }
}

fn compare_not_parked(outcome: &Outcome) -> Result<(), String> {
    match outcome {
        Outcome::Rejected(Rejection::NotParked) => Ok(()),
        other => differs(other, "not parked"),
    }
}

fn named(request: &PlacementRequest, node: &LinearNode) -> bool {
    request.candidates.as_ref().is_none_or(|ids| ids.contains(&node.registration.id))
        && request.selector.as_ref().is_none_or(|selector| node.satisfies(selector))
}

fn count_lack(checks: &mut BTreeMap<Check, Shortage>, check: Check, short: i64) {
    let short = Amount::try_from_units(short).expect("no more than was asked");
    let known = checks.entry(check).or_insert(Shortage { nodes: 0, least: short });
    known.nodes += 1;
    if short < known.least {
        known.least = short;
    }
}

fn compare_node_outcome(id: NodeId, known: bool, outcome: &Outcome, done: bool) -> Result<(), String> {
    let refused = matches!(outcome, Outcome::Rejected(Rejection::UnknownNode(node)) if *node == id);
    if (known && done) || (!known && refused) {
        Ok(())
    } else {
        differs(outcome, format!("{id}, registered: {known}"))
    }
}

fn same_node(node: &LinearNode, view: &NodeView) -> bool {
    let gpus = (0..16u8).all(|i| i64::from(view.gpus_available.free(i)) == node.gpu_free(usize::from(i)));
    view.registration == node.registration
        && (view.state == NodeState::Draining) == node.draining
        && (view.version, view.allocations) == (node.version, node.allocations)
        && view.cpu_available.units() == node.cpu_free()
        && view.memory_available.units() == node.memory_free()
        && gpus
}
