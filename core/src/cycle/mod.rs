//! Scheduling cycles (Volcano's sessions): jobs that wait are admitted, placed, and given what others should not keep.
//!
//! A cycle works on [`Jobs`] and on replicas of the shards. It runs a pipeline of [actions](Action). Each action tries
//! changes, one job at a time, and keeps them if the job then has what it needs, or undoes all of them. What it keeps
//! is a [`Plan`]: the operations of one statement. The shards decide whether a statement is committed, as for every
//! planner. [`Scheduler::committed`] and [`Scheduler::aborted`] bring the answer back.
//!
//! | module | content |
//! |---|---|
//! | `config` | actions, plugins and tiers |
//! | `plugin`, `plugins` | the rules, and how tiers of them decide together |
//! | `turns` | whose turn it is, at each level of the hierarchy |
//! | `trial` | changes that can be undone exactly |
//! | `spots`, `victims` | which tasks to evict on which node |
//! | `dated` | dated reservations, and limits of run times |
//! | `enqueue`, `allocate`, `backfill`, `preempt`, `reclaim` | the actions |
//! | `local` | a shard and its cycles in one thread, for scenarios and measurements |

mod allocate;
mod backfill;
mod config;
mod dated;
mod enqueue;
mod heap;
mod local;
mod plugin;
mod plugins;
mod preempt;
mod reclaim;
mod report;
mod spots;
#[cfg(test)]
mod tests;
mod trial;
mod turns;
mod victims;

pub use config::{
    Action, Backfill, Combination, CycleConfig, CycleConfigError, Decision, PluginConfig, PluginKind,
};
pub use dated::DatedReservation;
pub use local::{Changes, LocalCluster, LocalError};
pub use report::{CycleReport, Plan, PlannedTask};

use std::sync::Arc;

use crate::fairness::{Amounts, Dim, FairShare, fair_shares};
use crate::ids::{NodeId, ResourceId};
use crate::jobs::{JobId, JobPhase, Jobs, QueueId, TaskId, TaskState};
use crate::planner::Replica;
use crate::resource::ResourceKind;
use crate::statement::Granted;
use crate::time::Time;
use dated::Reservations;
use plugin::{Facts, Tiers};
use trial::Cycle;

/// Runs cycles over its jobs and replicas.
pub struct Scheduler {
    jobs: Jobs,
    replicas: Vec<Replica>,
    config: Arc<CycleConfig>,
    tiers: Tiers,
    /// The dated reservations as of the last cycle.
    reservations: Reservations,
    /// The capacity of all nodes that take work, and the shape of the nodes when it was summed up.
    total: Amounts,
    total_of: Option<u64>,
    /// The state after which a cycle changed nothing: another one on the same state changes nothing either.
    settled: Option<Settled>,
}

/// What the decisions of a cycle depend on, unless they depend on time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Settled {
    changes: u64,
    views: Vec<u64>,
}

impl Scheduler {
    /// Creates a scheduler without jobs.
    ///
    /// # Errors
    /// The first fault in the settings.
    pub(crate) fn new(config: CycleConfig, replicas: Vec<Replica>) -> Result<Self, CycleConfigError> {
        config.check()?;
        let tiers = Tiers::new(&config);
        let total = Amounts::zero();
        Ok(Self {
            jobs: Jobs::new(),
            replicas,
            config: Arc::new(config),
            tiers,
            reservations: Reservations::new(),
            total,
            total_of: None,
            settled: None,
        })
    }

    /// Returns the jobs.
    #[must_use]
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Returns the jobs, to submit to.
    pub fn jobs_mut(&mut self) -> &mut Jobs {
        &mut self.jobs
    }

    /// Returns what a queue deserves by the rules, as of the last cycle.
    #[must_use]
    pub fn deserved(&self, queue: QueueId) -> Option<&Amounts> {
        self.tiers.deserved(queue)
    }

    /// Returns the dated reservations as of the last cycle, by job.
    pub fn reservations(&self) -> impl Iterator<Item = &DatedReservation> {
        self.reservations.values()
    }

    /// Returns the fair share of each queue of a kind by YARN's computation: the queues of a parent divide its share by
    /// weight, each between its guarantee and its capability. `active` leaves out queues that use nothing and ask for
    /// nothing; they have no share then (YARN's instantaneous share, otherwise its steady share).
    #[must_use]
    pub fn fair_shares(&self, dim: Dim, active: bool) -> Vec<i64> {
        let queues: Vec<_> = self.jobs.queues().collect();
        let mut shares = vec![0; queues.len()];
        shares[0] = self.total.get(dim);
        for (id, queue) in &queues {
            // What is being released is still in use.
            let is_active = |child: &&QueueId| {
                let usage = self.jobs.queue(**child).usage();
                !active || !usage.request().is_zero() || !usage.releasing.is_zero()
            };
            let children: Vec<QueueId> = queue.children().iter().filter(is_active).copied().collect();
            let bounds = |child: &QueueId| {
                let spec = self.jobs.queue(*child).spec();
                let most = spec.capability.get(dim).unwrap_or(i64::MAX);
                FairShare { weight: spec.weight, least: spec.guarantee.get(dim), most }
            };
            let bounds: Vec<FairShare> = children.iter().map(bounds).collect();
            let divided = fair_shares(shares[id.0 as usize], &bounds);
            for (child, share) in children.iter().zip(divided) {
                shares[child.0 as usize] = share;
            }
        }
        shares
    }

    /// Runs one cycle on the newest views. Returns the statements to commit, in order.
    pub fn run(&mut self, now: Time) -> CycleReport {
        for replica in &mut self.replicas {
            replica.sync();
        }
        let has_overruns = self.jobs.ends(None).next().is_some_and(|(end, _)| end <= now);
        if self.settled.is_some() && self.settled == self.state() && !has_overruns {
            return CycleReport::default();
        }
        self.sum_up();
        let facts = Facts { jobs: &self.jobs, total: &self.total, now };
        self.tiers.open(facts);
        let config = Arc::clone(&self.config);
        let mut cycle =
            Cycle::new(&mut self.jobs, &mut self.replicas, &mut self.tiers, &self.total, &config, now);
        let before = std::mem::take(&mut self.reservations);
        cycle.open_reservations(before.clone());
        cycle.end_overruns();
        cycle.place_waiting();
        for action in &config.actions {
            match action {
                Action::Enqueue => cycle.enqueue(),
                Action::Allocate => cycle.allocate_all(),
                Action::Backfill => cycle.backfill(),
                Action::Preempt => cycle.preempt_all(),
                Action::Reclaim => cycle.reclaim_all(),
            }
        }
        self.reservations = cycle.close_reservations();
        let report = cycle.end();
        let are_kept = before.len() == self.reservations.len()
            && before.values().zip(self.reservations.values()).all(|(a, b)| a.says_the_same_as(b));
        let is_settled = report.plans.is_empty() && report.admitted == 0 && are_kept;
        self.settled = if is_settled { self.state() } else { None };
        report
    }

    /// Returns what decisions depend on. `None`: they also depend on time.
    fn state(&self) -> Option<Settled> {
        if self.config.depends_on_time() {
            return None;
        }
        let views = self.replicas.iter().map(Replica::sequence).collect();
        Some(Settled { changes: self.jobs.changes(), views })
    }

    /// Sums up the capacity of all nodes that take work, if nodes have changed.
    fn sum_up(&mut self) {
        let shape = self.replicas.iter().map(Replica::shape).sum();
        if self.total_of == Some(shape) {
            return;
        }
        self.total_of = Some(shape);
        let mut sums: Vec<i64> = Vec::new();
        let mut add = |dim: Dim, amount: i64| {
            if sums.len() <= dim.0 {
                sums.resize(dim.0 + 1, 0);
            }
            sums[dim.0] = sums[dim.0].saturating_add(amount);
        };
        for spec in self.replicas.iter().flat_map(|replica| replica.shard().ready_specs()) {
            add(Dim::CPU, spec.cpu.units());
            add(Dim::MEMORY, spec.memory.units());
            add(Dim::GPU, i64::from(spec.gpus) * i64::from(crate::resource::GPU_UNIT));
            let custom: &[(ResourceId, _)] = spec.custom.as_deref().unwrap_or(&[]);
            custom.iter().for_each(|&(id, amount)| add(Dim::of(ResourceKind::Custom(id)), amount.units()));
        }
        self.total = (0..).map(Dim).zip(sums).collect();
    }

    /// Takes over what the shards granted of a plan. `visible_from` is the first view that shows it. Returns the tasks
    /// that are bound now, each with its node.
    ///
    /// # Panics
    /// If something was granted that the plan does not have.
    pub fn committed(
        &mut self,
        plan: &Plan,
        granted: &[(u16, Granted)],
        visible_from: u64,
        now: Time,
    ) -> Vec<(TaskId, NodeId)> {
        for (operation, granted) in granted {
            let step = &plan.tasks[usize::from(*operation)];
            match granted {
                Granted::Allocated(placement) => {
                    // A claim whose capacity is free already is granted at once.
                    if self.jobs.task(step.task).state == TaskState::Pipelined {
                        self.jobs.set(step.task, TaskState::Allocated, Some(placement.node), now);
                    }
                    self.jobs.set_allocation(step.task, placement.allocation);
                }
                Granted::Pipelined { allocation, .. } => self.jobs.set_allocation(step.task, *allocation),
                Granted::Releasing { .. } => {}
                Granted::Ended(_) => self.jobs.end_releasing(step.task, now),
            }
            if let Some(key) = step.key {
                self.replicas[step.shard].granted(step.slot, key, visible_from);
            }
        }
        let mut jobs: Vec<JobId> = plan.tasks.iter().map(|step| step.task.job).collect();
        jobs.sort_unstable();
        jobs.dedup();
        jobs.into_iter().flat_map(|job| self.bind(job, now)).collect()
    }

    /// Takes back a plan that the shards did not commit.
    pub fn aborted(&mut self, plan: &Plan) {
        for step in plan.tasks.iter().rev() {
            self.jobs.restore(step.task, &step.before);
            if let Some(key) = step.key {
                self.replicas[step.shard].give_up(step.slot, &[key]);
            }
        }
    }

    /// Binds the allocated tasks of a job if it has what it needs, and returns them with their nodes. The control plane
    /// is told of them.
    pub(crate) fn bind(&mut self, id: JobId, now: Time) -> Vec<(TaskId, NodeId)> {
        let facts = Facts { jobs: &self.jobs, total: &self.total, now };
        if !self.tiers.is_ready(facts, id) {
            return Vec::new();
        }
        let tasks = (0..).zip(self.jobs.job(id).tasks());
        let allocated = tasks.filter(|(_, task)| task.state == TaskState::Allocated);
        let bound: Vec<(TaskId, NodeId)> =
            allocated.filter_map(|(index, task)| Some((TaskId { job: id, index }, task.node?))).collect();
        for &(task, node) in &bound {
            self.jobs.set(task, TaskState::Bound, Some(node), now);
        }
        if !bound.is_empty() {
            self.jobs.set_phase(id, JobPhase::Running);
        }
        bound
    }
}
