//! Placements and releases.

use std::cmp::Reverse;
use std::sync::Arc;

use wharf_core::group::PlanJob;
use wharf_core::ids::NodeId;
use wharf_core::jobs::DirectWait;
use wharf_core::limits::PLACEMENTS_PER_MESSAGE_MAX;
use wharf_core::node::Selector;
use wharf_core::registrar::Catalog;
use wharf_core::router::{PortRequest, WaitRequest};
use wharf_core::time::Time;

use super::operation::{Complete, NamedByPart, Operation, Parts};
use super::planning::MayWait;
use super::questions::Asker;
use super::recovered::{deed_reply, release_deed};
use super::{ConnectionKey, ConnectionService, Stalled};
use crate::codec::{PlainPlace, encode_body};
use crate::convert::{
    PlacementDefaults, check_queued, deadline_of, kinds_to_learn, placement_request, plain_placement,
    queued_placement,
};
use crate::protocol::{
    CreateGroupRequest, Fault, GroupReply, JobBody, MODE_WAIT_UNTIL, PlaceBatch, PlaceReply, PlaceRequest,
    QueueBody, Reason, ReleaseBatch, ReleaseBatchReply, ReleaseReply, ReleaseRequest,
};
use crate::session::Parts as SessionParts;
use crate::session::registrar::RegistrarReply;

/// A request that waits for room at a planner.
pub(super) struct Submission {
    pub(super) operation: Operation,
    pub(super) request: PortRequest,
}

/// A part of a request for the port, by its number. `None`: what comes next in a placement into a group.
pub(super) type PortPart = Option<(usize, PortRequest)>;

/// Returns until when a placement waits.
pub(super) fn end_of_wait(request: &PlaceRequest) -> Time {
    deadline_of(request.deadline)
}

/// A request that begins when the registrar has learnt resource kinds that it names.
pub(super) enum Learning {
    Place(Box<PlaceRequest>),
    CreateGroup(Box<CreateGroupRequest>),
    SetQueue(Box<QueueBody>),
    SubmitJob(Box<JobBody>),
}

/// A batch, part by part.
struct Batch<T> {
    /// The replies to those that are not asked for. Others have an empty one.
    replies: Vec<PlaceReply>,
    /// The candidates of parts that name some, in order of part.
    named: NamedByPart,
    /// Those to ask for, with their numbers: the highest priority first.
    valid: Vec<(usize, T)>,
}

impl<T> Batch<T> {
    /// Converts the requests, except those that an earlier start did. `convert` also returns the candidates.
    fn new(
        requests: Vec<PlaceRequest>,
        done: SessionParts,
        catalog: &Catalog,
        convert: impl Fn(PlaceRequest) -> Result<(Option<Arc<[NodeId]>>, T), Box<PlaceReply>>,
    ) -> Self {
        let mut replies = Vec::with_capacity(requests.len());
        let mut valid: Vec<(i32, usize, T)> = Vec::with_capacity(requests.len());
        let mut named = Vec::new();
        let mut done = done.into_iter().peekable();
        for (part, mut request) in requests.into_iter().enumerate() {
            if let Some((_, deed)) = done.next_if(|&(at, _)| usize::from(at) == part) {
                replies.push(deed_reply(deed, catalog));
                continue;
            }
            if request.mode == MODE_WAIT_UNTIL {
                let message = "requests of a batch do not wait: give it a request of its own";
                replies.push(Fault::of_field(Reason::InvalidField, "mode", message).into());
                continue;
            }
            // In a batch, the priority orders the requests of the batch. It means nothing for a single
            // request that does not wait.
            let priority = std::mem::take(&mut request.priority);
            match convert(request) {
                Ok((candidates, request)) => {
                    named.extend(candidates.map(|ids| (part, ids)));
                    valid.push((priority, part, request));
                    replies.push(PlaceReply::default());
                }
                Err(reply) => replies.push(*reply),
            }
        }
        // The sort happens here because a shard decides in the order of its recorded input, however that input
        // is split into batches. The sort is stable, so equal priorities keep the order of the frame.
        valid.sort_by_key(|&(priority, ..)| Reverse(priority));
        let valid = valid.into_iter().map(|(_, part, request)| (part, request)).collect();
        Self { replies, named, valid }
    }
}

impl ConnectionService {
    /// Returns what placements of a connection do not say themselves.
    #[must_use]
    pub fn placement_defaults(&self, key: ConnectionKey) -> PlacementDefaults {
        let session = self.connections[key].session.as_ref();
        self.shared.settings.load().placement_defaults(&self.port, session)
    }

    /// Handles a placement. `selectors` are the bytes of its selectors if it is plain otherwise.
    pub(super) fn handle_place(&mut self, asker: Asker, request: PlaceRequest, selectors: &[u8]) {
        if !request.queue.is_empty() || self.connections[asker.connection].rights.bound().is_some() {
            return self.place_in_queue(asker, request);
        }
        let defaults = self.placement_defaults(asker.connection);
        if request.mode == MODE_WAIT_UNTIL {
            return match kinds_to_learn(&request, self.port.catalog(), defaults) {
                Err(reply) => self.answer(asker, &*reply, asker.started),
                Ok(names) if names.is_empty() => self.wait_for_place(asker, request, None),
                Ok(names) => self.ask_to_learn(asker, names, Learning::Place(Box::new(request))),
            };
        }
        match placement_request(request, self.port.catalog(), defaults) {
            Ok(request) => {
                if let Some(selector) = request.selector.as_ref().filter(|_| !selectors.is_empty()) {
                    self.selectors.learn(selectors, selector);
                }
                let parts = Parts::Place(request.candidates.clone());
                self.submit_one(asker, parts, PortRequest::Place(request));
            }
            Err(reply) => self.answer(asker, &*reply, asker.started),
        }
    }

    /// Handles a placement that is charged to a queue: the one that it names, or the one that the settings give to it. The
    /// keeper of jobs makes it.
    fn place_in_queue(&mut self, asker: Asker, mut request: PlaceRequest) {
        let defaults = self.placement_defaults(asker.connection);
        let bound = self.connections[asker.connection].rights.bound().cloned();
        if let Some(of) = bound.as_ref().filter(|_| request.queue.is_empty()) {
            request.queue = of.queue().to_string();
        }
        if let Err(fault) = check_queued(&request, self.port.keeps_jobs(), bound.as_deref()) {
            return self.answer(asker, &PlaceReply::from(fault), asker.started);
        }
        if request.mode == MODE_WAIT_UNTIL {
            return match kinds_to_learn(&request, self.port.catalog(), defaults) {
                Err(reply) => self.answer(asker, &*reply, asker.started),
                Ok(names) if names.is_empty() => self.wait_in_queue(asker, request, None),
                Ok(names) => self.ask_to_learn(asker, names, Learning::Place(Box::new(request))),
            };
        }
        match queued_placement(request, self.port.catalog(), defaults, bound, None) {
            Ok(placement) => {
                let parts = Parts::InQueue(placement.request.candidates.clone());
                self.submit_plan(asker, parts, PlanJob::Place(Box::new(placement)));
            }
            Err(reply) => self.answer(asker, &*reply, asker.started),
        }
    }

    /// Lets a placement wait in the queue that it names. `resumed` is since when it waits, if it did before.
    pub(super) fn wait_in_queue(&mut self, asker: Asker, request: PlaceRequest, resumed: Option<Time>) {
        let defaults = self.placement_defaults(asker.connection);
        let connection = &mut self.connections[asker.connection];
        let bound = connection.rights.bound().cloned();
        // It may have waited before the settings were changed.
        if let Err(fault) = check_queued(&request, self.port.keeps_jobs(), bound.as_deref()) {
            return self.refuse_wait(asker, &PlaceReply::from(fault), resumed.is_some());
        }
        let wait = DirectWait {
            id: (connection.session().id(), asker.sequence),
            priority: request.priority,
            until: end_of_wait(&request),
        };
        let mut bytes = Vec::new();
        encode_body(&request, &mut bytes);
        let waited = match queued_placement(request, self.port.catalog(), defaults, bound, Some(wait)) {
            Ok(placement) => {
                let parts = Parts::WaitInQueue(placement.request.candidates.clone(), None);
                let may_wait = MayWait { request: bytes.into(), resumed };
                let has_room = match resumed {
                    None => self.check_wait_room(asker.connection, parts.candidates()),
                    Some(_) => Ok(()),
                };
                let job = PlanJob::Place(Box::new(placement));
                let waited = has_room.and_then(|()| self.submit_waiting(asker, parts, job, may_wait));
                waited.map_err(|fault| Box::new(fault.into()))
            }
            Err(reply) => Err(reply),
        };
        if let Err(reply) = waited {
            self.refuse_wait(asker, &*reply, resumed.is_some());
        }
    }

    /// Handles a placement that leaves most fields at their defaults. It names nothing that may belong to others.
    pub(super) fn handle_plain_place(
        &mut self,
        asker: Asker,
        request: &PlainPlace<'_>,
        selector: Option<Arc<Selector>>,
    ) {
        let session = self.connections[asker.connection].session.as_ref();
        let defaults = self.settings.load().placement_defaults(&self.port, session);
        match plain_placement(request, selector, defaults) {
            Ok(request) => self.submit_one(asker, Parts::Place(None), PortRequest::Place(request)),
            Err(fault) => self.answer(asker, &PlaceReply::from(fault), asker.started),
        }
    }

    /// Lets a placement wait. `resumed` is since when it waits, if it did before.
    pub(super) fn wait_for_place(&mut self, asker: Asker, request: PlaceRequest, resumed: Option<Time>) {
        let defaults = self.placement_defaults(asker.connection);
        let priority = request.priority;
        let until = end_of_wait(&request);
        let mut bytes = Vec::new();
        encode_body(&request, &mut bytes);
        match placement_request(request, self.port.catalog(), defaults) {
            Ok(request) => {
                let since = resumed.unwrap_or(asker.started);
                let is_resumed = resumed.is_some();
                let wait = WaitRequest { request, priority, since, until, is_resumed };
                self.begin_wait(asker, wait, bytes.into());
            }
            Err(reply) => self.refuse_wait(asker, &*reply, resumed.is_some()),
        }
    }

    /// Handles the registrar's answer about the kinds that it was asked to learn.
    pub(super) fn handle_learnt(
        &mut self,
        asker: Asker,
        learning: Learning,
        answer: RegistrarReply,
        now: Time,
    ) {
        self.ready.push_back(asker.connection);
        let learnt = match answer {
            RegistrarReply::Learnt => Ok(()),
            RegistrarReply::Fault(fault) => Err(fault),
            other => unreachable!("no answer to what is to be learnt: {other:?}"),
        };
        let is_refused_late = learnt.as_ref().is_err_and(Fault::is_late);
        if is_refused_late || asker.due.is_missed(now) {
            return self.shed_late(asker, now);
        }
        match (learning, learnt) {
            (Learning::Place(request), Ok(())) if request.queue.is_empty() => {
                self.wait_for_place(asker, *request, None);
            }
            (Learning::Place(request), Ok(())) => self.wait_in_queue(asker, *request, None),
            (Learning::Place(_), Err(fault)) => self.answer(asker, &PlaceReply::from(fault), asker.started),
            (Learning::CreateGroup(request), Ok(())) => self.create_group(asker, *request, None),
            (Learning::CreateGroup(_), Err(fault)) => {
                self.answer(asker, &GroupReply::from(fault), asker.started);
            }
            (Learning::SetQueue(queue), Ok(())) => self.set_queue(asker, *queue),
            (Learning::SubmitJob(job), Ok(())) => self.submit_job(asker, *job),
            (Learning::SetQueue(_) | Learning::SubmitJob(_), Err(fault)) => self.refuse_jobs(asker, fault),
        }
    }

    /// Handles a batch. `done` are the parts that an earlier start did.
    pub(super) fn handle_place_batch(
        &mut self,
        asker: Asker,
        PlaceBatch { requests }: PlaceBatch,
        done: SessionParts,
    ) {
        debug_assert!(requests.len() <= PLACEMENTS_PER_MESSAGE_MAX);
        let is_bound = self.connections[asker.connection].rights.bound().is_some();
        if is_bound || requests.iter().any(|request| !request.queue.is_empty()) {
            return self.place_batch_in_queues(asker, requests, done);
        }
        let defaults = self.placement_defaults(asker.connection);
        let catalog = self.port.catalog();
        let batch = Batch::new(requests, done, catalog, |request| {
            let request = placement_request(request, catalog, defaults)?;
            Ok((request.candidates.clone(), request))
        });
        let Batch { replies, named, valid } = batch;
        if valid.is_empty() {
            return self.answer_complete(asker, &Complete::place_batch(replies), asker.started);
        }
        let parts = Parts::PlaceBatch { replies, named, left: valid.len() };
        let requests = valid.into_iter().map(|(part, request)| (part, PortRequest::Place(request))).collect();
        self.submit_parts(asker, parts, requests);
    }

    /// Handles a batch of placements that are charged to queues: those that they name, or the one of the settings.
    fn place_batch_in_queues(&mut self, asker: Asker, requests: Vec<PlaceRequest>, done: SessionParts) {
        let defaults = self.placement_defaults(asker.connection);
        let bound = self.connections[asker.connection].rights.bound().cloned();
        let keeps_jobs = self.port.keeps_jobs();
        let catalog = self.port.catalog();
        let batch = Batch::new(requests, done, catalog, |mut request| {
            if request.queue.is_empty() {
                let Some(of) = &bound else {
                    let message = "others of this batch name queues: name one, or send it in another batch";
                    return Err(Box::new(Fault::of_field(Reason::InvalidField, "queue", message).into()));
                };
                request.queue = of.queue().to_string();
            }
            check_queued(&request, keeps_jobs, bound.as_deref()).map_err(Box::<PlaceReply>::from)?;
            let placement = queued_placement(request, catalog, defaults, bound.clone(), None)?;
            Ok((placement.request.candidates.clone(), placement))
        });
        let Batch { replies, named, valid } = batch;
        if valid.is_empty() {
            return self.answer_complete(asker, &Complete::place_batch(replies), asker.started);
        }
        let parts = Parts::BatchInQueues { replies, named, asked: valid.len() };
        let number = |part| u16::try_from(part).expect("PLACEMENTS_PER_MESSAGE_MAX fits u16");
        let placements = valid.into_iter().map(|(part, placement)| (number(part), placement)).collect();
        self.submit_plan(asker, parts, PlanJob::PlaceBatch(placements));
    }

    pub(super) fn handle_release(&mut self, asker: Asker, request: &ReleaseRequest) {
        self.submit_one(asker, Parts::Release, PortRequest::Release(request.allocation.into()));
    }

    /// Handles a batch. `done` are the parts that an earlier start did.
    pub(super) fn handle_release_batch(&mut self, asker: Asker, batch: &ReleaseBatch, done: SessionParts) {
        let mut replies = vec![ReleaseReply::default(); batch.requests.len()];
        let mut left: Vec<bool> = vec![true; replies.len()];
        for (part, deed) in done {
            let part = usize::from(part);
            replies[part] = release_deed(&deed);
            left[part] = false;
        }
        let requests = batch.requests.iter().enumerate().filter(|&(part, _)| left[part]);
        let release = |(part, request): (usize, &ReleaseRequest)| {
            (part, PortRequest::Release(request.allocation.into()))
        };
        let releases: Vec<_> = requests.map(release).collect();
        if releases.is_empty() {
            return self.answer(asker, &ReleaseBatchReply { replies }, asker.started);
        }
        let parts = Parts::ReleaseBatch { replies, left: releases.len() };
        self.submit_parts(asker, parts, releases);
    }

    /// Submits a request of one part, or lets it wait for its turn.
    pub(super) fn submit_one(&mut self, asker: Asker, parts: Parts, request: PortRequest) {
        let operation = Operation { asker, parts };
        if self.is_in_time(asker, 1) {
            if self.turns.take(1) {
                let operation = self.enter(operation);
                self.submit(operation, 0, request, asker.started);
            } else {
                self.wait_for_turn(operation, [(0, request)]);
            }
        }
    }

    /// Submits the parts of a request, or lets them wait for their turns.
    pub(super) fn submit_parts(&mut self, asker: Asker, parts: Parts, requests: Vec<(usize, PortRequest)>) {
        let operation = Operation { asker, parts };
        if self.is_in_time(asker, requests.len()) {
            if self.turns.take(requests.len()) {
                let operation = self.enter(operation);
                for (part, request) in requests {
                    self.submit(operation, part, request, asker.started);
                }
            } else {
                self.wait_for_turn(operation, requests);
            }
        }
    }

    /// Submits a planner's job. Its room was taken.
    pub(super) fn submit_stalled(&mut self, key: ConnectionKey, now: Time) {
        match self.connections[key].stalled.take() {
            Some(Stalled::Submit(Submission { operation, .. })) if operation.asker.due.is_missed(now) => {
                self.plan_room.give_back(operation.parts.planner_room());
                self.shed_late(operation.asker, now);
            }
            Some(Stalled::Submit(Submission { operation, request })) => {
                let operation = self.enter(operation);
                self.submit(operation, 0, request, now);
            }
            _ => unreachable!("a connection in this queue waits for room at a planner"),
        }
        self.ready.push_back(key);
    }
}
