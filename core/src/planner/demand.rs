//! Waiting groups as a plan of nodes looks at them: the keeper of jobs asks each planner for pages of them.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use super::group::Group;
use super::{JobTag, Planner};
use crate::group::{GroupTurn, PlanReply, WaitingGroup, WaitingPage};
use crate::ids::NodeId;
use crate::limits::WAITING_LOOKS_PER_PAGE;
use crate::request::PlacementRequest;

impl Planner {
    /// Answers with a page of the groups that wait.
    pub(super) fn list_waiting(&mut self, tag: JobTag, after: Option<GroupTurn>) {
        let page = self.waiting_page(after);
        self.reply(tag, PlanReply::Waiting(page));
    }

    /// Returns a page of the groups that wait, those after the given turn. One page is of bounded work, and the rest is asked
    /// for later.
    pub(super) fn waiting_page(&mut self, after: Option<GroupTurn>) -> WaitingPage {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut page = WaitingPage { all: self.seeking.len() as u64, ..WaitingPage::default() };
        let mut looks = 0;
        for &turn in self.seeking.range((from, Bound::Unbounded)) {
            if looks >= WAITING_LOOKS_PER_PAGE {
                page.next = page.groups.last().map(|group| group.turn);
                break;
            }
            let group = &self.groups[&turn.2];
            looks += 1 + group.bundles.len() as u64;
            page.groups.push(waiting(turn, group, &self.placed_later(turn.2)));
        }
        self.replicas.meter.charge(looks);
        page
    }
}

/// Returns what a group lacks that waits. Some bundles are placed later, as the cap of its queue does not allow them.
fn waiting(turn: GroupTurn, group: &Group, later: &BTreeSet<u32>) -> WaitingGroup {
    let [mut open, mut passed_over]: [Vec<(Arc<PlacementRequest>, u32)>; 2] = Default::default();
    for bundle in group.open() {
        let of = if later.contains(&bundle.index) { &mut passed_over } else { &mut open };
        // Equal bundles mostly share one request and follow each other.
        match of.last_mut().filter(|(request, _)| Arc::ptr_eq(request, &bundle.request)) {
            Some((_, count)) => *count += 1,
            None => of.push((Arc::clone(&bundle.request), 1)),
        }
    }
    let all: u32 = open.iter().map(|&(_, count)| count).sum();
    // A growth is placed as a whole.
    let missing = u32::try_from(group.missing()).expect("GROUP_BUNDLES_MAX fits u32");
    let least = if group.grows_from().is_some() { all } else { missing.min(all) };
    let nodes: BTreeSet<NodeId> =
        group.bundles.iter().filter_map(|bundle| Some(bundle.place?.node)).collect();
    // A bundle on a lost node keeps its charge until it has another node.
    let is_charged = group.spec.queue.is_some() && group.open().any(|bundle| bundle.lost.is_some());
    let spec = Arc::clone(&group.spec);
    WaitingGroup { turn, spec, open, least, nodes: nodes.into_iter().collect(), passed_over, is_charged }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{BundlePlace, GroupSpec, Strategy};
    use crate::ids::{AllocationId, GroupId, Incarnation, PartitionId, TenantId};
    use crate::planner::group::Job;
    use crate::planner::test_bed::cores;
    use crate::resource::GpuAssignment;

    fn group(requests: &[Arc<PlacementRequest>], min_members: u32) -> Group {
        let spec = GroupSpec { min_members, ..GroupSpec::new(requests.to_vec(), Strategy::Pack) };
        let id = GroupId { tenant: TenantId::OPERATOR, incarnation: Incarnation(1), number: 4 };
        let mut group = Group::new(id, Arc::new(spec), Vec::new(), 0);
        group.add(requests);
        group
    }

    fn place(group: &mut Group, index: u32, node: u64) {
        let allocation = AllocationId {
            incarnation: Incarnation(1),
            partition: PartitionId(0),
            sequence: u64::from(index),
            tenant: TenantId::OPERATOR,
        };
        let place = BundlePlace { node: NodeId(node), allocation, gpus: GpuAssignment::default() };
        group.bundle_mut(index).expect("it is there").place = Some(place);
    }

    fn counts(waiting: &WaitingGroup) -> Vec<u32> {
        waiting.open.iter().map(|&(_, count)| count).collect()
    }

    #[test]
    fn what_a_group_lacks_is_its_open_bundles_and_the_rest_of_its_minimum() {
        let small = Arc::new(cores(1));
        let large = Arc::new(cores(4));
        let requests = [&small, &small, &large, &small, &small].map(Arc::clone);
        let mut group = group(&requests, 3);
        let before = waiting(group.turn(), &group, &BTreeSet::new());
        assert_eq!((counts(&before), before.least, before.bundles()), (vec![2, 1, 2], 3, 5));
        assert_eq!((before.id(), before.nodes.len()), (group.id, 0));
        place(&mut group, 0, 9);
        place(&mut group, 3, 8);
        place(&mut group, 4, 9);
        let after = waiting(group.turn(), &group, &BTreeSet::new());
        // It has its minimum: the rest is placed one by one.
        assert_eq!((counts(&after), after.least), (vec![1, 1], 0));
        assert_eq!(after.nodes, [NodeId(8), NodeId(9)]);
        let capped = waiting(group.turn(), &group, &BTreeSet::from([2]));
        assert_eq!((counts(&capped), capped.passed_over, capped.least), (vec![1], vec![(large, 1)], 0));
    }

    #[test]
    fn a_growth_lacks_all_that_it_adds() {
        let small = Arc::new(cores(1));
        let mut group = group(&[Arc::clone(&small), Arc::clone(&small)], 1);
        place(&mut group, 0, 1);
        place(&mut group, 1, 1);
        let first = group.add(&[Arc::new(cores(2)), Arc::new(cores(3))]);
        group.job = Some(Job::new(1, Some(first), None));
        let waiting = waiting(group.turn(), &group, &BTreeSet::new());
        assert_eq!((counts(&waiting), waiting.least), (vec![1, 1], 2));
    }
}
