//! Placements that wait over a kill and a stop of the real service.
//!
//! The client library goes on by itself. The service goes on with the waits before that.

use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use wharf_core::ids::AllocationId;
use wharf_net::client::{Client, ClientConfig};
use wharf_net::protocol::{DemandBody, MODE_WAIT_UNTIL, PlaceRequest};

use crate::harness::{Service, Site, runtime, within};

/// Waits for the whole node on a connection of its own. Returns the allocation.
fn wait_for_node(config: ClientConfig) -> JoinHandle<AllocationId> {
    let asked = async move {
        let client = within(Client::connect(config)).await.expect("the service is there");
        // Four cores, in ten-thousandths.
        let demand = DemandBody { cpu: 40_000, ..DemandBody::default() };
        let request = PlaceRequest { demand, mode: MODE_WAIT_UNTIL, ..PlaceRequest::default() };
        let placed =
            within(client.place(&request)).await.expect("answered").placed.expect("there is room now");
        within(client.close()).await;
        placed.allocation.into()
    };
    std::thread::spawn(move || runtime().block_on(asked))
}

fn until_waiting(service: &Service, count: u64) {
    service.until(&["status"], |status| status["waiting"] == json!(count));
}

/// Returns the allocations that waits got, in order, as events tell.
fn placed_after_waits(service: &Service) -> Vec<String> {
    let lines = service.run(&["events", "--json", "--from", "1"]).with(0);
    let events = lines.out.lines().map(|line| serde_json::from_str(line).expect("a line of JSON"));
    let placed = events.filter(|event: &Value| event["event"] == "wait_placed");
    placed.map(|event| event["allocation"].as_str().expect("it was placed").to_owned()).collect()
}

/// Would fail if a wait were lost with the process, if it lost its place, or if no event told its end.
#[test]
fn waits_keep_their_order_over_a_kill_and_a_stop() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1"]);
    service.run(&["node", "add", "a", "--cpu", "4", "--memory", "8GiB"]).with(0);
    let held = service.json(&["place", "--cpu", "4"])["allocation"].as_str().expect("it fits").to_owned();
    let address = service.address.to_string();
    let config =
        ClientConfig { retry_for: Duration::MAX, ..service.client_config(&site.development_certificate()) };
    let first = wait_for_node(config.clone());
    until_waiting(&service, 1);
    let second = wait_for_node(config.clone());
    until_waiting(&service, 2);
    let third = wait_for_node(config);
    until_waiting(&service, 3);
    service.kill();

    let service = site.serve(&["--shards", "2", "--listen", &address]);
    until_waiting(&service, 3);
    service.run(&["release", &held]).with(0);
    let first = first.join().expect("it is placed");
    until_waiting(&service, 2);
    service.stop();

    let service = site.serve(&["--shards", "1", "--listen", &address]);
    until_waiting(&service, 2);
    service.run(&["release", &first.to_string()]).with(0);
    let second = second.join().expect("it is placed");
    until_waiting(&service, 1);
    service.run(&["release", &second.to_string()]).with(0);
    let third = third.join().expect("it is placed");
    assert_eq!(placed_after_waits(&service), [first, second, third].map(|id| id.to_string()));
    service.stop();
}
