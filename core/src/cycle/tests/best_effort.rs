//! Gangs with tasks that ask for nothing: they start whole, and wait only if too few of their tasks find a place.

use super::*;
use crate::jobs::{TopologyMode, TopologyRule, TopologyTier};
use crate::node::{Operator, Selector, Term};

/// Tasks that ask for nothing: the kind of node that each needs, whether they are of the second role, and their number.
type Free = (Option<u8>, bool, u32);

/// A gang: its tasks of one core, the others, its minimum, those of its two roles, and whether it must be in one rack.
type Gang = (u32, Vec<Free>, u32, [u32; 2], bool);

struct Kinds {
    bed: Bed,
    /// The rack, the kind and the cores of each node.
    nodes: Vec<(u8, u8, u32)>,
    queue: QueueId,
}

impl Kinds {
    fn new(nodes: &[(u8, u8, u32)], allocations_max: Option<u32>) -> Self {
        let topology = vec![TopologyTier::labelled("rack", "rack")];
        let config = CycleConfig { topology, ..Bed::config(PLACE, &[&[PluginKind::Gang]]) };
        let mut bed = Bed::with(config, &[]);
        for &(rack, kind, cpu) in nodes {
            let pairs = [("rack", rack), ("kind", kind)].map(|(key, of)| (key.into(), of.to_string().into()));
            let spec = NodeSpec { labels: Labels::new(pairs.to_vec()).unwrap(), ..node(cpu) };
            bed.nodes.push(bed.cluster.add_node(spec).unwrap());
        }
        let spec = QueueSpec { allocations_max, ..QueueSpec::new("q") };
        let queue = bed.cluster.scheduler_mut().jobs_mut().add_queue(spec).unwrap();
        Self { bed, nodes: nodes.to_vec(), queue }
    }

    fn submit(&mut self, name: &str, (normal, free, min_member, minima, is_hard): &Gang) -> JobId {
        let request = |cpu: u32, kind: Option<u8>| {
            let demand = Demand { cpu: Amount::whole(cpu), ..Demand::default() };
            let mut request = PlacementRequest::new(demand, Policy::BestFit);
            let term = |kind: u8| Term {
                key: "kind".to_owned(),
                operator: Operator::In,
                values: vec![kind.to_string()],
            };
            request.selector = kind.map(|kind| Selector::new(vec![term(kind)]).into());
            request
        };
        let others = free.iter().map(|&(kind, is_second, count)| TaskGroup {
            role: u32::from(is_second),
            ..TaskGroup::new(request(0, kind), count)
        });
        let groups = std::iter::once(TaskGroup::new(request(1, None), *normal)).chain(others);
        let roles = ["first", "second"].into_iter().zip(minima);
        let rule = TopologyRule { mode: TopologyMode::Hard, tier: Some("rack".into()) };
        let spec = JobSpec {
            queue: self.queue,
            min_member: *min_member,
            roles: roles.map(|(name, &min_member)| Role { name: name.into(), min_member }).collect(),
            topology: is_hard.then_some(rule),
            created: self.bed.cluster.now(),
            ..JobSpec::new(name, groups.filter(|group| group.count > 0).collect())
        };
        self.bed.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap()
    }

    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..64 {
            let changes = self.bed.cycle();
            let later = self.bed.advance(GRACE);
            let is_quiet = changes == Changes::default() && later == Changes::default();
            quiet = if is_quiet { quiet + 1 } else { 0 };
            // In the first quiet round, a release may have ended: the next one places the task again.
            if quiet == 2 {
                return;
            }
        }
        panic!("cycles go on for ever");
    }

    /// Checks that a job has all that it needs, or that what it lacks does not fit, by a count over the nodes.
    fn check(&self, id: JobId, is_hard: bool) {
        let job = self.bed.jobs().job(id);
        assert_eq!(job.count(TaskState::Allocated), 0, "job {id} has a task that waits for others");
        let counts = |task: &&crate::jobs::Task| task.state.holds() || task.state == TaskState::Succeeded;
        let of_role = |role: u32| job.tasks().iter().filter(counts).filter(|task| task.role == role).count();
        let has = [of_role(0), of_role(1)].map(|count| u32::try_from(count).unwrap());
        let roles = &job.spec().roles;
        let lacks = [0, 1].map(|at| {
            if job.spec().roles_count() { roles[at].min_member.saturating_sub(has[at]) } else { 0 }
        });
        let lacking = job.spec().min_member.saturating_sub(has[0] + has[1]).max(lacks[0] + lacks[1]);
        if lacking == 0 {
            return;
        }
        let placed = |node: &NodeId| self.bed.nodes.iter().position(|of| of == node).unwrap();
        let racks: Vec<u8> =
            job.tasks().iter().filter_map(|task| Some(self.nodes[placed(task.node.as_ref()?)].0)).collect();
        let usage = self.bed.jobs().queue(self.queue);
        let most = usage.spec().allocations_max.map_or(u64::MAX, u64::from);
        let is_allowed = usage.usage().allocations() + u64::from(lacking) <= most;
        for rack in 0..3 {
            let inside = |of: u8| !is_hard || of == rack;
            if is_hard && racks.iter().any(|&of| of != rack) {
                continue;
            }
            let nodes: Vec<usize> = (0..self.nodes.len()).filter(|&at| inside(self.nodes[at].0)).collect();
            let used = |at: usize| {
                let tasks = self.bed.jobs().on_node(self.bed.nodes[at]).iter();
                let asking = tasks.filter(|&&task| !self.bed.jobs().task(task).class.is_best_effort());
                u32::try_from(asking.count()).unwrap()
            };
            let room: u32 = nodes.iter().map(|&at| self.nodes[at].2 - used(at)).sum();
            let mut normal = 0;
            let mut free = [0; 2];
            for task in job.tasks().iter().filter(|task| task.state == TaskState::Pending) {
                let selector = task.class.request.selector.as_ref();
                let holds = |at: usize| {
                    let pair = ("kind".into(), self.nodes[at].1.to_string().into());
                    selector.is_none_or(|of| of.holds(&Labels::new(vec![pair]).unwrap()))
                };
                if !task.class.is_best_effort() {
                    normal += 1;
                } else if nodes.iter().any(|&at| holds(at)) {
                    free[task.role as usize] += 1;
                }
            }
            let least = lacks[0].saturating_sub(free[0]).max(lacking.saturating_sub(free[0] + free[1]));
            let fits = lacks[1] <= free[1] && least <= normal.min(room);
            assert!(!(fits && is_allowed), "job {id} waits although its tasks fit in rack {rack}: {job:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(384))]

    /// For any kinds of nodes, caps, roles and racks: a gang starts with all that it needs or with nothing, and waits only if
    /// too few of its tasks find a place. So does one that has lost tasks, with what it lacks.
    #[test]
    fn gangs_start_whole_with_those_tasks_that_find_nodes(
        nodes in prop::collection::vec((0..3_u8, 0..3_u8, 1..4_u32), 1..6),
        gangs in prop::collection::vec((
            0..4_u32,
            prop::collection::vec((prop::option::of(0..4_u8), any::<bool>(), 1..3_u32), 1..4),
            1..6_u32,
            [0..3_u32, 0..3_u32],
            any::<bool>(),
        ), 1..5),
        allocations_max in prop::option::of(1..9_u32),
        ends in prop::collection::vec((0..4_usize, 0..9_u32), 0..5),
    ) {
        let mut kinds = Kinds::new(&nodes, allocations_max);
        let mut there = Vec::new();
        for (number, (normal, free, min_member, minima, is_hard)) in gangs.into_iter().enumerate() {
            let second: u32 = free.iter().filter(|of| of.1).map(|of| of.2).sum();
            let first = normal + free.iter().map(|of| of.2).sum::<u32>() - second;
            let minima = [minima[0].min(first), minima[1].min(second)];
            let gang = (normal, free, min_member.min(first + second), minima, is_hard);
            there.push((kinds.submit(&format!("j{number}"), &gang), is_hard));
        }
        kinds.settle();
        for &(job, is_hard) in &there {
            let of = kinds.bed.jobs().job(job);
            let lacks = crate::cycle::best_effort::Lacks::of(of);
            prop_assert!(of.ready_tasks() == 0 || lacks.is_none(), "job {} is started in part: {:?}", job, of);
            kinds.check(job, is_hard);
        }
        for (job, index) in ends {
            let Some(&(job, _)) = there.get(job) else { continue };
            let id = TaskId { job, index };
            if kinds.bed.jobs().has_task(id) && kinds.bed.jobs().task(id).state == TaskState::Bound {
                kinds.bed.cluster.evict(id, GRACE);
                kinds.settle();
                there.iter().for_each(|&(job, is_hard)| kinds.check(job, is_hard));
            }
        }
    }
}
