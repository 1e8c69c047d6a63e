//! Waiting placements and waiting groups have one order: priority, then age.

use std::sync::Arc;

use crate::by_hand::{
    ManualClock, add_node, ask, check_all, cores, lone_node, lone_shard, node_spec, settle,
};
use crate::group_bed::{engine, group_of};
use wharf_core::engine::Engine;
use wharf_core::executor::Unobserved;
use wharf_core::group::{GroupSpec, PlanJob, PlanReply, Strategy};
use wharf_core::ids::{AllocationId, GroupId};
use wharf_core::limits::{GO_ON_LOOKS_MAX, WAKE_LOOKS_MAX};
use wharf_core::router::{PortReply, PortRequest, Tag, WaitRequest};
use wharf_core::shard::{Command, Home, Outcome, Park, Shard, WaitToken, Watch};
use wharf_core::time::Time;

const GIVEN_BACK: Tag = 1000;

/// What waits: a placement, or a group of so many bundles. Each asks for nodes of four cores.
#[derive(Clone, Copy, Debug)]
enum Waiter {
    Placement { priority: i32 },
    Group { priority: i32, bundles: usize },
}

fn group(priority: i32) -> Waiter {
    Waiter::Group { priority, bundles: 1 }
}

fn placement(priority: i32) -> Waiter {
    Waiter::Placement { priority }
}

/// Creates nodes of four cores that are full. Returns the allocations that fill them.
fn full(shards: u16, nodes: u32) -> (Engine, Vec<AllocationId>) {
    let mut engine = engine(shards, 1);
    for number in 0..nodes {
        add_node(&mut engine, node_spec(&format!("n{number}"), 4, 0));
    }
    let place = |engine: &mut Engine| match ask(engine, PortRequest::Place(cores(4))) {
        PortReply::Place(Ok(placement)) => placement.allocation,
        other => panic!("{other:?}"),
    };
    let held = (0..nodes).map(|_| place(&mut engine)).collect();
    (engine, held)
}

/// Submits waiters one after the other. The tag of each is its index.
fn wait_all(engine: &mut Engine, waiters: &[Waiter]) {
    for (tag, &waiter) in (0..).zip(waiters) {
        engine.now = Time(engine.now.0 + 1);
        let until = Time(u64::MAX);
        let request = match waiter {
            Waiter::Placement { priority } => PortRequest::Wait(Box::new(WaitRequest {
                request: cores(4),
                priority,
                since: engine.now,
                until,
                is_resumed: false,
            })),
            Waiter::Group { priority, bundles } => {
                let spec = group_of(cores(4), bundles, Strategy::Pack);
                let spec = GroupSpec { priority, wait_until: Some(until), ..spec };
                PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec)))
            }
        };
        engine.ports[0].submit(tag, request, engine.now).expect("room");
        engine.ports[0].flush();
        assert!(settle(engine).is_empty(), "{waiter:?} waits");
    }
}

/// What was granted, to be given back.
#[derive(Clone, Copy, Debug)]
enum Granted {
    Placement(AllocationId),
    Group(GroupId),
}

fn granted(reply: &PortReply) -> Granted {
    if let PortReply::Place(Ok(placement)) = reply {
        return Granted::Placement(placement.allocation);
    }
    if let PortReply::Plan(reply) = reply
        && let PlanReply::Group(Ok(view)) = &**reply
    {
        return Granted::Group(view.id);
    }
    panic!("{reply:?}")
}

/// Gives something back. Returns the waiters that are served.
fn give_back(engine: &mut Engine, granted_before: Granted) -> Vec<(Tag, Granted)> {
    let request = match granted_before {
        Granted::Placement(allocation) => PortRequest::Release(allocation),
        Granted::Group(id) => PortRequest::Plan(PlanJob::RemoveGroup(id)),
    };
    engine.ports[0].submit(GIVEN_BACK, request, engine.now).expect("room");
    engine.ports[0].flush();
    let replies = settle(engine);
    check_all(engine);
    let served = replies.iter().filter(|(tag, _)| *tag != GIVEN_BACK);
    served.map(|(tag, reply)| (*tag, granted(reply))).collect()
}

/// Gives something back, which serves one waiter.
fn give_back_to_one(engine: &mut Engine, granted: Granted) -> (Tag, Granted) {
    let served = give_back(engine, granted);
    let [one] = served[..] else { panic!("one is served at a time: {served:?}") };
    one
}

/// Serves all waiters with one node. Returns their order.
fn order_of(shards: u16, waiters: &[Waiter]) -> Vec<Tag> {
    let (mut engine, held) = full(shards, 1);
    wait_all(&mut engine, waiters);
    let mut free = Granted::Placement(held[0]);
    let mut order = Vec::new();
    for _ in waiters {
        let (tag, next) = give_back_to_one(&mut engine, free);
        order.push(tag);
        free = next;
    }
    order
}

#[test]
fn placements_and_groups_are_served_by_priority_then_age() {
    for shards in [1, 3] {
        let waiters = [placement(0), group(0), placement(5), group(5), placement(0)];
        assert_eq!(order_of(shards, &waiters), [2, 3, 0, 1, 4]);
        let waiters = [group(-1), placement(-1), group(7), placement(0), group(0), placement(7)];
        assert_eq!(order_of(shards, &waiters), [2, 5, 3, 4, 0, 1]);
    }
}

/// Would catch a group that waits again, with a new id, and is the youngest then.
#[test]
fn groups_that_waited_before_keep_their_age() {
    let (mut engine, held) = full(1, 1);
    engine.now = Time(1000);
    wait_all(&mut engine, &[group(0), placement(0), group(0)]);
    for (tag, since) in [(3, 1002), (4, 500), (5, 400)] {
        let spec = GroupSpec { wait_until: Some(Time(u64::MAX)), ..group_of(cores(4), 1, Strategy::Pack) };
        let job = PlanJob::Resume(Time(since), Box::new(PlanJob::CreateGroup(Arc::new(spec))));
        engine.ports[0].submit(tag, PortRequest::Plan(job), engine.now).expect("room");
        engine.ports[0].flush();
        assert!(settle(&mut engine).is_empty(), "it waits");
    }
    let mut free = Granted::Placement(held[0]);
    let mut order = Vec::new();
    for _ in 0..6 {
        let (tag, next) = give_back_to_one(&mut engine, free);
        order.push(tag);
        free = next;
    }
    assert!(order == [5, 4, 0, 1, 3, 2] || order == [5, 4, 0, 3, 1, 2], "{order:?}");
}

#[test]
fn room_that_does_not_serve_a_group_goes_to_those_after_it() {
    let (mut engine, held) = full(2, 2);
    let gang = Waiter::Group { priority: 9, bundles: 2 };
    wait_all(&mut engine, &[gang, gang, placement(0), group(-1)]);
    let (tag, placed) = give_back_to_one(&mut engine, Granted::Placement(held[0]));
    assert_eq!(tag, 2, "neither gang has its nodes");
    let (tag, group) = give_back_to_one(&mut engine, placed);
    assert_eq!(tag, 3);
    assert!(give_back(&mut engine, group).is_empty(), "one node serves no gang");
    let (tag, _) = give_back_to_one(&mut engine, Granted::Placement(held[1]));
    assert_eq!(tag, 0, "the older gang comes first");
}

#[test]
fn a_group_that_is_cancelled_while_it_has_room_gives_it_to_those_after_it() {
    let (mut engine, held) = full(1, 1);
    wait_all(&mut engine, &[group(5), placement(0)]);
    let clock = ManualClock::new(engine.now);
    engine.ports[0].submit(GIVEN_BACK, PortRequest::Release(held[0]), engine.now).expect("room");
    engine.ports[0].flush();
    engine.runners[0].run_batch(&clock, &mut Unobserved);
    // The shard offered the node to the group, whose planner has not run since.
    engine.ports[0].cancel_plan(0);
    engine.ports[0].flush();
    let replies = settle(&mut engine);
    let group = replies.iter().find(|(tag, _)| *tag == 0).expect("the group is answered");
    let placed = replies.iter().any(|(tag, reply)| *tag == 1 && matches!(reply, PortReply::Place(Ok(_))));
    let cancelled = matches!(&group.1, PortReply::Plan(reply) if matches!(**reply, PlanReply::Group(Err(_))));
    assert!(placed && cancelled, "{replies:?}");
    check_all(&engine);
}

#[test]
fn growth_that_no_bundle_fits_is_not_planned_for() {
    let mut engine = engine(2, 1);
    for number in 0..8 {
        add_node(&mut engine, node_spec(&format!("n{number}"), 4, 0));
    }
    let small: Vec<AllocationId> = (0..32)
        .map(|_| match ask(&mut engine, PortRequest::Place(cores(1))) {
            PortReply::Place(Ok(placement)) => placement.allocation,
            other => panic!("{other:?}"),
        })
        .collect();
    // One bundle beyond its minimum waits for a whole node.
    let spec = group_of(cores(0), 2, Strategy::Pack);
    let mut bundles = spec.bundles.to_vec();
    bundles[1] = Arc::new(cores(4));
    let spec = GroupSpec { bundles, min_members: 1, ..spec };
    let reply = ask(&mut engine, PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec))));
    assert!(matches!(granted(&reply), Granted::Group(_)));
    let searches = |engine: &Engine| engine.planners[0].planner().work().searches;
    let before = searches(&engine);
    for &allocation in &small {
        let PortReply::One(_) = ask(&mut engine, PortRequest::Release(allocation)) else {
            panic!("released")
        };
        if engine.planners[0].planner().metrics().granted == 2 {
            break;
        }
    }
    assert_eq!(engine.planners[0].planner().metrics().granted, 2, "a whole node serves the bundle");
    assert_eq!(searches(&engine) - before, 1, "only the node that is whole is a reason to plan");
}

fn step(shard: &mut Shard, command: Command) -> Outcome {
    let mut outcomes = Vec::new();
    shard.step([command], Time(0), &mut outcomes);
    outcomes.remove(0)
}

/// Fills nodes of eight cores with allocations of the given sizes. Returns the allocations.
fn filled(shard: &mut Shard, nodes: u64, sizes: &[u32]) -> Vec<AllocationId> {
    let nodes = (1..=nodes).map(|number| lone_node(number, node_spec(&format!("n{number}"), 8, 0), false));
    for node in nodes.collect::<Vec<_>>() {
        step(shard, node);
    }
    let place = |&size: &u32| match step(shard, Command::Place(cores(size))) {
        Outcome::Place(Ok(placement)) => placement.allocation,
        other => panic!("{other:?}"),
    };
    sizes.iter().map(place).collect()
}

fn token(number: u64) -> WaitToken {
    WaitToken { port: 0, number }
}

fn park(number: u64, size: u32) -> Command {
    let park = Park {
        token: token(number),
        request: cores(size),
        priority: 0,
        since: Time(number),
        home: Home::Here,
    };
    Command::Park(Box::new(park))
}

fn watch(number: u64, size: u32) -> Command {
    let watch = Watch { token: token(number), request: cores(size), priority: 0, since: Time(number) };
    Command::Watch(Box::new(watch))
}

fn woken(shard: &mut Shard) -> Vec<u64> {
    while shard.is_behind() {
        step(shard, Command::GoOn);
    }
    shard.check_invariants().expect("the shard is sound");
    shard.drain_woken().map(|token| token.number).collect()
}

#[test]
fn requests_before_a_bundle_have_their_turn_although_their_node_was_put_off() {
    let mut shard = lone_shard();
    shard.set_wake_looks(1);
    let held = filled(&mut shard, 1, &[5, 1, 2]);
    // Two equal requests come first, then a bundle that needs less.
    for command in [park(1, 4), park(2, 4), watch(3, 2)] {
        step(&mut shard, command);
    }
    step(&mut shard, Command::Release(held[2]));
    assert_eq!(woken(&mut shard), [3], "two cores are for the bundle");
    step(&mut shard, Command::Release(held[0]));
    assert_eq!(woken(&mut shard), [1]);
    step(&mut shard, Command::Rearm { token: token(3), reports: 1 });
    assert!(matches!(step(&mut shard, Command::Retry(token(1))), Outcome::Place(Ok(_))));
    assert!(woken(&mut shard).contains(&3), "the bundle fits into what the first request left");
    step(&mut shard, Command::Rearm { token: token(3), reports: 1 });
    step(&mut shard, Command::Unpark(token(3)));
    assert_eq!(woken(&mut shard), [], "the second request does not fit");
}

#[test]
fn the_answer_to_a_bundle_that_many_nodes_could_hold_is_bounded_work() {
    const NODES: u64 = 3_000;
    for unpark in [false, true] {
        let mut shard = lone_shard();
        let held = filled(&mut shard, NODES, &vec![8; NODES as usize]);
        step(&mut shard, watch(1, 8));
        (0..NODES).for_each(|at| _ = step(&mut shard, park(2 + at, 8)));
        held.into_iter().for_each(|id| _ = step(&mut shard, Command::Release(id)));
        assert!(woken(&mut shard).iter().all(|&number| number == 1), "the bundle comes first on every node");
        let looked_before = shard.work().waiting_looked_at;
        let answer = match unpark {
            true => Command::Unpark(token(1)),
            false => Command::Rearm { token: token(1), reports: NODES as u32 },
        };
        step(&mut shard, answer);
        let looked = shard.work().waiting_looked_at - looked_before;
        assert!(looked <= GO_ON_LOOKS_MAX + 3 * WAKE_LOOKS_MAX, "{looked} looks by one command");
        assert!(shard.is_behind(), "the rest is left for later");
        let mut all = woken(&mut shard);
        all.sort_unstable();
        assert_eq!(all, (2..2 + NODES).collect::<Vec<_>>(), "each node's room goes to one request");
    }
}
