//! The registrar's desk. It handles node commands, reports, heartbeats, reservations and adoptions in the order
//! of arrival.
//!
//! The production task (`net/src/server/registrar_task.rs`) holds channels of a runtime. This replacement
//! carries its jobs instead. Registrar, conversion and port are production code.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arc_swap::ArcSwap;
use wharf_core::ids::{NodeId, PartitionId};
use wharf_core::node::{AgentReport, LifeEvent};
use wharf_core::registrar::{Catalog, Registrar, RegistrarError, Reported};
use wharf_core::router::{Port, PortReply, PortRequest, Tag};
use wharf_core::shard::{Command, Outcome, Rejection};
use wharf_core::state::ShardState;
use wharf_core::time::Time;
use wharf_net::codec::decode_body;
use wharf_net::convert::{
    adoption, agent_report, named_rejection_fault, node_spec, placed_reply, refused_adoption,
    refused_reservation, registrar_fault, rejection_fault, reservation, reservation_owner, reserve_reply,
};
use wharf_net::protocol::{
    AdoptRequest, DrainRequest, EndReservationRequest, Fault, HeartbeatReply, HeartbeatRequest, Kind,
    NodeBody, NodeReply, NodesReply, NodesRequest, PlaceReply, Reason, RemoveRequest, ReportReply,
    ReportRequest, ReserveReply, ReserveRequest,
};

use super::server::Question;

/// The time that an agent may be silent in these runs, in ns of virtual time.
pub(super) const LOST_AFTER: u64 = 20_000;

/// The desk's answer to a question.
pub(super) enum Answer {
    Nodes(NodesReply),
    Report(ReportReply),
    Heartbeat(HeartbeatReply),
    Reserved(ReserveReply),
    Adopted(Box<PlaceReply>),
}

enum JobKind {
    Node(NodeReply),
    Report(ReportReply),
    Heartbeat(HeartbeatReply),
    Lost,
    Audit,
    /// Removes the node of a lost machine before the report of another machine is filed.
    Replace(Replacing),
    /// An adoption or a reservation. Its outcome is its answer.
    One(Option<Answer>),
    Export,
}

/// A report that is looked at again at `due`.
struct Replacing {
    question: Question,
    due: Time,
}

/// The delay before a removal is tried again that a statement blocked, in ns of virtual time.
const REMOVE_AGAIN: u64 = 500;

struct Job {
    /// The connection, sequence and kind of the question, if there was one.
    asked: Option<(u64, u64, Kind)>,
    left: usize,
    kind: JobKind,
}

/// The connection, sequence and kind of a question, and its answer.
pub(super) type Said = ((u64, u64, Kind), Answer);

/// The registrar and its port.
pub(super) struct Desk {
    pub(super) registrar: Registrar,
    port: Port,
    catalog: Arc<ArcSwap<Catalog>>,
    pub(super) questions: VecDeque<Question>,
    /// Reports of machines whose names belong to lost nodes.
    replacing: Vec<Replacing>,
    jobs: BTreeMap<Tag, Job>,
    last: Tag,
    exported: Option<Vec<ShardState>>,
    /// The number of shard answers taken at the last poll.
    pub(super) taken: usize,
    /// The number of turns at which an audit could have begun.
    audit_turns: u32,
}

/// The number of desk turns from one audit to the next.
const TURNS_PER_AUDIT: u32 = 4;

type Planned = Result<Vec<(PartitionId, Command)>, Fault>;
type Reporting = Result<(NodeId, Vec<(PartitionId, Command)>), (NodeId, PartitionId)>;

impl Desk {
    pub(super) fn new(
        mut registrar: Registrar,
        port: Port,
        catalog: Arc<ArcSwap<Catalog>>,
        now: Time,
    ) -> Self {
        registrar.heartbeats().set_lost_after(LOST_AFTER, now);
        let questions = VecDeque::new();
        let replacing = Vec::new();
        let jobs = BTreeMap::new();
        Self {
            registrar,
            port,
            catalog,
            questions,
            replacing,
            jobs,
            last: 0,
            exported: None,
            taken: 0,
            audit_turns: 0,
        }
    }

    /// Returns whether nothing is in progress and no question is pending.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.questions.is_empty()
    }

    /// Returns the number of questions that can be taken now.
    pub(super) fn open(&self, now: Time) -> usize {
        self.questions.len() + self.replacing.iter().filter(|report| report.due <= now).count()
    }

    /// Returns whether a report waits for a hold to end.
    pub(super) fn is_replacing(&self) -> bool {
        !self.replacing.is_empty()
    }

    /// Refuses all waiting reports. Their agents must send them again after the next start.
    pub(super) fn refuse_replacing(&mut self) -> Vec<Said> {
        let refused = |Replacing { question, .. }: Replacing| {
            let reply = ReportReply { reason: Reason::ShuttingDown.into(), ..ReportReply::default() };
            ((question.connection, question.sequence, question.kind), Answer::Report(reply))
        };
        self.replacing.drain(..).map(refused).collect()
    }

    fn publish(&mut self) {
        self.catalog.store(Arc::new(self.registrar.catalog()));
    }

    fn start(
        &mut self,
        asked: Option<(u64, u64, Kind)>,
        kind: JobKind,
        commands: Vec<(PartitionId, Command)>,
        now: Time,
    ) {
        self.last += 1;
        self.jobs.insert(self.last, Job { asked, left: commands.len(), kind });
        for (partition, command) in commands {
            let at_once = self.port.submit(self.last, PortRequest::Partition(partition, command), now);
            assert!(matches!(at_once, Ok(None)), "few commands are under way");
        }
        self.port.flush();
    }

    /// Asks every shard for its durable state.
    pub(super) fn export(&mut self, now: Time) {
        self.last += 1;
        self.jobs.insert(self.last, Job { asked: None, left: 1, kind: JobKind::Export });
        let at_once = self.port.submit(self.last, PortRequest::Every(Command::Export), now);
        assert!(matches!(at_once, Ok(None)), "nothing else is under way");
        self.port.flush();
    }

    /// Begins an audit of every shard every few turns, unless one is in progress.
    pub(super) fn begin_audit(&mut self, now: Time) {
        self.audit_turns += 1;
        let is_auditing = self.jobs.values().any(|job| matches!(job.kind, JobKind::Audit));
        if is_auditing || !self.audit_turns.is_multiple_of(TURNS_PER_AUDIT) {
            return;
        }
        self.last += 1;
        self.jobs.insert(self.last, Job { asked: None, left: 1, kind: JobKind::Audit });
        let audit = PortRequest::Every(Command::Audit { number: 0 });
        let at_once = self.port.submit(self.last, audit, now);
        assert!(matches!(at_once, Ok(None)), "few commands are under way");
        self.port.flush();
    }

    /// Returns the exported state of all shards, once it is complete.
    pub(super) fn take_exported(&mut self) -> Option<Vec<ShardState>> {
        self.exported.take()
    }

    /// Takes the next question. Returns its answer if there is one at once.
    pub(super) fn take_question(&mut self, now: Time) -> Option<Said> {
        let due = self.replacing.iter().position(|report| report.due <= now);
        let again = due.map(|at| self.replacing.remove(at).question);
        let question = again.or_else(|| self.questions.pop_front())?;
        let asked = (question.connection, question.sequence, question.kind);
        let refused = match question.kind {
            Kind::AddNodes | Kind::UpdateNodes | Kind::DrainNodes | Kind::RemoveNodes => {
                let (mut reply, planned) = self.plan_nodes(&question);
                self.publish();
                match planned {
                    Ok(commands) => {
                        self.start(Some(asked), JobKind::Node(reply), commands, now);
                        return None;
                    }
                    Err(fault) => {
                        (reply.reason, reply.fault) = (fault.reason, Some(fault));
                        Answer::Nodes(NodesReply { replies: vec![reply] })
                    }
                }
            }
            Kind::Report => self.handle_report(asked, question, now)?,
            Kind::Heartbeat => self.handle_heartbeat(asked, body(&question), now)?,
            Kind::Reserve | Kind::EndReservation => match self.plan_reservation(&question, now) {
                Ok(commands) => {
                    self.start(Some(asked), JobKind::One(None), commands, now);
                    return None;
                }
                Err(fault) => Answer::Reserved(refused_reservation(fault)),
            },
            Kind::Adopt => match self.plan_adopt(body(&question)) {
                Ok(commands) => {
                    self.start(Some(asked), JobKind::One(None), commands, now);
                    return None;
                }
                Err(fault) => Answer::Adopted(Box::new(refused_adoption(fault))),
            },
            other => unreachable!("{other:?} does not go to the registrar"),
        };
        Some((asked, refused))
    }

    fn resolve(&self, name: &str) -> Result<(NodeId, PartitionId), Fault> {
        self.registrar.resolve(name).map_err(|error| registrar_fault(&error))
    }

    fn plan_nodes(&mut self, question: &Question) -> (NodeReply, Planned) {
        let planned = match question.kind {
            Kind::AddNodes => self.plan_add(first(body::<NodesRequest>(question).nodes)),
            Kind::UpdateNodes => self.plan_update(first(body::<NodesRequest>(question).nodes)),
            Kind::DrainNodes => {
                let request: DrainRequest = body(question);
                let event = if request.undo { LifeEvent::Undrain } else { LifeEvent::Drain };
                self.resolve(&first(request.names).0)
                    .map(|(node, partition)| (node, partition, Command::Life(node, event)))
            }
            _ => {
                let RemoveRequest { names, force } = body(question);
                self.resolve(&first(names).0)
                    .map(|(node, partition)| (node, partition, Command::RemoveNode { node, force }))
            }
        };
        match planned {
            Ok((node, partition, command)) => {
                (NodeReply { node: node.0, ..NodeReply::default() }, Ok(vec![(partition, command)]))
            }
            Err(fault) => (NodeReply::default(), Err(fault)),
        }
    }

    fn plan_add(&mut self, node: NodeBody) -> Result<(NodeId, PartitionId, Command), Fault> {
        if let Ok((id, _)) = self.registrar.resolve(&node.name) {
            return Err(registrar_fault(&RegistrarError::NodeExists { name: node.name.into(), id }));
        }
        let spec = node_spec(node, self.registrar.resources_mut())?;
        let registration = self.registrar.register(spec).map_err(|error| registrar_fault(&error))?;
        let id = registration.id;
        let partition = registration.partition;
        Ok((id, partition, self.registrar.join_command(registration)))
    }

    fn plan_update(&mut self, node: NodeBody) -> Result<(NodeId, PartitionId, Command), Fault> {
        self.resolve(&node.name)?;
        let spec = node_spec(node, self.registrar.resources_mut())?;
        let (id, partition, spec) = self.registrar.update(spec).map_err(|error| registrar_fault(&error))?;
        Ok((id, partition, Command::UpdateNode(id, Box::new(spec))))
    }

    fn plan_reservation(&self, question: &Question, now: Time) -> Planned {
        if question.kind == Kind::Reserve {
            let request: ReserveRequest = body(question);
            let (node, partition) = self.resolve(&request.node)?;
            let reserve = reservation(request, node, &self.catalog.load(), now)?;
            return Ok(vec![(partition, Command::Reserve(Box::new(reserve)))]);
        }
        let request: EndReservationRequest = body(question);
        let owner = reservation_owner(request.owner)?;
        let (node, partition) = self.resolve(&request.node)?;
        Ok(vec![(partition, Command::EndReservation(node, owner))])
    }

    fn plan_adopt(&self, request: AdoptRequest) -> Planned {
        let (node, partition) = self.resolve(&request.node)?;
        let adoption = adoption(request, node, &self.catalog.load())?;
        Ok(vec![(partition, Command::Adopt(Box::new(adoption)))])
    }

    fn handle_report(&mut self, asked: (u64, u64, Kind), question: Question, now: Time) -> Option<Answer> {
        let request: ReportRequest = body(&question);
        let version = request.version;
        let (node, commands) = match self.plan_report(request) {
            Ok(Ok(plan)) => plan,
            Ok(Err((old, partition))) => {
                let gone = vec![(partition, Command::RemoveNode { node: old, force: true })];
                let report = Replacing { question, due: Time::default() };
                self.start(Some(asked), JobKind::Replace(report), gone, now);
                return None;
            }
            Err(fault) => {
                let reason = fault.reason;
                return Some(Answer::Report(ReportReply {
                    reason,
                    fault: Some(fault),
                    ..ReportReply::default()
                }));
            }
        };
        self.publish();
        self.registrar.heartbeats().reported(node, version, now);
        let reply = ReportReply { node: node.0, ..ReportReply::default() };
        self.start(Some(asked), JobKind::Report(reply), commands, now);
        None
    }

    /// Returns the node and its commands, or the old node that must be removed first.
    fn plan_report(&mut self, request: ReportRequest) -> Result<Reporting, Fault> {
        let report = agent_report(request, self.registrar.resources_mut())?;
        self.registrar.check_report(&report.spec).map_err(|error| registrar_fault(&error))?;
        let reported = self.registrar.report(report.spec.clone()).map_err(|error| registrar_fault(&error))?;
        let filed = |node, spec| Command::Report(node, Box::new(AgentReport { spec, ..report.clone() }));
        Ok(Ok(match reported {
            Reported::Known(node, partition, spec) => (node, vec![(partition, filed(node, spec))]),
            Reported::New(new) => {
                let node = new.id;
                let partition = new.partition;
                let filed = filed(new.id, new.spec.clone());
                (node, vec![(partition, self.registrar.join_command(new)), (partition, filed)])
            }
            Reported::Occupied(old, partition) => return Ok(Err((old, partition))),
        }))
    }

    fn handle_heartbeat(
        &mut self,
        asked: (u64, u64, Kind),
        request: HeartbeatRequest,
        now: Time,
    ) -> Option<Answer> {
        let node = NodeId(request.node);
        let heard = self.registrar.heartbeats().beat(node, request.version, now);
        let reply = HeartbeatReply {
            reason: if heard.is_some() { Reason::Done } else { Reason::UnknownNode }.into(),
            report_again: heard.is_none_or(|heard| heard.report_again),
            ..HeartbeatReply::default()
        };
        match (heard.is_some_and(|heard| heard.tell), self.registrar.partition(node)) {
            (true, Some(partition)) => {
                let beat = vec![(partition, Command::Life(node, LifeEvent::Beat))];
                self.start(Some(asked), JobKind::Heartbeat(reply), beat, now);
                None
            }
            _ => Some(Answer::Heartbeat(reply)),
        }
    }

    /// Marks nodes as lost whose agents were silent for too long. Returns their number.
    pub(super) fn lose_silent(&mut self, now: Time) -> usize {
        if self.registrar.heartbeats().next_deadline().is_none_or(|deadline| deadline > now) {
            return 0;
        }
        let lost = self.registrar.heartbeats().take_lost(now, 64);
        let located = lost.into_iter().filter_map(|node| Some((self.registrar.partition(node)?, node)));
        let commands: Vec<_> = located.map(|(p, node)| (p, Command::Life(node, LifeEvent::Lose))).collect();
        let count = commands.len();
        if count > 0 {
            self.start(None, JobKind::Lost, commands, now);
        }
        count
    }

    /// Takes the answers of shards.
    pub(super) fn poll(&mut self, now: Time) -> Vec<Said> {
        let mut replies = Vec::new();
        self.taken = self.port.poll(now, |tag, reply| replies.push((tag, reply)));
        let mut said = Vec::new();
        let mut forgot = false;
        for (tag, reply) in replies {
            let mut job = self.jobs.remove(&tag).expect("a reply is to a job under way");
            job.left -= 1;
            match reply {
                PortReply::Every(outcomes) if matches!(job.kind, JobKind::Audit) => {
                    let audited =
                        |one: &Outcome| matches!(one, Outcome::Status(status) if status.audit.is_some());
                    assert!(outcomes.iter().all(audited), "no outcomes of an audit: {outcomes:?}");
                }
                PortReply::Every(outcomes) => {
                    let states = outcomes.into_iter().map(|outcome| match outcome {
                        Outcome::Exported(state) => *state,
                        other => unreachable!("no outcome of an export: {other:?}"),
                    });
                    self.exported = Some(states.collect());
                }
                PortReply::One(outcome) => match (&mut job.kind, job.asked) {
                    (JobKind::One(answer), Some((.., kind))) => *answer = Some(self.one(kind, &outcome)),
                    (kind, _) => forgot |= self.handle_outcome(kind, outcome, now),
                },
                other => unreachable!("the registrar places nothing: {other:?}"),
            }
            if job.left > 0 {
                self.jobs.insert(tag, job);
                continue;
            }
            let answer = match job.kind {
                JobKind::Node(reply) => Answer::Nodes(NodesReply { replies: vec![reply] }),
                JobKind::Report(reply) => Answer::Report(reply),
                JobKind::Heartbeat(reply) => Answer::Heartbeat(reply),
                JobKind::One(answer) => answer.expect("its shard answered"),
                JobKind::Replace(report) => {
                    self.replacing.push(report);
                    continue;
                }
                JobKind::Lost | JobKind::Audit | JobKind::Export => continue,
            };
            said.extend(job.asked.map(|asked| (asked, answer)));
        }
        if forgot {
            self.publish();
        }
        // An audit continues with its next page.
        self.port.flush();
        said
    }

    /// Records the outcome of a shard. Returns whether a node was removed.
    fn handle_outcome(&mut self, job: &mut JobKind, outcome: Outcome, now: Time) -> bool {
        if let Outcome::NodeRemoved { node, allocations_ended, version } = outcome {
            self.registrar.forget(node, version);
            match job {
                JobKind::Node(reply) => reply.allocations_ended = allocations_ended,
                JobKind::Report(reply) => reply.allocations_ended = allocations_ended,
                _ => {}
            }
            return true;
        }
        match (job, outcome) {
            (JobKind::Replace(report), Outcome::Rejected(Rejection::NodeHeld { .. })) => {
                report.due = now.plus_nanos(REMOVE_AGAIN);
            }
            (JobKind::Node(reply), Outcome::Rejected(rejection)) => {
                let fault = rejection_fault(&rejection);
                (reply.reason, reply.fault) = (fault.reason, Some(fault));
            }
            (JobKind::Report(reply), Outcome::Rejected(rejection)) => {
                let fault = rejection_fault(&rejection);
                (reply.reason, reply.fault) = (fault.reason, Some(fault));
            }
            (JobKind::Heartbeat(reply), Outcome::Rejected(_)) => {
                (reply.reason, reply.report_again) = (Reason::UnknownNode.into(), true);
            }
            _ => {}
        }
        false
    }

    fn one(&self, kind: Kind, outcome: &Outcome) -> Answer {
        let catalog = self.catalog.load();
        match outcome {
            Outcome::Adopted(placement) => Answer::Adopted(Box::new(placed_reply(placement, &catalog))),
            Outcome::Rejected(rejection) if kind == Kind::Adopt => {
                let fault = named_rejection_fault(rejection, &catalog.resources);
                Answer::Adopted(Box::new(refused_adoption(fault)))
            }
            outcome => Answer::Reserved(reserve_reply(outcome, &catalog.resources)),
        }
    }
}

fn body<T: serde::de::DeserializeOwned>(question: &Question) -> T {
    decode_body(&question.payload).expect("our own body").0
}

fn first<T>(list: Vec<T>) -> T {
    list.into_iter().next().expect("clients here name one node per message")
}
