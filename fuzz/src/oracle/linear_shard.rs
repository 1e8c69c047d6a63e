//! A shard as a plain list of nodes. It follows the same commands and computes the correct answer to each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_core::fragmentation::TypicalShapes;
use wharf_core::ids::{AllocationId, Incarnation, NodeId, ResourceId};
use wharf_core::index::Geometry;
use wharf_core::limits::ALLOCATIONS_PER_NODE_DEFAULT;
use wharf_core::node::{AgentReport, DEVICE_GONE, LifeEvent, NodeRegistration, NodeSpec, NodeState};
use wharf_core::request::{Check, Placement, PlacementRequest, Policy, Refusal, Shortage};
use wharf_core::resource::{Amount, Demand, GpuAssignment, UnitAssignments};
use wharf_core::rng::Rng;
use wharf_core::shard::{
    Command, HybridSettings, NodeChange, NodeRejection, Outcome, Refused, Released, UnknownAllocation,
    UnknownNode, WaitToken,
};
use wharf_core::time::Time;

use super::fragmentation::{FragmentationScan, Price};
use super::ids::GrantedIds;
use super::linear_granularity::Automatic;
use super::linear_leases::LinearLeases;
use super::linear_node::{Lack, LinearNode};
use super::linear_preferences::{choose_by_class, first_preferred, hybrid, named, selected, tainted};
use super::linear_waiting::compare_bare;
use super::{Choice, Fitting, Space, choose};

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) node: NodeId,
    pub(super) demand: Demand,
    pub(super) gpus: GpuAssignment,
    pub(super) units: Option<Arc<UnitAssignments>>,
    pub(super) external_id: Option<Arc<str>>,
}

/// A model of [`Shard`](wharf_core::shard::Shard) that gives the correct answers.
pub struct LinearShard {
    pub(super) space: Space,
    /// The custom resources that are indexed.
    pub(super) indexed: Vec<ResourceId>,
    pub(super) automatic: Automatic,
    pub(super) incarnation: Incarnation,
    /// The nodes in order of registration.
    pub(super) nodes: Vec<LinearNode>,
    pub(super) allocations: BTreeMap<AllocationId, Held>,
    pub(super) ids: GrantedIds,
    /// The ordinal of NextFit's last choice.
    pub(super) cursor: u64,
    /// The waiting requests.
    pub(super) parked: BTreeMap<WaitToken, PlacementRequest>,
    /// The watched bundles.
    pub(super) watched: BTreeSet<WaitToken>,
    pub(super) placed: u64,
    pub(super) refused: u64,
    pub(super) released: u64,
    /// The growth counter of the last refusal. `None` once something happened that could help a refused
    /// request.
    pub(super) settled_growth: Option<u64>,
    last_growth: u64,
    fragmentation: FragmentationScan,
    /// Set while a parked request is retried, because its arrival was already counted.
    pub(super) retrying: bool,
    hybrid: HybridSettings,
    pub(super) reserved_percent: u8,
    allocations_per_node_max: u32,
    pub(super) now: Time,
    pub(super) leases: LinearLeases,
    /// The shard's random state before the next placement, where the caller knows it.
    rng: Option<Rng>,
}

pub(super) fn differs<T: std::fmt::Debug, U: std::fmt::Debug>(got: T, expected: U) -> Result<(), String> {
    Err(format!("answered {got:?}, expected {expected:?}"))
}

impl LinearShard {
    /// Creates a shard without nodes.
    #[must_use]
    pub fn new(geometry: &Geometry, incarnation: Incarnation) -> Self {
        Self {
            space: Space::new(geometry),
            indexed: geometry.custom().to_vec(),
            automatic: Automatic::new(geometry),
            incarnation,
            nodes: Vec::new(),
            allocations: BTreeMap::new(),
            ids: GrantedIds::default(),
            cursor: 0,
            parked: BTreeMap::new(),
            watched: BTreeSet::new(),
            placed: 0,
            refused: 0,
            released: 0,
            settled_growth: Some(0),
            last_growth: 0,
            fragmentation: FragmentationScan::default(),
            retrying: false,
            hybrid: HybridSettings::default(),
            reserved_percent: 5,
            allocations_per_node_max: u32::from(ALLOCATIONS_PER_NODE_DEFAULT),
            now: Time::default(),
            leases: LinearLeases::default(),
            rng: None,
        }
    }

    /// Sets the rest of the geometry: attribute orders and weights.
    pub fn set_space(&mut self, space: Space) {
        self.space = space;
    }

    /// Sets the typical requests of the fragmentation-aware policies. Without them, they are learnt.
    pub fn set_typical_shapes(&mut self, typical: &TypicalShapes) {
        self.fragmentation.give(typical);
    }

    /// Sets how many allocations a node may have. It applies to nodes that are added later.
    pub fn set_allocations_per_node_max(&mut self, most: u16) {
        self.allocations_per_node_max = u32::from(most);
    }

    /// Sets the shard's random state before the next placement.
    pub fn set_rng(&mut self, rng: Rng) {
        self.rng = Some(rng);
    }

    /// Returns the live allocations in order of id.
    #[must_use]
    pub fn live(&self) -> Vec<AllocationId> {
        self.allocations.keys().copied().collect()
    }

    /// Returns a waiting request that some node could take now.
    #[must_use]
    pub fn waits_and_would_fit(&self) -> Option<WaitToken> {
        let mut parked = self.parked.iter();
        parked.find(|(_, request)| !self.fitting_places(request).is_empty()).map(|(&token, _)| token)
    }

    /// Returns all waiting requests and watched bundles.
    #[must_use]
    pub fn waiting(&self) -> Vec<WaitToken> {
        self.parked.keys().chain(&self.watched).copied().collect()
    }

    /// Returns whether a bundle is watched by this token.
    pub fn is_watched(&self, token: WaitToken) -> bool {
        self.watched.contains(&token)
    }

    /// Returns the nodes that can take `request` now.
    #[must_use]
    pub fn fitting(&self, request: &PlacementRequest) -> Vec<NodeId> {
        self.fitting_places(request).into_iter().map(|at| self.nodes[at].registration.id).collect()
    }

    fn fitting_places(&self, request: &PlacementRequest) -> Vec<usize> {
        let nodes = self.seen_by(request.owner);
        (0..nodes.len())
            .filter(|&at| {
                let node = &nodes[at];
                named(request, node)
                    && node.state() == NodeState::Ready
                    && node.lacks(&request.demand).is_empty()
            })
            .collect()
    }

    /// Places `request`. Where the policy permits several nodes, it takes `answer` if that is one of them, and
    /// otherwise the first.
    pub fn place(&mut self, request: &PlacementRequest, answer: Option<NodeId>) -> Option<Placement> {
        let order = self.order_of(request);
        let seen = self.seen_by(request.owner);
        let mut fitting: Vec<Fitting<usize>> = self
            .fitting_places(request)
            .into_iter()
            .map(|at| Fitting {
                ordinal: self.nodes[at].registration.ordinal.0,
                coordinate: self.space.compared(order, &seen[at].available(&self.indexed)),
                node: at,
            })
            .collect();
        if request.owner.is_some() && fitting.iter().any(|f| self.nodes[f.node].is_kept_for(request.owner)) {
            fitting.retain(|f| self.nodes[f.node].is_kept_for(request.owner));
        }
        let aware = request.policy.is_fragmentation_aware();
        if aware && !self.retrying {
            self.fragmentation.handle_arrival(request);
        }
        let nodes = &seen;
        let cursor = &mut self.cursor;
        let fragmentation = &mut self.fragmentation;
        let settings = self.hybrid;
        let rng = &mut self.rng;
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
            seen[at].price(&mut self.fragmentation, request).gpus
        } else {
            seen[at].instances_for(request.demand.gpu)
        };
        let units = seen[at].all_units_for(&request.demand);
        let placement = self.take(request, at, gpus, units, alternative);
        self.use_reservation(at, request);
        Some(placement)
    }

    fn take(
        &mut self,
        request: &PlacementRequest,
        at: usize,
        gpus: GpuAssignment,
        units: Option<Arc<UnitAssignments>>,
        alternative: u8,
    ) -> Placement {
        let node = &mut self.nodes[at];
        node.change_use(&request.demand, gpus, units.as_ref(), 1);
        let id = node.registration.id;
        let allocation = self.ids.next(self.incarnation, node.registration.partition, request.tenant);
        let demand = request.demand.clone();
        let external_id = None;
        self.allocations
            .insert(allocation, Held { node: id, demand, gpus, units: units.clone(), external_id });
        self.placed += 1;
        self.begin_lease(allocation, request);
        Placement { node: id, allocation, gpus, alternative, units }
    }

    /// Carries out `command` and compares the result with the shard's answer.
    ///
    /// # Errors
    /// Returns the difference.
    pub fn compare(&mut self, command: &Command, outcome: &Outcome) -> Result<(), String> {
        self.ids.tell(outcome);
        match command {
            Command::Place(request) => self.compare_place(request, outcome),
            Command::Release(id) => self.compare_release(*id, outcome),
            Command::AddNode(registration) => self.compare_add(registration, None, outcome),
            Command::RejoinNode { registration, version } => {
                self.compare_add(registration, Some(*version), outcome)
            }
            Command::UpdateNode(id, spec) => {
                let known = self.update(*id, spec);
                compare_node_outcome(
                    *id,
                    known,
                    outcome,
                    matches!(outcome, Outcome::Node(Ok(NodeChange::Updated(n))) if n == id),
                )
            }
            Command::Life(id, event) => self.compare_life(*id, *event, outcome),
            Command::Report(id, report) => {
                self.report(*id, report);
                self.compare_life(*id, LifeEvent::Report, outcome)
            }
            Command::SetHealth(id, unhealthy) => {
                let known = self.set_health(*id, unhealthy);
                let done = matches!(outcome, Outcome::Node(Ok(NodeChange::Health(n))) if n == id);
                compare_node_outcome(*id, known, outcome, done)
            }
            Command::RemoveNode { node, force } => self.compare_remove(*node, *force, outcome),
            Command::ListNodes { after, limit } => self.compare_list(*after, *limit, outcome),
            Command::Status | Command::Audit { .. } => match (command, outcome) {
                (_, Outcome::Status(status)) => self.compare_status(status),
                (Command::Audit { .. }, Outcome::Auditing(_)) => Ok(()),
                (_, other) => differs(other, "a status"),
            },
            Command::Adopt(adoption) => self.compare_adopt(adoption, outcome),
            Command::SetResources(id, totals) => self.compare_set_resources(*id, totals, outcome),
            Command::Park(park) => self.compare_park(park, outcome),
            Command::Retry(token) => self.compare_retry(*token, outcome),
            Command::Unpark(token) => self.compare_unpark(*token, outcome),
            Command::Watch(watch) => {
                self.watched.insert(watch.token);
                compare_bare(outcome, &Outcome::Watches)
            }
            Command::Rearm { token, .. } => {
                let waits = self.watched.contains(token);
                compare_bare(outcome, if waits { &Outcome::Watches } else { &Outcome::NotParked })
            }
            Command::NodeBooks(id) => self.compare_books(*id, outcome),
            Command::Reserve(reserve) => self.compare_reserve(reserve, outcome),
            Command::EndReservation(id, owner) => self.compare_end(*id, *owner, outcome),
            Command::GoOn => self.compare_go_on(outcome),
            Command::RenewLease { .. } | Command::RenewSession { .. } => {
                self.compare_renewal(command, outcome)
            }
            Command::Export => match outcome {
                Outcome::Exported(state) => self.compare_export(state),
                other => differs(other, "the durable state"),
            },
            Command::ListWaiting { .. } | Command::CountTurns(_) => panic!("not of this oracle: {command:?}"),
            Command::Explain(_) => panic!("this oracle counts all nodes at once: {command:?}"),
            Command::Checkpoint { .. } => panic!("this oracle rebuilds nothing: {command:?}"),
            Command::Prepare(_) | Command::Finish { .. } | Command::Apply(_) | Command::PlaceInto { .. } => {
                panic!("this oracle knows no statements: {command:?}")
            }
        }
    }

    fn compare_release(&mut self, id: AllocationId, outcome: &Outcome) -> Result<(), String> {
        match (self.release(id), outcome) {
            (true, Outcome::Release(Ok(Released { allocation: answered, inside: None })))
                if *answered == id =>
            {
                Ok(())
            }
            (false, Outcome::Release(Err(UnknownAllocation(answered)))) if *answered == id => Ok(()),
            (live, other) => differs(other, format!("{id}, live: {live}")),
        }
    }

    fn compare_add(
        &mut self,
        registration: &NodeRegistration,
        former: Option<u64>,
        outcome: &Outcome,
    ) -> Result<(), String> {
        self.nodes.push(LinearNode {
            allocations_max: self.allocations_per_node_max,
            version: former.map_or(0, |version| version + 1),
            ..LinearNode::new(registration.clone())
        });
        self.nodes.sort_by_key(|node| node.registration.ordinal);
        self.node_resized();
        if registration.agent.is_none() {
            self.settled_growth = None;
        }
        match outcome {
            Outcome::Node(Ok(NodeChange::Added(id))) if *id == registration.id => Ok(()),
            other => differs(other, registration.id),
        }
    }

    pub(super) fn compare_place(
        &mut self,
        request: &PlacementRequest,
        outcome: &Outcome,
    ) -> Result<(), String> {
        // The expected refusal is computed before anything changes.
        let expected_refusal = self.refusal(request);
        let answer = if let Outcome::Place(Ok(placement)) = outcome { Some(placement.node) } else { None };
        match (self.place(request, answer), outcome) {
            (Some(expected), Outcome::Place(Ok(placement))) if expected == *placement => Ok(()),
            (None, Outcome::Place(Err(Refused { refusal, parked: false }))) => {
                let expected = Refusal { growth: refusal.growth, ..expected_refusal };
                if **refusal != expected {
                    return differs(refusal, expected);
                }
                self.compare_growth(refusal.growth)
            }
            (expected, other) => differs(other, expected),
        }
    }

    /// Checks the growth counter. It stays the same exactly while nothing happened that could help.
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
            if request
                .candidates
                .as_ref()
                .is_some_and(|ids| ids.binary_search(&node.registration.id).is_err())
            {
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
            } else if node.is_kept_from(request) {
                count_lack(&mut refusal.checks, Check::Reserved, 0);
            } else {
                for lack in node.as_seen_by(request.owner).lacks(&request.demand) {
                    let (check, short) = match lack {
                        Lack::Allocations => (Check::Allocations, 0),
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

    pub(super) fn release(&mut self, id: AllocationId) -> bool {
        let Some(held) = self.allocations.remove(&id) else {
            return false;
        };
        let node = self.node_mut(held.node).expect("allocations end with their node");
        node.change_use(&held.demand, held.gpus, held.units.as_ref(), -1);
        self.released += 1;
        self.leases.end(id);
        self.settled_growth = None;
        true
    }

    pub(super) fn update(&mut self, id: NodeId, spec: &NodeSpec) -> bool {
        let Some(node) = self.node_mut(id) else {
            return false;
        };
        node.update(spec.clone());
        self.settled_growth = None;
        self.node_resized();
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

    /// Applies an agent's report. Reports in these runs name devices in the same order and always the same
    /// boot. So missing devices are the last ones, and they stay as unhealthy instances.
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
        // Taints belong to the operator.
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
            self.node_resized();
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
            Outcome::Node(Ok(NodeChange::State(node, state))) if legal && (*node, *state) == (id, after) => {
                Ok(())
            }
            Outcome::Node(Err(NodeRejection::IllegalChange(node, illegal)))
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
            let expected = NodeRejection::InUse(id, allocations);
            return match outcome {
                Outcome::Node(Err(rejection)) if *rejection == expected => Ok(()),
                other => differs(other, expected),
            };
        }
        let held: Vec<AllocationId> =
            self.allocations.iter().filter(|(_, held)| held.node == id).map(|(&id, _)| id).collect();
        for allocation in held {
            self.release(allocation);
        }
        if self.node_mut(id).is_some_and(|node| node.reservation.is_some()) {
            self.settled_growth = None;
        }
        self.nodes.retain(|node| node.registration.id != id);
        self.node_resized();
        match outcome {
            Outcome::Node(Ok(NodeChange::Removed { node, allocations_ended, .. }))
                if (*node, *allocations_ended) == (id, allocations) =>
            {
                Ok(())
            }
            other => differs(other, format!("{id} removed with {allocations} allocations")),
        }
    }
}

fn count_lack(checks: &mut BTreeMap<Check, Shortage>, check: Check, short: i64) {
    let short = Amount::try_from_units(short).expect("no more than was asked");
    let known = checks.entry(check).or_insert(Shortage { nodes: 0, least: short });
    known.nodes += 1;
    if short < known.least {
        known.least = short;
    }
}

pub(super) fn compare_node_outcome(
    id: NodeId,
    known: bool,
    outcome: &Outcome,
    done: bool,
) -> Result<(), String> {
    let refused =
        matches!(outcome, Outcome::Node(Err(NodeRejection::Unknown(UnknownNode(node)))) if *node == id);
    if (known && done) || (!known && refused) {
        Ok(())
    } else {
        differs(outcome, format!("{id}, registered: {known}"))
    }
}

/// Prices every device of every node in a class and returns the cheapest node, the first among equals.
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
