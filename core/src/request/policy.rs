//! The selection policies.

use std::fmt;
use std::str::FromStr;

/// Which of the fitting nodes a request gets. Ties go to the node registered first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The node with the largest coordinate, dimension by dimension: spreads load.
    LeastFit,
    /// The node with the smallest fitting coordinate: packs.
    BestFit,
    /// The node registered first.
    FirstFit,
    /// As FirstFit, but from the node where the previous search stopped, around the end.
    NextFit,
    /// Any, with equal probability.
    Random,
    /// The node and the GPU whose fragmentation grows least, by the typical requests (FGD; see
    /// [`fragmentation`](crate::fragmentation)).
    Fgd,
    /// Ray's default: nodes by utilisation, where less than a threshold counts as none, and one
    /// drawn from the first of them.
    Hybrid,
    /// Ray's spread, round robin: as NextFit, but from the node after the one where the previous
    /// search stopped.
    Spread,
    /// As FGD, but GPUs that a node's cpu no longer suffices for count as lost too, and growth is
    /// compared exactly.
    #[default]
    LeastStranded,
}

impl Policy {
    /// The patent's: those that a linear scan can follow by fit and order alone.
    pub const PATENT: [Self; 5] =
        [Self::LeastFit, Self::BestFit, Self::FirstFit, Self::NextFit, Self::Random];

    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::LeastFit,
        Self::BestFit,
        Self::FirstFit,
        Self::NextFit,
        Self::Random,
        Self::Fgd,
        Self::Hybrid,
        Self::Spread,
        Self::LeastStranded,
    ];

    /// Whether the choice rests on typical request shapes.
    #[inline]
    #[must_use]
    pub const fn is_fragmentation_aware(self) -> bool {
        matches!(self, Self::Fgd | Self::LeastStranded)
    }

    /// Its name, as configuration and command lines spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LeastFit => "least-fit",
            Self::BestFit => "best-fit",
            Self::FirstFit => "first-fit",
            Self::NextFit => "next-fit",
            Self::Random => "random",
            Self::Fgd => "fgd",
            Self::LeastStranded => "least-stranded",
            Self::Hybrid => "hybrid",
            Self::Spread => "spread",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Text that names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a policy: give one of least-fit, best-fit, first-fit, next-fit, random, fgd, hybrid, spread, least-stranded"
)]
pub struct ParsePolicyError(pub String);

impl FromStr for Policy {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| ParsePolicyError(text.to_owned()))
    }
}
