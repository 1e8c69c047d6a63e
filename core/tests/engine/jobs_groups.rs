//! Groups in queues: charges, caps, waits, losses, and crashes.

use std::collections::BTreeSet;
use std::sync::Arc;

use wharf_core::cycle::CycleConfig;
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::fairness::Dim;
use wharf_core::group::{
    ExplainWait, GroupSpec, GroupState, GroupView, NoGroup, PlanJob, PlanRejection, PlanReply, Strategy,
    WaitExplanation, WaitSubject, WaitsFor,
};
use wharf_core::ids::{GroupId, TenantId};
use wharf_core::jobs::{
    Binding, BindingError, Capped, JobsRejection, JobsRequest, NotCharged, QueueContents, QueueError,
    QueueSpec, TaskState, TenantQueue,
};
use wharf_core::node::LifeEvent;
use wharf_core::request::PlacementRequest;
use wharf_core::resource::{Demand, GpuRequest};
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::state::Deed;
use wharf_core::statement::{CommitMode, ConflictDetection, Evict, Operation};

use crate::by_hand::{add_node, ask, cores, node_spec, remove_node, settle};
use crate::group_bed::{
    add_agent_node, ask_meanwhile, group_of, life, live_allocations, places, plan, same, status, submit,
    with_nodes,
};
use crate::jobs_bed::{
    INTERVAL_NS, Journaled, ORIGIN, after_a_crash, ask_jobs, bag, cancel, check_jobs, counts, cpu,
    export_all, jobs_config, jobs_engine, jobs_of, named, open_with, place_in, set_queue, submit_job, wait,
    wait_ns,
};

/// A group of `count` bundles of `cpu` cores that is charged to a queue.
pub(crate) fn in_queue(queue: &str, cpu: u32, count: usize) -> GroupSpec {
    GroupSpec { queue: Some(named(queue)), ..group_of(cores(cpu), count, Strategy::Pack) }
}

fn create(engine: &mut Engine, spec: GroupSpec) -> Result<GroupView, NoGroup> {
    match plan(engine, PlanJob::CreateGroup(Arc::new(spec))) {
        PlanReply::Group(group) => group.map(|view| *view),
        other => panic!("a group: {other:?}"),
    }
}

pub(crate) fn created(engine: &mut Engine, spec: GroupSpec) -> GroupView {
    create(engine, spec).expect("it fits")
}

#[track_caller]
fn refused(engine: &mut Engine, spec: GroupSpec) -> NotCharged {
    match create(engine, spec) {
        Err(NoGroup::NotCharged(refused)) => *refused,
        other => panic!("its queue is not charged: {other:?}"),
    }
}

fn grow(engine: &mut Engine, id: GroupId, cpu: u32, count: usize) -> Result<GroupView, NoGroup> {
    match plan(engine, PlanJob::GrowGroup(id, same(cores(cpu), count), None)) {
        PlanReply::Group(group) => group.map(|view| *view),
        other => panic!("a group: {other:?}"),
    }
}

fn shrink(engine: &mut Engine, id: GroupId, bundles: &[u32]) {
    let shrunk = plan(engine, PlanJob::ShrinkGroup(id, bundles.to_vec()));
    assert!(matches!(shrunk, PlanReply::Status(Ok(_))), "{shrunk:?}");
}

/// Removes a group. Returns how many bundles have ended with it.
fn remove(engine: &mut Engine, id: GroupId) -> u32 {
    match plan(engine, PlanJob::RemoveGroup(id)) {
        PlanReply::Removed(Ok((removed, ended))) if removed == id => ended,
        other => panic!("it is there: {other:?}"),
    }
}

pub(crate) fn list(engine: &mut Engine) -> Vec<GroupId> {
    match plan(engine, PlanJob::ListGroups(None, None, 100)) {
        PlanReply::Groups(groups) => groups.iter().map(|group| group.id).collect(),
        other => panic!("a list: {other:?}"),
    }
}

/// Returns the cores that a queue has, and the number of allocations.
pub(crate) fn used(engine: &Engine, queue: &str) -> (i64, u64) {
    let jobs = jobs_of(engine);
    let usage = jobs.queue(jobs.queue_named(queue).expect("it is there")).usage();
    (usage.held.plus(&usage.releasing).get(Dim::CPU) / 10_000, usage.allocations())
}

/// Asks for a group that waits for at most `ns`. Returns the replies.
pub(crate) fn ask_to_wait(engine: &mut Engine, spec: GroupSpec, ns: u64) -> Vec<(u64, PortReply)> {
    let wait_until = Some(engine.now.plus_nanos(ns));
    let job = PlanJob::CreateGroup(Arc::new(GroupSpec { wait_until, ..spec }));
    ask_meanwhile(engine, PortRequest::Plan(job))
}

/// Asks for something, and lets the next cycle begin. Returns all replies.
pub(crate) fn ask_and_wait(engine: &mut Engine, request: PortRequest) -> Vec<(u64, PortReply)> {
    let mut replies = ask_meanwhile(engine, request);
    engine.now = engine.now.plus_nanos(INTERVAL_NS);
    replies.extend(settle(engine));
    replies
}

#[track_caller]
pub(crate) fn explained(engine: &mut Engine, id: GroupId) -> WaitExplanation {
    let of = WaitSubject::Group { id, bundle: None };
    let explain = PlanJob::Explain(Box::new(ExplainWait { tenant: None, of }));
    match plan(engine, explain) {
        PlanReply::Explained(Ok(told)) => *told,
        other => panic!("it waits: {other:?}"),
    }
}

pub(crate) fn group_of_reply(replies: &[(u64, PortReply)]) -> Result<GroupView, NoGroup> {
    let [(_, PortReply::Plan(reply))] = replies else { panic!("one reply: {replies:?}") };
    match &**reply {
        PlanReply::Group(group) => group.clone().map(|view| *view),
        other => panic!("a group: {other:?}"),
    }
}

#[test]
fn a_group_is_charged_to_its_queue_while_its_bundles_are_placed() {
    let mut engine = jobs_engine(3, CycleConfig::default());
    with_nodes(&mut engine, 4, 16, 0);
    let parent =
        JobsRequest::SetQueue { spec: Box::new(QueueSpec::new("inner")), parent: Some(named("all")) };
    ask_jobs(&mut engine, parent).expect("a new queue");
    let group = created(&mut engine, in_queue("inner", 2, 3));
    let id = group.id;
    assert!(id.is_in_queue() && id.to_string().starts_with("g1-q") && id.to_string().parse() == Ok(id));
    assert_eq!((used(&engine, "inner"), used(&engine, "all")), ((6, 3), (6, 3)));
    check_jobs(&mut engine);
    assert_eq!(list(&mut engine), [id]);
    let in_use = ask_jobs(&mut engine, JobsRequest::RemoveQueue(named("inner"))).expect_err("it has bundles");
    let has = QueueContents { jobs: 0, direct: 3, groups: 0 };
    assert_eq!(in_use, JobsRejection::Queue(QueueError::InUse { queue: named("inner"), has }));
    let grown = grow(&mut engine, id, 3, 2).expect("it fits");
    assert_eq!((places(&grown).len(), used(&engine, "inner")), (5, (12, 5)));
    check_jobs(&mut engine);
    shrink(&mut engine, id, &[0, 4]);
    assert_eq!((places(&status(&mut engine, id)).len(), used(&engine, "all")), (3, (7, 3)));
    check_jobs(&mut engine);
    // A bundle that its owner releases is placed again, and charged once.
    let (_, _, allocation) = places(&status(&mut engine, id))[0];
    ask(&mut engine, PortRequest::Release(allocation));
    settle(&mut engine);
    assert_eq!((places(&status(&mut engine, id)).len(), used(&engine, "all")), (3, (7, 3)));
    check_jobs(&mut engine);
    assert_eq!(remove(&mut engine, id), 3);
    // The next request follows the views.
    wait(&mut engine);
    assert_eq!((used(&engine, "all"), live_allocations(&mut engine), list(&mut engine)), ((0, 0), 0, vec![]));
    check_jobs(&mut engine);
    let unknown = plan(&mut engine, PlanJob::GroupStatus(id));
    assert!(matches!(unknown, PlanReply::Status(Err(PlanRejection::UnknownGroup(_)))), "{unknown:?}");
    ask_jobs(&mut engine, JobsRequest::RemoveQueue(named("inner"))).expect("nothing is in it");
}

#[test]
fn a_cap_holds_for_jobs_placements_and_groups_together() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 4, 16, 0);
    set_queue(&mut engine, QueueSpec { capability: cpu(10), ..QueueSpec::new("small") });
    let job = submit_job(&mut engine, bag("job", 4), "small");
    wait(&mut engine);
    assert_eq!(counts(&mut engine, job, TaskState::Bound), 4);
    let direct = place_in(&mut engine, "small", cores(3)).expect("the cap is 10");
    match refused(&mut engine, in_queue("small", 2, 2)) {
        NotCharged::Cap { queue, over, waiting } => {
            assert_eq!((&*queue, over.of, waiting), ("small", Capped::Resource(Dim::CPU), 0));
            // The first of them would have a place in the cap. It is not in use, it is asked for.
            assert_eq!((over.cap, over.used, over.asked), (100_000, 70_000, 40_000));
        }
        other => panic!("the cap is 10, and 7 are in use: {other:?}"),
    }
    assert_eq!((used(&engine, "small"), list(&mut engine)), ((7, 5), vec![]));
    // One that needs fewer is placed in part. The rest follows when the cap allows it.
    let group = created(&mut engine, GroupSpec { min_members: 1, ..in_queue("small", 2, 2) });
    assert_eq!((places(&group).len(), used(&engine, "small")), (1, (9, 6)));
    check_jobs(&mut engine);
    assert!(matches!(place_in(&mut engine, "small", cores(2)), Err(NotCharged::Cap { .. })));
    let more = submit_job(&mut engine, bag("more", 3), "small");
    wait(&mut engine);
    assert_eq!((counts(&mut engine, more, TaskState::Bound), used(&engine, "small")), (1, (10, 7)));
    check_jobs(&mut engine);
    ask(&mut engine, PortRequest::Release(direct.allocation));
    wait(&mut engine);
    // The one that came first has it: both waited.
    assert_eq!(used(&engine, "small").0, 10);
    check_jobs(&mut engine);
    cancel(&mut engine, job, 0);
    cancel(&mut engine, more, 0);
    wait(&mut engine);
    assert_eq!(places(&status(&mut engine, group.id)).len(), 2);
    assert_eq!(used(&engine, "small"), (4, 2));
    // A growth is charged as a whole.
    let grown = grow(&mut engine, group.id, 3, 3);
    assert!(
        matches!(&grown, Err(NoGroup::NotCharged(of)) if matches!(**of, NotCharged::Cap { .. })),
        "{grown:?}"
    );
    assert_eq!((used(&engine, "small"), grow(&mut engine, group.id, 3, 2).is_ok()), ((4, 2), true));
    assert_eq!(used(&engine, "small"), (10, 4));
    check_jobs(&mut engine);
}

#[test]
fn a_cap_on_allocations_of_an_outer_queue_counts_bundles() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 4, 16, 0);
    set_queue(&mut engine, QueueSpec { allocations_max: Some(5), ..QueueSpec::new("few") });
    for name in ["one", "two"] {
        let spec = Box::new(QueueSpec::new(name));
        ask_jobs(&mut engine, JobsRequest::SetQueue { spec, parent: Some(named("few")) }).expect("a queue");
    }
    let first = created(&mut engine, in_queue("one", 1, 3));
    assert!(refused(&mut engine, in_queue("two", 0, 3)).is_cap_on_allocations());
    let second = created(&mut engine, in_queue("two", 0, 2));
    assert_eq!((used(&engine, "few"), used(&engine, "two")), ((3, 5), (0, 2)));
    let job = submit_job(&mut engine, bag("job", 2), "two");
    wait(&mut engine);
    assert_eq!(counts(&mut engine, job, TaskState::Pending), 2);
    check_jobs(&mut engine);
    remove(&mut engine, first.id);
    wait(&mut engine);
    assert_eq!(counts(&mut engine, job, TaskState::Bound), 2);
    assert!(refused(&mut engine, in_queue("one", 1, 2)).is_cap_on_allocations());
    shrink_fails_below_the_minimum(&mut engine, second.id);
    check_jobs(&mut engine);
}

fn shrink_fails_below_the_minimum(engine: &mut Engine, id: GroupId) {
    let before = used(engine, "few");
    let shrunk = plan(engine, PlanJob::ShrinkGroup(id, vec![0]));
    assert!(matches!(shrunk, PlanReply::Status(Err(PlanRejection::BelowMinimum(_)))), "{shrunk:?}");
    assert_eq!(used(engine, "few"), before);
}

#[test]
fn what_is_wrong_is_refused_and_charges_nothing() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 2, 16, 0);
    let [one, two] = [TenantId(1), TenantId(2)];
    set_queue(&mut engine, QueueSpec { open: false, ..QueueSpec::new("closed") });
    set_queue(&mut engine, QueueSpec { tenant: Some(one), ..QueueSpec::new("of-one") });
    let spec = Box::new(QueueSpec::new("below"));
    ask_jobs(&mut engine, JobsRequest::SetQueue { spec, parent: Some(named("all")) }).expect("a queue");
    let of = |queue: &str, tenant| {
        let request = PlacementRequest { tenant, ..cores(1) };
        GroupSpec { queue: Some(named(queue)), ..group_of(request, 2, Strategy::Pack) }
    };
    for (queue, why) in [
        ("missing", NotCharged::UnknownQueue(named("missing"))),
        ("closed", NotCharged::ClosedQueue(named("closed"))),
        ("of-one", NotCharged::ForeignQueue(named("of-one"))),
        ("all", NotCharged::InnerQueue(named("all"))),
    ] {
        assert_eq!(refused(&mut engine, of(queue, two)), why);
    }
    let bound = |queue: &str| {
        Some(Arc::new(Binding::Tenant(TenantQueue { tenant: "two".into(), queue: queue.into() })))
    };
    let outside = refused(&mut engine, GroupSpec { bound: bound("closed"), ..of("below", two) });
    assert!(matches!(&outside, NotCharged::Binding(BindingError::Outside { .. })), "{outside:?}");
    assert_eq!((live_allocations(&mut engine), list(&mut engine)), (0, vec![]));
    let group = created(&mut engine, GroupSpec { bound: bound("all"), ..of("below", two) });
    assert_eq!((group.spec.bound.clone(), group.id.tenant), (None, two), "the binding is not kept");
    created(&mut engine, of("of-one", one));
    // What does not fit is refused as other groups are, and charges nothing.
    let large = create(&mut engine, in_queue("below", 17, 1));
    assert!(matches!(&large, Err(NoGroup::Refused(refusal)) if refusal.infeasible), "{large:?}");
    let many = create(&mut engine, in_queue("below", 16, 2));
    assert!(matches!(&many, Err(NoGroup::Refused(refusal)) if !refusal.infeasible), "{many:?}");
    assert_eq!((used(&engine, "below"), used(&engine, "of-one")), ((2, 2), (2, 2)));
    check_jobs(&mut engine);
}

#[test]
fn a_group_waits_for_the_cap_and_for_nodes() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 2, 8, 0);
    set_queue(&mut engine, QueueSpec { capability: cpu(10), ..QueueSpec::new("small") });
    let held = place_in(&mut engine, "small", cores(5)).expect("the cap is 10");
    let replies = ask_to_wait(&mut engine, in_queue("small", 3, 2), 1_000_000_000_000);
    assert!(replies.is_empty(), "{replies:?}");
    let id = list(&mut engine)[0];
    assert_eq!((status(&mut engine, id).state, used(&engine, "small")), (GroupState::Waiting, (5, 1)));
    let told = explained(&mut engine, id);
    assert_eq!(told.waits_for, WaitsFor::Queue);
    assert!(told.found.as_ref().is_some_and(|found| found.contains("cap of queue `small`")), "{told:?}");
    let gone = ask_jobs(&mut engine, JobsRequest::RemoveQueue(named("small"))).map(drop);
    let has = QueueContents { jobs: 0, direct: 1, groups: 1 };
    assert_eq!(gone, Err(JobsRejection::Queue(QueueError::InUse { queue: named("small"), has })));
    // A node that comes is no reason, and a cap that is raised is one.
    let node = add_node(&mut engine, node_spec("more", 8, 0));
    set_queue(&mut engine, QueueSpec { capability: cpu(9), ..QueueSpec::new("small") });
    assert_eq!(status(&mut engine, id).state, GroupState::Waiting);
    let job = JobsRequest::SetQueue {
        spec: Box::new(QueueSpec { capability: cpu(11), ..QueueSpec::new("small") }),
        parent: None,
    };
    let replies = ask_and_wait(&mut engine, PortRequest::Plan(PlanJob::Jobs(Box::new(job))));
    assert_eq!(replies.len(), 2, "the group is placed: {replies:?}");
    assert_eq!(used(&engine, "small"), (11, 3));
    check_jobs(&mut engine);
    // Now the cap allows it, and no node has room.
    set_queue(&mut engine, QueueSpec::new("small"));
    remove_node(&mut engine, &node);
    wait(&mut engine);
    let replies = ask_to_wait(&mut engine, in_queue("small", 8, 2), 1_000_000_000_000);
    assert!(replies.is_empty(), "{replies:?}");
    let replies = ask_meanwhile(&mut engine, PortRequest::Plan(PlanJob::RemoveGroup(id)));
    assert_eq!(replies.len(), 1, "a placement is in the way: {replies:?}");
    let replies = ask_and_wait(&mut engine, PortRequest::Release(held.allocation));
    assert_eq!(replies.len(), 2, "{replies:?}");
    assert_eq!(used(&engine, "small"), (16, 2));
    check_jobs(&mut engine);
}

#[test]
fn a_wait_for_the_cap_ends_with_its_deadline_its_cancel_and_its_removal() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 2, 8, 0);
    set_queue(&mut engine, QueueSpec { capability: cpu(4), ..QueueSpec::new("small") });
    let none = ask_to_wait(&mut engine, in_queue("small", 3, 2), 5_000_000_000);
    assert!(none.is_empty(), "{none:?}");
    engine.now = engine.now.plus_nanos(5_000_000_000);
    let late = group_of_reply(&settle(&mut engine));
    assert!(
        matches!(&late, Err(NoGroup::NotCharged(of)) if matches!(**of, NotCharged::Cap { .. })),
        "{late:?}"
    );
    for is_cancelled in [true, false] {
        let none = ask_to_wait(&mut engine, in_queue("small", 3, 2), 5_000_000_000);
        assert!(none.is_empty(), "{none:?}");
        let id = list(&mut engine)[0];
        if is_cancelled {
            engine.ports[0].cancel_plan(7);
            assert!(matches!(group_of_reply(&settle(&mut engine)), Err(NoGroup::Cancelled)));
        } else {
            let replies = ask_meanwhile(&mut engine, PortRequest::Plan(PlanJob::RemoveGroup(id)));
            assert_eq!(replies.len(), 2, "both are answered: {replies:?}");
        }
        assert_eq!((list(&mut engine), used(&engine, "small")), (vec![], (0, 0)));
    }
    ask_jobs(&mut engine, JobsRequest::RemoveQueue(named("small"))).expect("nothing is in it");
    check_jobs(&mut engine);
}

/// The bundle of a lost node is placed again although the cap is full: its charge goes with it.
#[test]
fn lost_bundles_are_placed_again_under_their_charge() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    let lost = add_agent_node(&mut engine, node_spec("lost", 16, 0));
    set_queue(&mut engine, QueueSpec { capability: cpu(8), ..QueueSpec::new("small") });
    let group = created(&mut engine, in_queue("small", 4, 2));
    assert_eq!(used(&engine, "small"), (8, 2));
    life(&mut engine, lost, LifeEvent::Lose);
    wait(&mut engine);
    // Its work may still run, so it counts.
    assert_eq!((places(&status(&mut engine, group.id)).len(), used(&engine, "small")), (0, (8, 2)));
    assert!(matches!(place_in(&mut engine, "small", cores(1)), Err(NotCharged::Cap { .. })));
    check_jobs(&mut engine);
    // A start finds the charges of lost bundles, too.
    let state = export_all(&mut engine);
    let mut engine = open_with(state, &jobs_config(3, CycleConfig::default()));
    settle(&mut engine);
    assert_eq!((places(&status(&mut engine, group.id)).len(), used(&engine, "small")), (0, (8, 2)));
    check_jobs(&mut engine);
    let other = add_node(&mut engine, node_spec("other", 16, 0));
    settle(&mut engine);
    let again = places(&status(&mut engine, group.id));
    assert!(again.len() == 2 && again.iter().all(|&(_, node, _)| node == other.id), "{again:?}");
    assert_eq!(used(&engine, "small"), (8, 2));
    check_jobs(&mut engine);
    // A node that is removed ends the charge. What comes first then has the room in the cap.
    remove_node(&mut engine, &other);
    wait(&mut engine);
    assert_eq!(used(&engine, "small"), (0, 0));
    check_jobs(&mut engine);
}

/// What others have evicted with grace is charged until it has ended, also if its group is gone. A start ends it.
#[test]
fn what_is_in_its_grace_period_is_charged_until_it_ends() {
    let config = EngineConfig { planners: 1, ..jobs_config(2, CycleConfig::default()) };
    let mut engine = open_with(wharf_core::state::StoreState::create(8), &config);
    set_queue(&mut engine, QueueSpec { capability: cpu(8), ..QueueSpec::new("small") });
    with_nodes(&mut engine, 2, 16, 0);
    let group = created(&mut engine, in_queue("small", 4, 2));
    let (_, _, allocation) = places(&group)[0];
    let grace_ns = 1_000_000_000_000;
    let evict = Operation::Evict(Evict { allocation, expected: None, grace_ns });
    submit(&mut engine, vec![evict], ConflictDetection::Fine, CommitMode::AllOrNothing);
    remove(&mut engine, group.id);
    wait(&mut engine);
    assert_eq!((used(&engine, "small"), live_allocations(&mut engine)), ((4, 1), 1));
    check_jobs(&mut engine);
    assert!(matches!(refused(&mut engine, in_queue("small", 5, 1)), NotCharged::Cap { .. }));
    let small = created(&mut engine, in_queue("small", 4, 1));
    wait_ns(&mut engine, grace_ns);
    wait(&mut engine);
    assert_eq!(used(&engine, "small"), (4, 1));
    remove(&mut engine, small.id);
    check_jobs(&mut engine);
}

/// Nobody would be charged after a crash for what is in its grace period and has no group. So it ends.
#[test]
fn a_start_ends_what_is_in_its_grace_period_and_has_no_group() {
    let config = EngineConfig { planners: 1, journal: true, ..jobs_config(2, CycleConfig::default()) };
    let mut work = Journaled::with(&config);
    with_nodes(&mut work.engine, 2, 16, 0);
    let group = created(&mut work.engine, in_queue("all", 4, 2));
    let (_, _, allocation) = places(&group)[0];
    let evict = Operation::Evict(Evict { allocation, expected: None, grace_ns: 1_000_000_000_000 });
    submit(&mut work.engine, vec![evict], ConflictDetection::Fine, CommitMode::AllOrNothing);
    for is_there in [true, false] {
        work.collect();
        let mut engine = open_with(after_a_crash(&work.units), &jobs_config(1, CycleConfig::default()));
        settle(&mut engine);
        check_jobs(&mut engine);
        assert_eq!(live_allocations(&mut engine), if is_there { 2 } else { 0 });
        if is_there {
            remove(&mut work.engine, group.id);
            wait(&mut work.engine);
            assert_eq!(live_allocations(&mut work.engine), 1);
        }
    }
}

/// Groups, placements and a cycle in one round: the cap holds, and all are answered.
#[test]
fn a_crowd_of_all_kinds_gets_what_the_cap_allows() {
    let mut engine = jobs_engine(4, CycleConfig::default());
    with_nodes(&mut engine, 8, 16, 0);
    set_queue(&mut engine, QueueSpec { capability: cpu(50), ..QueueSpec::new("small") });
    submit_job(&mut engine, bag("job", 30), "small");
    for tag in 0..60 {
        let job = if tag % 2 == 0 {
            PlanJob::CreateGroup(Arc::new(in_queue("small", 1, 3)))
        } else {
            let queue = named("small");
            let bound = None;
            let wait = None;
            PlanJob::Place(Box::new(wharf_core::jobs::DirectPlacement {
                request: cores(1),
                queue,
                bound,
                wait,
            }))
        };
        engine.ports[0].submit(tag, PortRequest::Plan(job), engine.now).expect("room");
    }
    let answers = settle(&mut engine);
    assert_eq!(answers.len(), 60);
    check_jobs(&mut engine);
    wait(&mut engine);
    assert!(used(&engine, "small").0 >= 48, "{:?}", used(&engine, "small"));
    check_jobs(&mut engine);
}

#[test]
fn groups_survive_a_start_with_their_charges_and_without_a_keeper_they_are_kept() {
    let mut engine = jobs_engine(3, CycleConfig::default());
    with_nodes(&mut engine, 3, 16, 0);
    set_queue(&mut engine, QueueSpec { capability: cpu(9), ..QueueSpec::new("small") });
    let group = created(&mut engine, GroupSpec { min_members: 2, ..in_queue("small", 2, 5) });
    assert_eq!(used(&engine, "small"), (8, 4));
    let state = export_all(&mut engine);
    state.check().expect("it is whole");
    // Nobody keeps jobs: what is there stays, and is stored again.
    let without = EngineConfig { planners: 2, jobs: None, ..jobs_config(2, CycleConfig::default()) };
    let idle = open_with(state.clone(), &without);
    assert_eq!((idle.groups.len(), idle.jobs == state.jobs), (1, true));
    let config = EngineConfig { planners: 2, ..jobs_config(2, CycleConfig::default()) };
    let mut engine = open_with(state, &config);
    wait(&mut engine);
    assert_eq!(status(&mut engine, group.id).spec.queue, Some(named("small")));
    assert_eq!(used(&engine, "small"), (8, 4));
    check_jobs(&mut engine);
    shrink(&mut engine, group.id, &[0]);
    wait(&mut engine);
    assert_eq!(used(&engine, "small"), (8, 4), "the one that was passed over has the room");
    let next = created(&mut engine, in_queue("small", 1, 1));
    assert!(next.id != group.id && next.id.is_in_queue());
    let unbound = created(&mut engine, group_of(cores(1), 1, Strategy::Pack));
    assert!(!unbound.id.is_in_queue());
    let mut all = [group.id, next.id, unbound.id];
    all.sort_unstable();
    assert_eq!(list(&mut engine), all);
    check_jobs(&mut engine);
}

/// A crash after any unit of the journal: what is charged is what the books have, a group is there with the outcome of its
/// request, and no cap is exceeded then or later.
#[test]
fn no_crash_leaves_a_bundle_without_a_charge_or_the_other_way_round() {
    let mut work = Journaled::new(2, CycleConfig::default());
    with_nodes(&mut work.engine, 4, 4, 0);
    set_queue(&mut work.engine, QueueSpec { capability: cpu(9), ..QueueSpec::new("small") });
    submit_job(&mut work.engine, bag("job", 2), "small");
    wait(&mut work.engine);
    let start = work.collect();
    // Over both shards, so that its statement is decided.
    let spec = GroupSpec { strategy: Strategy::StrictSpread, ..in_queue("small", 2, 3) };
    let request = PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec)));
    work.engine.ports[0].submit_for(Some(ORIGIN), 3, request, work.engine.now).expect("room");
    let id = group_of_reply(&settle(&mut work.engine)).expect("it fits").id;
    assert_eq!(used(&work.engine, "small"), (8, 5));
    grow(&mut work.engine, id, 1, 1).expect("it fits");
    let (_, _, allocation) = places(&status(&mut work.engine, id))[0];
    ask(&mut work.engine, PortRequest::Release(allocation));
    settle(&mut work.engine);
    shrink(&mut work.engine, id, &[3]);
    place_in(&mut work.engine, "small", cores(1)).expect("the cap is 9");
    remove(&mut work.engine, id);
    wait(&mut work.engine);
    check_jobs(&mut work.engine);
    assert_eq!(used(&work.engine, "small"), (3, 3));
    let mut found = BTreeSet::new();
    for crash in start..=work.collect() {
        let units = &work.units[..crash];
        let done = units.iter().flat_map(|unit| &unit.done);
        let of_request = done.filter(|done| done.origin.session == ORIGIN.session);
        let is_done = of_request.filter(|done| matches!(done.deed, Deed::GroupChanged(_))).count() == 1;
        let mut engine = open_with(after_a_crash(units), &jobs_config(1, CycleConfig::default()));
        // The books and the charges are compared below: a bundle that had ended before is being placed again now.
        let groups = list(&mut engine);
        let is_there = groups == [id];
        assert!(is_there || groups.is_empty());
        assert!(is_done || !is_there, "unit {crash}: a group that nobody was told of");
        settle(&mut engine);
        check_jobs(&mut engine);
        wait(&mut engine);
        check_jobs(&mut engine);
        if is_there {
            assert!(places(&status(&mut engine, id)).len() >= 3, "unit {crash}");
        }
        let (cores, _) = used(&engine, "small");
        let refused = create(&mut engine, in_queue("small", u32::try_from(10 - cores).unwrap(), 1));
        assert!(matches!(refused, Err(NoGroup::NotCharged(_))), "unit {crash}: {refused:?}");
        found.insert((is_done, is_there));
    }
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [(false, false), (true, false), (true, true)]);
}

/// One bundle has no node, and the other is passed over for the cap: the cap alone keeps the group from its place.
#[test]
fn a_bundle_that_was_passed_over_is_placed_when_the_cap_allows_it() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    with_nodes(&mut engine, 1, 16, 1);
    set_queue(&mut engine, QueueSpec { capability: cpu(4), ..QueueSpec::new("small") });
    let with_gpu = |count| {
        let request = cores(count);
        let demand = Demand { gpu: GpuRequest::Whole(1), ..request.demand.clone() };
        PlacementRequest { demand, ..request }
    };
    ask(&mut engine, PortRequest::Place(with_gpu(1)));
    let bundles = vec![Arc::new(with_gpu(4)), Arc::new(cores(1))];
    let spec = GroupSpec { bundles, min_members: 1, ..in_queue("small", 1, 2) };
    let replies = ask_to_wait(&mut engine, spec, 1_000_000_000_000);
    assert!(replies.is_empty(), "{replies:?}");
    let id = list(&mut engine)[0];
    assert_eq!((status(&mut engine, id).state, used(&engine, "small")), (GroupState::Waiting, (0, 0)));
    // The cap allows what it needs: what is in the way is the node.
    let told = explained(&mut engine, id);
    assert_ne!(told.waits_for, WaitsFor::Queue);
    let raised = JobsRequest::SetQueue {
        spec: Box::new(QueueSpec { capability: cpu(5), ..QueueSpec::new("small") }),
        parent: None,
    };
    let replies = ask_and_wait(&mut engine, PortRequest::Plan(PlanJob::Jobs(Box::new(raised))));
    assert_eq!(replies.len(), 2, "the group is placed: {replies:?}");
    assert_eq!(used(&engine, "small"), (1, 1));
    check_jobs(&mut engine);
}
