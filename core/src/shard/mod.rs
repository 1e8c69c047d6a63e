//! A shard: the only writer of its partitions, and a state machine `step(batch, now) -> outcomes`.
//!
//! The same commands give the same outcomes and the same state, byte for byte, regardless of how they are split
//! into batches (`core/tests/engine/determinism.rs`). The thread that runs a shard is a thin loop around
//! [`Shard::step`], in [`executor`](crate::executor).

mod audit;
mod books;
pub use books::{Book, ClaimEvent, InstanceBook, NodeBooks, Reserve};
mod choose;
pub use choose::{HYBRID_WHOLE, HybridSettings};
mod command;
pub use command::{
    Adoption, Audit, Command, Explain, Home, NodeChange, NodeReply, NodeView, Outcome, Park, Refused,
    Released, ReservationChange, ReservationReply, ResourceSum, ShardStatus, WaitToken, Watch,
};
mod journal;
pub use journal::CheckpointPage;
use journal::Journaled;
mod leases;
pub use leases::{RenewedLease, RenewedSession};
mod lines;
pub use lines::{ChoiceLines, NodeLines, ReadLine, RecordLines};
mod memory;
mod near;
mod node_commands;
mod pending;
pub use pending::{CountTurns, TurnsCounted, TurnsFrom, WaitingPlacementsPage, WaitingShape};
mod prefetch;
mod publish;
mod refused;
mod rejection;
pub use rejection::{
    AdoptionRejection, BundleRejection, LeaseRejection, NodeRejection, ReservationRejection,
    TooManyAllocations, UnknownAllocation, UnknownNode, UnknownStatement,
};
mod replica;
pub use replica::Planned;
mod state;
mod state_hash;
pub use state_hash::StateHashes;
mod statements;
mod status;
mod tentative;
pub(crate) use tentative::Tentative;
mod work;
pub use work::{Pages, ShardWork};

use std::sync::Arc;

use crate::ids::{AllocationId, Incarnation, NodeId, OwnerId, PartitionId, ShardId};
use crate::index::{Geometry, Slot, Visits};
use crate::journal::BeginCause;
use crate::limits::{GO_ON_LOOKS_MAX, HOME_LOOKS_MAX};
use crate::link::ShardFacts;
use crate::request::{Placement, PlacementRequest};
use crate::resource::Demand;
use crate::time::Time;
use crate::view::EndCause;
use audit::AuditState;
use books::{Books, Dirty};
use choose::{Choice, Choose};
use pending::Waiting;
use publish::Publish;
use replica::Replica;
use statements::Statements;

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
///
/// The books are the truth. Everything else is derived from them, or waits for them: after each change of the books,
/// `Shard::follow` brings searches and waiting requests up to date, and the end of a batch publishes a view.
pub struct Shard {
    id: ShardId,
    incarnation: Incarnation,
    now: Time,
    /// What each node has, who holds it, and what is withheld.
    books: Books,
    /// The choice of a node.
    choose: Choose,
    /// Requests that wait for capacity.
    pending: Waiting,
    /// Statements that are not decided.
    statements: Statements,
    /// What others see without asking.
    publish: Publish,
    /// Audits in progress, and the costs of commands.
    audit: AuditState,
    /// Set if this is a replica of a shard.
    replica: Option<Box<Replica>>,
    /// Set if there is a journal.
    journaled: Option<Box<Journaled>>,
    /// Whether a placement or a release has to look for anything other than nodes, allocations and the index. In a step, this is
    /// set at the latest when [`has_rare`](Self::has_rare) is true. It may stay set for the rest of the step.
    rare: bool,
}

impl Shard {
    /// Creates a shard without nodes.
    #[must_use]
    pub fn new(config: ShardConfig) -> Self {
        let indexed = Arc::clone(config.geometry.custom());
        Self {
            id: config.shard,
            incarnation: config.incarnation,
            now: Time::default(),
            books: Books::new(config.incarnation, config.partitions, indexed),
            choose: Choose::new(&config.geometry, config.hybrid, config.seed),
            pending: Waiting::default(),
            statements: Statements::default(),
            publish: Publish::default(),
            audit: AuditState::default(),
            replica: None,
            journaled: None,
            rare: true,
        }
    }

    /// Returns whether there is anything other than nodes, allocations and the first tree of the index: views, a journal,
    /// audits in progress, waiting requests, and all that nodes and allocations rarely have.
    fn has_rare(&self) -> bool {
        let Self { books, choose, pending, audit, .. } = self;
        books.has_rare() | choose.has_rare() | !pending.is_empty() | audit.is_running()
    }

    /// Brings searches and waiting requests up to date with a change of the books.
    #[inline]
    fn follow(&mut self, dirty: Dirty) {
        self.choose.follow(&self.books, dirty);
        if dirty.grew {
            self.grew::<true>(dirty.slot);
        }
    }

    /// Notes that a node may have more available than before.
    #[inline(always)]
    fn grew<const RARE: bool>(&mut self, slot: Slot) {
        self.publish.growth += 1;
        if RARE && !self.pending.is_empty() {
            self.pending.wake_for(&self.books, slot);
        }
    }

    /// Carries out `batch` in order and appends one outcome per command.
    ///
    /// # Panics
    /// If an invariant of the shard is broken, or `now` goes backwards.
    pub fn step(&mut self, batch: impl IntoIterator<Item = Command>, now: Time, outcomes: &mut Vec<Outcome>) {
        self.begin_step(now);
        for mut command in batch {
            self.carry_out(&mut command, outcomes);
            self.books.sums.kept.settle();
        }
    }

    /// Carries out a command, which may be taken out of its place. Placements and releases are read where they are. The
    /// caller settles the sums after at most `SETTLE_AFTER` commands.
    #[inline]
    fn carry_out(&mut self, command: &mut Command, outcomes: &mut Vec<Outcome>) {
        let outcome = match command {
            Command::Place(request) => Outcome::Place(self.handle_place(request)),
            Command::Release(id) => Outcome::Release(self.handle_release(*id)),
            other => self.handle_other(std::mem::replace(other, Command::GoOn)),
        };
        if self.rare {
            self.note_change(Some(&outcome));
        }
        debug_assert!(self.rare || !self.has_rare(), "something rare was not noticed");
        outcomes.push(outcome);
    }

    /// Handles deadlines that have passed, before any command.
    fn begin_step(&mut self, now: Time) {
        assert!(self.replica.is_none(), "a replica carries out no commands");
        assert!(now >= self.now, "the clock went back from {:?} to {now:?}", self.now);
        self.now = now;
        if self.books.entries.next_deadline() <= now {
            while let Some(dirty) = self.books.expire_reservation(now) {
                self.follow(dirty);
            }
            let next = self.books.entries.next_deadline();
            assert!(next > now || next == Time::NEVER, "a reservation stays that ended at {next:?}");
            self.note_change(None);
        }
        if self.books.releasing.next_deadline().min(self.statements.next_deadline()) <= now {
            self.end_grace();
            self.expire_statements();
            let next = self.books.releasing.next_deadline().min(self.statements.next_deadline());
            assert!(next > now || next == Time::NEVER, "a deadline stays that passed at {next:?}");
            self.note_change(None);
        }
        self.rare = self.has_rare();
    }

    /// Returns the next time at which a step is due: something ends by itself, or a hold reaches its deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let Self { books, statements, .. } = self;
        let next = books.entries.next_deadline().min(books.releasing.next_deadline());
        let next = next.min(books.leases.next_deadline());
        Some(next.min(statements.next_deadline())).filter(|&next| next != Time::NEVER)
    }

    /// Handles what is neither a placement nor a release.
    #[inline(never)]
    fn handle_other(&mut self, command: Command) -> Outcome {
        self.books.sums.kept.settle();
        self.rare = true;
        let outcome = self.handle_any(command);
        self.rare = self.has_rare();
        outcome
    }

    fn handle_any(&mut self, command: Command) -> Outcome {
        match command {
            Command::Place(_) | Command::Release(_) => unreachable!("these are handled where they are"),
            Command::AddNode(registration) => Outcome::Node(Ok(self.handle_add_node(*registration, None))),
            Command::RejoinNode { registration, version } => {
                Outcome::Node(Ok(self.handle_add_node(*registration, Some(version))))
            }
            Command::UpdateNode(node, spec) => Outcome::Node(self.handle_update_node(node, *spec)),
            Command::Life(node, event) => Outcome::Node(self.handle_life(node, event)),
            Command::Report(node, report) => Outcome::Node(self.handle_report(node, *report)),
            Command::SetHealth(node, unhealthy) => Outcome::Node(self.handle_set_health(node, unhealthy)),
            Command::RemoveNode { node, force } => Outcome::Node(self.handle_remove_node(node, force)),
            Command::SetResources(node, totals) => Outcome::Node(self.handle_set_resources(node, &totals)),
            Command::ListNodes { after, limit } => Outcome::Nodes(self.list_nodes(after, limit)),
            Command::ListWaiting { from } => Outcome::Waiting(Box::new(self.pending.page(from))),
            Command::CountTurns(asked) => Outcome::Turns(Box::new(self.pending.count_turns(&asked))),
            Command::Status => Outcome::Status(Box::new(self.status(None))),
            Command::Audit { number } => self.handle_audit(number),
            Command::Explain(page) => Outcome::Explained(Box::new(self.handle_explain(&page))),
            Command::Adopt(adoption) => Outcome::Adopt(self.handle_adopt(*adoption)),
            Command::NodeBooks(node) => Outcome::Books(self.handle_node_books(node)),
            Command::Park(park) => Outcome::Place(self.handle_park(*park)),
            Command::Retry(token) => self.handle_retry(token).map_or(Outcome::NotParked, Outcome::Place),
            Command::Watch(watch) => self.handle_watch(*watch),
            Command::Rearm { token, reports } => self.handle_rearm(token, reports),
            Command::Unpark(token) => self.handle_unpark(token),
            Command::Reserve(reserve) => Outcome::Reserve(self.handle_reserve(&reserve)),
            Command::EndReservation(node, owner) => {
                Outcome::Reserve(self.handle_end_reservation(node, owner))
            }
            Command::Prepare(prepare) => Outcome::Prepared(Box::new(self.handle_prepare(*prepare))),
            Command::Finish { statement, decision } => {
                Outcome::Applied(self.handle_finish(statement, decision))
            }
            Command::Apply(part) => Outcome::Applied(Ok(Box::new(self.handle_apply(&part)))),
            Command::PlaceInto { bundles, demand } => {
                Outcome::PlaceInto(self.handle_place_into(&bundles, &demand))
            }
            Command::RenewLease { allocation, lasts_ns } => {
                Outcome::RenewedLease(self.handle_renew_lease(allocation, lasts_ns))
            }
            Command::RenewSession { session, lasts_ns } => {
                Outcome::RenewedSession(self.handle_renew_session(session, lasts_ns))
            }
            Command::GoOn => self.handle_go_on(),
            Command::Export => Outcome::Exported(Box::new(self.export())),
            Command::Checkpoint { from } => Outcome::Page(Box::new(self.read_checkpoint_page(from))),
        }
    }

    #[inline]
    fn handle_place(&mut self, request: &PlacementRequest) -> Result<Placement, Refused> {
        if self.rare | !request.is_plain() {
            self.handle_place_any(request)
        } else {
            self.place::<false>(request)
        }
    }

    /// Handles a placement of any kind.
    #[inline(never)]
    fn handle_place_any(&mut self, request: &PlacementRequest) -> Result<Placement, Refused> {
        let done = self.place::<true>(request);
        // A policy may have begun to keep an order of its own.
        self.rare = self.rare || self.has_rare();
        done
    }

    /// Places a request. Without `RARE`, the request is plain, and [`has_rare`](Self::has_rare) is false.
    #[inline(always)]
    fn place<const RARE: bool>(&mut self, request: &PlacementRequest) -> Result<Placement, Refused> {
        let scope = self.choose.eligibility(&self.books, request);
        let Some(choice) = self.choose.choose(&self.books, request, scope) else {
            return Err(self.refused(request, scope));
        };
        if let Some((placement, left)) = self.books.place_plain::<RARE>(request, &choice) {
            if RARE && let Some(terms) = &request.lease {
                self.books.begin_lease(placement.allocation, terms, self.now);
            }
            self.choose.follow_plain::<RARE>(&self.books, choice.slot, &left);
            return Ok(placement);
        }
        Ok(self.place_with_extras(request, &choice))
    }

    /// Places a request that concerns more than cpu, memory and GPUs on a node that was chosen for it.
    #[inline(never)]
    fn place_with_extras(&mut self, request: &PlacementRequest, choice: &Choice) -> Placement {
        let (placement, dirty) = self.books.place_any(request, choice);
        assert!(dirty.slot == choice.slot, "{} is not where it was chosen to be", placement.allocation);
        assert!(self.books.is_live(placement.allocation), "{} was placed and is gone", placement.allocation);
        if let Some(terms) = &request.lease {
            self.books.begin_lease(placement.allocation, terms, self.now);
        }
        self.follow(dirty);
        placement
    }

    #[inline]
    fn handle_release(&mut self, allocation: AllocationId) -> Result<Released, UnknownAllocation> {
        if !self.rare && self.release::<false>(allocation) {
            return Ok(Released { allocation, inside: None });
        }
        self.handle_release_any(allocation)
    }

    /// Ends an allocation without extras. Without `RARE`, [`has_rare`](Self::has_rare) is false. Returns whether it was
    /// such an allocation.
    #[inline(always)]
    fn release<const RARE: bool>(&mut self, allocation: AllocationId) -> bool {
        let Some((slot, room)) = self.books.release_plain::<RARE>(allocation) else { return false };
        self.choose.follow_plain::<RARE>(&self.books, slot, &room);
        self.grew::<RARE>(slot);
        true
    }

    /// Handles a release of any kind.
    #[inline(never)]
    fn handle_release_any(&mut self, allocation: AllocationId) -> Result<Released, UnknownAllocation> {
        if self.rare && self.release::<true>(allocation) {
            return Ok(Released { allocation, inside: None });
        }
        let (inside, dirty) = self.books.release(allocation)?;
        assert!(!self.books.is_live(allocation), "{allocation} was released and stays");
        self.follow(dirty);
        if let Some(inside) = inside {
            self.audit.work.allocations_looked_at += u64::from(inside);
        }
        Ok(Released { allocation, inside })
    }

    /// Ends an allocation. Returns the number of allocations inside that ended with it.
    fn end_allocation(&mut self, id: AllocationId, cause: EndCause) -> Result<u32, UnknownAllocation> {
        let (inside, dirty) = self.books.end_allocation(id, cause)?;
        assert!(!self.is_releasing(id), "{id} has ended and is being released");
        self.audit.work.allocations_looked_at += u64::from(inside);
        self.follow(dirty);
        Ok(inside)
    }

    /// Ends allocations whose grace is over, in order of time and id.
    fn end_grace(&mut self) {
        while let Some(id) = self.books.grace_over(self.now) {
            self.end_allocation(id, EndCause::Evicted).expect("what is releasing is live");
        }
    }

    /// Places an allocation into the first of some bundles that has room.
    fn handle_place_into(
        &mut self,
        bundles: &[AllocationId],
        demand: &Demand,
    ) -> Result<Box<Placement>, BundleRejection> {
        let mut rejected = None;
        for &bundle in bundles {
            self.audit.work.allocations_looked_at += 1;
            match self.books.place_into(bundle, demand) {
                Ok((placement, dirty)) => {
                    let holder = self.books.bundles.holder(placement.allocation);
                    assert!(holder == Some(bundle), "{} is not inside {bundle}", placement.allocation);
                    self.follow(dirty);
                    return Ok(Box::new(placement));
                }
                // That a bundle has too little says more than that another one ended.
                Err(_) if matches!(rejected, Some(BundleRejection::Short { .. })) => {}
                Err(rejection) => rejected = Some(rejection),
            }
        }
        Err(rejected.expect("a placement names at least one bundle"))
    }

    fn handle_adopt(&mut self, adoption: Adoption) -> Result<Box<Placement>, AdoptionRejection> {
        let (placement, dirty) = self.books.adopt(adoption)?;
        assert!(self.books.is_live(placement.allocation), "{} is adopted and gone", placement.allocation);
        self.follow(dirty);
        Ok(Box::new(placement))
    }

    fn handle_reserve(&mut self, reserve: &Reserve) -> ReservationReply {
        let dirty = self.books.reserve(reserve, self.now)?;
        self.follow(dirty);
        let view = self.books.reservation_view(dirty.slot).expect("just made");
        assert!(view.owner == reserve.owner, "a reservation was made for another owner");
        Ok(ReservationChange::Made(Box::new(view)))
    }

    /// Ends the reservation of `owner` on a node.
    fn handle_end_reservation(&mut self, node: NodeId, owner: OwnerId) -> ReservationReply {
        let slot = self.books.slot(node)?;
        let holder = self.books.reservation(slot).map(|there| there.owner);
        if holder != Some(owner) {
            return Err(ReservationRejection::NotReserved(node, owner, holder));
        }
        self.end_reservation(slot);
        Ok(ReservationChange::Ended(node))
    }

    /// Ends the reservation of a node, if any.
    fn end_reservation(&mut self, slot: Slot) {
        if let Some(dirty) = self.books.end_reservation(slot) {
            self.follow(dirty);
        }
        assert!(self.books.reservation(slot).is_none(), "the reservation of slot {slot} outlives its end");
    }

    /// Places a request, or parks it if nothing fits.
    fn handle_park(&mut self, park: Park) -> Result<Placement, Refused> {
        let mut done = self.handle_place(&park.request);
        if let Err(Refused { refusal, parked }) = &mut done {
            let home = park.home.is_at(refusal);
            self.pending.park(park, home, self.choose.labels());
            assert!(!self.pending.is_empty(), "a request was parked and nothing waits");
            *parked = true;
        }
        done
    }

    /// Tries a parked copy again. If it is placed, it is removed; if it is refused, it is armed again. `None` if there is
    /// no such copy.
    fn handle_retry(&mut self, token: WaitToken) -> Option<Result<Placement, Refused>> {
        let retry = self.pending.begin_retry(token)?;
        self.choose.fragmentation_mut().set_retrying(true);
        let done = self.handle_place(&retry.request);
        self.choose.fragmentation_mut().set_retrying(false);
        if let Ok(placement) = &done {
            self.books.note_cause(placement.allocation, BeginCause::Waited);
        }
        self.pending.end_retry(&self.books, &retry, done.is_ok());
        let is_gone = self.pending.woken_for(token).is_empty();
        assert!(is_gone || done.is_err(), "{token:?} was placed and is still woken");
        Some(done)
    }

    /// Adds a copy of a bundle, which its planner tries when it is woken.
    fn handle_watch(&mut self, watch: Watch) -> Outcome {
        self.pending.watch(watch, self.choose.labels());
        assert!(!self.pending.is_empty(), "a bundle is watched and nothing waits");
        Outcome::Watches
    }

    /// Offers the room to others for which a copy of a bundle was woken.
    fn handle_rearm(&mut self, token: WaitToken, reports: u32) -> Outcome {
        if self.pending.rearm(&self.books, token, reports) { Outcome::Watches } else { Outcome::NotParked }
    }

    /// Removes a parked copy.
    fn handle_unpark(&mut self, token: WaitToken) -> Outcome {
        let was_parked = self.pending.unpark(&self.books, token);
        assert!(self.pending.woken_for(token).is_empty(), "{token:?} is gone and still woken");
        if was_parked { Outcome::Unparked } else { Outcome::NotParked }
    }

    /// Returns whether [`Command::GoOn`] has work to do.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.pending.is_behind() || self.has_lease_over()
    }

    /// Continues deferred work, for a bounded number of looks.
    fn handle_go_on(&mut self) -> Outcome {
        self.end_leases();
        self.pending.go_on(&self.books);
        if self.pending.homes.is_behind() {
            self.look_for_homes(GO_ON_LOOKS_MAX, false);
        }
        Outcome::WentOn
    }

    fn look_for_homes(&mut self, looks_max: u64, renew: bool) {
        let Self { books, choose, pending, .. } = self;
        pending.look_for_homes(&books.nodes, choose.capacities_mut(), looks_max, renew);
    }

    /// Returns the status of every waiting shape.
    fn waiting_shapes(&mut self) -> Vec<WaitingShape> {
        self.look_for_homes(HOME_LOOKS_MAX, true);
        self.pending.statuses()
    }

    /// Returns the copies of waiting requests that were woken since the last call, in order.
    pub fn drain_woken(&mut self) -> std::vec::Drain<'_, WaitToken> {
        self.pending.drain_woken()
    }

    /// Returns the nodes for whose room a waiting request or bundle was woken, in order, until this is answered. A request
    /// has at most one.
    #[must_use]
    pub fn woken_for(&self, token: WaitToken) -> &[NodeId] {
        self.pending.woken_for(token)
    }

    /// Returns the outcomes of claims since the last call, in order.
    pub fn drain_claim_events(&mut self) -> std::vec::Drain<'_, ClaimEvent> {
        self.books.drain_claim_events()
    }

    /// Replaces the bound `WAKE_LOOKS_MAX`, so that tests reach it with few requests.
    pub fn set_wake_looks(&mut self, looks_max: u64) {
        self.pending.set_wake_looks(looks_max);
    }

    /// Sets the typical request shapes of the fragmentation-aware policies. If none are set, they are learned
    /// from arriving requests.
    pub fn set_typical_shapes(&mut self, typical: Arc<crate::fragmentation::TypicalShapes>) {
        self.choose.fragmentation_mut().set_typical(typical);
    }

    /// Sets the maximum share of this shard's nodes that may be reserved at once, in percent. At least one node
    /// may be reserved, unless the share is 0. Existing reservations stay.
    pub fn set_reserved_nodes_percent(&mut self, percent: u8) {
        self.books.set_reserved_nodes_percent(percent);
    }

    /// Sets the maximum number of allocations per node, including claims and allocations inside bundles.
    ///
    /// # Panics
    /// If there are nodes already, or the number is out of range.
    pub fn set_allocations_per_node_max(&mut self, most: u16) {
        self.books.set_allocations_per_node_max(most);
    }

    /// Returns the owners that have reserved nodes here, ascending.
    #[must_use]
    pub fn reservation_owners(&self) -> Vec<OwnerId> {
        self.books.reservations.owners()
    }

    /// Returns a version that changes with the result of [`reservation_owners`](Self::reservation_owners).
    #[must_use]
    pub fn reservation_owners_version(&self) -> u64 {
        self.books.reservations.owners_version()
    }

    /// Continues from the granularity of an earlier start, unless the dimensions or their settings changed. The
    /// partitions must already be restored.
    pub(crate) fn resume_granularity(&mut self, state: &crate::state::GranularityState) {
        assert!(self.replica.is_none(), "a replica follows the steps of its shard");
        self.choose.resume_granularity(&self.books, state);
    }

    /// Returns the facts that the router may use without asking.
    #[must_use]
    pub fn facts(&mut self) -> ShardFacts {
        let highest = self.choose.highest();
        let load = self.books.sums.load();
        let is_real = load.iter().all(|&(total, used)| total.min(used) >= 0);
        assert!(is_real, "more was given back than was in use: {load:?}");
        ShardFacts { growth: self.publish.growth, highest, load }
    }

    /// Returns the number of bundles that ended, including those on lost nodes.
    #[must_use]
    pub fn bundles_ended(&self) -> u64 {
        self.books.bundles.ends.count()
    }

    /// Returns the cost of all searches so far.
    #[must_use]
    pub fn visits(&self) -> Visits {
        self.choose.visits()
    }
}
