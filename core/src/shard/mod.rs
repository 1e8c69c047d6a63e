//! A shard: the only writer of its partitions, and a state machine `step(batch, now) -> outcomes`.
//!
//! The same commands give the same outcomes and the same state, byte for byte, regardless of how they are split
//! into batches (`core/tests/engine/determinism.rs`). The thread that runs a shard is a thin loop around
//! [`Shard::step`], in [`executor`](crate::executor).

mod adoption;
mod audit;
mod audit_run;
mod books;
pub use books::{Book, InstanceBook, NodeBooks};
mod bundles;
mod claims;
pub use claims::ClaimEvent;
mod command;
pub use command::{
    Adoption, Audit, Command, Explain, Home, NodeView, Outcome, Park, Rejection, ResourceSum, ShardStatus,
    WaitToken,
};
mod cost;
pub use cost::{COSTS, Cost, CostFacts, Most};
mod could_hold;
mod explain;
mod fragmented;
mod granularity;
mod health;
mod holds;
mod homes;
mod hybrid;
mod hybrid_order;
pub use hybrid::{HybridSettings, WHOLE as HYBRID_WHOLE};
mod label_index;
mod ledger;
mod life;
mod memory;
mod named;
mod node_set;
mod offer;
mod order;
mod places;
mod prefetch;
mod put_off;
mod rank_parts;
mod ranked;
mod rankings;
mod releasing;
mod replica;
pub use replica::Planned;
mod reservations;
pub use reservations::{ReservationView, Reserve};
mod free_books;
mod reserved_search;
mod room;
mod selectors;
mod sequences;
mod shapes;
mod state;
mod state_hash;
mod withhold;
pub use state_hash::StateHashes;
mod statements;
mod status;
mod sums;
mod table;
mod tentative;
pub(crate) use tentative::Tentative;
mod totals;
mod views;
mod waiting;
pub use waiting::WaitingShape;
mod work;
pub use work::{Pages, ShardWork};

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fragmentation::Fragmentation;
use crate::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, ShardId};
use crate::index::{Candidates, DistBuckets, Geometry, Marks, PolicyState, Slot, Visits};
use crate::link::ShardFacts;
use crate::node::{NodeRegistration, NodeSpec, NodeState};
use crate::request::{Placement, PlacementRequest};
use crate::rng::Rng;
use crate::time::Time;
use adoption::ExternalIds;
use audit_run::Audits;
use bundles::Bundles;
use granularity::Granularity;
use hybrid_order::HybridOrder;
use ledger::{Allocation, Ledger};
use named::hint_shape;
use ranked::Eligibility;
use rankings::Rankings;
use replica::Replica;
use reservations::Reservations;
use selectors::{SelectorSets, SetId};
use sequences::Sequences;
use statements::Statements;
use sums::Sums;
use table::{NodeTable, Taken};
use views::Views;
use waiting::Waiting;

/// The configuration of a shard.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// The id of the shard within the process.
    pub shard: ShardId,
    /// The start of the service. Part of the ids of its allocations.
    pub incarnation: Incarnation,
    /// The partitions it owns.
    pub partitions: Vec<PartitionId>,
    /// The mapping from values to coordinates.
    pub geometry: Geometry,
    /// The seed of the Random policy.
    pub seed: u64,
    /// The settings of the hybrid policy.
    pub hybrid: HybridSettings,
}

/// A scheduler shard.
pub struct Shard {
    id: ShardId,
    incarnation: Incarnation,
    now: Time,
    nodes: NodeTable,
    /// Every registered node in order of registration, for lists.
    by_ordinal: BTreeMap<Ordinal, Slot>,
    index: DistBuckets,
    /// Every registered node at its capacity. Answers whether any node could ever hold a request.
    capacities: DistBuckets,
    ledger: Ledger,
    adopted: ExternalIds,
    selectors: SelectorSets,
    rankings: Rankings,
    /// Built when the policy is first used.
    hybrid: Option<HybridOrder>,
    hybrid_settings: HybridSettings,
    policy_state: PolicyState,
    sequences: Sequences,
    sums: Sums,
    waiting: Waiting,
    reservations: Reservations,
    statements: Statements,
    bundles: Bundles,
    /// Reserved nodes as their owners see them.
    reserved_tree: DistBuckets,
    growth: u64,
    /// The number of nodes that were lost or removed.
    losses: u64,
    visits: Visits,
    work: ShardWork,
    pages: Pages,
    audits: Audits,
    fragmentation: Fragmentation,
    granularity: Option<Box<Granularity>>,
    /// Set if views are made.
    views: Option<Box<Views>>,
    /// Set if this is a replica of a shard.
    replica: Option<Box<Replica>>,
}

impl Shard {
    /// Creates a shard without nodes.
    #[must_use]
    pub fn new(config: ShardConfig) -> Self {
        Self {
            id: config.shard,
            incarnation: config.incarnation,
            now: Time::default(),
            nodes: NodeTable::new(Arc::clone(config.geometry.custom())),
            by_ordinal: BTreeMap::new(),
            granularity: Granularity::of(&config.geometry),
            index: DistBuckets::new(config.geometry.clone()),
            capacities: DistBuckets::new(config.geometry.clone()),
            reserved_tree: DistBuckets::new(config.geometry),
            reservations: Reservations::default(),
            statements: Statements::default(),
            bundles: Bundles::default(),
            ledger: Ledger::default(),
            adopted: ExternalIds::default(),
            selectors: SelectorSets::default(),
            rankings: Rankings::default(),
            hybrid: None,
            hybrid_settings: config.hybrid,
            policy_state: PolicyState { next_fit: Ordinal(0), rng: Rng::new(config.seed) },
            sequences: Sequences::new(config.partitions),
            sums: Sums::default(),
            waiting: Waiting::default(),
            growth: 0,
            losses: 0,
            visits: Visits::default(),
            work: ShardWork::default(),
            pages: Pages::default(),
            audits: Audits::default(),
            fragmentation: Fragmentation::default(),
            views: None,
            replica: None,
        }
    }

    /// Carries out `batch` in order and appends one outcome per command.
    ///
    /// # Panics
    /// If an invariant of the shard is broken, or `now` goes backwards.
    pub fn step(&mut self, batch: impl IntoIterator<Item = Command>, now: Time, outcomes: &mut Vec<Outcome>) {
        self.begin_step(now);
        for command in batch {
            let outcome = self.handle_command(command);
            self.note_change(Some(&outcome));
            outcomes.push(outcome);
        }
    }

    /// Handles deadlines that have passed, before any command.
    fn begin_step(&mut self, now: Time) {
        assert!(self.replica.is_none(), "a replica carries out no commands");
        assert!(now >= self.now, "the clock went back from {:?} to {now:?}", self.now);
        self.now = now;
        if self.reservations.next_deadline() <= now {
            self.expire_reservations();
            self.note_change(None);
        }
        if self.statements.next_deadline() <= now {
            self.expire_statements();
            self.note_change(None);
        }
    }

    fn handle_command(&mut self, command: Command) -> Outcome {
        let done = match command {
            Command::Place(request) => return self.handle_place(&request),
            Command::Release(id) => self.handle_release(id),
            Command::AddNode(registration) => return self.handle_add_node(*registration, None),
            Command::RejoinNode { registration, version } => {
                return self.handle_add_node(*registration, Some(version));
            }
            Command::UpdateNode(node, spec) => self.handle_update_node(node, *spec),
            Command::Life(node, event) => self.handle_life(node, event),
            Command::Report(node, report) => self.handle_report(node, *report),
            Command::SetHealth(node, unhealthy) => self.handle_set_health(node, unhealthy),
            Command::RemoveNode { node, force } => self.handle_remove_node(node, force),
            Command::ListNodes { after, limit } => return Outcome::Nodes(self.list_nodes(after, limit)),
            Command::Status => return Outcome::Status(Box::new(self.status(None))),
            Command::Audit { number } => return self.handle_audit(number),
            Command::Explain(page) => return self.handle_explain(&page),
            Command::Adopt(adoption) => self.handle_adopt(*adoption),
            Command::SetResources(node, totals) => self.handle_set_resources(node, &totals),
            Command::NodeBooks(node) => self.node_books(node).map(|books| Outcome::Books(Box::new(books))),
            Command::Park(park) => return self.handle_park(*park),
            Command::Retry(token) => self.handle_retry(token),
            Command::Unpark(token) => self.handle_unpark(token),
            Command::Reserve(reserve) => self.handle_reserve(&reserve),
            Command::EndReservation(node, owner) => self.handle_end_reservation(node, owner),
            Command::Prepare(prepare) => return self.handle_prepare(*prepare),
            Command::Finish { statement, decision } => self.handle_finish(statement, decision),
            Command::Apply(part) => return self.handle_apply(&part),
            Command::PlaceInto { bundle, demand } => self.handle_place_into(bundle, &demand),
            Command::GoOn => return self.handle_go_on(),
            Command::Export => return Outcome::Exported(Box::new(self.export())),
        };
        done.unwrap_or_else(Outcome::Rejected)
    }

    fn handle_place(&mut self, request: &PlacementRequest) -> Outcome {
        if request.owner.is_some() || !self.reservations.is_empty() {
            return self.handle_place_with_reservations(request);
        }
        let scope = self.scope(request);
        match self.take_found(request, scope) {
            Some((slot, taken, alternative)) => self.placed(request, slot, taken, alternative),
            None => self.refused(request, scope),
        }
    }

    /// Takes what `request` asks from the node that its policy chooses. Also returns the number of the selector
    /// that matches.
    #[inline]
    fn take_found(&mut self, request: &PlacementRequest, scope: Eligibility) -> Option<(Slot, Taken, u8)> {
        match scope {
            Eligibility::Plain(set) if request.policy.is_fragmentation_aware() => {
                self.take_least_fragmented(request, set).map(|(slot, taken)| (slot, taken, 0))
            }
            Eligibility::Ranked(id) if request.policy.is_fragmentation_aware() => {
                self.take_least_fragmented_ranked(request, id)
            }
            Eligibility::Plain(set) => {
                self.find(request, set).map(|slot| (slot, self.nodes.take(slot, &request.demand), 0))
            }
            Eligibility::Ranked(id) => {
                let (found, alternative) = self.find_ranked(request, id);
                found.map(|slot| (slot, self.nodes.take(slot, &request.demand), alternative))
            }
        }
    }

    fn refused(&mut self, request: &PlacementRequest, scope: Eligibility) -> Outcome {
        self.sums.refused += 1;
        Outcome::Refused(Box::new(self.explain(request, scope)))
    }

    /// Records the allocation of what was taken.
    #[inline]
    fn placed(
        &mut self,
        request: &PlacementRequest,
        slot: Slot,
        (gpus, units): Taken,
        alternative: u8,
    ) -> Outcome {
        self.fragmentation.touch(slot);
        let id = self.next_id(slot);
        let node = self.nodes.hot(slot).id;
        self.follow_index(slot);
        self.follow_hybrid(slot);
        self.sums.allocate(slot, &request.demand);
        self.sums.placed += 1;
        let demand = request.demand.clone();
        let units_too = units.clone();
        let allocation = Allocation { id, demand, gpus, units: units_too, node: slot };
        self.ledger.insert(allocation, &mut self.nodes);
        Outcome::Placed(Placement { node, allocation: id, gpus, alternative, units })
    }

    /// Returns the id for a new allocation on a node.
    #[inline]
    fn next_id(&mut self, slot: Slot) -> AllocationId {
        let partition = self.nodes.hot(slot).partition;
        let sequence = self.sequences.next(partition);
        AllocationId { incarnation: self.incarnation, partition, sequence }
    }

    /// Returns the node that the request's policy chooses among those that fit now. `set` is the candidate set
    /// of its selector.
    fn find(&mut self, request: &PlacementRequest, set: Option<SetId>) -> Option<Slot> {
        if let Some(found) = self.find_among_many(request, set) {
            return found;
        }
        let asked = self.index.geometry().asked(&request.demand);
        let order = self.order_of(request);
        let named = self.named(request);
        if named.is_none()
            && let Some(found) = set.and_then(|set| self.find_in_unmarked(request, set))
        {
            return found;
        }
        let nodes = &self.nodes;
        let set = set.map(|set| self.selectors.at(set));
        let candidates = match (&named, set) {
            (Some(named), Some(set)) => match set.few() {
                Some(few) if few.len() < named.len() => Candidates::Walk(few),
                _ => Candidates::Walk(named),
            },
            (Some(named), None) => Candidates::Walk(named),
            (None, Some(set)) => set.candidates(),
            (None, None) => Candidates::All,
        };
        let demand = &request.demand;
        let shape = if named.is_none() { hint_shape(demand, set) } else { None };
        self.index.select_shape(
            shape.as_ref(),
            order,
            request.policy,
            &asked,
            candidates,
            &mut self.policy_state,
            &mut self.visits,
            |slot| {
                nodes.fits(slot, demand)
                    && set.is_none_or(|set| set.contains(slot))
                    && request
                        .candidates
                        .as_ref()
                        .is_none_or(|ids| ids.binary_search(&nodes.hot(slot).id).is_ok())
            },
        )
    }

    fn handle_release(&mut self, id: AllocationId) -> Result<Outcome, Rejection> {
        if !self.statements.is_quiet() {
            return self.release_with_reservations(id);
        }
        let allocation = self.ledger.remove(id, &mut self.nodes).ok_or(Rejection::UnknownAllocation(id))?;
        self.sums.release(allocation.node, &allocation.demand);
        self.give_back(&allocation);
        self.made_room(allocation.node);
        Ok(Outcome::Released(id))
    }

    /// Updates the books for an allocation that is no longer in the ledger.
    #[inline]
    fn give_back(&mut self, allocation: &Allocation) {
        self.adopted.forget(allocation.id);
        self.change_books(allocation.node, |nodes| {
            nodes.give(allocation.node, &allocation.demand, allocation.gpus, allocation.units.as_ref());
        });
        self.sums.exceptions_changed(&self.nodes, allocation.node);
        self.sums.released += 1;
    }

    /// Handles an increase of a node's available capacity. Claims are served first.
    fn available_grew(&mut self, slot: Slot) {
        self.grant_claims(slot);
        self.made_room(slot);
    }

    /// Updates the index for a node with more available capacity. Earlier refusals may be stale.
    #[inline]
    fn made_room(&mut self, slot: Slot) {
        self.growth += 1;
        self.fragmentation.touch(slot);
        self.follow_index(slot);
        self.follow_hybrid(slot);
        self.wake_for(slot, None);
    }

    /// Returns the marks that a node must have.
    fn marks_of(&self, slot: Slot) -> Marks {
        self.rankings.marks_of(slot, self.selectors.marks_of(slot))
    }

    fn add_node(&mut self, registration: NodeRegistration) -> Slot {
        assert!(
            self.sequences.owns(registration.partition),
            "node {} of partition {} came to shard {}, which does not own it",
            registration.id,
            registration.partition.0,
            self.id.0
        );
        let ordinal = registration.ordinal;
        let slot = self.nodes.insert(registration);
        let before = self.by_ordinal.insert(ordinal, slot);
        assert!(before.is_none(), "two nodes were registered as number {}", ordinal.0);
        self.fragmentation.touch_identity(slot);
        let spec = &self.nodes.cold(slot).registration.spec;
        self.selectors.node_labelled(slot, &spec.labels);
        self.rankings.node_joined(slot, spec);
        let marks = self.marks_of(slot);
        let state = self.nodes.state(slot);
        if state == NodeState::Ready {
            self.index.insert(slot, ordinal, &self.nodes.available(slot), marks);
            self.growth += 1;
        }
        self.capacities.insert(slot, ordinal, &self.nodes.capacity(slot), marks);
        self.sums.node_added(slot, &self.nodes.cold(slot).registration.spec, state);
        self.follow_hybrid(slot);
        self.waiting.homes.note_change(slot);
        self.node_resized(None, Some(slot));
        self.wake_for(slot, None);
        slot
    }

    fn slot(&self, node: NodeId) -> Result<Slot, Rejection> {
        self.nodes.slot(node).ok_or(Rejection::UnknownNode(node))
    }

    fn handle_update_node(&mut self, node: NodeId, spec: NodeSpec) -> Result<Outcome, Rejection> {
        let slot = self.slot(node)?;
        self.sums.node_leaves(&self.nodes, slot);
        let size_before = self.size_of(slot);
        self.change_books(slot, |nodes| nodes.respecify(slot, spec));
        self.fragmentation.touch_identity(slot);
        self.sums.node_returns(&self.nodes, slot);
        let spec = &self.nodes.cold(slot).registration.spec;
        self.selectors.node_labelled(slot, &spec.labels);
        self.rankings.node_changed(slot, spec);
        let marks = self.marks_of(slot);
        self.capacities.update(slot, &self.nodes.capacity(slot));
        self.capacities.mark(slot, marks);
        if self.index.contains(slot) {
            self.index.mark(slot, marks);
        }
        self.waiting.homes.note_change(slot);
        self.node_resized(size_before, Some(slot));
        self.replan_claims(slot);
        self.available_grew(slot);
        Ok(Outcome::NodeUpdated(node))
    }

    fn handle_remove_node(&mut self, node: NodeId, force: bool) -> Result<Outcome, Rejection> {
        let slot = self.slot(node)?;
        let allocations = self.nodes.hot(slot).allocations;
        if allocations > 0 && !force {
            return Err(Rejection::NodeInUse { node, allocations });
        }
        self.check_not_held(slot, node)?;
        self.work.nodes_looked_at += 1;
        self.work.allocations_looked_at += u64::from(allocations);
        self.end_claims(slot);
        self.end_reservation(slot);
        let ended: Vec<AllocationId> = self.ledger.of_node(slot, &self.nodes).map(|a| a.id).collect();
        assert!(
            ended.len() == allocations as usize,
            "node {node} counts {allocations} allocations, lists {}",
            ended.len()
        );
        let mut inside = 0;
        for id in ended {
            if let Outcome::BundleReleased { ended, .. } = self.handle_release(id)? {
                inside += ended;
            }
        }
        if self.index.contains(slot) {
            self.index.remove(slot);
        }
        self.nodes.set_health(slot, Vec::new());
        self.sums.exceptions_changed(&self.nodes, slot);
        self.capacities.remove(slot);
        self.selectors.node_removed(slot);
        self.rankings.node_removed(slot);
        self.leave_hybrid(slot);
        self.waiting.homes.note_removed();
        self.losses += 1;
        let state = self.nodes.state(slot);
        let size_before = self.size_of(slot);
        let version = self.nodes.hot(slot).version;
        let cold = self.nodes.remove(slot);
        self.by_ordinal.remove(&cold.registration.ordinal);
        self.node_resized(size_before, None);
        self.fragmentation.touch_identity(slot);
        self.sums.node_removed(slot, &cold.registration.spec, state);
        Ok(Outcome::NodeRemoved { node, allocations_ended: allocations + inside, version })
    }

    /// Returns the facts that the router may use without asking.
    #[must_use]
    pub fn facts(&mut self) -> ShardFacts {
        let mut highest = self.index.highest();
        if !self.reservations.is_empty() {
            highest = highest.highest(&self.reserved_tree.highest());
        }
        let highest = match &self.granularity {
            None => highest,
            Some(granularity) => granularity.published(self.index.geometry(), highest),
        };
        ShardFacts { growth: self.growth, highest, load: self.sums.load() }
    }

    /// Returns a counter that grows with each node that is lost or removed, and with each bundle that ends.
    #[must_use]
    pub fn endings(&self) -> u64 {
        self.losses + self.bundles.ended
    }

    /// Returns the cost of all searches so far.
    #[must_use]
    pub fn visits(&self) -> Visits {
        self.visits
    }
}
