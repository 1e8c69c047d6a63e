//! The input makes every choice of a simulated world. See `wharf_fuzz::sim`.
//!
//! Built with `planted-bugs`, it runs with a bug in place and must find it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_fuzz::sim::{Settings, run_given};

fn run(data: &[u8]) {
    if let Some((step, found)) = run_given(data, Settings::default()).found {
        panic!("step {step}: {found}");
    }
}

#[cfg(not(feature = "planted-bugs"))]
fuzz_target!(|data: &[u8]| run(data));

#[cfg(feature = "planted-bugs")]
fuzz_target!(|data: &[u8]| {
    use wharf_core::planted::{PlantedBug, with_planted};
    with_planted(PlantedBug::WakeUpForgotten, || run(data));
});
