//! Where each client session is: at a connection, or kept for its client to come back.
//!
//! A client may come back before the server has learnt that its old connection is gone (a NAT
//! that forgot it, a machine that moved). Whoever has the token is the client: the old
//! connection is closed, and once everything under way there is answered, the session goes on
//! at the new one. Refusing it until a timeout would leave the client without its outcomes.

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
    /// A session left its connection.
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

    /// A new session at `connection`.
    pub(super) fn open(&self, connection: &Connection) -> Session {
        let mut inner = self.lock();
        let session = inner.detached.open(random_token());
        inner.attach(&session, connection);
        session
    }

    /// Takes a session up again at `connection`, away from where it was; `None` when it is
    /// unknown or the token is not its own.
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

    /// Forgets a session whose client ended it and has everything.
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
