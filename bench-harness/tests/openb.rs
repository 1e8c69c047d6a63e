//! The whole openb trace in process, with every policy on 1, 2 and 8 shards. Each run uses the function that
//! the command line calls and writes its placements to a file. `wharf_bench::verify`, which shares no code
//! with engine, reader or driver, checks the file.
//!
//! The trace is not part of the repository. It is looked up next to it, in `../shared/data`. If it is absent,
//! the tests print a message and pass. The embedded sample is always replayed.
#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod traces;

use traces::{CONSTRAINED, DEFAULT, Files, files, sample_files, verify_written};
use wharf_bench::replay::{Replay, ReplayOptions, Silent, replay_in_process};
use wharf_bench::verify::{Refusals, Verified};
use wharf_core::limits::PORT_IN_FLIGHT_MAX;
use wharf_core::request::Policy;

/// Replays, writes the placements, and verifies the file.
fn replay_and_verify(files: &Files, options: &ReplayOptions, refusals: Refusals) -> (Replay, Verified) {
    let replay = replay_in_process(&files.trace, options, &mut Silent).unwrap();
    let verified = verify_written(files, &replay, options, refusals);
    (replay, verified)
}

fn options(policy: Policy, shards: u16) -> ReplayOptions {
    ReplayOptions { policy, shards, seed: 7, ..ReplayOptions::default() }
}

/// Replays every policy on 1, 2 and 8 shards with 64 orders in flight. On several shards it also replays with
/// one order in flight, where each refusal must be correct at its time.
fn every_policy_on_every_number_of_shards(files: &Files) {
    for policy in Policy::ALL {
        // The replay itself fails if the scan's placements differ.
        let has_scan = policy != Policy::Hybrid;
        let one = ReplayOptions { baseline: has_scan, ..options(policy, 1) };
        let (replay, _) = replay_and_verify(files, &one, Refusals::AtTheirMoment);
        let identical = (has_scan && policy != Policy::Random).then_some(true);
        assert_eq!(replay.report.baseline_identical, identical);
        for shards in [2, 8] {
            let many = options(policy, shards);
            let (replay, _) = replay_and_verify(files, &many, Refusals::AtTheEnd);
            assert_eq!(replay.report.shards, shards);
        }
        let sequential = ReplayOptions { in_flight: 1, ..options(policy, 8) };
        replay_and_verify(files, &sequential, Refusals::AtTheirMoment);
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
    let (_, verified) = replay_and_verify(&files, &options(Policy::BestFit, 1), Refusals::AtTheirMoment);
    assert_eq!(verified.constrained, 1444);
    assert!(verified.constrained_placed > 1000, "{verified:?}");
    assert!(verified.multi_gpu_placed > 50, "{verified:?}");
}

#[test]
fn the_sample_is_placed_soundly() {
    every_policy_on_every_number_of_shards(&sample_files());
}

#[test]
fn on_one_shard_the_number_in_flight_changes_nothing() {
    let files = sample_files();
    for policy in Policy::ALL {
        for departures in [false, true] {
            let run = |in_flight| {
                let options = ReplayOptions { in_flight, departures, ..options(policy, 1) };
                replay_and_verify(&files, &options, Refusals::AtTheirMoment).0.decisions
            };
            let one = run(1);
            assert!(run(64) == one && run(PORT_IN_FLIGHT_MAX) == one, "{policy}, departures {departures}");
        }
    }
}

#[test]
fn departures_are_sound_at_every_moment() {
    let traces = [Some(sample_files()), files(DEFAULT), files(CONSTRAINED)];
    for files in traces.into_iter().flatten() {
        for shards in [1, 8] {
            let leaving =
                |policy| ReplayOptions { departures: true, baseline: true, ..options(policy, shards) };
            let (replay, _) = replay_and_verify(&files, &leaving(Policy::BestFit), Refusals::Accepted);
            assert!(replay.report.gpu_peak_milli > 0 && replay.report.gpu_allocated_milli == 0);
            replay_and_verify(&files, &leaving(Policy::NextFit), Refusals::Accepted);
        }
    }
}
