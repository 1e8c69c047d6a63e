//! Tests that the checkers of statements and views fire.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_core::ids::{AllocationId, Incarnation, StatementId, TenantId};
use wharf_core::link::{Decision, DecisionCell};
use wharf_core::node::NodeState;
use wharf_core::resource::{Amount, Demand};
use wharf_core::shard::{Command, Outcome, UnknownStatement};
use wharf_core::statement::{
    Allocate, CommitMode, ConflictDetection, Evict, Granted, Operation, Part, Prepare,
};
use wharf_core::time::Time;
use wharf_core::view::ViewVersion;

use super::fires::{Bed, NODE, Was, asks};
use super::statements::Statements;
use super::views::{VersionsOnlyGrow, kept_views_stay, stated, views_are_true};
use crate::sim::facts::Facts;

const STATEMENT: StatementId = StatementId { incarnation: Incarnation(1), planner: 0, number: 1 };

fn allocate(cpu: u32) -> Operation {
    let demand = Demand { cpu: Amount::whole(cpu), ..Demand::default() };
    let node = NODE;
    let expected = None;
    let gpus = None;
    let owner = None;
    let bundle = None;
    let tenant = TenantId::OPERATOR;
    Operation::Allocate(Allocate { node, expected, demand, gpus, owner, bundle, tenant, lease: None })
}

fn part(operations: Vec<Operation>) -> Part {
    let operations = (0..).zip(operations).collect();
    let conflict_detection = ConflictDetection::Fine;
    let mode = CommitMode::AllOrNothing;
    Part { statement: STATEMENT, operations, conflict_detection, mode }
}

/// Returns a held statement of two allocations, and the checker that followed it.
fn held(bed: &mut Bed) -> (Statements, Arc<DecisionCell>) {
    let cell = Arc::new(DecisionCell::default());
    let part = part(vec![allocate(1), allocate(2)]);
    let prepare = Prepare { part, deadline: Time(100), cell: Arc::clone(&cell) };
    let was = bed.step(Command::Prepare(Box::new(prepare)));
    let mut statements = Statements::default();
    assert_eq!(statements.handle(&was.step()), Ok(()));
    (statements, cell)
}

fn finish(bed: &mut Bed, decision: Decision) -> Was {
    bed.step(Command::Finish { statement: STATEMENT, decision })
}

#[test]
pub(super) fn a_statement_that_is_done_as_decided_is_silent() {
    for decision in [Decision::Committed, Decision::Aborted] {
        let mut bed = Bed::new(1);
        let (mut statements, cell) = held(&mut bed);
        assert!(statements.all_or_none().is_err(), "it is not decided");
        cell.decide(decision);
        assert!(statements.all_or_none().is_err(), "it is not done");
        assert!(!statements.is_done(STATEMENT));
        let was = finish(&mut bed, decision);
        assert_eq!(super::check_step(&was.step()), Ok(()));
        assert_eq!(statements.handle(&was.step()), Ok(()));
        assert_eq!(statements.all_or_none(), Ok(()));
        assert!(statements.is_done(STATEMENT));
        assert_eq!(statements.counts().0 + statements.counts().1, 1);
    }
}

/// Checks that a finished statement is accepted, and that a change by `tamper` is found.
fn finish_fires(decided: Decision, tamper: impl FnOnce(&mut Was)) {
    let mut bed = Bed::new(1);
    let (mut statements, cell) = held(&mut bed);
    cell.decide(decided);
    let mut was = finish(&mut bed, decided);
    tamper(&mut was);
    assert!(statements.handle(&was.step()).is_err(), "{:?} is not found", was.outcome);
}

#[test]
pub(super) fn a_statement_that_is_done_otherwise() {
    // Against the decision, in part, forgotten, and after an abort.
    finish_fires(Decision::Committed, |was| {
        was.command = Command::Finish { statement: STATEMENT, decision: Decision::Aborted };
    });
    finish_fires(Decision::Committed, |was| {
        if let Outcome::Applied(Ok(applied)) = &mut was.outcome {
            applied.granted.pop();
        }
    });
    finish_fires(Decision::Committed, |was| {
        was.outcome = Outcome::Applied(Err(UnknownStatement(STATEMENT)));
    });
    finish_fires(Decision::Aborted, |was| {
        if let Outcome::Applied(Ok(applied)) = &mut was.outcome {
            let id = AllocationId {
                incarnation: Incarnation(1),
                partition: wharf_core::ids::PartitionId(0),
                sequence: 1,
                tenant: TenantId::OPERATOR,
            };
            applied.granted.push((0, Granted::Ended(id)));
        }
    });
}

#[test]
pub(super) fn what_is_held_after_the_end_of_its_statement() {
    // An abort that frees too little, and a commit that keeps holding.
    for decision in [Decision::Committed, Decision::Aborted] {
        finish_fires(decision, |was| was.after.books[0].resources[0].1.held = 10_000);
        finish_fires(decision, |was| was.after.books[0].resources[0].1.releasing = 10_000);
    }
}

#[test]
pub(super) fn a_part_that_is_held_by_halves() {
    let mut bed = Bed::new(1);
    let cell = Arc::new(DecisionCell::default());
    let prepare = Prepare { part: part(vec![allocate(1), allocate(9)]), deadline: Time(100), cell };
    let mut was = bed.step(Command::Prepare(Box::new(prepare)));
    assert_eq!(Statements::default().handle(&was.step()), Ok(()));
    let Outcome::Prepared(prepared) = &mut was.outcome else { panic!("prepared") };
    prepared.held.push(0);
    assert!(Statements::default().handle(&was.step()).is_err());
}

#[test]
pub(super) fn a_statement_that_makes_a_node_short() {
    let was = Bed::new(1).step(Command::Apply(Box::new(part(vec![allocate(3)]))));
    was.fires("statements_take_only_what_is_there", |was| {
        let book = &mut was.after.books[0].resources[0].1;
        (book.shortfall, book.allocated) = (10_000, book.allocated + 10_000);
    });
    let was = Bed::new(1).step(Command::Apply(Box::new(part(vec![allocate(3)]))));
    was.fires("allocations_are_what_was_granted", |was| was.after.partitions[0].allocations.clear());
}

#[test]
pub(super) fn what_ends_by_itself_without_being_evicted() {
    let mut bed = Bed::new(1);
    let Outcome::Place(Ok(placed)) = bed.step(Command::Place(asks(2, 0))).outcome else { panic!("room") };
    let evict = Evict { allocation: placed.allocation, expected: None, grace_ns: 50 };
    let was = bed.step(Command::Apply(Box::new(part(vec![Operation::Evict(evict)]))));
    let nothing = Facts { partitions: Vec::new(), ..was.after.clone() };
    let seen = || {
        let mut statements = Statements::default();
        assert_eq!(statements.handle(&was.step()), Ok(()));
        statements
    };
    let ended = seen().only_what_is_evicted_ends_by_itself(&was.after, &nothing, Time(51));
    assert_eq!(ended, Ok(vec![placed.allocation]));
    assert!(seen().only_what_is_evicted_ends_by_itself(&was.after, &nothing, Time(50)).is_err(), "too soon");
    let evicted_by_nobody =
        Statements::default().only_what_is_evicted_ends_by_itself(&was.after, &nothing, Time(51));
    assert!(evicted_by_nobody.is_err());
}

#[test]
pub(super) fn a_view_of_a_state_that_never_was() {
    let was = Bed::new(2).step(Command::Place(asks(3, 1)));
    let before = stated(&was.before);
    let after = stated(&was.after);
    assert_eq!(views_are_true(&after, &was.after), Ok(()));
    assert!(views_are_true(&before, &was.after).is_err(), "an old one");
    assert!(views_are_true(&BTreeMap::new(), &was.after).is_err());
    let mut lost = was.after;
    lost.partitions[0].nodes[1].state = NodeState::Draining;
    assert!(views_are_true(&after, &lost).is_err());
    assert_eq!(kept_views_stay(&after, &after), Ok(()));
    assert!(kept_views_stay(&after, &before).is_err());
}

#[test]
pub(super) fn a_version_that_goes_back() {
    let version = |incarnation, sequence| ViewVersion { incarnation: Incarnation(incarnation), sequence };
    let mut versions = VersionsOnlyGrow::default();
    let now = Incarnation(2);
    assert_eq!(versions.check(now, version(2, 1), true), Ok(()));
    assert_eq!(versions.check(now, version(2, 1), false), Ok(()));
    assert!(versions.check(now, version(2, 1), true).is_err(), "a change without a version");
    assert_eq!(versions.check(now, version(2, 5), true), Ok(()));
    assert!(versions.check(now, version(2, 4), false).is_err());
    assert!(versions.check(now, version(1, 9), true).is_err(), "of an earlier start");
}
