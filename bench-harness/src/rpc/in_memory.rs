//! The requests of one connection without a network: for counting the instructions of a request.
//!
//! The connections, the port and the shards are those of the service. One thread runs them in turns.

use std::sync::Arc;
use std::task::Waker;

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{ShardRunner, Unobserved};
use wharf_core::limits::PARTITIONS_DEFAULT;
use wharf_core::link::Clock;
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

use super::work::{Asked, Bodies, Mix, Work, work_of};
use crate::engine::scenario::Kind as ScenarioKind;
use crate::engine::shapes::Shapes;
use crate::recovery::{NoHangup, counted_tokens};
use crate::target::ReplayClock;

/// The ports, in the order of the wakers given to the engine: of the registrar and of the connections.
const PORTS: usize = 2;

/// The requests in flight while the cluster is filled.
const FILL_IN_FLIGHT: u64 = 256;

/// A service with one connection.
pub struct InMemory {
    runners: Vec<ShardRunner>,
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
}

impl InMemory {
    /// Builds the service. If `is_full`, its cluster is filled as that of `wharf-bench rpc`, and places and releases come in
    /// turns. If not, it is empty, and only placements come.
    ///
    /// # Errors
    /// When the nodes cannot hold what fills them.
    pub fn new(
        nodes: u32,
        policy: Policy,
        shards: u16,
        shapes: &Shapes,
        is_full: bool,
    ) -> anyhow::Result<Self> {
        let scenario = ScenarioKind::Steady.scenario(nodes, policy, shapes, 0);
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
            runners: engine.runners,
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
        while is_full && !in_memory.work.is_full() {
            let before = in_memory.work.allocations();
            in_memory.ask(FILL_IN_FLIGHT)?;
            ensure!(in_memory.work.allocations() > before, "the cluster takes no more: give more nodes");
        }
        in_memory.is_counted = true;
        Ok(in_memory)
    }

    /// Asks `requests` requests, `in_flight` at once, and checks their answers.
    ///
    /// # Errors
    /// When an answer is none that the request may have.
    pub fn run(&mut self, requests: u64, in_flight: u64) -> anyhow::Result<()> {
        (0..requests / in_flight).try_for_each(|_| self.ask(in_flight))
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
        self.connections(|service| service.receive(key, &frames, now));
        self.frames = frames;
        self.frames.clear();
        loop {
            run_shards(&mut self.runners, &self.clock);
            let output = self.connections(|service| {
                service.poll(now);
                while service.take_touched().is_some() {}
                let output = service.take_output(key);
                service.written(key, output.replies, output.bytes.len(), false, now);
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

fn run_shards(runners: &mut [ShardRunner], clock: &ReplayClock) {
    for runner in runners {
        runner.run_batch(clock, &mut Unobserved);
    }
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
