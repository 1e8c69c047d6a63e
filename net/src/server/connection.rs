//! One connection: a hello, then request frames in and reply frames out, until either side ends it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use quinn::{Connection, Incoming, SendStream};
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, info};
use wharf_core::group::ClientKey;
use wharf_core::limits::CANDIDATES_IN_FLIGHT_MAX;
use wharf_core::router::WaitEnd;
use wharf_core::time::Time;

use super::closing::close_at_once;
use super::follow::{self, Follow};
use super::io_thread::Io;
use super::reader::{Asked, FrameReader, fault_frame, frame_fault, read_body};
use super::requests::handle_request;
use super::{HELLO_PATIENCE, LAST_BYTES_PATIENCE, ServerShared, wait};
use crate::codec::{
    Extension, FLAG_ERROR, FLAG_REPLY, FrameRef, Header, encode_body, encode_frame, try_encode_frame,
};
use crate::protocol::{
    Acknowledged, BODY_VERSION, CONNECTION_HELD_BYTES_MAX, EXTENSION_ACKNOWLEDGED, Fault, Hello, HelloReply,
    Kind, Reason, SESSION_WAITS_BYTES_MAX, VERSION_MAX, VERSION_MIN,
};
use crate::session::{Admission, Session, Weight};

/// From this number of unwritten replies on, the peer gets no page of changes.
const LONG_REPLIES_MAX: u32 = 8;

/// A waiting request.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitEntry {
    /// The key of its operation.
    pub(super) key: usize,
    /// The client has cancelled the wait. Cancellation remains the outcome even if the connection is lost
    /// before the reply.
    pub(super) is_cancelled: bool,
}

/// The state that the tasks of one connection share.
pub(super) struct ConnectionState {
    session: RefCell<Session>,
    out: RefCell<Vec<u8>>,
    /// Number of replies in `out` or being written.
    unwritten: Cell<u32>,
    /// Bytes of those replies.
    unwritten_bytes: Cell<usize>,
    /// Notified when `out` grows or the reader is done.
    written: Notify,
    /// Notified when replies were written.
    room: Notify,
    in_flight_max: u32,
    /// The reader is done. The writer ends the stream once everything is answered.
    ending: Cell<bool>,
    /// The peer accepts no more replies.
    broken: Cell<bool>,
    /// Waiting requests, by sequence.
    pub(super) waits: RefCell<BTreeMap<u64, WaitEntry>>,
    /// The number of waiting groups.
    groups_waiting: Cell<u32>,
    /// Number of candidates in requests that do not wait, and in those that wait.
    candidates: Cell<[usize; 2]>,
    /// The peer is gone without ending the stream, and may return.
    lost: Cell<bool>,
    /// The follower state, if the connection follows changes.
    pub(super) follow: RefCell<Option<Rc<Follow>>>,
}

impl ConnectionState {
    /// Returns the key by which planners take turns between clients: the session, over all its connections.
    pub(super) fn client(&self) -> ClientKey {
        self.session.borrow().id().number
    }

    /// Answers `sequence` with `body`. Keeps the reply until it is acknowledged, unless the request is
    /// read-only.
    pub(super) fn reply<T: Serialize>(&self, kind: Kind, sequence: u64, body: &T) {
        self.reply_flagged(kind.number(), 0, sequence, body);
    }

    pub(super) fn reply_fault(&self, kind: u16, sequence: u64, fault: &Fault) {
        self.reply_flagged(kind, FLAG_ERROR, sequence, fault);
    }

    fn reply_flagged<T: Serialize>(&self, kind: u16, flags: u8, sequence: u64, body: &T) {
        let flags = flags | FLAG_REPLY;
        let header = Header { kind, flags, version: BODY_VERSION, sequence, ..Header::default() };
        let mut out = self.out.borrow_mut();
        let start = out.len();
        let encoded = try_encode_frame(header, &[], &mut out, |out| encode_body(body, out));
        if let Err(error) = encoded {
            // Lists and batches are cut to fit. Any other reply that is too long becomes a fault instead of a
            // panic.
            let fault = Fault::new(Reason::LimitExceeded, format!("the reply does not fit: {error}"));
            let header = Header { flags: header.flags | FLAG_ERROR, ..header };
            encode_frame(header, &[], &mut out, |out| encode_body(&fault, out));
        }
        let mut session = self.session.borrow_mut();
        if Kind::from_number(kind).is_some_and(Kind::only_looks) {
            session.answer_unkept(sequence);
        } else {
            session.answer(sequence, &out[start..]);
        }
        drop(session);
        self.count_unwritten(out.len() - start);
    }

    /// Counts one more reply of `bytes` bytes to be written.
    fn count_unwritten(&self, bytes: usize) {
        self.unwritten.set(self.unwritten.get() + 1);
        self.unwritten_bytes.set(self.unwritten_bytes.get() + bytes);
        self.written.notify_one();
    }

    /// Sends a frame that is not the outcome of a request of the session, or that is sent again.
    fn say(&self, bytes: &[u8]) {
        self.out.borrow_mut().extend_from_slice(bytes);
        self.count_unwritten(bytes.len());
    }

    /// Ends the wait of a request. `is_taken_back` says that the wait was ended early and has no other
    /// outcome. Returns whether no reply is sent: the lost connection ended the wait, and a returning peer
    /// sends the request again. A wait that its client cancelled, or a group that was removed, gets that as
    /// its outcome.
    pub(super) fn ends_wait(&self, sequence: u64, is_taken_back: bool) -> bool {
        let entry = self.waits.borrow_mut().remove(&sequence);
        let is_cancelled = entry.is_some_and(|entry| entry.is_cancelled);
        let forgotten = self.lost.get() && is_taken_back && !is_cancelled;
        if forgotten {
            self.session.borrow_mut().answer_unkept(sequence);
            self.written.notify_one();
        }
        forgotten
    }

    /// Returns the number of waiting groups.
    pub(super) fn groups_waiting(&self) -> u32 {
        self.groups_waiting.get()
    }

    /// Counts one more waiting group, or one less.
    pub(super) fn counts_group(&self, waits: bool) {
        let count = self.groups_waiting.get();
        self.groups_waiting.set(if waits { count + 1 } else { count - 1 });
    }

    /// Records that a request waits from now on, with the key of its operation.
    pub(super) fn begins_wait(&self, sequence: u64, key: usize) {
        self.waits.borrow_mut().insert(sequence, WaitEntry { key, is_cancelled: false });
        self.session.borrow_mut().wait(sequence);
    }

    /// Returns the number of candidates of waiting requests.
    pub(super) fn candidates_waiting(&self) -> usize {
        self.candidates.get()[1]
    }

    /// Counts the candidates of an operation that begins.
    pub(super) fn holds_candidates(&self, count: usize, waits: bool) {
        let mut held = self.candidates.get();
        held[usize::from(waits)] += count;
        self.candidates.set(held);
    }

    /// Uncounts the candidates of a complete operation.
    pub(super) fn drops_candidates(&self, count: usize, waits: bool) {
        let mut held = self.candidates.get();
        held[usize::from(waits)] -= count;
        self.candidates.set(held);
    }

    /// Waits, before a long reply is built, until the peer has taken all but a few replies.
    pub(super) async fn has_written(&self, io: &Io) {
        while self.unwritten.get() >= LONG_REPLIES_MAX && !self.broken.get() {
            io.port.borrow_mut().flush();
            self.room.notified().await;
        }
    }

    fn is_busy(&self) -> bool {
        let session = self.session.borrow();
        let in_flight = session.in_flight() - self.waits.borrow().len();
        let unanswered = in_flight + self.unwritten.get() as usize;
        let named = self.candidates.get()[0];
        let held = session.under_way_bytes() + self.unwritten_bytes.get();
        let is_full = unanswered >= self.in_flight_max as usize
            || named >= CANDIDATES_IN_FLIGHT_MAX
            || held >= CONNECTION_HELD_BYTES_MAX
            || session.is_full_of_promises();
        !self.broken.get() && is_full
    }

    /// Weighs the request of `sequence` as one whose reply is the status of a group of `bundles` bundles.
    pub(super) fn expects_group(&self, sequence: u64, weight: Weight, bundles: usize) {
        self.session.borrow_mut().weigh(sequence, weight.of_group(bundles));
    }

    /// Checks whether the session's waits leave room for the request of `sequence`.
    pub(super) fn take_wait_room(&self, sequence: u64) -> Result<(), Fault> {
        if self.session.borrow_mut().can_wait(sequence) {
            return Ok(());
        }
        let message = format!(
            "what waits at this session, and the replies that were not acknowledged of what waited, may take \
             {SESSION_WAITS_BYTES_MAX} bytes together: acknowledge replies, cancel some waits, or ask again later"
        );
        Err(Fault::of_field(Reason::LimitExceeded, "mode", message))
    }

    fn is_done(&self) -> bool {
        self.ending.get() && self.session.borrow().in_flight() == 0 && self.out.borrow().is_empty()
    }
}

/// Serves a connection from its handshake to its end.
pub(super) async fn serve_connection(io: Rc<Io>, incoming: Incoming) {
    let peer = incoming.remote_address();
    let connection = match incoming.await {
        Ok(connection) => connection,
        Err(error) => {
            info!(%peer, %error, "a connection did not come about");
            return;
        }
    };
    let counters = &io.shared.counters;
    ServerShared::count(&counters.connections_total);
    ServerShared::count(&counters.connections);
    let code = match open_and_serve(&io, &connection).await {
        Ok(()) => 0,
        Err(refused) => {
            ServerShared::count(&counters.frames_refused);
            info!(%peer, %refused, "a connection was closed for its peer's fault");
            u32::from(refused.reason.0)
        }
    };
    close_at_once(&connection, code, b"");
    // Relaxed: a statistic; nothing depends on its order.
    counters.connections.fetch_sub(1, Ordering::Relaxed);
    debug!(%peer, "connection ended");
}

async fn open_and_serve(io: &Rc<Io>, connection: &Connection) -> Result<(), Fault> {
    let mut shutdown = io.shutdown.clone();
    let deadline = Instant::now() + HELLO_PATIENCE;
    let late = || {
        let seconds = HELLO_PATIENCE.as_secs();
        let message = format!("no hello came within {seconds} s: connect again and say hello (kind 1) first");
        Fault::new(Reason::HelloExpected, message)
    };
    let stream = tokio::select! {
        stream = timeout_at(deadline, connection.accept_bi()) => stream.map_err(|_| late())?,
        _ = shutdown.wait_for(|&stop| stop) => return Ok(()),
    };
    // The peer left before it opened its stream.
    let Ok((mut send, recv)) = stream else { return Ok(()) };
    let mut reader = FrameReader::new(recv);
    let opened = tokio::select! {
        opened = timeout_at(deadline, open_session(io, connection, &mut reader)) => {
            opened.unwrap_or_else(|_| Err(late()))
        }
        _ = shutdown.wait_for(|&stop| stop) => {
            Err(Fault::new(Reason::ShuttingDown, "the service is shutting down: connect again later"))
        }
    };
    let (session, hello) = match opened {
        Ok(Some(opened)) => opened,
        Ok(None) => return Ok(()),
        Err(fault) => {
            let frame = fault_frame(Kind::Hello.number(), 0, &fault);
            end_stream(&mut send, &frame).await;
            return Err(fault);
        }
    };
    serve_session(io, connection, session, &hello, reader, send).await
}

/// Serves an open session until its connection ends.
async fn serve_session(
    io: &Rc<Io>,
    connection: &Connection,
    session: Session,
    (hello, exact): &(HelloReply, bool),
    mut reader: FrameReader,
    mut send: SendStream,
) -> Result<(), Fault> {
    info!(session = %session.id(), peer = %connection.remote_address(), resumed = hello.resumed, "session opened");
    let state = Rc::new(ConnectionState {
        session: RefCell::new(session),
        out: RefCell::new(Vec::new()),
        unwritten: Cell::new(0),
        unwritten_bytes: Cell::new(0),
        written: Notify::new(),
        room: Notify::new(),
        in_flight_max: hello.limits.in_flight_max,
        ending: Cell::new(false),
        broken: Cell::new(false),
        waits: RefCell::new(BTreeMap::new()),
        groups_waiting: Cell::new(0),
        candidates: Cell::new([0; 2]),
        lost: Cell::new(false),
        follow: RefCell::new(None),
    });
    let header =
        Header { kind: Kind::Hello.number(), flags: FLAG_REPLY, version: BODY_VERSION, ..Header::default() };
    let mut frame = Vec::new();
    let mut none = Vec::new();
    let mut understood = None;
    encode_body(&Acknowledged::default(), &mut none);
    if *exact {
        understood = Some(Extension { tag: EXTENSION_ACKNOWLEDGED, bytes: &none });
    }
    encode_frame(header, understood.as_slice(), &mut frame, |out| encode_body(hello, out));
    state.say(&frame);
    let (served, taken) = {
        let reading = async {
            let read = read_frames(io, &state, &mut reader).await;
            if let Err(fault) = &read {
                state.say(&fault_frame(0, 0, fault));
            }
            let stopping = *io.shutdown.borrow();
            state.lost.set(!reader.ended && !stopping);
            let why = if stopping { WaitEnd::Stopped } else { WaitEnd::Cancelled };
            wait::end_all(io, &state, why, io.shared.now());
            follow::end(&state);
            state.ending.set(true);
            state.written.notify_one();
            read
        };
        tokio::join!(reading, write_replies(&state, &mut send))
    };
    // Replies still in progress when the peer is gone are kept for its next connection.
    while state.session.borrow().in_flight() > 0 {
        state.written.notified().await;
    }
    follow::depart(io, &state);
    let session = Session::new(state.session.borrow().id(), [0; 16]);
    let session = state.session.replace(session);
    if reader.ended && served.is_ok() && taken {
        // The peer ended the stream and has every reply, so it will not return.
        io.shared.sessions.close(&session);
    } else {
        io.shared.sessions.detach(session);
    }
    served
}

/// Writes the last bytes. Waits until the peer has them, is gone, or exceeds the time limit.
async fn end_stream(send: &mut SendStream, last: &[u8]) {
    let ending = async {
        if send.write_all(last).await.is_ok() {
            finish(send).await;
        }
    };
    // The peer may also refuse to grant flow-control room for them.
    let _ = timeout(LAST_BYTES_PATIENCE, ending).await;
}

/// Ends a stream. Returns whether the peer took all of it within the time limit.
async fn finish(send: &mut SendStream) -> bool {
    send.finish().is_ok() && matches!(timeout(LAST_BYTES_PATIENCE, send.stopped()).await, Ok(Ok(None)))
}

/// Opens or resumes the session that the peer asks for. Returns it with the hello's reply and whether the
/// peer acknowledges waits individually, or `None` if the peer leaves first.
async fn open_session(
    io: &Io,
    connection: &Connection,
    reader: &mut FrameReader,
) -> Result<Option<(Session, (HelloReply, bool))>, Fault> {
    let (hello, exact): (Hello, bool) = loop {
        match reader.next().map_err(frame_fault)? {
            Some(frame) if frame.header.kind == Kind::Hello.number() => {
                let asked = Asked::new(frame);
                break (read_body(&asked)?, asked.acknowledged.take().is_some());
            }
            Some(frame) => {
                let message =
                    format!("the first frame has kind {}: say hello (kind 1) first", frame.header.kind);
                return Err(Fault::new(Reason::HelloExpected, message));
            }
            None => {}
        }
        if !reader.fill().await {
            return reader.check_end().map(|()| None);
        }
    };
    let version = hello.version_max.min(VERSION_MAX);
    if version < hello.version_min.max(VERSION_MIN) {
        let message = format!(
            "the client speaks protocol versions {} to {}, this server {VERSION_MIN} to {VERSION_MAX}: use a client of its age",
            hello.version_min, hello.version_max
        );
        return Err(Fault::of_field(Reason::NoCommonVersion, "version_max", message));
    }
    let mut session = match hello.resume {
        None => io.shared.sessions.open(connection),
        Some(resume) => {
            let id = resume.session.into();
            io.shared.sessions.resume(id, &resume.token, connection).await.ok_or_else(|| {
                let message = format!(
                    "session {id} cannot be resumed here: it is unknown or forgotten, or the token is not its own; open a new one, and take requests without a reply as undecided"
                );
                Fault::of_field(Reason::UnknownSession, "resume", message)
            })?
        }
    };
    if exact {
        session.acknowledges_exactly();
    }
    let reply = HelloReply {
        version,
        server: io.shared.identity(),
        limits: io.shared.limits(),
        session: session.id().into(),
        token: session.token(),
        resumed: hello.resume.is_some(),
    };
    Ok(Some((session, (reply, exact))))
}

/// Reads frames until the peer ends the stream, the server stops, or a frame is malformed.
async fn read_frames(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    reader: &mut FrameReader,
) -> Result<(), Fault> {
    let mut shutdown = io.shutdown.clone();
    loop {
        let now = io.shared.now();
        while let Some(frame) = reader.next().map_err(frame_fault)? {
            handle_frame(io, state, &frame, now).await;
            while state.is_busy() {
                io.port.borrow_mut().flush();
                state.room.notified().await;
            }
        }
        io.port.borrow_mut().flush();
        let more = tokio::select! {
            biased;
            _ = shutdown.wait_for(|&stop| stop) => false,
            more = reader.fill() => more,
        };
        if !more || state.broken.get() {
            return reader.check_end();
        }
    }
}

async fn handle_frame(io: &Rc<Io>, state: &Rc<ConnectionState>, frame: &FrameRef<'_>, now: Time) {
    let header = frame.header;
    let refuse = |fault: &Fault| {
        ServerShared::count(&io.shared.counters.frames_refused);
        state.say(&fault_frame(header.kind, header.sequence, fault));
    };
    if header.kind == Kind::Hello.number() {
        let fault =
            Fault::new(Reason::SecondHello, "this session is open already: continue it, or connect again");
        return refuse(&fault);
    }
    {
        let mut session = state.session.borrow_mut();
        session.acknowledge(header.lowest_unacknowledged);
        match session.admit(header.sequence) {
            Admission::New => session.weigh(header.sequence, Weight::of(header.kind, frame.bytes)),
            Admission::UnderWay => return,
            Admission::Answered(reply) => {
                return state.say(reply);
            }
            Admission::Stale => {
                drop(session);
                let message = format!(
                    "sequence {} was acknowledged (or is 0): it is not done again; sequences count from 1",
                    header.sequence
                );
                return refuse(&Fault::new(Reason::StaleSequence, message));
            }
            Admission::OutOfWindow => {
                drop(session);
                let message = format!(
                    "sequence {} is too far ahead of what is acknowledged, or the replies kept since are too long: acknowledge replies, then ask again",
                    header.sequence
                );
                return refuse(&Fault::new(Reason::SequenceOutOfWindow, message));
            }
        }
    }
    let asked = Asked::new(*frame);
    let handled = handle_request(io, state, &asked, now).await;
    for sequence in asked.acknowledged.take().iter().flat_map(|acknowledged| &acknowledged.sequences) {
        state.session.borrow_mut().acknowledge_wait(*sequence);
    }
    if let Err(fault) = handled {
        ServerShared::count(&io.shared.counters.frames_refused);
        state.reply_fault(header.kind, header.sequence, &fault);
        if let Some(kind) = Kind::from_number(header.kind) {
            io.observe(kind, fault.reason, io.shared.now().nanos_since(now));
        }
    }
}

/// Writes replies in bulk until the reader is done and everything is answered. Returns whether the peer took
/// all of it.
async fn write_replies(state: &ConnectionState, send: &mut SendStream) -> bool {
    loop {
        let out = std::mem::take(&mut *state.out.borrow_mut());
        if !out.is_empty() {
            let written = state.unwritten.get();
            debug_assert!(written > 0);
            let bytes = out.len();
            let failed = send.write_chunk(out.into()).await.is_err();
            // Count them down only now, since replies that the peer has not taken limit what it may ask.
            state.unwritten.set(state.unwritten.get() - written);
            state.unwritten_bytes.set(state.unwritten_bytes.get() - bytes);
            state.broken.set(failed);
            state.room.notify_one();
            if failed {
                return false;
            }
            continue;
        }
        if state.is_done() {
            return finish(send).await;
        }
        state.written.notified().await;
    }
}
