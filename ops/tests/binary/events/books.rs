//! Books that are rebuilt from the lines of `wharf events`. They share no code with the service.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::{PATIENCE, Service, sum};

/// What is known of a node: its name, state, version and cores.
pub type Node = (String, String, u64, f64);

/// Books in amounts of cores.
#[derive(Debug, Default)]
pub struct Books {
    /// The position of the last event.
    pub last: u64,
    pub nodes: BTreeMap<u64, Node>,
    /// Node and cores, by allocation.
    pub allocations: BTreeMap<String, (u64, f64)>,
    /// The bundle, by allocation.
    inside: BTreeMap<String, String>,
    /// How often each event came, and each state of a node with it.
    pub counts: BTreeMap<String, u64>,
}

fn cores(value: &Value) -> f64 {
    value.as_str().expect("an amount").parse().expect("a number")
}

impl Books {
    pub fn apply(&mut self, line: &Value) {
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
            "released" | "evicted" | "expired" | "ended_with_node" | "taken_back" => {
                let id = text("allocation");
                let known = self.allocations.remove(&id).is_some() || self.inside.remove(&id).is_some();
                assert!(known, "what ended had begun: {line}");
            }
            "node_added" | "node_updated" | "node_state" | "node_holds" => {
                let now = (text("name"), text("state"), version(), cores(&line["capacity"]["cpu"]));
                *self.counts.entry(format!("{event}: {}", now.1)).or_default() += 1;
                self.nodes.insert(node(), now);
            }
            "node_version" => self.nodes.get_mut(&node()).expect("a known node").2 = version(),
            "node_removed" => drop(self.nodes.remove(&node())),
            "started" | "kinds" | "bundle" | "group" | "group_removed" | "lease" => {}
            "queue" | "queue_removed" | "job" | "job_phase" | "job_removed" | "task" => {}
            "session_renewed" | "session_closed" | "session_expired" | "session_evicted" => {}
            other => panic!("an unknown event {other}: {line}"),
        }
    }

    /// Returns how these books differ from what the service prints. `None` if they are the same.
    fn difference(&self, service: &Service) -> Option<String> {
        let listed = service.json(&["node", "list"]);
        let listed = listed.as_array().expect("a list");
        if listed.len() != self.nodes.len() {
            return Some(format!("{} nodes in {self:#?} and {listed:#?}", self.nodes.len()));
        }
        for found in listed {
            let id = found["id"].as_u64().expect("an id");
            let Some((name, state, version, cpu)) = self.nodes.get(&id) else {
                return Some(format!("no event of {found} in {self:#?}"));
            };
            let own = self.allocations.values().filter(|(node, _)| *node == id);
            let used: f64 = own.clone().map(|(_, cores)| cores).sum();
            let told = json!([name, state, version, own.count()]);
            let is_same = told
                == json!([found["name"], found["state"], found["version"], found["allocations"]])
                && (cores(&found["cpu"]), cores(&found["cpu_available"])) == (*cpu, (cpu - used).max(0.0));
            if !is_same {
                return Some(format!("{told} with {used} of {cpu} cores in use, and {found}"));
            }
        }
        let status = service.json(&["status", "--audit"]);
        let told = (self.allocations.len() + self.inside.len()) as u64;
        let found = sum(&status, "allocations");
        (found != told).then(|| format!("{told} allocations, and {found} in {status:#}"))
    }

    /// Applies the events that the service has after those that were applied.
    pub fn read(&mut self, service: &Service) {
        read(service, self.last + 1).iter().for_each(|line| self.apply(line));
    }

    /// Fails unless these books are what the service prints.
    #[track_caller]
    pub fn check(&self, service: &Service) {
        assert_eq!(self.difference(service), None);
    }

    /// Applies events until these books are those that the service prints. Leases and grace periods may still end.
    #[track_caller]
    pub fn settle(&mut self, service: &Service) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.read(service);
            let Some(difference) = self.difference(service) else { return };
            assert!(Instant::now() < deadline, "the books are not those of the events: {difference}");
        }
    }
}

/// Reads what is there from a position on.
pub fn read(service: &Service, from: u64) -> Vec<Value> {
    let lines = service.run(&["events", "--json", "--from", &from.to_string()]).with(0);
    lines.out.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}
