//! Handles bundles that ended.
//!
//! A shard tells each bundle that ended in its views ([`BundleEnded`]). These events alone say that a bundle is
//! no longer placed, even if the planner itself ended it. An answer only concludes its job. So the order of
//! events and answers does not matter: an event that comes before the answer with the grant is taken again
//! after it.

use std::collections::BTreeMap;

use super::Planner;
use super::group::Group;
use super::life::{OnGrowth, State};
use crate::group::GroupView;
use crate::ids::{AllocationId, BundleId, GroupId};
use crate::node::NodeState;
use crate::replica::Replica;
use crate::state::GroupBundleRecord;
use crate::view::{BundleEnded, EndCause};

impl Planner {
    /// Brings every replica up to the newest view, and handles bundles that ended. Returns whether any replica
    /// changed.
    pub(super) fn sync(&mut self) -> bool {
        let mut moved = false;
        for at in 0..self.replicas.copies.len() {
            moved |= self.replicas.copies[at].sync();
            match self.replicas.copies[at].take_ended() {
                Some(ended) => ended.iter().for_each(|end| self.bundle_ended(end)),
                None => self.compare(at),
            }
        }
        moved
    }

    /// Brings every replica up to all that has changed until now. Returns whether it did. If not, a shard is about to
    /// publish a view, and the planner's bell rings for it.
    pub(super) fn catch_up(&mut self) -> bool {
        self.port.views().take_news(|_| {});
        self.replicas.copies.iter_mut().for_each(Replica::await_view);
        self.sync();
        let mut is_current = true;
        for at in 0..self.replicas.copies.len() {
            if self.replicas.copies[at].is_awaiting() {
                self.port.views().want_next(self.shard_id(at));
                is_current = false;
            }
        }
        if is_current {
            return true;
        }
        // Asked first, so that no view is missed.
        self.sync();
        self.replicas.copies.iter_mut().all(|copy| !copy.is_awaiting())
    }

    /// Marks a bundle as not placed. Its allocation on a lost node ends when it is placed again.
    fn bundle_ended(
        &mut self,
        &BundleEnded { bundle: BundleId { group, index }, allocation, cause, .. }: &BundleEnded,
    ) {
        let bundle = self.groups.get_mut(&group).and_then(|group| group.bundle_mut(index));
        let Some(bundle) = bundle else { return };
        let is_lost = cause == EndCause::NodeLost;
        let before = (bundle.place, bundle.lost);
        if bundle.lost == Some(allocation) && !is_lost {
            bundle.lost = None;
        }
        let is_short = bundle.place.is_some_and(|place| place.allocation == allocation);
        if is_short {
            bundle.place = None;
            bundle.lost = is_lost.then_some(allocation);
        }
        if (bundle.place, bundle.lost) != before {
            self.note_changed(group);
        }
        if is_short {
            self.is_short(group);
        }
    }

    /// Compares all bundles of a shard with its view, because the view does not tell every one that ended.
    fn compare(&mut self, shard: usize) {
        let base = self.replicas.copies[shard].base().filter(|_| !self.groups.is_empty());
        let Some(view) = base else { return };
        let mut live: BTreeMap<AllocationId, bool> = BTreeMap::new();
        view.nodes(|slot, image, _| {
            let is_lost = matches!(image.state, Some(NodeState::Lost { .. }));
            live.extend(view.allocations(slot).map(|allocation| (allocation.id, is_lost)));
        });
        let sequence = view.version().sequence;
        let mut ended = Vec::new();
        for (&id, group) in &self.groups {
            for bundle in &group.bundles {
                for allocation in bundle.place.map(|place| place.allocation).into_iter().chain(bundle.lost) {
                    let cause = match live.get(&allocation) {
                        Some(false) => continue,
                        Some(true) => EndCause::NodeLost,
                        None => EndCause::Released,
                    };
                    if self.port.shard_of(allocation.partition) == Some(self.shard_id(shard)) {
                        let bundle = BundleId { group: id, index: bundle.index };
                        ended.push(BundleEnded { bundle, allocation, cause, sequence });
                    }
                }
            }
        }
        ended.iter().for_each(|end| self.bundle_ended(end));
    }

    /// Returns the view of a group with its releasing bundles.
    pub(super) fn shown(&self, group: &Group) -> GroupView {
        let releasing = |bundle: &GroupBundleRecord| {
            let place = bundle.place?;
            let (shard, slot) = self.replicas.locate(place.node)?;
            Some((bundle.index, self.replicas.copies[shard].releasing(slot, place.allocation)?))
        };
        let releasing = group.bundles.iter().filter_map(releasing).collect();
        GroupView { releasing, ..group.view() }
    }

    /// Handles the loss of a bundle. It is placed again as soon as nothing else of the group is in flight.
    fn is_short(&mut self, id: GroupId) {
        let now = self.now;
        let has_placeholder = self.has_placeholder(id);
        let group = self.groups.get_mut(&id).expect("a group whose bundle ended is kept");
        match group.state {
            // The planner itself ends bundles.
            State::Ending(_) => return,
            State::Settled => group.since = now,
            _ => {}
        }
        match group.state {
            State::Settled => self.wait(id, false, OnGrowth::Plan),
            // A growth must not delay the bundles that the group had before.
            State::Queued { .. } if group.grows_from().is_some() => self.wait(id, false, OnGrowth::Plan),
            // Its placeholder is for other bundles.
            State::Waiting { .. } if has_placeholder => self.wait(id, false, OnGrowth::Plan),
            _ => {}
        }
        self.stir(id);
    }
}
