//! The store on disk (redb): its identity and incarnation, and the checkpoint that a clean shutdown writes.
//!
//! State lives in memory; there is no journal yet, so a crash loses the books of that run. This module
//! guarantees two things:
//!
//! - Outdated books are never restored: a checkpoint is valid for one start.
//! - No id is issued twice: each start has a new incarnation, and node ids skip a range after a crash.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableHandle};
use tracing::warn;
use wharf_core::hash::{StateHasher, stable_hash};
use wharf_core::ids::Incarnation;
use wharf_core::limits::PARTITIONS_MAX;
use wharf_core::state::StoreState;
use wharf_core::time::Time;
use wharf_net::codec::{decode_stored, encode_body};

use super::row;
use crate::file_error::FileError;

const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
const IDENTITY: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("identity");
/// The rows of the checkpoint, in their order.
const ROWS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("rows");
/// The hash of the checkpoint, as [`Store::write`] adds its parts.
const HASH: TableDefinition<'_, (), u128> = TableDefinition::new("hash");

const FILE: &str = "store.redb";
const FORMAT: u64 = 5;

/// An error of reading a store.
#[derive(Debug, thiserror::Error)]
enum ReadError {
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

/// An open store.
pub struct Store {
    database: Database,
    path: PathBuf,
    id: [u8; 16],
}

impl Store {
    /// Opens the store of `data_dir`, or creates it with `partitions`. Returns the state of the last clean
    /// shutdown, which stays valid until [`begin`](Self::begin).
    ///
    /// # Errors
    /// When the directory or the file cannot be used, or the contents are damaged.
    pub fn open(data_dir: &Path, partitions: u16) -> Result<(Self, StoreState), FileError> {
        std::fs::create_dir_all(data_dir).map_err(|error| {
            FileError::new(
                data_dir,
                format_args!("cannot be made: {error} (`data_dir` chooses the directory)"),
            )
        })?;
        let path = data_dir.join(FILE);
        let database = Database::create(&path).map_err(|error| match error {
            redb::DatabaseError::DatabaseAlreadyOpen => {
                let message =
                    "another service uses this data directory: stop it, or choose another `data_dir`";
                FileError::new(&path, message)
            }
            other => FileError::new(&path, other),
        })?;
        let mut store = Self { database, path, id: [0; 16] };
        store.create(partitions).map_err(|error| FileError::new(&store.path, error))?;
        let (id, state) = store.read().map_err(|error| FileError::new(&store.path, error))?;
        store.id = id;
        Ok((store, state))
    }

    /// Begins `incarnation` and consumes the checkpoint. Call this only when nothing else can make the start
    /// fail: a start that fails after this loses the books.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn begin(&self, incarnation: Incarnation) -> Result<(), FileError> {
        let write = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_write()?;
            {
                let mut numbers = transaction.open_table(NUMBERS)?;
                numbers.insert("clean", 0)?;
                numbers.insert("incarnation", u64::from(incarnation.0))?;
            }
            Ok(transaction.commit()?)
        };
        write().map_err(|error| FileError::new(&self.path, error))
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

    /// Reads the store's identity and the state of the last checkpoint. If the checkpoint is no longer valid,
    /// the state has no nodes and allocations.
    fn read(&self) -> Result<([u8; 16], StoreState), ReadError> {
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
        if number("clean")? == 1 {
            // A store that was never stopped has no checkpoint.
            if transaction.list_tables()?.any(|table| table.name() == ROWS.name()) {
                read_checkpoint(&transaction, &mut state)?;
            }
        } else {
            warn!(
                "the last run did not stop cleanly: its books were in memory and are gone; starting with empty ones"
            );
            // Node ids of the lost run are not issued again: the new ids are from a range of this start.
            state.registrar.next_node = state.registrar.next_node.max((u64::from(incarnation) + 1) << 40);
        }
        Ok((id, state))
    }

    /// Writes the whole state in one transaction. The next start continues from it.
    ///
    /// # Errors
    /// When the store cannot be written. The next start then treats this run as not stopped cleanly.
    pub fn checkpoint(&self, state: &StoreState) -> Result<(), FileError> {
        self.write(state).map_err(|error| FileError::new(&self.path, error))
    }

    fn write(&self, state: &StoreState) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        transaction.delete_table(ROWS)?;
        {
            let mut numbers = transaction.open_table(NUMBERS)?;
            numbers.insert("now", state.now.0)?;
            numbers.insert("next_node", state.registrar.next_node)?;
            numbers.insert("clean", 1)?;
            let mut hasher = hasher(state);
            let mut rows = transaction.open_table(ROWS)?;
            let kinds = row::kinds_of(&state.registrar).expect("the registrar has learnt them");
            for (at, row) in (0..).zip(row::rows(state, &kinds)) {
                let mut bytes = Vec::new();
                encode_body(&row, &mut bytes);
                hasher.number(stable_hash(&bytes));
                rows.insert(at, bytes.as_slice())?;
            }
            transaction.open_table(HASH)?.insert((), hasher.finish().0)?;
        }
        transaction.commit()?;
        Ok(())
    }
}

/// Begins the hash of a checkpoint with the numbers of its state. The hashes of the rows follow.
fn hasher(state: &StoreState) -> StateHasher {
    let mut hasher = StateHasher::new("checkpoint");
    hasher.number(u64::from(state.incarnation.0));
    hasher.number(state.partitions.len() as u64);
    hasher.number(state.now.0);
    hasher.number(state.registrar.next_node);
    hasher
}

fn damage(what: impl Display) -> ReadError {
    ReadError::Content(format!(
        "is damaged: {what}; restore the file from a copy, or move it away to begin with an empty store"
    ))
}

/// Reads the rows that a clean stop wrote, after a check that they are there as they were written.
fn read_checkpoint(transaction: &redb::ReadTransaction, state: &mut StoreState) -> Result<(), ReadError> {
    let rows = transaction.open_table(ROWS)?;
    let mut hasher = hasher(state);
    for row in rows.iter()? {
        hasher.number(stable_hash(row?.1.value()));
    }
    let written = transaction.open_table(HASH)?.get(())?.map(|hash| hash.value());
    if written != Some(hasher.finish().0) {
        return Err(damage("its rows are not those that the last stop wrote"));
    }
    let mut reader = row::Reader::new(state);
    for row in rows.iter()? {
        let (at, bytes) = row?;
        let added = decode_stored(bytes.value()).map_err(Into::into).and_then(|row| reader.add(row));
        added.map_err(|error| damage(format_args!("row {}: {error}", at.value())))?;
    }
    Ok(())
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
