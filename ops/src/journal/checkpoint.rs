//! Checkpoints on disk: rows in chunks, replaced as a whole by one transaction.

use std::path::PathBuf;

use redb::{Database, TableDefinition, WriteTransaction};
use wharf_core::hash::{StateHasher, stable_hash};
use wharf_core::journal::Stream;
use wharf_core::state::{PartitionState, StoreState};
use wharf_net::codec::{decode_stored, encode_body};

use super::guard::{each_row, guarded};
use super::numbers;
use super::row::{self, Row};
use super::store::{ReadError, SHOWN, damage};
use super::writer::Heads;
use crate::file_error::FileError;

/// The rows of the checkpoint in chunks, in their order.
pub(super) const ROWS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("rows");
/// The hash of the checkpoint.
pub(super) const HASH: TableDefinition<'_, (), u128> = TableDefinition::new("hash");

/// The number of bytes after which a chunk of rows ends. Unit tests have one row per chunk.
const CHUNK_BYTES: usize = if cfg!(test) { 1 } else { 60 << 10 };

/// Writes a checkpoint. The one before it stays valid until [`finish`](Self::finish), and if that is never called.
pub struct CheckpointWriter {
    transaction: WriteTransaction,
    path: PathBuf,
    chunk: Vec<u8>,
    chunks: u64,
    hasher: StateHasher,
    from: u64,
}

impl CheckpointWriter {
    pub(super) fn begin(database: &Database, path: PathBuf, from: u64) -> Result<Self, FileError> {
        let begin = || -> Result<WriteTransaction, redb::Error> {
            let mut transaction = database.begin_write()?;
            // Without this, the next start after a crash would read the whole file first.
            transaction.set_quick_repair(true);
            transaction.delete_table(ROWS)?;
            Ok(transaction)
        };
        let transaction = begin().map_err(|error| FileError::new(&path, error))?;
        let hasher = StateHasher::new("checkpoint");
        Ok(Self { transaction, path, chunk: Vec::new(), chunks: 0, hasher, from })
    }

    fn error(&self, error: impl Into<redb::Error>) -> FileError {
        FileError::new(&self.path, error.into())
    }

    /// Adds a row.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub(super) fn row(&mut self, row: &Row) -> Result<(), FileError> {
        encode_body(row, &mut self.chunk);
        if self.chunk.len() >= CHUNK_BYTES { self.end_chunk() } else { Ok(()) }
    }

    fn end_chunk(&mut self) -> Result<(), FileError> {
        let write = || -> Result<(), redb::Error> {
            self.transaction.open_table(ROWS)?.insert(self.chunks, self.chunk.as_slice())?;
            Ok(())
        };
        write().map_err(|error| self.error(error))?;
        self.hasher.number(stable_hash(&self.chunk));
        self.chunk.clear();
        self.chunks += 1;
        Ok(())
    }

    /// Adds the heads of the streams.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn heads(&mut self, heads: &Heads) -> Result<(), FileError> {
        self.row(&Row::Streams(heads.iter().map(|(stream, &head)| (stream.0, head)).collect()))
    }

    /// Adds a whole state.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn state(&mut self, state: &StoreState) -> Result<(), FileError> {
        let kinds = row::kinds_of(&state.registrar).expect("the registrar has learnt them");
        row::rows(state, &kinds).try_for_each(|row| self.row(&row))
    }

    /// Replaces the checkpoint before. `state` has the incarnation, the time and the next node. The rows may show what the
    /// appends up to `shown` did. The store does not count as stopped cleanly any more.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn finish(mut self, state: &StoreState, shown: u64) -> Result<(), FileError> {
        if !self.chunk.is_empty() {
            self.end_chunk()?;
        }
        let Self { transaction, path, mut hasher, from, .. } = self;
        let write = || -> Result<(), redb::Error> {
            let of_state = [
                ("incarnation", u64::from(state.incarnation.0)),
                ("now", state.now.0),
                ("next_node", state.registrar.next_node),
                ("from", from),
                (SHOWN, shown),
                ("clean", 0),
            ];
            numbers::set(&transaction, of_state)?;
            add_numbers(&mut hasher, state);
            transaction.open_table(HASH)?.insert((), hasher.finish().0)?;
            Ok(transaction.commit()?)
        };
        write().map_err(|error| FileError::new(&path, error))
    }
}

/// Writes a checkpoint as another store has it, into a database without one.
pub(super) struct Loader {
    transaction: WriteTransaction,
    path: PathBuf,
}

impl Loader {
    pub(super) fn begin(database: &Database, path: PathBuf) -> Result<Self, FileError> {
        let mut transaction = database.begin_write().map_err(|error| FileError::new(&path, error))?;
        transaction.set_two_phase_commit(true);
        Ok(Self { transaction, path })
    }

    fn error(&self, error: impl Into<redb::Error>) -> FileError {
        FileError::new(&self.path, error.into())
    }

    /// Adds a chunk of rows.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub(super) fn rows(&mut self, number: u64, chunk: &[u8]) -> Result<(), FileError> {
        let write = || -> Result<(), redb::Error> {
            self.transaction.open_table(ROWS)?.insert(number, chunk)?;
            Ok(())
        };
        write().map_err(|error| self.error(error))
    }

    /// Adds the identity and the numbers of the store, and the hash of its checkpoint.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub(super) fn finish(
        self,
        store: &[u8; 16],
        numbers: &[(String, u64)],
        hash: Option<u128>,
    ) -> Result<(), FileError> {
        let Self { transaction, path } = self;
        let write = || -> Result<(), redb::Error> {
            numbers::set(&transaction, numbers.iter().map(|(name, number)| (name.as_str(), *number)))?;
            numbers::set_identity(&transaction, store)?;
            if let Some(hash) = hash {
                transaction.open_table(HASH)?.insert((), hash)?;
            }
            Ok(transaction.commit()?)
        };
        write().map_err(|error| FileError::new(&path, error))
    }
}

/// Ends the hash of a checkpoint with the numbers of its state. The hashes of the chunks come before.
pub(super) fn add_numbers(hasher: &mut StateHasher, state: &StoreState) {
    hasher.number(u64::from(state.incarnation.0));
    hasher.number(state.partitions.len() as u64);
    hasher.number(state.now.0);
    hasher.number(state.registrar.next_node);
}

/// What a checkpoint says in addition to its state.
pub(super) struct Read {
    pub(super) heads: Heads,
    /// The bytes of its rows.
    pub(super) bytes: u64,
}

/// Reads a checkpoint into a state that has its numbers, after a check that the rows are as they were written.
pub(super) fn read(transaction: &redb::ReadTransaction, state: &mut StoreState) -> Result<Read, ReadError> {
    let rows =
        || guarded(|| -> Result<_, redb::Error> { Ok(transaction.open_table(ROWS)?.range::<u64>(..)?) });
    let mut hasher = StateHasher::new("checkpoint");
    let mut length = 0;
    each_row(rows()?, |_, bytes| {
        hasher.number(stable_hash(bytes));
        length += bytes.len() as u64;
        Ok::<_, redb::Error>(true)
    })?;
    add_numbers(&mut hasher, state);
    let written = guarded(|| -> Result<_, redb::Error> {
        Ok(transaction.open_table(HASH)?.get(())?.map(|hash| hash.value()))
    })?;
    if written != Some(hasher.finish().0) {
        return Err(damage("its rows are not those of its last checkpoint"));
    }
    let mut reader = row::Reader::new(state);
    let mut count = 0;
    each_row(rows()?, |_, bytes| {
        let mut left = bytes;
        while !left.is_empty() {
            let added = decode_stored(left).map_err(Into::into).and_then(|(row, read)| {
                left = &left[read..];
                reader.add(row)
            });
            added.map_err(|error: anyhow::Error| damage(format_args!("row {count}: {error}")))?;
            count += 1;
        }
        Ok::<_, ReadError>(true)
    })?;
    let streams = reader.streams();
    // The pages of a shard have its nodes in another order.
    state.partitions.iter_mut().for_each(PartitionState::sort);
    let heads = streams.into_iter().map(|(stream, head)| (Stream(stream), head)).collect();
    Ok(Read { heads, bytes: length })
}
