//! What a placement request asks, after the edge has checked it.

mod preferences;
pub(crate) use preferences::shunned;
pub use preferences::{Preferences, Rank, RankRules, RankRulesError};
mod placement;
pub use placement::Placement;
mod policy;
pub use policy::{ParsePolicyError, Policy};
mod refusal;
pub use refusal::{Check, Refusal, Shortage};

use std::sync::Arc;

use crate::ids::{NodeId, OwnerId};
use crate::node::Selector;
use crate::resource::Demand;

/// How much a refusal should explain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Explain {
    /// Count over at most [`EXPLAIN_NODES_MAX`](crate::limits::EXPLAIN_NODES_MAX) nodes per
    /// shard, so that refusing stays cheap; the reply says over how many.
    #[default]
    Bounded,
    /// Count over all nodes, page by page: each node as it is when its page is read. A request that
    /// waits counts one page per shard.
    Full,
}

/// By which attribute order LeastFit and BestFit compare nodes. The other policies do not compare
/// coordinates, and it has no effect there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OrderChoice {
    /// The first of those configured.
    #[default]
    Default,
    /// One of those configured, by its place among them, from 0 on.
    Configured(u8),
    /// The first of those configured that begins with the request's dominant resource: of which it
    /// asks the largest share of what the shard has in all. The first of all if none does.
    Dominant,
}

/// One placement to decide.
///
/// Cloning is cheap: what is large is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRequest {
    /// What it takes.
    pub demand: Demand,
    /// Which of the fitting nodes.
    pub policy: Policy,
    /// By which attribute order, where the policy has one.
    pub order: OrderChoice,
    /// Terms that the node's labels must satisfy.
    pub selector: Option<Arc<Selector>>,
    /// Only these nodes, if given; sorted, each once.
    pub candidates: Option<Arc<[NodeId]>>,
    /// How much a refusal should explain.
    pub explain: Explain,
    /// What it would rather have; none for most.
    pub preferences: Option<Arc<Preferences>>,
    /// Whose reservations it may use: nodes reserved for the owner are tried first.
    pub owner: Option<OwnerId>,
}

impl PlacementRequest {
    /// A request without constraints.
    #[must_use]
    pub fn new(demand: Demand, policy: Policy) -> Self {
        let selector = None;
        let candidates = None;
        let preferences = None;
        let owner = None;
        let order = OrderChoice::Default;
        let explain = Explain::default();
        Self { demand, policy, order, selector, candidates, explain, preferences, owner }
    }

    /// The selectors that stand in for its own, in order.
    #[must_use]
    pub fn fallbacks(&self) -> &[Arc<Selector>] {
        let rules = self.preferences.as_ref().and_then(|preferences| preferences.rules.as_ref());
        rules.map_or(&[], |rules| rules.fallbacks())
    }

    /// The same with one selector alone: its own for 0, the first fallback for 1, and so on.
    ///
    /// # Panics
    /// When it has no such fallback.
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
