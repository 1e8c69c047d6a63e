//! The store on disk (redb): its identity and incarnation, and the checkpoint that a clean shutdown writes.
//!
//! State lives in memory; there is no journal yet, so a crash loses the books of that run. This module
//! guarantees two things:
//!
//! - Outdated books are never restored: a checkpoint is valid for one start.
//! - No id is issued twice: each start has a new incarnation, and node ids skip a range after a crash.

use std::path::{Path, PathBuf};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableHandle};
use tracing::warn;
use wharf_core::ids::{Incarnation, Ordinal};
use wharf_core::index::PolicyState;
use wharf_core::limits::PARTITIONS_MAX;
use wharf_core::rng::Rng;
use wharf_core::state::{PartitionState, StoreState};
use wharf_core::time::Time;

use super::consistency::check_state;
use super::{group_record, life_record, record, reservation_record, statement_record};

const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
const IDENTITY: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("identity");
const RESOURCES: TableDefinition<'_, u16, &str> = TableDefinition::new("resources");
const UNIT_INSTANCES: TableDefinition<'_, u16, ()> = TableDefinition::new("unit_instances");
const POLICIES: TableDefinition<'_, u16, (u64, u64)> = TableDefinition::new("policies");
/// By shard, for shards whose granularity adapts to the nodes.
const GRANULARITIES: TableDefinition<'_, u16, &[u8]> = TableDefinition::new("granularities");
const NODES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("nodes");
/// Life rows; plain ready or draining nodes have none.
const LIFE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("life");
/// Removed machines, which get their old id again when they return.
const REMOVED: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("removed");
const ALLOCATIONS: TableDefinition<'_, (u32, u16, u64), &[u8]> = TableDefinition::new("allocations");
/// By incarnation and number of the group.
const GROUPS: TableDefinition<'_, group_record::GroupKey, &[u8]> = TableDefinition::new("groups");
const RESERVATIONS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("reservations");

const FILE: &str = "store.redb";
const FORMAT: u64 = 3;

/// A store that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The directory cannot be created.
    #[error("{path}: cannot be made: {error} (`data_dir` chooses the directory)", path = path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// Another process has the store open.
    #[error("{path}: another service uses this data directory: stop it, or choose another `data_dir`", path = path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The database cannot be read or written.
    #[error("{path}: {error}", path = path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: Box<redb::Error>,
    },
    /// The contents are damaged, or have the format of another version.
    #[error("{path}: {message}", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault and the remedy.
        message: String,
    },
}

/// An error of reading a checkpoint.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The database cannot be read.
    Database(redb::Error),
    /// The contents are damaged. The message says how.
    Damaged(String),
}

impl From<String> for ReadError {
    fn from(what: String) -> Self {
        Self::Damaged(what)
    }
}

macro_rules! database_errors {
    ($($error:ty),*) => {
        $(impl From<$error> for ReadError {
            fn from(error: $error) -> Self {
                Self::Database(error.into())
            }
        })*
    };
}

database_errors!(redb::StorageError, redb::TableError, redb::TransactionError);

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
    pub fn open(data_dir: &Path, partitions: u16) -> Result<(Self, StoreState), StorageError> {
        std::fs::create_dir_all(data_dir)
            .map_err(|error| StorageError::Directory { path: data_dir.to_owned(), error })?;
        let path = data_dir.join(FILE);
        let database = Database::create(&path).map_err(|error| match error {
            redb::DatabaseError::DatabaseAlreadyOpen => StorageError::InUse { path: path.clone() },
            other => StorageError::Database { path: path.clone(), error: Box::new(other.into()) },
        })?;
        let mut store = Self { database, path, id: [0; 16] };
        store.create(partitions).map_err(|error| store.failed(error))?;
        let (id, state) = store.read().map_err(|error| match error {
            ReadError::Database(error) => store.failed(error),
            ReadError::Damaged(message) => store.damaged(message),
        })?;
        store.id = id;
        Ok((store, state))
    }

    /// Begins `incarnation` and consumes the checkpoint. Call this only when nothing else can make the start
    /// fail: a start that fails after this loses the books.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn begin(&self, incarnation: Incarnation) -> Result<(), StorageError> {
        let write = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_write()?;
            {
                let mut numbers = transaction.open_table(NUMBERS)?;
                numbers.insert("clean", 0)?;
                numbers.insert("incarnation", u64::from(incarnation.0))?;
            }
            Ok(transaction.commit()?)
        };
        write().map_err(|error| self.failed(error))
    }

    fn failed(&self, error: redb::Error) -> StorageError {
        StorageError::Database { path: self.path.clone(), error: Box::new(error) }
    }

    fn damaged(&self, message: String) -> StorageError {
        StorageError::Content { path: self.path.clone(), message }
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
            return Err(ReadError::Damaged(message));
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
            if transaction.list_tables()?.any(|table| table.name() == NODES.name()) {
                read_checkpoint(&transaction, &mut state).map_err(|error| match error {
                    ReadError::Damaged(what) => damage(&what),
                    other => other,
                })?;
                check_state(&state).map_err(|what| damage(&what))?;
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
    pub fn checkpoint(&self, state: &StoreState) -> Result<(), StorageError> {
        self.write(state).map_err(|error| self.failed(error))
    }

    fn write(&self, state: &StoreState) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        // All other tables are of the last checkpoint.
        let kept = [NUMBERS.name(), IDENTITY.name()];
        for table in transaction.list_tables()?.filter(|table| !kept.contains(&table.name())) {
            transaction.delete_table(table)?;
        }
        {
            let mut numbers = transaction.open_table(NUMBERS)?;
            numbers.insert("now", state.now.0)?;
            numbers.insert("next_node", state.registrar.next_node)?;
            numbers.insert("clean", 1)?;
            let mut resources = transaction.open_table(RESOURCES)?;
            for (id, name) in (0..).zip(&state.registrar.resources) {
                resources.insert(id, name.as_str())?;
            }
            let mut unit_instances = transaction.open_table(UNIT_INSTANCES)?;
            for &kind in &state.registrar.unit_instances {
                unit_instances.insert(kind, ())?;
            }
            let mut policies = transaction.open_table(POLICIES)?;
            for (shard, policy) in (0..).zip(&state.policies) {
                policies.insert(shard, (policy.next_fit.0, policy.rng.state()))?;
            }
            let mut granularities = transaction.open_table(GRANULARITIES)?;
            for (shard, granularity) in (0..).zip(&state.granularities) {
                if let Some(granularity) = granularity {
                    granularities.insert(shard, record::encode_granularity(granularity).as_slice())?;
                }
            }
            let mut nodes = transaction.open_table(NODES)?;
            let mut life = transaction.open_table(LIFE)?;
            let mut removed = transaction.open_table(REMOVED)?;
            for (at, node) in (0..).zip(&state.registrar.removed) {
                removed.insert(at, life_record::encode_removed(node).as_slice())?;
            }
            let mut groups = transaction.open_table(GROUPS)?;
            for group in &state.groups {
                groups
                    .insert(group_record::group_key(group), group_record::encode_group(group).as_slice())?;
            }
            let mut allocations = transaction.open_table(ALLOCATIONS)?;
            let mut reservations = transaction.open_table(RESERVATIONS)?;
            for partition in &state.partitions {
                for node in &partition.nodes {
                    nodes.insert(node.registration.id.0, record::encode_node(node).as_slice())?;
                    if let Some(row) = life_record::encode_life(node) {
                        life.insert(node.registration.id.0, row.as_slice())?;
                    }
                }
                for reservation in &partition.reservations {
                    let row = reservation_record::encode_reservation(reservation);
                    reservations.insert(reservation.node.0, row.as_slice())?;
                }
                for allocation in &partition.allocations {
                    let row = record::encode(&record::allocation_row(allocation));
                    allocations.insert(record::key(allocation.id), row.as_slice())?;
                }
                statement_record::write(&transaction, partition)?;
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

fn damage(what: &str) -> ReadError {
    ReadError::Damaged(format!(
        "is damaged: {what}; restore the file from a copy, or move it away to begin with an empty store"
    ))
}

/// Reads the tables that a clean shutdown wrote.
fn read_checkpoint(transaction: &redb::ReadTransaction, state: &mut StoreState) -> Result<(), ReadError> {
    for (position, row) in (0..).zip(transaction.open_table(RESOURCES)?.iter()?) {
        let (id, name) = row?;
        if id.value() != position {
            return Err(format!("resource {position} is missing").into());
        }
        state.registrar.resources.push(name.value().to_owned());
    }
    for row in transaction.open_table(UNIT_INSTANCES)?.iter()? {
        state.registrar.unit_instances.push(row?.0.value());
    }
    for row in transaction.open_table(POLICIES)?.iter()? {
        let (next_fit, rng) = row?.1.value();
        state.policies.push(PolicyState { next_fit: Ordinal(next_fit), rng: Rng::new(rng) });
    }
    state.granularities = vec![None; state.policies.len()];
    for row in transaction.open_table(GRANULARITIES)?.iter()? {
        let (shard, bytes) = row?;
        let shard = shard.value();
        let place = state.granularities.get_mut(usize::from(shard));
        let place = place.ok_or_else(|| format!("shard {shard} has a granularity and no policy"))?;
        *place = Some(record::decode_granularity(shard, bytes.value())?);
    }
    for row in transaction.open_table(REMOVED)?.iter()? {
        let (at, bytes) = row?;
        state.registrar.removed.push(life_record::decode_removed(at.value(), bytes.value())?);
    }
    for row in transaction.open_table(GROUPS)?.iter()? {
        let (key, bytes) = row?;
        state.groups.push(group_record::decode_group(key.value(), bytes.value())?);
    }
    read_partitions(transaction, &mut state.partitions)?;
    statement_record::read(transaction, &mut state.partitions)?;
    read_reservations(transaction, &mut state.partitions)
}

/// Reads nodes and allocations of a checkpoint into their partitions.
fn read_partitions(
    transaction: &redb::ReadTransaction,
    partitions: &mut [PartitionState],
) -> Result<(), ReadError> {
    let life = transaction.open_table(LIFE)?;
    for row in transaction.open_table(NODES)?.iter()? {
        let (id, bytes) = row?;
        let mut node = record::decode_node(id.value(), bytes.value())?;
        if let Some(row) = life.get(id.value())? {
            life_record::decode_life(&mut node, row.value())?;
        }
        let partition = partitions.get_mut(usize::from(node.registration.partition.0));
        let of_none = || format!("node {} is of a partition that is none", node.registration.id);
        partition.ok_or_else(of_none)?.nodes.push(node);
    }
    for row in transaction.open_table(ALLOCATIONS)?.iter()? {
        let (key, bytes) = row?;
        let allocation = record::decode_allocation(key.value(), bytes.value())?;
        record::partition_of(partitions, allocation.id)?.allocations.push(allocation);
    }
    Ok(())
}

/// Reads the reservations of a checkpoint. The nodes must have been read before.
fn read_reservations(
    transaction: &redb::ReadTransaction,
    partitions: &mut [PartitionState],
) -> Result<(), ReadError> {
    for row in transaction.open_table(RESERVATIONS)?.iter()? {
        let (node, bytes) = row?;
        let reservation = reservation_record::decode_reservation(node.value(), bytes.value())?;
        let holds = |partition: &&mut PartitionState| {
            partition.nodes.iter().any(|node| node.registration.id == reservation.node)
        };
        let partition = partitions.iter_mut().find(holds);
        let partition =
            partition.ok_or_else(|| format!("node {} is reserved, and is none", reservation.node))?;
        partition.reservations.push(reservation);
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
