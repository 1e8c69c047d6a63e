//! Soft shares: when queues begin to ask, what cycles plan is within two of them as it should be. What stays with a queue
//! beyond that is what no rule may take from it.

use std::collections::BTreeMap;

use super::*;
use crate::fairness::Dim;
use crate::time::Time;

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

const PATIENCE: u64 = 60_000_000_000;

/// A job of a queue with YARN's fair shares.
struct Sharer {
    queue: QueueId,
    job: JobId,
}

/// Jobs with YARN's fair shares, and since when they and their queues are below their bounds.
struct Sharers {
    of: Vec<Sharer>,
    /// The part of its share below which a job starves, in 1/10,000.
    below: i64,
    jobs_since: BTreeMap<JobId, Time>,
    queues_since: BTreeMap<QueueId, Time>,
}

impl Sharers {
    /// Runs a cycle. Checks that jobs starve only by rules whose patience is over, that evictions are for them, and that jobs
    /// that give keep their shares.
    fn cycle(&mut self, bed: &mut Bed) -> Changes {
        let changes = bed.cycle();
        let now = bed.cluster.now();
        let starving = bed.cluster.scheduler().starving().to_vec();
        assert!(!starving.is_empty() || changes.evicted.is_empty(), "nobody starves, but {changes:?}");
        let is_over = |since: Option<&Time>| since.is_some_and(|since| since.plus_nanos(PATIENCE) <= now);
        let queue_of = |job: JobId| bed.jobs().job(job).spec().queue;
        for of in &starving {
            let by_share = of.fair_share.is_zero() || is_over(self.jobs_since.get(&of.job));
            let by_guarantee = of.guarantee.is_zero() || is_over(self.queues_since.get(&queue_of(of.job)));
            assert!(by_share && by_guarantee, "{of:?} at {now:?}, below since {:?}", self.jobs_since);
        }
        for victim in &changes.evicted {
            let share = bed.cluster.scheduler().job_fair_share(victim.job).get(Dim::CPU);
            assert!(planned_of(bed, victim.job) >= share, "{victim:?} was evicted");
        }
        // What a cycle does about it comes after it has found who is below.
        let was_below = |job: JobId| starving.iter().any(|of| of.job == job && !of.fair_share.is_zero());
        let was_queue_below =
            |queue: QueueId| starving.iter().any(|of| queue_of(of.job) == queue && !of.guarantee.is_zero());
        for Sharer { queue, job } in &self.of {
            let is_below = self.lacks(bed, *job) > 0 || was_below(*job);
            note(&mut self.jobs_since, *job, is_below, now);
            note(&mut self.queues_since, *queue, lacks(bed, *queue) > 0 || was_queue_below(*queue), now);
        }
        changes
    }

    /// Returns what a job lacks of the part of its share below which it starves.
    fn lacks(&self, bed: &Bed, job: JobId) -> i64 {
        let share = bed.cluster.scheduler().job_fair_share(job).get(Dim::CPU) * self.below / Amount::SCALE;
        share.min(bed.jobs().job(job).usage().demand().get(Dim::CPU)) - planned_of(bed, job)
    }

    /// Checks that no job lacks a whole task of the part of its share below which it starves, unless no job may give one. Nor
    /// does a queue lack a task of its guarantee for each of its jobs that wait.
    fn nobody_starves(&self, bed: &Bed, size: i64) {
        let asks = |of: &&Sharer| bed.jobs().job(of.job).pending().next().is_some();
        let giver_to = |queue: QueueId, is: &dyn Fn(&Sharer) -> bool| {
            self.of.iter().find(|sharer| is(sharer) && sharer.gives(bed, size, queue)).map(|of| of.job)
        };
        for taker in self.of.iter().filter(asks) {
            let lacking = self.lacks(bed, taker.job);
            let giver = giver_to(taker.queue, &|of| of.job != taker.job);
            assert!(lacking < size || giver.is_none(), "{:?} lacks {lacking}: {giver:?}", taker.job);
            let lacking = lacks(bed, taker.queue);
            let waiting = self.of.iter().filter(|of| of.queue == taker.queue).filter(asks).count() as i64;
            let giver = giver_to(taker.queue, &|of| of.queue != taker.queue);
            assert!(
                lacking < size * waiting || giver.is_none(),
                "queue {:?} lacks {lacking}: {giver:?}",
                taker.queue
            );
        }
    }
}

/// Notes whether something is below its bound.
fn note<K: Ord>(since: &mut BTreeMap<K, Time>, of: K, is_below: bool, now: Time) {
    if is_below {
        since.entry(of).or_insert(now);
    } else {
        since.remove(&of);
    }
}

/// Returns the cores that a job has or has claimed, in 1/10,000.
fn planned_of(bed: &Bed, job: JobId) -> i64 {
    bed.jobs().job(job).usage().planned().get(Dim::CPU)
}

/// Returns what a queue keeps of its guarantee, or lacks: what it asks for of it.
fn least(bed: &Bed, queue: QueueId) -> i64 {
    let of = bed.jobs().queue(queue);
    of.spec().guarantee.min(&of.usage().demand()).get(Dim::CPU)
}

/// Returns what a queue lacks of its guarantee.
fn lacks(bed: &Bed, queue: QueueId) -> i64 {
    least(bed, queue) - planned(bed, queue)
}

impl Sharer {
    /// Returns whether the job may lose a task of this size to one of a queue.
    fn gives(&self, bed: &Bed, size: i64, to: QueueId) -> bool {
        let share = bed.cluster.scheduler().job_fair_share(self.job).get(Dim::CPU);
        let has_place = bed.jobs().job(self.job).ready_tasks() > 0;
        let keeps_share = planned_of(bed, self.job) - size >= share;
        let keeps_guarantee = self.queue == to || planned(bed, self.queue) - size >= least(bed, self.queue);
        has_place && keeps_share && keeps_guarantee && is_reclaimable(bed, self.queue)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// `starve` does the same for jobs within two cycles after their patience, and nothing for a job before its own is over.
    /// Jobs that have starved for long take what the later ones make others give.
    #[test]
    fn nobody_starves_two_cycles_after_its_patience(
        nodes in prop::collection::vec(2_u32..8, 1..8),
        shapes in prop::collection::vec(
            (0_usize..4, 1_u32..5, prop::option::weighted(0.3, 1_i64..5), any::<bool>(), prop::bool::weighted(0.9)),
            2..6,
        ),
        jobs in prop::collection::vec((0_usize..6, 1_u32..30, any::<bool>()), 2..8),
        below in prop_oneof![Just(10_000_u32), 3_000_u32..10_000],
        size in 1_u32..4,
    ) {
        let cores: Vec<u32> = nodes.iter().map(|count| count * size).collect();
        let tiers = vec![vec![PluginConfig::new(PluginKind::Gang), fair_share(0)]];
        let actions = vec![Action::Enqueue, Action::Allocate, Action::Starve];
        let config = CycleConfig { actions, tiers, grace_ns: GRACE, ..CycleConfig::default() };
        let mut bed = Bed::with(config, &cores);
        let size_of_task = i64::from(size) * Amount::SCALE;
        let mut queues = vec![QueueId::ROOT];
        for (at, &(parent, weight, guarantee, is_fifo, reclaimable)) in shapes.iter().enumerate() {
            let parent = queues[parent % queues.len()];
            // Only queues below the root have guarantees, so that these add up.
            let guarantee = guarantee.filter(|_| parent == QueueId::ROOT).unwrap_or(0) * size_of_task;
            let spec = QueueSpec {
                parent,
                weight,
                guarantee: cpu(guarantee),
                ordering: if is_fifo { QueueOrdering::Fifo } else { QueueOrdering::Drf },
                reclaimable,
                starves_below: Some(below),
                fair_share_patience_ns: Some(PATIENCE),
                guarantee_patience_ns: Some(PATIENCE),
                ..QueueSpec::new(&format!("q{at}"))
            };
            queues.push(add(&mut bed, spec));
        }
        let leaves: Vec<QueueId> =
            queues.iter().copied().filter(|&queue| bed.jobs().queue(queue).is_leaf()).collect();
        let mut sharers = Sharers {
            of: Vec::new(),
            below: i64::from(below),
            jobs_since: BTreeMap::new(),
            queues_since: BTreeMap::new(),
        };
        let submit = |bed: &mut Bed, sharers: &mut Sharers, early: bool| {
            for (at, &(queue, tasks, _)) in jobs.iter().enumerate().filter(|(_, job)| job.2 == early) {
                let queue = leaves[queue % leaves.len()];
                sharers.of.push(Sharer { queue, job: bed.job(&format!("j{at}"), queue, 0, tasks, size, 0) });
            }
        };
        submit(&mut bed, &mut sharers, true);
        for _ in 0..4 {
            sharers.cycle(&mut bed);
            bed.advance(PATIENCE + GRACE);
        }
        sharers.cycle(&mut bed);
        submit(&mut bed, &mut sharers, false);
        sharers.cycle(&mut bed);
        bed.advance(PATIENCE - 1);
        sharers.cycle(&mut bed);
        bed.advance(1);
        sharers.cycle(&mut bed);
        sharers.cycle(&mut bed);
        sharers.nobody_starves(&bed, size_of_task);
        let is_at_rest = (0..8).any(|_| {
            bed.advance(GRACE);
            sharers.cycle(&mut bed).evicted.is_empty()
        });
        prop_assert!(is_at_rest, "cycles go on evicting");
        sharers.nobody_starves(&bed, size_of_task);
    }
}
