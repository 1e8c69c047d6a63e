//! How well a type suits what would be placed on a node of it: Ray's order.

use crate::fairness::Amounts;
use crate::node::NodeSpec;
use crate::request::PlacementRequest;
use crate::resource::{Amount, Demand, GpuRequest};

/// The parts of a resource that utilisation is counted in.
const PARTS: u128 = 10_000;

/// The order of types: the greatest is best.
///
/// The utilisation of a kind counts as its third power times the amount that the node has of it, as in Ray. It is
/// counted in 1/10,000, so all numbers are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Score {
    /// How early the selector of the first request with selectors matches: 0 if no request has one.
    labels: usize,
    /// False for a node with GPUs on which nothing asks for one.
    spares_gpus: bool,
    /// The number of kinds that are asked for.
    kinds: usize,
    /// The smallest utilisation of any kind.
    least: u128,
    /// The sum of the utilisations. Divided by the number of kinds, it is their mean.
    mean: u128,
}

/// Returns the score of a node that had nothing, on which `packed` is placed: kinds of requests, each with its number.
pub(super) fn score<'a>(
    spec: &NodeSpec,
    packed: impl Iterator<Item = (&'a PlacementRequest, u32)> + Clone,
) -> Score {
    let gpus = spec.gpus;
    let total = Demand {
        cpu: spec.cpu,
        memory: spec.memory,
        gpu: if gpus > 0 { GpuRequest::Whole(gpus) } else { GpuRequest::None },
        custom: spec.custom.clone(),
    };
    let total = Amounts::of(&total);
    let mut used = Amounts::zero();
    for (request, count) in packed.clone() {
        let one = Amounts::of(&request.demand);
        used.add(&one.iter().map(|(dim, amount)| (dim, amount.saturating_mul(i64::from(count)))).collect());
    }
    let parts = |amount: i64| u128::try_from(amount).expect("no amount is negative");
    let utilisation = |(dim, has): (_, i64)| -> u128 {
        let part = parts(used.get(dim).min(has)) * PARTS / parts(has);
        part.pow(3) * parts(has)
    };
    let utilisations: Vec<u128> = total.iter().map(utilisation).collect();
    let kinds = utilisations.len().max(1) as u128;
    let asks_gpu = packed.clone().any(|(request, _)| request.demand.gpu.amount() > Amount::ZERO);
    Score {
        labels: packed.map(|(request, _)| label_match(request, spec)).find(|&found| found > 0).unwrap_or(0),
        spares_gpus: spec.gpus == 0 || asks_gpu,
        kinds: used.iter().filter(|&(dim, _)| total.get(dim) > 0).count(),
        least: utilisations.iter().copied().min().unwrap_or(0),
        mean: utilisations.into_iter().sum::<u128>() / kinds,
    }
}

/// Returns the number of selectors of a request from the one that matches on. 0: it has none, or none matches.
fn label_match(request: &PlacementRequest, spec: &NodeSpec) -> usize {
    let selectors = request.selector.iter().chain(request.fallbacks());
    let count = selectors.clone().count();
    let matches = selectors.into_iter().position(|selector| selector.holds(&spec.labels));
    matches.map_or(0, |at| count - at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Labels, Taints};
    use crate::request::Policy;

    fn node(cpu: u32, gpus: u8) -> NodeSpec {
        NodeSpec {
            name: "n".into(),
            identity: None,
            cpu: Amount::whole(cpu),
            memory: Amount::ZERO,
            gpus,
            custom: None,
            labels: Labels::default(),
            taints: Taints::default(),
        }
    }

    fn request(cpu: u32, gpus: u8) -> PlacementRequest {
        let gpu = if gpus > 0 { GpuRequest::Whole(gpus) } else { GpuRequest::None };
        PlacementRequest::new(Demand { cpu: Amount::whole(cpu), gpu, ..Demand::default() }, Policy::BestFit)
    }

    fn scored(spec: &NodeSpec, packed: &[(PlacementRequest, u32)]) -> Score {
        score(spec, packed.iter().map(|(request, count)| (request, *count)))
    }

    #[test]
    fn a_node_with_gpus_is_worse_if_nobody_asks_for_one_and_better_if_somebody_does() {
        let plain = [(request(1, 0), 1)];
        assert!(scored(&node(64, 0), &plain) > scored(&node(1, 1), &plain));
        let both = [(request(1, 1), 1)];
        assert!(scored(&node(1, 1), &both) > scored(&node(1, 0), &plain), "two kinds are used");
    }

    #[test]
    fn the_node_that_is_used_most_is_best() {
        let one = [(request(1, 0), 1)];
        assert!(scored(&node(5, 0), &one) > scored(&node(10, 0), &one));
        let full = [(request(5, 0), 2)];
        assert!(
            scored(&node(10, 0), &full) > scored(&node(5, 0), &[(request(5, 0), 1)]),
            "the larger one if both are full"
        );
    }
}
