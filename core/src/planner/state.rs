//! The groups of a planner as durable state, out and in.

use std::cmp::Reverse;
use std::sync::Arc;

use super::Planner;
use super::group::{Awaiting, Bundle, Group, Place};
use crate::state::{GroupBundleRecord, GroupRecord};

impl Planner {
    /// The groups that stand, in order of id.
    ///
    /// # Panics
    /// When a statement is under way.
    #[must_use]
    pub fn export(&self) -> Vec<GroupRecord> {
        assert!(!self.is_committing(), "a planner is stopped when nothing is under way");
        let made = |group: &&Group| !matches!(group.awaiting, Awaiting::Creation(_));
        let record = |group: &Group| GroupRecord {
            id: group.id,
            spec: Arc::clone(&group.spec),
            // What it grows by and has no place was promised to nobody.
            bundles: standing(group).map(bundle_record).collect(),
            next_index: group.grows_from().unwrap_or(group.next_index),
        };
        self.groups.values().filter(made).map(record).collect()
    }

    /// Takes over groups that an earlier start left.
    ///
    /// # Panics
    /// When the group is there already.
    pub(crate) fn adopt(&mut self, record: GroupRecord) {
        let GroupRecord { id, spec, bundles, next_index } = record;
        let bundles: Vec<Bundle> = bundles.into_iter().map(bundle).collect();
        for bundle in &bundles {
            if let Some(place) = &bundle.place {
                self.by_node.entry(place.node).or_default().insert((id, bundle.index));
            }
        }
        let group = Group::resumed(id, spec, bundles, next_index);
        if group.is_incomplete() {
            self.incomplete.insert((Reverse(group.spec.priority), id));
            self.retry_now = true;
        }
        let before = self.groups.insert(id, group);
        assert!(before.is_none(), "group {id} is there twice");
    }
}

/// The bundles that a group has without what it grows by.
fn standing(group: &Group) -> impl Iterator<Item = &Bundle> {
    let first = group.grows_from();
    group.bundles.iter().filter(move |bundle| first.is_none_or(|first| bundle.index < first))
}

fn bundle_record(bundle: &Bundle) -> GroupBundleRecord {
    let place = bundle.place.map(|Place { node, allocation, gpus }| (node, allocation, gpus));
    GroupBundleRecord { index: bundle.index, request: Arc::clone(&bundle.request), place, lost: bundle.lost }
}

fn bundle(record: GroupBundleRecord) -> Bundle {
    let GroupBundleRecord { index, request, place, lost } = record;
    let place = place.map(|(node, allocation, gpus)| Place { node, allocation, gpus });
    Bundle { index, request, place, lost }
}
