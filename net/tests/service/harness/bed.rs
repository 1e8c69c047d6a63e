//! The connections of one I/O thread, a shard, planners and the registrar, without sockets. Each runs when a test says so.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{self, ShardRunner};
use wharf_core::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, TenantId};
use wharf_core::journal::{Changes, JournalFeed, Unit};
use wharf_core::link::Clock;
use wharf_core::node::{Labels, NodeRegistration, NodeSpec, NodeState, Taints};
use wharf_core::planner::{JobsConfig, PlannerRunner};
use wharf_core::resource::{Amount, Demand, GpuAssignment};
use wharf_core::state::{
    AllocationRecord, NodeRecord, RegistrarState, SessionChange, SessionRecord, StoreState,
};
use wharf_core::time::Time;
use wharf_net::access::Peer;
use wharf_net::codec::{Extension, decode_body, decode_frame, encode_body};
use wharf_net::protocol::{
    Acknowledged, BundleTemplate, CancelRequest, CreateGroupRequest, EXTENSION_ACKNOWLEDGED, FRAME_BYTES_MAX,
    Hello, HelloReply, Kind, MODE_WAIT_UNTIL, PlaceIntoRequest, PlaceRequest, Resume, VERSION_MAX, WireGroup,
};
use wharf_net::session::connections::{Asker, ConnectionKey, ConnectionService, InputEnd, Unobserved};
use wharf_net::session::registrar::{Question, RegistrarReply, RegistrarService};
use wharf_net::session::shared::{Hangup, SessionShared, Settings};

use super::{Frame, ask, extended, header, request};

/// The time at which a bed begins.
pub const NOW: Time = Time(1_000_000_000);

/// The sequence of the request that waits.
pub const WAIT: u64 = 1;

/// How long a request waits, in ns.
pub const PATIENCE_NS: u64 = 1_000_000_000;

struct At(Time);

impl Clock for At {
    fn now(&self) -> Time {
        self.0
    }
}

struct NoHangup;

impl Hangup for NoHangup {
    fn hang_up(&self, _code: u32, _reason: &'static [u8]) {}
}

/// The connections of an I/O thread, a shard without nodes, planners, and the registrar.
pub struct Bed {
    pub now: Time,
    pub service: ConnectionService,
    pub shared: Arc<SessionShared>,
    /// The newest version of the protocol that clients speak.
    pub version: u8,
    shard: ShardRunner,
    planners: Vec<PlannerRunner>,
    registrar: RegistrarService<Asker>,
    /// Questions on their way to the registrar, and its answers on their way back.
    questions: VecDeque<(Asker, Question)>,
    answers: VecDeque<(Asker, RegistrarReply)>,
    journal: JournalFeed,
}

impl Bed {
    pub fn new() -> Self {
        Self::restored(Vec::new(), NOW)
    }

    /// Starts at `now` with the sessions of an earlier start.
    pub fn restored(sessions: Vec<SessionRecord>, now: Time) -> Self {
        Self::over(&StoreState::default(), sessions, now, planning(1))
    }

    /// Starts in the same way, without planners.
    pub fn without_planners(sessions: Vec<SessionRecord>, now: Time) -> Self {
        Self::over(&StoreState::default(), sessions, now, planning(0))
    }

    /// Starts in the same way, with a node of one core that is in use.
    pub fn with_full_node(sessions: Vec<SessionRecord>, now: Time) -> Self {
        Self::over(&full_node(), sessions, now, planning(1))
    }

    /// Starts with such a node, and with a keeper of jobs.
    pub fn with_jobs() -> Self {
        let config = EngineConfig { jobs: Some(JobsConfig::default()), ..planning(1) };
        Self::over(&full_node(), Vec::new(), NOW, config)
    }

    /// Starts with these settings and a node that is in use.
    pub fn with_settings(settings: Settings) -> Self {
        Self::set_up(&full_node(), Vec::new(), NOW, planning(1), settings)
    }

    fn over(state: &StoreState, sessions: Vec<SessionRecord>, now: Time, config: EngineConfig) -> Self {
        Self::set_up(state, sessions, now, config, Settings::default())
    }

    fn set_up(
        state: &StoreState,
        sessions: Vec<SessionRecord>,
        now: Time,
        config: EngineConfig,
        settings: Settings,
    ) -> Self {
        let wakers = vec![Waker::noop().clone(); 2];
        let mut engine = Engine::open(state.clone(), &config, wakers).expect("the numbers are in range");
        let shared = SessionShared::new([1; 16], Incarnation(1), settings, Box::new(|| [7; 16]));
        shared.restore_sessions(sessions, now);
        let shared = Arc::new(shared);
        let port = engine.ports.pop().expect("one for each waker");
        let waker = Waker::noop().clone();
        Self {
            now,
            registrar: RegistrarService::new(
                engine.registrar,
                engine.ports.pop().expect("one for each waker"),
                engine.catalog,
            ),
            questions: VecDeque::new(),
            answers: VecDeque::new(),
            service: ConnectionService::new(port, Arc::clone(&shared), Box::new(Unobserved), waker),
            shared,
            version: VERSION_MAX,
            shard: engine.runners.pop().expect("one shard"),
            planners: engine.planners,
            journal: engine.journal.take().expect("the engine notes effects"),
        }
    }

    /// Connects, and says hello. An exact client acknowledges waits individually. Returns the first reply.
    pub fn greet(&mut self, is_exact: bool, resume: Option<Resume>) -> (ConnectionKey, Frame) {
        self.greet_as(&[], is_exact, resume)
    }

    /// Connects a client with these names in its certificate, and says hello. Returns the first reply.
    pub fn greet_as(
        &mut self,
        names: &[&str],
        is_exact: bool,
        resume: Option<Resume>,
    ) -> (ConnectionKey, Frame) {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        let key = self.service.open(Arc::new(NoHangup), Peer { names, address: "bed".to_owned() });
        let mut none = Vec::new();
        encode_body(&Acknowledged::default(), &mut none);
        let exactly = Extension { tag: EXTENSION_ACKNOWLEDGED, bytes: &none };
        let extensions = if is_exact { std::slice::from_ref(&exactly) } else { &[] };
        let hello = Hello { version_min: 1, version_max: self.version, client: "bed".to_owned(), resume };
        self.service.receive(key, &extended(header(Kind::Hello, 0), extensions, &hello), self.now);
        self.write();
        let mut replies = self.replies(key);
        (key, replies.remove(0))
    }

    /// Connects, and says hello.
    pub fn connect(&mut self, is_exact: bool, resume: Option<Resume>) -> (ConnectionKey, HelloReply) {
        let (key, reply) = self.greet(is_exact, resume);
        (key, decode_body(&reply.payload).expect("a hello").0)
    }

    /// Asks for a placement that waits for [`PATIENCE_NS`] from the begin of the first bed on.
    pub fn place(&mut self, key: ConnectionKey) {
        self.place_in("", key);
    }

    /// Asks for a placement that waits for as long in a queue.
    pub fn place_in(&mut self, queue: &str, key: ConnectionKey) {
        let deadline = NOW.0 + PATIENCE_NS;
        let place = PlaceRequest { queue: queue.into(), mode: MODE_WAIT_UNTIL, deadline, ..ask(1, 0, 0) };
        self.service.receive(key, &request(Kind::Place, WAIT, &place), self.now);
    }

    /// Places into a group.
    pub fn place_into(&mut self, group: WireGroup, key: ConnectionKey) {
        let into = PlaceIntoRequest {
            group: Some(group),
            demand: ask(1, 0, 0).demand,
            ..PlaceIntoRequest::default()
        };
        self.service.receive(key, &request(Kind::PlaceInto, WAIT, &into), self.now);
    }

    /// Asks for a group that waits for as long.
    pub fn create_group(&mut self, key: ConnectionKey) {
        let bundles = vec![BundleTemplate { request: ask(1, 0, 0), count: 1 }];
        let deadline = NOW.0 + PATIENCE_NS;
        let mode = MODE_WAIT_UNTIL;
        let group = CreateGroupRequest { bundles, mode, deadline, ..CreateGroupRequest::default() };
        self.service.receive(key, &request(Kind::CreateGroup, WAIT, &group), self.now);
    }

    /// Loses a connection that has nothing in progress, or whose requests are answered without it.
    pub fn lose(&mut self, key: ConnectionKey) {
        self.service.end_input(key, InputEnd::Lost, self.now);
        self.write();
        self.service.close(key, false, self.now);
    }

    pub fn cancel(&mut self, key: ConnectionKey, sequence: u64) {
        let cancel = CancelRequest { sequence: WAIT };
        self.service.receive(key, &request(Kind::CancelWait, sequence, &cancel), self.now);
    }

    /// Lets each command take this long, in ns, as far as the service knows.
    pub fn set_pace(&mut self, nanos: u64) {
        self.shard.set_pace(nanos);
    }

    pub fn run_shard(&mut self) {
        self.shard.run_batch(&At(self.now), &mut executor::Unobserved);
        self.service.poll(self.now);
    }

    pub fn run_planner(&mut self) {
        assert!(!self.planners.is_empty(), "one planner");
        for planner in &mut self.planners {
            planner.run_round(&At(self.now));
        }
        self.service.poll(self.now);
    }

    /// Takes the questions for the registrar out of the service. Returns how many are on their way.
    pub fn take_questions(&mut self) -> usize {
        while let Some(question) = self.service.next_question(self.now) {
            self.questions.push_back(question);
        }
        self.questions.len()
    }

    /// Lets the registrar do what it is asked. Its answers are on their way.
    pub fn run_registrar(&mut self) {
        for (asker, question) in std::mem::take(&mut self.questions) {
            self.registrar.handle(question, asker, self.now);
        }
        // It may ask the shard several times.
        for _ in 0..4 {
            self.registrar.proceed(self.now);
            self.run_shard();
            self.registrar.poll(self.now);
        }
        self.answers.extend(self.registrar.take_answers());
    }

    /// Gives the service the answers of the registrar.
    pub fn deliver_answers(&mut self) {
        for (asker, answer) in std::mem::take(&mut self.answers) {
            self.service.handle_answer(asker, answer, self.now);
        }
    }

    /// Returns the durable state of the registrar.
    pub fn registrar(&self) -> RegistrarState {
        self.registrar.registrar.state()
    }

    /// Returns the number of groups of the planner.
    pub fn groups(&self) -> usize {
        self.planners.iter().map(|planner| planner.planner().group_count()).sum()
    }

    /// Lets everything become durable. Returns the units.
    pub fn units(&mut self) -> Vec<Unit> {
        let mut units = Vec::new();
        self.journal.take(&mut units);
        self.journal.set_durable(self.journal.position());
        self.service.poll(self.now);
        units
    }

    /// Lets everything become durable. Returns the requests that each unit answers, by sequence.
    pub fn write(&mut self) -> Vec<Vec<u64>> {
        self.units().iter().map(answered).filter(|answered| !answered.is_empty()).collect()
    }

    /// Returns the replies that the peer took.
    pub fn replies(&mut self, key: ConnectionKey) -> Vec<Frame> {
        let output = self.service.take_output(key);
        let mut rest = &output.bytes[..];
        let mut frames = Vec::new();
        while let Some(frame) = decode_frame(rest, FRAME_BYTES_MAX).expect("frames") {
            let (bytes, left) = rest.split_at(frame.bytes);
            let payload = frame.payload.to_vec();
            frames.push(Frame { header: frame.header, payload, bytes: bytes.to_vec() });
            rest = left;
        }
        self.service.written(key, output.replies, output.bytes.len(), false, self.now);
        frames
    }
}

fn planning(planners: u16) -> EngineConfig {
    EngineConfig { journal: true, planners, ..EngineConfig::default() }
}

/// Returns a state with a node of one core that is in use.
fn full_node() -> StoreState {
    let partition = PartitionId(0);
    let node = NodeId(1);
    let spec = NodeSpec {
        name: "full".into(),
        identity: None,
        cpu: Amount::whole(1),
        memory: Amount::whole(1),
        gpus: 0,
        custom: None,
        labels: Labels::default(),
        taints: Taints::default(),
    };
    let registration = NodeRegistration { id: node, ordinal: Ordinal(1), partition, spec, agent: None };
    let unhealthy = Vec::new();
    let id = AllocationId { incarnation: Incarnation(1), partition, sequence: 1, tenant: TenantId::OPERATOR };
    let mut state = StoreState::create(1);
    state.incarnation = Incarnation(1);
    state.registrar.next_node = 2;
    let books = &mut state.partitions[0];
    books.nodes.push(NodeRecord { registration, state: NodeState::Ready, version: 1, unhealthy });
    books.allocations.push(AllocationRecord {
        id,
        node,
        demand: Demand { cpu: Amount::whole(1), ..Demand::default() },
        gpus: GpuAssignment::default(),
        units: None,
        external_id: None,
    });
    state
}

fn answered(unit: &Unit) -> Vec<u64> {
    let Changes::Sessions(changes) = &unit.changes else { return Vec::new() };
    let answered = changes.iter().filter_map(|change| match change {
        SessionChange::Answered(origin, _) => Some(origin.sequence),
        _ => None,
    });
    answered.collect()
}
