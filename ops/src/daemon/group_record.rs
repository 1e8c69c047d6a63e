//! Checkpoint rows of placement groups, in a table keyed by group id.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wharf_core::group::GroupSpec;
use wharf_core::ids::{GroupId, Incarnation, NodeId, OwnerId};
use wharf_core::request::{Explain, PlacementRequest, Policy, Preferences, RankRules};
use wharf_core::resource::GpuAssignment;
use wharf_core::state::{GroupBundleRecord, GroupRecord};
use wharf_core::statement::ConflictDetection;
use wharf_net::convert::{
    conflict_detection, order, order_number, policy, policy_number, selector, selector_terms, strategy,
    strategy_number, toleration, topology, wire_toleration, wire_topology,
};
use wharf_net::protocol::{
    CONFLICT_DETECTION_COARSE, CONFLICT_DETECTION_FINE, FallbackSelector, Fault, POLICY_DEFAULT,
    PreferredSelector, SelectorTerm, Toleration, TopologyBody,
};

use super::record::{self, AmountsRow, Key, damaged, decode, encode, key};

/// Incarnation and number of a group, as stored.
pub(super) type GroupKey = (u32, u64);

#[derive(Serialize, Deserialize)]
struct PreferencesRow {
    fallbacks: Vec<FallbackSelector>,
    preferred: Vec<PreferredSelector>,
    tolerations: Vec<Toleration>,
    has_rules: bool,
    nodes: Vec<u64>,
    avoid_gpu: bool,
    affinity: bool,
}

/// A request as the engine holds it: with the resolved policy, and with resource kinds by id.
#[derive(Serialize, Deserialize)]
struct RequestRow {
    demand: AmountsRow,
    policy: u8,
    attribute_order: u8,
    full_explanation: bool,
    selectors: Option<Vec<SelectorTerm>>,
    candidates: Option<Vec<u64>>,
    preferences: Option<PreferencesRow>,
    /// 0 for none.
    owner: u64,
}

#[derive(Serialize, Deserialize)]
struct BundleRow {
    index: u32,
    /// The index of the request among those of the group.
    request: u32,
    /// Node, allocation, GPU instance mask, and part of each instance.
    place: Option<(u64, Key, u16, u16)>,
    lost: Option<Key>,
}

#[derive(Serialize, Deserialize)]
struct GroupRow {
    /// The distinct requests.
    requests: Vec<RequestRow>,
    /// The requests that the group was created with, by index into `requests`.
    asked: Vec<u32>,
    strategy: u8,
    topology: Option<TopologyBody>,
    min_members: u32,
    priority: i32,
    conflict_detection: u8,
    bundles: Vec<BundleRow>,
    next_index: u32,
}

fn text(fault: Fault) -> String {
    fault.to_string()
}

fn preferences_row(preferences: &Preferences) -> PreferencesRow {
    let rules = preferences.rules.as_deref();
    let fallbacks = rules.map_or(&[][..], RankRules::fallbacks).iter();
    let preferred = rules.map_or(&[][..], RankRules::preferred).iter();
    let tolerations = rules.map_or(&[][..], RankRules::tolerations).iter();
    PreferencesRow {
        fallbacks: fallbacks.map(|selector| FallbackSelector { terms: selector_terms(selector) }).collect(),
        preferred: preferred
            .map(|(weight, selector)| PreferredSelector {
                weight: i32::from(*weight),
                terms: selector_terms(selector),
            })
            .collect(),
        tolerations: tolerations.map(wire_toleration).collect(),
        has_rules: rules.is_some(),
        nodes: preferences.nodes.iter().map(|node| node.0).collect(),
        avoid_gpu: preferences.avoid_gpu,
        affinity: preferences.affinity,
    }
}

fn preferences(row: PreferencesRow) -> Result<Preferences, String> {
    let fallbacks = row.fallbacks.into_iter();
    let fallbacks: Result<Vec<_>, Fault> =
        fallbacks.map(|fallback| selector("fallbacks", fallback.terms).map(Arc::new)).collect();
    let preferred = row.preferred.into_iter().map(|PreferredSelector { weight, terms }| {
        let weight = u8::try_from(weight).map_err(|_| format!("{weight} is no weight"))?;
        Ok((weight, Arc::new(selector("preferred", terms).map_err(text)?)))
    });
    let preferred: Result<Vec<_>, String> = preferred.collect();
    let tolerations = row.tolerations.into_iter().enumerate();
    let tolerations: Result<Vec<_>, Fault> = tolerations.map(|(at, row)| toleration(at, row)).collect();
    let rules = RankRules::new(fallbacks.map_err(text)?, preferred?, tolerations.map_err(text)?);
    let rules = rules.map_err(|error| error.to_string())?;
    Ok(Preferences {
        rules: row.has_rules.then(|| Arc::new(rules)),
        nodes: row.nodes.into_iter().map(NodeId).collect(),
        avoid_gpu: row.avoid_gpu,
        affinity: row.affinity,
    })
}

fn request_row(request: &PlacementRequest) -> RequestRow {
    RequestRow {
        demand: AmountsRow::new(&request.demand),
        policy: policy_number(request.policy),
        attribute_order: order_number(request.order),
        full_explanation: request.explain == Explain::Full,
        selectors: request.selector.as_deref().map(selector_terms),
        candidates: request.candidates.as_ref().map(|ids| ids.iter().map(|id| id.0).collect()),
        preferences: request.preferences.as_deref().map(preferences_row),
        owner: request.owner.map_or(0, OwnerId::number),
    }
}

fn request(row: RequestRow) -> Result<PlacementRequest, String> {
    if row.policy == POLICY_DEFAULT {
        return Err("it has no policy".to_owned());
    }
    let policy = policy(row.policy, Policy::default()).map_err(text)?;
    let selectors = row.selectors.map(|terms| selector("selectors", terms)).transpose();
    Ok(PlacementRequest {
        order: order(row.attribute_order, u8::MAX).map_err(text)?,
        explain: if row.full_explanation { Explain::Full } else { Explain::Bounded },
        selector: selectors.map_err(text)?.map(Arc::new),
        candidates: row.candidates.map(|ids| ids.into_iter().map(NodeId).collect()),
        preferences: row.preferences.map(preferences).transpose()?.map(Arc::new),
        owner: OwnerId::new(row.owner),
        ..PlacementRequest::new(row.demand.demand()?, policy)
    })
}

pub(super) fn group_key(group: &GroupRecord) -> GroupKey {
    (group.id.incarnation.0, group.id.number)
}

/// Returns the index of a request in `known`, adding it if absent.
fn place_of<'a>(known: &mut Vec<&'a Arc<PlacementRequest>>, request: &'a Arc<PlacementRequest>) -> u32 {
    let there = known.iter().rposition(|there| Arc::ptr_eq(there, request) || **there == *request);
    let at = there.unwrap_or_else(|| {
        known.push(request);
        known.len() - 1
    });
    u32::try_from(at).expect("fewer requests than bundles")
}

pub(super) fn encode_group(group: &GroupRecord) -> Vec<u8> {
    let mut known = Vec::new();
    let asked = group.spec.bundles.iter().map(|request| place_of(&mut known, request)).collect();
    let bundle = |bundle: &GroupBundleRecord, request| BundleRow {
        index: bundle.index,
        request,
        place: bundle.place.map(|(node, id, gpus)| (node.0, key(id), gpus.mask, gpus.part)),
        lost: bundle.lost.map(key),
    };
    let bundles = group.bundles.iter().map(|of| bundle(of, place_of(&mut known, &of.request))).collect();
    let conflict_detection = match group.spec.conflict_detection {
        ConflictDetection::Fine => CONFLICT_DETECTION_FINE,
        ConflictDetection::Coarse => CONFLICT_DETECTION_COARSE,
    };
    encode(&GroupRow {
        requests: known.into_iter().map(|request| request_row(request)).collect(),
        asked,
        strategy: strategy_number(group.spec.strategy),
        topology: group.spec.topology.as_ref().map(wire_topology),
        min_members: group.spec.min_members,
        priority: group.spec.priority,
        conflict_detection,
        bundles,
        next_index: group.next_index,
    })
}

pub(super) fn decode_group((incarnation, number): GroupKey, bytes: &[u8]) -> Result<GroupRecord, String> {
    let id = GroupId { incarnation: Incarnation(incarnation), number };
    let what = format!("the row of group {id}");
    group(id, decode(&what, bytes)?).map_err(|why| damaged(what, why))
}

fn group(id: GroupId, row: GroupRow) -> Result<GroupRecord, String> {
    let requests: Result<Vec<_>, String> =
        row.requests.into_iter().map(|row| Ok(Arc::new(request(row)?))).collect();
    let requests = requests?;
    let of_place =
        |at: u32| requests.get(at as usize).cloned().ok_or_else(|| format!("request {at} is missing"));
    let asked: Result<Vec<_>, String> = row.asked.into_iter().map(of_place).collect();
    let spec = GroupSpec {
        topology: row.topology.map(topology).transpose().map_err(text)?,
        min_members: row.min_members,
        priority: row.priority,
        conflict_detection: conflict_detection(row.conflict_detection).map_err(text)?,
        ..GroupSpec::new(asked?, strategy(row.strategy).map_err(text)?)
    };
    spec.check().map_err(|error| error.to_string())?;
    let bundle = |row: BundleRow| {
        let place = row
            .place
            .map(|(node, at, mask, part)| (NodeId(node), record::id(at), GpuAssignment { mask, part }));
        let request = of_place(row.request)?;
        Ok(GroupBundleRecord { index: row.index, request, place, lost: row.lost.map(record::id) })
    };
    let bundles: Result<Vec<_>, String> = row.bundles.into_iter().map(bundle).collect();
    let bundles = bundles?;
    if !bundles.is_sorted_by(|a, b| a.index < b.index)
        || bundles.last().is_some_and(|last| last.index >= row.next_index)
    {
        return Err("its bundles are not in order".to_owned());
    }
    Ok(GroupRecord { id, spec: Arc::new(spec), bundles, next_index: row.next_index })
}
