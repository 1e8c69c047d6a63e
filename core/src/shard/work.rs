//! What commands cost a shard, counted: the counters behind the table in ARCHITECTURE.md, section
//! "What a command may cost".
//!
//! The counters withhold walks over nodes and allocations. A search through the index is counted by
//! [`Visits`](crate::index::Visits).

use super::Shard;
use crate::limits::{AUDIT_PAGE_ALLOCATIONS, AUDIT_PAGE_NODES, EXPLAIN_NODES_MAX};

/// What all commands of a shard looked at since the shard was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardWork {
    /// Places of the node table that were looked at outside of a search, vacant ones included.
    pub nodes_looked_at: u64,
    /// Allocations that were looked at one after the other, also those inside bundles.
    pub allocations_looked_at: u64,
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

impl ShardWork {
    /// What was counted after `before`.
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

/// How large the pages are that a command looks at. All that is larger is done page by page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Nodes that a refusal counts; it looks at no more than four times as many places of the node table.
    pub explain_nodes: u32,
    /// Places of the node table that an audit reads.
    pub audit_nodes: u32,
    /// Allocations after which a page of an audit ends. The node that was begun is read to its end.
    pub audit_allocations: u32,
}

impl Default for Pages {
    fn default() -> Self {
        Self {
            explain_nodes: EXPLAIN_NODES_MAX,
            audit_nodes: AUDIT_PAGE_NODES,
            audit_allocations: AUDIT_PAGE_ALLOCATIONS,
        }
    }
}

impl Shard {
    /// What all commands so far looked at, besides searches.
    #[must_use]
    pub fn work(&self) -> ShardWork {
        ShardWork {
            waiting_looked_at: self.waiting.looked_at,
            waiting_homes_looked_at: self.waiting.homes_looked_at,
            selector_nodes_looked_at: self.selectors.looked_at.nodes + self.rankings.looked_at.nodes,
            selector_words_looked_at: self.selectors.looked_at.words + self.rankings.looked_at.words,
            ..self.work
        }
    }

    /// Sets how large pages are, in a test that is to see several of them on few nodes.
    ///
    /// # Panics
    /// When a page has room for nothing.
    pub fn set_pages(&mut self, pages: Pages) {
        let Pages { explain_nodes, audit_nodes, audit_allocations } = pages;
        assert!(explain_nodes > 0 && audit_nodes > 0 && audit_allocations > 0, "{pages:?}");
        self.pages = pages;
    }
}
