//! The loops of the journal's threads, one turn at a time.
//!
//! The service runs each loop on a thread of its own, parks it between turns, and says in its log what happened. The
//! simulator runs the turns by hand, over a disk that fails. So the code that decides what is durable, what is dropped
//! and when a checkpoint begins is the same in both.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use wharf_core::journal::{JournalFeed, JournalStore, StoreError, Unit};
use wharf_core::link::{Doorbell, StopSignal, lock};
use wharf_core::router::Port;
use wharf_core::state::StoreState;
use wharf_core::time::Time;
use wharf_net::protocol::{ExportRequest, Fault};
use wharf_net::server::{ExportAnswer, Exports};

use super::checkpointer::Checkpointer;
use super::events::{EventReader, EventsInbox};
use super::exporter::Exporter;
use super::log::Log;
use super::recent::Recent;
use super::retention::STEP;
use super::row::kinds_of;
use super::store::Store;
use super::writer::{Heads, JournalCounters, JournalWriter, Written};
use crate::file_error::FileError;

/// How much a journal keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalBounds {
    /// The bytes of values after which a checkpoint begins.
    pub checkpoint_bytes: u64,
    /// The bytes of the newest values that are kept for those who follow events.
    pub events_bytes: u64,
    /// The number of old values that are dropped at once.
    pub trim_step: u64,
}

impl JournalBounds {
    /// Returns bounds with the number of values that a service drops at once.
    #[must_use]
    pub fn new(checkpoint_bytes: u64, events_bytes: u64) -> Self {
        Self { checkpoint_bytes, events_bytes, trim_step: STEP }
    }
}

/// What the journal of a start begins with.
pub struct JournalStart<'a> {
    /// The engine's end of the journal.
    pub feed: JournalFeed,
    /// The port of the checkpoints.
    pub port: Port,
    /// The bell of the thread that reads events.
    pub events_bell: Arc<Doorbell>,
    /// The store, which this start has [begun](Store::begin).
    pub store: &'a Arc<Store>,
    /// The values of the journal.
    pub log: Log,
    /// The number of the last append.
    pub last: u64,
    /// The heads of the streams.
    pub heads: Heads,
    /// The [global records](StoreState::globals) of the state that the store was opened with.
    pub globals: StoreState,
    /// How much is kept.
    pub bounds: JournalBounds,
    /// The time of the start.
    pub now: Time,
}

/// The parts of a running journal, each for a thread of its own.
pub struct JournalLoops {
    /// Writes the journal.
    pub journal: JournalLoop,
    /// Makes checkpoints and exports.
    pub checkpoints: CheckpointLoop,
    /// Reads events.
    pub events: EventReader,
    /// What the checkpoints are told.
    pub inbox: Arc<CheckpointInbox>,
    /// The questions of those who follow events.
    pub events_inbox: Arc<EventsInbox>,
    /// The counters of the journal.
    pub counters: Arc<JournalCounters>,
}

impl JournalLoops {
    /// Begins the journal of a start.
    ///
    /// # Errors
    /// When the store cannot be read.
    ///
    /// # Panics
    /// If the state has resource kinds that no registrar knows.
    pub fn begin(start: JournalStart<'_>) -> Result<Self, FileError> {
        let JournalStart { feed, port, events_bell, store, log, last, heads, globals, bounds, now } = start;
        let kinds = Arc::new(kinds_of(&globals.registrar).expect("the registrar of this start has them"));
        let epoch = u64::from(globals.incarnation.0) + 1;
        let begun = store.events();
        let recent = Arc::new(Recent::new(last, begun.before, Arc::clone(&kinds), Arc::clone(&events_bell)));
        let events_inbox = Arc::new(EventsInbox::new(Arc::clone(&recent), events_bell));
        let events = EventReader::new(log.reader(), Arc::clone(&recent), &begun);
        let exporter = Exporter::new(log.reader());
        let writer = JournalWriter::new(feed, log, (epoch, last), heads, kinds);
        let mut writer = writer.with_events(&begun, Arc::clone(&recent), bounds.events_bytes);
        writer.set_trim_step(bounds.trim_step);
        let counters = Arc::clone(writer.counters());
        // Relaxed: statistics; nothing depends on their order.
        counters.checkpoint_from.store(store.checkpoint_from()?, Ordering::Relaxed);
        counters.checkpoint_at.store(now.0, Ordering::Relaxed);
        // The tail that this start read is in the way of the next one too, so it counts for the next checkpoint.
        // Relaxed: the thread that reads it does not run yet.
        counters.tail_bytes.store(store.recovery().bytes, Ordering::Relaxed);
        let inbox = Arc::new(CheckpointInbox::new(Arc::clone(port.bell())));
        let checkpoints = CheckpointLoop {
            checkpointer: Checkpointer::new(port, globals).with_appends(recent),
            exporter,
            inbox: Arc::clone(&inbox),
            counters: Arc::clone(&counters),
            store: Arc::clone(store),
            needed_from: 0,
        };
        let checkpoint_bytes = bounds.checkpoint_bytes;
        let journal = JournalLoop { writer, inbox: Arc::clone(&inbox), checkpoint_bytes };
        Ok(Self { journal, checkpoints, events, inbox, events_inbox, counters })
    }
}

/// What the checkpoints are told.
enum Told {
    /// Units with global records.
    Global(Vec<Unit>),
    /// Begin a checkpoint that this append continues, with these heads before it.
    Begin(u64, Heads),
    /// Make a page of an export, unless this time has passed.
    Export(ExportRequest, Time, ExportAnswer),
    /// Stop.
    Stop,
}

/// What the checkpoints were told, and what they tell.
pub struct CheckpointInbox {
    messages: Mutex<Vec<Told>>,
    bell: Arc<Doorbell>,
    /// The journal is needed from this append on.
    needed_from: AtomicU64,
    /// A checkpoint was asked for and is not complete.
    is_busy: AtomicBool,
}

impl CheckpointInbox {
    fn new(bell: Arc<Doorbell>) -> Self {
        let messages = Mutex::default();
        Self { messages, bell, needed_from: AtomicU64::new(0), is_busy: AtomicBool::new(false) }
    }

    fn tell(&self, message: Told) {
        lock(&self.messages).push(message);
        self.bell.ring();
    }

    fn take(&self) -> Vec<Told> {
        std::mem::take(&mut *lock(&self.messages))
    }

    fn is_empty(&self) -> bool {
        lock(&self.messages).is_empty()
    }

    /// Ends the checkpoints. One that is under way is given up.
    pub fn stop(&self) {
        self.tell(Told::Stop);
    }

    /// Returns the append from which on the journal is needed: by a start, or by an export.
    #[must_use]
    pub fn needed_from(&self) -> u64 {
        // Relaxed: a number that only grows; reading it late only keeps values longer.
        self.needed_from.load(Ordering::Relaxed)
    }

    fn set_needed_from(&self, needed_from: u64) {
        // Relaxed: see `needed_from`.
        self.needed_from.store(needed_from, Ordering::Relaxed);
    }

    /// Notes that a checkpoint is asked for, unless one is under way.
    fn takes_checkpoint(&self) -> bool {
        // Relaxed: only the journal's thread sets it, and the other thread clears it once it is done.
        !self.is_busy.swap(true, Ordering::Relaxed)
    }

    fn end_checkpoint(&self) {
        // Relaxed: see `takes_checkpoint`.
        self.is_busy.store(false, Ordering::Relaxed);
    }
}

impl Exports for CheckpointInbox {
    fn ask(&self, request: ExportRequest, due: Time, answer: ExportAnswer) {
        self.tell(Told::Export(request, due, answer));
    }
}

/// What a turn of the thread that writes came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalTurn {
    /// There was nothing to write.
    Nothing {
        /// The thread may sleep: the next unit wakes it.
        sleeps: bool,
    },
    /// Everything that had come in is durable.
    Written,
    /// The storage is full. The same is tried again with the next turn.
    Full,
    /// The journal was told to stop.
    Ended {
        /// The number of the last append.
        last: u64,
        /// Units that a full storage did not take.
        lost: u64,
    },
}

/// The loop of the thread that writes the journal.
pub struct JournalLoop {
    writer: JournalWriter<Log>,
    inbox: Arc<CheckpointInbox>,
    checkpoint_bytes: u64,
}

impl JournalLoop {
    /// Returns the engine's end of the journal.
    #[must_use]
    pub fn feed(&self) -> &JournalFeed {
        self.writer.feed()
    }

    /// Returns the signal that ends the loop. Everything that puts units in must have ended before.
    #[must_use]
    pub fn stop(&self) -> StopSignal {
        self.writer.feed().stop()
    }

    /// Writes what came in, lets go what nobody needs, and asks for a checkpoint if it is time.
    ///
    /// # Errors
    /// When it is unknown what the storage has. The process must end then.
    pub fn turn(&mut self) -> Result<JournalTurn, StoreError> {
        // First: what was put in before the stop is written.
        let is_stopped = self.writer.feed().is_stopped();
        match self.writer.write()? {
            Written::Nothing if is_stopped => {
                Ok(JournalTurn::Ended { last: self.writer.end().0 - 1, lost: 0 })
            }
            Written::Nothing => Ok(JournalTurn::Nothing { sleeps: self.writer.feed().fall_asleep() }),
            Written::Full if is_stopped => {
                // Values that were made and not appended have numbers too, so the end of the writer is too far.
                let last = self.writer.store().bounds()?.last;
                let lost = self.writer.behind();
                Ok(JournalTurn::Ended { last, lost })
            }
            Written::Full => Ok(JournalTurn::Full),
            Written::All => {
                self.follow_append()?;
                Ok(JournalTurn::Written)
            }
        }
    }

    /// Tells the checkpoints what was appended, and trims the log.
    fn follow_append(&mut self) -> Result<(), StoreError> {
        let Self { writer, inbox, .. } = self;
        let global: Vec<Unit> = writer.take_global().collect();
        if !global.is_empty() {
            inbox.tell(Told::Global(global));
        }
        writer.trim(inbox.needed_from())?;
        let kept = writer.store().bounds()?.count();
        // Relaxed: a statistic; nothing depends on its order.
        writer.counters().kept.store(kept, Ordering::Relaxed);
        // Relaxed: only this thread changes it.
        let tail = writer.counters().tail_bytes.load(Ordering::Relaxed);
        if tail >= self.checkpoint_bytes && inbox.takes_checkpoint() {
            // Relaxed: as above.
            writer.counters().tail_bytes.store(0, Ordering::Relaxed);
            let (from, heads) = writer.end();
            inbox.tell(Told::Begin(from, heads.clone()));
        }
        Ok(())
    }

    /// Returns whether the thread sleeps although there are units. If so, a wake-up was lost.
    #[must_use]
    pub fn oversleeps(&self) -> bool {
        self.writer.feed().oversleeps()
    }

    /// Returns the counters of the journal.
    #[must_use]
    pub fn counters(&self) -> &Arc<JournalCounters> {
        self.writer.counters()
    }
}

/// What a turn of the thread of the checkpoints came to.
#[derive(Debug)]
pub enum CheckpointTurn {
    /// It goes on.
    GoesOn,
    /// A checkpoint is complete. This append continues it.
    Completed(u64),
    /// A checkpoint was given up. The one before it stays.
    GivenUp(FileError),
    /// The thread was told to stop.
    Ended,
}

/// The loop of the thread that makes checkpoints and exports.
pub struct CheckpointLoop {
    // Before the store: a checkpoint that is under way ends first.
    checkpointer: Checkpointer,
    exporter: Exporter,
    inbox: Arc<CheckpointInbox>,
    counters: Arc<JournalCounters>,
    store: Arc<Store>,
    /// A start needs the journal from this append on.
    needed_from: u64,
}

impl CheckpointLoop {
    /// Does what it was told, and goes on with the checkpoint that is under way.
    pub fn turn(&mut self, now: Time) -> CheckpointTurn {
        let mut came_to = CheckpointTurn::GoesOn;
        for message in self.inbox.take() {
            match message {
                Told::Global(units) => units.iter().for_each(|unit| self.checkpointer.note(unit)),
                Told::Begin(from, heads) => {
                    if let Err(error) = self.checkpointer.begin(&self.store, from, &heads, now) {
                        came_to = self.give_up(error);
                    }
                }
                Told::Export(_, due, answer) if due.is_missed(now) => answer(Err(Fault::late())),
                Told::Export(request, _, answer) => answer(self.exporter.handle(request, &self.store, now)),
                Told::Stop => {
                    self.checkpointer.give_up();
                    return CheckpointTurn::Ended;
                }
            }
        }
        match self.checkpointer.poll(now) {
            Ok(None) => {}
            Ok(Some(from)) => {
                self.complete(from, now);
                came_to = CheckpointTurn::Completed(from);
            }
            Err(error) => came_to = self.give_up(error),
        }
        self.exporter.expire(now);
        if !self.exporter.is_active() {
            self.inbox.set_needed_from(self.needed_from);
        }
        came_to
    }

    fn complete(&mut self, from: u64, now: Time) {
        assert!(from >= self.needed_from, "a checkpoint from {from} follows one from {}", self.needed_from);
        self.needed_from = from;
        let JournalCounters { checkpoints, checkpoint_from, checkpoint_at, .. } = &*self.counters;
        // Relaxed: statistics; nothing depends on their order.
        checkpoints.fetch_add(1, Ordering::Relaxed);
        checkpoint_from.store(from, Ordering::Relaxed);
        checkpoint_at.store(now.0, Ordering::Relaxed);
        self.inbox.end_checkpoint();
    }

    fn give_up(&mut self, error: FileError) -> CheckpointTurn {
        self.inbox.end_checkpoint();
        CheckpointTurn::GivenUp(error)
    }

    /// Returns the time at which the next turn is due, if it waits for a time.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let deadlines = [self.checkpointer.next_deadline(), self.exporter.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Looks a last time. Returns `true` if there is nothing to do before the next deadline; what comes in wakes the thread.
    #[must_use]
    pub fn fall_asleep(&mut self) -> bool {
        let port = self.checkpointer.port();
        let bell = Arc::clone(port.bell());
        bell.sleep_if(|| port.is_idle() && self.inbox.is_empty())
    }

    /// Returns whether the thread sleeps although there is something for it. If so, a wake-up was lost.
    #[must_use]
    pub fn oversleeps(&mut self) -> bool {
        let port = self.checkpointer.port();
        port.bell().is_asleep() && !(port.is_idle() && self.inbox.is_empty())
    }

    /// Returns whether a checkpoint is under way.
    #[must_use]
    pub fn is_making_checkpoint(&self) -> bool {
        self.checkpointer.is_running()
    }
}

#[cfg(test)]
mod tests;
