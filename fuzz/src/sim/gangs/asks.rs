//! The requests of planners' callers: groups with every kind of rule, and statements that callers planned
//! themselves.

use std::sync::Arc;

use wharf_core::group::{GroupSpec, Spreading, Strategy, Submit, TopologyRule};
use wharf_core::ids::{AllocationId, NodeId, TenantId};
use wharf_core::node::{Operator, Selector, Term};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::statement::{Allocate, CommitMode, ConflictDetection, Evict, Operation, Pipeline};
use wharf_core::time::Time;

use crate::sim::choices::Choices;
use crate::sim::facts::Facts;

/// Returns the demand of a bundle or of a placement into one.
pub(super) fn demand(choices: &mut Choices<'_>) -> Demand {
    let gpu = match choices.below(6) {
        0 | 1 => GpuRequest::Whole(1),
        2 => GpuRequest::Fraction(4000),
        _ => GpuRequest::None,
    };
    let cpu = choices.below(3) as u32;
    let memory = choices.below(3) as u32;
    Demand { cpu: Amount::whole(cpu), memory: Amount::whole(memory), gpu, custom: None }
}

pub(super) fn bundle(choices: &mut Choices<'_>) -> Arc<PlacementRequest> {
    let policies = [Policy::BestFit, Policy::LeastFit, Policy::FirstFit, Policy::Random];
    let policy = *choices.pick(&policies);
    let mut request = PlacementRequest::new(demand(choices), policy);
    if choices.one_in(5) {
        let zone = (*choices.pick(&["a", "b"])).to_owned();
        let term = Term { key: "zone".to_owned(), operator: Operator::In, values: vec![zone] };
        request.selector = Some(Arc::new(Selector::new(vec![term])));
    }
    if choices.one_in(12) {
        let mut nodes: Vec<NodeId> = (0..4).map(|_| NodeId(choices.below(10) + 1)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        request.candidates = Some(nodes.into());
    }
    Arc::new(request)
}

fn topology(choices: &mut Choices<'_>, strategy: Strategy) -> TopologyRule {
    let key = Arc::from(*choices.pick(&["zone", "zone", "rack"]));
    let spreading = match choices.below(3) {
        0 if strategy != Strategy::StrictPack => Spreading::Spread { max_skew: choices.below(2) as u32 + 1 },
        number => Spreading::Pack { strict: number < 2 },
    };
    TopologyRule { key, spreading }
}

/// Returns the deadline until which growth of a group may wait, or `None`.
pub(super) fn until(choices: &mut Choices<'_>, now: Time) -> Option<Time> {
    choices.one_in(2).then(|| Time(now.0 + choices.below(8_000)))
}

pub(super) fn spec(choices: &mut Choices<'_>, now: Time) -> GroupSpec {
    let count = choices.below(4) + 1;
    let strategies = Strategy::NAMES.map(|(strategy, _)| strategy);
    let strategy = *choices.pick(&strategies);
    let first = bundle(choices);
    // Often all bundles are equal, as in a typical gang.
    let equal = choices.below(2) == 0;
    let mut bundles = vec![first];
    for _ in 1..count {
        let next = if equal { Arc::clone(&bundles[0]) } else { bundle(choices) };
        bundles.push(next);
    }
    let mut spec = GroupSpec::new(bundles, strategy);
    if choices.one_in(3) {
        spec.topology = Some(topology(choices, strategy));
    }
    if choices.one_in(3) {
        spec.min_members = choices.below(count) as u32 + 1;
    }
    if choices.one_in(3) {
        spec.wait_until = Some(Time(now.0 + choices.below(8_000)));
    }
    spec.priority = choices.below(3) as i32;
    if choices.one_in(3) {
        spec.conflict_detection = ConflictDetection::Coarse;
    }
    spec
}

/// Returns a statement on facts from some time ago. Its operations are correct, stale or invented.
pub(super) fn submit(seen: &[Facts], own: &[AllocationId], choices: &mut Choices<'_>) -> Option<Submit> {
    let coarse = choices.one_in(2);
    let count = choices.below(4);
    let mut operations = Vec::new();
    for _ in 0..count {
        operations.push(operation(seen, own, choices, coarse)?);
    }
    if choices.one_in(12) && !operations.is_empty() {
        // The same operation twice: contradicting operations are refused, those that add up are not.
        operations.push(operations[0].clone());
    }
    let conflict_detection = if coarse { ConflictDetection::Coarse } else { ConflictDetection::Fine };
    let mode = if choices.one_in(2) { CommitMode::Incremental } else { CommitMode::AllOrNothing };
    Some(Submit { operations, conflict_detection, mode })
}

fn operation(
    seen: &[Facts],
    own: &[AllocationId],
    choices: &mut Choices<'_>,
    coarse: bool,
) -> Option<Operation> {
    let nodes: Vec<_> = seen.iter().flat_map(Facts::nodes).collect();
    if nodes.is_empty() {
        return None;
    }
    let node = *choices.pick(&nodes);
    let mut expected = coarse.then_some(node.version);
    if choices.one_in(10) {
        // A version that never existed, or none where one is needed.
        expected = if choices.one_in(2) { None } else { Some(node.version + 1000) };
    }
    let id = if choices.one_in(30) { NodeId(77) } else { node.registration.id };
    Some(match choices.below(4) {
        0 if !own.is_empty() => {
            let allocation = *choices.pick(own);
            let record = seen.iter().flat_map(Facts::allocations).find(|record| record.id == allocation);
            let found =
                record.and_then(|record| nodes.iter().find(|node| node.registration.id == record.node));
            let expected = found.map(|node| node.version).filter(|_| coarse);
            let grace_ns = if choices.one_in(2) { 0 } else { choices.below(8_000) };
            Operation::Evict(Evict { allocation, expected, grace_ns })
        }
        1 => {
            // A claim is only useful where something is releasing.
            let leaving = seen.iter().flat_map(|facts| &facts.partitions).flat_map(|p| &p.releasing);
            let leaving: Vec<_> = leaving.map(|record| record.allocation).collect();
            let on = |id| seen.iter().flat_map(Facts::allocations).find(|known| known.id == id);
            let there = leaving.iter().find_map(|&id| on(id)).map(|allocation| allocation.node);
            let of = there.and_then(|there| nodes.iter().find(|node| node.registration.id == there));
            let expected = of.map(|of| of.version).filter(|_| coarse).or(expected);
            let node = there.unwrap_or(id);
            let demand = demand(choices);
            let bundle = None;
            Operation::Pipeline(Pipeline { node, expected, demand, bundle, tenant: TenantId::OPERATOR })
        }
        _ => {
            let demand = demand(choices);
            let gpus = None;
            let owner = None;
            let bundle = None;
            Operation::Allocate(Allocate {
                node: id,
                expected,
                demand,
                gpus,
                owner,
                bundle,
                tenant: TenantId::OPERATOR,
                lease: None,
            })
        }
    })
}
