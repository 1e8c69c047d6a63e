//! Preferences of a placement, and the numbers of taint effects.

use wharf_core::limits::SELECTOR_TERMS_MAX;

use super::SelectorTerm;

/// Keeps away new work that does not tolerate the taint.
pub const EFFECT_NO_SCHEDULE: u8 = 1;
/// Accepts new work that does not tolerate the taint only if no other node fits.
pub const EFFECT_PREFER_NO_SCHEDULE: u8 = 2;
/// Same as [`EFFECT_NO_SCHEDULE`] for new work. Running work stays.
pub const EFFECT_NO_EXECUTE: u8 = 3;
/// In a toleration: matches every effect.
pub const EFFECT_ANY: u8 = 0;

/// Uses the server's setting.
pub const AVOID_GPU_DEFAULT: u8 = 0;
/// Prefers nodes without GPUs, for work that asks for none.
pub const AVOID_GPU_YES: u8 = 1;
/// Does not prefer nodes without GPUs.
pub const AVOID_GPU_NO: u8 = 2;

bodies! {
    /// A selector that replaces the request's own.
    pub struct FallbackSelector {
        /// Conditions that must all hold. An empty list matches every node.
        pub terms: Vec<SelectorTerm> [SELECTOR_TERMS_MAX],
    }

    /// A selector that should hold.
    pub struct PreferredSelector {
        /// Its weight, from 1 to 100.
        pub weight: i32,
        /// Conditions that must all hold for the weight to count.
        pub terms: Vec<SelectorTerm> [SELECTOR_TERMS_MAX],
    }
}
