//! The geometry of a run's index: dimensions, granularity, attribute orders and weights.

use arbitrary::Arbitrary;
use wharf_core::ids::ResourceId;
use wharf_core::index::{Dimension, Geometry, Weights};
use wharf_core::resource::Amount;

use super::units_kind;
use crate::geometry::shuffled;
use crate::oracle::Space;

/// The layout of a run's index.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) fine: bool,
    /// Bits: custom resources are dimensions; there is a weighted dimension; granularities are automatic.
    pub(super) extras: u8,
    pub(super) orders: [u8; 3],
}

impl Layout {
    /// Returns the geometry of the index and the equivalent space of the oracle.
    pub(super) fn both(self) -> (Geometry, Space) {
        let theta = if self.fine { 1 } else { 3 };
        let mut dimensions = vec![
            (Dimension::Cpu, theta * Amount::SCALE),
            (Dimension::Memory, theta * Amount::SCALE),
            (Dimension::WholeGpus, 1),
            (Dimension::LargestGpuPart, theta * 1000),
        ];
        if self.extras & 1 == 1 {
            dimensions.push((Dimension::Custom(0), theta * 5000));
            dimensions.push((Dimension::Custom(1), Amount::SCALE));
        }
        let weights = [(Dimension::Cpu, 10_000), (Dimension::WholeGpus, 500_000), (Dimension::Custom(0), 1)];
        if self.extras & 2 == 2 {
            dimensions.push((Dimension::Weighted, theta * Amount::SCALE));
        }
        let names: Vec<Dimension> = dimensions.iter().map(|&(dimension, _)| dimension).collect();
        let orders = self.orders.map(|number| shuffled(names.clone(), number));
        dimensions.sort_by_key(|(dimension, _)| orders[0].iter().position(|known| known == dimension));
        let automatic: &[Dimension] = match self.extras >> 2 & 3 {
            0 => &names,
            1 => &names[1..2],
            _ => &[],
        };
        let geometry = Geometry::new(dimensions)
            .expect("different dimensions")
            .with_custom(&[ResourceId(0), units_kind()])
            .expect("two kinds")
            .with_weights(Weights::new(&weights).expect("none is negative"))
            .with_orders(&orders[1..])
            .expect("each order names each dimension once")
            .with_automatic(automatic);
        let space = Space::new(&geometry).with_orders(&orders[1..]).with_weights(&weights);
        (geometry, space)
    }
}
