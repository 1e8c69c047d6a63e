//! The demo, at a small size.
#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

use wharf_bench::demo::{DemoOptions, run};
use wharf_bench::replay::Silent;

#[test]
fn the_demo_ends_with_checked_books_on_any_number_of_shards() {
    for shards in [None, Some(1), Some(3)] {
        let options = DemoOptions {
            nodes: 50,
            requests: 3000,
            in_flight: 32,
            seed: 5,
            shards,
            ..DemoOptions::default()
        };
        let summary = run(options, &mut Silent).unwrap().to_string();
        assert!(summary.contains("checked"), "{summary}");
        assert!(summary.contains("requests             3000"), "{summary}");
        assert!(summary.contains("nodes                  50"), "{summary}");
    }
}

#[test]
fn a_demo_that_cannot_be_says_what_to_give() {
    let none = DemoOptions { in_flight: 0, ..DemoOptions::default() };
    let error = run(none, &mut Silent).unwrap_err().to_string();
    assert!(error.contains("give 1 to"), "{error}");
}
