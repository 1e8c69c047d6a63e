//! Reservations with the real binary: making, showing, using and ending them, and keeping them over a
//! restart.

use std::cell::Cell;
use std::sync::Arc;

use serde_json::json;
use wharf_core::hash::stable_hash;
use wharf_core::ids::PartitionId;
use wharf_core::limits::PARTITIONS_DEFAULT;
use wharf_core::router::RoutingTable;
use wharf_net::client::{Client, Completions};
use wharf_net::protocol::{
    COMMIT_ALL_OR_NOTHING, CONFLICT_DETECTION_FINE, DemandBody, NodeBooksRequest, OPERATION_ALLOCATE,
    OperationBody, PlaceRequest, Reason, ReserveRequest, StatementRequest, kinds,
};

use crate::harness::{Site, runtime, within};

#[test]
fn a_node_is_kept_for_its_owner_over_a_restart() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    service.run(&["node", "add", "a", "--cpu", "8", "--memory", "8GiB", "--gpus", "2"]).with(0);
    let reserve = ["reserve", "a", "--owner", "7", "--cpu", "6", "--gpu", "2", "--for", "1h"];
    service.run(&reserve).with(0).says(&["a reserved for owner 7 for 1h, until second"]);
    service.run(&["node", "show", "a"]).with(0).says(&["reserved for owner 7: 6 cpu, 2 gpu, for ", " more"]);
    service.run(&["node", "list"]).with(0).says(&["RESERVED", "owner 7"]);
    service.run(&["status"]).with(0).says(&["RESERVED"]);
    let status = service.json(&["status"]);
    let cpu = &status["resources"][0];
    assert_eq!((&cpu["reserved"], &cpu["available"]), (&json!("6"), &json!("2")));
    assert_eq!(status["resources"][2]["reserved"], json!("2"));
    let reserved: u64 =
        [0, 1].map(|shard| status["shards"][shard]["nodes_reserved"].as_u64().unwrap()).iter().sum();
    assert_eq!(reserved, 1);
    assert_eq!(service.json(&["node", "list"])[0]["reserved_for"], json!(7));
    service.run(&["place", "--cpu", "3"]).with(1).says(&["no_fit_now", "reserved_for_other"]);
    service.run(&["reserve", "a", "--owner", "8", "--cpu", "1"]).with(1).says(&["node_reserved", "owner 7"]);
    service.run(&["reserve", "a", "--owner", "7", "--cpu", "9"]).with(1).says(&["exceeds_capacity", "`cpu`"]);
    service.run(&["reserve", "a", "--owner", "7", "--gpu", "1.5"]).with(1).says(&["`gpu`", "whole number"]);
    service.run(&["reserve", "a", "--owner", "7", "--end", "--cpu", "1"]).with(2);
    let shown = |service: &crate::harness::Service| {
        let mut shown = service.json(&["node", "show", "a"]);
        // The remaining time shrinks between two calls, so it is checked and removed.
        let left = shown["reservation"]["seconds_left"].take();
        assert!(left.as_u64().is_some_and(|left| (1..=3600).contains(&left)), "{left}");
        shown
    };
    let before = shown(&service);
    assert_eq!(before["reservation"]["left"], json!([["cpu", "6"], ["gpu", "2"]]));
    let hash = service.json(&["status", "--audit"])["books_hash"].clone();
    service.stop();

    let service = site.serve(&["--shards", "1"]);
    assert_eq!(service.json(&["status", "--audit"])["books_hash"], hash);
    assert_eq!(shown(&service), before);
    let placed = service.json(&["place", "--cpu", "4", "--gpu", "1", "--owner", "7"]);
    assert_eq!((&placed["reason"], &placed["node"]), (&json!("done"), &json!("a")));
    let left = service.json(&["node", "show", "a"])["reservation"]["left"].clone();
    assert_eq!(left, json!([["cpu", "2"], ["gpu", "1"]]));
    let wait = ["place", "--cpu", "3", "--owner", "7", "--wait", "10s"];
    service.run(&wait).with(0).says(&["placed on a"]);
    service.run(&["reserve", "a", "--owner", "7", "--end"]).with(0).says(&["no longer reserved"]);
    let ended = service.run(&["reserve", "a", "--owner", "7", "--end", "--json"]).with(1).json();
    assert_eq!(ended["reason"], json!("not_reserved"));
    assert_eq!(service.json(&["node", "show", "a"])["reservation"], json!(null));
    service.stop();
}

/// A node becomes too small for its reservation. The reservation keeps all free capacity, and the books
/// report the excess. When the node grows again, the whole reservation is kept.
#[test]
fn a_node_that_became_too_small_for_its_reservation_says_so() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1"]);
    service.run(&["node", "add", "a", "--cpu", "8", "--memory", "8GiB", "--gpus", "2"]).with(0);
    let reserve = ["reserve", "a", "--owner", "7", "--cpu", "6", "--gpu", "2"];
    service.run(&reserve).with(0).says(&["until that is used up or ended"]);
    assert_eq!(service.json(&["node", "show", "a"])["reservation"]["exceeded"], json!([]));
    service.run(&["node", "set-resource", "a", "cpu=4"]).with(0);
    let books = service.json(&["node", "show", "a"]);
    assert_eq!(books["reservation"]["exceeded"], json!(["cpu"]));
    assert_eq!(books["reservation"]["left"], json!([["cpu", "6"], ["gpu", "2"]]));
    let cpu = &books["resources"][0];
    assert_eq!((&cpu["reserved"], &cpu["available"]), (&json!("4"), &json!("0")));
    service.run(&["node", "show", "a"]).with(0).says(&["larger than the node by now: more cpu is reserved"]);
    service.run(&["place", "--cpu", "1"]).with(1).says(&["reserved_for_other"]);
    service.run(&["place", "--cpu", "6", "--owner", "7"]).with(1).says(&["infeasible"]);
    service.run(&["place", "--cpu", "4", "--owner", "7"]).with(0).says(&["placed on a"]);
    let books = service.json(&["node", "show", "a"]);
    assert_eq!(books["reservation"]["left"], json!([["cpu", "2"], ["gpu", "2"]]));
    assert_eq!(books["reservation"]["exceeded"], json!([]));
    service.run(&["node", "set-resource", "a", "cpu=8"]).with(0);
    let cpu = service.json(&["node", "show", "a"])["resources"][0].clone();
    assert_eq!((&cpu["reserved"], &cpu["available"]), (&json!("2"), &json!("2")));
    service.stop();
}

#[test]
fn the_share_of_nodes_that_may_be_reserved_is_a_setting() {
    let site = Site::new();
    let config = site.write("wharf.toml", "reserved_nodes_percent = 0\n");
    let service = site.serve(&["--config", &config]);
    service.run(&["node", "add", "a", "--cpu", "8", "--memory", "8GiB"]).with(0);
    let refused = service.run(&["reserve", "a", "--owner", "1", "--cpu", "1"]);
    refused.with(1).says(&["limit_exceeded", "reserved_nodes_percent"]);
    service.stop();
    let config = site.write("wharf.toml", "reserved_nodes_percent = 101\n");
    site.serve_and_fail(&["--config", &config]).says(&["reserved_nodes_percent", "0 to 100"]);
}

#[test]
fn what_is_set_aside_for_a_claim_is_reserved_in_the_status() {
    let site = Site::new();
    let service = site.serve(&[]);
    service.run(&["node", "add", "a", "--cpu", "16", "--memory", "8GiB"]).with(0);
    let victim = service.json(&["place", "--cpu", "8"])["allocation"].clone();
    let operations = json!([
        {"evict": {"allocation": victim, "grace": "1h"}},
        {"pipeline": {"node": "a", "cpu": 12}},
    ]);
    let plan = site.write("plan.json", &json!({ "operations": operations }).to_string());
    service.run(&["statement", "submit", &plan]).with(0);
    // Eight of twelve cores are free, and reserved for the owner.
    let cpu = service.json(&["status"])["resources"][0].clone();
    assert_eq!((&cpu["reserved"], &cpu["available"]), (&json!("8"), &json!("0")), "{cpu}");
    service.run(&["release", victim.as_str().expect("an id")]).with(0);
    let cpu = service.json(&["status"])["resources"][0].clone();
    assert_eq!((&cpu["available"], &cpu["allocated"]), (&json!("4"), &json!("12")), "{cpu}");
    service.stop();
}

/// The number of times that the owner reserves the node and uses up the reservation.
const ROUNDS: u64 = 40;
/// The number of statements in flight meanwhile.
const STATEMENTS: u64 = 32;

/// Returns the names of two nodes that belong to different shards of two.
fn two_nodes_of_two_shards() -> [String; 2] {
    let table = RoutingTable::even(PARTITIONS_DEFAULT, 2);
    let shard = |name: &str| {
        let partition = stable_hash(name.as_bytes()) % u64::from(PARTITIONS_DEFAULT);
        table.shard(PartitionId(partition as u16)).expect("a partition of the store").index()
    };
    [0, 1].map(|wished| (0..).map(|n| format!("n{n}")).find(|name| shard(name) == wished).expect("some name"))
}

/// Submits statements of the owner one after the other until `ends`. Each holds a core of `node` until it is
/// aborted, because `other` has too few cores.
async fn hold_and_abort(client: &Client, [node, other]: [u64; 2], ends: &Cell<bool>) {
    let allocate = |node, cores: i64| OperationBody {
        operation: OPERATION_ALLOCATE,
        node,
        demand: DemandBody { cpu: cores * 10_000, ..DemandBody::default() },
        owner: 7,
        ..OperationBody::default()
    };
    let statement = StatementRequest {
        operations: vec![allocate(node, 1), allocate(other, 9)],
        conflict_detection: CONFLICT_DETECTION_FINE,
        mode: COMMIT_ALL_OR_NOTHING,
    };
    let queue = Arc::new(Completions::default());
    let mut due = STATEMENTS;
    let mut under_way = 0;
    let mut batch = Vec::new();
    loop {
        for tag in 0..due {
            client.submit::<kinds::SubmitStatement>(&statement, &queue, tag).await.expect("it is connected");
        }
        under_way += due;
        if under_way == 0 {
            return;
        }
        within(queue.take(&mut batch)).await;
        let answered = batch.len() as u64;
        batch.drain(..).for_each(|completion| drop(completion.reply.expect("it is answered")));
        under_way -= answered;
        due = if ends.get() { 0 } else { answered };
    }
}

/// Reserves memory of a node and uses up the reservation.
async fn reserve_and_use_up(client: &Client, name: &str, node: u64) {
    let reserve = ReserveRequest {
        node: name.to_owned(),
        owner: 7,
        demand: DemandBody { memory: 10_000, ..DemandBody::default() },
        ..ReserveRequest::default()
    };
    let reserved = within(client.reserve(&reserve)).await.expect("it is connected");
    assert_eq!(reserved.reason, Reason::Done.into(), "{reserved:?}");
    let memory = PlaceRequest {
        demand: DemandBody { memory: 10_000, ..DemandBody::default() },
        candidates: vec![node],
        ..PlaceRequest::default()
    };
    let request = PlaceRequest { owner: 7, ..memory };
    let placed = within(client.place(&request)).await.expect("it is connected");
    let placed = placed.placed.expect("it is reserved for this owner");
    within(client.release(placed.allocation)).await.expect("it is connected");
}

#[test]
fn a_reservation_that_is_used_up_while_statements_hold_the_node_is_gone_when_they_are_aborted() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    let names = two_nodes_of_two_shards();
    let nodes = names.clone().map(|name| {
        let added = service.json(&["node", "add", &name, "--cpu", "8", "--memory", "8GiB"]);
        added[0]["id"].as_u64().expect("an id")
    });
    runtime().block_on(async {
        let (statements, owner) = tokio::join!(service.client(), service.client());
        for round in 0..ROUNDS {
            let ends = Cell::new(false);
            let uses_up = async {
                reserve_and_use_up(&owner, &names[0], nodes[0]).await;
                ends.set(true);
            };
            tokio::join!(hold_and_abort(&statements, nodes, &ends), uses_up);
            let books = within(owner.node_books(&NodeBooksRequest { node: names[0].clone() })).await;
            let reservation = books.expect("it is connected").reservation;
            assert_eq!(reservation, None, "round {round}: nothing holds the node any more");
        }
    });
    let audited = service.json(&["status", "--audit"]);
    assert_eq!(service.json(&["node", "show", &names[0]])["reservation"], json!(null));
    service.stop();

    let service = site.serve(&["--shards", "1"]);
    assert_eq!(service.json(&["status", "--audit"])["books_hash"], audited["books_hash"]);
    service.run(&["reserve", &names[0], "--owner", "8", "--cpu", "1"]).with(0);
    service.stop();
}
