//! Shards on threads: a thin loop around [`Shard::step`].
//!
//! Each pass of the loop does the following:
//!
//! 1. It drains the shard's rings into a batch, of as many commands as it can do in a short time. It takes at most a
//!    quantum per ring and round, and records the order.
//! 2. It steps the shard.
//! 3. It puts the effects into the journal, if there is one.
//! 4. It publishes the summary, how long commands take, and what changed if views are enabled.
//! 5. It hands out the outcomes and rings the bells of the ports.
//!
//! The loop asks to abort statements whose hold is past its deadline. It feeds the decisions back to the
//! shard in the next batch. When idle, it polls a few times, then sleeps until its bell rings or a deadline
//! in the shard is reached. An idle shard uses no cpu. While it sleeps, a port that has a lone request may run it
//! ([`ShardRunner::run_lent`]).
//!
//! The caller provides the clock, the thread and the observation ([`Clock`], [`Observer`]). This module
//! starts no threads.

mod pace;
mod running;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use crate::ids::{ShardId, StatementId};
use crate::journal::Unit;
use crate::limits::{BATCH_MAX, RING_QUANTUM};
use crate::link::{
    Clock, Consumer, Decision, Doorbell, JournalQueue, Lent, PlannerBell, Producer, ShardNews, ShardSummary,
    StopSignal, ThreadWaker, ViewInterest, WokenBox,
};
use crate::planted::{PlantedBug, is_planted};
use crate::request::Placement;
use crate::router::port::{Answer, Submission};
use crate::shard::{ClaimEvent, Command, NodeChange, Outcome, Pages, ReservationChange, Shard};
use crate::state::{Deed, Done, Origin};
use crate::time::Time;
use pace::Pace;

/// The port number in a batch record for commands that the runner feeds back itself.
pub const OWN_PORT: u16 = u16::MAX;

/// A batch and the times of its stages. Apart from its state, this is the shard's only input.
#[derive(Debug)]
pub struct BatchRecord<'a> {
    /// The shard.
    pub shard: ShardId,
    /// The `now` of the batch.
    pub now: Time,
    /// The port and the number of commands it gave, in order. [`OWN_PORT`] is the runner itself.
    pub order: &'a [(u16, u16)],
    /// The commands.
    pub commands: &'a [Command],
    /// The time at which each command was put into its ring.
    pub enqueued: &'a [Time],
}

/// Watches the batches of one shard, on the shard's own thread.
pub trait Observer: Send {
    /// Called before the batch is processed.
    fn handle_batch(&mut self, _batch: &BatchRecord<'_>) {}
    /// Called after the batch was processed, with the time at which it was.
    fn handle_stepped(&mut self, _outcomes: &[Outcome], _finished: Time) {}
    /// Called after a batch with the events of claims.
    fn handle_claims(&mut self, _events: &[ClaimEvent]) {}
    /// Called before the thread goes to sleep because it has nothing to do.
    fn handle_sleep(&mut self) {}
    /// Returns whether the observer wants the finish times.
    fn wants_times(&self) -> bool {
        false
    }
}

/// An observer that does nothing.
pub struct Unobserved;
impl Observer for Unobserved {}

/// The rings between a shard and one port, and the bell of the port.
pub struct ShardLink {
    pub(crate) submissions: Consumer<Submission>,
    pub(crate) answers: Producer<Answer>,
    pub(crate) bell: Arc<Doorbell>,
    pub(crate) woken: Arc<WokenBox>,
    pub(crate) news: Arc<ShardNews>,
}

/// A shard with its rings. A thread runs it, or a caller runs it batch by batch.
pub struct ShardRunner {
    shard: Shard,
    id: ShardId,
    links: Vec<ShardLink>,
    summary: Arc<ShardSummary>,
    bell: Arc<Doorbell>,
    waker: Arc<ThreadWaker>,
    stop: StopSignal,
    /// The ring at which the next batch begins.
    first: usize,
    batch: Vec<Command>,
    tokens: Vec<u32>,
    enqueued: Vec<Time>,
    /// The request of each command. Empty without a journal.
    origins: Vec<Option<Origin>>,
    /// The requests of the statements that are held here, with a journal.
    prepared: BTreeMap<StatementId, Origin>,
    order: Vec<(u16, u16)>,
    outcomes: Vec<Outcome>,
    spin: u32,
    /// How long commands take.
    pace: Pace,
    /// Set if the last thing that the runner did was to fall asleep. The bell alone does not show this: a runner
    /// that a deadline woke continues with a bell that nobody rang.
    rested: bool,
    /// The commands that the runner feeds back in the next batch.
    own: Vec<Command>,
    /// A pending export, and the port that asked for it. It waits until nothing is held.
    export: Option<(u16, Submission)>,
    /// The version of the reservation owners that were published last.
    owners_version: u64,
    planners: Vec<Arc<PlannerBell>>,
    /// The ports that want to hear of views.
    interest: Arc<ViewInterest>,
    /// The counters of growth and ended bundles when planners were last notified.
    told: (u64, u64),
    journal: Option<Arc<JournalQueue<Unit>>>,
    /// Where the ports find the shard while its thread sleeps.
    lent: Arc<OnceLock<Arc<dyn Lent>>>,
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
        shard.set_view_bell(&bell);
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
            origins: Vec::new(),
            prepared: BTreeMap::new(),
            order: Vec::new(),
            outcomes: Vec::with_capacity(BATCH_MAX),
            own: Vec::new(),
            export: None,
            journal: None,
            lent: Arc::default(),
            spin: 200,
            pace: Pace::default(),
            rested: false,
        }
    }

    /// Creates a bell and its waker for a shard that a thread will run.
    pub(crate) fn doorbell() -> (Arc<Doorbell>, Arc<ThreadWaker>) {
        let waker = Arc::new(ThreadWaker::default());
        (Arc::new(Doorbell::new(Waker::from(Arc::clone(&waker)))), waker)
    }

    /// Returns the id of the shard.
    #[must_use]
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Sets how many times the runner polls for work before it sleeps.
    pub fn set_spin(&mut self, looks: u32) {
        self.spin = looks;
    }

    /// Sets the page sizes of the shard, for a test.
    pub fn set_pages(&mut self, pages: Pages) {
        self.shard.set_pages(pages);
    }

    /// Sets the bounds of what the shard publishes for views, for a test.
    pub fn set_view_bounds(&mut self, publications: usize, places: usize) {
        self.shard.set_view_bounds(publications, places);
    }

    /// Sets the time that a command takes, in ns, instead of the measured one. For a test.
    pub fn set_pace(&mut self, nanos: u64) {
        self.pace.fix(nanos);
        self.summary.publish_pace(nanos);
    }

    /// Returns the shard, for inspection between batches.
    #[must_use]
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Puts into the journal what the start itself has changed: claims that it granted. A caller that runs the shard by hand
    /// does so before the first batch. [`run`](Self::run) does it by itself.
    pub fn record_start(&mut self) {
        self.record();
    }

    /// Polls a last time and returns `true` if the runner may sleep until its bell rings or the shard's next
    /// deadline. [`run`](Self::run) then parks its thread. A caller that runs it by hand may leave it alone.
    pub fn fall_asleep(&mut self) -> bool {
        if !self.own.is_empty() {
            return false;
        }
        let Self { links, stop, bell, shard, .. } = self;
        self.rested = bell.sleep_if(|| {
            !stop.is_stopped()
                && links.iter_mut().all(|link| link.submissions.is_empty())
                && !shard.has_view_to_publish()
        });
        self.rested
    }

    /// Returns the bell that ports ring for the shard.
    #[must_use]
    pub fn bell(&self) -> &Arc<Doorbell> {
        &self.bell
    }

    /// Returns whether the runner fell asleep and its bell has not been rung since.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        self.bell.is_asleep()
    }

    /// Returns whether the runner sleeps although there is work for it. If so, a wake-up was lost.
    pub fn oversleeps(&mut self) -> bool {
        let full = self.links.iter_mut().any(|link| !link.submissions.is_empty());
        let is_behind = self.shard.has_view_to_publish();
        self.rested && self.is_asleep() && (full || is_behind || !self.own.is_empty())
    }

    /// Processes one batch if there are commands or a deadline in the shard has passed. Returns the number of
    /// commands.
    pub fn run_batch(&mut self, clock: &impl Clock, observer: &mut impl Observer) -> usize {
        self.drain(clock);
        let count = self.batch.len();
        if count == 0 && self.shard.next_deadline().is_none_or(|due| due > clock.now()) {
            // Readers may have made room for what is not published.
            let sequence = self.shard.publish_view();
            self.tell_readers(sequence);
            return 0;
        }
        self.rested = false;
        let late = is_planted(PlantedBug::RecordedAfterAnswers);
        if late {
            self.record();
        }
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
        // First of all: whatever follows from the effects is put into the journal after them.
        if !late {
            self.record();
        }
        let finished = clock.now();
        if count > 0 {
            self.pace.add(finished.nanos_since(now), count);
            self.summary.publish_pace(self.pace.per_command());
        }
        // Before the outcomes: a caller that has seen an outcome finds facts at least as new.
        let late = is_planted(PlantedBug::PublishedAfterAnswers);
        if !late {
            self.publish();
        }
        if observer.wants_times() {
            observer.handle_stepped(&self.outcomes, finished);
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

    /// Puts the effects since the last call into the journal, with the requests that caused them.
    fn record(&mut self) {
        let Some(journal) = &self.journal else { return };
        let prepared = &mut self.prepared;
        let pairs = self.origins.drain(..).zip(&self.outcomes);
        let pairs = pairs.filter_map(|(origin, outcome)| {
            let origin = match outcome {
                Outcome::Prepared(part) if !part.held.is_empty() => {
                    prepared.extend(origin.map(|origin| (part.statement, origin)));
                    None
                }
                // This runner may have finished the part itself, and then the command names no request.
                Outcome::Applied(Ok(applied)) => prepared.remove(&applied.statement).or(origin),
                _ => origin,
            };
            done_of(origin?, outcome)
        });
        let mut done: Vec<_> = pairs.collect();
        if is_planted(PlantedBug::OutcomeNotJournaled) {
            done.clear();
        }
        if let Some(unit) = self.shard.take_unit(done) {
            journal.put(unit);
        }
    }

    /// Sets where the effects of each batch go. The shard must note them.
    pub(crate) fn set_journal(&mut self, journal: Arc<JournalQueue<Unit>>) {
        self.journal = Some(journal);
    }

    /// Sets the planners whose bells are rung in addition to those of the ports.
    pub(crate) fn set_planners(&mut self, planners: Vec<Arc<PlannerBell>>) {
        self.planners = planners;
    }

    /// Notifies planners of growth and ended bundles, after these were published.
    fn tell_planners(&mut self, growth: u64) {
        let now = (growth, self.shard.bundles_ended());
        let before = std::mem::replace(&mut self.told, now);
        for planner in &self.planners {
            planner.tell(now.0 != before.0, now.1 != before.1);
        }
    }

    /// Asks to abort statements whose hold is past its deadline. The next batch applies the decisions.
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

    /// Asks to abort every held statement, so that an exported shard has nothing undecided. Returns whether
    /// there was any.
    fn settle(&mut self) -> bool {
        // Statements that were due in the last batch are among the undecided ones below.
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
        // The view first: a planner that sees growth here finds in the view what grew, or that a view is due. In the
        // other order it could try a waiting group on the old view and then see no more growth.
        let sequence = self.shard.publish_view();
        self.summary.publish(&facts);
        if !self.planners.is_empty() {
            self.tell_planners(facts.growth);
        }
        self.tell_readers(sequence);
    }

    /// Sets where the ports find the shard while its thread sleeps.
    pub(crate) fn set_lent(&mut self, lent: Arc<OnceLock<Arc<dyn Lent>>>) {
        self.lent = lent;
    }

    /// Sets where ports register their interest in views.
    pub(crate) fn set_interest(&mut self, interest: Arc<ViewInterest>) {
        self.interest = interest;
    }

    /// Notifies the ports that want to hear of the view that was just published.
    fn tell_readers(&mut self, published: Option<u64>) {
        let Some(sequence) = published else { return };
        let mut ports = self.interest.take(sequence);
        while ports != 0 {
            let link = &self.links[ports.trailing_zeros() as usize];
            link.news.put(self.id);
            link.bell.ring();
            ports &= ports - 1;
        }
    }

    /// Fills the batch from the rings in turn, with at most a quantum from each ring per round. If the batch
    /// is full before every ring had its turn, the next batch begins at the next ring. Otherwise, the last of
    /// many ports would wait for as many batches as there are ports before it.
    fn drain(&mut self, clock: &impl Clock) {
        self.order.clear();
        self.tokens.clear();
        self.enqueued.clear();
        self.drain_export(clock);
        let ports = self.links.len();
        // What the runner feeds back comes in addition, so that it holds up no ring.
        let most = BATCH_MAX.min(self.batch.len() + self.pace.batch_max());
        let mut next = (self.first + 1) % ports;
        let mut took = true;
        while took && self.batch.len() < most && self.export.is_none() {
            took = false;
            for port in (self.first..ports).chain(0..self.first) {
                let room = RING_QUANTUM.min(most - self.batch.len());
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
                    if self.journal.is_some() {
                        self.origins.push(submission.origin);
                    }
                    count += 1;
                }
                if count > 0 {
                    took = true;
                    self.order.push((port as u16, count as u16));
                }
                if self.batch.len() == most {
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

    /// Takes the commands that the runner feeds back, then a pending export. Statements that the export would
    /// find undecided are decided first, because an exported state does not contain undecided statements.
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
            if self.journal.is_some() {
                self.origins.push(submission.origin);
            }
            self.order.push((port, 1));
        }
    }

    /// Takes the commands that the runner feeds back. They come before those in the rings.
    fn drain_own(&mut self, clock: &impl Clock) {
        if self.own.is_empty() {
            return;
        }
        let count = self.own.len().min(BATCH_MAX);
        self.batch.extend(self.own.drain(..count));
        self.tokens.resize(count, 0);
        self.enqueued.resize(count, clock.now());
        if self.journal.is_some() {
            self.origins.resize(count, None);
        }
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

/// Returns what a part of a request has done. `None` if it changed nothing.
fn done_of(origin: Origin, outcome: &Outcome) -> Option<Done> {
    let placed = |placement: &Placement| {
        let alternative = origin.alternative.unwrap_or(placement.alternative);
        Deed::Placed(Box::new(Placement { alternative, ..placement.clone() }), None)
    };
    let deed = match outcome {
        Outcome::Place(Ok(placement)) => placed(placement),
        Outcome::PlaceInto(Ok(placement)) | Outcome::Adopt(Ok(placement)) => placed(placement),
        Outcome::Release(Ok(released)) => Deed::Released(released.inside),
        &Outcome::Node(Ok(change)) => match change {
            NodeChange::Added(node)
            | NodeChange::Updated(node)
            | NodeChange::State(node, _)
            | NodeChange::Health(node) => Deed::NodeChanged(node),
            NodeChange::Removed { node, allocations_ended, .. } => Deed::NodeRemoved(node, allocations_ended),
        },
        &Outcome::Reserve(Ok(ReservationChange::Ended(node))) => Deed::ReservationEnded(node),
        Outcome::Applied(Ok(applied)) if !applied.granted.is_empty() => {
            Deed::Statement(applied.statement, applied.granted.clone(), BTreeMap::new())
        }
        // A reservation that is made again is the same.
        _ => return None,
    };
    Some(Done { origin, deed })
}

const _: () = assert!(crate::limits::PORTS_MAX <= 64, "ports fit one word of bits");

#[cfg(test)]
mod tests;
