//! Placement groups of the service that wait: their strategies, their minimum, and what they have placed already.

use std::cmp::Reverse;

use super::*;
use crate::group::{GroupSpec, Spreading, Strategy, TopologyRule, WaitingGroup, WaitingWork};
use crate::ids::{GroupId, Incarnation, TenantId};
use crate::request::WaitingPlacements;

/// A group of bundles that are not placed, each with so many cores.
fn group(cpus: &[u32], strategy: Strategy) -> WaitingGroup {
    let bundles: Vec<Arc<PlacementRequest>> = cpus.iter().map(|&cpu| Arc::new(asks(cpu, 0))).collect();
    let id = GroupId { tenant: TenantId::OPERATOR, incarnation: Incarnation(1), number: 7 };
    let mut open: Vec<(Arc<PlacementRequest>, u32)> = Vec::new();
    for bundle in &bundles {
        match open.last_mut().filter(|(known, _)| known == bundle) {
            Some((_, count)) => *count += 1,
            None => open.push((Arc::clone(bundle), 1)),
        }
    }
    WaitingGroup {
        turn: (Reverse(0), Time(1), id),
        open,
        least: u32::try_from(bundles.len()).unwrap(),
        spec: Arc::new(GroupSpec::new(bundles, strategy)),
        nodes: Vec::new(),
        passed_over: Vec::new(),
        is_charged: false,
    }
}

fn in_one(key: &str, strict: bool, group: WaitingGroup) -> WaitingGroup {
    let topology = Some(TopologyRule { key: key.into(), spreading: Spreading::Pack { strict } });
    WaitingGroup { spec: Arc::new(GroupSpec { topology, ..(*group.spec).clone() }), ..group }
}

fn zoned(name: &str, zone: &str, max: u32) -> NodeType {
    NodeType { spec: spec(name, 4, 0, &[("zone", zone)]), ..kind(name, 4, 0, max) }
}

/// Returns the needed nodes of each type, and how many bundles get none and why.
fn needed(bed: &Bed, types: &[NodeType], group: WaitingGroup) -> (Vec<u32>, Vec<(u32, Unfit)>) {
    let request = NodesRequest::new(types.to_vec());
    let id = group.id();
    let plan = bed.plan_with(&request, &WaitingWork { groups: vec![group], ..WaitingWork::default() });
    assert!(plan.unplaced.iter().all(|left| left.asker == Asker::Waiting(id)), "{plan:?}");
    let left = plan.unplaced.iter().map(|left| (left.count, left.reason.clone())).collect();
    (plan.types.iter().map(|of| of.needed).collect(), left)
}

#[test]
fn each_strategy_asks_for_the_nodes_that_it_needs() {
    let bed = Bed::new();
    let types = [kind("a", 4, 0, 3)];
    let needs = |cpus: &[u32], strategy| needed(&bed, &types, group(cpus, strategy));
    assert_eq!(needs(&[1, 1, 1], Strategy::Pack), (vec![1], vec![]));
    assert_eq!(needs(&[1, 1, 1], Strategy::Spread), (vec![1], vec![]), "it would use more if there were any");
    assert_eq!(needs(&[1, 1, 1], Strategy::StrictSpread), (vec![3], vec![]));
    assert_eq!(needs(&[2, 1, 1], Strategy::StrictPack), (vec![1], vec![]));
    assert_eq!(needs(&[2, 2, 1], Strategy::StrictPack), (vec![0], vec![(3, Unfit::Gang)]));
    assert_eq!(needs(&[1; 4], Strategy::StrictSpread), (vec![0], vec![(4, Unfit::TypeLimit)]));
    assert_eq!(needs(&[4; 4], Strategy::Pack), (vec![0], vec![(4, Unfit::TypeLimit)]), "all or nothing");
}

#[test]
fn a_group_goes_to_one_value_of_a_label_only_if_it_must() {
    let mut bed = Bed::new();
    let types = [zoned("a", "x", 2), zoned("b", "y", 3)];
    let of = |strict| in_one("zone", strict, group(&[4, 4, 4], Strategy::Pack));
    assert_eq!(needed(&bed, &types, of(true)), (vec![0, 3], vec![]));
    assert_eq!(needed(&bed, &types, of(false)), (vec![2, 1], vec![]));
    // The zone of what it has placed is no longer free to choose.
    let node = bed.cluster.add_node(spec("n", 4, 0, &[("zone", "x"), ("node-type", "a")])).unwrap();
    bed.run(asks(4, 0), node);
    let placed = |least| WaitingGroup {
        nodes: vec![node],
        least,
        ..in_one("zone", true, group(&[4, 4], Strategy::Pack))
    };
    assert_eq!(needed(&bed, &types, placed(2)), (vec![0, 0], vec![(2, Unfit::TypeLimit)]));
    assert_eq!(needed(&bed, &types, placed(0)), (vec![1, 0], vec![(1, Unfit::Gang)]));
    assert_eq!(needed(&bed, &[zoned("a", "x", 3)], placed(2)), (vec![2], vec![]));
}

#[test]
fn beyond_its_minimum_a_group_gets_what_there_may_be() {
    let bed = Bed::new();
    let types = [kind("a", 4, 0, 3)];
    let least = |cpus: &[u32], strategy, least| WaitingGroup { least, ..group(cpus, strategy) };
    let needs = |group| needed(&bed, &types, group);
    assert_eq!(needs(least(&[4; 5], Strategy::Pack, 2)), (vec![3], vec![(2, Unfit::TypeLimit)]));
    assert_eq!(
        needs(least(&[4; 5], Strategy::Pack, 4)),
        (vec![0], vec![(4, Unfit::TypeLimit), (1, Unfit::TypeLimit)])
    );
    // The rest of it could go nowhere but to the same node.
    assert_eq!(needs(least(&[3, 2, 2], Strategy::StrictPack, 2)), (vec![1], vec![(1, Unfit::Gang)]));
    assert_eq!(needs(least(&[2, 1, 1], Strategy::StrictPack, 2)), (vec![1], vec![]));
    assert_eq!(needs(least(&[3, 3, 2], Strategy::StrictPack, 2)), (vec![0], vec![(3, Unfit::Gang)]));
    assert_eq!(needs(least(&[1; 4], Strategy::StrictSpread, 2)), (vec![2], vec![(2, Unfit::TypeLimit)]));
}

#[test]
fn what_is_placed_already_tells_where_the_rest_may_go() {
    let mut bed = Bed::new();
    let node = bed.node("a", 4, 0);
    bed.run(asks(1, 0), node);
    let types = [kind("a", 4, 0, 5)];
    let placed =
        |cpus: &[u32], strategy, least| WaitingGroup { nodes: vec![node], least, ..group(cpus, strategy) };
    let needs = |group| needed(&bed, &types, group);
    // The node has room, but each bundle wants one of its own.
    assert_eq!(needs(placed(&[1, 1], Strategy::StrictSpread, 0)), (vec![2], vec![]));
    assert_eq!(needs(placed(&[1, 1], Strategy::StrictSpread, 2)), (vec![2], vec![]));
    assert_eq!(needs(placed(&[1, 1], Strategy::Pack, 0)), (vec![0], vec![]));
    // No new node helps a group on one node. The first type's node on which this is tried must not pass for that one.
    assert_eq!(needs(placed(&[3], Strategy::StrictPack, 0)), (vec![0], vec![]));
    assert_eq!(needs(placed(&[3, 1], Strategy::StrictPack, 2)), (vec![0], vec![(2, Unfit::OnlyPresent)]));
    assert_eq!(needs(placed(&[4], Strategy::StrictPack, 0)), (vec![0], vec![(1, Unfit::OnlyPresent)]));
}

#[test]
fn selectors_priorities_and_what_is_left_out_are_kept() {
    let bed = Bed::new();
    let types = [zoned("a", "x", 1), zoned("b", "y", 1)];
    let mut in_zone = group(&[4], Strategy::Pack);
    in_zone.open[0].0 = Arc::new(labelled(asks(4, 0), "zone", "y"));
    assert_eq!(needed(&bed, &types, in_zone.clone()), (vec![0, 1], vec![]));
    let mut first = in_zone.clone();
    first.turn.2.number = 8;
    first.spec = Arc::new(GroupSpec { priority: 3, ..(*first.spec).clone() });
    let request = NodesRequest::new(types.to_vec());
    let groups = vec![in_zone.clone(), first];
    let plan = bed.plan_with(&request, &WaitingWork { groups, left_out: 4, ..WaitingWork::default() });
    let [left] = &plan.unplaced[..] else { panic!("{plan:?}") };
    assert_eq!((left.asker, &left.reason), (Asker::Waiting(in_zone.id()), &Unfit::TypeLimit));
    assert!(plan.is_partial && plan.left_out == 4);
}

#[test]
fn single_placements_that_wait_are_packed_with_all_others() {
    let mut bed = Bed::new();
    bed.node("a", 4, 0);
    let mut request = NodesRequest::new(vec![kind("a", 4, 0, 2)]);
    let row = |cpu, priority, count| WaitingPlacements { request: asks(cpu, 0), priority, count };
    let placements = vec![row(1, 0, 3), row(1, 7, 9), row(5, 0, 2)];
    let waiting = WaitingWork { placements, ..WaitingWork::default() };
    let plan = bed.plan_with(&request, &waiting);
    let left: Vec<_> = plan.unplaced.iter().map(|left| (left.asker, left.count)).collect();
    assert_eq!((plan.types[0].needed, plan.fit_present, plan.fit_needed), (1, 4, 4), "{plan:?}");
    assert_eq!(left, [(Asker::Placements, 1), (Asker::Placements, 2), (Asker::Placements, 3)], "{plan:?}");
    request.types[0].max = 4;
    let plan = bed.plan_with(&request, &waiting);
    let [left] = &plan.unplaced[..] else { panic!("{plan:?}") };
    assert!(matches!(left.reason, Unfit::Never(_)) && left.count == 2, "{left:?}");
    assert_eq!((plan.types[0].needed, plan.fit_present, plan.fit_needed), (2, 4, 8));
}

/// A node on which types are tried has no id that a request could name.
#[test]
fn a_task_for_one_present_node_asks_for_no_other() {
    let mut bed = Bed::new();
    let node = bed.node("a", 4, 0);
    bed.run(asks(3, 0), node);
    let job = bed.job(PlacementRequest { candidates: Some([node].into()), ..asks(2, 0) }, 1, 1);
    let plan = bed.plan(&NodesRequest::new(vec![kind("a", 4, 0, 5)]));
    let [left] = &plan.unplaced[..] else { panic!("{plan:?}") };
    assert_eq!((plan.types[0].needed, left.asker, &left.reason), (0, Asker::Job(job), &Unfit::OnlyPresent));
}

#[test]
fn groups_in_queues_ask_for_what_caps_allow() {
    let in_queue = |group: WaitingGroup| WaitingGroup {
        spec: Arc::new(GroupSpec { queue: Some("q".into()), ..(*group.spec).clone() }),
        ..group
    };
    let cap = Unfit::Cap { queue: "q".into(), of: Capped::Resource(Dim::CPU) };
    let types = [kind("a", 4, 0, 9)];
    let cpu = |cores: i64| Bed::capped([(Dim::CPU, cores * 10_000)].into_iter().collect());
    let least = |cpus: &[u32], strategy, least| in_queue(WaitingGroup { least, ..group(cpus, strategy) });
    let bed = cpu(10);
    let needs = |group| needed(&bed, &types, group);
    assert_eq!(needs(least(&[4, 4], Strategy::Pack, 2)), (vec![2], vec![]));
    assert_eq!(needs(least(&[4, 4, 4], Strategy::Pack, 3)), (vec![0], vec![(3, cap.clone())]));
    // Beyond the minimum, it gets what the cap allows.
    assert_eq!(needs(least(&[4, 4, 4], Strategy::Pack, 1)), (vec![2], vec![(1, cap.clone())]));
    assert_eq!(needs(least(&[4, 4, 4], Strategy::StrictSpread, 2)), (vec![2], vec![(1, cap.clone())]));
    // The cap counts bundles in their order, and these are planned for first, whatever their size.
    let later =
        WaitingGroup { passed_over: group(&[1], Strategy::Pack).open, ..least(&[4, 4], Strategy::Pack, 1) };
    assert_eq!(needed(&cpu(8), &types, later.clone()), (vec![2], vec![(1, cap)]));
    assert_eq!(needs(WaitingGroup { is_charged: true, ..later }), (vec![3], vec![]), "the cap is 10");
    // Another one, in no queue, is not bound by it.
    assert_eq!(needs(group(&[4, 4, 4], Strategy::Pack)), (vec![3], vec![]));
    // The cap counts what is placed for a bundle on a lost node already.
    let charged = WaitingGroup { is_charged: true, ..least(&[4, 4, 4], Strategy::Pack, 0) };
    assert_eq!(needs(charged), (vec![3], vec![]));
    // Bundles that go to one node are as many allocations.
    let mut bed = Bed::new();
    let most = QueueSpec { allocations_max: Some(3), ..QueueSpec::new("few") };
    bed.cluster.scheduler_mut().jobs_mut().add_queue(most).unwrap();
    let few = |count: usize| {
        let group = group(&vec![1; count], Strategy::StrictPack);
        let spec = GroupSpec { queue: Some("few".into()), ..(*group.spec).clone() };
        needed(&bed, &types, WaitingGroup { spec: Arc::new(spec), ..group })
    };
    assert_eq!(few(3), (vec![1], vec![]));
    let (none, left) = few(4);
    assert_eq!((none, left.len()), (vec![0], 1));
    assert_eq!(left[0].1, Unfit::Cap { queue: "few".into(), of: Capped::Allocations });
}
