//! Conversion between wire types and engine types. The engine's types are not serializable. Everything that
//! enters passes through here and is checked once. A fault names the field that is wrong.

/// Builds a body: first the fields that are copied from the fields of these names, then the others.
macro_rules! same {
    ($body:ident from $source:expr; $($copied:ident),*; $($other:ident: $value:expr),*) => {
        $body { $($copied: $source.$copied,)* $($other: $value,)* }
    };
}
pub(crate) use same;

mod agent;
pub use agent::{agent_body, agent_facts, agent_report, node_status, unhealthy_bodies};
mod books;
use books::named_units;
pub use books::{adoption, adoption_fault, books_reply, bundle_fault, resource_totals};
mod direct;
pub use direct::queued_placement;
pub(crate) use direct::{check_keeps_queues, check_queued, not_charged};
mod candidates;
pub(crate) use candidates::explain_candidates;
mod events;
pub(crate) use events::events_limit;
pub use events::{PendingEvent, event_body};
mod explain;
pub(crate) use explain::wait_reply;
pub use explain::{pending_reason, queue_rule, waits_for};
mod follow;
pub(crate) use follow::{follow_kinds, follow_limit, follow_page};
mod groups;
pub(crate) use groups::deadline_of;
pub use groups::{
    IntoTarget, bundles, group_kinds_to_learn, group_refusal, group_reply, group_spec, groups_page,
    page_limit, place_into, plan_fault, removed_group, strategy, strategy_number, topology, wait_until,
    wire_topology,
};
pub(crate) use groups::{check_no_queue, fill_queue};
mod job_replies;
pub(crate) use job_replies::{JobsAnswer, JobsPage, jobs_answer, jobs_page_limit};
mod jobs;
pub use jobs::{
    job_body, job_kinds_to_learn, job_phase, job_phase_number, job_spec, job_topology_body, policy_action,
    policy_action_number, policy_bodies, queue_body, queue_kinds_to_learn, queue_spec, task_reports,
    task_state, task_state_number,
};
mod leases;
use leases::lease_terms;
pub(crate) use leases::session_renewed;
pub use leases::{lease_lasts, renewed_body};
mod kinds;
pub use kinds::{kinds_to_learn, learn_kinds};
mod priority_classes;
pub use priority_classes::{asked_priorities, priority_class, priority_class_body};
mod preferences;
pub use preferences::{taints, wire_taints};
mod reservations;
use reservations::named_owner;
pub use reservations::{reservation, reservation_body, reservation_owner, reserve_reply};
mod plain;
pub use plain::plain_grant;
pub(crate) use plain::plain_placement;
mod plans;
pub use plans::{NodesAsked, nodes_request, plan_reply};
mod statements;
pub use statements::{conflict_body, conflict_detection, statement, statement_reply};

use std::fmt::Display;
use std::sync::Arc;

use wharf_core::ids::{AllocationId, NodeId, OwnerId, ResourceId, SessionId, TenantId};
use wharf_core::limits::{GPU_INSTANCES_MAX, NAME_BYTES_MAX, RESOURCE_KINDS_MAX};
use wharf_core::node::{Labels, NodeSpec};
use wharf_core::registrar::{Catalog, RegistrarError};
use wharf_core::request::{
    Check, Explain, OrderChoice, Placement, PlacementRequest, Policy, Refusal, Shortage,
};
use wharf_core::resource::{
    Amount, Demand, GpuAssignment, GpuRequest, RegistryFull, ResourceKind, ResourceRegistry, UnitAssignments,
    check_unit_request, check_unit_total,
};
use wharf_core::router::Verdict;
use wharf_core::shard::NodeRejection;

use crate::protocol::{
    AVOID_GPU_NO, DemandBody, EXPLAIN_BOUNDED, EXPLAIN_FULL, FailedCheck, Fault, MODE_NOW, MODE_WAIT_UNTIL,
    NamedAmount, NodeBody, ORDER_DOMINANT, POLICY_BEST_FIT, POLICY_DEFAULT, POLICY_FGD, POLICY_FIRST_FIT,
    POLICY_HYBRID, POLICY_LEAST_FIT, POLICY_LEAST_STRANDED, POLICY_NEXT_FIT, POLICY_RANDOM, POLICY_SPREAD,
    Pair, PlaceReply, PlaceRequest, PlacedBody, Reason, RefusalBody,
};

pub(crate) fn invalid(field: impl Into<String>, message: impl Into<String>) -> Fault {
    Fault::of_field(Reason::InvalidField, field, message)
}

pub(crate) fn amount(field: &str, units: i64) -> Result<Amount, Fault> {
    Amount::try_from_units(units).map_err(|error| invalid(field, error.to_string()))
}

/// Returns what a number of the wire selects from a table, or a fault with the number and the remedy.
fn chosen<T: Copy>(table: &[(u8, T)], number: u8, field: impl Display, remedy: &str) -> Result<T, Fault> {
    match table.iter().find(|(known, _)| *known == number) {
        Some(&(_, meaning)) => Ok(meaning),
        None => Err(invalid(field.to_string(), format!("{number} is no {remedy}"))),
    }
}

/// Returns the number of the wire that selects `meaning` from a table.
fn number_of<T: PartialEq>(table: &[(u8, T)], meaning: T) -> u8 {
    table.iter().find(|(_, known)| *known == meaning).expect("every meaning has a number").0
}

/// Reads an amount of GPUs: a fraction of one, or whole devices.
#[inline]
pub(crate) fn gpu_request(units: i64) -> Result<GpuRequest, Fault> {
    if units == 0 {
        return Ok(GpuRequest::None);
    }
    GpuRequest::from_amount(amount("gpu", units)?).map_err(|message| invalid("gpu", message))
}

/// Checks that a name is not empty, not too long, and free of control characters.
///
/// # Errors
/// Returns a fault that names `field`.
pub fn check_name(field: &str, name: &str) -> Result<(), Fault> {
    if name.is_empty() {
        return Err(invalid(field, "the name is empty: give one"));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(invalid(
            field,
            format!("the name has {} bytes: give at most {NAME_BYTES_MAX}", name.len()),
        ));
    }
    // The message does not repeat the name: escaped, it is several times as long, and a batch has many.
    if name.chars().any(char::is_control) {
        return Err(invalid(field, "the name has control characters: leave them out"));
    }
    Ok(())
}

/// Returns the number of a policy on the wire.
#[must_use]
pub fn policy_number(policy: Policy) -> u8 {
    match policy {
        Policy::LeastFit => POLICY_LEAST_FIT,
        Policy::BestFit => POLICY_BEST_FIT,
        Policy::FirstFit => POLICY_FIRST_FIT,
        Policy::NextFit => POLICY_NEXT_FIT,
        Policy::Random => POLICY_RANDOM,
        Policy::Fgd => POLICY_FGD,
        Policy::LeastStranded => POLICY_LEAST_STRANDED,
        Policy::Hybrid => POLICY_HYBRID,
        Policy::Spread => POLICY_SPREAD,
    }
}

/// Returns the policy with this number. [`POLICY_DEFAULT`] selects `default`.
///
/// # Errors
/// Returns a fault that names `policy`.
fn policy(number: u8, default: Policy) -> Result<Policy, Fault> {
    if number == POLICY_DEFAULT {
        return Ok(default);
    }
    Policy::ALL.into_iter().find(|&policy| policy_number(policy) == number).ok_or_else(|| {
        let known: Vec<String> = Policy::ALL.iter().map(|&known| policy_number(known).to_string()).collect();
        let known = known.join(", ");
        invalid("policy", format!("{number} is no policy: give 0 (the server's) or one of {known}"))
    })
}

/// Returns the attribute order with this number. `orders` is the number of configured orders.
///
/// # Errors
/// Returns a fault that names `attribute_order`.
fn order(number: u8, orders: u8) -> Result<OrderChoice, Fault> {
    match number {
        0 => Ok(OrderChoice::Default),
        ORDER_DOMINANT => Ok(OrderChoice::Dominant),
        number if number <= orders => Ok(OrderChoice::Configured(number - 1)),
        number => Err(invalid(
            "attribute_order",
            format!(
                "{number} is no attribute order (configured: {orders}): give 0 (the first), 1 to {orders}, or {ORDER_DOMINANT} (by the dominant resource)"
            ),
        )),
    }
}

/// Returns the number of an attribute order on the wire.
fn order_number(order: OrderChoice) -> u8 {
    match order {
        OrderChoice::Default => 0,
        OrderChoice::Configured(place) => place + 1,
        OrderChoice::Dominant => ORDER_DOMINANT,
    }
}

/// Checks that fields that are not served yet have their default.
fn check_served(wire: &PlaceRequest) -> Result<(), Fault> {
    let waits = wire.mode == MODE_WAIT_UNTIL;
    let fields = [
        ("queue", wire.queue.is_empty()),
        ("priority", wire.priority == 0 || waits),
        ("mode", wire.mode == MODE_NOW || waits),
        ("deadline", wire.deadline == 0 || waits),
        ("group", wire.group.is_none()),
        ("expected_version", wire.expected_version == 0),
        ("count", wire.count == 1),
    ];
    match fields.into_iter().find(|&(_, served)| !served) {
        None => Ok(()),
        Some((field @ ("priority" | "deadline"), _)) => Err(Fault::of_field(
            Reason::NotSupportedYet,
            field,
            format!("`{field}` is for requests that wait (mode {MODE_WAIT_UNTIL}): leave it 0, or wait"),
        )),
        Some((field @ "queue", _)) => Err(Fault::of_field(
            Reason::NotSupportedYet,
            field,
            "only placements, and the bundles of a new group, name a queue here: leave it empty",
        )),
        Some((field, _)) => Err(Fault::of_field(
            Reason::NotSupportedYet,
            field,
            format!("this service does not serve `{field}` yet: leave it at its default"),
        )),
    }
}

/// What a request does not say itself: the values for fields at their defaults, and who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacementDefaults {
    /// The policy.
    pub policy: Policy,
    /// True if requests without GPUs prefer nodes without GPUs.
    pub avoid_gpu: bool,
    /// The number of configured attribute orders.
    pub orders: u8,
    /// The session that asks. It may get leases.
    pub session: Option<SessionId>,
    /// Who asks: who the allocations will belong to.
    pub tenant: TenantId,
}

/// Converts a placement request to the engine's form.
///
/// # Errors
/// Returns the reply to send at once: a fault, or `infeasible` if the request names a resource that no node
/// has ever had.
pub fn placement_request(
    mut wire: PlaceRequest,
    catalog: &Catalog,
    defaults: PlacementDefaults,
) -> Result<PlacementRequest, Box<PlaceReply>> {
    check_served(&wire)?;
    let demand = demand(std::mem::take(&mut wire.demand), catalog)?;
    let explain = match wire.explain {
        EXPLAIN_BOUNDED => Explain::Bounded,
        EXPLAIN_FULL => Explain::Full,
        other => Err(invalid("explain", format!("{other} is no way to explain: give 0 or 1")))?,
    };
    let selectors = std::mem::take(&mut wire.selectors);
    let selector = if selectors.is_empty() {
        None
    } else {
        Some(Arc::new(preferences::selector("selectors", selectors)?))
    };
    let policy = policy(wire.policy, defaults.policy)?;
    let order = order(wire.attribute_order, defaults.orders)?;
    let mut candidates = candidates::candidates(std::mem::take(&mut wire.candidates));
    let preferences =
        preferences::preferences(&mut wire, &mut candidates, defaults.avoid_gpu, demand.gpu, catalog)?;
    let owner = named_owner("owner", wire.owner)?;
    let lease = lease_terms(&wire, defaults.session)?;
    let tenant = defaults.tenant;
    Ok(PlacementRequest {
        demand,
        policy,
        order,
        selector,
        candidates,
        explain,
        preferences,
        owner,
        lease,
        tenant,
    })
}

/// Converts a checked request of a stored group to the wire. Returns whether it has affinity to its candidate too: the
/// field `node` would be refused once the node is gone.
#[must_use]
pub fn wire_request(request: &PlacementRequest, resources: &ResourceRegistry) -> (PlaceRequest, bool) {
    let preferences = request.preferences.as_deref();
    let mut wire = PlaceRequest {
        demand: demand_body(&request.demand, resources),
        policy: policy_number(request.policy),
        attribute_order: order_number(request.order),
        selectors: request.selector.as_deref().map(preferences::selector_terms).unwrap_or_default(),
        candidates: request.candidates.iter().flat_map(|ids| ids.iter()).map(|id| id.0).collect(),
        explain: if request.explain == Explain::Full { EXPLAIN_FULL } else { EXPLAIN_BOUNDED },
        avoid_gpu: AVOID_GPU_NO,
        owner: request.owner.map_or(0, OwnerId::number),
        ..PlaceRequest::default()
    };
    if let Some(preferences) = preferences {
        preferences::wire_preferences(preferences, &mut wire);
    }
    (wire, preferences.is_some_and(|preferences| preferences.affinity))
}

/// Checks the name of a custom resource. It must not be one of the resources with a field of their own.
///
/// # Errors
/// Returns a fault that names `field`.
pub fn check_custom_name(field: &str, name: &str) -> Result<(), Fault> {
    check_name(field, name)?;
    if ["cpu", "memory", "gpu", "gpu_part"].contains(&name) {
        return Err(invalid(field, format!("`{name}` is a resource of its own: give it in its field")));
    }
    Ok(())
}

/// Converts a demand to the engine's form.
///
/// # Errors
/// Same as [`placement_request`], naming a field of the demand.
pub(crate) fn demand(wire: DemandBody, catalog: &Catalog) -> Result<Demand, Box<PlaceReply>> {
    Ok(Demand {
        gpu: gpu_request(wire.gpu)?,
        cpu: amount("cpu", wire.cpu)?,
        memory: amount("memory", wire.memory)?,
        custom: custom_demand(wire.custom, catalog)?,
    })
}

/// Converts a demand to the wire.
pub(crate) fn demand_body(demand: &Demand, resources: &ResourceRegistry) -> DemandBody {
    DemandBody {
        cpu: demand.cpu.units(),
        memory: demand.memory.units(),
        gpu: demand.gpu.units(),
        custom: named_amounts(demand.custom().iter().copied(), resources),
    }
}

fn custom_demand(
    wire: Vec<NamedAmount>,
    catalog: &Catalog,
) -> Result<Option<wharf_core::resource::CustomAmounts>, Box<PlaceReply>> {
    let mut amounts = Vec::with_capacity(wire.len());
    for (i, NamedAmount { name, amount: units }) in wire.into_iter().enumerate() {
        let asked = amount(&format!("custom[{i}].amount"), units)?;
        check_custom_name(&format!("custom[{i}].name"), &name)?;
        match catalog.resources.id(&name) {
            Some(id) => {
                if id.is_unit_instance() {
                    check_unit_request(asked)
                        .map_err(|message| invalid(format!("custom[{i}].amount"), message))?;
                }
                amounts.push((id, asked));
            }
            None if asked.is_zero() => {}
            None => return Err(Box::new(unknown_resource(i, name, asked, catalog))),
        }
    }
    Demand::canonical_custom(amounts).map_err(|twice| {
        let name = catalog.resources.name(twice).unwrap_or_default().to_owned();
        invalid("custom", format!("resource `{name}` is given twice: give each once")).into()
    })
}

/// Returns the refusal for a resource that no node has ever had. Every node lacks all of it. The name may be
/// misspelled, so the reply has a fault too.
fn unknown_resource(place: usize, name: String, asked: Amount, catalog: &Catalog) -> PlaceReply {
    let message = format!(
        "no node has ever had a resource `{name}`: check the name, or let the request wait for a node that has it"
    );
    let nodes = catalog.node_count;
    let check = FailedCheck {
        reason: Reason::Insufficient.into(),
        resource: name,
        nodes,
        least_short: asked.units(),
    };
    PlaceReply {
        reason: Reason::Infeasible.into(),
        refusal: Some(RefusalBody { nodes, examined: nodes, checks: vec![check] }),
        fault: Some(Fault::of_field(Reason::Infeasible, format!("custom[{place}].name"), message)),
        ..PlaceReply::default()
    }
}

/// Converts a placement to the wire.
fn placed_body(
    node: NodeId,
    allocation: AllocationId,
    gpus: GpuAssignment,
    units: Option<&UnitAssignments>,
    catalog: &Catalog,
) -> PlacedBody {
    PlacedBody {
        node: node.0,
        node_name: catalog.node_name(node).map(ToString::to_string).unwrap_or_default(),
        allocation: allocation.into(),
        gpus: gpus.instances().collect(),
        gpu_part: gpus.part,
        units: units.map_or_else(Vec::new, |units| named_units(units, &catalog.resources)),
    }
}

/// Returns the reply to a granted placement.
#[must_use]
pub fn placed_reply(placement: &Placement, catalog: &Catalog) -> PlaceReply {
    let Placement { node, allocation, gpus, units, .. } = placement;
    PlaceReply {
        reason: Reason::Done.into(),
        placed: Some(placed_body(*node, *allocation, *gpus, units.as_deref(), catalog)),
        alternative: placement.alternative,
        ..PlaceReply::default()
    }
}

/// Returns the reply to a placement that every shard refused.
#[must_use]
pub fn refused_reply(verdict: Verdict, refusal: &Refusal, catalog: &Catalog) -> PlaceReply {
    let reason = match verdict {
        Verdict::NoFitNow => Reason::NoFitNow,
        Verdict::Infeasible => Reason::Infeasible,
    };
    let refusal = Some(refusal_body(refusal, catalog));
    PlaceReply { reason: reason.into(), refusal, ..PlaceReply::default() }
}

pub(crate) fn refusal_body(refusal: &Refusal, catalog: &Catalog) -> RefusalBody {
    let checks =
        refusal.checks.iter().map(|(&check, shortage)| failed_check(check, *shortage, catalog)).collect();
    RefusalBody { nodes: refusal.nodes, examined: refusal.examined, checks }
}

fn failed_check(check: Check, shortage: Shortage, catalog: &Catalog) -> FailedCheck {
    let (reason, resource) = match check {
        Check::Candidates => (Reason::NotACandidate, ""),
        Check::Affinity(node) => (Reason::NodeAffinity, catalog.node_name(node).map_or("", AsRef::as_ref)),
        Check::Selector => (Reason::SelectorMismatch, ""),
        Check::Taint => (Reason::UntoleratedTaint, ""),
        Check::NotReady => (Reason::NotReady, ""),
        Check::Reserved => (Reason::ReservedForOther, ""),
        Check::Allocations => (Reason::TooManyAllocations, ""),
        Check::Cpu => (Reason::Insufficient, "cpu"),
        Check::Memory => (Reason::Insufficient, "memory"),
        Check::WholeGpus => (Reason::Insufficient, "gpu"),
        Check::GpuPart => (Reason::Insufficient, "gpu_part"),
        Check::Custom(id) => (Reason::Insufficient, catalog.resources.name(id).unwrap_or_default()),
        Check::Fragmented(id) => (Reason::Fragmented, catalog.resources.name(id).unwrap_or_default()),
    };
    FailedCheck {
        reason: reason.into(),
        resource: resource.to_owned(),
        nodes: shortage.nodes,
        least_short: shortage.least.units(),
    }
}

/// Converts a node to the engine's form. `resources` learns the names of its custom resources.
///
/// # Errors
/// Returns a fault that names the field. `resources` is then unchanged.
pub fn node_spec(wire: NodeBody, resources: &mut ResourceRegistry) -> Result<NodeSpec, Fault> {
    check_name("name", &wire.name)?;
    let gpus = u8::try_from(wire.gpus).ok().filter(|&gpus| usize::from(gpus) <= GPU_INSTANCES_MAX);
    let gpus =
        gpus.ok_or_else(|| invalid("gpus", format!("{} GPUs: give at most {GPU_INSTANCES_MAX}", wire.gpus)))?;
    let cpu = amount("cpu", wire.cpu)?;
    let memory = amount("memory", wire.memory)?;
    let labels = labels(wire.labels)?;
    let taints = preferences::taints(wire.taints)?;
    let custom = node_custom(wire.custom, resources)?;
    let identity = (!wire.identity.is_empty()).then(|| wire.identity.into());
    Ok(NodeSpec { name: wire.name.into(), identity, cpu, memory, gpus, custom, labels, taints })
}

/// Converts the labels of a node.
///
/// # Errors
/// Returns a fault that names the field.
fn labels(wire: Vec<Pair>) -> Result<Labels, Fault> {
    for (i, pair) in wire.iter().enumerate() {
        check_name(&format!("labels[{i}].key"), &pair.key)?;
    }
    let pairs = wire.into_iter().map(|pair| (pair.key.into(), pair.value.into())).collect();
    Labels::new(pairs).map_err(|error| invalid("labels", error.to_string()))
}

/// Checks the custom resources of a node without changing the registry. [`node_spec`] accepts those that
/// pass.
///
/// # Errors
/// Returns a fault that names the field.
pub(crate) fn check_custom(wire: &[NamedAmount], resources: &ResourceRegistry) -> Result<(), Fault> {
    for (i, named) in wire.iter().enumerate() {
        check_custom_name(&format!("custom[{i}].name"), &named.name)?;
        let total = amount(&format!("custom[{i}].amount"), named.amount)?;
        if resources.id_to_be(&named.name).is_unit_instance() {
            check_unit_total(total).map_err(|message| invalid(format!("custom[{i}].amount"), message))?;
        }
        if wire[..i].iter().any(|other| other.name == named.name) {
            return Err(invalid(
                "custom",
                format!("resource `{}` is given twice: give each once", named.name),
            ));
        }
    }
    let new = wire.iter().filter(|named| resources.id(&named.name).is_none()).count();
    if resources.len() + new > RESOURCE_KINDS_MAX {
        return Err(Fault::of_field(Reason::LimitExceeded, "custom", RegistryFull.to_string()));
    }
    Ok(())
}

fn node_custom(
    wire: Vec<NamedAmount>,
    resources: &mut ResourceRegistry,
) -> Result<Option<wharf_core::resource::CustomAmounts>, Fault> {
    // All checks come first, so that a refused node does not change the registry.
    check_custom(&wire, resources)?;
    let mut amounts = Vec::with_capacity(wire.len());
    for named in wire {
        let id = resources.learn(&named.name).expect("there is room for all of them");
        amounts.push((id, amount("custom", named.amount)?));
    }
    Demand::canonical_custom(amounts)
        .map_err(|_| invalid("custom", "a resource is given twice: give each once"))
}

/// Converts capacity, labels and taints of a node to the wire.
#[must_use]
pub fn node_body(spec: &NodeSpec, resources: &ResourceRegistry) -> NodeBody {
    NodeBody {
        name: spec.name.to_string(),
        identity: spec.identity.as_deref().unwrap_or_default().to_owned(),
        cpu: spec.cpu.units(),
        memory: spec.memory.units(),
        gpus: u32::from(spec.gpus),
        custom: named_amounts(spec.custom.as_deref().unwrap_or(&[]).iter().copied(), resources),
        labels: spec
            .labels
            .iter()
            .map(|(key, value)| Pair { key: key.to_owned(), value: value.to_owned() })
            .collect(),
        taints: wire_taints(&spec.taints),
    }
}

fn named_amounts(
    amounts: impl Iterator<Item = (ResourceId, Amount)>,
    resources: &ResourceRegistry,
) -> Vec<NamedAmount> {
    let name = |id| resources.name(id).unwrap_or_default().to_owned();
    amounts.map(|(id, amount)| NamedAmount { name: name(id), amount: amount.units() }).collect()
}

/// Returns the name of a resource on the wire.
#[must_use]
pub fn resource_name(kind: ResourceKind, resources: &ResourceRegistry) -> String {
    match kind {
        ResourceKind::Cpu => "cpu".to_owned(),
        ResourceKind::Memory => "memory".to_owned(),
        ResourceKind::Gpu => "gpu".to_owned(),
        ResourceKind::Custom(id) => resources.name(id).unwrap_or_default().to_owned(),
    }
}

impl From<NodeRejection> for Fault {
    fn from(rejection: NodeRejection) -> Self {
        let (reason, field) = match rejection {
            NodeRejection::Unknown(_) => (Reason::UnknownNode, "name"),
            NodeRejection::InUse(..) | NodeRejection::Held(..) => (Reason::NodeInUse, "name"),
            NodeRejection::IllegalChange(..) => (Reason::IllegalChange, "name"),
            NodeRejection::TooManyResources(_) => (Reason::LimitExceeded, "resources"),
        };
        Self::of_field(reason, field, rejection.to_string())
    }
}

impl From<RegistrarError> for Fault {
    fn from(error: RegistrarError) -> Self {
        let (reason, field) = match error {
            RegistrarError::NodeExists { .. } => (Reason::NodeExists, "name"),
            RegistrarError::UnknownNode(_) => (Reason::UnknownNode, "name"),
            RegistrarError::TopologyFixed { .. } => (Reason::InvalidField, "labels"),
            RegistrarError::IdentityFixed { .. } => (Reason::InvalidField, "identity"),
            RegistrarError::NameInUse { .. } => (Reason::NodeExists, "name"),
            RegistrarError::Full => (Reason::LimitExceeded, "nodes"),
        };
        Self::of_field(reason, field, error.to_string())
    }
}
