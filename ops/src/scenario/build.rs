//! Makes a cluster with queues and jobs of what is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_saphyr::Location;
use wharf_core::cycle::{CycleConfig, LocalCluster};
use wharf_core::fairness::{Amounts, Caps, Dim};
use wharf_core::ids::{NodeId, ResourceId};
use wharf_core::jobs::{
    JobId, JobPhase, JobSpec, QueueId, QueueOrdering, QueueSpec, Role, TaskGroup, TaskId, TaskState,
};
use wharf_core::node::{Labels, NodeSpec, Taints};
use wharf_core::registrar::Catalog;
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, CustomAmounts, Demand, GpuRequest, ResourceKind, ResourceRegistry};
use wharf_net::convert::{PlacementDefaults, placement_request};
use wharf_net::protocol::PlaceRequest;

use super::file::ScenarioFile;
use crate::class_file::{ClassesFile, check_classes, class_of_job, priority};
use crate::cycle_file::{ConfigFile, GRACE_NS, cycle_config};
use crate::job_file::{
    AmountsFile, JobFile, Name, OrderingFile, PhaseFile, PriorityFile, QueueFile, StateFile, TaskFile,
    bounded, part, policies, topology,
};
use crate::line_error::LineError;
use crate::plan_file::{NodeFile, PlanFile};
use crate::terms::{SelectorFile, TolerationFile};

/// The largest number of nodes of a scenario.
const NODES_MAX: u64 = 100_000;

/// The largest number of tasks of a scenario.
const TASKS_MAX: u64 = 1_000_000;

/// A cluster with the names of everything in it.
pub(super) struct World {
    pub(super) cluster: LocalCluster,
    kinds: ResourceRegistry,
    nodes: BTreeMap<String, NodeId>,
    tasks: BTreeMap<String, TaskId>,
    task_names: BTreeMap<TaskId, String>,
    node_names: BTreeMap<NodeId, String>,
    classes: ClassesFile,
    policy: Policy,
}

impl World {
    pub(super) fn new(file: &ScenarioFile) -> Result<Self, LineError> {
        let classes = &file.priority_classes;
        Self::of(&file.config, classes, (&file.nodes, &file.queues, &file.jobs))
    }

    /// Makes what a plan without a service is for.
    pub(super) fn of_plan(file: &PlanFile) -> Result<Self, LineError> {
        Self::of(&file.config, &file.priority_classes, (&file.nodes, &file.queues, &file.jobs))
    }

    fn of(
        file: &ConfigFile,
        classes: &ClassesFile,
        (nodes, queues, jobs): (&[NodeFile], &[QueueFile], &[JobFile]),
    ) -> Result<Self, LineError> {
        let config = cycle_config(file)?;
        let seed = file.seed.unwrap_or(1);
        let start = Location::UNKNOWN;
        let cluster =
            LocalCluster::new(config, seed).map_err(|error| LineError::at(start, error.to_string()))?;
        let policy = match &file.policy {
            Some(name) => parse_policy(name)?,
            None => Policy::BestFit,
        };
        let mut world = Self { policy, ..Self::over(cluster) };
        world.set_classes(classes)?;
        world.add(nodes, queues, jobs)?;
        Ok(world)
    }

    /// Returns a cluster without nodes, queues and jobs.
    pub(super) fn empty() -> Self {
        Self::over(LocalCluster::new(CycleConfig::default(), 1).expect("the settings by default are right"))
    }

    fn over(cluster: LocalCluster) -> Self {
        Self {
            cluster,
            kinds: ResourceRegistry::default(),
            nodes: BTreeMap::new(),
            tasks: BTreeMap::new(),
            task_names: BTreeMap::new(),
            node_names: BTreeMap::new(),
            classes: ClassesFile::new(),
            policy: Policy::BestFit,
        }
    }

    /// Replaces the priority classes.
    pub(super) fn set_classes(&mut self, classes: &ClassesFile) -> Result<(), LineError> {
        check_classes(classes)?;
        self.classes.clone_from(classes);
        Ok(())
    }

    /// Adds nodes, queues and jobs.
    pub(super) fn add(
        &mut self,
        nodes: &[NodeFile],
        queues: &[QueueFile],
        jobs: &[JobFile],
    ) -> Result<(), LineError> {
        nodes.iter().try_for_each(|node| self.add_nodes(node))?;
        queues.iter().try_for_each(|queue| self.add_queue(queue))?;
        jobs.iter().try_for_each(|job| self.add_job(job))
    }

    fn add_nodes(&mut self, file: &NodeFile) -> Result<(), LineError> {
        let place = file.name.referenced;
        let spec = self.node_spec(&file.name, &file.amounts(), &file.labels, file.taints()?)?;
        if self.nodes.len() as u64 + u64::from(file.count) > NODES_MAX {
            let message = format!("the scenario has more than {NODES_MAX} nodes: lower `count`");
            return Err(LineError::at(place, message));
        }
        for name in numbered(&file.name.value, file.count) {
            let spec = NodeSpec { name: name.as_str().into(), ..spec.clone() };
            let id = self.cluster.add_node(spec).map_err(|error| LineError::at(place, error.to_string()))?;
            self.node_names.insert(id, name.clone());
            if self.nodes.insert(name.clone(), id).is_some() {
                return Err(LineError::at(place, format!("there are two nodes `{name}`: rename one")));
            }
        }
        Ok(())
    }

    /// Returns what a node has.
    pub(super) fn node_spec(
        &mut self,
        name: &Name,
        amounts: &AmountsFile,
        labels: &BTreeMap<String, String>,
        taints: Taints,
    ) -> Result<NodeSpec, LineError> {
        let place = name.referenced;
        let demand = self.demand(amounts, place)?;
        let gpus = match demand.gpu {
            GpuRequest::None => 0,
            GpuRequest::Whole(devices) => devices,
            GpuRequest::Fraction(_) => {
                return Err(LineError::at(place, "a node has whole GPUs: give a whole number"));
            }
        };
        let pairs = labels.iter().map(|(key, value)| (Arc::from(&**key), Arc::from(&**value)));
        let labels = Labels::new(pairs.collect()).map_err(|error| LineError::at(place, error.to_string()))?;
        Ok(NodeSpec {
            name: name.value.as_str().into(),
            identity: None,
            cpu: demand.cpu,
            memory: demand.memory,
            gpus,
            custom: demand.custom,
            labels,
            taints,
        })
    }

    fn add_queue(&mut self, file: &QueueFile) -> Result<(), LineError> {
        let place = file.name.referenced;
        if file.tenant.is_some() {
            return Err(LineError::at(place, "a scenario has no tenants: leave `tenant` out"));
        }
        let parent = match &file.parent {
            None => QueueId::ROOT,
            Some(parent) if parent.value == file.name.value => {
                let message = format!("queue `{}` is its own parent: name another, or none", parent.value);
                return Err(LineError::at(parent.referenced, message));
            }
            Some(parent) => self.queue(parent)?,
        };
        let capability = self.amounts(&file.capability, place)?;
        let spec = QueueSpec {
            name: file.name.value.as_str().into(),
            parent,
            tenant: None,
            weight: file.weight,
            guarantee: self.amounts(&file.guarantee, place)?.into_iter().collect(),
            deserved: match &file.deserved {
                Some(deserved) => Some(self.amounts(deserved, place)?.into_iter().collect()),
                None => None,
            },
            capability: capability.into_iter().collect::<Caps>(),
            priority: file.priority,
            reclaimable: file.reclaimable,
            open: file.open,
            ordering: match file.ordering.unwrap_or_default() {
                OrderingFile::Fifo => QueueOrdering::Fifo,
                OrderingFile::Fair => QueueOrdering::Fair,
                OrderingFile::Drf => QueueOrdering::Drf,
            },
            starves_below: part(file.starves_below, "starves_below", place)?,
            fair_share_patience_ns: bounded(file.fair_share_patience, "fair_share_patience", place)?,
            guarantee_patience_ns: bounded(file.guarantee_patience, "guarantee_patience", place)?,
            min_run_time_ns: bounded(file.min_run_time, "min_run_time", place)?,
            usage_half_life_ns: bounded(file.usage_half_life, "usage_half_life", place)?,
            allocations_max: file.allocations_max,
        };
        let added = self.cluster.scheduler_mut().jobs_mut().add_queue(spec);
        added.map(drop).map_err(|error| LineError::at(place, error.to_string()))
    }

    fn add_job(&mut self, file: &JobFile) -> Result<(), LineError> {
        let place = file.name.referenced;
        let (roles, numbers) = file.roles();
        let mut groups = Vec::new();
        let class = class_of_job(file.priority.as_ref(), &self.classes).cloned();
        let usual = class.as_ref().map_or(0, |class| class.value);
        let priority = self.priority(file.priority.as_ref(), usual, place)?;
        for (task, role) in file.tasks.iter().zip(numbers) {
            groups.push(TaskGroup {
                request: self.request(task)?,
                count: task.count,
                role,
                priority: self.priority(task.priority.as_ref(), priority, task.name.referenced)?,
                preemptable: task.preemptable.unwrap_or(file.preemptable),
                master: task.master,
                run_time_ns: bounded(task.run_time.or(file.run_time), "run_time", task.name.referenced)?,
                policies: policies(&task.policies)?,
                topology: topology(task.topology.as_ref())?,
            });
        }
        let role = |(name, min_member): (String, u32)| Role { name: name.into(), min_member };
        let least = match &file.min_resources {
            Some(least) => Some(self.amounts(least, place)?.into_iter().collect()),
            None => None,
        };
        let tasks: u64 = file.tasks.iter().map(|task| u64::from(task.count)).sum();
        if self.tasks.len() as u64 + tasks > TASKS_MAX {
            let message = format!("the scenario has more than {TASKS_MAX} tasks: lower `count`");
            return Err(LineError::at(place, message));
        }
        let no_queue = || LineError::at(place, "it has no queue: give `queue`");
        let queue = file.queue.as_ref().ok_or_else(no_queue)?;
        let spec = JobSpec {
            name: file.name.value.as_str().into(),
            queue: self.queue(queue)?,
            user: file.user()?.map(Arc::from),
            tenant: wharf_core::ids::TenantId::OPERATOR,
            min_member: file.min_member,
            min_resources: least,
            roles: roles.into_iter().map(role).collect(),
            tasks: groups,
            priority,
            priority_class: None,
            preempts: file.preempts && class.is_none_or(|class| class.preempts),
            created: self.cluster.now(),
            phase: match file.phase {
                Some(PhaseFile::Pending) => JobPhase::Pending,
                Some(PhaseFile::Inqueue) | None => JobPhase::Inqueue,
            },
            policies: policies(&file.policies)?,
            max_retry: file.max_retry,
            wait_ns: bounded(file.wait, "wait", place)?,
            topology: topology(file.topology.as_ref())?,
            min_success: file.min_success,
            is_direct: false,
        };
        let submitted = self.cluster.scheduler_mut().jobs_mut().submit(spec);
        let job = submitted.map_err(|error| LineError::at(place, error.to_string()))?;
        self.start_tasks(file, job)
    }

    /// Brings the tasks of a new job into the states in which they are said to be.
    fn start_tasks(&mut self, file: &JobFile, job: JobId) -> Result<(), LineError> {
        let mut index = 0;
        for task in &file.tasks {
            let place = task.name.referenced;
            for name in numbered(&task.name.value, task.count) {
                let id = TaskId { job, index };
                index += 1;
                self.task_names.insert(id, name.clone());
                if self.tasks.insert(name.clone(), id).is_some() {
                    return Err(LineError::at(place, format!("there are two tasks `{name}`: rename one")));
                }
                self.start_task(task, id, place)?;
            }
        }
        Ok(())
    }

    fn start_task(&mut self, file: &TaskFile, id: TaskId, place: Location) -> Result<(), LineError> {
        let given = file.state.unwrap_or(StateFile::Pending);
        let ended = match given {
            StateFile::Pending if file.node.is_some() => {
                let message = "a pending task has no node yet: leave `node` out, or give `state: running`";
                return Err(LineError::at(place, message));
            }
            StateFile::Pending => return Ok(()),
            StateFile::Succeeded => Some(TaskState::Succeeded),
            StateFile::Failed => Some(TaskState::Failed),
            StateFile::Bound | StateFile::Running | StateFile::Releasing => None,
        };
        if let Some(state) = ended {
            let now = self.cluster.now();
            self.cluster.scheduler_mut().jobs_mut().set(id, state, None, now);
            return Ok(());
        }
        let Some(node) = &file.node else {
            return Err(LineError::at(place, "a task that runs has a node: give `node`"));
        };
        let Some(&node) = self.nodes.get(node) else {
            return Err(LineError::at(place, format!("there is no node `{node}`: add it to `nodes`")));
        };
        let state = if given == StateFile::Bound { TaskState::Bound } else { TaskState::Running };
        let ran = self.cluster.run_on(id, node, state);
        ran.map_err(|_| {
            let node = file.node.as_deref().unwrap_or_default();
            let message = format!(
                "task `{}` does not fit on node `{node}`: give the node more capacity, or other labels or taints, \
                 or the task another node",
                file.name.value
            );
            LineError::at(place, message)
        })?;
        if given == StateFile::Releasing {
            self.cluster.evict(id, GRACE_NS);
        }
        Ok(())
    }

    fn request(&mut self, file: &TaskFile) -> Result<PlacementRequest, LineError> {
        let place = file.name.referenced;
        let mut request = self.bundle(&file.amounts(), (&file.selector, &file.tolerations), place)?;
        if let Some(name) = &file.policy {
            request.policy = name.parse().map_err(|error| LineError::at(place, format!("{error}")))?;
        }
        Ok(request)
    }

    /// Returns a request for amounts on nodes with labels, and with taints that it tolerates.
    pub(super) fn bundle(
        &mut self,
        amounts: &AmountsFile,
        (selector, tolerations): (&SelectorFile, &[TolerationFile]),
        place: Location,
    ) -> Result<PlacementRequest, LineError> {
        let mut request = PlacementRequest::new(self.demand(amounts, place)?, self.policy);
        // Converted and checked as the service does it.
        let wire = PlaceRequest {
            selectors: selector.terms(),
            tolerations: tolerations.iter().map(TolerationFile::toleration).collect(),
            ..PlaceRequest::default()
        };
        let asked = placement_request(wire, &Catalog::default(), PlacementDefaults::default());
        let asked = asked.map_err(|reply| {
            let fault = reply.fault.unwrap_or_default();
            LineError::at(place, format!("{}: {}", fault.field, fault.message))
        })?;
        request.selector = asked.selector;
        request.preferences = asked.preferences;
        Ok(request)
    }

    fn priority(
        &self,
        file: Option<&PriorityFile>,
        otherwise: i32,
        place: Location,
    ) -> Result<i32, LineError> {
        priority(file, &self.classes, otherwise, place)
    }

    /// Returns amounts by place. Names of custom resources are learned.
    pub(super) fn amounts(
        &mut self,
        file: &AmountsFile,
        place: Location,
    ) -> Result<Vec<(Dim, i64)>, LineError> {
        let mut amounts = Vec::new();
        amounts.extend(file.cpu.map(|amount| (Dim::CPU, amount.0.units())));
        amounts.extend(file.memory.map(|amount| (Dim::MEMORY, amount.0.units())));
        amounts.extend(file.gpu.map(|amount| (Dim::GPU, amount.0.units())));
        for (name, amount) in &file.resources {
            let id = self.kind(name, place)?;
            amounts.push((Dim::of(ResourceKind::Custom(id)), amount.0.units()));
        }
        Ok(amounts)
    }

    /// Returns amounts that a scenario expects.
    pub(super) fn expected(&mut self, file: &AmountsFile) -> Result<Vec<(Dim, i64)>, LineError> {
        self.amounts(file, Location::UNKNOWN)
    }

    fn kind(&mut self, name: &str, place: Location) -> Result<ResourceId, LineError> {
        self.kinds.learn(name).map_err(|error| LineError::at(place, error.to_string()))
    }

    fn demand(&mut self, file: &AmountsFile, place: Location) -> Result<Demand, LineError> {
        let mut custom = Vec::new();
        for (name, amount) in &file.resources {
            custom.push((self.kind(name, place)?, amount.0));
        }
        let custom: Option<CustomAmounts> =
            Demand::canonical_custom(custom).expect("a map has each name once");
        let gpu = file.gpu.map_or(Amount::ZERO, |amount| amount.0);
        Ok(Demand {
            cpu: file.cpu.map_or(Amount::ZERO, |amount| amount.0),
            memory: file.memory.map_or(Amount::ZERO, |amount| amount.0),
            gpu: GpuRequest::from_amount(gpu).map_err(|error| LineError::at(place, error))?,
            custom,
        })
    }

    fn queue(&self, name: &Name) -> Result<QueueId, LineError> {
        self.queue_named(&name.value, name.referenced)
    }

    pub(super) fn queue_named(&self, name: &str, place: Location) -> Result<QueueId, LineError> {
        let missing = || {
            let message = format!(
                "there is no queue `{name}` yet: add it to `queues`, before those that name it. None is below itself"
            );
            LineError::at(place, message)
        };
        self.cluster.scheduler().jobs().queue_named(name).ok_or_else(missing)
    }

    pub(super) fn job_named(&self, name: &str) -> Result<JobId, LineError> {
        let missing =
            || LineError::at(Location::UNKNOWN, format!("there is no job `{name}`: add it to `jobs`"));
        self.cluster.scheduler().jobs().job_named(name).ok_or_else(missing)
    }

    pub(super) fn task_named(&self, name: &str, place: Location) -> Result<TaskId, LineError> {
        let missing = || LineError::at(place, format!("there is no task `{name}`: add it to a job"));
        self.tasks.get(name).copied().ok_or_else(missing)
    }

    pub(super) fn node_named(&self, name: &str) -> Result<NodeId, LineError> {
        let missing =
            || LineError::at(Location::UNKNOWN, format!("there is no node `{name}`: add it to `nodes`"));
        self.nodes.get(name).copied().ok_or_else(missing)
    }

    /// Returns the resource kinds.
    pub(super) fn kinds(&self) -> &ResourceRegistry {
        &self.kinds
    }

    /// Returns the name of a task.
    pub(super) fn task_name(&self, id: TaskId) -> &str {
        self.task_names.get(&id).map_or("?", String::as_str)
    }

    /// Returns the name of a node.
    pub(super) fn node_name(&self, id: NodeId) -> &str {
        self.node_names.get(&id).map_or("?", String::as_str)
    }

    /// Returns an amount as it is shown.
    pub(super) fn shown(&self, amounts: &Amounts) -> String {
        let name = |dim: Dim| match dim {
            Dim::CPU | Dim::MEMORY | Dim::GPU => dim.to_string(),
            Dim(place) => self.kinds.names().nth(place - 3).unwrap_or("?").to_owned(),
        };
        let shown = |(dim, units): (Dim, i64)| {
            let amount =
                Amount::try_from_units(units).map_or_else(|_| units.to_string(), |amount| amount.to_string());
            format!("{} {amount}", name(dim))
        };
        let shown: Vec<String> = amounts.iter().map(shown).collect();
        if shown.is_empty() { "nothing".to_owned() } else { shown.join(", ") }
    }
}

/// Returns one name as it is, or several with numbers from 0.
fn numbered(name: &str, count: u32) -> impl Iterator<Item = String> {
    let name = name.to_owned();
    (0..count).map(move |number| if count == 1 { name.clone() } else { format!("{name}-{number}") })
}

fn parse_policy(name: &Name) -> Result<Policy, LineError> {
    name.value.parse().map_err(|error| LineError::at(name.referenced, format!("{error}")))
}
