//! Jobs of planners: whose turn it is, what a job may name, and how many are begun at once.

use std::sync::Arc;
use std::task::Waker;

use crate::by_hand::{ManualClock, add_node, ask, check_all, config, cores, node_spec, settle};
use crate::group_bed::{
    create, engine, group_of, labelled, live_allocations, nodes_of, places, plan, same, status, submit,
    with_nodes,
};
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{ShardRunner, Unobserved};
use wharf_core::group::{
    ClientKey, GroupRefusalReason, GroupSpec, GroupView, NoGroup, PlanJob, PlanRejection, PlanReply,
    Spreading, Strategy, Submit, TopologyRule,
};
use wharf_core::ids::{AllocationId, GroupId, NodeId, PartitionId, TenantId};
use wharf_core::limits::{PLANNER_FLIGHTS_MAX, PORT_IN_FLIGHT_MAX, STATEMENT_OPERATIONS_MAX};
use wharf_core::link::Clock;
use wharf_core::planner::PlannerBudget;
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::router::{PortReply, PortRequest, Tag};
use wharf_core::state::StoreState;
use wharf_core::statement::{
    Allocate, CommitMode, ConflictDetection, ConflictReason, Evict, Granted, Operation,
};
use wharf_core::time::Time;

fn waiting(spec: GroupSpec) -> GroupSpec {
    GroupSpec { wait_until: Some(Time(u64::MAX)), ..spec }
}

fn submit_for(engine: &mut Engine, tag: Tag, client: u64, spec: GroupSpec) {
    let client = ClientKey::of_operator(client);
    let job = PortRequest::PlanFor(client, PlanJob::CreateGroup(Arc::new(spec)), Time::NEVER);
    engine.ports[0].submit(tag, job, engine.now).expect("room");
    engine.ports[0].flush();
}

fn placed(replies: &[(Tag, PortReply)]) -> Vec<Tag> {
    let is_placed = |reply: &PortReply| matches!(reply, PortReply::Plan(reply) if matches!(**reply, PlanReply::Group(Ok(_))));
    let mut tags: Vec<Tag> =
        replies.iter().filter(|(_, reply)| is_placed(reply)).map(|&(tag, _)| tag).collect();
    tags.sort_unstable();
    tags
}

/// The first client asks for most groups, and the third one for one of higher priority, last of all.
#[test]
fn waiting_groups_are_tried_by_priority_and_then_each_client_in_turn() {
    for (cores_freed, expected) in
        [(4, vec![31]), (8, vec![11, 31]), (12, vec![11, 21, 31]), (16, vec![11, 12, 21, 31])]
    {
        let mut engine = engine(1, 1);
        with_nodes(&mut engine, 1, 16, 0);
        let kept = ask(&mut engine, PortRequest::Place(cores(16 - cores_freed)));
        assert!(matches!(kept, PortReply::Place(Ok(_))), "{kept:?}");
        let PortReply::Place(Ok(freed)) = ask(&mut engine, PortRequest::Place(cores(cores_freed))) else {
            panic!("there is room")
        };
        for (tag, client, priority) in [(11, 1, 0), (12, 1, 0), (13, 1, 0), (21, 2, 0), (31, 3, 1)] {
            let spec = GroupSpec { priority, ..waiting(group_of(cores(4), 1, Strategy::Pack)) };
            submit_for(&mut engine, tag, client, spec);
            assert!(settle(&mut engine).is_empty(), "all is full");
        }
        engine.ports[0].submit(1, PortRequest::Release(freed.allocation), engine.now).expect("room");
        let replies = settle(&mut engine);
        assert_eq!(placed(&replies), expected, "{cores_freed} cores are freed");
        check_all(&engine);
    }
}

/// The first tenant asks by many clients, the second one by one.
#[test]
fn waiting_groups_are_tried_for_each_tenant_in_turn() {
    for (cores_freed, expected) in [(8, vec![11, 21]), (16, vec![11, 12, 21, 22])] {
        let mut engine = engine(1, 1);
        with_nodes(&mut engine, 1, 16, 0);
        assert!(matches!(ask(&mut engine, PortRequest::Place(cores(16 - cores_freed))), PortReply::Place(_)));
        let PortReply::Place(Ok(freed)) = ask(&mut engine, PortRequest::Place(cores(cores_freed))) else {
            panic!("there is room")
        };
        for (tag, number, tenant) in [(11, 1, 1), (12, 2, 1), (13, 3, 1), (21, 4, 2), (22, 4, 2)] {
            let tenant = TenantId(tenant);
            let request = PlacementRequest { tenant, ..cores(4) };
            let job = PlanJob::CreateGroup(Arc::new(waiting(group_of(request, 1, Strategy::Pack))));
            let job = PortRequest::PlanFor(ClientKey { tenant, number }, job, Time::NEVER);
            engine.ports[0].submit(tag, job, engine.now).expect("room");
            assert!(settle(&mut engine).is_empty(), "all is full");
        }
        engine.ports[0].submit(1, PortRequest::Release(freed.allocation), engine.now).expect("room");
        let replies = settle(&mut engine);
        assert_eq!(placed(&replies), expected, "{cores_freed} cores are freed");
        check_all(&engine);
    }
}

#[test]
fn no_more_statements_are_begun_than_may_be_in_flight() {
    let mut engine = engine(1, 1);
    let most = PLANNER_FLIGHTS_MAX as u64;
    with_nodes(&mut engine, 2, most as u32, 0);
    let spec = group_of(cores(1), 1, Strategy::Pack);
    for tag in 0..most + 10 {
        submit_for(&mut engine, tag, 1, spec.clone());
    }
    let unknown = GroupId { incarnation: engine.incarnation, number: 99_999, tenant: TenantId::OPERATOR };
    let look = PortRequest::PlanFor(ClientKey::of_operator(2), PlanJob::GroupStatus(unknown), Time::NEVER);
    engine.ports[0].submit(1 << 20, look, engine.now).expect("room");
    engine.ports[0].flush();
    let clock = ManualClock::new(engine.now);
    for _ in 0..3 {
        engine.planners[0].run_round(&clock);
        assert_eq!(engine.planners[0].planner().metrics().statements, most, "no answer came");
    }
    let mut replies = Vec::new();
    engine.ports[0].poll(engine.now, |tag, reply| replies.push((tag, reply)));
    let answered: Vec<Tag> = replies.iter().map(|&(tag, _)| tag).collect();
    assert_eq!(answered, [1 << 20], "a job that begins no statement does not wait");
    engine.runners[0].run_batch(&clock, &mut Unobserved);
    engine.now = clock.now();
    assert_eq!(placed(&settle(&mut engine)).len() as u64, most + 10);
    assert_eq!(live_allocations(&mut engine), most + 10);
}

/// With as many statements as may be in flight, each over all shards, there are more commands than the planner's
/// port has room for. The rest is sent as answers arrive.
#[test]
fn statements_over_many_shards_wait_for_room_at_the_port() {
    let shards = 16;
    let config = EngineConfig { planners: 1, ..config(shards) };
    let wakers = vec![Waker::noop().clone()];
    let mut engine = Engine::open(StoreState::create(64), &config, wakers).expect("numbers in range");
    let statements = PLANNER_FLIGHTS_MAX as u64;
    // The names decide the partitions, so every shard has some of these.
    let nodes = with_nodes(&mut engine, 64, statements as u32, 0);
    assert!(PLANNER_FLIGHTS_MAX * usize::from(shards) > PORT_IN_FLIGHT_MAX);
    for tag in 0..statements {
        let operations = nodes.iter().map(|&node| allocate(node, 1)).collect();
        let conflict_detection = ConflictDetection::Fine;
        let mode = CommitMode::AllOrNothing;
        let job = PlanJob::Submit(Box::new(Submit { operations, conflict_detection, mode }));
        engine.ports[0].submit(tag, PortRequest::Plan(job), engine.now).expect("room");
    }
    let replies = settle(&mut engine);
    let is_done = |reply: &PortReply| match reply {
        PortReply::Plan(reply) => {
            matches!(&**reply, PlanReply::Statement(Ok(report)) if report.conflicts.is_empty())
        }
        _ => false,
    };
    assert_eq!(replies.iter().filter(|(_, reply)| is_done(reply)).count() as u64, statements);
    assert_eq!(live_allocations(&mut engine), statements * nodes.len() as u64);
    check_all(&engine);
}

#[test]
fn groups_are_listed_in_pages() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 1, 16, 0);
    let spec = group_of(cores(1), 2, Strategy::Pack);
    let ids: Vec<GroupId> = (0..5).map(|_| create(&mut engine, spec.clone()).expect("it fits").id).collect();
    assert!(ids.is_sorted() && ids.windows(2).all(|pair| pair[0] != pair[1]));
    let mut page = |after, limit| {
        let reply = plan(&mut engine, PlanJob::ListGroups(after, None, limit));
        let PlanReply::Groups(groups) = reply else { panic!("a list: {reply:?}") };
        assert!(groups.iter().all(|group| places(group).len() == 2));
        groups.iter().map(|group| group.id).collect::<Vec<_>>()
    };
    assert_eq!(page(None, 2), ids[..2]);
    assert_eq!(page(Some(ids[1]), 2), ids[2..4]);
    assert_eq!(page(Some(ids[3]), 9), ids[4..]);
    assert_eq!(page(Some(ids[4]), 9), []);
    assert_eq!(page(None, 0), []);
}

/// Groups of three tenants are created in turns. Each tenant has pages of its own groups.
#[test]
fn the_groups_of_a_tenant_are_listed_alone() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 1, 16, 0);
    let mut ids = Vec::new();
    for number in 0..9 {
        let tenant = TenantId(number % 3);
        let request = PlacementRequest { tenant, ..cores(1) };
        let group = create(&mut engine, group_of(request, 1, Strategy::Pack)).expect("it fits");
        assert_eq!(group.id.tenant, tenant);
        assert!(places(&group).iter().all(|(_, _, allocation)| allocation.tenant == tenant), "{group:?}");
        ids.push(group.id);
    }
    let mut page = |after, tenant, limit| {
        let reply = plan(&mut engine, PlanJob::ListGroups(after, Some(TenantId(tenant)), limit));
        let PlanReply::Groups(groups) = reply else { panic!("a list: {reply:?}") };
        groups.iter().map(|group| group.id).collect::<Vec<_>>()
    };
    assert_eq!(page(None, 1, 9), [ids[1], ids[4], ids[7]]);
    assert_eq!(page(None, 2, 2), [ids[2], ids[5]]);
    assert_eq!(page(Some(ids[5]), 2, 2), [ids[8]]);
    assert_eq!(page(Some(ids[8]), 2, 2), []);
    // An id of another tenant is no place in the list: it begins with the tenant's first group, or is at its end.
    assert_eq!(page(Some(ids[0]), 2, 9), [ids[2], ids[5], ids[8]]);
    assert_eq!(page(Some(ids[8]), 1, 9), []);
    assert_eq!(page(None, 3, 9), []);
}

fn allocate(node: NodeId, cpu: u32) -> Operation {
    let demand = Demand { cpu: Amount::whole(cpu), ..Demand::default() };
    Operation::Allocate(Allocate {
        node,
        expected: None,
        demand,
        gpus: None,
        owner: None,
        bundle: None,
        tenant: TenantId::OPERATOR,
        lease: None,
    })
}

#[test]
fn what_names_nothing_is_a_conflict_of_its_own_in_an_incremental_statement() {
    let mut engine = engine(2, 1);
    let nodes = with_nodes(&mut engine, 4, 4, 0);
    let nowhere = AllocationId {
        incarnation: engine.incarnation,
        partition: PartitionId(4000),
        sequence: 1,
        tenant: TenantId::OPERATOR,
    };
    let evict = Operation::Evict(Evict { allocation: nowhere, expected: None, grace_ns: 0 });
    let unknown = NodeId(999);
    let operations = |known: &[NodeId]| {
        let known = known.iter().map(|&node| allocate(node, 1));
        [allocate(unknown, 1), evict.clone()].into_iter().chain(known).collect::<Vec<_>>()
    };
    for known in [&nodes[..], &[]] {
        let reply = submit(&mut engine, operations(known), ConflictDetection::Fine, CommitMode::Incremental);
        let PlanReply::Statement(Ok(report)) = reply else { panic!("a statement: {reply:?}") };
        let conflicts: Vec<_> =
            report.conflicts.iter().map(|of| (of.operation, of.node, of.reason)).collect();
        let expected = [
            (0, Some(unknown), ConflictReason::UnknownNode),
            (1, None, ConflictReason::UnknownAllocation(nowhere)),
        ];
        assert_eq!(conflicts, expected);
        let mut granted: Vec<(u16, NodeId)> = Vec::new();
        for (at, granted_to) in report.applied.iter().flat_map(|applied| &applied.granted) {
            let Granted::Allocated(placement) = granted_to else { panic!("allocated: {granted_to:?}") };
            granted.push((*at, placement.node));
        }
        granted.sort_unstable();
        assert!(granted.into_iter().eq((2..).zip(known.iter().copied())), "{report:?}");
    }
    let mut all =
        |operations| submit(&mut engine, operations, ConflictDetection::Fine, CommitMode::AllOrNothing);
    let reply = all(vec![allocate(nodes[0], 1), evict.clone()]);
    let expected = PlanRejection::UnknownAllocation { operation: 1, allocation: nowhere };
    assert!(matches!(&reply, PlanReply::Statement(Err(rejection)) if *rejection == expected), "{reply:?}");
    for count in [0, STATEMENT_OPERATIONS_MAX + 1] {
        let reply = all(vec![allocate(nodes[0], 0); count]);
        let expected = PlanRejection::Operations(count);
        assert!(
            matches!(&reply, PlanReply::Statement(Err(rejection)) if *rejection == expected),
            "{reply:?}"
        );
    }
    let reply = all(vec![allocate(nodes[0], 0); STATEMENT_OPERATIONS_MAX]);
    assert!(matches!(reply, PlanReply::Statement(Ok(_))), "as many as a statement may have");
    assert_eq!(live_allocations(&mut engine), 4);
}

/// Each port gets its own answers, and is woken for them: `settle` fails if one sleeps through an answer.
#[test]
fn every_port_is_woken_for_its_own_answers() {
    let config = EngineConfig { planners: 2, ..config(2) };
    let wakers = vec![Waker::noop().clone(); 4];
    let mut engine = Engine::open(StoreState::create(8), &config, wakers).expect("numbers in range");
    with_nodes(&mut engine, 4, 4, 0);
    settle(&mut engine);
    for port in [2, 0, 3, 1] {
        let tag = 100 + port as Tag;
        let job = PlanJob::CreateGroup(Arc::new(group_of(cores(2), 2, Strategy::StrictSpread)));
        engine.ports[port].submit(tag, PortRequest::Plan(job), engine.now).expect("room");
        assert_eq!(placed(&settle(&mut engine)), [tag]);
    }
    // All is full, so these wait. Only the port that asked is told that its wait has ended.
    for port in [1, 3, 0, 2] {
        let tag = 200 + port as Tag;
        let job = PlanJob::CreateGroup(Arc::new(waiting(group_of(cores(2), 2, Strategy::StrictSpread))));
        engine.ports[port].submit(tag, PortRequest::Plan(job), engine.now).expect("room");
        assert!(settle(&mut engine).is_empty(), "all is full");
        engine.ports[port].cancel_plan(tag);
        let replies = settle(&mut engine);
        let [(answered, PortReply::Plan(reply))] = &replies[..] else { panic!("one: {replies:?}") };
        assert!(
            *answered == tag && matches!(**reply, PlanReply::Group(Err(NoGroup::Cancelled))),
            "{reply:?}"
        );
        assert!(engine.ports.iter().all(|port| port.pending() == 0));
    }
    // A cancel that comes after the answer is taken, and that is all.
    for port in [3, 0, 2, 1] {
        let tag = 300 + port as Tag;
        let job = PlanJob::CreateGroup(Arc::new(group_of(cores(9), 1, Strategy::Pack)));
        engine.ports[port].submit(tag, PortRequest::Plan(job), engine.now).expect("room");
        engine.ports[port].flush();
        let clock = ManualClock::new(engine.now);
        engine.planners.iter_mut().for_each(|planner| assert!(planner.run_round(&clock) <= 2));
        engine.ports[port].cancel_plan(tag);
        let replies = settle(&mut engine);
        let [(answered, PortReply::Plan(reply))] = &replies[..] else { panic!("one: {replies:?}") };
        assert!(
            *answered == tag && matches!(**reply, PlanReply::Group(Err(NoGroup::Refused(_)))),
            "{reply:?}"
        );
        assert!(engine.ports.iter().all(|port| port.pending() == 0));
    }
    check_all(&engine);
}

fn refused(engine: &mut Engine, group: &GroupView, count: usize, cpu: u32) -> (bool, GroupRefusalReason) {
    match plan(engine, PlanJob::GrowGroup(group.id, same(cores(cpu), count), None)) {
        PlanReply::Group(Err(NoGroup::Refused(refusal))) => (refusal.infeasible, refusal.reason),
        other => panic!("it does not fit: {other:?}"),
    }
}

#[test]
fn a_refused_growth_counts_the_bundles_that_are_placed() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 2, 16, 0);
    let pack = create(&mut engine, group_of(cores(3), 2, Strategy::StrictPack)).expect("it fits");
    // With what others run there, no two more of them fit now.
    let (node, _) = nodes_of(&pack).pop_first().expect("one node");
    let there = PlacementRequest { candidates: Some([node].into()), ..cores(5) };
    assert!(matches!(ask(&mut engine, PortRequest::Place(there)), PortReply::Place(Ok(_))));
    assert_eq!(refused(&mut engine, &pack, 2, 3), (false, GroupRefusalReason::OneNode { bundles: 2 + 2 }));
    assert_eq!(places(&status(&mut engine, pack.id)), places(&pack));
    // Each of three parts leaves less than a device, so of four devices one is whole.
    let gpu = |gpu| PlacementRequest::new(Demand { gpu, ..Demand::default() }, Policy::BestFit);
    add_node(&mut engine, node_spec("devices", 1, 4));
    let parts = group_of(gpu(GpuRequest::Fraction(6000)), 3, Strategy::StrictPack);
    let parts = create(&mut engine, parts).expect("it fits");
    let grow = PlanJob::GrowGroup(parts.id, same(gpu(GpuRequest::Whole(1)), 2), None);
    let PlanReply::Group(Err(NoGroup::Refused(refusal))) = plan(&mut engine, grow) else {
        panic!("one is whole")
    };
    assert_eq!((refusal.infeasible, refusal.reason), (true, GroupRefusalReason::OneNode { bundles: 2 + 3 }));
    // All nodes are used by the group itself.
    let apart = create(&mut engine, group_of(cores(1), 3, Strategy::StrictSpread)).expect("it fits");
    let (infeasible, reason) = refused(&mut engine, &apart, 1, 1);
    assert!(
        infeasible && matches!(reason, GroupRefusalReason::Bundle { bundle: 3, placed: 0, .. }),
        "{reason:?}"
    );
    check_all(&engine);
}

#[test]
fn a_refused_growth_over_zones_says_what_the_smallest_zone_holds() {
    let mut engine = engine(1, 1);
    for (name, cpu, zone) in [("a", 4, "a"), ("b", 16, "b")] {
        add_node(&mut engine, labelled(name, cpu, zone));
    }
    let key: Arc<str> = "zone".into();
    let topology = Some(TopologyRule { key: Arc::clone(&key), spreading: Spreading::Spread { max_skew: 1 } });
    let spec = GroupSpec { topology, ..group_of(cores(2), 3, Strategy::Pack) };
    let group = create(&mut engine, spec).expect("one and two");
    let (infeasible, reason) = refused(&mut engine, &group, 3, 2);
    let GroupRefusalReason::SkewTooSmall { value, room, most, bundles, .. } = reason else {
        panic!("{reason:?}")
    };
    // Two fit in the small zone and so three in the other one. Three of these five are placed.
    assert_eq!((infeasible, &*value, room, most, bundles), (true, "a", 2, 2, 3));
    let grown = plan(&mut engine, PlanJob::GrowGroup(group.id, same(cores(2), 2), None));
    assert!(matches!(grown, PlanReply::Group(Ok(_))), "{grown:?}");
    check_all(&engine);
}

/// A growth that waits is no part of what a stop keeps. Its indexes are given again.
#[test]
fn a_stop_keeps_a_group_without_the_growth_that_waits() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 4, 4, 0);
    let group = create(&mut engine, group_of(cores(4), 2, Strategy::StrictSpread)).expect("it fits");
    for _ in 0..2 {
        assert!(matches!(ask(&mut engine, PortRequest::Place(cores(4))), PortReply::Place(Ok(_))));
    }
    let grow = PlanJob::GrowGroup(group.id, same(cores(4), 2), Some(Time(u64::MAX)));
    engine.ports[0].submit(9, PortRequest::Plan(grow), engine.now).expect("room");
    assert!(settle(&mut engine).is_empty(), "the other nodes are full");
    let waits = waiting(group_of(cores(4), 1, Strategy::Pack));
    submit_for(&mut engine, 10, 1, waits);
    assert!(settle(&mut engine).is_empty(), "it waits too");
    let records = engine.planners[0].planner().export();
    let [record] = &records[..] else { panic!("a group that was not created is not kept: {records:?}") };
    assert_eq!((record.id, record.next_index), (group.id, 2));
    assert!(record.bundles.iter().map(|bundle| bundle.index).eq(0..2));
}

/// Each of these is left for the planner between a round and its look before it sleeps.
#[test]
fn a_planner_does_not_sleep_while_anything_is_left_for_it() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 1, 4, 0);
    let clock = ManualClock::new(engine.now);
    submit_for(&mut engine, 1, 1, group_of(cores(2), 1, Strategy::Pack));
    assert!(!engine.planners[0].fall_asleep(), "a job");
    engine.planners[0].run_round(&clock);
    engine.runners[0].run_batch(&clock, &mut Unobserved);
    assert!(!engine.planners[0].fall_asleep(), "an answer");
    engine.now = clock.now();
    assert_eq!(placed(&settle(&mut engine)), [1]);
    let PortReply::Place(Ok(direct)) = ask(&mut engine, PortRequest::Place(cores(2))) else { panic!("room") };
    assert!(engine.planners[0].fall_asleep(), "nothing");
    submit_for(&mut engine, 2, 1, waiting(group_of(cores(2), 1, Strategy::Pack)));
    assert!(settle(&mut engine).is_empty(), "all is full");
    assert!(engine.planners[0].fall_asleep(), "a group that waits");
    let clock = ManualClock::new(engine.now);
    engine.ports[0].submit(3, PortRequest::Release(direct.allocation), engine.now).expect("room");
    engine.ports[0].flush();
    engine.runners[0].run_batch(&clock, &mut Unobserved);
    assert!(!engine.planners[0].fall_asleep(), "freed capacity");
    engine.now = clock.now();
    assert_eq!(placed(&settle(&mut engine)), [2]);
    let clock = ManualClock::new(engine.now);
    let budget = engine.planners[0].planner().budget();
    engine.planners[0].set_budget(PlannerBudget { round: 1, ..budget });
    for tag in 10..13 {
        submit_for(&mut engine, tag, 1, group_of(cores(9), 1, Strategy::Pack));
    }
    engine.planners[0].run_round(&clock);
    assert!(!engine.planners[0].fall_asleep(), "jobs of another round");
    engine.now = clock.now();
    assert_eq!(settle(&mut engine).len(), 3);
    assert!(engine.planners[0].fall_asleep(), "nothing again");
    check_all(&engine);
}

/// A statement over two shards is held by one of them, and the other one does not answer. What is held there
/// may be counted twice, so a group without a place is tried again after each answer. It is refused in the end.
#[test]
fn a_group_without_a_place_is_refused_although_a_statement_stays_undecided() {
    let mut engine = engine(2, 1);
    let shard_of = |engine: &Engine, node: NodeId| {
        let has = |runner: &ShardRunner| runner.shard().books().iter().any(|books| books.node == node);
        engine.runners.iter().position(has).expect("a registered node")
    };
    let large = add_node(&mut engine, node_spec("large", 8, 0)).id;
    let holder = shard_of(&engine, large);
    let mut name = 0;
    while (0..).zip(&engine.runners).any(|(at, runner)| at != holder && runner.shard().books().is_empty()) {
        name += 1;
        add_node(&mut engine, node_spec(&format!("small-{name}"), 3, 0));
    }
    let clock = ManualClock::new(engine.now);
    let over_both = group_of(cores(3), engine.runners.len(), Strategy::StrictSpread);
    let spec = GroupSpec { bundles: same(cores(3), name + 1), min_members: name as u32 + 1, ..over_both };
    submit_for(&mut engine, 1, 1, spec);
    engine.planners[0].run_round(&clock);
    engine.runners[holder].run_batch(&clock, &mut Unobserved);
    submit_for(&mut engine, 2, 1, group_of(cores(6), 1, Strategy::Pack));
    let mut refused_in = None;
    for round in 0..20 {
        let job = Submit {
            operations: vec![allocate(large, 0)],
            conflict_detection: ConflictDetection::Fine,
            mode: CommitMode::Incremental,
        };
        let job =
            PortRequest::PlanFor(ClientKey::of_operator(2), PlanJob::Submit(Box::new(job)), Time::NEVER);
        engine.ports[0].submit(100 + round, job, engine.now).expect("room");
        engine.ports[0].flush();
        engine.planners[0].run_round(&clock);
        engine.runners[holder].run_batch(&clock, &mut Unobserved);
        engine.ports[0]
            .poll(engine.now, |tag, _| refused_in = refused_in.or_else(|| (tag == 2).then_some(round)));
    }
    // Several times it may only seem to have no place, and no more often.
    assert_eq!(refused_in, Some(8));
    engine.now = clock.now();
    let replies = settle(&mut engine);
    assert_eq!(placed(&replies), [1], "{replies:?}");
    check_all(&engine);
}

/// The job is answered before the planner takes its cancel. The port falls asleep and keeps the answer until it
/// hears of the cancel.
#[test]
fn a_port_is_woken_for_a_cancel_that_came_too_late() {
    let wakers = vec![Waker::noop().clone(); 3];
    let config = EngineConfig { planners: 1, ..config(1) };
    let mut engine = Engine::open(StoreState::create(8), &config, wakers).expect("numbers in range");
    let clock = ManualClock::new(engine.now);
    for at in [2, 0, 1] {
        let port = &mut engine.ports[at];
        let job = PlanJob::CreateGroup(Arc::new(group_of(cores(9), 1, Strategy::Pack)));
        port.submit(1, PortRequest::Plan(job), engine.now).expect("room");
        port.flush();
        while engine.ports[at].is_idle() {
            engine.planners[0].run_round(&clock);
            for runner in &mut engine.runners {
                runner.run_batch(&clock, &mut Unobserved);
            }
        }
        let mut answers = 0;
        let port = &mut engine.ports[at];
        port.cancel_plan(1);
        port.flush();
        port.poll(engine.now, |_, _| answers += 1);
        assert_eq!(answers, 0, "its cancel is under way");
        let bell = Arc::clone(port.bell());
        assert!(bell.sleep_if(|| port.is_idle()), "port {at} has taken what there is");
        engine.planners[0].run_round(&clock);
        assert!(!bell.is_asleep(), "port {at} is not told that its cancel was taken");
        engine.ports[at].poll(engine.now, |_, _| answers += 1);
        assert_eq!(answers, 1);
    }
}
