//! The functions that the fuzz targets call find bugs that are planted on purpose. Without the bugs they find
//! nothing in the same inputs.
//!
//! Builds without debug assertions have no planted bugs.
#![cfg(debug_assertions)]

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use wharf_core::planted::{PlantedBug, with_planted};
use wharf_fuzz::sim::power::{Effort, Tried, lose_power};
use wharf_fuzz::sim::{Journaling, Settings, run_given, run_seed};
use wharf_fuzz::{
    bytes_of_seed, run_codec, run_config, run_connection, run_index_ops, run_journal, run_session_bytes,
    run_shard_ops, run_statement_ops, run_trace, stored_inputs,
};

/// The number of inputs within which a bug must be found. A target runs as many in a second.
const INPUTS: u64 = 1024;

/// Checks that `run` finds `bug` in generated inputs, and finds nothing in them without it. A finding is a
/// difference or a panic, as for libFuzzer.
fn finds<E: Debug + PartialEq>(run: impl Fn(&[u8]) -> Result<(), E>, bug: PlantedBug) {
    for seed in 0..INPUTS {
        let input = bytes_of_seed(seed, 1500);
        assert_eq!(run(&input), Ok(()), "a difference without any planted bug");
        let verdict = catch_unwind(AssertUnwindSafe(|| with_planted(bug, || run(&input))));
        if !matches!(verdict, Ok(Ok(()))) {
            println!("{bug:?} is found by input {seed}");
            return;
        }
    }
    panic!("{bug:?} survived {INPUTS} inputs");
}

#[test]
fn index_operations_find_a_stale_maximum() {
    finds(run_index_ops, PlantedBug::IndexStaleMaximum);
}

#[test]
fn index_operations_find_a_search_that_starts_one_late() {
    finds(run_index_ops, PlantedBug::NextFitOneLate);
}

#[test]
fn shard_operations_find_a_forgotten_wake_up() {
    finds(run_shard_ops, PlantedBug::WakeUpForgotten);
}

#[test]
fn shard_operations_find_a_release_that_revives_an_unhealthy_instance() {
    finds(run_shard_ops, PlantedBug::ReleaseRevivesUnhealthy);
}

#[test]
fn shard_operations_find_a_rank_that_is_stale_after_an_update() {
    finds(run_shard_ops, PlantedBug::RankStaleAfterUpdate);
}

#[test]
fn shard_operations_find_what_a_release_gives_back_past_a_reservation() {
    finds(run_shard_ops, PlantedBug::ReservationForgottenByReleases);
}

#[test]
fn shard_operations_find_a_renewal_that_is_forgotten() {
    finds(run_shard_ops, PlantedBug::RenewalForgotten);
}

#[test]
fn shard_operations_find_a_renewal_that_the_journal_misses() {
    finds(run_shard_ops, PlantedBug::RenewalNotJournaled);
}

fn statement_ops(input: &[u8]) -> Result<(), String> {
    run_statement_ops(input).map(drop)
}

#[test]
fn statement_operations_find_an_abort_that_forgets_a_gpu() {
    finds(statement_ops, PlantedBug::AbortForgetsGpu);
}

#[test]
fn statement_operations_find_a_hold_that_the_clock_ends() {
    finds(statement_ops, PlantedBug::ClockEndsHold);
}

#[test]
fn statement_operations_find_a_claim_for_which_nothing_is_withheld() {
    finds(statement_ops, PlantedBug::ClaimNotWithheld);
}

#[test]
fn the_codec_run_finds_an_unchecked_extension_length() {
    finds(run_codec, PlantedBug::ExtensionLengthUnchecked);
}

#[test]
fn session_bytes_find_a_mark_that_passes_a_request() {
    finds(|input| run_session_bytes(input).map(drop), PlantedBug::MarkPassesRequest);
}

#[test]
fn connections_find_room_that_a_lost_connection_keeps() {
    finds(|input| run_connection(input).map(drop), PlantedBug::RoomOfLostConnectionKept);
}

#[test]
fn connections_find_bugs_of_the_simulator_too() {
    finds(|input| run_connection(input).map(drop), PlantedBug::CreditsIgnored);
    finds(|input| run_connection(input).map(drop), PlantedBug::AnswerToLostConnectionDropped);
}

#[test]
fn readers_of_stores_find_a_hash_that_is_not_compared() {
    finds(run_journal, PlantedBug::ValueHashUnchecked);
}

#[test]
fn settings_find_a_range_that_is_not_checked() {
    finds(|input| run_config(&input[..64]).map(drop), PlantedBug::SettingRangeUnchecked);
}

#[test]
fn traces_find_an_amount_that_is_not_checked() {
    finds(|input| run_trace(&input[..200]).map(drop), PlantedBug::TraceAmountUnchecked);
}

#[test]
fn shard_operations_find_a_request_that_passes_a_bundle() {
    finds(run_shard_ops, PlantedBug::RequestPassesBundle);
}

/// The number of simulated worlds within which a bug must be found.
const SEEDS: u64 = 2000;

/// Checks that the simulator finds `bug` and nothing in the same worlds without it. The finding must contain
/// one of the texts in `by`.
fn simulator_finds(bug: PlantedBug, by: &[&str]) {
    // Jobs show many of these bugs as something else.
    simulator_finds_with(bug, by, Settings { jobs: false, ..Settings::default() });
}

fn simulator_finds_with(bug: PlantedBug, by: &[&str], settings: Settings) {
    for seed in 1..=SEEDS {
        let report = with_planted(bug, || run_seed(seed, settings));
        if let Some((step, found)) = report.found {
            assert!(by.iter().any(|by| found.contains(by)), "{bug:?} shows as something else: {found}");
            assert_eq!(run_seed(seed, settings).found, None, "without any planted bug");
            println!("{bug:?} is found by seed {seed} at step {step}: {found}");
            return;
        }
    }
    panic!("{bug:?} survived {SEEDS} worlds");
}

#[test]
fn the_simulator_finds_bugs_in_a_shard() {
    simulator_finds(
        PlantedBug::WakeUpForgotten,
        &["index_agrees_with_table", "nothing_waits_that_would_fit"],
    );
    simulator_finds(
        PlantedBug::ReleaseRevivesUnhealthy,
        &["unhealthy_offers_nothing", "index_agrees_with_table", "panic"],
    );
    simulator_finds(PlantedBug::RenewalForgotten, &["renewals_hold"]);
    simulator_finds(PlantedBug::ReservationForgottenByReleases, &["index_agrees_with_table", "panic"]);
    simulator_finds(PlantedBug::IndexStaleMaximum, &["index_agrees_with_table", "refusals_are_true"]);
}

#[test]
fn the_simulator_finds_bugs_of_the_journal() {
    let finds = |bug, by: &[&str]| {
        simulator_finds_with(
            bug,
            by,
            Settings { journal: Journaling::Always, jobs: false, ..Settings::default() },
        );
    };
    // A client was told what a crash takes back, or the books have what no number of units leads to.
    finds(
        PlantedBug::ReplyBeforeDurable,
        &["promises_are_kept", "a_crash_keeps_the_nodes", "a_start_keeps_the_outcomes"],
    );
    finds(
        PlantedBug::SyncSkipped,
        &["a_crash_leaves_no_half", "a start finds what no crash leaves", "panic"],
    );
    finds(
        PlantedBug::RecordedAfterAnswers,
        &[
            "promises_are_kept",
            "a_crash_leaves_no_half",
            "a_start_keeps_the_books",
            "a_start_keeps_the_outcomes",
        ],
    );
    finds(PlantedBug::EffectForgotten, &["a_crash_leaves_no_half", "a start finds what no crash leaves"]);
    finds(PlantedBug::OutcomeNotJournaled, &["a_start_keeps_the_outcomes"]);
    // Two groups were made for one request, and the caller knows one of them. Or the second one has no room.
    finds(
        PlantedBug::GroupCreatedAgain,
        &[
            "everything_is_somebodys",
            "planners_keep_what_callers_know",
            "a_crash_keeps_the_groups",
            "one_outcome_per_request",
        ],
    );
}

/// Power is lost at many moments of a few runs, and the sync is left out of them.
#[test]
fn power_loss_finds_a_sync_that_is_left_out() {
    let settings =
        Settings { journal: Journaling::Always, jobs: false, keeps_lives: true, ..Settings::default() };
    let effort = Effort { moments: 60, torn: 2, flips: 0, starts: 1000, depth: 0 };
    let found = with_planted(PlantedBug::SyncSkipped, || {
        let lives = (1..=4).flat_map(|seed| run_seed(seed, settings).lives);
        lives.enumerate().find_map(|(number, life)| {
            // The database may also panic over a file of which parts are missing.
            let lose = || lose_power(&life, number as u64, effort, &mut Tried::default());
            catch_unwind(AssertUnwindSafe(lose)).unwrap_or_else(|_| Err("panic".to_owned())).err()
        })
    });
    let found = found.expect("nothing is synced, so acknowledged outcomes are lost");
    assert!(
        ["allowed books", "Not a redb database", "is damaged", "restore both files", "panic"]
            .iter()
            .any(|by| found.contains(by)),
        "{found}"
    );
}

#[test]
fn the_simulator_finds_bugs_in_sessions() {
    // A wait that an emptied session forgot goes on, and nobody asked for its placement.
    simulator_finds(
        PlantedBug::ResumedSessionEmpty,
        &["one_outcome_per_request", "one_effect_per_request", "everything_is_somebodys"],
    );
    simulator_finds(PlantedBug::CreditsIgnored, &["credits_are_kept"]);
    simulator_finds(PlantedBug::AnswerToLostConnectionDropped, &["everything_is_answered", "stops_empty"]);
    simulator_finds(PlantedBug::RecalledWaitGoesOn, &["everything_is_answered", "stops_empty"]);
    simulator_finds(PlantedBug::OutcomeOfBrokenConnectionDropped, &["everything_is_somebodys"]);
    simulator_finds(PlantedBug::FailedWriteIgnored, &["everything_is_answered", "stops_empty"]);
    simulator_finds(PlantedBug::OlderConnectionResumes, &["newest_connection_is_welcome"]);
    let journaled = Settings { journal: Journaling::Always, jobs: false, ..Settings::default() };
    simulator_finds_with(PlantedBug::OlderConnectionResumes, &["newest_connection_is_welcome"], journaled);
    simulator_finds(PlantedBug::NewDeadlineUntold, &["nobody_oversleeps"]);
    simulator_finds(PlantedBug::LateIsDone, &["nothing_late_is_done"]);
}

/// The gate runs the fuzz target with this bug.
#[test]
fn inputs_of_the_fuzz_target_find_a_bug_of_the_simulator() {
    let finds = |seed: &u64| {
        let input = bytes_of_seed(*seed, 1500);
        with_planted(PlantedBug::SpillForgotten, || run_given(&input, Settings::default())).found.is_some()
    };
    let found = (0..32).find(finds).expect("one of these inputs finds it");
    println!("{:?} is found by input {found}", PlantedBug::SpillForgotten);
}

#[test]
fn the_simulator_finds_bugs_between_threads() {
    simulator_finds(PlantedBug::SpillForgotten, &["no_refusal_while_a_node_offers"]);
    simulator_finds(PlantedBug::PublishedAfterAnswers, &["views_come_before_answers"]);
    simulator_finds(PlantedBug::OutcomeForgottenEarly, &["answers_stand", "one_effect_per_request"]);
}

#[test]
fn the_simulator_finds_wake_ups_that_are_lost() {
    simulator_finds(PlantedBug::WokenPortNotRung, &["nobody_oversleeps"]);
    simulator_finds(PlantedBug::WakeWhileBusyForgotten, &["nothing_waits_that_would_fit"]);
    simulator_finds(
        PlantedBug::RoomForGroupForgotten,
        &["no_bundle_waits_that_would_fit", "nothing_waits_that_would_fit", "no_refusal_while_a_node_offers"],
    );
}

#[test]
fn the_simulator_finds_bugs_of_aborts() {
    simulator_finds(PlantedBug::AbortKeepsBundle, &["index_agrees_with_table", "panic"]);
    simulator_finds(
        PlantedBug::AbortKeepsReservationUsed,
        &["a_start_keeps_the_books", "index_agrees_with_table", "rejections_move_nothing", "panic"],
    );
}

#[test]
fn the_simulator_finds_bugs_of_statements() {
    simulator_finds(PlantedBug::DeadlineOverrulesDecision, &["statements"]);
    simulator_finds(PlantedBug::LateResultForgotten, &["what_is_committed_is_done", "statements"]);
}

#[test]
fn the_simulator_finds_bugs_of_planners() {
    simulator_finds(
        PlantedBug::ClaimKeptByLoser,
        &["no_fit_is_no_fit", "no_bundle_waits_that_would_fit", "panic"],
    );
    simulator_finds(
        PlantedBug::LostBundleNotEnded,
        &[
            "bundles_are_of_groups",
            "everything_is_somebodys",
            "no_bundle_waits_that_would_fit",
            "groups_go_whole",
        ],
    );
    simulator_finds(PlantedBug::RemovalForgetsBundle, &["groups_go_whole", "everything_is_somebodys"]);
    simulator_finds(PlantedBug::SpreadForgetsPlaced, &["groups_keep_their_rules", "groups_are_as_asked"]);
    simulator_finds(
        PlantedBug::HeldBundleTakenForEnded,
        &["groups_go_whole", "everything_is_somebodys", "bundles_are_of_groups"],
    );
    simulator_finds(PlantedBug::GroupNeverWaits, &["who_may_wait_is_not_refused"]);
}

#[test]
fn the_simulator_finds_bugs_of_jobs() {
    simulator_finds_with(
        PlantedBug::CapForgetsReleasing,
        &["caps_hold", "refusals_of_queues_are_true"],
        Settings::default(),
    );
    let found = ["tasks_are_in_the_books", "jobs_are_as_told"];
    simulator_finds_with(PlantedBug::TaskEndMissed, &found, Settings::default());
    let found = ["jobs_are_as_told", "answers_stand"];
    simulator_finds_with(PlantedBug::RetriesUnbounded, &found, Settings::default());
}

#[test]
fn the_simulator_finds_gangs_that_start_in_part() {
    simulator_finds_with(PlantedBug::GangStartsInPart, &["gangs_start_whole"], Settings::default());
}

#[test]
fn the_simulator_finds_starts_that_are_held_for_ever() {
    simulator_finds_with(PlantedBug::StartHeldForEver, &["no_start_is_held"], Settings::default());
}

#[test]
fn the_simulator_finds_classes_that_are_never_searched_for_again() {
    simulator_finds_with(PlantedBug::ParkedForGood, &["panic"], Settings::default());
}

#[test]
fn the_simulator_finds_counts_of_room_that_do_not_follow() {
    simulator_finds_with(PlantedBug::RoomKept, &["panic"], Settings::default());
}

#[test]
fn the_simulator_finds_bugs_of_run_times() {
    simulator_finds_with(PlantedBug::OverrunSpared, &["overruns_are_ended"], Settings::default());
    simulator_finds_with(PlantedBug::OverrunRunsAgain, &["what_overruns_fails"], Settings::default());
}

#[test]
fn the_simulator_finds_dates_that_are_not_kept() {
    simulator_finds_with(PlantedBug::DateForgotten, &["dates_are_kept"], Settings::default());
}

#[test]
fn the_simulator_finds_queues_that_do_not_keep_what_they_deserve() {
    let found = ["only_what_is_spare_is_reclaimed"];
    simulator_finds_with(PlantedBug::DeservedReclaimed, &found, Settings::default());
}

#[test]
fn the_simulator_finds_evictions_for_those_who_do_not_starve() {
    let found = ["evictions_leave_fair_shares"];
    simulator_finds_with(PlantedBug::FairShareNotKept, &found, Settings::default());
    simulator_finds_with(PlantedBug::PatienceForgotten, &["only_for_the_starving"], Settings::default());
}

#[test]
fn the_simulator_finds_bugs_of_placements_in_queues() {
    let found = ["caps_hold", "refusals_of_queues_are_true"];
    simulator_finds_with(PlantedBug::OuterCapForgotten, &found, Settings::default());
    let found = ["tasks_are_in_the_books", "charges_are_in_the_books", "refusals_of_queues_are_true"];
    simulator_finds_with(PlantedBug::DirectStaysCharged, &found, Settings::default());
    let found = ["everything_is_somebodys", "no_task_waits_that_would_fit", "tasks_are_in_the_books"];
    let settings = Settings { journal: Journaling::Always, ..Settings::default() };
    simulator_finds_with(PlantedBug::QueueWaitKept, &found, settings);
}

#[test]
fn the_simulator_finds_tasks_that_leave_their_domain() {
    simulator_finds_with(PlantedBug::DomainForgotten, &["jobs_stay_in_domains"], Settings::default());
}

#[test]
fn the_simulator_finds_bugs_of_views_and_of_following() {
    simulator_finds(
        PlantedBug::ViewSharesChangedChunk,
        &["views_are_true", "versions_only_grow", "groups_keep_their_rules", "panic"],
    );
    // A follower keeps an allocation that the newer view does not show.
    simulator_finds(
        PlantedBug::GrantedClaimUnseen,
        &["views_are_true", "versions_only_grow", "followers_keep_up"],
    );
    simulator_finds(PlantedBug::PortionSkipsNode, &["followers_keep_up"]);
    simulator_finds(PlantedBug::RoomForViewUntold, &["nobody_oversleeps", "comes_to_rest"]);
}

/// Checks that some stored input of a target finds the bug that its program plants on request.
fn is_in_stored_inputs(target: &str, bug: PlantedBug, run: impl Fn(&[u8]) -> bool) {
    let finds = |input: &[u8]| {
        let verdict = catch_unwind(AssertUnwindSafe(|| with_planted(bug, || run(input))));
        !matches!(verdict, Ok(true))
    };
    assert!(stored_inputs(target).iter().any(|(_, input)| finds(input)), "{target} has no input for {bug:?}");
}

/// libFuzzer begins with the stored inputs, so the gate sees at once that a target finds its bug.
#[test]
fn each_fuzz_target_has_a_stored_input_that_finds_its_bug() {
    is_in_stored_inputs("codec", PlantedBug::ExtensionLengthUnchecked, |input| run_codec(input).is_ok());
    is_in_stored_inputs("session_bytes", PlantedBug::MarkPassesRequest, |input| {
        run_session_bytes(input).is_ok()
    });
    is_in_stored_inputs("connection", PlantedBug::RoomOfLostConnectionKept, |input| {
        run_connection(input).is_ok()
    });
    is_in_stored_inputs("journal", PlantedBug::ValueHashUnchecked, |input| run_journal(input).is_ok());
    is_in_stored_inputs("config", PlantedBug::SettingRangeUnchecked, |input| run_config(input).is_ok());
    is_in_stored_inputs("trace", PlantedBug::TraceAmountUnchecked, |input| run_trace(input).is_ok());
    is_in_stored_inputs("index_ops", PlantedBug::IndexStaleMaximum, |input| run_index_ops(input).is_ok());
    is_in_stored_inputs("shard_ops", PlantedBug::WakeUpForgotten, |input| run_shard_ops(input).is_ok());
    is_in_stored_inputs("statement_ops", PlantedBug::AbortForgetsGpu, |input| {
        run_statement_ops(input).is_ok()
    });
    is_in_stored_inputs("simulation", PlantedBug::SpillForgotten, |input| {
        run_given(input, Settings::default()).found.is_none()
    });
}
