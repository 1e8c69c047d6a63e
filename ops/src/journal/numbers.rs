//! The numbers of a store by name, with a hash over all of them and the identity.
//!
//! The database checks all of its pages only at some starts after a crash. A number that is not as it was written could
//! let a start begin with empty books, or give ids a second time. So each change of a number seals all of them, and each
//! start looks whether they [are sealed](are_sealed).

use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};
use wharf_core::hash::StateHasher;

/// Numbers by name.
pub(super) const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
/// The identity of the store.
pub(super) const IDENTITY: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("identity");
/// The hash of both.
const SEAL: TableDefinition<'_, (), u128> = TableDefinition::new("seal");

fn hash(
    numbers: &impl ReadableTable<&'static str, u64>,
    identity: &impl ReadableTable<&'static str, &'static [u8]>,
) -> Result<u128, redb::Error> {
    let mut hasher = StateHasher::new("numbers");
    for row in numbers.iter()? {
        let (name, number) = row?;
        hasher.text(name.value());
        hasher.number(number.value());
    }
    hasher.number(numbers.len()?);
    for row in identity.iter()? {
        let (name, bytes) = row?;
        hasher.text(name.value());
        bytes.value().iter().for_each(|&byte| hasher.number(u64::from(byte)));
    }
    Ok(hasher.finish().0)
}

/// Sets numbers.
pub(super) fn set<'a>(
    transaction: &WriteTransaction,
    numbers: impl IntoIterator<Item = (&'a str, u64)>,
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(NUMBERS)?;
    for (name, number) in numbers {
        table.insert(name, number)?;
    }
    drop(table);
    seal(transaction)
}

/// Sets the identity.
pub(super) fn set_identity(transaction: &WriteTransaction, identity: &[u8; 16]) -> Result<(), redb::Error> {
    transaction.open_table(IDENTITY)?.insert("store", identity.as_slice())?;
    seal(transaction)
}

/// Seals the numbers and the identity as this transaction has them.
pub(super) fn seal(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    let hash = hash(&transaction.open_table(NUMBERS)?, &transaction.open_table(IDENTITY)?)?;
    transaction.open_table(SEAL)?.insert((), hash)?;
    Ok(())
}

/// Returns whether the numbers are those that were sealed.
pub(super) fn are_sealed(transaction: &ReadTransaction) -> Result<bool, redb::Error> {
    let hash = hash(&transaction.open_table(NUMBERS)?, &transaction.open_table(IDENTITY)?)?;
    let sealed = transaction.open_table(SEAL)?.get(())?.map(|sealed| sealed.value());
    Ok(sealed == Some(hash))
}

/// Creates a random identity, so that no two stores share one.
pub(super) fn new_identity() -> [u8; 16] {
    let mut id = [0; 16];
    random(&mut id);
    id
}

/// Fills `bytes` with randomness.
pub fn random(bytes: &mut [u8]) {
    let provider = rustls::crypto::ring::default_provider();
    provider.secure_random.fill(bytes).expect("the operating system gives randomness");
}
