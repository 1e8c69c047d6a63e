//! Before a request is refused, every shard was asked, and at one instant none of them had room.
//!
//! The shards are stepped by hand. Capacity is freed where it is hardest to see: at the shard that was asked
//! first, after it refused.

use crate::by_hand::{ManualClock, Workload, add_node, ask, check_all, cores, node_spec, open, settle};
use wharf_core::engine::Engine;
use wharf_core::executor::Unobserved;
use wharf_core::ids::{AllocationId, Ordinal};
use wharf_core::limits::{REFUSAL_RETRIES_MAX, STEP_NODES_MAX};
use wharf_core::node::{LifeEvent, NodeSpec, NodeState, TaintEffect};
use wharf_core::request::{Check, Explain, PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::router::{NotPlaced, PortReply, PortRequest, Verdict};
use wharf_core::shard::{Command, NodeView, Outcome};
use wharf_core::state::StoreState;

const SHARDS: u16 = 8;

/// Creates two ports and eight shards with one full node each. Returns the allocation on each shard.
fn full_engine() -> (Engine, Vec<AllocationId>) {
    let mut engine = open(StoreState::create(SHARDS), SHARDS, 2);
    let mut filled = vec![None; usize::from(SHARDS)];
    for i in 0.. {
        if filled.iter().all(Option::is_some) {
            break;
        }
        // The name decides the partition. Names are tried until every partition has one node.
        let name = format!("n{i}");
        let registration = engine.registrar.register(node_spec(&name, 4, 0)).expect("a new name");
        let shard = engine.table.load().shard(registration.partition).expect("a partition").index();
        engine.registrar.forget(registration.id, 0);
        if filled[shard].is_some() {
            continue;
        }
        let node = add_node(&mut engine, node_spec(&name, 4, 0));
        let mut request = cores(4);
        request.candidates = Some([node.id].into());
        let PortReply::Place(Ok(placement)) = ask(&mut engine, PortRequest::Place(request)) else {
            panic!("an empty node takes what it has");
        };
        filled[shard] = Some(placement.allocation);
    }
    (engine, filled.into_iter().flatten().collect())
}

/// Steps the shards one at a time until port 0 has a reply.
///
/// `between` gets the shard that has just answered, and the number of answers before. Returns the reply, and
/// the number of times a shard was asked.
fn follow(
    engine: &mut Engine,
    clock: &ManualClock,
    mut between: impl FnMut(&mut Engine, usize, usize),
) -> (PortReply, usize) {
    for asked in 0..1000 {
        let shard = (0..engine.runners.len())
            .find(|&shard| engine.runners[shard].run_batch(clock, &mut Unobserved) > 0)
            .expect("the request is at some shard");
        between(engine, shard, asked);
        let mut done = None;
        engine.ports[0].poll(engine.now, |_, reply| done = Some(reply));
        if let Some(reply) = done {
            return (reply, asked + 1);
        }
    }
    panic!("the request never ends");
}

/// Lets the shards execute a request of the other port now.
fn interfere(engine: &mut Engine, clock: &ManualClock, request: PortRequest) -> PortReply {
    engine.ports[1].submit(0, request, engine.now).expect("room");
    loop {
        for runner in &mut engine.runners {
            runner.run_batch(clock, &mut Unobserved);
        }
        let mut done = None;
        engine.ports[1].poll(engine.now, |_, reply| done = Some(reply));
        if let Some(reply) = done {
            return reply;
        }
    }
}

#[test]
fn capacity_that_comes_back_behind_the_request_is_found() {
    for comes_back_after in 0..usize::from(SHARDS) {
        let (mut engine, allocations) = full_engine();
        let clock = ManualClock::new(engine.now);
        engine.ports[0].submit(1, PortRequest::Place(cores(2)), engine.now).expect("room");
        let mut first = None;
        let (reply, asked) = follow(&mut engine, &clock, |engine, shard, asked| {
            let first = *first.get_or_insert(shard);
            if asked == comes_back_after {
                interfere(engine, &clock, PortRequest::Release(allocations[first]));
            }
        });
        assert!(matches!(reply, PortReply::Place(Ok(_))), "after {comes_back_after} shards: {reply:?}");
        assert_eq!(asked, usize::from(SHARDS) + 1, "every shard once, and the first again");
        check_all(&engine);
    }
}

#[test]
fn a_refusal_counts_every_shard_once() {
    let (mut engine, _) = full_engine();
    let clock = ManualClock::new(engine.now);
    for (cpu, verdict) in [(2, Verdict::NoFitNow), (5, Verdict::Infeasible)] {
        let request = PlacementRequest { explain: Explain::Full, ..cores(cpu) };
        engine.ports[0].submit(1, PortRequest::Place(request), engine.now).expect("room");
        let (reply, asked) = follow(&mut engine, &clock, |_, _, _| ());
        let PortReply::Place(Err(NotPlaced { ended: None, verdict: said, refusal })) = reply else {
            panic!("every node is full: {reply:?}")
        };
        assert_eq!((said, asked, refusal.nodes, refusal.examined), (verdict, 8, 8, 8));
        let counts: Vec<u64> = refusal.checks.values().map(|shortage| shortage.nodes).collect();
        assert_eq!(counts, [8], "cpu alone is short: {:?}", refusal.checks);
    }
}

/// Runs a request that always loses a race. After each refusal, capacity is freed at that shard and `rival`
/// takes it. Returns the reply, and the number of times a shard was asked.
fn outrun(request: PlacementRequest, rival: &PlacementRequest) -> (PortReply, usize) {
    let (mut engine, mut allocations) = full_engine();
    let clock = ManualClock::new(engine.now);
    engine.ports[0].submit(1, PortRequest::Place(request), engine.now).expect("room");
    follow(&mut engine, &clock, |engine, shard, _| {
        interfere(engine, &clock, PortRequest::Release(allocations[shard]));
        match interfere(engine, &clock, PortRequest::Place(rival.clone())) {
            PortReply::Place(Ok(placement)) => allocations[shard] = placement.allocation,
            other => panic!("the one free node takes it: {other:?}"),
        }
    })
}

#[test]
fn capacity_that_came_and_went_has_no_shard_asked_again() {
    // The shards grew, and their published state says that they are full again. The refusals are true now.
    let (reply, asked) = outrun(cores(2), &cores(4));
    assert!(
        matches!(reply, PortReply::Place(Err(NotPlaced { ended: None, verdict: Verdict::NoFitNow, .. }))),
        "{reply:?}"
    );
    assert_eq!(asked, usize::from(SHARDS));
}

#[test]
fn a_request_that_always_comes_too_late_is_refused_in_the_end() {
    // 1.2 cores stay free. This is too little, but in the same bucket as the requested 1.5.
    let milli = |milli| {
        let demand = Demand { cpu: Amount::from_milli(milli), ..Demand::default() };
        PlacementRequest::new(demand, Policy::BestFit)
    };
    let (reply, asked) = outrun(milli(1500), &milli(2800));
    let PortReply::Place(Err(NotPlaced { ended: None, verdict: Verdict::NoFitNow, refusal })) = reply else {
        panic!("{reply:?}")
    };
    assert_eq!(refusal.nodes, u64::from(SHARDS), "each shard counts once, by its latest refusal");
    assert_eq!(asked, usize::from(SHARDS) * (usize::from(REFUSAL_RETRIES_MAX) + 1));
}

/// With one shard, a refusal is final at once. If the shard were asked again, the request would overtake
/// later ones.
#[test]
fn a_single_shard_is_asked_once() {
    let mut engine = open(StoreState::create(1), 1, 2);
    add_node(&mut engine, node_spec("n", 4, 0));
    let PortReply::Place(Ok(placement)) = ask(&mut engine, PortRequest::Place(cores(4))) else {
        panic!("an empty node takes what it has");
    };
    let clock = ManualClock::new(engine.now);
    engine.ports[0].submit(1, PortRequest::Place(cores(2)), engine.now).expect("room");
    let (reply, asked) = follow(&mut engine, &clock, |engine, _, _| {
        interfere(engine, &clock, PortRequest::Release(placement.allocation));
    });
    assert!(
        matches!(reply, PortReply::Place(Err(NotPlaced { ended: None, verdict: Verdict::NoFitNow, .. }))),
        "{reply:?}"
    );
    assert_eq!(asked, 1);
    check_all(&engine);
}

fn list(engine: &mut Engine) -> Vec<NodeView> {
    let command = Command::ListNodes { after: Ordinal(0), limit: u16::MAX };
    let PortReply::Every(outcomes) = ask(engine, PortRequest::Every(command)) else {
        panic!("every shard answers");
    };
    let pages = outcomes.into_iter().map(|outcome| match outcome {
        Outcome::Nodes(page) => page,
        other => panic!("not a page: {other:?}"),
    });
    pages.flatten().collect()
}

fn could_take(node: &NodeView, demand: &wharf_core::resource::Demand) -> bool {
    let free = |instance: u8| node.gpus_available.free(instance);
    let gpus = match demand.gpu {
        GpuRequest::None => true,
        GpuRequest::Fraction(part) => (0..16).any(|instance| free(instance) >= part),
        GpuRequest::Whole(count) => {
            (0..16).filter(|&instance| free(instance) == 10_000).count() >= usize::from(count)
        }
    };
    // No request here has tolerations.
    let taints = node.registration.spec.taints.as_slice();
    let tainted = taints.iter().any(|taint| taint.effect == TaintEffect::NoSchedule);
    node.state == NodeState::Ready
        && !tainted
        && gpus
        && node.cpu_available >= demand.cpu
        && node.memory_available >= demand.memory
}

#[test]
fn no_request_is_refused_while_any_node_could_hold_it() {
    let mut engine = open(StoreState::create(64), SHARDS, 1);
    let mut workload = Workload::new(8, engine.incarnation, 64);
    for i in 0..100 {
        let spec = workload.spec(&format!("n{i}"));
        add_node(&mut engine, spec);
    }
    let mut refused = 0;
    for _ in 0..1500 {
        let mut request = workload.request();
        request.selector = None;
        if request.policy == Policy::NextFit && refused % 7 == 0 {
            let id = workload.allocation(10);
            ask(&mut engine, PortRequest::Release(id));
        }
        let reply = ask(&mut engine, PortRequest::Place(request.clone()));
        if let PortReply::Place(Ok(placement)) = &reply {
            workload.granted.push(placement.allocation);
        }
        if let PortReply::Place(Err(NotPlaced { ended: None, .. })) = reply {
            refused += 1;
            let nodes = list(&mut engine);
            let could = nodes.iter().find(|node| could_take(node, &request.demand));
            assert!(could.is_none(), "{request:?} was refused, and {could:?} could hold it");
        }
    }
    assert!(refused > 50, "{refused} refusals");
    assert!(settle(&mut engine).is_empty());
    check_all(&engine);
}

#[test]
fn a_refusal_counts_nodes_that_take_no_work_and_nodes_that_are_short() {
    let mut engine = open(StoreState::create(1), 1, 1);
    for number in 0..5 {
        let node = add_node(&mut engine, node_spec(&format!("n{number}"), 4, 0));
        if number < 3 {
            let drain = Command::Life(node.id, LifeEvent::Drain);
            ask(&mut engine, PortRequest::Partition(node.partition, drain));
        }
    }
    let PortReply::Place(Err(NotPlaced { ended: None, refusal, .. })) =
        ask(&mut engine, PortRequest::Place(cores(5)))
    else {
        panic!("no node has five cores");
    };
    let counts: Vec<_> = refusal.checks.iter().map(|(&check, short)| (check, short.nodes)).collect();
    assert_eq!(counts, [(Check::NotReady, 3), (Check::Cpu, 2)], "{refusal:?}");
}

/// Nodes whose cores end in the step of the request are compared one by one, but only so many.
#[test]
fn a_refusal_tells_how_many_nodes_were_examined() {
    for (nodes, examined) in [(200, 200), (STEP_NODES_MAX as u64 + 44, STEP_NODES_MAX as u64)] {
        let mut engine = open(StoreState::create(1), 1, 1);
        for number in 0..nodes {
            let cpu = Amount::try_from_units(35_000).expect("3.5 cores");
            add_node(&mut engine, NodeSpec { cpu, ..node_spec(&format!("n{number}"), 4, 0) });
        }
        let PortReply::Place(Err(NotPlaced { ended: None, refusal, .. })) =
            ask(&mut engine, PortRequest::Place(cores(4)))
        else {
            panic!("no node has four cores");
        };
        assert_eq!((refusal.nodes, refusal.examined), (nodes, examined), "{refusal:?}");
        let short = refusal.checks[&Check::Cpu];
        assert_eq!((short.nodes, short.least.units()), (examined, 5_000), "{refusal:?}");
    }
}
