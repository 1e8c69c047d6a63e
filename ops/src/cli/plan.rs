//! `wharf plan`: the nodes to launch for all that waits, and what would start.

use std::path::{Path, PathBuf};

use clap::Args;
use wharf_core::resource::GpuRequest;
use wharf_net::client::{Client, ClientError};
use wharf_net::convert::wire_taints;
use wharf_net::protocol::{
    BundlesBody, DemandBody, IdleNodeBody, ListRequest, NodeBody, NodeTypeBody, Pair, PendingGroupBody,
    PlaceRequest, PlanNodesReply, PlanNodesRequest, SPREAD_ANY, SPREAD_APART, SPREAD_TOGETHER,
};

use super::connect::{ConnectArgs, block_on};
use super::job_bodies::demand;
use super::{Ended, plan_view, read_text};
use crate::file_error::FileError;
use crate::job_file::bounded;
use crate::line_error::{LineError, documents};
use crate::plan_file::{
    AskFile, AutoscalingFile, BundlesFile, GroupFile, NodeTypeFile, PlanFile, SpreadFile,
};
use crate::scenario;
use crate::terms::TolerationFile;

#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    /// A file with `autoscaling` and `plan`, in YAML or JSON. With --offline, also with `nodes`, `queues` and `jobs`.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Plan for the nodes, queues and jobs of the file, without a service.
    #[arg(long)]
    offline: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// A plan with what is shown of its request.
pub(super) struct Planned {
    /// The names of the types, in the order of the plan.
    pub(super) types: Vec<String>,
    pub(super) reply: PlanNodesReply,
}

/// Runs `wharf plan`.
pub(super) fn run(args: PlanArgs) -> anyhow::Result<Ended> {
    let file = read(&args.file)?;
    if args.offline {
        let (types, reply) = scenario::plan(&file).map_err(|error| FileError::new(&args.file, error))?;
        return show(&args.connect, &Planned { types, reply });
    }
    block_on(ask(args, file))
}

/// Reads the one document of a file.
pub(super) fn read(path: &Path) -> Result<PlanFile, FileError> {
    let text = read_text(path)?;
    let mut files: Vec<PlanFile> = documents(&text).map_err(|error| FileError::new(path, error))?;
    match files.len() {
        1 => Ok(files.remove(0)),
        count => Err(FileError::new(path, format!("it has {count} documents: give one with `autoscaling`"))),
    }
}

async fn ask(args: PlanArgs, file: PlanFile) -> anyhow::Result<Ended> {
    let request = body(&file).map_err(|error| FileError::new(&args.file, error))?;
    let idle = &file.plan.idle;
    let plan = async |client: &Client| {
        let mut request = request;
        if !idle.is_empty() {
            request.idle = idle_nodes(client, &file.plan).await?;
        }
        client.plan_nodes(&request).await
    };
    let reply = args.connect.ask(plan).await?;
    let types = file.autoscaling.value.node_types.iter().map(|of| of.name.value.clone()).collect();
    show(&args.connect, &Planned { types, reply })
}

fn show(connect: &ConnectArgs, planned: &Planned) -> anyhow::Result<Ended> {
    let is_done = planned.reply.reason.is_done();
    connect.show(is_done, || plan_view::view(planned), || plan_view::say(planned))
}

/// Returns the ids of the nodes that a file names. Names of nodes that are gone are left out.
async fn idle_nodes(client: &Client, ask: &AskFile) -> Result<Vec<IdleNodeBody>, ClientError> {
    let mut idle = Vec::new();
    let mut after = 0;
    loop {
        let page = client.list_nodes(&ListRequest { after, limit: 1000 }).await?;
        let named = page.nodes.iter().filter_map(|node| {
            let nanos = ask.idle.get(&node.body.name)?;
            Some(IdleNodeBody { node: node.id, idle: nanos.0 })
        });
        idle.extend(named);
        match page.nodes.last() {
            Some(last) if page.more => after = last.ordinal,
            _ => return Ok(idle),
        }
    }
}

/// Returns what a service is asked for.
pub(super) fn body(file: &PlanFile) -> Result<PlanNodesRequest, LineError> {
    let given = [
        ("nodes", file.nodes.is_empty()),
        ("queues", file.queues.is_empty()),
        ("jobs", file.jobs.is_empty()),
    ];
    if let Some((field, _)) = given.into_iter().find(|&(_, is_empty)| !is_empty) {
        let message = format!("the service has its own `{field}`: leave them out, or give --offline");
        return Err(LineError { line: 0, message });
    }
    let place = file.autoscaling.referenced;
    let types: &AutoscalingFile = &file.autoscaling.value;
    let ask = &file.plan;
    let mut bodies = Vec::new();
    for of in &types.node_types {
        bodies.push(node_type(of)?);
    }
    for (name, &count) in &ask.launching {
        let at = types.type_named(name).map_err(|error| error.in_block(place))?;
        bodies[at].launching = count;
    }
    Ok(PlanNodesRequest {
        types: bodies,
        type_label: types.type_label().to_owned(),
        nodes_max: types.nodes_max,
        upscaling_speed: types.speed().map_err(|error| error.in_block(place))?,
        launches_max: types.launches_max,
        idle_timeout: bounded(types.idle_timeout, "idle_timeout", place)?,
        floors: ask.floors.iter().map(bundles).collect(),
        groups: ask.groups.iter().map(group).collect(),
        horizon: ask.horizon_ns()?,
        idle: Vec::new(),
        waiting: ask.waiting.unwrap_or(true),
    })
}

fn node_type(file: &NodeTypeFile) -> Result<NodeTypeBody, LineError> {
    let place = file.name.referenced;
    let DemandBody { cpu, memory, custom, .. } = demand(&file.amounts());
    let gpu = file.gpu.map(|gpu| GpuRequest::from_amount(gpu.0)).transpose();
    let gpus = match gpu.map_err(|error| LineError::at(place, error))? {
        None | Some(GpuRequest::None) => 0,
        Some(GpuRequest::Whole(devices)) => u32::from(devices),
        Some(GpuRequest::Fraction(_)) => {
            return Err(LineError::at(place, "a node has whole GPUs: give a whole number"));
        }
    };
    let pair = |(key, value): (&String, &String)| Pair { key: key.clone(), value: value.clone() };
    let labels = file.labels.iter().map(pair).collect();
    let name = file.name.value.clone();
    let taints = wire_taints(&file.taints()?);
    let node = NodeBody { name, cpu, memory, gpus, custom, labels, taints, ..NodeBody::default() };
    Ok(NodeTypeBody {
        node,
        min: file.min,
        max: file.max,
        launching: 0,
        launch_time: bounded(file.launch_time, "launch_time", place)?.unwrap_or(0),
        idle_timeout: bounded(file.idle_timeout, "idle_timeout", place)?,
    })
}

fn bundles(file: &BundlesFile) -> BundlesBody {
    let request = PlaceRequest {
        demand: demand(&file.amounts()),
        selectors: file.selector.terms(),
        tolerations: file.tolerations.iter().map(TolerationFile::toleration).collect(),
        ..PlaceRequest::default()
    };
    BundlesBody { request, count: file.count }
}

fn group(file: &GroupFile) -> PendingGroupBody {
    PendingGroupBody {
        name: file.name.value.clone(),
        bundles: file.bundles.iter().map(bundles).collect(),
        spread: match file.spread {
            SpreadFile::Any => SPREAD_ANY,
            SpreadFile::Apart => SPREAD_APART,
            SpreadFile::Together => SPREAD_TOGETHER,
        },
        domain: file.domain.clone().unwrap_or_default(),
        priority: file.priority,
    }
}

#[cfg(test)]
mod tests {
    use wharf_net::protocol::{EFFECT_NO_EXECUTE, EFFECT_PREFER_NO_SCHEDULE};

    use super::*;

    fn read_body(text: &str) -> Result<PlanNodesRequest, LineError> {
        body(&documents::<PlanFile>(text)?.remove(0))
    }

    #[test]
    fn a_request_is_what_is_written() {
        let text = "
autoscaling:
  type_label: kind
  nodes_max: 9
  upscaling_speed: 0.5
  launches_max: 3
  idle_timeout: 5m
  node_types:
  - {name: small, cpu: 4, memory: 8Gi, min: 1, max: 5, launch_time: 2m}
  - {name: gpu, cpu: 8, gpu: 2, resources: {fpga: 1}, labels: {zone: a}, taints: ['gpu=yes:NoExecute', 'new:PreferNoSchedule'], max: 2, idle_timeout: 1m}
plan:
  launching: {gpu: 1}
  horizon: 1h
  waiting: false
  floors: [{cpu: 2, count: 3, selector: {zone: a}, tolerations: [gpu]}]
  groups: [{name: pg, spread: apart, domain: rack, priority: 7, bundles: [{gpu: 0.5}]}]
";
        let request = read_body(text).unwrap();
        let [small, gpu] = &request.types[..] else { panic!("{request:?}") };
        assert_eq!((small.node.cpu, small.node.memory, small.min, small.max), (40_000, 81_920_000, 1, 5));
        assert_eq!((small.launch_time, small.launching, small.idle_timeout), (120_000_000_000, 0, None));
        assert_eq!((gpu.node.gpus, gpu.launching, gpu.idle_timeout), (2, 1, Some(60_000_000_000)));
        let taints: Vec<_> = gpu.node.taints.iter().map(|of| (&*of.key, &*of.value, of.effect)).collect();
        assert_eq!(taints, [("gpu", "yes", EFFECT_NO_EXECUTE), ("new", "", EFFECT_PREFER_NO_SCHEDULE)]);
        assert_eq!((&*gpu.node.custom[0].name, &*gpu.node.labels[0].value), ("fpga", "a"));
        assert_eq!(
            (&*request.type_label, request.nodes_max, request.upscaling_speed),
            ("kind", Some(9), 5_000)
        );
        assert_eq!((request.launches_max, request.idle_timeout), (3, Some(300_000_000_000)));
        assert_eq!((request.horizon, request.waiting), (3_600_000_000_000, false));
        let default = read_body("autoscaling:\n  node_types: [{name: a, cpu: 1, max: 1}]\n").unwrap();
        assert!(default.waiting && default.groups.is_empty());
        let [floor] = &request.floors[..] else { panic!("{request:?}") };
        assert_eq!(
            (floor.count, floor.request.demand.cpu, &*floor.request.selectors[0].key),
            (3, 20_000, "zone")
        );
        assert_eq!(&*floor.request.tolerations[0].key, "gpu");
        let [pg] = &request.groups[..] else { panic!("{request:?}") };
        assert_eq!((pg.spread, &*pg.domain, pg.priority), (SPREAD_APART, "rack", 7));
        assert_eq!(pg.bundles[0].request.demand.gpu, 5_000);
    }

    #[test]
    fn a_fault_in_a_file_names_a_remedy() {
        let types = "autoscaling:\n  node_types: [{name: a, cpu: 1, max: 1}]\n";
        let cases = [
            (format!("{types}nodes: [{{name: n}}]\n"), "give --offline"),
            (format!("{types}plan: {{launching: {{b: 1}}}}\n"), "there is no node type `b`"),
            (types.replace("cpu: 1", "gpu: 0.5"), "whole GPUs"),
            (types.replace("max: 1", "maximum: 1"), "maximum"),
            (types.replace("max: 1", "max: 1, taints: [a=b]"), "`a=b` is no taint: give KEY=VALUE:EFFECT"),
            (types.replace("max: 1", "max: 1, taints: ['a:NoSchedule', 'a=b:NoSchedule']"), "`a`"),
            (format!("{types}plan: {{horizon: 9999999h}}\n"), "more than 100,000 hours"),
            ("plan: {}\n".to_owned(), "autoscaling"),
        ];
        for (text, part) in cases {
            let error = read_body(&text).expect_err(&text);
            assert!(error.message.contains(part), "{error} for\n{text}");
        }
    }
}
