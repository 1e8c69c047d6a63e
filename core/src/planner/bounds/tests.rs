//! The bounds of small fields, worked out by hand.

use super::super::test_bed::{cores, items_of, node_of, wanted_of};
use super::*;

#[test]
fn a_judgement_is_charged_by_what_it_looks_at() {
    let field_of = |kinds: u32| {
        let mut field = Field::new(&wanted_of(Strategy::Pack, items_of((1..=kinds).map(cores))));
        for value in ["a", "b", "c", "d", "e"] {
            field.add_node(Some(value), u64::MAX, &Capacity::new(&node_of(64, &[]), &[]));
        }
        field
    };
    // Sixteen kinds of bundles are as much as the nodes themselves.
    for (kinds, units) in [(1, 5), (15, 5), (16, 2 * 5), (40, 3 * 5)] {
        assert_eq!(field_of(kinds).begin_judging(), units, "{kinds} kinds");
    }
}

#[test]
fn a_flow_is_sought_while_the_square_of_its_edges_is_within_the_bound() {
    let edges = PROOF_FLOW_MAX.isqrt();
    for (kinds, sinks) in [(1, 1), (1, edges), (edges, 1), (2, edges / 2)] {
        assert!(!too_much(kinds, sinks), "{kinds} kinds and {sinks} sinks");
    }
    for (kinds, sinks) in [(1, edges + 1), (edges + 1, 1), (2, edges), (1, usize::MAX)] {
        assert!(too_much(kinds, sinks), "{kinds} kinds and {sinks} sinks");
    }
}

/// A field of these bundles, at least `least` of them, and of nodes of so many cores. The mask says which
/// requests may be placed on a node at all.
fn field_of(strategy: Strategy, least: usize, asked: &[(u32, usize)], nodes: &[(u32, u64)]) -> Field {
    let requests = asked.iter().flat_map(|&(cpu, count)| std::iter::repeat_n(cores(cpu), count));
    let mut field = Field::new(&Wanted { least, ..wanted_of(strategy, items_of(requests)) });
    for &(cpu, held) in nodes {
        field.add_node(None, held, &Capacity::new(&node_of(cpu, &[]), &[]));
    }
    field
}

#[test]
fn the_bound_is_the_least_of_all_and_the_reason_the_first_that_suffices() {
    const CPU: ResourceKind = ResourceKind::Cpu;
    let bound = |strategy, least, asked: &[(u32, usize)], nodes: &[(u32, u64)]| {
        let field = field_of(strategy, least, asked, nodes);
        let Bound { most, why } = field.bound(&field.everywhere());
        (most, why)
    };
    let three = |cpu| [(cpu, 1), (cpu, 1), (cpu, 1)];
    let pack = Strategy::Pack;
    // Enough for all: the number of bundles.
    assert_eq!(bound(pack, 6, &[(2, 6)], &three(4)), (6, Limit::Cut));
    assert_eq!(bound(pack, 7, &[(2, 7)], &three(4)), (6, Limit::Cluster(CPU)));
    // Fifteen cores are five times three, and no node of five cores holds two.
    assert_eq!(bound(pack, 4, &[(3, 4)], &three(5)), (3, Limit::Cut));
    assert_eq!(bound(pack, 6, &[(3, 6)], &three(5)), (3, Limit::Cluster(CPU)), "the sum is reason enough");
    // Two of each kind have places alone. Together, each node has one of them only.
    assert_eq!(bound(pack, 4, &[(4, 2), (3, 2)], &[(5, 0b11); 3]), (3, Limit::Cut));
    // Three of six cores may only be placed on the first two nodes of eight.
    let confined = [(8, 0b11), (8, 0b11), (32, 0b10)];
    let kind = CPU;
    let why = Limit::Confined { bundles: 3, nodes: 2, kind };
    assert_eq!(bound(pack, 5, &[(6, 3), (1, 2)], &confined), (4, why));
    assert_eq!(bound(Strategy::StrictPack, 3, &[(3, 3)], &[(8, 1), (5, 1)]), (2, Limit::OneNode));
    let apart = Strategy::StrictSpread;
    assert_eq!(bound(apart, 4, &[(1, 4)], &three(16)), (3, Limit::Nodes { bundles: 4, nodes: 3 }));
    assert_eq!(bound(apart, 5, &[(1, 6)], &three(16)), (3, Limit::Nodes { bundles: 5, nodes: 3 }));
    // Of those that may only be placed on two nodes, one is too many. The other two have a node each.
    let nodes = [(16, 0b11), (16, 0b11), (16, 0b10), (16, 0b10)];
    let why = Limit::Nodes { bundles: 3, nodes: 2 };
    assert_eq!(bound(apart, 5, &[(1, 3), (2, 2)], &nodes), (4, why));
}

#[test]
fn what_no_node_holds_is_named_and_not_counted() {
    let possible = |nodes: &[(u32, u64)]| {
        let field = field_of(Strategy::Pack, 6, &[(9, 1), (4, 2), (1, 3)], nodes);
        let (possible, none) = field.possible();
        (possible, none.map(|class| class.bundle))
    };
    assert_eq!(possible(&[(8, 0b111), (2, 0b111)]), (5, Some(0)));
    assert_eq!(possible(&[(3, 0b111)]), (3, Some(0)));
    assert_eq!(possible(&[(9, 0b011)]), (3, Some(3)));
    assert_eq!(possible(&[(9, 0b001), (4, 0b110)]), (6, None));
    assert_eq!(possible(&[]), (0, Some(0)));
}

#[test]
fn values_hold_what_the_one_with_the_least_room_and_the_skew_allow() {
    // For each value whether it counts, the bundles that are placed there, and those that it could hold more.
    let bound = |bundles: usize, least, max_skew, values: &[(bool, u32, u32)]| {
        let field = field_of(Strategy::Pack, least, &[(1, bundles)], &[]);
        let value = |&(counts, standing, most)| Value {
            name: "v".into(),
            patches: Vec::new(),
            counts,
            standing,
            most,
        };
        field.spread_bound(&values.iter().map(value).collect::<Vec<_>>(), max_skew)
    };
    assert_eq!(bound(8, 8, 1, &[(true, 0, 2), (true, 0, 9)]), 2 + 3);
    assert_eq!(bound(8, 8, 3, &[(true, 0, 2), (true, 0, 9)]), 2 + 5);
    assert_eq!(bound(8, 8, 1, &[(true, 1, 2), (true, 0, 9)]), 2 + 4);
    assert_eq!(bound(8, 8, 1, &[(true, 0, 2), (true, 1, 9)]), 2 + 2);
    // A value that does not count exceeds those that do by no more than others, and limits nobody.
    assert_eq!(bound(9, 9, 1, &[(true, 0, 2), (false, 0, 9)]), 2 + 3);
    assert_eq!(bound(9, 9, 1, &[(true, 0, 5), (false, 0, 1)]), 5 + 1);
    assert_eq!(bound(9, 9, 1, &[(false, 0, 2), (false, 0, 3)]), 2 + 3);
    assert_eq!(bound(4, 4, 1, &[(false, 0, 2), (false, 0, 3)]), 4);
    // No more than there are, and it is enough to know that the minimum may be placed.
    assert_eq!(bound(3, 3, 1, &[(true, 0, 9), (true, 0, 9)]), 3);
    assert_eq!(bound(9, 4, 1, &[(true, 0, 9), (true, 0, 9)]), 4);
    assert_eq!(bound(9, 9, 1, &[(true, 0, 0), (true, 0, 9)]), 1);
}

#[test]
fn a_field_is_judged_whenever_its_slots_have_doubled() {
    let mut field = field_of(Strategy::Pack, 1, &[(1, 1)], &[]);
    for judged_at in [LOOKED_AT_FIRST, 2 * LOOKED_AT_FIRST, 4 * LOOKED_AT_FIRST] {
        field.looked_at = judged_at - 1;
        assert!(!field.is_due());
        field.looked_at = judged_at;
        assert!(field.is_due() && !field.is_due());
    }
}

#[test]
fn requests_beyond_the_classes_ask_for_nothing() {
    let more = CLASSES_MAX as u32 + 4;
    let field = Field::new(&wanted_of(Strategy::Pack, items_of((1..=more).chain(1..=2).map(cores))));
    assert_eq!(field.classes.len(), CLASSES_MAX + 1);
    let last = field.classes.last().expect("there are many");
    assert_eq!((last.request.demand.clone(), last.count), (Demand::default(), 4));
    assert_eq!([0, 1, 2].map(|class: usize| field.classes[class].count), [2, 2, 1]);
}
