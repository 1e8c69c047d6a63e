//! Feeds any bytes to a whole session in memory: `RUSTC_BOOTSTRAP=1 cargo
//! fuzz run --fuzz-dir fuzz --features libfuzzer session_bytes`.
//!
//! With `--features libfuzzer,planted-bugs` it must report a finding at once.
#![no_main]

use libfuzzer_sys::fuzz_target;

fn run(data: &[u8]) -> Result<(), wharf_fuzz::Finding> {
    #[cfg(feature = "planted-bugs")]
    return wharf_core::planted::with_planted(wharf_core::planted::PlantedBug::MarkPassesRequest, || {
        wharf_fuzz::run_session_bytes(data).map(drop)
    });
    #[cfg(not(feature = "planted-bugs"))]
    wharf_fuzz::run_session_bytes(data).map(drop)
}

fuzz_target!(|data: &[u8]| {
    if let Err(found) = run(data) {
        panic!("{found}");
    }
});
