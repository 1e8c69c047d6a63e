//! Backfill that starves nobody: a job that does not fit gets a dated reservation.
//!
//! The date is the earliest time at which all that the job needs fits on nodes, by the stated run times of what runs.
//! Other jobs are placed only if they end before the date, or leave the job what it needs then. A reservation is kept
//! over cycles, so its date moves to a later time only if something other than placed work interferes: an overrun, a
//! lost node, a job of another queue for which others are evicted, or a job that comes before.
//!
//! | module | content |
//! |---|---|
//! | `expected` | nodes as they will be at a time |
//! | `domains` | in which domain of the topology a job must be |
//! | `shares` | what queues may use at a time: caps, and what they deserve |
//! | `search` | the earliest date of a job |
//! | `hold` | which jobs have reservations, over cycles |
//! | `place` | placing tasks without disturbing reservations |
//! | `overrun` | tasks whose run time is over |

mod domains;
mod expected;
mod hold;
mod overrun;
mod place;
mod search;
mod shares;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use super::trial::Place;
use crate::ids::NodeId;
use crate::jobs::{JobId, QueueId, TaskId};
use crate::limits::DATED_LOOKS_MAX;
use crate::replica::ClaimKey;
use crate::time::Time;
pub(super) use place::{Attempt, HeldBack};
use search::Hopeless;
use shares::{Freed, Needs};

/// When and where a job that waits will fit.
#[derive(Clone, Debug)]
pub struct DatedReservation {
    /// The job.
    pub job: JobId,
    /// The time at which all that it needs fits, by the stated run times of what runs.
    pub date: Time,
    /// When its tasks will have ended then. [`Time::NEVER`]: that is not known.
    until: Time,
    queue: QueueId,
    /// The tasks that it needs, by node.
    nodes: BTreeMap<NodeId, Vec<TaskId>>,
    /// What these tasks take together.
    needs: Arc<Needs>,
    /// What ends until the date, if that was asked for in this cycle.
    freed: Option<Freed>,
    /// Whether this cycle has tried the job.
    is_confirmed: bool,
}

impl DatedReservation {
    /// Returns the nodes, each with the tasks of the job that fit there.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &[TaskId])> {
        self.nodes.iter().map(|(&node, tasks)| (node, tasks.as_slice()))
    }

    /// Returns whether both say the same.
    pub(super) fn says_the_same_as(&self, other: &Self) -> bool {
        self.job == other.job && self.date == other.date && self.nodes == other.nodes
    }

    /// Returns whether the job is expected to run at a time, or has ended less than `gap_ns` before.
    fn covers(&self, at: Time, gap_ns: u64) -> bool {
        self.date <= at && at < self.until.plus_nanos(gap_ns)
    }
}

/// Dated reservations by job.
pub(super) type Reservations = BTreeMap<JobId, DatedReservation>;

/// A task that this cycle has placed.
#[derive(Clone, Copy)]
struct Fresh {
    key: ClaimKey,
    /// When it will have ended, if its job starts now.
    end: Time,
}

/// What a cycle knows about reservations and expected ends.
pub(super) struct Dated {
    reservations: Reservations,
    /// The jobs whose reservations include a node. These nodes are hidden from searches.
    places: BTreeMap<Place, BTreeSet<JobId>>,
    /// What this cycle has placed.
    fresh: BTreeMap<TaskId, Fresh>,
    fresh_ends: BTreeSet<(Time, TaskId)>,
    /// The jobs that this cycle has tried to give a reservation, each with the number of those before it.
    tried: BTreeMap<JobId, usize>,
    /// The jobs of equal tasks for which there is no date.
    hopeless: Vec<Hopeless>,
    /// The job whose reservation is kept, while an earlier date is searched for it.
    improved: Option<JobId>,
    /// The job for which others are being evicted.
    evictor: Option<JobId>,
    /// Whether tasks are placed that waited for a cap. It is no turn of their jobs, so all reservations bind them.
    binds_all: bool,
    /// The number of times that a reservation was given up, so that what was held back may be placed.
    given_up: u64,
    looks_left: u64,
}

impl Dated {
    pub(super) fn new() -> Self {
        Self {
            reservations: Reservations::new(),
            places: BTreeMap::new(),
            fresh: BTreeMap::new(),
            fresh_ends: BTreeSet::new(),
            tried: BTreeMap::new(),
            hopeless: Vec::new(),
            improved: None,
            evictor: None,
            binds_all: false,
            given_up: 0,
            looks_left: DATED_LOOKS_MAX,
        }
    }

    /// Counts looks. Returns whether there are any left.
    fn look(&mut self, looks: usize) -> bool {
        self.looks_left = self.looks_left.saturating_sub(looks as u64);
        self.looks_left > 0
    }

    /// Has all reservations bind every job, also those of its queue that were not tried yet, or ends that.
    pub(super) fn bind_all(&mut self, binds_all: bool) {
        self.binds_all = binds_all;
    }

    /// Returns whether there is any reservation.
    pub(super) fn has_any(&self) -> bool {
        !self.reservations.is_empty()
    }

    /// Returns whether a job has a reservation.
    pub(super) fn has_date(&self, job: JobId) -> bool {
        self.reservations.contains_key(&job)
    }

    /// Returns whether a node is part of a reservation.
    pub(super) fn has(&self, place: Place) -> bool {
        self.places.contains_key(&place)
    }

    /// Returns the first node that is part of a reservation, after another one.
    fn place_after(&self, place: Option<Place>) -> Option<Place> {
        let after = place.map_or(Bound::Unbounded, Bound::Excluded);
        self.places.range((after, Bound::Unbounded)).next().map(|(&place, _)| place)
    }

    /// Returns the reservations that a job of a queue must not disturb.
    fn binding(&self, job: JobId, queue: QueueId) -> impl Iterator<Item = &DatedReservation> {
        self.reservations.values().filter(move |other| self.binds(other, job, queue))
    }

    /// Returns the reservations on a node that a job of a queue must not disturb.
    fn binding_on(
        &self,
        place: Place,
        job: JobId,
        queue: QueueId,
    ) -> impl Iterator<Item = &DatedReservation> {
        let jobs = self.places.get(&place).into_iter().flatten();
        jobs.map(|of| &self.reservations[of]).filter(move |other| self.binds(other, job, queue))
    }

    /// Returns whether a job of a queue must not disturb a reservation. Those of its own queue that were not confirmed yet
    /// come later in the order. They bind only a job that has a reservation itself: it needs nobody else's.
    ///
    /// A job for which others are evicted takes what is its own by the rules. It leaves those of its queue their dates that
    /// come before it.
    fn binds(&self, other: &DatedReservation, job: JobId, queue: QueueId) -> bool {
        if self.evictor == Some(job) {
            let turn = |job: JobId| self.tried.get(&job).copied();
            let comes_before = || turn(job).is_none_or(|turn_of| turn(other.job) < Some(turn_of));
            return other.job != job && other.queue == queue && other.is_confirmed && comes_before();
        }
        let has_its_own = || self.improved == Some(job) || self.reservations.contains_key(&job);
        let is_behind = other.queue == queue && !other.is_confirmed && !self.binds_all;
        other.job != job && (!is_behind || has_its_own())
    }
}
