//! The part of the oracle for the geometry of a shard's index: granularity that follows the nodes, and the
//! attribute order that a request selects.

use wharf_core::index::{Dimension, Geometry};
use wharf_core::request::{OrderChoice, PlacementRequest};
use wharf_core::resource::{GpuRequest, ResourceKind};
use wharf_core::state::ShardState;

use super::linear_shard::{LinearShard, differs};

/// The dimensions whose granularity follows the nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Automatic {
    places: Vec<usize>,
    /// The number of nodes that joined, changed or left since any granularity changed.
    changes: usize,
}

impl Automatic {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let places = (0..geometry.dimension_count()).filter(|&place| geometry.is_automatic(place));
        Self { places: places.collect(), changes: 0 }
    }
}

/// Returns the steps that θ may have: 1, 2, 5, 10 and so on up to half of `unit`, then `unit` and its
/// doublings.
fn steps(unit: i64) -> Vec<i64> {
    let mut steps = Vec::new();
    let mut decimal = 1;
    while decimal < unit {
        steps.extend([decimal, 2 * decimal, 5 * decimal].into_iter().filter(|step| 2 * step <= unit));
        decimal *= 10;
    }
    steps.extend((0..40).map(|doubled| unit << doubled));
    steps
}

impl LinearShard {
    fn target(&self, place: usize) -> Option<i64> {
        let (dimension, _) = self.space.dimensions()[place];
        let sizes = self.nodes.iter().map(|node| self.space.value(dimension, &node.size(&self.indexed)));
        let mut sizes: Vec<i64> = sizes.filter(|&size| size > 0).collect();
        sizes.sort_unstable();
        // Nine in ten, rounded up.
        let within = (9 * sizes.len()).div_ceil(10);
        let size = *sizes.get(within.checked_sub(1)?)?;
        let mut power = 1;
        while power <= size {
            power *= 2;
        }
        let least = (power / 256).max(1);
        let unit = if dimension == Dimension::WholeGpus { 1 } else { 10_000 };
        steps(unit).into_iter().find(|&step| step >= least)
    }

    /// Records that a node joined, changed or left.
    pub(super) fn node_resized(&mut self) {
        if self.automatic.places.is_empty() {
            return;
        }
        self.automatic.changes += 1;
        if 2 * self.automatic.changes < self.nodes.len() {
            return;
        }
        let targets: Vec<(usize, Option<i64>)> =
            self.automatic.places.iter().map(|&place| (place, self.target(place))).collect();
        let is_far = |&(place, target): &(usize, Option<i64>)| {
            let (_, theta) = self.space.dimensions()[place];
            target.is_some_and(|target| target > 2 * theta || theta > 2 * target)
        };
        if targets.iter().any(is_far) {
            self.automatic.changes = 0;
            let of = |place| targets.iter().find(|&&(at, _)| at == place).and_then(|&(_, target)| target);
            self.space.regrain(of);
        }
    }

    pub(super) fn compare_granularity(&self, state: &ShardState) -> Result<(), String> {
        let thetas: Vec<i64> = self.space.dimensions().iter().map(|&(_, theta)| theta).collect();
        let expected = (!self.automatic.places.is_empty()).then_some((thetas, self.automatic.changes as u64));
        let got = state.granularity.as_ref().map(|state| (state.thetas.clone(), state.changes));
        if got == expected { Ok(()) } else { differs(got, expected) }
    }

    /// Returns the number of the attribute order that a request selects.
    pub(super) fn order_of(&self, request: &PlacementRequest) -> usize {
        match request.order {
            OrderChoice::Default => 0,
            OrderChoice::Configured(number) => usize::from(number),
            OrderChoice::Dominant => {
                let dominant = self.dominant(request);
                let begins = |&order: &usize| Some(self.space.leading(order)) == dominant;
                (0..self.space.order_count()).find(begins).unwrap_or(0)
            }
        }
    }

    /// Returns the dimension of which the request takes the largest share of the total.
    fn dominant(&self, request: &PlacementRequest) -> Option<Dimension> {
        let demand = &request.demand;
        let sums = self.sums();
        let mut shares: Vec<(Dimension, i128, i128)> = Vec::new();
        for &(dimension, _) in self.space.dimensions() {
            let (kind, asked) = match dimension {
                Dimension::Cpu => (ResourceKind::Cpu, demand.cpu.units()),
                Dimension::Memory => (ResourceKind::Memory, demand.memory.units()),
                Dimension::WholeGpus => match demand.gpu {
                    GpuRequest::Whole(count) => (ResourceKind::Gpu, i64::from(count) * 10_000),
                    _ => (ResourceKind::Gpu, 0),
                },
                Dimension::LargestGpuPart => match demand.gpu {
                    GpuRequest::Fraction(part) => (ResourceKind::Gpu, i64::from(part)),
                    _ => (ResourceKind::Gpu, 0),
                },
                Dimension::Custom(number) => {
                    let id = self.indexed[usize::from(number)];
                    let asked = demand.custom().iter().find(|(named, _)| *named == id);
                    (ResourceKind::Custom(id), asked.map_or(0, |(_, amount)| amount.units()))
                }
                Dimension::Weighted => continue,
            };
            if asked > 0 {
                let total = sums.get(&kind).map_or(0, |sum| sum.total);
                shares.push((dimension, i128::from(asked), total));
            }
        }
        let mut best = *shares.first()?;
        for &(dimension, asked, total) in &shares[1..] {
            // Compares asked / total with best.1 / best.2. A share of a zero total exceeds all other shares.
            let more = match (total, best.2) {
                (_, 0) => false,
                (0, _) => true,
                _ => asked * best.2 > best.1 * total,
            };
            if more {
                best = (dimension, asked, total);
            }
        }
        Some(best.0)
    }
}
