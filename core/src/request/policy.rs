//! The selection policies.

use std::fmt;
use std::str::FromStr;

/// The rule that chooses among fitting nodes. Ties go to the node that was registered first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The node with the largest coordinate, dimension by dimension: spreads load.
    LeastFit,
    /// The node with the smallest fitting coordinate: packs.
    BestFit,
    /// The node registered first.
    FirstFit,
    /// Like FirstFit, but starts at the node where the previous search stopped, and wraps around.
    NextFit,
    /// Any fitting node, with equal probability.
    Random,
    /// The node and GPU whose fragmentation grows least, by the typical requests (FGD; see
    /// [`fragmentation`](crate::fragmentation)).
    Fgd,
    /// Ray's default. Orders nodes by utilization, where utilization below a threshold counts as zero. Draws
    /// one of the first nodes at random.
    Hybrid,
    /// Ray's spread strategy, round robin. Like NextFit, but starts after the node where the previous search
    /// stopped.
    Spread,
    /// The default. Like FGD, but a GPU also counts as lost if its node has too little cpu left for it, and growth
    /// is compared exactly.
    #[default]
    LeastStranded,
}

impl Policy {
    /// The policies of the patent. A linear scan can reproduce them from fit and order alone.
    pub const PATENT: [Self; 5] =
        [Self::LeastFit, Self::BestFit, Self::FirstFit, Self::NextFit, Self::Random];

    /// All policies.
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

    /// Returns whether the policy uses typical request shapes.
    #[inline]
    #[must_use]
    pub const fn is_fragmentation_aware(self) -> bool {
        matches!(self, Self::Fgd | Self::LeastStranded)
    }

    /// Returns the name that configuration files and command lines use.
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

/// An error for text that names no policy.
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
