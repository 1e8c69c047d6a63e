//! `wharf status`.

use clap::Args;
use serde_json::{Value, json};
use wharf_net::protocol::{ResourceStatus, ShardStatusBody, StatusReply, StatusRequest};

use super::Ended;
use super::connect::ConnectArgs;
use super::print::{say, store_id, sum, table};

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Also check every invariant of the books and print their canonical hash.
    #[arg(long)]
    audit: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

fn resource_view(resource: &ResourceStatus) -> Value {
    let ResourceStatus { total, allocated, shortfall, unhealthy, reserved, .. } = *resource;
    json!({
        "name": resource.name,
        "total": sum(total),
        "allocated": sum(allocated),
        "available": sum(total + shortfall - allocated - unhealthy - reserved),
        "shortfall": sum(shortfall),
        "unhealthy": sum(unhealthy),
        "reserved": sum(reserved),
    })
}

fn shard_view(shard: &ShardStatusBody) -> Value {
    let mut view = json!(ShardStatusBody { state_hash: None, ..shard.clone() });
    view["state_hash"] = shard.state_hash.map(|hash| format!("{hash:032x}")).into();
    view
}

fn status_view(status: &StatusReply) -> Value {
    json!({
        "software": status.server.software,
        "store": store_id(status.server.store),
        "incarnation": status.server.incarnation,
        "uptime_seconds": status.uptime / 1_000_000_000,
        "resident_bytes": status.resident_bytes,
        "connections": status.connections,
        "waiting": status.waiting.feasible,
        "infeasible": status.waiting.infeasible,
        "resources": status.resources.iter().map(resource_view).collect::<Value>(),
        "shards": status.shards.iter().map(shard_view).collect::<Value>(),
        "books_hash": status.books_hash.map(|hash| format!("{hash:032x}")),
    })
}

/// Prints the status for people.
fn say_status(status: &StatusReply, is_audited: bool) {
    let server = &status.server;
    let store = store_id(server.store);
    say(format_args!("{}, store {store}, incarnation {}", server.software, server.incarnation));
    let waiting = &status.waiting;
    say(format_args!(
        "up {} s, {} MiB resident, {} connections, {} requests waiting, {} of them infeasible",
        status.uptime / 1_000_000_000,
        status.resident_bytes >> 20,
        status.connections,
        waiting.feasible + waiting.infeasible,
        waiting.infeasible
    ));
    say(format_args!(""));
    table(
        "name:RESOURCE|total|allocated|available|reserved|unhealthy|shortfall",
        &status.resources.iter().map(resource_view).collect(),
    );
    say(format_args!(""));
    table(
        "shard|nodes_ready:READY|nodes_draining:DRAINING|nodes_joining:JOINING|nodes_lost:LOST|\
         nodes_reserved:RESERVED|allocations|placed|refused|released",
        &status.shards.iter().map(shard_view).collect(),
    );
    match status.books_hash {
        Some(hash) => say(format_args!("\naudit: the books are right; hash {hash:032x}")),
        None if is_audited => say(format_args!(
            "\naudit: the books are right; no hash, because they changed while they were read: ask again"
        )),
        None => {}
    }
}

pub(super) async fn run(args: StatusArgs) -> anyhow::Result<Ended> {
    let request = StatusRequest { audit: args.audit };
    let status = args.connect.ask(async |client| client.status(&request).await).await?;
    args.connect.show(true, || status_view(&status), || say_status(&status, args.audit))
}
