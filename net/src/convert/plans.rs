//! Conversion between wire types and engine types: plans of nodes.

use std::sync::Arc;

use wharf_core::demand::{Asker, Bundles, NodeType, NodesRequest, PendingGroup, RemovalCause, Spread, Unfit};
use wharf_core::ids::NodeId;
use wharf_core::jobs::{JobId, NodesView};
use wharf_core::registrar::Catalog;

use super::direct::capped_name;
use super::jobs::check_task;
use super::{
    PlacementDefaults, check_custom_name, check_name, chosen, invalid, node_spec, placement_request,
    refusal_body,
};
use crate::protocol::{
    ASKER_FLOOR, ASKER_GROUP, ASKER_JOB, ASKER_PLACEMENTS, ASKER_WAITING_GROUP, BundlesBody, Fault,
    GROUP_CANDIDATES_MAX, IdleNodeBody, NamedAmount, NodeTypeBody, PLAN_REFUSALS_MAX,
    PLAN_ROWS_PER_MESSAGE_MAX, PendingGroupBody, PlanNodesReply, PlanNodesRequest, REMOVAL_ALL_LIMIT,
    REMOVAL_IDLE, REMOVAL_TYPE_LIMIT, RemovalBody, SPREAD_ANY, SPREAD_APART, SPREAD_TOGETHER, StartBody,
    TypePlanBody, UNFIT_ALL_LIMIT, UNFIT_CAP, UNFIT_GANG, UNFIT_NEVER, UNFIT_ONLY_PRESENT, UNFIT_TOPOLOGY,
    UNFIT_TYPE_LIMIT, UNFIT_UNDECIDED, UNPLACED_MAX, UnplacedBody, WaitingJobBody,
};

/// The largest time in a request for a plan, in ns: 365 days.
const TIME_NS_MOST: u64 = crate::protocol::GRACE_NS_MAX;

const SPREADS: [(u8, Spread); 3] =
    [(SPREAD_ANY, Spread::Any), (SPREAD_APART, Spread::Apart), (SPREAD_TOGETHER, Spread::Together)];

/// A request for a plan, with how long nodes have been idle, in ns.
pub type NodesAsked = (NodesRequest, Vec<(NodeId, u64)>);

/// Converts a request for a plan of nodes to the engine's form.
///
/// Resource kinds that the service does not know get ids for this request only: a node type may have what no node has had
/// yet. The service may learn other kinds before the plan is made. Such a kind could then pass for one of these, in this
/// one plan.
///
/// # Errors
/// Returns a fault that names the field (`types[3].node.cpu`).
pub fn nodes_request(
    wire: PlanNodesRequest,
    catalog: &Catalog,
    defaults: PlacementDefaults,
) -> Result<NodesAsked, Fault> {
    check_name("type_label", &wire.type_label)?;
    check_time("horizon", wire.horizon)?;
    check_time("idle_timeout", wire.idle_timeout.unwrap_or(0))?;
    let of_groups = || wire.groups.iter().flat_map(|group| &group.bundles);
    let named: usize =
        wire.floors.iter().chain(of_groups()).map(|bundles| bundles.request.candidates.len()).sum();
    if named > GROUP_CANDIDATES_MAX {
        let message = format!("{named} candidates in all: give at most {GROUP_CANDIDATES_MAX}");
        return Err(invalid("floors", message));
    }
    let asked = wire.floors.iter().chain(of_groups()).flat_map(|bundles| &bundles.request.demand.custom);
    let of_types = wire.types.iter().flat_map(|of| &of.node.custom);
    let catalog = &with_kinds(asked.chain(of_types), catalog)?;
    let mut types = Vec::with_capacity(wire.types.len());
    for (at, of) in wire.types.into_iter().enumerate() {
        types.push(node_type(of, catalog).map_err(|fault| fault.within(format_args!("types[{at}]")))?);
    }
    let floors = bundles("floors", wire.floors, catalog, defaults)?;
    let mut groups = Vec::with_capacity(wire.groups.len());
    for (at, group) in wire.groups.into_iter().enumerate() {
        let group = pending_group(group, catalog, defaults);
        groups.push(group.map_err(|fault| fault.within(format_args!("groups[{at}]")))?);
    }
    let request = NodesRequest {
        types,
        type_label: wire.type_label.into(),
        nodes_max: wire.nodes_max,
        upscaling_speed: wire.upscaling_speed,
        launches_max: wire.launches_max,
        idle_ns: wire.idle_timeout,
        floors,
        groups,
        counts_waiting: wire.waiting,
        horizon_ns: wire.horizon,
    };
    let idle = wire.idle.into_iter().map(|IdleNodeBody { node, idle }| (NodeId(node), idle)).collect();
    Ok((request, idle))
}

fn check_time(field: &str, time_ns: u64) -> Result<(), Fault> {
    if time_ns > TIME_NS_MOST {
        return Err(invalid(field, format!("{time_ns} ns: give at most {TIME_NS_MOST} (365 days)")));
    }
    Ok(())
}

/// Returns the catalog with the kinds of these amounts, for this request only.
fn with_kinds<'a>(
    amounts: impl Iterator<Item = &'a NamedAmount>,
    catalog: &Catalog,
) -> Result<Catalog, Fault> {
    let mut with = catalog.clone();
    for NamedAmount { name, .. } in amounts {
        if with.resources.id(name).is_none() {
            check_custom_name("custom", name)?;
            let learned = Arc::make_mut(&mut with.resources).learn(name);
            learned.map_err(|error| invalid("custom", error.to_string()))?;
        }
    }
    Ok(with)
}

fn node_type(wire: NodeTypeBody, catalog: &Catalog) -> Result<NodeType, Fault> {
    let NodeTypeBody { node, min, max, launching, launch_time, idle_timeout } = wire;
    check_time("launch_time", launch_time)?;
    check_time("idle_timeout", idle_timeout.unwrap_or(0))?;
    let mut resources = (*catalog.resources).clone();
    let spec = node_spec(node, &mut resources).map_err(|fault| fault.within("node"))?;
    Ok(NodeType {
        name: Arc::clone(&spec.name),
        spec,
        min,
        max,
        launching,
        launch_ns: launch_time,
        idle_ns: idle_timeout,
    })
}

fn bundles(
    field: &str,
    wire: Vec<BundlesBody>,
    catalog: &Catalog,
    defaults: PlacementDefaults,
) -> Result<Vec<Bundles>, Fault> {
    let one = |(at, BundlesBody { request, count }): (usize, BundlesBody)| {
        let place = |fault: Fault| fault.within(format_args!("{field}[{at}]"));
        check_task(&request).map_err(place)?;
        let request = placement_request(request, catalog, defaults);
        let request = request.map_err(|reply| place(reply.fault.unwrap_or_default()))?;
        Ok(Bundles { request, count })
    };
    wire.into_iter().enumerate().map(one).collect()
}

fn pending_group(
    wire: PendingGroupBody,
    catalog: &Catalog,
    defaults: PlacementDefaults,
) -> Result<PendingGroup, Fault> {
    check_name("name", &wire.name)?;
    let domain = if wire.domain.is_empty() {
        None
    } else {
        check_name("domain", &wire.domain)?;
        Some(wire.domain.into())
    };
    let spread = "rule of spreading: give 0 (any), 1 (apart) or 2 (together)";
    Ok(PendingGroup {
        spread: chosen(&SPREADS, wire.spread, "spread", spread)?,
        bundles: bundles("bundles", wire.bundles, catalog, defaults)?,
        name: wire.name.into(),
        domain,
        priority: wire.priority,
    })
}

/// Converts a plan of nodes to the wire. `groups` are the names of the groups of the request.
pub fn plan_reply(view: &NodesView, groups: &[String], catalog: &Catalog) -> PlanNodesReply {
    let plan = &view.plan;
    let name = |job: JobId| view.names.get(&job).map(ToString::to_string).unwrap_or_default();
    let mut refusals = 0;
    let unplaced = plan.unplaced.iter().take(UNPLACED_MAX).map(|left| {
        let (asker, number, name) = match left.asker {
            Asker::Floor(at) => (ASKER_FLOOR, u64::from(at), String::new()),
            Asker::Group(at) => {
                (ASKER_GROUP, u64::from(at), groups.get(at as usize).cloned().unwrap_or_default())
            }
            Asker::Waiting(group) => (ASKER_WAITING_GROUP, group.number, group.to_string()),
            Asker::Job(job) => (ASKER_JOB, job.0, name(job)),
            Asker::Placements => (ASKER_PLACEMENTS, 0, String::new()),
        };
        let mut body = UnplacedBody { asker, number, name, count: left.count, ..UnplacedBody::default() };
        body.reason = match &left.reason {
            Unfit::Cap { queue, of } => {
                body.queue = queue.to_string();
                body.resource = capped_name(*of, &catalog.resources);
                UNFIT_CAP
            }
            Unfit::Never(refusal) => {
                if refusals < PLAN_REFUSALS_MAX {
                    refusals += 1;
                    body.refusal = Some(refusal_body(refusal, catalog));
                }
                UNFIT_NEVER
            }
            Unfit::OnlyPresent => UNFIT_ONLY_PRESENT,
            Unfit::TypeLimit => UNFIT_TYPE_LIMIT,
            Unfit::AllLimit => UNFIT_ALL_LIMIT,
            Unfit::Gang => UNFIT_GANG,
            Unfit::Topology => UNFIT_TOPOLOGY,
            Unfit::Undecided => UNFIT_UNDECIDED,
        };
        body
    });
    let unplaced = unplaced.collect();
    let removals = plan.removals.iter().take(PLAN_ROWS_PER_MESSAGE_MAX).map(|one| RemovalBody {
        node: one.node.0,
        node_name: catalog.node_name(one.node).map(ToString::to_string).unwrap_or_default(),
        of_type: one.of_type,
        idle: one.idle_ns,
        cause: match one.cause {
            RemovalCause::Idle => REMOVAL_IDLE,
            RemovalCause::TypeLimit => REMOVAL_TYPE_LIMIT,
            RemovalCause::AllLimit => REMOVAL_ALL_LIMIT,
        },
    });
    let starts = plan.starts.iter().take(PLAN_ROWS_PER_MESSAGE_MAX).map(|start| StartBody {
        after: start.after_ns,
        job: start.job.0,
        name: name(start.job),
        tasks: start.tasks,
    });
    let waiting = plan.waiting.iter().take(UNPLACED_MAX);
    let is_cut = plan.unplaced.len() > UNPLACED_MAX
        || plan.removals.len() > PLAN_ROWS_PER_MESSAGE_MAX
        || plan.starts.len() > PLAN_ROWS_PER_MESSAGE_MAX
        || plan.waiting.len() > UNPLACED_MAX;
    PlanNodesReply {
        types: plan
            .types
            .iter()
            .map(|of| TypePlanBody {
                present: of.present,
                launching: of.launching,
                needed: of.needed,
                launch: of.launch,
                cancel: of.cancel,
            })
            .collect(),
        fit_present: plan.fit_present,
        fit_needed: plan.fit_needed,
        unplaced,
        removals: removals.collect(),
        starts: starts.collect(),
        waiting: waiting.map(|&job| WaitingJobBody { job: job.0, name: name(job) }).collect(),
        is_partial: plan.is_partial || is_cut,
        left_out: plan.left_out,
        measured_ends: plan.measured_ends,
        ..PlanNodesReply::default()
    }
}
