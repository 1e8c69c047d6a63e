//! Plans of nodes in scenarios: what is asked for, and what was expected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_saphyr::Location;
use wharf_core::demand::{
    Asker, Bundles, IdleClock, NodeType, NodesPlan, NodesRequest, PendingGroup, TypePlan, Unfit, plan_nodes,
};
use wharf_core::group::WaitingWork;
use wharf_core::ids::NodeId;
use wharf_core::jobs::{JobId, NodesView};
use wharf_core::registrar::Catalog;
use wharf_net::convert::plan_reply;
use wharf_net::protocol::PlanNodesReply;

use super::build::World;
use super::expect::Found;
use super::file::ExpectFile;
use crate::job_file::bounded;
use crate::line_error::LineError;
use crate::plan_file::{AskFile, AutoscalingFile, BundlesFile, NodeTypeFile, PlanFile};

/// A plan with what it was asked for.
pub(super) struct Planned {
    pub(super) request: NodesRequest,
    pub(super) plan: NodesPlan,
}

/// Plans nodes for a cluster, which stays as it is.
pub(super) fn run(
    world: &mut World,
    types: &AutoscalingFile,
    ask: &AskFile,
    clock: &IdleClock,
) -> Result<Planned, LineError> {
    let request = request(world, types, ask)?;
    let now = world.cluster.now();
    let mut clock = clock.clone();
    for (name, idle) in &ask.idle {
        let node = world.node_named(name)?;
        clock.set(node, idle.0, now);
    }
    let plan = plan_nodes(&request, &WaitingWork::default(), world.cluster.copy(), &clock)
        .map_err(|error| LineError::at(Location::UNKNOWN, error.to_string()))?;
    Ok(Planned { request, plan })
}

fn request(world: &mut World, types: &AutoscalingFile, ask: &AskFile) -> Result<NodesRequest, LineError> {
    let mut launching = vec![0; types.node_types.len()];
    for (name, &count) in &ask.launching {
        launching[types.type_named(name)?] = count;
    }
    let mut node_types = Vec::new();
    for (file, launching) in types.node_types.iter().zip(launching) {
        node_types.push(node_type(world, file, launching)?);
    }
    let groups = ask.groups.iter().map(|group| {
        Ok(PendingGroup {
            name: group.name.value.as_str().into(),
            bundles: bundles(world, &group.bundles, group.name.referenced)?,
            spread: group.spread.spread(),
            domain: group.domain.as_deref().map(Arc::from),
            priority: group.priority,
        })
    });
    let groups: Vec<PendingGroup> = groups.collect::<Result<_, LineError>>()?;
    Ok(NodesRequest {
        types: node_types,
        type_label: types.type_label().into(),
        nodes_max: types.nodes_max,
        upscaling_speed: types.speed()?,
        launches_max: types.launches_max,
        idle_ns: bounded(types.idle_timeout, "idle_timeout", Location::UNKNOWN)?,
        floors: bundles(world, &ask.floors, Location::UNKNOWN)?,
        groups,
        counts_waiting: ask.waiting.unwrap_or(true),
        horizon_ns: ask.horizon_ns()?,
    })
}

fn node_type(world: &mut World, file: &NodeTypeFile, launching: u32) -> Result<NodeType, LineError> {
    let place = file.name.referenced;
    let spec = world.node_spec(&file.name, &file.amounts(), &file.labels, file.taints()?)?;
    Ok(NodeType {
        name: file.name.value.as_str().into(),
        spec,
        min: file.min,
        max: file.max,
        launching,
        launch_ns: bounded(file.launch_time, "launch_time", place)?.unwrap_or(0),
        idle_ns: bounded(file.idle_timeout, "idle_timeout", place)?,
    })
}

fn bundles(world: &mut World, files: &[BundlesFile], place: Location) -> Result<Vec<Bundles>, LineError> {
    let one = |file: &BundlesFile| {
        let request = world.bundle(&file.amounts(), (&file.selector, &file.tolerations), place)?;
        Ok(Bundles { request, count: file.count })
    };
    files.iter().map(one).collect()
}

/// Checks what a file describes and asks for.
pub(super) fn check_file(file: &PlanFile) -> Result<World, LineError> {
    let mut world = World::of_plan(file)?;
    let types = &file.autoscaling;
    let request = request(&mut world, &types.value, &file.plan);
    let checked = request.and_then(|request| {
        request.check().map_err(|error| LineError::at(Location::UNKNOWN, error.to_string()))
    });
    checked.map_err(|error| error.in_block(types.referenced))?;
    if !file.nodes.is_empty() {
        file.plan.idle.keys().try_for_each(|name| world.node_named(name).map(drop))?;
    }
    Ok(world)
}

/// Plans nodes for what a file describes, as a service would answer it.
pub(super) fn offline(file: &PlanFile) -> Result<(Vec<String>, PlanNodesReply), LineError> {
    let mut world = World::of_plan(file)?;
    let mut clock = IdleClock::default();
    let view = world.cluster.view();
    clock.look([&*view].into_iter(), world.cluster.now());
    let planned = run(&mut world, &file.autoscaling.value, &file.plan, &clock);
    let Planned { request, plan } = planned.map_err(|error| error.in_block(file.autoscaling.referenced))?;
    let jobs = world.cluster.scheduler().jobs();
    let names = jobs.jobs().map(|(id, job)| (id, Arc::clone(&job.spec().name))).collect();
    let groups: Vec<String> = request.groups.iter().map(|group| group.name.to_string()).collect();
    let mut catalog = Catalog::default();
    catalog.resources = Arc::new(world.kinds().clone());
    let mut reply = plan_reply(&NodesView { plan, names }, &groups, &catalog);
    for removal in &mut reply.removals {
        removal.node_name = world.node_name(NodeId(removal.node)).to_owned();
    }
    Ok((request.types.iter().map(|of| of.name.to_string()).collect(), reply))
}

/// Returns the name of a reason in files.
fn reason_name(reason: &Unfit) -> &'static str {
    match reason {
        Unfit::Cap { .. } => "cap",
        Unfit::Never(_) => "never",
        Unfit::OnlyPresent => "only-present",
        Unfit::TypeLimit => "type-limit",
        Unfit::AllLimit => "all-limit",
        Unfit::Gang => "gang",
        Unfit::Topology => "topology",
        Unfit::Undecided => "undecided",
    }
}

/// Returns the name of who asks.
pub(super) fn asker_name(world: &World, request: &NodesRequest, asker: Asker) -> String {
    match asker {
        Asker::Floor(at) => format!("floor-{at}"),
        Asker::Group(at) => request.groups[at as usize].name.to_string(),
        Asker::Waiting(group) => group.to_string(),
        Asker::Placements => "placements".to_owned(),
        Asker::Job(job) => job_name(world, job).to_owned(),
    }
}

fn job_name(world: &World, job: JobId) -> &str {
    &world.cluster.scheduler().jobs().job(job).spec().name
}

/// Compares a plan with what was expected of it.
pub(super) fn check(
    world: &World,
    expected: &ExpectFile,
    planned: Option<&Planned>,
    found: &mut Found,
) -> Result<(), LineError> {
    let ExpectFile { launch, needed, cancel, remove, unplaced, starts, waiting, .. } = expected;
    let is_asked = launch.is_some() || needed.is_some() || cancel.is_some() || remove.is_some();
    let is_asked = is_asked || unplaced.is_some() || starts.is_some() || waiting.is_some();
    let Some(Planned { request, plan }) = planned else {
        if is_asked {
            let message = "the step plans no nodes: give it `plan`";
            return Err(LineError::at(Location::UNKNOWN, message));
        }
        return Ok(());
    };
    type Count = fn(&TypePlan) -> u32;
    let counts: [(_, _, Count); 3] = [
        ("launched", launch, |of| of.launch),
        ("needed", needed, |of| of.needed),
        ("cancelled", cancel, |of| of.cancel),
    ];
    for (what, wanted, count) in counts {
        let Some(wanted) = wanted else { continue };
        let there =
            request.types.iter().zip(&plan.types).map(|(of, plan)| (of.name.to_string(), count(plan)));
        compare(what, wanted, &there.filter(|&(_, count)| count > 0).collect(), found);
    }
    if let Some(wanted) = remove {
        let there: Vec<&str> = plan.removals.iter().map(|one| world.node_name(one.node)).collect();
        found.check(there == *wanted, || format!("{there:?} are to be removed, {wanted:?} expected"));
    }
    if let Some(wanted) = unplaced {
        let name = |asker| asker_name(world, request, asker);
        let there = plan.unplaced.iter().map(|left| (name(left.asker), reason_name(&left.reason).to_owned()));
        compare("unplaced", wanted, &there.collect(), found);
    }
    if let Some(wanted) = starts {
        let mut there: BTreeMap<String, Duration> = BTreeMap::new();
        for start in &plan.starts {
            let after = Duration::from_nanos(start.after_ns);
            there.entry(job_name(world, start.job).to_owned()).or_insert(after);
        }
        let wanted = wanted.iter().map(|(job, after)| (job.clone(), Duration::from_nanos(after.0))).collect();
        compare("started", &wanted, &there, found);
    }
    if let Some(wanted) = waiting {
        let there: Vec<&str> = plan.waiting.iter().map(|&job| job_name(world, job)).collect();
        found.check(there == *wanted, || format!("{there:?} wait, {wanted:?} expected"));
    }
    Ok(())
}

fn compare<T: PartialEq + std::fmt::Debug>(
    what: &str,
    wanted: &BTreeMap<String, T>,
    there: &BTreeMap<String, T>,
    found: &mut Found,
) {
    found.check(wanted == there, || format!("{what}: {there:?}; expected: {wanted:?}"));
}
