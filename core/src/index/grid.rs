//! Assigns nodes to cells, which are contiguous ranges of keys, by the first two coordinates alone.

use super::key::Key;

/// The minimum number of cells, as a power of two.
const BITS_MIN: u32 = 6;

/// A partition of the keys into ordered ranges.
///
/// Keys are split by the first coordinate. Within one value of it, they are split by the second coordinate,
/// as finely as the number of cells allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    row_shift: u32,
    row_bits: u32,
    column_shift: u32,
    column_bits: u32,
    /// The maximum number of nodes for which the grid is fine enough.
    nodes: usize,
}

/// Returns the number of bits that `value` takes.
fn bits(value: u16) -> u32 {
    16 - value.leading_zeros()
}

impl Grid {
    /// Creates a grid for `nodes` nodes, up to these first two coordinates.
    ///
    /// It has half to one cell per node, or fewer if the coordinates have fewer values.
    pub(super) fn over(highest: (u16, u16), nodes: usize) -> Self {
        let budget = nodes.next_power_of_two().trailing_zeros().max(BITS_MIN + 1) - 1;
        let rows = bits(highest.0);
        let columns = bits(highest.1);
        let row_bits = rows.min(budget);
        // A row with several values of the first coordinate cannot be split by the second, because the order
        // is by the first.
        let column_bits = columns.min(budget - row_bits);
        Self {
            row_shift: rows - row_bits,
            row_bits,
            column_shift: if column_bits == 0 { 16 } else { columns - column_bits },
            column_bits,
            nodes: 2 << budget,
        }
    }

    pub(super) fn cells(&self) -> usize {
        1 << (self.row_bits + self.column_bits)
    }

    /// Returns whether there are more nodes than the grid was laid out for.
    pub(super) fn is_coarse_for(&self, nodes: usize) -> bool {
        nodes > self.nodes
    }

    /// Returns whether `key` is in a cell.
    #[inline]
    pub(super) fn covers<K: Key>(&self, key: K) -> bool {
        let (row, column) = key.leading();
        let row_above = u32::from(row) >> self.row_shift >> self.row_bits;
        let column_above = u32::from(column) >> self.column_shift >> self.column_bits;
        row_above | column_above == 0
    }

    /// Returns the cell of a key that the grid covers.
    #[inline]
    pub(super) fn cell<K: Key>(&self, key: K) -> usize {
        let (row, column) = key.leading();
        ((u32::from(row) >> self.row_shift << self.column_bits) | u32::from(column) >> self.column_shift)
            as usize
    }
}

/// For each number of column bits, a word with a bit at the first column of each row.
const ROWS: [u64; 7] =
    [u64::MAX, u64::MAX / 3, u64::MAX / 15, u64::MAX / 255, u64::MAX / 65_535, u64::MAX / 0xFFFF_FFFF, 1];

/// The cells of every row from one column on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    /// The mask for the groups of 64 cells that contain that column.
    mask: u64,
    /// The index of these groups within a row.
    group: usize,
    /// The number of groups per row, minus one.
    last: usize,
}

impl Columns {
    /// Returns the selected cells of a group of 64.
    #[inline]
    pub(super) fn of_group(&self, group: usize) -> u64 {
        match (group & self.last).cmp(&self.group) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => self.mask,
            std::cmp::Ordering::Greater => u64::MAX,
        }
    }
}

impl Grid {
    /// Returns the cells of every row from the column of `key` on.
    #[inline]
    pub(super) fn columns_from<K: Key>(&self, key: K) -> Columns {
        let column = u32::from(key.leading().1) >> self.column_shift;
        if self.column_bits >= 6 {
            let group = (column >> 6) as usize;
            let last = (1 << (self.column_bits - 6)) - 1;
            return Columns { mask: u64::MAX << (column & 63), group, last };
        }
        let of_row = (1 << (1 << self.column_bits)) - 1;
        let mask = (of_row & (u64::MAX << column)) * ROWS[self.column_bits as usize];
        Columns { mask, group: 0, last: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Coordinate;
    use proptest::prelude::*;

    fn key(row: u16, column: u16) -> u64 {
        Key::pack(&Coordinate([row, column, 0, 0, 0, 0, 0, 0]))
    }

    proptest! {
        #[test]
        fn cells_are_stretches_in_order(
            highest in (0..=Coordinate::HIGHEST, 0..=Coordinate::HIGHEST),
            nodes in 0usize..2_000_000,
            points in proptest::collection::vec((0..=Coordinate::HIGHEST, 0..=Coordinate::HIGHEST), 2..20),
        ) {
            let grid = Grid::over(highest, nodes);
            prop_assert!(grid.covers(key(highest.0, highest.1)));
            prop_assert!(grid.cells() <= 1 << BITS_MIN || grid.cells() < 2 * nodes);
            let mut keys: Vec<u64> = points
                .iter()
                .map(|&(row, column)| key(row.min(highest.0), column.min(highest.1)))
                .collect();
            keys.sort_unstable();
            let cells: Vec<usize> = keys.iter().map(|&key| grid.cell(key)).collect();
            prop_assert!(cells.is_sorted());
            prop_assert!(cells.iter().all(|&cell| cell < grid.cells()));
            for &from in &keys {
                let columns = grid.columns_from(from);
                let own = grid.cell(from);
                prop_assert!(columns.of_group(own / 64) >> (own % 64) & 1 == 1);
                for &other in &keys {
                    let at = grid.cell(other);
                    let column = |key: u64| u32::from(key.leading().1) >> grid.column_shift;
                    let offered = columns.of_group(at / 64) >> (at % 64) & 1 == 1;
                    prop_assert_eq!(offered, column(other) >= column(from));
                }
            }
        }
    }
}
