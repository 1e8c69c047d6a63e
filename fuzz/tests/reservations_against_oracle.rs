//! With reservations, a shard answers every command as the linear scan does, under every policy.

use wharf_core::request::Policy;
use wharf_fuzz::{ReservationCounts, run_reservation_ops};

#[test]
fn every_outcome_around_reservations_is_the_oracles() {
    let mut counts = ReservationCounts::default();
    for seed in 0..60 {
        match run_reservation_ops(seed, 400) {
            Ok(of_run) => counts.add(&of_run),
            Err(difference) => panic!("{difference}"),
        }
    }
    // Each case must occur often enough to be tested.
    for policy in Policy::ALL {
        assert!(counts.on_own.get(policy.name()).is_some_and(|&on_own| on_own > 20), "{policy}: {counts:?}");
    }
    let met = [counts.on_other_nodes, counts.made, counts.ended, counts.kept_from];
    assert!(met.iter().all(|&count| count > 200), "{counts:?}");
}
