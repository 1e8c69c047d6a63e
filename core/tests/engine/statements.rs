//! Statements in one shard: all-or-nothing commits, the state that an abort restores, evictions, and the end
//! of a statement despite events in between.

use crate::by_hand::cores as request_of;
use crate::statement_bed::{self, Bed, allocate, coarse, cores, evict, gpus, incremental, part, statement};
use wharf_core::ids::{NodeId, OwnerId};
use wharf_core::limits::RESULT_KEPT_NS;
use wharf_core::link::Decision;
use wharf_core::node::{LifeEvent, NodeState};
use wharf_core::request::PlacementRequest;
use wharf_core::resource::{Amount, Demand, ResourceKind};
use wharf_core::shard::{
    Command, NodeRejection, Outcome, ReservationChange, ReservationRejection, UnknownStatement,
};
use wharf_core::statement::{Allocate, ConflictReason, Granted, Operation, Part};
use wharf_core::time::Time;

#[test]
fn a_gang_is_allocated_in_one_step_or_not_at_all() {
    let mut bed = Bed::with_nodes(&[(4, 0), (4, 0)]);
    let applied = bed.apply(part(1, [allocate(1, cores(3)), allocate(2, cores(3))]));
    assert_eq!(applied.decision, Decision::Committed);
    assert_eq!(applied.granted.len(), 2);
    let before = bed.books_and_hash();
    let applied = bed.apply(part(2, [allocate(1, cores(1)), allocate(2, cores(2)), allocate(2, cores(3))]));
    assert_eq!((applied.decision, applied.granted.len()), (Decision::Aborted, 0));
    let reasons: Vec<_> = applied.conflicts.iter().map(|c| (c.operation, c.reason)).collect();
    let short = |asked, available| ConflictReason::Short {
        kind: ResourceKind::Cpu,
        asked: Amount::whole(asked),
        available: Amount::whole(available),
    };
    assert_eq!(reasons, [(1, short(2, 1)), (2, short(3, 1))], "all that conflicts is named, with facts");
    assert_eq!(bed.books_and_hash(), before, "no trace");
}

#[test]
fn an_incremental_part_does_what_it_can() {
    let mut bed = Bed::with_nodes(&[(4, 0), (4, 0)]);
    let applied = bed.apply(incremental(part(1, [allocate(1, cores(5)), allocate(2, cores(4))])));
    assert_eq!((applied.decision, applied.conflicts.len()), (Decision::Committed, 1));
    assert!(matches!(&applied.granted[..], [(1, Granted::Allocated(placed))] if placed.node == NodeId(2)));
}

#[test]
fn a_hold_is_in_the_books_and_an_abort_gives_the_very_same_back() {
    let mut bed = Bed::with_nodes(&[(8, 4)]);
    bed.place(gpus("0.5"));
    let before = bed.books(1);
    let prepared = bed.prepare(part(1, [allocate(1, gpus("0.25")), allocate(1, gpus("2"))]), 1_000);
    assert_eq!((prepared.held, prepared.conflicts.len()), (vec![0, 1], 0));
    let during = bed.books(1);
    let gpu = &during.resources[2].1;
    assert_eq!((gpu.held, gpu.allocated, gpu.available), (22_500, 5_000, 12_500));
    assert!(matches!(bed.remove(1, true), Outcome::Node(Err(NodeRejection::Held(..)))));
    assert_eq!(bed.finish(1, Decision::Aborted).granted, []);
    assert_eq!(bed.books(1), before);
    assert_eq!(bed.finish_rejected(1, Decision::Aborted), UnknownStatement(statement(1)));
}

#[test]
fn an_abort_pays_back_what_a_node_that_shrank_fell_short_of() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    bed.prepare(part(1, [allocate(1, cores(6))]), 1_000);
    bed.step(Command::SetResources(NodeId(1), Box::new([(ResourceKind::Cpu, Amount::whole(4))])));
    let book = bed.books(1).resources[0].1;
    assert_eq!((book.held, book.shortfall, book.available), (60_000, 20_000, 0));
    bed.finish(1, Decision::Aborted);
    let book = bed.books(1).resources[0].1;
    assert_eq!((book.held, book.shortfall, book.available), (0, 0, 40_000));
}

#[test]
fn a_hold_becomes_the_allocation_whose_instances_it_took() {
    let mut bed = Bed::with_nodes(&[(8, 4)]);
    let named = Allocate { gpus: Some(0b1010), ..statement_bed::allocation(1, gpus("2")) };
    bed.prepare(part(1, [Operation::Allocate(named.clone())]), 1_000);
    let applied = bed.finish(1, Decision::Committed);
    let [(0, Granted::Allocated(placed))] = &applied.granted[..] else { panic!("{applied:?}") };
    assert_eq!((placed.gpus.mask, placed.gpus.part), (0b1010, 10_000));
    let applied = bed.apply(part(2, [Operation::Allocate(named)]));
    assert_eq!(applied.conflicts[0].reason, ConflictReason::InstanceTaken(1));
    bed.release(placed.allocation);
    assert_eq!(bed.books(1).resources[2].1.available, 40_000);
}

#[test]
fn coarse_granularity_compares_the_versions_before_the_statement() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    let version = bed.version(1);
    let expecting = |number, version| {
        let expected = Some(version);
        let one = Allocate { expected, ..statement_bed::allocation(1, cores(1)) };
        coarse(part(number, [Operation::Allocate(one.clone()), Operation::Allocate(one)]))
    };
    assert_eq!(bed.apply(expecting(1, version)).granted.len(), 2, "its own changes do not count");
    let found = bed.version(1);
    assert!(found > version);
    let applied = bed.apply(expecting(2, version));
    let changed = ConflictReason::VersionChanged { expected: version, found };
    assert_eq!(applied.conflicts.iter().map(|c| c.reason).collect::<Vec<_>>(), [changed; 2]);
    assert_eq!(applied.conflicts[0].version, Some(found));
    assert_eq!(bed.version(1), found, "a loser leaves no trace");
    let none = bed.apply(coarse(part(3, [allocate(1, cores(1))])));
    assert_eq!(none.conflicts[0].reason, ConflictReason::NoVersion);
}

#[test]
fn operations_that_contradict_each_other_name_the_first() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    let id = bed.place(cores(2));
    let other = Allocate { expected: Some(77), ..statement_bed::allocation(1, cores(1)) };
    let first = Allocate { expected: Some(78), ..other.clone() };
    let operations = [evict(id, 5), evict(id, 0), Operation::Allocate(first), Operation::Allocate(other)];
    let before = bed.books_and_hash();
    let applied = bed.apply(part(1, operations));
    let reasons: Vec<_> = applied.conflicts.iter().map(|c| (c.operation, c.reason)).collect();
    assert_eq!(reasons, [(1, ConflictReason::Contradicts(0)), (3, ConflictReason::Contradicts(2))]);
    assert_eq!(bed.books_and_hash(), before);
}

#[test]
fn what_is_evicted_is_releasing_until_its_grace_ends() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    let graceful = bed.place(cores(2));
    let quick = bed.place(cores(2));
    let at_once = bed.place(cores(2));
    let applied = bed.apply(part(1, [evict(graceful, 100), evict(quick, 100), evict(at_once, 0)]));
    let until = Time(bed.now + 100);
    let expected = [
        (0, Granted::Releasing { allocation: graceful, until }),
        (1, Granted::Releasing { allocation: quick, until }),
        (2, Granted::Ended(at_once)),
    ];
    assert_eq!(applied.granted, expected);
    let book = bed.books(1).resources[0].1;
    assert_eq!((book.allocated, book.releasing, book.available), (0, 40_000, 40_000));
    let again = bed.apply(part(2, [evict(graceful, 5)]));
    assert_eq!(again.conflicts[0].reason, ConflictReason::AlreadyReleasing);
    bed.release(quick);
    assert_eq!(bed.books(1).resources[0].1.releasing, 20_000);
    assert_eq!(bed.shard.next_deadline(), Some(until));
    bed.idle_until(until.0);
    let book = bed.books(1).resources[0].1;
    assert_eq!((book.allocated, book.releasing, book.available), (0, 0, 80_000));
    assert_eq!(bed.shard.next_deadline(), None);
}

#[test]
fn one_statement_at_a_time_evicts_an_allocation() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    let id = bed.place(cores(2));
    let other = bed.place(cores(1));
    bed.prepare(part(1, [evict(id, 10), evict(other, 10)]), 1_000);
    let lost = bed.apply(part(2, [evict(id, 0)]));
    assert_eq!(lost.conflicts[0].reason, ConflictReason::HeldBy(statement(1)));
    assert_eq!(lost.conflicts[0].node, Some(NodeId(1)));
    bed.release(id);
    let applied = bed.finish(1, Decision::Committed);
    assert!(
        matches!(applied.granted[..], [(0, Granted::Ended(ended)), (1, Granted::Releasing { .. })] if ended == id)
    );
    assert!(bed.shard.is_releasing(other));
    let gone = bed.apply(part(3, [evict(id, 0)]));
    assert_eq!(gone.conflicts[0].reason, ConflictReason::UnknownAllocation(id));
}

#[test]
fn a_statement_uses_the_reservation_of_its_owner_and_an_abort_reserves_it_again() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    let owner = OwnerId::new(7).expect("not 0");
    bed.reserve(1, 7, cores(6), Some(500));
    let mine = |number| {
        let one = Allocate { owner: Some(owner), ..statement_bed::allocation(1, cores(6)) };
        part(number, [Operation::Allocate(one)])
    };
    let stranger = bed.apply(part(1, [allocate(1, cores(6))]));
    assert_eq!(stranger.conflicts[0].reason, ConflictReason::Reserved(owner));
    let before = bed.books(1);
    bed.prepare(mine(2), 1_000);
    assert_eq!(bed.books(1).resources[0].1.available, 20_000, "what others see stays");
    let other = OwnerId::new(8).expect("not 0");
    assert!(matches!(
        bed.reserve(1, 8, cores(1), None),
        Outcome::Reserve(Err(ReservationRejection::Taken(..)))
    ));
    bed.finish(2, Decision::Aborted);
    assert_eq!(bed.books(1), before);
    bed.prepare(mine(3), 1_000);
    bed.finish(3, Decision::Committed);
    assert!(
        matches!(
            bed.reserve(1, other.number(), cores(1), None),
            Outcome::Reserve(Ok(ReservationChange::Made(_)))
        ),
        "it was used up"
    );
}

#[test]
fn a_reservation_that_ended_meanwhile_does_not_come_back_with_an_abort() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    let owner = OwnerId::new(7).expect("not 0");
    let until = bed.now + 50;
    bed.reserve(1, 7, cores(6), Some(50));
    let one = Allocate { owner: Some(owner), ..statement_bed::allocation(1, cores(4)) };
    bed.prepare(part(1, [Operation::Allocate(one)]), 10_000);
    bed.idle_until(until);
    bed.finish(1, Decision::Aborted);
    let books = bed.books(1);
    assert_eq!((books.reservation, books.resources[0].1.available), (None, 80_000));
}

/// Holds `demand` for owner 7 on node 1.
fn hold_for_owner(bed: &mut Bed, number: u64, demand: Demand) {
    let owner = OwnerId::new(7);
    let one = Allocate { owner, ..statement_bed::allocation(1, demand) };
    let prepared = bed.prepare(part(number, [Operation::Allocate(one)]), 10_000);
    assert_eq!(prepared.conflicts, []);
}

/// Returns the number of reservations in the durable state, and checks that the shard opens again with it.
fn exported_reservations(bed: &mut Bed) -> usize {
    let Outcome::Exported(exported) = bed.step(Command::Export) else { panic!("an export") };
    let mut reservations = exported.partitions.iter().flat_map(|partition| &partition.reservations);
    assert!(reservations.clone().all(|record| !record.left.is_empty()), "a reservation of nothing is stored");
    reservations.by_ref().count()
}

#[test]
fn a_reservation_that_was_used_up_ends_with_the_abort_of_the_last_hold_on_it() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    let memory = Demand { memory: Amount::whole(4), ..Demand::default() };
    bed.reserve(1, 7, memory.clone(), None);
    // The hold takes cores, of which none are reserved. The owner's placement uses up the reservation.
    hold_for_owner(&mut bed, 1, cores(2));
    let request = PlacementRequest { owner: OwnerId::new(7), demand: memory, ..request_of(0) };
    let placed = bed.step(Command::Place(request));
    assert!(matches!(placed, Outcome::Place(Ok(_))), "{placed:?}");
    assert_eq!(exported_reservations(&mut bed), 0);
    bed.finish(1, Decision::Aborted);
    assert_eq!(bed.books(1).reservation, None);
    assert_eq!(exported_reservations(&mut bed), 0);
    assert!(
        matches!(bed.reserve(1, 8, cores(1), None), Outcome::Reserve(Ok(ReservationChange::Made(_)))),
        "nobody has the node"
    );
    bed.reopened();
}

#[test]
fn a_reservation_that_one_statement_used_up_ends_with_the_abort_of_another() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    bed.reserve(1, 7, cores(4), None);
    hold_for_owner(&mut bed, 1, cores(4));
    hold_for_owner(&mut bed, 2, cores(1));
    bed.finish(1, Decision::Committed);
    assert_eq!(exported_reservations(&mut bed), 0);
    bed.finish(2, Decision::Aborted);
    assert_eq!(bed.books(1).reservation, None);
    bed.reopened();
}

#[test]
fn a_deadline_asks_and_what_is_decided_counts() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    bed.prepare(part(1, [allocate(1, cores(2))]), 100);
    bed.prepare(part(2, [allocate(1, cores(3))]), 100);
    bed.idle_until(bed.now + 1_000);
    assert_eq!(bed.books(1).resources[0].1.held, 50_000, "a clock alone ends nothing");
    let due: Vec<_> = bed.shard.drain_due().collect();
    assert_eq!(due.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [statement(1), statement(2)]);
    // The coordinator decided the first statement before its shard. The shard decided the second one.
    due[0].1.decide(Decision::Committed);
    for (id, cell) in &due {
        let decision = cell.decide(Decision::Aborted);
        bed.step(Command::Finish { statement: *id, decision });
    }
    let book = bed.books(1).resources[0].1;
    assert_eq!((book.held, book.allocated), (0, 20_000));
    let answered = bed.finish(1, Decision::Committed);
    assert!(matches!(answered.granted[..], [(0, Granted::Allocated(_))]), "kept for the coordinator");
    assert_eq!(bed.finish_rejected(1, Decision::Committed), UnknownStatement(statement(1)));
    assert_eq!(bed.finish_rejected(2, Decision::Aborted), UnknownStatement(statement(2)));
}

#[test]
fn what_is_kept_for_a_coordinator_is_not_kept_for_ever() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    bed.prepare(part(1, [allocate(1, cores(2))]), 0);
    assert_eq!(bed.shard.drain_due().count(), 1, "a deadline in the past is due at once");
    bed.finish(1, Decision::Committed);
    let again = bed.prepare(part(1, [allocate(1, cores(2))]), 100);
    assert_eq!(again.conflicts[0].reason, ConflictReason::Repeated);
    bed.idle_until(bed.now + RESULT_KEPT_NS);
    assert_eq!(bed.finish_rejected(1, Decision::Committed), UnknownStatement(statement(1)));
}

#[test]
fn nodes_that_take_no_new_work_conflict_and_their_allocations_can_be_evicted() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    let id = bed.place(cores(2));
    bed.step(Command::Life(NodeId(1), LifeEvent::Drain));
    let applied =
        bed.apply(incremental(part(1, [allocate(1, cores(1)), allocate(9, cores(1)), evict(id, 0)])));
    let reasons: Vec<_> = applied.conflicts.iter().map(|c| c.reason).collect();
    assert_eq!(reasons, [ConflictReason::NotReady(NodeState::Draining), ConflictReason::UnknownNode]);
    assert_eq!(applied.granted, [(2, Granted::Ended(id))]);
}

#[test]
fn what_is_exported_is_as_if_the_undecided_were_aborted() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    bed.reserve(1, 7, cores(4), None);
    let Outcome::Exported(before) = bed.step(Command::Export) else { panic!("an export") };
    let owner = OwnerId::new(7);
    bed.prepare(
        Part {
            ..part(1, [Operation::Allocate(Allocate { owner, ..statement_bed::allocation(1, cores(4)) })])
        },
        100,
    );
    let Outcome::Exported(mut during) = bed.step(Command::Export) else { panic!("an export") };
    assert_eq!(bed.shard.undecided().len(), 1);
    during.partitions[0].nodes[0].version = before.partitions[0].nodes[0].version;
    assert_eq!(during, before);
}
