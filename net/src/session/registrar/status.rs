//! Status and audits at the registrar's task. One audit runs at a time. All who ask during an audit share the
//! next one.

use std::collections::BTreeMap;

use wharf_core::reply::reply_of;
use wharf_core::shard::{Command, Outcome, ResourceSum, ShardStatus};
use wharf_core::state::books_hash;

use super::{JobKind, RegistrarReply, RegistrarService};
use crate::convert::{resource_name, same};
use crate::protocol::{ResourceStatus, ShardStatusBody, StatusReply, Waiting};

impl<T> RegistrarService<T> {
    /// Begins an audit for all who wait for one, unless one is in progress. The port must have room.
    pub(super) fn begin_audit(&mut self) {
        if self.is_auditing || self.audits_wanted.is_empty() {
            return;
        }
        let mut askers = Vec::new();
        for (due, asker) in std::mem::take(&mut self.audits_wanted) {
            if due.is_missed(self.now) {
                self.answer_late(asker);
            } else {
                askers.push(asker);
            }
        }
        if askers.is_empty() {
            return;
        }
        self.is_auditing = true;
        self.start_every(JobKind::Audit(askers), Command::Audit { number: 0 }, None);
    }

    pub(super) fn complete_audit(&mut self, askers: Vec<T>, outcomes: Vec<Outcome>) {
        self.is_auditing = false;
        let status = self.status(outcomes);
        for asker in askers {
            self.answer(asker, RegistrarReply::Status(Box::new(status.clone())));
        }
    }

    /// Begins the export for a stop, once every requested audit is complete. The port must have room.
    pub(super) fn begin_stop(&mut self) {
        if self.is_auditing || !self.audits_wanted.is_empty() {
            return;
        }
        if let Some(reply) = self.stop_wanted.take() {
            self.start_every(JobKind::Stop, Command::Export, Some(reply));
        }
    }

    /// Returns the hash of the books. Returns `None` unless every shard's audit has the hashes of its
    /// partitions.
    fn books_hash(&self, statuses: &[ShardStatus]) -> Option<u128> {
        let mut partitions = BTreeMap::new();
        for status in statuses {
            let hashes = status.audit.as_ref()?.hashes.as_ref()?;
            partitions.extend(hashes.partitions.iter().copied());
        }
        Some(books_hash(&self.registrar.state(), partitions.into_values()).0)
    }

    pub(super) fn status(&mut self, outcomes: Vec<Outcome>) -> StatusReply {
        let statuses = outcomes.into_iter().map(reply_of::<Box<ShardStatus>, _>);
        let statuses: Vec<ShardStatus> = statuses.map(|status| *status).collect();
        let mut resources: BTreeMap<_, ResourceSum> = BTreeMap::new();
        for status in &statuses {
            for &(kind, sum) in &status.resources {
                let total = resources.entry(kind).or_default();
                total.total += sum.total;
                // For a client, held and releasing capacity is in use, since it cannot be allocated.
                total.allocated += sum.in_use();
                total.shortfall += sum.shortfall;
                total.unhealthy += sum.unhealthy;
                total.reserved += sum.reserved;
            }
        }
        let hash = self.books_hash(&statuses);
        let registry = self.registrar.resources_mut();
        StatusReply {
            now: self.now.0,
            shards: statuses.iter().map(shard_status).collect(),
            resources: resources
                .into_iter()
                .map(|(kind, sum)| {
                    same!(ResourceStatus from sum; total, allocated, shortfall, unhealthy, reserved;
                        name: resource_name(kind, registry))
                })
                .collect(),
            waiting: waiting(&statuses),
            books_hash: hash,
            // The process, its connections and its identity are no concern of the registrar.
            ..StatusReply::default()
        }
    }
}

/// Sums the waiting requests of all shards. A shape is feasible if some node of any shard could hold it.
fn waiting(statuses: &[ShardStatus]) -> Waiting {
    let mut shapes: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
    for shape in statuses.iter().flat_map(|status| &status.waiting) {
        let (homes, feasible) = shapes.entry(shape.hash).or_default();
        *homes += shape.homes;
        *feasible |= shape.feasible;
    }
    let mut waiting = Waiting::default();
    for (homes, feasible) in shapes.into_values() {
        *(if feasible { &mut waiting.feasible } else { &mut waiting.infeasible }) += homes;
    }
    waiting
}

fn shard_status(status: &ShardStatus) -> ShardStatusBody {
    let hashes = status.audit.as_ref().and_then(|audit| audit.hashes.as_ref());
    same!(ShardStatusBody from status;
        nodes_ready, nodes_draining, nodes_joining, nodes_lost, nodes_reserved, allocations, placed, refused,
        released; shard: status.shard.0, state_hash: hashes.map(|hashes| hashes.shard.0))
}
