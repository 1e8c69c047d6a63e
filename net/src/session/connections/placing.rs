//! Placements and releases.

use std::cmp::Reverse;
use std::sync::Arc;

use wharf_core::group::PlanJob;
use wharf_core::limits::PLACEMENTS_PER_MESSAGE_MAX;
use wharf_core::node::Selector;
use wharf_core::request::PlacementRequest;
use wharf_core::router::{PortRequest, WaitRequest};
use wharf_core::time::Time;

use super::operation::{Complete, Operation, Parts};
use super::questions::Asker;
use super::recovered::{deed_reply, release_deed};
use super::{ConnectionKey, ConnectionService, Stalled};
use crate::codec::{PlainPlace, encode_body};
use crate::convert::{
    PlacementDefaults, check_queued, kinds_to_learn, placement_request, plain_placement, queued_placement,
};
use crate::protocol::{
    CreateGroupRequest, Fault, GroupReply, JobBody, Kind, MODE_WAIT_UNTIL, PlaceBatch, PlaceReply,
    PlaceRequest, QueueBody, Reason, ReleaseBatch, ReleaseBatchReply, ReleaseReply, ReleaseRequest,
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

/// A request that begins when the registrar has learnt resource kinds that it names.
pub(super) enum Learning {
    Place(Box<PlaceRequest>),
    CreateGroup(Box<CreateGroupRequest>),
    SetQueue(Box<QueueBody>),
    SubmitJob(Box<JobBody>),
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

    /// Handles a placement that is charged to a queue: the one that it names, or that of its tenant. The keeper of jobs makes
    /// it.
    fn place_in_queue(&mut self, asker: Asker, mut request: PlaceRequest) {
        let defaults = self.placement_defaults(asker.connection);
        let bound = self.connections[asker.connection].rights.bound().cloned();
        if let Some(of) = bound.as_ref().filter(|_| request.queue.is_empty()) {
            request.queue = of.queue.to_string();
        }
        let checked = check_queued(&request, self.port.keeps_jobs(), bound.as_deref());
        let placement = checked.map_err(|fault| Box::new(fault.into()));
        match placement.and_then(|()| queued_placement(request, self.port.catalog(), defaults, bound)) {
            Ok(placement) => {
                let parts = Parts::InQueue(placement.request.candidates.clone());
                self.submit_plan(asker, parts, PlanJob::Place(Box::new(placement)));
            }
            Err(reply) => self.answer(asker, &*reply, asker.started),
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
        let until = Time(if request.deadline == 0 { u64::MAX } else { request.deadline });
        let mut bytes = Vec::new();
        encode_body(&request, &mut bytes);
        match placement_request(request, self.port.catalog(), defaults) {
            Ok(request) => {
                let since = resumed.unwrap_or(asker.started);
                let is_resumed = resumed.is_some();
                let wait = WaitRequest { request, priority, since, until, is_resumed };
                self.begin_wait(asker, wait, bytes.into());
            }
            Err(reply) => self.answer(asker, &*reply, asker.started),
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
            (Learning::Place(request), Ok(())) => self.wait_for_place(asker, *request, None),
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
        let defaults = self.placement_defaults(asker.connection);
        let catalog = self.port.catalog();
        let mut replies = Vec::with_capacity(requests.len());
        let mut valid: Vec<(i32, usize, PlacementRequest)> = Vec::with_capacity(requests.len());
        let mut named = Vec::new();
        let mut done = done.into_iter().peekable();
        let remedy = "send each placement in a message of its own";
        let unbound = self.connections[asker.connection].rights.check_unbound(Kind::PlaceBatch, remedy);
        for (part, mut request) in requests.into_iter().enumerate() {
            if let Some((_, deed)) = done.next_if(|&(at, _)| usize::from(at) == part) {
                replies.push(deed_reply(deed, catalog));
                continue;
            }
            if let Err(fault) = &unbound {
                replies.push(fault.clone().into());
                continue;
            }
            if request.mode == MODE_WAIT_UNTIL {
                let message = "requests of a batch do not wait: give it a request of its own";
                let fault = Fault::of_field(Reason::InvalidField, "mode", message);
                replies.push(fault.into());
                continue;
            }
            // In a batch, the priority orders the requests of the batch. It means nothing for a single
            // request that does not wait.
            let priority = std::mem::take(&mut request.priority);
            match placement_request(request, catalog, defaults) {
                Ok(request) => {
                    named.extend(request.candidates.clone().map(|ids| (part, ids)));
                    valid.push((priority, part, request));
                    replies.push(PlaceReply::default());
                }
                Err(reply) => replies.push(*reply),
            }
        }
        if valid.is_empty() {
            return self.answer_complete(asker, &Complete::place_batch(replies), asker.started);
        }
        // The sort happens here because a shard decides in the order of its recorded input, however that input
        // is split into batches. The sort is stable, so equal priorities keep the order of the frame.
        valid.sort_by_key(|&(priority, ..)| Reverse(priority));
        let parts = Parts::PlaceBatch { replies, named, left: valid.len() };
        let requests =
            valid.into_iter().map(|(_, part, request)| (part, PortRequest::Place(request))).collect();
        self.submit_parts(asker, parts, requests);
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
                self.plan_room.give_back(1);
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
