//! Sends the statements of a planner to shards and handles the answers.

use std::collections::BTreeMap;

use super::explain_wait::TURNS_TAG;
use super::in_flight::{CommitOptions, StatementInFlight};
use super::jobs::{PLACEMENTS_TAG, RELEASE_TAG};
use super::ticket::TICKET_TAG;
use super::{Planner, PlannerConfig, Purpose};
use crate::group::{PlanReply, StatementReport};
use crate::ids::{ShardId, StatementId};
use crate::journal::{Changes, Unit};
use crate::reply::reply_of;
use crate::router::{PortRequest, WATCH_BIT};
use crate::shard::{Command, Outcome, TurnsCounted, WaitingPlacementsPage};
use crate::state::Origin;
use crate::statement::{Conflict, Operation};
use crate::time::Time;

/// A tag consists of the key of a statement in flight and the index of a part.
const PART_BITS: u32 = 16;

/// Splits operations by shard, each with its index. `conflicts`, in ascending order, has the indexes of
/// operations that are sent to no shard. Most statements have one shard.
fn parts_of(
    operations: Vec<(ShardId, Operation)>,
    conflicts: &[Conflict],
) -> Vec<(ShardId, Vec<(u16, Operation)>)> {
    let first = operations[0].0;
    let count = operations.len();
    let single = operations.iter().all(|&(shard, _)| shard == first);
    let sent = |at: &u16| conflicts.binary_search_by_key(at, |conflict| conflict.operation).is_err();
    let places = (0..=u16::MAX).filter(sent).zip(operations);
    let places = places.map(|(at, (shard, operation))| (shard, (at, operation)));
    if single {
        let mut part = Vec::with_capacity(count);
        part.extend(places.map(|(_, operation)| operation));
        return vec![(first, part)];
    }
    let mut parts: BTreeMap<ShardId, Vec<(u16, Operation)>> = BTreeMap::new();
    places.for_each(|(shard, operation)| parts.entry(shard).or_default().push(operation));
    parts.into_iter().collect()
}

impl Planner {
    /// Returns the number of this planner's last statement, 0 before the first.
    #[must_use]
    pub fn last_statement(&self) -> u64 {
        self.next_statement
    }

    pub(super) fn next_statement(&mut self) -> StatementId {
        self.next_statement += 1;
        let PlannerConfig { incarnation, number: planner, .. } = self.config;
        StatementId { incarnation, planner, number: self.next_statement }
    }

    /// Commits `operations`, each with its shard and in order of index. `conflicts`, in ascending order, are of
    /// operations of the statement that conflict before any shard has seen them.
    pub(super) fn commit(
        &mut self,
        operations: Vec<(ShardId, Operation)>,
        conflicts: Vec<Conflict>,
        terms: CommitOptions,
        purpose: Purpose,
    ) {
        let statement = self.next_statement();
        self.metrics.count_statement(operations.len(), &purpose);
        let mut flight =
            StatementInFlight::new(statement, parts_of(operations, &conflicts), conflicts, terms);
        let commands = flight.begin();
        let key = self.flights.insert((flight, purpose));
        self.send(key, commands);
    }

    fn send(&mut self, flight: usize, commands: Vec<(usize, ShardId, Command)>) {
        for (part, shard, command) in commands {
            assert!(part < 1 << PART_BITS, "SHARDS_MAX fits the part's bits");
            self.outbox.push_back(((flight as u64) << PART_BITS | part as u64, shard, command));
        }
    }

    /// Sends the commands that are ready. `now` is the time of sending. Shards hold their parts of a
    /// statement from then on, so the time spent on planning does not count.
    pub fn flush(&mut self, now: Time) {
        while self.port.room() > 0
            && let Some((tag, shard, mut command)) =
                self.outbox.pop_front().or_else(|| self.next_watch_command())
        {
            if let Command::Prepare(prepare) = &mut command {
                prepare.deadline = now.plus_nanos(self.config.hold_ns);
            }
            // Each shard records its effects and the request together. It may finish a part that it holds itself, so it must
            // know the request before.
            let flight = || self.flights.get((tag >> PART_BITS) as usize);
            let commits = matches!(command, Command::Apply(_) | Command::Prepare(_) | Command::Finish { .. });
            let committed = commits.then(flight).flatten();
            let origin = committed.and_then(|(_, purpose)| self.origin_of(purpose));
            let part = tag as u16;
            let origin = origin.map(|origin| Origin { part, ..origin });
            let request = PortRequest::Shard(shard, command);
            let answered =
                self.port.submit_for(origin, tag, request, now).expect("the port said that it has room");
            assert!(answered.is_none(), "a command for a shard is answered by the shard");
        }
        self.port.flush();
    }

    pub(super) fn handle_answer(&mut self, tag: u64, outcome: Outcome, now: Time) {
        if self.keeps_jobs() && tag == RELEASE_TAG {
            return self.task_released();
        }
        if self.keeps_jobs() && tag == PLACEMENTS_TAG {
            return self.placements_listed(*reply_of::<Box<WaitingPlacementsPage>, _>(outcome));
        }
        if tag == TURNS_TAG {
            return self.turns_counted(*reply_of::<Box<TurnsCounted>, _>(outcome));
        }
        if tag == TICKET_TAG {
            return self.handle_ticket_answer(reply_of(outcome), now);
        }
        if tag & WATCH_BIT != 0 {
            return self.handle_watch_answer(tag);
        }
        let key = (tag >> PART_BITS) as usize;
        let part = (tag & ((1 << PART_BITS) - 1)) as usize;
        let (flight, _) = self.flights.get_mut(key).expect("answers are of flights under way");
        let journal = self.journal.as_deref();
        let commands = flight.handle(part, outcome, |statement, shards| {
            if let Some(journal) = journal {
                journal.put(Unit::new(now, Changes::Decided(statement, shards)));
            }
        });
        if !commands.is_empty() {
            self.send(key, commands);
        } else if flight.is_over() {
            let (flight, purpose) = self.flights.remove(key);
            self.concluded(flight.conclude(), purpose, now);
        }
    }

    fn concluded(&mut self, concluded: StatementReport, purpose: Purpose, now: Time) {
        self.metrics.count_concluded(&concluded, &purpose);
        match purpose {
            Purpose::Place(placing) => self.placement_concluded(*placing, &concluded, now),
            Purpose::End(group) => {
                let granted = concluded.applied.iter().map(|applied| applied.granted.len());
                let ended = u32::try_from(granted.sum::<usize>()).expect("GROUP_BUNDLES_MAX fits u32");
                self.end_concluded(group, ended, &concluded.conflicts, now);
            }
            Purpose::Cycle(plan) => self.plan_concluded(&plan, concluded, now),
            Purpose::Direct(direct) => self.direct_concluded(*direct, concluded, now),
            Purpose::EvictTasks(tasks) => self.evictions_concluded(&tasks, &concluded),
            Purpose::Submit(tag) => self.reply(tag, PlanReply::Statement(Ok(Box::new(concluded)))),
        }
    }

    /// Returns the shard of a replica, by its index.
    pub(super) fn shard_id(&self, at: usize) -> ShardId {
        ShardId(u16::try_from(at).expect("SHARDS_MAX fits u16"))
    }
}
