//! `wharf-bench recovery` and `wharf-bench durability`: their rows, and a real start from a store of each form.

use std::process::Command;

use serde_json::Value;

fn rows(arguments: &str) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_wharf-bench"))
        .args(arguments.split(' '))
        .arg("--json")
        .output()
        .expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    printed.as_array().expect("an array of rows").clone()
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("no {key} in {row}"))
}

/// The command fails if the books of a start are not those of its store. Catches: a checkpoint without a journal after it
/// from which no start is possible, and a tail that is not applied.
#[test]
fn a_service_starts_from_a_checkpoint_alone_and_from_one_with_a_tail() {
    let shape = "--nodes 60 --allocations 1500 --tail-records 0,300 --sessions 8 --unacknowledged 80";
    let rows = rows(&format!("recovery {shape} --rounds 1 --shards 2 --built-shards 3"));
    assert_eq!(rows.len(), 2);
    for row in &rows {
        assert_eq!([number(row, "shards"), number(row, "built_shards")], [2.0, 3.0], "{row}");
        // Those that are kept, and those in flight at the end.
        assert!((80.0..80.0 + 1024.0).contains(&number(row, "outcomes")), "{row}");
        assert!(number(row, "checkpoint_bytes") > 1500.0, "{row}");
        assert_eq!((number(row, "nodes"), number(row, "allocations")), (60.0, 1500.0), "{row}");
        let parts = number(row, "store_seconds") + number(row, "engine_seconds");
        assert!(number(row, "recovery_seconds") >= parts && parts > 0.0, "{row}");
        assert!(number(row, "peak_bytes") > 0.0, "{row}");
    }
    let of = |key| [number(&rows[0], key), number(&rows[1], key)];
    assert_eq!([of("tail_records")[0], of("tail_appends")[0], of("tail_bytes")[0]], [0.0; 3], "{rows:?}");
    assert!(of("tail_records")[1] >= 300.0 && of("tail_bytes")[1] > 300.0, "{rows:?}");
    assert!(of("tail_requests")[1] > 100.0 && of("tail_refused")[1] > 0.0, "{rows:?}");
}

#[test]
fn the_rows_of_durability_have_rate_latency_bytes_and_floor() {
    let rows = rows("durability --mode memory,os --in-flight 64 --requests 1 --nodes 40 --rounds 1");
    let modes: Vec<_> = rows.iter().map(|row| row["mode"].as_str().expect("a mode")).collect();
    assert_eq!(modes, ["memory", "os"]);
    for row in &rows {
        assert_eq!(number(row, "in_flight"), 64.0);
        for key in ["placements_per_second", "floor_sync_ns"] {
            assert!(number(row, key) > 0.0, "{key}: {row}");
        }
        assert!(number(&row["latency_ns"], "p50") > 0.0, "{row}");
    }
    assert_eq!(number(&rows[0], "bytes_per_placement"), 0.0, "without a journal nothing is written");
    assert!(number(&rows[1], "bytes_per_placement") > 10.0, "{rows:?}");
}
