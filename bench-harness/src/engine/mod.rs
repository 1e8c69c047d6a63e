//! `wharf-bench engine`: what one step of a shard costs, beside a floor and a linear scan in the
//! same run.
//!
//! - [`floor`]: placing and releasing in two dimensions with nothing else kept;
//! - [`driver`]: a shard under a [`scenario`], in batches like those of its thread;
//! - [`scan`]: the plain scan over the state that the shard has come to;
//! - [`rows`]: which scenario, at how many nodes, under which policies;
//! - [`report`]: the figures, and which targets they meet.
//!
//! Engine and floor take turns in segments of some milliseconds, and the median over the segments
//! is reported: other work on the machine then weighs on both, and on few segments.

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

pub use measure::{Budget, measure_all};
