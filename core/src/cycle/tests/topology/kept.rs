//! Counts of room are kept over cycles, and only nodes that changed are counted again. That what is kept is as if all nodes had
//! been counted is checked wherever it is used (see `check_room`).

use super::*;
use crate::jobs::JobPhase;
use crate::planted::{PlantedBug, with_planted};

/// So many that [spots](crate::cycle::spots) of a few are looked at one by one.
const NODES: usize = 48;
const PLACE: &[Action] = &[Action::Enqueue, Action::Allocate];
const EVICT: &[Action] = &[Action::Enqueue, Action::Allocate, Action::Preempt];

/// Racks of four nodes with four cores each, all of which is taken, and the job whose tasks run there.
fn full(actions: &[Action]) -> (Racks, JobId) {
    let nodes: Vec<_> = (0..NODES as u8).map(|node| (at(node / 4, node / 24), 4)).collect();
    let mut racks = Racks::new(actions, GANG, &nodes);
    let low = racks.job("low", &[4 * NODES as u32], 1, 1, [None, None], 9);
    (0..4 * NODES).for_each(|task| racks.bed.run(low, task % NODES));
    (racks, low)
}

/// Runs a cycle that places nothing. Returns how often it counted a node.
fn counted(racks: &mut Racks) -> u64 {
    let before = racks.bed.cluster.scheduler().rooms.counts().1;
    let changes = racks.bed.cycle();
    assert_eq!(changes, Changes::default());
    racks.bed.cluster.scheduler().rooms.counts().1 - before
}

fn kept(racks: &Racks) -> usize {
    racks.bed.cluster.scheduler().rooms.counts().0
}

fn finish(racks: &mut Racks, job: JobId, tasks: &[u32]) {
    tasks.iter().for_each(|&index| drop(racks.bed.cluster.finish_task(TaskId { job, index })));
}

fn cancel(racks: &mut Racks, job: JobId) {
    let now = racks.bed.cluster.now();
    let jobs = racks.bed.cluster.scheduler_mut().jobs_mut();
    jobs.set_phase(job, JobPhase::Cancelled);
    jobs.end_job(job, 0, false, now);
}

#[test]
fn only_nodes_that_changed_are_counted_again() {
    let (mut racks, low) = full(EVICT);
    racks.job("a", &[9], 9, 2, hard(0), 5);
    racks.job("b", &[10], 10, 2, hard(1), 5);
    let all = NODES as u64;
    assert_eq!(counted(&mut racks), 3 * all, "what is free, what will be, and what would be with evictions");
    assert_eq!(kept(&racks), 3);
    finish(&mut racks, low, &[0, 7, 7 + NODES as u32]);
    assert_eq!(counted(&mut racks), 3 * 2, "two nodes have changed");
    assert!(racks.bed.cluster.place_direct(PlacementRequest::new(
        Demand { cpu: Amount::whole(1), ..Demand::default() },
        Policy::BestFit
    )));
    assert_eq!(counted(&mut racks), 3, "something that is no task runs on a node");
    racks.bed.cluster.add_node(node(1)).unwrap();
    assert_eq!(counted(&mut racks), 3 * (all + 1), "the order of all nodes is made again");
}

#[test]
fn what_a_trial_took_back_is_no_change() {
    let (mut racks, low) = full(PLACE);
    // A rack has room for one of two tasks, and for either.
    finish(&mut racks, low, &[0, NODES as u32]);
    let hopeless = racks.job("hopeless", &[9], 9, 3, hard(0), 5);
    let demand =
        |memory| Demand { cpu: Amount::whole(2), memory: Amount::whole(memory), ..Demand::default() };
    let group = |memory| TaskGroup::new(PlacementRequest::new(demand(memory), Policy::BestFit), 1);
    let mut specs = vec![node(2); 2];
    for spec in &mut specs {
        spec.labels = Labels::new(vec![("rack".into(), "large".into())]).unwrap();
        spec.memory = Amount::whole(1);
        racks.bed.nodes.push(racks.bed.cluster.add_node(spec.clone()).unwrap());
    }
    let spec = JobSpec {
        queue: racks.queue,
        min_member: 2,
        topology: Some(TopologyRule::hard("rack")),
        ..JobSpec::new("half", vec![group(0), group(1)])
    };
    let filler = racks.job("filler", &[1], 1, 2, [None, None], 9);
    racks.bed.run(filler, NODES + 1);
    let half = racks.bed.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap();
    assert!(counted(&mut racks) > 0);
    assert_eq!([hopeless, half].map(|job| racks.bed.jobs().job(job).pending().len()), [9, 2]);
    let scheduler = racks.bed.cluster.scheduler_mut();
    assert_eq!(scheduler.jobs.take_touched_nodes(), Some(Vec::new()));
    assert_eq!(scheduler.replicas[0].take_touched(), Some(Vec::new()));
    // Only the class that was looked at during the trial has something to count again.
    let left = |racks: &Racks, job: JobId, task: usize| {
        racks.bed.cluster.scheduler().rooms.left(&racks.bed.jobs().job(job).tasks()[task].class)
    };
    assert_eq!((left(&racks, hopeless, 0), left(&racks, half, 0)), (vec![0, 0], vec![0, 0]));
    assert_eq!(left(&racks, half, 1), [1, 0]);
    finish(&mut racks, low, &[5]);
    assert!(counted(&mut racks) > 0);
    assert_eq!(left(&racks, hopeless, 0), [0, 0]);
}

#[test]
fn counts_for_which_nobody_waits_are_forgotten() {
    let (mut racks, low) = full(PLACE);
    let jobs = [(2, "a"), (3, "b")].map(|(cpu, name)| racks.job(name, &[9], 9, cpu, hard(0), 5));
    counted(&mut racks);
    assert_eq!(kept(&racks), 4);
    cancel(&mut racks, jobs[0]);
    assert_eq!((counted(&mut racks), kept(&racks)), (0, 2));
    // A rack has room for three, and the last job gets it.
    for node in 0..4_u32 {
        finish(&mut racks, low, &[0, 1, 2].map(|row| node + row * NODES as u32));
    }
    cancel(&mut racks, jobs[1]);
    let last = racks.job("c", &[3], 3, 3, hard(0), 5);
    racks.bed.cycle();
    assert_eq!((racks.bed.count(last, TaskState::Bound), kept(&racks)), (3, 0));
}

#[test]
fn the_number_of_counts_is_bounded() {
    let (mut racks, low) = full(PLACE);
    racks.bed.cluster.scheduler_mut().rooms.set_bounds(20, usize::MAX);
    for number in 0..15 {
        racks.job(&format!("j{number}"), &[20], 20, 2 + number, hard(0), 5);
    }
    counted(&mut racks);
    assert_eq!(kept(&racks), 20);
    finish(&mut racks, low, &[0]);
    racks.bed.cluster.scheduler_mut().rooms.set_bounds(usize::MAX, 1);
    counted(&mut racks);
    assert_eq!(kept(&racks), 16, "those of one job are kept in any case");
}

/// Without the refresh, the first use after a change fails.
#[test]
fn a_count_that_does_not_follow_is_found() {
    let run = |bug: Option<PlantedBug>| {
        let (mut racks, low) = full(PLACE);
        racks.job("a", &[9], 9, 2, hard(0), 5);
        counted(&mut racks);
        finish(&mut racks, low, &[0, NODES as u32]);
        match bug {
            Some(bug) => with_planted(bug, || counted(&mut racks)),
            None => counted(&mut racks),
        }
    };
    assert_eq!(run(None), 2);
    assert!(std::panic::catch_unwind(|| run(Some(PlantedBug::RoomKept))).is_err());
}

/// Something that happens between two cycles.
#[derive(Clone, Debug)]
enum Event {
    Submit { groups: Vec<(u32, u32)>, spare: u32, rules: Rules, priority: i32 },
    Cancel(usize),
    End(usize, u32),
    Evict(usize, u32),
    Direct(u32),
    AddNode([Option<u8>; 2], u32),
    RemoveNode(usize),
    Relabel(usize, [Option<u8>; 2]),
    Drain(usize, bool),
    Advance,
}

fn values() -> impl Strategy<Value = [Option<u8>; 2]> {
    let value = |number: u8| prop::option::weighted(0.9, 0..number);
    (value(3), value(2)).prop_map(|(rack, block)| [rack, block])
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let groups = prop::collection::vec((1..4_u32, 1..4_u32), 1..3);
    let submit = (groups, 0..3_u32, rule(), rule(), 0..3_i32).prop_map(
        |(groups, spare, of_job, of_group, priority)| {
            let of_group = match (of_job, of_group) {
                (Some((TopologyMode::Hard, widest)), Some((mode, tier))) => Some((mode, tier.min(widest))),
                (_, of_group) => of_group,
            };
            Event::Submit { groups, spare, rules: [of_job, of_group], priority }
        },
    );
    let event = prop_oneof![
        6 => submit,
        1 => (0..20_usize).prop_map(Event::Cancel),
        6 => (0..20_usize, 0..6_u32).prop_map(|(job, task)| Event::End(job, task)),
        2 => (0..20_usize, 0..6_u32).prop_map(|(job, task)| Event::Evict(job, task)),
        1 => (1..3_u32).prop_map(Event::Direct),
        1 => (values(), 1..6_u32).prop_map(|(values, cpu)| Event::AddNode(values, cpu)),
        1 => (0..9_usize).prop_map(Event::RemoveNode),
        1 => (0..9_usize, values()).prop_map(|(node, values)| Event::Relabel(node, values)),
        1 => (0..9_usize, any::<bool>()).prop_map(|(node, drains)| Event::Drain(node, drains)),
        2 => Just(Event::Advance),
    ];
    prop::collection::vec(event, 1..24)
}

/// A cluster to which events happen.
struct Changing {
    racks: Racks,
    jobs: Vec<JobId>,
    /// The values and the cores of each node that is there, and whether it drains.
    nodes: Vec<(NodeId, NodeSpec, bool)>,
    numbers: u32,
}

impl Changing {
    fn spec(&mut self, values: [Option<u8>; 2], cpu: u32) -> NodeSpec {
        self.numbers += 1;
        let values = TIERS
            .iter()
            .zip(values)
            .filter_map(|(&tier, value)| Some((tier.into(), format!("{}", value?).into())));
        NodeSpec {
            name: format!("n{}", self.numbers).into(),
            labels: Labels::new(values.collect()).unwrap(),
            ..node(cpu)
        }
    }

    fn new(actions: &[Action], tiers: &[&[PluginKind]], nodes: &[([Option<u8>; 2], u32)]) -> Self {
        let racks = Racks::new(actions, tiers, &[]);
        let mut changing = Self { racks, jobs: Vec::new(), nodes: Vec::new(), numbers: 0 };
        nodes.iter().for_each(|&(values, cpu)| changing.happen(&Event::AddNode(values, cpu)));
        changing
    }

    fn running(&self, job: usize, index: u32) -> Option<TaskId> {
        let id = TaskId { job: *self.jobs.get(job)?, index };
        let jobs = self.racks.bed.jobs();
        (jobs.has_task(id) && jobs.task(id).state == TaskState::Bound).then_some(id)
    }

    fn happen(&mut self, event: &Event) {
        let cluster = &mut self.racks.bed.cluster;
        match event {
            Event::Submit { groups, spare, rules, priority } => self.submit(groups, *spare, rules, *priority),
            &Event::Cancel(job) => {
                let is_new = |job: &&JobId| {
                    let of = self.racks.bed.jobs().job(**job);
                    of.pending().len() == of.tasks().len()
                };
                if let Some(&job) = self.jobs.get(job).filter(is_new) {
                    cancel(&mut self.racks, job);
                }
            }
            &Event::End(job, index) => {
                if let Some(id) = self.running(job, index) {
                    self.racks.bed.cluster.finish_task(id);
                }
            }
            &Event::Evict(job, index) => {
                if let Some(id) = self.running(job, index) {
                    self.racks.bed.cluster.evict(id, GRACE);
                }
            }
            &Event::Direct(cpu) => {
                let demand = Demand { cpu: Amount::whole(cpu), ..Demand::default() };
                cluster.place_direct(PlacementRequest::new(demand, Policy::BestFit));
            }
            &Event::AddNode(values, cpu) => {
                let spec = self.spec(values, cpu);
                let node = self.racks.bed.cluster.add_node(spec.clone()).unwrap();
                self.nodes.push((node, spec, false));
            }
            &Event::RemoveNode(at) => {
                let Some(&(node, ..)) = self.nodes.get(at) else { return };
                let view = cluster.view();
                let slot = cluster.shard().slot_of(node).unwrap();
                let is_empty = view.allocations(slot).next().is_none();
                if is_empty && self.racks.bed.jobs().on_node(node).is_empty() {
                    self.nodes.remove(at);
                    self.racks.bed.cluster.remove_node(node);
                }
            }
            &Event::Relabel(at, values) => {
                let Some(&(node, ref before, _)) = self.nodes.get(at) else { return };
                let before = before.clone();
                let labels = self.spec(values, 1).labels;
                let spec = NodeSpec { labels, ..before };
                self.racks.bed.cluster.update_node(node, spec.clone());
                self.nodes[at].1 = spec;
            }
            &Event::Drain(at, drains) => {
                let Some((node, _, is_draining)) = self.nodes.get_mut(at) else { return };
                if std::mem::replace(is_draining, drains) != drains {
                    cluster.set_draining(*node, drains);
                }
            }
            Event::Advance => drop(self.racks.bed.advance(GRACE)),
        }
    }

    /// Each task group has a class of its own.
    fn submit(&mut self, groups: &[(u32, u32)], spare: u32, rules: &Rules, priority: i32) {
        self.numbers += 1;
        let [of_job, of_group] =
            rules.map(|rule| rule.map(|(mode, tier)| TopologyRule { mode, tier: Some(TIERS[tier].into()) }));
        let group = |&(count, cpu): &(u32, u32)| {
            let demand = Demand { cpu: Amount::whole(cpu), ..Demand::default() };
            let request = PlacementRequest::new(demand, Policy::BestFit);
            TaskGroup { topology: of_group.clone(), priority, ..TaskGroup::new(request, count) }
        };
        let count: u32 = groups.iter().map(|&(count, _)| count).sum();
        let jobs = self.racks.bed.cluster.scheduler_mut().jobs_mut();
        let queues: Vec<_> = jobs.queues().map(|(id, _)| id).filter(|&id| id != QueueId::ROOT).collect();
        let spec = JobSpec {
            queue: queues[self.numbers as usize % queues.len()],
            min_member: count.saturating_sub(spare),
            priority,
            topology: of_job,
            ..JobSpec::new(&format!("j{}", self.numbers), groups.iter().map(group).collect())
        };
        self.jobs.push(jobs.submit(spec).unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Cycles that keep counts decide as those that count everything again. That the counts are the same is checked in each
    /// use of them.
    #[test]
    fn cycles_decide_as_if_all_nodes_were_counted(
        nodes in prop::collection::vec((values(), 1..6_u32), 2..9),
        events in events(),
        evicting in 0..4_usize,
    ) {
        let tiers: &[&[PluginKind]] = &[&[PluginKind::Priority, PluginKind::Gang], &[PluginKind::Proportion]];
        let evictions = [&[][..], &[Action::Preempt], &[Action::Reclaim], &[Action::Preempt, Action::Reclaim]];
        let actions = [PLACE, evictions[evicting]].concat();
        let mut clusters = [0, 1].map(|_| {
            let mut changing = Changing::new(&actions, tiers, &nodes);
            changing.racks.bed.queue("other", 2);
            changing
        });
        for event in events {
            let [kept, fresh] = clusters.each_mut().map(|changing| {
                changing.happen(&event);
                changing.racks.bed.cycle()
            });
            prop_assert_eq!(kept, fresh);
            clusters[1].racks.bed.cluster.scheduler_mut().rooms.clear();
        }
    }
}
