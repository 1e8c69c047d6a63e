//! What commands cost a shard, counted: the counters behind the table in ARCHITECTURE.md, section
//! "What a command may cost".
//!
//! The counters cover walks over nodes and allocations. A search through the index is counted by
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
}

impl ShardWork {
    /// What was counted after `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            nodes_looked_at: self.nodes_looked_at - before.nodes_looked_at,
            allocations_looked_at: self.allocations_looked_at - before.allocations_looked_at,
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
        self.work
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
