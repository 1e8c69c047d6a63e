//! Sessions without a connection.

use std::collections::BTreeMap;

use wharf_core::ids::{Incarnation, SessionId, TenantId};
use wharf_core::planted::{PlantedBug, is_planted};
use wharf_core::state::SessionRecord;
use wharf_core::time::Time;

use super::Session;
use crate::limits::DETACHED_SESSIONS_MAX;
use crate::protocol::{DETACHED_KEPT_BYTES_MAX, SessionToken};
use crate::shares::{Most, Shares};

#[derive(Debug)]
struct Detached {
    session: Session,
    /// Its place in the order.
    number: u64,
}

/// Sessions without a connection. They are kept until their clients return, newer sessions evict them, or their time is
/// over.
#[derive(Debug)]
pub struct DetachedSessions {
    incarnation: Incarnation,
    opened: u64,
    sessions: BTreeMap<SessionId, Detached>,
    /// The sessions in the order in which they were detached, and since when they are.
    pub(super) order: BTreeMap<u64, (SessionId, Time)>,
    /// The numbers in the order, with what the sessions keep.
    of_tenants: Shares<TenantId, u64>,
    /// The last number in the order.
    last: u64,
    /// Bytes that the sessions keep.
    pub(super) kept_bytes: usize,
}

impl DetachedSessions {
    /// Creates an empty collection.
    #[must_use]
    pub fn new(incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            opened: 0,
            sessions: BTreeMap::new(),
            order: BTreeMap::new(),
            of_tenants: Shares::default(),
            last: 0,
            kept_bytes: 0,
        }
    }

    /// Opens a new session.
    pub fn open(&mut self, token: SessionToken) -> Session {
        self.opened += 1;
        Session::new(SessionId { incarnation: self.incarnation, number: self.opened }, token)
    }

    /// Keeps a session whose connection is gone. While there are too many or they keep too many bytes, drops the oldest one of
    /// the tenant that has the most of what is too much. Returns those that were dropped.
    ///
    /// # Panics
    /// Panics if the session has requests in progress, since their outcomes would be lost.
    pub fn detach(&mut self, session: Session, now: Time) -> Vec<SessionId> {
        self.restore(session, now);
        let mut dropped = Vec::new();
        loop {
            let most = if self.order.len() > DETACHED_SESSIONS_MAX {
                Most::Keys
            } else if self.kept_bytes > DETACHED_KEPT_BYTES_MAX {
                Most::Bytes
            } else {
                break;
            };
            let Some((_, number)) = self.of_tenants.first_of_most(most) else { break };
            let (oldest, _) = self.order[&number];
            self.take_out(oldest);
            dropped.push(oldest);
        }
        dropped
    }

    /// Keeps a session in any case. A start keeps those of all connections of the start before it.
    ///
    /// # Panics
    /// Panics if the session has requests in progress.
    pub fn restore(&mut self, mut session: Session, now: Time) {
        let id = session.id();
        assert!(session.in_flight() == 0, "session {id} is detached with requests under way");
        session.trim_window();
        self.kept_bytes += session.detached_bytes();
        self.last += 1;
        self.order.insert(self.last, (id, now));
        self.of_tenants.insert(session.tenant(), self.last, session.detached_bytes());
        let before = self.sessions.insert(id, Detached { session, number: self.last });
        assert!(before.is_none(), "session {id} is detached twice");
    }

    /// Drops the sessions that have had no connection since `since` or longer. Returns them.
    pub fn expire(&mut self, since: Time) -> Vec<SessionId> {
        let mut dropped = Vec::new();
        while let Some((_, &(oldest, detached))) = self.order.first_key_value()
            && detached <= since
        {
            self.take_out(oldest);
            dropped.push(oldest);
        }
        dropped
    }

    /// Returns since when the session that was detached first has had no connection.
    #[must_use]
    pub fn oldest(&self) -> Option<Time> {
        self.order.first_key_value().map(|(_, &(_, since))| since)
    }

    /// Returns the records of all sessions, in order of id.
    #[must_use]
    pub fn records(&self) -> Vec<SessionRecord> {
        self.sessions.values().map(|detached| detached.session.record()).collect()
    }

    /// Returns whether a session is kept that can be resumed with `token`.
    #[must_use]
    pub fn has(&self, id: SessionId, token: &SessionToken) -> bool {
        self.sessions.get(&id).is_some_and(|detached| detached.session.token == *token)
    }

    /// Takes a session out to resume it. Returns `None` if it is not kept or the token is wrong.
    pub fn resume(&mut self, id: SessionId, token: &SessionToken) -> Option<Session> {
        if !self.has(id, token) {
            return None;
        }
        let session = self.take_out(id)?;
        if is_planted(PlantedBug::ResumedSessionEmpty) {
            return Some(Session::new(id, session.token));
        }
        Some(session)
    }

    /// Takes a session out. Returns `None` if it is not kept.
    pub fn take_out(&mut self, id: SessionId) -> Option<Session> {
        let Detached { session, number } = self.sessions.remove(&id)?;
        self.order.remove(&number);
        self.kept_bytes -= session.detached_bytes();
        self.of_tenants.remove(session.tenant(), number, session.detached_bytes());
        Some(session)
    }
}
