//! Runs operations on the index and compares it with the linear-scan oracle: `RUSTC_BOOTSTRAP=1 cargo fuzz run
//! --fuzz-dir fuzz --features libfuzzer index_ops`.
//!
//! With `WHARF_PLANT=1` it must report a finding at once.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_core::planted::PlantedBug;
use wharf_fuzz::with_planted_on_request;

fn run(data: &[u8]) -> Result<(), String> {
    with_planted_on_request(PlantedBug::IndexStaleMaximum, || wharf_fuzz::run_index_ops(data))
}

fuzz_target!(|data: &[u8]| {
    if let Err(difference) = run(data) {
        panic!("{difference}");
    }
});
