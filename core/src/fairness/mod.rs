//! Shares of queues and jobs: amounts over all resource kinds, dominant shares, and how a total is divided.
//!
//! Everything is exact: amounts are integers in 1/10,000 of a unit, and shares are fractions that are compared by
//! cross-multiplication. Where shares are scaled, they are rounded down. So the order of queues is the same on every machine.
//!
//! | module | content |
//! |---|---|
//! | `amounts` | sums over resource kinds, and caps on them |
//! | `share` | fractions, and the dominant share of DRF |
//! | `deserved` | Volcano's division of a cluster over weighted queues |
//! | `hierarchy` | hierarchical dominant resource fairness |
//! | `fair_share` | YARN's fair shares and its order of queues and jobs |
//! | `past` | what was held in the past, with a half-life |

pub mod amounts;
pub mod deserved;
pub mod fair_share;
pub mod hierarchy;
pub mod past;
pub mod share;

pub use amounts::{Amounts, Caps, Dim};
pub use deserved::{QueueClaim, deserved, real_caps};
pub use fair_share::{FairShare, Schedulable, by_fair_share, fair_shares};
pub use hierarchy::{DrfClaim, TreeShare, drf_division};
pub use past::{HalfLife, Moment, PastSums};
pub use share::{Share, dominant_share};
