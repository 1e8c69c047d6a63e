//! The node agent and the service as real processes: joining, failing devices, restarts of either side, loss
//! and return, and another machine with the same name.
//!
//! The tests poll the state that the service reports until a deadline.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::{Ended, PATIENCE, Service, Site};

fn inventory(path: &Path, faults: [Option<&str>; 2]) {
    let gpu = |at: usize| {
        let other = format!("GPU-{}", 1 - at);
        json!({"uuid": format!("GPU-{at}"), "model": "T4", "memory_mib": 15360, "numa": at, "links": [other], "fault": faults[at]})
    };
    // Atomic: a reader sees either the old or the new file.
    let new = path.with_extension("new");
    std::fs::write(&new, json!({"gpus": [gpu(0), gpu(1)]}).to_string())
        .expect("the directory can be written");
    std::fs::rename(new, path).expect("on one file system");
}

/// A running agent.
struct Agent(Child);

impl Agent {
    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success());
    }

    fn stop(mut self) {
        self.signal("TERM");
        assert_eq!(self.0.wait().expect("a child").code(), Some(0));
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn arguments<'a>(site: &'a Site, server: &'a str, identity: &'a str, more: &[&'a str]) -> Vec<String> {
    let file = site.path("gpus.json");
    let ca = site.development_certificate();
    let fixed = [
        "agent",
        "--name",
        "worker",
        "--identity",
        identity,
        "--cpu",
        "8",
        "--memory",
        "64GiB",
        "--interval",
        "50",
        "--server",
        server,
        "--ca",
        &ca,
        "--fake-inventory",
        file.to_str().expect("text"),
    ];
    fixed.iter().chain(more).map(|&text| text.to_owned()).collect()
}

fn agent(site: &Site, server: &str, identity: &str, more: &[&str]) -> Agent {
    let arguments = arguments(site, server, identity, more);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut command = site.wharf(&arguments);
    Agent(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs"))
}

/// Waits until there is one node and `wish` holds for it. Returns the node.
#[track_caller]
fn wait_for(service: &Service, wish: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let nodes = service.json(&["node", "list"]);
        if nodes.as_array().is_some_and(|nodes| nodes.len() == 1) && wish(&nodes[0]) {
            return nodes[0].clone();
        }
        assert!(Instant::now() < deadline, "it does not come to that: {nodes:#}");
    }
}

fn is(state: &'static str) -> impl Fn(&Value) -> bool {
    move |node| node["state"] == state
}

fn free_port() -> String {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.local_addr().expect("an address").to_string()
}

fn serve(site: &Site, address: &str, lost_after: &str) -> Service {
    let file = site.write("wharf.toml", &format!("node_lost_after = \"{lost_after}\"\n"));
    site.serve(&["--shards", "2", "--listen", address, "--config", &file])
}

#[test]
fn a_device_fails_and_heals_while_its_node_stays() {
    let site = Site::new();
    inventory(&site.path("gpus.json"), [None, None]);
    let service = serve(&site, "127.0.0.1:0", "30");
    let address = service.address.to_string();
    let agent = agent(&site, &address, "m1", &["--label", "rack=r1", "--reserve-cpu", "2"]);
    let node = wait_for(&service, is("ready"));
    assert_eq!(
        (&node["cpu"], &node["gpus"], &node["labels"]["rack"]),
        (&json!("6"), &json!(2), &json!("r1"))
    );
    assert_eq!(node["labels"]["gpu-model"], "T4");
    let devices = &node["agent"]["gpus"];
    assert_eq!(
        (&devices[1]["uuid"], &devices[1]["numa"], &devices[1]["links"]),
        (&json!("GPU-1"), &json!(1), &json!([0]))
    );
    let whole = |place: &Value| place["gpus"].clone();
    assert_eq!(whole(&service.json(&["place", "--gpu", "0.5"])), json!([0]));

    inventory(&site.path("gpus.json"), [Some("Xid 79"), None]);
    let node = wait_for(&service, |node| node["unhealthy"][0]["reason"] == "Xid 79");
    assert_eq!((&node["state"], &node["gpus_available"]), (&json!("ready"), &json!(["0", "1"])));
    assert_eq!(node["allocations"], 1);
    service.run(&["node", "list"]).with(0).says(&["worker: GPU 0 is unhealthy: Xid 79"]);
    let status = service.json(&["status", "--audit"]);
    let gpu = &status["resources"][2];
    assert_eq!(
        (&gpu["total"], &gpu["available"], &gpu["allocated"], &gpu["unhealthy"]),
        (&json!("2"), &json!("1"), &json!("0.5"), &json!("0.5"))
    );
    let books = service.json(&["node", "show", "worker"]);
    let shown = |at: usize| {
        let gpu = &books["instances"][at];
        ["available", "allocated", "unhealthy", "reason"].map(|field| gpu[field].clone())
    };
    assert_eq!(shown(0), [json!("0"), json!("0.5"), json!("0.5"), json!("Xid 79")]);
    assert_eq!(shown(1), [json!("1"), json!("0"), json!("0"), Value::Null]);
    service.run(&["node", "show", "worker"]).with(0).says(&["REASON", "Xid 79"]);
    // The unused capacity of the failed device is not offered.
    assert_eq!(whole(&service.json(&["place", "--gpu", "0.5"])), json!([1]));
    assert_eq!(whole(&service.json(&["place", "--gpu", "0.5"])), json!([1]));
    service.run(&["place", "--gpu", "0.5"]).with(1).says(&["no_fit_now"]);

    inventory(&site.path("gpus.json"), [None, None]);
    wait_for(&service, |node| node["unhealthy"] == json!([]));
    assert_eq!(whole(&service.json(&["place", "--gpu", "0.5"])), json!([0]));
    agent.stop();
    service.json(&["status", "--audit"]);
    service.stop();
}

/// Only bundles of the lost node are placed again.
#[test]
fn a_group_leaves_a_machine_that_is_lost() {
    let site = Site::new();
    inventory(&site.path("gpus.json"), [None, None]);
    let service = serve(&site, "127.0.0.1:0", "1");
    let agent = agent(&site, &service.address.to_string(), "m1", &[]);
    wait_for(&service, is("ready"));
    service.run(&["node", "add", "other", "--cpu", "8", "--memory", "64GiB"]).with(0);
    let create = ["group", "create", "--bundles", "2", "--cpu", "8", "--strategy", "strict-spread"];
    let made = service.json(&create);
    let group = made["group"].as_str().expect("an id").to_owned();
    let place = |bundle: &Value| bundle["node"].as_str().map(str::to_owned);
    let bundles = made["bundles"].as_array().expect("bundles").clone();
    let moved = bundles.iter().position(|bundle| place(bundle).as_deref() == Some("worker")).expect("there");
    drop(agent);
    let status = ["group", "status", &group];
    service.run(&["node", "add", "new", "--cpu", "8", "--memory", "64GiB"]).with(0);
    service.until(&status, |group| place(&group["bundles"][moved]).as_deref() == Some("new"));
    let now = service.json(&status);
    assert_eq!(now["bundles"][1 - moved], bundles[1 - moved], "it stayed");
    let lost = service.json(&["node", "show", "worker"]);
    assert_eq!(lost["allocations"], json!(0), "what was lost is not in the books: {lost}");
    service.json(&["status", "--audit"]);
    service.stop();
}

#[test]
fn a_silent_agent_is_lost_and_comes_back_with_what_it_had() {
    let site = Site::new();
    inventory(&site.path("gpus.json"), [None, None]);
    let address = free_port();
    let service = serve(&site, &address, "3");
    let first = agent(&site, &address, "m1", &[]);
    let node = wait_for(&service, is("ready"));
    let held = service.json(&["place", "--cpu", "1", "--gpu", "1"])["allocation"].clone();
    service.run(&["node", "drain", "worker"]).with(0);
    first.signal("KILL");
    let lost = wait_for(&service, is("lost"));
    assert_eq!(
        (&lost["id"], &lost["allocations"], &lost["draining"]),
        (&node["id"], &json!(1), &json!(true))
    );
    service.run(&["place", "--cpu", "1"]).with(1).says(&["not_ready"]);
    service.run(&["node", "drain", "worker", "--undo"]).with(0);
    service
        .run(&["node", "drain", "worker", "--undo"])
        .with(1)
        .says(&["illegal_change", "when its agent is back"]);
    drop(first);

    let second = agent(&site, &address, "m1", &[]);
    let back = wait_for(&service, is("ready"));
    assert_eq!((&back["id"], &back["allocations"]), (&node["id"], &json!(1)));
    // After a restart of the service, the agent reconnects and keeps its node.
    service.run(&["node", "drain", "worker"]).with(0);
    service.stop();
    let service = serve(&site, &address, "3");
    let kept = wait_for(&service, is("draining"));
    assert_eq!((&kept["id"], &kept["allocations"]), (&node["id"], &json!(1)));
    service.wait_for_log("heard of this node's agent", 1);
    service.run(&["node", "drain", "worker", "--undo"]).with(0);
    wait_for(&service, is("ready"));

    // Another machine cannot take the name while the first one is alive.
    let other = arguments(&site, &address, "m2", &["--once"]);
    let other: Vec<&str> = other.iter().map(String::as_str).collect();
    Ended::of(&mut site.wharf(&other)).with(1).says(&["node_exists"]);
    drop(second);
    wait_for(&service, is("lost"));
    Ended::of(&mut site.wharf(&other)).with(0).says(&["registered as"]);
    let new = wait_for(&service, |node| node["identity"] == "m2");
    assert!(new["id"].as_u64() > node["id"].as_u64() && new["allocations"] == 0, "{new:#}");
    service.wait_for_log("allocations_ended=1", 1);
    service.run(&["release", held.as_str().expect("an id")]).with(1).says(&["unknown_allocation"]);
    service.json(&["status", "--audit"]);
    service.stop();
}

#[test]
fn an_agent_that_is_told_to_end_may_drain_its_node_and_a_node_by_hand_is_never_lost() {
    let site = Site::new();
    inventory(&site.path("gpus.json"), [None, None]);
    let service = serve(&site, "127.0.0.1:0", "0.5");
    let address = service.address.to_string();
    let agent = agent(&site, &address, "m1", &["--drain-on-exit"]);
    wait_for(&service, is("ready"));
    agent.stop();
    let node = wait_for(&service, is("lost"));
    assert_eq!(node["draining"], true);
    service.run(&["node", "remove", "worker"]).with(0);
    service.run(&["node", "add", "by-hand", "--cpu", "1", "--memory", "1"]).with(0);
    // Waits as long as it takes for another agent's node to be lost.
    let mut more = arguments(&site, &address, "m2", &["--once"]);
    for text in more.iter_mut().filter(|text| *text == "worker") {
        "second".clone_into(text);
    }
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    Ended::of(&mut site.wharf(&more)).with(0);
    service.wait_for_log("this node is lost", 2);
    let nodes = service.json(&["node", "list"]);
    assert_eq!((&nodes[0]["name"], &nodes[0]["state"]), (&json!("by-hand"), &json!("ready")));
    service.stop();
}

#[test]
fn what_would_be_reported_is_printed_without_a_service() {
    let site = Site::new();
    // Without a fake inventory, as on a machine without a driver.
    let plain = site.run(&["agent", "--print", "--name", "here", "--identity", "m", "--json"]).with(0).json();
    assert_eq!(plain["name"], "here");
    assert!(plain["cpu"].as_str().is_some_and(|cpu| cpu != "0"), "{plain:#}");
    if plain["source"] == "no NVIDIA driver found" {
        assert_eq!((&plain["gpus"], &plain["devices"]), (&json!(0), &json!([])));
    }
    inventory(&site.path("gpus.json"), [None, Some("Xid 48")]);
    let file = site.path("gpus.json");
    let fake = [
        "agent",
        "--print",
        "--identity",
        "m",
        "--name",
        "n",
        "--fake-inventory",
        file.to_str().expect("text"),
    ];
    site.run(&fake).with(0).says(&["2 GPUs", "GPU-1 T4", "unhealthy: Xid 48", "linked to GPU-0"]);
    let broken = site.write("gpus.json", "{");
    site.run(&["agent", "--print", "--identity", "m", "--fake-inventory", &broken])
        .with(3)
        .says(&["is no inventory"]);
    site.run(&["agent", "--print", "--identity", "m", "--cpu", "1", "--reserve-cpu", "2"])
        .with(2)
        .says(&["--reserve-cpu"]);
}
