//! `wharf place` and `wharf release`.

use clap::Args;
use wharf_core::ids::AllocationId;
use wharf_core::request::Policy;
use wharf_core::resource::Amount;
use wharf_net::convert::policy_number;
use wharf_net::protocol::{
    AVOID_GPU_DEFAULT, AVOID_GPU_NO, AVOID_GPU_YES, EXPLAIN_BOUNDED, EXPLAIN_FULL, POLICY_DEFAULT,
    PlacePreferences, PlaceReplyV2, PlaceRequest, PlaceRequestV2, ReleaseBatch, ReleaseRequest,
};

use super::connect::ConnectArgs;
use super::{Ended, node, print, terms};

#[derive(Debug, Args)]
pub(super) struct PlaceArgs {
    /// Cores, such as 2 or 0.25.
    #[arg(long, default_value = "0", allow_hyphen_values = true)]
    cpu: Amount,
    /// Memory in MiB, or with a unit: 512, 16GiB.
    #[arg(long, value_parser = node::memory, default_value = "0", allow_hyphen_values = true)]
    memory: Amount,
    /// GPUs: whole ones, or a part of one such as 0.5.
    #[arg(long, default_value = "0", allow_hyphen_values = true)]
    gpu: Amount,
    /// A custom resource, NAME=AMOUNT; may be given several times.
    #[arg(long = "resource", value_name = "NAME=AMOUNT")]
    resources: Vec<String>,
    /// Which of the fitting nodes: least-fit, best-fit, first-fit, next-fit, random, fgd, hybrid,
    /// spread or least-stranded; the server's if not given.
    #[arg(long)]
    policy: Option<Policy>,
    /// A condition on labels: KEY=VALUE, KEY=ONE|OTHER, KEY!=VALUE, `KEY in (ONE,OTHER)`,
    /// `KEY notin (…)`, `KEY>NUMBER`, `KEY<NUMBER`, KEY (is there) or !KEY (is not there); may be
    /// given several times, and all must hold.
    #[arg(long = "select", value_name = "TERM")]
    selectors: Vec<String>,
    /// Only these nodes, by id; may be given several times.
    #[arg(long = "candidate", value_name = "ID", value_parser = node_id)]
    candidates: Vec<u64>,
    /// Conditions that stand in for --select where no node fits, with `;` between them; may be
    /// given several times, tried in order.
    #[arg(long = "fallback", value_name = "TERM;TERM")]
    fallbacks: Vec<String>,
    /// Conditions that should hold, with `;` between them, and their weight of 1 to 100; may be
    /// given several times. Nodes with the greatest sum of weights come first.
    #[arg(long = "prefer", value_name = "TERM;TERM:WEIGHT")]
    preferred: Vec<String>,
    /// A node that is tried before the policy decides, by id; may be given several times, tried
    /// in order.
    #[arg(long = "prefer-node", value_name = "ID", value_parser = node_id)]
    preferred_nodes: Vec<u64>,
    /// This node or none, by id.
    #[arg(long, value_name = "ID", value_parser = node_id, conflicts_with = "candidates")]
    node: Option<u64>,
    /// A taint to tolerate: KEY, KEY=VALUE or `*`, and if given an effect after a colon; may be
    /// given several times.
    #[arg(long = "tolerate", value_name = "KEY=VALUE:EFFECT")]
    tolerations: Vec<String>,
    /// Nodes without GPUs first, if no GPU is asked (`=false`: all alike); as the server is
    /// configured if not given.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    avoid_gpu: Option<bool>,
    /// Count the reasons of a refusal over all nodes, however many.
    #[arg(long)]
    explain_all: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct ReleaseArgs {
    /// Allocations, as `wharf place` printed them.
    #[arg(required = true)]
    allocations: Vec<AllocationId>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// A node id as `wharf node list` prints it, with or without its `n`.
fn node_id(text: &str) -> Result<u64, String> {
    let number = text.strip_prefix('n').unwrap_or(text);
    number
        .parse()
        .map_err(|_| format!("`{text}` is no node id: give one such as n7, as `wharf node list` prints it"))
}

pub(super) async fn place(args: PlaceArgs) -> anyhow::Result<Ended> {
    let request = PlaceRequest {
        cpu: args.cpu.units(),
        memory: args.memory.units(),
        gpu: args.gpu.units(),
        custom: node::named_amounts("--resource", &args.resources)?,
        policy: args.policy.map_or(POLICY_DEFAULT, policy_number),
        selectors: args
            .selectors
            .iter()
            .map(|text| terms::term("--select", text))
            .collect::<Result<_, _>>()?,
        tolerations: args.tolerations.iter().map(|text| terms::toleration(text)).collect::<Result<_, _>>()?,
        candidates: args.candidates,
        explain: if args.explain_all { EXPLAIN_FULL } else { EXPLAIN_BOUNDED },
        ..PlaceRequest::default()
    };
    let preferences = PlacePreferences {
        fallbacks: args.fallbacks.iter().map(|text| terms::fallback(text)).collect::<Result<_, _>>()?,
        preferred_selectors: args
            .preferred
            .iter()
            .map(|text| terms::preferred(text))
            .collect::<Result<_, _>>()?,
        preferred_nodes: args.preferred_nodes,
        node: args.node.unwrap_or(0),
        avoid_gpu: match args.avoid_gpu {
            None => AVOID_GPU_DEFAULT,
            Some(true) => AVOID_GPU_YES,
            Some(false) => AVOID_GPU_NO,
        },
    };
    let client = args.connect.connect().await?;
    // A server of an earlier version reads a request that says nothing new.
    let reply: PlaceReplyV2 = if preferences == PlacePreferences::default() {
        client.place(&request).await?.into()
    } else {
        client.place_v2(&PlaceRequestV2 { request, preferences }).await?
    };
    client.close().await;
    if args.connect.json {
        print::json(&print::PlaceView::from(&reply))?;
    } else {
        print::place(&reply);
    }
    Ok(if reply.reply.reason.is_done() { Ended::Done } else { Ended::Refused })
}

pub(super) async fn release(args: ReleaseArgs) -> anyhow::Result<Ended> {
    let client = args.connect.connect().await?;
    let mut views = Vec::new();
    let mut all_done = true;
    for allocations in args.allocations.chunks(wharf_core::limits::PLACEMENTS_PER_MESSAGE_MAX) {
        let requests = allocations.iter().map(|&id| ReleaseRequest { allocation: id.into() }).collect();
        let replies = client.release_batch(&ReleaseBatch { requests }).await?.replies;
        for (&id, reply) in allocations.iter().zip(&replies) {
            all_done &= reply.reason.is_done();
            match &reply.fault {
                _ if args.connect.json => views.push(print::ReleaseView::new(id, reply)),
                Some(fault) => print::say(format_args!("{id}: {fault}")),
                None => print::say(format_args!("{id}: released")),
            }
        }
    }
    client.close().await;
    if args.connect.json {
        print::json(&views)?;
    }
    Ok(if all_done { Ended::Done } else { Ended::Refused })
}
