//! The wire format byte for byte, as in `golden_frames.rs`: adoption, single resources, books,
//! waiting, and the extensions of replies that name units and count what waits.

use serde::Serialize;
use serde::de::DeserializeOwned;
use wharf_net::codec::{decode_body, encode_body};
use wharf_net::protocol::*;

/// Bytes of a body and what is read from them.
#[track_caller]
fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(body: &T, expected: &str) {
    let mut bytes = Vec::new();
    encode_body(body, &mut bytes);
    assert_eq!(hex(&bytes), expected);
    let (read, taken) = decode_body::<T>(&bytes).expect("a body");
    assert_eq!((&read, taken), (body, bytes.len()));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn amount(name: &str, amount: i64) -> NamedAmount {
    NamedAmount { name: name.to_owned(), amount }
}

fn npus() -> NamedUnits {
    NamedUnits { name: "npu".to_owned(), instances: vec![0, 2], part: 10_000 }
}

#[test]
fn adoption_is_written_as_it_always_was() {
    let request = AdoptRequest {
        node: "n".to_owned(),
        cpu: 10_000,
        memory: 20_000,
        gpu: 5000,
        custom: vec![amount("npu", 20_000)],
        gpus: vec![3],
        units: vec![npus()],
        external_id: "pod".to_owned(),
    };
    check(&request, "016efb204efb409cfb102701036e7075fb409c010301036e7075020002fb102703706f64");
}

#[test]
fn single_resources_are_written_as_they_always_were() {
    check(
        &SetResourcesRequest { node: "n".to_owned(), resources: vec![amount("cpu", 640_000)] },
        "016e0103637075fc00881300",
    );
}

#[test]
fn books_are_written_as_they_always_were() {
    check(&NodeBooksRequest { node: "n".to_owned() }, "016e");
    let book = BookBody {
        name: "gpu".to_owned(),
        total: 1,
        available: 2,
        allocated: 3,
        held: 4,
        releasing: 5,
        pipelined: 6,
        reserved: 7,
        unhealthy: 8,
        shortfall: 9,
        load: 10,
    };
    let instance = InstanceBody {
        name: "gpu".to_owned(),
        instance: 1,
        available: 2,
        allocated: 3,
        shortfall: 4,
        ..InstanceBody::default()
    };
    check(
        &NodeBooksReply {
            node: 7,
            allocations: 2,
            resources: vec![book],
            instances: vec![instance],
            reservation: None,
        },
        "07020103677075020406080a0c0e101214010367707501020304",
    );
}

#[test]
fn what_ended_inside_bundles_stands_in_an_extension() {
    let bundle = ReleaseReply { inside_ended: Some(300), ..ReleaseReply::default() };
    let told = [ReleaseReply::default(), bundle];
    let mut bytes = Vec::new();
    released_extension(&told, &mut bytes);
    assert_eq!((EXTENSION_BUNDLES_RELEASED, hex(&bytes).as_str()), (24, "0101fb2c01"));
    let framed = [&[24, 0, bytes.len() as u8, 0, 0, 0][..], &bytes].concat();
    let mut read = [ReleaseReply::default(), ReleaseReply::default()];
    read_released(&framed, &mut read).expect("as it was written");
    assert_eq!(read, told);
    assert!(read_released(&framed, &mut read[..1]).is_err(), "it speaks of the second");
    bytes.clear();
    released_extension(&[ReleaseReply::default()], &mut bytes);
    assert!(bytes.is_empty());
}

#[test]
fn an_extension_that_cannot_be_read_is_the_peers_fault() {
    let broken = |tag: u16| [&tag.to_le_bytes()[..], &[1, 0, 0, 0, 255]].concat();
    let mut placed = PlaceReply { placed: Some(PlacedBody::default()), ..PlaceReply::default() };
    let (mut books, mut status) = (NodeBooksReply::default(), StatusReply::default());
    let mut page = ListDetailsReply::default();
    for (tag, read) in [
        (EXTENSION_UNITS, read_units(&broken(EXTENSION_UNITS), [&mut placed])),
        (EXTENSION_WAITING, read_waiting(&broken(EXTENSION_WAITING), &mut status)),
        (EXTENSION_RESERVED, read_reserved(&broken(EXTENSION_RESERVED), &mut status)),
        (EXTENSION_UNHEALTHY, read_unhealthy(&broken(EXTENSION_UNHEALTHY), &mut books)),
        (EXTENSION_RESERVATION, read_reservation(&broken(EXTENSION_RESERVATION), &mut books)),
        (EXTENSION_RESERVED_NODES, read_reserved_nodes(&broken(EXTENSION_RESERVED_NODES), &mut page)),
    ] {
        let error = read.expect_err("one byte is none of these");
        assert_eq!(error.field, format!("extensions[{tag}]"), "{error}");
    }
    // Of what was not placed there are no units, and none of a second one.
    read_units(&[1, 0, 3, 0, 0, 0, 1, 0, 0], [&mut placed]).expect("units of no kind");
    for (place, of) in [(1, &mut placed), (0, &mut PlaceReply::default())] {
        assert!(read_units(&[1, 0, 3, 0, 0, 0, 1, place, 0], [of]).is_err());
    }
}

#[test]
fn the_end_of_a_wait_is_written_as_it_always_was() {
    check(&CancelRequest { sequence: 300 }, "fb2c01");
    check(&CancelReply { waited: true }, "01");
}

#[test]
fn extensions_are_written_as_they_always_were() {
    assert_eq!((EXTENSION_UNITS, EXTENSION_WAITING), (1, 2));
    check(&Waiting { feasible: 3, infeasible: 300 }, "03fb2c01");
    let placed = PlacedBody { units: vec![npus()], ..PlacedBody::default() };
    let reply = PlaceReply { placed: Some(placed), ..PlaceReply::default() };
    let mut bytes = Vec::new();
    units_extension([&PlaceReply::default(), &reply], &mut bytes);
    assert_eq!(hex(&bytes), "010101036e7075020002fb1027");
    let sick = InstanceBody { unhealthy: 300, reason: "Xid 79".to_owned(), ..InstanceBody::default() };
    let mut books =
        NodeBooksReply { instances: vec![InstanceBody::default(), sick], ..NodeBooksReply::default() };
    let mut bytes = Vec::new();
    unhealthy_extension(&books, &mut bytes);
    assert_eq!((EXTENSION_UNHEALTHY, hex(&bytes).as_str()), (3, "0101fb2c0106586964203739"));
    let framed = [&[3, 0, bytes.len() as u8, 0, 0, 0][..], &bytes].concat();
    let told = books.clone();
    books.instances[1] = InstanceBody::default();
    read_unhealthy(&framed, &mut books).expect("as it was written");
    assert_eq!(books, told);
    // What stands in an extension stands in no body.
    let bare = PlaceReply { placed: Some(PlacedBody::default()), ..PlaceReply::default() };
    let body = |reply: &PlaceReply| {
        let mut bytes = Vec::new();
        encode_body(reply, &mut bytes);
        bytes
    };
    assert_eq!(body(&reply), body(&bare));
}
