//! Drives connections through any order of events: `RUSTC_BOOTSTRAP=1 cargo
//! fuzz run --fuzz-dir fuzz --features libfuzzer connection`.
//!
//! With `WHARF_PLANT=1` it must report a finding at once.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_core::planted::PlantedBug;
use wharf_fuzz::with_planted_on_request;

fn run(data: &[u8]) -> Result<(), wharf_fuzz::Finding> {
    with_planted_on_request(PlantedBug::RoomOfLostConnectionKept, || {
        wharf_fuzz::run_connection(data).map(drop)
    })
}

fuzz_target!(|data: &[u8]| {
    if let Err(found) = run(data) {
        panic!("{found}");
    }
});
