//! Direct placements that name queues.
//!
//! Each becomes a job of one task, which is placed at once on replicas that are as new as the request, and committed as a
//! statement. Until all statements are answered, the sums of queues have what they ask for. So caps hold whatever the
//! shards do first. An answer leaves with the record of the job, in one unit: a crash leaves both or none, and without
//! a record, a start takes back the allocation.
//!
//! One that may wait, and is not placed at once, [waits in its queue](super::direct_waits).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::Keeper;
use super::direct_waits::DirectWaits;
use crate::cycle::{PlacedNow, Plan};
use crate::fairness::Amounts;
use crate::group::{PlacedPart, PlanReply, StatementReport};
use crate::ids::ShardId;
use crate::jobs::{DirectPlacement, DirectWait, JobId, JobSpec, NotCharged, TaskId, TaskState};
use crate::limits::{DIRECT_ATTEMPTS_MAX, JOBS_MAX};
use crate::planner::in_flight::CommitOptions;
use crate::planner::queue::PortClient;
use crate::planner::{JobTag, Planner, Purpose};
use crate::request::Placement;
use crate::state::{Deed, Done, Origin};
use crate::statement::{CommitMode, ConflictDetection, Granted};
use crate::time::Time;

/// A placement that is not answered.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) tag: JobTag,
    /// Its number in a batch. `None`: it is none of a batch.
    part: Option<u16>,
    client: PortClient,
    pub(super) placement: Arc<DirectPlacement>,
    /// When it was asked for, also if that was at another port or in an earlier start.
    since: Time,
    /// It is not made unless its first attempt has begun by this time.
    due: Time,
    /// The number of attempts that conflicted.
    attempts: u32,
    /// Set once its deadline has passed. It is tried a last time.
    is_last: bool,
}

impl Asked {
    /// Returns how it waits, if it still may.
    pub(super) fn wait(&self) -> Option<&DirectWait> {
        self.placement.wait.as_ref().filter(|_| !self.is_last)
    }
}

/// What became of a placement that was tried.
enum Tried {
    /// It has a node on a replica.
    Placed(JobId, PlacedNow),
    /// Its job is pending.
    Waits(JobId),
}

/// A placement whose statement is in flight.
#[derive(Debug)]
pub(in crate::planner) struct Direct {
    asked: Asked,
    job: JobId,
    plan: Plan,
    alternative: u8,
}

/// A batch of placements that is not answered.
#[derive(Debug, Default)]
struct Batch {
    /// The number of placements that are not decided.
    left: usize,
    /// One of them has begun. The others follow, also after its deadline.
    has_begun: bool,
    decided: Vec<PlacedPart>,
}

/// A placement that is decided.
type Answer = (JobTag, Option<u16>, Result<Box<Placement>, NotCharged>);

/// The placements that are not answered.
#[derive(Default)]
pub(super) struct Directs {
    asked: VecDeque<Asked>,
    batches: BTreeMap<JobTag, Batch>,
    /// Those that wait in their queues.
    pub(super) waits: DirectWaits,
    /// The replies to those that are decided. They leave when no statement is in flight.
    answers: Vec<Answer>,
}

impl Directs {
    /// Returns whether some placement has not been tried.
    pub(super) fn has_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Decides about a placement.
    pub(super) fn answer(&mut self, asked: &Asked, answer: Result<Box<Placement>, NotCharged>) {
        self.answers.push((asked.tag, asked.part, answer));
    }

    /// Returns whether it is too late to begin with a placement, or with its batch. If not, it begins.
    fn is_late(&mut self, asked: &Asked, now: Time) -> bool {
        let batch = asked.part.and_then(|_| self.batches.get_mut(&asked.tag));
        let has_begun = batch.is_some_and(|batch| std::mem::replace(&mut batch.has_begun, true));
        !has_begun && asked.due.is_missed(now)
    }

    /// Drops the other placements of a batch that has not begun. Returns their number.
    fn drop_others_of(&mut self, asked: &Asked) -> usize {
        if self.batches.remove(&asked.tag).is_none() {
            return 0;
        }
        let before = self.asked.len();
        self.asked.retain(|other| other.tag != asked.tag);
        before - self.asked.len()
    }

    /// Lets a placement that waited be tried a last time.
    pub(super) fn try_last(&mut self, asked: Asked) {
        self.asked.push_back(Asked { is_last: true, ..asked });
    }

    /// Cancels those of these tags that have not been tried.
    pub(super) fn cancel_asked(&mut self, tags: &BTreeSet<JobTag>) {
        let answers = &mut self.answers;
        self.asked.retain(|asked| {
            let is_cancelled = tags.contains(&asked.tag);
            if is_cancelled {
                answers.push((asked.tag, asked.part, Err(NotCharged::Cancelled)));
            }
            !is_cancelled
        });
    }

    /// Returns the number of placements that have not been tried.
    pub(super) fn asked(&self) -> usize {
        self.asked.len()
    }

    /// Returns whether some placement is decided and not answered.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }
}

impl Keeper {
    /// Returns the number of jobs that have not ended, with direct placements, and without groups that wait.
    pub(super) fn live_jobs(&self) -> usize {
        self.jobs().job_count() - self.ended.len() - self.placeholders.len()
    }

    /// Charges a placement to its queue, and places it on a replica or lets it wait.
    ///
    /// What may wait is placed at once only if nothing else waits: its turn comes in a cycle.
    fn place_direct(&mut self, asked: &Asked, now: Time) -> Result<Tried, NotCharged> {
        let live = self.live_jobs();
        if live >= JOBS_MAX {
            return Err(NotCharged::TooManyJobs(live));
        }
        let tasks = self.tasks - self.ended_tasks + 1;
        if tasks > self.tasks_max {
            return Err(NotCharged::TooManyTasks(tasks));
        }
        let DirectPlacement { request, queue: name, bound, .. } = &*asked.placement;
        let binding = self.jobs().check_binding(name, request.tenant, bound.as_deref());
        binding.map_err(NotCharged::Binding)?;
        let amounts = Amounts::of(&request.demand);
        let queue = self.jobs().chargeable(name, request.tenant)?;
        let may_wait = asked.wait().is_some();
        let has_lost = asked.attempts >= DIRECT_ATTEMPTS_MAX;
        let is_tried = if may_wait {
            !has_lost && !self.has_waiting() && self.jobs().check_caps_of(queue, &amounts).is_ok()
        } else {
            self.jobs().check_caps_of(queue, &amounts)?;
            true
        };
        let priority = asked.wait().map_or(0, |wait| wait.priority);
        let since = if may_wait { asked.since } else { now };
        let job = self.jobs_mut().submit(JobSpec::direct(request.clone(), queue, priority, since));
        let job = job.map_err(|error| NotCharged::of_job(&error, name))?;
        self.tasks += 1;
        while self.tasks > self.tasks_max {
            self.forget_oldest();
        }
        let placed = if is_tried { self.scheduler.place_now(TaskId { job, index: 0 }, now) } else { None };
        match placed {
            Some(placed) => Ok(Tried::Placed(job, placed)),
            None if may_wait => Ok(Tried::Waits(job)),
            None => {
                self.withdraw(job, now);
                Err(NotCharged::NoNode(Box::new(self.scheduler.refusal_of(request))))
            }
        }
    }

    /// Removes a placement that was not made. Nothing of it was recorded.
    pub(super) fn withdraw(&mut self, job: JobId, now: Time) {
        self.jobs_mut().set(TaskId { job, index: 0 }, TaskState::Failed, None, now);
        self.settle(job);
    }
}

impl Planner {
    /// Takes a placement that names a queue. It was asked for at the first of these times, and is not made unless it begins by
    /// the second.
    pub(in crate::planner) fn queue_direct(
        &mut self,
        (tag, client): (JobTag, PortClient),
        placement: DirectPlacement,
        (since, due): (Time, Time),
    ) {
        let placement = Arc::new(placement);
        let asked = Asked { tag, part: None, client, placement, since, due, attempts: 0, is_last: false };
        self.keeper_mut().directs.asked.push_back(asked);
    }

    /// Takes placements of one message. Each is decided by itself, and they are answered together. The times are as in
    /// [`queue_direct`](Self::queue_direct).
    pub(in crate::planner) fn queue_direct_batch(
        &mut self,
        (tag, client): (JobTag, PortClient),
        parts: Vec<(u16, DirectPlacement)>,
        (since, due): (Time, Time),
    ) {
        assert!(!parts.is_empty(), "a batch has placements");
        let directs = &mut self.keeper_mut().directs;
        directs.batches.insert(tag, Batch { left: parts.len(), ..Batch::default() });
        directs.asked.extend(parts.into_iter().map(|(part, placement)| Asked {
            tag,
            part: Some(part),
            client,
            placement: Arc::new(placement),
            since,
            due,
            attempts: 0,
            is_last: false,
        }));
    }

    /// Begins the first `count` placements, as far as the work of a round is bounded. Their replicas are current.
    pub(super) fn place_directs(&mut self, count: usize, now: Time) {
        let mut spent = 0;
        let mut left = count;
        while left > 0 && spent < self.budget.round {
            let keeper = self.keeper_mut();
            let mut asked = keeper.directs.asked.pop_front().expect("as many were asked for");
            left -= 1;
            if keeper.directs.is_late(&asked, now) {
                left -= keeper.directs.drop_others_of(&asked);
                self.reply(asked.tag, PlanReply::Late);
                continue;
            }
            // It has begun, so further attempts are made at any time.
            asked.due = Time::NEVER;
            let before = keeper.scheduler.looked_at();
            let placed = keeper.place_direct(&asked, now);
            let mut units = keeper.scheduler.looked_at() - before;
            if let Err(NotCharged::NoNode(refusal)) = &placed {
                units += refusal.examined;
            }
            spent += units;
            self.queue.charge(asked.client, units);
            match placed {
                Ok(Tried::Placed(job, placed)) => self.commit_direct(asked, job, placed),
                Ok(Tried::Waits(job)) => self.keeper_mut().directs.waits.insert(job, asked),
                Err(refused) => self.keeper_mut().directs.answer(&asked, Err(refused)),
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
            // What it had taken on the replicas is free again.
            self.released += 1;
            let keeper = self.keeper_mut();
            asked.attempts += 1;
            if asked.attempts < DIRECT_ATTEMPTS_MAX || asked.wait().is_some() {
                keeper.directs.asked.push_back(asked);
            } else {
                keeper.directs.answer(&asked, Err(NotCharged::Conflicts));
            }
            return;
        };
        let placement = Box::new(Placement { alternative, ..placement.clone() });
        keeper.scheduler.committed(&plan, &concluded.applied, now);
        keeper.directs.answer(&asked, Ok(placement));
    }

    /// Answers the placements that are decided. No statement is in flight, so the next unit has their records.
    pub(super) fn answer_directs(&mut self) {
        for (tag, part, answer) in std::mem::take(&mut self.keeper_mut().directs.answers) {
            match part {
                None => self.reply(tag, PlanReply::Placed(answer)),
                Some(part) => self.part_decided(tag, part, answer),
            }
        }
    }

    /// Notes what became of a placement of a batch, and answers the batch after the last one.
    fn part_decided(&mut self, tag: JobTag, part: u16, answer: Result<Box<Placement>, NotCharged>) {
        // In the unit of its record. After a crash, the rest of the batch is done alone.
        if let (Ok(placement), Some(&origin)) = (&answer, self.origins.get(&tag)) {
            let deed = Deed::Placed(placement.clone(), None);
            self.early.push(Done { origin: Origin { part, ..origin }, deed });
        }
        let batches = &mut self.keeper_mut().directs.batches;
        let batch = batches.get_mut(&tag).expect("it is part of a batch that is not answered");
        batch.decided.push((part, answer));
        batch.left -= 1;
        if batch.left == 0 {
            let batch = batches.remove(&tag).expect("just seen");
            self.reply(tag, PlanReply::PlacedBatch(batch.decided));
        }
    }
}
