//! Classes: ranges of scores, by which a search skips what has too little in the later dimensions.
//!
//! The class of a cell is that of the largest score in it. A search skips cells of a lower class than that of
//! the request. Where the ranges are cut changes no answer. They are cut where requests ask, so that most
//! searches enter only cells with a node that suffices.

use super::{Meter, Structure};

/// The number of bits of a score.
pub(super) const SCORE_BITS: u32 = 12;
/// The number of scores.
const SCORES: usize = 1 << SCORE_BITS;
/// The number of classes.
pub(super) const CLASSES: usize = 16;
/// The class of nothing. It is the only one with this bit.
pub(super) const EMPTY: usize = CLASSES;
/// The number of requests after which the classes are cut for the first time. They are cut again whenever the
/// number has grown by [`LEARN_GROWTH`], so a few times only: a cut costs O(cells).
const LEARN_FIRST: u32 = 512;
const LEARN_GROWTH: u32 = 16;

/// The class of each score.
#[derive(Clone, Debug)]
pub(super) struct Classes {
    /// The length is known, so a score is found without a bounds check. Scores that the layout does not have are unused.
    of_score: Box<[u8; SCORES]>,
    /// The number of requests per score.
    asked: Box<[u32]>,
    requests: u32,
    learn_at: u32,
}

impl Classes {
    /// Creates classes for scores with this number of bits for the third coordinate and for the fourth.
    pub(super) fn new([third_bits, fourth_bits]: [u32; 2]) -> Self {
        let scores = 1 << (third_bits + fourth_bits);
        let mut classes = Self {
            of_score: Box::new([0; SCORES]),
            asked: vec![0; scores].into(),
            requests: 0,
            learn_at: LEARN_FIRST,
        };
        // Until requests tell better: seven ranges of the third coordinate, and eight of the fourth below it.
        let of_third = third_bits.saturating_sub(3);
        let of_fourth = fourth_bits.saturating_sub(3);
        let thirds = (1..8).map(|step| step << of_third << fourth_bits);
        let fourths = (1..8).map(|step| step << of_fourth);
        let mut cuts: Vec<u32> = [1].into_iter().chain(fourths).chain(thirds).collect();
        cuts.sort_unstable();
        cuts.dedup();
        classes.cut(&cuts);
        classes
    }

    /// Begins a class at each of these scores, which ascend.
    fn cut(&mut self, from: &[u32]) {
        for (score, class) in (0u32..).zip(self.of_score.iter_mut()) {
            *class = from.partition_point(|&cut| cut <= score).min(CLASSES - 1) as u8;
        }
    }

    /// Returns the class of a score.
    #[inline]
    pub(super) fn of(&self, score: u32) -> usize {
        usize::from(self.of_score[score as usize % SCORES])
    }

    /// Counts a request. Returns whether the classes should be cut again.
    #[inline]
    pub(super) fn note_request(&mut self, score: u32) -> bool {
        let asked = &mut self.asked[score as usize];
        *asked = asked.saturating_add(1);
        self.requests = self.requests.saturating_add(1);
        self.requests == self.learn_at
    }

    /// Cuts the classes at the scores that requests ask most. Returns whether any class changed.
    #[cold]
    pub(super) fn learn(&mut self) -> bool {
        self.learn_at = self.learn_at.saturating_mul(LEARN_GROWTH);
        let asked = &self.asked;
        let mut most: Vec<u32> = (1..asked.len() as u32).filter(|&score| asked[score as usize] > 0).collect();
        most.sort_unstable_by_key(|&score| (std::cmp::Reverse(asked[score as usize]), score));
        most.truncate(CLASSES - 1);
        most.sort_unstable();
        let before = self.of_score.clone();
        self.cut(&most);
        before != self.of_score
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.of_score) + size_of_val(&*self.asked)
    }
}

/// Masks of the classes from any class on: sixteen words that end with as many ones as there are such classes.
const FROM: [u64; 2 * CLASSES - 1] = {
    let mut window = [0; 2 * CLASSES - 1];
    let mut at = CLASSES - 1;
    while at < window.len() {
        window[at] = u64::MAX;
        at += 1;
    }
    window
};

/// The same in two bytes per class.
const FROM_16: [u16; 2 * CLASSES - 1] = {
    let mut window = [0; 2 * CLASSES - 1];
    let mut at = 0;
    while at < window.len() {
        window[at] = FROM[at] as u16;
        at += 1;
    }
    window
};

/// Masks of the classes up to any class, in one byte per class.
const UP_TO: [u8; 2 * CLASSES - 1] = {
    let mut window = [0; 2 * CLASSES - 1];
    let mut at = 0;
    while at < CLASSES {
        window[at] = u8::MAX;
        at += 1;
    }
    window
};

/// Returns the part of a window that is for `class`.
#[inline(always)]
fn masks<T>(window: &[T; 2 * CLASSES - 1], class: usize) -> &[T; CLASSES] {
    let from = CLASSES - 1 - (class & (CLASSES - 1));
    window[from..from + CLASSES].first_chunk().expect("a window has room for every class")
}

/// Raises the bounds of all classes up to `class`.
#[inline(always)]
pub(super) fn raise(bounds: &mut [u8; CLASSES], class: usize, to: u8) {
    for (bound, mask) in bounds.iter_mut().zip(masks(&UP_TO, class)) {
        *bound = (*bound).max(to & mask);
    }
}

/// For each class, one bit per member of a group of 64 whose class it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
pub(super) struct ClassBits([u64; CLASSES]);

const _: () = assert!(size_of::<ClassBits>() == 128, "two cache lines");

impl ClassBits {
    pub(super) const NONE: Self = Self([0; CLASSES]);

    /// Returns the members of `class` or a higher one.
    #[inline]
    pub(super) fn from(&self, class: usize) -> u64 {
        // All words are read, so that the compiler uses wide instructions.
        let mut all = 0;
        for (word, mask) in self.0.iter().zip(masks(&FROM, class)) {
            all |= word & mask;
        }
        all
    }

    /// Returns the members of all classes.
    #[inline]
    fn all(&self) -> u64 {
        self.0.iter().fold(0, |all, word| all | word)
    }

    /// Moves a member from one class to another. Returns the classes that lost their last member, or got their first
    /// one. No class is [`EMPTY`].
    #[inline(always)]
    fn change(&mut self, member: usize, before: usize, after: usize) -> (usize, usize) {
        let bit = 1u64.wrapping_shl(member as u32);
        let mut lost = EMPTY;
        let mut got = EMPTY;
        if let Some(word) = self.0.get_mut(before) {
            *word &= !bit;
            lost = if *word == 0 { before } else { EMPTY };
        }
        if let Some(word) = self.0.get_mut(after) {
            got = if *word == 0 { after } else { EMPTY };
            *word |= bit;
        }
        (lost, got)
    }
}

/// The classes of all cells, summed up by word of a row and by row.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    /// The number of columns, as a power of two.
    column_bits: u32,
    /// By row and word of 64 columns.
    cells: Vec<ClassBits>,
    /// By row and class: one bit per word that has a cell of the class.
    words: Vec<[u16; CLASSES]>,
    /// By group of 64 rows: the rows that have a cell of a class.
    rows: Vec<ClassBits>,
}

impl Rows {
    /// Creates a table without nodes. There are at least 64 columns.
    pub(super) fn new(rows: usize, column_bits: u32) -> Self {
        let words = rows << (column_bits - 6);
        Self {
            column_bits,
            cells: vec![ClassBits::NONE; words],
            words: vec![[0; CLASSES]; rows],
            rows: vec![ClassBits::NONE; rows.div_ceil(64)],
        }
    }

    /// Changes the class of a cell. That of an empty cell is [`EMPTY`].
    #[inline(always)]
    pub(super) fn change(&mut self, cell: usize, before: usize, after: usize) {
        if before != after {
            let (lost, got) = self.cells[cell >> 6].change(cell & 63, before, after);
            if lost & got != EMPTY {
                self.change_row(cell, lost, got);
            }
        }
    }

    /// The word of a cell has no cell of class `lost` any more, and its first one of class `got`.
    #[inline(never)]
    fn change_row(&mut self, cell: usize, lost: usize, got: usize) {
        let row = cell.wrapping_shr(self.column_bits);
        let word = (cell & 1usize.wrapping_shl(self.column_bits).wrapping_sub(1)) >> 6;
        let bit = 1u16.wrapping_shl(word as u32);
        let words = &mut self.words[row];
        let mut is_lost = EMPTY;
        let mut is_got = EMPTY;
        if let Some(words) = words.get_mut(lost) {
            *words &= !bit;
            is_lost = if *words == 0 { lost } else { EMPTY };
        }
        if let Some(words) = words.get_mut(got) {
            is_got = if *words == 0 { got } else { EMPTY };
            *words |= bit;
        }
        if is_lost & is_got != EMPTY {
            self.rows[row >> 6].change(row & 63, is_lost, is_got);
        }
    }

    /// Returns the number of groups of 64 rows.
    #[inline]
    pub(super) fn groups(&self) -> usize {
        self.rows.len()
    }

    /// Returns the rows of a group that have a cell of `class` or a higher one.
    #[inline]
    pub(super) fn rows(&self, group: usize, class: usize, visits: &mut impl Meter) -> u64 {
        visits.item::<ClassBits>(Structure::Rows, group);
        self.rows[group].from(class)
    }

    /// Returns the words of a row that have a cell of `class` or a higher one.
    #[inline(always)]
    pub(super) fn words(&self, row: usize, class: usize, visits: &mut impl Meter) -> u16 {
        visits.item::<[u16; CLASSES]>(Structure::RowClasses, row);
        let mut all = 0;
        for (word, mask) in self.words[row].iter().zip(masks(&FROM_16, class)) {
            all |= word & mask;
        }
        all
    }

    /// Returns the cells of a word of a row that are of `class` or a higher one.
    #[inline]
    pub(super) fn cells(&self, row: usize, word: usize, class: usize, visits: &mut impl Meter) -> u64 {
        let at = row.wrapping_shl(self.column_bits.wrapping_sub(6)) | word;
        visits.item::<ClassBits>(Structure::Classes, at);
        self.cells[at].from(class)
    }

    /// Returns the cells of a word of a row that have entries.
    #[inline]
    pub(super) fn cells_of_all(&self, row: usize, word: usize, visits: &mut impl Meter) -> u64 {
        let at = row.wrapping_shl(self.column_bits.wrapping_sub(6)) | word;
        visits.item::<ClassBits>(Structure::Classes, at);
        self.cells[at].all()
    }

    pub(super) fn bytes(&self) -> usize {
        (self.cells.capacity() + self.rows.capacity()) * size_of::<ClassBits>()
            + self.words.capacity() * size_of::<[u16; CLASSES]>()
    }

    /// Returns whether these are exactly the cells with a class.
    pub(super) fn is_of(&self, cells: impl Iterator<Item = (usize, usize)>) -> bool {
        let mut expected = Self::new(self.words.len(), self.column_bits);
        cells.for_each(|(cell, class)| expected.change(cell, EMPTY, class));
        self.cells == expected.cells && self.words == expected.words && self.rows == expected.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Visits;

    #[test]
    fn cells_are_found_by_their_class_and_those_below() {
        let mut rows = Rows::new(128, 7);
        let visits = &mut Visits::default();
        let cell = 70 << 7 | 65;
        rows.change(cell, EMPTY, 5);
        for class in 0..CLASSES {
            let is_in = u64::from(class <= 5);
            assert_eq!(rows.rows(1, class, visits), is_in << 6);
            assert_eq!(rows.words(70, class, visits), (is_in as u16) << 1);
            assert_eq!(rows.cells(70, 1, class, visits), is_in << 1);
            assert_eq!(rows.cells_of_all(70, 1, visits), 2);
        }
        // Another cell of the word and class keeps the sums.
        rows.change(cell + 1, EMPTY, 5);
        rows.change(cell, 5, 2);
        assert_eq!((rows.cells(70, 1, 5, visits), rows.cells(70, 1, 2, visits)), (2 << 1, 3 << 1));
        assert!(rows.is_of([(cell, 2), (cell + 1, 5)].into_iter()));
        rows.change(cell + 1, 5, EMPTY);
        rows.change(cell, 2, EMPTY);
        assert_eq!(rows.rows(1, 0, visits), 0);
        assert!(rows.is_of(std::iter::empty()));
    }

    #[test]
    fn classes_begin_where_requests_ask() {
        let mut classes = Classes::new([5, 7]);
        let ascending = |classes: &Classes| (1..1 << SCORE_BITS).all(|s| classes.of(s) >= classes.of(s - 1));
        assert!(ascending(&classes) && classes.of(0) == 0 && classes.of(1) == 1);
        for number in 1..LEARN_FIRST {
            assert!(!classes.note_request([0, 25, 50, 228][number as usize % 4]));
        }
        assert!(classes.note_request(50));
        assert!(classes.learn() && !classes.learn());
        assert!(ascending(&classes));
        assert_eq!([0, 24, 25, 49, 50, 227, 228, 4095].map(|s| classes.of(s)), [0, 0, 1, 1, 2, 2, 3, 3]);
    }
}
