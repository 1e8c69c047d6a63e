//! What cycles do: the checks after each of them, and a phase in which all tasks keep their run times.

use wharf_core::cycle::{Backfill, Scheduler};
use wharf_core::fairness::{Amounts, Dim};
use wharf_core::ids::AllocationId;
use wharf_core::jobs::{JobId, Jobs, QueueId, TaskId};
use wharf_core::time::Time;

use super::World;
use super::jobs::INTERVAL_NS;
use crate::sim::Sharing;
use crate::sim::checkers::dates::{Dates, Seen};
use crate::sim::checkers::evictions::{
    Planned, evictions_leave_fair_shares, only_for_the_starving, only_what_is_spare_is_reclaimed,
    reclaim_leaves_guarantees,
};
use crate::sim::checkers::{Verdict, named};
use crate::sim::client::Role;
use crate::sim::network::Towards;
use crate::sim::registrar::LOST_AFTER;

/// The most ends of tasks for which the phase with kept run times waits.
const ENDS_MAX: usize = 24;

/// How long before its run time is over a task ends there, in ns: a cycle and what follows from it take less.
const MARGIN_NS: u64 = 1_500;

/// The number of jobs that each user submits then.
const CROWD: usize = 2;

impl World<'_> {
    /// Returns how many cycles a planner has run that looked at anything.
    pub(super) fn cycles_of(&self, at: usize) -> u64 {
        self.planners[at].planner().scheduler().map_or(0, Scheduler::cycles)
    }

    /// Checks what a cycle has planned in the round that just ended, if there was one. `before` is the number of cycles before
    /// the round.
    pub(super) fn check_cycle(&mut self, at: usize, before: u64) -> Verdict {
        let (Some(watch), Some(rules)) = (&mut self.jobs_watch, self.job_rules) else { return Ok(()) };
        let scheduler = self.planners[at].planner().scheduler();
        let Some(scheduler) = scheduler.filter(|scheduler| scheduler.cycles() > before) else {
            return Ok(());
        };
        let dims = [Dim::CPU, Dim::MEMORY, Dim::GPU];
        let planned = Planned {
            jobs: scheduler.jobs(),
            now: self.now,
            total: dims.into_iter().map(|dim| (dim, scheduler.fair_shares(dim, false)[0])).collect(),
            deserved: &|queue: QueueId| scheduler.deserved(queue).cloned().unwrap_or_else(Amounts::zero),
            fair_share: &|job: JobId| scheduler.job_fair_share(job),
        };
        watch.evicted += planned.victims().count() as u64;
        match rules.sharing {
            Sharing::Given => {
                let spare = only_what_is_spare_is_reclaimed(&planned);
                named("only_what_is_spare_is_reclaimed", spare)?;
                named("reclaim_leaves_guarantees", reclaim_leaves_guarantees(&planned))
            }
            Sharing::Deserved => named("reclaim_leaves_guarantees", reclaim_leaves_guarantees(&planned)),
            Sharing::Starved => {
                named("evictions_leave_fair_shares", evictions_leave_fair_shares(&planned))?;
                named("only_for_the_starving", only_for_the_starving(&planned, watch.started))
            }
            _ => Ok(()),
        }
    }

    /// Returns the earliest date of a dated reservation.
    pub(super) fn first_date(&self) -> Option<Time> {
        let mut planners = self.planners.iter();
        let scheduler = planners.find_map(|planner| planner.planner().scheduler())?;
        scheduler.reservations().map(|of| of.date).min()
    }

    /// Returns whether a job has a dated reservation.
    pub(super) fn has_date(&self, job: JobId) -> bool {
        let mut planners = self.planners.iter();
        let scheduler = planners.find_map(|planner| planner.planner().scheduler());
        scheduler.is_some_and(|scheduler| scheduler.reservations().any(|of| of.job == job))
    }

    /// Lets users submit more jobs, and each task end shortly before its run time is over, with `answer_all` after each change.
    /// Nobody else asks for anything. So jobs start by their dates.
    pub(in crate::sim) fn keep_run_times(
        &mut self,
        mut answer_all: impl FnMut(&mut Self) -> Verdict,
    ) -> Verdict {
        if self.job_rules.is_none_or(|rules| rules.backfill == Backfill::None) {
            return Ok(());
        }
        // Those that were silent are lost before.
        self.pass(LOST_AFTER + 1);
        answer_all(self)?;
        let users = |at: &usize| self.clients[*at].role == Role::User;
        let users: Vec<usize> = (0..self.clients.len()).filter(users).collect();
        for at in users {
            for _ in 0..CROWD {
                let frame = self.clients[at].submit_job(&mut self.choices);
                self.send(at, frame);
            }
        }
        answer_all(self)?;
        let mut dates = Dates::default();
        for _ in 0..ENDS_MAX {
            self.pass(INTERVAL_NS + 1);
            answer_all(self)?;
            self.check_dates(&mut dates)?;
            let jobs = self.jobs().expect("a run with jobs has a keeper");
            let ends = bound(jobs).map(|(end, ..)| end);
            let Some(next) = ends.chain(self.first_date()).min() else { break };
            let start = self.now.plus_nanos(MARGIN_NS);
            self.pass(next.max(start).nanos_since(start));
            self.end_tasks();
            answer_all(self)?;
            self.check_dates(&mut dates)?;
        }
        Ok(())
    }

    /// Checks that jobs start by their dates.
    fn check_dates(&self, dates: &mut Dates) -> Verdict {
        let mut planners = self.planners.iter();
        let scheduler = planners.find_map(|planner| planner.planner().scheduler());
        let scheduler = scheduler.expect("a run with jobs has a keeper");
        // What queues deserve changes with the demand of others.
        let counts = self.job_rules.is_some_and(|rules| rules.sharing != Sharing::Deserved);
        let given = scheduler
            .reservations()
            .filter(|of| counts && scheduler.jobs().has_job(of.job))
            .map(|of| (of.job, of.date));
        let seen = Seen { jobs: scheduler.jobs(), dates: given.collect(), facts: &self.facts, now: self.now };
        named("dates_are_kept", dates.dates_are_kept(&seen))
    }

    /// Has clients report that their tasks have ended whose run times are over soon.
    fn end_tasks(&mut self) {
        let soon = self.now.plus_nanos(2 * MARGIN_NS);
        for at in 0..self.clients.len() {
            let jobs = self.jobs().expect("a run with jobs has a keeper");
            let is_own = |job: JobId| self.clients[at].jobs.contains_key(&job.0);
            let ending = bound(jobs).filter(|&(end, task, _)| end <= soon && is_own(task.job));
            let ending: Vec<(TaskId, AllocationId)> = ending.map(|(_, task, id)| (task, id)).collect();
            if !ending.is_empty() {
                let frame = self.clients[at].report_success(&ending);
                self.send(at, frame);
            }
        }
    }

    fn send(&mut self, client: usize, frame: Vec<u8>) {
        if let Some(connection) = self.clients[client].connection {
            self.network.send(connection, Towards::Server, frame);
        }
    }
}

/// Returns the tasks that run and state for how long, each with its end and its allocation.
fn bound(jobs: &Jobs) -> impl Iterator<Item = (Time, TaskId, AllocationId)> {
    jobs.jobs().flat_map(|(id, job)| {
        let bound = (0..).zip(job.tasks()).filter(|(_, task)| task.state.is_bound());
        bound.filter_map(move |(index, task)| {
            Some((task.expected_end()?, TaskId { job: id, index }, task.allocation?))
        })
    })
}
