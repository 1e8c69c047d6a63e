//! Bundles of waiting groups in the queue.
//!
//! Only its planner can tell whether a group fits. So a woken bundle takes nothing of what the node offers, and all
//! bundles that the node could hold are woken together. Requests that come after them have their turn when the
//! planners have answered all of them. So a request never gets the room before a bundle that comes first.

use super::offer::Offer;
use super::{Turn, Waiting, admits, following};
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
    /// The earliest turn of a request that fits and waits for the answers.
    blocked: Option<Turn>,
    /// True if the node grew since the first of the bundles was woken.
    grew: bool,
}

/// The result for one copy when a node offers room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// It was woken.
    Woken,
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
        if self.copies[&turn.2].is_bundle {
            let new = BundlesUnderWay { left: 0, first: turn, last: turn, blocked: None, grew: false };
            let bundles = self.bundles.entry(node).or_insert(new);
            bundles.left += 1;
            bundles.first = bundles.first.min(turn);
            bundles.last = bundles.last.max(turn);
        } else if let Some(bundles) = self.bundles.get_mut(&node).filter(|bundles| bundles.first < turn)
            && !is_planted(PlantedBug::RequestPassesBundle)
        {
            bundles.blocked = Some(bundles.blocked.map_or(turn, |blocked| blocked.min(turn)));
            return Wake::Blocked;
        } else {
            offer.take(&self.shapes[at].request);
        }
        self.wake(turn, node);
        Wake::Woken
    }

    /// Arms a bundle again whose group found no place. Returns whether there is such a bundle.
    pub(crate) fn rearm(&mut self, books: &Books, token: WaitToken) -> bool {
        let Some(copy) = self.copies.get_mut(&token).filter(|copy| copy.is_bundle) else { return false };
        let node = copy.under_way.take();
        if node.is_some() {
            let turn = copy.turn;
            let shape = copy.shape;
            self.arm(shape, turn);
            self.bundle_answered(books, node);
        }
        true
    }

    /// Notes the answer to a bundle that was under way for `node`. After the last one, the room is offered to those
    /// that did not have their turn.
    pub(super) fn bundle_answered(&mut self, books: &Books, node: Option<NodeId>) {
        let Some(node) = node else { return };
        let bundles = self.bundles.get_mut(&node).expect("a bundle is under way for the node");
        bundles.left -= 1;
        if bundles.left > 0 {
            return;
        }
        let &mut BundlesUnderWay { first, last, blocked, grew, .. } = bundles;
        assert!(
            first <= last && blocked.is_none_or(|blocked| blocked > first),
            "requests wait for earlier bundles"
        );
        self.bundles.remove(&node);
        let next = following(last);
        let next = blocked.map_or(next, |blocked| blocked.min(next));
        self.offer_again(books, Some(node), (!grew).then_some(next));
    }

    /// Notes that a node has more available. Bundles that are under way for it have a turn again.
    pub(super) fn node_grew(&mut self, node: NodeId) {
        if let Some(bundles) = self.bundles.get_mut(&node) {
            bundles.grew = true;
        }
    }

    /// Checks that the bundles of each node are counted.
    pub(super) fn check_bundles(&self) -> Result<(), Broken> {
        let under_way = self.copies.values().filter(|copy| copy.is_bundle && copy.under_way.is_some());
        let counted: u32 = self.bundles.values().map(|bundles| bundles.left).sum();
        let each = self.bundles.iter().all(|(&node, bundles)| {
            let of_node = self.copies.values().filter(|copy| copy.is_bundle && copy.under_way == Some(node));
            bundles.left > 0 && of_node.count() == bundles.left as usize
        });
        let under_way = under_way.count();
        if each && under_way == counted as usize {
            return Ok(());
        }
        Err(broken!("{under_way} bundles are under way, {counted} are counted by node"))
    }
}
