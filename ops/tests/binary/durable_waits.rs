//! Placements and groups that wait over a kill and a stop of the real service.
//!
//! The client library goes on by itself. The service goes on with the waits before that.

use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use wharf_core::ids::{AllocationId, GroupId};
use wharf_net::client::{Client, ClientConfig};
use wharf_net::protocol::{
    BundleTemplate, CreateGroupRequest, DemandBody, GrowGroupRequest, MODE_WAIT_UNTIL, PlaceRequest,
    WireGroup,
};

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

/// Returns a bundle of one core.
fn bundle() -> BundleTemplate {
    let demand = DemandBody { cpu: 10_000, ..DemandBody::default() };
    BundleTemplate { request: PlaceRequest { demand, ..PlaceRequest::default() }, count: 1 }
}

/// Waits for a group of four bundles on a connection of its own.
fn wait_for_group(config: ClientConfig) -> JoinHandle<WireGroup> {
    let asked = async move {
        let client = within(Client::connect(config)).await.expect("the service is there");
        let bundles = vec![BundleTemplate { count: 4, ..bundle() }];
        let request = CreateGroupRequest { bundles, mode: MODE_WAIT_UNTIL, ..CreateGroupRequest::default() };
        let group = within(client.create_group(&request)).await.expect("answered").group;
        within(client.close()).await;
        group.expect("there is room now").id
    };
    std::thread::spawn(move || runtime().block_on(asked))
}

/// Waits until a group has two bundles more, on a connection of its own. Returns their number then.
fn wait_for_growth(config: ClientConfig, group: WireGroup) -> JoinHandle<usize> {
    let asked = async move {
        let client = within(Client::connect(config)).await.expect("the service is there");
        let bundles = vec![BundleTemplate { count: 2, ..bundle() }];
        let mode = MODE_WAIT_UNTIL;
        let request = GrowGroupRequest { group, bundles, mode, ..GrowGroupRequest::default() };
        let grown = within(client.grow_group(&request)).await.expect("answered").group;
        within(client.close()).await;
        grown.expect("there is room now").bundles.len()
    };
    std::thread::spawn(move || runtime().block_on(asked))
}

/// Waits until the groups have these states and numbers of bundles, in any order.
fn until_groups(service: &Service, expected: &[(&str, u64)]) {
    service.until(&["group", "list"], |groups| {
        let groups = groups.as_array().expect("a list");
        let of = |group: &Value| Some((group["state"].as_str()?.to_owned(), group["bundles"].as_u64()?));
        let mut found: Vec<_> = groups.iter().filter_map(of).collect();
        found.sort_unstable();
        let mut expected: Vec<_> =
            expected.iter().map(|&(state, bundles)| (state.to_owned(), bundles)).collect();
        expected.sort_unstable();
        found == expected
    });
}

fn until_waiting(service: &Service, count: u64) {
    service.until(&["status"], |status| status["waiting"] == json!(count));
}

/// Returns what waits got, in order, as events tell: the allocation of a placement, or the group.
fn placed_after_waits(service: &Service) -> Vec<String> {
    let lines = service.run(&["events", "--json", "--from", "1"]).with(0);
    let events = lines.out.lines().map(|line| serde_json::from_str(line).expect("a line of JSON"));
    let placed = events.filter(|event: &Value| event["event"] == "wait_placed");
    let got = placed.map(|event| {
        let got = event["allocation"].as_str().or_else(|| event["group"].as_str());
        got.expect("it was placed").to_owned()
    });
    got.collect()
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

/// Would fail if a group's request were lost with the process, if it lost its place, or if a growth ended with its start.
#[test]
fn groups_keep_their_order_over_a_kill_and_a_stop() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1"]);
    let hold = |name| {
        service.run(&["node", "add", name, "--cpu", "4", "--memory", "8GiB"]).with(0);
        service.json(&["place", "--cpu", "4"])["allocation"].as_str().expect("it fits").to_owned()
    };
    let held = ["a", "b"].map(hold);
    let address = service.address.to_string();
    let config =
        ClientConfig { retry_for: Duration::MAX, ..service.client_config(&site.development_certificate()) };
    let first = wait_for_group(config.clone());
    until_groups(&service, &[("waiting", 4)]);
    let second = wait_for_group(config.clone());
    until_groups(&service, &[("waiting", 4), ("waiting", 4)]);
    service.kill();

    let service = site.serve(&["--shards", "2", "--listen", &address]);
    until_groups(&service, &[("waiting", 4), ("waiting", 4)]);
    service.run(&["release", &held[0]]).with(0);
    let first = first.join().expect("it is placed");
    let grown = wait_for_growth(config, first);
    until_groups(&service, &[("placed", 6), ("waiting", 4)]);
    service.stop();

    let service = site.serve(&["--shards", "1", "--listen", &address]);
    until_groups(&service, &[("placed", 6), ("waiting", 4)]);
    service.run(&["release", &held[1]]).with(0);
    let second = second.join().expect("it is placed");
    until_groups(&service, &[("placed", 6), ("placed", 4)]);
    let [first, second] = [first, second].map(|group| GroupId::from(group).to_string());
    service.run(&["group", "remove", &second]).with(0);
    assert_eq!(grown.join().expect("it has grown"), 6);
    assert_eq!(placed_after_waits(&service), [first.clone(), second, first]);
    service.stop();
}
