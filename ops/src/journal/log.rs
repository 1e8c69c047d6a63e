//! The storage of the journal's values (redb): one row per append, one transaction and one sync each.

use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable, StorageError, TableDefinition};
use wharf_core::journal::{Append, JournalStore, StoreError};

use super::files::{Files, open_database};
use crate::file_error::FileError;

/// The values, by number.
const VALUES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("values");
/// By name: `last`, the number of the last append, and `epoch`, that of the last writer.
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");

const FILE: &str = "journal.redb";

/// The database reads its own values only at the start, so it needs no large cache.
const CACHE_BYTES: usize = 16 << 20;

/// The number of old values that an append drops at most.
const TRIM_STEP: usize = 16;

/// The number of bytes that must be free for an append, in addition to four times its length. The database grows in steps.
const ROOM_BYTES: u64 = 16 << 20;

/// The values of a journal in one database.
pub struct Log {
    files: Arc<dyn Files>,
    syncs: bool,
    /// `None` while it is opened again.
    database: Option<Database>,
    /// The number of the last append.
    last: u64,
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
        let mut log = Self { files, syncs, database: None, last: 0, trim_to: 0 };
        log.open_again()?;
        Ok(log)
    }

    /// Opens the database as its last commit left it.
    fn open_again(&mut self) -> Result<(), FileError> {
        // The old one is closed first.
        self.database = None;
        let database = open_database(&*self.files, FILE, self.syncs, CACHE_BYTES)?;
        self.last = create(&database).map_err(|error| FileError::new(&self.files.path(FILE), error))?;
        self.database = Some(database);
        Ok(())
    }

    fn database(&self) -> &Database {
        self.database.as_ref().expect("a database that cannot be opened again ends the process")
    }

    fn write(&self, append: &Append<'_>) -> Result<(), StoreError> {
        let transaction = self.database().begin_write().map_err(failed)?;
        {
            let mut numbers = transaction.open_table(NUMBERS).map_err(failed)?;
            let epoch = numbers.get("epoch").map_err(failed)?.map_or(0, |epoch| epoch.value());
            if epoch > append.epoch {
                return Err(StoreError::Fenced { epoch });
            }
            numbers.insert("epoch", append.epoch).map_err(failed)?;
            numbers.insert("last", append.number).map_err(failed)?;
            let mut values = transaction.open_table(VALUES).map_err(failed)?;
            values.insert(append.number, append.value).map_err(failed)?;
            trim(&mut values, self.trim_to).map_err(failed)?;
        }
        transaction.commit().map_err(failed)
    }

    /// Fails if there is not enough room for an append.
    fn check_room(&self, append: &Append<'_>) -> Result<(), StoreError> {
        let free = self.files.free_bytes();
        let free = free.map_err(|error| StoreError::Failed(format!("the free space is unknown: {error}")))?;
        let wanted = ROOM_BYTES + 4 * append.value.len() as u64;
        if free < wanted {
            return Err(StoreError::Full(format!("{free} bytes are free, and {wanted} are wanted")));
        }
        Ok(())
    }
}

/// Creates the tables. Returns the number of the last append.
fn create(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_write()?;
    let last = {
        transaction.open_table(VALUES)?;
        let numbers = transaction.open_table(NUMBERS)?;
        numbers.get("last")?.map_or(0, |last| last.value())
    };
    transaction.commit()?;
    Ok(last)
}

/// Drops some of the values before `to`.
fn trim(values: &mut redb::Table<'_, u64, &'static [u8]>, to: u64) -> Result<(), StorageError> {
    for _ in 0..TRIM_STEP {
        let first = values.first()?.map(|(number, _)| number.value());
        match first.filter(|&number| number < to) {
            Some(number) => drop(values.remove(number)?),
            None => break,
        }
    }
    Ok(())
}

impl JournalStore for Log {
    fn append(&mut self, append: &Append<'_>) -> Result<(), StoreError> {
        assert!(append.number == self.last + 1, "append {} follows {}", append.number, self.last);
        self.check_room(append)?;
        if let Err(error) = self.write(append) {
            if matches!(error, StoreError::Full(_)) {
                // The database takes no more after an error, but what it has committed is whole.
                self.open_again().map_err(|error| StoreError::Failed(error.to_string()))?;
                assert!(append.number == self.last + 1, "an append that failed is not there");
            }
            return Err(error);
        }
        self.last = append.number;
        Ok(())
    }

    fn durable(&mut self) -> Result<u64, StoreError> {
        Ok(self.last)
    }

    fn read(&mut self, from: u64, each: &mut dyn FnMut(u64, &[u8]) -> bool) -> Result<(), StoreError> {
        let transaction = self.database().begin_read().map_err(failed)?;
        let values = transaction.open_table(VALUES).map_err(failed)?;
        for row in values.range(from..).map_err(failed)? {
            let (number, value) = row.map_err(failed)?;
            if !each(number.value(), value.value()) {
                break;
            }
        }
        Ok(())
    }

    fn bounds(&mut self) -> Result<(u64, u64), StoreError> {
        let transaction = self.database().begin_read().map_err(failed)?;
        let values = transaction.open_table(VALUES).map_err(failed)?;
        let first = values.first().map_err(failed)?.map_or(self.last + 1, |(number, _)| number.value());
        Ok((self.last, first))
    }

    fn trim(&mut self, number: u64) -> Result<(), StoreError> {
        self.trim_to = self.trim_to.max(number);
        Ok(())
    }
}
