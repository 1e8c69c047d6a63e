//! Claims on capacity that is being released, and placements into bundles.

use crate::statement_bed::{
    Bed, allocate, allocation, bundle, cores, evict, gpus, part, pipeline, pipeline_bundle, statement,
};
use wharf_core::ids::{AllocationId, NodeId, OwnerId};
use wharf_core::limits::CLAIMS_PER_NODE_MAX;
use wharf_core::link::Decision;
use wharf_core::recovery::Rebuild;
use wharf_core::resource::{Amount, Demand, ResourceKind};
use wharf_core::shard::{
    BundleRejection, ClaimEvent, Command, NodeChange, Outcome, Released, ReservationChange,
    UnknownAllocation, UnknownStatement,
};
use wharf_core::state::{BundleRecord, StoreState};
use wharf_core::statement::{Allocate, Applied, ConflictReason, Granted, Operation};

fn pipelined(applied: &Applied, at: usize) -> AllocationId {
    match &applied.granted[at].1 {
        Granted::Pipelined { allocation, .. } => *allocation,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_claim_gets_what_it_was_promised_before_anybody_else() {
    let mut bed = Bed::with_nodes(&[(8, 4)]);
    let victim = bed.place(gpus("4"));
    let applied = bed.apply(part(1, [evict(victim, 100), pipeline(1, gpus("3"))]));
    let claim = pipelined(&applied, 1);
    let book = bed.books(1).resources[2].1;
    assert_eq!((book.releasing, book.pipelined, book.available), (40_000, 30_000, 0));
    // Exactly one GPU is left of what will be free.
    let lost = bed.apply(part(2, [pipeline(1, gpus("2"))]));
    let short = ConflictReason::Short {
        kind: ResourceKind::Gpu,
        asked: Amount::whole(2),
        available: Amount::whole(1),
    };
    assert_eq!(lost.conflicts[0].reason, short);
    bed.release(victim);
    let events: Vec<_> = bed.shard.drain_claim_events().collect();
    assert!(matches!(&events[..], [ClaimEvent::Granted(placed)] if placed.allocation == claim));
    let book = bed.books(1).resources[2].1;
    assert_eq!((book.allocated, book.pipelined, book.available), (30_000, 0, 10_000));
    bed.release(claim);
}

#[test]
fn what_comes_free_bit_by_bit_is_set_aside_for_the_claim() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    let first = bed.place(cores(4));
    let second = bed.place(cores(4));
    bed.apply(part(1, [evict(first, 100), evict(second, 200), pipeline(1, cores(7))]));
    bed.idle_until(bed.now + 150);
    let book = bed.books(1).resources[0].1;
    assert_eq!((book.available, book.reserved, book.releasing), (0, 40_000, 40_000));
    bed.idle_until(bed.now + 100);
    let book = bed.books(1).resources[0].1;
    assert_eq!((book.allocated, book.available, book.pipelined), (70_000, 10_000, 0));
}

#[test]
fn a_claim_takes_nothing_that_is_set_aside_for_the_owner_of_a_reservation() {
    let mut bed = Bed::with_nodes(&[(8, 1)]);
    let half = || Demand { cpu: Amount::whole(4), ..gpus("0.5") };
    let victim = bed.place(half());
    assert!(matches!(bed.reserve(1, 7, half(), None), Outcome::Reserve(Ok(ReservationChange::Made(_)))));
    // Half of the device and four cores will be free. The other half is free and reserved.
    bed.apply(part(1, [evict(victim, 100), pipeline(1, half())]));
    for kind in [0, 2] {
        let book = bed.books(1).resources[kind].1;
        assert_eq!((book.allocated, book.available, book.pipelined), (0, 0, book.reserved), "{kind}");
    }
    let one = Allocate { owner: OwnerId::new(7), ..allocation(1, half()) };
    let own = bed.apply(part(2, [Operation::Allocate(one)]));
    assert!(matches!(own.granted[..], [(0, Granted::Allocated(_))]), "{own:?}");
    assert_eq!(bed.shard.drain_claim_events().count(), 0, "the victim has its grace still");
    bed.release(victim);
    assert!(matches!(bed.shard.drain_claim_events().next(), Some(ClaimEvent::Granted(_))));
}

#[test]
fn a_reservation_takes_nothing_that_a_claim_before_it_cannot_do_without() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    bed.place(cores(1));
    let victim = bed.place(cores(3));
    // The claim is for six cores: three will be freed, and four are free.
    bed.apply(part(1, [evict(victim, 100), pipeline(1, cores(6))]));
    assert!(matches!(bed.reserve(1, 7, cores(8), None), Outcome::Reserve(Ok(ReservationChange::Made(_)))));
    let mine = |cpu| Operation::Allocate(Allocate { owner: OwnerId::new(7), ..allocation(1, cores(cpu)) });
    let lost = bed.apply(part(2, [mine(2)]));
    let short =
        |available| ConflictReason::Short { kind: ResourceKind::Cpu, asked: Amount::whole(2), available };
    assert_eq!(lost.conflicts[0].reason, short(Amount::whole(1)));
    assert_eq!(bed.apply(part(3, [mine(1)])).granted.len(), 1);
    bed.release(victim);
    assert!(matches!(bed.shard.drain_claim_events().next(), Some(ClaimEvent::Granted(_))));
    assert_eq!(bed.books(1).resources[0].1.allocated, 80_000);
}

#[test]
fn a_node_has_a_bounded_number_of_claims() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    let victim = bed.place(cores(8));
    bed.apply(part(1, [evict(victim, 1_000_000_000)]));
    let little = || Demand { cpu: Amount::from_milli(1), ..Demand::default() };
    for number in 0..CLAIMS_PER_NODE_MAX as u64 {
        let applied = bed.apply(part(2 + number, [pipeline(1, little())]));
        assert!(applied.conflicts.is_empty(), "claim {number}");
    }
    let lost = bed.apply(part(5_000, [pipeline(1, little())]));
    assert_eq!(lost.conflicts[0].reason, ConflictReason::TooManyClaims);
    bed.release(victim);
    // The node now has its maximum of allocations, so releasing one makes room.
    let granted = bed.shard.drain_claim_events().next();
    let Some(ClaimEvent::Granted(granted)) = granted else { panic!("{granted:?}") };
    bed.release(granted.allocation);
    let applied = bed.apply(part(5_001, [pipeline(1, little())]));
    assert!(matches!(applied.granted[0].1, Granted::Allocated(_)));
}

#[test]
fn a_claim_whose_own_is_there_at_the_commit_is_an_allocation_at_once() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    let victim = bed.place(cores(8));
    let applied = bed.apply(part(1, [evict(victim, 0), pipeline(1, cores(5)), pipeline(1, cores(3))]));
    assert!(matches!(
        &applied.granted[..],
        [(0, Granted::Ended(_)), (1, Granted::Allocated(_)), (2, Granted::Allocated(_))]
    ));
    assert_eq!(bed.shard.drain_claim_events().count(), 0, "told once");
}

#[test]
fn a_held_claim_keeps_what_its_victim_gives_back_early_and_an_abort_frees_it() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    let victim = bed.place(cores(8));
    bed.prepare(part(1, [evict(victim, 10), pipeline(1, cores(6))]), 1_000);
    bed.release(victim);
    let book = bed.books(1).resources[0].1;
    assert_eq!((book.available, book.reserved), (20_000, 60_000));
    bed.finish(1, Decision::Aborted);
    assert_eq!(bed.books(1).resources[0].1.available, 80_000);
}

#[test]
fn a_claim_ends_by_its_callers_wish_with_its_node_and_when_it_cannot_be() {
    let mut bed = Bed::with_nodes(&[(8, 2), (8, 0)]);
    let victim = bed.place(gpus("2"));
    let applied = bed.apply(part(1, [evict(victim, 1_000), pipeline(1, gpus("1")), pipeline(1, gpus("1"))]));
    let one = pipelined(&applied, 1);
    let other = pipelined(&applied, 2);
    bed.release(one);
    bed.step(Command::SetHealth(NodeId(1), vec![(0, "hot".into())]));
    assert_eq!(bed.shard.drain_claim_events().count(), 0, "the other device takes its place");
    bed.step(Command::SetHealth(NodeId(1), vec![(0, "hot".into()), (1, "hot".into())]));
    assert_eq!(bed.shard.drain_claim_events().collect::<Vec<_>>(), [ClaimEvent::Ended(other)]);

    let applied = bed.apply(part(2, [pipeline(1, cores(8))]));
    let last = pipelined(&applied, 0);
    let removed = bed.remove(1, true);
    assert!(
        matches!(removed, Outcome::Node(Ok(NodeChange::Removed { allocations_ended: 1, .. }))),
        "{removed:?}"
    );
    assert_eq!(bed.shard.drain_claim_events().collect::<Vec<_>>(), [ClaimEvent::Ended(last)]);
}

#[test]
fn an_earlier_claim_is_served_first() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    let first = bed.place(cores(3));
    let second = bed.place(cores(5));
    let applied = bed.apply(part(
        1,
        [evict(first, 100), evict(second, 200), pipeline(1, cores(6)), pipeline(1, cores(2))],
    ));
    let large = pipelined(&applied, 2);
    let small = pipelined(&applied, 3);
    bed.release(first);
    assert_eq!(bed.shard.drain_claim_events().count(), 0, "three cores are the large one's");
    bed.release(second);
    let granted: Vec<_> = bed
        .shard
        .drain_claim_events()
        .map(|event| match event {
            ClaimEvent::Granted(placed) => placed.allocation,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(granted, [large, small]);
}

#[test]
fn a_bundle_has_books_of_its_own_and_ends_what_is_inside() {
    let mut bed = Bed::with_nodes(&[(8, 4)]);
    let one = Allocate { bundle: Some(bundle(1, 0)), gpus: Some(0b0110), ..allocation(1, gpus("2")) };
    let applied = bed.apply(part(1, [Operation::Allocate(one.clone())]));
    let Granted::Allocated(placed) = &applied.granted[0].1 else { panic!("{applied:?}") };
    let twice = bed.apply(part(2, [Operation::Allocate(one)]));
    assert_eq!(twice.conflicts[0].reason, ConflictReason::BundlePlaced(bundle(1, 0)));
    let whole =
        bed.place_into(placed.allocation, Demand { cpu: Amount::ZERO, ..gpus("1") }).expect("it fits");
    assert_eq!(whole.gpus.mask, 0b0010, "an instance of the bundle");
    let half =
        bed.place_into(placed.allocation, Demand { cpu: Amount::ZERO, ..gpus("0.5") }).expect("it fits");
    assert_eq!((half.gpus.mask, half.gpus.part, half.node), (0b0100, 5_000, NodeId(1)));
    let short = bed.place_into(placed.allocation, gpus("1")).expect_err("half a device is left");
    assert!(matches!(short, BundleRejection::Short { kind: ResourceKind::Gpu, .. }), "{short}");
    let inside = bed.apply(part(3, [evict(half.allocation, 0)]));
    assert_eq!(inside.conflicts[0].reason, ConflictReason::InBundle(placed.allocation));
    bed.release(half.allocation);
    bed.place_into(placed.allocation, gpus("1")).expect("the other device is whole again");
    assert_eq!(bed.books(1).resources[2].1.allocated, 20_000, "for its node the bundle is one allocation");
    let ended = bed.step(Command::Release(placed.allocation));
    assert!(matches!(ended, Outcome::Release(Ok(Released { inside: Some(2), .. }))), "{ended:?}");
    let gone = bed.step(Command::Release(whole.allocation));
    assert!(matches!(gone, Outcome::Release(Err(_))), "{gone:?}");
}

#[test]
fn the_first_bundle_that_has_room_is_used_and_no_later_one_is_looked_at() {
    let mut bed = Bed::with_nodes(&[(8, 0), (8, 0), (8, 0)]);
    let ids = [1, 2, 3].map(|node| {
        let one = Allocate { bundle: Some(bundle(7, node as u32)), ..allocation(node, cores(2)) };
        let applied = bed.apply(part(node, [Operation::Allocate(one)]));
        let Granted::Allocated(placed) = &applied.granted[0].1 else { panic!("{applied:?}") };
        placed.allocation
    });
    let gone = bed.place(cores(1));
    bed.release(gone);
    let named = [gone, ids[0], ids[1], ids[2]];
    let mut nodes = Vec::new();
    for looks in [2, 2, 3, 3, 4, 4] {
        let before = bed.shard.work();
        nodes.push(bed.place_into_any(&named, cores(1)).expect("one has room").node);
        assert_eq!(bed.shard.work().since(before).allocations_looked_at, looks);
    }
    assert_eq!(nodes, [1, 1, 2, 2, 3, 3].map(NodeId));
    // That a bundle has too little says more than that another one ended.
    for named in [[ids[0], gone], [gone, ids[0]]] {
        let short = bed.place_into_any(&named, cores(1)).expect_err("it is full");
        assert!(matches!(short, BundleRejection::Short { bundle, .. } if bundle == ids[0]), "{short:?}");
    }
    assert_eq!(bed.place_into_any(&[gone, gone], cores(1)), Err(UnknownAllocation(gone).into()));
}

#[test]
fn nothing_is_placed_into_what_is_no_bundle_yet_or_not_any_more() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    let plain = bed.place(cores(8));
    assert_eq!(bed.place_into(plain, cores(1)), Err(BundleRejection::NotABundle(plain)));
    let applied = bed.apply(part(1, [evict(plain, 100), pipeline_bundle(1, cores(8), bundle(1, 0))]));
    let claim = pipelined(&applied, 1);
    assert_eq!(bed.place_into(claim, cores(1)), Err(BundleRejection::Pending(claim)));
    bed.release(plain);
    bed.place_into(claim, cores(1)).expect("it is an allocation now");
    bed.apply(part(2, [evict(claim, 100)]));
    assert_eq!(bed.place_into(claim, cores(1)), Err(BundleRejection::Releasing(claim)));
    bed.idle_until(bed.now + 100);
    assert_eq!(bed.place_into(claim, cores(1)), Err(UnknownAllocation(claim).into()));
    assert_eq!(bed.books(1).resources[0].1.available, 80_000);
    // The bundle's index in the group is free again.
    let again = Allocate { bundle: Some(bundle(1, 0)), ..allocation(1, cores(1)) };
    bed.prepare(part(3, [Operation::Allocate(again.clone())]), 100);
    let twice = bed.apply(part(4, [Operation::Allocate(again)]));
    assert_eq!(twice.conflicts[0].reason, ConflictReason::BundlePlaced(bundle(1, 0)));
    bed.finish(3, Decision::Aborted);
    assert_eq!(bed.finish_rejected(3, Decision::Aborted), UnknownStatement(statement(3)));
}

#[test]
fn claims_evictions_and_bundles_outlive_a_start() {
    let mut bed = Bed::with_nodes(&[(8, 4), (8, 0)]);
    let one = Allocate { bundle: Some(bundle(1, 0)), ..allocation(1, gpus("2")) };
    let applied = bed.apply(part(1, [Operation::Allocate(one)]));
    let Granted::Allocated(placed) = &applied.granted[0].1 else { panic!("{applied:?}") };
    let half = Demand { cpu: Amount::ZERO, ..gpus("0.5") };
    let inside = bed.place_into(placed.allocation, half).expect("it fits");
    let applied = bed.apply(part(2, [allocate(2, cores(8))]));
    let Granted::Allocated(victim) = &applied.granted[0].1 else { panic!("{applied:?}") };
    bed.apply(part(3, [evict(victim.allocation, 500), pipeline(2, cores(6)), pipeline(2, cores(2))]));
    let Outcome::Exported(before) = bed.step(Command::Export) else { panic!("an export") };
    assert_eq!((before.partitions[0].claims.len(), before.partitions[0].releasing.len()), (2, 1));
    let mut again = bed.reopened();
    let Outcome::Exported(after) = again.step(Command::Export) else { panic!("an export") };
    assert_eq!(after.partitions, before.partitions);
    again.release(inside.allocation);
    again.release(victim.allocation);
    assert_eq!(again.shard.drain_claim_events().count(), 2);
    let ended = again.step(Command::Release(placed.allocation));
    assert!(matches!(ended, Outcome::Release(Ok(Released { inside: Some(0), .. }))), "{ended:?}");
}

/// The hold of an undecided statement is not durable. Without it, the claim has all of its own.
#[test]
fn a_start_grants_the_claim_that_a_hold_kept_waiting() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    let victim = bed.place(cores(4));
    bed.prepare(part(1, [allocate(1, cores(4))]), 1_000);
    let applied = bed.apply(part(2, [evict(victim, 500), pipeline(1, cores(3))]));
    let claim = pipelined(&applied, 1);
    let mut again = bed.reopened();
    let book = again.books(1).resources[0].1;
    assert_eq!((book.pipelined, book.allocated, book.releasing), (0, 30_000, 40_000));
    again.release(claim);
}

/// Rebuilds the books as a start after a crash does.
fn after_a_crash(mut bed: Bed) -> StoreState {
    let Outcome::Exported(exported) = bed.step(Command::Export) else { panic!("an export") };
    let books = StoreState { partitions: exported.partitions, ..StoreState::create(1) };
    let mut rebuild = Rebuild::new(books).expect("nothing is missing");
    rebuild.take_back();
    rebuild.finish().expect("nothing is missing")
}

/// No group is recorded: the first one was not created yet, the second one was removed after the eviction.
#[test]
fn a_bundle_keeps_its_grace_over_a_crash_although_its_group_is_gone() {
    let mut bed = Bed::with_nodes(&[(8, 0)]);
    let of_group = |group| {
        let one = Allocate { bundle: Some(bundle(group, 0)), ..allocation(1, cores(2)) };
        Operation::Allocate(one)
    };
    let applied = bed.apply(part(1, [of_group(1), of_group(2)]));
    let Granted::Allocated(placed) = &applied.granted[1].1 else { panic!("{applied:?}") };
    bed.apply(part(2, [evict(placed.allocation, 500)]));
    let partition = &after_a_crash(bed).partitions[0];
    let ids = |records: &[BundleRecord]| records.iter().map(|record| record.bundle).collect::<Vec<_>>();
    assert_eq!(ids(&partition.bundles), [bundle(2, 0)]);
    assert_eq!((partition.allocations.len(), partition.releasing.len()), (1, 1));
}

#[test]
fn what_statements_leave_behind_is_counted_and_gone_again_with_them() {
    let mut bed = Bed::with_nodes(&[(64, 4)]);
    let bytes = |bed: &Bed, name: &str| {
        bed.shard.memory().iter().find(|row| row.name == name).map_or(0, |row| row.bytes)
    };
    let rows = ["statements under way", "releasing allocations", "claims", "bundles and what is in them"];
    assert_eq!(rows.map(|name| bytes(&bed, name)), [0; 4]);
    assert_eq!(bytes(&bed, "the newest view"), 0, "no views, no row");
    bed.prepare(part(1, (0..4).map(|_| allocate(1, cores(1)))), 1_000);
    let held = bytes(&bed, rows[0]);
    assert!((64..20_000).contains(&held), "{held} bytes of four holds");
    bed.finish(1, Decision::Aborted);
    let victim = bed.place(cores(60));
    let bundle = Allocate { bundle: Some(bundle(1, 0)), ..allocation(1, gpus("2")) };
    let operations = [Operation::Allocate(bundle), evict(victim, 1_000), pipeline(1, cores(60))];
    assert_eq!(bed.apply(part(2, operations)).granted.len(), 3);
    for name in &rows[1..] {
        assert!((16..10_000).contains(&bytes(&bed, name)), "{name}: {}", bytes(&bed, name));
    }
    bed.shard.enable_views();
    let view = bytes(&bed, "the newest view");
    assert!((256..100_000).contains(&view), "{view} bytes of a view of one node");
}
