//! Planners: what is asked of them, and what they answer.

mod job;
pub use job::{
    BundleView, GroupRefusal, GroupRefusalReason, GroupState, GroupView, PlanJob, PlanRejection, PlanReply,
    StatementReport, Submit,
};
mod spec;
pub use spec::{GroupSpec, GroupSpecError, Spreading, Strategy, TopologyRule};

use crate::ids::GroupId;

/// Which planner keeps a group.
#[must_use]
pub fn keeper_of(group: GroupId, planners: u16) -> u16 {
    u16::try_from(group.number % u64::from(planners.max(1))).expect("less than the number of planners")
}
