//! What callers of planners know after a crash: what they were told, and what of the rest is there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_core::group::{GroupState, GroupView};
use wharf_core::ids::{AllocationId, GroupId};
use wharf_core::state::GroupRecord;

use super::{Asked, Gangs, Known};
use crate::sim::checkers::crash::UndecidedGroups;
use crate::sim::checkers::promises::Grants;
use crate::sim::coordinator::COORDINATOR;
use crate::sim::facts::Facts;

/// Returns a group as a status would show it.
pub(in crate::sim) fn view_of(record: &GroupRecord) -> GroupView {
    let bundles = record.bundles.iter().map(|bundle| (bundle.index, bundle.place));
    GroupView {
        id: record.id,
        state: GroupState::Placed,
        spec: Arc::clone(&record.spec),
        bundles: bundles.collect(),
        requests: record.bundles.iter().map(|bundle| Arc::clone(&bundle.request)).collect(),
        attempts: 0,
        releasing: Vec::new(),
    }
}

impl Gangs {
    /// Returns the requests about groups without an answer.
    pub(in crate::sim) fn undecided(&self) -> UndecidedGroups {
        let mut undecided = UndecidedGroups::default();
        for asked in self.asked.values() {
            match asked {
                Asked::Create(spec, _) => undecided.created.push(Arc::clone(spec)),
                Asked::Remove(group) => drop(undecided.removed.insert(*group)),
                Asked::Shrink(group, _) => drop(undecided.shrunk.insert(*group)),
                _ => {}
            }
        }
        undecided
    }

    /// Returns the bundles of each group whose caller knows all of them.
    pub(in crate::sim) fn bundles(&self) -> BTreeMap<GroupId, BTreeSet<u32>> {
        let indexes = |known: &Known| {
            if known.is_vague { BTreeSet::new() } else { known.requests.keys().copied().collect() }
        };
        self.groups.iter().map(|(id, known)| (*id, indexes(known))).collect()
    }

    /// Drops the answers that had not left the service.
    pub(in crate::sim) fn lose_answers(&mut self) {
        self.inbox.clear();
    }

    /// Forgets until when groups would have waited. That is not stored once they are placed.
    pub(in crate::sim) fn forget_waits(&mut self) {
        for known in self.groups.values_mut() {
            Arc::make_mut(&mut known.spec).wait_until = None;
        }
    }

    /// Takes over what is there after a crash. Whatever was told was checked before.
    pub(in crate::sim) fn handle_crash(&mut self, facts: &[Facts], groups: &[GroupRecord], grants: &Grants) {
        self.seen.clear();
        let recorded: BTreeSet<GroupId> = groups.iter().map(|group| group.id).collect();
        self.groups.retain(|id, _| recorded.contains(id));
        for group in groups {
            let view = view_of(group);
            let requests = view.bundles.iter().map(|&(index, _)| index).zip(view.requests.iter().cloned());
            let known = Known {
                spec: Arc::clone(&group.spec),
                requests: requests.collect(),
                view: view.clone(),
                is_vague: true,
            };
            self.groups.entry(group.id).or_insert(known);
        }
        let partitions = || facts.iter().flat_map(|facts| &facts.partitions);
        let inside = partitions().flat_map(|partition| &partition.inside);
        let inside: BTreeMap<AllocationId, AllocationId> =
            inside.map(|record| (record.id, record.bundle)).collect();
        let told = &self.told_inside;
        self.inside.retain(|id, _| told.contains(id) || inside.contains_key(id));
        self.inside.extend(inside);
        let of_statement = |id: &AllocationId| {
            grants
                .statement_of(*id)
                .is_some_and(|(statement, group)| statement.planner != COORDINATOR && group.is_none())
        };
        let allocations = partitions().flat_map(|partition| &partition.allocations).map(|record| record.id);
        let claims = partitions().flat_map(|partition| &partition.claims).map(|record| record.id);
        let unowned: Vec<AllocationId> =
            allocations.chain(claims).filter(|id| of_statement(id) && !self.owns(*id)).collect();
        self.claims.extend(unowned);
    }
}
