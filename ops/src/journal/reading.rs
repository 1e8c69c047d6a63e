//! The part of a start that applies the values after a checkpoint.

use wharf_core::recovery::Rebuild;
use wharf_core::registrar::Catalog;

use super::store::Recovery;
use super::value::Value;
use super::walk::advance;
use super::writer::Heads;

/// Reads the values after a checkpoint.
pub(super) struct Reading<'a> {
    /// The number of the next append.
    pub(super) next: u64,
    pub(super) heads: &'a mut Heads,
    pub(super) recovery: &'a mut Recovery,
    pub(super) catalog: Catalog,
}

impl Reading<'_> {
    /// Checks the next value and applies its units.
    ///
    /// # Errors
    /// When it is not as it was written, or does not continue the one before.
    pub(super) fn apply(&mut self, number: u64, bytes: &[u8], rebuild: &mut Rebuild) -> anyhow::Result<()> {
        anyhow::ensure!(number == self.next, "append {number} comes next");
        let value = Value::read(bytes)?;
        anyhow::ensure!(value.header.number == number, "it says that it is append {}", value.header.number);
        advance(self.heads, &value.header)?;
        for unit in value.units(&mut self.catalog)? {
            self.recovery.units += 1;
            rebuild.apply(unit)?;
        }
        self.recovery.appends += 1;
        self.recovery.bytes += bytes.len() as u64;
        self.next += 1;
        Ok(())
    }
}
