//! Views are states of the shard and never change. Replicas that are built from them place as the shard does,
//! and followers end with their content.

use wharf_fuzz::{ViewCounts, bytes_of_seed, run_view_ops};

/// The inputs are the same on every machine and in every run.
#[test]
fn replicas_place_as_their_shard_does() {
    let mut counts = ViewCounts::default();
    for seed in 0..200 {
        let run = run_view_ops(&bytes_of_seed(1_000 + seed, 3000));
        counts.add(&run.unwrap_or_else(|difference| panic!("seed {seed}: {difference}")));
    }
    assert!(
        counts.placed > 300 && counts.refused > 300 && counts.views > 1_000 && counts.told > 1_000,
        "{counts:?}"
    );
}
