//! The layout of a plane: the cell and the score of each coordinate.
//!
//! The first two coordinates determine the cell. Cells form a table of rows (the first coordinate) and columns
//! (the second). The third and the fourth coordinate form the *score*, one number that compares like the pair.
//!
//! In an exact layout, each coordinate of up to four dimensions has a cell and a score of its own. In a coarse
//! layout, a cell is a contiguous range of coordinates. A score is then a lower bound: it never falls where the
//! coordinates rise.

use super::Coordinate;
use super::Coordinates;
use super::classes::SCORE_BITS;

/// The least number of cells of a coarse layout, as a power of two.
const COARSE_BITS_MIN: u32 = 6;
/// The least number of columns, as a power of two: one word of cells.
const COLUMN_BITS_MIN: u32 = 6;
/// The most columns, as a power of two: a row has one bit per word of cells in sixteen bits.
const COLUMN_BITS_MAX: u32 = 10;
/// An exact layout may have this many cells for any number of nodes, as a power of two.
const EXACT_BITS: u32 = 16;
/// An exact layout may have this many cells per node, as a power of two. A cell without nodes takes about three
/// bytes.
const EXACT_PER_NODE_BITS: u32 = 6;

/// The mapping from coordinates to cells and scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    row_bits: u32,
    row_shift: u32,
    column_bits: u32,
    column_shift: u32,
    third_bits: u32,
    third_shift: u32,
    fourth_bits: u32,
    fourth_shift: u32,
    /// The largest value of each of the first four coordinates that is covered.
    limits: [u16; 4],
    /// The number of nodes for which the layout is fine enough.
    nodes_max: usize,
}

/// Returns the number of bits that `value` takes.
fn bits(value: u16) -> u32 {
    u16::BITS - value.leading_zeros()
}

/// Returns the largest value of a number of bits, up to that of a coordinate.
fn limit(bits: u32) -> u16 {
    ((1 << bits.min(u16::BITS)) - 1u32) as u16
}

impl Layout {
    /// Creates an exact layout for coordinates up to `highest`. `None` if it would be too large for this number
    /// of nodes, or if a score is too narrow.
    pub(super) fn exact(highest: &Coordinate, nodes: usize) -> Option<Self> {
        let [row, column, third, fourth, ..] = highest.0;
        let row_bits = bits(row);
        let column_bits = bits(column).max(COLUMN_BITS_MIN);
        let [third_bits, fourth_bits] = [bits(third), bits(fourth)];
        let of_nodes = nodes.next_power_of_two().trailing_zeros() + EXACT_PER_NODE_BITS;
        let is_small = row_bits + column_bits <= EXACT_BITS.max(of_nodes);
        let is_exact = is_small
            && column_bits <= COLUMN_BITS_MAX
            && third_bits + fourth_bits <= SCORE_BITS
            && highest.0[4..].iter().all(|&later| later == 0);
        is_exact.then_some(Self {
            row_bits,
            row_shift: 0,
            column_bits,
            column_shift: 0,
            third_bits,
            third_shift: 0,
            fourth_bits,
            fourth_shift: 0,
            limits: [row_bits, column_bits, third_bits, fourth_bits].map(limit),
            nodes_max: usize::MAX,
        })
    }

    /// Creates a layout for coordinates up to `highest`, with about as many cells as nodes.
    pub(super) fn coarse(highest: &Coordinate, nodes: usize) -> Self {
        let [row, column, third, fourth, ..] = highest.0;
        let budget = nodes.next_power_of_two().trailing_zeros().max(COARSE_BITS_MIN);
        let row_bits = bits(row).min(budget);
        let row_shift = bits(row) - row_bits;
        let most = (budget - row_bits).clamp(COLUMN_BITS_MIN, COLUMN_BITS_MAX);
        let column_bits = bits(column).clamp(COLUMN_BITS_MIN, most);
        // A row with several values of the first coordinate cannot be split by the second, because the order is
        // by the first.
        let column_shift = if row_shift > 0 { u16::BITS } else { bits(column).saturating_sub(column_bits) };
        let third_bits = bits(third).min(SCORE_BITS);
        let third_shift = bits(third) - third_bits;
        // A score with only a part of the third coordinate cannot have the fourth.
        let fourth_bits = if third_shift > 0 { 0 } else { bits(fourth).min(SCORE_BITS - third_bits) };
        let fourth_shift = bits(fourth) - fourth_bits;
        Self {
            row_bits,
            row_shift,
            column_bits,
            column_shift,
            third_bits,
            third_shift,
            fourth_bits,
            fourth_shift,
            limits: [
                limit(row_bits + row_shift),
                // Where all columns are one cell, any column is covered.
                limit(column_bits + column_shift),
                limit(third_bits + third_shift),
                limit(fourth_bits + fourth_shift),
            ],
            nodes_max: 2 << budget,
        }
    }

    /// Returns the number of cells.
    pub(super) fn cells(&self) -> usize {
        1 << (self.row_bits + self.column_bits)
    }

    pub(super) fn rows(&self) -> usize {
        1 << self.row_bits
    }

    /// Returns the number of columns, as a power of two.
    #[inline]
    pub(super) fn column_bits(&self) -> u32 {
        self.column_bits
    }

    /// Returns the number of bits of the third coordinate and of the fourth in a score.
    pub(super) fn score_bits(&self) -> [u32; 2] {
        [self.third_bits, self.fourth_bits]
    }

    /// Returns the largest value of each of the first four coordinates that is covered.
    pub(super) fn limits(&self) -> [u16; 4] {
        self.limits
    }

    /// Returns whether there are more nodes than the layout is for.
    pub(super) fn is_coarse_for(&self, nodes: usize) -> bool {
        nodes > self.nodes_max
    }

    /// Returns whether the coordinate has a cell and a score.
    #[inline]
    pub(super) fn covers(&self, at: &Coordinate) -> bool {
        let [row, column, third, fourth] = self.limits;
        (at.0[0] <= row) & (at.0[1] <= column) & (at.0[2] <= third) & (at.0[3] <= fourth)
    }

    /// Returns the cell of a coordinate that the layout covers.
    #[inline]
    pub(super) fn cell(&self, at: &Coordinate) -> usize {
        let [row, column, ..] = at.0.map(usize::from);
        row >> self.row_shift << self.column_bits | column >> self.column_shift
    }

    /// Returns the score of a coordinate that the layout covers. It is less than `1 << SCORE_BITS`.
    #[inline]
    pub(super) fn score(&self, at: &Coordinate) -> u32 {
        let [.., third, fourth] = [at.0[2], at.0[3]].map(u32::from);
        third >> self.third_shift << self.fourth_bits | fourth >> self.fourth_shift
    }

    /// The same as `cell`, for an exact layout.
    #[inline(always)]
    pub(super) fn exact_cell(&self, at: &Coordinate) -> usize {
        let [row, column, ..] = at.0.map(usize::from);
        self.cell_at(row, column)
    }

    /// The same as `score`, for an exact layout.
    #[inline(always)]
    pub(super) fn exact_score(&self, at: &Coordinate) -> u32 {
        u32::from(at.0[2]).wrapping_shl(self.fourth_bits) | u32::from(at.0[3])
    }

    /// Returns the cell of a row and a column.
    #[inline(always)]
    pub(super) fn cell_at(&self, row: usize, column: usize) -> usize {
        row.wrapping_shl(self.column_bits) | column
    }

    /// Returns the row of a first coordinate.
    #[inline(always)]
    pub(super) fn row_of(&self, first: u16) -> usize {
        usize::from(first).wrapping_shr(self.row_shift)
    }

    /// Returns the row of a cell.
    #[inline(always)]
    pub(super) fn row(&self, cell: usize) -> usize {
        cell.wrapping_shr(self.column_bits)
    }

    /// Returns the column of a cell.
    #[inline(always)]
    pub(super) fn column(&self, cell: usize) -> usize {
        cell & 1usize.wrapping_shl(self.column_bits).wrapping_sub(1)
    }

    /// Returns the part of a score that is the fourth coordinate.
    #[inline]
    pub(super) fn fourth(&self, score: u32) -> u32 {
        score & 1u32.wrapping_shl(self.fourth_bits).wrapping_sub(1)
    }

    /// Returns the part of a score that is the third coordinate.
    #[inline]
    pub(super) fn third(&self, score: u32) -> u32 {
        score.wrapping_shr(self.fourth_bits)
    }

    /// Returns the coordinate of a cell and a score. For an exact layout.
    #[inline]
    pub(super) fn coordinate(&self, cell: usize, score: u32) -> Coordinate {
        let mut at = Coordinate::default();
        at.0[0] = self.row(cell) as u16;
        at.0[1] = self.column(cell) as u16;
        at.0[2] = self.third(score) as u16;
        at.0[3] = self.fourth(score) as u16;
        at
    }
}

/// The largest coordinates of some nodes.
pub(super) fn highest<'a>(of: impl Iterator<Item = &'a Coordinates>) -> Coordinate {
    of.fold(Coordinate::default(), |highest, at| highest.highest(&at.coordinate))
}
