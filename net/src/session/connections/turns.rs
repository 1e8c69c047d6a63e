//! Whose turn it is at the port.
//!
//! A port takes as many requests as the shards do in a short time ([`Port::window`](wharf_core::router::Port::window)).
//! The others wait here, each in the line of its connection:
//!
//! - turns go round over the tenants that wait, and for each tenant round over its connections;
//! - within a connection, the request that is due first has the turn; one without a deadline counts as due
//!   [`LINE_PATIENCE_NS`] after it came;
//! - a turn is for one part, so that a large batch holds up nobody.
//!
//! Lines are bounded ([`Turns::is_full`]). What a turn costs does not depend on how many wait, except for the place of a
//! request in its line: it is found from the end, where it nearly always belongs.

use std::collections::{BTreeMap, VecDeque};

use wharf_core::ids::TenantId;
use wharf_core::time::Time;

use super::ConnectionKey;
use crate::limits::{DRAIN_TURNS, LINE_PATIENCE_NS, LINE_REQUESTS_MAX, LINES_PARTS_MAX, RETRY_AFTER_MS_MAX};

/// A request that waits for its turns, one for each of its parts.
#[derive(Debug)]
pub(super) struct Waiting<P> {
    pub(super) operation: usize,
    /// When a result is of no use any more.
    due: Time,
    /// Its place in the line.
    order: Time,
    first: Option<P>,
    rest: VecDeque<P>,
    has_begun: bool,
}

impl<P> Waiting<P> {
    /// A request that came at `now` and must be done by `due`.
    pub(super) fn new(operation: usize, due: Time, now: Time, parts: impl IntoIterator<Item = P>) -> Self {
        let mut parts = parts.into_iter();
        let order = due.min(now.plus_nanos(LINE_PATIENCE_NS));
        Self { operation, due, order, first: parts.next(), rest: parts.collect(), has_begun: false }
    }

    /// Returns the number of parts that have not had their turn.
    fn parts(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }
}

/// What is done in a turn.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn<P> {
    /// A part is submitted. A unit was taken for it.
    Part(usize, P),
    /// The request of this operation cannot be done in time any more.
    Late(usize),
}

/// The requests of a connection that wait, those that are due first at the front.
#[derive(Debug)]
struct Line<P> {
    tenant: TenantId,
    requests: VecDeque<Waiting<P>>,
    parts: usize,
}

/// How fast turns come while some wait.
#[derive(Debug, Default)]
struct Drain {
    /// When this was looked at last, if some waited then.
    since: Option<Time>,
    /// The turns since then.
    new: u64,
    turns: u64,
    nanos: u64,
}

impl Drain {
    /// Notes whether some wait at `now`. `before_ns` is the time per turn that is known without a measurement.
    fn look(&mut self, now: Time, some_wait: bool, before_ns: u64) {
        let new = std::mem::take(&mut self.new);
        match self.since {
            None => {
                // The first turns alone would say little.
                self.turns = DRAIN_TURNS / 16;
                self.nanos = self.turns.saturating_mul(before_ns);
            }
            Some(since) => {
                self.turns += new;
                self.nanos = self.nanos.saturating_add(now.nanos_since(since));
                if self.turns > DRAIN_TURNS {
                    // The mean stays, with half the weight.
                    self.nanos = self.nanos / self.turns * (DRAIN_TURNS / 2);
                    self.turns = DRAIN_TURNS / 2;
                }
            }
        }
        self.since = some_wait.then_some(now);
    }
}

/// The units of a port, and the requests that wait for them.
#[derive(Debug)]
pub(super) struct Turns<P> {
    whole: usize,
    taken: usize,
    window: usize,
    /// The time from one turn to the next in ns, as the port knows it.
    port_turn_ns: u64,
    /// The parts that wait.
    waiting: usize,
    /// The tenants that wait, in order of their turns, and the connections of each in order of theirs.
    tenants: VecDeque<TenantId>,
    connections: BTreeMap<TenantId, VecDeque<ConnectionKey>>,
    lines: BTreeMap<ConnectionKey, Line<P>>,
    drain: Drain,
}

impl<P> Turns<P> {
    /// Creates turns for `whole` units, all of which may be taken.
    pub(super) fn new(whole: usize) -> Self {
        Self {
            whole,
            taken: 0,
            window: whole,
            port_turn_ns: 0,
            waiting: 0,
            tenants: VecDeque::new(),
            connections: BTreeMap::new(),
            lines: BTreeMap::new(),
            drain: Drain::default(),
        }
    }

    /// Sets how many units should be taken at most, and the time per unit in ns. More units may be taken already.
    pub(super) fn set_window(&mut self, window: usize, turn_ns: u64) {
        self.window = window.clamp(1, self.whole);
        self.port_turn_ns = turn_ns;
    }

    /// Takes `units` if nothing waits and so many are free. Returns whether it did.
    #[inline]
    pub(super) fn take(&mut self, units: usize) -> bool {
        let fits = self.waiting == 0 && self.taken + units <= self.window;
        if fits {
            self.taken += units;
        }
        fits
    }

    pub(super) fn give_back(&mut self, units: usize) {
        self.taken -= units;
    }

    /// Puts a request into the line of its connection.
    pub(super) fn wait(&mut self, tenant: TenantId, key: ConnectionKey, request: Waiting<P>) {
        let parts = request.parts();
        if parts == 0 {
            return;
        }
        self.waiting += parts;
        let line =
            self.lines.entry(key).or_insert_with(|| Line { tenant, requests: VecDeque::new(), parts: 0 });
        line.parts += parts;
        if line.requests.is_empty() {
            let of_tenant = self.connections.entry(line.tenant).or_default();
            if of_tenant.is_empty() {
                self.tenants.push_back(line.tenant);
            }
            of_tenant.push_back(key);
        }
        // A request that has begun stays in front of it.
        let stays = |other: &&Waiting<P>| other.order > request.order && !other.has_begun;
        let behind = line.requests.iter().rev().take_while(stays).count();
        line.requests.insert(line.requests.len() - behind, request);
    }

    /// Returns whether the line of a connection has as much as it may: a number of requests or, if all lines together have
    /// too much, its equal share of that. One that is empty is not full, whatever others have.
    pub(super) fn is_full(&self, key: ConnectionKey) -> bool {
        let Some(line) = self.lines.get(&key) else { return false };
        let has_share = || {
            let (tenants, connections) = self.sharers(line.tenant, key);
            line.parts >= (LINES_PARTS_MAX / tenants / connections).max(1)
        };
        line.requests.len() >= LINE_REQUESTS_MAX || (self.waiting >= LINES_PARTS_MAX && has_share())
    }

    /// Returns the number of tenants that wait, and of the connections of this tenant that do, each with this connection.
    fn sharers(&self, tenant: TenantId, key: ConnectionKey) -> (usize, usize) {
        let tenants = self.tenants.len() + usize::from(!self.connections.contains_key(&tenant));
        let connections = self.connections.get(&tenant).map_or(0, VecDeque::len);
        (tenants, connections + usize::from(!self.lines.contains_key(&key)))
    }

    /// Gives the next turn, if a unit is free and some wait.
    pub(super) fn next(&mut self, now: Time) -> Option<Turn<P>> {
        if self.waiting == 0 || self.taken >= self.window {
            return None;
        }
        let tenant = self.tenants.pop_front().expect("some wait");
        let of_tenant = self.connections.get_mut(&tenant).expect("it waits");
        let key = of_tenant.pop_front().expect("a connection of it waits");
        let line = self.lines.get_mut(&key).expect("it waits");
        let request = line.requests.front_mut().expect("it waits");
        let left = request.parts();
        // A request that has begun goes on: its parts are done or not, each on its own, but it has one reply.
        let is_late = !request.has_begun && request.due.is_missed(now);
        let turn = if is_late {
            self.waiting -= left;
            line.parts -= left;
            Turn::Late(request.operation)
        } else {
            request.has_begun = true;
            let part = request.first.take().expect("a request without parts does not wait");
            request.first = request.rest.pop_front();
            self.waiting -= 1;
            line.parts -= 1;
            self.taken += 1;
            self.drain.new += 1;
            Turn::Part(request.operation, part)
        };
        if is_late || left == 1 {
            line.requests.pop_front();
        }
        // What is late was no turn: the same connection is next.
        if line.requests.is_empty() {
            self.lines.remove(&key);
        } else if is_late {
            of_tenant.push_front(key);
        } else {
            of_tenant.push_back(key);
        }
        if of_tenant.is_empty() {
            self.connections.remove(&tenant);
        } else if is_late {
            self.tenants.push_front(tenant);
        } else {
            self.tenants.push_back(tenant);
        }
        Some(turn)
    }

    /// Measures how fast turns come. Call it after each input.
    #[inline]
    pub(super) fn measure(&mut self, now: Time) {
        if self.waiting > 0 || self.drain.since.is_some() {
            self.drain.look(now, self.waiting > 0, self.port_turn_ns);
        }
    }

    /// Returns the time from one turn to the next, in ns. It is measured while some wait.
    fn turn_ns(&self) -> u64 {
        match self.drain.since {
            Some(_) => self.drain.nanos / self.drain.turns,
            None => self.port_turn_ns,
        }
    }

    /// Returns the time until a new request of `parts` parts is done, in ns, as far as can be known.
    pub(super) fn expected_ns(&self, tenant: TenantId, key: ConnectionKey, parts: usize) -> u64 {
        let line = self.lines.get(&key).map_or(0, |line| line.parts);
        let (tenants, connections) = self.sharers(tenant, key);
        let turns = (line + parts).saturating_mul(connections).saturating_mul(tenants);
        let turns = turns.min(self.waiting + parts) + self.taken;
        self.turn_ns().saturating_mul(turns as u64)
    }

    /// Returns the time in ms after which a connection's requests that wait now have had their turns.
    pub(super) fn retry_after_ms(&self, tenant: TenantId, key: ConnectionKey) -> u32 {
        let ms = self.expected_ns(tenant, key, 0).div_ceil(1_000_000);
        u32::try_from(ms).unwrap_or(u32::MAX).clamp(1, RETRY_AFTER_MS_MAX)
    }

    /// Returns the numbers of units that are free, of all units, and of parts that wait. If nothing is in progress, all
    /// are free and nothing waits.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.whole - self.taken, self.whole, self.waiting)
    }
}

#[cfg(test)]
mod tests;
