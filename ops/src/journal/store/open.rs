//! How the databases of a store are opened, and what is said of a damaged journal.

use std::fmt::Display;
use std::sync::{Arc, Mutex};

use redb::{Database, ReadableDatabase, TableError};

use super::{CACHE_BYTES, Durability, FILE, SHOWN, Store};
use crate::file_error::FileError;
use crate::journal::events::EventsStart;
use crate::journal::files::{Files, OpenError, Opened, open_database, open_error};
use crate::journal::guard::guarded;
use crate::journal::log::{self, Log};
use crate::journal::numbers::NUMBERS;
use crate::journal::salvage::Salvaged;
use crate::journal::store::Recovery;
use crate::journal::writer::Heads;

impl Store {
    /// Opens the databases for a start. That of the journal stays closed if neither this run nor the books need it.
    pub(super) fn open_databases(files: Arc<dyn Files>, durability: Durability) -> Result<Self, FileError> {
        let checkpoints = open_database(&*files, FILE, true, CACHE_BYTES)?;
        let from = journal_from(&*files, &checkpoints.database)?;
        let log = if from.is_none() && durability == Durability::Memory {
            None
        } else {
            let opened = Log::open_typed(Arc::clone(&files), durability == Durability::Sync);
            Some(opened.map_err(|error| match error {
                OpenError::Damaged { why, .. } => damaged_journal(&*files, from, why),
                OpenError::File(error) => error,
            })?)
        };
        Ok(Self::with_databases(files, checkpoints, durability, log))
    }

    /// Opens the databases for a tool. If that of the journal is damaged, its whole values are put into `salvaged`, and the
    /// store has them in memory.
    pub(super) fn look_at_databases(
        files: Arc<dyn Files>,
        salvaged: &mut Option<Salvaged>,
    ) -> Result<Self, FileError> {
        let checkpoints = open_database(&*files, FILE, true, CACHE_BYTES)?;
        let opened = Log::open_typed(Arc::clone(&files), true);
        let log = match opened.and_then(|log| log.check_pages().map(|()| log)) {
            Err(OpenError::Damaged { .. }) => {
                let from = journal_from(&*files, &checkpoints.database)?.map_or(1, |(from, _)| from);
                salvaged.insert(Salvaged::scan(&*files, from)?).log()?
            }
            log => log?,
        };
        Ok(Self::with_databases(files, checkpoints, Durability::Sync, Some(log)))
    }

    fn with_databases(
        files: Arc<dyn Files>,
        checkpoints: Opened,
        durability: Durability,
        log: Option<Log>,
    ) -> Self {
        let is_cut = checkpoints.is_cut || log.as_ref().is_some_and(Log::is_cut);
        Self {
            files,
            database: Mutex::new(Some(checkpoints.database)),
            id: [0; 16],
            durability,
            log,
            heads: Heads::new(),
            recovery: Recovery { is_cut, ..Recovery::default() },
            undone: Vec::new(),
            events: EventsStart::default(),
        }
    }
}

/// Returns the first append of the journal that the checkpoint of a store does not cover, and the last one that it shows.
/// `None`: the last run had no journal, or there was none.
fn journal_from(files: &dyn Files, database: &Database) -> Result<Option<(u64, u64)>, FileError> {
    let read = guarded(|| -> Result<_, redb::Error> {
        let numbers = match database.begin_read()?.open_table(NUMBERS) {
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            numbers => numbers?,
        };
        let has_journal = numbers.get("journal")?.is_some_and(|has| has.value() == 1);
        let from = numbers.get("from")?.map_or(1, |from| from.value().max(1));
        let shown = numbers.get(SHOWN)?.map_or(0, |shown| shown.value());
        Ok(has_journal.then_some((from, shown)))
    });
    Ok(read.map_err(|error| open_error(&files.path(FILE), error))?)
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
            let message =
                format!("append {} of the journal is damaged: {why}; {}", last + 1, remedy(last, shown));
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
