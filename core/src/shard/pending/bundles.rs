//! Bundles of waiting groups in the queue.
//!
//! Only its planner can tell whether a group fits. So a woken bundle takes nothing of what the node offers, and all
//! bundles of one planner that the node could hold are woken together. Requests and other planners' bundles that come
//! after them have their turn when the planner has answered all of them.
//!
//! A bundle stays armed while it is under way, so it may be under way for several nodes. Each is a report of its own to
//! the planner, who answers reports in order.

use super::offer::Offer;
use super::{FIRST, Turn, Waiting, admits, following};
use crate::broken::{Broken, broken};
use crate::ids::NodeId;
use crate::index::Slot;
use crate::planted::{PlantedBug, is_planted};
use crate::shard::books::Books;
use crate::shard::command::WaitToken;

/// The bundles that are under way for one node.
pub(super) struct BundlesUnderWay {
    /// The number of bundles without an answer, at least one.
    left: u32,
    /// The earliest turn of the bundles.
    first: Turn,
    /// The latest turn of the bundles.
    last: Turn,
    /// The earliest turn that fits, or may fit, and waits for the answers.
    blocked: Option<Turn>,
    /// True if the node grew since the first of the bundles was woken.
    grew: bool,
}

impl BundlesUnderWay {
    fn block(&mut self, turn: Turn) {
        self.blocked = Some(self.blocked.map_or(turn, |blocked| blocked.min(turn)));
    }
}

/// The result for one copy when a node offers room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// It was woken.
    Woken,
    /// It is a bundle that is under way for this node already.
    UnderWay,
    /// The node cannot hold it.
    DoesNotFit,
    /// It fits, and has its turn when the bundles before it are answered.
    Blocked,
}

impl Waiting {
    /// Wakes an armed copy of the shape `at` if the node could hold it with the rest of its offer.
    pub(super) fn wake_if_it_fits(
        &mut self,
        books: &Books,
        slot: Slot,
        offer: &mut Offer,
        (turn, at): (Turn, usize),
    ) -> Wake {
        assert!(self.shapes[at].armed.contains(&turn), "only armed copies are woken");
        let request = &self.shapes[at].request;
        if !admits(books, slot, request) || !offer.holds(request) {
            return Wake::DoesNotFit;
        }
        let node = books.nodes.hot(slot).id;
        let before = self.bundles.get_mut(&node).filter(|bundles| bundles.first < turn);
        let copy = self.copies.get_mut(&turn.2).expect("an armed copy is parked");
        let Some(nodes) = &mut copy.bundle else {
            if let Some(bundles) = before
                && !is_planted(PlantedBug::RequestPassesBundle)
            {
                bundles.block(turn);
                return Wake::Blocked;
            }
            offer.take(&self.shapes[at].request);
            self.wake(turn, node);
            return Wake::Woken;
        };
        if nodes.contains(&node) {
            return Wake::UnderWay;
        }
        // A planner orders its own bundles.
        if let Some(bundles) = before.filter(|bundles| bundles.first.2.port != turn.2.port) {
            bundles.block(turn);
            return Wake::Blocked;
        }
        nodes.push(node);
        let new = BundlesUnderWay { left: 0, first: turn, last: turn, blocked: None, grew: false };
        let bundles = self.bundles.entry(node).or_insert(new);
        bundles.left += 1;
        assert!(
            bundles.blocked.is_none_or(|blocked| blocked > bundles.first),
            "who waits comes after a bundle"
        );
        bundles.first = bundles.first.min(turn);
        bundles.last = bundles.last.max(turn);
        self.woken.push(turn.2);
        Wake::Woken
    }

    /// Lets the copy of the shape `at` after `turn` have its turn when the bundles under way for a node are answered.
    pub(super) fn block_next(&mut self, node: NodeId, turn: Turn, at: usize) {
        let next = self.shapes.get(at).and_then(|shape| shape.next(following(turn)));
        if let (Some(next), Some(bundles)) = (next, self.bundles.get_mut(&node)) {
            bundles.block(next);
        }
    }

    /// Notes the answer to the first `reports` of a bundle whose group found no place. Returns whether there is such a
    /// bundle.
    ///
    /// # Panics
    /// If the bundle was reported less often.
    pub(crate) fn rearm(&mut self, books: &Books, token: WaitToken, reports: u32) -> bool {
        let Some(nodes) = self.copies.get_mut(&token).and_then(|copy| copy.bundle.as_mut()) else {
            return false;
        };
        assert!(
            reports as usize <= nodes.len(),
            "{token:?} was reported {} times, not {reports}",
            nodes.len()
        );
        let answered: Vec<NodeId> = nodes.drain(..reports as usize).collect();
        answered.into_iter().for_each(|node| self.bundle_answered(books, node));
        true
    }

    /// Notes the answer to a bundle that was under way for `node`. After the last one, the room is offered to those
    /// that did not have their turn.
    pub(super) fn bundle_answered(&mut self, books: &Books, node: NodeId) {
        let bundles = self.bundles.get_mut(&node).expect("a bundle is under way for the node");
        bundles.left -= 1;
        if bundles.left > 0 {
            return;
        }
        let &mut BundlesUnderWay { first, last, blocked, grew, .. } = bundles;
        assert!(
            first <= last && blocked.is_none_or(|blocked| blocked > first),
            "who waits comes after a bundle"
        );
        self.bundles.remove(&node);
        let next = following(last);
        let next = blocked.map_or(next, |blocked| blocked.min(next));
        self.offer_again(books, Some(node), next);
        if grew {
            // After those that waited: otherwise a node that grows all the time would serve the same bundle for ever.
            self.offer_again(books, Some(node), FIRST);
        }
    }

    /// Notes that a node has more available. Bundles that are under way for it have a turn again.
    pub(super) fn node_grew(&mut self, node: NodeId) {
        if let Some(bundles) = self.bundles.get_mut(&node) {
            bundles.grew = true;
        }
    }

    /// Checks that the bundles of each node are counted.
    pub(super) fn check_bundles(&self) -> Result<(), Broken> {
        let under_way: Vec<NodeId> =
            self.copies.values().filter_map(|copy| copy.bundle.as_deref()).flatten().copied().collect();
        let counted: u32 = self.bundles.values().map(|bundles| bundles.left).sum();
        let each = self.bundles.iter().all(|(&node, bundles)| {
            let of_node = under_way.iter().filter(|&&of| of == node).count();
            bundles.left > 0 && of_node == bundles.left as usize
        });
        if each && under_way.len() == counted as usize {
            return Ok(());
        }
        Err(broken!("{} bundles are under way, {counted} are counted by node", under_way.len()))
    }
}
