//! `wharf reserve`.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use wharf_core::resource::Amount;
use wharf_net::protocol::{EndReservationRequest, ReservationBody, ReserveReply, ReserveRequest};

use super::connect::ConnectArgs;
use super::{Ended, node, place, print};

#[derive(Debug, Args)]
pub(super) struct ReserveArgs {
    /// The node, by name.
    node: String,
    /// For whom: a number of yours, from 1 on, that `wharf place --owner` names.
    #[arg(long)]
    owner: u64,
    /// End the reservation that the owner has on the node.
    #[arg(long, conflicts_with_all = ["cpu", "memory", "gpu", "resources", "lasts"])]
    end: bool,
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
    /// For so long, such as 30s, 5m or 1h; until it is ended or used up if not given.
    #[arg(long = "for", value_name = "TIME", value_parser = place::duration)]
    lasts: Option<Duration>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// For whom a node is reserved, and what of it is still.
#[derive(Serialize)]
pub(super) struct ReservationView {
    owner: u64,
    /// In ns of service time; none: it does not end by itself.
    until: Option<u64>,
    left: Vec<(String, String)>,
}

impl From<&ReservationBody> for ReservationView {
    fn from(body: &ReservationBody) -> Self {
        let left = body.left.iter().map(|named| (named.name.clone(), print::units(named.amount)));
        Self { owner: body.owner, until: Some(body.until).filter(|&until| until > 0), left: left.collect() }
    }
}

impl ReservationView {
    pub(super) fn line(&self) -> String {
        let left: Vec<String> = self.left.iter().map(|(name, amount)| format!("{amount} {name}")).collect();
        let until = self.until.map_or_else(String::new, |until| {
            format!(
                ", until second {}.{:01} of service time",
                until / 1_000_000_000,
                until / 100_000_000 % 10
            )
        });
        format!("reserved for owner {}: {}{until}", self.owner, left.join(", "))
    }
}

/// What became of a reservation that was to be made or ended.
#[derive(Serialize)]
struct ReserveView {
    name: String,
    owner: u64,
    reason: String,
    until: Option<u64>,
    fault: Option<print::FaultView>,
}

impl ReserveView {
    fn new(name: &str, owner: u64, reply: &ReserveReply) -> Self {
        Self {
            name: name.to_owned(),
            owner,
            reason: reply.reason.to_string(),
            until: Some(reply.until).filter(|&until| until > 0),
            fault: reply.fault.as_ref().map(print::FaultView::from),
        }
    }
}

pub(super) async fn reserve(args: ReserveArgs) -> anyhow::Result<Ended> {
    let ReserveArgs { node: name, owner, .. } = args;
    let client = args.connect.connect().await?;
    let (reply, done): (ReserveReply, _) = if args.end {
        let request = EndReservationRequest { node: name.clone(), owner };
        (client.end_reservation(&request).await?, "no longer reserved")
    } else {
        let nanos = |lasts: Duration| u64::try_from(lasts.as_nanos()).unwrap_or(u64::MAX).max(1);
        let request = ReserveRequest {
            node: name.clone(),
            owner,
            cpu: args.cpu.units(),
            memory: args.memory.units(),
            gpu: args.gpu.units(),
            custom: node::named_amounts("--resource", &args.resources)?,
            lasts: args.lasts.map_or(0, nanos),
        };
        (client.reserve(&request).await?, "reserved")
    };
    client.close().await;
    if args.connect.json {
        print::json(&ReserveView::new(&name, owner, &reply))?;
    } else if let Some(fault) = &reply.fault {
        print::say(format_args!("{name}: {fault}"));
    } else {
        print::say(format_args!("{name} {done} for owner {owner}"));
    }
    Ok(if reply.reason.is_done() { Ended::Done } else { Ended::Refused })
}
