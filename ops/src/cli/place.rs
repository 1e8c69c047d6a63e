//! `wharf place` and `wharf release`.

use clap::Args;
use wharf_core::ids::AllocationId;
use wharf_core::request::Policy;
use wharf_core::resource::Amount;
use wharf_net::convert::policy_number;
use wharf_net::protocol::{
    EXPLAIN_BOUNDED, EXPLAIN_FULL, Name, OPERATOR_EXISTS, OPERATOR_IN, OPERATOR_NOT_EXISTS, OPERATOR_NOT_IN,
    POLICY_DEFAULT, PlaceRequest, ReleaseBatch, ReleaseRequest, SelectorTerm,
};

use super::connect::{ConnectArgs, Usage};
use super::{Ended, node, print};

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
    /// Which of the fitting nodes: least-fit, best-fit, first-fit, next-fit, random,
    /// fgd or least-stranded; the
    /// server's if not given.
    #[arg(long)]
    policy: Option<Policy>,
    /// A condition on labels: KEY=VALUE, KEY=ONE|OTHER, KEY!=VALUE, KEY (is there) or !KEY (is
    /// not there); may be given several times, and all must hold.
    #[arg(long = "select", value_name = "TERM")]
    selectors: Vec<String>,
    /// Only these nodes, by id; may be given several times.
    #[arg(long = "candidate", value_name = "ID", value_parser = node_id)]
    candidates: Vec<u64>,
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

fn selector(text: &str) -> Result<SelectorTerm, Usage> {
    let term = |key: &str, operator, values: &str| SelectorTerm {
        key: key.to_owned(),
        operator,
        values: values.split('|').filter(|v| !v.is_empty()).map(|v| Name(v.to_owned())).collect(),
    };
    let term = if let Some((key, values)) = text.split_once("!=") {
        term(key, OPERATOR_NOT_IN, values)
    } else if let Some((key, values)) = text.split_once('=') {
        term(key, OPERATOR_IN, values)
    } else if let Some(key) = text.strip_prefix('!') {
        term(key, OPERATOR_NOT_EXISTS, "")
    } else {
        term(text, OPERATOR_EXISTS, "")
    };
    if term.key.is_empty() || (text.contains('=') && term.values.is_empty()) {
        return Err(Usage(format!(
            "--select {text}: give KEY=VALUE, KEY=ONE|OTHER, KEY!=VALUE, KEY or !KEY"
        )));
    }
    Ok(term)
}

pub(super) async fn place(args: PlaceArgs) -> anyhow::Result<Ended> {
    let request = PlaceRequest {
        cpu: args.cpu.units(),
        memory: args.memory.units(),
        gpu: args.gpu.units(),
        custom: node::named_amounts("--resource", &args.resources)?,
        policy: args.policy.map_or(POLICY_DEFAULT, policy_number),
        selectors: args.selectors.iter().map(|text| selector(text)).collect::<Result<_, _>>()?,
        candidates: args.candidates,
        explain: if args.explain_all { EXPLAIN_FULL } else { EXPLAIN_BOUNDED },
        ..PlaceRequest::default()
    };
    let client = args.connect.connect().await?;
    let reply = client.place(&request).await?;
    client.close().await;
    if args.connect.json {
        print::json(&print::PlaceView::from(&reply))?;
    } else {
        print::place(&reply);
    }
    Ok(if reply.reason.is_done() { Ended::Done } else { Ended::Refused })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_read_in_every_spelling() {
        let read = |text: &str| selector(text).map(|t| (t.key, t.operator, t.values.len())).ok();
        assert_eq!(read("gpu-model=T4|P100"), Some(("gpu-model".into(), OPERATOR_IN, 2)));
        assert_eq!(read("zone!=a"), Some(("zone".into(), OPERATOR_NOT_IN, 1)));
        assert_eq!(read("ssd"), Some(("ssd".into(), OPERATOR_EXISTS, 0)));
        assert_eq!(read("!ssd"), Some(("ssd".into(), OPERATOR_NOT_EXISTS, 0)));
        for broken in ["", "=a", "zone=", "zone!=", "!", "=", "zone=|"] {
            assert_eq!(read(broken), None, "{broken}");
        }
    }
}
