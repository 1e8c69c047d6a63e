//! Tests of sessions that move between connections.

use std::sync::atomic::AtomicBool;

use super::*;

#[derive(Default)]
struct Wire {
    is_closed: AtomicBool,
}

impl Hangup for Wire {
    fn hang_up(&self, code: u32, _reason: &'static [u8]) {
        assert_eq!(code, u32::from(Reason::SessionResumed.number()));
        // Relaxed: one thread uses it.
        self.is_closed.store(true, Ordering::Relaxed);
    }
}

/// A connection, as the sessions know it, and as the test does.
struct Peer {
    wire: Arc<Wire>,
    hangup: Arc<dyn Hangup>,
}

impl Peer {
    fn new() -> Self {
        let wire = Arc::new(Wire::default());
        Self { hangup: Arc::clone(&wire) as Arc<dyn Hangup>, wire }
    }

    fn is_closed(&self) -> bool {
        // Relaxed: see `hang_up`.
        self.wire.is_closed.load(Ordering::Relaxed)
    }
}

/// Three connections, the first of which has the session.
struct Bed {
    sessions: Sessions,
    peers: [Peer; 3],
    session: Option<Session>,
    id: SessionId,
    token: SessionToken,
}

impl Bed {
    fn new() -> Self {
        let sessions = Sessions::new(Incarnation(1), Box::new(|| [7; 16]));
        let peers = [(); 3].map(|()| Peer::new());
        let session = sessions.open(TenantId::OPERATOR, &peers[0].hangup);
        let id = session.id();
        let token = session.token();
        Self { sessions, peers, session: Some(session), id, token }
    }

    fn detach(&mut self) {
        let session = self.session.take().expect("it has left no connection yet");
        assert_eq!(self.sessions.detach(session, Time::default()), []);
    }

    fn resume(&self, peer: usize) -> Resumed {
        self.sessions.resume(&self.claim(peer))
    }

    fn claim(&self, peer: usize) -> Claim<'_> {
        let connection = &self.peers[peer].hangup;
        Claim { id: self.id, token: self.token, connection, waker: Waker::noop() }
    }

    fn retry(&self, peer: usize) -> Resumed {
        self.sessions.retry(&self.claim(peer))
    }
}

#[test]
fn the_newest_connection_gets_the_session() {
    let mut bed = Bed::new();
    assert!(matches!(bed.resume(1), Resumed::Attached) && bed.peers[0].is_closed());
    assert!(matches!(bed.resume(2), Resumed::Attached) && bed.peers[1].is_closed());
    assert!(matches!(bed.retry(2), Resumed::Attached));

    bed.detach();
    assert!(matches!(bed.retry(1), Resumed::Superseded));
    assert!(matches!(bed.retry(2), Resumed::Session(_)) && !bed.peers[2].is_closed());
    assert!(matches!(bed.retry(1), Resumed::Superseded) && !bed.peers[2].is_closed());
}

#[test]
fn a_connection_that_came_first_and_waits_is_closed_when_a_newer_one_resumes() {
    let mut bed = Bed::new();
    assert!(matches!(bed.resume(1), Resumed::Attached));
    bed.detach();
    assert!(matches!(bed.resume(2), Resumed::Session(_)) && bed.peers[1].is_closed());
    assert!(matches!(bed.retry(1), Resumed::Superseded) && !bed.peers[2].is_closed());
}

#[test]
fn a_connection_that_withdraws_is_not_closed_and_gets_nothing() {
    let mut bed = Bed::new();
    assert!(matches!(bed.resume(1), Resumed::Attached));
    bed.sessions.withdraw(bed.id, &bed.peers[2].hangup);
    assert!(matches!(bed.retry(1), Resumed::Attached));
    bed.sessions.withdraw(bed.id, &bed.peers[1].hangup);
    assert!(matches!(bed.retry(1), Resumed::Superseded));
    bed.detach();
    assert!(matches!(bed.resume(2), Resumed::Session(_)));
    assert!(!bed.peers[1].is_closed());
}

#[test]
fn a_session_that_its_client_ended_or_another_token_is_unknown() {
    let bed = Bed::new();
    let wrong = bed.sessions.resume(&Claim { token: [8; 16], ..bed.claim(1) });
    assert!(matches!(wrong, Resumed::Unknown));
    assert!(!bed.peers[0].is_closed());
    assert!(matches!(bed.resume(1), Resumed::Attached));
    bed.sessions.close(bed.session.as_ref().expect("it is attached"));
    assert!(matches!(bed.retry(1), Resumed::Unknown));
    assert!(matches!(bed.resume(2), Resumed::Unknown));
}
