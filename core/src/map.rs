//! Hash maps with a fixed hasher: the standard one is seeded from the operating system, which
//! would make the order of iteration differ from run to run.

use std::hash::BuildHasherDefault;

#[allow(clippy::disallowed_types, reason = "the ban names this alias as the remedy")]
mod alias {
    use super::BuildHasherDefault;
    /// A hash map for keys that we number ourselves. Do not iterate where order matters. Not for texts: who chooses
    /// them could choose texts with equal hashes, so they are kept in a `BTreeMap`.
    pub type FixedMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<rustc_hash::FxHasher>>;
}
pub use alias::FixedMap;
