//! Priority classes with the real binary: from files to jobs, over a kill, a stop and an export.

use serde_json::{Value, json};

use crate::harness::{Service, Site};

const CLASSES: &str = "
priority_classes:
  high: 1000
  usual: {value: 10, default: true, preempts: false, description: for most jobs}
  spare: -5
";

/// The class `local` is of this file only, and `high` is that of the service.
const WORK: &str = "
queues: [{name: q}]
priority_classes: {local: 77}
jobs:
- {name: first, queue: q, priority: high, tasks: [{name: t, cpu: 1}]}
- {name: second, queue: q, tasks: [{name: t, cpu: 1, priority: spare}]}
- {name: third, queue: q, priority: local, tasks: [{name: t, cpu: 1}]}
- {name: fourth, queue: q, priority: 3, tasks: [{name: t, cpu: 1}]}
";

/// Returns the priorities and classes of all jobs.
fn priorities(service: &Service) -> Vec<(Value, Value)> {
    let jobs = service.json(&["job", "list"]);
    let of = |job: &Value| (job["priority"].clone(), job["priority_class"].clone());
    jobs.as_array().expect("a list").iter().map(of).collect()
}

fn expected() -> Vec<(Value, Value)> {
    vec![
        (json!(1000), json!("high")),
        (json!(10), json!("usual")),
        (json!(77), Value::Null),
        (json!(3), Value::Null),
    ]
}

#[test]
fn classes_are_set_used_and_removed_and_survive_what_a_service_survives() {
    let site = Site::new();
    let service = site.serve(&[]);
    let classes = site.write("classes.yaml", CLASSES);
    let work = site.write("work.yaml", WORK);
    site.run(&["check", &classes]).with(0).says(&["3 priority classes, 0 queues and 0 jobs are right"]);
    site.run(&["check", &work]).with(0).says(&["1 priority classes, 1 queues and 4 jobs are right"]);
    service.run(&["queue", "set", &work]).with(0);
    let refused = service.run(&["job", "submit", &work]).with(1);
    refused.says(&["line 5", "job `first` names priority class `high`, which does not exist"]);
    service.run(&["job", "cancel", "j1", "j2"]).with(0);
    let set = ["priority class high: set", "priority class spare: set", "priority class usual: set"];
    service.run(&["priority-class", "set", &classes]).with(0).says(&set);
    let of_jobs = WORK.replace("name: ", "name: x-");
    let again = site.write("again.yaml", &of_jobs.replace("queues: [{name: x-q}]\n", ""));
    service.run(&["job", "submit", &again]).with(0);
    let all = priorities(&service);
    assert_eq!(all[all.len() - 4..], expected());
    let id = service.json(&["job", "list"])[all.len() - 4]["job"].clone();
    let id = id.as_str().expect("an id").to_owned();
    service.run(&["job", "status", &id]).with(0).says(&["priority 1000 (high)"]);

    let listed = json!([
        { "priority_class": "high", "value": 1000, "default": false, "preempts": true, "description": null },
        { "priority_class": "spare", "value": -5, "default": false, "preempts": true, "description": null },
        { "priority_class": "usual", "value": 10, "default": true, "preempts": false,
          "description": "for most jobs" },
    ]);
    assert_eq!(service.json(&["priority-class", "list"]), listed);
    let text = ["CLASS", "usual", "default", "for most jobs"];
    service.run(&["priority-class", "list"]).with(0).says(&text);
    service.kill();
    let service = site.serve(&[]);
    assert_eq!(
        (service.json(&["priority-class", "list"]), priorities(&service)),
        (listed.clone(), all.clone())
    );
    service.stop();
    let service = site.serve(&["--shards", "2"]);
    assert_eq!((service.json(&["priority-class", "list"]), priorities(&service)), (listed, all.clone()));

    // What is done to a class changes no job.
    let changed =
        site.write("changed.yaml", "priority_classes: {high: 5, other: {value: 1, default: true}}\n");
    let refused = service.run(&["priority-class", "set", &changed]).with(1);
    refused.says(&["priority class high: set", "line 1: priority class other", "`usual` is it"]);
    service
        .run(&["priority-class", "remove", "usual", "no"])
        .with(1)
        .says(&["priority class usual: removed", "there is no priority class `no`"]);
    assert_eq!(priorities(&service), all);
    service.kill();
    let service = site.serve(&[]);
    let left = service.json(&["priority-class", "list"]);
    let left: Vec<_> = left.as_array().expect("a list").iter().map(|class| &class["value"]).collect();
    assert_eq!(left, [5, -5]);
    let events = service.run(&["events", "--json"]).with(0).out;
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object"));
    let told: Vec<String> = events
        .filter(|event| event["priority_class"].is_string())
        .map(|event| format!("{} {}", event["event"], event["priority_class"]).replace('"', ""))
        .collect();
    let set = ["high", "spare", "usual", "high"].map(|name| format!("priority_class {name}"));
    assert_eq!(told, [&set[..], &["priority_class_removed usual".to_owned()]].concat());
    service.stop();

    let file = site.path("store.export");
    let file = file.to_str().expect("a text");
    site.run(&["journal", "export", file, "--data-dir", &site.data_dir()]).with(0);
    let other = Site::new();
    other.run(&["journal", "import", file, "--data-dir", &other.data_dir()]).with(0);
    let service = other.serve(&[]);
    let imported = service.json(&["priority-class", "list"]);
    assert_eq!((&imported[0]["value"], &imported[1]["value"]), (&json!(5), &json!(-5)));
    assert_eq!(priorities(&service), all);
    service.stop();
}

#[test]
fn wrong_classes_are_refused_with_their_line_and_nothing_is_sent() {
    let site = Site::new();
    let service = site.serve(&[]);
    let wrong = site.write("wrong.yaml", "priority_classes:\n  a: 1\n  b: {value: 2, global: true}\n");
    service.run(&["priority-class", "set", &wrong]).with(3).says(&["wrong.yaml", "line 3", "global"]);
    let none = site.write("none.yaml", "queues: [{name: q}]\n");
    service.run(&["priority-class", "set", &none]).with(3).says(&["it has no priority_classes"]);
    assert_eq!(service.json(&["priority-class", "list"]), json!([]));
    service.stop();
}
