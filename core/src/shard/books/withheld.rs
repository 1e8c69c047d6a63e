//! Amounts that are withheld on nodes: for unhealthy GPU instances, reservations and claims.
//!
//! Each is an [`Entry`] of its node. Withheld amounts are moved out of the free amounts, so the code that
//! searches and takes needs no knowledge of entries. [`restore`](Books::restore) moves them back before the
//! books change, and [`withhold`](Books::withhold) moves them out again. What runs on unhealthy instances stays
//! allocated.
//!
//! The entries of a node withhold in this order: unhealthy instances, the reservation, claims. The reservation
//! leaves what the claims cannot get from capacity that is being released. A claim takes any other capacity
//! that comes free. What an entry withholds depends only on what is free and what the entries want. It never
//! exceeds either.

use super::Books;
use super::free_books::{FreeBooks, short_of};
use super::table::{NodeTable, Room};
use crate::books::{
    CLAIMED, Cause, CustomBook, Entry, ExactAmounts, Kinds, PROMISED, RESERVED, Reservation, UNHEALTHY,
};
use crate::broken::{Broken, broken};
use crate::ids::NodeId;
use crate::index::Slot;
use crate::limits::{CLAIMS_PER_NODE_MAX, GPU_INSTANCES_MAX};
use crate::map::FixedMap;
use crate::node::Unhealthy;
use crate::planted::{PlantedBug, is_planted};
use crate::resource::{Amount, Demand, GPU_UNIT, GpuBooks, ReservedAmounts, parts_withheld};
use crate::time::Time;
use crate::timers::Timers;

/// The entries of a shard.
#[derive(Default)]
pub(crate) struct Entries {
    /// The entries of each node, in order of precedence. No list is empty.
    by_slot: FixedMap<Slot, Vec<Entry>>,
    deadlines: Timers<(NodeId, Slot)>,
    /// The number of the last reservation or claim.
    last: u64,
}

impl Entries {
    /// Returns the next time at which an entry ends by itself, or the end of time.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Time {
        self.deadlines.next()
    }

    /// Returns the node of the first entry whose deadline has passed.
    pub(super) fn due(&self, now: Time) -> Option<Slot> {
        self.deadlines.due(now).map(|(_, slot)| slot)
    }

    /// Returns a number for a new reservation or claim.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Returns the entries of all nodes.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.by_slot.values().flatten()
    }

    /// Returns the size in bytes, without what its entries point to.
    pub(crate) fn bytes(&self) -> u64 {
        use crate::memory::{of_map, of_vec};
        let lists = self.by_slot.values().map(of_vec);
        of_map(&self.by_slot) + self.deadlines.bytes() + lists.sum::<u64>()
    }
}

/// Moves amounts out of the free amounts of a node, or back if `is_back`.
fn shift(
    room: &mut Room,
    gpus: &mut GpuBooks,
    custom: &mut [CustomBook],
    amounts: &ExactAmounts,
    is_back: bool,
) {
    let moved = |free: Amount, by: Amount| if is_back { free.plus(by) } else { free.minus(by) };
    let part = |free: u16, by: u32| {
        let free = if is_back { Some(u32::from(free) + by) } else { u32::from(free).checked_sub(by) };
        free.and_then(|free| u16::try_from(free).ok()).expect("what moves was free, or is withheld")
    };
    room.cpu = moved(room.cpu, amounts.cpu);
    room.memory = moved(room.memory, amounts.memory);
    if amounts.gpu_total() > 0 {
        for (instance, &by) in (0u8..).zip(&amounts.gpus) {
            gpus.set_free(instance, part(gpus.free(instance), by));
        }
        room.follow(gpus);
    }
    for (&id, &amount) in &amounts.custom {
        let at = custom.binary_search_by_key(&id, |book| book.id);
        let book = &mut custom[at.expect("a book of which something is withheld stays")];
        book.available = moved(book.available, amount);
        for (unit, by) in amounts.units_of(id) {
            let units = book.units.as_mut().expect("a kind with units keeps them");
            units.set_free(unit, part(units.free_of(unit), by));
        }
    }
}

impl NodeTable {
    /// Returns the part of `wanted` that is free on a node.
    fn free_of(&self, slot: Slot, wanted: ExactAmounts) -> ExactAmounts {
        let room = self.room(slot);
        let ExactAmounts { cpu, memory, mut gpus, mut custom, mut units } = wanted;
        for (instance, part) in (0u8..).zip(&mut gpus) {
            *part = (*part).min(self.hot(slot).gpus.free(instance).into());
        }
        units.retain(|&(id, unit), part| {
            let books = self.book(slot, id).and_then(|book| book.units.as_ref());
            *part = (*part).min(books.map_or(0, |books| books.free_of(unit).into()));
            *part > 0
        });
        custom.retain(|&id, amount| {
            let parts = || units.range((id, 0)..=(id, u8::MAX)).map(|(_, &part)| part);
            *amount = match self.book(slot, id) {
                Some(book) if book.units.is_some() => Amount::from_parts(parts()),
                book => book.map_or(Amount::ZERO, |book| (*amount).min(book.available)),
            };
            !amount.is_zero()
        });
        ExactAmounts { cpu: cpu.min(room.cpu), memory: memory.min(room.memory), gpus, custom, units }
    }

    /// Returns what a reservation of `left` withholds if that is free, and on which instances. If `most` is
    /// given, it is at most that.
    fn reserved(&self, slot: Slot, left: &ReservedAmounts, most: Option<&FreeBooks>) -> ExactAmounts {
        let within =
            |amount: Amount, of: fn(&Room) -> Amount| most.map_or(amount, |most| amount.min(of(&most.room)));
        let cpu = within(left.cpu, |room| room.cpu);
        let memory = within(left.memory, |room| room.memory);
        let mut wanted = ExactAmounts { cpu, memory, ..ExactAmounts::default() };
        if !left.gpu.is_zero() {
            let most = |instance| most.map_or(u16::MAX, |most| most.gpus.free(instance));
            let free = |instance| self.hot(slot).gpus.free(instance).min(most(instance));
            let free: Vec<u16> = (0..GPU_INSTANCES_MAX as u8).map(free).collect();
            let parts = parts_withheld(&free, left.gpu);
            wanted.gpus.iter_mut().zip(parts).for_each(|(wanted, part)| *wanted = part.into());
        }
        for &(id, amount) in &left.custom {
            let Some(book) = self.book(slot, id) else { continue };
            let most = most.and_then(|most| most.book(id));
            let amount = most.map_or(amount, |most| amount.min(most.available));
            wanted.custom.insert(id, amount);
            let Some(units) = &book.units else { continue };
            let most = most.and_then(|most| most.units.as_ref());
            let most = |unit| most.map_or(u16::MAX, |most| most.free_of(unit));
            let free: Vec<u16> = units.iter().map(|(unit, free, _)| free.min(most(unit))).collect();
            let parts = (0u8..).zip(parts_withheld(&free, amount));
            wanted.units.extend(parts.map(|(unit, part)| ((id, unit), part.into())));
        }
        assert!(wanted.gpu_total() <= left.gpu.units(), "slot {slot}: more of the GPUs than {left:?}");
        wanted
    }

    /// Returns whether an entry withholds what it wants, as far as that is free, and no more.
    fn is_withheld(&self, slot: Slot, entry: &Entry) -> bool {
        let room = self.room(slot);
        let gpus = &self.hot(slot).gpus;
        let withheld = &entry.withheld;
        let is_right =
            |wanted: i64, withheld: i64, free: i64| withheld == wanted || withheld < wanted && free == 0;
        let plain = |cpu: Amount, memory: Amount| {
            is_right(cpu.units(), withheld.cpu.units(), room.cpu.units())
                && is_right(memory.units(), withheld.memory.units(), room.memory.units())
        };
        match (&entry.cause, entry.exact()) {
            (_, Some(wanted)) => {
                let mut parts = (0u8..).zip(withheld.gpus.iter().zip(wanted.gpus));
                plain(wanted.cpu, wanted.memory)
                    && parts.all(|(i, (&part, of))| is_right(of.into(), part.into(), gpus.free(i).into()))
                    && withheld.custom.iter().all(|(&id, &amount)| amount <= wanted.of(id))
            }
            (Cause::Reservation(Reservation { left, .. }), _) => {
                let whole = left.gpu.units() >= i64::from(GPU_UNIT);
                let most = withheld.gpus.iter().copied().max().unwrap_or(0);
                plain(left.cpu, left.memory)
                    && withheld.gpu_total() <= left.gpu.units()
                    // Others may not see more of a GPU than is withheld.
                    && (!whole || u32::from(room.largest_gpu_part) <= most)
                    && left.custom.iter().all(|&(id, amount)| withheld.of(id) <= amount)
            }
            _ => false,
        }
    }
}

impl Books {
    /// Returns the entries of a node, in order of precedence.
    #[inline]
    pub(crate) fn entries(&self, slot: Slot) -> &[Entry] {
        if self.nodes.hot(slot).withheld == 0 { &[] } else { &self.entries.by_slot[&slot] }
    }

    /// Returns the entries of these kinds, in order.
    pub(crate) fn entries_of(&self, slot: Slot, kinds: Kinds) -> impl Iterator<Item = &Entry> {
        self.entries(slot).iter().filter(move |entry| entry.kind() & kinds != 0)
    }

    /// Returns the causes of a node, to change them. Nothing may be withheld for what changes.
    pub(super) fn causes_mut(&mut self, slot: Slot) -> impl Iterator<Item = &mut Cause> {
        self.entries.by_slot.get_mut(&slot).into_iter().flatten().map(|entry| &mut entry.cause)
    }

    /// Adds an entry after those that come before it. The caller withholds for it.
    pub(super) fn enter(&mut self, slot: Slot, entry: Entry) {
        let (_, hot, _) = self.nodes.parts_mut(slot);
        hot.withheld |= entry.kind();
        if let Some(until) = entry.until() {
            let is_listed = self.entries.deadlines.contains(until, (hot.id, slot));
            assert!(!is_listed, "node {}: the end of {entry:?} is known already", hot.id);
            self.entries.deadlines.insert(until, (hot.id, slot));
        }
        match &entry.cause {
            Cause::Unhealthy(_) => {}
            Cause::Reservation(reservation) => self.reservations.enter(reservation.owner, slot),
            Cause::Claim(claim) => {
                let before = claim.id.and_then(|id| self.claims.by_id.insert(id, slot));
                assert!(before.is_none(), "node {}: {claim:?} is known on two nodes", hot.id);
            }
        }
        let entries = self.entries.by_slot.entry(slot).or_default();
        let at = entries.partition_point(|other| other.kind() <= entry.kind());
        let is_second = entry.kind() != CLAIMED && at > 0 && entries[at - 1].kind() == entry.kind();
        assert!(!is_second, "node {} has two entries of one kind: {entry:?}", hot.id);
        entries.insert(at, entry);
        assert!(entries.len() <= CLAIMS_PER_NODE_MAX + 2, "node {} has too many entries", hot.id);
    }

    /// Removes the first entry with such a cause. Nothing may be withheld for it.
    pub(super) fn leave(&mut self, slot: Slot, is: impl Fn(&Cause) -> bool) -> Option<Cause> {
        let entries = self.entries.by_slot.get_mut(&slot)?;
        let at = entries.iter().position(|entry| is(&entry.cause))?;
        let entry = entries.remove(at);
        assert!(entry.withheld == ExactAmounts::default(), "what is withheld is lost with {entry:?}");
        let (_, hot, _) = self.nodes.parts_mut(slot);
        assert!(hot.withheld & entry.kind() != 0, "node {} does not know of {entry:?}", hot.id);
        hot.withheld = entries.iter().fold(0, |kinds, entry| kinds | entry.kind());
        if entries.is_empty() {
            self.entries.by_slot.remove(&slot);
        }
        if let Some(until) = entry.until() {
            let was_listed = self.entries.deadlines.remove(until, (hot.id, slot));
            assert!(was_listed, "node {}: the end of {entry:?} is not known", hot.id);
        }
        match &entry.cause {
            Cause::Unhealthy(_) => {}
            Cause::Reservation(reservation) => self.reservations.leave(reservation.owner, slot),
            Cause::Claim(claim) => {
                let known = claim.id.map_or(Some(slot), |id| self.claims.by_id.remove(&id));
                assert!(known == Some(slot), "node {}: {claim:?} is not found by its id", hot.id);
            }
        }
        Some(entry.cause)
    }

    /// Sets the entries of a replica's node. The node's books already exclude what they withhold.
    pub(super) fn set_entries_image(&mut self, slot: Slot, entries: &[Entry]) {
        while let Some(entry) = self.entries.by_slot.get_mut(&slot).and_then(|entries| entries.first_mut()) {
            entry.withheld = ExactAmounts::default();
            self.leave(slot, |_| true);
        }
        assert!(self.nodes.hot(slot).withheld == 0, "slot {slot} has kinds of entries and no entries");
        entries.iter().for_each(|entry| self.enter(slot, entry.clone()));
    }

    /// Puts the amounts that entries of these kinds withhold back into the node's books, temporarily.
    #[inline]
    pub(super) fn restore(&mut self, slot: Slot, kinds: Kinds) {
        if self.nodes.hot(slot).withheld & kinds != 0 {
            self.restore_entries(slot, kinds);
        }
    }

    #[inline(never)]
    fn restore_entries(&mut self, slot: Slot, kinds: Kinds) {
        let entries = self.entries.by_slot.get_mut(&slot).expect("the node has entries");
        for entry in entries.iter_mut().filter(|entry| entry.kind() & kinds != 0) {
            self.sums.withhold(slot, entry, -1);
            let (room, hot, cold) = self.nodes.parts_mut(slot);
            let withheld = std::mem::take(&mut entry.withheld);
            shift(room, &mut hot.gpus, &mut cold.custom, &withheld, true);
        }
    }

    /// Withholds for entries of these kinds again, in their order, after [`restore`](Self::restore).
    #[inline]
    pub(super) fn withhold(&mut self, slot: Slot, kinds: Kinds) {
        if self.nodes.hot(slot).withheld & kinds != 0 {
            self.withhold_entries(slot, kinds);
        }
    }

    #[inline(never)]
    fn withhold_entries(&mut self, slot: Slot, kinds: Kinds) {
        let unclaimed = if kinds & RESERVED != 0 { self.without_claims(slot) } else { None };
        let entries = self.entries.by_slot.get_mut(&slot).expect("the node has entries");
        for entry in entries.iter_mut().filter(|entry| entry.kind() & kinds != 0) {
            assert!(entry.withheld == ExactAmounts::default(), "slot {slot}: {entry:?} withholds already");
            if entry.kind() == CLAIMED && is_planted(PlantedBug::ClaimNotWithheld) {
                continue;
            }
            let wanted = match &entry.cause {
                Cause::Reservation(of) => self.nodes.reserved(slot, &of.left, unclaimed.as_ref()),
                _ => entry.exact().expect("all others know their instances"),
            };
            entry.withheld = self.nodes.free_of(slot, wanted);
            let (room, hot, cold) = self.nodes.parts_mut(slot);
            shift(room, &mut hot.gpus, &mut cold.custom, &entry.withheld, false);
            self.sums.withhold(slot, entry, 1);
        }
    }

    /// Withholds what reservations and claims get of what is free now.
    #[inline]
    pub(super) fn withhold_again(&mut self, slot: Slot) {
        self.restore(slot, PROMISED);
        self.withhold(slot, PROMISED);
    }

    /// Returns the free amounts of a node. What entries of these kinds withhold counts as free.
    pub(crate) fn free(&self, slot: Slot, kinds: Kinds) -> FreeBooks {
        let mut free = FreeBooks {
            room: *self.nodes.room(slot),
            gpus: self.nodes.hot(slot).gpus,
            custom: self.nodes.cold(slot).custom.clone(),
        };
        for entry in self.entries_of(slot, kinds) {
            shift(&mut free.room, &mut free.gpus, &mut free.custom, &entry.withheld, true);
        }
        free
    }

    /// Returns whether `demand` fits a node. What entries of these kinds withhold counts as free.
    #[inline]
    pub(crate) fn fits(&self, slot: Slot, kinds: Kinds, demand: &Demand) -> bool {
        if self.nodes.fits(slot, demand) {
            return true;
        }
        // Most nodes that do not fit are short of cpu or memory.
        let room = self.nodes.room(slot);
        let withheld = || self.entries_of(slot, kinds).map(|entry| &entry.withheld);
        demand.cpu <= withheld().fold(room.cpu, |free, of| free.plus(of.cpu))
            && demand.memory <= withheld().fold(room.memory, |free, of| free.plus(of.memory))
            && room.places > 0
            && self.nodes.hot(slot).withheld & kinds != 0
            && short_of(&self.free(slot, kinds), demand).is_none()
    }

    /// Returns the amounts that entries of these kinds withhold on a node.
    pub(crate) fn withheld(&self, slot: Slot, kinds: Kinds) -> ExactAmounts {
        let mut sum = ExactAmounts::default();
        self.entries_of(slot, kinds).for_each(|entry| sum.add(&entry.withheld));
        sum
    }

    /// Returns the unhealthy instances of a node in ascending order, each with its reason.
    pub(crate) fn unhealthy(&self, slot: Slot) -> &[(u8, std::sync::Arc<str>)] {
        match self.entries(slot) {
            [Entry { cause: Cause::Unhealthy(instances), .. }, ..] => instances,
            _ => &[],
        }
    }

    /// Replaces the unhealthy instances of a node, while nothing is withheld. Instances that the node does not
    /// have are ignored.
    pub(super) fn set_unhealthy(&mut self, slot: Slot, mut unhealthy: Unhealthy) {
        assert!(unhealthy.is_sorted_by_key(|&(instance, _)| instance), "unhealthy instances are ascending");
        let gpus = self.nodes.cold(slot).registration.spec.gpus;
        unhealthy.retain(|&(instance, _)| instance < gpus);
        self.leave(slot, |cause| matches!(cause, Cause::Unhealthy(_)));
        let is_there = self.nodes.hot(slot).withheld & UNHEALTHY != 0;
        assert!(!is_there, "slot {slot} has two lists of unhealthy instances");
        if !unhealthy.is_empty() {
            self.enter(slot, Entry::new(Cause::Unhealthy(unhealthy)));
        }
    }

    /// Checks the entries of one node. Each withholds what it wants, as far as it is free.
    pub(crate) fn check_entries(&self, slot: Slot) -> Result<(), Broken> {
        let hot = self.nodes.hot(slot);
        let entries = self.entries.by_slot.get(&slot).map_or(&[][..], Vec::as_slice);
        let kinds = entries.iter().fold(0, |kinds, entry| kinds | entry.kind());
        if kinds != hot.withheld || !entries.is_sorted_by_key(Entry::kind) {
            return Err(broken!("node {}: it has {entries:?}, its kinds are {}", hot.id, hot.withheld));
        }
        for entry in entries {
            let is_listed = |until| self.entries.deadlines.contains(until, (hot.id, slot));
            if !self.nodes.is_withheld(slot, entry) || !entry.until().is_none_or(is_listed) {
                let room = self.nodes.room(slot);
                return Err(broken!("node {}: {entry:?} with {room:?} and {:?}", hot.id, hot.gpus));
            }
        }
        self.check_reservation(slot)?;
        self.check_claims(slot)
    }

    /// Checks that all structures have the same entries.
    pub(crate) fn check_withheld(&self) -> Result<(), Broken> {
        let reserved = self.entries.iter().filter(|entry| entry.kind() == RESERVED).count();
        let is_found = |entry: &&Entry| matches!(&entry.cause, Cause::Claim(claim) if claim.id.is_some());
        let ids = self.entries.iter().filter(is_found).count();
        let ends = self.entries.iter().filter(|entry| entry.until().is_some()).count();
        let listed = (self.nodes_reserved() as usize, self.claims.by_id.len(), self.entries.deadlines.len());
        if (reserved, ids, ends) == listed {
            return Ok(());
        }
        Err(broken!("{reserved} reservations, {ids} claims with ids and {ends} ends, listed are {listed:?}"))
    }
}
