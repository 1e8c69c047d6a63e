//! Which nodes have changed, in order, for counts that follow the changes.
//!
//! Counts note how much of the log they have followed. What a trial has changed and taken back is only of interest to counts
//! that were made or brought up to date in between.

use std::ops::Range;

/// An entry that is of interest to nobody any longer.
const WITHDRAWN: u64 = u64::MAX;

/// A node has changed.
#[derive(Clone, Copy, Debug)]
struct Entry {
    position: u32,
    /// Only counts that have followed at least so much of the log have another state of the node than the present one.
    concerns_from: u64,
}

/// The positions of nodes that have changed. Entries are numbered from the first one ever.
#[derive(Debug, Default)]
pub(super) struct Log {
    entries: Vec<Entry>,
    /// The number of the first entry that is still there.
    start: u64,
    /// How much was followed at most.
    followed: u64,
    /// Entries before this one stay, whatever is taken back.
    firm: u64,
}

impl Log {
    /// Returns the number of the next entry.
    pub(super) fn end(&self) -> u64 {
        self.start + self.entries.len() as u64
    }

    /// Notes that a node has changed. If there are more than `most` entries, the older half of them is forgotten.
    pub(super) fn note(&mut self, position: u32, most: usize) {
        self.push(position, 0);
        if self.entries.len() > most {
            let forgotten = self.entries.len().div_ceil(2);
            self.entries.drain(..forgotten);
            self.start += forgotten as u64;
        }
    }

    fn push(&mut self, position: u32, concerns_from: u64) {
        self.entries.push(Entry { position, concerns_from });
    }

    /// Has all entries so far stay, because taking back what is older does not undo them.
    pub(super) fn keep(&mut self) {
        self.firm = self.end();
    }

    /// Notes that a change was taken back, and all that came after it before: the node is as it was. `of` are its entries.
    pub(super) fn take_back(&mut self, of: Range<u64>, position: u32) {
        if self.followed <= of.start && self.firm <= of.start {
            let left = usize::try_from(of.start.saturating_sub(self.start)).expect("fewer than are listed");
            self.entries.truncate(left);
        } else {
            self.take_back_alone(&of, position);
        }
    }

    /// Notes that a change was taken back, and perhaps nothing else. `of` are its entries.
    pub(super) fn take_back_alone(&mut self, of: &Range<u64>, position: u32) {
        for number in of.clone().filter(|&number| number >= self.start) {
            let at = usize::try_from(number - self.start).expect("fewer than are listed");
            self.entries[at].concerns_from = WITHDRAWN;
        }
        if self.followed > of.start {
            self.push(position, of.start + 1);
            self.keep();
        }
    }

    /// Returns the nodes that are not as they were when so much was followed, in order. `None`: too much has changed since.
    pub(super) fn since(&self, followed: u64) -> Option<Vec<u32>> {
        let from = usize::try_from(followed.checked_sub(self.start)?).expect("fewer than are listed");
        let entries = self.entries[from..].iter().filter(|entry| entry.concerns_from <= followed);
        let mut positions: Vec<u32> = entries.map(|entry| entry.position).collect();
        positions.sort_unstable();
        positions.dedup();
        Some(positions)
    }

    /// Counts all entries as followed by somebody. Returns how much that is.
    pub(super) fn follow(&mut self) -> u64 {
        self.followed = self.end();
        self.followed
    }

    /// Forgets all entries.
    pub(super) fn clear(&mut self) {
        self.start = self.end();
        self.entries = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOST: usize = 1 << 10;

    /// What is noted of a step: its entries, the node, and its value before.
    type Step = (Range<u64>, u32, u32);

    #[test]
    fn what_nobody_followed_is_forgotten_when_it_is_taken_back() {
        let mut log = Log::default();
        log.note(3, MOST);
        let early = log.end();
        log.follow();
        let of = early..early + 1;
        log.note(5, MOST);
        log.take_back(of.clone(), 5);
        assert_eq!((log.end(), log.since(early)), (early, Some(Vec::new())));
        // Who followed it in between has another state of the node. Others have not.
        log.note(5, MOST);
        let between = log.follow();
        log.take_back(of, 5);
        assert_eq!((log.since(early), log.since(between)), (Some(Vec::new()), Some(vec![5])));
    }

    #[test]
    fn too_much_is_not_listed() {
        let mut log = Log::default();
        (0..9).for_each(|position| log.note(position, 8));
        assert_eq!((log.since(4), log.since(5)), (None, Some(vec![5, 6, 7, 8])));
    }

    proptest! {
        /// Followers that look at what the log says, and at nothing else, always know all nodes.
        #[test]
        fn followers_know_all_nodes(
            steps in prop::collection::vec((0..8_u32, 0..5_u32, 0..4_usize), 1..120),
            most in 4..64_usize,
        ) {
            let mut log = Log::default();
            let mut nodes = [0_u32; 5];
            let mut trial: Vec<Step> = Vec::new();
            let mut followers: Vec<(u64, [u32; 5])> = vec![(0, nodes); 4];
            for (number, (what, position, follower)) in (1..).zip(steps) {
                let at = position as usize;
                match what {
                    // The end of a trial: all is kept.
                    0 => trial.clear(),
                    1..4 => {
                        let from = log.end();
                        log.note(position, most);
                        trial.push((from..log.end(), position, nodes[at]));
                        nodes[at] = number;
                    }
                    4 => {
                        if let Some((of, position, before)) = trial.pop() {
                            nodes[position as usize] = before;
                            log.take_back(of, position);
                        }
                    }
                    5 => {
                        // One that is not the last one, of a node that nothing else has changed.
                        let alone = trial.iter().position(|step| trial.iter().filter(|of| of.1 == step.1).count() == 1);
                        if let Some((of, position, before)) = alone.map(|at| trial.remove(at)) {
                            nodes[position as usize] = before;
                            log.take_back_alone(&of, position);
                        }
                    }
                    6 => {
                        // A change that is not part of the trial.
                        if trial.iter().all(|step| step.1 != position) {
                            nodes[at] = number;
                            log.note(position, most);
                            log.keep();
                        }
                    }
                    _ => {
                        let (followed, known) = &mut followers[follower];
                        match log.since(*followed) {
                            Some(changed) => {
                                changed.iter().for_each(|&at| known[at as usize] = nodes[at as usize]);
                            }
                            None => *known = nodes,
                        }
                        *followed = log.follow();
                        prop_assert_eq!(*known, nodes);
                    }
                }
            }
        }
    }
}
