//! The hello: a new session, or one that continues here.

use std::time::Duration;

use wharf_core::ids::SessionId;
use wharf_core::state::SessionChange;
use wharf_core::time::Time;

use super::input::{Asked, fault_frame, read_body};
use super::{ConnectionKey, ConnectionService, InputEnd, Stalled};
use crate::codec::{Extension, FLAG_REPLY, FrameRef, Header, encode_body, encode_frame};
use crate::protocol::{
    Acknowledged, BODY_VERSION, EXTENSION_ACKNOWLEDGED, Fault, Hello, HelloReply, Kind, Reason, SessionToken,
    VERSION_MAX, VERSION_MIN,
};
use crate::session::shared::{Claim, Resumed};
use crate::session::{Session, is_of_tenant};

/// Time that a peer has from its handshake to the end of its hello.
pub const HELLO_PATIENCE: Duration = Duration::from_secs(10);

/// A hello that was accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Greeting {
    /// The version that both sides speak.
    version: u8,
    /// The peer acknowledges waits individually.
    is_exact: bool,
    /// The session to resume.
    resume: Option<(SessionId, SessionToken)>,
}

/// Returns the fault for a peer that said no hello in time.
pub(crate) fn late_hello() -> Fault {
    let seconds = HELLO_PATIENCE.as_secs();
    let message = format!("no hello came within {seconds} s: connect again and say hello (kind 1) first");
    Fault::new(Reason::HelloExpected, message)
}

fn read_hello(frame: &FrameRef<'_>, now: Time) -> Result<Greeting, Fault> {
    if frame.header.kind != Kind::Hello.number() {
        let message = format!("the first frame has kind {}: say hello (kind 1) first", frame.header.kind);
        return Err(Fault::new(Reason::HelloExpected, message));
    }
    let asked = Asked::new(*frame, VERSION_MIN, now);
    let hello: Hello = read_body(&asked)?;
    let version = hello.version_max.min(VERSION_MAX);
    if version < hello.version_min.max(VERSION_MIN) {
        let message = format!(
            "the client speaks protocol versions {} to {}, this server {VERSION_MIN} to {VERSION_MAX}: use a client of its age",
            hello.version_min, hello.version_max
        );
        return Err(Fault::of_field(Reason::NoCommonVersion, "version_max", message));
    }
    let is_exact = asked.acknowledged.take().is_some();
    let resume = hello.resume.map(|resume| (resume.session.into(), resume.token));
    Ok(Greeting { version, is_exact, resume })
}

impl ConnectionService {
    /// Handles the first frame of a connection.
    pub(super) fn handle_hello(&mut self, key: ConnectionKey, frame: &FrameRef<'_>, now: Time) {
        match read_hello(frame, now) {
            Ok(greeting) => self.greet(key, greeting, now),
            Err(fault) => self.refuse_hello(key, fault),
        }
    }

    /// Opens or resumes the session, or waits until another connection has let it go.
    fn greet(&mut self, key: ConnectionKey, greeting: Greeting, now: Time) {
        if let Err(fault) = self.connections[key].rights.check_kind(Kind::Hello) {
            self.note_denied(key, Kind::Hello, &fault);
            return self.refuse_hello(key, fault);
        }
        let hangup = &self.connections[key].hangup;
        let sessions = &self.shared.sessions;
        let sessions_left = sessions.sessions_left();
        let resumed = match greeting.resume {
            None => {
                let session = sessions.open(self.connections[key].rights.tenant_id(), hangup);
                self.changes.push(SessionChange::Opened(session.id(), session.token()));
                Resumed::Session(session)
            }
            // A peer of another tenant does not learn that the session exists.
            Some((_, token)) if !is_of_tenant(&token, self.connections[key].rights.tenant_id()) => {
                Resumed::Unknown
            }
            Some((id, token)) => {
                sessions.resume(&Claim { id, token, connection: hangup, waker: &self.waker })
            }
        };
        if self.resuming.is_empty() {
            self.sessions_left = sessions_left;
        }
        self.handle_resumed(key, greeting, resumed, now);
    }

    fn handle_resumed(&mut self, key: ConnectionKey, greeting: Greeting, resumed: Resumed, now: Time) {
        let (reason, message) = match resumed {
            Resumed::Session(session) => {
                self.welcome(key, greeting, session);
                return self.resume_waits(key, now);
            }
            Resumed::Attached => {
                self.resuming.push(key);
                return self.stall(key, Stalled::Resume(greeting));
            }
            Resumed::Superseded => {
                (Reason::SessionResumed, "a newer connection resumes this session: go on there".to_owned())
            }
            Resumed::Unknown => {
                let id = greeting.resume.map(|(id, _)| id.to_string()).unwrap_or_default();
                let message = format!(
                    "session {id} cannot be resumed here: it is unknown or forgotten, or the token is not its own; open a new one, and take requests without a reply as undecided"
                );
                (Reason::UnknownSession, message)
            }
        };
        self.refuse_hello(key, Fault::of_field(reason, "resume", message));
    }

    fn welcome(&mut self, key: ConnectionKey, greeting: Greeting, mut session: Session) {
        let limits = self.shared.limits();
        let in_flight_max = limits.in_flight_max;
        let reply = HelloReply {
            version: greeting.version,
            server: self.shared.identity(),
            limits,
            session: session.id().into(),
            token: session.token(),
            resumed: greeting.resume.is_some(),
        };
        let header = Header {
            kind: Kind::Hello.number(),
            flags: FLAG_REPLY,
            version: BODY_VERSION,
            ..Header::default()
        };
        let mut none = Vec::new();
        let mut understood = None;
        encode_body(&Acknowledged::default(), &mut none);
        if greeting.is_exact {
            session.acknowledges_exactly();
            understood = Some(Extension { tag: EXTENSION_ACKNOWLEDGED, bytes: &none });
        }
        let mut frame = Vec::new();
        encode_frame(header, understood.as_slice(), &mut frame, |out| encode_body(&reply, out));
        let connection = &mut self.connections[key];
        connection.session = Some(session);
        connection.version = greeting.version;
        connection.in_flight_max = in_flight_max;
        connection.say(&frame);
        self.touch(key);
    }

    /// Tells the peer why it gets no session, and ends the connection.
    pub(super) fn refuse_hello(&mut self, key: ConnectionKey, fault: Fault) {
        let connection = &mut self.connections[key];
        connection.say(&fault_frame(Kind::Hello.number(), 0, &fault));
        connection.fault = Some(fault);
        connection.is_ending = true;
        self.touch(key);
    }

    /// Handles the end of the input of a connection without a session.
    pub(super) fn leave_before_hello(&mut self, key: ConnectionKey, end: InputEnd) {
        let connection = &mut self.connections[key];
        if connection.is_ending {
            return;
        }
        if let Some(Stalled::Resume(greeting)) = connection.stalled.take() {
            if let Some((id, _)) = greeting.resume {
                self.shared.sessions.withdraw(id, &connection.hangup);
            }
            self.resuming.retain(|&resuming| resuming != key);
        }
        let fault = match end {
            InputEnd::Late => Some(late_hello()),
            InputEnd::Stopping => {
                let message = "the service is shutting down: connect again later";
                Some(Fault::new(Reason::ShuttingDown, message))
            }
            InputEnd::Finished | InputEnd::Lost => connection.input.check_end(end),
        };
        match fault {
            Some(fault) => self.refuse_hello(key, fault),
            // The peer left. Nobody is there to be told.
            None => {
                connection.is_ending = true;
                self.touch(key);
            }
        }
    }

    /// Tries again to resume the sessions that were at other connections.
    pub(super) fn resume_sessions(&mut self, now: Time) {
        self.sessions_left = self.shared.sessions.sessions_left();
        for key in std::mem::take(&mut self.resuming) {
            let connection = &mut self.connections[key];
            let Some(Stalled::Resume(greeting)) = connection.stalled.take() else { continue };
            let Some((id, token)) = greeting.resume else { continue };
            let claim = Claim { id, token, connection: &connection.hangup, waker: &self.waker };
            let resumed = self.shared.sessions.retry(&claim);
            self.handle_resumed(key, greeting, resumed, now);
            self.ready.push_back(key);
        }
    }
}
