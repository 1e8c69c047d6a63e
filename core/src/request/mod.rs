//! Placement requests, after the edge has validated them.

mod preferences;
pub(crate) use preferences::shunned;
pub use preferences::{Preferences, Rank, RankRules, RankRulesError};
mod lease;
pub use lease::LeaseTerms;
mod placement;
pub use placement::Placement;
mod policy;
pub use policy::{ParsePolicyError, Policy};
mod refusal;
pub use refusal::{Check, Refusal, Shortage};
mod room;
pub(crate) use room::NodeLook;
pub use room::{KindAmounts, Nearest, NodeCounts, NodeRoom, Sample};
mod waiting;
pub use waiting::WaitingPlacements;

use std::sync::Arc;

use crate::ids::{NodeId, OwnerId, TenantId};
use crate::node::Selector;
use crate::resource::Demand;

/// The level of detail of a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Explain {
    /// Counts nodes as far as that is cheap. The reply says how many nodes were counted. If only cpu, memory and
    /// GPUs decide, these are all nodes, except those beyond
    /// [`STEP_NODES_MAX`](crate::limits::STEP_NODES_MAX) that have almost what is asked. Otherwise, they are at
    /// most [`EXPLAIN_NODES_MAX`](crate::limits::EXPLAIN_NODES_MAX) per shard.
    #[default]
    Bounded,
    /// Counts all nodes, page by page. Each node is counted as it is when its page is read. A waiting request
    /// counts one page per shard.
    Full,
}

/// The attribute order in which LeastFit and BestFit compare nodes. It has no effect on other policies, which
/// do not compare coordinates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OrderChoice {
    /// The first configured order.
    #[default]
    Default,
    /// The configured order with this index, from 0.
    Configured(u8),
    /// The first configured order that begins with the request's dominant resource. That is the resource of
    /// which the request takes the largest share of the shard's total. If no order begins with it, the first
    /// configured order.
    Dominant,
}

/// A placement to decide.
///
/// Cloning is cheap because large fields are shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRequest {
    /// The resources that the request takes.
    pub demand: Demand,
    /// The rule that chooses among fitting nodes.
    pub policy: Policy,
    /// The attribute order, for policies that use one.
    pub order: OrderChoice,
    /// Terms that the node's labels must satisfy.
    pub selector: Option<Arc<Selector>>,
    /// The candidates, if the request names any. Sorted, without duplicates.
    pub candidates: Option<Arc<[NodeId]>>,
    /// The level of detail of a refusal.
    pub explain: Explain,
    /// Preferences among fitting nodes. Most requests have none.
    pub preferences: Option<Arc<Preferences>>,
    /// The owner whose reservations the request may use. Nodes reserved for the owner are tried first.
    pub owner: Option<OwnerId>,
    /// The lease of the allocation. `None`: it lasts until it is released.
    pub lease: Option<Arc<LeaseTerms>>,
    /// Who the allocation will belong to.
    pub tenant: TenantId,
}

impl PlacementRequest {
    /// Creates a request without constraints.
    #[must_use]
    pub fn new(demand: Demand, policy: Policy) -> Self {
        let selector = None;
        let candidates = None;
        let preferences = None;
        let owner = None;
        let lease = None;
        let order = OrderChoice::Default;
        let explain = Explain::default();
        let tenant = TenantId::OPERATOR;
        Self { demand, policy, order, selector, candidates, explain, preferences, owner, lease, tenant }
    }

    /// Returns whether the request asks for cpu, memory and GPUs alone, of any node or of those that its selector names, by
    /// a policy that compares coordinates in their usual order.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.policy, Policy::LeastFit | Policy::BestFit)
            && self.order == OrderChoice::Default
            && self.demand.custom.is_none()
            && self.candidates.is_none()
            && self.preferences.is_none()
            && self.owner.is_none()
            && self.lease.is_none()
    }

    /// Returns the fallback selectors, in order.
    #[must_use]
    pub fn fallbacks(&self) -> &[Arc<Selector>] {
        let rules = self.preferences.as_ref().and_then(|preferences| preferences.rules.as_ref());
        rules.map_or(&[], |rules| rules.fallbacks())
    }

    /// Returns the same request with one selector only: its own for 0, the first fallback for 1, and so on.
    ///
    /// # Panics
    /// If there is no such fallback.
    #[must_use]
    pub fn with_alternative(&self, number: u8) -> Self {
        let mut alone = self.clone();
        if number > 0 {
            alone.selector = Some(Arc::clone(&self.fallbacks()[usize::from(number) - 1]));
        }
        if let Some(preferences) = &self.preferences {
            let rules = preferences.rules.as_ref().map(|rules| Arc::new(rules.without_fallbacks()));
            alone.preferences = Some(Arc::new(Preferences { rules, ..(**preferences).clone() }));
        }
        alone
    }
}
