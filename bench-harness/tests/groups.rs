//! `wharf-bench groups`, at a small size: rows have their fields, and errors are reported.
#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

use std::process::{Command, Output};

use serde_json::Value;
use wharf_bench::groups::{GroupsOptions, run};

fn groups(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wharf-bench")).arg("groups").args(args).output().unwrap()
}

#[test]
fn every_row_has_its_fields_and_the_books_hold_what_was_answered() {
    let small = ["--bundles", "1,5", "--groups", "60", "--live", "10", "--nodes", "24", "--in-flight", "8"];
    let output = groups(&[&small[..], &["--planners", "2", "--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows.len(), 8);
    let fields = ["groups_per_second", "p50_ns", "p99_ns", "conflict_fraction"];
    for row in &rows {
        assert!(fields.iter().all(|field| row[field].is_number()), "{row}");
        let counts = ["live_groups", "groups", "refused", "shards", "planners", "in_flight"].map(|f| &row[f]);
        assert_eq!(counts.map(|value| value.as_u64().unwrap()), [10, 60, 0, 2, 2, 8], "{row}");
    }
    let named = |at: usize| (rows[at]["bundles"].as_u64().unwrap(), rows[at]["strategy"].as_str().unwrap());
    assert_eq!((named(0), named(7)), ((1, "pack"), (5, "strict-spread")));
}

#[test]
fn a_refusal_is_a_failure_unless_it_is_asked_for() {
    let few =
        ["--bundles", "5", "--strategy", "strict-spread", "--nodes", "4", "--live", "0", "--groups", "9"];
    let output = groups(&few);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("--may-refuse"), "{said}");
    let output = groups(&[&few[..], &["--may-refuse", "--json"]].concat());
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((rows[0]["refused"].as_u64(), rows[0]["groups"].as_u64()), (Some(9), Some(0)), "{rows:?}");
}

#[test]
fn more_under_way_than_a_connection_may_have_says_what_to_give() {
    let options = GroupsOptions { in_flight: 0, ..GroupsOptions::default() };
    let error = run(&options, |_| {}).unwrap_err().to_string();
    assert!(error.contains("give 1 to"), "{error}");
}
