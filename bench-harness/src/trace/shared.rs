//! The location of the openb trace. It is not part of the repository but may be next to it.

use std::path::{Path, PathBuf};

const FOLDER: &str = "shared/data/openb";

/// Returns the paths of files of the trace if all of them exist next to the repository, relative to the
/// working directory or to the source directory of the build.
#[must_use]
pub fn next_to_the_repository<const N: usize>(names: [&str; N]) -> Option<[PathBuf; N]> {
    let from_here = Path::new("..").join(FOLDER);
    let from_build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FOLDER);
    let files = |folder: PathBuf| names.map(|name| folder.join(name));
    [from_here, from_build].map(files).into_iter().find(|files| files.iter().all(|file| file.exists()))
}

/// Like [`next_to_the_repository`], for a test that is skipped with a message if the files are absent.
///
/// # Panics
/// When they are absent and `WHARF_REQUIRE_TRACE` is set. The gate sets it if the trace exists.
#[must_use]
pub fn for_test<const N: usize>(names: [&str; N]) -> Option<[PathBuf; N]> {
    let found = next_to_the_repository(names);
    if found.is_none() {
        let required = std::env::var_os("WHARF_REQUIRE_TRACE").is_some();
        assert!(!required, "no {names:?} in ../{FOLDER}, and WHARF_REQUIRE_TRACE asks for them");
        println!("skipped: no {names:?} in ../{FOLDER}");
    }
    found
}
