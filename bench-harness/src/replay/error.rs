//! Errors of a replay: from the trace, from the target, or a disagreement between them.

use wharf_core::request::Policy;

use crate::target::TargetError;
use crate::trace::TraceError;

/// The error of a failed replay.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The trace lacks data that the replay needs.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The target failed.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The number of orders in flight is out of range.
    #[error("{given} orders in flight: give 1 to {most}")]
    InFlight {
        /// The requested number.
        given: usize,
        /// The maximum of the target.
        most: usize,
    },
    /// Orders are in flight, but the target has no reply for them.
    #[error("the target left an order without a reply")]
    Unanswered,
    /// The target replied to a tag that is not in flight.
    #[error("the target answered tag {0}, which is not under way")]
    UnknownTag(u64),
    /// The target's books differ from its replies.
    #[error("the books disagree about {what}: the replies add up to {promised}, the target counts {counted}")]
    Books {
        /// The sum that differs.
        what: String,
        /// The value according to the replies.
        promised: i128,
        /// The value according to the target.
        counted: i128,
    },
    /// There is no linear scan of this policy.
    #[error("--baseline has no linear scan of `{0}`: leave it out, or give another policy")]
    NoBaseline(Policy),
    /// The placements of engine and scan differ where they must be identical.
    #[error(
        "pod `{pod}` was placed {engine} by the engine and {scan} by the linear scan: on one shard `{policy}` must place pod for pod the same"
    )]
    BaselineDiffers {
        /// The first pod that differs.
        pod: String,
        /// The placement by the engine.
        engine: String,
        /// The placement by the scan.
        scan: String,
        /// The policy.
        policy: Policy,
    },
}
