//! Fair shares and the order of queues and jobs as in YARN's FairScheduler (Hadoop 3, `ComputeFairShares` and
//! `FairSharePolicy`), computed exactly.

use std::cmp::{Ordering, Reverse};

use super::share::dominant_kind;
use super::{Amounts, Dim, Share};
use crate::time::Time;

/// What a queue or job may get of one resource kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FairShare {
    /// Its weight. With weight 0 it gets its least share.
    pub weight: u32,
    /// The least that it gets, in 1/10,000 of the unit.
    pub least: i64,
    /// The most that it gets.
    pub most: i64,
}

impl FairShare {
    /// Returns the share at a ratio of `part / whole` of resources to weight.
    fn at(&self, part: i128, whole: i128) -> i64 {
        let share = i64::try_from(i128::from(self.weight) * part / whole).unwrap_or(i64::MAX);
        self.bounded(share)
    }

    /// Returns `share` within the bounds. The most counts more than the least.
    fn bounded(&self, share: i64) -> i64 {
        share.max(self.least).min(self.most)
    }
}

/// Divides `total` so that each share is its weight times one common ratio, within its bounds. If the least shares
/// exceed the total, everyone gets its least share.
#[must_use]
pub fn fair_shares(total: i64, of: &[FairShare]) -> Vec<i64> {
    let at = |(part, whole): (i64, u32)| -> Vec<i64> {
        of.iter().map(|one| one.at(i128::from(part), i128::from(whole))).collect()
    };
    let sum = |shares: &[i64]| shares.iter().map(|&share| i128::from(share)).sum::<i128>();
    // Between two neighbouring ratios, the same shares are within their bounds: the sum is linear there.
    let weighted = of.iter().filter(|one| one.weight > 0);
    let mut bends: Vec<(i64, u32)> =
        weighted.flat_map(|one| [(one.least, one.weight), (one.most, one.weight)]).collect();
    bends.sort_by(|a, b| compare_ratios(*a, *b));
    let first = bends.partition_point(|&bend| sum(&at(bend)) < i128::from(total));
    let lower = first.checked_sub(1).map_or((0, 1), |before| bends[before]);
    let least = at(lower);
    if sum(&least) >= i128::from(total) || first == bends.len() {
        return least;
    }
    let upper = at(bends[first]);
    let grows: Vec<bool> = least.iter().zip(&upper).map(|(low, high)| high > low).collect();
    let settled: i128 =
        least.iter().zip(&grows).filter(|&(_, grows)| !grows).map(|(&share, _)| i128::from(share)).sum();
    let weights: i128 =
        of.iter().zip(&grows).filter(|&(_, grows)| *grows).map(|(one, _)| i128::from(one.weight)).sum();
    let left = i128::from(total) - settled;
    let shares = of.iter().zip(least.iter().zip(&grows));
    shares.map(|(one, (&share, &grows))| if grows { one.at(left, weights) } else { share }).collect()
}

fn compare_ratios(a: (i64, u32), b: (i64, u32)) -> Ordering {
    (i128::from(a.0) * i128::from(b.1)).cmp(&(i128::from(b.0) * i128::from(a.1)))
}

/// What YARN's order compares of a queue or job.
#[derive(Clone, Debug)]
pub struct Schedulable<'a> {
    /// What it uses.
    pub usage: &'a Amounts,
    /// What it uses and asks for in addition.
    pub demand: &'a Amounts,
    /// The least share that it was promised.
    pub min_share: &'a Amounts,
    /// Its weight.
    pub weight: u32,
    /// When it was submitted.
    pub start: Time,
    /// Its name.
    pub name: &'a str,
}

impl Schedulable<'_> {
    /// Returns how much of its least share it uses, if it is below that share and asks for more. A least share counts
    /// only as far as it is asked for.
    fn need(&self, dim: Dim) -> Option<Share> {
        let least = self.min_share.get(dim).min(self.demand.get(dim));
        let usage = self.usage.get(dim);
        (usage < least).then(|| Share::of(usage, least))
    }

    /// Returns the same over all kinds: that of its dominant kind, or the smallest one if it has enough of that.
    fn need_of_any(&self, total: &Amounts) -> Option<Share> {
        let of_dominant = dominant_kind(self.usage, total).and_then(|dim| self.need(dim));
        of_dominant.or_else(|| self.min_share.iter().filter_map(|(dim, _)| self.need(dim)).min())
    }

    /// Returns its shares of all kinds, the largest first.
    fn shares(&self, total: &Amounts) -> Vec<Share> {
        let shares = self.usage.iter().filter(|&(dim, _)| total.get(dim) > 0);
        let mut shares: Vec<Share> = shares.map(|(dim, used)| Share::of(used, total.get(dim))).collect();
        shares.sort_unstable_by(|a, b| b.cmp(a));
        shares
    }
}

/// Compares the largest shares for their weights, then the next ones.
fn compare_shares(mine: &[Share], weight: u32, theirs: &[Share], others: u32) -> Ordering {
    let kinds = mine.len().max(theirs.len());
    let of = |shares: &[Share], at: usize| shares.get(at).copied().unwrap_or(Share::ZERO);
    let orders = (0..kinds).map(|at| of(mine, at).cmp_weighted(weight, &of(theirs, at), others));
    orders.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// Compares by fair share: who is first gets resources first.
///
/// 1. Who asks for nothing is last.
/// 2. Who is below its least share is first. Of two, the one that has less of it.
/// 3. Then less usage for its weight.
/// 4. Then who was submitted first, then the name.
///
/// Usage is compared by one kind if `dim` names it, as YARN's policy `fair` does by memory. Otherwise it is
/// compared by the dominant share in `total`, then by the next largest shares, as its policy `drf` does.
#[must_use]
pub fn by_fair_share(
    a: &Schedulable<'_>,
    b: &Schedulable<'_>,
    dim: Option<Dim>,
    total: &Amounts,
) -> Ordering {
    let asks = |of: &Schedulable<'_>| match dim {
        Some(dim) => of.demand.get(dim) > 0,
        None => !of.demand.is_zero(),
    };
    let need = |of: &Schedulable<'_>| match dim {
        Some(dim) => of.need(dim),
        None => of.need_of_any(total),
    };
    let usage = |of: &Schedulable<'_>| match dim {
        Some(dim) => vec![Share::of(of.usage.get(dim), total.get(dim).max(1))],
        None => of.shares(total),
    };
    let by_need = match (need(a), need(b)) {
        (Some(mine), Some(theirs)) => mine.cmp(&theirs),
        (mine, theirs) => Reverse(mine.is_some()).cmp(&Reverse(theirs.is_some())),
    };
    let by_weight = || match (a.weight, b.weight) {
        (0, 0) => compare_shares(&usage(a), 1, &usage(b), 1),
        (0, _) => Ordering::Greater,
        (_, 0) => Ordering::Less,
        (mine, theirs) => compare_shares(&usage(a), mine, &usage(b), theirs),
    };
    Reverse(asks(a))
        .cmp(&Reverse(asks(b)))
        .then(by_need)
        .then_with(by_weight)
        .then(a.start.cmp(&b.start))
        .then_with(|| a.name.cmp(b.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(weight: u32, least: i64, most: i64) -> FairShare {
        FairShare { weight, least, most }
    }

    const FREE: i64 = i64::MAX;

    #[test]
    fn equal_weights_share_alike_and_weights_in_proportion() {
        assert_eq!(fair_shares(40, &[one(1, 0, FREE); 4]), [10; 4]);
        let weighted = [one(2, 0, FREE), one(1, 0, FREE), one(1, 0, FREE), one(4, 0, FREE)];
        assert_eq!(fair_shares(48, &weighted), [12, 6, 6, 24]);
    }

    #[test]
    fn bounds_hold_and_the_rest_goes_to_the_others() {
        let most = [one(1, 0, FREE), one(1, 0, FREE), one(1, 0, 11), one(1, 0, 3)];
        assert_eq!(fair_shares(40, &most), [13, 13, 11, 3]);
        let least = [one(1, 20, FREE), one(1, 18, FREE), one(1, 0, FREE), one(1, 2, FREE)];
        assert_eq!(fair_shares(40, &least), [20, 18, 0, 2]);
        assert_eq!(fair_shares(60, &least), [20, 18, 11, 11]);
        assert_eq!(fair_shares(10, &least), [20, 18, 0, 2], "the least shares are promised");
        assert_eq!(fair_shares(40, &[one(1, 0, 3), one(5, 0, 7)]), [3, 7], "nobody may take the rest");
        assert_eq!(fair_shares(40, &[one(0, 5, FREE), one(1, 0, FREE)]), [5, 35]);
        assert_eq!(fair_shares(40, &[]), Vec::<i64>::new());
    }

    fn amounts(memory: i64) -> Amounts {
        [(Dim::MEMORY, memory)].into_iter().collect()
    }

    #[test]
    fn the_order_is_that_of_yarn() {
        let total = amounts(100);
        let of = |usage: i64, demand: i64, least: i64, weight| {
            (amounts(usage), amounts(demand), amounts(least), weight)
        };
        let compare = |a: &(Amounts, Amounts, Amounts, u32), b: &(Amounts, Amounts, Amounts, u32)| {
            let mine = Schedulable {
                usage: &a.0,
                demand: &a.1,
                min_share: &a.2,
                weight: a.3,
                start: Time(0),
                name: "a",
            };
            let other = Schedulable {
                usage: &b.0,
                demand: &b.1,
                min_share: &b.2,
                weight: b.3,
                start: Time(0),
                name: "b",
            };
            (
                by_fair_share(&mine, &other, Some(Dim::MEMORY), &total),
                by_fair_share(&mine, &other, None, &total),
            )
        };
        let both = |order| (order, order);
        let needy = of(2, 50, 10, 1);
        let needier = of(1, 50, 10, 1);
        let sated = of(0, 50, 0, 1);
        assert_eq!(compare(&needier, &needy), both(Ordering::Less));
        assert_eq!(compare(&needy, &sated), both(Ordering::Less), "who is below its least share comes first");
        assert_eq!(
            compare(&of(0, 0, 10, 9), &of(90, 90, 0, 1)),
            both(Ordering::Greater),
            "it asks for nothing"
        );
        assert_eq!(compare(&of(30, 50, 0, 3), &of(20, 50, 0, 1)), both(Ordering::Less), "by weight");
        assert_eq!(compare(&of(0, 50, 0, 0), &of(20, 50, 0, 1)), both(Ordering::Greater), "it has no weight");
        assert_eq!(compare(&sated, &sated), both(Ordering::Less), "by name");
    }

    proptest! {
        #[test]
        fn shares_are_within_bounds_and_at_one_ratio(
            of in prop::collection::vec((0..9_u32, 0..400_i64, 0..900_i64), 1..8), total in 0..4_000_i64,
        ) {
            let of: Vec<FairShare> = of.iter().map(|&(weight, least, more)| one(weight, least, least + more)).collect();
            let shares = fair_shares(total, &of);
            let bounded = of.iter().zip(&shares).all(|(one, share)| (one.least..=one.most).contains(share));
            prop_assert!(bounded, "{shares:?}");
            let sum: i64 = shares.iter().sum();
            let least: i64 = of.iter().map(|one| one.least).sum();
            prop_assert!(sum <= total.max(least));
            // Who has less for its weight than another, by more than rounding, has its most; who has more has its least.
            for (a, mine) in of.iter().zip(&shares).filter(|(one, _)| one.weight > 0) {
                for (b, theirs) in of.iter().zip(&shares).filter(|(one, _)| one.weight > 0) {
                    let less = (mine + 1) * i64::from(b.weight) < theirs * i64::from(a.weight);
                    prop_assert!(!less || *mine == a.most || *theirs == b.least, "{shares:?}");
                }
            }
            let open = of.iter().zip(&shares).any(|(one, share)| one.weight > 0 && *share < one.most);
            prop_assert!(!open || sum + of.len() as i64 >= total, "{sum} of {total}");
        }
    }
}
