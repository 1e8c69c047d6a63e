//! Groups that wait, as a plan of nodes looks at them.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::spec::GroupSpec;
use crate::ids::{GroupId, NodeId};
use crate::limits::{WAITING_BUNDLES_PLANNED_MAX, WAITING_GROUPS_PLANNED_MAX};
use crate::request::{PlacementRequest, WaitingPlacements};
use crate::time::Time;

/// The turn of a group: the highest priority first, then the one that waits longest.
pub type GroupTurn = (Reverse<i32>, Time, GroupId);

/// A group that waits for room, with what it lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingGroup {
    /// Its turn.
    pub turn: GroupTurn,
    /// Its spec. What it lacks may differ from the bundles in it.
    pub spec: Arc<GroupSpec>,
    /// The requests of the bundles that are not placed, each with how many there are of it. At least one, with those that are
    /// passed over.
    pub open: Vec<(Arc<PlacementRequest>, u32)>,
    /// How many of these are placed together or not at all. 0: each is placed by itself.
    pub least: u32,
    /// The nodes of its placed bundles, ascending, each once.
    pub nodes: Vec<NodeId>,
    /// The requests of those that the cap of its queue does not allow now. They are not in `open`, and are placed later.
    pub passed_over: Vec<(Arc<PlacementRequest>, u32)>,
    /// Whether its queue is charged already for some of the bundles that are not placed.
    pub is_charged: bool,
}

impl WaitingGroup {
    /// Returns its id.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.turn.2
    }

    /// Returns the number of bundles that are not placed.
    #[must_use]
    pub fn bundles(&self) -> u64 {
        self.open.iter().chain(&self.passed_over).map(|&(_, count)| u64::from(count)).sum()
    }
}

/// A page of the groups that wait at one planner, in order of turn.
#[derive(Clone, Debug, Default)]
pub struct WaitingPage {
    /// The groups.
    pub groups: Vec<WaitingGroup>,
    /// The turn after which the next page begins. `None`: there is none.
    pub next: Option<GroupTurn>,
    /// The number of all groups that wait at the planner.
    pub all: u64,
}

/// What waits at planners and shards, as far as a plan of nodes looks at it.
#[derive(Clone, Debug, Default)]
pub struct WaitingWork {
    /// The groups in order of turn.
    pub groups: Vec<WaitingGroup>,
    /// The placements.
    pub placements: Vec<WaitingPlacements>,
    /// The number of groups and placements that are left out because there are too many. These come last.
    pub left_out: u64,
}

/// The pages of all planners, while they arrive.
#[derive(Debug, Default)]
pub(crate) struct WaitingPages {
    of_planners: Vec<OfPlanner>,
    /// The number of planners of which pages are missing.
    awaited: usize,
}

#[derive(Debug, Default)]
struct OfPlanner {
    groups: Vec<WaitingGroup>,
    bundles: u64,
    /// The number of groups of pages that arrived, as of the last page.
    all: u64,
}

impl WaitingPages {
    /// Begins to wait for the first page of each planner.
    pub(crate) fn new(planners: usize) -> Self {
        let of_planners = (0..planners).map(|_| OfPlanner::default()).collect();
        Self { of_planners, awaited: planners }
    }

    /// Returns of how many planners pages are missing.
    pub(crate) fn awaited(&self) -> usize {
        self.awaited
    }

    /// Returns whether all pages arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.awaited == 0
    }

    /// Takes a page of a planner. Returns after which turn the next page of it is to begin, if one is needed: what lower
    /// turns have could not be in the plan.
    pub(crate) fn take(&mut self, planner: usize, page: WaitingPage) -> Option<GroupTurn> {
        let of = &mut self.of_planners[planner];
        of.bundles += page.groups.iter().map(WaitingGroup::bundles).sum::<u64>();
        of.groups.extend(page.groups);
        // Groups may have come while the pages were read.
        of.all = page.all.max(of.groups.len() as u64);
        let is_full =
            of.groups.len() >= WAITING_GROUPS_PLANNED_MAX || of.bundles >= WAITING_BUNDLES_PLANNED_MAX;
        let next = page.next.filter(|_| !is_full);
        if next.is_none() {
            self.awaited -= 1;
        }
        next
    }

    /// Returns the first groups of all pages, as many as a plan looks at.
    pub(crate) fn into_work(self) -> WaitingWork {
        assert!(self.is_complete(), "waiting groups are counted before all planners have answered");
        let all: u64 = self.of_planners.iter().map(|of| of.all).sum();
        let mut groups: Vec<WaitingGroup> = self.of_planners.into_iter().flat_map(|of| of.groups).collect();
        groups.sort_unstable_by_key(|group| group.turn);
        // A group whose turn changed between two pages may be in both.
        let mut known = BTreeSet::new();
        let before = groups.len();
        groups.retain(|group| known.insert(group.id()));
        let twice = (before - groups.len()) as u64;
        let mut bundles = 0;
        let fits = |group: &&WaitingGroup| {
            bundles += group.bundles();
            bundles <= WAITING_BUNDLES_PLANNED_MAX
        };
        let taken = groups.iter().take(WAITING_GROUPS_PLANNED_MAX).take_while(fits).count();
        groups.truncate(taken);
        let left_out = all.saturating_sub(taken as u64 + twice);
        WaitingWork { groups, placements: Vec::new(), left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Strategy;
    use crate::ids::{Incarnation, TenantId};
    use crate::request::Policy;
    use crate::resource::{Amount, Demand};

    fn group(priority: i32, since: u64, number: u64, bundles: u32) -> WaitingGroup {
        let demand = Demand { cpu: Amount::whole(1), ..Demand::default() };
        let request = Arc::new(PlacementRequest::new(demand, Policy::BestFit));
        let id = GroupId { tenant: TenantId::OPERATOR, incarnation: Incarnation(1), number };
        WaitingGroup {
            turn: (Reverse(priority), Time(since), id),
            spec: Arc::new(GroupSpec::new(vec![Arc::clone(&request)], Strategy::Pack)),
            open: vec![(request, bundles)],
            least: bundles,
            nodes: Vec::new(),
            passed_over: Vec::new(),
            is_charged: false,
        }
    }

    fn page(groups: Vec<WaitingGroup>, has_more: bool, all: u64) -> WaitingPage {
        let next = groups.last().map(|group| group.turn).filter(|_| has_more);
        WaitingPage { groups, next, all }
    }

    fn numbers(groups: &WaitingWork) -> Vec<u64> {
        groups.groups.iter().map(|group| group.id().number).collect()
    }

    #[test]
    fn pages_of_all_planners_are_put_in_one_order() {
        let mut pages = WaitingPages::new(2);
        let next = pages.take(0, page(vec![group(5, 1, 0, 2), group(0, 3, 2, 1)], true, 3));
        assert_eq!(next, Some(group(0, 3, 2, 1).turn));
        assert!(pages.take(1, page(vec![group(0, 2, 1, 1)], false, 1)).is_none());
        assert!(!pages.is_complete());
        assert!(pages.take(0, page(vec![group(0, 3, 4, 1)], false, 3)).is_none());
        assert!(pages.is_complete());
        let all = pages.into_work();
        assert_eq!((numbers(&all), all.left_out), (vec![0, 1, 2, 4], 0));
        let none = WaitingPages::new(0);
        assert!(none.is_complete() && none.into_work().groups.is_empty());
    }

    #[test]
    fn a_group_in_two_pages_counts_once() {
        let mut pages = WaitingPages::new(1);
        assert!(pages.take(0, page(vec![group(0, 1, 7, 2)], true, 1)).is_some());
        assert!(pages.take(0, page(vec![group(0, 9, 7, 2)], false, 1)).is_none());
        let all = pages.into_work();
        assert_eq!((numbers(&all), all.left_out), (vec![7], 0));
    }

    #[test]
    fn what_exceeds_the_bounds_comes_last_and_is_counted() {
        let most = WAITING_GROUPS_PLANNED_MAX as u64;
        let mut pages = WaitingPages::new(2);
        let many = (0..most).map(|number| group(0, number, 2 * number, 1)).collect();
        assert!(pages.take(0, page(many, true, most + 5)).is_none(), "no more of it can be in the plan");
        assert!(pages.take(1, page(vec![group(1, 9, 1, 1)], false, 1)).is_none());
        let all = pages.into_work();
        assert_eq!((all.groups.len(), all.left_out), (WAITING_GROUPS_PLANNED_MAX, 6));
        assert_eq!(all.groups[0].id().number, 1, "the one of the higher priority");
        let half = u32::try_from(WAITING_BUNDLES_PLANNED_MAX / 2).unwrap();
        let mut pages = WaitingPages::new(1);
        let three = (0..3).map(|number| group(0, number, number, half)).collect();
        assert!(pages.take(0, page(three, true, 10)).is_none());
        let all = pages.into_work();
        assert_eq!((numbers(&all), all.left_out), (vec![0, 1], 8));
    }
}
