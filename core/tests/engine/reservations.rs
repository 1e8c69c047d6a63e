//! Tests of reservations. A large request gets its node however busy the small work around it is. Deadlines
//! pass without any command. Owners are routed to the shards that reserve nodes for them. A start with other
//! shards changes nothing.

use crate::by_hand::{add_node, ask, check_all, config, cores, export, node_spec, open, settle};
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::Unobserved;
use wharf_core::ids::{AllocationId, Incarnation, NodeId, Ordinal, OwnerId, PartitionId, ShardId};
use wharf_core::index::Geometry;
use wharf_core::link::Clock;
use wharf_core::node::{NodeRegistration, NodeSpec};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::rng::Rng;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{
    Command, HybridSettings, Outcome, Refused, ReservationChange, ReservationRejection, Reserve, Shard,
    ShardConfig,
};
use wharf_core::state::StoreState;
use wharf_core::time::Time;

fn owner(number: u64) -> OwnerId {
    OwnerId::new(number).expect("not 0")
}

fn owned(cpu: u32, number: u64) -> PlacementRequest {
    PlacementRequest { owner: Some(owner(number)), ..cores(cpu) }
}

fn reserve(node: NodeId, number: u64, demand: Demand, until: Option<Time>) -> Command {
    Command::Reserve(Box::new(Reserve { node, owner: owner(number), demand, until }))
}

fn shard(percent: u8) -> Shard {
    let mut shard = Shard::new(ShardConfig {
        shard: ShardId(0),
        incarnation: Incarnation(1),
        partitions: vec![PartitionId(0)],
        geometry: Geometry::default(),
        seed: 3,
        hybrid: HybridSettings::default(),
    });
    shard.set_reserved_nodes_percent(percent);
    shard
}

fn step(shard: &mut Shard, command: Command, now: u64) -> Outcome {
    let mut outcomes = Vec::new();
    shard.step([command], Time(now), &mut outcomes);
    shard.check_invariants().expect("the books are right");
    outcomes.pop().expect("one outcome")
}

fn add(shard: &mut Shard, id: u64, cpu: u32, gpus: u8) {
    let spec = node_spec(&format!("n{id}"), cpu, gpus);
    let partition = PartitionId(0);
    let agent = None;
    let node = NodeRegistration { id: NodeId(id), ordinal: Ordinal(id), partition, spec, agent };
    step(shard, Command::AddNode(Box::new(node)), 0);
}

/// Runs small requests that arrive whenever one ends. Returns whether the large one is placed within a
/// thousand rounds.
fn large_is_placed_among_small(reserved: bool) -> bool {
    let mut shard = shard(100);
    for id in 1..=3 {
        add(&mut shard, id, 8, 2);
    }
    let small = |rng: &mut Rng| {
        let gpu = if rng.below(2) == 0 { GpuRequest::Fraction(4000) } else { GpuRequest::None };
        let policy = [Policy::LeastFit, Policy::Random, Policy::NextFit][rng.below(3) as usize];
        PlacementRequest::new(Demand { gpu, ..cores(1).demand }, policy)
    };
    let large = Demand { gpu: GpuRequest::Whole(2), ..cores(8).demand };
    let large = PlacementRequest { owner: Some(owner(1)), ..PlacementRequest::new(large, Policy::BestFit) };
    let mut rng = Rng::new(11);
    let mut live: Vec<AllocationId> = Vec::new();
    while let Outcome::Place(Ok(placed)) = step(&mut shard, Command::Place(small(&mut rng)), 0) {
        live.push(placed.allocation);
    }
    if reserved {
        // More than is free. The reservation fills up as the small ones end.
        let made = step(&mut shard, reserve(NodeId(2), 1, large.demand.clone(), None), 0);
        assert!(matches!(made, Outcome::Reserve(Ok(ReservationChange::Made(_)))), "{made:?}");
    }
    for _ in 0..1000 {
        let ended = live.swap_remove(rng.below(live.len() as u64) as usize);
        step(&mut shard, Command::Release(ended), 0);
        // Hostile: freed capacity is taken at once, as often as possible.
        while let Outcome::Place(Ok(placed)) = step(&mut shard, Command::Place(small(&mut rng)), 0) {
            live.push(placed.allocation);
        }
        if let Outcome::Place(Ok(placed)) = step(&mut shard, Command::Place(large.clone()), 0) {
            assert!(!reserved || placed.node == NodeId(2));
            return true;
        }
        if live.is_empty() {
            return false;
        }
    }
    false
}

#[test]
fn a_large_request_starves_unless_it_has_a_reservation() {
    assert!(!large_is_placed_among_small(false));
    assert!(large_is_placed_among_small(true));
}

#[test]
fn parts_of_devices_do_not_defeat_a_reservation_of_a_whole_one() {
    let mut shard = shard(100);
    add(&mut shard, 1, 8, 2);
    let part = |part: u16, owner| {
        let demand = Demand { gpu: GpuRequest::Fraction(part), ..Demand::default() };
        Command::Place(PlacementRequest { owner, ..PlacementRequest::new(demand, Policy::BestFit) })
    };
    let placed = |shard: &mut Shard, tenths: u16| match step(shard, part(tenths * 1000, None), 0) {
        Outcome::Place(Ok(placed)) => Some((placed.gpus.mask, placed.allocation)),
        _ => None,
    };
    let (first, _) = placed(&mut shard, 6).expect("room");
    let (second, ends) = placed(&mut shard, 5).expect("room");
    assert_eq!((first, second), (1, 2));
    let whole = Demand { gpu: GpuRequest::Whole(1), ..Demand::default() };
    step(&mut shard, reserve(NodeId(1), 1, whole, None), 0);
    // 0.5 of device 1 is withheld, although it is not wholly free yet. 0.4 of device 0 is left to others.
    assert_eq!(placed(&mut shard, 5), None);
    assert_eq!(placed(&mut shard, 3).map(|(mask, _)| mask), Some(1));
    assert_eq!(placed(&mut shard, 2), None);
    step(&mut shard, Command::Release(ends), 0);
    assert_eq!(placed(&mut shard, 2), None);
    // The owner takes a part. The rest of the whole device stays reserved for it.
    let own = step(&mut shard, part(3000, Some(owner(1))), 0);
    assert!(matches!(own, Outcome::Place(Ok(_))), "{own:?}");
    assert_eq!(placed(&mut shard, 2), None, "0.7 of it is kept still");
    let own = step(&mut shard, part(5000, Some(owner(1))), 0);
    assert!(matches!(own, Outcome::Place(Ok(_))), "{own:?}");
}

#[test]
fn refusals_name_what_is_wrong_and_move_nothing() {
    let mut shard = shard(50);
    for id in 1..=3 {
        add(&mut shard, id, 8, 2);
    }
    let four = cores(4).demand;
    assert!(matches!(
        step(&mut shard, reserve(NodeId(1), 1, four.clone(), None), 5),
        Outcome::Reserve(Ok(ReservationChange::Made(_)))
    ));
    let before = shard.state_hash();
    let gpus = Demand { gpu: GpuRequest::Whole(3), ..Demand::default() };
    let cases = [
        (reserve(NodeId(1), 2, four.clone(), None), "reserved for owner 1"),
        (reserve(NodeId(2), 1, four.clone(), None), "reserved_nodes_percent"),
        (reserve(NodeId(9), 1, four.clone(), None), "not registered"),
        (reserve(NodeId(1), 1, cores(9).demand, None), "8 of cpu in all"),
        (reserve(NodeId(1), 1, gpus, None), "2 of gpu in all"),
        (reserve(NodeId(1), 1, Demand::default(), None), "nothing"),
        (reserve(NodeId(1), 1, four, Some(Time(5))), "at once"),
        (Command::EndReservation(NodeId(1), owner(2)), "for owner 1: name that one"),
        (Command::EndReservation(NodeId(2), owner(1)), "not reserved at all"),
    ];
    for (command, says) in cases {
        match step(&mut shard, command.clone(), 5) {
            Outcome::Reserve(Err(rejection)) => {
                assert!(rejection.to_string().contains(says), "{command:?}: {rejection}");
            }
            other => panic!("{command:?}: {other:?}"),
        }
    }
    assert_eq!(shard.state_hash(), before);
    // A replaced reservation counts once, and ends at its new deadline.
    step(&mut shard, reserve(NodeId(1), 1, cores(8).demand, Some(Time(9))), 6);
    assert_eq!(shard.next_deadline(), Some(Time(9)));
    assert!(
        matches!(step(&mut shard, Command::Place(cores(8)), 8), Outcome::Place(Ok(p)) if p.node == NodeId(2))
    );
    step(&mut shard, Command::Place(cores(8)), 8);
    let kept = step(&mut shard, Command::Place(cores(1)), 8);
    assert!(matches!(&kept, Outcome::Place(Err(Refused { refusal, .. })) if refusal.feasible), "{kept:?}");
    assert!(
        matches!(step(&mut shard, Command::Place(cores(8)), 9), Outcome::Place(Ok(p)) if p.node == NodeId(1))
    );
    assert!(matches!(
        step(&mut shard, Command::EndReservation(NodeId(1), owner(1)), 9),
        Outcome::Reserve(Err(ReservationRejection::NotReserved(_, _, None)))
    ));
}

/// With more reserved nodes of one owner than are walked, the tree of reserved nodes gives the same answers.
#[test]
fn many_nodes_of_one_owner_are_searched_as_few_are() {
    for policy in [Policy::LeastFit, Policy::BestFit, Policy::FirstFit, Policy::NextFit, Policy::Spread] {
        let mut shard = shard(100);
        let mut rng = Rng::new(5);
        let mut free: Vec<(u64, u32)> = Vec::new();
        for id in 1..=400 {
            let cpu = 4 + rng.below(60) as u32;
            add_quietly(&mut shard, id, cpu);
            if id % 4 != 0 {
                free.push((id, cpu));
                let all = cores(cpu).demand;
                let mut outcomes = Vec::new();
                shard.step([reserve(NodeId(id), 1, all, None)], Time(0), &mut outcomes);
            }
        }
        let mut cursor = 0;
        for _ in 0..200 {
            let cpu = 1 + rng.below(20) as u32;
            let request = PlacementRequest { policy, ..owned(cpu, 1) };
            let mut outcomes = Vec::new();
            shard.step([Command::Place(request)], Time(0), &mut outcomes);
            let Some(Outcome::Place(Ok(placed))) = outcomes.pop() else { panic!("there is room") };
            let fitting = || free.iter().filter(|&&(_, free)| free >= cpu);
            let from = |least: u64| fitting().find(|&&(id, _)| id >= least).or_else(|| fitting().next());
            let expected = match policy {
                Policy::LeastFit => fitting().min_by_key(|&&(id, free)| (u32::MAX - free, id)),
                Policy::BestFit => fitting().min_by_key(|&&(id, free)| (free, id)),
                Policy::FirstFit => fitting().next(),
                Policy::NextFit => from(cursor),
                _ => from(cursor + 1),
            };
            let &(id, _) = expected.expect("there is room");
            assert_eq!(placed.node, NodeId(id), "{policy} for {cpu}");
            cursor = id;
            let at = free.iter().position(|&(known, _)| known == id).expect("it was found there");
            free[at].1 -= cpu;
            if free[at].1 == 0 {
                // Used up, so it is no longer reserved.
                free.remove(at);
            }
        }
        shard.check_invariants().expect("the books are right");
    }
}

/// Without memory, so that only cpu decides.
fn add_quietly(shard: &mut Shard, id: u64, cpu: u32) {
    let spec = NodeSpec { memory: Amount::ZERO, ..node_spec(&format!("n{id}"), cpu, 0) };
    let partition = PartitionId(0);
    let agent = None;
    let node = NodeRegistration { id: NodeId(id), ordinal: Ordinal(id), partition, spec, agent };
    shard.step([Command::AddNode(Box::new(node))], Time(0), &mut Vec::new());
}

fn reserved_at(engine: &mut Engine, node: &NodeRegistration, command: Command) {
    let reply = ask(engine, PortRequest::Partition(node.partition, command));
    assert!(matches!(reply, PortReply::One(Outcome::Reserve(Ok(ReservationChange::Made(_))))), "{reply:?}");
}

#[test]
fn owners_are_sent_to_the_shards_that_keep_nodes_for_them() {
    let config = EngineConfig { reserved_nodes_percent: 100, ..config(4) };
    let owners = vec![std::task::Waker::noop().clone()];
    let mut engine = Engine::open(StoreState::default(), &config, owners).expect("numbers in range");
    let nodes: Vec<_> = (0..40).map(|i| add_node(&mut engine, node_spec(&format!("n{i}"), 8, 0))).collect();
    for (number, node) in [(1, &nodes[3]), (2, &nodes[17])] {
        reserved_at(&mut engine, node, reserve(node.id, number, cores(6).demand, None));
    }
    for round in 0..3 {
        for (number, node) in [(1, &nodes[3]), (2, &nodes[17])] {
            let PortReply::Place(Ok(placed)) = ask(&mut engine, PortRequest::Place(owned(2, number))) else {
                panic!("there is room");
            };
            assert_eq!(placed.node, node.id, "round {round} of owner {number}");
        }
    }
    check_all(&engine);
    // The reservation is used up, so the owner is like any other.
    let state = export(&mut engine);
    assert!(state.partitions.iter().all(|partition| partition.reservations.is_empty()));
}

#[test]
fn reservations_outlive_a_start_with_other_shards() {
    let mut engine = open(StoreState::default(), 1, 1);
    let nodes: Vec<_> = (0..30).map(|i| add_node(&mut engine, node_spec(&format!("n{i}"), 8, 2))).collect();
    let part = Demand { gpu: GpuRequest::Fraction(3000), ..cores(5).demand };
    for _ in 0..20 {
        ask(&mut engine, PortRequest::Place(PlacementRequest::new(part.clone(), Policy::LeastFit)));
    }
    let wanted = Demand { gpu: GpuRequest::Whole(2), ..cores(8).demand };
    let node = &nodes[0];
    reserved_at(&mut engine, node, reserve(node.id, 7, wanted, Some(Time(1 << 40))));
    let before = export(&mut engine);
    assert_eq!(before.partitions.iter().flat_map(|p| &p.reservations).count(), 1);
    let mut again = open(before.clone(), 5, 1);
    check_all(&again);
    let after = export(&mut again);
    assert_eq!(after.books_hash(), before.books_hash());
    assert_eq!(after.partitions, before.partitions);
    // Withheld from others, and the owner is routed to it.
    let PortReply::Place(Ok(placed)) = ask(&mut again, PortRequest::Place(owned(1, 7))) else {
        panic!("there is room");
    };
    assert_eq!(placed.node, node.id);
}

/// A clock at a fixed time.
struct At(u64);

impl Clock for At {
    fn now(&self) -> Time {
        Time(self.0)
    }
}

#[test]
fn a_deadline_comes_without_any_command() {
    let mut engine = open(StoreState::default(), 1, 1);
    let node = add_node(&mut engine, node_spec("a", 8, 0));
    reserved_at(&mut engine, &node, reserve(node.id, 1, cores(8).demand, Some(Time(1 << 40))));
    let wait = wharf_core::router::WaitRequest {
        request: cores(3),
        priority: 0,
        since: engine.now,
        until: Time(u64::MAX),
        is_resumed: false,
    };
    engine.ports[0].submit(9, PortRequest::Wait(Box::new(wait)), engine.now).expect("room");
    assert!(settle(&mut engine).is_empty(), "it waits");
    engine.runners[0].run_batch(&At(1 << 40), &mut Unobserved);
    assert_eq!(engine.runners[0].shard().next_deadline(), None);
    engine.now = Time(1 << 40);
    // The first settling brings the wake-up to the shard.
    let mut replies = settle(&mut engine);
    replies.extend(settle(&mut engine));
    assert!(
        matches!(&replies[..], [(9, PortReply::Place(Ok(placed)))] if placed.node == node.id),
        "{replies:?}"
    );
    check_all(&engine);
}
