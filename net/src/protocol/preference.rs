//! What a placement would rather have: body version 2 of placements, and taints' numbers.
//!
//! A body of version 2 is one of version 1 and then what is new. Version 1 stays readable, and is
//! answered in version 1.

use serde::{Deserialize, Serialize};
use wharf_core::limits::{
    FALLBACK_SELECTORS_MAX, PLACEMENTS_PER_MESSAGE_MAX, PREFERRED_NODES_MAX, PREFERRED_SELECTORS_MAX,
    SELECTOR_TERMS_MAX,
};

use super::bounded::{self, field};
use super::{PlaceReply, PlaceRequest, SelectorTerm};

/// The body version of placements that carry [`PlacePreferences`].
pub const PLACE_VERSION_PREFERENCES: u8 = 2;

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

/// What version 2 adds to a placement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacePreferences {
    /// Tried in order when no node fits with the request's own selectors, each in place of them.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Fallbacks, FALLBACK_SELECTORS_MAX>")]
    pub fallbacks: Vec<FallbackSelector>,
    /// Beside those in `preferred` of version 1, which are of one term each: together at most 8.
    #[serde(deserialize_with = "bounded::list::<_, _, field::PreferredSelectors, PREFERRED_SELECTORS_MAX>")]
    pub preferred_selectors: Vec<PreferredSelector>,
    /// Node ids that are tried in this order before the policy decides.
    #[serde(deserialize_with = "bounded::list::<_, _, field::PreferredNodes, PREFERRED_NODES_MAX>")]
    pub preferred_nodes: Vec<u64>,
    /// This node or none, by id; 0 for any.
    pub node: u64,
    /// `AVOID_GPU_*`.
    pub avoid_gpu: u8,
}

/// A placement, version 2.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceRequestV2 {
    /// As in version 1.
    pub request: PlaceRequest,
    /// What it would rather have.
    pub preferences: PlacePreferences,
}

impl From<PlaceRequest> for PlaceRequestV2 {
    fn from(request: PlaceRequest) -> Self {
        Self { request, preferences: PlacePreferences::default() }
    }
}

/// The outcome of a placement of version 2.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceReplyV2 {
    /// As in version 1.
    pub reply: PlaceReply,
    /// Which selector holds: 0 the request's own, 1 the first fallback, and so on.
    pub alternative: u8,
}

impl From<PlaceReply> for PlaceReplyV2 {
    fn from(reply: PlaceReply) -> Self {
        Self { reply, alternative: 0 }
    }
}

/// Several placements, version 2.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceBatchV2 {
    /// Each decided on its own: those of higher priority first, and equal ones in this order.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Requests, PLACEMENTS_PER_MESSAGE_MAX>")]
    pub requests: Vec<PlaceRequestV2>,
}

/// Their outcomes, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceBatchReplyV2 {
    /// One per request.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Replies, PLACEMENTS_PER_MESSAGE_MAX>")]
    pub replies: Vec<PlaceReplyV2>,
}
