//! Replies that wait until what they tell of is durable.
//!
//! Every reply of the service leaves through here, from a shard, a planner or the registrar. It tells of
//! nothing that is not in the journal at the end of its input, so it may leave once all of that is durable.

use std::collections::VecDeque;

use wharf_core::journal::JournalPort;
use wharf_core::planted::{PlantedBug, is_planted};

use super::{ConnectionKey, ConnectionService};

/// Replies that may leave together.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// The position of the journal that must be durable.
    position: u64,
    /// The number of replies.
    replies: u32,
    /// Their length in bytes.
    bytes: usize,
    /// They answer requests that only read.
    only_looks: bool,
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
    /// The last frames, whose position is not known yet. What they tell of may still be on its way into the journal.
    fresh: VecDeque<Mark>,
}

impl Held {
    pub(super) fn new(journal: Option<JournalPort>) -> Self {
        Self { journal, bytes: VecDeque::new(), marks: VecDeque::new(), fresh: VecDeque::new() }
    }

    pub(super) fn has_journal(&self) -> bool {
        self.journal.is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty() && self.fresh.is_empty()
    }

    /// Returns whether there are replies without a position.
    pub(super) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Takes the reply that `out` has from `start` on, unless it may leave now. Returns whether it is held, until
    /// [`assign`](Self::assign).
    pub(super) fn hold(&mut self, out: &mut Vec<u8>, start: usize, leaves: Leaves) -> bool {
        let Some(journal) = &self.journal else { return false };
        if is_planted(PlantedBug::ReplyBeforeDurable) {
            return false;
        }
        let only_looks = leaves != Leaves::Durable;
        if leaves == Leaves::AtOnce || (only_looks && journal.is_full()) {
            return false;
        }
        let bytes = out.len() - start;
        // By slice, because replies pass here at the full rate.
        self.bytes.extend(&out[start..]);
        out.truncate(start);
        let mark = Mark { position: 0, replies: 1, bytes, only_looks };
        add(&mut self.fresh, mark);
        true
    }

    /// Sets the position of the journal that the last replies wait for.
    pub(super) fn assign(&mut self, position: u64) {
        for mark in self.fresh.drain(..) {
            add(&mut self.marks, Mark { position, ..mark });
        }
    }

    /// Returns the replies that have a position of the journal, each run of them with its position.
    pub(super) fn assigned(&self) -> Vec<(u64, Vec<u8>)> {
        let mut bytes = self.bytes.iter().copied();
        self.marks.iter().map(|mark| (mark.position, bytes.by_ref().take(mark.bytes).collect())).collect()
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.marks.clear();
        self.fresh.clear();
    }

    /// Moves the replies to `out` that wait for nothing after `durable`. Returns their number.
    pub(super) fn release(&mut self, durable: u64, out: &mut Vec<u8>) -> u32 {
        let mut replies = 0;
        while let Some(mark) = self.marks.front().copied().filter(|mark| mark.position <= durable) {
            self.marks.pop_front();
            replies += mark.replies;
            let (first, second) = self.bytes.as_slices();
            let of_first = first.len().min(mark.bytes);
            out.extend_from_slice(&first[..of_first]);
            out.extend_from_slice(&second[..mark.bytes - of_first]);
            self.bytes.drain(..mark.bytes);
        }
        replies
    }

    /// Moves the replies to `out` that may leave because the storage is full. Returns their number.
    pub(super) fn release_looks(&mut self, out: &mut Vec<u8>) -> u32 {
        let mut replies = 0;
        let mut kept = VecDeque::new();
        self.marks.retain(|mark| {
            let bytes = self.bytes.drain(..mark.bytes);
            if mark.only_looks {
                out.extend(bytes);
                replies += mark.replies;
            } else {
                kept.extend(bytes);
            }
            !mark.only_looks
        });
        // Those without a position are the last ones.
        kept.append(&mut self.bytes);
        self.bytes = kept;
        replies
    }
}

/// Adds replies to marks, which ascend by position.
fn add(marks: &mut VecDeque<Mark>, more: Mark) {
    match marks.back_mut() {
        Some(last) if last.position == more.position && last.only_looks == more.only_looks => {
            last.replies += more.replies;
            last.bytes += more.bytes;
        }
        last => {
            assert!(last.is_none_or(|last| last.position <= more.position), "positions do not go back");
            marks.push_back(more);
        }
    }
}

impl ConnectionService {
    /// Returns the replies to `key` that wait for the journal: frames, and the number of units that must be durable before
    /// they leave. A checker asks for them, to know what may have left before a crash.
    #[must_use]
    pub fn held(&self, key: ConnectionKey) -> Vec<(u64, Vec<u8>)> {
        self.connections[key].held()
    }

    /// Drops the replies that wait for the journal, because the service ends without it. Their peers must ask again.
    pub fn abandon_held(&mut self) {
        for key in std::mem::take(&mut self.holding) {
            self.connections[key].abandon_held();
            self.touch(key);
        }
    }

    /// Lets the replies leave that tell only of what is durable, and if the storage has become full, those that only read.
    /// Returns whether either has changed.
    pub(super) fn release(&mut self) -> bool {
        let journal = self.port.journal().expect("only a journal makes replies wait");
        let durable = journal.durable();
        let was_full = std::mem::replace(&mut self.is_full, journal.is_full());
        let becomes_full = self.is_full && !was_full;
        if durable == self.released_to && !becomes_full {
            return false;
        }
        self.released_to = durable;
        let mut holding = std::mem::take(&mut self.holding);
        holding.retain(|&key| {
            let connection = &mut self.connections[key];
            let released = connection.release(durable);
            let looked = becomes_full && connection.release_looks();
            if released || looked {
                self.touch(key);
            }
            let connection = &mut self.connections[key];
            connection.is_listed = connection.is_holding();
            connection.is_listed
        });
        self.holding = holding;
        true
    }
}
