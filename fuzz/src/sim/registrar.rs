//! The registrar of a simulated start: the service that production runs, between connections and shards.

use std::collections::VecDeque;
use std::sync::Arc;

use arc_swap::ArcSwap;
use wharf_core::registrar::{Catalog, Registrar};
use wharf_core::router::Port;
use wharf_core::state::{RegistrarState, ShardState};
use wharf_core::time::Time;
use wharf_net::protocol::StatusRequest;
use wharf_net::session::connections::Asker;
use wharf_net::session::registrar::{RegistrarReply, RegistrarRequest, RegistrarService};

use super::server::Question;

/// The silence after which an agent is lost, in ns of virtual time.
pub(super) const LOST_AFTER: u64 = 20_000;

/// The delay before another attempt to remove a node that a statement holds, in ns of virtual time.
const REMOVE_AGAIN: u64 = 500;

/// Turns of the registrar from one audit to the next.
const TURNS_PER_AUDIT: u32 = 4;

/// The registrar and the questions that wait for it.
pub(super) struct RegistrarThread {
    /// Nobody asks for the audits and the export of the world itself.
    service: RegistrarService<Option<(usize, Asker)>>,
    pub(super) questions: VecDeque<Question>,
    exported: Option<Vec<ShardState>>,
    /// Times that an audit might have begun.
    audit_turns: u32,
    is_auditing: bool,
}

impl RegistrarThread {
    pub(super) fn new(
        mut registrar: Registrar,
        port: Port,
        catalog: Arc<ArcSwap<Catalog>>,
        now: Time,
    ) -> Self {
        registrar.heartbeats().set_lost_after(LOST_AFTER, now);
        let mut service = RegistrarService::new(registrar, port, catalog);
        service.set_remove_again(REMOVE_AGAIN);
        Self { service, questions: VecDeque::new(), exported: None, audit_turns: 0, is_auditing: false }
    }

    /// Returns whether nothing is under way and nothing is asked.
    pub(super) fn is_idle(&self) -> bool {
        self.service.is_idle() && self.questions.is_empty()
    }

    /// Returns who asked the reports that wait for a hold to end.
    pub(super) fn replacing(&self) -> impl Iterator<Item = &(usize, Asker)> + Clone {
        self.service.replacing().flatten()
    }

    pub(super) fn state(&self) -> RegistrarState {
        self.service.registrar.state()
    }

    /// Returns whether the thread sleeps although its port has something for it: a wake-up was lost.
    pub(super) fn oversleeps(&mut self) -> bool {
        let port = &mut self.service.port;
        port.bell().is_asleep() && !port.is_idle()
    }

    /// Runs one turn of the thread, with at most one question; returns how much moved, and the answers.
    pub(super) fn run(&mut self, now: Time) -> (usize, Vec<(usize, Asker, RegistrarReply)>) {
        let mut moved = self.service.poll(now);
        if self.service.has_room()
            && let Some((front, asker, request)) = self.questions.pop_front()
        {
            self.service.handle(request, Some((front, asker)), now);
            moved += 1;
        }
        self.service.proceed(now);
        let mut answers = Vec::new();
        for (asker, reply) in self.service.take_answers() {
            match (asker, reply) {
                (Some((front, asker)), reply) => answers.push((front, asker, reply)),
                (None, RegistrarReply::Exported(states)) => self.exported = Some(states),
                (None, RegistrarReply::Status(_)) => self.is_auditing = false,
                (None, other) => unreachable!("nobody asked for {other:?}"),
            }
        }
        moved += answers.len();
        if moved == 0 {
            let port = &mut self.service.port;
            let bell = Arc::clone(port.bell());
            let _asleep = bell.sleep_if(|| port.is_idle());
        }
        // The loss of a silent node begins by itself: nothing came, and something is under way.
        (moved + usize::from(!self.service.is_idle()), answers)
    }

    /// Begins an audit of every shard, every few times, unless one is under way.
    pub(super) fn begin_audit(&mut self, now: Time) {
        self.audit_turns += 1;
        if !self.is_auditing && self.audit_turns.is_multiple_of(TURNS_PER_AUDIT) {
            self.is_auditing = true;
            self.service.handle(RegistrarRequest::Status(StatusRequest { audit: true }), None, now);
        }
    }

    /// Asks every shard for its durable state, and begins nothing else from now on.
    pub(super) fn stop(&mut self, now: Time) {
        self.service.handle(RegistrarRequest::Stop, None, now);
    }

    /// Returns the states that the shards exported, once all have.
    pub(super) fn take_exported(&mut self) -> Option<Vec<ShardState>> {
        self.exported.take()
    }
}
