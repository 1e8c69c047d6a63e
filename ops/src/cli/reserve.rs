//! `wharf reserve`.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use wharf_net::client::Client;
use wharf_net::protocol::{EndReservationRequest, ReservationBody, ReserveReply, ReserveRequest};

use super::connect::ConnectArgs;
use super::demand::DemandArgs;
use super::{Ended, print};
use crate::units;

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
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration)]
    lasts: Option<Duration>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Formats a duration as `1h 2m 3s`, without parts that are 0.
fn spoken(nanos: u64) -> String {
    let seconds = nanos.div_ceil(1_000_000_000);
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let said: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect();
    if said.is_empty() { "0s".to_owned() } else { said.join(" ") }
}

/// Returns a reservation in JSON: the owner, the end in ns of service time, the capacity that is still
/// reserved, the remaining seconds, and the resources of which more is reserved than the node has.
pub(super) fn reservation_view(body: &ReservationBody) -> Value {
    json!({
        "owner": body.owner,
        "until": print::given(body.until),
        "left": body.left.iter().map(|named| (&named.name, print::units(named.amount))).collect::<Vec<_>>(),
        "seconds_left": print::given(body.lasts).map(|lasts| lasts.div_ceil(1_000_000_000)),
        "exceeded": body.exceeded,
    })
}

/// Formats a reservation for people.
pub(super) fn reservation_text(body: &ReservationBody) -> String {
    let left = body.left.iter().map(|named| format!("{} {}", print::units(named.amount), named.name));
    let left = left.collect::<Vec<_>>().join(", ");
    let lasts =
        print::given(body.lasts).map_or_else(String::new, |lasts| format!(", for {} more", spoken(lasts)));
    let exceeded = if body.exceeded.is_empty() {
        String::new()
    } else {
        let names = body.exceeded.iter().map(|name| name.0.as_str()).collect::<Vec<_>>().join(", ");
        format!(
            "\nlarger than the node by now: more {names} is reserved than it has; as much as is free is kept"
        )
    };
    format!("reserved for owner {}: {left}{lasts}{exceeded}", body.owner)
}

pub(super) async fn reserve(args: ReserveArgs) -> anyhow::Result<Ended> {
    let ReserveArgs { node, owner, end, .. } = args;
    let lasts = args.lasts.map_or(0, |lasts| units::nanos(lasts).max(1));
    let demand = args.demand.body();
    let ask = async |client: &Client| {
        let node = node.clone();
        if end {
            client.end_reservation(&EndReservationRequest { node, owner }).await
        } else {
            client.reserve(&ReserveRequest { node, owner, demand, lasts }).await
        }
    };
    let reply: ReserveReply = args.connect.ask(ask).await?;
    let until = reply.until;
    let view = || {
        json!({
            "name": node,
            "owner": owner,
            "reason": reply.reason.to_string(),
            "until": print::given(until),
            "fault": print::fault_view(reply.fault.as_ref()),
        })
    };
    let say = || match &reply.fault {
        Some(fault) => print::say(format_args!("{node}: {fault}")),
        None if end => print::say(format_args!("{node} no longer reserved for owner {owner}")),
        None if until == 0 => {
            print::say(format_args!("{node} reserved for owner {owner}, until that is used up or ended"));
        }
        None => print::say(format_args!(
            "{node} reserved for owner {owner} for {}, until second {} of service time",
            spoken(lasts),
            print::seconds(until)
        )),
    };
    args.connect.show(reply.reason.is_done(), view, say)
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
        let line = reservation_text;
        body.lasts = 1790 * second;
        assert!(line(&body).ends_with(", for 29m 50s more"), "{}", line(&body));
        body.exceeded = vec![Name("cpu".to_owned())];
        assert!(line(&body).contains("larger than the node by now: more cpu"), "{}", line(&body));
    }
}
