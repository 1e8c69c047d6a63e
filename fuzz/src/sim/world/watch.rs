//! What is looked at: every command of every shard, every view, and what clients were promised.

use wharf_core::ids::AllocationId;
use wharf_core::shard::{Command, Outcome};

use super::World;
use super::opened::{At, Recorder};
use crate::sim::checkers::order::replay_gives_the_same;
use crate::sim::checkers::promises::{live, one_node_per_name, promises_are_kept};
use crate::sim::checkers::statements::granted_and_ended;
use crate::sim::checkers::views::{kept_views_stand, shown, views_are_true};
use crate::sim::checkers::{Verdict, check_step};
use crate::sim::coordinator::COORDINATOR;
use crate::sim::facts::{Facts, Step};

impl World<'_> {
    /// A shard takes a batch from its rings.
    pub(in crate::sim) fn run_shard(&mut self, at: usize) -> Result<usize, String> {
        let mut batch = Recorder::default();
        self.runners[at].run_batch(&At(self.now), &mut batch);
        if !batch.ran {
            return Ok(0);
        }
        self.trace.line(format_args!("shard {at} runs {:?}", batch.order));
        self.twins[at]
            .starves
            .check(self.now, &batch.enqueued)
            .map_err(|e| format!("no_ring_starves: {e}"))?;
        self.runners[at].shard().check_invariants().map_err(|e| format!("index_agrees_with_table: {e}"))?;
        let mut again = Vec::new();
        self.repeat(at, None, &mut again)?;
        for (command, outcome) in batch.commands.iter().zip(&batch.outcomes) {
            match outcome {
                Outcome::Exported(_) => self.trace.line(format_args!("  export")),
                _ => self.trace.line(format_args!("  {command:?} -> {outcome:?}")),
            }
            self.repeat(at, Some((command, outcome)), &mut again)?;
        }
        let states = (self.runners[at].shard().state_hash(), self.twins[at].shard.state_hash());
        self.trace.line(format_args!("  state {}", states.0));
        replay_gives_the_same((&batch.outcomes, &again), states)
            .map_err(|e| format!("replay_gives_the_same: {e}"))?;
        self.check_views(at)?;
        Ok(batch.commands.len().max(1))
    }

    /// The newest view of a shard is the shard, and those that are kept stay what they were.
    pub(super) fn check_views(&mut self, at: usize) -> Verdict {
        let twin = &mut self.twins[at];
        twin.shard.publish_view();
        let view = self.views[at].latest();
        let now = shown(&view);
        let changed = now != twin.shown;
        twin.versions
            .check(self.incarnation, view.version(), changed)
            .map_err(|found| format!("versions_only_grow: shard {at}: {found}"))?;
        views_are_true(&now, &self.facts[at]).map_err(|found| format!("views_are_true: {found}"))?;
        if let Some((kept, then)) = &self.kept {
            kept_views_stand(then, &shown(kept)).map_err(|found| format!("kept_views_stand: {found}"))?;
        }
        if self.choices.one_in(16) {
            self.kept = Some((view, now.clone()));
        }
        self.twins[at].shown = now;
        Ok(())
    }

    /// The twin does it too, and every checker looks at what it did. Without a command: what is due.
    pub(super) fn repeat(
        &mut self,
        at: usize,
        done: Option<(&Command, &Outcome)>,
        again: &mut Vec<Outcome>,
    ) -> Verdict {
        let twin = &mut self.twins[at].shard;
        match done {
            None if twin.next_deadline().is_none_or(|due| due > self.now) => return Ok(()),
            None => twin.step([], self.now, again),
            Some((command, _)) => twin.step([command.clone()], self.now, again),
        }
        twin.drain_woken();
        let after = Facts::of(twin);
        twin.check_invariants().map_err(|found| format!("index_agrees_with_table: {found}"))?;
        let before = std::mem::replace(&mut self.facts[at], after);
        let after = &self.facts[at];
        if let Some((command, outcome)) = done {
            let shard = self.runners[at].id();
            check_step(&Step { shard, now: self.now, command, outcome, before: &before, after })?;
            match outcome {
                Outcome::NodeRemoved { node, .. } => self.grants.node_removed(*node, &before),
                Outcome::Adopted(placement) => self.grants.adopted(placement.allocation),
                Outcome::NodeAdded(_) => {
                    one_node_per_name(&self.facts).map_err(|found| format!("one_node_per_name: {found}"))?;
                }
                _ => {}
            }
        }
        self.server.shard_changed(&before, after);
        self.follow_statements(at, done, &before)
    }

    /// What a step means for statements, and what they mean for callers.
    pub(super) fn follow_statements(
        &mut self,
        at: usize,
        done: Option<(&Command, &Outcome)>,
        before: &Facts,
    ) -> Verdict {
        let after = &self.facts[at];
        let Some((command, outcome)) = done else {
            let ended = self.statements.only_what_is_evicted_ends_by_itself(before, after, self.now);
            let ended = ended.map_err(|found| format!("only_what_is_evicted_ends_by_itself: {found}"))?;
            ended.into_iter().for_each(|id| self.grants.evicted(id));
            return Ok(());
        };
        let shard = self.runners[at].id();
        let step = Step { shard, now: self.now, command, outcome, before, after };
        self.statements.handle(&step).map_err(|found| format!("statements: {found}"))?;
        if let Outcome::Applied(applied) = outcome {
            let (_, ended) = granted_and_ended(applied);
            let statement = applied.statement;
            for (id, group) in self.statements.made(&step) {
                self.grants.made(id, statement, group);
            }
            ended.into_iter().for_each(|id| self.grants.evicted(id));
        }
        Ok(())
    }

    /// What clients were promised is there, and what has ended is not; what was to end and was not there
    /// went with its node.
    pub(super) fn check_promises(&mut self) -> Verdict {
        let live = live(&self.facts);
        promises_are_kept(&self.coordinator.promised, &self.coordinator.ended, &live, &self.grants)
            .map_err(|found| format!("promises_are_kept: statements: {found}"))?;
        // What somebody else evicted with grace keeps it, whatever becomes of its group.
        let releasing = |id: &AllocationId| {
            let mut partitions = self.facts.iter().flat_map(|facts| &facts.partitions);
            partitions.any(|partition| partition.releasing.iter().any(|record| record.allocation == *id))
        };
        let mut stays = self.gangs.ended.iter().filter(|id| live.contains_key(id));
        if let Some(id) = stays.find(|id| !releasing(id)) {
            return Err(format!("groups_go_whole: {id} was in a group that is gone, and is there"));
        }
        for client in &mut self.clients {
            promises_are_kept(&client.promised, &client.ended, &live, &self.grants)
                .map_err(|found| format!("promises_are_kept: {found}"))?;
            for id in std::mem::take(&mut client.missed) {
                if !self.grants.is_gone(id) && !client.doubtful.contains(&id) {
                    return Err(format!("promises_are_kept: {id} was gone before its release"));
                }
            }
        }
        Ok(())
    }

    /// Every live allocation is some request's, and its client knows it or cannot know.
    pub(in crate::sim) fn check_owners(&self) -> Verdict {
        let knows = |id, request: Option<_>| {
            if let Some((statement, group)) = self.grants.statement_of(id) {
                // The script's groups are forgotten with the service: their bundles stay.
                return match statement.planner {
                    COORDINATOR => {
                        self.coordinator.promised.contains_key(&id)
                            || self.coordinator.forgotten.contains(&statement)
                    }
                    _ => {
                        group.is_some_and(|group| self.gangs.has(group))
                            || statement.incarnation != self.incarnation
                    }
                };
            }
            self.clients.iter().any(|client| {
                client.promised.contains_key(&id)
                    || client.doubtful.contains(&id)
                    || request.is_some_and(|request| client.undecided.contains(&request))
            })
        };
        let owned = self.grants.everything_is_somebodys(&self.facts, knows);
        owned.map_err(|found| format!("everything_is_somebodys: {found}"))
    }

    /// How many placements were granted.
    pub(in crate::sim) fn granted(&self) -> u64 {
        self.grants.count()
    }

    /// Whether a planner has a statement under way.
    pub(in crate::sim) fn is_planning(&self) -> bool {
        self.planners.iter().any(|planner| planner.planner().is_committing())
    }

    /// Whether nothing is under way at any port.
    pub(in crate::sim) fn ports_are_idle(&self) -> bool {
        self.server.fronts.iter().all(|front| front.port.pending() == 0)
            && self.desk.is_idle()
            && self.coordinator.is_idle()
            && self.gangs.is_idle()
            && !self.is_planning()
    }
}
