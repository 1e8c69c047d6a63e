//! The client of the echo.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;

use anyhow::Context;
use bytes::Bytes;
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::frame::{FrameSizes, Frames, append};
use super::{CHUNKS, transport};
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
    config: ClientConfig,
}

/// A connection and its stream.
struct Link {
    connection: Connection,
    send: SendStream,
    recv: RecvStream,
}

impl EchoClient {
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
        Ok(Self { server, process, config })
    }

    /// Connects as clients of the service do: each with a socket of its own.
    async fn connect(&self) -> anyhow::Result<Link> {
        let mut endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into())
            .context("a client of the echo has no socket")?;
        endpoint.set_default_client_config(self.config.clone());
        let connection =
            endpoint.connect(self.server, "localhost")?.await.context("the echo does not answer")?;
        let (send, recv) = connection.open_bi().await?;
        Ok(Link { connection, send, recv })
    }

    /// Drives one segment. Needs a local task set.
    pub(in crate::rpc) async fn drive(&self, load: &EchoLoad) -> anyhow::Result<Segment> {
        let recorder = Rc::new(Recorder::new());
        let mut tasks = JoinSet::new();
        let mut connections = Vec::new();
        for number in 0..load.connections {
            let link = self.connect().await?;
            connections.push(link.connection.clone());
            let recorder = Rc::clone(&recorder);
            match (&load.schedule, load.callers) {
                (Some(schedule), _) => {
                    let schedule = schedule.part(number, load.connections);
                    tasks.spawn_local(open(link, load.sizes, load.batch, schedule, recorder));
                }
                (None, Callers::Lockstep) => {
                    tasks.spawn_local(lockstep(link, load.sizes, load.batch, load.in_flight, recorder));
                }
                (None, Callers::Independent) => {
                    tasks.spawn_local(independent(link, load.sizes, load.batch, load.in_flight, recorder));
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

/// One task sends a window of frames, and a new frame for each reply. All that is there is written at once.
async fn lockstep(
    link: Link,
    sizes: FrameSizes,
    batch: u64,
    in_flight: usize,
    recorder: Rc<Recorder>,
) -> anyhow::Result<()> {
    let Link { mut send, mut recv, .. } = link;
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

/// What the tasks of one connection share.
struct Shared {
    out: RefCell<Vec<u8>>,
    written: Notify,
}

impl Shared {
    fn new() -> Rc<Self> {
        Rc::new(Self { out: RefCell::default(), written: Notify::new() })
    }

    fn send(&self, sizes: FrameSizes, id: u64) {
        let mut out = self.out.borrow_mut();
        // The writer takes all that is there when it runs.
        let is_first = out.is_empty();
        append(&mut out, sizes.request, sizes.reply, id);
        if is_first {
            self.written.notify_one();
        }
    }

    async fn write(&self, mut send: SendStream) -> anyhow::Result<()> {
        loop {
            self.written.notified().await;
            let out = std::mem::take(&mut *self.out.borrow_mut());
            let capacity = out.len();
            send.write_chunk(out.into()).await?;
            self.out.borrow_mut().reserve(capacity);
        }
    }
}

/// Reads replies and calls `each` with their ids; `all` after those that came together.
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

/// The place of a caller.
#[derive(Default)]
struct Place {
    answered: bool,
    waker: Option<Waker>,
}

/// Each caller is a task that waits for its own reply before it sends its next frame.
async fn independent(
    link: Link,
    sizes: FrameSizes,
    batch: u64,
    in_flight: usize,
    recorder: Rc<Recorder>,
) -> anyhow::Result<()> {
    let Link { send, recv, connection: _connection } = link;
    let shared = Shared::new();
    let places: Rc<RefCell<Vec<Place>>> = Rc::default();
    places.borrow_mut().resize_with(in_flight, Place::default);
    let mut callers = JoinSet::new();
    for id in 0..in_flight {
        let shared = Rc::clone(&shared);
        let places = Rc::clone(&places);
        let recorder = Rc::clone(&recorder);
        callers.spawn_local(async move {
            loop {
                let since = Instant::now();
                shared.send(sizes, id as u64);
                std::future::poll_fn(|context| {
                    let mut places = places.borrow_mut();
                    let place = &mut places[id];
                    if std::mem::take(&mut place.answered) {
                        return Poll::Ready(());
                    }
                    place.waker = Some(context.waker().clone());
                    Poll::Pending
                })
                .await;
                recorder.batch(Instant::now(), batch).record(since);
            }
        });
    }
    let answered = |id: u64| {
        let place = &mut places.borrow_mut()[id as usize];
        place.answered = true;
        if let Some(waker) = place.waker.take() {
            waker.wake();
        }
    };
    tokio::try_join!(shared.write(send), read(recv, || {}, answered)).map(|_| ())
}

/// Frames are sent when they are due, whether earlier ones are answered or not.
async fn open(
    link: Link,
    sizes: FrameSizes,
    batch: u64,
    schedule: Schedule,
    recorder: Rc<Recorder>,
) -> anyhow::Result<()> {
    let Link { send, recv, connection: _connection } = link;
    let shared = Shared::new();
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
            shared.send(sizes, id as u64);
        }
    };
    let now = std::cell::Cell::new(Instant::now());
    let answered = |id: u64| {
        let id = id as usize;
        recorder.batch(now.get(), batch).record(since.borrow()[id]);
        free.borrow_mut().push(id);
    };
    let reading = read(recv, || now.set(Instant::now()), answered);
    tokio::try_join!(sending, shared.write(send), reading).map(|((), (), ())| ())
}
