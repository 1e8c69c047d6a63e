//! Counters of what commands cost a shard. They are the basis of the table in ARCHITECTURE.md, section "Cost of a
//! command".
//!
//! The counters cover walks over nodes and allocations. Searches in the index are counted by
//! [`Visits`](crate::index::Visits).

use crate::limits::{
    AUDIT_PAGE_ALLOCATIONS, AUDIT_PAGE_NODES, CHECKPOINT_PAGE_RECORDS, EXPLAIN_NODES_MAX, LEASES_ENDED_MAX,
};
use crate::shard::Shard;

/// Counters of everything that commands have looked at since the shard was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardWork {
    /// Slots of the node table that were looked at outside of a search, including vacant ones.
    pub nodes_looked_at: u64,
    /// Allocations that were looked at one by one, including those inside bundles.
    pub allocations_looked_at: u64,
    /// For waiting requests: vertices of the index over their shapes, and shapes, looked at to find those that
    /// a node could hold now.
    pub waiting_looked_at: u64,
    /// For waiting requests: shapes and nodes looked at to find the shapes that some node could hold at all.
    pub waiting_homes_looked_at: u64,
    /// For selectors and preferences: single nodes looked at to compute a set or ranks.
    pub selector_nodes_looked_at: u64,
    /// For selectors and preferences: words of 64 nodes looked at for the same purpose.
    pub selector_words_looked_at: u64,
}

impl ShardWork {
    /// Returns what was counted after `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            nodes_looked_at: self.nodes_looked_at - before.nodes_looked_at,
            allocations_looked_at: self.allocations_looked_at - before.allocations_looked_at,
            waiting_looked_at: self.waiting_looked_at - before.waiting_looked_at,
            waiting_homes_looked_at: self.waiting_homes_looked_at - before.waiting_homes_looked_at,
            selector_nodes_looked_at: self.selector_nodes_looked_at - before.selector_nodes_looked_at,
            selector_words_looked_at: self.selector_words_looked_at - before.selector_words_looked_at,
        }
    }
}

/// The page sizes of commands. Everything larger is done page by page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// The maximum number of nodes that a refusal counts. It looks at no more than four times as many slots of
    /// the node table.
    pub explain_nodes: u32,
    /// The number of slots of the node table that an audit reads.
    pub audit_nodes: u32,
    /// The number of allocations after which a page of an audit ends. The last node is read completely.
    pub audit_allocations: u32,
    /// The number of nodes and allocations after which a page of a checkpoint ends. The last node is read completely.
    pub checkpoint_records: u32,
    /// The maximum number of allocations whose lease is over that one `GoOn` command ends.
    pub leases_ended: u32,
}

impl Default for Pages {
    fn default() -> Self {
        Self {
            explain_nodes: EXPLAIN_NODES_MAX,
            audit_nodes: AUDIT_PAGE_NODES,
            audit_allocations: AUDIT_PAGE_ALLOCATIONS,
            checkpoint_records: CHECKPOINT_PAGE_RECORDS,
            leases_ended: LEASES_ENDED_MAX,
        }
    }
}

impl Shard {
    /// Returns what all commands so far looked at, not counting searches.
    #[must_use]
    pub fn work(&self) -> ShardWork {
        let [selector_nodes_looked_at, selector_words_looked_at] = self.choose.looked_at();
        ShardWork {
            waiting_looked_at: self.pending.looked_at,
            waiting_homes_looked_at: self.pending.homes_looked_at,
            selector_nodes_looked_at,
            selector_words_looked_at,
            ..self.audit.work
        }
    }

    /// Sets the page sizes, for tests that need several pages on few nodes.
    ///
    /// # Panics
    /// If a page size is zero.
    pub fn set_pages(&mut self, pages: Pages) {
        let Pages { explain_nodes, audit_nodes, audit_allocations, checkpoint_records, leases_ended } = pages;
        let all = [explain_nodes, audit_nodes, audit_allocations, checkpoint_records, leases_ended];
        assert!(!all.contains(&0), "{pages:?}");
        self.audit.pages = pages;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_since_is_the_difference_of_each_counter() {
        let of = |first: u64, step: u64| ShardWork {
            nodes_looked_at: first,
            allocations_looked_at: first + step,
            waiting_looked_at: first + 2 * step,
            waiting_homes_looked_at: first + 3 * step,
            selector_nodes_looked_at: first + 4 * step,
            selector_words_looked_at: first + 5 * step,
        };
        assert_eq!(of(100, 11).since(of(40, 1)), of(60, 10));
    }
}
