//! Publishes and reads views from several threads through the real cell (`wharf_fuzz::run_view_cell`):
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir fuzz --features libfuzzer view_cell`.
//!
//! With `--features libfuzzer,planted-bugs` it must report a finding at once.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_fuzz::{ViewCellCounts, run_view_cell};

fn run(data: &[u8]) -> ViewCellCounts {
    // This thread publishes, so the bug must be switched on here.
    #[cfg(feature = "planted-bugs")]
    return wharf_core::planted::with_planted(wharf_core::planted::PlantedBug::ViewDestroyedAtOnce, || {
        run_view_cell(data)
    });
    #[cfg(not(feature = "planted-bugs"))]
    run_view_cell(data)
}

fuzz_target!(|data: &[u8]| {
    let _ = run(data);
});
