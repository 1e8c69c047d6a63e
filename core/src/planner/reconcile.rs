//! What becomes of bundles that stand: their nodes are lost, or their allocations end otherwise.
//!
//! A bundle that its caller releases, or that a statement of others evicts, is told to nobody but the
//! shard. Views count such endings, and those of whole nodes. A planner that knows how many of them are
//! its own sees by one number per view whether there are others; only then it compares its bundles on the
//! nodes that changed with what the view has there.

use std::collections::BTreeSet;

use super::Planner;
use super::group::{Bundle, Group};
use super::replica::News;
use crate::group::GroupView;
use crate::ids::{AllocationId, GroupId, NodeId};
use crate::node::NodeState;

impl Planner {
    /// Brings every copy up to the newest view, and looks after bundles on nodes that were lost, and those
    /// that ended. Whether any copy was not there yet.
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
        // Nodes that were lost while a statement was about to place bundles on them. These views are as new as
        // every answer that was taken, so they show what was granted; older ones may show a loss before it.
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

    /// Bundles on a node that is lost or gone are to be placed again; on one that only takes no new
    /// work they stay.
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

    /// The bundles on a node are those whose allocations are there, as the view has it, unless it is lost.
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

    /// A group as it stands, with what is on its way out.
    pub(super) fn shown(&self, group: &Group) -> GroupView {
        let releasing = |bundle: &Bundle| {
            let place = bundle.place?;
            let (shard, slot) = self.replicas.locate(place.node)?;
            Some((bundle.index, self.replicas.copies[shard].releasing(slot, place.allocation)?))
        };
        let releasing = group.bundles.iter().filter_map(releasing).collect();
        GroupView { releasing, ..group.view() }
    }

    /// A bundle of a group stands no more: it is placed again as soon as nothing else of it is under way.
    fn is_short(&mut self, id: GroupId) {
        let queued = self.groups[&id].grows_from().is_some() && self.is_queued(id);
        let group = self.groups.get_mut(&id).expect("a group whose bundle ended is there");
        // What it grows by does not keep back what it had.
        group.queued_for_ticket &= !queued;
        self.wait(id);
        self.retry_now = true;
    }
}
