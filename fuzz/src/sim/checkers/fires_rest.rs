//! Tests that the checkers of rest, of followers and of answers fire, and that every checker has such a test.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::{AllocationId, Incarnation, PartitionId, SessionId, StatementId, TenantId};
use wharf_core::link::Decision;
use wharf_core::planner::{PlannerBudget, PlannerWork};
use wharf_core::shard::{Command, Outcome};
use wharf_core::statement::Applied;
use wharf_core::time::Time;
use wharf_core::view::ViewVersion;
use wharf_net::codec::{FLAG_REPLY, Header, decode_frame};
use wharf_net::protocol::{FRAME_BYTES_MAX, Kind, Reason, ReleaseReply, ReleaseRequest, SessionToken};

use super::following::{Mirror, followers_are_told, followers_keep_up};
use super::plans;
use super::rest::{
    UnderWay, comes_to_rest, everything_is_answered, nobody_oversleeps, planners_sleep, stops_empty,
    what_is_committed_is_done,
};
use super::submitted::NodeVersions;
use super::views::{GrantsNameTheirView, views_come_before_answers};
use super::work::rounds_are_bounded;
use super::{
    BEYOND_A_STEP, OF_A_STEP, costs, crash, deadlines, fires, fires_beyond, fires_cycles, fires_gangs,
    fires_groups, fires_jobs, fires_leases, fires_queues, flips, named, outcomes, sessions,
};
use crate::sim::client::{Asked, Client, Role};
use crate::sim::facts::Facts;
use crate::sim::server::framed;

#[test]
fn a_request_without_a_reply() {
    assert_eq!(everything_is_answered(0, "requests"), Ok(()));
    assert!(everything_is_answered(1, "requests").is_err());
}

#[test]
fn a_stop_with_something_under_way() {
    assert_eq!(stops_empty(UnderWay::default()), Ok(()));
    for left in [
        UnderWay { planning: true, ..UnderWay::default() },
        UnderWay { registrar: true, ..UnderWay::default() },
        UnderWay { requests: 1, ..UnderWay::default() },
        UnderWay { waiting: 1, ..UnderWay::default() },
        UnderWay { connections: 1, ..UnderWay::default() },
    ] {
        assert!(stops_empty(left).is_err(), "{left:?}");
    }
}

#[test]
fn an_engine_that_goes_on_for_ever() {
    assert_eq!(comes_to_rest(0, 3), Ok(()));
    assert!(comes_to_rest(1, 1000).is_err());
}

#[test]
fn a_planner_that_never_sleeps() {
    assert_eq!(planners_sleep(Time(5), None), Ok(()));
    assert_eq!(planners_sleep(Time(5), Some(Time(6))), Ok(()));
    assert!(planners_sleep(Time(5), Some(Time(5))).is_err());
}

#[test]
fn a_round_without_a_bound() {
    let budget = PlannerBudget { round: 16, search: 64, proof: 8 };
    let of_round = |most_per_round| PlannerWork { most_per_round, ..PlannerWork::default() };
    assert_eq!(rounds_are_bounded(&of_round(500), &budget, 10), Ok(()));
    // The work of trying many groups at once.
    assert!(rounds_are_bounded(&of_round(1 << 22), &budget, 10).is_err());
    assert_eq!(rounds_are_bounded(&of_round(1 << 20), &PlannerBudget::default(), 10), Ok(()));
}

#[test]
fn a_thread_that_nobody_wakes() {
    assert_eq!(nobody_oversleeps("shard", 0, false), Ok(()));
    assert!(nobody_oversleeps("shard", 0, true).is_err());
}

#[test]
fn a_view_that_comes_after_the_answers() {
    assert_eq!(views_come_before_answers(Some(2), 2), Ok(()));
    assert!(views_come_before_answers(Some(2), 3).is_err());
    assert!(views_come_before_answers(None, 3).is_err(), "nobody looked");
}

#[test]
fn a_grant_that_names_another_view() {
    let statement = StatementId { incarnation: Incarnation(1), planner: 0, number: 1 };
    let decision = Decision::Committed;
    let applied =
        Applied { statement, decision, granted: Vec::new(), conflicts: Vec::new(), visible_from: 4 };
    let outcome = Outcome::Applied(Ok(Box::new(applied)));
    assert!(GrantsNameTheirView::default().check(&outcome, 5).is_err());
    let mut named = GrantsNameTheirView::default();
    assert_eq!(named.check(&outcome, 4), Ok(()));
    assert_eq!(named.check(&outcome, 5), Ok(()), "repeated");
}

#[test]
fn a_committed_statement_that_is_forgotten() {
    let id = StatementId { incarnation: Incarnation(1), planner: 0, number: 1 };
    assert_eq!(what_is_committed_is_done(id, None), Ok(()));
    assert_eq!(what_is_committed_is_done(id, Some(Decision::Aborted)), Ok(()));
    assert!(what_is_committed_is_done(id, Some(Decision::Committed)).is_err());
}

#[test]
fn a_follower_that_has_something_else() {
    let version = |sequence| ViewVersion { incarnation: Incarnation(1), sequence };
    let mut bed = fires::Bed::new(2);
    let nothing = Mirror::default();
    let shown = bed.mirror();
    assert_ne!(shown, nothing);
    assert_eq!(followers_keep_up(None, &shown, version(2), &shown), Ok(()));
    assert_eq!(followers_keep_up(Some(version(1)), &shown, version(2), &shown), Ok(()));
    assert!(followers_keep_up(Some(version(2)), &shown, version(2), &shown).is_err(), "a version again");
    assert!(followers_keep_up(None, &nothing, version(2), &shown).is_err());
    assert_eq!(followers_are_told(&[version(2)], &[Some(version(2))]), Ok(()));
    assert!(followers_are_told(&[version(3)], &[Some(version(2))]).is_err());
    assert!(followers_are_told(&[version(3)], &[None]).is_err());
}

#[test]
fn an_answer_that_is_another_the_next_time() {
    let id = AllocationId {
        incarnation: Incarnation(1),
        partition: PartitionId(0),
        sequence: 1,
        tenant: TenantId::OPERATOR,
    };
    let reply = |sequence, reason: Reason| {
        let version = 1;
        let header = Header {
            kind: Kind::Release.number(),
            flags: FLAG_REPLY,
            version,
            sequence,
            lowest_unacknowledged: 0,
        };
        framed(header, &ReleaseReply { reason: reason.into(), ..ReleaseReply::default() })
    };
    let asked = || {
        let mut client = Client::new(Role::User, true);
        let session = SessionId { incarnation: Incarnation(1), number: 1 };
        client.connected(1, (session, SessionToken::default()));
        let request = ReleaseRequest { allocation: id.into() };
        client.ask(Kind::Release, &request, Asked::Release(id));
        client
    };
    let says = |client: &mut Client, bytes: &[u8]| {
        let frame = decode_frame(bytes, FRAME_BYTES_MAX).expect("our own").expect("whole");
        client.handle_reply(&frame, bytes)
    };
    let done = reply(1, Reason::Done);
    let unknown = reply(1, Reason::UnknownAllocation);
    let mut client = asked();
    assert_eq!((says(&mut client, &done), says(&mut client, &done)), (Ok(()), Ok(())));
    assert!(says(&mut client, &unknown).is_err(), "it was answered otherwise");
    assert!(says(&mut asked(), &reply(2, Reason::Done)).is_err(), "nobody asked that");
    assert!(says(&mut asked(), &reply(1, Reason::NoFitNow)).is_err(), "no answer to a release");
}

#[test]
fn a_node_that_comes_back_with_a_version_that_it_has_had() {
    let mut versions = NodeVersions::default();
    let mut bed = fires::Bed::new(1);
    let placed = bed.step(Command::Place(fires::asks(1, 0)));
    assert_eq!(versions.check(&Facts::default(), &placed.before), Ok(()));
    assert_eq!(versions.check(&placed.before, &placed.after), Ok(()));
    assert!(versions.check(&placed.after, &placed.before).is_err(), "it went back");
    assert_eq!(versions.check(&placed.before, &placed.after), Ok(()));
    let node = placed.after.nodes().next().expect("one node").registration.clone();
    let removed = bed.step(Command::RemoveNode { node: node.id, force: true });
    assert_eq!(versions.check(&removed.before, &removed.after), Ok(()));
    let back = bed.step(Command::AddNode(Box::new(node)));
    assert!(versions.check(&back.before, &back.after).is_err(), "as if it had never been there");
}

/// Internal faults of a shard are planted there on purpose (`fuzz/tests/planted_bugs.rs`).
fn a_shard_that_disagrees_with_itself() {
    let planted = include_str!("../../../tests/planted_bugs.rs");
    assert!(planted.contains("\"index_agrees_with_table\""));
}

/// Every checker, with the test that makes it fire.
const FIRES: &[(&str, fn())] = &[
    ("a_crash_keeps_the_groups", crash::tests::a_group_that_a_crash_loses),
    ("a_crash_keeps_the_nodes", crash::tests::a_node_that_a_crash_loses),
    ("a_crash_leaves_no_half", crash::tests::a_start_with_half_of_a_unit),
    ("a_start_keeps_the_books", fires::a_start_that_forgets),
    ("a_start_keeps_the_groups", fires_groups::a_group_that_is_another_after_a_start),
    ("a_start_keeps_the_jobs", fires_jobs::jobs_that_are_others_after_a_start),
    ("all_or_none", fires_beyond::a_statement_that_is_done_as_decided_is_silent),
    ("allocations_are_what_was_granted", fires::an_allocation_that_nobody_asked_for),
    ("answers_stand", an_answer_that_is_another_the_next_time),
    ("books_are_the_sum_of_allocations", fires::books_that_are_not_the_sum_of_allocations),
    ("books_balance", fires::books_that_do_not_balance),
    ("bundles_are_of_groups", fires_groups::a_bundle_of_no_group),
    ("claims_become_what_they_claim", fires_groups::a_claim_that_comes_or_goes_by_itself),
    ("coarse_goes_by_versions", fires_groups::a_coarse_operation_on_another_version),
    ("groups_have_one_request", sessions::tests::a_group_of_two_requests),
    ("cancels_are_kept", sessions::tests::a_wait_that_outlives_its_cancellation),
    ("caps_hold", fires_queues::a_queue_that_uses_more_than_its_cap),
    ("a_start_keeps_the_charges", fires_queues::a_charge_that_is_not_in_the_books),
    ("charges_are_in_the_books", fires_queues::a_charge_that_is_not_in_the_books),
    ("jobs_stay_in_domains", fires_queues::a_task_that_leaves_its_domain),
    ("placements_are_charged", fires_queues::a_placement_that_is_charged_to_another_queue),
    ("refusals_of_queues_are_true", fires_queues::a_placement_that_is_refused_without_a_reason),
    ("credits_are_kept", sessions::tests::a_request_beyond_the_limit),
    ("dates_are_kept", fires_cycles::a_job_that_starts_after_its_date),
    ("evictions_end", fires_cycles::evictions_that_go_on),
    ("evictions_leave_fair_shares", fires_cycles::a_job_that_does_not_keep_its_share),
    ("only_for_the_starving", fires_cycles::a_task_that_gives_way_to_a_job_that_does_not_starve),
    ("only_what_is_spare_is_reclaimed", fires_cycles::a_queue_that_gives_what_it_deserves),
    ("reclaim_leaves_guarantees", fires_cycles::a_queue_that_gives_what_it_is_guaranteed),
    ("overruns_are_ended", fires_cycles::a_task_that_goes_on_after_its_run_time),
    ("what_overruns_fails", fires_cycles::a_task_that_overran_and_is_pending_again),
    ("comes_to_rest", an_engine_that_goes_on_for_ever),
    ("audits_are_true", costs::tests::an_audit_of_another_state),
    ("commands_cost_what_they_may", costs::tests::a_command_that_looks_at_too_much),
    ("every_group_is_settled", fires_groups::a_group_that_goes_on_for_ever),
    ("everything_is_answered", a_request_without_a_reply),
    ("everything_is_somebodys", fires::an_allocation_that_is_nobodys),
    ("followers_are_told", a_follower_that_has_something_else),
    ("followers_keep_up", a_follower_that_has_something_else),
    ("gangs_start_whole", fires_gangs::a_gang_that_starts_in_part),
    ("no_start_is_held", fires_gangs::a_start_that_is_held),
    ("grants_fit_what_was_available", fires::a_grant_of_more_than_there_was),
    ("grants_go_where_they_may", fires::a_grant_on_a_node_that_takes_no_work),
    ("groups_are_as_asked", fires_groups::a_group_that_is_shown_otherwise_than_asked),
    ("groups_go_whole", fires_groups::a_bundle_that_outlives_its_group),
    ("groups_keep_their_rules", fires_groups::a_group_that_is_placed_against_its_rules),
    ("groups_are_in_the_books", fires_groups::a_bundle_that_is_not_in_the_books),
    ("index_agrees_with_table", a_shard_that_disagrees_with_itself),
    ("infeasible_is_infeasible", fires_groups::a_group_that_is_called_infeasible_and_is_not),
    ("inside_is_of_its_bundle", fires_groups::what_is_inside_a_bundle_and_does_not_belong_there),
    ("inside_is_placed", fires_groups::what_is_inside_a_bundle_and_does_not_belong_there),
    ("leases_end_in_time", fires_leases::a_lease_that_nobody_ends),
    ("leases_last_as_long_as_they_say", fires_leases::a_lease_that_ends_too_early_or_too_late),
    ("renewals_hold", fires_leases::a_renewal_that_does_not_hold),
    ("jobs_are_as_told", fires_jobs::a_job_that_is_not_as_its_client_was_told),
    ("plans_change_nothing", fires_jobs::a_plan_that_changes_something),
    ("plans_keep_their_limits", plans::tests::a_plan_beyond_its_limits),
    ("kept_views_stay", fires_beyond::a_view_of_a_state_that_never_was),
    ("no_bundle_waits_that_would_fit", fires_groups::a_bundle_that_waits_and_would_fit),
    ("no_fit_is_no_fit", fires_groups::a_group_that_is_refused_and_fits),
    ("no_refusal_while_a_node_offers", fires::a_refusal_while_a_node_offers_all_the_time),
    ("no_ring_starves", fires::a_ring_that_is_passed_over),
    ("no_task_waits_that_would_fit", fires_jobs::a_task_that_waits_and_would_fit),
    ("node_versions_only_grow", a_node_that_comes_back_with_a_version_that_it_has_had),
    ("nobody_oversleeps", a_thread_that_nobody_wakes),
    ("one_outcome_per_request", sessions::tests::an_outcome_that_changes),
    ("sessions_are_kept", sessions::tests::a_hello_that_is_refused),
    ("a_flipped_bit_is_noticed", flips::tests::a_flipped_bit_that_nobody_notices),
    ("a_start_keeps_the_outcomes", outcomes::tests::an_outcome_that_a_start_lost),
    ("a_start_keeps_the_sessions", sessions::tests::a_session_that_a_start_reads_differently),
    ("answered_sessions_are_kept", sessions::tests::a_session_that_a_start_lost),
    ("classes_are_as_told", fires_jobs::a_class_that_is_another_one),
    ("newest_connection_is_welcome", sessions::tests::a_session_that_goes_to_an_older_connection),
    ("nobody_takes_what_is_reserved", fires::a_placement_out_of_what_is_reserved_for_another),
    ("nothing_late_is_done", deadlines::tests::a_release_after_its_deadline),
    ("only_what_is_late_is_refused", deadlines::tests::a_release_refused_before_its_deadline),
    ("nothing_waits_that_would_fit", fires::a_wait_that_would_fit),
    ("one_effect_per_request", fires::a_request_with_two_effects),
    ("one_node_per_name", fires::two_nodes_of_one_name),
    ("only_what_is_evicted_ends_by_itself", fires_beyond::what_ends_by_itself_without_being_evicted),
    ("planners_keep_what_callers_know", fires_groups::a_group_that_only_one_side_knows),
    ("planners_sleep", a_planner_that_never_sleeps),
    ("queues_are_as_told", fires_jobs::a_queue_that_is_gone),
    ("promises_are_kept", fires::a_promise_that_is_broken),
    ("refusals_are_true", fires::a_refusal_of_what_a_node_offers),
    ("rejections_move_nothing", fires::a_rejection_that_leaves_a_trace),
    ("replay_gives_the_same", fires::a_replay_that_comes_to_something_else),
    ("rounds_are_bounded", a_round_without_a_bound),
    ("statements", fires_beyond::a_statement_that_is_done_otherwise),
    ("statements_are_answered_fairly", fires_groups::a_statement_of_others_that_is_answered_unfairly),
    ("statements_take_only_what_is_there", fires_beyond::a_statement_that_makes_a_node_short),
    ("stops_empty", a_stop_with_something_under_way),
    ("tasks_are_in_the_books", fires_jobs::a_task_that_only_one_side_knows),
    ("tasks_run_once", fires_jobs::a_task_with_two_allocations),
    ("unhealthy_offers_nothing", fires::an_unhealthy_instance_that_offers),
    ("versions_only_grow", fires_beyond::a_version_that_goes_back),
    ("views_are_true", fires_beyond::a_view_of_a_state_that_never_was),
    ("grants_name_their_view", a_grant_that_names_another_view),
    ("views_come_before_answers", a_view_that_comes_after_the_answers),
    ("what_is_committed_is_done", a_committed_statement_that_is_forgotten),
    ("who_may_wait_is_not_refused", fires_groups::a_group_that_is_refused_before_its_time),
];

#[test]
fn no_checker_is_without_a_test_that_makes_it_fire() {
    let of_a_step = OF_A_STEP.iter().map(|(name, _)| *name);
    let checkers: BTreeSet<&str> = of_a_step.chain(BEYOND_A_STEP.iter().copied()).collect();
    let tested: BTreeMap<&str, fn()> = FIRES.iter().copied().collect();
    let untested: Vec<_> = checkers.iter().filter(|name| !tested.contains_key(*name)).collect();
    assert!(untested.is_empty(), "no test makes these fire: {untested:?}");
    assert_eq!(tested.len(), checkers.len(), "a test of what is no checker");
    tested.values().for_each(|fires| fires());
    assert_eq!(named("stops_empty", Ok::<(), String>(())), Ok(()));
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "not in the list of checkers")]
fn a_checker_that_is_not_in_the_list_is_missed_at_once() {
    let _ = named("nobody_knows_me", Ok::<(), String>(()));
}
