//! A shard answers every command as the linear scan does, and its books stay correct.

use proptest::prelude::*;
use wharf_fuzz::{bytes_of_seed, run_shard_ops};

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_outcome_is_the_oracles(data in proptest::collection::vec(any::<u8>(), 0..1500)) {
        prop_assert_eq!(run_shard_ops(&data), Ok(()));
    }
}

/// The inputs are the same on every machine and in every run.
#[test]
fn every_outcome_is_the_oracles_on_fixed_inputs() {
    for seed in 0..100 {
        assert_eq!(run_shard_ops(&bytes_of_seed(seed, 3000)), Ok(()), "seed {seed}");
    }
}
