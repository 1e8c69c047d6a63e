//! A server over QUIC, driven through the public client.
//!
//! Orders are buffered until [`wait`](Target::wait) and sent together on one connection. The server reads
//! them in the order of submission.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::Runtime;
use wharf_core::limits::NODES_PER_MESSAGE_MAX;
use wharf_core::map::FixedMap;
use wharf_core::node::{NodeSpec, Operator};
use wharf_core::request::{Explain, PlacementRequest};
use wharf_core::resource::{GpuAssignment, ResourceRegistry};
use wharf_core::router::Verdict;
use wharf_net::client::{Client, ClientError, Completion, Completions};
use wharf_net::convert::{node_body, policy_number};
use wharf_net::protocol::{
    AVOID_GPU_NO, DemandBody, EXPLAIN_BOUNDED, EXPLAIN_FULL, Kind, Message, Name, NodesRequest,
    OPERATOR_EXISTS, OPERATOR_GREATER, OPERATOR_IN, OPERATOR_LESS, OPERATOR_NOT_EXISTS, OPERATOR_NOT_IN,
    PlaceReply, PlaceRequest, Reason, ReleaseRequest, SelectorTerm, StatusReply, StatusRequest, kinds,
};

use super::{Answer, BookSum, Books, Granted, Order, Reply, Target, TargetError};

/// A server behind a connection.
pub struct RemoteTarget {
    runtime: Runtime,
    /// `Some` until the target is dropped.
    client: Option<Client>,
    completions: Arc<Completions>,
    /// Orders since the last wait, encoded at the next.
    held: Vec<(u64, Order)>,
    /// Orders in flight by tag, with the kind of the expected reply.
    under_way: FixedMap<u64, Kind>,
    nodes: FixedMap<u64, usize>,
    shards: u16,
    resident_bytes: Option<u64>,
    taken: Vec<Completion>,
}

const CONNECTED: &str = "the client is there until the target is dropped";

fn unreachable(error: ClientError) -> TargetError {
    TargetError::Unreachable(Box::new(error))
}

impl RemoteTarget {
    /// Connects by `connect` and makes the server the target of one replay.
    ///
    /// # Errors
    /// When the connection fails, or the server already has nodes, because its books could not be checked
    /// against the trace.
    pub fn open<E, F>(connect: impl FnOnce() -> F) -> Result<Self, TargetError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
        F: Future<Output = Result<Client, E>>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| TargetError::Unreachable(error.into()))?;
        let client = runtime.block_on(connect()).map_err(|error| TargetError::Unreachable(error.into()))?;
        let mut target = Self {
            runtime,
            client: Some(client),
            completions: Arc::default(),
            held: Vec::new(),
            under_way: FixedMap::default(),
            nodes: FixedMap::default(),
            shards: 0,
            resident_bytes: None,
            taken: Vec::new(),
        };
        let status = target.status(false)?;
        let nodes: u64 = status.shards.iter().map(|s| s.nodes()).sum();
        if nodes > 0 {
            return Err(TargetError::Rejected(format!(
                "the server already holds {nodes} nodes: replay against an empty one (a new --data-dir)"
            )));
        }
        target.shards = u16::try_from(status.shards.len()).unwrap_or(u16::MAX);
        Ok(target)
    }

    fn client(&self) -> &Client {
        self.client.as_ref().expect(CONNECTED)
    }

    fn status(&mut self, audit: bool) -> Result<StatusReply, TargetError> {
        let request = StatusRequest { audit };
        let status = self.runtime.block_on(self.client().status(&request)).map_err(unreachable)?;
        self.resident_bytes = (status.resident_bytes > 0).then_some(status.resident_bytes);
        Ok(status)
    }

    fn register_batch(&mut self, nodes: &[NodeSpec]) -> Result<(), TargetError> {
        // Traces have no custom resource kinds.
        let no_kinds = ResourceRegistry::default();
        let request = NodesRequest { nodes: nodes.iter().map(|node| node_body(node, &no_kinds)).collect() };
        let reply = self.runtime.block_on(self.client().add_nodes(&request)).map_err(unreachable)?;
        for reply in reply.replies {
            if let Some(fault) = reply.fault {
                return Err(TargetError::Rejected(fault.to_string()));
            }
            let index = self.nodes.len();
            self.nodes.insert(reply.node, index);
        }
        Ok(())
    }

    fn answer(&mut self, completion: Completion) -> Result<Reply, TargetError> {
        let tag = completion.tag;
        let raw = completion.reply.map_err(unreachable)?;
        let wrong = |error: wharf_net::codec::BodyError| unreachable(error.into());
        let answer = match self.under_way.remove(&tag) {
            Some(Kind::Place) => self.placed(kinds::Place::read_reply(&raw).map_err(wrong)?)?,
            Some(Kind::Release) => {
                let reply = kinds::Release::read_reply(&raw).map_err(wrong)?;
                if let Some(fault) = reply.fault {
                    return Err(TargetError::Rejected(fault.to_string()));
                }
                Answer::Released
            }
            other => return Err(TargetError::Rejected(format!("tag {tag} is {other:?}, not under way"))),
        };
        Ok(Reply { tag, answer })
    }

    fn placed(&self, reply: PlaceReply) -> Result<Answer, TargetError> {
        if let Some(placed) = reply.placed {
            let node = self.nodes.get(&placed.node).copied().ok_or_else(|| {
                TargetError::Rejected(format!("a placement on node n{}, which is not ours", placed.node))
            })?;
            let mask = placed
                .gpus
                .iter()
                .fold(0, |mask, &instance| mask | 1u16.checked_shl(instance.into()).unwrap_or(0));
            let gpus = GpuAssignment { mask, part: placed.gpu_part };
            return Ok(Answer::Placed(Granted { node, allocation: placed.allocation.into(), gpus }));
        }
        match reply.reason.known() {
            Some(Reason::NoFitNow) => Ok(Answer::Refused(Verdict::NoFitNow)),
            Some(Reason::Infeasible) => Ok(Answer::Refused(Verdict::Infeasible)),
            _ => Err(TargetError::Rejected(
                reply.fault.map_or_else(|| reply.reason.to_string(), |f| f.to_string()),
            )),
        }
    }
}

/// Converts a request without custom resources and candidates to its wire form.
pub(crate) fn place_request(request: &PlacementRequest) -> PlaceRequest {
    let terms = request.selector.as_deref().map_or(&[][..], |selector| selector.terms());
    let selectors = terms.iter().map(|term| SelectorTerm {
        key: term.key.clone(),
        operator: match term.operator {
            Operator::In => OPERATOR_IN,
            Operator::NotIn => OPERATOR_NOT_IN,
            Operator::Exists => OPERATOR_EXISTS,
            Operator::NotExists => OPERATOR_NOT_EXISTS,
            Operator::Greater => OPERATOR_GREATER,
            Operator::Less => OPERATOR_LESS,
        },
        values: term.values.iter().cloned().map(Name).collect(),
    });
    PlaceRequest {
        demand: DemandBody {
            cpu: request.demand.cpu.units(),
            memory: request.demand.memory.units(),
            gpu: request.demand.gpu.amount().units(),
            ..DemandBody::default()
        },
        policy: policy_number(request.policy),
        selectors: selectors.collect(),
        explain: match request.explain {
            Explain::Bounded => EXPLAIN_BOUNDED,
            Explain::Full => EXPLAIN_FULL,
        },
        // The policy alone decides, as in this process and in the linear scan.
        avoid_gpu: AVOID_GPU_NO,
        ..PlaceRequest::default()
    }
}

/// Returns the sums of a status that audited the books.
pub(crate) fn audited_books(status: &StatusReply) -> Result<Books, TargetError> {
    if status.books_hash.is_none() {
        return Err(TargetError::Rejected("an audit was answered without its hash".to_owned()));
    }
    let mut books = Books::default();
    for shard in &status.shards {
        books.nodes += shard.nodes();
        books.allocations += shard.allocations;
    }
    for resource in &status.resources {
        let sum = BookSum { capacity: resource.total, allocated: resource.allocated };
        match resource.name.as_str() {
            "cpu" => books.cpu = sum,
            "memory" => books.memory = sum,
            "gpu" => books.gpu = sum,
            _ => {}
        }
    }
    Ok(books)
}

impl Target for RemoteTarget {
    fn transport(&self) -> &'static str {
        "quic"
    }

    fn shards(&self) -> u16 {
        self.shards
    }

    fn in_flight_max(&self) -> usize {
        self.client().hello().limits.in_flight_max as usize
    }

    fn register(&mut self, nodes: &[NodeSpec]) -> Result<(), TargetError> {
        nodes.chunks(NODES_PER_MESSAGE_MAX).try_for_each(|batch| self.register_batch(batch))
    }

    fn submit(&mut self, tag: u64, order: Order) -> Result<(), TargetError> {
        if self.under_way.len() >= self.in_flight_max() {
            return Err(TargetError::NoRoom);
        }
        let kind = if matches!(order, Order::Place(_)) { Kind::Place } else { Kind::Release };
        self.under_way.insert(tag, kind);
        self.held.push((tag, order));
        Ok(())
    }

    fn wait(&mut self, replies: &mut Vec<Reply>) -> Result<(), TargetError> {
        if self.under_way.is_empty() {
            return Ok(());
        }
        let client = self.client.as_ref().expect(CONNECTED);
        let completions = &self.completions;
        let held = &mut self.held;
        let taken = &mut self.taken;
        let sent = self.runtime.block_on(async {
            for (tag, order) in held.drain(..) {
                match order {
                    Order::Place(request) => {
                        client.submit::<kinds::Place>(&place_request(&request), completions, tag).await?;
                    }
                    Order::Release(allocation) => {
                        let request = ReleaseRequest { allocation: allocation.into() };
                        client.submit::<kinds::Release>(&request, completions, tag).await?;
                    }
                }
            }
            completions.take(taken).await;
            Ok(())
        });
        sent.map_err(unreachable)?;
        let mut taken = std::mem::take(&mut self.taken);
        for completion in taken.drain(..) {
            replies.push(self.answer(completion)?);
        }
        self.taken = taken;
        Ok(())
    }

    fn resident_bytes(&self) -> Option<u64> {
        self.resident_bytes
    }

    fn audit(&mut self) -> Result<Books, TargetError> {
        let status = self.status(true)?;
        audited_books(&status)
    }
}

impl Drop for RemoteTarget {
    fn drop(&mut self) {
        // Closes the connection, so that the server does not wait for a lost peer.
        if let Some(client) = self.client.take() {
            self.runtime.block_on(client.close());
        }
    }
}
