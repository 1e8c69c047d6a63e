//! The storages. Each appends as the journal does: one value, durable as a whole, before the next one.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;
use redb::{Database, TableDefinition};

/// What is appended to a storage.
pub(crate) struct Load {
    /// The number of appends.
    pub(crate) appends: u64,
    /// The length of each value.
    pub(crate) value_bytes: usize,
}

/// A storage of values.
pub(crate) trait Storage {
    /// Appends a value, which is durable afterwards. Numbers begin at 1 and go up by 1.
    ///
    /// # Errors
    /// When the storage cannot be written.
    fn append(&mut self, number: u64, value: &[u8]) -> anyhow::Result<()>;
}

/// A kind of storage.
pub(crate) struct Kind {
    /// Returns the name in the table.
    pub(crate) name: fn() -> String,
    /// Makes an empty storage in a directory.
    pub(crate) open: fn(&Path, &Load) -> anyhow::Result<Box<dyn Storage>>,
}

/// All kinds, in the order of the table. Without compression, because redb has none.
pub(crate) const STORAGES: [Kind; 6] = [
    Kind { name: || "append to a preallocated file, `fdatasync`".to_owned(), open: Preallocated::open },
    Kind { name: || "append to a growing file, `fdatasync`".to_owned(), open: Growing::open },
    Kind { name: || versioned("fjall"), open: Fjall::open },
    Kind { name: || versioned("raft-engine"), open: RaftEngine::open },
    Kind { name: || versioned("redb"), open: Redb::open },
    Kind {
        name: || format!("{}, one table and recycled pages", versioned("redb")),
        open: RedbOfProduct::open,
    },
];

/// Returns the name of a package with its version.
fn versioned(package: &str) -> String {
    let lock = include_str!("../Cargo.lock");
    let (_, after) = lock.split_once(&format!("name = \"{package}\"\nversion = \"")).expect("a dependency");
    format!("{package} {}", after.split('"').next().expect("a text has a first part"))
}

/// A file that has its whole length before, so that an append changes no metadata.
struct Preallocated {
    file: File,
    end: u64,
}

impl Preallocated {
    fn open(directory: &Path, load: &Load) -> anyhow::Result<Box<dyn Storage>> {
        let mut file = File::create_new(directory.join("log"))?;
        // Zeros are written, because space that is only reserved is metadata again at its first write.
        let zeros = vec![0; load.value_bytes];
        for _ in 0..load.appends {
            file.write_all(&zeros)?;
        }
        file.sync_all()?;
        Ok(Box::new(Self { file, end: 0 }))
    }
}

impl Storage for Preallocated {
    fn append(&mut self, _: u64, value: &[u8]) -> anyhow::Result<()> {
        self.file.write_all_at(value, self.end)?;
        self.end += value.len() as u64;
        Ok(self.file.sync_data()?)
    }
}

/// A file whose length grows with each append.
struct Growing(File);

impl Growing {
    fn open(directory: &Path, _: &Load) -> anyhow::Result<Box<dyn Storage>> {
        Ok(Box::new(Self(File::create_new(directory.join("log"))?)))
    }
}

impl Storage for Growing {
    fn append(&mut self, _: u64, value: &[u8]) -> anyhow::Result<()> {
        self.0.write_all(value)?;
        Ok(self.0.sync_data()?)
    }
}

/// A keyspace of fjall, whose log is synced after each insertion.
struct Fjall {
    database: fjall::Database,
    values: fjall::Keyspace,
}

impl Fjall {
    fn open(directory: &Path, _: &Load) -> anyhow::Result<Box<dyn Storage>> {
        let builder = fjall::Database::builder(directory);
        let database = builder.journal_compression(fjall::CompressionType::None).open()?;
        let values = database.keyspace("values", fjall::KeyspaceCreateOptions::default)?;
        Ok(Box::new(Self { database, values }))
    }
}

impl Storage for Fjall {
    fn append(&mut self, number: u64, value: &[u8]) -> anyhow::Result<()> {
        // The order of the keys is that of the numbers.
        #[expect(clippy::big_endian_bytes)]
        self.values.insert(number.to_be_bytes(), value)?;
        Ok(self.database.persist(fjall::PersistMode::SyncData)?)
    }
}

/// Group 1 of raft-engine, with one batch per append.
struct RaftEngine(raft_engine::Engine);

impl RaftEngine {
    fn open(directory: &Path, _: &Load) -> anyhow::Result<Box<dyn Storage>> {
        let config = raft_engine::Config {
            dir: directory.to_str().context("raft-engine needs a path in UTF-8")?.to_owned(),
            batch_compression_threshold: raft_engine::ReadableSize(0),
            ..Default::default()
        };
        Ok(Box::new(Self(raft_engine::Engine::open(config)?)))
    }
}

impl Storage for RaftEngine {
    fn append(&mut self, number: u64, value: &[u8]) -> anyhow::Result<()> {
        let mut batch = raft_engine::LogBatch::default();
        batch.put(1, number.to_le_bytes().to_vec(), value.to_vec())?;
        self.0.write(&mut batch, true)?;
        Ok(())
    }
}

/// Returns an empty database with the cache of the journal's. Its commits are durable unless they say otherwise.
fn database(directory: &Path) -> anyhow::Result<Database> {
    Ok(Database::builder().set_cache_size(16 << 20).create(directory.join("journal.redb"))?)
}

/// redb as the journal had it at first: the epoch and the last number have a table of their own, and nothing is
/// dropped.
struct Redb(Database);

impl Redb {
    const VALUES: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("values");
    const NUMBERS: TableDefinition<'static, &'static str, u64> = TableDefinition::new("numbers");

    fn open(directory: &Path, _: &Load) -> anyhow::Result<Box<dyn Storage>> {
        Ok(Box::new(Self(database(directory)?)))
    }
}

impl Storage for Redb {
    fn append(&mut self, number: u64, value: &[u8]) -> anyhow::Result<()> {
        let transaction = self.0.begin_write()?;
        {
            let mut numbers = transaction.open_table(Self::NUMBERS)?;
            numbers.insert("epoch", 1)?;
            numbers.insert("last", number)?;
            transaction.open_table(Self::VALUES)?.insert(number, value)?;
        }
        Ok(transaction.commit()?)
    }
}

/// redb as the journal has it (`ops/src/journal/log.rs`). Commits use the pages of dropped values again.
struct RedbOfProduct {
    database: Database,
    /// The number of the first value that is kept.
    first: u64,
}

impl RedbOfProduct {
    const VALUES: TableDefinition<'static, u64, (u64, &'static [u8])> = TableDefinition::new("values");
    /// The number of newest values that are kept. The warm-up drops some, so that there are pages to use again.
    const KEPT: u64 = 512;
    /// The number of old values that are dropped at once.
    const STEP: u64 = 256;

    fn open(directory: &Path, _: &Load) -> anyhow::Result<Box<dyn Storage>> {
        Ok(Box::new(Self { database: database(directory)?, first: 1 }))
    }
}

impl Storage for RedbOfProduct {
    fn append(&mut self, number: u64, value: &[u8]) -> anyhow::Result<()> {
        let is_step = number >= self.first + Self::KEPT + Self::STEP;
        let kept_from = if is_step { self.first + Self::STEP } else { self.first };
        let transaction = self.database.begin_write()?;
        {
            let mut values = transaction.open_table(Self::VALUES)?;
            values.insert(number, (1, value))?;
            for old in self.first..kept_from {
                values.remove(old)?;
            }
        }
        transaction.commit()?;
        self.first = kept_from;
        Ok(())
    }
}
