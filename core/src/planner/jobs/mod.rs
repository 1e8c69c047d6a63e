//! The keeper of jobs: a planner that runs scheduling cycles. Of groups, it has [those in queues](super::in_queue).
//!
//! It has all queues and jobs of the service. A round follows the views, begins requests, serves groups, and runs a cycle if
//! one is due. What a cycle plans is committed by statements, as for groups. While statements are in flight, nothing else
//! happens: tasks are then in states that no shard has agreed to.
//!
//! The allocation of a task is a bundle of the group of the job
//! ([`JobId::group`](crate::jobs::JobId::group)). So views tell when it ends, and a recovery takes back what no record
//! of a task knows.

mod charges;
mod direct;
mod direct_waits;
mod explain;
mod follow;
mod in_turn;
mod nodes;
mod order;
mod placeholders;
mod requests;
mod waiting;

use std::collections::{BTreeSet, VecDeque};

use super::in_flight::CommitOptions;
use super::{Planner, PlannerConfig, Purpose};
use crate::broken::Broken;
use crate::cycle::{CycleConfig, CycleConfigError, Plan, Scheduler};
use crate::group::StatementReport;
use crate::ids::AllocationId;
use crate::jobs::{JobId, Jobs, JobsChange, JobsRecord, QueueId, TaskId};
use crate::limits::{CYCLE_INTERVAL_NS_DEFAULT, JOBS_ENDED_KEPT, STATEMENT_OPERATIONS_MAX, TASKS_MAX};
use crate::replica::Replica;
use crate::router::{Port, Tag};
use crate::shard::{Command, Shard};
use crate::statement::{CommitMode, ConflictDetection, ConflictReason, Evict, Operation};
use crate::time::Time;
use crate::view::ViewReader;
pub(super) use charges::Charge;
use charges::Charges;
pub(super) use direct::Direct;
use direct::Directs;
use explain::Explanations;
use in_turn::PlannedInTurn;
use nodes::NodesPlans;
use order::Undecided;
use placeholders::Placeholders;
pub(super) use waiting::PLACEMENTS_TAG;

/// The tag of answers to releases of the keeper.
pub(super) const RELEASE_TAG: Tag = Tag::MAX - 4;

/// The most requests that begin in a round.
const REQUESTS_PER_ROUND: usize = 64;

/// The most statements of a cycle in flight.
const PLANS_IN_FLIGHT_MAX: usize = 256;

/// The settings of the keeper of jobs.
#[derive(Clone, Debug)]
pub struct JobsConfig {
    /// What a cycle does.
    pub cycle: CycleConfig,
    /// The time between the beginnings of two cycles, in ns.
    pub interval_ns: u64,
    /// The largest number of tasks of all jobs together. Ended jobs make room for new ones.
    pub tasks_max: u64,
}

impl Default for JobsConfig {
    fn default() -> Self {
        Self { cycle: CycleConfig::default(), interval_ns: CYCLE_INTERVAL_NS_DEFAULT, tasks_max: TASKS_MAX }
    }
}

/// What tasks had that have ended, or are about to.
#[derive(Default)]
struct Ended {
    /// To be released at once.
    released: Vec<AllocationId>,
    /// To be evicted with a grace period.
    evicted: Vec<(TaskId, AllocationId, u64)>,
}

/// What a planner has that keeps jobs.
pub(super) struct Keeper {
    scheduler: Scheduler,
    interval_ns: u64,
    tasks_max: u64,
    /// The time from which on the next cycle may begin.
    next_cycle: Time,
    /// When a cycle began in this round.
    began: Option<Time>,
    /// The time at which a cycle may decide otherwise although nothing has changed.
    due: Option<Time>,
    /// What the last cycle planned and is not sent yet.
    plans: VecDeque<Plan>,
    /// Those that are in flight or wait for one that is.
    undecided: Undecided,
    /// The tasks with claims.
    claims: BTreeSet<TaskId>,
    /// Tasks to evict, each with its grace period in ns.
    evictions: VecDeque<(TaskId, AllocationId, u64)>,
    /// The number of releases in flight.
    releases: usize,
    /// The jobs whose tasks have all ended, the one that ended first at the front.
    ended: VecDeque<JobId>,
    /// The number of tasks of all jobs.
    tasks: u64,
    /// The number of tasks of ended jobs.
    ended_tasks: u64,
    /// Explanations that are not answered.
    explanations: Explanations,
    nodes: NodesPlans,
    /// Placements that name queues.
    directs: Directs,
    /// What queues are charged for bundles of groups.
    charges: Charges,
    /// The groups that wait in queues.
    placeholders: Placeholders,
}

impl Keeper {
    fn jobs(&self) -> &Jobs {
        self.scheduler.jobs()
    }

    /// Returns the number of changes of queues, jobs and tasks so far.
    pub(super) fn changes(&self) -> u64 {
        self.jobs().changes()
    }

    /// Returns whether it waits for the ends of allocations that it has released.
    pub(super) fn is_releasing(&self) -> bool {
        self.releases > 0
    }

    fn jobs_mut(&mut self) -> &mut Jobs {
        self.scheduler.jobs_mut()
    }

    /// Notes all changes from now on.
    pub(super) fn note_changes(&mut self) {
        self.jobs_mut().note_changes();
    }

    /// Returns whether tasks wait for something that a cycle may give them, or hold what it may give up.
    fn has_waiting(&self) -> bool {
        let of_all = self.jobs().queue(QueueId::ROOT).pending_tasks();
        of_all > 0 || !self.jobs().waiting_for_cap().is_empty() || self.jobs().starting().next().is_some()
    }

    /// Leaves requests as much time between two cycles as the last one took, and at least the interval from its beginning. Returns
    /// how long a cycle of this round took, in ns.
    fn pace(&mut self, now: Time) -> u64 {
        let Some(began) = self.began.take() else { return 0 };
        let took_ns = now.nanos_since(began);
        self.next_cycle = began.plus_nanos(self.interval_ns.max(took_ns.saturating_mul(2)));
        took_ns
    }

    /// Returns whether views matter: some task has a node, or something waits for one.
    fn follows(&self) -> bool {
        self.jobs().nodes().next().is_some() || self.has_waiting() || self.directs.has_asked()
    }

    fn replicas(&self) -> &[Replica] {
        self.scheduler.replicas()
    }

    /// Notes a job whose tasks have all ended, and forgets those that ended first if there are too many.
    fn settle(&mut self, id: JobId) {
        if !self.jobs().job(id).has_ended() {
            return;
        }
        if self.jobs().job(id).spec().is_direct {
            self.tasks -= 1;
            return self.jobs_mut().remove_job(id);
        }
        self.ended_tasks += self.jobs().job(id).tasks().len() as u64;
        self.ended.push_back(id);
        if self.ended.len() > JOBS_ENDED_KEPT {
            self.forget_oldest();
        }
    }

    /// Ends the tasks of jobs whose policies have decided so, and gives up starts.
    fn end_jobs(&mut self, ended: &mut Ended, now: Time) {
        let grace_ns = self.scheduler.config().grace_ns;
        for id in self.jobs_mut().take_ending() {
            self.end_job(id, grace_ns, false, ended, now);
        }
    }

    /// Ends the tasks of a job, as its phase says.
    fn end_job(&mut self, id: JobId, grace_ns: u64, short: bool, ended: &mut Ended, now: Time) {
        let had_ended = self.jobs().job(id).has_ended();
        let end = self.jobs_mut().end_job(id, grace_ns, short, now);
        for (task, allocation) in end.released {
            self.claims.remove(&task);
            ended.released.push(allocation);
        }
        let evicted = end.evicted.into_iter();
        ended.evicted.extend(evicted.map(|(task, allocation)| (task, allocation, grace_ns)));
        if !had_ended {
            self.settle(id);
        }
    }

    /// Forgets the job that ended first.
    fn forget_oldest(&mut self) {
        let oldest = *self.ended.front().expect("some job has ended");
        self.forget(oldest);
    }

    /// Forgets a job that has ended.
    fn forget(&mut self, id: JobId) {
        let tasks = self.jobs().job(id).tasks().len() as u64;
        self.tasks -= tasks;
        self.ended_tasks -= tasks;
        self.ended.retain(|&ended| ended != id);
        self.jobs_mut().remove_job(id);
    }
}

impl Planner {
    /// Creates a planner that keeps jobs, over `shards` as [`Planner::new`] does. `of_groups` is the same again, for the
    /// groups in queues. What no group needs follows no views.
    ///
    /// # Errors
    /// The first fault in the settings of cycles.
    pub(crate) fn keeper(
        config: PlannerConfig,
        port: Port,
        [shards, of_groups]: [Vec<(Shard, ViewReader)>; 2],
        settings: &JobsConfig,
    ) -> Result<Self, CycleConfigError> {
        let copies = shards.into_iter().map(|(shard, reader)| Replica::new(shard, reader)).collect();
        let scheduler = Scheduler::new(settings.cycle.clone(), copies)?;
        let mut planner = Self::new(config, port, of_groups);
        planner.keeper = Some(Box::new(Keeper {
            scheduler,
            interval_ns: settings.interval_ns,
            tasks_max: settings.tasks_max,
            next_cycle: Time::default(),
            began: None,
            due: None,
            plans: VecDeque::new(),
            undecided: Undecided::default(),
            claims: BTreeSet::new(),
            evictions: VecDeque::new(),
            releases: 0,
            ended: VecDeque::new(),
            tasks: 0,
            ended_tasks: 0,
            explanations: Explanations::new(),
            nodes: NodesPlans::default(),
            directs: Directs::default(),
            charges: Charges::default(),
            placeholders: Placeholders::default(),
        }));
        Ok(planner)
    }

    /// Returns whether it keeps jobs, and the groups in queues.
    #[must_use]
    pub fn keeps_jobs(&self) -> bool {
        self.keeper.is_some()
    }

    /// Returns the jobs, if it keeps them.
    #[must_use]
    pub fn jobs(&self) -> Option<&Jobs> {
        self.keeper.as_ref().map(|keeper| keeper.jobs())
    }

    /// Returns the scheduler of its cycles, if it keeps jobs.
    #[must_use]
    pub fn scheduler(&self) -> Option<&Scheduler> {
        self.keeper.as_ref().map(|keeper| &keeper.scheduler)
    }

    /// Returns all queues and jobs as durable state. `None`: it keeps none.
    ///
    /// # Panics
    /// Panics if a statement is in flight.
    #[must_use]
    pub fn export_jobs(&self) -> Option<JobsRecord> {
        assert!(!self.is_committing(), "a planner is stopped when nothing is under way");
        self.jobs().map(Jobs::record)
    }

    /// Takes over the jobs that an earlier start left, at the time of this one.
    ///
    /// # Errors
    /// The first record that contradicts the others.
    pub(crate) fn adopt_jobs(&mut self, record: JobsRecord, now: Time) -> Result<(), Broken> {
        let keeper = self.keeper_mut();
        keeper.jobs_mut().adopt(record, now)?;
        let mut all: Vec<(JobId, usize, bool)> = Vec::new();
        for (id, job) in keeper.scheduler.jobs().jobs() {
            all.push((id, job.tasks().len(), job.has_ended()));
            if id.is_charge() {
                let allocation = job.tasks()[0].allocation.expect("a charge is recorded for an allocation");
                keeper.charges.insert(allocation, id);
            }
            let claims = (0..).zip(job.tasks()).filter(|(_, task)| task.has_claim());
            keeper.claims.extend(claims.map(|(index, _)| TaskId { job: id, index }));
        }
        all.sort_unstable();
        for (id, tasks, has_ended) in all {
            keeper.tasks += tasks as u64;
            if has_ended {
                keeper.ended_tasks += tasks as u64;
                keeper.ended.push_back(id);
            }
        }
        Ok(())
    }

    fn keeper_mut(&mut self) -> &mut Keeper {
        self.keeper.as_mut().expect("only the keeper of jobs gets here")
    }

    /// The second half of a round, for the keeper of jobs. Returns the number of new statements and releases.
    pub(super) fn advance_jobs(&mut self, now: Time) -> usize {
        let sent = self.metrics.statements;
        self.take_nodes_plan();
        let of_cycle = self.send_plans();
        if !self.flights.is_empty() {
            return of_cycle;
        }
        // In one unit with the records of what was placed.
        self.answer_directs();
        let follows_groups = self.keeps_groups();
        self.awaits_views = !self.follow_all(now);
        if self.awaits_views {
            return 0;
        }
        self.keeper_mut().jobs_mut().take_due(now);
        self.end_jobs(now);
        self.end_direct_waits(now);
        // Of what was granted or cancelled in this round. Its records are in the next unit.
        self.answer_directs();
        // The replicas show all that has changed until they were asked for.
        let current = self.keeper_mut().directs.asked();
        let mut begun = 0;
        while begun < REQUESTS_PER_ROUND {
            let Some((client, job)) = self.queue.next(|job| !job.is_about_groups()) else { break };
            self.queue.charge(client, job.job.units());
            self.begin(client, job, now);
            begun += 1;
        }
        self.explain_next();
        self.copy_jobs_next(now);
        // Before any statement: tasks are in states that the shards have agreed to.
        self.record();
        // A task that is pending again is not placed twice, and no cap is exceeded: what was released is gone before.
        let has_released = self.keeper_mut().releases == 0;
        if self.evict_next() == 0 && has_released {
            self.place_directs(current, now);
            // A first group, behind a request of this round, waits for replicas that are current.
            if follows_groups || !self.keeps_groups() {
                self.within(self.budget.round / 4, usize::MAX, |planner| planner.judge_next(now));
                self.serve_groups(now);
            }
            // Also if placements never cease. The plans do not touch what is being placed.
            if self.is_cycle_due(now) {
                self.run_cycle(now);
            }
        }
        begun + usize::try_from(self.metrics.statements - sent).unwrap_or(usize::MAX)
    }

    /// Notes the end of a round, and with it how long its cycle took.
    pub(super) fn end_round(&mut self, now: Time) {
        let Some(keeper) = &mut self.keeper else { return };
        self.metrics.cycle_ns += keeper.pace(now);
        self.metrics.cycles = keeper.scheduler.cycles();
        self.metrics.tasks_pending = keeper.jobs().queue(QueueId::ROOT).pending_tasks();
    }

    fn is_cycle_due(&self, now: Time) -> bool {
        self.cycle_deadline().is_some_and(|due| due <= now)
    }

    /// Returns when the next cycle is to begin. `None`: not before something changes.
    fn cycle_deadline(&self) -> Option<Time> {
        let keeper = self.keeper.as_ref()?;
        let overrun = keeper.jobs().ends(None).next().map(|(end, _)| end);
        let waiting = keeper.has_waiting().then_some(keeper.next_cycle);
        let due = keeper.due.into_iter().chain(overrun).chain(waiting).min()?;
        Some(due.max(keeper.next_cycle))
    }

    /// Returns the time at which the keeper of jobs has something to do. `None`: when something arrives.
    pub(super) fn jobs_deadline(&self) -> Option<Time> {
        let keeper = self.keeper.as_ref().filter(|_| self.flights.is_empty())?;
        let cycle = self.cycle_deadline().filter(|_| keeper.releases == 0);
        cycle.into_iter().chain(keeper.jobs().next_delay()).chain(keeper.directs.waits.next_deadline()).min()
    }

    /// Returns whether the keeper of jobs has something to do now that no deadline tells.
    pub(super) fn has_jobs_left(&self) -> bool {
        let Some(keeper) = &self.keeper else { return false };
        let has_ended = || keeper.follows() && keeper.replicas().iter().any(Replica::has_ended);
        let has_ending = keeper.jobs().has_ending();
        let has_requests =
            !self.queue.is_empty() || !keeper.explanations.is_empty() || keeper.nodes.is_copying();
        let has_directs = keeper.releases == 0 && keeper.directs.has_asked()
            || keeper.directs.has_answers()
            || keeper.directs.waits.has_cancelled();
        let has_groups =
            || keeper.releases == 0 && (self.has_groups_left() || keeper.placeholders.has_to_judge());
        self.flights.is_empty()
            && (has_directs
                || has_requests
                || !keeper.evictions.is_empty()
                || has_ending
                || has_ended()
                || has_groups())
    }

    /// Returns whether the keeper of jobs waits for answers, or has requests.
    pub(super) fn is_keeping(&self) -> bool {
        let keeper = self.keeper.as_ref();
        keeper.is_some_and(|keeper| {
            keeper.releases > 0
                || !keeper.plans.is_empty()
                || !keeper.evictions.is_empty()
                || keeper.jobs().has_ending()
                || !keeper.explanations.is_empty()
                || keeper.nodes.is_planning()
                || keeper.nodes.is_copying()
                || keeper.directs.has_asked()
                || keeper.directs.has_answers()
                || keeper.directs.waits.has_cancelled()
        })
    }

    /// Returns whether a plan of nodes is made and not answered with.
    pub(super) fn has_nodes_plan(&mut self) -> bool {
        self.keeper.as_mut().is_some_and(|keeper| keeper.nodes.has_plan())
    }

    /// Returns whether the ends of tasks matter to the keeper of jobs.
    pub(super) fn wants_task_ends(&self) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.follows())
    }

    fn run_cycle(&mut self, now: Time) {
        let mut keeper = self.keeper.take().expect("only the keeper of jobs gets here");
        let bounds = (keeper.changes(), keeper.chargeable_bundles());
        let released = self.released;
        let mut groups = PlannedInTurn::new(self, &mut keeper.placeholders, bounds);
        let report = keeper.scheduler.run_with_groups(&mut groups, now);
        let without_room = groups.without_room;
        keeper.note_without_room(without_room);
        keeper.placeholders.note_left(
            keeper.scheduler.jobs().changes(),
            keeper.scheduler.replicas(),
            released,
        );
        keeper.due = report.due;
        keeper.next_cycle = now.plus_nanos(keeper.interval_ns);
        keeper.began = Some(now);
        keeper.undecided.clear();
        keeper.plans.extend(report.plans);
        self.keeper = Some(keeper);
        self.send_plans();
    }

    /// Takes over what the shards did of a plan.
    pub(super) fn plan_concluded(&mut self, plan: &Plan, mut concluded: StatementReport, now: Time) {
        let keeper = self.keeper_mut();
        if concluded.applied.is_empty() || !concluded.conflicts.is_empty() || concluded.expired {
            keeper.scheduler.aborted(plan);
            keeper.note_decided(plan, true);
            self.released += 1;
            return;
        }
        // A statement numbers its operations. A plan also has tasks without one.
        let indexes: Vec<u16> = plan.operations().map(|(index, _)| index).collect();
        for (operation, _) in concluded.applied.iter_mut().flat_map(|applied| &mut applied.granted) {
            *operation = indexes[usize::from(*operation)];
        }
        keeper.scheduler.committed(plan, &concluded.applied, now);
        self.metrics.count_plan(plan);
        let keeper = self.keeper_mut();
        keeper.waits_placed(plan, &concluded.applied);
        keeper.note_decided(plan, false);
        for step in &plan.tasks {
            if keeper.scheduler.jobs().task(step.task).has_claim() {
                keeper.claims.insert(step.task);
            }
        }
        // A task whose run time is over has failed if it had no grace period.
        let jobs: BTreeSet<JobId> = plan.tasks.iter().map(|step| step.task.job).collect();
        jobs.into_iter().for_each(|job| keeper.settle(job));
    }

    /// Sends evictions of tasks that are cancelled, or whose node is lost. Returns the number of statements.
    fn evict_next(&mut self) -> usize {
        let keeper = self.keeper_mut();
        let count = keeper.evictions.len().min(STATEMENT_OPERATIONS_MAX);
        let evictions: Vec<(TaskId, AllocationId, u64)> = keeper.evictions.drain(..count).collect();
        let mut operations = Vec::new();
        let mut tasks = Vec::new();
        for (task, allocation, grace_ns) in evictions {
            // It may have ended since.
            if self.keeper_mut().holds(task, allocation) {
                let shard = self.shard_of_allocation(allocation);
                operations.push((shard, Operation::Evict(Evict { allocation, expected: None, grace_ns })));
                tasks.push((task, allocation, grace_ns));
            }
        }
        if operations.is_empty() {
            return 0;
        }
        let mode = CommitMode::Incremental;
        let terms = CommitOptions { conflict_detection: ConflictDetection::Fine, mode, atomic: false };
        self.commit(operations, Vec::new(), terms, Purpose::EvictTasks(tasks));
        1
    }

    /// Tries evictions again that a statement of others is in the way of. The views tell of all others.
    pub(super) fn evictions_concluded(
        &mut self,
        tasks: &[(TaskId, AllocationId, u64)],
        concluded: &StatementReport,
    ) {
        let of_shards = concluded.applied.iter().flat_map(|applied| &applied.conflicts);
        for conflict in of_shards.chain(&concluded.conflicts) {
            if matches!(conflict.reason, ConflictReason::HeldBy(_)) {
                self.keeper_mut().evictions.push_back(tasks[usize::from(conflict.operation)]);
            }
        }
    }

    /// Ends the tasks of jobs whose policies have decided so, and gives up starts, in agreed states.
    fn end_jobs(&mut self, now: Time) {
        let mut ended = Ended::default();
        self.keeper_mut().end_jobs(&mut ended, now);
        self.take_ended(ended);
    }

    /// Sends the evictions and releases of tasks that have ended, or are about to.
    fn take_ended(&mut self, ended: Ended) {
        self.keeper_mut().evictions.extend(ended.evicted);
        if !ended.released.is_empty() {
            // Recorded before anything is released: a crash must not let a task that has ended run again.
            self.record();
            ended.released.into_iter().for_each(|allocation| self.release_task(allocation));
        }
    }

    /// Releases the allocation or claim of a task that has ended.
    fn release_task(&mut self, allocation: AllocationId) {
        self.keeper_mut().releases += 1;
        let shard = self.shard_of_allocation(allocation);
        self.outbox.push_back((RELEASE_TAG, shard, Command::Release(allocation)));
    }

    /// Takes the answer to a release. An allocation that had ended before is as good.
    pub(super) fn task_released(&mut self) {
        self.keeper_mut().releases -= 1;
    }

    /// Returns whether the tasks of jobs are in states that the shards have agreed to: no cycle is being committed.
    #[must_use]
    pub fn has_agreed_jobs(&self) -> bool {
        self.flights.is_empty() && self.keeper.as_ref().is_some_and(|keeper| keeper.plans.is_empty())
    }

    /// Returns the changes of jobs since the last call, unless a cycle is being committed.
    pub(super) fn take_job_changes(&mut self) -> Vec<JobsChange> {
        if self.has_agreed_jobs() { self.keeper_mut().jobs_mut().take_changes() } else { Vec::new() }
    }
}
