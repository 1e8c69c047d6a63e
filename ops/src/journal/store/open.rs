//! How the databases of a store are opened, and what is said of a damaged journal.

use std::fmt::Display;
use std::sync::{Arc, Mutex};

use redb::{Database, ReadableDatabase, TableError};

use super::{CACHE_BYTES, Durability, FILE, ISSUED, SHOWN, Store};
use crate::file_error::FileError;
use crate::journal::events::EventsStart;
use crate::journal::files::{Files, OpenError, Opened, open_database, open_error};
use crate::journal::guard::guarded;
use crate::journal::log::{self, Log};
use crate::journal::numbers::{IDENTITY, NUMBERS};
use crate::journal::salvage::Salvaged;
use crate::journal::store::Recovery;
use crate::journal::writer::Heads;

impl Store {
    /// Opens the databases for a start. That of the journal stays closed if neither this run nor the books need it.
    pub(super) fn open_databases(files: Arc<dyn Files>, durability: Durability) -> Result<Self, FileError> {
        let (checkpoints, told) = open_checkpoints(&*files)?;
        let needed = told.needed;
        // A store that was never started has no journal, unless it is not the store of that journal.
        let is_first = told.last_start == 0 && told.has_journal_file;
        let log = if needed.is_none() && durability == Durability::Memory && !is_first {
            None
        } else {
            let opened = Log::open_typed(Arc::clone(&files), durability == Durability::Sync);
            let log = opened.map_err(|error| match error {
                OpenError::Damaged { why, .. } => damaged_journal(&*files, needed, why),
                OpenError::File(error) => error,
            })?;
            check_pair(&told, &log)?;
            Some(log)
        };
        Ok(Self::with_databases(files, checkpoints, durability, log))
    }

    /// Opens the databases for a tool. If that of the journal is damaged, its whole values are put into `salvaged`, and the
    /// store has them in memory.
    pub(super) fn look_at_databases(
        files: Arc<dyn Files>,
        salvaged: &mut Option<Salvaged>,
    ) -> Result<Self, FileError> {
        let (checkpoints, told) = open_checkpoints(&*files)?;
        let opened = Log::open_typed(Arc::clone(&files), true);
        let log = match opened.and_then(|log| log.check_pages().map(|()| log)) {
            Err(OpenError::Damaged { .. }) => {
                let from = told.needed.map_or(1, |(from, _)| from);
                salvaged.insert(Salvaged::scan(&*files, from)?).log()?
            }
            log => {
                let log = log?;
                check_pair(&told, &log)?;
                log
            }
        };
        Ok(Self::with_databases(files, checkpoints, Durability::Sync, Some(log)))
    }

    fn with_databases(
        files: Arc<dyn Files>,
        checkpoints: Opened,
        durability: Durability,
        log: Option<Log>,
    ) -> Self {
        let is_log_cut = log.as_ref().is_some_and(Log::is_cut);
        let cut_file = is_log_cut.then_some(log::FILE).or_else(|| checkpoints.is_cut.then_some(FILE));
        let last_append = log.as_ref().map_or(0, Log::last);
        Self {
            files,
            database: Mutex::new(Some(checkpoints.database)),
            id: [0; 16],
            durability,
            log,
            heads: Heads::new(),
            recovery: Recovery { cut_file, last_append, ..Recovery::default() },
            undone: Vec::new(),
            events: EventsStart::default(),
        }
    }
}

/// What a store says of its journal.
#[derive(Default)]
struct Told {
    /// The first append that the checkpoint does not cover, and the last one that it shows. `None`: the last run had no
    /// journal, or there was none.
    needed: Option<(u64, u64)>,
    /// The incarnation of the last start. 0: there was none.
    last_start: u64,
    /// The identity of the store. `None`: it is new.
    store: Option<[u8; 16]>,
    /// There is a file of a journal, whether it is needed or not.
    has_journal_file: bool,
}

fn told_of_journal(files: &dyn Files, database: &Database) -> Result<Told, FileError> {
    let read = guarded(|| -> Result<_, redb::Error> {
        let transaction = database.begin_read()?;
        let numbers = match transaction.open_table(NUMBERS) {
            Err(TableError::TableDoesNotExist(_)) => return Ok(Told::default()),
            numbers => numbers?,
        };
        let number =
            |name| -> Result<u64, redb::Error> { Ok(numbers.get(name)?.map_or(0, |number| number.value())) };
        let needed = (number("from")?.max(1), number(SHOWN)?);
        let store = match transaction.open_table(IDENTITY) {
            Ok(identity) => identity.get("store")?.and_then(|id| id.value().try_into().ok()),
            Err(TableError::TableDoesNotExist(_)) => None,
            Err(error) => return Err(error.into()),
        };
        let last_start = number("incarnation")?.max(number(ISSUED)?);
        Ok(Told { needed: (number("journal")? == 1).then_some(needed), last_start, store, ..Told::default() })
    });
    Ok(read.map_err(|error| open_error(&files.path(FILE), error))?)
}

/// What the operator of a store can do whose files are of no use together.
pub(super) const REMEDY: &str = "restore both files of the store from a copy, import an export into another directory, \
                                 or move both files away to begin with an empty store";

/// Opens the database of checkpoints, and reads what it says of the journal. One file without the other is refused, unless
/// the books need no journal. A missing store is refused before one is created.
fn open_checkpoints(files: &dyn Files) -> Result<(Opened, Told), FileError> {
    let exists = |name| files.exists(name).map_err(|error| FileError::new(&files.path(name), error));
    let has_journal_file = exists(log::FILE)?;
    if has_journal_file && !exists(FILE)? {
        let message = format!("is missing, and `{}` is there without it: {REMEDY}", log::FILE);
        return Err(FileError::new(&files.path(FILE), message));
    }
    let checkpoints = open_database(files, FILE, true, CACHE_BYTES)?;
    let told = Told { has_journal_file, ..told_of_journal(files, &checkpoints.database)? };
    if told.needed.is_some() && !has_journal_file {
        let message = format!("is missing, and the books in `{FILE}` need it: {REMEDY}");
        return Err(FileError::new(&files.path(log::FILE), message));
    }
    Ok((checkpoints, told))
}

/// Checks that a journal is that of this store, and that the store is not an older one. Each start is noted in the store
/// before its first append.
fn check_pair(told: &Told, log: &Log) -> Result<(), FileError> {
    let Told { last_start, store, .. } = told;
    let owner = log.owner()?;
    if owner.is_some() && owner != *store || owner.is_none() && log.last() > 0 {
        let message = format!("belongs to another store than `{FILE}`: {REMEDY}");
        return Err(FileError::new(&log.path(), message));
    }
    let epoch = log.epoch();
    if epoch > *last_start {
        let message = format!(
            "has appends of start {epoch}, and `{FILE}` knows of starts up to {last_start}, so that file is older or \
             damaged: {REMEDY}"
        );
        return Err(FileError::new(&log.path(), message));
    }
    Ok(())
}

/// Returns what is said of a journal whose database is damaged. `needed` are the first append that the checkpoint does not
/// cover and the last one that it shows, if the books need the journal.
pub(super) fn damaged_journal(files: &dyn Files, needed: Option<(u64, u64)>, why: impl Display) -> FileError {
    let path = files.path(log::FILE);
    let Some((from, shown)) = needed else {
        let message = format_args!("is damaged: {why}; the checkpoint has all books, so move this file away");
        return FileError::new(&path, message);
    };
    match Salvaged::scan(files, from) {
        Ok(found) => {
            let last = found.last_whole();
            // The damage may be around the values only.
            let all = if found.has_after(last) {
                String::new()
            } else {
                format!("; no append after {last} is found, and all before it are whole")
            };
            let remedy = remedy(last, shown);
            let message = format!("append {} of the journal is damaged: {why}{all}; {remedy}", last + 1);
            FileError::new(&path, message)
        }
        Err(error) => error,
    }
}

/// Returns what the operator of a journal can do that is whole up to append `last`, if the checkpoint shows append `shown`.
pub(super) fn remedy(last: u64, shown: u64) -> String {
    if last < shown {
        return format!(
            "the checkpoint shows append {shown} and is of no use without it: restore both files of the store from a \
             copy, or import an export into another directory"
        );
    }
    format!(
        "`wharf journal check` looks at all of it; `wharf journal repair --to {last}` drops append {} and all after it, \
         with what they acknowledged",
        last + 1
    )
}
