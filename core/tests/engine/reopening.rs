//! A store may be started with a different number of shards. The books are the same, and earlier allocations
//! can be released.

use std::sync::Arc;
use std::task::Waker;

use crate::by_hand::{
    self, Workload, add_node, ask, check_all, config, cores, export, node_spec, open, remove_node, settle,
};
use wharf_core::engine::{Engine, EngineError};
use wharf_core::hash::StateHash;
use wharf_core::ids::{AllocationId, PartitionId, StatementId, TenantId};
use wharf_core::limits::ALLOCATIONS_PER_NODE_MAX;
use wharf_core::link::Decision;
use wharf_core::node::{Labels, LifeEvent, NodeRegistration, NodeSpec, Operator, Selector, Term};
use wharf_core::registrar::Reported;
use wharf_core::request::Policy;
use wharf_core::resource::Demand;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{Command, Outcome, Released};
use wharf_core::state::{AllocationRecord, StoreState};
use wharf_core::statement::{
    Allocate, Applied, CommitMode, ConflictDetection, ConflictReason, Operation, Part,
};

const PARTITIONS: u16 = 32;

/// Returns a store of one shard with nodes in every state and allocations on them.
fn used_store() -> StoreState {
    let mut engine = open(StoreState::create(PARTITIONS), 1, 1);
    let mut workload = Workload::new(5, engine.incarnation, PARTITIONS);
    engine.registrar.resources_mut().learn("fpga").expect("room for one kind");
    let nodes: Vec<_> = (0..60)
        .map(|i| {
            let spec = workload.spec(&format!("n{i}"));
            add_node(&mut engine, spec)
        })
        .collect();
    for tag in 0..400 {
        let request = PortRequest::Place(workload.request());
        engine.ports[0].submit(tag, request, engine.now).expect("room");
    }
    let replies = settle(&mut engine);
    let placed = replies.iter().filter(|(_, reply)| matches!(reply, PortReply::Place(Ok(_)))).count();
    assert!(placed > 100, "{placed} placed");
    // Nodes that are draining, shrunk below their usage, lost, or have an unhealthy GPU.
    for (i, node) in nodes.iter().enumerate() {
        let command = match i % 6 {
            0 => Command::Life(node.id, LifeEvent::Drain),
            1 => {
                let mut spec = node.spec.clone();
                (spec.cpu, spec.gpus) = (by_hand::cores(1).demand.cpu, 0);
                Command::UpdateNode(node.id, Box::new(spec))
            }
            2 => Command::Life(node.id, LifeEvent::Lose),
            3 => Command::SetHealth(node.id, vec![(0, "Xid 79".into())]),
            _ => continue,
        };
        ask(&mut engine, PortRequest::Partition(node.partition, command));
    }
    check_all(&engine);
    export(&mut engine)
}

fn allocations(state: &StoreState) -> Vec<AllocationRecord> {
    state.partitions.iter().flat_map(|partition| partition.allocations.clone()).collect()
}

fn partition_hashes(engine: &mut Engine) -> Vec<(PartitionId, StateHash)> {
    let PortReply::Every(outcomes) = ask(engine, PortRequest::Every(Command::Audit { number: 0 })) else {
        panic!("every shard answers");
    };
    let mut hashes = Vec::new();
    for outcome in outcomes {
        let Outcome::Status(status) = outcome else { panic!("not a status: {outcome:?}") };
        hashes.extend(
            status.audit.and_then(|audit| audit.hashes).expect("nothing changed meanwhile").partitions,
        );
    }
    hashes.sort_unstable();
    hashes
}

fn release(engine: &mut Engine, id: AllocationId) {
    let reply = ask(engine, PortRequest::Release(id));
    assert!(
        matches!(reply, PortReply::One(Outcome::Release(Ok(Released { allocation: released, inside: None }))) if released == id),
        "{reply:?}"
    );
}

#[test]
fn any_number_of_shards_serves_the_same_books() {
    let stopped = used_store();
    let mut seen: Option<(Vec<(PartitionId, StateHash)>, StateHash)> = None;
    for shards in [1, 2, 3, 8, 32] {
        let mut engine = open(stopped.clone(), shards, 1);
        assert_eq!(engine.incarnation.0, stopped.incarnation.0 + 1);
        check_all(&engine);
        let reopened = export(&mut engine);
        assert_eq!(reopened.books_hash(), stopped.books_hash(), "{shards} shards");
        assert_eq!(reopened.partitions, stopped.partitions, "{shards} shards");
        let hashes = partition_hashes(&mut engine);
        assert_eq!(hashes.len(), usize::from(PARTITIONS));
        for record in allocations(&stopped).iter().step_by(2) {
            release(&mut engine, record.id);
        }
        check_all(&engine);
        let after = export(&mut engine);
        let seen = seen.get_or_insert_with(|| (hashes.clone(), after.books_hash()));
        assert_eq!(*seen, (hashes, after.books_hash()), "{shards} shards");
    }
}

#[test]
fn ids_of_a_later_start_never_meet_those_of_an_earlier_one() {
    let stopped = used_store();
    let mut engine = open(stopped.clone(), 3, 1);
    let mut workload = Workload::new(6, engine.incarnation, PARTITIONS);
    let before = allocations(&stopped);
    for record in &before {
        release(&mut engine, record.id);
    }
    let reply = ask(&mut engine, PortRequest::Release(before[0].id));
    assert!(matches!(reply, PortReply::One(Outcome::Release(Err(_)))), "{reply:?}");
    for tag in 0..200 {
        engine.ports[0].submit(tag, PortRequest::Place(workload.request()), engine.now).expect("room");
    }
    settle(&mut engine);
    let after = allocations(&export(&mut engine));
    assert!(!after.is_empty());
    assert!(after.iter().all(|record| before.iter().all(|earlier| earlier.id != record.id)));
    check_all(&engine);
}

#[test]
fn the_same_number_of_shards_goes_on_with_the_same_choices() {
    let place = |mut engine: Engine| {
        let mut workload = Workload::new(9, engine.incarnation, PARTITIONS);
        for tag in 0..100 {
            engine.ports[0].submit(tag, PortRequest::Place(workload.request()), engine.now).expect("room");
        }
        settle(&mut engine);
        export(&mut engine)
    };
    let stopped = used_store();
    let first = place(open(stopped.clone(), 1, 1));
    let second = place(open(stopped.clone(), 1, 1));
    assert_eq!(first, second);
    assert_ne!(first.policies, stopped.policies);
}

/// A selector that matched many nodes now matches fewer. A shard that saw many must choose like a shard that
/// was rebuilt since.
#[test]
fn a_rebuilt_shard_chooses_as_its_twin_does() {
    let mut engine = open(StoreState::create(1), 1, 1);
    let zone = |name: &str| {
        let mut spec = by_hand::node_spec(name, 64, 0);
        spec.labels = Labels::new(vec![("zone".into(), "a".into())]).expect("one key");
        spec
    };
    // Nodes that the selector does not match. A draw from the tree may hit them, but a walk cannot.
    for i in 0..100 {
        add_node(&mut engine, by_hand::node_spec(&format!("other{i}"), 64, 0));
    }
    let nodes: Vec<_> = (0..600).map(|i| add_node(&mut engine, zone(&format!("n{i}")))).collect();
    let mut request = by_hand::cores(1);
    request.policy = Policy::Random;
    let term = Term { key: "zone".to_owned(), operator: Operator::Exists, values: Vec::new() };
    request.selector = Some(Arc::new(Selector::new(vec![term])));
    let place = |engine: &mut Engine| match ask(engine, PortRequest::Place(request.clone())) {
        PortReply::Place(Ok(placement)) => placement.node,
        other => panic!("an empty cluster takes one core: {other:?}"),
    };
    place(&mut engine);
    for (left, node) in (0..nodes.len()).rev().zip(&nodes) {
        // Around the sizes at which a shard changes its search, and at small ones.
        if [512, 511, 300, 257, 256, 255, 200, 128, 127, 100].contains(&left) {
            let mut twin = open(export(&mut engine), 1, 1);
            for _ in 0..20 {
                assert_eq!(place(&mut engine), place(&mut twin), "{left} nodes left");
            }
        }
        remove_node(&mut engine, node);
    }
}

/// Takes a core of a node under coarse conflict detection, planned on `version`.
fn take_as_of(engine: &mut Engine, node: &NodeRegistration, version: u64) -> Applied {
    let allocate = Allocate {
        node: node.id,
        expected: Some(version),
        demand: cores(1).demand,
        gpus: None,
        owner: None,
        bundle: None,
        tenant: TenantId::OPERATOR,
        lease: None,
    };
    let part = Part {
        statement: StatementId { incarnation: engine.incarnation, planner: 0, number: version },
        operations: vec![(0, Operation::Allocate(allocate))],
        conflict_detection: ConflictDetection::Coarse,
        mode: CommitMode::AllOrNothing,
    };
    match ask(engine, PortRequest::Partition(node.partition, Command::Apply(Box::new(part)))) {
        PortReply::One(Outcome::Applied(Ok(applied))) => *applied,
        other => panic!("{other:?}"),
    }
}

/// Checks that a statement conflicts if it was planned on a version from before the node's removal, and does
/// not conflict otherwise.
fn check_new_life(engine: &mut Engine, node: &NodeRegistration, last: u64) {
    for version in 0..=last {
        let applied = take_as_of(engine, node, version);
        let found = last + 1;
        assert_eq!(
            applied.conflicts.iter().map(|conflict| conflict.reason).collect::<Vec<_>>(),
            [ConflictReason::VersionChanged { expected: version, found }]
        );
    }
    assert_eq!(take_as_of(engine, node, last + 1).decision, Decision::Committed);
}

#[test]
fn a_node_that_comes_back_has_no_version_that_it_has_had() {
    let mut engine = open(StoreState::create(PARTITIONS), 2, 1);
    let of = |rack: &str| NodeSpec {
        identity: Some("machine".into()),
        labels: Labels::new(vec![("rack".into(), rack.into())]).expect("one key"),
        ..node_spec("n", 8, 0)
    };
    let first = add_node(&mut engine, of("r0"));
    for _ in 0..3 {
        assert!(matches!(ask(&mut engine, PortRequest::Place(cores(1))), PortReply::Place(Ok(_))));
    }
    // By force, together with its allocations.
    let last = remove_node(&mut engine, &first);
    assert!(last > 3, "{last}");
    let back = add_node(&mut engine, of("r0"));
    assert_eq!(back.id, first.id);
    check_new_life(&mut engine, &back, last);
    // Across a stop and a start with other shards, in another rack, which is another partition.
    let last = remove_node(&mut engine, &back);
    let mut engine = open(export(&mut engine), 5, 1);
    let back = add_node(&mut engine, of("r1"));
    assert!(back.id == first.id && back.partition != first.partition);
    check_new_life(&mut engine, &back, last);
    // By a report of its agent.
    let last = remove_node(&mut engine, &back);
    let Ok(Reported::New(back)) = engine.registrar.report(of("r0")) else { panic!("it is back") };
    assert_eq!(back.id, first.id);
    let command = engine.registrar.join_command(back.clone());
    ask(&mut engine, PortRequest::Partition(back.partition, command));
    ask(&mut engine, PortRequest::Partition(back.partition, Command::Life(back.id, LifeEvent::Beat)));
    // The first heartbeat makes it ready, which counts as a version.
    check_new_life(&mut engine, &back, last + 1);
    check_all(&engine);
}

#[test]
fn a_store_with_more_allocations_on_a_node_than_any_setting_allows_is_refused_by_name() {
    let mut state = used_store();
    let partition =
        state.partitions.iter_mut().find(|one| !one.allocations.is_empty()).expect("some are placed");
    let one = partition.allocations[0].clone();
    let node = partition.nodes.iter().find(|node| node.registration.id == one.node).expect("its node");
    let name = node.registration.spec.name.clone();
    for sequence in 0..u64::from(ALLOCATIONS_PER_NODE_MAX) {
        let id = AllocationId { sequence: 1_000_000 + sequence, ..one.id };
        partition.allocations.push(AllocationRecord { id, demand: Demand::default(), ..one.clone() });
    }
    let refused = Engine::open(state, &config(2), vec![Waker::noop().clone()]);
    let Err(EngineError::Allocations { node, allocations }) = refused else { panic!("it is opened") };
    assert!(node == name && allocations > usize::from(ALLOCATIONS_PER_NODE_MAX), "{node}: {allocations}");
}
