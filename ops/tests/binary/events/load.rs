//! The load under which the service is killed: it makes every kind of event.

use std::sync::mpsc::SyncSender;

use tokio::sync::oneshot;
use tokio::task::{JoinSet, LocalSet};
use wharf_core::rng::Rng;
use wharf_net::client::{Client, ClientConfig, ClientError};
use wharf_net::protocol::{
    AdoptRequest, BundleTemplate, COMMIT_ALL_OR_NOTHING, CreateGroupRequest, DemandBody, DrainRequest,
    HeartbeatRequest, Name, NodeBody, NodesRequest, OPERATION_EVICT, OPERATION_PIPELINE, OperationBody,
    PlaceIntoRequest, PlaceRequest, PlacedBody, Reason, ReasonCode, RemoveRequest, RenewRequest,
    ReportRequest, StatementRequest, WireAllocation,
};

use crate::harness::{Service, runtime, within};

/// A silent agent is lost, and a session without a connection ends, while the test runs.
pub const SETTINGS: &str = "node_lost_after = \"1\"\nsession_kept_for = \"1\"\n";

/// The nodes for the load.
pub const NODES: u64 = 4;

/// The events that the load and the end of the test make.
pub const EVENTS: [&str; 22] = [
    "started",
    "placed",
    "committed",
    "claim_granted",
    "adopted",
    "bundle",
    "placed_into",
    "released",
    "evicted",
    "expired",
    "ended_with_node",
    "lease",
    "session_renewed",
    "session_expired",
    "node_added",
    "node_added: joining",
    "node_state: draining",
    "node_state: lost",
    "node_holds",
    "node_removed",
    "group",
    "group_removed",
];

const WORKERS: u64 = 8;
const WHOLE: i64 = 10_000;
const MS: u64 = 1_000_000;
const HOUR: u64 = 3600 * 1000 * MS;

/// Returns the name of a node for the load.
pub fn node(number: u64) -> String {
    format!("node-{number}")
}

/// Reports a node whose agent is silent from then on.
pub fn report_agent(service: &Service) {
    runtime().block_on(async {
        let client = service.client().await;
        let node = NodeBody { identity: "machine".to_owned(), ..node_body("agent", 2) };
        let report = ReportRequest { node, boot: "boot".to_owned(), version: 1, ..ReportRequest::default() };
        let reported = within(client.report(&report)).await.expect("it serves");
        assert!(reported.reason.is_done(), "{reported:?}");
        let heartbeat = HeartbeatRequest { node: reported.node, version: 1 };
        assert!(within(client.heartbeat(&heartbeat)).await.expect("it serves").reason.is_done());
        client.close().await;
    });
}

fn node_body(name: &str, cores: i64) -> NodeBody {
    NodeBody { name: name.to_owned(), cpu: cores * WHOLE, memory: WHOLE, ..NodeBody::default() }
}

/// Works until the service is killed. Tells of each answer.
pub fn run(config: ClientConfig, seed: u64, answered: &SyncSender<()>, mut killed: oneshot::Receiver<()>) {
    runtime().block_on(LocalSet::new().run_until(async {
        let client = within(Client::connect(config)).await.expect("the service is there");
        let mut workers = JoinSet::new();
        for number in 0..WORKERS {
            let worker = Worker {
                client: client.clone(),
                rng: Rng::new(seed ^ number),
                live: Vec::new(),
                leased: Vec::new(),
                answered: answered.clone(),
            };
            workers.spawn_local(worker.work());
        }
        // A client notices only after a while that its service was killed.
        tokio::select! {
            biased;
            Some(ended) = workers.join_next() => {
                panic!("a worker ended before the kill: {}", ended.expect("no answer was wrong"))
            }
            _ = &mut killed => {}
        }
    }));
}

struct Worker {
    client: Client,
    rng: Rng,
    live: Vec<WireAllocation>,
    leased: Vec<WireAllocation>,
    answered: SyncSender<()>,
}

fn demand(cores: i64) -> DemandBody {
    DemandBody { cpu: cores * WHOLE, ..DemandBody::default() }
}

fn request(cores: i64) -> PlaceRequest {
    PlaceRequest { demand: demand(cores), ..PlaceRequest::default() }
}

/// Returns whether a request for an allocation was done, or the allocation has ended with its node.
fn was_there(reason: ReasonCode) -> bool {
    matches!(reason.known(), Some(Reason::Done | Reason::UnknownAllocation))
}

impl Worker {
    async fn work(mut self) -> ClientError {
        loop {
            if let Err(error) = self.step().await {
                return error;
            }
            // The receiver goes when the service is killed.
            let _ = self.answered.send(());
        }
    }

    async fn step(&mut self) -> Result<(), ClientError> {
        match self.rng.below(16) {
            0..3 => {
                let placed = self.place(&request(1)).await?;
                self.live.extend(placed.map(|placed| placed.allocation));
            }
            3..6 => self.release().await?,
            6..8 => drop(self.place(&PlaceRequest { lease: MS, ..request(1) }).await?),
            8 => {
                let placed = self.place(&PlaceRequest { lease: HOUR, ..request(1) }).await?;
                self.leased.extend(placed.map(|placed| placed.allocation));
            }
            9 => self.renew().await?,
            10 => {
                let session = PlaceRequest { lease: HOUR, session_lease: true, ..request(1) };
                self.live.extend(self.place(&session).await?.map(|placed| placed.allocation));
            }
            11 => self.claim().await?,
            12 => self.group().await?,
            13 => self.drain().await?,
            14 => self.node_for_a_while().await?,
            _ => self.adopt().await?,
        }
        Ok(())
    }

    async fn place(&self, request: &PlaceRequest) -> Result<Option<PlacedBody>, ClientError> {
        Ok(self.client.place(request).await?.placed)
    }

    /// Releases what was placed first, once there is much.
    async fn release(&mut self) -> Result<(), ClientError> {
        for from in [&mut self.live, &mut self.leased] {
            if from.len() > 2 {
                let reply = self.client.release(from.remove(0)).await?;
                assert!(was_there(reply.reason), "{reply:?}");
            }
        }
        Ok(())
    }

    /// Renews the own leases and those of the session.
    async fn renew(&mut self) -> Result<(), ClientError> {
        let allocations = self.leased.clone();
        let session = Some(self.client.hello().session);
        let renew = RenewRequest { lease: 2 * HOUR, allocations, session };
        let reply = self.client.renew(&renew).await?;
        assert!(reply.replies.iter().all(|one| was_there(one.reason)), "{reply:?}");
        Ok(())
    }

    /// Evicts an allocation, and claims its capacity.
    async fn claim(&mut self) -> Result<(), ClientError> {
        let Some(victim) = self.place(&request(2)).await? else { return Ok(()) };
        let evict = OperationBody {
            operation: OPERATION_EVICT,
            allocation: Some(victim.allocation),
            grace: MS,
            ..OperationBody::default()
        };
        let claim = OperationBody {
            operation: OPERATION_PIPELINE,
            node: victim.node,
            demand: demand(2),
            ..OperationBody::default()
        };
        let statement = StatementRequest {
            operations: vec![evict, claim],
            mode: COMMIT_ALL_OR_NOTHING,
            ..StatementRequest::default()
        };
        self.client.submit_statement(&statement).await?;
        Ok(())
    }

    /// Makes a group, places into it, and removes it or leaves it.
    async fn group(&mut self) -> Result<(), ClientError> {
        let bundles = vec![BundleTemplate { request: request(1), count: 2 }];
        let create = CreateGroupRequest { bundles, ..CreateGroupRequest::default() };
        let Some(group) = self.client.create_group(&create).await?.group else { return Ok(()) };
        let into =
            PlaceIntoRequest { group: Some(group.id), demand: demand(1), ..PlaceIntoRequest::default() };
        self.client.place_into(&into).await?;
        if self.rng.below(4) > 0 {
            self.client.remove_group(group.id).await?;
        }
        Ok(())
    }

    async fn drain(&mut self) -> Result<(), ClientError> {
        let names = vec![Name(node(self.rng.below(NODES)))];
        for undo in [false, true] {
            self.client.drain_nodes(&DrainRequest { names: names.clone(), undo }).await?;
        }
        Ok(())
    }

    /// Adds a node, adopts work there, and removes it with that.
    async fn node_for_a_while(&mut self) -> Result<(), ClientError> {
        let name = format!("short-{}", self.rng.below(u64::MAX));
        let added = self.client.add_nodes(&NodesRequest { nodes: vec![node_body(&name, 4)] }).await?;
        assert!(added.replies[0].reason.is_done(), "{added:?}");
        let external_id = "pod".to_owned();
        let adopt =
            AdoptRequest { node: name.clone(), demand: demand(1), external_id, ..AdoptRequest::default() };
        self.client.adopt(&adopt).await?;
        if self.rng.below(4) > 0 {
            self.client.remove_nodes(&RemoveRequest { names: vec![Name(name)], force: true }).await?;
        }
        Ok(())
    }

    async fn adopt(&mut self) -> Result<(), ClientError> {
        let external_id = format!("pod-{}", self.rng.below(u64::MAX));
        let node = node(self.rng.below(NODES));
        let adopt = AdoptRequest { node, demand: demand(1), external_id, ..AdoptRequest::default() };
        let reply = self.client.adopt(&adopt).await?;
        self.live.extend(reply.placed.map(|placed| placed.allocation));
        Ok(())
    }
}
