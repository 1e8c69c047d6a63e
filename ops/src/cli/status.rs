//! `wharf status`.

use clap::Args;
use serde::Serialize;
use wharf_net::protocol::{ResourceStatus, ShardStatusBody, StatusReply, StatusRequest};

use super::Ended;
use super::connect::ConnectArgs;
use super::print::{json, say, sum, table};

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Also check every invariant of the books and print their canonical hash.
    #[arg(long)]
    audit: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Serialize)]
struct ResourceView {
    name: String,
    total: String,
    allocated: String,
    available: String,
    shortfall: String,
    unhealthy: String,
    reserved: String,
}

#[derive(Serialize)]
struct ShardView {
    shard: u16,
    nodes_ready: u32,
    nodes_draining: u32,
    nodes_joining: u32,
    nodes_lost: u32,
    nodes_reserved: u32,
    allocations: u64,
    placed: u64,
    refused: u64,
    released: u64,
    state_hash: Option<String>,
}

#[derive(Serialize)]
struct StatusView {
    software: String,
    store: String,
    incarnation: u32,
    uptime_seconds: u64,
    resident_bytes: u64,
    connections: u64,
    waiting: u64,
    infeasible: u64,
    resources: Vec<ResourceView>,
    shards: Vec<ShardView>,
    books_hash: Option<String>,
}

impl From<&StatusReply> for StatusView {
    fn from(status: &StatusReply) -> Self {
        let resource = |r: &ResourceStatus| ResourceView {
            name: r.name.clone(),
            total: sum(r.total),
            allocated: sum(r.allocated),
            available: sum(r.total + r.shortfall - r.allocated - r.unhealthy - r.reserved),
            shortfall: sum(r.shortfall),
            unhealthy: sum(r.unhealthy),
            reserved: sum(r.reserved),
        };
        let shard = |s: &ShardStatusBody| ShardView {
            shard: s.shard,
            nodes_ready: s.nodes_ready,
            nodes_draining: s.nodes_draining,
            nodes_joining: s.nodes_joining,
            nodes_lost: s.nodes_lost,
            nodes_reserved: s.nodes_reserved,
            allocations: s.allocations,
            placed: s.placed,
            refused: s.refused,
            released: s.released,
            state_hash: s.state_hash.map(|hash| format!("{hash:032x}")),
        };
        Self {
            software: status.server.software.clone(),
            store: status.server.store.iter().map(|byte| format!("{byte:02x}")).collect(),
            incarnation: status.server.incarnation,
            uptime_seconds: status.uptime / 1_000_000_000,
            resident_bytes: status.resident_bytes,
            connections: status.connections,
            waiting: status.waiting.feasible,
            infeasible: status.waiting.infeasible,
            resources: status.resources.iter().map(resource).collect(),
            shards: status.shards.iter().map(shard).collect(),
            books_hash: status.books_hash.map(|hash| format!("{hash:032x}")),
        }
    }
}

/// Prints the status for people.
fn print_status(status: &StatusReply, audited: bool) {
    let view = StatusView::from(status);
    say(format_args!("{}, store {}, incarnation {}", view.software, view.store, view.incarnation));
    let resident_mib = view.resident_bytes >> 20;
    say(format_args!(
        "up {} s, {resident_mib} MiB resident, {} connections, {} requests waiting, {} of them infeasible",
        view.uptime_seconds,
        view.connections,
        view.waiting + view.infeasible,
        view.infeasible
    ));
    say(format_args!(""));
    let rows: Vec<_> = view
        .resources
        .iter()
        .map(|r| {
            let hidden = [&r.reserved, &r.unhealthy, &r.shortfall];
            let cells = [&r.name, &r.total, &r.allocated, &r.available].into_iter().chain(hidden);
            cells.cloned().collect()
        })
        .collect();
    let heads = ["RESOURCE", "TOTAL", "ALLOCATED", "AVAILABLE", "RESERVED", "UNHEALTHY", "SHORTFALL"];
    table(&heads, &rows);
    say(format_args!(""));
    let rows: Vec<_> = view
        .shards
        .iter()
        .map(|s| {
            let numbers = [
                u64::from(s.nodes_ready),
                u64::from(s.nodes_draining),
                u64::from(s.nodes_joining),
                u64::from(s.nodes_lost),
                u64::from(s.nodes_reserved),
                s.allocations,
                s.placed,
                s.refused,
                s.released,
            ];
            std::iter::once(s.shard.to_string()).chain(numbers.iter().map(u64::to_string)).collect()
        })
        .collect();
    let heads = [
        "SHARD",
        "READY",
        "DRAINING",
        "JOINING",
        "LOST",
        "RESERVED",
        "ALLOCATIONS",
        "PLACED",
        "REFUSED",
        "RELEASED",
    ];
    table(&heads, &rows);
    match &view.books_hash {
        Some(hash) => say(format_args!("\naudit: the books are right; hash {hash}")),
        None if audited => say(format_args!(
            "\naudit: the books are right; no hash, because they changed while they were read: ask again"
        )),
        None => {}
    }
}

pub(super) async fn run(args: StatusArgs) -> anyhow::Result<Ended> {
    let client = args.connect.connect().await?;
    let status = client.status(&StatusRequest { audit: args.audit }).await?;
    client.close().await;
    if args.connect.json {
        json(&StatusView::from(&status))?;
    } else {
        print_status(&status, args.audit);
    }
    Ok(Ended::Done)
}
