//! Random groups and placements that wait, with every strategy, against the rules of groups and what a fresh shard accepts.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use proptest::prelude::*;

use super::random::{place_all, with_nodes, zone};
use super::*;
use crate::group::{GroupSpec, Spreading, Strategy as GroupStrategy, TopologyRule, WaitingGroup};
use crate::ids::{GroupId, Incarnation, TenantId};
use crate::request::WaitingPlacements;

/// A random group: the cores of its bundles, its strategy, whether it keeps to one zone, how many bundles it needs at once,
/// and on which present nodes it has bundles already.
type RandomGroup = (Vec<u32>, usize, bool, usize, Vec<usize>);

const STRATEGIES: [GroupStrategy; 4] =
    [GroupStrategy::Pack, GroupStrategy::Spread, GroupStrategy::StrictPack, GroupStrategy::StrictSpread];

fn random_group(number: u32, of: &RandomGroup, present: &[NodeId]) -> WaitingGroup {
    let (cpus, strategy, is_in_one_zone, least, on) = of;
    let bundles: Vec<Arc<PlacementRequest>> = cpus.iter().map(|&cpu| Arc::new(asks(cpu, 0))).collect();
    let strategy = STRATEGIES[*strategy];
    let topology = is_in_one_zone
        .then(|| TopologyRule { key: "zone".into(), spreading: Spreading::Pack { strict: true } });
    let mut nodes: Vec<NodeId> = on.iter().filter_map(|&at| present.get(at).copied()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    // What has bundles already obeys its rules.
    if strategy == GroupStrategy::StrictPack || topology.is_some() {
        nodes.truncate(1);
    }
    let id = GroupId { tenant: TenantId::OPERATOR, incarnation: Incarnation(1), number: u64::from(number) };
    WaitingGroup {
        turn: (Reverse(0), Time(u64::from(number)), id),
        open: bundles.iter().map(|bundle| (Arc::clone(bundle), 1)).collect(),
        // A group that has nothing yet lacks its minimum, which is at least one bundle.
        least: u32::try_from((*least).max(usize::from(nodes.is_empty())).min(bundles.len())).unwrap(),
        spec: Arc::new(GroupSpec { topology, ..GroupSpec::new(bundles, strategy) }),
        nodes,
        passed_over: Vec::new(),
        is_charged: false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// What a plan places obeys the strategies, minima and zones of the groups, next to what they have placed already, and fits
    /// by the books of a fresh shard. All is placed or named.
    #[test]
    fn waiting_groups_are_planned_by_their_rules(
        types in prop::collection::vec((1..7_u32, any::<bool>(), 0..6_u32), 1..4),
        present in prop::collection::vec((1..7_u32, any::<bool>()), 0..4),
        groups in prop::collection::vec(
            (prop::collection::vec(1..5_u32, 1..5), 0..4_usize, any::<bool>(), 0..5_usize,
             prop::collection::vec(0..4_usize, 0..3)),
            1..6,
        ),
        singles in prop::collection::vec((1..5_u32, 1..4_u64), 0..3),
    ) {
        let mut bed = Bed::new();
        let in_zone_a: Vec<bool> = types.iter().map(|&(_, is_a, _)| is_a).collect();
        let present_in_a: Vec<bool> = present.iter().map(|&(_, is_a)| is_a).collect();
        let present: Vec<NodeId> = present.iter().map(|&(cpu, is_a)| {
            let labels = [("zone", zone(is_a)), ("node-type", "none")];
            bed.cluster.add_node(spec("n", cpu, 0, &labels)).unwrap()
        }).collect();
        let types = types.iter().enumerate().map(|(number, &(cpu, is_a, max))| {
            let name = format!("t{number}");
            NodeType { spec: spec(&name, cpu, 0, &[("zone", zone(is_a))]), ..kind(&name, cpu, 0, max) }
        });
        let request = NodesRequest::new(types.collect());
        let groups: Vec<WaitingGroup> =
            (1..).zip(&groups).map(|(number, of)| random_group(number, of, &present)).collect();
        let placements = singles.iter().map(|&(cpu, count)| {
            WaitingPlacements { request: asks(cpu, 0), count, priority: 0 }
        });
        let waiting = WaitingWork { groups: groups.clone(), placements: placements.collect(), left_out: 0 };
        let mut planning = Planning::new((&request, &waiting), &bed.cluster);
        let mut copy = bed.cluster.copy();
        planning.pack(&mut copy, &IdleClock::default());
        let plan = &planning.plan;
        let seen = &planning.seen;
        prop_assert!(!plan.is_partial);

        // Whether a node is in the first zone.
        let zone_of = |node: NodeId| match seen.added.iter().find(|of| of.node == node) {
            Some(of) => in_zone_a[of.of_type],
            None => present_in_a[present.iter().position(|&one| one == node).expect("it is present")],
        };
        for group in &groups {
            let asker = Asker::Waiting(group.id());
            let on: Vec<NodeId> =
                seen.owners.iter().filter(|(_, of)| *of == asker).map(|&(node, _)| node).collect();
            let left = plan.unplaced.iter().filter(|left| left.asker == asker);
            let left: u64 = left.map(|left| u64::from(left.count)).sum();
            prop_assert_eq!(on.len() as u64 + left, group.bundles(), "all of {:?} is placed or named", group);
            let is_enough = on.is_empty() || on.len() >= group.least as usize;
            prop_assert!(is_enough, "{} bundles are placed of {group:?}", on.len());
            let nodes: BTreeSet<NodeId> = on.iter().chain(&group.nodes).copied().collect();
            match group.spec.strategy {
                GroupStrategy::StrictPack => prop_assert!(nodes.len() <= 1, "{nodes:?}, {group:?}"),
                GroupStrategy::StrictSpread => {
                    prop_assert_eq!(nodes.len(), on.len() + group.nodes.len(), "{:?}", group);
                }
                GroupStrategy::Pack | GroupStrategy::Spread => {}
            }
            if group.spec.topology.is_some() {
                let zones: BTreeSet<_> = nodes.iter().map(|&node| zone_of(node)).collect();
                prop_assert!(zones.len() <= 1, "{zones:?}, {group:?}");
            }
        }
        let asked: u64 = singles.iter().map(|&(_, count)| count).sum();
        let placed = seen.owners.iter().filter(|(_, of)| *of == Asker::Placements).count() as u64;
        let left = plan.unplaced.iter().filter(|left| left.asker == Asker::Placements);
        prop_assert_eq!(placed + left.map(|left| u64::from(left.count)).sum::<u64>(), asked);

        // The limits of types are kept, and the nodes suffice.
        for (of, limits) in plan.types.iter().zip(&request.types) {
            prop_assert!(of.needed <= limits.max, "{} of {}", of.needed, limits.name);
        }
        let (mut cluster, ids) = with_nodes(&bed, &request, &seen.added);
        let id = |node: NodeId| seen.added.iter().position(|of| of.node == node).map_or(node, |at| ids[at]);
        for (node, requests) in &seen.contents {
            // A request that names the node of its group names no added one.
            prop_assert!(place_all(&mut cluster, Some(id(*node)), requests), "{node} is too full");
        }
        cluster.shard().check_invariants().unwrap();
    }
}
