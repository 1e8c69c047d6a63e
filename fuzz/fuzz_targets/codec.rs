//! Decodes arbitrary bytes and compares the codec with a second parser of the layout: `RUSTC_BOOTSTRAP=1 cargo
//! fuzz run --fuzz-dir fuzz --features libfuzzer codec`.
//!
//! With `--features libfuzzer,planted-bugs` it must report a finding at once.
#![no_main]

use libfuzzer_sys::fuzz_target;

fn run(data: &[u8]) -> Result<(), wharf_fuzz::Finding> {
    #[cfg(feature = "planted-bugs")]
    return wharf_core::planted::with_planted(
        wharf_core::planted::PlantedBug::ExtensionLengthUnchecked,
        || wharf_fuzz::run_codec(data),
    );
    #[cfg(not(feature = "planted-bugs"))]
    wharf_fuzz::run_codec(data)
}

fuzz_target!(|data: &[u8]| {
    if let Err(difference) = run(data) {
        panic!("{difference}");
    }
});
