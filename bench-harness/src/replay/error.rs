//! Why a replay fails: the trace, the target, or a disagreement between them that must not be.

use wharf_core::request::Policy;

use crate::target::TargetError;
use crate::trace::TraceError;

/// A replay that failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The trace lacks what the replay needs.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The target failed.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A number of orders under way that cannot be.
    #[error("{given} orders in flight: give 1 to {most}")]
    InFlight {
        /// Asked for.
        given: usize,
        /// What the target takes.
        most: usize,
    },
    /// Orders are under way and the target has no reply for them.
    #[error("the target left an order without a reply")]
    Unanswered,
    /// A reply to nothing.
    #[error("the target answered tag {0}, which is not under way")]
    UnknownTag(u64),
    /// The target's books are not what the driver was promised.
    #[error("the books disagree about {what}: the replies add up to {promised}, the target counts {counted}")]
    Books {
        /// Which sum.
        what: String,
        /// By the replies.
        promised: i128,
        /// By the target.
        counted: i128,
    },
    /// There is no scan of that policy.
    #[error("--baseline has no linear scan of `{0}`: leave it out, or give another policy")]
    NoBaseline(Policy),
    /// Engine and scan must agree and do not.
    #[error(
        "pod `{pod}` was placed {engine} by the engine and {scan} by the linear scan: on one shard `{policy}` must place pod for pod the same"
    )]
    BaselineDiffers {
        /// The first such pod.
        pod: String,
        /// By the engine.
        engine: String,
        /// By the scan.
        scan: String,
        /// The policy.
        policy: Policy,
    },
}
