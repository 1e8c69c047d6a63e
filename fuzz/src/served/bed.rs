//! The service behind one I/O thread, moved by hand: connections, registrar, shards, a planner, and a journal that may lag.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use wharf_core::cycle::CycleConfig;
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{ShardRunner, Unobserved};
use wharf_core::fairness::Dim;
use wharf_core::ids::{Incarnation, OwnerId, TenantId};
use wharf_core::jobs::{Jobs, JobsRecord, PriorityClass, QueueSpec, TopologyTier};
use wharf_core::journal::JournalFeed;
use wharf_core::link::Clock;
use wharf_core::planner::{JobsConfig, PlannerRunner};
use wharf_core::router::Port;
use wharf_core::state::StoreState;
use wharf_core::time::Time;
use wharf_net::access::{AccessSettings, Identity, Role, Roles, TenantLimits};
use wharf_net::protocol::{NodeBody, NodesRequest, Pair, SessionToken};
use wharf_net::session::connections::{self, Asker, ConnectionService};
use wharf_net::session::registrar::{Question, RegistrarReply, RegistrarRequest, RegistrarService};
use wharf_net::session::shared::{Hangup, SessionShared, Settings};

use crate::bodies::{CLASS, QUEUES};
use crate::sim::checkers::Verdict;

/// One unit, in 1/10,000 of a unit.
const UNIT: i64 = 10_000;
/// The number of partitions of the store.
pub(super) const PARTITIONS: u16 = 4;
/// How long a shard holds its part of a statement, in ns.
const HOLD_NS: u64 = 3_000;
/// The time between the beginnings of two cycles over jobs, in ns.
const CYCLE_NS: u64 = 400;
/// The nodes at the start.
const NODES_FIRST: i64 = 3;
/// The number of questions that wait for the registrar at most, as in the service's own queue.
const QUESTIONS_MAX: usize = 8;
/// The number of rounds after which time must pass for the bed to come to rest.
const ROUNDS_MAX: usize = 400;

/// The names in the certificates of peers.
pub(super) const NAMES: [&str; 4] = ["operator", "user-1", "user-2", "nobody"];

struct At(Time);

impl Clock for At {
    fn now(&self) -> Time {
        self.0
    }
}

/// The connections that the service asked to close, by number.
#[derive(Clone, Default)]
pub(super) struct HungUp(Arc<Mutex<Vec<usize>>>);

impl HungUp {
    /// Takes the numbers of the connections.
    pub(super) fn take(&self) -> Vec<usize> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns what closes the connection of this number.
    pub(super) fn of(&self, number: usize) -> Arc<dyn Hangup> {
        Arc::new(HangUp { number, hung_up: self.clone() })
    }
}

struct HangUp {
    number: usize,
    hung_up: HungUp,
}

impl Hangup for HangUp {
    fn hang_up(&self, _code: u32, _reason: &'static [u8]) {
        self.hung_up.0.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

/// How a bed is set up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Setup {
    /// The service keeps queues and jobs.
    pub(super) jobs: bool,
    /// Replies wait until what they tell of is durable.
    pub(super) journal: bool,
    /// Peers are known by certificates, and have roles and tenants.
    pub(super) certificates: bool,
    /// Maximum number of unanswered requests per connection.
    pub(super) in_flight_max: u32,
}

/// The service behind one I/O thread.
pub(super) struct Bed {
    pub(super) now: Time,
    pub(super) incarnation: Incarnation,
    pub(super) service: ConnectionService,
    pub(super) shared: Arc<SessionShared>,
    pub(super) hung_up: HungUp,
    pub(super) setup: Setup,
    /// Nobody asks for the nodes at the start.
    registrar: RegistrarService<Option<Asker>>,
    pub(super) shards: Vec<ShardRunner>,
    planners: Vec<PlannerRunner>,
    journal: Option<JournalFeed>,
    of_checkpoints: Option<Port>,
    /// Questions that the registrar has not taken yet.
    questions: VecDeque<(Asker, Question)>,
    /// Answers of the registrar that are on their way.
    answers: VecDeque<(Asker, RegistrarReply)>,
}

impl Bed {
    pub(super) fn new(setup: Setup) -> Self {
        let mut state = StoreState::create(PARTITIONS);
        if setup.jobs {
            state.jobs = queues();
        }
        Self::over(setup, state)
    }

    /// Starts over the state of a store. A new one with jobs begins with two queues.
    pub(super) fn over(setup: Setup, state: StoreState) -> Self {
        let is_new = state.registrar.next_node <= 1;
        let config = EngineConfig {
            shards: 2,
            reserved_nodes_percent: 60,
            planners: 1,
            hold_ns: HOLD_NS,
            journal: setup.journal,
            jobs: setup.jobs.then(jobs_config),
            ..EngineConfig::default()
        };
        let wakers = vec![Waker::noop().clone(); 2 + usize::from(setup.journal)];
        let now = Time(state.now.0 + 1);
        let sessions = state.sessions.clone();
        let mut engine = Engine::open(state, &config, wakers).expect("the numbers are in range");
        let shared = SessionShared::new([7; 16], engine.incarnation, settings(setup), Box::new(tokens()));
        let shared = Arc::new(shared);
        shared.restore_sessions(sessions, now);
        if setup.certificates {
            shared.set_access(&access(true));
        }
        let mut port = || engine.ports.pop().expect("one for each waker");
        let of_registrar = port();
        let of_checkpoints = setup.journal.then(&mut port);
        let waker = Waker::noop().clone();
        let service =
            ConnectionService::new(port(), Arc::clone(&shared), Box::new(connections::Unobserved), waker);
        engine.runners.iter_mut().for_each(ShardRunner::record_start);
        let mut bed = Self {
            now,
            incarnation: engine.incarnation,
            service,
            shared,
            hung_up: HungUp::default(),
            setup,
            registrar: RegistrarService::new(engine.registrar, of_registrar, engine.catalog),
            shards: engine.runners,
            planners: engine.planners,
            journal: engine.journal,
            of_checkpoints,
            questions: VecDeque::new(),
            answers: VecDeque::new(),
        };
        let nodes = (0..if is_new { NODES_FIRST } else { 0 }).map(first_node).collect();
        bed.registrar.handle(RegistrarRequest::Add(NodesRequest { nodes }), None, bed.now);
        bed
    }

    /// Takes the engine's end of the journal, and the port of the checkpoints.
    pub(super) fn take_journal(&mut self) -> Option<(JournalFeed, Port)> {
        Some((self.journal.take()?, self.of_checkpoints.take()?))
    }

    /// Returns the state that a stop stores. Nothing is in progress.
    pub(super) fn state(&self) -> StoreState {
        let shards = self.shards.iter().map(|runner| runner.shard().export()).collect();
        let registrar = self.registrar.registrar.state();
        let mut state = StoreState::collect(self.incarnation, self.now, registrar, shards);
        state.groups = self.planners.iter().flat_map(|runner| runner.planner().records()).collect();
        state.sessions = self.shared.session_records();
        state
    }

    pub(super) fn pass(&mut self, nanos: u64) {
        self.now = self.now.plus_nanos(nanos);
    }

    /// Replaces who may do what.
    pub(super) fn change_access(&self, is_user_trusted: bool) {
        if self.setup.certificates {
            self.shared.set_access(&access(is_user_trusted));
        }
    }

    pub(super) fn run_shard(&mut self, at: usize) -> usize {
        self.shards[at].run_batch(&At(self.now), &mut Unobserved)
    }

    /// Runs a round of the planner. A round may send statements without taking any input.
    pub(super) fn run_planner(&mut self) -> usize {
        let mut moved = 0;
        for runner in &mut self.planners {
            moved += runner.run_round(&At(self.now));
            let planner = runner.planner();
            let is_moving = planner.is_committing() || planner.is_ticket_moving() || planner.awaits_views();
            moved += usize::from(is_moving);
        }
        moved
    }

    /// Takes questions from the service, as far as the registrar's queue has room. Returns how often it did.
    pub(super) fn take_questions(&mut self) -> usize {
        let mut moved = 0;
        while self.questions.len() < QUESTIONS_MAX && self.service.has_question() {
            moved += 1;
            // None: those that there were are too late, and were refused.
            self.questions.extend(self.service.next_question(self.now));
        }
        moved
    }

    /// Gives the registrar a question, and takes its answers.
    pub(super) fn run_registrar(&mut self) -> usize {
        let mut moved = self.registrar.poll(self.now);
        if self.registrar.has_room()
            && let Some((asker, question)) = self.questions.pop_front()
        {
            self.registrar.handle(question, Some(asker), self.now);
            moved += 1;
        }
        self.registrar.proceed(self.now);
        for (asker, answer) in self.registrar.take_answers() {
            self.answers.extend(asker.map(|asker| (asker, answer)));
            moved += 1;
        }
        moved + usize::from(!self.registrar.is_idle())
    }

    /// Gives the service an answer of the registrar. Answers may overtake each other.
    pub(super) fn deliver_answer(&mut self, at: usize) -> usize {
        let Some((asker, answer)) = self.answers.remove(at % self.answers.len().max(1)) else { return 0 };
        self.service.handle_answer(asker, answer, self.now);
        1
    }

    /// Makes everything durable that is in the journal so far. Returns how much it was.
    pub(super) fn write_journal(&mut self) -> usize {
        let Some(journal) = &self.journal else { return 0 };
        let mut units = Vec::new();
        let position = journal.take(&mut units);
        if !units.is_empty() {
            journal.set_durable(position);
        }
        units.len()
    }

    /// Says whether the storage of the journal is full.
    pub(super) fn set_full(&mut self, is_full: bool) {
        if let Some(journal) = &self.journal {
            journal.set_full(is_full);
        }
    }

    /// Moves everything once. Returns how much moved.
    pub(super) fn run_all(&mut self) -> usize {
        let mut moved = 0;
        for shard in 0..self.shards.len() {
            moved += self.run_shard(shard);
        }
        moved += self.run_planner();
        moved += self.take_questions();
        moved += self.run_registrar();
        moved += self.deliver_answer(0);
        moved += self.write_journal();
        moved + usize::from(self.service.poll(self.now))
    }

    /// Moves everything until nothing moves, or for as long as a planner or a report may wait for a hold to end.
    pub(super) fn run_dry(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.pass(1);
            if self.run_all() == 0 {
                return;
            }
        }
        self.pass(HOLD_NS);
    }

    /// Returns the next time at which something happens by itself.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let planners = self.planners.iter().filter_map(|runner| runner.planner().next_deadline());
        planners.chain(self.service.next_deadline()).min()
    }

    /// Checks that nothing is in progress and that the books balance. All connections are closed.
    ///
    /// # Errors
    /// What is left over.
    pub(super) fn check_rest(&mut self) -> Verdict {
        if self.service.in_engine() != (0, 0) {
            return Err(format!(
                "requests are in the engine without a connection: {:?}",
                self.service.in_engine()
            ));
        }
        self.service.check_room().map_err(|taken| taken.to_string())?;
        if !self.registrar.is_idle() || !self.questions.is_empty() || !self.answers.is_empty() {
            return Err("the registrar has questions that nobody asks any more".to_owned());
        }
        self.shards.iter().try_for_each(|runner| runner.shard().check_invariants()).map_err(String::from)
    }
}

/// Returns queues of which one has caps that a few requests reach, and a priority class.
fn queues() -> JobsRecord {
    let [open, capped] = QUEUES;
    let capability = [(Dim::CPU, 4 * UNIT)].into_iter().collect();
    let capped = QueueSpec { capability, allocations_max: Some(3), ..QueueSpec::new(capped) };
    let mut jobs = Jobs::new();
    for queue in [QueueSpec::new(open), capped] {
        jobs.add_queue(queue).expect("queues of different names");
    }
    jobs.set_priority_class(PriorityClass::new(CLASS, 3)).expect("the first class");
    jobs.record()
}

/// Returns the settings of the keeper of jobs, with tiers that some nodes have.
fn jobs_config() -> JobsConfig {
    let tier = |name: &str| TopologyTier::labelled(name, name);
    let cycle = CycleConfig { topology: vec![tier("rack"), tier("zone")], ..CycleConfig::default() };
    JobsConfig { cycle, interval_ns: CYCLE_NS, ..JobsConfig::default() }
}

fn settings(setup: Setup) -> Settings {
    Settings {
        in_flight_max: setup.in_flight_max,
        waiting_groups_max: 2,
        // Sessions whose clients stay away end within a run.
        session_kept_for: Duration::from_millis(1),
        ..Settings::default()
    }
}

/// Returns what makes the tokens of sessions.
fn tokens() -> impl Fn() -> SessionToken + Send + Sync {
    let last = Mutex::new(0u64);
    move || {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        *last += 1;
        let mut token = SessionToken::default();
        token[..8].copy_from_slice(&last.to_le_bytes());
        token
    }
}

/// Who may do what. Users submit for tenants with small limits.
fn access(is_user_trusted: bool) -> AccessSettings {
    let tenant = |id| TenantLimits {
        name: format!("tenant-{id}"),
        id: TenantId(id),
        requests_per_second: (id == 2).then_some(1_000_000),
        in_flight_max: (id == 2).then_some(4),
        owners: OwnerId::new(1).into_iter().collect(),
        queue: None,
    };
    let user = if is_user_trusted { Role::Submit } else { Role::Observer };
    let identity = |name: &str, roles: &[Role], tenant: u16| Identity {
        name: name.to_owned(),
        roles: Roles::of(roles),
        tenant: (tenant > 0).then_some(TenantId(tenant)),
        nodes: None,
    };
    AccessSettings {
        tenants: vec![tenant(1), tenant(2)],
        identities: vec![
            identity(NAMES[0], &[Role::Admin], 0),
            identity(NAMES[1], &[user], 1),
            identity(NAMES[2], &[Role::Submit], 2),
        ],
        by_certificate: true,
        ..AccessSettings::default()
    }
}

fn first_node(number: i64) -> NodeBody {
    NodeBody {
        name: format!("n{number}"),
        cpu: (number + 1) * 2 * UNIT,
        memory: 4 * UNIT,
        gpus: number as u32,
        labels: vec![Pair { key: "zone".to_owned(), value: if number == 0 { "a" } else { "b" }.to_owned() }],
        ..NodeBody::default()
    }
}
