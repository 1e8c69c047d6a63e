//! Runs a simulated world (`wharf_fuzz::sim`) in which the input makes every choice: `RUSTC_BOOTSTRAP=1 cargo
//! fuzz run --fuzz-dir fuzz --features libfuzzer simulation`.
//!
//! With `WHARF_PLANT=1` it must report a finding at once.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_core::planted::PlantedBug;
use wharf_fuzz::sim::{Report, Settings, run_given};
use wharf_fuzz::with_planted_on_request;

fn run(data: &[u8]) -> Report {
    with_planted_on_request(PlantedBug::SpillForgotten, || run_given(data, Settings::default()))
}

fuzz_target!(|data: &[u8]| {
    if let Some((step, found)) = run(data).found {
        panic!("step {step}: {found}");
    }
});
