//! Amounts of all resource kinds, and caps on them.

use std::fmt;

use crate::resource::{Demand, GPU_UNIT, GpuRequest, ResourceKind};

/// The place of a resource kind in [`Amounts`]: cpu, memory, GPUs, then the custom kinds in the order in
/// which they became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dim(pub usize);

impl Dim {
    /// Cores.
    pub const CPU: Self = Self(0);
    /// MiB.
    pub const MEMORY: Self = Self(1);
    /// GPU devices.
    pub const GPU: Self = Self(2);

    /// Returns the place of a kind.
    #[must_use]
    pub fn of(kind: ResourceKind) -> Self {
        match kind {
            ResourceKind::Cpu => Self::CPU,
            ResourceKind::Memory => Self::MEMORY,
            ResourceKind::Gpu => Self::GPU,
            ResourceKind::Custom(id) => Self(3 + id.index()),
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::CPU => f.write_str("cpu"),
            Self::MEMORY => f.write_str("memory"),
            Self::GPU => f.write_str("gpu"),
            Self(place) => write!(f, "resource {}", place - 3),
        }
    }
}

/// Amounts of all resource kinds in 1/10,000 of their units. A kind that is not there counts as zero.
#[derive(Clone, Debug, Default)]
pub struct Amounts(Vec<i64>);

impl Amounts {
    /// Returns nothing of any kind.
    #[must_use]
    pub const fn zero() -> Self {
        Self(Vec::new())
    }

    /// Returns what a demand takes.
    #[must_use]
    pub fn of(demand: &Demand) -> Self {
        let gpu = match demand.gpu {
            GpuRequest::None => 0,
            GpuRequest::Fraction(part) => i64::from(part),
            GpuRequest::Whole(devices) => i64::from(devices) * i64::from(GPU_UNIT),
        };
        let mut amounts = Self(vec![demand.cpu.units(), demand.memory.units(), gpu]);
        for &(id, amount) in demand.custom() {
            amounts.set(Dim::of(ResourceKind::Custom(id)), amount.units());
        }
        amounts
    }

    /// Returns the amount of a kind.
    #[inline]
    #[must_use]
    pub fn get(&self, dim: Dim) -> i64 {
        self.0.get(dim.0).copied().unwrap_or(0)
    }

    /// Replaces the amount of a kind.
    ///
    /// # Panics
    /// If the amount is negative.
    pub fn set(&mut self, dim: Dim, amount: i64) {
        assert!(amount >= 0, "an amount of {dim} is negative");
        if self.0.len() <= dim.0 {
            self.0.resize(dim.0 + 1, 0);
        }
        self.0[dim.0] = amount;
    }

    /// Returns the kinds of which there is something, each with its amount.
    pub fn iter(&self) -> impl Iterator<Item = (Dim, i64)> + '_ {
        self.0
            .iter()
            .enumerate()
            .filter(|&(_, &amount)| amount != 0)
            .map(|(place, &amount)| (Dim(place), amount))
    }

    /// Returns how many places of kinds there are. Further kinds are zero.
    #[must_use]
    pub fn kinds(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is nothing of any kind.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|&amount| amount == 0)
    }

    /// Adds `other`. A sum beyond the largest number stays there.
    pub fn add(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, &theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = mine.saturating_add(theirs);
        }
    }

    /// Subtracts `other`.
    ///
    /// # Panics
    /// If there is less of a kind than is subtracted.
    pub fn subtract(&mut self, other: &Self) {
        for (place, &theirs) in other.0.iter().enumerate() {
            if theirs == 0 {
                continue;
            }
            let mine = self.get(Dim(place));
            assert!(mine >= theirs, "less of {} is there than is subtracted", Dim(place));
            self.0[place] = mine - theirs;
        }
    }

    /// Returns the sum.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        sum.add(other);
        sum
    }

    /// Returns the difference. A kind of which less is there than is subtracted counts as zero.
    #[must_use]
    pub fn minus_or_zero(&self, other: &Self) -> Self {
        let less = |(place, &mine): (usize, &i64)| (mine - other.get(Dim(place))).max(0);
        Self(self.0.iter().enumerate().map(less).collect())
    }

    /// Returns the smaller amount of each kind.
    #[must_use]
    pub fn min(&self, other: &Self) -> Self {
        Self(self.0.iter().enumerate().map(|(place, &mine)| mine.min(other.get(Dim(place)))).collect())
    }

    /// Returns the larger amount of each kind.
    #[must_use]
    pub fn max(&self, other: &Self) -> Self {
        let kinds = self.0.len().max(other.0.len());
        Self((0..kinds).map(|place| self.get(Dim(place)).max(other.get(Dim(place)))).collect())
    }

    /// Returns whether there is at most as much of each kind as in `other`.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.iter().all(|(dim, amount)| amount <= other.get(dim))
    }

    /// Returns whether there is at most as much as in `other` of each kind of which `asked` has something.
    #[must_use]
    pub fn is_within_for(&self, other: &Self, asked: &Self) -> bool {
        asked.iter().all(|(dim, _)| self.get(dim) <= other.get(dim))
    }
}

impl PartialEq for Amounts {
    fn eq(&self, other: &Self) -> bool {
        (0..self.0.len().max(other.0.len())).all(|place| self.get(Dim(place)) == other.get(Dim(place)))
    }
}

impl Eq for Amounts {}

impl FromIterator<(Dim, i64)> for Amounts {
    fn from_iter<I: IntoIterator<Item = (Dim, i64)>>(amounts: I) -> Self {
        let mut all = Self::zero();
        for (dim, amount) in amounts {
            all.set(dim, amount);
        }
        all
    }
}

/// Caps on resource kinds. A kind that is not there has no cap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caps(Vec<Option<i64>>);

impl Caps {
    /// Returns no caps.
    #[must_use]
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// Returns the cap on a kind. `None`: there is none.
    #[inline]
    #[must_use]
    pub fn get(&self, dim: Dim) -> Option<i64> {
        self.0.get(dim.0).copied().flatten()
    }

    /// Caps a kind.
    ///
    /// # Panics
    /// If the cap is negative.
    pub fn set(&mut self, dim: Dim, cap: i64) {
        assert!(cap >= 0, "a cap on {dim} is negative");
        if self.0.len() <= dim.0 {
            self.0.resize(dim.0 + 1, None);
        }
        self.0[dim.0] = Some(cap);
    }

    /// Returns the capped kinds, each with its cap.
    pub fn iter(&self) -> impl Iterator<Item = (Dim, i64)> + '_ {
        self.0.iter().enumerate().filter_map(|(place, cap)| Some((Dim(place), (*cap)?)))
    }

    /// Returns the stricter cap on each kind.
    #[must_use]
    pub fn stricter(&self, other: &Self) -> Self {
        let places = self.0.len().max(other.0.len());
        let stricter = |place| match (self.get(Dim(place)), other.get(Dim(place))) {
            (Some(mine), Some(theirs)) => Some(mine.min(theirs)),
            (mine, theirs) => mine.or(theirs),
        };
        Self((0..places).map(stricter).collect())
    }

    /// Returns `amounts` where no kind exceeds its cap.
    #[must_use]
    pub fn cut(&self, amounts: &Amounts) -> Amounts {
        amounts
            .iter()
            .map(|(dim, amount)| (dim, self.get(dim).map_or(amount, |cap| amount.min(cap))))
            .collect()
    }

    /// Returns the first kind of which `asked` has something and whose cap `used` and `asked` together exceed.
    #[must_use]
    pub fn exceeded(&self, used: &Amounts, asked: &Amounts) -> Option<Dim> {
        let exceeds = |&(dim, asked): &(Dim, i64)| {
            self.get(dim).is_some_and(|cap| used.get(dim).saturating_add(asked) > cap)
        };
        asked.iter().find(exceeds).map(|(dim, _)| dim)
    }
}

impl FromIterator<(Dim, i64)> for Caps {
    fn from_iter<I: IntoIterator<Item = (Dim, i64)>>(caps: I) -> Self {
        let mut all = Self::none();
        for (dim, cap) in caps {
            all.set(dim, cap);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ResourceId;
    use crate::resource::Amount;

    fn amounts(of: &[(usize, i64)]) -> Amounts {
        of.iter().map(|&(place, amount)| (Dim(place), amount)).collect()
    }

    #[test]
    fn a_demand_is_counted_by_kind() {
        let custom = Demand::canonical_custom(vec![(ResourceId(2), Amount::whole(5))]).unwrap();
        let demand = Demand { cpu: Amount::whole(1), gpu: GpuRequest::Whole(2), custom, ..Demand::default() };
        let counted = Amounts::of(&demand);
        assert_eq!(counted, amounts(&[(0, 10_000), (2, 20_000), (5, 50_000)]));
        assert_eq!(Dim(5).to_string(), "resource 2");
        assert_eq!(
            Amounts::of(&Demand { gpu: GpuRequest::Fraction(7), ..Demand::default() }).get(Dim::GPU),
            7
        );
    }

    #[test]
    fn kinds_that_are_not_there_are_zero() {
        let some = amounts(&[(0, 3), (4, 1)]);
        let more = amounts(&[(0, 5)]);
        assert_eq!(some.plus(&more), amounts(&[(0, 8), (4, 1)]));
        assert_eq!(more.minus_or_zero(&some), amounts(&[(0, 2)]));
        assert_eq!((some.min(&more), some.max(&more)), (amounts(&[(0, 3)]), amounts(&[(0, 5), (4, 1)])));
        assert!(!some.is_within(&more), "of the last kind there is more");
        assert!(some.is_within_for(&more, &amounts(&[(0, 1)])));
        assert_eq!(amounts(&[(0, 0)]), Amounts::zero());
    }

    #[test]
    #[should_panic(expected = "less of memory")]
    fn no_more_is_subtracted_than_is_there() {
        amounts(&[(1, 2)]).subtract(&amounts(&[(1, 3)]));
    }

    #[test]
    fn a_cap_binds_its_kind_alone() {
        let caps: Caps = [(Dim::CPU, 4), (Dim(4), 0)].into_iter().collect();
        assert_eq!(caps.exceeded(&amounts(&[(0, 3)]), &amounts(&[(0, 1), (1, 9)])), None);
        assert_eq!(caps.exceeded(&amounts(&[(0, 3)]), &amounts(&[(0, 2)])), Some(Dim::CPU));
        assert_eq!(caps.exceeded(&amounts(&[(0, 9)]), &amounts(&[(1, 2)])), None, "no more of cpu is asked");
        assert_eq!(caps.exceeded(&Amounts::zero(), &amounts(&[(4, 1)])), Some(Dim(4)));
        assert_eq!(caps.cut(&amounts(&[(0, 9), (1, 9)])), amounts(&[(0, 4), (1, 9)]));
        let other: Caps = [(Dim::CPU, 2), (Dim::MEMORY, 7)].into_iter().collect();
        assert_eq!(caps.stricter(&other).iter().collect::<Vec<_>>(), [(Dim(0), 2), (Dim(1), 7), (Dim(4), 0)]);
    }
}
