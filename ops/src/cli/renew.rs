//! `wharf renew`.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use wharf_core::ids::{AllocationId, Incarnation, SessionId};
use wharf_core::limits::PLACEMENTS_PER_MESSAGE_MAX;
use wharf_net::client::Client;
use wharf_net::protocol::{RenewRequest, RenewedBody, SessionRenewed};

use super::connect::{ConnectArgs, DeadlineArgs, Each};
use super::{Ended, print};
use crate::units::{duration, nanos};

#[derive(Debug, Args)]
pub(super) struct RenewArgs {
    /// Allocation ids, as printed by `wharf place`.
    #[arg(required_unless_present = "session", conflicts_with = "session")]
    allocations: Vec<AllocationId>,
    /// Renew all leases of this session of a client, such as s1-7.
    #[arg(long, value_name = "SESSION", value_parser = session_id)]
    session: Option<SessionId>,
    /// The time that the leases last from now on, such as 30s, 5m or 1h. A lease that lasts longer already is not
    /// shortened.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    lease: Duration,
    #[command(flatten)]
    deadline: DeadlineArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// A text that is no session id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no session id: give one such as s1-7")]
struct NoSession(String);

/// Parses a session id.
fn session_id(text: &str) -> Result<SessionId, NoSession> {
    let read = || {
        let (incarnation, number) = text.strip_prefix('s')?.split_once('-')?;
        Some(SessionId { incarnation: Incarnation(incarnation.parse().ok()?), number: number.parse().ok()? })
    };
    read().ok_or_else(|| NoSession(text.to_owned()))
}

pub(super) async fn renew(args: RenewArgs) -> anyhow::Result<Ended> {
    let lease = nanos(args.lease);
    if let Some(session) = args.session {
        return renew_session(session, lease, args.deadline, &args.connect).await;
    }
    let ask = async |client: &Client, ids: &[AllocationId]| {
        let allocations = ids.iter().map(|&id| id.into()).collect();
        let request = RenewRequest { lease, allocations, session: None };
        Ok(args.deadline.of(client).renew(&request).await?.replies)
    };
    let print = Each {
        subject: AllocationId::to_string,
        done: &|id, reply: &RenewedBody| format!("{id}: lasts until {} s", print::seconds(reply.until)),
        // In ns of service time.
        fields: |id, reply| {
            (json!({ "allocation": id.to_string() }), json!({ "until": print::given(reply.until) }))
        },
    };
    args.connect.ask_each(&args.allocations, PLACEMENTS_PER_MESSAGE_MAX, ask, print).await
}

async fn renew_session(
    session: SessionId,
    lease: u64,
    deadline: DeadlineArgs,
    connect: &ConnectArgs,
) -> anyhow::Result<Ended> {
    let request = RenewRequest { lease, allocations: Vec::new(), session: Some(session.into()) };
    let reply = connect.ask(async |client| deadline.of(client).renew(&request).await).await?;
    let SessionRenewed { allocations, until } = reply.session.unwrap_or_default();
    let view = || {
        let until = print::given(until);
        json!({ "session": session.to_string(), "allocations": allocations, "until": until })
    };
    let say = || match allocations {
        0 => print::say(format_args!("{session}: has no leases")),
        1 => print::say(format_args!("{session}: 1 lease lasts until {} s", print::seconds(until))),
        _ => {
            print::say(format_args!("{session}: {allocations} leases last until {} s", print::seconds(until)))
        }
    };
    connect.show(allocations > 0, view, say)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_ids_are_read_as_they_are_printed() {
        let id = SessionId { incarnation: Incarnation(3), number: 1 << 40 };
        assert_eq!(session_id(&id.to_string()), Ok(id));
        for broken in ["", "s", "s1", "1-2", "s1-2-3", "s-1-2", "sx-1", "g1-2"] {
            assert_eq!(session_id(broken), Err(NoSession(broken.to_owned())));
        }
    }
}
