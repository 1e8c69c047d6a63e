//! The registry of client sessions: each is attached to a connection, or kept until its client returns.
//!
//! A client may return before the server notices that the old connection is gone, for example after a NAT
//! timeout or a network change. The holder of the token is the client. The server closes the old connection,
//! answers everything in progress there, and then continues the session on the new connection. Refusing it
//! until a timeout would leave the client without its outcomes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use quinn::Connection;
use tokio::sync::Notify;
use wharf_core::ids::{Incarnation, SessionId};

use super::closing::close_at_once;
use crate::protocol::{Reason, SessionToken};
use crate::session::{DetachedSessions, Session};
use crate::tls::random_token;

struct Attached {
    token: SessionToken,
    connection: Connection,
}

struct Inner {
    detached: DetachedSessions,
    attached: BTreeMap<SessionId, Attached>,
}

/// All sessions of a server.
pub(super) struct Sessions {
    inner: Mutex<Inner>,
    /// Notified when a session leaves its connection.
    left: Notify,
}

impl Sessions {
    pub(super) fn new(incarnation: Incarnation) -> Self {
        let inner = Inner { detached: DetachedSessions::new(incarnation), attached: BTreeMap::new() };
        Self { inner: Mutex::new(inner), left: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a new session at `connection`.
    pub(super) fn open(&self, connection: &Connection) -> Session {
        let mut inner = self.lock();
        let session = inner.detached.open(random_token());
        inner.attach(&session, connection);
        session
    }

    /// Resumes a session at `connection` and removes it from its previous connection. Returns `None` if the
    /// session is unknown or the token is wrong.
    pub(super) async fn resume(
        &self,
        id: SessionId,
        token: &SessionToken,
        connection: &Connection,
    ) -> Option<Session> {
        loop {
            let left = self.left.notified();
            {
                let mut inner = self.lock();
                if let Some(session) = inner.detached.resume(id, token) {
                    inner.attach(&session, connection);
                    return Some(session);
                }
                let attached = inner.attached.get(&id).filter(|attached| attached.token == *token)?;
                let code = u32::from(Reason::SessionResumed.number());
                close_at_once(&attached.connection, code, b"the session was resumed on another connection");
            }
            left.await;
        }
    }

    /// Forgets a session that its client ended and whose replies the client has.
    pub(super) fn close(&self, session: &Session) {
        self.lock().attached.remove(&session.id());
        self.left.notify_waiters();
    }

    /// Keeps a session whose connection is gone.
    pub(super) fn detach(&self, session: Session) {
        let mut inner = self.lock();
        inner.attached.remove(&session.id());
        inner.detached.detach(session);
        drop(inner);
        self.left.notify_waiters();
    }
}

impl Inner {
    fn attach(&mut self, session: &Session, connection: &Connection) {
        let attached = Attached { token: session.token(), connection: connection.clone() };
        let before = self.attached.insert(session.id(), attached);
        assert!(before.is_none(), "session {} is at two connections", session.id());
    }
}
