//! Preferences of a request: fallback selectors, preferred selectors with weights, preferred nodes,
//! tolerations, and avoiding nodes with GPUs.
//!
//! Everything except the preferred nodes depends only on a node's labels, taints and GPUs. It is therefore one
//! number per node, its [`Rank`]. Fitting nodes of the smallest rank are considered first. The policy decides
//! among nodes of equal rank. The criteria are, most important first:
//! 1. The selector, then each fallback selector in order (Ray's fallback strategy).
//! 2. Nodes without an untolerated `PreferNoSchedule` taint come first.
//! 3. Nodes without GPUs come first, if the request avoids nodes with GPUs.
//! 4. The preferred nodes, in the given order (not part of the rank).
//! 5. The largest sum of the weights of matching preferred selectors.

use std::sync::Arc;

use crate::hash::stable_hash;
use crate::ids::NodeId;
use crate::limits::{FALLBACK_SELECTORS_MAX, PREFERENCE_WEIGHT_MAX, PREFERRED_SELECTORS_MAX};
use crate::node::{NodeSpec, Selector, Taint, TaintEffect, Toleration, TolerationOperator};

/// The rules that, together with the selector, determine the ranks of a request. Shared, with a precomputed
/// hash: a shard finds cached ranks without hashing strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankRules {
    fallbacks: Vec<Arc<Selector>>,
    preferred: Vec<(u8, Arc<Selector>)>,
    tolerations: Vec<Toleration>,
    hash: u64,
}

/// An error for invalid rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankRulesError {
    /// Too many fallback selectors.
    #[error("{0} fallback selectors: give at most {FALLBACK_SELECTORS_MAX}")]
    Fallbacks(usize),
    /// Too many preferred selectors.
    #[error("{0} preferred selectors: give at most {PREFERRED_SELECTORS_MAX}")]
    Preferred(usize),
    /// A weight out of range.
    #[error("weight {0} is out of range: give 1 to {PREFERENCE_WEIGHT_MAX}")]
    Weight(u8),
}

fn hash_of(
    fallbacks: &[Arc<Selector>],
    preferred: &[(u8, Arc<Selector>)],
    tolerations: &[Toleration],
) -> u64 {
    let mut bytes = Vec::new();
    bytes.push(fallbacks.len() as u8);
    for selector in fallbacks {
        bytes.extend_from_slice(&selector.hash().to_le_bytes());
    }
    bytes.push(preferred.len() as u8);
    for (weight, selector) in preferred {
        bytes.push(*weight);
        bytes.extend_from_slice(&selector.hash().to_le_bytes());
    }
    for toleration in tolerations {
        bytes.push(toleration.operator as u8);
        bytes.push(toleration.effect.map_or(u8::MAX, |effect| effect as u8));
        for text in [&toleration.key, &toleration.value] {
            bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
    }
    stable_hash(&bytes)
}

impl RankRules {
    /// Creates rules. Entries whose order has no meaning are sorted into a canonical order.
    ///
    /// # Errors
    /// If there are too many selectors of a kind, or a weight is not in `1..=100`.
    pub fn new(
        fallbacks: Vec<Arc<Selector>>,
        mut preferred: Vec<(u8, Arc<Selector>)>,
        mut tolerations: Vec<Toleration>,
    ) -> Result<Self, RankRulesError> {
        if fallbacks.len() > FALLBACK_SELECTORS_MAX {
            return Err(RankRulesError::Fallbacks(fallbacks.len()));
        }
        if preferred.len() > PREFERRED_SELECTORS_MAX {
            return Err(RankRulesError::Preferred(preferred.len()));
        }
        if let Some(&(weight, _)) = preferred.iter().find(|(w, _)| !(1..=PREFERENCE_WEIGHT_MAX).contains(w)) {
            return Err(RankRulesError::Weight(weight));
        }
        preferred.sort_by_key(|(weight, selector)| (selector.hash(), *weight));
        for toleration in &mut tolerations {
            if toleration.operator == TolerationOperator::Exists {
                toleration.value.clear();
            }
        }
        tolerations.sort_unstable();
        tolerations.dedup();
        let hash = hash_of(&fallbacks, &preferred, &tolerations);
        Ok(Self { fallbacks, preferred, tolerations, hash })
    }

    /// Returns the hash. Equal rules have equal hashes.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the fallback selectors, in order.
    #[must_use]
    pub fn fallbacks(&self) -> &[Arc<Selector>] {
        &self.fallbacks
    }

    /// Returns the preferred selectors with their weights.
    #[must_use]
    pub fn preferred(&self) -> &[(u8, Arc<Selector>)] {
        &self.preferred
    }

    /// Returns the tolerations.
    #[must_use]
    pub fn tolerations(&self) -> &[Toleration] {
        &self.tolerations
    }

    /// Returns the same rules without fallback selectors.
    #[must_use]
    pub fn without_fallbacks(&self) -> Self {
        let preferred = self.preferred.clone();
        let tolerations = self.tolerations.clone();
        let hash = hash_of(&[], &preferred, &tolerations);
        Self { fallbacks: Vec::new(), preferred, tolerations, hash }
    }
}

/// Preferences of a request among fitting nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preferences {
    /// The rules that determine ranks. `None` means no fallbacks, no preferred selectors and no tolerations.
    pub rules: Option<Arc<RankRules>>,
    /// Nodes that are tried before the policy decides, in this order.
    pub nodes: Arc<[NodeId]>,
    /// Prefers nodes without GPUs. Only for demands without GPUs.
    pub avoid_gpu: bool,
    /// The request's only candidate is a node affinity. A refusal then names the node.
    pub affinity: bool,
}

/// Returns whether an untolerated taint makes the node less preferred, or `None` if a taint excludes it.
pub(crate) fn shunned(taints: &[Taint], tolerations: &[Toleration]) -> Option<bool> {
    let mut shunned = false;
    for taint in taints {
        if tolerations.iter().any(|toleration| toleration.bears(taint)) {
            continue;
        }
        match taint.effect {
            TaintEffect::NoSchedule | TaintEffect::NoExecute => return None,
            TaintEffect::PreferNoSchedule => shunned = true,
        }
    }
    Some(shunned)
}

/// The order of a node for a request with preferences. The smallest rank comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(u16);

const SUM_BITS: u32 = 10;
const SUM_MAX: u16 = PREFERRED_SELECTORS_MAX as u16 * PREFERENCE_WEIGHT_MAX as u16;
const _: () = assert!(SUM_MAX < 1 << SUM_BITS);
const _: () = assert!(
    FALLBACK_SELECTORS_MAX < 15,
    "alternatives, flags and sum fit a rank in addition to the two that exclude"
);

impl Rank {
    /// The rank of every node if the request has no preferences.
    pub const EQUAL: Self = Self(0);
    /// The rank of a node that an untolerated `NoSchedule` or `NoExecute` taint excludes.
    pub const TAINTED: Self = Self(u16::MAX - 1);
    /// The rank of a node that matches neither the selector nor a fallback.
    pub const NOT_SELECTED: Self = Self(u16::MAX);

    /// Returns whether the node may be chosen at all.
    #[must_use]
    pub fn is_eligible(self) -> bool {
        self < Self::TAINTED
    }

    /// Returns the part of the rank that precedes the preferred nodes: selector, taints, GPUs.
    #[must_use]
    pub fn group(self) -> u16 {
        self.0 >> SUM_BITS
    }

    /// Returns the selector that matches: 0 for the request's own, 1 for the first fallback, and so on.
    #[must_use]
    pub fn alternative(self) -> u8 {
        (self.0 >> (SUM_BITS + 2)) as u8
    }

    /// Returns the rank of a node. Without rules, nothing is tolerated and nothing is preferred.
    #[must_use]
    pub fn of(
        selector: Option<&Selector>,
        rules: Option<&RankRules>,
        avoid_gpu: bool,
        spec: &NodeSpec,
    ) -> Self {
        let holds = |selector: &Selector| selector.holds(&spec.labels);
        let fallbacks = rules.map_or(&[][..], RankRules::fallbacks);
        let own = selector.is_none_or(holds);
        let alternative = if own {
            Some(0)
        } else {
            fallbacks.iter().position(|selector| holds(selector)).map(|at| at + 1)
        };
        let Some(alternative) = alternative else {
            return Self::NOT_SELECTED;
        };
        let tolerations = rules.map_or(&[][..], RankRules::tolerations);
        let Some(shunned) = shunned(spec.taints.as_slice(), tolerations) else {
            return Self::TAINTED;
        };
        let preferred = rules.map_or(&[][..], RankRules::preferred);
        let sum: u16 =
            preferred.iter().filter(|(_, selector)| holds(selector)).map(|&(w, _)| u16::from(w)).sum();
        Self::new(alternative, shunned, avoid_gpu && spec.gpus > 0, sum)
    }

    /// Creates the rank of an eligible node. `alternative` is the selector that matches. `shunned` says that a
    /// taint makes the node less preferred, `has_gpu` that it has GPUs to avoid. `sum` is the total weight of
    /// matching preferred selectors.
    pub(crate) fn new(alternative: usize, shunned: bool, has_gpu: bool, sum: u16) -> Self {
        let group = (alternative as u16) << 2 | u16::from(shunned) << 1 | u16::from(has_gpu);
        Self(group << SUM_BITS | (SUM_MAX - sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Labels, Operator, Taints, Term};
    use crate::resource::Amount;

    fn zone(value: &str) -> Arc<Selector> {
        let values = vec![value.to_owned()];
        Arc::new(Selector::new(vec![Term { key: "zone".into(), operator: Operator::In, values }]))
    }

    fn node(zone: &str, effect: Option<TaintEffect>, gpus: u8) -> NodeSpec {
        let taints = effect.map(|effect| Taint { key: "t".into(), value: "".into(), effect });
        NodeSpec {
            name: "n".into(),
            identity: None,
            cpu: Amount::ZERO,
            memory: Amount::ZERO,
            gpus,
            custom: None,
            labels: Labels::new(vec![("zone".into(), zone.into())]).unwrap(),
            taints: Taints::new(taints.into_iter().collect()).unwrap(),
        }
    }

    #[test]
    fn ranks_follow_the_order_of_what_weighs_more() {
        let rules =
            RankRules::new(vec![zone("b"), zone("c")], vec![(5, zone("a")), (3, zone("c"))], vec![]).unwrap();
        let shun = Some(TaintEffect::PreferNoSchedule);
        let rank = |spec: &NodeSpec| Rank::of(Some(&zone("a")), Some(&rules), true, spec);
        let ordered = [
            node("a", None, 0),
            node("a", None, 1),
            node("a", shun, 0),
            node("b", None, 0),
            node("c", None, 0),
        ];
        let ranks: Vec<Rank> = ordered.iter().map(rank).collect();
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
        assert_eq!(ranks.iter().map(|rank| rank.alternative()).collect::<Vec<_>>(), [0, 0, 0, 1, 2]);
        assert_eq!(rank(&node("d", None, 0)), Rank::NOT_SELECTED);
        assert_eq!(rank(&node("a", Some(TaintEffect::NoExecute), 0)), Rank::TAINTED);
        let lighter = Rank::of(None, Some(&rules), false, &node("c", None, 0));
        let heavier = Rank::of(None, Some(&rules), false, &node("a", None, 7));
        assert!(heavier < lighter && heavier.group() == lighter.group());
    }

    #[test]
    fn rules_beyond_their_bounds_are_refused() {
        let many = |count: usize| (0..count).map(|_| (1, zone("a"))).collect::<Vec<_>>();
        assert_eq!(RankRules::new(vec![], many(9), vec![]), Err(RankRulesError::Preferred(9)));
        assert_eq!(RankRules::new(vec![], vec![(0, zone("a"))], vec![]), Err(RankRulesError::Weight(0)));
        assert_eq!(RankRules::new(vec![], vec![(101, zone("a"))], vec![]), Err(RankRulesError::Weight(101)));
        assert_eq!(RankRules::new(vec![zone("a"); 9], vec![], vec![]), Err(RankRulesError::Fallbacks(9)));
        let heaviest =
            RankRules::new(vec![], many(8).into_iter().map(|(_, s)| (100, s)).collect(), vec![]).unwrap();
        assert!(Rank::of(None, Some(&heaviest), false, &node("a", None, 0)).is_eligible());
    }
}
