//! The requests of one connection without a network: for counting the instructions of a request.
//!
//! The connections, the port and the shards are those of the service. One thread runs them in turns. A shard runs if its
//! bell was rung, and then falls asleep, as its thread would.

use std::sync::Arc;
use std::task::Waker;

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{ShardRunner, Unobserved};
use wharf_core::limits::PARTITIONS_DEFAULT;
use wharf_core::link::{Clock, Doorbell};
use wharf_core::node::NodeSpec;
use wharf_core::request::Policy;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{Command, NodeChange, Outcome};
use wharf_core::state::StoreState;
use wharf_net::access::Peer;
use wharf_net::codec::{FLAG_ERROR, Header, decode_body, decode_frame, encode_body, encode_frame};
use wharf_net::protocol::{BODY_VERSION, FRAME_BYTES_MAX, Hello, Kind, VERSION_MAX, VERSION_MIN};
use wharf_net::session::connections::{ConnectionKey, ConnectionService, Unobserved as NoObserver};
use wharf_net::session::shared::{SessionShared, Settings};

use super::cold::{ColdCache, touch_stack};
use super::work::{Asked, Bodies, Mix, Work, work_of};
use crate::engine::scenario::Kind as ScenarioKind;
use crate::engine::shapes::Shapes;
use crate::recovery::{NoHangup, counted_tokens};
use crate::target::ReplayClock;

/// The ports, in the order of the wakers given to the engine: of the registrar and of the connections.
const PORTS: usize = 2;

/// The requests in flight while the cluster is filled.
const FILL_IN_FLIGHT: u64 = 256;

/// The placements per shard that a [cold](Cluster::Cold) cluster holds.
const COLD_PLACEMENTS: u64 = 48;

/// The placements per shard that are made and released before those that are counted, so that memory has grown by then.
const COLD_WARM_UP: u64 = 16;

/// The cluster of the service, and what is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cluster {
    /// Filled as that of `wharf-bench rpc`. Places and releases come in turns.
    Full,
    /// Empty. Only placements come.
    Empty,
    /// As full with any number of shards: each holds some placements. Only placements are counted. Each is released again, so
    /// that the cluster stays as it is. None has a selector: the first one at a shard reads all nodes there. A counted
    /// placement begins with an empty cache, if the cache is a simulated one of 1,024 lines in one set: then its misses are
    /// the distinct lines that are touched. The thread of the connections falls asleep after each, as that of the service
    /// does.
    Cold,
}

impl std::str::FromStr for Cluster {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "full" => Ok(Self::Full),
            "empty" => Ok(Self::Empty),
            "cold" => Ok(Self::Cold),
            other => bail!("{other} is no cluster: give full, empty or cold"),
        }
    }
}

/// A service with one connection.
pub struct InMemory {
    runners: Vec<ShardRunner>,
    /// The bells of the shards: to see who was woken, nothing of a shard itself has to be read.
    bells: Vec<Arc<Doorbell>>,
    /// The commands that shards took.
    commands: u64,
    service: ConnectionService,
    key: ConnectionKey,
    clock: ReplayClock,
    bodies: Bodies,
    work: Work,
    /// The requests in flight, in order of sequence.
    asked: Vec<Asked>,
    next_sequence: u64,
    frames: Vec<u8>,
    replies: Vec<u8>,
    /// The cluster is filled, and what follows is counted.
    is_counted: bool,
    /// Set if a counted exchange begins with an empty cache.
    cold: Option<ColdCache>,
    /// The thread of the connections falls asleep after each exchange.
    falls_asleep: bool,
}

impl InMemory {
    /// Builds the service.
    ///
    /// # Errors
    /// When the nodes cannot hold what fills them.
    pub fn new(
        nodes: u32,
        policy: Policy,
        shards: u16,
        shapes: &Shapes,
        cluster: Cluster,
    ) -> anyhow::Result<Self> {
        let mut scenario = ScenarioKind::Steady.scenario(nodes, policy, shapes, 0);
        if cluster == Cluster::Cold {
            scenario.requests.iter_mut().for_each(|request| request.selector = None);
        }
        let (bodies, work) = work_of(&scenario, 0);
        let config = EngineConfig { shards, ..EngineConfig::default() };
        let owners = vec![Waker::noop().clone(); PORTS];
        let mut engine = Engine::open(StoreState::create(PARTITIONS_DEFAULT), &config, owners)?;
        let clock = ReplayClock::virtual_time();
        add_nodes(&mut engine, &clock, scenario.nodes)?;
        let port = engine.ports.pop().context("one port per owner")?;
        let shared = SessionShared::new([1; 16], engine.incarnation, Settings::default(), counted_tokens());
        let waker = Waker::noop().clone();
        let mut service = ConnectionService::new(port, Arc::new(shared), Box::new(NoObserver), waker);
        let key = service.open(Arc::new(NoHangup), Peer::default());
        let mut in_memory = Self {
            bells: engine.runners.iter().map(|runner| Arc::clone(runner.bell())).collect(),
            runners: engine.runners,
            commands: 0,
            service,
            key,
            clock,
            bodies,
            work,
            asked: Vec::new(),
            next_sequence: 0,
            frames: Vec::new(),
            replies: Vec::new(),
            is_counted: false,
            cold: None,
            falls_asleep: cluster == Cluster::Cold,
        };
        let hello = Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            client: "wharf-bench".to_owned(),
            resume: None,
        };
        in_memory.add(Kind::Hello, &hello);
        in_memory.exchange();
        in_memory.replies.clear();
        while cluster == Cluster::Full && !in_memory.work.is_full() {
            let before = in_memory.work.allocations();
            in_memory.ask(FILL_IN_FLIGHT)?;
            ensure!(in_memory.work.allocations() > before, "the cluster takes no more: give more nodes");
        }
        if cluster == Cluster::Cold {
            let shards = u64::from(shards);
            in_memory.run(COLD_PLACEMENTS * shards, 1)?;
            for _ in 0..COLD_WARM_UP * shards {
                in_memory.ask(1)?;
                in_memory.take_back()?;
            }
            in_memory.cold = Some(ColdCache::new());
        }
        in_memory.is_counted = true;
        in_memory.commands = 0;
        Ok(in_memory)
    }

    /// Returns the number of commands that shards took for counted requests.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.commands
    }

    /// Returns the number of counted requests that were not granted.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.work.refused
    }

    /// Asks `requests` requests, `in_flight` at once, and checks their answers.
    ///
    /// # Errors
    /// When an answer is none that the request may have.
    pub fn run(&mut self, requests: u64, in_flight: u64) -> anyhow::Result<()> {
        (0..requests / in_flight).try_for_each(|_| {
            self.ask(in_flight)?;
            if self.cold.is_some() { self.take_back() } else { Ok(()) }
        })
    }

    /// Releases the newest placement, and counts nothing.
    fn take_back(&mut self) -> anyhow::Result<()> {
        let Some(live) = self.work.take_newest() else { return Ok(()) };
        let first = self.next_sequence;
        self.add(Kind::Release, &Bodies::release(&live));
        self.asked.push(Asked::Release(live));
        let is_counted = std::mem::replace(&mut self.is_counted, false);
        self.exchange();
        self.is_counted = is_counted;
        self.check(first)
    }

    fn ask(&mut self, in_flight: u64) -> anyhow::Result<()> {
        let first = self.next_sequence;
        for _ in 0..in_flight {
            let asked = self.work.next(Mix::Pairs(1));
            match &asked {
                Asked::Place(at) => {
                    let body = self.bodies.places[*at as usize].clone();
                    self.add(Kind::Place, &body);
                }
                Asked::Release(live) => self.add(Kind::Release, &Bodies::release(live)),
                other => bail!("{other:?} is no place or release"),
            }
            self.asked.push(asked);
        }
        self.exchange();
        self.check(first)
    }

    fn add(&mut self, kind: Kind, body: &impl Serialize) {
        // All requests before those in flight are acknowledged.
        let lowest_unacknowledged = self.next_sequence - self.asked.len() as u64;
        let header = Header {
            kind: kind.number(),
            flags: 0,
            version: BODY_VERSION,
            sequence: self.next_sequence,
            lowest_unacknowledged,
        };
        self.next_sequence += 1;
        encode_frame(header, &[], &mut self.frames, |out| encode_body(body, out));
    }

    /// Lets the service answer all frames.
    fn exchange(&mut self) {
        let now = self.clock.now();
        let key = self.key;
        let frames = std::mem::take(&mut self.frames);
        let falls_asleep = self.falls_asleep;
        if let Some(cache) = self.cold.as_ref().filter(|_| self.is_counted) {
            cache.empty();
            touch_stack();
        }
        self.connections(|service| service.receive(key, &frames, now));
        self.frames = frames;
        self.frames.clear();
        loop {
            self.run_woken_shards();
            let output = self.connections(|service| {
                service.poll(now);
                while service.take_touched().is_some() {}
                let output = service.take_output(key);
                service.written(key, output.replies, output.bytes.len(), false, now);
                if falls_asleep {
                    service.poll(now);
                    service.try_sleep();
                }
                output
            });
            self.replies.extend(output.bytes);
            if self.service.is_open(self.key) && self.service.in_flight(self.key) == 0 {
                return;
            }
        }
    }

    /// Runs a part of the thread of connections.
    fn connections<T>(&mut self, part: impl FnOnce(&mut ConnectionService) -> T) -> T {
        if self.is_counted { counted_connections(&mut self.service, part) } else { part(&mut self.service) }
    }

    /// Runs the shards whose bells were rung, until they fall asleep.
    fn run_woken_shards(&mut self) {
        for (runner, bell) in self.runners.iter_mut().zip(&self.bells) {
            while !bell.is_asleep() {
                if self.is_counted {
                    self.commands += counted_shard(runner, &self.clock);
                } else {
                    run_shard(runner, &self.clock);
                }
            }
        }
    }

    /// Checks the replies to the requests from sequence `first` on.
    fn check(&mut self, first: u64) -> anyhow::Result<()> {
        let replies = std::mem::take(&mut self.replies);
        let mut asked: Vec<Option<Asked>> = self.asked.drain(..).map(Some).collect();
        let mut rest = &replies[..];
        while let Some(frame) = decode_frame(rest, FRAME_BYTES_MAX)? {
            rest = &rest[frame.bytes..];
            let Header { flags, sequence, .. } = frame.header;
            ensure!(flags & FLAG_ERROR == 0, "request {sequence} was answered by a fault");
            let asked = sequence.checked_sub(first).and_then(|at| asked.get_mut(at as usize)?.take());
            match asked.context("a reply without its request")? {
                Asked::Place(request) => self.work.placed(request, &decode_body(frame.payload)?.0)?,
                Asked::Release(live) => self.work.released(&live, &decode_body(frame.payload)?.0)?,
                other => bail!("{other:?} was not asked"),
            }
        }
        let unanswered = asked.iter().flatten().count();
        ensure!(unanswered == 0, "{unanswered} requests were not answered");
        Ok(())
    }
}

/// It has a name, so that a profiler can count it alone.
#[inline(never)]
fn counted_connections<T>(
    service: &mut ConnectionService,
    part: impl FnOnce(&mut ConnectionService) -> T,
) -> T {
    part(service)
}

/// Runs a shard, and lets it fall asleep if there is no more to do. Returns the number of commands.
fn run_shard(runner: &mut ShardRunner, clock: &ReplayClock) -> u64 {
    let commands = runner.run_batch(clock, &mut Unobserved);
    runner.fall_asleep();
    commands as u64
}

/// It has a name, so that a profiler can count it alone.
#[inline(never)]
fn counted_shard(runner: &mut ShardRunner, clock: &ReplayClock) -> u64 {
    run_shard(runner, clock)
}

/// Adds nodes, as the registrar does.
fn add_nodes(engine: &mut Engine, clock: &ReplayClock, nodes: Vec<NodeSpec>) -> anyhow::Result<()> {
    let now = clock.now();
    for spec in nodes {
        let registration = engine.registrar.register(spec)?;
        engine.catalog.store(Arc::new(engine.registrar.catalog()));
        let partition = registration.partition;
        let request = PortRequest::Partition(partition, Command::AddNode(Box::new(registration)));
        engine.ports[0].submit(0, request, now).ok().context("the port has room for a node")?;
        engine.ports[0].flush();
        engine.runners.iter_mut().for_each(|runner| {
            runner.run_batch(clock, &mut Unobserved);
        });
        let mut added = false;
        engine.ports[0].poll(now, |_, reply| {
            added = matches!(reply, PortReply::One(Outcome::Node(Ok(NodeChange::Added(_)))));
        });
        ensure!(added, "a node was not added");
    }
    Ok(())
}
