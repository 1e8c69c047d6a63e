//! Runs a simulated world (`wharf_fuzz::sim`) in which the input makes every choice: `RUSTC_BOOTSTRAP=1 cargo
//! fuzz run --fuzz-dir fuzz --features libfuzzer simulation`.
//!
//! With `--features libfuzzer,planted-bugs` it must report a finding at once.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_fuzz::sim::{Report, Settings, run_given};

fn run(data: &[u8]) -> Report {
    #[cfg(feature = "planted-bugs")]
    return wharf_core::planted::with_planted(wharf_core::planted::PlantedBug::SpillForgotten, || {
        run_given(data, Settings::default())
    });
    #[cfg(not(feature = "planted-bugs"))]
    run_given(data, Settings::default())
}

fuzz_target!(|data: &[u8]| {
    if let Some((step, found)) = run(data).found {
        panic!("step {step}: {found}");
    }
});
