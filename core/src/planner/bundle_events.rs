//! Detects bundles of a shard that others than this planner ended.
//!
//! A view only counts endings. The planner's own endings are in the shard's answers. Answers come in the
//! order of the shard's batches, but after the views that show them. So a view is judged once all answers up
//! to it are there. The nodes that changed with it are checked only if the view counts more endings than the
//! answers do.

use std::collections::VecDeque;

use crate::index::Slot;

/// A view that counts more endings than the previous one.
#[derive(Debug)]
struct Seen {
    sequence: u64,
    count: u64,
    /// The nodes that changed with it.
    slots: Vec<Slot>,
}

/// The endings of one shard.
#[derive(Debug, Default)]
pub(super) struct Endings {
    /// The count in the view judged last.
    judged: u64,
    /// The count in the view followed last.
    seen: u64,
    /// The planner's own endings that no judged view shows yet: the first view that shows them, and their
    /// number.
    own: VecDeque<(u64, u64)>,
    /// The number of own parts that are applied at once and not answered yet.
    unanswered: usize,
    /// The newest view named in an answer to these.
    answered: u64,
    unjudged: VecDeque<Seen>,
    /// The newest judged view that showed endings by others.
    others: Option<u64>,
}

impl Endings {
    /// Starts with the count of the first view.
    pub(super) fn begin(&mut self, count: u64) {
        (self.judged, self.seen) = (count, count);
    }

    /// Records that a part that may end bundles at once was sent.
    pub(super) fn sent(&mut self) {
        self.unanswered += 1;
    }

    /// Records the answer: `ended` bundles ended, which views from `sequence` on show.
    pub(super) fn answered(&mut self, ended: u64, sequence: u64) {
        self.unanswered -= 1;
        self.answered = sequence;
        if ended > 0 {
            self.own.push_back((sequence, ended));
        }
    }

    /// Returns whether a view with this count shows no endings beyond those already followed.
    pub(super) fn knows(&self, count: u64) -> bool {
        self.seen == count
    }

    /// Records a view with another count than the one before it.
    pub(super) fn follow(&mut self, sequence: u64, count: u64, slots: Vec<Slot>) {
        self.seen = count;
        self.unjudged.push_back(Seen { sequence, count, slots });
    }

    /// Calls `look` with the changed nodes of each view that shows endings by others, as far as that is
    /// known.
    pub(super) fn judge(&mut self, mut look: impl FnMut(Slot)) {
        // Some parts in the batch of the newest answer may not be answered yet.
        while let Some(seen) = self.unjudged.front()
            && (self.unanswered == 0 || seen.sequence < self.answered)
        {
            let mut own = 0;
            while let Some(&(from, ended)) = self.own.front()
                && from <= seen.sequence
            {
                own += ended;
                self.own.pop_front();
            }
            if self.judged + own != seen.count {
                self.others = Some(seen.sequence);
                seen.slots.iter().for_each(|&slot| look(slot));
            }
            self.judged = seen.count;
            self.unjudged.pop_front();
        }
    }

    /// Returns whether a judged view from `sequence` on showed bundles that others ended.
    pub(super) fn others_since(&self, sequence: u64) -> bool {
        self.others.is_some_and(|at| at >= sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(endings: &mut Endings) -> Vec<Slot> {
        let mut looked = Vec::new();
        endings.judge(|slot| looked.push(slot));
        looked
    }

    #[test]
    fn own_endings_are_not_looked_at_whichever_comes_first_view_or_answer() {
        let mut endings = Endings::default();
        endings.begin(10);
        endings.sent();
        endings.answered(2, 5);
        assert!(!endings.knows(12));
        endings.follow(5, 12, vec![1]);
        assert_eq!(judged(&mut endings), []);
        endings.sent();
        endings.follow(6, 13, vec![2]);
        // Before the answer, it is not known who ended it.
        assert_eq!(judged(&mut endings), []);
        assert!(!endings.others_since(0));
        endings.answered(1, 6);
        assert_eq!(judged(&mut endings), []);
        assert!(!endings.others_since(0));
    }

    #[test]
    fn endings_of_others_are_seen_among_own_ones() {
        let mut endings = Endings::default();
        endings.begin(0);
        endings.follow(3, 1, vec![7, 8]);
        assert_eq!(judged(&mut endings), [7, 8]);
        assert!(endings.others_since(3) && !endings.others_since(4));
        endings.sent();
        endings.sent();
        endings.follow(4, 3, vec![1]);
        endings.follow(5, 4, vec![2]);
        // The fourth view can be judged once an answer names the fifth.
        endings.answered(1, 4);
        assert_eq!(judged(&mut endings), []);
        endings.sent();
        endings.answered(1, 5);
        assert_eq!(judged(&mut endings), [1]);
        endings.answered(0, 6);
        assert_eq!(judged(&mut endings), []);
    }
}
