//! Why jobs wait is told as it is, and what is said to help does help.

mod domains;

use super::*;
use crate::jobs::{Change, JobExplanation, PendingReason, Remedy};
use crate::resource::GpuRequest;

/// A cluster whose running tasks have a core each, and one job that waits.
#[derive(Clone, Debug)]
struct State {
    rules: usize,
    nodes: Vec<u32>,
    /// The queue and the node of each running task.
    running: Vec<(usize, usize)>,
    /// The caps of two queues, and of the one that contains them.
    caps: [Option<u32>; 3],
    queue: usize,
    tasks: u32,
    min_member: u32,
    cpu: u32,
}

const RULES: [&[PluginKind]; 3] = [
    &[PluginKind::Gang],
    &[PluginKind::Gang, PluginKind::Proportion],
    &[PluginKind::Gang, PluginKind::Capacity],
];

const QUEUES: [&str; 3] = ["a", "b", "above"];

fn states() -> impl Strategy<Value = State> {
    let cap = || prop::option::of(1..9_u32);
    let of_cluster = (
        0..RULES.len(),
        prop::collection::vec(1..7_u32, 1..4),
        prop::collection::vec((0..2_usize, 0..4_usize), 0..14),
        [cap(), cap(), cap()],
    );
    (of_cluster, (0..2_usize, 1..5_u32, 0..5_u32, 1..5_u32)).prop_map(
        |((rules, nodes, running, caps), (queue, tasks, min_member, cpu))| State {
            rules,
            nodes,
            running,
            caps,
            queue,
            tasks,
            min_member: min_member.min(tasks),
            cpu,
        },
    )
}

/// A state at work: the job that waits, and the running tasks with their queues.
struct Waiting {
    bed: Bed,
    queues: [QueueId; 3],
    job: JobId,
    running: Vec<(TaskId, usize)>,
}

impl Waiting {
    fn new(state: &State) -> Self {
        let mut bed = Bed::new(PLACE, &[RULES[state.rules]], &state.nodes);
        let spec = |at: usize, parent: QueueId| {
            let cap = state.caps[at].map(|cap| (Dim::CPU, i64::from(cap) * Amount::SCALE));
            QueueSpec { parent, capability: cap.into_iter().collect(), ..QueueSpec::new(QUEUES[at]) }
        };
        let jobs = bed.cluster.scheduler_mut().jobs_mut();
        let above = jobs.add_queue(spec(2, QueueId::ROOT)).unwrap();
        let [a, b] = [0, 1].map(|at| jobs.add_queue(spec(at, above)).unwrap());
        let queues = [a, b, above];
        let mut running = Vec::new();
        let mut free = state.nodes.clone();
        for (number, &(queue, node)) in state.running.iter().enumerate() {
            let node = node % free.len();
            if free[node] > 0 {
                free[node] -= 1;
                let job = bed.job(&format!("r{number}"), queues[queue], 0, 1, 1, 0);
                bed.run(job, node);
                running.push((TaskId { job, index: 0 }, queue));
            }
        }
        let job = bed.job("waits", queues[state.queue], state.min_member, state.tasks, state.cpu, 0);
        bed.cycle();
        Self { bed, queues, job, running }
    }

    fn explain(&mut self) -> JobExplanation {
        self.bed.cluster.explain(self.job, None)
    }

    fn placed(&self) -> u32 {
        self.bed.count(self.job, TaskState::Bound)
    }

    /// Ends running tasks that hold so much, of a queue or on a node. Returns false if there are not as many.
    fn end(&mut self, amount: i64, queue: Option<&str>, node: Option<NodeId>) -> bool {
        let is_meant = |(task, of): &(TaskId, usize)| {
            let of_queue =
                queue.is_none_or(|name| name == QUEUES[*of] || name == QUEUES[2] || name == "root");
            let jobs = self.bed.cluster.scheduler().jobs();
            of_queue && node.is_none_or(|node| jobs.task(*task).node == Some(node))
        };
        let count = usize::try_from((amount + Amount::SCALE - 1) / Amount::SCALE).unwrap();
        let ended: Vec<(TaskId, usize)> =
            self.running.iter().filter(|one| is_meant(one)).take(count).copied().collect();
        if ended.len() < count {
            return false;
        }
        for one in ended {
            self.running.retain(|other| *other != one);
            self.bed.cluster.finish_task(one.0);
        }
        true
    }

    fn add_nodes(&mut self, count: u64, cpu: u32) {
        for _ in 0..count {
            let node = self.bed.cluster.add_node(node(cpu)).unwrap();
            self.bed.nodes.push(node);
        }
    }

    /// Makes a change. Returns false if that is not possible here.
    fn make(&mut self, change: &Change, state: &State) -> bool {
        let cores = |amounts: &Amounts| u32::try_from(amounts.get(Dim::CPU) / Amount::SCALE).unwrap();
        match &change.remedy {
            Remedy::FreeOnNode { node, amounts, of } => {
                return self.end(amounts.get(Dim::CPU), of.as_deref(), *node);
            }
            Remedy::MoreNodes { count, like } => {
                let like = like.expect("the operator sees all nodes");
                let at = self.bed.nodes.iter().position(|&node| node == like).expect("it is there");
                self.add_nodes(*count, state.nodes[at]);
            }
            Remedy::LargerNodes { count, amounts } => self.add_nodes(*count, cores(amounts)),
            Remedy::RaiseCap { queue, dim, by } => {
                let name = queue.as_deref().expect("the operator sees all queues");
                let at = QUEUES.iter().position(|of| *of == name).expect("it has a cap");
                let now = self.bed.cluster.now();
                let jobs = self.bed.cluster.scheduler_mut().jobs_mut();
                let mut spec = jobs.queue(self.queues[at]).spec().clone();
                let cap = spec.capability.get(*dim).expect("it has a cap");
                spec.capability.set(*dim, cap + by);
                jobs.update_queue(self.queues[at], spec, now).unwrap();
            }
            Remedy::Release { queue, amounts } => {
                return self.end(amounts.get(Dim::CPU), queue.as_deref(), None);
            }
            Remedy::Capacity { .. }
            | Remedy::MoreNodesInDomain { .. }
            | Remedy::LargerNodesInDomain { .. }
            | Remedy::FreeInDomain { .. }
            | Remedy::RunTime(_)
            | Remedy::RaiseAllocations { .. }
            | Remedy::EndAllocations { .. } => panic!("nothing here asks for it: {change:?}"),
        }
        true
    }
}

/// Groups of changes: of each group, one is needed.
fn groups(changes: &[Change]) -> Vec<Vec<Change>> {
    let mut groups: Vec<Vec<Change>> = Vec::new();
    for change in changes {
        match groups.last_mut().filter(|_| change.instead) {
            Some(group) => group.push(change.clone()),
            None => groups.push(vec![change.clone()]),
        }
    }
    groups
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A job that waits starts after the changes that are said to help, in each of the ways that are told. Without one of
    /// them, it does not.
    #[test]
    fn a_job_starts_after_the_changes_that_are_said_to_help(state in states()) {
        let mut waiting = Waiting::new(&state);
        let told = waiting.explain();
        let pending = waiting.bed.count(waiting.job, TaskState::Pending);
        if pending == 0 {
            prop_assert_eq!(told.reason, PendingReason::None);
            prop_assert!(told.changes.is_empty());
            return Ok(());
        }
        prop_assert!(!told.changes.is_empty(), "{:?}", told);
        let all = groups(&told.changes);
        let ways = all.iter().map(Vec::len).max().unwrap();
        for way in 0..ways {
            let mut waiting = Waiting::new(&state);
            let before = waiting.placed();
            let chosen: Vec<&Change> = all.iter().map(|group| group.get(way).unwrap_or(&group[0])).collect();
            if !chosen.iter().all(|change| waiting.make(change, &state)) {
                continue;
            }
            waiting.bed.cycle();
            let placed = waiting.placed();
            prop_assert!(placed > before && placed >= state.min_member, "{:?} after {:?}: {}", told, chosen, placed);
        }
        // Without any change, it goes on to wait.
        waiting.bed.cycle();
        prop_assert_eq!(waiting.bed.count(waiting.job, TaskState::Pending), pending);
    }

    /// The bounds that are told are those by which cycles decide: what keeps a task from its queue's share or cap is told,
    /// and nothing else.
    #[test]
    fn bounds_are_told_if_and_only_if_they_are_in_the_way(state in states()) {
        let mut waiting = Waiting::new(&state);
        let told = waiting.explain();
        let by_queue = matches!(told.cause, PendingReason::Cap | PendingReason::Share)
            || matches!(told.reason, PendingReason::Cap | PendingReason::Share | PendingReason::Overused);
        if by_queue {
            prop_assert!(!told.bounds.is_empty(), "{:?}", told);
        }
        for bound in &told.bounds {
            prop_assert!(bound.used + bound.asked > bound.bound, "{:?}", bound);
            let held: i64 = bound.holders.iter().map(|holder| holder.amount).sum();
            prop_assert!(held <= bound.used, "{:?}", bound);
            // What the job itself has is not told.
            let own = waiting.bed.jobs().job(waiting.job).usage().planned().get(Dim::CPU);
            prop_assert_eq!(bound.used > own, held > 0, "{:?}", bound);
        }
    }

    /// As many tasks are placed as nodes are said to have room for.
    #[test]
    fn nodes_have_room_for_as_many_tasks_as_is_told(
        nodes in prop::collection::vec((0..9_u32, 0..3_u8), 1..5),
        first in (1..40_u32, 0..12_u16),
        then in (5..40_u32, 0..4_u8, 1..12_u16),
    ) {
        let mut bed = Bed::new(PLACE, &[&[PluginKind::Gang]], &[]);
        for &(cpu, gpus) in &nodes {
            bed.cluster.add_node(NodeSpec { gpus, ..node(cpu) }).unwrap();
        }
        let queue = bed.queue("q", 1);
        let mut submit = |name: &str, cpu: u32, gpu: GpuRequest, count: u32| {
            let cpu = Amount::try_from_units(i64::from(cpu) * 1_000).unwrap();
            let demand = Demand { cpu, gpu, ..Demand::default() };
            let group = TaskGroup::new(PlacementRequest::new(demand, Policy::BestFit), count);
            let id = bed.job(name, queue, 0, 1, 1, 0);
            let spec = bed.jobs().job(id).spec().clone();
            let name = format!("{name}-of-all").as_str().into();
            let jobs = bed.cluster.scheduler_mut().jobs_mut();
            jobs.set(TaskId { job: id, index: 0 }, TaskState::Failed, None, crate::time::Time(0));
            let job = jobs.submit(JobSpec { name, tasks: vec![group], ..spec }).unwrap();
            bed.cycle();
            job
        };
        let part = |tenths: u16| if tenths == 0 { GpuRequest::None } else { GpuRequest::Fraction(tenths.min(9) * 1_000) };
        submit("first", first.0, part(first.1), 3);
        let (cpu, whole, tenths) = then;
        let gpu = if whole > 0 { GpuRequest::Whole(whole) } else { part(tenths) };
        // The room is told for one task more than there is room for.
        let many = submit("many", cpu, gpu, 200);
        let placed = bed.count(many, TaskState::Bound);
        prop_assert!(placed < 200);
        let told = bed.cluster.explain(many, None);
        let room = &told.nodes.as_ref().expect("it waits for a node").room;
        prop_assert_eq!((room.places, room.fits), (0, 0), "all that fits is placed");
        prop_assert_eq!(told.reason, PendingReason::NoNode);
        // Without them, there is room for as many.
        let tasks: Vec<TaskId> = (0..200).map(|index| TaskId { job: many, index }).collect();
        for task in tasks {
            if bed.jobs().task(task).state == TaskState::Bound {
                bed.cluster.fail_task(task, None);
            }
        }
        let told = bed.cluster.explain(many, None);
        let room = &told.nodes.as_ref().expect("it waits for a node").room;
        prop_assert_eq!(room.places, u64::from(placed));
    }
}

/// Submits a job of equal tasks, all of which it needs.
fn submit(bed: &mut Bed, name: &str, queue: QueueId, cpu: u32, run_time_s: Option<u64>) -> JobId {
    let template = bed.job(&format!("template-of-{name}"), queue, 1, 1, cpu, 0);
    let mut spec = JobSpec { name: name.into(), ..bed.jobs().job(template).spec().clone() };
    spec.tasks[0].run_time_ns = run_time_s.map(|seconds| seconds * 1_000_000_000);
    let jobs = bed.cluster.scheduler_mut().jobs_mut();
    jobs.set(TaskId { job: template, index: 0 }, TaskState::Failed, None, crate::time::Time(0));
    jobs.submit(spec).unwrap()
}

#[test]
fn a_job_that_would_delay_another_is_told_how_long_it_may_run() {
    let tiers = vec![vec![PluginConfig::new(PluginKind::Gang)]];
    let config =
        CycleConfig { actions: PLACE.to_vec(), tiers, backfill: Backfill::Easy, ..CycleConfig::default() };
    let mut bed = Bed::with(config, &[4]);
    let queue = bed.queue("q", 1);
    let runs = submit(&mut bed, "runs", queue, 3, Some(100));
    bed.run(runs, 0);
    let first = submit(&mut bed, "first", queue, 4, None);
    let long = submit(&mut bed, "long", queue, 1, None);
    bed.cycle();
    let told = bed.cluster.explain(first, None);
    let date = crate::time::Time(100_000_000_000);
    assert_eq!((told.reason, told.date), (PendingReason::NoNode, Some(date)));
    let told = bed.cluster.explain(long, None);
    let held = told.held_by.expect("it is held back");
    assert_eq!((told.reason, held.job, held.date), (PendingReason::Reservation, Some(first), date));
    let [Change { remedy: Remedy::RunTime(most), .. }] = &told.changes[..] else {
        panic!("a run time: {:?}", told.changes)
    };
    let short = submit(&mut bed, "short", queue, 1, Some(*most / 1_000_000_000));
    bed.cycle();
    assert_eq!(bed.count(short, TaskState::Bound), 1);
    assert_eq!(bed.count(long, TaskState::Pending), 1);
}

#[test]
fn claims_and_jobs_for_which_nobody_is_evicted_are_told() {
    let actions = [Action::Enqueue, Action::Allocate, Action::Preempt];
    let mut bed = Bed::new(&actions, &[&[PluginKind::Priority, PluginKind::Gang]], &[4]);
    let queue = bed.queue("q", 1);
    let runs = bed.job("runs", queue, 0, 4, 1, 5);
    (0..4).for_each(|_| bed.run(runs, 0));
    let equal = bed.job("equal", queue, 1, 1, 2, 5);
    bed.cycle();
    let told = bed.cluster.explain(equal, None);
    assert_eq!((told.reason, told.no_victims), (PendingReason::NoNode, vec!["preempt"]));
    let higher = bed.job("higher", queue, 1, 1, 2, 9);
    let changes = bed.cycle();
    assert_eq!((changes.evicted.len(), changes.pipelined.len()), (2, 1));
    let told = bed.cluster.explain(higher, None);
    assert_eq!((told.reason, told.claims.claimed), (PendingReason::Claim, 1));
    assert!(told.changes.is_empty() && told.no_victims.is_empty());
    bed.advance(GRACE);
    assert_eq!(bed.cluster.explain(higher, None).reason, PendingReason::None);
}

#[test]
fn tasks_that_all_wait_for_a_cap_are_explained_like_pending_ones() {
    let of_cap = |raised: i64| {
        let mut bed = Bed::new(PLACE, &[&[PluginKind::Gang]], &[8]);
        let capability: Caps = [(Dim::CPU, 3 * Amount::SCALE)].into_iter().collect();
        let spec = QueueSpec { capability, ..QueueSpec::new("q") };
        let queue = bed.cluster.scheduler_mut().jobs_mut().add_queue(spec.clone()).unwrap();
        let runs = submit(&mut bed, "runs", queue, 3, Some(100));
        bed.run(runs, 0);
        let first = bed.job("first", queue, 2, 2, 1, 0);
        let second = bed.job("second", queue, 1, 1, 1, 0);
        bed.advance(101_000_000_000);
        let changes = bed.cycle();
        assert_eq!((changes.evicted.len(), changes.pipelined.len()), (1, 3));
        let told = [(first, None), (second, None), (second, Some(0))]
            .map(|(job, task)| bed.cluster.explain(job, task));
        let capability: Caps = [(Dim::CPU, (3 + raised) * Amount::SCALE)].into_iter().collect();
        let now = bed.cluster.now();
        let jobs = bed.cluster.scheduler_mut().jobs_mut();
        jobs.update_queue(queue, QueueSpec { capability, ..spec }, now).unwrap();
        bed.cycle();
        (told, [first, second].map(|job| bed.count(job, TaskState::Bound)))
    };
    let (told, _) = of_cap(0);
    // What waits itself is not in use, and neither is what waits behind it.
    for (told, (used, asked, before)) in told.iter().zip([(3, 2, 0), (5, 1, 1), (5, 1, 1)]) {
        assert_eq!((told.reason, told.task, told.claims.claimed), (PendingReason::Cap, Some(0), 0));
        assert_eq!((told.place.before, told.place.waiting), (before, 2));
        let [bound] = &told.bounds[..] else { panic!("one bound: {:?}", told.bounds) };
        let cores = [bound.bound, bound.used, bound.asked].map(|amount| amount / Amount::SCALE);
        assert_eq!(cores, [3, used, asked]);
        let held: i64 = bound.holders.iter().map(|holder| holder.amount).sum();
        assert_eq!(held, bound.used, "{:?}", bound.holders);
        assert!(told.nodes.as_ref().is_some_and(|nodes| nodes.room.places == 5), "{:?}", told.nodes);
        let by = (used + asked - 3) * Amount::SCALE;
        let amounts = [(Dim::CPU, by)].into_iter().collect();
        let queue = Some("q".into());
        let ways = [
            Remedy::RaiseCap { queue: Some("q".into()), dim: Dim::CPU, by },
            Remedy::Release { queue, amounts },
        ];
        assert!(told.changes.iter().map(|change| &change.remedy).eq(&ways), "{:?}", told.changes);
    }
    // What is said to help does, and less does not.
    assert_eq!([1, 2, 3].map(|raised| of_cap(raised).1), [[0, 0], [2, 0], [2, 1]]);
}

#[test]
fn a_reason_is_forgotten_when_the_job_is_placed() {
    let mut bed = Bed::new(PLACE, &[&[PluginKind::Gang]], &[2]);
    let queue = bed.queue("q", 1);
    let job = bed.job("large", queue, 1, 1, 3, 0);
    bed.cycle();
    assert_eq!(bed.cluster.explain(job, None).reason, PendingReason::NoNode);
    bed.cluster.add_node(node(3)).unwrap();
    bed.cycle();
    let told = bed.cluster.explain(job, Some(0));
    assert_eq!((told.reason, told.state), (PendingReason::None, Some(TaskState::Bound)));
    assert!(told.changes.is_empty() && told.nodes.is_none() && told.tried.is_none());
}

#[test]
fn the_nearest_node_and_the_place_in_the_queue_are_told() {
    let mut bed = Bed::new(PLACE, &[&[PluginKind::Priority, PluginKind::Gang]], &[8, 8, 2]);
    let queue = bed.queue("q", 1);
    for (number, (cpu, node)) in [(5, 0), (6, 1)].into_iter().enumerate() {
        let runs = bed.job(&format!("runs-{number}"), queue, 1, 1, cpu, 0);
        bed.run(runs, node);
    }
    let first = bed.job("first", queue, 1, 1, 5, 9);
    let second = bed.job("second", queue, 1, 1, 4, 0);
    bed.cycle();
    let told = bed.cluster.explain(second, None);
    assert_eq!((told.place.before, told.place.waiting), (1, 2));
    let free = Remedy::FreeOnNode {
        node: Some(bed.nodes[0]),
        amounts: [(Dim::CPU, Amount::SCALE)].into_iter().collect(),
        of: None,
    };
    let more = Remedy::MoreNodes { count: 1, like: Some(bed.nodes[0]) };
    let changes: Vec<_> = told.changes.iter().map(|change| (change.instead, change.remedy.clone())).collect();
    assert_eq!(changes, [(false, free), (true, more)]);
    let scarce = told.scarce.expect("nodes lack cores");
    assert_eq!((scarce.dim, scarce.holders[0].amount), (Dim::CPU, 11 * Amount::SCALE));
    let told = bed.cluster.explain(first, None);
    assert_eq!((told.place.before, told.reason), (0, PendingReason::NoNode));
}

#[test]
fn what_cannot_be_admitted_tells_how_much_is_missing() {
    let config = CycleConfig {
        actions: PLACE.to_vec(),
        tiers: vec![
            vec![PluginConfig::new(PluginKind::Gang)],
            vec![PluginConfig::new(PluginKind::Overcommit)],
        ],
        ..CycleConfig::default()
    };
    let mut bed = Bed::with(config, &[10]);
    let queue = bed.queue("q", 1);
    let least = |cpu: i64| Some([(Dim::CPU, cpu * Amount::SCALE)].into_iter().collect());
    for (name, cpu) in [("first", 10_i64), ("second", 5)] {
        let id = bed.job(&format!("of-{name}"), queue, 1, 1, u32::try_from(cpu).unwrap(), 0);
        let spec =
            JobSpec { name: name.into(), min_resources: least(cpu), ..bed.jobs().job(id).spec().clone() };
        let jobs = bed.cluster.scheduler_mut().jobs_mut();
        jobs.set(TaskId { job: id, index: 0 }, TaskState::Failed, None, crate::time::Time(0));
        jobs.submit(spec).unwrap();
    }
    bed.cycle();
    let second = bed.jobs().job_named("second").unwrap();
    let told = bed.cluster.explain(second, None);
    assert_eq!(told.reason, PendingReason::NotAdmitted);
    // Jobs are admitted for 12 cores. 15 need a cluster of 12.5.
    let [bound] = &told.bounds[..] else { panic!("one bound: {:?}", told.bounds) };
    assert_eq!((bound.bound, bound.asked), (12 * Amount::SCALE, 5 * Amount::SCALE));
    let [Change { remedy: Remedy::Capacity { amounts }, .. }] = &told.changes[..] else {
        panic!("more capacity: {:?}", told.changes)
    };
    assert_eq!(amounts.get(Dim::CPU), 25_000);
    bed.cluster.add_node(node(3)).unwrap();
    bed.cycle();
    assert_eq!(bed.jobs().job(second).phase(), JobPhase::Inqueue, "12.5 suffice, and so do 13");
}
