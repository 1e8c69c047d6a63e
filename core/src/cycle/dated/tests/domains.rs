//! Dates of jobs that must be in one domain.

use super::*;
use crate::jobs::TopologyMode;

/// Returns the rule that one domain of a tier holds all tasks.
pub(super) fn hard(tier: &str) -> TopologyRule {
    TopologyRule { mode: TopologyMode::Hard, tier: Some(tier.into()) }
}

/// A node with so many cores, in a rack and a block.
type Racked = (u32, u8, u8);

fn bed(backfill: Backfill, nodes: &[Racked]) -> Bed {
    Bed::with(backfill, GANG, nodes.iter().map(|&(cpu, rack, block)| racked(node(cpu, 0), rack, block)))
}

fn racked(node: NodeSpec, rack: u8, block: u8) -> NodeSpec {
    let label = |tier: &str, value: u8| (tier.into(), format!("{value}").as_str().into());
    NodeSpec { labels: Labels::new(vec![label("rack", rack), label("block", block)]).unwrap(), ..node }
}

impl Bed {
    /// Returns the indices of the nodes that are reserved for a job.
    fn reserved(&self, job: JobId) -> Vec<usize> {
        let mut reservations = self.cluster.scheduler().reservations();
        let of = reservations.find(|of| of.job == job).expect("it has a date");
        let index = |id: NodeId| self.nodes.iter().position(|&node| node == id).unwrap();
        let mut nodes: Vec<usize> = of.nodes().map(|(node, _)| index(node)).collect();
        nodes.sort_unstable();
        nodes
    }
}

/// Two racks with two nodes each, with a task on each node. The second rack is free as a whole first.
fn two_racks(backfill: Backfill) -> (Bed, QueueId, Vec<TaskId>) {
    let mut bed = bed(backfill, &[(2, 0, 0), (2, 0, 0), (2, 1, 0), (2, 1, 0)]);
    let queue = bed.queue("q", None);
    let ends = [100, 20, 50, 60].into_iter().enumerate();
    let running = ends.map(|(node, end)| bed.running(queue, node, Tasks::of(1, 2, Some(end))));
    let running = running.map(|job| TaskId { job, index: 0 }).collect();
    (bed, queue, running)
}

#[test]
fn the_date_is_that_of_the_first_domain_that_can_hold_the_job() {
    for backfill in [Backfill::Easy, Backfill::Conservative] {
        let (mut bed, queue, running) = two_racks(backfill);
        let first = bed.job_within(queue, &[Tasks::of(2, 2, Some(30))], Some(hard("rack")));
        let endless = [0; 2].map(|_| bed.job(queue, &[Tasks::of(1, 2, None)]));
        bed.cycle();
        assert_eq!(bed.dates()[&first], 60);
        assert_eq!(bed.reserved(first), [2, 3]);
        // An endless job takes a node of the other rack, and none of this one.
        bed.advance(20);
        bed.cluster.finish_task(running[1]);
        assert_eq!(bed.cycle().bound, [(TaskId { job: endless[0], index: 0 }, bed.nodes[1])]);
        bed.advance(30);
        bed.cluster.finish_task(running[2]);
        assert_eq!(bed.cycle().bound, [], "{backfill:?}");
        assert_eq!(bed.dates()[&first], 60);
        bed.advance(10);
        bed.cluster.finish_task(running[3]);
        let bound: Vec<NodeId> = bed.cycle().bound.into_iter().map(|(_, node)| node).collect();
        assert_eq!(bound, bed.nodes[2..4]);
    }
}

#[test]
fn a_wider_tier_may_hold_it_earlier() {
    let (mut bed, queue, _) = two_racks(Backfill::Easy);
    let first = bed.job_within(queue, &[Tasks::of(2, 2, Some(30))], Some(hard("block")));
    bed.cycle();
    assert_eq!(bed.dates(), BTreeMap::from([(first, 50)]));
    assert_eq!(bed.reserved(first), [1, 2]);
}

#[test]
fn there_is_no_date_if_no_domain_is_large_enough() {
    let (mut bed, queue, _) = two_racks(Backfill::Conservative);
    bed.job_within(queue, &[Tasks::of(3, 2, Some(30))], Some(hard("rack")));
    let equal = bed.job_within(queue, &[Tasks::of(3, 2, Some(30))], Some(hard("block")));
    bed.cycle();
    assert_eq!(bed.dates(), BTreeMap::from([(equal, 60)]), "no rack holds it, and a block does");
}

#[test]
fn what_a_job_lacks_is_reserved_where_its_other_tasks_are() {
    let mut bed = bed(Backfill::Easy, &[(2, 0, 0), (2, 0, 0), (1, 1, 0)]);
    let queue = bed.queue("q", None);
    bed.running(queue, 1, Tasks::of(1, 2, Some(40)));
    bed.running(queue, 2, Tasks::of(1, 1, Some(10)));
    let job = bed.job_within(queue, &[Tasks::of(2, 2, Some(90))], Some(hard("rack")));
    let one = TaskId { job, index: 0 };
    bed.cluster.run_on(one, bed.nodes[0], TaskState::Running).unwrap();
    bed.cycle();
    assert_eq!(bed.dates(), BTreeMap::from([(job, 40)]));
    assert_eq!(bed.reserved(job), [1]);
}

/// Those that come later in the queue fill the room of the rack now, if they end in time.
#[test]
fn only_what_ends_before_the_date_passes_a_job_that_must_be_in_a_domain() {
    let mut bed = bed(Backfill::Easy, &[(2, 0, 0), (2, 0, 0), (2, 1, 0)]);
    let queue = bed.queue("q", None);
    bed.running(queue, 0, Tasks::of(1, 2, Some(100)));
    bed.running(queue, 2, Tasks::of(1, 2, None));
    let first = bed.job_within(queue, &[Tasks::of(4, 1, Some(50))], Some(hard("rack")));
    let long = bed.job(queue, &[Tasks::of(1, 1, Some(101))]);
    let short = bed.job(queue, &[Tasks::of(1, 1, Some(100))]);
    assert_eq!(bed.cycle().bound, [(TaskId { job: short, index: 0 }, bed.nodes[1])]);
    assert_eq!(bed.dates(), BTreeMap::from([(first, 100)]));
    assert_eq!(bed.state(long), TaskState::Pending);
}

/// A date for task groups with rules of their own is one at which all of them fit in one domain.
#[test]
fn task_groups_with_hard_rules_have_a_date_in_a_domain_that_keeps_all_of_them() {
    for (of_job, of_groups) in [(None, "rack"), (Some("block"), "rack"), (Some("rack"), "rack")] {
        let mut bed = bed(Backfill::Easy, &[(2, 0, 0), (2, 0, 0), (2, 1, 0)]);
        let queue = bed.queue("q", None);
        bed.running(queue, 0, Tasks::of(1, 2, Some(100)));
        bed.running(queue, 2, Tasks::of(1, 2, Some(50)));
        let tasks = [Tasks::of(2, 1, Some(50)), Tasks::of(1, 2, Some(50))];
        let first = bed.job_with_groups(queue, &tasks, of_job.map(hard), Some(hard(of_groups)));
        let long = bed.job(queue, &[Tasks::of(1, 1, Some(101))]);
        bed.cycle();
        assert_eq!(bed.dates(), BTreeMap::from([(first, 100)]), "{of_job:?}, {of_groups}");
        assert_eq!(bed.state(long), TaskState::Pending);
    }
}

/// Tasks that ask for nothing are not looked ahead for.
#[test]
fn some_jobs_with_hard_rules_have_no_date() {
    let mut bed = bed(Backfill::Conservative, &[(2, 0, 0)]);
    let queue = bed.queue("q", None);
    bed.running(queue, 0, Tasks::of(1, 2, Some(100)));
    let group = TaskGroup { topology: Some(hard("rack")), ..Tasks::of(1, 2, Some(10)).group() };
    let spec = |name: &str, groups| JobSpec {
        queue,
        min_member: 2,
        phase: JobPhase::Inqueue,
        topology: Some(hard("block")),
        ..JobSpec::new(name, groups)
    };
    let specs = [
        spec("groups", vec![group, Tasks::of(1, 0, Some(10)).group()]),
        spec("nothing", vec![Tasks::of(1, 2, Some(10)).group(), Tasks::of(1, 0, Some(10)).group()]),
    ];
    for spec in specs {
        bed.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap();
    }
    bed.cycle();
    assert_eq!(bed.dates(), BTreeMap::new());
}

/// Returns whether the nodes of all reservations and of all running tasks of jobs with rules are as these demand.
fn check_domains(bed: &Bed, racks: &[(u8, u8)]) -> Result<(), TestCaseError> {
    let domain = |node: NodeId, tier: &str| {
        let (rack, block) = racks[bed.nodes.iter().position(|&of| of == node).unwrap()];
        (block, (tier == "rack").then_some(rack))
    };
    let reserved: BTreeMap<JobId, Vec<NodeId>> = bed
        .cluster
        .scheduler()
        .reservations()
        .map(|of| (of.job, of.nodes().map(|(node, _)| node).collect()))
        .collect();
    for (id, job) in bed.jobs().jobs() {
        let running = job.tasks().iter().filter(|task| task.state.holds());
        let running: Vec<(u32, NodeId)> = running.filter_map(|task| Some((task.group, task.node?))).collect();
        let are_together = |nodes: &[NodeId], rule: &TopologyRule| {
            let tier = rule.tier.as_deref().unwrap();
            nodes.iter().all(|&node| domain(node, tier) == domain(nodes[0], tier))
        };
        if let Some(rule) = &job.spec().topology {
            let mut nodes = reserved.get(&id).cloned().unwrap_or_default();
            nodes.extend(running.iter().map(|&(_, node)| node));
            prop_assert!(are_together(&nodes, rule), "job {id} with {rule:?}: {nodes:?}");
        }
        for (number, group) in (0..).zip(&job.spec().tasks) {
            let Some(rule) = &group.topology else { continue };
            let of_group = running.iter().filter(|&&(of, _)| of == number);
            let nodes: Vec<NodeId> = of_group.map(|&(_, node)| node).collect();
            prop_assert!(are_together(&nodes, rule), "group {number} of job {id} with {rule:?}: {nodes:?}");
        }
    }
    Ok(())
}

/// The tiers of a job and of its task groups. Those of task groups are no wider.
fn tiers() -> impl Strategy<Value = (Option<&'static str>, Option<&'static str>)> {
    let tier = || prop_oneof![Just(Some("rack")), Just(Some("block")), Just(None)];
    let narrowed = |(of_job, of_groups)| match (of_job, of_groups) {
        (Some("rack"), Some("block")) => (of_job, None),
        tiers => tiers,
    };
    (tier(), tier()).prop_map(narrowed)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The dates of jobs that must be in one domain are kept as those of all others, whatever comes behind them.
    #[test]
    fn dates_of_jobs_in_domains_are_kept(
        nodes in prop::collection::vec(((2..9_u32, 0..3_u8), (0..2_u8, 0..2_u8)), 2..7),
        caps in prop::collection::vec(prop::option::of(6..16_i64), 1..3),
        backfill in prop_oneof![Just(Backfill::Easy), Just(Backfill::Conservative)],
        arrivals in arrivals(),
        tiers in prop::collection::vec(tiers(), 16),
    ) {
        let specs = nodes.iter().map(|&((cpu, gpus), (rack, block))| racked(node(cpu, gpus), rack, block));
        let mut bed = Bed::with(backfill, GANG, specs);
        let queues: Vec<QueueId> =
            caps.iter().enumerate().map(|(at, &cap)| bed.queue(&format!("q{at}"), cap)).collect();
        let arrivals = arrivals.into_iter().zip(tiers);
        let arrivals =
            arrivals.map(|(arrival, (tier, of_groups))| Arrival { tier, of_groups, ..arrival }).collect();
        let racks: Vec<(u8, u8)> = nodes.iter().map(|&(_, of)| of).collect();
        run(&mut bed, &queues, arrivals, 0, |bed| check_domains(bed, &racks))?;
    }
}
