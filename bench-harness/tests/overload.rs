//! `wharf-bench overload`, briefly and with few nodes: rows have their fields. The command fails if the books are not what
//! its answers promised.

use std::process::Command;

use serde_json::Value;

#[test]
fn every_load_has_a_row() {
    let output = Command::new(env!("CARGO_BIN_EXE_wharf-bench"))
        .args(["overload", "--quick", "--json"])
        .output()
        .expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).expect("a JSON array");
    let loads: Vec<&str> = rows.iter().map(|row| row["load"].as_str().expect("a load")).collect();
    assert_eq!(loads, ["closed", "open", "open", "open", "half", "greedy"]);
    for row in &rows {
        for field in ["offered_per_second", "deadline_ms"] {
            assert!(row[field].as_f64().is_some_and(|number| number > 0.0), "{field} of {row}");
        }
        // How much is done in time depends on the machine.
        for field in ["goodput_per_second", "ratio_to_maximum", "ratio_least", "ratio_most"] {
            assert!(row[field].as_f64().is_some_and(|number| number >= 0.0), "{field} of {row}");
        }
        let of_all = ["late_percent", "shed_percent", "placements_percent"]
            .map(|field| row[field].as_f64().expect("a share"));
        assert!(of_all.iter().all(|share| (0.0..=100.0).contains(share)), "{row}");
        let has_modest = ["half", "greedy"].contains(&row["load"].as_str().expect("a load"));
        assert_eq!(row["modest_latency_ns"].is_object(), has_modest, "{row}");
    }
    // Places and releases come in turns, and more places if some are refused.
    assert!(rows[0]["placements_percent"].as_f64().is_some_and(|share| share >= 30.0), "{}", rows[0]);
    let multiples: Vec<Option<f64>> = rows.iter().map(|row| row["multiple"].as_f64()).collect();
    assert_eq!(multiples, [None, Some(1.0), Some(2.0), Some(10.0), None, Some(10.0)]);
    let ratio = &rows[5]["modest_ratio"];
    assert!(ratio.is_null() || ratio.as_f64().is_some_and(|ratio| ratio > 0.0), "{ratio}");
    let judged: Vec<bool> = rows.iter().map(|row| row["is_met"].is_boolean()).collect();
    assert_eq!(judged, [false, false, true, true, false, true]);
}
