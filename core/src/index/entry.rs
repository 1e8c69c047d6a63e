//! The entry of a node in a cell. It decides almost always whether the node fits, without a look at the node.
//!
//! A coordinate is `ceil(value / θ)`. Nodes with 0.4 and with 1 core both have coordinate 1, and a request for a
//! whole core finds both. An entry therefore also has how much of its last step a value takes.

use std::fmt::Debug;

use super::Coordinate;
use super::coordinate::{Coordinates, WITHIN_BITS};
use super::layout::Layout;
use super::ranks::Rank;
use crate::limits::DIMENSIONS_MAX;

/// The number of bits of a rank in an entry.
const RANK_BITS: u32 = 24;
/// One more than the highest supported rank.
pub(super) const RANKS_MAX: usize = 1 << RANK_BITS;
const _: () =
    assert!(crate::limits::NODES_MAX * 3 <= RANKS_MAX, "ranks of nodes that left are kept for a while");

/// An entry of a cell.
pub(super) trait Entry: Copy + Debug + PartialEq {
    /// The order within a cell: by coordinate, then by rank.
    type Order: Copy + Ord + Debug;
    /// A request, as entries of one cell are compared with it.
    type Asked: Copy + Debug;
    /// Upper bounds of some entries.
    type Bounds: Copy + Debug + PartialEq;

    /// Whether the order within a cell is by score first.
    const IS_BY_SCORE: bool;
    /// Fills unused places.
    const VACANT: Self;
    /// Comes before every entry, or is the first possible one.
    const FIRST: Self::Order;
    /// Comes after every entry.
    const AFTER_ALL: Self::Order;
    /// The bounds of no entry.
    const NOTHING: Self::Bounds;

    fn new(layout: &Layout, at: &Coordinates, rank: Rank) -> Self;

    /// Returns the cell of a coordinate that the layout covers.
    fn cell(layout: &Layout, at: &Coordinate) -> usize;

    /// Returns what is asked of entries in the row and the column of a request with this entry.
    fn asked(self, layout: &Layout) -> Self::Asked;

    /// Returns what is asked of entries that may be beyond the row or the column of the request.
    fn asked_in(asked: &Self::Asked, in_row: bool, in_column: bool) -> Self::Asked;

    fn rank(self) -> Rank;

    /// Returns the score of the coordinate, in this layout.
    fn score(self, layout: &Layout) -> u32;

    /// Returns the largest score of some entries, or zero. A vacant place has score zero.
    fn largest_score(of: &[Self], layout: &Layout) -> u32;

    /// Returns how much of its last step the first dimension takes, in 1/256. For cells of one row.
    fn within(self) -> u8;

    /// Returns the least [`within`](Self::within) of an entry that fits.
    fn least_within(asked: &Self::Asked) -> u8;

    fn order(self) -> Self::Order;

    /// Reverses the order of coordinates, but not that of ranks. It is its own inverse.
    fn turned(order: Self::Order) -> Self::Order;

    /// Returns the first possible order of the same coordinate.
    fn leaf(order: Self::Order) -> Self::Order;

    /// Returns the next possible order of the same coordinate.
    fn next(order: Self::Order) -> Self::Order;

    /// Returns the rank of the entry with this order.
    fn rank_of(order: Self::Order) -> Rank;

    /// Returns the score of the entries with this order. `None` if the order is not by score first.
    fn score_of(order: Self::Order) -> Option<u32>;

    /// Returns an order such that no entry that fits comes before it.
    fn lowest(asked: &Self::Asked) -> Self::Order;

    fn fits(self, asked: &Self::Asked) -> bool;

    /// Returns the bounds with this entry added to them.
    fn add_to(self, bounds: &Self::Bounds) -> Self::Bounds;

    /// Returns the bound of [`within`](Self::within).
    fn within_of(bounds: &Self::Bounds) -> u8;

    /// Returns whether one of the entries may fit.
    fn may_fit(bounds: &Self::Bounds, asked: &Self::Asked) -> bool;

    /// Returns the coordinate of an entry of `cell`.
    fn coordinate(self, layout: &Layout, cell: usize) -> Coordinate;

    /// Returns how much of its last step each dimension may take, at most. Unknown parts are whole.
    fn parts_within(self) -> [u16; DIMENSIONS_MAX];
}

/// An entry in one word, for an exact layout: the score, the rank, and the parts of the last steps of the first
/// two dimensions. The cell says the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Narrow(u64);

const FIRST_AT: u32 = WITHIN_BITS;
const RANK_AT: u32 = 2 * WITHIN_BITS;
const SCORE_AT: u32 = RANK_AT + RANK_BITS;
const _: () = assert!(SCORE_AT + super::classes::SCORE_BITS == u64::BITS);
const WITHIN: u32 = (1 << WITHIN_BITS) - 1;

/// A request, as [`Narrow`] entries are compared with it: all fields of an entry at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct NarrowAsked {
    /// The entry of a node with rank 0 that has just what is asked.
    least: u64,
    /// The first bit of each field. The rank is a field of which nothing is asked.
    tops: u64,
}

impl Narrow {
    /// Returns an entry with rank 0, from a score and the parts of the last steps.
    #[inline(always)]
    pub(super) fn of_parts(score: u64, first: u64, second: u64) -> Self {
        Self(score << SCORE_AT | first << FIRST_AT | second)
    }

    /// Returns an entry with rank 0 with this rank.
    #[inline]
    pub(super) fn with_rank(self, rank: Rank) -> Self {
        Self(self.0 | u64::from(rank) << RANK_AT)
    }

    #[inline]
    fn full_score(self) -> u32 {
        (self.0 >> SCORE_AT) as u32
    }

    /// Returns the first bit of how much of its last step one of the first two dimensions takes.
    #[inline]
    pub(super) fn part_at(d: usize) -> u32 {
        if d == 0 { FIRST_AT } else { 0 }
    }

    /// Returns how much of its last step a dimension takes, in `1 / 2^WITHIN_BITS`, rounded down.
    #[inline]
    pub(super) fn part(self, first_bit: u32) -> u32 {
        (self.0 >> (first_bit & (u64::BITS - 1))) as u32 & WITHIN
    }

    /// Returns the [`within`](Entry::within) of an entry with this part in the first dimension.
    #[inline]
    pub(super) fn within_of_part(part: u32) -> u8 {
        (part >> (WITHIN_BITS - 8)) as u8
    }

    /// Above every [`by_part`](Self::by_part).
    pub(super) const ABOVE_PARTS: u64 = u64::MAX;

    /// Returns the entry from the first bit of a part up to its own first bit, so that it is compared by this part first.
    #[inline(always)]
    pub(super) fn by_part(self, first_bit: u32) -> u64 {
        self.0.wrapping_shl(u64::BITS - WITHIN_BITS - first_bit)
    }

    /// Returns the least [`by_part`](Self::by_part) with this part.
    #[inline]
    pub(super) fn part_first(part: u32) -> u64 {
        u64::from(part).wrapping_shl(u64::BITS - WITHIN_BITS)
    }

    /// Returns the part of a [`by_part`](Self::by_part).
    #[inline]
    pub(super) fn first_part(by_part: u64) -> u32 {
        (by_part >> (u64::BITS - WITHIN_BITS)) as u32
    }

    #[inline]
    fn parts(self) -> [u32; 2] {
        [0, 1].map(|d| self.part(Self::part_at(d)))
    }
}

impl Entry for Narrow {
    type Order = u64;
    type Asked = NarrowAsked;
    type Bounds = [u8; 2];

    const IS_BY_SCORE: bool = true;
    const VACANT: Self = Self(0);
    const FIRST: u64 = 0;
    const AFTER_ALL: u64 = u64::MAX;
    const NOTHING: [u8; 2] = [0; 2];

    #[inline(always)]
    fn new(layout: &Layout, at: &Coordinates, rank: Rank) -> Self {
        let [first, second, ..] = at.within.map(u64::from);
        let score = u64::from(layout.exact_score(&at.coordinate));
        Self(score << SCORE_AT | u64::from(rank) << RANK_AT | first << FIRST_AT | second)
    }

    #[inline(always)]
    fn cell(layout: &Layout, at: &Coordinate) -> usize {
        layout.exact_cell(at)
    }

    #[inline]
    fn asked(self, layout: &Layout) -> NarrowAsked {
        debug_assert!(self.rank() == 0, "a request has no rank");
        // A dimension without bits adds the first bit of the field after it, which changes nothing.
        let [_, fourth_bits] = layout.score_bits();
        let fourth = 1u64.wrapping_shl(SCORE_AT.wrapping_add(fourth_bits).wrapping_sub(1));
        let tops =
            1 << (u64::BITS - 1) | fourth | 1 << (SCORE_AT - 1) | 1 << (RANK_AT - 1) | 1 << (FIRST_AT - 1);
        NarrowAsked { least: self.0, tops }
    }

    #[inline]
    fn asked_in(asked: &NarrowAsked, in_row: bool, in_column: bool) -> NarrowAsked {
        // Beyond the row and the column of the request, an entry has more of these dimensions.
        let first = if in_row { u64::from(WITHIN) << FIRST_AT } else { 0 };
        let second = if in_column { u64::from(WITHIN) } else { 0 };
        let mask = u64::MAX << RANK_AT | first | second;
        NarrowAsked { least: asked.least & mask, ..*asked }
    }

    #[inline]
    fn rank(self) -> Rank {
        Self::rank_of(self.0)
    }

    #[inline]
    fn score(self, _: &Layout) -> u32 {
        self.full_score()
    }

    #[inline(always)]
    fn largest_score(of: &[Self], _: &Layout) -> u32 {
        // An entry compares by its score first.
        Self(of.iter().fold(0, |largest, entry| entry.0.max(largest))).full_score()
    }

    #[inline]
    fn within(self) -> u8 {
        Self::within_of_part(self.parts()[0])
    }

    #[inline]
    fn least_within(asked: &NarrowAsked) -> u8 {
        Self(asked.least).within()
    }

    #[inline]
    fn order(self) -> u64 {
        self.0 >> RANK_AT << RANK_AT
    }

    #[inline]
    fn turned(order: u64) -> u64 {
        order ^ (u64::MAX << SCORE_AT)
    }

    #[inline]
    fn leaf(order: u64) -> u64 {
        order >> SCORE_AT << SCORE_AT
    }

    #[inline]
    fn next(order: u64) -> u64 {
        order + (1 << RANK_AT)
    }

    #[inline]
    fn rank_of(order: u64) -> Rank {
        (order >> RANK_AT) as u32 & (RANKS_MAX as u32 - 1)
    }

    #[inline]
    fn score_of(order: u64) -> Option<u32> {
        Some((order >> SCORE_AT) as u32)
    }

    #[inline]
    fn lowest(asked: &NarrowAsked) -> u64 {
        Self::leaf(asked.least)
    }

    #[inline]
    fn fits(self, &NarrowAsked { least, tops }: &NarrowAsked) -> bool {
        // No field borrows from the one before it, because its first bit is set. Where both first bits are equal,
        // the one that is left says whether the rest of the field suffices.
        let rest = (self.0 | tops).wrapping_sub(least & !tops);
        let suffices = (self.0 & !least) | ((self.0 | !least) & rest);
        !suffices & tops == 0
    }

    #[inline]
    fn add_to(self, bounds: &[u8; 2]) -> [u8; 2] {
        let [first, second] = self.parts().map(|part| (part >> (WITHIN_BITS - 8)) as u8);
        [bounds[0].max(first), bounds[1].max(second)]
    }

    #[inline]
    fn within_of(&[first, _]: &[u8; 2]) -> u8 {
        first
    }

    #[inline]
    fn may_fit(bounds: &[u8; 2], asked: &NarrowAsked) -> bool {
        let [first, second] = Self(asked.least).parts();
        let [has_first, has_second] = bounds.map(u32::from);
        (has_first >= first >> (WITHIN_BITS - 8)) & (has_second >= second >> (WITHIN_BITS - 8))
    }

    #[inline]
    fn coordinate(self, layout: &Layout, cell: usize) -> Coordinate {
        layout.coordinate(cell, self.full_score())
    }

    fn parts_within(self) -> [u16; DIMENSIONS_MAX] {
        let mut within = [WITHIN as u16; DIMENSIONS_MAX];
        let [first, second] = self.parts();
        within[0] = first as u16;
        within[1] = second as u16;
        within
    }
}

/// An entry with the whole coordinate, for any dimensions and any layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wide {
    coordinate: Coordinate,
    /// How much of its last step each dimension takes, in 1/256.
    within: [u8; DIMENSIONS_MAX],
    rank: Rank,
}

/// The number of steps in each dimension, in 1/256.
type Fine = [u32; DIMENSIONS_MAX];

impl Wide {
    #[inline]
    fn fine(&self) -> Fine {
        std::array::from_fn(|d| u32::from(self.coordinate.0[d]) << 8 | u32::from(self.within[d]))
    }
}

#[inline]
fn reaches(has: &Fine, asked: &Fine) -> bool {
    has.iter().zip(asked).fold(true, |reaches, (has, asked)| reaches & (has >= asked))
}

/// Packs a coordinate into a number that compares in the same way.
#[inline]
fn packed(coordinate: &Coordinate) -> u128 {
    coordinate.0.iter().fold(0, |packed, &field| packed << 16 | u128::from(field))
}

impl Entry for Wide {
    type Order = (u128, Rank);
    type Asked = Fine;
    type Bounds = Fine;

    const IS_BY_SCORE: bool = false;
    const VACANT: Self =
        Self { coordinate: Coordinate([0; DIMENSIONS_MAX]), within: [0; DIMENSIONS_MAX], rank: 0 };
    const FIRST: (u128, Rank) = (0, 0);
    const AFTER_ALL: (u128, Rank) = (u128::MAX, Rank::MAX);
    const NOTHING: Fine = [0; DIMENSIONS_MAX];

    fn new(_: &Layout, at: &Coordinates, rank: Rank) -> Self {
        let within = at.within.map(|part| (part >> (WITHIN_BITS - 8)) as u8);
        Self { coordinate: at.coordinate, within, rank }
    }

    fn cell(layout: &Layout, at: &Coordinate) -> usize {
        layout.cell(at)
    }

    fn asked(self, _: &Layout) -> Fine {
        self.fine()
    }

    fn asked_in(asked: &Fine, _: bool, _: bool) -> Fine {
        *asked
    }

    fn rank(self) -> Rank {
        self.rank
    }

    fn score(self, layout: &Layout) -> u32 {
        layout.score(&self.coordinate)
    }

    fn largest_score(of: &[Self], layout: &Layout) -> u32 {
        of.iter().map(|entry| entry.score(layout)).fold(0, u32::max)
    }

    /// Unknown, because a cell may have several rows.
    fn within(self) -> u8 {
        u8::MAX
    }

    fn least_within(_: &Fine) -> u8 {
        0
    }

    fn order(self) -> (u128, Rank) {
        (packed(&self.coordinate), self.rank)
    }

    fn turned((coordinate, rank): (u128, Rank)) -> (u128, Rank) {
        (!coordinate, rank)
    }

    fn leaf((coordinate, _): (u128, Rank)) -> (u128, Rank) {
        (coordinate, 0)
    }

    fn next((coordinate, rank): (u128, Rank)) -> (u128, Rank) {
        (coordinate, rank + 1)
    }

    fn rank_of((_, rank): (u128, Rank)) -> Rank {
        rank
    }

    fn score_of(_: (u128, Rank)) -> Option<u32> {
        None
    }

    fn lowest(asked: &Fine) -> (u128, Rank) {
        (packed(&Coordinate(asked.map(|steps| (steps >> 8) as u16))), 0)
    }

    fn fits(self, asked: &Fine) -> bool {
        reaches(&self.fine(), asked)
    }

    fn add_to(self, bounds: &Fine) -> Fine {
        let fine = self.fine();
        std::array::from_fn(|d| bounds[d].max(fine[d]))
    }

    fn within_of(_: &Fine) -> u8 {
        u8::MAX
    }

    fn may_fit(bounds: &Fine, asked: &Fine) -> bool {
        reaches(bounds, asked)
    }

    fn coordinate(self, _: &Layout, _: usize) -> Coordinate {
        self.coordinate
    }

    fn parts_within(self) -> [u16; DIMENSIONS_MAX] {
        // A part was rounded down.
        const UNKNOWN: u16 = (1 << (WITHIN_BITS - 8)) - 1;
        self.within.map(|part| u16::from(part) << (WITHIN_BITS - 8) | UNKNOWN)
    }
}
