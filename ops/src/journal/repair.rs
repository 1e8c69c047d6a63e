//! `wharf journal repair`: drops the end of a journal, and keeps a copy of what was there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::check::Tail;
use super::files::Directory;
use super::log;
use super::row::catalog_of;
use super::store::Store;
use super::walk::{Damage, Walk};
use crate::file_error::FileError;

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
/// When a service runs there, a file cannot be used, the checkpoint is damaged, or `last` is outside of the journal.
pub fn repair(data_dir: &Path, last: u64) -> Result<Repaired, FileError> {
    let files = Arc::new(Directory::lock_to_read(data_dir)?);
    let (mut store, checkpoint) = Store::look(files)?;
    let path = data_dir.join(log::FILE);
    let from = checkpoint.from.ok_or_else(|| {
        FileError::new(&path, "holds nothing to drop: the last run had no journal (`durability = memory`)")
    })?;
    let end = store.log().last();
    if last + 1 < from || last > end {
        let covered = from - 1;
        let message = format!(
            "append {last} cannot be the last one: the checkpoint covers the appends up to {covered}, and the journal ends at {end}"
        );
        return Err(FileError::new(&path, message));
    }
    if last == end {
        return Ok(Repaired { last, dropped: None, damage: Vec::new(), copy: None });
    }
    let mut dropped = Tail { appends: (last + 1, end), ..Tail::default() };
    let walk = Walk::new(from, store.heads().clone(), catalog_of(&checkpoint.state.registrar));
    let mut damage = walk.run(store.log(), |_, step| {
        if step.header.number > last {
            dropped.add(&step);
        }
    })?;
    damage.retain(|damage| damage.append > last);
    let copy = data_dir.join(format!("journal-to-{end}.redb"));
    copy_file(&path, &copy)?;
    store.drop_after(last)?;
    Ok(Repaired { last, dropped: Some(dropped), damage, copy: Some(copy) })
}

/// Copies a file to a new one, and syncs it.
fn copy_file(from: &Path, to: &Path) -> Result<(), FileError> {
    let copy = || -> std::io::Result<()> {
        let mut source = std::fs::File::open(from)?;
        let mut target = std::fs::File::create_new(to)?;
        std::io::copy(&mut source, &mut target)?;
        target.sync_all()
    };
    copy().map_err(|error| FileError::new(to, format_args!("the journal cannot be copied here: {error}")))
}
