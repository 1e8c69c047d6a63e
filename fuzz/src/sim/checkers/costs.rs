//! The cost limits of commands, and the truth of audits.

use std::collections::BTreeMap;

use wharf_core::hash::StateHash;
use wharf_core::ids::AllocationId;
use wharf_core::shard::{Command, Outcome, Pages, ShardWork};

use super::cost_table::{Cost, CostFacts};
use super::{Verdict, ensure};
use crate::sim::facts::Facts;

/// Returns the facts of the state that some cost limits depend on.
fn cost_facts(facts: &Facts) -> CostFacts {
    let mut of_bundle: BTreeMap<AllocationId, u64> = BTreeMap::new();
    for record in facts.partitions.iter().flat_map(|partition| &partition.inside) {
        *of_bundle.entry(record.bundle).or_default() += 1;
    }
    let mut of_node: BTreeMap<_, u64> = BTreeMap::new();
    for allocation in facts.allocations() {
        let inside = of_bundle.get(&allocation.id).copied().unwrap_or(0);
        *of_node.entry(allocation.node).or_default() += 1 + inside;
    }
    CostFacts {
        most_of_a_node: of_node.into_values().max().unwrap_or(0),
        inside: of_bundle.into_values().sum(),
    }
}

/// Checks that a command examines no more than the table of costs permits.
///
/// # Errors
/// Returns what it examined too much of.
pub fn commands_cost_what_they_may(
    command: &Command,
    work: ShardWork,
    pages: Pages,
    before: &Facts,
) -> Verdict {
    Cost::check(command, work, pages, cost_facts(before))
}

/// Checks that an audit with hashes gives those of the state. It gives none if a command changed the books
/// since it began.
///
/// # Errors
/// Returns the two hashes if they differ.
pub fn audits_are_true(outcome: &Outcome, state: StateHash) -> Verdict {
    let Outcome::Status(status) = outcome else { return Ok(()) };
    let hashes = status.audit.as_ref().and_then(|audit| audit.hashes.as_ref());
    let told = hashes.map_or(state, |hashes| hashes.shard);
    ensure(told == state, || format!("an audit says {told}, the state is {state}"))
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use wharf_core::ids::{Incarnation, Ordinal, PartitionId, ShardId};
    use wharf_core::index::Geometry;
    use wharf_core::limits::{
        CANDIDATES_MAX, EXPLAIN_SLOTS_PER_NODE, GROUP_BUNDLES_MAX, NODES_PER_MESSAGE_MAX,
    };
    use wharf_core::shard::{HybridSettings, Shard, ShardConfig};
    use wharf_core::time::Time;

    use super::super::cost_table::{COSTS, Most};
    use super::*;

    pub(in super::super) fn a_command_that_looks_at_too_much() {
        let list = Command::ListNodes { after: Ordinal(0), limit: 2 };
        let check = |nodes_looked_at| {
            let work = ShardWork { nodes_looked_at, ..ShardWork::default() };
            commands_cost_what_they_may(&list, work, Pages::default(), &Facts::default())
        };
        assert_eq!(check(2), Ok(()));
        assert!(check(3).is_err());
    }

    pub(in super::super) fn an_audit_of_another_state() {
        let mut shard = Shard::new(ShardConfig {
            shard: ShardId(0),
            incarnation: Incarnation(1),
            partitions: vec![PartitionId(0)],
            geometry: Geometry::default(),
            seed: 0,
            hybrid: HybridSettings::default(),
        });
        let mut outcomes = Vec::new();
        shard.step([Command::Audit { number: 0 }, Command::Status], Time(0), &mut outcomes);
        assert_eq!(audits_are_true(&outcomes[0], shard.state_hash()), Ok(()));
        assert!(audits_are_true(&outcomes[0], StateHash(7)).is_err());
        assert_eq!(audits_are_true(&outcomes[1], StateHash(7)), Ok(()), "a status says no hash");
    }

    #[test]
    fn both_fire() {
        a_command_that_looks_at_too_much();
        an_audit_of_another_state();
    }

    /// Returns a bound as the page shows it, with the default page sizes.
    fn text(most: Most) -> String {
        let pages = Pages::default();
        match most {
            Most::Nothing => "0".to_owned(),
            Most::Fixed(most) => most.to_string(),
            Most::RefusalPage => {
                let page = pages.explain_nodes * EXPLAIN_SLOTS_PER_NODE;
                format!("{page}, or the named candidates, at most {CANDIDATES_MAX}")
            }
            Most::AuditPage => pages.audit_nodes.to_string(),
            Most::Asked => format!("the number asked for, at most {NODES_PER_MESSAGE_MAX}"),
            Most::Named => format!("the bundles that it names, at most {GROUP_BUNDLES_MAX}"),
            Most::OfNode => "those of the node".to_owned(),
            Most::Inside => "those inside the ended bundles".to_owned(),
            Most::AuditPageAndNode => format!("{} and those of one node", pages.audit_allocations),
            Most::CheckpointPage => pages.checkpoint_records.to_string(),
            Most::CheckpointPageAndNode => format!("{} and those of one node", pages.checkpoint_records),
            Most::LeasesEnded => format!("{} whose leases are over", pages.leases_ended),
            Most::Everything => "all, only at a clean stop".to_owned(),
        }
    }

    /// The table in ARCHITECTURE.md is the one that commands must meet.
    #[test]
    fn the_page_says_what_the_table_says() {
        let page = include_str!("../../../../ARCHITECTURE.md");
        let (_, section) = page.split_once("## Cost of a command").expect("the section");
        let section = section.split("\n## ").next().expect("its text");
        let (_, shard) = section.split_once("| command of a shard |").expect("the table of shards");
        let rows: BTreeSet<&str> = shard.lines().filter(|line| line.starts_with("| `")).collect();
        let written: BTreeSet<String> = COSTS
            .iter()
            .map(|cost| {
                let names: Vec<String> = cost.commands.iter().map(|name| format!("`{name}`")).collect();
                format!("| {} | {} | {} |", names.join(", "), text(cost.nodes), text(cost.allocations))
            })
            .collect();
        let missing: Vec<&String> = written.iter().filter(|row| !rows.contains(row.as_str())).collect();
        assert!(missing.is_empty(), "rows that ARCHITECTURE.md lacks: {missing:#?}");
        let stale: Vec<&&str> = rows.iter().filter(|row| !written.contains(**row)).collect();
        assert!(stale.is_empty(), "rows of ARCHITECTURE.md that are untrue: {stale:#?}");
    }
}
