//! The journal of a simulated start: the writer and the checkpointer of production over a disk that fails.
//!
//! [`Journal::write`] and [`Journal::turn`] are one turn of the threads in `ops/src/daemon/journal.rs`. The books are kept
//! as they were after each unit that is not durable yet. A start after a crash must come to one of these.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use wharf_core::ids::Incarnation;
use wharf_core::journal::{JournalFeed, JournalPort, JournalStore, StoreError, Unit};
use wharf_core::resource::ResourceRegistry;
use wharf_core::router::Port;
use wharf_core::state::StoreState;
use wharf_core::time::Time;
use wharf_ops::file_error::FileError;
use wharf_ops::journal::{Checkpointer, Heads, JournalWriter, Log, Store, Written};

use super::checkers::crash::as_stored;
use crate::disk::{Disk, Event, Image};

/// The number of old values that are dropped at once in these runs.
const TRIM_STEP: u64 = 4;

/// What the checkpoints are told.
enum Told {
    /// Units with global records.
    Global(Vec<Unit>),
    /// Begin a checkpoint that this append continues, with these heads before it.
    Begin(u64, Heads),
}

/// The books after the units so far, by the number of units.
pub type Books = BTreeMap<u64, StoreState>;

/// Everything that one start did to its disk, from the opening of the store to the end of the process.
#[derive(Clone, Debug)]
pub struct Life {
    /// What was on the disk before.
    pub image: Image,
    /// What the process did, in order.
    pub events: Vec<Event>,
    /// After how many events how many units were called durable.
    pub durable: Vec<(usize, u64)>,
    /// The books after each number of units. With no unit, those that the start began with.
    pub books: Books,
    /// What a clean stop wrote. A start reads it as it is.
    pub stopped: Option<StoreState>,
}

/// The journal of one start.
pub(super) struct Journal {
    pub(super) disk: Disk,
    // Before the store: a checkpoint that is under way ends first.
    checkpointer: Checkpointer,
    writer: JournalWriter<Log>,
    store: Store,
    /// What the engine says of the journal.
    port: JournalPort,
    inbox: Vec<Told>,
    needed_from: u64,
    is_busy: bool,
    /// The bytes of values after which a checkpoint begins.
    checkpoint_bytes: u64,
    /// The books after each number of units from the durable one on.
    pub(super) books: Books,
    /// The number of checkpoints that were completed.
    pub(super) checkpoints: u64,
    /// See [`Life::durable`]. Kept only if the disk keeps its events.
    durable_after: Vec<(usize, u64)>,
    keeps: bool,
}

/// What a start opens before its engine.
pub(super) struct Opening {
    pub(super) disk: Disk,
    pub(super) store: Store,
    pub(super) checkpoint_bytes: u64,
    pub(super) keeps: bool,
}

impl Journal {
    /// Begins the journal of a start over `state`, with which the store was opened. `port` belongs to the checkpoints.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn begin(
        opening: Opening,
        feed: JournalFeed,
        port: Port,
        incarnation: Incarnation,
        state: &StoreState,
    ) -> Result<Self, FileError> {
        let Opening { disk, mut store, checkpoint_bytes, keeps } = opening;
        let begun = store.begin(incarnation, state)?;
        let (mut log, last, heads) = begun.expect("this store has a journal");
        log.set_trim_step(TRIM_STEP);
        let names = state.registrar.resources.iter().map(String::as_str);
        let kinds = ResourceRegistry::with_names(names, &state.registrar.unit_instances);
        let kinds = Arc::new(kinds.expect("the registrar of this start has them"));
        let of_port = port.journal().expect("this engine has a journal").clone();
        let books = Books::from([(0, state.clone()), (of_port.position(), state.clone())]);
        let writer = JournalWriter::new(feed, log, (u64::from(incarnation.0), last), heads, kinds);
        Ok(Self {
            disk,
            store,
            writer,
            checkpointer: Checkpointer::new(port, state),
            port: of_port,
            inbox: Vec::new(),
            needed_from: 0,
            is_busy: false,
            checkpoint_bytes,
            books,
            checkpoints: 0,
            durable_after: Vec::new(),
            keeps,
        })
    }

    /// Returns the number of units so far.
    pub(super) fn position(&self) -> u64 {
        self.port.position()
    }

    /// Returns the number of units that were called durable.
    pub(super) fn durable(&self) -> u64 {
        self.port.durable()
    }

    /// Returns whether a thread sleeps although there is work for it.
    pub(super) fn oversleeps(&mut self) -> bool {
        let port = self.checkpointer.port();
        let is_overslept = port.bell().is_asleep() && !(port.is_idle() && self.inbox.is_empty());
        is_overslept || self.writer.feed().oversleeps()
    }

    /// One turn of the thread that writes.
    ///
    /// # Errors
    /// When it is unknown what the disk has. The process ends then.
    pub(super) fn write(&mut self) -> Result<Written, StoreError> {
        let written = self.writer.write()?;
        match written {
            Written::Nothing => {
                let _asleep = self.writer.feed().fall_asleep();
            }
            Written::Full => {}
            Written::All => {
                let global: Vec<Unit> = self.writer.take_global().collect();
                if !global.is_empty() {
                    self.tell(Told::Global(global));
                }
                self.writer.store().trim(self.needed_from)?;
                // Relaxed: there is one thread.
                let tail = self.writer.counters().tail_bytes.load(Ordering::Relaxed);
                if tail >= self.checkpoint_bytes && !self.is_busy {
                    // Relaxed: as above.
                    self.writer.counters().tail_bytes.store(0, Ordering::Relaxed);
                    self.is_busy = true;
                    let (from, heads) = self.writer.end();
                    let begin = Told::Begin(from, heads.clone());
                    self.tell(begin);
                }
                self.follow_durable();
            }
        }
        Ok(written)
    }

    fn tell(&mut self, told: Told) {
        self.inbox.push(told);
        self.checkpointer.port().bell().ring();
    }

    /// Forgets the books before those that are durable now, unless all are kept.
    fn follow_durable(&mut self) {
        let durable = self.durable();
        if self.keeps {
            self.durable_after.push((self.disk.count(), durable));
        } else {
            let floor = self.books.range(..=durable).next_back().map_or(0, |(&position, _)| position);
            self.books = self.books.split_off(&floor);
        }
    }

    /// Returns the books that a start after a crash now may come to.
    pub(super) fn allowed(&self) -> impl Iterator<Item = (u64, &StoreState)> {
        let durable = self.durable();
        let floor = self.books.range(..=durable).next_back().map_or(0, |(&position, _)| position);
        self.books.range(floor..).map(|(&position, books)| (position, books))
    }

    /// One turn of the thread of checkpoints. A failure gives the checkpoint up. Returns what happened.
    pub(super) fn turn(&mut self, now: Time) -> Option<String> {
        let mut failure = None;
        for told in std::mem::take(&mut self.inbox) {
            match told {
                Told::Global(units) => units.iter().for_each(|unit| self.checkpointer.note(unit)),
                Told::Begin(from, heads) => {
                    failure = self.checkpointer.begin(&self.store, from, &heads, now).err();
                }
            }
        }
        let polled = if failure.is_none() { self.checkpointer.poll(now) } else { Ok(None) };
        let port = self.checkpointer.port();
        let bell = Arc::clone(port.bell());
        let _asleep = bell.sleep_if(|| port.is_idle());
        match (failure, polled) {
            (None, Ok(None)) => None,
            (None, Ok(Some(from))) => {
                self.needed_from = from;
                self.is_busy = false;
                self.checkpoints += 1;
                Some(format!("a checkpoint is complete, continued by append {from}"))
            }
            (Some(error), _) | (None, Err(error)) => {
                self.is_busy = false;
                Some(format!("a checkpoint is given up: {error}"))
            }
        }
    }

    /// Returns whether a checkpoint is under way.
    pub(super) fn is_making_checkpoint(&self) -> bool {
        self.checkpointer.is_running()
    }

    /// Ends checkpoints, as the first step of a clean stop.
    pub(super) fn stop_checkpoints(&mut self) {
        self.checkpointer.give_up();
    }

    /// Writes what is left, on a disk that has room. Everything that puts units in has ended.
    ///
    /// # Errors
    /// When the disk does not work.
    pub(super) fn write_all(&mut self) -> Result<(), StoreError> {
        while self.write()? != Written::Nothing {}
        Ok(())
    }

    /// Writes the state of a clean stop and closes the files. Everything is written.
    ///
    /// # Errors
    /// When the disk does not work.
    pub(super) fn finish(self, state: &StoreState) -> Result<Option<Life>, FileError> {
        let last = self.writer.end().0 - 1;
        self.store.checkpoint(state, Some(last))?;
        let stopped = Some(StoreState { groups: as_stored(&state.groups), ..state.clone() });
        Ok(self.end().map(|life| Life { stopped, ..life }))
    }

    /// Ends the process, and returns what it did if it was kept.
    pub(super) fn end(self) -> Option<Life> {
        let Self { disk, writer, store, checkpointer, durable_after, books, keeps, .. } = self;
        // Before the files are closed: a process that crashes does not close them.
        let events = disk.take_events();
        drop((writer, checkpointer, store));
        keeps.then(|| Life { image: disk.first(), events, durable: durable_after, books, stopped: None })
    }
}
