//! Nodes for which not all waiting requests were looked at, and the rest of that work.
//!
//! The index over the shapes leads to those that a node could hold. It fails if very many shapes are excluded
//! by something that no index covers, such as labels that they exclude. A search that looked at
//! [`WAKE_LOOKS_MAX`] vertices and woke nothing ends, and the node is put off.
//!
//! Each [`Command::GoOn`](crate::shard::Command::GoOn) then looks at some more shapes for the first node put off, in
//! order of their numbers. It keeps those with the earliest turns, and wakes them after all shapes were looked
//! at. The thread that runs a shard sends this command while [`Shard::is_behind`] says so. It is a separate
//! command, so that outcomes do not depend on how commands are split into batches.

use crate::broken::{Broken, broken};
use std::collections::{BTreeSet, VecDeque};

use super::offer::Offer;
use super::{Turn, Waiting, admits};
use crate::ids::NodeId;
use crate::limits::{GO_ON_LOOKS_MAX, PUT_OFF_KEPT};
use crate::map::FixedMap;
use crate::memory;
use crate::shard::books::Books;

#[cfg(doc)]
use crate::limits::WAKE_LOOKS_MAX;

/// Nodes that were put off, and the progress for the first of them.
#[derive(Default)]
pub(crate) struct PutOff {
    queue: VecDeque<NodeId>,
    /// The queued nodes. If shapes remain to be looked at for a node, the turn from which on.
    open: FixedMap<NodeId, Option<Turn>>,
    /// The next shape to look at for the first node.
    at: usize,
    /// True if the first node gained room since the work for it began.
    again: bool,
    /// The shapes seen so far that fit the first node, with the earliest turns.
    fitting: BTreeSet<(Turn, usize)>,
}

impl PutOff {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns whether shapes remain to be looked at for `node`.
    pub(crate) fn is_open(&self, node: NodeId) -> bool {
        self.open.get(&node).is_some_and(Option::is_some)
    }

    /// Puts a node off. Copies before the turn `from` had their turn.
    pub(crate) fn put_off(&mut self, node: NodeId, from: Turn) {
        let earlier = self.open.get(&node).copied().flatten();
        let from = earlier.map_or(from, |earlier| earlier.min(from));
        if self.open.insert(node, Some(from)).is_none() {
            self.queue.push_back(node);
        }
        assert!(self.queue.len() == self.open.len(), "each node is put off once");
        self.again |= self.queue.front() == Some(&node) && self.at > 0;
    }

    /// Notes that all shapes have been looked at for the node.
    pub(crate) fn settle(&mut self, node: NodeId) {
        if let Some(open) = self.open.get_mut(&node) {
            *open = None;
        }
    }

    /// Returns the first node for which shapes remain to be looked at, and the turn from which on.
    fn first(&mut self) -> Option<(NodeId, Turn)> {
        while let Some(&node) = self.queue.front() {
            if let Some(from) = self.open[&node] {
                return Some((node, from));
            }
            self.end(false);
        }
        None
    }

    /// Ends the work for the first node. With `again`, queues the node again after the others.
    fn end(&mut self, again: bool) {
        let node = self.queue.pop_front().expect("one was looked for");
        (self.at, self.again) = (0, false);
        self.fitting.clear();
        if again {
            assert!(self.is_open(node), "{node} is put off again, and no shapes remain");
            self.queue.push_back(node);
        } else {
            self.open.remove(&node).expect("a queued node is put off");
        }
        assert!(self.queue.len() == self.open.len(), "each node is put off once");
    }

    pub(crate) fn memory(&self) -> u64 {
        (self.queue.capacity() * size_of::<NodeId>()) as u64 + memory::of_map(&self.open)
    }

    /// Checks that the queue contains exactly the nodes that are put off.
    pub(crate) fn check(&self) -> Result<(), Broken> {
        let known = self.queue.iter().filter(|node| self.open.contains_key(node)).count();
        if known == self.queue.len() && known == self.open.len() {
            return Ok(());
        }
        Err(broken!(
            "{} nodes are put off, {} in the queue, {known} of them known",
            self.open.len(),
            self.queue.len()
        ))
    }
}

impl Waiting {
    /// Returns whether there is deferred work.
    pub(crate) fn is_behind(&self) -> bool {
        !self.put_off.is_empty() || !self.answered.is_empty() || self.homes.is_behind()
    }

    /// Continues with answers and with the nodes that were put off, for a bounded number of looks each.
    pub(crate) fn go_on(&mut self, books: &Books) {
        self.handle_answers(books);
        let mut looks = GO_ON_LOOKS_MAX;
        while looks > 0
            && let Some((node, from)) = self.put_off.first()
        {
            self.look_on(books, node, from, &mut looks);
        }
        self.looked_at += GO_ON_LOOKS_MAX - looks;
    }

    /// Looks at the next shapes for the room of `node`, the first that was put off.
    fn look_on(&mut self, books: &Books, node: NodeId, from: Turn, looks: &mut u64) {
        let Some(slot) = books.nodes.slot(node).filter(|&slot| books.nodes.takes_work(slot)) else {
            self.put_off.end(false);
            return;
        };
        assert!(self.put_off.queue.front() == Some(&node), "the first node is looked at");
        let offer = Offer::of(books, slot);
        while self.put_off.at < self.places() {
            if *looks == 0 {
                return;
            }
            *looks -= 1;
            let at = self.put_off.at;
            self.put_off.at += 1;
            if let Some((turn, request)) = self.armed_within(at, from, &offer)
                && admits(books, slot, request)
            {
                let fitting = &mut self.put_off.fitting;
                fitting.insert((turn, at));
                if fitting.len() > PUT_OFF_KEPT {
                    fitting.pop_last();
                }
            }
        }
        let fitting = std::mem::take(&mut self.put_off.fitting);
        let woken = self.wake_of(books, slot, offer, &fitting);
        assert!(woken <= fitting.len(), "more copies are woken than fit");
        // If all fitting copies have been woken for another node or have left, more may fit.
        let again = self.put_off.again || woken == 0 && !fitting.is_empty();
        self.put_off.end(again);
        // Each node costs at least one look, even if there are no shapes.
        *looks = looks.saturating_sub(1);
    }
}
