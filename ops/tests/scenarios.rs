//! The scenarios of the repository: the cases of others that Wharfinger is held against.

#[path = "harness/command.rs"]
mod command;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use wharf_ops::scenario::{Scenario, read};

/// Returns all scenarios of the repository with their files.
fn scenarios() -> Vec<(PathBuf, Scenario)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let mut all = Vec::new();
    let folders = [
        "autoscaling",
        "backfill",
        "caps",
        "explain",
        "gangs",
        "policies",
        "topology",
        "usage",
        "volcano",
        "yarn",
    ];
    for folder in folders {
        let mut files: Vec<PathBuf> = std::fs::read_dir(root.join(folder))
            .expect("the scenarios are part of the repository")
            .map(|entry| entry.expect("a file").path())
            .collect();
        files.sort();
        for file in files {
            let text = std::fs::read_to_string(&file).expect("a file of scenarios");
            let read = read(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            all.extend(read.into_iter().map(|scenario| (file.clone(), scenario)));
        }
    }
    all
}

#[test]
fn every_scenario_leads_to_what_it_expects() {
    let mut faults = Vec::new();
    for (file, scenario) in scenarios() {
        let name = format!("{}: {}", file.display(), scenario.name());
        match scenario.run() {
            Ok(outcome) => faults.extend(outcome.differences.iter().map(|what| format!("{name}: {what}"))),
            Err(error) => faults.push(format!("{name}: {error}")),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_scenario_names_the_case_that_it_follows() {
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for (file, scenario) in scenarios() {
        assert!(scenario.follows().is_some(), "{}: {}: it follows nothing", file.display(), scenario.name());
        *names.entry(scenario.name().to_owned()).or_default() += 1;
    }
    assert!(names.len() >= 150, "{} scenarios are there", names.len());
    let twice: Vec<&String> = names.iter().filter(|&(_, &count)| count > 1).map(|(name, _)| name).collect();
    assert!(twice.is_empty(), "two scenarios have the same name: {twice:?}");
}

/// A scenario that is run twice does the same: nothing depends on addresses or on time.
#[test]
fn a_scenario_is_deterministic() {
    for (file, scenario) in scenarios().into_iter().step_by(7) {
        assert_eq!(scenario.run(), scenario.run(), "{}: {}", file.display(), scenario.name());
    }
}

/// Runs the binary. Returns its exit status and what it printed.
fn wharf(args: &[&str]) -> (Option<i32>, String) {
    let output = command::wharf().args(args).output().expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn the_command_says_what_differs_and_where_a_fault_is() {
    let folder = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("a name").to_owned()
    };
    let right = "name: right\nnodes: [{name: n, cpu: 1}]\nsteps: [{cycle: 1, expect: {bound_count: 0}}]\n";
    let wrong = right.replace("right", "wrong").replace("bound_count: 0", "bound_count: 1");
    let right = write("a.yaml", right);
    let wrong = write("b.yaml", &wrong);
    let broken = write("c.yml", "name: broken\nqueues: [{name: q, weight: 0}]\nsteps: []\n");

    let (status, text) = wharf(&["scenario", "run", &right]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("1 scenarios, 1 as expected, 0 different, 1 checks"), "{text}");
    let (status, text) = wharf(&["scenario", "run", &right, &wrong, "--quiet"]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("step 1: 0 bound, 1 expected") && !text.contains("right\n"), "{text}");
    let (status, text) = wharf(&["scenario", "run", &wrong, "--json"]);
    let row: serde_json::Value = serde_json::from_str(text.trim()).expect("one object per scenario");
    assert_eq!((status, &row["as_expected"], &row["checks"]), (Some(1), &false.into(), &1.into()));
    for command in [&["scenario", "run"][..], &["check"]] {
        let (status, text) = wharf(&[command, &[broken.as_str()]].concat());
        assert_eq!(status, Some(3), "{text}");
        assert!(text.contains("c.yml: scenario `broken`: line 2: queue `q` has weight 0"), "{text}");
    }
    let (status, text) = wharf(&["check", &right, &wrong]);
    assert_eq!((status, text.lines().count()), (Some(0), 2), "{text}");
    assert!(text.contains("a.yaml: 1 scenarios: settings, queues and jobs are right"), "{text}");
    let (status, text) = wharf(&["check", folder.path().to_str().expect("a name")]);
    assert_eq!(status, Some(3), "a directory is read as a whole: {text}");
    // A plan of nodes, for a service and without one.
    let types =
        "autoscaling: {node_types: [{name: small, cpu: 8, max: 10}]}\nplan: {launching: {small: 1}}\n";
    let asks = write("asks.yaml", &types.replace("}}", "}, idle: {there: 1m}}"));
    let offline =
        write("offline.yaml", &format!("{types}nodes: [{{name: n, cpu: 8}}]\nqueues: [{{name: q}}]\n"));
    let (status, text) = wharf(&["check", &asks, &offline]);
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(text.matches("a plan of nodes of 1 types is right").count(), 2, "{text}");
    for (from, to, part) in [
        ("{small: 1}", "{large: 1}", "there is no node type `large`"),
        ("max: 10", "max: 10, min: 11", "small"),
        ("queues: [{name: q}]", "queues: [{name: q, weight: 0}]", "line 4: queue `q` has weight 0"),
        ("plan: {", "plan: {idle: {there: 1m}, ", "there is no node `there`"),
        ("autoscaling:", "# autoscaling:", "autoscaling"),
    ] {
        let text = std::fs::read_to_string(&offline).expect("it was written").replace(from, to);
        let (status, text) = wharf(&["check", &write("wrong-plan.yaml", &text)]);
        assert!(status == Some(3) && text.contains(part), "{text}");
    }
    // What queues say and the rules do not use is told, and is no fault.
    let queues = write("queues.yaml", "queues:\n- {name: q, ordering: fifo, deserved: {cpu: 1}}\n");
    let settings = write("wharf.toml", "[jobs]\ntiers = [[\"gang\", \"capacity\"]]\n");
    let warning = "queues.yaml: line 2: warning: `ordering` of queue `q` is not used by the rules of this service: \
                   name plugin `fair-share`";
    let (status, text) = wharf(&["check", &queues]);
    assert_eq!((status, text.lines().count()), (Some(0), 1), "{text}");
    let (status, text) = wharf(&["check", &queues, &settings]);
    assert_eq!((status, text.lines().count()), (Some(0), 3), "{text}");
    assert!(text.contains(warning), "{text}");
    let scenario = format!("name: s\nsteps: []\n{}", std::fs::read_to_string(&queues).expect("a file"));
    let (status, text) = wharf(&["check", &write("unused.yaml", &scenario)]);
    assert_eq!((status, text.matches("warning").count()), (Some(0), 2), "{text}");
    let nothing = folder.path().join("nothing");
    std::fs::create_dir(&nothing).expect("a directory");
    let (status, text) = wharf(&["scenario", "run", nothing.to_str().expect("a name")]);
    assert_eq!(status, Some(3));
    assert!(text.contains("no file that ends in .yaml"), "{text}");
}
