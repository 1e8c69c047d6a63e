//! The modules of the engine form no cycle, and their drawing in the documentation is up to date.

use std::path::Path;

use wharf_fuzz::{ModuleGraph, modules_page};

fn core() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/src")
}

#[test]
fn no_modules_of_the_engine_use_each_other_in_a_circle() {
    assert_eq!(ModuleGraph::read(&core()).expect("the sources are here").circle(), None);
}

#[test]
fn the_drawing_is_up_to_date() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/modules.md");
    let kept = std::fs::read_to_string(page).expect("the page is here");
    let drawn = modules_page(&core()).expect("the sources are here");
    assert!(kept == drawn, "write it again: cargo run -p wharf-fuzz --example modules > docs/modules.md");
}
