//! The client's connection and the tasks that drive it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn::{Connection, Endpoint, RecvStream, SendStream, TransportConfig, VarInt};
use rustls::pki_types::CertificateDer;
use tokio::sync::{Notify, Semaphore, oneshot};
use wharf_core::link::lock;

use super::ClientError;
use super::error::{connect_message, with_causes};
use super::frames::Frames;
use super::pending::{Completions, Destination, RawReply, deliver};
use super::state::{Answered, State};
use crate::codec::{
    Extension, FLAG_ERROR, Header, decode_body, decode_frame, encode_body, encode_frame, split_extensions,
};
use crate::protocol::{
    ALPN, Acknowledged, BODY_VERSION, Deadline, EXTENSION_ACKNOWLEDGED, FRAME_BYTES_MAX, Fault, Hello,
    HelloReply, Kind, Message, Reason, Resume, VERSION_MAX, VERSION_MIN, VERSION_OF_DEADLINES,
};
use crate::socket;
use crate::tls::{ClientCertificate, client_crypto};

/// Time that a client waits for an answer to a connection attempt. It allows several repetitions of the first
/// packet.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// The pause before the second attempt to connect again. It doubles with each attempt, up to the maximum.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Time after which a silent connection counts as lost. The client sends something every five seconds.
const IDLE_PATIENCE: Duration = Duration::from_secs(15);

/// Time that a closed client waits for the server to end the session.
const FAREWELL_PATIENCE: Duration = Duration::from_secs(1);

/// The configuration of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The server's address.
    pub server: SocketAddr,
    /// The name that the server's certificate must carry.
    pub server_name: String,
    /// Certificates of trusted authorities, or the server's own self-signed one.
    pub roots: Vec<CertificateDer<'static>>,
    /// The client's own certificate, for servers that want one.
    pub certificate: Option<ClientCertificate>,
    /// The client's name, for the server's logs.
    pub name: String,
    /// The time for which the client tries to connect again when its connection is lost. It then resumes the session,
    /// and learns the outcomes of the requests in progress. [`Duration::MAX`]: until it succeeds, or the session is gone.
    pub retry_for: Duration,
}

struct Shared {
    config: ClientConfig,
    hello: HelloReply,
    state: Mutex<State>,
    written: Notify,
    left: Notify,
    in_flight: Semaphore,
    handles: Mutex<usize>,
}

/// A connected client. A clone is another handle to the same connection.
pub struct Client {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    /// The time within which the requests of this handle must be done.
    deadline: Option<Deadline>,
}

impl Clone for Client {
    fn clone(&self) -> Self {
        *lock(&self.shared.handles) += 1;
        Self {
            shared: Arc::clone(&self.shared),
            endpoint: self.endpoint.clone(),
            deadline: self.deadline.clone(),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut handles = lock(&self.shared.handles);
        *handles -= 1;
        if *handles == 0 {
            self.shared
                .state()
                .ended
                .get_or_insert_with(|| ClientError::ConnectionLost("the client was dropped".into()));
            self.shared.written.notify_one();
        }
    }
}

/// A connection and the two halves of its session's stream.
struct Link {
    connection: Connection,
    send: SendStream,
    recv: RecvStream,
}

impl Client {
    /// Connects and opens a session.
    ///
    /// # Errors
    /// Fails if no connection can be made, or the server refuses the hello.
    pub async fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        let endpoint = client_endpoint(&config)?;
        Self::connect_over(endpoint, config).await
    }

    /// Connects to the same server over the same socket, with a session of its own. A socket has large buffers, so this is
    /// for callers that want many sessions.
    ///
    /// # Errors
    /// Same as [`connect`](Self::connect).
    pub async fn connect_another(&self) -> Result<Self, ClientError> {
        Self::connect_over(self.endpoint.clone(), self.shared.config.clone()).await
    }

    async fn connect_over(endpoint: Endpoint, config: ClientConfig) -> Result<Self, ClientError> {
        let (link, hello, exact) = open(&endpoint, &config, None).await?;
        let shared = Arc::new(Shared {
            in_flight: Semaphore::new(hello.limits.in_flight_max.max(1) as usize),
            config,
            hello,
            state: Mutex::new(State::new(exact)),
            written: Notify::new(),
            left: Notify::new(),
            handles: Mutex::new(1),
        });
        tokio::spawn(keep_going(Arc::clone(&shared), endpoint.clone(), link));
        Ok(Self { shared, endpoint, deadline: None })
    }

    /// Returns another handle to the same connection, whose requests must be done within `time` from when the server has
    /// read them. The server refuses with [`Reason::Overloaded`] what would take longer, and tells when to ask again. It
    /// refuses with [`Reason::DeadlineExceeded`] what has not begun by then, whatever its kind, and does not do it. A server
    /// that speaks only version 1 of the protocol knows no deadlines.
    #[must_use]
    pub fn within(&self, time: Duration) -> Self {
        let within = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let is_known = self.shared.hello.version >= VERSION_OF_DEADLINES;
        let mut other = self.clone();
        other.deadline = is_known.then_some(Deadline { within });
        other
    }

    /// Returns the server's reply to the hello.
    #[must_use]
    pub fn hello(&self) -> &HelloReply {
        &self.shared.hello
    }

    /// Closes the connection once every request in progress is answered. Waits for the others over the same socket too.
    pub async fn close(self) {
        let limit = self.shared.hello.limits.in_flight_max.max(1);
        let _ = self.shared.in_flight.acquire_many(limit).await;
        let endpoint = self.endpoint.clone();
        drop(self);
        endpoint.wait_idle().await;
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// Fails with a fault that the server found, or if the connection is lost.
    pub async fn call<M: Message>(&self, request: &M::Request) -> Result<M::Reply, ClientError> {
        let (sender, receiver) = oneshot::channel();
        self.enter::<M>(request, Destination::Future(sender)).await?;
        read_reply::<M>(receiver).await
    }

    /// Sends a request that waits. Returns its sequence, by which it can be [cancelled](Self::cancel_wait), and its
    /// reply. It takes no room from requests that are answered at once.
    ///
    /// # Errors
    /// Fails if the connection is gone.
    pub async fn call_waiting<M: Message>(
        &self,
        request: &M::Request,
    ) -> Result<(u64, impl Future<Output = Result<M::Reply, ClientError>> + use<M>), ClientError> {
        let (sender, receiver) = oneshot::channel();
        let sequence = self.enter::<M>(request, Destination::Waiting(sender)).await?;
        Ok((sequence, read_reply::<M>(receiver)))
    }

    /// Sends a request whose reply goes to `queue` under `tag`. Blocks only while the maximum number of
    /// requests is in progress, or while an old request holds the window back.
    ///
    /// # Errors
    /// Fails if the connection is gone.
    pub async fn submit<M: Message>(
        &self,
        request: &M::Request,
        queue: &Arc<Completions>,
        tag: u64,
    ) -> Result<(), ClientError> {
        self.enter::<M>(request, Destination::Queue(Arc::clone(queue), tag)).await.map(|_| ())
    }

    async fn enter<M: Message>(
        &self,
        request: &M::Request,
        destination: Destination,
    ) -> Result<u64, ClientError> {
        let shared = &*self.shared;
        let ended = |state: &State| state.ended.clone().map_or(Ok(()), Err);
        // As every wait on a runtime, so that a caller who submits in a loop lets its other tasks run now and then.
        tokio::task::coop::consume_budget().await;
        // If this future is dropped before its call is entered, the permit is returned by itself.
        let permit = match destination {
            Destination::Waiting(_) => None,
            // Most often there is room, and then there is nothing to wait for.
            _ => match shared.in_flight.try_acquire() {
                Ok(permit) => Some(permit),
                Err(_) => match shared.in_flight.acquire().await {
                    Ok(permit) => Some(permit),
                    Err(_) => {
                        ended(&shared.state())?;
                        return Err(ClientError::ConnectionLost("the client was closed".into()));
                    }
                },
            },
        };
        loop {
            let left = shared.left.notified();
            {
                let mut state = shared.state();
                ended(&state)?;
                if state.calls.window() < shared.hello.limits.unacknowledged_max as usize {
                    let was_empty = state.out.is_empty();
                    let sequence = state.enter::<M>(request, self.deadline.as_ref(), destination)?;
                    // The reply returns the permit.
                    permit.into_iter().for_each(|permit| permit.forget());
                    drop(state);
                    if was_empty {
                        // Who put the first bytes there wakes the writer, which takes all that is there.
                        shared.written.notify_one();
                    }
                    return Ok(sequence);
                }
            }
            // An old request is still unanswered after thousands of later ones. Wait for it.
            left.await;
        }
    }
}

/// Waits for the reply to a call.
async fn read_reply<M: Message>(reply: oneshot::Receiver<RawReply>) -> Result<M::Reply, ClientError> {
    let closed = |_| ClientError::ConnectionLost("the client was closed".into());
    Ok(M::read_reply(&reply.await.map_err(closed)??)?)
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Ends the client and tells every call in progress why.
    fn end(&self, error: &ClientError) {
        let calls = {
            let mut state = self.state();
            state.ended.get_or_insert_with(|| error.clone());
            state.calls.leave_all()
        };
        self.in_flight.close();
        self.left.notify_waiters();
        deliver(calls.into_iter().map(|call| (call.destination, Err(error.clone()))));
    }

    /// Takes replies that came together, each with its sequence. Locks and wakes once for all of them.
    fn take_replies(&self, replies: &mut Vec<(u64, RawReply)>) {
        if replies.is_empty() {
            return;
        }
        let Answered { calls, permits, is_sent_again } = self.state().take_replies(replies);
        if is_sent_again {
            self.written.notify_one();
        }
        self.in_flight.add_permits(permits);
        self.left.notify_waiters();
        deliver(calls);
    }
}

/// Returns what a frame replies.
///
/// # Errors
/// With a fault of the whole connection, if the frame is no reply, or if a fault cannot be read.
fn read_frame(header: Header, payload: Bytes) -> Result<RawReply, ClientError> {
    header.check_reply()?;
    if header.flags & FLAG_ERROR == 0 {
        return Ok(Ok(payload));
    }
    let fault = ClientError::Fault(decode_body::<Fault>(&payload)?.0);
    // Sequence 0 marks a fault of the whole connection.
    if header.sequence == 0 { Err(fault) } else { Ok(Err(fault)) }
}

fn client_endpoint(config: &ClientConfig) -> Result<Endpoint, ClientError> {
    let setup = |message: String| ClientError::Setup { server: config.server, message };
    let crypto = client_crypto(&config.roots, config.certificate.clone(), ALPN)
        .map_err(|error| setup(error.to_string()))?;
    let mut client = quinn::ClientConfig::new(Arc::new(crypto));
    let mut transport = TransportConfig::default();
    transport.max_concurrent_uni_streams(VarInt::from_u32(0));
    transport.keep_alive_interval(Some(Duration::from_secs(5)));
    transport.max_idle_timeout(Some(IDLE_PATIENCE.try_into().expect("seconds fit")));
    client.transport_config(Arc::new(transport));
    let local: SocketAddr =
        if config.server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = socket::bind(local, false).map_err(|error| setup(error.to_string()))?;
    let runtime = Arc::new(quinn::TokioRuntime);
    let mut endpoint = Endpoint::new(quinn::EndpointConfig::default(), None, socket, runtime)
        .map_err(|error| setup(error.to_string()))?;
    endpoint.set_default_client_config(client);
    Ok(endpoint)
}

/// Connects, opens the stream and sends the hello. The last result is whether the server lets waits be
/// acknowledged individually.
async fn open(
    endpoint: &Endpoint,
    config: &ClientConfig,
    resume: Option<Resume>,
) -> Result<(Link, HelloReply, bool), ClientError> {
    let failed = |message: String| ClientError::Connect { server: config.server, message };
    let connecting = endpoint
        .connect(config.server, &config.server_name)
        .map_err(|error| ClientError::Setup { server: config.server, message: error.to_string() })?;
    let connection = tokio::time::timeout(CONNECT_PATIENCE, connecting)
        .await
        .unwrap_or(Err(quinn::ConnectionError::TimedOut))
        .map_err(|error| failed(connect_message(&error)))?;
    let (mut send, mut recv) = connection.open_bi().await.map_err(|error| failed(connect_message(&error)))?;
    let hello =
        Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, client: config.name.clone(), resume };
    let header = Header { kind: Kind::Hello.number(), version: BODY_VERSION, ..Header::default() };
    let mut frame = Vec::new();
    let mut none = Vec::new();
    encode_body(&Acknowledged::default(), &mut none);
    let exactly = Extension { tag: EXTENSION_ACKNOWLEDGED, bytes: &none };
    encode_frame(header, &[exactly], &mut frame, |out| encode_body(&hello, out));
    // The server judges the client's certificate after the client takes the connection for made. What it says then is
    // the cause of any failure.
    let closed = |error: &dyn std::error::Error| match connection.close_reason() {
        Some(reason) => failed(connect_message(&reason)),
        None => failed(with_causes(error)),
    };
    send.write_all(&frame).await.map_err(|error| closed(&error))?;
    let mut buffer = Vec::new();
    loop {
        if let Some(frame) = decode_frame(&buffer, FRAME_BYTES_MAX)? {
            frame.header.check_reply()?;
            if frame.header.flags & FLAG_ERROR != 0 {
                return Err(ClientError::Fault(decode_body::<Fault>(frame.payload)?.0));
            }
            let (reply, taken) = decode_body::<HelloReply>(frame.payload)?;
            if !(VERSION_MIN..=VERSION_MAX).contains(&reply.version) {
                let message = format!(
                    "the server answered with protocol version {}, and this client speaks {VERSION_MIN} to \
                     {VERSION_MAX}: use a client of its age",
                    reply.version
                );
                return Err(failed(message));
            }
            // A server that does not support the extension does not repeat it.
            let extensions = split_extensions(&frame.header, &frame.payload[taken..]).unwrap_or_default();
            let exact = extensions.iter().any(|extension| extension.tag == EXTENSION_ACKNOWLEDGED);
            return Ok((Link { connection, send, recv }, reply, exact));
        }
        let chunk = recv.read_chunk(usize::MAX, true).await.map_err(|error| closed(&error))?;
        let chunk =
            chunk.ok_or_else(|| failed("the server ended the stream before it answered".to_owned()))?;
        buffer.extend_from_slice(&chunk.bytes);
    }
}

/// Serves the connection. Reconnects when it is lost, as often as configured.
async fn keep_going(shared: Arc<Shared>, endpoint: Endpoint, link: Link) {
    let mut link = link;
    let resume = Resume { session: shared.hello.session, token: shared.hello.token };
    loop {
        let error = serve(&shared, &mut link).await;
        let dropped = shared.state().ended.clone();
        if let Some(ended) = dropped {
            shared.end(&ended);
            // A clean end lets the server forget the session at once.
            let _ = tokio::time::timeout(FAREWELL_PATIENCE, say_farewell(&mut link)).await;
            return link.connection.close(VarInt::from_u32(0), b"done");
        }
        link.connection.close(VarInt::from_u32(0), b"done");
        if !matches!(error, ClientError::ConnectionLost(_)) {
            return shared.end(&error);
        }
        link = match reopen(&shared, &endpoint, resume, error).await {
            Ok(again) => again,
            Err(error) => return shared.end(&error),
        };
        shared.state().send_all_again();
        shared.written.notify_one();
    }
}

/// Ends the stream and waits until the server ends its own. The server has then executed every request.
async fn say_farewell(link: &mut Link) {
    if link.send.finish().is_ok() {
        while let Ok(Some(_)) = link.recv.read_chunk(usize::MAX, true).await {}
    }
}

/// Connects again and resumes the session, for as long as the client may try. `lost` says why the connection is gone.
///
/// # Errors
/// When the time is over, or the session is gone.
async fn reopen(
    shared: &Shared,
    endpoint: &Endpoint,
    resume: Resume,
    lost: ClientError,
) -> Result<Link, ClientError> {
    let since = Instant::now();
    let mut pause = FIRST_RETRY_PAUSE;
    loop {
        let left = shared.config.retry_for.saturating_sub(since.elapsed());
        if left.is_zero() || shared.state().ended.is_some() {
            return Err(lost);
        }
        match open(endpoint, &shared.config, Some(resume)).await {
            Ok((link, ..)) => return Ok(link),
            Err(ClientError::Fault(fault)) if fault.reason == Reason::UnknownSession.into() => {
                return Err(ClientError::SessionGone(fault.message));
            }
            // A service that stops, or that has too many connections, may serve again.
            Err(ClientError::Connect { .. } | ClientError::ConnectionLost(_)) => {}
            Err(ClientError::Fault(fault)) if fault.reason == Reason::ShuttingDown.into() => {}
            Err(other) => return Err(other),
        }
        tokio::time::sleep(pause.min(left)).await;
        pause = (2 * pause).min(LONGEST_RETRY_PAUSE);
    }
}

/// Writes and reads until the connection ends. Returns the cause.
async fn serve(shared: &Shared, link: &mut Link) -> ClientError {
    let Link { send, recv, .. } = link;
    tokio::select! {
        error = write(shared, send) => error,
        error = read(shared, recv) => error,
    }
}

async fn write(shared: &Shared, send: &mut SendStream) -> ClientError {
    loop {
        shared.written.notified().await;
        loop {
            let out = {
                let mut state = shared.state();
                if let Some(ended) = &state.ended {
                    return ended.clone();
                }
                state.take_out()
            };
            if out.is_empty() {
                break;
            }
            if let Err(error) = send.write_chunk(out.into()).await {
                return ClientError::ConnectionLost(with_causes(&error));
            }
        }
    }
}

async fn read(shared: &Shared, recv: &mut RecvStream) -> ClientError {
    let mut frames = Frames::default();
    let mut replies = Vec::new();
    loop {
        let chunk = match recv.read_chunk(usize::MAX, true).await {
            Ok(Some(chunk)) => chunk.bytes,
            Ok(None) => return ClientError::ConnectionLost("the server ended the session".to_owned()),
            Err(error) => return ClientError::ConnectionLost(with_causes(&error)),
        };
        let read = frames.take(chunk, |header, payload| {
            replies.push((header.sequence, read_frame(header, payload)?));
            Ok(())
        });
        // What came before a fault of the connection is answered.
        shared.take_replies(&mut replies);
        if let Err(error) = read {
            return error;
        }
    }
}
