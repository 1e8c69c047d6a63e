//! The cache lines of a shard's own data that a placement and a release touch, for `wharf-bench engine`, which measures
//! what they cost without any work on them. See `docs/decisions/layout.md`.

use super::Shard;
use super::books::PAGE;
use crate::ids::{AllocationId, NodeId};
use crate::index::IndexLines;
use crate::memory::LINE;

/// The line of an allocation's record, and those of its neighbours in the list of its node. A record is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLines {
    /// The line that says where the page of the record is.
    pub page: usize,
    /// The record.
    pub record: usize,
    /// The neighbours that exist.
    pub neighbours: [Option<usize>; 2],
}

/// The lines of a node, each by its number within its structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLines {
    /// The line of its room.
    pub room: usize,
    /// Its hot line.
    pub hot: usize,
    /// Its lines in the index.
    pub index: IndexLines,
}

impl Shard {
    /// Returns the lines of a live allocation's record. `None` if there is no such allocation, or if an earlier start
    /// granted its id.
    #[must_use]
    pub fn record_lines(&self, id: AllocationId) -> Option<RecordLines> {
        let (_, previous, next) = self.books.ledger.neighbours(id)?;
        let is_there = |&at: &u32| at != crate::view::NO_ALLOCATION;
        let neighbours = [previous, next].map(|at| Some(at).filter(is_there).map(|at| at as usize));
        let record = id.sequence as u32 as usize;
        Some(RecordLines { page: record / PAGE * size_of::<usize>() / LINE, record, neighbours })
    }

    /// Returns the lines of a node. `None` if it is unknown or takes no work, or if an index of this geometry has wide
    /// entries.
    #[must_use]
    pub fn node_lines(&self, node: NodeId) -> Option<NodeLines> {
        let slot = self.books.nodes.slot(node)?;
        let room = slot as usize * size_of::<super::books::Room>() / LINE;
        Some(NodeLines { room, hot: slot as usize, index: self.choose.lines(slot)? })
    }
}
