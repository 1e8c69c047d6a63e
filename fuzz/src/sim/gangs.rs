//! Placement groups: what callers of planners ask, and what they were promised.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_core::ids::{AllocationId, GroupId, NodeId};
use wharf_core::planner::{BundleView, GroupSpec, GroupState, GroupView, PlanJob, PlanReply, Strategy};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::router::{Port, PortReply, PortRequest, Tag};
use wharf_core::time::Time;

use super::checkers::Verdict;
use super::choices::Choices;

/// Most groups, and most jobs under way.
const GROUPS_MAX: usize = 6;

/// Asks planners for groups.
pub(super) struct Gangs {
    port: Port,
    last: Tag,
    /// Jobs under way.
    asked: BTreeSet<Tag>,
    /// As they were last shown.
    groups: BTreeMap<GroupId, GroupView>,
    /// Allocations of bundles of groups that are gone.
    pub(super) ended: BTreeSet<AllocationId>,
}

impl Gangs {
    pub(super) fn new(port: Port) -> Self {
        Self { port, last: 0, asked: BTreeSet::new(), groups: BTreeMap::new(), ended: BTreeSet::new() }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.asked.is_empty()
    }

    /// Whether there is that group.
    pub(super) fn has(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    fn ask(&mut self, job: PlanJob, now: Time) {
        self.last += 1;
        let at_once = self.port.submit(self.last, PortRequest::Plan(job), now);
        assert!(matches!(at_once, Ok(None)), "few jobs are under way");
        self.asked.insert(self.last);
        self.port.flush();
    }

    /// The next thing that is asked.
    pub(super) fn act(&mut self, choices: &mut Choices<'_>, now: Time) {
        if self.port.planner_count() == 0 || self.asked.len() >= GROUPS_MAX {
            return;
        }
        let known: Vec<GroupId> = self.groups.keys().copied().collect();
        let create = known.is_empty() || (known.len() < GROUPS_MAX && choices.below(2) == 0);
        if create {
            let spec = Arc::new(spec(choices, now));
            return self.ask(PlanJob::CreateGroup(spec), now);
        }
        let group = *choices.pick(&known);
        match choices.below(5) {
            0 => self.ask(PlanJob::GrowGroup(group, vec![bundle(choices)]), now),
            1 => self.ask(PlanJob::ShrinkGroup(group, vec![choices.below(3) as u32]), now),
            2 | 3 => self.ask(PlanJob::RemoveGroup(group), now),
            _ => self.ask(PlanJob::GroupStatus(group), now),
        }
    }

    /// Asks for every group, to see it as it stands.
    pub(super) fn look_at_all(&mut self, now: Time) {
        for group in self.groups.keys().copied().collect::<Vec<_>>() {
            self.ask(PlanJob::GroupStatus(group), now);
        }
    }

    /// Ends every group.
    pub(super) fn remove_all(&mut self, now: Time) {
        for group in self.groups.keys().copied().collect::<Vec<_>>() {
            self.ask(PlanJob::RemoveGroup(group), now);
        }
    }

    /// Takes answers; how many there were.
    pub(super) fn poll(&mut self, now: Time) -> Result<usize, String> {
        let mut replies = Vec::new();
        self.port.poll(now, |tag, reply| replies.push((tag, reply)));
        let count = replies.len();
        for (tag, reply) in replies {
            if !self.asked.remove(&tag) {
                return Err(format!("answers_stand: job {tag} is answered twice"));
            }
            let PortReply::Plan(reply) = reply else { return Err("a planner answers a job".to_owned()) };
            match *reply {
                PlanReply::Group(view) => {
                    check_group(&view)?;
                    self.groups.insert(view.id, *view);
                }
                PlanReply::Removed(id, _) => {
                    let gone = self.groups.remove(&id);
                    self.ended.extend(gone.iter().flat_map(placed).map(|(.., allocation)| allocation));
                }
                PlanReply::Rejected(_)
                | PlanReply::Cancelled
                | PlanReply::Refused(_)
                | PlanReply::Groups(_)
                | PlanReply::Statement(_) => {}
            }
        }
        Ok(count)
    }
}

/// The bundles that are placed: their place, node and allocation.
fn placed(group: &GroupView) -> impl Iterator<Item = (u32, NodeId, AllocationId)> {
    group.bundles.iter().filter_map(|&(place, bundle)| match bundle {
        BundleView::Placed { node, allocation, .. } => Some((place, node, allocation)),
        BundleView::Unplaced => None,
    })
}

/// A group that is placed has its minimum, as its strategy says.
pub(super) fn check_group(group: &GroupView) -> Verdict {
    let bundles: Vec<_> = placed(group).collect();
    let nodes: BTreeSet<NodeId> = bundles.iter().map(|&(_, node, _)| node).collect();
    let strategy = match group.spec.strategy {
        Strategy::StrictPack => nodes.len() <= 1,
        Strategy::StrictSpread => nodes.len() == bundles.len(),
        Strategy::Pack | Strategy::Spread => true,
    };
    let enough = group.state != GroupState::Placed || bundles.len() >= group.spec.min_members as usize;
    if strategy && enough { Ok(()) } else { Err(format!("groups_are_as_asked: {group:?}")) }
}

fn bundle(choices: &mut Choices<'_>) -> Arc<PlacementRequest> {
    let demand = Demand {
        cpu: Amount::whole(choices.below(3) as u32),
        memory: Amount::whole(choices.below(3) as u32),
        gpu: if choices.one_in(3) { GpuRequest::Whole(1) } else { GpuRequest::None },
        custom: None,
    };
    Arc::new(PlacementRequest::new(demand, Policy::BestFit))
}

fn spec(choices: &mut Choices<'_>, now: Time) -> GroupSpec {
    let count = choices.below(4) + 1;
    let strategies = Strategy::NAMES.map(|(strategy, _)| strategy);
    let strategy = *choices.pick(&strategies);
    let bundles = (0..count).map(|_| bundle(choices)).collect();
    let mut spec = GroupSpec::new(bundles, strategy);
    if choices.one_in(3) {
        spec.min_members = choices.below(count) as u32 + 1;
    }
    if choices.one_in(3) {
        spec.wait_until = Some(Time(now.0 + choices.below(8_000)));
    }
    spec
}
