//! `wharf plan` with the real binary: for a service, and for a file.

use serde_json::json;

use crate::harness::Site;

const TYPES: &str = "
autoscaling:
  node_types:
  - {name: small, cpu: 4, memory: 8GiB, max: 3}
  - {name: gpu, cpu: 4, gpu: 2, max: 1}
";

const WORK: &str = "
queues: [{name: q}]
jobs:
- {name: much, queue: q, tasks: [{name: m, cpu: 2, count: 5}]}
- {name: large, queue: q, tasks: [{name: l, cpu: 99}]}
";

#[test]
fn a_plan_is_the_same_for_a_service_and_for_a_file() {
    let site = Site::new();
    let service = site.serve(&[]);
    let work = site.write("work.yaml", WORK);
    service.run(&["queue", "set", &work]).with(0);
    service.run(&["job", "submit", &work]).with(0);
    let types = site.write("types.yaml", TYPES);
    let made = service.json(&["plan", &types]);
    assert_eq!(
        made["types"][0],
        json!({"type": "small", "present": 0, "launching": 0, "needed": 3, "launch": 1, "cancel": 0})
    );
    assert_eq!((&made["fit_needed"], &made["types"][1]["needed"]), (&json!(5), &json!(0)));
    assert_eq!(made["unplaced"][0]["reason"], "never");
    assert_eq!((&made["starts"][0]["name"], &made["waiting"][0]["name"]), (&json!("much"), &json!("large")));
    let text = service.run(&["plan", &types]);
    text.with(0).says(&[
        "LAUNCH NOW",
        "no node for 1 of job j2 (large): no type",
        "job j2 (large) does not start",
    ]);
    let whole = site.write("whole.yaml", &format!("{TYPES}{WORK}"));
    let offline = service.json(&["plan", "--offline", &whole]);
    assert_eq!(offline, made);
    service.run(&["plan", &whole]).with(3).says(&["give --offline"]);
    let wrong = site.write("wrong.yaml", &TYPES.replace("max: 3", "min: 4, max: 3"));
    service.run(&["plan", &wrong]).with(1).says(&["at least 4 nodes and at most 3"]);
    service
        .run(&["plan", "--offline", &wrong])
        .with(3)
        .says(&["wrong.yaml", "at least 4 nodes and at most 3"]);
    service.stop();
}
