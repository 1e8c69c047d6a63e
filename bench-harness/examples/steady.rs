//! Runs a fixed number of ops of a row of `wharf-bench engine`, such as `steady`, and nothing else, so that
//! `bench-harness/callgrind/run.sh` can count the instructions of the measured steps. Prints the source of the
//! request shapes, the number of ops, and the nanoseconds per op.

use wharf_bench::engine::driver::EngineDriver;
use wharf_bench::engine::rows::ROWS;
use wharf_bench::engine::shapes::Shapes;
use wharf_core::request::Policy;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [row, policy, nodes, ops] = &arguments[..] else {
        anyhow::bail!("usage: steady ROW POLICY NODES OPS")
    };
    let Some(row) = ROWS.iter().find(|of| of.name == row) else { anyhow::bail!("there is no row `{row}`") };
    let policy: Policy = policy.parse().map_err(anyhow::Error::msg)?;
    let shapes = Shapes::load(None, 0)?;
    let scenario = row.kind.scenario(nodes.parse()?, policy, &shapes, 0);
    let (ops, elapsed) = EngineDriver::new(&scenario, 0).run(ops.parse()?);
    println!("{} {ops} {}", shapes.source, elapsed.as_nanos() / ops as u128);
    Ok(())
}
