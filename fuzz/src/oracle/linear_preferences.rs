//! A request's preferences over a plain list of nodes. Classes of nodes are tried in turn, the most preferred
//! first.

use wharf_core::node::{Selector, Taint, TaintEffect, Toleration, TolerationOperator};
use wharf_core::request::{PlacementRequest, RankRules};
use wharf_core::resource::GpuRequest;
use wharf_core::rng::Rng;
use wharf_core::shard::HybridSettings;

use super::linear_node::LinearNode;
use super::{Choice, Fitting};

fn rules(request: &PlacementRequest) -> Option<&RankRules> {
    request.preferences.as_ref()?.rules.as_deref()
}

fn bears(toleration: &Toleration, taint: &Taint) -> bool {
    if toleration.effect.is_some() && toleration.effect != Some(taint.effect) {
        return false;
    }
    let same_key = toleration.key == taint.key.as_ref();
    match toleration.operator {
        TolerationOperator::Exists => toleration.key.is_empty() || same_key,
        TolerationOperator::Equal => same_key && toleration.value == taint.value.as_ref(),
    }
}

/// Returns whether the node has a taint with one of `effects` that the request does not tolerate.
fn untolerated(request: &PlacementRequest, node: &LinearNode, effects: &[TaintEffect]) -> bool {
    let taints = node.registration.spec.taints.as_slice();
    taints.iter().filter(|taint| effects.contains(&taint.effect)).any(|taint| {
        rules(request)
            .is_none_or(|rules| !rules.tolerations().iter().any(|toleration| bears(toleration, taint)))
    })
}

/// Returns whether taints exclude the request from the node.
pub(super) fn tainted(request: &PlacementRequest, node: &LinearNode) -> bool {
    untolerated(request, node, &[TaintEffect::NoSchedule, TaintEffect::NoExecute])
}

/// Returns the request's own selector, then its fallbacks.
fn alternatives(request: &PlacementRequest) -> Vec<Option<&Selector>> {
    let mut all = vec![request.selector.as_deref()];
    all.extend(
        rules(request).into_iter().flat_map(|rules| rules.fallbacks()).map(|selector| Some(&**selector)),
    );
    all
}

fn holds(selector: Option<&Selector>, node: &LinearNode) -> bool {
    selector.is_none_or(|selector| node.satisfies(selector))
}

/// Returns whether the request names the node, or no node, and its rules allow the node.
pub(super) fn named(request: &PlacementRequest, node: &LinearNode) -> bool {
    request.candidates.as_ref().is_none_or(|ids| ids.binary_search(&node.registration.id).is_ok())
        && selected(request, node)
        && !tainted(request, node)
}

/// Returns whether the labels satisfy the selector or a fallback.
pub(super) fn selected(request: &PlacementRequest, node: &LinearNode) -> bool {
    alternatives(request).into_iter().any(|selector| holds(selector, node))
}

fn weight(request: &PlacementRequest, node: &LinearNode) -> u32 {
    let mut sum = 0;
    for (weight, selector) in rules(request).into_iter().flat_map(|rules| rules.preferred()) {
        if node.satisfies(selector) {
            sum += u32::from(*weight);
        }
    }
    sum
}

/// Finds the most preferred class of nodes in `fitting` and lets `choose` pick among those of the highest
/// weight. Returns the result and the number of the selector that matched. `first` is tried before weights
/// count.
pub(super) fn choose_by_class<T>(
    request: &PlacementRequest,
    nodes: &[LinearNode],
    fitting: &[Fitting<usize>],
    mut first: impl FnMut(&[Fitting<usize>]) -> Option<T>,
    mut choose: impl FnMut(&[Fitting<usize>]) -> T,
) -> Option<(T, u8)> {
    let avoids = request.preferences.as_ref().is_some_and(|preferences| preferences.avoid_gpu)
        && request.demand.gpu == GpuRequest::None;
    for (number, selector) in (0..).zip(alternatives(request)) {
        for shunned in [false, true] {
            for with_gpus in [false, true] {
                let class: Vec<Fitting<usize>> = fitting
                    .iter()
                    .filter(|f| {
                        let node = &nodes[f.node];
                        holds(selector, node)
                            && untolerated(request, node, &[TaintEffect::PreferNoSchedule]) == shunned
                            && (!avoids || (node.registration.spec.gpus > 0) == with_gpus)
                    })
                    .cloned()
                    .collect();
                if class.is_empty() {
                    continue;
                }
                if let Some(found) = first(&class) {
                    return Some((found, number));
                }
                let heaviest = class.iter().map(|f| weight(request, &nodes[f.node])).max().unwrap_or(0);
                let best: Vec<Fitting<usize>> =
                    class.into_iter().filter(|f| weight(request, &nodes[f.node]) == heaviest).collect();
                return Some((choose(&best), number));
            }
        }
    }
    None
}

/// Returns the first preferred node in `class`.
pub(super) fn first_preferred(
    request: &PlacementRequest,
    nodes: &[LinearNode],
    class: &[Fitting<usize>],
) -> Option<usize> {
    let preferences = request.preferences.as_ref()?;
    preferences
        .nodes
        .iter()
        .find_map(|&id| class.iter().find(|f| nodes[f.node].registration.id == id).map(|f| f.node))
}

/// Returns the utilisation of the busier of cpu and memory in 1/10,000, rounded down. Below the threshold it is
/// 0.
fn score(node: &LinearNode, settings: HybridSettings) -> i128 {
    let spec = &node.registration.spec;
    let mut score = 0;
    for (free, total) in [(node.cpu_free(), spec.cpu.units()), (node.memory_free(), spec.memory.units())] {
        if total > 0 {
            score = score.max(i128::from(total - free) * 10_000 / i128::from(total));
        }
    }
    if score < i128::from(settings.threshold) { 0 } else { score }
}

/// Returns what the hybrid policy answers over `class`. With the shard's random state in `rng` this is one
/// node, without it any of the nodes that the policy draws from.
pub(super) fn hybrid(
    request: &PlacementRequest,
    nodes: &[LinearNode],
    class: &[Fitting<usize>],
    settings: HybridSettings,
    rng: Option<&mut Rng>,
) -> Choice<usize> {
    let mut sorted: Vec<(i128, u64, usize)> =
        class.iter().map(|f| (score(&nodes[f.node], settings), f.ordinal, f.node)).collect();
    sorted.sort_unstable();
    // Only the first preferred node that is registered counts.
    let registered = |id| nodes.iter().position(|node| node.registration.id == id);
    let preferred = request.preferences.as_ref().and_then(|p| p.nodes.iter().find_map(|&id| registered(id)));
    if let Some(&(score, ..)) = sorted.iter().find(|&&(.., node)| Some(node) == preferred)
        && score <= sorted[0].0
    {
        return Choice::Only(preferred.expect("it was found"));
    }
    let drawn_from = (nodes.len() * usize::from(settings.top_k) / 10_000).max(1);
    let Some(rng) = rng else {
        return Choice::AnyOf(sorted.iter().take(drawn_from).map(|&(.., node)| node).collect());
    };
    // Draws as the shard does: if the number exceeds the list, it draws again.
    let mut at = rng.below(drawn_from as u64) as usize;
    if at >= sorted.len() {
        at = rng.below(sorted.len() as u64) as usize;
    }
    Choice::Only(sorted[at].2)
}
