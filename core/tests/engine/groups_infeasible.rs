//! Compares infeasible verdicts with an oracle that tries all assignments on an idle cluster. A group that
//! has a placement there is never infeasible. Nearly every group that has none is.

use std::sync::Arc;

use crate::by_hand::{self, add_node, ask, check_all, cores, node_spec};
use crate::group_bed::{create, engine, group_of, labelled, live_allocations, plan, same, with_nodes};
use crate::group_oracle::{self, Asked, Case, Cases, Counts, requests};
use wharf_core::engine::Engine;
use wharf_core::group::{
    GroupRefusal, GroupRefusalReason, GroupSpec, NoGroup, PlanJob, PlanReply, Spreading, Strategy,
    TopologyRule,
};
use wharf_core::node::{Operator, Selector, Term};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::time::Time;

/// Counts the verdict of a refusal for a case on an idle cluster.
fn judge(counts: &mut Counts, refusal: &GroupRefusal, empty: &Case, seed: u64) {
    let exists = empty.exists();
    assert!(!(refusal.infeasible && exists), "seed {seed}: {refusal:?}, but there is one: {empty:#?}");
    if !exists {
        let said = if refusal.infeasible { "said" } else { "not said" };
        *counts.entry(said).or_default() += 1;
    }
}

/// Creates groups, each on its own cluster, which is empty or partly used.
fn creations(alike: bool, filled: bool, seeds: std::ops::Range<u64>) -> Counts {
    let mut counts = Counts::new();
    for seed in seeds {
        let mut cases = Cases::new(seed, alike);
        let (mut engine, mut nodes) = cases.cluster();
        let empty = nodes.clone();
        if filled {
            cases.fill(&mut engine, &mut nodes);
        }
        let case = cases.case(&nodes);
        if let Err(refusal) = create(&mut engine, case.spec()) {
            judge(&mut counts, &refusal, &Case { nodes: empty, ..case }, seed);
        }
    }
    counts
}

/// Asserts that at least 95 of 100 impossible groups are reported as infeasible.
fn assert_mostly_said(counts: &Counts) {
    let said = counts["said"];
    let not_said = counts.get("not said").copied().unwrap_or(0);
    assert!(said > 300 && 20 * not_said <= said + not_said, "{counts:?}");
}

#[test]
fn of_bundles_that_are_alike_infeasible_is_said_rightly_and_mostly() {
    assert_mostly_said(&creations(true, false, 0..1500));
}

#[test]
fn of_bundles_that_differ_infeasible_is_said_rightly_and_mostly() {
    assert_mostly_said(&creations(false, false, 20_000..22_000));
}

#[test]
fn what_runs_has_no_part_in_what_is_infeasible() {
    assert_mostly_said(&creations(true, true, 30_000..31_000));
    assert_mostly_said(&creations(false, true, 40_000..41_000));
}

#[test]
fn of_growth_infeasible_is_said_rightly_and_mostly() {
    let mut counts = Counts::new();
    for seed in 50_000..52_500 {
        let mut cases = Cases::new(seed, seed % 2 == 0);
        let (mut engine, nodes) = cases.cluster();
        let mut first = cases.case(&nodes);
        first.least = first.bundles.len();
        // The chosen units are not reported, so bundles with units cannot be placed here first.
        if first.bundles.iter().any(|asked| asked.size.npu > 0) {
            continue;
        }
        let Ok(view) = create(&mut engine, first.spec()) else { continue };
        let more = cases.case(&nodes).bundles;
        let more: Vec<Asked> = if cases.alike { vec![first.bundles[0].clone(); more.len()] } else { more };
        let mut grown = Case { bundles: more, least: 0, ..first.clone() };
        grown.least = grown.bundles.len();
        for ((asked, node), (_, bundle)) in
            first.bundles.iter().zip(first.places_of(&view)).zip(&view.bundles)
        {
            let node = node.expect("all are placed");
            let Some(wharf_core::group::BundlePlace { gpus, .. }) = bundle else { panic!("placed") };
            grown.settle(asked, node, gpus.instances());
            grown.standing.push((asked.clone(), node));
        }
        match plan(&mut engine, PlanJob::GrowGroup(view.id, requests(&grown.bundles), None)) {
            PlanReply::Group(Err(NoGroup::Refused(refusal))) => judge(&mut counts, &refusal, &grown, seed),
            PlanReply::Group(Ok(after)) => {
                let places = grown.places_of(&after)[first.bundles.len()..].to_vec();
                grown.check_rules(&places).unwrap_or_else(|rule| panic!("seed {seed}: {rule}: {grown:#?}"));
                *counts.entry("grown").or_default() += 1;
            }
            other => panic!("grown or refused: {other:?}"),
        }
        check_all(&engine);
    }
    assert!(counts["grown"] > 200, "{counts:?}");
    assert_mostly_said(&counts);
}

fn never(engine: &mut Engine, spec: GroupSpec) -> GroupRefusalReason {
    let refusal = create(engine, spec).expect_err("it can never fit");
    assert!(refusal.infeasible, "{refusal:?}");
    refusal.reason
}

fn in_zone(request: PlacementRequest, zone: &str) -> PlacementRequest {
    let key = "zone".to_owned();
    let values = vec![zone.to_owned()];
    let term = Term { key, operator: Operator::In, values };
    PlacementRequest { selector: Some(Arc::new(Selector::new(vec![term]))), ..request }
}

fn ruled(key: &str, spreading: Spreading, spec: GroupSpec) -> GroupSpec {
    GroupSpec { topology: Some(TopologyRule { key: key.into(), spreading }), ..spec }
}

fn zoned(engine: &mut Engine, zones: &[(&str, u32)]) {
    for (at, (zone, cpu)) in zones.iter().enumerate() {
        add_node(engine, labelled(&format!("n{at}"), *cpu, zone));
    }
}

#[test]
fn gangs_are_infeasible_when_not_even_their_minimum_could_be_placed() {
    let mut engine = engine(2, 1);
    with_nodes(&mut engine, 3, 16, 2);
    let gang = |min_members, spec| GroupSpec { min_members, ..spec };
    let cut = never(&mut engine, gang(4, group_of(cores(9), 8, Strategy::Pack)));
    assert_eq!(cut, GroupRefusalReason::TooFewPlaces { bundles: 4, most: 3 });
    let mixed = GroupSpec::new([same(cores(17), 4), same(cores(16), 4)].concat(), Strategy::Spread);
    let larger = never(&mut engine, gang(5, mixed.clone()));
    assert!(matches!(larger, GroupRefusalReason::Bundle { bundle: 0, .. }), "{larger:?}");
    create(&mut engine, gang(3, mixed)).expect("three of the smaller ones");
    let apart = never(&mut engine, gang(4, group_of(cores(1), 6, Strategy::StrictSpread)));
    assert_eq!(apart, GroupRefusalReason::TooFewNodes { bundles: 4, nodes: 3 });
    let one = never(&mut engine, gang(3, group_of(cores(6), 5, Strategy::StrictPack)));
    assert_eq!(one, GroupRefusalReason::OneNode { bundles: 3 });
    // Six devices hold six such parts, because no device holds two of them.
    let gpu = GpuRequest::Fraction(6000);
    let part = PlacementRequest::new(Demand { gpu, ..Demand::default() }, Policy::BestFit);
    let parts = never(&mut engine, gang(7, group_of(part, 9, Strategy::Pack)));
    assert_eq!(parts, GroupRefusalReason::Cluster(wharf_core::resource::ResourceKind::Gpu));
}

#[test]
fn bundles_that_are_confined_to_few_nodes_are_counted_against_those() {
    let mut engine = engine(2, 1);
    zoned(&mut engine, &[("a", 8), ("a", 8), ("b", 32), ("b", 32), ("b", 32)]);
    let mixed = |cpu, strategy| {
        GroupSpec::new([same(in_zone(cores(cpu), "a"), 3), same(cores(1), 2)].concat(), strategy)
    };
    let nodes = never(&mut engine, mixed(1, Strategy::StrictSpread));
    assert_eq!(nodes, GroupRefusalReason::TooFewNodes { bundles: 3, nodes: 2 });
    let sum = never(&mut engine, mixed(6, Strategy::Pack));
    let kind = wharf_core::resource::ResourceKind::Cpu;
    assert_eq!(sum, GroupRefusalReason::Confined { bundles: 3, nodes: 2, kind });
}

#[test]
fn rules_over_a_label_are_infeasible_by_what_its_values_could_hold() {
    let mut engine = engine(2, 1);
    zoned(&mut engine, &[("a", 8), ("b", 8), ("b", 8)]);
    let pack = Spreading::Pack { strict: true };
    let spread = Spreading::Spread { max_skew: 1 };
    let value = never(&mut engine, ruled("zone", pack, group_of(cores(5), 3, Strategy::Pack)));
    let key: Arc<str> = "zone".into();
    let b: Arc<str> = "b".into();
    assert_eq!(value, GroupRefusalReason::ValueTooSmall { key, value: b, most: 2, bundles: 3 });
    for rule in [pack, spread] {
        let no_value = never(&mut engine, ruled("rack", rule, group_of(cores(1), 2, Strategy::Pack)));
        assert_eq!(no_value, GroupRefusalReason::NoValue { key: "rack".into() });
    }
    let skew = never(&mut engine, ruled("zone", spread, group_of(cores(2), 10, Strategy::Spread)));
    let key: Arc<str> = "zone".into();
    let a: Arc<str> = "a".into();
    let room = 4;
    let max_skew = 1;
    let most = 9;
    let bundles = 10;
    assert_eq!(skew, GroupRefusalReason::SkewTooSmall { key, value: a, room, max_skew, most, bundles });
    let nine = ruled("zone", spread, group_of(cores(2), 9, Strategy::Spread));
    let nine = create(&mut engine, nine).expect("four and five");
    // A growth is judged together with the placed bundles.
    let grow = PlanJob::GrowGroup(nine.id, same(cores(2), 1), None);
    let PlanReply::Group(Err(NoGroup::Refused(refusal))) = plan(&mut engine, grow) else {
        panic!("the tenth")
    };
    assert!(refusal.infeasible, "{refusal:?}");
    let soft = ruled("zone", Spreading::Pack { strict: false }, group_of(cores(5), 4, Strategy::Pack));
    let soft = never(&mut engine, soft);
    assert_eq!(soft, GroupRefusalReason::TooFewPlaces { bundles: 4, most: 3 });
}

/// The sum of what a zone has would do for five, and no node of it holds more than one.
#[test]
fn what_a_value_holds_is_the_least_of_all_bounds() {
    let mut engine = engine(1, 1);
    zoned(&mut engine, &[("a", 5), ("a", 5), ("a", 5), ("b", 5), ("b", 5), ("b", 4)]);
    let rule = Spreading::Pack { strict: true };
    let value = never(&mut engine, ruled("zone", rule, group_of(cores(3), 6, Strategy::Pack)));
    let key: Arc<str> = "zone".into();
    let a: Arc<str> = "a".into();
    assert_eq!(value, GroupRefusalReason::ValueTooSmall { key, value: a, most: 3, bundles: 6 });
}

/// A zone whose nodes take no work now may return. Its absence proves nothing.
#[test]
fn nodes_that_take_no_work_now_could_hold_bundles() {
    let mut engine = engine(1, 1);
    zoned(&mut engine, &[("a", 8)]);
    let away = add_node(&mut engine, labelled("away", 8, "b"));
    let drain = wharf_core::shard::Command::Life(away.id, wharf_core::node::LifeEvent::Drain);
    ask(&mut engine, PortRequest::Partition(away.partition, drain));
    let spread = ruled("zone", Spreading::Spread { max_skew: 1 }, group_of(cores(8), 2, Strategy::Pack));
    assert!(!create(&mut engine, spread).expect_err("one node takes work").infeasible);
    let apart = create(&mut engine, group_of(cores(8), 2, Strategy::StrictSpread));
    assert!(!apart.expect_err("one node takes work").infeasible);
    never(&mut engine, group_of(cores(8), 3, Strategy::StrictSpread));
}

/// The verdict for a waiting group is checked again when the nodes change.
#[test]
fn a_group_that_waits_is_refused_when_nodes_go_that_it_would_need() {
    let mut engine = engine(1, 1);
    let nodes = with_nodes(&mut engine, 3, 16, 0);
    create(&mut engine, group_of(cores(9), 3, Strategy::Spread)).expect("it fits");
    let waits = |strategy| GroupSpec { wait_until: Some(Time(u64::MAX)), ..group_of(cores(8), 3, strategy) };
    let job = PlanJob::CreateGroup(Arc::new(waits(Strategy::StrictSpread)));
    engine.ports[0].submit(9, PortRequest::Plan(job), engine.now).expect("room");
    engine.ports[0].flush();
    assert!(by_hand::settle(&mut engine).is_empty(), "it waits");
    let gone = |node| wharf_core::shard::Command::RemoveNode { node, force: true };
    engine.ports[0].submit(1, PortRequest::Every(gone(nodes[0])), engine.now).expect("room");
    engine.ports[0].flush();
    // The bundle on it is placed again, and all waiting groups are tried with it.
    let replies = by_hand::settle(&mut engine);
    let refused = replies.iter().find_map(|(tag, reply)| match reply {
        PortReply::Plan(reply) if *tag == 9 => Some(reply),
        _ => None,
    });
    let Some(PlanReply::Group(Err(NoGroup::Refused(refusal)))) = refused.map(|reply| &**reply) else {
        panic!("{replies:?}")
    };
    assert!(refusal.infeasible, "{refusal:?}");
    assert_eq!(refusal.reason, GroupRefusalReason::TooFewNodes { bundles: 3, nodes: 2 });
    assert_eq!(live_allocations(&mut engine), 2);
}

#[test]
fn sums_of_custom_kinds_are_counted_and_units_as_units() {
    let mut engine = engine(2, 1);
    let nic = group_oracle::nic();
    let npu = group_oracle::npu();
    for number in 0..2 {
        let custom = Some(vec![(nic, Amount::whole(3)), (npu, Amount::whole(2))].into());
        let spec = node_spec(&format!("n{number}"), 64, 0);
        add_node(&mut engine, wharf_core::node::NodeSpec { custom, ..spec });
    }
    let ask_for = |id, amount| {
        let custom = Demand::canonical_custom(vec![(id, amount)]).expect("one kind");
        PlacementRequest::new(Demand { custom, ..Demand::default() }, Policy::BestFit)
    };
    let group = |id, amount, count| group_of(ask_for(id, amount), count, Strategy::Pack);
    let short = |id| GroupRefusalReason::Cluster(wharf_core::resource::ResourceKind::Custom(id));
    assert_eq!(never(&mut engine, group(nic, Amount::whole(1), 7)), short(nic));
    let cut = never(&mut engine, group(nic, Amount::whole(2), 3));
    assert_eq!(cut, GroupRefusalReason::TooFewPlaces { bundles: 3, most: 2 });
    // Four units: five parts of 0.6 need five, nine of 0.4 need five.
    assert_eq!(never(&mut engine, group(npu, Amount::from_milli(600), 5)), short(npu));
    assert_eq!(never(&mut engine, group(npu, Amount::from_milli(400), 9)), short(npu));
    create(&mut engine, group(npu, Amount::from_milli(400), 8)).expect("two on each unit");
    check_all(&engine);
}
