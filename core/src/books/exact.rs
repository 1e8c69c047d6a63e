//! Amounts of one node by resource, and by instance where a resource has instances.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::units_of;
use crate::ids::ResourceId;
use crate::limits::GPU_INSTANCES_MAX;
use crate::resource::{Amount, Demand, GpuAssignment, ResourceKind, UnitAssignments};

/// Amounts of one node, for example what its allocations hold or what an entry withholds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExactAmounts {
    pub(crate) cpu: Amount,
    pub(crate) memory: Amount,
    /// The part of each GPU instance, in 1/10,000.
    pub(crate) gpus: [u32; GPU_INSTANCES_MAX],
    pub(crate) custom: BTreeMap<ResourceId, Amount>,
    /// The part of each unit of a unit-instance kind, in 1/10,000.
    pub(crate) units: BTreeMap<(ResourceId, u8), u32>,
}

/// The amounts of cpu, memory and GPUs in use beyond the capacity of a node. Books of custom kinds have their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shortfalls {
    pub(crate) cpu: Amount,
    pub(crate) memory: Amount,
    pub(crate) gpus: [u32; GPU_INSTANCES_MAX],
}

impl Shortfalls {
    const NONE: Self = Self { cpu: Amount::ZERO, memory: Amount::ZERO, gpus: [0; GPU_INSTANCES_MAX] };
}

/// The shortfalls of a node. Few nodes have any, so the others only have a pointer.
#[derive(Clone, Debug, Default)]
pub(crate) struct RareShortfalls(Option<Box<Shortfalls>>);

impl RareShortfalls {
    /// Creates them from what an image has.
    pub(crate) fn new(shortfalls: Option<&Shortfalls>) -> Self {
        Self(shortfalls.cloned().map(Box::new))
    }

    /// Returns whether there are any. Without any, their memory is freed.
    pub(crate) fn settle(&mut self) -> bool {
        self.0.take_if(|shortfalls| **shortfalls == Shortfalls::NONE);
        self.0.is_some()
    }

    /// Returns the bytes behind the pointer.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |_| size_of::<Shortfalls>() as u64)
    }
}

impl Deref for RareShortfalls {
    type Target = Shortfalls;

    fn deref(&self) -> &Shortfalls {
        self.0.as_deref().unwrap_or(&Shortfalls::NONE)
    }
}

impl DerefMut for RareShortfalls {
    fn deref_mut(&mut self) -> &mut Shortfalls {
        self.0.get_or_insert_default()
    }
}

impl ExactAmounts {
    /// Adds what `who` holds.
    pub(crate) fn hold(
        &mut self,
        demand: &Demand,
        gpus: GpuAssignment,
        units: Option<&Arc<UnitAssignments>>,
        who: &dyn Display,
    ) {
        assert!(gpus.units() == demand.gpu.units(), "{who} holds other GPUs than it asks");
        self.cpu = self.cpu.plus(demand.cpu);
        self.memory = self.memory.plus(demand.memory);
        for instance in gpus.instances() {
            self.gpus[usize::from(instance)] += u32::from(gpus.part);
        }
        for &(id, amount) in demand.custom() {
            let sum = self.custom.entry(id).or_default();
            *sum = sum.plus(amount);
            if id.is_unit_instance() {
                let units = units_of(units, id);
                assert!(units.units() == amount.units(), "{who} holds other units");
                for unit in units.instances() {
                    *self.units.entry((id, unit)).or_default() += u32::from(units.part);
                }
            }
        }
    }

    /// Adds `other`.
    pub(crate) fn add(&mut self, other: &Self) {
        self.cpu = self.cpu.plus(other.cpu);
        self.memory = self.memory.plus(other.memory);
        self.gpus.iter_mut().zip(&other.gpus).for_each(|(part, other)| *part += other);
        for (&id, &amount) in &other.custom {
            let sum = self.custom.entry(id).or_default();
            *sum = sum.plus(amount);
        }
        for (&unit, part) in &other.units {
            assert!(self.custom.contains_key(&unit.0), "a unit is held of a kind without an amount");
            *self.units.entry(unit).or_default() += part;
        }
    }

    /// Returns the amount of one custom kind.
    pub(crate) fn of(&self, id: ResourceId) -> Amount {
        self.custom.get(&id).copied().unwrap_or_default()
    }

    /// Returns the part of one unit, in 1/10,000.
    pub(crate) fn of_unit(&self, id: ResourceId, unit: u8) -> u32 {
        self.units.get(&(id, unit)).copied().unwrap_or(0)
    }

    /// Returns the units of one kind, each with its part in 1/10,000.
    pub(crate) fn units_of(&self, id: ResourceId) -> impl Iterator<Item = (u8, u32)> {
        self.units.range((id, 0)..=(id, u8::MAX)).map(|(&(_, unit), &part)| (unit, part))
    }

    /// Returns the sum over all GPU instances, in 1/10,000.
    pub(crate) fn gpu_total(&self) -> i64 {
        self.gpus.iter().map(|&part| i64::from(part)).sum()
    }

    /// Returns the amount of one resource, in 1/10,000.
    pub(crate) fn amount(&self, kind: ResourceKind) -> i64 {
        match kind {
            ResourceKind::Cpu => self.cpu.units(),
            ResourceKind::Memory => self.memory.units(),
            ResourceKind::Gpu => self.gpu_total(),
            ResourceKind::Custom(id) => self.of(id).units(),
        }
    }

    /// Returns the amounts that are not zero, in 1/10,000.
    pub(crate) fn resources(&self) -> impl Iterator<Item = (ResourceKind, i64)> {
        let known = [ResourceKind::Cpu, ResourceKind::Memory, ResourceKind::Gpu];
        let kinds = known.into_iter().chain(self.custom.keys().map(|&id| ResourceKind::Custom(id)));
        kinds.map(|kind| (kind, self.amount(kind))).filter(|&(_, amount)| amount > 0)
    }
}
