//! `wharf-bench contention`: rows have their fields, one seed gives one output, and the finding of the paper
//! is reproduced: fine-grained and incremental commits lose less.

use std::process::Command;

use serde_json::Value;
use wharf_bench::contention::run::run;
use wharf_bench::contention::{Point, Row, Settings};
use wharf_core::statement::{CommitMode, ConflictDetection};

const FIELDS: [&str; 10] = [
    "planners",
    "conflict_detection",
    "mode",
    "decision_ms",
    "load",
    "conflict_fraction",
    "wasted_fraction",
    "attempts_per_statement",
    "busyness",
    "statements_per_second",
];

fn bench(arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(env!("CARGO_BIN_EXE_wharf-bench"))
        .arg("contention")
        .args(arguments)
        .output()
        .expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn the_same_seed_gives_the_same_rows_byte_for_byte() {
    let small = ["--nodes", "20", "--seconds", "4", "--planners", "1,3", "--decision-ms", "100", "--json"];
    let first = bench(&small);
    assert_eq!(first, bench(&small));
    let rows: Vec<Value> = serde_json::from_slice(&first).expect("a JSON array");
    assert_eq!(rows.len(), 2 * 4 * 3, "planners, granularities and modes, loads");
    for row in &rows {
        assert!(FIELDS.iter().all(|field| !row[field].is_null()), "{row}");
    }
    let other = [&small[..], &["--seed", "2"]].concat();
    assert_ne!(first, bench(&other));
}

#[test]
fn real_planners_give_rows() {
    let small = ["--real", "--nodes", "20", "--millis", "20", "--planners", "2", "--shards", "2", "--json"];
    let rows: Vec<Value> = serde_json::from_slice(&bench(&small)).expect("a JSON array");
    assert_eq!(rows.len(), 2);
    for row in &rows {
        assert!(row["statements_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
        assert!(row["conflict_fraction"].is_number(), "{row}");
    }
}

fn row(planners: u16, conflict_detection: ConflictDetection, mode: CommitMode) -> Row {
    let settings = Settings { nodes: 100, shards: 2, full_percent: 80, seconds: 40, seed: 3 };
    run(&settings, Point { planners, conflict_detection, mode, decision_ms: 400, task_ms: 5, load: 16 })
}

#[test]
fn one_planner_meets_no_conflict() {
    for conflict_detection in [ConflictDetection::Fine, ConflictDetection::Coarse] {
        let row = row(1, conflict_detection, CommitMode::AllOrNothing);
        assert_eq!((row.conflict_fraction, row.wasted_fraction), (0.0, 0.0), "{row:?}");
        assert!(row.busyness > 0.99, "more comes than one can decide: {row:?}");
    }
}

#[test]
fn fine_and_incremental_come_out_ahead() {
    use CommitMode::{AllOrNothing, Incremental};
    use ConflictDetection::{Coarse, Fine};
    let [best, fine, coarse, worst] =
        [(Fine, Incremental), (Fine, AllOrNothing), (Coarse, Incremental), (Coarse, AllOrNothing)]
            .map(|(conflict_detection, mode)| row(16, conflict_detection, mode));
    assert!(worst.conflict_fraction > 2.0 * fine.conflict_fraction, "{worst:?}, {fine:?}");
    assert!(worst.wasted_fraction > 1.2 * coarse.wasted_fraction, "{worst:?}, {coarse:?}");
    assert!(fine.wasted_fraction >= best.wasted_fraction, "{fine:?}, {best:?}");
    assert!(best.statements_per_second > worst.statements_per_second, "{best:?}, {worst:?}");
    assert!(best.busyness < worst.busyness, "{best:?}, {worst:?}");
}
