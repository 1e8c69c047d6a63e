//! Whoever waits for a group, or for bundles that it grows by: how that ends without a place.

use super::Planner;
use super::group::{Awaiting, Group};
use super::job::{GroupRefusal, GroupRefusalReason, PlanReply};
use crate::ids::GroupId;
use crate::statement::Conflict;
use crate::time::Time;

/// Whether what a group is to be placed with may wait. What it grows by waits only while the rest stands: what
/// was lost is placed again first.
pub(super) fn may_wait(group: &Group) -> bool {
    let Some(first) = group.grows_from() else { return true };
    group.bundles.iter().all(|bundle| bundle.index >= first || bundle.place.is_some())
}

impl Planner {
    /// Answers who asked for a group, which is forgotten, or for more bundles, which are taken out again.
    pub(super) fn give_up(&mut self, id: GroupId, reply: PlanReply, now: Time) {
        let group = self.groups.get_mut(&id).expect("what is given up is there");
        match std::mem::replace(&mut group.awaiting, Awaiting::Nobody) {
            Awaiting::Creation(tag) => {
                self.forget_group(id);
                self.reply(tag, reply);
            }
            Awaiting::Growth(tag, first) => {
                group.bundles.retain(|bundle| bundle.index < first);
                // They never were: the next ones have their numbers.
                group.next_index = first;
                (group.contending, group.losses) = (false, 0);
                self.reply(tag, reply);
                self.settle(id, now);
            }
            Awaiting::Nobody => unreachable!("nobody waits for group {id}"),
        }
    }

    /// A group lost as often as is tried, and its time is up.
    pub(super) fn refuse_loser(&mut self, id: GroupId, conflicts: &[Conflict], now: Time) {
        let reason = GroupRefusalReason::Conflicts(conflicts.to_vec());
        let refusal = GroupRefusal { infeasible: false, reason, attempts: self.groups[&id].attempts };
        self.give_up(id, PlanReply::Refused(Box::new(refusal)), now);
    }
}
