//! Exports and adopts the groups of a planner as durable state.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::group::Group;
use super::life::OnGrowth;
use super::{JobTag, Planner, Purpose};
use crate::group::PlanReply;
use crate::ids::GroupId;
use crate::jobs::JobsReply;
use crate::journal::{Changes, Unit};
use crate::link::JournalQueue;
use crate::state::{Deed, Done, GroupBundleRecord, GroupRecord, Origin};

impl Planner {
    /// Returns all groups that were created, in order of id. Groups that still wait to be created are left
    /// out.
    ///
    /// # Panics
    /// Panics if a statement is in flight.
    #[must_use]
    pub fn export(&self) -> Vec<GroupRecord> {
        assert!(!self.is_committing(), "a planner is stopped when nothing is under way");
        self.records()
    }

    /// Returns all groups that were created, as the journal records them. Statements may be in flight.
    #[must_use]
    pub fn records(&self) -> Vec<GroupRecord> {
        let is_recorded = |group: &&Group| !(group.is_being_created() || group.is_being_removed());
        self.groups.values().filter(is_recorded).map(record).collect()
    }

    /// Records all changes of groups and decisions from now on.
    pub(crate) fn enable_journal(&mut self, journal: Arc<JournalQueue<Unit>>) {
        self.changed = Some(BTreeSet::new());
        if let Some(keeper) = &mut self.keeper {
            keeper.note_changes();
        }
        self.journal = Some(journal);
    }

    /// Notes that the record of a group changed. A group that is being created has none: it was not promised to anyone.
    pub(super) fn note_changed(&mut self, id: GroupId) {
        let is_recorded = !self.groups.get(&id).is_some_and(Group::is_being_created);
        if let Some(changed) = self.changed.as_mut().filter(|_| is_recorded) {
            changed.insert(id);
        }
    }

    /// Notes the request of a client session that asks for a job.
    pub(crate) fn note_origin(&mut self, job: JobTag, origin: Option<Origin>) {
        if self.journal.is_some() {
            self.origins.extend(origin.map(|origin| (job, origin)));
        }
    }

    /// Returns the request that asks for a statement.
    pub(super) fn origin_of(&self, purpose: &Purpose) -> Option<Origin> {
        let Purpose::Submit(job) = purpose else { return None };
        self.origins.get(job).copied()
    }

    /// Notes what the request of a job has done, for the next unit.
    pub(super) fn note_deed(&mut self, job: JobTag, deed: Deed) {
        if let Some(&origin) = self.origins.get(&job) {
            self.early.push(Done { origin, deed });
        }
    }

    /// Records what a job that ends bundles of a group has done, before any of them ends. So a crash leaves all of them or
    /// none: a start takes back the bundles that no group has. Nobody else can stop the job.
    pub(super) fn record_ending(&mut self, id: GroupId, job: JobTag, deed: Deed) {
        self.note_changed(id);
        self.note_deed(job, deed);
        if self.journal.is_some() {
            self.record();
        }
    }

    /// Puts the groups that changed since the last call into the journal, with the requests that are answered now. Must be
    /// called after each round, before its replies are handed out.
    pub(crate) fn record(&mut self) {
        if self.journal.is_none() {
            return;
        }
        let (of_groups, of_jobs) = self.take_units();
        let journal = self.journal.as_ref().expect("only with a journal are changes noted");
        of_groups.into_iter().chain(of_jobs).for_each(|unit| journal.put(unit));
    }

    /// Returns what is to be recorded of groups, and of jobs. Nothing of one needs the other.
    fn take_units(&mut self) -> (Option<Unit>, Option<Unit>) {
        let mut done = std::mem::take(&mut self.early);
        for (job, reply) in &self.replies {
            if let Some(origin) = self.origins.remove(job) {
                done.extend(deed_of(reply).map(|deed| Done { origin, deed }));
            }
        }
        let of_jobs = if self.keeps_jobs() { self.take_jobs_unit(&mut done) } else { None };
        (self.take_groups_unit(done), of_jobs)
    }

    /// Returns what the keeper of jobs has to record of queues and jobs, with what was done for requests about these.
    fn take_jobs_unit(&mut self, done: &mut Vec<Done>) -> Option<Unit> {
        let is_of_group = |deed: &Deed| matches!(deed, Deed::GroupChanged(_) | Deed::GroupRemoved(..));
        let (of_groups, of_jobs) = std::mem::take(done).into_iter().partition(|done| is_of_group(&done.deed));
        *done = of_groups;
        let changes = self.take_job_changes();
        let has_some = !changes.is_empty() || !of_jobs.is_empty();
        has_some.then(|| Unit { done: of_jobs, ..Unit::new(self.now, Changes::Jobs(changes)) })
    }

    fn take_groups_unit(&mut self, done: Vec<Done>) -> Option<Unit> {
        let changed = self.changed.as_mut().filter(|changed| !changed.is_empty() || !done.is_empty())?;
        let changed = std::mem::take(changed).into_iter();
        let groups = changed.map(|id| {
            let group = self.groups.get(&id).filter(|group| !group.is_being_removed());
            (id, group.map(record))
        });
        Some(Unit { done, ..Unit::new(self.now, Changes::Groups(groups.collect())) })
    }

    /// Takes over a group that an earlier start left.
    ///
    /// # Panics
    /// Panics if the group is already there.
    pub(crate) fn adopt(&mut self, record: GroupRecord) {
        let GroupRecord { id, spec, bundles, next_index } = record;
        let group = Group::new(id, spec, bundles, next_index);
        let incomplete = group.is_incomplete();
        let before = self.groups.insert(id, group);
        assert!(before.is_none(), "group {id} is there twice");
        if incomplete {
            self.wait(id, false, OnGrowth::Plan);
            self.stir(id);
        }
    }
}

fn record(group: &Group) -> GroupRecord {
    GroupRecord {
        id: group.id,
        spec: Arc::clone(&group.spec),
        // Bundles of an unfinished growth were not promised to anyone.
        bundles: standing(group).cloned().collect(),
        next_index: group.grows_from().unwrap_or(group.next_index),
    }
}

/// Returns the bundles of a group without those of an unfinished growth and those that are being removed.
fn standing(group: &Group) -> impl Iterator<Item = &GroupBundleRecord> {
    let first = group.grows_from();
    let bundles = group.bundles.iter().filter(|bundle| !group.is_ending(bundle.index));
    bundles.filter(move |bundle| first.is_none_or(|first| bundle.index < first))
}

/// Returns what a job has done. `None` if it changed nothing.
fn deed_of(reply: &PlanReply) -> Option<Deed> {
    Some(match reply {
        PlanReply::Group(Ok(group)) | PlanReply::Status(Ok(group)) => Deed::GroupChanged(group.id),
        &PlanReply::Removed(Ok((group, bundles))) => Deed::GroupRemoved(group, bundles),
        PlanReply::Statement(Ok(report)) => {
            let granted = report.applied.iter().flat_map(|applied| applied.granted.iter().cloned());
            let granted: Vec<_> = granted.collect();
            if granted.is_empty() {
                return None;
            }
            Deed::Statement(report.statement, granted, std::collections::BTreeMap::new())
        }
        PlanReply::Placed(Ok(placement)) => Deed::Placed(placement.clone(), None),
        PlanReply::Jobs(Ok(JobsReply::Done(done))) => Deed::Jobs(done.clone()),
        _ => return None,
    })
}
