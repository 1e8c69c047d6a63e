//! `wharf place` and `wharf release`.

use std::time::Duration;

use clap::Args;
use wharf_core::ids::AllocationId;
use wharf_core::request::Policy;
use wharf_core::resource::Amount;
use wharf_net::client::Client;
use wharf_net::convert::policy_number;
use wharf_net::protocol::{
    EXPLAIN_BOUNDED, EXPLAIN_FULL, MODE_WAIT_UNTIL, Name, OPERATOR_EXISTS, OPERATOR_IN, OPERATOR_NOT_EXISTS,
    OPERATOR_NOT_IN, POLICY_DEFAULT, PlaceReply, PlaceRequest, ReleaseBatch, ReleaseRequest, SelectorTerm,
    StatusRequest,
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
    /// Which of the fitting nodes: least-fit, best-fit, first-fit, next-fit or random; the
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
    /// Wait for capacity, at most so long, such as 30s, 5m or 1h; interrupted, it is taken back.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    wait: Option<Duration>,
    /// Of waiting requests, those of higher priority go first.
    #[arg(long, default_value_t = 0, requires = "wait", allow_hyphen_values = true)]
    priority: i32,
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

/// A time such as 500ms, 30s, 5m or 1h.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time: give one such as 500ms, 30s, 5m or 1h");
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..at].parse().map_err(|_| wrong())?;
    let millis = match &text[at..] {
        "ms" => Some(number),
        "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => None,
    };
    millis.map(Duration::from_millis).ok_or_else(wrong)
}

/// Waits for the reply; interrupted, takes the request back, which is then answered so.
async fn wait_for(
    client: &Client,
    mut request: PlaceRequest,
    patience: Duration,
) -> anyhow::Result<PlaceReply> {
    // Deadlines are in service time, which the service tells.
    let now = client.status(&StatusRequest { audit: false }).await?.now;
    request.mode = MODE_WAIT_UNTIL;
    request.deadline = now.saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX)).max(1);
    let (sequence, reply) = client.place_waiting(&request).await?;
    tokio::pin!(reply);
    tokio::select! {
        reply = &mut reply => Ok(reply?),
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            client.cancel_wait(sequence).await?;
            Ok(reply.await?)
        }
    }
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
        priority: args.priority,
        explain: if args.explain_all { EXPLAIN_FULL } else { EXPLAIN_BOUNDED },
        ..PlaceRequest::default()
    };
    let client = args.connect.connect().await?;
    let reply = match args.wait {
        Some(patience) => wait_for(&client, request, patience).await?,
        None => client.place(&request).await?,
    };
    client.close().await;
    if args.connect.json {
        print::json(&print::PlaceView::from(&reply))?;
    } else {
        print::place("placed", &reply);
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
    fn times_have_a_unit() {
        for (text, millis) in [("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)));
        }
        for broken in ["", "30", "s", "-1s", "1d", "99999999999999999999s", "18446744073709551615h"] {
            assert!(duration(broken).is_err(), "{broken}");
        }
    }

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
