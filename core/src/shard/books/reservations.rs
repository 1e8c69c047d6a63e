//! Reservations: capacity of a node is kept for one owner, so that large requests are placed even when many
//! small ones compete.
//!
//! A reservation may exceed what is free. Capacity that becomes free is then withheld ([`Withheld`]) until the
//! reservation is covered. The owner's requests try its reserved nodes first, and nothing is withheld from them
//! there. All others see what is free less what is reserved. The index and the other structures show nodes as
//! others see them. A second tree has the reserved nodes as their owners see them.
//!
//! A placement of the owner reduces its reservation. The reservation ends when nothing is left. (A reservation
//! in YARN holds one container and ends when that is placed.) A reservation that ends, shrinks or is replaced
//! makes room, like a release: refusals may become stale, and waiting requests are woken. Source: the patent's
//! "LeastFit with reservation".

use crate::broken::{Broken, broken};
use std::collections::{BTreeMap, BTreeSet};

use super::claims::Claims;
use super::table::{NodeTable, Taken};
use super::{Books, Dirty};
use crate::books::{Reservation, Withheld};
use crate::ids::{NodeId, OwnerId};
use crate::index::{ResourceVector, Slot};
use crate::limits::RESERVED_NODES_PERCENT_DEFAULT;
use crate::link::Decision;
use crate::map::FixedMap;
use crate::request::PlacementRequest;
use crate::resource::{Amount, Demand, GPU_UNIT, GpuAssignment, ReservedAmounts, ResourceKind};
use crate::shard::command::ResourceSum;
use crate::shard::rejection::ReservationRejection;
use crate::state::ReservationRecord;
use crate::time::Time;
use crate::timers::Timers;

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

/// The current state of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationView {
    /// The node.
    pub node: NodeId,
    /// The owner.
    pub owner: OwnerId,
    /// The amounts that are still reserved.
    pub left: ReservedAmounts,
    /// The time at which the reservation ends. `None` means that it has no end.
    pub until: Option<Time>,
}

/// The amounts that an undecided statement used of a reservation.
#[derive(Clone, Debug)]
pub(crate) struct Used {
    number: u64,
    amounts: ReservedAmounts,
}

/// The reservations of a shard.
pub(crate) struct Reservations {
    by_slot: FixedMap<Slot, Reservation>,
    /// The nodes of each owner. No entry is empty.
    by_owner: BTreeMap<OwnerId, BTreeSet<Slot>>,
    deadlines: Timers<(NodeId, Slot)>,
    percent: u8,
    /// The number of changes to the set of owners.
    owners_version: u64,
    /// The number of the last reservation.
    last: u64,
    /// Amounts withheld for claims. [`Shard::withhold`] defines the order in which claims and reservations are
    /// served.
    pub(crate) claims: Claims,
}

impl Default for Reservations {
    fn default() -> Self {
        Self {
            by_slot: FixedMap::default(),
            by_owner: BTreeMap::new(),
            deadlines: Timers::default(),
            percent: RESERVED_NODES_PERCENT_DEFAULT,
            owners_version: 0,
            last: 0,
            claims: Claims::default(),
        }
    }
}

impl Reservations {
    /// Returns whether nothing is withheld on any node.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_slot.len() | self.claims.len() == 0
    }

    /// Returns the owners that have reserved nodes, ascending.
    pub(crate) fn owners(&self) -> Vec<OwnerId> {
        self.by_owner.keys().copied().collect()
    }

    /// Returns a version that changes with the set of owners.
    pub(crate) fn owners_version(&self) -> u64 {
        self.owners_version
    }

    /// Returns whether anything is reserved or claimed on a node.
    pub(crate) fn is_at(&self, slot: Slot) -> bool {
        !self.is_empty() && (self.at(slot).is_some() || !self.claims.at(slot).is_empty())
    }

    #[inline]
    pub(crate) fn next_deadline(&self) -> Time {
        self.deadlines.next()
    }

    pub(crate) fn at(&self, slot: Slot) -> Option<&Reservation> {
        self.by_slot.get(&slot)
    }

    /// Returns the nodes reserved for `owner`, in order of slot.
    pub(crate) fn of_owner(&self, owner: OwnerId) -> Option<&BTreeSet<Slot>> {
        self.by_owner.get(&owner)
    }

    /// Returns the reservation of the node in `slot`, if it belongs to `owner`.
    pub(crate) fn own(&self, slot: Slot, owner: Option<OwnerId>) -> Option<&Reservation> {
        owner.and_then(|owner| self.at(slot).filter(|reservation| reservation.owner == owner))
    }

    /// Returns what a node has available to the owner of its reservation. `None` if it is not reserved.
    pub(crate) fn available_to_owner(&self, nodes: &NodeTable, slot: Slot) -> Option<ResourceVector> {
        let own = self.at(slot)?;
        Some(nodes.restored(slot, &own.withheld).vector(nodes.indexed()))
    }

    /// Returns whether `request` fits what the node has available to it now.
    pub(crate) fn fits(&self, nodes: &NodeTable, slot: Slot, request: &PlacementRequest) -> bool {
        match self.own(slot, request.owner) {
            Some(own) => nodes.fits_restored(slot, &own.withheld, &request.demand),
            None => nodes.fits(slot, &request.demand),
        }
    }

    /// Returns the maximum number of `nodes` that may be reserved at once.
    fn most(&self, nodes: usize) -> usize {
        let share = nodes * usize::from(self.percent) / 100;
        if self.percent == 0 { 0 } else { share.max(1) }
    }

    /// Takes `demand` out of a reservation, for a statement.
    pub(crate) fn use_up(&mut self, slot: Slot, demand: &Demand) -> Used {
        let reservation = self.by_slot.get_mut(&slot).expect("what is used is reserved");
        let before = reservation.left.clone();
        reservation.left.reduce(demand);
        reservation.in_use += 1;
        Used { number: reservation.number, amounts: before.without(&reservation.left) }
    }

    /// Ends the use of a reservation by a decided statement. After an abort, the amounts are reserved again.
    /// Returns whether the reservation ends. That can happen after an abort too, if others used up the rest.
    #[must_use]
    pub(crate) fn end_use(&mut self, slot: Slot, used: &Used, decision: Decision) -> bool {
        // A replaced reservation has another number: none of it was used.
        let same = self.by_slot.get_mut(&slot).filter(|reservation| reservation.number == used.number);
        same.is_some_and(|reservation| {
            if decision == Decision::Aborted {
                reservation.left.add(&used.amounts);
            }
            reservation.in_use -= 1;
            reservation.is_over()
        })
    }

    fn enter(&mut self, slot: Slot, node: NodeId, reservation: Reservation) {
        if let Some(until) = reservation.until {
            self.deadlines.insert(until, (node, slot));
        }
        self.owners_version += u64::from(self.by_owner.entry(reservation.owner).or_default().is_empty());
        self.by_owner.entry(reservation.owner).or_default().insert(slot);
        let before = self.by_slot.insert(slot, reservation);
        assert!(before.is_none(), "node {node} is reserved twice");
    }

    fn leave(&mut self, slot: Slot, node: NodeId) -> Option<Reservation> {
        let reservation = self.by_slot.remove(&slot)?;
        if let Some(until) = reservation.until {
            self.deadlines.remove(until, (node, slot));
        }
        let nodes = self.by_owner.get_mut(&reservation.owner).expect("owners know their nodes");
        nodes.remove(&slot);
        if nodes.is_empty() {
            self.by_owner.remove(&reservation.owner);
            self.owners_version += 1;
        }
        Some(reservation)
    }
}

impl Books {
    /// Sets the maximum share of the nodes that may be reserved at once, in percent.
    pub(crate) fn set_reserved_nodes_percent(&mut self, percent: u8) {
        self.reservations.percent = percent;
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
        match self.reservations.at(slot) {
            Some(there) if there.owner != *owner => {
                Err(ReservationRejection::Taken(node, there.owner, there.until))
            }
            Some(_) => Ok(()),
            // Only one statement at a time has a ticket, for a bounded time. No other limit is needed.
            None if owner.is_ticket() => Ok(()),
            None => {
                let most = self.reservations.most(self.nodes.len());
                if self.reservations.by_slot.len() < most {
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
        let (_, slot) = self.reservations.deadlines.due(now)?;
        self.end_reservation(slot)
    }

    fn enter_reservation(&mut self, slot: Slot, owner: OwnerId, left: ReservedAmounts, until: Option<Time>) {
        let node = self.nodes.hot(slot).id;
        let withheld = Withheld::default();
        self.reservations.last += 1;
        let number = self.reservations.last;
        self.reservations.enter(slot, node, Reservation { owner, left, until, withheld, number, in_use: 0 });
        self.withhold_again(slot);
    }

    /// Sets or removes the reservation of a replica's node. The node's books already exclude the reserved amounts.
    pub(crate) fn set_reservation_image(&mut self, slot: Slot, reservation: Option<&Reservation>) {
        let node = self.nodes.hot(slot).id;
        self.reservations.leave(slot, node);
        if let Some(reservation) = reservation {
            self.reservations.enter(slot, node, reservation.clone());
        }
    }

    /// Removes a reservation and puts the withheld amounts back. Returns false if there is none.
    pub(super) fn forget_reservation(&mut self, slot: Slot) -> bool {
        let Some(reservation) = self.reservations.leave(slot, self.nodes.hot(slot).id) else { return false };
        self.nodes.put_back(slot, &reservation.withheld);
        true
    }

    /// Puts the withheld amounts back into the node's books, temporarily.
    pub(super) fn restore(&mut self, slot: Slot) {
        self.restore_reserved(slot);
        self.restore_claims(slot);
    }

    /// Withholds again, after [`restore`](Self::restore).
    pub(super) fn withhold(&mut self, slot: Slot) {
        self.withhold_reserved(slot);
        self.withhold_claims(slot);
    }

    /// Puts the reserved amounts back into the node's books, temporarily. The node is then as its owner sees it.
    pub(super) fn restore_reserved(&mut self, slot: Slot) {
        if let Some(reservation) = self.reservations.by_slot.get_mut(&slot) {
            self.nodes.put_back(slot, &std::mem::take(&mut reservation.withheld));
        }
    }

    /// Withholds the reserved amounts again, after [`restore_reserved`](Self::restore_reserved). They come before
    /// claimed amounts, as far as the claims can be served by capacity that is being released.
    pub(super) fn withhold_reserved(&mut self, slot: Slot) {
        if self.reservations.at(slot).is_none() {
            return;
        }
        let unclaimed = self.without_claims(slot);
        if let Some(reservation) = self.reservations.by_slot.get_mut(&slot) {
            reservation.withheld = self.nodes.withhold(slot, &reservation.left, unclaimed.as_ref());
        }
    }

    /// Returns the amounts withheld on a node, for claims and for a reservation.
    pub(crate) fn withheld(&self, slot: Slot) -> Withheld {
        let reserved = self.reservations.at(slot).map(|reservation| &reservation.withheld);
        match (reserved, self.reservations.claims.withheld(slot)) {
            (Some(reserved), Some(claimed)) => reserved.plus(claimed),
            (withheld, None) | (None, withheld) => withheld.cloned().unwrap_or_default(),
        }
    }

    /// Takes an owner's request from a node that is reserved for it, and reduces the reservation.
    pub(super) fn take_reserved(
        &mut self,
        slot: Slot,
        demand: &Demand,
        gpus: Option<GpuAssignment>,
    ) -> Taken {
        self.change_owned(slot, |books| {
            let taken = match gpus {
                Some(gpus) => books.nodes.take_chosen(slot, demand, gpus),
                None => books.nodes.take(slot, demand),
            };
            let reservation = books.reservations.by_slot.get_mut(&slot).expect("a reserved node was found");
            reservation.left.reduce(demand);
            if reservation.is_over() {
                books.forget_reservation(slot);
            }
            taken
        })
    }

    /// Returns the reservation of a node as callers see it.
    pub(crate) fn reservation_view(&self, slot: Slot) -> Option<ReservationView> {
        let Reservation { owner, left, until, .. } = self.reservations.at(slot)?;
        let node = self.nodes.hot(slot).id;
        let left = left.clone();
        Some(ReservationView { node, owner: *owner, left, until: *until })
    }

    /// Returns the number of reserved nodes.
    pub(crate) fn nodes_reserved(&self) -> u32 {
        u32::try_from(self.reservations.by_slot.len()).expect("NODES_MAX fits u32")
    }

    /// Returns the books per resource over all nodes, including withheld amounts. O(resource kinds).
    pub(crate) fn sums_with_reserved(&self) -> Vec<(ResourceKind, ResourceSum)> {
        let mut sums = self.sums.kept.all.resources();
        for (kind, sum) in &mut sums {
            sum.reserved = self.nodes.reserved.all.sum(*kind).reserved;
        }
        sums
    }

    /// Returns the durable record of a node's reservation. Amounts that undecided statements use (`held`) count as
    /// still reserved. `None` if nothing is reserved.
    pub(crate) fn reservation_record<'a>(
        &self,
        slot: Slot,
        held: impl Iterator<Item = &'a Used>,
    ) -> Option<ReservationRecord> {
        let ReservationView { node, owner, mut left, until } = self.reservation_view(slot)?;
        // Undecided statements have not taken anything yet.
        let number = self.reservations.at(slot)?.number;
        held.filter(|used| used.number == number).for_each(|used| left.add(&used.amounts));
        (!left.is_empty()).then_some(ReservationRecord { node, owner, left, until })
    }

    /// Restores a reservation from the durable state.
    pub(crate) fn resume_reservation(&mut self, record: ReservationRecord) -> Dirty {
        let slot = self.nodes.slot(record.node).expect("a reserved node is in its partition");
        self.enter_reservation(slot, record.owner, record.left, record.until);
        Dirty::changed(slot)
    }

    /// Checks that withheld amounts match what is free and what is reserved, and that all structures have the
    /// same reservations.
    pub(crate) fn check_reservations(&self) -> Result<(), Broken> {
        let reservations = &self.reservations;
        let mut deadlines = 0;
        for (&slot, reservation) in &reservations.by_slot {
            deadlines += usize::from(reservation.until.is_some());
            self.check_reservation(slot)?;
        }
        let owned: usize = reservations.by_owner.values().map(BTreeSet::len).sum();
        if owned != reservations.by_slot.len() || deadlines != reservations.deadlines.len() {
            return Err(broken!("{owned} reservations by owner, {} by node", reservations.by_slot.len()));
        }
        Ok(())
    }

    /// Checks the reservation of one node, if any.
    pub(crate) fn check_reservation(&self, slot: Slot) -> Result<(), Broken> {
        let reservations = &self.reservations;
        let Some(reservation) = reservations.at(slot) else { return Ok(()) };
        let hot = self.nodes.hot(slot);
        let named = reservations.by_owner.get(&reservation.owner).is_some_and(|own| own.contains(&slot));
        let listed = |until| reservations.deadlines.contains(until, (hot.id, slot));
        if !named || reservation.is_over() || !reservation.until.is_none_or(listed) {
            return Err(broken!("the reservation of node {} is not found: {reservation:?}", hot.id));
        }
        let left = &reservation.left;
        let short =
            |reserved: Amount, withheld: Amount, visible: Amount| withheld < reserved && !visible.is_zero();
        let room = self.nodes.room(slot);
        if reservation.withheld.cpu > left.cpu
            || reservation.withheld.memory > left.memory
            || reservation.withheld.gpu_total() > left.gpu.units()
            || short(left.cpu, reservation.withheld.cpu, room.cpu)
            || short(left.memory, reservation.withheld.memory, room.memory)
            || left.custom.iter().any(|&(id, amount)| reservation.withheld.of(id) > amount)
        {
            return Err(broken!("node {}: {reservation:?} with {room:?}", hot.id));
        }
        let whole = usize::from(reservation.left.gpu.units() >= i64::from(GPU_UNIT));
        if whole > 0 && room.largest_gpu_part > reservation.withheld.gpus.iter().copied().max().unwrap_or(0) {
            return Err(broken!("node {}: others see more of a GPU than is withheld", hot.id));
        }
        Ok(())
    }

    /// Returns the bytes of the reservations.
    pub(crate) fn reservation_bytes(&self) -> u64 {
        let entries = self.reservations.by_slot.len() * size_of::<Reservation>();
        let custom = self.reservations.by_slot.values().map(|reservation| {
            size_of_val(&reservation.left.custom[..]) + size_of_val(&reservation.withheld.custom[..])
        });
        (entries + custom.sum::<usize>()) as u64 + crate::memory::of_map(&self.reservations.by_slot)
    }
}
