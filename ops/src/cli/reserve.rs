//! `wharf reserve`.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use wharf_net::protocol::{EndReservationRequest, ReservationBody, ReserveReply, ReserveRequest};

use super::connect::ConnectArgs;
use super::demand::DemandArgs;
use super::{Ended, place, print};

#[derive(Debug, Args)]
pub(super) struct ReserveArgs {
    /// The node, by name.
    node: String,
    /// The owner: a number from 1 on that you choose and pass to `wharf place --owner`.
    #[arg(long)]
    owner: u64,
    /// End the owner's reservation of the node.
    #[arg(long, conflicts_with_all = ["cpu", "memory", "gpu", "resources", "lasts"])]
    end: bool,
    #[command(flatten)]
    demand: DemandArgs,
    /// The duration, such as 30s, 5m or 1h; if not given, until the reservation is ended or used up.
    #[arg(long = "for", value_name = "TIME", value_parser = place::duration)]
    lasts: Option<Duration>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// The owner that a node is reserved for, and the capacity that is still reserved.
#[derive(Serialize)]
pub(super) struct ReservationView {
    owner: u64,
    /// The end in ns of service time; `None` if there is no end time.
    until: Option<u64>,
    left: Vec<(String, String)>,
    /// The remaining time in seconds; `None` if there is no end time.
    seconds_left: Option<u64>,
    /// Resources of which more is reserved than the node has.
    exceeded: Vec<String>,
}

/// Formats a duration as `1h 2m 3s`, without parts that are 0.
fn spoken(nanos: u64) -> String {
    let seconds = nanos.div_ceil(1_000_000_000);
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let said: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect();
    if said.is_empty() { "0s".to_owned() } else { said.join(" ") }
}

impl From<&ReservationBody> for ReservationView {
    fn from(body: &ReservationBody) -> Self {
        let left = body.left.iter().map(|named| (named.name.clone(), print::units(named.amount)));
        let lasts = body.lasts;
        Self {
            owner: body.owner,
            until: Some(body.until).filter(|&until| until > 0),
            left: left.collect(),
            seconds_left: (lasts > 0).then(|| lasts.div_ceil(1_000_000_000)),
            exceeded: body.exceeded.iter().map(|name| name.0.clone()).collect(),
        }
    }
}

impl ReservationView {
    pub(super) fn line(&self) -> String {
        let left: Vec<String> = self.left.iter().map(|(name, amount)| format!("{amount} {name}")).collect();
        let lasts = self.seconds_left.map_or_else(String::new, |seconds| {
            format!(", for {} more", spoken(seconds.saturating_mul(1_000_000_000)))
        });
        let exceeded = if self.exceeded.is_empty() {
            String::new()
        } else {
            let names = self.exceeded.join(", ");
            format!(
                "\nlarger than the node by now: more {names} is reserved than it has; as much as is free is kept"
            )
        };
        format!("reserved for owner {}: {}{lasts}{exceeded}", self.owner, left.join(", "))
    }
}

/// Formats a point of service time.
fn service_time(nanos: u64) -> String {
    format!("second {}.{:01} of service time", nanos / 1_000_000_000, nanos / 100_000_000 % 10)
}

/// The result of making or ending a reservation.
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
    let nanos = |lasts: Duration| u64::try_from(lasts.as_nanos()).unwrap_or(u64::MAX).max(1);
    let lasts = args.lasts.map_or(0, nanos);
    let (reply, done): (ReserveReply, _) = if args.end {
        let request = EndReservationRequest { node: name.clone(), owner };
        (client.end_reservation(&request).await?, "no longer reserved")
    } else {
        let request = ReserveRequest { node: name.clone(), owner, demand: args.demand.body()?, lasts };
        (client.reserve(&request).await?, "reserved")
    };
    client.close().await;
    if args.connect.json {
        print::json(&ReserveView::new(&name, owner, &reply))?;
    } else if let Some(fault) = &reply.fault {
        print::say(format_args!("{name}: {fault}"));
    } else {
        let until = match (args.end, reply.until) {
            (true, _) => String::new(),
            (false, 0) => ", until that is used up or ended".to_owned(),
            (false, until) => format!(" for {}, until {}", spoken(lasts), service_time(until)),
        };
        print::say(format_args!("{name} {done} for owner {owner}{until}"));
    }
    Ok(if reply.reason.is_done() { Ended::Done } else { Ended::Refused })
}

#[cfg(test)]
mod tests {
    use super::*;
    use wharf_net::protocol::Name;

    #[test]
    fn times_are_spoken_without_what_is_zero() {
        let second = 1_000_000_000;
        for (nanos, text) in [(0, "0s"), (1, "1s"), (90 * second, "1m 30s"), (3600 * second, "1h")] {
            assert_eq!(spoken(nanos), text);
        }
        assert_eq!(spoken(1790 * second), "29m 50s");
        assert!(spoken(u64::MAX).ends_with('s'));
    }

    #[test]
    fn a_reservation_says_how_long_and_whether_the_node_is_too_small() {
        let second = 1_000_000_000;
        let mut body = ReservationBody { owner: 7, until: 2000 * second, ..ReservationBody::default() };
        let line = |body: &ReservationBody| ReservationView::from(body).line();
        body.lasts = 1790 * second;
        assert!(line(&body).ends_with(", for 29m 50s more"), "{}", line(&body));
        body.exceeded = vec![Name("cpu".to_owned())];
        assert!(line(&body).contains("larger than the node by now: more cpu"), "{}", line(&body));
    }
}
