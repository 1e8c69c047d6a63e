//! What happens to requests when the engine is the limit.
//!
//! A request beyond what the port takes waits for its [turn](super::turns). If too many of a connection wait, and this one
//! has no deadline, nothing more is read from the connection until some had their turns: the client's credit is withheld.
//! How much others wait for matters only to a connection that has more than its share of it.
//! A request with a deadline is refused instead as soon as it is clear that it would be late, with the time after which
//! it is worth to ask again. One whose deadline has passed when its turn comes is refused, and never executed. So is any
//! request that is late when it is read, or when a planner, the registrar or another thread takes it out of its queue.

use wharf_core::ids::TenantId;
use wharf_core::router::PortRequest;
use wharf_core::time::Time;

use super::operation::Operation;
use super::placing::PortPart;
use super::questions::Asker;
use super::turns::{Turn, Waiting};
use super::{ConnectionKey, ConnectionService, Stalled};
use crate::limits::DEADLINE_SHARE;
use crate::protocol::{Fault, Reason};
use crate::session::Session;
use crate::session::shared::Counters;

impl ConnectionService {
    /// Returns whether a request of so many parts can be done before its deadline, or has none. Otherwise it is refused.
    #[inline]
    pub(super) fn is_in_time(&mut self, asker: Asker, parts: usize) -> bool {
        asker.due == Time::NEVER || self.check_due(asker, parts)
    }

    fn check_due(&mut self, asker: Asker, parts: usize) -> bool {
        let Asker { connection: key, due, started: now, .. } = asker;
        let left = due.nanos_since(now);
        let tenant = self.tenant(key);
        if !self.turns.is_full(key) && self.turns.expected_ns(tenant, key, parts) <= left / DEADLINE_SHARE {
            return true;
        }
        let retry_after_ms = self.turns.retry_after_ms(tenant, key);
        let message = format!(
            "the service has more requests than it can do in time, and this one would be late: ask again in \
             {retry_after_ms} ms, or give it more time"
        );
        Counters::count(&self.shared.counters.shed);
        let fault = Fault { retry_after_ms, ..Fault::new(Reason::Overloaded, message) };
        self.answer_fault(asker, &fault, now);
        false
    }

    /// Lets a request wait for the turns of its parts. If as many wait as may, its connection is not read further.
    pub(super) fn wait_for_turn(
        &mut self,
        operation: Operation,
        parts: impl IntoIterator<Item = (usize, PortRequest)>,
    ) {
        let Asker { connection: key, due, started: now, .. } = operation.asker;
        let tenant = self.tenant(key);
        let is_full = self.turns.is_full(key);
        let operation = self.enter(operation);
        self.turns.wait(tenant, key, Waiting::new(operation, due, now, parts.into_iter().map(Some)));
        if is_full {
            self.stall(key, Stalled::Turns);
        }
    }

    /// Lets the next part of an operation wait for its turn, until `due`. What has begun has no deadline any more.
    pub(super) fn wait_for_next(&mut self, at: usize, due: Time, now: Time) {
        let key = self.operations[at].asker.connection;
        self.turns.wait(self.tenant(key), key, Waiting::new(at, due, now, [None]));
    }

    /// Does what a turn is for.
    pub(super) fn take_turn(&mut self, turn: Turn<PortPart>, now: Time) {
        let key = match turn {
            Turn::Part(operation, part) => {
                let key = self.operations[operation].asker.connection;
                match part {
                    Some((part, request)) => self.submit(operation, part, request, now),
                    None => self.submit_next(operation, now),
                }
                key
            }
            Turn::Late(operation) => {
                let Operation { asker, .. } = self.leave(operation);
                self.shed_late(asker, now);
                asker.connection
            }
        };
        // Its last turn at the latest: no line that is empty is full.
        let is_stalled = matches!(self.connections[key].stalled, Some(Stalled::Turns));
        if is_stalled && !self.turns.is_full(key) {
            self.connections[key].stalled = None;
            self.ready.push_back(key);
        }
    }

    /// Returns the tenant that has turns for what a connection asks.
    fn tenant(&self, key: ConnectionKey) -> TenantId {
        self.connections[key].session.as_ref().map_or(TenantId::OPERATOR, Session::tenant)
    }

    /// Refuses a request that has not begun, if its deadline has passed. Returns whether it did. Call it when the request is
    /// taken out of what it waited in.
    pub(super) fn sheds(&mut self, asker: Asker, now: Time) -> bool {
        let is_late = asker.due.is_missed(now);
        if is_late {
            self.shed_late(asker, now);
        }
        is_late
    }

    /// Refuses a request whose deadline has passed. Nothing of it was done, so the client may send it again.
    pub(super) fn shed_late(&mut self, asker: Asker, now: Time) {
        self.answer_fault(asker, &Fault::late(), now);
    }
}
