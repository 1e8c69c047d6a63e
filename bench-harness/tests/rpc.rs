//! `wharf-bench rpc`, briefly and with few nodes: rows have their fields, and the books are those that were promised.

use std::process::{Command, Output};

use serde_json::Value;

fn rpc(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wharf-bench"))
        .arg("rpc")
        .args(arguments.split(' '))
        .output()
        .expect("the binary starts")
}

fn rows(arguments: &str) -> Vec<Value> {
    let output = rpc(&format!("{arguments} --json"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a JSON array")
}

fn number(row: &Value, pointer: &str) -> f64 {
    row.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer} in {row}"))
}

/// The command audits the books after each row and after everything was released, and fails if they are not what its
/// answers promised.
#[test]
fn every_row_has_its_fields_and_leaves_the_books_as_promised() {
    let directory = tempfile::tempdir().expect("a directory");
    let report = directory.path().join("report.html");
    let rows = rows(&format!("--quick --html {}", report.display()));
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().expect("a name")).collect();
    assert_eq!(rows.len(), 12, "{names:?}");
    for row in &rows {
        assert!(["closed", "open", "mixed"].contains(&row["load"].as_str().expect("a load")), "{row}");
        assert!(["memory", "sync"].contains(&row["mode"].as_str().expect("a mode")), "{row}");
        for field in ["connections", "in_flight", "batch", "allocations", "request_bytes", "reply_bytes"] {
            assert!(number(row, &format!("/{field}")) >= 1.0, "{field} of {row}");
        }
        for field in ["requests_per_second", "floor_per_second", "ratio_to_floor"] {
            assert!(number(row, &format!("/{field}")) > 0.0, "{field} of {row}");
        }
        for field in ["server_cpu_us_per_request", "client_cpu_us_per_request"] {
            assert!(number(row, &format!("/{field}")) >= 0.0, "{field} of {row}");
        }
        for latency in ["latency_ns", "floor_latency_ns"] {
            let of =
                ["p50", "p99", "p999", "p9999", "max"].map(|at| number(row, &format!("/{latency}/{at}")));
            assert!(of[0] > 0.0 && of.is_sorted(), "{latency} of {row}");
        }
        let utilisation = number(row, "/utilisation_percent");
        assert!((70.0..100.0).contains(&utilisation), "{row}");
    }
    let of = |name: &str| rows.iter().find(|row| row["name"] == name).expect("a row by its name");
    assert!(number(of("poisson"), "/offered_per_second") > 0.0 && of("many")["offered_per_second"].is_null());
    assert!(number(of("batches"), "/served_step_per_second") > 0.0);
    assert_eq!((number(of("batches"), "/batch"), number(of("batches"), "/in_flight")), (64.0, 16.0));
    assert!(number(of("many-sync"), "/judged") > 0.0, "it is compared with the same row in memory mode");

    let page = std::fs::read_to_string(&report).expect("the report is written");
    assert_eq!(
        page.matches("</svg>").count(),
        12 + 2 + 1,
        "a plot per row, per rule of arrivals, and of shards"
    );
    for outside in ["href", "src=", "<script", "@import", "url("] {
        assert!(!page.contains(outside), "the report loads something: {outside}");
    }
}

/// Threads of a service in `memory` mode, and what a journal adds.
#[test]
fn every_row_tells_which_thread_is_the_fullest() {
    let rows = rows("--quick --rows many,many-sync");
    assert_eq!(rows.len(), 2);
    for row in &rows {
        for (group, threads) in [("io", 1.0), ("shards", 2.0)] {
            assert!(number(row, &format!("/service_threads/{group}/threads")) >= threads, "{group} of {row}");
        }
        let busy = ["/service_threads/shards/all_percent", "/load_threads/busy_percent", "/cores_percent"];
        for field in busy {
            assert!(number(row, field) > 0.0, "{field} of {row}");
        }
        let has_journal = row["mode"] == "sync";
        assert_eq!(row["service_threads"]["journal"].is_object(), has_journal, "{row}");
        assert_eq!(row["service_threads"]["checkpoints"].is_object(), has_journal, "{row}");
        let fullest = row["fullest"].as_str().expect("a group");
        let group = match fullest {
            "load" => &row["load_threads"],
            of_service => &row["service_threads"][of_service],
        };
        assert_eq!(group["busy_percent"], row["fullest_busy_percent"], "{row}");
        assert_eq!(row["secure"], false, "{row}");
    }
}

/// The command itself checks that the service refuses a client without a certificate, and a call that the tenant of the load
/// has no right to. Nodes and audits are an administrator's, so it would fail without one.
#[test]
fn a_secure_service_is_measured_with_all_kinds_of_rows() {
    let directory = tempfile::tempdir().expect("a directory");
    let report = directory.path().join("report.html");
    let names = ["one", "many", "batches", "connections", "poisson", "mixed", "many-sync"];
    let rows = rows(&format!("--quick --secure --rows {} --html {}", names.join(","), report.display()));
    let measured: Vec<&str> = rows.iter().map(|row| row["name"].as_str().expect("a name")).collect();
    assert_eq!(measured, names);
    for row in &rows {
        assert_eq!(row["secure"], true, "{row}");
        for field in ["plain_per_second", "ratio_to_plain", "requests_per_second", "floor_per_second"] {
            assert!(number(row, &format!("/{field}")) > 0.0, "{field} of {row}");
        }
        assert!(number(row, "/plain_latency_ns/p50") > 0.0, "{row}");
        assert!(number(row, "/allocations") >= 1.0, "{row}");
    }
    let sync = rows.iter().find(|row| row["name"] == "many-sync").expect("a row by its name");
    assert!(number(sync, "/judged") > 0.0, "it is compared with the secure row in memory mode");
    let page = std::fs::read_to_string(&report).expect("the report is written");
    assert!(page.contains("memory, secure") && page.contains("× plain"), "the report says what is secure");
}

#[test]
fn several_threads_of_load_share_a_secure_service() {
    let rows = rows("--quick --secure --load mixed --connections 3 --load-threads 2");
    assert_eq!((rows.len(), &rows[0]["secure"]), (1, &Value::Bool(true)));
}

#[test]
fn rows_of_your_own_are_those_of_all_combinations() {
    let own = "--load closed --mode os --in-flight 1,8 --batch 1,3 --callers lockstep,independent";
    let rows = rows(&format!("--quick {own} --connections 2 --shards 1"));
    assert_eq!(rows.len(), 8);
    for row in &rows {
        assert_eq!((row["mode"].as_str(), row["target"].is_null()), (Some("os"), true), "{row}");
        assert_eq!((number(row, "/connections"), number(row, "/shards")), (2.0, 1.0), "{row}");
    }
    let of = |field: &str| rows.iter().map(|row| row[field].as_u64().expect("a number")).sum::<u64>();
    assert_eq!((of("in_flight"), of("batch")), (4 * (1 + 8), 4 * (1 + 3)));
}

#[test]
fn an_open_loop_sends_at_its_rate_over_several_connections() {
    let rows = rows("--quick --load open --rate 2000 --arrivals poisson,bursty --connections 3 --burst 4");
    let arrivals: Vec<&str> = rows.iter().map(|row| row["arrivals"].as_str().expect("a rule")).collect();
    assert_eq!(arrivals, ["poisson", "bursty"]);
    for row in &rows {
        assert_eq!(number(row, "/offered_per_second"), 2000.0, "{row}");
    }
}

#[test]
fn wrong_usage_says_what_to_give() {
    for (arguments, said) in [
        ("--seconds 0", "--seconds 0: give a positive number of seconds"),
        ("--rows onne", "many-callers"),
        ("--in-flight 8", "--load"),
        ("--load closed --rows one", "cannot be used with"),
        ("--load closed --in-flight 1025", "1024"),
    ] {
        let output = rpc(arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && message.contains(said), "{arguments}: {message}");
    }
}
