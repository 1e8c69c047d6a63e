//! The groups of a client: its requests and the replies to them.

use wharf_core::ids::GroupId;
use wharf_core::time::Time;
use wharf_net::codec::{FrameRef, decode_body};
use wharf_net::protocol::{
    BundleTemplate, CreateGroupRequest, DemandBody, GROUP_NOT_SHOWN, GroupReply, GrowGroupRequest, Kind,
    MODE_NOW, MODE_WAIT_UNTIL, POLICY_FGD, POLICY_HYBRID, POLICY_LEAST_STRANDED, POLICY_NEXT_FIT,
    POLICY_SPREAD, PlaceRequest, Reason, RemoveGroupReply, RemoveGroupRequest,
};

use super::{Asked, Client};
use crate::sim::checkers::Verdict;
use crate::sim::choices::Choices;

/// One unit, in 1/10,000 of a unit.
const UNIT: i64 = 10_000;

/// The highest number of groups that a client keeps.
const GROUPS_MAX: usize = 3;

/// The policies of bundles. The callers of planners within the process use other ones, so a group tells whose it is.
const POLICIES: [u8; 5] = [POLICY_NEXT_FIT, POLICY_FGD, POLICY_HYBRID, POLICY_SPREAD, POLICY_LEAST_STRANDED];

fn template(choices: &mut Choices<'_>) -> BundleTemplate {
    let demand = DemandBody {
        cpu: choices.below(3) as i64 * UNIT,
        memory: choices.below(3) as i64 * UNIT,
        gpu: [UNIT, 4_000, 0, 0][choices.place(4)],
        ..DemandBody::default()
    };
    let policy = *choices.pick(&POLICIES);
    let request = PlaceRequest { demand, policy, ..PlaceRequest::default() };
    BundleTemplate { request, count: choices.below(2) as u32 + 1 }
}

fn templates(choices: &mut Choices<'_>) -> Vec<BundleTemplate> {
    (0..=choices.below(2)).map(|_| template(choices)).collect()
}

/// Returns the mode and the deadline of a group or of growth.
fn wait(choices: &mut Choices<'_>, now: Time) -> (u8, u64) {
    if choices.one_in(4) { (MODE_NOW, 0) } else { (MODE_WAIT_UNTIL, now.0 + 1 + choices.below(30_000)) }
}

impl Client {
    /// Asks for a group, for more bundles of one, or for its removal.
    pub(in crate::sim) fn ask_about_groups(
        &mut self,
        choices: &mut Choices<'_>,
        now: Time,
    ) -> Option<Vec<u8>> {
        let known: Vec<GroupId> = self.groups.iter().copied().collect();
        if known.is_empty() || known.len() < GROUPS_MAX && choices.one_in(2) {
            let (mode, deadline) = wait(choices, now);
            let bundles = templates(choices);
            let count: u32 = bundles.iter().map(|template| template.count).sum();
            let min_members = if choices.one_in(3) { choices.below(u64::from(count)) as u32 + 1 } else { 0 };
            let strategy = choices.below(4) as u8;
            let priority = choices.below(3) as i32;
            let request = CreateGroupRequest {
                bundles,
                strategy,
                min_members,
                mode,
                deadline,
                priority,
                ..CreateGroupRequest::default()
            };
            let waits = mode == MODE_WAIT_UNTIL;
            return Some(self.ask(Kind::CreateGroup, &request, Asked::Create { waits }));
        }
        let group = *choices.pick(&known);
        if choices.one_in(2) {
            return Some(self.ask_removal(group));
        }
        let (mode, deadline) = wait(choices, now);
        let bundles = templates(choices);
        let by = bundles.iter().map(|template| template.count as usize).sum();
        let request = GrowGroupRequest { group: group.into(), bundles, mode, deadline };
        let waits = mode == MODE_WAIT_UNTIL;
        Some(self.ask(Kind::GrowGroup, &request, Asked::Grow { group, by, waits }))
    }

    /// Asks for the removal of a group.
    pub(in crate::sim) fn ask_removal(&mut self, group: GroupId) -> Vec<u8> {
        self.groups.remove(&group);
        self.ask(Kind::RemoveGroup, &RemoveGroupRequest { group: group.into() }, Asked::Remove(group))
    }

    pub(super) fn handle_created(&mut self, frame: &FrameRef<'_>, waits: bool) -> Verdict {
        let (reply, _) = decode_body::<GroupReply>(frame.payload).map_err(|error| error.to_string())?;
        let Some(group) = &reply.group else { return may_be_refused(&reply, waits) };
        let placed = group.bundles.iter().filter_map(|bundle| bundle.placed.as_ref());
        let mut tenants = placed.map(|placed| placed.allocation.tenant).chain([group.id.tenant]);
        if tenants.any(|tenant| tenant != self.tenant.0) {
            return Err(format!("a client of tenant {} has the group {group:?}", self.tenant.0));
        }
        if !self.groups.insert(group.id.into()) {
            return Err(format!("group {:?} was created twice", group.id));
        }
        Ok(())
    }

    pub(super) fn handle_grown(
        &self,
        frame: &FrameRef<'_>,
        group: GroupId,
        by: usize,
        waits: bool,
    ) -> Verdict {
        let (reply, _) = decode_body::<GroupReply>(frame.payload).map_err(|error| error.to_string())?;
        match &reply.group {
            Some(grown) if grown.id == group.into() && grown.state == GROUP_NOT_SHOWN => Ok(()),
            Some(grown) if grown.id != group.into() || grown.bundles.len() <= by => {
                Err(format!("group {group} grew by {by}, and became {grown:?}"))
            }
            Some(_) => Ok(()),
            // Another growth of it may be under way, or it was asked to be removed.
            None if reply.reason == Reason::GroupBusy.into() => Ok(()),
            None if self.groups.contains(&group) => may_be_refused(&reply, waits),
            None if reply.reason == Reason::UnknownGroup.into() => Ok(()),
            None if reply.reason == Reason::Cancelled.into() => Ok(()),
            None => may_be_refused(&reply, waits),
        }
    }

    pub(super) fn handle_removed(&mut self, frame: &FrameRef<'_>, group: GroupId) -> Verdict {
        let (reply, _) = decode_body::<RemoveGroupReply>(frame.payload).map_err(|error| error.to_string())?;
        if reply.reason.is_done() {
            return Ok(());
        }
        // A statement about it may be under way.
        if reply.reason == Reason::GroupBusy.into() {
            self.groups.insert(group);
            return Ok(());
        }
        Err(format!("the removal of group {group} was answered with {reply:?}"))
    }
}

/// Checks that a group that was not placed has a reason that its request allows.
fn may_be_refused(reply: &GroupReply, waits: bool) -> Verdict {
    let reasons = [Reason::NoFitNow, Reason::Infeasible, Reason::Conflicted];
    let of_waits = [Reason::Cancelled, Reason::ShuttingDown];
    let is_known = |reasons: &[Reason]| reasons.iter().any(|&reason| reply.reason == reason.into());
    if is_known(&reasons) || waits && is_known(&of_waits) {
        return Ok(());
    }
    Err(format!("a group was answered with {reply:?}"))
}
