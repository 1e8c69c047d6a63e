//! User-defined geometry of the index, through an engine: attribute orders by request, custom kinds as
//! dimensions, and granularity that follows the nodes of each shard.

use std::sync::Arc;
use std::task::Waker;

use crate::by_hand::{add_node, ask, check_all, config, cores, export, node_spec, remove_node};
use wharf_core::engine::{Engine, EngineConfig, EngineError};
use wharf_core::ids::{NodeId, ResourceId};
use wharf_core::index::{Dimension, Geometry};
use wharf_core::node::NodeSpec;
use wharf_core::request::{OrderChoice, PlacementRequest, Policy, Preferences, RankRules};
use wharf_core::resource::{Amount, Demand};
use wharf_core::router::{NotPlaced, PortReply, PortRequest, Verdict};
use wharf_core::state::StoreState;

const ALL: [Dimension; 4] =
    [Dimension::Cpu, Dimension::Memory, Dimension::WholeGpus, Dimension::LargestGpuPart];

fn open(state: StoreState, config: &EngineConfig) -> Engine {
    Engine::open(state, config, vec![Waker::noop().clone()]).expect("a config that can be")
}

fn sized(name: &str, cpu: u32, memory: u32) -> NodeSpec {
    NodeSpec { memory: Amount::whole(memory), ..node_spec(name, cpu, 0) }
}

fn asking(cpu: u32, memory: u32, policy: Policy) -> PlacementRequest {
    let demand = Demand { cpu: Amount::whole(cpu), memory: Amount::whole(memory), ..Demand::default() };
    PlacementRequest::new(demand, policy)
}

fn placed(engine: &mut Engine, request: PlacementRequest) -> Option<NodeId> {
    match ask(engine, PortRequest::Place(request)) {
        PortReply::Place(Ok(placement)) => Some(placement.node),
        _ => None,
    }
}

#[test]
fn a_request_names_its_order_or_has_it_by_what_dominates() {
    let memory_first =
        vec![Dimension::Memory, Dimension::Cpu, Dimension::WholeGpus, Dimension::LargestGpuPart];
    let geometry = Geometry::default().with_orders(&[memory_first]).expect("each dimension once");
    let mut engine = open(StoreState::create(1), &EngineConfig { geometry, ..config(1) });
    assert_eq!(engine.ports[0].order_count(), 2);
    let broad = add_node(&mut engine, sized("broad", 64, 65_536)).id;
    let deep = add_node(&mut engine, sized("deep", 16, 655_360)).id;
    let tiny =
        |cpu: u32, memory: u32, order| PlacementRequest { order, ..asking(cpu, memory, Policy::LeastFit) };
    for (request, expected) in [
        (tiny(1, 1, OrderChoice::Default), broad),
        (tiny(1, 1, OrderChoice::Configured(0)), broad),
        (tiny(1, 1, OrderChoice::Configured(1)), deep),
        // 1/80 of all cores, almost nothing of the memory.
        (tiny(1, 1, OrderChoice::Dominant), broad),
        (tiny(1, 65_536, OrderChoice::Dominant), deep),
        (tiny(0, 0, OrderChoice::Dominant), broad),
    ] {
        let mut ranked = request.clone();
        let rules = RankRules::new(Vec::new(), Vec::new(), Vec::new()).expect("none of anything");
        let rules = Some(Arc::new(rules));
        ranked.preferences = Some(Arc::new(Preferences { rules, avoid_gpu: true, ..Preferences::default() }));
        for request in [request, ranked] {
            let order = request.order;
            let demand = request.demand.clone();
            let PortReply::Place(Ok(placement)) = ask(&mut engine, PortRequest::Place(request)) else {
                panic!("an empty node takes it");
            };
            assert_eq!(placement.node, expected, "{order:?} of {demand:?}");
            ask(&mut engine, PortRequest::Release(placement.allocation));
        }
    }
    check_all(&engine);
}

fn with_custom(mut spec: NodeSpec, custom: Vec<(ResourceId, Amount)>) -> NodeSpec {
    spec.custom = Demand::canonical_custom(custom).expect("different kinds");
    spec
}

#[test]
fn custom_kinds_are_dimensions_by_name_and_hide_no_part_of_a_unit() {
    let mut dimensions = Geometry::default().dimensions().to_vec();
    dimensions.extend([(Dimension::Custom(0), Amount::SCALE), (Dimension::Custom(1), Amount::SCALE)]);
    let config = EngineConfig {
        geometry: Geometry::new(dimensions).expect("six dimensions"),
        indexed_resources: vec!["nic".to_owned(), "fpga".to_owned()],
        unit_instances: vec!["fpga".to_owned()],
        ..config(2)
    };
    let mut engine = open(StoreState::create(4), &config);
    let known =
        |engine: &Engine, name: &str| engine.catalog.load().resources.id(name).expect("learnt at the start");
    let nic = known(&engine, "nic");
    let fpga = known(&engine, "fpga");
    assert!(fpga.is_unit_instance() && !nic.is_unit_instance());
    let plain: Vec<_> =
        (0..20).map(|i| add_node(&mut engine, node_spec(&format!("plain{i}"), 64, 0))).collect();
    let custom = vec![(nic, Amount::whole(4)), (fpga, Amount::whole(2))];
    let special = add_node(&mut engine, with_custom(node_spec("special", 8, 0), custom)).id;
    let ask_for = |id, amount| {
        let custom = Demand::canonical_custom(vec![(id, amount)]).expect("one kind");
        PlacementRequest::new(Demand { custom, ..Demand::default() }, Policy::BestFit)
    };
    let part = Amount::from_milli(400);
    for (request, expected) in [
        (ask_for(nic, Amount::whole(3)), Some(special)),
        (ask_for(nic, Amount::whole(2)), None),
        (ask_for(nic, Amount::whole(1)), Some(special)),
        (ask_for(fpga, part), Some(special)),
        (ask_for(fpga, Amount::whole(1)), Some(special)),
        // No unit is wholly free, and one is partly free.
        (ask_for(fpga, part), Some(special)),
        (ask_for(fpga, Amount::whole(1)), None),
        (ask_for(fpga, part), None),
    ] {
        assert_eq!(placed(&mut engine, request.clone()), expected, "{request:?}");
    }
    check_all(&engine);
    let looked_at: u64 = engine.runners.iter().map(|runner| runner.shard().visits().nodes).sum();
    assert!(looked_at < plain.len() as u64, "nodes without the kind are not looked at: {looked_at}");
    let mut again = open(export(&mut engine), &config);
    assert_eq!((known(&again, "nic"), known(&again, "fpga")), (nic, fpga));
    check_all(&again);
    assert_eq!(placed(&mut again, ask_for(fpga, part)), None);
}

#[test]
fn more_kinds_than_dimensions_are_refused() {
    let names = (0..5).map(|number| format!("kind{number}")).collect();
    let config = EngineConfig { indexed_resources: names, ..config(1) };
    let refused = Engine::open(StoreState::create(1), &config, vec![Waker::noop().clone()]);
    assert!(matches!(refused, Err(EngineError::Geometry(_))));
}

fn automatic(shards: u16) -> EngineConfig {
    EngineConfig { geometry: Geometry::default().with_automatic(&ALL), ..config(shards) }
}

/// A fitting node is found even if the shards use very different granularities.
#[test]
fn granularities_of_shards_hide_no_node_from_the_router() {
    let mut engine = open(StoreState::create(32), &automatic(8));
    let mut sizes: Vec<(u32, u32)> = (0..60)
        .map(|i: u32| (1 + i * i * 37 % 5000, [100, 3000, 70_000, 2_000_000][i as usize % 4] + i))
        .collect();
    sizes.sort_unstable();
    for (number, &(cpu, memory)) in sizes.iter().enumerate() {
        add_node(&mut engine, sized(&format!("n{number}"), cpu, memory));
    }
    let moved = export(&mut engine).granularities;
    let thetas: std::collections::BTreeSet<_> =
        moved.iter().flatten().map(|state| state.thetas.clone()).collect();
    assert!(thetas.len() > 1, "{thetas:?}");
    // The largest request first; each is as large as a node that is still empty.
    for &(cpu, memory) in sizes.iter().rev() {
        let request = asking(cpu, memory, Policy::BestFit);
        assert!(placed(&mut engine, request).is_some(), "{cpu} cores, {memory} MiB");
    }
    let PortReply::Place(Err(NotPlaced { ended: None, verdict, .. })) =
        ask(&mut engine, PortRequest::Place(cores(1)))
    else {
        panic!("every core is taken");
    };
    assert_eq!(verdict, Verdict::NoFitNow);
    check_all(&engine);
}

/// Granularity depends on history, and a rebuilt shard continues with it.
#[test]
fn a_rebuilt_shard_has_the_granularity_of_its_twin() {
    let mut engine = open(StoreState::create(1), &automatic(1));
    let mut nodes = Vec::new();
    for number in 0..100u32 {
        let cpu = if number < 50 { 4 } else { 1000 } + number % 3;
        nodes.push(add_node(&mut engine, sized(&format!("n{number}"), cpu, 1024 * (1 + number % 7))));
    }
    let mut histories = 0;
    while nodes.len() > 5 {
        let state = export(&mut engine);
        let kept = state.granularities.clone();
        assert!(kept[0].is_some());
        let mut forgetful = open(StoreState { policies: Vec::new(), ..state.clone() }, &automatic(1));
        histories += u32::from(export(&mut forgetful).granularities != kept);
        let mut twin = open(state, &automatic(1));
        assert_eq!(export(&mut twin).granularities, kept);
        let twins = twin.runners[0].shard();
        assert_eq!(twins.state_hash(), engine.runners[0].shard().state_hash());
        for policy in [Policy::LeastFit, Policy::BestFit] {
            let request = asking(1, 100, policy);
            assert_eq!(
                placed(&mut twin, request.clone()),
                placed(&mut engine, request),
                "{} nodes",
                nodes.len()
            );
        }
        for node in nodes.split_off(nodes.len() - 5) {
            remove_node(&mut engine, &node);
        }
    }
    assert!(histories > 0, "what would be without a history is always the same");
}
