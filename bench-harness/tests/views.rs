//! `wharf-bench views`: rows have their fields, and the cost of publishing depends on the changes.

use std::process::Command;

use serde_json::Value;
use wharf_bench::views::Bench;

#[test]
fn every_table_has_its_fields() {
    let fields: [(&str, &[&str]); 4] = [
        ("publish", &["nodes", "changes", "publish_ns", "bytes_copied", "chunks_copied"]),
        ("readers", &["nodes", "readers", "ops_per_second", "views_per_second"]),
        ("memory", &["nodes", "publications", "chunks", "chunks_live", "bytes_live", "told"]),
        (
            "planners",
            &["copy_sync_ns", "copy_plan_ns", "copy_bytes", "inside_publish_ns", "inside_search_ns"],
        ),
    ];
    for (table, fields) in fields {
        let output = Command::new(env!("CARGO_BIN_EXE_wharf-bench"))
            .args(["views", "--nodes", "100", "--rounds", "20", "--millis", "5", "--json", "--tables", table])
            .output()
            .expect("the binary starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).expect("a JSON array");
        assert!(!rows.is_empty());
        for row in &rows {
            assert!(fields.iter().all(|field| !row[field].is_null()), "{table}: {row}");
        }
    }
}

/// Bounds the copied chunks and bytes per change and doubling of the nodes.
#[test]
fn what_is_copied_follows_the_changes_and_not_the_nodes() {
    for nodes in [1_000u32, 16_000, 128_000] {
        let mut bench = Bench::new(nodes, 1);
        for changes in [1u32, 16, 256] {
            let row = bench.measure(changes, 20);
            let log = u64::from(nodes.ilog2());
            // A node and two records of the ledger, each with its path: half a chunk per doubling.
            assert!(row.chunks_copied <= 2 * u64::from(changes) * log, "{row:?}");
            assert!(row.bytes_copied <= 512 * u64::from(changes) * log, "{row:?}");
            assert!(row.chunks_copied > log / 2, "{row:?}");
        }
    }
}

#[test]
fn who_keeps_a_view_keeps_it_once() {
    let mut bench = Bench::new(500, 2);
    let few = bench.with_a_keeper(20);
    let many = bench.with_a_keeper(2_000);
    assert!(many.chunks_live <= 2 * many.chunks && few.chunks_live <= 2 * few.chunks, "{few:?} {many:?}");
}

/// The run panics if the two ways to search find different first nodes.
#[test]
fn a_private_copy_and_an_index_in_the_view_find_the_same() {
    let mut bench = Bench::new(300, 3);
    bench.fill();
    let row = bench.with_planners(20);
    assert!(row.nodes == 300 && row.copy_bytes > 300 * 100, "{row:?}");
}
