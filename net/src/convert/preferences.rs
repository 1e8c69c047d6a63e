//! Conversion of selectors, preferences, taints and tolerations between the wire and the engine.

use std::sync::{Arc, LazyLock};

use wharf_core::ids::NodeId;
use wharf_core::limits::{PREFERENCE_WEIGHT_MAX, PREFERRED_SELECTORS_MAX, TAINTS_MAX};
use wharf_core::node::{
    Operator, Selector, Taint, TaintEffect, Taints, Term, Toleration, TolerationOperator,
};
use wharf_core::registrar::Catalog;
use wharf_core::request::{Preferences, RankRules};
use wharf_core::resource::GpuRequest;

use super::{check_name, chosen, invalid, number_of};
use crate::protocol::{
    self, AVOID_GPU_DEFAULT, AVOID_GPU_NO, AVOID_GPU_YES, EFFECT_ANY, EFFECT_NO_EXECUTE, EFFECT_NO_SCHEDULE,
    EFFECT_PREFER_NO_SCHEDULE, FallbackSelector, Fault, OPERATOR_EQUAL, OPERATOR_EXISTS, OPERATOR_GREATER,
    OPERATOR_IN, OPERATOR_LESS, OPERATOR_NOT_EQUAL, OPERATOR_NOT_EXISTS, OPERATOR_NOT_IN, PlaceRequest,
    PreferredSelector, Reason, SelectorTerm,
};

/// The number of values that an operator takes.
#[derive(Clone, Copy)]
enum Values {
    None,
    One,
    Some,
}

/// The operators of terms. The first number of an operator is the one that is written.
const OPERATORS: [(u8, Operator, Values); 8] = [
    (OPERATOR_IN, Operator::In, Values::Some),
    (OPERATOR_NOT_IN, Operator::NotIn, Values::Some),
    (OPERATOR_EXISTS, Operator::Exists, Values::None),
    (OPERATOR_NOT_EXISTS, Operator::NotExists, Values::None),
    (OPERATOR_GREATER, Operator::Greater, Values::One),
    (OPERATOR_LESS, Operator::Less, Values::One),
    (OPERATOR_EQUAL, Operator::In, Values::One),
    (OPERATOR_NOT_EQUAL, Operator::NotIn, Values::One),
];

const TOLERATION_OPERATORS: [(u8, TolerationOperator); 2] =
    [(OPERATOR_EXISTS, TolerationOperator::Exists), (OPERATOR_EQUAL, TolerationOperator::Equal)];

const EFFECTS: [(u8, TaintEffect); 3] = [
    (EFFECT_NO_SCHEDULE, TaintEffect::NoSchedule),
    (EFFECT_PREFER_NO_SCHEDULE, TaintEffect::PreferNoSchedule),
    (EFFECT_NO_EXECUTE, TaintEffect::NoExecute),
];

/// Converts a selector term. A fault names `list[at]`.
fn term(list: &str, at: usize, wire: SelectorTerm) -> Result<Term, Fault> {
    let field = |part: &str| format!("{list}[{at}].{part}");
    check_name(&field("key"), &wire.key)?;
    let Some(&(_, operator, wanted)) = OPERATORS.iter().find(|known| known.0 == wire.operator) else {
        let message = format!("{} is no operator: give 1 to {OPERATOR_NOT_EQUAL}", wire.operator);
        return Err(invalid(field("operator"), message));
    };
    let (right, remedy) = match wanted {
        Values::None => (wire.values.is_empty(), "this operator takes none"),
        Values::One => (wire.values.len() == 1, "this operator takes one"),
        Values::Some => (!wire.values.is_empty(), "give at least one"),
    };
    if !right {
        return Err(invalid(field("values"), format!("{} values: {remedy}", wire.values.len())));
    }
    let values: Vec<String> = wire.values.into_iter().map(|value| value.0).collect();
    if matches!(operator, Operator::Greater | Operator::Less) && values[0].parse::<i64>().is_err() {
        let message = "the value is no integer of 64 bits: greater and less compare integers";
        return Err(invalid(field("values[0]"), message));
    }
    Ok(Term { key: wire.key, operator, values })
}

/// Converts the selector in the field `list`.
///
/// # Errors
/// Returns a fault that names the field (`list[2].values`).
pub(super) fn selector(list: &str, wire: Vec<SelectorTerm>) -> Result<Selector, Fault> {
    let terms = wire.into_iter().enumerate().map(|(at, wire)| term(list, at, wire));
    Ok(Selector::new(terms.collect::<Result<_, _>>()?))
}

/// Converts the terms of a selector to the wire.
pub(super) fn selector_terms(selector: &Selector) -> Vec<SelectorTerm> {
    let number = |operator| OPERATORS.iter().find(|known| known.1 == operator).expect("it has a number").0;
    let terms = selector.terms().iter().map(|term| SelectorTerm {
        key: term.key.clone(),
        operator: number(term.operator),
        values: term.values.iter().map(|value| protocol::Name(value.clone())).collect(),
    });
    terms.collect()
}

/// Converts the taints of a node.
///
/// # Errors
/// Returns a fault that names the field.
pub fn taints(wire: Vec<protocol::Taint>) -> Result<Taints, Fault> {
    if wire.len() > TAINTS_MAX {
        return Err(invalid("taints", format!("{} taints: give at most {TAINTS_MAX}", wire.len())));
    }
    let mut taints = Vec::with_capacity(wire.len());
    for (i, taint) in wire.into_iter().enumerate() {
        check_name(&format!("taints[{i}].key"), &taint.key)?;
        let remedy = "effect: give 1 (NoSchedule), 2 (PreferNoSchedule) or 3 (NoExecute)";
        let effect = chosen(&EFFECTS, taint.effect, format_args!("taints[{i}].effect"), remedy)?;
        taints.push(Taint { key: taint.key.into(), value: taint.value.into(), effect });
    }
    Taints::new(taints).map_err(|error| invalid("taints", error.to_string()))
}

/// Converts the taints of a node to the wire.
#[must_use]
pub fn wire_taints(taints: &Taints) -> Vec<protocol::Taint> {
    let wire = |taint: &Taint| {
        let key = taint.key.to_string();
        let value = taint.value.to_string();
        protocol::Taint { key, value, effect: number_of(&EFFECTS, taint.effect) }
    };
    taints.as_slice().iter().map(wire).collect()
}

/// Converts a toleration. A fault names `tolerations[at]`.
///
/// # Errors
/// Returns a fault that names the field.
fn toleration(at: usize, wire: protocol::Toleration) -> Result<Toleration, Fault> {
    let field = |part: &str| format!("tolerations[{at}].{part}");
    let remedy = "operator of a toleration: give 3 (exists) or 7 (equal)";
    let place = format_args!("tolerations[{at}].operator");
    let operator = chosen(&TOLERATION_OPERATORS, wire.operator, place, remedy)?;
    if operator == TolerationOperator::Exists && !wire.value.is_empty() {
        return Err(invalid(field("value"), "exists takes no value: leave it out, or give equal"));
    }
    if wire.key.is_empty() && operator == TolerationOperator::Equal {
        return Err(invalid(field("key"), "the key is empty: give one, or exists for every taint"));
    }
    if !wire.key.is_empty() {
        check_name(&field("key"), &wire.key)?;
    }
    let place = format_args!("tolerations[{at}].effect");
    let effect = match wire.effect {
        EFFECT_ANY => None,
        number => Some(chosen(&EFFECTS, number, place, "effect: give 0 (any) to 3")?),
    };
    Ok(Toleration { key: wire.key, operator, value: wire.value, effect })
}

/// Converts a toleration to the wire.
fn wire_toleration(toleration: &Toleration) -> protocol::Toleration {
    let Toleration { key, operator, value, effect } = toleration;
    let operator = number_of(&TOLERATION_OPERATORS, *operator);
    let effect = effect.map_or(EFFECT_ANY, |effect| number_of(&EFFECTS, effect));
    protocol::Toleration { key: key.clone(), operator, value: value.clone(), effect }
}

fn weight(field: String, weight: i32) -> Result<u8, Fault> {
    u8::try_from(weight).ok().filter(|weight| (1..=PREFERENCE_WEIGHT_MAX).contains(weight)).ok_or_else(|| {
        invalid(field, format!("weight {weight} is out of range: give 1 to {PREFERENCE_WEIGHT_MAX}"))
    })
}

/// The shared preferences of requests whose only preference is to avoid GPU nodes.
static AVOID_GPU: LazyLock<Arc<Preferences>> =
    LazyLock::new(|| Arc::new(Preferences { avoid_gpu: true, ..Preferences::default() }));

fn rules(wire: &mut PlaceRequest) -> Result<Option<Arc<RankRules>>, Fault> {
    let count = wire.preferred.len() + wire.preferred_selectors.len();
    if count > PREFERRED_SELECTORS_MAX {
        let message = format!("{count} preferred selectors: give at most {PREFERRED_SELECTORS_MAX}");
        return Err(invalid("preferred", message));
    }
    if count == 0 && wire.tolerations.is_empty() && wire.fallbacks.is_empty() {
        return Ok(None);
    }
    let mut preferred = Vec::with_capacity(count);
    for (i, wire) in std::mem::take(&mut wire.preferred).into_iter().enumerate() {
        let weight = weight(format!("preferred[{i}].weight"), wire.weight)?;
        preferred.push((weight, Arc::new(Selector::new(vec![term("preferred", i, wire.term)?]))));
    }
    for (i, wire) in std::mem::take(&mut wire.preferred_selectors).into_iter().enumerate() {
        let list = format!("preferred_selectors[{i}]");
        let weight = weight(format!("{list}.weight"), wire.weight)?;
        if wire.terms.is_empty() {
            return Err(invalid(format!("{list}.terms"), "no term: give at least one"));
        }
        preferred.push((weight, Arc::new(selector(&format!("{list}.terms"), wire.terms)?)));
    }
    let mut fallbacks = Vec::with_capacity(wire.fallbacks.len());
    for (i, fallback) in std::mem::take(&mut wire.fallbacks).into_iter().enumerate() {
        fallbacks.push(Arc::new(selector(&format!("fallbacks[{i}].terms"), fallback.terms)?));
    }
    let tolerations =
        std::mem::take(&mut wire.tolerations).into_iter().enumerate().map(|(i, wire)| toleration(i, wire));
    let rules = RankRules::new(fallbacks, preferred, tolerations.collect::<Result<_, _>>()?);
    rules.map(|rules| Some(Arc::new(rules))).map_err(|error| invalid("preferences", error.to_string()))
}

/// Returns whether a request prefers nodes without GPUs.
pub(super) fn avoids_gpu(number: u8, default: bool, gpu: GpuRequest) -> Result<bool, Fault> {
    let avoids = match number {
        AVOID_GPU_DEFAULT => default,
        AVOID_GPU_YES => true,
        AVOID_GPU_NO => false,
        other => return Err(invalid("avoid_gpu", format!("{other} is none: give 0 (the server's), 1 or 2"))),
    };
    Ok(avoids && gpu == GpuRequest::None)
}

/// Returns the preferences of a request that has no others.
pub(super) fn only_avoid_gpu(avoids: bool) -> Option<Arc<Preferences>> {
    avoids.then(|| Arc::clone(&AVOID_GPU))
}

/// Converts the preferences of a request. If the request names one node, `candidates` becomes that node.
pub(super) fn preferences(
    wire: &mut PlaceRequest,
    candidates: &mut Option<Arc<[NodeId]>>,
    avoid_gpu_default: bool,
    gpu: GpuRequest,
    catalog: &Catalog,
) -> Result<Option<Arc<Preferences>>, Fault> {
    let avoid_gpu = avoids_gpu(wire.avoid_gpu, avoid_gpu_default, gpu)?;
    let affinity = wire.node != 0;
    if affinity {
        let node = NodeId(wire.node);
        if candidates.is_some() {
            return Err(invalid("node", "candidates are given too: give either"));
        }
        if catalog.node_partition(node).is_none() {
            let message = format!("node {node} is not registered: list the nodes to see which are");
            return Err(Fault::of_field(Reason::UnknownNode, "node", message));
        }
        *candidates = Some([node].into());
    }
    let rules = rules(wire)?;
    if rules.is_none() && wire.preferred_nodes.is_empty() && !affinity {
        return Ok(only_avoid_gpu(avoid_gpu));
    }
    let nodes = std::mem::take(&mut wire.preferred_nodes).into_iter().map(NodeId).collect();
    Ok(Some(Arc::new(Preferences { rules, nodes, avoid_gpu, affinity })))
}

/// Converts preferences to the wire, without the one node of a request with affinity.
pub(super) fn wire_preferences(preferences: &Preferences, wire: &mut PlaceRequest) {
    if let Some(rules) = preferences.rules.as_deref() {
        let preferred = |(weight, selector): &(u8, Arc<Selector>)| PreferredSelector {
            weight: i32::from(*weight),
            terms: selector_terms(selector),
        };
        let fallback = |selector: &Arc<Selector>| FallbackSelector { terms: selector_terms(selector) };
        wire.preferred_selectors = rules.preferred().iter().map(preferred).collect();
        wire.fallbacks = rules.fallbacks().iter().map(fallback).collect();
        wire.tolerations = rules.tolerations().iter().map(wire_toleration).collect();
    }
    wire.preferred_nodes = preferences.nodes.iter().map(|node| node.0).collect();
    wire.avoid_gpu = if preferences.avoid_gpu { AVOID_GPU_YES } else { AVOID_GPU_NO };
}
