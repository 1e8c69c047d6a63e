//! Tickets: how a statement that loses again and again comes to its end.
//!
//! A group whose plans were lost to other work, or that found no place as often, takes a number.
//! Whose number is served reserves nodes (the index's own reservations) that could hold it were they
//! free of later requests: what comes free there is set aside for it, and direct traffic cannot
//! take it. Then it commits as the owner of these reservations. One ticket is served at a time over
//! all planners, and for a bounded time: that is what bounds what groups can keep from direct
//! traffic. After it the next is served, and a group that still waits takes a new number.
//!
//! Groups with a rule over the values of a label reserve only what fits at that moment.

use std::cmp::Reverse;
use std::sync::{Arc, OnceLock};

use super::draft::{Draft, Taken};
use super::group::Group;
use super::spec::Strategy;
use super::strategy::NoPlace;
use super::together::{Item, combined, largest_first, reserved_demand};
use super::{Placing, Planner, Purpose};
use crate::ids::{GroupId, NodeId, OwnerId, ShardId};
use crate::index::Slot;
use crate::resource::GpuAssignment;
use crate::ring::Doorbell;
use crate::router::Tag;
use crate::shard::{Command, Outcome, Rejection, Reserve};
use crate::statement::{Allocate, CommitMode, Evict, Granularity, Operation};
use crate::sync::{AtomicU64, Ordering};
use crate::time::Time;

/// The answer to a command of a ticket, not of a flight.
pub(super) const TICKET_TAG: Tag = Tag::MAX;

/// Numbers, and which is served: shared by all planners.
#[derive(Default)]
pub(crate) struct Tickets {
    next: AtomicU64,
    serving: AtomicU64,
    /// Of all planners.
    bells: OnceLock<Vec<Arc<Doorbell>>>,
}

impl Tickets {
    /// Whose bells are rung when the next number is served.
    pub(crate) fn set_bells(&self, bells: Vec<Arc<Doorbell>>) {
        assert!(self.bells.set(bells).is_ok(), "the planners are known once");
    }

    fn take(&self) -> u64 {
        // Relaxed: only that numbers differ matters.
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn is_served(&self, number: u64) -> bool {
        // Acquire pairs with the Release in `serve_next`: what the one before did is done.
        self.serving.load(Ordering::Acquire) == number
    }

    fn serve_next(&self) {
        // Release pairs with the Acquire in `is_served`.
        self.serving.fetch_add(1, Ordering::Release);
        self.bells.get().into_iter().flatten().for_each(|bell| bell.ring());
    }
}

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
}

/// The ticket of a planner.
#[derive(Debug)]
pub(super) struct Ticket {
    number: u64,
    group: GroupId,
    stage: Stage,
    /// When what is reserved ends.
    until: Time,
    /// Where each bundle goes.
    plan: Vec<Taken>,
    reserved: Vec<(ShardId, NodeId)>,
}

impl Ticket {
    fn owner(&self) -> OwnerId {
        OwnerId::ticket(self.number)
    }
}

impl Planner {
    /// A group that lost too often waits for a number.
    pub(super) fn contend(&mut self, id: GroupId) {
        let group = self.groups.get_mut(&id).expect("who plans for a group has it");
        (group.losses, group.contending) = (0, true);
        self.incomplete.remove(&(Reverse(group.spec.priority), id));
        self.contenders.push_back(id);
    }

    /// Does what can be done for the ticket now.
    pub(super) fn serve_ticket(&mut self, now: Time) {
        if self.ticket.is_none() {
            let groups = &self.groups;
            self.contenders.retain(|id| groups.get(id).is_some_and(|group| group.contending));
            let Some(group) = self.contenders.pop_front() else { return };
            let (number, stage) = (self.tickets.take(), Stage::Queued);
            let (plan, reserved) = (Vec::new(), Vec::new());
            self.ticket = Some(Ticket { number, group, stage, until: now, plan, reserved });
        }
        let ticket = self.ticket.as_ref().expect("just taken");
        match ticket.stage {
            Stage::Queued if self.tickets.is_served(ticket.number) => self.reserve(now),
            Stage::Reserved if ticket.until <= now || !self.waits_for_ticket(ticket.group) => {
                self.end_ticket(now);
            }
            Stage::Reserved if self.ticket_moved => self.commit_ticket(now),
            Stage::Queued | Stage::Reserving { .. } | Stage::Reserved | Stage::Committing => {}
        }
    }

    /// Groups whose number is not served yet.
    pub(super) fn queued_contenders(&self) -> impl Iterator<Item = GroupId> {
        let queued = self.ticket.as_ref().filter(|ticket| ticket.stage == Stage::Queued);
        let ids = self.contenders.iter().copied().chain(queued.map(|ticket| ticket.group));
        ids.filter(|&id| self.waits_for_ticket(id))
    }

    /// Whose the ticket is.
    pub(super) fn ticket_group(&self) -> Option<GroupId> {
        self.ticket.as_ref().map(|ticket| ticket.group)
    }

    fn waits_for_ticket(&self, id: GroupId) -> bool {
        self.groups.get(&id).is_some_and(|group| group.contending)
    }

    /// Chooses nodes for the group and reserves them.
    fn reserve(&mut self, now: Time) {
        let (id, owner) = self.ticket.as_ref().map(|t| (t.group, t.owner())).expect("a ticket is served");
        let waits = self.waits_for_ticket(id);
        let plan = waits.then(|| self.plan_reserved(id)).flatten();
        let Some(mut plan) = plan else { return self.end_ticket(now) };
        plan.sort_by_key(|taken| (taken.shard, taken.slot));
        let until = now.plus_nanos(self.config.ticket_ns);
        let until = self.groups[&id].until.map_or(until, |of_group| until.min(of_group));
        let mut reserved = Vec::new();
        for of_node in plan.chunk_by(|a, b| (a.shard, a.slot) == (b.shard, b.slot)) {
            let group = &self.groups[&id];
            let items: Vec<Item> = of_node.iter().map(|taken| group.item(taken.bundle)).collect();
            let (shard, node) = (self.shard_id(of_node[0].shard), of_node[0].node);
            let Some(demand) = reserved_demand(&items) else { return self.end_ticket(now) };
            let reserve = Reserve { node, owner, demand, until: Some(until) };
            self.outbox.push_back((TICKET_TAG, shard, Command::Reserve(Box::new(reserve))));
            reserved.push((shard, node));
        }
        // In order of partition and node at each shard, and one ticket at a time: nobody waits for another.
        let left = reserved.len();
        let ticket = self.ticket.as_mut().expect("a ticket is served");
        (ticket.until, ticket.plan, ticket.reserved) = (until, plan, reserved);
        ticket.stage = Stage::Reserving { left, refused: false };
    }

    /// What a shard answered to the ticket.
    pub(super) fn handle_ticket_answer(&mut self, outcome: &Outcome, now: Time) {
        // That what was reserved ends is not waited for: it may have been used up, too.
        let Some(ticket) = &mut self.ticket else { return };
        let Stage::Reserving { left, refused } = &mut ticket.stage else { return };
        match outcome {
            Outcome::Reserved(_) => {}
            Outcome::Rejected(Rejection::NotReserved { .. }) | Outcome::ReservationEnded(_) => return,
            Outcome::Rejected(_) => *refused = true,
            other => panic!("a reservation was answered with {other:?}"),
        }
        *left -= 1;
        if *left > 0 {
            return;
        }
        let waits = self.groups.get(&ticket.group).is_some_and(|group| group.contending);
        if *refused || !waits {
            self.end_ticket(now);
        } else {
            ticket.stage = Stage::Reserved;
            self.commit_ticket(now);
        }
    }

    fn commit_ticket(&mut self, now: Time) {
        self.ticket_moved = false;
        let ticket = self.ticket.as_mut().expect("a ticket is served");
        ticket.stage = Stage::Committing;
        let (id, owner, plan) = (ticket.group, ticket.owner(), ticket.plan.clone());
        let group = self.groups.get_mut(&id).expect("a group with a ticket is there");
        group.committing = true;
        group.attempts += 1;
        let operation = |taken: &Taken, group: &Group| {
            let demand = group.item(taken.bundle).request.demand.clone();
            let bundle = Some(crate::ids::BundleId { group: id, index: taken.bundle });
            let (node, owner) = (taken.node, Some(owner));
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
        let terms = (Granularity::Fine, CommitMode::AllOrNothing);
        self.commit(operations, terms, Purpose::Place(Box::new(placing)), now);
    }

    /// Whether the statement that just ended was the ticket's; `done`: it was committed.
    pub(super) fn ticket_concluded(&mut self, id: GroupId, done: bool, now: Time) -> bool {
        let Some(ticket) = &mut self.ticket else { return false };
        if ticket.group != id || ticket.stage != Stage::Committing {
            return false;
        }
        ticket.stage = Stage::Reserved;
        if done {
            self.groups.get_mut(&id).expect("a group with a ticket is there").contending = false;
            self.end_ticket(now);
        }
        true
    }

    /// Ends what is reserved, serves the next; the group goes on as one that found no place.
    fn end_ticket(&mut self, now: Time) {
        let ticket = self.ticket.take().expect("a ticket is served");
        let owner = ticket.owner();
        for (shard, node) in ticket.reserved {
            self.outbox.push_back((TICKET_TAG, shard, Command::EndReservation(node, owner)));
        }
        self.tickets.serve_next();
        let Some(group) = self.groups.get_mut(&ticket.group).filter(|group| group.contending) else { return };
        group.contending = false;
        let bundle = group.bundles.iter().find(|bundle| bundle.place.is_none());
        let bundle = bundle.map_or(0, |bundle| bundle.index);
        let removal = group.removal.is_some();
        if removal {
            self.begin_removal(ticket.group, now);
        } else {
            self.no_place(ticket.group, NoPlace { bundle, placed: 0 }, now);
        }
    }

    /// Where the bundles of a group go: as they fit now, else as they would on nodes where nothing runs.
    fn plan_reserved(&mut self, id: GroupId) -> Option<Vec<Taken>> {
        self.sync();
        let mut draft = Draft::default();
        let savepoint = draft.savepoint();
        let wanted = self.wanted(id);
        if self.replicas.plan(wanted, &mut draft).is_ok() {
            let plan = draft.taken.clone();
            self.replicas.roll_back(&mut draft, savepoint);
            return Some(plan);
        }
        let group = &self.groups[&id];
        if group.spec.topology.is_some() || group.placed() > 0 && group.spec.strategy != Strategy::Spread {
            return None;
        }
        let mut items: Vec<Item> = self.wanted(id).items;
        largest_first(&mut items);
        self.plan_on_empty(self.groups[&id].spec.strategy, &items)
    }

    /// First fit, largest first, over nodes with most free first, as if nothing ran there. Looked at are
    /// some more nodes than there are bundles: those that come free soonest.
    fn plan_on_empty(&mut self, strategy: Strategy, items: &[Item]) -> Option<Vec<Taken>> {
        let mut nodes: Vec<(Reverse<u64>, usize, Slot)> = Vec::new();
        for (shard, copy) in self.replicas.copies.iter().enumerate() {
            nodes.extend(copy.shard().free_shares().map(|(slot, share)| (Reverse(share), shard, slot)));
        }
        nodes.sort_unstable();
        nodes.retain(|&(_, shard, slot)| self.could_hold(shard, slot, &items[..1]));
        nodes.truncate(2 * items.len() + 64);
        let mut held: Vec<Vec<Item>> = vec![Vec::new(); nodes.len()];
        if strategy == Strategy::StrictPack {
            let at = (0..nodes.len()).find(|&at| self.could_hold(nodes[at].1, nodes[at].2, items))?;
            held[at] = items.to_vec();
        } else {
            for item in items {
                let mut first = |empty: bool| {
                    (0..nodes.len()).find(|&at| {
                        let together = [&held[at][..], std::slice::from_ref(item)].concat();
                        (!empty || held[at].is_empty())
                            && self.could_hold(nodes[at].1, nodes[at].2, &together)
                    })
                };
                let at = match strategy {
                    Strategy::StrictSpread => first(true),
                    Strategy::Spread => first(true).or_else(|| first(false)),
                    Strategy::Pack | Strategy::StrictPack => first(false),
                };
                held[at?].push(item.clone());
            }
        }
        let mut plan = Vec::new();
        for (items, &(_, shard, slot)) in held.iter().zip(&nodes) {
            let node = self.replicas.copies[shard].shard().node_at(slot)?;
            let taken = |item: &Item| Taken {
                bundle: item.bundle,
                shard,
                slot,
                node,
                gpus: GpuAssignment::NONE,
                key: 0,
            };
            plan.extend(items.iter().map(taken));
        }
        Some(plan)
    }

    /// Whether a node could hold all of `items` if nothing ran there.
    fn could_hold(&mut self, shard: usize, slot: Slot, items: &[Item]) -> bool {
        let copy = self.replicas.copies[shard].shard_mut();
        items.iter().all(|item| copy.may_hold(slot, &item.request))
            && combined(items).is_some_and(|request| copy.could_hold(slot, &request.demand))
    }

    /// When the ticket has something to do by itself.
    pub(super) fn ticket_deadline(&self) -> Option<Time> {
        let ticket = self.ticket.as_ref()?;
        matches!(ticket.stage, Stage::Reserved).then_some(ticket.until)
    }
}
