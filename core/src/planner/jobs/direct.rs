//! Direct placements that name queues.
//!
//! Each becomes a job of one task, which is placed at once on replicas that are as new as the request, and committed as a
//! statement. Until all statements are answered, the sums of queues have what they ask for. So caps hold whatever the
//! shards do first. An answer leaves with the record of the job, in one unit: a crash leaves both or none, and without
//! a record, a start takes back the allocation.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Keeper;
use crate::cycle::{PlacedNow, Plan};
use crate::fairness::Amounts;
use crate::group::{PlanReply, StatementReport};
use crate::ids::ShardId;
use crate::jobs::{DirectPlacement, JobId, JobSpec, NotCharged, TaskId, TaskState};
use crate::limits::{DIRECT_ATTEMPTS_MAX, JOBS_MAX};
use crate::planner::in_flight::CommitOptions;
use crate::planner::queue::PortClient;
use crate::planner::{JobTag, Planner, Purpose};
use crate::request::Placement;
use crate::statement::{CommitMode, ConflictDetection, Granted};
use crate::time::Time;

/// A placement that waits for its turn.
#[derive(Debug)]
pub(super) struct Asked {
    tag: JobTag,
    client: PortClient,
    placement: Arc<DirectPlacement>,
    /// It is not made unless its first attempt has begun by this time.
    due: Time,
    /// The number of attempts that conflicted.
    attempts: u32,
}

/// A placement whose statement is in flight.
#[derive(Debug)]
pub(in crate::planner) struct Direct {
    asked: Asked,
    job: JobId,
    plan: Plan,
    alternative: u8,
}

/// The placements that are not answered.
#[derive(Default)]
pub(super) struct Directs {
    asked: VecDeque<Asked>,
    /// The replies to those that are decided. They leave when no statement is in flight.
    answers: Vec<(JobTag, Result<Box<Placement>, NotCharged>)>,
}

impl Directs {
    /// Returns whether some placement waits for its turn.
    pub(super) fn has_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Returns the number of placements that wait for their turns.
    pub(super) fn asked(&self) -> usize {
        self.asked.len()
    }

    /// Returns whether some placement is decided and not answered.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }
}

impl Keeper {
    /// Returns the number of jobs that have not ended, with direct placements.
    pub(super) fn live_jobs(&self) -> usize {
        self.jobs().job_count() - self.ended.len()
    }

    /// Charges a placement to its queue, and places it on a replica.
    fn place_direct(
        &mut self,
        placement: &DirectPlacement,
        now: Time,
    ) -> Result<(JobId, PlacedNow), NotCharged> {
        let live = self.live_jobs();
        if live >= JOBS_MAX {
            return Err(NotCharged::TooManyJobs(live));
        }
        let tasks = self.tasks - self.ended_tasks + 1;
        if tasks > self.tasks_max {
            return Err(NotCharged::TooManyTasks(tasks));
        }
        let DirectPlacement { request, queue: name, bound } = placement;
        self.jobs().check_binding(name, bound.as_ref()).map_err(NotCharged::Binding)?;
        let amounts = Amounts::of(&request.demand);
        let queue = self.jobs().chargeable(name, request.tenant, &amounts)?;
        let job = self.jobs_mut().submit(JobSpec::direct(request.clone(), queue, now));
        let job = job.map_err(|error| NotCharged::of_job(&error, name))?;
        self.tasks += 1;
        while self.tasks > self.tasks_max {
            self.forget_oldest();
        }
        match self.scheduler.place_now(TaskId { job, index: 0 }, now) {
            Some(placed) => Ok((job, placed)),
            None => {
                self.withdraw(job, now);
                Err(NotCharged::NoNode(Box::new(self.scheduler.refusal_of(request))))
            }
        }
    }

    /// Removes a placement that was not made. Nothing of it was recorded.
    fn withdraw(&mut self, job: JobId, now: Time) {
        self.jobs_mut().set(TaskId { job, index: 0 }, TaskState::Failed, None, now);
        self.settle(job);
    }
}

impl Planner {
    /// Takes a placement that names a queue.
    pub(in crate::planner) fn queue_direct(
        &mut self,
        (tag, client, due): (JobTag, PortClient, Time),
        placement: DirectPlacement,
    ) {
        let placement = Arc::new(placement);
        self.keeper_mut().directs.asked.push_back(Asked { tag, client, placement, due, attempts: 0 });
    }

    /// Begins the first `count` placements, as far as the work of a round is bounded. Their replicas are current.
    pub(super) fn place_directs(&mut self, count: usize, now: Time) {
        let mut spent = 0;
        for _ in 0..count {
            if spent >= self.budget.round {
                break;
            }
            let keeper = self.keeper_mut();
            let mut asked = keeper.directs.asked.pop_front().expect("as many were asked for");
            if asked.due.is_missed(now) {
                self.reply(asked.tag, PlanReply::Late);
                continue;
            }
            // It has begun, so further attempts are made at any time.
            asked.due = Time::NEVER;
            let before = keeper.scheduler.looked_at();
            let placed = keeper.place_direct(&asked.placement, now);
            let mut units = keeper.scheduler.looked_at() - before;
            if let Err(NotCharged::NoNode(refusal)) = &placed {
                units += refusal.examined;
            }
            spent += units;
            self.queue.charge(asked.client, units);
            match placed {
                Ok((job, placed)) => self.commit_direct(asked, job, placed),
                Err(refused) => self.keeper_mut().directs.answers.push((asked.tag, Err(refused))),
            }
        }
    }

    fn commit_direct(&mut self, asked: Asked, job: JobId, placed: PlacedNow) {
        let PlacedNow { plan, shard, alternative } = placed;
        let shard = ShardId(u16::try_from(shard).expect("SHARDS_MAX fits u16"));
        let operations = plan.operations().map(|(_, operation)| (shard, operation.clone())).collect();
        let mode = CommitMode::AllOrNothing;
        let terms = CommitOptions { conflict_detection: ConflictDetection::Fine, mode, atomic: true };
        let purpose = Purpose::Direct(Box::new(Direct { asked, job, plan, alternative }));
        self.commit(operations, Vec::new(), terms, purpose);
    }

    /// Takes over what the shard did of a placement. One that conflicted is tried again on newer replicas, a few times.
    pub(in crate::planner) fn direct_concluded(
        &mut self,
        direct: Direct,
        concluded: StatementReport,
        now: Time,
    ) {
        let Direct { mut asked, job, plan, alternative } = direct;
        let keeper = self.keeper_mut();
        let granted = concluded.applied.iter().flat_map(|applied| &applied.granted);
        let granted = granted.map(|(_, granted)| granted).next();
        let Some(Granted::Allocated(placement)) = granted else {
            keeper.scheduler.take_back(&plan);
            keeper.withdraw(job, now);
            asked.attempts += 1;
            if asked.attempts < DIRECT_ATTEMPTS_MAX {
                keeper.directs.asked.push_back(asked);
            } else {
                keeper.directs.answers.push((asked.tag, Err(NotCharged::Conflicts)));
            }
            return;
        };
        let placement = Box::new(Placement { alternative, ..placement.clone() });
        keeper.scheduler.committed(&plan, &concluded.applied, now);
        keeper.directs.answers.push((asked.tag, Ok(placement)));
    }

    /// Answers the placements that are decided. No statement is in flight, so the next unit has their records.
    pub(super) fn answer_directs(&mut self) {
        let answers = std::mem::take(&mut self.keeper_mut().directs.answers);
        answers.into_iter().for_each(|(tag, answer)| self.reply(tag, PlanReply::Placed(answer)));
    }
}
