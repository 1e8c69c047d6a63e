//! The engine in this process: N shards on their own threads, driven through one port like an I/O thread of
//! the service does.
//!
//! Nodes are added through a second port, the registrar's, so that the drivers' ports carry only the load.
//! With one shard, orders are executed in the order of submission, regardless of the number in flight.

use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{ShardRunner, Unobserved};
use wharf_core::fragmentation::TypicalShapes;
use wharf_core::ids::NodeId;
use wharf_core::limits::{NODES_PER_MESSAGE_MAX, PORT_IN_FLIGHT_MAX};
use wharf_core::link::{Clock, ThreadWaker};
use wharf_core::map::FixedMap;
use wharf_core::node::NodeSpec;
use wharf_core::resource::ResourceKind;
use wharf_core::router::{NotPlaced, Port, PortReply, PortRequest};
use wharf_core::shard::{Command, NodeChange, Outcome, ShardStatus};
use wharf_core::state::StoreState;
use wharf_core::time::Time;

use super::{Answer, BookSum, Books, Granted, Order, ReplayClock, Reply, Target, TargetError};

/// Polls before the driver sleeps. A shard answers within microseconds, and sleeping costs more than that.
const SPIN_LOOKS: u32 = 200;
/// The interval at which a sleeping driver checks that its shards still run.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// The configuration of the engine.
#[derive(Clone, Debug)]
pub struct EngineTargetConfig {
    /// The number of shards, each on its own thread.
    pub shards: u16,
    /// Seed of routing and of the Random policy.
    pub seed: u64,
    /// The source of the current time.
    pub clock: ReplayClock,
    /// Typical requests of the fragmentation-aware policies. If `None`, they are learned from arriving
    /// requests.
    pub typical_shapes: Option<Arc<TypicalShapes>>,
    /// Whether each shard is pinned to the core of its number.
    pub pin: bool,
}

/// The indexes of the registrar's port and the driver's port, in the order of the wakers given to the engine.
const REGISTRAR: usize = 0;
const DRIVER: usize = 1;

/// The engine in this process.
pub struct EngineTarget {
    clock: ReplayClock,
    shards: u16,
    pin: bool,
    /// The engine without its runners, which are on their threads.
    engine: Engine,
    threads: Vec<JoinHandle<()>>,
    /// The index of each node in the order of registration.
    nodes: FixedMap<NodeId, usize>,
    /// Replies that needed no shard.
    ready: Vec<Reply>,
    /// Not `Send`: the doorbells wake the thread that opened the engine, so the target must stay there.
    _thread: PhantomData<Rc<()>>,
}

impl EngineTarget {
    /// Opens an engine over an empty store and starts its shards. This thread drives it.
    ///
    /// # Errors
    /// When the number of shards is out of range, or a thread cannot be started.
    pub fn open(config: &EngineTargetConfig) -> Result<Self, TargetError> {
        let waker = Arc::new(ThreadWaker::default());
        Self::open_for(config, &waker, std::slice::from_ref(&waker))
    }

    /// Opens an engine over an empty store, with a port for each of `drivers`, and starts its shards. `own` wakes this
    /// thread.
    ///
    /// # Errors
    /// When the number of shards or drivers is out of range, or a thread cannot be started.
    pub(crate) fn open_for(
        config: &EngineTargetConfig,
        own: &Arc<ThreadWaker>,
        drivers: &[Arc<ThreadWaker>],
    ) -> Result<Self, TargetError> {
        own.set_current();
        let owners = std::iter::once(own).chain(drivers);
        let owners = owners.map(|waker| Waker::from(Arc::clone(waker))).collect();
        let typical_shapes = config.typical_shapes.clone();
        let engine_config = EngineConfig {
            shards: config.shards,
            seed: config.seed,
            typical_shapes,
            ..EngineConfig::default()
        };
        let mut engine = Engine::open(StoreState::default(), &engine_config, owners)?;
        let runners = std::mem::take(&mut engine.runners);
        let mut target = Self {
            clock: config.clock.clone(),
            shards: config.shards,
            pin: config.pin,
            engine,
            threads: Vec::new(),
            nodes: FixedMap::default(),
            ready: Vec::new(),
            _thread: PhantomData,
        };
        for runner in runners {
            target.start(runner)?;
        }
        Ok(target)
    }

    fn start(&mut self, runner: ShardRunner) -> Result<(), TargetError> {
        let shard = runner.id().0;
        let clock = self.clock.clone();
        let core = self.pin.then_some(usize::from(shard));
        let thread = std::thread::Builder::new().name(format!("wharf-shard-{shard}")).spawn(move || {
            pin(core);
            runner.run(&clock, &mut Unobserved);
        });
        self.threads.push(thread.map_err(|source| TargetError::Thread { shard, source })?);
        Ok(())
    }

    /// Takes the ports of the drivers out, for other threads. Nothing can be submitted here afterwards.
    pub(crate) fn take_drivers(&mut self) -> Vec<Port> {
        self.engine.ports.split_off(DRIVER)
    }

    /// Waits until the port is not idle.
    fn park(&mut self, port: usize) -> Result<(), TargetError> {
        let port = &mut self.engine.ports[port];
        for _ in 0..SPIN_LOOKS {
            if !port.is_idle() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let bell = Arc::clone(port.bell());
        while bell.sleep_if(|| port.is_idle()) {
            std::thread::park_timeout(WATCH_INTERVAL);
            // A shard thread that ends before it is told to has panicked.
            if port.is_idle() && self.threads.iter().any(JoinHandle::is_finished) {
                return Err(TargetError::ShardStopped);
            }
        }
        Ok(())
    }

    /// Submits `requests` at a port. Returns the replies in any order.
    fn ask(&mut self, port: usize, requests: Vec<PortRequest>) -> Result<Vec<PortReply>, TargetError> {
        let now = self.clock.now();
        let mut replies = Vec::new();
        for request in requests {
            let submitted = self.engine.ports[port].submit(0, request, now);
            replies.extend(submitted.map_err(|_| TargetError::NoRoom)?);
        }
        self.engine.ports[port].flush();
        while self.engine.ports[port].pending() > 0 {
            self.park(port)?;
            self.engine.ports[port].poll(now, |_, reply| replies.push(reply));
            // Flush again, because an answer may lead to a request for the next page.
            self.engine.ports[port].flush();
        }
        Ok(replies)
    }

    fn register_batch(&mut self, nodes: &[NodeSpec]) -> Result<(), TargetError> {
        let mut requests = Vec::with_capacity(nodes.len());
        for spec in nodes {
            let registration = self.engine.registrar.register(spec.clone())?;
            let index = self.nodes.len();
            self.nodes.insert(registration.id, index);
            let partition = registration.partition;
            requests.push(PortRequest::Partition(partition, Command::AddNode(Box::new(registration))));
        }
        // Published first, so that everyone who sees a placement finds its node in the catalog.
        let catalog = self.engine.registrar.catalog();
        self.engine.catalog.store(Arc::new(catalog));
        for reply in self.ask(REGISTRAR, requests)? {
            match reply {
                PortReply::One(Outcome::Node(Ok(NodeChange::Added(_)))) => {}
                other => return Err(TargetError::Rejected(format!("a node was answered by {other:?}"))),
            }
        }
        Ok(())
    }
}

impl Target for EngineTarget {
    fn transport(&self) -> &'static str {
        "in-process"
    }

    fn shards(&self) -> u16 {
        self.shards
    }

    fn in_flight_max(&self) -> usize {
        PORT_IN_FLIGHT_MAX
    }

    fn register(&mut self, nodes: &[NodeSpec]) -> Result<(), TargetError> {
        nodes.chunks(NODES_PER_MESSAGE_MAX).try_for_each(|batch| self.register_batch(batch))
    }

    fn set_now(&mut self, now: Time) {
        self.clock.set(now);
    }

    fn submit(&mut self, tag: u64, order: Order) -> Result<(), TargetError> {
        let request = match order {
            Order::Place(request) => PortRequest::Place(request),
            Order::Release(allocation) => PortRequest::Release(allocation),
        };
        let now = self.clock.now();
        let at_once = self.engine.ports[DRIVER].submit(tag, request, now);
        if let Some(reply) = at_once.map_err(|_| TargetError::NoRoom)? {
            self.ready.push(Reply { tag, answer: answer(&reply, &self.nodes)? });
        }
        Ok(())
    }

    fn wait(&mut self, replies: &mut Vec<Reply>) -> Result<(), TargetError> {
        let before = replies.len();
        replies.append(&mut self.ready);
        self.engine.ports[DRIVER].flush();
        // A refusal may spill to another shard; there is no reply yet then.
        while replies.len() == before && self.engine.ports[DRIVER].pending() > 0 {
            self.park(DRIVER)?;
            let now = self.clock.now();
            let mut wrong = None;
            let nodes = &self.nodes;
            let port = &mut self.engine.ports[DRIVER];
            port.poll(now, |tag, reply| match answer(&reply, nodes) {
                Ok(answer) => replies.push(Reply { tag, answer }),
                Err(error) => wrong = Some(error),
            });
            port.flush();
            if let Some(error) = wrong {
                return Err(error);
            }
        }
        Ok(())
    }

    fn spilled(&self) -> Option<u64> {
        Some(self.engine.ports[DRIVER].spillbacks())
    }

    fn audit(&mut self) -> Result<Books, TargetError> {
        let mut books = Books::default();
        let request = PortRequest::Every(Command::Audit { number: 0 });
        for reply in self.ask(REGISTRAR, vec![request])? {
            let PortReply::Every(outcomes) = reply else {
                return Err(TargetError::Rejected(format!("a status was answered by {reply:?}")));
            };
            for outcome in outcomes {
                match outcome {
                    Outcome::Status(status) if status.audit.is_some() => books.add(&status),
                    other => {
                        return Err(TargetError::Rejected(format!("an audit was answered by {other:?}")));
                    }
                }
            }
        }
        Ok(books)
    }
}

impl Books {
    /// Adds the books of one shard.
    pub fn add(&mut self, status: &ShardStatus) {
        self.nodes += u64::from(status.nodes_ready) + u64::from(status.nodes_draining);
        self.allocations += status.allocations;
        for (kind, sum) in &status.resources {
            let book: &mut BookSum = match kind {
                ResourceKind::Cpu => &mut self.cpu,
                ResourceKind::Memory => &mut self.memory,
                ResourceKind::Gpu => &mut self.gpu,
                ResourceKind::Custom(_) => continue,
            };
            book.capacity += sum.total;
            book.allocated += sum.allocated;
        }
    }
}

/// Pins the calling thread to the core of this number, if it is there.
pub(crate) fn pin(core: Option<usize>) {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(core) = core.and_then(|core| cores.get(core)) {
        core_affinity::set_for_current(*core);
    }
}

fn answer(reply: &PortReply, nodes: &FixedMap<NodeId, usize>) -> Result<Answer, TargetError> {
    match reply {
        PortReply::Place(Ok(placement)) => {
            let node = nodes.get(&placement.node).ok_or_else(|| {
                TargetError::Rejected(format!("a placement on node {}, which is not ours", placement.node))
            })?;
            let allocation = placement.allocation;
            let gpus = placement.gpus;
            Ok(Answer::Placed(Granted { node: *node, allocation, gpus }))
        }
        PortReply::Place(Err(NotPlaced { ended: None, verdict, .. })) => Ok(Answer::Refused(*verdict)),
        PortReply::One(Outcome::Release(Ok(_))) => Ok(Answer::Released),
        PortReply::One(Outcome::Release(Err(unknown))) => Err(TargetError::Rejected(unknown.to_string())),
        other => Err(TargetError::Rejected(format!("an order was answered by {other:?}"))),
    }
}

impl Drop for EngineTarget {
    fn drop(&mut self) {
        self.engine.stop.stop();
        for thread in self.threads.drain(..) {
            // A shard that panicked has printed its message, and `wait` has reported it to the driver.
            let _ = thread.join();
        }
    }
}
