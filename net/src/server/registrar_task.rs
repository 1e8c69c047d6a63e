//! The registrar's task: the one owner of the global records serves node commands and status.

mod agents;
#[cfg(test)]
mod publication_tests;
mod reservations;
mod sums;

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use slab::Slab;
use tokio::sync::{Notify, mpsc, oneshot};
use wharf_core::ids::{NodeId, Ordinal, PartitionId};
use wharf_core::limits::{NODES_PER_MESSAGE_MAX, PORT_IN_FLIGHT_MAX, SHARDS_MAX};
use wharf_core::node::LifeEvent;
use wharf_core::registrar::{Catalog, Registrar};
use wharf_core::router::{Port, PortReply, PortRequest};
use wharf_core::shard::{Command, Outcome, Rejection, ResourceSum, ShardStatus};
use wharf_core::store::{ShardState, books_hash};

use super::ServerShared;
use super::operation::{split_tag, tag};
use crate::codec::encode_body;
use crate::convert::{
    adoption, books_reply, learn_kinds, named_rejection_fault, node_details, node_spec, placed_reply,
    refused_adoption, registrar_fault, rejection_fault, reserve_reply, resource_name, resource_totals,
};
use crate::protocol::{
    AdoptRequest, DrainRequest, EndReservationRequest, FRAME_BYTES_MAX, Fault, HeartbeatReply,
    HeartbeatRequest, ListDetailsReply, ListRequest, NodeBody, NodeBooksReply, NodeBooksRequest, NodeReply,
    NodesReply, NodesRequest, PlaceReply, Reason, RemoveRequest, ReportReply, ReportRequest, ReserveReply,
    ReserveRequest, ReservedSums, ResourceStatus, SetResourcesRequest, ShardLife, StatusDetailsReply,
    StatusReply, StatusRequest,
};
use sums::{shard_status, waiting};

/// Bytes of the nodes of one page: with the frame's header and the list's length they fit a frame.
const LIST_BYTES_MAX: usize = FRAME_BYTES_MAX as usize - 128;
/// Requests that may wait for the registrar.
const QUEUE_MAX: usize = 64;

/// What the registrar is asked.
#[derive(Debug)]
pub enum RegistrarRequest {
    /// Register.
    Add(NodesRequest),
    /// New capacity and labels.
    Update(NodesRequest),
    /// Take no new work, or take it again.
    Drain(DrainRequest),
    /// Go.
    Remove(RemoveRequest),
    /// A page.
    List(ListRequest),
    /// Sums and counters.
    Status(StatusRequest),
    /// What an agent found.
    Report(Box<ReportRequest>),
    /// An agent lives.
    Heartbeat(HeartbeatRequest),
    /// Record an allocation made elsewhere.
    Adopt(AdoptRequest),
    /// New capacity of single resources.
    SetResources(SetResourcesRequest),
    /// The books of a node.
    Books(NodeBooksRequest),
    /// Learn custom kinds, for requests that wait for nodes that have them.
    Learn(Vec<String>),
    /// Keep a node for an owner.
    Reserve(ReserveRequest),
    /// Keep it no longer.
    EndReservation(EndReservationRequest),
    /// The durable state of every shard; then the task ends.
    Stop,
}

/// What it answers.
#[derive(Debug)]
pub enum RegistrarReply {
    /// To `Add`, `Update`, `Drain`, `Remove` and `SetResources`.
    Nodes(NodesReply),
    /// To `List`.
    List(ListDetailsReply),
    /// To `Status`.
    Status(Box<StatusDetailsReply>),
    /// To `Report`.
    Report(ReportReply),
    /// To `Heartbeat`.
    Heartbeat(HeartbeatReply),
    /// To `Adopt`.
    Adopted(Box<PlaceReply>),
    /// To `Books`.
    Books(Box<NodeBooksReply>),
    /// To `Reserve` and `EndReservation`.
    Reserved(Box<ReserveReply>),
    /// To a question about one thing that is not there.
    Fault(Fault),
    /// To `Learn`: the catalog has them.
    Learnt,
    /// To `Stop`, in order of shard.
    Exported(Vec<ShardState>),
}

type Question = (RegistrarRequest, oneshot::Sender<RegistrarReply>);

/// The way to the registrar's task.
#[derive(Clone, Debug)]
pub struct RegistrarHandle(mpsc::Sender<Question>);

impl RegistrarHandle {
    /// A handle, and the questions for the task.
    #[must_use]
    pub fn channel() -> (Self, RegistrarQuestions) {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        (Self(sender), RegistrarQuestions(receiver))
    }

    /// Puts a question; the answer will come through the receiver. Questions are answered in
    /// the order in which they were put.
    ///
    /// # Errors
    /// When the task is gone.
    pub async fn ask(&self, request: RegistrarRequest) -> Result<oneshot::Receiver<RegistrarReply>, Fault> {
        let (reply, answer) = oneshot::channel();
        let gone = |_| Fault::new(Reason::Unavailable, "the registrar is gone: the service is shutting down");
        self.0.send((request, reply)).await.map_err(gone)?;
        Ok(answer)
    }
}

/// The questions that the task takes.
pub struct RegistrarQuestions(mpsc::Receiver<Question>);

/// What the task owns.
pub struct RegistrarTask {
    /// The global records.
    pub registrar: Registrar,
    /// Its port: the only one that sends node commands.
    pub port: Port,
    /// What the port's waker triggers.
    pub wake: Arc<Notify>,
    /// Where the catalog is published.
    pub catalog: Arc<ArcSwap<Catalog>>,
    /// What all threads share.
    pub shared: Arc<ServerShared>,
}

/// A request whose commands are under way.
struct Job {
    /// None where nobody asked.
    reply: Option<oneshot::Sender<RegistrarReply>>,
    left: usize,
    kind: JobKind,
}

enum JobKind {
    Nodes(Vec<NodeReply>),
    List(u16),
    Status(StatusRequest),
    Report(ReportReply),
    /// The node of a lost machine goes before the report of another is filed.
    Replace(Box<agents::Replacing>),
    Heartbeat(HeartbeatReply),
    /// Nodes whose agents fell silent.
    Lost,
    /// Answered by one shard, in a form of its own.
    One(Option<RegistrarReply>),
    Stop,
}

struct Desk {
    task: RegistrarTask,
    jobs: Slab<Job>,
    /// Reports that are to be looked at again.
    replacing: Vec<(agents::Replacing, oneshot::Sender<RegistrarReply>)>,
    /// The export of a stop is under way.
    stops: bool,
    stopped: bool,
}

/// Runs until it is told to stop, or every handle is dropped; gives the registrar back.
pub async fn run_registrar(task: RegistrarTask, mut questions: RegistrarQuestions) -> Registrar {
    let mut desk = Desk::new(task);
    loop {
        desk.poll();
        if desk.stopped {
            return desk.task.registrar;
        }
        if desk.has_room() {
            desk.handle_replacing();
        }
        let asleep = {
            let port = &mut desk.task.port;
            let bell = Arc::clone(port.bell());
            bell.sleep_if(|| port.is_idle())
        };
        if !asleep {
            continue;
        }
        let has_room = desk.has_room();
        let patience = desk.patience().filter(|_| has_room);
        let wake = Arc::clone(&desk.task.wake);
        tokio::select! {
            () = wake.notified() => {}
            () = tokio::time::sleep(patience.unwrap_or_default()), if patience.is_some() => desk.lose_silent(),
            question = questions.0.recv(), if has_room => match question {
                Some((request, reply)) => desk.handle(request, reply),
                None => return desk.task.registrar,
            },
        }
    }
}

fn faulty(fault: Fault) -> NodeReply {
    NodeReply { reason: fault.reason, fault: Some(fault), ..NodeReply::default() }
}

/// A command for one partition, or the reply of a node that needs none.
type Planned = Result<(PartitionId, Command, NodeId), Fault>;

impl Desk {
    fn new(task: RegistrarTask) -> Self {
        Self { task, jobs: Slab::new(), replacing: Vec::new(), stops: false, stopped: false }
    }

    fn has_room(&self) -> bool {
        self.task.port.pending() + SHARDS_MAX as usize + NODES_PER_MESSAGE_MAX <= PORT_IN_FLIGHT_MAX
    }

    fn handle(&mut self, request: RegistrarRequest, reply: oneshot::Sender<RegistrarReply>) {
        match request {
            RegistrarRequest::Add(request) => {
                let planned = request.nodes.into_iter().map(|node| self.plan_add(node)).collect();
                self.start_nodes(planned, reply);
            }
            RegistrarRequest::Update(request) => {
                let planned = request.nodes.into_iter().map(|node| self.plan_update(node)).collect();
                self.start_nodes(planned, reply);
            }
            RegistrarRequest::Drain(request) => {
                let event = if request.undo { LifeEvent::Undrain } else { LifeEvent::Drain };
                let plan = |name: &str| self.plan_named(name, |node| Command::Life(node, event));
                let planned = request.names.iter().map(|name| plan(&name.0)).collect();
                self.start_nodes(planned, reply);
            }
            RegistrarRequest::Remove(request) => {
                let force = request.force;
                let plan = |name: &str| self.plan_named(name, |node| Command::RemoveNode { node, force });
                let planned = request.names.iter().map(|name| plan(&name.0)).collect();
                self.start_nodes(planned, reply);
            }
            RegistrarRequest::List(request) => {
                let limit = request.limit.clamp(1, NODES_PER_MESSAGE_MAX as u16);
                let command = Command::ListNodes { after: Ordinal(request.after), limit };
                self.start_every(JobKind::List(limit), command, reply);
            }
            RegistrarRequest::Status(request) => {
                self.start_every(JobKind::Status(request), Command::Status { audit: request.audit }, reply);
            }
            RegistrarRequest::Report(request) => self.handle_report(*request, reply),
            RegistrarRequest::Heartbeat(request) => self.handle_heartbeat(request, reply),
            RegistrarRequest::SetResources(request) => {
                let planned = self.plan_set_resources(&request);
                self.start_nodes(vec![planned], reply);
            }
            RegistrarRequest::Adopt(request) => match self.plan_adopt(request) {
                Ok((partition, command, _)) => self.start_one(partition, command, reply),
                Err(fault) => drop(reply.send(RegistrarReply::Adopted(Box::new(refused_adoption(fault))))),
            },
            RegistrarRequest::Books(request) => match self.plan_named(&request.node, Command::NodeBooks) {
                Ok((partition, command, _)) => self.start_one(partition, command, reply),
                Err(fault) => drop(reply.send(RegistrarReply::Fault(fault))),
            },
            RegistrarRequest::Learn(names) => {
                let learnt = learn_kinds(&names, self.task.registrar.resources_mut());
                self.publish();
                let answer = learnt.map_or_else(RegistrarReply::Fault, |()| RegistrarReply::Learnt);
                drop(reply.send(answer));
            }
            RegistrarRequest::Reserve(request) => self.handle_reserve(request, reply),
            RegistrarRequest::EndReservation(request) => self.handle_end_reservation(&request, reply),
            RegistrarRequest::Stop => {
                self.stops = true;
                self.start_every(JobKind::Stop, Command::Export, reply);
            }
        }
    }

    fn plan_add(&mut self, node: NodeBody) -> Planned {
        let registrar = &mut self.task.registrar;
        // The name first: a node added twice must not teach the registry anything.
        if let Ok((id, _)) = registrar.resolve(&node.name) {
            let exists = wharf_core::registrar::RegistrarError::NodeExists { name: node.name.into(), id };
            return Err(registrar_fault(&exists));
        }
        let spec = node_spec(node, registrar.resources_mut())?;
        let registration = registrar.register(spec).map_err(|error| registrar_fault(&error))?;
        let (partition, id) = (registration.partition, registration.id);
        Ok((partition, Command::AddNode(Box::new(registration)), id))
    }

    fn plan_update(&mut self, node: NodeBody) -> Planned {
        let registrar = &mut self.task.registrar;
        registrar.resolve(&node.name).map_err(|error| registrar_fault(&error))?;
        // First without its custom resources, whatever can be refused: a refused update must not
        // teach the registry anything.
        let bare = NodeBody { custom: Vec::new(), ..node.clone() };
        let bare = node_spec(bare, registrar.resources_mut())?;
        registrar.update(bare).map_err(|error| registrar_fault(&error))?;
        let spec = node_spec(node, registrar.resources_mut())?;
        let (id, partition, spec) = registrar.update(spec).map_err(|error| registrar_fault(&error))?;
        Ok((partition, Command::UpdateNode(id, Box::new(spec)), id))
    }

    fn plan_named(&self, name: &str, command: impl FnOnce(NodeId) -> Command) -> Planned {
        let (id, partition) = self.task.registrar.resolve(name).map_err(|error| registrar_fault(&error))?;
        Ok((partition, command(id), id))
    }

    fn plan_set_resources(&mut self, request: &SetResourcesRequest) -> Planned {
        let totals = resource_totals(&request.resources, self.task.registrar.resources_mut())?;
        self.plan_named(&request.node, |node| Command::SetResources(node, totals.into()))
    }

    fn plan_adopt(&mut self, request: AdoptRequest) -> Planned {
        let registrar = &self.task.registrar;
        let (node, partition) = registrar
            .resolve(&request.node)
            .map_err(|error| Fault { field: "node".to_owned(), ..registrar_fault(&error) })?;
        let adoption = adoption(request, node, &self.task.catalog.load())?;
        Ok((partition, Command::Adopt(Box::new(adoption)), node))
    }

    /// Sends a command whose outcome is the whole reply.
    fn start_one(
        &mut self,
        partition: PartitionId,
        command: Command,
        reply: oneshot::Sender<RegistrarReply>,
    ) {
        let key = self.jobs.insert(Job { reply: Some(reply), left: 1, kind: JobKind::One(None) });
        let request = PortRequest::Partition(partition, command);
        let at_once = self.task.port.submit(tag(key, 0), request, self.task.shared.now());
        assert!(matches!(at_once, Ok(None)), "room was looked for before");
        self.task.port.flush();
    }

    /// The reply that one shard's outcome is.
    fn one_reply(&mut self, outcome: Outcome) -> RegistrarReply {
        let catalog = self.task.catalog.load();
        match outcome {
            Outcome::Adopted(placement) => {
                RegistrarReply::Adopted(Box::new(placed_reply(&placement, &catalog).reply))
            }
            Outcome::Books(books) => {
                let books = books_reply(&books, &catalog.resources, self.task.shared.now());
                RegistrarReply::Books(Box::new(books))
            }
            Outcome::Reserved(_)
            | Outcome::ReservationEnded(_)
            | Outcome::Rejected(
                Rejection::NodeReserved { .. }
                | Rejection::NotReserved { .. }
                | Rejection::ReservedTooMuch { .. }
                | Rejection::NothingReserved(_)
                | Rejection::DeadlinePassed(_)
                | Rejection::TooManyReserved { .. },
            ) => RegistrarReply::Reserved(Box::new(reserve_reply(&outcome, &catalog.resources))),
            Outcome::Rejected(rejection @ Rejection::UnknownNode(_)) => {
                RegistrarReply::Fault(rejection_fault(&rejection))
            }
            Outcome::Rejected(rejection) => {
                let fault = named_rejection_fault(&rejection, &catalog.resources);
                RegistrarReply::Adopted(Box::new(refused_adoption(fault)))
            }
            other => unreachable!("no outcome of an adoption or of books: {other:?}"),
        }
    }

    fn start_nodes(&mut self, planned: Vec<Planned>, reply: oneshot::Sender<RegistrarReply>) {
        // Published before any shard can place on a new node: a reply that names it finds its name.
        self.publish();
        let now = self.task.shared.now();
        let left = planned.iter().filter(|planned| planned.is_ok()).count();
        let replies = vec![NodeReply::default(); planned.len()];
        let key = self.jobs.insert(Job { reply: Some(reply), left, kind: JobKind::Nodes(replies) });
        for (part, planned) in planned.into_iter().enumerate() {
            let answered = match planned {
                Ok((partition, command, node)) => {
                    let request = PortRequest::Partition(partition, command);
                    let at_once = self.task.port.submit(tag(key, part), request, now);
                    assert!(matches!(at_once, Ok(None)), "room was looked for before");
                    NodeReply { node: node.0, ..NodeReply::default() }
                }
                Err(fault) => faulty(fault),
            };
            if let JobKind::Nodes(replies) = &mut self.jobs[key].kind {
                replies[part] = answered;
            }
        }
        self.task.port.flush();
        if left == 0 {
            self.complete(key, Vec::new());
        }
    }

    fn start_every(&mut self, kind: JobKind, command: Command, reply: oneshot::Sender<RegistrarReply>) {
        let key = self.jobs.insert(Job { reply: Some(reply), left: 1, kind });
        let at_once = self.task.port.submit(tag(key, 0), PortRequest::Every(command), self.task.shared.now());
        assert!(matches!(at_once, Ok(None)), "room was looked for before");
        self.task.port.flush();
    }

    fn publish(&mut self) {
        self.task.catalog.store(Arc::new(self.task.registrar.catalog()));
    }

    fn poll(&mut self) {
        let now = self.task.shared.now();
        let mut replies = Vec::new();
        self.task.port.poll(now, |tag, reply| replies.push((tag, reply)));
        let mut forgot = false;
        for (tag, reply) in replies {
            let (key, part) = split_tag(tag);
            let outcomes = match reply {
                PortReply::Every(outcomes) => outcomes,
                PortReply::One(outcome) if matches!(self.jobs[key].kind, JobKind::One(_)) => {
                    self.jobs[key].kind = JobKind::One(Some(self.one_reply(outcome)));
                    Vec::new()
                }
                PortReply::One(outcome) => {
                    forgot |= self.handle_node_outcome(key, part, outcome);
                    Vec::new()
                }
                other => unreachable!("the registrar places nothing: {other:?}"),
            };
            self.jobs[key].left -= 1;
            if self.jobs[key].left == 0 {
                if std::mem::take(&mut forgot) {
                    self.publish();
                }
                self.complete(key, outcomes);
            }
        }
        if forgot {
            self.publish();
        }
    }

    /// Enters what a shard answered about one node; whether the node is gone.
    fn handle_node_outcome(&mut self, key: usize, part: usize, outcome: Outcome) -> bool {
        let JobKind::Nodes(replies) = &mut self.jobs[key].kind else {
            return self.handle_agent_outcome(key, outcome);
        };
        match outcome {
            Outcome::NodeAdded(_) | Outcome::NodeUpdated(_) | Outcome::StateSet(..) => false,
            Outcome::NodeRemoved { node, allocations_ended } => {
                replies[part].allocations_ended = allocations_ended;
                self.task.registrar.forget(node);
                true
            }
            Outcome::Rejected(rejection) => {
                replies[part] = NodeReply { node: replies[part].node, ..faulty(rejection_fault(&rejection)) };
                false
            }
            other => unreachable!("no outcome of a node command: {other:?}"),
        }
    }

    fn complete(&mut self, key: usize, outcomes: Vec<Outcome>) {
        let job = self.jobs.remove(key);
        let reply = match job.kind {
            JobKind::Nodes(replies) => RegistrarReply::Nodes(NodesReply { replies }),
            JobKind::List(limit) => RegistrarReply::List(self.list(limit, outcomes)),
            JobKind::Status(request) => RegistrarReply::Status(Box::new(self.status(request, outcomes))),
            JobKind::Report(reply) => RegistrarReply::Report(reply),
            JobKind::Replace(report) => {
                return self.replacing.extend(job.reply.map(|reply| (*report, reply)));
            }
            JobKind::Heartbeat(reply) => RegistrarReply::Heartbeat(reply),
            JobKind::Lost => return,
            JobKind::One(reply) => reply.expect("its shard answered"),
            JobKind::Stop => {
                self.stopped = true;
                let states = outcomes.into_iter().map(|outcome| match outcome {
                    Outcome::Exported(state) => *state,
                    other => unreachable!("no outcome of an export: {other:?}"),
                });
                RegistrarReply::Exported(states.collect())
            }
        };
        // Who stopped waiting does not want it.
        let _ = job.reply.map(|waiting| waiting.send(reply));
    }

    fn list(&mut self, limit: u16, outcomes: Vec<Outcome>) -> ListDetailsReply {
        let mut views: Vec<_> = outcomes
            .into_iter()
            .flat_map(|outcome| match outcome {
                Outcome::Nodes(views) => views,
                other => unreachable!("no outcome of a list: {other:?}"),
            })
            .collect();
        views.sort_unstable_by_key(|view| view.registration.ordinal);
        let resources = self.task.registrar.resources_mut();
        let mut nodes = Vec::new();
        // Encoded here only to learn their length: a page ends where its frame would be full.
        let mut page = Vec::new();
        for view in views.iter().take(usize::from(limit)) {
            let node = node_details(view, resources);
            encode_body(&node, &mut page);
            if let Some(reserved) = &node.reserved {
                encode_body(reserved, &mut page);
            }
            if page.len() > LIST_BYTES_MAX {
                break;
            }
            nodes.push(node);
        }
        // A shard that gave as many as it was asked for may have more.
        ListDetailsReply { more: nodes.len() < views.len() || views.len() >= usize::from(limit), nodes }
    }

    fn status(&mut self, request: StatusRequest, outcomes: Vec<Outcome>) -> StatusDetailsReply {
        let statuses: Vec<ShardStatus> = outcomes
            .into_iter()
            .map(|outcome| match outcome {
                Outcome::Status(status) => *status,
                other => unreachable!("no outcome of a status: {other:?}"),
            })
            .collect();
        let mut resources: BTreeMap<_, ResourceSum> = BTreeMap::new();
        let mut partitions = BTreeMap::new();
        for status in &statuses {
            for &(kind, sum) in &status.resources {
                let total = resources.entry(kind).or_default();
                total.total += sum.total;
                // To a peer, in use is in use: what is held or on its way out is not to be had.
                total.allocated += sum.in_use();
                total.shortfall += sum.shortfall;
                total.unhealthy += sum.unhealthy;
                total.reserved += sum.reserved;
            }
            partitions.extend(status.audit.iter().flat_map(|audit| audit.partitions.iter().copied()));
        }
        let state = self.task.registrar.state();
        let shared = &self.task.shared;
        let registry = self.task.registrar.resources_mut();
        let unhealthy = resources.values().map(|sum| sum.unhealthy).collect();
        let reserved = ReservedSums {
            nodes: statuses.iter().map(|status| status.nodes_reserved).collect(),
            amounts: resources.values().map(|sum| sum.reserved).collect(),
        };
        let life = statuses.iter().map(|s| ShardLife { joining: s.nodes_joining, lost: s.nodes_lost });
        let life = life.collect();
        let status = StatusReply {
            server: shared.identity(),
            now: shared.now().0,
            uptime: shared.now().nanos_since(shared.started),
            resident_bytes: (shared.resident_bytes)(),
            // Relaxed: a statistic, nothing rests on it.
            connections: shared.counters.connections.load(std::sync::atomic::Ordering::Relaxed),
            shards: statuses.iter().map(shard_status).collect(),
            resources: resources
                .into_iter()
                .map(|(kind, sum)| ResourceStatus {
                    name: resource_name(kind, registry),
                    total: sum.total,
                    allocated: sum.allocated,
                    shortfall: sum.shortfall,
                })
                .collect(),
            waiting: waiting(&statuses),
            reserved,
            books_hash: request.audit.then(|| books_hash(&state, partitions.into_values()).0),
        };
        StatusDetailsReply { status, life, unhealthy }
    }
}
