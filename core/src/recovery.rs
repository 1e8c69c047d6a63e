//! Recovery: the durable state, rebuilt from a checkpoint and the units of the journal after it.
//!
//! A checkpoint is read from the shards page by page while they work, so its pages are of different times. The units from
//! the time on at which it began lead from all of them to one state. A unit may therefore be applied to records that
//! show it already.
//!
//! The journal ends anywhere. An effect that several units share is then half there, and nobody was told of it. So
//! [`Rebuild::take_back`] takes back what only a later unit would have made valid: bundles of groups that are not
//! recorded, places of groups that no shard recorded, and what tickets reserved. A bundle that is in its grace period keeps
//! it, also if its group is gone, unless the group was charged to a queue. A task that has ended does not.

mod records;
mod sorted;

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{AllocationId, BundleId, GroupId, Incarnation, NodeId, PartitionId, ShardId};
use crate::index::PolicyState;
use crate::jobs::{JobId, JobRecord, JobsChange, JobsTable, TaskRecord, TaskState};
use crate::journal::{Changes, Effect, NodeNews, NodeRemoved, Unit};
use crate::planted::{PlantedBug, is_planted};
use crate::registrar::RemovedNodes;
use crate::state::{
    BundleRecord, GranularityState, GroupRecord, PartitionState, RegistrarState, RemovedNode, SessionTable,
    ShardState, StoreState,
};
use crate::time::Time;
use crate::view::EndCause;
use records::Records;

/// A journal or a checkpoint that no run of the engine can have written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// The store has fewer partitions.
    #[error("partition {0} is recorded, and the store has {1}")]
    Partition(u16, usize),
    /// A node has no record, and something of it has.
    #[error("node {0} is not recorded, and {1} is")]
    Node(NodeId, String),
    /// An allocation has no record, and something of it has.
    #[error("allocation {0} is not recorded, and {1} is")]
    Allocation(AllocationId, String),
}

/// What recovery took back, because the journal ends before the unit that would have made it valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenBack {
    /// Bundles that were placed, and whose group is not recorded so.
    pub bundles: usize,
    /// Places of bundles that no shard recorded.
    pub places: usize,
    /// Reservations of tickets.
    pub reservations: usize,
}

/// The changes of the books by which something was taken back. The next start records them, so that who follows the
/// changes learns of them.
#[derive(Default)]
struct Undone {
    counts: TakenBack,
    effects: Vec<Effect>,
    /// Nodes of which something was taken back.
    nodes: BTreeSet<(PartitionId, NodeId)>,
    /// Groups of which a place was taken back.
    groups: BTreeSet<GroupId>,
    /// Tasks of which an allocation was taken back.
    tasks: Vec<JobsChange>,
}

/// The global records: everything durable that belongs to no partition.
///
/// No page of a checkpoint shows them, so a checkpoint gets them from the units.
#[derive(Clone)]
pub struct Globals {
    incarnation: Incarnation,
    now: Time,
    next_node: u64,
    resources: Vec<String>,
    unit_instances: Vec<u16>,
    removed: RemovedNodes,
    groups: BTreeMap<GroupId, GroupRecord>,
    jobs: JobsTable,
    sessions: SessionTable,
}

impl Globals {
    /// Takes the records of a state.
    #[must_use]
    pub fn new(state: StoreState) -> Self {
        let StoreState { incarnation, now, registrar, groups, jobs, sessions, .. } = state;
        let RegistrarState { next_node, resources, removed, unit_instances } = registrar;
        let mut kept = RemovedNodes::default();
        removed.into_iter().for_each(|node| kept.keep(node));
        Self {
            incarnation,
            now,
            next_node,
            resources,
            unit_instances,
            removed: kept,
            groups: groups.into_iter().map(|group| (group.id, group)).collect(),
            jobs: JobsTable::new(jobs),
            sessions: SessionTable::new(sessions),
        }
    }

    /// Applies what a unit changes of them.
    pub fn apply(&mut self, unit: &Unit) {
        self.now = self.now.max(unit.now);
        match &unit.changes {
            Changes::Started { incarnation, .. } => self.incarnation = self.incarnation.max(*incarnation),
            Changes::Shard { .. } | Changes::Decided(..) => {}
            Changes::Kinds(resources, unit_instances) => {
                self.resources.clone_from(resources);
                self.unit_instances.clone_from(unit_instances);
            }
            Changes::Groups(groups) => {
                for (id, group) in groups {
                    match group {
                        Some(group) => self.groups.insert(*id, group.clone()),
                        None => self.groups.remove(id),
                    };
                }
            }
            Changes::Jobs(changes) => changes.iter().for_each(|change| self.jobs.apply(change)),
            Changes::Sessions(changes) => changes.iter().for_each(|change| self.sessions.apply(change)),
        }
        // First: a node may be placed on and removed in one unit.
        unit.done.iter().for_each(|done| self.sessions.note(done));
        if let Changes::Shard { effects, .. } = &unit.changes {
            self.keep_names(effects);
            effects.iter().for_each(|effect| self.apply_effect(effect));
        }
    }

    /// Keeps the names of nodes that effects remove, for outcomes that name the nodes. It looks at all outcomes, so it does
    /// so once per unit.
    fn keep_names(&mut self, effects: &[Effect]) {
        // The last name of a node counts, and that must be the one of its first removal.
        let removed = effects.iter().rev().filter_map(|effect| match effect {
            Effect::NodeRemoved(node) => Some((node.id, &node.name)),
            _ => None,
        });
        let mut removed = removed.peekable();
        if removed.peek().is_some() {
            self.sessions.keep_names(removed);
        }
    }

    fn apply_effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Node(image, _) => {
                let registration = &image.record.registration;
                self.meet(registration.id);
                if let Some(identity) = &registration.spec.identity {
                    self.removed.take(&registration.spec.name, identity);
                }
            }
            Effect::NodeRemoved(node) => {
                self.meet(node.id);
                if let Some(identity) = &node.identity {
                    let name = node.name.clone();
                    let identity = identity.clone();
                    let &NodeRemoved { id, ordinal, version, .. } = &**node;
                    self.removed.keep(RemovedNode { name, identity, id, ordinal, version });
                }
            }
            _ => {}
        }
    }

    /// Notes the nodes of a page. A unit tells only of nodes with an identity.
    pub fn meet_nodes(&mut self, partition: &PartitionState) {
        partition.nodes.iter().for_each(|node| self.meet(node.registration.id));
    }

    /// Notes that a node exists.
    fn meet(&mut self, node: NodeId) {
        self.next_node = self.next_node.max(node.0 + 1);
    }

    /// Returns a state of `partitions` that has only these records.
    #[must_use]
    pub fn state(&self, partitions: u16) -> StoreState {
        let StoreState { partitions, .. } = StoreState::create(partitions);
        StoreState { partitions, ..self.clone().into_state() }
    }

    /// Returns these records as a state without partitions.
    fn into_state(self) -> StoreState {
        let Self { incarnation, now, next_node, resources, unit_instances, removed, groups, jobs, sessions } =
            self;
        let removed = removed.iter().collect();
        StoreState {
            incarnation,
            now,
            registrar: RegistrarState { next_node, resources, removed, unit_instances },
            partitions: Vec::new(),
            policies: Vec::new(),
            granularities: Vec::new(),
            groups: groups.into_values().collect(),
            jobs: jobs.into_record(),
            sessions: sessions.into_records(),
        }
    }
}

/// A durable state in the making.
pub struct Rebuild {
    globals: Globals,
    partitions: Vec<Records>,
    policies: Vec<Option<PolicyState>>,
    granularities: Vec<Option<GranularityState>>,
}

impl Rebuild {
    /// Begins with the state of a checkpoint, or with that of a new store.
    ///
    /// # Errors
    /// When a record is of something that is not recorded.
    pub fn new(mut state: StoreState) -> Result<Self, RecoveryError> {
        let partitions = std::mem::take(&mut state.partitions);
        let policies = std::mem::take(&mut state.policies);
        let granularities = std::mem::take(&mut state.granularities);
        let mut rebuild = Self {
            globals: Globals::new(state),
            partitions: partitions.iter().map(|_| Records::default()).collect(),
            policies: policies.into_iter().map(Some).collect(),
            granularities,
        };
        partitions.into_iter().try_for_each(|partition| rebuild.add(partition))?;
        Ok(rebuild)
    }

    /// Adds records of a checkpoint. Those of one node must come together.
    ///
    /// # Errors
    /// When a record is of something that is not recorded.
    pub fn add(&mut self, partition: PartitionState) -> Result<(), RecoveryError> {
        self.globals.meet_nodes(&partition);
        self.records(partition.id)?.add(partition)
    }

    fn records(&mut self, id: PartitionId) -> Result<&mut Records, RecoveryError> {
        let count = self.partitions.len();
        self.partitions.get_mut(usize::from(id.0)).ok_or(RecoveryError::Partition(id.0, count))
    }

    /// Applies a unit. Units are applied in their order.
    ///
    /// # Errors
    /// When it changes what is not recorded. The rebuild is useless then.
    pub fn apply(&mut self, unit: Unit) -> Result<(), RecoveryError> {
        self.globals.apply(&unit);
        match unit.changes {
            Changes::Started { shards, .. } => {
                // What this start took back from the run before it.
                self.take_back();
                // As the start did: it resumed the policies of all shards, or of none.
                let is_whole = self.policies.iter().all(Option::is_some);
                if self.policies.len() != usize::from(shards) || !is_whole {
                    self.policies = vec![None; usize::from(shards)];
                    self.granularities = vec![None; usize::from(shards)];
                }
            }
            Changes::Shard { shard, effects, policy, granularity } => {
                if let (Some(known), Some(policy)) = (self.policies.get_mut(shard.index()), policy) {
                    *known = Some(policy);
                }
                if let (Some(known), Some(granularity)) =
                    (self.granularities.get_mut(shard.index()), granularity)
                {
                    *known = Some(granularity);
                }
                effects.into_iter().try_for_each(|effect| self.apply_effect(effect))?;
            }
            Changes::Kinds(..)
            | Changes::Groups(_)
            | Changes::Jobs(_)
            | Changes::Sessions(_)
            | Changes::Decided(..) => {}
        }
        Ok(())
    }

    fn apply_effect(&mut self, effect: Effect) -> Result<(), RecoveryError> {
        let partition = effect.partition();
        let records = self.records(partition)?;
        match effect {
            Effect::Allocated(record, _) => records.allocations.insert(record),
            Effect::Bundle(record) => records.bundles.insert(record),
            Effect::Inside(record) => records.inside.insert(record),
            Effect::Ended(id, _) => records.end(id),
            Effect::Node(image, _) => records.set_node(*image),
            Effect::Version { node, version, .. } => {
                // A page that was read later may show that the node is gone.
                if let Some(record) = records.nodes.get_mut(node) {
                    record.version = version;
                }
            }
            Effect::NodeRemoved(node) => records.remove_node(node.id),
            Effect::Leased(record) => records.lease(record),
            Effect::SessionRenewed { session, until, .. } => drop(records.sessions.insert(session, until)),
        }
        Ok(())
    }

    /// Takes back what is half there. A start that is recorded has done so. Returns what was taken back, and the changes
    /// that the start must record.
    pub fn take_back(&mut self) -> (TakenBack, Vec<Changes>) {
        let mut undone = Undone::default();
        self.drop_waiting(&mut undone);
        self.drop_bundles(&mut undone);
        self.drop_places(&mut undone);
        for (partition, records) in (0..).map(PartitionId).zip(&mut self.partitions) {
            for (&node, of_node) in &mut records.of_nodes {
                // A ticket ends with its planner.
                if of_node.reservation.as_ref().is_some_and(|own| own.owner.is_ticket()) {
                    of_node.reservation = None;
                    undone.counts.reservations += 1;
                    undone.nodes.insert((partition, node));
                }
            }
        }
        self.changes_of(undone)
    }

    /// Returns the changes by which something was taken back.
    fn changes_of(&self, undone: Undone) -> (TakenBack, Vec<Changes>) {
        let Undone { counts, mut effects, nodes, groups, tasks } = undone;
        for (partition, node) in nodes {
            let image = self.partitions[usize::from(partition.0)].image(node).expect("it is recorded");
            effects.push(Effect::Node(Box::new(image), NodeNews::default()));
        }
        let mut changes = Vec::new();
        if !effects.is_empty() {
            // The effects name their partitions, so any shard will do.
            let shard = ShardId(0);
            changes.push(Changes::Shard { shard, effects, policy: None, granularity: None });
        }
        if !groups.is_empty() {
            let record = |id: GroupId| (id, self.globals.groups.get(&id).cloned());
            changes.push(Changes::Groups(groups.into_iter().map(record).collect()));
        }
        if !tasks.is_empty() {
            changes.push(Changes::Jobs(tasks));
        }
        (counts, changes)
    }

    /// Returns the state.
    ///
    /// # Errors
    /// When a record is of something that is not recorded.
    pub fn finish(mut self) -> Result<StoreState, RecoveryError> {
        let nodes = self.partitions.iter().flat_map(|records| records.nodes.iter());
        let nodes = nodes.map(|record| &record.registration);
        self.globals.sessions.keep_names(nodes.map(|node| (node.id, &node.spec.name)));
        let has_policies = !self.policies.is_empty() && self.policies.iter().all(Option::is_some);
        let (policies, granularities) = if has_policies {
            (self.policies.into_iter().flatten().collect(), self.granularities)
        } else {
            (Vec::new(), Vec::new())
        };
        let ids = (0..).map(PartitionId);
        let partitions = ids.zip(self.partitions).map(|(id, records)| records.state(id));
        let partitions = partitions.collect::<Result<Vec<_>, _>>()?;
        Ok(StoreState { partitions, policies, granularities, ..self.globals.into_state() })
    }

    /// Drops the jobs of direct placements that wait. Their sessions ask for them again, and nobody was told of what they
    /// have claimed.
    fn drop_waiting(&mut self, undone: &mut Undone) {
        if is_planted(PlantedBug::QueueWaitKept) {
            return;
        }
        let jobs = &mut self.globals.jobs;
        // A task that is not listed is pending.
        let holds = |job: &JobRecord| {
            job.tasks.values().any(|task| task.state.has_node() && task.state != TaskState::Pipelined)
        };
        let waiting = jobs.jobs().filter(|job| job.spec.is_direct && !holds(job));
        let waiting: Vec<JobsChange> = waiting.map(|job| JobsChange::DirectEnded(job.id)).collect();
        waiting.iter().for_each(|change| jobs.apply(change));
        undone.tasks.extend(waiting);
    }

    /// Drops the bundles that no group records as placed.
    fn drop_bundles(&mut self, undone: &mut Undone) {
        let known: BTreeSet<(AllocationId, BundleId)> = self
            .globals
            .groups
            .values()
            .flat_map(places)
            .chain(self.globals.jobs.jobs().flat_map(tasks))
            .collect();
        let is_known = |allocation, bundle| known.contains(&(allocation, bundle));
        for (partition, records) in (0..).map(PartitionId).zip(&mut self.partitions) {
            let releasing = records.of_nodes.values().flat_map(|of_node| &of_node.releasing);
            let releasing: BTreeSet<AllocationId> = releasing.map(|record| record.allocation).collect();
            let unknown = records.bundles.iter().filter(|one| !is_known(one.allocation, one.bundle));
            // A task that has ended is recorded before its allocation is released, which ends its grace period. And nobody
            // would be charged for a bundle in a queue.
            let ends_now = |record: &&BundleRecord| {
                let group = record.bundle.group;
                JobId::of_group(group).is_some() || group.is_in_queue()
            };
            let unknown = unknown.filter(|one| ends_now(one) || !releasing.contains(&one.allocation));
            let gone: BTreeSet<AllocationId> = unknown.map(|record| record.allocation).collect();
            let inside = records.inside.iter().filter(|inside| gone.contains(&inside.bundle));
            let inside: Vec<AllocationId> = inside.map(|inside| inside.id).collect();
            let nodes = gone.iter().filter_map(|&id| records.take_bundle(id));
            undone.nodes.extend(nodes.map(|node| (partition, node)));
            for &id in &inside {
                records.inside.remove(id);
            }
            undone.counts.bundles += gone.len();
            let mut ended = gone;
            ended.extend(inside);
            undone.effects.extend(ended.iter().map(|&id| Effect::Ended(id, EndCause::TakenBack)));
            for (&node, of_node) in &mut records.of_nodes {
                of_node.releasing.retain(|record| !ended.contains(&record.allocation));
                let before = of_node.claims.len();
                of_node.claims.retain(|claim| claim.bundle.is_none_or(|bundle| is_known(claim.id, bundle)));
                if of_node.claims.len() < before {
                    undone.counts.bundles += before - of_node.claims.len();
                    undone.nodes.insert((partition, node));
                }
            }
        }
    }

    /// Drops the places of groups that no shard recorded.
    fn drop_places(&mut self, undone: &mut Undone) {
        let Self { globals: Globals { groups, jobs, now, .. }, partitions, .. } = self;
        let is_there = |id: AllocationId, node: Option<NodeId>| {
            let Some(records) = partitions.get(usize::from(id.partition.0)) else { return false };
            let claimed = || {
                let of_node = node.and_then(|node| records.of_nodes.get(&node));
                of_node.is_some_and(|of_node| of_node.claims.iter().any(|claim| claim.id == id))
            };
            records.bundles.contains(id) || claimed()
        };
        for (&id, group) in groups {
            let before = undone.counts.places;
            for bundle in &mut group.bundles {
                if bundle.place.is_some_and(|place| !is_there(place.allocation, Some(place.node))) {
                    bundle.place = None;
                    undone.counts.places += 1;
                }
                if bundle.lost.is_some_and(|id| !is_there(id, None)) {
                    bundle.lost = None;
                    undone.counts.places += 1;
                }
            }
            if undone.counts.places > before {
                undone.groups.insert(id);
            }
        }
        let mut ended = Vec::new();
        for job in jobs.jobs_mut() {
            let gone = |task: &TaskRecord| task.allocation.is_some_and(|id| !is_there(id, task.node));
            let lost: Vec<u32> =
                job.tasks.iter().filter(|(_, task)| gone(task)).map(|(&index, _)| index).collect();
            if !lost.is_empty() {
                undone.counts.places += lost.len();
                if job.spec.is_direct {
                    ended.push(JobsChange::DirectEnded(job.id));
                } else {
                    undone.tasks.extend(job.lose(&lost, *now));
                }
            }
        }
        // A direct placement ends with its allocation.
        ended.iter().for_each(|change| jobs.apply(change));
        undone.tasks.extend(ended);
    }
}

/// Returns the allocations of the tasks of a job with their bundles.
fn tasks(job: &JobRecord) -> impl Iterator<Item = (AllocationId, BundleId)> {
    job.tasks.iter().filter_map(|(&index, task)| Some((task.allocation?, job.bundle(index))))
}

/// Returns the allocations of a group with their bundles.
fn places(group: &GroupRecord) -> impl Iterator<Item = (AllocationId, BundleId)> {
    group.bundles.iter().flat_map(|bundle| {
        let id = BundleId { group: group.id, index: bundle.index };
        let placed = bundle.place.map(|place| place.allocation);
        placed.into_iter().chain(bundle.lost).map(move |allocation| (allocation, id))
    })
}

impl Rebuild {
    /// Sets the policies of a shard, as the pages of a checkpoint say.
    pub fn set_policy(&mut self, shard: usize, policy: PolicyState, granularity: Option<GranularityState>) {
        if self.policies.len() <= shard {
            self.policies.resize(shard + 1, None);
            self.granularities.resize(shard + 1, None);
        }
        self.policies[shard] = Some(policy);
        self.granularities[shard] = granularity;
    }

    /// Adds the whole state of a shard.
    ///
    /// # Errors
    /// When a record is of something that is not recorded.
    pub fn add_shard(&mut self, shard: usize, state: ShardState) -> Result<(), RecoveryError> {
        self.set_policy(shard, state.policy, state.granularity);
        state.partitions.into_iter().try_for_each(|partition| self.add(partition))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Ordinal, ShardId};
    use crate::rng::Rng;

    fn unit(changes: Changes) -> Unit {
        Unit::new(Time(1), changes)
    }

    fn started(number: u32, shards: u16) -> Unit {
        unit(Changes::Started { incarnation: Incarnation(number), shards })
    }

    fn policy(shard: u16, cursor: u64) -> Unit {
        let policy = Some(PolicyState { next_fit: Ordinal(cursor), rng: Rng::new(cursor) });
        let shard = ShardId(shard);
        unit(Changes::Shard { shard, effects: Vec::new(), policy, granularity: None })
    }

    /// A start resumes the policies of all shards or of none. Finds a rebuild that mixes those of two starts.
    #[test]
    fn policies_of_two_starts_are_not_mixed() {
        let rebuilt = |units: Vec<Unit>| {
            let mut rebuild = Rebuild::new(StoreState::create(2)).expect("it is empty");
            units.into_iter().for_each(|unit| rebuild.apply(unit).expect("nothing is missing"));
            let policies = rebuild.finish().expect("nothing is missing").policies;
            policies.into_iter().map(|policy| policy.next_fit.0).collect::<Vec<_>>()
        };
        let first = || vec![started(1, 2), policy(0, 5)];
        assert_eq!(rebuilt(first()), []);
        // The second start found no policy of shard 1, so it began with new ones.
        let second = [started(2, 2), policy(1, 7)];
        assert_eq!(rebuilt(first().into_iter().chain(second.clone()).collect()), []);
        let third = [policy(0, 8), started(3, 2)];
        assert_eq!(rebuilt(first().into_iter().chain(second).chain(third).collect()), [8, 7]);
    }
}
