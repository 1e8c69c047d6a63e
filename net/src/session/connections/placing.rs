//! Placements and releases.

use std::cmp::Reverse;

use wharf_core::limits::PLACEMENTS_PER_MESSAGE_MAX;
use wharf_core::request::PlacementRequest;
use wharf_core::router::PortRequest;
use wharf_core::time::Time;

use super::operation::{Complete, Operation, Parts};
use super::questions::Asker;
use super::room::Waiter;
use super::waits::Waits;
use super::{ConnectionKey, ConnectionService, Stalled};
use crate::convert::{PlacementDefaults, fault_reply, kinds_to_learn, placement_request};
use crate::protocol::{
    CreateGroupRequest, Fault, Kind, MODE_WAIT_UNTIL, PlaceBatch, PlaceReply, PlaceRequest, Reason,
    ReasonCode, ReleaseBatch, ReleaseBatchReply, ReleaseReply, ReleaseRequest,
};
use crate::session::registrar::RegistrarReply;

/// The parts of a request that waits for room at the port or at a planner.
pub(super) struct Submission {
    pub(super) operation: Operation,
    /// The number and request of each part.
    pub(super) requests: Vec<(usize, PortRequest)>,
}

/// A request that begins when the registrar has learnt resource kinds that it names.
pub(super) enum Learning {
    Place(Box<PlaceRequest>),
    CreateGroup(Box<CreateGroupRequest>),
}

impl ConnectionService {
    /// Returns the values for fields that a placement leaves at their defaults.
    #[must_use]
    pub fn placement_defaults(&self) -> PlacementDefaults {
        self.shared.settings.load().placement_defaults(&self.port)
    }

    pub(super) fn handle_place(
        &mut self,
        key: ConnectionKey,
        sequence: u64,
        request: PlaceRequest,
        now: Time,
    ) {
        let defaults = self.placement_defaults();
        if request.mode == MODE_WAIT_UNTIL {
            return match kinds_to_learn(&request, self.port.catalog(), defaults) {
                Err(reply) => self.answer_place(key, sequence, *reply),
                Ok(names) if names.is_empty() => self.wait_for_place(key, sequence, request, now),
                Ok(names) => {
                    let asker = Asker { connection: key, kind: Kind::Place, sequence, started: now };
                    self.ask_to_learn(asker, names, Learning::Place(Box::new(request)));
                }
            };
        }
        match placement_request(request, self.port.catalog(), defaults) {
            Ok(request) => {
                let parts = Parts::Place(request.candidates.clone());
                self.submit_one(key, sequence, parts, PortRequest::Place(request), now);
            }
            Err(reply) => self.answer_place(key, sequence, *reply),
        }
    }

    fn wait_for_place(&mut self, key: ConnectionKey, sequence: u64, request: PlaceRequest, now: Time) {
        let defaults = self.placement_defaults();
        let waits = Waits { priority: request.priority, deadline: request.deadline };
        match placement_request(request, self.port.catalog(), defaults) {
            Ok(request) => self.begin_wait(key, sequence, request, waits, now),
            Err(reply) => self.answer_place(key, sequence, *reply),
        }
    }

    /// Handles the registrar's answer about the kinds that it was asked to learn.
    pub(super) fn handle_learnt(&mut self, asker: Asker, learning: Learning, answer: RegistrarReply) {
        let Asker { connection: key, kind, sequence, started } = asker;
        let learnt = match answer {
            RegistrarReply::Learnt => Ok(()),
            RegistrarReply::Fault(fault) => Err(fault),
            other => unreachable!("no answer to what is to be learnt: {other:?}"),
        };
        match (learning, learnt) {
            (Learning::Place(request), Ok(())) => self.wait_for_place(key, sequence, *request, started),
            (Learning::Place(_), Err(fault)) => self.answer_place(key, sequence, fault_reply(fault)),
            (Learning::CreateGroup(request), Ok(())) => self.create_group(key, sequence, *request, started),
            (Learning::CreateGroup(_), Err(fault)) => self.answer_group_fault(key, kind, sequence, fault),
        }
        self.ready.push_back(key);
    }

    pub(super) fn answer_place(&mut self, key: ConnectionKey, sequence: u64, reply: PlaceReply) {
        let reason = reply.reason;
        self.answer_at_once(key, Kind::Place, sequence, &reply, reason);
    }

    pub(super) fn handle_place_batch(
        &mut self,
        key: ConnectionKey,
        sequence: u64,
        PlaceBatch { requests }: PlaceBatch,
        now: Time,
    ) {
        debug_assert!(requests.len() <= PLACEMENTS_PER_MESSAGE_MAX);
        let defaults = self.placement_defaults();
        let catalog = self.port.catalog();
        let mut replies = Vec::with_capacity(requests.len());
        let mut valid: Vec<(i32, usize, PlacementRequest)> = Vec::with_capacity(requests.len());
        let mut named = Vec::new();
        for (part, mut request) in requests.into_iter().enumerate() {
            if request.mode == MODE_WAIT_UNTIL {
                let message = "requests of a batch do not wait: give it a request of its own";
                let fault = Fault::of_field(Reason::InvalidField, "mode", message);
                replies.push(fault_reply(fault));
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
            let complete = Complete::place_batch(replies);
            complete.answer(&mut self.connections[key], Kind::PlaceBatch, sequence);
            self.touch(key);
            self.observer.handle_reply(Kind::PlaceBatch, ReasonCode::default(), 0);
            let reasons = complete.part_reasons().into_iter();
            return reasons.for_each(|reason| self.observer.handle_part(Kind::PlaceBatch, reason));
        }
        // The sort happens here because a shard decides in the order of its recorded input, however that input
        // is split into batches. The sort is stable, so equal priorities keep the order of the frame.
        valid.sort_by_key(|&(priority, ..)| Reverse(priority));
        let parts = Parts::PlaceBatch { replies, named, left: valid.len() };
        let requests =
            valid.into_iter().map(|(_, part, request)| (part, PortRequest::Place(request))).collect();
        self.submit_parts(key, sequence, parts, requests, now);
    }

    pub(super) fn handle_release(
        &mut self,
        key: ConnectionKey,
        sequence: u64,
        request: &ReleaseRequest,
        now: Time,
    ) {
        let release = PortRequest::Release(request.allocation.into());
        self.submit_one(key, sequence, Parts::Release, release, now);
    }

    pub(super) fn handle_release_batch(
        &mut self,
        key: ConnectionKey,
        sequence: u64,
        batch: &ReleaseBatch,
        now: Time,
    ) {
        if batch.requests.is_empty() {
            let reply = ReleaseBatchReply::default();
            return self.answer_at_once(key, Kind::ReleaseBatch, sequence, &reply, ReasonCode::default());
        }
        let left = batch.requests.len();
        let parts = Parts::ReleaseBatch { replies: vec![ReleaseReply::default(); left], left };
        let releases = batch.requests.iter().map(|request| PortRequest::Release(request.allocation.into()));
        self.submit_parts(key, sequence, parts, releases.enumerate().collect(), now);
    }

    /// Submits a request of one part, or stalls the connection until the port has room.
    pub(super) fn submit_one(
        &mut self,
        key: ConnectionKey,
        sequence: u64,
        parts: Parts,
        request: PortRequest,
        now: Time,
    ) {
        let operation = Operation { connection: key, sequence, started: now, parts };
        if self.port_room.take(Waiter::Connection(key), 1) {
            let operation = self.enter(operation);
            self.submit(operation, 0, request, now);
        } else {
            self.stall(key, Stalled::Submit(Submission { operation, requests: vec![(0, request)] }));
        }
    }

    fn submit_parts(
        &mut self,
        key: ConnectionKey,
        sequence: u64,
        parts: Parts,
        requests: Vec<(usize, PortRequest)>,
        now: Time,
    ) {
        let operation = Operation { connection: key, sequence, started: now, parts };
        let submission = Submission { operation, requests };
        if self.port_room.take(Waiter::Connection(key), submission.requests.len()) {
            self.submit_all(submission, now);
        } else {
            self.stall(key, Stalled::Submit(submission));
        }
    }

    fn submit_all(&mut self, Submission { operation, requests }: Submission, now: Time) {
        let operation = self.enter(operation);
        for (part, request) in requests {
            self.submit(operation, part, request, now);
        }
    }

    /// Submits what a stalled connection has for the port. Its room was taken.
    pub(super) fn submit_stalled(&mut self, key: ConnectionKey, now: Time) {
        match self.connections[key].stalled.take() {
            Some(Stalled::Submit(submission)) => self.submit_all(submission, now),
            _ => unreachable!("a connection in this queue waits for room at the port"),
        }
        self.ready.push_back(key);
    }
}
