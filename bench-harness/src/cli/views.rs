//! `wharf-bench views`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use wharf_ops::cli::say;

use crate::views::{Bench, MemoryRow, PlannersRow, PublishRow, ReadersRow};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Table {
    /// The cost of one publication.
    Publish,
    /// The cost of readers to the shard.
    Readers,
    /// The memory that a reader keeps if it never drops its view.
    Memory,
    /// The structure that planners search: a private copy, compared with an index in the view.
    Planners,
}

#[derive(Debug, Args)]
pub(super) struct ViewsArgs {
    /// The tables [default: all; with --json: publish].
    #[arg(long, value_enum, value_delimiter = ',')]
    tables: Vec<Table>,
    /// The numbers of nodes.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1_000, 10_000, 100_000, 1_000_000], value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    nodes: Vec<u32>,
    /// The numbers of changes between two publications.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 16, 256], value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    changes: Vec<u32>,
    /// Publications per row; for the memory table, the maximum.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rounds: u32,
    /// The numbers of busy readers.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [0, 1, 4], value_parser = clap::value_parser!(u32).range(0..=64))]
    readers: Vec<u32>,
    /// The approximate duration of each row of the readers table.
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    millis: u64,
    /// The seed of the changes.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print a JSON array of rows instead of tables.
    #[arg(long)]
    json: bool,
}

#[derive(Default)]
struct Rows {
    publish: Vec<PublishRow>,
    readers: Vec<ReadersRow>,
    memory: Vec<MemoryRow>,
    planners: Vec<PlannersRow>,
}

impl ViewsArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let mut tables = self.tables.clone();
        if tables.is_empty() {
            tables = if self.json {
                vec![Table::Publish]
            } else {
                vec![Table::Publish, Table::Readers, Table::Memory, Table::Planners]
            };
        }
        if self.json && tables.len() > 1 {
            anyhow::bail!(
                "--json prints one array of rows: name one of --tables publish, readers, memory, planners"
            );
        }
        let rows = self.measure(&tables);
        if !self.json {
            rows.print();
            return Ok(());
        }
        let text = match tables[0] {
            Table::Publish => serde_json::to_string_pretty(&rows.publish)?,
            Table::Readers => serde_json::to_string_pretty(&rows.readers)?,
            Table::Memory => serde_json::to_string_pretty(&rows.memory)?,
            Table::Planners => serde_json::to_string_pretty(&rows.planners)?,
        };
        say(format_args!("{text}"));
        Ok(())
    }

    fn measure(&self, tables: &[Table]) -> Rows {
        let mut rows = Rows::default();
        for &nodes in &self.nodes {
            let mut bench = Bench::new(nodes, self.seed);
            if tables.contains(&Table::Publish) {
                for &changes in &self.changes {
                    bench.measure(changes, self.rounds.div_ceil(10));
                    rows.publish.push(bench.measure(changes, self.rounds));
                }
            }
            if tables.contains(&Table::Readers) {
                let limit = Duration::from_millis(self.millis);
                rows.readers.extend(self.readers.iter().map(|&readers| bench.with_readers(readers, limit)));
            }
            if tables.contains(&Table::Memory) {
                let publications = [self.rounds.div_ceil(10), self.rounds];
                rows.memory.extend(publications.map(|count| bench.with_a_keeper(u64::from(count))));
            }
            if tables.contains(&Table::Planners) {
                bench.fill();
                rows.planners.push(bench.with_planners(self.rounds.div_ceil(10)));
            }
        }
        rows
    }
}

impl Rows {
    fn print(&self) {
        if !self.publish.is_empty() {
            say(format_args!("    nodes  changes  publish ns    build ns  bytes copied  chunks copied"));
        }
        for row in &self.publish {
            let PublishRow { nodes, changes, publish_ns, build_ns, bytes_copied, chunks_copied } = row;
            say(format_args!(
                "{nodes:>9} {changes:>8} {publish_ns:>11} {build_ns:>11} {bytes_copied:>13} {chunks_copied:>14}"
            ));
        }
        if !self.readers.is_empty() {
            say(format_args!("    nodes  readers       ops/s     views/s"));
        }
        for row in &self.readers {
            let ReadersRow { nodes, readers, ops_per_second, views_per_second } = row;
            say(format_args!("{nodes:>9} {readers:>8} {ops_per_second:>11} {views_per_second:>11}"));
        }
        if !self.memory.is_empty() {
            say(format_args!(
                "    nodes  publications  chunks of a view  chunks live  bytes live  told to let go"
            ));
        }
        for row in &self.memory {
            let MemoryRow { nodes, publications, chunks, chunks_live, bytes_live, told } = row;
            say(format_args!(
                "{nodes:>9} {publications:>13} {chunks:>17} {chunks_live:>12} {bytes_live:>11}  {told}"
            ));
        }
        if !self.planners.is_empty() {
            say(format_args!(
                "    nodes  copy: sync ns/change  plan ns  bytes  in the view: publish ns/change  search ns"
            ));
        }
        for row in &self.planners {
            let PlannersRow { nodes, copy_sync_ns, copy_plan_ns, copy_bytes, .. } = row;
            let PlannersRow { inside_publish_ns, inside_search_ns, .. } = row;
            say(format_args!(
                "{nodes:>9} {copy_sync_ns:>20} {copy_plan_ns:>8} {copy_bytes:>6} {inside_publish_ns:>31} {inside_search_ns:>10}"
            ));
        }
    }
}
