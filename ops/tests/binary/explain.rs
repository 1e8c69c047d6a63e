//! Explanations of pending jobs with the real binary: in words, as JSON, and what is said to help.

use serde_json::{Value, json};

use crate::harness::{PATIENCE, Service, Site};

const WORK: &str = "
queues:
- {name: small, capability: {cpu: 2}}
- {name: wide}
- {name: few, allocations_max: 1}
jobs:
- {name: runs, queue: small, min_member: 1, tasks: [{name: r, cpu: 2}]}
- {name: capped, queue: small, min_member: 1, tasks: [{name: c, cpu: 2}]}
- {name: large, queue: wide, min_member: 1, tasks: [{name: l, cpu: 9}]}
- {name: many, queue: few, min_member: 1, tasks: [{name: m, count: 2, memory: 1MiB}]}
";

/// The settings of cycles in which nodes and caps decide alone.
const SETTINGS: &str = "
[jobs]
actions = [\"enqueue\", \"allocate\", \"backfill\"]
tiers = [[\"priority\", \"gang\"]]
";

/// Asks for an explanation until its reason is as wanted.
fn until(service: &Service, of: &str, pending: &str) -> Value {
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        let told = service.json(&["explain", of]);
        if told["pending"] == pending {
            return told;
        }
        assert!(std::time::Instant::now() < end, "{told}");
    }
}

#[test]
fn jobs_that_wait_are_explained_and_what_is_said_to_help_does() {
    let site = Site::new();
    let settings = site.write("wharf.toml", SETTINGS);
    let service = site.serve(&["--config", &settings]);
    service.run(&["node", "add", "n1", "--cpu", "8", "--memory", "16GiB"]).with(0);
    let work = site.write("work.yaml", WORK);
    service.run(&["queue", "set", &work]).with(0);
    service.run(&["job", "submit", &work]).with(0);
    until(&service, "j1", "none");
    let capped = until(&service, "j2", "cap");
    assert_eq!(capped["bounds"][0]["queue"], "small");
    assert_eq!(capped["bounds"][0]["holders"], json!([{ "name": "runs", "job": "j1", "amount": "2" }]));
    assert_eq!(capped["changes"][0]["change"], "raise_cap");
    let words = [
        "job j2: the cap of a queue is in the way (cap)",
        "0 of 1 waiting jobs of queue small are served before it",
        "queue small may use at most 2 cpu: 2 are in use, 2 are asked for",
        "most of it: job j1 (runs) 2",
        "capability of queue small raised by cpu 2",
        "or cpu 2 given back by tasks of queue small",
    ];
    service.run(&["explain", "j2"]).with(0).says(&words);
    let large = until(&service, "j3/0", "no_node");
    assert_eq!((&large["task"], &large["checks"][0]["resource"]), (&json!("j3/0"), &json!("cpu")));
    let words = [
        "task j3/0: no node has room for it (no_node)",
        "insufficient cpu, the best by 3",
        "this would help:",
    ];
    service.run(&["explain", "j3/0"]).with(0).says(&words);
    service.run(&["explain", "j3"]).with(0).says(&["1 node for it with at least cpu 9 each"]);
    service.run(&["explain", "j1/0"]).with(0).says(&["task j1/0: does not wait for anything (none)"]);
    service.run(&["explain", "j9"]).with(1).says(&["unknown_job"]);
    service.run(&["explain", "j3/7"]).with(1).says(&["no task 7"]);
    service.run(&["explain", "3"]).with(2);
    let many = until(&service, "j4", "cap");
    assert_eq!(
        (&many["bounds"][0]["rule"], &many["bounds"][0]["used"]),
        (&json!("allocations"), &json!("1"))
    );
    let words = [
        "queue few may have at most 1 allocations (`allocations_max`): 1 are in use, 1 are asked for",
        "`allocations_max` of queue few raised by 1",
    ];
    service.run(&["explain", "j4"]).with(0).says(&words);
    // What is said to help does help.
    let raised = site.write("raised.yaml", "queues:\n- {name: small, capability: {cpu: 4}}\n");
    service.run(&["queue", "set", &raised]).with(0);
    service.run(&["node", "add", "n2", "--cpu", "9", "--memory", "16GiB"]).with(0);
    until(&service, "j2", "none");
    until(&service, "j3", "none");
    service.stop();
}

/// A tier that the settings lost between two starts is named as that, and not as one without room.
#[test]
fn a_tier_that_is_gone_from_the_settings_is_told() {
    let site = Site::new();
    let tier = "topology = [{ tier = \"rack\", label = \"rack\" }]\n";
    let settings = site.write("wharf.toml", &format!("{SETTINGS}{tier}"));
    let service = site.serve(&["--config", &settings]);
    let job =
        "{name: j, queue: q, min_member: 1, topology: {mode: hard, tier: rack}, tasks: [{name: t, cpu: 1}]}";
    let work = site.write("work.yaml", &format!("queues: [{{name: q}}]\njobs:\n- {job}\n"));
    service.run(&["queue", "set", &work]).with(0);
    service.run(&["job", "submit", &work]).with(0);
    service.stop();
    site.write("wharf.toml", SETTINGS);
    let service = site.serve(&["--config", &settings]);
    service.run(&["node", "add", "n1", "--cpu", "8", "--memory", "16GiB", "--label", "rack=r1"]).with(0);
    let told = until(&service, "j1", "topology");
    assert_eq!(
        (&told["domain"]["tier"], &told["domain"]["missing"]),
        (&json!("rack"), &json!(true)),
        "{told}"
    );
    service.run(&["explain", "j1"]).with(0).says(&["the settings have no tier rack any longer"]);
    service.stop();
}
