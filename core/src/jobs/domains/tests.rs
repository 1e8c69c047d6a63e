//! Domains as objects: their checks, the names that they match, and the values of nodes.

use super::*;
use crate::rng::Rng;

fn tiers(tiers: &[(&str, Option<&str>)]) -> Vec<TopologyTier> {
    let tier = |&(name, label): &(&str, Option<&str>)| TopologyTier {
        name: name.into(),
        label: label.map(Into::into),
    };
    tiers.iter().map(tier).collect()
}

fn racks_and_blocks() -> Vec<TopologyTier> {
    tiers(&[("rack", Some("topology/rack")), ("block", None)])
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    Labels::new(pairs.iter().map(|&(key, value)| (key.into(), value.into())).collect())
        .expect("each key once")
}

fn texts(all: &[&str]) -> Vec<Arc<str>> {
    all.iter().map(|&text| text.into()).collect()
}

fn of_nodes(tier: &str, name: &str, nodes: &[&str]) -> TopologyDomain {
    TopologyDomain { nodes: texts(nodes), ..TopologyDomain::new(tier, name) }
}

fn of_labels(tier: &str, name: &str, pairs: &[(&str, &str)]) -> TopologyDomain {
    TopologyDomain { labels: labels(pairs), ..TopologyDomain::new(tier, name) }
}

fn of_domains(tier: &str, name: &str, domains: &[&str]) -> TopologyDomain {
    TopologyDomain { domains: texts(domains), ..TopologyDomain::new(tier, name) }
}

/// The domains of the example in the documentation.
fn example() -> Vec<TopologyDomain> {
    vec![
        of_nodes("rack", "r1", &["gpu-a-*", "gpu-b-07"]),
        of_labels("rack", "r2", &[("switch", "s7")]),
        of_domains("block", "b1", &["r1", "r2"]),
    ]
}

#[test]
fn each_fault_is_told_with_its_place_and_a_remedy() {
    let long = "n".repeat(NAME_BYTES_MAX + 1);
    let longest = &long[1..];
    let block = |name| of_nodes("block", name, &["n1"]);
    assert_eq!(check_domains(&racks_and_blocks(), &example()), Ok(()));
    assert_eq!(
        check_domains(&racks_and_blocks(), &[of_nodes("rack", longest, &[longest]), block("b")]),
        Ok(())
    );
    // What a domain names may be the value of a label, and names are unique in their tier only.
    assert_eq!(check_domains(&racks_and_blocks(), &[of_domains("block", "r1", &["r1", "r9"])]), Ok(()));
    assert_eq!(check_domains(&racks_and_blocks(), &[of_labels("block", "b", &[("k", "")])]), Ok(()));
    let both = [of_nodes("rack", "r1", &["n1"]), block("b1")];
    assert_eq!(check_domains(&racks_and_blocks(), &both), Ok(()), "a node is in a domain of each tier");
    let cases: Vec<(Vec<TopologyDomain>, Option<usize>, &str)> = vec![
        (vec![block("b"), of_nodes("row", "x", &["n"])], Some(1), "name one of rack, block"),
        (vec![block("")], Some(0), "a domain of tier `block` needs a name of 1 to 253 bytes"),
        (vec![block(&long)], Some(0), "a domain of tier `block` needs a name"),
        (vec![block("a\nb")], Some(0), "without control characters"),
        (
            vec![block("b"), of_domains("block", "b", &["r"])],
            Some(1),
            "domain `b` of tier `block` is there twice",
        ),
        (
            vec![block("b"), TopologyDomain::new("rack", "r")],
            Some(1),
            "domain `r` has no members: give it `nodes`",
        ),
        (vec![of_nodes("block", "b", &["n", ""])], Some(0), "a member of 0 bytes"),
        (vec![of_nodes("block", "b", &[&long])], Some(0), "a member of 254 bytes"),
        (vec![of_domains("block", "b", &[""])], Some(0), "a member of 0 bytes"),
        (vec![of_labels("block", "b", &[("", "v")])], Some(0), "a member of 0 bytes"),
        (vec![of_labels("block", "b", &[("k", &long)])], Some(0), "a member of 254 bytes"),
        (vec![of_labels("block", "b", &[(&long, "v")])], Some(0), "a member of 254 bytes"),
        (vec![block("b"), of_domains("rack", "r", &["x"])], Some(1), "no tier is narrower than `rack`"),
        (vec![block("b"), block("c")], Some(1), "node `n1` is named twice in domains of tier `block`"),
        (vec![of_nodes("block", "b", &["n", "n"])], Some(0), "node `n` is named twice"),
        (
            vec![of_domains("block", "b", &["r"]), of_domains("block", "c", &["r"])],
            Some(1),
            "domain `r` is named twice in `domains` of tier `block`",
        ),
        (
            vec![of_nodes("rack", "r", &["n"])],
            None,
            "tier `block` has neither a label nor domains: give it a `label`",
        ),
        (vec![], None, "tier `block` has neither a label nor domains"),
    ];
    for (domains, at, part) in cases {
        let (found, fault) = check_domains(&racks_and_blocks(), &domains).expect_err(part);
        assert!(found == at && fault.to_string().contains(part), "{domains:?}: {found:?}: {fault}");
    }
    let (_, fault) = check_domains(&[], &[block("b")]).expect_err("there are no tiers");
    assert!(matches!(fault, DomainFault::UnknownTier { .. }), "{fault}");
}

#[test]
fn lists_are_bounded() {
    let tiers = tiers(&[("rack", Some("rack"))]);
    let many = |count: usize, node: fn(usize) -> String| -> Vec<TopologyDomain> {
        (0..count).map(|number| of_nodes("rack", &format!("r{number}"), &[&node(number)])).collect()
    };
    let exact = |number| format!("n{number}");
    let fault = |domains: &[TopologyDomain]| check_domains(&tiers, domains);
    assert_eq!(fault(&many(TOPOLOGY_DOMAINS_MAX, exact)), Ok(()));
    let count = TOPOLOGY_DOMAINS_MAX + 1;
    let too_many = (Some(TOPOLOGY_DOMAINS_MAX), DomainFault::TooMany(count));
    assert_eq!(fault(&many(count, exact)), Err(too_many));

    let nodes: Vec<Arc<str>> = (0..TOPOLOGY_MEMBERS_MAX).map(|number| format!("n{number}").into()).collect();
    let mut large = vec![TopologyDomain { nodes, ..TopologyDomain::new("rack", "r") }];
    assert_eq!(fault(&large), Ok(()));
    large.push(of_labels("rack", "one-more", &[("k", "v")]));
    assert_eq!(fault(&large), Err((Some(1), DomainFault::TooManyMembers)));

    let pattern = |number| format!("n{number}-*");
    let mut searched = many(TOPOLOGY_SEARCHED_MEMBERS_MAX, pattern);
    searched.push(of_nodes("rack", "exact", &["n"]));
    assert_eq!(fault(&searched), Ok(()), "exact names cost no search");
    searched.push(of_labels("rack", "labels", &[("k", "v"), ("l", "v")]));
    assert_eq!(fault(&searched), Err((Some(searched.len() - 1), DomainFault::TooManySearched)));
}

#[test]
fn a_star_is_any_run_of_characters() {
    for (pattern, name, expected) in [
        ("gpu-a-*", "gpu-a-7", true),
        ("gpu-a-*", "gpu-a-", true),
        ("gpu-a-*", "gpu-b-7", false),
        ("*-7", "gpu-a-7", true),
        ("*-7", "gpu-a-71", false),
        ("gpu-*-7", "gpu-a-7", true),
        ("gpu-*-7", "gpu-7", false),
        ("*a*", "bab", true),
        ("*a*", "bbb", false),
        ("*", "any", true),
        ("**", "any", true),
        ("a*a", "a", false),
        ("ab*ba", "aba", false),
        ("ä*ü", "äöü", true),
        ("?-*", "a-b", false),
    ] {
        assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
    }
}

/// Tries all ways in which a pattern could match.
fn may_match(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|from| may_match(rest, &name[from..])),
        Some((first, rest)) => {
            name.split_first().is_some_and(|(of, name)| of == first && may_match(rest, name))
        }
    }
}

#[test]
fn patterns_match_as_if_all_ways_were_tried() {
    let mut rng = Rng::new(5);
    let mut found = [0; 2];
    for _ in 0..20_000 {
        let mut text = |of: &str, most: u64| -> String {
            let length = rng.below(most);
            (0..length).map(|_| char::from(of.as_bytes()[rng.below(of.len() as u64) as usize])).collect()
        };
        let pattern = text("ab*", 7);
        let name = text("ab", 8);
        let expected = may_match(pattern.as_bytes(), name.as_bytes());
        assert_eq!(matches(&pattern, &name), expected, "{pattern} {name}");
        found[usize::from(expected)] += 1;
    }
    assert!(found.iter().all(|&count| count > 1_000), "{found:?}");
}

#[test]
fn a_node_has_the_value_of_its_label_or_of_the_first_object_that_contains_it() {
    let domains = NodeDomains::new(&racks_and_blocks(), &example());
    let values = |name: &str, pairs: &[(&str, &str)]| {
        let labels = labels(pairs);
        let values = domains.values(name, &labels);
        values.iter().map(|value| value.unwrap_or("-").to_owned()).collect::<Vec<_>>().join("/")
    };
    for (name, pairs, expected) in [
        ("gpu-a-1", &[][..], "b1/r1"),
        ("gpu-b-07", &[], "b1/r1"),
        ("gpu-b-08", &[], "-/-"),
        ("gpu-b-08", &[("switch", "s7")], "b1/r2"),
        ("gpu-b-08", &[("switch", "s8")], "-/-"),
        // The first object counts, and the label of the tier counts before all.
        ("gpu-a-1", &[("switch", "s7")], "b1/r1"),
        ("gpu-a-1", &[("topology/rack", "r5")], "-/r5"),
        ("x", &[("topology/rack", "r2")], "b1/r2"),
    ] {
        assert_eq!(values(name, pairs), expected, "{name} {pairs:?}");
    }
}

#[test]
fn the_first_object_counts_by_whatever_it_contains_the_node() {
    let tiers = tiers(&[("rack", Some("rack")), ("block", None)]);
    let node = labels(&[("rack", "r"), ("k", "v")]);
    let all = [
        of_nodes("block", "by-name", &["n"]),
        of_nodes("block", "by-pattern", &["*n"]),
        of_labels("block", "by-labels", &[("k", "v"), ("rack", "r")]),
        of_domains("block", "by-domain", &["r"]),
        of_labels("block", "no", &[("k", "v"), ("other", "v")]),
    ];
    for first in 0..4 {
        for second in 0..5 {
            let mut domains = vec![all[first].clone()];
            if second != first {
                domains.push(all[second].clone());
                domains.insert(0, all[4].clone());
            }
            domains.dedup();
            let found = NodeDomains::new(&tiers, &domains);
            assert_eq!(found.values("n", &node)[0], Some(&*all[first].name), "{domains:?}");
        }
    }
}

#[test]
fn domains_are_found_by_the_nearest_narrower_tier_with_a_value() {
    let tiers =
        tiers(&[("host", Some("host")), ("rack", Some("rack")), ("block", Some("block")), ("zone", None)]);
    let domains = [of_domains("zone", "z1", &["r1"]), of_domains("zone", "z2", &["b1", "h1"])];
    let found = NodeDomains::new(&tiers, &domains);
    let zone = |pairs: &[(&str, &str)]| found.values("n", &labels(pairs))[0].map(str::to_owned);
    assert_eq!(zone(&[("host", "h1"), ("rack", "r1")]).as_deref(), Some("z1"));
    assert_eq!(zone(&[("rack", "r1"), ("block", "b1")]).as_deref(), Some("z2"));
    assert_eq!(zone(&[("rack", "r1"), ("block", "b7")]), None, "only the nearest one counts");
    assert_eq!(zone(&[("host", "h1")]).as_deref(), Some("z2"));
    assert_eq!(zone(&[]), None);
}

#[test]
fn a_node_without_a_name_is_in_no_object_that_names_nodes() {
    let domains = [of_nodes("rack", "all", &["*"]), of_labels("rack", "some", &[("k", "v")])];
    let found = NodeDomains::new(&tiers(&[("rack", None)]), &domains);
    let of = labels(&[("k", "v")]);
    assert_eq!(found.values("", &of), [Some("some")]);
    assert_eq!(found.values("n", &of), [Some("all")]);
    assert_eq!(found.only_label(0), None);
}
