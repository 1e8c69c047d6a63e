//! The journal of a simulated start: the loops of production over a disk that fails.
//!
//! [`Journal::write`] and [`Journal::turn`] are one turn of the threads that `ops/src/daemon/journal.rs` runs. The books are
//! kept as they were after each unit that is not durable yet. A start after a crash must come to one of these.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use wharf_core::ids::Incarnation;
use wharf_core::journal::{JournalFeed, JournalPort, StoreError};
use wharf_core::link::Doorbell;
use wharf_core::router::Port;
use wharf_core::shard::Shard;
use wharf_core::state::StoreState;
use wharf_core::time::Time;
use wharf_ops::file_error::FileError;
use wharf_ops::journal::{CheckpointTurn, JournalBounds, JournalLoops, JournalStart, JournalTurn, Store};

use super::checkers::crash::as_stored;
use crate::disk::{Disk, Event, Image};

/// The bytes of values after which a checkpoint begins in these runs.
const CHECKPOINT_BYTES: u64 = 600;

/// The number of old values that are dropped at once in these runs.
const TRIM_STEP: u64 = 4;

/// The bytes of values that a start keeps for those who follow events. Each start has the next of these.
const EVENTS_BYTES: [u64; 3] = [0, 900, 4000];

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
    loops: JournalLoops,
    store: Arc<Store>,
    /// What the engine says of the journal.
    port: JournalPort,
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
            durable_after: Vec::new(),
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
        let turn = self.loops.journal.turn()?;
        if turn == JournalTurn::Written {
            self.follow_durable();
        }
        Ok(turn)
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

    /// One turn of the thread of checkpoints. Returns what happened.
    pub(super) fn turn(&mut self, now: Time) -> Option<String> {
        let turn = self.loops.checkpoints.turn(now);
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
    pub(super) fn finish(self, state: &StoreState, last: u64) -> Result<Option<Life>, FileError> {
        self.store.checkpoint(state, Some(last))?;
        let stopped = Some(StoreState { groups: as_stored(&state.groups), ..state.clone() });
        Ok(self.end().map(|life| Life { stopped, ..life }))
    }

    /// Ends the process, and returns what it did if it was kept.
    pub(super) fn end(self) -> Option<Life> {
        let Self { disk, loops, store, durable_after, books, keeps, .. } = self;
        // Before the files are closed: a process that crashes does not close them.
        let events = disk.take_events();
        drop((loops, store));
        keeps.then(|| Life { image: disk.first(), events, durable: durable_after, books, stopped: None })
    }
}
