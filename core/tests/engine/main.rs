//! Tests of the engine from outside: shards, planners and ports as a server runs them, by hand and on
//! threads.
//!
//! They are one program, so that it is linked once. The loom models are separate programs, because they need
//! their own build.

mod adoptions;
mod allocations_per_node;
mod bundles_end;
mod by_hand;
mod claims_and_bundles;
mod claims_in_views;
mod costs;
mod determinism;
mod endings;
mod explain;
mod explain_waits;
mod geometry;
mod golden_distbuckets;
mod group_bed;
mod group_oracle;
mod groups;
mod groups_infeasible;
mod groups_rules;
mod growth;
mod handing_out;
mod idle;
mod jobs;
mod jobs_bed;
mod jobs_direct;
mod jobs_nodes;
mod jobs_policies;
mod jobs_random;
mod leases;
mod marks;
mod messages;
mod one_queue;
mod parts_of_steps;
mod plan_rings;
mod planner_fairness;
mod planner_jobs;
mod planner_rounds;
mod preferences;
mod refusals;
mod reopening;
mod reservations;
mod selector_costs;
mod slow_shards;
mod statement_bed;
mod statements;
mod tickets;
mod tickets_pauses;
mod tickets_removed;
mod under_way;
mod views;
mod waiting;
mod waiting_admission;
mod waiting_costs;
