//! The client of the echo.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use anyhow::Context as _;
use bytes::Bytes;
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::frame::{FrameSizes, Frames, append};
use super::{CHUNKS, endpoint, transport};
use crate::process::Process;
use crate::rpc::arrivals::{Pacer, Schedule};
use crate::rpc::plan::Callers;
use crate::rpc::recorder::{Recorder, Segment, Times};

/// A load of the echo.
pub(in crate::rpc) struct EchoLoad {
    pub(in crate::rpc) connections: usize,
    /// Frames in flight per connection.
    pub(in crate::rpc) in_flight: usize,
    pub(in crate::rpc) callers: Callers,
    /// For an open loop: when frames are to be sent.
    pub(in crate::rpc) schedule: Option<Schedule>,
    /// The requests for which a frame counts.
    pub(in crate::rpc) batch: u64,
    pub(in crate::rpc) sizes: FrameSizes,
    pub(in crate::rpc) times: Times,
}

/// Connects to the echo.
pub(in crate::rpc) struct EchoClient {
    server: SocketAddr,
    process: Process,
    /// All connections share a socket, as those of the load of the service do.
    endpoint: Endpoint,
}

/// A connection and its stream.
struct Link {
    connection: Connection,
    send: SendStream,
    recv: RecvStream,
}

impl EchoClient {
    /// Needs a runtime.
    pub(in crate::rpc) fn new(
        server: SocketAddr,
        certificate: CertificateDer<'static>,
        process: Process,
    ) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate).context("the certificate of the echo cannot be trusted")?;
        let mut config = ClientConfig::with_root_certificates(Arc::new(roots))
            .context("the certificate of the echo cannot be trusted")?;
        config.transport_config(Arc::new(transport()));
        let mut endpoint = endpoint(None)?;
        endpoint.set_default_client_config(config);
        Ok(Self { server, process, endpoint })
    }

    async fn connect(&self) -> anyhow::Result<Link> {
        let connecting = self.endpoint.connect(self.server, "localhost")?;
        let connection = connecting.await.context("the echo does not answer")?;
        let (send, recv) = connection.open_bi().await?;
        Ok(Link { connection, send, recv })
    }

    /// Drives one segment. Needs a local task set.
    pub(in crate::rpc) async fn drive(&self, load: &EchoLoad) -> anyhow::Result<Segment> {
        let mut links = Vec::with_capacity(load.connections);
        for _ in 0..load.connections {
            links.push(self.connect().await?);
        }
        // The load begins when all are connected.
        let recorder = Rc::new(Recorder::new());
        let mut tasks = JoinSet::new();
        let mut connections = Vec::with_capacity(load.connections);
        for (number, link) in links.into_iter().enumerate() {
            connections.push(link.connection.clone());
            let &EchoLoad { sizes, batch, in_flight, .. } = load;
            let caller = EchoCaller { link, sizes, batch, recorder: Rc::clone(&recorder) };
            match (&load.schedule, load.callers) {
                (Some(schedule), _) => {
                    tasks.spawn_local(caller.open(schedule.part(number, load.connections)));
                }
                (None, Callers::Lockstep) => {
                    tasks.spawn_local(caller.lockstep(in_flight));
                }
                (None, Callers::Independent) => {
                    tasks.spawn_local(caller.independent(in_flight));
                }
            }
        }
        let segment = tokio::select! {
            segment = recorder.measure(load.times, self.process) => segment?,
            Some(ended) = tasks.join_next() => {
                ended.context("a task of the floor panicked")??;
                anyhow::bail!("a connection to the echo ended before its load did");
            }
        };
        // What is still in flight is not waited for: an echo keeps nothing.
        connections.iter().for_each(|connection| connection.close(0u8.into(), b"done"));
        tasks.shutdown().await;
        Ok(segment)
    }
}

/// The load of one connection.
struct EchoCaller {
    link: Link,
    sizes: FrameSizes,
    batch: u64,
    recorder: Rc<Recorder>,
}

impl EchoCaller {
    /// One task sends a window of frames, and a new frame for each reply. All that is there is written at once.
    async fn lockstep(self, in_flight: usize) -> anyhow::Result<()> {
        let Self { link: Link { mut send, mut recv, connection: _connection }, sizes, batch, recorder } =
            self;
        let mut chunks: [Bytes; CHUNKS] = std::array::from_fn(|_| Bytes::new());
        let mut frames = Frames::default();
        let mut since = vec![Instant::now(); in_flight];
        let mut free: Vec<usize> = (0..in_flight).collect();
        loop {
            let now = Instant::now();
            let mut out = Vec::with_capacity(free.len() * sizes.request as usize);
            for id in free.drain(..) {
                since[id] = now;
                append(&mut out, sizes.request, sizes.reply, id as u64);
            }
            if !out.is_empty() {
                send.write_chunk(out.into()).await?;
            }
            let count = recv.read_chunks(&mut chunks).await?.context("the echo ended a stream")?;
            let mut batch = recorder.batch(Instant::now(), batch);
            for chunk in &chunks[..count] {
                frames.take(chunk, |id, _| {
                    batch.record(since[id as usize]);
                    free.push(id as usize);
                });
            }
        }
    }

    /// Each caller is a task that waits for its own reply before it sends its next frame.
    async fn independent(self, in_flight: usize) -> anyhow::Result<()> {
        let Self { link: Link { send, recv, connection: _connection }, sizes, batch, recorder } = self;
        let outgoing = Outgoing::new(sizes);
        let places: Rc<RefCell<Vec<Place>>> = Rc::default();
        places.borrow_mut().resize_with(in_flight, Place::default);
        // Ends its tasks when this future is dropped.
        let mut callers = JoinSet::new();
        for id in 0..in_flight {
            let outgoing = Rc::clone(&outgoing);
            let places = Rc::clone(&places);
            let recorder = Rc::clone(&recorder);
            callers.spawn_local(async move {
                loop {
                    let since = Instant::now();
                    outgoing.send(id as u64);
                    std::future::poll_fn(|context| places.borrow_mut()[id].poll(context)).await;
                    recorder.batch(Instant::now(), batch).record(since);
                }
            });
        }
        let answered = |id: u64| places.borrow_mut()[id as usize].answer();
        tokio::try_join!(outgoing.write(send), read(recv, || {}, answered)).map(|_| ())
    }

    /// Frames are sent when they are due, whether earlier ones are answered or not.
    async fn open(self, schedule: Schedule) -> anyhow::Result<()> {
        let Self { link: Link { send, recv, connection: _connection }, sizes, batch, recorder } = self;
        let outgoing = Outgoing::new(sizes);
        let since: RefCell<Vec<Instant>> = RefCell::default();
        let free: RefCell<Vec<usize>> = RefCell::default();
        let mut pacer = Pacer::new(schedule)?;
        let sending = async {
            loop {
                let at = match pacer.arrival().await {
                    Ok(at) => at,
                    Err(error) => return Err::<(), _>(error),
                };
                let id = free.borrow_mut().pop().unwrap_or_else(|| {
                    since.borrow_mut().push(at);
                    since.borrow().len() - 1
                });
                since.borrow_mut()[id] = at;
                outgoing.send(id as u64);
            }
        };
        let now = Cell::new(Instant::now());
        let answered = |id: u64| {
            let id = id as usize;
            recorder.batch(now.get(), batch).record(since.borrow()[id]);
            free.borrow_mut().push(id);
        };
        let reading = read(recv, || now.set(Instant::now()), answered);
        tokio::try_join!(sending, outgoing.write(send), reading).map(|_| ())
    }
}

/// Frames that are to be written to a connection.
struct Outgoing {
    sizes: FrameSizes,
    out: RefCell<Vec<u8>>,
    written: Notify,
}

impl Outgoing {
    fn new(sizes: FrameSizes) -> Rc<Self> {
        Rc::new(Self { sizes, out: RefCell::default(), written: Notify::new() })
    }

    fn send(&self, id: u64) {
        let mut out = self.out.borrow_mut();
        // The writer takes all that is there when it runs.
        let is_first = out.is_empty();
        append(&mut out, self.sizes.request, self.sizes.reply, id);
        if is_first {
            self.written.notify_one();
        }
    }

    async fn write(&self, mut send: SendStream) -> anyhow::Result<()> {
        loop {
            self.written.notified().await;
            let out = std::mem::take(&mut *self.out.borrow_mut());
            self.out.borrow_mut().reserve(out.len());
            send.write_chunk(out.into()).await?;
        }
    }
}

/// Reads replies. Calls `begin` when some came together, and `each` with their ids.
async fn read(
    mut recv: RecvStream,
    mut begin: impl FnMut(),
    mut each: impl FnMut(u64),
) -> anyhow::Result<()> {
    let mut chunks: [Bytes; CHUNKS] = std::array::from_fn(|_| Bytes::new());
    let mut frames = Frames::default();
    loop {
        let count = recv.read_chunks(&mut chunks).await?.context("the echo ended a stream")?;
        begin();
        for chunk in &chunks[..count] {
            frames.take(chunk, |id, _| each(id));
        }
    }
}

/// Where a caller waits for its reply.
#[derive(Default)]
struct Place {
    is_answered: bool,
    waker: Option<Waker>,
}

impl Place {
    fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        if std::mem::take(&mut self.is_answered) {
            return Poll::Ready(());
        }
        self.waker = Some(context.waker().clone());
        Poll::Pending
    }

    fn answer(&mut self) {
        self.is_answered = true;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
