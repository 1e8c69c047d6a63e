//! Drives the service through its client, as its users do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use tokio::task::JoinSet;
use wharf_core::link::lock;
use wharf_net::client::{Client, ClientConfig, Completion, Completions};
use wharf_net::codec::{HEADER_BYTES, encode_body};
use wharf_net::protocol::{Message, kinds};

use super::arrivals::{Pacer, Schedule};
use super::floor::FrameSizes;
use super::plan::Callers;
use super::recorder::{Recorder, Segment, Times};
use super::work::{Asked, Bodies, Mix, Work};
use crate::process::Process;

/// The frames from which the sizes of the floor's are taken.
const PROBES: usize = 256;

/// A load of the service.
pub(super) struct ServiceLoad {
    pub(super) in_flight: usize,
    pub(super) mix: Mix,
    pub(super) callers: Callers,
    /// For an open loop: when requests are to be sent.
    pub(super) schedule: Option<Schedule>,
    pub(super) times: Times,
}

/// What all connections of a load share.
#[derive(Clone)]
pub(super) struct Driver {
    pub(super) bodies: Arc<Bodies>,
    pub(super) work: Arc<Mutex<Work>>,
    /// Each connection has a part of the work, so that several threads do not wait for each other.
    pub(super) splits: bool,
    /// Who updates nodes, if the clients of the load may not.
    pub(super) admin: Option<Client>,
}

/// Connects as many clients over these many sockets: one, as the clients of the echo have, or one per thread of the load.
pub(super) async fn connect(
    config: &ClientConfig,
    count: usize,
    sockets: usize,
) -> anyhow::Result<Vec<Client>> {
    let mut clients: Vec<Client> = Vec::with_capacity(count);
    while clients.len() < count {
        clients.push(match clients.len().checked_sub(sockets) {
            None => Client::connect(config.clone()).await?,
            Some(over) => clients[over].connect_another().await?,
        });
    }
    Ok(clients)
}

/// Closes the clients of a load, all at once: each waits until their socket is idle.
pub(super) async fn close(clients: Vec<Client>) -> anyhow::Result<()> {
    let mut closing = JoinSet::new();
    for client in clients {
        closing.spawn(client.close());
    }
    while let Some(closed) = closing.join_next().await {
        closed.context("the close of a client panicked")?;
    }
    Ok(())
}

fn read<M: Message>(raw: &[u8]) -> anyhow::Result<M::Reply> {
    M::read_reply(raw).context("a reply cannot be read")
}

impl Driver {
    /// Drives one segment over these connections.
    pub(super) async fn drive(
        &self,
        clients: &[Client],
        load: &ServiceLoad,
        server: Process,
    ) -> anyhow::Result<Segment> {
        let recorder = Arc::new(Recorder::new());
        let mut tasks = JoinSet::new();
        let parts = if self.splits { lock(&self.work).split(clients.len()) } else { Vec::new() };
        let parts: Vec<_> = parts.into_iter().map(|part| Arc::new(Mutex::new(part))).collect();
        for (number, client) in clients.iter().enumerate() {
            let work = Arc::clone(parts.get(number).unwrap_or(&self.work));
            let each = Caller {
                driver: Self { work, ..self.clone() },
                client: client.clone(),
                recorder: Arc::clone(&recorder),
                mix: load.mix,
            };
            match (&load.schedule, load.callers) {
                (Some(schedule), _) => {
                    tasks.spawn(each.open(schedule.part(number, clients.len())));
                }
                (None, Callers::Lockstep) => {
                    tasks.spawn(each.lockstep(load.in_flight));
                }
                (None, Callers::Independent) => {
                    for _ in 0..load.in_flight {
                        tasks.spawn(each.clone().independent());
                    }
                }
            }
        }
        let measured = recorder.measure(load.times, server);
        tokio::pin!(measured);
        let segment = loop {
            tokio::select! {
                segment = &mut measured => break segment?,
                Some(ended) = tasks.join_next() => ended.context("a task of the load panicked")??,
            }
        };
        // What is in flight is waited for: its answers belong to the books.
        while let Some(ended) = tasks.join_next().await {
            ended.context("a task of the load panicked")??;
        }
        for part in parts {
            let part = Arc::into_inner(part).context("no task of the load is left")?;
            lock(&self.work).join(part.into_inner().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(segment)
    }

    /// Returns the mean sizes of frames, one after the other.
    pub(super) async fn probe(&self, client: &Client, mix: Mix) -> anyhow::Result<FrameSizes> {
        let completions = Arc::default();
        let mut taken = Vec::new();
        let mut requests = 0;
        let mut replies = 0;
        for _ in 0..PROBES {
            let asked = lock(&self.work).next(mix);
            requests += HEADER_BYTES + self.body_bytes(&asked);
            self.submit(client, &asked, &completions, 0).await?;
            completions.take(&mut taken).await;
            let raw = taken.pop().context("a reply was there")?.reply?;
            replies += HEADER_BYTES + raw.len();
            self.answered(&asked, &raw)?;
        }
        Ok(FrameSizes { request: (requests / PROBES) as u32, reply: (replies / PROBES) as u32 })
    }

    fn body_bytes(&self, asked: &Asked) -> usize {
        let bodies = &self.bodies;
        let mut out = Vec::new();
        match asked {
            Asked::Place(request) => encode_body(&bodies.places[*request as usize], &mut out),
            Asked::Release(live) => encode_body(&Bodies::release(live), &mut out),
            Asked::PlaceBatch(requests) => encode_body(&bodies.place_batch(requests), &mut out),
            Asked::ReleaseBatch(live) => encode_body(&Bodies::release_batch(live), &mut out),
            Asked::CreateGroup => encode_body(&bodies.group, &mut out),
            Asked::RemoveGroup(group) => encode_body(&Bodies::remove_group(*group), &mut out),
            Asked::UpdateNode(update) => encode_body(&bodies.update(*update), &mut out),
        }
        out.len()
    }

    pub(super) async fn submit(
        &self,
        client: &Client,
        asked: &Asked,
        queue: &Arc<Completions>,
        tag: u64,
    ) -> anyhow::Result<()> {
        let bodies = &*self.bodies;
        match asked {
            Asked::Place(request) => {
                client.submit::<kinds::Place>(&bodies.places[*request as usize], queue, tag).await
            }
            Asked::Release(live) => client.submit::<kinds::Release>(&Bodies::release(live), queue, tag).await,
            Asked::PlaceBatch(requests) => {
                client.submit::<kinds::PlaceBatch>(&bodies.place_batch(requests), queue, tag).await
            }
            Asked::ReleaseBatch(live) => {
                client.submit::<kinds::ReleaseBatch>(&Bodies::release_batch(live), queue, tag).await
            }
            Asked::CreateGroup => client.submit::<kinds::CreateGroup>(&bodies.group, queue, tag).await,
            Asked::RemoveGroup(group) => {
                client.submit::<kinds::RemoveGroup>(&Bodies::remove_group(*group), queue, tag).await
            }
            Asked::UpdateNode(update) => {
                let client = self.admin.as_ref().unwrap_or(client);
                client.submit::<kinds::UpdateNodes>(&bodies.update(*update), queue, tag).await
            }
        }?;
        Ok(())
    }

    /// Reads the reply to what was asked.
    pub(super) fn answered(&self, asked: &Asked, raw: &[u8]) -> anyhow::Result<()> {
        match asked {
            Asked::Place(request) => {
                let reply = read::<kinds::Place>(raw)?;
                lock(&self.work).placed(*request, &reply)
            }
            Asked::Release(live) => {
                let reply = read::<kinds::Release>(raw)?;
                lock(&self.work).released(live, &reply)
            }
            Asked::PlaceBatch(requests) => {
                let reply = read::<kinds::PlaceBatch>(raw)?;
                lock(&self.work).placed_batch(requests, &reply.replies)
            }
            Asked::ReleaseBatch(live) => {
                let reply = read::<kinds::ReleaseBatch>(raw)?;
                lock(&self.work).released_batch(live, &reply.replies)
            }
            Asked::CreateGroup => lock(&self.work).created(&read::<kinds::CreateGroup>(raw)?),
            Asked::RemoveGroup(_) => lock(&self.work).removed(&read::<kinds::RemoveGroup>(raw)?),
            Asked::UpdateNode(_) => lock(&self.work).updated(&read::<kinds::UpdateNodes>(raw)?),
        }
    }

    /// Asks by the calls of the client, and waits for the reply.
    async fn call(&self, client: &Client, asked: &Asked) -> anyhow::Result<()> {
        let bodies = &*self.bodies;
        match asked {
            Asked::Place(request) => {
                let reply = client.place(&bodies.places[*request as usize]).await?;
                lock(&self.work).placed(*request, &reply)
            }
            Asked::Release(live) => {
                let reply = client.release(Bodies::release(live).allocation).await?;
                lock(&self.work).released(live, &reply)
            }
            Asked::PlaceBatch(requests) => {
                let reply = client.place_batch(&bodies.place_batch(requests)).await?;
                lock(&self.work).placed_batch(requests, &reply.replies)
            }
            Asked::ReleaseBatch(live) => {
                let reply = client.release_batch(&Bodies::release_batch(live)).await?;
                lock(&self.work).released_batch(live, &reply.replies)
            }
            Asked::CreateGroup => {
                let reply = client.create_group(&bodies.group).await?;
                lock(&self.work).created(&reply)
            }
            Asked::RemoveGroup(group) => {
                let reply = client.remove_group(*group).await?;
                lock(&self.work).removed(&reply)
            }
            Asked::UpdateNode(update) => {
                let client = self.admin.as_ref().unwrap_or(client);
                let reply = client.update_nodes(&bodies.update(*update)).await?;
                lock(&self.work).updated(&reply)
            }
        }
    }
}

/// One connection of a load, or one of the callers on it.
#[derive(Clone)]
struct Caller {
    driver: Driver,
    client: Client,
    recorder: Arc<Recorder>,
    mix: Mix,
}

/// Frames in flight by tag, each with the time from which its latency counts.
#[derive(Default)]
pub(super) struct InFlight {
    asked: Vec<Option<(Asked, Instant)>>,
    free: Vec<usize>,
}

impl InFlight {
    pub(super) fn enter(&mut self, asked: Asked, since: Instant) -> u64 {
        let tag = self.free.pop().unwrap_or_else(|| {
            self.asked.push(None);
            self.asked.len() - 1
        });
        self.asked[tag] = Some((asked, since));
        tag as u64
    }

    pub(super) fn leave(&mut self, tag: u64) -> anyhow::Result<(Asked, Instant)> {
        let tag = usize::try_from(tag)?;
        let left = self.asked.get_mut(tag).and_then(Option::take);
        self.free.push(tag);
        left.with_context(|| format!("a reply to {tag}, which is not in flight"))
    }

    pub(super) fn count(&self) -> usize {
        self.asked.len() - self.free.len()
    }
}

impl Caller {
    fn requests(&self) -> u64 {
        match self.mix {
            Mix::Pairs(batch) => batch as u64,
            Mix::Mixed => 1,
        }
    }

    fn next(&self) -> Asked {
        lock(&self.driver.work).next(self.mix)
    }

    /// Waits for its own reply before it asks again.
    async fn independent(self) -> anyhow::Result<()> {
        while !self.recorder.is_over() {
            let asked = self.next();
            let since = Instant::now();
            self.driver.call(&self.client, &asked).await?;
            self.recorder.batch(Instant::now(), self.requests()).record(since);
        }
        Ok(())
    }

    /// Keeps a window of frames in flight.
    async fn lockstep(self, window: usize) -> anyhow::Result<()> {
        let completions = Arc::default();
        let mut taken = Vec::with_capacity(window);
        let mut in_flight = InFlight::default();
        loop {
            if !self.recorder.is_over() {
                let now = Instant::now();
                while in_flight.count() < window {
                    let asked = self.next();
                    let tag = in_flight.enter(asked.clone(), now);
                    self.driver.submit(&self.client, &asked, &completions, tag).await?;
                }
            } else if in_flight.count() == 0 {
                return Ok(());
            }
            completions.take(&mut taken).await;
            self.take(&mut taken, &mut in_flight)?;
        }
    }

    /// Takes replies that came together.
    fn take(&self, taken: &mut Vec<Completion>, in_flight: &mut InFlight) -> anyhow::Result<()> {
        let now = Instant::now();
        let mut sent = Vec::with_capacity(taken.len());
        for Completion { tag, reply } in taken.drain(..) {
            let (asked, since) = in_flight.leave(tag)?;
            self.driver.answered(&asked, &reply?)?;
            sent.push(since);
        }
        let mut batch = self.recorder.batch(now, self.requests());
        sent.into_iter().for_each(|since| batch.record(since));
        Ok(())
    }

    /// Sends requests when they are due, whether earlier ones are answered or not. The connection's limit may hold them up:
    /// their latency counts from when they were due.
    async fn open(self, schedule: Schedule) -> anyhow::Result<()> {
        let completions = Arc::<Completions>::default();
        let in_flight = Mutex::new(InFlight::default());
        let sending = async {
            let mut pacer = Pacer::new(schedule)?;
            loop {
                let due = pacer.arrival().await?;
                if self.recorder.is_over() {
                    return anyhow::Ok(());
                }
                let asked = self.next();
                let tag = lock(&in_flight).enter(asked.clone(), due);
                self.driver.submit(&self.client, &asked, &completions, tag).await?;
            }
        };
        let taking = async {
            let mut taken = Vec::new();
            loop {
                completions.take(&mut taken).await;
                self.take(&mut taken, &mut lock(&in_flight))?;
            }
        };
        tokio::select! {
            sent = sending => sent?,
            failed = taking => return failed,
        }
        let mut taken = Vec::new();
        let mut in_flight = in_flight.into_inner().unwrap_or_else(PoisonError::into_inner);
        while in_flight.count() > 0 {
            completions.take(&mut taken).await;
            self.take(&mut taken, &mut in_flight)?;
        }
        Ok(())
    }
}
