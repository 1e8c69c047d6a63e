//! The spec of a placement group.

use std::sync::Arc;

use crate::jobs::Binding;
use crate::limits::GROUP_BUNDLES_MAX;
use crate::request::PlacementRequest;
use crate::statement::ConflictDetection;
use crate::time::Time;

/// The strategy for placing the bundles of a group on nodes (Ray's placement strategies).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Uses as few nodes as possible.
    #[default]
    Pack,
    /// Uses as many nodes as possible.
    Spread,
    /// Places all bundles on one node.
    StrictPack,
    /// Places each bundle on a node of its own.
    StrictSpread,
}

impl Strategy {
    /// All strategies with their names.
    pub const NAMES: [(Self, &'static str); 4] = [
        (Self::Pack, "pack"),
        (Self::Spread, "spread"),
        (Self::StrictPack, "strict-pack"),
        (Self::StrictSpread, "strict-spread"),
    ];

    /// Returns the name of the strategy.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(strategy, _)| *strategy == self).expect("every strategy has a name").1
    }
}

/// The distribution of bundles over the values of a label such as zone, rack or host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Spreading {
    /// Places all bundles on nodes with the same value of the label.
    Pack {
        /// If set, the group is placed this way or not at all. Otherwise, it may be placed anywhere when this
        /// is not possible.
        strict: bool,
    },
    /// Limits the difference between the numbers of bundles on any two values of the label. Only values of
    /// nodes that take new work count (Kubernetes' `topologySpreadConstraints`). A node without the label
    /// gets no bundles.
    Spread {
        /// The largest allowed difference, at least 1.
        max_skew: u32,
    },
}

/// A rule over the values of a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopologyRule {
    /// The key of the label.
    pub key: Arc<str>,
    /// The distribution that the rule asks for.
    pub spreading: Spreading,
}

/// The spec of a group of bundles that are placed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// The request of each bundle. Bundles of one group often share the same request.
    pub bundles: Vec<Arc<PlacementRequest>>,
    /// The strategy for placing the bundles on nodes.
    pub strategy: Strategy,
    /// An optional rule over the values of a label.
    pub topology: Option<TopologyRule>,
    /// The minimum of a gang, `1..=bundles`: at least this number of bundles is placed, or none. Bundles
    /// beyond the minimum are placed if they fit, or later when they do.
    pub min_members: u32,
    /// How long the group waits if it does not fit now. `None`: it is refused.
    pub wait_until: Option<Time>,
    /// The priority of the group. Waiting groups of higher priority are tried first.
    pub priority: i32,
    /// What counts as a conflict when the group is committed.
    pub conflict_detection: ConflictDetection,
    /// The queue that is charged for its bundles. The keeper of jobs manages the group then.
    pub queue: Option<Arc<str>>,
    /// The queue of its tenant, or the default queue, if the settings name one when it is asked for. A group that is made has
    /// none.
    pub bound: Option<Arc<Binding>>,
}

/// The reason why a group spec is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupSpecError {
    /// There are no bundles, or too many.
    #[error("{0} bundles: give 1 to {GROUP_BUNDLES_MAX}")]
    Bundles(usize),
    /// The minimum is 0 or exceeds the number of bundles.
    #[error("at least {min_members} of {bundles} bundles: give 1 to {bundles}")]
    MinMembers {
        /// The given minimum.
        min_members: u32,
        /// The number of bundles.
        bundles: usize,
    },
    /// The maximum skew is 0.
    #[error("a skew of at most 0 allows nothing unless all are equal: give at least 1")]
    Skew,
    /// The strategy puts all bundles on one node, but the rule spreads them over a label.
    #[error(
        "bundles that all go on one node cannot be spread over a label: take another strategy, or no spreading"
    )]
    StrictPackSpread,
}

impl GroupSpec {
    /// Creates a spec for `bundles` that does not wait: the group is refused if it does not fit.
    #[must_use]
    pub fn new(bundles: Vec<Arc<PlacementRequest>>, strategy: Strategy) -> Self {
        let min_members = u32::try_from(bundles.len()).unwrap_or(u32::MAX);
        let topology = None;
        let wait_until = None;
        let priority = 0;
        let conflict_detection = ConflictDetection::Fine;
        let queue = None;
        let bound = None;
        Self {
            bundles,
            strategy,
            topology,
            min_members,
            wait_until,
            priority,
            conflict_detection,
            queue,
            bound,
        }
    }

    /// Checks the spec.
    ///
    /// # Errors
    /// Returns the first field that is out of range.
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
