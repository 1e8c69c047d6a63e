//! Paged commands cost the same per page regardless of the number of nodes, and the pages add up to the
//! result of a single pass.

use std::sync::Arc;

use crate::by_hand::{add_node, ask, check_all, lone_node, lone_shard, node_spec, open};
use wharf_core::ids::{NodeId, Ordinal};
use wharf_core::limits::NAMED_WALK_MAX;
use wharf_core::node::{Operator, Selector, Term};
use wharf_core::request::{Explain, PlacementRequest, Policy, Refusal};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::router::{NotPlaced, PortReply, PortRequest};
use wharf_core::shard::{Command, Outcome, Pages, Refused, Shard, ShardWork};
use wharf_core::state::StoreState;
use wharf_core::time::Time;

/// Page sizes with which 1,000 nodes need several pages.
const PAGES: Pages = Pages {
    explain_nodes: 100,
    audit_nodes: 32,
    audit_allocations: 256,
    checkpoint_records: 256,
    leases_ended: 256,
};

fn run(shard: &mut Shard, command: Command) -> (Outcome, ShardWork) {
    let before = shard.work();
    let mut outcomes = Vec::new();
    shard.step([command], Time(0), &mut outcomes);
    (outcomes.remove(0), shard.work().since(before))
}

/// Creates a shard with `nodes` nodes. One in seven has an allocation.
fn shard_of(nodes: u64) -> Shard {
    let mut shard = lone_shard();
    for number in 1..=nodes {
        let spec = node_spec(&format!("n{number}"), 4 + (number % 3) as u32, (number % 2) as u8);
        run(&mut shard, lone_node(number, spec, false));
    }
    for _ in 0..nodes / 7 {
        let placed = run(&mut shard, Command::Place(cores(1))).0;
        assert!(matches!(placed, Outcome::Place(Ok(_))), "{placed:?}");
    }
    shard.set_pages(PAGES);
    shard
}

fn cores(cores: u32) -> PlacementRequest {
    let demand = Demand { cpu: Amount::whole(cores), ..Demand::default() };
    PlacementRequest::new(demand, Policy::LeastFit)
}

fn refused_in_full() -> PlacementRequest {
    let demand = Demand { cpu: Amount::whole(6), gpu: GpuRequest::Whole(2), ..Demand::default() };
    PlacementRequest { explain: Explain::Full, ..PlacementRequest::new(demand, Policy::BestFit) }
}

fn refusal(outcome: Outcome) -> Refusal {
    match outcome {
        Outcome::Place(Err(Refused { refusal, .. })) | Outcome::Explained(refusal) => *refusal,
        other => panic!("no refusal: {other:?}"),
    }
}

/// Returns the costs of the paged commands, in the middle of the nodes, and the number of commands of an
/// audit.
fn costs_at(nodes: u64) -> (Vec<ShardWork>, usize) {
    let mut shard = shard_of(nodes);
    let mut costs = Vec::new();
    let list = Command::ListNodes { after: Ordinal(nodes / 2), limit: 100 };
    let (outcome, work) = run(&mut shard, list);
    let Outcome::Nodes(page) = outcome else { panic!("no page: {outcome:?}") };
    let listed: Vec<u64> = page.iter().map(|view| view.registration.ordinal.0).collect();
    assert_eq!(listed, (nodes / 2 + 1..=nodes / 2 + 100).collect::<Vec<_>>());
    costs.push(work);
    let (outcome, work) = run(&mut shard, Command::Place(refused_in_full()));
    costs.push(work);
    let rest = refusal(outcome).rest.expect("there are more pages");
    let page = wharf_core::shard::Explain { request: refused_in_full(), from: rest };
    costs.push(run(&mut shard, Command::Explain(Box::new(page))).1);
    costs.push(run(&mut shard, Command::Status).1);
    let mut number = 0;
    let mut audit = Vec::new();
    loop {
        let (outcome, work) = run(&mut shard, Command::Audit { number });
        audit.push(work);
        match outcome {
            Outcome::Auditing(next) => number = next,
            Outcome::Status(status) => {
                let hashes = status.audit.expect("an audit").hashes.expect("nothing changed");
                assert_eq!(hashes.shard, shard.state_hash(), "as over everything at once");
                break;
            }
            other => panic!("no audit: {other:?}"),
        }
    }
    costs.push(audit[audit.len() / 2]);
    let nodes_read: u64 = audit.iter().map(|work| work.nodes_looked_at).sum();
    assert_eq!(nodes_read, nodes);
    (costs, audit.len())
}

#[test]
fn a_page_costs_the_same_on_a_thousand_nodes_and_on_ten_thousand() {
    let ((few, few_pages), (many, many_pages)) = (costs_at(1_000), costs_at(10_000));
    let nodes = |costs: &[ShardWork]| costs.iter().map(|work| work.nodes_looked_at).collect::<Vec<_>>();
    assert_eq!(nodes(&few), [100, 100, 100, 0, 32]);
    assert_eq!(nodes(&many), nodes(&few));
    assert_eq!((few_pages, many_pages), (1_000_usize.div_ceil(32), 10_000_usize.div_ceil(32)));
}

/// With many allocations per node, a page ends early.
#[test]
fn a_page_of_an_audit_ends_after_so_many_allocations() {
    let mut shard = lone_shard();
    for number in 1..=4 {
        run(&mut shard, lone_node(number, node_spec(&format!("n{number}"), 100, 0), false));
    }
    for _ in 0..300 {
        let demand = Demand { cpu: Amount::whole(1), ..Demand::default() };
        run(&mut shard, Command::Place(PlacementRequest::new(demand, Policy::FirstFit)));
    }
    shard.set_pages(Pages { audit_allocations: 150, ..PAGES });
    let pages: Vec<u64> =
        std::iter::successors(Some(run(&mut shard, Command::Audit { number: 0 })), |last| {
            let Outcome::Auditing(number) = last.0 else { return None };
            Some(run(&mut shard, Command::Audit { number }))
        })
        .map(|(_, work)| work.allocations_looked_at)
        .collect();
    assert_eq!(pages, [200, 100]);
}

#[test]
fn the_counts_of_all_pages_are_those_of_one_look_at_everything() {
    for shards in [1, 3] {
        let mut engine = open(StoreState::create(12), shards, 2);
        for number in 0..40 {
            add_node(&mut engine, node_spec(&format!("n{number}"), 1 + number % 5, (number % 2) as u8));
        }
        let whole = Pages::default();
        let few = Pages { explain_nodes: 3, ..whole };
        let term = Term { key: "zone".to_owned(), operator: Operator::NotIn, values: vec!["a".to_owned()] };
        let selector = Some(Arc::new(Selector::new(vec![term])));
        let selected = PlacementRequest { selector, ..cores(6) };
        let named = PlacementRequest { candidates: Some((0..9).map(NodeId).collect()), ..cores(6) };
        for request in [cores(6), selected, named, refused_in_full()] {
            let request = PlacementRequest { explain: Explain::Full, ..request };
            let [at_once, paged] = [whole, few].map(|pages| {
                engine.runners.iter_mut().for_each(|runner| runner.set_pages(pages));
                match ask(&mut engine, PortRequest::Place(request.clone())) {
                    PortReply::Place(Err(NotPlaced { ended: None, verdict, refusal })) => (verdict, refusal),
                    other => panic!("nothing fits: {other:?}"),
                }
            });
            assert_eq!(at_once, paged);
            assert_eq!((paged.1.nodes, paged.1.examined, paged.1.rest), (40, 40, None));
        }
        check_all(&engine);
    }
}

#[test]
fn a_draw_among_many_names_counts_the_nodes_that_it_looks_at() {
    let mut shard = shard_of(2 * NAMED_WALK_MAX as u64);
    let candidates = Some((1..=NAMED_WALK_MAX as u64 + 1).map(NodeId).collect());
    let nothing = PlacementRequest { policy: Policy::Random, candidates, ..cores(0) };
    for _ in 0..10 {
        let before = shard.visits().nodes;
        let placed = run(&mut shard, Command::Place(nothing.clone())).0;
        assert!(matches!(placed, Outcome::Place(Ok(_))), "{placed:?}");
        assert_eq!(shard.visits().nodes - before, 1, "each of them can take it");
    }
}
