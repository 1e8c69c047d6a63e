//! Replies that wait until what they tell of is durable.
//!
//! Every reply of the service leaves through here, from a shard, a planner or the registrar. It tells of
//! nothing that is not in the journal at that time, so it may leave once all of that is durable.

use std::collections::VecDeque;

use wharf_core::journal::JournalPort;

/// Replies that may leave together.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The position of the journal that must be durable.
    position: u64,
    /// The number of replies.
    replies: u32,
    /// Their length in bytes.
    bytes: usize,
}

/// When a reply may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    /// Once all that is known now is durable.
    Durable,
    /// The same, but also while the storage is full. It shows what is not durable yet, but promises nothing.
    DurableOrFull,
    /// Now. It tells only of what is durable.
    AtOnce,
}

impl Leaves {
    /// Returns when the reply to a request leaves that may be read-only.
    pub(super) fn of(only_looks: bool) -> Self {
        if only_looks { Self::DurableOrFull } else { Self::Durable }
    }
}

/// The held replies of a connection. Without a journal there are none.
pub(super) struct Held {
    journal: Option<JournalPort>,
    /// The frames, in order.
    bytes: VecDeque<u8>,
    /// What the frames wait for, ascending by position.
    marks: VecDeque<Mark>,
}

impl Held {
    pub(super) fn new(journal: Option<JournalPort>) -> Self {
        Self { journal, bytes: VecDeque::new(), marks: VecDeque::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Takes the reply that `out` has from `start` on, unless it may leave now. Returns whether it is held.
    pub(super) fn hold(&mut self, out: &mut Vec<u8>, start: usize, leaves: Leaves) -> bool {
        let Some(journal) = &self.journal else { return false };
        let position = journal.position();
        let may_leave = match leaves {
            Leaves::Durable => false,
            Leaves::DurableOrFull => journal.is_full(),
            Leaves::AtOnce => true,
        };
        if may_leave || journal.durable() >= position {
            return false;
        }
        let bytes = out.len() - start;
        self.bytes.extend(out.drain(start..));
        match self.marks.back_mut() {
            Some(mark) if mark.position == position => {
                mark.replies += 1;
                mark.bytes += bytes;
            }
            last => {
                assert!(last.is_none_or(|mark| mark.position < position), "positions only grow");
                self.marks.push_back(Mark { position, replies: 1, bytes });
            }
        }
        true
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.marks.clear();
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
