//! A small service that runs by hand, and followers of its events.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use tempfile::TempDir;
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::Unobserved;
use wharf_core::group::{BundlePlace, GroupSpec, Strategy};
use wharf_core::ids::{AllocationId, BundleId, GroupId, NodeId, OwnerId, StatementId, TenantId};
use wharf_core::journal::{Changes, Unit};
use wharf_core::link::{Clock, Doorbell};
use wharf_core::node::{Labels, LifeEvent, NodeRegistration, NodeSpec, Taints};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuAssignment, GpuRequest};
use wharf_core::rng::Rng;
use wharf_core::router::{Port, PortReply, PortRequest};
use wharf_core::shard::{Adoption, Command, NodeChange, Outcome, Reserve};
use wharf_core::state::{GroupBundleRecord, GroupRecord, StoreState};
use wharf_core::statement::{
    Allocate, CommitMode, ConflictDetection, Evict, Granted, Operation, Part, Pipeline,
};
use wharf_core::time::Time;
use wharf_net::client::EventBooks;
use wharf_net::protocol::Reason;
use wharf_net::session::events::{EventFollowerKey, EventMailbox, EventSource, EventsAnswer, EventsAsked};

use super::expected::{assert_books, expected};
use crate::journal::{
    Checkpointer, Durability, EventReader, EventsInbox, JournalWriter, Log, Recent, Store, Written,
};

pub(super) const PARTITIONS: u16 = 4;
const SHARDS: u16 = 2;

pub(super) struct ManualClock(Cell<u64>);

impl Clock for ManualClock {
    fn now(&self) -> Time {
        self.0.set(self.0.get() + 1);
        Time(self.0.get())
    }
}

/// A follower that applies what it reads.
pub(super) struct Reader {
    pub(super) next: u64,
    pub(super) books: EventBooks,
    pub(super) number: usize,
    /// Events since it began.
    pub(super) read: u64,
}

/// A running service.
pub(super) struct Service {
    pub(super) store: Arc<Store>,
    engine: Engine,
    checkpoints: Checkpointer,
    pub(super) writer: JournalWriter<Log>,
    pub(super) reader: EventReader,
    pub(super) inbox: EventsInbox,
    pub(super) recent: Arc<Recent>,
    clock: ManualClock,
    groups: BTreeMap<GroupId, GroupRecord>,
    nodes: Vec<NodeRegistration>,
    pub(super) live: Vec<(AllocationId, NodeId)>,
    bundles: Vec<AllocationId>,
    statements: u64,
    /// Where the newest checkpoint begins.
    needed_from: u64,
}

/// Starts over the store in a directory. Returns the state that it recovered.
pub(super) fn start(directory: &TempDir, kept_bytes: u64) -> (Service, StoreState) {
    let (mut store, state) = Store::open(directory.path(), PARTITIONS, Durability::Os).unwrap();
    let config = EngineConfig { shards: SHARDS, journal: true, ..EngineConfig::default() };
    let globals = state.globals();
    let mut engine = Engine::open(state.clone(), &config, vec![Waker::noop().clone(); 2]).unwrap();
    let feed = engine.journal.take().unwrap();
    store.record_undone(&feed, engine.now);
    let (log, last, heads) = store.begin(engine.incarnation, &globals).unwrap().unwrap();
    let bell = Arc::new(Doorbell::new(Waker::noop().clone()));
    let kinds = Arc::new(crate::journal::row::kinds_of(&globals.registrar).unwrap());
    let begun = store.events();
    let recent = Arc::new(Recent::new(last, begun.before, Arc::clone(&kinds), Arc::clone(&bell)));
    let reader = EventReader::new(log.reader(), Arc::clone(&recent), &begun);
    let inbox = EventsInbox::new(Arc::clone(&recent), bell);
    let epoch = u64::from(engine.incarnation.0);
    let writer = JournalWriter::new(feed, log, (epoch, last), heads, kinds);
    let writer = writer.with_events(&begun, Arc::clone(&recent), kept_bytes);
    let checkpoints = Checkpointer::new(engine.ports.pop().unwrap(), globals);
    let partitions = || state.partitions.iter();
    let nodes = partitions().flat_map(|partition| &partition.nodes).map(|node| node.registration.clone());
    let live = partitions().flat_map(|partition| &partition.allocations).map(|own| (own.id, own.node));
    let service = Service {
        store: Arc::new(store),
        checkpoints,
        writer,
        reader,
        inbox,
        recent,
        clock: ManualClock(Cell::new(engine.now.0)),
        groups: state.groups.iter().map(|group| (group.id, group.clone())).collect(),
        nodes: nodes.collect(),
        live: live.collect(),
        bundles: partitions().flat_map(|partition| &partition.bundles).map(|own| own.allocation).collect(),
        statements: 0,
        needed_from: 0,
        engine,
    };
    (service, state)
}

pub(super) fn cores(cpu: u32, gpus: u8) -> Demand {
    let gpu = if gpus == 0 { GpuRequest::None } else { GpuRequest::Whole(gpus) };
    Demand { cpu: Amount::whole(cpu), gpu, ..Demand::default() }
}

impl Service {
    /// Runs the shards until they have nothing to do. Returns the replies at the port.
    fn settle(&mut self) -> Vec<PortReply> {
        let mut replies = Vec::new();
        let Self { engine, clock, .. } = self;
        engine.ports.iter_mut().for_each(Port::flush);
        loop {
            let ran: usize =
                engine.runners.iter_mut().map(|runner| runner.run_batch(clock, &mut Unobserved)).sum();
            let polled = engine.ports[0].poll(clock.now(), |_, reply| replies.push(reply));
            engine.ports[0].flush();
            if ran + polled == 0 {
                return replies;
            }
        }
    }

    pub(super) fn ask(&mut self, request: PortRequest) -> PortReply {
        let now = self.clock.now();
        let direct = self.engine.ports[0].submit(7, request, now).unwrap();
        let mut replies: Vec<PortReply> = direct.into_iter().collect();
        replies.extend(self.settle());
        assert_eq!(replies.len(), 1, "{replies:?}");
        replies.remove(0)
    }

    fn command(&mut self, node: &NodeRegistration, command: Command) -> PortReply {
        self.ask(PortRequest::Partition(node.partition, command))
    }

    pub(super) fn add_node(&mut self, number: u64, rng: &mut Rng) {
        // The registrar records a kind before anybody uses it.
        let kind = format!("kind-{}", number % 7);
        let kind = self.engine.registrar.resources_mut().learn(&kind).unwrap();
        let kinds = self.engine.registrar.kinds();
        self.put(kinds);
        let spec = NodeSpec {
            name: format!("node-{number}").into(),
            identity: (rng.below(2) == 0).then(|| format!("machine-{number}").into()),
            cpu: Amount::whole(16),
            memory: Amount::whole(1 << 16),
            gpus: 4,
            custom: Demand::canonical_custom(vec![(kind, Amount::whole(5))]).unwrap(),
            labels: Labels::new(vec![("zone".into(), format!("z{}", number % 3).into())]).unwrap(),
            taints: Taints::default(),
        };
        let registration = self.engine.registrar.register(spec).unwrap();
        self.engine.catalog.store(Arc::new(self.engine.registrar.catalog()));
        let join = self.engine.registrar.join_command(registration.clone());
        let reply = self.command(&registration, join);
        assert!(matches!(reply, PortReply::One(Outcome::Node(Ok(NodeChange::Added(_))))), "{reply:?}");
        self.nodes.push(registration);
    }

    fn remove_node(&mut self, at: usize) {
        let node = self.nodes.remove(at);
        let remove = Command::RemoveNode { node: node.id, force: true };
        let reply = self.command(&node, remove);
        let PortReply::One(Outcome::Node(Ok(NodeChange::Removed { version, .. }))) = reply else {
            panic!("{reply:?}")
        };
        self.engine.registrar.forget(node.id, version);
        self.engine.catalog.store(Arc::new(self.engine.registrar.catalog()));
        self.live.retain(|&(_, of)| of != node.id);
    }

    /// Applies operations on one node as a statement.
    fn apply(&mut self, node: &NodeRegistration, operations: Vec<Operation>) {
        self.statements += 1;
        let number = self.statements;
        let statement = StatementId { incarnation: self.engine.incarnation, planner: 0, number };
        let operations = (0..).zip(operations).collect();
        let conflict_detection = ConflictDetection::Fine;
        let part = Part { statement, operations, conflict_detection, mode: CommitMode::Incremental };
        let reply = self.command(node, Command::Apply(Box::new(part)));
        let PortReply::One(Outcome::Applied(Ok(applied))) = reply else { panic!("{reply:?}") };
        for (_, granted) in applied.granted {
            if let Granted::Allocated(placement) = granted {
                self.live.push((placement.allocation, placement.node));
                self.bundles.push(placement.allocation);
            }
        }
    }

    /// Records a group, as a planner does. With `is_there`, its place is one that a shard recorded.
    fn record_group(&mut self, place: Option<(NodeId, AllocationId)>, number: u64) {
        let request = Arc::new(PlacementRequest::new(cores(1, 0), Policy::FirstFit));
        let id = GroupId { incarnation: self.engine.incarnation, number, tenant: TenantId::OPERATOR };
        let gpus = GpuAssignment::NONE;
        let place = place.map(|(node, allocation)| BundlePlace { node, allocation, gpus });
        let bundle = GroupBundleRecord { index: 0, request: Arc::clone(&request), place, lost: None };
        let spec = Arc::new(GroupSpec::new(vec![request], Strategy::Spread));
        let record = GroupRecord { id, spec, bundles: vec![bundle], next_index: 1 };
        self.groups.insert(id, record.clone());
        self.put(Changes::Groups(vec![(id, Some(record))]));
    }

    fn put(&mut self, changes: Changes) {
        let now = self.clock.now();
        self.writer.feed().put(Unit::new(now, changes));
    }

    pub(super) fn place(&mut self, request: PlacementRequest) {
        if let PortReply::Place(Ok(placement)) = self.ask(PortRequest::Place(request)) {
            self.live.push((placement.allocation, placement.node));
        }
    }

    /// Does something at random.
    pub(super) fn step(&mut self, rng: &mut Rng, number: u64) {
        if self.nodes.len() < 3 {
            return self.add_node(number, rng);
        }
        let at = rng.below(self.nodes.len() as u64) as usize;
        let node = self.nodes[at].clone();
        let live = (!self.live.is_empty()).then(|| self.live[rng.below(self.live.len() as u64) as usize]);
        match rng.below(24) {
            0 if self.nodes.len() < 12 => self.add_node(number, rng),
            1 if rng.below(4) == 0 => self.remove_node(at),
            2 => {
                let life = [LifeEvent::Drain, LifeEvent::Undrain, LifeEvent::Lose, LifeEvent::Beat];
                self.command(&node, Command::Life(node.id, life[rng.below(4) as usize]));
            }
            3 => {
                let spec = NodeSpec { cpu: Amount::whole(8 + rng.below(16) as u32), ..node.spec.clone() };
                self.command(&node, Command::UpdateNode(node.id, Box::new(spec)));
            }
            4 => {
                let unhealthy = (0..rng.below(2) as u8).map(|gpu| (gpu, "Xid 79".into())).collect();
                self.command(&node, Command::SetHealth(node.id, unhealthy));
            }
            5 => {
                let custom = node.spec.custom.clone();
                let demand = Demand { custom, ..cores(3, 1) };
                let external_id = (rng.below(2) == 0).then(|| format!("pod-{number}").into());
                let adoption = Adoption {
                    node: node.id,
                    demand,
                    gpus: None,
                    units: Vec::new(),
                    external_id,
                    tenant: TenantId::OPERATOR,
                };
                self.command(&node, Command::Adopt(Box::new(adoption)));
            }
            6 => {
                let owner = OwnerId::new(1 + rng.below(3)).unwrap();
                let until = (rng.below(2) == 0).then(|| Time(self.clock.now().0 + 50));
                let reserve = Reserve { node: node.id, owner, demand: cores(2, 0), until };
                self.command(&node, Command::Reserve(Box::new(reserve)));
            }
            7 | 8 => self.plan(&node, live, rng, number),
            9 => {
                let bundles = self.bundles.iter().rev().take(8).copied().collect::<Box<[_]>>();
                if !bundles.is_empty() {
                    let demand = Box::new(Demand { cpu: Amount::from_milli(100), ..Demand::default() });
                    let partition = bundles[0].partition;
                    let bundles = bundles.iter().filter(|id| id.partition == partition).copied().collect();
                    self.ask(PortRequest::Partition(partition, Command::PlaceInto { bundles, demand }));
                }
            }
            10 if self.groups.len() > 2 => {
                let id = *self.groups.keys().next().unwrap();
                self.groups.remove(&id);
                self.put(Changes::Groups(vec![(id, None)]));
            }
            11..=16 => {
                if let Some((id, _)) = live {
                    self.live.retain(|&(known, _)| known != id);
                    self.ask(PortRequest::Release(id));
                }
            }
            _ => self.place(PlacementRequest::new(
                cores(1 + rng.below(3) as u32, rng.below(2) as u8),
                Policy::NextFit,
            )),
        }
    }

    /// Commits a statement: a bundle, an eviction with grace, or a claim. The group of a bundle may stay unrecorded.
    fn plan(
        &mut self,
        node: &NodeRegistration,
        live: Option<(AllocationId, NodeId)>,
        rng: &mut Rng,
        number: u64,
    ) {
        let group = GroupId { incarnation: self.engine.incarnation, number, tenant: TenantId::OPERATOR };
        let bundle = Some(BundleId { group, index: 0 });
        let known = self.nodes.iter().find(|known| live.is_some_and(|(_, of)| of == known.id)).cloned();
        match (rng.below(3), live, known) {
            (0, Some((allocation, _)), Some(on)) => {
                let evict = Evict { allocation, expected: None, grace_ns: rng.below(60) };
                let pipeline = Pipeline {
                    node: on.id,
                    expected: None,
                    demand: cores(1, 0),
                    bundle: None,
                    tenant: TenantId::OPERATOR,
                };
                self.apply(&on, vec![Operation::Evict(evict), Operation::Pipeline(pipeline)]);
            }
            _ => {
                let demand = cores(2, 0);
                let allocate = Allocate {
                    node: node.id,
                    expected: None,
                    demand,
                    gpus: None,
                    owner: None,
                    bundle,
                    tenant: TenantId::OPERATOR,
                    lease: None,
                };
                let before = self.live.len();
                self.apply(node, vec![Operation::Allocate(allocate)]);
                match rng.below(4) {
                    // The group is lost if a crash comes now.
                    0 => {}
                    // No shard has recorded the place.
                    1 => self.record_group(
                        Some((node.id, AllocationId { sequence: 1 << 40, ..self.any_id(node) })),
                        number,
                    ),
                    _ => {
                        let made = self.live.get(before).map(|&(id, of)| (of, id));
                        self.record_group(made, number);
                    }
                }
            }
        }
    }

    fn any_id(&self, node: &NodeRegistration) -> AllocationId {
        AllocationId {
            incarnation: self.engine.incarnation,
            partition: node.partition,
            sequence: 1,
            tenant: TenantId::OPERATOR,
        }
    }

    pub(super) fn write(&mut self) {
        while self.writer.write().unwrap() != Written::Nothing {
            self.writer.trim(self.needed_from).unwrap();
        }
        self.writer.take_global().for_each(|unit| self.checkpoints.note(&unit));
    }

    /// Makes a whole checkpoint while this many commands go on.
    pub(super) fn checkpoint(&mut self, rng: &mut Rng, number: u64, steps: u64) {
        self.write();
        let (from, heads) = self.writer.end();
        let heads = heads.clone();
        self.checkpoints.begin(&self.store, from, &heads, self.clock.now()).unwrap();
        let mut count = 0;
        self.needed_from = loop {
            // Beyond any pause between pages.
            self.clock.0.set(self.clock.0.get() + 20_000_000);
            let done = self.checkpoints.poll(self.clock.now()).unwrap();
            if let Some(from) = done {
                break from;
            }
            self.settle();
            if count < steps {
                count += 1;
                self.step(rng, number + count);
            }
            self.write();
        };
    }

    /// Returns what the events must lead to.
    fn expected(&mut self) -> EventBooks {
        let PortReply::Every(outcomes) = self.ask(PortRequest::Every(Command::Export)) else {
            panic!("every shard answers")
        };
        let shards = outcomes.into_iter().map(|outcome| match outcome {
            Outcome::Exported(state) => *state,
            other => panic!("not an export: {other:?}"),
        });
        let registrar = self.engine.registrar.state();
        let now = self.clock.now();
        let state = StoreState::collect(self.engine.incarnation, now, registrar, shards.collect());
        expected(&StoreState { groups: self.groups.values().cloned().collect(), ..state })
    }

    /// Compares the books of a follower with those of the shards.
    pub(super) fn check(&mut self, follower: &mut Reader, when: &str) {
        // So that no deadline passes during the export.
        self.clock.0.set(self.clock.0.get() + 1000);
        self.settle();
        let expected = self.expected();
        self.write();
        self.read(follower, 100, usize::MAX);
        assert_books(&follower.books, &expected, when);
    }

    /// Lets a follower read pages of this limit until it has all that is durable, or `pages` of them.
    pub(super) fn read(&mut self, follower: &mut Reader, limit: usize, pages: usize) {
        let bell = Arc::new(Doorbell::new(Waker::noop().clone()));
        let mailbox = Arc::new(EventMailbox::new(bell));
        for page in 0..pages {
            self.inbox.ask(EventsAsked {
                follower: EventFollowerKey { thread: 0, connection: follower.number },
                ticket: page as u64,
                from: follower.next,
                limit,
                due: Time::NEVER,
                waits: false,
                mailbox: Arc::clone(&mailbox),
            });
            assert!(self.reader.poll(&self.inbox, self.clock.now()));
            let answers = mailbox.take();
            let [EventsAnswer { ticket, page: Ok(reply), .. }] = &answers[..] else { panic!("one page") };
            assert_eq!((*ticket, reply.reason), (page as u64, Reason::Done.into()), "{reply:?}");
            assert!(reply.events.len() <= limit);
            for event in &reply.events {
                assert_eq!(event.position, follower.next, "no gap, and nothing twice");
                follower.next += 1;
                follower.read += 1;
                follower.books.apply(event);
            }
            assert_eq!(reply.next, follower.next);
            if reply.next == reply.end {
                assert_eq!(reply.end, self.recent.kept().end);
                return;
            }
        }
    }
}
