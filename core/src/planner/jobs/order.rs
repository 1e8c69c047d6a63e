//! The order in which the plans of a cycle are committed.
//!
//! A cycle may place a job by several plans: what it needs, then further tasks. Shards decide on each statement by itself, so
//! a further task could be granted while what the job needs is refused. Therefore, as long as a job has not what it needs,
//! only one of its plans is in flight, and the others are held back. If it fails, they are taken back with it.

use std::collections::BTreeMap;

use super::{Keeper, PLANS_IN_FLIGHT_MAX};
use crate::cycle::Plan;
use crate::ids::ShardId;
use crate::jobs::JobId;
use crate::planner::in_flight::CommitOptions;
use crate::planner::{Planner, Purpose};
use crate::statement::{CommitMode, ConflictDetection, Operation};

/// The plans of the last cycle, by the job that they place.
#[derive(Debug, Default)]
pub(super) struct Undecided(BTreeMap<JobId, OfJob>);

#[derive(Debug)]
struct OfJob {
    /// Shards have granted what the job needs.
    is_ready: bool,
    has_failed: bool,
    in_flight: usize,
    held: Vec<Plan>,
}

/// What is done with a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    Send,
    Hold,
    TakeBack,
}

impl Undecided {
    /// Forgets the plans of the last cycle. All of them are decided.
    pub(super) fn clear(&mut self) {
        let is_idle = |of: &OfJob| of.in_flight == 0 && of.held.is_empty();
        assert!(self.0.values().all(is_idle), "a cycle begins once the plans of the last one are decided");
        self.0.clear();
    }
}

impl Keeper {
    /// Returns what is done with the next plan.
    pub(super) fn turn(&mut self, plan: &Plan) -> Turn {
        let Some(job) = plan.placed_job() else { return Turn::Send };
        let scheduler = &self.scheduler;
        let of_job = self.undecided.0.entry(job).or_insert_with(|| OfJob {
            is_ready: scheduler.has_what_it_needs(job),
            has_failed: false,
            in_flight: 0,
            held: Vec::new(),
        });
        match of_job {
            OfJob { is_ready: true, .. } => Turn::Send,
            OfJob { in_flight: 1.., .. } => Turn::Hold,
            OfJob { has_failed: true, .. } => Turn::TakeBack,
            _ => Turn::Send,
        }
    }

    fn of_job(&mut self, plan: &Plan) -> Option<&mut OfJob> {
        let job = plan.placed_job()?;
        Some(self.undecided.0.get_mut(&job).expect("its turn was asked for"))
    }

    /// Holds a plan back.
    pub(super) fn hold(&mut self, plan: Plan) {
        self.of_job(&plan).expect("it places a job").held.push(plan);
    }

    /// Notes that a plan is in flight.
    pub(super) fn note_sent(&mut self, plan: &Plan) {
        self.of_job(plan).into_iter().for_each(|of_job| of_job.in_flight += 1);
    }

    /// Notes that a plan is committed or has failed. Those that wait for it are next.
    pub(super) fn note_decided(&mut self, plan: &Plan, has_failed: bool) {
        let Some(job) = plan.placed_job() else { return };
        let has_what_it_needs = self.scheduler.has_what_it_needs(job);
        let of_job = self.of_job(plan).expect("it places a job");
        of_job.in_flight -= 1;
        of_job.has_failed |= has_failed;
        of_job.is_ready |= has_what_it_needs;
        if of_job.is_ready || of_job.in_flight == 0 {
            let held = std::mem::take(&mut of_job.held);
            held.into_iter().rev().for_each(|plan| self.plans.push_front(plan));
        }
    }
}

impl Planner {
    /// Sends what the last cycle planned, as much as may be in flight. Returns the number of statements.
    pub(super) fn send_plans(&mut self) -> usize {
        let mut sent = 0;
        while self.flights.len() < PLANS_IN_FLIGHT_MAX {
            let now = self.now;
            let keeper = self.keeper_mut();
            let Some(plan) = keeper.plans.pop_front() else { break };
            if let Some(placeholder) = plan.placed_job().filter(|job| job.is_placeholder()) {
                self.commit_planned(placeholder, &plan, now);
                continue;
            }
            match keeper.turn(&plan) {
                Turn::Send => {}
                Turn::Hold => {
                    keeper.hold(plan);
                    continue;
                }
                Turn::TakeBack => {
                    keeper.scheduler.aborted(&plan);
                    self.released += 1;
                    continue;
                }
            }
            let shard = |shard: usize| ShardId(u16::try_from(shard).expect("SHARDS_MAX fits u16"));
            let operations: Vec<(ShardId, Operation)> = plan
                .operations()
                .map(|(index, operation)| (shard(plan.tasks[usize::from(index)].shard), operation.clone()))
                .collect();
            if operations.is_empty() {
                keeper.scheduler.committed(&plan, &[], now);
                continue;
            }
            keeper.note_sent(&plan);
            let mode = CommitMode::AllOrNothing;
            let terms = CommitOptions { conflict_detection: ConflictDetection::Fine, mode, atomic: true };
            self.commit(operations, Vec::new(), terms, Purpose::Cycle(Box::new(plan)));
            sent += 1;
        }
        sent
    }
}
