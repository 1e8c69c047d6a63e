//! Reservations: capacity of a node is kept for one owner, so that large requests are placed even when many
//! small ones compete.
//!
//! A reservation may exceed what is free. Capacity that becomes free is then withheld until the reservation is
//! covered ([`withheld`](super::withheld)). The owner's requests try its reserved nodes first, and nothing that
//! is reserved is withheld from them there. All others see what is free less what is withheld. The index and the other structures show nodes as
//! others see them. A second tree has the reserved nodes as their owners see them.
//!
//! A placement of the owner reduces its reservation. The reservation ends when nothing is left. (A reservation
//! in YARN holds one container and ends when that is placed.) A reservation that ends, shrinks or is replaced
//! makes room, like a release: refusals may become stale, and waiting requests are woken. Source: the patent's
//! "LeastFit with reservation".

use crate::broken::{Broken, broken};
use std::collections::{BTreeMap, BTreeSet};

use super::table::Taken;
use super::{Books, Dirty};
use crate::books::{Cause, Entry, Kinds, RESERVED, Reservation};
use crate::ids::{NodeId, OwnerId};
use crate::index::{ResourceVector, Slot};
use crate::limits::RESERVED_NODES_PERCENT_DEFAULT;
use crate::link::Decision;
use crate::resource::{Amount, Demand, GpuAssignment, ReservedAmounts, ResourceKind};
use crate::shard::rejection::ReservationRejection;
use crate::state::ReservationRecord;
use crate::time::Time;

/// Reserves capacity of a node for an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// The node.
    pub node: NodeId,
    /// The owner.
    pub owner: OwnerId,
    /// The amounts. At most the node's capacity, but possibly more than is free.
    pub demand: Demand,
    /// The time at which the reservation ends. `None` means that it has no end.
    pub until: Option<Time>,
}

/// The amounts that an undecided statement used of a reservation.
#[derive(Clone, Debug)]
pub(crate) struct Used {
    number: u64,
    amounts: ReservedAmounts,
}

/// The owners of the reservations of a shard.
pub(crate) struct Reservations {
    /// The nodes of each owner. No entry is empty.
    by_owner: BTreeMap<OwnerId, BTreeSet<Slot>>,
    percent: u8,
    /// The number of changes to the set of owners.
    owners_version: u64,
}

impl Default for Reservations {
    fn default() -> Self {
        Self { by_owner: BTreeMap::new(), percent: RESERVED_NODES_PERCENT_DEFAULT, owners_version: 0 }
    }
}

impl Reservations {
    /// Returns whether no node is reserved.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_owner.is_empty()
    }

    /// Returns the owners that have reserved nodes, ascending.
    pub(crate) fn owners(&self) -> Vec<OwnerId> {
        self.by_owner.keys().copied().collect()
    }

    /// Returns a version that changes with the set of owners.
    pub(crate) fn owners_version(&self) -> u64 {
        self.owners_version
    }

    /// Returns the nodes reserved for `owner`, in order of slot.
    pub(crate) fn of_owner(&self, owner: OwnerId) -> Option<&BTreeSet<Slot>> {
        self.by_owner.get(&owner)
    }

    /// Returns the maximum number of `nodes` that may be reserved at once.
    fn most(&self, nodes: usize) -> usize {
        let share = nodes * usize::from(self.percent) / 100;
        if self.percent == 0 { 0 } else { share.max(1) }
    }

    pub(super) fn enter(&mut self, owner: OwnerId, slot: Slot) {
        let nodes = self.by_owner.entry(owner).or_default();
        self.owners_version += u64::from(nodes.is_empty());
        assert!(nodes.insert(slot), "slot {slot} is reserved twice");
    }

    pub(super) fn leave(&mut self, owner: OwnerId, slot: Slot) {
        let nodes = self.by_owner.get_mut(&owner).expect("owners know their nodes");
        assert!(nodes.remove(&slot), "slot {slot} is not listed for its owner");
        if nodes.is_empty() {
            self.by_owner.remove(&owner);
            self.owners_version += 1;
        }
    }
}

impl Books {
    /// Sets the maximum share of the nodes that may be reserved at once, in percent.
    pub(crate) fn set_reserved_nodes_percent(&mut self, percent: u8) {
        assert!(percent <= 100, "{percent} % is more than all nodes");
        self.reservations.percent = percent;
    }

    /// Returns the reservation of a node.
    pub(crate) fn reservation(&self, slot: Slot) -> Option<&Reservation> {
        self.entries(slot).iter().find_map(|entry| match &entry.cause {
            Cause::Reservation(reservation) => Some(reservation),
            _ => None,
        })
    }

    fn reservation_mut(&mut self, slot: Slot) -> Option<&mut Reservation> {
        self.causes_mut(slot).find_map(|cause| match cause {
            Cause::Reservation(reservation) => Some(reservation),
            _ => None,
        })
    }

    /// Returns the withheld amounts that count as free for the requests of `owner`.
    pub(crate) fn own(&self, slot: Slot, owner: Option<OwnerId>) -> Kinds {
        let is_own = owner.is_some() && self.reservation(slot).map(|there| there.owner) == owner;
        if is_own { RESERVED } else { 0 }
    }

    /// Returns what a node has available to the owner of its reservation. `None` if it is not reserved.
    pub(crate) fn available_to_owner(&self, slot: Slot) -> Option<ResourceVector> {
        self.reservation(slot)?;
        Some(self.free(slot, RESERVED).vector(self.nodes.indexed()))
    }

    /// Takes `demand` out of a reservation, for a statement.
    pub(super) fn use_up(&mut self, slot: Slot, demand: &Demand) -> Used {
        let reservation = self.reservation_mut(slot).expect("what is used is reserved");
        let before = reservation.left.clone();
        reservation.left.reduce(demand);
        reservation.in_use += 1;
        Used { number: reservation.number, amounts: before.without(&reservation.left) }
    }

    /// Ends the use of a reservation by a decided statement. After an abort, the amounts are reserved again.
    /// Returns whether the reservation ends. That can happen after an abort too, if others used up the rest.
    #[must_use]
    pub(super) fn end_use(&mut self, slot: Slot, used: &Used, decision: Decision) -> bool {
        // A replaced reservation has another number: none of it was used.
        let same = self.reservation_mut(slot).filter(|reservation| reservation.number == used.number);
        same.is_some_and(|reservation| {
            if decision == Decision::Aborted {
                reservation.left.add(&used.amounts);
            }
            assert!(reservation.in_use > 0, "the use of a reservation ends that nobody uses");
            reservation.in_use -= 1;
            reservation.is_over()
        })
    }

    /// Checks whether `reserve` is allowed.
    fn check_reserve(&self, slot: Slot, reserve: &Reserve, now: Time) -> Result<(), ReservationRejection> {
        let Reserve { node, owner, demand, until } = reserve;
        let node = *node;
        if ReservedAmounts::from(demand).is_empty() {
            return Err(ReservationRejection::Nothing(node));
        }
        if until.is_some_and(|until| until <= now) {
            return Err(ReservationRejection::DeadlinePassed(node));
        }
        let spec = &self.nodes.cold(slot).registration.spec;
        let total = |kind| spec.custom.iter().flat_map(|c| c.iter()).find(|&&(id, _)| id == kind);
        let known = [
            (ResourceKind::Cpu, demand.cpu, spec.cpu),
            (ResourceKind::Memory, demand.memory, spec.memory),
            (ResourceKind::Gpu, demand.gpu.amount(), Amount::whole(u32::from(spec.gpus))),
        ];
        let custom = demand.custom().iter().map(|&(id, asked)| {
            (ResourceKind::Custom(id), asked, total(id).map_or(Amount::ZERO, |&(_, total)| total))
        });
        if let Some((kind, _, capacity)) =
            known.into_iter().chain(custom).find(|&(_, asked, has)| asked > has)
        {
            return Err(ReservationRejection::TooMuch(node, kind, capacity));
        }
        match self.reservation(slot) {
            Some(there) if there.owner != *owner => {
                Err(ReservationRejection::Taken(node, there.owner, there.until))
            }
            Some(_) => Ok(()),
            // Only one statement at a time has a ticket, for a bounded time. No other limit is needed.
            None if owner.is_ticket() => Ok(()),
            None => {
                let most = self.reservations.most(self.nodes.len());
                if (self.nodes_reserved() as usize) < most {
                    return Ok(());
                }
                let most = u32::try_from(most).expect("NODES_MAX fits u32");
                Err(ReservationRejection::TooManyNodes(node, most, self.reservations.percent))
            }
        }
    }

    /// Reserves capacity of a node, or replaces the same owner's reservation there.
    pub(crate) fn reserve(&mut self, reserve: &Reserve, now: Time) -> Result<Dirty, ReservationRejection> {
        let slot = self.slot(reserve.node)?;
        self.check_reserve(slot, reserve, now)?;
        let is_replaced = self.forget_reservation(slot);
        self.enter_reservation(slot, reserve.owner, (&reserve.demand).into(), reserve.until);
        self.bump_version(slot);
        Ok(if is_replaced { self.grew(slot) } else { Dirty::changed(slot) })
    }

    /// Ends the reservation of a node, if any. Others then have more available there.
    pub(crate) fn end_reservation(&mut self, slot: Slot) -> Option<Dirty> {
        self.forget_reservation(slot).then(|| {
            self.bump_version(slot);
            self.grew(slot)
        })
    }

    /// Ends the first reservation whose deadline has passed.
    pub(crate) fn expire_reservation(&mut self, now: Time) -> Option<Dirty> {
        let slot = self.entries.due(now)?;
        let ended = self.end_reservation(slot);
        assert!(ended.is_some(), "slot {slot} has a deadline without a reservation");
        ended
    }

    fn enter_reservation(&mut self, slot: Slot, owner: OwnerId, left: ReservedAmounts, until: Option<Time>) {
        let number = self.entries.next_number();
        let reservation = Reservation { owner, left, until, number, in_use: 0 };
        self.enter(slot, Entry::new(Cause::Reservation(reservation)));
        self.withhold_again(slot);
    }

    /// Removes a reservation. What it withheld is free. Returns false if there is none.
    pub(super) fn forget_reservation(&mut self, slot: Slot) -> bool {
        self.restore(slot, RESERVED);
        let ended = self.leave(slot, |cause| matches!(cause, Cause::Reservation(_)));
        let is_reserved = self.nodes.hot(slot).withheld & RESERVED != 0;
        assert!(!is_reserved, "slot {slot} has two reservations");
        ended.is_some()
    }

    /// Takes an owner's request from a node that is reserved for it, and reduces the reservation.
    pub(super) fn take_reserved(
        &mut self,
        slot: Slot,
        demand: &Demand,
        gpus: Option<GpuAssignment>,
    ) -> Taken {
        self.change(slot, RESERVED, |books| {
            let taken = match gpus {
                Some(gpus) => books.nodes.take_chosen(slot, demand, gpus),
                None => books.nodes.take(slot, demand),
            };
            let reservation = books.reservation_mut(slot).expect("a reserved node was found");
            reservation.left.reduce(demand);
            if reservation.is_over() {
                books.forget_reservation(slot);
            }
            taken
        })
    }

    /// Returns the reservation of a node as callers see it.
    pub(crate) fn reservation_view(&self, slot: Slot) -> Option<ReservationRecord> {
        let Reservation { owner, left, until, .. } = self.reservation(slot)?;
        let node = self.nodes.hot(slot).id;
        let left = left.clone();
        Some(ReservationRecord { node, owner: *owner, left, until: *until })
    }

    /// Returns the number of reserved nodes.
    pub(crate) fn nodes_reserved(&self) -> u32 {
        let nodes = self.reservations.by_owner.values().map(BTreeSet::len);
        u32::try_from(nodes.sum::<usize>()).expect("NODES_MAX fits u32")
    }

    /// Returns the durable record of a node's reservation. Amounts that undecided statements use (`held`) count as
    /// still reserved. `None` if nothing is reserved.
    pub(crate) fn reservation_record<'a>(
        &self,
        slot: Slot,
        held: impl Iterator<Item = &'a Used>,
    ) -> Option<ReservationRecord> {
        let ReservationRecord { node, owner, mut left, until } = self.reservation_view(slot)?;
        // Undecided statements have not taken anything yet.
        let number = self.reservation(slot)?.number;
        held.filter(|used| used.number == number).for_each(|used| left.add(&used.amounts));
        (!left.is_empty()).then_some(ReservationRecord { node, owner, left, until })
    }

    /// Restores a reservation from the durable state.
    pub(crate) fn resume_reservation(&mut self, record: ReservationRecord) -> Dirty {
        let slot = self.nodes.slot(record.node).expect("a reserved node is in its partition");
        self.enter_reservation(slot, record.owner, record.left, record.until);
        Dirty::changed(slot)
    }

    /// Checks the reservation of one node, if any.
    pub(super) fn check_reservation(&self, slot: Slot) -> Result<(), Broken> {
        let Some(reservation) = self.reservation(slot) else { return Ok(()) };
        let own = self.reservations.of_owner(reservation.owner);
        if reservation.is_over() || !own.is_some_and(|own| own.contains(&slot)) {
            let node = self.nodes.hot(slot).id;
            return Err(broken!("the reservation of node {node} is over or not found: {reservation:?}"));
        }
        Ok(())
    }
}
