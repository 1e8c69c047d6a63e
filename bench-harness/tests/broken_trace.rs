//! Broken traces. Each message names the file, the line, the column, what was found there, and what to do.
//! Nothing is loaded in part.
#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

use wharf_bench::replay::{Happening, ReplayError, ReplayOptions, Silent, events, replay_in_process};
use wharf_bench::trace::{Trace, openb};
use wharf_core::limits::PORT_IN_FLIGHT_MAX;
use wharf_core::resource::{Amount, GpuRequest};
use wharf_core::time::Time;

const NODE_HEADER: &str = "sn,cpu_milli,memory_mib,gpu,model";
const POD_HEADER: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time";

fn pods_error(rows: &str) -> String {
    openb::read_pods(format!("{POD_HEADER}\n{rows}").as_bytes(), "pods.csv").unwrap_err().to_string()
}

fn nodes_error(rows: &str) -> String {
    openb::read_nodes(format!("{NODE_HEADER}\n{rows}").as_bytes(), "nodes.csv").unwrap_err().to_string()
}

fn assert_names(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "`{error}` does not say `{part}`");
    }
}

#[test]
fn broken_pod_rows_are_named() {
    let good = "a,1000,1024,1,500,,LS,Running,0,9,0";
    let cases: &[(&str, &[&str])] = &[
        ("b,x,1024,0,0,,,,,,", &["pods.csv: line 3", "`cpu_milli`", "`x`", "whole number"]),
        ("b,,1024,0,0,,,,,,", &["line 3", "`cpu_milli`", "is not a number"]),
        ("b,1.5,1024,0,0,,,,,,", &["line 3", "`cpu_milli`", "`1.5`"]),
        ("b,1000,-1,0,0,,,,,,", &["line 3", "`memory_mib`", "`-1` is negative", "zero or more"]),
        ("b,99999999999999999,1,0,0,,,,,,", &["line 3", "`cpu_milli`", "out of range", "at most"]),
        ("b,1000,99999999999999999999999,0,0,,,,,,", &["line 3", "`memory_mib`", "out of range"]),
        ("b,1000,1024,1,1001,,,,,,", &["line 3", "`gpu_milli`", "1001", "at most 1000"]),
        ("b,1000,1024,1,0,,,,,,", &["line 3", "`gpu_milli`", "1 to 1000"]),
        ("b,1000,1024,1,-500,,,,,,", &["line 3", "`gpu_milli`", "negative"]),
        ("b,1000,1024,17,1000,,,,,,", &["line 3", "`num_gpu`", "17", "at most 16"]),
        ("b,1000,1024,1", &["line 3", "`gpu_milli`", "no such column"]),
        ("b,1000,1024,1,500,T4,G2,LS,Running,0,9,0", &["line 3", "12 fields", "11 columns"]),
        ("a,1000,1024,1,500,,,,,,", &["line 3", "`name`", "`a`", "line 2"]),
        (",1000,1024,1,500,,,,,,", &["line 3", "`name`", "empty"]),
        ("b,1000,1024,1,500,T4||G2,,,,,", &["line 3", "`gpu_spec`", "T4||G2", "`|`"]),
        ("b,1000,1024,1,500,,,,soon,9,", &["line 3", "`creation_time`", "`soon`"]),
        ("b,1000,1024,1,500,,,,10,9,", &["line 3", "`deletion_time`", "9", "10"]),
        ("b,1000,1024,1,500,,,,-3,9,", &["line 3", "`creation_time`", "negative"]),
    ];
    for (row, parts) in cases {
        assert_names(&pods_error(&format!("{good}\n{row}\n")), parts);
    }
    let long = "n".repeat(254);
    assert_names(&pods_error(&format!("{long},1,1,0,0\n")), &["line 2", "`name`", "254", "253"]);
}

#[test]
fn broken_node_rows_are_named() {
    let cases: &[(&str, &[&str])] = &[
        ("b,1000,1024,17,T4", &["nodes.csv: line 3", "`gpu`", "17", "at most 16"]),
        ("b,1000,1024,-1,T4", &["line 3", "`gpu`", "negative"]),
        ("b,1000,lots,1,T4", &["line 3", "`memory_mib`", "`lots`"]),
        ("b,1000,1024", &["line 3", "`gpu`", "no such column"]),
        ("a,1000,1024,1,T4", &["line 3", "`sn`", "`a`", "line 2"]),
        (",1000,1024,1,T4", &["line 3", "`sn`", "empty"]),
    ];
    for (row, parts) in cases {
        assert_names(&nodes_error(&format!("a,1000,1024,0,\n{row}\n")), parts);
    }
}

#[test]
fn broken_files_are_named() {
    let error = openb::read_nodes(&b"sn,cpu_milli,gpu\nn,1,0\n"[..], "nodes.csv").unwrap_err().to_string();
    assert_names(&error, &["nodes.csv: line 1", "`memory_mib`", "sn, cpu_milli, memory_mib, gpu"]);
    let error = openb::read_pods(&b""[..], "pods.csv").unwrap_err().to_string();
    assert_names(&error, &["pods.csv: line 1", "`name`"]);
    let error =
        openb::read_nodes(&b"sn,cpu_milli,memory_mib,gpu\nn\xff,1,1,0\n"[..], "nodes.csv").unwrap_err();
    assert_names(&error.to_string(), &["nodes.csv: line 2", "UTF-8"]);
    let error = openb::read("no/such/nodes.csv".as_ref(), "no/such/pods.csv".as_ref()).unwrap_err();
    assert_names(&error.to_string(), &["no/such/nodes.csv"]);
}

#[test]
fn rows_become_demands_in_file_order() {
    let rows = "x,1500,10,1,810,T4|P100,,,,,\ny,0,0,0,0,,,,,,\nz,1,1,1,1000,,,,,,\nw,1,1,8,1000,,,,,,\n";
    let pods = openb::read_pods(format!("{POD_HEADER}\n{rows}").as_bytes(), "pods.csv").unwrap();
    let gpus: Vec<_> = pods.iter().map(|pod| pod.demand.gpu).collect();
    let expected = [GpuRequest::Fraction(8100), GpuRequest::None, GpuRequest::Whole(1), GpuRequest::Whole(8)];
    assert_eq!(gpus, expected);
    assert_eq!(pods[0].demand.cpu, Amount::from_milli(1500));
    assert_eq!(pods[0].demand.memory, Amount::whole(10));
    assert!(pods[0].selector.is_some() && pods[1].selector.is_none());
    // Only the first five columns are required, in any order, and others are ignored.
    let short = "gpu_milli,extra,name,num_gpu,memory_mib,cpu_milli\n500,?,x,1,2,3\n";
    let pods = openb::read_pods(short.as_bytes(), "pods.csv").unwrap();
    assert_eq!((pods[0].demand.cpu, pods[0].demand.memory), (Amount::from_milli(3), Amount::whole(2)));
}

fn trace(rows: &str) -> Trace {
    let nodes = format!("{NODE_HEADER}\nn,4000,4096,1,T4\n");
    Trace {
        nodes: openb::read_nodes(nodes.as_bytes(), "nodes.csv").unwrap(),
        pods: openb::read_pods(format!("{POD_HEADER}\n{rows}").as_bytes(), "pods.csv").unwrap(),
        pods_source: "pods.csv".to_owned(),
    }
}

#[test]
fn departures_come_before_arrivals_of_the_same_time() {
    let trace = trace(
        "late,1,1,1,1000,,,,20,30,\nfirst,1,1,1,1000,,,,0,20,\nsecond,1,1,1,1000,,,,20,40,\nat_once,1,1,0,0,,,,20,20,\n",
    );
    let found: Vec<_> =
        events(&trace, true).unwrap().iter().map(|e| (e.at.0 / 1_000_000_000, e.happening, e.pod)).collect();
    use Happening::{Arrival, Departure, DepartureAtOnce};
    let expected = [
        (0, Arrival, 1),
        (20, Departure, 1),
        (20, Arrival, 0),
        (20, Arrival, 2),
        (20, Arrival, 3),
        (20, DepartureAtOnce, 3),
        (30, Departure, 0),
        (40, Departure, 2),
    ];
    assert_eq!(found, expected);
    // Without departures: file order, no pod leaves, and times are not read.
    let staying = events(&trace, false).unwrap();
    assert!(staying.iter().map(|e| (e.at, e.pod)).eq((0..4).map(|pod| (Time(0), pod))));
    // `late` takes the GPU that `first` gave back. `second` finds it taken, so its departure has no effect.
    let options = ReplayOptions { departures: true, ..ReplayOptions::default() };
    let report = replay_in_process(&trace, &options, &mut Silent).unwrap().report;
    assert_eq!((report.placed, report.unplaced_no_fit_now, report.gpu_allocated_milli), (3, 1, 0));
    assert_eq!(report.gpu_peak_milli, 1000);
}

#[test]
fn departures_need_times_and_staying_does_not() {
    let trace = trace("a,1,1,0,0,,,,0,9,\nb,1,1,0,0,,,,5,,\n");
    assert!(replay_in_process(&trace, &ReplayOptions::default(), &mut Silent).is_ok());
    let options = ReplayOptions { departures: true, ..ReplayOptions::default() };
    let error = replay_in_process(&trace, &options, &mut Silent).unwrap_err().to_string();
    assert_names(&error, &["pods.csv: line 3", "`deletion_time`", "missing", "without departures"]);
}

#[test]
fn options_that_cannot_be_are_refused() {
    let trace = trace("a,1,1,0,0\n");
    let refused = |options: ReplayOptions| replay_in_process(&trace, &options, &mut Silent).unwrap_err();
    for in_flight in [0, PORT_IN_FLIGHT_MAX + 1] {
        let error = refused(ReplayOptions { in_flight, ..ReplayOptions::default() });
        assert!(
            matches!(error, ReplayError::InFlight { given, most: PORT_IN_FLIGHT_MAX } if given == in_flight)
        );
        assert_names(&error.to_string(), &["in flight", "give 1 to 3584"]);
    }
    for shards in [0, 257] {
        let error = refused(ReplayOptions { shards, ..ReplayOptions::default() });
        assert_names(&error.to_string(), &["shards", "give 1 to 256"]);
    }
}

#[test]
fn a_cluster_that_can_never_hold_a_pod_says_infeasible() {
    let trace = trace("a,1,1,2,1000\nb,1,1,1,500,V100\nc,1,1,1,500,T4\nd,4000,1,0,0\n");
    for shards in [1, 2] {
        let options = ReplayOptions { shards, in_flight: 1, ..ReplayOptions::default() };
        let report = replay_in_process(&trace, &options, &mut Silent).unwrap().report;
        assert_eq!((report.placed, report.unplaced_infeasible, report.unplaced_no_fit_now), (1, 2, 1));
    }
}
