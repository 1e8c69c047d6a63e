//! Waiting requests: they are woken only by events that help them, in order, and each is placed once.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::by_hand::{
    ManualClock, Recorder, Workload, add_node, ask, check_all, cores, lone_node, lone_shard, node_spec, open,
    settle,
};
use wharf_core::engine::Engine;
use wharf_core::hash::stable_hash;
use wharf_core::ids::{AllocationId, NodeId, PartitionId};
use wharf_core::limits::PORT_WAITING_MAX;
use wharf_core::link::Clock;
use wharf_core::node::{Labels, LifeEvent, NodeSpec, Operator, Selector, Term};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, ResourceKind};
use wharf_core::router::{NotPlaced, PortReply, PortRequest, Tag, Verdict, WaitEnd, WaitRequest};
use wharf_core::shard::{Command, Home, NodeChange, Outcome, Park, WaitToken};
use wharf_core::state::StoreState;
use wharf_core::time::Time;

const SHARDS: u16 = 4;

fn submit_wait(engine: &mut Engine, tag: Tag, request: PlacementRequest, priority: i32, until: u64) {
    let wait = WaitRequest { request, priority, since: engine.now, until: Time(until), is_resumed: false };
    let direct = engine.ports[0].submit(tag, PortRequest::Wait(Box::new(wait)), engine.now);
    assert!(matches!(direct, Ok(None)), "{direct:?}");
}

/// Submits waiting requests that nothing answers. After settling, all of them wait.
fn wait_all(engine: &mut Engine, tags: &[(Tag, i32)], request: &PlacementRequest) {
    for &(tag, priority) in tags {
        submit_wait(engine, tag, request.clone(), priority, u64::MAX);
    }
    let replies = settle(engine);
    assert!(replies.is_empty(), "{replies:?}");
    assert_eq!(engine.ports[0].waiting(), tags.len());
}

fn place(engine: &mut Engine, request: PlacementRequest) -> AllocationId {
    match ask(engine, PortRequest::Place(request)) {
        PortReply::Place(Ok(placement)) => placement.allocation,
        other => panic!("{other:?}"),
    }
}

/// Releases an allocation. Returns the replies to waiting requests.
fn release(engine: &mut Engine, id: AllocationId) -> Vec<(Tag, PortReply)> {
    let direct = engine.ports[1].submit(99, PortRequest::Release(id), engine.now);
    assert!(matches!(direct, Ok(None)), "{direct:?}");
    let mut replies = settle(engine);
    let released = replies.iter().position(|(tag, _)| *tag == 99).expect("the release is answered");
    replies.remove(released);
    replies
}

fn parked(engine: &mut Engine) -> u64 {
    let PortReply::Every(outcomes) = ask_at_other(engine, PortRequest::Every(Command::Audit { number: 0 }))
    else {
        panic!("every shard answers")
    };
    let homes = outcomes.iter().map(|outcome| match outcome {
        Outcome::Status(status) => status.waiting.iter().map(|shape| shape.homes).sum::<u64>(),
        other => panic!("{other:?}"),
    });
    homes.sum()
}

fn ask_at_other(engine: &mut Engine, request: PortRequest) -> PortReply {
    let direct = engine.ports[1].submit(98, request, engine.now).expect("room for one");
    assert!(direct.is_none());
    let mut replies = settle(engine);
    assert_eq!(replies.len(), 1, "{replies:?}");
    replies.remove(0).1
}

/// Creates four shards and eight nodes of four cores, all in use. Returns the allocations.
fn full() -> (Engine, Vec<AllocationId>) {
    let mut engine = open(StoreState::create(16), SHARDS, 2);
    for i in 0..8 {
        add_node(&mut engine, node_spec(&format!("n{i}"), 4, 0));
    }
    let held = (0..8).map(|_| place(&mut engine, cores(4))).collect();
    (engine, held)
}

#[test]
fn a_release_wakes_one_by_priority_then_age() {
    let (mut engine, held) = full();
    wait_all(&mut engine, &[(1, 0), (2, 5), (3, 5), (4, 0)], &cores(4));
    assert_eq!(parked(&mut engine), 4);
    for (allocation, expected) in held.iter().zip([2, 3, 1, 4]) {
        let replies = release(&mut engine, *allocation);
        assert!(
            matches!(&replies[..], [(tag, PortReply::Place(Ok(_)))] if *tag == expected),
            "{expected}: {replies:?}"
        );
        check_all(&engine);
    }
    assert_eq!((engine.ports[0].waiting(), parked(&mut engine)), (0, 0));
}

#[test]
fn a_release_wakes_as_many_as_it_can_hold() {
    let (mut engine, held) = full();
    wait_all(&mut engine, &[(1, 0), (2, 0), (3, 0)], &cores(2));
    let replies = release(&mut engine, held[5]);
    let tags: Vec<Tag> = replies.iter().map(|(tag, _)| *tag).collect();
    assert_eq!(tags.len(), 2, "{replies:?}");
    assert!(!tags.contains(&3) && engine.ports[0].waiting() == 1);
    check_all(&engine);
}

#[test]
fn a_request_that_fits_is_placed_at_once_and_one_that_none_could_hold_by_a_new_node() {
    let (mut engine, _) = full();
    wait_all(&mut engine, &[(1, 0)], &cores(64));
    let node = engine.registrar.register(node_spec("large", 64, 0)).expect("a new name");
    engine.catalog.store(std::sync::Arc::new(engine.registrar.catalog()));
    let request = PortRequest::Partition(node.partition, Command::AddNode(Box::new(node.clone())));
    engine.ports[1].submit(5, request, engine.now).expect("room");
    let placed = settle(&mut engine).into_iter().find(|(tag, _)| *tag == 1).expect("the new node takes it");
    assert!(matches!(placed.1, PortReply::Place(Ok(placement)) if placement.node == node.id));
    submit_wait(&mut engine, 2, cores(0), 0, u64::MAX);
    assert!(matches!(&settle(&mut engine)[..], [(2, PortReply::Place(Ok(_)))]));
    check_all(&engine);
}

/// The load counts at the node where the request could run, whichever shard is asked first. A request that
/// could run nowhere is still counted once.
#[test]
fn the_load_of_what_waits_counts_at_a_node_that_could_hold_it() {
    let mut engine = open(StoreState::create(16), SHARDS, 2);
    let node = add_node(&mut engine, node_spec("a", 4, 0));
    place(&mut engine, cores(4));
    for tag in 1..=16u32 {
        submit_wait(&mut engine, tag.into(), cores(3), 0, u64::MAX);
        assert!(settle(&mut engine).is_empty());
        let books = PortRequest::Partition(node.partition, Command::NodeBooks(node.id));
        let PortReply::One(Outcome::Books(Ok(books))) = ask_at_other(&mut engine, books) else {
            panic!("the node is known")
        };
        let load = books.resources.iter().find(|(kind, _)| *kind == ResourceKind::Cpu).expect("cpu").1.load;
        assert_eq!(load, Amount::whole(3 * tag).units());
    }
    submit_wait(&mut engine, 17, cores(64), 0, u64::MAX);
    assert!(settle(&mut engine).is_empty());
    assert_eq!(parked(&mut engine), 17);
}

#[test]
fn waits_end_by_deadline_by_being_taken_back_and_by_the_end() {
    let (mut engine, held) = full();
    submit_wait(&mut engine, 1, cores(4), 0, 1_000_000);
    submit_wait(&mut engine, 2, cores(64), 0, u64::MAX);
    submit_wait(&mut engine, 3, cores(4), 0, u64::MAX);
    assert!(settle(&mut engine).is_empty());
    let mut ended = Vec::new();
    assert_eq!(engine.ports[0].next_deadline(), Some(Time(1_000_000)));
    engine.ports[0].end_waits(Time(1_000_000), |tag, reply| ended.push((tag, reply)));
    ended.extend(engine.ports[0].end_wait(2, WaitEnd::Cancelled, Time(1_000_000)));
    engine.ports[0].stop_waits(Time(1_000_000), |tag, reply| ended.push((tag, reply)));
    let ends: Vec<_> = ended
        .iter()
        .map(|(tag, reply)| match reply {
            PortReply::Place(Err(NotPlaced { ended: Some(end), verdict, refusal })) => {
                (*tag, *end, *verdict, refusal.nodes)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        (1, WaitEnd::Expired, Verdict::NoFitNow, 8),
        (2, WaitEnd::Cancelled, Verdict::Infeasible, 8),
        (3, WaitEnd::Stopped, Verdict::NoFitNow, 8),
    ];
    assert_eq!(ends, expected);
    assert!(engine.ports[0].end_wait(2, WaitEnd::Cancelled, Time(1_000_000)).is_none());
    assert!(settle(&mut engine).is_empty());
    assert_eq!((parked(&mut engine), engine.ports[0].next_deadline()), (0, None));
    assert!(release(&mut engine, held[0]).is_empty(), "nobody waits");
}

/// Runs requests and releases of every kind at two ports, some of them waiting. Once everything is answered,
/// nothing that fits is still waiting, and every request was answered once.
#[test]
fn nothing_that_fits_waits() {
    for seed in 0..6 {
        let mut engine = open(StoreState::create(16), SHARDS, 2);
        let mut work = Workload::new(seed, engine.incarnation, 16);
        for i in 0..12 {
            let spec = work.spec(&format!("n{i}"));
            add_node(&mut engine, spec);
        }
        let mut live: BTreeMap<Tag, AllocationId> = BTreeMap::new();
        let mut waiting = 0usize;
        let mut placed = 0usize;
        for tag in 0..400u64 {
            let priority = (tag % 3) as i32;
            submit_wait(&mut engine, tag, work.request(), priority, u64::MAX);
            waiting += 1;
            if tag % 2 == 0
                && let Some((&oldest, &id)) = live.iter().next()
            {
                live.remove(&oldest);
                engine.ports[1].submit(u64::MAX, PortRequest::Release(id), engine.now).expect("room");
            }
            for (tag, reply) in settle(&mut engine) {
                if let PortReply::Place(Ok(placement)) = reply {
                    assert!(live.insert(tag, placement.allocation).is_none());
                    waiting -= 1;
                    placed += 1;
                }
            }
            check_all(&engine);
            assert_eq!(engine.ports[0].waiting(), waiting, "seed {seed}");
        }
        assert!(placed > 50 && waiting > 50, "{placed} placed, {waiting} wait");
    }
}

/// Ten thousand requests with distinct demands wait. A release that helps none of them must not examine them.
#[test]
fn a_release_that_helps_nobody_looks_at_few() {
    let mut shard = lone_shard();
    let nodes = (1..=4).map(|number| lone_node(number, node_spec(&format!("n{number}"), 8, 0), false));
    shard.step(nodes, Time(0), &mut Vec::new());
    let mut outcomes = Vec::new();
    let fill = (0..32).map(|_| Command::Place(cores(1)));
    shard.step(fill, Time(1), &mut outcomes);
    let Outcome::Place(Ok(first)) = outcomes.remove(0) else { panic!("the first fits") };
    let park = |number: u64| {
        // Much memory or much cpu, with increasing demands.
        let demand = Demand {
            cpu: Amount::from_milli(2000 + number as u32),
            memory: Amount::whole(1 + number as u32),
            ..Demand::default()
        };
        let token = WaitToken { port: 0, number };
        let request = PlacementRequest::new(demand, Policy::BestFit);
        Command::Park(Box::new(Park { token, request, priority: 0, since: Time(number), home: Home::Here }))
    };
    shard.step((0..10_000).map(park), Time(2), &mut Vec::new());
    let before = shard.work().waiting_looked_at;
    shard.step([Command::Release(first.allocation)], Time(3), &mut Vec::new());
    let looked = shard.work().waiting_looked_at - before;
    assert!(looked <= 4, "{looked} levels and shapes looked at");
    assert_eq!(shard.drain_woken().count(), 0);
    // A node that takes work again, but has no free capacity.
    shard.step([Command::Life(NodeId(2), LifeEvent::Drain)], Time(4), &mut Vec::new());
    shard.step([Command::Life(NodeId(2), LifeEvent::Undrain)], Time(5), &mut Vec::new());
    assert_eq!(shard.drain_woken().count(), 0);
    shard.check_invariants().expect("nothing waits that would fit");
}

/// Thousands of requests exclude this zone, so a release does not examine all of them. The shard's thread
/// does so between batches.
#[test]
fn what_fits_is_placed_although_thousands_that_do_not_come_before_it() {
    let mut engine = open(StoreState::create(1), 1, 2);
    let mut spec = node_spec("n", 1, 0);
    spec.labels = Labels::new(vec![("zone".into(), "a".into())]).expect("one key");
    add_node(&mut engine, spec);
    let held = place(&mut engine, cores(1));
    for number in 0..2_000 {
        let values = vec!["a".to_owned(), format!("z{number}")];
        let term = Term { key: "zone".into(), operator: Operator::NotIn, values };
        let selector = Some(Arc::new(Selector::new(vec![term])));
        submit_wait(&mut engine, number, PlacementRequest { selector, ..cores(1) }, 1, u64::MAX);
        if number % 256 == 0 {
            assert!(settle(&mut engine).is_empty());
        }
    }
    submit_wait(&mut engine, 5_000, cores(1), 0, u64::MAX);
    assert!(settle(&mut engine).is_empty());
    let replies = release(&mut engine, held);
    assert!(matches!(&replies[..], [(5_000, PortReply::Place(Ok(_)))]), "{replies:?}");
    assert!(!engine.runners[0].shard().is_behind());
    check_all(&engine);
}

#[test]
fn no_more_wait_at_a_port_than_may() {
    let mut engine = open(StoreState::create(1), 1, 2);
    add_node(&mut engine, node_spec("n", 1, 0));
    for tag in 0..PORT_WAITING_MAX as u64 {
        submit_wait(&mut engine, tag, cores(2), 0, u64::MAX);
        if tag % 512 == 0 {
            settle(&mut engine);
        }
    }
    assert!(!engine.ports[0].can_wait());
    let wait = WaitRequest {
        request: cores(2),
        priority: 0,
        since: engine.now,
        until: Time(u64::MAX),
        is_resumed: false,
    };
    assert!(engine.ports[0].submit(0, PortRequest::Wait(Box::new(wait)), engine.now).is_err());
    settle(&mut engine);
    // Requests that do not wait still have room.
    place(&mut engine, cores(1));
}

const MANY_SHARDS: u16 = 8;

/// Creates eight shards. Shards 0 to 6 have a node with cores and one with memory, so their published state
/// excludes no request. Shard 7 has `count` nodes of four cores and as much memory as those need.
fn one_shard_of_many_fits(count: usize) -> (Engine, Vec<NodeId>) {
    let mut engine = open(StoreState::create(16), MANY_SHARDS, 2);
    let table = engine.table.load_full();
    let mut fitting = Vec::new();
    let mut left = vec![2; usize::from(MANY_SHARDS)];
    left[7] = count;
    for number in 0.. {
        if left.iter().all(|&left| left == 0) {
            break;
        }
        let name = format!("n{number}");
        let partition = PartitionId((stable_hash(name.as_bytes()) % 16) as u16);
        let shard = table.shard(partition).expect("a partition of the store").index();
        if left[shard] == 0 {
            continue;
        }
        left[shard] -= 1;
        let (cpu, memory) = match (shard, left[shard]) {
            (7, _) => (4, 4),
            (_, 0) => (100, 1),
            (..) => (1, 100),
        };
        let memory = Amount::whole(memory);
        let node = add_node(&mut engine, NodeSpec { memory, ..node_spec(&name, cpu, 0) });
        if shard == 7 {
            fitting.push(node.id);
        }
    }
    (engine, fitting)
}

/// Returns a request for `count` cores and `count` MiB.
fn cores_and_memory(count: u32) -> PlacementRequest {
    let demand = Demand { cpu: Amount::whole(count), memory: Amount::whole(count), ..Demand::default() };
    PlacementRequest { demand, ..cores(0) }
}

/// Submits a request whose deadline passes while the first shard is asked. Returns all replies to it.
fn wait_past_the_deadline(engine: &mut Engine, tag: Tag, request: PlacementRequest) -> Vec<(Tag, PortReply)> {
    let until = Time(engine.now.0 + 1);
    submit_wait(engine, tag, request, 0, until.0);
    let mut replies = Vec::new();
    engine.ports[0].end_waits(until, |tag, reply| replies.push((tag, reply)));
    assert_eq!(engine.ports[0].next_deadline(), None);
    replies.extend(settle(engine));
    assert_eq!(engine.ports[0].waiting(), 0);
    replies
}

#[test]
fn what_one_node_could_hold_all_the_time_is_placed_although_the_deadline_passed_first() {
    let (mut engine, nodes) = one_shard_of_many_fits(1);
    for tag in 0..50 {
        let replies = wait_past_the_deadline(&mut engine, tag, cores_and_memory(4));
        let [(answered, PortReply::Place(Ok(placed)))] = &replies[..] else { panic!("{tag}: {replies:?}") };
        assert_eq!((*answered, placed.node), (tag, nodes[0]));
        assert!(release(&mut engine, placed.allocation).is_empty());
        assert_eq!(parked(&mut engine), 0);
    }
    check_all(&engine);
}

#[test]
fn a_deadline_says_infeasible_only_of_what_no_shard_could_hold() {
    let (mut engine, nodes) = one_shard_of_many_fits(1);
    let held = place(&mut engine, cores_and_memory(4));
    for (tag, count, expected) in [(1, 4, Verdict::NoFitNow), (2, 64, Verdict::Infeasible)] {
        let replies = wait_past_the_deadline(&mut engine, tag, cores_and_memory(count));
        let [(_, PortReply::Place(Err(NotPlaced { ended: Some(WaitEnd::Expired), verdict, refusal })))] =
            &replies[..]
        else {
            panic!("{replies:?}")
        };
        assert_eq!((*verdict, refusal.nodes), (expected, 15), "every node of every shard was looked at");
    }
    // The node grows while it is full. No request is woken, and the request is no longer infeasible.
    let request = PlacementRequest { candidates: Some(nodes.clone().into()), ..cores_and_memory(8) };
    submit_wait(&mut engine, 3, request, 0, u64::MAX - 1);
    assert!(settle(&mut engine).is_empty());
    let name = engine.registrar.name(nodes[0]).expect("registered").to_owned();
    let spec = NodeSpec { memory: Amount::whole(8), ..node_spec(&name, 8, 0) };
    let (id, partition, spec) = engine.registrar.update(spec).expect("registered");
    let update = PortRequest::Partition(partition, Command::UpdateNode(id, Box::new(spec)));
    assert!(matches!(
        ask_at_other(&mut engine, update),
        PortReply::One(Outcome::Node(Ok(NodeChange::Updated(_))))
    ));
    let mut replies = Vec::new();
    engine.ports[0].end_waits(Time(u64::MAX), |tag, reply| replies.push((tag, reply)));
    replies.extend(settle(&mut engine));
    assert!(
        matches!(
            replies[..],
            [(
                3,
                PortReply::Place(Err(NotPlaced {
                    ended: Some(WaitEnd::Expired),
                    verdict: Verdict::NoFitNow,
                    ..
                }))
            )]
        ),
        "{replies:?}"
    );
    assert!(release(&mut engine, held).is_empty());
    assert_eq!(parked(&mut engine), 0);
    check_all(&engine);
}

#[test]
fn what_is_taken_back_before_all_shards_were_asked_is_not_called_infeasible() {
    let (mut engine, _) = one_shard_of_many_fits(1);
    place(&mut engine, cores_and_memory(4));
    for (tag, end) in [(1, WaitEnd::Cancelled), (2, WaitEnd::Stopped)] {
        submit_wait(&mut engine, tag, cores_and_memory(4), 0, u64::MAX);
        let now = engine.now;
        assert!(engine.ports[0].end_wait(tag, end, now).is_none(), "a shard is being asked");
        let replies = settle(&mut engine);
        let [(answered, PortReply::Place(Err(NotPlaced { ended: Some(ended), verdict, refusal })))] =
            &replies[..]
        else {
            panic!("{replies:?}")
        };
        assert_eq!((*answered, *ended, *verdict), (tag, end, Verdict::NoFitNow));
        assert!(refusal.nodes < 15, "no further shard is asked");
    }
    assert_eq!((engine.ports[0].waiting(), parked(&mut engine)), (0, 0));
}

/// After the deadline, every shard is asked at most once. Stopping the waits ends that too.
#[test]
fn a_request_past_its_deadline_costs_one_question_per_shard_and_none_once_the_service_stops() {
    let (mut engine, _) = one_shard_of_many_fits(1);
    place(&mut engine, cores_and_memory(4));
    let clock = ManualClock::new(engine.now);
    let asked = |engine: &mut Engine| {
        let mut recorder = Recorder::default();
        loop {
            let mut moved = 0;
            for runner in &mut engine.runners {
                moved += runner.run_batch(&clock, &mut recorder);
            }
            engine.now = clock.now();
            let now = engine.now;
            moved += engine.ports[0].poll(now, |_, _| {});
            if moved == 0 {
                let places = |command: &&Command| {
                    matches!(command, Command::Park(_) | Command::Retry(_) | Command::Place(_))
                };
                return recorder.commands.iter().filter(places).count();
            }
        }
    };
    for tag in 0..8 {
        let until = Time(engine.now.0 + 1);
        submit_wait(&mut engine, tag, cores_and_memory(64), 0, until.0);
        engine.ports[0].end_waits(until, |_, reply| panic!("{reply:?}"));
        assert_eq!(asked(&mut engine), usize::from(MANY_SHARDS));
        let until = Time(engine.now.0 + 1);
        submit_wait(&mut engine, tag, cores_and_memory(64), 0, until.0);
        engine.ports[0].end_waits(until, |_, reply| panic!("{reply:?}"));
        engine.ports[0].stop_waits(until, |_, reply| panic!("{reply:?}"));
        assert_eq!(asked(&mut engine), 1, "the one that was under way");
        assert_eq!(engine.ports[0].waiting(), 0);
    }
}
