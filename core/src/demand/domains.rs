//! The domains of the topology, with their room and the types of nodes that belong to them.
//!
//! As in cycles, a domain is the nodes with the same values in a tier and in all wider ones. A node of a type is in the
//! domains that the labels of the type say, because its name is not known before it comes. A type without a value in a
//! tier is in no domain of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::marks;
use crate::fairness::{Amounts, Dim};
use crate::ids::NodeId;
use crate::jobs::nodes::NodesRequest;
use crate::jobs::{NodeDomains, TopologyRule};
use crate::node::{NodeSpec, Operator, Term};
use crate::resource::{Demand, GpuRequest};
use crate::view::View;

/// The values in the tiers, the widest first, up to the tier of the domain. The empty one is the cluster.
pub(super) type Domain = Vec<Option<Arc<str>>>;

/// The kinds by which room is estimated.
const DIMS: [Dim; 3] = [Dim::CPU, Dim::MEMORY, Dim::GPU];

/// All domains.
#[derive(Default)]
pub(super) struct Domains {
    finder: Arc<NodeDomains>,
    of_nodes: BTreeMap<NodeId, Domain>,
    /// What present nodes have free, less all that the plan has placed since, there and on nodes that it added. With the
    /// domains of types.
    free: BTreeMap<Domain, [i128; 3]>,
    of_types: Vec<Domain>,
    /// What a node of each type has.
    each: Vec<[i128; 3]>,
    /// The numbers of nodes of each type at the beginning.
    counts: Vec<u32>,
}

fn key(finder: &NodeDomains, node: &NodeSpec) -> Domain {
    let values = finder.values(&node.name, &node.labels);
    smallest(values.into_iter().map(|value| value.map(Arc::from)).collect())
}

/// Returns the smallest domain that these values name.
fn smallest(mut values: Domain) -> Domain {
    while values.last().is_some_and(Option::is_none) {
        values.pop();
    }
    values
}

/// Widens a domain until it contains another one.
pub(super) fn cover(home: &mut Domain, of: &Domain) {
    let same = home.iter().zip(of).take_while(|(a, b)| a == b).count();
    home.truncate(same);
    *home = smallest(std::mem::take(home));
}

fn amounts_of(spec: &NodeSpec) -> [i128; 3] {
    let gpu = if spec.gpus > 0 { GpuRequest::Whole(spec.gpus) } else { GpuRequest::None };
    amounts(&Amounts::of(&Demand { cpu: spec.cpu, memory: spec.memory, gpu, ..Demand::default() }))
}

fn amounts(of: &Amounts) -> [i128; 3] {
    DIMS.map(|dim| i128::from(of.get(dim)))
}

impl Domains {
    pub(super) fn new(finder: Arc<NodeDomains>, view: &View, request: &NodesRequest, counts: &[u32]) -> Self {
        let types = 0..request.types.len();
        let specs: Vec<NodeSpec> = types.map(|of_type| request.spec(of_type)).collect();
        let mut domains = Self {
            of_types: specs.iter().map(|spec| key(&finder, spec)).collect(),
            each: specs.iter().map(amounts_of).collect(),
            counts: counts.to_vec(),
            finder: Arc::clone(&finder),
            ..Self::default()
        };
        view.nodes(|_, hot, cold| {
            let of = key(&finder, &cold.registration.spec);
            let free = [hot.cpu.units(), hot.memory.units(), hot.gpus.total_free()].map(i128::from);
            domains.add(&of, free);
            domains.of_nodes.insert(hot.id, of);
        });
        for of in domains.of_types.clone() {
            domains.add(&of, [0; 3]);
        }
        domains
    }

    fn add(&mut self, of: &Domain, free: [i128; 3]) {
        for length in 0..=of.len() {
            if length == 0 || of[length - 1].is_some() {
                let sum = self.free.entry(of[..length].to_vec()).or_default();
                sum.iter_mut().zip(free).for_each(|(sum, free)| *sum += free);
            }
        }
    }

    /// Notes that a plan has added a node.
    pub(super) fn add_node(&mut self, node: NodeId, of_type: usize) {
        self.of_nodes.insert(node, self.of_types[of_type].clone());
    }

    /// Notes that a plan has placed something on a node.
    pub(super) fn take(&mut self, node: NodeId, taken: &Amounts) {
        let of = self.of_nodes.get(&node).expect("all nodes of the plan are known").clone();
        self.add(&of, amounts(taken).map(std::ops::Neg::neg));
    }

    /// Returns the number of domains.
    pub(super) fn len(&self) -> usize {
        self.free.len()
    }

    /// Returns the smallest domain of a node.
    pub(super) fn of(&self, node: NodeId) -> Option<&Domain> {
        self.of_nodes.get(&node)
    }

    /// Returns the domains in which tasks with a rule may be, inside another domain, the narrowest tier first. `home` is the
    /// smallest domain with others of them.
    pub(super) fn allowed(
        &self,
        rule: Option<&TopologyRule>,
        home: Option<&Domain>,
        within: &Domain,
    ) -> Vec<Domain> {
        let widest = rule.and_then(|rule| rule.widest(self.finder.tiers()));
        let Some(rule) = rule.filter(|rule| rule.is_hard() || widest.is_some()) else {
            return vec![within.clone()];
        };
        let mut found: Vec<Domain> = Vec::new();
        if let Some(widest) = widest {
            let shortest = (self.finder.tiers().len() - widest).max(within.len());
            let is_allowed = |of: &&Domain| of.len() >= shortest && of.starts_with(within);
            match home {
                Some(home) => {
                    let around = (0..=home.len()).map(|length| &home[..length]);
                    let around = around.filter(|of| of.last().is_some_and(Option::is_some));
                    found.extend(around.map(<[_]>::to_vec).filter(|of| is_allowed(&of)));
                }
                None => found.extend(self.free.keys().filter(is_allowed).cloned()),
            }
            found.sort_by_key(|of| std::cmp::Reverse(of.len()));
        }
        if !rule.is_hard() && !found.contains(within) {
            found.push(within.clone());
        }
        found
    }

    /// Returns whether nodes of a type are in a domain.
    pub(super) fn has_type(&self, domain: &Domain, of_type: usize) -> bool {
        self.of_types[of_type].starts_with(domain)
    }

    /// Returns whether a domain could have this much, by cpu, memory and GPUs: it has it free, or nodes bring it. `counts`
    /// is how many nodes of each type there are or may be.
    pub(super) fn could_hold(&self, domain: &Domain, asked: &Amounts, counts: &[u32]) -> bool {
        let mut room = self.free.get(domain).copied().unwrap_or_default();
        for (of_type, each) in self.each.iter().enumerate().filter(|&(at, _)| self.has_type(domain, at)) {
            let more = i128::from(counts[of_type].saturating_sub(self.counts[of_type]));
            room.iter_mut().zip(each).for_each(|(room, each)| *room += each * more);
        }
        amounts(asked).iter().zip(room).all(|(asked, room)| *asked <= room)
    }

    /// Returns what a selector says of the nodes of a domain.
    pub(super) fn terms(&self, domain: &Domain) -> Vec<Term> {
        let tiers = (0..self.finder.tiers().len()).rev().zip(domain);
        let term = |(tier, value): (usize, &Option<Arc<str>>)| Term {
            key: marks::key(&self.finder, tier).to_string(),
            operator: if value.is_some() { Operator::In } else { Operator::NotExists },
            values: value.iter().map(|value| value.to_string()).collect(),
        };
        tiers.map(term).collect()
    }
}
