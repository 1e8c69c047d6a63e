//! `wharf place` and `wharf release`.

use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use wharf_core::ids::AllocationId;
use wharf_core::limits::PLACEMENTS_PER_MESSAGE_MAX;
use wharf_core::request::Policy;
use wharf_net::client::Client;
use wharf_net::convert::policy_number;
use wharf_net::protocol::{
    AVOID_GPU_DEFAULT, AVOID_GPU_NO, AVOID_GPU_YES, EXPLAIN_BOUNDED, EXPLAIN_FULL, FallbackSelector, Kind,
    MODE_WAIT_UNTIL, Message, ORDER_DOMINANT, POLICY_DEFAULT, PlaceRequest, PreferredSelector, ReleaseBatch,
    ReleaseReply, ReleaseRequest, SelectorTerm, StatusRequest, Toleration, kinds,
};

use super::connect::{ConnectArgs, DeadlineArgs, Each};
use super::demand::DemandArgs;
use super::explain_wait_view::wait_id;
use super::into::{self, IntoArgs};
use super::{Ended, print};
use crate::terms;
use crate::units::{duration, nanos};

#[derive(Debug, Args)]
pub(super) struct PlaceArgs {
    #[command(flatten)]
    demand: DemandArgs,
    #[command(flatten)]
    search: SearchArgs,
    #[command(flatten)]
    into: IntoArgs,
    #[command(flatten)]
    deadline: DeadlineArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Arguments of the search for a node. A placement into a bundle takes none of them.
#[derive(Debug, Args)]
pub(super) struct SearchArgs {
    /// The policy that chooses among fitting nodes: least-fit, best-fit, first-fit, next-fit, random, fgd,
    /// hybrid, spread or least-stranded; the server's default if not given.
    #[arg(long)]
    policy: Option<Policy>,
    /// The attribute order in which least-fit and best-fit compare nodes: `default`; a number from 1 on, an
    /// index into the server's setting `attribute_orders`; or `dominant`, the order that begins with the
    /// resource of which the request asks the largest share.
    #[arg(long, value_name = "N", value_parser = attribute_order, default_value = "default")]
    attribute_order: u8,
    /// A label condition: KEY=VALUE, KEY=ONE|OTHER, KEY!=VALUE, `KEY in (ONE,OTHER)`, `KEY notin (…)`,
    /// `KEY>NUMBER`, `KEY<NUMBER`, KEY (exists) or !KEY (does not exist); may be given several times, and all
    /// must hold.
    #[arg(long = "select", value_name = "TERM", value_parser = terms::term)]
    selectors: Vec<SelectorTerm>,
    /// Only these nodes, by id (7 or n7, not a name); may be given several times.
    #[arg(long = "candidate", value_name = "ID", value_parser = node_id)]
    candidates: Vec<u64>,
    /// Conditions separated by `;` that replace --select if no node fits; may be given several times, tried
    /// in order.
    #[arg(long = "fallback", value_name = "TERM;TERM", value_parser = terms::fallback)]
    fallbacks: Vec<FallbackSelector>,
    /// Preferred conditions separated by `;`, with a weight of 1 to 100; may be given several times. Nodes
    /// with the greatest sum of weights are tried first.
    #[arg(long = "prefer", value_name = "TERM;TERM:WEIGHT", value_parser = terms::preferred)]
    preferred: Vec<PreferredSelector>,
    /// A node to try before the policy decides, by id (7 or n7, not a name); may be given several times,
    /// tried in order.
    #[arg(long = "prefer-node", value_name = "ID", value_parser = node_id)]
    preferred_nodes: Vec<u64>,
    /// Only this node, by id (7 or n7, not a name).
    #[arg(long, value_name = "ID", value_parser = node_id, conflicts_with = "candidates")]
    node: Option<u64>,
    /// A taint to tolerate: KEY, KEY=VALUE or `*`, optionally followed by a colon and an effect; may be given
    /// several times.
    #[arg(long = "tolerate", value_name = "KEY=VALUE:EFFECT", value_parser = terms::toleration)]
    tolerations: Vec<Toleration>,
    /// Try nodes without GPUs first if no GPU is requested (`=false`: treat all nodes alike); the server's
    /// default if not given.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    avoid_gpu: Option<bool>,
    /// Wait for capacity, at most this long, such as 30s, 5m or 1h. Interrupting the command cancels the
    /// request. Such a request has no other deadline.
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "deadline")]
    wait: Option<Duration>,
    /// Waiting requests of higher priority are placed first.
    #[arg(long, default_value_t = 0, requires = "wait", allow_hyphen_values = true)]
    priority: i32,
    /// The owner whose reservations the request may use, as given to `wharf reserve --owner`. Nodes reserved
    /// for the owner are tried first.
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    owner: u64,
    /// End the allocation by itself after this time, such as 30s, 5m or 1h, unless `wharf renew` renews it.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    lease: Option<Duration>,
    /// Charge the placement to this queue, whose caps bound it. With --wait, it waits there. Without it: the queue that the
    /// settings of the service give, if any.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    queue: Option<String>,
    /// Count the reasons of a refusal over all nodes.
    #[arg(long)]
    explain_all: bool,
}

#[derive(Debug, Args)]
pub(super) struct ReleaseArgs {
    /// Allocation ids, as printed by `wharf place`.
    #[arg(required = true)]
    allocations: Vec<AllocationId>,
    #[command(flatten)]
    deadline: DeadlineArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Parses a node id as printed by `wharf node list`, with or without the `n`. Arguments that take an id never
/// accept a name, and arguments that take a name never accept an id.
fn node_id(text: &str) -> Result<u64, String> {
    let number = text.strip_prefix('n').unwrap_or(text);
    // Ids count from 1.
    number.parse().ok().filter(|&id| id > 0).ok_or_else(|| {
        format!(
            "`{text}` is no node id: give one such as n7, as `wharf node list` prints it next to the name"
        )
    })
}

/// Parses an attribute order to its number on the wire.
fn attribute_order(text: &str) -> Result<u8, String> {
    match text {
        "default" => Ok(0),
        "dominant" => Ok(ORDER_DOMINANT),
        number => number.parse().ok().filter(|number| (1..ORDER_DOMINANT).contains(number)).ok_or_else(|| {
            format!(
                "`{text}` is no attribute order: give default, dominant, or a number of the server's `attribute_orders`, from 1 on"
            )
        }),
    }
}

/// The time after which a command that waits tells how to ask why.
const SILENCE: Duration = Duration::from_secs(1);

/// The signals that end the command. A request must be cancelled when nobody waits for it any more.
pub(super) struct Interruption {
    interrupt: Signal,
    terminate: Signal,
    /// `None` for a command that a lost terminal does not end.
    hangup: Option<Signal>,
}

impl Interruption {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { hangup: Some(signal(SignalKind::hangup())?), ..Self::of_service()? })
    }

    /// Returns the signals that end a command that runs like a service.
    pub(super) fn of_service() -> std::io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())?, hangup: None })
    }

    pub(super) async fn told(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            Some(()) = async { self.hangup.as_mut()?.recv().await } => {}
        }
    }
}

/// Asks for something that may wait for capacity, at most for `patience`. `wait` returns the mode and the deadline of
/// the request. On a signal, the request is cancelled, and then answered as cancelled. Without patience, it does not wait
/// for capacity, and `deadline` says how long it is of use.
pub(super) async fn ask_or_wait<M: Message>(
    connect: &ConnectArgs,
    deadline: DeadlineArgs,
    mut request: M::Request,
    patience: Option<Duration>,
    wait: fn(&mut M::Request) -> (&mut u8, &mut u64),
) -> anyhow::Result<M::Reply> {
    let Some(patience) = patience else {
        return connect.ask(async |client| deadline.of(client).call::<M>(&request).await).await;
    };
    let ask = async |client: &Client| {
        // First, so that a signal while the request is sent is not lost.
        let mut interruption = Interruption::new()?;
        // Deadlines are in service time, which is read from the service.
        let now = client.status(&StatusRequest { audit: false }).await?.now;
        let (mode, deadline) = wait(&mut request);
        *mode = MODE_WAIT_UNTIL;
        *deadline = now.saturating_add(nanos(patience)).max(1);
        let (sequence, reply) = client.call_waiting::<M>(&request).await?;
        tokio::pin!(reply);
        let mut is_told = false;
        loop {
            tokio::select! {
                reply = &mut reply => return Ok::<_, anyhow::Error>(reply?),
                () = interruption.told() => break,
                () = tokio::time::sleep(SILENCE), if !is_told => {
                    is_told = true;
                    tell_id(M::KIND, wait_id(client.hello().session.into(), sequence));
                }
            }
        }
        client.cancel_wait(sequence).await?;
        Ok(reply.await?)
    };
    connect.ask(ask).await
}

/// Says on standard error how to ask why a request waits.
fn tell_id(kind: Kind, id: String) {
    if kind == Kind::Place {
        eprintln!("wharf: it waits: `wharf explain {id}` says why");
    } else {
        eprintln!(
            "wharf: it waits: `wharf explain GROUP` says why, with the id that `wharf group list` prints"
        );
    }
}

pub(super) async fn place(args: PlaceArgs) -> anyhow::Result<Ended> {
    let PlaceArgs { demand, search, into, deadline, connect } = args;
    if into.is_given() {
        return into::place(&into, &demand, deadline, &connect).await;
    }
    let request = PlaceRequest {
        demand: demand.body(),
        policy: search.policy.map_or(POLICY_DEFAULT, policy_number),
        attribute_order: search.attribute_order,
        selectors: search.selectors,
        tolerations: search.tolerations,
        candidates: search.candidates,
        priority: search.priority,
        explain: if search.explain_all { EXPLAIN_FULL } else { EXPLAIN_BOUNDED },
        fallbacks: search.fallbacks,
        preferred_selectors: search.preferred,
        preferred_nodes: search.preferred_nodes,
        node: search.node.unwrap_or(0),
        avoid_gpu: match search.avoid_gpu {
            None => AVOID_GPU_DEFAULT,
            Some(true) => AVOID_GPU_YES,
            Some(false) => AVOID_GPU_NO,
        },
        owner: search.owner,
        lease: search.lease.map_or(0, nanos),
        queue: search.queue.unwrap_or_default(),
        ..PlaceRequest::default()
    };
    let reply = ask_or_wait::<kinds::Place>(&connect, deadline, request, search.wait, |of| {
        (&mut of.mode, &mut of.deadline)
    })
    .await?;
    let is_done = reply.reason.is_done();
    connect.show(is_done, || print::place_view(&reply), || print::place("placed", &reply))
}

pub(super) async fn release(args: ReleaseArgs) -> anyhow::Result<Ended> {
    let ask = async |client: &Client, ids: &[AllocationId]| {
        let requests = ids.iter().map(|&id| ReleaseRequest { allocation: id.into() }).collect();
        Ok(args.deadline.of(client).release_batch(&ReleaseBatch { requests }).await?.replies)
    };
    let print = Each {
        subject: AllocationId::to_string,
        done: &|id, reply: &ReleaseReply| match reply.inside_ended {
            None => format!("{id}: released"),
            Some(1) => format!("{id}: released, a bundle, and 1 placement inside it"),
            Some(ended) => format!("{id}: released, a bundle, and {ended} placements inside it"),
        },
        // The number of allocations inside a bundle that ended with it.
        fields: |id, reply| {
            (json!({ "allocation": id.to_string() }), json!({ "inside_ended": reply.inside_ended }))
        },
    };
    args.connect.ask_each(&args.allocations, PLACEMENTS_PER_MESSAGE_MAX, ask, print).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_orders_are_numbers_or_dominant() {
        for (text, number) in [("default", 0), ("dominant", 255), ("1", 1), ("254", 254)] {
            assert_eq!(attribute_order(text), Ok(number));
        }
        for broken in ["0", "255", "memory", "-1"] {
            assert!(attribute_order(broken).unwrap_err().contains(broken));
        }
    }
}
