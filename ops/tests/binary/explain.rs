//! Explanations of pending jobs with the real binary: in words, as JSON, and what is said to help.

use std::sync::mpsc;

use serde_json::{Value, json};
use wharf_core::ids::SessionId;
use wharf_net::client::{Client, ClientConfig};
use wharf_net::protocol::{DemandBody, MODE_WAIT_UNTIL, PlaceRequest, kinds};

use crate::harness::{PATIENCE, Service, Site, runtime, within};

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
    assert_eq!(
        capped["bounds"][0]["holders"],
        json!([{ "name": "runs", "job": "j1", "group": null, "amount": "2" }])
    );
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

/// A job that must be in one rack is told the nearest one and what it lacks there. That helps.
#[test]
fn a_job_without_a_domain_is_told_what_would_help() {
    let site = Site::new();
    let tier = "topology = [{ tier = \"rack\", label = \"rack\" }]\n";
    let settings = site.write("wharf.toml", &format!("{SETTINGS}{tier}"));
    let service = site.serve(&["--config", &settings]);
    let node = |name: &str, rack: &str, cpu: &str| {
        let label = format!("rack={rack}");
        let add = ["node", "add", name, "--cpu", cpu, "--memory", "16GiB", "--label", &label];
        service.run(&add).with(0);
    };
    node("n1", "r1", "8");
    let runs = "{name: runs, queue: q, min_member: 3, tasks: [{name: r, count: 3, cpu: 2}]}";
    let job = "{name: j, queue: q, min_member: 3, topology: {mode: hard, tier: rack}, \
               tasks: [{name: t, count: 3, cpu: 2}]}";
    let work = site.write("work.yaml", &format!("queues: [{{name: q}}]\njobs:\n- {runs}\n- {job}\n"));
    service.run(&["queue", "set", &work]).with(0);
    service.run(&["job", "submit", &work]).with(0);
    until(&service, "j1", "none");
    node("n2", "r2", "1");
    let told = until(&service, "j2", "topology");
    let changes: Vec<_> = told["changes"].as_array().into_iter().flatten().collect();
    let names: Vec<_> = changes.iter().map(|of| (&of["change"], &of["count"], &of["domain"])).collect();
    let [two, one, rack] = [json!(2), json!(1), json!("r1")];
    let expected = [(json!("free_in_domain"), &two, &rack), (json!("more_nodes_in_domain"), &one, &rack)];
    assert!(names.into_iter().eq(expected.iter().map(|(name, count, rack)| (name, *count, *rack))), "{told}");
    let words = [
        "no rack has room for all 3 tasks: the best, r1, has room for 1",
        "room for 2 more tasks with cpu 2 each in r1, left by others",
        "or 1 more node like n1 in r1",
    ];
    service.run(&["explain", "j2"]).with(0).says(&words);
    node("n3", "r1", "8");
    until(&service, "j2", "none");
    service.stop();
}

/// Waits for two cores on a connection of its own. Tells the id of the wait, and ends when it is placed.
fn wait_for_cores(config: ClientConfig, tell: mpsc::SyncSender<String>) {
    let asked = async move {
        let client = within(Client::connect(config)).await.expect("the service is there");
        let demand = DemandBody { cpu: 20_000, ..DemandBody::default() };
        let request = PlaceRequest { demand, mode: MODE_WAIT_UNTIL, ..PlaceRequest::default() };
        let (sequence, reply) =
            within(client.call_waiting::<kinds::Place>(&request)).await.expect("it is sent");
        let session = SessionId::from(client.hello().session);
        tell.send(format!("{session}/{sequence}")).expect("somebody asks");
        assert!(within(reply).await.expect("answered").reason.is_done());
        within(client.close()).await;
    };
    runtime().block_on(asked);
}

#[test]
fn placements_and_groups_that_wait_are_explained() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    service.run(&["node", "add", "n1", "--cpu", "4", "--memory", "8GiB"]).with(0);
    let held = service.json(&["place", "--cpu", "3"])["allocation"].as_str().expect("it fits").to_owned();
    let config = service.client_config(&site.development_certificate());
    let (tell, told) = mpsc::sync_channel(1);
    let waiting = std::thread::spawn(move || wait_for_cores(config, tell));
    let id = told.recv_timeout(PATIENCE).expect("it waits");
    service.until(&["status"], |status| status["waiting"] == json!(1));
    // It waits at the shards one after the other.
    service.until(&["explain", &id], |told| told["waiting"] == json!(1));
    let told = service.json(&["explain", &id]);
    assert_eq!((&told["id"], &told["waits_for"], &told["group"]), (&json!(id), &json!("node"), &Value::Null));
    assert_eq!((&told["before"], &told["waiting"], &told["nodes"]), (&json!(0), &json!(1), &json!(1)));
    assert_eq!(told["changes"][0]["change"], "free_on_node");
    let first = format!("placement {id}: no node has room for it (node)");
    let words = [
        first.as_str(),
        "0 of 1 that wait come before it",
        "insufficient cpu, the best by 1",
        "this would help:",
        "cpu 1 more free on node n1",
        "or 1 more node like n1",
    ];
    service.run(&["explain", &id]).with(0).says(&words);
    // A command that waits tells how to ask.
    let create = ["group", "create", "--bundles", "4", "--cpu", "1", "--priority", "2", "--wait", "100s"];
    let mut child = service.begin(&create);
    service.until(&["group", "list"], |groups| groups[0]["state"] == "waiting");
    let group = service.json(&["group", "list"])[0]["group"].as_str().expect("a text").to_owned();
    let told = service.json(&["explain", &group]);
    assert_eq!(
        (&told["waits_for"], &told["fit"], &told["needed"]),
        (&json!("bundles"), &json!(1), &json!(4))
    );
    assert_eq!((&told["before"], &told["group"]["group"]), (&json!(0), &json!(group)));
    let first = format!("group {group}: fewer of its bundles have room than it needs at once (bundles)");
    let nodes = format!("nodes for bundle {group}/0: 1 have room now, for 1 such bundles");
    let words = [
        first.as_str(),
        "1 of the 4 bundles that it needs have a place or fit",
        nodes.as_str(),
        "1 more node like n1",
    ];
    service.run(&["explain", &format!("{group}/0")]).with(0).says(&words);
    service.run(&["explain", &format!("{group}/9")]).with(1).says(&["unknown_bundle"]);
    service.run(&["explain", "g1-99"]).with(1).says(&["unknown_group"]);
    service.run(&["explain", "s9-9/9"]).with(1).says(&["unknown_wait"]);
    service.run(&["explain", "s9"]).with(2);
    child.wait_for_error("`wharf explain GROUP` says why");
    child.signal("INT");
    child.end().with(1).says(&["cancelled"]);
    let mut child = service.begin(&["place", "--cpu", "4", "--wait", "100s"]);
    child.wait_for_error("it waits: `wharf explain s");
    child.signal("INT");
    child.end().with(1).says(&["cancelled"]);
    service.run(&["release", &held]).with(0);
    waiting.join().expect("it is placed");
    service.run(&["explain", &id]).with(1).says(&["unknown_wait"]);
    service.stop();
}
