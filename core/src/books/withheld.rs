//! Amounts of one node that are withheld from others: each entry has a cause, and the amounts withheld for it.

use std::sync::Arc;

use super::ExactAmounts;
use crate::ids::{AllocationId, BundleId, OwnerId};
use crate::node::Unhealthy;
use crate::resource::{Demand, GPU_UNIT, GpuAssignment, ReservedAmounts, UnitAssignments};
use crate::time::Time;

/// A set of kinds of entries, as bits. A lower bit comes first: its entries withhold before the others.
pub(crate) type Kinds = u8;
/// Unhealthy GPU instances.
pub(crate) const UNHEALTHY: Kinds = 1;
/// Reservations.
pub(crate) const RESERVED: Kinds = 2;
/// Claims, in the order in which they were made.
pub(crate) const CLAIMED: Kinds = 4;
/// What someone will get: reservations and claims.
pub(crate) const PROMISED: Kinds = RESERVED | CLAIMED;
/// All kinds.
pub(crate) const WITHHELD: Kinds = UNHEALTHY | PROMISED;

/// An entry: amounts of one node that are withheld from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) cause: Cause,
    /// At most what the cause wants. Empty while the amounts are put back.
    pub(crate) withheld: ExactAmounts,
}

impl Entry {
    /// Returns an entry that withholds nothing yet.
    pub(crate) fn new(cause: Cause) -> Self {
        Self { cause, withheld: ExactAmounts::default() }
    }

    pub(crate) fn kind(&self) -> Kinds {
        match self.cause {
            Cause::Unhealthy(_) => UNHEALTHY,
            Cause::Reservation(_) => RESERVED,
            Cause::Claim(_) => CLAIMED,
        }
    }

    /// Returns the amounts that it wants. `None` for a reservation, which takes any instances.
    pub(crate) fn exact(&self) -> Option<ExactAmounts> {
        let mut exact = ExactAmounts::default();
        match &self.cause {
            Cause::Reservation(_) => return None,
            Cause::Claim(claim) => exact.hold(&claim.demand, claim.gpus, claim.units.as_ref(), &"a claim"),
            Cause::Unhealthy(instances) => {
                let instances = instances.iter().map(|&(instance, _)| usize::from(instance));
                instances.for_each(|instance| exact.gpus[instance] = u32::from(GPU_UNIT));
            }
        }
        Some(exact)
    }

    /// Returns whether it withholds all that it wants, on known instances.
    pub(crate) fn has_all(&self) -> bool {
        self.exact().is_some_and(|wanted| wanted == self.withheld)
    }

    /// Returns the time at which the entry ends by itself.
    pub(crate) fn until(&self) -> Option<Time> {
        if let Cause::Reservation(reservation) = &self.cause { reservation.until } else { None }
    }
}

/// Why the amounts of an entry are withheld, and which amounts are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// All of the unhealthy GPU instances.
    Unhealthy(Unhealthy),
    /// The reserved amounts, on any instances.
    Reservation(Reservation),
    /// The claimed amounts, on the planned instances.
    Claim(Claim),
}

/// The reservation of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) owner: OwnerId,
    pub(crate) left: ReservedAmounts,
    pub(crate) until: Option<Time>,
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

/// One claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Identifies the claim while its statement is undecided.
    pub(crate) number: u64,
    /// The id of its future allocation. `None` while its statement is undecided.
    pub(crate) id: Option<AllocationId>,
    pub(crate) demand: Demand,
    pub(crate) gpus: GpuAssignment,
    pub(crate) units: Option<Arc<UnitAssignments>>,
    pub(crate) bundle: Option<BundleId>,
}
