//! Waiting groups: when they are retried, and how they end if they find no place.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

use super::group::{Awaiting, Group};
use super::queue::PortClient;
use super::replica::Replica;
use super::{JobTag, Planner};
use crate::group::{GroupRefusal, GroupRefusalReason, NoGroup, PlanReply};
use crate::ids::GroupId;
use crate::limits::STATEMENT_LOSSES_MAX;
use crate::map::FixedMap;
use crate::statement::Conflict;
use crate::time::Time;

/// How many times a failed search waits for pending answers before it is trusted.
const DOUBTS_MAX: u8 = 8;

/// Returns whether the bundles to place may wait. A growth waits only while all other bundles are placed,
/// because lost bundles are placed again first.
pub(super) fn may_wait(group: &Group) -> bool {
    let Some(first) = group.grows_from() else { return true };
    group.bundles.iter().all(|bundle| bundle.index >= first || bundle.place.is_some())
}

impl Planner {
    /// Makes an incomplete group wait until something grows or its deadline passes.
    pub(super) fn wait(&mut self, id: GroupId) {
        let group = &self.groups[&id];
        self.incomplete.insert((Reverse(group.spec.priority), id));
        self.watch_deadline(id);
    }

    /// Makes a group wait that has no place now.
    pub(super) fn wait_without_fit(&mut self, id: GroupId) {
        self.groups.get_mut(&id).expect("who plans for a group has it").no_fit = true;
        self.wait(id);
    }

    /// Makes a group wait that found no place. It is retried when something grows. After several failures it
    /// takes a ticket.
    pub(super) fn wait_for_room(&mut self, id: GroupId) {
        let group = self.groups.get_mut(&id).expect("who plans for a group has it");
        group.losses += 1;
        if group.losses >= STATEMENT_LOSSES_MAX {
            return self.queue_for_ticket(id);
        }
        self.wait_without_fit(id);
    }

    /// Returns whether a search may have failed only because something is counted twice. Pending answers will
    /// show this. After several rounds, the group is answered in any case.
    pub(super) fn is_uncertain(&mut self, id: GroupId) -> bool {
        // With nothing in flight, no answer would come.
        let answers = !self.flights.is_empty();
        let doubtful = answers && self.replicas.copies.iter().any(Replica::is_uncertain);
        let group = self.groups.get_mut(&id).expect("who plans for a group has it");
        let asks = doubtful && group.uncertain_rounds < DOUBTS_MAX;
        group.uncertain_rounds = if asks { group.uncertain_rounds + 1 } else { 0 };
        asks
    }

    /// Registers the group's deadline, if it has one.
    pub(super) fn watch_deadline(&mut self, id: GroupId) {
        if let Some(deadline) = self.groups[&id].deadline() {
            self.deadlines.insert(deadline, id);
        }
    }

    /// Removes the group's deadlines.
    pub(super) fn forget_deadline(&mut self, id: GroupId) {
        let Some(group) = self.groups.get(&id) else { return };
        for until in [group.until, group.queued_until].into_iter().flatten() {
            self.deadlines.remove(until, id);
        }
    }

    /// Cancels the job `tag`, which creates or grows a group. If its statement is being committed, the group
    /// is placed, or refused if the commit fails.
    pub(super) fn cancel(&mut self, tag: JobTag, client: PortClient, now: Time) {
        if self.queue.cancel(client, tag) {
            return self.reply(tag, PlanReply::Group(Err(NoGroup::Cancelled)));
        }
        // The job was answered before the cancel arrived.
        let Some(&id) = self.asked.get(&tag) else { return };
        self.forget_deadline(id);
        let group = self.groups.get_mut(&id).expect("who is asked for stays until that is answered");
        if group.committing {
            group.until = None;
            return;
        }
        self.give_up(id, NoGroup::Cancelled, now);
    }

    /// Continues the proof about a group in a later round. No other job of its client begins until it ends.
    pub(super) fn leave_undecided(&mut self, id: GroupId) {
        let group = self.groups.get_mut(&id).expect("who plans for a group has it");
        // The next turn continues this attempt.
        group.attempts -= 1;
        if !std::mem::replace(&mut group.undecided, true) {
            let client = group.client.expect("whose group is refused has asked for it");
            self.queue.hold(client);
            self.undecided.push_back((id, client));
        }
    }

    /// Continues with the next undecided group and charges its client. Returns whether there was one.
    pub(super) fn decide_next(&mut self, now: Time) -> bool {
        let Some((id, client)) = self.undecided.pop_front() else { return false };
        self.queue.release(client);
        let before = self.replicas.meter.spent();
        if let Some(group) = self.groups.get_mut(&id) {
            group.undecided = false;
            self.try_group(id, now);
        }
        self.queue.charge(client, self.replicas.meter.spent() - before);
        true
    }

    /// Tries groups whose deadline has passed once more.
    pub(super) fn end_overdue(&mut self, now: Time) {
        let mut overdue = Vec::new();
        while let Some(id) = self.deadlines.pop_due(now) {
            let group = &self.groups[&id];
            // A group with a statement in flight or a ticket being served is handled when that ends.
            let waits = self.incomplete.contains(&(Reverse(group.spec.priority), id)) || self.is_queued(id);
            if waits && group.deadline().is_some_and(|deadline| deadline <= now) {
                overdue.push(id);
            }
        }
        if overdue.is_empty() {
            return;
        }
        // A ticket number that is not served yet ends with its group.
        let ends: BTreeSet<GroupId> = overdue.iter().copied().collect();
        self.ticket_queue.retain(|contender| !ends.contains(contender));
        for id in overdue {
            self.groups.get_mut(&id).expect("just looked at").queued_for_ticket = false;
            // The last attempt: if it finds no place, the group is refused.
            self.lost.push_back(id);
        }
    }

    /// Checks whether capacity may have come free for waiting groups. If so, each of them is tried once.
    pub(super) fn look_for_growth(&mut self) {
        if !self.wants_growth() {
            (self.retry_now, self.given_up) = (false, false);
            return self.retrying.clear();
        }
        if !self.retrying.is_empty() {
            return;
        }
        let growth = self.port.growth();
        if growth != self.tried_at || self.retry_now {
            self.ticket_moved = true;
            (self.retry_now, self.given_up) = (false, false);
            self.tried_at = growth;
            self.retrying = self.in_turn(|_| true);
        } else if std::mem::take(&mut self.given_up) {
            // Groups that found a place and lost it would lose it again to the same work.
            self.retrying = self.in_turn(|group| group.no_fit);
        }
    }

    /// Returns waiting groups in order: higher priority first, and at equal priority one of each client in
    /// turn.
    fn in_turn(&self, which: impl Fn(&Group) -> bool) -> VecDeque<(Reverse<i32>, GroupId)> {
        let mut before: FixedMap<(i32, Option<PortClient>), u32> = FixedMap::default();
        let mut order: Vec<(Reverse<i32>, u32, GroupId)> = Vec::with_capacity(self.incomplete.len());
        for &(priority, id) in &self.incomplete {
            let group = &self.groups[&id];
            if which(group) {
                let of_client = before.entry((priority.0, group.client)).or_default();
                order.push((priority, *of_client, id));
                *of_client += 1;
            }
        }
        order.sort_unstable();
        order.into_iter().map(|(priority, _, id)| (priority, id)).collect()
    }

    /// Tries the next waiting group. Returns whether there was one.
    pub(super) fn retry_next(&mut self, now: Time) -> bool {
        let Some(waiting) = self.retrying.pop_front() else { return false };
        if self.incomplete.contains(&waiting) {
            self.try_group(waiting.1, now);
        }
        true
    }

    /// Answers a waiting creation and removes its group, or answers a growth and removes its bundles.
    pub(super) fn give_up(&mut self, id: GroupId, reason: NoGroup, now: Time) {
        let reply = PlanReply::Group(Err(reason));
        self.forget_deadline(id);
        let group = self.groups.get_mut(&id).expect("what is given up is there");
        match std::mem::replace(&mut group.awaiting, Awaiting::Nobody) {
            Awaiting::Creation(tag) => {
                self.forget_group(id);
                self.reply(tag, reply);
            }
            Awaiting::Growth(tag, first) => {
                group.bundles.retain(|bundle| bundle.index < first);
                // These bundles never existed, so the next ones get their indexes.
                group.next_index = first;
                (group.queued_for_ticket, group.losses) = (false, 0);
                self.void_ticket(id);
                self.reply(tag, reply);
                self.settle(id, now);
            }
            Awaiting::Nobody => unreachable!("nobody waits for group {id}"),
        }
    }

    /// Refuses a group that had too many conflicts and whose deadline has passed.
    pub(super) fn refuse_loser(&mut self, id: GroupId, conflicts: &[Conflict], now: Time) {
        let reason = GroupRefusalReason::Conflicts(conflicts.to_vec());
        let refusal = GroupRefusal { infeasible: false, reason, attempts: self.groups[&id].attempts };
        self.give_up(id, NoGroup::Refused(Box::new(refusal)), now);
    }
}
