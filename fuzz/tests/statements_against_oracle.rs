//! A shard answers arbitrary commands about statements, claims and bundles as a naive model does, and its books
//! match the model.

use wharf_fuzz::{StatementCounts, bytes_of_seed, run_statement_ops};

#[test]
fn every_outcome_about_statements_is_the_models() {
    let mut counts = StatementCounts::default();
    for seed in 0..400 {
        match run_statement_ops(&bytes_of_seed(seed, 2_000)) {
            Ok(of_run) => counts.add(&of_run),
            Err(difference) => panic!("seed {seed}: {difference}"),
        }
    }
    // Each case must occur often enough to be tested.
    let StatementCounts { held, conflicted, committed, aborted, due, granted, ended, inside } = counts;
    let met = [held, conflicted, committed, aborted, due, granted, inside];
    assert!(met.iter().all(|&count| count > 200) && ended > 20, "{counts:?}");
}

/// A claim that had to move took an instance that a claim of an undecided statement had.
#[test]
fn claims_move_around_those_of_undecided_statements() {
    assert_eq!(run_statement_ops(&bytes_of_seed(26_572, 2500)).map(drop), Ok(()));
}
