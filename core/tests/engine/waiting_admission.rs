//! Conditions that keep a node from a request also keep it from waiting requests, which are woken when the
//! condition ends: taints, labels of fallbacks, health, node state.

use std::sync::Arc;

use crate::by_hand::{cores, lone_node, lone_shard, node_spec};
use wharf_core::ids::NodeId;
use wharf_core::node::{Labels, LifeEvent, NodeSpec, Operator, Selector, Taint, TaintEffect, Taints, Term};
use wharf_core::request::{PlacementRequest, Policy, Preferences, RankRules};
use wharf_core::resource::{Demand, GpuRequest};
use wharf_core::shard::{Command, Home, NodeChange, Outcome, Park, Refused, Shard, WaitToken};
use wharf_core::time::Time;

const NODE: NodeId = NodeId(1);
const TOKEN: WaitToken = WaitToken { port: 0, number: 1 };

/// Creates a shard of one node, with or without an agent.
fn shard_of(spec: &NodeSpec, agent: bool) -> Shard {
    let mut shard = lone_shard();
    assert!(matches!(
        step(&mut shard, lone_node(1, spec.clone(), agent)),
        Outcome::Node(Ok(NodeChange::Added(NODE)))
    ));
    shard
}

/// The same as [`shard_of`], with `request` waiting.
fn waiting_for(spec: &NodeSpec, agent: bool, request: PlacementRequest) -> Shard {
    let mut shard = shard_of(spec, agent);
    park(&mut shard, request);
    shard
}

fn park(shard: &mut Shard, request: PlacementRequest) {
    let park = Park { token: TOKEN, request, priority: 0, since: Time(0), home: Home::Here };
    let outcome = step(shard, Command::Park(Box::new(park)));
    assert!(matches!(outcome, Outcome::Place(Err(Refused { parked: true, .. }))), "{outcome:?}");
    assert_eq!(shard.drain_woken().count(), 0);
}

fn step(shard: &mut Shard, command: Command) -> Outcome {
    let mut outcomes = Vec::new();
    shard.step([command], Time(0), &mut outcomes);
    shard.check_invariants().expect("nothing waits that would fit");
    outcomes.remove(0)
}

/// Executes `command`, which must wake the request, and retries the request, which must be placed.
#[track_caller]
fn wakes(shard: &mut Shard, command: Command) {
    let outcome = step(shard, command);
    assert!(matches!(outcome, Outcome::Node(Ok(_))), "{outcome:?}");
    assert_eq!(shard.drain_woken().collect::<Vec<_>>(), [TOKEN]);
    let outcome = step(shard, Command::Retry(TOKEN));
    assert!(matches!(outcome, Outcome::Place(Ok(_))), "{outcome:?}");
}

#[track_caller]
fn wakes_nobody(shard: &mut Shard, command: Command) {
    let outcome = step(shard, command);
    assert!(matches!(outcome, Outcome::Node(Ok(_))), "{outcome:?}");
    assert_eq!(shard.drain_woken().count(), 0);
}

fn update(spec: NodeSpec) -> Command {
    Command::UpdateNode(NODE, Box::new(spec))
}

fn tainted(effect: TaintEffect) -> NodeSpec {
    let taint = Taint { key: "team".into(), value: "a".into(), effect };
    NodeSpec { taints: Taints::new(vec![taint]).expect("one taint"), ..node_spec("n", 4, 0) }
}

#[test]
fn a_taint_that_goes_wakes_who_does_not_tolerate_it() {
    let mut shard = waiting_for(&tainted(TaintEffect::NoSchedule), false, cores(1));
    wakes_nobody(&mut shard, update(tainted(TaintEffect::NoExecute)));
    wakes(&mut shard, update(tainted(TaintEffect::PreferNoSchedule)));
}

#[test]
fn a_label_that_satisfies_a_fallback_wakes() {
    let zone = |zone: &str| {
        let term = Term { key: "zone".to_owned(), operator: Operator::In, values: vec![zone.to_owned()] };
        Arc::new(Selector::new(vec![term]))
    };
    let labelled = |zone: &str| {
        let labels = Labels::new(vec![("zone".into(), zone.into())]).expect("one label");
        NodeSpec { labels, ..node_spec("n", 4, 0) }
    };
    let rules = RankRules::new(vec![zone("b"), zone("c")], Vec::new(), Vec::new()).expect("two fallbacks");
    let preferences = Preferences { rules: Some(Arc::new(rules)), ..Preferences::default() };
    let request =
        PlacementRequest { selector: Some(zone("a")), preferences: Some(Arc::new(preferences)), ..cores(1) };
    let mut shard = waiting_for(&labelled("d"), false, request);
    wakes_nobody(&mut shard, update(labelled("e")));
    wakes(&mut shard, update(labelled("c")));
}

#[test]
fn a_gpu_that_is_healed_wakes() {
    let demand = Demand { gpu: GpuRequest::Whole(2), ..Demand::default() };
    let spec = node_spec("n", 4, 2);
    let request = PlacementRequest::new(demand, Policy::BestFit);
    let broken = |instances: &[u8]| {
        Command::SetHealth(NODE, instances.iter().map(|&instance| (instance, "Xid 79".into())).collect())
    };
    let mut shard = shard_of(&spec, false);
    step(&mut shard, broken(&[0, 1]));
    park(&mut shard, request);
    wakes_nobody(&mut shard, broken(&[1]));
    wakes(&mut shard, broken(&[]));
}

#[test]
fn a_node_that_becomes_ready_wakes() {
    let mut joining = waiting_for(&node_spec("n", 4, 0), true, cores(1));
    wakes(&mut joining, Command::Life(NODE, LifeEvent::Beat));
    let mut lost = waiting_for(&node_spec("n", 4, 0), true, cores(1));
    wakes_nobody(&mut lost, Command::Life(NODE, LifeEvent::Lose));
    wakes(&mut lost, Command::Life(NODE, LifeEvent::Beat));
    let mut drained = waiting_for(&node_spec("n", 4, 0), true, cores(1));
    wakes_nobody(&mut drained, Command::Life(NODE, LifeEvent::Drain));
    wakes(&mut drained, Command::Life(NODE, LifeEvent::Undrain));
}
