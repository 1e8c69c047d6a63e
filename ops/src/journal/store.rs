//! The store on disk: its identity, the newest checkpoint, and the journal after it.
//!
//! The books of a store are its checkpoint and the units of the journal from the checkpoint's begin on. A run without a
//! journal (`durability = "memory"`) consumes the checkpoint instead: its books are gone if it does not stop cleanly.
//! In both cases:
//!
//! - Outdated books are never restored.
//! - No id is issued twice: each start has a new incarnation, and node ids skip a range after books were lost.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableHandle};
use tracing::warn;
use wharf_core::ids::Incarnation;
use wharf_core::journal::{Changes, JournalStore, Stream};
use wharf_core::limits::PARTITIONS_MAX;
use wharf_core::recovery::{Rebuild, TakenBack};
use wharf_core::state::StoreState;
use wharf_core::time::Time;

use super::checkpoint::{self, CheckpointWriter, NUMBERS, ROWS};
use super::events::EventsStart;
use super::files::{Directory, Files, open_database};
use super::log::Log;
use super::row;
use super::value::{Before, Value};
use super::writer::Heads;
use crate::file_error::FileError;

const IDENTITY: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("identity");

const FILE: &str = "store.redb";
const FORMAT: u64 = 7;

/// The number of positions between two histories of events, as a power of two.
const HISTORY_BITS: u32 = 44;

/// The cache of the database of checkpoints, which are written and read once, in order.
const CACHE_BYTES: usize = 64 << 20;

/// When a reply may leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Once what it tells of survives power loss.
    #[default]
    Sync,
    /// Once what it tells of survives the process, but not the machine.
    Os,
    /// At once. The books are in memory, and survive only a clean stop.
    Memory,
}

/// An error of reading a store.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// The database cannot be read.
    #[error("{0}")]
    Database(redb::Error),
    /// The contents are damaged, or have another format.
    #[error("{0}")]
    Content(String),
}

impl<E: Into<redb::Error>> From<E> for ReadError {
    fn from(error: E) -> Self {
        Self::Database(error.into())
    }
}

/// What recovery found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Appends after the checkpoint.
    pub appends: u64,
    /// Units in them.
    pub units: u64,
    /// What was taken back.
    pub taken_back: TakenBack,
}

/// An open store.
pub struct Store {
    files: Arc<dyn Files>,
    database: Database,
    id: [u8; 16],
    /// What the books are, if this run does not stop cleanly.
    durability: Durability,
    log: Option<Log>,
    heads: Heads,
    recovery: Recovery,
    /// What recovery took back, as the start must record it.
    undone: Vec<Changes>,
    events: EventsStart,
}

impl Store {
    /// Opens the store of `data_dir`, or creates it with `partitions`. Returns the newest state, which stays valid until
    /// [`begin`](Self::begin).
    ///
    /// # Errors
    /// When the directory or a file cannot be used, or the contents are damaged.
    pub fn open(
        data_dir: &Path,
        partitions: u16,
        durability: Durability,
    ) -> Result<(Self, StoreState), FileError> {
        Self::open_files(Arc::new(Directory::lock(data_dir)?), partitions, durability)
    }

    /// Opens the store in `files`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_files(
        files: Arc<dyn Files>,
        partitions: u16,
        durability: Durability,
    ) -> Result<(Self, StoreState), FileError> {
        let database = open_database(&*files, FILE, true, CACHE_BYTES)?;
        let log = Log::open(Arc::clone(&files), durability == Durability::Sync)?;
        let mut store = Self {
            files,
            database,
            id: [0; 16],
            durability,
            log: Some(log),
            heads: Heads::new(),
            recovery: Recovery::default(),
            undone: Vec::new(),
            events: EventsStart::default(),
        };
        store.create(partitions).map_err(|error| store.error(error))?;
        let state = store.read().map_err(|error| store.error(error))?;
        Ok((store, state))
    }

    fn error(&self, error: impl Display) -> FileError {
        FileError::new(&self.files.path(FILE), error)
    }

    /// Begins `incarnation` over `state`, which this store was opened with. Without a journal, this consumes the
    /// checkpoint: call it only when nothing else can make the start fail. Returns the journal's values, the number of the
    /// last append, and the heads of the streams, if there is a journal.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn begin(
        &mut self,
        incarnation: Incarnation,
        state: &StoreState,
    ) -> Result<Option<(Log, u64, Heads)>, FileError> {
        let mut log = self.log.take().expect("a store begins once");
        let (last, _) = log.bounds().map_err(|error| self.error(error))?;
        let (clean, journal) = self.kept().map_err(|error| self.error(error))?;
        if self.durability == Durability::Memory {
            self.set(&[("clean", 0), ("journal", 0), ("incarnation", u64::from(incarnation.0))])?;
            return Ok(None);
        }
        let is_new = !clean && !journal;
        if is_new {
            self.write(state, last + 1).map_err(|error| self.error(error))?;
        }
        if !journal {
            self.set(&[("clean", 0), ("journal", 1), ("from", last + 1)])?;
            self.heads.clear();
        }
        self.begin_events(&mut log, last, journal)?;
        Ok(Some((log, last, std::mem::take(&mut self.heads))))
    }

    /// Decides where the events of this start begin. They continue those in the log, unless the last run had no journal. A
    /// new history begins then, far from all positions that were given.
    fn begin_events(&mut self, log: &mut Log, last: u64, is_continued: bool) -> Result<(), FileError> {
        let mut after = None;
        let read = log.read(last, &mut |_, bytes| {
            after = Value::read(bytes).ok().map(|value| value.after());
            false
        });
        read.map_err(|error| self.error(error))?;
        let number = |key| self.number(key).map_err(|error| self.error(error));
        let history = number("history")?;
        let is_continued = is_continued && number("history_broken")? == 0;
        let history_from = number("history_from")?.max(1);
        self.events = match after {
            Some(before) if is_continued => EventsStart { before, history_from },
            None if last == 0 => EventsStart { before: Before::default(), history_from: 1 },
            _ => {
                let history = history + 1;
                self.set(&[("history", history), ("history_from", last + 1), ("history_broken", 0)])?;
                let events = history << HISTORY_BITS;
                let bytes = after.map_or(0, |after| after.bytes);
                EventsStart { before: Before { events, bytes }, history_from: last + 1 }
            }
        };
        Ok(())
    }

    /// Ends the history of events, because appends were dropped or the store went back in time. The next start begins a new
    /// one, so that no position is given twice.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn break_history(&self) -> Result<(), FileError> {
        self.set(&[("history_broken", 1)])
    }

    fn number(&self, key: &str) -> Result<u64, redb::Error> {
        let transaction = self.database.begin_read()?;
        let numbers = transaction.open_table(NUMBERS)?;
        Ok(numbers.get(key)?.map_or(0, |number| number.value()))
    }

    /// Returns where the events of this start begin. Call it after [`begin`](Self::begin).
    #[must_use]
    pub fn events(&self) -> EventsStart {
        self.events
    }

    /// Takes what recovery took back. The start records it before anything else, so that those who follow events learn of
    /// it.
    pub fn take_undone(&mut self) -> Vec<Changes> {
        std::mem::take(&mut self.undone)
    }

    /// Returns what recovery found.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// Returns when replies of this run may leave.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Returns whether the last run stopped cleanly, and whether it had a journal.
    fn kept(&self) -> Result<(bool, bool), redb::Error> {
        let transaction = self.database.begin_read()?;
        let numbers = transaction.open_table(NUMBERS)?;
        let is_set =
            |key| -> Result<bool, redb::Error> { Ok(numbers.get(key)?.is_some_and(|v| v.value() == 1)) };
        Ok((is_set("clean")?, is_set("journal")?))
    }

    fn set(&self, values: &[(&str, u64)]) -> Result<(), FileError> {
        let write = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_write()?;
            {
                let mut numbers = transaction.open_table(NUMBERS)?;
                for (key, value) in values {
                    numbers.insert(*key, *value)?;
                }
            }
            Ok(transaction.commit()?)
        };
        write().map_err(|error| self.error(error))
    }

    /// Returns the store's identity, which stays the same over restarts.
    #[must_use]
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// Writes the initial contents of a new store, unless the store exists.
    fn create(&self, partitions: u16) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut numbers = transaction.open_table(NUMBERS)?;
            if numbers.get("format")?.is_some() {
                return Ok(());
            }
            numbers.insert("format", FORMAT)?;
            numbers.insert("partitions", u64::from(partitions))?;
            numbers.insert("clean", 1)?;
            let mut identity = transaction.open_table(IDENTITY)?;
            identity.insert("store", new_identity().as_slice())?;
        }
        Ok(transaction.commit()?)
    }

    /// Reads the store's identity and its newest state. If the last run had no journal and did not stop cleanly, the state
    /// has no nodes and allocations.
    fn read(&mut self) -> Result<StoreState, ReadError> {
        let transaction = self.database.begin_read()?;
        let numbers = transaction.open_table(NUMBERS)?;
        let number = |key: &str| -> Result<u64, ReadError> { Ok(numbers.get(key)?.map_or(0, |v| v.value())) };
        let format = number("format")?;
        if format != FORMAT {
            let message = format!(
                "has format {format}, and this version reads format {FORMAT}: use the version that wrote it"
            );
            return Err(ReadError::Content(message));
        }
        let id = transaction.open_table(IDENTITY)?.get("store")?.and_then(|id| id.value().try_into().ok());
        self.id = id.ok_or_else(|| damage("it says no identity"))?;
        let partitions =
            u16::try_from(number("partitions")?).ok().filter(|p| (1..=PARTITIONS_MAX).contains(p));
        let partitions = partitions.ok_or_else(|| damage("it says no number of partitions"))?;
        // Below the maximum, because the next start adds one.
        let incarnation = u32::try_from(number("incarnation")?).ok().filter(|&i| i < u32::MAX);
        let incarnation = incarnation.ok_or_else(|| damage("it says no incarnation"))?;
        let mut state = StoreState::create(partitions);
        state.incarnation = Incarnation(incarnation);
        state.now = Time(number("now")?);
        state.registrar.next_node = number("next_node")?.max(1);
        let has_journal = number("journal")? == 1;
        if number("clean")? == 1 || has_journal {
            // A store that was never stopped has no checkpoint.
            if transaction.list_tables()?.any(|table| table.name() == ROWS.name()) {
                self.heads = checkpoint::read(&transaction, &mut state)?;
            }
        } else {
            warn!(
                "the last run had no journal and did not stop cleanly: its books were in memory and are gone; starting with empty ones"
            );
            // Node ids of the lost run are not issued again: the new ids are from a range of this start.
            state.registrar.next_node = state.registrar.next_node.max((u64::from(incarnation) + 1) << 40);
        }
        if has_journal {
            state = self.replay(state, number("from")?)?;
        }
        Ok(state)
    }

    /// Applies the journal from append `from` on.
    fn replay(&mut self, state: StoreState, from: u64) -> Result<StoreState, ReadError> {
        let Self { log, heads, recovery, .. } = self;
        let log = log.as_mut().expect("the log is there until the store begins");
        let (last, first) = log.bounds().map_err(|error| ReadError::Content(error.to_string()))?;
        if last + 1 < from || (last >= from && first > from) {
            let message = format!(
                "the journal has appends {first} to {last}, and the checkpoint needs those from {from}"
            );
            return Err(damage(message));
        }
        if last < from {
            return Ok(state);
        }
        let mut reading = Reading { next: from, heads, recovery, catalog: row::catalog_of(&state.registrar) };
        let mut rebuild = Rebuild::new(state).map_err(damage)?;
        let mut fault = None;
        let read = log.read(from, &mut |number, bytes| {
            let applied = reading.apply(number, bytes, &mut rebuild);
            fault = applied.err();
            fault.is_none()
        });
        read.map_err(|error| ReadError::Content(error.to_string()))?;
        if let Some(error) = fault {
            let at = reading.next;
            let remedy = format!(
                "`wharf journal check` looks at all of it; `wharf journal repair --to {}` drops append {at} and all \
                 after it, with what they acknowledged",
                at - 1
            );
            return Err(ReadError::Content(format!(
                "append {at} of the journal is damaged: {error:#}; {remedy}"
            )));
        }
        let ends_at = reading.next - 1;
        if ends_at != last {
            return Err(damage(format_args!("the journal ends at append {ends_at}, not at {last}")));
        }
        let taken_back = rebuild.take_back();
        recovery.taken_back = taken_back.0;
        self.undone = taken_back.1;
        rebuild.finish().map_err(damage)
    }

    /// Begins to write a checkpoint that append `from` and those after it continue.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn begin_checkpoint(&self, from: u64) -> Result<CheckpointWriter, FileError> {
        CheckpointWriter::begin(&self.database, self.files.path(FILE), from)
    }

    /// Writes the whole state of a clean stop in one transaction. `last` is the last append of the journal, if there is one.
    ///
    /// # Errors
    /// When the store cannot be written. The next start then continues from the journal, or begins with empty books
    /// without one.
    pub fn checkpoint(&self, state: &StoreState, last: Option<u64>) -> Result<(), FileError> {
        self.write(state, last.map_or(0, |last| last + 1)).map_err(|error| self.error(error))?;
        self.set(&[("clean", 1)])
    }

    fn write(&self, state: &StoreState, from: u64) -> Result<(), FileError> {
        let mut writer = self.begin_checkpoint(from)?;
        writer.state(state)?;
        writer.finish(state)
    }
}

/// Reads the values after a checkpoint.
struct Reading<'a> {
    /// The number of the next append.
    next: u64,
    heads: &'a mut Heads,
    recovery: &'a mut Recovery,
    catalog: wharf_core::registrar::Catalog,
}

impl Reading<'_> {
    fn apply(&mut self, number: u64, bytes: &[u8], rebuild: &mut Rebuild) -> anyhow::Result<()> {
        anyhow::ensure!(number == self.next, "append {number} comes next");
        let value = Value::read(bytes)?;
        anyhow::ensure!(value.header.number == number, "it says that it is append {}", value.header.number);
        for &(stream, before, count) in &value.header.streams {
            let head = self.heads.entry(Stream(stream)).or_default();
            anyhow::ensure!(*head == before, "stream {stream} is at {head}, and it continues at {before}");
            *head += u64::from(count);
        }
        for unit in value.units(&mut self.catalog)? {
            self.recovery.units += 1;
            rebuild.apply(unit)?;
        }
        self.recovery.appends += 1;
        self.next += 1;
        Ok(())
    }
}

pub(super) fn damage(what: impl Display) -> ReadError {
    ReadError::Content(format!(
        "is damaged: {what}; restore the file from a copy, or move it away to begin with an empty store"
    ))
}

/// Creates a random identity, so that no two stores share one.
fn new_identity() -> [u8; 16] {
    let mut id = [0; 16];
    let provider = rustls::crypto::ring::default_provider();
    provider.secure_random.fill(&mut id).expect("the operating system gives randomness");
    id
}

#[cfg(test)]
mod tests;
