//! Preferences of requests over several shards, and requests that ask for nothing.

use std::sync::Arc;

use crate::by_hand::{add_node, ask, check_all, cores, node_spec, open};
use wharf_core::engine::Engine;
use wharf_core::ids::NodeId;
use wharf_core::node::{Labels, LifeEvent, Operator, Selector, Taint, TaintEffect, Taints, Term};
use wharf_core::request::{Check, Placement, PlacementRequest, Policy, Preferences, RankRules};
use wharf_core::resource::{Amount, Demand, ResourceKind};
use wharf_core::router::{NotPlaced, PortReply, PortRequest};
use wharf_core::shard::{Command, Outcome};
use wharf_core::state::StoreState;

fn zone(value: &str) -> Arc<Selector> {
    let values = vec![value.to_owned()];
    Arc::new(Selector::new(vec![Term { key: "zone".into(), operator: Operator::In, values }]))
}

fn place(engine: &mut Engine, request: &PlacementRequest) -> Option<Placement> {
    match ask(engine, PortRequest::Place(request.clone())) {
        PortReply::Place(Ok(placement)) => Some(placement),
        PortReply::Place(Err(NotPlaced { ended: None, .. })) => None,
        other => panic!("not an answer to a placement: {other:?}"),
    }
}

/// Creates nodes in `zones`, distributed over eight shards by their names.
fn zoned(zones: &[&str]) -> (Engine, Vec<NodeId>) {
    let mut engine = open(StoreState::create(64), 8, 1);
    let nodes = (0..).zip(zones).map(|(number, zone)| {
        let mut spec = node_spec(&format!("n{number}"), 4, 0);
        spec.labels = Labels::new(vec![("zone".into(), (*zone).into())]).expect("one key");
        add_node(&mut engine, spec).id
    });
    let nodes = nodes.collect();
    (engine, nodes)
}

fn with_fallbacks(cpu: u32, own: &str, fallbacks: &[&str]) -> PlacementRequest {
    let fallbacks = fallbacks.iter().map(|value| zone(value)).collect();
    let rules = RankRules::new(fallbacks, Vec::new(), Vec::new()).expect("few");
    let preferences = Preferences { rules: Some(Arc::new(rules)), ..Preferences::default() };
    PlacementRequest { selector: Some(zone(own)), preferences: Some(Arc::new(preferences)), ..cores(cpu) }
}

#[test]
fn no_shard_falls_back_while_another_has_what_was_asked() {
    // One node of the zone among many of the fallbacks. It is found wherever the search begins.
    let mut zones = vec!["b"; 24];
    zones.push("a");
    zones.extend(["c"; 24]);
    let (mut engine, nodes) = zoned(&zones);
    let request = with_fallbacks(4, "a", &["b", "c"]);
    let placed = place(&mut engine, &request).expect("it is free");
    assert_eq!((placed.node, placed.alternative), (nodes[24], 0));
    // Once it is taken, every node of the first fallback comes before any of the second.
    let alternatives: Vec<u8> =
        (0..48).map(|_| place(&mut engine, &request).expect("there is room").alternative).collect();
    assert_eq!(alternatives, [vec![1; 24], vec![2; 24]].concat());
    assert!(place(&mut engine, &request).is_none());
    check_all(&engine);
}

#[test]
fn a_shard_alone_is_asked_once_with_all_selectors() {
    let mut engine = open(StoreState::create(8), 1, 1);
    let mut spec = node_spec("n", 4, 0);
    spec.labels = Labels::new(vec![("zone".into(), "c".into())]).expect("one key");
    add_node(&mut engine, spec);
    let request = with_fallbacks(4, "a", &["b", "c"]);
    assert_eq!(place(&mut engine, &request).map(|placed| placed.alternative), Some(2));
    assert!(place(&mut engine, &request).is_none());
    assert_eq!(engine.ports[0].spillbacks(), 0);
}

#[test]
fn a_refusal_counts_what_no_selector_holds_and_what_is_tainted() {
    let (mut engine, _) = zoned(&["a", "b", "b", "d"]);
    let mut tainted = node_spec("tainted", 4, 0);
    tainted.labels = Labels::new(vec![("zone".into(), "b".into())]).expect("one key");
    let taint = Taint { key: "team".into(), value: "x".into(), effect: TaintEffect::NoExecute };
    tainted.taints = Taints::new(vec![taint]).expect("one taint");
    add_node(&mut engine, tainted);
    let reply = ask(&mut engine, PortRequest::Place(with_fallbacks(5, "a", &["b"])));
    let PortReply::Place(Err(NotPlaced { ended: None, refusal, .. })) = reply else {
        panic!("no node has five cores: {reply:?}")
    };
    let count = |check: Check| refusal.checks.get(&check).map_or(0, |shortage| shortage.nodes);
    assert_eq!((count(Check::Selector), count(Check::Taint), count(Check::Cpu)), (1, 1, 3), "{refusal:?}");
    assert_eq!((refusal.nodes, refusal.feasible), (5, false));
}

#[test]
fn preferred_nodes_come_first_in_their_order_wherever_they_are() {
    let (mut engine, nodes) = zoned(&["a"; 32]);
    for picks in [[9, 30], [30, 9], [17, 3]] {
        let preferred = picks.map(|pick| nodes[pick]);
        let preferences = Preferences { nodes: preferred.into(), ..Preferences::default() };
        let request = PlacementRequest { preferences: Some(Arc::new(preferences)), ..cores(1) };
        assert_eq!(place(&mut engine, &request).map(|placed| placed.node), Some(preferred[0]));
    }
}

#[test]
fn a_request_of_nothing_goes_by_policy_and_not_on_draining_nodes() {
    let mut engine = open(StoreState::create(1), 1, 1);
    let nodes: Vec<_> =
        (0..4).map(|n| add_node(&mut engine, node_spec(&format!("n{n}"), 2 + n, 0))).collect();
    let nothing = |policy| PlacementRequest::new(Demand::default(), policy);
    let drain = Command::Life(nodes[0].id, LifeEvent::Drain);
    ask(&mut engine, PortRequest::Partition(nodes[0].partition, drain));
    // Full nodes still accept it.
    let full = Demand { cpu: Amount::whole(3), memory: Amount::whole(3 * 4096), ..Demand::default() };
    let mut fill = PlacementRequest::new(full, Policy::FirstFit);
    fill.candidates = Some([nodes[1].id].into());
    place(&mut engine, &fill).expect("the node is empty");
    let spread: Vec<NodeId> =
        (0..6).map(|_| place(&mut engine, &nothing(Policy::Spread)).expect("always").node).collect();
    assert_eq!(spread, [1, 2, 3, 1, 2, 3].map(|n: usize| nodes[n].id));
    for (policy, expected) in [(Policy::FirstFit, 1), (Policy::BestFit, 1), (Policy::LeastFit, 3)] {
        let placed = place(&mut engine, &nothing(policy)).expect("always");
        assert_eq!(placed.node, nodes[expected].id, "{policy}");
        assert_eq!(placed.gpus.mask, 0);
    }
    check_all(&engine);
    // They are in the books, and take nothing.
    let PortReply::Every(outcomes) = ask(&mut engine, PortRequest::Every(Command::Audit { number: 0 }))
    else {
        panic!("every shard answers");
    };
    let Outcome::Status(status) = &outcomes[0] else { panic!("not a status: {outcomes:?}") };
    let cpu =
        status.resources.iter().find(|(kind, _)| *kind == ResourceKind::Cpu).map(|(_, sum)| sum.allocated);
    assert_eq!((status.allocations, cpu), (10, Some(i128::from(Amount::whole(3).units()))));
}
