//! Tickets: how a statement that loses again and again comes to its end.
//!
//! A group whose plans were lost to other work, or that found no place as often, takes a number.
//! Whose number is served reserves nodes (the index's own reservations) that could hold it were they
//! free of later requests: what comes free there is set aside for it, and direct traffic cannot
//! take it. Then it commits as the owner of these reservations. One ticket is served at a time over
//! all planners, and for a bounded time: that is what bounds what groups can keep from direct
//! traffic. After it, when its reservations have ended and three times as long as they stood has passed, the
//! next is served, and a group that still waits takes a new number. So tickets reserve a quarter of any time at
//! most, also where what keeps a group from its place never ends.
//!
//! Where its bundles go is planned as ever, on copies on which nothing of others runs (`what_if.rs`).
//! A node that is reserved for somebody else is not reserved: bundles of that owner are placed there.

use super::colocate::{Item, reserved_demand};
use super::draft::{Draft, PlannedBundle};
use super::group::Group;
use super::what_if::Own;
use super::{Placing, Planner, Purpose};
use crate::ids::{GroupId, NodeId, OwnerId, ShardId};
use crate::resource::{Demand, ReservedAmounts};
use crate::router::Tag;
use crate::shard::{Command, Outcome, Reserve};
use crate::statement::{Allocate, CommitMode, Conflict, ConflictDetection, ConflictReason, Evict, Operation};
use crate::time::Time;
use std::cmp::Reverse;

/// The answer to a command of a ticket, not of a flight.
pub(super) const TICKET_TAG: Tag = Tag::MAX;

/// So many times as long as a ticket reserved something nothing is reserved after it.
const TICKET_PAUSE: u64 = 3;

/// So often a ticket is tried while a statement of others may hold what is in its way.
const TRIES_PER_HOLD: u64 = 8;

/// How far the planner's ticket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its number is not served yet.
    Queued,
    /// So many shards have not answered what is to be reserved; whether one refused.
    Reserving { left: usize, refused: bool },
    /// All is reserved: it is committed as soon as it fits.
    Reserved,
    /// Being committed.
    Committing,
    /// So many shards have not answered that what was reserved has ended.
    Ending { left: usize },
    /// Nothing is reserved for a while; then the next is served.
    Pausing { until: Time },
}

/// The ticket of a planner.
#[derive(Debug)]
pub(super) struct Ticket {
    number: u64,
    group: GroupId,
    /// What it was taken for was given up: whatever the group wants by now, this ticket ends.
    void: bool,
    stage: Stage,
    /// Since when something is reserved.
    since: Time,
    /// When what is reserved ends.
    until: Time,
    /// Where each bundle goes.
    plan: Vec<PlannedBundle>,
    reserved: Vec<(ShardId, NodeId)>,
    /// The shards' growth when it was sent to be committed.
    sent_at: Vec<u64>,
    /// Shards that had no room then: it is sent again when one of them has grown. None: whenever any has.
    blocked_by: Option<Vec<usize>>,
    /// When it is sent again in any case: a statement of others was in the way, and one that is aborted makes
    /// nothing grow.
    again: Option<Time>,
}

impl Ticket {
    fn owner(&self) -> OwnerId {
        OwnerId::ticket(self.number)
    }
}

impl Planner {
    /// A group that lost too often waits for a number.
    pub(super) fn queue_for_ticket(&mut self, id: GroupId) {
        let group = self.groups.get_mut(&id).expect("who plans for a group has it");
        (group.losses, group.queued_for_ticket) = (0, true);
        self.incomplete.remove(&(Reverse(group.spec.priority), id));
        self.ticket_queue.push_back(id);
        self.watch_deadline(id);
    }

    /// Does what can be done for the ticket now.
    pub(super) fn serve_ticket(&mut self, now: Time) {
        let is_over = |ticket: &Ticket| matches!(ticket.stage, Stage::Pausing { until } if until <= now);
        if self.ticket.as_ref().is_some_and(is_over) {
            self.drop_ticket();
        }
        if self.ticket.is_none() {
            let groups = &self.groups;
            self.ticket_queue.retain(|id| groups.get(id).is_some_and(|group| group.queued_for_ticket));
            let Some(group) = self.ticket_queue.pop_front() else { return };
            let number = self.tickets.take();
            let stage = Stage::Queued;
            let plan = Vec::new();
            let reserved = Vec::new();
            let sent_at = Vec::new();
            let blocked_by = None;
            self.ticket = Some(Ticket {
                number,
                group,
                void: false,
                stage,
                since: now,
                until: now,
                plan,
                reserved,
                sent_at,
                blocked_by,
                again: None,
            });
        }
        let unblocked = self.is_unblocked();
        let ticket = self.ticket.as_ref().expect("just taken");
        match ticket.stage {
            Stage::Queued if self.tickets.is_served(ticket.number) => self.reserve(now),
            Stage::Reserved if ticket.until <= now || !self.is_wanted(ticket) => {
                self.end_ticket(now);
            }
            Stage::Reserved if self.ticket_moved && unblocked => self.commit_ticket(),
            Stage::Reserved if ticket.again.is_some_and(|again| again <= now) => self.commit_ticket(),
            _ => {}
        }
    }

    /// Whether any shard that had no room for the ticket has grown since.
    fn is_unblocked(&mut self) -> bool {
        let ticket = self.ticket.as_ref().expect("a ticket is served");
        let Some(blocked_by) = &ticket.blocked_by else { return true };
        let growth = self.port.growth();
        blocked_by.iter().any(|&shard| growth.get(shard) != ticket.sent_at.get(shard))
    }

    /// Whether a number could be taken, or the one that was taken is served: what came after the last look.
    pub(super) fn is_called(&self) -> bool {
        match &self.ticket {
            None => !self.ticket_queue.is_empty(),
            Some(ticket) => ticket.stage == Stage::Queued && self.tickets.is_served(ticket.number),
        }
    }

    /// Whether its ticket asks shards, or is to be served now: not whether it waits for time or room.
    #[must_use]
    pub fn is_ticket_moving(&self) -> bool {
        let asks = |t: &Ticket| matches!(t.stage, Stage::Reserving { .. } | Stage::Ending { .. });
        self.is_called() || self.ticket.as_ref().is_some_and(asks)
    }

    /// Whether its number is not served yet.
    pub(super) fn is_queued(&self, id: GroupId) -> bool {
        let served = |t: &Ticket| t.group == id && t.stage != Stage::Queued && !t.void;
        self.waits_for_ticket(id) && !self.ticket.as_ref().is_some_and(served)
    }

    /// What a group's ticket was taken for is given up.
    pub(super) fn void_ticket(&mut self, id: GroupId) {
        self.ticket.iter_mut().filter(|ticket| ticket.group == id).for_each(|ticket| ticket.void = true);
    }

    /// Whether what the ticket was taken for is still wanted.
    fn is_wanted(&self, ticket: &Ticket) -> bool {
        !ticket.void && self.waits_for_ticket(ticket.group)
    }

    fn waits_for_ticket(&self, id: GroupId) -> bool {
        self.groups.get(&id).is_some_and(|group| group.queued_for_ticket)
    }

    /// Chooses nodes for the group and reserves them.
    fn reserve(&mut self, now: Time) {
        let ticket = self.ticket.as_ref().expect("a ticket is served");
        let id = ticket.group;
        let owner = ticket.owner();
        let waits = self.is_wanted(ticket);
        let plan = waits.then(|| self.plan_reserved(id)).flatten();
        let Some(mut plan) = plan else { return self.end_ticket(now) };
        plan.sort_by_key(|taken| (taken.shard, taken.slot));
        let until = now.plus_nanos(self.config.ticket_ns);
        let until = self.groups[&id].deadline().map_or(until, |of_group| until.min(of_group));
        let mut reserved = Vec::new();
        for of_node in plan.chunk_by(|a, b| (a.shard, a.slot) == (b.shard, b.slot)) {
            let shard = self.shard_id(of_node[0].shard);
            let node = of_node[0].node;
            let Some(demand) = self.demand_of(id, of_node) else { continue };
            let reserve = Reserve { node, owner, demand, until: Some(until) };
            self.outbox.push_back((TICKET_TAG, shard, Command::Reserve(Box::new(reserve))));
            reserved.push((shard, node));
        }
        // In order of partition and node at each shard, and one ticket at a time: nobody waits for another.
        let left = reserved.len();
        let ticket = self.ticket.as_mut().expect("a ticket is served");
        (ticket.since, ticket.until, ticket.plan, ticket.reserved) = (now, until, plan, reserved);
        ticket.stage = Stage::Reserving { left, refused: false };
        if left == 0 {
            self.reserved(now);
        }
    }

    /// What is to be reserved on a node for the bundles that go there; none where it is somebody else's, or
    /// they take nothing.
    fn demand_of(&self, id: GroupId, of_node: &[PlannedBundle]) -> Option<Demand> {
        let group = &self.groups[&id];
        let place = of_node[0];
        let copy = &self.replicas.copies[place.shard];
        if copy.reserved_for(place.slot).is_some() {
            return None;
        }
        let items: Vec<Item> = of_node.iter().map(|taken| group.item(taken.bundle)).collect();
        let devices = of_node.iter().fold(0, |mask, taken| mask | taken.gpus.mask).count_ones();
        let demand = reserved_demand(&items, devices, copy.spec(place.slot)?)?;
        Some(demand).filter(|demand| !ReservedAmounts::from(demand).is_empty())
    }

    /// What a shard answered to the ticket.
    pub(super) fn handle_ticket_answer(&mut self, outcome: &Outcome, now: Time) {
        let ticket = self.ticket.as_mut().expect("a ticket stays until all is answered");
        match &mut ticket.stage {
            Stage::Reserving { left, refused } => {
                *left -= 1;
                *refused |= !matches!(outcome, Outcome::Reserved(_));
                if *left == 0 {
                    self.reserved(now);
                }
            }
            // It ended, or had ended by itself, was used up, or went with its node.
            Stage::Ending { left } => {
                *left -= 1;
                if *left == 0 {
                    self.pause_tickets(now);
                }
            }
            stage => panic!("nothing is to be answered to a ticket that is {stage:?}: {outcome:?}"),
        }
    }

    /// All that was to be reserved is answered.
    fn reserved(&mut self, now: Time) {
        let ticket = self.ticket.as_mut().expect("a ticket is served");
        let refused = matches!(ticket.stage, Stage::Reserving { refused: true, .. });
        let waits =
            !ticket.void && self.groups.get(&ticket.group).is_some_and(|group| group.queued_for_ticket);
        if refused || !waits {
            self.end_ticket(now);
        } else {
            ticket.stage = Stage::Reserved;
            self.commit_ticket();
        }
    }

    fn commit_ticket(&mut self) {
        self.ticket_moved = false;
        let ticket = self.ticket.as_mut().expect("a ticket is served");
        ticket.stage = Stage::Committing;
        ticket.sent_at = self.port.growth();
        ticket.blocked_by = None;
        ticket.again = None;
        let id = ticket.group;
        let plan = ticket.plan.clone();
        let group = self.groups.get_mut(&id).expect("a group with a ticket is there");
        group.committing = true;
        group.attempts += 1;
        let operation = |taken: &PlannedBundle, group: &Group| {
            let Item { request, .. } = group.item(taken.bundle);
            let bundle = Some(crate::ids::BundleId { group: id, index: taken.bundle });
            let node = taken.node;
            let demand = request.demand.clone();
            let reserved = ticket.reserved.iter().any(|&(_, reserved)| reserved == node);
            let owner = if reserved { Some(ticket.owner()) } else { request.owner };
            Operation::Allocate(Allocate { node, expected: None, demand, gpus: None, owner, bundle })
        };
        let placed: Vec<_> = plan.iter().map(|taken| (taken.shard, operation(taken, group))).collect();
        let lost: Vec<_> =
            plan.iter().filter_map(|t| Some((t.bundle, group.bundle_mut(t.bundle)?.lost?))).collect();
        let mut operations: Vec<(ShardId, Operation)> = Vec::with_capacity(lost.len() + placed.len());
        for &(_, allocation) in &lost {
            let evict = Evict { allocation, expected: None, grace_ns: 0 };
            operations.push((self.shard_of_allocation(allocation), Operation::Evict(evict)));
        }
        operations.extend(placed.into_iter().map(|(at, operation)| (self.shard_id(at), operation)));
        let ended = lost.into_iter().map(|(bundle, _)| bundle).collect();
        let placing = Placing { group: id, ended, draft: Draft { taken: plan } };
        let terms = (ConflictDetection::Fine, CommitMode::AllOrNothing);
        self.commit(operations, terms, Purpose::Place(Box::new(placing)));
    }

    /// Whether the statement that just ended was the ticket's; `done`: it was committed.
    pub(super) fn ticket_concluded(
        &mut self,
        id: GroupId,
        done: bool,
        conflicts: &[Conflict],
        now: Time,
    ) -> bool {
        let Some(ticket) = &mut self.ticket else { return false };
        if ticket.group != id || ticket.stage != Stage::Committing {
            return false;
        }
        ticket.stage = Stage::Reserved;
        // What other shards held and gave back is no reason to try again.
        let shard = |conflict: &Conflict| match conflict.reason {
            ConflictReason::UnknownAllocation(_) => None,
            _ => Some(self.replicas.locate(conflict.node?)?.0),
        };
        ticket.blocked_by =
            conflicts.iter().map(shard).collect::<Option<Vec<usize>>>().filter(|by| !by.is_empty());
        let held = |conflict: &Conflict| matches!(conflict.reason, ConflictReason::HeldBy(_));
        let pause = (self.config.hold_ns / TRIES_PER_HOLD).max(1);
        ticket.again = conflicts.iter().any(held).then(|| now.plus_nanos(pause));
        let gone = |conflict: &Conflict| matches!(conflict.reason, ConflictReason::UnknownNode);
        if done {
            self.groups.get_mut(&id).expect("a group with a ticket is there").queued_for_ticket = false;
            self.end_ticket(now);
        } else if conflicts.iter().any(gone) {
            // The plan can never be carried out any more. The ticket ends when it is served next in this round: its
            // group may be about to be removed, which is the caller's part.
            ticket.until = now;
        }
        true
    }

    /// Ends what is reserved, and serves the next when that is done; the group goes on as one that found no
    /// place.
    fn end_ticket(&mut self, now: Time) {
        let ticket = self.ticket.as_mut().expect("a ticket is served");
        let id = ticket.group;
        let owner = ticket.owner();
        let reserved = std::mem::take(&mut ticket.reserved);
        let void = ticket.void;
        ticket.stage = Stage::Ending { left: reserved.len() };
        if reserved.is_empty() {
            self.drop_ticket();
        }
        for (shard, node) in reserved {
            self.outbox.push_back((TICKET_TAG, shard, Command::EndReservation(node, owner)));
        }
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.queued_for_ticket && !void) else {
            return;
        };
        group.queued_for_ticket = false;
        group.tickets = group.tickets.saturating_add(1);
        let removal = group.removal.is_some();
        if removal {
            self.begin_removal(id, now);
        } else {
            // What it reserved, or others gave back, may be free by now.
            self.lost.push_back(id);
        }
    }

    /// What was reserved has ended: for some times as long as that took nothing is, so that what groups keep from
    /// direct traffic is a bounded part of any time, however many wait and whatever keeps them from their place.
    fn pause_tickets(&mut self, now: Time) {
        let ticket = self.ticket.as_mut().expect("a ticket is served");
        let pause = now.nanos_since(ticket.since).saturating_mul(TICKET_PAUSE);
        // Its group has nothing to do with it any more, and may queue again.
        (ticket.stage, ticket.void) = (Stage::Pausing { until: now.plus_nanos(pause) }, true);
        if pause == 0 {
            self.drop_ticket();
        }
    }

    fn drop_ticket(&mut self) {
        self.ticket = None;
        self.tickets.serve_next();
    }

    /// Where the bundles of a group go: as they fit now, else as they would if nothing of others ran.
    fn plan_reserved(&mut self, id: GroupId) -> Option<Vec<PlannedBundle>> {
        self.sync();
        let mut draft = Draft::default();
        let savepoint = draft.savepoint();
        if self.replicas.plan(self.wanted(id), self.budget.search, &mut draft).is_ok() {
            let plan = draft.taken.clone();
            self.replicas.roll_back(&mut draft, savepoint);
            return Some(plan);
        }
        let standing = self.groups[&id].bundles.iter().filter_map(|bundle| Some((bundle, bundle.place?)));
        let own = standing.map(|(bundle, place)| {
            let node = place.node;
            let demand = bundle.request.demand.clone();
            let gpus = place.gpus;
            Own { node, demand, gpus }
        });
        let own: Vec<Own> = own.collect();
        let wanted = self.wanted(id);
        let turn = self.groups[&id].tickets;
        self.replicas.plan_ignoring_others(&wanted, &own, turn, self.budget.search)
    }

    /// When the ticket has something to do by itself.
    pub(super) fn ticket_deadline(&self) -> Option<Time> {
        let ticket = self.ticket.as_ref()?;
        match ticket.stage {
            Stage::Reserved => Some(ticket.again.map_or(ticket.until, |again| again.min(ticket.until))),
            Stage::Pausing { until } => Some(until),
            _ => None,
        }
    }
}
