//! Attempts to place a parked copy, and the room that is offered to others after them.

use super::{Turn, Waiting, following};
use crate::ids::NodeId;
use crate::request::PlacementRequest;
use crate::shard::books::Books;
use crate::shard::command::WaitToken;

/// An attempt to place a parked copy.
pub(crate) struct Retry {
    turn: Turn,
    /// The node for whose room it was woken.
    node: Option<NodeId>,
    pub(crate) request: PlacementRequest,
}

impl Waiting {
    /// Begins to try a parked copy again. It is armed, so that the attempt can wake it. Returns its request.
    pub(crate) fn begin_retry(&mut self, token: WaitToken) -> Option<Retry> {
        let copy = self.copies.get_mut(&token).filter(|copy| copy.bundle.is_none())?;
        assert!(copy.turn.2 == token, "{token:?} is parked under another turn");
        let retry = Retry { turn: copy.turn, node: copy.under_way.take(), request: copy.request.clone() };
        let shape = copy.shape;
        self.arm(shape, retry.turn);
        Some(retry)
    }

    /// Ends an attempt. A copy that was placed is removed, and the room that it was woken for is offered to others.
    pub(crate) fn end_retry(&mut self, books: &Books, retry: &Retry, is_placed: bool) {
        let &Retry { turn, node, .. } = retry;
        let copy = self.copies.get(&turn.2).expect("a copy stays while it is tried");
        let is_armed = self.shapes[copy.shape].armed.contains(&turn);
        assert!(is_armed || copy.under_way.is_some(), "{:?} waits, and nothing wakes it", turn.2);
        let next = following(turn);
        if !is_placed {
            return self.offer_again(books, node, next);
        }
        // A placement that used up its reservation may have woken this same copy.
        let again = self.remove(turn.2).and_then(|copy| copy.under_way);
        self.offer_again(books, node, next);
        if again != node {
            self.offer_again(books, again, next);
        }
    }

    /// Removes a parked copy. Returns whether there was one.
    pub(crate) fn unpark(&mut self, books: &Books, token: WaitToken) -> bool {
        let Some(copy) = self.remove(token) else { return false };
        let is_request = copy.bundle.is_none();
        assert!(is_request || copy.under_way.is_none(), "a bundle was woken like a request");
        self.offer_again(books, copy.under_way, following(copy.turn));
        if let Some(nodes) = copy.bundle {
            self.handle_answer(books, token, nodes);
        }
        true
    }

    /// Offers the room that a copy was woken for to the copies from the turn `from` on. A copy that was
    /// refused had its turn, and so had those before it.
    pub(super) fn offer_again(&mut self, books: &Books, node: Option<NodeId>, from: Turn) {
        if let Some(slot) = node.and_then(|node| books.nodes.slot(node)) {
            self.offer(books, slot, from);
        }
    }
}
