//! The stable hash: XXH3 over an unambiguous byte encoding.
//!
//! Partition placement and the canonical state hash depend on it. It must never change between versions.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Returns a stable 64-bit hash of `bytes`.
#[must_use]
pub fn stable_hash(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The canonical hash of a durable state. Equal states have equal hashes on every machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateHash(pub u128);

impl std::fmt::Display for StateHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Builds a [`StateHash`] from fields. Each field has a fixed width or is preceded by its length.
pub struct StateHasher(Xxh3);

impl StateHasher {
    /// Creates a hasher for one kind of state. `domain` separates different kinds.
    #[must_use]
    pub fn new(domain: &str) -> Self {
        let mut hasher = Self(Xxh3::new());
        hasher.text(domain);
        hasher
    }

    /// Adds a number.
    pub fn number(&mut self, value: u64) {
        self.0.update(&value.to_le_bytes());
    }

    /// Adds a signed number.
    pub fn amount(&mut self, value: i64) {
        self.0.update(&value.to_le_bytes());
    }

    /// Adds a text, preceded by its length.
    pub fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    /// Adds the hash of another state.
    pub fn state(&mut self, hash: StateHash) {
        self.0.update(&hash.0.to_le_bytes());
    }

    /// Returns the hash of everything added so far.
    #[must_use]
    pub fn finish(&self) -> StateHash {
        StateHash(self.0.digest128())
    }
}
