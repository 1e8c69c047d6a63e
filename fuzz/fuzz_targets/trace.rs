//! Reads cluster traces from any bytes: `RUSTC_BOOTSTRAP=1 cargo
//! fuzz run --fuzz-dir fuzz --features libfuzzer trace`.
//!
//! With `WHARF_PLANT=1` it must report a finding at once.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_core::planted::PlantedBug;
use wharf_fuzz::with_planted_on_request;

fn run(data: &[u8]) -> Result<(), wharf_fuzz::Finding> {
    with_planted_on_request(PlantedBug::TraceAmountUnchecked, || wharf_fuzz::run_trace(data).map(drop))
}

fuzz_target!(|data: &[u8]| {
    if let Err(found) = run(data) {
        panic!("{found}");
    }
});
