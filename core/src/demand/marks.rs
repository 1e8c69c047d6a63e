//! Marks: labels on the nodes of a plan's copy that say in which domains of the topology they are.
//!
//! A plan confines work to a domain by a selector. A domain that is an object has no label, so its nodes get one in the
//! copy. No request can name it, because labels of clients have no control characters.

use std::sync::Arc;

use crate::jobs::NodeDomains;
use crate::node::{Labels, NodeSpec};

/// Returns the key of the label that all nodes of a copy with a value in a tier have.
pub(super) fn key(domains: &NodeDomains, tier: usize) -> Arc<str> {
    let own = || format!("\0domain/{}", domains.tiers()[tier].name).into();
    domains.only_label(tier).map_or_else(own, Arc::clone)
}

/// Returns a node with its marks. `None`: it has them, or needs none.
pub(super) fn marked(domains: &NodeDomains, spec: &NodeSpec) -> Option<NodeSpec> {
    let values = domains.values(&spec.name, &spec.labels);
    let mut pairs = spec.labels.pairs().to_vec();
    let mut is_changed = false;
    for (tier, value) in
        values.iter().rev().enumerate().filter(|&(tier, _)| domains.only_label(tier).is_none())
    {
        let key = key(domains, tier);
        let Some(value) = value.filter(|&value| spec.labels.get(&key) != Some(value)) else { continue };
        is_changed = true;
        pairs.retain(|(known, _)| *known != key);
        pairs.push((key, value.into()));
    }
    if !is_changed {
        return None;
    }
    let labels = Labels::new(pairs).expect("each key once");
    Some(NodeSpec { labels, ..spec.clone() })
}
