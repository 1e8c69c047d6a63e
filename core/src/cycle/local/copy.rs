//! Copies of a cluster to try things on, and changes of its nodes that only a trial makes.

use std::sync::Arc;

use super::{LocalCluster, LocalSettings};
use crate::broken::Broken;
use crate::cycle::{CycleConfig, CycleConfigError};
use crate::ids::{Incarnation, NodeId};
use crate::jobs::{JobsRecord, RunTimes, TaskId};
use crate::node::{LifeEvent, NodeSpec};
use crate::replica::Replica;
use crate::shard::{Command, Outcome, Shard, ShardConfig};
use crate::state::PartitionState;
use crate::time::Time;
use crate::view::View;

/// The start of what a copy allocates. No start of a store has it.
const COPY: Incarnation = Incarnation(u32::MAX);

/// The reason why no cluster is made of what was recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The settings of cycles.
    #[error(transparent)]
    Config(#[from] CycleConfigError),
    /// The jobs.
    #[error("the recorded jobs contradict each other: {0}")]
    Jobs(#[from] Broken),
}

impl LocalCluster {
    /// Creates a cluster with all that `partitions` have, and the jobs of `record`. What it allocates has ids of its own.
    ///
    /// # Errors
    /// The first fault in the settings or the records of jobs.
    ///
    /// # Panics
    /// If the partitions contradict each other.
    pub(crate) fn of_records(
        config: CycleConfig,
        settings: LocalSettings,
        partitions: Vec<PartitionState>,
        record: JobsRecord,
        now: Time,
    ) -> Result<Self, CopyError> {
        let incarnation = COPY;
        let ids = partitions.iter().map(|partition| partition.id).collect();
        let shard = ShardConfig { incarnation, partitions: ids, ..settings.shard };
        let settings = LocalSettings { shard, ..settings };
        let mut shard = settings.make(Shard::new);
        let nodes = partitions.iter().flat_map(|partition| &partition.nodes);
        let last = nodes.map(|node| node.registration.ordinal.0.max(node.registration.id.0)).max();
        shard.adopt(partitions);
        let mut cluster = Self::over(config, settings, shard)?;
        cluster.nodes = last.unwrap_or(0);
        cluster.now = now;
        let jobs = cluster.scheduler.jobs_mut();
        jobs.adopt(record, now)?;
        let tasks = jobs.jobs().flat_map(|(job, of)| {
            let with_ids = (0..).zip(of.tasks()).map(move |(index, task)| (TaskId { job, index }, task));
            with_ids.filter_map(|(id, task)| Some((task.allocation?, id)))
        });
        cluster.tasks = tasks.collect();
        Ok(cluster)
    }

    /// Returns a copy, with what runs and waits. What cycles remember about earlier ones is not copied.
    ///
    /// # Panics
    /// If the copy is of another state: a broken invariant.
    #[must_use]
    pub fn copy(&self) -> Self {
        let partitions = self.shard.export().partitions;
        let config = self.scheduler.config().clone();
        let record = self.scheduler.jobs().record();
        let copy = Self::of_records(config, self.settings.clone(), partitions, record, self.now);
        let mut copy = copy.expect("what a cluster has can be copied");
        copy.set_run_times(self.scheduler.jobs().run_times().clone());
        copy
    }

    /// Takes over how long tasks have run, as others have measured it.
    pub(crate) fn set_run_times(&mut self, run_times: RunTimes) {
        self.scheduler.jobs_mut().set_run_times(run_times);
    }

    /// Returns another replica of the shard, which the caller brings up to date.
    pub(crate) fn replica(&self) -> Replica {
        Replica::new(self.settings.make(Shard::replica), self.reader.clone())
    }

    /// Returns a cluster without nodes and jobs whose shard has the same settings.
    pub(crate) fn empty(&self) -> Self {
        let settings = self.settings.clone();
        let shard = settings.make(Shard::new);
        Self::over(CycleConfig::default(), settings, shard).expect("the default settings are right")
    }

    /// Gives no node the id of one of another cluster, from now on.
    pub(crate) fn skip_ids_of(&mut self, other: &Self) {
        self.nodes = self.nodes.max(other.nodes);
    }

    /// Returns the settings of its shard.
    #[cfg(test)]
    pub(crate) fn settings(&self) -> &LocalSettings {
        &self.settings
    }

    /// Places a request that is no task. Returns whether it fits.
    #[cfg(test)]
    pub(crate) fn place_direct(&mut self, request: crate::request::PlacementRequest) -> bool {
        matches!(self.step(Command::Place(request)), Outcome::Place(Ok(_)))
    }

    /// Publishes all that has changed, for replicas.
    pub(crate) fn publish(&mut self) {
        self.shard.publish_view();
    }

    /// Returns the cluster as it is now.
    pub fn view(&mut self) -> Arc<View> {
        self.publish();
        self.reader.read_until(self.reader.due())
    }

    /// Changes the spec of a node.
    ///
    /// # Panics
    /// If there is no such node.
    pub(crate) fn update_node(&mut self, node: NodeId, spec: NodeSpec) {
        let outcome = self.step(Command::UpdateNode(node, Box::new(spec)));
        assert!(matches!(outcome, Outcome::Node(Ok(_))), "a node cannot be changed: {outcome:?}");
    }

    /// Removes a node on which nothing is.
    ///
    /// # Panics
    /// If something is there.
    pub(crate) fn remove_node(&mut self, node: NodeId) {
        let outcome = self.step(Command::RemoveNode { node, force: false });
        assert!(matches!(outcome, Outcome::Node(Ok(_))), "an empty node is not removed: {outcome:?}");
    }

    /// Lets a node take no new work, or lets it take work again.
    ///
    /// # Panics
    /// If there is no such node, or if it is not ready or draining.
    pub(crate) fn set_draining(&mut self, node: NodeId, draining: bool) {
        let event = if draining { LifeEvent::Drain } else { LifeEvent::Undrain };
        let outcome = self.step(Command::Life(node, event));
        assert!(matches!(outcome, Outcome::Node(Ok(_))), "a node cannot be drained: {outcome:?}");
    }
}
