//! The whole openb trace over QUIC: a daemon with 1, 2 and 8 shards, every policy, and the placements file
//! verified as in process (`openb.rs`).
#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod traces;

use std::time::Duration;

use traces::{CONSTRAINED, DEFAULT, Files, files, sample_files, verify_written};
use wharf_bench::replay::{Replay, ReplayOptions, Silent, replay_on};
use wharf_bench::target::RemoteTarget;
use wharf_bench::verify::{Refusals, Verified};
use wharf_core::request::Policy;
use wharf_net::client::{Client, ClientConfig};
use wharf_ops::config::Config;
use wharf_ops::daemon::Daemon;

/// Replays to a new daemon over QUIC, and verifies the placements file.
fn replay_and_verify(files: &Files, options: &ReplayOptions, refusals: Refusals) -> (Replay, Verified) {
    let directory = tempfile::tempdir().unwrap();
    let mut config = Config::embedded(directory.path().to_owned());
    config.listen.set_port(0);
    config.metrics_listen = None;
    config.engine.shards = options.shards;
    config.engine.seed = options.seed;
    let daemon = Daemon::start(config).unwrap();
    let client = ClientConfig {
        server: daemon.address,
        server_name: "localhost".to_owned(),
        roots: daemon.certificates.clone(),
        certificate: None,
        name: "replay test".to_owned(),
        retry_for: Duration::ZERO,
    };
    let replay = {
        let mut server = RemoteTarget::open(|| Client::connect(client)).unwrap();
        replay_on(&mut server, &files.trace, options, &mut Silent).unwrap()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(daemon.stop()).unwrap();
    assert_eq!((replay.report.transport, replay.report.shards), ("quic", options.shards));
    let verified = verify_written(files, &replay, options, refusals);
    (replay, verified)
}

fn every_policy_on_every_number_of_shards(files: &Files) {
    for policy in Policy::ALL {
        let options = |shards, baseline| ReplayOptions {
            policy,
            shards,
            seed: 7,
            baseline,
            ..ReplayOptions::default()
        };
        // With one connection and one shard, the scan's placements must be identical, or the replay fails.
        let has_scan = policy != Policy::Hybrid;
        let (replay, _) = replay_and_verify(files, &options(1, has_scan), Refusals::AtTheirMoment);
        let identical = (has_scan && policy != Policy::Random).then_some(true);
        assert_eq!(replay.report.baseline_identical, identical);
        for shards in [2, 8] {
            replay_and_verify(files, &options(shards, false), Refusals::AtTheEnd);
        }
    }
}

#[test]
fn the_default_pods_are_placed_soundly() {
    let Some(files) = files(DEFAULT) else { return };
    every_policy_on_every_number_of_shards(&files);
}

#[test]
fn the_constrained_pods_are_placed_soundly() {
    let Some(files) = files(CONSTRAINED) else { return };
    every_policy_on_every_number_of_shards(&files);
    let options =
        ReplayOptions { policy: Policy::BestFit, in_flight: 1, shards: 8, ..ReplayOptions::default() };
    let (_, verified) = replay_and_verify(&files, &options, Refusals::AtTheirMoment);
    assert!(verified.constrained_placed > 1000, "{verified:?}");
}

#[test]
fn the_sample_is_placed_soundly() {
    every_policy_on_every_number_of_shards(&sample_files());
}

#[test]
fn departures_over_quic_leave_empty_books() {
    let options = ReplayOptions { departures: true, baseline: true, ..ReplayOptions::default() };
    let (replay, _) = replay_and_verify(&sample_files(), &options, Refusals::Accepted);
    assert!(replay.report.gpu_peak_milli > 0 && replay.report.gpu_allocated_milli == 0);
}
