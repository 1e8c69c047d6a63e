//! The files of a store: how they are opened, locked and synced.

use std::fmt::Debug;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{Builder, StorageBackend};
use wharf_core::planted::{PlantedBug, is_planted};
use xxhash_rust::xxh3::xxh3_128;

use super::guard::{Handle, guarded};
use crate::file_error::FileError;

/// The file whose lock keeps a second server away.
const LOCK: &str = "lock";

/// The message for a directory that another process has locked.
pub(super) const IN_USE: &str =
    "another service uses this data directory: stop it, or choose another `data_dir`";

/// The remedy for a directory or file that this user cannot use.
const REMEDY: &str = "give this user the right to write it, or choose another `data_dir`";
/// What is appended to the name of a file until it is complete.
const UNFINISHED: &str = ".new";

/// Opens the files of a store by name. Production has a directory; tests have storage that fails.
pub trait Files: Debug + Send + Sync {
    /// Opens a file, and creates it if it is not there. With `syncs` false, a sync only promises that the file survives
    /// this process.
    ///
    /// # Errors
    /// When the file cannot be used.
    fn open(&self, name: &str, syncs: bool) -> io::Result<Box<dyn StorageBackend>>;

    /// Returns whether a file is there.
    ///
    /// # Errors
    /// When the storage does not say.
    fn exists(&self, name: &str) -> io::Result<bool>;

    /// Gives a file another name. It has either name after a power loss during this call, and the new one afterwards.
    ///
    /// # Errors
    /// When the storage cannot be written.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Returns the number of bytes that the storage has left.
    ///
    /// # Errors
    /// When the storage does not say.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Returns where a file is, for messages.
    fn path(&self, name: &str) -> PathBuf;

    /// Returns the length of a file.
    ///
    /// # Errors
    /// When the storage does not say.
    fn file_bytes(&self, name: &str) -> io::Result<u64> {
        Ok(std::fs::metadata(self.path(name))?.len())
    }
}

/// A locked directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
}

impl Directory {
    /// Creates the directory if it is not there, and locks it.
    ///
    /// # Errors
    /// When the directory cannot be created or written, or another process has the lock.
    pub fn lock(path: &Path) -> Result<Self, FileError> {
        create_synced(path).map_err(|error| {
            FileError::new(path, format_args!("cannot be made: {error} (`data_dir` chooses the directory)"))
        })?;
        let lock = path.join(LOCK);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&lock);
        let file = file
            .map_err(|error| FileError::new(&lock, format_args!("cannot be written: {error}; {REMEDY}")))?;
        Self::try_lock(path, file)
    }

    /// Locks the directory of a store for a reader. It may be read-only if a service has run there before.
    ///
    /// # Errors
    /// When there is no store, or another process has the lock.
    pub fn lock_to_read(path: &Path) -> Result<Self, FileError> {
        if !path.join(super::store::FILE).is_file() && !path.join(super::log::FILE).is_file() {
            let message = "has no store: name the data directory of a service (`--data-dir`)";
            return Err(FileError::new(path, message));
        }
        let lock = path.join(LOCK);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&lock);
        let file = file.or_else(|_| File::open(&lock));
        Self::try_lock(path, file.map_err(|error| FileError::new(&lock, error))?)
    }

    fn try_lock(path: &Path, file: File) -> Result<Self, FileError> {
        match file.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: file }),
            Err(TryLockError::WouldBlock) => Err(FileError::new(path, IN_USE)),
            Err(TryLockError::Error(error)) => {
                Err(FileError::new(&path.join(LOCK), format_args!("cannot be locked: {error}")))
            }
        }
    }
}

/// Creates a directory and those above it. The name of each is in the one above it, which has a sync of its own.
fn create_synced(path: &Path) -> io::Result<()> {
    let above: Vec<&Path> = path.ancestors().skip(1).collect();
    let is_new = |directory: &Path| !directory.as_os_str().is_empty() && !directory.exists();
    let mut changed: Vec<PathBuf> = Vec::new();
    for (directory, parent) in path.ancestors().zip(above) {
        if is_new(directory) {
            changed.push(if parent.as_os_str().is_empty() { ".".into() } else { parent.to_owned() });
        }
    }
    std::fs::create_dir_all(path)?;
    changed.iter().try_for_each(|directory| File::open(directory)?.sync_all())
}

impl Files for Directory {
    fn open(&self, name: &str, syncs: bool) -> io::Result<Box<dyn StorageBackend>> {
        let path = self.path(name);
        let is_new = !path.exists();
        // It has the tokens of sessions.
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        let file = options.open(&path)?;
        if is_new {
            // The name of a new file is in its directory, which has a sync of its own.
            File::open(&self.path)?.sync_all()?;
        }
        Ok(Box::new(PlainFile { file, syncs }))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.path(name).try_exists()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))?;
        File::open(&self.path)?.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let space = rustix::fs::statvfs(&self.path)?;
        Ok(space.f_bavail * space.f_frsize)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

#[derive(Debug)]
struct PlainFile {
    file: File,
    syncs: bool,
}

impl StorageBackend for PlainFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        if !self.syncs {
            return Ok(());
        }
        // After a failed sync it is unknown what is on disk, whatever its reason.
        self.file.sync_data().map_err(|error| io::Error::other(format!("a sync failed: {error}")))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }
}

/// A backend of any kind.
#[derive(Debug)]
struct Any(Box<dyn StorageBackend>);

impl StorageBackend for Any {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        if is_planted(PlantedBug::SyncSkipped) {
            return Ok(());
        }
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

/// An open database.
pub(super) struct Opened {
    pub(super) database: Handle,
    /// Its last commit was not whole, as after a crash during a write. The one before it is the last one now.
    pub(super) is_cut: bool,
}

/// An error of opening a database.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    /// The file cannot be used, or has something else in it.
    #[error(transparent)]
    File(#[from] FileError),
    /// A page of the database is damaged.
    #[error("{}: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What the database says.
        why: String,
    },
}

impl From<OpenError> for FileError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::File(error) => error,
            OpenError::Damaged { path, why } => {
                let remedy =
                    "restore both files of the store from a copy, or import an export into another directory";
                Self::new(&path, format_args!("is damaged: {why}; {remedy}"))
            }
        }
    }
}

/// Opens a database in a file, and creates it if the file is not there.
///
/// # Errors
/// When the file cannot be used, or is damaged.
pub(super) fn open_database(
    files: &dyn Files,
    name: &str,
    syncs: bool,
    cache_bytes: usize,
) -> Result<Opened, OpenError> {
    let path = files.path(name);
    let open = |name: &str| {
        files.open(name, syncs).map_err(|error| {
            FileError::new(&files.path(name), format_args!("cannot be opened: {error}; {REMEDY}"))
        })
    };
    let failed = |error: io::Error| FileError::new(&path, error);
    if !files.exists(name).map_err(failed)? {
        // A database that a power loss left half created cannot be opened. So it has another name until it is complete.
        let unfinished = format!("{name}{UNFINISHED}");
        let backend = open(&unfinished)?;
        backend.set_len(0).map_err(failed)?;
        drop(
            Builder::new()
                .create_with_backend(Any(backend))
                .map_err(|error| open_error(&path, error.into()))?,
        );
        let synced = Any(open(&unfinished)?).sync_data();
        synced.and_then(|()| files.rename(&unfinished, name)).map_err(failed)?;
    }
    let is_cut = Arc::new(AtomicBool::new(false));
    let of_callback = Arc::clone(&is_cut);
    let mut builder = Builder::new();
    builder.set_cache_size(cache_bytes);
    builder.set_repair_callback(move |session| {
        // The repair of a database that was not closed begins at 0 with a check of the last commit. If that is whole, the
        // next report is above one half. If it is not, the repair says so below that, and takes the commit back.
        // Relaxed: the same thread reads it.
        of_callback.fetch_or((0.1..0.5).contains(&session.progress()), Ordering::Relaxed);
    });
    let backend = open(name)?;
    if backend.len().map_err(failed)? == 0 {
        // It got its name when its database was complete.
        return Err(OpenError::Damaged { path, why: "it is empty".to_owned() });
    }
    let is_head_damaged = has_damaged_head(&*backend).map_err(failed)?;
    let database = guarded(|| builder.create_with_backend(Any(backend)));
    let database = database.map_err(|error| open_error(&path, error))?;
    let is_cut = is_head_damaged || is_cut.load(Ordering::Relaxed);
    Ok(Opened { database: Handle::new(database), is_cut })
}

/// Returns whether the head of a database says otherwise than was written which commit is the last one. If that commit had
/// one phase, the database begins with the one before it and does not say so. An empty file is no database yet.
///
/// The head of redb (see its `docs/design.md`): the lowest bit of a byte says which of two slots has the last commit. Each
/// slot ends with the XXH3 (128 bits) of what comes before.
fn has_damaged_head(backend: &dyn StorageBackend) -> io::Result<bool> {
    const LAST_AT: u64 = 9;
    const SLOTS_AT: u64 = 64;
    const SLOT_BYTES: u64 = 128;
    const HASH_AT: usize = 112;
    if backend.len()? < SLOTS_AT + 2 * SLOT_BYTES {
        return Ok(false);
    }
    let mut last = [0];
    backend.read(LAST_AT, &mut last)?;
    let mut slot = [0; SLOT_BYTES as usize];
    backend.read(SLOTS_AT + u64::from(last[0] & 1) * SLOT_BYTES, &mut slot)?;
    let (content, hash) = slot.split_at(HASH_AT);
    Ok(xxh3_128(content).to_le_bytes() != *hash)
}

/// Returns the error of a file that cannot be read. What the disk did not refuse is damage.
pub(super) fn open_error(path: &Path, error: redb::Error) -> OpenError {
    match damage_of(error) {
        Ok(why) => OpenError::Damaged { path: path.to_owned(), why },
        Err(error) => FileError::new(path, error).into(),
    }
}

/// Returns what is wrong with the content of a file.
///
/// # Errors
/// With `error`, if it does not come from the content.
pub(super) fn damage_of(error: redb::Error) -> Result<String, redb::Error> {
    match error {
        redb::Error::Io(error)
            if !matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            Err(redb::Error::Io(error))
        }
        redb::Error::PreviousIo | redb::Error::DatabaseAlreadyOpen => Err(error),
        redb::Error::Corrupted(why) => Ok(why),
        error => Ok(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The system refuses to sync a device that has no storage. So the refusal shows that the call reaches the system:
    /// finds a sync that is left out.
    #[test]
    fn a_sync_reaches_the_system_if_it_is_wanted() {
        let directory = tempfile::tempdir().unwrap();
        let files = Directory::lock(directory.path()).unwrap();
        std::os::unix::fs::symlink("/dev/null", files.path("file")).unwrap();
        let refused = files.open("file", true).unwrap().sync_data().unwrap_err();
        assert!(refused.to_string().starts_with("a sync failed: "), "{refused}");
        files.open("file", false).unwrap().sync_data().unwrap();
    }

    /// Finds a first start that loses the directories that it made.
    #[test]
    fn directories_are_made_at_any_depth() {
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("a/b/c");
        drop(Directory::lock(&deep).unwrap());
        drop(Directory::lock(&deep).unwrap());
        assert!(deep.join(LOCK).exists());
    }
}
