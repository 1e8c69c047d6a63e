//! A node in the naive model of statements: a list of what is taken, summed up again for each question.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::{AllocationId, BundleId, StatementId};
use wharf_core::limits::GPU_INSTANCES_MAX;
use wharf_core::node::NodeState;
use wharf_core::resource::{Amount, Demand, GpuAssignment, GpuRequest, ResourceKind};
use wharf_core::statement::ConflictReason;
use wharf_core::time::Time;

pub(super) const UNIT: i64 = 10_000;

/// The capacity that something takes of a node, and the instances.
#[derive(Clone, Debug)]
pub(super) struct Take {
    pub(super) demand: Demand,
    pub(super) gpus: GpuAssignment,
}

impl Take {
    pub(super) fn cpu(&self) -> i64 {
        self.demand.cpu.units()
    }

    pub(super) fn part(&self, instance: usize) -> i64 {
        if self.gpus.mask >> instance & 1 == 1 { i64::from(self.gpus.part) } else { 0 }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Allocation {
    pub(super) take: Take,
    pub(super) until: Option<Time>,
    pub(super) evicted_by: Option<StatementId>,
    pub(super) bundle: Option<BundleId>,
    pub(super) inside: BTreeMap<AllocationId, Take>,
}

#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) statement: StatementId,
    pub(super) at: u16,
    pub(super) take: Take,
    pub(super) bundle: Option<BundleId>,
}

#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) id: Option<AllocationId>,
    pub(super) hold: Hold,
}

/// A node: its capacity and everything that is taken of it.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) cpu: i64,
    pub(super) gpus: u8,
    pub(super) state: NodeState,
    pub(super) ill: u16,
    pub(super) allocations: BTreeMap<AllocationId, Allocation>,
    pub(super) holds: Vec<Hold>,
    pub(super) claims: Vec<Claim>,
}

/// An amount of cores and of each GPU instance.
#[derive(Clone, Debug)]
pub(super) struct Free {
    pub(super) cpu: i64,
    pub(super) gpus: [i64; GPU_INSTANCES_MAX],
}

impl Free {
    pub(super) fn less<'a>(mut self, takes: impl Iterator<Item = &'a Take>) -> Self {
        for take in takes {
            self.cpu -= take.cpu();
            (0..GPU_INSTANCES_MAX).for_each(|i| self.gpus[i] -= take.part(i));
        }
        self
    }

    pub(super) fn at_least_nothing(mut self) -> Self {
        self.cpu = self.cpu.max(0);
        self.gpus.iter_mut().for_each(|part| *part = (*part).max(0));
        self
    }

    pub(super) fn covers(&self, take: &Take) -> bool {
        take.cpu() <= self.cpu && (0..GPU_INSTANCES_MAX).all(|i| take.part(i) <= self.gpus[i])
    }

    /// Returns the instances for `demand`, or what is too scarce.
    pub(super) fn choose(&self, demand: &Demand) -> Result<GpuAssignment, ConflictReason> {
        let short = |kind, asked: Amount, available: i64| ConflictReason::Short {
            kind,
            asked,
            available: Amount::try_from_units(available).expect("in range"),
        };
        if demand.cpu.units() > self.cpu {
            return Err(short(ResourceKind::Cpu, demand.cpu, self.cpu));
        }
        match demand.gpu {
            GpuRequest::None => Ok(GpuAssignment::NONE),
            GpuRequest::Fraction(part) => {
                let fit = (0..GPU_INSTANCES_MAX).filter(|&i| self.gpus[i] >= i64::from(part));
                let best = fit.min_by_key(|&i| (self.gpus[i], i));
                let most = self.gpus.iter().copied().max().unwrap_or(0);
                let instance = best.ok_or_else(|| short(ResourceKind::Gpu, demand.gpu.amount(), most))?;
                Ok(GpuAssignment { mask: 1 << instance, part })
            }
            GpuRequest::Whole(count) => {
                let whole: Vec<usize> = (0..GPU_INSTANCES_MAX).filter(|&i| self.gpus[i] == UNIT).collect();
                if whole.len() < usize::from(count) {
                    return Err(short(ResourceKind::Gpu, demand.gpu.amount(), whole.len() as i64 * UNIT));
                }
                let mask = whole.iter().take(usize::from(count)).fold(0, |mask, i| mask | 1 << i);
                Ok(GpuAssignment { mask, part: UNIT as u16 })
            }
        }
    }
}

impl Node {
    /// Returns the capacity that is not taken. It is negative where capacity was taken away.
    pub(super) fn unused(&self) -> Free {
        let gpus = std::array::from_fn(|i| if i < usize::from(self.gpus) { UNIT } else { 0 });
        let taken = self.allocations.values().map(|allocation| &allocation.take);
        Free { cpu: self.cpu, gpus }.less(taken.chain(self.holds.iter().map(|hold| &hold.take)))
    }

    pub(super) fn without_ill(&self, mut free: Free) -> Free {
        (0..GPU_INSTANCES_MAX).filter(|i| self.ill >> i & 1 == 1).for_each(|i| free.gpus[i] = 0);
        free
    }

    /// Returns the number of entries that count against the limit on allocations.
    pub(super) fn count(&self) -> usize {
        let inside = self.allocations.values().map(|allocation| allocation.inside.len()).sum::<usize>();
        self.allocations.len() + inside + self.holds.len() + self.claims.len()
    }

    /// Returns the number of allocations that are releasing or in `evicted`.
    pub(super) fn ending(&self, evicted: &BTreeSet<AllocationId>) -> usize {
        let ends = |(id, allocation): &(&AllocationId, &Allocation)| {
            allocation.until.is_some() || evicted.contains(id)
        };
        self.allocations.iter().filter(ends).count()
    }

    /// Returns the healthy capacity that is not taken. Claims are ignored.
    pub(super) fn free(&self) -> Free {
        self.without_ill(self.unused().at_least_nothing())
    }

    pub(super) fn claimed(&self) -> impl Iterator<Item = &Take> {
        self.claims.iter().map(|claim| &claim.hold.take)
    }

    /// Returns the capacity that is offered: free and not claimed.
    pub(super) fn visible(&self) -> Free {
        self.free().less(self.claimed()).at_least_nothing()
    }

    /// Returns the capacity that is free once everything releasing and everything in `evicted` has ended.
    pub(super) fn future(&self, evicted: &BTreeSet<AllocationId>) -> Free {
        let mut free = self.unused();
        for (id, allocation) in &self.allocations {
            if allocation.until.is_some() || evicted.contains(id) {
                free.cpu += allocation.take.cpu();
                (0..GPU_INSTANCES_MAX).for_each(|i| free.gpus[i] += allocation.take.part(i));
            }
        }
        self.without_ill(free)
    }
}
