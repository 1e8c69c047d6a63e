//! Conversion between wire types and engine types: queues and jobs as they are submitted and stored.

use std::sync::Arc;

use wharf_core::fairness::{Amounts, Caps, Dim};
use wharf_core::ids::{ResourceId, TenantId};
use wharf_core::jobs::{
    JobId, JobPhase, JobPolicy, JobSpec, PolicyAction, QueueId, QueueOrdering, QueueSpec, Role, TaskEvent,
    TaskGroup, TaskId, TaskReport, TaskState, TopologyMode, TopologyRule,
};
use wharf_core::registrar::Catalog;
use wharf_core::resource::{ResourceKind, ResourceRegistry};
use wharf_core::time::Time;

use super::kinds::check_room;
use super::priority_classes::class_name;
use super::{
    PlacementDefaults, amount, check_custom_name, check_name, chosen, groups, invalid, kinds_to_learn,
    number_of, placement_request, wire_request,
};
use crate::protocol::{
    ACTION_ABORT_JOB, ACTION_COMPLETE_JOB, ACTION_RESTART_JOB, ACTION_RESTART_TASK, AmountsBody, Fault,
    GROUP_CANDIDATES_MAX, JOB_ABORTED, JOB_CANCELLED, JOB_COMPLETED, JOB_FAILED, JOB_INQUEUE, JOB_PENDING,
    JOB_RESTARTING, JOB_RUNNING, JOB_TOPOLOGY_HARD, JOB_TOPOLOGY_SOFT, JobBody, JobPolicyBody,
    JobTopologyBody, NamedAmount, ORDERING_DRF, ORDERING_FAIR, ORDERING_FIFO, PlaceReply, QueueBody,
    RoleBody, TASK_ALLOCATED, TASK_BINDING, TASK_BOUND, TASK_EVENT_ANY, TASK_EVENT_COMPLETED,
    TASK_EVENT_EVICTED, TASK_EVENT_FAILED, TASK_FAILED, TASK_PENDING, TASK_PIPELINED, TASK_RELEASING,
    TASK_RUNNING, TASK_SUCCEEDED, TASK_UNKNOWN, TaskGroupBody, TaskReportBody,
};

const ORDERINGS: [(u8, QueueOrdering); 3] = [
    (ORDERING_DRF, QueueOrdering::Drf),
    (ORDERING_FIFO, QueueOrdering::Fifo),
    (ORDERING_FAIR, QueueOrdering::Fair),
];

const MODES: [(u8, TopologyMode); TopologyMode::ALL.len()] =
    [(JOB_TOPOLOGY_HARD, TopologyMode::Hard), (JOB_TOPOLOGY_SOFT, TopologyMode::Soft)];

const PHASES: [(u8, JobPhase); JobPhase::ALL.len()] = [
    (JOB_PENDING, JobPhase::Pending),
    (JOB_INQUEUE, JobPhase::Inqueue),
    (JOB_RUNNING, JobPhase::Running),
    (JOB_COMPLETED, JobPhase::Completed),
    (JOB_CANCELLED, JobPhase::Cancelled),
    (JOB_RESTARTING, JobPhase::Restarting),
    (JOB_ABORTED, JobPhase::Aborted),
    (JOB_FAILED, JobPhase::Failed),
];

const EVENTS: [(u8, TaskEvent); TaskEvent::ALL.len()] = [
    (TASK_EVENT_FAILED, TaskEvent::Failed),
    (TASK_EVENT_EVICTED, TaskEvent::Evicted),
    (TASK_EVENT_COMPLETED, TaskEvent::Completed),
    (TASK_EVENT_ANY, TaskEvent::Any),
];

const ACTIONS: [(u8, PolicyAction); PolicyAction::ALL.len()] = [
    (ACTION_RESTART_TASK, PolicyAction::RestartTask),
    (ACTION_RESTART_JOB, PolicyAction::RestartJob),
    (ACTION_COMPLETE_JOB, PolicyAction::CompleteJob),
    (ACTION_ABORT_JOB, PolicyAction::AbortJob),
];

const STATES: [(u8, TaskState); TaskState::ALL.len()] = [
    (TASK_PENDING, TaskState::Pending),
    (TASK_ALLOCATED, TaskState::Allocated),
    (TASK_PIPELINED, TaskState::Pipelined),
    (TASK_BINDING, TaskState::Binding),
    (TASK_BOUND, TaskState::Bound),
    (TASK_RUNNING, TaskState::Running),
    (TASK_RELEASING, TaskState::Releasing),
    (TASK_SUCCEEDED, TaskState::Succeeded),
    (TASK_FAILED, TaskState::Failed),
    (TASK_UNKNOWN, TaskState::Unknown),
];

/// Returns the number of a task's state on the wire.
#[must_use]
pub fn task_state_number(state: TaskState) -> u8 {
    number_of(&STATES, state)
}

/// Returns the state of a task with this number.
///
/// # Errors
/// Returns a fault that names `field`.
pub fn task_state(field: &str, number: u8) -> Result<TaskState, Fault> {
    chosen(&STATES, number, field, "state of a task: give 1 (pending) to 10 (unknown)")
}

/// Returns the number of what a job policy does on the wire.
#[must_use]
pub fn policy_action_number(action: PolicyAction) -> u8 {
    number_of(&ACTIONS, action)
}

/// Returns what a job policy does with this number.
///
/// # Errors
/// Returns a fault that names `field`.
pub fn policy_action(field: &str, number: u8) -> Result<PolicyAction, Fault> {
    let what = "action: give 1 (restart_task), 2 (restart_job), 3 (complete_job) or 4 (abort_job)";
    chosen(&ACTIONS, number, field, what)
}

/// Returns the number of a job's phase on the wire.
#[must_use]
pub fn job_phase_number(phase: JobPhase) -> u8 {
    number_of(&PHASES, phase)
}

/// Returns the phase of a job with this number.
///
/// # Errors
/// Returns a fault that names `field`.
pub fn job_phase(field: &str, number: u8) -> Result<JobPhase, Fault> {
    chosen(&PHASES, number, field, "phase of a job: give 1 (pending) to 8 (failed)")
}

/// Returns the kind with a field of its own that has this name.
fn own_kind(name: &str) -> Option<ResourceKind> {
    match name {
        "cpu" => Some(ResourceKind::Cpu),
        "memory" => Some(ResourceKind::Memory),
        "gpu" => Some(ResourceKind::Gpu),
        _ => None,
    }
}

/// Returns the name of a kind at its place in amounts.
pub(super) fn dim_name(dim: Dim, resources: &ResourceRegistry) -> String {
    let custom = |place: usize| {
        let id = u16::try_from(place - 3).ok().map(ResourceId)?;
        resources.name(id).map(str::to_owned)
    };
    match dim {
        Dim::CPU | Dim::MEMORY | Dim::GPU => dim.to_string(),
        Dim(place) => custom(place).unwrap_or_default(),
    }
}

/// Converts amounts to the wire, at most `most` of them.
pub(super) fn wire_amounts(
    amounts: impl Iterator<Item = (Dim, i64)>,
    most: usize,
    resources: &ResourceRegistry,
) -> Vec<NamedAmount> {
    amounts.take(most).map(|(dim, amount)| NamedAmount { name: dim_name(dim, resources), amount }).collect()
}

fn amounts_body(amounts: impl Iterator<Item = (Dim, i64)>, resources: &ResourceRegistry) -> AmountsBody {
    AmountsBody { amounts: wire_amounts(amounts, usize::MAX, resources) }
}

/// Reads amounts by resource.
fn amounts<T: FromIterator<(Dim, i64)>>(
    field: &str,
    wire: &AmountsBody,
    resources: &ResourceRegistry,
) -> Result<T, Fault> {
    let mut amounts: Vec<(Dim, i64)> = Vec::with_capacity(wire.amounts.len());
    for (at, NamedAmount { name, amount: units }) in wire.amounts.iter().enumerate() {
        let units = amount(&format!("{field}[{at}].amount"), *units)?.units();
        let kind = match own_kind(name) {
            Some(kind) => kind,
            None => {
                let field = format!("{field}[{at}].name");
                check_custom_name(&field, name)?;
                let unknown = || invalid(field, format!("no resource `{name}` is known: check the name"));
                ResourceKind::Custom(resources.id(name).ok_or_else(unknown)?)
            }
        };
        let dim = Dim::of(kind);
        if amounts.iter().any(|&(other, _)| other == dim) {
            return Err(invalid(field, format!("resource `{name}` is given twice: give each once")));
        }
        amounts.push((dim, units));
    }
    Ok(amounts.into_iter().collect())
}

/// Adds the custom kinds of amounts that the registry does not know.
fn amounts_to_learn(
    field: &str,
    wire: &AmountsBody,
    resources: &ResourceRegistry,
    names: &mut Vec<String>,
) -> Result<(), Fault> {
    for (at, NamedAmount { name, amount: units }) in wire.amounts.iter().enumerate() {
        if own_kind(name).is_some() || resources.id(name).is_some() {
            continue;
        }
        let field = format!("{field}[{at}].name");
        check_room(&field, resources)?;
        check_custom_name(&field, name)?;
        amount(&field, *units)?;
        if wire.amounts[..at].iter().any(|other| other.name == *name) {
            return Err(invalid(field, format!("resource `{name}` is given twice: give each once")));
        }
        names.push(name.clone());
    }
    Ok(())
}

/// Leaves out the amounts of kinds that are to be learnt.
fn without(wire: &mut AmountsBody, names: &[String]) {
    wire.amounts.retain(|amount| !names.contains(&amount.name));
}

fn distinct(mut names: Vec<String>) -> Vec<String> {
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns the custom kinds that the registry must learn before it can hold a queue, like
/// [`kinds_to_learn`] for a placement. If there are any, the rest of the request has been checked.
///
/// # Errors
/// Returns a fault that names the field.
pub fn queue_kinds_to_learn(wire: &QueueBody, resources: &ResourceRegistry) -> Result<Vec<String>, Fault> {
    let mut names = Vec::new();
    amounts_to_learn("guarantee", &wire.guarantee, resources, &mut names)?;
    amounts_to_learn("capability", &wire.capability, resources, &mut names)?;
    if let Some(deserved) = &wire.deserved {
        amounts_to_learn("deserved", deserved, resources, &mut names)?;
    }
    if !names.is_empty() {
        let mut known = wire.clone();
        let given = [&mut known.guarantee, &mut known.capability].into_iter().chain(&mut known.deserved);
        given.for_each(|amounts| without(amounts, &names));
        queue_spec(known, resources)?;
    }
    Ok(distinct(names))
}

/// Converts a queue to the engine's form: what it is to be, and the name of the queue that contains it.
///
/// # Errors
/// Returns a fault that names the field.
pub fn queue_spec(
    wire: QueueBody,
    resources: &ResourceRegistry,
) -> Result<(QueueSpec, Option<Arc<str>>), Fault> {
    check_name("name", &wire.name)?;
    let parent = if wire.parent.is_empty() {
        None
    } else {
        check_name("parent", &wire.parent)?;
        Some(wire.parent.into())
    };
    let ordering = "order of jobs: give 0 (drf), 1 (fifo) or 2 (fair)";
    let spec = QueueSpec {
        parent: QueueId::ROOT,
        tenant: wire.tenant.map(TenantId),
        weight: wire.weight,
        guarantee: amounts("guarantee", &wire.guarantee, resources)?,
        deserved: match &wire.deserved {
            Some(deserved) => Some(amounts("deserved", deserved, resources)?),
            None => None,
        },
        capability: amounts::<Caps>("capability", &wire.capability, resources)?,
        priority: wire.priority,
        reclaimable: wire.reclaimable,
        open: wire.open,
        ordering: chosen(&ORDERINGS, wire.ordering, "ordering", ordering)?,
        starves_below: wire.starves_below,
        fair_share_patience_ns: wire.fair_share_patience,
        guarantee_patience_ns: wire.guarantee_patience,
        min_run_time_ns: wire.min_run_time,
        usage_half_life_ns: wire.usage_half_life,
        allocations_max: wire.allocations_max,
        name: wire.name.into(),
    };
    Ok((spec, parent))
}

/// Converts a queue to the wire. `parent` is the name of the queue that contains it.
#[must_use]
pub fn queue_body(spec: &QueueSpec, parent: Option<&str>, resources: &ResourceRegistry) -> QueueBody {
    QueueBody {
        name: spec.name.to_string(),
        parent: parent.unwrap_or_default().to_owned(),
        tenant: spec.tenant.map(|tenant| tenant.0),
        weight: spec.weight,
        guarantee: amounts_body(spec.guarantee.iter(), resources),
        deserved: spec.deserved.as_ref().map(|deserved| amounts_body(deserved.iter(), resources)),
        capability: amounts_body(spec.capability.iter(), resources),
        priority: spec.priority,
        reclaimable: spec.reclaimable,
        open: spec.open,
        ordering: number_of(&ORDERINGS, spec.ordering),
        starves_below: spec.starves_below,
        fair_share_patience: spec.fair_share_patience_ns,
        guarantee_patience: spec.guarantee_patience_ns,
        min_run_time: spec.min_run_time_ns,
        usage_half_life: spec.usage_half_life_ns,
        allocations_max: spec.allocations_max,
    }
}

/// Returns the fault of the placement reply about `tasks[at]`.
fn of_task(at: usize, reply: PlaceReply) -> Fault {
    reply.fault.unwrap_or_default().within(format_args!("tasks[{at}]"))
}

/// Returns the custom kinds that the registry must learn before it can hold a job, like
/// [`kinds_to_learn`] for a placement. If there are any, the rest of the request has been checked.
///
/// # Errors
/// Returns a fault that names the field.
pub fn job_kinds_to_learn(
    wire: &JobBody,
    catalog: &Catalog,
    defaults: PlacementDefaults,
) -> Result<Vec<String>, Fault> {
    let mut names = Vec::new();
    for (at, group) in wire.tasks.iter().enumerate() {
        let learnt = kinds_to_learn(&group.request, catalog, defaults);
        names.extend(learnt.map_err(|reply| of_task(at, *reply))?);
    }
    if let Some(least) = &wire.min_resources {
        amounts_to_learn("min_resources", least, &catalog.resources, &mut names)?;
    }
    let names = distinct(names);
    if !names.is_empty() {
        let mut known = wire.clone();
        for group in &mut known.tasks {
            group.request.demand.custom.retain(|named| !names.contains(&named.name));
        }
        known.min_resources.iter_mut().for_each(|least| without(least, &names));
        job_spec(known, catalog, defaults)?;
    }
    Ok(names)
}

fn roles(wire: Vec<RoleBody>) -> Result<Vec<Role>, Fault> {
    if wire.is_empty() {
        return Err(invalid("roles", "the job has no role: give at least one, such as `task`"));
    }
    let mut roles: Vec<Role> = Vec::with_capacity(wire.len());
    for (at, RoleBody { name, min_member }) in wire.into_iter().enumerate() {
        let field = format!("roles[{at}].name");
        check_name(&field, &name)?;
        if roles.iter().any(|role| *role.name == *name) {
            return Err(invalid(field, "an earlier role has this name: give each role once"));
        }
        roles.push(Role { name: name.into(), min_member });
    }
    Ok(roles)
}

/// Reads job policies.
fn policies(wire: Vec<JobPolicyBody>) -> Result<Vec<JobPolicy>, Fault> {
    let policy = |(at, policy): (usize, JobPolicyBody)| {
        let JobPolicyBody { events, action, exit_code, timeout } = policy;
        let what = "event: give 1 (task_failed), 2 (task_evicted), 3 (task_completed) or 4 (any)";
        let event = |(number, event): (usize, u8)| {
            chosen(&EVENTS, event, format!("policies[{at}].events[{number}]"), what)
        };
        let events = events.into_iter().enumerate().map(event).collect::<Result<_, _>>()?;
        let action = policy_action(&format!("policies[{at}].action"), action)?;
        Ok(JobPolicy { events, action, exit_code, timeout_ns: timeout })
    };
    wire.into_iter().enumerate().map(policy).collect()
}

/// Converts job policies to the wire.
#[must_use]
pub fn policy_bodies(policies: &[JobPolicy]) -> Vec<JobPolicyBody> {
    let body = |policy: &JobPolicy| JobPolicyBody {
        events: policy.events.iter().map(|&event| number_of(&EVENTS, event)).collect(),
        action: policy_action_number(policy.action),
        exit_code: policy.exit_code,
        timeout: policy.timeout_ns,
    };
    policies.iter().map(body).collect()
}

/// Reads in which domains tasks are to be. Whether there is such a tier, the keeper of jobs knows.
fn topology(wire: Option<JobTopologyBody>) -> Result<Option<TopologyRule>, Fault> {
    let Some(JobTopologyBody { mode, tier }) = wire else { return Ok(None) };
    let mode = chosen(&MODES, mode, "topology.mode", "mode of a topology: give 1 (hard) or 2 (soft)")?;
    let tier = if tier.is_empty() { None } else { Some(tier) };
    tier.as_ref().map_or(Ok(()), |tier| check_name("topology.tier", tier))?;
    Ok(Some(TopologyRule { mode, tier: tier.map(Into::into) }))
}

/// Converts in which domains tasks are to be to the wire.
#[must_use]
pub fn job_topology_body(rule: Option<&TopologyRule>) -> Option<JobTopologyBody> {
    rule.map(|rule| JobTopologyBody {
        mode: number_of(&MODES, rule.mode),
        tier: rule.tier.as_deref().unwrap_or_default().to_owned(),
    })
}

fn task_group(
    wire: TaskGroupBody,
    roles: usize,
    catalog: &Catalog,
    defaults: PlacementDefaults,
) -> Result<TaskGroup, Box<PlaceReply>> {
    let TaskGroupBody {
        request,
        count,
        role,
        priority,
        preemptable,
        master,
        run_time,
        policies: of_tasks,
        topology: domains,
        priority_class: _,
    } = wire;
    // Without one, it has that of the job when the job is submitted.
    let priority = priority.unwrap_or_default();
    if count == 0 {
        return Err(invalid("count", "0 tasks of this kind: give 1 or more, or leave it out").into());
    }
    if role as usize >= roles {
        let message = format!("{role} is no role of the job: give 0 to {}", roles - 1);
        return Err(invalid("role", message).into());
    }
    check_task(&request)?;
    let request = placement_request(request, catalog, defaults)?;
    let policies = policies(of_tasks)?;
    let topology = topology(domains)?;
    let run_time_ns = run_time;
    Ok(TaskGroup { request, count, role, priority, preemptable, master, run_time_ns, policies, topology })
}

/// Checks that the request of a task leaves the fields of its job or task group at their defaults.
pub(super) fn check_task(asked: &crate::protocol::PlaceRequest) -> Result<(), Fault> {
    groups::check_own_fields(asked, "the job or the task group has it: leave it at its default")?;
    if asked.lease != 0 || asked.session_lease {
        return Err(invalid("lease", "tasks have no leases: leave it at its default, and report their end"));
    }
    Ok(())
}

/// Converts a job to the engine's form. It belongs to the tenant of `defaults`. Its priorities are those of a job that was
/// submitted: the keeper of jobs knows which numbers its classes have.
///
/// # Errors
/// Returns a fault that names the field (`tasks[3].selectors[0].operator`).
pub fn job_spec(wire: JobBody, catalog: &Catalog, defaults: PlacementDefaults) -> Result<JobSpec, Fault> {
    check_name("name", &wire.name)?;
    if wire.queue.is_empty() {
        let message = "the job names no queue: give one, since its tenant is bound to none (setting `tenants.queue`), and there is no \
             default queue (setting `jobs.default_queue`)";
        return Err(invalid("queue", message));
    }
    check_name("queue", &wire.queue)?;
    let user = if wire.user.is_empty() { None } else { Some(wire.user.as_str()) };
    user.map_or(Ok(()), |user| check_name("user", user))?;
    let user = user.map(Arc::from);
    let named: usize = wire.tasks.iter().map(|group| group.request.candidates.len()).sum();
    if named > GROUP_CANDIDATES_MAX {
        let message = format!(
            "{named} candidates in all, which a job keeps: give at most {GROUP_CANDIDATES_MAX}, or name more by a label and a selector"
        );
        return Err(invalid("tasks", message));
    }
    let min_resources: Option<Amounts> = match &wire.min_resources {
        Some(least) => Some(amounts("min_resources", least, &catalog.resources)?),
        None => None,
    };
    let roles = roles(wire.roles)?;
    let groups = wire.tasks.into_iter().enumerate();
    let group = |(at, group): (usize, TaskGroupBody)| {
        task_group(group, roles.len(), catalog, defaults).map_err(|reply| of_task(at, *reply))
    };
    let tasks = groups.map(group).collect::<Result<_, _>>()?;
    Ok(JobSpec {
        name: wire.name.into(),
        queue: QueueId::ROOT,
        user,
        tenant: defaults.tenant,
        min_member: wire.min_member,
        min_resources,
        roles,
        tasks,
        priority: wire.priority.unwrap_or_default(),
        priority_class: class_name("priority_class", &wire.priority_class)?,
        preempts: wire.preempts,
        created: Time(0),
        phase: JobPhase::Pending,
        policies: policies(wire.policies)?,
        max_retry: wire.max_retry,
        wait_ns: wire.wait,
        topology: topology(wire.topology)?,
        min_success: wire.min_success,
        is_direct: false,
    })
}

/// Converts a job in the queue of this name to the wire. Returns also which task groups have affinity to their candidate,
/// as [`wire_request`] does.
#[must_use]
pub fn job_body(spec: &JobSpec, queue: &str, resources: &ResourceRegistry) -> (JobBody, Vec<bool>) {
    let mut affinities = Vec::with_capacity(spec.tasks.len());
    let group = |group: &TaskGroup| {
        let &TaskGroup { count, role, priority, preemptable, master, run_time_ns: run_time, .. } = group;
        let (request, affinity) = wire_request(&group.request, resources);
        affinities.push(affinity);
        let policies = policy_bodies(&group.policies);
        let topology = job_topology_body(group.topology.as_ref());
        TaskGroupBody {
            request,
            count,
            role,
            priority: Some(priority),
            preemptable,
            master,
            run_time,
            policies,
            topology,
            // It has become a number.
            priority_class: String::new(),
        }
    };
    let tasks = spec.tasks.iter().map(group).collect();
    let role = |role: &Role| RoleBody { name: role.name.to_string(), min_member: role.min_member };
    let body = JobBody {
        name: spec.name.to_string(),
        queue: queue.to_owned(),
        min_member: spec.min_member,
        min_resources: spec.min_resources.as_ref().map(|least| amounts_body(least.iter(), resources)),
        roles: spec.roles.iter().map(role).collect(),
        tasks,
        priority: Some(spec.priority),
        preempts: spec.preempts,
        policies: policy_bodies(&spec.policies),
        max_retry: spec.max_retry,
        user: spec.user.as_deref().unwrap_or_default().to_owned(),
        topology: job_topology_body(spec.topology.as_ref()),
        min_success: spec.min_success,
        wait: spec.wait_ns,
        priority_class: spec.priority_class.as_deref().unwrap_or_default().to_owned(),
    };
    (body, affinities)
}

/// Converts reports about tasks to the engine's form.
///
/// # Errors
/// Returns a fault that names the field.
pub fn task_reports(wire: &[TaskReportBody]) -> Result<Vec<TaskReport>, Fault> {
    if wire.is_empty() {
        return Err(invalid("tasks", "nothing is reported: give at least one task"));
    }
    let report = |(at, report): (usize, &TaskReportBody)| {
        let &TaskReportBody { job, index, allocation, state, exit_code } = report;
        let state = task_state(&format!("tasks[{at}].state"), state)?;
        let task = TaskId { job: JobId(job), index };
        Ok(TaskReport { task, allocation: allocation.into(), state, exit_code })
    };
    wire.iter().enumerate().map(report).collect()
}
