//! What was held in the past, with a half-life: an average in which each moment counts half as much as one that is a
//! half-life later.
//!
//! The average of a constant amount approaches that amount. It is Slurm's decayed usage (`PriorityDecayHalfLife`) and
//! that of Kueue's admission fair sharing (`usageHalfLifeTime`), without their intervals between two samples.
//!
//! The sums count forwards (Cormode et al., Forward Decay, ICDE 2009): a later moment weighs more, and an earlier one
//! never changes. With the weight `w(t)`, which doubles in each half-life, the weighted sum at `t` of an amount that was
//! `h` since `s` is `h * (w(t) - w(s))`. So a change of an amount by `d` at `s` adds `-d * w(s)` to a sum, and what is held
//! at `t` adds its amount times `w(t)` when it is read. Nothing is rounded on the way: how often a sum is read or changed
//! makes no difference, and a change that is taken back leaves no trace. The average is the weighted sum divided by `w(t)`,
//! rounded to 1/10,000 of a unit.
//!
//! Weights would grow for ever. After each epoch of 16 half-lives, sums are divided by 2^16 and rounded down, which is
//! exact for amounts that are held. Two such divisions are one by their product, so it does not matter when they are made.

use super::{Amounts, Dim};
use crate::time::Time;

/// The half-lives of an epoch.
const EPOCH: u32 = 16;

/// The binary logarithm of the weight at the start of an epoch. At its end, a weight is 2^56, and with an amount below
/// 2^63 a sum is below 2^119.
const START_BITS: u32 = 40;

/// The binary digits of the part of a half-life that count.
const DIGITS: usize = 44;

/// The roots of two: the first one is the square root, and each further one the square root of the one before. With 63
/// binary places.
const ROOTS: [u64; DIGITS] = {
    let mut roots = [0; DIGITS];
    let mut root: u128 = 1 << 64;
    let mut at = 0;
    while at < DIGITS {
        root = (root << 63).isqrt();
        roots[at] = root as u64;
        at += 1;
    }
    roots
};

/// The time in which what was held comes to count half as much, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfLife(u64);

/// A moment as a half-life counts it: the epoch, and the weight in it, from 2^40 to below 2^56.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    epoch: u64,
    weight: u64,
}

impl HalfLife {
    /// Returns a half-life. `None`: it would be 0.
    #[must_use]
    pub const fn new(nanos: u64) -> Option<Self> {
        if nanos == 0 { None } else { Some(Self(nanos)) }
    }

    /// Returns it in ns.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Returns a moment.
    #[must_use]
    pub fn moment(self, now: Time) -> Moment {
        let half_life = u128::from(self.0);
        let lives = u128::from(now.0) / half_life;
        let rest = u128::from(now.0) % half_life;
        let digits = (rest << DIGITS) / half_life;
        let mut power: u128 = 1 << 63;
        for (at, &root) in ROOTS.iter().enumerate() {
            if digits >> (DIGITS - 1 - at) & 1 == 1 {
                power = (power * u128::from(root)) >> 63;
            }
        }
        let in_epoch = (lives % u128::from(EPOCH)) as u32;
        let weight = (power >> (63 - START_BITS - in_epoch)) as u64;
        let epoch = (lives / u128::from(EPOCH)) as u64;
        Moment { epoch, weight }
    }
}

/// The weighted sums of what was held, by kind, without what is held still.
#[derive(Clone, Debug, Default)]
pub struct PastSums {
    epoch: u64,
    sums: Vec<i128>,
}

/// Returns a sum after so many epochs.
fn after_epochs(sum: i128, epochs: u64) -> i128 {
    let bits = epochs.saturating_mul(u64::from(EPOCH)).min(127);
    sum >> bits
}

impl PastSums {
    /// Returns sums as they were recorded.
    #[must_use]
    pub fn of(epoch: u64, sums: impl IntoIterator<Item = (Dim, i128)>) -> Self {
        let mut all = Self { epoch, sums: Vec::new() };
        sums.into_iter().for_each(|(dim, sum)| all.add(dim, sum));
        all
    }

    /// Returns the epoch to which the sums belong.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the sum of a kind. It is negative if much of it is held still.
    #[must_use]
    pub fn get(&self, dim: Dim) -> i128 {
        self.sums.get(dim.0).copied().unwrap_or(0)
    }

    /// Returns the number of kinds.
    #[must_use]
    pub fn kinds(&self) -> usize {
        self.sums.len()
    }

    fn add(&mut self, dim: Dim, more: i128) {
        if self.sums.len() <= dim.0 {
            self.sums.resize(dim.0 + 1, 0);
        }
        // Only what was recorded wrongly can be too large.
        self.sums[dim.0] = self.sums[dim.0].saturating_add(more);
    }

    /// Changes what is held at a moment. A moment of an earlier epoch counts to within the rounding of that epoch.
    pub fn change(&mut self, moment: Moment, before: &Amounts, after: &Amounts) {
        self.go_on(moment.epoch);
        let weight = i128::from(moment.weight);
        let weight = after_epochs(weight, self.epoch - moment.epoch);
        for dim in (0..before.kinds().max(after.kinds())).map(Dim) {
            let less = i128::from(before.get(dim)) - i128::from(after.get(dim));
            if less != 0 {
                self.add(dim, less * weight);
            }
        }
    }

    /// Brings the sums to an epoch, unless they are there.
    fn go_on(&mut self, epoch: u64) {
        if epoch > self.epoch {
            self.sums.iter_mut().for_each(|sum| *sum = after_epochs(*sum, epoch - self.epoch));
            self.epoch = epoch;
        }
    }

    /// Returns the weighted sum of a kind at a moment with what is held now. It is at least 0.
    fn weighted(&self, moment: Moment, dim: Dim, held: i64) -> i128 {
        let past = after_epochs(self.get(dim), moment.epoch.saturating_sub(self.epoch));
        past.saturating_add(i128::from(held) * i128::from(moment.weight)).clamp(0, i128::MAX / 2)
    }

    /// Returns the average at a moment, if so much is held now.
    #[must_use]
    pub fn average(&self, moment: Moment, held: &Amounts) -> Amounts {
        let average = |dim: Dim| {
            let weight = i128::from(moment.weight);
            let average = (self.weighted(moment, dim, held.get(dim)) + weight / 2) / weight;
            (dim, i64::try_from(average).unwrap_or(i64::MAX))
        };
        (0..self.sums.len().max(held.kinds())).map(Dim).map(average).collect()
    }

    /// Counts with another half-life from now on. The average stays as it is.
    pub fn change_half_life(&mut self, before: Moment, after: Moment, held: &Amounts) {
        let mut changed = Self { epoch: after.epoch, sums: Vec::new() };
        for dim in (0..self.sums.len().max(held.kinds())).map(Dim) {
            let weighted = self.weighted(before, dim, held.get(dim));
            let [old, new] = [before, after].map(|moment| i128::from(moment.weight));
            // Both factors of a product of three would be too large.
            let whole = (weighted / old).saturating_mul(new);
            let sum = whole.saturating_add(weighted % old * new / old);
            changed.add(dim, sum.saturating_sub(i128::from(held.get(dim)) * new));
        }
        *self = changed;
    }
}

#[cfg(test)]
#[expect(clippy::float_arithmetic, reason = "what is expected is computed in floating point")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: u64 = 3_600_000_000_000;

    fn cpu(amount: i64) -> Amounts {
        [(Dim::CPU, amount)].into_iter().collect()
    }

    /// What was held, as times and amounts, and its average in floating point.
    fn average_of(held: &[(u64, i64)], half_life: u64, now: u64) -> f64 {
        let weight = |time: u64| (-((now - time) as f64) / half_life as f64).exp2();
        let ends = held.iter().skip(1).map(|&(time, _)| time).chain([now]);
        held.iter()
            .zip(ends)
            .map(|(&(start, amount), end)| amount as f64 * (weight(end) - weight(start)))
            .sum()
    }

    fn sums_of(held: &[(u64, i64)], half_life: HalfLife) -> (PastSums, Amounts) {
        let mut sums = PastSums::default();
        let mut before = Amounts::zero();
        for &(time, amount) in held {
            let after = cpu(amount);
            sums.change(half_life.moment(Time(time)), &before, &after);
            before = after;
        }
        (sums, before)
    }

    #[test]
    fn a_weight_doubles_in_a_half_life() {
        let half_life = HalfLife::new(HOUR).unwrap();
        for at in 0..16 {
            assert_eq!(half_life.moment(Time(at * HOUR)), Moment { epoch: 0, weight: 1 << (40 + at) });
        }
        assert_eq!(half_life.moment(Time(16 * HOUR)), Moment { epoch: 1, weight: 1 << 40 });
        let half = half_life.moment(Time(HOUR / 2)).weight as f64 / (1_u64 << 40) as f64;
        assert!((half - std::f64::consts::SQRT_2).abs() < 1e-11, "{half}");
        assert_eq!(HalfLife::new(0), None);
        let longest = HalfLife::new(u64::MAX).unwrap();
        assert_eq!(longest.moment(Time(u64::MAX)).weight, 1 << 41);
        assert_eq!(HalfLife::new(1).unwrap().moment(Time(u64::MAX)).epoch, u64::MAX / 16);
    }

    #[test]
    fn what_was_held_comes_to_count_half_as_much_in_each_half_life() {
        let half_life = HalfLife::new(HOUR).unwrap();
        let (sums, none) = sums_of(&[(0, 80_000), (HOUR, 0)], half_life);
        let at = |hours: u64| sums.average(half_life.moment(Time(hours * HOUR)), &none);
        assert_eq!([1, 2, 3, 16, 18].map(at), [40_000, 20_000, 10_000, 1, 0].map(cpu));
        assert_eq!(at(u64::MAX / HOUR), Amounts::zero());
        let held = cpu(80_000);
        let (sums, _) = sums_of(&[(0, 80_000)], half_life);
        let at = |hours: u64| sums.average(half_life.moment(Time(hours * HOUR)), &held);
        assert_eq!([0, 1, 2, 30, 1000].map(at), [0, 40_000, 60_000, 80_000, 80_000].map(cpu));
    }

    #[test]
    fn another_half_life_keeps_the_average() {
        let [before, after] = [HOUR, 24 * HOUR].map(|nanos| HalfLife::new(nanos).unwrap());
        let (mut sums, held) = sums_of(&[(0, 80_000)], before);
        let now = Time(20 * HOUR + 7);
        let average = sums.average(before.moment(now), &held);
        sums.change_half_life(before.moment(now), after.moment(now), &held);
        assert_eq!(sums.average(after.moment(now), &held), average);
        let later = Time(now.0 + 24 * HOUR);
        sums.change(after.moment(now), &held, &Amounts::zero());
        let half = sums.average(after.moment(later), &Amounts::zero()).get(Dim::CPU);
        assert!((half - average.get(Dim::CPU) / 2).abs() <= 1, "{half} of {average:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// The average is that of a computation in floating point, within what that rounds and one part of 10,000.
        #[test]
        fn the_average_is_right(
            half_life in 1_000_000_u64..100 * HOUR,
            steps in prop::collection::vec((0..50 * HOUR, 0..1_i64 << 40), 1..12),
            wait in 0..50 * HOUR,
        ) {
            let mut time = 0;
            let held: Vec<(u64, i64)> = steps.iter().map(|&(wait, amount)| {
                time += wait;
                (time, amount)
            }).collect();
            let now = time + wait;
            let half = HalfLife::new(half_life).unwrap();
            let (sums, last) = sums_of(&held, half);
            let average = sums.average(half.moment(Time(now)), &last).get(Dim::CPU) as f64;
            let expected = average_of(&held, half_life, now);
            let largest = held.iter().map(|&(_, amount)| amount).max().unwrap() as f64;
            prop_assert!((average - expected).abs() <= 1.5 + largest * 1e-9, "{average}, {expected} expected");
        }

        /// Looks in between, and changes that are taken back, make no difference at all.
        #[test]
        fn it_does_not_matter_how_often_sums_are_changed(
            half_life in 1_000_000_u64..10 * HOUR,
            steps in prop::collection::vec((0..20 * HOUR, 0..1_i64 << 40, any::<bool>()), 1..20),
            wait in 0..50 * HOUR,
        ) {
            let half = HalfLife::new(half_life).unwrap();
            let [mut often, mut seldom] = [PastSums::default(), PastSums::default()];
            let mut held = Amounts::zero();
            let mut time = 0;
            for (wait, amount, is_tried) in steps {
                time += wait;
                let moment = half.moment(Time(time));
                let then = cpu(amount);
                often.change(moment, &held, &then);
                if is_tried {
                    often.change(moment, &then, &held);
                } else {
                    seldom.change(moment, &held, &then);
                    held = then;
                }
            }
            let moment = half.moment(Time(time + wait));
            prop_assert_eq!(often.average(moment, &held), seldom.average(moment, &held));
            often.go_on(moment.epoch);
            seldom.go_on(moment.epoch);
            prop_assert_eq!(often.get(Dim::CPU), seldom.get(Dim::CPU));
        }

        /// A later moment never weighs less.
        #[test]
        fn weights_only_grow(half_life in 1..10 * HOUR, times in prop::collection::vec(0..1_000 * HOUR, 2..20)) {
            let half = HalfLife::new(half_life).unwrap();
            let mut times = times;
            times.extend(times.clone().iter().map(|time| time + 1));
            times.sort_unstable();
            let moments: Vec<(u64, u64)> =
                times.iter().map(|&time| half.moment(Time(time))).map(|of| (of.epoch, of.weight)).collect();
            prop_assert!(moments.is_sorted(), "{moments:?}");
        }
    }
}
