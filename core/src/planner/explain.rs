//! Explains why a group was not placed, and whether it ever could be.
//!
//! *Infeasible* is reported only if it is proved: upper bounds (`bounds.rs`) show that too few bundles could
//! be placed even if only the group's own placed bundles ran. Otherwise the group may still be impossible. It
//! is then reported as unplaceable now.

use super::Planner;
use super::bounds::{Bound, Field, Limit, OccupantsBy, Value};
use super::capacity::Occupant;
use super::draft::Place;
use super::life::State;
use super::strategy::{NoPlace, Wanted};
use super::topology::Values;
use crate::group::{GroupRefusal, GroupRefusalReason, Spreading, Strategy, TopologyRule};
use crate::ids::GroupId;
use crate::limits::EXPLAIN_NODES_MAX;
use crate::request::{PlacementRequest, Refusal};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The reason why a group can never be placed.
enum Infeasible {
    /// No node could hold this bundle.
    Bundle(u32, Arc<PlacementRequest>),
    /// Any other reason.
    Reason(GroupRefusalReason),
}

/// A rule over a label, with the facts about its values that do not depend on what runs.
struct Rule {
    key: Arc<str>,
    spreading: Spreading,
    /// The values that limit others.
    counted: Arc<Values>,
    /// The number of bundles of the group on each value.
    standing: BTreeMap<Arc<str>, u32>,
    /// The value of the first placed bundle, which confines the others.
    pinned: Option<Arc<str>>,
}

/// A proof that continues in a later round.
pub(super) struct Proof {
    /// The input of the proof: the nodes, the bundles to place, and the nodes of the group's placed bundles.
    nodes: u64,
    items: Vec<u32>,
    least: usize,
    standing: Vec<Place>,
    field: Field,
}

impl std::fmt::Debug for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a proof over {} bundles", self.items.len())
    }
}

impl Proof {
    fn new(wanted: &Wanted, nodes: u64) -> Self {
        let items = wanted.items.iter().map(|item| item.bundle).collect();
        let standing = wanted.standing.clone();
        let field = Field::new(wanted);
        Self { nodes, items, least: wanted.least, standing, field }
    }

    fn is_about(&self, wanted: &Wanted, nodes: u64) -> bool {
        let items = wanted.items.iter().map(|item| item.bundle);
        self.nodes == nodes
            && self.least == wanted.least
            && self.standing == wanted.standing
            && self.items.iter().copied().eq(items)
    }
}

/// The progress of a proof in one turn.
enum Proved {
    /// The group is infeasible.
    Infeasible(GroupRefusalReason),
    /// No bound excludes the group.
    Open,
    /// Not all nodes were looked at.
    Unfinished(Box<Proof>),
}

impl Planner {
    /// Returns the refusal for a group that found no place.
    ///
    /// # Errors
    /// The unfinished proof, if it takes another turn.
    pub(super) fn refusal(&mut self, id: GroupId, no_place: &NoPlace) -> Result<GroupRefusal, Box<Proof>> {
        let attempts = self.groups[&id].attempts;
        if let Some((_, Some((infeasible, reason)))) = self.recall(id) {
            return Ok(GroupRefusal { infeasible, reason, attempts });
        }
        let told = match self.proof(id, no_place) {
            Proved::Infeasible(reason) => (true, reason),
            Proved::Open => (false, self.reason(id, no_place)),
            Proved::Unfinished(proof) => return Err(proof),
        };
        self.keep_told(id, &told);
        let (infeasible, reason) = told;
        // What the queue does not allow now may be what has a place.
        let infeasible = infeasible && self.groups[&id].passed_over.is_empty();
        Ok(GroupRefusal { infeasible, reason, attempts })
    }

    /// Returns the reason why a group that may be feasible has no place.
    fn reason(&mut self, id: GroupId, no_place: &NoPlace) -> GroupRefusalReason {
        let wanted = self.wanted(id);
        if no_place.given_up {
            let bundle = no_place.bundle;
            let placed = number(no_place.placed);
            let bundles = number(wanted.least);
            return GroupRefusalReason::SearchGivenUp { bundle, placed, bundles, units: self.budget.search };
        }
        let failing = self.groups[&id].item(no_place.bundle).request;
        let refusal = self.refusal_of(&failing);
        self.shortage(&wanted, no_place, &failing, refusal)
    }

    /// Returns the reason why a group has no place now.
    fn shortage(
        &mut self,
        wanted: &Wanted,
        no_place: &NoPlace,
        failing: &PlacementRequest,
        refusal: Refusal,
    ) -> GroupRefusalReason {
        let bundle = no_place.bundle;
        let placed = number(no_place.placed);
        let bundles = number(wanted.least);
        match (&wanted.topology, &no_place.at) {
            (Some(TopologyRule { key, spreading }), at)
                if *spreading != (Spreading::Pack { strict: false }) =>
            {
                let key = Arc::clone(key);
                let Some((value, count)) = at.clone() else { return GroupRefusalReason::NoValue { key } };
                return match *spreading {
                    Spreading::Pack { .. } => {
                        GroupRefusalReason::Topology { key, value, placed, bundle, bundles }
                    }
                    Spreading::Spread { max_skew } => {
                        GroupRefusalReason::Skew { key, value, count, max_skew, bundle, placed, bundles }
                    }
                };
            }
            _ if wanted.strategy == Strategy::StrictPack => {
                let bundles = number(wanted.least + wanted.standing.len());
                return GroupRefusalReason::OneNode { bundles };
            }
            _ => {}
        }
        let others = no_place.placed + wanted.standing.len();
        match number(self.replicas.count_with_room(failing, others, self.budget.search)) {
            0 => bundle_reason(bundle, placed, refusal),
            nodes => {
                let strategy = wanted.strategy.name();
                GroupRefusalReason::OwnBundles { bundle, placed, bundles, nodes, strategy }
            }
        }
    }

    /// Tries to prove that the group can never be placed. Continues where an earlier turn ended.
    fn proof(&mut self, id: GroupId, no_place: &NoPlace) -> Proved {
        let wanted = self.wanted(id);
        self.work.proofs += 1;
        let Some(rule) = self.rule(&wanted) else { return Proved::Open };
        let nodes = self.replicas.shape();
        let proof = match self.groups.get_mut(&id).map(|group| &mut group.state) {
            Some(State::Planning { proof, .. }) => proof.take(),
            _ => None,
        };
        let proof = proof.filter(|proof| proof.is_about(&wanted, nodes));
        let mut proof = proof.unwrap_or_else(|| Box::new(Proof::new(&wanted, nodes)));
        self.replicas.meter.allow(self.budget.proof);
        let never = self.never(id, &wanted, rule.as_ref(), &mut proof.field);
        self.replicas.meter.allow(u64::MAX);
        match never {
            None => Proved::Unfinished(proof),
            Some(None) => Proved::Open,
            Some(Some(Infeasible::Reason(reason))) => Proved::Infeasible(reason),
            Some(Some(Infeasible::Bundle(bundle, request))) => {
                let refusal = self.refusal_of(&request);
                Proved::Infeasible(bundle_reason(bundle, number(no_place.placed), refusal))
            }
        }
    }

    /// Returns the rule over a label that must hold, if there is one. `None`: the values are too many to look
    /// at.
    fn rule(&mut self, wanted: &Wanted) -> Option<Option<Rule>> {
        let Some(TopologyRule { key, spreading }) = wanted.topology.clone() else { return Some(None) };
        let counted = match spreading {
            Spreading::Pack { strict: false } => return Some(None),
            Spreading::Pack { strict: true } => Arc::default(),
            Spreading::Spread { .. } => {
                self.replicas.meter.allow(self.budget.search);
                let values = self.replicas.values_of(wanted, &key);
                self.replicas.meter.allow(u64::MAX);
                values?
            }
        };
        let mut standing = BTreeMap::new();
        let value_of = |&(shard, slot): &Place| -> Option<Arc<str>> {
            self.replicas.copies[shard].shard().label_of(slot, &key).map(Arc::from)
        };
        for value in wanted.standing.iter().filter_map(value_of) {
            *standing.entry(value).or_default() += 1;
        }
        let pinned = wanted.standing.first().and_then(value_of);
        Some(Some(Rule { key, spreading, counted, standing, pinned }))
    }

    /// Looks at nodes until nothing can be proved or all were looked at. Returns what is proved then. `None`:
    /// the allowed work was spent before that.
    fn never(
        &mut self,
        id: GroupId,
        wanted: &Wanted,
        rule: Option<&Rule>,
        field: &mut Field,
    ) -> Option<Option<Infeasible>> {
        let mut occupants = OccupantsBy::new();
        for bundle in &self.groups[&id].bundles {
            if let Some(place) = bundle.place
                && let Some(at) = self.replicas.locate(place.node)
            {
                let held = Occupant { demand: &bundle.request.demand, gpus: place.gpus };
                occupants.entry(at).or_default().push(held);
            }
        }
        let key = rule.map(|rule| &*rule.key);
        loop {
            let more = self.replicas.extend(field, wanted, key, &occupants);
            if field.is_due() || !more {
                self.replicas.meter.charge(field.begin_judging());
                let never = judge(field, wanted, rule);
                self.replicas.meter.charge(field.flow_units());
                if never.is_none() || !more {
                    return Some(never);
                }
            }
            if self.replicas.meter.is_spent() {
                return None;
            }
        }
    }

    /// Merges the refusals of all replicas for `request`.
    fn refusal_of(&mut self, request: &PlacementRequest) -> Refusal {
        let mut merged = Refusal::default();
        for copy in &mut self.replicas.copies {
            let refusal = copy.refusal(request);
            // Beyond a page, nodes are counted without a look at each.
            self.replicas.meter.charge(1 + refusal.examined.min(u64::from(EXPLAIN_NODES_MAX)));
            merged.merge(&refusal);
        }
        merged
    }
}

/// Returns the reason that excludes the group on the nodes of the field, if there is one.
fn judge(field: &Field, wanted: &Wanted, rule: Option<&Rule>) -> Option<Infeasible> {
    let bundles = number(wanted.least);
    if let (possible, Some(class)) = field.possible()
        && possible < bundles
    {
        return Some(Infeasible::Bundle(class.bundle, Arc::clone(&class.request)));
    }
    let bound = field.bound(&field.everywhere());
    if bound.most < bundles {
        return Some(Infeasible::Reason(reason_of(bound, bundles, wanted.standing.len())));
    }
    let rule = rule?;
    let key = Arc::clone(&rule.key);
    let by_value = field.by_value();
    match rule.spreading {
        Spreading::Pack { .. } => {
            let mut best: Option<(u32, Arc<str>)> = None;
            for (value, patches) in by_value {
                if rule.pinned.as_ref().is_some_and(|pinned| *pinned != value) {
                    continue;
                }
                let most = field.bound(&patches).most;
                if best.as_ref().is_none_or(|(known, _)| most > *known) {
                    best = Some((most, value));
                }
            }
            let Some((most, value)) = best else {
                return Some(Infeasible::Reason(GroupRefusalReason::NoValue { key }));
            };
            let reason = GroupRefusalReason::ValueTooSmall { key, value, most, bundles };
            (most < bundles).then_some(Infeasible::Reason(reason))
        }
        Spreading::Spread { max_skew } => {
            let mut values: BTreeMap<Arc<str>, Value<'_>> = BTreeMap::new();
            let empty = |name: &Arc<str>| Value {
                name: Arc::clone(name),
                patches: Vec::new(),
                counts: rule.counted.names.binary_search(name).is_ok(),
                standing: rule.standing.get(name).copied().unwrap_or(0),
                most: 0,
            };
            for name in rule.counted.names.iter().chain(by_value.keys()) {
                values.entry(Arc::clone(name)).or_insert_with(|| empty(name));
            }
            for (name, patches) in by_value {
                let value = values.get_mut(&name).expect("all names were entered");
                value.most = field.bound(&patches).most;
                value.patches = patches;
            }
            let values: Vec<Value<'_>> = values.into_values().filter(|v| v.counts || v.most > 0).collect();
            let most = field.spread_bound(&values, max_skew);
            let fewest = values.iter().filter(|value| value.counts);
            let Some(fewest) = fewest.min_by_key(|value| value.standing + value.most) else {
                let reason = GroupRefusalReason::NoValue { key };
                return values.is_empty().then_some(Infeasible::Reason(reason));
            };
            let value = Arc::clone(&fewest.name);
            let room = fewest.standing + fewest.most;
            let reason = GroupRefusalReason::SkewTooSmall { key, value, room, max_skew, most, bundles };
            (most < bundles).then_some(Infeasible::Reason(reason))
        }
    }
}

fn reason_of(bound: Bound, bundles: u32, standing: usize) -> GroupRefusalReason {
    match bound.why {
        Limit::Cluster(kind) => GroupRefusalReason::Cluster(kind),
        Limit::Confined { bundles, nodes, kind } => GroupRefusalReason::Confined { bundles, nodes, kind },
        Limit::OneNode => GroupRefusalReason::OneNode { bundles: bundles + number(standing) },
        Limit::Nodes { bundles, nodes } => GroupRefusalReason::TooFewNodes { bundles, nodes },
        Limit::Cut => GroupRefusalReason::TooFewPlaces { bundles, most: bound.most },
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).expect("GROUP_BUNDLES_MAX fits u32")
}

fn bundle_reason(bundle: u32, placed: u32, refusal: Refusal) -> GroupRefusalReason {
    GroupRefusalReason::Bundle { bundle, placed, refusal: Box::new(refusal) }
}
