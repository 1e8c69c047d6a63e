//! `wharf-bench engine`: the cost of one step of a shard, compared with a floor and a linear scan in the same
//! run.
//!
//! - [`floor`]: placing and releasing in two dimensions with nothing else kept;
//! - [`driver`]: a shard under a [`scenario`], in batches like those of its thread;
//! - [`touch`]: a bare loop over the cache lines that the shard touches, in the same order;
//! - [`scan`]: the linear scan over the state that the shard has reached;
//! - [`rows`]: the scenarios, numbers of nodes and policies;
//! - [`report`]: the figures and their targets.
//!
//! Engine and floor alternate in segments of some milliseconds, and the median over the segments is reported.
//! Other work on the machine therefore affects both, and only a few segments.

pub mod driver;
pub mod floor;
pub mod floor_driver;
mod measure;
pub mod report;
pub mod rows;
pub mod scan;
pub mod scenario;
mod served;
pub mod shapes;
pub mod touch;

pub use measure::{Budget, measure_all};
