//! Waiting groups: when they are retried, and how they end if they find no place.

use std::cmp::Reverse;
use std::ops::Bound;

use super::explain::Proof;
use super::group::Group;
use super::life::{ByPriority, OnGrowth, State};
use super::queue::PortClient;
use super::strategy::NoPlace;
use super::{JobTag, Planner};
use crate::group::{NoGroup, PlanReply};
use crate::ids::{GroupId, TenantId};
use crate::limits::{GROWTH_GROUPS_PER_ROUND, STATEMENT_LOSSES_MAX};
use crate::map::FixedMap;
use crate::replica::Replica;
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
    /// Makes an incomplete group wait until a node could hold one of its bundles or its deadline passes. `no_fit`: it
    /// has no place now.
    pub(super) fn wait(&mut self, id: GroupId, no_fit: bool, on_growth: OnGrowth) {
        let group = &self.groups[&id];
        let deadline = group.deadline();
        // A value of the label may become open to a rule without room for a bundle. What is counted twice may become free
        // without growth.
        let is_open = group.spec.topology.is_some() || self.replicas.copies.iter().any(Replica::is_uncertain);
        let on_growth = if is_open { OnGrowth::Plan } else { on_growth };
        self.transition(id, State::Waiting { deadline, no_fit, on_growth });
        self.wait_for_caps(id);
    }

    /// Makes a group wait that found no place. After several failures it takes a ticket.
    pub(super) fn wait_for_room(&mut self, id: GroupId, no_place: &NoPlace) {
        if self.fails_once_more(id, self.epoch().growth) {
            return self.queue_for_ticket(id);
        }
        // A search that was given up may find a place anywhere.
        let on_growth = if no_place.given_up { OnGrowth::Plan } else { OnGrowth::Count };
        self.wait(id, true, on_growth);
    }

    /// Counts that a group has no place after something grew. Returns whether this happened often enough for a
    /// ticket. The same growth counts once.
    pub(super) fn fails_once_more(&mut self, id: GroupId, growth: u64) -> bool {
        let growth = Some(growth);
        let group = self.groups.get_mut(&id).expect("a waiting group is kept");
        group.losses += u32::from(group.failed_at != growth);
        group.failed_at = growth;
        group.losses >= STATEMENT_LOSSES_MAX
    }

    /// Returns how many times in a row a search may have failed only because something is counted twice, which
    /// pending answers will show. 0: this one is trusted. After several rounds, the group is answered in any case.
    pub(super) fn uncertain_rounds(&self, id: GroupId) -> u8 {
        let group = &self.groups[&id];
        let State::Planning { rounds, .. } = group.state else { panic!("group {id} is {:?}", group.state) };
        // With nothing in flight, no answer would come.
        let doubtful = !self.flights.is_empty() && self.replicas.copies.iter().any(Replica::is_uncertain);
        if doubtful && rounds < DOUBTS_MAX { rounds + 1 } else { 0 }
    }

    /// Cancels the job `tag`, which creates or grows a group, or makes a placement that waits. If its statement is being
    /// committed, the group or the placement is made, or the job is cancelled when the commit fails.
    pub(super) fn cancel(&mut self, tag: JobTag, client: PortClient, now: Time) {
        if let Some(job) = self.queue.cancel(client, tag) {
            return self.reply(tag, job.cancelled());
        }
        if self.keeps_jobs() && !self.asked.contains_key(&tag) {
            return self.cancel_direct(tag);
        }
        // The job was answered before the cancel arrived.
        let Some(&id) = self.asked.get(&tag) else { return };
        let group = self.groups.get_mut(&id).expect("who is asked for stays until that is answered");
        if let (State::Committing { .. }, Some(job)) = (&group.state, &mut group.job) {
            job.is_cancelled = true;
            return;
        }
        self.give_up(id, NoGroup::Cancelled, now);
    }

    /// Continues the proof about a group in a later round. No other job of its client begins until it ends.
    pub(super) fn leave_undecided(&mut self, id: GroupId, proof: Box<Proof>) {
        let group = self.groups.get_mut(&id).expect("who plans for a group has it");
        // The next turn continues this attempt.
        group.attempts -= 1;
        self.transition(id, State::Undecided { proof: Some(proof) });
    }

    /// Continues with the next undecided group and charges its client. Returns whether there was one.
    pub(super) fn decide_next(&mut self, now: Time) -> bool {
        let Some((id, client)) = self.undecided.pop_front() else { return false };
        self.queue.release(client);
        let before = self.replicas.meter.spent();
        if matches!(self.groups.get(&id), Some(Group { state: State::Undecided { .. }, .. })) {
            self.try_group(id, now);
        }
        self.queue.charge(client, self.replicas.meter.spent() - before);
        true
    }

    /// Tries groups whose deadline has passed once more.
    pub(super) fn end_overdue(&mut self, now: Time) {
        while let Some(id) = self.deadlines.pop_due(now) {
            // The last attempt: if it finds no place, the group is refused.
            self.transition(id, State::Retrying);
        }
    }

    /// Notes that something may have changed for a group. If it waits, it is planned in its turn.
    pub(super) fn stir(&mut self, id: GroupId) {
        self.stirred.insert(id);
    }

    /// Checks whether waiting groups may have room. Each of these is tried once. Groups with reports have a queue of
    /// their own, because others wait for the answers.
    pub(super) fn look_for_room(&mut self) {
        let shown = || self.replicas.copies.iter().map(Replica::growth).collect();
        let growth = if self.wants_growth() { shown() } else { self.tried_at.clone() };
        if growth != self.tried_at {
            self.tried_at = growth;
            self.ticket_moved = true;
            self.grew = true;
        }
        let is_through = self.woken.is_empty();
        if is_through {
            self.growth_without_room();
        }
        if is_through && std::mem::take(&mut self.given_up) {
            // Groups that found a place and lost it would lose it again to the same work.
            let no_fit = |id: &GroupId| matches!(self.groups[id].state, State::Waiting { no_fit: true, .. });
            let ids = self.incomplete.iter().map(|(.., id)| *id).filter(no_fit);
            self.stirred.extend(ids.collect::<Vec<_>>());
        }
        let stirred = std::mem::take(&mut self.stirred).into_iter();
        let (urgent, others): (Vec<GroupId>, Vec<GroupId>) = stirred.partition(|&id| self.has_reports(id));
        for id in self.in_turn(urgent) {
            self.make_urgent(id);
        }
        if is_through {
            self.woken = self.in_turn(others).into();
        } else {
            self.stirred = others.into_iter().collect();
        }
    }

    /// Handles growth for some of the groups for whose bundles it was not, from where the last call ended.
    fn growth_without_room(&mut self) {
        let from = match self.growing_from.take() {
            Some(from) => from,
            None if std::mem::take(&mut self.grew) => Bound::Unbounded,
            None => return,
        };
        let rest = self.growing.range((from, Bound::Unbounded));
        let some: Vec<ByPriority> = rest.take(GROWTH_GROUPS_PER_ROUND).copied().collect();
        if some.len() == GROWTH_GROUPS_PER_ROUND {
            self.growing_from = some.last().copied().map(Bound::Excluded);
        }
        let growth = self.epoch().growth;
        for (.., id) in some {
            let state = &self.groups[&id].state;
            let State::Waiting { on_growth, .. } = *state else { panic!("group {id} is {state:?}") };
            match on_growth {
                OnGrowth::Plan => self.stir(id),
                // Room for one of its bundles was reported.
                OnGrowth::Count if self.stirred.contains(&id) || self.has_reports(id) => {}
                OnGrowth::Count if self.fails_once_more(id, growth) => self.queue_for_ticket(id),
                OnGrowth::Count | OnGrowth::WaitOn => {}
            }
        }
    }

    /// Returns the waiting groups of `ids` in order: higher priority first, and at equal priority one of each tenant in turn.
    /// Those of a tenant come one of each client in turn.
    fn in_turn(&self, ids: Vec<GroupId>) -> Vec<GroupId> {
        let waiting = ids
            .into_iter()
            .filter_map(|id| self.groups.get(&id))
            .filter(|group| matches!(group.state, State::Waiting { .. }));
        let mut waiting: Vec<&Group> = waiting.collect();
        waiting.sort_unstable_by_key(|group| group.turn());
        let mut before: FixedMap<(i32, Option<PortClient>), u32> = FixedMap::default();
        let order = waiting.into_iter().map(|group| {
            let of_client = before.entry((group.spec.priority, group.client)).or_default();
            *of_client += 1;
            (Reverse(group.spec.priority), *of_client, group.listed, group.id)
        });
        let mut of_clients: Vec<(Reverse<i32>, u32, Time, GroupId)> = order.collect();
        of_clients.sort_unstable();
        let mut before: FixedMap<(Reverse<i32>, TenantId), u32> = FixedMap::default();
        let order = of_clients.into_iter().map(|(priority, of_client, listed, id)| {
            let of_tenant = before.entry((priority, id.tenant)).or_default();
            *of_tenant += 1;
            (priority, *of_tenant, of_client, listed, id)
        });
        let mut order: Vec<(Reverse<i32>, u32, u32, Time, GroupId)> = order.collect();
        order.sort_unstable();
        order.into_iter().map(|(.., id)| id).collect()
    }

    /// Tries the next waiting group, from both queues in turn. Returns whether there was one.
    pub(super) fn retry_next(&mut self, now: Time) -> bool {
        self.is_urgent_next = !self.is_urgent_next;
        let is_urgent = self.is_urgent_next || self.woken.is_empty();
        let urgent = if is_urgent { self.next_urgent() } else { None };
        let Some(id) = urgent.or_else(|| self.woken.pop_front()) else { return false };
        let is_waiting = matches!(self.groups.get(&id), Some(Group { state: State::Waiting { .. }, .. }));
        // One in a queue is tried by cycles.
        if is_waiting && !self.has_placeholder(id) {
            self.try_group(id, now);
        }
        true
    }

    /// Answers a waiting creation and removes its group, or answers a growth and removes its bundles.
    pub(super) fn give_up(&mut self, id: GroupId, reason: NoGroup, now: Time) {
        let reply = PlanReply::Group(Err(reason));
        let group = self.groups.get_mut(&id).expect("what is given up is there");
        let job = group.job.take().expect("a job is given up");
        let Some(first) = job.grows_from else {
            self.forget_group(id);
            return self.reply(job.tag, reply);
        };
        group.bundles.retain(|bundle| bundle.index < first);
        // These bundles never existed, so the next ones get their indexes.
        group.next_index = first;
        group.losses = 0;
        self.reply(job.tag, reply);
        self.settle(id, None, now);
    }
}
