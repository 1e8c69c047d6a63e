//! The maximum cost of each command for a shard, as data. The table in ARCHITECTURE.md, section "Cost of a
//! command", shows it, and the simulator enforces it for every command.
//!
//! The cost is what [`ShardWork`] counts: walks over nodes and allocations, not searches in the index.

use wharf_core::limits::{CANDIDATES_MAX, EXPLAIN_SLOTS_PER_NODE};
use wharf_core::request::PlacementRequest;
use wharf_core::shard::{Command, Pages, ShardWork};

use super::Verdict;

/// The maximum number of nodes or allocations that one command may look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Most {
    /// None.
    Nothing,
    /// A fixed number.
    Fixed(u64),
    /// A page of a refusal's counts, or all candidates that the request names, if these are more.
    RefusalPage,
    /// A page of an audit.
    AuditPage,
    /// The number that the command asks for.
    Asked,
    /// The number of bundles that the command names.
    Named,
    /// All allocations of one node, including those inside bundles.
    OfNode,
    /// The allocations inside the bundles that end.
    Inside,
    /// A page of an audit, and all allocations of one node.
    AuditPageAndNode,
    /// A page of a checkpoint.
    CheckpointPage,
    /// A page of a checkpoint, and all allocations of one node.
    CheckpointPageAndNode,
    /// The allocations whose lease is over that one command ends.
    LeasesEnded,
    /// Everything. Only the service itself asks for this, when it stops.
    Everything,
}

/// The maximum cost of one kind of command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    /// The names of the commands.
    pub(super) commands: &'static [&'static str],
    /// The limit for [`ShardWork::nodes_looked_at`].
    pub(super) nodes: Most,
    /// The limit for [`ShardWork::allocations_looked_at`].
    pub(super) allocations: Most,
}

/// The costs of all commands.
pub(super) const COSTS: &[Cost] = &[
    Cost {
        commands: &["Place", "Park", "Retry", "Explain"],
        nodes: Most::RefusalPage,
        allocations: Most::Nothing,
    },
    Cost { commands: &["Release", "Finish", "Apply"], nodes: Most::Nothing, allocations: Most::Inside },
    Cost { commands: &["RemoveNode"], nodes: Most::Fixed(1), allocations: Most::OfNode },
    Cost { commands: &["Life"], nodes: Most::Nothing, allocations: Most::OfNode },
    Cost { commands: &["NodeBooks"], nodes: Most::Fixed(1), allocations: Most::OfNode },
    Cost { commands: &["PlaceInto"], nodes: Most::Nothing, allocations: Most::Named },
    Cost { commands: &["ListNodes"], nodes: Most::Asked, allocations: Most::Nothing },
    Cost { commands: &["Audit"], nodes: Most::AuditPage, allocations: Most::AuditPageAndNode },
    Cost { commands: &["Checkpoint"], nodes: Most::CheckpointPage, allocations: Most::CheckpointPageAndNode },
    Cost { commands: &["GoOn"], nodes: Most::Nothing, allocations: Most::LeasesEnded },
    Cost { commands: &["Export"], nodes: Most::Everything, allocations: Most::Everything },
    Cost {
        commands: &[
            "Status",
            "ListWaiting",
            "CountTurns",
            "AddNode",
            "RejoinNode",
            "UpdateNode",
            "Report",
            "SetHealth",
            "SetResources",
            "Adopt",
            "Watch",
            "Rearm",
            "Unpark",
            "Reserve",
            "EndReservation",
            "Prepare",
            "RenewLease",
            "RenewSession",
        ],
        nodes: Most::Nothing,
        allocations: Most::Nothing,
    },
];

/// Facts about a shard's state on which some bounds depend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CostFacts {
    /// The largest number of allocations on one node, including those inside bundles.
    pub(super) most_of_a_node: u64,
    /// The number of allocations inside all bundles.
    pub(super) inside: u64,
}

/// Returns the command's name as in the table.
fn name_of(command: &Command) -> &'static str {
    match command {
        Command::Place(_) => "Place",
        Command::Release(_) => "Release",
        Command::AddNode(_) => "AddNode",
        Command::RejoinNode { .. } => "RejoinNode",
        Command::GoOn => "GoOn",
        Command::UpdateNode(..) => "UpdateNode",
        Command::Life(..) => "Life",
        Command::Report(..) => "Report",
        Command::SetHealth(..) => "SetHealth",
        Command::RemoveNode { .. } => "RemoveNode",
        Command::ListNodes { .. } => "ListNodes",
        Command::Status => "Status",
        Command::ListWaiting { .. } => "ListWaiting",
        Command::CountTurns(_) => "CountTurns",
        Command::Audit { .. } => "Audit",
        Command::Explain(_) => "Explain",
        Command::Adopt(_) => "Adopt",
        Command::SetResources(..) => "SetResources",
        Command::NodeBooks(_) => "NodeBooks",
        Command::Park(_) => "Park",
        Command::Retry(_) => "Retry",
        Command::Watch(_) => "Watch",
        Command::Rearm { .. } => "Rearm",
        Command::Unpark(_) => "Unpark",
        Command::Reserve(_) => "Reserve",
        Command::EndReservation(..) => "EndReservation",
        Command::Prepare(_) => "Prepare",
        Command::Finish { .. } => "Finish",
        Command::Apply(_) => "Apply",
        Command::PlaceInto { .. } => "PlaceInto",
        Command::RenewLease { .. } => "RenewLease",
        Command::RenewSession { .. } => "RenewSession",
        Command::Export => "Export",
        Command::Checkpoint { .. } => "Checkpoint",
    }
}

impl Most {
    /// Returns the bound for `command`, or `None` if it is unbounded.
    pub(super) fn bound(self, command: &Command, pages: Pages, facts: CostFacts) -> Option<u64> {
        Some(match self {
            Self::Nothing => 0,
            Self::Fixed(most) => most,
            Self::RefusalPage => {
                let page = u64::from(pages.explain_nodes) * u64::from(EXPLAIN_SLOTS_PER_NODE);
                page.max(named(command))
            }
            Self::AuditPage => u64::from(pages.audit_nodes),
            Self::Asked => match command {
                Command::ListNodes { limit, .. } => u64::from(*limit),
                _ => 0,
            },
            Self::Named => match command {
                Command::PlaceInto { bundles, .. } => bundles.len() as u64,
                _ => 0,
            },
            Self::OfNode => facts.most_of_a_node,
            Self::Inside => facts.inside,
            Self::AuditPageAndNode => u64::from(pages.audit_allocations) + facts.most_of_a_node,
            Self::CheckpointPage => u64::from(pages.checkpoint_records),
            Self::CheckpointPageAndNode => u64::from(pages.checkpoint_records) + facts.most_of_a_node,
            Self::LeasesEnded => u64::from(pages.leases_ended),
            Self::Everything => return None,
        })
    }
}

/// Returns the number of candidates that a command's request names.
fn named(command: &Command) -> u64 {
    let of = |request: &PlacementRequest| request.candidates.as_ref().map_or(0, |ids| ids.len() as u64);
    match command {
        Command::Place(request) => of(request),
        Command::Park(park) => of(&park.request),
        Command::Explain(page) => of(&page.request),
        // The request was parked earlier, so the command does not have it.
        Command::Retry(_) => CANDIDATES_MAX as u64,
        _ => 0,
    }
}

impl Cost {
    /// Returns the maximum cost of `command`.
    pub(super) fn of(command: &Command) -> &'static Self {
        let name = name_of(command);
        let row = COSTS.iter().find(|cost| cost.commands.contains(&name));
        row.unwrap_or_else(|| panic!("the table of costs has no row for {name}"))
    }

    /// Checks that `work` does not exceed the maximum cost of `command`.
    ///
    /// # Errors
    /// The limit that was exceeded.
    pub(super) fn check(command: &Command, work: ShardWork, pages: Pages, facts: CostFacts) -> Verdict {
        let cost = Self::of(command);
        let counted = [
            ("nodes", work.nodes_looked_at, cost.nodes),
            ("allocations", work.allocations_looked_at, cost.allocations),
        ];
        for (what, looked_at, most) in counted {
            if let Some(bound) = most.bound(command, pages, facts)
                && looked_at > bound
            {
                let name = name_of(command);
                return Err(format!(
                    "{name} looked at {looked_at} {what}, and may look at {bound}: {most:?}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use wharf_core::ids::Ordinal;
    use wharf_core::request::Policy;
    use wharf_core::resource::Demand;

    use super::*;

    #[test]
    fn a_command_that_costs_more_than_it_may_is_told() {
        let list = Command::ListNodes { after: Ordinal(0), limit: 3 };
        let place = Command::Place(PlacementRequest::new(Demand::default(), Policy::BestFit));
        let pages = Pages { explain_nodes: 100, ..Pages::default() };
        let check = |command: &Command, nodes_looked_at, allocations_looked_at| {
            let facts = CostFacts { most_of_a_node: 5, inside: 2 };
            let work = ShardWork { nodes_looked_at, allocations_looked_at, ..ShardWork::default() };
            Cost::check(command, work, pages, facts)
        };
        assert_eq!(check(&list, 3, 0), Ok(()));
        assert!(check(&list, 4, 0).is_err());
        assert!(check(&list, 0, 1).is_err());
        assert_eq!(check(&place, 400, 0), Ok(()));
        assert!(check(&place, 401, 0).is_err());
        assert_eq!(check(&Command::Audit { number: 0 }, 32, 261), Ok(()));
        assert!(check(&Command::Audit { number: 0 }, 32, 262).is_err());
        assert!(check(&Command::Status, 1, 0).is_err());
        assert_eq!(check(&Command::GoOn, 0, 256), Ok(()));
        assert!(check(&Command::GoOn, 0, 257).is_err());
        assert_eq!(check(&Command::Export, 1 << 40, 1 << 40), Ok(()));
    }
}
