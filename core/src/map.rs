//! Hash maps with a fixed hasher. The standard hasher is seeded by the operating system, so its iteration
//! order would differ from run to run.

use std::hash::BuildHasherDefault;

#[allow(clippy::disallowed_types, reason = "the ban names this alias as the remedy")]
mod alias {
    use super::BuildHasherDefault;
    /// A hash map for keys that the engine assigns. Do not iterate where order matters.
    ///
    /// Do not use it for texts. A client could choose texts with equal hashes, so texts are kept in a
    /// `BTreeMap`.
    pub type FixedMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<rustc_hash::FxHasher>>;
}
pub use alias::FixedMap;
