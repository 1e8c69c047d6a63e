//! Waiting groups in the shards' queues.
//!
//! A planner watches the bundles of a waiting group at every shard: one copy for each different request. A copy
//! has its turn in the shard's queue like a waiting placement. When a node could hold it, the planner tries the group.
//! If the group still has no place, the planner says so, and the room is offered to those after it.
//!
//! Room that came free before a shard knew the copies woke nobody. So a group is tried once more when all shards have
//! them.

use std::sync::Arc;

use super::Planner;
use super::life::{OnGrowth, State};
use crate::ids::{GroupId, ShardId};
use crate::limits::{WATCHED_REQUESTS_MAX, WATCHES_MAX};
use crate::planted::{PlantedBug, is_planted};
use crate::request::PlacementRequest;
use crate::router::Tag;
use crate::shard::{Command, Watch};

/// The tag of commands whose answers are ignored.
const IGNORED_TAG: Tag = Tag::MAX - 1;

/// The copies of one group.
#[derive(Debug)]
pub(super) struct GroupWatch {
    /// The different requests of the bundles to place. Each has a copy at every shard.
    requests: Vec<Arc<PlacementRequest>>,
    /// The number of the first request's copies. The others follow.
    first: u64,
    /// The number of shards' answers that are missing.
    unanswered: usize,
    /// Copies that are under way, in order of arrival.
    under_way: Vec<(ShardId, u64)>,
    /// The number of these that the last attempt knew.
    tried: usize,
    /// Set if something may have changed since the last attempt began.
    stirred: bool,
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

    /// Gives a waiting group its copies, or answers those that are under way.
    pub(super) fn watch(&mut self, id: GroupId) {
        let requests = self.watched_requests(id);
        let group = self.groups.get_mut(&id).expect("a waiting group is kept");
        if let Some(watch) = group.watch.as_mut().filter(|watch| are_same(&watch.requests, &requests)) {
            let answered = watch.under_way.drain(..std::mem::take(&mut watch.tried));
            let stirred = watch.stirred;
            for (shard, number) in answered {
                let token = self.port.watch_token(number);
                self.watch_commands.push_back((IGNORED_TAG, shard, Command::Rearm(token)));
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
        let priority = group.spec.priority;
        let since = group.since;
        let unanswered = requests.len() * shards;
        let first = self.next_watch;
        let watch =
            GroupWatch { requests, first, unanswered, under_way: Vec::new(), tried: 0, stirred: false };
        self.next_watch += watch.requests.len() as u64;
        for (number, request) in watch.numbers().zip(&watch.requests) {
            self.watched.insert(number, id);
            let token = self.port.watch_token(number);
            for shard in 0..shards {
                let request = PlacementRequest::clone(request);
                let watch = Box::new(Watch { token, request, priority, since });
                self.watch_commands.push_back((number, ShardId(shard as u16), Command::Watch(watch)));
            }
        }
        group.watch = Some(Box::new(watch));
    }

    /// Removes the copies of a group, if it has any.
    pub(super) fn unwatch(&mut self, id: GroupId) {
        let Some(watch) = self.groups.get_mut(&id).and_then(|group| group.watch.take()) else { return };
        for number in watch.numbers() {
            self.watched.remove(&number);
            let token = self.port.watch_token(number);
            for shard in 0..self.replicas.copies.len() {
                self.watch_commands.push_back((IGNORED_TAG, ShardId(shard as u16), Command::Unpark(token)));
            }
        }
    }

    /// Notes which copies under way the attempt that begins knows.
    pub(super) fn attempt_begins(&mut self, id: GroupId) {
        if let Some(watch) = self.groups.get_mut(&id).and_then(|group| group.watch.as_mut()) {
            watch.tried = watch.under_way.len();
            watch.stirred = false;
        }
    }

    /// Handles the news that a node of `shard` could hold a watched bundle.
    pub(super) fn room_found(&mut self, number: u64, shard: ShardId) {
        // The copies of a group that no longer waits are being removed.
        let Some(&id) = self.watched.get(&number) else { return };
        let watch = self.watch_of(id);
        watch.under_way.push((shard, number));
        watch.stirred = !is_planted(PlantedBug::RoomForGroupForgotten);
        self.stir_if_it_waits(id);
    }

    /// Handles a shard's answer to a new copy.
    pub(super) fn handle_watch_answer(&mut self, number: u64) {
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
