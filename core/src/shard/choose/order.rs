//! The attribute order of a request.

use super::Choose;
use crate::index::{Dimension, Geometry};
use crate::request::{OrderChoice, PlacementRequest};
use crate::resource::{Demand, GpuRequest, ResourceKind};
use crate::shard::books::Books;
use crate::shard::books::Sums;

/// Returns the indexed dimension of which `demand` asks the largest share of the total. The first one in the
/// geometry wins ties. `None` if the demand asks nothing that is indexed.
fn dominant(geometry: &Geometry, sums: &Sums, demand: &Demand) -> Option<Dimension> {
    let mut best: Option<(Dimension, i128, i128)> = None;
    for &(dimension, _) in geometry.dimensions() {
        let (kind, asked) = match (dimension, demand.gpu) {
            (Dimension::Cpu, _) => (ResourceKind::Cpu, demand.cpu.units()),
            (Dimension::Memory, _) => (ResourceKind::Memory, demand.memory.units()),
            (Dimension::WholeGpus, GpuRequest::Whole(_))
            | (Dimension::LargestGpuPart, GpuRequest::Fraction(_)) => (ResourceKind::Gpu, demand.gpu.units()),
            (Dimension::Custom(number), _) => {
                let Some(&id) = geometry.custom().get(usize::from(number)) else { continue };
                let amount = demand.custom().iter().find(|&&(named, _)| named == id);
                (ResourceKind::Custom(id), amount.map_or(0, |(_, amount)| amount.units()))
            }
            _ => continue,
        };
        let asked = i128::from(asked);
        let total = sums.total(kind);
        // Compared by cross-multiplication: an amount is below 2^54 and a total below 2^77 (4,000,000 nodes).
        let is_more = best.is_none_or(|(_, most, of)| asked * of > most * total);
        if asked > 0 && is_more {
            best = Some((dimension, asked, total));
        }
    }
    best.map(|(dimension, ..)| dimension)
}

impl Choose {
    /// Returns the number of the attribute order for the request.
    ///
    /// # Panics
    /// If the request names an order that is not configured. The edge rejects such requests.
    #[inline]
    pub(crate) fn order_of(&self, books: &Books, request: &PlacementRequest) -> usize {
        if request.order == OrderChoice::Default { 0 } else { self.chosen_order(books, request) }
    }

    #[cold]
    fn chosen_order(&self, books: &Books, request: &PlacementRequest) -> usize {
        let geometry = self.index.geometry();
        match request.order {
            OrderChoice::Default => 0,
            OrderChoice::Configured(number) => {
                assert!(usize::from(number) < geometry.order_count(), "attribute order {number} is none");
                usize::from(number)
            }
            OrderChoice::Dominant => {
                let dominant = dominant(geometry, &books.sums, &request.demand);
                let begins = |&order: &usize| Some(geometry.leading(order)) == dominant;
                (0..geometry.order_count()).find(begins).unwrap_or(0)
            }
        }
    }
}
