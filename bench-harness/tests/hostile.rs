//! `wharf-bench hostile`, briefly and with few nodes and peers: rows have their fields, and each crowd does something. The
//! command fails if the books are not what its answers promised.

use std::process::{Command, Output};

use serde_json::Value;

fn hostile(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wharf-bench"))
        .arg("hostile")
        .args(arguments.split(' '))
        .output()
        .expect("the binary starts")
}

#[test]
fn every_crowd_has_a_row() {
    let output = hostile("--quick --json");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).expect("a JSON array");
    let crowds: Vec<&str> = rows.iter().map(|row| row["crowd"].as_str().expect("a crowd")).collect();
    assert_eq!(crowds, ["alone", "busy", "connections", "streams", "malformed", "bombs", "slow-readers"]);
    // Many times what these few peers may make the service keep.
    let most = rows[0]["peak_bytes"].as_u64().expect("bytes") + (128 << 20);
    for row in &rows {
        assert!(row["peak_bytes"].as_u64().is_some_and(|peak| peak < most), "{row}");
        let is_alone = row["crowd"] == "alone";
        for field in ["offered_per_second", "peak_bytes", "deadline_ms"] {
            assert!(row[field].as_f64().is_some_and(|number| number > 0.0), "{field} of {row}");
        }
        // How much is done in time depends on the machine.
        for field in ["goodput_per_second", "late_percent", "server_cpu_percent"] {
            assert!(row[field].as_f64().is_some_and(|number| number >= 0.0), "{field} of {row}");
        }
        let of_crowd = row["crowd_cpu_percent"].as_f64();
        assert!(
            if is_alone { of_crowd.is_none() } else { of_crowd.is_some_and(|percent| percent >= 0.0) },
            "{row}"
        );
        let latency = ["p50", "p99", "p9999"].map(|at| row["latency_ns"][at].as_u64().expect("a latency"));
        assert!(latency[0] > 0 && latency.is_sorted(), "{row}");
        for field in ["acts_per_second", "p99_ratio"] {
            assert_eq!(row[field].is_null(), is_alone, "{field} of {row}");
            assert!(is_alone || row[field].as_f64().is_some_and(|number| number > 0.0), "{field} of {row}");
        }
    }
}

#[test]
fn a_crowd_is_chosen_by_its_name() {
    let output = hostile("--quick --crowds streams");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("\nalone") && printed.contains("\nstreams"), "{printed}");
    assert!(!printed.contains("\nbombs") && printed.contains("the books were audited"), "{printed}");

    let output = hostile("--crowds stream");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && message.contains("slow-readers"), "{message}");
}
