//! Queues by their dominant shares along the tree: whom they evict, and that this ends.

use super::*;

/// Hierarchical `drf`.
fn hdrf() -> PluginConfig {
    let mut plugin = PluginConfig::new(PluginKind::Drf);
    plugin.hierarchical = true;
    plugin
}

fn bed(tiers: Vec<Vec<PluginConfig>>, nodes: &[(u32, u32)]) -> Bed {
    let config = CycleConfig { tiers, grace_ns: GRACE, ..CycleConfig::default() };
    let mut bed = Bed::with(config, &[]);
    for &(cpu, memory) in nodes {
        let spec = NodeSpec { memory: Amount::whole(memory), ..node(cpu) };
        bed.nodes.push(bed.cluster.add_node(spec).unwrap());
    }
    bed
}

fn submit(bed: &mut Bed, number: usize, queue: QueueId, needs: u32, tasks: u32, (cpu, memory): (u32, u32)) {
    let demand = Demand { cpu: Amount::whole(cpu), memory: Amount::whole(memory), ..Demand::default() };
    let request = PlacementRequest::new(demand, Policy::BestFit);
    let priority = number as i32 % 3;
    let group = TaskGroup { priority, ..TaskGroup::new(request, tasks) };
    let spec = JobSpec {
        queue,
        min_member: needs,
        priority,
        created: bed.cluster.now(),
        ..JobSpec::new(&format!("j{number}"), vec![group])
    };
    bed.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap();
}

/// When another queue takes the rest of the kind that a queue waits for, the queues above it count what it has.
#[test]
fn a_queue_is_saturated_when_others_use_up_what_it_waits_for() {
    let mut bed = bed(vec![vec![hdrf()]], &[(10, 20)]);
    let add =
        |bed: &mut Bed, spec: QueueSpec| bed.cluster.scheduler_mut().jobs_mut().add_queue(spec).unwrap();
    let [a, b, other] = ["a", "b", "other"].map(|name| add(&mut bed, QueueSpec::new(name)));
    let [a1, a2] = ["a1", "a2"].map(|name| add(&mut bed, QueueSpec { parent: a, ..QueueSpec::new(name) }));
    submit(&mut bed, 0, a1, 0, 8, (1, 0));
    submit(&mut bed, 1, a2, 0, 1, (0, 1));
    bed.cycle();
    submit(&mut bed, 2, a1, 0, 8, (1, 0));
    submit(&mut bed, 3, a2, 0, 20, (0, 1));
    submit(&mut bed, 4, b, 0, 20, (0, 1));
    submit(&mut bed, 5, other, 0, 1, (2, 0));
    bed.cycle();
    let used = |queue: QueueId| {
        let used = bed.jobs().queue(queue).usage().planned();
        (used.get(Dim::CPU) / 10_000, used.get(Dim::MEMORY) / 10_000)
    };
    // Until `other` has the rest of the cpu, `a` counts as what `a2` has. Then it counts with 8 of 10 cores.
    assert_eq!([a1, a2, b, other].map(used), [(8, 0), (0, 4), (0, 16), (2, 0)]);
}

#[test]
fn a_queue_reclaims_its_share_of_a_tree() {
    let mut bed = bed(vec![vec![PluginConfig::new(PluginKind::Gang), hdrf()]], &[(8, 0)]);
    let add =
        |bed: &mut Bed, spec: QueueSpec| bed.cluster.scheduler_mut().jobs_mut().add_queue(spec).unwrap();
    let sci = add(&mut bed, QueueSpec::new("sci"));
    let eng = add(&mut bed, QueueSpec { weight: 3, ..QueueSpec::new("eng") });
    let [dev, prod] =
        ["dev", "prod"].map(|name| add(&mut bed, QueueSpec { parent: eng, ..QueueSpec::new(name) }));
    submit(&mut bed, 0, dev, 0, 8, (1, 0));
    bed.cycle();
    submit(&mut bed, 1, sci, 0, 8, (1, 0));
    submit(&mut bed, 2, prod, 0, 8, (1, 0));
    assert_eq!(bed.cycle().evicted.len(), 5);
    bed.advance(GRACE);
    let held = |queue: QueueId| bed.jobs().queue(queue).usage().held.get(Dim::CPU) / 10_000;
    assert_eq!([sci, dev, prod].map(held), [2, 3, 3]);
    assert_eq!(bed.cycle(), Changes::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Under a fixed demand, evictions end for any tree of queues, any weights, guarantees and sizes, with one or two kinds
    /// of resources, and with caps.
    #[test]
    fn evictions_end_in_a_tree(
        nodes in prop::collection::vec((2..9_u32, 2..9_u32), 1..4),
        shapes in prop::collection::vec(
            (0..4_usize, 1..4_u32, prop::option::weighted(0.2, 2..12_i64), prop::option::weighted(0.2, 0..6_i64)),
            2..8,
        ),
        jobs in prop::collection::vec((0..8_usize, 0..4_u32, 1..6_u32, 0..4_u32, 0..4_u32), 1..10),
        rules in 0..6_usize,
        whole_gangs in any::<bool>(),
        has_memory in any::<bool>(),
    ) {
        use PluginKind::{Conformance, Gang, Priority, Usage};
        let gang = || plugin(Gang, whole_gangs);
        let other = PluginConfig::new;
        let tiers = match rules {
            0 => vec![vec![hdrf()]],
            1 => vec![vec![gang(), hdrf()]],
            2 => vec![vec![other(Priority), gang(), hdrf()]],
            3 => vec![vec![other(Priority), gang(), other(Conformance)], vec![hdrf()]],
            4 => vec![vec![hdrf().without(Decision::Preemptable), gang()], vec![other(Priority)]],
            _ => vec![vec![other(Usage), gang()], vec![hdrf()]],
        };
        let mut bed = bed(tiers, &nodes);
        let mut queues = vec![QueueId::ROOT];
        for (number, &(parent, weight, cap, guarantee)) in shapes.iter().enumerate() {
            // Only queues below the root have guarantees, so that these add up.
            let parent = queues[parent % queues.len()];
            let guarantee = guarantee.filter(|_| parent == QueueId::ROOT);
            let guarantee = guarantee.map(|amount| amount.min(cap.unwrap_or(amount)));
            let spec = QueueSpec {
                parent,
                weight,
                capability: cap.map(|cap| (Dim::CPU, cap * 10_000)).into_iter().collect(),
                guarantee: guarantee.map(|amount| (Dim::CPU, amount * 10_000)).into_iter().collect(),
                ..QueueSpec::new(&format!("q{number}"))
            };
            queues.push(bed.cluster.scheduler_mut().jobs_mut().add_queue(spec).unwrap());
        }
        let leaves: Vec<QueueId> = queues.iter().copied()
            .filter(|&queue| bed.jobs().queue(queue).is_leaf())
            .collect();
        let evictions = settle_by(&mut bed, jobs.len(), |bed, number| {
            let (queue, needs, more, cpu, memory) = jobs[number];
            let memory = if has_memory { memory } else { 0 };
            let asked = if cpu + memory == 0 { (1, 0) } else { (cpu, memory) };
            submit(bed, number, leaves[queue % leaves.len()], needs, needs + more, asked);
        });
        prop_assert!(evictions.is_ok(), "evictions go on: {} so far", evictions.unwrap_err());
    }
}
