//! Runs statements, claims and bundles in a shard and compares it with the naive model: `RUSTC_BOOTSTRAP=1
//! cargo fuzz run --fuzz-dir fuzz --features libfuzzer statement_ops`.
//!
//! With `WHARF_PLANT=1` it must report a finding at once.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_core::planted::PlantedBug;
use wharf_fuzz::with_planted_on_request;

fn run(data: &[u8]) -> Result<(), String> {
    with_planted_on_request(PlantedBug::AbortForgetsGpu, || wharf_fuzz::run_statement_ops(data).map(drop))
}

fuzz_target!(|data: &[u8]| {
    if let Err(difference) = run(data) {
        panic!("{difference}");
    }
});
