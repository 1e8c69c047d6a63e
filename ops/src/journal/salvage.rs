//! What is whole in the file of a journal whose database cannot be opened.
//!
//! After a crash, the database checks all of its pages first, and refuses a file in which an old one is damaged. It does
//! not say which values that concerns. A value says where it ends, and its hash says that it is whole. So a scan of the file
//! finds all values that are whole, wherever they are. It may find an old copy of one, which is the same, and values that
//! were dropped, which are before the checkpoint or of an earlier epoch.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_core::journal::Append;

use super::files::Files;
use super::log::{FILE, Log};
use super::overlay::Overlay;
use super::value::find;
use crate::file_error::FileError;

/// Values by the numbers of their appends.
pub(super) struct Salvaged {
    /// The first append that the checkpoint does not cover.
    from: u64,
    /// The epoch and the value.
    values: BTreeMap<u64, (u64, Vec<u8>)>,
}

impl Salvaged {
    /// Finds the whole values from append `from` on in the file of a journal.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn scan(files: &dyn Files, from: u64) -> Result<Self, FileError> {
        let read = || -> std::io::Result<Vec<u8>> {
            let file = files.open(FILE, false)?;
            let mut bytes = vec![0; usize::try_from(file.len()?).expect("64 bits")];
            file.read(0, &mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|error| FileError::new(&files.path(FILE), error))?;
        let mut values = BTreeMap::<u64, (u64, Vec<u8>)>::new();
        let mut at = 0;
        while at < bytes.len() {
            let Some((header, length)) = find(&bytes[at..]).filter(|(header, _)| header.number >= from)
            else {
                at += 1;
                continue;
            };
            let known = values.get(&header.number).map_or(0, |&(epoch, _)| epoch);
            if header.epoch > known {
                values.insert(header.number, (header.epoch, bytes[at..at + length].to_vec()));
            }
            at += length;
        }
        Ok(Self { from, values })
    }

    /// Returns the last append of those that are whole without a gap, with epochs that do not go back.
    pub(super) fn last_whole(&self) -> u64 {
        let mut epoch = 0;
        let mut last = self.from - 1;
        while let Some(&(next, _)) = self.values.get(&(last + 1)).filter(|&&(next, _)| next >= epoch) {
            epoch = next;
            last += 1;
        }
        last
    }

    /// Returns whether a value of an append after `last` was found.
    pub(super) fn has_after(&self, last: u64) -> bool {
        self.values.range(last + 1..).next().is_some()
    }

    /// Writes the values up to `last` into a log that is empty.
    ///
    /// # Errors
    /// When the log cannot be written.
    pub(super) fn load(&self, last: u64, log: &mut Log) -> Result<(), FileError> {
        let anchor = (0, Vec::new());
        let before = self.from - 1;
        // Without a value after the checkpoint, it only says where the log ends.
        let needs_anchor = before > 0 && self.values.range(..=last).next().is_none();
        let anchor = needs_anchor.then_some((&before, &anchor));
        for (&number, (epoch, value)) in anchor.into_iter().chain(self.values.range(..=last)) {
            let append = Append { epoch: *epoch, number, streams: &[], value };
            log.load(&append).map_err(|error| FileError::new(&log.path(), error))?;
        }
        Ok(())
    }

    /// Returns a log in memory with all values.
    ///
    /// # Errors
    /// Never, but for a fault of the database.
    pub(super) fn log(&self) -> Result<Log, FileError> {
        let mut log = Log::open(Arc::new(Overlay::empty()), false)?;
        self.load(u64::MAX, &mut log)?;
        Ok(log)
    }
}
