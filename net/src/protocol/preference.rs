//! What a placement prefers, and the numbers of taint effects.

use serde::{Deserialize, Serialize};
use wharf_core::limits::SELECTOR_TERMS_MAX;

use super::SelectorTerm;
use super::bounded::{self, field};

/// No new work that does not tolerate the taint.
pub const EFFECT_NO_SCHEDULE: u8 = 1;
/// New work that does not tolerate the taint only where no other node fits.
pub const EFFECT_PREFER_NO_SCHEDULE: u8 = 2;
/// As [`EFFECT_NO_SCHEDULE`] for new work; what runs stays.
pub const EFFECT_NO_EXECUTE: u8 = 3;
/// Of a toleration: every effect.
pub const EFFECT_ANY: u8 = 0;

/// Nodes without GPUs first, or not, as the server is configured.
pub const AVOID_GPU_DEFAULT: u8 = 0;
/// Nodes without GPUs first, for work that asks for none.
pub const AVOID_GPU_YES: u8 = 1;
/// All nodes alike.
pub const AVOID_GPU_NO: u8 = 2;

/// A selector that stands in for the request's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FallbackSelector {
    /// Conditions that must all hold; none: every node.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Fallbacks, SELECTOR_TERMS_MAX>")]
    pub terms: Vec<SelectorTerm>,
}

/// A selector that should hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreferredSelector {
    /// What it counts: 1 to 100.
    pub weight: i32,
    /// Conditions that must all hold for it to count.
    #[serde(deserialize_with = "bounded::list::<_, _, field::PreferredSelectors, SELECTOR_TERMS_MAX>")]
    pub terms: Vec<SelectorTerm>,
}
