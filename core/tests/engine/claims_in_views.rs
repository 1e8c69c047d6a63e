//! Views of nodes with claims: every step of a claim, from the hold to its end, appears in the next view.

use std::sync::Arc;

use crate::statement_bed::{
    Bed, allocate, allocation, bundle, cores, evict, gpus, incremental, part, pipeline, pipeline_bundle,
};
use wharf_core::ids::{AllocationId, NodeId, OwnerId};
use wharf_core::link::Decision;
use wharf_core::shard::{ClaimEvent, Command, Outcome, ReservationChange};
use wharf_core::statement::{Allocate, Applied, Granted, Operation};
use wharf_core::view::{PendingImage, View};

/// A shard whose view is compared with its state after each step.
struct Shown(Bed);

impl Shown {
    fn with_nodes(nodes: &[(u32, u8)]) -> Self {
        let mut bed = Bed::with_nodes(nodes);
        bed.shard.enable_views();
        Self(bed)
    }

    /// Steps the shard, publishes, and compares the view with the shard's state.
    fn then<R>(&mut self, step: impl FnOnce(&mut Bed) -> R) -> R {
        let result = step(&mut self.0);
        self.0.shard.publish_view();
        self.0.shard.check_view().expect("the view is the state");
        result
    }

    fn view(&mut self) -> Arc<View> {
        self.0.shard.current_view().expect("views are made")
    }

    /// Returns what the view shows as releasing and claimed on the first node.
    fn pending(&mut self) -> PendingImage {
        let view = self.view();
        let node = view.cold(0).expect("the first node");
        node.pending.as_deref().cloned().unwrap_or_default()
    }

    /// Returns the number of claims and of allocations of the first node in the view.
    fn counts(&mut self) -> (usize, usize) {
        (self.pending().claims.len(), self.view().allocations(0).count())
    }
}

fn pipelined(applied: &Applied) -> AllocationId {
    let claim = applied.granted.iter().find_map(|(_, granted)| match granted {
        Granted::Pipelined { allocation, .. } => Some(*allocation),
        _ => None,
    });
    claim.expect("something is claimed")
}

#[test]
fn a_claim_that_is_granted_is_an_allocation_of_the_next_view() {
    let mut bed = Shown::with_nodes(&[(8, 2)]);
    let victim = bed.then(|bed| bed.place(gpus("2")));
    let applied = bed.then(|bed| bed.apply(part(1, [evict(victim, 100), pipeline(1, gpus("1"))])));
    assert_eq!(bed.counts(), (1, 1));
    assert_eq!(bed.pending().claims[0].id, pipelined(&applied));
    bed.then(|bed| bed.release(victim));
    assert!(matches!(bed.0.shard.drain_claim_events().next(), Some(ClaimEvent::Granted(_))));
    assert_eq!(bed.counts(), (0, 1));
    assert_eq!(bed.view().allocations(0).next().map(|shown| shown.id), Some(pipelined(&applied)));
}

#[test]
fn a_claim_that_is_granted_bit_by_bit_is_shown_at_each() {
    let mut bed = Shown::with_nodes(&[(8, 0)]);
    let first = bed.then(|bed| bed.place(cores(4)));
    let second = bed.then(|bed| bed.place(cores(4)));
    let operations = [evict(first, 100), evict(second, 200), pipeline(1, cores(5)), pipeline(1, cores(2))];
    bed.then(|bed| bed.apply(part(1, operations)));
    assert_eq!(bed.counts(), (2, 2));
    // Four cores are free and all are withheld. The first claim waits for its fifth.
    bed.then(|bed| bed.idle_until(bed.now + 150));
    assert_eq!((bed.counts(), bed.view().hot(0).expect("the node").cpu.is_zero()), ((2, 1), true));
    bed.then(|bed| bed.idle_until(bed.now + 100));
    assert_eq!(bed.counts(), (0, 2));
}

#[test]
fn a_claim_that_is_held_and_then_decided_is_shown_as_decided() {
    for decision in [Decision::Committed, Decision::Aborted] {
        let mut bed = Shown::with_nodes(&[(8, 0)]);
        let victim = bed.then(|bed| bed.place(cores(8)));
        let operations = [evict(victim, 100), pipeline(1, cores(6))];
        bed.then(|bed| bed.prepare(part(1, operations), 1_000));
        assert_eq!(bed.counts(), (0, 1), "a claim that may be aborted is none");
        bed.then(|bed| bed.finish(1, decision));
        assert_eq!(bed.counts(), (usize::from(decision == Decision::Committed), 1));
        bed.then(|bed| bed.release(victim));
        assert_eq!(bed.counts(), (0, usize::from(decision == Decision::Committed)));
    }
}

/// The view shows when a node takes something from a claim, even from an undecided one.
#[test]
fn a_claim_that_moves_or_ends_is_shown() {
    let mut bed = Shown::with_nodes(&[(8, 2), (8, 0)]);
    let victim = bed.then(|bed| bed.place(gpus("2")));
    let claims = [evict(victim, 1_000), pipeline(1, gpus("1")), pipeline(1, gpus("1"))];
    let applied = bed.then(|bed| bed.apply(part(1, claims)));
    let one = pipelined(&applied);
    bed.then(|bed| bed.release(one));
    assert_eq!(bed.counts(), (1, 1));
    let before = bed.pending().claims[0].gpus;
    let ill = |instances: &[u8]| {
        let hot = instances.iter().map(|&instance| (instance, "hot".into())).collect();
        Command::SetHealth(NodeId(1), hot)
    };
    let at = u8::try_from(before.mask.trailing_zeros()).expect("an instance");
    bed.then(|bed| bed.step(ill(&[at])));
    assert_ne!(bed.pending().claims[0].gpus, before, "the other device takes its place");
    bed.then(|bed| bed.step(ill(&[0, 1])));
    assert_eq!(bed.counts(), (0, 1));
    bed.then(|bed| bed.step(ill(&[])));
    bed.then(|bed| bed.apply(part(2, [pipeline(1, gpus("1"))])));
    assert_eq!(bed.counts(), (1, 1));
    bed.then(|bed| bed.remove(1, true));
    assert!(bed.view().cold(0).is_none());
}

/// A held claim whose node lost the planned capacity is planned again when its statement is committed.
#[test]
fn a_held_claim_whose_device_fell_ill_moves_or_ends_at_the_commit() {
    for (devices, ends) in [(2, false), (1, true)] {
        let mut bed = Shown::with_nodes(&[(8, devices)]);
        let victim = bed.then(|bed| bed.place(gpus(&devices.to_string())));
        bed.then(|bed| bed.prepare(part(1, [evict(victim, 100), pipeline(1, gpus("1"))]), 1_000));
        let hot = vec![(0, "hot".into())];
        bed.then(|bed| bed.step(Command::SetHealth(NodeId(1), hot)));
        let applied = bed.then(|bed| bed.finish(1, Decision::Committed));
        let claim = pipelined(&applied);
        let ended = bed.0.shard.drain_claim_events().any(|event| event == ClaimEvent::Ended(claim));
        assert_eq!((ended, bed.counts()), (ends, (usize::from(!ends), 1)));
        bed.then(|bed| bed.release(victim));
        assert_eq!(bed.counts(), (0, usize::from(!ends)));
    }
}

#[test]
fn a_bundle_whose_claim_was_aborted_may_be_placed_again() {
    let mut bed = Shown::with_nodes(&[(8, 0)]);
    let victim = bed.then(|bed| bed.place(cores(8)));
    let mine = bundle(3, 0);
    let claims = || [evict(victim, 100), pipeline_bundle(1, cores(6), mine)];
    bed.then(|bed| bed.prepare(part(1, claims()), 1_000));
    bed.then(|bed| bed.finish(1, Decision::Aborted));
    // The same for a conflict in the statement itself: everything is undone in the same step.
    let lost = bed.then(|bed| {
        let too_much = [pipeline_bundle(1, cores(1), bundle(3, 1)), allocate(1, cores(9))];
        bed.apply(part(2, claims().into_iter().chain(too_much)))
    });
    assert!(lost.granted.is_empty() && lost.conflicts.len() == 1, "{lost:?}");
    let applied = bed.then(|bed| bed.apply(part(3, claims())));
    assert!(applied.conflicts.is_empty(), "{applied:?}");
    // A claim that its caller ends also leaves room for the next.
    bed.then(|bed| bed.release(pipelined(&applied)));
    let again = bed.then(|bed| bed.apply(part(4, [pipeline_bundle(1, cores(6), mine)])));
    assert!(again.conflicts.is_empty(), "{again:?}");
}

#[test]
fn what_an_aborted_claim_kept_from_others_comes_free_for_who_waits() {
    let mut bed = Shown::with_nodes(&[(8, 0)]);
    let victim = bed.then(|bed| bed.place(cores(8)));
    let growth = |bed: &mut Shown| bed.view().head().facts.growth;
    bed.then(|bed| bed.prepare(part(1, [evict(victim, 100), pipeline(1, cores(8))]), 1_000));
    bed.then(|bed| bed.release(victim));
    let before = growth(&mut bed);
    bed.then(|bed| bed.finish(1, Decision::Aborted));
    assert!(growth(&mut bed) > before, "the abort of a claim frees something");
    let claim = bed.then(|bed| {
        let victim = bed.place(cores(8));
        let applied = bed.apply(part(2, [evict(victim, 100), pipeline(1, cores(8))]));
        bed.release(victim);
        applied
    });
    // The claim is granted, so this ends the allocation.
    let before = growth(&mut bed);
    bed.then(|bed| bed.release(pipelined(&claim)));
    assert!(growth(&mut bed) > before);
}

#[test]
fn what_an_abort_gives_back_of_a_reservation_is_reserved_in_the_next_view() {
    let mut bed = Shown::with_nodes(&[(8, 0)]);
    let reserved = bed.then(|bed| bed.reserve(1, 7, cores(4), None));
    assert!(matches!(reserved, Outcome::Reserve(Ok(ReservationChange::Made(_)))));
    let before = bed.then(Bed::books_and_hash);
    let owner = OwnerId::new(7);
    let mine = || Operation::Allocate(Allocate { owner, ..allocation(1, cores(3)) });
    bed.then(|bed| bed.prepare(part(1, [mine()]), 1_000));
    bed.then(|bed| bed.finish(1, Decision::Aborted));
    let after = bed.then(Bed::books_and_hash);
    assert_eq!(before.0, after.0, "the books are those from before the hold");
    let others = bed.then(|bed| bed.apply(incremental(part(2, [allocate(1, cores(5))]))));
    assert_eq!(others.conflicts.len(), 1, "four of eight cores are reserved again");
    let own = bed.then(|bed| bed.apply(part(3, [mine()])));
    assert!(own.conflicts.is_empty(), "{own:?}");
}

/// A plan made while an eviction was held refers to a state that the node is no longer in.
#[test]
fn a_mark_that_is_taken_back_makes_another_version() {
    let mut bed = Shown::with_nodes(&[(8, 0)]);
    let victim = bed.then(|bed| bed.place(cores(8)));
    let before = bed.then(|bed| bed.version(1));
    bed.then(|bed| bed.prepare(part(1, [evict(victim, 0)]), 1_000));
    let held = bed.then(|bed| bed.version(1));
    bed.then(|bed| bed.finish(1, Decision::Aborted));
    let after = bed.then(|bed| bed.version(1));
    assert!(before < held && held < after, "{before}, {held}, {after}");
}
