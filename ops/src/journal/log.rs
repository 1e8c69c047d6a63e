//! The storage of the journal's values (redb): one row per append, one transaction and one sync each.

use std::sync::{Arc, PoisonError, RwLock};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use wharf_core::journal::{Append, JournalStore, StoreError};

use super::files::{Files, open_database};
use super::retention::STEP;
use crate::file_error::FileError;

/// By the number of the append: the epoch of its writer, and its value. The last one is always kept, because it says
/// where the log ends. One table, because each further page that a commit writes costs as much as a tenth of its sync.
const VALUES: TableDefinition<'_, u64, (u64, &[u8])> = TableDefinition::new("values");

const FILE: &str = "journal.redb";

/// The database reads its own values only at the start, so it needs no large cache.
const CACHE_BYTES: usize = 16 << 20;

/// The number of bytes that must be free for an append, in addition to four times its length. The database grows in steps.
const ROOM_BYTES: u64 = 16 << 20;

/// The database of a log, which readers share.
struct Shared {
    files: Arc<dyn Files>,
    syncs: bool,
    /// `None` while it is opened again. Only that takes the lock for writing, so readers and appends do not wait for each
    /// other.
    database: RwLock<Option<Database>>,
}

impl Shared {
    fn with<T>(&self, act: impl FnOnce(&Database) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        // A database that cannot be opened again ends the process.
        let closed = || StoreError::Failed("the database could not be opened again".to_owned());
        act(database.as_ref().ok_or_else(closed)?)
    }

    /// Opens the database as its last commit left it. Returns its ends.
    fn open_again(&self) -> Result<(u64, u64, u64), FileError> {
        let mut place = self.database.write().unwrap_or_else(PoisonError::into_inner);
        // The old one is closed first.
        *place = None;
        let database = open_database(&*self.files, FILE, self.syncs, CACHE_BYTES)?;
        let ends = create(&database).map_err(|error| FileError::new(&self.files.path(FILE), error))?;
        *place = Some(database);
        Ok(ends)
    }
}

/// Reads the values of a log from another thread. A read does not keep appends waiting.
pub struct LogReader {
    shared: Arc<Shared>,
}

impl LogReader {
    /// Returns the value of an append, if it is kept.
    ///
    /// # Errors
    /// When the storage cannot be read.
    pub fn value(&self, number: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.shared.with(|database| {
            let transaction = database.begin_read().map_err(failed)?;
            let values = transaction.open_table(VALUES).map_err(failed)?;
            let value = values.get(number).map_err(failed)?;
            Ok(value.map(|value| value.value().1.to_vec()))
        })
    }

    /// Returns the number of the first value that is kept.
    ///
    /// # Errors
    /// When the storage cannot be read.
    pub fn first(&self) -> Result<Option<u64>, StoreError> {
        self.shared.with(|database| {
            let transaction = database.begin_read().map_err(failed)?;
            let values = transaction.open_table(VALUES).map_err(failed)?;
            let first = values.first().map_err(failed)?;
            Ok(first.map(|(number, _)| number.value()))
        })
    }
}

/// The values of a journal in one database.
pub struct Log {
    shared: Arc<Shared>,
    /// The number of the last append, and the epoch of its writer.
    last: u64,
    epoch: u64,
    /// The number of the first value that is kept.
    first: u64,
    /// Values before this number are to be dropped.
    trim_to: u64,
}

fn failed(error: impl Into<redb::Error>) -> StoreError {
    match error.into() {
        redb::Error::Io(error) if error.kind() == std::io::ErrorKind::StorageFull => {
            StoreError::Full(error.to_string())
        }
        error => StoreError::Failed(error.to_string()),
    }
}

impl Log {
    /// Opens the log, and creates it if it is not there. With `syncs` false, it survives the process, not the machine.
    ///
    /// # Errors
    /// When the file cannot be used.
    pub fn open(files: Arc<dyn Files>, syncs: bool) -> Result<Self, FileError> {
        let shared = Arc::new(Shared { files, syncs, database: RwLock::default() });
        let (first, last, epoch) = shared.open_again()?;
        Ok(Self { shared, last, epoch, first, trim_to: 0 })
    }

    /// Returns a reader of the values.
    #[must_use]
    pub fn reader(&self) -> LogReader {
        LogReader { shared: Arc::clone(&self.shared) }
    }

    /// Returns the first value that this append keeps.
    fn kept_from(&self) -> u64 {
        let wanted = self.trim_to.min(self.last);
        // Many at once, because an append that drops none does not write their pages.
        if wanted < self.first + STEP { self.first } else { self.first + STEP }
    }

    fn write(&self, append: &Append<'_>) -> Result<(), StoreError> {
        self.shared.with(|database| {
            let transaction = database.begin_write().map_err(failed)?;
            {
                let mut values = transaction.open_table(VALUES).map_err(failed)?;
                values.insert(append.number, (append.epoch, append.value)).map_err(failed)?;
                for number in self.first..self.kept_from() {
                    values.remove(number).map_err(failed)?;
                }
            }
            transaction.commit().map_err(failed)
        })
    }

    /// Fails if there is not enough room for an append.
    fn check_room(&self, append: &Append<'_>) -> Result<(), StoreError> {
        let free = self.shared.files.free_bytes();
        let free = free.map_err(|error| StoreError::Failed(format!("the free space is unknown: {error}")))?;
        let wanted = ROOM_BYTES + 4 * append.value.len() as u64;
        if free < wanted {
            return Err(StoreError::Full(format!("{free} bytes are free, and {wanted} are wanted")));
        }
        Ok(())
    }
}

/// Creates the table. Returns the numbers of the first and of the last value, and the epoch of the last writer.
fn create(database: &Database) -> Result<(u64, u64, u64), redb::Error> {
    let transaction = database.begin_write()?;
    let ends = {
        let values = transaction.open_table(VALUES)?;
        let first = values.first()?.map_or(1, |(number, _)| number.value());
        let last = values.last()?.map_or((0, 0), |(number, value)| (number.value(), value.value().0));
        (first, last.0, last.1)
    };
    transaction.commit()?;
    Ok(ends)
}

impl JournalStore for Log {
    fn append(&mut self, append: &Append<'_>) -> Result<(), StoreError> {
        assert!(append.number == self.last + 1, "append {} follows {}", append.number, self.last);
        if self.epoch > append.epoch {
            return Err(StoreError::Fenced { epoch: self.epoch });
        }
        self.check_room(append)?;
        if let Err(error) = self.write(append) {
            if matches!(error, StoreError::Full(_)) {
                // The database takes no more after an error, but what it has committed is whole.
                let ends = self.shared.open_again();
                (self.first, self.last, self.epoch) =
                    ends.map_err(|error| StoreError::Failed(error.to_string()))?;
                assert!(append.number == self.last + 1, "an append that failed is not there");
            }
            return Err(error);
        }
        self.first = self.kept_from();
        self.last = append.number;
        self.epoch = append.epoch;
        Ok(())
    }

    fn durable(&mut self) -> Result<u64, StoreError> {
        Ok(self.last)
    }

    fn read(&mut self, from: u64, each: &mut dyn FnMut(u64, &[u8]) -> bool) -> Result<(), StoreError> {
        self.shared.with(|database| {
            let transaction = database.begin_read().map_err(failed)?;
            let values = transaction.open_table(VALUES).map_err(failed)?;
            for row in values.range(from..).map_err(failed)? {
                let (number, value) = row.map_err(failed)?;
                if !each(number.value(), value.value().1) {
                    break;
                }
            }
            Ok(())
        })
    }

    fn bounds(&mut self) -> Result<(u64, u64), StoreError> {
        Ok((self.last, self.first))
    }

    fn trim(&mut self, number: u64) -> Result<(), StoreError> {
        self.trim_to = self.trim_to.max(number);
        Ok(())
    }
}
