//! Decodes arbitrary bytes and compares the codec with a second parser of the layout: `RUSTC_BOOTSTRAP=1 cargo
//! fuzz run --fuzz-dir fuzz --features libfuzzer codec`.
//!
//! With `WHARF_PLANT=1` it must report a finding at once.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_core::planted::PlantedBug;
use wharf_fuzz::with_planted_on_request;

fn run(data: &[u8]) -> Result<(), wharf_fuzz::Finding> {
    with_planted_on_request(PlantedBug::ExtensionLengthUnchecked, || wharf_fuzz::run_codec(data))
}

fuzz_target!(|data: &[u8]| {
    if let Err(difference) = run(data) {
        panic!("{difference}");
    }
});
