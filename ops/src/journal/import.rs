//! An import: a new store with the books of a portable file.
//!
//! The file is read into databases in memory, and opened as a start opens a store. So everything is verified before
//! anything is on disk. The new store is a clean one: its checkpoint has all books, and its journal is empty.
//!
//! The new store has an identity of its own, and it issues no id that the exported one may have issued, or will issue
//! should it go on: it skips [`INCARNATIONS_SKIPPED`] incarnations, and node ids up to a range of the new incarnation.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use wharf_core::ids::Incarnation;
use wharf_core::journal::Append;

use super::check::{Counts, broken};
use super::checkpoint::Loader;
use super::files::{Directory, Files, Opened, open_database};
use super::log::{self, Log};
use super::overlay::Overlay;
use super::portable::{Decoder, End, Head, Tag};
use super::store::{self, Durability, Recovery, Store};
use super::value::Value;
use crate::file_error::FileError;

/// An import continues after the next multiple of this many incarnations. A store has one per start.
const INCARNATIONS_SKIPPED: u32 = 1 << 16;

/// No import leads to a later incarnation, so that node ids have a range for each.
const INCARNATION_MAX: u32 = 1 << 24;

/// The part of the data directory in which a new store is written, until it is whole.
const UNFINISHED: &str = "import";

/// A portable file that was read.
#[derive(Clone, Debug)]
pub struct Portable {
    /// The identity of the store that was exported.
    pub store: [u8; 16],
    /// The last start of that store.
    pub incarnation: Incarnation,
    /// What the file holds.
    pub end: End,
    /// Its books.
    pub books: Counts,
    /// What recovery found.
    pub recovery: Recovery,
}

/// A store that was made from a portable file.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The file.
    pub file: Portable,
    /// The identity of the new store.
    pub store: [u8; 16],
    /// The last incarnation that it skips. Its first start has the next one.
    pub incarnation: Incarnation,
    /// Its books. The hash covers the ids that are skipped, so it differs from that of the file.
    pub books: Counts,
}

/// Verifies a portable file, as an import does.
///
/// # Errors
/// When it cannot be read, or its books are not sound.
pub fn verify(file: &Path) -> Result<Portable, FileError> {
    read(file, &mut Decoder::open(file)?).map(|(portable, _)| portable)
}

/// Verifies the content of a portable file. `file` is its name in error messages.
///
/// # Errors
/// As [`verify`].
pub fn verify_content(file: &Path, content: impl Read) -> Result<Portable, FileError> {
    read(file, &mut Decoder::begin(file, content)?).map(|(portable, _)| portable)
}

/// Makes a store in `data_dir` with the books of a portable file.
///
/// # Errors
/// When the file or the directory cannot be used, or the directory has a store already.
pub fn import(file: &Path, data_dir: &Path) -> Result<Imported, FileError> {
    let check_empty = || match [store::FILE, log::FILE].into_iter().find(|name| data_dir.join(name).exists())
    {
        Some(name) => {
            let message =
                "is there: import into a directory without a store, or move both files of the store away";
            Err(FileError::new(&data_dir.join(name), message))
        }
        None => Ok(()),
    };
    check_empty()?;
    // A file that cannot be read leaves no directory behind.
    let (portable, mut state) = read(file, &mut Decoder::open(file)?)?;
    let _directory = Directory::lock(data_dir)?;
    check_empty()?;
    state.skip_ids(skipped(state.incarnation).map_err(|error| FileError::new(file, error))?);
    // They belong to clients of the exported store, which may go on.
    state.sessions.clear();
    let partitions = u16::try_from(state.partitions.len()).expect("PARTITIONS_MAX fits u16");
    let unfinished = data_dir.join(UNFINISHED);
    remove(&unfinished)?;
    let files = Arc::new(Directory::lock(&unfinished)?);
    let (store, _) = Store::open_files(files, partitions, Durability::Sync)?;
    store.checkpoint(&state, None)?;
    let imported = Imported {
        file: portable,
        store: store.id(),
        incarnation: state.incarnation,
        books: Counts::of(&state),
    };
    drop(store);
    let moved = || -> std::io::Result<()> {
        std::fs::rename(unfinished.join(store::FILE), data_dir.join(store::FILE))?;
        File::open(data_dir)?.sync_all()
    };
    moved().map_err(|error| FileError::new(data_dir, error))?;
    remove(&unfinished)?;
    Ok(imported)
}

/// No range of ids is left for an import.
#[derive(Debug, thiserror::Error)]
#[error("no range of ids is left: this store was imported too often")]
struct NoIdsLeft;

/// Returns the last incarnation to skip if any after `last` may issue ids. A store reaches it by starts only, also after a
/// repair, so it never meets an import.
fn skipped(last: Incarnation) -> Result<Incarnation, NoIdsLeft> {
    let issued = (last.0 / INCARNATIONS_SKIPPED).saturating_add(1).saturating_mul(INCARNATIONS_SKIPPED);
    if issued < INCARNATION_MAX { Ok(Incarnation(issued)) } else { Err(NoIdsLeft) }
}

/// Removes what an import has left.
pub(super) fn remove(unfinished: &Path) -> Result<(), FileError> {
    match std::fs::remove_dir_all(unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(FileError::new(unfinished, error)),
        _ => Ok(()),
    }
}

/// Reads and verifies a portable file. Returns its books.
fn read<R: Read>(
    file: &Path,
    decoder: &mut Decoder<R>,
) -> Result<(Portable, wharf_core::state::StoreState), FileError> {
    let files: Arc<dyn Files> = Arc::new(Overlay::empty());
    let of_file = |error: FileError| FileError::new(file, error);
    let (head, end) = load(decoder, &files)?;
    let (mut store, checkpoint) = Store::look(files, &mut None).map_err(of_file)?;
    let state = store.complete(checkpoint).map_err(of_file)?;
    let books = Counts::of(&state);
    if let Some(broken) = broken(state.clone()) {
        return Err(FileError::new(file, format_args!("its books break an invariant: {broken}")));
    }
    let recovery = store.recovery();
    Ok((Portable { store: head.store, incarnation: state.incarnation, end, books, recovery }, state))
}

/// Writes what a portable file holds into the databases of a store.
fn load<R: Read>(decoder: &mut Decoder<R>, files: &Arc<dyn Files>) -> Result<(Head, End), FileError> {
    let Some((Tag::Head, content)) = decoder.next()? else {
        return Err(decoder.damage("it does not begin with a head"));
    };
    let head: Head = decoder.body(&content)?;
    let Opened { database, .. } = open_database(&**files, store::FILE, false, store::CACHE_BYTES)?;
    let mut checkpoint = Loader::begin(&database, files.path(store::FILE))?;
    let mut log = Log::open(Arc::clone(files), false)?;
    let mut found = End::default();
    let end: End = loop {
        match decoder.next()? {
            Some((Tag::Rows, content)) if found.appends == 0 => {
                checkpoint.rows(found.rows, &content)?;
                found.rows += 1;
            }
            Some((Tag::Value, content)) => {
                let value =
                    Value::read(&content).map_err(|error| decoder.damage(format_args!("{error:#}")))?;
                let Some(number) = Some(value.header.number).filter(|&number| number > found.last) else {
                    return Err(decoder.damage("its appends are not in order"));
                };
                let append = Append { epoch: value.header.epoch, number, streams: &[], value: &content };
                log.load(&append).map_err(|error| decoder.damage(error))?;
                found.appends += 1;
                found.last = number;
            }
            Some((Tag::End, content)) => break decoder.body(&content)?,
            _ => return Err(decoder.damage("a record is at the wrong place")),
        }
    };
    if end != found || decoder.next()?.is_some() {
        return Err(decoder.damage(format_args!("it says that it holds {end:?}, and it holds {found:?}")));
    }
    log.set_owner(&head.store)?;
    let from = head.number("from");
    if head.number("journal") == 1 && found.appends == 0 && from > 1 {
        // Nothing followed the checkpoint. A log without values still says where it ends.
        log.drop_after(from - 1)?;
    }
    checkpoint.finish(&head.store, &head.numbers, head.hash)?;
    Ok((head, end))
}
