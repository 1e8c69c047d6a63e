//! The costs of selectors: a placement examines few nodes for its selector, regardless of the number of
//! distinct selectors and of nodes.

use std::sync::Arc;

use crate::by_hand::{lone_node, lone_shard, node_spec};
use wharf_core::limits::ALLOCATIONS_PER_NODE_MAX;
use wharf_core::node::{Labels, Operator, Selector, Taint, TaintEffect, Taints, Term};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand};
use wharf_core::shard::{Command, Outcome, Shard};
use wharf_core::time::Time;

fn term(key: &str, operator: Operator, value: &str) -> Term {
    Term { key: key.into(), operator, values: vec![value.into()] }
}

/// Creates nodes of 64 cores, with one of ten zones, one of a hundred racks, and a name. The node `tainted`
/// has a taint.
fn nodes(count: u64, tainted: Option<u64>) -> Shard {
    let mut shard = lone_shard();
    // Best-fit fills the same few nodes for all selectors.
    shard.set_allocations_per_node_max(ALLOCATIONS_PER_NODE_MAX);
    for number in 1..=count {
        let mut spec = node_spec(&format!("n{number}"), 64, 0);
        let label = |key: &str, value: String| (key.into(), value.into());
        let labels = vec![
            label("zone", format!("z{}", number % 10)),
            label("rack", format!("r{}", number % 100)),
            label("host", format!("h{number}")),
            label("cores", format!("{}", 32 * (1 + number % 4))),
        ];
        spec.labels = Labels::new(labels).expect("distinct keys");
        if tainted.is_some_and(|one_in| number.is_multiple_of(one_in)) {
            let taint = Taint { key: "team".into(), value: "a".into(), effect: TaintEffect::NoSchedule };
            spec.taints = Taints::new(vec![taint]).expect("one taint");
        }
        shard.step([lone_node(number, spec, false)], Time(0), &mut Vec::new());
    }
    shard
}

/// Returns a selector that depends on its number: for a host, a rack, a zone, half of the nodes, or nearly
/// all.
fn selector(number: u64) -> Selector {
    let not_host = term("host", Operator::NotIn, &format!("h{number}"));
    let part = number / 5;
    Selector::new(match number % 5 {
        0 => vec![term("host", Operator::In, &format!("h{}", 1 + part % 499))],
        1 => vec![term("rack", Operator::In, &format!("r{}", part % 100)), not_host],
        2 => vec![term("zone", Operator::In, &format!("z{}", part % 10)), not_host],
        3 => vec![term("cores", Operator::Greater, "64"), not_host],
        _ => vec![not_host],
    })
}

/// Returns the cost per placement of `selectors` selectors in turn, after each was used once.
fn cost(shard: &mut Shard, selectors: u64) -> (u64, u64) {
    let demand = Demand { cpu: Amount::from_milli(1), ..Demand::default() };
    let request = PlacementRequest::new(demand, Policy::BestFit);
    let place = |shard: &mut Shard, number: u64| {
        let selector = Some(Arc::new(selector(number)));
        let mut outcomes = Vec::new();
        shard.step(
            [Command::Place(PlacementRequest { selector, ..request.clone() })],
            Time(0),
            &mut outcomes,
        );
        assert!(matches!(outcomes[0], Outcome::Place(Ok(_))), "{:?}", outcomes[0]);
    };
    (0..selectors).for_each(|number| place(shard, number));
    let before = (shard.work(), shard.visits());
    (0..selectors).for_each(|number| place(shard, number));
    let after = (shard.work(), shard.visits());
    let nodes = after.0.selector_nodes_looked_at - before.0.selector_nodes_looked_at;
    let words = after.0.selector_words_looked_at - before.0.selector_words_looked_at;
    ((nodes + after.1.nodes - before.1.nodes) / selectors, words / selectors)
}

fn assert_cheap(tainted: Option<u64>) {
    for count in [1_000, 20_000] {
        for selectors in [200, 300, 3_000] {
            let mut shard = nodes(count, tainted);
            let (nodes, words) = cost(&mut shard, selectors);
            assert!(
                nodes <= 300 && words <= 8 * (1 + count / 64),
                "{nodes} nodes, {words} words per placement: {selectors} selectors, {count} nodes"
            );
        }
    }
}

#[test]
fn a_placement_looks_at_few_nodes_however_many_selectors_take_turns() {
    assert_cheap(None);
}

/// With a tainted node, every request is placed by rank.
#[test]
fn so_it_does_where_requests_go_by_rank() {
    assert_cheap(Some(500));
}
