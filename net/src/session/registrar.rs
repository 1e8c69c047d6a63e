//! The registrar without I/O: the one owner of the global records serves node commands and status.
//!
//! The server's task (`net/src/server/registrar_task.rs`) carries requests in and answers out; the simulator does the
//! same.

mod agents;
#[cfg(test)]
mod bed;
mod listing;
#[cfg(test)]
mod publication_tests;
mod question;
mod status;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arc_swap::ArcSwap;
use slab::Slab;
use wharf_core::ids::{NodeId, PartitionId};
use wharf_core::journal::Unit;
use wharf_core::limits::NODES_PER_MESSAGE_MAX;
use wharf_core::node::LifeEvent;
use wharf_core::registrar::{Catalog, Registrar};
use wharf_core::reply::reply_of;
use wharf_core::request::Placement;
use wharf_core::router::{Port, PortReply, PortRequest, Tag};
use wharf_core::shard::{Command, NodeBooks, NodeChange, Outcome, UnknownNode};
use wharf_core::state::{Origin, ShardState};
use wharf_core::time::Time;

use super::tags::{split_tag, tag};
use crate::convert::{
    adoption, adoption_fault, books_reply, learn_kinds, node_spec, placed_reply, reservation,
    reservation_owner, reserve_reply, resource_totals,
};
use crate::protocol::{
    AdoptRequest, DrainRequest, EndReservationRequest, ExportReply, ExportRequest, Fault, HeartbeatReply,
    HeartbeatRequest, ListReply, ListRequest, Name, NodeBody, NodeBooksReply, NodeBooksRequest, NodeReply,
    NodesReply, NodesRequest, PlaceReply, Reason, RemoveRequest, ReportReply, ReportRequest, ReserveReply,
    ReserveRequest, SetResourcesRequest, StatusReply, StatusRequest,
};
use listing::Listing;
use question::Cause;
pub use question::Question;

/// A request to the registrar.
#[derive(Debug)]
pub enum RegistrarRequest {
    /// Register nodes.
    Add(NodesRequest),
    /// Update capacity and labels of nodes.
    Update(NodesRequest),
    /// Drain nodes, or undo it.
    Drain(DrainRequest),
    /// Remove nodes.
    Remove(RemoveRequest),
    /// List a page of nodes.
    List(ListRequest),
    /// Return sums and counters, and audit on demand.
    Status(StatusRequest),
    /// Register or update a node from its agent's report.
    Report(Box<ReportRequest>),
    /// Record a heartbeat of an agent.
    Heartbeat(HeartbeatRequest),
    /// Adopt an allocation.
    Adopt(AdoptRequest),
    /// Set the capacity of single resources of a node.
    SetResources(SetResourcesRequest),
    /// Return the books of a node.
    Books(NodeBooksRequest),
    /// Learn custom resource kinds, for requests that wait for nodes that have them.
    Learn(Vec<String>),
    /// Reserve a node for an owner.
    Reserve(ReserveRequest),
    /// End a reservation.
    EndReservation(EndReservationRequest),
    /// Return a page of an export of the store. The registrar has no store, so its task passes this on.
    Export(ExportRequest),
    /// Export the durable state of every shard, then end the task.
    Stop,
}

/// An answer of the registrar.
#[derive(Debug)]
pub enum RegistrarReply {
    /// Answers `Add`, `Update`, `Drain`, `Remove` and `SetResources`.
    Nodes(NodesReply),
    /// Answers `List`.
    List(ListReply),
    /// Answers `Status`.
    Status(Box<StatusReply>),
    /// Answers `Report`.
    Report(ReportReply),
    /// Answers `Heartbeat`.
    Heartbeat(HeartbeatReply),
    /// Answers `Adopt`.
    Adopted(Box<PlaceReply>),
    /// Answers `Books`.
    Books(Box<NodeBooksReply>),
    /// Answers `Reserve` and `EndReservation`.
    Reserved(Box<ReserveReply>),
    /// Answers `Export`.
    Export(Box<ExportReply>),
    /// Answers a request that cannot be served, for example about an unknown node.
    Fault(Fault),
    /// Answers `Learn`: the catalog has the kinds.
    Learnt,
    /// Answers `Stop`, in order of shard.
    Exported(Vec<ShardState>),
}

impl From<Result<ExportReply, Fault>> for RegistrarReply {
    fn from(page: Result<ExportReply, Fault>) -> Self {
        page.map_or_else(Self::Fault, |page| Self::Export(Box::new(page)))
    }
}

/// A request whose commands are in progress.
struct Job<T> {
    /// `None` if no client asked.
    reply: Option<T>,
    left: usize,
    kind: JobKind<T>,
}

/// Converts the outcome of one shard, or the fault for which it was not asked, to the reply.
type Answer = fn(Result<Outcome, Fault>, &Catalog, Time) -> RegistrarReply;

fn adopted(outcome: Result<Outcome, Fault>, catalog: &Catalog, _: Time) -> RegistrarReply {
    let adopted = outcome.and_then(|outcome| {
        let adopted: Result<Box<Placement>, _> = reply_of(outcome);
        adopted.map_err(|rejection| adoption_fault(&rejection, &catalog.resources))
    });
    let reply = adopted.map_or_else(Into::into, |placement| placed_reply(&placement, catalog));
    RegistrarReply::Adopted(Box::new(reply))
}

fn books(outcome: Result<Outcome, Fault>, catalog: &Catalog, now: Time) -> RegistrarReply {
    let books = outcome.and_then(|outcome| {
        let books: Result<Box<NodeBooks>, UnknownNode> = reply_of(outcome);
        books.map_err(|unknown| Fault::of_field(Reason::UnknownNode, "node", unknown.to_string()))
    });
    books.map_or_else(RegistrarReply::Fault, |books| {
        RegistrarReply::Books(Box::new(books_reply(&books, &catalog.resources, now)))
    })
}

fn reserved(outcome: Result<Outcome, Fault>, catalog: &Catalog, _: Time) -> RegistrarReply {
    let reply = outcome.map(|outcome| reserve_reply(reply_of(outcome), &catalog.resources));
    RegistrarReply::Reserved(Box::new(reply.unwrap_or_else(Into::into)))
}

enum JobKind<T> {
    Nodes(Vec<NodeReply>),
    List(Listing),
    Status,
    /// An audit for all of these askers.
    Audit(Vec<T>),
    Report(ReportReply),
    /// The removal of a lost node, before the report of another machine with its name is filed.
    Replace(Box<agents::Replacing>),
    Heartbeat(HeartbeatReply),
    /// Nodes whose agents are silent.
    Lost,
    /// A request that one shard answers. Converts the outcome.
    One(Answer),
    Stop,
}

/// The registrar as a state machine: requests and replies of shards come in, answers and commands go out. `T` names
/// who asked. Time is an argument, so that production and the simulator run the same code.
pub struct RegistrarService<T> {
    /// The global records.
    pub registrar: Registrar,
    /// The only port that sends node commands.
    pub port: Port,
    /// The place where the catalog is published.
    catalog: Arc<ArcSwap<Catalog>>,
    /// The time of the current call.
    now: Time,
    /// The delay before another attempt to remove a node that a statement holds, in ns.
    remove_again_ns: u64,
    /// Answers that were not taken yet.
    answers: Vec<(T, RegistrarReply)>,
    jobs: Slab<Job<T>>,
    /// Reports to retry, by due time and then by order of arrival.
    replacing: BTreeMap<(Time, u64), (agents::Replacing, T)>,
    /// Counts the reports put into `replacing`.
    replaced: u64,
    /// The number of pages of nodes in the making.
    lists_under_way: usize,
    /// The pages to make next, each with its deadline, in order of arrival.
    lists_wanted: VecDeque<(ListRequest, Time, T)>,
    /// Those who asked for an audit since the current one began, each with the deadline.
    audits_wanted: Vec<(Time, T)>,
    is_auditing: bool,
    /// The one who asked to stop, until the last audit is complete.
    stop_wanted: Option<T>,
    /// The task has been asked to stop.
    stops: bool,
    stopped: bool,
}

/// A command for one partition and its node, or the fault if there is none.
type Planned = Result<(PartitionId, Command, NodeId), Fault>;

impl<T> RegistrarService<T> {
    /// Creates the service over the global records. `port` is the only one that sends node commands.
    #[must_use]
    pub fn new(registrar: Registrar, port: Port, catalog: Arc<ArcSwap<Catalog>>) -> Self {
        Self {
            registrar,
            port,
            catalog,
            now: Time::default(),
            remove_again_ns: agents::REMOVE_AGAIN_NS,
            answers: Vec::new(),
            jobs: Slab::new(),
            replacing: BTreeMap::new(),
            replaced: 0,
            lists_under_way: 0,
            lists_wanted: VecDeque::new(),
            audits_wanted: Vec::new(),
            is_auditing: false,
            stop_wanted: None,
            stops: false,
            stopped: false,
        }
    }

    /// Sets the delay before another attempt to remove a node that a statement holds, in ns.
    pub fn set_remove_again(&mut self, nanos: u64) {
        self.remove_again_ns = nanos;
    }

    /// Returns whether the export of a stop was answered.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns whether nothing is under way and nothing waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let is_wanted = !self.audits_wanted.is_empty() || !self.lists_wanted.is_empty();
        self.jobs.is_empty() && !is_wanted && self.stop_wanted.is_none()
    }

    /// Returns who asked each report that waits for the node of a lost machine to go.
    pub fn replacing(&self) -> impl Iterator<Item = &T> + Clone {
        self.replacing.values().map(|(_, asker)| asker)
    }

    /// Takes the answers, each with who asked.
    pub fn take_answers(&mut self) -> std::vec::Drain<'_, (T, RegistrarReply)> {
        self.answers.drain(..)
    }

    fn answer(&mut self, asker: T, reply: RegistrarReply) {
        self.answers.push((asker, reply));
    }

    /// Refuses a request that has not begun by its deadline.
    fn answer_late(&mut self, asker: T) {
        self.answer(asker, RegistrarReply::Fault(Fault::late()));
    }

    /// Begins what became due or possible: reports that replace a node, audits, a stop, and the loss of silent nodes.
    pub fn proceed(&mut self, now: Time) {
        self.now = now;
        if self.has_room() {
            self.handle_replacing();
            self.begin_audit();
            self.begin_stop();
        }
        self.begin_lists();
        if self.has_room() && !self.stops {
            self.lose_silent();
        }
    }

    /// Returns whether there is room for any request. The largest are one command per node of a message, and
    /// one request to every shard. The task's own work is no larger.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let port = &self.port;
        port.room() >= NODES_PER_MESSAGE_MAX && port.has_room(&PortRequest::Every(Command::Export))
    }

    /// Begins a request, unless it is too late. A page of nodes begins with [`proceed`](Self::proceed).
    /// [`has_room`](Self::has_room) was checked before.
    pub fn handle(&mut self, question: impl Into<Question>, reply: T, now: Time) {
        self.now = now;
        let Question { request, origin, due, done } = question.into();
        if due.is_missed(now) {
            return self.answer_late(reply);
        }
        let cause = Cause { origin, done };
        match request {
            RegistrarRequest::Add(NodesRequest { nodes }) => {
                self.start_nodes(&cause, nodes, Self::plan_add, reply);
            }
            RegistrarRequest::Update(NodesRequest { nodes }) => {
                self.start_nodes(&cause, nodes, Self::plan_update, reply);
            }
            RegistrarRequest::Drain(DrainRequest { names, undo }) => {
                let event = if undo { LifeEvent::Undrain } else { LifeEvent::Drain };
                let life = |node| Ok(Command::Life(node, event));
                let plan = |service: &mut Self, name: Name| service.plan_named(&name.0, "name", life);
                self.start_nodes(&cause, names, plan, reply);
            }
            RegistrarRequest::Remove(RemoveRequest { names, force }) => {
                let remove = |node| Ok(Command::RemoveNode { node, force });
                let plan = |service: &mut Self, name: Name| service.plan_named(&name.0, "name", remove);
                self.start_nodes(&cause, names, plan, reply);
            }
            RegistrarRequest::List(request) => self.lists_wanted.push_back((request, due, reply)),
            RegistrarRequest::Status(StatusRequest { audit: false }) => {
                self.start_every(JobKind::Status, Command::Status, Some(reply));
            }
            RegistrarRequest::Status(StatusRequest { audit: true }) => {
                self.audits_wanted.push((due, reply));
                self.begin_audit();
            }
            RegistrarRequest::Report(request) => self.handle_report(*request, reply),
            RegistrarRequest::Heartbeat(request) => self.handle_heartbeat(request, reply),
            RegistrarRequest::SetResources(request) => {
                let plan = |service: &mut Self, SetResourcesRequest { node, resources }| {
                    let totals = resource_totals(&resources, service.registrar.resources_mut())?;
                    service.plan_named(&node, "node", |node| Ok(Command::SetResources(node, totals.into())))
                };
                self.start_nodes(&cause, vec![request], plan, reply);
            }
            RegistrarRequest::Adopt(request) => {
                let planned = self.plan_named(&request.node.clone(), "node", |node| {
                    Ok(Command::Adopt(Box::new(adoption(request, node, &self.catalog.load())?)))
                });
                self.start_one(&cause, planned, adopted, reply);
            }
            RegistrarRequest::Books(request) => {
                let planned = self.plan_named(&request.node, "node", |node| Ok(Command::NodeBooks(node)));
                self.start_one(&cause, planned, books, reply);
            }
            RegistrarRequest::Reserve(request) => {
                let planned = self.plan_named(&request.node.clone(), "node", |node| {
                    let reserve = reservation(request, node, &self.catalog.load(), self.now)?;
                    Ok(Command::Reserve(Box::new(reserve)))
                });
                self.start_one(&cause, planned, reserved, reply);
            }
            RegistrarRequest::EndReservation(request) => {
                let planned = reservation_owner(request.owner).and_then(|owner| {
                    self.plan_named(&request.node, "node", |node| Ok(Command::EndReservation(node, owner)))
                });
                self.start_one(&cause, planned, reserved, reply);
            }
            RegistrarRequest::Learn(names) => {
                let learnt = learn_kinds(&names, self.registrar.resources_mut());
                self.publish();
                let answer = learnt.map_or_else(RegistrarReply::Fault, |()| RegistrarReply::Learnt);
                self.answer(reply, answer);
            }
            RegistrarRequest::Export(_) => {
                let message = "this service has no journal, so it can be exported only when it is stopped";
                self.answer(reply, RegistrarReply::Fault(Fault::new(Reason::NotServed, message)));
            }
            RegistrarRequest::Stop => {
                self.stops = true;
                self.stop_wanted = Some(reply);
                self.begin_stop();
            }
        }
    }

    fn plan_add(&mut self, node: NodeBody) -> Planned {
        let registrar = &mut self.registrar;
        // Check everything first: a refused node must not add resource kinds to the registry.
        registrar.check_register(&node.name)?;
        let spec = node_spec(node, registrar.resources_mut())?;
        let registration = registrar.register(spec)?;
        let partition = registration.partition;
        let id = registration.id;
        Ok((partition, registrar.join_command(registration), id))
    }

    fn plan_update(&mut self, node: NodeBody) -> Planned {
        let registrar = &mut self.registrar;
        registrar.resolve(&node.name)?;
        // Check everything first: a refused update must not add resource kinds to the registry or leave its
        // identity behind. A spec without custom resources adds no kinds.
        let bare = NodeBody { custom: Vec::new(), ..node.clone() };
        let bare = node_spec(bare, registrar.resources_mut())?;
        registrar.check_update(&bare)?;
        let spec = node_spec(node, registrar.resources_mut())?;
        let (id, partition, spec) = registrar.update(spec)?;
        Ok((partition, Command::UpdateNode(id, Box::new(spec)), id))
    }

    /// Plans a command for the node that a request names in `field`.
    fn plan_named(
        &self,
        name: &str,
        field: &str,
        command: impl FnOnce(NodeId) -> Result<Command, Fault>,
    ) -> Planned {
        let unknown = |error| Fault { field: field.to_owned(), ..Fault::from(error) };
        let (node, partition) = self.registrar.resolve(name).map_err(unknown)?;
        Ok((partition, command(node)?, node))
    }

    /// Sends a command whose outcome is the whole reply. `answer` converts it, and a fault too.
    fn start_one(&mut self, cause: &Cause, planned: Planned, answer: Answer, reply: T) {
        match planned {
            Ok((partition, command, _)) => {
                let job = Job { reply: Some(reply), left: 1, kind: JobKind::One(answer) };
                let key = self.jobs.insert(job);
                self.send_for(cause.origin(0), tag(key, 0), PortRequest::Partition(partition, command));
                self.port.flush();
            }
            Err(fault) => {
                let refused = answer(Err(fault), &self.catalog.load(), self.now);
                self.answer(reply, refused);
            }
        }
    }

    /// Sends one command per node. Parts that an earlier start did are answered as it would have done.
    fn start_nodes<N>(
        &mut self,
        cause: &Cause,
        nodes: Vec<N>,
        plan: impl Fn(&mut Self, N) -> Planned,
        reply: T,
    ) {
        let planned = nodes.into_iter().enumerate().map(|(part, node)| match cause.reply(part) {
            Some(done) => Err(done),
            None => plan(self, node).map_err(NodeReply::from),
        });
        let planned: Vec<Result<_, NodeReply>> = planned.collect();
        // Publish before any shard can place on a new node, so that a reply can resolve the node's name.
        self.publish();
        let left = planned.iter().filter(|planned| planned.is_ok()).count();
        let replies = vec![NodeReply::default(); planned.len()];
        let key = self.jobs.insert(Job { reply: Some(reply), left, kind: JobKind::Nodes(replies) });
        for (part, planned) in planned.into_iter().enumerate() {
            let answered = match planned {
                Ok((partition, command, node)) => {
                    let request = PortRequest::Partition(partition, command);
                    self.send_for(cause.origin(part), tag(key, part), request);
                    NodeReply { node: node.0, ..NodeReply::default() }
                }
                Err(answered) => answered,
            };
            if let JobKind::Nodes(replies) = &mut self.jobs[key].kind {
                replies[part] = answered;
            }
        }
        self.port.flush();
        if left == 0 {
            self.complete(key, Vec::new());
        }
    }

    fn start_every(&mut self, kind: JobKind<T>, command: Command, reply: Option<T>) {
        let key = self.jobs.insert(Job { reply, left: 1, kind });
        self.send(tag(key, 0), PortRequest::Every(command));
        self.port.flush();
    }

    /// Sends a request to the port, which has room for it.
    fn send(&mut self, tag: Tag, request: PortRequest) {
        self.send_for(None, tag, request);
    }

    /// Sends a request that a client's request causes.
    fn send_for(&mut self, origin: Option<Origin>, tag: Tag, request: PortRequest) {
        let at_once = self.port.submit_for(origin, tag, request, self.now);
        assert!(matches!(at_once, Ok(None)), "room was looked for before");
    }

    fn publish(&mut self) {
        let catalog = self.registrar.catalog();
        // First: what uses a new kind is put into the journal after it.
        if let Some(journal) = self.port.journal()
            && catalog.resources.len() != self.catalog.load().resources.len()
        {
            journal.put(Unit::new(self.now, self.registrar.kinds()));
        }
        self.catalog.store(Arc::new(catalog));
    }

    /// Takes the replies of shards; returns how many.
    pub fn poll(&mut self, now: Time) -> usize {
        self.now = now;
        let mut replies = Vec::new();
        let taken = self.port.poll(now, |tag, reply| replies.push((tag, reply)));
        let mut forgot = false;
        for (tag, reply) in replies {
            let (key, part) = split_tag(tag);
            let mut outcomes = Vec::new();
            match (&self.jobs[key].kind, reply) {
                (_, PortReply::Every(all)) => outcomes = all,
                (JobKind::One(_), reply) => outcomes.push(reply_of(reply)),
                (_, reply) => forgot |= self.handle_shard_outcome(key, part, reply_of(reply)),
            }
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
        // An audit continues with its next page.
        self.port.flush();
        taken
    }

    /// Records a shard's answer to one part of a request. Returns whether a node is gone.
    fn handle_shard_outcome(&mut self, key: usize, part: usize, outcome: Outcome) -> bool {
        match &mut self.jobs[key].kind {
            JobKind::List(listing) => listing.add(reply_of(outcome)),
            JobKind::Nodes(replies) => match reply_of(outcome) {
                Ok(NodeChange::Removed { node, allocations_ended, version }) => {
                    replies[part].allocations_ended = allocations_ended;
                    self.registrar.forget(node, version);
                    return true;
                }
                Ok(_) => {}
                Err(rejection) => {
                    replies[part] = NodeReply { node: replies[part].node, ..Fault::from(rejection).into() };
                }
            },
            _ => return self.handle_agent_change(key, reply_of(outcome)),
        }
        false
    }

    fn complete(&mut self, key: usize, mut outcomes: Vec<Outcome>) {
        let job = self.jobs.remove(key);
        let reply = match job.kind {
            JobKind::Nodes(replies) => RegistrarReply::Nodes(NodesReply { replies }),
            JobKind::List(listing) => return self.complete_list(listing, job.reply),
            JobKind::Status => RegistrarReply::Status(Box::new(self.status(outcomes))),
            JobKind::Audit(askers) => return self.complete_audit(askers, outcomes),
            JobKind::Report(reply) => RegistrarReply::Report(reply),
            JobKind::Replace(report) => {
                return self.replace_later(*report, job.reply);
            }
            JobKind::Heartbeat(reply) => RegistrarReply::Heartbeat(reply),
            JobKind::Lost => return,
            JobKind::One(answer) => {
                answer(Ok(outcomes.pop().expect("its shard answered")), &self.catalog.load(), self.now)
            }
            JobKind::Stop => {
                self.stopped = true;
                let states = outcomes.into_iter().map(reply_of::<Box<ShardState>, _>);
                RegistrarReply::Exported(states.map(|state| *state).collect())
            }
        };
        if let Some(asker) = job.reply {
            self.answer(asker, reply);
        }
    }
}

#[cfg(test)]
mod pages_tests;
#[cfg(test)]
mod tests;
