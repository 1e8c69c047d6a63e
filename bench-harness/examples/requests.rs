//! Runs a fixed number of requests of one connection in memory, and nothing else, so that
//! `bench-harness/callgrind/run.sh` can count what a request takes. Prints the source of the request shapes, the number of
//! requests, the nanoseconds per request, the commands to shards, and the refused requests.

use std::time::Instant;

use wharf_bench::engine::shapes::Shapes;
use wharf_bench::rpc::InMemory;
use wharf_core::request::Policy;

/// The allocator of the service.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [policy, nodes, shards, requests, in_flight, cluster] = &arguments[..] else {
        anyhow::bail!("usage: requests POLICY NODES SHARDS REQUESTS IN_FLIGHT full|empty|cold")
    };
    let policy: Policy = policy.parse().map_err(anyhow::Error::msg)?;
    let shapes = Shapes::load(None, 0)?;
    let mut service = InMemory::new(nodes.parse()?, policy, shards.parse()?, &shapes, cluster.parse()?)?;
    let requests: u64 = requests.parse()?;
    let started = Instant::now();
    service.run(requests, in_flight.parse()?)?;
    let nanos = started.elapsed().as_nanos() / u128::from(requests);
    println!("{} {requests} {nanos} {} {}", shapes.source, service.commands(), service.refused());
    Ok(())
}
