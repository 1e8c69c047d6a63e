//! A client that creates and removes groups, and records the answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use wharf_core::group::Strategy;
use wharf_core::limits::NODES_PER_MESSAGE_MAX;
use wharf_core::resource::Amount;
use wharf_core::rng::Rng;
use wharf_net::client::{Client, ClientError, Completion, Completions};
use wharf_net::convert::strategy_number;
use wharf_net::protocol::{
    BundleTemplate, CreateGroupRequest, DemandBody, ListGroupsRequest, ListRequest, Message, NodeBody,
    NodesRequest, PlaceRequest, Reason, RemoveGroupRequest, StatusRequest, WireGroup, kinds,
};

use super::existing::{Existing, NODE_CORES, NODE_MEMORY, bundle_cpu, bundle_memory};
use super::{GroupsError, GroupsOptions};

const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// The result of one run of creating and removing groups.
pub(super) struct Churn {
    /// Groups created and removed.
    pub(super) done: u64,
    /// Groups refused.
    pub(super) refused: u64,
    /// The time from the first submission to the last answer.
    pub(super) elapsed: Duration,
    /// The time from a group's submission to its answer, in ns.
    pub(super) latency: Histogram<u64>,
}

#[derive(Clone, Copy)]
enum UnderWay {
    Create(Instant),
    Remove(WireGroup),
}

/// The goal of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// More groups.
    Fill,
    /// As many groups removed as created.
    Churn,
    /// No groups left.
    Clear,
}

/// The client.
pub(super) struct Load {
    client: Client,
    completions: Arc<Completions>,
    taken: Vec<Completion>,
    request: CreateGroupRequest,
    strategy: Strategy,
    bundles: u32,
    under_way: Vec<Option<UnderWay>>,
    free: Vec<usize>,
    rng: Rng,
    may_refuse: bool,
    existing: Existing,
}

impl Load {
    pub(super) fn new(client: Client, options: &GroupsOptions) -> Self {
        Self {
            client,
            completions: Arc::default(),
            taken: Vec::new(),
            request: CreateGroupRequest::default(),
            strategy: Strategy::Pack,
            bundles: 0,
            under_way: vec![None; options.in_flight],
            free: (0..options.in_flight).rev().collect(),
            rng: Rng::new(options.seed),
            may_refuse: options.may_refuse,
            existing: Existing::default(),
        }
    }

    /// Registers the nodes, which are all equal.
    pub(super) async fn register(&mut self, nodes: u32) -> Result<(), GroupsError> {
        let body = |number: u32| NodeBody {
            name: format!("node-{number}"),
            cpu: Amount::whole(NODE_CORES).units(),
            memory: Amount::whole(NODE_MEMORY).units(),
            ..NodeBody::default()
        };
        let all: Vec<NodeBody> = (0..nodes).map(body).collect();
        for batch in all.chunks(NODES_PER_MESSAGE_MAX) {
            let reply = self.client.add_nodes(&NodesRequest { nodes: batch.to_vec() }).await?;
            if let Some(fault) = reply.replies.into_iter().find_map(|reply| reply.fault) {
                return Err(GroupsError::Wrong(fault.to_string()));
            }
        }
        Ok(())
    }

    /// Sets the kind of groups to create from now on.
    pub(super) fn begin(&mut self, bundles: u32, strategy: Strategy) {
        let cpu = bundle_cpu().units();
        let memory = bundle_memory().units();
        let bundle = PlaceRequest {
            demand: DemandBody { cpu, memory, ..DemandBody::default() },
            ..PlaceRequest::default()
        };
        self.request = CreateGroupRequest {
            bundles: vec![BundleTemplate { request: bundle, count: bundles }],
            strategy: strategy_number(strategy),
            ..CreateGroupRequest::default()
        };
        (self.strategy, self.bundles) = (strategy, bundles);
    }

    /// Creates groups until `live` groups exist.
    pub(super) async fn fill(&mut self, live: u64) -> Result<(), GroupsError> {
        let missing = live.saturating_sub(self.existing.groups() as u64);
        self.run(Goal::Fill, missing).await.map(|_| ())
    }

    /// Creates and removes `groups` groups. Each removed group is a random one.
    pub(super) async fn churn(&mut self, groups: u64) -> Result<Churn, GroupsError> {
        self.run(Goal::Churn, groups).await
    }

    /// Removes all groups.
    pub(super) async fn remove_all(&mut self) -> Result<(), GroupsError> {
        let all = self.existing.groups() as u64;
        self.run(Goal::Clear, all).await.map(|_| ())
    }

    async fn run(&mut self, goal: Goal, operations: u64) -> Result<Churn, GroupsError> {
        let latency = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are in order");
        let mut churn = Churn { done: 0, refused: 0, elapsed: Duration::ZERO, latency };
        let started = Instant::now();
        let mut sent = 0;
        while churn.done + churn.refused < operations {
            while sent < operations
                && let Some(tag) = self.free.pop()
            {
                sent += 1;
                match goal {
                    Goal::Clear => self.remove_one(tag).await?,
                    _ => self.create(tag).await?,
                }
            }
            let mut taken = std::mem::take(&mut self.taken);
            self.completions.take(&mut taken).await;
            for completion in taken.drain(..) {
                self.answered(completion, goal, &mut churn).await?;
            }
            self.taken = taken;
        }
        churn.elapsed = started.elapsed();
        Ok(churn)
    }

    async fn create(&mut self, tag: usize) -> Result<(), GroupsError> {
        self.under_way[tag] = Some(UnderWay::Create(Instant::now()));
        self.client.submit::<kinds::CreateGroup>(&self.request, &self.completions, tag as u64).await?;
        Ok(())
    }

    async fn remove_one(&mut self, tag: usize) -> Result<(), GroupsError> {
        let group = self.existing.any(&mut self.rng);
        self.under_way[tag] = Some(UnderWay::Remove(group));
        let request = RemoveGroupRequest { group };
        self.client.submit::<kinds::RemoveGroup>(&request, &self.completions, tag as u64).await?;
        Ok(())
    }

    async fn answered(
        &mut self,
        completion: Completion,
        goal: Goal,
        churn: &mut Churn,
    ) -> Result<(), GroupsError> {
        let tag = usize::try_from(completion.tag).unwrap_or(usize::MAX);
        let raw = completion.reply?;
        let done = Reason::Done.into();
        match self.under_way.get_mut(tag).and_then(Option::take) {
            Some(UnderWay::Create(since)) => {
                let reply = kinds::CreateGroup::read_reply(&raw).map_err(ClientError::from)?;
                churn.latency.saturating_record(since.elapsed().as_nanos() as u64);
                match reply.group {
                    Some(group) if reply.reason == done => {
                        self.existing.enter(group, self.bundles, self.strategy)?
                    }
                    _ if self.may_refuse && reply.fault.is_none() => {
                        churn.refused += 1;
                        self.free.push(tag);
                        return Ok(());
                    }
                    _ => {
                        let said = reply.refusal.map(|refusal| refusal.message);
                        let said =
                            said.or_else(|| reply.fault.map(|fault| fault.to_string())).unwrap_or_default();
                        return Err(GroupsError::Refused(said));
                    }
                }
                if goal == Goal::Churn {
                    return self.remove_one(tag).await;
                }
            }
            Some(UnderWay::Remove(group)) => {
                let reply = kinds::RemoveGroup::read_reply(&raw).map_err(ClientError::from)?;
                if reply.reason != done || reply.bundles_ended != self.bundles {
                    let said = format!("group {group:?} was removed so: {reply:?}");
                    return Err(GroupsError::Wrong(said));
                }
            }
            None => return Err(GroupsError::Wrong(format!("an answer to {tag}, which was not asked"))),
        }
        churn.done += 1;
        self.free.push(tag);
        Ok(())
    }

    /// Checks the books: the service checks every invariant, and each node must have exactly the bundles of
    /// the existing groups.
    pub(super) async fn audit(&mut self) -> Result<(), GroupsError> {
        let status = self.client.status(&StatusRequest { audit: true }).await?;
        if status.books_hash.is_none() {
            return Err(GroupsError::Wrong("an audit was answered without its hash".to_owned()));
        }
        let mut after = 0;
        let mut nodes = Vec::new();
        loop {
            let page =
                self.client.list_nodes(&ListRequest { after, limit: NODES_PER_MESSAGE_MAX as u16 }).await?;
            nodes.extend(page.nodes);
            if !page.more {
                break;
            }
            after = nodes.last().map_or(0, |node| node.ordinal);
        }
        let mut listed = Vec::new();
        let mut last = None;
        loop {
            let page = self.client.list_groups(&ListGroupsRequest { after: last, limit: 0 }).await?;
            listed.extend(page.groups.iter().map(|group| group.id));
            if !page.more {
                break;
            }
            last = listed.last().copied();
        }
        self.existing.check(&nodes, &listed)
    }

    pub(super) async fn close(self) {
        self.client.close().await;
    }
}
