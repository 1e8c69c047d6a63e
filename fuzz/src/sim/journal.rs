//! The journal of a simulated start: the loops of production over a disk that fails.
//!
//! [`Journal::write`] and [`Journal::turn`] are one turn of the threads that `ops/src/daemon/journal.rs` runs. The books are
//! kept as they were after each unit that is not durable yet. A start after a crash must come to one of these.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use wharf_core::ids::Incarnation;
use wharf_core::journal::{JournalFeed, JournalPort, StoreError};
use wharf_core::link::Doorbell;
use wharf_core::router::Port;
use wharf_core::shard::Shard;
use wharf_core::state::StoreState;
use wharf_core::time::Time;
use wharf_ops::file_error::FileError;
use wharf_ops::journal::{
    CheckpointTurn, JournalBounds, JournalCounters, JournalLoops, JournalStart, JournalTurn, Store,
};

use super::checkers::crash::as_stored;
use super::checkers::outcomes::Replies;
use crate::disk::{Disk, Event, Image};

/// The bytes of values after which a checkpoint begins in these runs.
const CHECKPOINT_BYTES: u64 = 600;

/// The number of old values that are dropped at once in these runs.
const TRIM_STEP: u64 = 2;

/// The bytes of values that a start keeps for those who follow events. Each start has the next of these.
const EVENTS_BYTES: [u64; 3] = [0, 900, 4000];

/// The books after the units so far, by the number of units.
pub type Books = BTreeMap<u64, StoreState>;

/// What a start does to its disk at some time, in addition to appending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// A checkpoint is under way.
    Checkpoint,
    /// A checkpoint is completed.
    Completion,
    /// An append drops old values.
    Trim,
}

/// A stage, and what was done to the disk in it: the things after the first `from` of them, up to the first `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The stage.
    pub stage: Stage,
    /// The number of things that were done before.
    pub from: usize,
    /// The number of things that were done at its end.
    pub to: usize,
}

impl Span {
    /// Returns whether something of the stage was done after this many things, and something is left.
    #[must_use]
    pub fn is_within(&self, moment: usize) -> bool {
        self.from < moment && moment < self.to
    }
}

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
    /// The replies that may have left at each moment.
    pub replies: Replies,
    /// What was done in addition to appending.
    pub spans: Vec<Span>,
}

/// The journal of one start.
pub(super) struct Journal {
    pub(super) disk: Disk,
    loops: JournalLoops,
    store: Arc<Store>,
    /// What the engine says of the journal.
    port: JournalPort,
    /// The books after each number of units from the durable one on.
    pub(super) books: Books,
    /// The number of checkpoints that were completed.
    pub(super) checkpoints: u64,
    /// Once there was no room on the disk. Replies that only look may then have shown what is not durable.
    pub(super) was_full: bool,
    /// The number of units that were durable after the last turn that wrote, and after the one before it, if there were two.
    last_turn: Option<u64>,
    durable_before: Option<u64>,
    /// See [`Life::durable`]. Kept only if the disk keeps its events.
    durable_after: Vec<(usize, u64)>,
    /// See [`Life::spans`].
    spans: Vec<Span>,
    /// What had been done to the disk when the checkpoint began that is under way.
    checkpoint_begun: Option<usize>,
    keeps: bool,
}

/// Returns the last position of books up to which at most this many units lead.
pub(super) fn floor(books: &Books, units: u64) -> u64 {
    books.range(..=units).next_back().map_or(0, |(&position, _)| position)
}

/// What a start opens before its engine.
pub(super) struct Opening {
    pub(super) disk: Disk,
    pub(super) store: Store,
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
        let Opening { disk, mut store, keeps } = opening;
        store.record_undone(&feed, state.now);
        let begun = store.begin(incarnation, state)?;
        let (log, last, heads) = begun.expect("this store has a journal");
        let of_port = port.journal().expect("this engine has a journal").clone();
        let books = Books::from([(0, state.clone()), (of_port.position(), state.clone())]);
        let store = Arc::new(store);
        let events_bytes = EVENTS_BYTES[incarnation.0 as usize % EVENTS_BYTES.len()];
        let loops = JournalLoops::begin(JournalStart {
            feed,
            port,
            events_bell: Arc::new(Doorbell::new(Waker::noop().clone())),
            store: &store,
            log,
            last,
            heads,
            globals: state.globals(),
            bounds: JournalBounds { checkpoint_bytes: CHECKPOINT_BYTES, events_bytes, trim_step: TRIM_STEP },
            now: state.now,
        })?;
        Ok(Self {
            disk,
            loops,
            store,
            port: of_port,
            books,
            checkpoints: 0,
            was_full: false,
            last_turn: None,
            durable_before: None,
            durable_after: Vec::new(),
            spans: Vec::new(),
            checkpoint_begun: None,
            keeps,
        })
    }

    /// Keeps the books after the unit of what a start has changed in a shard, if there is one.
    pub(super) fn follow_start(&mut self, shard: &Shard) {
        let position = self.position();
        let (&last, books) = self.books.last_key_value().expect("those of the start");
        if position > last {
            let mut books = books.clone();
            for partition in shard.export().partitions {
                let at = usize::from(partition.id.0);
                books.partitions[at] = partition;
            }
            self.books.insert(position, books);
        }
    }

    /// Returns the number of units so far.
    pub(super) fn position(&self) -> u64 {
        self.port.position()
    }

    /// Returns the number of units that were durable before the last turn that wrote. `None` if there were not two: what was
    /// durable before is of an earlier start then.
    pub(super) fn durable_before(&self) -> Option<u64> {
        self.durable_before
    }

    /// Returns the number of units that were called durable.
    pub(super) fn durable(&self) -> u64 {
        self.port.durable()
    }

    /// Returns whether a thread sleeps although there is work for it.
    pub(super) fn oversleeps(&mut self) -> bool {
        self.loops.checkpoints.oversleeps() || self.loops.journal.oversleeps()
    }

    /// One turn of the thread that writes.
    ///
    /// # Errors
    /// When it is unknown what the disk has. The process ends then.
    pub(super) fn write(&mut self) -> Result<JournalTurn, StoreError> {
        let from = self.disk.count();
        let dropped = self.dropped();
        let turn = self.loops.journal.turn()?;
        self.was_full |= turn == JournalTurn::Full;
        if turn == JournalTurn::Written {
            if self.dropped() > dropped {
                self.note_span(Stage::Trim, from);
            }
            self.follow_durable();
        }
        Ok(turn)
    }

    /// Notes that what was done to the disk since was a stage.
    fn note_span(&mut self, stage: Stage, from: usize) {
        if self.keeps {
            self.spans.push(Span { stage, from, to: self.disk.count() });
        }
    }

    /// Returns how many appends there were more than values are kept. It grows when values are dropped.
    fn dropped(&self) -> i64 {
        let JournalCounters { appends, kept, .. } = &*self.loops.counters;
        // Relaxed: there is one thread.
        appends.load(Ordering::Relaxed) as i64 - kept.load(Ordering::Relaxed) as i64
    }

    /// Forgets the books before those that were durable before this turn, unless all are kept.
    fn follow_durable(&mut self) {
        let durable = self.durable();
        if self.keeps {
            self.durable_after.push((self.disk.count(), durable));
        } else {
            self.books = self.books.split_off(&floor(&self.books, self.last_turn.unwrap_or(0)));
        }
        self.durable_before = self.last_turn.replace(durable);
    }

    /// Returns the books that a start may come to that has at least this many units.
    pub(super) fn allowed(&self, units: u64) -> impl Iterator<Item = (u64, &StoreState)> {
        let books = self.books.range(floor(&self.books, units)..);
        books.map(|(&position, books)| (position, books))
    }

    /// One turn of the thread of checkpoints. Returns what happened.
    pub(super) fn turn(&mut self, now: Time) -> Option<String> {
        let from = self.disk.count();
        let turn = self.loops.checkpoints.turn(now);
        self.follow_checkpoint(&turn, from);
        let _asleep = self.loops.checkpoints.fall_asleep();
        match turn {
            CheckpointTurn::GoesOn => None,
            CheckpointTurn::Completed(from) => {
                self.checkpoints += 1;
                Some(format!("a checkpoint is complete, continued by append {from}"))
            }
            CheckpointTurn::GivenUp(error) => Some(format!("a checkpoint is given up: {error}")),
            CheckpointTurn::Ended => unreachable!("a stop takes the last turn itself"),
        }
    }

    /// Notes what was done to the disk since `from` for a checkpoint.
    fn follow_checkpoint(&mut self, turn: &CheckpointTurn, from: usize) {
        if let CheckpointTurn::Completed(_) = turn {
            self.note_span(Stage::Completion, from);
        }
        match (self.is_making_checkpoint(), self.checkpoint_begun) {
            (true, None) => self.checkpoint_begun = Some(from),
            (false, Some(begun)) => {
                self.note_span(Stage::Checkpoint, begun);
                self.checkpoint_begun = None;
            }
            _ => {}
        }
    }

    /// Returns whether a checkpoint is under way.
    pub(super) fn is_making_checkpoint(&self) -> bool {
        self.loops.checkpoints.is_making_checkpoint()
    }

    /// Ends checkpoints, as the first step of a clean stop.
    pub(super) fn stop_checkpoints(&mut self, now: Time) {
        self.loops.inbox.stop();
        while !matches!(self.loops.checkpoints.turn(now), CheckpointTurn::Ended) {}
    }

    /// Writes what is left, on a disk that has room, and returns the number of the last append. Everything that puts units
    /// in has ended.
    ///
    /// # Errors
    /// When the disk does not work.
    pub(super) fn write_all(&mut self) -> Result<u64, StoreError> {
        self.loops.journal.stop().stop();
        loop {
            if let JournalTurn::Ended { last, .. } = self.write()? {
                return Ok(last);
            }
        }
    }

    /// Writes the state of a clean stop and closes the files. Everything is written, up to append `last`.
    ///
    /// # Errors
    /// When the disk does not work.
    pub(super) fn finish(
        self,
        state: &StoreState,
        last: u64,
        replies: &Replies,
    ) -> Result<Option<Life>, FileError> {
        self.store.checkpoint(state, Some(last))?;
        let stopped = Some(StoreState { groups: as_stored(&state.groups), ..state.clone() });
        Ok(self.end(replies).map(|life| Life { stopped, ..life }))
    }

    /// Ends the process, and returns what it did if it was kept.
    pub(super) fn end(mut self, replies: &Replies) -> Option<Life> {
        if let Some(begun) = self.checkpoint_begun.take() {
            self.note_span(Stage::Checkpoint, begun);
        }
        let Self { disk, loops, store, durable_after, books, spans, keeps, .. } = self;
        // Before the files are closed: a process that crashes does not close them.
        let events = disk.take_events();
        drop((loops, store));
        keeps.then(|| Life {
            image: disk.first(),
            events,
            durable: durable_after,
            books,
            stopped: None,
            replies: replies.clone(),
            spans,
        })
    }
}
