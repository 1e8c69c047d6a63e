//! A start reads exactly what a clean stop writes, for every stop of many simulated runs.

use std::sync::Arc;

use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::state::StoreState;
use wharf_fuzz::sim::{Settings, run_seed};
use wharf_ops::journal::{Durability, Store};

/// The number of seeds in an ordinary test run. Every other run has no groups.
const SEEDS: u64 = 40;

/// Writes the state as a stop does and reads it as the next start does.
fn written_and_read(state: &StoreState) -> StoreState {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let partitions = u16::try_from(state.partitions.len()).expect("few partitions");
    let open = || Store::open(directory.path(), partitions, Durability::Memory);
    let (mut store, new) = open().expect("a new store");
    store.begin(state.incarnation, &new).expect("it can be written");
    store.checkpoint(state, None).expect("it can be written");
    drop(store);
    let (_store, read) = open().expect("what a stop wrote is accepted");
    read
}

/// Returns the state as it is stored. `wait_until` means nothing once a group is placed, so it is not stored.
fn as_stored(mut state: StoreState) -> StoreState {
    for group in &mut state.groups {
        Arc::make_mut(&mut group.spec).wait_until = None;
    }
    state
}

#[test]
fn a_start_accepts_what_every_stop_wrote() {
    let mut stops = 0;
    for seed in 1..=SEEDS {
        let settings = Settings { keeps_stops: true, groups: seed % 2 == 0, ..Settings::default() };
        let report = run_seed(seed, settings);
        assert_eq!(report.found, None, "seed {seed}");
        for state in report.stops {
            stops += 1;
            let read = written_and_read(&state);
            let state = as_stored(state);
            assert_eq!(read.registrar, state.registrar, "seed {seed}");
            assert_eq!(read.partitions, state.partitions, "seed {seed}");
            assert_eq!(read.groups, state.groups, "seed {seed}");
            assert!(read == state, "seed {seed}: the policies are others");
            let shards = 1 + (stops % 3) as u16;
            let config = EngineConfig { shards, ..EngineConfig::default() };
            Engine::open(read, &config, vec![std::task::Waker::noop().clone()]).expect("numbers in range");
        }
    }
    assert!(stops > SEEDS, "a run stops at least once, and most stop more often: {stops}");
}
