//! The storage of the journal's values (redb): one row per append, one transaction and one sync each.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, TableError};
use wharf_core::journal::{Append, Bounds, JournalStore, StoreError};

use super::files::{Files, OpenError, Opened, open_database, open_error};
use super::guard::{Handle, each_row, guarded};
use super::retention::STEP;
use crate::file_error::FileError;

/// By the number of the append: the epoch of its writer, and its value. The last one is always kept, because it says
/// where the log ends. One table, because each further page that a commit writes costs as much as a tenth of its sync.
const VALUES: TableDefinition<'_, u64, (u64, &[u8])> = TableDefinition::new("values");

/// The identity of the store that the values belong to. It is there before the first append.
const OWNER: TableDefinition<'_, (), [u8; 16]> = TableDefinition::new("owner");

pub(super) const FILE: &str = "journal.redb";

/// The database reads its own values only at the start, so it needs no large cache.
const CACHE_BYTES: usize = 16 << 20;

/// The number of bytes that must be free for an append, in addition to four times its length. The database grows in steps.
const ROOM_BYTES: u64 = 16 << 20;

/// A database that readers share with the writer. `None` while it is opened again.
type Shared = Arc<RwLock<Option<Handle>>>;

/// The values of a journal in one database.
pub struct Log {
    files: Arc<dyn Files>,
    syncs: bool,
    database: Shared,
    /// The last commit of an earlier run was not whole.
    is_cut: bool,
    /// The number of the last append, and the epoch of its writer.
    last: u64,
    epoch: u64,
    /// The number of the first value that is kept.
    first: u64,
    /// Values before this number are to be dropped.
    trim_to: u64,
    /// The number of old values that are dropped at once.
    trim_step: u64,
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
        Ok(Self::open_typed(files, syncs)?)
    }

    /// Opens the log, and says whether a page is damaged.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn open_typed(files: Arc<dyn Files>, syncs: bool) -> Result<Self, OpenError> {
        let database = Shared::default();
        let mut log = Self {
            files,
            syncs,
            database,
            is_cut: false,
            last: 0,
            epoch: 0,
            first: 0,
            trim_to: 0,
            trim_step: STEP,
        };
        log.open_again()?;
        Ok(log)
    }

    /// Sets how many old values are dropped at once.
    pub(super) fn set_trim_step(&mut self, values: u64) {
        self.trim_step = values;
    }

    /// Opens the database as its last commit left it.
    fn open_again(&mut self) -> Result<(), OpenError> {
        let mut shared = self.database.write().expect("no thread panics with the lock");
        // The old one is closed first.
        *shared = None;
        let Opened { database, is_cut } = open_database(&*self.files, FILE, self.syncs, CACHE_BYTES)?;
        let ends = guarded(|| create(&database)).map_err(|error| open_error(&self.path(), error))?;
        (self.first, self.last, self.epoch) = ends;
        self.is_cut = is_cut;
        *shared = Some(database);
        Ok(())
    }

    /// Reads all values, so that a damaged page is found.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn check_pages(&self) -> Result<(), OpenError> {
        let read = self.reader().rows(0, &mut |_, _| true);
        read.map_err(|error| open_error(&self.path(), error))
    }

    /// Returns whether the last append of the run before was not whole, and is cut off.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns a reader of the values, for another thread.
    #[must_use]
    pub fn reader(&self) -> LogReader {
        LogReader { database: Arc::clone(&self.database) }
    }

    /// Drops the appends after `last`. A checkpoint must cover those that are not kept.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub(super) fn drop_after(&mut self, last: u64) -> Result<(), FileError> {
        let drop = || -> Result<(), redb::Error> {
            let shared = read(&self.database);
            let transaction = database(&shared).begin_write()?;
            {
                let mut values = transaction.open_table(VALUES)?;
                values.retain_in(last + 1.., |_, _| false)?;
                if values.is_empty()? {
                    // It only says where the log ends: a checkpoint covers it.
                    values.insert(last, (0, [].as_slice()))?;
                }
            }
            Ok(transaction.commit()?)
        };
        guarded(drop).map_err(|error| FileError::new(&self.path(), error))?;
        Ok(self.open_again()?)
    }

    /// Adds the value of another log, which may begin with any number.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub(super) fn load(&mut self, append: &Append<'_>) -> Result<(), StoreError> {
        self.write(append)?;
        if self.last == 0 {
            self.first = append.number;
        }
        self.last = append.number;
        self.epoch = append.epoch;
        Ok(())
    }

    /// Returns the identity of the store that the values belong to. `None`: no store has begun with this log.
    ///
    /// # Errors
    /// When the storage cannot be read.
    pub(super) fn owner(&self) -> Result<Option<[u8; 16]>, FileError> {
        let shared = read(&self.database);
        let owner = guarded(|| match database(&shared).begin_read()?.open_table(OWNER) {
            Ok(owner) => Ok::<_, redb::Error>(owner.get(())?.map(|owner| owner.value())),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        });
        Ok(owner.map_err(|error| open_error(&self.path(), error))?)
    }

    /// Says which store the values belong to.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub(super) fn set_owner(&self, store: &[u8; 16]) -> Result<(), FileError> {
        let shared = read(&self.database);
        let set = || -> Result<(), redb::Error> {
            let transaction = database(&shared).begin_write()?;
            transaction.open_table(OWNER)?.insert((), store)?;
            Ok(transaction.commit()?)
        };
        guarded(set).map_err(|error| FileError::new(&self.path(), error))
    }

    /// Returns the epoch of the last append. 0 if there was none.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of the last append. 0 if there was none.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Returns where the values are, for messages.
    pub(super) fn path(&self) -> PathBuf {
        self.files.path(FILE)
    }

    /// Returns the first value that this append keeps.
    fn kept_from(&self) -> u64 {
        let wanted = self.trim_to.min(self.last);
        // Many at once, because an append that drops none does not write their pages.
        if wanted < self.first + self.trim_step { self.first } else { self.first + self.trim_step }
    }

    fn write(&self, append: &Append<'_>) -> Result<(), StoreError> {
        let shared = read(&self.database);
        let transaction = database(&shared).begin_write().map_err(failed)?;
        {
            let mut values = transaction.open_table(VALUES).map_err(failed)?;
            values.insert(append.number, (append.epoch, append.value)).map_err(failed)?;
            for number in self.first..self.kept_from() {
                values.remove(number).map_err(failed)?;
            }
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

fn read(shared: &Shared) -> impl Deref<Target = Option<Handle>> {
    shared.read().expect("no thread panics with the lock")
}

fn database(shared: &Option<Handle>) -> &Database {
    shared.as_ref().expect("a database that cannot be opened again ends the process")
}

/// Reads the values of a log, also while another thread appends to it.
#[derive(Clone)]
pub struct LogReader {
    database: Shared,
}

impl LogReader {
    /// Gives the values of the appends from `from` on to `each`, in order, until it returns false. They are those of one
    /// moment. Keep it short: the writer does not wait, but takes no freed space again meanwhile.
    ///
    /// # Errors
    /// When the storage cannot be read.
    pub fn read(&self, from: u64, each: &mut dyn FnMut(u64, &[u8]) -> bool) -> Result<(), StoreError> {
        self.rows(from, each).map_err(failed)
    }

    fn rows(&self, from: u64, each: &mut dyn FnMut(u64, &[u8]) -> bool) -> Result<(), redb::Error> {
        let shared = read(&self.database);
        let rows = guarded(|| -> Result<_, redb::Error> {
            let transaction = database(&shared).begin_read()?;
            Ok(transaction.open_table(VALUES)?.range(from..)?)
        })?;
        each_row(rows, |number, (_, value)| Ok::<_, redb::Error>(each(number, value)))
    }

    /// Returns the value of an append, if it is kept.
    ///
    /// # Errors
    /// When the storage cannot be read.
    pub fn value(&self, number: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let mut found = None;
        self.read(number, &mut |first, value| {
            found = (first == number).then(|| value.to_vec());
            false
        })?;
        Ok(found)
    }

    /// Returns the number of the first value that is kept.
    ///
    /// # Errors
    /// When the storage cannot be read.
    pub fn first(&self) -> Result<Option<u64>, StoreError> {
        let bounds = self.bounds()?;
        Ok((bounds.count() > 0).then_some(bounds.first))
    }

    /// Returns which appends are there.
    ///
    /// # Errors
    /// When the storage cannot be read.
    pub fn bounds(&self) -> Result<Bounds, StoreError> {
        let shared = read(&self.database);
        let ends = guarded(|| -> Result<_, redb::Error> {
            let values = database(&shared).begin_read()?.open_table(VALUES)?;
            let first = values.first()?.map_or(1, |(number, _)| number.value());
            let last = values.last()?.map_or(0, |(number, _)| number.value());
            Ok(Bounds { first, last })
        });
        ends.map_err(failed)
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
                self.open_again().map_err(|error| StoreError::Failed(error.to_string()))?;
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
        self.reader().read(from, each)
    }

    fn bounds(&mut self) -> Result<Bounds, StoreError> {
        Ok(Bounds { first: self.first, last: self.last })
    }

    fn trim(&mut self, number: u64) -> Result<(), StoreError> {
        self.trim_to = self.trim_to.max(number);
        Ok(())
    }
}
