//! Jobs in domains: where they are placed, that the rule is kept, and that a job waits only if no domain has room.

mod kept;

use std::collections::BTreeMap;

use super::*;
use crate::jobs::{PendingReason, TopologyDomain, TopologyMode, TopologyRule, TopologyTier};

pub(super) const TIERS: [&str; 2] = ["rack", "block"];

/// A cluster of nodes in domains, and what its jobs must keep.
pub(super) struct Racks {
    pub(super) bed: Bed,
    /// The values of each node, the narrowest tier first, and its cores.
    pub(super) labels: Vec<([Option<u8>; 2], u32)>,
    pub(super) queue: QueueId,
}

/// What a job demands of all its tasks, and of those of its only task group.
pub(super) type Rules = [Option<(TopologyMode, usize)>; 2];

impl Racks {
    /// Every second node has labels. The others are in objects instead.
    pub(super) fn new(actions: &[Action], tiers: &[&[PluginKind]], nodes: &[([Option<u8>; 2], u32)]) -> Self {
        let topology = TIERS.map(|name| TopologyTier::labelled(name, name)).to_vec();
        let mut domains: BTreeMap<(&str, String), TopologyDomain> = BTreeMap::new();
        let mut specs = Vec::new();
        for (at, &(values, cpu)) in nodes.iter().enumerate() {
            let mut spec = NodeSpec { name: format!("n{at}").into(), ..node(cpu) };
            let values =
                TIERS.iter().zip(values).filter_map(|(&tier, value)| Some((tier, format!("{}", value?))));
            if at % 2 == 0 {
                let pairs = values.map(|(tier, value)| (tier.into(), value.into())).collect();
                spec.labels = Labels::new(pairs).unwrap();
            } else {
                for (tier, value) in values {
                    let domain = domains.entry((tier, value.clone()));
                    let domain = domain.or_insert_with(|| TopologyDomain::new(tier, &value));
                    domain.nodes.push(Arc::clone(&spec.name));
                }
            }
            specs.push(spec);
        }
        let domains = domains.into_values().collect();
        let mut bed = Bed::with(CycleConfig { topology, domains, ..Bed::config(actions, tiers) }, &[]);
        for spec in specs {
            bed.nodes.push(bed.cluster.add_node(spec).unwrap());
        }
        let queue = bed.queue("q", 1);
        Self { bed, labels: nodes.to_vec(), queue }
    }

    pub(super) fn job(
        &mut self,
        name: &str,
        groups: &[u32],
        min_member: u32,
        cpu: u32,
        rules: Rules,
        priority: i32,
    ) -> JobId {
        let demand = Demand { cpu: Amount::whole(cpu), ..Demand::default() };
        let request = PlacementRequest::new(demand, Policy::BestFit);
        let [of_job, of_group] =
            rules.map(|rule| rule.map(|(mode, tier)| TopologyRule { mode, tier: Some(TIERS[tier].into()) }));
        let group = |&count: &u32| TaskGroup {
            topology: of_group.clone(),
            priority,
            ..TaskGroup::new(request.clone(), count)
        };
        let spec = JobSpec {
            queue: self.queue,
            min_member,
            priority,
            topology: of_job,
            created: self.bed.cluster.now(),
            ..JobSpec::new(name, groups.iter().map(group).collect())
        };
        self.bed.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap()
    }

    /// Returns the domain of a node in a tier: the values in this tier and in all wider ones.
    pub(super) fn domain(&self, node: NodeId, tier: usize) -> Option<Vec<Option<u8>>> {
        let at = self.bed.nodes.iter().position(|&of| of == node).unwrap();
        let labels = &self.labels[at].0[tier..];
        labels[0].map(|_| labels.to_vec())
    }

    /// Returns whether nodes are all in one domain of a tier, or of a narrower one: a rack may be in no block.
    fn are_together(&self, nodes: &[NodeId], tier: usize) -> bool {
        (0..=tier).any(|tier| self.share_a_domain(nodes, tier))
    }

    pub(super) fn share_a_domain(&self, nodes: &[NodeId], tier: usize) -> bool {
        nodes.iter().all(|&node| {
            self.domain(node, tier).is_some() && self.domain(node, tier) == self.domain(nodes[0], tier)
        })
    }

    /// Returns the nodes of the tasks of a job that keep one, in order of their indices. With a group, only of that.
    pub(super) fn nodes_of(&self, job: JobId, group: Option<u32>) -> Vec<NodeId> {
        let tasks = self.bed.jobs().job(job).tasks().iter();
        let tasks =
            tasks.filter(|task| task.state.keeps_node() && group.is_none_or(|group| task.group == group));
        tasks.filter_map(|task| task.node).collect()
    }

    /// Checks that each hard rule of a job is kept.
    pub(super) fn check_rules(&self, job: JobId, groups: u32, rules: Rules) {
        if let Some((TopologyMode::Hard, tier)) = rules[0] {
            assert!(
                self.are_together(&self.nodes_of(job, None), tier),
                "job {job}: {:?}",
                self.nodes_of(job, None)
            );
        }
        if let Some((TopologyMode::Hard, tier)) = rules[1] {
            for group in 0..groups {
                assert!(
                    self.are_together(&self.nodes_of(job, Some(group)), tier),
                    "job {job}, group {group}"
                );
            }
        }
    }

    pub(super) fn free(&self) -> Vec<u32> {
        let used = |node: NodeId| -> i64 {
            let tasks = self.bed.jobs().on_node(node).iter();
            tasks.map(|&task| self.bed.jobs().task(task).class.amounts.get(crate::fairness::Dim::CPU)).sum()
        };
        let free = |(&node, &(_, cpu)): (&NodeId, &([Option<u8>; 2], u32))| {
            cpu - u32::try_from(used(node) / 10_000).unwrap()
        };
        self.bed.nodes.iter().zip(&self.labels).map(free).collect()
    }

    /// Returns whether some domain of a tier or of a narrower one, in which all of `nodes` are, has room for some equal
    /// tasks now.
    fn has_room(&self, tier: usize, nodes: &[NodeId], tasks: u32, cpu: u32) -> bool {
        (0..=tier).any(|tier| self.has_room_in(tier, nodes, tasks, cpu))
    }

    fn has_room_in(&self, tier: usize, nodes: &[NodeId], tasks: u32, cpu: u32) -> bool {
        let free = self.free();
        self.bed.nodes.iter().any(|&first| {
            let mut all = nodes.to_vec();
            all.push(first);
            let inside = |node: &NodeId| self.domain(*node, tier) == self.domain(first, tier);
            let rooms = self.bed.nodes.iter().zip(&free).filter(|(node, _)| inside(node));
            self.share_a_domain(&all, tier) && rooms.map(|(_, free)| free / cpu).sum::<u32>() >= tasks
        })
    }
}

pub(super) const GANG: &[&[PluginKind]] = &[&[PluginKind::Priority, PluginKind::Gang]];

pub(super) fn hard(tier: usize) -> Rules {
    [Some((TopologyMode::Hard, tier)), None]
}

pub(super) fn at(rack: u8, block: u8) -> [Option<u8>; 2] {
    [Some(rack), Some(block)]
}

#[test]
fn ranks_are_placed_in_the_order_of_the_tree() {
    // The nodes of a rack are not registered one after the other.
    let nodes = [(at(1, 0), 2), (at(0, 0), 2), (at(1, 0), 2), (at(0, 0), 2), (at(0, 1), 3)];
    let mut racks = Racks::new(&[Action::Allocate], GANG, &nodes);
    let job = racks.job("j", &[8], 8, 1, hard(1), 0);
    racks.bed.cluster.scheduler_mut().jobs_mut().set_phase(job, crate::jobs::JobPhase::Inqueue);
    racks.bed.cycle();
    let ids = &racks.bed.nodes;
    let expected: Vec<NodeId> = [1, 1, 3, 3, 0, 0, 2, 2].map(|at: usize| ids[at]).to_vec();
    assert_eq!(racks.nodes_of(job, None), expected);
}

#[test]
fn the_reason_names_the_best_domain() {
    let nodes = [(at(0, 0), 3), (at(1, 0), 5), (at(2, 1), 4)];
    let mut racks = Racks::new(&[Action::Enqueue, Action::Allocate], GANG, &nodes);
    let job = racks.job("j", &[8], 8, 1, hard(0), 0);
    let equal = racks.job("k", &[8], 8, 1, hard(0), 0);
    racks.bed.cycle();
    for job in [job, equal] {
        let explained = racks.bed.cluster.explain(job, None);
        assert_eq!(explained.reason, PendingReason::Topology);
        let lack = explained.domain.expect("no rack has room");
        assert_eq!((&*lack.tier, lack.best.as_deref(), lack.holds, lack.needed), ("rack", Some("0/1"), 5, 8));
    }
    // In a block, it has room.
    let wider = racks.job("l", &[8], 8, 1, hard(1), 0);
    racks.bed.cycle();
    assert_eq!(racks.bed.count(wider, TaskState::Bound), 8);
}

/// The tree is made again when labels change by which an object contains nodes.
#[test]
fn a_job_is_placed_in_an_object_and_its_tasks_show_the_path() {
    let labelled = |name: &str, switch: &str| {
        let labels = Labels::new(vec![("switch".into(), switch.into())]).unwrap();
        NodeSpec { name: name.into(), labels, ..node(1) }
    };
    let switch = Labels::new(vec![("switch".into(), "s7".into())]).unwrap();
    let domains = vec![
        TopologyDomain { labels: switch, ..TopologyDomain::new("rack", "r2") },
        TopologyDomain { domains: vec!["r2".into()], ..TopologyDomain::new("block", "b1") },
    ];
    let topology = TIERS.map(|name| TopologyTier { name: name.into(), label: None }).to_vec();
    let config = CycleConfig { topology, domains, ..Bed::config(&[Action::Enqueue, Action::Allocate], GANG) };
    let mut bed = Bed::with(config, &[]);
    for (name, switch) in [("a", "s8"), ("b", "s7"), ("c", "s8")] {
        bed.nodes.push(bed.cluster.add_node(labelled(name, switch)).unwrap());
    }
    let queue = bed.queue("q", 1);
    let mut racks = Racks { bed, labels: Vec::new(), queue };
    let job = racks.job("j", &[2], 2, 1, hard(0), 0);
    racks.bed.cycle();
    assert_eq!(racks.bed.count(job, TaskState::Pending), 2, "one node is in the rack");
    let path = |racks: &Racks, at: usize| racks.bed.cluster.scheduler().domain_path(racks.bed.nodes[at]);
    assert_eq!((path(&racks, 1).as_deref(), path(&racks, 2)), (Some("b1/r2"), None));
    let moved = racks.bed.nodes[2];
    racks.bed.cluster.update_node(moved, labelled("c", "s7"));
    racks.bed.cycle();
    assert_eq!(racks.nodes_of(job, None), racks.bed.nodes[1..]);
    assert_eq!(path(&racks, 2).as_deref(), Some("b1/r2"));
}

/// A cycle ends overruns before it places anything. A shard may refuse that, and then the job would be in two racks.
#[test]
fn what_the_cycle_evicts_still_counts_where_its_job_is() {
    let nodes = [(at(0, 0), 1), (at(1, 0), 2)];
    let mut racks = Racks::new(&[Action::Enqueue, Action::Allocate], GANG, &nodes);
    let filler = racks.job("filler", &[1], 1, 2, [None, None], 1);
    racks.bed.cycle();
    assert_eq!(racks.nodes_of(filler, None), [racks.bed.nodes[1]]);
    let demand = Demand { cpu: Amount::whole(1), ..Demand::default() };
    let request = PlacementRequest::new(demand, Policy::BestFit);
    let group = |run_time_ns| TaskGroup { run_time_ns, ..TaskGroup::new(request.clone(), 1) };
    let spec = JobSpec {
        queue: racks.queue,
        min_member: 1,
        topology: Some(TopologyRule::hard("rack")),
        ..JobSpec::new("j", vec![group(Some(10)), group(None)])
    };
    let job = racks.bed.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap();
    racks.bed.cycle();
    let state = |racks: &Racks, index| racks.bed.jobs().task(TaskId { job, index }).state;
    assert_eq!([0, 1].map(|index| state(&racks, index)), [TaskState::Bound, TaskState::Pending]);
    assert_eq!(racks.nodes_of(job, None), [racks.bed.nodes[0]]);
    racks.bed.cluster.finish_task(TaskId { job: filler, index: 0 });
    racks.bed.cluster.advance(10);
    racks.bed.cycle();
    assert_eq!([0, 1].map(|index| state(&racks, index)), [TaskState::Releasing, TaskState::Pipelined]);
    assert_eq!(racks.bed.jobs().task(TaskId { job, index: 1 }).node, Some(racks.bed.nodes[0]));
}

#[test]
fn a_cycle_without_the_tier_lets_the_job_wait() {
    let mut racks = Racks::new(&[Action::Enqueue, Action::Allocate], GANG, &[(at(0, 0), 8)]);
    let job = racks.job("j", &[2], 2, 1, hard(0), 0);
    let soft = racks.job("s", &[2], 2, 1, [Some((TopologyMode::Soft, 0)), None], 0);
    let record = racks.bed.jobs().record();
    let config = Bed::config(&[Action::Enqueue, Action::Allocate], GANG);
    let mut bed = Bed::with(config, &[8]);
    bed.cluster.scheduler_mut().jobs_mut().adopt(record, crate::time::Time(0)).unwrap();
    bed.cycle();
    assert_eq!((bed.count(job, TaskState::Pending), bed.count(soft, TaskState::Bound)), (2, 2));
    assert_eq!(bed.cluster.explain(job, None).reason, PendingReason::Topology);
}

fn rule() -> impl Strategy<Value = Option<(TopologyMode, usize)>> {
    let mode = prop_oneof![3 => Just(TopologyMode::Hard), 1 => Just(TopologyMode::Soft)];
    prop::option::weighted(0.7, (mode, 0..2_usize))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Whatever is placed, evicted, ended and restarted: the tasks of a job with a hard rule are always in one domain
    /// of its tier. When nothing changes any longer, such a job waits only if no domain has room for what it needs.
    #[test]
    fn hard_rules_are_kept_and_only_jobs_without_room_wait(
        nodes in prop::collection::vec(((prop::option::weighted(0.9, 0..3_u8), prop::option::weighted(0.8, 0..2_u8)), 1..6_u32), 2..10),
        jobs in prop::collection::vec((1..5_u32, 1..3_u32, 0..3_u32, 1..3_u32, rule(), rule(), 0..2_i32), 1..7),
        ends in prop::collection::vec((0..7_usize, 0..8_u32, any::<bool>()), 0..8),
        preempts in any::<bool>(),
    ) {
        let nodes: Vec<_> = nodes.into_iter().map(|((rack, block), cpu)| ([rack, block], cpu)).collect();
        let mut actions = vec![Action::Enqueue, Action::Allocate];
        if preempts {
            actions.push(Action::Preempt);
        }
        let mut racks = Racks::new(&actions, GANG, &nodes);
        let mut there = Vec::new();
        for (number, &(tasks, groups, spare, cpu, of_job, of_group, priority)) in jobs.iter().enumerate() {
            // The rule of a task group is not wider than that of its job.
            let of_group = match (of_job, of_group) {
                (Some((TopologyMode::Hard, widest)), Some((mode, tier))) => Some((mode, tier.min(widest))),
                (_, of_group) => of_group,
            };
            let counts = vec![tasks; groups as usize];
            let min_member = (tasks * groups).saturating_sub(spare);
            let rules = [of_job, of_group];
            let id = racks.job(&format!("j{number}"), &counts, min_member, cpu, rules, priority);
            there.push((id, groups, cpu, min_member, rules));
        }
        let check = |racks: &Racks| there.iter().for_each(|&(job, groups, _, _, rules)| racks.check_rules(job, groups, rules));
        let settle = |racks: &mut Racks| {
            let mut quiet = 0;
            for _ in 0..64 {
                let changes = racks.bed.cycle();
                check(racks);
                let later = racks.bed.advance(GRACE);
                check(racks);
                let is_quiet = changes == Changes::default() && later == Changes::default();
                quiet = if is_quiet { quiet + 1 } else { 0 };
                // In the first quiet round, a release may have ended: the next one places the task again.
                if quiet == 2 {
                    return;
                }
            }
            panic!("cycles go on for ever");
        };
        settle(&mut racks);
        for (job, task, evicted) in ends {
            let Some(&(job, ..)) = there.get(job) else { continue };
            let id = TaskId { job, index: task };
            if !racks.bed.jobs().has_task(id) || racks.bed.jobs().task(id).state != TaskState::Bound {
                continue;
            }
            if evicted {
                racks.bed.cluster.evict(id, GRACE);
            } else {
                racks.bed.cluster.finish_task(id);
            }
            settle(&mut racks);
        }
        for &(job, groups, cpu, min_member, rules) in &there {
            let of = racks.bed.jobs().job(job);
            let [Some((TopologyMode::Hard, tier)), None] = rules else { continue };
            let is_valid = of.ready_tasks() + of.count(TaskState::Pending) >= min_member;
            if of.count(TaskState::Pending) == 0 || !is_valid || groups == 0 {
                continue;
            }
            let nodes = racks.nodes_of(job, None);
            let lacking = min_member.saturating_sub(of.ready_tasks()).max(1);
            prop_assert!(!racks.has_room(tier, &nodes, lacking, cpu), "job {} waits although a domain has room", job);
        }
    }
}
