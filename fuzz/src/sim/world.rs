//! The world of a run: an engine of production code that is moved by hand, and everything around it.
//!
//! Each step moves one thing. A shard runs a batch, a port's thread looks at its rings, or the registrar takes
//! a question. A client asks, a message arrives, is lost or is doubled, or a connection breaks. Time passes, or
//! the service restarts with another number of shards. The run chooses, so every order and every delay between
//! threads is possible.

mod crash;
mod cycles;
mod jobs;
mod opened;
mod planning;
mod queues;
mod stop;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_core::demand::NodesPlanner;
use wharf_core::executor::ShardRunner;
use wharf_core::ids::{AllocationId, Incarnation, NodeId, TenantId};
use wharf_core::planner::PlannerRunner;
use wharf_core::state::{GroupRecord, StoreState};
use wharf_core::time::Time;
use wharf_core::view::{View, ViewReader};
use wharf_net::codec::{FrameRef, decode_frame};
use wharf_net::protocol::{FRAME_BYTES_MAX, Kind};

use super::checkers::promises::Grants;
use super::checkers::rest::nobody_oversleeps;
use super::checkers::rules::Rules;
use super::checkers::statements::Statements;
use super::checkers::submitted::NodeVersions;
use super::checkers::views::Shown;
use super::checkers::{Verdict, named};
use super::choices::Choices;
use super::client::{Client, Role};
use super::coordinator::{Coordinator, Moved};
use super::facts::Facts;
use super::follower::Follower;
use super::gangs::Gangs;
use super::journal::{Journal, Life, Opening};
use super::network::{Network, Towards};
use super::registrar::RegistrarThread;
use super::server::{Event, Greeting, Server, USERS};
use super::trace::Trace;
use super::{Contents, JobRules, Report, Settings};
use crate::disk::{Disk, Image};
use jobs::JobsWatch;
pub(super) use opened::open;
use opened::{Opened, PARTITIONS, Twin};
use wharf_net::session::registrar::RegistrarReply;

/// The number of nodes that are added first. Some may have a name that is already taken.
const NODES_FIRST: usize = 6;

/// A view that a reader keeps, and its content when it was taken.
type Kept = (Arc<View>, BTreeMap<NodeId, Shown>);

/// The whole state of a run.
pub(super) struct World<'a> {
    pub(super) choices: Choices<'a>,
    pub(super) trace: Trace,
    pub(super) now: Time,
    incarnation: Incarnation,
    runners: Vec<ShardRunner>,
    planners: Vec<PlannerRunner>,
    nodes_planner: Option<NodesPlanner>,
    views: Vec<ViewReader>,
    kept: Option<Kept>,
    twins: Vec<Twin>,
    pub(super) facts: Vec<Facts>,
    pub(super) server: Server,
    registrar: RegistrarThread,
    pub(super) clients: Vec<Client>,
    pub(super) network: Network,
    pub(super) coordinator: Coordinator,
    pub(super) gangs: Gangs,
    follower: Follower,
    /// Groups that no planner of this start keeps.
    unkept: Vec<GroupRecord>,
    pub(super) statements: Statements,
    grants: Grants,
    rules: Rules,
    node_versions: NodeVersions,
    /// The durable state of each stop, if it is kept.
    stops: Option<Vec<StoreState>>,
    journal: Option<Journal>,
    has_journal: bool,
    /// What is on the disk between two starts.
    image: Image,
    /// The nodes that were removed.
    nodes_removed: BTreeSet<NodeId>,
    /// What each start did to its disk, if it is kept.
    lives: Option<Vec<Life>>,
    crashes: u64,
    checkpoints: u64,
    /// Bundles that someone other than their planner ended. `were_lost` has the bundles on nodes that were
    /// lost.
    ended_by_others: BTreeSet<AllocationId>,
    were_lost: BTreeSet<AllocationId>,
    asks_for_groups: bool,
    /// What is known of jobs, in a run with jobs.
    jobs_watch: Option<JobsWatch>,
    job_rules: Option<JobRules>,
    /// Frames and connections may be lost.
    pub(super) is_faulty: bool,
    small_budgets: bool,
    /// The highest number of nodes at any moment so far.
    most_nodes: usize,
}

/// Creates a client. Users are of both kinds, and act for three tenants in turns.
fn new_client((at, role): (usize, Role), job_rules: Option<JobRules>) -> Client {
    let tenant = if role == Role::User { TenantId((at % USERS.len()) as u16) } else { TenantId::OPERATOR };
    let mut client = Client::new(role, at % 2 == 0);
    client.tenant = tenant;
    client.job_rules = job_rules;
    client
}

impl<'a> World<'a> {
    pub(super) fn new(mut choices: Choices<'a>, settings: Settings, contents: Contents) -> Self {
        let Contents { journal: has_journal, jobs: job_rules } = contents;
        let opening = has_journal
            .then(|| Opening::of(Disk::new(&Image::new(), settings.keeps_lives), settings.keeps_lives));
        let opening = opening.transpose().expect("an empty disk is a new store");
        let new = StoreState::create(PARTITIONS);
        let (opening, state) = opening.map_or((None, new), |(opening, state)| (Some(opening), state));
        let opened = open(&state, opening, &mut choices, 0, (settings.small_budgets, job_rules));
        let agent = |number| Role::Agent { number, node: 0, version: 0, alive: true };
        let roles = [Role::Operator, Role::User, Role::User, agent(0), Role::User, agent(1)];
        let opened = opened.expect("this disk does not fail yet");
        let Opened { incarnation, runners, twins, facts, server, registrar, planners, views, .. } = opened;
        let Opened { ports, unkept, journal, nodes_planner, .. } = opened;
        let count = 4 + choices.place(3);
        Self {
            choices,
            trace: Trace::new(settings.keeps_text),
            asks_for_groups: settings.groups,
            jobs_watch: job_rules.map(|_| JobsWatch::default()),
            job_rules,
            is_faulty: true,
            small_budgets: settings.small_budgets,
            most_nodes: 0,
            now: Time(1),
            incarnation,
            runners,
            planners,
            nodes_planner,
            views,
            kept: None,
            twins,
            facts,
            server,
            registrar,
            // Clients of both kinds are users.
            clients: (0..).zip(roles).take(count).map(|of| new_client(of, job_rules)).collect(),
            network: Network::default(),
            coordinator: Coordinator::new(ports.0, incarnation),
            gangs: Gangs::new(ports.1),
            follower: Follower::new(ports.2),
            unkept,
            statements: Statements::default(),
            grants: Grants::default(),
            rules: Rules::default(),
            node_versions: NodeVersions::default(),
            stops: settings.keeps_stops.then(Vec::new),
            journal,
            has_journal,
            image: Image::new(),
            nodes_removed: BTreeSet::new(),
            lives: settings.keeps_lives.then(Vec::new),
            crashes: 0,
            checkpoints: 0,
            ended_by_others: BTreeSet::new(),
            were_lost: BTreeSet::new(),
        }
    }

    /// Returns what the run came to so far. What was kept is taken.
    pub(super) fn report(&mut self) -> Report {
        Report {
            hash: self.trace.hash(),
            steps: self.trace.step(),
            grants: self.granted(),
            text: self.trace.take_text(),
            stops: self.stops.take().unwrap_or_default(),
            crashes: self.crashes,
            checkpoints: self.checkpoints,
            lives: self.lives.take().unwrap_or_default(),
            found: None,
        }
    }

    /// Adds some nodes before any fault occurs.
    pub(super) fn populate(&mut self) -> Verdict {
        self.pass(1);
        self.connect(0, 0)?;
        if self.has_journal {
            // The answer to the hello waits for the journal.
            self.run_dry(false)?;
        }
        for _ in 0..NODES_FIRST {
            let frame = super::script::add_node(&mut self.clients[0], &mut self.choices);
            if let Some(connection) = self.clients[0].connection {
                self.network.send(connection, Towards::Server, frame);
            }
        }
        self.populate_queues();
        while self.network.len() > 0 {
            self.deliver_at(0)?;
        }
        self.run_dry(false)
    }

    /// Moves one thing.
    pub(super) fn step(&mut self) -> Verdict {
        self.pass(1);
        if self.choices.one_in(60) {
            let nanos = self.choices.below(2 * super::registrar::LOST_AFTER);
            self.pass(nanos);
        }
        if self.journal.is_some() && self.choices.below(6) == 0 {
            self.move_journal()?;
            return self.check_promises();
        }
        match self.choices.below(100) {
            0..20 => {
                let shard = self.choices.place(self.runners.len());
                self.run_shard(shard)?;
            }
            20..31 => {
                let front = self.choices.place(self.server.fronts.len());
                self.poll_front(front)?;
            }
            31..38 => {
                self.move_registrar()?;
                self.registrar.begin_audit(self.now);
            }
            38..54 => {
                let client = self.choices.place(self.clients.len());
                self.move_client(client)?;
            }
            54..68 => self.deliver()?,
            68..75 => self.move_coordinator()?,
            75..81 => {
                self.move_planner()?;
            }
            81..89 => self.move_gangs()?,
            89 | 90 => self.lose_message(),
            91 | 92 => self.double_message(),
            93 => self.break_connection()?,
            94 => self.take_replies()?,
            95..97 => {
                self.move_registrar()?;
            }
            97 => {
                self.follower.act(&mut self.choices, false)?;
            }
            98 => self.change_agent(),
            _ => {
                if self.choices.one_in(4) {
                    self.restart()?;
                }
            }
        }
        self.check_planners()?;
        self.check_promises()
    }

    pub(super) fn pass(&mut self, nanos: u64) {
        self.now = Time(self.now.0 + nanos);
        self.trace.begin(self.now);
    }

    /// Moves the coordinator: it looks at the shards, plans, takes answers, decides, tells a shard or forgets a
    /// statement.
    pub(super) fn move_coordinator(&mut self) -> Verdict {
        let mut moved = Moved::default();
        let coordinator = &mut self.coordinator;
        match self.choices.below(12) {
            0 => coordinator.look(&self.facts),
            1..4 => {
                if let Some(id) = coordinator.begin(&mut self.choices, self.now) {
                    self.trace.line(format_args!("statement {id} begins"));
                }
            }
            4..8 => coordinator.poll(self.now, &mut moved)?,
            number => coordinator.go_ahead(&mut self.choices, number == 11, self.now, &mut moved),
        }
        for (id, decision) in moved.decided {
            self.trace.line(format_args!("statement {id} is {decision:?}"));
        }
        Ok(())
    }

    /// Moves the coordinator towards having nothing in progress. Returns the number of moves.
    pub(super) fn settle_coordinator(&mut self) -> Result<usize, String> {
        let mut moved = Moved::default();
        self.coordinator.poll(self.now, &mut moved)?;
        for _ in 0..8 {
            self.coordinator.go_ahead(&mut self.choices, false, self.now, &mut moved);
        }
        Ok(moved.taken + moved.decided.len())
    }

    pub(super) fn poll_front(&mut self, at: usize) -> Result<usize, String> {
        named("nobody_oversleeps", nobody_oversleeps("front", at, self.server.oversleeps(at)))?;
        let moved = self.server.poll(at, &mut self.network, self.now);
        if moved > 0 {
            self.trace.line(format_args!("front {at} takes {moved}"));
        }
        self.handle_events()?;
        Ok(moved)
    }

    fn handle_events(&mut self) -> Verdict {
        self.registrar.questions.extend(self.server.questions.drain(..));
        for event in std::mem::take(&mut self.server.events) {
            match event {
                Event::Broken(checker, found) => return named(checker, Err(found)),
                Event::Granted(session, sequence, allocation) => {
                    let granted = self.grants.one_effect_per_request((session, sequence), allocation);
                    named("one_effect_per_request", granted)?;
                }
                Event::Closed(connection) => {
                    self.trace.line(format_args!("connection {connection} is closed"));
                    self.clients.iter_mut().for_each(|client| client.forget(connection));
                }
                Event::Welcome(connection, session) => {
                    let mut clients = self.clients.iter_mut();
                    // The client may have given the connection up meanwhile.
                    if let Some(client) = clients.find(|client| client.connecting == Some(connection)) {
                        self.trace.line(format_args!("{connection} has session {}", session.0));
                        client.connected(connection, session);
                    }
                }
            }
        }
        Ok(())
    }

    /// The registrar looks at its rings, and takes a question.
    pub(super) fn move_registrar(&mut self) -> Result<usize, String> {
        named("nobody_oversleeps", nobody_oversleeps("registrar", 0, self.registrar.oversleeps()))?;
        let (moved, answers) = self.registrar.run(self.now);
        for (front, asker, answer) in answers {
            if let RegistrarReply::Nodes(reply) = &answer {
                self.trace.line(format_args!("registrar: {:?}", reply.replies));
            }
            self.server.answer(front, asker, answer, &mut self.network, self.now);
            self.handle_events()?;
        }
        self.follow_units();
        Ok(moved)
    }

    /// Returns whether a report waits for a hold to end.
    pub(super) fn is_replacing(&self) -> bool {
        self.registrar.replacing().next().is_some()
    }

    /// Lets a client connect or send a request.
    fn move_client(&mut self, at: usize) -> Verdict {
        let client = &mut self.clients[at];
        let Some(connection) = client.connection else {
            let front = self.choices.place(self.server.fronts.len());
            return self.connect(at, front);
        };
        let asks = (self.asks_for_groups, self.jobs_watch.is_some());
        if let Some(frame) = super::script::next_frame(client, &mut self.choices, self.now, asks) {
            self.trace.line(format_args!("client {at} sends {} bytes", frame.len()));
            self.network.send(connection, Towards::Server, frame);
        }
        Ok(())
    }

    /// Lets a client without a connection say hello at a front, unless it waits for the answer to its hello.
    pub(super) fn connect(&mut self, at: usize, front: usize) -> Verdict {
        let client = &mut self.clients[at];
        if client.connection.is_some() || client.connecting.is_some() {
            return Ok(());
        }
        let session = client.session();
        let greeting = Greeting { is_exact: client.is_exact, name: client.name(), resume: session };
        let connection = self.server.connect(front, greeting, &mut self.network, self.now);
        self.trace.line(format_args!("client {at} at front {front}: {connection}"));
        client.connecting = Some(connection);
        self.handle_events()
    }

    fn deliver(&mut self) -> Verdict {
        if self.network.len() == 0 {
            return Ok(());
        }
        // Half of the time the oldest message is delivered.
        let newest = self.network.len();
        let place = if self.choices.below(2) == 0 { 0 } else { self.choices.place(newest) };
        self.deliver_at(place)
    }

    pub(super) fn deliver_at(&mut self, place: usize) -> Verdict {
        let message = self.network.take(place);
        let frame = decode_frame(&message.frame, FRAME_BYTES_MAX).map_err(|error| error.to_string())?;
        let frame = frame.ok_or("a frame is sent whole")?;
        let FrameRef { header, .. } = frame;
        let kind = Kind::from_number(header.kind);
        self.trace.line(format_args!(
            "{:?} of {} towards {:?}: sequence {}, below {}",
            kind, message.connection, message.towards, header.sequence, header.lowest_unacknowledged
        ));
        if message.towards == Towards::Server {
            return self.arrive(message.connection, &frame, &message.frame);
        }
        let connection = Some(message.connection);
        let Some(client) = self.clients.iter_mut().find(|client| client.connection == connection) else {
            return Ok(());
        };
        named("answers_stand", client.handle_reply(&frame, &message.frame))
    }

    /// Lets a frame arrive at the service, sometimes in two parts, of which the second may be lost with the
    /// connection.
    fn arrive(&mut self, connection: u64, frame: &FrameRef<'_>, bytes: &[u8]) -> Verdict {
        let cut = if self.choices.one_in(8) { self.choices.place(bytes.len()) } else { 0 };
        let (first, rest) = bytes.split_at(cut);
        self.server.receive(connection, first, &mut self.network, self.now);
        if cut > 0 && self.is_faulty && self.choices.one_in(8) {
            self.trace.line(format_args!("connection {connection} breaks inside a frame"));
            self.clients.iter_mut().for_each(|client| client.forget(connection));
            self.server.lose(connection, &mut self.network, self.now);
            return self.handle_events();
        }
        if frame.header.kind == Kind::Place.number() {
            self.server.expect_placement(connection, frame, &self.facts);
        } else {
            self.server.expect_group(connection, frame);
        }
        if frame.header.kind == Kind::Release.number() {
            self.server.expect_release(connection, frame);
        }
        self.server.receive(connection, rest, &mut self.network, self.now);
        self.handle_events()
    }

    fn lose_message(&mut self) {
        if self.network.len() > 0 {
            let place = self.choices.place(self.network.len());
            let lost = self.network.take(place);
            self.trace.line(format_args!("lost: {:?} of {}", lost.towards, lost.connection));
        }
    }

    fn double_message(&mut self) {
        if self.network.len() > 0 {
            let place = self.choices.place(self.network.len());
            self.network.double(place);
            self.trace.line(format_args!("doubled: {place}"));
        }
    }

    fn break_connection(&mut self) -> Verdict {
        let at = self.choices.place(self.clients.len());
        let client = &mut self.clients[at];
        let Some(connection) = client.connection.or(client.connecting) else { return Ok(()) };
        if client.connection.is_some() && client.pending.is_empty() && self.choices.one_in(4) {
            self.trace.line(format_args!("client {at} ends connection {connection}"));
            let session = client.session().map(|(session, _)| session);
            client.leave();
            let events = self.journal.as_ref().map_or(0, |journal| journal.disk.count());
            session.into_iter().for_each(|session| self.server.replies.end(session, events));
            self.server.finish(connection, &mut self.network, self.now);
            return self.handle_events();
        }
        client.forget(connection);
        // The service may notice at once, when it writes a reply, or only when the client is back.
        let noticed = *self.choices.pick(&["at once", "by a reply", "later"]);
        self.trace.line(format_args!("connection {connection} breaks, noticed {noticed}"));
        match noticed {
            "at once" => self.server.lose(connection, &mut self.network, self.now),
            "by a reply" => self.server.deafen(connection, &mut self.network, self.now),
            _ => {}
        }
        self.handle_events()
    }

    /// Ends the phase of faults: peers take their replies, and the service notices the connections that its
    /// clients gave up.
    pub(super) fn end_faults(&mut self) -> Verdict {
        self.is_faulty = false;
        self.server.is_slow = false;
        self.mend_disk()?;
        for number in self.server.numbers() {
            self.server.take_replies(number, &mut self.network, self.now);
            let mut clients = self.clients.iter();
            if !clients.any(|client| client.connection == Some(number) || client.connecting == Some(number)) {
                self.server.lose(number, &mut self.network, self.now);
            }
        }
        self.handle_events()
    }

    /// Lets the peer of some connection take its replies, or changes whether peers take them at once.
    fn take_replies(&mut self) -> Verdict {
        if self.choices.one_in(8) {
            self.server.is_slow = !self.server.is_slow;
        }
        let numbers = self.server.numbers();
        if !numbers.is_empty() {
            let number = *self.choices.pick(&numbers);
            self.server.take_replies(number, &mut self.network, self.now);
        }
        self.handle_events()
    }

    fn change_agent(&mut self) {
        let at = self.choices.place(self.clients.len());
        if let Role::Agent { alive, .. } = &mut self.clients[at].role {
            *alive = !*alive;
            self.trace.line(format_args!("agent {at} alive: {alive}"));
        }
    }
}
