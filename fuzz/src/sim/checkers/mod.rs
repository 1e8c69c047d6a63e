//! The invariants. Each has its own checker, which runs after each step of a shard. Numbers are those of the
//! design's list in ARCHITECTURE.md.
//!
//! A checker examines only data ([`Step`], [`Facts`](super::facts::Facts)), so that a test can show it an
//! illegal state.

pub mod books;
mod cost_table;
pub mod costs;
pub mod crash;
pub mod dates;
pub mod deadlines;
pub mod domains;
pub mod evictions;
#[cfg(test)]
mod fires;
#[cfg(test)]
mod fires_beyond;
#[cfg(test)]
mod fires_cycles;
#[cfg(test)]
mod fires_gangs;
#[cfg(test)]
mod fires_groups;
#[cfg(test)]
mod fires_jobs;
#[cfg(test)]
mod fires_leases;
#[cfg(test)]
mod fires_queues;
#[cfg(test)]
mod fires_rest;
pub mod flips;
pub mod following;
pub mod gangs;
pub mod grants;
pub mod groups;
pub mod inside;
pub mod jobs;
pub mod leases;
pub mod order;
pub mod outcomes;
pub mod plans;
pub mod promises;
pub mod queues;
pub mod refused;
pub mod rest;
pub mod rules;
pub mod run_times;
pub mod sessions;
pub mod statements;
pub mod submitted;
pub mod views;
pub mod waiting;
pub mod work;

use super::facts::Step;

/// The result of a checker, with a description of what is wrong.
pub type Verdict = Result<(), String>;

/// A checker of one step.
pub type Checker = fn(&Step<'_>) -> Verdict;

/// All checkers of a single step, by name.
pub const OF_A_STEP: &[(&str, Checker)] = &[
    ("grants_fit_what_was_available", grants::grants_fit_what_was_available),
    ("grants_go_where_they_may", grants::grants_go_where_they_may),
    ("allocations_are_what_was_granted", grants::allocations_are_what_was_granted),
    ("rejections_move_nothing", grants::rejections_move_nothing),
    ("refusals_are_true", grants::refusals_are_true),
    ("nobody_takes_what_is_reserved", grants::nobody_takes_what_is_reserved),
    ("statements_take_only_what_is_there", grants::statements_take_only_what_is_there),
    ("books_balance", books::books_balance),
    ("books_are_the_sum_of_allocations", books::books_are_the_sum_of_allocations),
    ("unhealthy_offers_nothing", books::unhealthy_offers_nothing),
    ("inside_is_of_its_bundle", inside::inside_is_of_its_bundle),
    ("claims_become_what_they_claim", inside::claims_become_what_they_claim),
    ("coarse_goes_by_versions", submitted::coarse_goes_by_versions),
    ("leases_last_as_long_as_they_say", leases::leases_last_as_long_as_they_say),
    ("renewals_hold", leases::renewals_hold),
];

/// All other checkers, by name.
pub const BEYOND_A_STEP: &[&str] = &[
    "a_crash_keeps_the_groups",
    "a_crash_keeps_the_nodes",
    "a_crash_leaves_no_half",
    "a_flipped_bit_is_noticed",
    "a_start_keeps_the_books",
    "a_start_keeps_the_charges",
    "a_start_keeps_the_groups",
    "a_start_keeps_the_jobs",
    "a_start_keeps_the_outcomes",
    "a_start_keeps_the_sessions",
    "all_or_none",
    "answers_stand",
    "audits_are_true",
    "bundles_are_of_groups",
    "cancels_are_kept",
    "caps_hold",
    "charges_are_in_the_books",
    "comes_to_rest",
    "credits_are_kept",
    "commands_cost_what_they_may",
    "dates_are_kept",
    "every_group_is_settled",
    "evictions_end",
    "evictions_leave_fair_shares",
    "everything_is_answered",
    "everything_is_somebodys",
    "followers_are_told",
    "followers_keep_up",
    "gangs_start_whole",
    "grants_name_their_view",
    "groups_are_as_asked",
    "groups_go_whole",
    "groups_have_one_request",
    "groups_keep_their_rules",
    "groups_are_in_the_books",
    "index_agrees_with_table",
    "infeasible_is_infeasible",
    "inside_is_placed",
    "jobs_are_as_told",
    "jobs_stay_in_domains",
    "kept_views_stay",
    "leases_end_in_time",
    "answered_sessions_are_kept",
    "newest_connection_is_welcome",
    "no_bundle_waits_that_would_fit",
    "no_fit_is_no_fit",
    "no_refusal_while_a_node_offers",
    "no_ring_starves",
    "no_start_is_held",
    "no_task_waits_that_would_fit",
    "node_versions_only_grow",
    "nobody_oversleeps",
    "nothing_late_is_done",
    "nothing_waits_that_would_fit",
    "one_effect_per_request",
    "one_node_per_name",
    "one_outcome_per_request",
    "only_for_the_starving",
    "only_what_is_evicted_ends_by_itself",
    "only_what_is_late_is_refused",
    "only_what_is_spare_is_reclaimed",
    "reclaim_leaves_guarantees",
    "overruns_are_ended",
    "placements_are_charged",
    "planners_keep_what_callers_know",
    "planners_sleep",
    "plans_change_nothing",
    "plans_keep_their_limits",
    "queues_are_as_told",
    "classes_are_as_told",
    "promises_are_kept",
    "refusals_of_queues_are_true",
    "replay_gives_the_same",
    "rounds_are_bounded",
    "sessions_are_kept",
    "statements",
    "statements_are_answered_fairly",
    "stops_empty",
    "tasks_are_in_the_books",
    "tasks_run_once",
    "versions_only_grow",
    "views_are_true",
    "views_come_before_answers",
    "what_is_committed_is_done",
    "what_overruns_fails",
    "who_may_wait_is_not_refused",
];

/// Adds a checker's name to its finding.
///
/// # Errors
/// Returns the error of the checker.
///
/// # Panics
/// Panics in debug builds when no checker has that name, because then no test checks that it fires.
pub fn named<T>(name: &str, verdict: Result<T, impl Into<String>>) -> Result<T, String> {
    debug_assert!(BEYOND_A_STEP.contains(&name), "{name} is not in the list of checkers");
    verdict.map_err(|found| format!("{name}: {}", found.into()))
}

/// Runs every checker of a single step.
///
/// # Errors
/// Returns the first finding, with the checker's name.
pub fn check_step(step: &Step<'_>) -> Verdict {
    for (name, checker) in OF_A_STEP {
        checker(step).map_err(|found| format!("{name}: {found}"))?;
    }
    Ok(())
}

fn ensure(holds: bool, found: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(found()) }
}
