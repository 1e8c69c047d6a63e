//! The wire format byte for byte, as in `golden_frames.rs`: reservations.

use wharf_net::protocol::*;

use crate::harness::golden::{check, check_reply, check_request};

/// The tests that check golden bytes.
pub(crate) const TESTS: &[fn()] = &[
    reservations_are_written_as_they_always_were,
    the_reservation_of_a_nodes_books_is_written_as_it_always_was,
];

#[test]
fn reservations_are_written_as_they_always_were() {
    let request = ReserveRequest {
        node: "n".to_owned(),
        owner: 300,
        demand: DemandBody {
            cpu: 10_000,
            memory: 20_000,
            gpu: 5000,
            custom: vec![NamedAmount { name: "npu".to_owned(), amount: 20_000 }],
        },
        lasts: 1_000_000_000,
    };
    check_request::<kinds::Reserve>(&request, "016efb2c01fb204efb409cfb102701036e7075fb409cfc00ca9a3b");
    check_request::<kinds::EndReservation>(
        &EndReservationRequest { node: "n".to_owned(), owner: 7 },
        "016e07",
    );
    check_reply::<kinds::Reserve>(
        &ReserveReply { reason: Reason::Done.into(), node: 7, until: 9, fault: None },
        "00070900",
    );
    let fault = Fault::of_field(Reason::NodeReserved, "node", "m");
    let refused =
        ReserveReply { reason: Reason::NodeReserved.into(), fault: Some(fault), ..Default::default() };
    check_reply::<kinds::EndReservation>(&refused, "7700000177046e6f6465016d00");
}

#[test]
fn the_reservation_of_a_nodes_books_is_written_as_it_always_was() {
    let left = vec![NamedAmount { name: "cpu".to_owned(), amount: 10_000 }];
    let exceeded = vec![Name("cpu".to_owned())];
    let body = ReservationBody { owner: 7, until: 1, left, lasts: 5, exceeded };
    check(&body, "07010103637075fb204e050103637075");
    check(&ReservedNode { owner: 7, until: 9 }, "0709");
}
