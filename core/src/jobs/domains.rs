//! Domains as objects (Volcano's `HyperNode`): which nodes they contain, and in which domains a node is.
//!
//! The value of a node in a tier is that of the tier's label. If the node lacks the label, the value is the name of the
//! first object of the tier that contains the node. An object contains nodes by their names, by their labels, or by
//! the domain of a narrower tier in which they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::TopologyTier;
use crate::limits::{
    NAME_BYTES_MAX, TOPOLOGY_DOMAINS_MAX, TOPOLOGY_MEMBERS_MAX, TOPOLOGY_SEARCHED_MEMBERS_MAX,
};
use crate::node::Labels;

/// The character that means any run of characters in the name of a node.
const ANY: char = '*';

/// A domain of a tier, as an object. It contains each node that one of its lists of members names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyDomain {
    /// The name of its tier.
    pub tier: Arc<str>,
    /// Its name, unique in the tier.
    pub name: Arc<str>,
    /// Names of nodes. A `*` is any run of characters, also an empty one.
    pub nodes: Vec<Arc<str>>,
    /// Nodes with all of these labels. Empty: none.
    pub labels: Labels,
    /// Values of narrower tiers: names of objects, or values of labels. A node counts by the nearest narrower tier in
    /// which it has a value.
    pub domains: Vec<Arc<str>>,
}

impl TopologyDomain {
    /// Creates a domain without members, which is to be given some.
    #[must_use]
    pub fn new(tier: &str, name: &str) -> Self {
        let labels = Labels::default();
        Self { tier: tier.into(), name: name.into(), nodes: Vec::new(), labels, domains: Vec::new() }
    }

    /// Returns the number of its members: names, labels and domains.
    fn member_count(&self) -> usize {
        self.nodes.len() + self.labels.len() + self.domains.len()
    }

    /// Returns the number of its members that are compared with each node: patterns, and its labels as one.
    fn searched_count(&self) -> usize {
        let patterns = self.nodes.iter().filter(|name| name.contains(ANY)).count();
        patterns + usize::from(!self.labels.is_empty())
    }
}

/// What is wrong with a list of domains.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DomainFault {
    /// There are too many domains.
    #[error(
        "there are {0} domains: give at most {TOPOLOGY_DOMAINS_MAX}, or give nodes the label of the tier"
    )]
    TooMany(usize),
    /// There are too many members.
    #[error(
        "the domains have over {TOPOLOGY_MEMBERS_MAX} members in all: name nodes by labels or patterns, or give nodes the label of the tier"
    )]
    TooManyMembers,
    /// There are too many members that are compared with each node.
    #[error(
        "the domains have over {TOPOLOGY_SEARCHED_MEMBERS_MAX} patterns and lists of labels in all: name nodes without `*`, or give nodes the label of the tier"
    )]
    TooManySearched,
    /// There is no such tier.
    #[error(
        "domain `{name}` is of tier `{tier}`, which is not in `topology`: name one of {known}, or add the tier"
    )]
    UnknownTier {
        /// The domain.
        name: Arc<str>,
        /// The tier.
        tier: Arc<str>,
        /// The tiers that there are.
        known: String,
    },
    /// A name is empty, too long, or has control characters.
    #[error("a domain of tier `{0}` needs a name of 1 to {NAME_BYTES_MAX} bytes without control characters")]
    Name(Arc<str>),
    /// Two domains of a tier have the same name.
    #[error("domain `{name}` of tier `{tier}` is there twice: make it one, with all members")]
    NameTwice {
        /// The domain.
        name: Arc<str>,
        /// Its tier.
        tier: Arc<str>,
    },
    /// A domain has no members.
    #[error("domain `{0}` has no members: give it `nodes`, `labels` or `domains`, or leave it out")]
    NoMembers(Arc<str>),
    /// A member is empty or too long.
    #[error(
        "domain `{name}` has a member of {bytes} bytes: give each name, label and value at most {NAME_BYTES_MAX}, and each name and label at least 1"
    )]
    Member {
        /// The domain.
        name: Arc<str>,
        /// The length of the member, in bytes.
        bytes: usize,
    },
    /// A domain of the narrowest tier contains others.
    #[error(
        "domain `{name}` has `domains`, and no tier is narrower than `{tier}`: give it `nodes` or `labels`"
    )]
    Narrowest {
        /// The domain.
        name: Arc<str>,
        /// Its tier.
        tier: Arc<str>,
    },
    /// A node is named twice in a tier.
    #[error("node `{node}` is named twice in domains of tier `{tier}`: leave it in one")]
    NodeTwice {
        /// The node.
        node: Arc<str>,
        /// The tier.
        tier: Arc<str>,
    },
    /// A domain is named as a member twice in a tier.
    #[error("domain `{name}` is named twice in `domains` of tier `{tier}`: leave it in one")]
    InnerTwice {
        /// The domain that is a member.
        name: Arc<str>,
        /// The tier of those that contain it.
        tier: Arc<str>,
    },
    /// Nothing says which nodes are in the domains of a tier.
    #[error("tier `{0}` has neither a label nor domains: give it a `label`, or name its nodes in `domains`")]
    Undefined(Arc<str>),
}

/// The names of a tier so far.
#[derive(Default)]
struct Known<'d> {
    names: BTreeSet<&'d str>,
    nodes: BTreeSet<&'d str>,
    inner: BTreeSet<&'d str>,
}

/// Checks the domains of tiers that were checked.
///
/// # Errors
/// The first fault, with the index of the domain. `None`: that of a tier.
pub fn check_domains(
    tiers: &[TopologyTier],
    domains: &[TopologyDomain],
) -> Result<(), (Option<usize>, DomainFault)> {
    if domains.len() > TOPOLOGY_DOMAINS_MAX {
        return Err((Some(TOPOLOGY_DOMAINS_MAX), DomainFault::TooMany(domains.len())));
    }
    let mut known: Vec<Known<'_>> = tiers.iter().map(|_| Known::default()).collect();
    let mut members = 0;
    let mut searched = 0;
    for (at, domain) in domains.iter().enumerate() {
        check_domain(domain, tiers, &mut known).map_err(|fault| (Some(at), fault))?;
        members += domain.member_count();
        searched += domain.searched_count();
        if members > TOPOLOGY_MEMBERS_MAX {
            return Err((Some(at), DomainFault::TooManyMembers));
        }
        if searched > TOPOLOGY_SEARCHED_MEMBERS_MAX {
            return Err((Some(at), DomainFault::TooManySearched));
        }
    }
    let is_undefined =
        |(tier, known): &(&TopologyTier, &Known<'_>)| tier.label.is_none() && known.names.is_empty();
    match tiers.iter().zip(&known).find(is_undefined) {
        Some((tier, _)) => Err((None, DomainFault::Undefined(Arc::clone(&tier.name)))),
        None => Ok(()),
    }
}

/// Checks a domain, and notes its names.
fn check_domain<'d>(
    domain: &'d TopologyDomain,
    tiers: &[TopologyTier],
    known: &mut [Known<'d>],
) -> Result<(), DomainFault> {
    let name = || Arc::clone(&domain.name);
    let tier = || Arc::clone(&domain.tier);
    let fits = |text: &str| (1..=NAME_BYTES_MAX).contains(&text.len());
    if !fits(&domain.name) || domain.name.chars().any(char::is_control) {
        return Err(DomainFault::Name(tier()));
    }
    let Some(at) = tiers.iter().position(|tier| tier.name == domain.tier) else {
        let known = tiers.iter().map(|tier| &*tier.name).collect::<Vec<_>>().join(", ");
        return Err(DomainFault::UnknownTier { name: name(), tier: tier(), known });
    };
    let known = &mut known[at];
    if !known.names.insert(&domain.name) {
        return Err(DomainFault::NameTwice { name: name(), tier: tier() });
    }
    if domain.member_count() == 0 {
        return Err(DomainFault::NoMembers(name()));
    }
    if at == 0 && !domain.domains.is_empty() {
        return Err(DomainFault::Narrowest { name: name(), tier: tier() });
    }
    let names = domain.nodes.iter().chain(&domain.domains).map(|member| &**member);
    let keys = domain.labels.iter().map(|(key, _)| key);
    // The value of a label may be empty.
    let values = domain.labels.iter().map(|(_, value)| value).filter(|value| !value.is_empty());
    if let Some(wrong) = names.chain(keys).chain(values).find(|member| !fits(member)) {
        return Err(DomainFault::Member { name: name(), bytes: wrong.len() });
    }
    if let Some(node) = domain.nodes.iter().find(|&node| !known.nodes.insert(node)) {
        return Err(DomainFault::NodeTwice { node: Arc::clone(node), tier: tier() });
    }
    match domain.domains.iter().find(|&inner| !known.inner.insert(inner)) {
        Some(inner) => Err(DomainFault::InnerTwice { name: Arc::clone(inner), tier: tier() }),
        None => Ok(()),
    }
}

/// Members that are compared with each node.
#[derive(Clone, Debug)]
enum Searched {
    /// A name with at least one `*`.
    Pattern(Arc<str>),
    Labels(Labels),
}

impl Searched {
    fn holds(&self, name: &str, labels: &Labels) -> bool {
        match self {
            Self::Pattern(pattern) => !name.is_empty() && matches(pattern, name),
            Self::Labels(all) => all.iter().all(|(key, value)| labels.get(key) == Some(value)),
        }
    }
}

/// Returns whether a name is as a pattern says, in which each `*` is any run of characters.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split(ANY);
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    // The first place of each part leaves the most for those that follow.
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// The objects of a tier, by number in their order, and found by their members.
#[derive(Clone, Debug, Default)]
struct TierDomains {
    names: Vec<Arc<str>>,
    /// By exact names of nodes.
    of_nodes: BTreeMap<Arc<str>, u32>,
    /// By values of narrower tiers.
    of_domains: BTreeMap<Arc<str>, u32>,
    /// In the order of their objects.
    searched: Vec<(u32, Searched)>,
}

impl TierDomains {
    fn add(&mut self, domain: &TopologyDomain) {
        let number = u32::try_from(self.names.len()).expect("domains are few");
        self.names.push(Arc::clone(&domain.name));
        for name in &domain.nodes {
            if name.contains(ANY) {
                self.searched.push((number, Searched::Pattern(Arc::clone(name))));
            } else {
                self.of_nodes.insert(Arc::clone(name), number);
            }
        }
        if !domain.labels.is_empty() {
            self.searched.push((number, Searched::Labels(domain.labels.clone())));
        }
        self.of_domains.extend(domain.domains.iter().map(|inner| (Arc::clone(inner), number)));
    }

    /// Returns the name of the first object that contains a node. `inner` is its value in the nearest narrower tier in
    /// which it has one.
    fn find(&self, name: &str, labels: &Labels, inner: Option<&str>) -> Option<&str> {
        let of_node = self.of_nodes.get(name);
        let of_domain = inner.and_then(|inner| self.of_domains.get(inner));
        let known = of_node.into_iter().chain(of_domain).min().copied();
        let before =
            self.searched.iter().take_while(|&&(number, _)| known.is_none_or(|known| number < known));
        let mut holding = before.filter(|(_, members)| members.holds(name, labels));
        let first = holding.next().map(|&(number, _)| number).or(known)?;
        Some(&self.names[first as usize])
    }
}

/// The tiers of a cluster, and what says in which domains its nodes are.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeDomains {
    tiers: Vec<TopologyTier>,
    of_tiers: Vec<TierDomains>,
}

impl NodeDomains {
    /// Takes tiers, from the narrowest to the widest, and domains of them.
    ///
    /// # Panics
    /// If a domain is of no tier: they were not checked.
    pub(crate) fn new(tiers: &[TopologyTier], domains: &[TopologyDomain]) -> Self {
        let mut of_tiers: Vec<TierDomains> = tiers.iter().map(|_| TierDomains::default()).collect();
        for domain in domains {
            let tier = tiers.iter().position(|tier| tier.name == domain.tier);
            of_tiers[tier.expect("domains are of tiers that there are")].add(domain);
        }
        Self { tiers: tiers.to_vec(), of_tiers }
    }

    /// Returns the tiers, from the narrowest to the widest.
    pub(crate) fn tiers(&self) -> &[TopologyTier] {
        &self.tiers
    }

    /// Returns the label that alone says in which domain of a tier a node is. `None`: objects say it, too.
    pub(crate) fn only_label(&self, tier: usize) -> Option<&Arc<str>> {
        self.tiers[tier].label.as_ref().filter(|_| self.of_tiers[tier].names.is_empty())
    }

    /// Returns the values of a node in all tiers, the widest first. A node without a name is in no object that names nodes.
    pub(crate) fn values<'a>(&'a self, name: &str, labels: &'a Labels) -> Vec<Option<&'a str>> {
        let mut inner: Option<&str> = None;
        let mut values = Vec::with_capacity(self.tiers.len());
        for (tier, domains) in self.tiers.iter().zip(&self.of_tiers) {
            let of_label = tier.label.as_ref().and_then(|label| labels.get(label));
            let value = of_label.or_else(|| domains.find(name, labels, inner));
            inner = value.or(inner);
            values.push(value);
        }
        values.reverse();
        values
    }
}

#[cfg(test)]
mod tests;
