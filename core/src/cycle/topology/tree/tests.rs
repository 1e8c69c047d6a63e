//! Trees: the paths of nodes, and domains of random nodes with labels and objects.

use std::collections::BTreeMap;

use super::*;
use crate::cycle::{CycleConfig, LocalCluster};
use crate::jobs::TopologyDomain;
use crate::node::{Labels, Taints};
use crate::resource::Amount;
use crate::rng::Rng;

const TIERS: [&str; 3] = ["host", "rack", "zone"];

fn tiers() -> Vec<TopologyTier> {
    TIERS.map(|name| TopologyTier::labelled(name, name)).to_vec()
}

fn labels(pairs: &[(&str, String)]) -> Labels {
    let pairs = pairs.iter().map(|(key, value)| ((*key).into(), value.as_str().into()));
    Labels::new(pairs.collect()).expect("each key once")
}

fn node(name: &str, labels: Labels) -> NodeSpec {
    NodeSpec {
        name: name.into(),
        identity: None,
        cpu: Amount::whole(1),
        memory: Amount::ZERO,
        gpus: 0,
        custom: None,
        labels,
        taints: Taints::default(),
    }
}

#[test]
fn a_path_has_the_widest_tier_first() {
    let domain = TopologyDomain { nodes: vec!["in-*".into()], ..TopologyDomain::new("zone", "z7") };
    let domains = NodeDomains::new(&tiers(), &[domain]);
    let path = |name: &str, pairs: &[(&str, String)]| path_of(&domains, &node(name, labels(pairs)));
    let of = |key, value: &str| (key, value.to_owned());
    assert_eq!(path("n", &[of("rack", "r1"), of("zone", "z1")]).as_deref(), Some("z1/r1"));
    assert_eq!(path("n", &[of("host", "h"), of("zone", "z1")]).as_deref(), Some("z1/-/h"));
    assert_eq!(path("n", &[of("other", "x")]), None);
    assert_eq!(path("in-1", &[of("host", "h")]).as_deref(), Some("z7/-/h"));
    assert_eq!(path("in-1", &[]).as_deref(), Some("z7"));
}

/// Random nodes, once with labels for all of their values, and once with objects for some of them.
struct Drawn {
    labelled: Vec<NodeSpec>,
    mixed: Vec<NodeSpec>,
    /// The values of each node, the widest first.
    values: Vec<Vec<Option<String>>>,
    domains: Vec<TopologyDomain>,
    /// How many values come from labels, names, patterns, lists of labels, and other domains.
    ways: [u32; 5],
}

impl Drawn {
    fn new(rng: &mut Rng) -> Self {
        let mut of_values: BTreeMap<(usize, String), TopologyDomain> = BTreeMap::new();
        let name = |tier: usize, number: u64| format!("{}{number}", TIERS[tier]);
        let add = |of_values: &mut BTreeMap<_, TopologyDomain>, tier: usize, value: &str| {
            of_values
                .entry((tier, value.to_owned()))
                .or_insert_with(|| TopologyDomain::new(TIERS[tier], value))
                .clone()
        };
        // Domains of domains: of each narrower value, the one wider value that contains it, if any.
        let mut around: BTreeMap<(usize, String), String> = BTreeMap::new();
        for tier in 1..3 {
            for (inner, number) in (0..tier).flat_map(|inner| (0..3).map(move |number| (inner, number))) {
                if rng.below(3) == 0 {
                    let inner = name(inner, number);
                    let outer = name(tier, rng.below(3));
                    let mut domain = add(&mut of_values, tier, &outer);
                    domain.domains.push(inner.as_str().into());
                    of_values.insert((tier, outer.clone()), domain);
                    around.insert((tier, inner), outer);
                }
            }
        }
        let mut drawn = Self {
            labelled: Vec::new(),
            mixed: Vec::new(),
            values: Vec::new(),
            domains: Vec::new(),
            ways: [0; 5],
        };
        for number in 0..rng.below(30) {
            let node_name = format!("n{number}.x");
            let mut values: Vec<Option<String>> = Vec::new();
            let mut all = Vec::new();
            let mut kept = Vec::new();
            for tier in 0..3 {
                let inner = values.iter().rev().flatten().next().cloned();
                let outer = inner.and_then(|inner| around.get(&(tier, inner)));
                let own = (rng.below(4) > 0).then(|| name(tier, rng.below(3)));
                let (value, way) = match (outer, own) {
                    (Some(outer), None) => (Some(outer.clone()), 4),
                    (Some(outer), Some(own)) if own == *outer => (Some(own), 4),
                    // The label counts before the object that contains the node.
                    (Some(_), Some(own)) => (Some(own), 0),
                    (None, own) => (own, rng.below(4) as usize),
                };
                if let Some(value) = &value {
                    drawn.ways[way] += 1;
                    all.push((TIERS[tier], value.clone()));
                    let mut domain = add(&mut of_values, tier, value);
                    match way {
                        0 => kept.push((TIERS[tier], value.clone())),
                        1 => domain.nodes.push(node_name.as_str().into()),
                        2 => domain.nodes.push(format!("n{number}.*").into()),
                        3 => {
                            let key = ["by-host", "by-rack", "by-zone"][tier];
                            domain.labels = labels(&[(key, value.clone())]);
                            kept.push((key, value.clone()));
                        }
                        _ => {}
                    }
                    of_values.insert((tier, value.clone()), domain);
                }
                values.push(value);
            }
            values.reverse();
            drawn.labelled.push(node(&node_name, labels(&all)));
            drawn.mixed.push(node(&node_name, labels(&kept)));
            drawn.values.push(values);
        }
        let has_members = |domain: &TopologyDomain| {
            !domain.nodes.is_empty() || !domain.labels.is_empty() || !domain.domains.is_empty()
        };
        drawn.domains = of_values.into_values().filter(has_members).collect();
        drawn
    }
}

/// Returns a cluster of nodes, with their ids.
fn cluster(nodes: &[NodeSpec], domains: Vec<TopologyDomain>) -> (LocalCluster, Vec<NodeId>) {
    let config = CycleConfig { topology: tiers(), domains, ..CycleConfig::default() };
    let mut cluster = LocalCluster::new(config, 1).expect("the settings are right");
    let ids = nodes.iter().map(|node| cluster.add_node(node.clone()).expect("it is taken")).collect();
    cluster.plan();
    (cluster, ids)
}

fn tree(cluster: &LocalCluster) -> Tree {
    Tree::new(cluster.scheduler().domains(), cluster.scheduler().replicas())
}

#[test]
fn each_domain_has_the_nodes_with_its_values() {
    let mut rng = Rng::new(3);
    let mut ways = [0; 5];
    for _ in 0..100 {
        let drawn = Drawn::new(&mut rng);
        ways.iter_mut().zip(drawn.ways).for_each(|(sum, count)| *sum += count);
        let (mixed, ids) = cluster(&drawn.mixed, drawn.domains);
        let mut expected: BTreeMap<(usize, Vec<Option<String>>), Vec<NodeId>> = BTreeMap::new();
        for (id, values) in ids.iter().zip(&drawn.values) {
            for level in (0..3).filter(|&level| values[level].is_some()) {
                expected.entry((2 - level, values[..=level].to_vec())).or_default().push(*id);
            }
        }
        let tree = tree(&mixed);
        let mut sets: Vec<(usize, Vec<NodeId>)> =
            expected.into_iter().map(|((tier, _), nodes)| (tier, nodes)).collect();
        let of_domain = |id: DomainId| {
            let mut nodes: Vec<NodeId> = tree.range(id).map(|at| tree.node(at).0).collect();
            nodes.sort_unstable();
            (tree.tier(id), nodes)
        };
        let inside = |tier: usize, within| &tree.of_tier(tier)[tree.ranks(tier, within)];
        let all: Vec<DomainId> = (0..3).flat_map(|tier| inside(tier, DomainId::ROOT).to_vec()).collect();
        let mut found: Vec<(usize, Vec<NodeId>)> = all.iter().copied().map(of_domain).collect();
        found.sort_unstable();
        sets.sort_unstable();
        assert_eq!(found, sets);
        for &id in &all {
            assert_eq!(tree.of_tier(tree.tier(id))[tree.rank(id)], id);
            let parent = tree.parent(id);
            assert!(tree.tier(parent) > tree.tier(id));
            let outer = tree.range(parent);
            let inner = tree.range(id);
            assert!(outer.start <= inner.start && inner.end <= outer.end);
            // Two nodes of a domain meet in it or below.
            let met = tree.around(inner.end - 1, Some(tree.around(inner.start, None)));
            assert!(tree.up_to(met, tree.tier(id)).any(|of| of == id));
            let siblings = inside(tree.tier(id), parent);
            assert!(siblings.contains(&id) && siblings.iter().all(|&of| tree.range(of).end <= outer.end));
        }
        // With labels for all of these values, it is the same tree.
        let (labelled, _) = cluster(&drawn.labelled, Vec::new());
        let same = super::tests::tree(&labelled);
        let described = |tree: &Tree| -> Vec<(usize, Range<u32>, DomainId, Arc<str>)> {
            let of = |id| (tree.tier(id), tree.range(id), tree.parent(id), Arc::clone(tree.path(id)));
            (0..3).flat_map(|tier| tree.of_tier(tier)).copied().map(of).collect()
        };
        let nodes = |tree: &Tree| tree.positions().map(|at| tree.node(at)).collect::<Vec<_>>();
        assert_eq!((described(&tree), nodes(&tree)), (described(&same), nodes(&same)));
        for &id in &ids {
            assert_eq!(mixed.scheduler().domain_path(id), labelled.scheduler().domain_path(id));
        }
    }
    assert!(ways.iter().all(|&count| count > 100), "{ways:?}");
}
