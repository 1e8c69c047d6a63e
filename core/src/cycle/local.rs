//! A shard and its cycles in one thread, in virtual time.
//!
//! The shard is the one that serves, the replica follows its views, and plans are committed as statements. Scenarios,
//! measurements and tests run cycles here.

mod copy;

pub use copy::CopyError;

use std::sync::Arc;

use super::{CycleConfig, CycleConfigError, CycleReport, Plan, Scheduler};
use crate::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, ShardId, StatementId};
use crate::index::Geometry;
use crate::jobs::{JobExplanation, JobId, JobPhase, TaskId, TaskState};
use crate::limits::ALLOCATIONS_PER_NODE_DEFAULT;
use crate::map::FixedMap;
use crate::node::{NodeRegistration, NodeSpec};
use crate::replica::Replica;
use crate::reply::reply_of;
use crate::request::PlacementRequest;
use crate::shard::{
    ClaimEvent, Command, HybridSettings, NodeChange, NodeRejection, Outcome, Shard, ShardConfig,
};
use crate::statement::{Applied, CommitMode, ConflictDetection, Evict, Operation, Part};
use crate::time::Time;
use crate::view::ViewReader;

/// An error of what was asked of a local cluster. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocalError {
    /// The shard refuses the node.
    #[error("the node is refused: {0:?}")]
    Node(NodeRejection),
    /// A task does not fit on the node where it is said to run.
    #[error("task {task} does not fit on node {node}: give the node more capacity, or the task another node")]
    DoesNotFit {
        /// The task.
        task: TaskId,
        /// The node.
        node: NodeId,
    },
}

/// What changed in one cycle or in some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The tasks that were bound, each with its node, in order.
    pub bound: Vec<(TaskId, NodeId)>,
    /// The tasks that have claims, each with its node.
    pub pipelined: Vec<(TaskId, NodeId)>,
    /// The tasks that were evicted.
    pub evicted: Vec<TaskId>,
    /// The statements that the shard did not commit.
    pub aborted: usize,
}

/// The settings of the shard of a cluster, and of each replica of it.
#[derive(Clone, Debug)]
pub struct LocalSettings {
    /// The shard.
    pub shard: ShardConfig,
    /// The most allocations of a node.
    pub allocations_per_node_max: u16,
}

impl LocalSettings {
    /// Creates the shard or a replica of it, without nodes.
    fn make(&self, make: fn(ShardConfig) -> Shard) -> Shard {
        let mut shard = make(self.shard.clone());
        shard.set_allocations_per_node_max(self.allocations_per_node_max);
        shard
    }
}

/// A shard and a scheduler.
pub struct LocalCluster {
    settings: LocalSettings,
    shard: Shard,
    reader: ViewReader,
    scheduler: Scheduler,
    nodes: u64,
    statements: u64,
    now: Time,
    /// The task of each allocation and claim.
    tasks: FixedMap<AllocationId, TaskId>,
}

impl LocalCluster {
    /// Creates a cluster without nodes.
    ///
    /// # Errors
    /// The first fault in the settings.
    pub fn new(config: CycleConfig, seed: u64) -> Result<Self, CycleConfigError> {
        let shard = ShardConfig {
            shard: ShardId(0),
            incarnation: Incarnation(1),
            partitions: vec![PartitionId(0)],
            geometry: Geometry::default(),
            seed,
            hybrid: HybridSettings::default(),
        };
        let settings = LocalSettings { shard, allocations_per_node_max: ALLOCATIONS_PER_NODE_DEFAULT };
        let shard = settings.make(Shard::new);
        Self::over(config, settings, shard)
    }

    /// Creates a cluster over a shard, without jobs.
    fn over(
        config: CycleConfig,
        settings: LocalSettings,
        mut shard: Shard,
    ) -> Result<Self, CycleConfigError> {
        let reader = shard.enable_views();
        let replica = Replica::new(settings.make(Shard::replica), reader.clone());
        let scheduler = Scheduler::new(config, vec![replica])?;
        let tasks = FixedMap::default();
        Ok(Self { settings, shard, reader, scheduler, nodes: 0, statements: 0, now: Time(0), tasks })
    }

    /// Returns the scheduler.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Returns the scheduler, to submit to.
    pub fn scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// Returns the shard.
    #[must_use]
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Returns the time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    fn step(&mut self, command: Command) -> Outcome {
        let mut outcomes = Vec::new();
        self.shard.step([command], self.now, &mut outcomes);
        while self.shard.is_behind() {
            self.shard.step([Command::GoOn], self.now, &mut outcomes);
        }
        outcomes.swap_remove(0)
    }

    /// Adds a node without an agent. It takes work at once.
    ///
    /// # Errors
    /// The reason why the shard refuses it.
    pub fn add_node(&mut self, spec: NodeSpec) -> Result<NodeId, LocalError> {
        let id = NodeId(self.nodes + 1);
        let partition = self.settings.shard.partitions[0];
        let registration = NodeRegistration { id, ordinal: Ordinal(id.0), partition, spec, agent: None };
        let change: Result<NodeChange, NodeRejection> =
            reply_of(self.step(Command::AddNode(Box::new(registration))));
        change.map_err(LocalError::Node)?;
        self.nodes += 1;
        Ok(id)
    }

    /// Has a pending task run on a node.
    ///
    /// # Errors
    /// It does not fit there.
    pub fn run_on(&mut self, task: TaskId, node: NodeId, state: TaskState) -> Result<(), LocalError> {
        assert!(state.holds(), "a task that runs holds its capacity");
        let class = Arc::clone(&self.scheduler.jobs().task(task).class);
        let request = PlacementRequest { candidates: Some([node].into()), ..(*class.request).clone() };
        let Outcome::Place(Ok(placement)) = self.step(Command::Place(request)) else {
            return Err(LocalError::DoesNotFit { task, node });
        };
        let jobs = self.scheduler.jobs_mut();
        jobs.set(task, state, Some(node), self.now);
        jobs.set_allocation(task, placement.allocation);
        jobs.set_phase(task.job, JobPhase::Running);
        self.tasks.insert(placement.allocation, task);
        Ok(())
    }

    /// Runs one cycle and commits what it planned.
    pub fn cycle(&mut self) -> (CycleReport, Changes) {
        let report = self.plan();
        let changes = self.commit(&report);
        (report, changes)
    }

    /// Runs one cycle. Its plans must be [committed](Self::commit) before anything else changes.
    pub fn plan(&mut self) -> CycleReport {
        self.shard.publish_view();
        self.scheduler.run(self.now)
    }

    /// Explains why a job, or a task of it, waits.
    ///
    /// # Panics
    /// If there is no such job or task.
    pub fn explain(&mut self, job: JobId, task: Option<u32>) -> JobExplanation {
        self.shard.publish_view();
        self.scheduler.sync();
        self.scheduler.explain(job, task)
    }

    /// Commits what a cycle planned.
    pub fn commit(&mut self, report: &CycleReport) -> Changes {
        let mut changes = Changes::default();
        for plan in &report.plans {
            self.commit_plan(plan, &mut changes);
        }
        self.end_jobs(&mut changes);
        changes
    }

    /// Ends the tasks of jobs whose policies have decided so, and gives up starts.
    fn end_jobs(&mut self, changes: &mut Changes) {
        let grace_ns = self.scheduler.config().grace_ns;
        for job in self.scheduler.jobs_mut().take_ending() {
            let end = self.scheduler.jobs_mut().end_job(job, grace_ns, false, self.now);
            for (_, allocation) in end.released {
                self.tasks.remove(&allocation);
                self.step(Command::Release(allocation));
            }
            for (task, allocation) in end.evicted {
                self.evict_allocation(allocation, grace_ns);
                changes.evicted.push(task);
            }
        }
        self.take_claim_events(changes);
    }

    /// Commits a plan as one statement, or takes it back.
    fn commit_plan(&mut self, plan: &Plan, changes: &mut Changes) {
        let operations: Vec<_> =
            plan.operations().map(|(index, operation)| (index, operation.clone())).collect();
        let mut granted = Vec::new();
        if !operations.is_empty() {
            let Some(applied) = self.apply(operations).filter(|applied| applied.conflicts.is_empty()) else {
                changes.aborted += 1;
                self.scheduler.aborted(plan);
                return;
            };
            granted.push(*applied);
        }
        for step in &plan.tasks {
            match self.scheduler.jobs().task(step.task).state {
                TaskState::Releasing => changes.evicted.push(step.task),
                TaskState::Pipelined => changes.pipelined.push((step.task, step.node)),
                _ => {}
            }
        }
        let bound = self.scheduler.committed(plan, &granted, self.now);
        changes.bound.extend(bound);
        for step in &plan.tasks {
            if let Some(allocation) = self.scheduler.jobs().task(step.task).allocation {
                self.tasks.insert(allocation, step.task);
            }
        }
        self.take_claim_events(changes);
    }

    /// Follows claims that were granted or ended.
    fn take_claim_events(&mut self, changes: &mut Changes) {
        let events: Vec<ClaimEvent> = self.shard.drain_claim_events().collect();
        for event in events {
            match event {
                ClaimEvent::Granted(placement) => {
                    let Some(&task) = self.tasks.get(&placement.allocation) else { continue };
                    let jobs = self.scheduler.jobs_mut();
                    jobs.set(task, TaskState::Allocated, Some(placement.node), self.now);
                    changes.bound.extend(self.scheduler.bind(task.job, self.now));
                }
                ClaimEvent::Ended(allocation) => {
                    let Some(task) = self.tasks.remove(&allocation) else { continue };
                    self.scheduler.jobs_mut().task_lost(task, self.now);
                }
            }
        }
    }

    /// Evicts a task that runs. It is releasing for `grace_ns`.
    ///
    /// # Panics
    /// If the task has no allocation.
    pub fn evict(&mut self, task: TaskId, grace_ns: u64) {
        let of = self.scheduler.jobs().task(task);
        let node = of.node;
        let allocation = of.allocation.expect("a task that runs has an allocation");
        assert!(self.evict_allocation(allocation, grace_ns), "a live allocation can be evicted");
        self.scheduler.jobs_mut().set(task, TaskState::Releasing, node, self.now);
    }

    /// Evicts an allocation, and returns whether it was. In a copy of what a service has, somebody else may have evicted it
    /// before: then it ends at its time.
    fn evict_allocation(&mut self, allocation: AllocationId, grace_ns: u64) -> bool {
        let evict = Operation::Evict(Evict { allocation, expected: None, grace_ns });
        let applied = self.apply(vec![(0, evict)]);
        applied.is_some_and(|applied| applied.conflicts.is_empty())
    }

    fn apply(&mut self, operations: Vec<(u16, Operation)>) -> Option<Box<Applied>> {
        self.statements += 1;
        let statement = StatementId { incarnation: Incarnation(1), planner: 0, number: self.statements };
        let part = Part {
            statement,
            operations,
            conflict_detection: ConflictDetection::Fine,
            mode: CommitMode::AllOrNothing,
        };
        match self.step(Command::Apply(Box::new(part))) {
            Outcome::Applied(applied) => applied.ok(),
            other => panic!("a statement is answered by {other:?}"),
        }
    }

    /// Reports that a task has succeeded. Its capacity is free, and policies are applied.
    ///
    /// # Panics
    /// If the task has no allocation.
    pub fn finish_task(&mut self, task: TaskId) -> Changes {
        self.release_task(task);
        self.scheduler.jobs_mut().task_succeeded(task, self.now);
        self.after_report()
    }

    /// Reports that a task has failed, with this exit code. Its capacity is free, and policies are applied.
    ///
    /// # Panics
    /// If the task has no allocation.
    pub fn fail_task(&mut self, task: TaskId, exit_code: Option<i32>) -> Changes {
        self.release_task(task);
        self.scheduler.jobs_mut().task_failed(task, exit_code, self.now);
        self.after_report()
    }

    /// Ends what a task has, as when its node is removed. The task is pending again, and policies are applied.
    ///
    /// # Panics
    /// If the task has neither an allocation nor a claim.
    pub fn lose_task(&mut self, task: TaskId) -> Changes {
        self.release_task(task);
        self.scheduler.jobs_mut().task_lost(task, self.now);
        self.after_report()
    }

    fn after_report(&mut self) -> Changes {
        let mut changes = Changes::default();
        self.take_claim_events(&mut changes);
        self.end_jobs(&mut changes);
        changes
    }

    fn release_task(&mut self, task: TaskId) {
        let allocation =
            self.scheduler.jobs().task(task).allocation.expect("it has an allocation or a claim");
        self.tasks.remove(&allocation);
        self.step(Command::Release(allocation));
    }

    /// Lets time pass. What was evicted ends when its grace period is over. Its tasks are pending again, or have failed,
    /// and policies are applied.
    pub fn advance(&mut self, nanos: u64) -> Changes {
        self.now = self.now.plus_nanos(nanos);
        let mut outcomes = Vec::new();
        self.shard.step([], self.now, &mut outcomes);
        let jobs = self.scheduler.jobs();
        let releasing: Vec<(TaskId, AllocationId)> = jobs
            .releasing_nodes()
            .flat_map(|node| jobs.on_node(node))
            .filter(|&&task| jobs.task(task).state == TaskState::Releasing)
            .filter_map(|&task| Some((task, jobs.task(task).allocation?)))
            .collect();
        for (task, allocation) in releasing {
            if !self.shard.is_releasing(allocation) {
                self.tasks.remove(&allocation);
                self.scheduler.jobs_mut().task_lost(task, self.now);
            }
        }
        self.scheduler.jobs_mut().take_due(self.now);
        self.after_report()
    }
}
