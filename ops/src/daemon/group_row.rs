//! The row of a placement group in a checkpoint.

use std::sync::Arc;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use wharf_core::group::GroupSpec;
use wharf_core::ids::{NodeId, OwnerId};
use wharf_core::request::{Explain, PlacementRequest, Policy, Preferences, RankRules};
use wharf_core::resource::GpuAssignment;
use wharf_core::state::{GroupBundleRecord, GroupRecord};
use wharf_core::statement::ConflictDetection;
use wharf_net::convert::{
    order, order_number, policy, policy_number, selector, selector_terms, strategy, strategy_number,
    toleration, topology, wire_toleration, wire_topology,
};
use wharf_net::protocol::{
    FallbackSelector, PreferredSelector, SelectorTerm, Toleration, TopologyBody, WireAllocation, WireGroup,
};

use super::row::AmountsRow;

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
    place: Option<(u64, WireAllocation, u16, u16)>,
    lost: Option<WireAllocation>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct GroupRow {
    id: WireGroup,
    /// The distinct requests.
    requests: Vec<RequestRow>,
    /// The requests that the group was created with, by index into `requests`.
    asked: Vec<u32>,
    strategy: u8,
    topology: Option<TopologyBody>,
    min_members: u32,
    priority: i32,
    is_coarse: bool,
    bundles: Vec<BundleRow>,
    next_index: u32,
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

fn preferences(row: PreferencesRow) -> anyhow::Result<Preferences> {
    let fallbacks = row.fallbacks.into_iter();
    let fallbacks = fallbacks.map(|fallback| Ok(Arc::new(selector("fallbacks", fallback.terms)?)));
    let preferred = row.preferred.into_iter().map(|PreferredSelector { weight, terms }| {
        Ok((u8::try_from(weight)?, Arc::new(selector("preferred", terms)?)))
    });
    let tolerations = row.tolerations.into_iter().enumerate();
    let tolerations = tolerations.map(|(at, row)| Ok(toleration(at, row)?));
    let rules = RankRules::new(
        fallbacks.collect::<anyhow::Result<_>>()?,
        preferred.collect::<anyhow::Result<_>>()?,
        tolerations.collect::<anyhow::Result<_>>()?,
    )?;
    Ok(Preferences {
        rules: row.has_rules.then(|| Arc::new(rules)),
        nodes: row.nodes.into_iter().map(NodeId).collect(),
        avoid_gpu: row.avoid_gpu,
        affinity: row.affinity,
    })
}

fn request_row(request: &PlacementRequest) -> RequestRow {
    RequestRow {
        demand: AmountsRow::of_demand(&request.demand),
        policy: policy_number(request.policy),
        attribute_order: order_number(request.order),
        full_explanation: request.explain == Explain::Full,
        selectors: request.selector.as_deref().map(selector_terms),
        candidates: request.candidates.as_ref().map(|ids| ids.iter().map(|id| id.0).collect()),
        preferences: request.preferences.as_deref().map(preferences_row),
        owner: request.owner.map_or(0, OwnerId::number),
    }
}

fn request(row: RequestRow) -> anyhow::Result<PlacementRequest> {
    let selectors = row.selectors.map(|terms| selector("selectors", terms)).transpose()?;
    Ok(PlacementRequest {
        order: order(row.attribute_order, u8::MAX)?,
        explain: if row.full_explanation { Explain::Full } else { Explain::Bounded },
        selector: selectors.map(Arc::new),
        candidates: row.candidates.map(|ids| ids.into_iter().map(NodeId).collect()),
        preferences: row.preferences.map(preferences).transpose()?.map(Arc::new),
        owner: OwnerId::new(row.owner),
        ..PlacementRequest::new(row.demand.demand()?, policy(row.policy, Policy::default())?)
    })
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

impl GroupRow {
    pub(super) fn new(group: &GroupRecord) -> Self {
        let mut known = Vec::new();
        let asked = group.spec.bundles.iter().map(|request| place_of(&mut known, request)).collect();
        let bundles = group.bundles.iter().map(|bundle| BundleRow {
            index: bundle.index,
            request: place_of(&mut known, &bundle.request),
            place: bundle.place.map(|(node, id, gpus)| (node.0, id.into(), gpus.mask, gpus.part)),
            lost: bundle.lost.map(Into::into),
        });
        let bundles = bundles.collect();
        Self {
            id: group.id.into(),
            requests: known.into_iter().map(|request| request_row(request)).collect(),
            asked,
            strategy: strategy_number(group.spec.strategy),
            topology: group.spec.topology.as_ref().map(wire_topology),
            min_members: group.spec.min_members,
            priority: group.spec.priority,
            is_coarse: group.spec.conflict_detection == ConflictDetection::Coarse,
            bundles,
            next_index: group.next_index,
        }
    }

    pub(super) fn record(self) -> anyhow::Result<GroupRecord> {
        let requests = self.requests.into_iter().map(|row| Ok(Arc::new(request(row)?)));
        let requests = requests.collect::<anyhow::Result<Vec<_>>>()?;
        let of_place = |at: u32| requests.get(at as usize).cloned().context("a request is missing");
        let asked = self.asked.into_iter().map(of_place).collect::<anyhow::Result<_>>()?;
        let spec = GroupSpec {
            topology: self.topology.map(topology).transpose()?,
            min_members: self.min_members,
            priority: self.priority,
            conflict_detection: if self.is_coarse {
                ConflictDetection::Coarse
            } else {
                ConflictDetection::Fine
            },
            ..GroupSpec::new(asked, strategy(self.strategy)?)
        };
        let bundle = |row: BundleRow| {
            Ok(GroupBundleRecord {
                index: row.index,
                request: of_place(row.request)?,
                place: row
                    .place
                    .map(|(node, id, mask, part)| (NodeId(node), id.into(), GpuAssignment { mask, part })),
                lost: row.lost.map(Into::into),
            })
        };
        let bundles = self.bundles.into_iter().map(bundle).collect::<anyhow::Result<_>>()?;
        Ok(GroupRecord { id: self.id.into(), spec: Arc::new(spec), bundles, next_index: self.next_index })
    }
}
