//! `wharf events` with the real binary: books that are rebuilt from its lines, over crashes of the service.
//!
//! The lines are read by a small interpreter that shares no code with the service. Its books are compared with those that
//! `wharf status` and `wharf node list` print. Faults that this finds: an event that is lost or told twice, over a crash or
//! a new connection, a cause that is wrong, and a change of the books without an event.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::{Service, Site};
use crate::watch::Watch;

/// What is known of a node: its name, state, version and cores.
type Node = (String, String, u64, f64);

/// Books in amounts of cores.
#[derive(Debug, Default)]
struct Books {
    last: u64,
    nodes: BTreeMap<u64, Node>,
    /// Node and cores, by allocation.
    allocations: BTreeMap<String, (u64, f64)>,
    /// The bundle, by allocation.
    inside: BTreeMap<String, String>,
    /// How often each event came.
    counts: BTreeMap<String, u64>,
}

fn cores(value: &Value) -> f64 {
    value.as_str().expect("an amount").parse().expect("a number")
}

impl Books {
    fn apply(&mut self, line: &Value) {
        let position = line["position"].as_u64().expect("a position");
        assert_eq!(position, self.last + 1, "no gap, and nothing twice: {line}");
        self.last = position;
        let event = line["event"].as_str().expect("a name");
        *self.counts.entry(event.to_owned()).or_default() += 1;
        let text = |field: &str| line[field].as_str().expect("a text").to_owned();
        let node = || line["node_id"].as_u64().expect("a node");
        let version = || line["version"].as_u64().unwrap_or(0);
        match event {
            "placed" | "placed_after_wait" | "committed" | "claim_granted" | "adopted" => {
                self.allocations.insert(text("allocation"), (node(), cores(&line["holds"]["cpu"])));
            }
            "placed_into" => drop(self.inside.insert(text("allocation"), text("into"))),
            "released" | "evicted" | "ended_with_node" | "taken_back" => {
                let id = text("allocation");
                let known = self.allocations.remove(&id).is_some() || self.inside.remove(&id).is_some();
                assert!(known, "what ended had begun: {line}");
            }
            "node_added" | "node_updated" | "node_state" | "node_holds" => {
                let now = (text("name"), text("state"), version(), cores(&line["capacity"]["cpu"]));
                self.nodes.insert(node(), now);
            }
            "node_version" => self.nodes.get_mut(&node()).expect("a known node").2 = version(),
            "node_removed" => drop(self.nodes.remove(&node())),
            "started" | "kinds" | "bundle" | "group" | "group_removed" => {}
            "session_closed" | "session_expired" | "session_evicted" => {}
            other => panic!("an unknown event {other}: {line}"),
        }
    }

    /// Compares with what the service prints.
    fn check(&self, service: &Service) {
        let listed = service.json(&["node", "list"]);
        let listed = listed.as_array().expect("a list");
        assert_eq!(listed.len(), self.nodes.len(), "{listed:#?} and {self:#?}");
        for found in listed {
            let id = found["id"].as_u64().expect("an id");
            let (name, state, version, cpu) = &self.nodes[&id];
            let own = self.allocations.values().filter(|(node, _)| *node == id);
            let used: f64 = own.clone().map(|(_, cores)| cores).sum();
            let inside = self.inside.values().filter(|into| self.allocations[*into].0 == id).count();
            assert_eq!((&found["name"], &found["state"]), (&json!(name), &json!(state)));
            assert_eq!(found["version"], json!(version), "{name}");
            assert_eq!(found["allocations"], json!(own.count()), "{name}");
            assert_eq!(cores(&found["cpu"]), *cpu, "{name}");
            assert_eq!(cores(&found["cpu_available"]), cpu - used, "{name}, {inside} inside");
        }
        let status = service.json(&["status", "--audit"]);
        let shards = status["shards"].as_array().expect("a list");
        let allocations: u64 =
            shards.iter().map(|shard| shard["allocations"].as_u64().expect("a number")).sum();
        assert_eq!(allocations, (self.allocations.len() + self.inside.len()) as u64, "{status:#}");
    }
}

fn add(service: &Service, name: &str) {
    service.run(&["node", "add", name, "--cpu", "64", "--memory", "64GiB", "--gpus", "4"]).with(0);
}

fn place(service: &Service, more: &[&str]) -> String {
    let placed = service.json(&[&["place", "--cpu", "2"], more].concat());
    placed["allocation"].as_str().expect("placed").to_owned()
}

/// Changes the books in every way that has a cause of its own. Returns an allocation that stays.
fn change(service: &Service, round: u32) -> String {
    let name = |part: &str| format!("{part}-{round}");
    add(service, &name("kept"));
    add(service, &name("gone"));
    let kept = place(service, &[]);
    let released = place(service, &["--gpu", "0.5"]);
    service.run(&["release", &released]).with(0);
    let gone = name("gone");
    service.run(&["adopt", &gone, "--cpu", "3", "--external-id", "pod"]).with(0);
    service.run(&["node", "drain", &gone]).with(0);
    service.run(&["node", "remove", &gone, "--force"]).with(0);
    let group = service.json(&["group", "create", "--bundles", "2", "--cpu", "4"]);
    let group = group["group"].as_str().or_else(|| group["id"].as_str()).expect("a group").to_owned();
    service.run(&["place", "--group", &group, "--cpu", "1"]).with(0);
    if round % 2 == 1 {
        service.run(&["group", "remove", &group]).with(0);
    }
    kept
}

/// Reads what is there from a position on.
fn read(service: &Service, from: u64) -> Vec<Value> {
    let lines = service.run(&["events", "--json", "--from", &from.to_string()]).with(0);
    lines.out.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn books_are_rebuilt_from_events_over_crashes() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    let address = service.address.to_string();
    let certificate = site.development_certificate();
    let arguments =
        ["events", "--follow", "--from", "1", "--json", "--server", &address, "--ca", &certificate];
    let follower = Watch::begin(&mut site.wharf(&arguments));
    let mut followed = Books::default();
    let mut read_at_once = Books::default();
    let mut service = service;
    for round in 0..3 {
        let kept = change(&service, round);
        // The follower gets the events of a change that was answered. Then it loses its connection, and notices that
        // only after further crashes.
        while round == 0 && !(followed.allocations.contains_key(&kept) && followed.nodes.len() == 1) {
            followed.apply(&follower.until(|_| true));
        }
        read(&service, read_at_once.last + 1).iter().for_each(|line| read_at_once.apply(line));
        read_at_once.check(&service);
        service.kill();
        service = site.serve(&["--shards", ["1", "4", "2"][round as usize], "--listen", &address]);
        read(&service, read_at_once.last + 1).iter().for_each(|line| read_at_once.apply(line));
        read_at_once.check(&service);
    }
    let last = place(&service, &[]);
    read(&service, read_at_once.last + 1).iter().for_each(|line| read_at_once.apply(line));
    while followed.last < read_at_once.last {
        followed.apply(&follower.until(|_| true));
    }
    followed.check(&service);
    assert!(followed.allocations.contains_key(&last));
    let counts = &followed.counts;
    assert_eq!(*counts, read_at_once.counts);
    assert_eq!((counts["started"], counts["adopted"], counts["placed"]), (4, 3, 7));
    assert_eq!((counts["committed"], counts["placed_into"], counts["ended_with_node"]), (6, 3, 3));
    assert_eq!(follower.interrupt(), Some(0));
    service.stop();
}

#[test]
fn a_waiting_placement_and_text_and_refusals_are_told() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1"]);
    add(&service, "a");
    let held = place(&service, &["--gpu", "4"]);
    let waiting = service.begin(&["place", "--cpu", "8", "--gpu", "1", "--wait", "50s"]);
    service.until(&["status"], |status| status["waiting"] == json!(1));
    service.run(&["release", &held]).with(0);
    waiting.end().with(0);
    let lines = read(&service, 1);
    assert_eq!(
        lines.iter().filter(|line| line["event"] == json!("placed_after_wait")).count(),
        1,
        "{lines:#?}"
    );
    service.run(&["events"]).with(0).says(&["placed_after_wait a1-", "node_added a (n1) ready", "8 cpu"]);
    let end = lines.last().expect("some")["position"].as_u64().expect("a position") + 1;
    // The sessions of these commands end, and each end is an event.
    service.run(&["events", "--from", &(end + 1000).to_string()]).with(1).says(&["future_version"]);
    service.run(&["events", "--from", "0"]).with(2).says(&["from 1 on"]);
    service.stop();
    let service = site.serve(&["--shards", "1", "--durability", "memory"]);
    service.run(&["events"]).with(1).says(&["not_served", "`durability` to `sync` or `os`"]);
    service.stop();
    // A run without events came between, so none of the earlier ones leads to the books.
    let service = site.serve(&["--shards", "1"]);
    service.run(&["events", "--from", &end.to_string()]).with(1).says(&["too_far_behind"]);
    let lines = read(&service, (1 << 44) + 1);
    assert_eq!(lines[0]["event"], json!("started"), "{lines:#?}");
    service.stop();
}
