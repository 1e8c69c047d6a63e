//! Sums of domains in a row, with the largest sum of each part: a domain with enough room is found without a walk over all.

use std::ops::Range;

/// The sums of the domains of a tier, in order, below a binary tree of maxima.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Maxima {
    /// The number of places, a power of two. The last ones may be empty.
    width: usize,
    /// The children of `at` are `2 * at` and `2 * at + 1`, the root is 1, and the sums begin at `width`.
    most: Vec<u64>,
}

/// What is asked of a row: at most so much counts of each sum.
pub(super) type Asked<'m> = (&'m Maxima, u64);

impl Maxima {
    pub(super) fn new(sums: &[u64]) -> Self {
        let width = sums.len().next_power_of_two();
        let mut most = vec![0; 2 * width];
        most[width..width + sums.len()].copy_from_slice(sums);
        for at in (1..width).rev() {
            most[at] = most[2 * at].max(most[2 * at + 1]);
        }
        Self { width, most }
    }

    pub(super) fn get(&self, at: usize) -> u64 {
        self.most[self.width + at]
    }

    /// Replaces a part of a sum.
    pub(super) fn change(&mut self, at: usize, before: u64, after: u64) {
        let mut at = self.width + at;
        self.most[at] = self.most[at] - before + after;
        while at > 1 {
            at /= 2;
            let most = self.most[2 * at].max(self.most[2 * at + 1]);
            if std::mem::replace(&mut self.most[at], most) == most {
                break;
            }
        }
    }

    /// Returns the memory that it takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.most.len() * size_of::<u64>()
    }
}

/// A part of a row: a node of the tree, and the places below it.
type Part = (usize, Range<usize>);

/// Returns the halves of a part, the last one first. `None`: it is a single place.
fn halves((at, places): &Part) -> Option<[Part; 2]> {
    let middle = places.start + places.len() / 2;
    (places.len() > 1).then(|| [(2 * at + 1, middle..places.end), (2 * at, places.start..middle)])
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Returns the places in a range where each row has as much as is asked, in order. All rows are equally long.
pub(super) fn holding(rows: &[Asked<'_>], range: &Range<usize>) -> Vec<usize> {
    let Some((first, _)) = rows.first() else { return range.clone().collect() };
    let mut found = Vec::new();
    let mut parts = vec![(1, 0..first.width)];
    while let Some(part) = parts.pop() {
        let may_hold = rows.iter().all(|(row, asked)| row.most[part.0] >= *asked);
        if !may_hold || !overlap(&part.1, range) {
            continue;
        }
        match halves(&part) {
            Some(halves) => parts.extend(halves),
            None => found.push(part.1.start),
        }
    }
    found
}

/// Returns the first place in a range with the most of what is asked of all rows together, and how much. `None`: the range is
/// empty.
pub(super) fn best(rows: &[Asked<'_>], range: &Range<usize>) -> Option<(usize, u64)> {
    let Some((first, _)) = rows.first() else { return (!range.is_empty()).then_some((range.start, 0)) };
    let bound = |at: usize| rows.iter().map(|(row, asked)| row.most[at].min(*asked)).sum::<u64>();
    let all = rows.iter().map(|(_, asked)| asked).sum::<u64>();
    let mut best: Option<(usize, u64)> = None;
    let mut parts = vec![(1, 0..first.width)];
    while let Some(part) = parts.pop() {
        let most = bound(part.0);
        let is_better = best.is_none_or(|(_, best)| most > best);
        if !is_better || !overlap(&part.1, range) {
            continue;
        }
        match halves(&part) {
            Some(halves) => parts.extend(halves),
            None => best = Some((part.1.start, most)),
        }
        if best.is_some_and(|(_, best)| best == all) {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Each answer is that of a walk over all sums.
        #[test]
        fn what_is_found_is_what_a_walk_finds(
            rows in prop::collection::vec((prop::collection::vec(0..9_u64, 24), 0..12_u64), 0..4),
            changes in prop::collection::vec((0..4_usize, 0..24_usize, 0..9_u64), 0..16),
            width in 1..24_usize,
            range in (0..24_usize, 0..24_usize),
        ) {
            let range = range.0.min(width)..range.1.min(width);
            let mut sums: Vec<(Vec<u64>, u64)> =
                rows.into_iter().map(|(row, asked)| (row[..width].to_vec(), asked)).collect();
            let mut maxima: Vec<Maxima> = sums.iter().map(|(row, _)| Maxima::new(row)).collect();
            for (row, at, sum) in changes {
                let Some((sums, _)) = sums.get_mut(row).filter(|_| at < width) else { continue };
                maxima[row].change(at, sums[at], sum);
                sums[at] = sum;
                prop_assert_eq!(&maxima[row], &Maxima::new(sums));
            }
            let asked: Vec<Asked<'_>> =
                maxima.iter().zip(&sums).map(|(row, (_, asked))| (row, *asked)).collect();
            let holds = |at: &usize| sums.iter().all(|(row, asked)| row[*at] >= *asked);
            prop_assert_eq!(holding(&asked, &range), range.clone().filter(holds).collect::<Vec<_>>());
            let sum = |at: usize| sums.iter().map(|(row, asked)| row[at].min(*asked)).sum::<u64>();
            let sums = range.clone().map(|at| (at, sum(at)));
            let first = sums.reduce(|best, other| if other.1 > best.1 { other } else { best });
            prop_assert_eq!(best(&asked, &range), first);
        }
    }
}
