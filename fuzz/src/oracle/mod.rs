//! The linear-scan oracle: what the index and a shard must answer, found the slow and plain way.
//!
//! Nodes stand in a list in order of registration and every question walks all of it. Nothing
//! here calls the code under test: coordinates, feasibility, the choice of GPU instances and
//! the terms of selectors are computed anew, from the meaning in the design's page on
//! DistBuckets, so that a mistake on either side shows.

mod choice;
pub use choice::{Choice, Fitting, choose};
mod coordinate;
pub use coordinate::Space;
/// The definition is also what `wharf-bench` times as the scan; it is one file, so that cargo-fuzz
/// need not build that crate.
#[path = "../../../bench-harness/src/target/fragmentation.rs"]
pub mod fragmentation;
mod linear_granularity;
mod linear_index;
pub use linear_index::LinearIndex;
mod linear_books;
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
