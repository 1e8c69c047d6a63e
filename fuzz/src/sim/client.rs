//! A client: its session, its requests in flight, and the promises it received.
//!
//! This is the oracle on the caller's side. It trusts only frames that reached it. A request without a reply
//! may have been done or not. A request that was answered must get the same answer forever.

mod directs;
mod groups;
pub(super) mod jobs;

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::{AllocationId, GroupId, NodeId, SessionId, TenantId};
use wharf_net::codec::{
    Extension, FLAG_ERROR, FLAG_EXTENSIONS, FrameRef, HEADER_BYTES, Header, decode_body, decode_frame,
    encode_body, encode_frame,
};
use wharf_net::protocol::{
    Acknowledged as AcknowledgedWaits, BODY_VERSION, CancelReply, Deadline, EXTENSION_ACKNOWLEDGED,
    EXTENSION_DEADLINE, FRAME_BYTES_MAX, Fault, HeartbeatReply, Kind, PlaceReply, PlanNodesRequest, Reason,
    ReasonCode, ReleaseReply, ReportReply, SessionToken, TaskReportBody,
};

use super::JobRules;
use super::checkers::Verdict;
use super::checkers::outcomes::Acknowledged;
use super::checkers::promises::Promise;
use super::checkers::queues::Charged;
use super::checkers::sessions::is_same_answer;
use super::server::{AGENT, OPERATOR, USERS, framed};

/// Times within which releases must be done, in ns: hopeless, short, and plenty.
const DEADLINES_NS: [u64; 4] = [1, 60, 4_000, 1 << 40];

/// The number of waits that a request acknowledges.
const WAITED_MAX: usize = 8;

/// The part of a request that its client must remember.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// A placement, and whether it may wait.
    Place { waits: bool },
    /// A placement in a queue, and whether it may wait.
    PlaceIn { charged: Charged, waits: bool },
    /// The release of an allocation.
    Release(AllocationId),
    /// The cancellation of a waiting request, by its sequence.
    Cancel(u64),
    /// The adoption of an allocation that another system made.
    Adopt,
    /// An agent's report. The reply names the agent's node.
    Report,
    /// A heartbeat of an agent.
    Beat,
    /// The renewal of leases.
    Renew,
    /// The creation of a group, and whether it may wait.
    Create { waits: bool },
    /// The growth of a group by this many bundles, and whether it may wait.
    Grow { group: GroupId, by: usize, waits: bool },
    /// The removal of a group.
    Remove(GroupId),
    /// A command about nodes or reservations.
    Operate,
    /// What the queue of this name is to be.
    SetQueue(&'static str),
    /// A change of the priority class of this name, and its value after it. `None`: it is removed.
    ChangeClass(&'static str, Option<i32>),
    /// The submission of a job, and how often it may be restarted. `None`: it has no policies, so it never is.
    SubmitJob(Option<u32>),
    /// The end of a job, by its number.
    CancelJob(u64),
    /// The tasks of a job, by its number.
    JobStatus(u64),
    /// What became of tasks.
    ReportTasks(Vec<TaskReportBody>),
    /// A plan of nodes.
    PlanNodes(Box<PlanNodesRequest>),
}

impl Asked {
    /// Returns whether the request may wait.
    pub(super) fn waits(&self) -> bool {
        matches!(
            self,
            Self::Place { waits: true }
                | Self::PlaceIn { waits: true, .. }
                | Self::Create { waits: true }
                | Self::Grow { waits: true, .. }
        )
    }
}

/// A request without a reply.
pub(super) struct Pending {
    kind: Kind,
    flags: u8,
    /// The body and the extensions.
    body: Vec<u8>,
    pub(super) asked: Asked,
}

/// Returns whether a fault says that nothing was done, and that the same request may be sent again.
pub(super) fn is_for_now(fault: &Fault) -> bool {
    [Reason::Overloaded, Reason::DeadlineExceeded].iter().any(|&reason| fault.reason == reason.into())
}

/// The role of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Places and releases.
    User,
    /// Adds, changes, drains, removes and reserves nodes, and adopts.
    Operator,
    /// Reports one node, which it names by `number`.
    Agent { number: u64, node: u64, version: u64, alive: bool },
}

/// One client.
pub(super) struct Client {
    pub(super) role: Role,
    /// Who it acts for. Users act for one of two tenants or for the operator.
    pub(super) tenant: TenantId,
    /// It acknowledges waits individually, so they go on while it is away.
    pub(super) is_exact: bool,
    /// Some of its releases have deadlines.
    pub(super) is_hasty: bool,
    /// The waits whose replies came last.
    waited: Vec<u64>,
    /// The waits that it acknowledged in this session.
    acknowledged: BTreeSet<u64>,
    session: Option<(SessionId, SessionToken)>,
    /// The connection on which the client's hello is not answered yet.
    pub(super) connecting: Option<u64>,
    pub(super) connection: Option<u64>,
    next: u64,
    pub(super) pending: BTreeMap<u64, Pending>,
    /// The replies received, by sequence in this session.
    answered: BTreeMap<u64, Vec<u8>>,
    /// Requests of this session whose wait had ended when the client was told that it was cancelled.
    pub(super) cancelled: BTreeSet<u64>,
    pub(super) promised: BTreeMap<AllocationId, Promise>,
    /// Allocations that the client was told have ended.
    pub(super) ended: BTreeSet<AllocationId>,
    /// The groups that it was told of and has not asked to remove.
    pub(super) groups: BTreeSet<GroupId>,
    /// The placements in queues that it was told of.
    pub(super) charged: BTreeMap<AllocationId, Charged>,
    /// The reason of the last reply to a placement in a queue.
    pub(super) last_in_queue: Option<ReasonCode>,
    /// The queues that it was told of.
    pub(super) queues: BTreeSet<&'static str>,
    /// The values of the priority classes that it has changed, `None` for those that it has removed. Those of which a change is
    /// under way are left out.
    pub(super) classes: BTreeMap<&'static str, Option<i32>>,
    /// The jobs that it was told of.
    pub(super) jobs: jobs::Jobs,
    /// What queues and jobs are like, if there are any.
    pub(super) job_rules: Option<JobRules>,
    /// The number of jobs that it has asked for.
    jobs_made: u64,
    /// For each released allocation, the number of release requests and whether the allocation was promised.
    released: BTreeMap<AllocationId, (u32, bool)>,
    /// Promised allocations that were unknown when they were released. Their node must be gone.
    pub(super) missed: Vec<AllocationId>,
    /// Allocations whose release was in flight when the session was lost. They may be live or not.
    pub(super) doubtful: BTreeSet<AllocationId>,
    /// Placements that may have been done without a reply, by session and sequence.
    pub(super) undecided: BTreeSet<(SessionId, u64)>,
}

impl Client {
    pub(super) fn new(role: Role, is_exact: bool) -> Self {
        Self {
            role,
            tenant: TenantId::OPERATOR,
            is_exact,
            is_hasty: true,
            waited: Vec::new(),
            acknowledged: BTreeSet::new(),
            session: None,
            connecting: None,
            connection: None,
            next: 1,
            pending: BTreeMap::new(),
            answered: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            promised: BTreeMap::new(),
            ended: BTreeSet::new(),
            groups: BTreeSet::new(),
            charged: BTreeMap::new(),
            last_in_queue: None,
            queues: BTreeSet::new(),
            classes: BTreeMap::new(),
            jobs: jobs::Jobs::new(),
            job_rules: None,
            jobs_made: 0,
            released: BTreeMap::new(),
            missed: Vec::new(),
            doubtful: BTreeSet::new(),
            undecided: BTreeSet::new(),
        }
    }

    /// Returns the name in its certificate.
    pub(super) fn name(&self) -> &'static str {
        match (&self.role, self.tenant.0) {
            (Role::Operator, _) => OPERATOR,
            (Role::Agent { .. }, _) => AGENT,
            (Role::User, tenant) => USERS[usize::from(tenant)],
        }
    }

    pub(super) fn session(&self) -> Option<(SessionId, SessionToken)> {
        self.session
    }

    /// Takes a connection. A new session starts with the first sequence.
    pub(super) fn connected(&mut self, connection: u64, session: (SessionId, SessionToken)) {
        self.connecting = None;
        self.connection = Some(connection);
        if self.session != Some(session) {
            self.session = Some(session);
            (self.next, self.answered) = (1, BTreeMap::new());
            self.cancelled.clear();
            self.waited.clear();
            self.acknowledged.clear();
            assert!(self.pending.is_empty(), "nothing is under way in a new session");
        }
    }

    /// Goes on without a connection, because the service went away. The session is kept.
    pub(super) fn disconnect(&mut self) {
        self.connecting = None;
        self.connection = None;
    }

    /// Returns whether a request of the session was answered whose outcome the service keeps.
    pub(super) fn has_outcomes(&self) -> bool {
        let keeps = |bytes: &Vec<u8>| {
            let frame = decode_frame(bytes, FRAME_BYTES_MAX).ok().flatten().expect("a frame that came");
            !Kind::from_number(frame.header.kind).is_some_and(Kind::only_looks)
        };
        self.answered.values().any(keeps)
    }

    /// Drops the session because the service went away. Requests without a reply may have been done.
    pub(super) fn lose_session(&mut self) {
        self.connecting = None;
        self.connection = None;
        let Some((session, _)) = self.session.take() else { return };
        for (sequence, pending) in std::mem::take(&mut self.pending) {
            match pending.asked {
                Asked::Release(id) => {
                    self.doubtful.insert(id);
                }
                Asked::Place { .. } | Asked::PlaceIn { .. } | Asked::Adopt => {
                    self.undecided.insert((session, sequence));
                }
                _ => {}
            }
        }
    }

    /// Ends the session. Everything that was asked is answered.
    pub(super) fn leave(&mut self) {
        assert!(self.pending.is_empty(), "a client leaves with all its replies");
        self.session = None;
        self.connection = None;
    }

    /// Gives up a connection that is lost, if it is the client's.
    pub(super) fn forget(&mut self, connection: u64) {
        for own in [&mut self.connection, &mut self.connecting] {
            own.take_if(|own| *own == connection);
        }
    }

    /// Returns the session and sequence of each request that waits.
    pub(super) fn waits(&self) -> impl Iterator<Item = (SessionId, u64)> {
        let waits = self.pending.iter().filter(|(_, pending)| pending.asked.waits());
        self.session
            .into_iter()
            .flat_map(move |(session, _)| waits.clone().map(move |(&at, _)| (session, at)))
    }

    /// Returns the number of groups, and of growths of one, that wait.
    pub(super) fn waiting_groups(&self) -> usize {
        let is_of_group = |asked: &Asked| !matches!(asked, Asked::Place { .. } | Asked::PlaceIn { .. });
        self.pending.values().filter(|pending| pending.asked.waits() && is_of_group(&pending.asked)).count()
    }

    /// Returns the sequence below which every request is answered.
    fn mark(&self) -> u64 {
        self.pending.keys().next().copied().unwrap_or(self.next)
    }

    /// Returns what it has acknowledged in its session.
    pub(super) fn acknowledged(&self) -> Acknowledged {
        Acknowledged { mark: self.mark(), waits: self.acknowledged.clone() }
    }

    /// Starts a new request and returns its first frame.
    pub(super) fn ask<T: serde::Serialize>(&mut self, kind: Kind, request: &T, asked: Asked) -> Vec<u8> {
        let mut acknowledged = Vec::new();
        encode_body(&AcknowledgedWaits { sequences: self.waited.clone() }, &mut acknowledged);
        let mut deadline = Vec::new();
        let mut extensions = Vec::new();
        if self.is_exact {
            extensions.push(Extension { tag: EXTENSION_ACKNOWLEDGED, bytes: &acknowledged });
        }
        if let Asked::Release(_) = asked
            && self.is_hasty
            && self.next.is_multiple_of(3)
        {
            let within = DEADLINES_NS[(self.next / 3) as usize % DEADLINES_NS.len()];
            encode_body(&Deadline { within }, &mut deadline);
            extensions.push(Extension { tag: EXTENSION_DEADLINE, bytes: &deadline });
        }
        let flags = if extensions.is_empty() { 0 } else { FLAG_EXTENSIONS };
        let mut frame = Vec::new();
        encode_frame(Header::default(), &extensions, &mut frame, |out| encode_body(request, out));
        let body = frame.split_off(HEADER_BYTES);
        if self.is_exact {
            self.acknowledged.extend(&self.waited);
        }
        let sequence = self.next;
        self.next += 1;
        if let Asked::Release(id) = asked {
            let (times, promised) = self.released.entry(id).or_default();
            *times += 1;
            *promised |= self.promised.remove(&id).is_some();
        }
        self.pending.insert(sequence, Pending { kind, flags, body, asked });
        self.frame(sequence).expect("it is under way")
    }

    /// Returns the frame of a request in flight, with the current acknowledgement.
    pub(super) fn frame(&self, sequence: u64) -> Option<Vec<u8>> {
        let pending = self.pending.get(&sequence)?;
        let header = Header {
            kind: pending.kind.number(),
            flags: pending.flags,
            version: BODY_VERSION,
            sequence,
            lowest_unacknowledged: self.mark(),
        };
        let mut frame = framed(header, &());
        frame.extend_from_slice(&pending.body);
        let length = u32::try_from(frame.len() - 4).expect("a short frame");
        frame[..4].copy_from_slice(&length.to_le_bytes());
        Some(frame)
    }

    /// Handles a reply, which may be a repetition.
    ///
    /// # Errors
    /// Returns the broken promise.
    pub(super) fn handle_reply(&mut self, frame: &FrameRef<'_>, bytes: &[u8]) -> Verdict {
        let sequence = frame.header.sequence;
        let Some(pending) = self.pending.remove(&sequence) else {
            return self.check_again(sequence, frame, bytes);
        };
        if frame.header.flags & FLAG_ERROR != 0 {
            let (fault, _) = decode_body::<Fault>(frame.payload).map_err(|error| error.to_string())?;
            // The node that it names may have been removed meanwhile.
            let names_a_node = matches!(pending.asked, Asked::Adopt | Asked::Operate);
            let is_of_group =
                matches!(pending.asked, Asked::Create { .. } | Asked::Grow { .. } | Asked::Remove(_));
            if names_a_node && fault.reason == Reason::UnknownNode.into()
                || is_of_group && fault.reason == Reason::NotServed.into()
            {
                self.answered.insert(sequence, bytes.to_vec());
                return Ok(());
            }
            if matches!(pending.asked, Asked::PlaceIn { .. }) && is_for_now(&fault) {
                // Nothing was done, but a frame of it that is still under way may be executed.
                self.undecided.extend(self.session.map(|(session, _)| (session, sequence)));
                self.answered.insert(sequence, bytes.to_vec());
                return Ok(());
            }
            // A frame of it that is still under way may be executed.
            if let Asked::Release(id) = pending.asked
                && is_for_now(&fault)
            {
                self.doubtful.insert(id);
                self.answered.insert(sequence, bytes.to_vec());
                return Ok(());
            }
            return Err(format!("request {sequence} ({:?}) was answered with {fault}", pending.asked));
        }
        self.answered.insert(sequence, bytes.to_vec());
        if pending.asked.waits() {
            self.waited.push(sequence);
            let passed = self.waited.len().saturating_sub(WAITED_MAX);
            self.waited.drain(..passed);
        }
        match pending.asked {
            Asked::Place { waits } => {
                let (reply, _) = decode_body::<PlaceReply>(frame.payload).map_err(|e| e.to_string())?;
                self.handle_placed(&reply, waits)
            }
            Asked::PlaceIn { charged, waits } => self.handle_placed_in_queue(frame, charged, waits),
            Asked::Adopt => {
                let (reply, _) = decode_body::<PlaceReply>(frame.payload).map_err(|e| e.to_string())?;
                if let Some(placed) = reply.placed {
                    let id = placed.allocation.into();
                    let gpus = placed.gpus.iter().fold(0, |mask, gpu| mask | 1 << gpu);
                    // An allocation that was adopted twice may already have a release in flight.
                    if !self.released.contains_key(&id) {
                        self.promised.insert(id, Promise { node: NodeId(placed.node), gpus });
                    }
                }
                Ok(())
            }
            Asked::Release(id) => self.handle_released(id, frame),
            Asked::Report => {
                let (reply, _) = decode_body::<ReportReply>(frame.payload).map_err(|e| e.to_string())?;
                self.keeps(if reply.reason.is_done() { reply.node } else { 0 });
                Ok(())
            }
            Asked::Beat => {
                let (reply, _) = decode_body::<HeartbeatReply>(frame.payload).map_err(|e| e.to_string())?;
                if reply.report_again || !reply.reason.is_done() {
                    self.keeps(0);
                }
                Ok(())
            }
            Asked::Cancel(sequence) => {
                let (reply, _) = decode_body::<CancelReply>(frame.payload).map_err(|e| e.to_string())?;
                if reply.waited {
                    self.cancelled.insert(sequence);
                }
                Ok(())
            }
            Asked::Create { waits } => self.handle_created(frame, waits),
            Asked::Grow { group, by, waits } => self.handle_grown(frame, group, by, waits),
            Asked::Remove(group) => self.handle_removed(frame, group),
            Asked::Operate | Asked::Renew => Ok(()),
            Asked::SetQueue(name) => self.handle_queue(frame, name),
            Asked::ChangeClass(name, value) => self.handle_class(frame, (name, value)),
            Asked::SubmitJob(max_retry) => self.handle_submitted(frame, max_retry),
            Asked::CancelJob(job) => self.handle_job_cancelled(frame, job),
            Asked::JobStatus(job) => self.handle_job_status(frame, job),
            Asked::ReportTasks(reports) => self.handle_reported(frame, &reports),
            Asked::PlanNodes(request) => jobs::handle_plan(frame, &request),
        }
    }

    /// Records the node that the agent reports. 0 means that it must report again.
    fn keeps(&mut self, now: u64) {
        if let Role::Agent { node, .. } = &mut self.role {
            *node = now;
        }
    }

    /// Checks a repeated reply. It must equal the first one, or reject the sequence because the client has
    /// acknowledged its answer.
    ///
    /// # Errors
    /// Returns a description of the two answers if they differ.
    fn check_again(&self, sequence: u64, frame: &FrameRef<'_>, bytes: &[u8]) -> Verdict {
        let Some(first) = self.answered.get(&sequence) else {
            return Err(format!("a reply to request {sequence}, which was never made"));
        };
        // A request that only looks is answered by what is there now.
        let only_looks = Kind::from_number(frame.header.kind).is_some_and(Kind::only_looks);
        if only_looks || is_same_answer(first, bytes) {
            return Ok(());
        }
        // A copy that is refused for now leaves nothing behind, so another copy may be executed. The network may deliver the
        // two replies in any order.
        let was_refused = |reply: &FrameRef<'_>| {
            reply.header.flags & FLAG_ERROR != 0
                && decode_body(reply.payload).is_ok_and(|(fault, _)| is_for_now(&fault))
        };
        let first_was_refused =
            decode_frame(first, FRAME_BYTES_MAX).ok().flatten().is_some_and(|first| was_refused(&first));
        if first_was_refused || was_refused(frame) {
            return Ok(());
        }
        let stale = decode_body::<Fault>(frame.payload)
            .is_ok_and(|(fault, _)| fault.reason == Reason::StaleSequence.into());
        let is_acknowledged = sequence < self.mark() || self.acknowledged.contains(&sequence);
        if frame.header.flags & FLAG_ERROR != 0 && stale && is_acknowledged {
            return Ok(());
        }
        Err(format!("request {sequence} was answered with {first:?}, then with {bytes:?}"))
    }

    fn handle_placed(&mut self, reply: &PlaceReply, waits: bool) -> Verdict {
        let allowed = [Reason::Done, Reason::NoFitNow, Reason::Infeasible];
        let of_waits = [Reason::Cancelled, Reason::ShuttingDown];
        let known = allowed.iter().any(|&reason| reply.reason == reason.into())
            || waits && of_waits.iter().any(|&reason| reply.reason == reason.into());
        if !known || reply.placed.is_some() != reply.reason.is_done() {
            return Err(format!("a placement was answered with {reply:?}"));
        }
        if let Some(placed) = &reply.placed {
            let id: AllocationId = placed.allocation.into();
            if id.tenant != self.tenant {
                return Err(format!("a client of tenant {} was granted {id}", self.tenant.0));
            }
            let gpus = placed.gpus.iter().fold(0, |mask, gpu| mask | 1 << gpu);
            let before = self.promised.insert(id, Promise { node: NodeId(placed.node), gpus });
            if before.is_some() || self.ended.contains(&id) {
                return Err(format!("allocation {id} was granted twice"));
            }
        }
        Ok(())
    }

    fn handle_released(&mut self, id: AllocationId, frame: &FrameRef<'_>) -> Verdict {
        let (reply, _) = decode_body::<ReleaseReply>(frame.payload).map_err(|error| error.to_string())?;
        let unknown = reply.reason == Reason::UnknownAllocation.into();
        if !reply.reason.is_done() && !unknown {
            return Err(format!("the release of {id} was answered with {reply:?}"));
        }
        // Of two releases of one allocation, only one may succeed.
        let again = self.ended.contains(&id) && reply.reason.is_done();
        if again && !self.doubtful.contains(&id) {
            return Err(format!("{id} was released twice, and both did it"));
        }
        // An id that was only guessed may be granted later. So it counts as ended only if it was released.
        if reply.reason.is_done() || self.released.get(&id).is_some_and(|&(_, promised)| promised) {
            self.ended.insert(id);
        }
        if unknown && self.released.get(&id) == Some(&(1, true)) {
            self.missed.push(id);
        }
        Ok(())
    }

    /// Returns the number of requests without a reply.
    pub(super) fn open(&self) -> usize {
        self.pending.len()
    }
}
