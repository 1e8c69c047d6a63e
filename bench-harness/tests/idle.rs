//! `wharf-bench idle`, briefly and with few nodes and clients: rows have their fields. The command fails if the books are not
//! what its answers promised.

use std::process::{Command, Output};

use serde_json::Value;

fn idle(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wharf-bench"))
        .arg("idle")
        .args(arguments.split(' '))
        .output()
        .expect("the binary starts")
}

#[test]
fn more_clients_than_a_service_takes_are_wrong_usage() {
    let output = idle("--connections 0,5000");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && message.contains("4000"), "{message}");
}

#[test]
fn every_number_of_clients_has_a_row() {
    let output = idle("--quick --connections 0,3,100 --json");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).expect("a JSON array");
    let clients: Vec<u64> = rows.iter().map(|row| row["connections"].as_u64().expect("a number")).collect();
    assert_eq!(clients, [0, 3, 8], "a quick run has few clients");
    for row in &rows {
        assert_eq!((row["mode"].as_str(), row["nodes"].as_u64()), (Some("sync"), Some(200)), "{row}");
        for field in ["seconds", "resident_bytes"] {
            assert!(row[field].as_f64().is_some_and(|number| number > 0.0), "{field} of {row}");
        }
        for field in ["cpu_percent", "wakeups_per_second"] {
            assert!(row[field].as_f64().is_some_and(|number| number >= 0.0), "{field} of {row}");
        }
        assert!(row["is_met"].is_null(), "only the row with 100 clients is judged: {row}");
    }
    let has_memory: Vec<bool> = rows.iter().map(|row| row["bytes_per_connection"].is_u64()).collect();
    assert_eq!(has_memory, [false, true, true]);
}
