//! Shards on threads: a thin loop around [`Shard::step`].
//!
//! The loop drains the shard's rings into a batch, fairly (a quantum per ring and round) and in
//! an order that it records; steps; publishes the summary, and a view where views are made; hands
//! out the outcomes; rings the bells of the ports. Statements whose hold is past its deadline it
//! asks to abort, and what is decided of them it feeds back in its next batch. With nothing to do
//! it looks a few times more, then sleeps until its bell is rung, or something in the shard reaches
//! its deadline: an idle shard costs no cpu.
//!
//! Clock, thread start and observation are the caller's ([`Clock`], [`Observer`]); this module
//! starts no thread of its own.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::ids::ShardId;
use crate::limits::{BATCH_MAX, RING_QUANTUM};
use crate::link::{
    Clock, Consumer, Decision, Doorbell, PlannerBell, Producer, ShardSummary, StopSignal, ThreadWaker,
    ViewInterest, ViewNews, WokenBox,
};
use crate::planted::{PlantedBug, is_planted};
use crate::router::port::{Answer, Submission};
use crate::shard::{ClaimEvent, Command, Outcome, Pages, Shard};
use crate::time::Time;

/// The port that a batch names for what its runner feeds back: what is decided of statements.
pub const OWN_PORT: u16 = u16::MAX;

/// What a batch was and when its stages were reached: the shard's only input besides its state.
#[derive(Debug)]
pub struct BatchRecord<'a> {
    /// The shard.
    pub shard: ShardId,
    /// The batch's `now`.
    pub now: Time,
    /// Which port gave how many of the commands, in order; [`OWN_PORT`]: the runner itself.
    pub order: &'a [(u16, u16)],
    /// The commands.
    pub commands: &'a [Command],
    /// When each command was put into its ring.
    pub enqueued: &'a [Time],
}

/// Watches the batches of one shard, from the shard's own thread.
pub trait Observer: Send {
    /// Before the batch is carried out.
    fn handle_batch(&mut self, _batch: &BatchRecord<'_>) {}
    /// After it was, and its outcomes were handed out.
    fn handle_stepped(&mut self, _outcomes: &[Outcome], _finished: Time) {}
    /// What became of claims, after their batch.
    fn handle_claims(&mut self, _events: &[ClaimEvent]) {}
    /// Before the thread goes to sleep because nothing is to be done.
    fn handle_sleep(&mut self) {}
    /// Whether the times are wanted: reading the clock again costs something.
    fn wants_times(&self) -> bool {
        false
    }
}

/// Watches nothing.
pub struct Unobserved;
impl Observer for Unobserved {}

/// The rings between a shard and one port, and the bell of the port.
pub struct ShardLink {
    pub(crate) submissions: Consumer<Submission>,
    pub(crate) answers: Producer<Answer>,
    pub(crate) bell: Arc<Doorbell>,
    pub(crate) woken: Arc<WokenBox>,
    pub(crate) news: Arc<ViewNews>,
}

/// A shard with its rings, ready to be run by a thread (or by hand, batch by batch).
pub struct ShardRunner {
    shard: Shard,
    id: ShardId,
    links: Vec<ShardLink>,
    summary: Arc<ShardSummary>,
    bell: Arc<Doorbell>,
    waker: Arc<ThreadWaker>,
    stop: StopSignal,
    /// The ring that the next batch begins with.
    first: usize,
    batch: Vec<Command>,
    tokens: Vec<u32>,
    enqueued: Vec<Time>,
    order: Vec<(u16, u16)>,
    outcomes: Vec<Outcome>,
    spin: u32,
    /// The last thing it did was to fall asleep. Its bell alone does not say so: who is woken by a deadline
    /// goes on with a bell that nobody rang.
    rested: bool,
    /// What is fed back in the next batch.
    own: Vec<Command>,
    /// An export that waits until nothing is held, and the port that asks for it.
    export: Option<(u16, Submission)>,
    /// Of the owners of reservations that were published last.
    owners_version: u64,
    planners: Vec<Arc<PlannerBell>>,
    /// Who wants to hear of views.
    interest: Arc<ViewInterest>,
    /// Growth and losses when planners were told last.
    told: (u64, u64),
}

impl ShardRunner {
    pub(crate) fn new(
        id: ShardId,
        mut shard: Shard,
        links: Vec<ShardLink>,
        summary: Arc<ShardSummary>,
        bell: Arc<Doorbell>,
        waker: Arc<ThreadWaker>,
        stop: StopSignal,
    ) -> Self {
        stop.watch(&bell);
        let interest = Arc::default();
        summary.publish_owners(shard.reservation_owners());
        summary.publish(&shard.facts());
        let owners_version = shard.reservation_owners_version();
        Self {
            owners_version,
            planners: Vec::new(),
            interest,
            told: (0, 0),
            shard,
            id,
            links,
            summary,
            bell,
            waker,
            stop,
            first: 0,
            batch: Vec::with_capacity(BATCH_MAX),
            tokens: Vec::with_capacity(BATCH_MAX),
            enqueued: Vec::with_capacity(BATCH_MAX),
            order: Vec::new(),
            outcomes: Vec::with_capacity(BATCH_MAX),
            own: Vec::new(),
            export: None,
            spin: 200,
            rested: false,
        }
    }

    /// A bell and its waker for a shard that a thread will run.
    pub(crate) fn doorbell() -> (Arc<Doorbell>, Arc<ThreadWaker>) {
        let waker = Arc::new(ThreadWaker::default());
        (Arc::new(Doorbell::new(Waker::from(Arc::clone(&waker)))), waker)
    }

    /// Which shard it runs.
    #[must_use]
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// How often it looks for work before it sleeps.
    pub fn set_spin(&mut self, looks: u32) {
        self.spin = looks;
    }

    /// Sets how large the pages of its shard are, for a test.
    pub fn set_pages(&mut self, pages: Pages) {
        self.shard.set_pages(pages);
    }

    /// The shard, to be looked at between batches.
    #[must_use]
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Runs on the calling thread until stopped and out of work; gives the shard back.
    pub fn run(mut self, clock: &impl Clock, observer: &mut impl Observer) -> Shard {
        self.waker.set_current();
        let mut idle_looks = 0;
        loop {
            // Read before the rings: what was submitted before the stop is then still seen.
            let stopping = self.stop.is_stopped();
            if self.run_batch(clock, observer) > 0 {
                idle_looks = 0;
            } else if stopping {
                if !self.settle() {
                    return self.shard;
                }
            } else if idle_looks < self.spin {
                idle_looks += 1;
                std::hint::spin_loop();
            } else {
                idle_looks = 0;
                self.sleep(clock, observer);
            }
        }
    }

    /// Looks a last time: `true` says that nothing is to be done before the bell is rung or the shard's next
    /// deadline comes. [`run`](Self::run) parks its thread then; one that is run by hand may be left alone.
    pub fn fall_asleep(&mut self) -> bool {
        if !self.own.is_empty() {
            return false;
        }
        let links = &mut self.links;
        let stop = &self.stop;
        self.rested = self
            .bell
            .sleep_if(|| !stop.is_stopped() && links.iter_mut().all(|link| link.submissions.is_empty()));
        self.rested
    }

    /// Whether it fell asleep and its bell was not rung since.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        self.bell.is_asleep()
    }

    /// Whether it sleeps although something is in its rings: a wake-up was lost.
    pub fn oversleeps(&mut self) -> bool {
        let full = self.links.iter_mut().any(|link| !link.submissions.is_empty());
        self.rested && self.is_asleep() && (full || !self.own.is_empty())
    }

    /// Until the bell rings, or the next deadline in the shard.
    fn sleep(&mut self, clock: &impl Clock, observer: &mut impl Observer) {
        let due = self.shard.next_deadline();
        if self.fall_asleep() {
            observer.handle_sleep();
            match due {
                None => std::thread::park(),
                Some(due) => {
                    std::thread::park_timeout(Duration::from_nanos(due.nanos_since(clock.now())));
                }
            }
        }
    }

    /// One batch, if anything is there or a deadline in the shard has come; how many commands it
    /// had.
    pub fn run_batch(&mut self, clock: &impl Clock, observer: &mut impl Observer) -> usize {
        self.drain(clock);
        let count = self.batch.len();
        if count == 0 && self.shard.next_deadline().is_none_or(|due| due > clock.now()) {
            return 0;
        }
        self.rested = false;
        let now = clock.now();
        observer.handle_batch(&BatchRecord {
            shard: self.id,
            now,
            order: &self.order,
            commands: &self.batch,
            enqueued: &self.enqueued,
        });
        self.shard.step_batch(&mut self.batch, now, &mut self.outcomes);
        assert!(self.outcomes.len() == count, "{count} commands, {} outcomes", self.outcomes.len());
        // Before the outcomes: whoever has seen one finds facts at least as new.
        let late = is_planted(PlantedBug::PublishedAfterAnswers);
        if !late {
            self.publish();
        }
        if observer.wants_times() {
            observer.handle_stepped(&self.outcomes, clock.now());
        }
        self.hand_out();
        if late {
            self.publish();
        }
        self.ask_to_abort();
        if self.shard.is_behind() {
            self.own.push(Command::GoOn);
        }
        self.tell_claims(observer);
        count
    }

    /// Whose bells are rung beside those of ports.
    pub(crate) fn set_planners(&mut self, planners: Vec<Arc<PlannerBell>>) {
        self.planners = planners;
    }

    /// Tells planners of what may concern them, after it was published.
    fn tell_planners(&mut self, growth: u64) {
        let now = (growth, self.shard.endings());
        let before = std::mem::replace(&mut self.told, now);
        for planner in &self.planners {
            planner.tell(now.0 != before.0, now.1 != before.1);
        }
    }

    /// Asks to abort what is past its deadline; the next batch does what is decided.
    fn ask_to_abort(&mut self) {
        for (statement, cell) in self.shard.drain_due() {
            let mut decision = cell.decide(Decision::Aborted);
            if is_planted(PlantedBug::DeadlineOverrulesDecision) {
                decision = Decision::Aborted;
            }
            self.own.push(Command::Finish { statement, decision });
        }
    }

    fn tell_claims(&mut self, observer: &mut impl Observer) {
        let events = self.shard.drain_claim_events();
        if events.len() > 0 {
            observer.handle_claims(events.as_slice());
        }
    }

    /// Asks to abort all that is held, so that a shard that is put away has nothing undecided;
    /// whether there was anything.
    fn settle(&mut self) -> bool {
        // Those whose deadline came in the last batch have asked.
        self.own.clear();
        for (statement, cell) in self.shard.undecided() {
            self.own.push(Command::Finish { statement, decision: cell.decide(Decision::Aborted) });
        }
        !self.own.is_empty()
    }

    fn publish(&mut self) {
        let version = self.shard.reservation_owners_version();
        if version != self.owners_version {
            self.owners_version = version;
            self.summary.publish_owners(self.shard.reservation_owners());
        }
        let facts = self.shard.facts();
        // The view first: a planner that sees growth here finds in the view what grew. In the other order
        // it could try a waiting group on the old view, and then see no growth any more.
        let view = self.shard.publish_view();
        self.summary.publish(&facts);
        if !self.planners.is_empty() {
            self.tell_planners(facts.growth);
        }
        if let Some(view) = view {
            self.tell_followers(view.version().sequence);
        }
    }

    /// Who may follow its views, and how they say so.
    pub(crate) fn set_interest(&mut self, interest: Arc<ViewInterest>) {
        self.interest = interest;
    }

    /// Tells the ports that want to hear of the view that was just published.
    fn tell_followers(&mut self, sequence: u64) {
        let mut ports = self.interest.take(sequence);
        while ports != 0 {
            let link = &self.links[ports.trailing_zeros() as usize];
            link.news.put(self.id);
            link.bell.ring();
            ports &= ports - 1;
        }
    }

    /// Takes from the rings in turn, at most a quantum from each per round. A batch that is full
    /// before every ring had its turn goes on with the next ring: with many ports, the last
    /// would otherwise wait for as many batches as there are ports before it.
    fn drain(&mut self, clock: &impl Clock) {
        self.order.clear();
        self.tokens.clear();
        self.enqueued.clear();
        self.drain_export(clock);
        let ports = self.links.len();
        let mut next = (self.first + 1) % ports;
        let mut took = true;
        while took && self.batch.len() < BATCH_MAX && self.export.is_none() {
            took = false;
            for port in (self.first..ports).chain(0..self.first) {
                let room = RING_QUANTUM.min(BATCH_MAX - self.batch.len());
                let mut count = 0;
                while count < room
                    && self.export.is_none()
                    && let Some(submission) = self.links[port].submissions.pop()
                {
                    if matches!(submission.command, Command::Export) {
                        self.export = Some((port as u16, submission));
                        break;
                    }
                    self.batch.push(submission.command);
                    self.tokens.push(submission.token);
                    self.enqueued.push(submission.enqueued);
                    count += 1;
                }
                if count > 0 {
                    took = true;
                    self.order.push((port as u16, count as u16));
                }
                if self.batch.len() == BATCH_MAX {
                    next = (port + 1) % ports;
                    break;
                }
            }
        }
        self.first = next;
        if self.batch.is_empty() {
            self.drain_export(clock);
        }
    }

    /// What is fed back; then an export, which begins a batch so that what it holds is decided: what is
    /// put away knows nothing of statements that are not.
    fn drain_export(&mut self, clock: &impl Clock) {
        if self.export.is_some() {
            self.settle();
        }
        self.drain_own(clock);
        if self.own.is_empty()
            && self.batch.len() < BATCH_MAX
            && let Some((port, submission)) = self.export.take()
        {
            self.batch.push(submission.command);
            self.tokens.push(submission.token);
            self.enqueued.push(submission.enqueued);
            self.order.push((port, 1));
        }
    }

    /// What is fed back comes before what the rings hold.
    fn drain_own(&mut self, clock: &impl Clock) {
        if self.own.is_empty() {
            return;
        }
        let count = self.own.len().min(BATCH_MAX);
        self.batch.extend(self.own.drain(..count));
        self.tokens.resize(count, 0);
        self.enqueued.resize(count, clock.now());
        self.order.push((OWN_PORT, count as u16));
    }

    fn hand_out(&mut self) {
        let mut outcomes = self.outcomes.drain(..);
        let mut tokens = self.tokens.iter();
        let mut rung = 0u64;
        for token in self.shard.drain_woken() {
            self.links[usize::from(token.port)].woken.put(token.number);
            if !is_planted(PlantedBug::WokenPortNotRung) {
                rung |= 1 << token.port;
            }
        }
        for &(port, count) in &self.order {
            if port == OWN_PORT {
                // Nobody waits for these answers.
                outcomes.by_ref().zip(tokens.by_ref()).take(usize::from(count)).for_each(drop);
                continue;
            }
            let link = &mut self.links[usize::from(port)];
            for (outcome, &token) in outcomes.by_ref().zip(tokens.by_ref()).take(usize::from(count)) {
                let pushed = link.answers.push(Answer { token, outcome });
                assert!(pushed.is_ok(), "a ring holds all that a port may have in flight");
            }
            rung |= 1 << port;
        }
        for (port, link) in self.links.iter().enumerate() {
            if rung >> port & 1 == 1 {
                link.bell.ring();
            }
        }
    }
}

const _: () = assert!(crate::limits::PORTS_MAX <= 64, "ports fit one word of bits");

#[cfg(test)]
mod tests;
