//! The end of a group, and of bundles of one, over a crash at any moment.
//!
//! Faults that these find: a crash that leaves some of the bundles that were to end, and one that forgets which request
//! ended them.

use std::sync::Arc;
use std::task::Waker;

use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::group::{GroupSpec, NoGroup, PlanJob, PlanReply, Strategy};
use wharf_core::ids::{GroupId, Incarnation, SessionId};
use wharf_core::journal::{Changes, Unit};
use wharf_core::recovery::Rebuild;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::state::{Deed, KeptOutcome, Origin, SessionChange, StoreState};
use wharf_core::time::Time;

use crate::by_hand::{ManualClock, add_node, check_all, config, cores, node_spec, settle};
use crate::group_bed::{create, engine, group_of};

const PARTITIONS: u16 = 8;
const SHARDS: u16 = 3;
const SESSION: SessionId = SessionId { incarnation: Incarnation(1), number: 1 };
const SEQUENCE: u64 = 1;
const ORIGIN: Origin = Origin {
    session: SESSION,
    sequence: SEQUENCE,
    mark: 1,
    fingerprint: 1,
    part: 0,
    is_wait: false,
    alternative: None,
};

/// Returns the state that a start comes to if the journal ends after these units.
fn after_a_crash(units: &[Unit]) -> StoreState {
    let mut rebuild = Rebuild::new(StoreState::create(PARTITIONS)).expect("nothing is missing");
    let first = [
        Changes::Started { incarnation: Incarnation(1), shards: SHARDS },
        Changes::Sessions(vec![SessionChange::Opened(SESSION, [1; 16])]),
    ];
    let first = first.map(|changes| Unit::new(units[0].now, changes));
    for unit in first.iter().chain(units) {
        rebuild.apply(unit.clone()).expect("nothing is missing");
    }
    rebuild.take_back();
    rebuild.finish().expect("nothing is missing")
}

/// What is there after a crash: bundles in the books, bundles of the group, and what the request has done.
type Left = (usize, Option<usize>, Vec<(u16, Deed)>);

fn left(state: &StoreState) -> Left {
    let bundles = state.partitions.iter().map(|partition| partition.bundles.len()).sum();
    let allocations: usize = state.partitions.iter().map(|partition| partition.allocations.len()).sum();
    assert_eq!(bundles, allocations);
    let placed =
        state.groups.first().map(|group| group.bundles.iter().filter(|one| one.place.is_some()).count());
    let outcome = state.sessions[0].outcomes.get(&SEQUENCE).map(|record| record.outcome.clone());
    let Some(KeptOutcome::Parts(done)) = outcome.or(Some(KeptOutcome::Parts(Vec::new()))) else {
        panic!("no reply is recorded here")
    };
    (bundles, placed, done)
}

/// Creates a group of four bundles on as many nodes, and does a job for a client. Returns what crashes leave from the begin
/// of the job on, without repetitions.
fn crashes(job: impl Fn(GroupId) -> PlanJob) -> (GroupId, Vec<Left>) {
    let config = EngineConfig { journal: true, planners: 1, ..config(SHARDS) };
    let mut engine =
        Engine::open(StoreState::create(PARTITIONS), &config, vec![Waker::noop().clone()]).expect("in range");
    for number in 0..4 {
        add_node(&mut engine, node_spec(&format!("n{number}"), 4, 0));
    }
    let spec = GroupSpec { min_members: 2, ..group_of(cores(4), 4, Strategy::StrictSpread) };
    let group = create(&mut engine, spec).expect("it fits").id;
    let feed = engine.journal.take().expect("the engine has a journal");
    let mut units = Vec::new();
    feed.take(&mut units);
    feed.set_durable(feed.position());
    let before = units.len();
    let request = PortRequest::Plan(job(group));
    let asked = engine.ports[0].submit_for(Some(ORIGIN), 1, request, engine.now);
    assert!(matches!(asked, Ok(None)), "{asked:?}");
    assert_eq!(settle(&mut engine).len(), 1, "it is answered");
    check_all(&engine);
    let mut more = Vec::new();
    feed.take(&mut more);
    units.append(&mut more);
    let mut all: Vec<Left> = (before..=units.len()).map(|end| left(&after_a_crash(&units[..end]))).collect();
    assert!(units.len() > before + 2, "several shards ended bundles");
    all.dedup();
    (group, all)
}

#[test]
fn a_crash_leaves_a_group_or_removes_all_of_it() {
    let (group, left) = crashes(PlanJob::RemoveGroup);
    let removed = vec![(0, Deed::GroupRemoved(group, 4))];
    assert_eq!(left, [(4, Some(4), Vec::new()), (0, None, removed)]);
}

#[test]
fn a_crash_leaves_all_bundles_that_a_group_gives_up_or_none() {
    let (group, left) = crashes(|group| PlanJob::ShrinkGroup(group, vec![1, 3]));
    let shrunk = vec![(0, Deed::GroupChanged(group))];
    assert_eq!(left, [(4, Some(4), Vec::new()), (2, Some(2), shrunk)]);
}

/// A crash that keeps the removal of a group that waits, and not the end of its wait, would let it wait again.
#[test]
fn the_removal_of_a_group_that_waits_ends_its_wait_in_the_same_unit() {
    let config = EngineConfig { journal: true, planners: 1, ..config(1) };
    let mut engine =
        Engine::open(StoreState::create(PARTITIONS), &config, vec![Waker::noop().clone()]).expect("in range");
    add_node(&mut engine, node_spec("n", 4, 0));
    let first = create(&mut engine, group_of(cores(4), 1, Strategy::Pack)).expect("it fits").id;
    let feed = engine.journal.take().expect("the engine has a journal");
    let spec = GroupSpec { wait_until: Some(Time(u64::MAX)), ..group_of(cores(4), 1, Strategy::Pack) };
    let origin = |sequence| Origin { sequence, is_wait: sequence == 1, ..ORIGIN };
    let asked = PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec)));
    engine.ports[0].submit_for(Some(origin(1)), 1, asked, engine.now).expect("room");
    assert!(settle(&mut engine).is_empty(), "it waits");
    feed.take(&mut Vec::new());
    feed.set_durable(feed.position());
    let waiting = GroupId { number: first.number + 1, ..first };
    let removal = PortRequest::Plan(PlanJob::RemoveGroup(waiting));
    engine.ports[0].submit_for(Some(origin(2)), 2, removal, engine.now).expect("room");
    assert_eq!(settle(&mut engine).len(), 2);
    let mut units = Vec::new();
    feed.take(&mut units);
    let done: Vec<Vec<(u64, Deed)>> = units
        .into_iter()
        .map(|unit| unit.done.into_iter().map(|done| (done.origin.sequence, done.deed)).collect())
        .filter(|done: &Vec<_>| !done.is_empty())
        .collect();
    assert_eq!(done, [[(1, Deed::GroupRemoved(waiting, 0)), (2, Deed::GroupRemoved(waiting, 0))]]);
}

/// Would catch a cancelled job that ends as refused: its request could not go on at the next connection of its client.
#[test]
fn a_job_that_is_cancelled_while_its_statement_fails_is_cancelled() {
    let mut engine = engine(1, 1);
    add_node(&mut engine, node_spec("n", 4, 0));
    let spec = GroupSpec { wait_until: Some(Time(u64::MAX)), ..group_of(cores(4), 1, Strategy::Pack) };
    let create = PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec)));
    let clock = ManualClock::new(engine.now);
    // The shard has the placement before the statement.
    engine.ports[0].submit(2, PortRequest::Place(cores(4)), engine.now).expect("room");
    engine.ports[0].submit(1, create, engine.now).expect("room");
    engine.ports[0].flush();
    engine.planners[0].run_round(&clock);
    engine.ports[0].cancel_plan(1);
    engine.ports[0].flush();
    engine.planners[0].run_round(&clock);
    let mut replies = settle(&mut engine);
    replies.sort_by_key(|&(tag, _)| tag);
    let [(1, PortReply::Plan(plan)), (2, PortReply::Place(Ok(_)))] = &replies[..] else {
        panic!("{replies:?}")
    };
    assert!(matches!(**plan, PlanReply::Group(Err(NoGroup::Cancelled))), "{plan:?}");
    assert_eq!(engine.planners[0].planner().group_count(), 0);
    check_all(&engine);
}
