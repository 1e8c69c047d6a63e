//! Soft shares: when queues begin to ask, what cycles plan is within two of them as it should be. What stays with a queue
//! beyond that is what no rule may take from it.

use super::*;
use crate::fairness::Dim;

/// The rules by which queues reclaim.
const RULES: [fn() -> PluginConfig; 3] =
    [|| PluginConfig::new(PluginKind::Proportion), || PluginConfig::new(PluginKind::Capacity), hierarchical];

const CAPACITY: usize = 1;
const DRF: usize = 2;

fn hierarchical() -> PluginConfig {
    let mut plugin = PluginConfig::new(PluginKind::Drf);
    plugin.hierarchical = true;
    plugin
}

fn reclaiming(rule: usize, nodes: &[u32]) -> Bed {
    let tiers = vec![vec![PluginConfig::new(PluginKind::Gang), RULES[rule]()]];
    let actions = vec![Action::Enqueue, Action::Allocate, Action::Reclaim];
    Bed::with(CycleConfig { actions, tiers, grace_ns: GRACE, ..CycleConfig::default() }, nodes)
}

fn add(bed: &mut Bed, spec: QueueSpec) -> QueueId {
    bed.cluster.scheduler_mut().jobs_mut().add_queue(spec).unwrap()
}

fn cpu(amount: i64) -> Amounts {
    [(Dim::CPU, amount)].into_iter().collect()
}

/// Returns the cores that a queue has or has claimed, in 1/10,000.
fn planned(bed: &Bed, queue: QueueId) -> i64 {
    bed.jobs().queue(queue).usage().planned().get(Dim::CPU)
}

/// Returns the cores that a queue deserves, in 1/10,000.
fn deserved(bed: &Bed, queue: QueueId) -> i64 {
    bed.cluster.scheduler().deserved(queue).expect("the rule says what it deserves").get(Dim::CPU)
}

/// Returns whether others may take from a queue: no queue that contains it forbids that.
fn is_reclaimable(bed: &Bed, queue: QueueId) -> bool {
    bed.jobs().chain(queue).all(|outer| bed.jobs().queue(outer).spec().reclaimable)
}

/// Checks that nothing is evicted any more after the grace time, and that what is planned stays.
fn is_settled(bed: &mut Bed) {
    let all = |bed: &Bed| -> Vec<i64> { bed.jobs().queues().map(|(id, _)| planned(bed, id)).collect() };
    let before = all(bed);
    bed.advance(GRACE);
    let changes = bed.cycle();
    assert!(changes.evicted.is_empty(), "{changes:?}");
    assert_eq!(before, all(bed));
}

/// A queue that contains no others, and its only job.
struct Leaf {
    queue: QueueId,
    job: JobId,
    /// The least number of tasks that the job keeps.
    needs: u32,
}

impl Leaf {
    /// Returns whether the job has what it needs, and asks for more.
    fn asks(&self, bed: &Bed) -> bool {
        let job = bed.jobs().job(self.job);
        job.pending().next().is_some() && self.tasks(bed) >= self.needs
    }

    fn tasks(&self, bed: &Bed) -> u32 {
        [TaskState::Bound, TaskState::Running, TaskState::Pipelined]
            .map(|state| bed.count(self.job, state))
            .iter()
            .sum()
    }

    /// Returns whether the rule may take a task of this size from the queue.
    fn gives(&self, bed: &Bed, rule: usize, size: i64) -> bool {
        let planned = planned(bed, self.queue);
        // `drf` leaves a queue all that it deserves, the others no more than that.
        let has_too_much = if rule == DRF {
            planned - size >= deserved(bed, self.queue)
        } else {
            planned > deserved(bed, self.queue)
        };
        has_too_much && self.tasks(bed) > self.needs && is_reclaimable(bed, self.queue)
    }
}

/// Checks that no queue lacks a whole task of what it deserves, unless no other queue may give one.
fn is_fair(bed: &Bed, leaves: &[Leaf], rule: usize, size: i64) {
    for taker in leaves.iter().filter(|leaf| leaf.asks(bed)) {
        let [planned, deserved] = [planned(bed, taker.queue), deserved(bed, taker.queue)];
        let giver = leaves.iter().find(|leaf| leaf.queue != taker.queue && leaf.gives(bed, rule, size));
        assert!(
            deserved - planned < size || giver.is_none(),
            "{:?} has {planned} of {deserved}, and {:?} may give",
            taker.queue,
            giver.map(|leaf| leaf.queue)
        );
    }
}

proptest! {
    /// What is planned is what is deserved: one queue has everything, and its work may be evicted.
    #[test]
    fn planned_books_are_fair_within_two_cycles(
        weights in prop::collection::vec(1_u32..5, 2..5),
        nodes in prop::collection::vec(4_u32..10, 4..10),
        rule in 0..RULES.len(),
    ) {
        let mut bed = reclaiming(rule, &nodes);
        let cores: u32 = nodes.iter().sum();
        let sum: u32 = weights.iter().sum();
        let queues: Vec<QueueId> = weights.iter().enumerate().map(|(at, &weight)| {
            let part = i64::from(cores) * Amount::SCALE * i64::from(weight) / i64::from(sum);
            let deserved = (rule == CAPACITY).then(|| cpu(part));
            add(&mut bed, QueueSpec { weight, deserved, ..QueueSpec::new(&format!("q{at}")) })
        }).collect();
        // The first queue has everything before the others ask for as much.
        let first = bed.job("first", queues[0], 1, cores, 1, 0);
        for (node, &cpu) in nodes.iter().enumerate() {
            (0..cpu).for_each(|_| bed.run(first, node));
        }
        for (at, &queue) in queues.iter().enumerate().skip(1) {
            bed.job(&format!("j{at}"), queue, 1, cores, 1, 0);
        }
        bed.cycle();
        bed.cycle();
        for &queue in &queues[1..] {
            let [planned, deserved] = [planned(&bed, queue), deserved(&bed, queue)];
            // A task is whole, so up to one core of what is deserved is left.
            prop_assert!(planned <= deserved && deserved - planned < Amount::SCALE, "{planned} of {deserved}");
        }
        // What was given up is free after the grace time, and nothing moves any more.
        is_settled(&mut bed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// In any tree, for any demand: what a queue lacks after two cycles is held by work that may not be evicted, or is less
    /// than a task. Nobody gives more than it must.
    #[test]
    fn debt_after_two_cycles_is_what_nobody_may_take(
        nodes in prop::collection::vec(2_u32..8, 1..8),
        shapes in prop::collection::vec((0_usize..4, 1_u32..5, any::<bool>(), prop::bool::weighted(0.9)), 2..8),
        demands in prop::collection::vec((1_u32..40, prop::option::weighted(0.3, 1_u32..6)), 8),
        part in 5_i64..=10,
        size in 1_u32..4,
        rule in 0..RULES.len(),
    ) {
        // All tasks are of one size, so room for them is never in pieces.
        let cores: Vec<u32> = nodes.iter().map(|count| count * size).collect();
        let mut bed = reclaiming(rule, &cores);
        let total = i64::from(cores.iter().sum::<u32>()) * Amount::SCALE;
        let shares: i64 = shapes.iter().map(|shape| i64::from(shape.1)).sum();
        let mut queues = vec![QueueId::ROOT];
        for (at, &(parent, weight, _, reclaimable)) in shapes.iter().enumerate() {
            // Queues deserve no more than all together. A queue with others below it deserves nothing in particular.
            let amount = total * i64::from(weight) * part / (10 * shares);
            let spec = QueueSpec {
                parent: queues[parent % queues.len()],
                weight,
                deserved: (rule == CAPACITY).then(|| cpu(amount)),
                reclaimable,
                ..QueueSpec::new(&format!("q{at}"))
            };
            queues.push(add(&mut bed, spec));
        }
        let size_of_task = i64::from(size) * Amount::SCALE;
        let mut leaves: Vec<Leaf> = Vec::new();
        let submit = |bed: &mut Bed, leaves: &mut Vec<Leaf>, early: bool| {
            for (at, &queue) in queues.iter().enumerate().skip(1) {
                if shapes[at - 1].2 == early && bed.jobs().queue(queue).is_leaf() {
                    let (tasks, needs) = demands[at - 1];
                    let needs = needs.filter(|_| early).unwrap_or(0).min(tasks);
                    let job = bed.job(&format!("j{at}"), queue, needs, tasks, size, 0);
                    leaves.push(Leaf { queue, job, needs });
                }
            }
        };
        submit(&mut bed, &mut leaves, true);
        for _ in 0..4 {
            bed.cycle();
            bed.advance(GRACE);
        }
        bed.cycle();
        let before: Vec<i64> = leaves.iter().map(|leaf| planned(&bed, leaf.queue)).collect();
        submit(&mut bed, &mut leaves, false);
        // What is being released is not asked for until it has ended. So what queues deserve differs from cycle to cycle.
        let deserved_now = |bed: &Bed| -> Vec<i64> { leaves.iter().map(|leaf| deserved(bed, leaf.queue)).collect() };
        bed.cycle();
        let first = deserved_now(&bed);
        bed.cycle();
        is_fair(&bed, &leaves, rule, size_of_task);
        let second = deserved_now(&bed);
        let spare = if rule == DRF { 0 } else { size_of_task - 1 };
        for (at, (leaf, &before)) in leaves.iter().zip(&before).enumerate() {
            let [planned, deserved] = [planned(&bed, leaf.queue), first[at].min(second[at])];
            prop_assert!(planned >= before.min(deserved - spare), "{planned} of {deserved}, {before} before");
        }
        is_settled(&mut bed);
        is_fair(&bed, &leaves, rule, size_of_task);
    }
}
