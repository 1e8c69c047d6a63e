//! The store on disk (redb): the identity and incarnation of the store, and the checkpoint that
//! a clean shutdown writes.
//!
//! State lives in memory until the journal comes: after a crash the books of that run are gone.
//! What this module promises already is that nothing old comes back as if it were true (a
//! checkpoint is good for one start) and that no id is ever given twice (each start has a new
//! incarnation, and node ids leap ahead after a crash).

use std::path::{Path, PathBuf};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use tracing::warn;
use wharf_core::ids::{Incarnation, Ordinal};
use wharf_core::index::PolicyState;
use wharf_core::registrar::RegistrarState;
use wharf_core::rng::Rng;
use wharf_core::store::{PartitionState, StoreState};
use wharf_core::time::Time;

use super::record;

const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
const IDENTITY: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("identity");
const RESOURCES: TableDefinition<'_, u16, &str> = TableDefinition::new("resources");
const POLICIES: TableDefinition<'_, u16, (u64, u64)> = TableDefinition::new("policies");
const NODES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("nodes");
const ALLOCATIONS: TableDefinition<'_, (u32, u16, u64), &[u8]> = TableDefinition::new("allocations");

const FILE: &str = "store.redb";
const FORMAT: u64 = 1;

/// A store that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The directory cannot be made.
    #[error("{path}: cannot be made: {error} (`data_dir` chooses the directory)", path = path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// Another process has it open.
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
        /// Why not.
        error: Box<redb::Error>,
    },
    /// What it holds is not what this version wrote.
    #[error("{path}: {message}", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong and the remedy.
        message: String,
    },
}

/// An open store.
pub struct Store {
    database: Database,
    path: PathBuf,
    id: [u8; 16],
}

impl Store {
    /// Opens the store of `data_dir`, creating it with `partitions` if there is none, and begins
    /// a new incarnation. The state is that of the last clean shutdown, taken once.
    ///
    /// # Errors
    /// When the directory or the file cannot be used.
    pub fn open(data_dir: &Path, partitions: u16) -> Result<(Self, StoreState), StorageError> {
        std::fs::create_dir_all(data_dir)
            .map_err(|error| StorageError::Directory { path: data_dir.to_owned(), error })?;
        let path = data_dir.join(FILE);
        let database = Database::create(&path).map_err(|error| match error {
            redb::DatabaseError::DatabaseAlreadyOpen => StorageError::InUse { path: path.clone() },
            other => StorageError::Database { path: path.clone(), error: Box::new(other.into()) },
        })?;
        let mut store = Self { database, path, id: [0; 16] };
        let state = match store.begin(partitions) {
            Ok(state) => state?,
            Err(error) => return Err(store.failed(error)),
        };
        Ok((store, state))
    }

    fn failed(&self, error: redb::Error) -> StorageError {
        StorageError::Database { path: self.path.clone(), error: Box::new(error) }
    }

    fn content(&self, message: impl Into<String>) -> StorageError {
        StorageError::Content { path: self.path.clone(), message: message.into() }
    }

    /// The store's identity: the same after every restart.
    #[must_use]
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// One transaction: reads the state and marks it as taken.
    fn begin(&mut self, partitions: u16) -> Result<Result<StoreState, StorageError>, redb::Error> {
        let transaction = self.database.begin_write()?;
        let (fresh, state, clean, incarnation);
        {
            let mut numbers = transaction.open_table(NUMBERS)?;
            let mut identity = transaction.open_table(IDENTITY)?;
            fresh = numbers.get("format")?.is_none();
            if fresh {
                numbers.insert("format", FORMAT)?;
                numbers.insert("partitions", u64::from(partitions))?;
                numbers.insert("clean", 1)?;
                let id = new_identity();
                identity.insert("store", id.as_slice())?;
            }
            let number = |key: &str| -> Result<u64, redb::Error> { Ok(numbers.get(key)?.map_or(0, |v| v.value())) };
            if number("format")? != FORMAT {
                let message = format!("has format {}, and this version reads format {FORMAT}", number("format")?);
                return Ok(Err(self.content(message)));
            }
            clean = number("clean")? == 1;
            incarnation = number("incarnation")?;
            if let Some(id) = identity.get("store")? {
                self.id = id.value().try_into().unwrap_or_default();
            }
            numbers.insert("clean", 0)?;
            numbers.insert("incarnation", incarnation + 1)?;
        }
        transaction.commit()?;
        state = self.read(clean)?;
        if !clean {
            warn!("the last run did not stop cleanly: its books were in memory and are gone; starting with empty ones");
        }
        Ok(state.map(|mut state| {
            state.incarnation = Incarnation(incarnation as u32);
            if !clean {
                // Ids of the lost run are not given again: node ids leap to a range of this start.
                state.registrar.next_node = state.registrar.next_node.max((incarnation + 1) << 40);
            }
            state
        }))
    }

    /// The state of the last checkpoint; without nodes and allocations if it is not good any more.
    fn read(&self, clean: bool) -> Result<Result<StoreState, StorageError>, redb::Error> {
        let transaction = self.database.begin_read()?;
        let numbers = transaction.open_table(NUMBERS)?;
        let number = |key: &str| -> Result<u64, redb::Error> { Ok(numbers.get(key)?.map_or(0, |v| v.value())) };
        let Some(partitions) = u16::try_from(number("partitions")?).ok().filter(|&p| p > 0) else {
            return Ok(Err(self.content("says no number of partitions: it is damaged")));
        };
        let mut state = StoreState::create(partitions);
        state.now = Time(number("now")?);
        state.registrar = RegistrarState { next_node: number("next_node")?.max(1), resources: Vec::new() };
        let Ok(resources) = transaction.open_table(RESOURCES) else { return Ok(Ok(state)) };
        for row in resources.iter()? {
            state.registrar.resources.push(row?.1.value().to_owned());
        }
        if !clean {
            return Ok(Ok(state));
        }
        for row in transaction.open_table(POLICIES)?.iter()? {
            let (next_fit, rng) = row?.1.value();
            state.policies.push(PolicyState { next_fit: Ordinal(next_fit), rng: Rng::new(rng) });
        }
        for row in transaction.open_table(NODES)?.iter()? {
            let row = row?;
            match record::decode_node(row.0.value(), row.1.value()) {
                Ok(node) => match partition(&mut state, node.registration.partition.0) {
                    Some(partition) => partition.nodes.push(node),
                    None => return Ok(Err(self.content(format!("node {} has no partition", row.0.value())))),
                },
                Err(message) => return Ok(Err(self.content(message))),
            }
        }
        for row in transaction.open_table(ALLOCATIONS)?.iter()? {
            let row = row?;
            match record::decode_allocation(row.0.value(), row.1.value()) {
                Ok(allocation) => match partition(&mut state, allocation.id.partition.0) {
                    Some(partition) => partition.allocations.push(allocation),
                    None => return Ok(Err(self.content(format!("allocation {} has no partition", allocation.id)))),
                },
                Err(message) => return Ok(Err(self.content(message))),
            }
        }
        Ok(Ok(state))
    }

    /// Writes the whole state in one transaction: the next start goes on from it.
    ///
    /// # Errors
    /// When it cannot be written; then the next start takes this run as not stopped cleanly.
    pub fn checkpoint(&self, state: &StoreState) -> Result<(), StorageError> {
        self.write(state).map_err(|error| self.failed(error))
    }

    fn write(&self, state: &StoreState) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        for table in ["resources", "policies", "nodes", "allocations"] {
            let known = transaction.list_tables()?.any(|handle| redb::TableHandle::name(&handle) == table);
            if known {
                match table {
                    "resources" => transaction.delete_table(RESOURCES)?,
                    "policies" => transaction.delete_table(POLICIES)?,
                    "nodes" => transaction.delete_table(NODES)?,
                    _ => transaction.delete_table(ALLOCATIONS)?,
                };
            }
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
            let mut policies = transaction.open_table(POLICIES)?;
            for (shard, policy) in (0..).zip(&state.policies) {
                policies.insert(shard, (policy.next_fit.0, policy.rng.state()))?;
            }
            let mut nodes = transaction.open_table(NODES)?;
            let mut allocations = transaction.open_table(ALLOCATIONS)?;
            for partition in &state.partitions {
                for node in &partition.nodes {
                    nodes.insert(node.registration.id.0, record::encode_node(node).as_slice())?;
                }
                for allocation in &partition.allocations {
                    let key = record::allocation_key(allocation);
                    allocations.insert(key, record::encode_allocation(allocation).as_slice())?;
                }
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

fn partition(state: &mut StoreState, id: u16) -> Option<&mut PartitionState> {
    state.partitions.get_mut(usize::from(id))
}

/// A new identity: random, so that no other store has it.
fn new_identity() -> [u8; 16] {
    let mut id = [0; 16];
    let provider = rustls::crypto::ring::default_provider();
    provider.secure_random.fill(&mut id).expect("the operating system gives randomness");
    id
}
