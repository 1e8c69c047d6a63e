//! A shard as a plain list of nodes: follows the same commands and says what each must answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_core::fragmentation::TypicalShapes;
use wharf_core::ids::{AllocationId, Incarnation, NodeId, PartitionId};
use wharf_core::index::{Dimension, Geometry};
use wharf_core::node::{AgentReport, DEVICE_GONE, LifeEvent, NodeSpec, NodeState};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuAssignment};
use wharf_core::rng::Rng;
use wharf_core::shard::{
    Check, Command, HybridSettings, NodeView, Outcome, Placement, Refusal, Rejection, ResourceKind,
    ResourceSum, ShardStatus, Shortage,
};
use wharf_core::store::ShardState;

use super::fragmentation::{FragmentationScan, Price};
use super::linear_node::{DEVICE, Lack, LinearNode, custom_total};
use super::linear_preferences::{choose_by_class, first_preferred, hybrid, selected, tainted};
use super::{Choice, Fitting, choose, coordinate};

#[derive(Clone, Debug)]
struct Held {
    node: NodeId,
    demand: Demand,
    gpus: GpuAssignment,
}

/// What a [`Shard`](wharf_core::shard::Shard) must answer.
pub struct LinearShard {
    dimensions: Vec<(Dimension, i64)>,
    incarnation: Incarnation,
    /// In order of registration.
    nodes: Vec<LinearNode>,
    allocations: BTreeMap<AllocationId, Held>,
    sequences: BTreeMap<PartitionId, u64>,
    /// The ordinal of NextFit's last choice.
    cursor: u64,
    placed: u64,
    refused: u64,
    released: u64,
    /// The growth counter of the last refusal, while nothing happened since that could help.
    settled_growth: Option<u64>,
    last_growth: u64,
    fragmentation: FragmentationScan,
    hybrid: HybridSettings,
    /// The shard's random state before the next placement, where the caller knows it.
    rng: Option<Rng>,
}

fn differs<T: std::fmt::Debug, U: std::fmt::Debug>(got: T, expected: U) -> Result<(), String> {
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
            placed: 0,
            refused: 0,
            released: 0,
            settled_growth: Some(0),
            last_growth: 0,
            fragmentation: FragmentationScan::default(),
            hybrid: HybridSettings::default(),
            rng: None,
        }
    }

    /// Gives the typical requests of the fragmentation-aware policies; learnt if none are given.
    pub fn set_typical_shapes(&mut self, typical: &TypicalShapes) {
        self.fragmentation.give(typical);
    }

    /// Tells the random state of the shard before the next placement.
    pub fn set_rng(&mut self, rng: Rng) {
        self.rng = Some(rng);
    }

    /// The live allocations, in order of id.
    #[must_use]
    pub fn live(&self) -> Vec<AllocationId> {
        self.allocations.keys().copied().collect()
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
                named(request, node)
                    && node.state() == NodeState::Ready
                    && node.lacks(&request.demand).is_empty()
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
        let aware = request.policy.is_fragmentation_aware();
        if aware {
            self.fragmentation.handle_arrival(request);
        }
        let (nodes, cursor, fragmentation) = (&self.nodes, &mut self.cursor, &mut self.fragmentation);
        let (settings, rng) = (self.hybrid, &mut self.rng);
        let is_hybrid = request.policy == Policy::Hybrid;
        let preferred = |class: &[Fitting<usize>]| {
            if is_hybrid { None } else { first_preferred(request, nodes, class).map(Choice::Only) }
        };
        let decided = choose_by_class(request, nodes, &fitting, preferred, |class| {
            if is_hybrid {
                hybrid(request, nodes, class, settings, rng.as_mut())
            } else if aware {
                cheapest(request, nodes, class, fragmentation)
            } else {
                choose(request.policy, class, cursor)
            }
        });
        let (choice, alternative) = decided.unwrap_or((Choice::Nothing, 0));
        let at = match choice {
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
        let gpus = if aware {
            self.nodes[at].price(&mut self.fragmentation, request).gpus
        } else {
            self.nodes[at].instances_for(request.demand.gpu)
        };
        Some(self.take(request, at, gpus, alternative))
    }

    fn take(
        &mut self,
        request: &PlacementRequest,
        at: usize,
        gpus: GpuAssignment,
        alternative: u8,
    ) -> Placement {
        let node = &mut self.nodes[at];
        node.change_use(&request.demand, gpus, 1);
        let (id, partition) = (node.registration.id, node.registration.partition);
        let sequence = self.sequences.entry(partition).or_insert(0);
        *sequence += 1;
        let allocation = AllocationId { incarnation: self.incarnation, partition, sequence: *sequence };
        self.allocations.insert(allocation, Held { node: id, demand: request.demand.clone(), gpus });
        self.placed += 1;
        Placement { node: id, allocation, gpus, alternative }
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
                if registration.agent.is_none() {
                    self.settled_growth = None;
                }
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
            Command::Life(id, event) => self.compare_life(*id, *event, outcome),
            Command::Report(id, report) => {
                self.report(*id, report);
                self.compare_life(*id, LifeEvent::Report, outcome)
            }
            Command::SetHealth(id, unhealthy) => {
                let known = self.set_health(*id, unhealthy);
                let done = matches!(outcome, Outcome::HealthSet(n) if n == id);
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
                let affinity = request.preferences.as_ref().is_some_and(|p| p.affinity);
                let check = match request.candidates.as_deref() {
                    Some([node]) if affinity => Check::Affinity(*node),
                    _ => Check::Candidates,
                };
                count_lack(&mut refusal.checks, check, 0);
            } else if !selected(request, node) {
                count_lack(&mut refusal.checks, Check::Selector, 0);
            } else if tainted(request, node) {
                count_lack(&mut refusal.checks, Check::Taint, 0);
            } else if node.state() != NodeState::Ready {
                count_lack(&mut refusal.checks, Check::NotReady, 0);
            } else {
                for lack in node.lacks(&request.demand) {
                    let (check, short) = match lack {
                        Lack::Cpu(short) => (Check::Cpu, short),
                        Lack::Memory(short) => (Check::Memory, short),
                        Lack::WholeGpus(short) => (Check::WholeGpus, short),
                        Lack::GpuPart(short) => (Check::GpuPart, short),
                        Lack::Custom(id, short) => (Check::Custom(id), short),
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
        node.change_use(&held.demand, held.gpus, -1);
        self.released += 1;
        self.settled_growth = None;
        true
    }

    fn update(&mut self, id: NodeId, spec: &NodeSpec) -> bool {
        let Some(node) = self.node_mut(id) else {
            return false;
        };
        node.update(spec.clone());
        self.settled_growth = None;
        true
    }

    fn set_health(&mut self, id: NodeId, unhealthy: &[(u8, Arc<str>)]) -> bool {
        let Some(node) = self.node_mut(id) else {
            return false;
        };
        if node.set_health(unhealthy) {
            self.settled_growth = None;
        }
        true
    }

    /// Reports of the operations name their devices in the same order and boot each time: devices
    /// that are missing are the last ones, and stay as unhealthy instances.
    fn report(&mut self, id: NodeId, report: &AgentReport) {
        let Some(node) = self.node_mut(id) else {
            return;
        };
        let mut facts = node.registration.agent.as_deref().cloned().unwrap_or_default();
        facts.boot = Arc::clone(&report.boot);
        let mut unhealthy: Vec<(u8, Arc<str>)> = Vec::new();
        for (instance, (device, fault)) in (0u8..).zip(&report.gpus) {
            if usize::from(instance) == facts.gpus.len() {
                facts.gpus.push(device.clone());
            }
            unhealthy.extend(fault.iter().map(|fault| (instance, Arc::clone(fault))));
        }
        unhealthy.extend((report.gpus.len()..facts.gpus.len()).map(|i| (i as u8, DEVICE_GONE.into())));
        // An agent has no say in taints.
        let taints = node.registration.spec.taints.clone();
        let spec = NodeSpec { gpus: facts.gpus.len() as u8, taints, ..report.spec.clone() };
        let updated = node.registration.spec != spec;
        if updated {
            node.update(spec);
        }
        let facts = Some(Arc::new(facts));
        node.version += u64::from(node.registration.agent != facts);
        node.registration.agent = facts;
        if updated {
            self.settled_growth = None;
        }
        self.set_health(id, &unhealthy);
    }

    fn compare_life(&mut self, id: NodeId, event: LifeEvent, outcome: &Outcome) -> Result<(), String> {
        let Some(node) = self.node_mut(id) else {
            return compare_node_outcome(id, false, outcome, false);
        };
        let before = node.state();
        let legal = node.live(event);
        let after = node.state();
        if before != after && after == NodeState::Ready {
            self.settled_growth = None;
        }
        match outcome {
            Outcome::StateSet(node, state) if legal && (*node, *state) == (id, after) => Ok(()),
            Outcome::Rejected(Rejection::IllegalChange { node, illegal })
                if !legal && *node == id && (illegal.state, illegal.event) == (before, event) =>
            {
                Ok(())
            }
            other => differs(other, format!("{id} {after:?} after {before:?}, legal: {legal}")),
        }
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
        let in_state =
            |names: &[NodeState]| self.nodes.iter().filter(|node| names.contains(&node.state())).count();
        let lost = [NodeState::Lost { draining: false }, NodeState::Lost { draining: true }];
        let counts = (
            status.nodes_ready as usize,
            status.nodes_draining as usize,
            status.nodes_joining as usize,
            status.nodes_lost as usize,
            status.allocations as usize,
            status.placed,
            status.refused,
            status.released,
        );
        let expected = (
            in_state(&[NodeState::Ready]),
            in_state(&[NodeState::Draining]),
            in_state(&[NodeState::Joining]),
            in_state(&lost),
            self.allocations.len(),
            self.placed,
            self.refused,
            self.released,
        );
        if counts != expected {
            return differs(counts, expected);
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
        let mut hidden = 0;
        for node in &self.nodes {
            let spec = &node.registration.spec;
            let (used, beyond) = (node.used(), node.beyond());
            add(ResourceKind::Cpu, spec.cpu.units(), used[0], beyond[0]);
            add(ResourceKind::Memory, spec.memory.units(), used[1], beyond[1]);
            add(ResourceKind::Gpu, i64::from(spec.gpus) * DEVICE, used[2], beyond[2]);
            hidden += i128::from(node.gpu_hidden());
            for &(id, total) in spec.custom.as_deref().unwrap_or(&[]) {
                add(ResourceKind::Custom(id), total.units(), 0, 0);
            }
            for (id, used) in node.custom_used() {
                let beyond = (used - custom_total(spec, id)).max(0);
                add(ResourceKind::Custom(id), 0, used, beyond);
            }
        }
        sums.entry(ResourceKind::Gpu).or_default().unhealthy = hidden;
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
                let unhealthy = record.unhealthy.iter().cloned().collect();
                if node.map(|node| (node.state(), node.version, &node.unhealthy))
                    != Some((record.state, record.version, &unhealthy))
                {
                    return differs(record, node);
                }
            }
            for record in &partition.allocations {
                let held = allocations.remove(&record.id);
                let same = held.as_ref().is_some_and(|held| {
                    (held.node, &held.demand, held.gpus) == (record.node, &record.demand, record.gpus)
                });
                if !same || record.id.partition != partition.id {
                    return differs(record, held);
                }
            }
        }
        if allocations.is_empty() { Ok(()) } else { differs("no more allocations", allocations) }
    }
}

fn named(request: &PlacementRequest, node: &LinearNode) -> bool {
    request.candidates.as_ref().is_none_or(|ids| ids.contains(&node.registration.id))
        && selected(request, node)
        && !tainted(request, node)
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
        && view.state == node.state()
        && view.unhealthy.iter().cloned().eq(node.unhealthy.clone())
        && (view.version, view.allocations) == (node.version, node.allocations)
        && view.cpu_available.units() == node.cpu_free()
        && view.memory_available.units() == node.memory_free()
        && gpus
}

/// Prices every device of every node of a class; the cheapest node, of equals the first.
fn cheapest(
    request: &PlacementRequest,
    nodes: &[LinearNode],
    class: &[Fitting<usize>],
    fragmentation: &mut FragmentationScan,
) -> Choice<usize> {
    let mut best: Option<(Price, usize)> = None;
    for &Fitting { node: at, .. } in class {
        let price = nodes[at].price(fragmentation, request);
        if best.is_none_or(|(least, _)| price.cost < least.cost) {
            best = Some((price, at));
        }
    }
    best.map_or(Choice::Nothing, |(_, at)| Choice::Only(at))
}
