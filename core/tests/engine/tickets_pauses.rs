//! The time that tickets take: how long they reserve, and how long nothing is reserved after them.

use std::sync::Arc;

use crate::by_hand::{ask, check_all, cores, settle};
use crate::group_bed::{engine, group_of, with_nodes};
use wharf_core::engine::Engine;
use wharf_core::group::{GroupSpec, NoGroup, PlanJob, PlanReply, Strategy};
use wharf_core::limits::{STATEMENT_LOSSES_MAX, TICKET_NS_DEFAULT};
use wharf_core::router::{NotPlaced, PortReply, PortRequest};
use wharf_core::time::Time;

/// The clock of these tests advances by one at each look.
const LOOKS: u64 = 1_000;

fn reserves(engine: &Engine) -> bool {
    !engine.runners[0].shard().reservation_owners().is_empty()
}

/// Frees and takes a core so often that a waiting group finds no place often enough for a ticket.
fn fail_often(engine: &mut Engine) {
    for _ in 0..=STATEMENT_LOSSES_MAX {
        match ask(engine, PortRequest::Place(cores(1))) {
            PortReply::Place(Ok(placement)) => {
                ask(engine, PortRequest::Release(placement.allocation));
            }
            // All is reserved.
            PortReply::Place(Err(NotPlaced { ended: None, .. })) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn next_deadline(engine: &Engine) -> u64 {
    engine.planners[0].planner().next_deadline().expect("a ticket ends").0
}

/// Creates an engine with a group that waits for a whole node. Something there never ends.
fn with_a_waiting_group(wait_until: Time) -> Engine {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 1, 8, 0);
    assert!(matches!(ask(&mut engine, PortRequest::Place(cores(1))), PortReply::Place(Ok(_))));
    let spec = GroupSpec { wait_until: Some(wait_until), ..group_of(cores(8), 1, Strategy::Pack) };
    let job = PlanJob::CreateGroup(Arc::new(spec));
    engine.ports[0].submit(9, PortRequest::Plan(job), engine.now).expect("room");
    assert!(settle(&mut engine).is_empty(), "a core is in use");
    engine
}

#[test]
fn a_ticket_reserves_for_its_time_and_pauses_for_three_times_as_long() {
    let mut engine = with_a_waiting_group(Time(u64::MAX));
    assert!(!reserves(&engine));
    fail_often(&mut engine);
    assert!(reserves(&engine), "it failed often enough");
    let ends = next_deadline(&engine);
    let most = engine.now.0 + TICKET_NS_DEFAULT;
    assert!((most - LOOKS..=most).contains(&ends), "{ends} and {most}");
    engine.now = Time(ends - LOOKS);
    settle(&mut engine);
    assert!(reserves(&engine), "its time is not up");
    engine.now = Time(ends);
    settle(&mut engine);
    assert!(!reserves(&engine));
    let again = next_deadline(&engine);
    let pause = again - ends;
    assert!((3 * TICKET_NS_DEFAULT..3 * TICKET_NS_DEFAULT + 4 * LOOKS).contains(&pause), "{pause}");
    // However often it fails meanwhile, nothing is reserved.
    fail_often(&mut engine);
    fail_often(&mut engine);
    engine.now = Time(again - LOOKS);
    fail_often(&mut engine);
    assert!(!reserves(&engine));
    engine.now = Time(again);
    settle(&mut engine);
    assert!(reserves(&engine), "it has a number since, which is served now");
    check_all(&engine);
}

#[test]
fn a_ticket_ends_at_the_deadline_of_its_group() {
    let until = TICKET_NS_DEFAULT / 2;
    let mut engine = with_a_waiting_group(Time(until));
    fail_often(&mut engine);
    assert!(reserves(&engine));
    assert_eq!(next_deadline(&engine), until);
    engine.now = Time(until);
    let replies = settle(&mut engine);
    let [(9, PortReply::Plan(reply))] = &replies[..] else { panic!("it is answered: {replies:?}") };
    assert!(matches!(**reply, PlanReply::Group(Err(NoGroup::Refused(_)))), "{reply:?}");
    assert!(!reserves(&engine));
    assert_eq!(engine.planners[0].planner().group_count(), 0);
    check_all(&engine);
}
