//! Checks of every command of every shard, of every view, and of the promises that clients received.

use std::collections::BTreeSet;

use wharf_core::ids::{AllocationId, NodeId};
use wharf_core::jobs::JobId;
use wharf_core::limits::VIEW_LOG;
use wharf_core::node::NodeState;
use wharf_core::shard::{Command, NodeChange, Outcome};
use wharf_core::statement::Granted;

use super::World;
use super::opened::{At, PAGES, Recorder};
use crate::sim::checkers::costs::{audits_are_true, commands_cost_what_they_may};
use crate::sim::checkers::groups::groups_go_whole;
use crate::sim::checkers::leases::expired;
use crate::sim::checkers::order::replay_gives_the_same;
use crate::sim::checkers::promises::{live, one_node_per_name, promises_are_kept};
use crate::sim::checkers::rest::{inside_is_placed, nobody_oversleeps};
use crate::sim::checkers::rules::bundles;
use crate::sim::checkers::statements::granted_and_ended;
use crate::sim::checkers::views::{kept_views_stay, shown, views_are_true, views_come_before_answers};
use crate::sim::checkers::{Verdict, check_step, named};
use crate::sim::coordinator::COORDINATOR;
use crate::sim::facts::{Facts, Step};

impl World<'_> {
    /// Runs a batch of a shard from its rings.
    pub(in crate::sim) fn run_shard(&mut self, at: usize) -> Result<usize, String> {
        named("nobody_oversleeps", nobody_oversleeps("shard", at, self.runners[at].oversleeps()))?;
        let mut batch = Recorder::new(self.views[at].clone());
        let visible_from = self.runners[at].shard().visible_from();
        self.runners[at].run_batch(&At(self.now), &mut batch);
        if !batch.ran {
            self.record_view(at);
            self.runners[at].fall_asleep();
            return Ok(0);
        }
        let due = self.views[at].due();
        named("views_come_before_answers", views_come_before_answers(batch.published, due))?;
        self.trace.line(format_args!("shard {at} runs {:?}", batch.order));
        named("no_ring_starves", self.twins[at].starves.check(self.now, &batch.enqueued))?;
        self.server.note_reads();
        named("nothing_late_is_done", self.server.releases.check(batch.of_ports(self.server.fronts.len())))?;
        named("index_agrees_with_table", self.runners[at].shard().check_invariants())?;
        let mut again = Vec::new();
        self.repeat(at, None, &mut again)?;
        for (command, outcome) in batch.commands.iter().zip(&batch.outcomes) {
            named("grants_name_their_view", self.twins[at].grants.check(outcome, visible_from))?;
            match outcome {
                Outcome::Exported(_) => self.trace.line(format_args!("  export")),
                _ => self.trace.line(format_args!("  {command:?} -> {outcome:?}")),
            }
            self.repeat(at, Some((command, outcome)), &mut again)?;
        }
        let states = (self.runners[at].shard().state_hash(), self.twins[at].shard.state_hash());
        self.trace.line(format_args!("  state {}", states.0));
        named("replay_gives_the_same", replay_gives_the_same((&batch.outcomes, &again), states))?;
        self.follow_units();
        self.record_view(at);
        if self.choices.one_in(2) {
            self.check_views(at)?;
        }
        Ok(batch.commands.len().max(1))
    }

    /// Keeps the state that a shard's last publication shows.
    fn record_view(&mut self, at: usize) {
        let twin = &mut self.twins[at];
        let sequence = self.runners[at].shard().visible_from() - 1;
        if twin.published.last_key_value().is_none_or(|(&last, _)| last < sequence) {
            twin.published.insert(sequence, self.facts[at].clone());
        }
        if twin.published.len() > 2 * VIEW_LOG {
            twin.published.pop_first();
        }
    }

    /// Returns the states that these views show, one of each shard.
    pub(super) fn facts_of_views(&self, sequences: impl Iterator<Item = u64>) -> Vec<Facts> {
        // The keeper of jobs follows no views for groups while it has none.
        let now = |at: usize| self.facts[at].clone();
        let twins = self.twins.iter().zip(sequences).enumerate();
        twins.map(|(at, (twin, of))| twin.published.get(&of).cloned().unwrap_or_else(|| now(at))).collect()
    }

    /// Reads the newest view. Checks that it is a state that the shard was in, and the last one unless another view is
    /// due, and that kept views do not change.
    pub(super) fn check_views(&mut self, at: usize) -> Verdict {
        let due = self.views[at].due();
        let view = self.views[at].latest();
        let twin = &mut self.twins[at];
        let now = shown(&view);
        let changed = now != twin.shown;
        let grown = twin.versions.check(self.incarnation, view.version(), changed);
        named("versions_only_grow", grown)?;
        let sequence = view.version().sequence;
        let state =
            twin.published.get(&sequence).ok_or_else(|| format!("view {sequence} was never published"));
        named("views_are_true", state.and_then(|state| views_are_true(&now, state)))?;
        if sequence >= due {
            named("views_are_true", views_are_true(&now, &self.facts[at]))?;
        }
        if let Some((kept, then)) = &self.kept {
            named("kept_views_stay", kept_views_stay(then, &shown(kept)))?;
        }
        if self.choices.one_in(16) {
            self.kept = Some((view, now.clone()));
        }
        self.twins[at].shown = now;
        Ok(())
    }

    /// Repeats a command on the twin and runs every checker on the step. Without a command, runs what is due.
    pub(super) fn repeat(
        &mut self,
        at: usize,
        done: Option<(&Command, &Outcome)>,
        again: &mut Vec<Outcome>,
    ) -> Verdict {
        let twin = &mut self.twins[at].shard;
        let work = twin.work();
        match done {
            None if twin.next_deadline().is_none_or(|due| due > self.now) => return Ok(()),
            None => twin.step([], self.now, again),
            Some((command, _)) => twin.step([command.clone()], self.now, again),
        }
        twin.drain_woken();
        let after = Facts::of(twin);
        named("index_agrees_with_table", twin.check_invariants())?;
        let before = std::mem::replace(&mut self.facts[at], after);
        let after = &self.facts[at];
        named("node_versions_only_grow", self.node_versions.check(&before, after))?;
        if let Some((command, outcome)) = done {
            let shard = self.runners[at].id();
            let twin = &self.twins[at].shard;
            let work = self.twins[at].shard.work().since(work);
            let cost = commands_cost_what_they_may(command, work, PAGES, &before);
            named("commands_cost_what_they_may", cost)?;
            if matches!(outcome, Outcome::Status(_)) {
                named("audits_are_true", audits_are_true(outcome, twin.state_hash()))?;
            }
            let step = Step { shard, now: self.now, command, outcome, before: &before, after };
            check_step(&step)?;
            expired(&step).into_iter().for_each(|id| self.grants.evicted(id));
            match outcome {
                Outcome::Node(Ok(NodeChange::Removed { node, .. })) => {
                    self.grants.node_removed(*node, &before);
                    self.nodes_removed.insert(*node);
                }
                Outcome::Adopt(Ok(placement)) => self.grants.adopted(placement.allocation),
                Outcome::PlaceInto(Ok(placement)) => {
                    self.gangs.placed_inside(placement.allocation, after);
                }
                Outcome::Node(Ok(NodeChange::Added(_))) => {
                    named("one_node_per_name", one_node_per_name(&self.facts))?;
                }
                _ => {}
            }
        }
        self.server.shard_changed(&before, after);
        self.follow_bundles(at, done, &before);
        self.check_tasks()?;
        self.follow_statements(at, done, &before)
    }

    /// Records what others than the planner do to the bundles of groups.
    fn follow_bundles(&mut self, at: usize, done: Option<(&Command, &Outcome)>, before: &Facts) {
        let after = &self.facts[at];
        let applied = match done {
            Some((_, Outcome::Applied(Ok(applied)))) => Some(applied),
            _ => None,
        };
        let by_planner = applied.is_some_and(|applied| applied.statement.planner != COORDINATOR);
        let live: BTreeSet<AllocationId> = bundles(std::slice::from_ref(after)).map(|(id, _)| id).collect();
        let leaving = applied.into_iter().filter(|_| !by_planner).flat_map(|applied| &applied.granted);
        let leaving: BTreeSet<AllocationId> = leaving
            .filter_map(|(_, granted)| match granted {
                Granted::Releasing { allocation, .. } => Some(*allocation),
                _ => None,
            })
            .collect();
        for (id, bundle) in bundles(std::slice::from_ref(before)) {
            let ended = !live.contains(&id) && !by_planner;
            if ended {
                self.ended_by_others.insert(id);
            }
            if ended || leaving.contains(&id) {
                self.rules.muddle(bundle.group);
            }
        }
        // This includes bundles that are granted on a node that is already lost.
        let lost = after.nodes().filter(|node| matches!(node.state, NodeState::Lost { .. }));
        let lost: BTreeSet<NodeId> = lost.map(|node| node.registration.id).collect();
        let on_lost = after.allocations().filter(|known| lost.contains(&known.node)).map(|known| known.id);
        let on_lost: BTreeSet<AllocationId> = on_lost.collect();
        for (id, bundle) in bundles(std::slice::from_ref(after)) {
            if on_lost.contains(&id) && self.were_lost.insert(id) {
                self.rules.muddle(bundle.group);
            }
        }
    }

    /// Records the effects of a step on statements, and of statements on callers.
    pub(super) fn follow_statements(
        &mut self,
        at: usize,
        done: Option<(&Command, &Outcome)>,
        before: &Facts,
    ) -> Verdict {
        let after = &self.facts[at];
        let Some((command, outcome)) = done else {
            let ended = self.statements.only_what_is_evicted_ends_by_itself(before, after, self.now);
            let ended = named("only_what_is_evicted_ends_by_itself", ended)?;
            ended.into_iter().for_each(|id| self.grants.evicted(id));
            return Ok(());
        };
        let shard = self.runners[at].id();
        let step = Step { shard, now: self.now, command, outcome, before, after };
        named("statements", self.statements.handle(&step))?;
        if let Outcome::Applied(Ok(applied)) = outcome {
            let (_, ended) = granted_and_ended(applied);
            let statement = applied.statement;
            for made in self.statements.made(&step) {
                self.grants.made(made.id, statement, made.bundle.as_ref().map(|(group, _)| *group));
                if let Some((group, placed)) = made.bundle
                    && JobId::of_group(group).is_none()
                {
                    self.rules.granted(statement, group, placed, made.by_ticket);
                }
            }
            ended.into_iter().for_each(|id| self.grants.evicted(id));
        }
        Ok(())
    }

    /// Checks that promised allocations are live and ended ones are not. An allocation that was unknown at its
    /// release must have ended with its node.
    pub(super) fn check_promises(&mut self) -> Verdict {
        let live = live(&self.facts);
        for (promised, ended) in [
            (&self.coordinator.promised, &self.coordinator.ended),
            (&self.gangs.promised, &self.gangs.released),
        ] {
            named("promises_are_kept", promises_are_kept(promised, ended, &live, &self.grants))?;
        }
        self.check_charged()?;
        named("inside_is_placed", inside_is_placed(self.gangs.inside(), &self.facts))?;
        let releasing = releasing(&self.facts);
        let whole = groups_go_whole(&self.gangs.ended, |id| live.contains_key(&id), |id| releasing(&id));
        named("groups_go_whole", whole)?;
        for client in &mut self.clients {
            let kept = promises_are_kept(&client.promised, &client.ended, &live, &self.grants);
            named("promises_are_kept", kept)?;
            for id in std::mem::take(&mut client.missed) {
                if !self.grants.is_gone(id) && !client.doubtful.contains(&id) {
                    return Err(format!("promises_are_kept: {id} was gone before its release"));
                }
            }
        }
        Ok(())
    }

    /// Checks that every live allocation belongs to a request, and that its client knows it or cannot know it.
    pub(in crate::sim) fn check_owners(&self) -> Verdict {
        let releasing = releasing(&self.facts);
        let client_knows = |id, request: Option<_>| {
            self.clients.iter().any(|client| {
                client.promised.contains_key(&id)
                    || client.doubtful.contains(&id)
                    || request.is_some_and(|request| client.undecided.contains(&request))
            })
        };
        let is_direct = |job| self.jobs_watch.as_ref().is_some_and(|watch| watch.is_direct(job));
        let knows = |id, request: Option<_>| {
            if let Some((statement, group)) = self.grants.statement_of(id) {
                return match statement.planner {
                    COORDINATOR => {
                        self.coordinator.owns(id) || self.coordinator.forgotten.contains(&statement)
                    }
                    _ => {
                        let has = |group| match JobId::of_group(group) {
                            Some(job) if is_direct(job) => client_knows(id, request),
                            // Tasks are compared with the books at rest.
                            Some(_) => true,
                            None => self.gangs.has(group) || self.server.groups.has(group),
                        };
                        group.map_or_else(|| self.gangs.owns(id), |group| has(group) || releasing(&id))
                    }
                };
            }
            client_knows(id, request)
        };
        let owned = self.grants.everything_is_somebodys(&self.facts, knows);
        named("everything_is_somebodys", owned)
    }

    /// Returns the number of placements that were granted.
    pub(in crate::sim) fn granted(&self) -> u64 {
        self.grants.count()
    }

    /// Returns whether a planner has a statement in progress.
    pub(in crate::sim) fn is_planning(&self) -> bool {
        self.planners.iter().any(|planner| planner.planner().is_committing())
    }

    /// Returns whether nothing is in flight at any port.
    pub(in crate::sim) fn ports_are_idle(&self) -> bool {
        self.server.fronts.iter().all(|front| front.port.pending() == 0)
            && self.registrar.is_idle()
            && self.coordinator.is_idle()
            && self.gangs.is_idle()
            && !self.is_planning()
    }
}

/// Returns a test for releasing allocations. They keep their grace period even if their group ends.
fn releasing(shards: &[Facts]) -> impl Fn(&AllocationId) -> bool {
    |id| {
        let mut partitions = shards.iter().flat_map(|facts| &facts.partitions);
        partitions.any(|partition| partition.releasing.iter().any(|record| record.allocation == *id))
    }
}
