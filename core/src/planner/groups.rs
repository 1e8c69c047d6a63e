//! The life of a group: it is created, grown, shrunk, placed again after losses, and removed.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::colocate::Item;
use super::draft::{Draft, PlannedBundle};
use super::group::{Group, Job};
use super::in_flight::CommitOptions;
use super::life::{Ending, OnGrowth, State};
use super::pending::may_wait;
use super::queue::PortClient;
use super::strategy::{NoPlace, Wanted};
use super::{JobTag, Placing, Planner, Purpose};
use crate::group::{
    BundlePlace, GroupRefusal, GroupRefusalReason, GroupSpec, GroupSpecError, GroupView, NoGroup,
    PlanRejection, PlanReply, Spreading, StatementReport, TopologyRule,
};
use crate::ids::{AllocationId, BundleId, GroupId, Incarnation, NodeId, OwnerId, ShardId, TenantId};
use crate::limits::{GROUP_BUNDLES_MAX, GROUPS_MAX, STATEMENT_LOSSES_MAX};
use crate::planted::{PlantedBug, is_planted};
use crate::request::{Placement, PlacementRequest};
use crate::state::{Deed, GroupBundleRecord};
use crate::statement::{
    Allocate, CommitMode, Conflict, ConflictDetection, ConflictReason, Evict, Granted, Operation,
};
use crate::time::Time;

/// Evictions that a statement of others blocks are retried after this fraction of the hold time.
const PAUSES_PER_HOLD: u64 = 64;

impl Planner {
    /// Creates a group. It waits since `since` if it does not fit.
    pub(super) fn create_group(
        &mut self,
        (tag, client, since): (JobTag, PortClient, Time),
        spec: Arc<GroupSpec>,
        now: Time,
    ) {
        let checked = spec.check().map_err(PlanRejection::from);
        let room =
            (self.groups.len() < GROUPS_MAX).then_some(()).ok_or(PlanRejection::TooManyGroups(GROUPS_MAX));
        if let Err(rejection) = checked.and(room) {
            return self.reply(tag, PlanReply::Group(Err(NoGroup::Rejected(rejection))));
        }
        let tenant = spec.bundles.first().map_or(TenantId::OPERATOR, |bundle| bundle.tenant);
        if let Err(refused) = self.check_queue(&spec, tenant) {
            return self.reply(tag, PlanReply::Group(Err(NoGroup::NotCharged(Box::new(refused)))));
        }
        let spec = made(spec);
        let id = self.next_group_id(tenant);
        let mut group = Group::new(id, Arc::clone(&spec), Vec::with_capacity(spec.bundles.len()), 0);
        group.add(&spec.bundles);
        (group.client, group.job) = (Some(client), Some(Job::new(tag, None, spec.wait_until)));
        group.since = since;
        self.groups.insert(id, group);
        self.asked.insert(tag, id);
        self.try_group(id, now);
    }

    /// Adds bundles to a group. They wait since `since` if they do not fit.
    pub(super) fn grow_group(
        &mut self,
        (tag, client, since): (JobTag, PortClient, Time),
        id: GroupId,
        (requests, until): (&[Arc<PlacementRequest>], Option<Time>),
        now: Time,
    ) {
        let group = match self.settled(id) {
            Ok(group) => group,
            Err(rejection) => return self.reply(tag, PlanReply::Group(Err(NoGroup::Rejected(rejection)))),
        };
        let bundles = group.bundles.len() + requests.len();
        let spec = Arc::clone(&group.spec);
        if let Err(refused) = self.check_queue(&spec, id.tenant) {
            return self.reply(tag, PlanReply::Group(Err(NoGroup::NotCharged(Box::new(refused)))));
        }
        if requests.is_empty() || bundles > GROUP_BUNDLES_MAX {
            let error = GroupSpecError::Bundles(if requests.is_empty() { 0 } else { bundles });
            return self.reply(tag, PlanReply::Group(Err(NoGroup::Rejected(error.into()))));
        }
        let group = self.groups.get_mut(&id).expect("just seen");
        let first = group.add(requests);
        (group.client, group.job) = (Some(client), Some(Job::new(tag, Some(first), until)));
        group.since = since;
        self.asked.insert(tag, id);
        self.try_group(id, now);
    }

    pub(super) fn shrink_group(&mut self, tag: JobTag, id: GroupId, indexes: &[u32], now: Time) {
        if let Err(rejection) = self.check_shrink(id, indexes) {
            return self.reply(tag, PlanReply::Status(Err(rejection)));
        }
        let indexes = indexes.to_vec();
        self.transition(id, State::Ending(Ending::Shrink { tag, indexes, removal: None }));
        self.record_ending(id, tag, Deed::GroupChanged(id));
        self.end_bundles(id, now);
    }

    fn check_shrink(&mut self, id: GroupId, indexes: &[u32]) -> Result<(), PlanRejection> {
        let group = self.settled(id)?;
        if let Some(&unknown) = indexes.iter().find(|&&index| group.bundle_mut(index).is_none()) {
            return Err(PlanRejection::UnknownBundle(id, unknown));
        }
        let least = group.spec.min_members as usize;
        let (goes, stays): (Vec<&GroupBundleRecord>, Vec<&GroupBundleRecord>) =
            group.bundles.iter().partition(|bundle| indexes.contains(&bundle.index));
        let placed =
            |bundles: &[&GroupBundleRecord]| bundles.iter().filter(|bundle| bundle.place.is_some()).count();
        // A group that is below its minimum already may still give up bundles that are not placed.
        if stays.len() < least || (placed(&goes) > 0 && placed(&stays) < least) {
            return Err(PlanRejection::BelowMinimum(id));
        }
        Ok(())
    }

    /// Returns a group that no other job or statement is changing.
    fn settled(&mut self, id: GroupId) -> Result<&mut Group, PlanRejection> {
        let group = self.groups.get_mut(&id).ok_or(PlanRejection::UnknownGroup(id))?;
        let busy = !group.state.is_plannable() || group.job.is_some();
        if busy { Err(PlanRejection::Busy(id)) } else { Ok(group) }
    }

    pub(super) fn remove_group(&mut self, tag: JobTag, id: GroupId, now: Time) {
        let Some(group) = self.groups.get_mut(&id) else {
            return self.reply(tag, PlanReply::Removed(Err(PlanRejection::UnknownGroup(id))));
        };
        match &mut group.state {
            State::Committing { removal: removal @ None, .. }
            | State::Ending(Ending::Shrink { removal: removal @ None, .. }) => *removal = Some(tag),
            State::Committing { .. } | State::Ending(_) => {
                self.reply(tag, PlanReply::Removed(Err(PlanRejection::Busy(id))));
            }
            _ => self.begin_removal(id, tag, now),
        }
    }

    fn begin_removal(&mut self, id: GroupId, tag: JobTag, now: Time) {
        let group = self.groups.get_mut(&id).expect("a group to be removed is there");
        let placed = group.placed();
        let is_recorded = !group.is_being_created();
        if let Some(job) = group.job.take() {
            // In the unit of the removal: otherwise a start could go on with the job.
            self.note_deed(job.tag, Deed::GroupRemoved(id, 0));
            self.reply(job.tag, PlanReply::Group(Err(NoGroup::Removed)));
        }
        self.transition(id, State::Ending(Ending::Removal { tag, ended: 0 }));
        let count = u32::try_from(placed).expect("GROUP_BUNDLES_MAX fits u32");
        if is_recorded {
            self.record_ending(id, tag, Deed::GroupRemoved(id, count));
        }
        self.end_bundles(id, now);
    }

    /// Ends the allocations of the bundles that a group gives up, on each shard separately.
    fn end_bundles(&mut self, id: GroupId, now: Time) {
        let group = &self.groups[&id];
        let State::Ending(end) = &group.state else { panic!("group {id} is {:?}", group.state) };
        let goes = |bundle: &&GroupBundleRecord| match end {
            Ending::Removal { .. } => true,
            Ending::Shrink { indexes, .. } => indexes.contains(&bundle.index),
        };
        let goes = group.bundles.iter().filter(goes);
        let mut allocations: Vec<AllocationId> =
            goes.filter_map(|b| b.place.map(|place| place.allocation).or(b.lost)).collect();
        if is_planted(PlantedBug::RemovalForgetsBundle) && matches!(end, Ending::Removal { .. }) {
            allocations.pop();
        }
        if allocations.is_empty() {
            return self.end_concluded(id, 0, &[], now);
        }
        let evict = |allocation| Operation::Evict(Evict { allocation, expected: None, grace_ns: 0 });
        let operations: Vec<(ShardId, Operation)> = allocations
            .into_iter()
            .map(|allocation| (self.shard_of_allocation(allocation), evict(allocation)))
            .collect();
        let conflict_detection = ConflictDetection::Fine;
        let mode = CommitMode::Incremental;
        let terms = CommitOptions { conflict_detection, mode, atomic: false };
        self.commit(operations, Vec::new(), terms, Purpose::End(id));
    }

    /// Finishes a removal or a shrink. Bundles that a statement of others is about to evict may survive,
    /// because that statement may be aborted. They are ended again after a pause, until it is decided.
    /// Bundles that others evicted with grace keep their grace period.
    pub(super) fn end_concluded(&mut self, id: GroupId, count: u32, conflicts: &[Conflict], now: Time) {
        let group = self.groups.get_mut(&id).expect("groups stay while bundles end");
        let State::Ending(end) = &mut group.state else { panic!("group {id} is {:?}", group.state) };
        if let Ending::Removal { ended, .. } = end {
            *ended += count;
        }
        let held = |conflict: &Conflict| matches!(conflict.reason, ConflictReason::HeldBy(_));
        if conflicts.iter().any(held) && !is_planted(PlantedBug::HeldBundleTakenForEnded) {
            let due = now.plus_nanos((self.config.hold_ns / PAUSES_PER_HOLD).max(1));
            return self.ending.insert(due, id);
        }
        match end {
            &mut Ending::Removal { tag, ended } => {
                self.forget_group(id);
                self.reply(tag, PlanReply::Removed(Ok((id, ended))));
            }
            Ending::Shrink { tag, indexes, removal } => {
                let tag = *tag;
                let removal = *removal;
                group.bundles.retain(|bundle| !indexes.contains(&bundle.index));
                self.transition(id, State::Settled);
                self.reply(tag, PlanReply::Status(Ok(Box::new(self.groups[&id].view()))));
                self.settle(id, removal, now);
            }
        }
    }

    /// Retries to end the bundles that statements of others held.
    pub(super) fn end_again(&mut self, now: Time) {
        while let Some(id) = self.ending.pop_due(now) {
            self.end_bundles(id, now);
        }
    }

    /// Forgets a group. The journal knows already that it is removed, or it never knew of it.
    pub(super) fn forget_group(&mut self, id: GroupId) {
        self.unwatch(id);
        self.capped.remove(id);
        let group = self.groups.remove(&id).expect("a group is forgotten once");
        self.unlist(group.turn(), &group.state);
    }

    pub(super) fn group_status(&mut self, tag: JobTag, id: GroupId) {
        if !self.followed && self.groups.contains_key(&id) {
            self.sync();
        }
        let reply = match self.groups.get(&id) {
            Some(group) => {
                self.replicas.meter.charge(group.bundles.len() as u64);
                PlanReply::Status(Ok(Box::new(self.shown(group))))
            }
            None => PlanReply::Status(Err(PlanRejection::UnknownGroup(id))),
        };
        self.reply(tag, reply);
    }

    pub(super) fn list_groups(
        &mut self,
        tag: JobTag,
        after: Option<GroupId>,
        tenant: Option<TenantId>,
        limit: u16,
    ) {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let first = tenant.map(|tenant| GroupId { tenant, incarnation: Incarnation(0), number: 0 });
        let from = match (after, first) {
            (Some(after), first) if first.is_none_or(|first| first <= after) => Excluded(after),
            (_, first) => first.map_or(Unbounded, Included),
        };
        let of_tenant = |id: GroupId| tenant.is_none_or(|tenant| tenant == id.tenant);
        let page = self.groups.range((from, Unbounded)).take_while(|&(&id, _)| of_tenant(id));
        let page = page.take(usize::from(limit));
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
        let plannable = |group: &&mut Group| group.state.is_plannable();
        let Some(group) = self.groups.get_mut(&id).filter(plannable) else { return };
        let planning = group.state.planned();
        self.transition(id, planning);
        let group = self.groups.get_mut(&id).expect("just seen");
        if !group.is_incomplete() {
            return self.settle(id, None, now);
        }
        group.attempts += 1;
        let conflict_detection = group.spec.conflict_detection;
        self.capped.remove(id);
        if let Err(refused) = self.afford(id) {
            return self.judge_refused(id, refused, now);
        }
        if let Some((no_place, _)) = self.recall(id) {
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
            Ok(()) if self.comes_in_turn(id, now) => {
                self.replicas.roll_back(&mut draft, 0);
                self.wait(id, false, OnGrowth::Plan);
            }
            Ok(()) => self.commit_placing(id, draft, conflict_detection, now),
            Err(no_place) => {
                self.keep_verdict(id, &no_place);
                match self.uncertain_rounds(id) {
                    0 => self.judge(id, &no_place, now),
                    rounds => self.transition(id, State::Uncertain { rounds }),
                }
            }
        }
    }

    pub(super) fn search(&mut self, id: GroupId, draft: &mut Draft) -> Result<(), NoPlace> {
        let planned = self.replicas.plan(self.wanted(id), self.budget.search, draft);
        self.work.searches += 1;
        self.work.given_up += u64::from(planned.as_ref().is_err_and(|no_place| no_place.given_up));
        planned
    }

    /// Returns the bundles of a group to place.
    pub(super) fn wanted(&self, id: GroupId) -> Wanted {
        let group = &self.groups[&id];
        let item =
            |bundle: &GroupBundleRecord| Item { bundle: bundle.index, request: Arc::clone(&bundle.request) };
        let open = group.open().filter(|bundle| !group.passed_over.contains(&bundle.index));
        let items: Vec<Item> = open.map(item).collect();
        let least = group.needed_at_once(items.len());
        let standing: Vec<NodeId> = group.bundles.iter().filter_map(|b| Some(b.place?.node)).collect();
        let forgets = is_planted(PlantedBug::SpreadForgetsPlaced);
        let standing = standing.into_iter().filter(|_| !forgets);
        let standing = standing.filter_map(|node| self.replicas.locate(node)).collect();
        let strategy = group.spec.strategy;
        let topology = group.spec.topology.clone();
        let placed = group.bundles.iter().filter(|b| b.place.is_some() && topology.is_some());
        let mut settled: Vec<_> = placed.map(|b| Arc::clone(&b.request)).collect();
        settled.dedup_by(|a, b| Arc::ptr_eq(a, b));
        Wanted { strategy, topology, items, standing, settled, least }
    }

    pub(super) fn commit_placing(
        &mut self,
        id: GroupId,
        mut draft: Draft,
        conflict_detection: ConflictDetection,
        now: Time,
    ) {
        let charges = match self.charge_plan(id, &draft, now) {
            Ok(charges) => charges,
            Err(refused) => {
                self.replicas.roll_back(&mut draft, 0);
                return self.judge_refused(id, refused, now);
            }
        };
        self.transition(id, State::Committing { by_ticket: false, removal: None });
        let (operations, ended) = self.placing_operations(id, &draft, |_| None);
        let mode = commit_mode(&self.groups[&id], ended.is_empty());
        // The lost bundle ends in any state of its old node, so no version of that node is expected.
        let conflict_detection = if ended.is_empty() { conflict_detection } else { ConflictDetection::Fine };
        let purpose = Purpose::Place(Box::new(Placing { group: id, draft, ended, charges }));
        let terms = CommitOptions { conflict_detection, mode, atomic: true };
        self.commit(operations, Vec::new(), terms, purpose);
    }

    /// Returns the operations of a plan, and the bundles whose lost allocations end with it. `owner` returns the
    /// owner of the reservation to use on a node, if it is not the request's.
    pub(super) fn placing_operations(
        &mut self,
        id: GroupId,
        plan: &[PlannedBundle],
        owner: impl Fn(NodeId) -> Option<OwnerId>,
    ) -> (Vec<(ShardId, Operation)>, Vec<u32>) {
        let group = &self.groups[&id];
        let lost = |taken: &PlannedBundle| Some((taken.bundle, group.bundle(taken.bundle)?.lost?));
        let mut ended: Vec<(u32, AllocationId)> = plan.iter().filter_map(lost).collect();
        if is_planted(PlantedBug::LostBundleNotEnded) {
            ended.clear();
        }
        let mut operations = Vec::with_capacity(ended.len() + plan.len());
        // Evictions come first, because a bundle may have only one allocation in its shard.
        for &(_, allocation) in &ended {
            let evict = Evict { allocation, expected: None, grace_ns: 0 };
            operations.push((self.shard_of_allocation(allocation), Operation::Evict(evict)));
        }
        for taken in plan {
            let Item { request, .. } = self.groups[&id].item(taken.bundle);
            let operation = Operation::Allocate(Allocate {
                node: taken.node,
                expected: self.replicas.copies[taken.shard].version(taken.slot),
                demand: request.demand.clone(),
                gpus: None,
                owner: owner(taken.node).or(request.owner),
                bundle: Some(BundleId { group: id, index: taken.bundle }),
                tenant: id.tenant,
                lease: None,
            });
            operations.push((self.shard_id(taken.shard), operation));
        }
        (operations, ended.into_iter().map(|(bundle, _)| bundle).collect())
    }

    /// Gives up on the replicas what a plan had taken and was not granted.
    fn give_up_refused(&mut self, draft: &Draft, ended: usize, concluded: &StatementReport) {
        if is_planted(PlantedBug::ClaimKeptByLoser) {
            return;
        }
        self.replicas.roll_back(&mut refused(draft, ended, concluded), 0);
        self.released += 1;
    }

    pub(super) fn placement_concluded(&mut self, placing: Placing, concluded: &StatementReport, now: Time) {
        let Placing { group: id, draft, ended, charges } = placing;
        self.charges_concluded(charges, ended.len(), concluded, now);
        let granted: usize = concluded.applied.iter().map(|applied| applied.granted.len()).sum();
        let lost = granted == 0;
        let partly = !lost && granted < ended.len() + draft.len();
        if lost || partly {
            // What the plan had taken on the replicas is free again. No shard reports this as growth.
            self.given_up = true;
            self.give_up_refused(&draft, ended.len(), concluded);
        }
        let group = self.groups.get_mut(&id).expect("groups stay while a statement of theirs is under way");
        let State::Committing { by_ticket, removal } = group.state else {
            panic!("group {id} is {:?}", group.state)
        };
        for applied in &concluded.applied {
            for (operation, granted) in &applied.granted {
                let Granted::Allocated(placement) = granted else { continue };
                let taken = &draft[usize::from(*operation) - ended.len()];
                self.replicas.copies[taken.shard].granted(taken.slot, taken.key, applied.visible_from);
                let bundle = group.bundle_mut(taken.bundle).expect("no bundle goes while it is placed");
                let &Placement { node, allocation, gpus, .. } = placement;
                bundle.place = Some(BundlePlace { node, allocation, gpus });
                bundle.lost = None;
            }
        }
        if !lost {
            (group.losses, group.tickets) = (0, 0);
            if by_ticket {
                self.ticket_concluded(true, &[], now);
            }
            return self.settle(id, removal, now);
        }
        for conflict in &concluded.conflicts {
            // The lost allocation has ended by itself.
            if let ConflictReason::UnknownAllocation(gone) = conflict.reason {
                self.ticket_moved = true;
                let of_it = group.bundles.iter_mut().filter(|bundle| ended.contains(&bundle.index));
                of_it.filter(|bundle| bundle.lost == Some(gone)).for_each(|bundle| bundle.lost = None);
            }
        }
        self.note_changed(id);
        if by_ticket {
            self.ticket_concluded(false, &concluded.conflicts, now);
        }
        match removal {
            Some(tag) => self.begin_removal(id, tag, now),
            None if by_ticket => self.transition(id, State::Ticket),
            None => self.placement_lost(id, &concluded.conflicts, now),
        }
    }

    /// Continues after a statement of a group that granted nothing.
    fn placement_lost(&mut self, id: GroupId, conflicts: &[Conflict], now: Time) {
        let group = self.groups.get_mut(&id).expect("just seen");
        group.losses += 1;
        if group.job.as_ref().is_some_and(|job| job.is_cancelled) {
            return self.give_up(id, NoGroup::Cancelled, now);
        }
        if group.losses < STATEMENT_LOSSES_MAX {
            // Tried after all answers are taken: until then, their grants are in views and also claimed on
            // the replicas.
            self.transition(id, State::Retrying);
        } else if group.deadline().is_some_and(|deadline| deadline <= now) {
            let reason = GroupRefusalReason::Conflicts(conflicts.to_vec());
            let refusal = GroupRefusal { infeasible: false, reason, attempts: group.attempts };
            self.give_up(id, NoGroup::Refused(Box::new(refusal)), now);
        } else if group.missing() > 0 || group.job.is_some() {
            // A group that does not wait is answered in bounded time, even if it queues behind the tickets of
            // others.
            let bound = now.plus_nanos(self.config.ticket_ns);
            if let Some(job) = &mut group.job {
                job.queued_until = job.queued_until.or(Some(bound));
            }
            self.queue_for_ticket(id);
        } else {
            // Bundles beyond the minimum take no ticket.
            group.losses = 0;
            self.wait(id, false, OnGrowth::Plan);
        }
    }

    /// Called when nothing of a group is in flight. Answers the waiting job and continues with what was asked
    /// meanwhile.
    pub(super) fn settle(&mut self, id: GroupId, removal: Option<JobTag>, now: Time) {
        let group = self.groups.get_mut(&id).expect("a group settles while it is kept");
        // The deadline was for the creation or the growth only. Bundles that are lost later may be placed at
        // any time.
        let job = group.job.take();
        let incomplete = group.is_incomplete();
        self.note_changed(id);
        if incomplete {
            self.wait(id, false, OnGrowth::Plan);
        } else {
            self.transition(id, State::Settled);
        }
        if let Some(job) = job {
            self.reply(job.tag, PlanReply::Group(Ok(Box::new(self.groups[&id].view()))));
        }
        match removal {
            Some(tag) => self.begin_removal(id, tag, now),
            // Bundles that ended or capacity that came free in the meantime could not be tried then.
            None if incomplete => self.stir(id),
            None => {}
        }
    }

    /// Handles a group without a place: it waits or is refused.
    pub(super) fn judge(&mut self, id: GroupId, no_place: &NoPlace, now: Time) {
        let nodes = self.replicas.shape();
        let group = &self.groups[&id];
        let Some(job) = &group.job else {
            // Bundles beyond the minimum do not compete for tickets.
            let may_queue = group.missing() > 0;
            let idle = if no_place.given_up { OnGrowth::Plan } else { OnGrowth::WaitOn };
            return if may_queue { self.wait_for_room(id, no_place) } else { self.wait(id, true, idle) };
        };
        let waits = job.until.is_some_and(|until| until > now) && may_wait(group);
        let waits = waits && !is_planted(PlantedBug::GroupNeverWaits);
        // Feasibility depends on the nodes alone, so the result holds until they change.
        if waits && job.judged == Some(nodes) {
            return self.wait_for_room(id, no_place);
        }
        match self.refusal(id, no_place) {
            Err(proof) => self.leave_undecided(id, proof),
            Ok(refusal) if waits && !refusal.infeasible => {
                let job = self.groups.get_mut(&id).and_then(|group| group.job.as_mut());
                job.expect("just seen").judged = Some(nodes);
                self.wait_for_room(id, no_place);
            }
            Ok(refusal) => self.give_up(id, NoGroup::Refused(Box::new(refusal)), now),
        }
    }
}

/// Returns a spec as it is kept: its binding mattered when it was asked for.
fn made(mut spec: Arc<GroupSpec>) -> Arc<GroupSpec> {
    if spec.bound.is_some() {
        Arc::make_mut(&mut spec).bound = None;
    }
    spec
}

/// Returns the bundles of a plan that were not granted. The first `ended` operations of the plan are
/// evictions.
fn refused(draft: &Draft, ended: usize, concluded: &StatementReport) -> Draft {
    let granted = concluded.applied.iter().flat_map(|applied| &applied.granted);
    let granted: BTreeSet<usize> = granted.map(|&(place, _)| usize::from(place)).collect();
    let taken = (ended..).zip(draft).filter(|(place, _)| !granted.contains(place));
    taken.map(|(_, taken)| *taken).collect()
}

/// Returns the commit mode for a plan. Bundles beyond the minimum of a placed group are independent of each
/// other, so each one without a conflict is kept. All other plans are committed as a whole or not at all.
/// This includes plans that a skew binds, and plans that also end lost bundles.
fn commit_mode(group: &Group, nothing_ends: bool) -> CommitMode {
    let skew = matches!(group.spec.topology, Some(TopologyRule { spreading: Spreading::Spread { .. }, .. }));
    let apart = nothing_ends && !skew && group.missing() == 0 && group.job.is_none();
    if apart { CommitMode::Incremental } else { CommitMode::AllOrNothing }
}
