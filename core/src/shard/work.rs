//! Work that a shard did, counted: tests assert bounds on it, which times could not show reliably.

use super::Shard;

/// What a shard looked at since it was made. Plain counts: they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardWork {
    /// Waiting requests: vertices of the index over their shapes, and shapes, looked at to find which
    /// of them a node could hold now.
    pub waiting_looked_at: u64,
    /// Waiting requests: shapes and nodes looked at to find which shapes some node could hold at all.
    pub waiting_homes_looked_at: u64,
    /// Selectors and preferences: single nodes looked at to make the set or the ranks of one.
    pub selector_nodes_looked_at: u64,
    /// Selectors and preferences: words looked at for the same, of 64 nodes each.
    pub selector_words_looked_at: u64,
}

impl Shard {
    /// What it looked at so far.
    #[must_use]
    pub fn work(&self) -> ShardWork {
        ShardWork {
            waiting_looked_at: self.waiting.looked_at,
            waiting_homes_looked_at: self.waiting.homes_looked_at,
            selector_nodes_looked_at: self.selectors.looked_at.nodes + self.rankings.looked_at.nodes,
            selector_words_looked_at: self.selectors.looked_at.words + self.rankings.looked_at.words,
        }
    }
}
