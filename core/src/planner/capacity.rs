//! The capacity of a node if only the group's own placed bundles ran there.
//!
//! The measures are chosen so that the parts of a placement add up. Every valid placement stays within each
//! measure, so a group that exceeds a measure is proved impossible.
//!
//! Parts of devices are counted in several ways: as plain sums, and by the step functions of Fekete and
//! Schepers (IPCO 1998). These are `u_k(x) = floor((k + 1) x) / k`, and `x` if `(k + 1) x` is whole. By each
//! of them, what fits into one device has a sum of at most 1. So two parts of 0.6 need two devices (k = 1),
//! and so do three parts of 0.4 (k = 2).

use crate::ids::ResourceId;
use crate::node::NodeSpec;
use crate::resource::{Amount, Demand, GPU_UNIT, GpuAssignment, GpuBooks, GpuRequest, ResourceKind};

/// The highest step function used for parts of devices.
const STEPS_MAX: i64 = 4;
const UNIT: i64 = GPU_UNIT as i64;

/// One way to count one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Measure {
    pub(super) kind: ResourceKind,
    /// For devices, the step function. 0 counts plainly.
    steps: i64,
}

/// A placed bundle of the group on a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stands<'a> {
    pub(super) demand: &'a Demand,
    pub(super) gpus: GpuAssignment,
}

/// A node on which only the group's own placed bundles run.
pub(super) struct Capacity<'a> {
    spec: &'a NodeSpec,
    gpus: GpuBooks,
    stands: &'a [Stands<'a>],
}

fn custom_of(demand: &Demand, id: ResourceId) -> i64 {
    demand.custom().iter().find(|(of, _)| *of == id).map_or(0, |(_, amount)| amount.units())
}

/// Returns `units` if it is at least one unit of a unit-instance kind, else 0. In 1/10 000.
fn whole(units: i64) -> i64 {
    if units >= UNIT { units } else { 0 }
}

impl Measure {
    /// Returns all measures that matter for these demands.
    pub(super) fn all<'a>(demands: impl Iterator<Item = &'a Demand> + Clone) -> Vec<Self> {
        let mut measures = Vec::new();
        let mut add = |kind, parts: bool| {
            let most = if parts { STEPS_MAX } else { 0 };
            for steps in 0..=most {
                let measure = Self { kind, steps };
                if !measures.contains(&measure) {
                    measures.push(measure);
                }
            }
        };
        for demand in demands {
            if demand.cpu > Amount::ZERO {
                add(ResourceKind::Cpu, false);
            }
            if demand.memory > Amount::ZERO {
                add(ResourceKind::Memory, false);
            }
            if demand.gpu != GpuRequest::None {
                add(ResourceKind::Gpu, matches!(demand.gpu, GpuRequest::Fraction(_)));
            }
            for &(id, amount) in demand.custom() {
                add(ResourceKind::Custom(id), id.is_unit_instance() && amount.units() < UNIT);
            }
        }
        measures
    }

    /// Counts an amount of one device, in 1/10 000 times the steps.
    fn counted(self, units: i64) -> i64 {
        if self.steps == 0 {
            return units;
        }
        let raised = (self.steps + 1) * (units % UNIT);
        let part = if raised % UNIT == 0 { self.steps * (units % UNIT) } else { raised / UNIT * UNIT };
        units / UNIT * UNIT * self.steps + part
    }

    /// Returns the count of a demand.
    pub(super) fn weight(self, demand: &Demand) -> i128 {
        let units = match self.kind {
            ResourceKind::Cpu => demand.cpu.units(),
            ResourceKind::Memory => demand.memory.units(),
            ResourceKind::Gpu => self.counted(demand.gpu.units()),
            ResourceKind::Custom(id) => self.counted(custom_of(demand, id)),
        };
        i128::from(units)
    }

    /// Returns the count of what a node could hold.
    pub(super) fn room(self, node: &Capacity<'_>) -> i128 {
        let units = match self.kind {
            ResourceKind::Cpu => node.cpu(),
            ResourceKind::Memory => node.memory(),
            ResourceKind::Gpu => {
                (0..node.spec.gpus).map(|instance| self.counted(i64::from(node.gpus.free(instance)))).sum()
            }
            ResourceKind::Custom(id) if self.steps == 0 => node.custom(id),
            ResourceKind::Custom(id) => node.whole_units(id) * UNIT * self.steps,
        };
        i128::from(units)
    }
}

impl<'a> Capacity<'a> {
    pub(super) fn new(spec: &'a NodeSpec, stands: &'a [Stands<'a>]) -> Self {
        let mut gpus = GpuBooks::with_devices(spec.gpus);
        for held in stands {
            for instance in held.gpus.instances().filter(|&instance| instance < spec.gpus) {
                gpus.set_free(instance, gpus.free(instance).saturating_sub(held.gpus.part));
            }
        }
        Self { spec, gpus, stands }
    }

    fn left(&self, total: Amount, of: impl Fn(&Demand) -> i64) -> i64 {
        (total.units() - self.stands.iter().map(|held| of(held.demand)).sum::<i64>()).max(0)
    }

    fn cpu(&self) -> i64 {
        self.left(self.spec.cpu, |demand| demand.cpu.units())
    }

    fn memory(&self) -> i64 {
        self.left(self.spec.memory, |demand| demand.memory.units())
    }

    fn custom(&self, id: ResourceId) -> i64 {
        self.left(self.spec.custom_total(id), |demand| custom_of(demand, id))
    }

    /// Returns the units with no whole-unit allocation. Partial allocations are not tracked here and count as
    /// absent.
    fn whole_units(&self, id: ResourceId) -> i64 {
        self.left(self.spec.custom_total(id), |demand| whole(custom_of(demand, id))) / UNIT
    }

    /// Returns how many times the node could hold the same demand, at most `enough`. Exact except for units
    /// of which the group holds parts.
    pub(super) fn count(&self, demand: &Demand, enough: u32) -> u32 {
        let mut count = i64::from(enough);
        let mut among = |room: i64, of_each: i64| {
            if of_each > 0 {
                count = count.min(room / of_each);
            }
        };
        among(self.cpu(), demand.cpu.units());
        among(self.memory(), demand.memory.units());
        match demand.gpu {
            GpuRequest::None => {}
            GpuRequest::Whole(devices) => among(i64::from(self.gpus.whole_free()), i64::from(devices)),
            GpuRequest::Fraction(part) => {
                let of_device = |instance| i64::from(self.gpus.free(instance) / part);
                among((0..self.spec.gpus).map(of_device).sum(), 1);
            }
        }
        for &(id, amount) in demand.custom() {
            match amount.units() {
                units if !id.is_unit_instance() => among(self.custom(id), units),
                units if units >= UNIT => among(self.whole_units(id), units / UNIT),
                units if units > 0 => among(self.whole_units(id) * (UNIT / units), 1),
                _ => {}
            }
        }
        u32::try_from(count).expect("between nothing and enough")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Labels, Taints};
    use crate::resource::Amount;

    /// The parts that fit into one device never add up to more than one device, by every way of counting.
    #[test]
    fn what_fits_into_a_device_is_never_counted_as_more() {
        for steps in 0..=STEPS_MAX {
            let measure = Measure { kind: ResourceKind::Gpu, steps };
            let device = measure.counted(UNIT);
            for a in (0..=UNIT).step_by(250) {
                for b in (0..=UNIT - a).step_by(250) {
                    let most = measure.counted(a + b);
                    assert!(
                        measure.counted(a) + measure.counted(b) <= most && most <= device,
                        "{steps} {a} {b}"
                    );
                }
            }
        }
        let twice = |steps, units| {
            let measure = Measure { kind: ResourceKind::Gpu, steps };
            2 * measure.counted(units) > measure.counted(UNIT)
        };
        assert!(twice(1, 6000) && !twice(1, 5000));
        let third = Measure { kind: ResourceKind::Gpu, steps: 2 };
        assert!(3 * third.counted(4000) > third.counted(UNIT));
    }

    #[test]
    fn parts_of_units_are_counted_unit_by_unit() {
        let kind = ResourceId::new(0, true);
        let custom =
            |milli| Demand::canonical_custom(vec![(kind, Amount::from_milli(milli))]).expect("one kind");
        let spec = NodeSpec {
            name: "n".into(),
            identity: None,
            cpu: Amount::ZERO,
            memory: Amount::ZERO,
            gpus: 0,
            custom: custom(3000),
            labels: Labels::default(),
            taints: Taints::default(),
        };
        let capacity = Capacity { spec: &spec, gpus: GpuBooks::default(), stands: &[] };
        let count = |milli| capacity.count(&Demand { custom: custom(milli), ..Demand::default() }, 100);
        assert_eq!([count(2000), count(1000), count(250), count(300)], [1, 3, 12, 9]);
    }
}
