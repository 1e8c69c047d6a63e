//! Random work of all kinds in queues with caps: jobs, direct placements and groups, lost nodes, starts and crashes.

use std::sync::Arc;

use wharf_core::cycle::CycleConfig;
use wharf_core::engine::Engine;
use wharf_core::fairness::{Caps, Dim};
use wharf_core::group::{GroupSpec, PlanJob, PlanReply, Strategy};
use wharf_core::ids::{AllocationId, GroupId, NodeId};
use wharf_core::jobs::{DirectPlacement, JobId, JobsDone, JobsReply, JobsRequest, QueueSpec};
use wharf_core::node::LifeEvent;
use wharf_core::rng::Rng;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::Command;

use crate::by_hand::{cores, node_spec, settle};
use crate::group_bed::{add_agent_node, plan, same};
use crate::jobs_bed::{
    INTERVAL_NS, Journaled, after_a_crash, bag, check_jobs, export_all, jobs_config, jobs_engine, named,
    open_with, set_queue,
};
use crate::jobs_groups::in_queue;

const LEAVES: [&str; 2] = ["one", "two"];

/// A queue `outer` with a cap on allocations, and the leaves below it, one with a cap on cores.
fn set_queues(engine: &mut Engine) {
    set_queue(engine, QueueSpec { allocations_max: Some(14), ..QueueSpec::new("outer") });
    for (name, cap) in LEAVES.into_iter().zip([Some(12), None]) {
        let capability: Caps = cap.into_iter().map(|cap| (Dim::CPU, cap * 10_000)).collect();
        let spec = Box::new(QueueSpec { capability, ..QueueSpec::new(name) });
        let set = PlanJob::Jobs(Box::new(JobsRequest::SetQueue { spec, parent: Some(named("outer")) }));
        plan(engine, set);
    }
}

struct Work {
    rng: Rng,
    nodes: Vec<(NodeId, bool)>,
    jobs: Vec<JobId>,
    groups: Vec<GroupId>,
    direct: Vec<AllocationId>,
    names: u32,
    placed: usize,
    refused: usize,
}

impl Work {
    fn new(seed: u64, engine: &mut Engine) -> Self {
        set_queues(engine);
        let mut rng = Rng::new(seed);
        let count = 2 + rng.below(3);
        let node = |number| (add_agent_node(engine, node_spec(&format!("n{number}"), 8, 0)), true);
        let nodes = (0..count).map(node).collect();
        let (jobs, groups, direct) = Default::default();
        Self { rng, nodes, jobs, groups, direct, names: 0, placed: 0, refused: 0 }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    fn pick<T: Copy>(&mut self, of: impl Fn(&Self) -> &Vec<T>) -> Option<T> {
        let len = of(self).len() as u64;
        (len > 0).then(|| {
            let at = self.below(len) as usize;
            of(self)[at]
        })
    }

    fn leaf(&mut self) -> &'static str {
        LEAVES[self.below(2) as usize]
    }

    fn spec(&mut self, engine: &Engine) -> GroupSpec {
        let count = 1 + self.below(4) as usize;
        let strategy = [Strategy::Pack, Strategy::Spread, Strategy::StrictPack, Strategy::StrictSpread]
            [self.below(4) as usize];
        let wait_until =
            (self.below(3) == 0).then(|| engine.now.plus_nanos(INTERVAL_NS * (1 + self.below(5))));
        let min_members = 1 + self.below(count as u64) as u32;
        let leaf = self.leaf();
        let cpu = self.below(4) as u32;
        GroupSpec { strategy, wait_until, min_members, ..in_queue(leaf, cpu, count) }
    }

    /// Returns a request for a planner, or does something else.
    fn act(&mut self, engine: &mut Engine) -> Option<PlanJob> {
        match self.below(12) {
            0 | 1 => Some(PlanJob::CreateGroup(Arc::new(self.spec(engine)))),
            2 => {
                let id = self.pick(|work| &work.groups)?;
                let count = 1 + self.below(3) as usize;
                Some(PlanJob::GrowGroup(id, same(cores(self.below(4) as u32), count), None))
            }
            3 => {
                let id = self.pick(|work| &work.groups)?;
                Some(PlanJob::ShrinkGroup(id, vec![self.below(4) as u32]))
            }
            4 => {
                let id = self.pick(|work| &work.groups)?;
                self.groups.retain(|&group| group != id);
                Some(PlanJob::RemoveGroup(id))
            }
            5 | 6 => {
                let request = cores(self.below(4) as u32);
                let queue = named(self.leaf());
                Some(PlanJob::Place(Box::new(DirectPlacement { request, queue, bound: None, wait: None })))
            }
            7 => {
                let count = 1 + self.below(4) as u32;
                self.names += 1;
                let spec = Box::new(bag(&format!("j{}", self.names), count));
                let queue = named(self.leaf());
                Some(PlanJob::Jobs(Box::new(JobsRequest::Submit {
                    spec,
                    queue,
                    bound: None,
                    priorities: None,
                })))
            }
            8 => {
                let job = self.pick(|work| &work.jobs)?;
                self.jobs.retain(|&other| other != job);
                Some(PlanJob::Jobs(Box::new(JobsRequest::Cancel { job, tenant: None, grace_ns: 0 })))
            }
            9 => {
                let allocation = self.pick(|work| &work.direct)?;
                self.direct.retain(|&other| other != allocation);
                engine.ports[0].submit(1, PortRequest::Release(allocation), engine.now).expect("room");
                None
            }
            10 => {
                let at = self.below(self.nodes.len() as u64) as usize;
                let (node, is_there) = &mut self.nodes[at];
                *is_there = !*is_there;
                let node = *node;
                let event = if *is_there { LifeEvent::Beat } else { LifeEvent::Lose };
                let partition = engine.catalog.load().node_partition(node).expect("it is registered");
                let request = PortRequest::Partition(partition, Command::Life(node, event));
                engine.ports[0].submit(1, request, engine.now).expect("room");
                None
            }
            _ => {
                engine.now = engine.now.plus_nanos(INTERVAL_NS);
                None
            }
        }
    }

    fn take(&mut self, replies: Vec<(u64, PortReply)>) {
        for (_, reply) in replies {
            let PortReply::Plan(reply) = reply else { continue };
            match *reply {
                PlanReply::Group(Ok(group)) => {
                    self.placed += 1;
                    if !self.groups.contains(&group.id) {
                        self.groups.push(group.id);
                    }
                }
                PlanReply::Group(Err(_)) => self.refused += 1,
                PlanReply::Jobs(Ok(JobsReply::Done(JobsDone::Submitted(job)))) => self.jobs.push(job),
                PlanReply::Placed(Ok(placement)) => self.direct.push(placement.allocation),
                _ => {}
            }
        }
    }

    /// Sends some requests at once, and lets everything settle.
    fn step(&mut self, engine: &mut Engine) {
        for _ in 0..1 + self.below(3) {
            if let Some(job) = self.act(engine) {
                engine.ports[0].submit(2, PortRequest::Plan(job), engine.now).expect("room");
            }
        }
        self.take(settle(engine));
        check_jobs(engine);
    }
}

#[test]
fn caps_hold_whatever_is_charged_and_over_starts() {
    let mut placed = 0;
    let mut refused = 0;
    for seed in 0..40 {
        let mut engine = jobs_engine(1 + (seed % 3) as u16, CycleConfig::default());
        let mut work = Work::new(seed, &mut engine);
        for _ in 0..60 {
            work.step(&mut engine);
            if work.below(25) == 0 {
                // Its waits end with the start.
                let state = export_all(&mut engine);
                state.check().expect("it is whole");
                let shards = 1 + work.below(3) as u16;
                engine = open_with(state, &jobs_config(shards, CycleConfig::default()));
                // What is on lost nodes is evicted first.
                settle(&mut engine);
                check_jobs(&mut engine);
            }
        }
        placed += work.placed;
        refused += work.refused;
    }
    assert!(placed > 200 && refused > 100, "{placed} groups were made or grown, {refused} were not");
}

#[test]
fn caps_hold_after_a_crash_at_any_unit() {
    for seed in 100..104 {
        let mut journaled = Journaled::new(2, CycleConfig::default());
        let mut work = Work::new(seed, &mut journaled.engine);
        for _ in 0..40 {
            work.step(&mut journaled.engine);
        }
        for crash in 0..=journaled.collect() {
            let state = after_a_crash(&journaled.units[..crash]);
            let mut engine = open_with(state, &jobs_config(1 + (seed % 2) as u16, CycleConfig::default()));
            settle(&mut engine);
            check_jobs(&mut engine);
            engine.now = engine.now.plus_nanos(INTERVAL_NS);
            settle(&mut engine);
            check_jobs(&mut engine);
        }
    }
}
