//! Tickets guarantee that a group with repeated failures is placed or ends.
//!
//! A group takes a number after its plans were lost to other work, or found no place, several times. When its
//! number is served, its planner reserves nodes that could hold the group if later requests did not use them.
//! These are ordinary reservations of the index. Capacity that comes free there is withheld from direct
//! traffic. Then the planner commits the group as the owner of the reservations.
//!
//! Over all planners, one ticket is served at a time and for a bounded time. This bounds what groups can
//! withhold from direct traffic. After the reservations have ended, three times as long as they lasted passes
//! before the next ticket is served. Then a group that still waits takes a new number. So tickets reserve
//! nodes for at most a quarter of the time, even if what blocks a group never ends.
//!
//! The bundles are planned with the usual search, with nodes emptied of what others run (`what_if.rs`). A
//! node that is reserved for another owner is not reserved again. Bundles of that owner are placed there.

use super::colocate::{Item, reserved_demand};
use super::draft::{Draft, PlannedBundle};
use super::in_flight::CommitOptions;
use super::life::State;
use super::{Placing, Planner, Purpose};
use crate::ids::{GroupId, NodeId, OwnerId, ShardId};
use crate::resource::{Demand, ReservedAmounts};
use crate::router::Tag;
use crate::shard::{Command, ReservationReply, Reserve};
use crate::statement::{CommitMode, Conflict, ConflictDetection, ConflictReason};
use crate::time::Time;

/// The tag of answers to a ticket's commands.
pub(super) const TICKET_TAG: Tag = Tag::MAX;

/// The pause after a ticket, as a multiple of the time for which it reserved something.
const TICKET_PAUSE: u64 = 3;

/// How many times per hold a ticket is retried while a statement of others may hold what blocks it.
const TRIES_PER_HOLD: u64 = 8;

/// The stage of the planner's ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The number is not served yet.
    Queued,
    /// `left` shards have not answered the reservation. `refused` is set if one rejected it.
    Reserving { left: usize, refused: bool },
    /// Everything is reserved. The ticket is committed as soon as it fits.
    Reserved,
    /// The ticket is being committed.
    Committing,
    /// `left` shards have not answered the end of the reservation.
    Ending { left: usize },
    /// Nothing is reserved for a while. Then the next ticket is served.
    Pausing { until: Time },
}

/// The ticket of a planner.
#[derive(Debug)]
pub(super) struct Ticket {
    number: u64,
    group: GroupId,
    /// The group's place in the queue. If it queued again, the ticket is not wanted.
    turn: u64,
    stage: Stage,
    /// The time at which the reservations were made.
    since: Time,
    /// The time at which the reservations end.
    until: Time,
    /// The planned bundles with their nodes.
    plan: Draft,
    reserved: Vec<(ShardId, NodeId)>,
    /// The shards' growth when the ticket was sent to be committed.
    sent_at: Vec<u64>,
    /// The shards that had no room then. The ticket is sent again when one of them has grown. `None`: when
    /// any shard has grown.
    blocked_by: Option<Vec<usize>>,
    /// The time at which it is sent again in any case. Set if a statement of others blocked it, because the
    /// abort of that statement is not reported as growth.
    again: Option<Time>,
}

impl Ticket {
    fn owner(&self) -> OwnerId {
        OwnerId::ticket(self.number)
    }
}

impl Planner {
    /// Puts a group that failed too often into the queue for tickets.
    pub(super) fn queue_for_ticket(&mut self, id: GroupId) {
        let group = self.groups.get_mut(&id).expect("who plans for a group has it");
        group.losses = 0;
        let deadline = group.deadline();
        self.next_turn += 1;
        self.transition(id, State::Queued { turn: self.next_turn, deadline });
    }

    /// Advances the ticket as far as possible now.
    pub(super) fn serve_ticket(&mut self, now: Time) {
        let is_over = |ticket: &Ticket| matches!(ticket.stage, Stage::Pausing { until } if until <= now);
        if self.ticket.as_ref().is_some_and(is_over) {
            self.drop_ticket();
        }
        if self.ticket.is_none() {
            let Some((turn, group)) = self.ticket_queue.pop_first() else { return };
            self.ticket = Some(Ticket {
                number: self.tickets.take(),
                group,
                turn,
                stage: Stage::Queued,
                since: now,
                until: now,
                plan: Vec::new(),
                reserved: Vec::new(),
                sent_at: Vec::new(),
                blocked_by: None,
                again: None,
            });
        }
        let unblocked = self.is_unblocked();
        let ticket = self.ticket.as_ref().expect("just taken");
        match ticket.stage {
            Stage::Queued if self.tickets.is_served(ticket.number) => self.reserve(now),
            Stage::Reserved if ticket.until <= now || !self.is_wanted(ticket) => {
                self.end_ticket();
            }
            Stage::Reserved if self.ticket_moved && unblocked => self.commit_ticket(),
            Stage::Reserved if ticket.again.is_some_and(|again| again <= now) => self.commit_ticket(),
            _ => {}
        }
    }

    /// Returns whether any shard that had no room for the ticket has grown since.
    fn is_unblocked(&mut self) -> bool {
        let ticket = self.ticket.as_ref().expect("a ticket is served");
        let Some(blocked_by) = &ticket.blocked_by else { return true };
        let growth = self.port.growth();
        blocked_by.iter().any(|&shard| growth.get(shard) != ticket.sent_at.get(shard))
    }

    /// Returns whether a number can be taken, or the number that was taken is served.
    pub(super) fn is_called(&self) -> bool {
        match &self.ticket {
            None => !self.ticket_queue.is_empty(),
            Some(ticket) => ticket.stage == Stage::Queued && self.tickets.is_served(ticket.number),
        }
    }

    /// Returns whether the ticket waits for shards or can be served now. `false` if it waits for time or
    /// room.
    #[must_use]
    pub fn is_ticket_moving(&self) -> bool {
        let asks = |t: &Ticket| matches!(t.stage, Stage::Reserving { .. } | Stage::Ending { .. });
        self.is_called() || self.ticket.as_ref().is_some_and(asks)
    }

    /// Returns whether the group still waits for the ticket or has it.
    fn is_wanted(&self, ticket: &Ticket) -> bool {
        match self.groups.get(&ticket.group).map(|group| &group.state) {
            Some(State::Queued { turn, .. }) => *turn == ticket.turn,
            Some(State::Ticket) => true,
            _ => false,
        }
    }

    /// Chooses nodes for the group and reserves them.
    fn reserve(&mut self, now: Time) {
        let ticket = self.ticket.as_ref().expect("a ticket is served");
        let id = ticket.group;
        let owner = ticket.owner();
        let plan = if self.is_wanted(ticket) { self.plan_reserved(id) } else { None };
        // A view may have told that a bundle ended, which comes before a growth.
        let waits = self.ticket.as_ref().is_some_and(|ticket| self.is_wanted(ticket));
        let Some(mut plan) = plan.filter(|_| waits) else { return self.end_ticket() };
        self.transition(id, State::Ticket);
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
        // Shards get reservations in order of partition and node, and there is one ticket at a time. So no
        // ticket waits for another.
        let left = reserved.len();
        let ticket = self.ticket.as_mut().expect("a ticket is served");
        (ticket.since, ticket.until, ticket.plan, ticket.reserved) = (now, until, plan, reserved);
        ticket.stage = Stage::Reserving { left, refused: false };
        if left == 0 {
            self.reserved();
        }
    }

    /// Returns the demand to reserve on a node for the bundles planned there. `None` if the node is reserved
    /// for another owner or the bundles need nothing.
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

    /// Handles a shard's answer to the ticket.
    pub(super) fn handle_ticket_answer(&mut self, answer: ReservationReply, now: Time) {
        let ticket = self.ticket.as_mut().expect("a ticket stays until all is answered");
        match &mut ticket.stage {
            Stage::Reserving { left, refused } => {
                *left -= 1;
                *refused |= answer.is_err();
                if *left == 0 {
                    self.reserved();
                }
            }
            // The reservation ended, either now or before: by itself, used up, or with its node.
            Stage::Ending { left } => {
                *left -= 1;
                if *left == 0 {
                    self.pause_tickets(now);
                }
            }
            stage => panic!("nothing is to be answered to a ticket that is {stage:?}: {answer:?}"),
        }
    }

    /// Continues after all reservations are answered.
    fn reserved(&mut self) {
        let ticket = self.ticket.as_ref().expect("a ticket is served");
        let refused = matches!(ticket.stage, Stage::Reserving { refused: true, .. });
        if refused || !self.is_wanted(ticket) {
            self.end_ticket();
        } else {
            self.commit_ticket();
        }
    }

    fn commit_ticket(&mut self) {
        self.ticket_moved = false;
        let ticket = self.ticket.as_ref().expect("a ticket is served");
        let id = ticket.group;
        let plan = ticket.plan.clone();
        // What is being released counts no more, and a shard still has it.
        if self.keeper.as_ref().is_some_and(|keeper| keeper.is_releasing()) {
            return self.end_ticket();
        }
        // What its queue allowed when the nodes were chosen may be charged to others since.
        let Ok(charges) = self.charge_plan(id, &plan, self.now) else { return self.end_ticket() };
        let ticket = self.ticket.as_mut().expect("a ticket is served");
        ticket.stage = Stage::Committing;
        ticket.sent_at = self.port.growth();
        ticket.blocked_by = None;
        ticket.again = None;
        self.transition(id, State::Committing { by_ticket: true, removal: None });
        let ticket = self.ticket.as_ref().expect("a ticket is served");
        self.groups.get_mut(&id).expect("a group with a ticket is there").attempts += 1;
        let owner = ticket.owner();
        let reserved: Vec<NodeId> = ticket.reserved.iter().map(|&(_, node)| node).collect();
        let of_ticket = |node| reserved.contains(&node).then_some(owner);
        let (operations, ended) = self.placing_operations(id, &plan, of_ticket);
        let placing = Placing { group: id, ended, draft: plan, charges };
        let conflict_detection = ConflictDetection::Fine;
        let mode = CommitMode::AllOrNothing;
        let terms = CommitOptions { conflict_detection, mode, atomic: true };
        self.commit(operations, Vec::new(), terms, Purpose::Place(Box::new(placing)));
    }

    /// Updates the ticket after its statement. `done`: it was committed.
    pub(super) fn ticket_concluded(&mut self, done: bool, conflicts: &[Conflict], now: Time) {
        let ticket = self.ticket.as_mut().expect("a ticket is served");
        assert!(ticket.stage == Stage::Committing, "a ticket that is {:?} was committed", ticket.stage);
        ticket.stage = Stage::Reserved;
        // Capacity that other shards held and gave back is no reason to try again.
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
            self.end_ticket();
        } else if conflicts.iter().any(gone) {
            // The plan is no longer possible. The ticket ends when it is served next in this round. Not here,
            // because the caller may be about to remove the group.
            ticket.until = now;
        }
    }

    /// Ends the reservations. When that is done, the next ticket is served. The group continues as one that
    /// found no place.
    fn end_ticket(&mut self) {
        let wanted = self.ticket.as_ref().is_some_and(|ticket| self.is_wanted(ticket));
        let ticket = self.ticket.as_mut().expect("a ticket is served");
        let id = ticket.group;
        let owner = ticket.owner();
        let reserved = std::mem::take(&mut ticket.reserved);
        ticket.stage = Stage::Ending { left: reserved.len() };
        if reserved.is_empty() {
            self.drop_ticket();
        }
        for (shard, node) in reserved {
            self.outbox.push_back((TICKET_TAG, shard, Command::EndReservation(node, owner)));
        }
        if let Some(group) = self.groups.get_mut(&id).filter(|_| wanted) {
            group.tickets = group.tickets.saturating_add(1);
            // Capacity that the ticket reserved or that others released may be free now.
            self.transition(id, State::Retrying);
        }
    }

    /// Starts the pause after the reservations have ended. It bounds the share of time in which groups
    /// withhold capacity from direct traffic, regardless of how many groups wait and of what blocks them.
    fn pause_tickets(&mut self, now: Time) {
        let ticket = self.ticket.as_mut().expect("a ticket is served");
        let pause = now.nanos_since(ticket.since).saturating_mul(TICKET_PAUSE);
        ticket.stage = Stage::Pausing { until: now.plus_nanos(pause) };
        if pause == 0 {
            self.drop_ticket();
        }
    }

    fn drop_ticket(&mut self) {
        self.ticket = None;
        self.tickets.serve_next();
    }

    /// Plans the bundles of a group: as they fit now, or else as they would if nothing of others ran.
    fn plan_reserved(&mut self, id: GroupId) -> Option<Draft> {
        self.sync();
        let wanted = self.wanted(id);
        let units = self.budget.search;
        self.replicas.plan_only(wanted.clone(), units).or_else(|| {
            let group = &self.groups[&id];
            let own = group.bundles.iter().filter_map(|bundle| Some(bundle.place?.allocation)).collect();
            self.replicas.plan_ignoring_others(&wanted, &own, group.tickets, units)
        })
    }

    /// Returns the time at which the ticket must be served again, if any.
    pub(super) fn ticket_deadline(&self) -> Option<Time> {
        let ticket = self.ticket.as_ref()?;
        match ticket.stage {
            Stage::Reserved => Some(ticket.again.map_or(ticket.until, |again| again.min(ticket.until))),
            Stage::Pausing { until } => Some(until),
            _ => None,
        }
    }
}
