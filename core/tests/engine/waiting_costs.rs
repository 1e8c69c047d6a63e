//! The costs of waiting requests: a release and a status examine few of them, regardless of the number of
//! distinct ones.

use std::sync::Arc;

use crate::by_hand::{cores, lone_node, lone_shard, node_spec};
use wharf_core::ids::{AllocationId, NodeId};
use wharf_core::limits::{
    GO_ON_LOOKS_MAX, HOME_CHANGES_KEPT, HOME_LOOKS_MAX, HOME_SEARCH_LOOKS_MAX, WAKE_LOOKS_MAX,
};
use wharf_core::node::{Labels, NodeSpec, Operator, Selector, Term};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand};
use wharf_core::shard::{Command, Home, Outcome, Park, Refused, Shard, ShardStatus, WaitToken};
use wharf_core::time::Time;

/// Numbers of distinct waiting shapes.
const SIZES: [u64; 2] = [1_000, 16_384];

fn step(shard: &mut Shard, command: Command) -> Outcome {
    let mut outcomes = Vec::new();
    shard.step([command], Time(0), &mut outcomes);
    outcomes.remove(0)
}

fn term(key: &str, operator: Operator, values: &[&str]) -> Term {
    Term { key: key.into(), operator, values: values.iter().map(|&value| value.into()).collect() }
}

fn selecting(request: PlacementRequest, terms: Vec<Term>) -> PlacementRequest {
    PlacementRequest { selector: Some(Arc::new(Selector::new(terms))), ..request }
}

fn in_zone(mut spec: NodeSpec, zone: &str) -> NodeSpec {
    let labels = vec![("zone".into(), zone.into()), ("disk".into(), "ssd".into())];
    spec.labels = Labels::new(labels).expect("two keys");
    spec
}

fn park(shard: &mut Shard, number: u64, request: PlacementRequest) {
    let token = WaitToken { port: 0, number };
    let park = Park { token, request, priority: 0, since: Time(number), home: Home::Here };
    let outcome = step(shard, Command::Park(Box::new(park)));
    assert!(matches!(outcome, Outcome::Place(Err(Refused { parked: true, .. }))), "{outcome:?}");
}

/// Creates a shard of two nodes of 8 cores, both full of one-core allocations. Returns those of node 1.
fn full() -> (Shard, Vec<AllocationId>) {
    let mut shard = lone_shard();
    for (number, zone) in [(1, "a"), (2, "b")] {
        step(&mut shard, lone_node(number, in_zone(node_spec(&format!("n{number}"), 8, 0), zone), false));
    }
    let mut held = Vec::new();
    for _ in 0..16 {
        match step(&mut shard, Command::Place(cores(1))) {
            Outcome::Place(Ok(placement)) if placement.node == NodeId(1) => held.push(placement.allocation),
            Outcome::Place(Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    (shard, held)
}

fn demand(milli: u64, mebibytes: u64) -> PlacementRequest {
    let demand = Demand {
        cpu: Amount::from_milli(milli as u32),
        memory: Amount::whole(mebibytes as u32),
        ..Demand::default()
    };
    PlacementRequest::new(demand, Policy::BestFit)
}

/// A name, and the requests of that kind by number.
type HopelessKind = (&'static str, fn(u64) -> PlacementRequest);

/// Kinds of distinct requests that a release of one core on node 1 cannot help.
const HOPELESS: [HopelessKind; 6] = [
    ("much cpu, or much memory", |i| {
        if i % 2 == 0 { demand(1001 + i, 1 + i) } else { demand(1 + i % 1000, 40_000 + i) }
    }),
    ("ever more cpu and less memory", |i| demand(1 + i, 60_000 - i)),
    ("a label that no node has", |i| {
        selecting(cores(1), vec![term("team", Operator::In, &[&format!("t{i}")])])
    }),
    ("another zone, and not some host", |i| {
        let host = term("host", Operator::NotIn, &[&format!("h{i}")]);
        selecting(cores(1), vec![term("zone", Operator::In, &["b", "c"]), host])
    }),
    ("another node by its name", |i| PlacementRequest {
        candidates: Some(Arc::from([NodeId(2), NodeId(100 + i)])),
        ..cores(1)
    }),
    (BEYOND_INDEXES, excluding),
];

const BEYOND_INDEXES: &str = "neither of two zones, by exclusion alone";

#[test]
fn a_release_that_helps_nobody_looks_at_few_shapes_of_any_kind() {
    for (kind, request) in HOPELESS {
        for count in SIZES {
            let (mut shard, held) = full();
            (0..count).for_each(|number| park(&mut shard, number, request(number)));
            let before = shard.work().waiting_looked_at;
            for &id in &held[..4] {
                step(&mut shard, Command::Release(id));
                // Taken again, so that the next release starts from a full node, too.
                let outcome = step(&mut shard, Command::Place(cores(1)));
                assert!(matches!(outcome, Outcome::Place(Ok(_))), "{outcome:?}");
            }
            let looks = (shard.work().waiting_looked_at - before) / 4;
            // What an index finds is found at once. The rest is bounded, and done later.
            let looks_max = if kind == BEYOND_INDEXES { WAKE_LOOKS_MAX + 8 } else { 24 };
            assert!(looks <= looks_max, "{kind}: {looks} looks per release, {count} shapes wait");
            go_on(&mut shard);
            assert_eq!(shard.drain_woken().count(), 0, "{kind}");
            shard.check_invariants().expect("nothing waits although a node could hold it");
        }
    }
}

/// Does what a shard's thread does between batches, until nothing is put off.
fn go_on(shard: &mut Shard) {
    let mut times = 0;
    while shard.is_behind() {
        let before = shard.work();
        assert!(matches!(step(shard, Command::GoOn), Outcome::WentOn));
        let work = shard.work();
        let looks = work.waiting_looked_at - before.waiting_looked_at;
        let homes = work.waiting_homes_looked_at - before.waiting_homes_looked_at;
        // One shape may exceed the limit by what is examined for it at once.
        let on_top = (HOME_CHANGES_KEPT as u64).max(HOME_SEARCH_LOOKS_MAX) + 2;
        assert!(
            looks <= GO_ON_LOOKS_MAX && homes <= GO_ON_LOOKS_MAX + on_top,
            "{looks} looks and {homes} for homes by one command"
        );
        times += 1;
        assert!(times <= 100_000, "it never ends");
    }
}

/// Only examining each request shows that it excludes the zone of node 1.
fn excluding(number: u64) -> PlacementRequest {
    selecting(cores(1), vec![term("zone", Operator::NotIn, &["a", &format!("z{number}")])])
}

#[test]
fn what_fits_behind_many_that_do_not_is_woken_in_turn_by_later_commands() {
    let (mut shard, held) = full();
    let count = 5_000;
    (0..count).for_each(|number| park(&mut shard, number, excluding(number)));
    // Three requests fit. The last one has a higher priority than the one before it.
    park(&mut shard, count, cores(1));
    let park = Park {
        token: WaitToken { port: 0, number: count + 1 },
        request: demand(900, 1),
        priority: -1,
        since: Time(count),
        home: Home::Here,
    };
    step(&mut shard, Command::Park(Box::new(Park { priority: -2, ..park.clone() })));
    let second = WaitToken { port: 0, number: count + 2 };
    step(&mut shard, Command::Park(Box::new(Park { token: second, request: demand(901, 1), ..park })));
    step(&mut shard, Command::Release(held[0]));
    assert_eq!(shard.drain_woken().count(), 0, "too many come before");
    assert!(shard.is_behind());
    shard.check_invariants().expect("the node is put off");
    // A second release while the rest is examined. Fitting requests are still found, in order.
    step(&mut shard, Command::GoOn);
    step(&mut shard, Command::Release(held[1]));
    go_on(&mut shard);
    let woken: Vec<u64> = shard.drain_woken().map(|token| token.number).collect();
    // The second release offered all capacity again, before the first two were answered.
    assert_eq!(woken, [count, count + 2, count + 1], "by priority; the node has room for two");
    shard.check_invariants().expect("nothing waits although a node could hold it");
    for number in woken {
        let outcome = step(&mut shard, Command::Retry(WaitToken { port: 0, number }));
        let is_placed = matches!(outcome, Outcome::Place(Ok(_)));
        assert_eq!(is_placed, number != count + 1, "{number}: {outcome:?}");
    }
    go_on(&mut shard);
    assert_eq!(shard.drain_woken().count(), 0, "no room is left for the last");
    // A node that leaves while it is put off.
    step(&mut shard, Command::Release(held[2]));
    assert!(shard.is_behind());
    step(&mut shard, Command::RemoveNode { node: NodeId(1), force: true });
    go_on(&mut shard);
    shard.check_invariants().expect("nothing waits although a node could hold it");
}

/// The same commands, including put-off work, wake the same copies however they are cut into batches.
#[test]
fn what_is_put_off_does_not_depend_on_how_commands_are_cut() {
    let run = |cut: usize| {
        let (mut shard, held) = full();
        let park = |number: u64| {
            let request = if number % 700 == 699 { demand(900, number) } else { excluding(number) };
            let token = WaitToken { port: 0, number };
            Park { token, request, priority: 0, since: Time(number), home: Home::Here }
        };
        let mut commands: Vec<Command> = (0..2_000).map(|i| Command::Park(Box::new(park(i)))).collect();
        for (at, &id) in held.iter().enumerate() {
            commands.push(Command::Release(id));
            commands.extend((0..3 * at).map(|_| Command::GoOn));
        }
        commands.extend((0..40).map(|_| Command::GoOn));
        let mut outcomes = Vec::new();
        let mut woken = Vec::new();
        for batch in commands.chunks(cut) {
            shard.step_batch(&mut batch.to_vec(), Time(1), &mut outcomes);
            woken.extend(shard.drain_woken());
        }
        assert!(!shard.is_behind() && woken.len() == 2, "{woken:?}");
        (format!("{outcomes:?}"), woken, shard.state_hash())
    };
    let one_by_one = run(1);
    for cut in [2, 7, 64, usize::MAX] {
        assert!(run(cut) == one_by_one, "cut into batches of {cut}");
    }
}

/// Each request fits alone, but the node has room for only one.
#[test]
fn a_release_that_helps_one_of_many_looks_at_few() {
    for count in SIZES {
        let (mut shard, held) = full();
        (0..count).for_each(|number| park(&mut shard, number, demand(600 + number % 400, 1 + number)));
        let before = shard.work().waiting_looked_at;
        step(&mut shard, Command::Release(held[0]));
        let looks = shard.work().waiting_looked_at - before;
        assert!(looks <= 24, "{looks} looks, {count} shapes wait");
        let woken: Vec<u64> = shard.drain_woken().map(|token| token.number).collect();
        assert_eq!(woken, [0], "the oldest");
        shard.check_invariants().expect("nothing waits although a node could hold it");
    }
}

fn status(shard: &mut Shard) -> Box<ShardStatus> {
    match step(shard, Command::Status) {
        Outcome::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

/// Nodes that no shape may use must not be examined for each shape.
#[test]
fn a_status_looks_at_few_nodes_however_many_shapes_wait() {
    for (nodes, shapes) in [(256, 512), (2_048, 512), (2_048, 4_096)] {
        let mut shard = lone_shard();
        for number in 1..=nodes {
            let spec = in_zone(node_spec(&format!("n{number}"), 8, 0), "a");
            step(&mut shard, lone_node(number, spec, false));
        }
        for number in 0..shapes {
            let absent = term("zone", Operator::NotIn, &["a", &format!("z{number}")]);
            park(&mut shard, number, selecting(cores(1), vec![absent]));
        }
        for _ in 0..3 {
            let before = shard.work().waiting_homes_looked_at;
            assert_eq!(status(&mut shard).waiting.len() as u64, shapes);
            let looks = shard.work().waiting_homes_looked_at - before;
            assert!(
                looks <= HOME_LOOKS_MAX + HOME_SEARCH_LOOKS_MAX + 2,
                "{looks} looks per status: {nodes} nodes, {shapes} shapes"
            );
        }
        go_on(&mut shard);
        let before = shard.work();
        assert!(status(&mut shard).waiting.iter().all(|shape| !shape.feasible && shape.homes == 1));
        assert_eq!(shard.work(), before, "nothing came or went: nothing is looked at");
        // A node that any of them could run on is added, and then removed.
        let spec = in_zone(node_spec("other", 8, 0), "b");
        step(&mut shard, lone_node(nodes + 1, spec, false));
        go_on(&mut shard);
        status(&mut shard);
        go_on(&mut shard);
        assert!(status(&mut shard).waiting.iter().all(|shape| shape.feasible));
        step(&mut shard, Command::RemoveNode { node: NodeId(nodes + 1), force: true });
        status(&mut shard);
        go_on(&mut shard);
        assert!(status(&mut shard).waiting.iter().all(|shape| !shape.feasible));
    }
}

/// Places that shapes have left are looked at, too: many of them are not looked at in one go.
#[test]
fn a_status_looks_at_few_places_however_many_shapes_have_gone() {
    let (mut shard, _) = full();
    let count = HOME_LOOKS_MAX + 1_000;
    (0..count).for_each(|number| park(&mut shard, number, demand(1_001 + number, 1)));
    for number in 0..count - 1 {
        step(&mut shard, Command::Unpark(WaitToken { port: 0, number }));
    }
    go_on(&mut shard);
    let before = shard.work().waiting_homes_looked_at;
    assert_eq!(status(&mut shard).waiting.len(), 1);
    let looks = shard.work().waiting_homes_looked_at - before;
    assert!((HOME_LOOKS_MAX..=HOME_LOOKS_MAX + HOME_SEARCH_LOOKS_MAX + 2).contains(&looks), "{looks} looks");
    assert!(shard.is_behind(), "the others are looked at later");
    go_on(&mut shard);
    let looks = shard.work().waiting_homes_looked_at - before;
    assert!(looks >= count, "{looks} looks at {count} places");
}
