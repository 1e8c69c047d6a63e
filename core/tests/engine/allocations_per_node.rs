//! A node has a bounded number of allocations, including those that ask for nothing, in every way that
//! allocations are made.

use std::sync::Arc;
use std::task::Waker;

use crate::by_hand::{self, check_all, config, cores as asked_cores};
use crate::group_bed::{create, group_of, nodes_of, with_nodes};
use crate::statement_bed::{
    Bed, allocate, allocation, bundle, cores, evict, part, pipeline, pipeline_bundle,
};
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::group::Strategy;
use wharf_core::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, ShardId, TenantId};
use wharf_core::index::Geometry;
use wharf_core::limits::ALLOCATIONS_PER_NODE_DEFAULT;
use wharf_core::link::Decision;
use wharf_core::node::NodeRegistration;
use wharf_core::request::{Check, PlacementRequest, Policy, Refusal};
use wharf_core::resource::Demand;
use wharf_core::shard::{
    Adoption, Command, Home, HybridSettings, Outcome, Park, Refused, Released, Shard, ShardConfig,
    TooManyAllocations, WaitToken,
};
use wharf_core::state::StoreState;
use wharf_core::statement::{Allocate, Applied, ConflictReason, Granted, Operation};
use wharf_core::time::Time;

/// Creates nodes of eight cores with at most `most` allocations each.
fn bed(nodes: u64, most: u16) -> Bed {
    let mut shard = Shard::new(ShardConfig {
        shard: ShardId(0),
        incarnation: Incarnation(1),
        partitions: vec![PartitionId(0)],
        geometry: Geometry::default(),
        seed: 1,
        hybrid: HybridSettings::default(),
    });
    shard.set_allocations_per_node_max(most);
    let mut bed = Bed { shard, now: 0 };
    for number in 1..=nodes {
        let id = NodeId(number);
        let ordinal = Ordinal(number);
        let partition = PartitionId(0);
        let spec = by_hand::node_spec(&format!("n{number}"), 8, 0);
        let node = NodeRegistration { id, ordinal, partition, spec, agent: None };
        bed.step(Command::AddNode(Box::new(node)));
    }
    bed
}

fn nothing() -> Demand {
    Demand::default()
}

fn refusal(bed: &mut Bed, request: PlacementRequest) -> Refusal {
    match bed.step(Command::Place(request)) {
        Outcome::Place(Err(Refused { refusal, .. })) => *refusal,
        other => panic!("{other:?}"),
    }
}

fn conflict(applied: &Applied) -> ConflictReason {
    assert!(applied.granted.is_empty(), "{applied:?}");
    applied.conflicts[0].reason
}

fn adoption(name: &str) -> Command {
    let external_id = Some(Arc::from(name));
    let demand = nothing();
    Command::Adopt(Box::new(Adoption {
        node: NodeId(1),
        demand,
        gpus: None,
        units: Vec::new(),
        external_id,
        tenant: TenantId::OPERATOR,
    }))
}

fn granted(applied: &Applied) -> AllocationId {
    match &applied.granted[0].1 {
        Granted::Allocated(placement) => placement.allocation,
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_of_nothing_are_placed_up_to_the_limit_by_every_policy() {
    for policy in Policy::ALL {
        let mut bed = bed(2, 3);
        let request = PlacementRequest::new(nothing(), policy);
        for _ in 0..6 {
            assert!(matches!(bed.step(Command::Place(request.clone())), Outcome::Place(Ok(_))), "{policy}");
        }
        let refused = refusal(&mut bed, request.clone());
        let counts: Vec<_> =
            refused.checks.iter().map(|(&check, shortage)| (check, shortage.nodes)).collect();
        assert_eq!(counts, [(Check::Allocations, 2)], "{policy}");
        assert!(refused.feasible, "{policy}: it is refused for now");
        // Each of them also refuses a request that names it.
        let named = PlacementRequest { candidates: Some([NodeId(2)].into()), ..request };
        let refused = refusal(&mut bed, named);
        assert_eq!(refused.checks[&Check::Allocations].nodes, 1, "{policy}");
    }
}

#[test]
fn the_default_bounds_what_a_node_takes_of_memory() {
    let mut bed = Bed::with_nodes(&[(1, 0)]);
    for _ in 0..ALLOCATIONS_PER_NODE_DEFAULT {
        bed.shard.step([Command::Place(asked_cores(0))], Time(bed.now), &mut Vec::new());
    }
    assert_eq!(refusal(&mut bed, asked_cores(0)).checks[&Check::Allocations].nodes, 1);
}

#[test]
fn a_release_makes_room_and_wakes_what_waits() {
    let mut bed = bed(1, 2);
    let first = bed.place(nothing());
    let _ = bed.place(cores(4));
    let refused = refusal(&mut bed, asked_cores(0)).growth;
    let park = |number| {
        let token = WaitToken { port: 0, number };
        let request = asked_cores(0);
        let since = Time(number);
        let home = Home::Here;
        Command::Park(Box::new(Park { token, request, priority: 0, since, home }))
    };
    for number in 1..=3 {
        assert!(matches!(bed.step(park(number)), Outcome::Place(Err(_))));
    }
    bed.release(first);
    let woken: Vec<_> = bed.shard.drain_woken().collect();
    assert_eq!(woken.len(), 1, "one place is free, so one is woken: {woken:?}");
    assert!(matches!(bed.step(Command::Retry(woken[0])), Outcome::Place(Ok(_))));
    assert!(refusal(&mut bed, asked_cores(0)).growth > refused, "the refusal before is stale");
}

#[test]
fn adoptions_statements_bundles_and_claims_count_as_well() {
    let mut bed = bed(1, 3);
    assert!(matches!(bed.step(adoption("a")), Outcome::Adopt(Ok(_))));
    let whole = Allocate { bundle: Some(bundle(1, 1)), ..allocation(1, cores(4)) };
    let made = bed.apply(part(1, [Operation::Allocate(whole)]));
    let group = granted(&made);
    let inside = bed.place_into(group, nothing()).expect("there is a place").allocation;
    let full = TooManyAllocations(NodeId(1));
    let Outcome::Adopt(Err(rejected)) = bed.step(adoption("b")) else { panic!("the node is full") };
    assert!(
        rejected == full.into() && rejected.to_string().contains("`allocations_per_node_max`"),
        "{rejected}"
    );
    // An adoption that was recorded before is answered again.
    assert!(matches!(bed.step(adoption("a")), Outcome::Adopt(Ok(_))));
    assert_eq!(bed.place_into(group, nothing()), Err(full.into()));
    assert_eq!(conflict(&bed.apply(part(2, [allocate(1, nothing())]))), ConflictReason::TooManyAllocations);
    assert_eq!(conflict(&bed.apply(part(3, [pipeline(1, nothing())]))), ConflictReason::TooManyAllocations);
    assert_eq!(refusal(&mut bed, asked_cores(0)).checks[&Check::Allocations].nodes, 1);
    // An allocation inside a bundle ends with the bundle, and frees its slot.
    bed.release(inside);
    let inside = bed.place_into(group, nothing()).expect("its place is free again");
    let held =
        bed.prepare(part(4, [evict(group, 1_000), pipeline_bundle(1, cores(2), bundle(2, 1))]), 100_000);
    assert!(held.conflicts.is_empty(), "a claim takes the place of what is evicted: {held:?}");
    let second = bed.apply(part(5, [pipeline(1, nothing())]));
    assert_eq!(conflict(&second), ConflictReason::TooManyAllocations, "that place is claimed");
    bed.finish(4, Decision::Committed);
    let mut bed = bed.reopened();
    assert!(matches!(
        bed.step(Command::Release(inside.allocation)),
        Outcome::Release(Ok(Released { inside: None, .. }))
    ));
}

/// A statement that is held keeps its slots, and frees them when it is aborted.
#[test]
fn what_is_held_counts() {
    let mut bed = bed(1, 2);
    bed.place(nothing());
    bed.prepare(part(1, [allocate(1, nothing())]), 100_000);
    assert_eq!(refusal(&mut bed, asked_cores(0)).checks[&Check::Allocations].nodes, 1);
    bed.finish(1, Decision::Aborted);
    bed.place(nothing());
}

#[test]
fn full_nodes_cost_a_search_nothing() {
    let mut visits = Vec::new();
    for nodes in [10, 300] {
        let mut bed = bed(nodes + 1, 1);
        for number in 1..=nodes {
            let named = PlacementRequest { candidates: Some([NodeId(number)].into()), ..asked_cores(0) };
            bed.shard.step([Command::Place(named)], Time(bed.now), &mut Vec::new());
        }
        let before = bed.shard.visits().nodes;
        bed.place(nothing());
        visits.push(bed.shard.visits().nodes - before);
    }
    assert_eq!(visits[0], visits[1], "nodes looked at among 10 and among 300 full ones");
}

#[test]
fn groups_are_planned_within_the_limit() {
    let limits = EngineConfig { planners: 1, allocations_per_node_max: 4, ..config(2) };
    let mut engine =
        Engine::open(StoreState::create(8), &limits, vec![Waker::noop().clone()]).expect("numbers in range");
    with_nodes(&mut engine, 3, 16, 0);
    let made =
        create(&mut engine, group_of(asked_cores(0), 10, Strategy::Pack)).expect("three nodes hold it");
    assert!(nodes_of(&made).values().all(|&count| count <= 4), "{made:?}");
    assert!(create(&mut engine, group_of(asked_cores(0), 3, Strategy::Pack)).is_err(), "two places are left");
    create(&mut engine, group_of(asked_cores(1), 2, Strategy::Pack)).expect("two places are left");
    check_all(&engine);
}
