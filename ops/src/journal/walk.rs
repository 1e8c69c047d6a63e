//! A walk over the values of a journal after a checkpoint: each is checked, and its units are handed out.

use anyhow::ensure;
use wharf_core::journal::{JournalStore, Stream, Unit};
use wharf_core::registrar::Catalog;

use super::log::Log;
use super::value::{Header, Value};
use super::writer::Heads;
use crate::file_error::FileError;

/// A value that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The append whose value it is.
    pub append: u64,
    /// The fault.
    pub what: String,
}

/// One value of the walk.
pub(super) struct Step<'a> {
    pub(super) header: &'a Header,
    /// The length of the value in bytes.
    pub(super) bytes: u64,
    pub(super) units: Vec<Unit>,
}

/// Checks that a value continues its streams, and moves their heads on.
///
/// # Errors
/// When a stream is at another position.
pub(super) fn advance(heads: &mut Heads, header: &Header) -> anyhow::Result<()> {
    for &(stream, before, count) in &header.streams {
        let head = heads.entry(Stream(stream)).or_default();
        ensure!(*head == before, "stream {stream} is at {head}, and it continues at {before}");
        *head += u64::from(count);
    }
    Ok(())
}

/// A walk over the values of a journal.
pub(super) struct Walk {
    next: u64,
    epoch: u64,
    heads: Heads,
    /// A value was damaged, so it is unknown where its streams go on.
    has_gap: bool,
    catalog: Catalog,
}

impl Walk {
    /// Begins after a checkpoint, which append `from` continues, and which has these heads and resource kinds.
    pub(super) fn new(from: u64, heads: Heads, catalog: Catalog) -> Self {
        Self { next: from, epoch: 0, heads, has_gap: false, catalog }
    }

    /// Walks over the rest of the journal. Damage does not end the walk: `each` gets the sound values, and the faults
    /// are returned.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub(super) fn run(
        mut self,
        log: &mut Log,
        mut each: impl FnMut(&Catalog, Step<'_>),
    ) -> Result<Vec<Damage>, FileError> {
        let mut damage = Vec::new();
        let path = log.path();
        let from = self.next;
        let mut look = |number: u64, bytes: &[u8]| {
            if number > self.next {
                let what = match number - 1 {
                    last if last == self.next => "it is missing".to_owned(),
                    last => format!("it and those up to append {last} are missing"),
                };
                damage.push(Damage { append: self.next, what });
                self.begin_gap();
            }
            self.next = number;
            if let Err(error) = self.step(bytes, &mut each) {
                damage.push(Damage { append: number, what: format!("{error:#}") });
                self.begin_gap();
            }
            self.next += 1;
            true
        };
        log.read(from, &mut look).map_err(|error| FileError::new(&path, error))?;
        Ok(damage)
    }

    fn begin_gap(&mut self) {
        self.has_gap = true;
        self.heads.clear();
    }

    fn step(&mut self, bytes: &[u8], each: &mut impl FnMut(&Catalog, Step<'_>)) -> anyhow::Result<()> {
        let value = Value::read(bytes)?;
        let header = value.header.clone();
        ensure!(header.number == self.next, "it says that it is append {}", header.number);
        ensure!(header.epoch >= self.epoch, "epoch {} comes after epoch {}", header.epoch, self.epoch);
        self.epoch = header.epoch;
        if self.has_gap {
            for &(stream, before, _) in &header.streams {
                self.heads.entry(Stream(stream)).or_insert(before);
            }
        }
        advance(&mut self.heads, &header)?;
        let units = value.units(&mut self.catalog)?;
        each(&self.catalog, Step { header: &header, bytes: bytes.len() as u64, units });
        Ok(())
    }
}
