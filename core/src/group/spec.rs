//! What is asked of a placement group.

use std::sync::Arc;

use crate::limits::GROUP_BUNDLES_MAX;
use crate::request::PlacementRequest;
use crate::statement::ConflictDetection;
use crate::time::Time;

/// How the bundles of a group stand to each other (Ray's placement strategies).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// On as few nodes as can be.
    #[default]
    Pack,
    /// On as many nodes as can be.
    Spread,
    /// All on one node.
    StrictPack,
    /// Each on a node of its own.
    StrictSpread,
}

impl Strategy {
    /// All of them, with their names.
    pub const NAMES: [(Self, &'static str); 4] = [
        (Self::Pack, "pack"),
        (Self::Spread, "spread"),
        (Self::StrictPack, "strict-pack"),
        (Self::StrictSpread, "strict-spread"),
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(strategy, _)| *strategy == self).expect("every strategy has a name").1
    }
}

/// How the bundles stand over the values of a label: zones, racks, hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Spreading {
    /// All on nodes with one value of the label.
    Pack {
        /// Or else nowhere; otherwise where that cannot be, anywhere.
        strict: bool,
    },
    /// The numbers of bundles on any two values of the label differ by this at most. Counted are the
    /// values of nodes that take new work (Kubernetes' `topologySpreadConstraints`). A node without the
    /// label is no place.
    Spread {
        /// At least 1.
        max_skew: u32,
    },
}

/// A rule over the values of a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopologyRule {
    /// The label's key.
    pub key: Arc<str>,
    /// What is asked.
    pub spreading: Spreading,
}

/// A group of bundles that is placed as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// What each bundle takes, and where it may stand. Requests of one group are often the same, and shared.
    pub bundles: Vec<Arc<PlacementRequest>>,
    /// How they stand to each other.
    pub strategy: Strategy,
    /// Over the values of a label.
    pub topology: Option<TopologyRule>,
    /// At least so many are placed, or none (a gang's minimum): `1..=bundles`. Bundles beyond that are placed
    /// as far as they fit, and later when they do.
    pub min_members: u32,
    /// Where it does not fit now: waits so long. None: it is refused.
    pub wait_until: Option<Time>,
    /// Of waiting groups those of higher priority are tried first.
    pub priority: i32,
    /// What counts as a conflict when it is committed.
    pub conflict_detection: ConflictDetection,
}

/// A group that cannot be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupSpecError {
    /// No bundles, or too many.
    #[error("{0} bundles: give 1 to {GROUP_BUNDLES_MAX}")]
    Bundles(usize),
    /// A minimum that is none.
    #[error("at least {min_members} of {bundles} bundles: give 1 to {bundles}")]
    MinMembers {
        /// Given.
        min_members: u32,
        /// How many there are.
        bundles: usize,
    },
    /// A skew of nothing.
    #[error("a skew of at most 0 allows nothing unless all are equal: give at least 1")]
    Skew,
    /// On one node, and over the values of a label.
    #[error(
        "bundles that all go on one node cannot be spread over a label: take another strategy, or no spreading"
    )]
    StrictPackSpread,
}

impl GroupSpec {
    /// A group of `bundles` that is refused where it does not fit.
    #[must_use]
    pub fn new(bundles: Vec<Arc<PlacementRequest>>, strategy: Strategy) -> Self {
        let min_members = u32::try_from(bundles.len()).unwrap_or(u32::MAX);
        let topology = None;
        let wait_until = None;
        let priority = 0;
        let conflict_detection = ConflictDetection::Fine;
        Self { bundles, strategy, topology, min_members, wait_until, priority, conflict_detection }
    }

    /// Whether it can be asked for.
    ///
    /// # Errors
    /// What is out of range.
    pub fn check(&self) -> Result<(), GroupSpecError> {
        let bundles = self.bundles.len();
        if bundles == 0 || bundles > GROUP_BUNDLES_MAX {
            return Err(GroupSpecError::Bundles(bundles));
        }
        if self.min_members == 0 || self.min_members as usize > bundles {
            return Err(GroupSpecError::MinMembers { min_members: self.min_members, bundles });
        }
        match self.topology {
            Some(TopologyRule { spreading: Spreading::Spread { max_skew: 0 }, .. }) => {
                Err(GroupSpecError::Skew)
            }
            Some(TopologyRule { spreading: Spreading::Spread { .. }, .. })
                if self.strategy == Strategy::StrictPack =>
            {
                Err(GroupSpecError::StrictPackSpread)
            }
            _ => Ok(()),
        }
    }
}
