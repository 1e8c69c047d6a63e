//! An export: a store as a portable file, produced piece by piece, also while a service runs over the store.
//!
//! The checkpoint is read in one read transaction, so it stays the same. The values of the journal never change, so each
//! piece reads them in a transaction of its own. The export ends at the append that was the last one when it began: it is
//! a prefix of the journal, whatever comes in meanwhile. Values after the checkpoint must not be dropped before the export
//! has ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{ReadTransaction, ReadableTable, TableError};
use wharf_core::journal::Bounds;

use super::checkpoint::{HASH, ROWS};
use super::files::{Directory, IN_USE};
use super::guard::{each_row, guarded};
use super::log::{self, LogReader};
use super::numbers::NUMBERS;
use super::overlay::Overlay;
use super::portable::{Encoder, End, Head, Tag};
use super::store::Store;
use crate::file_error::FileError;

/// The number of bytes after which a piece ends.
const PIECE_BYTES: usize = 256 << 10;

/// Where an export is.
enum Next {
    Head(Box<Head>),
    /// The rows from this number on.
    Rows(u64),
    /// The values from this append on.
    Values(u64),
    End,
    Nothing,
}

/// An export under way.
pub struct Export {
    checkpoint: ReadTransaction,
    values: LogReader,
    /// The file of the store, for messages.
    path: PathBuf,
    encoder: Encoder,
    next: Next,
    /// The first append after the checkpoint.
    from: u64,
    /// The last append of the export.
    to: u64,
    end: End,
}

impl Export {
    /// Begins an export of a store whose values are read by `values`.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn begin(store: &Store, values: LogReader) -> Result<Self, FileError> {
        let path = store.path();
        let failed = |error: redb::Error| FileError::new(&path, error);
        let checkpoint = store.begin_read().map_err(failed)?;
        let head = guarded(|| read_head(&checkpoint, store.id())).map_err(failed)?;
        let from = head.number("from");
        let has_journal = head.number("journal") == 1;
        // After the checkpoint: what its pages show is durable by now.
        let Bounds { first, last } = values.bounds().map_err(|error| FileError::new(&path, error))?;
        let to = if has_journal && last >= from { last } else { 0 };
        if to > 0 && first > from {
            let message =
                format!("the journal begins at append {first}, and the checkpoint needs append {from}");
            return Err(FileError::new(&path, message));
        }
        let next = Next::Head(Box::new(head));
        let end = End::default();
        Ok(Self { checkpoint, values, path, encoder: Encoder::default(), next, from, to, end })
    }

    /// Appends the next piece to `out`. Returns false after the last one.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn piece(&mut self, out: &mut Vec<u8>) -> Result<bool, FileError> {
        let next = std::mem::replace(&mut self.next, Next::Nothing);
        self.next = match next {
            Next::Head(head) => {
                self.encoder = Encoder::begin(out);
                self.encoder.body(Tag::Head, &*head, out);
                Next::Rows(0)
            }
            Next::Rows(from) => self.rows(from, out).map_err(|error| FileError::new(&self.path, error))?,
            Next::Values(from) => self.read_values(from, out)?,
            Next::End => {
                self.encoder.body(Tag::End, &self.end, out);
                Next::Nothing
            }
            Next::Nothing => Next::Nothing,
        };
        Ok(!matches!(self.next, Next::Nothing))
    }

    fn rows(&mut self, from: u64, out: &mut Vec<u8>) -> Result<Next, redb::Error> {
        let rows = guarded(|| -> Result<_, redb::Error> {
            match self.checkpoint.open_table(ROWS) {
                Ok(rows) => Ok(Some(rows.range(from..)?)),
                Err(TableError::TableDoesNotExist(_)) => Ok(None),
                Err(error) => Err(error.into()),
            }
        })?;
        let Some(rows) = rows else { return Ok(self.after_rows()) };
        let Self { encoder, end, .. } = self;
        let full = out.len() + PIECE_BYTES;
        let mut next = None;
        each_row(rows, |number, content| {
            if out.len() >= full {
                next = Some(number);
                return Ok(false);
            }
            encoder.record(Tag::Rows, content, out);
            end.rows += 1;
            Ok::<_, redb::Error>(true)
        })?;
        Ok(next.map_or_else(|| self.after_rows(), Next::Rows))
    }

    fn after_rows(&self) -> Next {
        if self.to == 0 { Next::End } else { Next::Values(self.from) }
    }

    fn read_values(&mut self, from: u64, out: &mut Vec<u8>) -> Result<Next, FileError> {
        let Self { values, encoder, end, to, path, .. } = self;
        let mut next = from;
        let mut missing = None;
        let full = out.len() + PIECE_BYTES;
        let read = values.read(from, &mut |number, value| {
            if out.len() >= full || next > *to {
                return false;
            }
            if number != next {
                missing = Some(next);
                return false;
            }
            encoder.record(Tag::Value, value, out);
            end.appends += 1;
            end.last = number;
            next += 1;
            true
        });
        read.map_err(|error| FileError::new(path, error))?;
        if let Some(append) = missing {
            return Err(FileError::new(path, format_args!("append {append} of the journal is missing")));
        }
        if next > *to {
            return Ok(Next::End);
        }
        if next == from {
            return Err(FileError::new(path, format_args!("append {next} of the journal is missing")));
        }
        Ok(Next::Values(next))
    }
}

/// Exports the store of a stopped service, and gives the pieces to `out`. Returns false if a service uses the directory.
///
/// # Errors
/// When the store cannot be read, or `out` fails.
pub fn export_stopped(
    data_dir: &Path,
    out: &mut impl FnMut(&[u8]) -> Result<(), FileError>,
) -> Result<bool, FileError> {
    let directory = match Directory::lock_to_read(data_dir) {
        Err(error) if error.message == IN_USE => return Ok(false),
        other => other?,
    };
    let mut salvaged = None;
    let (mut store, _) = Store::look(Arc::new(Overlay::over(directory)), &mut salvaged)?;
    if salvaged.is_some() {
        let message = "is damaged: `wharf journal check` tells where, and `wharf journal repair` drops what is after it";
        return Err(FileError::new(&data_dir.join(log::FILE), message));
    }
    let values = store.log().reader();
    let mut export = Export::begin(&store, values)?;
    let mut piece = Vec::new();
    loop {
        let more = export.piece(&mut piece)?;
        out(&piece)?;
        piece.clear();
        if !more {
            return Ok(true);
        }
    }
}

fn read_head(transaction: &ReadTransaction, store: [u8; 16]) -> Result<Head, redb::Error> {
    let mut numbers = Vec::new();
    for row in transaction.open_table(NUMBERS)?.iter()? {
        let (name, number) = row?;
        numbers.push((name.value().to_owned(), number.value()));
    }
    let hash = match transaction.open_table(HASH) {
        Ok(table) => table.get(())?.map(|hash| hash.value()),
        Err(TableError::TableDoesNotExist(_)) => None,
        Err(error) => return Err(error.into()),
    };
    Ok(Head { store, numbers, hash })
}
