//! The service's side of connections in memory, driven by a fuzzer: whole sessions fed any bytes, and any order of events.
//!
//! The production code runs from the bytes of a stream to the books of the shards, without sockets and in one thread.
//! Each run ends in the same way: all connections end, everything comes to rest, and then this must hold:
//!
//! - Each complete frame of a peer that listened has its reply, and no request has more replies than frames.
//! - Every reply can be read whole as what it says that it is.
//! - Nothing is in progress, and all room in the port and at the planners was given back.
//! - The books of every shard balance.

mod bed;
mod peers;
mod script;
mod stored;
pub(crate) use stored::Stored;

use wharf_core::time::Time;
use wharf_net::access::Peer as Identity;
use wharf_net::protocol::Kind;
use wharf_net::session::connections::InputEnd;

use crate::finding::{Finding, found};
use crate::sim::checkers::Verdict;
use crate::sim::choices::Choices;
use bed::{Bed, NAMES, Setup};
use peers::Peer;
use peers::Peers;
pub use peers::ServedCounts;

/// The highest number of connections at a time.
const CONNECTIONS_MAX: usize = 6;
/// The most steps of a run.
const STEPS_MAX: usize = 400;
/// The number of rounds within which all connections must end.
const ROUNDS_MAX: usize = 2000;
/// The longest time that passes at once at the end of a run, in ns.
const PASS_MAX: u64 = 1_000_000;

/// How an input begins whose service keeps jobs, and whose peer asks for them too. What follows is read as any other input.
/// Inputs that were stored before there were jobs do not begin so, and keep their meaning.
pub const WITH_JOBS: &[u8] = b"jobs";

/// A bed and its peers.
struct Run<'a> {
    /// The kinds of requests that are drawn by number.
    kinds: &'static [Kind],
    choices: Choices<'a>,
    bed: Bed,
    peers: Peers,
}

/// Runs one session whose peer sends what `data` says: any bytes, frames with any content, and requests.
///
/// # Errors
/// What does not hold at the end.
pub fn run_session_bytes(data: &[u8]) -> Result<ServedCounts, Finding> {
    let (data, jobs) = match data.strip_prefix(WITH_JOBS) {
        Some(rest) => (rest, true),
        None => (data, false),
    };
    let mut run = Run::new(data, Setup { jobs, ..Setup::default() });
    let greets = !run.choices.one_in(8);
    run.connect(greets);
    for _ in 0..STEPS_MAX {
        if run.choices.is_spent() {
            break;
        }
        run.send(0);
        let most = if run.choices.one_in(2) { usize::MAX } else { 1 + run.choices.place(64) };
        run.peers.feed(&mut run.bed, 0, most);
        match run.choices.below(4) {
            0 => {
                run.bed.pass(1);
                run.bed.run_all();
            }
            1 => {
                run.peers.take(&mut run.bed, 0)?;
                run.peers.write(&mut run.bed, 0);
            }
            2 => run.bed.pass(run.choices.below(2_000)),
            _ => {}
        }
        run.peers.hang_up(&mut run.bed);
    }
    run.finish()
}

/// Runs connections through the events that `data` says, in any order that production allows.
///
/// # Errors
/// What does not hold at the end.
pub fn run_connection(data: &[u8]) -> Result<ServedCounts, Finding> {
    let journal = data.first().is_some_and(|first| first & 1 == 1);
    let mut run = Run::new(data.get(1..).unwrap_or_default(), Setup { journal, ..Setup::default() });
    run.connect(true);
    for _ in 0..STEPS_MAX {
        if run.choices.is_spent() {
            break;
        }
        run.step()?;
        while run.bed.service.take_touched().is_some() {}
    }
    run.bed.set_full(false);
    run.finish()
}

impl<'a> Run<'a> {
    /// Draws what `setup` leaves open.
    fn new(data: &'a [u8], setup: Setup) -> Self {
        let mut choices = Choices::Given(data);
        let certificates = choices.one_in(2);
        let in_flight_max = *choices.pick(&[1, 2, 4, 64]);
        let bed = Bed::new(Setup { certificates, in_flight_max, ..setup });
        Self { kinds: script::kinds(setup.jobs), choices, bed, peers: Peers::default() }
    }

    /// Opens a connection. Its peer says hello first, if it `greets`.
    fn connect(&mut self, greets: bool) {
        let number = self.peers.all.len();
        let name = if self.choices.one_in(2) { NAMES[0] } else { *self.choices.pick(&NAMES) };
        let names = if self.bed.setup.certificates { vec![name.to_owned()] } else { Vec::new() };
        let is_exact = self.choices.one_in(2);
        let resumes = !self.peers.tickets.is_empty() && self.choices.one_in(2);
        let resume = resumes.then(|| *self.choices.pick(&self.peers.tickets));
        let key =
            self.bed.service.open(self.bed.hung_up.of(number), Identity { names, address: String::new() });
        let queued = if greets { script::hello(is_exact, resume) } else { Vec::new() };
        // Who resumes a session goes on with sequences after those of its earlier connections.
        let before = self.peers.all.iter().filter(|peer| resume.is_some() && peer.session == resume);
        let next = before.map(|peer| peer.next).max().unwrap_or(1);
        self.peers.all.push(Peer::new(key, queued, is_exact, next));
    }

    /// Puts something on its way from a peer to the service.
    fn send(&mut self, at: usize) {
        let choices = &mut self.choices;
        self.peers.known.now = self.bed.now;
        self.peers.known.has_jobs = self.bed.setup.jobs;
        let peer = &mut self.peers.all[at];
        let bytes = match choices.below(16) {
            0..12 => script::request(peer, choices, &self.peers.known, self.kinds),
            12 | 13 => peer.last.clone(),
            14 => script::any_frame(choices),
            _ if choices.one_in(8) => script::any_bytes(choices),
            _ => script::request(peer, choices, &self.peers.known, self.kinds),
        };
        peer.queued.extend_from_slice(&bytes);
    }

    /// One event.
    fn step(&mut self) -> Verdict {
        self.bed.pass(1);
        let open = self.peers.open();
        let at = *self.choices.pick(if open.is_empty() { &[0] } else { &open });
        match self.choices.below(32) {
            0..8 => {
                self.send(at);
                let most = if self.choices.one_in(4) { self.choices.place(40) } else { usize::MAX };
                self.peers.feed(&mut self.bed, at, most);
            }
            8 => {
                self.peers.feed(&mut self.bed, at, usize::MAX);
            }
            9 | 10 if open.len() < CONNECTIONS_MAX => {
                let greets = !self.choices.one_in(16);
                self.connect(greets);
                self.peers.feed(&mut self.bed, self.peers.all.len() - 1, usize::MAX);
            }
            11 => {
                let ends =
                    [InputEnd::Finished, InputEnd::Lost, InputEnd::Lost, InputEnd::Stopping, InputEnd::Late];
                let end = *self.choices.pick(&ends);
                self.peers.end(&mut self.bed, at, end);
            }
            12 => self.peers.all[at].is_deaf |= self.choices.one_in(4),
            13..16 => {
                self.peers.take(&mut self.bed, at)?;
            }
            16 | 17 => {
                self.peers.write(&mut self.bed, at);
            }
            18 => {
                self.peers.close(&mut self.bed, at);
            }
            19 => {
                self.peers.hang_up(&mut self.bed);
            }
            20 => self.recall(at),
            event => self.move_service(event)?,
        }
        Ok(())
    }

    /// Moves the service, or one of those behind it.
    fn move_service(&mut self, event: u64) -> Verdict {
        let bed = &mut self.bed;
        match event {
            21 | 22 => {
                bed.service.poll(bed.now);
            }
            23 => {
                let shard = self.choices.place(bed.shards.len());
                bed.run_shard(shard);
            }
            24 => {
                bed.run_planner();
            }
            25 => {
                bed.take_questions();
                bed.run_registrar();
            }
            26 => {
                bed.deliver_answer(self.choices.place(8));
            }
            27 => {
                bed.write_journal();
            }
            28 if self.choices.one_in(4) => bed.change_access(self.choices.one_in(2)),
            28 => bed.set_full(self.choices.one_in(4)),
            29 => bed.pass(self.choices.below(4_000)),
            30 if self.choices.one_in(16) => bed.pass(2 * PASS_MAX),
            30 => {
                // A thread without work may sleep.
                let _sleeps = bed.service.try_sleep();
            }
            _ => {
                bed.run_all();
            }
        }
        Ok(())
    }

    /// Another connection wants the session, or the service stops.
    fn recall(&mut self, at: usize) {
        if let Some(key) = self.peers.all[at].key {
            self.bed.service.recall(key, self.bed.now);
        }
    }

    /// Ends all connections and checks what must hold then.
    fn finish(mut self) -> Result<ServedCounts, Finding> {
        for _ in 0..ROUNDS_MAX {
            let moved = self.finish_round()?;
            if self.peers.open().is_empty() {
                break;
            }
            if moved == 0 {
                let limit = self.bed.now.plus_nanos(PASS_MAX);
                let due = self.bed.next_deadline().unwrap_or(limit).min(limit);
                self.bed.now = Time(due.0.max(self.bed.now.0 + 1));
            }
        }
        if let Some(&number) = self.peers.open().first() {
            let (at_once, waiting) = self.bed.service.in_engine();
            return found(format!(
                "connection {number} does not end, with {at_once} requests in the engine and {waiting} that wait"
            ));
        }
        // Views of followers that left, and sessions without a connection, end with time.
        for _ in 0..4 {
            self.bed.pass(PASS_MAX);
            self.bed.run_dry();
        }
        self.bed.check_rest()?;
        self.peers.check_answered()?;
        Ok(self.peers.counts)
    }

    /// Lets peers send what they have, take everything, and end. Returns how much moved.
    fn finish_round(&mut self) -> Result<usize, Finding> {
        let mut moved = self.bed.run_all() + self.peers.hang_up(&mut self.bed);
        for at in self.peers.open() {
            moved += self.peers.feed(&mut self.bed, at, usize::MAX);
            moved += self.peers.take(&mut self.bed, at)?;
            moved += self.peers.write(&mut self.bed, at);
            if self.peers.all[at].queued.is_empty() {
                self.peers.end(&mut self.bed, at, InputEnd::Finished);
            }
            moved += self.peers.close(&mut self.bed, at);
        }
        Ok(moved)
    }
}
