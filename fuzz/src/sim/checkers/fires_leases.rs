//! Tests that the checkers of leases fire.

use std::sync::Arc;

use wharf_core::ids::{Incarnation, SessionId};
use wharf_core::request::{LeaseTerms, PlacementRequest};
use wharf_core::shard::{Command, Outcome};
use wharf_core::time::Time;

use super::fires::{Bed, Was, asks};
use super::leases::leases_end_in_time;

/// The session of these leases.
const SESSION: SessionId = SessionId { incarnation: Incarnation(1), number: 7 };

/// Returns a shard with an allocation, whose lease lasts this long and may belong to the session. It is the time 1.
fn leased(lasts_ns: u64, session: Option<SessionId>) -> (Bed, Was) {
    let mut bed = Bed::new(1);
    let lease = Some(Arc::new(LeaseTerms { lasts_ns, session }));
    let was = bed.step(Command::Place(PlacementRequest { lease, ..asks(3, 1) }));
    (bed, was)
}

#[test]
pub(super) fn a_lease_that_ends_too_early_or_too_late() {
    let name = "leases_last_as_long_as_they_say";
    let go_on = |lasts_ns| leased(lasts_ns, None).0.step(Command::GoOn);
    go_on(0).fires(name, |was| was.before.partitions[0].leases[0].until = Time(2));
    go_on(0).fires(name, |was| was.after.clone_from(&was.before));
    go_on(9).fires(name, |was| was.after.partitions[0].allocations.clear());
    go_on(9).fires(name, |was| was.after.partitions[0].leases[0].until = Time(9));
    go_on(9).fires(name, |was| was.after.partitions[0].leases[0].session = Some(SESSION));
    go_on(9).fires(name, |was| was.after.partitions[0].leases.clear());
    let allocation = leased(0, None).1.after.partitions[0].allocations[0].id;
    let granted = "allocations_are_what_was_granted";
    go_on(0).fires(granted, |was| was.command = Command::Release(allocation));
}

#[test]
pub(super) fn a_renewal_that_does_not_hold() {
    let own = || {
        let (mut bed, was) = leased(9, None);
        let allocation = was.after.partitions[0].allocations[0].id;
        bed.step(Command::RenewLease { allocation, lasts_ns: 20 })
    };
    own().fires("renewals_hold", |was| was.after.partitions[0].leases[0].until = Time(10));
    own().fires("renewals_hold", |was| {
        was.command =
            Command::RenewLease { allocation: was.after.partitions[0].allocations[0].id, lasts_ns: 21 }
    });
    let of_session =
        || leased(9, Some(SESSION)).0.step(Command::RenewSession { session: SESSION, lasts_ns: 20 });
    of_session().fires("renewals_hold", |was| was.after.partitions[0].leases[0].until = Time(20));
    of_session().fires("renewals_hold", |was| {
        if let Outcome::RenewedSession(renewed) = &mut was.outcome {
            renewed.allocations = 2;
        }
    });
    of_session().fires("rejections_move_nothing", |was| was.outcome = Outcome::NotParked);
}

#[test]
pub(super) fn a_lease_that_nobody_ends() {
    let (mut bed, was) = leased(9, None);
    assert_eq!(leases_end_in_time(std::slice::from_ref(&was.after), Time(19), 10), Ok(()));
    assert!(leases_end_in_time(&[was.after], Time(20), 10).is_err());
    let kept = bed.step(Command::GoOn).after;
    assert!(leases_end_in_time(&[kept], Time(20), 10).is_err());
}
