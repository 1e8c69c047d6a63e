//! Placement groups as callers see them: specs, jobs for planners and their replies.

mod explained;
mod job;
mod spec;
mod waiting;

pub use explained::{
    CountGroups, ExplainWait, GroupsCounted, WaitExplained, WaitExplanation, WaitPlace, WaitSubject, WaitsFor,
};
pub use job::{
    BundlePlace, ClientKey, GroupRefusal, GroupRefusalReason, GroupState, GroupView, NoGroup, PlacedPart,
    PlanJob, PlanRejection, PlanReply, StatementReport, Submit,
};
pub use spec::{GroupSpec, GroupSpecError, Spreading, Strategy, TopologyRule};
pub(crate) use waiting::WaitingPages;
pub use waiting::{GroupTurn, WaitingGroup, WaitingPage, WaitingWork};

use crate::ids::GroupId;

/// Returns the number of the planner that keeps a group, which is in no queue.
#[must_use]
pub fn keeper_of(group: GroupId, planners: u16) -> u16 {
    u16::try_from(group.number % u64::from(planners.max(1))).expect("less than the number of planners")
}
