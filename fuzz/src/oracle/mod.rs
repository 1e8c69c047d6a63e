//! The linear-scan oracle: computes the correct answers of the index and of a shard in a slow and simple way.
//!
//! Nodes are a list in order of registration, and every question scans all of it. Nothing here calls the code
//! under test. Coordinates, feasibility, GPU instances and selector terms are computed independently, from the
//! design's page on DistBuckets. A mistake on either side therefore shows.

mod choice;
pub use choice::{Choice, Fitting, choose};
mod coordinate;
pub use coordinate::Space;
/// The fragmentation definition, which `wharf-bench` also measures as the scan. It is a single shared file, so
/// that cargo-fuzz does not need to build that crate.
#[path = "../../../bench-harness/src/target/fragmentation.rs"]
pub mod fragmentation;
mod ids;
mod linear_granularity;
mod linear_index;
pub use linear_index::LinearIndex;
mod linear_books;
mod linear_leases;
mod linear_node;
mod linear_preferences;
mod linear_reservations;
mod linear_shard;
pub use linear_shard::LinearShard;
mod linear_statement_node;
mod linear_statements;
pub use linear_statements::LinearStatements;
mod linear_view;
mod linear_waiting;
mod reference_walk;
pub use reference_walk::{Bucket, Step, reference_walk};
