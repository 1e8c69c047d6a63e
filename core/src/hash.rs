//! The stable hash: XXH3 over an unambiguous byte form. Partition placement and the canonical
//! state hash rest on it, so it must never change with a version of anything.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// A stable 64-bit hash of `bytes`.
#[must_use]
pub fn stable_hash(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The canonical hash of some durable state; equal for equal states on every machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateHash(pub u128);

impl std::fmt::Display for StateHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Builds a [`StateHash`] out of fields, each written with a fixed width or its length first.
pub struct StateHasher(Xxh3);

impl StateHasher {
    /// A hasher for one kind of state; `domain` keeps different kinds apart.
    #[must_use]
    pub fn new(domain: &str) -> Self {
        let mut hasher = Self(Xxh3::new());
        hasher.text(domain);
        hasher
    }

    /// One number.
    pub fn number(&mut self, value: u64) {
        self.0.update(&value.to_le_bytes());
    }

    /// One signed number.
    pub fn amount(&mut self, value: i64) {
        self.0.update(&value.to_le_bytes());
    }

    /// One text, its length first.
    pub fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    /// Another state's hash.
    pub fn state(&mut self, hash: StateHash) {
        self.0.update(&hash.0.to_le_bytes());
    }

    /// The hash of all that was written.
    #[must_use]
    pub fn finish(&self) -> StateHash {
        StateHash(self.0.digest128())
    }
}
