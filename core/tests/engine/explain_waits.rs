//! Explanations of placements and groups that wait: over all shards and all planners.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::by_hand::{add_node, ask, check_all, cores, lone_node, lone_shard, node_spec, settle};
use crate::group_bed::{engine, group_of, plan};
use wharf_core::engine::Engine;
use wharf_core::group::{
    ExplainWait, GroupSpec, PlanJob, PlanRejection, PlanReply, Strategy, WaitExplained, WaitExplanation,
    WaitSubject, WaitsFor,
};
use wharf_core::ids::{AllocationId, GroupId, Incarnation, NodeId, TenantId};
use wharf_core::jobs::Remedy;
use wharf_core::limits::WAITING_TURNS_PER_PAGE;
use wharf_core::request::{Check, PlacementRequest};
use wharf_core::rng::Rng;
use wharf_core::router::{PortReply, PortRequest, Tag, WaitRequest};
use wharf_core::shard::{Command, CountTurns, Home, Outcome, Park, Shard, TurnsFrom, WaitToken, Watch};
use wharf_core::time::Time;

/// Lets a placement wait. Returns since when it does.
fn wait(engine: &mut Engine, tag: Tag, request: PlacementRequest, priority: i32) -> Time {
    engine.now = Time(engine.now.0 + 1);
    let since = engine.now;
    let wait = WaitRequest { request, priority, since, until: Time::NEVER, is_resumed: false };
    engine.ports[0].submit(tag, PortRequest::Wait(Box::new(wait)), since).expect("room");
    assert!(settle(engine).is_empty(), "it waits");
    since
}

/// Lets a group wait.
fn wait_for_group(engine: &mut Engine, tag: Tag, spec: GroupSpec) {
    engine.now = Time(engine.now.0 + 1);
    let spec = GroupSpec { wait_until: Some(Time::NEVER), ..spec };
    let job = PlanJob::CreateGroup(Arc::new(spec));
    engine.ports[0].submit(tag, PortRequest::Plan(job), engine.now).expect("room");
    assert!(settle(engine).is_empty(), "it waits");
}

/// Returns the groups that wait, in order of id.
fn groups(engine: &mut Engine) -> Vec<GroupId> {
    match plan(engine, PlanJob::ListGroups(None, None, 100)) {
        PlanReply::Groups(groups) => groups.iter().map(|group| group.id).collect(),
        other => panic!("a list: {other:?}"),
    }
}

fn explained(engine: &mut Engine, of: WaitSubject) -> WaitExplained {
    match plan(engine, PlanJob::Explain(Box::new(ExplainWait { tenant: None, of }))) {
        PlanReply::Explained(explained) => explained,
        other => panic!("an explanation: {other:?}"),
    }
}

fn of_group(engine: &mut Engine, id: GroupId, bundle: Option<u32>) -> WaitExplanation {
    *explained(engine, WaitSubject::Group { id, bundle }).expect("the group is there")
}

fn of_placement(
    engine: &mut Engine,
    request: PlacementRequest,
    priority: i32,
    since: Time,
) -> WaitExplanation {
    let request = Box::new(request);
    let of = WaitSubject::Placement { request, priority, since, until: Time::NEVER };
    *explained(engine, of).expect("placements are explained")
}

/// Creates nodes of four cores, and takes `used` of each.
fn with_used(shards: u16, planners: u16, used: &[u32]) -> (Engine, Vec<AllocationId>) {
    let mut engine = engine(shards, planners);
    let mut held = Vec::new();
    for (number, &used) in used.iter().enumerate() {
        let node = add_node(&mut engine, node_spec(&format!("n{number}"), 4, 0)).id;
        if used == 0 {
            continue;
        }
        let request = PlacementRequest { candidates: Some(Arc::from([node])), ..cores(used) };
        match ask(&mut engine, PortRequest::Place(request)) {
            PortReply::Place(Ok(placement)) => held.push(placement.allocation),
            other => panic!("{other:?}"),
        }
    }
    (engine, held)
}

#[test]
fn a_placement_is_counted_over_all_shards_and_has_a_place_among_all_that_waits() {
    let (mut engine, _) = with_used(3, 2, &[3, 4, 4, 2]);
    let spec = |priority| GroupSpec { priority, ..group_of(cores(4), 2, Strategy::Pack) };
    for (tag, priority) in [(1, 9), (2, 9), (3, 0), (4, 9)] {
        wait_for_group(&mut engine, tag, spec(priority));
    }
    let first = wait(&mut engine, 11, cores(3), 5);
    let second = wait(&mut engine, 12, cores(3), 5);
    wait(&mut engine, 13, cores(4), 7);
    let told = of_placement(&mut engine, cores(3), 5, second);
    assert_eq!((told.waits_for, told.fit, told.needed, told.until), (WaitsFor::Node, 0, 1, None));
    let nodes = told.nodes.expect("it waits for a node");
    assert_eq!((nodes.refusal.nodes, nodes.refusal.examined, nodes.room.fits), (4, 4, 0));
    assert_eq!(nodes.refusal.checks[&Check::Cpu].nodes, 4);
    // Three groups and the placement of a higher priority, and the one that is older.
    assert_eq!((told.place.before, told.place.waiting), (5, 7));
    assert!(told.group.is_none() && told.bundle.is_none());
    assert_eq!(of_placement(&mut engine, cores(3), 5, first).place.before, 4);
    // The node that has two cores free comes nearest.
    let [free, more] = &told.changes[..] else { panic!("two ways: {:?}", told.changes) };
    assert!(matches!(&free.remedy, Remedy::FreeOnNode { node: Some(NodeId(4)), of: None, .. }), "{free:?}");
    assert!(more.instead && matches!(more.remedy, Remedy::MoreNodes { count: 1, .. }), "{more:?}");
    check_all(&engine);
}

#[test]
fn what_is_said_to_help_a_group_does() {
    let (mut engine, held) = with_used(2, 2, &[1, 0]);
    wait_for_group(&mut engine, 1, group_of(cores(4), 2, Strategy::Spread));
    let id = groups(&mut engine)[0];
    let told = of_group(&mut engine, id, None);
    assert_eq!((told.waits_for, told.fit, told.needed, told.bundle), (WaitsFor::Bundles, 1, 2, Some(0)));
    assert_eq!((told.place.before, told.place.waiting), (0, 1));
    let [free, more] = &told.changes[..] else { panic!("two ways: {:?}", told.changes) };
    assert!(matches!(free.remedy, Remedy::FreeOnNode { node: Some(NodeId(1)), .. }), "{free:?}");
    assert!(matches!(more.remedy, Remedy::MoreNodes { count: 1, .. }), "{more:?}");
    assert_eq!(of_group(&mut engine, id, Some(1)).bundle, Some(1));
    let unknown = |engine: &mut Engine, of| explained(engine, of).expect_err("it is not there");
    let bundle = unknown(&mut engine, WaitSubject::Group { id, bundle: Some(7) });
    assert_eq!(bundle, PlanRejection::UnknownBundle(id, 7));
    let other = GroupId { number: 99, tenant: TenantId::OPERATOR, incarnation: Incarnation(1) };
    let group = unknown(&mut engine, WaitSubject::Group { id: other, bundle: None });
    assert_eq!(group, PlanRejection::UnknownGroup(other));
    engine.ports[0].submit(50, PortRequest::Release(held[0]), engine.now).expect("room");
    let mut replies = settle(&mut engine);
    replies.retain(|&(tag, _)| tag == 1);
    assert_eq!(replies.len(), 1, "the group is placed");
    let told = of_group(&mut engine, id, None);
    assert_eq!((told.waits_for, told.fit, told.needed), (WaitsFor::Nothing, 2, 2));
    assert!(told.nodes.is_none() && told.changes.is_empty());
}

#[test]
fn a_tenant_has_its_own_groups_only() {
    let (mut engine, _) = with_used(1, 1, &[4]);
    wait_for_group(&mut engine, 1, group_of(cores(4), 1, Strategy::Pack));
    let id = groups(&mut engine)[0];
    let of = WaitSubject::Group { id, bundle: None };
    let ask = ExplainWait { tenant: Some(TenantId(2)), of };
    match plan(&mut engine, PlanJob::Explain(Box::new(ask))) {
        PlanReply::Explained(Err(rejection)) => assert_eq!(rejection, PlanRejection::UnknownGroup(id)),
        other => panic!("it is not told: {other:?}"),
    }
}

/// Counts all pages.
fn count(shard: &mut Shard, priority: i32, since: Time) -> (u64, u64, usize) {
    let mut sum = (0, 0, 0);
    let mut from = Some(TurnsFrom::default());
    while let Some(begin) = from {
        let asked = CountTurns { priority, since, from: begin };
        let mut outcomes = Vec::new();
        shard.step([Command::CountTurns(Box::new(asked))], Time(0), &mut outcomes);
        let Outcome::Turns(page) = outcomes.remove(0) else { panic!("a page") };
        assert!(page.waiting <= WAITING_TURNS_PER_PAGE as u64);
        sum = (sum.0 + page.before, sum.1 + page.waiting, sum.2 + 1);
        from = page.next;
    }
    sum
}

/// Would fail if a page left out what comes at its end, or counted it twice.
#[test]
fn pages_of_the_count_of_placements_add_up() {
    let mut shard = lone_shard();
    let mut outcomes = Vec::new();
    shard.step([lone_node(1, node_spec("n", 1, 0), false)], Time(0), &mut outcomes);
    let mut rng = Rng::new(5);
    let mut turns = Vec::new();
    for number in 0..3_000 {
        let token = WaitToken { port: 0, number };
        let priority = i32::try_from(rng.below(3)).expect("small");
        let since = Time(rng.below(100));
        // Few have many copies, and many have one.
        let cpu = if number % 2 == 0 { 2 } else { 3 + u32::try_from(number).expect("small") };
        let request = cores(cpu);
        let command = if number % 7 == 0 {
            Command::Watch(Box::new(Watch { token, request, priority, since }))
        } else {
            turns.push((Reverse(priority), since));
            Command::Park(Box::new(Park { token, request, priority, since, home: Home::Here }))
        };
        shard.step([command], Time(0), &mut outcomes);
    }
    for (priority, since) in [(9, Time(0)), (1, Time(50)), (0, Time(1_000))] {
        let turn = (Reverse(priority), since);
        let before = turns.iter().filter(|&&other| other < turn).count() as u64;
        let (counted, waiting, pages) = count(&mut shard, priority, since);
        assert_eq!((counted, waiting), (before, turns.len() as u64));
        assert!(pages > 3, "{pages} pages");
    }
}
