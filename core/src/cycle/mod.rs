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
//! | `plugin`, `plugins`, `agree` | the rules, and how tiers of them decide together |
//! | `turns` | whose turn it is, at each level of the hierarchy |
//! | `trial` | changes that can be undone exactly |
//! | `spots`, `victims`, `trim` | which tasks to evict on which node |
//! | `dated` | dated reservations, and limits of run times |
//! | `whole_gangs` | evicting running gangs as a whole, by configuration |
//! | `signature` | jobs that wait for the same: evictions are tried for one of them |
//! | `topology` | jobs whose tasks are to be in one domain of the cluster |
//! | `parked` | classes of tasks that wait until a change could help them |
//! | `orders` | orders that change as time passes |
//! | `shares`, `starvation` | the fair shares of jobs, and who has been below them for too long |
//! | `reason`, `explain` | what is noted about jobs that wait, and what is told of it |
//! | `enqueue`, `allocate`, `backfill`, `preempt`, `reclaim`, `starve` | the actions |
//! | `best_effort` | what gangs need of tasks that ask for nothing |
//! | `direct` | tasks that are placed outside of cycles |
//! | `groups` | placement groups that wait in queues |
//! | `evictions` | whether those for whom tasks were evicted got what these gave up |
//! | `local` | a shard and its cycles in one thread, for scenarios and measurements |

mod agree;
mod allocate;
mod backfill;
mod best_effort;
mod config;
mod dated;
mod direct;
mod enqueue;
mod evictions;
mod explain;
mod groups;
mod heap;
mod job_turns;
mod limit;
mod local;
mod orders;
mod parked;
mod plugin;
mod plugins;
mod preempt;
mod reason;
mod reclaim;
mod report;
mod shares;
mod signature;
mod spots;
mod starts;
mod starvation;
mod starve;
#[cfg(test)]
mod tests;
mod topology;
mod trial;
mod trim;
mod turns;
mod victims;
mod whole_gangs;

pub use config::{
    Action, Backfill, Combination, CycleConfig, CycleConfigError, Decision, PluginConfig, PluginKind,
};
pub use dated::DatedReservation;
pub(crate) use direct::PlacedNow;
pub use evictions::Evictions;
pub(crate) use explain::Explaining;
pub(crate) use groups::{GroupPlan, GroupPlans, PlacedBundle};
pub use local::{Changes, CopyError, LocalCluster, LocalError, LocalSettings};
pub use report::{CycleReport, Plan, PlannedTask};
pub use starvation::Starving;

use std::sync::Arc;

use crate::fairness::{Amounts, Dim};
use crate::ids::{NodeId, ResourceId};
use crate::jobs::{JobId, JobPhase, Jobs, NodeDomains, PendingReason, QueueId, TaskId, TaskState};
use crate::limits::ORDERS_LOOKED_AT_NS;
use crate::replica::Replica;
use crate::resource::ResourceKind;
use crate::statement::{Applied, Granted};
use crate::time::Time;
use dated::Reservations;
use explain::CountedClass;
use groups::NoGroups;
use orders::Orders;
use parked::Parked;
use plugin::{Counted, Facts, Tiers};
use reason::LastTries;
use shares::JobShares;
use spots::SpotTable;
use starvation::Starvation;
use topology::{Rooms, Tree, path_of};
use trial::{Cluster, Cycle};

/// Runs cycles over its jobs and replicas.
pub struct Scheduler {
    jobs: Jobs,
    replicas: Vec<Replica>,
    config: Arc<CycleConfig>,
    /// What says in which domains of the topology nodes are.
    domains: Arc<NodeDomains>,
    tiers: Tiers,
    /// The dated reservations as of the last cycle.
    reservations: Reservations,
    /// The capacity of all nodes that take work, and the shape of the nodes when it was summed up.
    total: Amounts,
    total_of: Option<u64>,
    /// All nodes in domains, as of the same shape.
    tree: Arc<Tree>,
    /// How many tasks have room on these nodes.
    rooms: Rooms,
    /// The state after which a cycle changed nothing: another one on the same state changes nothing either.
    settled: Option<Settled>,
    starvation: Starvation,
    /// What the last cycle that looked at anything noted about jobs that wait, and when it ran.
    tries: LastTries,
    ran: Time,
    /// The number of cycles that looked at anything.
    cycles: u64,
    /// Where tasks may be evicted, as of the last action that evicts.
    spots: SpotTable,
    /// The classes of tasks that are not searched for until a change could help them.
    parked: Parked,
    /// The nodes as they were counted last for an explanation.
    counted: Option<CountedClass>,
    /// The shard that the next task outside of cycles is tried in first.
    next_shard: usize,
}

/// What the decisions of a cycle depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    changes: u64,
    views: Vec<u64>,
}

/// A state after which a cycle changed nothing, and until when that holds. `None`: until it changes.
struct Settled {
    state: State,
    until: Option<Time>,
    /// Orders that time may change, with when they are looked at again.
    orders: Option<(Orders, Time)>,
}

impl Settled {
    /// Returns when something may be otherwise, or is to be looked at.
    fn due(&self) -> Option<Time> {
        self.until.into_iter().chain(self.orders.as_ref().map(|&(_, look)| look)).min()
    }
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
        let mut jobs = Jobs::new();
        jobs.set_tiers(config.topology.clone());
        let domains = Arc::new(NodeDomains::new(&config.topology, &config.domains));
        jobs.count_past(config.usage_half_life_ns, config.plugin(PluginKind::Usage).is_some());
        Ok(Self {
            jobs,
            replicas,
            config: Arc::new(config),
            domains,
            tiers,
            reservations: Reservations::new(),
            total,
            total_of: None,
            tree: Arc::default(),
            rooms: Rooms::default(),
            settled: None,
            starvation: Starvation::default(),
            tries: LastTries::default(),
            ran: Time::default(),
            cycles: 0,
            spots: SpotTable::default(),
            parked: Parked::default(),
            counted: None,
            next_shard: 0,
        })
    }

    /// Returns the jobs.
    #[must_use]
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Returns its settings.
    #[must_use]
    pub fn config(&self) -> &CycleConfig {
        &self.config
    }

    /// Returns what says in which domains of the topology nodes are.
    pub(crate) fn domains(&self) -> &Arc<NodeDomains> {
        &self.domains
    }

    pub(crate) fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    pub(crate) fn replicas_mut(&mut self) -> &mut [Replica] {
        &mut self.replicas
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

    /// Returns why the rules about shares gave the placeholder of a group nothing in the last cycle, if they did not.
    pub(crate) fn share_in_the_way(&self, placeholder: JobId) -> Option<PendingReason> {
        let share = self
            .tries
            .of(placeholder)
            .map(|tried| tried.cause)
            .filter(|cause| *cause == PendingReason::Share);
        let is_overused = self.tries.is_overused(self.jobs.job(placeholder).spec().queue);
        if is_overused { Some(PendingReason::Overused) } else { share }
    }

    /// Returns the dated reservations as of the last cycle, by job.
    pub fn reservations(&self) -> impl Iterator<Item = &DatedReservation> {
        self.reservations.values()
    }

    /// Returns the path of the domain of a node: its values in all tiers, the widest first (`z1/b2/r3`), and `-` for a tier
    /// in which it has none. `None`: it has no value in any tier.
    #[must_use]
    pub fn domain_path(&self, node: NodeId) -> Option<Arc<str>> {
        let of =
            |replica: &Replica| Some(path_of(&self.domains, replica.spec(replica.shard().slot_of(node)?)?));
        if self.config.topology.is_empty() { None } else { self.replicas.iter().find_map(of)? }
    }

    /// Returns the fair share of each queue of a kind by YARN's computation: the queues of a parent divide its share by
    /// weight, each between its guarantee and its capability. `active` leaves out queues that use nothing and ask for
    /// nothing; they have no share then (YARN's instantaneous share, otherwise its steady share).
    #[must_use]
    pub fn fair_shares(&self, dim: Dim, active: bool) -> Vec<i64> {
        shares::of_queues(&self.jobs, &self.total, dim, active)
    }

    /// Returns the fair share of a job by YARN's computation: its part of the share of its queue.
    #[must_use]
    pub fn job_fair_share(&self, job: JobId) -> Amounts {
        JobShares::new(&self.jobs, &self.total).of(&self.jobs, job)
    }

    /// Returns the jobs that starved in the last cycle, with how much. A job is looked at again only when what was
    /// planned for it had time to happen.
    #[must_use]
    pub fn starving(&self) -> &[Starving] {
        &self.starvation.found
    }

    /// Returns the number of cycles so far that looked at anything. One on a state that is settled does not.
    #[must_use]
    pub fn cycles(&self) -> u64 {
        self.cycles
    }

    /// Brings the replicas up to the newest views.
    fn sync(&mut self) {
        for replica in &mut self.replicas {
            replica.sync();
        }
    }

    /// Runs one cycle on the newest views. Returns the statements to commit, in order.
    pub fn run(&mut self, now: Time) -> CycleReport {
        self.run_with_groups(&mut NoGroups, now)
    }

    /// Runs one cycle, in which groups that wait have turns. A plan for one, whose job is a
    /// [placeholder](crate::jobs::JobId::is_placeholder), says where its bundles are to be placed. It is [taken back](Self::take_back) when the group is placed by a statement of its own.
    pub(crate) fn run_with_groups(&mut self, groups: &mut dyn GroupPlans, now: Time) -> CycleReport {
        self.sync();
        if self.is_settled(now) {
            let due = self.settled.as_ref().and_then(Settled::due);
            return CycleReport { due, ..CycleReport::default() };
        }
        self.cycles += 1;
        self.sum_up();
        let facts = Facts { jobs: &self.jobs, total: &self.total, now, shares: None };
        self.tiers.open(facts);
        let config = Arc::clone(&self.config);
        let mut cycle = Cycle::new(
            &mut self.jobs,
            &mut self.replicas,
            &mut self.tiers,
            Cluster { total: &self.total, tree: &self.tree },
            &mut self.starvation,
            (&config, groups),
            now,
        );
        cycle.tries = std::mem::take(&mut self.tries);
        cycle.tries.clear();
        cycle.spots = std::mem::take(&mut self.spots);
        cycle.parked = std::mem::take(&mut self.parked);
        cycle.open_rooms(std::mem::take(&mut self.rooms));
        let before = std::mem::take(&mut self.reservations);
        cycle.open_reservations(before.clone());
        cycle.look_at_starts_again();
        cycle.end_overruns();
        cycle.place_waiting();
        if !config.actions.contains(&Action::Enqueue) {
            cycle.admit_all();
        }
        for action in &config.actions {
            match action {
                Action::Enqueue => cycle.enqueue(),
                Action::Allocate => cycle.allocate_all(),
                Action::Backfill => cycle.backfill(),
                Action::Preempt => cycle.preempt_all(),
                Action::Reclaim => cycle.reclaim_all(),
                Action::Starve => cycle.starve_all(),
            }
        }
        cycle.give_up_starts();
        self.reservations = cycle.close_reservations();
        self.tries = std::mem::take(&mut cycle.tries);
        self.spots = std::mem::take(&mut cycle.spots);
        self.parked = std::mem::take(&mut cycle.parked);
        self.rooms = cycle.close_rooms();
        let mut report = cycle.end();
        self.ran = now;
        let are_kept = before.len() == self.reservations.len()
            && before.values().zip(self.reservations.values()).all(|(a, b)| a.says_the_same_as(b));
        // After a cycle that found starving jobs, the next one finds that it is too early to look at them again.
        let is_settled =
            report.plans.is_empty() && report.admitted == 0 && are_kept && self.starvation.found.is_empty();
        self.settled = is_settled.then(|| self.settle(report.due, now));
        if let Some(settled) = &self.settled {
            report.due = settled.due();
        }
        report
    }

    /// Notes that a cycle changed nothing, and until when none will.
    fn settle(&self, due: Option<Time>, now: Time) -> Settled {
        let facts = Facts { jobs: &self.jobs, total: &self.total, now, shares: None };
        let until = due.into_iter().chain(self.tiers.due(facts)).min();
        // Where nothing is placed, the order of queues and jobs matters to who gets a reservation only.
        let reorders =
            self.config.backfill != Backfill::None && self.config.plugin(PluginKind::Usage).is_some();
        let orders = reorders.then(|| Orders::of_waiting(&self.tiers, facts)).filter(Orders::can_change);
        let look = now.plus_nanos(ORDERS_LOOKED_AT_NS);
        Settled { state: self.state(), until, orders: orders.map(|orders| (orders, look)) }
    }

    /// Returns whether another cycle changes nothing: the state is the same, and so are orders that time may change.
    fn is_settled(&mut self, now: Time) -> bool {
        let state = self.state();
        let Some(settled) = &mut self.settled else { return false };
        if settled.until.is_some_and(|until| now >= until) || settled.state != state {
            return false;
        }
        let Some((orders, look)) = &mut settled.orders else { return true };
        if now < *look {
            return true;
        }
        *look = now.plus_nanos(ORDERS_LOOKED_AT_NS);
        let facts = Facts { jobs: &self.jobs, total: &self.total, now, shares: None };
        self.tiers.open_timed(facts);
        *orders == Orders::of_waiting(&self.tiers, facts)
    }

    fn state(&self) -> State {
        let views = self.replicas.iter().map(Replica::sequence).collect();
        State { changes: self.jobs.changes(), views }
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
        self.tree = Arc::new(Tree::new(&self.domains, &self.replicas));
        self.rooms.clear();
        self.counted = None;
    }

    /// Takes over what each shard granted of a plan. Returns the tasks that are bound now, each with its node.
    ///
    /// # Panics
    /// If something was granted that the plan does not have.
    pub fn committed(&mut self, plan: &Plan, applied: &[Applied], now: Time) -> Vec<(TaskId, NodeId)> {
        let granted = applied.iter().flat_map(|of_shard| {
            of_shard.granted.iter().map(|(operation, granted)| (operation, granted, of_shard.visible_from))
        });
        for (operation, granted, visible_from) in granted {
            let step = &plan.tasks[usize::from(*operation)];
            assert!(
                step.operation.is_some(),
                "task {} was granted what the plan does not ask for",
                step.task
            );
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
                Granted::Ended(_) => self.jobs.task_lost(step.task, now),
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

    /// Returns whether shards have granted what a job needs to start.
    pub(crate) fn has_what_it_needs(&self, id: JobId) -> bool {
        self.tiers.is_ready(self.present(), id, Counted::Granted)
    }

    /// Makes tasks and replicas what they were before a plan that the shards did not commit.
    pub(crate) fn take_back(&mut self, plan: &Plan) {
        for step in plan.tasks.iter().rev() {
            self.jobs.restore(step.task, &step.before);
            if let Some(key) = step.key {
                self.replicas[step.shard].give_up(step.slot, &[key]);
            }
        }
    }

    /// Takes back a plan of a cycle that the shards did not commit. Its jobs are looked at again.
    pub fn aborted(&mut self, plan: &Plan) {
        self.take_back(plan);
        for step in &plan.tasks {
            self.starvation.look_again(step.task.job);
            self.tries.note(step.task.job, PendingReason::Conflict);
        }
    }

    /// Binds the allocated tasks of a job if it has what it needs, and returns them with their nodes. The control plane
    /// is told of them.
    pub(crate) fn bind(&mut self, id: JobId, now: Time) -> Vec<(TaskId, NodeId)> {
        let phase = self.jobs.job(id).phase();
        // A policy may have decided about the job while its tasks were placed.
        let is_over = phase.is_end() || phase == JobPhase::Restarting;
        // What other plans have placed is not granted yet, and may never be.
        if is_over || !self.has_what_it_needs(id) {
            return Vec::new();
        }
        let tasks = (0..).zip(self.jobs.job(id).tasks());
        let allocated = tasks.filter(|(_, task)| task.state == TaskState::Allocated && !task.is_planned());
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
