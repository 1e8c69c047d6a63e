//! What a search tells of its cost.
//!
//! Searches count what they visit in [`Visits`]. `wharf-bench engine` also wants to know which memory they read, and gives
//! them [`Lines`](super::Lines) instead. The compiler makes searches for each, so what nobody asks for costs nothing.

use super::Slot;

/// A structure of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Structure {
    /// The class bits of rows.
    Rows,
    /// The classes of rows.
    RowClasses,
    /// The class bits of cells.
    Classes,
    /// Where the blocks of cells are.
    Blocks,
    /// The cells.
    Cells,
    /// The directories of very large cells.
    Directories,
    /// The chunks of large cells.
    Chunks,
    /// The class of each score.
    ClassTable,
    /// The slots of nodes by rank.
    Ranks,
    /// The ranks of nodes by slot.
    RanksBySlot,
    /// The marks of nodes by rank.
    Marks,
    /// The places of nodes.
    Places,
    /// The counts of coordinates, by dimension.
    Counts(u8),
    /// The coordinates, marks and slots of nodes in order of registration.
    InOrder(u8),
    /// The vertices above them, by level.
    Levels(u8),
    /// The members of a set, by its number. The sets are those of the caller.
    Members(u16),
}

/// Follows the cost of a search.
pub trait Meter {
    /// A vertex is entered.
    fn vertex(&mut self);

    /// A node is checked exactly, for which the caller reads it.
    fn node(&mut self, slot: Slot);

    /// The caller reads a node to compare it, which is not counted as a visit.
    #[inline(always)]
    fn compared(&mut self, _slot: Slot) {}

    /// Some bytes of a structure are read.
    #[inline(always)]
    fn read(&mut self, _of: Structure, _from: usize, _bytes: usize) {}

    /// One item of a structure of such items is read.
    #[inline(always)]
    fn item<T>(&mut self, of: Structure, at: usize) {
        self.items::<T>(of, at, 1);
    }

    /// Some items of a structure of such items are read. Products wrap, because the check for an overflow would stay where
    /// nobody asks for them.
    #[inline(always)]
    fn items<T>(&mut self, of: Structure, from: usize, count: usize) {
        let [from, bytes] = [from, count].map(|items| items.wrapping_mul(size_of::<T>()));
        self.read(of, from, bytes);
    }
}

/// The cost of one search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visits {
    /// The number of tree vertices entered.
    pub vertices: u64,
    /// The number of nodes checked exactly.
    pub nodes: u64,
}

impl Meter for Visits {
    #[inline(always)]
    fn vertex(&mut self) {
        self.vertices += 1;
    }

    #[inline(always)]
    fn node(&mut self, _: Slot) {
        self.nodes += 1;
    }
}
