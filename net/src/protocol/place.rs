//! Placements and releases.

use serde::{Deserialize, Serialize};
use wharf_core::limits::{
    CANDIDATES_MAX, CUSTOM_RESOURCES_MAX, FALLBACK_SELECTORS_MAX, GPU_INSTANCES_MAX,
    PLACEMENTS_PER_MESSAGE_MAX, PREFERRED_NODES_MAX, PREFERRED_SELECTORS_MAX, SELECTOR_TERMS_MAX,
};

use super::bounded::{self, field};
use super::{
    AVOID_GPU_DEFAULT, DemandBody, FallbackSelector, Fault, NamedUnits, PreferredSelector, ReasonCode,
    WireAllocation,
};

/// The server's configured policy.
pub const POLICY_DEFAULT: u8 = 0;
/// See [`Policy::LeastFit`](wharf_core::request::Policy::LeastFit).
pub const POLICY_LEAST_FIT: u8 = 1;
/// See [`Policy::BestFit`](wharf_core::request::Policy::BestFit).
pub const POLICY_BEST_FIT: u8 = 2;
/// See [`Policy::FirstFit`](wharf_core::request::Policy::FirstFit).
pub const POLICY_FIRST_FIT: u8 = 3;
/// See [`Policy::NextFit`](wharf_core::request::Policy::NextFit).
pub const POLICY_NEXT_FIT: u8 = 4;
/// See [`Policy::Random`](wharf_core::request::Policy::Random).
pub const POLICY_RANDOM: u8 = 5;
/// See [`Policy::Fgd`](wharf_core::request::Policy::Fgd).
pub const POLICY_FGD: u8 = 6;
/// See [`Policy::Hybrid`](wharf_core::request::Policy::Hybrid).
pub const POLICY_HYBRID: u8 = 7;
/// See [`Policy::Spread`](wharf_core::request::Policy::Spread).
pub const POLICY_SPREAD: u8 = 8;
/// See [`Policy::LeastStranded`](wharf_core::request::Policy::LeastStranded).
pub const POLICY_LEAST_STRANDED: u8 = 16;

/// The label has one of the values.
pub const OPERATOR_IN: u8 = 1;
/// The label is absent or has none of the values.
pub const OPERATOR_NOT_IN: u8 = 2;
/// The label is there.
pub const OPERATOR_EXISTS: u8 = 3;
/// The label is absent.
pub const OPERATOR_NOT_EXISTS: u8 = 4;
/// The label is an integer above the one value, which is an integer too (64 bits).
pub const OPERATOR_GREATER: u8 = 5;
/// The label is an integer below the one value.
pub const OPERATOR_LESS: u8 = 6;
/// The label has the one value: `OPERATOR_IN` with one. Of a toleration: the taint has the value.
pub const OPERATOR_EQUAL: u8 = 7;
/// The label is absent or has another value: `OPERATOR_NOT_IN` with one.
pub const OPERATOR_NOT_EQUAL: u8 = 8;

/// Answer now: `no_fit_now` and `infeasible` are final.
pub const MODE_NOW: u8 = 0;
/// Wait for capacity until the deadline: refused then, with what a refusal says. Not in batches.
pub const MODE_WAIT_UNTIL: u8 = 1;

/// Counts of a refusal over a bounded number of nodes.
pub const EXPLAIN_BOUNDED: u8 = 0;
/// Counts of a refusal over all nodes.
pub const EXPLAIN_FULL: u8 = 1;

/// One condition on a label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectorTerm {
    /// The label's key.
    #[serde(deserialize_with = "bounded::name::<_, field::Key>")]
    pub key: String,
    /// `OPERATOR_*`.
    pub operator: u8,
    /// What it compares with.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Values, SELECTOR_TERMS_MAX>")]
    pub values: Vec<super::Name>,
}

/// A condition that should hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreferredTerm {
    /// What it counts: 1 to 100. Nodes with the greatest sum come first.
    pub weight: i32,
    /// The condition.
    pub term: SelectorTerm,
}

/// A taint that the request bears.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Toleration {
    /// The taint's key; empty with `OPERATOR_EXISTS` for every taint.
    #[serde(deserialize_with = "bounded::name::<_, field::Key>")]
    pub key: String,
    /// `OPERATOR_EXISTS` or `OPERATOR_EQUAL`.
    pub operator: u8,
    /// The taint's value.
    #[serde(deserialize_with = "bounded::name::<_, field::Value>")]
    pub value: String,
    /// `EFFECT_*`.
    pub effect: u8,
}

/// The attribute order that begins with the resource of which the request asks the largest share
/// of what the shard has in all.
pub const ORDER_DOMINANT: u8 = 255;

/// One placement. Fields marked *not served yet* are refused with `not_supported_yet` unless they have their
/// default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceRequest {
    /// What it takes.
    pub demand: DemandBody,
    /// `POLICY_*`.
    pub policy: u8,
    /// By which attribute order LeastFit and BestFit compare nodes: 0 the server's first, 1 and
    /// up the one of that number in its setting `attribute_orders`, [`ORDER_DOMINANT`] the one that
    /// begins with the request's dominant resource. Without effect under the other policies.
    pub attribute_order: u8,
    /// Who asks (not served yet).
    #[serde(deserialize_with = "bounded::name::<_, field::Tenant>")]
    pub tenant: String,
    /// Out of which queue (not served yet).
    #[serde(deserialize_with = "bounded::name::<_, field::Queue>")]
    pub queue: String,
    /// Of waiting requests, and of those of one batch, those of higher priority go first (a request alone
    /// has 0).
    pub priority: i32,
    /// Conditions that must hold.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Selectors, SELECTOR_TERMS_MAX>")]
    pub selectors: Vec<SelectorTerm>,
    /// Conditions that should hold, of one term each: with `preferred_selectors` at most 8.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Preferred, SELECTOR_TERMS_MAX>")]
    pub preferred: Vec<PreferredTerm>,
    /// Only these node ids, if any are named.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Candidates, CANDIDATES_MAX>")]
    pub candidates: Vec<u64>,
    /// Taints that it bears.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Tolerations, SELECTOR_TERMS_MAX>")]
    pub tolerations: Vec<Toleration>,
    /// `MODE_*`.
    pub mode: u8,
    /// Until when it waits, in ns of service time; 0 for ever (others only in a request that waits).
    pub deadline: u64,
    /// How long the allocation lives without renewal, in ns; 0 for ever (others not served yet).
    pub lease: u64,
    /// The group that it belongs to (not served yet).
    pub group: Option<u64>,
    /// The version of the view that it was planned on; 0 none (others not served yet).
    pub expected_version: u64,
    /// How many of it: 1 (others not served yet).
    pub count: u32,
    /// `EXPLAIN_*`.
    pub explain: u8,
    /// Selectors tried in order when no node fits with `selectors`, each in place of it.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Fallbacks, FALLBACK_SELECTORS_MAX>")]
    pub fallbacks: Vec<FallbackSelector>,
    /// Selectors that should hold: with `preferred` at most 8.
    #[serde(deserialize_with = "bounded::list::<_, _, field::PreferredSelectors, PREFERRED_SELECTORS_MAX>")]
    pub preferred_selectors: Vec<PreferredSelector>,
    /// Node ids, tried in this order before the policy decides.
    #[serde(deserialize_with = "bounded::list::<_, _, field::PreferredNodes, PREFERRED_NODES_MAX>")]
    pub preferred_nodes: Vec<u64>,
    /// This node or none, by id; 0 for any.
    pub node: u64,
    /// `AVOID_GPU_*`.
    pub avoid_gpu: u8,
    /// Whose reservations it may use; 0: nobody's.
    pub owner: u64,
}

impl Default for PlaceRequest {
    fn default() -> Self {
        Self {
            demand: DemandBody::default(),
            policy: POLICY_DEFAULT,
            attribute_order: 0,
            tenant: String::new(),
            queue: String::new(),
            priority: 0,
            selectors: Vec::new(),
            preferred: Vec::new(),
            candidates: Vec::new(),
            tolerations: Vec::new(),
            mode: MODE_NOW,
            deadline: 0,
            lease: 0,
            group: None,
            expected_version: 0,
            count: 1,
            explain: EXPLAIN_BOUNDED,
            fallbacks: Vec::new(),
            preferred_selectors: Vec::new(),
            preferred_nodes: Vec::new(),
            node: 0,
            avoid_gpu: AVOID_GPU_DEFAULT,
            owner: 0,
        }
    }
}

/// A granted placement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedBody {
    /// The node's id.
    pub node: u64,
    /// The node's name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node_name: String,
    /// What to release later.
    pub allocation: WireAllocation,
    /// GPU instances, ascending.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Gpus, GPU_INSTANCES_MAX>")]
    pub gpus: Vec<u8>,
    /// How much of each instance, in 1/10 000.
    pub gpu_part: u16,
    /// The units of unit-instance kinds.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Units, CUSTOM_RESOURCES_MAX>")]
    pub units: Vec<NamedUnits>,
}

/// How many nodes failed one check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedCheck {
    /// `not_a_candidate`, `node_affinity`, `selector_mismatch`, `untolerated_taint`, `not_ready`,
    /// `insufficient` or `fragmented`.
    pub reason: ReasonCode,
    /// The resource that is short (`cpu`, `memory`, `gpu`, `gpu_part` or a custom name), the
    /// node that the request is for (`node_affinity`), or empty.
    #[serde(deserialize_with = "bounded::name::<_, field::Resource>")]
    pub resource: String,
    /// Nodes that failed it.
    pub nodes: u64,
    /// What the least short of them lacked, in 1/10 000.
    pub least_short: i64,
}

/// Why no node could hold it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalBody {
    /// Registered nodes.
    pub nodes: u64,
    /// Nodes that the counts are over.
    pub examined: u64,
    /// A node that lacks several resources counts under each.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Checks, 64>")]
    pub checks: Vec<FailedCheck>,
}

/// The outcome of one placement: with `done` a placement, with `no_fit_now`, `infeasible` or
/// `cancelled` a refusal, else a fault. With `infeasible` a fault too where the request asks for a
/// resource that no node has ever had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceReply {
    /// Which of the three.
    pub reason: ReasonCode,
    /// It was placed.
    pub placed: Option<PlacedBody>,
    /// No node could hold it.
    pub refusal: Option<RefusalBody>,
    /// Something in the request is wrong.
    pub fault: Option<Fault>,
    /// Of a placement: which selector holds. 0 is the request's own, 1 the first fallback, and so on.
    pub alternative: u8,
}

/// Several placements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceBatch {
    /// Each decided on its own: those of higher priority first, and equal ones in this order.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Requests, PLACEMENTS_PER_MESSAGE_MAX>")]
    pub requests: Vec<PlaceRequest>,
}

/// Their outcomes, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceBatchReply {
    /// One per request.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Replies, PLACEMENTS_PER_MESSAGE_MAX>")]
    pub replies: Vec<PlaceReply>,
}

/// Ends an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseRequest {
    /// Which.
    pub allocation: WireAllocation,
}

/// It is ended, or a fault says why not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseReply {
    /// `done` or the fault's.
    pub reason: ReasonCode,
    /// What is wrong.
    pub fault: Option<Fault>,
    /// Of a bundle of a group: how many allocations inside ended with it.
    pub inside_ended: Option<u32>,
}

/// A placement of this session does not wait any more. Its own reply says what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRequest {
    /// The sequence of the placement.
    pub sequence: u64,
}

/// Whether it waited still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelReply {
    /// It did: it is refused as `cancelled`, unless it was placed in this moment.
    pub waited: bool,
}

/// Several releases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseBatch {
    /// Done in this order, each on its own.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Requests, PLACEMENTS_PER_MESSAGE_MAX>")]
    pub requests: Vec<ReleaseRequest>,
}

/// Their outcomes, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseBatchReply {
    /// One per request.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Replies, PLACEMENTS_PER_MESSAGE_MAX>")]
    pub replies: Vec<ReleaseReply>,
}
