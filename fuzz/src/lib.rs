//! Oracles, differential runs and fuzz targets of Wharfinger.
//!
//! Every run is a function from bytes to a verdict ([`run_codec`], [`run_index_ops`], [`run_shard_ops`]).
//! Ordinary tests (`tests/`), cargo-fuzz targets (`fuzz_targets/`) and saved libFuzzer inputs therefore all run
//! the same code.
#![forbid(unsafe_code)]

mod bodies;
mod codec;
pub mod disk;
pub use codec::run_codec;
mod finding;
pub use finding::Finding;
mod geometry;
mod index_ops;
mod journaled;
pub use index_ops::run_index_ops;
mod modules;
mod planting;
pub use modules::{ModuleGraph, modules_page};
pub use planting::with_planted_on_request;
pub mod oracle;
mod portable;
pub use portable::run_journal;
mod protocol_page;
pub use protocol_page::protocol_page;
mod served;
pub use served::{ServedCounts, WITH_JOBS, run_connection, run_session_bytes};
mod settings;
pub use settings::run_config;
mod shard_ops;
pub use shard_ops::{ReservationCounts, ViewCounts, run_reservation_ops, run_shard_ops, run_view_ops};
pub mod sim;

mod statement_ops;
pub use statement_ops::{StatementCounts, run_statement_ops};
mod traces;
pub use traces::run_trace;

use std::path::Path;

use wharf_core::rng::Rng;

/// Returns the stored inputs of a fuzz target, each with its name. Every finding becomes one of them.
///
/// # Panics
/// Panics when there are none.
#[must_use]
pub fn stored_inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<(String, Vec<u8>)> = files
        .map(|file| {
            let path = file.expect("a folder that can be read").path();
            let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
            (name, std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
        })
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{} has no inputs", folder.display());
    inputs
}

/// Returns the number of generated inputs of a test: `default`, unless `WHARF_FUZZ_INPUTS` says otherwise.
///
/// # Panics
/// Panics when the variable is no number.
#[must_use]
pub fn input_count(default: u64) -> u64 {
    let given = std::env::var("WHARF_FUZZ_INPUTS").ok();
    given.map_or(default, |count| count.parse().expect("WHARF_FUZZ_INPUTS is a number"))
}

/// Returns `length` bytes that depend only on `seed`. Tests use them as generated input.
#[must_use]
pub fn bytes_of_seed(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..length).map(|_| rng.next_u64().to_le_bytes()[0]).collect()
}
