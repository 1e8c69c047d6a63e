//! `wharf-bench groups`.

use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};
use wharf_core::limits::{GROUP_BUNDLES_MAX, PLANNERS_MAX};
use wharf_ops::cli::say;

use crate::groups::{GroupsOptions, GroupsRow, STRATEGIES, run};

#[derive(Debug, Args)]
pub(super) struct GroupsArgs {
    /// The numbers of bundles per group, one row for each.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = GroupsOptions::default().bundles, value_parser = value_parser!(u32).range(1..=GROUP_BUNDLES_MAX as i64))]
    bundles: Vec<u32>,
    /// The strategies, one row for each [default: all].
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(STRATEGIES.map(|(name, _)| name)))]
    strategy: Vec<String>,
    /// Groups created and removed per row, after a tenth as many to warm up.
    #[arg(long, value_name = "N", default_value_t = GroupsOptions::default().groups, value_parser = value_parser!(u64).range(1..))]
    groups: u64,
    /// Groups that exist throughout. The group to remove next is drawn from them.
    #[arg(long, value_name = "N", default_value_t = GroupsOptions::default().live, value_parser = value_parser!(u64).range(0..=100_000))]
    live: u64,
    /// The maximum number of groups in flight. A group is removed as soon as another one is created.
    #[arg(long, value_name = "W", default_value_t = GroupsOptions::default().in_flight)]
    in_flight: usize,
    /// The number of nodes, 64 cores and 256 GiB each. A bundle takes half a core and 1 GiB.
    #[arg(long, value_name = "N", default_value_t = GroupsOptions::default().nodes, value_parser = value_parser!(u32).range(1..=1_000_000))]
    nodes: u32,
    /// The number of shards, each on its own thread.
    #[arg(long, default_value_t = GroupsOptions::default().shards, value_parser = value_parser!(u16).range(1..=32))]
    shards: u16,
    /// The number of planners, each on its own thread.
    #[arg(long, default_value_t = GroupsOptions::default().planners, value_parser = value_parser!(u16).range(1..=i64::from(PLANNERS_MAX)))]
    planners: u16,
    /// The seed of the service and of the group to remove next.
    #[arg(long, default_value_t = GroupsOptions::default().seed)]
    seed: u64,
    /// Count refused groups and continue; otherwise a refusal is a failure.
    #[arg(long)]
    may_refuse: bool,
    /// Print a JSON array of rows instead of a table.
    #[arg(long)]
    json: bool,
}

impl GroupsArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let named = STRATEGIES
            .iter()
            .filter(|(name, _)| self.strategy.is_empty() || self.strategy.iter().any(|asked| asked == name));
        let options = GroupsOptions {
            bundles: self.bundles,
            strategies: named.map(|&(_, strategy)| strategy).collect(),
            groups: self.groups,
            live: self.live,
            in_flight: self.in_flight,
            nodes: self.nodes,
            shards: self.shards,
            planners: self.planners,
            seed: self.seed,
            may_refuse: self.may_refuse,
        };
        if self.json {
            let rows = run(&options, |_| {})?;
            say(format_args!("{}", serde_json::to_string_pretty(&rows)?));
            return Ok(());
        }
        say(format_args!("{}", GroupsRow::HEAD));
        run(&options, |row| say(format_args!("{row}")))?;
        Ok(())
    }
}
