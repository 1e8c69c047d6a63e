//! Stops and starts of the service.

use std::collections::BTreeSet;

use wharf_core::ids::SessionId;
use wharf_core::state::{SessionRecord, StoreState};

use super::World;
use super::crash::what_no_crash_leaves;
use super::opened::{HOLD_NS, Opened};
use crate::sim::checkers::crash::as_stored;
use crate::sim::checkers::groups::{a_start_keeps_the_groups, planners_keep_what_callers_know};
use crate::sim::checkers::jobs::a_start_keeps_the_jobs;
use crate::sim::checkers::order::NoRingStarves;
use crate::sim::checkers::promises::a_start_keeps_the_books;
use crate::sim::checkers::rest::{UnderWay, comes_to_rest, stops_empty};
use crate::sim::checkers::sessions::{a_start_keeps_the_sessions, answered_sessions_are_kept};
use crate::sim::checkers::{Verdict, named};
use crate::sim::facts::Facts;
use crate::sim::follower::Follower;

/// The number of rounds within which everything must come to rest.
pub(super) const ROUNDS_MAX: usize = 1000;

impl World<'_> {
    /// Stops the service cleanly and starts it again, possibly with another number of shards.
    pub(in crate::sim) fn restart(&mut self) -> Verdict {
        self.trace.line(format_args!("the service stops"));
        self.mend_disk()?;
        self.server.is_slow = false;
        self.server.stop(&mut self.network, self.now);
        self.handle_events()?;
        let settles = self.choices.below(2) == 1;
        self.run_dry(settles)?;
        self.end_connections(settles)?;
        let left = UnderWay {
            planning: self.is_planning(),
            registrar: !self.registrar.is_idle(),
            requests: self.server.under_way(),
            waiting: self.server.waiting(),
            connections: self.server.connections(),
        };
        named("stops_empty", stops_empty(left))?;
        let owned = self.grants.stopped(&self.facts, self.server.unanswered());
        named("everything_is_somebodys", owned)?;
        self.registrar.stop(self.now);
        let exported = loop {
            self.pass(1);
            for shard in 0..self.runners.len() {
                // An export starts a batch, so other commands in the rings may have to wait for one more batch.
                self.twins[shard].starves = NoRingStarves::default();
                self.run_shard(shard)?;
            }
            self.move_registrar()?;
            if let Some(exported) = self.registrar.take_exported() {
                break exported;
            }
        };
        let mut state = StoreState::collect(self.incarnation, self.now, self.registrar.state(), exported);
        state.groups = self.groups();
        state.jobs = self.jobs_record();
        let charges = self.charges();
        let kept = state.groups.iter().map(|group| group.id).collect();
        let known = self.gangs.ids().chain(self.server.groups.expected(&state.groups));
        named("planners_keep_what_callers_know", planners_keep_what_callers_know(&kept, known))?;
        named("all_or_none", self.statements.handle_stop())?;
        self.last_replies()?;
        state.sessions = self.server.session_records();
        self.stops.iter_mut().for_each(|stops| stops.push(state.clone()));
        let before = std::mem::take(&mut self.facts);
        self.write_stop(&state)?;
        let (opened, read) = self.start_again(&state).map_err(what_no_crash_leaves)?;
        if self.has_journal {
            let written = as_stored(&state.groups);
            named("a_start_keeps_the_groups", a_start_keeps_the_groups(&written, &read.groups))?;
            state.groups = read.groups;
            named("a_start_keeps_the_jobs", a_start_keeps_the_jobs(&state.jobs, &read.jobs))?;
            let kept = a_start_keeps_the_sessions(&state.sessions, &read.sessions);
            named("a_start_keeps_the_sessions", kept)?;
            self.check_outcomes(&read.sessions, u64::MAX)?;
        }
        self.resume_sessions(&state.sessions)?;
        self.forget_replies(u64::MAX);
        self.go_on(opened);
        self.rules.forget_rounds();
        named("a_start_keeps_the_books", a_start_keeps_the_books(&before, &self.facts))?;
        for facts in &self.facts {
            let grown = self.node_versions.check(&Facts::default(), facts);
            named("node_versions_only_grow", grown)?;
        }
        for runner in &self.runners {
            named("a_start_keeps_the_books", runner.shard().check_invariants())?;
        }
        named("a_start_keeps_the_jobs", a_start_keeps_the_jobs(&state.jobs, &self.jobs_at_start()))?;
        self.check_kept_charges(&charges)?;
        self.check_told_jobs(false)?;
        named("a_start_keeps_the_groups", a_start_keeps_the_groups(&state.groups, &self.groups()))
    }

    /// Runs every thread until the last connections have ended: those of reports that wait for a hold.
    fn end_connections(&mut self, settles: bool) -> Verdict {
        for _ in 0..ROUNDS_MAX {
            if self.server.connections() == 0 {
                break;
            }
            self.pass(HOLD_NS / 4);
            self.run_dry(settles)?;
        }
        Ok(())
    }

    /// Runs every thread until nothing moves. This includes the coordinator if `settles` is true.
    pub(in crate::sim) fn run_dry(&mut self, settles: bool) -> Verdict {
        let mut moved = 0;
        for _ in 0..ROUNDS_MAX {
            self.pass(1);
            moved = 0;
            for shard in 0..self.runners.len() {
                moved += self.run_shard(shard)?;
            }
            for front in 0..self.server.fronts.len() {
                moved += self.poll_front(front)?;
            }
            moved += self.move_registrar()?;
            self.drain_journal(&mut moved)?;
            if self.wants_plan() {
                self.plan_nodes()?;
                moved += 1;
            }
            for planner in 0..self.planners.len() {
                moved += self.run_planner(planner)?;
                // A round may send statements without taking any input.
                let planner = self.planners[planner].planner();
                moved += usize::from(
                    planner.is_committing() || planner.is_ticket_moving() || planner.awaits_views(),
                );
            }
            // A planner may have recorded something since the journal was written. Then answers wait for the next round.
            moved += self.poll_gangs()? + self.gangs.held_answers();
            moved += if settles { self.settle_coordinator()? } else { 0 };
            if moved == 0 {
                return Ok(());
            }
            if self.is_planning() {
                // The planner may be waiting for a hold to end.
                self.pass(HOLD_NS / 64);
            }
        }
        named("comes_to_rest", comes_to_rest(moved, ROUNDS_MAX))
    }

    /// Takes over what a start opened. The callers within the process go on with it.
    pub(super) fn go_on(&mut self, opened: Opened) {
        let Opened { incarnation, runners, twins, facts, server, registrar, planners, views, .. } = opened;
        let Opened { ports, unkept, journal, nodes_planner, .. } = opened;
        self.nodes_planner = nodes_planner;
        let mut server = server;
        server.continue_outcomes(&mut self.server, &facts);
        (self.planners, self.views, self.kept, self.unkept) = (planners, views, None, unkept);
        self.begin_jobs();
        self.gangs.go_on(ports.1);
        self.follower = Follower::new(ports.2);
        self.coordinator.go_on(ports.0, incarnation);
        self.trace.line(format_args!("{incarnation:?} starts with {} shards", runners.len()));
        (self.incarnation, self.runners, self.twins, self.facts) = (incarnation, runners, twins, facts);
        (self.server, self.registrar, self.journal) = (server, registrar, journal);
    }

    /// Delivers or drops the last replies of a service that is gone.
    pub(super) fn last_replies(&mut self) -> Verdict {
        self.network.lose_requests();
        while self.network.len() > 0 {
            if self.choices.below(2) == 0 {
                self.deliver_at(0)?;
            } else {
                self.network.take(0);
            }
        }
        Ok(())
    }

    /// Decides what a start means for the sessions of clients. They go on with those that it has. A session that is not
    /// durable may be gone, but then nobody was told of an outcome of it.
    pub(super) fn resume_sessions(&mut self, kept: &[SessionRecord]) -> Verdict {
        let kept: BTreeSet<SessionId> = kept.iter().map(|session| session.id).collect();
        for client in &mut self.clients {
            match client.session() {
                Some((session, _)) if !kept.contains(&session) => {
                    let verdict = answered_sessions_are_kept(session, client.has_outcomes());
                    named("answered_sessions_are_kept", verdict)?;
                    client.lose_session();
                    self.server.groups.lose(session);
                }
                _ => client.disconnect(),
            }
        }
        Ok(())
    }
}
