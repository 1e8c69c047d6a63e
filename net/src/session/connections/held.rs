//! Replies that wait until what they tell of is durable.
//!
//! Every reply of the service leaves through here, from a shard, a planner or the registrar. It tells of
//! nothing that is not in the journal at that time, so it may leave once all of that is durable.

use std::collections::VecDeque;

use wharf_core::journal::JournalPort;

/// Replies that may leave together.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// The position of the journal that must be durable.
    position: u64,
    /// The number of replies.
    replies: u32,
    /// Their length in bytes.
    bytes: usize,
}

/// The held replies of a connection. Without a journal there are none.
pub(super) struct Held {
    journal: Option<JournalPort>,
    /// The frames, in order.
    bytes: VecDeque<u8>,
    /// What the frames wait for, ascending by position.
    marks: VecDeque<Mark>,
    /// The last frames, whose position is not known yet. What they tell of may still be on its way into the journal.
    fresh: Mark,
}

impl Held {
    pub(super) fn new(journal: Option<JournalPort>) -> Self {
        Self { journal, bytes: VecDeque::new(), marks: VecDeque::new(), fresh: Mark::default() }
    }

    pub(super) fn has_journal(&self) -> bool {
        self.journal.is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty() && self.fresh.replies == 0
    }

    /// Returns whether there are replies without a position.
    pub(super) fn has_fresh(&self) -> bool {
        self.fresh.replies > 0
    }

    /// Takes the reply that `out` has from `start` on, unless it may leave now. Returns whether it is held, until
    /// [`assign`](Self::assign). A reply that `only_looks` may leave while the storage is full: it shows what is not durable
    /// yet, but promises nothing.
    pub(super) fn hold(&mut self, out: &mut Vec<u8>, start: usize, only_looks: bool) -> bool {
        let Some(journal) = &self.journal else { return false };
        if only_looks && journal.is_full() {
            return false;
        }
        self.fresh.replies += 1;
        self.fresh.bytes += out.len() - start;
        self.bytes.extend(out.drain(start..));
        true
    }

    /// Sets the position of the journal that the last replies wait for.
    pub(super) fn assign(&mut self, position: u64) {
        let fresh = std::mem::take(&mut self.fresh);
        if fresh.replies == 0 {
            return;
        }
        match self.marks.back_mut() {
            Some(mark) if mark.position == position => {
                mark.replies += fresh.replies;
                mark.bytes += fresh.bytes;
            }
            last => {
                assert!(last.is_none_or(|mark| mark.position < position), "positions only grow");
                self.marks.push_back(Mark { position, ..fresh });
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.marks.clear();
        self.fresh = Mark::default();
    }

    /// Moves the replies to `out` that wait for nothing after `durable`. Returns their number.
    pub(super) fn release(&mut self, durable: u64, out: &mut Vec<u8>) -> u32 {
        let mut replies = 0;
        while let Some(mark) = self.marks.front().copied().filter(|mark| mark.position <= durable) {
            self.marks.pop_front();
            replies += mark.replies;
            out.extend(self.bytes.drain(..mark.bytes));
        }
        replies
    }
}
