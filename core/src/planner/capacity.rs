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
pub(super) struct Occupant<'a> {
    pub(super) demand: &'a Demand,
    pub(super) gpus: GpuAssignment,
}

/// A node on which only the group's own placed bundles run.
pub(super) struct Capacity<'a> {
    spec: &'a NodeSpec,
    gpus: GpuBooks,
    occupants: &'a [Occupant<'a>],
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
    pub(super) fn new(spec: &'a NodeSpec, occupants: &'a [Occupant<'a>]) -> Self {
        let mut gpus = GpuBooks::with_devices(spec.gpus);
        for held in occupants {
            for instance in held.gpus.instances().filter(|&instance| instance < spec.gpus) {
                gpus.set_free(instance, gpus.free(instance).saturating_sub(held.gpus.part));
            }
        }
        Self { spec, gpus, occupants }
    }

    fn left(&self, total: Amount, of: impl Fn(&Demand) -> i64) -> i64 {
        (total.units() - self.occupants.iter().map(|held| of(held.demand)).sum::<i64>()).max(0)
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
        let capacity = Capacity { spec: &spec, gpus: GpuBooks::default(), occupants: &[] };
        let count = |milli| capacity.count(&Demand { custom: custom(milli), ..Demand::default() }, 100);
        assert_eq!([count(2000), count(1000), count(250), count(300)], [1, 3, 12, 9]);
    }

    fn kinds() -> (ResourceId, ResourceId) {
        (ResourceId::new(0, false), ResourceId::new(1, true))
    }

    /// A demand of cores, memory, devices, an amount of a plain kind and of one with units, in thousandths.
    fn demand(cpu: u32, memory: u32, gpu: GpuRequest, [nic, npu]: [u32; 2]) -> Demand {
        let (plain, units) = kinds();
        let custom = [(plain, Amount::from_milli(nic)), (units, Amount::from_milli(npu))];
        let custom = custom.into_iter().filter(|(_, amount)| *amount > Amount::ZERO).collect();
        let custom = Demand::canonical_custom(custom).expect("different kinds");
        Demand { cpu: Amount::whole(cpu), memory: Amount::whole(memory), gpu, custom }
    }

    fn spec(gpus: u8) -> NodeSpec {
        let Demand { cpu, memory, custom, .. } = demand(8, 12, GpuRequest::None, [5000, 4000]);
        let spec = super::super::test_bed::node_of(0, &[]);
        NodeSpec { cpu, memory, gpus, custom, ..spec }
    }

    /// Two placed bundles: one on the first device and one unit, the other on parts of the next ones.
    fn placed() -> [(Demand, GpuAssignment); 2] {
        let first = demand(3, 4, GpuRequest::Whole(1), [2000, 1000]);
        let second = demand(0, 1, GpuRequest::Fraction(4000), [0, 500]);
        let of = |mask, part| GpuAssignment { mask, part };
        [(first, of(0b001, 10_000)), (second, of(0b010, 4000))]
    }

    #[test]
    fn what_is_placed_on_a_node_takes_room_by_every_measure() {
        let placed = placed();
        let occupants: Vec<Occupant<'_>> =
            placed.iter().map(|(demand, gpus)| Occupant { demand, gpus: *gpus }).collect();
        let (nic, npu) = kinds();
        let spec = spec(3);
        let node = Capacity::new(&spec, &occupants);
        let room = |kind, steps| Measure { kind, steps }.room(&node);
        let unit = i128::from(UNIT);
        assert_eq!([room(ResourceKind::Cpu, 0), room(ResourceKind::Memory, 0)], [5 * unit, 7 * unit]);
        // Left are 0.6 of the second device and all of the third. By step functions 0.6 counts 1/1, 1/2, 2/3
        // and, because five times 0.6 is whole, 0.6.
        let gpu = [0, 1, 2, 3, 4].map(|steps| room(ResourceKind::Gpu, steps));
        assert_eq!(gpu, [16_000, 2 * unit, 3 * unit, 5 * unit, 4 * 16_000]);
        assert_eq!(room(ResourceKind::Custom(nic), 0), 3 * unit);
        // One of four units is taken whole. Which units the half is on is not known here.
        assert_eq!(
            [0, 1, 3].map(|steps| room(ResourceKind::Custom(npu), steps)),
            [25_000, 3 * unit, 9 * unit]
        );
        let cases = [
            (demand(2, 0, GpuRequest::None, [0, 0]), 2),
            (demand(0, 4, GpuRequest::None, [0, 0]), 1),
            (demand(1, 2, GpuRequest::None, [0, 0]), 3),
            (demand(0, 0, GpuRequest::Whole(1), [0, 0]), 1),
            (demand(0, 0, GpuRequest::Whole(2), [0, 0]), 0),
            (demand(0, 0, GpuRequest::Fraction(3000), [0, 0]), 2 + 3),
            (demand(0, 0, GpuRequest::None, [2000, 0]), 1),
            (demand(0, 0, GpuRequest::None, [0, 2000]), 1),
            (demand(0, 0, GpuRequest::None, [0, 300]), 3 * 3),
            (Demand::default(), 100),
        ];
        for (demand, count) in cases {
            assert_eq!(node.count(&demand, 100), count, "{demand:?}");
            assert_eq!(node.count(&demand, 1), count.min(1), "{demand:?}");
        }
    }

    #[test]
    fn a_node_that_lost_devices_or_cores_since_has_none_of_them_and_no_less() {
        let placed = placed();
        let occupants: Vec<Occupant<'_>> =
            placed.iter().map(|(demand, gpus)| Occupant { demand, gpus: *gpus }).collect();
        let spec = NodeSpec { cpu: Amount::whole(1), ..spec(1) };
        let node = Capacity::new(&spec, &occupants);
        let room = |kind| Measure { kind, steps: 0 }.room(&node);
        assert_eq!([room(ResourceKind::Cpu), room(ResourceKind::Gpu)], [0, 0]);
        assert_eq!(node.count(&demand(1, 0, GpuRequest::None, [0, 0]), 9), 0);
    }

    #[test]
    fn demands_are_measured_by_what_they_ask_and_parts_by_every_step() {
        let (nic, npu) = kinds();
        let plain = |kind| vec![Measure { kind, steps: 0 }];
        let parts = |kind| (0..=STEPS_MAX).map(|steps| Measure { kind, steps }).collect::<Vec<_>>();
        let none = GpuRequest::None;
        let cases = [
            (vec![Demand::default()], vec![]),
            (vec![demand(1, 0, none, [0, 0])], plain(ResourceKind::Cpu)),
            (vec![demand(0, 1, none, [0, 0]); 2], plain(ResourceKind::Memory)),
            (vec![demand(0, 0, GpuRequest::Whole(1), [0, 0])], plain(ResourceKind::Gpu)),
            (vec![demand(0, 0, GpuRequest::Fraction(1), [0, 0])], parts(ResourceKind::Gpu)),
            (vec![demand(0, 0, none, [500, 0])], plain(ResourceKind::Custom(nic))),
            (vec![demand(0, 0, none, [0, 1000])], plain(ResourceKind::Custom(npu))),
            (vec![demand(0, 0, none, [0, 999])], parts(ResourceKind::Custom(npu))),
        ];
        for (demands, measures) in cases {
            assert_eq!(Measure::all(demands.iter()), measures, "{demands:?}");
        }
        let asked = demand(3, 4, GpuRequest::Fraction(4000), [1500, 2000]);
        let weight = |kind, steps| Measure { kind, steps }.weight(&asked);
        assert_eq!([weight(ResourceKind::Cpu, 0), weight(ResourceKind::Memory, 0)], [30_000, 40_000]);
        // Two parts of 0.4 fit on a device, and three do not: by two steps each is half a device.
        assert_eq!(
            [0, 1, 2, 3, 4].map(|steps| weight(ResourceKind::Gpu, steps)),
            [4000, 0, 10_000, 10_000, 16_000]
        );
        assert_eq!(weight(ResourceKind::Custom(nic), 0), 15_000);
        assert_eq!(weight(ResourceKind::Custom(npu), 3), 60_000);
    }
}
