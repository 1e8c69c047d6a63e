//! One connection: its bytes are carried to the [`ConnectionService`] and back, until either side ends it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, Incoming, RecvStream, SendStream};
use rustls::pki_types::CertificateDer;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tracing::{debug, info};

use super::admission::ConnectionRoom;
use super::closing::close_at_once;
use super::handshakes::{Attempt, BegunRoom};
use super::io_thread::{Io, Signals};
use crate::access::Peer;
use crate::limits::CHUNKS_TAKEN_MAX;
use crate::protocol::Fault;
use crate::session::connections::{
    ConnectionKey, ConnectionService, HELLO_PATIENCE, InputEnd, Output, late_hello,
};
use crate::session::shared::{Counters, Hangup};
use crate::tls::names_of;

/// Time that a peer has to receive the last bytes of a stream that the server ended.
const LAST_BYTES_PATIENCE: Duration = Duration::from_secs(5);

/// Closes a connection whose session continues on another one.
struct QuicHangup {
    connection: Connection,
    recalled: Arc<Notify>,
}

impl Hangup for QuicHangup {
    fn hang_up(&self, code: u32, reason: &'static [u8]) {
        close_at_once(&self.connection, code, reason);
        self.recalled.notify_one();
    }
}

/// Recalls a session of an earlier start.
struct RestoredHangup(Arc<Notify>);

impl Hangup for RestoredHangup {
    fn hang_up(&self, _code: u32, _reason: &'static [u8]) {
        self.0.notify_one();
    }
}

/// A connection that is served, and its stream's place at the service.
struct Served {
    io: Rc<Io>,
    key: ConnectionKey,
    signals: Rc<Signals>,
    /// When the hello must be complete.
    hello_until: Instant,
    peer: SocketAddr,
}

/// Counts something in one of the counters until it is dropped.
pub(super) struct Counted {
    io: Rc<Io>,
    counter: fn(&Counters) -> &AtomicU64,
}

impl Counted {
    pub(super) fn new(io: &Rc<Io>, counter: fn(&Counters) -> &AtomicU64) -> Self {
        Counters::count(counter(&io.shared.sessions.counters));
        Self { io: Rc::clone(io), counter }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // Relaxed: a statistic; nothing depends on its order.
        (self.counter)(&self.io.shared.sessions.counters).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves a connection from its handshake to its end.
pub(super) async fn serve_connection(io: Rc<Io>, attempt: Attempt, mut begun: BegunRoom) {
    let Attempt { incoming, room, counted } = attempt;
    let peer = incoming.remote_address();
    let counters = &io.shared.sessions.counters;
    let connection = shake_hands(&io, incoming, &mut begun).await;
    drop((counted, begun));
    let Some(connection) = connection else { return };
    Counters::count(&counters.connections_total);
    let code = match open_and_serve(&io, &connection, room).await {
        None => 0,
        Some(refused) => {
            Counters::count(&counters.frames_refused);
            if let Some(left_out) = io.shared.peer_faults.admit() {
                info!(%peer, %refused, left_out, "a connection was closed for its peer's fault");
            }
            u32::from(refused.reason.0)
        }
    };
    close_at_once(&connection, code, b"");
    debug!(%peer, "connection ended");
}

/// Completes the handshake of a connection. Returns `None` if it fails, takes too long, or the service stops.
async fn shake_hands(io: &Io, incoming: Incoming, begun: &mut BegunRoom) -> Option<Connection> {
    let peer = incoming.remote_address();
    let mut shutdown = io.shutdown.clone();
    // The idle timeout of QUIC begins again with every packet. It alone would let a peer hold a handshake for ever.
    let error = tokio::select! {
        ended = timeout(io.patience.handshake, incoming) => match ended {
            Ok(Ok(connection)) => return Some(connection),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the handshake took too long".to_owned(),
        },
        () = begun.given_up() => "the handshake took long, and another one needed its room".to_owned(),
        _ = shutdown.wait_for(|&stop| stop) => return None,
    };
    if let Some(left_out) = io.shared.peer_faults.admit() {
        info!(%peer, error, left_out, "a connection did not come about");
    }
    None
}

/// Serves the stream of a connection. Returns the peer's fault for which it ended.
async fn open_and_serve(io: &Rc<Io>, connection: &Connection, room: ConnectionRoom) -> Option<Fault> {
    let counted = Counted::new(io, |counters| &counters.connections);
    let mut shutdown = io.shutdown.clone();
    let hello_until = Instant::now() + HELLO_PATIENCE;
    let stream = tokio::select! {
        stream = timeout_at(hello_until, connection.accept_bi()) => stream,
        _ = shutdown.wait_for(|&stop| stop) => return None,
    };
    let (send, recv) = match stream {
        Ok(Ok(stream)) => stream,
        // The peer left before it opened its stream.
        Ok(Err(_)) => return None,
        Err(_) => return Some(late_hello()),
    };
    let recalled = Arc::new(Notify::new());
    let hangup = Arc::new(QuicHangup { connection: connection.clone(), recalled: Arc::clone(&recalled) });
    let peer = connection.remote_address();
    let known = Peer { names: names_in(connection), address: peer.to_string() };
    let (key, signals) = io.open(|service| service.open(hangup, known));
    tokio::task::spawn_local(tell_loss(connection.clone(), Rc::clone(&signals)));
    let served = Served { io: Rc::clone(io), key, signals, hello_until, peer };
    let carried = async { tokio::join!(served.write(send), served.read(recv)).0 };
    let took_all = tokio::select! {
        took_all = carried => took_all,
        never = recall(io, key, &recalled) => match never {},
    };
    drop((counted, room));
    // Replies still in progress when the peer is gone are kept for its next connection.
    tokio::select! {
        () = settle(io, key, &served.signals) => {}
        never = recall(io, key, &recalled) => match never {},
    }
    let fault = io.with(|service, now| service.close(key, took_all, now));
    io.forget(key);
    fault
}

/// Tells the tasks of a connection when it is lost. The reader may not read, because enough is under way, and the writer may wait
/// for replies that are long in coming.
async fn tell_loss(connection: Connection, signals: Rc<Signals>) {
    connection.closed().await;
    signals.is_lost.set(true);
    signals.reader.notify_one();
    signals.writer.notify_one();
}

/// Returns the names in the certificate that the peer has shown, if it has shown any.
fn names_in(connection: &Connection) -> Vec<String> {
    let shown =
        connection.peer_identity().and_then(|shown| shown.downcast::<Vec<CertificateDer<'static>>>().ok());
    shown.and_then(|chain| chain.first().map(names_of)).unwrap_or_default()
}

/// Opens connections without a peer for sessions of the last start whose requests wait. Returns a future for each, which
/// serves it until its end.
pub(super) fn open_restored(io: &Rc<Io>) -> Vec<impl Future<Output = ()> + 'static> {
    let mut restored = Vec::new();
    loop {
        let recalled = Arc::new(Notify::new());
        let hangup: Arc<dyn Hangup> = Arc::new(RestoredHangup(Arc::clone(&recalled)));
        let Some(opened) = io.open_restored(&hangup) else { return restored };
        let io = Rc::clone(io);
        restored.push(async move {
            let (key, signals) = opened;
            tokio::select! {
                () = settle(&io, key, &signals) => {}
                never = recall(&io, key, &recalled) => match never {},
            }
            io.with(|service, now| service.close(key, false, now));
            io.forget(key);
        });
    }
}

/// Waits until nothing of a connection without a peer is in progress. Drops its replies: its session keeps them.
async fn settle(io: &Io, key: ConnectionKey, signals: &Signals) {
    loop {
        let Output { bytes, replies } = io.take_output(key);
        if !bytes.is_empty() {
            io.with(|service, now| service.written(key, replies, bytes.len(), true, now));
        }
        if io.look(|service| service.is_settled(key)) {
            return;
        }
        signals.writer.notified().await;
    }
}

/// Recalls a connection when another connection wants its session, and when the service stops.
async fn recall(io: &Io, key: ConnectionKey, recalled: &Notify) -> Infallible {
    let mut shutdown = io.shutdown.clone();
    let mut is_stopping = false;
    loop {
        tokio::select! {
            () = recalled.notified() => {}
            _ = shutdown.wait_for(|&stop| stop), if !is_stopping => is_stopping = true,
        }
        io.with(|service, now| service.recall(key, now));
    }
}

impl Served {
    fn look<T>(&self, look: impl FnOnce(&ConnectionService, ConnectionKey) -> T) -> T {
        self.io.look(|service| look(service, self.key))
    }

    /// Carries bytes to the service until either side ends the input.
    async fn read(&self, mut recv: RecvStream) {
        let mut shutdown = self.io.shutdown.clone();
        let mut was_open = false;
        // The frame that has begun, and when it must be complete.
        let mut begun: Option<(u64, Instant)> = None;
        let mut chunks = [const { Bytes::new() }; CHUNKS_TAKEN_MAX];
        while !self.look(ConnectionService::is_input_over) {
            let is_open = self.look(ConnectionService::is_open);
            if is_open && !was_open {
                was_open = true;
                let session = self.look(ConnectionService::session_id).expect("it is open");
                info!(%session, peer = %self.peer, "session opened");
            }
            let wants_input = self.look(ConnectionService::wants_input);
            self.signals.is_paused.set(!wants_input);
            let frame = if wants_input { self.look(ConnectionService::begun_frame) } else { None };
            if frame != begun.map(|(frame, _)| frame) {
                begun = frame.map(|frame| (frame, Instant::now() + self.io.patience.stream));
            }
            let (until, late) = if is_open {
                (begun.map(|(_, until)| until), InputEnd::Lost)
            } else {
                (Some(self.hello_until), InputEnd::Late)
            };
            let end = tokio::select! {
                biased;
                _ = shutdown.wait_for(|&stop| stop) => Some(InputEnd::Stopping),
                taken = recv.read_chunks(&mut chunks), if wants_input => match taken {
                    Ok(Some(count)) => {
                        let taken = &chunks[..count];
                        self.io.with(|service, now| service.receive_chunks(self.key, taken, now));
                        // What was read is not kept while the peer is silent.
                        chunks[..count].fill(Bytes::new());
                        None
                    }
                    Ok(None) => Some(InputEnd::Finished),
                    Err(_) => Some(InputEnd::Lost),
                },
                // After the read: a timer is only made where there is nothing to read.
                () = sleep_until(until.unwrap_or(self.hello_until)), if until.is_some() => Some(late),
                () = self.signals.reader.notified() => self.signals.is_lost.get().then_some(InputEnd::Lost),
            };
            if let Some(end) = end {
                self.io.with(|service, now| service.end_input(self.key, end, now));
            }
        }
    }

    /// Carries replies to the peer until everything is answered or the connection is lost. Returns whether the peer took
    /// all of it.
    async fn write(&self, mut send: SendStream) -> bool {
        loop {
            let output = self.io.take_output(self.key);
            if output.bytes.is_empty() {
                if self.look(ConnectionService::is_done) {
                    return finish(&mut send).await;
                }
                if self.signals.is_lost.get() {
                    return false;
                }
                self.signals.writer.notified().await;
                continue;
            }
            let bytes = output.bytes.len();
            let replies = self.io.buffers.written(output.bytes);
            let failed = if self.look(ConnectionService::is_open) {
                !write_within(&mut send, replies, self.io.patience.stream).await
            } else {
                // A peer without a session may also refuse to grant flow-control room for its fault.
                !matches!(timeout(LAST_BYTES_PATIENCE, send.write_chunk(replies)).await, Ok(Ok(())))
            };
            self.io.with(|service, now| service.written(self.key, output.replies, bytes, failed, now));
            if failed {
                return false;
            }
        }
    }
}

/// Writes bytes. Returns whether the peer took all of them, and some within each such time.
async fn write_within(send: &mut SendStream, mut bytes: Bytes, patience: Duration) -> bool {
    while !bytes.is_empty() {
        let is_written = tokio::select! {
            biased;
            written = send.write_chunks(std::slice::from_mut(&mut bytes)) => written.is_ok(),
            // Only who has to wait looks at the clock.
            () = async { sleep(patience).await } => false,
        };
        if !is_written {
            return false;
        }
    }
    true
}

/// Ends a stream. Returns whether the peer took all of it within the time limit.
async fn finish(send: &mut SendStream) -> bool {
    send.finish().is_ok() && matches!(timeout(LAST_BYTES_PATIENCE, send.stopped()).await, Ok(Ok(None)))
}
