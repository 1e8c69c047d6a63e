//! Jobs that must be in one domain: what is said to help does help, and the nearest domain is told.

use super::super::topology::{GANG, Racks, Rules, TIERS, at, hard};
use super::*;
use crate::ids::TenantId;
use crate::jobs::{DomainLack, TopologyMode, TopologyRule};
use crate::limits::EXPLAIN_NODES_MAX;

/// A cluster of racks and blocks whose running tasks have a core each, and one job that waits.
#[derive(Clone, Debug)]
struct Cluster {
    nodes: Vec<([Option<u8>; 2], u32)>,
    /// The node of each running task.
    running: Vec<usize>,
    cap: Option<u32>,
    /// Each task group has so many tasks.
    groups: u32,
    tasks: u32,
    spare: u32,
    cpu: u32,
    rules: Rules,
    /// So many tasks of the job run on a node.
    begun: Option<(usize, u32)>,
}

impl Cluster {
    fn min_member(&self) -> u32 {
        (self.groups * self.tasks).saturating_sub(self.spare)
    }

    /// Returns whether several task groups need a domain each. Then one change after the other is told.
    fn is_divided(&self) -> bool {
        self.groups > 1 && self.rules[1].is_some()
    }
}

fn rules() -> impl Strategy<Value = Rules> {
    let of = |tier: usize| Some((TopologyMode::Hard, tier));
    prop_oneof![
        Just([of(0), None]),
        Just([of(1), None]),
        Just([None, of(0)]),
        Just([None, of(1)]),
        Just([of(1), of(0)]),
    ]
}

fn clusters() -> impl Strategy<Value = Cluster> {
    let node = (prop::option::weighted(0.9, 0..3_u8), prop::option::weighted(0.8, 0..2_u8), 1..6_u32);
    let of_nodes = (
        prop::collection::vec(node, 1..8),
        prop::collection::vec(0..8_usize, 0..14),
        prop::option::weighted(0.3, 1..12_u32),
    );
    let of_job = (1..4_u32, 1..5_u32, 0..3_u32, 1..4_u32, rules());
    let begun = prop::option::weighted(0.2, (0..8_usize, 1..3_u32));
    (of_nodes, of_job, begun).prop_map(|(of_nodes, (groups, tasks, spare, cpu, rules), begun)| {
        let (nodes, running, cap) = of_nodes;
        let nodes = nodes.into_iter().map(|(rack, block, cpu)| ([rack, block], cpu)).collect();
        Cluster { nodes, running, cap, groups, tasks, spare, cpu, rules, begun }
    })
}

/// A cluster at work.
struct Waiting {
    racks: Racks,
    job: JobId,
    running: Vec<TaskId>,
    cpu: u32,
}

impl Waiting {
    fn new(of: &Cluster) -> Self {
        let mut racks = Racks::new(PLACE, GANG, &of.nodes);
        let capability = of.cap.map(|cap| (Dim::CPU, i64::from(cap) * Amount::SCALE)).into_iter().collect();
        let spec = QueueSpec { capability, ..racks.bed.jobs().queue(racks.queue).spec().clone() };
        let now = racks.bed.cluster.now();
        racks.bed.cluster.scheduler_mut().jobs_mut().update_queue(racks.queue, spec, now).unwrap();
        let mut running = Vec::new();
        for (number, node) in of.running.iter().enumerate() {
            let node = node % of.nodes.len();
            if racks.free()[node] > 0 {
                let job = racks.job(&format!("r{number}"), &[1], 1, 1, [None, None], 0);
                racks.bed.run(job, node);
                running.push(TaskId { job, index: 0 });
            }
        }
        let counts = vec![of.tasks; of.groups as usize];
        let job = racks.job("waits", &counts, of.min_member(), of.cpu, of.rules, 0);
        if let Some((node, count)) = of.begun {
            let node = node % of.nodes.len();
            // They are of its first task group.
            for _ in 0..count.min(of.tasks) {
                if racks.free()[node] >= of.cpu {
                    racks.bed.run(job, node);
                }
            }
        }
        // Until it cannot have more.
        while racks.bed.cycle() != Changes::default() {}
        Self { racks, job, running, cpu: of.cpu }
    }

    fn explain(&mut self) -> JobExplanation {
        self.racks.bed.cluster.explain(self.job, None)
    }

    /// Explains in small steps.
    fn explain_in_steps(&mut self) -> JobExplanation {
        const BUDGET: u64 = 4;
        let scheduler = self.racks.bed.cluster.scheduler_mut();
        let mut explaining = scheduler.begin_explaining(self.job, None, None);
        loop {
            let (spent, is_done) = scheduler.explain_step(&mut explaining, BUDGET);
            assert!(spent <= BUDGET + u64::from(EXPLAIN_NODES_MAX), "{spent} units in a step");
            if is_done {
                return scheduler.explained(explaining);
            }
        }
    }

    fn placed(&self) -> usize {
        self.racks.nodes_of(self.job, None).len()
    }

    fn pending(&self) -> u32 {
        self.racks.bed.count(self.job, TaskState::Pending)
    }

    /// Returns whether tasks that run are in no domain that a rule allows: then no node helps.
    fn is_lost(&self, of: &Cluster) -> bool {
        let is_apart = |(rule, group): (&Option<(TopologyMode, usize)>, Option<u32>)| {
            let own = self.racks.nodes_of(self.job, group);
            let are_together = |tier: usize| (0..=tier).any(|tier| self.racks.share_a_domain(&own, tier));
            !own.is_empty() && rule.is_some_and(|(_, tier)| !are_together(tier))
        };
        of.rules.iter().zip([None, Some(0)]).any(is_apart)
    }

    /// Returns the indices of the nodes of a domain.
    fn inside(&self, domain: &str) -> Vec<usize> {
        let scheduler = self.racks.bed.cluster.scheduler();
        let is_inside = |at: &usize| {
            let path = scheduler.domain_path(self.racks.bed.nodes[*at]).unwrap_or_default();
            domain.split('/').zip(path.split('/').chain(std::iter::repeat(""))).all(|(a, b)| a == b)
        };
        (0..self.racks.bed.nodes.len()).filter(is_inside).collect()
    }

    /// Returns for how many tasks of the job a domain has room.
    fn room(&self, domain: &str) -> u32 {
        let free = self.racks.free();
        self.inside(domain).iter().map(|&at| free[at] / self.cpu).sum()
    }

    /// Ends a running task on one of some nodes. Returns false if there is none.
    fn end_one(&mut self, is_there: impl Fn(NodeId) -> bool) -> bool {
        let jobs = self.racks.bed.jobs();
        let is_meant = |task: &TaskId| jobs.task(*task).node.is_some_and(&is_there);
        let Some(at) = self.running.iter().position(is_meant) else { return false };
        let task = self.running.remove(at);
        self.racks.bed.cluster.finish_task(task);
        true
    }

    /// Ends running tasks, those on a node if one is named. Returns false if there are not as many.
    fn end_cores(&mut self, amount: i64, node: Option<NodeId>) -> bool {
        let count = (amount + Amount::SCALE - 1) / Amount::SCALE;
        (0..count).all(|_| self.end_one(|there| node.is_none_or(|node| there == node)))
    }

    /// Ends running tasks in a domain until it has so much room. Returns false if it never has.
    fn end_until(&mut self, domain: &str, room: u32) -> bool {
        let inside: Vec<NodeId> =
            self.inside(domain).into_iter().map(|at| self.racks.bed.nodes[at]).collect();
        while self.room(domain) < room {
            if !self.end_one(|node| inside.contains(&node)) {
                return false;
            }
        }
        true
    }

    /// Adds nodes in a domain, or in a new one of its tier.
    fn add_nodes(&mut self, count: u64, cpu: u32, lack: &DomainLack) {
        let tier = TIERS.iter().position(|tier| *tier == &*lack.tier).expect("it is one of the tiers");
        let mut values: [Option<u8>; 2] = [None; 2];
        match &lack.best {
            None => values[tier] = Some(9),
            Some(path) => {
                for (value, of) in values.iter_mut().rev().zip(path.split('/')) {
                    *value = of.parse().ok();
                }
            }
        }
        for _ in 0..count {
            let pair = |(tier, value): (&&str, Option<u8>)| {
                Some(((*tier).into(), value?.to_string().as_str().into()))
            };
            let labels = Labels::new(TIERS.iter().zip(values).filter_map(pair).collect()).unwrap();
            let name = format!("n{}", self.racks.labels.len()).as_str().into();
            let spec = NodeSpec { name, labels, ..node(cpu) };
            let node = self.racks.bed.cluster.add_node(spec).unwrap();
            self.racks.bed.nodes.push(node);
            self.racks.labels.push((values, cpu));
        }
    }

    /// Makes a change. `room` is what the domain has had. Returns false if that is not possible here.
    fn make(&mut self, change: &Change, lack: Option<&DomainLack>, room: u32) -> bool {
        let lack = || lack.expect("a domain is told");
        let cores = |amounts: &Amounts| u32::try_from(amounts.get(Dim::CPU) / Amount::SCALE).unwrap();
        match &change.remedy {
            Remedy::FreeOnNode { node, amounts, .. } => {
                return self.end_cores(amounts.get(Dim::CPU), *node);
            }
            Remedy::FreeInDomain { tasks, amounts } => {
                assert_eq!(cores(amounts), self.cpu);
                let room = room + u32::try_from(*tasks).unwrap();
                return self.end_until(lack().best.as_deref().expect("it has nodes"), room);
            }
            Remedy::MoreNodesInDomain { count, like } => {
                let at = self.racks.bed.nodes.iter().position(|&node| Some(node) == *like);
                let cpu = self.racks.labels[at.expect("the operator sees all nodes")].1;
                self.add_nodes(*count, cpu, lack());
            }
            Remedy::LargerNodesInDomain { count, amounts } => {
                self.add_nodes(*count, cores(amounts), lack());
            }
            Remedy::RaiseCap { dim, by, .. } => {
                let queue = self.racks.queue;
                let now = self.racks.bed.cluster.now();
                let jobs = self.racks.bed.cluster.scheduler_mut().jobs_mut();
                let mut spec = jobs.queue(queue).spec().clone();
                let cap = spec.capability.get(*dim).expect("it has a cap");
                spec.capability.set(*dim, cap + by);
                jobs.update_queue(queue, spec, now).unwrap();
            }
            Remedy::Release { amounts, .. } => return self.end_cores(amounts.get(Dim::CPU), None),
            other => panic!("nothing here asks for it: {other:?}"),
        }
        true
    }

    /// Makes changes in one of the ways that are told, and runs a cycle. Returns false if that is not possible here.
    fn follow(&mut self, told: &JobExplanation, way: usize) -> bool {
        let lack = told.domain.as_ref();
        let room = lack.and_then(|lack| lack.best.as_deref()).map_or(0, |best| self.room(best));
        let all = groups(&told.changes);
        let mut chosen = all.iter().map(|group| group.get(way).unwrap_or(&group[0]));
        if !chosen.all(|change| self.make(change, lack, room)) {
            return false;
        }
        self.racks.bed.cycle();
        true
    }

    /// Returns for how many more tasks the best domain has room that a rule of the job allows, by a look at all nodes.
    fn most(&self, widest: usize) -> usize {
        let own = self.racks.nodes_of(self.job, None);
        let free = self.racks.free();
        let nodes = &self.racks.bed.nodes;
        let mut most = 0;
        for (tier, &first) in (0..=widest).flat_map(|tier| nodes.iter().map(move |node| (tier, node))) {
            let all: Vec<NodeId> = own.iter().copied().chain([first]).collect();
            if self.racks.share_a_domain(&all, tier) {
                let domain = self.racks.domain(first, tier);
                let inside = nodes.iter().zip(&free);
                let inside = inside.filter(|(node, _)| self.racks.domain(**node, tier) == domain);
                most = most.max(inside.map(|(_, free)| (free / self.cpu) as usize).sum());
            }
        }
        most
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A job that must be in one domain starts after the changes that are said to help, in each of the ways that are told.
    /// If several task groups need a domain each, it does after one change after the other. Without them, it does not.
    #[test]
    fn a_job_starts_in_a_domain_after_the_changes_that_are_said_to_help(of in clusters()) {
        let mut waiting = Waiting::new(&of);
        let told = waiting.explain_in_steps();
        let pending = waiting.pending();
        if pending == 0 {
            prop_assert_eq!(told.reason, PendingReason::None);
            prop_assert!(told.changes.is_empty() && told.domain.is_none());
            return Ok(());
        }
        let at_once = waiting.explain();
        prop_assert_eq!((&told.changes, &told.domain), (&at_once.changes, &at_once.domain));
        let is_of_cap = |change: &Change| matches!(change.remedy, Remedy::RaiseCap { .. } | Remedy::Release { .. });
        if waiting.is_lost(&of) {
            prop_assert!(of.is_divided() || told.changes.iter().all(is_of_cap), "{:?}", told);
            return Ok(());
        }
        if let ([Some((_, widest)), None], Some(lack)) = (of.rules, &told.domain) {
            prop_assert_eq!(lack.holds as usize, waiting.most(widest) + waiting.placed(), "{:?}", lack);
        }
        prop_assert!(!told.changes.is_empty(), "{:?}", told);
        let ways = groups(&told.changes).iter().map(Vec::len).max().unwrap();
        let rounds = if of.is_divided() { 32 } else { 1 };
        for way in 0..ways {
            let mut waiting = Waiting::new(&of);
            let before = waiting.placed();
            let mut is_possible = true;
            for _ in 0..rounds {
                let told = waiting.explain();
                is_possible = waiting.follow(&told, way);
                if !is_possible || waiting.placed() > before {
                    break;
                }
            }
            // Others may have ended already for the cap.
            prop_assert!(is_possible || of.cap.is_some(), "way {} of {:?}", way, told);
            if is_possible {
                let placed = waiting.placed();
                prop_assert!(placed > before && placed >= of.min_member() as usize, "way {} of {:?}: {}", way, told, placed);
                waiting.racks.check_rules(waiting.job, of.groups, of.rules);
            }
        }
        waiting.racks.bed.cycle();
        prop_assert_eq!(waiting.pending(), pending);
    }
}

/// Returns what is told of a job that needs some tasks in one rack: what racks lack, and what would help.
fn told_of(racks: &mut Racks, tasks: u32, cpu: u32) -> (DomainLack, Vec<Remedy>) {
    let job = racks.job(&format!("of-{tasks}-{cpu}"), &[tasks], tasks, cpu, hard(0), 0);
    racks.bed.cycle();
    let told = racks.bed.cluster.explain(job, None);
    assert_eq!(told.reason, PendingReason::Topology);
    assert!(told.changes.iter().enumerate().all(|(at, change)| change.instead == (at > 0)));
    let changes = told.changes.into_iter().map(|change| change.remedy).collect();
    (told.domain.expect("no rack has room"), changes)
}

fn cores(count: i64) -> Amounts {
    [(Dim::CPU, count * Amount::SCALE)].into_iter().collect()
}

#[test]
fn the_nearest_domain_and_what_it_lacks_are_told() {
    let nodes = [(at(0, 0), 8), (at(0, 0), 4), (at(1, 0), 7), (at(2, 1), 7)];
    let mut racks = Racks::new(PLACE, GANG, &nodes);
    let runs = racks.job("runs", &[4], 4, 1, [None, None], 0);
    (0..4).for_each(|_| racks.bed.run(runs, 0));
    let first = Some(racks.bed.nodes[0]);
    let more = |count| Remedy::MoreNodesInDomain { count, like: first };
    let (lack, changes) = told_of(&mut racks, 6, 2);
    assert_eq!((lack.best.as_deref(), lack.holds, lack.needed), (Some("0/0"), 4, 6));
    assert_eq!(changes, [Remedy::FreeInDomain { tasks: 2, amounts: cores(2) }, more(1)]);
    let (lack, changes) = told_of(&mut racks, 5, 2);
    assert_eq!((lack.holds, lack.needed), (4, 5));
    assert_eq!(changes, [Remedy::FreeOnNode { node: first, amounts: cores(2), of: None }, more(1)]);
    // Whatever leaves, the rack has only 12 cores.
    let (lack, changes) = told_of(&mut racks, 17, 1);
    assert_eq!((lack.best.as_deref(), lack.holds), (Some("0/0"), 8));
    assert_eq!(changes, [more(2)]);
    // No node is large enough.
    let (lack, changes) = told_of(&mut racks, 1, 20);
    assert_eq!((lack.holds, lack.needed), (0, 1));
    assert_eq!(changes, [Remedy::LargerNodesInDomain { count: 1, amounts: cores(20) }]);
    // A tenant is told neither the domain nor the node.
    let job = racks.bed.jobs().job_named("of-6-2").unwrap();
    let scheduler = racks.bed.cluster.scheduler_mut();
    let mut explaining = scheduler.begin_explaining(job, None, Some(TenantId(0)));
    while !scheduler.explain_step(&mut explaining, 64).1 {}
    let told = scheduler.explained(explaining);
    assert_eq!(told.domain.map(|lack| (lack.best, lack.holds)), Some((None, 4)));
    assert_eq!(told.changes[1].remedy, Remedy::MoreNodesInDomain { count: 1, like: None });
}

/// Each kind of tasks has room in the rack, but not both.
#[test]
fn tasks_of_several_kinds_that_do_not_fit_together_are_told_what_helps() {
    let mut racks = Racks::new(PLACE, GANG, &[(at(0, 0), 6), (at(1, 0), 2)]);
    let group = |count: u32, cpu: u32| {
        let demand = Demand { cpu: Amount::whole(cpu), ..Demand::default() };
        TaskGroup::new(PlacementRequest::new(demand, Policy::BestFit), count)
    };
    let spec = JobSpec {
        queue: racks.queue,
        min_member: 5,
        topology: Some(TopologyRule::hard("rack")),
        ..JobSpec::new("j", vec![group(2, 3), group(3, 2)])
    };
    let job = racks.bed.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap();
    racks.bed.cycle();
    let mut waiting = Waiting { racks, job, running: Vec::new(), cpu: 3 };
    let told = waiting.explain();
    let lack = told.domain.as_ref().expect("no rack has room");
    assert_eq!((lack.best.as_deref(), lack.holds, lack.needed), (Some("0/0"), 3, 5));
    let like = Some(waiting.racks.bed.nodes[0]);
    let changes: Vec<_> = told.changes.iter().map(|change| change.remedy.clone()).collect();
    assert_eq!(changes, [Remedy::MoreNodesInDomain { count: 1, like }]);
    assert!(waiting.follow(&told, 0));
    assert_eq!(waiting.placed(), 5);
}

/// Each of two groups has room in a rack of its own, and a cap is in the way.
#[test]
fn racks_are_not_said_to_lack_room_if_a_cap_is_in_the_way() {
    let of = Cluster {
        nodes: vec![(at(0, 0), 4), (at(1, 0), 4)],
        running: Vec::new(),
        cap: Some(4),
        groups: 2,
        tasks: 3,
        spare: 0,
        cpu: 1,
        rules: [None, Some((TopologyMode::Hard, 0))],
        begun: None,
    };
    let told = Waiting::new(&of).explain();
    assert_eq!((told.reason, told.domain), (PendingReason::Cap, None));
    let remedies: Vec<_> = told.changes.into_iter().map(|change| change.remedy).collect();
    let [Remedy::RaiseCap { by, .. }] = &remedies[..] else { panic!("{remedies:?}") };
    assert_eq!(*by, 2 * Amount::SCALE);
}

/// Tasks that wait for a cap are looked at as if they had no nodes.
#[test]
fn tasks_that_wait_for_a_cap_are_told_once_and_keep_their_job_nowhere() {
    let mut racks = Racks::new(PLACE, GANG, &[(at(0, 0), 8), (at(1, 0), 1)]);
    let free = racks.bed.queue("free", 1);
    let now = racks.bed.cluster.now();
    let jobs = racks.bed.cluster.scheduler_mut().jobs_mut();
    let capability = [(Dim::CPU, 3 * Amount::SCALE)].into_iter().collect();
    let spec = QueueSpec { capability, ..jobs.queue(racks.queue).spec().clone() };
    jobs.update_queue(racks.queue, spec, now).unwrap();
    let runs = submit(&mut racks.bed, "runs", racks.queue, 3, Some(100));
    racks.bed.run(runs, 0);
    let job = racks.job("waits", &[2], 2, 1, hard(0), 0);
    racks.bed.advance(101_000_000_000);
    let changes = racks.bed.cycle();
    assert_eq!((changes.evicted.len(), changes.pipelined.len()), (1, 2));
    let other = submit(&mut racks.bed, "other", free, 5, None);
    racks.bed.run(other, 0);
    let told = racks.bed.cluster.explain(job, None);
    let lack = told.domain.expect("no rack has room for both");
    assert_eq!((lack.best.as_deref(), lack.holds, lack.needed), (Some("0/1"), 1, 2));
}
