//! Plans evict nobody without whom their tasks would have places as well.

use super::*;

const CONFIG: &[&[PluginKind]] = &[&[PluginKind::Priority, PluginKind::Gang]];

/// Submits a gang of tasks with so many cores each.
fn gang(bed: &mut Bed, name: &str, queue: QueueId, cores: &[u32], priority: i32) -> JobId {
    let request =
        |cpu| PlacementRequest::new(Demand { cpu: Amount::whole(cpu), ..Demand::default() }, Policy::BestFit);
    let groups = cores.iter().map(|&cpu| TaskGroup { priority, ..TaskGroup::new(request(cpu), 1) }).collect();
    let spec = JobSpec {
        queue,
        min_member: cores.len() as u32,
        priority,
        phase: JobPhase::Inqueue,
        created: bed.cluster.now(),
        ..JobSpec::new(name, groups)
    };
    bed.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap()
}

/// The node of the second task has room for both.
#[test]
fn a_victim_on_another_node_is_spared_if_one_node_holds_all() {
    for action in [Action::Preempt, Action::Reclaim] {
        let tiers: &[&[PluginKind]] = match action {
            Action::Preempt => CONFIG,
            _ => &[&[PluginKind::Gang, PluginKind::Proportion]],
        };
        let mut bed = Bed::new(&[Action::Allocate, action], tiers, &[1, 3]);
        let full = bed.queue("full", 1);
        let other = if action == Action::Preempt { full } else { bed.queue("other", 3) };
        let small = bed.job("small", full, 0, 1, 1, 0);
        bed.run(small, 0);
        let big = bed.job("big", full, 0, 1, 3, 0);
        bed.run(big, 1);
        let taker = gang(&mut bed, "taker", other, &[1, 2], 9);
        let changes = bed.cycle();
        assert_eq!(changes.evicted, [TaskId { job: big, index: 0 }], "{action:?}");
        assert_eq!((changes.pipelined.len(), bed.count(taker, TaskState::Pipelined)), (2, 2));
        bed.advance(GRACE);
        assert_eq!(bed.count(taker, TaskState::Bound), 2, "{action:?}");
    }
}

/// Returns whether both tasks fit on nodes with so many free cores.
fn both_fit(free: &[u32], tasks: [u32; 2]) -> bool {
    let [a, b] = tasks;
    (0..free.len()).any(|at| {
        (0..free.len()).any(
            |other| {
                if at == other { a + b <= free[at] } else { a <= free[at] && b <= free[other] }
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Compared with all ways to place two tasks.
    #[test]
    fn none_of_the_victims_of_two_tasks_can_be_spared(
        nodes in prop::collection::vec(1..7_u32, 1..4),
        running in prop::collection::vec((0..3_usize, 1..5_u32, 0..3), 1..8),
        tasks in [1..6_u32, 1..6_u32],
    ) {
        let mut bed = Bed::new(&[Action::Allocate, Action::Preempt], CONFIG, &nodes);
        let queue = bed.queue("q", 1);
        let mut free = nodes.clone();
        let mut running_on = Vec::new();
        for (number, (node, cpu, priority)) in running.into_iter().enumerate() {
            let node = node % nodes.len();
            if free[node] >= cpu {
                free[node] -= cpu;
                let job = bed.job(&format!("j{number}"), queue, 0, 1, cpu, priority);
                bed.run(job, node);
                running_on.push((job, node, cpu));
            }
        }
        gang(&mut bed, "taker", queue, &tasks, 9);
        let changes = bed.cycle();
        let evicted = |of: JobId| changes.evicted.iter().any(|task| task.job == of);
        for spared in running_on.iter().filter(|(job, ..)| evicted(*job)) {
            let mut without = free.clone();
            for &(job, node, cpu) in running_on.iter().filter(|of| evicted(of.0) && of.0 != spared.0) {
                prop_assert!(evicted(job));
                without[node] += cpu;
            }
            prop_assert!(!both_fit(&without, tasks), "{spared:?} of {changes:?} on {free:?}");
        }
    }
}
