//! Remembers the result for a group that found no place, for groups with the same spec.
//!
//! A failed search fails again until something grows, a lost plan gives up what it had taken, or nodes
//! change. So equal groups are decided together: the first one costs a search, the others cost a comparison.
//! Infeasibility depends on the nodes alone and holds until they change.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::Planner;
use super::group::Group;
use super::strategy::NoPlace;
use crate::group::{GroupRefusalReason, GroupSpec};
use crate::ids::GroupId;
use crate::limits::VERDICTS_KEPT_MAX;
use crate::lru::Lru;
use crate::replica::Replica;
use crate::request::PlacementRequest;

/// The state that a result depends on. While it is the same, a failed search fails again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch {
    /// The growth counters of all shards, by the followed views.
    pub(super) growth: u64,
    /// The number of times that a lost plan gave up what it had taken on the replicas.
    released: u64,
    /// The number of changes to nodes.
    nodes: u64,
}

/// The answer to a group: whether it is infeasible, and why it has no place.
pub(super) type Told = (bool, GroupRefusalReason);

/// The result for one group.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    spec: Arc<GroupSpec>,
    epoch: Epoch,
    no_place: NoPlace,
    told: Option<Told>,
}

/// The results for the groups that were decided or asked for last, by the hash of their spec.
pub(super) type Verdicts = Lru<Verdict, VERDICTS_KEPT_MAX>;

impl Verdicts {
    fn of(&mut self, spec: &GroupSpec) -> Option<&mut Verdict> {
        let at = self.find(hash_of(spec), |verdict| asks_the_same(&verdict.spec, spec))?;
        Some(self.at_mut(at))
    }
}

impl Planner {
    pub(super) fn epoch(&self) -> Epoch {
        let growth = self.replicas.copies.iter().filter_map(Replica::base);
        let growth = growth.map(|view| view.head().facts.growth).sum();
        Epoch { growth, released: self.released, nodes: self.replicas.shape() }
    }

    /// Returns the failed search of an equal group and the answer to it, if they still hold for this one.
    pub(super) fn recall(&mut self, id: GroupId) -> Option<(NoPlace, Option<Told>)> {
        let now = self.epoch();
        let group = self.groups.get(&id).filter(|group| is_new(group))?;
        let Verdict { epoch, no_place, told, .. } = self.verdicts.of(&group.spec)?;
        let infeasible = told.as_ref().is_some_and(|(infeasible, _)| *infeasible);
        let holds = *epoch == now || infeasible && epoch.nodes == now.nodes;
        holds.then(|| (no_place.clone(), told.clone()))
    }

    /// Remembers that a search found no place for a group.
    pub(super) fn keep_verdict(&mut self, id: GroupId, no_place: &NoPlace) {
        let Some(group) = self.groups.get(&id).filter(|group| is_new(group)) else { return };
        // Capacity that is counted twice may be free.
        if self.replicas.copies.iter().any(Replica::is_uncertain) {
            return;
        }
        let spec = Arc::clone(&group.spec);
        let no_place = no_place.clone();
        let verdict = Verdict { spec, epoch: self.epoch(), no_place, told: None };
        self.verdicts.insert(hash_of(&verdict.spec), verdict);
    }

    /// Remembers the answer to a group.
    pub(super) fn keep_told(&mut self, id: GroupId, told: &Told) {
        let Some(group) = self.groups.get(&id).filter(|group| is_new(group)) else { return };
        if let Some(verdict) = self.verdicts.of(&group.spec) {
            verdict.told = Some(told.clone());
        }
    }
}

/// Returns whether a group was never placed, and its queue allows all of it, so that it is fully described by its spec.
fn is_new(group: &Group) -> bool {
    group.is_being_created()
        && group.passed_over.is_empty()
        && group.bundles.iter().all(|bundle| bundle.place.is_none() && bundle.lost.is_none())
}

/// Returns whether two groups find a place in the same cases.
fn asks_the_same(a: &GroupSpec, b: &GroupSpec) -> bool {
    a.strategy == b.strategy
        && a.min_members == b.min_members
        && a.topology == b.topology
        && same_requests(&a.bundles, &b.bundles)
}

fn same_requests(a: &[Arc<PlacementRequest>], b: &[Arc<PlacementRequest>]) -> bool {
    let mut last: Option<(&Arc<PlacementRequest>, &Arc<PlacementRequest>)> = None;
    let same = |(a, b)| {
        // Equal requests of one group are shared.
        let known = last.is_some_and(|(x, y)| Arc::ptr_eq(x, a) && Arc::ptr_eq(y, b));
        last = Some((a, b));
        known || a == b
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}

/// Returns the same hash for equal groups. Peers choose the specs, so collisions must be expected.
fn hash_of(spec: &GroupSpec) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    (spec.strategy, spec.min_members, spec.bundles.len()).hash(&mut hasher);
    spec.topology.hash(&mut hasher);
    let mut last: Option<&Arc<PlacementRequest>> = None;
    for request in &spec.bundles {
        if !last.is_some_and(|last| Arc::ptr_eq(last, request) || last == request) {
            request.demand.hash(&mut hasher);
            request.selector.as_ref().map(|selector| selector.hash()).hash(&mut hasher);
            request.candidates.as_ref().map(|ids| ids.len()).hash(&mut hasher);
        }
        last = Some(request);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::super::test_bed::cores;
    use super::*;
    use crate::group::{Spreading, Strategy, TopologyRule};
    use crate::ids::NodeId;
    use crate::node::{Operator, Selector, Term};
    use crate::time::Time;

    const EPOCH: Epoch = Epoch { growth: 0, released: 0, nodes: 0 };

    fn group(requests: impl IntoIterator<Item = PlacementRequest>) -> GroupSpec {
        GroupSpec::new(requests.into_iter().map(Arc::new).collect(), Strategy::Pack)
    }

    fn keep(verdicts: &mut Verdicts, spec: &GroupSpec, bundle: u32) {
        let spec = Arc::new(spec.clone());
        let verdict = Verdict { spec, epoch: EPOCH, no_place: NoPlace::of(bundle), told: None };
        verdicts.insert(hash_of(&verdict.spec), verdict);
    }

    /// The bundle that a kept result names, which tells the results apart.
    fn found(verdicts: &mut Verdicts, spec: &GroupSpec) -> Option<u32> {
        verdicts.of(spec).map(|verdict| verdict.no_place.bundle)
    }

    #[test]
    fn the_results_that_came_last_are_kept_each_once() {
        let mut verdicts = Verdicts::default();
        let specs: Vec<GroupSpec> = (0..=VERDICTS_KEPT_MAX as u32).map(|cpu| group([cores(cpu)])).collect();
        let (last, first) = specs.split_last().expect("many");
        (0..).zip(first).for_each(|(at, spec)| keep(&mut verdicts, spec, at));
        assert!(
            (0..).zip(first).all(|(at, spec)| found(&mut verdicts, spec) == Some(at)),
            "there is room for all"
        );
        // A later result for an equal group takes the place of the earlier one.
        (0..3).for_each(|_| keep(&mut verdicts, &specs[1], 7777));
        assert_eq!(found(&mut verdicts, &specs[1]), Some(7777));
        keep(&mut verdicts, last, 8888);
        assert_eq!(found(&mut verdicts, &specs[0]), None, "it was used first");
        assert!((2..).zip(&first[2..]).all(|(at, spec)| found(&mut verdicts, spec) == Some(at)));
        assert_eq!((found(&mut verdicts, &specs[1]), found(&mut verdicts, last)), (Some(7777), Some(8888)));
        assert_eq!(verdicts.iter().count(), VERDICTS_KEPT_MAX);
    }

    #[test]
    fn a_result_serves_the_groups_that_ask_the_same_and_no_others() {
        let base = group([cores(2), cores(1), cores(1)]);
        let rule = |key: &str, max_skew| {
            let spreading = Spreading::Spread { max_skew };
            Some(TopologyRule { key: key.into(), spreading })
        };
        let term = Term { key: "zone".to_owned(), operator: Operator::Exists, values: Vec::new() };
        let selector = Some(Arc::new(Selector::new(vec![term])));
        let named = |ids: &[u64]| PlacementRequest {
            candidates: Some(ids.iter().copied().map(NodeId).collect()),
            ..cores(1)
        };
        let others = [
            GroupSpec { strategy: Strategy::Spread, ..base.clone() },
            GroupSpec { min_members: 2, ..base.clone() },
            GroupSpec { topology: rule("zone", 1), ..base.clone() },
            GroupSpec { topology: rule("zone", 2), ..base.clone() },
            GroupSpec { topology: rule("rack", 1), ..base.clone() },
            GroupSpec { min_members: 3, ..group([cores(2), cores(1), cores(1), cores(1)]) },
            group([cores(1), cores(1), cores(2)]),
            group([cores(2), cores(1), PlacementRequest { selector, ..cores(1) }]),
            group([cores(2), cores(1), named(&[1, 2])]),
            group([cores(2), cores(1), named(&[1])]),
        ];
        let mut verdicts = Verdicts::default();
        keep(&mut verdicts, &base, 100);
        for (at, other) in (0..).zip(&others) {
            assert_eq!(found(&mut verdicts, other), None, "{other:?}");
            keep(&mut verdicts, other, at);
        }
        // Each has a place of its own, so that equal groups of several kinds are recalled in turn.
        assert!((0..).zip(&others).all(|(at, other)| found(&mut verdicts, other) == Some(at)));
        let until = Some(Time(5));
        let alike =
            [GroupSpec { priority: 3, ..base.clone() }, GroupSpec { wait_until: until, ..base.clone() }];
        for spec in alike {
            assert_eq!(found(&mut verdicts, &spec), Some(100), "{spec:?}");
        }
        // A collision is no equality.
        let collide = [group([cores(2), cores(2), cores(1)]), group([cores(2), cores(1), named(&[2])])];
        assert_eq!(hash_of(&collide[0]), hash_of(&base));
        assert!(collide.iter().all(|spec| found(&mut verdicts, spec).is_none()));
    }
}
