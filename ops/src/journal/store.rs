//! The store on disk: its identity, the newest checkpoint, and the journal after it.
//!
//! The books of a store are its checkpoint and the units of the journal from the checkpoint's begin on. A run without a
//! journal (`durability = "memory"`) consumes the checkpoint instead: its books are gone if it does not stop cleanly.
//! In both cases:
//!
//! - Outdated books are never restored.
//! - No id is issued twice: each start has a new incarnation, and node ids skip a range after books were lost.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableHandle, WriteTransaction};
use tracing::warn;
use wharf_core::ids::Incarnation;
use wharf_core::journal::{Bounds, Changes, JournalFeed, JournalStore, Unit};
use wharf_core::limits::PARTITIONS_MAX;
use wharf_core::link::lock;
use wharf_core::recovery::{Rebuild, TakenBack};
use wharf_core::state::StoreState;
use wharf_core::time::Time;

use super::checkpoint::{self, CheckpointWriter, HASH, ROWS};
use super::events::EventsStart;
use super::files::{Directory, Files, damage_of, open_database};
use super::guard::{Handle, guarded};
use super::log::{self, Log};
use super::numbers::{self, IDENTITY, NUMBERS, are_sealed, new_identity};
use super::reading::Reading;
use super::row;
use super::salvage::Salvaged;
use super::value::{Before, Value};
use super::writer::Heads;
use crate::file_error::FileError;
use open::{REMEDY, damaged_journal, remedy};

mod open;

pub(super) const FILE: &str = "store.redb";

/// The name of the last incarnation of which a repair has dropped appends.
const ISSUED: &str = "issued";

/// The name of the last append of which the checkpoint may show something.
pub(super) const SHOWN: &str = "shown";

const FORMAT: u64 = 10;

/// The name of the number that says whether the events of the next run begin a new history.
const BROKEN: &str = "history_broken";

/// The number of positions between two histories of events, as a power of two.
const HISTORY_BITS: u32 = 44;

/// The cache of the database of checkpoints, which are written and read once, in order.
pub(super) const CACHE_BYTES: usize = 64 << 20;

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
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(FileError),
}

impl<E: Into<redb::Error>> From<E> for ReadError {
    fn from(error: E) -> Self {
        damage_of(error.into()).map_or_else(Self::Database, damage)
    }
}

/// What recovery found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The bytes of the checkpoint's rows.
    pub checkpoint_bytes: u64,
    /// Appends after the checkpoint.
    pub appends: u64,
    /// Units in them.
    pub units: u64,
    /// The bytes of their values.
    pub bytes: u64,
    /// What was taken back.
    pub taken_back: TakenBack,
    /// The file in which the last write of the run before was not whole, and is cut off.
    pub cut_file: Option<&'static str>,
    /// The last append that is left. 0 if there is none.
    pub last_append: u64,
}

impl Recovery {
    /// Returns whether a write of the run before is cut off.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut_file.is_some()
    }
}

/// A checkpoint that was read.
pub(super) struct Checkpoint {
    pub(super) state: StoreState,
    /// The first append of the journal that it does not cover. `None`: the last run had no journal.
    pub(super) from: Option<u64>,
    /// It was written at a clean stop, when nothing was half done.
    pub(super) is_clean: bool,
    /// The last append of which it may show something. Without that append, its pages do not fit together.
    pub(super) shown: u64,
    /// An incarnation that may have issued ids, although the books do not say so.
    issued: Incarnation,
}

/// An open store.
pub struct Store {
    files: Arc<dyn Files>,
    /// It takes no more after an error, until it is opened again. `None` if that failed.
    database: Mutex<Option<Handle>>,
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
        let mut store = Self::open_databases(files, durability)?;
        store.create(partitions).map_err(|error| store.error(error))?;
        let state = store.read().map_err(|error| store.error(error))?;
        Ok((store, state))
    }

    /// Opens the store in `files`, which exists, and reads its checkpoint. Applies nothing of the journal. If the database of
    /// the journal is damaged, its whole values are put into `salvaged`, and the store has them in memory.
    ///
    /// # Errors
    /// When a file cannot be used, or the checkpoint is damaged.
    pub(super) fn look(
        files: Arc<dyn Files>,
        salvaged: &mut Option<Salvaged>,
    ) -> Result<(Self, Checkpoint), FileError> {
        let mut store = Self::look_at_databases(files, salvaged)?;
        let checkpoint = store.read_checkpoint().map_err(|error| store.error(error))?;
        Ok((store, checkpoint))
    }

    /// Returns the state of a store that was [looked](Self::look) at, as [`open`](Self::open) does.
    ///
    /// # Errors
    /// When the journal is damaged.
    pub(super) fn complete(&mut self, checkpoint: Checkpoint) -> Result<StoreState, FileError> {
        self.read_rest(checkpoint).map_err(|error| self.error(error))
    }

    /// Returns the values of the journal, until the store [begins](Self::begin).
    pub(super) fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("the log is there until the store begins")
    }

    /// Begins to read the checkpoint.
    pub(super) fn begin_read(&self) -> Result<ReadTransaction, redb::Error> {
        self.with(|database| Ok(database.begin_read()?))
    }

    /// Uses the database. `run` only runs code of it.
    fn with<R>(&self, run: impl FnOnce(&Database) -> Result<R, redb::Error>) -> Result<R, redb::Error> {
        match &*lock(&self.database) {
            Some(database) => guarded(|| run(database)),
            None => Err(redb::Error::PreviousIo),
        }
    }

    /// Reads the numbers of the store.
    fn numbers<R>(
        &self,
        read: impl FnOnce(&redb::ReadOnlyTable<&'static str, u64>) -> Result<R, redb::Error>,
    ) -> Result<R, redb::Error> {
        self.with(|database| read(&database.begin_read()?.open_table(NUMBERS)?))
    }

    /// Returns the heads of the streams.
    pub(super) fn heads(&self) -> &Heads {
        &self.heads
    }

    /// Notes that ids were issued which the books do not have: by the incarnations up to `seen`, and by those that the store
    /// knows. One more is noted, because the last of them may be in the books, but not with all of its ids.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub(super) fn skip_issued(&mut self, seen: Incarnation) -> Result<(), FileError> {
        let known = self.number(ISSUED).map_err(|error| self.error(error))?;
        self.set(&[(ISSUED, known.max(u64::from(seen.0)) + 1)])
    }

    fn error(&self, error: impl Into<ReadError>) -> FileError {
        match error.into() {
            ReadError::Journal(error) => error,
            error => FileError::new(&self.path(), error),
        }
    }

    fn log_error(&self, error: impl Display) -> FileError {
        FileError::new(&self.files.path(log::FILE), error)
    }

    /// Returns where the checkpoint is, for messages.
    pub(super) fn path(&self) -> PathBuf {
        self.files.path(FILE)
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
        let (clean, journal) = self.kept().map_err(|error| self.error(error))?;
        let is_broken = self.number(BROKEN).map_err(|error| self.error(error))? != 0;
        let incarnation = u64::from(incarnation.0);
        if self.durability == Durability::Memory {
            self.log = None;
            // Its own events are told to nobody, and the journal may be moved away until the next run that has one.
            let broken = (BROKEN, u64::from(is_broken || journal));
            self.set(&[("clean", 0), ("journal", 0), ("incarnation", incarnation), broken])?;
            return Ok(None);
        }
        let mut log = self.log.take().expect("a store begins once");
        let Bounds { last, .. } = log.bounds().map_err(|error| self.log_error(error))?;
        let is_new = !clean && !journal;
        if is_new {
            self.write(state, last + 1)?;
        }
        if log.owner()? != Some(self.id) {
            log.set_owner(&self.id)?;
        }
        // Nothing of this start may become durable, and yet its ids may be shown. So the next start must know of it.
        let issued = (ISSUED, incarnation);
        if journal {
            self.set(&[issued])?;
        } else {
            // What the run without a journal changed is in no event, also if this start ends before the next step.
            let broken = (BROKEN, u64::from(is_broken || last > 0));
            self.set(&[issued, ("clean", 0), ("journal", 1), ("from", last + 1), broken])?;
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
        read.map_err(|error| self.log_error(error))?;
        let number = |key| self.number(key).map_err(|error| self.error(error));
        let history = number("history")?;
        let is_broken = number(BROKEN)? != 0;
        let history_from = number("history_from")?.max(1);
        self.events = match after {
            Some(before) if is_continued && !is_broken => EventsStart { before, history_from },
            None if last == 0 && history == 0 && !is_broken => {
                EventsStart { before: Before::default(), history_from: 1 }
            }
            _ => {
                let history = history + 1;
                self.set(&[("history", history), ("history_from", last + 1), (BROKEN, 0)])?;
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
        self.set(&[(BROKEN, 1)])
    }

    fn number(&self, key: &str) -> Result<u64, redb::Error> {
        self.numbers(|numbers| Ok(numbers.get(key)?.map_or(0, |number| number.value())))
    }

    /// Returns where the events of this start begin. Call it after [`begin`](Self::begin).
    #[must_use]
    pub fn events(&self) -> EventsStart {
        self.events
    }

    /// Puts what recovery took back into the journal, so that those who follow events learn of it. A start does so before
    /// anything else puts units in.
    pub fn record_undone(&mut self, feed: &JournalFeed, now: Time) {
        self.undone.drain(..).for_each(|changes| feed.put(Unit::new(now, changes)));
    }

    /// Returns what recovery found.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// Returns the first append that the checkpoint does not cover.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn checkpoint_from(&self) -> Result<u64, FileError> {
        self.with(read_from).map_err(|error| self.error(error))
    }

    /// Returns the files of the store with their lengths in bytes. 0 if a length is unknown.
    #[must_use]
    pub fn file_bytes(&self) -> [(&'static str, u64); 2] {
        [FILE, super::log::FILE].map(|name| (name, self.files.file_bytes(name).unwrap_or_default()))
    }

    /// Returns when replies of this run may leave.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Returns whether the last run stopped cleanly, and whether it had a journal.
    fn kept(&self) -> Result<(bool, bool), redb::Error> {
        Ok((self.number("clean")? == 1, self.number("journal")? == 1))
    }

    fn set(&self, values: &[(&str, u64)]) -> Result<(), FileError> {
        let write = |database: &Database| -> Result<(), redb::Error> {
            let transaction = begin_write(database)?;
            numbers::set(&transaction, values.iter().copied())?;
            Ok(transaction.commit()?)
        };
        self.with(write).map_err(|error| self.error(error))
    }

    /// Returns the store's identity, which stays the same over restarts.
    #[must_use]
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// Writes the initial contents of a new store, unless the store exists.
    fn create(&self, partitions: u16) -> Result<(), redb::Error> {
        self.with(|database| {
            let transaction = begin_write(database)?;
            let is_new = transaction.list_tables()?.next().is_none();
            if transaction.open_table(NUMBERS)?.get("format")?.is_some() {
                return Ok(());
            }
            if !is_new {
                return Err(redb::Error::Corrupted("it has no format".to_owned()));
            }
            let first = [("format", FORMAT), ("partitions", u64::from(partitions)), ("clean", 1)];
            numbers::set(&transaction, first)?;
            numbers::set_identity(&transaction, &new_identity())?;
            Ok(transaction.commit()?)
        })
    }

    /// Reads the store's identity and its newest state.
    fn read(&mut self) -> Result<StoreState, ReadError> {
        let checkpoint = self.read_checkpoint()?;
        self.read_rest(checkpoint)
    }

    fn read_rest(&mut self, checkpoint: Checkpoint) -> Result<StoreState, ReadError> {
        let Checkpoint { mut state, from, is_clean, shown, issued } = checkpoint;
        if let Some(from) = from {
            state = self.replay(state, from, is_clean, shown)?;
        }
        if issued > state.incarnation {
            state.skip_ids(issued);
        }
        Ok(state)
    }

    /// Reads the store's identity and its checkpoint. If the last run had no journal and did not stop cleanly, the state
    /// has no nodes and allocations.
    fn read_checkpoint(&mut self) -> Result<Checkpoint, ReadError> {
        let number = |key: &str| -> Result<u64, ReadError> { Ok(self.number(key)?) };
        let format = number("format")?;
        if format != FORMAT {
            let message = format!(
                "has format {format}, and this version reads format {FORMAT}: use the version that wrote it"
            );
            return Err(ReadError::Content(message));
        }
        if !self.with(|database| are_sealed(&database.begin_read()?))? {
            return Err(damage("its numbers are not those that were written"));
        }
        let id: Option<[u8; 16]> = self.with(|database| {
            let identity = database.begin_read()?.open_table(IDENTITY)?;
            Ok(identity.get("store")?.and_then(|id| id.value().try_into().ok()))
        })?;
        let id = id.ok_or_else(|| damage("it says no identity"))?;
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
        let is_clean = number("clean")? == 1;
        let has_journal = number("journal")? == 1;
        let mut heads = Heads::new();
        let mut bytes = 0;
        if is_clean || has_journal {
            let transaction = self.begin_read()?;
            // A store that was never stopped has no checkpoint.
            let tables: Vec<_> = guarded(|| transaction.list_tables())?.collect();
            let has = |name| tables.iter().any(|table| table.name() == name);
            if has(ROWS.name()) != has(HASH.name()) {
                return Err(damage("its rows or their hash are missing"));
            }
            if has(ROWS.name()) {
                let read = checkpoint::read(&transaction, &mut state)?;
                heads = read.heads;
                bytes = read.bytes;
            }
        } else {
            warn!(
                "the last run had no journal and did not stop cleanly: its books were in memory and are gone; starting with empty ones"
            );
            state.skip_ids(state.incarnation);
        }
        let from = has_journal.then(|| number("from")).transpose()?;
        let shown = number(SHOWN)?;
        let issued = u32::try_from(number(ISSUED)?).ok().filter(|&issued| issued < u32::MAX);
        let issued = Incarnation(issued.ok_or_else(|| damage("it says no last incarnation"))?);
        self.id = id;
        self.heads = heads;
        self.recovery.checkpoint_bytes = bytes;
        Ok(Checkpoint { state, from, is_clean, shown, issued })
    }

    /// Applies the journal from append `from` on, at least up to `shown`, and takes back what is half there. Nothing is if the
    /// state is that of a clean stop (`is_clean`) and no append came after it.
    fn replay(
        &mut self,
        state: StoreState,
        from: u64,
        is_clean: bool,
        shown: u64,
    ) -> Result<StoreState, ReadError> {
        let Self { log, heads, recovery, files, .. } = self;
        let log = log.as_mut().expect("the log is there until the store begins");
        let of_log = |message: String| ReadError::Journal(FileError::new(&files.path(log::FILE), message));
        let Bounds { first, last } = log.bounds().map_err(|error| of_log(error.to_string()))?;
        if last + 1 < from || (last >= from && first > from) {
            let message = format!(
                "the journal has appends {first} to {last}, and the checkpoint needs those from {from}"
            );
            return Err(of_log(damage(message).to_string()));
        }
        if last < shown {
            let message = format!("it ends at append {last}, and the checkpoint shows append {shown}");
            return Err(of_log(damage(message).to_string()));
        }
        if last < from && is_clean {
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
        read.map_err(|error| ReadError::Journal(damaged_journal(&**files, Some((from, shown)), error)))?;
        if let Some(error) = fault {
            let at = reading.next;
            let message =
                format!("append {at} of the journal is damaged: {error:#}; {}", remedy(at - 1, shown));
            return Err(of_log(message));
        }
        let ends_at = reading.next - 1;
        if ends_at != last {
            let message = damage(format_args!("the journal ends at append {ends_at}, not at {last}"));
            return Err(of_log(message.to_string()));
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
        let mut database = lock(&self.database);
        let begin = |database: &Handle| CheckpointWriter::begin(database, self.files.path(FILE), from);
        if let Some(Ok(writer)) = database.as_ref().map(begin) {
            return Ok(writer);
        }
        // The checkpoint before this one failed. The database is closed first.
        *database = None;
        let again = database.insert(open_database(&*self.files, FILE, true, CACHE_BYTES)?.database);
        begin(again)
    }

    /// Writes the whole state of a clean stop in one transaction. `last` is the last append of the journal, if there is one.
    ///
    /// # Errors
    /// When the store cannot be written. The next start then continues from the journal, or begins with empty books
    /// without one.
    pub fn checkpoint(&self, state: &StoreState, last: Option<u64>) -> Result<(), FileError> {
        self.write(state, last.map_or(0, |last| last + 1))?;
        self.set(&[("clean", 1)])
    }

    fn write(&self, state: &StoreState, from: u64) -> Result<(), FileError> {
        let mut writer = self.begin_checkpoint(from)?;
        writer.state(state)?;
        writer.finish(state, from.saturating_sub(1))
    }
}

/// Begins to change a database. The commit is in two phases: otherwise one that is damaged later could not be told from one
/// that was never whole, and the start would go on with what was before it.
fn begin_write(database: &Database) -> Result<WriteTransaction, redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_two_phase_commit(true);
    Ok(transaction)
}

/// Returns the first append that the checkpoint of a database does not cover.
fn read_from(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_read()?;
    Ok(transaction.open_table(NUMBERS)?.get("from")?.map_or(1, |from| from.value().max(1)))
}

pub(super) fn damage(what: impl Display) -> ReadError {
    ReadError::Content(format!("is damaged: {what}; {REMEDY}"))
}

#[cfg(test)]
mod tests;
