//! Compares the placement of groups with an oracle that tries all assignments. A placement satisfies every
//! rule. A group of equal bundles is never refused if it has a placement.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::by_hand::{add_node, ask, check_all, cores};
use crate::group_bed::{self, create, engine, group_of, labelled, nodes_of, same, with_nodes};
use crate::group_oracle::{Cases, Counts};
use wharf_core::engine::Engine;
use wharf_core::group::{GroupRefusalReason, GroupSpec, Spreading, Strategy, TopologyRule};
use wharf_core::ids::NodeId;
use wharf_core::limits::RULE_NODES_NAMED_MAX;
use wharf_core::node::{Operator, Selector, Term};
use wharf_core::request::PlacementRequest;
use wharf_core::router::PortRequest;

/// Runs groups, each on its own cluster. Counts those placed, refused, and refused in spite of a placement.
fn compare(alike: bool, seeds: std::ops::Range<u64>) -> Counts {
    let mut counts = Counts::new();
    for seed in seeds {
        let mut cases = Cases::new(seed, alike);
        let (mut engine, mut nodes) = cases.cluster();
        cases.fill(&mut engine, &mut nodes);
        let case = cases.case(&nodes);
        match create(&mut engine, case.spec()) {
            Ok(view) => {
                *counts.entry("placed").or_default() += 1;
                let places = case.places_of(&view);
                case.check_rules(&places).unwrap_or_else(|rule| panic!("seed {seed}: {rule}: {case:#?}"));
                assert!(case.exists(), "seed {seed}: the oracle misses {places:?} of {case:#?}");
            }
            Err(refusal) => {
                let missed = case.exists();
                assert!(!(alike && missed), "seed {seed}: {refusal:?}, but there is one: {case:#?}");
                *counts.entry(if missed { "missed" } else { "refused" }).or_default() += 1;
            }
        }
        check_all(&engine);
    }
    counts
}

#[test]
fn bundles_that_are_alike_are_placed_wherever_that_can_be() {
    let counts = compare(true, 0..1500);
    assert!(counts["placed"] > 400 && counts["refused"] > 400, "{counts:?}");
}

#[test]
fn bundles_that_differ_are_placed_but_for_few() {
    let counts = compare(false, 10_000..12_000);
    let missed = counts.get("missed").copied().unwrap_or(0);
    assert!(counts["placed"] > 500 && counts["refused"] > 400, "{counts:?}");
    assert!(100 * missed <= counts["placed"], "more than one of a hundred is missed: {counts:?}");
}

/// Adds nodes with cores in these zones.
fn zoned(engine: &mut Engine, nodes: &[(&str, u32)]) -> Vec<NodeId> {
    let node = |(at, &(zone, cpu)): (usize, &(&str, u32))| labelled(&format!("n{at}"), cpu, zone);
    nodes.iter().enumerate().map(node).map(|spec| add_node(engine, spec).id).collect()
}

fn by_zone(max_skew: u32, spec: GroupSpec) -> GroupSpec {
    let spreading = Spreading::Spread { max_skew };
    GroupSpec { topology: Some(TopologyRule { key: "zone".into(), spreading }), ..spec }
}

fn in_zones(request: PlacementRequest, zones: &[&str]) -> PlacementRequest {
    let values = zones.iter().map(|&zone| zone.to_owned()).collect();
    let term = Term { key: "zone".to_owned(), operator: Operator::In, values };
    PlacementRequest { selector: Some(Arc::new(Selector::new(vec![term]))), ..request }
}

#[test]
fn soft_spreading_within_a_skew_uses_nodes_again_only_where_no_other_is_left() {
    let mut engine = engine(2, 1);
    let nodes = zoned(&mut engine, &[("a", 16), ("a", 16), ("b", 16), ("b", 16), ("b", 16)]);
    let strict = by_zone(1, group_of(cores(1), 8, Strategy::StrictSpread));
    create(&mut engine, strict).expect_err("there are five nodes");
    let soft = by_zone(1, group_of(cores(1), 8, Strategy::Spread));
    let counts = nodes_of(&create(&mut engine, soft).expect("nodes hold several"));
    let counts: Vec<usize> = nodes.iter().map(|node| counts.get(node).copied().unwrap_or(0)).collect();
    let zones: (usize, usize) = (counts[..2].iter().sum(), counts[2..].iter().sum());
    assert_eq!((zones, counts.iter().filter(|&&count| count == 0).count()), ((4, 4), 0), "{counts:?}");
    assert!(counts.iter().all(|&count| count <= 2), "each zone uses its nodes evenly: {counts:?}");
    check_all(&engine);
}

#[test]
fn values_that_every_selector_excludes_keep_nothing_back() {
    let mut engine = engine(2, 1);
    zoned(&mut engine, &[("a", 8), ("b", 8), ("c", 8)]);
    let open = in_zones(cores(2), &["a", "b"]);
    let placed =
        create(&mut engine, by_zone(1, group_of(open, 4, Strategy::Pack))).expect("c does not count");
    assert_eq!(nodes_of(&placed).into_values().collect::<Vec<_>>(), [2, 2]);
    // Another bundle may be placed there, so the zone counts.
    let mut bundles = same(in_zones(cores(1), &["a"]), 3);
    bundles.push(Arc::new(in_zones(cores(9), &["c"])));
    let mixed = by_zone(1, GroupSpec { min_members: 3, ..GroupSpec::new(bundles, Strategy::Pack) });
    let refusal = create(&mut engine, mixed).expect_err("c can have none, so a has one at most");
    let GroupRefusalReason::SkewTooSmall { value, room, most, .. } = refusal.reason else {
        panic!("{refusal:?}")
    };
    assert_eq!((refusal.infeasible, &*value, room, most), (true, "c", 0, 1));
}

#[test]
fn bundles_that_differ_are_tried_in_other_orders() {
    // The large bundles fit only into one zone. They must wait until the small ones allow it.
    let mut engine = engine(1, 1);
    let nodes = zoned(&mut engine, &[("a", 8), ("a", 8), ("b", 2), ("b", 2)]);
    let bundles = [same(cores(4), 3), same(cores(1), 3)].concat();
    let spread = create(&mut engine, by_zone(1, GroupSpec::new(bundles, Strategy::Pack)));
    let counts: BTreeMap<NodeId, usize> = nodes_of(&spread.expect("three in each"));
    assert_eq!(nodes[..2].iter().filter_map(|node| counts.get(node)).sum::<usize>(), 3, "{counts:?}");
    // The largest bundle of a gang takes the capacity that three small ones need.
    let mut engine = group_bed::engine(1, 1);
    with_nodes(&mut engine, 1, 9, 0);
    let bundles = [same(cores(8), 1), same(cores(3), 3)].concat();
    for strategy in [Strategy::Pack, Strategy::StrictPack, Strategy::Spread] {
        let gang = GroupSpec { min_members: 3, ..GroupSpec::new(bundles.clone(), strategy) };
        let gang = create(&mut engine, gang).expect("the small ones fit");
        assert_eq!(nodes_of(&gang).into_values().collect::<Vec<_>>(), [3], "{strategy:?}");
        let job = wharf_core::group::PlanJob::RemoveGroup(gang.id);
        ask(&mut engine, PortRequest::Plan(job));
    }
}

#[test]
fn a_refusal_says_when_the_groups_own_bundles_are_in_the_way() {
    let mut engine = engine(2, 1);
    zoned(&mut engine, &[("a", 8), ("a", 8), ("a", 8), ("b", 8), ("b", 8)]);
    let full = ask(&mut engine, PortRequest::Place(in_zones(cores(8), &["b"])));
    assert!(matches!(full, wharf_core::router::PortReply::Place(Ok(_))), "{full:?}");
    let says = |engine: &mut Engine, spec| {
        let refusal = create(engine, spec).expect_err("too many");
        assert!(!refusal.infeasible, "{refusal:?}");
        refusal.reason.to_string()
    };
    assert_eq!(
        says(&mut engine, group_of(cores(1), 5, Strategy::StrictSpread)),
        "placed 4 of 5: the 4 nodes with room for bundle 4 are used by this group's own bundles (strict-spread)"
    );
    assert_eq!(
        says(&mut engine, group_of(cores(5), 5, Strategy::Pack)),
        "placed 4 of 5: the 4 nodes with room for bundle 4 are used by this group's own bundles (pack)"
    );
    assert_eq!(
        says(&mut engine, by_zone(1, group_of(cores(5), 4, Strategy::Pack))),
        "placed 3 of 4: zone=b has 1 of them and no room for bundle 3, and no other value may have more than 1 \
         beyond that"
    );
    let spreading = Spreading::Pack { strict: true };
    let topology = Some(TopologyRule { key: "zone".into(), spreading });
    let taken = ask(&mut engine, PortRequest::Place(in_zones(cores(8), &["a"])));
    assert!(matches!(taken, wharf_core::router::PortReply::Place(Ok(_))), "{taken:?}");
    assert_eq!(
        says(&mut engine, GroupSpec { topology, ..group_of(cores(5), 3, Strategy::Pack) }),
        "no value of zone has room for 3 bundles: zone=a has the most, for 2 of them, and none for bundle 2 \
         in addition"
    );
    let topology = Some(TopologyRule { key: "rack".into(), spreading });
    let none = GroupSpec { topology, ..group_of(cores(1), 1, Strategy::Pack) };
    let none = create(&mut engine, none).expect_err("no such label");
    let text = "no node that takes work, and where one of the bundles may be placed, has the label rack";
    assert_eq!((none.infeasible, &*none.reason.to_string()), (true, text));
    check_all(&engine);
}

#[test]
fn a_value_of_more_nodes_than_are_named_is_selected_by_its_label() {
    let mut engine = engine(2, 1);
    let count = RULE_NODES_NAMED_MAX as u32 + 4;
    let nodes: Vec<NodeId> = (0..count)
        .map(|number| {
            let zone = if number < 3 { "a" } else { "b" };
            add_node(&mut engine, labelled(&format!("n{number}"), 8, zone)).id
        })
        .collect();
    let zone_of = |node: NodeId| usize::from(!nodes[..3].contains(&node));
    let rule = |spreading| Some(TopologyRule { key: "zone".into(), spreading });
    // Zone a has 24 cores, on three nodes of eight.
    let packed = GroupSpec {
        topology: rule(Spreading::Pack { strict: true }),
        ..group_of(cores(6), 8, Strategy::Pack)
    };
    let view = create(&mut engine, packed).expect("zone b has room");
    assert!(nodes_of(&view).keys().all(|&node| zone_of(node) == 1), "{view:?}");
    let spread = GroupSpec {
        topology: rule(Spreading::Spread { max_skew: 1 }),
        ..group_of(cores(6), 6, Strategy::StrictSpread)
    };
    let view = create(&mut engine, spread).expect("three in each zone");
    let in_b = nodes_of(&view).keys().filter(|&&node| zone_of(node) == 1).count();
    assert_eq!((nodes_of(&view).len(), in_b), (6, 3));
    check_all(&engine);
}
