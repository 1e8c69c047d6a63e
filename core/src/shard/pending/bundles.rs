//! Bundles of waiting groups in the queue.
//!
//! Only its planner can tell whether a group fits. So a woken bundle takes nothing of what the node offers, and all
//! bundles of one planner that the node could hold are woken together. Requests and other planners' bundles that come
//! after them have their turn when the planner has answered all of them.
//!
//! A bundle stays armed while it is under way, so it may be under way for several nodes. Each is a report of its own to
//! the planner, who answers reports in order.

use std::collections::BTreeSet;

use super::offer::Offer;
use super::{FIRST, Turn, Waiting, admits, following};
use crate::broken::{Broken, broken};
use crate::ids::NodeId;
use crate::index::Slot;
use crate::limits::GO_ON_LOOKS_MAX;
use crate::memory;
use crate::planted::{PlantedBug, is_planted};
use crate::shard::books::Books;
use crate::shard::command::WaitToken;

/// The bundles that are under way for one node.
pub(super) struct BundlesUnderWay {
    /// The bundles without a handled answer, at least one.
    tokens: BTreeSet<WaitToken>,
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
        assert!(turn > self.first, "who waits comes after a bundle");
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
        let under_way = self.bundles.get_mut(&node);
        if under_way.as_ref().is_some_and(|bundles| bundles.tokens.contains(&turn.2)) {
            return Wake::UnderWay;
        }
        let before = under_way.filter(|bundles| bundles.first < turn);
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
        // A planner orders its own bundles.
        if let Some(bundles) = before.filter(|bundles| bundles.first.2.port != turn.2.port) {
            bundles.block(turn);
            return Wake::Blocked;
        }
        nodes.push(node);
        let new =
            BundlesUnderWay { tokens: BTreeSet::new(), first: turn, last: turn, blocked: None, grew: false };
        let bundles = self.bundles.entry(node).or_insert(new);
        let is_new = bundles.tokens.insert(turn.2);
        assert!(is_new, "{:?} is under way for {node} already", turn.2);
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
        if let Some(next) = self.shapes.get(at).and_then(|shape| shape.next(following(turn))) {
            self.block_from(node, next);
        }
    }

    /// Lets copies from `turn` on have their turn when the bundles under way for a node are answered. Copies before the
    /// first bundle have their turn when the request that was woken before them is answered.
    pub(super) fn block_from(&mut self, node: NodeId, turn: Turn) {
        if let Some(bundles) = self.bundles.get_mut(&node).filter(|bundles| turn > bundles.first) {
            bundles.block(turn);
            assert!(bundles.blocked > Some(bundles.first), "who waits comes after a bundle");
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
        let later = nodes.split_off(reports as usize);
        let answered = std::mem::replace(nodes, later);
        self.handle_answer(books, token, answered);
        true
    }

    /// Handles the answer to a bundle that was under way for `nodes`. What is more than a bounded number of looks is
    /// left to [`go_on`](Self::go_on).
    pub(super) fn handle_answer(&mut self, books: &Books, token: WaitToken, nodes: Vec<NodeId>) {
        self.answered.push_back((token, nodes.into_iter()));
        self.handle_answers(books);
    }

    /// Handles answers for a bounded number of looks.
    pub(super) fn handle_answers(&mut self, books: &Books) {
        let end = self.looked_at + GO_ON_LOOKS_MAX;
        while self.looked_at < end
            && let Some((token, nodes)) = self.answered.front_mut()
        {
            let token = *token;
            // An answer for a node without room left for others costs a look, too.
            self.looked_at += 1;
            match nodes.next() {
                Some(node) => self.bundle_answered(books, token, node),
                None => _ = self.answered.pop_front(),
            }
        }
    }

    /// Notes the answer to a bundle that was under way for `node`. After the last one, the room is offered to those
    /// that did not have their turn.
    fn bundle_answered(&mut self, books: &Books, token: WaitToken, node: NodeId) {
        let bundles = self.bundles.get_mut(&node).expect("a bundle is under way for the node");
        assert!(bundles.tokens.remove(&token), "{token:?} is under way for {node}");
        if !bundles.tokens.is_empty() {
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

    /// Returns the bytes of the lists of bundles under way.
    pub(super) fn bundles_bytes(&self) -> u64 {
        let of_copies =
            self.copies.values().filter_map(|copy| copy.bundle.as_ref()).map(memory::of_vec).sum::<u64>();
        let of_answers =
            self.answered.iter().map(|(_, nodes)| size_of_val(nodes.as_slice()) as u64).sum::<u64>();
        let tokens = self.bundles.values().map(|bundles| bundles.tokens.len());
        let of_nodes: u64 = tokens.map(|tokens| memory::of_btree(tokens, size_of::<WaitToken>())).sum();
        of_copies + of_answers + of_nodes
    }

    /// Checks that each bundle is under way for the nodes that its copy or its answer names.
    pub(super) fn check_bundles(&self) -> Result<(), Broken> {
        let of_copies =
            self.copies.iter().filter_map(|(&token, copy)| Some((token, copy.bundle.as_deref()?)));
        let of_answers = self.answered.iter().map(|(token, nodes)| (*token, nodes.as_slice()));
        let mut under_way = 0;
        for (token, nodes) in of_copies.chain(of_answers) {
            under_way += nodes.len();
            let is_known =
                |node| self.bundles.get(node).is_some_and(|bundles| bundles.tokens.contains(&token));
            if let Some(node) = nodes.iter().find(|node| !is_known(node)) {
                return Err(broken!("{token:?} is under way for {node}, which does not know it"));
            }
        }
        let known: usize = self.bundles.values().map(|bundles| bundles.tokens.len()).sum();
        if under_way == known && self.bundles.values().all(|bundles| !bundles.tokens.is_empty()) {
            return Ok(());
        }
        Err(broken!("{under_way} bundles are under way, {known} are known by node"))
    }
}
