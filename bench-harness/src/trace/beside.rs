//! Where the openb trace lies. It is not part of the repository but may lie beside it.

use std::path::{Path, PathBuf};

const FOLDER: &str = "shared/data/openb";

/// Files of the trace, where all of them lie beside the repository: seen from the working
/// directory, or from where this was built.
#[must_use]
pub fn beside_the_repository<const N: usize>(names: [&str; N]) -> Option<[PathBuf; N]> {
    let from_here = Path::new("..").join(FOLDER);
    let from_build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FOLDER);
    let files = |folder: PathBuf| names.map(|name| folder.join(name));
    [from_here, from_build].map(files).into_iter().find(|files| files.iter().all(|file| file.exists()))
}

/// As [`beside_the_repository`], for a test that is skipped where they are absent, and says so.
///
/// # Panics
/// When they are absent and `WHARF_REQUIRE_TRACE` is set, as the gate sets it where the trace is.
#[must_use]
pub fn for_test<const N: usize>(names: [&str; N]) -> Option<[PathBuf; N]> {
    let found = beside_the_repository(names);
    if found.is_none() {
        let required = std::env::var_os("WHARF_REQUIRE_TRACE").is_some();
        assert!(!required, "no {names:?} in ../{FOLDER}, and WHARF_REQUIRE_TRACE asks for them");
        println!("skipped: no {names:?} in ../{FOLDER}");
    }
    found
}
