//! Rows of a checkpoint about placement groups, by id, in a table of their own: a store that was
//! written before them has none.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wharf_core::group::{GroupSpec, Spreading, Strategy, TopologyRule};
use wharf_core::ids::{AllocationId, GroupId, Incarnation, NodeId, OwnerId, PartitionId, ResourceId};
use wharf_core::node::{Operator, Selector, Term, Toleration, TolerationOperator};
use wharf_core::request::{Explain, OrderChoice, PlacementRequest, Policy, Preferences, RankRules};
use wharf_core::resource::{Amount, Demand, GpuAssignment, GpuRequest};
use wharf_core::state::{GroupBundleRecord, GroupRecord};
use wharf_core::statement::Granularity;
use wharf_net::codec::{decode_body, encode_body};
use wharf_net::convert::{effect_number, effect_of, policy_number};

/// Incarnation and number, as stored.
pub(super) type GroupKey = (u32, u64);

#[derive(Serialize, Deserialize)]
struct TermRow {
    key: String,
    /// By its place in `OPERATORS`.
    operator: u8,
    values: Vec<String>,
}

type SelectorRow = Vec<TermRow>;

#[derive(Serialize, Deserialize)]
struct PreferencesRow {
    fallbacks: Vec<SelectorRow>,
    preferred: Vec<(u8, SelectorRow)>,
    /// Key, whether its value must be the taint's, value, and the effect by its number on the wire; 0: every.
    tolerations: Vec<(String, bool, String, u8)>,
    has_rules: bool,
    nodes: Vec<u64>,
    avoid_gpu: bool,
    affinity: bool,
}

#[derive(Serialize, Deserialize)]
struct RequestRow {
    cpu: i64,
    memory: i64,
    gpu: i64,
    custom: Vec<(u16, i64)>,
    /// By its number on the wire.
    policy: u8,
    /// 0: the first; 255: by the dominant resource; else the configured one of that number, from 1 on.
    order: u16,
    full_explanation: bool,
    selector: Option<SelectorRow>,
    candidates: Option<Vec<u64>>,
    preferences: Option<PreferencesRow>,
    /// 0: none.
    owner: u64,
}

type AllocationRow = (u32, u16, u64);

#[derive(Serialize, Deserialize)]
struct BundleRow {
    index: u32,
    /// The request's place among those of the group.
    request: u32,
    /// Node, allocation, mask and part of its GPU instances.
    place: Option<(u64, AllocationRow, u16, u16)>,
    lost: Option<AllocationRow>,
}

#[derive(Serialize, Deserialize)]
struct GroupRow {
    /// Requests, each once.
    requests: Vec<RequestRow>,
    /// What was asked when the group was made, by place among the requests.
    asked: Vec<u32>,
    /// By its name.
    strategy: String,
    /// Key, and: 1 pack, 2 pack strictly, 3 spread; the skew of the last.
    topology: Option<(String, u8, u32)>,
    min_members: u32,
    priority: i32,
    coarse: bool,
    bundles: Vec<BundleRow>,
    next_index: u32,
}

const OPERATORS: [Operator; 6] =
    [Operator::In, Operator::NotIn, Operator::Exists, Operator::NotExists, Operator::Greater, Operator::Less];

const ORDER_DOMINANT: u16 = 0xFFFF;

fn selector_row(selector: &Selector) -> SelectorRow {
    let term = |term: &Term| TermRow {
        key: term.key.clone(),
        operator: OPERATORS
            .iter()
            .position(|&known| known == term.operator)
            .expect("every operator stands there") as u8,
        values: term.values.clone(),
    };
    selector.terms().iter().map(term).collect()
}

fn selector(row: SelectorRow) -> Result<Arc<Selector>, String> {
    let term = |row: TermRow| {
        let operator = OPERATORS.get(usize::from(row.operator));
        let operator = *operator.ok_or_else(|| format!("{} is no operator", row.operator))?;
        Ok(Term { key: row.key, operator, values: row.values })
    };
    let terms: Result<Vec<_>, String> = row.into_iter().map(term).collect();
    Ok(Arc::new(Selector::new(terms?)))
}

fn preferences_row(preferences: &Preferences) -> PreferencesRow {
    let rules = preferences.rules.as_deref();
    let toleration = |toleration: &Toleration| {
        let equal = toleration.operator == TolerationOperator::Equal;
        let effect = toleration.effect.map_or(0, effect_number);
        (toleration.key.clone(), equal, toleration.value.clone(), effect)
    };
    PreferencesRow {
        fallbacks: rules.map_or_else(Vec::new, |r| r.fallbacks().iter().map(|s| selector_row(s)).collect()),
        preferred: rules
            .map_or_else(Vec::new, |r| r.preferred().iter().map(|(w, s)| (*w, selector_row(s))).collect()),
        tolerations: rules.map_or_else(Vec::new, |r| r.tolerations().iter().map(toleration).collect()),
        has_rules: rules.is_some(),
        nodes: preferences.nodes.iter().map(|node| node.0).collect(),
        avoid_gpu: preferences.avoid_gpu,
        affinity: preferences.affinity,
    }
}

fn preferences(row: PreferencesRow) -> Result<Preferences, String> {
    let toleration = |(key, equal, value, effect): (String, bool, String, u8)| {
        let effect = match effect {
            0 => None,
            number => Some(effect_of(number).ok_or_else(|| format!("{number} is no effect of a taint"))?),
        };
        let operator = if equal { TolerationOperator::Equal } else { TolerationOperator::Exists };
        Ok(Toleration { key, operator, value, effect })
    };
    let fallbacks: Result<Vec<_>, String> = row.fallbacks.into_iter().map(selector).collect();
    let preferred: Result<Vec<_>, String> =
        row.preferred.into_iter().map(|(weight, terms)| Ok((weight, selector(terms)?))).collect();
    let tolerations: Result<Vec<_>, String> = row.tolerations.into_iter().map(toleration).collect();
    let rules = RankRules::new(fallbacks?, preferred?, tolerations?).map_err(|error| error.to_string())?;
    Ok(Preferences {
        rules: row.has_rules.then(|| Arc::new(rules)),
        nodes: row.nodes.into_iter().map(NodeId).collect(),
        avoid_gpu: row.avoid_gpu,
        affinity: row.affinity,
    })
}

fn request_row(request: &PlacementRequest) -> RequestRow {
    let demand = &request.demand;
    RequestRow {
        cpu: demand.cpu.units(),
        memory: demand.memory.units(),
        gpu: demand.gpu.units(),
        custom: demand.custom().iter().map(|&(id, amount)| (id.0, amount.units())).collect(),
        policy: policy_number(request.policy),
        order: match request.order {
            OrderChoice::Default => 0,
            OrderChoice::Configured(number) => u16::from(number) + 1,
            OrderChoice::Dominant => ORDER_DOMINANT,
        },
        full_explanation: request.explain == Explain::Full,
        selector: request.selector.as_deref().map(selector_row),
        candidates: request.candidates.as_ref().map(|ids| ids.iter().map(|id| id.0).collect()),
        preferences: request.preferences.as_deref().map(preferences_row),
        owner: request.owner.map_or(0, OwnerId::number),
    }
}

fn amount(units: i64) -> Result<Amount, String> {
    Amount::try_from_units(units).map_err(|error| error.to_string())
}

fn request(row: RequestRow) -> Result<PlacementRequest, String> {
    let custom: Result<Vec<_>, String> =
        row.custom.into_iter().map(|(id, units)| Ok((ResourceId(id), amount(units)?))).collect();
    let custom = Demand::canonical_custom(custom?).map_err(|id| format!("resource {} stands twice", id.0))?;
    let gpu = GpuRequest::from_amount(amount(row.gpu)?)?;
    let demand = Demand { cpu: amount(row.cpu)?, memory: amount(row.memory)?, gpu, custom };
    let policy = Policy::ALL.into_iter().find(|&known| policy_number(known) == row.policy);
    let policy = policy.ok_or_else(|| format!("{} is no policy", row.policy))?;
    Ok(PlacementRequest {
        order: match row.order {
            0 => OrderChoice::Default,
            ORDER_DOMINANT => OrderChoice::Dominant,
            number => OrderChoice::Configured(
                u8::try_from(number - 1).map_err(|_| format!("{number} is no attribute order"))?,
            ),
        },
        explain: if row.full_explanation { Explain::Full } else { Explain::Bounded },
        selector: row.selector.map(selector).transpose()?,
        candidates: row.candidates.map(|ids| ids.into_iter().map(NodeId).collect()),
        preferences: row.preferences.map(preferences).transpose()?.map(Arc::new),
        owner: OwnerId::new(row.owner),
        ..PlacementRequest::new(demand, policy)
    })
}

fn allocation_row(id: AllocationId) -> AllocationRow {
    (id.incarnation.0, id.partition.0, id.sequence)
}

fn allocation((incarnation, partition, sequence): AllocationRow) -> AllocationId {
    AllocationId { incarnation: Incarnation(incarnation), partition: PartitionId(partition), sequence }
}

pub(super) fn group_key(group: &GroupRecord) -> GroupKey {
    (group.id.incarnation.0, group.id.number)
}

/// The place of a request among those that are known, which it joins.
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
        place: bundle.place.map(|(node, id, gpus)| (node.0, allocation_row(id), gpus.mask, gpus.part)),
        lost: bundle.lost.map(allocation_row),
    };
    let bundles = group.bundles.iter().map(|of| bundle(of, place_of(&mut known, &of.request))).collect();
    let topology = group.spec.topology.as_ref().map(|TopologyRule { key, spreading }| {
        let (rule, skew) = match *spreading {
            Spreading::Pack { strict } => (1 + u8::from(strict), 0),
            Spreading::Spread { max_skew } => (3, max_skew),
        };
        (key.to_string(), rule, skew)
    });
    let row = GroupRow {
        requests: known.into_iter().map(|request| request_row(request)).collect(),
        asked,
        strategy: group.spec.strategy.name().to_owned(),
        topology,
        min_members: group.spec.min_members,
        priority: group.spec.priority,
        coarse: group.spec.granularity == Granularity::Coarse,
        bundles,
        next_index: group.next_index,
    };
    let mut bytes = Vec::new();
    encode_body(&row, &mut bytes);
    bytes
}

pub(super) fn decode_group((incarnation, number): GroupKey, bytes: &[u8]) -> Result<GroupRecord, String> {
    let id = GroupId { incarnation: Incarnation(incarnation), number };
    decode(id, bytes).map_err(|what| format!("the row of group {id} is damaged: {what}"))
}

fn decode(id: GroupId, bytes: &[u8]) -> Result<GroupRecord, String> {
    let (row, _) = decode_body::<GroupRow>(bytes).map_err(|error| error.to_string())?;
    let requests: Result<Vec<_>, String> =
        row.requests.into_iter().map(|row| Ok(Arc::new(request(row)?))).collect();
    let requests = requests?;
    let of_place =
        |at: u32| requests.get(at as usize).cloned().ok_or_else(|| format!("request {at} is missing"));
    let asked: Result<Vec<_>, String> = row.asked.into_iter().map(of_place).collect();
    let named = Strategy::NAMES.into_iter().find(|(_, name)| *name == row.strategy);
    let (strategy, _) = named.ok_or_else(|| format!("{} is no strategy", row.strategy))?;
    let topology = row.topology.map(|(key, rule, max_skew)| {
        let spreading = match rule {
            1 | 2 => Spreading::Pack { strict: rule == 2 },
            3 => Spreading::Spread { max_skew },
            _ => return Err(format!("{rule} is no rule over a label")),
        };
        Ok(TopologyRule { key: key.into(), spreading })
    });
    let granularity = if row.coarse { Granularity::Coarse } else { Granularity::Fine };
    let spec = GroupSpec {
        topology: topology.transpose()?,
        min_members: row.min_members,
        priority: row.priority,
        granularity,
        ..GroupSpec::new(asked?, strategy)
    };
    spec.check().map_err(|error| error.to_string())?;
    let bundle = |row: BundleRow| {
        let place = row
            .place
            .map(|(node, id, mask, part)| (NodeId(node), allocation(id), GpuAssignment { mask, part }));
        let request = of_place(row.request)?;
        Ok(GroupBundleRecord { index: row.index, request, place, lost: row.lost.map(allocation) })
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
