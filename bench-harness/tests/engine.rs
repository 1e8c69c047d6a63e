//! `wharf-bench engine`: every row runs and reports its fields, the scan makes the same choices as the
//! engine, and the cluster is as full as the row says.

use std::process::Command;

use serde_json::Value;
use wharf_bench::engine::driver::{EngineDriver, Singles};
use wharf_bench::engine::floor_driver::FloorDriver;
use wharf_bench::engine::rows::{ROWS, Target};
use wharf_bench::engine::scan::ScanDriver;
use wharf_bench::engine::scenario::Kind;
use wharf_bench::engine::shapes::Shapes;
use wharf_core::request::Policy;

const FIELDS: [&str; 12] = [
    "name",
    "policy",
    "nodes",
    "ns_per_op",
    "floor_ns_per_op",
    "ratio_to_floor",
    "scan_ns_per_op",
    "ratio_to_scan",
    "p99_ns",
    "visited_max",
    "bytes_per_node",
    "bytes_per_allocation",
];

fn engine(arguments: &[&str]) -> (bool, String, String) {
    let (status, output, errors) = engine_status(arguments);
    (status == Some(0), output, errors)
}

fn engine_status(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_wharf-bench")).arg("engine").args(arguments).output();
    let output = output.expect("the binary starts");
    let text = |bytes| String::from_utf8(bytes).expect("output is text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn every_row_runs_and_has_its_fields() {
    let names = ROWS.map(|row| row.name).join(",");
    let (done, output, errors) = engine(&["--rows", &names, "--nodes", "150", "--ops", "60", "--json"]);
    assert!(done, "{errors}");
    let rows: Vec<Value> = serde_json::from_str(&output).expect("a JSON array");
    for row in &rows {
        for field in FIELDS {
            assert!(!row[field].is_null(), "{field} of {row}");
        }
        assert_eq!(row["nodes"], 150, "{row}");
        for positive in ["ns_per_op", "floor_ns_per_op", "visited_max", "bytes_per_node"] {
            assert!(row[positive].as_f64().expect("a number") > 0.0, "{positive} of {row}");
        }
        let has_touch =
            ["steady", "full-99.5", "all-different"].contains(&row["name"].as_str().expect("a name"));
        for touch in ["touch_ns_per_op", "touch_chain_ns_per_op"] {
            assert_eq!(row[touch].as_f64().is_some_and(|ns| ns > 0.0), has_touch, "{touch} of {row}");
        }
        let held = |list: &str| row[list].as_array().expect("a list").clone();
        let about = |list: &str, what: &str| {
            held(list).iter().any(|target| target["what"].as_str().is_some_and(|text| text.starts_with(what)))
        };
        // With few nodes, tables of fixed size dominate the memory.
        assert!(about("not_judged", "bytes per node") && !about("targets", "bytes per node"), "{row}");
        let half = row["name"] == "candidates-half";
        assert!(half == about("not_judged", "visits"), "{row}");
        assert!(half || !held("targets").is_empty(), "{row}");
        let is_met = held("targets").iter().all(|target| target["met"] == true);
        assert_eq!(row["missed_targets"].is_null(), is_met, "{row}");
    }
    for spec in ROWS {
        for policy in spec.policies.iter().filter(|policy| policy.parse::<Policy>().is_ok()) {
            let found = |row: &&Value| row["name"] == spec.name && row["policy"] == *policy;
            assert_eq!(rows.iter().filter(found).count(), 1, "{} with {policy}", spec.name);
        }
    }
}

#[test]
fn nodes_and_policy_run_one_row_and_the_table_says_what_is_met() {
    let (done, output, errors) = engine(&["--nodes", "120", "--policy", "least-fit", "--ops", "40"]);
    assert!(done, "{errors}");
    assert_eq!(output.lines().filter(|line| line.starts_with("steady")).count(), 1, "{output}");
    assert!(output.contains("request shapes: ") && output.contains("of 1 rows meet"), "{output}");
    assert!(output.contains("allocation records") && output.contains("per node"), "{output}");
}

#[test]
fn wrong_arguments_are_refused_with_the_remedy() {
    for (arguments, named, status) in [
        (["--rows", "stedy"], "candidates-half", 2),
        (["--policy", "best"], "best-fit", 2),
        (["--nodes", "0"], "--nodes", 2),
        (["--seconds", "0"], "positive", 2),
        (["--shapes", "absent.csv"], "absent.csv", 1),
    ] {
        let (ended, _, errors) = engine_status(&arguments);
        assert!(ended == Some(status) && errors.contains(named), "{arguments:?}: {errors}");
    }
}

/// Returns the kinds of all rows.
fn kinds() -> impl Iterator<Item = (&'static str, Kind)> {
    ROWS.into_iter().map(|row| (row.name, row.kind))
}

#[test]
fn the_scan_chooses_as_the_engine_does() {
    let shapes = Shapes::synthetic(3);
    let policies = [Policy::LeastFit, Policy::BestFit, Policy::FirstFit, Policy::NextFit];
    for ((name, kind), policy) in kinds().flat_map(|kind| policies.map(|policy| (kind, policy))) {
        let scenario = kind.scenario(230, policy, &shapes, 9);
        let mut engine = EngineDriver::new(&scenario, 9);
        let mut scan = ScanDriver::new(&scenario, &engine, 9);
        let mut placed = 0;
        for op in 0..400 {
            let (released, request, given) = engine.decide();
            scan.release(&released);
            let given = given.map(|live| (live.node, live.gpus));
            assert_eq!(scan.place(request), given, "{name}, {policy}, op {op}");
            placed += u32::from(given.is_some());
            // Placements that replace refused ones are compared too.
            let before = engine.live().len();
            engine.top_up();
            for live in engine.live().range(before..) {
                let given = Some((live.node, live.gpus));
                assert_eq!(scan.place(live.request), given, "{name}, {policy}, after op {op}");
            }
        }
        assert!(placed > 60, "{name}, {policy}: {placed} of 400 placed compare too little");
        engine.shard().check_invariants().unwrap_or_else(|broken| panic!("{name}, {policy}: {broken}"));
    }
}

#[test]
fn clusters_are_as_full_as_rows_say() {
    let shapes = Shapes::synthetic(5);
    let rows = [(Kind::Steady, 8500, 8700), (Kind::AllEqual, 8500, 8700), (Kind::Full, 9950, 9980)];
    for ((kind, low, high), policy) in
        rows.into_iter().flat_map(|row| Policy::ALL.map(|policy| (row, policy)))
    {
        let scenario = kind.scenario(400, policy, &shapes, 1);
        let mut engine = EngineDriver::new(&scenario, 1);
        let full = low..=high;
        assert!(full.contains(&engine.utilisation()), "{kind:?}, {policy}: {}", engine.utilisation());
        engine.run(1500);
        engine.run_singly(200, &mut Singles::default());
        assert!(full.contains(&engine.utilisation()), "{kind:?}, {policy}: {}", engine.utilisation());
        // Between batches the utilisation may drop, but by no more than one batch releases.
        let mean = engine.utilisation_mean();
        assert!((low - 200..=high).contains(&mean), "{kind:?}, {policy}: {mean} in the mean");
        // The shard's own books agree.
        let load = engine.facts().load;
        let shares = load.map(|(capacity, allocated)| allocated * 10_000 / capacity.max(1));
        let most = shares.into_iter().max().expect("three resources");
        assert_eq!(most, i128::from(engine.utilisation()), "{kind:?}, {policy}");
        let half = scenario.nodes.iter().filter(|node| node.gpus == 8).count();
        assert!(kind == Kind::AllEqual || half == 200, "{half} of 400 nodes have eight GPUs");
    }
}

/// No policy degrades to a scan on the unkind rows: the maximum and mean visits of a request stay well below
/// the number of nodes. The row `LastByLess` has no such bound, because an index cannot tell nodes that lack
/// less than a step of their coordinate from nodes that fit.
#[test]
fn unkind_inputs_are_not_scanned() {
    const NODES: u32 = 1200;
    let shapes = Shapes::synthetic(4);
    let unkind = ROWS.into_iter().filter(|row| row.target == Target::Unkind && row.kind != Kind::LastByLess);
    for row in unkind {
        for policy in Policy::PATENT {
            assert!(row.policies.contains(&policy.name()), "{} leaves {policy} out", row.name);
            let scenario = row.kind.scenario(NODES, policy, &shapes, 1);
            let mut engine = EngineDriver::new(&scenario, 1);
            engine.run(200);
            let mut singles = Singles::default();
            engine.run_singly(400, &mut singles);
            let most = singles.visited_max;
            let mean = singles.visited / 400;
            println!("{}, {policy}: {most} at most, {mean} in the mean", row.name);
            let nodes = u64::from(NODES);
            assert!(most <= nodes / 2 && mean <= nodes / 8, "{}, {policy}: {most}, {mean}", row.name);
        }
    }
}

#[test]
fn one_request_in_ten_carries_a_selector() {
    let scenario = Kind::Steady.scenario(100, Policy::BestFit, &Shapes::synthetic(5), 1);
    let constrained = scenario.requests.iter().filter(|request| request.selector.is_some()).count();
    let percent = constrained * 100 / scenario.requests.len();
    assert!((8..=12).contains(&percent), "{percent} %");
}

#[test]
fn the_books_of_the_floor_are_right() {
    let shapes = Shapes::synthetic(7);
    for policy in [Policy::LeastFit, Policy::BestFit] {
        let scenario = Kind::Steady.scenario(500, policy, &shapes, 2);
        let mut floor = FloorDriver::new(&scenario, policy, 2);
        for _ in 0..20 {
            let (ops, _) = floor.run(400);
            assert_eq!(ops, 400);
            floor.check().unwrap_or_else(|broken| panic!("{policy}: {broken}"));
            let utilisation = floor.utilisation();
            assert!((8500..8700).contains(&utilisation), "{policy}: {utilisation}");
        }
        assert_eq!(floor.run_singly(50).len(), 50);
        floor.check().unwrap_or_else(|broken| panic!("{policy}: {broken}"));
    }
}
