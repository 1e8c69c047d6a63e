//! The wire format byte for byte, as in `golden_frames.rs`: leases and deadlines.

use wharf_net::protocol::*;

use crate::harness::golden::{check, check_reply, check_request};

/// The tests that check golden bytes.
pub(crate) const TESTS: &[fn()] =
    &[renewals_are_written_as_they_always_were, deadlines_are_written_as_they_always_were];

#[test]
fn renewals_are_written_as_they_always_were() {
    let allocation = WireAllocation { incarnation: 3, partition: 255, sequence: 70_000, tenant: 4 };
    let session = WireSession { incarnation: 3, number: 300 };
    let request =
        RenewRequest { lease: 1_000_000_000, allocations: vec![allocation; 2], session: Some(session) };
    check_request::<kinds::Renew>(&request, "fc00ca9a3b0203fbff00fc701101000403fbff00fc70110100040103fb2c01");
    check_request::<kinds::Renew>(&RenewRequest::default(), "000000");
    let fault = Fault::of_field(Reason::NoLease, "allocations", "m");
    let refused = RenewedBody { reason: Reason::NoLease.into(), fault: Some(fault), until: 0 };
    let renewed = RenewedBody { until: 300, ..RenewedBody::default() };
    let session = Some(SessionRenewed { allocations: 7, until: 9 });
    let reply = RenewReply { replies: vec![renewed, refused], session };
    check_reply::<kinds::Renew>(&reply, "020000fb2c01c301c30b616c6c6f636174696f6e73016d0000010709");
}

#[test]
fn deadlines_are_written_as_they_always_were() {
    check(&Deadline { within: 0 }, "00");
    check(&Deadline { within: 50_000_000 }, "fc80f0fa02");
}
