//! Handles placed bundles whose node is lost or whose allocation ends.
//!
//! If a caller releases a bundle, or another statement evicts it, only the shard knows. Views count these
//! endings and those of whole nodes. A planner knows how many endings are its own, so one number per view
//! shows whether there are others. Only then does it compare its bundles on the changed nodes with the view.

use std::collections::BTreeSet;

use super::Planner;
use super::group::{Bundle, Group};
use super::replica::News;
use crate::group::GroupView;
use crate::ids::{AllocationId, GroupId, NodeId};
use crate::node::NodeState;

impl Planner {
    /// Brings every replica up to the newest view. Handles bundles on lost nodes and bundles that ended.
    /// Returns whether any replica changed.
    pub(super) fn sync(&mut self) -> bool {
        let mut news = News::default();
        let mut moved = false;
        for copy in &mut self.replicas.copies {
            moved |= copy.sync(&mut news);
        }
        if news.first {
            news.touched.extend(self.by_node.keys());
            news.touched.sort_unstable();
        }
        for (node, state) in news.stopped {
            self.node_stopped(node, state);
        }
        // Nodes may be lost while a statement is about to place bundles on them. These views are at least as
        // new as every answer taken, so they show the grants. Older views may show a loss before the grant.
        for node in std::mem::take(&mut self.granted_on) {
            let state = self.replicas.locate(node);
            let state = state.and_then(|(shard, slot)| self.replicas.copies[shard].state(slot));
            self.node_stopped(node, state);
        }
        news.touched.append(&mut self.look_again);
        for node in news.touched {
            self.look_after(node);
        }
        moved
    }

    /// Marks bundles on a lost or removed node as not placed. On a node that only takes no new work, they
    /// stay.
    pub(super) fn node_stopped(&mut self, node: NodeId, state: Option<NodeState>) {
        if !matches!(state, None | Some(NodeState::Lost { .. })) {
            return;
        }
        for (id, index) in self.by_node.remove(&node).unwrap_or_default() {
            let group = self.groups.get_mut(&id).expect("bundles on nodes are of groups");
            let bundle = group.bundle_mut(index).expect("bundles on nodes are of groups");
            let place = bundle.place.take().expect("a bundle on a node has a place");
            bundle.lost = state.map(|_| place.allocation);
            self.is_short(id);
        }
    }

    /// Marks bundles on a node as not placed if the view does not have their allocations or shows the node as
    /// lost.
    pub(super) fn look_after(&mut self, node: NodeId) {
        let Some(bundles) = self.by_node.get(&node) else { return };
        let place = self.replicas.locate(node);
        let state = place.and_then(|(shard, slot)| self.replicas.copies[shard].state(slot));
        let (Some((shard, slot)), Some(NodeState::Joining | NodeState::Ready | NodeState::Draining)) =
            (place, state)
        else {
            return self.node_stopped(node, state);
        };
        let live: BTreeSet<AllocationId> = self.replicas.copies[shard].live_on(slot).collect();
        let mut ended = Vec::new();
        for &(id, index) in bundles {
            let bundle = self.groups[&id].bundle(index).expect("bundles on nodes are of groups");
            let place = bundle.place.expect("a bundle on a node has a place");
            ended.extend((!live.contains(&place.allocation)).then_some((id, index)));
        }
        for (id, index) in ended {
            let bundle = self.groups.get_mut(&id).and_then(|group| group.bundle_mut(index));
            bundle.expect("just looked at").place = None;
            self.left_node(Some(node), id, index);
            self.is_short(id);
        }
    }

    /// Returns the view of a group with its releasing bundles.
    pub(super) fn shown(&self, group: &Group) -> GroupView {
        let releasing = |bundle: &Bundle| {
            let place = bundle.place?;
            let (shard, slot) = self.replicas.locate(place.node)?;
            Some((bundle.index, self.replicas.copies[shard].releasing(slot, place.allocation)?))
        };
        let releasing = group.bundles.iter().filter_map(releasing).collect();
        GroupView { releasing, ..group.view() }
    }

    /// Handles the loss of a bundle. It is placed again as soon as nothing else of the group is in flight.
    fn is_short(&mut self, id: GroupId) {
        let queued = self.groups[&id].grows_from().is_some() && self.is_queued(id);
        let group = self.groups.get_mut(&id).expect("a group whose bundle ended is there");
        // A growth must not delay the bundles that the group had before.
        group.queued_for_ticket &= !queued;
        self.wait(id);
        self.retry_now = true;
    }
}
