//! `wharf group`: placement groups.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use wharf_core::group::Strategy;
use wharf_core::ids::GroupId;
use wharf_net::client::Client;
use wharf_net::convert::strategy_number;
use wharf_net::protocol::{
    BundleTemplate, CONFLICT_DETECTION_COARSE, CONFLICT_DETECTION_FINE, CreateGroupRequest, EXPLAIN_BOUNDED,
    EXPLAIN_FULL, GroupReply, GroupSummary, GrowGroupRequest, ListGroupsRequest, NamedAmount, PlaceRequest,
    RemoveGroupReply, SelectorTerm, ShrinkGroupRequest, TOPOLOGY_PACK, TOPOLOGY_SPREAD, TOPOLOGY_STRICT_PACK,
    Toleration, TopologyBody, kinds,
};

use super::connect::{ConnectArgs, DeadlineArgs, Each, Usage};
use super::demand::DemandArgs;
use super::{Ended, group_view, node, place};
use crate::terms;
use crate::units;

#[derive(Debug, Subcommand)]
pub(super) enum GroupCommand {
    /// Create a group. Its bundles are placed together or not at all.
    Create(Box<CreateArgs>),
    /// Show a group and where its bundles are placed.
    Status(OneArgs),
    /// List the groups.
    List(ConnectArgs),
    /// Add bundles to a group, all or none.
    Grow(Box<GrowArgs>),
    /// Remove bundles from a group, and the allocations inside them.
    Shrink(ShrinkArgs),
    /// Remove groups, and the allocations inside their bundles.
    Remove(RemoveArgs),
}

#[derive(Debug, Args)]
struct BundleArgs {
    /// The number of equal bundles, each with --cpu, --memory, --gpu and --resource.
    #[arg(long, value_name = "N", conflicts_with = "bundle")]
    bundles: Option<u32>,
    #[command(flatten)]
    demand: DemandArgs,
    /// Equal bundles, such as `cpu=4,memory=8GiB,gpu=1,count=2`; may be given several times. Names other than
    /// cpu, memory, gpu and count are custom resources.
    #[arg(long, value_name = "WHAT", value_parser = bundle, conflicts_with_all = ["cpu", "memory", "gpu", "resources"])]
    bundle: Vec<(PlaceRequest, u32)>,
    /// A label condition for the node of every bundle, as for `wharf place`; may be given several times, and
    /// all must hold.
    #[arg(long = "select", value_name = "TERM", value_parser = terms::term)]
    selectors: Vec<SelectorTerm>,
    /// A taint that every bundle tolerates, as for `wharf place`; may be given several times.
    #[arg(long = "tolerate", value_name = "KEY=VALUE:EFFECT", value_parser = terms::toleration)]
    tolerations: Vec<Toleration>,
    /// Count the reasons of a refusal over all nodes.
    #[arg(long)]
    explain_all: bool,
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    #[command(flatten)]
    bundles: BundleArgs,
    /// The distribution of bundles: pack (few nodes), spread (many nodes), strict-pack (one node) or
    /// strict-spread (a different node each).
    #[arg(long, default_value = "pack", value_parser = strategy)]
    strategy: Strategy,
    /// Prefer nodes with the same value of the label. With a trailing `!`, require it.
    #[arg(long, value_name = "LABEL[!]", value_parser = pack_by, conflicts_with = "spread_by")]
    pack_by: Option<TopologyBody>,
    /// Spread evenly over the values of the label: the numbers of bundles of any two values differ by at most
    /// SKEW, 1 if not given.
    #[arg(long, value_name = "LABEL[:SKEW]", value_parser = spread_by)]
    spread_by: Option<TopologyBody>,
    /// Place at least this number of bundles or none; all if not given. The others are placed when they fit.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    min_members: Option<u32>,
    /// Wait for capacity, at most this long, such as 30s, 5m or 1h. Interrupting the command cancels the
    /// request. Without this option the group is placed or refused at once; after repeated conflicts it is
    /// retried for about ten seconds.
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    wait: Option<Duration>,
    /// Waiting groups of higher priority are placed first.
    #[arg(long, default_value_t = 0, requires = "wait", allow_hyphen_values = true)]
    priority: i32,
    /// Charge the bundles to this queue, whose caps bound them. Without it: the queue that the settings of the service give, if
    /// any.
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Treat every change of a node since it was read as a conflict, not only operations that no longer fit.
    #[arg(long)]
    coarse: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct OneArgs {
    /// The group id, as printed by `wharf group create`.
    group: GroupId,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct GrowArgs {
    /// The group id.
    group: GroupId,
    #[command(flatten)]
    bundles: BundleArgs,
    /// Wait for capacity, at most this long, such as 30s, 5m or 1h. Interrupting the command cancels the
    /// request. New bundles can wait only while all existing bundles of the group are placed.
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    wait: Option<Duration>,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct ShrinkArgs {
    /// The group id.
    group: GroupId,
    /// The indexes of the bundles, as shown by `wharf group status`.
    #[arg(required = true, value_name = "BUNDLE")]
    bundles: Vec<u32>,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    /// The group ids.
    #[arg(required = true)]
    groups: Vec<GroupId>,
    #[command(flatten)]
    connect: ConnectArgs,
}

fn strategy(text: &str) -> Result<Strategy, String> {
    let known = Strategy::NAMES.iter().find(|(_, name)| *name == text).map(|&(strategy, _)| strategy);
    known.ok_or_else(|| {
        let names: Vec<&str> = Strategy::NAMES.iter().map(|&(_, name)| name).collect();
        format!("`{text}` is no strategy: give {}", names.join(", "))
    })
}

/// Parses `LABEL` or `LABEL!`.
fn pack_by(text: &str) -> Result<TopologyBody, Usage> {
    let (key, rule) = match text.strip_suffix('!') {
        Some(key) => (key, TOPOLOGY_STRICT_PACK),
        None => (text, TOPOLOGY_PACK),
    };
    if key.is_empty() {
        return Err(Usage("give a label, such as zone, or `zone!`".to_owned()));
    }
    Ok(TopologyBody { key: key.to_owned(), rule, max_skew: 0 })
}

/// Parses `LABEL` or `LABEL:SKEW`.
fn spread_by(text: &str) -> Result<TopologyBody, Usage> {
    let (key, skew) = text.rsplit_once(':').unwrap_or((text, "1"));
    match skew.parse() {
        Ok(max_skew) if max_skew > 0 && !key.is_empty() => {
            Ok(TopologyBody { key: key.to_owned(), rule: TOPOLOGY_SPREAD, max_skew })
        }
        _ => Err(Usage("give a label, such as zone, or zone:2 for a skew of 2".to_owned())),
    }
}

/// Parses `cpu=4,memory=8GiB,gpu=1,count=2` to a bundle and its count.
fn bundle(text: &str) -> Result<(PlaceRequest, u32), Usage> {
    let mut request = PlaceRequest::default();
    let mut count = None;
    let mut seen = Vec::new();
    for part in text.split(',') {
        let (name, value) = part
            .split_once('=')
            .map(|(name, value)| (name.trim(), value.trim()))
            .filter(|(name, value)| !name.is_empty() && !value.is_empty())
            .ok_or_else(|| {
                Usage(format!("`{part}` is not NAME=AMOUNT, such as cpu=4,memory=8GiB,gpu=1,count=2"))
            })?;
        let name = if name == "gpus" { "gpu" } else { name };
        if seen.contains(&name) {
            return Err(Usage(format!("`{name}` is given twice: give each once")));
        }
        seen.push(name);
        if name == "count" {
            let number = value.parse().ok().filter(|&number: &u32| number > 0);
            let none = || Usage(format!("`{value}` is no number of bundles: give 1 or more"));
            count = Some(number.ok_or_else(none)?);
            continue;
        }
        let amount = node::amount(name, value).map_err(|error| Usage(format!("{name}: {error}")))?;
        match name {
            "cpu" => request.demand.cpu = amount,
            "memory" => request.demand.memory = amount,
            "gpu" => request.demand.gpu = amount,
            _ => request.demand.custom.push(NamedAmount { name: name.to_owned(), amount }),
        }
    }
    if seen == ["count"] {
        return Err(Usage("it takes nothing: say how much of what, such as cpu=4".to_owned()));
    }
    Ok((request, count.unwrap_or(1)))
}

impl BundleArgs {
    fn templates(&self) -> Result<Vec<BundleTemplate>, Usage> {
        let mut bundles = self.bundle.clone();
        if bundles.is_empty() {
            let request = PlaceRequest { demand: self.demand.body(), ..PlaceRequest::default() };
            if request == PlaceRequest::default() {
                let message = "no bundle is given: give --bundle, or --bundles N and what each takes";
                return Err(Usage(message.to_owned()));
            }
            bundles.push((request, self.bundles.unwrap_or(1)));
        }
        let explain = if self.explain_all { EXPLAIN_FULL } else { EXPLAIN_BOUNDED };
        let template = |(request, count): (PlaceRequest, u32)| {
            let selectors = self.selectors.clone();
            let tolerations = self.tolerations.clone();
            let request = PlaceRequest { selectors, tolerations, explain, ..request };
            BundleTemplate { request, count }
        };
        Ok(bundles.into_iter().map(template).collect())
    }
}

pub(super) async fn run(command: GroupCommand) -> anyhow::Result<Ended> {
    match command {
        GroupCommand::Create(args) => create(*args).await,
        GroupCommand::Status(args) => {
            let ask = async |client: &Client| client.group_status(args.group.into()).await;
            end(&args.connect, &args.connect.ask(ask).await?, None)
        }
        GroupCommand::List(connect) => {
            let page = async |client: &Client, last: Option<&GroupSummary>| {
                let after = last.map(|group| group.id);
                let page = client.list_groups(&ListGroupsRequest { after, limit: 0 }).await?;
                Ok((page.groups, page.more))
            };
            let groups = connect.list(page).await?;
            let view = || groups.iter().map(group_view::summary_view).collect();
            connect.show(true, view, || group_view::say_summaries(&groups))
        }
        GroupCommand::Grow(args) => grow(*args).await,
        GroupCommand::Shrink(args) => {
            let request = ShrinkGroupRequest { group: args.group.into(), bundles: args.bundles };
            let reply = args.connect.ask(async |client| client.shrink_group(&request).await).await?;
            end(&args.connect, &reply, Some("shrunk"))
        }
        GroupCommand::Remove(args) => remove(args).await,
    }
}

/// Prints the group, or why it is refused. `done` is the completed action, such as "created".
fn end(connect: &ConnectArgs, reply: &GroupReply, done: Option<&str>) -> anyhow::Result<Ended> {
    let view = || group_view::reply_view(reply);
    connect.show(reply.reason.is_done(), view, || group_view::say_group(reply, done))
}

async fn create(args: CreateArgs) -> anyhow::Result<Ended> {
    let mut bundles = args.bundles.templates()?;
    if let Some(queue) = &args.queue {
        bundles.iter_mut().for_each(|bundle| bundle.request.queue.clone_from(queue));
    }
    let request = CreateGroupRequest {
        bundles,
        strategy: strategy_number(args.strategy),
        topology: args.pack_by.or(args.spread_by),
        min_members: args.min_members.unwrap_or(0),
        priority: args.priority,
        conflict_detection: if args.coarse { CONFLICT_DETECTION_COARSE } else { CONFLICT_DETECTION_FINE },
        ..CreateGroupRequest::default()
    };
    let ask = place::ask_or_wait::<kinds::CreateGroup>;
    let none = DeadlineArgs::default();
    let reply = ask(&args.connect, none, request, args.wait, |of| (&mut of.mode, &mut of.deadline)).await?;
    end(&args.connect, &reply, Some("created"))
}

async fn grow(args: GrowArgs) -> anyhow::Result<Ended> {
    let request = GrowGroupRequest {
        group: args.group.into(),
        bundles: args.bundles.templates()?,
        ..GrowGroupRequest::default()
    };
    let ask = place::ask_or_wait::<kinds::GrowGroup>;
    let none = DeadlineArgs::default();
    let reply = ask(&args.connect, none, request, args.wait, |of| (&mut of.mode, &mut of.deadline)).await?;
    end(&args.connect, &reply, Some("grown"))
}

async fn remove(args: RemoveArgs) -> anyhow::Result<Ended> {
    let ask =
        async |client: &Client, groups: &[GroupId]| Ok(vec![client.remove_group(groups[0].into()).await?]);
    let print = Each {
        subject: GroupId::to_string,
        done: &|group, reply: &RemoveGroupReply| {
            format!("{group}: removed, with {} bundles", reply.bundles_ended)
        },
        fields: |group, reply| {
            (json!({ "group": group.to_string() }), json!({ "bundles_ended": reply.bundles_ended }))
        },
    };
    args.connect.ask_each(&args.groups, 1, ask, print).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use wharf_core::ids::{Incarnation, TenantId};

    #[test]
    fn bundles_are_read_by_name() {
        let (request, count) = bundle("cpu=4, memory=8GiB,gpus=1,count=2,npu=3").unwrap();
        assert_eq!(
            (request.demand.cpu, request.demand.memory, request.demand.gpu, count),
            (40_000, 81_920_000, 10_000, 2)
        );
        assert_eq!(request.demand.custom, [NamedAmount { name: "npu".to_owned(), amount: 30_000 }]);
        assert_eq!(bundle("cpu=0.5").unwrap().1, 1);
        for broken in
            ["", "cpu", "cpu=", "=4", "cpu=x", "cpu=1,cpu=2", "gpu=1,gpus=1", "count=2", "cpu=1,count=0"]
        {
            let error = bundle(broken).unwrap_err().0;
            assert!(error.contains("such as") || error.contains("give"), "{error}");
        }
    }

    #[test]
    fn topologies_are_read() {
        let read = |body: Result<TopologyBody, Usage>| body.map(|b| (b.key, b.rule, b.max_skew)).ok();
        assert_eq!(read(pack_by("zone")), Some(("zone".to_owned(), TOPOLOGY_PACK, 0)));
        assert_eq!(read(pack_by("zone!")), Some(("zone".to_owned(), TOPOLOGY_STRICT_PACK, 0)));
        assert_eq!(read(spread_by("zone")), Some(("zone".to_owned(), TOPOLOGY_SPREAD, 1)));
        assert_eq!(read(spread_by("a:b:3")), Some(("a:b".to_owned(), TOPOLOGY_SPREAD, 3)));
        assert_eq!([pack_by("!").is_err(), pack_by("").is_err()], [true; 2]);
        assert!([":1", "zone:0", "zone:x", "zone:"].into_iter().all(|text| spread_by(text).is_err()));
    }

    #[test]
    fn group_ids_are_read_as_they_are_printed() {
        let id = GroupId { incarnation: Incarnation(3), number: 1 << 40, tenant: TenantId::OPERATOR };
        assert_eq!(id.to_string().parse(), Ok(id));
        for broken in ["", "g", "g1", "1-2", "g1-2-0", "g-1-2", "gx-1", "a1-2-3"] {
            assert!(
                broken.parse::<GroupId>().unwrap_err().to_string().contains(&format!("`{broken}`")),
                "{broken}"
            );
        }
    }
}
