//! Messages about placements and releases.

use wharf_core::limits::{
    CANDIDATES_MAX, CUSTOM_RESOURCES_MAX, FALLBACK_SELECTORS_MAX, GPU_INSTANCES_MAX,
    PLACEMENTS_PER_MESSAGE_MAX, PREFERRED_NODES_MAX, PREFERRED_SELECTORS_MAX, SELECTOR_TERMS_MAX,
};

use super::bounded::NAME;
use super::{DemandBody, FallbackSelector, Fault, NamedUnits, PreferredSelector, ReasonCode, WireAllocation};

/// The server's configured policy.
pub const POLICY_DEFAULT: u8 = 0;
/// The policy [`LeastFit`](wharf_core::request::Policy::LeastFit).
pub const POLICY_LEAST_FIT: u8 = 1;
/// The policy [`BestFit`](wharf_core::request::Policy::BestFit).
pub const POLICY_BEST_FIT: u8 = 2;
/// The policy [`FirstFit`](wharf_core::request::Policy::FirstFit).
pub const POLICY_FIRST_FIT: u8 = 3;
/// The policy [`NextFit`](wharf_core::request::Policy::NextFit).
pub const POLICY_NEXT_FIT: u8 = 4;
/// The policy [`Random`](wharf_core::request::Policy::Random).
pub const POLICY_RANDOM: u8 = 5;
/// The policy [`Fgd`](wharf_core::request::Policy::Fgd).
pub const POLICY_FGD: u8 = 6;
/// The policy [`Hybrid`](wharf_core::request::Policy::Hybrid).
pub const POLICY_HYBRID: u8 = 7;
/// The policy [`Spread`](wharf_core::request::Policy::Spread).
pub const POLICY_SPREAD: u8 = 8;
/// The policy [`LeastStranded`](wharf_core::request::Policy::LeastStranded).
pub const POLICY_LEAST_STRANDED: u8 = 16;

/// The label has one of the values.
pub const OPERATOR_IN: u8 = 1;
/// The label is absent or has none of the values.
pub const OPERATOR_NOT_IN: u8 = 2;
/// The label exists.
pub const OPERATOR_EXISTS: u8 = 3;
/// The label is absent.
pub const OPERATOR_NOT_EXISTS: u8 = 4;
/// The label is an integer above the one value, which must be a 64-bit integer too.
pub const OPERATOR_GREATER: u8 = 5;
/// The label is an integer below the one value.
pub const OPERATOR_LESS: u8 = 6;
/// The label has the one value: `OPERATOR_IN` with one value. In a toleration: the taint has the value.
pub const OPERATOR_EQUAL: u8 = 7;
/// The label is absent or has another value: `OPERATOR_NOT_IN` with one value.
pub const OPERATOR_NOT_EQUAL: u8 = 8;

/// Answer at once. `no_fit_now` and `infeasible` are final.
pub const MODE_NOW: u8 = 0;
/// Wait for capacity until the deadline, then refuse with the usual refusal. Not allowed in batches.
pub const MODE_WAIT_UNTIL: u8 = 1;

/// A refusal counts a bounded number of nodes.
pub const EXPLAIN_BOUNDED: u8 = 0;
/// A refusal counts all nodes.
pub const EXPLAIN_FULL: u8 = 1;

/// The attribute order that begins with the request's dominant resource: the one of which the request takes
/// the largest share of the shard's total.
pub const ORDER_DOMINANT: u8 = 255;

bodies! {
    /// One condition on a label.
    pub struct SelectorTerm {
        /// The label's key.
        pub key: String [NAME],
        /// `OPERATOR_*`.
        pub operator: u8,
        /// The values to compare with.
        pub values: Vec<super::Name> [SELECTOR_TERMS_MAX],
    }

    /// A condition that should hold.
    pub struct PreferredTerm {
        /// The weight, from 1 to 100. Nodes with the greatest sum of weights come first.
        pub weight: i32,
        /// The condition.
        pub term: SelectorTerm,
    }

    /// A taint that the request tolerates.
    pub struct Toleration {
        /// The taint's key. An empty key with `OPERATOR_EXISTS` tolerates every taint.
        pub key: String [NAME],
        /// `OPERATOR_EXISTS` or `OPERATOR_EQUAL`.
        pub operator: u8,
        /// The taint's value.
        pub value: String [NAME],
        /// `EFFECT_*`.
        pub effect: u8,
    }

    /// A placement request. Fields marked *not served yet* are refused with `not_supported_yet` unless they
    /// have their default.
    pub struct PlaceRequest {
        /// The amounts to take.
        pub demand: DemandBody,
        /// `POLICY_*`.
        pub policy: u8,
        /// The attribute order by which LeastFit and BestFit compare nodes. 0 is the server's first order,
        /// and 1 and up select from its setting `attribute_orders`. [`ORDER_DOMINANT`] begins with the
        /// request's dominant resource. Other policies ignore it.
        pub attribute_order: u8,
        /// The queue that is charged for the placement. If it waits, it waits there. Empty: the one to which its tenant is
        /// bound, else the default queue of the service, if it has one. If some requests of a batch name queues, and others go
        /// to none, the others are refused.
        pub queue: String [NAME],
        /// Requests of higher priority go first, among waiting requests and within a batch. Must be 0 for a
        /// single request that does not wait.
        pub priority: i32,
        /// Conditions that must hold.
        pub selectors: Vec<SelectorTerm> [SELECTOR_TERMS_MAX],
        /// Conditions that should hold, one term each. Together with `preferred_selectors`, at most 8.
        pub preferred: Vec<PreferredTerm> [SELECTOR_TERMS_MAX],
        /// If not empty, only these node ids are candidates.
        pub candidates: Vec<u64> [CANDIDATES_MAX],
        /// The taints that the request tolerates.
        pub tolerations: Vec<Toleration> [SELECTOR_TERMS_MAX],
        /// `MODE_*`.
        pub mode: u8,
        /// The end of the wait, in ns of service time. 0 means no end. Must be 0 for a request that does not
        /// wait.
        pub deadline: u64,
        /// The time to live of the allocation without renewal, in ns, at most 365 days. 0 means no end. It is
        /// counted in service time from the grant. Bundles of groups have none.
        pub lease: u64,
        /// The group of the request (not served yet).
        pub group: Option<u64>,
        /// The version of the view that the request was planned on. 0 means none (other values are not served
        /// yet).
        pub expected_version: u64,
        /// The number of equal placements: 1 (other values are not served yet).
        pub count: u32 = 1,
        /// `EXPLAIN_*`.
        pub explain: u8,
        /// Selectors that replace `selectors`, tried in order while no node fits.
        pub fallbacks: Vec<FallbackSelector> [FALLBACK_SELECTORS_MAX],
        /// Selectors that should hold. Together with `preferred`, at most 8.
        pub preferred_selectors: Vec<PreferredSelector> [PREFERRED_SELECTORS_MAX],
        /// Node ids that are tried in this order before the policy decides.
        pub preferred_nodes: Vec<u64> [PREFERRED_NODES_MAX],
        /// The only node to place on, by id. 0 for any.
        pub node: u64,
        /// `AVOID_GPU_*`.
        pub avoid_gpu: u8,
        /// The owner whose reservations may be used. 0 for none.
        pub owner: u64,
        /// True if the lease belongs to the session that asks, so that one renewal is for all leases of the
        /// session.
        pub session_lease: bool,
    }

    /// A granted placement.
    pub struct PlacedBody {
        /// The node's id.
        pub node: u64,
        /// The node's name.
        pub node_name: String [NAME],
        /// The allocation, for a later release.
        pub allocation: WireAllocation,
        /// GPU instances, ascending.
        pub gpus: Vec<u8> [GPU_INSTANCES_MAX],
        /// The part of each GPU instance, in 1/10,000.
        pub gpu_part: u16,
        /// The units of unit-instance resources.
        pub units: Vec<NamedUnits> [CUSTOM_RESOURCES_MAX],
    }

    /// The number of nodes that failed one check.
    pub struct FailedCheck {
        /// `not_a_candidate`, `node_affinity`, `selector_mismatch`, `untolerated_taint`, `not_ready`,
        /// `reserved_for_other`, `too_many_allocations`, `insufficient` or `fragmented`.
        pub reason: ReasonCode,
        /// The resource that is short (`cpu`, `memory`, `gpu`, `gpu_part` or a custom name), the name of the
        /// node that the request is for (`node_affinity`), or empty.
        pub resource: String [NAME],
        /// The number of nodes that failed the check.
        pub nodes: u64,
        /// The smallest amount that any of these nodes lacked, in 1/10,000.
        pub least_short: i64,
    }

    /// Why no node could hold a request.
    pub struct RefusalBody {
        /// The number of registered nodes.
        pub nodes: u64,
        /// The number of nodes that each count covers, at least.
        pub examined: u64,
        /// The failed checks. A node that lacks several resources counts under each.
        pub checks: Vec<FailedCheck> [64],
    }

    /// The outcome of one placement.
    ///
    /// - `done`: a placement.
    /// - `no_fit_now`, `infeasible`, `cancelled`: a refusal.
    /// - `over_cap`: a fault that tells which cap of which queue forbids it.
    /// - Anything else: a fault.
    ///
    /// An `infeasible` reply also has a fault if the request names a resource that no node has ever had.
    /// A refusal also has a fault if some named candidates are not registered.
    pub struct PlaceReply {
        /// The reason, which selects one of the fields below.
        pub reason: ReasonCode,
        /// The granted placement.
        pub placed: Option<PlacedBody>,
        /// Why no node could hold the request.
        pub refusal: Option<RefusalBody>,
        /// The fault in the request, if any.
        pub fault: Option<Fault>,
        /// For a placement: the selector that holds. 0 is the request's own, 1 the first fallback, and so on.
        pub alternative: u8,
    }

    /// Several placements in one message.
    pub struct PlaceBatch {
        /// The requests, each decided on its own. Higher priorities come first; equal ones keep this order.
        pub requests: Vec<PlaceRequest> [PLACEMENTS_PER_MESSAGE_MAX],
    }

    /// The outcomes of a batch, in order.
    pub struct PlaceBatchReply {
        /// One outcome per request.
        pub replies: Vec<PlaceReply> [PLACEMENTS_PER_MESSAGE_MAX],
    }

    /// Ends an allocation.
    #[derive(Copy)]
    pub struct ReleaseRequest {
        /// The allocation.
        pub allocation: WireAllocation,
    }

    /// Confirms that the allocation ended, or carries the fault why not.
    pub struct ReleaseReply {
        /// `done` or the fault's reason.
        pub reason: ReasonCode,
        /// The fault, if any.
        pub fault: Option<Fault>,
        /// For a bundle of a group: the number of allocations inside that ended with it.
        pub inside_ended: Option<u32>,
    }

    /// Cancels the wait of a request of this session. The request's own reply tells its outcome.
    #[derive(Copy)]
    pub struct CancelRequest {
        /// The sequence of the waiting request.
        pub sequence: u64,
    }

    /// The result of a cancellation. It follows the reply of the request whose wait it ended.
    #[derive(Copy)]
    pub struct CancelReply {
        /// True if the request was still waiting. It is then refused as `cancelled`, unless it was placed at
        /// this moment.
        pub waited: bool,
    }

    /// Several releases in one message.
    pub struct ReleaseBatch {
        /// The releases, done in this order, each on its own.
        pub requests: Vec<ReleaseRequest> [PLACEMENTS_PER_MESSAGE_MAX],
    }

    /// The outcomes of a batch, in order.
    pub struct ReleaseBatchReply {
        /// One outcome per request.
        pub replies: Vec<ReleaseReply> [PLACEMENTS_PER_MESSAGE_MAX],
    }
}
