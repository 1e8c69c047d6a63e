//! Waiting groups in the shards' queues.
//!
//! A planner watches the bundles of a waiting group at every shard: one copy for each different request. A copy
//! has its turn in the shard's queue like a waiting placement. When a node could hold it, the planner tries the group.
//! If the group still has no place, the planner says so, and the room is offered to those after it.
//!
//! Room that came free before a shard knew the copies woke nobody. So a group is tried once more when all shards have
//! them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Planner;
use super::life::{OnGrowth, State};
use crate::ids::{GroupId, ShardId};
use crate::limits::{WATCH_IN_FLIGHT_MAX, WATCHED_REQUESTS_MAX, WATCHES_MAX};
use crate::planted::{PlantedBug, is_planted};
use crate::request::PlacementRequest;
use crate::router::Tag;
use crate::shard::{Command, Watch};
use crate::time::Time;

/// The tag of commands whose answers say nothing.
const IGNORED_TAG: Tag = Tag::MAX - 1;

/// Copies that are being made or removed at one shard after the other.
#[derive(Debug)]
pub(super) struct WatchStep {
    /// The number of the copies.
    number: u64,
    is_new: bool,
    /// The next shard.
    shard: usize,
}

/// The copies of one group.
#[derive(Debug)]
pub(super) struct GroupWatch {
    /// The different requests of the bundles to place. Each has a copy at every shard.
    requests: Vec<Arc<PlacementRequest>>,
    /// The number of the first request's copies. The others follow.
    first: u64,
    /// The number of shards' answers that are missing.
    unanswered: usize,
    /// The time since which the copies wait.
    since: Time,
    /// Reports of room that are not answered, each with the number of the copy, in order of arrival.
    reports: Vec<(ShardId, u64)>,
    /// The number of reports that the last attempt knew.
    tried: usize,
    /// Set if something may have changed since the last attempt began.
    stirred: bool,
    /// Set while the group is in the planner's queue of urgent groups.
    is_queued: bool,
}

impl GroupWatch {
    fn numbers(&self) -> impl Iterator<Item = u64> + use<> {
        self.first..self.first + self.requests.len() as u64
    }
}

fn are_same(a: &[Arc<PlacementRequest>], b: &[Arc<PlacementRequest>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b) || a == b)
}

impl Planner {
    /// Returns the different requests of the bundles to place. Empty if they are too many to be watched.
    fn watched_requests(&self, id: GroupId) -> Vec<Arc<PlacementRequest>> {
        let mut requests: Vec<Arc<PlacementRequest>> = Vec::new();
        for bundle in self.groups[&id].open() {
            let is_known = |known: &Arc<PlacementRequest>| {
                Arc::ptr_eq(known, &bundle.request) || *known == bundle.request
            };
            if !requests.iter().any(is_known) {
                requests.push(Arc::clone(&bundle.request));
            }
            if requests.len() > WATCHED_REQUESTS_MAX {
                return Vec::new();
            }
        }
        requests
    }

    /// Gives a waiting group its copies, or answers the reports that the last attempt knew.
    pub(super) fn watch(&mut self, id: GroupId) {
        let requests = self.watched_requests(id);
        let group = self.groups.get_mut(&id).expect("a waiting group is kept");
        let since = group.since;
        let is_same =
            |watch: &&mut Box<GroupWatch>| watch.since == since && are_same(&watch.requests, &requests);
        if let Some(watch) = group.watch.as_mut().filter(is_same) {
            let mut answered: BTreeMap<(ShardId, u64), u32> = BTreeMap::new();
            for report in watch.reports.drain(..std::mem::take(&mut watch.tried)) {
                *answered.entry(report).or_default() += 1;
            }
            let stirred = watch.stirred;
            for ((shard, number), reports) in answered {
                let token = self.port.watch_token(number);
                self.watch_answers.push_back((shard, Command::Rearm { token, reports }));
            }
            if stirred {
                self.stir(id);
            }
            return;
        }
        self.unwatch(id);
        let shards = self.replicas.copies.len();
        let is_full = self.watched.len() + requests.len() > WATCHES_MAX;
        let group = self.groups.get_mut(&id).expect("a waiting group is kept");
        if requests.is_empty() || is_full {
            if let State::Waiting { on_growth, .. } = &mut group.state {
                *on_growth = OnGrowth::Plan;
            }
            return;
        }
        let unanswered = requests.len() * shards;
        let first = self.next_watch;
        let watch = GroupWatch {
            requests,
            first,
            since,
            unanswered,
            reports: Vec::new(),
            tried: 0,
            stirred: false,
            is_queued: false,
        };
        self.next_watch += watch.requests.len() as u64;
        for number in watch.numbers() {
            self.watched.insert(number, id);
            self.watch_steps.push_back(WatchStep { number, is_new: true, shard: 0 });
        }
        group.watch = Some(Box::new(watch));
    }

    /// Removes the copies of a group, if it has any.
    pub(super) fn unwatch(&mut self, id: GroupId) {
        let Some(watch) = self.groups.get_mut(&id).and_then(|group| group.watch.take()) else { return };
        // Others wait for these answers.
        let reported: BTreeSet<(ShardId, u64)> = watch.reports.iter().copied().collect();
        for (shard, number) in reported {
            let token = self.port.watch_token(number);
            self.watch_answers.push_back((shard, Command::Unpark(token)));
        }
        for number in watch.numbers() {
            self.watched.remove(&number);
            self.watch_steps.push_back(WatchStep { number, is_new: false, shard: 0 });
        }
    }

    /// Returns the next command about copies that may be sent, and counts it. Few are in flight at a time, so that
    /// statements do not wait behind them.
    pub(super) fn next_watch_command(&mut self) -> Option<(Tag, ShardId, Command)> {
        if self.watching >= WATCH_IN_FLIGHT_MAX {
            return None;
        }
        let command = match self.watch_answers.pop_front() {
            Some((shard, command)) => (IGNORED_TAG, shard, command),
            None => self.next_watch_step()?,
        };
        self.watching += 1;
        Some(command)
    }

    fn next_watch_step(&mut self) -> Option<(Tag, ShardId, Command)> {
        loop {
            let step = self.watch_steps.front_mut()?;
            let WatchStep { number, is_new, shard } = *step;
            step.shard += 1;
            // The group of a new copy may have stopped waiting.
            if shard == self.replicas.copies.len() || is_new && !self.watched.contains_key(&number) {
                self.watch_steps.pop_front();
                continue;
            }
            let shard = self.shard_id(shard);
            if is_new {
                return Some((number, shard, Command::Watch(Box::new(self.copy_of(number)))));
            }
            return Some((IGNORED_TAG, shard, Command::Unpark(self.port.watch_token(number))));
        }
    }

    /// Returns a copy for a shard.
    fn copy_of(&self, number: u64) -> Watch {
        let group = &self.groups[&self.watched[&number]];
        let watch = group.watch.as_ref().expect("the group of a copy is watched");
        let at = usize::try_from(number - watch.first).expect("a group has few copies");
        let request = PlacementRequest::clone(&watch.requests[at]);
        let token = self.port.watch_token(number);
        Watch { token, request, priority: group.spec.priority, since: watch.since }
    }

    /// Returns whether a waiting group has reports to answer, for which others wait.
    pub(super) fn has_reports(&self, id: GroupId) -> bool {
        let watch = self.groups.get(&id).and_then(|group| group.watch.as_ref());
        watch.is_some_and(|watch| !watch.reports.is_empty())
    }

    /// Queues a waiting group with reports, once.
    pub(super) fn make_urgent(&mut self, id: GroupId) {
        let priority = Reverse(self.groups[&id].spec.priority);
        if !std::mem::replace(&mut self.watch_of(id).is_queued, true) {
            self.urgent_count += 1;
            self.urgent.insert((priority, self.urgent_count, id));
        }
    }

    /// Takes the next group that still has reports to answer.
    pub(super) fn next_urgent(&mut self) -> Option<GroupId> {
        while let Some((_, _, id)) = self.urgent.pop_first() {
            // The group may have ended, or its reports may have been answered.
            let watch = self.groups.get_mut(&id).and_then(|group| group.watch.as_mut());
            if let Some(watch) = watch {
                watch.is_queued = false;
                if !watch.reports.is_empty() {
                    return Some(id);
                }
            }
        }
        None
    }

    /// Notes which reports the attempt that begins knows.
    pub(super) fn attempt_begins(&mut self, id: GroupId) {
        if let Some(watch) = self.groups.get_mut(&id).and_then(|group| group.watch.as_mut()) {
            watch.tried = watch.reports.len();
            watch.stirred = false;
        }
    }

    /// Handles the news that a node of `shard` could hold a watched bundle.
    pub(super) fn room_found(&mut self, number: u64, shard: ShardId) {
        // The copies of a group that no longer waits are being removed.
        let Some(&id) = self.watched.get(&number) else { return };
        let watch = self.watch_of(id);
        watch.reports.push((shard, number));
        watch.stirred = !is_planted(PlantedBug::RoomForGroupForgotten);
        self.stir_if_it_waits(id);
    }

    /// Handles a shard's answer to a command about a copy.
    pub(super) fn handle_watch_answer(&mut self, number: Tag) {
        self.watching -= 1;
        // Unknown for other commands than `Watch`, and if the group stopped waiting.
        let Some(&id) = self.watched.get(&number) else { return };
        let watch = self.watch_of(id);
        watch.unanswered -= 1;
        if watch.unanswered == 0 {
            watch.stirred = true;
            self.stir_if_it_waits(id);
        }
    }

    fn watch_of(&mut self, id: GroupId) -> &mut GroupWatch {
        let group = self.groups.get_mut(&id).expect("a watched group is kept");
        group.watch.as_mut().expect("the group of a copy is watched")
    }

    fn stir_if_it_waits(&mut self, id: GroupId) {
        let group = &self.groups[&id];
        let is_stirred = group.watch.as_ref().is_some_and(|watch| watch.stirred);
        if is_stirred && matches!(group.state, State::Waiting { .. }) {
            self.stir(id);
        }
    }
}
