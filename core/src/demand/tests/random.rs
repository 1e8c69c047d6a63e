//! Random demand and types against what a fresh shard accepts.

use proptest::prelude::*;

use super::*;

/// A random job: what each task asks for, a zone or none, the number of tasks, and whether it needs all at once.
type RandomJob = (u32, bool, Option<bool>, u32, bool);

/// A random type: cores, GPUs or none, the zone, the largest number, the least number, launches under way.
type RandomType = (u32, bool, bool, u32, bool, bool);

pub(super) fn zone(is_a: bool) -> &'static str {
    if is_a { "a" } else { "b" }
}

fn random_request(types: &[RandomType], nodes_max: Option<u32>) -> NodesRequest {
    let of = |(number, &(cpu, has_gpu, is_a, max, has_min, launches)): (usize, &RandomType)| {
        let name = format!("t{number}");
        let spec = spec(&name, cpu, u8::from(has_gpu), &[("zone", zone(is_a))]);
        let min = u32::from(has_min && max > 0 && nodes_max.is_none());
        NodeType { spec, min, launching: u32::from(launches), ..kind(&name, cpu, 0, max) }
    };
    let types = types.iter().enumerate().map(of).collect();
    NodesRequest { nodes_max, ..NodesRequest::new(types) }
}

/// Places requests on nodes of a cluster by the commands that serve. Returns whether all fit.
pub(super) fn place_all(
    cluster: &mut LocalCluster,
    node: Option<NodeId>,
    requests: &[Arc<PlacementRequest>],
) -> bool {
    requests.iter().all(|request| {
        let candidates = node.map(|node| [node].into());
        cluster.place_direct(PlacementRequest { candidates, ..(**request).clone() })
    })
}

/// Adds the nodes of a plan to a copy of the cluster. Returns the ids that they have there.
pub(super) fn with_nodes(bed: &Bed, request: &NodesRequest, added: &[Added]) -> (LocalCluster, Vec<NodeId>) {
    let mut cluster = bed.cluster.copy();
    let ids = added.iter().map(|of| cluster.add_node(request.spec(of.of_type)).unwrap()).collect();
    (cluster, ids)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// What is launched suffices for all that is said to fit, by the books of a fresh shard. Without any of the launched
    /// nodes it does not. Limits and caps are kept, and gangs get all or nothing.
    #[test]
    fn launched_nodes_suffice_and_each_is_needed(
        types in prop::collection::vec((1..6_u32, any::<bool>(), any::<bool>(), 0..7_u32, any::<bool>(), any::<bool>()), 1..4),
        present in prop::collection::vec((1..6_u32, any::<bool>(), any::<bool>(), 0..4_u32), 0..4),
        jobs in prop::collection::vec((1..5_u32, any::<bool>(), prop::option::of(any::<bool>()), 1..5_u32, any::<bool>()), 1..8),
        nodes_max in prop::option::of(3..9_u32),
        cap in prop::option::of(0..24_i64),
    ) {
        let request = random_request(&types, nodes_max);
        let caps: Caps = cap.map(|cap| (Dim::CPU, cap * 10_000)).into_iter().collect();
        let mut bed = Bed::capped(caps);
        let mut of_types = vec![0; types.len()];
        for (number, &(cpu, has_gpu, is_a, used)) in present.iter().enumerate() {
            let name = format!("t{number}");
            let labels = [("zone", zone(is_a)), ("node-type", name.as_str())];
            let node = bed.cluster.add_node(spec("n", cpu, u8::from(has_gpu), &labels)).unwrap();
            if let Some(count) = of_types.get_mut(number) {
                *count += 1;
            }
            if used > 0 {
                let used = asks(used.min(cpu), 0);
                prop_assert!(place_all(&mut bed.cluster, Some(node), &[Arc::new(used)]));
            }
        }
        let mut asked = 0;
        for &(cpu, has_gpu, of_zone, count, is_gang) in &jobs as &Vec<RandomJob> {
            let of = asks(cpu, u8::from(has_gpu));
            let of = match of_zone { Some(is_a) => labelled(of, "zone", zone(is_a)), None => of };
            bed.job(of, count, if is_gang { count } else { 1 });
            asked += u64::from(count);
        }
        let nothing = WaitingWork::default();
        let mut planning = Planning::new((&request, &nothing), &bed.cluster);
        let mut copy = bed.cluster.copy();
        planning.pack(&mut copy, &IdleClock::default());
        let plan = &planning.plan;
        let seen = &planning.seen;

        // Limits are kept.
        let mut all = 0;
        for ((of, limits), &there) in plan.types.iter().zip(&request.types).zip(&of_types) {
            prop_assert_eq!(of.present, there);
            let gone = plan.removals.iter().filter(|one| request.types[one.of_type as usize].name == limits.name);
            let count = of.present + of.launching + of.needed - gone.count() as u32;
            prop_assert!(count <= limits.max && count >= limits.min, "{count} of {}", limits.name);
            prop_assert!(of.launch <= of.needed);
            all += count;
        }
        prop_assert!(nodes_max.is_none_or(|max| all <= max), "{all} nodes");

        // All is placed, or named.
        let left: u64 = plan.unplaced.iter().map(|left| u64::from(left.count)).sum();
        let placed: usize = seen.contents.iter().map(|(_, requests)| requests.len()).sum();
        prop_assert_eq!(placed as u64 + left, asked);
        prop_assert_eq!(plan.fit_present + plan.fit_needed, placed as u64);
        for (number, &(.., count, is_gang)) in (1..).zip(&jobs) {
            let of_job = plan.unplaced.iter().filter(|left| left.asker == Asker::Job(JobId(number)));
            let left: u32 = of_job.map(|left| left.count).sum();
            prop_assert!(left == 0 || left == count || !is_gang, "{left} of {count} tasks of a gang are left");
        }
        let cores = seen.contents.iter().flat_map(|(_, requests)| requests);
        let cores: i64 = cores.map(|request| request.demand.cpu.units()).sum();
        prop_assert!(cap.is_none_or(|cap| cores <= cap * 10_000), "{cores} of {cap:?}");
        for left in &plan.unplaced {
            let holds = |of: &NodeType| {
                let demand = &left.request.demand;
                let suits = left.request.selector.as_ref().is_none_or(|selector| selector.holds(&of.spec.labels));
                let gpus = if of.spec.gpus > 0 { 1 } else { 0 };
                suits && demand.cpu <= of.spec.cpu && demand.gpu.amount() <= Amount::whole(gpus)
            };
            let any = request.types.iter().any(holds);
            prop_assert!(match &left.reason {
                Unfit::Never(_) | Unfit::OnlyPresent => !any,
                Unfit::TypeLimit | Unfit::AllLimit => any,
                Unfit::Cap { .. } => cap.is_some(),
                Unfit::Gang | Unfit::Topology | Unfit::Undecided => false,
            }, "{left:?}");
        }

        // The nodes suffice.
        let (mut cluster, ids) = with_nodes(&bed, &request, &seen.added);
        let id = |node: NodeId| seen.added.iter().position(|of| of.node == node).map_or(node, |at| ids[at]);
        for (node, requests) in &seen.contents {
            prop_assert!(place_all(&mut cluster, Some(id(*node)), requests), "{node} is too full");
        }
        cluster.shard().check_invariants().unwrap();

        // Each is needed.
        for without in seen.added.iter().filter(|of| !of.is_fixed) {
            let others: Vec<Added> = seen.added.iter().filter(|of| of.node != without.node).copied().collect();
            let (mut cluster, ids) = with_nodes(&bed, &request, &others);
            let gone = plan.removals.iter().map(|one| one.node);
            gone.for_each(|node| cluster.set_draining(node, true));
            let id = |node: NodeId| others.iter().position(|of| of.node == node).map_or(node, |at| ids[at]);
            let mut own = None;
            for (node, requests) in &seen.contents {
                if *node == without.node {
                    own = Some(requests);
                } else {
                    prop_assert!(place_all(&mut cluster, Some(id(*node)), requests));
                }
            }
            let own = own.expect("a node that was added holds something");
            prop_assert!(!place_all(&mut cluster, None, own), "{} is superfluous", without.node);
        }
    }
}
