//! Direct placements that wait in their queues.
//!
//! Each is a pending job of one task. Cycles place it in its turn, as they place all jobs, and it evicts nobody. Its answer
//! leaves with the record that it has a place, in one unit. What waits is durable as a request of its session, not as a job: a
//! start forgets its job and asks for it again. So it is never in two queues.

use std::collections::{BTreeMap, BTreeSet};

use super::direct::Asked;
use super::{Ended, Keeper};
use crate::cycle::Plan;
use crate::group::{PlanReply, WaitExplanation, WaitsFor};
use crate::ids::SessionId;
use crate::jobs::{DirectWait, JobId, JobPhase, NotCharged};
use crate::planner::{JobTag, Planner};
use crate::request::Placement;
use crate::statement::{Applied, Granted};
use crate::time::Time;
use crate::timers::Timers;

/// The placements that wait in their queues.
#[derive(Debug, Default)]
pub(super) struct DirectWaits {
    by_job: BTreeMap<JobId, Asked>,
    by_tag: BTreeMap<JobTag, JobId>,
    /// By the session and the sequence of the request.
    by_id: BTreeMap<(SessionId, u64), JobId>,
    deadlines: Timers<JobId>,
    /// Those that are to be cancelled, wherever they are. That is done once no statement is in flight.
    cancelled: BTreeSet<JobTag>,
}

impl DirectWaits {
    /// Lets a placement wait as this job.
    ///
    /// # Panics
    /// If it must not wait.
    pub(super) fn insert(&mut self, job: JobId, asked: Asked) {
        let wait = asked.wait().expect("only what may wait gets here");
        self.by_tag.insert(asked.tag, job);
        self.by_id.insert(wait.id, job);
        self.deadlines.insert(wait.until, job);
        self.by_job.insert(job, asked);
    }

    /// Takes the placement that waits as this job, if one does.
    fn take(&mut self, job: JobId) -> Option<Asked> {
        let asked = self.by_job.remove(&job)?;
        let wait = asked.wait().expect("it waited");
        self.by_tag.remove(&asked.tag);
        self.by_id.remove(&wait.id);
        self.deadlines.remove(wait.until, job);
        Some(asked)
    }

    /// Returns whether a placement waits as this job.
    pub(super) fn has(&self, job: JobId) -> bool {
        self.by_job.contains_key(&job)
    }

    /// Returns whether some wait is to be cancelled.
    pub(super) fn has_cancelled(&self) -> bool {
        !self.cancelled.is_empty()
    }

    /// Returns the first deadline.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(until, _)| until)
    }
}

impl Keeper {
    /// Ends a wait, and gives back what its job has claimed. Returns the placement.
    fn end_wait(&mut self, job: JobId, ended: &mut Ended, now: Time) -> Asked {
        let asked = self.directs.waits.take(job).expect("a placement waits as this job");
        self.jobs_mut().set_phase(job, JobPhase::Cancelled);
        self.end_job(job, 0, true, ended, now);
        asked
    }

    /// Answers a placement that waited as this job, if one did: it has a place now.
    pub(super) fn wait_placed(&mut self, job: JobId, placement: Placement) {
        let Some(asked) = self.directs.waits.take(job) else { return };
        let alternative = self.scheduler.alternative_of(&asked.placement.request, placement.node);
        self.directs.answer(&asked, Ok(Box::new(Placement { alternative, ..placement })));
    }

    /// Answers the placements that shards have granted of a plan of a cycle.
    pub(super) fn waits_placed(&mut self, plan: &Plan, applied: &[Applied]) {
        for (operation, granted) in applied.iter().flat_map(|of_shard| &of_shard.granted) {
            if let Granted::Allocated(placement) = granted {
                self.wait_placed(plan.tasks[usize::from(*operation)].task.job, placement.clone());
            }
        }
    }
}

impl Planner {
    /// Cancels a placement that waits, wherever it is. It may be placed at this moment: then it is answered so.
    pub(in crate::planner) fn cancel_direct(&mut self, tag: JobTag) {
        self.keeper_mut().directs.waits.cancelled.insert(tag);
    }

    /// Ends the waits that were cancelled. Those whose deadline has passed are tried once more. Nothing is in flight.
    pub(super) fn end_direct_waits(&mut self, now: Time) {
        let keeper = self.keeper_mut();
        let mut ended = Ended::default();
        let cancelled = std::mem::take(&mut keeper.directs.waits.cancelled);
        keeper.directs.cancel_asked(&cancelled);
        // One that was answered meanwhile is in neither.
        for tag in cancelled {
            if let Some(&job) = keeper.directs.waits.by_tag.get(&tag) {
                let asked = keeper.end_wait(job, &mut ended, now);
                keeper.directs.answer(&asked, Err(NotCharged::Cancelled));
            }
        }
        while let Some(job) = keeper.directs.waits.deadlines.due(now) {
            let asked = keeper.end_wait(job, &mut ended, now);
            keeper.directs.try_last(asked);
        }
        self.take_ended(ended);
    }

    /// Tells as which job a placement waits in its queue.
    pub(in crate::planner) fn explain_direct_wait(&mut self, tag: JobTag, wait: &DirectWait, since: Time) {
        let job = self.keeper_mut().directs.waits.by_id.get(&wait.id).copied();
        let explained = WaitExplanation {
            job,
            // It is about to be tried if it does not wait as a job.
            waits_for: if job.is_some() { WaitsFor::Queue } else { WaitsFor::Turn },
            priority: wait.priority,
            since,
            until: Some(wait.until).filter(|&until| until != Time::NEVER),
            needed: 1,
            ..WaitExplanation::default()
        };
        self.reply(tag, PlanReply::Explained(Ok(Box::new(explained))));
    }
}
