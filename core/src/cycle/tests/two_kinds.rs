//! Queues that divide two kinds of resources, for tasks of any mixture: evictions end, whatever rule says what queues deserve.

use super::*;
#[cfg(debug_assertions)]
use crate::planted::{PlantedBug, with_planted};

impl Bed {
    /// A cluster of nodes with cores and memory.
    fn with_memory(config: CycleConfig, nodes: &[(u32, u32)]) -> Self {
        let mut bed = Self::with(config, &[]);
        for &(cpu, memory) in nodes {
            let spec = NodeSpec { memory: Amount::whole(memory), ..node(cpu) };
            bed.nodes.push(bed.cluster.add_node(spec).unwrap());
        }
        bed
    }

    /// Submits a job of equal tasks with cores and memory.
    fn job_with_memory(
        &mut self,
        name: &str,
        queue: QueueId,
        (min_member, tasks): (u32, u32),
        (cpu, memory): (u32, u32),
        priority: i32,
    ) -> JobId {
        let demand = Demand { cpu: Amount::whole(cpu), memory: Amount::whole(memory), ..Demand::default() };
        let request = PlacementRequest::new(demand, Policy::BestFit);
        let group = TaskGroup { priority, ..TaskGroup::new(request, tasks) };
        let created = self.cluster.now();
        let spec = JobSpec { queue, min_member, priority, created, ..JobSpec::new(name, vec![group]) };
        self.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap()
    }

    fn deserving(&mut self, name: &str, weight: u32, deserved: [Option<i64>; 2]) -> QueueId {
        let kinds = [Dim::CPU, Dim::MEMORY].into_iter().zip(deserved);
        let deserved = kinds.filter_map(|(dim, amount)| Some((dim, amount? * 10_000))).collect();
        let spec = QueueSpec { weight, deserved: Some(deserved), ..QueueSpec::new(name) };
        self.cluster.scheduler_mut().jobs_mut().add_queue(spec).unwrap()
    }
}

/// Runs cycles while five tasks of two queues fit, by their memory, and each queue deserves room for two and a half. Returns
/// what is evicted.
fn evicted_for_halves() -> Vec<TaskId> {
    let tiers: &[&[PluginKind]] =
        &[&[PluginKind::Priority, PluginKind::Gang, PluginKind::Conformance, PluginKind::Capacity]];
    let mut bed = Bed::with_memory(Bed::config(&CycleConfig::default().actions, tiers), &[(40, 20)]);
    for name in ["a", "b"] {
        let queue = bed.deserving(name, 1, [Some(20), Some(10)]);
        bed.job_with_memory(name, queue, (1, 4), (1, 4), 0);
    }
    assert_eq!(bed.cycle().bound.len(), 5);
    let mut evicted = Vec::new();
    for _ in 0..6 {
        bed.advance(GRACE);
        evicted.extend(bed.cycle().evicted);
    }
    evicted
}

#[test]
fn queues_do_not_take_back_what_they_have_too_much_of_already() {
    assert_eq!(evicted_for_halves(), [], "cores are left, but the memory would be beyond what it deserves");
}

#[cfg(debug_assertions)]
#[test]
fn queues_that_reclaim_more_than_they_deserve_are_found() {
    let evicted = with_planted(PlantedBug::ReclaimBeyondDeserved, evicted_for_halves);
    assert!(evicted.len() > 1, "they do not take from each other: {evicted:?}");
}

/// Returns how many tasks are evicted for one with a high priority that asks for memory only. Its queue has 2 cores and all the
/// memory, 4, in tasks of 1 core each, and deserves so much.
fn evicted_for_memory(deserved: [Option<i64>; 2], combination: Combination) -> usize {
    // The rule counts wherever `capacity` is.
    let tiers: &[&[PluginKind]] = &[&[PluginKind::Priority, PluginKind::Gang], &[PluginKind::Capacity]];
    let config = Bed::config(&CycleConfig::default().actions, tiers);
    let mut bed = Bed::with_memory(CycleConfig { combination, ..config }, &[(8, 4)]);
    let queue = bed.deserving("q", 1, deserved);
    bed.job_with_memory("low", queue, (0, 2), (1, 2), 0);
    assert_eq!(bed.cycle().bound.len(), 2);
    bed.job_with_memory("high", queue, (1, 1), (0, 2), 1);
    bed.cycle().evicted.len()
}

#[test]
fn a_queue_does_not_give_up_what_it_deserves_for_what_others_may_take() {
    // (cores and memory that the queue deserves, whether the task keeps its place)
    let cases = [
        ([None, None], false),
        ([Some(1), None], false),
        ([Some(2), None], true),
        ([Some(9), None], true),
        ([Some(2), Some(3)], true),
        // Nobody may take the memory from it.
        ([Some(2), Some(4)], false),
        ([None, Some(3)], false),
    ];
    for (deserved, stays) in cases {
        assert_eq!(evicted_for_memory(deserved, Combination::Strict), usize::from(!stays), "{deserved:?}");
    }
    assert_eq!(evicted_for_memory([Some(2), None], Combination::Volcano), 1, "Volcano has no such rule");
}

/// Without one of two tasks, the queue has too much memory with the other task instead. Without both, it has not.
#[test]
fn a_queue_gives_up_several_tasks_together() {
    let tiers: &[&[PluginKind]] = &[&[PluginKind::Priority, PluginKind::Gang, PluginKind::Capacity]];
    for (deserved, evicted) in [(4, 2), (3, 0)] {
        let mut bed = Bed::with_memory(Bed::config(&CycleConfig::default().actions, tiers), &[(8, 4)]);
        let queue = bed.deserving("q", 1, [Some(2), Some(deserved)]);
        bed.job_with_memory("low", queue, (0, 2), (1, 2), 0);
        assert_eq!(bed.cycle().bound.len(), 2);
        bed.job_with_memory("high", queue, (1, 1), (0, 4), 1);
        assert_eq!(bed.cycle().evicted.len(), evicted, "{deserved} of memory is deserved");
    }
}

#[test]
fn a_queue_from_which_nobody_reclaims_gives_up_what_its_priorities_say() {
    let tiers: &[&[PluginKind]] = &[&[PluginKind::Priority, PluginKind::Gang, PluginKind::Capacity]];
    let evicted = |actions: &[Action], reclaimable: bool| {
        let mut bed = Bed::with_memory(Bed::config(actions, tiers), &[(8, 4)]);
        let deserved = Some([(Dim::CPU, 20_000)].into_iter().collect());
        let spec = QueueSpec { deserved, reclaimable, ..QueueSpec::new("q") };
        let queue = bed.cluster.scheduler_mut().jobs_mut().add_queue(spec).unwrap();
        bed.job_with_memory("low", queue, (0, 2), (1, 2), 0);
        assert_eq!(bed.cycle().bound.len(), 2);
        bed.job_with_memory("high", queue, (1, 1), (0, 2), 1);
        bed.cycle().evicted.len()
    };
    assert_eq!(evicted(&[Action::Allocate, Action::Preempt, Action::Reclaim], true), 0);
    assert_eq!(evicted(&[Action::Allocate, Action::Preempt, Action::Reclaim], false), 1);
    assert_eq!(evicted(&[Action::Allocate, Action::Preempt], true), 1);
}

#[test]
fn a_queue_with_too_much_of_one_kind_keeps_another_kind_for_which_others_ask() {
    let evicted = |memory: i64, combination: Combination| {
        let config =
            Bed::config(&CycleConfig::default().actions, &[&[PluginKind::Priority, PluginKind::Capacity]]);
        let mut bed = Bed::with_memory(CycleConfig { combination, ..config }, &[(8, 4)]);
        let rich = bed.deserving("rich", 1, [Some(1), Some(memory)]);
        bed.job_with_memory("runs", rich, (0, 2), (2, 2), 0);
        assert_eq!(bed.cycle().bound.len(), 2);
        let poor = bed.deserving("poor", 1, [None, Some(2)]);
        bed.job_with_memory("waits", poor, (1, 1), (0, 2), 0);
        bed.cycle().evicted.len()
    };
    // It has 4 of 1 cores, and 4 of memory.
    assert_eq!([4, 3].map(|memory| evicted(memory, Combination::Strict)), [0, 1]);
    assert_eq!(evicted(0, Combination::Strict), 1, "of what it deserves nothing, it has too much");
    assert_eq!(evicted(4, Combination::Volcano), 1, "in Volcano, too much of any kind suffices");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(384))]

    /// Under a fixed demand for two kinds, evictions end.
    #[test]
    fn evictions_for_two_kinds_end_under_a_fixed_demand(
        nodes in prop::collection::vec((2..9_u32, 2..9_u32), 1..4),
        queues in prop::collection::vec(
            (1..4_u32, prop::option::weighted(0.8, 0..14_i64), prop::option::weighted(0.8, 0..14_i64)),
            2..5,
        ),
        jobs in prop::collection::vec(
            (0..5_usize, 1..4_u32, 1..6_u32, (0..4_u32, 0..5_u32), 0..3_i32),
            2..9,
        ),
        rules in 0..6_usize,
        whole_gangs in any::<bool>(),
    ) {
        use PluginKind::{Capacity, Drf, Gang, Priority, Proportion};
        let tiers: [&[&[PluginKind]]; 6] = [
            &[&[Priority, Gang, Capacity]],
            &[&[Priority, Gang, Capacity], &[Drf]],
            &[&[Drf, Gang, Capacity]],
            &[&[Gang, Capacity]],
            &[&[Priority, Gang, Proportion], &[Drf]],
            &[&[Gang, Proportion]],
        ];
        let plugin = |kind: &PluginKind| plugin(*kind, whole_gangs);
        let tiers = tiers[rules].iter().map(|tier| tier.iter().map(plugin).collect()).collect();
        let config = CycleConfig { tiers, grace_ns: GRACE, ..CycleConfig::default() };
        let mut bed = Bed::with_memory(config, &nodes);
        let queues: Vec<QueueId> = queues
            .iter()
            .enumerate()
            .map(|(number, &(weight, cpu, memory))| {
                bed.deserving(&format!("q{number}"), weight, [cpu, memory])
            })
            .collect();
        let evictions = settle_by(&mut bed, jobs.len(), |bed, number| {
            let (queue, min_member, more, amounts, priority) = jobs[number];
            let queue = queues[queue % queues.len()];
            let tasks = (min_member, min_member + more - 1);
            bed.job_with_memory(&format!("j{number}"), queue, tasks, amounts, priority);
        });
        prop_assert!(evictions.is_ok(), "evictions go on: {} so far", evictions.unwrap_err());
    }
}
