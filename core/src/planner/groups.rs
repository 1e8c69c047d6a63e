//! The life of a group: it is created, grown, shrunk, placed again after losses, and removed.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::colocate::Item;
use super::draft::{Draft, PlannedBundle};
use super::group::{Awaiting, Bundle, Group, Place};
use super::in_flight::StatementResult;
use super::pending::may_wait;
use super::queue::PortClient;
use super::strategy::{NoPlace, Standing, Wanted};
use super::{EndPurpose, JobTag, Placing, Planner, Purpose};
use crate::group::{GroupSpec, GroupSpecError, GroupView, PlanRejection, PlanReply, Spreading, TopologyRule};
use crate::ids::{AllocationId, BundleId, GroupId, NodeId, ShardId};
use crate::limits::{GROUP_BUNDLES_MAX, GROUPS_MAX, STATEMENT_LOSSES_MAX};
use crate::planted::{PlantedBug, is_planted};
use crate::request::PlacementRequest;
use crate::statement::{
    Allocate, CommitMode, Conflict, ConflictDetection, ConflictReason, Evict, Granted, Operation,
};
use crate::time::Time;

/// Evictions that a statement of others blocks are retried after this fraction of the hold time.
const PAUSES_PER_HOLD: u64 = 64;

impl Planner {
    pub(super) fn create_group(&mut self, tag: JobTag, client: PortClient, spec: Arc<GroupSpec>, now: Time) {
        let checked = spec.check().map_err(PlanRejection::from);
        let room =
            (self.groups.len() < GROUPS_MAX).then_some(()).ok_or(PlanRejection::TooManyGroups(GROUPS_MAX));
        if let Err(rejection) = checked.and(room) {
            return self.reply(tag, PlanReply::Rejected(rejection));
        }
        let id = self.next_group_id();
        self.groups.insert(id, Group::new(id, spec, tag, client));
        self.asked.insert(tag, id);
        self.try_group(id, now);
    }

    pub(super) fn grow_group(
        &mut self,
        (tag, client): (JobTag, PortClient),
        id: GroupId,
        (requests, until): (&[Arc<PlacementRequest>], Option<Time>),
        now: Time,
    ) {
        let group = match self.settled(id) {
            Ok(group) => group,
            Err(rejection) => return self.reply(tag, PlanReply::Rejected(rejection)),
        };
        let bundles = group.bundles.len() + requests.len();
        if requests.is_empty() || bundles > GROUP_BUNDLES_MAX {
            let error = GroupSpecError::Bundles(if requests.is_empty() { 0 } else { bundles });
            return self.reply(tag, PlanReply::Rejected(error.into()));
        }
        let first = group.add(requests);
        group.awaiting = Awaiting::Growth(tag, first);
        group.client = Some(client);
        (group.until, group.queued_until, group.judged) = (until, None, None);
        self.asked.insert(tag, id);
        self.try_group(id, now);
    }

    pub(super) fn shrink_group(&mut self, tag: JobTag, id: GroupId, indexes: &[u32], now: Time) {
        let operations = match self.shrinking(id, indexes) {
            Ok(operations) => operations,
            Err(rejection) => return self.reply(tag, PlanReply::Rejected(rejection)),
        };
        let purpose = Purpose::End(id, EndPurpose::Shrink(tag, indexes.to_vec()));
        self.end_bundles(id, operations, purpose, now);
    }

    /// Returns the allocations of the bundles to remove.
    fn shrinking(&mut self, id: GroupId, indexes: &[u32]) -> Result<Vec<AllocationId>, PlanRejection> {
        let group = self.settled(id)?;
        if let Some(&unknown) = indexes.iter().find(|&&index| group.bundle_mut(index).is_none()) {
            return Err(PlanRejection::UnknownBundle(id, unknown));
        }
        let least = group.spec.min_members as usize;
        let (goes, stays): (Vec<&Bundle>, Vec<&Bundle>) =
            group.bundles.iter().partition(|bundle| indexes.contains(&bundle.index));
        let placed = |bundles: &[&Bundle]| bundles.iter().filter(|bundle| bundle.place.is_some()).count();
        // A group that is below its minimum already may still give up bundles that are not placed.
        if stays.len() < least || (placed(&goes) > 0 && placed(&stays) < least) {
            return Err(PlanRejection::BelowMinimum(id));
        }
        Ok(goes
            .into_iter()
            .filter_map(|bundle| bundle.place.map(|place| place.allocation).or(bundle.lost))
            .collect())
    }

    /// Returns a group that no other job or statement is changing.
    fn settled(&mut self, id: GroupId) -> Result<&mut Group, PlanRejection> {
        let group = self.groups.get_mut(&id).ok_or(PlanRejection::UnknownGroup(id))?;
        let busy = group.committing
            || group.queued_for_ticket
            || group.removal.is_some()
            || group.awaiting != Awaiting::Nobody;
        if busy { Err(PlanRejection::Busy(id)) } else { Ok(group) }
    }

    /// Returns whether the group was not placed yet and its creator waits for it.
    pub(super) fn is_awaited(&self, id: GroupId) -> bool {
        self.groups.get(&id).is_some_and(|group| matches!(group.awaiting, Awaiting::Creation(_)))
    }

    pub(super) fn remove_group(&mut self, tag: JobTag, id: GroupId, now: Time) {
        let Some(group) = self.groups.get_mut(&id) else {
            return self.reply(tag, PlanReply::Rejected(PlanRejection::UnknownGroup(id)));
        };
        if group.removal.is_some() {
            return self.reply(tag, PlanReply::Rejected(PlanRejection::Busy(id)));
        }
        group.removal = Some(tag);
        if !group.committing {
            self.begin_removal(id, now);
        }
    }

    pub(super) fn begin_removal(&mut self, id: GroupId, now: Time) {
        let group = self.groups.get_mut(&id).expect("a group to be removed is there");
        let tag = group.removal.expect("somebody asked for the removal");
        let awaiting = std::mem::replace(&mut group.awaiting, Awaiting::Nobody);
        group.queued_for_ticket = false;
        let standing = group.bundles.iter();
        let mut allocations: Vec<_> =
            standing.filter_map(|b| b.place.map(|place| place.allocation).or(b.lost)).collect();
        if is_planted(PlantedBug::RemovalForgetsBundle) {
            allocations.pop();
        }
        if let Awaiting::Creation(creator) | Awaiting::Growth(creator, _) = awaiting {
            self.reply(creator, PlanReply::Removed(id, 0));
        }
        self.end_bundles(id, allocations, Purpose::End(id, EndPurpose::Removal(tag, 0)), now);
    }

    /// Ends allocations of bundles, on each shard separately.
    fn end_bundles(&mut self, id: GroupId, allocations: Vec<AllocationId>, purpose: Purpose, now: Time) {
        if allocations.is_empty() {
            let Purpose::End(_, end) = purpose else { unreachable!("bundles end for a purpose") };
            return self.end_concluded(id, end, 0, &[], now);
        }
        self.groups.get_mut(&id).expect("whose bundles end").committing = true;
        let evict = |allocation| Operation::Evict(Evict { allocation, expected: None, grace_ns: 0 });
        let operations: Vec<(ShardId, Operation)> = allocations
            .into_iter()
            .map(|allocation| (self.shard_of_allocation(allocation), evict(allocation)))
            .collect();
        self.commit_apart(operations, purpose);
    }

    /// Finishes a removal or a shrink. Bundles that a statement of others is about to evict may survive,
    /// because that statement may be aborted. They are ended again after a pause, until it is decided.
    /// Bundles that others evicted with grace keep their grace period.
    pub(super) fn end_concluded(
        &mut self,
        id: GroupId,
        mut end: EndPurpose,
        ended: u32,
        conflicts: &[Conflict],
        now: Time,
    ) {
        if let EndPurpose::Removal(_, count) = &mut end {
            *count += ended;
        }
        let held = |conflict: &Conflict| matches!(conflict.reason, ConflictReason::HeldBy(_));
        if conflicts.iter().any(held) && !is_planted(PlantedBug::HeldBundleTakenForEnded) {
            let due = now.plus_nanos((self.config.hold_ns / PAUSES_PER_HOLD).max(1));
            self.ending.push_back((due, id, end));
            return;
        }
        match end {
            EndPurpose::Removal(tag, count) => {
                self.forget_group(id);
                self.reply(tag, PlanReply::Removed(id, count));
            }
            EndPurpose::Shrink(tag, indexes) => {
                let group = self.groups.get_mut(&id).expect("groups stay while bundles end");
                group.committing = false;
                let (gone, stays): (Vec<_>, Vec<_>) =
                    group.bundles.drain(..).partition(|bundle| indexes.contains(&bundle.index));
                group.bundles = stays;
                let view = group.view();
                for bundle in gone {
                    self.left_node(bundle.place.map(|place| place.node), id, bundle.index);
                }
                self.reply(tag, PlanReply::Group(Box::new(view)));
                self.settle(id, now);
            }
        }
    }

    /// Retries to end the bundles that statements of others held.
    pub(super) fn end_again(&mut self, now: Time) {
        // The entries are in order of time, because the pause is always the same.
        while self.ending.front().is_some_and(|&(due, ..)| due <= now) {
            let (_, id, end) = self.ending.pop_front().expect("just seen");
            let goes = |bundle: &&Bundle| match &end {
                EndPurpose::Removal(..) => true,
                EndPurpose::Shrink(_, indexes) => indexes.contains(&bundle.index),
            };
            let allocations = self.groups[&id].bundles.iter().filter(goes);
            let allocations = allocations.filter_map(|b| b.place.map(|place| place.allocation).or(b.lost));
            let allocations = allocations.collect();
            self.end_bundles(id, allocations, Purpose::End(id, end), now);
        }
    }

    pub(super) fn left_node(&mut self, node: Option<NodeId>, id: GroupId, index: u32) {
        let Some(node) = node else { return };
        if let Some(bundles) = self.by_node.get_mut(&node) {
            bundles.remove(&(id, index));
            if bundles.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }

    pub(super) fn forget_group(&mut self, id: GroupId) {
        self.forget_deadline(id);
        self.proofs.remove(&id);
        let Some(group) = self.groups.remove(&id) else { return };
        self.incomplete.remove(&(Reverse(group.spec.priority), id));
        for bundle in &group.bundles {
            self.left_node(bundle.place.map(|place| place.node), id, bundle.index);
        }
    }

    pub(super) fn group_status(&mut self, tag: JobTag, id: GroupId) {
        if !self.followed {
            self.sync();
        }
        let reply = match self.groups.get(&id) {
            Some(group) => {
                self.replicas.meter.charge(group.bundles.len() as u64);
                PlanReply::Group(Box::new(self.shown(group)))
            }
            None => PlanReply::Rejected(PlanRejection::UnknownGroup(id)),
        };
        self.reply(tag, reply);
    }

    pub(super) fn list_groups(&mut self, tag: JobTag, after: Option<GroupId>, limit: u16) {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        let page = self.groups.range((from, Unbounded)).take(usize::from(limit));
        let page: Vec<GroupView> = page.map(|(_, group)| group.view()).collect();
        self.replicas.meter.charge(page.iter().map(|group| 1 + group.bundles.len() as u64).sum());
        self.reply(tag, PlanReply::Groups(page));
    }

    /// Plans the bundles of a group that are not placed, and begins to commit the plan. A plan may use the
    /// views of its round. Only the newest views can show that there is no place.
    pub(super) fn try_group(&mut self, id: GroupId, now: Time) {
        if !self.followed {
            self.sync();
        }
        let free = |group: &&mut Group| !group.committing && !group.queued_for_ticket;
        let Some(group) = self.groups.get_mut(&id).filter(free) else { return };
        if !group.is_incomplete() {
            return self.settle(id, now);
        }
        group.attempts += 1;
        let conflict_detection = group.spec.conflict_detection;
        if let Some(no_place) = self.recall(id) {
            self.work.recalled += 1;
            self.replicas.meter.charge(1);
            return self.judge(id, &no_place, now);
        }
        let mut draft = Draft::default();
        let mut planned = self.search(id, &mut draft);
        if planned.is_err() && self.followed && self.sync() {
            planned = self.search(id, &mut draft);
        }
        match planned {
            Ok(()) => self.commit_placing(id, draft, conflict_detection),
            Err(no_place) => {
                self.keep_verdict(id, &no_place);
                if self.is_uncertain(id) {
                    return self.uncertain.push(id);
                }
                self.judge(id, &no_place, now);
            }
        }
    }

    fn search(&mut self, id: GroupId, draft: &mut Draft) -> Result<(), NoPlace> {
        let planned = self.replicas.plan(self.wanted(id), self.budget.search, draft);
        self.work.searches += 1;
        self.work.given_up += u64::from(planned.as_ref().is_err_and(|no_place| no_place.given_up));
        planned
    }

    /// Returns the bundles of a group to place.
    pub(super) fn wanted(&self, id: GroupId) -> Wanted {
        let group = &self.groups[&id];
        // A growth of a group with its minimum concerns the new bundles only, even if others are not placed.
        let from = match group.awaiting {
            Awaiting::Growth(_, first) if group.missing() == 0 => first,
            _ => 0,
        };
        let open = group.bundles.iter().filter(|bundle| bundle.place.is_none() && bundle.index >= from);
        let items: Vec<Item> =
            open.map(|b| Item { bundle: b.index, request: Arc::clone(&b.request) }).collect();
        let least = match group.awaiting {
            Awaiting::Growth(..) => items.len(),
            _ => group.missing().max(1),
        };
        let standing: Vec<NodeId> = group.bundles.iter().filter_map(|b| Some(b.place?.node)).collect();
        let forgets = is_planted(PlantedBug::SpreadForgetsPlaced);
        let standing = standing.into_iter().filter(|_| !forgets);
        let standing = standing.filter_map(|node| self.replicas.locate(node));
        let standing: Vec<Standing> = standing.map(|(shard, slot)| Standing { shard, slot }).collect();
        let strategy = group.spec.strategy;
        let topology = group.spec.topology.clone();
        let placed = group.bundles.iter().filter(|b| b.place.is_some() && topology.is_some());
        let mut settled: Vec<_> = placed.map(|b| Arc::clone(&b.request)).collect();
        settled.dedup_by(|a, b| Arc::ptr_eq(a, b));
        Wanted { strategy, topology, items, standing, settled, least }
    }

    fn commit_placing(&mut self, id: GroupId, draft: Draft, conflict_detection: ConflictDetection) {
        let group = self.groups.get_mut(&id).expect("who plans for a group has it");
        (group.committing, group.no_fit, group.uncertain_rounds) = (true, false, 0);
        self.incomplete.remove(&(Reverse(group.spec.priority), id));
        let lost = |taken: &PlannedBundle| Some((taken.bundle, group.bundle(taken.bundle)?.lost?));
        let mut ended: Vec<(u32, AllocationId)> = draft.taken.iter().filter_map(lost).collect();
        if is_planted(PlantedBug::LostBundleNotEnded) {
            ended.clear();
        }
        let mut operations = Vec::with_capacity(ended.len() + draft.taken.len());
        // Evictions come first, because a bundle may have only one allocation in its shard.
        for &(_, allocation) in &ended {
            let evict = Evict { allocation, expected: None, grace_ns: 0 };
            operations.push((self.shard_of_allocation(allocation), Operation::Evict(evict)));
        }
        let group = &self.groups[&id];
        for taken in &draft.taken {
            let bundle = group.bundle(taken.bundle).expect("what is planned is of the group");
            let request = &bundle.request;
            let operation = Operation::Allocate(Allocate {
                node: taken.node,
                expected: self.replicas.copies[taken.shard].version(taken.slot),
                demand: request.demand.clone(),
                gpus: None,
                owner: request.owner,
                bundle: Some(BundleId { group: id, index: taken.bundle }),
            });
            operations.push((self.shard_id(taken.shard), operation));
        }
        let mode = commit_mode(group, ended.is_empty());
        // The lost bundle ends in any state of its old node, so no version of that node is expected.
        let conflict_detection = if ended.is_empty() { conflict_detection } else { ConflictDetection::Fine };
        let ended = ended.into_iter().map(|(bundle, _)| bundle).collect();
        let purpose = Purpose::Place(Box::new(Placing { group: id, draft, ended }));
        self.commit(operations, (conflict_detection, mode), purpose);
    }

    /// Gives up on the replicas what a plan had taken and was not granted.
    fn give_up_refused(&mut self, draft: &Draft, ended: usize, concluded: &StatementResult) {
        if is_planted(PlantedBug::ClaimKeptByLoser) {
            return;
        }
        let mut refused = Draft { taken: refused(draft, ended, concluded) };
        self.replicas.roll_back(&mut refused, Draft::default().savepoint());
        self.released += 1;
    }

    pub(super) fn placement_concluded(&mut self, placing: Placing, concluded: &StatementResult, now: Time) {
        let Placing { group: id, draft, ended } = placing;
        let granted: usize = concluded.applied.iter().map(|applied| applied.granted.len()).sum();
        let lost = granted == 0;
        let partly = !lost && granted < ended.len() + draft.taken.len();
        if lost || partly {
            self.give_up_refused(&draft, ended.len(), concluded);
        }
        let group = self.groups.get_mut(&id).expect("groups stay while a statement of theirs is under way");
        group.committing = false;
        for applied in &concluded.applied {
            for (operation, granted) in &applied.granted {
                let Granted::Allocated(placement) = granted else { continue };
                let taken = &draft.taken[usize::from(*operation) - ended.len()];
                self.replicas.copies[taken.shard].granted(taken.slot, taken.key, applied.visible_from);
                let bundle = group.bundle_mut(taken.bundle).expect("no bundle goes while it is placed");
                let node = placement.node;
                let allocation = placement.allocation;
                let gpus = placement.gpus;
                bundle.place = Some(Place { node, allocation, gpus });
                bundle.lost = None;
                self.by_node.entry(node).or_default().insert((id, taken.bundle));
                // Checked with the next view. The current one may be older than the grant and still show the
                // node as lost.
                self.granted_on.push(node);
                if self.replicas.copies[taken.shard].endings.others_since(applied.visible_from) {
                    // Checked with a view that shows every answered grant. The current one may not.
                    self.look_again.push(node);
                }
            }
        }
        if !lost {
            (group.losses, group.tickets) = (0, 0);
            self.ticket_concluded(id, true, &[], now);
            return self.settle(id, now);
        }
        for conflict in &concluded.conflicts {
            // The lost allocation has ended by itself.
            if let ConflictReason::UnknownAllocation(gone) = conflict.reason {
                self.ticket_moved = true;
                let of_it = group.bundles.iter_mut().filter(|bundle| ended.contains(&bundle.index));
                of_it.filter(|bundle| bundle.lost == Some(gone)).for_each(|bundle| bundle.lost = None);
            }
        }
        // What the plan had taken on the replicas is free again. No shard reports this as growth.
        self.given_up = true;
        let removal = group.removal.is_some();
        // The group's ticket, if it has one, ends or continues in any case.
        let by_ticket = self.ticket_concluded(id, false, &concluded.conflicts, now);
        if removal {
            return self.begin_removal(id, now);
        }
        if by_ticket {
            return;
        }
        let group = self.groups.get_mut(&id).expect("just seen");
        group.losses += 1;
        if group.losses < STATEMENT_LOSSES_MAX {
            // Tried after all answers are taken: until then, their grants are in views and also claimed on
            // the replicas.
            self.lost.push_back(id);
        } else if group.deadline().is_some_and(|deadline| deadline <= now) {
            self.refuse_loser(id, &concluded.conflicts, now);
        } else if group.missing() > 0 || group.awaiting != Awaiting::Nobody {
            // A group that does not wait is answered in bounded time, even if it queues behind the tickets of
            // others.
            let bound = now.plus_nanos(self.config.ticket_ns);
            group.queued_until = group.queued_until.or(Some(bound));
            self.queue_for_ticket(id);
        } else {
            // Bundles beyond the minimum take no ticket.
            group.losses = 0;
            self.wait(id);
        }
    }

    /// Called when nothing of a group is in flight. Answers the waiting job and continues with what was asked
    /// meanwhile.
    pub(super) fn settle(&mut self, id: GroupId, now: Time) {
        self.forget_deadline(id);
        let Some(group) = self.groups.get_mut(&id) else { return };
        let awaiting = std::mem::replace(&mut group.awaiting, Awaiting::Nobody);
        // The deadline was for the creation or the growth only. Bundles that are lost later may be placed at
        // any time.
        (group.until, group.queued_until) = (None, None);
        let view = group.view();
        let priority = group.spec.priority;
        let removal = group.removal.is_some();
        let incomplete = group.is_incomplete();
        if let Awaiting::Creation(tag) | Awaiting::Growth(tag, _) = awaiting {
            self.reply(tag, PlanReply::Group(Box::new(view)));
        }
        if removal {
            return self.begin_removal(id, now);
        }
        if incomplete {
            // Bundles that ended or capacity that came free in the meantime could not be tried then.
            self.retry_now = true;
            self.wait(id);
        } else {
            self.incomplete.remove(&(Reverse(priority), id));
        }
    }

    /// Handles a group without a place: it waits or is refused.
    fn judge(&mut self, id: GroupId, no_place: &NoPlace, now: Time) {
        let nodes = self.replicas.shape();
        let group = &self.groups[&id];
        match group.awaiting {
            Awaiting::Creation(_) | Awaiting::Growth(..) => {
                let waits = group.until.is_some_and(|until| until > now) && may_wait(group);
                let waits = waits && !is_planted(PlantedBug::GroupNeverWaits);
                // Feasibility depends on the nodes alone, so the result holds until they change.
                if waits && group.judged == Some(nodes) {
                    return self.wait_for_room(id);
                }
                let Some(refusal) = self.refusal(id, no_place) else { return self.leave_undecided(id) };
                if waits && !refusal.infeasible {
                    self.groups.get_mut(&id).expect("just seen").judged = Some(nodes);
                    return self.wait_for_room(id);
                }
                self.give_up(id, PlanReply::Refused(Box::new(refusal)), now);
            }
            Awaiting::Nobody if group.missing() > 0 => self.wait_for_room(id),
            // Bundles beyond the minimum do not compete for tickets.
            Awaiting::Nobody => self.wait_without_fit(id),
        }
    }
}

/// Returns the bundles of a plan that were not granted. The first `ended` operations of the plan are
/// evictions.
fn refused(draft: &Draft, ended: usize, concluded: &StatementResult) -> Vec<PlannedBundle> {
    let granted = concluded.applied.iter().flat_map(|applied| &applied.granted);
    let granted: BTreeSet<usize> = granted.map(|&(place, _)| usize::from(place)).collect();
    let taken = (ended..).zip(&draft.taken).filter(|(place, _)| !granted.contains(place));
    taken.map(|(_, taken)| *taken).collect()
}

/// Returns the commit mode for a plan. Bundles beyond the minimum of a placed group are independent of each
/// other, so each one without a conflict is kept. All other plans are committed as a whole or not at all.
/// This includes plans that a skew binds, and plans that also end lost bundles.
fn commit_mode(group: &Group, nothing_ends: bool) -> CommitMode {
    let skew = matches!(group.spec.topology, Some(TopologyRule { spreading: Spreading::Spread { .. }, .. }));
    let apart = nothing_ends && !skew && group.missing() == 0 && group.awaiting == Awaiting::Nobody;
    if apart { CommitMode::Incremental } else { CommitMode::AllOrNothing }
}
