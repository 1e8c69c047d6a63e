//! Leases of a shard and of an engine: many of them end at one instant, and a store keeps them over starts with any number
//! of shards.

use std::sync::Arc;

use wharf_core::ids::{AllocationId, Incarnation, SessionId};
use wharf_core::limits::LEASES_ENDED_MAX;
use wharf_core::request::{LeaseTerms, Placement, PlacementRequest};
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{Command, Outcome, RenewedSession, Shard};
use wharf_core::state::StoreState;
use wharf_core::time::Time;

use crate::by_hand::{
    add_node, ask, check_all, cores, export, lone_node, lone_shard, node_spec, open, settle,
};

fn session(number: u64) -> SessionId {
    SessionId { incarnation: Incarnation(1), number }
}

fn leased(lasts_ns: u64, session: Option<SessionId>) -> PlacementRequest {
    PlacementRequest { lease: Some(Arc::new(LeaseTerms { lasts_ns, session })), ..cores(1) }
}

fn run(shard: &mut Shard, command: Command, now: u64) -> Outcome {
    let mut outcomes = Vec::new();
    shard.step([command], Time(now), &mut outcomes);
    shard.check_invariants().expect("the books are right");
    outcomes.remove(0)
}

fn live(shard: &Shard) -> usize {
    shard.export().partitions.iter().map(|partition| partition.allocations.len()).sum()
}

/// Would fail if one step ended all of them, if a step alone ended any, or if the shard forgot to go on.
#[test]
fn leases_that_end_at_one_instant_end_in_bounded_steps() {
    let mut shard = lone_shard();
    let most = LEASES_ENDED_MAX as usize;
    let count = 3 * most + 1;
    for number in 1..=4 {
        run(&mut shard, lone_node(number, node_spec(&format!("n{number}"), 1000, 0), false), 0);
    }
    for number in 0..count {
        let session = (number % 2 == 0).then(|| session(1));
        assert!(matches!(run(&mut shard, Command::Place(leased(10, session)), 5), Outcome::Place(Ok(_))));
    }
    assert_eq!(shard.next_deadline(), Some(Time(15)));
    shard.step([], Time(14), &mut Vec::new());
    assert!(!shard.is_behind());
    shard.step([], Time(15), &mut Vec::new());
    for left in [count, count - most, count - 2 * most, count - 3 * most] {
        assert_eq!((live(&shard), shard.is_behind()), (left, true));
        // Other commands go on meanwhile.
        let placed = run(&mut shard, Command::Place(leased(1000, None)), 15);
        let Outcome::Place(Ok(Placement { allocation, .. })) = placed else { panic!("{placed:?}") };
        assert!(matches!(run(&mut shard, Command::Release(allocation), 15), Outcome::Release(Ok(_))));
        let work = shard.work();
        assert!(matches!(run(&mut shard, Command::GoOn, 15), Outcome::WentOn));
        assert!(shard.work().since(work).allocations_looked_at <= most as u64);
    }
    assert_eq!((live(&shard), shard.is_behind(), shard.next_deadline()), (0, false, None));
}

/// Would fail if a renewal looked at each lease of its session: it counts what changes in the journal.
#[test]
fn a_renewal_for_a_session_costs_the_same_for_any_number_of_leases() {
    let mut shard = lone_shard();
    shard.enable_journal();
    run(&mut shard, lone_node(1, node_spec("n", 10_000, 0), false), 0);
    let mut effects = Vec::new();
    for count in [1, 10, 100, 1000] {
        while live(&shard) < count {
            run(&mut shard, Command::Place(leased(10, Some(session(1)))), 0);
        }
        shard.take_unit(Vec::new());
        let lasts_ns = 100 + count as u64;
        let renewed = run(&mut shard, Command::RenewSession { session: session(1), lasts_ns }, 0);
        let until = Some(Time(lasts_ns));
        let expected = RenewedSession { allocations: count as u64, until };
        assert!(matches!(renewed, Outcome::RenewedSession(renewed) if renewed == expected), "{renewed:?}");
        effects.push(format!("{:?}", shard.take_unit(Vec::new()).expect("it changed")).len());
    }
    assert!(effects.iter().all(|&length| length.abs_diff(effects[0]) < 8), "{effects:?}");
}

fn placed(reply: PortReply) -> AllocationId {
    let PortReply::Place(Ok(placement)) = reply else { panic!("{reply:?}") };
    placement.allocation
}

fn renew_session(engine: &mut wharf_core::engine::Engine, number: u64, lasts_ns: u64) -> RenewedSession {
    let command = Command::RenewSession { session: session(number), lasts_ns };
    let PortReply::Every(outcomes) = ask(engine, PortRequest::Every(command)) else {
        panic!("every shard answers")
    };
    let renewed = outcomes.into_iter().map(|outcome| match outcome {
        Outcome::RenewedSession(renewed) => renewed,
        other => panic!("{other:?}"),
    });
    renewed.fold(RenewedSession::default(), RenewedSession::and)
}

/// Would fail if the deadlines depended on the shards, or a start lost a lease or ended one.
#[test]
fn a_start_with_any_number_of_shards_keeps_the_leases() {
    const LASTS: u64 = 1_000_000;
    let mut engine = open(StoreState::create(8), 3, 1);
    for number in 0..12 {
        add_node(&mut engine, node_spec(&format!("n{number}"), 8, 0));
    }
    let mut own = Vec::new();
    for number in 0..24 {
        let session = (number % 3 > 0).then(|| session(number % 3));
        let id = placed(ask(&mut engine, PortRequest::Place(leased(LASTS, session))));
        own.extend(session.is_none().then_some(id));
    }
    assert_eq!(renew_session(&mut engine, 1, 2 * LASTS).allocations, 8);
    let stopped = export(&mut engine);
    assert_eq!(stopped.partitions.iter().map(|partition| partition.leases.len()).sum::<usize>(), 24);
    for shards in [1, 2, 8] {
        let mut engine = open(stopped.clone(), shards, 1);
        check_all(&engine);
        let reopened = export(&mut engine);
        assert_eq!(reopened.partitions, stopped.partitions, "{shards} shards");
        assert_eq!(reopened.books_hash(), stopped.books_hash(), "{shards} shards");
        engine.now = Time(stopped.now.0 + LASTS / 2);
        settle(&mut engine);
        assert_eq!(
            export(&mut engine).partitions,
            stopped.partitions,
            "nothing ends while the store is down"
        );
        let command = Command::RenewLease { allocation: own[0], lasts_ns: LASTS };
        let reply = ask(&mut engine, PortRequest::Partition(own[0].partition, command));
        assert!(matches!(reply, PortReply::One(Outcome::RenewedLease(Ok(_)))), "{reply:?}");
        engine.now = Time(stopped.now.0 + LASTS);
        settle(&mut engine);
        check_all(&engine);
        // The renewed one, and those of the session that was renewed.
        let left = export(&mut engine);
        let leases = || left.partitions.iter().flat_map(|partition| &partition.leases);
        assert_eq!(leases().count(), 9, "{shards} shards");
        assert!(leases().all(|lease| lease.allocation == own[0] || lease.session == Some(session(1))));
    }
}
