//! The whole openb trace in process, with every policy on 1, 2 and 8 shards. Each run uses the function that
//! the command line calls and writes its placements to a file. `wharf_bench::verify`, which shares no code
//! with engine, reader or driver, checks the file.
//!
//! The trace is not part of the repository. It is looked up next to it, in `../shared/data`. If it is absent,
//! the tests print a message and pass. The embedded sample is always replayed.
#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod traces;

use std::fmt::Write as _;
use std::path::Path;

use traces::{CONSTRAINED, DEFAULT, Files, files, sample_files, verify_written};
use wharf_bench::replay::{Decision, Replay, ReplayOptions, Silent, replay_in_process};
use wharf_bench::verify::{Refusals, Verified};
use wharf_core::hash::stable_hash;
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

/// The digests of all decisions, next to this file.
const DECISIONS: &str = "tests/openb_decisions.txt";

/// Writes the digests again instead of comparing them.
const WRITE_DECISIONS: &str = "WHARF_WRITE_DECISIONS";

/// Returns a digest over all decisions in the order of the pods: the node, and the GPU instances with the part of each.
fn digest(decisions: &[Decision]) -> u64 {
    let mut bytes = Vec::new();
    for decision in decisions {
        match *decision {
            Decision::Placed { node, gpus } => {
                bytes.extend((node as u64).to_le_bytes());
                bytes.extend((gpus.instances().count() as u64).to_le_bytes());
                bytes.extend(gpus.instances());
                bytes.extend(gpus.units().to_le_bytes());
            }
            Decision::Refused(_) => bytes.extend(u64::MAX.to_le_bytes()),
        }
    }
    stable_hash(&bytes)
}

/// Returns a line with the digest for each policy. `None`: the trace is absent.
fn digests(pods: &str) -> Option<String> {
    let files = files(pods)?;
    let mut lines = String::new();
    for policy in Policy::ALL {
        let replay = replay_in_process(&files.trace, &options(policy, 1), &mut Silent).unwrap();
        writeln!(lines, "{pods} {policy} {:016x}", digest(&replay.decisions)).unwrap();
    }
    Some(lines)
}

/// A change of a decision that nobody meant shows here, although each decision may be sound.
#[test]
fn the_decisions_do_not_change() {
    let (Some(default), Some(constrained)) = (digests(DEFAULT), digests(CONSTRAINED)) else { return };
    let found = default + &constrained;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DECISIONS);
    let text = std::fs::read_to_string(&path).unwrap();
    let (comments, kept): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('#'));
    if std::env::var_os(WRITE_DECISIONS).is_some() {
        std::fs::write(&path, format!("{}\n{found}", comments.join("\n"))).unwrap();
        return;
    }
    let advice = format!("run this test with {WRITE_DECISIONS}=1, and keep {DECISIONS}");
    assert!(!kept.is_empty(), "there are no digests yet: {advice}");
    let found: Vec<&str> = found.lines().collect();
    assert!(
        found == kept,
        "decisions have changed. If that is meant, {advice}.\nkept: {kept:#?}\nfound: {found:#?}"
    );
}
