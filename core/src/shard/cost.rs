//! The maximum cost of each command for a shard, as data. The table in ARCHITECTURE.md, section "Cost of a
//! command", shows it, and the simulator enforces it for every command.
//!
//! The cost is what [`ShardWork`] counts: walks over nodes and allocations, not searches in the index.

use crate::broken::{Broken, broken};
use crate::limits::{CANDIDATES_MAX, EXPLAIN_SLOTS_PER_NODE, GROUP_BUNDLES_MAX, NODES_PER_MESSAGE_MAX};
use crate::request::PlacementRequest;
use crate::shard::command::Command;
use crate::shard::work::{Pages, ShardWork};

/// The maximum number of nodes or allocations that one command may look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Most {
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
    /// Everything. Only the service itself asks for this, when it stops.
    Everything,
}

/// The maximum cost of one kind of command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The names of the commands.
    pub commands: &'static [&'static str],
    /// The limit for [`ShardWork::nodes_looked_at`].
    pub nodes: Most,
    /// The limit for [`ShardWork::allocations_looked_at`].
    pub allocations: Most,
}

/// The costs of all commands.
pub const COSTS: &[Cost] = &[
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
    Cost { commands: &["Export"], nodes: Most::Everything, allocations: Most::Everything },
    Cost {
        commands: &[
            "Status",
            "AddNode",
            "RejoinNode",
            "GoOn",
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
        ],
        nodes: Most::Nothing,
        allocations: Most::Nothing,
    },
];

/// Facts about a shard's state on which some bounds depend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostFacts {
    /// The largest number of allocations on one node, including those inside bundles.
    pub most_of_a_node: u64,
    /// The number of allocations inside all bundles.
    pub inside: u64,
}

impl Command {
    /// Returns the command's name as in the table of [costs](crate::shard::COSTS).
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Place(_) => "Place",
            Self::Release(_) => "Release",
            Self::AddNode(_) => "AddNode",
            Self::RejoinNode { .. } => "RejoinNode",
            Self::GoOn => "GoOn",
            Self::UpdateNode(..) => "UpdateNode",
            Self::Life(..) => "Life",
            Self::Report(..) => "Report",
            Self::SetHealth(..) => "SetHealth",
            Self::RemoveNode { .. } => "RemoveNode",
            Self::ListNodes { .. } => "ListNodes",
            Self::Status => "Status",
            Self::Audit { .. } => "Audit",
            Self::Explain(_) => "Explain",
            Self::Adopt(_) => "Adopt",
            Self::SetResources(..) => "SetResources",
            Self::NodeBooks(_) => "NodeBooks",
            Self::Park(_) => "Park",
            Self::Retry(_) => "Retry",
            Self::Watch(_) => "Watch",
            Self::Rearm { .. } => "Rearm",
            Self::Unpark(_) => "Unpark",
            Self::Reserve(_) => "Reserve",
            Self::EndReservation(..) => "EndReservation",
            Self::Prepare(_) => "Prepare",
            Self::Finish { .. } => "Finish",
            Self::Apply(_) => "Apply",
            Self::PlaceInto { .. } => "PlaceInto",
            Self::Export => "Export",
        }
    }
}

impl Most {
    /// Returns the bound for `command`, or `None` if it is unbounded.
    #[must_use]
    pub fn bound(self, command: &Command, pages: Pages, facts: CostFacts) -> Option<u64> {
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
            Self::Everything => return None,
        })
    }

    /// Returns the bound as text, with the default page sizes.
    #[must_use]
    pub fn text(self) -> String {
        let pages = Pages::default();
        match self {
            Self::Nothing => "0".to_owned(),
            Self::Fixed(most) => most.to_string(),
            Self::RefusalPage => {
                let page = pages.explain_nodes * EXPLAIN_SLOTS_PER_NODE;
                format!("{page}, or the named candidates, at most {CANDIDATES_MAX}")
            }
            Self::AuditPage => pages.audit_nodes.to_string(),
            Self::Asked => format!("the number asked for, at most {NODES_PER_MESSAGE_MAX}"),
            Self::Named => format!("the bundles that it names, at most {GROUP_BUNDLES_MAX}"),
            Self::OfNode => "those of the node".to_owned(),
            Self::Inside => "those inside the ended bundles".to_owned(),
            Self::AuditPageAndNode => format!("{} and those of one node", pages.audit_allocations),
            Self::Everything => "all, only at a clean stop".to_owned(),
        }
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
    ///
    /// # Panics
    /// If the table has no row for it.
    #[must_use]
    pub fn of(command: &Command) -> &'static Self {
        let name = command.name();
        let row = COSTS.iter().find(|cost| cost.commands.contains(&name));
        row.unwrap_or_else(|| panic!("the table of costs has no row for {name}"))
    }

    /// Checks that `work` does not exceed the maximum cost of `command`.
    ///
    /// # Errors
    /// The limit that was exceeded.
    pub fn check(command: &Command, work: ShardWork, pages: Pages, facts: CostFacts) -> Result<(), Broken> {
        let cost = Self::of(command);
        let counted = [
            ("nodes", work.nodes_looked_at, cost.nodes),
            ("allocations", work.allocations_looked_at, cost.allocations),
        ];
        for (what, looked_at, most) in counted {
            if let Some(bound) = most.bound(command, pages, facts)
                && looked_at > bound
            {
                let name = command.name();
                return Err(broken!(
                    "{name} looked at {looked_at} {what}, and may look at {bound}: {most:?}"
                ));
            }
        }
        Ok(())
    }
}
