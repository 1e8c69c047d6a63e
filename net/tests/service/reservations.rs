//! Reservations over the wire: made, used and ended. Refusals name the field and change nothing. A deadline
//! takes effect without any request.

use crate::harness::{TestServer, add, ask, audit, books, granted, named, node, units, within};
use wharf_net::client::Client;
use wharf_net::protocol::{
    DemandBody, EndReservationRequest, MODE_WAIT_UNTIL, NamedAmount, NodeBody, NodeBooksReply,
    NodeBooksRequest, PlaceBatch, PlaceReply, PlaceRequest, Reason, ReserveReply, ReserveRequest, kinds,
};

fn wanted(node: &str, owner: u64, cpu: i64, gpu: i64) -> ReserveRequest {
    ReserveRequest {
        node: node.into(),
        owner,
        demand: DemandBody { cpu: units(cpu), gpu: units(gpu), ..DemandBody::default() },
        ..ReserveRequest::default()
    }
}

async fn reserve(client: &Client, request: &ReserveRequest) -> ReserveReply {
    within(client.reserve(request)).await.expect("answered")
}

async fn end(client: &Client, node: &str, owner: u64) -> ReserveReply {
    let request = EndReservationRequest { node: node.into(), owner };
    within(client.end_reservation(&request)).await.expect("answered")
}

fn of(owner: u64, request: PlaceRequest) -> PlaceRequest {
    PlaceRequest { owner, ..request }
}

async fn place_of(client: &Client, owner: u64, request: PlaceRequest) -> PlaceReply {
    within(client.place(&of(owner, request))).await.expect("answered")
}

async fn shown(client: &Client, name: &str) -> NodeBooksReply {
    within(client.node_books(&NodeBooksRequest { node: name.into() })).await.expect("the node is there")
}

#[tokio::test]
async fn a_node_is_kept_for_its_owner_until_that_has_used_it_up() {
    let server = TestServer::start(2);
    let client = server.client().await;
    add(&client, vec![node("a", 8, 8192, 2)]).await;
    let reply = reserve(&client, &wanted("a", 7, 6, 1)).await;
    assert_eq!((reply.reason, reply.until, reply.fault), (Reason::Done.into(), 0, None));
    let books = shown(&client, "a").await;
    let reservation = books.reservation.clone().expect("it is shown");
    let left = |name: &str, amount| NamedAmount { name: name.into(), amount };
    assert_eq!((reservation.owner, reservation.until), (7, 0));
    assert_eq!(reservation.left, [left("cpu", units(6)), left("gpu", units(1))]);
    let cpu = &books.resources[0];
    assert_eq!((cpu.available, cpu.reserved, cpu.total), (units(2), units(6), units(8)));

    // Two cores and one device are left for others. The refusal says that the node is reserved.
    let refused = within(client.place(&ask(3, 0, 0))).await.expect("answered");
    let checks = refused.refusal.expect("it says why").checks;
    assert_eq!(checks.len(), 1, "{checks:?}");
    assert_eq!((checks[0].reason, checks[0].nodes), (Reason::ReservedForOther.into(), 1));
    granted(within(client.place(&ask(2, 0, 1))).await.expect("answered"));
    assert_eq!(place_of(&client, 8, ask(1, 0, 0)).await.reason, Reason::NoFitNow.into());

    granted(place_of(&client, 7, ask(4, 0, 0)).await);
    let left: Vec<_> = shown(&client, "a").await.reservation.expect("not used up").left;
    assert_eq!(left.iter().map(|named| named.amount).collect::<Vec<_>>(), [units(2), units(1)]);
    let batch = PlaceBatch { requests: vec![of(0, ask(1, 0, 0)), of(7, ask(2, 0, 1)), of(7, ask(1, 0, 0))] };
    let replies = within(client.place_batch(&batch)).await.expect("answered").replies;
    let reasons: Vec<_> = replies.iter().map(|reply| reply.reason.known()).collect();
    assert_eq!(reasons, [Some(Reason::NoFitNow), Some(Reason::Done), Some(Reason::NoFitNow)]);
    assert_eq!(shown(&client, "a").await.reservation, None);
    audit(&client).await;
    server.stop().await;
}

#[tokio::test]
async fn what_cannot_be_reserved_is_refused_and_moves_nothing() {
    let server = TestServer::start(1);
    let client = server.client().await;
    let body = NodeBody { custom: vec![named("npu", 2)], ..node("a", 8, 8192, 2) };
    add(&client, vec![body, node("b", 8, 8192, 0)]).await;
    assert!(reserve(&client, &wanted("a", 1, 8, 0)).await.reason.is_done());
    let before = books(&client).await;
    let with_custom = |name: &str, amount| ReserveRequest {
        demand: DemandBody {
            custom: vec![NamedAmount { name: name.into(), amount }],
            ..wanted("a", 1, 1, 0).demand
        },
        ..wanted("a", 1, 1, 0)
    };
    let half = ReserveRequest {
        demand: DemandBody { gpu: 15_000, ..wanted("a", 1, 1, 0).demand },
        ..wanted("a", 1, 1, 0)
    };
    let cases = [
        (wanted("a", 2, 1, 0), Reason::NodeReserved, "node", "owner 1"),
        (wanted("b", 1, 1, 0), Reason::LimitExceeded, "node", "reserved_nodes_percent"),
        (wanted("nowhere", 1, 1, 0), Reason::UnknownNode, "node", "nowhere"),
        (wanted("a", 0, 1, 0), Reason::InvalidField, "owner", "from 1 on"),
        (wanted("a", 1, 9, 0), Reason::ExceedsCapacity, "cpu", "8 of"),
        (wanted("a", 1, 0, 3), Reason::ExceedsCapacity, "gpu", "2 of"),
        (wanted("a", 1, 0, 0), Reason::InvalidField, "cpu", "say how much"),
        (wanted("a", 1, -1, 0), Reason::InvalidField, "cpu", ""),
        (half, Reason::InvalidField, "gpu", "whole number"),
        (with_custom("unknown", 1), Reason::InvalidField, "custom[0].name", "unknown"),
        (with_custom("npu", 15_000), Reason::InvalidField, "custom[0].amount", "whole number"),
        (with_custom("npu", units(3)), Reason::ExceedsCapacity, "custom", "`npu`"),
        (ReserveRequest { lasts: u64::MAX, ..wanted("a", 1, 1, 0) }, Reason::InvalidField, "lasts", "0 for"),
    ];
    for (request, reason, field, says) in cases {
        let reply = reserve(&client, &request).await;
        let fault = reply.fault.unwrap_or_else(|| panic!("{request:?} was done"));
        assert_eq!((fault.reason.known(), fault.field.as_str()), (Some(reason), field), "{fault:?}");
        assert!(fault.message.contains(says), "{fault:?}");
        assert_eq!(reply.reason, fault.reason);
    }
    for (name, owner, reason, field) in [
        ("a", 2, Reason::NotReserved, "owner"),
        ("b", 1, Reason::NotReserved, "owner"),
        ("a", 0, Reason::InvalidField, "owner"),
        ("nowhere", 1, Reason::UnknownNode, "node"),
    ] {
        let fault = end(&client, name, owner).await.fault.expect("there is none");
        assert_eq!((fault.reason.known(), fault.field.as_str()), (Some(reason), field), "{fault:?}");
    }
    assert_eq!(books(&client).await, before);
    assert!(end(&client, "a", 1).await.reason.is_done());
    assert_eq!(shown(&client, "a").await.reservation, None);
    server.stop().await;
}

#[tokio::test]
async fn what_waits_is_woken_when_a_reservation_ends_by_itself() {
    let server = TestServer::start(3);
    let client = server.client().await;
    add(&client, vec![node("a", 8, 8192, 0)]).await;
    let short = ReserveRequest { lasts: 50_000_000, ..wanted("a", 1, 8, 0) };
    let until = reserve(&client, &short).await.until;
    assert!(until > 0);
    let waits = PlaceRequest { mode: MODE_WAIT_UNTIL, ..ask(8, 0, 0) };
    // Nothing else happens, so the shard must wake by itself.
    granted(within(client.place(&waits)).await.expect("answered"));
    assert!(audit(&client).await.now >= until);
    server.stop().await;
}

#[tokio::test]
async fn a_waiting_owner_gets_what_comes_free_on_its_node() {
    let server = TestServer::start(2);
    let client = server.client().await;
    add(&client, vec![node("a", 8, 8192, 0)]).await;
    let held = granted(within(client.place(&ask(5, 0, 0))).await.expect("answered")).allocation;
    assert!(reserve(&client, &wanted("a", 3, 8, 0)).await.reason.is_done());
    let waits = |request| PlaceRequest { mode: MODE_WAIT_UNTIL, ..request };
    let hostile = waits(PlaceRequest { priority: 9, ..ask(1, 0, 0) });
    let (sequence, hostile) = within(client.call_waiting::<kinds::Place>(&hostile)).await.expect("sent");
    let owner = of(3, waits(ask(8, 0, 0)));
    let (_, large) = within(client.call_waiting::<kinds::Place>(&owner)).await.expect("sent");
    within(client.release(held)).await.expect("answered");
    granted(within(large).await.expect("answered"));
    assert!(within(client.cancel_wait(sequence)).await.expect("answered").waited);
    assert_eq!(within(hostile).await.expect("answered").reason, Reason::Cancelled.into());
    audit(&client).await;
    server.stop().await;
}
