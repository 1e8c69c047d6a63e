//! Runs operations on the index and compares it with the linear-scan oracle: `RUSTC_BOOTSTRAP=1 cargo fuzz run
//! --fuzz-dir fuzz --features libfuzzer index_ops`.
//!
//! With `--features libfuzzer,planted-bugs` it must report a finding at once.
#![no_main]

use libfuzzer_sys::fuzz_target;

fn run(data: &[u8]) -> Result<(), String> {
    #[cfg(feature = "planted-bugs")]
    return wharf_core::planted::with_planted(wharf_core::planted::PlantedBug::IndexStaleMaximum, || {
        wharf_fuzz::run_index_ops(data)
    });
    #[cfg(not(feature = "planted-bugs"))]
    wharf_fuzz::run_index_ops(data)
}

fuzz_target!(|data: &[u8]| {
    if let Err(difference) = run(data) {
        panic!("{difference}");
    }
});
