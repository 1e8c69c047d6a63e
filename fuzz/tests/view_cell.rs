//! Threads see whole views in order, and every view is destroyed in the end.
//!
//! The address sanitizer checks that none is destroyed too early: `fuzz/fuzz_targets/view_cell.rs`.

use wharf_fuzz::{ViewCellCounts, bytes_of_seed, run_view_cell};

#[test]
fn readers_during_publication_see_whole_versions_in_order() {
    let mut counts = ViewCellCounts::default();
    for seed in 0..200 {
        let run = run_view_cell(&bytes_of_seed(seed, 300));
        counts.published += run.published;
        counts.loaded += run.loaded;
        counts.moved += run.moved;
    }
    // A reader's last load sees another version than its first one, unless nothing is published.
    assert!(counts.published > 10_000 && counts.loaded > 10_000 && counts.moved > 200, "{counts:?}");
}
