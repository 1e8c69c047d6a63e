//! Selectors that match too many nodes to walk are searched by marks. There are more selectors than marks,
//! and nodes join, leave and change labels. The answers equal those of a plain scan.

use std::sync::Arc;

use crate::by_hand::{add_node, ask, check_all, cores, export, node_spec, open, remove_node};
use wharf_core::engine::Engine;
use wharf_core::index::Mark;
use wharf_core::limits::CANDIDATE_WALK_MAX;
use wharf_core::node::{Labels, LifeEvent, NodeRegistration, NodeSpec, Operator, Selector, Term};
use wharf_core::request::{PlacementRequest, Policy, Preferences, RankRules};
use wharf_core::rng::Rng;
use wharf_core::router::{NotPlaced, PortReply, PortRequest};
use wharf_core::shard::Command;
use wharf_core::state::StoreState;

const NODES: u64 = 2 * CANDIDATE_WALK_MAX as u64 + 100;
/// More than the number of marks.
const TEAMS: u64 = Mark::COUNT as u64 + 16;

/// Returns a node that two in three teams may use.
fn spec(number: u64, excluded: u64) -> NodeSpec {
    let mut spec = node_spec(&format!("n{number}"), 8, 0);
    let pairs = (0..TEAMS).filter(|team| team % 3 != excluded).take(60);
    let labels = pairs.map(|team| (format!("team-{team}").into(), "yes".into())).collect();
    spec.labels = Labels::new(labels).expect("different keys");
    spec
}

fn request(team: u64, policy: Policy) -> PlacementRequest {
    let term = Term { key: format!("team-{team}"), operator: Operator::Exists, values: Vec::new() };
    PlacementRequest { policy, selector: Some(Arc::new(Selector::new(vec![term]))), ..cores(1) }
}

fn place(engine: &mut Engine, request: &PlacementRequest) -> Option<wharf_core::ids::NodeId> {
    match ask(engine, PortRequest::Place(request.clone())) {
        PortReply::Place(Ok(placement)) => Some(placement.node),
        PortReply::Place(Err(NotPlaced { ended: None, .. })) => None,
        other => panic!("not an answer to a placement: {other:?}"),
    }
}

/// Compares the answers of an engine that has marks for most selectors with those of a freshly opened engine
/// over the same books, which must assign the marks again.
#[test]
fn marks_change_no_answer() {
    let mut engine = open(StoreState::create(1), 1, 1);
    let mut rng = Rng::new(12);
    let mut nodes: Vec<NodeRegistration> =
        (0..NODES).map(|number| add_node(&mut engine, spec(number, number % 3))).collect();
    for round in 0..12 {
        for team in 0..TEAMS {
            let policy = Policy::ALL[(team % 5) as usize];
            place(&mut engine, &request(team, policy));
        }
        check_all(&engine);
        for _ in 0..40 {
            let node = &mut nodes[rng.below(NODES) as usize];
            let command = match rng.below(3) {
                0 => {
                    node.spec = spec(node.id.0 - 1, rng.below(3));
                    Command::UpdateNode(node.id, Box::new(node.spec.clone()))
                }
                1 => Command::Life(node.id, LifeEvent::Drain),
                _ => Command::Life(node.id, LifeEvent::Undrain),
            };
            ask(&mut engine, PortRequest::Partition(node.partition, command));
        }
        check_all(&engine);
        let mut twin = open(export(&mut engine), 1, 1);
        for _ in 0..60 {
            let request = request(rng.below(TEAMS), Policy::ALL[rng.below(5) as usize]);
            assert_eq!(place(&mut engine, &request), place(&mut twin, &request), "round {round}");
        }
        check_all(&twin);
    }
}

fn in_zone(zone: &str) -> Arc<Selector> {
    let term = Term { key: "zone".into(), operator: Operator::In, values: vec![zone.into()] };
    Arc::new(Selector::new(vec![term]))
}

/// Nodes of one rank have a mark while they are many; when the last of them goes, so does the mark.
#[test]
fn a_rank_of_which_all_nodes_go_gives_its_mark_back() {
    let mut engine = open(StoreState::create(1), 1, 1);
    let add = |engine: &mut Engine, zone: &str, from: u64| -> Vec<NodeRegistration> {
        let node = |number| {
            let labels = Labels::new(vec![("zone".into(), zone.into())]).expect("one key");
            add_node(engine, NodeSpec { labels, ..node_spec(&format!("{zone}{number}"), 8, 0) })
        };
        (from..from + CANDIDATE_WALK_MAX as u64 + 10).map(node).collect()
    };
    let rules = RankRules::new(vec![in_zone("b")], Vec::new(), Vec::new()).expect("one fallback");
    let preferences = Preferences { rules: Some(Arc::new(rules)), ..Preferences::default() };
    let preferences = Some(Arc::new(preferences));
    let request = PlacementRequest { selector: Some(in_zone("a")), preferences, ..cores(8) };
    let others = add(&mut engine, "b", 0);
    for round in 0..3 {
        let first = add(&mut engine, "a", 1000 * round);
        let of = |nodes: &[NodeRegistration], placed| nodes.iter().any(|node| Some(node.id) == placed);
        assert!(of(&first, place(&mut engine, &request)), "round {round}");
        check_all(&engine);
        for node in &first {
            remove_node(&mut engine, node);
        }
        assert!(of(&others, place(&mut engine, &request)), "round {round}");
        check_all(&engine);
    }
}
