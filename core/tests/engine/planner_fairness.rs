//! The work units that one client's groups cost another client. No matter how many groups without a placement
//! a client requests, others wait only for one turn of them.

use std::sync::Arc;

use crate::by_hand::{ManualClock, add_node, ask, cores, node_spec, settle};
use crate::group_bed::{create, engine, group_of, places, with_nodes};
use wharf_core::engine::Engine;
use wharf_core::executor::Unobserved;
use wharf_core::group::{
    ClientKey, GroupRefusalReason, GroupSpec, NoGroup, PlanJob, PlanReply, Spreading, Strategy, TopologyRule,
};
use wharf_core::node::{Labels, NodeSpec};
use wharf_core::planner::{PlannerBudget, PlannerWork};
use wharf_core::request::PlacementRequest;
use wharf_core::resource::Amount;
use wharf_core::router::{NotPlaced, PortReply, PortRequest, Tag};
use wharf_core::time::Time;

const SMALL: PlannerBudget = PlannerBudget { round: 1 << 12, search: 1 << 12, proof: 1 << 9 };
const FLOOD: ClientKey = ClientKey::of_operator(1);
const OTHER: ClientKey = ClientKey::of_operator(2);
/// The tag of the other client's group.
const MARKED: Tag = 1 << 40;

fn work(engine: &Engine) -> PlannerWork {
    engine.planners[0].planner().work()
}

/// Returns two bundles that no node here can hold. Each group differs from those before.
fn hopeless(number: u32) -> GroupSpec {
    let mut request = cores(5);
    request.demand.cpu = Amount::from_milli(5_000 + number);
    group_of(request, 2, Strategy::Spread)
}

fn submit(engine: &mut Engine, tag: Tag, client: ClientKey, spec: GroupSpec) {
    let job = PlanJob::CreateGroup(Arc::new(spec));
    engine.ports[0].submit(tag, PortRequest::PlanFor(client, job, Time::NEVER), engine.now).expect("room");
}

/// Runs one round of the planner, then one of everything else. Returns the answers.
fn round(engine: &mut Engine) -> Vec<(Tag, PortReply)> {
    let clock = ManualClock::new(engine.now);
    engine.ports[0].flush();
    engine.planners[0].run_round(&clock);
    for runner in &mut engine.runners {
        runner.run_batch(&clock, &mut Unobserved);
    }
    let mut replies = Vec::new();
    engine.ports[0].poll(engine.now, |tag, reply| replies.push((tag, reply)));
    engine.now = Time(engine.now.0 + 10);
    replies
}

fn is_placed(reply: &PortReply) -> bool {
    matches!(reply, PortReply::Plan(reply) if matches!(**reply, PlanReply::Group(Ok(_))))
}

/// Returns the work units between the arrival of a group of two bundles and its answer, behind `groups`
/// groups without a placement.
fn units_behind(nodes: u32, groups: u32) -> u64 {
    let mut engine = engine(2, 1);
    engine.planners[0].set_budget(SMALL);
    with_nodes(&mut engine, nodes, 4, 0);
    for number in 0..groups {
        submit(&mut engine, Tag::from(number), FLOOD, hopeless(number));
    }
    round(&mut engine);
    let before = work(&engine).units;
    submit(&mut engine, MARKED, OTHER, group_of(cores(1), 2, Strategy::StrictSpread));
    for _ in 0..10_000 {
        let replies = round(&mut engine);
        if let Some((_, reply)) = replies.iter().find(|(tag, _)| *tag == MARKED) {
            assert!(is_placed(reply), "{reply:?}");
            return work(&engine).units - before;
        }
    }
    panic!("no answer behind {groups} groups on {nodes} nodes");
}

#[test]
fn a_group_does_not_wait_for_the_groups_without_a_place_of_others() {
    for nodes in [64, 256, 1024] {
        // The round that takes it, the round that decides, and the round that reports.
        let most = 3 * (SMALL.round + SMALL.proof + 8 * u64::from(nodes));
        for groups in [16, 64, 256] {
            let units = units_behind(nodes, groups);
            assert!(units <= most, "{units} units behind {groups} groups on {nodes} nodes: {most} at most");
        }
        // All requests together need more than that, so they cannot have been done before.
        assert!(
            u64::from(nodes) * 256 > most,
            "the flood is large enough for {nodes} nodes to show something"
        );
    }
}

#[test]
fn groups_that_ask_the_same_are_decided_together() {
    for nodes in [64, 256, 1024] {
        let mut engine = engine(2, 1);
        with_nodes(&mut engine, nodes, 4, 0);
        let first = create(&mut engine, hopeless(1)).expect_err("no node has five cores");
        assert!(first.infeasible, "{first:?}");
        let before = work(&engine);
        for number in 0..200 {
            submit(&mut engine, number, FLOOD, hopeless(1));
        }
        engine.ports[0].flush();
        for (_, reply) in settle(&mut engine) {
            let PortReply::Plan(reply) = reply else { panic!("a planner answers: {reply:?}") };
            let PlanReply::Group(Err(NoGroup::Refused(refusal))) = *reply else {
                panic!("it is refused: {reply:?}")
            };
            assert_eq!((refusal.infeasible, &refusal.reason), (true, &first.reason));
        }
        let after = work(&engine);
        assert_eq!((after.searches, after.proofs), (before.searches, before.proofs), "{after:?}");
        assert_eq!(after.recalled - before.recalled, 200);
        assert!(
            after.units - before.units <= 5 * 200,
            "a few units each, however many nodes there are: {after:?}"
        );
        // With a node that has room for them, they are no longer hopeless.
        add_node(&mut engine, node_spec("large", 16, 0));
        create(&mut engine, hopeless(1)).expect("the new node holds both");
    }
}

fn waiting(spec: GroupSpec) -> GroupSpec {
    GroupSpec { wait_until: Some(Time(u64::MAX)), ..spec }
}

#[test]
fn groups_that_wait_cost_nothing_until_something_grows_and_then_one_search_for_all_that_are_equal() {
    for groups in [4, 32] {
        let mut engine = engine(1, 1);
        with_nodes(&mut engine, 8, 4, 0);
        create(&mut engine, group_of(cores(4), 8, Strategy::Spread)).expect("all nodes are free");
        let PortReply::Place(Err(NotPlaced { ended: None, .. })) =
            ask(&mut engine, PortRequest::Place(cores(1)))
        else {
            panic!("all nodes are full");
        };
        let large = add_node(&mut engine, node_spec("large", 5, 0));
        for number in 0..groups {
            submit(&mut engine, number, FLOOD, waiting(group_of(cores(4), 2, Strategy::StrictSpread)));
        }
        engine.ports[0].flush();
        assert!(settle(&mut engine).is_empty(), "one node of two has room");
        let idle = work(&engine);
        settle(&mut engine);
        assert_eq!(work(&engine).units, idle.units, "nothing grew");
        // A core is freed and taken repeatedly. Each time something grew, but not enough.
        for _ in 0..3 {
            let before = work(&engine);
            let PortReply::Place(Ok(placement)) = ask(&mut engine, PortRequest::Place(cores(1))) else {
                panic!("there is room for one core");
            };
            assert_eq!(placement.node, large.id);
            ask(&mut engine, PortRequest::Release(placement.allocation));
            let after = work(&engine);
            let searches = after.searches - before.searches;
            assert!(searches <= 2, "{searches} searches for {groups} equal groups");
        }
    }
}

/// Adds nodes with a different label value each.
fn hosts(engine: &mut Engine, count: u32) {
    for number in 0..count {
        let labels = Labels::new(vec![("host".into(), format!("h{number:05}").into())]).expect("one key");
        add_node(engine, NodeSpec { labels, ..node_spec(&format!("n{number}"), 4, 0) });
    }
}

#[test]
fn a_proof_goes_on_over_rounds_and_says_the_same() {
    for proof in [1 << 4, 1 << 7, 1 << 15] {
        let budget = PlannerBudget { proof, ..SMALL };
        let mut engine = engine(2, 1);
        engine.planners[0].set_budget(budget);
        with_nodes(&mut engine, 600, 4, 0);
        let apart = group_of(cores(3), 601, Strategy::StrictSpread);
        let refusal = create(&mut engine, apart).expect_err("there are 600 nodes");
        let expected = GroupRefusalReason::TooFewNodes { bundles: 601, nodes: 600 };
        assert_eq!((refusal.infeasible, &refusal.reason), (true, &expected));
        assert_eq!(refusal.attempts, 1, "turns of a proof are one attempt");
        let work = work(&engine);
        assert!(work.proofs >= (600 / proof).max(1), "{work:?}");
        assert!(work.most_per_round <= budget.most_per_round(600, 601), "{work:?}");
    }
}

#[test]
fn a_search_that_is_given_up_is_no_verdict() {
    let mut engine = engine(1, 1);
    engine.planners[0].set_budget(PlannerBudget { search: 64, ..SMALL });
    hosts(&mut engine, 400);
    let rule = TopologyRule { key: "host".into(), spreading: Spreading::Spread { max_skew: 1 } };
    let spec = GroupSpec { topology: Some(rule), ..group_of(cores(3), 300, Strategy::Pack) };
    let refusal = create(&mut engine, spec.clone()).expect_err("64 units are not enough");
    assert!(!refusal.infeasible, "{refusal:?}");
    assert!(matches!(refusal.reason, GroupRefusalReason::SearchGivenUp { units: 64, .. }), "{refusal:?}");
    let told = refusal.reason.to_string();
    assert!(told.starts_with("the search was given up after 64 steps"), "{told}");
    assert_eq!(work(&engine).given_up, 1);
    // Nothing of it stays taken.
    let other = create(&mut engine, group_of(cores(4), 1, Strategy::Pack)).expect("all nodes are free");
    assert_eq!(places(&other).len(), 1);
    engine.planners[0].set_budget(PlannerBudget::default());
    // It is not searched for again until something changes. An added node is a change.
    add_node(&mut engine, node_spec("more", 4, 0));
    create(&mut engine, spec).expect("it fits");
}

#[test]
fn a_client_that_shows_many_bundles_pays_for_them() {
    let mut engine = engine(1, 1);
    engine.planners[0].set_budget(SMALL);
    with_nodes(&mut engine, 16, 64, 0);
    let request = PlacementRequest::clone(&cores(1));
    let group = create(&mut engine, group_of(request, 512, Strategy::Pack)).expect("it fits");
    for tag in 0..200 {
        let job = PlanJob::GroupStatus(group.id);
        engine.ports[0].submit(tag, PortRequest::PlanFor(FLOOD, job, Time::NEVER), engine.now).expect("room");
    }
    submit(&mut engine, MARKED, OTHER, group_of(cores(1), 1, Strategy::Pack));
    let mut shown = 0;
    for _ in 0..100 {
        let replies = round(&mut engine);
        shown += replies.iter().filter(|(tag, _)| *tag < 200).count();
        if replies.iter().any(|(tag, _)| *tag == MARKED) {
            break;
        }
    }
    // The flood has one turn in each of the rounds that a group takes, and no round far exceeds its share.
    assert!((1..=9).contains(&shown), "{shown} groups were shown first");
    assert!(work(&engine).most_per_round <= SMALL.round + 1024, "{:?}", work(&engine));
    let shown = settle(&mut engine).len();
    assert!(shown > 180, "the others are shown afterwards: {shown}");
}

/// Returns the work units that a planner spends on one group when a node has room for one of its bundles. The group
/// has `hopeless` more equal bundles that cannot be placed.
fn units_of_a_retry(strategy: Strategy, hopeless: usize) -> u64 {
    let mut engine = engine(2, 1);
    with_nodes(&mut engine, 255, 4, 0);
    add_node(&mut engine, node_spec("large", 5, 0));
    let PortReply::Place(Ok(placement)) = ask(&mut engine, PortRequest::Place(cores(5))) else {
        panic!("there is room")
    };
    let mut spec = group_of(cores(5), hopeless + 1, strategy);
    spec.bundles.insert(0, Arc::new(cores(1)));
    spec.min_members = 1;
    create(&mut engine, spec).expect("one bundle fits");
    let before = work(&engine);
    ask(&mut engine, PortRequest::Release(placement.allocation));
    let after = work(&engine);
    assert!(after.searches > before.searches, "it is tried again");
    after.units - before.units
}

#[test]
fn equal_bundles_without_a_place_are_searched_for_once() {
    for strategy in [Strategy::Pack, Strategy::Spread] {
        let few = units_of_a_retry(strategy, 8);
        let many = units_of_a_retry(strategy, 512);
        // Each bundle is examined, but no node for it.
        assert!(many <= few + 8 * 512, "{strategy:?}: {few} units for 8 bundles, {many} for 512");
    }
}
