//! Tickets: groups are placed despite direct traffic that takes any freed capacity.

use std::sync::Arc;

use crate::by_hand::{ManualClock, add_node, ask, check_all, cores, node_spec, settle};
use crate::group_bed::{
    add_agent_node, ask_meanwhile, create, engine, group_of, hostile_round, labelled, life, live_allocations,
    nodes_of, places, plan, same, status, with_nodes,
};
use wharf_core::engine::Engine;
use wharf_core::executor::Unobserved;
use wharf_core::group::{
    GroupRefusalReason, GroupSpec, GroupState, GroupView, NoGroup, PlanJob, PlanReply, Spreading, Strategy,
    TopologyRule,
};
use wharf_core::ids::{AllocationId, GroupId, NodeId, OwnerId};
use wharf_core::limits::TICKET_NS_DEFAULT;
use wharf_core::node::{LifeEvent, NodeSpec};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::router::{NotPlaced, PortReply, PortRequest};
use wharf_core::shard::{Command, Outcome, ReservationChange, Reserve};
use wharf_core::time::Time;

/// Numbers of shards and planners.
const ENGINES: [(u16, u16); 2] = [(1, 1), (2, 2)];
/// Each round frees a core and takes one.
const ROUNDS: usize = 600;

#[test]
fn a_large_group_comes_to_its_end_among_hostile_traffic_and_does_not_starve_it() {
    for (shards, planners) in [(1, 1), (2, 2)] {
        let mut engine = engine(shards, planners);
        with_nodes(&mut engine, 4, 16, 0);
        let mut live = Vec::new();
        while let PortReply::Place(Ok(placement)) = ask(&mut engine, PortRequest::Place(cores(1))) {
            live.push(placement.allocation);
        }
        assert_eq!(live.len(), 64);
        let spec =
            GroupSpec { wait_until: Some(Time(u64::MAX)), ..group_of(cores(16), 2, Strategy::StrictSpread) };
        let job = PlanJob::CreateGroup(Arc::new(spec));
        engine.ports[0].submit(9, PortRequest::Plan(job), engine.now).expect("room");
        engine.ports[0].flush();
        assert!(settle(&mut engine).is_empty(), "all is full");
        let mut made = None;
        let mut served = 0;
        for _ in 0..400 {
            let (replies, direct) = hostile_round(&mut engine, &mut live);
            served += u32::from(direct);
            made = replies.into_iter().find(|(tag, _)| *tag == 9);
            if made.is_some() || live.is_empty() {
                break;
            }
        }
        let Some((_, PortReply::Plan(reply))) = made else { panic!("it never found its place") };
        let PlanReply::Group(Ok(group)) = *reply else { panic!("made: {reply:?}") };
        assert_eq!(nodes_of(&group).len(), 2);
        // The other two nodes served direct traffic in the meantime, and nothing stays reserved.
        assert!(served >= 16, "{served} direct placements");
        assert_eq!(live_allocations(&mut engine), live.len() as u64 + 2);
        let PortReply::Every(outcomes) = ask(&mut engine, PortRequest::Every(Command::Audit { number: 0 }))
        else {
            panic!("every shard answers")
        };
        for outcome in outcomes {
            assert!(matches!(outcome, Outcome::Status(status) if status.nodes_reserved == 0));
        }
        check_all(&engine);
    }
}

/// A group that waits for a number behind others is answered at its own deadline, not at theirs.
#[test]
fn a_group_behind_the_tickets_of_others_waits_no_longer_than_it_asked() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 2, 16, 0);
    let mut live = Vec::new();
    while let PortReply::Place(Ok(placement)) = ask(&mut engine, PortRequest::Place(cores(1))) {
        live.push(placement.allocation);
    }
    let until = |tag: u64, now: Time| Time(now.0 + tag * 1_000_000);
    let started = engine.now;
    for tag in 11..=13 {
        let wait_until = Some(until(tag, started));
        let spec = GroupSpec { wait_until, ..group_of(cores(16), 2, Strategy::StrictSpread) };
        let job = PlanJob::CreateGroup(Arc::new(spec));
        engine.ports[0].submit(tag, PortRequest::Plan(job), engine.now).expect("room");
        engine.ports[0].flush();
        assert!(settle(&mut engine).is_empty(), "all is full");
    }
    // In each round, capacity is freed and taken. In the end, all three want a number.
    for _ in 0..12 {
        let (replies, _) = hostile_round(&mut engine, &mut live);
        assert!(replies.iter().all(|(tag, _)| *tag <= 2), "{replies:?}");
    }
    let mut ended = Vec::new();
    while ended.len() < 3 {
        let due = engine.planners[0].planner().next_deadline().expect("some wait");
        assert!(due.0 <= until(13, started).0, "somebody waits longer than it asked: {due:?}");
        engine.now = Time(engine.now.0.max(due.0));
        for (tag, reply) in settle(&mut engine) {
            assert!(
                matches!(reply, PortReply::Plan(reply) if matches!(*reply, PlanReply::Group(Err(NoGroup::Refused(_)))))
            );
            assert!(engine.now >= until(tag, started));
            ended.push(tag);
        }
    }
    assert_eq!(ended, [11, 12, 13]);
    check_all(&engine);
}

/// Fills the free capacity with placements of one core.
fn fill(engine: &mut Engine) -> Vec<AllocationId> {
    let mut live = Vec::new();
    while let PortReply::Place(Ok(placement)) = ask(engine, PortRequest::Place(cores(1))) {
        live.push(placement.allocation);
    }
    live
}

fn waiting(spec: GroupSpec) -> GroupSpec {
    GroupSpec { wait_until: Some(Time(u64::MAX)), ..spec }
}

/// Asserts that `others` nodes are reserved in total, so tickets leave nothing reserved, and checks the
/// books.
pub(crate) fn assert_nothing_reserved(engine: &mut Engine, others: u32) {
    let PortReply::Every(outcomes) = ask(engine, PortRequest::Every(Command::Audit { number: 0 })) else {
        panic!("every shard answers")
    };
    let reserved = outcomes.iter().map(|outcome| match outcome {
        Outcome::Status(status) => status.nodes_reserved,
        other => panic!("a status: {other:?}"),
    });
    assert_eq!(reserved.sum::<u32>(), others);
    check_all(engine);
}

/// Requests a group on a full cluster. It is placed despite hostile traffic, of which at least `least`
/// requests are served.
fn made_among(engine: &mut Engine, live: &mut Vec<AllocationId>, spec: GroupSpec, least: u32) -> GroupView {
    let job = PlanJob::CreateGroup(Arc::new(waiting(spec)));
    engine.ports[0].submit(9, PortRequest::Plan(job), engine.now).expect("room");
    engine.ports[0].flush();
    assert!(settle(engine).is_empty(), "all is full");
    let mut served = 0;
    for _ in 0..ROUNDS {
        let (replies, direct) = hostile_round(engine, live);
        served += u32::from(direct);
        let Some((_, reply)) = replies.into_iter().find(|(tag, _)| *tag == 9) else { continue };
        let PortReply::Plan(reply) = reply else { panic!("a planner answers: {reply:?}") };
        let PlanReply::Group(Ok(group)) = *reply else { panic!("made: {reply:?}") };
        assert!(served >= least, "{served} direct placements");
        return *group;
    }
    panic!("it never found its place");
}

/// Waits until a degraded group is placed again despite hostile traffic, of which at least `least` requests
/// are served.
fn stands_again(engine: &mut Engine, live: &mut Vec<AllocationId>, id: GroupId, least: u32) -> GroupView {
    assert_eq!(status(engine, id).state, GroupState::Degraded);
    let mut served = 0;
    for _ in 0..ROUNDS {
        served += u32::from(hostile_round(engine, live).1);
        let group = status(engine, id);
        if group.state == GroupState::Placed {
            assert!(served >= least, "{served} direct placements");
            return group;
        }
    }
    panic!("it never found its place");
}

/// Adds two nodes of 16 cores in each of three zones. The zone of a node is its number modulo three.
fn zones(engine: &mut Engine) -> Vec<NodeId> {
    let spec = |number: usize| labelled(&format!("n{number}"), 16, ["a", "b", "c"][number % 3]);
    (0..6).map(|number| add_node(engine, spec(number)).id).collect()
}

fn by_zone(view: &GroupView, nodes: &[NodeId]) -> [usize; 3] {
    let mut counts = [0; 3];
    for (_, node, _) in places(view) {
        counts[nodes.iter().position(|&known| known == node).expect("a node") % 3] += 1;
    }
    counts
}

fn rule(spreading: Spreading) -> Option<TopologyRule> {
    Some(TopologyRule { key: "zone".into(), spreading })
}

#[test]
fn a_group_in_one_zone_comes_to_its_end() {
    for (shards, planners) in ENGINES {
        let mut engine = engine(shards, planners);
        let nodes = zones(&mut engine);
        let mut live = fill(&mut engine);
        let spec = group_of(cores(16), 2, Strategy::StrictSpread);
        let spec = GroupSpec { topology: rule(Spreading::Pack { strict: true }), ..spec };
        let group = made_among(&mut engine, &mut live, spec, 16);
        assert!(by_zone(&group, &nodes).contains(&2), "{group:?}");
        assert_nothing_reserved(&mut engine, 0);
    }
}

#[test]
fn a_group_spread_over_zones_comes_to_its_end() {
    for (shards, planners) in ENGINES {
        let mut engine = engine(shards, planners);
        let nodes = zones(&mut engine);
        let mut live = fill(&mut engine);
        let spec = group_of(cores(8), 4, Strategy::Pack);
        let spec = GroupSpec { topology: rule(Spreading::Spread { max_skew: 1 }), ..spec };
        let group = made_among(&mut engine, &mut live, spec, 16);
        let mut counts = by_zone(&group, &nodes);
        counts.sort_unstable();
        assert_eq!(counts, [1, 1, 2]);
        assert_nothing_reserved(&mut engine, 0);
    }
}

/// A bundle of one zone is lost and the others stay placed, so it may only return to its own zone.
#[test]
fn a_bundle_of_a_spread_group_is_placed_again_where_its_rule_allows_it() {
    let mut engine = engine(1, 1);
    let nodes = zones(&mut engine);
    let spec = group_of(cores(12), 3, Strategy::Pack);
    let spec = GroupSpec { topology: rule(Spreading::Spread { max_skew: 1 }), ..spec };
    let group = create(&mut engine, spec).expect("it fits");
    assert_eq!(by_zone(&group, &nodes), [1, 1, 1]);
    let mut live = fill(&mut engine);
    release_to_ones(&mut engine, &mut live, places(&group)[1].2, 12);
    let after = stands_again(&mut engine, &mut live, group.id, 12);
    assert_eq!(by_zone(&after, &nodes), [1, 1, 1]);
    assert_nothing_reserved(&mut engine, 0);
}

/// Ends a bundle of `cpu` cores. Direct traffic takes them in the same batch.
pub(crate) fn release_to_ones(
    engine: &mut Engine,
    live: &mut Vec<AllocationId>,
    bundle: AllocationId,
    cpu: u32,
) {
    engine.ports[0].submit(1, PortRequest::Release(bundle), engine.now).expect("room");
    for _ in 0..cpu {
        engine.ports[0].submit(2, PortRequest::Place(cores(1)), engine.now).expect("room");
    }
    engine.ports[0].flush();
    for (_, reply) in settle(engine) {
        if let PortReply::Place(Ok(placement)) = reply {
            live.push(placement.allocation);
        }
    }
}

#[test]
fn a_group_on_one_node_is_placed_also_from_a_partial_placement() {
    for (shards, planners) in ENGINES {
        let mut engine = engine(shards, planners);
        with_nodes(&mut engine, 4, 16, 0);
        let mut live = fill(&mut engine);
        let group = made_among(&mut engine, &mut live, group_of(cores(5), 3, Strategy::StrictPack), 16);
        assert_eq!(nodes_of(&group).len(), 1);
        if shards > 1 {
            continue;
        }
        release_to_ones(&mut engine, &mut live, places(&group)[1].2, 5);
        let after = stands_again(&mut engine, &mut live, group.id, 5);
        assert_eq!(nodes_of(&after), nodes_of(&group));
        assert_nothing_reserved(&mut engine, 0);
    }
}

fn agents(engine: &mut Engine, count: usize, spec: impl Fn(usize) -> NodeSpec) -> Vec<NodeId> {
    let spec = |number| NodeSpec { identity: Some(format!("m{number}").into()), ..spec(number) };
    (0..count).map(|number| add_agent_node(engine, spec(number))).collect()
}

#[test]
fn bundles_of_lost_nodes_come_to_their_place_whatever_the_strategy() {
    for strategy in [Strategy::StrictSpread, Strategy::Pack, Strategy::Spread] {
        for (shards, planners) in ENGINES {
            let mut engine = engine(shards, planners);
            agents(&mut engine, 6, |number| node_spec(&format!("n{number}"), 16, 0));
            let group = create(&mut engine, group_of(cores(12), 3, strategy)).expect("it fits");
            let mut live = fill(&mut engine);
            let (index, lost, _) = places(&group)[1];
            life(&mut engine, lost, LifeEvent::Lose);
            let after = stands_again(&mut engine, &mut live, group.id, 6);
            for (old, new) in places(&group).iter().zip(places(&after)) {
                assert_eq!(*old == new, old.0 != index, "{after:?}");
            }
            assert_eq!(nodes_of(&after).len(), 3);
            assert_nothing_reserved(&mut engine, 0);
        }
    }
}

#[test]
fn a_group_that_grew_comes_back_to_its_minimum() {
    for strategy in [Strategy::StrictSpread, Strategy::Pack] {
        let mut engine = engine(2, 1);
        agents(&mut engine, 7, |number| node_spec(&format!("n{number}"), 16, 0));
        let group = create(&mut engine, group_of(cores(12), 3, strategy)).expect("it fits");
        let grown = plan(&mut engine, PlanJob::GrowGroup(group.id, same(cores(12), 1), None));
        let PlanReply::Group(Ok(grown)) = grown else { panic!("a node is free: {grown:?}") };
        let mut live = fill(&mut engine);
        for &(_, node, _) in &places(&grown)[2..] {
            life(&mut engine, node, LifeEvent::Lose);
        }
        let after = stands_again(&mut engine, &mut live, group.id, 6);
        // Only the minimum is placed. Bundles beyond it withhold nothing from others.
        assert_eq!(places(&after).len(), 3);
        assert_nothing_reserved(&mut engine, 0);
    }
}

/// Parts that cannot share a device: three parts of 0.6 take three devices, although they add up to two.
#[test]
fn devices_are_reserved_as_bundles_share_them() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 3, 16, 3);
    let small = PlacementRequest::new(
        Demand { gpu: GpuRequest::Fraction(5_000), ..cores(1).demand },
        Policy::BestFit,
    );
    let place = |engine: &mut Engine| match ask(engine, PortRequest::Place(small.clone())) {
        PortReply::Place(Ok(placement)) => Some(placement.allocation),
        _ => None,
    };
    let mut live: Vec<AllocationId> = std::iter::from_fn(|| place(&mut engine)).collect();
    assert_eq!(live.len(), 18);
    let part = Demand { gpu: GpuRequest::Fraction(6_000), cpu: Amount::whole(1), ..Demand::default() };
    let spec = group_of(PlacementRequest::new(part, Policy::BestFit), 3, Strategy::StrictPack);
    let job = PlanJob::CreateGroup(Arc::new(waiting(spec)));
    engine.ports[0].submit(9, PortRequest::Plan(job), engine.now).expect("room");
    engine.ports[0].flush();
    for _ in 0..ROUNDS {
        let oldest = live.remove(0);
        engine.ports[0].submit(1, PortRequest::Release(oldest), engine.now).expect("room");
        engine.ports[0].submit(2, PortRequest::Place(small.clone()), engine.now).expect("room");
        engine.ports[0].flush();
        let mut made = false;
        for (tag, reply) in settle(&mut engine) {
            match reply {
                PortReply::Place(Ok(placement)) => live.push(placement.allocation),
                PortReply::Plan(reply) if tag == 9 => made = matches!(*reply, PlanReply::Group(Ok(_))),
                _ => {}
            }
        }
        if made {
            return assert_nothing_reserved(&mut engine, 0);
        }
    }
    panic!("it never found its place");
}

/// Capacity reserved for others is not used, and stays reserved.
#[test]
fn a_ticket_leaves_what_is_reserved_for_others() {
    let mut engine = engine(1, 1);
    let nodes = with_nodes(&mut engine, 4, 16, 0);
    let mut live = fill(&mut engine);
    let owner = OwnerId::new(7).expect("an owner of callers");
    let demand = cores(8).demand;
    let reserve = Reserve { node: nodes[0], owner, demand, until: None };
    let partition = engine.catalog.load().node_partition(nodes[0]).expect("a registered node");
    let reply = ask(&mut engine, PortRequest::Partition(partition, Command::Reserve(Box::new(reserve))));
    assert!(matches!(reply, PortReply::One(Outcome::Reserve(Ok(ReservationChange::Made(_))))), "{reply:?}");
    let spec = group_of(cores(16), 3, Strategy::StrictSpread);
    let group = made_among(&mut engine, &mut live, spec, 0);
    assert!(!nodes_of(&group).contains_key(&nodes[0]));
    assert_nothing_reserved(&mut engine, 1);
}

/// Removing a group while its ticket is served ends the ticket. The next group gets its own.
#[test]
fn a_ticket_ends_with_its_group() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 4, 16, 0);
    let group = create(&mut engine, group_of(cores(12), 2, Strategy::StrictSpread)).expect("it fits");
    let mut live = fill(&mut engine);
    release_to_ones(&mut engine, &mut live, places(&group)[0].2, 12);
    let reserved = |engine: &mut Engine| {
        let reply = ask(engine, PortRequest::Every(Command::Status));
        let PortReply::Every(outcomes) = reply else { panic!("every shard answers: {reply:?}") };
        outcomes.iter().any(|outcome| matches!(outcome, Outcome::Status(status) if status.nodes_reserved > 0))
    };
    let mut rounds = 0;
    while !reserved(&mut engine) {
        hostile_round(&mut engine, &mut live);
        rounds += 1;
        assert!(rounds < 50, "no ticket is served");
    }
    let reply = plan(&mut engine, PlanJob::RemoveGroup(group.id));
    assert!(matches!(reply, PlanReply::Removed(Ok((_, 1)))), "{reply:?}");
    assert_eq!(live_allocations(&mut engine), live.len() as u64);
    // The group's capacity is free, and others take it.
    live.extend(fill(&mut engine));
    made_among(&mut engine, &mut live, group_of(cores(12), 2, Strategy::StrictSpread), 0);
    assert_nothing_reserved(&mut engine, 0);
}

/// Capacity that a ticket reserves may never be freed, because something there does not end. The next ticket
/// tries other nodes.
#[test]
fn a_group_whose_ticket_did_not_help_tries_other_nodes() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 3, 16, 0);
    // On two of the nodes, something stays.
    for _ in 0..2 {
        let reply = ask(&mut engine, PortRequest::Place(cores(9)));
        assert!(matches!(reply, PortReply::Place(Ok(_))), "{reply:?}");
    }
    let mut live = fill(&mut engine);
    let job = PlanJob::CreateGroup(Arc::new(waiting(group_of(cores(16), 1, Strategy::Pack))));
    engine.ports[0].submit(9, PortRequest::Plan(job), engine.now).expect("room");
    engine.ports[0].flush();
    for _ in 0..20 {
        for _ in 0..100 {
            // The reservations of a ticket are free after it ends.
            if live.len() < 6 {
                live.extend(fill(&mut engine));
            }
            let (replies, _) = hostile_round(&mut engine, &mut live);
            if let Some((_, PortReply::Plan(reply))) = replies.iter().find(|(tag, _)| *tag == 9) {
                assert!(matches!(&**reply, PlanReply::Group(Ok(_))), "{reply:?}");
                return assert_nothing_reserved(&mut engine, 0);
            }
        }
        if let Some(due) = engine.planners[0].planner().next_deadline() {
            engine.now = Time(engine.now.0.max(due.0));
        }
    }
    panic!("it never found its place");
}

#[test]
fn what_a_lost_plan_had_taken_is_tried_for_at_once() {
    let mut lost = 0;
    // Two planners are asked in turn. The group of six cores and one of the groups of four go to the same
    // planner.
    for order in [&[6, 4, 4][..], &[4, 6, 8, 4]] {
        let mut engine = engine(1, 2);
        with_nodes(&mut engine, 1, 8, 0);
        let PortReply::Place(Ok(all)) = ask(&mut engine, PortRequest::Place(cores(8))) else {
            panic!("room")
        };
        for (tag, &count) in (10..).zip(order) {
            let spec = group_of(cores(count), 1, Strategy::Pack);
            let spec = GroupSpec { wait_until: Some(Time(u64::MAX)), ..spec };
            let job = PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec)));
            engine.ports[0].submit(tag, job, engine.now).expect("room");
        }
        engine.ports[0].flush();
        assert!(settle(&mut engine).is_empty(), "all wait");
        let replies = ask_meanwhile(&mut engine, PortRequest::Release(all.allocation));
        let placed: Vec<u32> =
            replies.iter().filter(|(tag, _)| *tag >= 10).map(|(tag, _)| order[*tag as usize - 10]).collect();
        // If a group of four comes before that of six, the other group of four also fits once six cores are
        // no longer planned.
        assert!(placed == [6] || placed == [4, 4], "{placed:?} of {order:?}");
        lost += usize::from(placed == [4, 4]);
    }
    assert!(lost > 0, "in one of the orders six cores lose");
}

/// Moves direct traffic from one of two nodes to the other, just before a group is committed on the node that
/// seemed free. The group does not wait, and conflicts each time.
///
/// Returns the answers so far, or `None` if the shard takes the planner's commands first.
fn overtaken(engine: &mut Engine, moving: &mut AllocationId, rounds: usize) -> Option<Vec<(u64, PortReply)>> {
    let mut replies = Vec::new();
    let clock = |engine: &Engine| ManualClock::new(engine.now);
    for _ in 0..rounds {
        // The plan is made and sent. Then an earlier request at the shard takes the capacity.
        engine.ports[0].submit(1, PortRequest::Place(cores(16)), engine.now).expect("room");
        engine.ports[0].submit(2, PortRequest::Release(*moving), engine.now).expect("room");
        engine.ports[0].flush();
        let now = clock(engine);
        engine.planners[0].run_round(&now);
        engine.runners[0].run_batch(&now, &mut Unobserved);
        engine.ports[0].poll(engine.now, |tag, reply| replies.push((tag, reply)));
        let placed = replies.iter().find_map(|(tag, reply)| match reply {
            PortReply::Place(Ok(placement)) if *tag == 1 => Some(placement.allocation),
            _ => None,
        });
        *moving = placed?;
        // The ring that comes first changes from batch to batch.
        engine.runners[0].run_batch(&now, &mut Unobserved);
        replies.retain(|(tag, _)| *tag > 2);
    }
    Some(replies)
}

/// A group that does not wait is behind others that wait for nodes that never become free. It is answered
/// after the time of one ticket, not of all tickets.
#[test]
fn who_does_not_wait_is_answered_in_bounded_time_behind_the_tickets_of_others() {
    for loses_on in [false, true] {
        let shown = [false, true].map(|later| answered_in_time(loses_on, later).is_some());
        assert!(shown.contains(&true));
    }
}

/// `later` runs one more batch of the shard.
fn answered_in_time(loses_on: bool, later: bool) -> Option<()> {
    let mut engine = engine(1, 1);
    add_node(&mut engine, node_spec("a", 16, 0));
    let PortReply::Place(Ok(first)) = ask(&mut engine, PortRequest::Place(cores(16))) else { panic!("room") };
    let mut moving = first.allocation;
    add_node(&mut engine, node_spec("b", 16, 0));
    // Two groups wait for nodes that are partly in use for good. Their tickets do not succeed.
    for number in 0..2 {
        add_node(&mut engine, node_spec(&format!("large{number}"), 48, 0));
        let PortReply::Place(Ok(kept)) = ask(&mut engine, PortRequest::Place(cores(40))) else {
            panic!("room")
        };
        assert_ne!(kept.node, first.node);
    }
    for tag in [11, 12] {
        let spec = GroupSpec { wait_until: Some(Time(u64::MAX)), ..group_of(cores(40), 1, Strategy::Pack) };
        engine.ports[0]
            .submit(tag, PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec))), engine.now)
            .expect("room");
        engine.ports[0].flush();
        assert!(settle(&mut engine).is_empty());
    }
    // Each release frees too little for them, so they take numbers.
    for _ in 0..8 {
        let PortReply::Place(Ok(small)) = ask(&mut engine, PortRequest::Place(cores(1))) else {
            panic!("room")
        };
        ask(&mut engine, PortRequest::Release(small.allocation));
    }
    let spec =
        Arc::new(group_of(PlacementRequest { policy: Policy::LeastFit, ..cores(16) }, 1, Strategy::Pack));
    engine.ports[0].submit(9, PortRequest::Plan(PlanJob::CreateGroup(spec)), engine.now).expect("room");
    engine.ports[0].flush();
    if later {
        engine.runners[0].run_batch(&ManualClock::new(engine.now), &mut Unobserved);
    }
    let replies = overtaken(&mut engine, &mut moving, 12)?;
    assert!(replies.is_empty(), "{replies:?}");
    let due = engine.planners[0].planner().next_deadline().expect("tickets end");
    // The clock of these rounds advances by one at each look.
    let bound = Time(engine.now.0 + TICKET_NS_DEFAULT + 100);
    assert!(due <= bound);
    engine.now = bound;
    let mut replies = if loses_on { overtaken(&mut engine, &mut moving, 12)? } else { settle(&mut engine) };
    replies.retain(|(tag, _)| *tag == 9);
    let [(_, PortReply::Plan(reply))] = &replies[..] else { panic!("it is answered: {replies:?}") };
    match &**reply {
        PlanReply::Group(Ok(_)) if !loses_on => {}
        PlanReply::Group(Err(NoGroup::Refused(refusal))) if loses_on => {
            assert!(matches!(&refusal.reason, GroupRefusalReason::Conflicts(lost) if !lost.is_empty()));
            assert!(!refusal.infeasible);
        }
        other => panic!("{other:?}"),
    }
    check_all(&engine);
    Some(())
}

#[test]
fn a_group_that_nothing_makes_room_for_leaves_direct_traffic_most_of_the_time() {
    let mut engine = engine(2, 1);
    with_nodes(&mut engine, 4, 8, 0);
    // It never ends, so the group that needs every node whole is never placed.
    assert!(matches!(ask(&mut engine, PortRequest::Place(cores(1))), PortReply::Place(Ok(_))));
    let spec = group_of(cores(8), 4, Strategy::StrictSpread);
    let spec = GroupSpec { wait_until: Some(Time(u64::MAX)), ..spec };
    let waits = ask_meanwhile(&mut engine, PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec))));
    assert!(waits.is_empty(), "{waits:?}");
    let mut placed = 0;
    let mut reserved = 0;
    const ROUNDS: usize = 1_000;
    for _ in 0..ROUNDS {
        engine.now = Time(engine.now.0 + 200_000_000);
        match ask(&mut engine, PortRequest::Place(cores(1))) {
            PortReply::Place(Ok(placement)) => {
                placed += 1;
                ask(&mut engine, PortRequest::Release(placement.allocation));
            }
            PortReply::Place(Err(NotPlaced { ended: None, .. })) => reserved += 1,
            other => panic!("{other:?}"),
        }
    }
    // 200 seconds: five tickets of ten seconds, and their pauses.
    assert!(reserved > 0, "its tickets reserve all that there is");
    assert!(placed * 10 > ROUNDS * 7, "{placed} of {ROUNDS}, {reserved} while all was reserved");
}
