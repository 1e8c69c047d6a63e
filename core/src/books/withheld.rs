//! Amounts of one node that are withheld from all but one owner.

use crate::ids::{OwnerId, ResourceId};
use crate::limits::GPU_INSTANCES_MAX;
use crate::resource::{Amount, ReservedAmounts};
use crate::time::Time;

/// Capacity withheld on one node, by resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Withheld {
    pub(crate) cpu: Amount,
    pub(crate) memory: Amount,
    /// The part of each GPU instance, in 1/10,000.
    pub(crate) gpus: [u16; GPU_INSTANCES_MAX],
    /// The custom kinds that the node has, in order of id.
    pub(crate) custom: Vec<WithheldCustom>,
}

/// Capacity withheld of one custom kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WithheldCustom {
    pub(crate) id: ResourceId,
    pub(crate) amount: Amount,
    /// The part of each unit of a unit-instance kind, in 1/10,000.
    pub(crate) units: Vec<u16>,
}

impl Withheld {
    /// Returns the sum over all GPU instances, in 1/10,000.
    pub(crate) fn gpu_total(&self) -> i64 {
        self.gpus.iter().map(|&part| i64::from(part)).sum()
    }

    /// Returns the sum of `self` and `other`.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        sum.cpu = sum.cpu.plus(other.cpu);
        sum.memory = sum.memory.plus(other.memory);
        sum.gpus.iter_mut().zip(&other.gpus).for_each(|(part, other)| *part += other);
        for withheld in &other.custom {
            match sum.custom.binary_search_by_key(&withheld.id, |known| known.id) {
                Ok(at) => {
                    let known = &mut sum.custom[at];
                    known.amount = known.amount.plus(withheld.amount);
                    known.units.resize(known.units.len().max(withheld.units.len()), 0);
                    known.units.iter_mut().zip(&withheld.units).for_each(|(part, other)| *part += other);
                }
                Err(at) => sum.custom.insert(at, withheld.clone()),
            }
        }
        sum
    }

    /// Returns the amount withheld of one custom kind.
    pub(crate) fn of(&self, id: ResourceId) -> Amount {
        self.custom.iter().find(|withheld| withheld.id == id).map_or(Amount::ZERO, |withheld| withheld.amount)
    }

    /// Returns the part withheld of one unit of a unit-instance kind, in 1/10,000.
    pub(crate) fn of_unit(&self, id: ResourceId, unit: u8) -> u16 {
        let withheld = self.custom.iter().find(|withheld| withheld.id == id);
        withheld.and_then(|withheld| withheld.units.get(usize::from(unit)).copied()).unwrap_or(0)
    }
}

/// The reservation of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) owner: OwnerId,
    pub(crate) left: ReservedAmounts,
    pub(crate) until: Option<Time>,
    pub(crate) withheld: Withheld,
    /// Identifies the reservation within its shard. A replacement gets a new number.
    pub(crate) number: u64,
    /// The number of undecided statements that hold some of it. Until they are decided, the reservation stays,
    /// even when used up.
    pub(crate) in_use: u32,
}

impl Reservation {
    /// Returns whether nothing is reserved and no statement can return anything.
    pub(crate) fn is_over(&self) -> bool {
        self.left.is_empty() && self.in_use == 0
    }
}
