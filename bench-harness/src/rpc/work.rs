//! What is asked of the service, and what it has promised.
//!
//! Places and releases come in turns, so that the cluster stays as full as it is. Every answer is checked, and what it
//! promises is summed up: at the end, the audited books must say the same.

use std::sync::Arc;

use anyhow::{bail, ensure};
use wharf_core::limits::NODES_PER_MESSAGE_MAX;
use wharf_core::node::NodeSpec;
use wharf_core::request::PlacementRequest;
use wharf_core::resource::{Amount, Demand, GpuRequest, ResourceRegistry};
use wharf_core::rng::Rng;
use wharf_net::client::Client;
use wharf_net::convert::node_body;
use wharf_net::protocol::{
    BundleTemplate, CreateGroupRequest, DemandBody, GroupReply, NodeBody, NodesReply, NodesRequest, Pair,
    PlaceBatch, PlaceReply, PlaceRequest, Reason, ReasonCode, ReleaseBatch, ReleaseReply, ReleaseRequest,
    RemoveGroupReply, RemoveGroupRequest, StatusRequest, WireAllocation, WireGroup,
};

use crate::engine::scenario::Scenario;
use crate::replay::{Promised, check_books};
use crate::target::{audited_books, place_request};
use crate::trace::{Trace, TraceNode};

/// The share of the scarcest resource that is in use, in percent.
const UTILISATION_PERCENT: i128 = 85;
/// The requests of a message while the cluster is filled or emptied.
const FILL_BATCH: usize = 256;
/// Of a mixed load, the percentage of requests that create or remove a group; as many update a node.
const GROUPS_PERCENT: u64 = 5;
/// The bundles of a group.
const BUNDLES: u32 = 4;
/// The groups that a mixed load keeps.
const GROUPS: usize = 64;
/// The label that an update of a node changes.
const UPDATED_LABEL: &str = "updated";

/// An allocation that was granted and is not released.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    request: u32,
    allocation: WireAllocation,
}

/// What a frame asks for.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    Place(u32),
    Release(Live),
    PlaceBatch(Vec<u32>),
    ReleaseBatch(Vec<Live>),
    CreateGroup,
    RemoveGroup(WireGroup),
    UpdateNode(u32),
}

/// The bodies of requests, made before the load begins.
pub(super) struct Bodies {
    pub(super) places: Vec<PlaceRequest>,
    pub(super) group: CreateGroupRequest,
    nodes: Vec<NodeBody>,
}

impl Bodies {
    pub(super) fn release(live: &Live) -> ReleaseRequest {
        ReleaseRequest { allocation: live.allocation }
    }

    pub(super) fn place_batch(&self, requests: &[u32]) -> PlaceBatch {
        PlaceBatch { requests: requests.iter().map(|&at| self.places[at as usize].clone()).collect() }
    }

    pub(super) fn release_batch(live: &[Live]) -> ReleaseBatch {
        ReleaseBatch { requests: live.iter().map(Self::release).collect() }
    }

    pub(super) fn remove_group(group: WireGroup) -> RemoveGroupRequest {
        RemoveGroupRequest { group }
    }

    /// Returns an update of one label of a node. Every update has another value than the one before.
    pub(super) fn update(&self, update: u32) -> NodesRequest {
        let count = self.nodes.len() as u32;
        let mut node = self.nodes[(update % count) as usize].clone();
        let value = if (update / count).is_multiple_of(2) { "odd" } else { "even" };
        node.labels.push(Pair { key: UPDATED_LABEL.to_owned(), value: value.to_owned() });
        NodesRequest { nodes: vec![node] }
    }
}

/// The kind of a load's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mix {
    /// Places and releases, this number per frame.
    Pairs(usize),
    /// Groups and updates of nodes among them.
    Mixed,
}

/// Requests that were answered with a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Answered {
    /// Placements, granted or refused. A search costs many times what a release does.
    pub(super) placements: u64,
    /// Releases.
    pub(super) releases: u64,
}

impl Answered {
    pub(super) fn since(self, before: Self) -> Self {
        let Self { placements, releases } = self;
        Self { placements: placements - before.placements, releases: releases - before.releases }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.placements += other.placements;
        self.releases += other.releases;
    }
}

/// The state of a load.
pub(super) struct Work {
    demands: Arc<[Demand]>,
    bundle: Demand,
    /// The nodes as a trace has them, with which books are checked.
    trace: Arc<Trace>,
    rng: Rng,
    live: Vec<Live>,
    groups: Vec<WireGroup>,
    updates: u32,
    releases_next: bool,
    removes_next: bool,
    promised: Promised,
    capacity: [i128; 3],
    /// Requests that no node could hold.
    pub(super) refused: u64,
    /// What was answered.
    pub(super) answered: Answered,
}

/// Makes the bodies of a scenario's requests, and a load over them.
pub(super) fn work_of(scenario: &Scenario, seed: u64) -> (Bodies, Work) {
    let no_kinds = ResourceRegistry::default();
    let requests: &[PlacementRequest] = &scenario.requests;
    let bundle =
        Demand { cpu: Amount::whole(1), memory: Amount::whole(1024), gpu: GpuRequest::None, custom: None };
    let template = PlaceRequest {
        demand: DemandBody {
            cpu: bundle.cpu.units(),
            memory: bundle.memory.units(),
            ..DemandBody::default()
        },
        ..PlaceRequest::default()
    };
    let bodies = Bodies {
        places: requests.iter().map(place_request).collect(),
        group: CreateGroupRequest {
            bundles: vec![BundleTemplate { request: template, count: BUNDLES }],
            ..CreateGroupRequest::default()
        },
        nodes: scenario.nodes.iter().map(|node| node_body(node, &no_kinds)).collect(),
    };
    let trace = Trace { nodes: scenario.nodes.iter().map(trace_node).collect(), ..Trace::default() };
    let sum = |of: &dyn Fn(&TraceNode) -> i128| trace.nodes.iter().map(of).sum();
    let capacity = [
        sum(&|node| i128::from(node.cpu.units())),
        sum(&|node| i128::from(node.memory.units())),
        sum(&|node| i128::from(Amount::whole(u32::from(node.gpus)).units())),
    ];
    let work = Work {
        demands: requests.iter().map(|request| request.demand.clone()).collect(),
        bundle,
        trace: Arc::new(trace),
        rng: Rng::new(seed),
        live: Vec::new(),
        groups: Vec::new(),
        updates: 0,
        releases_next: false,
        removes_next: false,
        promised: Promised::default(),
        capacity,
        refused: 0,
        answered: Answered::default(),
    };
    (bodies, work)
}

fn trace_node(spec: &NodeSpec) -> TraceNode {
    let NodeSpec { name, cpu, memory, gpus, .. } = spec.clone();
    TraceNode { name, cpu, memory, gpus, model: None }
}

impl Work {
    /// Returns the share of the scarcest resource in use, in percent.
    pub(super) fn utilisation_percent(&self) -> f64 {
        let used = [self.promised.cpu, self.promised.memory, self.promised.gpu];
        let shares = used.iter().zip(&self.capacity).filter(|(_, capacity)| **capacity > 0);
        shares.map(|(used, capacity)| *used as f64 * 100.0 / *capacity as f64).fold(0.0, f64::max)
    }

    pub(super) fn is_full(&self) -> bool {
        let used = [self.promised.cpu, self.promised.memory, self.promised.gpu];
        used.iter().zip(&self.capacity).any(|(used, capacity)| used * 100 > capacity * UTILISATION_PERCENT)
    }

    pub(super) fn allocations(&self) -> u64 {
        self.promised.allocations
    }

    /// Divides the load into parts, each with as much of the cluster and of what is allocated there. They are
    /// [joined](Self::join) later.
    pub(super) fn split(&mut self, count: usize) -> Vec<Self> {
        let count = count.max(1);
        let capacity = self.capacity.map(|capacity| capacity / count as i128);
        let mut parts: Vec<Self> = (0..count)
            .map(|_| Self {
                demands: Arc::clone(&self.demands),
                bundle: self.bundle.clone(),
                trace: Arc::clone(&self.trace),
                rng: Rng::new(self.rng.next_u64()),
                live: Vec::new(),
                groups: Vec::new(),
                updates: self.updates,
                releases_next: false,
                removes_next: false,
                promised: Promised::default(),
                capacity,
                refused: 0,
                answered: Answered::default(),
            })
            .collect();
        for (number, live) in self.live.drain(..).enumerate() {
            let part = &mut parts[number % count];
            part.promised.change(&self.demands[live.request as usize], 1);
            part.live.push(live);
        }
        for (number, group) in self.groups.drain(..).enumerate() {
            let part = &mut parts[number % count];
            (0..BUNDLES).for_each(|_| part.promised.change(&self.bundle, 1));
            part.groups.push(group);
        }
        self.promised = Promised::default();
        parts
    }

    /// Takes back a part of a load.
    pub(super) fn join(&mut self, part: Self) {
        self.live.extend(part.live);
        self.groups.extend(part.groups);
        self.updates = self.updates.max(part.updates);
        self.refused += part.refused;
        self.answered.add(part.answered);
        self.promised.allocations += part.promised.allocations;
        self.promised.cpu += part.promised.cpu;
        self.promised.memory += part.promised.memory;
        self.promised.gpu += part.promised.gpu;
    }

    /// Returns what the next frame asks for.
    pub(super) fn next(&mut self, mix: Mix) -> Asked {
        match mix {
            Mix::Pairs(batch) => self.next_of_pair(batch),
            Mix::Mixed => match self.rng.below(100) {
                share if share < GROUPS_PERCENT => self.next_of_groups(),
                share if share < 2 * GROUPS_PERCENT => {
                    self.updates = self.updates.wrapping_add(1);
                    Asked::UpdateNode(self.updates)
                }
                _ => self.next_of_pair(1),
            },
        }
    }

    /// In turns. If requests were refused, fewer are released, so that the cluster stays as full as it is.
    fn next_of_pair(&mut self, batch: usize) -> Asked {
        let releases = self.releases_next;
        self.releases_next = !releases;
        if releases && self.is_full() && self.live.len() >= batch {
            let mut draw = || {
                let at = self.rng.below(self.live.len() as u64) as usize;
                self.live.swap_remove(at)
            };
            return match batch {
                1 => Asked::Release(draw()),
                _ => Asked::ReleaseBatch((0..batch).map(|_| draw()).collect()),
            };
        }
        match batch {
            1 => Asked::Place(self.draw_request()),
            _ => Asked::PlaceBatch((0..batch).map(|_| self.draw_request()).collect()),
        }
    }

    fn draw_request(&mut self) -> u32 {
        self.rng.below(self.demands.len() as u64) as u32
    }

    fn next_of_groups(&mut self) -> Asked {
        let removes = self.removes_next;
        self.removes_next = !removes;
        if removes && self.groups.len() >= GROUPS {
            let at = self.rng.below(self.groups.len() as u64) as usize;
            return Asked::RemoveGroup(self.groups.swap_remove(at));
        }
        Asked::CreateGroup
    }

    pub(super) fn placed(&mut self, request: u32, reply: &PlaceReply) -> anyhow::Result<()> {
        self.answered.placements += 1;
        if let Some(placed) = &reply.placed {
            self.live.push(Live { request, allocation: placed.allocation });
            self.promised.change(&self.demands[request as usize], 1);
            return Ok(());
        }
        ensure!(is_refusal(reply.reason), "a placement was answered with {reply:?}");
        self.refused += 1;
        Ok(())
    }

    /// Takes the newest allocation, to release it.
    pub(super) fn take_newest(&mut self) -> Option<Live> {
        self.live.pop()
    }

    pub(super) fn released(&mut self, live: &Live, reply: &ReleaseReply) -> anyhow::Result<()> {
        ensure!(reply.reason == Reason::Done.into(), "a release was answered with {reply:?}");
        self.answered.releases += 1;
        self.promised.change(&self.demands[live.request as usize], -1);
        Ok(())
    }

    /// Takes back what was asked for and not done.
    pub(super) fn not_done(&mut self, asked: Asked) {
        match asked {
            Asked::Release(live) => self.live.push(live),
            Asked::ReleaseBatch(live) => self.live.extend(live),
            Asked::RemoveGroup(group) => self.groups.push(group),
            Asked::Place(_) | Asked::PlaceBatch(_) | Asked::CreateGroup | Asked::UpdateNode(_) => {}
        }
    }

    pub(super) fn placed_batch(&mut self, requests: &[u32], replies: &[PlaceReply]) -> anyhow::Result<()> {
        ensure!(requests.len() == replies.len(), "{} requests got {} replies", requests.len(), replies.len());
        requests.iter().zip(replies).try_for_each(|(&request, reply)| self.placed(request, reply))
    }

    pub(super) fn released_batch(&mut self, live: &[Live], replies: &[ReleaseReply]) -> anyhow::Result<()> {
        ensure!(live.len() == replies.len(), "{} releases got {} replies", live.len(), replies.len());
        live.iter().zip(replies).try_for_each(|(live, reply)| self.released(live, reply))
    }

    pub(super) fn created(&mut self, reply: &GroupReply) -> anyhow::Result<()> {
        let Some(group) = &reply.group else {
            ensure!(is_refusal(reply.reason), "a group was answered with {reply:?}");
            self.refused += 1;
            return Ok(());
        };
        self.groups.push(group.id);
        (0..BUNDLES).for_each(|_| self.promised.change(&self.bundle, 1));
        Ok(())
    }

    pub(super) fn removed(&mut self, reply: &RemoveGroupReply) -> anyhow::Result<()> {
        ensure!(reply.bundles_ended == BUNDLES, "the removal of a group was answered with {reply:?}");
        (0..BUNDLES).for_each(|_| self.promised.change(&self.bundle, -1));
        Ok(())
    }

    pub(super) fn updated(&mut self, reply: &NodesReply) -> anyhow::Result<()> {
        let done = reply.replies.iter().all(|reply| reply.reason == Reason::Done.into());
        ensure!(done && reply.replies.len() == 1, "the update of a node was answered with {reply:?}");
        Ok(())
    }

    /// Registers the nodes by `admin`, and places by `client` until the cluster is as full as it shall be.
    pub(super) async fn fill(
        &mut self,
        bodies: &Bodies,
        admin: &Client,
        client: &Client,
    ) -> anyhow::Result<()> {
        for nodes in bodies.nodes.chunks(NODES_PER_MESSAGE_MAX) {
            let reply = admin.add_nodes(&NodesRequest { nodes: nodes.to_vec() }).await?;
            let fault = reply.replies.into_iter().find_map(|reply| reply.fault);
            if let Some(fault) = fault {
                bail!("a node was not added: {fault}");
            }
        }
        while !self.is_full() {
            let before = self.allocations();
            let requests: Vec<u32> = (0..FILL_BATCH).map(|_| self.draw_request()).collect();
            let reply = client.place_batch(&bodies.place_batch(&requests)).await?;
            self.placed_batch(&requests, &reply.replies)?;
            ensure!(
                self.allocations() > before,
                "the cluster is only {:.1} % full and takes no more: give more nodes",
                self.utilisation_percent()
            );
        }
        self.refused = 0;
        Ok(())
    }

    /// Releases everything.
    pub(super) async fn empty(&mut self, client: &Client) -> anyhow::Result<()> {
        for group in std::mem::take(&mut self.groups) {
            self.removed(&client.remove_group(group).await?)?;
        }
        while !self.live.is_empty() {
            let live = self.live.split_off(self.live.len().saturating_sub(FILL_BATCH));
            let reply = client.release_batch(&Bodies::release_batch(&live)).await?;
            self.released_batch(&live, &reply.replies)?;
        }
        Ok(())
    }

    /// Returns what the audited books must say.
    pub(super) fn promises(&self) -> Promises {
        Promises { trace: Arc::clone(&self.trace), promised: self.promised }
    }
}

/// What the service promised.
pub(super) struct Promises {
    trace: Arc<Trace>,
    promised: Promised,
}

impl Promises {
    /// Checks that the service's books are in order, and say what its answers promised.
    pub(super) async fn audit(&self, client: &Client) -> anyhow::Result<()> {
        let status = client.status(&StatusRequest { audit: true }).await?;
        check_books(&self.trace, &self.promised, &audited_books(&status)?)?;
        Ok(())
    }
}

fn is_refusal(reason: ReasonCode) -> bool {
    reason == Reason::NoFitNow.into() || reason == Reason::Infeasible.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::scenario::Kind;
    use crate::engine::shapes::Shapes;
    use wharf_core::request::Policy;
    use wharf_net::protocol::{GroupBody, PlacedBody};

    fn work() -> (Bodies, Work) {
        let shapes = Shapes::synthetic(3);
        work_of(&Kind::Steady.scenario(20, Policy::LeastFit, &shapes, 3), 3)
    }

    fn granted(number: u64) -> PlaceReply {
        let allocation = WireAllocation { sequence: number, ..WireAllocation::default() };
        let placed = Some(PlacedBody { allocation, ..PlacedBody::default() });
        PlaceReply { reason: Reason::Done.into(), placed, ..PlaceReply::default() }
    }

    fn done() -> ReleaseReply {
        ReleaseReply { reason: Reason::Done.into(), ..ReleaseReply::default() }
    }

    /// Answers what is asked, and returns the number of places and of releases.
    fn answer(work: &mut Work, mix: Mix, frames: u64) -> (u64, u64) {
        let mut places = 0;
        let mut releases = 0;
        for number in 0..frames {
            match work.next(mix) {
                Asked::Place(request) => {
                    places += 1;
                    work.placed(request, &granted(number)).unwrap();
                }
                Asked::Release(live) => {
                    releases += 1;
                    work.released(&live, &done()).unwrap();
                }
                Asked::PlaceBatch(requests) => {
                    places += requests.len() as u64;
                    let replies = vec![granted(number); requests.len()];
                    work.placed_batch(&requests, &replies).unwrap();
                }
                Asked::ReleaseBatch(live) => {
                    releases += live.len() as u64;
                    work.released_batch(&live, &vec![done(); live.len()]).unwrap();
                }
                Asked::CreateGroup => {
                    let id = WireGroup { incarnation: 1, number, tenant: 0 };
                    let group = Some(GroupBody { id, ..GroupBody::default() });
                    let reason = Reason::Done.into();
                    work.created(&GroupReply { reason, group, ..GroupReply::default() }).unwrap();
                }
                Asked::RemoveGroup(_) => {
                    let bundles_ended = BUNDLES;
                    let reply = RemoveGroupReply { bundles_ended, ..RemoveGroupReply::default() };
                    work.removed(&reply).unwrap();
                }
                Asked::UpdateNode(_) => {}
            }
        }
        (places, releases)
    }

    #[test]
    fn a_full_cluster_stays_as_full_as_it_is() {
        for mix in [Mix::Pairs(1), Mix::Pairs(4)] {
            let mut work = work().1;
            answer(&mut work, mix, 2_000);
            let before = work.allocations();
            assert!(work.is_full());
            let (places, releases) = answer(&mut work, mix, 2_000);
            assert!(places.abs_diff(releases) <= places / 10, "{mix:?}: {places} and {releases}");
            assert!(work.allocations().abs_diff(before) <= before / 10, "{mix:?}");
            assert_eq!(work.live.len() as u64, work.allocations());
        }
    }

    #[test]
    fn a_mixed_load_keeps_few_groups_and_counts_their_bundles() {
        let mut work = work().1;
        answer(&mut work, Mix::Mixed, 20_000);
        assert!((GROUPS - 1..=GROUPS + 1).contains(&work.groups.len()), "{}", work.groups.len());
        let bundles = work.groups.len() as u64 * u64::from(BUNDLES);
        assert_eq!(work.allocations(), work.live.len() as u64 + bundles);
        assert!((500..1500).contains(&work.updates), "{}", work.updates);
    }

    #[test]
    fn each_update_of_a_node_changes_it() {
        let bodies = work().0;
        let count = bodies.nodes.len() as u32;
        let of = |update: u32| bodies.update(update).nodes[0].clone();
        assert_ne!(of(1), of(1 + count));
        assert_eq!(of(1), of(1 + 2 * count));
        assert_ne!(of(1).name, of(2).name);
    }

    #[test]
    fn the_parts_of_a_load_are_the_load() {
        let (_, mut work) = work();
        answer(&mut work, Mix::Mixed, 400);
        let before = (work.promised, work.live.len(), work.groups.len());
        let answered = work.answered;
        let mut parts = work.split(3);
        assert_eq!(work.promised, Promised::default());
        assert!(parts.iter().all(|part| !part.live.is_empty()), "each part has something");
        let mut placed = 0;
        let mut of_parts = Answered::default();
        for part in &mut parts {
            let (places, releases) = answer(part, Mix::Pairs(1), 50);
            of_parts.add(Answered { placements: places, releases });
            placed += places as usize;
            placed -= releases as usize;
        }
        parts.into_iter().for_each(|part| work.join(part));
        assert_eq!(work.live.len(), before.1 + placed);
        assert_eq!(work.answered.since(answered), of_parts);
        assert_eq!(work.groups.len(), before.2);
        assert_eq!(work.promised.allocations, before.0.allocations + placed as u64);
        let demands = work.live.iter().map(|live| &work.demands[live.request as usize]);
        let mut sum = Promised::default();
        demands.for_each(|demand| sum.change(demand, 1));
        work.groups.iter().for_each(|_| (0..BUNDLES).for_each(|_| sum.change(&work.bundle, 1)));
        assert_eq!(work.promised, sum);
    }

    #[test]
    fn an_answer_that_is_none_is_an_error() {
        let mut work = work().1;
        assert!(work.placed(0, &PlaceReply::default()).is_err());
        let refused = PlaceReply { reason: Reason::NoFitNow.into(), ..PlaceReply::default() };
        work.placed(0, &refused).unwrap();
        assert_eq!((work.refused, work.allocations()), (1, 0));
        assert!(work.placed_batch(&[0, 1], &[granted(1)]).is_err());
        assert!(work.removed(&RemoveGroupReply::default()).is_err());
        assert!(work.updated(&NodesReply::default()).is_err());
    }
}
