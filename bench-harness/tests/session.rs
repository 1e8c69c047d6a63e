//! The rows of `wharf-bench session` do what they are about, at a small size.

use wharf_bench::session::{ROWS, SessionOptions, run};

#[test]
fn each_row_is_measured() {
    let options = SessionOptions { scale: 50, ..SessionOptions::default() };
    let mut reported = 0;
    let rows = run(&options, |_| reported += 1).expect("each cycle does what its row is about");
    assert_eq!(rows.iter().map(|row| row.name).collect::<Vec<_>>(), ROWS);
    assert_eq!(reported, ROWS.len());
    for row in &rows {
        assert!(row.seconds >= row.deciding_seconds, "{row}");
        assert!(row.pending > 0 && row.nodes > 0 && row.queues > 0, "{row}");
    }
    let of_rules: Vec<_> = rows.iter().filter_map(|row| Some((row.name, row.fairness?))).collect();
    assert_eq!(of_rules.len(), 4, "a row for each rule");
    for (name, fairness) in of_rules {
        println!("{name}: {fairness:?}");
        assert!(fairness.evictions_useful > 0, "{name}: {fairness:?}");
        assert_eq!(fairness.evictions_wasted, 0, "{name}: {fairness:?}");
    }
    let json = serde_json::to_value(&rows[0]).expect("a row is JSON");
    for field in ["name", "nodes", "running", "pending", "queues", "seconds"] {
        assert!(json.get(field).is_some(), "{field}");
    }
}
