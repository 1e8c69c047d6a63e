//! Unit-instance resources, adoptions, single resources and the books of a node, over the wire.

use crate::harness::{TestServer, add, ask, audit, granted, named, node, only, place, units, within};
use wharf_net::client::Client;
use wharf_net::protocol::{
    AdoptRequest, BookBody, DemandBody, NamedAmount, NamedUnits, NodeBody, NodeBooksReply, NodeBooksRequest,
    PlaceBatch, PlaceRequest, Reason, SetResourcesRequest,
};

fn npus(amount: i64) -> PlaceRequest {
    PlaceRequest {
        demand: DemandBody {
            custom: vec![NamedAmount { name: "npu".into(), amount }],
            ..ask(0, 0, 0).demand
        },
        ..ask(0, 0, 0)
    }
}

fn held(part: u16, instances: &[u8]) -> Vec<NamedUnits> {
    vec![NamedUnits { name: "npu".into(), instances: instances.to_vec(), part }]
}

async fn with_npus(client: &Client, count: i64) {
    let body = NodeBody { custom: vec![named("npu", count), named("licence", 5)], ..node("a", 8, 4096, 2) };
    add(client, vec![body]).await;
}

async fn books(client: &Client, name: &str) -> NodeBooksReply {
    within(client.node_books(&NodeBooksRequest { node: name.into() })).await.expect("the node is there")
}

#[track_caller]
fn book<'a>(books: &'a NodeBooksReply, name: &str) -> &'a BookBody {
    let book = books.resources.iter().find(|book| book.name == name).expect("the resource is listed");
    let used = book.available + book.allocated + book.held + book.releasing + book.reserved + book.unhealthy;
    assert_eq!(used, book.total + book.shortfall, "{book:?}");
    book
}

#[tokio::test]
async fn units_are_named_and_parts_of_different_units_never_add_up() {
    let server = TestServer::start(2);
    let client = server.client().await;
    with_npus(&client, 3).await;
    assert_eq!(place(&client, &npus(6000)).await.units, held(6000, &[0]));
    assert_eq!(place(&client, &npus(7000)).await.units, held(7000, &[1]));
    let batch = PlaceBatch { requests: vec![ask(1, 0, 0), npus(3000), npus(units(1))] };
    let replies = within(client.place_batch(&batch)).await.expect("answered").replies;
    let named: Vec<_> = replies.into_iter().map(|reply| granted(reply).units).collect();
    assert_eq!(named, [Vec::new(), held(3000, &[1]), held(10_000, &[2])]);
    // Only 0.4 of unit 0 is left.
    let refused = within(client.place(&npus(5000))).await.expect("answered");
    assert_eq!(refused.reason, Reason::NoFitNow.into());
    for broken in [units(3) / 2, units(65)] {
        let reply = within(client.place(&npus(broken))).await.expect("answered");
        let fault = reply.fault.expect("a fault");
        assert_eq!((fault.reason, fault.field.as_str()), (Reason::InvalidField.into(), "custom[0].amount"));
    }
    let body =
        NodeBody { custom: vec![NamedAmount { name: "npu".into(), amount: 15_000 }], ..node("b", 1, 1, 0) };
    let request = wharf_net::protocol::NodesRequest { nodes: vec![body] };
    let reply = within(client.add_nodes(&request)).await.expect("answered");
    assert_eq!(only(&reply), (Reason::InvalidField, "custom[0].amount"));
    audit(&client).await;
    server.stop().await;
}

#[tokio::test]
async fn a_refusal_says_where_the_sum_would_do() {
    let server = TestServer::start(2);
    let client = server.client().await;
    with_npus(&client, 2).await;
    place(&client, &npus(6000)).await;
    place(&client, &npus(6000)).await;
    let refusal = within(client.place(&npus(8000))).await.expect("answered").refusal.expect("a refusal");
    let check = &refusal.checks[0];
    assert_eq!((check.reason, check.resource.as_str()), (Reason::Fragmented.into(), "npu"));
    assert_eq!((check.nodes, check.least_short), (1, 4000));
    server.stop().await;
}

#[tokio::test]
async fn adoptions_are_recorded_as_they_are_and_once() {
    let server = TestServer::start(3);
    let client = server.client().await;
    with_npus(&client, 2).await;
    let adopt = AdoptRequest {
        node: "a".into(),
        demand: DemandBody {
            cpu: units(10),
            gpu: units(1),
            custom: vec![NamedAmount { name: "npu".into(), amount: 5000 }],
            ..DemandBody::default()
        },
        gpus: vec![1],
        external_id: "pod-7".into(),
        ..AdoptRequest::default()
    };
    let first = granted(within(client.adopt(&adopt)).await.expect("answered"));
    assert_eq!((first.gpus.clone(), first.units.clone()), (vec![1], held(5000, &[0])));
    assert_eq!(granted(within(client.adopt(&adopt)).await.expect("answered")), first);
    let shown = books(&client, "a").await;
    let cpu = book(&shown, "cpu");
    assert_eq!((cpu.available, cpu.allocated, cpu.shortfall), (0, units(10), units(2)));
    assert_eq!(shown.allocations, 1);
    for (change, field) in [
        (
            AdoptRequest { demand: DemandBody { cpu: units(1), ..adopt.clone().demand }, ..adopt.clone() },
            "external_id",
        ),
        (AdoptRequest { gpus: vec![2], external_id: String::new(), ..adopt.clone() }, "gpus"),
        (AdoptRequest { gpus: vec![0, 1], external_id: String::new(), ..adopt.clone() }, "gpus"),
        (AdoptRequest { units: held(0, &[7]), external_id: String::new(), ..adopt.clone() }, "units"),
        (AdoptRequest { node: "nowhere".into(), ..adopt.clone() }, "node"),
        (
            AdoptRequest {
                demand: DemandBody { custom: vec![named("unknown", 1)], ..adopt.clone().demand },
                ..adopt.clone()
            },
            "custom[0].name",
        ),
    ] {
        let reply = within(client.adopt(&change)).await.expect("answered");
        let fault = reply.fault.expect("it is refused");
        assert_eq!(fault.field, field, "{fault}");
    }
    let before = books(&client, "a").await;
    within(client.release(first.allocation)).await.expect("answered");
    let after = books(&client, "a").await;
    assert_ne!(before, after);
    assert_eq!((book(&after, "cpu").available, book(&after, "cpu").shortfall), (units(8), 0));
    audit(&client).await;
    server.stop().await;
}

#[tokio::test]
async fn single_resources_change_below_what_is_in_use_and_all_or_none() {
    let server = TestServer::start(2);
    let client = server.client().await;
    with_npus(&client, 2).await;
    let request =
        PlaceRequest { demand: DemandBody { cpu: units(6), ..npus(units(2)).demand }, ..npus(units(2)) };
    let allocation = place(&client, &request).await.allocation;
    let set = async |resources: Vec<NamedAmount>| {
        let request = SetResourcesRequest { node: "a".into(), resources };
        within(client.set_resources(&request)).await.expect("answered")
    };
    let done = set(vec![named("cpu", 4), named("npu", 1), named("licence", 0)]).await;
    assert!(only(&done).0 == Reason::Done, "{done:?}");
    let shown = books(&client, "a").await;
    assert_eq!((book(&shown, "cpu").available, book(&shown, "cpu").shortfall), (0, units(2)));
    assert_eq!((book(&shown, "npu").total, book(&shown, "npu").shortfall), (units(1), units(1)));
    assert!(shown.resources.iter().all(|book| book.name != "licence"));
    let fault = |reply| only(&reply).1.to_owned();
    for (resources, field) in [
        (vec![named("memory", 1), named("unknown", 1)], "resources[1].name"),
        (vec![named("memory", 1), NamedAmount { name: "npu".into(), amount: 5000 }], "resources[1].amount"),
        (vec![named("memory", 1), named("gpu", 17)], "resources[1].amount"),
        (vec![named("memory", 1), named("memory", 2)], "resources"),
        (vec![], "resources"),
    ] {
        assert_eq!(fault(set(resources).await), field);
    }
    assert_eq!(books(&client, "a").await, shown, "nothing moved");
    within(client.release(allocation)).await.expect("answered");
    let shown = books(&client, "a").await;
    assert_eq!((book(&shown, "cpu").available, book(&shown, "npu").available), (units(4), units(1)));
    let gone = wharf_net::protocol::RemoveRequest {
        names: vec![wharf_net::protocol::Name("a".into())],
        force: false,
    };
    within(client.remove_nodes(&gone)).await.expect("answered");
    let removed = set(vec![named("cpu", 1)]).await;
    assert_eq!(only(&removed).0, Reason::UnknownNode);
    let error =
        within(client.node_books(&NodeBooksRequest { node: "a".into() })).await.expect_err("it is gone");
    assert!(error.to_string().contains("list the nodes"), "{error}");
    server.stop().await;
}
