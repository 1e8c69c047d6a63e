//! `wharf journal repair`: drops the end of a journal, and keeps a copy of what was there.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wharf_core::ids::Incarnation;

use super::check::Tail;
use super::files::Directory;
use super::import::remove;
use super::log::{self, Log};
use super::row::catalog_of;
use super::salvage::Salvaged;
use super::store::Store;
use super::walk::{Damage, Step, Walk};
use crate::file_error::FileError;

/// The part of the data directory in which a new journal is written, until it is whole.
const UNFINISHED: &str = "repair";

/// A journal whose end was dropped.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// The last append that is left.
    pub last: u64,
    /// What was dropped, as far as it could be read. `None`: nothing, because the journal ended there.
    pub dropped: Option<Tail>,
    /// Damaged values among those that were dropped.
    pub damage: Vec<Damage>,
    /// The journal as it was before.
    pub copy: Option<PathBuf>,
}

/// Drops all appends after `last` from the store of a stopped service.
///
/// # Errors
/// When a service runs there, a file cannot be used, the checkpoint is damaged, or `last` is outside of the whole part of the
/// journal.
pub fn repair(data_dir: &Path, last: u64) -> Result<Repaired, FileError> {
    let files = Arc::new(Directory::lock_to_read(data_dir)?);
    let mut salvaged = None;
    let (mut store, checkpoint) = Store::look(files, &mut salvaged)?;
    let path = data_dir.join(log::FILE);
    let from = checkpoint
        .from
        .ok_or_else(|| FileError::new(&path, "holds nothing to drop: the checkpoint has all books"))?;
    let end = store.log().last();
    let mut found =
        Found { last, dropped: Tail { appends: (last.saturating_add(1), end), ..Tail::default() }, epoch: 0 };
    let walk = Walk::new(from, store.heads().clone(), catalog_of(&checkpoint.state.registrar));
    let mut damage = walk.run(store.log(), |_, step| found.add(&step))?;
    // Without what the checkpoint shows, its pages do not fit together.
    let covered = checkpoint.shown.max(from - 1);
    check_last(&path, last, (covered, end), damage.first())?;
    if last == end && salvaged.is_none() {
        return Ok(Repaired { last, dropped: None, damage: Vec::new(), copy: None });
    }
    let copy = keep_copy(&path, data_dir, end)?;
    let found_epoch = u32::try_from(found.epoch).unwrap_or(u32::MAX);
    store.skip_issued(checkpoint.state.incarnation.max(Incarnation(found_epoch)))?;
    store.break_history()?;
    match salvaged {
        Some(salvaged) => write_again(&salvaged, last, data_dir, &store.id())?,
        None => store.log().drop_after(last)?,
    }
    damage.retain(|damage| damage.append > last);
    Ok(Repaired { last, dropped: (last < end).then_some(found.dropped), damage, copy: Some(copy) })
}

/// What the walk finds.
struct Found {
    last: u64,
    /// What comes after the last append.
    dropped: Tail,
    /// The highest epoch.
    epoch: u64,
}

impl Found {
    fn add(&mut self, step: &Step<'_>) {
        self.epoch = self.epoch.max(step.header.epoch);
        if step.header.number > self.last {
            self.dropped.add(step);
        }
    }
}

/// Fails unless `last` can be the last append of the journal in `path`, whose checkpoint shows those up to `covered`, and
/// which ends at `end`.
fn check_last(
    path: &Path,
    last: u64,
    (covered, end): (u64, u64),
    damage: Option<&Damage>,
) -> Result<(), FileError> {
    if last < covered || last > end {
        let message = format!(
            "append {last} cannot be the last one: the checkpoint covers the appends up to {covered}, and the journal ends at {end}"
        );
        return Err(FileError::new(path, message));
    }
    match damage.filter(|damage| damage.append <= last) {
        Some(Damage { append, what }) => {
            let message = format!("append {last} cannot be the last one: append {append} is damaged: {what}");
            Err(FileError::new(path, message))
        }
        None => Ok(()),
    }
}

/// Writes the values up to `last` into a new file in the place of the damaged one.
fn write_again(salvaged: &Salvaged, last: u64, data_dir: &Path, store: &[u8; 16]) -> Result<(), FileError> {
    let unfinished = data_dir.join(UNFINISHED);
    remove(&unfinished)?;
    let mut log = Log::open(Arc::new(Directory::lock(&unfinished)?), true)?;
    salvaged.load(last, &mut log)?;
    log.set_owner(store)?;
    drop(log);
    let moved = || -> std::io::Result<()> {
        std::fs::rename(unfinished.join(log::FILE), data_dir.join(log::FILE))?;
        File::open(data_dir)?.sync_all()
    };
    moved().map_err(|error| FileError::new(data_dir, error))?;
    remove(&unfinished)
}

/// Copies a journal that ends at append `end` to a new file, which survives a power loss. A copy that was not completed is
/// overwritten, and a whole one is left alone.
fn keep_copy(journal: &Path, data_dir: &Path, end: u64) -> Result<PathBuf, FileError> {
    let unfinished = data_dir.join(format!("journal-to-{end}.redb.new"));
    let mut copy = data_dir.join(format!("journal-to-{end}.redb"));
    let mut number = 2;
    while copy.exists() {
        copy = data_dir.join(format!("journal-to-{end}-{number}.redb"));
        number += 1;
    }
    let write = || -> std::io::Result<()> {
        let mut source = File::open(journal)?;
        let mut target = File::create(&unfinished)?;
        std::io::copy(&mut source, &mut target)?;
        target.sync_all()?;
        std::fs::rename(&unfinished, &copy)?;
        File::open(data_dir)?.sync_all()
    };
    match write() {
        Ok(()) => Ok(copy),
        Err(error) => {
            Err(FileError::new(&unfinished, format_args!("the journal cannot be copied here: {error}")))
        }
    }
}
