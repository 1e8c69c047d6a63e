//! Queues: what is charged to them, and caps that nothing exceeds. All sums are those of the shards' books.

use std::collections::BTreeMap;

use wharf_core::fairness::Dim;
use wharf_core::ids::{AllocationId, BundleId};
use wharf_core::jobs::{JobId, Jobs};
use wharf_core::resource::Demand;
use wharf_net::protocol::{ORDERING_DRF, ORDERING_FAIR, ORDERING_FIFO, Reason};

use super::jobs::{allocated, in_queues};
use super::{Verdict, ensure};
use crate::sim::facts::Facts;

/// A queue of the simulation.
#[derive(Clone, Copy, Debug)]
pub struct QueueOfSim {
    /// Its name.
    pub name: &'static str,
    /// The name of the queue that contains it. Empty: the root.
    pub parent: &'static str,
    /// The most that it may use of each resource, in 1/10,000.
    pub capability: &'static [(&'static str, i64)],
    /// The most allocations that it may have.
    pub allocations_max: Option<u32>,
    /// Its weight among its siblings.
    pub weight: u32,
    /// Whether it has jobs and direct placements.
    pub is_leaf: bool,
    /// The half-life of what it has held, in ns. `None`: that of all queues.
    pub half_life: Option<u64>,
    /// What it is guaranteed, in runs with the plugins `capacity` and `proportion` and with the action `starve`.
    pub guarantee: &'static [(&'static str, i64)],
    /// What it deserves, in runs with the plugin `capacity`.
    pub deserved: &'static [(&'static str, i64)],
    /// `ORDERING_*`: the order of its jobs, in runs with the action `starve`.
    pub ordering: u8,
}

/// The part of its fair share below which a job starves, in 1/10,000.
pub const STARVES_BELOW: u32 = 8_000;

/// How long a job is below that part before others are evicted for it, in ns.
pub const FAIR_SHARE_PATIENCE_NS: u64 = 1_500;

/// How long a queue is below its guarantee before others are evicted for its jobs, in ns.
pub const GUARANTEE_PATIENCE_NS: u64 = 800;

const PLAIN: QueueOfSim = QueueOfSim {
    name: "",
    parent: "",
    capability: &[],
    allocations_max: None,
    weight: 1,
    is_leaf: true,
    half_life: None,
    guarantee: &[],
    deserved: &[],
    ordering: ORDERING_DRF,
};

/// The queues of the simulation. They never change, so a cap that is exceeded is always a fault.
pub const QUEUES: [QueueOfSim; 5] = [
    QueueOfSim {
        name: "team",
        capability: &[("cpu", 60_000), ("memory", 90_000)],
        allocations_max: Some(9),
        is_leaf: false,
        guarantee: &[("cpu", 10_000)],
        deserved: &[("cpu", 30_000), ("memory", 40_000), ("gpu", 10_000)],
        ..PLAIN
    },
    QueueOfSim {
        name: "capped",
        parent: "team",
        capability: &[("cpu", 35_000), ("gpu", 14_000)],
        half_life: Some(5_000),
        deserved: &[("cpu", 10_000), ("memory", 10_000)],
        ..PLAIN
    },
    QueueOfSim {
        name: "other",
        parent: "team",
        weight: 2,
        half_life: Some(0),
        guarantee: &[("cpu", 10_000)],
        deserved: &[("cpu", 30_000), ("memory", 40_000), ("gpu", 10_000)],
        ordering: ORDERING_FAIR,
        ..PLAIN
    },
    QueueOfSim { name: "few", parent: "team", allocations_max: Some(3), ordering: ORDERING_FIFO, ..PLAIN },
    QueueOfSim {
        name: "free",
        guarantee: &[("cpu", 5_000)],
        // More than the others leave: queues that deserve what they have are in its way.
        deserved: &[("cpu", 80_000), ("memory", 120_000), ("gpu", 40_000)],
        ..PLAIN
    },
];

/// The queue to which all groups are charged that are in one.
pub const QUEUE_OF_GROUPS: &str = "capped";

/// Returns the queues with jobs and direct placements.
pub fn leaves() -> impl Iterator<Item = &'static QueueOfSim> {
    QUEUES.iter().filter(|queue| queue.is_leaf)
}

/// Returns a queue and those that contain it, without the root.
fn chain(name: &str) -> impl Iterator<Item = &'static QueueOfSim> {
    let of = |name: &str| QUEUES.iter().find(|queue| queue.name == name);
    std::iter::successors(of(name), move |queue| of(queue.parent))
}

/// What allocations hold together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// In 1/10,000.
    pub cpu: i64,
    /// In 1/10,000.
    pub memory: i64,
    /// In 1/10,000 of a device.
    pub gpu: i64,
    /// Their number.
    pub allocations: u64,
}

impl Sum {
    fn add(&mut self, demand: &Demand) {
        self.cpu += demand.cpu.units();
        self.memory += demand.memory.units();
        self.gpu += demand.gpu.units();
        self.allocations += 1;
    }

    /// Returns what is more than a queue may use. `None`: nothing.
    fn beyond(&self, queue: &QueueOfSim) -> Option<&'static str> {
        let of = |name: &str| match name {
            "cpu" => self.cpu,
            "memory" => self.memory,
            _ => self.gpu,
        };
        let beyond = queue.capability.iter().find(|(name, most)| of(name) > *most);
        let has_many = queue.allocations_max.is_some_and(|most| self.allocations > u64::from(most));
        beyond.map(|(name, _)| *name).or_else(|| has_many.then_some("allocations"))
    }
}

/// What each queue uses, with the queues below it, by name.
pub type Charges = BTreeMap<&'static str, Sum>;

/// Returns queues that use nothing.
fn unused() -> Charges {
    QUEUES.iter().map(|queue| (queue.name, Sum::default())).collect()
}

/// Adds what the books charge to each queue. `queue_of` names the queue of a job or of a direct placement. Claims count
/// if `with_claims`.
///
/// # Errors
/// Returns the allocation whose job has no queue.
fn charge(
    sums: &mut Charges,
    facts: &[Facts],
    with_claims: bool,
    queue_of: impl Fn(JobId) -> Option<&'static str>,
) -> Verdict {
    let bundles: BTreeMap<AllocationId, BundleId> = allocated(facts).chain(in_queues(facts)).collect();
    let mut charge_one = |id: AllocationId, bundle: BundleId, demand: &Demand| {
        let name = match JobId::of_group(bundle.group) {
            Some(job) => queue_of(job).ok_or_else(|| format!("job {job} has {id}, and no queue"))?,
            None if bundle.group.is_in_queue() => QUEUE_OF_GROUPS,
            None => return Ok(()),
        };
        for queue in chain(name) {
            sums.entry(queue.name).or_default().add(demand);
        }
        Verdict::Ok(())
    };
    for record in facts.iter().flat_map(Facts::allocations) {
        if let Some(&bundle) = bundles.get(&record.id) {
            charge_one(record.id, bundle, &record.demand)?;
        }
    }
    let partitions = facts.iter().flat_map(|facts| &facts.partitions);
    for claim in partitions.flat_map(|partition| &partition.claims).filter(|_| with_claims) {
        if let Some(bundle) = claim.bundle {
            charge_one(claim.id, bundle, &claim.demand)?;
        }
    }
    Ok(())
}

/// Returns what the keeper of jobs says that each queue uses. Queues that it does not have use nothing.
#[must_use]
pub fn kept(jobs: &Jobs) -> Charges {
    let of = |queue: &QueueOfSim| {
        let usage = jobs.queue_named(queue.name).map(|id| jobs.queue(id).usage().clone());
        let sum = usage.map(|usage| {
            let amounts = usage.planned().plus(&usage.releasing);
            Sum {
                cpu: amounts.get(Dim::CPU),
                memory: amounts.get(Dim::MEMORY),
                gpu: amounts.get(Dim::GPU),
                allocations: usage.allocations(),
            }
        });
        (queue.name, sum.unwrap_or_default())
    };
    QUEUES.iter().map(of).collect()
}

/// Checks that no queue uses more than its caps, at this moment in the books of the shards. `queue_of` names the queue of a
/// job or of a direct placement.
///
/// # Errors
/// Returns the queue and what it uses.
pub fn caps_hold(facts: &[Facts], queue_of: impl Fn(JobId) -> Option<&'static str>) -> Verdict {
    let mut sums = unused();
    charge(&mut sums, facts, false, queue_of)?;
    for queue in &QUEUES {
        let sum = sums[queue.name];
        let beyond = sum.beyond(queue);
        ensure(beyond.is_none(), || format!("queue `{}` uses too much {beyond:?}: {sum:?}", queue.name))?;
    }
    Ok(())
}

/// Checks, at rest, that queues are charged for what the books have, and for nothing else.
///
/// # Errors
/// Returns both.
pub fn charges_are_in_the_books(
    jobs: &Jobs,
    facts: &[Facts],
    queue_of: impl Fn(JobId) -> Option<&'static str>,
) -> Verdict {
    let mut books = unused();
    charge(&mut books, facts, true, queue_of)?;
    let kept = kept(jobs);
    ensure(kept == books, || format!("queues are charged {kept:?}, and the books have {books:?}"))
}

/// Checks that queues are charged the same after a start.
///
/// # Errors
/// Returns both.
pub fn a_start_keeps_the_charges(before: &Charges, after: &Charges) -> Verdict {
    ensure(before == after, || format!("queues were charged {before:?}, and after a start {after:?}"))
}

/// A direct placement that a client was told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// The queue that its client named.
    pub queue: &'static str,
    /// What its client asked for, as an allocation.
    pub asked: Sum,
}

/// Checks that a direct placement, as long as it is there, is what its client asked for, and charged to the queue that its
/// client named.
///
/// # Errors
/// Returns the placement and what it is.
pub fn placements_are_charged<'a>(
    charged: impl Iterator<Item = (&'a AllocationId, &'a Charged)>,
    facts: &[Facts],
    queue_of: impl Fn(JobId) -> Option<&'static str>,
) -> Verdict {
    let bundles: BTreeMap<AllocationId, BundleId> = allocated(facts).collect();
    let demands: BTreeMap<AllocationId, &Demand> =
        facts.iter().flat_map(Facts::allocations).map(|record| (record.id, &record.demand)).collect();
    for (id, told) in charged {
        let Some(demand) = demands.get(id) else { continue };
        let mut has = Sum::default();
        has.add(demand);
        let job = bundles.get(id).and_then(|bundle| JobId::of_group(bundle.group));
        let queue = job.and_then(&queue_of);
        ensure(queue == Some(told.queue) && has == told.asked, || {
            format!("{id} was placed as {told:?}, and is {has:?} in queue {queue:?}")
        })?;
    }
    Ok(())
}

/// A direct placement that was asked for at rest, and refused.
#[derive(Clone, Copy, Debug)]
pub struct RefusedAtRest<'a> {
    /// The queue.
    pub queue: &'static str,
    /// What was asked for.
    pub demand: &'a Demand,
    /// The reason in the reply.
    pub reason: Reason,
    /// Whether a node offers it.
    pub is_offered: bool,
}

/// Checks that a direct placement that was refused at rest had to be: by a cap that the books do not allow to be passed, or
/// because no node has room.
///
/// # Errors
/// Returns the placement.
pub fn refusals_of_queues_are_true(
    refused: RefusedAtRest<'_>,
    facts: &[Facts],
    queue_of: impl Fn(JobId) -> Option<&'static str>,
) -> Verdict {
    let mut sums = unused();
    charge(&mut sums, facts, true, queue_of)?;
    let is_capped = chain(refused.queue).any(|queue| {
        let mut then = sums[queue.name];
        then.add(refused.demand);
        then.beyond(queue).is_some()
    });
    let is_true = match refused.reason {
        Reason::OverCap => is_capped,
        Reason::NoFitNow | Reason::Infeasible => !is_capped && !refused.is_offered,
        _ => false,
    };
    ensure(is_true, || format!("{refused:?}, with {sums:?}"))
}
