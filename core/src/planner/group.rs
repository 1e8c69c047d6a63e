//! The state of a group at its planner.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::JobTag;
use super::colocate::Item;
use super::life::{ByPriority, Ending, State};
use super::queue::PortClient;
use super::watch::GroupWatch;
use crate::group::{GroupSpec, GroupState, GroupView};
use crate::ids::GroupId;
use crate::request::PlacementRequest;
use crate::state::GroupBundleRecord;
use crate::time::Time;

/// A job that waits for the outcome of a group.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) tag: JobTag,
    /// The first of the bundles that the job adds. `None`: it creates the group.
    pub(super) grows_from: Option<u32>,
    /// The time until which the bundles may wait for room.
    pub(super) until: Option<Time>,
    /// Its client wants it no more. A statement that is under way may still place the bundles.
    pub(super) is_cancelled: bool,
    /// The deadline for getting a ticket, for a job that does not wait and lost too often.
    pub(super) queued_until: Option<Time>,
    /// The shape of the nodes for which the group was last found not to be infeasible.
    pub(super) judged: Option<u64>,
}

impl Job {
    pub(super) fn new(tag: JobTag, grows_from: Option<u32>, until: Option<Time>) -> Self {
        Self { tag, grows_from, until, is_cancelled: false, queued_until: None, judged: None }
    }
}

/// A group.
pub(super) struct Group {
    pub(super) id: GroupId,
    pub(super) spec: Arc<GroupSpec>,
    /// The client of the last job. `None` after a restart.
    pub(super) client: Option<PortClient>,
    /// The bundles in order of index.
    pub(super) bundles: Vec<GroupBundleRecord>,
    pub(super) next_index: u32,
    /// Only [`Planner::transition`](super::Planner::transition) changes it.
    pub(super) state: State,
    /// The job that creates the group or adds bundles.
    pub(super) job: Option<Job>,
    pub(super) attempts: u32,
    /// The number of attempts lost to other work since the last success.
    pub(super) losses: u32,
    /// The shards' growth when it last had no place.
    pub(super) failed_at: Option<u64>,
    /// The number of tickets without success since the last success.
    pub(super) tickets: u32,
    /// `since` when it last began to wait. The planner's lists have it under this time until it waits no more.
    pub(super) listed: Time,
    /// The time of the last job, or of the first loss of a bundle since then. The group waits since this time. Groups of
    /// earlier starts begin with zero, so they come first.
    pub(super) since: Time,
    /// The bundles for which its queue could not be charged when it was tried last. They are not placed.
    pub(super) passed_over: BTreeSet<u32>,
    /// Its copies at the shards, while it waits.
    pub(super) watch: Option<Box<GroupWatch>>,
}

impl Group {
    /// Creates a group that earlier starts placed, or one without bundles.
    pub(super) fn new(
        id: GroupId,
        spec: Arc<GroupSpec>,
        bundles: Vec<GroupBundleRecord>,
        next_index: u32,
    ) -> Self {
        Self {
            id,
            spec,
            client: None,
            bundles,
            next_index,
            state: State::Settled,
            job: None,
            attempts: 0,
            losses: 0,
            failed_at: None,
            tickets: 0,
            listed: Time(0),
            since: Time(0),
            passed_over: BTreeSet::new(),
            watch: None,
        }
    }

    /// Returns its turn among the groups that wait.
    pub(super) fn turn(&self) -> ByPriority {
        (Reverse(self.spec.priority), self.listed, self.id)
    }

    /// Adds bundles. Returns the index of the first.
    pub(super) fn add(&mut self, requests: &[Arc<PlacementRequest>]) -> u32 {
        let first = self.next_index;
        for request in requests {
            let index = self.next_index;
            let request = Arc::clone(request);
            self.bundles.push(GroupBundleRecord { index, request, place: None, lost: None });
            self.next_index += 1;
        }
        first
    }

    pub(super) fn bundle(&self, index: u32) -> Option<&GroupBundleRecord> {
        let at = self.bundles.binary_search_by_key(&index, |bundle| bundle.index).ok()?;
        Some(&self.bundles[at])
    }

    pub(super) fn bundle_mut(&mut self, index: u32) -> Option<&mut GroupBundleRecord> {
        let at = self.bundles.binary_search_by_key(&index, |bundle| bundle.index).ok()?;
        Some(&mut self.bundles[at])
    }

    /// Returns a bundle as an item to place.
    pub(super) fn item(&self, index: u32) -> Item {
        let at = self.bundles.binary_search_by_key(&index, |bundle| bundle.index);
        let request = &self.bundles[at.expect("a bundle of the group")].request;
        Item { bundle: index, request: Arc::clone(request) }
    }

    pub(super) fn placed(&self) -> usize {
        self.bundles.iter().filter(|bundle| bundle.place.is_some()).count()
    }

    /// Returns how many more bundles must be placed to reach the minimum.
    pub(super) fn missing(&self) -> usize {
        (self.spec.min_members as usize).saturating_sub(self.placed())
    }

    /// Returns how many of its open bundles must be placed at once. A growth is placed as a whole.
    pub(super) fn needed_at_once(&self, open: usize) -> usize {
        if self.grows_from().is_some() { open } else { self.missing().max(1) }
    }

    /// Returns whether it lacks more than bundles beyond its minimum, which take no ticket.
    pub(super) fn needs_more(&self) -> bool {
        self.missing() > 0 || self.job.is_some()
    }

    /// Returns whether some bundle is not placed.
    pub(super) fn is_incomplete(&self) -> bool {
        self.bundles.iter().any(|bundle| bundle.place.is_none())
    }

    /// Returns the bundles that the next plan places. A growth of a group with its minimum concerns the new bundles
    /// only, even if others are not placed.
    pub(super) fn open(&self) -> impl Iterator<Item = &GroupBundleRecord> {
        let from = self.grows_from().filter(|_| self.missing() == 0).unwrap_or(0);
        self.bundles.iter().filter(move |bundle| bundle.place.is_none() && bundle.index >= from)
    }

    /// Returns the time by which the waiting job must be answered.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.job.as_ref().and_then(|job| job.until.or(job.queued_until))
    }

    /// Returns whether the job that creates the group waits.
    pub(super) fn is_being_created(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.grows_from.is_none())
    }

    /// Returns whether the group is being removed. Its record is gone then.
    pub(super) fn is_being_removed(&self) -> bool {
        matches!(self.state, State::Ending(Ending::Removal { .. }))
    }

    /// Returns whether the bundle of this index is being removed.
    pub(super) fn is_ending(&self, index: u32) -> bool {
        match &self.state {
            State::Ending(Ending::Removal { .. }) => true,
            State::Ending(Ending::Shrink { indexes, .. }) => indexes.contains(&index),
            _ => false,
        }
    }

    /// Returns the index of the first bundle that the group grows by, if it grows.
    pub(super) fn grows_from(&self) -> Option<u32> {
        self.job.as_ref()?.grows_from
    }

    pub(super) fn view(&self) -> GroupView {
        let bundle = |bundle: &GroupBundleRecord| (bundle.index, bundle.place);
        let state = match self.state {
            State::Committing { .. } | State::Ending(_) => GroupState::Committing,
            _ if self.missing() == 0 => GroupState::Placed,
            _ if self.is_being_created() => GroupState::Waiting,
            _ => GroupState::Degraded,
        };
        let id = self.id;
        let spec = Arc::clone(&self.spec);
        let attempts = self.attempts;
        let requests = self.bundles.iter().map(|bundle| Arc::clone(&bundle.request)).collect();
        let bundles = self.bundles.iter().map(bundle).collect();
        GroupView { id, state, spec, bundles, requests, attempts, releasing: Vec::new() }
    }
}
