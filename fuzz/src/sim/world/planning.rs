//! Planners and their callers: rounds, answers, and the checks of groups at rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_core::group::GroupView;
use wharf_core::ids::{AllocationId, GroupId, StatementId};
use wharf_core::planner::{Planner, PlannerRunner};
use wharf_core::state::GroupRecord;
use wharf_core::time::Time;

use super::World;
use super::opened::At;
use super::stop::ROUNDS_MAX;
use crate::sim::checkers::groups::{
    Excused, bundles_are_of_groups, every_group_is_settled, groups_are_in_the_books,
    no_bundle_waits_that_would_fit, planners_keep_what_callers_know,
};
use crate::sim::checkers::rest::{nobody_oversleeps, planners_sleep};
use crate::sim::checkers::rules::Round;
use crate::sim::checkers::work::rounds_are_bounded;
use crate::sim::checkers::{Verdict, named};
use crate::sim::gangs::{Bench, view_of};
use crate::sim::server::is_of_session;

impl World<'_> {
    /// Lets one planner run a round.
    pub(super) fn move_planner(&mut self) -> Verdict {
        if !self.planners.is_empty() {
            let at = self.choices.place(self.planners.len());
            self.run_planner(at)?;
        }
        Ok(())
    }

    /// Runs a round of a planner. Keeps the facts that it saw, so that checkers can judge its results.
    pub(in crate::sim) fn run_planner(&mut self, at: usize) -> Result<usize, String> {
        named("nobody_oversleeps", nobody_oversleeps("planner", at, self.planners[at].oversleeps()))?;
        let keeps_jobs = self.planners[at].planner().keeps_jobs();
        let plans = keeps_jobs && self.wants_plan() && !self.planning_is_slow();
        if plans {
            self.plan_nodes()?;
        }
        let plans = usize::from(plans);
        let planner = self.planners[at].planner();
        let before = planner.metrics().statements;
        let last = planner.last_statement();
        let cycles = self.cycles_of(at);
        let moved = self.planners[at].run_round(&At(self.now));
        self.follow_keeper(at);
        self.check_cycle(at, cycles)?;
        self.check_starts(at)?;
        self.follow_units();
        let planner = self.planners[at].planner();
        let after = planner.metrics().statements;
        let last_now = planner.last_statement();
        let is_quiet = !planner.is_committing();
        if moved > 0 || after > before {
            let number = u16::try_from(at).expect("few planners");
            let facts = self.facts_of_views(planner.view_sequences());
            let round = Arc::new(Round { planner: number, now: self.now, facts, is_quiet });
            let id =
                |statement| StatementId { incarnation: self.incarnation, planner: number, number: statement };
            // Not their count: a refused statement has a number too.
            self.rules.planned((last + 1..=last_now).map(id), &round);
            self.gangs.collect(self.now, Some(&round));
            let name = if keeps_jobs { "the keeper of jobs".to_owned() } else { format!("planner {at}") };
            self.trace.line(format_args!("{name} moves {moved}, makes {} statements", after - before));
        } else {
            self.planners[at].fall_asleep();
        }
        Ok(moved + plans)
    }

    /// Returns whether the planner of nodes is slow now: a plan takes any time while there are faults.
    fn planning_is_slow(&mut self) -> bool {
        self.is_faulty && !self.choices.one_in(4)
    }

    /// Lets a caller of planners ask something, look at the shards or take answers.
    pub(super) fn move_gangs(&mut self) -> Verdict {
        match self.choices.below(8) {
            0 => self.gangs.look(&self.facts),
            1..5 if self.asks_for_groups => {
                if let Some(asked) = self.gangs.act(&mut self.choices, self.now) {
                    self.trace.line(format_args!("{asked}"));
                }
            }
            _ => {
                self.poll_gangs()?;
            }
        }
        Ok(())
    }

    /// Lets the follower take all pending news, and shards publish what they had no room for.
    pub(in crate::sim) fn settle_follower(&mut self) -> Verdict {
        for _ in 0..ROUNDS_MAX {
            while self.follower.act(&mut self.choices, true)? {}
            if self.views.iter().all(|views| views.latest().version().sequence >= views.due()) {
                break;
            }
            for shard in 0..self.runners.len() {
                self.run_shard(shard)?;
            }
        }
        self.follower.is_current()
    }

    /// Lets the callers of planners take their answers.
    pub(in crate::sim) fn poll_gangs(&mut self) -> Result<usize, String> {
        // An answer may be older than the end of a lost bundle.
        let ended = |id: AllocationId| self.ended_by_others.contains(&id) || self.were_lost.contains(&id);
        let excused = Excused { ended: &ended };
        let mut bench = Bench {
            facts: &self.facts,
            rules: &mut self.rules,
            statements: &self.statements,
            excused,
            trace: &mut self.trace,
        };
        self.gangs.poll(self.now, &mut bench)
    }

    /// Returns the groups that planners keep and those that none keeps, in order of id.
    pub(super) fn groups(&self) -> Vec<GroupRecord> {
        let kept = self.planners.iter().flat_map(|planner| planner.planner().records());
        let mut groups: Vec<GroupRecord> = kept.chain(self.unkept.iter().cloned()).collect();
        groups.sort_by_key(|group| group.id);
        groups
    }

    /// Returns the planners of groups.
    fn group_planners(&self) -> impl Iterator<Item = &Planner> {
        self.planners.iter().map(PlannerRunner::planner).filter(|planner| !planner.keeps_jobs())
    }

    /// Returns the earliest time at which a planner of groups wants to be woken.
    pub(in crate::sim) fn next_planning(&self) -> Option<Time> {
        self.group_planners().filter_map(Planner::next_deadline).min()
    }

    /// Checks that the work of planners in a round is bounded.
    pub(in crate::sim) fn check_planners(&mut self) -> Verdict {
        let nodes = self.facts.iter().map(|facts| facts.nodes().count()).sum();
        self.most_nodes = self.most_nodes.max(nodes);
        for planner in self.planners.iter().map(PlannerRunner::planner) {
            let bounded = rounds_are_bounded(&planner.work(), &planner.budget(), self.most_nodes);
            named("rounds_are_bounded", bounded)?;
        }
        Ok(())
    }

    /// Returns whether this start has planners.
    pub(in crate::sim) fn has_planners(&self) -> bool {
        self.group_planners().next().is_some()
    }

    /// Returns the number of statements that planners have made since this start.
    pub(in crate::sim) fn statements_made(&self) -> u64 {
        self.planners.iter().map(|planner| planner.planner().metrics().statements).sum()
    }

    /// Checks groups at rest: every deadline has passed, and every group was looked at.
    pub(in crate::sim) fn check_groups(&self) -> Verdict {
        named("planners_sleep", planners_sleep(self.now, self.next_planning()))?;
        if !self.has_planners() {
            return Ok(());
        }
        named("every_group_is_settled", every_group_is_settled(self.gangs.views(), self.gangs.unanswered()))?;
        let records = self.groups();
        let known = self.gangs.ids().chain(self.server.groups.expected(&records));
        let keep = planners_keep_what_callers_know(self.gangs.kept(), known);
        named("planners_keep_what_callers_know", keep)?;
        // Views have shown the planners everything that ended, so nothing is excused.
        let excused = Excused { ended: &|_| false };
        let of_sessions = records.iter().filter(|group| is_of_session(group));
        let of_sessions: BTreeMap<GroupId, GroupView> =
            of_sessions.map(|group| (group.id, view_of(group))).collect();
        for view in self.gangs.views().chain(of_sessions.values()) {
            named("groups_are_in_the_books", groups_are_in_the_books(view, &self.facts, &excused))?;
            // A bundle whose search was given up may fit, and so may one that its queue does not allow.
            if !view.id.is_in_queue()
                && !self.planners.iter().any(|planner| planner.planner().work().given_up > 0)
            {
                named("no_bundle_waits_that_would_fit", no_bundle_waits_that_would_fit(view, &self.facts))?;
            }
        }
        let lost = |id: AllocationId| self.were_lost.contains(&id);
        let view = |group: GroupId| self.gangs.view(group).or_else(|| of_sessions.get(&group));
        let of_groups = bundles_are_of_groups(&self.facts, view, lost);
        named("bundles_are_of_groups", of_groups)
    }
}
